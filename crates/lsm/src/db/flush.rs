//! Flush: sealed memtable sets become level-0 tables, the oldest set first.

use super::background::URGENT_WITHIN;
use super::engine::Engine;
use super::families::FamilyEntry;
use super::flush_values::{KeptLog, Values};
use super::memtable_set::MemtableSet;
use super::page_changes::FlushedChanges;
use super::page_flush::write_pages;
use super::page_values::{PageValues, read_from};
use super::pages::FamilyPages;
use super::view::View;
use crate::compaction::ranges::RangeDelFilter;
use crate::compaction::visibility::Stripes;
use crate::compaction::{
    DeeperLevels, MergeRules, MergeSink, internal_key_of, merge, table_options,
};
use crate::iter::{InternalIter, MergingIter};
use crate::listener::{BackgroundErrorReason, Event, TableInfo};
use crate::memtable::MemTable;
use crate::options::{Compression, FamilyOptions};
use crate::version::catalog::group_flags;
use crate::version::edit::{AddBlob, AddTable, Edit};
use crate::version::{BlobFile, TableStore};
use crate::version::{FileLocation, FlushFlag};
use basalt_blob::{BlobMeta, Name, Reference, Separator};
use basalt_env::IoPriority;
use basalt_env::sync::atomic::AtomicBool;
use basalt_fs::Result;
use basalt_kv::key::{Kind, SeqNo, split_internal_key, trailer_seq};
use basalt_kv::merge::Merging;
use basalt_kv::ranges::Fragments;
use basalt_table::{TableBuilder, TableMeta, TableOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Writes one memtable into one table. Versions that no reader and no snapshot can see are left
/// out. Tombstones stay, range tombstones included. Large values go to `values`, if it is given. If
/// `warm_cache` is true, the blocks of the table also go into the cache. `flush_flag` is that of
/// the family with this table, in a passive store. On an error the file is removed.
pub(super) fn write_table(
    tables: &Arc<TableStore>,
    number: u64,
    family: &FamilyEntry,
    mem: &Arc<MemTable>,
    snapshots: &[SeqNo],
    (warm_cache, flush_flag): (bool, Option<FlushFlag>),
    values: Option<&mut Values<'_>>,
) -> Result<AddTable> {
    let (env, path) = (tables.env(), tables.path(number));
    let options = &family.options;
    let build = || {
        let file = env.fs().create(&path)?;
        let file_id = env.random().next_u128();
        let table_options = TableOptions {
            warm_cache,
            flush_flag,
            ..table_options(options, family.in_table(), false)
        };
        let mut builder =
            TableBuilder::new(env, file, &path, file_id, table_options, IoPriority::High);
        let cmp = &options.comparator;
        let runs = mem.ranges();
        let pieces = runs.iter().flat_map(|r| r.iter());
        let ranges = Fragments::build(cmp, pieces, Some(snapshots));
        for i in 0..ranges.len() {
            let (from, to) = ranges.range(i);
            builder.delete_range(from, to, ranges.seqs_of(i));
        }
        if options.merge_operator.is_some() {
            merge_operands(&mut builder, values, family, mem, snapshots, &ranges)?;
            return builder.finish();
        }
        let mut deleted = RangeDelFilter::new(cmp, &ranges, snapshots);
        let mut stripes = Stripes::new(snapshots);
        let mut sink = OneTable::new(&mut builder, values, family);
        let mut iter = mem.iter();
        iter.seek_to_first()?;
        while iter.valid() {
            let (user, trailer) = split_internal_key(iter.key());
            let kind = Kind::from_u8(trailer as u8).expect("inserted with a kind");
            let seq = trailer_seq(trailer);
            if stripes.is_visible(cmp, user, seq, kind) && !deleted.hides(user, seq) {
                sink.add_of(user, seq, kind, iter.key(), iter.value())?;
            }
            iter.next()?;
        }
        builder.finish()
    };
    match build() {
        Ok(meta) => Ok(AddTable {
            family: family.id,
            level: 0,
            number,
            meta,
            location: FileLocation::Local,
        }),
        Err(e) => {
            tables.remove(&path);
            Err(e.context(format!(
                "writing out a memtable of family {:?}",
                family.name
            )))
        }
    }
}

/// Returns the description of a table for listeners.
pub(super) fn table_info(family: &str, level: usize, number: u64, meta: &TableMeta) -> TableInfo {
    TableInfo {
        family: family.to_string(),
        level,
        number,
        bytes: meta.size,
        entries: meta.entries,
    }
}

/// A table builder for a flush. Large values go to a blob file.
struct OneTable<'a, 'n> {
    builder: &'a mut TableBuilder,
    values: Option<&'a mut Values<'n>>,
    family: u32,
    options: &'a FamilyOptions,
    key: Vec<u8>,
}

impl<'a, 'n> OneTable<'a, 'n> {
    fn new(
        builder: &'a mut TableBuilder,
        values: Option<&'a mut Values<'n>>,
        family: &'a FamilyEntry,
    ) -> OneTable<'a, 'n> {
        OneTable {
            builder,
            values,
            family: family.id,
            options: &family.options,
            key: Vec::new(),
        }
    }

    fn add_of(
        &mut self,
        user: &[u8],
        seq: SeqNo,
        kind: Kind,
        internal_key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let Some(values) = &mut self.values else {
            return self.builder.add(internal_key, value);
        };
        let name = Name {
            family: self.family,
            key: user,
            seq,
        };
        match values.put(&name, kind, value, self.options)? {
            None => self.builder.add(internal_key, value),
            Some(payload) => {
                let key = internal_key_of(&mut self.key, user, seq);
                self.builder.add(key, payload)
            }
        }
    }
}

impl MergeSink for OneTable<'_, '_> {
    fn begin_user_key(&mut self, _user_key: &[u8]) -> Result<()> {
        Ok(())
    }
    fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let (user, trailer) = split_internal_key(internal_key);
        let kind = Kind::from_u8(trailer as u8).expect("an entry of ours");
        self.add_of(user, trailer_seq(trailer), kind, internal_key, value)
    }
}

