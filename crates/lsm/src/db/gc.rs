//! Garbage collection: the live records of some blob files move into new files, and the space of
//! the rest is freed. No table changes: the old numbers become names for the new files (LavaStore
//! 3.2.1, decision 0020).
//!
//! Garbage collection picks the files with the highest share of garbage, old and young files apart.
//! Its start, the number of concurrent runs and their I/O priority follow the part of the space for
//! garbage that is used, see [`super::space_bound`]. While there is space, it waits for files that
//! are nearly empty.
//!
//! A garbage collection does not look up which records are live: a record is live if it is not
//! marked. Each record is verified before it is copied. The hashes of the copied and of the marked
//! records must add up to the sum that the file was written with. Otherwise the garbage collection
//! is not installed.

use super::back_pressure::space_amp::{URGENT, allowed_gcs, least_share};
use super::blob_state::{MovedRecords, NewRecordPlace};
use super::context::ended_early;
use super::engine::Engine;
use super::health::RETRY_PAUSE;
use super::tree::TreeState;
use super::tree::blob_edits::{BlobChange, GcChange};
use crate::listener::{BackgroundErrorReason, BlobFileInfo, BlobFileReason, Event, GcInfo};
use crate::options::Compression;
use crate::version::FileLocation;
use crate::version::catalog::CatalogBlob;
use crate::version::edit::{AddBlob, Edit};
use crate::version::{BlobFile, BlobSet};
use basalt_blob::garbage::Garbage;
use basalt_blob::lineage::{ReplacedFiles, Targets};
use basalt_blob::record::HEADER_LEN as RECORD_HEADER;
use basalt_blob::{BlobMeta, BlobReader, Form, Name, Separator};
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::{CacheKey, IoPriority, JobPriority, MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::key::{Cmp, SeqNo};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most live bytes that a garbage collection moves, unless one file has more.
const LIVE_BYTES: u64 = 64 << 20;
/// Most memory for live values of a garbage collection, in write buffers. Targets are in key order,
/// so values beyond this limit are read again when they are written.
const BUFFERS: u64 = 4;
/// Most files that a garbage collection takes.
const SOURCES: usize = 64;
/// A file joins a garbage collection if its share of garbage is at least this part of the first
/// file's share.
const MIN_RELATIVE_GARBAGE: f64 = 0.9;
/// Share of garbage from which a file is worth a garbage collection on a full disk.
const MIN_GARBAGE_ON_FULL_DISK: f64 = 0.02;

/// A live record that a garbage collection moves.
struct LiveRecord {
    family: u32,
    key: Bytes,
    seq: SeqNo,
    /// The stored form of the value, which stays the same: garbage collection decompresses no
    /// value.
    form: Form,
    /// The stored value, or `None` if the memory limit is reached.
    value: Option<Bytes>,
    source: u64,
    ordinal: u32,
    place: Range<u64>,
    /// The key of the value in the cache, if it is cached.
    cached: Option<CacheKey>,
}

/// The live records of the source files.
struct LiveRecords {
    /// By family, key, and descending sequence number.
    records: Vec<LiveRecord>,
    /// Bytes read from the source files.
    bytes_read: u64,
    /// Memory of the records.
    reservation: Reservation,
}

/// The blob files that a garbage collection reads, and the comparators of their families.
struct SourceFiles {
    files: Vec<(Arc<BlobFile>, Arc<Garbage>)>,
    orders: BTreeMap<u32, Cmp>,
}

impl SourceFiles {
    fn reader(&self, number: u64) -> Result<&BlobReader> {
        let mut files = self.files.iter().map(|(f, _)| f);
        let file = files.find(|f| f.number == number);
        file.expect("each live record came from one of the sources")
            .reader()
    }

    /// Returns whether the cache has the index of a source, which means that readers use the file.
    fn index_is_cached(&self) -> bool {
        let mut files = self.files.iter();
        files.any(|(f, _)| f.reader().is_ok_and(|r| r.index_is_cached()))
    }
}

/// The sources and the urgency of one garbage collection.
pub(super) struct GcPick {
    /// Numbers of the source files.
    pub files: Vec<u64>,
    /// Part of the space for garbage that is used. From [`URGENT`] on, the garbage collection has
    /// the I/O priority of a flush.
    pressure: f64,
}

impl GcPick {
    /// Returns the I/O priority of reads and writes.
    fn io_priority(&self) -> IoPriority {
        match self.pressure >= URGENT {
            true => IoPriority::High,
            false => IoPriority::Low,
        }
    }
}

/// A file that garbage collection may take.
struct Candidate {
    number: u64,
    /// Share of the file that is garbage, from 0 to 1.
    share: f64,
    /// Bytes of live records in the file.
    live_bytes: u64,
    /// Age class of the file, see [`age_class`].
    age: u32,
    /// Tables that refer to it.
    tables: u64,
}

/// Returns the age class of a file. Files of one class were last written to at about the same time;
/// the older the class, the less exact. A garbage collection takes files of one class. Records that
/// have lived long, and are likely to live on, are so not mixed with new records, which are likely
/// to die soon. Records keep their sequence numbers, so survivors grow old.
fn age_class(last: SeqNo, newest: SeqNo) -> u32 {
    (last.saturating_sub(newest) + 1).ilog2() / 2
}

/// The result of a garbage collection.
#[derive(Default)]
pub(super) struct GcResult {
    pub targets: Vec<BlobFileInfo>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Bytes by which the blob files shrank.
    pub freed: u64,
}

/// The new files of a garbage collection, and where each record moved to.
struct RewrittenFiles {
    /// Numbers and contents of the new files, which are synced. Their names are not.
    files: Vec<(u64, BlobMeta)>,
    /// The new files that the old numbers mean from now on.
    renamed: ReplacedFiles,
    places: MovedRecords,
    /// Old and new keys of values in the cache.
    cached: Vec<(CacheKey, CacheKey)>,
    /// Bytes that were read a second time, because memory did not suffice for all values.
    bytes_read: u64,
}

/// The step of a garbage collection that writes live records to new files. If the step is dropped
/// before [`RecordMover::finish`], its files are removed.
struct RecordMover<'a> {
    engine: &'a Engine,
    sources: &'a SourceFiles,
    io: IoPriority,
    separator: Separator<'a>,
    /// Family and key of the last record.
    last: Option<(u32, Bytes)>,
    /// For each family, the first key and the number of each new file.
    targets: BTreeMap<u32, Targets>,
    places: MovedRecords,
    /// Old and new keys of values in the cache.
    cached: Vec<(CacheKey, CacheKey)>,
    bytes_read: u64,
}

