//! Scheduling of compactions: they are picked under the lock, run on the shared pool, and are
//! installed through the manifest.
//!
//! A plan that is large enough is cut into ranges, with one job each. The job that ends last
//! installs the result of all. A compaction that fails leaves its inputs as they are, and is tried
//! again after a pause that doubles. Meanwhile reads and writes go on, until level 0 is full and
//! writers receive the error.

use super::context::ended_early;
use super::engine::Engine;
use super::families::FamilyEntry;
use super::flush::table_info;
use super::relocation_stats::RelocatableFiles;
use super::tree::TreeState;
use super::tree::blob_edits::BlobChange;
use crate::compaction::{
    Claim, CompactionJob, CompactionReason, Outcome, PickContext, Plan, SplitRange,
};
use crate::compaction::{combine, pick, run, subranges};
use crate::listener::{BackgroundErrorReason, CompactionInfo, Event, TableInfo};
use crate::version::FileLocation;
use crate::version::TableFile;
use crate::version::edit::{AddBlob, AddTable, Edit};
use basalt_env::JobPriority;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::AtomicBool;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_table::TableMeta;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A plan being carried out, perhaps by several jobs.
struct Running {
    plan: Plan,
    family: FamilyEntry,
    snapshots: Vec<u64>,
    now_ms: u64,
    began: Duration,
    claim: Mutex<Option<Claim>>,
    /// The epoch in which the compaction began, see
    /// [`BlobState::begin`](super::blob_state::BlobState::begin).
    epoch: u64,
    /// For its events.
    number: u64,
    ranges: Vec<SplitRange>,
    parts: Mutex<Vec<Option<Result<Outcome>>>>,
}

impl Running {
    fn info(&self) -> CompactionInfo {
        let plan = &self.plan;
        let numbers = |(level, tables): &(usize, Vec<Arc<TableFile>>)| {
            let level = *level;
            let numbers: Vec<_> = tables.iter().map(|t| (level, t.number)).collect();
            numbers
        };
        CompactionInfo {
            number: self.number,
            family: self.family.name.to_string(),
            level: plan.level,
            output_level: plan.output_level,
            inputs: plan.inputs.iter().flat_map(numbers).collect(),
            input_bytes: plan.input_bytes(),
            reason: plan.reason,
            trivial_move: plan.trivial_move,
        }
    }
}

/// The outputs of a compaction that was installed, and the bytes that it read and wrote.
#[derive(Default)]
struct CompactionResult {
    outputs: Vec<TableInfo>,
    bytes_read: u64,
    bytes_written: u64,
}

impl Engine {
    /// Returns the largest number of parts for a plan. With an urgent writer, a full level 0 or a
    /// waiting caller, the plan may use every thread. Otherwise no caller waits for the compaction,
    /// and it gets half of the threads. With more, readers would find all processors busy and the
    /// device's queue full.
    fn parts_of(&self, plan: &Plan, family: &FamilyEntry) -> usize {
        let most = self.ctx.max_compactions();
        let urgent = self.background.is_flushing_fast();
        let full =
            plan.level == 0 && plan.inputs[0].1.len() >= 2 * family.options.l0_compaction_trigger;
        if urgent
            || full
            || plan.reason == CompactionReason::Manual
            || self.background.compactions_are_awaited()
        {
            most
        } else {
            (most / 2).max(1)
        }
    }

