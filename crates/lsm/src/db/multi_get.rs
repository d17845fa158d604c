//! Lookups of many keys at once. Each key goes through the tables from new to old, as in
//! [`View::get`]. When no key can continue with the blocks in memory, the blocks that the keys wait
//! for are read in one batch. So the device reads from different tables and levels at the same
//! time. The keys of a call wait for about as many reads in a row as one key would. Values that are
//! not in the tree are read in batches, too.

use super::page_versions::found_entry;
use super::pages::PageView;
use super::view::View;
use crate::memtable::FoundEntry;
use crate::version::{FamilyVersion, TableFile};
use basalt_blob::ReadMode;
use basalt_blob::batch_read::{self, KeptIndexPages};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{SeqNo, encode_internal_key, seek_trailer};
use basalt_kv::separated::{Name, Reference};
use basalt_table::{Lookup, LookupStep, ReadBudget, Wanted};
use std::collections::HashMap;
use std::sync::Arc;

/// Largest number of blocks in one batch of reads. The limit bounds the memory for blocks read
/// before their use.
const READ_BATCH: usize = 64;

/// A reference to a value that is not in the tree.
#[derive(Clone, Copy)]
pub(super) struct PendingReference<'a> {
    pub name: Name<'a>,
    pub to: Reference,
}

/// A key whose lookup is not finished.
struct PendingKey<'k> {
    /// Place of the key among the keys of the call.
    place: usize,
    key: &'k [u8],
    /// Internal key to seek in tables.
    target: Vec<u8>,
    /// Next table to search: a place in level 0, or a level below.
    level: usize,
    next: usize,
    /// Lookup in the current table.
    lookup: Option<Lookup>,
    /// Newest version in the tables of level 0 so far.
    best: Option<FoundEntry>,
}

/// Progress of the lookup of a key.
enum LookupProgress {
    /// The lookup waits for a block that is not in memory.
    Waits,
    /// The lookup has ended with the newest visible version, if there is one.
    Is(Option<FoundEntry>),
    /// The value is beyond the budget.
    Later,
}

impl PendingKey<'_> {
    /// Returns the next table that may hold a newer version than the one found.
    fn next_table<'t>(
        &mut self,
        tables: &'t FamilyVersion,
        seq: SeqNo,
    ) -> Option<&'t Arc<TableFile>> {
        while self.level == 0 {
            let Some(t) = tables.levels[0].get(self.next) else {
                self.level = 1;
                break;
            };
            self.next += 1;
            // Level 0 is sorted by newest sequence number, as in `get`. An older table cannot hold
            // a newer version.
            if self.best.as_ref().is_some_and(|b| b.seq >= t.meta.max_seq) {
                return None;
            }
            if t.meta.min_seq <= seq && t.overlaps(Some(self.key), Some(self.key)) {
                return Some(t);
            }
        }
        while self.best.is_none() && self.level < tables.levels.len() {
            let level = self.level;
            self.level += 1;
            if let Some(t) = tables.find(level, self.key) {
                return Some(t);
            }
        }
        None
    }

    /// Keeps the result of a step in a table.
    fn take(&mut self, step: LookupStep) {
        match step {
            LookupStep::On(lookup) => self.lookup = Some(lookup),
            LookupStep::Is(Some(f)) if self.best.as_ref().is_none_or(|b| f.seq > b.seq) => {
                self.best = Some(f);
            }
            LookupStep::Is(_) => {}
        }
    }

    /// Continues the lookup with the block that it waits for.
    fn feed(&mut self, payload: &Bytes, seq: SeqNo) -> Result<()> {
        let lookup = self.lookup.take().expect("it waits for a block");
        let step = lookup.feed(payload, self.key, &self.target, seq)?;
        self.take(step);
        Ok(())
    }

    /// Continues the lookup as far as possible without a read.
    fn advance(
        &mut self,
        tables: &FamilyVersion,
        seq: SeqNo,
        budget: &mut ReadBudget,
    ) -> Result<LookupProgress> {
        loop {
            let Some(lookup) = &self.lookup else {
                let Some(table) = self.next_table(tables, seq) else {
                    return Ok(LookupProgress::Is(self.best.take()));
                };
                let step = Lookup::begin(table.reader()?, self.key, &self.target, seq)?;
                self.take(step);
                continue;
            };
            let is_data = lookup.wanted().is_data();
            let Some(payload) = lookup.wanted().cached() else {
                return Ok(LookupProgress::Waits);
            };
            let before = self.best.as_ref().map(|b| b.seq);
            self.feed(&payload, seq)?;
            // A value in a block that was in memory before is not counted with a read of the block.
            if is_data
                && let Some(best) = &self.best
                && before != Some(best.seq)
                && !budget.take(best.value.len())
            {
                return Ok(LookupProgress::Later);
            }
        }
    }
}

/// Blocks to read in a round, and the keys that wait for them.
#[derive(Default)]
struct ReadRound {
    wanted: Vec<Wanted>,
    by_id: HashMap<(u128, u64), usize>,
    /// Places of keys in the list of lookups, each with the number of the block that the key waits
    /// for.
    waiting: Vec<(usize, usize)>,
}

impl ReadRound {
    /// Adds the block that a key waits for. Returns `false` if the block is beyond the budget. If
    /// the round is full, the key waits for the next round.
    fn add(&mut self, asked: usize, wanted: &Wanted, budget: &mut ReadBudget) -> bool {
        let block = match self.by_id.get(&wanted.id()) {
            Some(block) => *block,
            None if self.wanted.len() == READ_BATCH => return true,
            None if wanted.is_data() && !budget.take(wanted.read_bytes()) => return false,
            None => {
                self.wanted.push(wanted.clone());
                self.by_id.insert(wanted.id(), self.wanted.len() - 1);
                self.wanted.len() - 1
            }
        };
        self.waiting.push((asked, block));
        true
    }
}

