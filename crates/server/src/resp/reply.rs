//! Replies: a growing buffer of encoded values in a connection's protocol version.
//!
//! Small values are copied together. Large ones stay in place (in a block of the cache, or a
//! write's own buffer) and are referred to, so that a large GET copies nothing on its way to the
//! socket.

use super::Protocol;
use crate::number::{push_i64, push_u64};
use bytes::Bytes;
use std::fmt;

/// Bytes of a value from which on it is referred to instead of copied.
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
    /// Makes an empty buffer that encodes for `protocol`.
    pub fn new(protocol: Protocol) -> Reply {
        Reply {
            protocol,
            ..Reply::default()
        }
    }

    /// Returns the version that the buffer encodes for.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the version for all further values.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the number of encoded bytes.
    pub fn len(&self) -> usize {
        self.bytes + self.tail.len()
    }

    /// Returns true if nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the text of the error that the reply begins with, without its `-`. A very long text
    /// may be cut.
    pub fn error_text(&self) -> Option<&[u8]> {
        let first = self.chunks.first().map_or(&self.tail[..], |c| &c[..]);
        first.strip_prefix(b"-")
    }

    /// Drops all encoded bytes, and keeps the memory.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        self.bytes = 0;
    }

    /// Moves all encoded bytes to the end of `to`.
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

    /// Takes the encoded chunks out of the buffer.
    pub fn take_chunks(&mut self) -> Vec<Bytes> {
        self.cut();
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }

    /// Returns all bytes in one vector, for tests and small replies.
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

    /// Adds `+text`. The text must have no line ends.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.tail.push(b'+');
        self.tail.extend_from_slice(text.as_bytes());
        self.tail.extend_from_slice(b"\r\n");
    }

    /// Adds `+OK`.
    pub fn ok(&mut self) {
        self.tail.extend_from_slice(b"+OK\r\n");
    }

    /// Adds an error that begins with its code, such as `ERR syntax error`. Line ends in it become
    /// spaces, and those at its end are removed.
    pub fn error(&mut self, text: impl fmt::Display) {
        self.error_bytes(text.to_string().as_bytes());
    }

    /// Adds an error, like [`Reply::error`], whose text quotes a client's bytes.
    pub fn error_bytes(&mut self, text: &[u8]) {
        // Redis does the same: line ends at the end are removed, others become spaces.
        let end = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
        let text = &text[..end.map_or(0, |n| n + 1)];
        self.tail.push(b'-');
        self.tail.extend(text.iter().map(|b| match b {
            b'\r' | b'\n' => b' ',
            b => *b,
        }));
        self.tail.extend_from_slice(b"\r\n");
    }

    /// Adds `:n`.
    pub fn integer(&mut self, n: i64) {
        self.tail.push(b':');
        push_i64(&mut self.tail, n);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// Adds a bulk string.
    pub fn bulk(&mut self, value: &[u8]) {
        self.head(b'$', value.len());
        self.tail.extend_from_slice(value);
        self.tail.extend_from_slice(b"\r\n");
    }

    /// Adds a bulk string, like [`Reply::bulk_shared`], from a borrowed value. A short one is not
    /// cloned: the first clone of `Bytes` allocates memory.
    pub fn bulk_of(&mut self, value: &Bytes) {
        match value.len() < REFER_FROM {
            true => self.bulk(value),
            false => self.bulk_shared(value.clone()),
        }
    }

    /// Adds a bulk string that is referred to if it is large.
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

    /// Adds a decimal integer as a bulk string.
    pub fn bulk_u64(&mut self, n: u64) {
        let mut text = Vec::with_capacity(20);
        push_u64(&mut text, n);
        self.bulk(&text);
    }

    /// Adds a text for people: verbatim in RESP3, a bulk string in RESP2.
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

    /// Adds a null in place of a string.
    pub fn null(&mut self) {
        self.tail.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// Adds a null in place of an array.
    pub fn null_array(&mut self) {
        self.tail.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// Adds the beginning of an array of `n` values.
    pub fn array(&mut self, n: usize) {
        self.head(b'*', n);
    }

    /// Adds the beginning of a map of `n` pairs; in RESP2 an array of twice as many values.
    pub fn map(&mut self, n: usize) {
        if self.resp3() {
            self.head(b'%', n);
        } else {
            self.head(b'*', 2 * n);
        }
    }

    /// Adds the beginning of a map of `n` pairs; in RESP2 an array of `n` arrays. Each pair begins
    /// with [`Reply::list_of_map`].
    pub fn map_of_lists(&mut self, n: usize) {
        self.head(if self.resp3() { b'%' } else { b'*' }, n);
    }

    /// Adds the beginning of a pair in a [`Reply::map_of_lists`].
    pub fn list_of_map(&mut self) {
        if !self.resp3() {
            self.array(2);
        }
    }

    /// Adds the beginning of a set of `n` values; in RESP2 an array.
    pub fn set(&mut self, n: usize) {
        self.head(if self.resp3() { b'~' } else { b'*' }, n);
    }

    /// Adds bytes that are encoded already.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.tail.extend_from_slice(encoded);
    }
}

#[cfg(test)]
mod tests;
