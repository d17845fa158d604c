//! Rows: the values of a family of a table.
//!
//! A row is a format byte, the number of its values, and the values in the order of the table's
//! columns, dropped ones included. Each value begins with a tag, so that a row is decoded without
//! its table's definition. Columns that were added after the row was written are missing at its
//! end.

use super::reader::{Reader, put_bytes, put_varint};
use crate::value::{Value, ValueRef};
use basalt::Result;
use basalt_kv::encoding::{get_varint64, unzigzag, zigzag};

/// The format of rows that is written.
const FORMAT: u8 = 1;

pub const NULL: u8 = 0;
pub const INTEGER: u8 = 1;
pub const REAL: u8 = 2;
pub const TEXT: u8 = 3;
pub const BLOB: u8 = 4;
/// The tag of an empty text. Those of texts of up to 31 bytes follow.
pub const SHORT_TEXT: u8 = 0x20;
/// The tag of the integer 0. Those of integers up to 191 follow.
pub const SMALL_INTEGER: u8 = 0x40;

/// Appends a value.
pub fn put_value(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => out.push(NULL),
        ValueRef::Integer(n @ 0..=191) => out.push(SMALL_INTEGER + n as u8),
        ValueRef::Integer(n) => {
            out.push(INTEGER);
            put_varint(out, zigzag(n));
        }
        ValueRef::Real(x) => {
            out.push(REAL);
            out.extend_from_slice(&x.to_le_bytes());
        }
        ValueRef::Text(text) if text.len() < 32 => {
            out.push(SHORT_TEXT + text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
        ValueRef::Text(text) => {
            out.push(TEXT);
            put_bytes(out, text.as_bytes());
        }
        ValueRef::Blob(bytes) => {
            out.push(BLOB);
            put_bytes(out, bytes);
        }
    }
}

/// Encodes a row.
pub fn encode_row(values: &[Value]) -> Vec<u8> {
    let heap: usize = values.iter().map(Value::heap_bytes).sum();
    let mut out = Vec::with_capacity(2 + values.len() * 6 + heap);
    out.push(FORMAT);
    put_varint(&mut out, values.len() as u64);
    for value in values {
        put_value(&mut out, value.as_ref());
    }
    out
}

/// A row that is decoded value by value, from the front.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    bytes: &'a [u8],
    /// Position of the first value.
    first: usize,
    count: usize,
}

impl<'a> Row<'a> {
    /// Returns the row in `bytes`.
    ///
    /// Errors: `Corruption` for another format.
    pub fn new(bytes: &'a [u8]) -> Result<Row<'a>> {
        let mut reader = Reader::new(bytes, "a row");
        let format = reader.u8()?;
        if format != FORMAT {
            return Err(reader.unknown("format", format));
        }
        let count = reader.count()?;
        Ok(Row {
            bytes,
            first: reader.position(),
            count,
        })
    }

    /// Returns all values.
    ///
    /// Errors: `Corruption` for malformed bytes.
    pub fn values(&self) -> Result<Vec<Value>> {
        let mut reader = Reader::new(&self.bytes[self.first..], "a row");
        let values = (0..self.count).map(|_| reader.value());
        let values = values.collect::<Result<Vec<Value>>>()?;
        reader.end()?;
        Ok(values)
    }

    /// Appends the positions of all values to `starts`, so that single values are read without
    /// those before them.
    ///
    /// Errors: `Corruption` for malformed bytes.
    pub fn starts(&self, starts: &mut Vec<u32>) -> Result<()> {
        let mut at = self.first;
        for _ in 0..self.count {
            starts.push(at as u32);
            at = skip_value(self.bytes, at).ok_or_else(|| self.damaged())?;
        }
        match at == self.bytes.len() {
            true => Ok(()),
            false => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> basalt::Error {
        Reader::new(self.bytes, "a row").damaged("a value is malformed")
    }

    /// Returns the value that begins at `start`, one of [`Row::starts`].
    ///
    /// Errors: `Corruption` for malformed bytes.
    pub fn value_at(&self, start: u32) -> Result<ValueRef<'a>> {
        value_ref(self.bytes, start as usize).ok_or_else(|| self.damaged())
    }
}

/// Returns the position after the value at `at`.
fn skip_value(bytes: &[u8], at: usize) -> Option<usize> {
    let tag = *bytes.get(at)?;
    let mut at = at + 1;
    match tag {
        NULL => {}
        INTEGER => {
            get_varint64(bytes, &mut at)?;
        }
        REAL => at += 8,
        TEXT | BLOB => {
            let n = usize::try_from(get_varint64(bytes, &mut at)?).ok()?;
            at = at.checked_add(n)?;
        }
        SHORT_TEXT..SMALL_INTEGER => at += usize::from(tag - SHORT_TEXT),
        SMALL_INTEGER.. => {}
        _ => return None,
    }
    (at <= bytes.len()).then_some(at)
}

fn value_ref(bytes: &[u8], at: usize) -> Option<ValueRef<'_>> {
    let tag = *bytes.get(at)?;
    let mut at = at + 1;
    let text = |from: usize, n: usize| {
        let text = std::str::from_utf8(bytes.get(from..from.checked_add(n)?)?).ok()?;
        Some(ValueRef::Text(text))
    };
    Some(match tag {
        NULL => ValueRef::Null,
        INTEGER => ValueRef::Integer(unzigzag(get_varint64(bytes, &mut at)?)),
        REAL => ValueRef::Real(f64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)),
        TEXT => {
            let n = usize::try_from(get_varint64(bytes, &mut at)?).ok()?;
            return text(at, n);
        }
        BLOB => {
            let n = usize::try_from(get_varint64(bytes, &mut at)?).ok()?;
            ValueRef::Blob(bytes.get(at..at.checked_add(n)?)?)
        }
        SHORT_TEXT..SMALL_INTEGER => return text(at, usize::from(tag - SHORT_TEXT)),
        SMALL_INTEGER.. => ValueRef::Integer(i64::from(tag - SMALL_INTEGER)),
        _ => return None,
    })
}
