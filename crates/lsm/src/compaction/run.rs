//! Merging a plan's tables into new ones.
//!
//! Entries come in internal key order: of each user key the newest first. Live snapshots cut sequence numbers into
//! stripes: stripe `i` is what snapshot `i` sees and snapshot `i - 1` does not; the last stripe is newer than all snapshots.
//! Every reader sees the newest entry of its stripe or, when its stripe has none, of an older one. So, for each user key:
//! 1. Of each stripe the newest entry is kept and the others are dropped.
//! 2. A value whose time is over is a tombstone from then on: it still hides what is older.
//! 3. The compaction filter sees the newest entry when it is a value in the last stripe. What it removes becomes a tombstone.
//! 4. A tombstone is dropped when nothing that it hides is left: no deeper table may hold the key, and no older entry of
//!    the key is kept here.
//!
//! Sequence numbers are never changed: values kept elsewhere are found by them. Errors of any kind end the compaction and
//! remove its outputs; the inputs stay as they are, and no entry is skipped because it could not be read.

use crate::compaction::input::{InputIter, Progress};
use crate::compaction::output::{Outputs, Sink};
use crate::compaction::pick::Plan;
use crate::compaction::split::KeyRange;
use crate::iter::{InternalIter, MergingIter, expiry_of};
use crate::key::{Cmp, Kind, SeqNo, TRAILER_LEN, pack_trailer, parse_internal_key};
use crate::options::{CompactionFilter, FamilyOptions, FilterContext, FilterDecision};
use crate::table::{TableFamily, TableMeta};
use crate::version::{TableFile, TableStore};
use basalt_env::Env;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering as Atomic};
use basalt_fs::{Error, ErrorKind, Reach, Result};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything one merge needs. Several jobs over disjoint ranges may share a plan.
pub struct Job<'a> {
    /// The environment.
    pub env: Env,
    /// Where tables live.
    pub store: Arc<TableStore>,
    /// What to merge. Not a trivial move.
    pub plan: &'a Plan,
    /// The family's settings.
    pub options: &'a FamilyOptions,
    /// The family, for its filter and its tables.
    pub family: TableFamily,
    /// Live snapshots, ascending. Taken under the engine's lock after the plan was made; snapshots made later see only
    /// newer states and need not be here.
    pub snapshots: &'a [SeqNo],
    /// Wall time in ms since 1970 at which values count as expired.
    pub now_ms: u64,
    /// Gives numbers for new tables.
    pub new_file_number: &'a (dyn Fn() -> u64 + Sync),
    /// Set it, and the merge ends soon with `Closed`.
    pub cancelled: &'a AtomicBool,
    /// Only user keys in this range; `None` for all.
    pub range: Option<KeyRange>,
}

/// What a merge did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// New tables in key order: number and metadata. Their data is durable, their names are not yet: sync the directory.
    pub outputs: Vec<(u64, TableMeta)>,
    /// Bytes of tables read; of tables read in part, their part by entries.
    pub bytes_read: u64,
    /// Bytes of tables written.
    pub bytes_written: u64,
    /// Entries read.
    pub entries_in: u64,
    /// Entries written.
    pub entries_out: u64,
    /// Entries that the filter removed or changed.
    pub filtered: u64,
    /// Values found expired.
    pub expired: u64,
    /// Entries read of each input table, by its number.
    pub read: BTreeMap<u64, u64>,
}

/// Merges. On any error, and when cancelled (`Closed`, reaching this operation only), the files it made are removed.
///
/// Errors: whatever reading and writing met; `Corruption` naming the table when entries are out of order, of unknown kind, or
/// not as many as the manifest records; `Unsupported` for reserved kinds.
pub fn run(job: &Job<'_>) -> Result<Outcome> {
    assert!(
        !job.plan.trivial_move,
        "a trivial move changes the manifest only"
    );
    assert!(
        job.snapshots.is_sorted(),
        "snapshots are given in ascending order"
    );
    let (from, to) = job.range.clone().unwrap_or((None, None));
    let cmp = &job.options.comparator;
    let mut accounts = Vec::new();
    let mut children: Vec<Box<dyn InternalIter>> = Vec::new();
    for (level, tables) in &job.plan.inputs {
        let each: Vec<Vec<Arc<TableFile>>> = match level {
            0 => tables.iter().map(|t| vec![t.clone()]).collect(),
            _ => vec![tables.clone()],
        };
        for tables in each {
            let progress = Arc::new(Mutex::new(Progress::default()));
            accounts.push(progress.clone());
            children.push(Box::new(InputIter::new(
                tables,
                cmp.clone(),
                from.clone(),
                to.clone(),
                progress,
            )));
        }
    }
    let input = MergingIter::new(cmp.clone(), children);
    let mut outputs = Outputs::new(job);
    let rules = Rules {
        cmp,
        snapshots: job.snapshots,
        now_ms: job.now_ms,
        filter: job.options.compaction_filter.as_deref(),
        family: &job.family.name,
        level: job.plan.output_level,
        cancelled: job.cancelled,
    };
    let blame = |child: Option<usize>| {
        child
            .and_then(|c| accounts.get(c))
            .and_then(|a| a.lock().table.clone())
    };
    let deeper = Deeper::new(cmp, &job.plan.deeper);
    let mut outcome = merge(&rules, input, deeper, &mut outputs, &blame)?;
    for account in &accounts {
        for (table, seen) in &account.lock().seen {
            *outcome.read.entry(table.number).or_default() += seen;
            let part = u128::from(table.meta.size) * u128::from(*seen)
                / u128::from(table.meta.entries.max(1));
            outcome.bytes_read += part as u64;
        }
    }
    if job.range.is_none() {
        account_for(job.plan, &outcome)?;
    }
    outcome.outputs = outputs.finish()?;
    outcome.bytes_written = outcome.outputs.iter().map(|(_, m)| m.size).sum();
    let written: u64 = outcome.outputs.iter().map(|(_, m)| m.entries).sum();
    assert_eq!(
        written, outcome.entries_out,
        "outputs hold every entry that was added to them"
    );
    Ok(outcome)
}

