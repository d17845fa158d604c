//! Manual compactions: the next step of compacting a range of keys.

use super::span::clean_cut;
use super::{CompactionReason, PickContext, Plan, bytes_of};
use crate::version::LEVELS;
use basalt_kv::key::SeqNo;

/// The next step of a manual compaction in a level.
#[derive(Debug, Clone)]
pub enum RangePlan {
    /// Nothing is left to do in the level.
    Done,
    /// A running compaction has the tables. The caller tries again when one has ended.
    Busy,
    /// The caller runs this plan, then asks again.
    Plan(Box<Plan>),
}

/// Returns the next step of compacting the user keys from `from` to `to` (both inclusive, `None`
/// unbounded) out of `level`. The caller asks for each level from 0 down, each until it is `Done`.
///
/// Only data written up to `upto_seq` is moved down, so that the compaction ends while writers
/// continue. The deepest level with tables is rewritten in place, without tables numbered from
/// `rewritten_before` on (the next file number when the manual compaction began).
pub fn plan_range(
    ctx: &PickContext<'_>,
    level: usize,
    from: Option<&[u8]>,
    to: Option<&[u8]>,
    upto_seq: SeqNo,
    rewritten_before: u64,
) -> RangePlan {
    let v = ctx.version;
    let deepest = (1..LEVELS).rev().find(|&l| !v.levels[l].is_empty());
    let in_place = level > 0 && deepest.is_none_or(|d| level >= d);
    let wanted: Vec<_> = v
        .overlapping(level, from, to)
        .into_iter()
        .filter(|t| t.meta.min_seq <= upto_seq && (!in_place || t.number < rewritten_before))
        .collect();
    let Some(first) = wanted.first() else {
        return RangePlan::Done;
    };
    let plan = if level == 0 {
        ctx.plan_l0(CompactionReason::Manual, 0.0)
    } else {
        // The plan takes as many neighbours as fit, with the tables between them.
        let mut start = clean_cut(v, level, vec![first.clone()]);
        for t in &wanted[1..] {
            let mut wider = start.clone();
            wider.push(t.clone());
            let wider = clean_cut(v, level, wider);
            if bytes_of(&wider) > ctx.max_input_bytes() {
                break;
            }
            start = wider;
        }
        let output_level = if in_place { level } else { level + 1 };
        ctx.plan(level, output_level, start, CompactionReason::Manual, 0.0)
    };
    match plan {
        Some(plan) => RangePlan::Plan(Box::new(plan)),
        None => RangePlan::Busy,
    }
}
