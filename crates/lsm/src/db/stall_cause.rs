//! The table of causes for which writers are slowed or held.

/// A cause for which writers are slowed or held. Each has a pressure: 0 while all is well, 1 where
/// writers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StallCause {
    /// Sealed memtables wait for their flush.
    Memtables,
    /// Level 0 has many tables, and every read searches each of them.
    Level0,
    /// Compactions owe many bytes.
    Debt,
    /// The environment's memory budget is used up.
    Memory,
    /// Garbage in blob files is near its bound.
    Space,
}

impl StallCause {
    /// All causes, in the order of statistics.
    pub const ALL: [StallCause; 5] = [
        StallCause::Memtables,
        StallCause::Level0,
        StallCause::Debt,
        StallCause::Memory,
        StallCause::Space,
    ];

    /// Returns the cause's name in statistics, metrics and events.
    pub fn name(self) -> &'static str {
        match self {
            StallCause::Memtables => "memtables",
            StallCause::Level0 => "level0",
            StallCause::Debt => "compaction_debt",
            StallCause::Memory => "memory_budget",
            StallCause::Space => "space",
        }
    }

    /// Returns the text of an error for writers that wait because background work fails.
    pub fn when_stuck(self) -> &'static str {
        match self {
            StallCause::Debt => "compactions are too far behind and fail",
            StallCause::Level0 | StallCause::Space => "level 0 is full and cannot be compacted",
            StallCause::Memtables | StallCause::Memory => {
                "memtables are full and cannot be written out"
            }
        }
    }

    /// Returns the text of an error for writers that wait for background work which does not run.
    pub fn when_late(self) -> &'static str {
        match self {
            StallCause::Debt => "compactions are too far behind and none has run",
            StallCause::Level0 | StallCause::Space => {
                "level 0 is full and its compaction has not run"
            }
            StallCause::Memtables | StallCause::Memory => {
                "memtables are full and their flush has not run"
            }
        }
    }
}
