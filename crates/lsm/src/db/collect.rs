//! Collections: what is alive of some blob files moves into new ones, and the space of the rest comes back. No table is touched: the old numbers
//! become names for the new files (LavaStore 3.2.1, decision 0020).
//!
//! A collection asks nobody what is alive: it is what is not marked. Each record is verified before it is copied, and the hashes of what was
//! copied and of what is marked must add up to the sum that the file was written with, or nothing of the collection counts.

use super::blob_events::Gathered;
use super::engine::{Engine, RETRY_PAUSE, State};
use super::separated::{BlobChange, Collection, Moved, NewPlace};
use super::stats::BlobStats;
use crate::blob::garbage::Garbage;
use crate::blob::lineage::Collected;
use crate::blob::{Name, Separator};
use crate::key::{Cmp, Kind, SeqNo};
use crate::listener::Event;
use crate::version::catalog::CatalogBlob;
use crate::version::edit::{AddBlob, Edit};
use crate::version::{BlobFile, BlobSet};
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::{CacheKey, IoPriority, JobPriority, MemoryKind};
use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Live bytes that a collection takes into memory, and sorts: its targets are in key order.
const LIVE_BYTES: u64 = 64 << 20;
/// Files that a collection takes at most.
const SOURCES: usize = 64;

/// A record on its way.
struct Live {
    family: u32,
    key: Bytes,
    seq: SeqNo,
    kind: Kind,
    value: Bytes,
    sum: u64,
    source: u64,
    ordinal: u32,
    /// Where it is in the cache, if it is there.
    cached: Option<CacheKey>,
}

/// What a collection works on.
struct Sources {
    files: Vec<(Arc<BlobFile>, Arc<Garbage>)>,
    orders: BTreeMap<u32, Cmp>,
}

impl Sources {
    /// Somebody reads them.
    fn index_is_cached(&self) -> bool {
        let mut files = self.files.iter();
        files.any(|(f, _)| f.reader().is_ok_and(|r| r.index_is_cached()))
    }
}

impl Engine {
    /// What blob files take, and what of it is alive.
    pub(super) fn blob_stats(&self, state: &State) -> BlobStats {
        let c = &self.counters;
        let mut all = BlobStats {
            names: state.catalog.lineage.names().len() as u64,
            collections: c.collections.get(),
            collected_bytes_read: c.collected_read.get(),
            collected_bytes_written: c.collected_written.get(),
            max_space_amp: self.options.max_space_amp,
            error: state.blobs.failure().map(|e| e.to_string()),
            ..BlobStats::default()
        };
        for blob in state.catalog.blobs.values() {
            let bytes = blob.meta.size + blob.meta.index.map_or(0, |i| i.size);
            all.add_file(bytes, state.catalog.alive(blob), blob.made_ms);
        }
        all
    }

    /// Whether blob files take more than they should.
    pub(super) fn collections_due(&self, state: &State) -> bool {
        // Where writers would be held is `max_space_amp`; collections begin before.
        let bound = self.options.max_space_amp;
        self.blob_stats(state).space_amp() > 1.0 + (bound - 1.0) * 0.6
    }

    /// Why what is due is not collected.
    pub(super) fn collections_fail(&self, state: &State) -> Option<Error> {
        let failure = state
            .blobs
            .failure()
            .filter(|_| self.collections_due(state));
        failure.cloned()
    }

    /// Files that had better be collected now, the one with the highest share of garbage first. Empty while blob files are within bounds.
    pub(super) fn pick_sources(&self, state: &State) -> Vec<u64> {
        if !self.collections_due(state) {
            return Vec::new();
        }
        let now = self.env.clock().now();
        let free = |n: &u64| state.blobs.may_collect(*n, now);
        let mut files: Vec<(f64, u64, u64)> = (state.catalog.blobs.iter())
            .filter(|(n, _)| free(n))
            .filter_map(|(n, b)| {
                let alive = state.catalog.alive(b).bytes;
                let dead = b.meta.size.saturating_sub(alive);
                let marked = b.meta.families.values().map(|f| f.bytes).sum::<u64>() - alive;
                (marked > 0).then(|| (dead as f64 / b.meta.size.max(1) as f64, *n, alive))
            })
            .collect();
        files.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let Some(first) = files.first() else {
            return Vec::new();
        };
        // Others go along while they have about as much to give.
        let least = first.0 / 2.0;
        let (mut picked, mut live) = (Vec::new(), 0);
        for (share, number, alive) in &files {
            if picked.len() == SOURCES
                || (!picked.is_empty() && (live + alive > LIVE_BYTES || *share < least))
            {
                break;
            }
            live += alive;
            picked.push(*number);
        }
        picked
    }

