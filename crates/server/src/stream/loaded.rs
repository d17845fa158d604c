//! A stream in memory: its state, its log, a window of its newest entries, the LSNs without a live
//! entry, and its consumer groups.

use super::StreamId;
use super::group::{Group, Groups};
use super::lsn_set::LsnSet;
use super::record::{Record, StreamState};
use crate::epoch::Epochs;
use basalt::log::Log;
use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Maximum number of committed entries in a window.
pub(crate) const WINDOW_ENTRIES: usize = 128;
/// Maximum bytes of committed entries in a window that has more than one entry.
pub(crate) const WINDOW_BYTES: usize = 64 << 10;

/// Minimum number of removed entries for which the log is trimmed.
const TRIM_ENTRIES: u64 = 256;
/// Minimum number of consecutive deleted entries for which their records are removed from the log.
/// Each removal costs a sync.
const REMOVE_ENTRIES: u64 = 256;
/// Approximate bytes of memory of a number in a set.
const SET_BYTES: usize = 24;

/// A loaded stream.
pub(crate) struct LoadedStream {
    pub incarnation: u64,
    /// Expiry in ms since 1970, or `None` for never.
    pub expire_at_ms: Option<u64>,
    pub log: Log,
    pub state: StreamState,
    /// The next LSN in the value of the key that was written last.
    pub key_next_lsn: u64,
    /// The first live LSN that a record may have. It includes the trims of appends, but no writes
    /// to tables that are still in flight.
    appended_first_lsn: u64,
    /// Records up to this LSN, inclusive, were removed from the log or will be.
    pub trimmed_lsn: u64,
    /// The LSNs above `state.first_lsn` that have no live entry. The entry was deleted, or a power
    /// cut lost it. Jobs share the set.
    pub gone: Arc<LsnSet>,
    /// The LSNs of deleted entries that have a tombstone in the store.
    pub tombstones: BTreeSet<u64>,
    /// Tombstones whose records are durably removed from the log.
    pub obsolete_tombstones: Vec<u64>,
    /// The LSNs of `gone` that have no record in the log, or whose record is being removed.
    removed: LsnSet,
    /// LSNs in runs of deleted entries that are long enough to be removed from the log.
    long_runs: BTreeSet<u64>,
    pub groups: Groups,
    /// The newest live entries with their LSNs. Empty if the budget of all streams has evicted
    /// them.
    pub window: VecDeque<(u64, Record)>,
    /// All live entries from this LSN on are in the window.
    pub window_start: u64,
    pub window_bytes: usize,
    /// The LSN and the id of the first live entry when it was last read from the log.
    pub known_first: Option<(u64, StreamId)>,
    /// Epochs, open or in flight, that write this stream.
    pub written_by: Epochs,
    /// The number of this load. No other load has it, so the results of jobs for an earlier load
    /// are ignored.
    pub load: u64,
    /// The time of the last use: the number of uses of all streams until then.
    pub used: u64,
}

/// The parts of a stream that a load reads from the store.
pub(crate) struct LoadedParts {
    pub incarnation: u64,
    pub expire_at_ms: Option<u64>,
    pub log: Log,
    pub state: StreamState,
    pub key_next_lsn: u64,
    pub gone: LsnSet,
    /// The LSNs of `gone` that have no record in the log.
    pub removed: LsnSet,
    pub tombstones: BTreeSet<u64>,
    pub groups: Groups,
    pub window: VecDeque<(u64, Record)>,
    pub window_start: u64,
}

impl LoadedStream {
    /// Makes a loaded stream. No other load may have the number `load`.
    pub fn new(parts: LoadedParts, load: u64) -> LoadedStream {
        LoadedStream {
            incarnation: parts.incarnation,
            expire_at_ms: parts.expire_at_ms,
            trimmed_lsn: parts.log.trimmed().unwrap_or(0),
            log: parts.log,
            appended_first_lsn: parts.state.first_lsn,
            state: parts.state,
            key_next_lsn: parts.key_next_lsn,
            gone: Arc::new(parts.gone),
            tombstones: parts.tombstones,
            obsolete_tombstones: Vec::new(),
            removed: parts.removed,
            long_runs: BTreeSet::new(),
            groups: parts.groups,
            window_bytes: parts.window.iter().map(|(_, r)| r.body.len()).sum(),
            window: parts.window,
            window_start: parts.window_start,
            known_first: None,
            written_by: 0,
            load,
            used: 0,
        }
    }

