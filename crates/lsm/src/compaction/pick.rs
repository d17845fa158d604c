//! The picker: which tables to merge next.
//!
//! Level sizes are dynamic, as RocksDB's `level_compaction_dynamic_level_bytes`. The real size of
//! the largest level sets the targets upwards, each a `level_multiplier` smaller, until one is not
//! above `MAX_BASE_FACTOR` times `base_level_bytes`. That is the base level, which level 0 merges
//! into; the levels between stay empty. The bottom then holds nine tenths of the data, and space
//! amplification by overwritten versions stays near 1.1. The base level is never below a level that
//! holds data, so newer versions never pass older ones.
//!
//! Choices, in order of precedence:
//! 1. The level with the highest score of at least 1. Level 0: tables over the trigger, or bytes
//!    over `base_level_bytes`. Others: bytes over target. Any: bytes of blob files that its entries
//!    hide (`hidden_garbage`). Tables that a running compaction has do not count.
//! 2. Level 0 if its tables have cost readers enough and no writes come (decision 0017).
//! 3. Tables whose values have been expired for long enough, soonest expiry first.
//! 4. Tables that consist mostly of tombstones, a range tombstone counting as many. They are pushed
//!    down, or rewritten in place at the bottom.
//! 5. Tables of the bottom with references to values whose relocation scans have paid for
//!    (`relocation_pick`).
//!
//! Inside a level the table with the least overlap below for its size goes first. The older a
//! table, the less its overlap counts, so that every table is merged at some time.

mod level0;
mod levels;
mod manual;
mod plan;
mod span;
mod tables;

pub use level0::paid_by_reads;
pub use levels::{compaction_debt, level_targets, scores};
pub use manual::{RangePlan, plan_range};
pub(super) use plan::ENTRIES_A_RANGE;
pub use plan::{Claim, CompactionReason, Plan};
pub use span::OutputRange;

use super::hidden_garbage::HiddenGarbageModel;
use super::relocation_pick::RelocationSet;
use crate::compaction::output::GRANDPARENT_FACTOR;
use crate::options::FamilyOptions;
use crate::version::{FamilyVersion, LEVELS, TableFile};
use basalt_env::sync::atomic::Ordering as Atomic;
use basalt_kv::key::SeqNo;
use levels::{LAST, level_scores};
use span::{KeySpan, clean_cut};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tables::mostly_tombstones;

/// A plan takes at most this many times `table_bytes` from its starting level, unless one table and
/// the tables that must go with it are more.
const MAX_INPUT_FACTOR: u64 = 25;

/// The state that the picker decides by.
#[derive(Clone, Copy)]
pub struct PickContext<'a> {
    /// The family's id.
    pub family: u32,
    /// The family's tables.
    pub version: &'a FamilyVersion,
    /// The family's settings.
    pub options: &'a FamilyOptions,
    /// Wall time in milliseconds since 1970.
    pub now_ms: u64,
    /// Sequence number of the oldest live snapshot; `MAX_SEQ` if there is none.
    pub oldest_snapshot: SeqNo,
    /// Ranges that running compactions of any family write to.
    pub running: &'a [OutputRange],
    /// Ranges of tables that an ingestion is adding.
    pub entering: &'a [OutputRange],
    /// True if flushes follow each other so fast that level 0 will soon have more tables to merge
    /// with the same rewrite.
    pub urgent: bool,
    /// Known time without writes in which readers often went to the device.
    pub still_for: Duration,
    /// Estimates of the bytes in blob files that the family's entries hide.
    pub hidden_garbage: HiddenGarbageModel,
    /// Blob files whose values should be relocated.
    pub relocation_set: RelocationSet<'a>,
}

/// Returns true if no compaction has the table.
pub(super) fn is_idle(t: &TableFile) -> bool {
    !t.compacting.load(Atomic::SeqCst)
}

