//! The bound on the space of blob files. This module computes how much of the space is garbage, how
//! urgent garbage collections are, and how much writers are slowed as the last resort (decision
//! 0021).
//!
//! The bound applies to blob files, to the output of running garbage collections, and to what
//! memtables are about to add. Their sum stays under [`crate::Options::max_space_amp`] times the
//! reachable bytes, or under the reachable bytes plus [`Options::space_slack`], whichever is more.
//! The difference to the reachable bytes is the *room* for garbage. Exposed garbage (marked) is
//! collected. Hidden garbage (estimated, [`HiddenGarbageModel`]) is exposed by compactions.

use super::BackPressure;
use crate::compaction::HiddenGarbageModel;
use crate::db::blob_state::BlobState;
use crate::db::space_bound::room_of;
use crate::db::stats::BlobStats;
use crate::db::view::View;
use crate::options::Options;
#[cfg(debug_assertions)]
use crate::version::catalog::BlobTotals;
use crate::version::catalog::{Catalog, FamilyBlobs, disk_bytes};
use crate::version::{FamilyVersion, Version};
use basalt_blob::FamilyShare;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Part of the room for garbage above which writers are slowed.
const SLOWDOWN_THRESHOLD: f64 = 0.84;
/// Part of the room above which merges that expose garbage run whatever they rewrite. Writers are
/// never slowed for garbage that no merge is due for.
const FORCED_MERGE_THRESHOLD: f64 = 0.8;
/// Part of the room at which writers are slowed the most. The rest is for changes that cannot be
/// foreseen, such as one memtable more or less.
const FULL_PRESSURE_THRESHOLD: f64 = 0.95;
/// The highest pressure of the bound. Writers then get a small part of the rate at which space
/// comes back, and are never stopped.
const MAX_PRESSURE: f64 = 0.97;
/// Part of the room for garbage above which garbage collections give way to the I/O of users only.
pub(crate) const URGENT: f64 = 0.9;
/// Part of the room that hidden garbage may take before key compactions are made for it.
const HIDDEN_SHARE: f64 = 0.1;
/// The window over which bytes written by garbage collections and by everything else are
/// remembered, and the length of its steps.
const WINDOW: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(2);

impl Options {
    /// Returns the bytes by which blob files may always exceed the reachable bytes, however few
    /// these are: twice what memtables may hold, by default 512 MiB. So stores smaller than this
    /// divided by `max_space_amp - 1` are not slowed for space.
    pub fn space_slack(&self) -> u64 {
        let memtables = self.max_sealed_memtables as u64 + 1;
        self.write_buffer_bytes.saturating_mul(2 * memtables)
    }
}

/// The composition of the space of blob files at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlobSpaceUse {
    /// Bytes of the blob files.
    pub disk: u64,
    /// Records that are not marked as garbage.
    pub live: FamilyShare,
    /// Bytes of `live` that are probably overwritten.
    pub hidden: u64,
    /// True if a family has entries that may hide others, and no merge has measured how many do.
    /// Then all of them are assumed to.
    pub guessed: bool,
    /// Bytes marked as garbage, or of dropped families, in files that may be collected.
    pub marked: u64,
    /// Bytes of garbage in files that no garbage collection takes yet.
    pub idle: u64,
    /// Bytes that running garbage collections write at most.
    pub copying: u64,
    /// Bytes that memtables will add.
    pub coming: u64,
    /// Bytes of older values that the contents of memtables will hide.
    pub will_hide: u64,
    /// Models of hidden garbage by family.
    pub hidden_garbage: BTreeMap<u32, HiddenGarbageModel>,
}

impl BlobSpaceUse {
    /// Returns the bytes that some reader can reach.
    pub fn reachable(&self) -> u64 {
        self.live.bytes.saturating_sub(self.hidden)
    }

    pub fn garbage(&self) -> u64 {
        self.disk.saturating_sub(self.live.bytes)
    }

    /// Returns the part of the room that `exposed` bytes of garbage take together with hidden
    /// garbage. Hidden garbage counts for at most half of the room, because garbage collections
    /// cannot reduce it.
    fn part(&self, exposed: u64, amp: f64) -> f64 {
        let room = (amp - 1.0) * self.reachable() as f64;
        let used = exposed as f64 + (self.hidden as f64).min(room / 2.0);
        match used {
            0.0 => 0.0,
            used => used / room,
        }
    }

    /// Returns how urgent another garbage collection is: the part of the room that is taken by
    /// garbage that no running garbage collection takes. 1 is the bound.
    pub fn urgency(&self, amp: f64) -> f64 {
        self.part(self.idle, amp)
    }

