//! One entry outside a store, and the two line formats for it.
//!
//! **JSON lines**: `{"key": "...", "value": "..."}`; `key_b64` and `value_b64` (base64, standard
//! alphabet, padded) carry bytes that are not UTF-8; `expire_at_ms` is the wall time in ms since
//! 1970 at which the entry expires.
//!
//! **Tab-separated text**: key, tab, value, and optionally tab and `expire_at_ms`, with the escapes
//! of [`crate::escape`]. A carriage return at the end of a line belongs to the line ending.

use crate::escape::{escape_into, unescape};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::BufRead;

/// A key, its value and its expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvRecord {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub expire_at_ms: Option<u64>,
}

/// The line formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON lines: {"key": "...", "value": "..."}
    Jsonl,
    /// Tab-separated text: key, tab, value; escapes \t \n \r \\ \xNN
    Tsv,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_b64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_b64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_at_ms: Option<u64>,
}

impl Format {
    /// Returns the format of a file's name.
    pub fn of_name(name: &std::path::Path) -> Option<Format> {
        match name.extension()?.to_str()? {
            "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
            "tsv" | "tab" | "txt" => Some(Format::Tsv),
            _ => None,
        }
    }

    /// Parses one line without its line feed. The error says what is wrong with the line.
    pub fn parse(self, line: &[u8]) -> Result<KvRecord, String> {
        match self {
            Format::Jsonl => parse_json(line),
            Format::Tsv => parse_tsv(line),
        }
    }

    /// Appends one line with its line feed. If the value is `None`, the line has only the key.
    pub fn print(
        self,
        key: &[u8],
        value: Option<&[u8]>,
        expire_at_ms: Option<u64>,
        out: &mut String,
    ) {
        match self {
            Format::Jsonl => {
                let (key, key_b64) = json_text(Some(key));
                let (value, value_b64) = json_text(value);
                let line = Json {
                    key,
                    key_b64,
                    value,
                    value_b64,
                    expire_at_ms,
                };
                let line = serde_json::to_string(&line).expect("strings and numbers serialise");
                out.push_str(&line);
            }
            Format::Tsv => {
                escape_into(key, out);
                if let Some(value) = value {
                    out.push('\t');
                    escape_into(value, out);
                    if let Some(at) = expire_at_ms {
                        out.push_str(&format!("\t{at}"));
                    }
                }
            }
        }
        out.push('\n');
    }
}

/// Returns bytes as the text field or as the base64 field.
fn json_text(bytes: Option<&[u8]>) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match bytes.map(|b| (b, std::str::from_utf8(b))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(text.into()), None),
        Some((bytes, Err(_))) => (None, Some(STANDARD.encode(bytes).into())),
    }
}

fn json_bytes(
    name: &str,
    text: Option<Cow<'_, str>>,
    b64: Option<Cow<'_, str>>,
) -> Result<Vec<u8>, String> {
    match (text, b64) {
        (Some(text), None) => Ok(text.into_owned().into_bytes()),
        (None, Some(b64)) => STANDARD
            .decode(b64.as_bytes())
            .map_err(|e| format!("{name}_b64 is not base64: {e}")),
        (None, None) => Err(format!("neither \"{name}\" nor \"{name}_b64\" is there")),
        (Some(_), Some(_)) => Err(format!("both \"{name}\" and \"{name}_b64\" are there")),
    }
}

fn parse_json(line: &[u8]) -> Result<KvRecord, String> {
    // The parser's "at line 1 column n" counts within this line. The column stays, because the
    // caller knows the line.
    let json: Json<'_> = serde_json::from_slice(line).map_err(|e| {
        let text = e.to_string();
        match text.rsplit_once(" at line ") {
            Some((what, _)) => format!("{what} (column {})", e.column()),
            None => text,
        }
    })?;
    Ok(KvRecord {
        key: json_bytes("key", json.key, json.key_b64)?,
        value: json_bytes("value", json.value, json.value_b64)?,
        expire_at_ms: json.expire_at_ms,
    })
}

fn parse_tsv(line: &[u8]) -> Result<KvRecord, String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.split(|&b| b == b'\t');
    let key = fields.next().unwrap_or_default();
    let value = fields
        .next()
        .ok_or("no tab: a line is a key, a tab and a value")?;
    let expire_at_ms = match fields.next() {
        None => None,
        Some(text) => Some(
            std::str::from_utf8(text)
                .ok()
                .and_then(|t| t.parse().ok())
                .ok_or("the third field is not a time in milliseconds since 1970; write a tab inside a value as \\t")?,
        ),
    };
    if fields.next().is_some() {
        return Err("more than three fields; write a tab inside a value as \\t".into());
    }
    Ok(KvRecord {
        key: unescape(key)?,
        value: unescape(value)?,
        expire_at_ms,
    })
}

/// Bytes of the longest line that is read: a value of 1 GiB in base64 and some more. So a text
/// without line ends does not fill the memory.
pub const MAX_LINE: usize = 1536 << 20;

/// Lines of a text with their numbers, each at most `max` bytes.
pub struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    max: usize,
}

/// The result of [`Lines::next_line`].
pub enum Line<'a> {
    /// A line without its line feed, and its bytes in the input.
    Text(&'a [u8], u64),
    /// A line longer than the limit, skipped whole, and its bytes in the input.
    TooLong(u64),
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R, max: usize) -> Lines<R> {
        Lines {
            input,
            line: Vec::new(),
            number: 0,
            max,
        }
    }

    /// Returns the number of the last line returned, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the next line, or `None` at the end.
    pub fn next_line(&mut self) -> std::io::Result<Option<Line<'_>>> {
        // The memory of one very long line is freed before the rest of the file.
        if self.line.capacity() > 4 << 20 {
            self.line = Vec::new();
        }
        self.line.clear();
        let (mut read, mut whole) = (0u64, true);
        loop {
            let buf = match self.input.fill_buf() {
                Ok(buf) => buf,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if buf.is_empty() {
                if read == 0 {
                    return Ok(None);
                }
                break;
            }
            let (part, end) = match buf.iter().position(|&b| b == b'\n') {
                Some(at) => (&buf[..at], true),
                None => (buf, false),
            };
            let used = part.len() + usize::from(end);
            whole = whole && self.line.len() + part.len() <= self.max;
            if whole {
                self.line.extend_from_slice(part);
            }
            read += used as u64;
            self.input.consume(used);
            if end {
                break;
            }
        }
        self.number += 1;
        Ok(Some(if whole {
            Line::Text(&self.line, read)
        } else {
            Line::TooLong(read)
        }))
    }
}

// The fuzz crate includes this file by its path, so its tests need theirs.
#[cfg(test)]
#[path = "text_entry/tests.rs"]
mod tests;