fn bytes_of<'a>(tables: impl IntoIterator<Item = &'a Arc<TableFile>>) -> u64 {
    tables.into_iter().map(|t| t.meta.size).sum()
}

fn same_tables(a: &[Arc<TableFile>], b: &[Arc<TableFile>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.number == y.number)
}

/// Returns the most useful compaction that can start now, if one is due. On a full disk,
/// compactions whose outputs probably fit go first.
pub fn pick(ctx: &PickContext<'_>) -> Option<Plan> {
    let mut too_large = None;
    let scores = level_scores(ctx.version, ctx.options, ctx.urgent, &ctx.hidden_garbage);
    for due in scores.iter().take_while(|s| s.score >= 1.0) {
        let plan = match due.level {
            0 => ctx.plan_due_l0(due.score, due.hidden_garbage),
            level => ctx.plan_due_level(level, due.score, due.hidden_garbage),
        };
        match plan {
            Some(plan) if ctx.fits(&plan) => return Some(plan),
            plan => too_large = too_large.or(plan),
        }
    }
    let fits = |plan: &Plan| ctx.fits(plan);
    (ctx.plan_read_triggered().filter(fits))
        .or_else(|| ctx.plan_expired().filter(fits))
        .or_else(|| ctx.plan_tombstones().filter(fits))
        .or_else(|| ctx.plan_relocation().filter(fits))
        .or(too_large)
}

