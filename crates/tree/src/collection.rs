//! Garbage collection: live pages of extents with much garbage are written again, and the extents
//! are erased (ArkDB, section 4.2). Pages are defragmented on the way.

use crate::erasure::ErasuresBetween;
use crate::leaf_merges::{LeafMerges, Merge};
use crate::mapping::{Pages, State};
use crate::page::Page;
use crate::page_format::{PAGE_HEADER, stored_len};
use crate::page_id::PageId;
use crate::storage::{PageWriteCause, Storage};
use crate::usage::StreamKind;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_stream::{ExtentId, ExtentInfo};
use std::collections::BTreeSet;

/// Most leaves that one transaction merges, for readers or because they are cold.
const MERGED_AT_ONCE: usize = 128;

/// Most chains whose delta pages one transaction writes again.
const MOVED_AT_ONCE: usize = 1024;

/// The budget for cold leaves is used when it is enough for about this many of them: each use costs
/// a look at the page mapping table.
const LEAST_LEAVES: u64 = 16;

/// Most passes of one garbage collection while the space of pages is above its bound. One pass may
/// not be enough, because moving leaves makes garbage, too.
const MOST_PASSES: usize = 8;

/// An extent with less than one valid byte in this many is collected, even if the space of its
/// garbage was given back: each extent costs a file.
const LEAST_VALID_PART: u64 = 16;

/// Bytes of an extent that a collection reads at once.
const WINDOW: usize = 1 << 20;

impl Storage {
    /// Collects the garbage of extents that have too much, as long as `goes_on` returns true, and
    /// erases extents without live pages. Returns the number of erased extents.
    ///
    /// Errors: those of reading and writing; what was collected before stays so.
    pub fn collect_garbage(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        let collected = self.collect_for_space(goes_on);
        // The collection removed ranges and added others.
        self.limit_usage();
        collected
    }

    fn collect_for_space(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        let mut erased = self.collect_once(goes_on)?;
        for _ in 1..MOST_PASSES {
            if !goes_on() || self.extents_to_collect_for_space().is_empty() {
                break;
            }
            erased += self.collect_once(goes_on)?;
        }
        Ok(erased)
    }

    fn collect_once(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        let mut failed = None;
        for kind in [StreamKind::Base, StreamKind::Delta] {
            let victims = self.victims(kind);
            if victims.is_empty() || !goes_on() {
                continue;
            }
            let relocated = match kind {
                StreamKind::Base => self.relocate_bases(&victims, goes_on),
                StreamKind::Delta => self.relocate_deltas(&victims, goes_on),
            };
            match relocated {
                // Damage in one stream must not stop the collection of the other one.
                Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                relocated => relocated?,
            }
        }
        let erased = self.erase_dead()?;
        failed.map_or(Ok(erased), Err)
    }

    /// Returns true if a compaction, a collection, an erasure or a system checkpoint is due.
    pub fn maintenance_is_due(&self) -> bool {
        self.checkpoint_is_due()
            || !self.victims(StreamKind::Base).is_empty()
            || !self.victims(StreamKind::Delta).is_empty()
            || !self.mapping.due(self.options.max_deltas).is_empty()
    }

    /// Returns the sealed extents whose fraction of garbage reaches the option's threshold, and
    /// those that must be collected for the bound of the space. Extents without a valid page are
    /// not among them.
    fn victims(&self, kind: StreamKind) -> BTreeSet<ExtentId> {
        let (stream, least) = match kind {
            StreamKind::Base => (&self.base, self.options.base_garbage),
            StreamKind::Delta => (&self.delta, self.options.delta_garbage),
        };
        let extents = stream.extents();
        let for_space = self.extents_to_collect_for_space();
        let usage = self.usage.lock();
        let is_victim = |extent: &ExtentInfo| {
            let valid = usage.get(extent.id).map_or(0, |usage| usage.valid);
            let kept = extent.on_disk as f64 * (1.0 - least);
            let is_sparse = valid < extent.len / LEAST_VALID_PART;
            valid > 0 && (valid as f64 <= kept || is_sparse || for_space.contains(&extent.id))
        };
        let sealed = extents.into_iter().filter(|e| e.sealed);
        sealed.filter(is_victim).map(|e| e.id).collect()
    }