/// Merges operands as a compaction of the memtable alone would, so that a key with many operands
/// leaves memory with few. Older versions may be anywhere, so tombstones stay, and no entry counts
/// as expired.
fn merge_operands(
    builder: &mut TableBuilder,
    values: Option<&mut Values<'_>>,
    family: &FamilyEntry,
    mem: &Arc<MemTable>,
    snapshots: &[SeqNo],
    deleted: &Fragments,
) -> Result<()> {
    let cmp = &family.options.comparator;
    let rules = MergeRules {
        cmp,
        snapshots,
        now_ms: 0,
        filter: None,
        merging: &Merging::new(family.name.clone(), family.options.merge_operator.clone()),
        family: &family.name,
        level: 0,
        cancelled: &AtomicBool::new(false),
        deleted,
    };
    let input = MergingIter::new(cmp.clone(), vec![Box::new(mem.iter())]);
    let deeper = DeeperLevels::unknown(cmp);
    let mut sink = OneTable::new(builder, values, family);
    merge(&rules, input, deeper, &mut sink, &|_| None)?;
    Ok(())
}

impl Engine {
    /// Drops what the trees have of ingestions that have failed. First a fresh manifest says
    /// durably that they do not count. The caller holds `flushing`.
    pub(super) fn drop_failed_ingestions(&self) -> Result<()> {
        let view = self.tree.view();
        if !view.pages.values().any(|tree| tree.pages.is_in_doubt()) {
            return Ok(());
        }
        if self.tree.manifest_is_in_doubt() {
            self.tree.install(Edit::default(), Vec::new(), |_, _| ())?;
        }
        let mut in_doubt = view.pages.values().filter(|tree| tree.pages.is_in_doubt());
        in_doubt.try_for_each(|tree| tree.pages.roll_back(tree.flushed))
    }

    /// Flushes all sealed memtables, and queues the jobs that are due then.
    pub(super) fn flush_job(self: &Arc<Self>) {
        let result = self.flush_all();
        let mut state = self.tree.lock();
        state.jobs.flush = false;
        drop(state);
        if result.is_ok() {
            self.background.schedule();
        }
        self.ctx.env.jobs().notify();
    }

    /// Flushes all sealed memtable sets, the oldest first.
    pub fn flush_all(self: &Arc<Self>) -> Result<()> {
        let _alone = self.flushing.lock();
        let _keeping = self.pressure.memory().keep_promises();
        loop {
            let Some(oldest) = self.tree.view().sealed.last().cloned() else {
                self.health.flush_succeeded();
                return Ok(());
            };
            if let Err(e) = self.flush_memtables(&oldest) {
                let state = self.tree.lock();
                self.health.flush_failed(e.clone());
                self.pressure.memory().break_promises();
                drop(state);
                self.ctx.notify(|| Event::BackgroundError {
                    during: BackgroundErrorReason::Flush,
                    error: e.clone(),
                });
                self.background.retry_later();
                self.ctx.env.jobs().notify();
                return Err(e);
            }
            let number = oldest.number;
            drop(oldest);
            self.pressure
                .memory()
                .note_flushed(number, self.tree.active().number);
            self.ctx.env.memory_was_freed();
            self.ctx.env.jobs().notify();
        }
    }

