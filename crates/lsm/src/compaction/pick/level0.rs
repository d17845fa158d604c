//! Compactions out of level 0: into the base level, inside level 0 on a full disk, and for readers.

use super::span::clean_cut;
use super::{CompactionReason, PickContext, Plan, is_idle, level_targets};
use crate::options::FamilyOptions;
use crate::version::FamilyVersion;
use std::time::Duration;

/// Bytes that a merge moves in about the time of one read of the device.
pub const BYTES_A_READ: u64 = 64 << 10;

/// Time without writes after which level 0 may be merged for readers.
const MIN_WRITE_IDLE: Duration = Duration::from_secs(1);

/// Bytes that a merge moves in one millisecond. Level 0 is merged for readers only after
/// [`MIN_WRITE_IDLE`] and as much longer as the merge will take.
const MERGED_A_MS: u64 = 512 << 10;

/// Returns the time without writes after which so many bytes may be rewritten for readers.
pub fn still_before_rewrite(bytes: u64) -> Duration {
    MIN_WRITE_IDLE + Duration::from_millis(bytes / MERGED_A_MS)
}

/// Returns the bytes that merging level 0 rewrites, if its tables have cost readers as much. `None`
/// otherwise (decision 0017).
pub fn paid_by_reads(version: &FamilyVersion, options: &FamilyOptions) -> Option<u64> {
    let l0 = &version.levels[0];
    if !options.l0_compaction_for_reads || l0.is_empty() {
        return None;
    }
    let extra_reads: u64 = l0.iter().map(|t| t.extra_reads()).sum();
    let paid = extra_reads.saturating_mul(BYTES_A_READ);
    if paid < version.level_bytes(0) {
        return None;
    }
    let base = level_targets(version, options).base_level;
    let cost = version.level_bytes(0) + version.level_bytes(base);
    (paid >= cost).then_some(cost)
}

impl PickContext<'_> {
    /// Plans a merge of level 0 into the base level: the oldest table and all tables that overlap
    /// it directly or through others. If these are too many bytes, the plan takes only the oldest
    /// of them, which may go before newer ones. On a full disk the plan takes all of them if the
    /// outputs probably fit.
    pub(super) fn plan_l0(&self, reason: CompactionReason, score: f64) -> Option<Plan> {
        let tables = &self.version.levels[0];
        if !tables.iter().all(|t| is_idle(t)) {
            return None;
        }
        let base = level_targets(self.version, self.options).base_level;
        let oldest = tables.last()?.clone();
        let mut start = clean_cut(self.version, 0, vec![oldest]);
        if self.hidden_garbage.full.is_some()
            && let Some(plan) = self.plan(0, base, start.clone(), reason, score)
            && self.fits(&plan)
        {
            // The newest tables have the tombstones that make the merge small.
            return Some(plan);
        }
        let mut bytes = 0;
        let fits = start
            .iter()
            .rev()
            .take_while(|t| {
                bytes += t.meta.size;
                bytes <= self.max_input_bytes()
            })
            .count()
            .max(1);
        start.drain(..start.len() - fits);
        self.plan(0, base, start, reason, score)
    }

    /// Plans a merge of the newest tables of level 0 into one table of level 0, as many as probably
    /// fit. For a full disk where a merge of all of level 0 does not fit. Tombstones in these
    /// tables then free values in the others. Level 0 always has fewer tables afterwards, so
    /// deletes can continue.
    pub(super) fn plan_intra_l0(&self, reason: CompactionReason, score: f64) -> Option<Plan> {
        let tables = &self.version.levels[0];
        if !tables.iter().all(|t| is_idle(t)) {
            return None;
        }
        (2..=tables.len()).rev().find_map(|n| {
            let (newest, older) = tables.split_at(n);
            let first = newest.iter().map(|t| t.meta.min_seq).min()?;
            if older.iter().any(|t| t.meta.max_seq >= first) {
                return None;
            }
            let mut plan = self.plan(0, 0, newest.to_vec(), reason, score)?;
            // Older tables of level 0 count as deeper than the output.
            plan.deeper.extend(older.iter().map(|t| vec![t.clone()]));
            plan.bottommost = plan.deeper.is_empty();
            self.fits(&plan).then_some(plan)
        })
    }

    /// Plans a merge of level 0 if its tables have cost readers as much as the merge costs. The
    /// longer the merge takes, the longer no write must have come: the next burst of writes would
    /// wait for the merge.
    pub(super) fn plan_read_triggered(&self) -> Option<Plan> {
        if self.still_for < MIN_WRITE_IDLE {
            return None;
        }
        let cost = paid_by_reads(self.version, self.options)?;
        if self.still_for < still_before_rewrite(cost) {
            return None;
        }
        self.plan_l0(CompactionReason::Reads, 0.0)
    }
}
