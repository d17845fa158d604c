//! Hidden garbage: values in blob files whose keys were overwritten or deleted, and whose
//! references no compaction has dropped yet.
//!
//! Its bytes are not known but estimated: from how many references and tombstones stand above other
//! tables, and from how much recent compactions have found below such entries. References are
//! small, so merging them early is cheap compared with the values that the merge frees.

use super::pick::{ENTRIES_A_RANGE, is_idle};
use crate::version::level::references;
use crate::version::{FamilyVersion, LEVELS, TableFile};
use std::sync::Arc;

/// The limits of merges on a full disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullDisk {
    /// Bytes that the outputs of a merge may take.
    pub room: u64,
    /// True if the last merge failed for lack of space. The picker then prefers merges whose inputs
    /// are not larger than `room`.
    pub must_fit: bool,
}

/// Estimates of the bytes in a family's blob files that an entry of an upper level hides.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HiddenGarbageModel {
    /// Bytes that a tombstone hides: the mean length of a record.
    pub mean_record_bytes: f64,
    /// Bytes that a reference may lead to: the largest mean length of the records of any file.
    pub max_record_bytes: f64,
    /// Bytes that a reference hides: the mean length of a record times the probability of an older
    /// version.
    pub hidden_per_reference: f64,
    /// Bytes of the family in blob files: no more can be hidden.
    pub most: f64,
    /// Hidden bytes from which on a merge is due; 0 for never.
    pub room: f64,
    /// True if the space bound is near. A merge is then due even if it rewrites more than it frees.
    pub bound_is_near: bool,
    /// Limits for merges on a full disk, where every tombstone that hides data makes its level due.
    /// `None` if the disk is not full.
    pub full: Option<FullDisk>,
}

impl HiddenGarbageModel {
    /// Returns the bytes that one table hides if there is data below it.
    fn hidden_by(&self, t: &TableFile) -> f64 {
        let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
        references(t) as f64 * self.hidden_per_reference
            + t.meta.deletes.saturating_add(ranges) as f64 * self.mean_record_bytes
    }

    /// Returns false if no table hides anything, by the sums of the levels. The deepest level with
    /// tables has nothing below it.
    fn may_hide(&self, v: &FamilyVersion) -> bool {
        let deepest = v.levels.iter().rposition(|l| !l.is_empty()).unwrap_or(0);
        v.levels[..deepest.max(1)].iter().any(|level| {
            let sums = level.totals();
            (self.hidden_per_reference > 0.0 && sums.references > 0)
                || (self.mean_record_bytes > 0.0 && sums.deletes + sums.range_deletes > 0)
        })
    }

    /// Returns the hidden bytes by level, of tables for which `counts` is true. Together they hide
    /// no more of a table than its references may lead to. The deepest tables hide first: they have
    /// the fewest tables below them, and higher tables find enough elsewhere.
    fn levels(&self, v: &FamilyVersion, counts: impl Fn(&TableFile) -> bool) -> [f64; LEVELS] {
        let mut hidden = [0.0; LEVELS];
        let hides = |t: &TableFile| if counts(t) { self.hidden_by(t) } else { 0.0 };
        if self.most == 0.0 || !self.may_hide(v) {
            return hidden;
        }
        let mut left = self.most;
        let mut unhidden = UnhiddenBytes::all(v, self.max_record_bytes);
        for (level, tables) in v.levels.iter().enumerate().rev() {
            // The oldest table of level 0 is its last.
            for (n, t) in tables.iter().enumerate().rev() {
                let own = hides(t).min(left);
                if own > 0.0 {
                    let own = unhidden.hide(v, level, n, own);
                    hidden[level] += own;
                    left -= own;
                }
            }
            unhidden.add_level(level);
        }
        hidden
    }

    /// Returns true if the level has an idle table with tombstones, or with references that may
    /// hide others, above older data.
    fn hides_any(&self, v: &FamilyVersion, level: usize) -> bool {
        let tables = &v.levels[level];
        tables.iter().enumerate().any(|(n, t)| {
            let kills = t.meta.deletes + t.meta.range_deletes > 0
                || (self.hidden_per_reference > 0.0 && !t.meta.references.is_empty());
            let older = if level == 0 { &tables[n + 1..] } else { &[] };
            kills
                && is_idle(t)
                && (overlaps_deeper(v, level, t) || older.iter().any(|o| o.meets(t)))
        })
    }