    /// Returns the most urgent plan of all families.
    pub(super) fn pick_plan(&self, state: &TreeState) -> Option<(Plan, FamilyEntry)> {
        let view = self.tree.view();
        let now_ms = self.ctx.env.clock().wall_ms();
        let oldest_snapshot = self.tree.oldest_snapshot();
        // If writers are already slowed, the pick is not urgent: writers would wait for a merge
        // that waits for more writes.
        let urgent = !view.backlog.slows_writers() && self.background.is_flushing_fast();
        // A store that something is wrong with does nothing that need not be.
        let well = self.health.first_error().is_none() && self.health.check_jobs().is_ok();
        let still_for = if well {
            self.background.idle_for()
        } else {
            Duration::ZERO
        };
        let fill = self.pressure.fill(state.catalog(), &state.blobs, &view);
        let paid = match well {
            true => self.relocatable_by_scans(state, &view, &fill),
            false => RelocatableFiles::default(),
        };
        view.families
            .values()
            .filter_map(|f| {
                let version = view.version.families.get(&f.id)?;
                let plan = pick(&PickContext {
                    family: f.id,
                    version,
                    options: &f.options,
                    now_ms,
                    oldest_snapshot,
                    running: &state.jobs.compactions,
                    entering: &state.jobs.ingesting,
                    urgent,
                    still_for,
                    hidden_garbage: fill.hidden_garbage.get(&f.id).copied().unwrap_or_default(),
                    relocation_set: paid.relocation_set(),
                })?;
                Some((plan, f.clone()))
            })
            .max_by(|a, b| a.0.score.total_cmp(&b.0.score))
    }

    /// Queues compactions as long as the tree is out of shape and there are threads for them.
    pub fn schedule_compactions(self: &Arc<Self>) {
        loop {
            let mut state = self.tree.lock();
            let pausing = self.health.compactions_are_paused();
            if self.ctx.is_closing()
                || pausing
                || state.jobs.exclusive
                || state.jobs.compactions.len() >= self.ctx.max_compactions()
            {
                return;
            }
            let Some((plan, family)) = self.pick_plan(&state) else {
                // Nothing is due and nothing runs. An error of an earlier attempt, such as at a
                // range that a caller wanted compacted, affects the store no longer.
                let view = self.tree.view();
                let has_failed = view.pages.values().any(|view| view.pages.has_failed());
                if state.jobs.compactions.is_empty()
                    && state.jobs.ingesting.is_empty()
                    && !has_failed
                {
                    self.health.compaction_succeeded();
                }
                return;
            };
            let Some(claim) = Claim::take(&plan) else {
                return;
            };
            state
                .jobs
                .compactions
                .push(plan.output_range(&family.options.comparator));
            self.begin_relocation(&mut state, &plan);
            drop(state);
            self.start(plan, family, claim);
        }
    }

    fn start(self: &Arc<Self>, plan: Plan, family: FamilyEntry, claim: Claim) {
        // Reads indexes to find even cuts: outside the lock.
        let ranges = subranges(
            &family.options.comparator,
            &plan,
            family.options.table_bytes,
            self.parts_of(&plan, &family),
        );
        let ranges = match plan.output_level {
            // One table.
            0 => vec![(None, None)],
            _ => ranges,
        };
        let parts = ranges.len();
        let (epoch, number) = self.tree.lock().begin_compaction();
        let running = Arc::new(Running {
            epoch,
            plan,
            family,
            // After the inputs were chosen; see `live_snapshots`.
            snapshots: self.tree.live_snapshots(),
            now_ms: self.ctx.env.clock().wall_ms(),
            began: self.ctx.env.clock().now(),
            claim: Mutex::new(Some(claim)),
            number,
            ranges,
            parts: Mutex::new((0..parts).map(|_| None).collect()),
        });
        self.ctx.notify(|| Event::CompactionBegin(running.info()));
        for part in 0..parts {
            let (engine, running) = (self.clone(), running.clone());
            self.ctx.jobs.spawn(JobPriority::Compaction, move || {
                engine.run_part(&running, part, engine.ctx.closing(), &|| ());
            });
        }
    }