/// The outcomes of a plan's sub-ranges, in key order, as one. Fails with `Corruption` when together they have not read
/// every entry that the manifest records of the inputs; the caller then removes the outputs.
pub fn combine(plan: &Plan, parts: Vec<Outcome>) -> Result<Outcome> {
    let mut all = Outcome::default();
    for part in parts {
        all.outputs.extend(part.outputs);
        all.bytes_read += part.bytes_read;
        all.bytes_written += part.bytes_written;
        all.entries_in += part.entries_in;
        all.entries_out += part.entries_out;
        all.filtered += part.filtered;
        all.expired += part.expired;
        for (table, seen) in part.read {
            *all.read.entry(table).or_default() += seen;
        }
    }
    account_for(plan, &all)?;
    Ok(all)
}

/// Every entry of every input was read once.
fn account_for(plan: &Plan, outcome: &Outcome) -> Result<()> {
    let mut expected = 0;
    for t in plan.input_tables() {
        let seen = outcome.read.get(&t.number).copied().unwrap_or(0);
        if seen != t.meta.entries {
            return Err(Error::corruption(
                &t.path(),
                0,
                format!(
                    "expected {} entries as the manifest records, a compaction read {seen}",
                    t.meta.entries
                ),
            ));
        }
        expected += seen;
    }
    assert_eq!(
        expected, outcome.entries_in,
        "entries merged are the entries read"
    );
    Ok(())
}

/// What decides over entries.
pub(super) struct Rules<'a> {
    pub(super) cmp: &'a Cmp,
    pub(super) snapshots: &'a [SeqNo],
    pub(super) now_ms: u64,
    pub(super) filter: Option<&'a dyn CompactionFilter>,
    pub(super) family: &'a str,
    pub(super) level: usize,
    pub(super) cancelled: &'a AtomicBool,
}

/// Answers for ascending keys whether a deeper level may hold them.
pub(super) struct Deeper<'a> {
    cmp: &'a Cmp,
    levels: Vec<(&'a [Arc<TableFile>], usize)>,
}

impl<'a> Deeper<'a> {
    /// Over tables by level, each level ascending and disjoint.
    pub(super) fn new(cmp: &'a Cmp, levels: &'a [Vec<Arc<TableFile>>]) -> Deeper<'a> {
        Deeper {
            cmp,
            levels: levels.iter().map(|l| (&l[..], 0)).collect(),
        }
    }

    /// True when no deeper table's range holds the key. Keys must be asked in ascending order.
    fn lacks(&mut self, user_key: &[u8]) -> bool {
        let cmp = self.cmp;
        self.levels.iter_mut().all(|(tables, at)| {
            while let Some(t) = tables.get(*at)
                && cmp.user(t.largest_user(), user_key) == Ordering::Less
            {
                *at += 1;
            }
            tables
                .get(*at)
                .is_none_or(|t| cmp.user(t.smallest_user(), user_key) == Ordering::Greater)
        })
    }
}

/// Writes to a sink what survives of one user key, announcing the key before its first entry.
struct KeyWriter<'a> {
    sink: &'a mut dyn Sink,
    begun: bool,
    /// A tombstone that is written only if something older is.
    held: Option<u64>,
    scratch: Vec<u8>,
    written: u64,
}

