//! One client's connection: incoming bytes, outgoing replies, and replies that wait.
//!
//! Replies leave in the order of their requests. A reply that depends on epochs that have not ended
//! stays in a [`Segment`], and so do all replies behind it. Consecutive replies with the same
//! dependencies share a segment.

use super::assembling::Assembly;
use super::blocking::BlockedRequest;
use super::many_names::ManyCommand;
use crate::command::store_error;
use crate::epoch::Epochs;
use crate::fetch::Need;
use crate::resp::reply::Reply;
use crate::resp::request::{Limits, Request, RequestParser};
use basalt::Error;
use bytes::{Buf, Bytes, BytesMut};
use mio::net::TcpStream;
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most bytes taken from a socket at a time through the shared buffer.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// An argument that lacks more than this many bytes is read directly into its buffer, once half as
/// much has arrived.
const DIRECT_FROM: usize = 64 << 10;
/// Most bytes read directly into an argument's buffer at a time.
const DIRECT_BYTES: usize = 1 << 20;
/// Approximate memory of a waiting segment in bytes, besides its replies.
const SEGMENT_COST: usize = 128;

/// Replies that wait for the same epochs.
struct Segment {
    depends_on: Epochs,
    /// True if a result from another thread is awaited, too.
    slow: bool,
    replies: u32,
    reply: Reply,
}

pub(crate) struct Connection {
    pub id: u64,
    pub stream: TcpStream,
    pub parser: RequestParser,
    pub input: BytesMut,
    segments: VecDeque<Segment>,
    segment_bytes: usize,
    ready: Reply,
    out: VecDeque<Bytes>,
    out_bytes: usize,
    /// Epochs that some segment waits for. The loop keeps the reverse mapping.
    pub waits_for: Epochs,
    /// True if a result from another thread is awaited. No request runs before it.
    pub slow: bool,
    pub readable: bool,
    pub writable: bool,
    /// True if the end of the client's stream is known to follow the bytes in the socket.
    pub peer_closed: bool,
    /// True if the connection was reset. The client takes no reply, so its request need not wait
    /// for one.
    pub reset: bool,
    /// True if the client sends no more bytes.
    pub ended: bool,
    /// True if no further request is taken. The connection ends when the replies are sent.
    pub closing: bool,
    /// True if the buffered bytes hold no whole request.
    pub starved: bool,
    /// A request that waits for room on the thread for slow reads. The requests behind it wait,
    /// too.
    pub parked: Option<Request>,
    /// True if there is room for the parked request.
    pub unparked: bool,
    /// The number of the job on a stream for which the request waits.
    pub stream_job: Option<u64>,
    /// True if the request waits until others with pinned streams end.
    pub awaits_turn: bool,
    /// True if another thread reads the keys of the waiting request.
    pub fetching: bool,
    /// True if the waiting request writes, and has a place for its fetch.
    pub write_place: bool,
    /// Number of names of the waiting request that were asked for.
    pub fetched_names: usize,
    /// Set to report to the fetching thread that no request waits for the pieces of this fetch any
    /// more.
    pub fetch_gone: Option<Arc<AtomicBool>>,
    /// The wait of the parked request, if it is blocked.
    pub blocked: Option<Box<BlockedRequest>>,
    /// The need of the waiting request, while the fetches of others take all places.
    pub needs_fetch: Option<Need>,
    /// The command with very many names that waits. While it waits, `parked` has only its name.
    pub many: Option<Box<ManyCommand>>,
    /// The reply with many names that is being made.
    pub assembly: Option<Box<Assembly>>,
    /// True if the client is in the list of those that wait for room for their writes.
    pub stalled: bool,
    /// True if the client is in the list of connections with work.
    pub queued: bool,
    /// Time since which the client takes nothing of its writable replies, as far as the loop has
    /// checked.
    untaken_since: Option<Duration>,
    /// Time of the last bytes to or from the client.
    pub active: Duration,
    /// Bytes as last reserved in the ledger.
    pub accounted: usize,
    /// Set to report to the thread of slow reads that this client has disconnected.
    pub gone: Option<Arc<AtomicBool>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.give_up_fetch();
        if let Some(gone) = &self.gone {
            gone.store(true, Ordering::Release);
        }
    }
}