impl<'a> RecordMover<'a> {
    /// Begins the step. `compressed` says whether some value is compressed.
    fn new(
        engine: &'a Engine,
        sources: &'a SourceFiles,
        io: IoPriority,
        compressed: bool,
    ) -> RecordMover<'a> {
        let new_number = Box::new(|| engine.tree.new_file_number());
        let (env, tables) = (&engine.ctx.env, engine.ctx.tables.clone());
        let mut separator =
            Separator::new(env, tables, new_number, io, false).with_compressed(compressed);
        separator.warm_index(sources.index_is_cached());
        RecordMover {
            engine,
            sources,
            io,
            separator,
            last: None,
            targets: BTreeMap::new(),
            places: MovedRecords::default(),
            cached: Vec::new(),
            bytes_read: 0,
        }
    }

    /// Writes a record to the current new file. Records come by family, key, and descending
    /// sequence number.
    fn add(&mut self, r: LiveRecord) -> Result<()> {
        let order = |family: &u32| &self.sources.orders[family];
        let same_key = self.last.as_ref().is_some_and(|(family, key)| {
            *family == r.family && order(family).user(key, &r.key) == Ordering::Equal
        });
        if !same_key {
            self.separator.begin_user_key()?;
        }
        let name = Name {
            family: r.family,
            key: &r.key,
            seq: r.seq,
        };
        let value = match r.value {
            Some(value) => value,
            None => {
                let len = r.place.end - r.place.start;
                self.bytes_read += len;
                self.engine.ctx.env.io_limit().acquire(len, self.io);
                (self.sources.reader(r.source)?).stored_again(&name, &r.place)?
            }
        };
        self.separator.put_stored(&name, &r.form, &value)?;
        let (file, ordinal, file_id) = self.separator.last();
        let cached = r.cached.map(|from| (from, self.separator.last_cached()));
        self.cached.extend(cached);
        let targets = self.targets.entry(r.family).or_default();
        if targets.last().is_none_or(|(_, t)| *t != file) {
            targets.push((Arc::from(&r.key[..]), file));
        }
        let place = NewRecordPlace {
            file,
            ordinal,
            family: r.family,
            bytes: r.place.end - r.place.start,
            hash: name.hash(file_id),
        };
        (self.places.places.entry(r.source).or_default()).push((r.ordinal, place));
        self.last = Some((r.family, r.key));
        Ok(())
    }

    /// Finishes and syncs the last new file. `sources` are the numbers of the source files.
    fn finish(mut self, sources: &[u64]) -> Result<RewrittenFiles> {
        for places in self.places.places.values_mut() {
            places.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        }
        Ok(RewrittenFiles {
            files: self.separator.finish()?,
            renamed: ReplacedFiles {
                sources: sources.to_vec(),
                targets: self.targets,
            },
            places: self.places,
            cached: self.cached,
            bytes_read: self.bytes_read,
        })
    }
}

