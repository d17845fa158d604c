//! A stream in memory: its state, its log, and a window of its newest entries.

use super::StreamId;
use super::record::{Record, StreamState};
use crate::epoch::Epochs;
use basalt::log::Log;
use std::collections::VecDeque;

/// Number of committed entries that a window keeps.
pub(crate) const WINDOW_ENTRIES: usize = 128;
/// Bytes of committed entries from which on a window drops the oldest ones.
pub(crate) const WINDOW_BYTES: usize = 64 << 10;

/// Number of removed entries from which on the log is trimmed.
const TRIM_ENTRIES: u64 = 256;

/// A loaded stream.
pub(crate) struct LoadedStream {
    pub incarnation: u64,
    /// Expiry in ms since 1970, or `None` for never.
    pub expire_at_ms: Option<u64>,
    pub log: Log,
    pub state: StreamState,
    /// True if the key in the store counts entries that a power cut has taken, so that the next
    /// append writes the key, too.
    pub key_is_ahead: bool,
    /// Records up to this LSN were removed from the log, or will be.
    pub trimmed_lsn: u64,
    /// The newest entries. The last one has the LSN `state.next_lsn - 1`. The budget of all streams
    /// may have taken all of them.
    pub window: VecDeque<Record>,
    pub window_bytes: usize,
    /// Epochs, open or in flight, that write this stream.
    pub written_by: Epochs,
    /// A number that no other load has, so that answers of an earlier load are recognised.
    pub load: u64,
    /// The time of the last use, as a count of uses of all streams.
    pub used: u64,
}

impl LoadedStream {
    /// Returns the number of live entries.
    pub fn len(&self) -> u64 {
        self.state.next_lsn - self.state.first_lsn
    }

    /// Returns the LSN of the oldest entry in the window.
    pub fn window_start(&self) -> u64 {
        self.state.next_lsn - self.window.len() as u64
    }

    /// Returns the smallest live LSN whose id is at least `id`, or `next_lsn` if there is none. The
    /// result is `None` if the answer lies in front of the window.
    pub fn lower_bound(&self, id: StreamId) -> Option<u64> {
        let n = self.window.partition_point(|entry| entry.id < id);
        let lsn = self.window_start() + n as u64;
        let is_certain = n > 0 || self.window_start() <= self.state.first_lsn;
        is_certain.then(|| lsn.max(self.state.first_lsn))
    }

    /// Adds the newest entry.
    pub fn push(&mut self, entry: Record) {
        self.window_bytes += entry.body.len();
        self.window.push_back(entry);
    }

    /// Drops old entries from the window. Entries of epochs that have not ended stay, because the
    /// log does not have them yet.
    pub fn shrink_window(&mut self) {
        if self.written_by != 0 {
            return;
        }
        while self.window.len() > WINDOW_ENTRIES
            || (self.window_bytes > WINDOW_BYTES && self.window.len() > 1)
        {
            let entry = self.window.pop_front().expect("not empty");
            self.window_bytes -= entry.body.len();
        }
    }

    /// Drops the window. No epoch may be writing the stream.
    pub fn drop_window(&mut self) {
        assert!(self.written_by == 0, "the log may lack the entries");
        self.window = VecDeque::new();
        self.window_bytes = 0;
    }

    /// Returns the LSN up to which records should be removed from the log, if there are enough of
    /// them. The last record stays, because it has the stream's state.
    pub fn take_trim(&mut self) -> Option<u64> {
        let up_to = self.state.first_lsn.min(self.state.next_lsn - 1) - 1;
        let is_due = self.written_by == 0 && up_to >= self.trimmed_lsn + TRIM_ENTRIES;
        is_due.then(|| {
            self.trimmed_lsn = up_to;
            up_to
        })
    }

    /// Returns about the bytes of memory that the stream takes.
    pub fn memory(&self) -> usize {
        size_of::<LoadedStream>() + self.window_bytes + self.window.len() * size_of::<Record>()
    }
}