/// The result of reading or writing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Bytes(usize),
    Blocked,
    Ended,
    Broken,
}

impl Connection {
    pub fn new(id: u64, stream: TcpStream, limits: Limits) -> Connection {
        Connection {
            id,
            stream,
            parser: RequestParser::new(limits),
            input: BytesMut::new(),
            segments: VecDeque::new(),
            segment_bytes: 0,
            ready: Reply::default(),
            out: VecDeque::new(),
            out_bytes: 0,
            waits_for: 0,
            slow: false,
            readable: true,
            writable: true,
            peer_closed: false,
            reset: false,
            ended: false,
            closing: false,
            starved: true,
            parked: None,
            unparked: false,
            stream_job: None,
            awaits_turn: false,
            fetching: false,
            write_place: false,
            fetched_names: 0,
            fetch_gone: None,
            blocked: None,
            needs_fetch: None,
            many: None,
            assembly: None,
            stalled: false,
            queued: false,
            untaken_since: None,
            active: Duration::ZERO,
            accounted: 0,
            gone: None,
        }
    }

    /// Lets the fetching thread skip the queued pieces of this client's fetch.
    pub fn give_up_fetch(&mut self) {
        if let Some(gone) = self.fetch_gone.take() {
            gone.store(true, Ordering::Release);
        }
    }

    /// Returns the bytes of replies that the socket has not taken yet.
    pub fn reply_bytes(&self) -> usize {
        self.segment_bytes + self.segments.len() * SEGMENT_COST + self.ready.len() + self.out_bytes
    }

    /// Returns the bytes of memory held for this client.
    pub fn memory(&self) -> usize {
        let parked = self.parked.as_ref().map_or(0, Request::memory);
        let assembly = self.assembly.as_ref().map_or(0, |a| a.memory());
        let many = self.many.as_ref().map_or(0, |m| m.memory());
        many + self.input.capacity() + self.parser.memory() + parked + assembly + self.reply_bytes()
    }

    /// Returns true if every reply is sent.
    pub fn is_flushed(&self) -> bool {
        self.segments.is_empty() && self.ready.is_empty() && self.out.is_empty()
    }

    /// True if a request of this client is not answered yet, for a reason on the server's side.
    pub fn awaits_reply(&self) -> bool {
        !self.segments.is_empty() || self.slow || self.parked.is_some() || self.stalled
    }

    /// Returns true if bytes could be written now.
    pub fn can_write(&self) -> bool {
        self.writable && (!self.ready.is_empty() || !self.out.is_empty())
    }

    /// Returns the time for which the client has taken nothing of its writable replies, since the
    /// first check. The result is `None` if no reply is writable.
    pub fn takes_nothing_for(&mut self, now: Duration) -> Option<Duration> {
        if self.writable || (self.ready.is_empty() && self.out.is_empty()) {
            self.untaken_since = None;
            return None;
        }
        Some(now.saturating_sub(*self.untaken_since.get_or_insert(now)))
    }