impl KeyWriter<'_> {
    fn next_user_key(&mut self) {
        self.begun = false;
        self.held = None;
    }

    fn write(&mut self, user: &[u8], trailer: u64, value: &[u8]) -> Result<()> {
        if !self.begun {
            self.sink.begin_user_key(user)?;
            self.begun = true;
        }
        if let Some(held) = self.held.take() {
            self.put(user, held, &[])?;
        }
        self.put(user, trailer, value)
    }

    fn put(&mut self, user: &[u8], trailer: u64, value: &[u8]) -> Result<()> {
        self.scratch.clear();
        self.scratch.reserve(user.len() + TRAILER_LEN);
        crate::key::encode_internal_key(&mut self.scratch, user, trailer);
        self.written += 1;
        self.sink.add(&self.scratch, value)
    }
}

/// The merge itself. `blame` names the table that a child of `input` stands in, for messages.
pub(super) fn merge(
    rules: &Rules<'_>,
    mut input: MergingIter,
    mut deeper: Deeper<'_>,
    sink: &mut dyn Sink,
    blame: &dyn Fn(Option<usize>) -> Option<Arc<TableFile>>,
) -> Result<Outcome> {
    let named = |e: Error, input: &MergingIter| match blame(input.valid().then(|| input.child())) {
        Some(t) if e.path().is_none() => e.in_file(&t.path()),
        _ => e,
    };
    let mut out = Outcome::default();
    let mut writer = KeyWriter {
        sink,
        begun: false,
        held: None,
        scratch: Vec::new(),
        written: 0,
    };
    let newest_stripe = rules.snapshots.len();
    // The user key at hand, the trailer last seen of it, and the stripe of the last entry that counted.
    let mut user: Vec<u8> = Vec::new();
    let mut last_trailer: Option<u64> = None;
    let mut last_stripe: Option<usize> = None;
    let mut changed: Vec<u8> = Vec::new();
    input.seek_to_first()?;
    while input.valid() {
        if rules.cancelled.load(Atomic::Relaxed) {
            return Err(
                Error::new(ErrorKind::Closed, "the compaction was cancelled")
                    .with_reach(Reach::Operation),
            );
        }
        let (key, seq, mut kind) = parse_internal_key(input.key()).map_err(|e| named(e, &input))?;
        let trailer = pack_trailer(seq, kind);
        out.entries_in += 1;
        let same_key = match last_trailer {
            None => false,
            Some(last) => match rules.cmp.user(key, &user) {
                Ordering::Greater => false,
                Ordering::Equal if trailer < last => true,
                _ => {
                    let e = Error::new(
                        ErrorKind::Corruption,
                        format!(
                            "expected internal keys in ascending order, found sequence number {seq} of a {}-byte key \
                             after an equal or larger one",
                            key.len()
                        ),
                    );
                    return Err(named(e, &input));
                }
            },
        };
        if !same_key {
            user.clear();
            user.extend_from_slice(key);
            last_stripe = None;
            writer.next_user_key();
        }
        last_trailer = Some(trailer);
        let stripe = rules.snapshots.partition_point(|&s| s < seq);
        let newest = last_stripe.is_none();
        if last_stripe == Some(stripe) {
            // Hidden from everyone by a newer entry of the same stripe.
            input.next()?;
            continue;
        }
        last_stripe = Some(stripe);

        let mut value = input.value();
        let mut prefix = 0;
        if kind == Kind::PutTtl {
            prefix = 8;
            if expiry_of(value).map_err(|e| named(e, &input))? <= rules.now_ms {
                kind = Kind::Delete;
                out.expired += 1;
            }
        }
        if kind != Kind::Delete
            && newest
            && stripe == newest_stripe
            && let Some(filter) = rules.filter
        {
            let context = FilterContext {
                family: rules.family,
                level: rules.level,
                seq,
                now_ms: rules.now_ms,
            };
            match filter.filter(&context, key, &value[prefix..]) {
                FilterDecision::Keep => {}
                FilterDecision::Remove => {
                    kind = Kind::Delete;
                    out.filtered += 1;
                }
                FilterDecision::Change(new) => {
                    if new.len() > crate::MAX_VALUE_LEN {
                        return Err(Error::invalid(format!(
                            "compaction filter {:?} made a value of {} bytes, at most {} are allowed",
                            filter.name(),
                            new.len(),
                            crate::MAX_VALUE_LEN
                        )));
                    }
                    changed.clear();
                    changed.extend_from_slice(&value[..prefix]);
                    changed.extend_from_slice(&new);
                    value = &changed;
                    out.filtered += 1;
                }
            }
        }
        if kind != Kind::Delete {
            writer.write(key, trailer, value)?;
        } else if !deeper.lacks(key) {
            writer.write(key, pack_trailer(seq, Kind::Delete), &[])?;
        } else {
            // Nothing below. It goes, unless an older entry is kept for an older snapshot: then it still hides that one.
            // Of several tombstones in a row the oldest does that for all stripes above it.
            writer.held = Some(pack_trailer(seq, Kind::Delete));
        }
        input.next()?;
    }
    out.entries_out = writer.written;
    Ok(out)
}
