//! Escapes: bytes as one line of text and back, for `scan` and tab-separated files.
//!
//! Printable text stays as it is. `\t`, `\n`, `\r` and `\\` stand for tab, line feed, carriage
//! return and backslash. `\xNN` stands for any other byte: all that is not UTF-8, and every
//! character that could move a terminal's cursor or hide text. So a line of output is one record,
//! and never a command to a terminal.

use std::fmt::Write;

/// Appends `bytes` to `out`, escaped.
pub fn escape_into(bytes: &[u8], out: &mut String) {
    out.reserve(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                c if is_unsafe(c) => {
                    let mut buf = [0; 4];
                    for b in c.encode_utf8(&mut buf).bytes() {
                        let _ = write!(out, "\\x{b:02x}");
                    }
                }
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            let _ = write!(out, "\\x{b:02x}");
        }
    }
}

/// Returns `bytes`, escaped.
pub fn escape(bytes: &[u8]) -> String {
    let mut s = String::new();
    escape_into(bytes, &mut s);
    s
}

/// Returns `bytes` as one word of a shell's command line: as they are, in single quotes, or escaped
/// in `$'...'`, which bash, ksh and zsh know.
pub fn for_shell(bytes: &[u8]) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(b);
    let escaped = escape(bytes);
    match escaped.contains('\\') {
        true => format!("$'{}'", escaped.replace('\'', "\\'")),
        false if !bytes.is_empty() && bytes.iter().all(is_plain) => escaped,
        false => format!("'{}'", escaped.replace('\'', "'\\''")),
    }
}

/// Returns `bytes` for a message: escaped, and cut if long.
pub fn brief(bytes: &[u8]) -> String {
    const BRIEF_BYTES: usize = 120;
    if bytes.len() <= BRIEF_BYTES {
        escape(bytes)
    } else {
        format!(
            "{}... ({} bytes)",
            escape(&bytes[..BRIEF_BYTES]),
            bytes.len()
        )
    }
}

/// Returns true for control characters, and for invisible characters that reorder or hide text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns the bytes that an escaped text stands for. The error says what is wrong with the text.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, used) = match &rest[at + 1..] {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'0', ..] => (0, 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', hi, lo, ..] => match (hex(*hi), hex(*lo)) {
                (Some(hi), Some(lo)) => (hi << 4 | lo, 3),
                _ => {
                    return Err(format!(
                        "\\x{} is not \\x and two hexadecimal digits",
                        escape(&[*hi, *lo])
                    ));
                }
            },
            [b'x', ..] => return Err("\\x is cut off: two hexadecimal digits follow it".into()),
            [] => return Err("a backslash at the end stands for nothing: write \\\\".into()),
            [b, ..] => {
                return Err(format!(
                    "\\{} is unknown: \\t \\n \\r \\0 \\\\ and \\xNN are the escapes",
                    escape(&[*b])
                ));
            }
        };
        out.push(byte);
        rest = &rest[at + 1 + used..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

// The fuzz crate includes this file by its path, so its tests need theirs.
#[cfg(test)]
#[path = "escape/tests.rs"]
mod tests;
