//! The newest entries of a log, encoded: those whose append is not complete, and some older ones.

use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of entries that are kept after they are complete. Replication reads the newest entries of
/// a log again and again.
const KEPT_BYTES: usize = 4 << 20;

struct TailEntry {
    index: u64,
    bytes: Arc<[u8]>,
    /// Number of the append that wrote the entry.
    append: u64,
    /// True if the log engine has the entry.
    complete: bool,
}

/// Entries at the end of a log, in rising order of their indexes.
#[derive(Default)]
pub(crate) struct Tail {
    entries: VecDeque<TailEntry>,
    /// Bytes of all entries.
    bytes: usize,
}

impl Tail {
    /// Adds an entry, whose index is above all others.
    pub fn push(&mut self, index: u64, append: u64, bytes: Arc<[u8]>) {
        self.bytes += bytes.len();
        self.entries.push_back(TailEntry {
            index,
            bytes,
            append,
            complete: false,
        });
    }

    /// Marks the entries of an append as complete. If the tail is too large, it drops complete
    /// entries at its start.
    pub fn complete(&mut self, append: u64) {
        // Appends are numbered in the order of their entries.
        let from = self.entries.partition_point(|e| e.append < append);
        let written = self.entries.range_mut(from..);
        written
            .take_while(|e| e.append == append)
            .for_each(|e| e.complete = true);
        while self.bytes > KEPT_BYTES && self.entries.front().is_some_and(|e| e.complete) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let entry = self.entries.pop_front();
        self.bytes -= entry.map_or(0, |e| e.bytes.len());
    }

    /// Drops all entries from `index` on.
    pub fn truncate(&mut self, index: u64) {
        while self.entries.back().is_some_and(|e| e.index >= index) {
            let entry = self.entries.pop_back();
            self.bytes -= entry.map_or(0, |e| e.bytes.len());
        }
    }

    /// Drops all entries up to `index`.
    pub fn trim(&mut self, index: u64) {
        while self.entries.front().is_some_and(|e| e.index <= index) {
            self.drop_first();
        }
    }

    /// Returns the index of the first entry, or `None` if there is no entry.
    pub fn first(&self) -> Option<u64> {
        self.entries.front().map(|e| e.index)
    }

    /// Returns the entries with indexes from `from` on.
    pub fn entries_from(&self, from: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>)> {
        let skip = self.entries.partition_point(|e| e.index < from);
        self.entries.range(skip..).map(|e| (e.index, &e.bytes))
    }
}

#[cfg(test)]
mod tests;