impl Engine {
    /// Returns the error that keeps a due garbage collection from running.
    pub(super) fn gc_failure(&self, state: &TreeState) -> Option<Error> {
        let amp = self.ctx.options.max_space_amp;
        let fill = || {
            self.pressure
                .fill(state.catalog(), &state.blobs, &self.tree.view())
        };
        let failure = state.blobs.failure();
        failure
            .filter(|_| fill().gc_pressure(amp, false) >= 0.6)
            .cloned()
    }

    /// Returns the files that are worth a garbage collection, the highest share of garbage first.
    /// Among files with about the same share, the file whose references are spread over fewer
    /// tables comes first, because its number is retired sooner.
    fn candidates(&self, state: &TreeState, least: f64) -> Vec<Candidate> {
        let now = self.ctx.env.clock().now();
        let (catalog, last) = (&state.catalog(), self.tree.visible());
        let spread = state.blobs.spread(catalog);
        let mut all: Vec<Candidate> = (catalog.blobs.iter())
            .filter(|(n, _)| state.blobs.may_collect(**n, now))
            .filter_map(|(n, b)| {
                let live_bytes = catalog.alive(b).bytes;
                let share =
                    b.meta.size.saturating_sub(live_bytes) as f64 / b.meta.size.max(1) as f64;
                let marked = b.meta.families.values().map(|f| f.bytes).sum::<u64>() > live_bytes;
                // A file without a live record lost its last one during a garbage collection, which
                // failed.
                let worth = live_bytes == 0 || (marked && share >= least);
                worth.then(|| Candidate {
                    number: *n,
                    share,
                    live_bytes,
                    age: age_class(last, b.meta.max_seq),
                    tables: spread.get(n).copied().unwrap_or(0),
                })
            })
            .collect();
        let about = |c: &Candidate| (c.share * 64.0) as u64;
        all.sort_by(|a, b| {
            (about(b).cmp(&about(a)))
                .then(a.tables.cmp(&b.tables))
                .then(a.number.cmp(&b.number))
        });
        all
    }

    /// Returns the files that garbage collection should take now, if another garbage collection may
    /// run.
    pub(super) fn pick_sources(&self, state: &TreeState) -> Option<GcPick> {
        if state.catalog().blobs.is_empty() {
            return None;
        }
        let amp = self.ctx.options.max_space_amp;
        let fill = self
            .pressure
            .fill(state.catalog(), &state.blobs, &self.tree.view());
        let full = self.pressure.disk_full().is_refusing();
        let slowed = self.pressure.space_amp().pressure() > 0.0;
        let pressure = match full {
            true => f64::INFINITY,
            false => fill.gc_pressure(amp, slowed),
        };
        let most = self.ctx.max_compactions();
        if state.blobs.running_gcs >= allowed_gcs(pressure, most) {
            return None;
        }
        let least = match full {
            true => MIN_GARBAGE_ON_FULL_DISK,
            false => least_share(fill.urgency(amp), amp),
        };
        let mut candidates = self.candidates(state, least);
        let mut most_live = LIVE_BYTES.min(fill.max_gc_output(&self.ctx.options));
        if full {
            let spare = self
                .pressure
                .disk_full()
                .spare()
                .saturating_sub(fill.copying);
            most_live = most_live.min(spare);
            let all = std::mem::take(&mut candidates);
            let (fit, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|c| c.live_bytes <= spare);
            candidates = fit;
            if candidates.is_empty() && state.blobs.running_gcs == 0 {
                // No other work may ever free a byte. So the file with the fewest live bytes is
                // taken, if the disk has room for them.
                let least = others.into_iter().min_by_key(|c| c.live_bytes);
                candidates.extend(
                    least.filter(|c| c.live_bytes < self.pressure.disk_full().free_bytes() / 8 * 7),
                );
            }
        }
        let first = candidates.first()?;
        let (mut files, mut live) = (Vec::new(), 0);
        for c in &candidates {
            // Other files join while their share of garbage is about as high.
            let enough = c.share < first.share * MIN_RELATIVE_GARBAGE || files.len() == SOURCES;
            if enough || (!files.is_empty() && live + c.live_bytes > most_live) {
                break;
            }
            if c.age == first.age || c.live_bytes == 0 || first.live_bytes == 0 {
                live += c.live_bytes;
                files.push(c.number);
            }
        }
        Some(GcPick { files, pressure })
    }

