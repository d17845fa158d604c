//! Requests: an incremental parser over a connection's input buffer.
//!
//! A request is a RESP array of bulk strings, or one line of words ("inline", for people with a
//! terminal). The parser keeps its position, so it reads each byte once for any split of the input.
//! It returns a request as one frame of the input buffer with the offsets of the arguments in it:
//! nothing is copied. Declared lengths allocate nothing: memory grows with the bytes received, by
//! less than a factor of two.
//!
//! Limits and error texts are Redis's own, with one stricter rule: a bulk string must end with CR
//! LF, where Redis skips two bytes unread.

use bytes::{Buf, Bytes, BytesMut};
use std::fmt;
use std::ops::Range;

/// Longest inline request, and longest line that announces a length, in bytes.
pub const MAX_INLINE: usize = 64 << 10;

/// Greatest number of arguments of one request.
pub const MAX_ARGUMENTS: i64 = 1 << 20;

/// Bytes of an argument from which on it is kept without copying.
const SHARE_FROM: usize = 32 << 10;

/// Bytes of a request from which on it does not share its buffer with other requests.
const LARGE_FRAME: usize = 64 << 10;

/// Limits of a client's requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest bulk string, in bytes.
    pub bulk_bytes: u64,
    /// Longest request, all arguments and their lengths together, in bytes. At most 4 GiB.
    pub request_bytes: u64,
}

/// A protocol error of the client. It gets this text after `-ERR Protocol error: ` and is
/// disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolError(String);

impl ProtocolError {
    fn new(text: impl Into<String>) -> ProtocolError {
        ProtocolError(text.into())
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One request. Its first argument is the command's name, so it has at least one.
#[derive(Debug, Clone)]
pub struct Request {
    frame: Bytes,
    arguments: Vec<Range<u32>>,
}

impl Request {
    /// Makes a request of the given arguments, as if it had come over the wire.
    pub fn from_arguments<A: AsRef<[u8]>>(list: &[A]) -> Request {
        let mut frame = Vec::new();
        let mut arguments = Vec::with_capacity(list.len());
        for a in list {
            let start = frame.len() as u32;
            frame.extend_from_slice(a.as_ref());
            arguments.push(start..frame.len() as u32);
        }
        Request {
            frame: frame.into(),
            arguments,
        }
    }

    /// Returns the number of arguments, the command's name included. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a request is never empty")]
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Returns an argument's bytes. Requires `index < len()`.
    pub fn arg(&self, index: usize) -> &[u8] {
        let r = &self.arguments[index];
        &self.frame[r.start as usize..r.end as usize]
    }

    /// Returns an argument that outlives the request and shares its memory.
    pub fn arg_bytes(&self, index: usize) -> Bytes {
        let r = &self.arguments[index];
        self.frame.slice(r.start as usize..r.end as usize)
    }

    /// Returns an argument that is kept while other requests come and go. A short one is copied:
    /// sharing it would keep the whole buffer that it arrived in.
    pub fn arg_kept(&self, index: usize) -> Bytes {
        let argument = self.arg(index);
        if argument.len() < SHARE_FROM {
            return Bytes::copy_from_slice(argument);
        }
        self.arg_bytes(index)
    }

    /// Returns all arguments in order.
    pub fn args(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.arg(i))
    }

    /// Returns the bytes of the request as it came over the wire.
    pub fn bytes(&self) -> usize {
        self.frame.len()
    }

    /// Returns the bytes of memory that the request holds, the table of its arguments included.
    pub fn memory(&self) -> usize {
        self.frame.len() + self.arguments.capacity() * size_of::<Range<u32>>()
    }
}

/// The state of a parser between two arrivals of bytes (see the module).
#[derive(Debug)]
pub struct RequestParser {
    limits: Limits,
    /// End of the parsed part of the request in the buffer.
    at: usize,
    /// Offset behind which no line end was searched for yet.
    searched: usize,
    /// Number of arguments still to come; `None` between requests.
    missing: Option<u32>,
    /// The announced length in bytes of the argument that is being received.
    bulk: Option<usize>,
    arguments: Vec<Range<u32>>,
}

impl RequestParser {
    /// Makes a parser for a new connection.
    pub fn new(limits: Limits) -> RequestParser {
        assert!(
            limits.request_bytes <= u64::from(u32::MAX),
            "argument places are kept in 32 bits"
        );
        RequestParser {
            limits,
            at: 0,
            searched: 0,
            missing: None,
            bulk: None,
            arguments: Vec::new(),
        }
    }

    /// Returns how many more bytes the current argument needs, if that is known. The number is a
    /// hint for the next read.
    pub fn wanted(&self, buffered: usize) -> usize {
        match self.bulk {
            Some(len) => (self.at + len + 2).saturating_sub(buffered),
            None => 0,
        }
    }

    /// Returns the bytes of memory for the begun request, besides those of its buffer.
    pub fn memory(&self) -> usize {
        self.arguments.capacity() * size_of::<Range<u32>>()
    }

    /// Returns true between requests: the buffered bytes are not the beginning of one.
    pub fn is_idle(&self, buffered: usize) -> bool {
        self.missing.is_none() && buffered == 0
    }