    /// Returns [`BlobSpaceUse::urgency`] with the garbage that is being collected. If writers are
    /// slowed, the value is at least `URGENT`: they are slowed for copies and for data on its way,
    /// too, so no thread may rest. The exception is garbage that is mostly hidden, which merges
    /// reduce and garbage collections do not.
    pub fn gc_pressure(&self, amp: f64, writers_are_slowed: bool) -> f64 {
        let part = self.part(self.garbage(), amp);
        match writers_are_slowed && self.marked > self.hidden {
            true => part.max(URGENT),
            false => part,
        }
    }

    /// Returns the part of the room that all garbage takes, including data on its way.
    fn part_of_room(&self, options: &Options) -> f64 {
        let reachable = (self.reachable() + self.coming - self.will_hide) as f64;
        let all = (self.disk + self.copying + self.coming) as f64;
        (all - reachable).min(self.can_go() as f64) / room(options, reachable)
    }

    /// Returns the bytes that a garbage collection or a compaction can give back, or is giving
    /// back. Writers need not wait for any other bytes.
    fn can_go(&self) -> u64 {
        self.marked + self.hidden + self.copying + self.will_hide
    }

    /// Returns the bytes that may still be added before the bound is reached.
    pub fn left(&self, options: &Options) -> u64 {
        let bound = self.reachable() + room(options, self.reachable() as f64) as u64;
        bound.saturating_sub(self.disk + self.copying + self.coming)
    }

    /// Returns the bytes that one merge that moves values may write. Its output and the values that
    /// the output replaces exist together for a while.
    pub fn max_relocation_output(&self, options: &Options) -> u64 {
        let least = room(options, self.reachable() as f64) as u64 / 32;
        (self.left(options) / 2).max(least)
    }

    /// Returns the bytes that one garbage collection may write. Several garbage collections run at
    /// once near the bound, and their copies take room from garbage, so files would have to be
    /// collected sooner. The limit is not too small, or files would become smaller and smaller.
    pub fn max_gc_output(&self, options: &Options) -> u64 {
        let least = room(options, self.reachable() as f64) as u64 / 64;
        (self.left(options) / 4).max(least)
    }

    /// Returns the bytes by which the bound is exceeded.
    pub fn debt(&self, options: &Options) -> u64 {
        let reachable = self.reachable();
        let room = room(options, reachable as f64);
        (self.disk + self.copying).saturating_sub(reachable + room as u64)
    }
}

/// Returns the bytes that may exist beside the reachable ones.
fn room(options: &Options, reachable: f64) -> f64 {
    room_of(options.max_space_amp, options.space_slack(), reachable)
}

/// Returns the least share of garbage, from 0 to 1, of a file that may be collected at this
/// urgency. While there is room, garbage collections wait for files that are nearly empty. At the
/// bound every file is taken whose garbage is worth it: if all files were below the last share, the
/// bound would be kept.
pub(crate) fn least_share(urgency: f64, amp: f64) -> f64 {
    let floor = (1.0 - 1.0 / amp) / 3.0;
    match urgency {
        u if u < 0.5 => 1.0,
        u if u < 0.8 => 1.0 - (u - 0.5) / 0.3 * 0.5,
        _ => floor,
    }
}

/// Returns how many garbage collections of at most `most` may run at this pressure.
pub(crate) fn allowed_gcs(pressure: f64, most: usize) -> usize {
    match pressure {
        p if p < 0.85 => 1,
        p if p < URGENT => 2.min(most),
        _ => most,
    }
}

/// Bytes written up to one moment, in total and by garbage collections.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    at: Duration,
    all: u64,
    by_gc: u64,
    read_by_gc: u64,
    added: u64,
}

#[derive(Default)]
struct Inner {
    /// Reachable bytes as the bound counts them for writers. They follow the bytes that garbage
    /// collections free with a delay, see [`BackPressure::update_pressure`].
    eased_reachable: f64,
    /// Bytes of blob files when they were last compared with the bound.
    disk: u64,
    window: VecDeque<Written>,
    /// The share of references that hid an older one when merges moved them down, by family.
    hits: HashMap<u32, f64>,
}

/// The state of the bound on the space of blob files.
#[derive(Default)]
pub(crate) struct SpaceAmp {
    /// Pressure on writers, from 0 to 1, as the bits of an `f64`.
    pressure: AtomicU64,
    inner: Mutex<Inner>,
    /// The last estimate of each family's hidden garbage.
    hidden: Mutex<BTreeMap<u32, HiddenGarbage>>,
}

