//! Merging a plan's tables into new ones.
//!
//! Entries come in internal key order: of each user key the newest first. Live snapshots cut sequence numbers into
//! stripes: stripe `i` is what snapshot `i` sees and snapshot `i - 1` does not; the last stripe is newer than all snapshots.
//! Every reader sees the newest entry of its stripe or, when its stripe has none, of an older one. So, for each user key:
//! 1. Of each stripe the newest entry is kept and the others are dropped; operands stand on what lies below them, and keep it.
//! 2. A value whose time is over is a tombstone from then on: it still hides what is older.
//! 3. The compaction filter sees the newest entry when it is a value in the last stripe. What it removes becomes a tombstone.
//! 4. A tombstone is dropped when nothing that it hides is left: no deeper table may hold the key, and no older entry of
//!    the key is kept here.
//! 5. Operands of one stripe are merged: with the value or tombstone below them in that stripe into a value, which the filter
//!    sees like any other; with nothing, when the key is nowhere below; else with each other. Over a value that has yet to
//!    expire they stay, because they outlive it. Where the operator refuses they stay as they are, and so does what is below.
//! 6. What a newer range tombstone of the same stripe covers is dropped before any of this. Operands above it in that stripe
//!    stand on nothing.
//!
//! Sequence numbers are never changed: values kept elsewhere are found by them. Errors of any kind end the compaction and
//! remove its outputs; the inputs stay as they are, and no entry is skipped because it could not be read.

use crate::compaction::input::{InputIter, Progress};
use crate::compaction::output::{Outputs, Sink};
use crate::compaction::pick::Plan;
use crate::compaction::ranges::{Dropped, of_inputs, that_stay};
use crate::compaction::split::KeyRange;
use crate::compaction::value_relocator::ValueRelocator;
use crate::iter::MergingIter;
use crate::options::{CompactionFilter, FamilyOptions, FilterContext, FilterDecision, KeyDecision};
use crate::version::{BlobSet, TableFile, TableStore};
use basalt_blob::BlobMeta;
use basalt_blob::garbage::Dead;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering as Atomic};
use basalt_env::{CacheKey, Env};
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::entry::expiry_of;
use basalt_kv::key::{Cmp, Kind, SeqNo, TRAILER_LEN, pack_trailer, parse_internal_key};
use basalt_kv::merge::{Fold, Merging};
use basalt_kv::ranges::Fragments;
use basalt_kv::separated::Reference;
use basalt_table::InternalIter;
use basalt_table::{TableFamily, TableMeta};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything one merge needs. Several jobs over disjoint ranges may share a plan.
pub struct Job<'a> {
    /// Returns the environment.
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
    /// Blob files as they are now.
    pub blobs: &'a (dyn Fn() -> Arc<BlobSet> + Sync),
    /// Returns how many bytes the merge may produce before it calls this again. The argument is the bytes
    /// produced and not yet written. An error ends the merge.
    pub allowance: &'a (dyn Fn(u64) -> Result<u64> + Sync),
    /// Only user keys in this range; `None` for all.
    pub range: Option<KeyRange>,
}

impl Job<'_> {
    /// `Closed` once the merge is cancelled.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        match self.cancelled.load(Atomic::Relaxed) {
            false => Ok(()),
            true => Err(cancelled()),
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the compaction was cancelled").with_reach(Reach::Operation)
}

