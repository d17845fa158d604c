//! Hidden garbage: values in blob files whose keys were overwritten or deleted, and whose references no compaction has met since.
//!
//! It is not known, it is estimated: from how many references and tombstones stand above other tables, and from what compactions have lately
//! found below such entries. References are small, so merging them early is cheap against the values that it lets go of.

use super::pick::{ENTRIES_A_RANGE, idle};
use crate::version::level::references;
use crate::version::{FamilyVersion, LEVELS, TableFile};
use std::sync::Arc;

/// What a merge on a full disk may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullDisk {
    /// Bytes that the outputs of a merge may take.
    pub room: u64,
    /// True if the last merge ended for lack of space. Merges whose inputs are not larger than `room`
    /// are then preferred.
    pub surely: bool,
}

/// What an entry of an upper level is likely to hide of a family's blob files.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HiddenGarbageModel {
    /// Mean length of a record: what a tombstone hides.
    pub a_record: f64,
    /// The longest that records are in the mean in any file: no reference is taken to lead to less when it is asked how much there is to hide.
    pub longest_record: f64,
    /// The mean times how often there is an older version: what a reference hides.
    pub a_reference: f64,
    /// All bytes that the family has in blob files: no more can be hidden.
    pub most: f64,
    /// Hidden bytes for which a merge is due. 0: none ever is.
    pub room: f64,
    /// The bound is near: a merge is due whatever it rewrites.
    pub pressed: bool,
    /// Limits for merges on a full disk, where every tombstone that hides data makes its level due.
    /// `None` if the disk is not full.
    pub full: Option<FullDisk>,
}

impl HiddenGarbageModel {
    /// What one table hides if there is something below it.
    fn of(&self, t: &TableFile) -> f64 {
        let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
        references(t) as f64 * self.a_reference
            + t.meta.deletes.saturating_add(ranges) as f64 * self.a_record
    }

    /// False when no table hides anything, by the sums of the levels. The deepest level with tables has nothing below it.
    fn may_hide(&self, v: &FamilyVersion) -> bool {
        let deepest = v.levels.iter().rposition(|l| !l.is_empty()).unwrap_or(0);
        v.levels[..deepest.max(1)].iter().any(|level| {
            let sums = level.totals();
            (self.a_reference > 0.0 && sums.references > 0)
                || (self.a_record > 0.0 && sums.deletes + sums.range_deletes > 0)
        })
    }

    /// Hidden bytes by level, of tables for which `counts` is true. All together they hide no more of a table than its references
    /// may lead to. Whoever lies deepest hides first: its own reach is the smallest, and what lies higher finds enough elsewhere.
    fn levels(&self, v: &FamilyVersion, counts: impl Fn(&TableFile) -> bool) -> [f64; LEVELS] {
        let mut hidden = [0.0; LEVELS];
        let hides = |t: &TableFile| if counts(t) { self.of(t) } else { 0.0 };
        if self.most == 0.0 || !self.may_hide(v) {
            return hidden;
        }
        let mut left = self.most;
        let mut shown = ShadowedCounts::all(v, self.longest_record);
        for (level, tables) in v.levels.iter().enumerate().rev() {
            // Level 0 has the oldest last.
            for (n, t) in tables.iter().enumerate().rev() {
                let own = hides(t).min(left);
                if own > 0.0 {
                    let own = shown.hide(v, level, n, own);
                    hidden[level] += own;
                    left -= own;
                }
            }
            shown.behind(level);
        }
        hidden
    }

    /// True when tombstones, or references that may hide others, stand above something in a level.
    fn hides_any(&self, v: &FamilyVersion, level: usize) -> bool {
        let tables = &v.levels[level];
        tables.iter().enumerate().any(|(n, t)| {
            let kills = t.meta.deletes + t.meta.range_deletes > 0
                || (self.a_reference > 0.0 && !t.meta.references.is_empty());
            let older = if level == 0 { &tables[n + 1..] } else { &[] };
            kills && idle(t) && (meets_below(v, level, t) || older.iter().any(|o| o.meets(t)))
        })
    }

    /// Hidden bytes of a family.
    pub fn hidden(&self, v: &FamilyVersion) -> u64 {
        self.levels(v, |_| true).iter().sum::<f64>() as u64
    }

    /// By level, how much a merge out of it is due for what it hides: from 1 on, where that is more than the merge would rewrite, or the
    /// bound is near.
    pub fn scores(&self, v: &FamilyVersion, below: impl Fn(usize) -> usize) -> [f64; LEVELS] {
        if self.full.is_some() {
            return core::array::from_fn(|level| {
                f64::from(level < LEVELS - 1 && self.hides_any(v, level))
            });
        }
        if self.room <= 0.0 {
            return [0.0; LEVELS];
        }
        let mut scores = self.levels(v, idle);
        for (level, score) in scores.iter_mut().enumerate().take(LEVELS - 1) {
            let rewritten = v.level_bytes(level) + v.level_bytes(below(level));
            *score = match self.pressed || *score >= rewritten as f64 {
                true => *score / self.room,
                false => 0.0,
            };
        }
        scores[LEVELS - 1] = 0.0;
        scores
    }
}

/// So many tables are looked at for one above them. With that many below, what it may hide is there.
const MAX_MET: usize = 1000;

/// By level and table, the bytes behind references that nothing hides so far.
struct ShadowedCounts {
    bytes: [Vec<f64>; LEVELS],
    /// From here on levels have any: others need not be searched.
    first: usize,
}

impl ShadowedCounts {
    fn all(v: &FamilyVersion, a_record: f64) -> ShadowedCounts {
        ShadowedCounts {
            bytes: core::array::from_fn(|level| {
                let tables = v.levels[level].iter();
                tables.map(|t| references(t) as f64 * a_record).collect()
            }),
            first: LEVELS,
        }
    }

    /// What hides next may lie above this level.
    fn behind(&mut self, level: usize) {
        if self.bytes[level].iter().any(|bytes| *bytes > 0.0) {
            self.first = level;
        }
    }

    /// The `n`th table of a level hides up to so many bytes of the older tables that reach into its keys. Returns how many it hides.
    fn hide(&mut self, v: &FamilyVersion, level: usize, n: usize, most: f64) -> f64 {
        let t = &v.levels[level][n];
        let mut left = most;
        let mut met = 0;
        let mut hide = |shown: &mut f64| {
            let own = shown.min(left);
            *shown -= own;
            left -= own;
            met += 1;
            if met == MAX_MET {
                left = 0.0;
            }
            left > 0.0
        };
        let beside = (level == 0).then_some(0);
        for below in beside.into_iter().chain(self.first.max(level + 1)..LEVELS) {
            let (tables, shown) = (&v.levels[below], &mut self.bytes[below]);
            // Level 0 is sorted by age: what is older may lie below in it, too.
            let first = match below {
                0 => n + 1,
                _ => tables.partition_point(|b| b.ends_before(t.smallest_user())),
            };
            for (b, shown) in tables.iter().zip(shown).skip(first) {
                match b.meets(t) {
                    true if !hide(shown) => return most,
                    true => {}
                    false if below == 0 => {}
                    false => break,
                }
            }
        }
        most - left
    }
}

/// True when a deeper level has a table whose keys reach into `t`'s.
fn meets_below(v: &FamilyVersion, level: usize, t: &Arc<TableFile>) -> bool {
    v.levels[level + 1..].iter().any(|tables| {
        let first = tables.partition_point(|b| b.ends_before(t.smallest_user()));
        tables.get(first).is_some_and(|b| b.meets(t))
    })
}