    /// Returns the extents whose collection brings the space of the streams back below
    /// [`crate::TreeOptions::max_space_amp`], those with the largest fraction of garbage. Only
    /// sealed extents with a valid page count: what is being written cannot be collected yet, and
    /// extents without a valid page are erased once no snapshot needs them.
    fn extents_to_collect_for_space(&self) -> BTreeSet<ExtentId> {
        let extents = [StreamKind::Base, StreamKind::Delta].map(|kind| self.stream(kind).extents());
        let usage = self.usage.lock();
        let valid = |id: ExtentId| usage.get(id).map_or(0, |usage| usage.valid);
        let sealed = extents.iter().flatten().filter(|extent| extent.sealed);
        let (mut all, mut used) = (0, 0);
        // Garbage in bytes, and bytes on the device.
        let mut with_garbage: Vec<(u64, u64, ExtentId)> = Vec::new();
        for extent in sealed.filter(|extent| valid(extent.id) > 0) {
            let garbage = extent.on_disk.saturating_sub(valid(extent.id));
            if garbage > 0 {
                with_garbage.push((garbage, extent.on_disk, extent.id));
            }
            (all, used) = (all + extent.on_disk, used + valid(extent.id));
        }
        let most = (used as f64 * self.options.max_space_amp) as u64;
        let by_fraction = |(garbage, len, _): &(u64, u64, ExtentId)| *garbage as f64 / *len as f64;
        with_garbage.sort_by(|a, b| by_fraction(b).total_cmp(&by_fraction(a)));
        let mut chosen = BTreeSet::new();
        for (garbage, _, id) in with_garbage {
            if all <= most {
                break;
            }
            chosen.insert(id);
            all = all.saturating_sub(garbage);
        }
        chosen
    }