/// What a merge did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// New tables in key order: number and metadata. Their data is durable, their names are not yet: sync the directory.
    pub outputs: Vec<(u64, TableMeta)>,
    /// New blob files, as durable as the tables.
    pub blobs: Vec<(u64, BlobMeta)>,
    /// What has no reference any more.
    pub dead: Vec<Dead>,
    /// Indexes of blob files that could not be read, an error for each: the places of the records
    /// in `dead` were derived from the records.
    pub unreadable_indexes: Vec<Error>,
    /// Bytes of values that were moved along, headers and keys included.
    pub moved: u64,
    /// How many they are. Their old records are among `dead`.
    pub moved_records: u64,
    /// Of these what the cache has: where it was, and where it is now.
    pub renamed: Vec<(CacheKey, CacheKey)>,
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
    /// Operands that went into a value or another operand.
    pub merged: u64,
    /// Times that a merge operator refused.
    pub refused: u64,
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
    let deleted = of_inputs(job)?;
    let dropped = Dropped::new(cmp, &deleted, job.snapshots);
    let mut unread = Outcome::default();
    let mut accounts = Vec::new();
    let mut children: Vec<Box<dyn InternalIter>> = Vec::new();
    for (level, tables) in &job.plan.inputs {
        let each: Vec<Vec<Arc<TableFile>>> = match level {
            0 => tables.iter().map(|t| vec![t.clone()]).collect(),
            _ => vec![tables.clone()],
        };
        let each = each.into_iter().map(|tables| {
            let read = |t: &Arc<TableFile>| !dropped.hides_table(t) || refers(t);
            tables.into_iter().filter(read).collect::<Vec<_>>()
        });
        for tables in each.filter(|tables| !tables.is_empty()) {
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
    // What a newer range tombstone hides whole is gone without being read, unless values elsewhere go with it; the part that holds its first key says so.
    for t in (job.plan.input_tables()).filter(|t| dropped.hides_table(t) && !refers(t)) {
        let first = t.smallest_user();
        let here = (from.as_ref()).is_none_or(|f| cmp.user(first, f) != Ordering::Less)
            && (to.as_ref()).is_none_or(|to| cmp.user(first, to) == Ordering::Less);
        if here {
            unread.entries_in += t.meta.entries;
            unread.read.insert(t.number, t.meta.entries);
        }
    }
    let input = MergingIter::new(cmp.clone(), children);
    let kept = that_stay(cmp, &deleted, job.snapshots, &job.plan.deeper);
    let mut outputs = Outputs::new(job, kept);
    let rules = Rules {
        cmp,
        snapshots: job.snapshots,
        now_ms: job.now_ms,
        filter: job.options.compaction_filter.as_deref(),
        merging: &Merging::new(job.family.name.clone(), job.options.merge_operator.clone()),
        family: &job.family.name,
        level: job.plan.output_level,
        cancelled: job.cancelled,
        deleted: &deleted,
    };
    let blame = |child: Option<usize>| {
        child
            .and_then(|c| accounts.get(c))
            .and_then(|a| a.lock().table.clone())
    };
    let deeper = Deeper::new(cmp, &job.plan.deeper);
    let mut outcome = match job.plan.gathered.is_empty() {
        true => merge(&rules, input, deeper, &mut outputs, &blame)?,
        false => {
            let mut gathering = ValueRelocator::new(job, &mut outputs);
            let outcome = merge(&rules, input, deeper, &mut gathering, &blame)?;
            gathering.pass_on()?;
            outcome
        }
    };
    outcome.entries_in += unread.entries_in;
    outcome.read = unread.read;
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
    let written = outputs.finish()?;
    (outcome.outputs, outcome.blobs, outcome.dead) = (written.tables, written.blobs, written.dead);
    (outcome.moved, outcome.renamed) = (written.moved, written.renamed);
    outcome.moved_records = written.moved_records;
    outcome.unreadable_indexes = written.unreadable_indexes;
    let tables = outcome.outputs.iter().map(|(_, m)| m.size);
    outcome.bytes_written = tables
        .chain(outcome.blobs.iter().map(|(_, m)| m.size))
        .sum();
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
        all.blobs.extend(part.blobs);
        all.dead.extend(part.dead);
        all.unreadable_indexes.extend(part.unreadable_indexes);
        all.moved += part.moved;
        all.moved_records += part.moved_records;
        all.renamed.extend(part.renamed);
        all.bytes_read += part.bytes_read;
        all.bytes_written += part.bytes_written;
        all.entries_in += part.entries_in;
        all.entries_out += part.entries_out;
        all.merged += part.merged;
        all.refused += part.refused;
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
pub(crate) struct Rules<'a> {
    pub(crate) cmp: &'a Cmp,
    pub(crate) snapshots: &'a [SeqNo],
    pub(crate) now_ms: u64,
    pub(crate) filter: Option<&'a dyn CompactionFilter>,
    pub(crate) merging: &'a Merging,
    pub(crate) family: &'a str,
    pub(crate) level: usize,
    pub(crate) cancelled: &'a AtomicBool,
    /// Range tombstones of the inputs.
    pub(crate) deleted: &'a Fragments,
}

impl Rules<'_> {
    fn context(&self, seq: SeqNo) -> FilterContext<'_> {
        FilterContext {
            family: self.family,
            level: self.level,
            seq,
            now_ms: self.now_ms,
        }
    }

    /// What the compaction filter leaves of a value that it may see: `None` when it removes it. The first `prefix` bytes are ours.
    fn filter<'v>(
        &self,
        key: &[u8],
        seq: SeqNo,
        prefix: usize,
        value: Cow<'v, [u8]>,
        out: &mut Outcome,
    ) -> Result<Option<Cow<'v, [u8]>>> {
        let Some(filter) = self.filter else {
            return Ok(Some(value));
        };
        match filter.filter(&self.context(seq), key, &value[prefix..]) {
            FilterDecision::Keep => Ok(Some(value)),
            FilterDecision::Remove => {
                out.filtered += 1;
                Ok(None)
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
                out.filtered += 1;
                Ok(Some(Cow::Owned([&value[..prefix], &new].concat())))
            }
        }
    }
}

