//! Bytes that came into each level since the store was opened: by flushes, merges and moves.

use crate::compaction::Plan;
use crate::version::LEVELS;
use basalt_env::sync::Mutex;
use std::collections::BTreeMap;

/// Bytes that came into a level. All are bytes of tables as they stand on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LevelIo {
    /// Bytes from above: flushed into level 0, or merged in from the level that gave them.
    pub entered: u64,
    /// Bytes read by merges into the level, its own tables included.
    pub read: u64,
    /// Bytes written by flushes and merges into the level.
    pub written: u64,
    /// Bytes of tables that moved in unchanged.
    pub moved: u64,
    /// Number of merges into the level.
    pub merges: u64,
}

/// Statistics by family and level.
#[derive(Default)]
pub(crate) struct Levels(Mutex<BTreeMap<u32, [LevelIo; LEVELS]>>);

impl Levels {
    /// Notes that a flush has added a table.
    pub fn flushed(&self, family: u32, bytes: u64) {
        let mut all = self.0.lock();
        let level = &mut all.entry(family).or_default()[0];
        level.entered += bytes;
        level.written += bytes;
    }

    /// Notes that a compaction was installed.
    pub fn compacted(&self, plan: &Plan, read: u64, written: u64) {
        let mut all = self.0.lock();
        let level = &mut all.entry(plan.family).or_default()[plan.output_level];
        if plan.trivial_move {
            level.moved += plan.input_bytes();
            return;
        }
        let from_above = plan.inputs.iter().filter(|(l, _)| *l != plan.output_level);
        level.entered += from_above
            .flat_map(|(_, tables)| tables.iter().map(|t| t.meta.size))
            .sum::<u64>();
        level.read += read;
        level.written += written;
        level.merges += 1;
    }

    /// Returns the statistics of one family.
    pub fn of(&self, family: u32) -> [LevelIo; LEVELS] {
        self.0.lock().get(&family).copied().unwrap_or_default()
    }
}
