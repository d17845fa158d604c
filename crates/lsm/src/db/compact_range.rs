//! Manual compactions: a range is compacted out of every level, with progress, and can be
//! cancelled.

use super::context::ended_early;
use super::engine::Engine;
use super::families::FamilyEntry;
use super::manual_calls::{CompactControl, CompactProgress, ManualProgress};
use super::relocation_stats::RelocatableFiles;
use super::view::View;
use crate::compaction::{Claim, PickContext, Plan, RangePlan, plan_range};
use crate::version::{FamilyVersion, LEVELS};
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::family::Family;
use basalt_kv::key::SeqNo;
use std::sync::Arc;
use std::time::Duration;

/// Treatment of the deepest level that holds tables, because its tables have no lower level to go
/// to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Bottommost {
    /// The tables are rewritten in place. So deleted, overwritten and expired entries are removed,
    /// and new settings of tables take effect.
    #[default]
    Force,
    /// The tables stay, except those that entries from above are merged into. This saves the
    /// rewriting of most data.
    Skip,
    /// The level is treated as by `Force` if the family has a compaction filter, and otherwise as
    /// by `Skip`.
    IfFilter,
}

/// Callback that receives the progress of a compaction.
pub type OnProgress = Arc<dyn Fn(CompactProgress) + Send + Sync>;

/// Settings of [`super::Db::compact`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct CompactOptions {
    /// First user key, inclusive; `None` starts at the first key of the family.
    pub from: Option<Vec<u8>>,
    /// Last user key, exclusive; `None` ends after the last key of the family.
    pub to: Option<Vec<u8>>,
    /// Treatment of the deepest level. Default: rewritten. A family in pages has no levels: all of
    /// its leaves in the range are written again in any case.
    pub bottommost: Bottommost,
    /// Relocate the range's values that are in blob files: write them again in the order of their
    /// keys, so that scans read them in long stretches. A merge relocates values of the files of
    /// which it has at least half of the references. One merge has at most 25 tables of full size.
    ///
    /// Until the merge ends, old and new values both take space, and writers may be slowed for it
    /// ([`crate::Options::max_space_amp`]). Files stay as they are if the disk has no room for them
    /// beyond its reserve. Values that cannot be read stay, too.
    /// [`crate::db::BlobStats::relocated_bytes`] counts the relocated bytes. Needs
    /// [`Bottommost::Force`]. Default `false`.
    pub relocate_values: bool,
    /// Stop automatic compactions of the store during the call. The range is finished sooner, and
    /// writers may be held back for the stopped compactions. Default `false`: both run at the same
    /// time.
    pub exclusive: bool,
    /// Handle to cancel the compaction and to read its progress from another thread.
    pub control: CompactControl,
    /// Callback that is called on the compacting thread about once for each table, and at the end
    /// of each step. The callback should return soon, and must not close the store. Default none.
    pub progress: Option<OnProgress>,
}

crate::options::setters! { CompactOptions {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    bottommost: Bottommost,
    relocate_values: bool,
    exclusive: bool,
    control: CompactControl,
    progress: Option<OnProgress>,
} }

/// Guard of a call that closing waits for. The drop of the guard ends the wait.
pub(crate) struct CallGuard<'a> {
    engine: &'a Arc<Engine>,
    /// Number of the call in the list of calls.
    id: u64,
    exclusive: bool,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.engine.manual.end(self.id);
        // The thread that closes the store waits for this notification.
        self.engine.ctx.env.jobs().notify();
        if self.exclusive {
            self.engine.tree.lock().jobs.exclusive = false;
            self.engine.background.schedule();
            self.engine.ctx.env.jobs().notify();
        }
    }
}

/// Returns the deepest level that holds tables, except level 0. `None` if only level 0 may hold
/// tables.
fn deepest(v: &FamilyVersion) -> Option<usize> {
    (1..LEVELS).rev().find(|&l| !v.levels[l].is_empty())
}

