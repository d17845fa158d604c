//! Hidden garbage: values in blob files whose keys were overwritten or deleted, and whose references no compaction has met since.
//!
//! It is not known, it is estimated: from how many references and tombstones stand above other tables, and from what compactions have lately
//! found below such entries. References are small, so merging them early is cheap against the values that it lets go of.

use super::pick::{ENTRIES_A_RANGE, idle};
use crate::version::{FamilyVersion, LEVELS, TableFile};
use std::sync::Arc;

/// What an entry of an upper level is likely to hide of a family's blob files.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shadows {
    /// Mean length of a record: what a reference leads to, and what a tombstone hides.
    pub a_record: f64,
    /// The same, times how often there is an older version: what a reference hides.
    pub a_reference: f64,
    /// All bytes that the family has in blob files: no more can be hidden.
    pub most: f64,
    /// Hidden bytes for which a merge is due. 0: none ever is.
    pub room: f64,
    /// The bound is near: a merge is due whatever it rewrites.
    pub pressed: bool,
    /// The disk is full: whatever tombstones stand over anything are to come down, at any price.
    pub full: bool,
}

impl Shadows {
    /// What one table hides if there is something below it.
    fn of(&self, t: &TableFile) -> f64 {
        let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
        references(t) as f64 * self.a_reference
            + t.meta.deletes.saturating_add(ranges) as f64 * self.a_record
    }

    /// Hidden bytes by level, of tables for which `counts` is true. All together they hide no more of a table than its references
    /// lead to.
    fn levels(&self, v: &FamilyVersion, counts: impl Fn(&TableFile) -> bool) -> [f64; LEVELS] {
        let mut hidden = [0.0; LEVELS];
        let Some(deepest) = (0..LEVELS).rev().find(|&l| !v.levels[l].is_empty()) else {
            return hidden;
        };
        if self.most == 0.0 {
            return hidden;
        }
        let mut left = self.most;
        let mut shown = Shown::all(v, self.a_record);
        for (level, tables) in v.levels.iter().enumerate().take(deepest + 1) {
            for (n, t) in tables.iter().enumerate() {
                if !counts(t) {
                    continue;
                }
                let own = self.of(t).min(left);
                if own == 0.0 {
                    continue;
                }
                let own = shown.hide(v, level, n, own);
                hidden[level] += own;
                left -= own;
            }
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
        if self.full {
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

/// By level and table, the bytes behind references that nothing hides so far.
struct Shown([Vec<f64>; LEVELS]);

impl Shown {
    fn all(v: &FamilyVersion, a_record: f64) -> Shown {
        Shown(core::array::from_fn(|level| {
            let tables = v.levels[level].iter();
            tables.map(|t| references(t) as f64 * a_record).collect()
        }))
    }

    /// The `n`th table of a level hides up to so many bytes of the older tables that reach into its keys. Returns how many it hides.
    fn hide(&mut self, v: &FamilyVersion, level: usize, n: usize, most: f64) -> f64 {
        let t = &v.levels[level][n];
        let mut hidden = 0.0;
        let mut hide = |shown: &mut f64| {
            let own = shown.min(most - hidden);
            *shown -= own;
            hidden += own;
            hidden < most
        };
        // Level 0 is sorted by age: what is older may lie below in it, too.
        if level == 0 {
            let older = v.levels[0].iter().zip(&mut self.0[0]).skip(n + 1);
            for (_, shown) in older.filter(|(o, _)| o.meets(t)) {
                if !hide(shown) {
                    return hidden;
                }
            }
        }
        for (tables, shown) in v.levels.iter().zip(&mut self.0).skip(level + 1) {
            let first = tables.partition_point(|b| b.ends_before(t.smallest_user()));
            let met = tables.iter().zip(shown).skip(first);
            for (_, shown) in met.take_while(|(b, _)| b.meets(t)) {
                if !hide(shown) {
                    return hidden;
                }
            }
        }
        hidden
    }
}

/// How many references a table has.
fn references(t: &TableFile) -> u64 {
    t.meta.references.iter().map(|(_, n)| n).sum()
}

/// True when a deeper level has a table whose keys reach into `t`'s.
fn meets_below(v: &FamilyVersion, level: usize, t: &Arc<TableFile>) -> bool {
    v.levels[level + 1..].iter().any(|tables| {
        let first = tables.partition_point(|b| b.ends_before(t.smallest_user()));
        tables.get(first).is_some_and(|b| b.meets(t))
    })
}
