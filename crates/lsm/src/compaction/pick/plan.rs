//! [`Plan`]: one compaction, and the [`Claim`] to its tables.

pub use crate::listener::CompactionReason;

use super::span::{KeySpan, OutputRange};
use crate::version::TableFile;
use basalt_env::sync::atomic::Ordering as Atomic;
use basalt_kv::key::Cmp;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries that a range tombstone counts for. Its table is pushed down to the data that it hides.
pub(in crate::compaction) const ENTRIES_A_RANGE: u64 = 1000;

/// One compaction: its inputs, its output level, and the tables around them.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The family's id.
    pub family: u32,
    /// The starting level.
    pub level: usize,
    /// The level of the outputs. Equal to `level` if tables are rewritten in place; in level 0 that
    /// makes one table of several.
    pub output_level: usize,
    /// Input tables by level: those of the starting level, then those of the output level if any.
    pub inputs: Vec<(usize, Vec<Arc<TableFile>>)>,
    /// True if nothing needs rewriting: the manifest moves the tables to the output level.
    pub trivial_move: bool,
    /// True if no older data can exist for the key range of the inputs, in a deeper level or
    /// elsewhere.
    pub bottommost: bool,
    /// Tables of the level below the output level that overlap the inputs.
    pub grandparents: Vec<Arc<TableFile>>,
    /// Tables that overlap the inputs, by level below the output level. Levels without any are left
    /// out.
    pub deeper: Vec<Vec<Arc<TableFile>>>,
    /// Numbers of the blob files whose values the merge relocates.
    pub relocated_files: BTreeSet<u64>,
    /// The reason for the compaction.
    pub reason: CompactionReason,
    /// The starting level's score; 0 if the score is not the reason.
    pub score: f64,
}

impl Plan {
    /// Returns all input tables.
    pub fn input_tables(&self) -> impl Iterator<Item = &Arc<TableFile>> {
        self.inputs.iter().flat_map(|(_, tables)| tables)
    }

    /// Returns the part of the output level that no other compaction may write into while this one
    /// runs.
    pub fn output_range(&self, cmp: &Cmp) -> OutputRange {
        let all: Vec<_> = self.input_tables().cloned().collect();
        let span = KeySpan::of(cmp, &all).expect("a plan has inputs");
        OutputRange::new(self.family, self.output_level, &span)
    }

    /// Returns the bytes of all input tables.
    pub fn input_bytes(&self) -> u64 {
        self.input_tables().map(|t| t.meta.size).sum()
    }

    /// Estimates the bytes of the outputs if each tombstone removes one value. The outputs are
    /// larger if tombstones hide no values.
    pub(super) fn estimated_output_bytes(&self) -> u64 {
        let (mut values, mut deletes) = (0u64, 0u64);
        for t in self.input_tables() {
            let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
            deletes = deletes.saturating_add(t.meta.deletes.saturating_add(ranges));
            values += t.meta.entries.saturating_sub(t.meta.deletes);
        }
        let left = values.saturating_sub(deletes) as f64 / values.max(1) as f64;
        (self.input_bytes() as f64 * left) as u64
    }
}

/// Marks the tables of a plan as taken until it is dropped. The engine makes and drops a claim
/// under its lock, and drops it after it has installed the new version.
#[must_use]
pub struct Claim(Vec<Arc<TableFile>>);

impl Claim {
    /// Takes the tables of a plan. Returns `None`, and takes none, if another compaction has one of
    /// them.
    pub fn take(plan: &Plan) -> Option<Claim> {
        let mut claim = Claim(Vec::new());
        for t in plan.input_tables() {
            if t.compacting.swap(true, Atomic::SeqCst) {
                return None;
            }
            claim.0.push(t.clone());
        }
        Some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for t in &self.0 {
            t.compacting.store(false, Atomic::SeqCst);
        }
    }
}
