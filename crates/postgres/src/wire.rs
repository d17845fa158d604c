//! One connection's bytes: frames of the client, and a buffer of messages for it.
//!
//! Memory grows with the bytes that arrived and not with the lengths that a client announces. What
//! was written is sent before the next read that waits, so a batch of answers is one write.

use crate::frontend::protocol_error;
use crate::socket::Socket;
use basalt_sql::SqlError;
use rustls::{ServerConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

/// Bytes of the input buffer of an idle connection.
const READ_BYTES: usize = 16 << 10;
/// Bytes of messages at which the buffer is sent.
pub const FLUSH_BYTES: usize = 64 << 10;
/// Bytes of a buffer that are kept when it is empty.
const KEPT_BYTES: usize = 1 << 20;

/// Time that an ending connection waits for bytes of the client.
const LINGER: Duration = Duration::from_millis(200);
/// Maximum number of reads of an ending connection.
const LINGER_READS: usize = 64;

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// The client closed it, or the network failed.
    Closed,
    /// The client sent nothing for too long.
    Timeout,
    /// The client gets this error, and the connection ends.
    Fatal(SqlError),
}

/// The bytes of a connection, over TLS or not.
pub enum Stream {
    /// Without TLS.
    Plain(Socket),
    /// With TLS.
    Tls(Box<StreamOwned<ServerConnection, Socket>>),
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }
    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => &stream.0,
            Stream::Tls(stream) => &stream.sock.0,
        }
    }
}

/// A whole message of the client. It is valid until the next message is read.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The first byte; 0 for a packet of the startup.
    pub kind: u8,
    body: Range<usize>,
}

/// A connection's stream and buffers.
pub struct Wire {
    stream: Stream,
    input: Vec<u8>,
    /// The bytes of `input` that were received and not consumed.
    pending: Range<usize>,
    /// Messages for the client.
    pub out: Vec<u8>,
    /// Memory for conversions of values.
    pub scratch: String,
    /// The client waits for the messages in `out`.
    is_flush_due: bool,
    /// Longest message in bytes.
    pub max_message: usize,
    timeout: Duration,
}

