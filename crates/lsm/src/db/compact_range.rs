//! Manual compactions: a range is compacted out of every level, with progress, and can be
//! cancelled.

use super::engine::Engine;
use super::manual_calls::{CompactControl, CompactProgress};
use super::relocation_stats::Paid;
use crate::compaction::{Claim, PickContext, RangePlan, plan_range};
use crate::version::{FamilyVersion, LEVELS};
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::this_thread;
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::family::Family;
use std::sync::Arc;

/// Treatment of the deepest level that holds tables, because its tables have no lower level to go
/// to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
pub struct CompactOptions {
    /// First user key, inclusive; `None` starts at the first key of the family.
    pub from: Option<Vec<u8>>,
    /// Last user key, exclusive; `None` ends after the last key of the family.
    pub to: Option<Vec<u8>>,
    /// Treatment of the deepest level. Default: rewritten.
    pub bottommost: Bottommost,
    /// Relocate the range's values that are in blob files: write them again in the order of their
    /// keys, so that scans read them in long stretches. A merge relocates values of the files of
    /// which it has at least half of the references. One merge has at most 25 tables of full size.
    ///
    /// Until the merge ends, old and new values both take space, and writers may be slowed for it
    /// ([`crate::Options::max_space_amp`]). Files stay as they are if the disk has no room for them
    /// beyond its reserve. Values that cannot be read stay, too.
    /// [`crate::db::BlobStats::gathered_bytes`] counts the relocated bytes. Needs
    /// [`Bottommost::Force`]. Default `false`.
    pub gather_values: bool,
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

/// Guard of a call that closing waits for. The drop of the guard ends the wait.
pub(crate) struct Noted<'a> {
    engine: &'a Arc<Engine>,
    control: CompactControl,
    exclusive: bool,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let ours = |c: &CompactControl| Arc::ptr_eq(&c.0, &self.control.0);
        self.engine.manual.0.lock().retain(|(_, c)| !ours(c));
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
    pub fn note_call(self: &Arc<Self>, control: CompactControl) -> Result<Noted<'_>> {
        self.manual.0.lock().push((this_thread(), control.clone()));
        let noted = Noted {
            engine: self,
            control,
            exclusive: false,
        };
        // This check must follow the push. Closing first sets the closed mark and then reads the
        // list of calls. So either this check sees the mark, or closing sees this call.
        self.ctx.check_open()?;
        Ok(noted)
    }

    /// Compacts a range out of every level, on the calling thread.
    pub fn compact(self: &Arc<Self>, family: &Family, options: &CompactOptions) -> Result<()> {
        let control = &options.control;
        let mut noted = self.note_call(control.clone())?;
        self.pressure.see_what_is_free();
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
        let result = self.compact_levels(family, options);
        // A cancelled merge ends with `Closed`, whether the caller or the closing store cancelled
        // it.
        match result {
            Err(e) if e.kind() == ErrorKind::Closed => Err(self.cancelled()),
            other => other,
        }
    }

    fn compact_levels(self: &Arc<Self>, family: &Family, options: &CompactOptions) -> Result<()> {
        let control = &*options.control.0;
        let (from, to) = (options.from.as_deref(), options.to.as_deref());
        let upto_seq = self.tree.visible();
        let rewritten_before = self.tree.next_file_number();
        let tell = || {
            if let Some(progress) = &options.progress {
                progress(options.control.progress());
            }
        };
        for level in 0..LEVELS {
            loop {
                self.ctx.check_open()?;
                self.health.check_jobs()?;
                if control.cancelled.load(SeqCst) {
                    return Err(self.cancelled());
                }
                let view = self.tree.view();
                self.check_family(&view, family)?;
                let entry = view.families[&family.id()].clone();
                let Some(version) = view.version.families.get(&family.id()) else {
                    return Ok(());
                };
                let rewrite = match options.bottommost {
                    Bottommost::Force => true,
                    Bottommost::Skip => false,
                    Bottommost::IfFilter => entry.options.compaction_filter.is_some(),
                };
                let left = bytes_left(version, level, (from, to), rewrite, rewritten_before);
                let done = control.done.load(SeqCst);
                control.total.store(done + left, SeqCst);
                control.level.store(level, SeqCst);
                tell();
                let in_place = level > 0 && deepest(version).is_none_or(|d| level >= d);
                if in_place && !rewrite {
                    break;
                }
                let now_ms = self.ctx.env.clock().wall_ms();
                let mut state = self.tree.lock();
                let gathered = match options.gather_values {
                    true => self.all_relocatable(
                        &state,
                        &self.pressure.fill(state.catalog(), &state.blobs, &view),
                    ),
                    false => Paid::default(),
                };
                let ctx = PickContext {
                    family: family.id(),
                    version,
                    options: &entry.options,
                    now_ms,
                    oldest_snapshot: self.tree.oldest_snapshot(),
                    running: &state.jobs.compactions,
                    entering: &state.jobs.ingesting,
                    urgent: false,
                    still_for: std::time::Duration::ZERO,
                    hidden_garbage: Default::default(),
                    relocation_set: gathered.relocation_set(),
                };
                let step = if Arc::ptr_eq(&view, &self.tree.view()) {
                    plan_range(&ctx, level, from, to, upto_seq, rewritten_before)
                } else {
                    continue;
                };
                let claimed = match step {
                    RangePlan::Done => break,
                    RangePlan::Busy => None,
                    RangePlan::Plan(plan) => Claim::take(&plan).map(|c| (*plan, c)),
                };
                match claimed {
                    Some((plan, claim)) => {
                        state
                            .jobs
                            .compactions
                            .push(plan.output_range(&entry.options.comparator));
                        self.begin_relocation(&mut state, &plan);
                        drop(state);
                        let most = if plan.trivial_move {
                            0
                        } else {
                            plan.input_bytes()
                        };
                        // A step may need more tables than those that the range overlaps.
                        control.total.fetch_max(done + most, SeqCst);
                        let each = entry.options.table_bytes;
                        // When a table is begun, the table before it is finished.
                        let outputs = AtomicU64::new(0);
                        let table_begun = || {
                            let before = outputs.fetch_add(1, SeqCst).saturating_mul(each);
                            control.done.store(done + before.min(most), SeqCst);
                            tell();
                        };
                        self.run_here(plan, entry, claim, &control.cancelled, &table_begun)?;
                        control.done.store(done + most, SeqCst);
                    }
                    None => {
                        let running = state.jobs.compactions.len();
                        let entering = !state.jobs.ingesting.is_empty();
                        drop(state);
                        let ended = self.ctx.env.jobs().wait_until(None, &mut || {
                            let s = self.tree.lock();
                            s.jobs.compactions.len() < running
                                || (entering && s.jobs.ingesting.is_empty())
                                || (running == 0 && !entering)
                                || self.ctx.is_closing()
                                || control.cancelled.load(SeqCst)
                                || self.health.check_jobs().is_err()
                        });
                        if !ended {
                            return Err(Error::new(
                                ErrorKind::Busy,
                                "a compaction of the range is queued and has not run",
                            ));
                        }
                    }
                }
            }
        }
        control.total.store(control.done.load(SeqCst), SeqCst);
        tell();
        Ok(())
    }
}