    /// Queues garbage collections while they are due and more may run.
    pub fn schedule_gc(self: &Arc<Self>) {
        loop {
            self.pressure.update_free_space();
            let mut state = self.tree.lock();
            let now = self.ctx.env.clock().now();
            // A full disk also halts the store, and garbage collections free its space.
            let halted = (self.health.halted()).is_some_and(|e| e.kind() != ErrorKind::NoSpace);
            if self.ctx.is_closing() || state.jobs.exclusive || halted || now < state.blobs.retry_at
            {
                return;
            }
            let Some(pick) = self.pick_sources(&state) else {
                return;
            };
            state.blobs.collecting.extend(&pick.files);
            state.blobs.running_gcs += 1;
            self.pressure
                .update_pressure(state.catalog(), &state.blobs, &self.tree.view());
            drop(state);
            self.ctx.counters.gcs_begun.add(1);
            // The jobs run behind compactions, which hand out a turn in [`basalt_env`], and beside
            // them near the bound.
            let priority = match pick.pressure >= URGENT {
                true => JobPriority::Compaction,
                false => JobPriority::Gc,
            };
            let engine = self.clone();
            self.ctx.jobs.spawn(priority, move || {
                let began = engine.ctx.env.clock().now();
                engine.ctx.counters.gcs_running.add(1);
                let done = engine.run_gc_and_notify(&pick, engine.ctx.closing());
                engine.ctx.counters.gcs_running.add(-1);
                engine.end_gc(&pick.files, began, done);
            });
        }
    }

    fn end_gc(self: &Arc<Self>, sources: &[u64], began: Duration, done: Result<u64>) {
        let mut state = self.tree.lock();
        for n in sources {
            state.blobs.collecting.remove(n);
        }
        state.blobs.running_gcs -= 1;
        let now = self.ctx.env.clock().now();
        let freed = *done.as_ref().unwrap_or(&0);
        let failed = done.err();
        match &failed {
            None => state.blobs.error = None,
            Some(e) if ended_early(e) => {}
            Some(e) => {
                let is_of = |n: &u64| {
                    let blob = state.catalog().blobs.get(n);
                    let paths = blob.map(|b| self.ctx.tables.blob_paths(*n, &b.meta));
                    (paths.iter().flatten()).any(|path| e.path() == Some(path))
                };
                // The other files do not wait for a file that cannot be read, which stays as it is.
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
        let view = self.tree.view();
        self.pressure
            .update_pressure(state.catalog(), &state.blobs, &view);
        self.pressure.note_urgent(&view);
        if failed.is_none() {
            let more = state.blobs.running_gcs > 0 || self.pressure.space_amp().pressure() > 0.0;
            self.pressure.drain().note_gc(freed, began, now, more);
        }
        drop(state);
        if let Some(error) = failed.filter(|e| !ended_early(e)) {
            self.background.retry_later();
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Gc,
                error: error.clone(),
            });
        }
        self.background.schedule();
        self.ctx.env.jobs().notify();
    }

    /// Rewrites the live records of some files, which the caller has registered as being collected.
    pub(super) fn run_gc(
        self: &Arc<Self>,
        pick: &GcPick,
        cancelled: &AtomicBool,
    ) -> Result<GcResult> {
        let io = pick.io_priority();
        let sources = self.sources(&pick.files)?;
        let live = self.read_live_records(&pick.files, &sources, io, cancelled)?;
        let LiveRecords {
            records,
            bytes_read,
            reservation: _reservation,
        } = live;
        let compressed = (records.iter()).any(|r| r.form.codec != Compression::None);
        let mut mover = RecordMover::new(self, &sources, io, compressed);
        for record in records {
            self.check_cancelled(cancelled)?;
            mover.add(record)?;
        }
        let moved = mover.finish(&pick.files)?;
        let bytes_read = bytes_read + moved.bytes_read;
        // The source files stay open until their cached values have moved.
        let SourceFiles { files, orders } = sources;
        let result = self.install_gc(&files, orders, moved, bytes_read)?;
        self.ctx.counters.gcs.add(1);
        self.ctx.counters.gc_written.add(result.bytes_written);
        self.ctx.counters.gc_read.add(result.bytes_read);
        Ok(result)
    }

