//! Replies: a growing buffer of encoded values in a connection's protocol version.
//!
//! Small values are copied together; large ones stay where they are (a block of the cache, a
//! write's own buffer) and are only referred to, so that a large GET copies nothing on its way to
//! the socket.

use super::Protocol;
use crate::number::{push_i64, push_u64};
use bytes::Bytes;
use std::fmt;

/// Values from this length on are referred to instead of copied.
const REFER_FROM: usize = 8 << 10;

/// Encoded replies. Chunks are sent one after the other.
#[derive(Debug, Default)]
pub struct Reply {
    protocol: Protocol,
    chunks: Vec<Bytes>,
    tail: Vec<u8>,
    bytes: usize,
}

impl Reply {
    /// An empty buffer that encodes for `protocol`.
    pub fn new(protocol: Protocol) -> Reply {
        Reply {
            protocol,
            ..Reply::default()
        }
    }

    /// The version encoded for.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Encodes in another version from here on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Encoded bytes so far.
    pub fn len(&self) -> usize {
        self.bytes + self.tail.len()
    }

    /// True when nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text of the error that this begins with, without its `-`; the beginning of it if it was
    /// very long.
    pub fn error_text(&self) -> Option<&[u8]> {
        let first = self.chunks.first().map_or(&self.tail[..], |c| &c[..]);
        first.strip_prefix(b"-")
    }

    /// Drops everything, keeping memory.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        self.bytes = 0;
    }

    /// Moves everything encoded to the end of `to`.
    pub fn drain_into(&mut self, to: &mut Reply) {
        // A long reply is not copied.
        if self.chunks.is_empty() && self.tail.len() < REFER_FROM {
            to.tail.extend_from_slice(&self.tail);
            self.tail.clear();
            return;
        }
        to.cut();
        self.cut();
        to.bytes += self.bytes;
        to.chunks.append(&mut self.chunks);
        self.bytes = 0;
    }

    /// Takes the encoded chunks out.
    pub fn take_chunks(&mut self) -> Vec<Bytes> {
        self.cut();
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }

    /// All bytes as one, for tests and small uses.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = self.chunks.concat();
        out.extend_from_slice(&self.tail);
        out
    }

    fn cut(&mut self) {
        if !self.tail.is_empty() {
            self.bytes += self.tail.len();
            self.chunks
                .push(Bytes::from(std::mem::take(&mut self.tail)));
        }
    }

    fn resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }

    fn head(&mut self, kind: u8, n: usize) {
        self.tail.push(kind);
        push_u64(&mut self.tail, n as u64);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// `+text`. Requires a text without line ends.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.tail.push(b'+');
        self.tail.extend_from_slice(text.as_bytes());
        self.tail.extend_from_slice(b"\r\n");
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.tail.extend_from_slice(b"+OK\r\n");
    }

    /// An error that begins with its code, such as `ERR syntax error`. Line ends in it become
    /// spaces, those at its end vanish.
    pub fn error(&mut self, text: impl fmt::Display) {
        self.error_bytes(text.to_string().as_bytes());
    }

    /// As [`Reply::error`], for texts that quote a client's bytes.
    pub fn error_bytes(&mut self, text: &[u8]) {
        // As Redis does: line ends at the end vanish, inside they become spaces.
        let end = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
        let text = &text[..end.map_or(0, |n| n + 1)];
        self.tail.push(b'-');
        self.tail.extend(text.iter().map(|b| match b {
            b'\r' | b'\n' => b' ',
            b => *b,
        }));
        self.tail.extend_from_slice(b"\r\n");
    }

    /// `:n`.
    pub fn integer(&mut self, n: i64) {
        self.tail.push(b':');
        push_i64(&mut self.tail, n);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// A bulk string.
    pub fn bulk(&mut self, value: &[u8]) {
        self.head(b'$', value.len());
        self.tail.extend_from_slice(value);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// As [`Reply::bulk_shared`], for a value that stays where it is. A short one is not cloned:
    /// the first clone of `Bytes` allocates memory.
    pub fn bulk_of(&mut self, value: &Bytes) {
        match value.len() < REFER_FROM {
            true => self.bulk(value),
            false => self.bulk_shared(value.clone()),
        }
    }

    /// A bulk string that is referred to when large.
    pub fn bulk_shared(&mut self, value: Bytes) {
        if value.len() < REFER_FROM {
            return self.bulk(&value);
        }
        self.head(b'$', value.len());
        self.cut();
        self.bytes += value.len();
        self.chunks.push(value);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// A decimal integer as a bulk string.
    pub fn bulk_u64(&mut self, n: u64) {
        let mut text = Vec::with_capacity(20);
        push_u64(&mut text, n);
        self.bulk(&text);
    }

    /// A text for people: verbatim in RESP3, a bulk string in RESP2.
    pub fn verbatim(&mut self, text: &str) {
        if self.resp3() {
            self.head(b'=', text.len() + 4);
            self.tail.extend_from_slice(b"txt:");
            self.tail.extend_from_slice(text.as_bytes());
            self.tail.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// No value where a string would be.
    pub fn null(&mut self) {
        self.tail.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// No value where an array would be.
    pub fn null_array(&mut self) {
        self.tail.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// The beginning of an array of `n` values.
    pub fn array(&mut self, n: usize) {
        self.head(b'*', n);
    }

    /// The beginning of a map of `n` pairs; in RESP2 an array of twice as many values.
    pub fn map(&mut self, n: usize) {
        if self.resp3() {
            self.head(b'%', n);
        } else {
            self.head(b'*', 2 * n);
        }
    }

    /// The beginning of a set of `n` values; in RESP2 an array.
    pub fn set(&mut self, n: usize) {
        self.head(if self.resp3() { b'~' } else { b'*' }, n);
    }

    /// Bytes that are encoded already.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.tail.extend_from_slice(encoded);
    }
}

#[cfg(test)]
mod tests;