    /// Queues a collection if one is due and none runs.
    pub fn schedule_collections(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let now = self.env.clock().now();
        if self.closing.load(SeqCst)
            || state.exclusive
            || !state.blobs.collecting.is_empty()
            || state.halt.is_some()
            || now < state.blobs.retry_at
        {
            return;
        }
        let picked = self.pick_sources(&state);
        if picked.is_empty() {
            return;
        }
        state.blobs.collecting.extend(&picked);
        drop(state);
        let engine = self.clone();
        self.env.jobs().spawn(self.owner, JobPriority::Gc, move || {
            let done = engine.collect_aloud(&picked, &engine.closing);
            engine.end_collection(&picked, done.err());
        });
    }

    fn end_collection(self: &Arc<Self>, sources: &[u64], failed: Option<Error>) {
        let mut state = self.state.lock();
        for n in sources {
            state.blobs.collecting.remove(n);
        }
        match &failed {
            None => state.blobs.error = None,
            Some(e) if e.kind() == ErrorKind::Closed => {}
            Some(e) => {
                let now = self.env.clock().now();
                let is_of = |n: &u64| {
                    let blob = state.catalog.blobs.get(n);
                    let paths = blob.map(|b| self.tables.blob_paths(*n, &b.meta));
                    (paths.iter().flatten()).any(|path| e.path() == Some(path))
                };
                // The others had better not wait for one that cannot be read, and stays as it is.
                let bad = sources.iter().find(|n| is_of(n));
                match bad {
                    Some(n) => state.blobs.unreadable(*n, e.clone(), now),
                    None => {
                        state.blobs.error = Some(e.clone());
                        state.blobs.retry_at = now + RETRY_PAUSE;
                    }
                }
            }
        }
        drop(state);
        if let Some(error) = failed.filter(|e| e.kind() != ErrorKind::Closed) {
            self.retry_later();
            self.tell(|| Event::BackgroundError {
                during: "collection",
                error: error.clone(),
            });
        }
        self.schedule();
        self.env.jobs().notify();
    }

    /// Rewrites what is alive of some files, which the caller has noted as being collected.
    pub(super) fn collect(
        self: &Arc<Self>,
        numbers: &[u64],
        cancelled: &AtomicBool,
    ) -> Result<Gathered> {
        let sources = self.sources(numbers)?;
        let live_bytes: u64 = {
            let state = self.state.lock();
            let of = |n: &u64| {
                state
                    .catalog
                    .blobs
                    .get(n)
                    .map(|b| state.catalog.alive(b).bytes)
            };
            numbers.iter().filter_map(of).sum()
        };
        let _booked = self.env.ledger().reserve(MemoryKind::Buffer, live_bytes);
        let mut live = Vec::new();
        let mut read = 0;
        for (file, garbage) in &sources.files {
            read += self.read_live(file, garbage, &sources.orders, cancelled, &mut live)?;
        }
        live.sort_by(|a, b| {
            let keys = || sources.orders[&a.family].user(&a.key, &b.key);
            (a.family.cmp(&b.family))
                .then_with(keys)
                .then_with(|| b.seq.cmp(&a.seq))
        });
        let new_number = || self.new_file_number();
        let mut separator =
            Separator::new(&self.env, &self.tables, &new_number, IoPriority::Low, false);
        separator.warm_index(sources.index_is_cached());
        let mut renamed: Vec<(CacheKey, CacheKey)> = Vec::new();
        let mut done = Collected {
            sources: numbers.to_vec(),
            targets: BTreeMap::new(),
        };
        let mut moved = Moved::default();
        let mut last: Option<(u32, Bytes)> = None;
        for r in live {
            self.check_cancelled(cancelled)?;
            let same_key = last.as_ref().is_some_and(|(family, key)| {
                *family == r.family && sources.orders[family].user(key, &r.key) == Ordering::Equal
            });
            if !same_key {
                separator.begin_user_key()?;
            }
            let name = Name {
                family: r.family,
                key: &r.key,
                seq: r.seq,
            };
            separator.put_summed(&name, r.kind, &r.value, r.sum)?;
            let (file, ordinal, file_id) = separator.last();
            renamed.extend(r.cached.map(|from| (from, separator.last_cached())));
            let targets = done.targets.entry(r.family).or_default();
            if targets.last().is_none_or(|(_, t)| *t != file) {
                targets.push((Arc::from(&r.key[..]), file));
            }
            let place = NewPlace {
                file,
                ordinal,
                family: r.family,
                bytes: (crate::blob::record::HEADER_LEN + r.key.len() + r.value.len()) as u64,
                hash: name.hash(file_id),
            };
            (moved.places.entry(r.source).or_default()).push((r.ordinal, place));
            last = Some((r.family, r.key));
        }
        for places in moved.places.values_mut() {
            places.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        }
        let made = separator.finish()?;
        let files: Vec<PathBuf> = (made.iter().map(|(n, _)| self.tables.blob_path(*n))).collect();
        if !files.is_empty()
            && let Err(e) = self.env.fs().sync_metadata(&self.dir)
        {
            self.remove_files(&files);
            return Err(e);
        }
        let gathered = Gathered {
            targets: (made.iter())
                .map(|(number, meta)| self.blob_info(*number, meta, "collection"))
                .collect(),
            bytes_read: read,
            bytes_written: made.iter().map(|(_, m)| m.size).sum(),
        };
        let edit = Edit {
            add_blobs: (made.into_iter())
                .map(|(number, meta)| AddBlob {
                    number,
                    meta: Arc::new(meta),
                })
                .collect(),
            ..Edit::default()
        };
        let change = BlobChange {
            dead: Vec::new(),
            collected: Some(Collection {
                done,
                moved,
                marked: (sources.files.iter())
                    .map(|(f, g)| (f.number, g.clone()))
                    .collect(),
                orders: sources.orders,
            }),
        };
        let numbers: Vec<u64> = edit.add_blobs.iter().map(|b| b.number).collect();
        self.install_with(edit, files, change, |_, _| ())?;
        self.cache_moves(&renamed, &numbers);
        self.counters.collections.add(1);
        self.counters.collected_written.add(gathered.bytes_written);
        self.counters.collected_read.add(gathered.bytes_read);
        Ok(gathered)
    }