/// Returns about how many table bytes are still to be merged, if `level` and the levels above it
/// are not yet done.
fn bytes_left(
    v: &FamilyVersion,
    level: usize,
    range: (Option<&[u8]>, Option<&[u8]>),
    rewrite: bool,
    before: u64,
) -> u64 {
    let bytes_in = |l: usize, numbers_below: u64| -> u64 {
        let tables = v.levels[l].iter();
        tables
            .filter(|t| t.overlaps(range.0, range.1) && t.number < numbers_below)
            .map(|t| t.meta.size)
            .sum()
    };
    let Some(deepest) = deepest(v) else {
        return bytes_in(0, u64::MAX);
    };
    let (mut left, mut carried) = (0, 0);
    for l in level..=deepest {
        let here = bytes_in(l, u64::MAX);
        if l == deepest && l > 0 {
            // Tables from above are merged into this level, so it is not rewritten separately.
            left += match carried {
                0 if rewrite => bytes_in(l, before),
                0 => 0,
                _ => carried + here,
            };
        } else {
            // Each byte is merged once on the way down, if the level holds tables. Moves cost no
            // merge.
            if carried > 0 && here > 0 {
                left += carried + here;
            }
            carried += here;
        }
    }
    left
}

impl Engine {
    fn cancelled(&self) -> Error {
        if self.ctx.is_closing() {
            return Error::new(ErrorKind::Closed, "the store is closed");
        }
        Error::new(
            ErrorKind::Cancelled,
            "the compaction was cancelled; its finished merges stay, and no data is lost",
        )
        .with_reach(Reach::Operation)
    }

    /// Waits for other exclusive compactions, then keeps automatic compactions from starting.
    /// Returns `false` if the compaction was cancelled during the wait. It also returns `false` if
    /// background jobs have failed, unless its turn came first.
    fn begin_exclusive(&self, control: &CompactControl) -> bool {
        let mut begun = false;
        self.ctx.env.jobs().wait_until(None, &mut || {
            begun = !std::mem::replace(&mut self.tree.lock().jobs.exclusive, true);
            begun || control.0.cancelled.load(SeqCst) || self.health.check_jobs().is_err()
        });
        begun
    }

    /// Keeps the store from leaving its directory until the guard is dropped. Closing cancels
    /// `control` and waits for the guard.
    ///
    /// Errors: `Closed` if the store is closing or closed.
    pub fn note_call(self: &Arc<Self>, control: CompactControl) -> Result<CallGuard<'_>> {
        let noted = CallGuard {
            engine: self,
            id: self.manual.begin(control),
            exclusive: false,
        };
        // This check must follow the call's entry in the list. Closing first sets the closed mark
        // and then reads the list of calls. So either this check sees the mark, or closing sees
        // this call.
        self.ctx.check_open()?;
        Ok(noted)
    }

    /// Compacts a range out of every level, on the calling thread.
    pub fn compact(self: &Arc<Self>, family: &Family, options: &CompactOptions) -> Result<()> {
        let control = &options.control;
        let mut noted = self.note_call(control.clone())?;
        self.pressure.update_free_space();
        if options.exclusive {
            noted.exclusive = self.begin_exclusive(control);
            self.health.check_jobs()?;
            if !noted.exclusive {
                return Err(self.cancelled());
            }
            let mut idle = || {
                self.tree.lock().jobs.compactions.is_empty()
                    || control.0.cancelled.load(SeqCst)
                    || self.health.check_jobs().is_err()
            };
            self.ctx.env.jobs().wait_until(None, &mut idle);
        }
        let compaction = RangeCompaction {
            engine: self,
            family,
            options,
            upto_seq: self.tree.visible(),
            first_new_number: self.tree.next_file_number(),
        };
        let result = compaction.run();
        // The error of a merge does not tell whether the caller or the closing store cancelled it.
        match result {
            Err(e) if ended_early(&e) => Err(self.cancelled()),
            other => other,
        }
    }
}

/// The result of one step of a range compaction.
enum Step {
    /// The level has more to do.
    Continue,
    /// The level has nothing left to do.
    LevelDone,
    /// The family has no tables, so no level has anything to do.
    NoTables,
}