/// An estimate of a family's hidden garbage, and the inputs of the estimate.
struct HiddenGarbage {
    /// The tables of the family. The reference is weak, because a strong one would keep the files
    /// of obsolete tables.
    version: Weak<FamilyVersion>,
    hidden_garbage: HiddenGarbageModel,
    /// Bytes of hidden garbage.
    bytes: u64,
}

impl SpaceAmp {
    /// Returns the bytes of hidden garbage of a family. `hits` is the part of its references that
    /// hide an older one. An estimate is kept until the tables or the sums over blob files change.
    fn hidden(
        &self,
        family: u32,
        own: &FamilyBlobs,
        hits: f64,
        version: &Arc<FamilyVersion>,
    ) -> u64 {
        let hidden_garbage = hidden_garbage_of(own, hits);
        if let Some(last) = self.hidden.lock().get(&family)
            && last.version.as_ptr() == Arc::as_ptr(version)
            && last.hidden_garbage == hidden_garbage
        {
            return last.bytes;
        }
        #[cfg(test)]
        crate::version::catalog::probe::note("hidden garbage is estimated");
        let bytes = hidden_garbage.hidden(version);
        let version = Arc::downgrade(version);
        let last = HiddenGarbage {
            version,
            hidden_garbage,
            bytes,
        };
        self.hidden.lock().insert(family, last);
        bytes
    }

    /// Forgets the estimates of families that do not exist.
    fn retain_families(&self, exists: impl Fn(u32) -> bool) {
        self.hidden.lock().retain(|id, _| exists(*id));
    }

    /// Returns the pressure of the bound on writers: 0 is no pressure, and the value is below 1.
    pub fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Relaxed))
    }

    /// Notes that a merge of a family's upper tables has met `references` references, and `hidden`
    /// older versions below them.
    pub fn note_hits(&self, family: u32, references: u64, hidden: u64) {
        if references > 0 {
            let seen = (hidden as f64 / references as f64).min(1.0);
            let mut inner = self.inner.lock();
            inner
                .hits
                .entry(family)
                .and_modify(|h| *h = (*h + seen) / 2.0)
                .or_insert(seen);
        }
    }

    /// Returns the share of references that hide an older one, once a merge has measured it.
    fn hits(&self, family: u32) -> Option<f64> {
        self.inner.lock().hits.get(&family).copied()
    }
}

/// The assumed part of references that hide an older one, until a merge has measured it: all of
/// them. A merge that is due too early measures it.
const DEFAULT_HIT_SHARE: f64 = 1.0;

/// Returns the sums over the blob files of a family, or `None` if the family does not exist or has
/// no records.
fn live_of(catalog: &Catalog, family: u32) -> Option<&FamilyBlobs> {
    let exists = catalog.families.contains_key(&family);
    let own = catalog.blobs.totals().families.get(&family);
    own.filter(|_| exists)
}

/// Estimates the bytes that entries of a family hide. `hits` is the part of its references that
/// hide an older one.
fn hidden_garbage_of(own: &FamilyBlobs, hits: f64) -> HiddenGarbageModel {
    let mean = own.live.bytes as f64 / own.live.records as f64;
    HiddenGarbageModel {
        mean_record_bytes: mean,
        max_record_bytes: own.longest_mean(),
        hidden_per_reference: mean * hits,
        most: own.live.bytes as f64,
        ..HiddenGarbageModel::default()
    }
}

/// Returns the space that blob files take, without hidden garbage. The cost grows with the number
/// of files that garbage collections have taken, not with all files.
fn blob_files(catalog: &Catalog, blobs: &BlobState, now: Duration) -> BlobSpaceUse {
    let totals = catalog.blobs.totals();
    let mut fill = BlobSpaceUse {
        disk: totals.disk,
        ..BlobSpaceUse::default()
    };
    for own in totals
        .families
        .keys()
        .filter_map(|id| live_of(catalog, *id))
    {
        fill.live.records += own.live.records;
        fill.live.bytes += own.live.bytes;
    }
    let mut disk = 0;
    let taken = blobs.collecting.union(&blobs.relocating);
    for blob in taken.filter_map(|number| catalog.blobs.get(number)) {
        disk += disk_bytes(blob);
        fill.copying += catalog.alive(blob).bytes;
    }
    fill.idle = (totals.disk - disk).saturating_sub(fill.live.bytes - fill.copying);
    fill.marked = totals.records - fill.live.bytes;
    for blob in (blobs.postponed(now)).filter_map(|number| catalog.blobs.get(&number)) {
        let all: u64 = blob.meta.families.values().map(|share| share.bytes).sum();
        fill.marked -= all - catalog.alive(blob).bytes;
    }
    #[cfg(debug_assertions)]
    check_sums(catalog, blobs, now, &fill);
    fill
}