    /// Returns whether to put the blocks of new tables into the cache. If the store is read at all,
    /// new data is likely to be read soon. The store counts as read if, since the last flush, there
    /// was at least one block lookup for each `WARM_SHARE` blocks of the new tables. A store that
    /// only takes writes would fill the cache with blocks that no reader wants. The price would be
    /// the copies, and the eviction of other blocks.
    fn should_warm_cache(&self, memtable_bytes: u64) -> bool {
        const WARM_SHARE: u64 = 16;
        let stats = self.ctx.env.cache().stats();
        let lookups = stats.hits + stats.misses;
        let before = self.background.swap_lookups_at_flush(lookups);
        let block = self.ctx.options.default_family.block_bytes as u64;
        lookups.saturating_sub(before) >= memtable_bytes / block / WARM_SHARE
    }

    /// Flushes a memtable set, which has to be the oldest one, and tells the listener.
    fn flush_memtables(self: &Arc<Self>, memtables: &Arc<MemtableSet>) -> Result<()> {
        let started = self.ctx.env.clock().now();
        self.ctx.notify(|| Event::FlushBegin {
            memtable_set: memtables.number,
            bytes: memtables.memory(),
        });
        let mut made = Vec::new();
        let mut flush = Flush::new(self, memtables, started);
        let result = flush.run(&mut made);
        drop(flush);
        if result.is_ok() {
            for t in &made {
                self.ctx.notify(|| Event::TableCreated(t.clone()));
            }
        } else {
            made.clear();
        }
        self.ctx.notify(|| Event::FlushEnd {
            memtable_set: memtables.number,
            tables: made,
            took: self.ctx.env.clock().now() - started,
            error: result.as_ref().err().cloned(),
        });
        result
    }
}

/// The flush of one memtable set, in steps: write tables and blob files, make their names durable,
/// install the edit that names them, and release the log.
struct Flush<'a> {
    engine: &'a Engine,
    memtables: &'a MemtableSet,
    /// Time of the environment's clock when the flush began.
    started: Duration,
    /// The view when the flush began.
    view: Arc<View>,
    snapshots: Vec<SeqNo>,
    /// True if the blocks of new files go into the cache.
    warm: bool,
    /// The edit that adds the new files and removes the log.
    edit: Edit,
    /// Paths of the new files. They are removed in this order if the flush fails.
    files: Vec<PathBuf>,
    /// True if the edit has blob files of families in pages.
    has_page_blobs: bool,
    /// Number of the log, if it stays as a blob file.
    kept: Option<u64>,
    /// Trees that have entries of the memtables, by family, and the changes that are kept of these.
    trees: Vec<(u32, Arc<FamilyPages>, Option<FlushedChanges>)>,
}

