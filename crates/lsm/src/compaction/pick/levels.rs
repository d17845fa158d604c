//! Target sizes of levels, their scores, and the debt of compactions.

use super::{bytes_of, is_idle};
use crate::compaction::hidden_garbage::HiddenGarbageModel;
use crate::options::FamilyOptions;
use crate::version::{FamilyVersion, LEVELS};

/// Level 0 merges into a level of up to this many times `base_level_bytes` before another level
/// comes between. A merge then rewrites more of the level. A level between would be written, would
/// be merged down at the same ratio, and would hold older versions meanwhile.
const MAX_BASE_FACTOR: u64 = 8;

/// The deepest level.
pub(super) const LAST: usize = LEVELS - 1;

/// The target sizes of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelTargets {
    /// The level that level 0 merges into.
    pub base_level: usize,
    /// Target bytes by level. 0 for level 0 and for levels above the base, which stay empty.
    pub bytes: [u64; LEVELS],
}

/// Returns the target sizes of levels for the present sizes of the tree.
pub fn level_targets(version: &FamilyVersion, options: &FamilyOptions) -> LevelTargets {
    let sizes: Vec<u64> = (0..LEVELS).map(|l| version.level_bytes(l)).collect();
    let multiplier = u64::from(options.level_multiplier);
    let mut bytes = [0; LEVELS];
    let Some(first) = (1..LEVELS).find(|&l| sizes[l] > 0) else {
        bytes[LAST] = options.base_level_bytes;
        return LevelTargets {
            base_level: LAST,
            bytes,
        };
    };
    let largest = sizes[1..].iter().copied().max().unwrap_or(0);
    // The bytes that the first level with data should hold, so that the bottom holds as much as the
    // largest level does now.
    let mut size = largest;
    for _ in first..LAST {
        size /= multiplier;
    }
    let mut base_level = first;
    let max_base = options.base_level_bytes.saturating_mul(MAX_BASE_FACTOR);
    while base_level > 1 && size > max_base {
        base_level -= 1;
        size /= multiplier;
    }
    let mut target = size.clamp(1, max_base);
    for slot in &mut bytes[base_level..] {
        // No target is below the base size. With little data the levels would otherwise have small
        // targets and would merge for nothing.
        *slot = target.max(options.base_level_bytes);
        target = target.saturating_mul(multiplier);
    }
    LevelTargets { base_level, bytes }
}

/// Returns how many tables of level 0 start a compaction. Each compaction rewrites the base level.
/// Under an urgent writer level 0 therefore waits until it holds as many bytes as that level, up to
/// two thirds of the tables that slow writers: the same rewrite then takes more tables along.
fn l0_trigger(version: &FamilyVersion, options: &FamilyOptions, urgent: bool) -> usize {
    let usual = options.l0_compaction_trigger;
    let tables = version.levels[0].len() as u64;
    if !urgent || tables == 0 {
        return usual;
    }
    let base = version.level_bytes(level_targets(version, options).base_level);
    let average = (version.level_bytes(0) / tables).max(1);
    let wanted = base.div_ceil(average) as usize;
    wanted.min(options.l0_slowdown / 3 * 2).max(usual)
}

/// Returns the levels with their scores, highest first. A level is due from a score of 1 on. The
/// last level has no score.
pub fn scores(version: &FamilyVersion, options: &FamilyOptions) -> Vec<(usize, f64)> {
    let levels = level_scores(version, options, false, &HiddenGarbageModel::default());
    levels.into_iter().map(|s| (s.level, s.score)).collect()
}

/// The score of a level.
pub(super) struct LevelScore {
    pub(super) level: usize,
    pub(super) score: f64,
    /// True if the score comes from the bytes of blob files that the level's entries hide.
    pub(super) hidden_garbage: bool,
}

/// Returns the scores of all levels but the last, highest first.
pub(super) fn level_scores(
    version: &FamilyVersion,
    options: &FamilyOptions,
    urgent: bool,
    hidden_garbage: &HiddenGarbageModel,
) -> Vec<LevelScore> {
    let targets = level_targets(version, options);
    let hidden = hidden_garbage.scores(version, |level| match level {
        0 => targets.base_level,
        level => level + 1,
    });
    let trigger = l0_trigger(version, options, urgent) as f64;
    let l0_bytes = options.base_level_bytes as f64 * trigger / options.l0_compaction_trigger as f64;
    let mut out = Vec::with_capacity(LEVELS);
    for (level, hides) in hidden.into_iter().enumerate().take(LAST) {
        let tables = version.levels[level].iter().filter(|t| is_idle(t));
        let bytes = bytes_of(tables.clone()) as f64;
        let by_size = if level == 0 {
            let by_count = tables.count() as f64 / trigger;
            by_count.max(bytes / l0_bytes)
        } else if targets.bytes[level] == 0 {
            0.0
        } else {
            bytes / targets.bytes[level] as f64
        };
        out.push(LevelScore {
            level,
            score: by_size.max(hides),
            hidden_garbage: hides > by_size,
        });
    }
    out.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.level.cmp(&b.level)));
    out
}

/// Returns the bytes that compactions have to move until every level is inside its target. These
/// are level 0 merging into the base, and the surplus of each level, with the surplus carried down
/// from above, merging with its share of the next level.
pub fn compaction_debt(version: &FamilyVersion, options: &FamilyOptions) -> u64 {
    let targets = level_targets(version, options);
    let l0 = version.level_bytes(0);
    let due =
        version.levels[0].len() >= options.l0_compaction_trigger || l0 >= options.base_level_bytes;
    let mut debt = 0u64;
    let mut carried = 0u64;
    if due {
        debt = l0 + version.level_bytes(targets.base_level);
        carried = l0;
    }
    for level in targets.base_level..LAST {
        let here = version.level_bytes(level) + std::mem::take(&mut carried);
        let surplus = here.saturating_sub(targets.bytes[level]);
        if surplus > 0 {
            let next = version.level_bytes(level + 1) as f64;
            let with_it = surplus as f64 * (1.0 + next / here as f64);
            debt = debt.saturating_add(with_it as u64);
            carried = surplus;
        }
    }
    debt
}
