//! A compaction job: opens the tables of a plan, merges them and writes new tables.
//!
//! An error of any kind ends the job and removes its outputs; the inputs stay as they are. The
//! rules of the merge are in [`super::merge`].

use crate::compaction::input::{InputIter, InputProgress};
use crate::compaction::merge::{DeeperLevels, MergeRules, merge};
use crate::compaction::outcome::{Outcome, check_all_read};
use crate::compaction::output::{Outputs, WrittenFiles};
use crate::compaction::pick::Plan;
use crate::compaction::ranges::{RangeDelFilter, input_tombstones, retained_tombstones};
use crate::compaction::split::SplitRange;
use crate::compaction::value_relocator::ValueRelocator;
use crate::iter::MergingIter;
use crate::options::FamilyOptions;
use crate::version::{BlobSet, TableFile, TableStore};
use basalt_blob::BlobMeta;
use basalt_env::Env;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::AtomicBool;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::flush_flag::FlushFlag;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::merge::Merging;
use basalt_kv::ranges::Fragments;
use basalt_table::{InternalIter, TableFamily, TableMeta};
use std::cmp::Ordering;
use std::sync::Arc;

/// The arguments of one merge. Several jobs over disjoint key ranges may share a plan.
pub struct CompactionJob<'a> {
    /// The environment.
    pub env: Env,
    /// The store of table files.
    pub store: Arc<TableStore>,
    /// The plan to run, which is no trivial move.
    pub plan: &'a Plan,
    /// The family's settings.
    pub options: &'a FamilyOptions,
    /// The family, for its filter and its tables.
    pub family: TableFamily,
    /// Sequence numbers of the live snapshots, ascending. The engine takes them under its lock
    /// after it made the plan. Later snapshots see only newer states and need not be here.
    pub snapshots: &'a [SeqNo],
    /// Wall time in milliseconds since 1970. Values that expire at or before it are dropped.
    pub now_ms: u64,
    /// Returns the number of the next new file.
    pub new_file_number: &'a (dyn Fn() -> u64 + Sync),
    /// The job ends with `Cancelled` soon after this is set.
    pub cancelled: &'a AtomicBool,
    /// Returns the blob files of the present version.
    pub blobs: &'a (dyn Fn() -> Arc<BlobSet> + Sync),
    /// Returns how many bytes the merge may produce before it calls this again. The argument is the
    /// bytes produced and not yet written. An error ends the merge.
    pub allowance: &'a (dyn Fn(u64) -> Result<u64> + Sync),
    /// In a passive store, the flush flag of the family.
    pub flush_flag: Option<FlushFlag>,
    /// The user keys to merge; `None` for all.
    pub range: Option<SplitRange>,
}

impl CompactionJob<'_> {
    /// Returns true if the user key lies in the job's range.
    fn has(&self, cmp: &Cmp, user_key: &[u8]) -> bool {
        self.range.as_ref().is_none_or(|(from, to)| {
            (from.as_ref()).is_none_or(|f| cmp.user(user_key, f) != Ordering::Less)
                && (to.as_ref()).is_none_or(|to| cmp.user(user_key, to) == Ordering::Less)
        })
    }
}

/// Returns the error of a cancelled compaction, which ends this operation only.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the compaction was cancelled")
}

/// Cursors over the tables that a job reads, with the progress of each.
struct Inputs {
    children: Vec<Box<dyn InternalIter>>,
    progress: Vec<Arc<Mutex<InputProgress>>>,
}

impl Inputs {
    /// Opens one cursor for each table of level 0 and one for each other level. Tables of which
    /// nothing is left are not read.
    fn new(job: &CompactionJob<'_>, dropped: &RangeDelFilter<'_>) -> Inputs {
        let (from, to) = job.range.clone().unwrap_or((None, None));
        let mut inputs = Inputs {
            children: Vec::new(),
            progress: Vec::new(),
        };
        for (level, tables) in &job.plan.inputs {
            let runs: Vec<Vec<Arc<TableFile>>> = match level {
                0 => tables.iter().map(|t| vec![t.clone()]).collect(),
                _ => vec![tables.clone()],
            };
            let runs = runs.into_iter().map(|tables| {
                let read = |t: &Arc<TableFile>| !is_left_out(t, dropped);
                tables.into_iter().filter(read).collect::<Vec<_>>()
            });
            for tables in runs.filter(|tables| !tables.is_empty()) {
                let progress = Arc::new(Mutex::new(InputProgress::default()));
                inputs.progress.push(progress.clone());
                inputs.children.push(Box::new(InputIter::new(
                    tables,
                    job.options.comparator.clone(),
                    from.clone(),
                    to.clone(),
                    progress,
                )));
            }
        }
        inputs
    }
}

/// Returns true if a job need not read the table: newer range tombstones hide all of its entries,
/// and none of them is a reference whose record has to be counted as garbage.
fn is_left_out(t: &TableFile, dropped: &RangeDelFilter<'_>) -> bool {
    dropped.hides_table(t) && t.meta.references.is_empty()
}