    /// Returns the number of live entries.
    pub fn len(&self) -> u64 {
        self.state.next_lsn - self.state.first_lsn - self.gone.count()
    }

    /// Returns true if an LSN has a live entry.
    pub fn is_live(&self, lsn: u64) -> bool {
        (self.state.first_lsn..self.state.next_lsn).contains(&lsn) && !self.gone.contains(lsn)
    }

    /// Returns true if the key's value does not count all entries. Then a command that writes a
    /// group must also write the key, because the group may name these entries.
    pub fn key_is_behind(&self) -> bool {
        self.key_next_lsn < self.state.next_lsn
    }

    /// Returns the smallest live LSN whose id is at least `id`, or `next_lsn` if there is none.
    /// Returns `None` if the LSN is before the window.
    pub fn lower_bound(&self, id: StreamId) -> Option<u64> {
        let n = self.window.partition_point(|(_, entry)| entry.id < id);
        let is_certain = n > 0 || self.window_start <= self.state.first_lsn;
        let lsn = self
            .window
            .get(n)
            .map_or(self.state.next_lsn, |(lsn, _)| *lsn);
        is_certain.then_some(lsn)
    }

    /// Returns the first live LSN for the record of the next entry, whose command removes the
    /// entries before `first_lsn`. An epoch commits its appends before its other writes, so a
    /// record must not include the changes of those writes.
    pub fn next_record_first_lsn(&mut self, first_lsn: u64) -> u64 {
        if first_lsn > self.state.first_lsn {
            self.appended_first_lsn = first_lsn;
        }
        self.appended_first_lsn
    }

    /// Adds the newest entry, and removes the entries before `first_lsn`.
    pub fn push(&mut self, entry: Record, first_lsn: u64) {
        self.state.last_id = entry.id;
        self.state.entries_added = entry.entries_added;
        self.window_bytes += entry.body.len();
        self.window.push_back((self.state.next_lsn, entry));
        self.state.next_lsn += 1;
        self.remove_before(first_lsn);
    }

    /// Removes the entries before an LSN.
    pub fn remove_before(&mut self, lsn: u64) {
        let first = self.gone.next_absent(lsn).min(self.state.next_lsn);
        self.state.first_lsn = first;
        if self.gone.count() > 0 {
            Arc::make_mut(&mut self.gone).remove_below(first);
            self.removed.remove_below(first);
        }
        while self.window.front().is_some_and(|(lsn, _)| *lsn < first) {
            self.pop_front();
        }
    }

    /// Deletes a live entry.
    pub fn delete(&mut self, lsn: u64, id: StreamId) {
        self.state.max_deleted_id = self.state.max_deleted_id.max(id);
        self.tombstones.insert(lsn);
        let gone = Arc::make_mut(&mut self.gone);
        gone.insert(lsn);
        let run = gone.run_of(lsn).expect("just inserted");
        let len = run.end() - run.start() + 1;
        if len - self.removed.count_in(*run.start()..run.end() + 1) >= REMOVE_ENTRIES {
            self.long_runs.insert(lsn);
        }
        if let Ok(place) = self.window.binary_search_by_key(&lsn, |(lsn, _)| *lsn)
            && let Some((_, entry)) = self.window.remove(place)
        {
            self.window_bytes -= entry.body.len();
        }
        self.remove_before(self.state.first_lsn);
    }

    fn pop_front(&mut self) {
        let (lsn, entry) = self.window.pop_front().expect("not empty");
        self.window_bytes -= entry.body.len();
        self.window_start = lsn + 1;
    }

    /// Drops old entries from the window after an epoch has ended. Entries of epochs that have not
    /// ended stay, because the log does not have them yet.
    pub fn shrink_window(&mut self) {
        if self.written_by != 0 {
            return;
        }
        self.appended_first_lsn = self.state.first_lsn;
        while self.window.len() > WINDOW_ENTRIES
            || (self.window_bytes > WINDOW_BYTES && self.window.len() > 1)
        {
            self.pop_front();
        }
    }

    /// Drops the window. No epoch may be writing the stream.
    pub fn drop_window(&mut self) {
        assert!(self.written_by == 0, "the log may lack the entries");
        self.window = VecDeque::new();
        self.window_bytes = 0;
        self.window_start = self.state.next_lsn;
    }

