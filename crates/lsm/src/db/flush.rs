//! Flush: sealed memtables become level-0 tables, oldest generation first.

use super::engine::{Engine, RETRY_PAUSE};
use super::generation::{FamilyEntry, Generation};
use crate::compaction::table_options;
use crate::compaction::visibility::Stripes;
use crate::iter::InternalIter;
use crate::key::{SeqNo, split_internal_key, trailer_seq};
use crate::memtable::MemTable;
use crate::table::{TableBuilder, TableOptions};
use crate::version::TableStore;
use crate::version::edit::{AddTable, Edit};
use basalt_env::{Env, IoPriority, JobPriority};
use basalt_fs::{ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// Writes one memtable into one table. Versions that no reader and no snapshot can see are left out; tombstones stay.
/// On an error the file is gone again.
pub(super) fn write_table(
    env: &Env,
    tables: &TableStore,
    number: u64,
    family: &FamilyEntry,
    mem: &Arc<MemTable>,
    snapshots: &[SeqNo],
) -> Result<AddTable> {
    let path = tables.path(number);
    let options = &family.options;
    let build = || {
        let file = env.fs().create(&path)?;
        let file_id = env.random().next_u128();
        // What was just written is likely to be read: its blocks go into the cache on the way out.
        let table_options = TableOptions {
            warm_cache: true,
            ..table_options(options, family.in_table(), false)
        };
        let mut builder =
            TableBuilder::new(env, file, &path, file_id, table_options, IoPriority::High);
        let mut stripes = Stripes::new(snapshots);
        let mut iter = mem.iter();
        iter.seek_to_first()?;
        while iter.valid() {
            let (user, trailer) = split_internal_key(iter.key());
            if stripes.is_visible(&options.comparator, user, trailer_seq(trailer)) {
                builder.add(iter.key(), iter.value())?;
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
        }),
        Err(e) => {
            let _ = env.fs().remove(&path);
            Err(e.context(format!(
                "writing out a memtable of family {:?}",
                family.name
            )))
        }
    }
}

impl Engine {
    /// Queues the jobs that are due: a flush if memtables wait, compactions if the tree is out of shape.
    pub fn schedule(self: &Arc<Self>) {
        if self.closing.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        let waiting = state.flush_error.is_some() && self.env.clock().now() < state.retry_at;
        if !state.flush_scheduled && !waiting && !self.view().sealed.is_empty() {
            state.flush_scheduled = true;
            let engine = self.clone();
            self.env
                .jobs()
                .spawn(self.owner, JobPriority::Flush, move || engine.flush_job());
        }
        drop(state);
        self.schedule_compactions();
    }

    fn flush_job(self: &Arc<Self>) {
        let result = self.flush_all();
        let mut state = self.state.lock();
        state.flush_scheduled = false;
        drop(state);
        if result.is_ok() {
            self.schedule();
        }
        self.env.jobs().notify();
    }

    /// Writes all sealed generations out, oldest first.
    pub fn flush_all(self: &Arc<Self>) -> Result<()> {
        let _alone = self.flushing.lock();
        loop {
            let Some(oldest) = self.view().sealed.last().cloned() else {
                self.state.lock().flush_error = None;
                return Ok(());
            };
            if let Err(e) = self.flush_generation(&oldest) {
                let mut state = self.state.lock();
                state.flush_error = Some(e.clone());
                state.retry_at = self.env.clock().now() + RETRY_PAUSE;
                drop(state);
                self.retry_later();
                self.env.jobs().notify();
                return Err(e);
            }
            self.env.jobs().notify();
        }
    }

    fn flush_generation(self: &Arc<Self>, generation: &Arc<Generation>) -> Result<()> {
        let view = self.view();
        let started = self.env.clock().now();
        let snapshots = self.live_snapshots();
        let mut edit = Edit::default();
        let mut files: Vec<PathBuf> = Vec::new();
        for (id, mem) in &generation.mems {
            let Some(family) = view.families.get(id).filter(|_| !mem.is_empty()) else {
                continue;
            };
            let number = self.new_file_number();
            match write_table(&self.env, &self.tables, number, family, mem, &snapshots) {
                Ok(add) => {
                    self.counters.flush_bytes.add(add.meta.size);
                    edit.add_tables.push(add);
                    files.push(self.tables.path(number));
                }
                Err(e) => {
                    self.remove_files(&files);
                    return Err(e);
                }
            }
        }
        if !files.is_empty()
            && let Err(e) = self.env.fs().sync_metadata(&self.dir)
        {
            self.remove_files(&files);
            return Err(e);
        }
        let log = generation.log();
        // A log whose end is not settled is one in doubt.
        let mut end = None;
        if log != 0 {
            edit.remove_logs.push(log);
            let state = self.state.lock();
            end = state.catalog.logs.get(&log).and_then(|l| l.end);
        }
        self.install(edit, files, |_, view| {
            let last = view.sealed.pop().expect("flushes run alone, oldest first");
            assert_eq!(
                last.number, generation.number,
                "the oldest generation is flushed first"
            );
        })?;
        self.drain
            .flushed(generation.memory(), self.env.clock().now() - started);
        if log != 0 {
            self.retire_log(log, end);
        }
        Ok(())
    }

    /// Removes files that no edit has named.
    pub fn remove_files(&self, files: &[PathBuf]) {
        for f in files {
            if let Err(e) = self.env.fs().remove(f) {
                // What stays is an orphan, which the next open removes.
                debug_assert!(e.kind() != ErrorKind::InvalidArgument);
            }
        }
    }
}
