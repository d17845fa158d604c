//! The memtable: a sorted map in memory that many threads insert into at once and that readers
//! never wait for.
//!
//! [`arena`] owns the memory, [`record`] an entry's bytes, [`node`] and [`tree`] the order. They
//! are leaf modules with `unsafe` and the invariants that it needs. The code in this file is safe.
//! Promises:
//!
//! - an insert that returned is seen by every later lookup; a reader never sees half an entry;
//! - readers take no lock and wait for no other thread; an insert locks the leaf it goes to;
//! - small values (below 4 KiB) lie beside their key, larger ones stay in the batch's memory, which
//!   the memtable pins;
//! - a value that was returned stays valid after the memtable is gone from the tree.

mod arena;
mod cursor;
mod live_ranges;
mod node;
mod record;
#[cfg(test)]
mod tests;
mod tree;

use basalt_env::Reservation;
use basalt_env::sync::Mutex;
use basalt_fs::{Bytes, Result};
pub use basalt_kv::entry::FoundEntry;
use basalt_kv::key::{
    Cmp, Kind, MAX_SEQ, SeqNo, internal_key, pack_trailer, seek_trailer, split_internal_key,
    trailer_seq, user_key,
};
use basalt_kv::ranges::Fragments;
use basalt_table::InternalIter;
use cursor::Cursor;
pub(crate) use live_ranges::LiveRanges;
use record::Value;
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};
use tree::{Target, Tree};

/// Bytes of a node of average height beside key and value, that of a large value included.
const ENTRY_OVERHEAD: u64 = 80;

/// One family's writes since the last flush. See the module.
pub struct MemTable {
    tree: Tree,
    /// Range tombstones. They are not in the tree, because a reader must find those that begin
    /// anywhere before its key.
    ranges: LiveRanges,
    /// Keeps the bytes of the memtable in the memory ledger as long as a reader holds it, once it
    /// is sealed apart from its set.
    booking: OnceLock<Arc<Mutex<Reservation>>>,
}

impl MemTable {
    /// Makes an empty memtable. It costs a few kilobytes until the first insert.
    pub fn new(cmp: Cmp) -> Arc<MemTable> {
        Arc::new(MemTable {
            tree: Tree::new(cmp),
            ranges: LiveRanges::default(),
            booking: OnceLock::new(),
        })
    }

    /// Lets the memtable keep a reservation that has its bytes.
    pub(crate) fn keep_booking(&self, booking: Arc<Mutex<Reservation>>) {
        // A memtable is sealed once.
        let _ = self.booking.set(booking);
    }

    /// Inserts an entry whose value has a memory of its own, see [`MemTable::insert_from`].
    pub fn insert(&self, user_key: &[u8], seq: SeqNo, kind: Kind, value: &Bytes) {
        self.insert_from(value, user_key, seq, kind, value);
    }

    /// Inserts an entry. `value` lies in `batch`: small values are copied beside the key, large
    /// ones keep the batch's memory alive instead. (key, seq, kind) must be new: a second insert
    /// panics. Any number of threads may insert at once.
    pub fn insert_from(
        &self,
        batch: &Bytes,
        user_key: &[u8],
        seq: SeqNo,
        kind: Kind,
        value: &[u8],
    ) {
        let value = Value {
            bytes: value,
            batch,
        };
        self.tree
            .insert(Target::new(user_key, pack_trailer(seq, kind)), value);
    }

    /// Deletes the user keys in `[from, to)` as of `seq`. Any number of threads may call it and
    /// [`MemTable::insert`] at once.
    pub fn delete_range(&self, from: &[u8], to: &[u8], seq: SeqNo) {
        self.ranges.insert(self.cmp(), from, to, seq);
    }