    /// Reads the live records of all source files, and sorts them by family, key, and descending
    /// sequence number.
    fn read_live_records(
        &self,
        numbers: &[u64],
        sources: &SourceFiles,
        io: IoPriority,
        cancelled: &AtomicBool,
    ) -> Result<LiveRecords> {
        let live_bytes = self.live_bytes(numbers);
        let ledger = self.ctx.env.ledger();
        let write_buffer = self.ctx.options.write_buffer_bytes;
        let values = (write_buffer.saturating_mul(BUFFERS))
            .min(LIVE_BYTES)
            .min(live_bytes);
        let mut live = LiveRecords {
            reservation: ledger.reserve(MemoryKind::Buffer, values),
            records: Vec::new(),
            bytes_read: 0,
        };
        let mut memory = values;
        for (file, garbage) in &sources.files {
            let into = (&mut live.records, &mut memory);
            live.bytes_read +=
                self.read_live(file, garbage, &sources.orders, io, cancelled, into)?;
        }
        let records = &mut live.records;
        let not_kept = records.iter().filter(|r| r.value.is_none());
        let keys = not_kept.map(|r| r.key.len() as u64).sum::<u64>();
        let bytes = values + keys + (records.len() * size_of::<LiveRecord>()) as u64;
        live.reservation.resize(bytes);
        records.sort_by(|a, b| {
            let keys = || sources.orders[&a.family].user(&a.key, &b.key);
            (a.family.cmp(&b.family))
                .then_with(keys)
                .then_with(|| b.seq.cmp(&a.seq))
        });
        Ok(live)
    }

    /// Returns the bytes of live records in some blob files.
    fn live_bytes(&self, numbers: &[u64]) -> u64 {
        let state = self.tree.lock();
        let catalog = state.catalog();
        let blobs = numbers.iter().filter_map(|n| catalog.blobs.get(n));
        blobs.map(|b| catalog.alive(b).bytes).sum()
    }

    /// Makes the names of the new files durable, and replaces the source files by them in one
    /// edit. If the names cannot be made durable, the new files are removed.
    fn install_gc(
        &self,
        sources: &[(Arc<BlobFile>, Arc<Garbage>)],
        orders: BTreeMap<u32, Cmp>,
        moved: RewrittenFiles,
        bytes_read: u64,
    ) -> Result<GcResult> {
        let made = moved.files;
        let files: Vec<PathBuf> =
            (made.iter().map(|(n, _)| self.ctx.tables.blob_path(*n))).collect();
        if !files.is_empty()
            && let Err(e) = self.ctx.env.fs().sync_metadata(&self.ctx.dir)
        {
            self.ctx.remove_files(&files);
            return Err(e);
        }
        let before: u64 = sources.iter().map(|(f, _)| f.meta.size).sum();
        let written: u64 = made.iter().map(|(_, m)| m.size).sum();
        let result = GcResult {
            targets: (made.iter())
                .map(|(number, meta)| self.tree.blob_info(*number, meta, BlobFileReason::Gc))
                .collect(),
            bytes_read,
            bytes_written: written,
            freed: before.saturating_sub(written),
        };
        let edit = Edit {
            add_blobs: (made.into_iter())
                .map(|(number, meta)| AddBlob {
                    number,
                    meta: Arc::new(meta),
                    location: FileLocation::Local,
                })
                .collect(),
            ..Edit::default()
        };
        let change = BlobChange {
            dead: Vec::new(),
            gc: Some(GcChange {
                done: moved.renamed,
                moved: moved.places,
                marked: (sources.iter())
                    .map(|(f, g)| (f.number, g.clone()))
                    .collect(),
                orders,
            }),
        };
        let numbers: Vec<u64> = edit.add_blobs.iter().map(|b| b.number).collect();
        self.tree.install_with(edit, files, change, |_, _| ())?;
        self.cache_moves(&moved.cached, &numbers);
        Ok(result)
    }