    /// Carries out one part. The last one to end installs what all made, and returns how that went.
    fn run_part(
        self: &Arc<Self>,
        running: &Arc<Running>,
        part: usize,
        cancelled: &AtomicBool,
        table_begun: &(dyn Fn() + Sync),
    ) -> Option<Result<()>> {
        let outcome = if running.plan.trivial_move {
            Ok(Outcome::default())
        } else {
            run(&CompactionJob {
                env: self.ctx.env.clone(),
                store: self.ctx.tables.clone(),
                plan: &running.plan,
                options: &running.family.options,
                family: running.family.in_table(),
                snapshots: &running.snapshots,
                now_ms: running.now_ms,
                new_file_number: &|| {
                    table_begun();
                    self.tree.new_file_number()
                },
                cancelled,
                blobs: &|| self.tree.view().version.blobs.clone(),
                allowance: &|relocated| self.pressure.merge_allowance(relocated, &self.tree.view()),
                flush_flag: self.tree.flush_flag(running.family.id),
                range: Some(running.ranges[part].clone()).filter(|r| *r != (None, None)),
            })
        };
        let finished = {
            let mut parts = running.parts.lock();
            parts[part] = Some(outcome);
            parts
                .iter()
                .all(|p| p.is_some())
                .then(|| std::mem::take(&mut *parts))
        };
        let parts = finished?;
        let finished = self.finish(running, parts.into_iter().flatten().collect());
        let finished = finished.map_err(|e| self.unless_dropped(running, e));
        let result = finished.as_ref().map(|_| ()).map_err(Clone::clone);
        self.finish_accounting(running, result.clone());
        self.report_end(running, finished);
        if result.is_ok() {
            self.note_level0_rate(running);
        }
        self.background.schedule();
        self.ctx.env.jobs().notify();
        Some(result)
    }

    /// Returns `e`, or `Cancelled` if the family was dropped meanwhile. An error in a dropped
    /// family concerns no caller: its blob files may be gone.
    fn unless_dropped(&self, running: &Running, e: Error) -> Error {
        match self.tree.view().families.contains_key(&running.family.id) {
            true => e,
            false => Error::new(
                ErrorKind::Cancelled,
                format!(
                    "the compaction ended with family {:?}, which was dropped",
                    running.family.name
                ),
            ),
        }
    }

    /// Reports to the throttle how fast level 0 passes its tables on.
    fn note_level0_rate(&self, running: &Running) {
        let bytes: u64 = running
            .plan
            .inputs
            .iter()
            .filter(|(level, _)| *level == 0)
            .flat_map(|(_, tables)| tables.iter().map(|t| t.meta.size))
            .sum();
        if bytes == 0 {
            return;
        }
        let view = self.tree.view();
        let more = view
            .version
            .families
            .get(&running.plan.family)
            .is_some_and(|v| v.levels[0].len() >= running.family.options.l0_compaction_trigger);
        self.pressure.drain().note_level0_merge(
            bytes,
            running.began,
            self.ctx.env.clock().now(),
            more,
        );
    }

    fn finish_accounting(self: &Arc<Self>, running: &Running, result: Result<()>) {
        let mut state = self.tree.lock();
        let reach = running
            .plan
            .output_range(&running.family.options.comparator);
        let at = state.jobs.compactions.iter().position(|r| *r == reach);
        state
            .jobs
            .compactions
            .swap_remove(at.expect("noted when it began"));
        state.blobs.end(running.epoch);
        self.end_relocation(&mut state, &running.plan);
        // Under the lock: the next choice sees the new version and these tables free in one step.
        *running.claim.lock() = None;
        match result {
            Ok(()) => {
                self.health.compaction_succeeded();
                self.pressure.note_urgent(&self.tree.view());
            }
            Err(e) if ended_early(&e) => {}
            // This compaction is optional: the store is as good as before, and the reads that paid
            // for it are spent.
            Err(_) if running.plan.reason == CompactionReason::Reads => {
                for t in running.plan.input_tables() {
                    t.reset_extra_reads();
                }
            }
            // This compaction is optional, too: scans have to pay for it again.
            Err(_) if running.plan.reason == CompactionReason::Relocation => {}
            Err(e) => {
                // Deletes go on, and would fill the remaining space: a merge that surely fits is
                // due at once.
                let guessed = self
                    .pressure
                    .room_for_merges(&self.tree.view())
                    .is_some_and(|full| !full.must_fit);
                let at_once = guessed && e.kind() == ErrorKind::NoSpace;
                let e = e.context(format!("compacting family {:?}", running.family.name));
                self.health.compaction_failed(e, at_once);
                self.pressure.note_urgent(&self.tree.view());
                drop(state);
                self.background.retry_later();
            }
        }
    }

