//! Rows of COPY TO STDOUT in text and CSV format.

use crate::types::put_text;
use basalt_sql::statement::{CopyFormat, ResultColumn};
use basalt_sql::{Row, SqlResult, ValueRef};

/// Appends the line with the names of the columns.
pub fn put_header(format: &CopyFormat, columns: &[ResultColumn], out: &mut Vec<u8>) {
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            out.push(format.delimiter);
        }
        put_field(format, column.name.as_bytes(), columns.len() == 1, out);
    }
    out.push(b'\n');
}

/// Appends the line of a row. `field` and `scratch` are memory for conversions.
pub fn put_line(
    format: &CopyFormat,
    columns: &[ResultColumn],
    row: &Row<'_>,
    field: &mut Vec<u8>,
    scratch: &mut String,
    out: &mut Vec<u8>,
) -> SqlResult<()> {
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            out.push(format.delimiter);
        }
        match row.get(i)? {
            ValueRef::Null => out.extend_from_slice(format.null.as_bytes()),
            value => {
                field.clear();
                put_text(column.ty, value, scratch, field);
                put_field(format, field, columns.len() == 1, out);
            }
        }
    }
    out.push(b'\n');
    Ok(())
}

fn put_field(format: &CopyFormat, field: &[u8], is_alone: bool, out: &mut Vec<u8>) {
    match format.csv {
        true => put_csv(format, field, is_alone, out),
        false => put_escaped(format.delimiter, field, out),
    }
}

/// Appends a field of the text format: backslashes stand before what would end it.
fn put_escaped(delimiter: u8, field: &[u8], out: &mut Vec<u8>) {
    for byte in field {
        let escaped = match byte {
            b'\\' => b'\\',
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            _ if *byte == delimiter => delimiter,
            _ => {
                out.push(*byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', escaped]);
    }
}

/// Appends a field of CSV. It has quotes if its bytes would end it, or would read as NULL or as the
/// end of the data.
fn put_csv(format: &CopyFormat, field: &[u8], is_alone: bool, out: &mut Vec<u8>) {
    let special = [format.delimiter, format.quote, b'\n', b'\r'];
    let is_quoted = field == format.null.as_bytes()
        || field.iter().any(|byte| special.contains(byte))
        || (is_alone && field == b"\\.");
    if !is_quoted {
        out.extend_from_slice(field);
        return;
    }
    out.push(format.quote);
    for byte in field {
        if *byte == format.quote || *byte == format.escape {
            out.push(format.escape);
        }
        out.push(*byte);
    }
    out.push(format.quote);
}
