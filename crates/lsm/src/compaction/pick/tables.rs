//! Compactions for single tables: expired values, tombstones, values to relocate.

use super::plan::ENTRIES_A_RANGE;
use super::span::clean_cut;
use super::{CompactionReason, PickContext, Plan, bytes_of, is_idle};
use crate::version::{LEVELS, TableFile};
use std::sync::Arc;

/// Bytes a second at which tables with expired values are rewritten at most. A table is due when
/// its soonest expiry is as long ago as rewriting all tables with expiries would take.
const EXPIRY_BYTES_PER_S: u64 = 16 << 20;

/// Milliseconds after an expiry before which no compaction acts on it.
const EXPIRY_LAG_MS: u64 = 60_000;

/// Returns true if tombstones are at least a third of the table's entries. A range tombstone counts
/// as [`ENTRIES_A_RANGE`], because it hides many entries.
pub(super) fn mostly_tombstones(t: &TableFile) -> bool {
    let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
    let deletes = t.meta.deletes.saturating_add(ranges);
    deletes > 0 && deletes.saturating_mul(3) >= t.meta.entries
}

impl PickContext<'_> {
    /// Returns the idle tables of a level in the order in which they should move down. The table
    /// with the least overlap below for its size comes first.
    pub(super) fn candidates(&self, level: usize) -> Vec<Arc<TableFile>> {
        let v = self.version;
        let (here, below) = (&v.levels[level], &v.levels[level + 1]);
        let newest = v
            .levels
            .iter()
            .flatten()
            .map(|t| t.number)
            .max()
            .unwrap_or(0);
        let mut at = 0;
        let mut ranked: Vec<(f64, &Arc<TableFile>)> = Vec::with_capacity(here.len());
        for t in here {
            while at < below.len() && below[at].ends_before(t.smallest_user()) {
                at += 1;
            }
            let overlap =
                bytes_of((below[at..].iter()).take_while(|b| !t.ends_before(b.smallest_user())));
            if !is_idle(t) {
                continue;
            }
            // Tombstones free space below, so a table of tombstones counts as up to five times its
            // size. A range tombstone frees the most.
            let deletes = t.meta.deletes as f64 / t.meta.entries.max(1) as f64;
            let deletes = if t.meta.range_deletes > 0 {
                1.0
            } else {
                deletes
            };
            let weight = t.meta.size.max(1) as f64 * (1.0 + 4.0 * deletes);
            // Every newer table adds to the age. After as many new tables as the level has, the age
            // halves the overlap.
            let age = (newest - t.number) as f64 / here.len() as f64;
            ranked.push((overlap as f64 / weight / (1.0 + age), t));
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.number.cmp(&b.1.number)));
        ranked.into_iter().map(|(_, t)| t.clone()).collect()
    }

    /// Plans a merge of one table into the next level if a deeper level overlaps it, and a rewrite
    /// in place otherwise.
    fn plan_table(
        &self,
        level: usize,
        t: &Arc<TableFile>,
        reason: CompactionReason,
    ) -> Option<Plan> {
        if level == 0 {
            return self.plan_l0(reason, 0.0);
        }
        let overlaps_deeper =
            (level + 1..LEVELS).any(|l| self.version.levels[l].iter().any(|b| b.meets(t)));
        let output_level = if overlaps_deeper { level + 1 } else { level };
        let start = clean_cut(self.version, level, vec![t.clone()]);
        self.plan(level, output_level, start, reason, 0.0)
    }

    /// Plans a compaction of a table whose values have been expired for long enough, soonest expiry
    /// first.
    pub(super) fn plan_expired(&self) -> Option<Plan> {
        let with_expiry = || {
            self.version.levels.iter().enumerate().flat_map(|(l, ts)| {
                ts.iter()
                    .filter(|t| t.meta.soonest_expiry_ms != u64::MAX)
                    .map(move |t| (l, t))
            })
        };
        let bytes = bytes_of(with_expiry().map(|(_, t)| t));
        let lag = EXPIRY_LAG_MS.max(bytes.saturating_mul(1000) / EXPIRY_BYTES_PER_S);
        let mut due: Vec<_> = with_expiry()
            .filter(|(_, t)| t.meta.soonest_expiry_ms.saturating_add(lag) <= self.now_ms)
            .collect();
        due.sort_by_key(|(_, t)| (t.meta.soonest_expiry_ms, t.number));
        due.into_iter()
            .find_map(|(l, t)| self.plan_table(l, t, CompactionReason::Expired))
    }

    /// Plans a compaction of a table that consists mostly of tombstones.
    pub(super) fn plan_tombstones(&self) -> Option<Plan> {
        for level in 1..LEVELS {
            for t in &self.version.levels[level] {
                if !is_idle(t) || !mostly_tombstones(t) {
                    continue;
                }
                let Some(plan) = self.plan_table(level, t, CompactionReason::Tombstones) else {
                    continue;
                };
                // A rewrite in place removes tombstones only if no snapshot keeps them. Otherwise
                // the same table would be rewritten again and again.
                if plan.output_level != level || t.meta.max_seq <= self.oldest_snapshot {
                    return Some(plan);
                }
            }
        }
        None
    }

    /// Plans a rewrite of tables of the deepest level in place whose values are to be relocated.
    pub(super) fn plan_relocation(&self) -> Option<Plan> {
        let v = self.version;
        let level = (1..LEVELS).rev().find(|&l| !v.levels[l].is_empty())?;
        let concerned = || {
            v.levels[level]
                .iter()
                .filter(|t| self.relocation_set.concerns(t))
        };
        let mut start = clean_cut(v, level, vec![concerned().find(|t| is_idle(t))?.clone()]);
        for t in concerned() {
            let mut wider = start.clone();
            wider.push(t.clone());
            let wider = clean_cut(v, level, wider);
            if bytes_of(&wider) > self.max_input_bytes() || !wider.iter().all(|t| is_idle(t)) {
                break;
            }
            start = wider;
        }
        let reason = CompactionReason::Relocation;
        let plan = self.plan(level, level, start, reason, 0.0)?;
        (!plan.relocated_files.is_empty()).then_some(plan)
    }
}