    /// Writes the live pages of extents again, as long as `goes_on` returns true. If the ranges of
    /// some were dropped, derives them.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was written before stays so.
    /// Damage is returned when the other extents are done, also if an earlier call found it.
    pub fn relocate_bases(
        &self,
        victims: &BTreeSet<ExtentId>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let (mut damaged, mut failed) = self.underived_among(victims);
        let mut waiting: BTreeSet<ExtentId> = victims.difference(&damaged).copied().collect();
        let mut erasures = ErasuresBetween::new(self);
        loop {
            for extent in waiting.clone() {
                erasures.erase();
                if !goes_on() {
                    return failed.map_or(Ok(()), Err);
                }
                match self.relocate_extent(extent) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    // A page that cannot be read keeps only its own extent from the collection.
                    Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                    Err(e) => return Err(e),
                }
                waiting.remove(&extent);
            }
            if waiting.is_empty() {
                break;
            }
            let derived = self.derive_ranges(&damaged, goes_on)?;
            failed = failed.or(derived.failed);
            if derived.known.is_empty() && derived.damaged.is_empty() {
                break;
            }
            waiting.retain(|extent| !derived.damaged.contains(extent));
            damaged.extend(derived.damaged);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes the live pages of an extent again. Returns false if its ranges are not known.
    fn relocate_extent(&self, extent: ExtentId) -> Result<bool> {
        let _maintenance = self.maintenance.exclusive();
        let ranges = match self.usage.lock().get(extent) {
            Some(usage) => usage.ranges.clone(),
            None => return Ok(true),
        };
        let Some(ranges) = ranges else {
            return Ok(false);
        };
        let mut merges = LeafMerges::new(self, self.view(), PageWriteCause::Collection);
        let mut failed = None;
        for (begin, end) in ranges.iter() {
            let mut at = begin;
            let mut window = (begin, Bytes::new());
            while at < end {
                let (id, page) = match self.page_at(extent, at, end, &mut window) {
                    // It is not known where the next page begins. What was moved so far is
                    // committed, so that the next try does not write it again.
                    Err(e) if e.kind() == ErrorKind::Corruption => {
                        failed = failed.or(Some(e));
                        break;
                    }
                    found => found?,
                };
                at += id.len;
                let (key, pages) = self.named_base(id, &page)?;
                merges.add(key, pages, Merge::Move(page))?;
            }
        }
        let (_, damage) = merges.commit()?;
        failed.or(damage).map_or(Ok(true), Err)
    }

    /// Returns the base page at `offset`. `window` has bytes of the extent, and the offset of the
    /// first one. If the page is not in the window, reads a new window from `offset` on.
    fn page_at(
        &self,
        extent: ExtentId,
        offset: u32,
        end: u32,
        window: &mut (u32, Bytes),
    ) -> Result<(PageId, Page)> {
        let at = PageId {
            extent,
            offset,
            len: end - offset,
        };
        let has = |window: &(u32, Bytes), len: usize| {
            let begin = offset.checked_sub(window.0);
            begin.is_some_and(|begin| begin as usize + len <= window.1.len())
        };
        let read = |least: usize| {
            let len = (at.len as usize).min(WINDOW.max(least));
            Ok::<_, Error>((offset, self.base.read(at.address(), len)?))
        };
        if !has(window, PAGE_HEADER) {
            *window = read(PAGE_HEADER)?;
        }
        let begin = (offset - window.0) as usize;
        let len = stored_len(&window.1[begin..])
            .filter(|len| *len <= end - offset)
            .ok_or_else(|| self.bad_page(StreamKind::Base, at, "the page has no length"))?;
        if !has(window, len as usize) {
            *window = read(len as usize)?;
        }
        let begin = (offset - window.0) as usize;
        let id = PageId { len, ..at };
        let bytes = window.1.slice(begin..begin + len as usize);
        Ok((id, self.open_page(StreamKind::Base, id, &bytes)?))
    }

    /// Returns the key that stands for a base page in index pages, and all pages of the key.
    fn named_base(&self, id: PageId, page: &Page) -> Result<(PageId, Pages)> {
        let view = self.view();
        // The page is named by the id in its header, or by its own once its parent was written
        // again. Then the table no longer has it under the other one.
        let mut keys = [page.mapping, Some(id)].into_iter().flatten();
        let found = keys.find_map(|key| match self.mapping.get(key, view.time) {
            State::Live(pages) if pages.base == id => Some((key, pages)),
            _ => None,
        });
        found.ok_or_else(|| self.bad_page(StreamKind::Base, id, "no index page names this page"))
    }

    /// Merges the pages of the leaves that readers have paid for, as long as `goes_on` returns
    /// true. No index page is written for it, unless a leaf has too much for one page.
    pub fn merge_paid(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let mut failed = None;
        let mut erasures = ErasuresBetween::new(self);
        while goes_on() {
            erasures.erase();
            let leaves = self.paid.take(MERGED_AT_ONCE);
            if leaves.is_empty() {
                break;
            }
            failed = failed.or(self.merge_or_skip(&leaves, goes_on)?);
            self.written.count_merges(leaves.len(), 0);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Merges the pages of cold leaves as far as the budget goes, those with most delta pages
    /// first, as long as `goes_on` returns true.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was merged before stays so. Damage
    /// of a leaf is returned when the others are done.
    pub fn merge_cold(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let Some((mut budget, since)) = self.cold.budget() else {
            return Ok(());
        };
        if budget < LEAST_LEAVES * self.options.page_bytes as u64 {
            return Ok(());
        }
        let mut cold = self.mapping.fragmented_before(since).into_iter().peekable();
        let mut failed = None;
        let mut erasures = ErasuresBetween::new(self);
        while cold.peek().is_some() && goes_on() {
            erasures.erase();
            let mut leaves: Vec<PageId> = Vec::new();
            let mut bytes = 0;
            while leaves.len() < MERGED_AT_ONCE
                && let Some((leaf, cost)) = cold.next_if(|(_, cost)| bytes + cost <= budget)
            {
                leaves.push(leaf);
                bytes += cost;
            }
            if leaves.is_empty() {
                break;
            }
            failed = failed.or(self.merge_or_skip(&leaves, goes_on)?);
            self.cold.spend(bytes);
            budget -= bytes;
            self.written.count_merges(0, leaves.len());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Merges the pages of leaves. One that cannot be read keeps no other one from its merge:
    /// returns the error of the first such leaf.
    pub fn merge_or_skip(
        &self,
        leaves: &[PageId],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Error>> {
        let maintenance = self.maintenance.exclusive();
        let view = self.view();
        let mut merges = LeafMerges::new(self, view.clone(), PageWriteCause::Compaction);
        for key in leaves {
            match self.mapping.get(*key, view.time) {
                // The leaves below it take its changes.
                State::Live(pages) if pages.has_index_deltas => merges.to_split.push(*key),
                State::Live(pages) if !pages.deltas.is_empty() => {
                    merges.add(*key, pages, Merge::Leaf)?;
                }
                // Another job has merged the leaf meanwhile.
                _ => {}
            }
        }
        let (to_split, damage) = merges.commit()?;
        drop((view, maintenance));
        let damage_of_split = self.split(&to_split, goes_on)?;
        Ok(damage.or(damage_of_split))
    }

    /// Writes leaves again with all of their delta pages, as long as `goes_on` returns true.
    /// Returns the damage of the first one that cannot be read.
    fn split(&self, leaves: &[PageId], goes_on: &dyn Fn() -> bool) -> Result<Option<Error>> {
        let mut failed = None;
        for key in leaves {
            if !goes_on() {
                break;
            }
            match self.rewrite_around(*key) {
                Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                rewritten => drop(rewritten?),
            }
        }
        Ok(failed)
    }

    /// Writes the delta pages of all chains again that have one in a victim, as long as `goes_on`
    /// returns true.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was written before stays so.
    /// Damage is returned when the other chains are done.
    pub fn relocate_deltas(
        &self,
        victims: &BTreeSet<ExtentId>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut chains: Vec<PageId> = Vec::new();
        let is_victim =
            |pages: &Pages| (pages.deltas.iter()).any(|delta| victims.contains(&delta.id.extent));
        self.mapping.for_each(|key, state| {
            if let State::Live(pages) = state
                && is_victim(pages)
            {
                chains.push(key);
            }
        });
        // Pages of neighbours lie behind one another.
        chains.sort_unstable();
        let mut failed = None;
        let mut erasures = ErasuresBetween::new(self);
        for some in chains.chunks(MOVED_AT_ONCE) {
            erasures.erase();
            if !goes_on() {
                break;
            }
            let maintenance = self.maintenance.exclusive();
            let view = self.view();
            let mut merges = LeafMerges::new(self, view.clone(), PageWriteCause::Collection);
            for key in some {
                let State::Live(pages) = self.mapping.get(*key, view.time) else {
                    continue;
                };
                // Another job may have written the chain again meanwhile.
                if !is_victim(&pages) {
                    continue;
                }
                let merge = match pages.has_index_deltas || self.is_partial(&pages) {
                    true => Merge::Consolidate,
                    false => Merge::Leaf,
                };
                merges.add(*key, pages, merge)?;
            }
            let (to_split, damage) = merges.commit()?;
            drop((view, maintenance));
            let damage_of_split = self.split(&to_split, goes_on)?;
            failed = failed.or(damage).or(damage_of_split);
        }
        failed.map_or(Ok(()), Err)
    }
}
