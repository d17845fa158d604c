//! Messages of the server: each function appends one message to a buffer.

use crate::types::{
    ColumnFormat, Format, array_oid, put_value, type_modifier, type_oid, type_size,
};
use basalt_sql::statement::ResultColumn;
use basalt_sql::{Row, SqlError, SqlResult, SqlState, SqlType, TransactionStatus};

/// Appends a message whose body `write` appends.
fn put(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    end_message(out, begin);
}

/// Sets the length at `begin`, the position of the length of the last message.
fn end_message(out: &mut [u8], begin: usize) {
    let len = (out.len() - begin) as u32;
    out[begin..begin + 4].copy_from_slice(&len.to_be_bytes());
}

/// Appends a text and a zero byte. Zero bytes of the text are left out.
fn put_text(out: &mut Vec<u8>, text: &str) {
    match text.contains('\0') {
        true => out.extend(text.bytes().filter(|b| *b != 0)),
        false => out.extend_from_slice(text.as_bytes()),
    }
    out.push(0);
}

fn put_i16(out: &mut Vec<u8>, n: i16) {
    out.extend_from_slice(&n.to_be_bytes());
}

fn put_i32(out: &mut Vec<u8>, n: i32) {
    out.extend_from_slice(&n.to_be_bytes());
}

/// AuthenticationOk.
pub fn put_authentication_ok(out: &mut Vec<u8>) {
    put(out, b'R', |out| put_i32(out, 0));
}

/// AuthenticationSASL with the names of the mechanisms.
pub fn put_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    put(out, b'R', |out| {
        put_i32(out, 10);
        mechanisms.iter().for_each(|name| put_text(out, name));
        out.push(0);
    });
}

/// AuthenticationSASLContinue.
pub fn put_sasl_continue(out: &mut Vec<u8>, data: &str) {
    put(out, b'R', |out| {
        put_i32(out, 11);
        out.extend_from_slice(data.as_bytes());
    });
}

/// AuthenticationSASLFinal.
pub fn put_sasl_final(out: &mut Vec<u8>, data: &str) {
    put(out, b'R', |out| {
        put_i32(out, 12);
        out.extend_from_slice(data.as_bytes());
    });
}

/// NegotiateProtocolVersion: version 3.0, and the options that the server does not know.
pub fn put_negotiate_version(out: &mut Vec<u8>, unknown: &[&str]) {
    put(out, b'v', |out| {
        put_i32(out, 3 << 16);
        put_i32(out, unknown.len() as i32);
        unknown.iter().for_each(|name| put_text(out, name));
    });
}

/// ParameterStatus.
pub fn put_parameter_status(out: &mut Vec<u8>, name: &str, value: &str) {
    put(out, b'S', |out| {
        put_text(out, name);
        put_text(out, value);
    });
}

/// BackendKeyData.
pub fn put_backend_key(out: &mut Vec<u8>, process: i32, secret: [u8; 4]) {
    put(out, b'K', |out| {
        put_i32(out, process);
        out.extend_from_slice(&secret);
    });
}

/// ReadyForQuery.
pub fn put_ready(out: &mut Vec<u8>, status: TransactionStatus) {
    let status = match status {
        TransactionStatus::Idle => b'I',
        TransactionStatus::Active => b'T',
        TransactionStatus::Failed => b'E',
    };
    put(out, b'Z', |out| out.push(status));
}

/// A message without a body.
fn put_empty(out: &mut Vec<u8>, kind: u8) {
    out.extend_from_slice(&[kind, 0, 0, 0, 4]);
}

/// ParseComplete.
pub fn put_parse_complete(out: &mut Vec<u8>) {
    put_empty(out, b'1');
}

/// BindComplete.
pub fn put_bind_complete(out: &mut Vec<u8>) {
    put_empty(out, b'2');
}

/// CloseComplete.
pub fn put_close_complete(out: &mut Vec<u8>) {
    put_empty(out, b'3');
}

/// NoData.
pub fn put_no_data(out: &mut Vec<u8>) {
    put_empty(out, b'n');
}

/// EmptyQueryResponse.
pub fn put_empty_query(out: &mut Vec<u8>) {
    put_empty(out, b'I');
}

/// PortalSuspended.
pub fn put_portal_suspended(out: &mut Vec<u8>) {
    put_empty(out, b's');
}

/// CopyDone.
pub fn put_copy_done(out: &mut Vec<u8>) {
    put_empty(out, b'c');
}

/// CommandComplete.
pub fn put_command_complete(out: &mut Vec<u8>, tag: &str) {
    put(out, b'C', |out| put_text(out, tag));
}

/// ParameterDescription.
pub fn put_parameter_description(out: &mut Vec<u8>, types: impl ExactSizeIterator<Item = u32>) {
    put(out, b't', |out| {
        put_i16(out, types.len() as i16);
        types.for_each(|oid| put_i32(out, oid as i32));
    });
}