    /// Returns the hidden bytes of a family.
    pub fn hidden(&self, v: &FamilyVersion) -> u64 {
        self.levels(v, |_| true).iter().sum::<f64>() as u64
    }

    /// Returns a score by level for the bytes that its entries hide: hidden bytes over the bytes
    /// from which on a merge is due. The score is 0 if a merge would rewrite more than is hidden,
    /// unless the space bound is near. `below` returns the level that a level merges into.
    pub fn scores(&self, v: &FamilyVersion, below: impl Fn(usize) -> usize) -> [f64; LEVELS] {
        if self.full.is_some() {
            return core::array::from_fn(|level| {
                f64::from(level < LEVELS - 1 && self.hides_any(v, level))
            });
        }
        if self.room <= 0.0 {
            return [0.0; LEVELS];
        }
        let mut scores = self.levels(v, is_idle);
        for (level, score) in scores.iter_mut().enumerate().take(LEVELS - 1) {
            let rewritten = v.level_bytes(level) + v.level_bytes(below(level));
            *score = match self.bound_is_near || *score >= rewritten as f64 {
                true => *score / self.room,
                false => 0.0,
            };
        }
        scores[LEVELS - 1] = 0.0;
        scores
    }
}

/// Most tables that are examined for one table above them. That many hold as much as it may hide.
const MAX_EXAMINED: usize = 1000;

/// Bytes that the references of each table lead to and that no other table hides so far.
struct UnhiddenBytes {
    /// Bytes by level and index of the table.
    bytes: [Vec<f64>; LEVELS],
    /// The first level with such bytes. Levels above it need not be searched.
    first: usize,
}

impl UnhiddenBytes {
    fn all(v: &FamilyVersion, mean_record_bytes: f64) -> UnhiddenBytes {
        UnhiddenBytes {
            bytes: core::array::from_fn(|level| {
                let tables = v.levels[level].iter();
                tables
                    .map(|t| references(t) as f64 * mean_record_bytes)
                    .collect()
            }),
            first: LEVELS,
        }
    }

    /// Makes the tables of this level visible to tables of higher levels.
    fn add_level(&mut self, level: usize) {
        if self.bytes[level].iter().any(|bytes| *bytes > 0.0) {
            self.first = level;
        }
    }

    /// Hides up to `most` bytes of the older tables that overlap the `n`th table of a level.
    /// Returns how many bytes it hides.
    fn hide(&mut self, v: &FamilyVersion, level: usize, n: usize, most: f64) -> f64 {
        let t = &v.levels[level][n];
        let mut left = most;
        let mut examined = 0;
        let mut hide = |unhidden: &mut f64| {
            let own = unhidden.min(left);
            *unhidden -= own;
            left -= own;
            examined += 1;
            if examined == MAX_EXAMINED {
                left = 0.0;
            }
            left > 0.0
        };
        let beside = (level == 0).then_some(0);
        for below in beside.into_iter().chain(self.first.max(level + 1)..LEVELS) {
            let (tables, unhidden) = (&v.levels[below], &mut self.bytes[below]);
            // Level 0 is sorted by age: older tables of level 0 count as below, too.
            let first = match below {
                0 => n + 1,
                _ => tables.partition_point(|b| b.ends_before(t.smallest_user())),
            };
            for (b, unhidden) in tables.iter().zip(unhidden).skip(first) {
                match b.meets(t) {
                    true if !hide(unhidden) => return most,
                    true => {}
                    false if below == 0 => {}
                    false => break,
                }
            }
        }
        most - left
    }
}

/// Returns true if a table of a deeper level overlaps `t`.
fn overlaps_deeper(v: &FamilyVersion, level: usize, t: &Arc<TableFile>) -> bool {
    v.levels[level + 1..].iter().any(|tables| {
        let first = tables.partition_point(|b| b.ends_before(t.smallest_user()));
        tables.get(first).is_some_and(|b| b.meets(t))
    })
}