    /// Returns the number of range tombstones.
    pub fn range_deletes(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the sequence number of the newest range tombstone over `user_key` that is at most
    /// `seq`.
    pub(crate) fn deleted_at(&self, user_key: &[u8], seq: SeqNo) -> Option<SeqNo> {
        self.ranges.newest(self.cmp(), user_key, seq)
    }

    /// Returns the range tombstones inserted so far.
    pub(crate) fn ranges(&self) -> Vec<Arc<Fragments>> {
        self.ranges.runs()
    }

    /// Adds to [`MemTable::memory`] the bytes of a pinned batch beyond its large values. One large
    /// value keeps all of its batch's memory alive, and only the inserter knows how much that is.
    pub fn add_pinned(&self, bytes: usize) {
        self.tree.add_pinned(bytes);
    }

    /// Returns true if a value of this many bytes stays in the batch's memory instead of being
    /// copied.
    pub fn pins(value_len: usize) -> bool {
        value_len >= record::LARGE_VALUE
    }

    /// Returns the newest version of `user_key` with a sequence number of at most `seq`, or a
    /// tombstone if its range was deleted since.
    pub fn get(self: &Arc<Self>, user_key: &[u8], seq: SeqNo) -> Option<FoundEntry> {
        let target = Target::new(user_key, seek_trailer(seq));
        let point = tree::find_pinned(self, &target).map(|(trailer, value)| FoundEntry {
            seq: trailer_seq(trailer),
            kind: Kind::from_u8(trailer as u8).expect("inserted with a kind"),
            value,
        });
        let deleted = self.ranges.newest(self.cmp(), user_key, seq);
        FoundEntry::newer(point, deleted)
    }

    /// Returns a cursor. The cursor sees at least the entries inserted before it was positioned.
    pub fn iter(self: &Arc<Self>) -> MemIter {
        MemIter(Cursor::new(self.clone()))
    }

    /// Returns the bytes of memory held: the arena's chunks, large values, range tombstones, and
    /// the bytes passed to [`MemTable::add_pinned`].
    pub fn memory(&self) -> usize {
        self.tree.memory() + self.ranges.memory()
    }

    /// Returns the most bytes by which memtables that hold `memory` bytes grow when `entries`
    /// entries of `payload` bytes in all are inserted. Nodes are assumed to be of average height,
    /// and the arena to take another chunk.
    pub fn growth(memory: u64, payload: u64, entries: u64) -> u64 {
        payload + entries * ENTRY_OVERHEAD + memory.min(arena::LARGEST_CHUNK as u64)
    }

    /// Returns the number of entries, without range tombstones.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns true if an entry was inserted; range tombstones do not count.
    pub(crate) fn has_entries(&self) -> bool {
        self.tree.len() > 0
    }

    /// Returns true if there is an entry with a user key from `from` to `to`, both inclusive, or a
    /// range tombstone over such a key.
    pub(crate) fn overlaps(self: &Arc<Self>, from: &[u8], to: &[u8]) -> Result<bool> {
        let cmp = self.cmp();
        let in_ranges = |r: &Arc<Fragments>| {
            let i = r.at_or_after(cmp, from);
            i < r.len() && cmp.user(r.range(i).0, to) != Ordering::Greater
        };
        if self.ranges().iter().any(in_ranges) {
            return Ok(true);
        }
        let mut iter = self.iter();
        iter.seek(&internal_key(from, seek_trailer(MAX_SEQ)))?;
        Ok(iter.valid() && cmp.user(user_key(iter.key()), to) != Ordering::Greater)
    }

    /// Returns true if no entry and no range tombstone was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.ranges.is_empty()
    }

    /// Returns the family's comparator.
    pub fn cmp(&self) -> &Cmp {
        self.tree.cmp()
    }
}

impl std::fmt::Debug for MemTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "MemTable({} entries, {} bytes)",
            self.len(),
            self.memory()
        )
    }
}

/// A cursor over a memtable. Its movements never fail. `prev` searches from the top: O(log n).
pub struct MemIter(Cursor);

fn target(internal_key: &[u8]) -> Target<'_> {
    let (user, trailer) = split_internal_key(internal_key);
    Target::new(user, trailer)
}

impl InternalIter for MemIter {
    fn valid(&self) -> bool {
        self.0.valid()
    }
    fn seek_to_first(&mut self) -> Result<()> {
        self.0.first();
        Ok(())
    }
    fn seek_to_last(&mut self) -> Result<()> {
        self.0.last();
        Ok(())
    }
    fn seek(&mut self, to: &[u8]) -> Result<()> {
        self.0.seek(&target(to));
        Ok(())
    }
    fn seek_for_prev(&mut self, to: &[u8]) -> Result<()> {
        self.0.seek_for_prev(&target(to));
        Ok(())
    }
    fn next(&mut self) -> Result<()> {
        self.0.next();
        Ok(())
    }
    fn prev(&mut self) -> Result<()> {
        self.0.prev();
        Ok(())
    }
    fn key(&self) -> &[u8] {
        self.0.key()
    }
    fn value(&self) -> &[u8] {
        self.0.value()
    }
    fn pinned_value(&self) -> Bytes {
        self.0.pinned_value()
    }
}
