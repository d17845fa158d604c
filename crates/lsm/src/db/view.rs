//! The view that a reader takes: the memtables and the version of one moment.

use super::backlog::Backlog;
use super::families::FamilyEntry;
use super::memtable_set::MemtableSet;
use crate::memtable::{Found, MemTable};
use crate::version::{FamilyVersion, Version};
use basalt_blob::{How, Name, Reference};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, SeqNo};
use basalt_table::{ReadBudget, hash_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What became of a reference.
pub(crate) enum Opened {
    /// The kind and payload that its entry would have with its value in the tree.
    Is(Kind, Bytes),
    /// Its value's time is over. Nothing was read.
    Over,
    /// The budget does not reach for it. Nothing was read.
    Later,
}

/// All that readers need, as of the last change of shape. Readers clone the `Arc` and work undisturbed.
#[derive(Clone)]
pub(crate) struct View {
    pub active: Arc<MemtableSet>,
    /// Newest first.
    pub sealed: Vec<Arc<MemtableSet>>,
    pub version: Arc<Version>,
    pub families: Arc<BTreeMap<u32, FamilyEntry>>,
    /// How far background work is behind, as of this view. Computed when the view is set.
    pub backlog: Backlog,
    /// When tables were last added that did not come from memtables: who reads as of then, or later, must have them.
    pub ingested: SeqNo,
}

impl View {
    /// The memtables of a family, newest first.
    pub fn memtables(&self, family: u32) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active)
            .chain(&self.sealed)
            .filter_map(move |g| g.mems.get(&family))
    }

    /// A version with its value in the tree, wherever that is. Its payload is taken from `budget` before it is read.
    pub fn open_reference(
        &self,
        name: &Name<'_>,
        payload: &[u8],
        now_ms: u64,
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Result<Opened> {
        let to = Reference::decode(payload)?;
        if to.is_over(now_ms) {
            return Ok(Opened::Over);
        }
        let cmp = &self.families[&name.family].options.comparator;
        let how = How::user(fill_cache);
        let read = (self.version.blobs).read_within(name, &to, cmp, how, budget)?;
        Ok(match read {
            Some((kind, value)) => Opened::Is(kind, value),
            None => Opened::Later,
        })
    }

    /// The newest version of a key visible at `seq`, tombstones included.
    pub fn get(
        &self,
        family: u32,
        key: &[u8],
        seq: SeqNo,
        fill_cache: bool,
    ) -> Result<Option<Found>> {
        for mem in self.memtables(family) {
            if let Some(found) = mem.get(key, seq) {
                return Ok(Some(found));
            }
        }
        let Some(tables) = self.version.families.get(&family) else {
            return Ok(None);
        };
        get_in_tables(tables, key, seq, fill_cache)
    }
}

/// Tables whose filters are fetched from memory side by side before the first of them is asked.
const BATCH: usize = 8;

/// As [`View::get`], in a family's tables.
fn get_in_tables(
    tables: &FamilyVersion,
    key: &[u8],
    seq: SeqNo,
    fill_cache: bool,
) -> Result<Option<Found>> {
    let hash = hash_of(&tables.cmp, key);
    let newest = tables.levels[0]
        .iter()
        .filter(|t| t.meta.min_seq <= seq && t.overlaps(Some(key), Some(key)))
        .map(|t| (0, t));
    let below =
        (1..tables.levels.len()).filter_map(|level| Some((level, tables.find(level, key)?)));
    let mut candidates = newest.chain(below);
    let mut best: Option<Found> = None;
    loop {
        let next: [_; BATCH] = std::array::from_fn(|_| {
            let (level, t) = candidates.next()?;
            if let (Some(hash), Some(reader)) = (hash, t.opened()) {
                reader.prefetch_filter(hash);
            }
            Some((level, t))
        });
        for candidate in next {
            let Some((level, t)) = candidate else {
                return Ok(best);
            };
            // Level 0 is sorted by newest sequence number: nothing further down can beat what is found.
            if let Some(b) = &best
                && (level > 0 || b.seq >= t.meta.max_seq)
            {
                return Ok(best);
            }
            if let Some(found) = t.reader()?.get_hashed(key, hash, seq, fill_cache)?
                && best.as_ref().is_none_or(|b| found.seq > b.seq)
            {
                best = Some(found);
            }
        }
    }
}