    /// Takes the next whole request out of `buf`. Returns `None` if more bytes are needed. After an
    /// error the connection must be closed, because the start of the next request is unknown.
    pub fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Request>, ProtocolError> {
        loop {
            if self.missing.is_none() {
                match buf.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(line) = self.line(buf, "too big mbulk count string")? else {
                            return Ok(None);
                        };
                        let count = crate::number::parse_i64(&buf[1..line.end])
                            .filter(|n| *n <= MAX_ARGUMENTS)
                            .ok_or_else(|| ProtocolError::new("invalid multibulk length"))?;
                        if count <= 0 {
                            buf.advance(self.at);
                            self.begin();
                            continue;
                        }
                        self.missing = Some(count as u32);
                    }
                    Some(_) => match self.inline(buf)? {
                        Inline::Request(request) => return Ok(Some(request)),
                        Inline::Empty => continue,
                        Inline::Incomplete => return Ok(None),
                    },
                }
            }
            while self.missing.is_some_and(|n| n > 0) {
                if !self.argument(buf)? {
                    return Ok(None);
                }
            }
            let frame = buf.split_to(self.at).freeze();
            if frame.len() >= LARGE_FRAME {
                // The bytes behind it are moved out of the large buffer, or a short request in them
                // would keep all of it in memory.
                *buf = BytesMut::from(&buf[..]);
            }
            let arguments = std::mem::take(&mut self.arguments);
            self.begin();
            return Ok(Some(Request { frame, arguments }));
        }
    }

    fn begin(&mut self) {
        self.at = 0;
        self.searched = 0;
        self.missing = None;
        self.bulk = None;
    }

    /// Receives one argument. Returns false if bytes are missing.
    fn argument(&mut self, buf: &BytesMut) -> Result<bool, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => {
                let start = self.at;
                let Some(line) = self.line(buf, "too big bulk count string")? else {
                    return Ok(false);
                };
                if buf[start] != b'$' {
                    // Redis prints the byte as it is. A control byte would break the error line.
                    let got = match buf[start] {
                        b if b.is_ascii_graphic() || b == b' ' => (b as char).to_string(),
                        b => format!("\\x{b:02x}"),
                    };
                    return Err(ProtocolError::new(format!("expected '$', got '{got}'")));
                }
                let len = crate::number::parse_i64(&buf[start + 1..line.end])
                    .and_then(|n| u64::try_from(n).ok())
                    .filter(|n| *n <= self.limits.bulk_bytes)
                    .ok_or_else(|| ProtocolError::new("invalid bulk length"))?;
                if self.at as u64 + len + 2 > self.limits.request_bytes {
                    return Err(ProtocolError::new("request too large"));
                }
                self.bulk = Some(len as usize);
                len as usize
            }
        };
        let end = self.at + len;
        if buf.len() < end + 2 {
            return Ok(false);
        }
        if &buf[end..end + 2] != b"\r\n" {
            return Err(ProtocolError::new("expected CRLF after bulk string"));
        }
        self.arguments.push(self.at as u32..end as u32);
        self.at = end + 2;
        self.searched = self.at;
        self.bulk = None;
        self.missing = self.missing.map(|n| n - 1);
        Ok(true)
    }

    /// Returns the line at `self.at` without its end, and moves `self.at` behind it.
    fn line(
        &mut self,
        buf: &BytesMut,
        too_long: &str,
    ) -> Result<Option<Range<usize>>, ProtocolError> {
        let start = self.at;
        let from = self.searched.max(start);
        let limit = buf.len().min(start + MAX_INLINE + 2);
        match buf[from..limit].iter().position(|b| *b == b'\n') {
            Some(n) if from + n > start && buf[from + n - 1] == b'\r' => {
                self.at = from + n + 1;
                self.searched = self.at;
                Ok(Some(start..from + n - 1))
            }
            Some(_) => Err(ProtocolError::new("expected CRLF after length")),
            None if buf.len() - start > MAX_INLINE => Err(ProtocolError::new(too_long)),
            None => {
                self.searched = limit;
                Ok(None)
            }
        }
    }

    fn inline(&mut self, buf: &mut BytesMut) -> Result<Inline, ProtocolError> {
        let limit = buf.len().min(MAX_INLINE + 1);
        let Some(n) = buf[self.searched..limit].iter().position(|b| *b == b'\n') else {
            if buf.len() > MAX_INLINE {
                return Err(ProtocolError::new("too big inline request"));
            }
            self.searched = limit;
            return Ok(Inline::Incomplete);
        };
        let line = buf.split_to(self.searched + n + 1).freeze();
        self.begin();
        let line = line.strip_suffix(b"\n").expect("ends there");
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let words =
            split_words(line).ok_or_else(|| ProtocolError::new("unbalanced quotes in request"))?;
        if words.is_empty() {
            return Ok(Inline::Empty);
        }
        Ok(Inline::Request(Request::from_arguments(&words)))
    }
}

enum Inline {
    Request(Request),
    Empty,
    Incomplete,
}

/// Splits a line into words. `"..."` takes the escapes \n \r \t \b \a \xHH, `'...'` only \'.
/// Returns `None` if a quote stays open, or if no space follows it.
fn split_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    // These are the bytes that C's isspace accepts. A NUL ends the line, as in Redis.
    let space = |b: u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let line = &line[..line.iter().position(|b| *b == 0).unwrap_or(line.len())];
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while at < line.len() && space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        while at < line.len() && !space(line[at]) {
            match line[at] {
                quote @ (b'"' | b'\'') => {
                    at = quoted(line, at + 1, quote, &mut word)?;
                    if at < line.len() && !space(line[at]) {
                        return None;
                    }
                }
                b => {
                    word.push(b);
                    at += 1;
                }
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing quote. Returns the position behind it.
fn quoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b, _) if b == quote => return Some(at + 1),
            (b'\\', Some(b'\'')) if quote == b'\'' => {
                word.push(b'\'');
                at += 2;
            }
            (b'\\', Some(&escaped)) if quote == b'"' => {
                if escaped == b'x'
                    && let Some(high) = line.get(at + 2).copied().and_then(hex)
                    && let Some(low) = line.get(at + 3).copied().and_then(hex)
                {
                    word.push(high << 4 | low);
                    at += 4;
                    continue;
                }
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 2;
            }
            (b, _) => {
                word.push(b);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