impl PickContext<'_> {
    /// Plans a compaction of level 0, which is due by its score.
    fn plan_due_l0(&self, score: f64, hidden_garbage: bool) -> Option<Plan> {
        let tables = self.version.levels[0].len();
        let reason = if hidden_garbage {
            CompactionReason::HiddenGarbage
        } else if tables >= self.options.l0_compaction_trigger {
            CompactionReason::L0Tables
        } else {
            CompactionReason::L0Bytes
        };
        let plan = self.plan_l0(reason, score);
        match plan.as_ref().is_none_or(|plan| self.fits(plan)) {
            true => plan,
            false => self.plan_intra_l0(reason, score).or(plan),
        }
    }

    /// Plans a compaction of a level below 0, which is due by its score.
    fn plan_due_level(&self, level: usize, score: f64, hidden_garbage: bool) -> Option<Plan> {
        let reason = match hidden_garbage {
            true => CompactionReason::HiddenGarbage,
            false => CompactionReason::LevelBytes,
        };
        let candidates = self.candidates(level).into_iter();
        let mut plans = candidates.filter_map(|t| {
            let start = clean_cut(self.version, level, vec![t]);
            self.plan(level, level + 1, start, reason, score)
        });
        let first = plans.next();
        match first.as_ref().is_none_or(|plan| self.fits(plan)) {
            true => first,
            false => plans.find(|plan| self.fits(plan)).or(first),
        }
    }

    fn max_input_bytes(&self) -> u64 {
        self.options.table_bytes.saturating_mul(MAX_INPUT_FACTOR)
    }

    /// Returns the plan for tables of one level that are a clean cut (in level 0, an older part of
    /// one). Returns `None` if another compaction has a table that the plan needs, or writes where
    /// the plan would.
    fn plan(
        &self,
        level: usize,
        output_level: usize,
        start: Vec<Arc<TableFile>>,
        reason: CompactionReason,
        score: f64,
    ) -> Option<Plan> {
        let v = self.version;
        if start.is_empty() || !start.iter().all(|t| is_idle(t)) {
            return None;
        }
        let (start, merged) = match output_level == level {
            true => (start, Vec::new()),
            false => self.with_overlap(level, output_level, start),
        };
        if !merged.iter().all(|t| is_idle(t)) {
            return None;
        }
        let mut all = start.clone();
        all.extend(merged.iter().cloned());
        let span = KeySpan::of(&v.cmp, &all).expect("not empty");
        // Free inputs are not enough: the outputs of a running compaction, and of this one, need
        // not lie inside the inputs. Keys may have come down into a gap between them.
        let crossed = (self.running.iter().chain(self.entering))
            .any(|r| r.overlaps_span(&v.cmp, self.family, output_level, &span));
        if crossed {
            return None;
        }
        let lower = |l: usize| span.tables(v, l);
        let deeper: Vec<_> = (output_level + 1..LEVELS)
            .map(lower)
            .filter(|l| !l.is_empty())
            .collect();
        let grandparents = match output_level {
            LAST => Vec::new(),
            l => lower(l + 1),
        };
        let bottommost = deeper.is_empty();
        let trivial_move = output_level != level
            && merged.is_empty()
            && (level > 0 || start.len() == 1)
            && bytes_of(&grandparents)
                <= self.options.table_bytes.saturating_mul(GRANDPARENT_FACTOR)
            && !start.iter().any(|t| self.needs_rewrite(t, bottommost));
        let mut inputs = vec![(level, start)];
        if !merged.is_empty() {
            inputs.push((output_level, merged));
        }
        // Merges for other reasons should not wait for reads of values.
        let relocates = matches!(
            reason,
            CompactionReason::Relocation | CompactionReason::Manual
        );
        let relocated_files = match relocates && bottommost && !trivial_move {
            true => (self.relocation_set).files_of(inputs.iter().flat_map(|(_, tables)| tables)),
            false => BTreeSet::new(),
        };
        Some(Plan {
            family: self.family,
            level,
            output_level,
            inputs,
            trivial_move,
            bottommost,
            grandparents,
            deeper,
            relocated_files,
            reason,
            score,
        })
    }

    /// Returns `start`, with more tables of its level where these cost nothing in the output level,
    /// and the tables of the output level that overlap it.
    fn with_overlap(
        &self,
        level: usize,
        output_level: usize,
        start: Vec<Arc<TableFile>>,
    ) -> (Vec<Arc<TableFile>>, Vec<Arc<TableFile>>) {
        let v = self.version;
        let below = |start: &[Arc<TableFile>]| {
            let span = KeySpan::of(&v.cmp, start).expect("not empty");
            clean_cut(v, output_level, span.tables(v, output_level))
        };
        let merged = below(&start);
        if level == 0 || merged.is_empty() {
            return (start, merged);
        }
        let mut both = start.clone();
        both.extend(merged.iter().cloned());
        let span = KeySpan::of(&v.cmp, &both).expect("not empty");
        let wider = clean_cut(v, level, span.tables(v, level));
        let is_free = wider.len() > start.len()
            && wider.iter().all(|t| is_idle(t))
            && bytes_of(&wider) + bytes_of(&merged) <= self.max_input_bytes()
            && same_tables(&below(&wider), &merged);
        match is_free {
            true => (wider, merged),
            false => (start, merged),
        }
    }

    /// Returns true if a table should not just change its level. At the bottom it would keep the
    /// compression of the upper levels, or tombstones that a merge drops for good; and only a merge
    /// drops expired values. A changed number of filter bits is no reason: it costs reads of this
    /// table a little, and ends with the next merge of the table.
    fn needs_rewrite(&self, t: &TableFile, bottommost: bool) -> bool {
        let compression = self
            .options
            .bottom_compression
            .is_some_and(|c| c != self.options.compression);
        t.meta.soonest_expiry_ms <= self.now_ms
            || (bottommost && (compression || t.meta.range_deletes > 0 || mostly_tombstones(t)))
    }

    /// Returns true if the outputs of a plan probably fit the free space of a full disk. Always
    /// true if the disk is not full.
    fn fits(&self, plan: &Plan) -> bool {
        let Some(full) = self.hidden_garbage.full else {
            return true;
        };
        let expected = match full.must_fit {
            true => plan.input_bytes(),
            false => plan.estimated_output_bytes(),
        };
        plan.trivial_move || expected <= full.room
    }
}