/// RowDescription.
pub fn put_row_description(
    out: &mut Vec<u8>,
    columns: &[ResultColumn],
    format: impl Fn(usize) -> Format,
) {
    put(out, b'T', |out| {
        put_i16(out, columns.len() as i16);
        for (i, column) in columns.iter().enumerate() {
            put_text(out, &column.name);
            let (table, position) = column.origin.unwrap_or((0, 0));
            put_i32(out, table as i32);
            put_i16(out, position as i16);
            let oid = column.array.map_or(type_oid(column.ty), array_oid);
            put_i32(out, oid as i32);
            put_i16(out, type_size(column.ty));
            put_i32(out, type_modifier(column.ty));
            put_i16(out, i16::from(format(i) == Format::Binary));
        }
    });
}

/// Maximum bytes of one row. A message has at most `i32::MAX` bytes.
const MAX_ROW_BYTES: usize = i32::MAX as usize - 64;

/// DataRow. `scratch` is memory for conversions.
///
/// Errors: those of [`put_value`]; 54000 if the row is larger than a message. Nothing is
/// then appended.
pub fn put_row(
    out: &mut Vec<u8>,
    row: &Row<'_>,
    columns: &[ColumnFormat],
    scratch: &mut String,
) -> SqlResult<()> {
    let start = out.len();
    let result = put_row_parts(out, row, columns, scratch);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn put_row_parts(
    out: &mut Vec<u8>,
    row: &Row<'_>,
    columns: &[ColumnFormat],
    scratch: &mut String,
) -> SqlResult<()> {
    out.push(b'D');
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    if row.len() != columns.len() {
        return Err(SqlError::internal(format!(
            "a row has {} columns, and {} were described",
            row.len(),
            columns.len()
        )));
    }
    put_i16(out, columns.len() as i16);
    for (i, column) in columns.iter().enumerate() {
        put_value(*column, row.get(i)?, scratch, out)?;
        if out.len() - begin > MAX_ROW_BYTES {
            return Err(SqlError::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a row is too large to send: the limit is {MAX_ROW_BYTES} bytes"),
            ));
        }
    }
    end_message(out, begin);
    Ok(())
}

/// CopyInResponse: the server expects data in text format.
pub fn put_copy_in(out: &mut Vec<u8>, columns: usize) {
    put_copy_response(out, b'G', columns);
}

/// CopyOutResponse: data in text format follow.
pub fn put_copy_out(out: &mut Vec<u8>, columns: usize) {
    put_copy_response(out, b'H', columns);
}

fn put_copy_response(out: &mut Vec<u8>, kind: u8, columns: usize) {
    put(out, kind, |out| {
        out.push(0);
        put_i16(out, columns as i16);
        (0..columns).for_each(|_| put_i16(out, 0));
    });
}

/// CopyData with the bytes that `write` appends. If it fails, nothing is appended.
pub fn put_copy_data(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> SqlResult<()>,
) -> SqlResult<()> {
    let start = out.len();
    let mut result = Ok(());
    put(out, b'd', |out| result = write(out));
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// What an error ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement.
    Error,
    /// The connection.
    Fatal,
}

/// ErrorResponse.
pub fn put_error(out: &mut Vec<u8>, severity: Severity, error: &SqlError) {
    let severity = match severity {
        Severity::Error => "ERROR",
        Severity::Fatal => "FATAL",
    };
    put(out, b'E', |out| put_fields(out, severity, error));
}

/// NoticeResponse.
pub fn put_notice(out: &mut Vec<u8>, notice: &SqlError) {
    // Codes of classes 01 and 25 are warnings, such as COMMIT without a transaction.
    let is_warning = ["01", "25"].contains(&&notice.state().0[..2]);
    let severity = if is_warning { "WARNING" } else { "NOTICE" };
    put(out, b'N', |out| put_fields(out, severity, notice));
}

fn put_fields(out: &mut Vec<u8>, severity: &str, error: &SqlError) {
    let mut field = |code: u8, text: Option<&str>| {
        if let Some(text) = text {
            out.push(code);
            put_text(out, text);
        }
    };
    field(b'S', Some(severity));
    field(b'V', Some(severity));
    field(b'C', Some(error.state().0));
    field(b'M', Some(error.message()));
    field(b'D', error.detail());
    field(b'H', error.hint());
    let position = error.position().map(|at| at.to_string());
    field(b'P', position.as_deref());
    // All tables are in one schema.
    field(b's', error.table().map(|_| "public"));
    field(b't', error.table());
    field(b'c', error.column());
    field(b'n', error.constraint());
    out.push(0);
}

/// Returns how the columns of a result are sent.
pub fn column_formats(
    columns: &[ResultColumn],
    format: impl Fn(usize) -> SqlResult<Format>,
) -> SqlResult<Vec<ColumnFormat>> {
    let all = columns.iter().enumerate();
    all.map(|(i, column)| {
        Ok(ColumnFormat {
            ty: column.ty,
            array: column.array,
            format: format(i)?,
        })
    })
    .collect()
}

/// Returns the type number of a parameter.
pub fn parameter_oid(ty: SqlType) -> u32 {
    type_oid(ty)
}