    fn check_cancelled(&self, cancelled: &AtomicBool) -> Result<()> {
        match cancelled.load(SeqCst) {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Cancelled,
                "the garbage collection was cancelled",
            )),
        }
    }

    /// Returns files and their marks as of one moment.
    fn sources(&self, numbers: &[u64]) -> Result<SourceFiles> {
        // Marks and files of one version: both change under `state`.
        let state = self.tree.lock();
        let view = self.tree.view();
        let set: &BlobSet = &view.version.blobs;
        let find = |n: &u64| -> Option<(Arc<BlobFile>, Arc<Garbage>)> {
            let blob: &CatalogBlob = state.catalog().blobs.get(n)?;
            Some((set.files.get(n)?.clone(), blob.garbage.clone()))
        };
        let one = |n: &u64| {
            find(n).ok_or_else(|| {
                Error::new(
                    ErrorKind::Cancelled,
                    format!("blob file {n} was removed before the garbage collection read it"),
                )
            })
        };
        let files: Vec<_> = numbers.iter().map(one).collect::<Result<_>>()?;
        let orders = (view.families.values())
            .map(|f| (f.id, f.options.comparator.clone()))
            .collect();
        Ok(SourceFiles { files, orders })
    }

    /// Reads the live records of a file. Checks the hashes of live and marked records against the
    /// sum that the file was written with. Returns the number of bytes read.
    fn read_live(
        &self,
        file: &BlobFile,
        garbage: &Garbage,
        orders: &BTreeMap<u32, Cmp>,
        io: IoPriority,
        cancelled: &AtomicBool,
        (live, memory): (&mut Vec<LiveRecord>, &mut u64),
    ) -> Result<u64> {
        let reader = file.reader()?;
        let mut sum = garbage.hash_sum();
        let mut read = 0;
        reader.walk(
            &|ordinal| !garbage.has(ordinal),
            &mut |bytes| {
                self.check_cancelled(cancelled)?;
                read += bytes as u64;
                self.ctx.env.io_limit().acquire(bytes as u64, io);
                Ok(())
            },
            &mut |ordinal, record| {
                sum = sum.wrapping_add(record.name().hash(file.meta.file_id));
                if orders.contains_key(&record.family) {
                    let len = RECORD_HEADER + record.key.len() + record.value.len();
                    let place = record.at..record.at + len as u64;
                    let left = memory.checked_sub(len as u64);
                    *memory = left.unwrap_or(*memory);
                    let form = record.form();
                    live.push(LiveRecord {
                        family: record.family,
                        key: match left {
                            Some(_) => record.key,
                            // The key gets memory of its own, because it shares memory with the
                            // value.
                            None => Bytes::copy_from_slice(&record.key),
                        },
                        seq: record.seq,
                        form,
                        value: left.map(|_| record.value),
                        source: file.number,
                        ordinal,
                        place,
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
                    "the hashes of live and marked records add up to {sum:016x}, but the file was written with {:016x}: a garbage mark belongs to another record, and the file is not collected; run `basalt check`",
                    reader.hash_sum()
                ),
            ));
        }
        Ok(read)
    }

    /// Runs a garbage collection and reports it to the listener. Returns the number of bytes freed.
    pub(super) fn run_gc_and_notify(
        self: &Arc<Self>,
        pick: &GcPick,
        cancelled: &AtomicBool,
    ) -> Result<u64> {
        let gc = self.gc_info(&pick.files);
        self.ctx.notify(|| Event::GcBegin(gc.clone()));
        let began = self.ctx.env.clock().now();
        let ended = self.run_gc(pick, cancelled);
        self.ctx.notify(|| {
            let (done, error) = match &ended {
                Ok(done) => (Some(done), None),
                Err(e) => (None, Some(e.clone())),
            };
            Event::GcEnd {
                gc,
                targets: done.map_or_else(Vec::new, |d| d.targets.clone()),
                bytes_read: done.map_or(0, |d| d.bytes_read),
                bytes_written: done.map_or(0, |d| d.bytes_written),
                took: self.ctx.env.clock().now() - began,
                error,
            }
        });
        ended.map(|done| done.freed)
    }

    fn gc_info(&self, sources: &[u64]) -> GcInfo {
        let state = self.tree.lock();
        let catalog = &state.catalog();
        let mut info = GcInfo {
            sources: sources.to_vec(),
            source_bytes: 0,
            live_bytes: 0,
        };
        for blob in sources.iter().filter_map(|n| catalog.blobs.get(n)) {
            info.source_bytes += blob.meta.size + blob.meta.index.map_or(0, |i| i.size);
            info.live_bytes += catalog.alive(blob).bytes;
        }
        info
    }
}
