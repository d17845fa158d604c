//! Merges on a full disk: which merges probably fit the free space, and which have ended for lack
//! of space (decision 0027).

use super::pick::{ENTRIES_A_RANGE, PickContext, Plan, Reason, idle};
use std::cmp::{Ordering, Reverse};

/// The space that a merge on a full disk may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullDisk {
    /// Bytes that the outputs of a merge may take.
    pub room: u64,
    /// True if the last merge ended for lack of space. Merges whose inputs are not larger than
    /// `room` are then preferred.
    pub surely: bool,
}

/// Least growth of the room, in bytes, before a merge that ended for lack of space counts as new.
const LEAST_GROWTH: u64 = 4096;

/// A merge that has ended for lack of space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge {
    /// Numbers of the input tables, ascending.
    pub inputs: Vec<u64>,
    /// Largest room, in bytes, that the outputs had in any attempt.
    pub room: u64,
    /// Number of attempts that ended for lack of space.
    pub tries: u32,
}

impl TooLarge {
    /// Returns true if the room has grown enough for another attempt of the merge. Each failed
    /// attempt raises the bar by an eighth, which bounds the number of attempts.
    pub fn is_out_of_date(&self, room: u64) -> bool {
        room > self.room + (self.room / 8).max(LEAST_GROWTH)
    }
}

impl Plan {
    /// Compares two plans; the greater plan should run first. A plan that fits the disk is greater,
    /// then a plan that has failed less often, then a plan with a higher score.
    pub fn urgency(&self, other: &Plan) -> Ordering {
        let least_tried = |plan: &Plan| Reverse(plan.failed.map_or(0, |tries| tries + 1));
        let tried = least_tried(self).cmp(&least_tried(other));
        tried.then(self.score.total_cmp(&other.score))
    }
    /// Estimates the bytes of the outputs if each tombstone removes one value. The outputs are
    /// larger if tombstones meet no values.
    fn bytes_left(&self) -> u64 {
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

impl PickContext<'_> {
    /// Returns how often the merge of these inputs has ended for lack of space. The result is 0 if
    /// the room has grown enough since ([`TooLarge::is_out_of_date`]).
    pub(super) fn tries(&self, plan: &Plan) -> u32 {
        let room = self.shadows.full.map_or(u64::MAX, |full| full.room);
        let mut known = self.too_large.iter();
        let inputs = || plan.input_numbers();
        let same = (!self.too_large.is_empty()).then(inputs);
        let same = known.find(|t| Some(&t.inputs) == same.as_ref());
        same.filter(|t| !t.is_out_of_date(room))
            .map_or(0, |t| t.tries)
    }

    /// Returns true if the outputs of a plan probably fit the free space of a full disk.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        let Some(full) = self.shadows.full else {
            return true;
        };
        if self.tries(plan) > 0 {
            return false;
        }
        let expected = match full.surely {
            true => plan.input_bytes(),
            false => plan.bytes_left(),
        };
        plan.trivial_move || expected <= full.room
    }

    /// Plans a merge of the newest tables of level 0 into one table of level 0, as many as probably
    /// fit. The picker uses this plan on a full disk if a merge of all of level 0 does not fit.
    /// Tombstones in these tables then free values in the other tables. Level 0 always has fewer
    /// tables afterwards, so deletes can continue.
    pub(super) fn plan_newest(&self, reason: Reason, score: f64) -> Option<Plan> {
        let tables = &self.version.levels[0];
        if !tables.iter().all(|t| idle(t)) {
            return None;
        }
        (2..=tables.len()).rev().find_map(|n| {
            let (newest, older) = tables.split_at(n);
            let first = newest.iter().map(|t| t.meta.min_seq).min()?;
            if older.iter().any(|t| t.meta.max_seq >= first) {
                return None;
            }
            let mut plan = self.plan(0, 0, newest.to_vec(), reason, score)?;
            // The older tables of level 0 remain beside the output.
            plan.deeper.extend(older.iter().map(|t| vec![t.clone()]));
            plan.bottommost = plan.deeper.is_empty();
            self.fits(&plan).then_some(plan)
        })
    }
}
