//! The table of causes for which writers are slowed or held. Each has a pressure: 0 while all is
//! well, 1 where writers wait.

pub(crate) use crate::listener::StallCause;

/// Number of causes.
pub(crate) const STALL_CAUSES: usize = StallCause::ALL.len();

impl StallCause {
    /// Returns the text of an error for writers that wait because background work fails.
    pub(crate) fn failing_work_text(self) -> &'static str {
        match self {
            StallCause::CompactionDebt => "compactions are too far behind and fail",
            StallCause::Level0 | StallCause::Space => "level 0 is full and cannot be compacted",
            StallCause::Memtables | StallCause::MemoryBudget => {
                "memtables are full and cannot be written out"
            }
        }
    }

    /// Returns the text of an error for writers that wait for background work which does not run.
    pub(crate) fn missing_work_text(self) -> &'static str {
        match self {
            StallCause::CompactionDebt => "compactions are too far behind and none has run",
            StallCause::Level0 | StallCause::Space => {
                "level 0 is full and its compaction has not run"
            }
            StallCause::Memtables | StallCause::MemoryBudget => {
                "memtables are full and their flush has not run"
            }
        }
    }
}