    /// Returns the LSN up to which records should be removed from the log, if there are enough of
    /// them. The last record stays, because it has the stream's state.
    pub fn take_trim(&mut self) -> Option<u64> {
        let last = self.state.next_lsn - 1;
        let up_to = self.state.first_lsn.min(last).saturating_sub(1);
        let is_due = self.written_by == 0 && up_to >= self.trimmed_lsn + TRIM_ENTRIES;
        is_due.then(|| {
            self.trimmed_lsn = up_to;
            up_to
        })
    }

    /// Returns the runs of deleted entries that should be removed from the log.
    pub fn take_removals(&mut self) -> Vec<RangeInclusive<u64>> {
        if self.written_by != 0 {
            return Vec::new();
        }
        let long = std::mem::take(&mut self.long_runs).into_iter();
        let mut runs: Vec<_> = long.filter_map(|lsn| self.gone.run_of(lsn)).collect();
        runs.dedup();
        for run in &runs {
            self.removed.insert_run(run.clone());
        }
        runs
    }

    /// Returns the id of the first live entry, or the smallest id if there is no entry. Returns
    /// `None` if the first live entry is not in memory.
    pub fn first_id(&self) -> Option<StreamId> {
        if self.len() == 0 {
            return Some(StreamId::MIN);
        }
        if self.window_start <= self.state.first_lsn {
            return self.window.front().map(|(_, entry)| entry.id);
        }
        let known = self
            .known_first
            .filter(|(lsn, _)| *lsn == self.state.first_lsn);
        known.map(|(_, id)| id)
    }

    /// Returns true if the counters of a group depend on the id of the first entry.
    pub fn counts_from_first(&self, group: &Group) -> bool {
        self.state.max_deleted_id != StreamId::MIN || group.entries_read.is_none()
    }

    /// Returns true if entries after `after` were deleted. `first` is the id of the first entry.
    fn has_tombstones_after(&self, after: StreamId, first: StreamId) -> bool {
        let deleted = self.state.max_deleted_id;
        self.len() > 0 && deleted != StreamId::MIN && first <= deleted && after <= deleted
    }

    /// Returns the number of entries ever added up to `id`, or `None` if it is unknown. `first` is
    /// the id of the first entry.
    fn entries_up_to(&self, id: StreamId, first: StreamId) -> Option<u64> {
        let (state, len) = (&self.state, self.len());
        if state.entries_added == 0 {
            return Some(0);
        }
        if (len == 0 && id <= state.last_id) || id == state.last_id {
            return Some(state.entries_added);
        }
        if id > state.last_id {
            return None;
        }
        let deleted = state.max_deleted_id;
        // XSETID may have set a number of entries that is too small.
        let before_first = state.entries_added.wrapping_sub(len);
        match deleted == StreamId::MIN || deleted < first {
            true if id < first => Some(before_first),
            true if id == first => Some(before_first.wrapping_add(1)),
            _ => None,
        }
    }

    /// Returns the number of entries that a group has read after the delivery of the entry `id`, or
    /// `None` if it is unknown. `read` is the number before, and `first` is the id of the first
    /// entry.
    pub fn entries_read_after(
        &self,
        read: Option<u64>,
        id: StreamId,
        first: StreamId,
    ) -> Option<u64> {
        match read {
            Some(n) if !self.has_tombstones_after(id, first) => Some(n.wrapping_add(1)),
            _ if self.state.entries_added > 0 => self.entries_up_to(id, first),
            read => read,
        }
    }

    /// Returns the number of entries that a group has not read, or `None` if it is unknown. `first`
    /// is the id of the first entry.
    pub fn lag(&self, group: &Group, first: StreamId) -> Option<i64> {
        let added = self.state.entries_added;
        if added == 0 {
            return Some(0);
        }
        let read = match group.entries_read {
            Some(n) if !self.has_tombstones_after(group.last_id, first) => Some(n),
            _ => self.entries_up_to(group.last_id, first),
        };
        read.map(|read| added.wrapping_sub(read) as i64)
    }

    /// Returns the approximate bytes of memory of the stream.
    pub fn memory(&self) -> usize {
        let sets = 2 * self.gone.runs() + self.tombstones.len() + self.long_runs.len();
        size_of::<LoadedStream>()
            + self.window_bytes
            + self.window.len() * size_of::<(u64, Record)>()
            + sets * SET_BYTES
            + self.obsolete_tombstones.capacity() * size_of::<u64>()
            + self.groups.memory()
    }
}
