//! The view that a reader takes: the memtables and the version at one time.

use super::backlog::Backlog;
use super::families::FamilyEntry;
use super::memtable_set::MemtableSet;
use super::pages::PageViews;
use crate::memtable::{FoundEntry, MemTable};
use crate::options::Options;
use crate::version::{FamilyVersion, Version};
use basalt_blob::{Name, ReadMode, Reference};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, SeqNo};
use basalt_table::{ReadBudget, hash_of};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Result of opening a reference to a separated value.
pub(crate) enum OpenedValue {
    /// The kind and payload that the entry would have if its value were in the tree.
    Is(Kind, Bytes),
    /// The value has expired. It was not read.
    Over,
    /// The value is beyond the budget. It was not read.
    Later,
}

/// All that readers need, as of the last change of the tree's shape. A reader clones the `Arc`, and
/// later changes do not affect its view.
#[derive(Clone)]
pub(crate) struct View {
    pub active: Arc<MemtableSet>,
    /// Sealed memtable sets, newest first.
    pub sealed: Vec<Arc<MemtableSet>>,
    pub version: Arc<Version>,
    /// The trees of families that are kept in pages: what was flushed of these families.
    pub pages: PageViews,
    pub families: Arc<BTreeMap<u32, FamilyEntry>>,
    /// Backlog of background work as of this view. Computed when the view is set.
    pub backlog: Backlog,
    /// Sequence number at which prepared tables were last added. A reader as of this number or a
    /// later one must have these tables.
    pub ingested: SeqNo,
}

impl View {
    /// Returns the memtables of a family, newest first.
    pub fn memtables(&self, family: u32) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active)
            .chain(&self.sealed)
            .filter_map(move |g| g.mems.get(&family))
    }

    /// Returns the number of sealed memtable sets that wait for their flush. In a passive store
    /// sets have any size, so their bytes are counted in full write buffers, rounded up.
    pub fn waiting_sets(&self, options: &Options) -> usize {
        if options.log.passive().is_none() {
            return self.sealed.len();
        }
        let bytes: u64 = self.sealed.iter().map(|set| set.sealed_bytes()).sum();
        bytes.div_ceil(options.write_buffer_bytes) as usize
    }

    /// Returns the entry of a reference with its value, from wherever the value is. Its payload is
    /// taken from `budget` before it is read.
    pub fn open_reference(
        &self,
        name: &Name<'_>,
        payload: &[u8],
        now_ms: u64,
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Result<OpenedValue> {
        let to = Reference::decode(payload)?;
        if to.is_over(now_ms) {
            return Ok(OpenedValue::Over);
        }
        let cmp = &self.families[&name.family].options.comparator;
        let how = ReadMode::user(fill_cache);
        let read = (self.version.blobs).read_within(name, &to, cmp, how, budget)?;
        Ok(match read {
            Some((kind, value)) => OpenedValue::Is(kind, value),
            None => OpenedValue::Later,
        })
    }

    /// Returns the newest version of a key that is visible at `seq`; a tombstone is returned, too.
    pub fn get(
        &self,
        family: u32,
        key: &[u8],
        seq: SeqNo,
        fill_cache: bool,
    ) -> Result<Option<FoundEntry>> {
        for mem in self.memtables(family) {
            if let Some(found) = mem.get(key, seq) {
                return Ok(Some(found));
            }
        }
        if let Some(pages) = self.pages.get(&family) {
            return pages.found(key, fill_cache);
        }
        let Some(tables) = self.version.families.get(&family) else {
            return Ok(None);
        };
        get_in_tables(tables, key, seq, fill_cache)
    }
}

/// Number of tables whose filters are prefetched from memory together before the first of them is
/// used.
const BATCH: usize = 8;

/// Returns the same as [`View::get`], from a family's tables only.
fn get_in_tables(
    tables: &FamilyVersion,
    key: &[u8],
    seq: SeqNo,
    fill_cache: bool,
) -> Result<Option<FoundEntry>> {
    let hash = hash_of(&tables.cmp, key);
    let newest = tables.levels[0]
        .iter()
        .filter(|t| t.meta.min_seq <= seq && t.overlaps(Some(key), Some(key)))
        .map(|t| (0, t));
    let below =
        (1..tables.levels.len()).filter_map(|level| Some((level, tables.find(level, key)?)));
    let mut candidates = newest.chain(below);
    let mut best: Option<FoundEntry> = None;
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
            // Level 0 is sorted by newest sequence number, so no later table can hold a newer
            // version.
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