    fn report_end(&self, running: &Running, finished: Result<CompactionResult>) {
        if self.ctx.events.has_no_listeners() {
            return;
        }
        let error = finished.as_ref().err().cloned();
        let done = finished.unwrap_or_default();
        for t in &done.outputs {
            if !running.plan.trivial_move {
                self.ctx.notify(|| Event::TableCreated(t.clone()));
            }
        }
        let failed = error.clone().filter(|e| !ended_early(e));
        self.ctx.notify(|| Event::CompactionEnd {
            compaction: running.info(),
            outputs: done.outputs,
            bytes_read: done.bytes_read,
            bytes_written: done.bytes_written,
            took: self.ctx.env.clock().now().saturating_sub(running.began),
            error,
        });
        if let Some(error) = failed {
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Compaction,
                error,
            });
        }
    }

    /// Installs the results of a plan's parts. If a part or the install failed, nothing has changed
    /// and the files of the parts are removed. If the manifest may name those files, they are kept
    /// until a fresh manifest is current.
    fn finish(
        self: &Arc<Self>,
        running: &Running,
        parts: Vec<Result<Outcome>>,
    ) -> Result<CompactionResult> {
        let plan = &running.plan;
        let listed_table = |number: u64, meta: &TableMeta| {
            table_info(&running.family.name, plan.output_level, number, meta)
        };
        let mut edit = Edit::default();
        for (level, tables) in &plan.inputs {
            let removed = tables
                .iter()
                .map(|t| (plan.family, *level as u32, t.number));
            edit.remove_tables.extend(removed);
        }
        let add = |number, meta| AddTable {
            family: plan.family,
            level: plan.output_level as u32,
            number,
            meta,
            location: FileLocation::Local,
        };
        if plan.trivial_move {
            // The family may have been dropped meanwhile. The install then leaves its tables out.
            let catalog = self.tree.catalog();
            let tables = catalog.families.get(&plan.family).map(|f| &f.tables);
            edit.add_tables.extend(plan.input_tables().map(|t| {
                let listed = tables.and_then(|tables| tables.get(&t.number));
                AddTable {
                    location: listed.map_or(FileLocation::Local, |t| t.location),
                    ..add(t.number, TableMeta::clone(&t.meta))
                }
            }));
            self.tree.install(edit, Vec::new(), |_, _| ())?;
            self.ctx.counters.levels.compacted(plan, 0, 0);
            return Ok(CompactionResult {
                outputs: plan
                    .input_tables()
                    .map(|t| listed_table(t.number, &t.meta))
                    .collect(),
                ..CompactionResult::default()
            });
        }
        let mut files: Vec<PathBuf> = Vec::new();
        let mut outcomes = Vec::new();
        let mut failed = None;
        for part in parts {
            match part {
                Ok(o) => {
                    files.extend(o.outputs.iter().map(|(n, _)| self.ctx.tables.path(*n)));
                    files.extend(o.blobs.iter().map(|(n, _)| self.ctx.tables.blob_path(*n)));
                    outcomes.push(o);
                }
                Err(e) => failed = Some(e),
            }
        }
        let whole = match failed {
            Some(e) => Err(e),
            None => combine(plan, outcomes),
        };
        let synced = whole.and_then(|o| {
            if !files.is_empty() {
                self.ctx.env.fs().sync_metadata(&self.ctx.dir)?;
            }
            Ok(o)
        });
        let outcome = match synced {
            Ok(o) => o,
            Err(e) => {
                self.ctx.remove_files(&files);
                return Err(e);
            }
        };
        self.ctx.counters.compaction_read.add(outcome.bytes_read);
        self.ctx
            .counters
            .compaction_written
            .add(outcome.bytes_written);
        let done = CompactionResult {
            outputs: outcome
                .outputs
                .iter()
                .map(|(n, m)| listed_table(*n, m))
                .collect(),
            bytes_read: outcome.bytes_read,
            bytes_written: outcome.bytes_written,
        };
        edit.add_tables
            .extend(outcome.outputs.into_iter().map(|(n, m)| add(n, m)));
        edit.add_blobs
            .extend(outcome.blobs.into_iter().map(|(number, meta)| AddBlob {
                number,
                meta: Arc::new(meta),
                location: FileLocation::Local,
            }));
        for error in outcome.unreadable_indexes {
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Compaction,
                error: error.context(
                    "the index of a blob file was derived from its records; run `basalt check`",
                ),
            });
        }
        self.note_hits(plan, outcome.dead.len() as u64 - outcome.moved_records);
        let blobs = BlobChange {
            dead: outcome.dead,
            gc: None,
        };
        let made: Vec<u64> = edit.add_blobs.iter().map(|b| b.number).collect();
        self.note_dropped_tombstones(plan, &running.family);
        self.tree.install_with(edit, files, blobs, |_, _| ())?;
        self.cache_moves(&outcome.renamed, &made);
        self.ctx.counters.relocated.add(outcome.moved);
        self.ctx
            .counters
            .levels
            .compacted(plan, done.bytes_read, done.bytes_written);
        Ok(done)
    }

    /// Records how often a moved reference had an older reference below it. The estimate of hidden
    /// garbage uses this rate.
    fn note_hits(&self, plan: &Plan, dead: u64) {
        if plan.level == plan.output_level {
            return;
        }
        let upper = plan.inputs[0].1.iter();
        let (references, deletes) = upper.fold((0, 0), |(r, d), t| {
            let own: u64 = t.meta.references.iter().map(|(_, n)| n).sum();
            (r + own, d + t.meta.deletes)
        });
        let hidden = dead.saturating_sub(deletes);
        self.pressure
            .space_amp()
            .note_hits(plan.family, references, hidden);
    }

    /// Runs a plan on the calling thread. If `cancelled` is set, the run ends with `Cancelled`.
    /// `table_begun` is called with each table that the run begins.
    pub(super) fn run_on_this_thread(
        self: &Arc<Self>,
        plan: Plan,
        family: FamilyEntry,
        claim: Claim,
        cancelled: &AtomicBool,
        table_begun: &(dyn Fn() + Sync),
    ) -> Result<()> {
        let (epoch, number) = self.tree.lock().begin_compaction();
        let running = Running {
            epoch,
            plan,
            family,
            snapshots: self.tree.live_snapshots(),
            now_ms: self.ctx.env.clock().wall_ms(),
            began: self.ctx.env.clock().now(),
            claim: Mutex::new(Some(claim)),
            number,
            ranges: vec![(None, None)],
            parts: Mutex::new(vec![None]),
        };
        let running = Arc::new(running);
        self.ctx.notify(|| Event::CompactionBegin(running.info()));
        // Errors are recorded for all callers; this caller receives only the errors of its own
        // plan.
        let run = AssertUnwindSafe(|| self.run_part(&running, 0, cancelled, table_begun));
        match catch_unwind(run) {
            Ok(ended) => ended.expect("a plan of one part ends with it"),
            Err(panic) => {
                // The panic came from the caller's code, in a callback or a filter. Nothing was
                // installed, and other jobs must not wait for this one forever.
                let reach = running
                    .plan
                    .output_range(&running.family.options.comparator);
                let mut state = self.tree.lock();
                if let Some(at) = state.jobs.compactions.iter().position(|r| *r == reach) {
                    state.jobs.compactions.swap_remove(at);
                    state.blobs.end(running.epoch);
                    self.end_relocation(&mut state, &running.plan);
                }
                *running.claim.lock() = None;
                drop(state);
                self.background.schedule();
                self.ctx.env.jobs().notify();
                resume_unwind(panic)
            }
        }
    }
}