/// Compares the sums that the catalog maintains with a walk over all blob files.
#[cfg(debug_assertions)]
fn check_sums(catalog: &Catalog, blobs: &BlobState, now: Duration, fill: &BlobSpaceUse) {
    #[cfg(test)]
    let walked = crate::version::file_map::WALKED.get();
    assert_eq!(
        *catalog.blobs.totals(),
        BlobTotals::of(catalog.blobs.values()),
        "the sums over blob files are those of the files"
    );
    let (mut marked, mut idle, mut copying) = (0, 0, 0);
    for (number, blob) in &catalog.blobs {
        let all: u64 = blob.meta.families.values().map(|share| share.bytes).sum();
        let alive = catalog.alive(blob).bytes;
        let taken = blobs.collecting.contains(number) || blobs.relocating.contains(number);
        if taken || blobs.may_collect(*number, now) {
            marked += all - alive;
        }
        match taken {
            true => copying += alive,
            false => idle += disk_bytes(blob).saturating_sub(alive),
        }
    }
    assert_eq!(
        (marked, idle, copying),
        (fill.marked, fill.idle, fill.copying),
        "garbage of blob files is what a walk over them finds"
    );
    #[cfg(test)]
    crate::version::file_map::WALKED.set(walked);
}

impl BackPressure {
    /// Estimates the hidden garbage of a tree that is about to be installed. The cost is a walk
    /// over the tables of a family if any of them hides a value. So an install calls it before it
    /// takes `state`. Later, [`BackPressure::fill`] finds the estimates.
    pub fn estimate_hidden(&self, catalog: &Catalog, version: &Version) {
        self.space_amp
            .retain_families(|id| catalog.families.contains_key(&id));
        for (id, version) in &version.families {
            if let Some(own) = live_of(catalog, *id).filter(|own| own.live.records > 0) {
                let hits = self.space_amp.hits(*id).unwrap_or(DEFAULT_HIT_SHARE);
                self.space_amp.hidden(*id, own, hits, version);
            }
        }
    }

    /// Returns the space that blob files take. Catalog, blob state and view are those of one
    /// moment.
    pub fn fill(&self, catalog: &Catalog, blobs: &BlobState, view: &View) -> BlobSpaceUse {
        let mut fill = blob_files(catalog, blobs, self.ctx.env.clock().now());
        let amp = self.ctx.options.max_space_amp;
        let room = (fill.live.bytes as f64 * (amp - 1.0) * HIDDEN_SHARE)
            .max(self.ctx.options.write_buffer_bytes as f64);
        let full = self.room_for_merges(view);
        for (id, family) in view.families.iter() {
            let own = live_of(catalog, *id);
            let share = own.map_or_else(FamilyShare::default, |own| own.live);
            let learned = self.space_amp.hits(*id);
            let hits = learned.unwrap_or(DEFAULT_HIT_SHARE);
            if family.options.min_blob_size.is_some() {
                let memtable_sets = std::iter::once(&view.active).chain(&view.sealed);
                let memory: usize = memtable_sets
                    .filter_map(|g| g.mems.get(id))
                    .map(|m| m.memory())
                    .sum();
                fill.coming += memory as u64;
                fill.will_hide += ((memory as f64 * hits) as u64).min(share.bytes);
            }
            let Some(own) = own.filter(|own| own.live.records > 0) else {
                if full.is_some() {
                    fill.hidden_garbage.entry(*id).or_default().full = full;
                }
                continue;
            };
            let hidden_garbage = HiddenGarbageModel {
                room,
                full,
                ..hidden_garbage_of(own, hits)
            };
            if let Some(version) = view.version.families.get(id) {
                let hidden = self.space_amp.hidden(*id, own, hits, version);
                fill.hidden += hidden;
                fill.guessed |= hidden > 0 && learned.is_none();
            }
            fill.hidden_garbage.insert(*id, hidden_garbage);
        }
        fill.hidden = fill.hidden.min(fill.live.bytes);
        let pressed = fill.part_of_room(&self.ctx.options) >= FORCED_MERGE_THRESHOLD;
        (fill.hidden_garbage.values_mut())
            .for_each(|hidden_garbage| hidden_garbage.bound_is_near = pressed);
        fill
    }