impl<'a> Flush<'a> {
    fn new(engine: &'a Engine, memtables: &'a MemtableSet, started: Duration) -> Flush<'a> {
        Flush {
            engine,
            memtables,
            started,
            view: engine.tree.view(),
            snapshots: engine.tree.live_snapshots(),
            warm: engine.should_warm_cache(memtables.memory()),
            edit: Edit::default(),
            files: Vec::new(),
            has_page_blobs: false,
            kept: None,
            trees: Vec::new(),
        }
    }

    /// Runs all steps. Adds the tables to `made`. If a step before the install fails, the new files
    /// are removed.
    fn run(&mut self, made: &mut Vec<TableInfo>) -> Result<()> {
        self.write_level0_tables(made)?;
        self.write_pages()?;
        self.sync_names()?;
        self.add_flags()?;
        let log_end = self.remove_log();
        let kept_log = self.install()?;
        self.release_log(kept_log, log_end);
        Ok(())
    }

    /// Writes the memtables of all families to tables of level 0, and large values to blob files.
    fn write_level0_tables(&mut self, made: &mut Vec<TableInfo>) -> Result<()> {
        let ctx = &self.engine.ctx;
        let new_number = || self.engine.tree.new_file_number();
        let separator = Separator::new(
            &ctx.env,
            ctx.tables.clone(),
            Box::new(&new_number),
            IoPriority::High,
            self.warm,
        );
        let mut options = self.view.families.values().map(|f| &f.options);
        let separator =
            separator.with_compressed(options.any(|o| o.blob_compression != Compression::None));
        let mut values = Values::new(
            separator,
            KeptLog::of(self.memtables, self.engine.writes.logs().can_trim()),
            &new_number,
        );
        for (id, mem) in &self.memtables.mems {
            let Some(family) = self.view.families.get(id).filter(|_| !mem.is_empty()) else {
                continue;
            };
            if self.view.pages.contains_key(id) {
                continue;
            }
            let number = self.engine.tree.new_file_number();
            match write_table(
                &ctx.tables,
                number,
                family,
                mem,
                &self.snapshots,
                (self.warm, self.memtables.flags().and_then(|f| f.of(*id))),
                Some(&mut values),
            ) {
                Ok(add) => {
                    ctx.counters.flush_bytes.add(add.meta.size);
                    made.push(table_info(&family.name, 0, number, &add.meta));
                    self.edit.add_tables.push(add);
                    self.files.push(ctx.tables.path(number));
                }
                Err(e) => {
                    ctx.remove_files(&self.files);
                    return Err(e);
                }
            }
        }
        match values.finish(&ctx.env, &ctx.tables, self.warm) {
            Ok(blobs) => self.add_blob_files(blobs),
            Err(e) => {
                ctx.remove_files(&self.files);
                return Err(e.context("writing out the values of memtables"));
            }
        }
        Ok(())
    }

    /// Writes the memtables of families that are kept in pages.
    fn write_pages(&mut self) -> Result<()> {
        if let Err(e) = self.engine.drop_failed_ingestions() {
            self.engine.ctx.remove_files(&self.files);
            return Err(e);
        }
        let seq = self.memtables.last_seq();
        let view = self.view.clone();
        for (id, tree) in view.pages.iter() {
            let Some(mem) = self.memtables.mems.get(id).filter(|mem| !mem.is_empty()) else {
                continue;
            };
            let ctx = &self.engine.ctx;
            let (family, blobs) = (&view.families[id], &view.version.blobs);
            let new_number = Box::new(|| self.engine.tree.new_file_number());
            let values = PageValues::new(&ctx.tables, *id, &family.options, new_number, self.warm);
            let read = |name: &Name<'_>, to: &Reference| read_from(blobs, name, to);
            let write = || {
                write_pages(&ctx.env, tree, family, mem, seq, &read, values)?;
                let set = self.memtables.number;
                let changes = || FlushedChanges::of(mem, set);
                tree.pages.keeps_changes().then(changes).transpose()
            };
            match write() {
                Ok(changes) => self.trees.push((*id, tree.pages.clone(), changes)),
                Err(e) => {
                    ctx.remove_files(&self.files);
                    return Err(e);
                }
            }
            // These files are not in `files`: the pages refer to them, so they stay if this attempt
            // fails behind the write.
            for (number, meta) in tree.pages.unrecorded_blobs() {
                ctx.counters.flush_bytes.add(meta.size);
                self.has_page_blobs = true;
                self.edit.add_blobs.push(AddBlob {
                    number,
                    meta,
                    location: FileLocation::Local,
                });
            }
            self.edit.pages.push((*id, seq));
        }
        Ok(())
    }

    /// Adds finished blob files to the edit. The log is among them if it stays as a blob file.
    fn add_blob_files(&mut self, blobs: Vec<(u64, BlobMeta)>) {
        let ctx = &self.engine.ctx;
        for (number, meta) in blobs {
            let mut paths = ctx.tables.blob_paths(number, &meta);
            match &meta.index {
                None => ctx.counters.flush_bytes.add(meta.size),
                Some(index) => {
                    ctx.counters.flush_bytes.add(index.size);
                    self.kept = Some(number);
                    // The log stays, whether the edit is installed or not.
                    paths.remove(0);
                    // If the flush fails, the index is removed first: without an index, the log is
                    // like any other.
                    self.files.insert(0, paths.remove(0));
                }
            }
            self.files.extend(paths);
            self.edit.add_blobs.push(AddBlob {
                number,
                meta: Arc::new(meta),
                location: FileLocation::Local,
            });
        }
    }

    /// Makes the names of the new files durable.
    fn sync_names(&self) -> Result<()> {
        let ctx = &self.engine.ctx;
        if (!self.files.is_empty() || self.has_page_blobs)
            && let Err(e) = ctx.env.fs().sync_metadata(&ctx.dir)
        {
            ctx.remove_files(&self.files);
            return Err(e);
        }
        Ok(())
    }

    /// Adds the flags of a passive store to the edit. First the owner's log is made durable up to
    /// the last transaction that the memtables may have.
    fn add_flags(&mut self) -> Result<()> {
        let Some(flags) = self.memtables.flags() else {
            return Ok(());
        };
        if let Err(e) = self.engine.make_owner_durable(flags.last) {
            self.engine.ctx.remove_files(&self.files);
            return Err(e);
        }
        let points = flags.points.iter();
        self.edit.flush_flags = group_flags(points.map(|(id, point)| (*id, point.flag)));
        Ok(())
    }

    /// Removes the log in the edit. Returns the position where its records end, if it is known.
    ///
    /// The end stays unknown if the log is in doubt. It also stays unknown if the log's records
    /// were never synced: then its pages should not be synced either.
    fn remove_log(&mut self) -> Option<u64> {
        let log = self.memtables.log();
        if log == 0 {
            return None;
        }
        self.edit.remove_logs.push(log);
        let state = self.engine.tree.lock();
        state.catalog().logs.get(&log).and_then(|l| l.end)
    }

    /// Installs the edit, and removes the memtable set from the view. Returns the log if it stays
    /// as a blob file.
    fn install(&mut self) -> Result<Option<Arc<BlobFile>>> {
        let engine = self.engine;
        let edit = std::mem::take(&mut self.edit);
        let sizes: Vec<(u32, u64)> = edit
            .add_tables
            .iter()
            .map(|t| (t.family, t.meta.size))
            .collect();
        let tables: Vec<u64> = edit.add_tables.iter().map(|t| t.number).collect();
        let blob_files: Vec<u64> = edit.add_blobs.iter().map(|b| b.number).collect();
        // The file is held from here on, so that it is not removed before it is trimmed. There is
        // no file if all families with values in it were dropped.
        let mut kept_log = None;
        let files = std::mem::take(&mut self.files);
        let (set, seq) = (self.memtables.number, self.memtables.last_seq());
        let trees = &mut self.trees;
        engine.tree.install(edit, files, |_, view| {
            for (id, _, changes) in trees {
                // The family may have been dropped meanwhile.
                if let Some(shown) = view.pages.get(id) {
                    let newest = shown.after_flush(seq, changes.take());
                    Arc::make_mut(&mut view.pages).insert(*id, newest);
                }
            }
            if view.pages.values().any(|shown| shown.changes.has_old(set)) {
                let all = Arc::make_mut(&mut view.pages).values_mut();
                all.for_each(|shown| shown.changes.forget_old(set));
            }
            let kept = self.kept;
            kept_log = kept.and_then(|log| view.version.blobs.files.get(&log).cloned());
            let last = view.sealed.pop().expect("flushes run alone, oldest first");
            assert_eq!(
                last.number, self.memtables.number,
                "the oldest memtable set is flushed first"
            );
        })?;
        // The edit is durable.
        if let Some(flags) = self.memtables.flags() {
            engine.note_flags(flags);
        }
        self.trees
            .iter()
            .for_each(|(_, tree, _)| tree.note_recorded());
        if self.warm {
            engine.open_new(&tables, &blob_files);
        }
        for (family, bytes) in sizes {
            engine.ctx.counters.levels.flushed(family, bytes);
        }
        engine.ctx.counters.flushes.add(1);
        engine.background.note_flush();
        if engine.background.is_flushing_fast() {
            // Level-0 tables are also compacted if they wait for more tables, which may not come.
            engine
                .background
                .schedule_after(URGENT_WITHIN + Duration::from_millis(1));
        }
        let took = engine.ctx.env.clock().now() - self.started;
        (engine.pressure.drain()).flushed(self.memtables.memory(), took);
        Ok(kept_log)
    }

    /// Frees the space of the log that no table refers to: all of it, if the log does not stay.
    fn release_log(&self, kept_log: Option<Arc<BlobFile>>, log_end: Option<u64>) {
        let engine = self.engine;
        let log = self.memtables.log();
        let is_kept = kept_log.is_some();
        engine.writes.logs().trim(kept_log);
        if log != 0 {
            if !is_kept {
                engine.writes.logs().retire(log, log_end);
            }
            // A deleted file keeps its space, and its pages are still written out, while it is
            // open. If another thread holds the lock now, that thread closes the file at the next
            // log rotation.
            if let Some(mut writer) = engine.writes.try_lock() {
                writer.forget_removed_logs(&engine.ctx, &engine.tree);
            }
        }
    }
}