/// Runs a job.
///
/// Errors: errors of reading and writing; `Corruption`, with the table's path, if entries are out
/// of order, of unknown kind, or not as many as the manifest records; `Unsupported` for reserved
/// kinds; `Cancelled`, which ends this operation only, if the job is cancelled. After an error the
/// files that the job made are removed.
pub fn run(job: &CompactionJob<'_>) -> Result<Outcome> {
    assert!(
        !job.plan.trivial_move,
        "a trivial move changes the manifest only"
    );
    assert!(
        job.snapshots.is_sorted(),
        "snapshots are given in ascending order"
    );
    let cmp = &job.options.comparator;
    let deleted = input_tombstones(job)?;
    let dropped = RangeDelFilter::new(cmp, &deleted, job.snapshots);
    let Inputs { children, progress } = Inputs::new(job, &dropped);
    let kept = retained_tombstones(cmp, &deleted, job.snapshots, &job.plan.deeper);
    let mut outputs = Outputs::new(job, kept);
    let mut outcome = merge_into(job, &deleted, children, &progress, &mut outputs)?;
    count_left_out(job, &dropped, &mut outcome);
    count_read(&progress, &mut outcome);
    if job.range.is_none() {
        check_all_read(job.plan, &outcome)?;
    }
    add_written(outputs.finish()?, &mut outcome);
    Ok(outcome)
}

/// Merges the inputs into the outputs, and relocates values if the plan says so.
fn merge_into<'j>(
    job: &'j CompactionJob<'j>,
    deleted: &Fragments,
    children: Vec<Box<dyn InternalIter>>,
    progress: &[Arc<Mutex<InputProgress>>],
    outputs: &mut Outputs<'j>,
) -> Result<Outcome> {
    let cmp = &job.options.comparator;
    let input = MergingIter::new(cmp.clone(), children);
    let rules = MergeRules {
        cmp,
        snapshots: job.snapshots,
        now_ms: job.now_ms,
        filter: job.options.compaction_filter.as_deref(),
        merging: &Merging::new(job.family.name.clone(), job.options.merge_operator.clone()),
        family: &job.family.name,
        level: job.plan.output_level,
        cancelled: job.cancelled,
        deleted,
    };
    let blame = |child: Option<usize>| {
        child
            .and_then(|c| progress.get(c))
            .and_then(|p| p.lock().table.clone())
    };
    let deeper = DeeperLevels::new(cmp, &job.plan.deeper);
    if job.plan.relocated_files.is_empty() {
        return merge(&rules, input, deeper, outputs, &blame);
    }
    let mut relocator = ValueRelocator::new(job, outputs);
    let outcome = merge(&rules, input, deeper, &mut relocator, &blame)?;
    relocator.flush()?;
    Ok(outcome)
}

/// Counts the entries of tables that were left out as read. Of several jobs of a plan the one whose
/// range has the table's first key counts them.
fn count_left_out(job: &CompactionJob<'_>, dropped: &RangeDelFilter<'_>, outcome: &mut Outcome) {
    let left_out = (job.plan.input_tables()).filter(|t| is_left_out(t, dropped));
    for t in left_out.filter(|t| job.has(&job.options.comparator, t.smallest_user())) {
        outcome.entries_in += t.meta.entries;
        outcome.read.insert(t.number, t.meta.entries);
    }
}

/// Counts the entries and bytes of the tables that were read.
fn count_read(progress: &[Arc<Mutex<InputProgress>>], outcome: &mut Outcome) {
    for progress in progress {
        for (table, seen) in &progress.lock().seen {
            *outcome.read.entry(table.number).or_default() += seen;
            let part = u128::from(table.meta.size) * u128::from(*seen)
                / u128::from(table.meta.entries.max(1));
            outcome.bytes_read += part as u64;
        }
    }
}

/// Adds the finished files to the outcome.
fn add_written(written: WrittenFiles, outcome: &mut Outcome) {
    let sizes = |tables: &[(u64, TableMeta)]| tables.iter().map(|(_, m)| m.size).sum::<u64>();
    let blob_sizes = |blobs: &[(u64, BlobMeta)]| blobs.iter().map(|(_, m)| m.size).sum::<u64>();
    outcome.bytes_written = sizes(&written.tables) + blob_sizes(&written.blobs);
    let entries: u64 = written.tables.iter().map(|(_, m)| m.entries).sum();
    assert_eq!(
        entries, outcome.entries_out,
        "outputs hold every entry that was added to them"
    );
    (outcome.outputs, outcome.blobs, outcome.dead) = (written.tables, written.blobs, written.dead);
    (outcome.moved, outcome.renamed) = (written.moved, written.renamed);
    outcome.moved_records = written.moved_records;
    outcome.unreadable_indexes = written.unreadable_indexes;
}
