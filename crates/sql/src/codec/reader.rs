//! [`Reader`]: numbers, texts and values from untrusted bytes.

use crate::value::Value;
use basalt::{Error, ErrorKind, Result};
use basalt_kv::encoding;

pub use basalt_kv::encoding::put_varint;

/// Appends bytes after their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a text after its length.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Reads encoded bytes from the front. Every call checks what it reads, and allocates no more than
/// the bytes that are there.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Returns a reader of `bytes`; errors name `what`.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, at: 0, what }
    }

    /// Returns an error for bytes that are not an encoding.
    pub fn damaged(&self, problem: &str) -> Error {
        Error::new(
            ErrorKind::Corruption,
            format!("{} is damaged at byte {}: {problem}", self.what, self.at),
        )
    }

    /// Returns an error for a format, or another number, that this version does not know.
    pub fn unknown(&self, what: &str, n: u8) -> Error {
        self.damaged(&format!(
            "{what} {n} is unknown; a newer version of Basalt may have written it"
        ))
    }

    /// Returns `true` if all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns the position of the next byte.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Checks that all bytes were read.
    pub fn end(&self) -> Result<()> {
        match self.is_at_end() {
            true => Ok(()),
            false => Err(self.damaged("bytes follow its end")),
        }
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied();
        let byte = byte.ok_or_else(|| self.damaged("it ends too early"))?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a byte that is 0 or 1.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.damaged("a flag is neither 0 nor 1")),
        }
    }

    /// Reads a number.
    pub fn varint(&mut self) -> Result<u64> {
        let mut at = self.at;
        let n = encoding::get_varint64(self.bytes, &mut at);
        let n = n.ok_or_else(|| self.damaged("a number is malformed"))?;
        self.at = at;
        Ok(n)
    }

    /// Reads a number of at most 32 bits.
    pub fn u32(&mut self) -> Result<u32> {
        let n = self.varint()?;
        u32::try_from(n).map_err(|_| self.damaged("a number is too large"))
    }

    /// Reads a number of at most 16 bits.
    pub fn u16(&mut self) -> Result<u16> {
        let n = self.varint()?;
        u16::try_from(n).map_err(|_| self.damaged("a number is too large"))
    }

    /// Reads a signed number.
    pub fn signed(&mut self) -> Result<i64> {
        self.varint().map(encoding::unzigzag)
    }

    /// Reads a count of items of at least one byte each.
    pub fn count(&mut self) -> Result<usize> {
        let n = self.varint()?;
        match usize::try_from(n) {
            Ok(n) if n <= self.bytes.len() - self.at => Ok(n),
            _ => Err(self.damaged("a count exceeds its bytes")),
        }
    }

    /// Reads `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self
            .at
            .checked_add(n)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| self.damaged("it ends too early"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Reads bytes after their length.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.count()?;
        self.take(n)
    }

    /// Reads a text after its length.
    pub fn text(&mut self) -> Result<&'a str> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    /// Reads a text that may be missing.
    pub fn optional_text(&mut self) -> Result<Option<String>> {
        match self.bool()? {
            true => Ok(Some(self.text()?.to_owned())),
            false => Ok(None),
        }
    }

    /// Reads a value, as [`super::put_value`] writes it.
    pub fn value(&mut self) -> Result<Value> {
        let tag = self.u8()?;
        Ok(match tag {
            super::row::NULL => Value::Null,
            super::row::INTEGER => Value::Integer(self.signed()?),
            super::row::REAL => {
                let bits = self.take(8)?.try_into().expect("eight bytes");
                Value::Real(f64::from_le_bytes(bits))
            }
            super::row::TEXT => Value::Text(self.text()?.to_owned()),
            super::row::BLOB => Value::Blob(self.bytes()?.to_vec()),
            super::row::SHORT_TEXT..super::row::SMALL_INTEGER => {
                let n = usize::from(tag - super::row::SHORT_TEXT);
                let text = std::str::from_utf8(self.take(n)?);
                let text = text.map_err(|_| self.damaged("a text is not UTF-8"))?;
                Value::Text(text.to_owned())
            }
            super::row::SMALL_INTEGER.. => {
                Value::Integer(i64::from(tag - super::row::SMALL_INTEGER))
            }
            _ => return Err(self.damaged("a value has an unknown kind")),
        })
    }
}
