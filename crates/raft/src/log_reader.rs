//! Reading entries: the newest from memory, others from the log engine.

use crate::call::{blocking, storage_error};
use crate::log_state::{LogShared, decode_entry, missing};
use basalt::Result;
use openraft::{
    ErrorSubject, ErrorVerb, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError,
};
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// Bytes of encoded entries at which a limited read ends: what replication sends at once.
const LIMITED_BYTES: usize = 4 << 20;

/// A reader of the log of a Raft node. Replication has one for each other node.
pub struct LogReader<C: RaftTypeConfig> {
    shared: Arc<LogShared<C>>,
}

impl<C: RaftTypeConfig> LogReader<C> {
    pub(crate) fn new(shared: &Arc<LogShared<C>>) -> LogReader<C> {
        LogReader {
            shared: shared.clone(),
        }
    }
}

/// Encoded entries of a range that are in memory, and the part of the range that is not.
struct InMemory {
    /// Range to read from the log engine, with an exclusive end.
    on_disk: (u64, u64),
    entries: Vec<(u64, Arc<[u8]>)>,
}

impl<C: RaftTypeConfig> LogShared<C> {
    pub async fn read(
        self: &Arc<Self>,
        range: impl RangeBounds<u64>,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read_async(start, end, None).await
    }

    pub async fn read_limited(
        self: &Arc<Self>,
        start: u64,
        end: u64,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.read_async(start, end, Some(LIMITED_BYTES)).await
    }

    async fn read_async(
        self: &Arc<Self>,
        start: u64,
        end: u64,
        limit: Option<usize>,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let found = self.in_memory(start, end);
        let entries = match found.on_disk.0 < found.on_disk.1 {
            false => self.decode(Vec::new(), found.entries, limit),
            true => {
                let shared = self.clone();
                blocking(move || shared.read_range(start, end, limit)).await
            }
        };
        // Replication sends what a limited read returns as the entries from `start` on.
        let entries = entries.and_then(|entries| match limit {
            Some(_) => self.check_consecutive(entries, start, end),
            None => Ok(entries),
        });
        entries.map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Read, &e))
    }

    fn check_consecutive(
        &self,
        entries: Vec<C::Entry>,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>> {
        let mut indexes = entries.iter().map(|e| e.get_log_id().index);
        let hole = (start..end.min(start + entries.len().max(1) as u64))
            .find(|&expected| indexes.next() != Some(expected));
        match hole {
            Some(index) => Err(missing(&self.entries, index)),
            None => Ok(entries),
        }
    }

    fn in_memory(&self, start: u64, end: u64) -> InMemory {
        let state = self.state.lock();
        let start = start.max(state.first);
        let end = end.min(state.last.as_ref().map_or(0, |last| last.index + 1));
        let memory_from = state.tail.first().map_or(end, |first| first.min(end));
        let newest = state.tail.entries_from(start);
        InMemory {
            on_disk: (start, memory_from),
            entries: newest
                .take_while(|(index, _)| *index < end)
                .map(|(index, bytes)| (index, bytes.clone()))
                .collect(),
        }
    }

    /// Returns entries, with `encoded` ones behind them. It stops when the encoded ones have
    /// `limit` bytes, but not before the first entry.
    fn decode(
        &self,
        mut entries: Vec<C::Entry>,
        encoded: Vec<(u64, Arc<[u8]>)>,
        limit: Option<usize>,
    ) -> Result<Vec<C::Entry>> {
        let mut left = limit.unwrap_or(usize::MAX);
        for (index, bytes) in encoded {
            if left == 0 && !entries.is_empty() {
                break;
            }
            entries.push(decode_entry::<C>(&self.entries, index, &bytes)?);
            left = left.saturating_sub(bytes.len());
        }
        Ok(entries)
    }

    /// Returns the entries of a range that the log has, in rising order. The read ends behind
    /// `limit` bytes, but not before the first entry. The call blocks.
    pub fn read_range(&self, start: u64, end: u64, limit: Option<usize>) -> Result<Vec<C::Entry>> {
        let found = self.in_memory(start, end);
        let (from, disk_end) = found.on_disk;
        let mut entries = Vec::new();
        let mut left = limit.unwrap_or(usize::MAX);
        for record in self.entries.iter(from) {
            let (index, bytes) = record?;
            if index >= disk_end {
                break;
            }
            entries.push(decode_entry::<C>(&self.entries, index, &bytes)?);
            left = left.saturating_sub(bytes.len());
            if left == 0 {
                return Ok(entries);
            }
        }
        self.decode(entries, found.entries, limit.map(|_| left))
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogReader<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.shared.read(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.shared.read_limited(start, end).await
    }
}