    fn check_cancelled(&self, cancelled: &AtomicBool) -> Result<()> {
        match cancelled.load(SeqCst) {
            false => Ok(()),
            true => Err(
                Error::new(ErrorKind::Closed, "the collection was cancelled")
                    .with_reach(Reach::Operation),
            ),
        }
    }

    /// Files and their marks as of one moment.
    fn sources(&self, numbers: &[u64]) -> Result<Sources> {
        // Marks and files of one version: both change under `state`.
        let state = self.state.lock();
        let view = self.view();
        let set: &BlobSet = &view.version.blobs;
        let one = |n: &u64| -> Option<(Arc<BlobFile>, Arc<Garbage>)> {
            let blob: &CatalogBlob = state.catalog.blobs.get(n)?;
            Some((set.files.get(n)?.clone(), blob.garbage.clone()))
        };
        let files: Option<Vec<_>> = numbers.iter().map(one).collect();
        let files = files.ok_or_else(|| {
            // It went with a family.
            Error::new(
                ErrorKind::Closed,
                "a blob file is gone that was to be collected",
            )
        })?;
        let orders = (view.families.values())
            .map(|f| (f.id, f.options.comparator.clone()))
            .collect();
        Ok(Sources { files, orders })
    }

    /// Reads what is alive of a file, and holds it and what is marked against what was written. How many bytes were read.
    fn read_live(
        &self,
        file: &BlobFile,
        garbage: &Garbage,
        orders: &BTreeMap<u32, Cmp>,
        cancelled: &AtomicBool,
        live: &mut Vec<Live>,
    ) -> Result<u64> {
        let reader = file.reader()?;
        let mut sum = garbage.hash_sum();
        let mut read = 0;
        reader.walk(
            &|ordinal| !garbage.has(ordinal),
            &mut |bytes| {
                self.check_cancelled(cancelled)?;
                read += bytes as u64;
                self.env.io_limit().acquire(bytes as u64, IoPriority::Low);
                Ok(())
            },
            &mut |ordinal, record| {
                sum = sum.wrapping_add(record.name().hash(file.meta.file_id));
                if orders.contains_key(&record.family) {
                    live.push(Live {
                        family: record.family,
                        key: record.key,
                        seq: record.seq,
                        kind: record.kind,
                        value: record.value,
                        sum: record.value_sum,
                        source: file.number,
                        ordinal,
                        cached: reader.cached_at(record.at),
                    });
                }
                Ok(())
            },
        )?;
        if sum != reader.hash_sum() {
            return Err(Error::corruption(
                &file.path(),
                0,
                format!(
                    "records that are alive and records that are marked add up to {sum:016x}, the file was written with {:016x}: \
                     a mark hit another record than was meant, and the file is not collected; run `basalt check`",
                    reader.hash_sum()
                ),
            ));
        }
        Ok(read)
    }
}