    /// Compares blob files with the bound again. Called after each change of blob files; the caller
    /// holds `state`.
    ///
    /// Writers are not held for space that a bulk delete, an expiry or a snapshot's end has turned
    /// to garbage. For writers the reachable bytes stay what they were, and from then on fall by
    /// half of what garbage collections free. So at least half of what is freed stays free, and
    /// [`BlobSpaceUse::debt`] ends.
    pub fn update_pressure(&self, catalog: &Catalog, blobs: &BlobState, view: &View) {
        if catalog.blobs.is_empty() {
            self.space_amp.pressure.store(0f64.to_bits(), Relaxed);
            return;
        }
        let fill = self.fill(catalog, blobs, view);
        let amp = self.ctx.options.max_space_amp;
        let reachable = fill.reachable() as f64 + (fill.coming - fill.will_hide) as f64;
        let mut inner = self.space_amp.inner.lock();
        let freed = inner.disk.saturating_sub(fill.disk) as f64;
        inner.disk = fill.disk;
        inner.eased_reachable = (inner.eased_reachable - freed / (2.0 * amp)).max(reachable);
        let all = (fill.disk + fill.copying + fill.coming) as f64;
        let beside = all - inner.eased_reachable;
        let part =
            beside.min(fill.can_go() as f64) / room(&self.ctx.options, inner.eased_reachable);
        let pressure = ((part - SLOWDOWN_THRESHOLD)
            / (FULL_PRESSURE_THRESHOLD - SLOWDOWN_THRESHOLD))
            .clamp(0.0, MAX_PRESSURE);
        self.space_amp.pressure.store(pressure.to_bits(), Relaxed);
        self.note_written(&mut inner);
    }

    fn written(&self) -> Written {
        let c = &self.ctx.counters;
        let by_gc = c.gc_written.get();
        Written {
            at: self.ctx.env.clock().now(),
            all: c.wal_bytes.get()
                + c.flush_bytes.get()
                + c.ingested_bytes.get()
                + c.compaction_written.get()
                + by_gc,
            by_gc,
            read_by_gc: c.gc_read.get(),
            added: c.blob_bytes_added.get(),
        }
    }

    fn note_written(&self, inner: &mut Inner) {
        let now = self.written();
        let last = inner.window.back().map(|w| w.at);
        if last.is_none_or(|at| now.at.saturating_sub(at) >= STEP) {
            inner.window.push_back(now);
        }
        while inner.window.len() > 1 && now.at.saturating_sub(inner.window[1].at) >= WINDOW {
            inner.window.pop_front();
        }
    }

    /// Returns the space of blob files, the reachable part of it, and the cost of keeping the
    /// bound.
    pub fn blob_stats(&self, catalog: &Catalog, blobs: &BlobState, view: &View) -> BlobStats {
        let c = &self.ctx.counters;
        let fill = self.fill(catalog, blobs, view);
        let now = self.written();
        let since = {
            let inner = self.space_amp.inner.lock();
            // A store at rest adds no entries, so entries older than the window are skipped here.
            let old = |w: &&Written| now.at.saturating_sub(w.at) >= WINDOW;
            let last_old = inner.window.iter().rev().find(old);
            let since = last_old.or(inner.window.front());
            since.copied().unwrap_or_default()
        };
        let mut all = BlobStats {
            hidden_bytes: fill.hidden,
            hidden_is_guessed: fill.guessed,
            space_debt: fill.debt(&self.ctx.options),
            space_slack: self.ctx.options.space_slack(),
            pressure: self.space_amp.pressure(),
            names: catalog.lineage.names().len() as u64,
            names_made: c.names_made.get(),
            names_forgotten: c.names_forgotten.get(),
            collections: c.gcs.get(),
            collecting: blobs.running_gcs as u64,
            collected_bytes_read: c.gc_read.get(),
            collected_bytes_written: c.gc_written.get(),
            relocated_bytes: c.relocated.get(),
            recent_seconds: now.at.saturating_sub(since.at).as_secs_f64(),
            recent_bytes_written: now.all - since.all,
            recent_bytes_added: now.added - since.added,
            recent_collection_bytes_written: now.by_gc - since.by_gc,
            recent_collection_bytes_read: now.read_by_gc - since.read_by_gc,
            max_space_amp: self.ctx.options.max_space_amp,
            error: blobs.failure().map(|e| e.to_string()),
            ..BlobStats::default()
        };
        for blob in catalog.blobs.values() {
            let bytes = blob.meta.size + blob.meta.index.map_or(0, |i| i.size);
            all.add_file(bytes, catalog.alive(blob), blob.made_ms);
        }
        all
    }
}

#[cfg(test)]
mod tests;
