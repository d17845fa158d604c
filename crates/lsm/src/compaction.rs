//! Compaction: which tables to merge next, and how they are merged.
//!
//! - `pick` decides. Its functions turn a version and the options into a [`Plan`], so that every
//!   decision can be tested as data. The engine calls them under its lock and claims the tables of
//!   the plan with a [`Claim`].
//! - `hidden_garbage` estimates the bytes in blob files that entries hide. `relocation_pick`
//!   chooses the blob files whose values are relocated.
//! - `split` cuts a large plan into ranges of keys that several threads merge in parallel.
//! - `run` runs a job: reads the plan's tables (`input`), drops the versions that no reader can see
//!   (`merge`, and `ranges` for range tombstones), and writes new tables (`output`). `dropped_refs`
//!   finds the blob records that lose their references, and `value_relocator` relocates values. The
//!   job installs nothing: the engine syncs the directory, appends the edit to the manifest and
//!   installs the new version.
//!
//! Invariants of the tree, which the modules rely on:
//! 1. Of two versions of a user key the newer is in a lower-numbered level, or in level 0 in the
//!    newer table. A range tombstone is a version of every key in its range, and the key range of a
//!    table includes those of its range tombstones.
//! 2. All versions of a user key that a level below 0 holds are in one table of it.
//! 3. A plan holds every table of its output level whose range overlaps its inputs. Between its
//!    inputs of the starting level no table is left out; in level 0 it holds every older table that
//!    overlaps. So a key that the plan finds in no deeper table has no other version.
//! 4. At most one plan takes tables from level 0 at a time.
//! 5. Of plans that run at the same time, no two write into overlapping ranges of one level
//!    ([`OutputRange`]). Free tables are not enough: since another plan was made, a table may have
//!    come into a gap between its inputs.

mod dropped_refs;
mod hidden_garbage;
mod input;
mod merge;
mod outcome;
mod output;
mod pick;
pub(crate) mod ranges;
mod relocation_pick;
mod run;
mod split;
#[cfg(test)]
mod tests;
mod value_relocator;
pub(crate) mod visibility;

pub(crate) use dropped_refs::{DroppedRefs, DroppingJob};
pub use hidden_garbage::{FullDisk, HiddenGarbageModel};
pub(crate) use merge::{DeeperLevels, MergeRules, merge};
pub use outcome::{Outcome, combine};
pub use output::table_options;
pub(crate) use output::{MergeSink, internal_key_of};
pub use pick::{
    Claim, CompactionReason, OutputRange, PickContext, Plan, RangePlan, compaction_debt,
    level_targets, paid_by_reads, pick, plan_range, scores,
};
pub use relocation_pick::{RelocationCandidates, RelocationSet};
pub use run::{CompactionJob, run};
pub use split::{SplitRange, subranges};
