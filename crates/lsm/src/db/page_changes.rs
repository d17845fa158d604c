//! The latest changes of keys that are in pages.
//!
//! Pages do not say when a key was changed. Preconditions ask for it, so the changes of the last
//! flushes stay in memory: the hash and the newest sequence number of each key, and the deleted
//! ranges. A family begins to keep them at its first precondition. They take 16 bytes of memory for
//! each key in a memtable.

use crate::iter::InternalIter;
use crate::memtable::MemTable;
use basalt_fs::Result;
use basalt_kv::key::{Cmp, SeqNo, split_internal_key, trailer_seq};
use basalt_kv::ranges::Fragments;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The changes of this many of the store's last flushes are kept. A transaction that takes longer
/// than its store takes for this many flushes begins again.
pub(crate) const KEPT_FLUSHES: u64 = 4;

/// The changes of one memtable.
pub(crate) struct FlushedChanges {
    /// The number of the memtable set.
    set: u64,
    /// The hash of each key and its newest sequence number, in the order of the hashes.
    keys: Box<[(u64, SeqNo)]>,
    ranges: Fragments,
}

impl FlushedChanges {
    /// Takes the changes of a memtable of the set with number `set`.
    pub fn of(mem: &Arc<MemTable>, set: u64) -> Result<FlushedChanges> {
        let runs = mem.ranges();
        let pieces = runs.iter().flat_map(|run| run.iter());
        let ranges = Fragments::build(&Cmp::Bytewise, pieces, Some(&[]));
        let mut keys = Vec::new();
        let (mut iter, mut last) = (mem.iter(), Vec::new());
        iter.seek_to_first()?;
        while iter.valid() {
            let (key, trailer) = split_internal_key(iter.key());
            // The versions of a key stand together, the newest first.
            if keys.is_empty() || key != &last[..] {
                last.clear();
                last.extend_from_slice(key);
                keys.push((xxh3_64(key), trailer_seq(trailer)));
            }
            iter.next()?;
        }
        keys.sort_unstable();
        Ok(FlushedChanges {
            set,
            keys: keys.into(),
            ranges,
        })
    }

    /// Returns the sequence number of the key's newest change. Another key with the same hash
    /// counts as the key.
    fn newest(&self, key: &[u8]) -> Option<SeqNo> {
        let hash = xxh3_64(key);
        // Of keys with one hash, the newest change is the last one.
        let end = self.keys.partition_point(|(other, _)| *other <= hash);
        let of_key = self.keys[..end].last().filter(|(other, _)| *other == hash);
        let of_range = self.ranges.newest(&Cmp::Bytewise, key, SeqNo::MAX);
        of_key.map(|(_, seq)| *seq).max(of_range)
    }
}

/// The latest changes of a family.
#[derive(Clone)]
pub(crate) struct PageChanges {
    /// All changes in pages with higher numbers are in `flushes`.
    known_from: SeqNo,
    /// The newest last, and the highest sequence number of each.
    flushes: Vec<(SeqNo, Arc<FlushedChanges>)>,
}

impl PageChanges {
    /// Returns no changes, of pages whose changes up to `flushed` are not known.
    pub fn unknown(flushed: SeqNo) -> PageChanges {
        PageChanges {
            known_from: flushed,
            flushes: Vec::new(),
        }
    }

    /// Adds the changes of a memtable set whose highest sequence number is `last`.
    pub fn push(&mut self, last: SeqNo, changes: FlushedChanges) {
        self.flushes.push((last, Arc::new(changes)));
    }

    /// Returns true if there are changes of sets before the last [`KEPT_FLUSHES`] up to `set`.
    pub fn has_old(&self, set: u64) -> bool {
        let oldest = self.flushes.first();
        oldest.is_some_and(|(_, f)| f.set + KEPT_FLUSHES <= set)
    }

    /// Forgets the changes of sets before the last [`KEPT_FLUSHES`] up to `set`.
    pub fn forget_old(&mut self, set: u64) {
        while self.has_old(set) {
            self.known_from = self.flushes.remove(0).0;
        }
    }

    /// Returns the sequence number of the key's newest change in pages and true, if one of the
    /// kept flushes has changed the key. Otherwise, returns an upper bound of that number and
    /// false.
    pub fn newest(&self, key: &[u8]) -> (SeqNo, bool) {
        let mut found = self.flushes.iter().rev().filter_map(|(_, f)| f.newest(key));
        found
            .next()
            .map_or((self.known_from, false), |seq| (seq, true))
    }
}

#[cfg(test)]
mod tests;
