//! Compaction: which tables to merge next, and merging them.
//!
//! - `pick` decides. Pure functions from a version and the options to a [`Plan`], so that every decision can be tested as
//!   data. The engine calls them under its lock and claims the plan's tables with a [`Claim`].
//! - `hidden_garbage` estimates what entries hide in blob files, and `scattered` says which values are moved with their references.
//! - `split` cuts a large plan into sub-ranges of keys that several threads work on.
//! - `run` merges: reads the plan's tables (`input`), drops what no reader can see any more, writes new tables (`output`);
//!   `ranges` does the same for range tombstones, `departed` finds the records that lose their references, and `gather` takes values along.
//!   It installs nothing: the engine makes the directory durable, writes the manifest edit and switches versions.
//!
//! What holds at all times, and what the pieces rely on:
//! 1. Of two versions of a user key the newer is in a lower-numbered level, or in level 0 in the newer table.
//!    A range tombstone is a version of every key in its range, and a table's range holds its tombstones'.
//! 2. All versions of a user key that a level below 0 holds are in one table of it.
//! 3. A plan holds every table of its output level whose range overlaps its inputs; its inputs of the starting level have no
//!    table that is left out between them (level 0: every older table that overlaps is in). So what a plan finds in no
//!    deeper table is nowhere.
//! 4. At most one plan takes from level 0 at a time.
//! 5. Of plans that run at once, no two write into one level inside overlapping ranges ([`Reach`]): free tables are not enough,
//!    as a table may have come into a gap between another plan's inputs since that was made.

mod dropped_refs;
mod hidden_garbage;
mod input;
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

pub use hidden_garbage::{FullDisk, HiddenGarbageModel};
pub use output::table_options;
pub(crate) use output::{Sink, internal_key_of};
pub use pick::{
    Claim, PickContext, Plan, RangePlan, Reach, Reason, Targets, compaction_debt, level_targets,
    paid_by_reads, pick, plan_range, scores,
};
pub use relocation_pick::{RelocationCandidates, RelocationSet};
pub(crate) use run::{Deeper, Rules, merge};
pub use run::{Job, Outcome, combine, run};
pub use split::{KeyRange, subranges};