impl Wire {
    /// Returns the wire of a new connection.
    pub fn new(socket: Socket, max_message: usize) -> Wire {
        Wire {
            stream: Stream::Plain(socket),
            input: vec![0; READ_BYTES],
            pending: 0..0,
            out: Vec::with_capacity(1024),
            scratch: String::new(),
            is_flush_due: false,
            max_message,
            timeout: Duration::ZERO,
        }
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns whether bytes were received and not consumed.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the first byte that was received and not consumed.
    pub fn next_kind(&self) -> Option<u8> {
        self.input[self.pending.clone()].first().copied()
    }

    /// Continues over TLS. Bytes that were received in plain text before are refused, because an
    /// attacker may have put them there.
    pub fn start_tls(&mut self, session: ServerConnection) -> Result<(), End> {
        if self.has_pending() {
            return Err(End::Fatal(protocol_error(
                "received unencrypted data after SSL request",
            )));
        }
        let Stream::Plain(socket) = &self.stream else {
            return Err(End::Closed);
        };
        let socket = socket.clone();
        self.stream = Stream::Tls(Box::new(StreamOwned::new(session, socket)));
        Ok(())
    }

    /// Reads the first byte of a connection without consuming it.
    pub fn peek_byte(&self) -> Result<u8, End> {
        let mut byte = [0];
        match self.stream.socket().peek(&mut byte) {
            Ok(1) => Ok(byte[0]),
            Ok(_) => Err(End::Closed),
            Err(e) => Err(end_of(&e)),
        }
    }

    /// Sets the time that a read may wait; zero for no limit.
    pub fn set_timeout(&mut self, timeout: Duration) {
        if timeout != self.timeout {
            let limit = (!timeout.is_zero()).then_some(timeout);
            if self.stream.socket().set_read_timeout(limit).is_ok() {
                self.timeout = timeout;
            }
        }
    }

    /// Lets the messages be sent before the next read that waits.
    pub fn flush_soon(&mut self) {
        self.is_flush_due = true;
    }

    /// Sends the messages.
    pub fn flush(&mut self) -> Result<(), End> {
        self.is_flush_due = false;
        if self.out.is_empty() {
            return Ok(());
        }
        let result = self.stream.write(&self.out);
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        result.map_err(|e| end_of(&e))
    }

    /// Sends the messages if there are many.
    pub fn flush_if_full(&mut self) -> Result<(), End> {
        match self.out.len() >= FLUSH_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Ends the writing side and reads what the client still sends, for a short time. A socket that
    /// is closed with unread bytes would take the last message away from the client.
    pub fn linger(&mut self) {
        let socket = self.stream.socket();
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.set_read_timeout(Some(LINGER));
        for _ in 0..LINGER_READS {
            let mut socket = self.stream.socket();
            if !matches!(socket.read(&mut self.input), Ok(1..)) {
                return;
            }
        }
    }

    /// Receives until `len` bytes are unread.
    fn fill(&mut self, len: usize) -> Result<(), End> {
        while self.pending.len() < len {
            if self.is_flush_due {
                self.flush()?;
            }
            self.make_space();
            let free = &mut self.input[self.pending.end..];
            match self.stream.read(free) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => self.pending.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(end_of(&e)),
            }
        }
        Ok(())
    }

    /// Makes free bytes at the end of the input buffer.
    fn make_space(&mut self) {
        if self.pending.is_empty() {
            self.pending = 0..0;
            if self.input.len() > KEPT_BYTES {
                self.input = vec![0; READ_BYTES];
            }
        }
        if self.pending.end < self.input.len() {
            return;
        }
        if self.pending.start > 0 {
            self.input.copy_within(self.pending.clone(), 0);
            self.pending = 0..self.pending.len();
        }
        if self.pending.end == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
    }

    /// Reads the packet of a startup, which has no first byte, with at most `most` bytes.
    pub fn read_startup(&mut self, most: usize) -> Result<Frame, End> {
        self.fill(4)?;
        let len = self.length_at(0);
        if !(8..=most).contains(&len) {
            return Err(End::Fatal(protocol_error(
                "invalid length of startup packet",
            )));
        }
        self.fill(len)?;
        let begin = self.pending.start;
        let body = begin + 4..begin + len;
        self.pending.start = body.end;
        Ok(Frame { kind: 0, body })
    }

    fn length_at(&self, offset: usize) -> usize {
        let at = self.pending.start + offset;
        let bytes = &self.input[at..at + 4];
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
    }

    /// Returns the next message without consuming it. Waits for it.
    pub fn peek(&mut self) -> Result<Frame, End> {
        self.fill(5)?;
        let kind = self.input[self.pending.start];
        let len = self.length_at(1);
        if len < 4 || len > self.max_message {
            return Err(End::Fatal(protocol_error(format!(
                "invalid message length {len}: allowed are 4 to {} bytes",
                self.max_message
            ))));
        }
        self.fill(len + 1)?;
        let begin = self.pending.start;
        Ok(Frame {
            kind,
            body: begin + 5..begin + 1 + len,
        })
    }

    /// Consumes a message that [`Wire::peek`] returned.
    pub fn consume(&mut self, frame: &Frame) {
        self.pending.start = frame.body.end;
    }

    /// Returns the body of a message.
    pub fn body(&self, frame: &Frame) -> &[u8] {
        &self.input[frame.body.clone()]
    }

    /// Returns the body of a message, and the buffer for answers.
    pub fn body_and_out(&mut self, frame: &Frame) -> (&[u8], &mut Vec<u8>) {
        (&self.input[frame.body.clone()], &mut self.out)
    }
}

fn end_of(e: &std::io::Error) -> End {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => End::Timeout,
        _ => End::Closed,
    }
}

#[cfg(test)]
mod tests;