/// The next thing to do in a level.
enum Next {
    /// The view changed while the plan was made: the plan is made again.
    ViewChanged,
    /// Nothing is left to do in the level.
    LevelDone,
    /// Run this plan, whose output range and inputs are claimed.
    Run(Box<Plan>, Claim),
    /// Wait for another job that has some of the tables.
    Wait(OtherJobs),
}

/// The jobs that ran when a step found its tables claimed.
struct OtherJobs {
    /// Number of running compactions.
    compactions: usize,
    /// True if an ingestion was adding tables.
    ingestion: bool,
}

/// A compaction of one range of a family out of every level, on the calling thread.
struct RangeCompaction<'a> {
    engine: &'a Arc<Engine>,
    family: &'a Family,
    options: &'a CompactOptions,
    /// Newest sequence number that was visible at the start. Data that is newer stays where it is.
    upto_seq: SeqNo,
    /// First file number that was free at the start. Tables from this number on are new, and are
    /// not rewritten again.
    first_new_number: u64,
}

impl RangeCompaction<'_> {
    /// Compacts the levels from 0 down.
    fn run(&self) -> Result<()> {
        let view = self.engine.tree.view();
        let pages = view
            .pages
            .get(&self.family.id())
            .map(|view| view.pages.clone());
        drop(view);
        if let Some(pages) = pages {
            let (from, to) = self.range();
            let goes_on = || self.check_continue().is_ok();
            let tree = pages.tree();
            tree.compact_range(from.unwrap_or_default(), to, &goes_on)?;
            pages.note_written();
            self.engine.background.schedule();
            self.report_progress();
            return self.check_continue();
        }
        for level in 0..LEVELS {
            loop {
                match self.step(level)? {
                    Step::Continue => {}
                    Step::LevelDone => break,
                    Step::NoTables => return Ok(()),
                }
            }
        }
        let control = self.control();
        control.total.store(control.done.load(SeqCst), SeqCst);
        self.report_progress();
        Ok(())
    }

    fn control(&self) -> &ManualProgress {
        &self.options.control.0
    }

    /// Returns the bounds of the range, as the caller gave them.
    fn range(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.options.from.as_deref(), self.options.to.as_deref())
    }

    /// Calls the caller's progress callback, if there is one.
    fn report_progress(&self) {
        if let Some(progress) = &self.options.progress {
            progress(self.options.control.progress());
        }
    }

    /// Returns the error that ends the compaction, if the store closes, background jobs fail, or
    /// the caller cancelled.
    fn check_continue(&self) -> Result<()> {
        self.engine.ctx.check_open()?;
        self.engine.health.check_jobs()?;
        match self.control().cancelled.load(SeqCst) {
            true => Err(self.engine.cancelled()),
            false => Ok(()),
        }
    }

    /// Returns whether the tables of the deepest level are rewritten.
    fn rewrites_bottom(&self, family: &FamilyEntry) -> bool {
        match self.options.bottommost {
            Bottommost::Force => true,
            Bottommost::Skip => false,
            Bottommost::IfFilter => family.options.compaction_filter.is_some(),
        }
    }

    /// Runs one merge or move out of a level, or waits for a job that is in the way.
    fn step(&self, level: usize) -> Result<Step> {
        self.check_continue()?;
        let view = self.engine.tree.view();
        self.engine.check_family(&view, self.family)?;
        let entry = view.families[&self.family.id()].clone();
        let Some(version) = view.version.families.get(&self.family.id()) else {
            return Ok(Step::NoTables);
        };
        let rewrite = self.rewrites_bottom(&entry);
        let left = bytes_left(version, level, self.range(), rewrite, self.first_new_number);
        let control = self.control();
        let done = control.done.load(SeqCst);
        control.total.store(done + left, SeqCst);
        control.level.store(level, SeqCst);
        self.report_progress();
        let in_place = level > 0 && deepest(version).is_none_or(|d| level >= d);
        if in_place && !rewrite {
            return Ok(Step::LevelDone);
        }
        match self.plan(level, &view, version, &entry) {
            Next::ViewChanged => {}
            Next::LevelDone => return Ok(Step::LevelDone),
            Next::Run(plan, claim) => self.run_plan(*plan, entry, claim, done)?,
            Next::Wait(others) => self.wait_for(&others)?,
        }
        Ok(Step::Continue)
    }

    /// Plans the next merge or move out of a level, and claims its tables and its output range.
    fn plan(
        &self,
        level: usize,
        view: &Arc<View>,
        version: &FamilyVersion,
        family: &FamilyEntry,
    ) -> Next {
        let engine = self.engine;
        let now_ms = engine.ctx.env.clock().wall_ms();
        let mut state = engine.tree.lock();
        let relocated = match self.options.relocate_values {
            true => engine.all_relocatable(
                &state,
                &engine.pressure.fill(state.catalog(), &state.blobs, view),
            ),
            false => RelocatableFiles::default(),
        };
        let ctx = PickContext {
            family: self.family.id(),
            version,
            options: &family.options,
            now_ms,
            oldest_snapshot: engine.tree.oldest_snapshot(),
            running: &state.jobs.compactions,
            entering: &state.jobs.ingesting,
            urgent: false,
            still_for: Duration::ZERO,
            hidden_garbage: Default::default(),
            relocation_set: relocated.relocation_set(),
        };
        if !Arc::ptr_eq(view, &engine.tree.view()) {
            return Next::ViewChanged;
        }
        let (from, to) = self.range();
        let claimed = match plan_range(&ctx, level, from, to, self.upto_seq, self.first_new_number)
        {
            RangePlan::Done => return Next::LevelDone,
            RangePlan::Busy => None,
            RangePlan::Plan(plan) => Claim::take(&plan).map(|claim| (plan, claim)),
        };
        let Some((plan, claim)) = claimed else {
            return Next::Wait(OtherJobs {
                compactions: state.jobs.compactions.len(),
                ingestion: !state.jobs.ingesting.is_empty(),
            });
        };
        let output = plan.output_range(&family.options.comparator);
        state.jobs.compactions.push(output);
        engine.begin_relocation(&mut state, &plan);
        Next::Run(plan, claim)
    }

    /// Runs a plan. `done` is the number of bytes that the steps before have merged.
    fn run_plan(&self, plan: Plan, family: FamilyEntry, claim: Claim, done: u64) -> Result<()> {
        let control = self.control();
        let most = if plan.trivial_move {
            0
        } else {
            plan.input_bytes()
        };
        // A step may need more tables than those that the range overlaps.
        control.total.fetch_max(done + most, SeqCst);
        let each = family.options.table_bytes;
        // When a table is begun, the table before it is finished.
        let outputs = AtomicU64::new(0);
        let table_begun = || {
            let before = outputs.fetch_add(1, SeqCst).saturating_mul(each);
            control.done.store(done + before.min(most), SeqCst);
            self.report_progress();
        };
        (self.engine).run_on_this_thread(plan, family, claim, &control.cancelled, &table_begun)?;
        control.done.store(done + most, SeqCst);
        Ok(())
    }

    /// Waits until one of the other jobs has ended, or the compaction has to end.
    ///
    /// Errors: `Busy` if the environment is stepped, and no queued job ends the wait.
    fn wait_for(&self, others: &OtherJobs) -> Result<()> {
        let engine = self.engine;
        let ended = engine.ctx.env.jobs().wait_until(None, &mut || {
            let s = engine.tree.lock();
            s.jobs.compactions.len() < others.compactions
                || (others.ingestion && s.jobs.ingesting.is_empty())
                || (others.compactions == 0 && !others.ingestion)
                || engine.ctx.is_closing()
                || self.control().cancelled.load(SeqCst)
                || engine.health.check_jobs().is_err()
        });
        match ended {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Busy,
                "a compaction of the range is queued and has not run",
            )),
        }
    }
}