    /// Reads the bytes in the socket, up to a limit. `shared` is a buffer of [`READ_BYTES`].
    pub fn read(&mut self, shared: &mut [u8]) -> Progress {
        let missing = self.parser.wanted(self.input.len());
        let at = self.input.len();
        let asked;
        let result = if missing > DIRECT_FROM && at >= DIRECT_FROM / 2 {
            // This read at most doubles the bytes that have arrived, so that a large announced
            // length alone costs nothing.
            let n = missing.min(at).min(DIRECT_BYTES);
            asked = n;
            self.input.resize(at + n, 0);
            let result = self.stream.read(&mut self.input[at..]);
            let got = result.as_ref().map_or(0, |n| *n);
            self.input.truncate(at + got);
            result
        } else {
            asked = shared.len();
            let result = self.stream.read(shared);
            if let Ok(n) = result {
                self.input.extend_from_slice(&shared[..n]);
            }
            result
        };
        match result {
            Ok(0) => {
                self.readable = false;
                self.ended = true;
                Progress::Ended
            }
            Ok(n) => {
                // A short read means that the socket is empty, and later bytes cause another event.
                // A further read would only confirm that, at the cost of a system call for each
                // request. The end of the stream may have been reported already.
                if n < asked && !self.peer_closed {
                    self.readable = false;
                }
                Progress::Bytes(n)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Progress::Blocked
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Progress::Bytes(0),
            Err(_) => Progress::Broken,
        }
    }

    /// Frees the input buffer of an idle connection.
    pub fn rest(&mut self) {
        if self.input.is_empty() && self.input.capacity() > 0 {
            self.input = BytesMut::new();
        }
    }

    /// Queues the replies of `replies` commands that depend on the given epochs. `reply` is
    /// emptied.
    pub fn push(&mut self, reply: &mut Reply, depends_on: Epochs, replies: u32) {
        if depends_on == 0 && self.segments.is_empty() {
            reply.drain_into(&mut self.ready);
            return;
        }
        self.segment_bytes += reply.len();
        match self.segments.back_mut() {
            Some(last) if last.depends_on == depends_on && !last.slow => {
                reply.drain_into(&mut last.reply);
                last.replies += replies;
            }
            _ => {
                let mut own = Reply::new(reply.protocol());
                reply.drain_into(&mut own);
                self.segments.push_back(Segment {
                    depends_on,
                    slow: false,
                    replies,
                    reply: own,
                });
            }
        }
    }

    /// Reserves the position of a reply that another thread makes.
    pub fn push_slow(&mut self, depends_on: Epochs, replies: u32) {
        self.slow = true;
        self.segments.push_back(Segment {
            depends_on,
            slow: true,
            replies,
            reply: Reply::default(),
        });
    }

    /// Puts the awaited reply into its position.
    pub fn slow_done(&mut self, mut reply: Reply) {
        self.slow = false;
        if let Some(segment) = self.segments.iter_mut().find(|s| s.slow) {
            segment.slow = false;
            if segment.replies > 0 {
                self.segment_bytes += reply.len();
                reply.drain_into(&mut segment.reply);
            }
        }
        self.release();
    }

    /// Notes that an epoch has ended. Replies that depended on a failed one become its error.
    /// Returns their number.
    pub fn epoch_ended(&mut self, slot: usize, result: &Result<(), Error>) -> u64 {
        let mut failed = 0;
        let bit = 1 << slot;
        self.waits_for &= !bit;
        for segment in self.segments.iter_mut().filter(|s| s.depends_on & bit != 0) {
            segment.depends_on &= !bit;
            if let Err(e) = result {
                self.segment_bytes -= segment.reply.len();
                segment.reply.clear();
                // A slow read that saw the failed writes is answered now. Its result will be
                // dropped.
                segment.slow = false;
                let text = store_error(e);
                failed += u64::from(segment.replies);
                for _ in 0..segment.replies {
                    segment.reply.error(&text);
                }
                self.segment_bytes += segment.reply.len();
                segment.depends_on = 0;
            }
        }
        self.release();
        failed
    }

    fn release(&mut self) {
        while let Some(first) = self.segments.front_mut() {
            if first.depends_on != 0 || first.slow {
                break;
            }
            self.segment_bytes -= first.reply.len();
            first.reply.drain_into(&mut self.ready);
            self.segments.pop_front();
        }
    }

    /// Writes the bytes that the socket takes.
    pub fn write(&mut self) -> Progress {
        let mut written = 0;
        loop {
            if !self.ready.is_empty() {
                self.out_bytes += self.ready.len();
                self.out.extend(self.ready.take_chunks());
            }
            if self.out.is_empty() {
                return Progress::Bytes(written);
            }
            let mut slices = [IoSlice::new(&[]); 64];
            let mut n = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(chunk);
                n += 1;
            }
            match self.stream.write_vectored(&slices[..n]) {
                Ok(0) => return Progress::Broken,
                Ok(mut n) => {
                    written += n;
                    self.untaken_since = None;
                    self.out_bytes -= n;
                    while n > 0 {
                        let first = self.out.front_mut().expect("it was written");
                        if n < first.len() {
                            first.advance(n);
                            break;
                        }
                        n -= first.len();
                        self.out.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.writable = false;
                    return Progress::Bytes(written);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Progress::Broken,
            }
        }
    }
}