impl View {
    /// Returns the same as [`View::get`] for many keys of one family, in their order. An error
    /// concerns its own key only.
    ///
    /// Data blocks that are read, and values found in memory, are taken from `budget`. A key beyond
    /// the budget is `None`, and the caller may ask again.
    pub fn get_many(
        &self,
        family: u32,
        keys: &[&[u8]],
        seq: SeqNo,
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Vec<Option<Result<Option<FoundEntry>>>> {
        let mut out: Vec<Option<Result<Option<FoundEntry>>>> = keys
            .iter()
            .map(|key| {
                let found = self.memtables(family).find_map(|m| m.get(key, seq));
                let len = found.as_ref().map_or(0, |f| f.value.len());
                budget.take(len).then_some(Ok(found))
            })
            .collect();
        if let Some(pages) = self.pages.get(&family) {
            self.get_many_in_pages(pages, keys, fill_cache, budget, &mut out);
            return out;
        }
        let (Some(tables), Some(entry)) = (
            self.version.families.get(&family),
            self.families.get(&family),
        ) else {
            return out;
        };
        let mut open: Vec<PendingKey<'_>> = (0..keys.len())
            .filter(|i| matches!(out[*i], Some(Ok(None))))
            .map(|place| PendingKey {
                place,
                key: keys[place],
                target: Vec::with_capacity(keys[place].len() + 8),
                level: 0,
                next: 0,
                lookup: None,
                best: None,
            })
            .collect();
        for asked in &mut open {
            encode_internal_key(&mut asked.target, asked.key, seek_trailer(seq));
        }
        // In the order of keys, the keys that wait for the same block are in the same round.
        open.sort_by(|a, b| entry.options.comparator.user(a.key, b.key));
        while !open.is_empty() {
            let mut round = ReadRound::default();
            let mut going = Vec::with_capacity(open.len());
            for mut asked in open {
                let mut progress = asked.advance(tables, seq, budget);
                if let Ok(LookupProgress::Waits) = progress {
                    let wanted = asked.lookup.as_ref().expect("it waits").wanted();
                    if !round.add(going.len(), wanted, budget) {
                        progress = Ok(LookupProgress::Later);
                    }
                }
                match progress {
                    Ok(LookupProgress::Waits) => going.push(asked),
                    Ok(LookupProgress::Is(found)) => out[asked.place] = Some(Ok(found)),
                    Ok(LookupProgress::Later) => out[asked.place] = None,
                    Err(e) => out[asked.place] = Some(Err(e)),
                }
            }
            let read = Wanted::read_batch(&round.wanted, fill_cache);
            let mut failed: Vec<usize> = Vec::new();
            for (i, block) in round.waiting {
                let fed = read[block].as_ref().map_err(Clone::clone);
                if let Err(e) = fed.and_then(|payload| going[i].feed(payload, seq)) {
                    out[going[i].place] = Some(Err(e));
                    failed.push(i);
                }
            }
            let mut n = 0;
            going.retain(|_| {
                n += 1;
                failed.binary_search(&(n - 1)).is_err()
            });
            open = going;
        }
        out
    }

    /// Looks up the keys that memtables do not have in the pages of their family.
    fn get_many_in_pages(
        &self,
        pages: &PageView,
        keys: &[&[u8]],
        fill_cache: bool,
        budget: &mut ReadBudget,
        out: &mut [Option<Result<Option<FoundEntry>>>],
    ) {
        let open: Vec<usize> = (0..keys.len())
            .filter(|i| matches!(out[*i], Some(Ok(None))))
            .collect();
        for round in open.chunks(READ_BATCH) {
            let asked: Vec<&[u8]> = round.iter().map(|i| keys[*i]).collect();
            let tree = pages.pages.tree();
            let mut admit = |bytes| budget.take(bytes);
            let found = tree.entries(&pages.snapshot, &asked, fill_cache, &mut admit);
            for (i, found) in round.iter().zip(found) {
                out[*i] = found.map(|found| found?.map(found_entry).transpose());
            }
        }
    }

    /// Returns the payloads that entries refer to, with their expiries. An error concerns its own
    /// entry only. The stored bytes of a payload are taken from `budget` before it is read. The
    /// further bytes of a compressed payload are taken before it is decompressed. A payload beyond
    /// `budget` is `None`.
    pub(super) fn values_of(
        &self,
        referred: &[PendingReference<'_>],
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Vec<Option<Result<Bytes>>> {
        let how = ReadMode::user(fill_cache);
        let mut pages = KeptIndexPages::default();
        let mut out: Vec<Option<Result<Bytes>>> = Vec::with_capacity(referred.len());
        for round in referred.chunks(READ_BATCH) {
            let entries: Vec<_> = (round.iter())
                .map(|r| {
                    let cmp = &self.families[&r.name.family].options.comparator;
                    (r.to.record(&r.name), r.to.number, cmp)
                })
                .collect();
            let blobs = &self.version.blobs;
            let (mut places, mut located) = (Vec::new(), Vec::new());
            for place in blobs.locate(&entries, &mut pages, how) {
                out.push(match place {
                    Ok(l) if budget.take(l.value_len()) => {
                        places.push(out.len());
                        located.push(l);
                        None
                    }
                    Ok(_) => None,
                    Err(e) => Some(Err(e)),
                });
            }
            let read = batch_read::read_within(&located, how, budget);
            for (place, value) in places.into_iter().zip(read) {
                out[place] = value;
            }
        }
        out
    }
}
