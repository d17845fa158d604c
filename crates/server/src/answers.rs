//! The answers for the names of a request with very many names.
//!
//! The answers are one array with one slot for each name, and the strings of a piece are one
//! buffer. So no single name costs an allocation or a deallocation.

use crate::names::Names;
use crate::value::Value;
use basalt::{Bytes, Error};
use std::sync::Arc;

/// The answer for a name so far, in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerSlot {
    /// The name was not asked for yet.
    Unasked,
    /// The name is being read.
    Reading,
    Absent,
    /// The key exists, without an expiry.
    There,
    /// The key exists until this time, in ms since 1970.
    Until(u64),
    /// A string that is a part of the buffer of a piece.
    Part {
        piece: u32,
        start: u32,
        len: u32,
    },
    /// A string, as an index into the list of values.
    Value(u32),
    Failed,
}

impl AnswerSlot {
    fn is_there(self) -> bool {
        use AnswerSlot::*;
        matches!(self, There | Until(_) | Part { .. } | Value(_))
    }
}

/// The answer for a name.
pub(crate) enum ManyAnswer<'a> {
    Absent,
    There,
    String(&'a [u8]),
    /// A string that need not be copied.
    Shared(&'a Bytes),
    Failed(&'a Error),
}

/// The strings of one piece.
struct PieceBuffer {
    data: Bytes,
    /// Bytes of the strings that are still answers.
    live: usize,
    /// The names that were answered from the buffer.
    names: Vec<u32>,
}

/// Allocates the slots for the answers of `names` names. The time grows with the number of names.
pub(crate) fn places(names: usize) -> AnswerSlots {
    AnswerSlots(vec![AnswerSlot::Unasked; names])
}

/// Allocated slots for answers.
pub(crate) struct AnswerSlots(Vec<AnswerSlot>);

impl AnswerSlots {
    /// Returns the bytes of memory that the slots take.
    pub fn memory(&self) -> usize {
        self.0.capacity() * size_of::<AnswerSlot>()
    }
}

/// The answers for the names of a request (see the module). A fetch fills them in
/// ([`crate::fetch::many_names`]).
pub(crate) struct Answers {
    names: Arc<Names>,
    /// Answers by name. Only the last name of each key has one.
    answers: Vec<AnswerSlot>,
    pieces: Vec<PieceBuffer>,
    /// Values by index. A free index has `None`.
    values: Vec<Option<Value>>,
    /// Indexes of `values` that are free.
    free_values: Vec<u32>,
    /// Bytes of strings among the answers.
    bytes: usize,
    /// Bytes of values, and of buffers that also hold replaced answers.
    held: usize,
    /// Number of names that the pieces list.
    piece_names: usize,
    /// Number of keys that exist.
    there: usize,
    /// Number of keys that could not be read; `failure` is the error of one of them.
    failed: usize,
    failure: Option<Error>,
    /// True if every name was asked for, and every answer has arrived.
    has_all: bool,
}

impl Answers {
    /// Makes answers that are not there yet. Panics unless there is one slot for each name.
    pub fn new(names: Arc<Names>, places: AnswerSlots) -> Answers {
        assert_eq!(names.len(), places.0.len(), "a place for each name");
        Answers {
            names,
            answers: places.0,
            pieces: Vec::new(),
            values: Vec::new(),
            free_values: Vec::new(),
            bytes: 0,
            held: 0,
            piece_names: 0,
            there: 0,
            failed: 0,
            failure: None,
            has_all: false,
        }
    }

    /// Returns the names.
    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Returns the bytes of strings among the answers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if every name was asked for. The result is false if the strings are too long
    /// for a reply.
    pub fn has_all(&self) -> bool {
        self.has_all
    }

    /// Notes that every name was asked for, and every answer has arrived.
    pub fn end(&mut self) {
        self.has_all = true;
    }

    /// Returns the bytes of memory that the answers hold, besides the names.
    pub fn memory(&self) -> usize {
        let places = self.answers.capacity() * size_of::<AnswerSlot>();
        let values = self.values.capacity() * size_of::<Option<Value>>();
        let indexes = (self.free_values.capacity() + self.piece_names) * size_of::<u32>();
        let pieces = self.pieces.capacity() * size_of::<PieceBuffer>();
        self.held + places + values + pieces + indexes
    }

    /// Returns the number of keys that exist, or that have expired since they were read.
    pub fn there(&self) -> usize {
        self.there
    }

    /// Returns the error of a key that could not be read, if there is one.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().filter(|_| self.failed > 0)
    }

    /// Returns true if the key of a name exists, or has expired since it was read. The name must be
    /// the last of its key.
    pub fn is_there(&self, name: usize) -> bool {
        self.answers[name].is_there()
    }

    /// Returns the answer for a name at a given time.
    pub fn answer(&self, name: usize, now_ms: u64) -> ManyAnswer<'_> {
        match self.answers[self.names.last(name)] {
            AnswerSlot::Unasked | AnswerSlot::Absent => ManyAnswer::Absent,
            AnswerSlot::There => ManyAnswer::There,
            AnswerSlot::Until(at) if at > now_ms => ManyAnswer::There,
            AnswerSlot::Until(_) => ManyAnswer::Absent,
            AnswerSlot::Part { piece, start, len } => {
                let (start, len) = (start as usize, len as usize);
                ManyAnswer::String(&self.pieces[piece as usize].data[start..start + len])
            }
            AnswerSlot::Value(n) => match self.value(n) {
                v if v.expire_at_ms.is_some_and(|at| at <= now_ms) => ManyAnswer::Absent,
                v => ManyAnswer::Shared(&v.data),
            },
            AnswerSlot::Failed => {
                ManyAnswer::Failed(self.failure.as_ref().expect("one has failed"))
            }
            AnswerSlot::Reading => unreachable!("every name has an answer"),
        }
    }

    /// Returns the answer for a name so far.
    pub fn found(&self, name: usize) -> AnswerSlot {
        self.answers[name]
    }

    /// Replaces the answer for a name.
    pub fn set(&mut self, name: usize, found: AnswerSlot) {
        let old = std::mem::replace(&mut self.answers[name], found);
        self.there = self.there + usize::from(found.is_there()) - usize::from(old.is_there());
        let failed = |f| usize::from(f == AnswerSlot::Failed);
        self.failed = self.failed + failed(found) - failed(old);
        self.bytes = self.bytes + self.bytes_of(found) - self.bytes_of(old);
        match old {
            AnswerSlot::Value(n) => {
                let value = self.values[n as usize].take().expect("it was an answer");
                self.held -= value.data.len();
                self.free_values.push(n);
            }
            AnswerSlot::Part { piece, len, .. } => {
                self.pieces[piece as usize].live -= len as usize;
                self.shrink(piece);
            }
            _ => {}
        }
    }

    fn value(&self, n: u32) -> &Value {
        let value = self.values[n as usize].as_ref();
        value.expect("an answer has its value")
    }

    fn bytes_of(&self, found: AnswerSlot) -> usize {
        match found {
            AnswerSlot::Part { len, .. } => len as usize,
            AnswerSlot::Value(n) => self.value(n).data.len(),
            _ => 0,
        }
    }

    /// Makes a string the answer for a name.
    pub fn set_value(&mut self, name: usize, value: Value) {
        // The replaced value gives its index back first.
        self.set(name, AnswerSlot::Absent);
        self.held += value.data.len();
        let n = match self.free_values.pop() {
            Some(n) => {
                self.values[n as usize] = Some(value);
                n
            }
            None => {
                self.values.push(Some(value));
                self.values.len() as u32 - 1
            }
        };
        self.set(name, AnswerSlot::Value(n));
    }

    /// Copies the strings of a buffer that are still answers, if they are less than half of the
    /// buffer. So buffers hold less than twice the bytes of the answers, and each byte is copied
    /// less often than a byte is written over.
    pub fn shrink(&mut self, piece: u32) {
        let buffer = &mut self.pieces[piece as usize];
        if 2 * buffer.live >= buffer.data.len() {
            return;
        }
        let old = std::mem::take(&mut buffer.data);
        let mut kept = Vec::with_capacity(buffer.live);
        let answers = &mut self.answers;
        let names = buffer.names.len();
        buffer
            .names
            .retain(|name| match &mut answers[*name as usize] {
                AnswerSlot::Part {
                    piece: own,
                    start,
                    len,
                } if *own == piece => {
                    let from = *start as usize;
                    *start = kept.len() as u32;
                    kept.extend_from_slice(&old[from..from + *len as usize]);
                    true
                }
                _ => false,
            });
        buffer.names.shrink_to_fit();
        self.piece_names -= names - buffer.names.len();
        self.held -= old.len() - kept.len();
        buffer.data = kept.into();
    }

    /// Returns the bytes of values and buffers in memory.
    #[cfg(test)]
    pub fn strings_in_memory(&self) -> usize {
        let values = self.values.iter().flatten().map(|v| v.data.len());
        let pieces = self.pieces.iter().map(|p| p.data.len());
        values.sum::<usize>() + pieces.sum::<usize>()
    }

    /// Begins a piece whose short strings lie in a buffer, and returns its number.
    pub fn begin_piece(&mut self, buffer: Bytes) -> u32 {
        self.held += buffer.len();
        self.pieces.push(PieceBuffer {
            data: buffer,
            live: 0,
            names: Vec::new(),
        });
        self.pieces.len() as u32 - 1
    }

    /// Makes a part of the buffer of a piece the answer for a name.
    pub fn set_part(&mut self, name: usize, piece: u32, start: u32, len: u32) {
        let buffer = &mut self.pieces[piece as usize];
        buffer.live += len as usize;
        buffer.names.push(name as u32);
        self.piece_names += 1;
        self.set(name, AnswerSlot::Part { piece, start, len });
    }

    /// Notes that a name could not be read.
    pub fn set_failed(&mut self, name: usize, e: Error) {
        self.failure = Some(e);
        self.set(name, AnswerSlot::Failed);
    }
}