/// Answers for ascending keys whether a deeper level may hold them.
pub(crate) struct Deeper<'a> {
    cmp: &'a Cmp,
    levels: Vec<(&'a [Arc<TableFile>], usize)>,
    /// Nothing is known of what is deeper.
    unknown: bool,
}

impl<'a> Deeper<'a> {
    /// Over tables by level, each level ascending and disjoint.
    pub(super) fn new(cmp: &'a Cmp, levels: &'a [Vec<Arc<TableFile>>]) -> Deeper<'a> {
        Deeper {
            cmp,
            levels: levels.iter().map(|l| (&l[..], 0)).collect(),
            unknown: false,
        }
    }
    /// Deeper levels may hold any key.
    pub(crate) fn unknown(cmp: &'a Cmp) -> Deeper<'a> {
        Deeper {
            cmp,
            levels: Vec::new(),
            unknown: true,
        }
    }

    /// True when no deeper table's range holds the key. Keys must be asked in ascending order.
    fn lacks(&mut self, user_key: &[u8]) -> bool {
        let cmp = self.cmp;
        !self.unknown
            && self.levels.iter_mut().all(|(tables, at)| {
                while let Some(t) = tables.get(*at)
                    && t.ends_before(user_key)
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

    /// Lets go of a reference that is not written, if the entry has one.
    fn let_go(&mut self, user: &[u8], seq: SeqNo, to: &mut Option<Reference>) -> Result<()> {
        match to.take() {
            Some(to) => self.sink.let_go(user, seq, &to),
            None => Ok(()),
        }
    }

    fn operand(&mut self, user: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.write(user, pack_trailer(seq, Kind::Merge), operand)
    }

    fn put(&mut self, user: &[u8], trailer: u64, value: &[u8]) -> Result<()> {
        self.scratch.clear();
        self.scratch.reserve(user.len() + TRAILER_LEN);
        basalt_kv::key::encode_internal_key(&mut self.scratch, user, trailer);
        self.written += 1;
        self.sink.add(&self.scratch, value)
    }
}

/// The merge itself. `blame` names the table that a child of `input` stands in, for messages.
pub(crate) fn merge(
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
    let mut dropped = Dropped::new(rules.cmp, rules.deleted, rules.snapshots);
    // The user key at hand, the trailer last seen of it, and the stripe of the last entry that counted.
    let mut user: Vec<u8> = Vec::new();
    let mut last_trailer: Option<u64> = None;
    let mut last_stripe: Option<usize> = None;
    // The operands met last, and whether the filter may see what they give.
    let mut fold = Fold::new(rules.merging);
    let mut fold_is_newest = false;
    input.seek_to_first()?;
    while input.valid() {
        if rules.cancelled.load(Atomic::Relaxed) {
            return Err(cancelled());
        }
        let (mut key, mut seq, mut kind) =
            parse_internal_key(input.key()).map_err(|e| named(e, &input))?;
        let trailer = pack_trailer(seq, kind);
        let mut reference = match kind {
            Kind::BlobRef => {
                let to = Reference::decode(input.value()).map_err(|e| named(e, &input))?;
                kind = to.kind();
                Some(to)
            }
            _ => None,
        };
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
            if fold.is_open() {
                let filter = fold_is_newest.then_some(rules);
                end_of_key(&mut fold, filter, &mut deeper, &mut writer, &user, &mut out)?;
            }
            user.clear();
            user.extend_from_slice(key);
            last_stripe = None;
            writer.next_user_key();
        }
        last_trailer = Some(trailer);
        let stripe = rules.snapshots.partition_point(|&s| s < seq);
        if dropped.hides(key, seq) {
            writer.let_go(key, seq, &mut reference)?;
            // So are all older ones of its stripe: it does not matter that none is kept for them.
            if fold.is_open() && last_stripe == Some(stripe) {
                let filter = fold_is_newest.then_some(rules);
                over_nothing(&mut fold, filter, &mut writer, &mut out)?;
            }
            input.next()?;
            continue;
        }
        let mut filtered = last_stripe.is_none() && stripe == newest_stripe;
        if last_stripe == Some(stripe) {
            if !fold.is_open() {
                // Hidden from everyone by a newer entry of the same stripe.
                writer.let_go(key, seq, &mut reference)?;
                input.next()?;
                continue;
            }
        } else if fold.is_open() {
            // What is below the operands belongs to an older stripe, too: they cannot take it away from there.
            fold.release(&mut |key, seq, operand| writer.operand(key, seq, operand))?;
        }
        last_stripe = Some(stripe);
        if kind == Kind::Merge {
            if !fold.is_open() {
                fold_is_newest = filtered;
            }
            fold.push(key, seq, input.value(), &mut |key, seq, operand| {
                writer.operand(key, seq, operand)
            })?;
            input.next()?;
            continue;
        }
        let opened;
        let mut value = Cow::Borrowed(input.value());
        let mut prefix = 0;
        if kind == Kind::PutTtl {
            prefix = 8;
            let at = match &reference {
                Some(to) => to.expire_at_ms.expect("of an expiring value"),
                None => expiry_of(&value).map_err(|e| named(e, &input))?,
            };
            if at <= rules.now_ms {
                kind = Kind::Delete;
                out.expired += 1;
                writer.let_go(key, seq, &mut reference)?;
            }
        }
        if fold.is_open() {
            if let Some(to) = reference.as_ref().filter(|_| kind == Kind::Put) {
                opened = writer.sink.open(key, seq, to)?;
                value = Cow::Borrowed(&opened);
            }
            let merged = match kind {
                Kind::Put => fold.over(Some(&value)),
                Kind::Delete => fold.over(None),
                _ => None,
            };
            filtered = fold_is_newest && merged.is_some();
            match merged {
                Some((newest, merged)) => {
                    writer.let_go(key, seq, &mut reference)?;
                    (seq, kind, prefix) = (newest, Kind::Put, 0);
                    key = fold.key();
                    value = Cow::Owned(merged);
                }
                None => {
                    fold.release(&mut |key, seq, operand| writer.operand(key, seq, operand))?;
                }
            }
        }
        if kind != Kind::Delete && filtered {
            let kept = match &reference {
                Some(to) => filter_reference(rules, key, seq, to, &mut writer, &mut out)?,
                None => Filtered::of(rules.filter(key, seq, prefix, value, &mut out)?),
            };
            match kept {
                Filtered::Kept(kept) => value = kept,
                Filtered::Referred => value = Cow::Borrowed(input.value()),
                Filtered::Changed(new) => {
                    writer.let_go(key, seq, &mut reference)?;
                    value = Cow::Owned(new);
                }
                Filtered::Removed => {
                    writer.let_go(key, seq, &mut reference)?;
                    kind = Kind::Delete;
                    value = Cow::Borrowed(&[]);
                }
            }
        } else if reference.is_some() {
            // It may have been opened for operands that stay.
            value = Cow::Borrowed(input.value());
        }
        if kind != Kind::Delete {
            if reference.is_some() {
                kind = Kind::BlobRef;
            }
            writer.write(key, pack_trailer(seq, kind), &value)?;
        } else if !deeper.lacks(key) {
            writer.write(key, pack_trailer(seq, Kind::Delete), &[])?;
        } else {
            // Nothing below. It goes, unless an older entry is kept for an older snapshot: then it still hides that one.
            // Of several tombstones in a row the oldest does that for all stripes above it.
            writer.held = Some(pack_trailer(seq, Kind::Delete));
        }
        input.next()?;
    }
    if fold.is_open() {
        let filter = fold_is_newest.then_some(rules);
        end_of_key(&mut fold, filter, &mut deeper, &mut writer, &user, &mut out)?;
    }
    (out.merged, out.refused) = (fold.merged, fold.refused);
    out.entries_out = writer.written;
    Ok(out)
}

/// What the filter left of an entry.
enum Filtered<'v> {
    /// This value.
    Kept(Cow<'v, [u8]>),
    /// The reference as it is.
    Referred,
    /// This value in place of the one that was referred to.
    Changed(Vec<u8>),
    Removed,
}

impl<'v> Filtered<'v> {
    fn of(kept: Option<Cow<'v, [u8]>>) -> Filtered<'v> {
        kept.map_or(Filtered::Removed, Filtered::Kept)
    }
}

/// Asks the filter for an entry whose value is elsewhere, and reads it only if the key alone does not decide.
fn filter_reference(
    rules: &Rules<'_>,
    key: &[u8],
    seq: SeqNo,
    to: &Reference,
    writer: &mut KeyWriter<'_>,
    out: &mut Outcome,
) -> Result<Filtered<'static>> {
    let Some(filter) = rules.filter else {
        return Ok(Filtered::Referred);
    };
    match filter.filter_key(&rules.context(seq), key) {
        Some(KeyDecision::Keep) => return Ok(Filtered::Referred),
        Some(KeyDecision::Remove) => {
            out.filtered += 1;
            return Ok(Filtered::Removed);
        }
        None => {}
    }
    let opened = writer.sink.open(key, seq, to)?;
    let prefix = if to.expire_at_ms.is_some() { 8 } else { 0 };
    Ok(
        match rules.filter(key, seq, prefix, Cow::Borrowed(&opened), out)? {
            Some(Cow::Borrowed(_)) => Filtered::Referred,
            Some(Cow::Owned(new)) => Filtered::Changed(new),
            None => Filtered::Removed,
        },
    )
}

/// True when values that are elsewhere go with the table.
fn refers(t: &TableFile) -> bool {
    !t.meta.references.is_empty()
}

/// A key ended with operands: below them is nothing, or only what deeper levels hold.
fn end_of_key(
    fold: &mut Fold<'_>,
    filter: Option<&Rules<'_>>,
    deeper: &mut Deeper<'_>,
    writer: &mut KeyWriter<'_>,
    key: &[u8],
    out: &mut Outcome,
) -> Result<()> {
    if deeper.lacks(key) {
        return over_nothing(fold, filter, writer, out);
    }
    fold.release(&mut |key, seq, operand| writer.operand(key, seq, operand))
}

/// Nothing of the key is below the operands, or nothing that whoever sees them sees. Where the operator refuses they stay.
fn over_nothing(
    fold: &mut Fold<'_>,
    filter: Option<&Rules<'_>>,
    writer: &mut KeyWriter<'_>,
    out: &mut Outcome,
) -> Result<()> {
    let Some((seq, value)) = fold.over(None) else {
        return fold.release(&mut |key, seq, operand| writer.operand(key, seq, operand));
    };
    let key = fold.key();
    let kept = match filter {
        Some(rules) => rules.filter(key, seq, 0, Cow::Owned(value), out)?,
        None => Some(Cow::Owned(value)),
    };
    match kept {
        Some(value) => writer.write(key, pack_trailer(seq, Kind::Put), &value),
        // It would be a tombstone over nothing.
        None => Ok(()),
    }
}
