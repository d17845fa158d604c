//! The merge: which versions of a user key a compaction keeps, and in which form.
//!
//! The input yields entries in internal key order: of each user key the newest version first. Live
//! snapshots cut the sequence numbers into stripes. Stripe `i` holds the versions that snapshot `i`
//! sees and snapshot `i - 1` does not; the last stripe is newer than all snapshots. A reader sees
//! the newest version of its stripe or, if its stripe has none, of an older one. So for each user
//! key:
//!
//! 1. The newest version of each stripe is kept, and the others are dropped. Operands need the
//!    versions below them, and keep these.
//! 2. An expired value becomes a tombstone: it still hides older versions.
//! 3. The compaction filter sees the newest version if that is a value in the last stripe. A value
//!    that the filter removes becomes a tombstone.
//! 4. A tombstone is dropped if nothing that it hides is left: no deeper table may hold the key,
//!    and no older version of the key is kept here.
//! 5. Operands of one stripe are merged: with the value or tombstone below them in that stripe into
//!    a value, which the filter sees like any other; with nothing, if the key is nowhere below;
//!    else with each other. Operands over a value that has yet to expire stay, because they outlive
//!    that value. If the operator refuses, the operands and the version below them stay.
//! 6. A version that a newer range tombstone of the same stripe covers is dropped before the other
//!    rules apply. Operands above it in that stripe then have nothing below them.
//!
//! The merge never changes a sequence number, because values in blob files are found by it. The
//! first error ends the merge: no entry is skipped because it could not be read.

use crate::compaction::outcome::Outcome;
use crate::compaction::output::MergeSink;
use crate::compaction::ranges::RangeDelFilter;
use crate::compaction::run::cancelled;
use crate::iter::MergingIter;
use crate::options::{CompactionFilter, FilterContext, FilterDecision, KeyDecision};
use crate::version::TableFile;
use basalt_blob::Reference;
use basalt_env::sync::atomic::{AtomicBool, Ordering as Atomic};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::entry::expiry_of;
use basalt_kv::key::{Cmp, Kind, SeqNo, TRAILER_LEN, pack_trailer, parse_internal_key};
use basalt_kv::merge::{Fold, Merging};
use basalt_kv::ranges::Fragments;
use basalt_table::InternalIter;
use std::cmp::Ordering;
use std::sync::Arc;

/// The settings and the state of the store that decide which versions a merge keeps.
pub(crate) struct MergeRules<'a> {
    pub(crate) cmp: &'a Cmp,
    /// Sequence numbers of the live snapshots, ascending.
    pub(crate) snapshots: &'a [SeqNo],
    /// Wall time in milliseconds since 1970. Values that expire at or before it are expired.
    pub(crate) now_ms: u64,
    pub(crate) filter: Option<&'a dyn CompactionFilter>,
    pub(crate) merging: &'a Merging,
    /// Name of the family, for the filter.
    pub(crate) family: &'a str,
    /// Output level, for the filter.
    pub(crate) level: usize,
    /// The merge ends with `Cancelled` soon after this is set.
    pub(crate) cancelled: &'a AtomicBool,
    /// Range tombstones of the inputs.
    pub(crate) deleted: &'a Fragments,
}

/// The decision of the compaction filter about one value.
enum Filtered {
    /// The value, or the reference to it, stays as it is.
    Unchanged,
    /// This encoded value replaces the old one.
    Changed(Vec<u8>),
    Removed,
}

impl MergeRules<'_> {
    fn context(&self, seq: SeqNo) -> FilterContext<'_> {
        FilterContext {
            family: self.family,
            level: self.level,
            seq,
            now_ms: self.now_ms,
        }
    }

    /// Asks the compaction filter about a value. The filter does not see the first `prefix` bytes,
    /// which hold the expiry. Fails with `Invalid` if the filter makes a value that is too long.
    fn filter(
        &self,
        key: &[u8],
        seq: SeqNo,
        prefix: usize,
        value: &[u8],
        out: &mut Outcome,
    ) -> Result<Filtered> {
        let Some(filter) = self.filter else {
            return Ok(Filtered::Unchanged);
        };
        match filter.filter(&self.context(seq), key, &value[prefix..]) {
            FilterDecision::Keep => Ok(Filtered::Unchanged),
            FilterDecision::Remove => {
                out.filtered += 1;
                Ok(Filtered::Removed)
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
                Ok(Filtered::Changed([&value[..prefix], &new].concat()))
            }
        }
    }
}

/// Answers for ascending keys whether a deeper level may hold them.
pub(crate) struct DeeperLevels<'a> {
    cmp: &'a Cmp,
    /// Tables of each deeper level, and the index of the first that does not end before the last
    /// key that was asked.
    levels: Vec<(&'a [Arc<TableFile>], usize)>,
    /// True if the contents of the deeper levels are not known.
    unknown: bool,
}

impl<'a> DeeperLevels<'a> {
    /// Takes the tables of each deeper level, ascending and disjoint within a level.
    pub(super) fn new(cmp: &'a Cmp, levels: &'a [Vec<Arc<TableFile>>]) -> DeeperLevels<'a> {
        DeeperLevels {
            cmp,
            levels: levels.iter().map(|l| (&l[..], 0)).collect(),
            unknown: false,
        }
    }

    /// Answers that deeper levels may hold any key.
    pub(crate) fn unknown(cmp: &'a Cmp) -> DeeperLevels<'a> {
        DeeperLevels {
            cmp,
            levels: Vec::new(),
            unknown: true,
        }
    }

    /// Returns true if the key lies in the range of no deeper table. Callers ask keys in ascending
    /// order.
    fn lacks_key(&mut self, user_key: &[u8]) -> bool {
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

/// One version of a user key. Its value stays in the input until it is needed.
struct KeyVersion<'i> {
    key: &'i [u8],
    seq: SeqNo,
    /// Sequence number and kind as the input has them: `BlobRef` for a separated value.
    trailer: u64,
    /// The kind of the value itself: never `BlobRef`.
    kind: Kind,
    reference: Option<Reference>,
}

impl<'i> KeyVersion<'i> {
    /// Decodes the entry of a cursor. Fails with `Corruption` or `Unsupported` if the trailer or
    /// the reference is not valid.
    #[inline]
    fn parse(input: &'i MergingIter) -> Result<KeyVersion<'i>> {
        let (key, seq, stored) = parse_internal_key(input.key())?;
        let (kind, reference) = match stored {
            Kind::BlobRef => {
                let to = Reference::decode(input.value())?;
                (to.kind(), Some(to))
            }
            kind => (kind, None),
        };
        Ok(KeyVersion {
            key,
            seq,
            trailer: pack_trailer(seq, stored),
            kind,
            reference,
        })
    }

    /// Bytes of expiry in front of the value.
    #[inline]
    fn prefix(&self) -> usize {
        if self.kind == Kind::PutTtl { 8 } else { 0 }
    }

    /// Returns when an expiring value expires, in milliseconds since 1970. `value` is the encoded
    /// value or reference. Fails with `Corruption` if it is too short.
    fn expire_at_ms(&self, value: &[u8]) -> Result<u64> {
        match &self.reference {
            Some(to) => Ok(to.expire_at_ms.expect("of an expiring value")),
            None => expiry_of(value),
        }
    }
}

/// Writes the surviving versions of one user key after the other to a sink.
struct KeyWriter<'a> {
    rules: &'a MergeRules<'a>,
    deeper: DeeperLevels<'a>,
    sink: &'a mut dyn MergeSink,
    /// True once the sink knows of the key.
    begun: bool,
    /// Trailer of a tombstone that is written only if an older version of the key is.
    held: Option<u64>,
    /// Memory for internal keys.
    scratch: Vec<u8>,
    out: Outcome,
}

impl KeyWriter<'_> {
    /// Begins the next user key.
    fn next_user_key(&mut self) {
        self.begun = false;
        self.held = None;
    }

    /// Writes an entry, behind the tombstone that was held back for it.
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
        basalt_kv::key::encode_internal_key(&mut self.scratch, user, trailer);
        self.out.entries_out += 1;
        self.sink.add(&self.scratch, value)
    }

    fn operand(&mut self, user: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.write(user, pack_trailer(seq, Kind::Merge), operand)
    }

    /// Writes a tombstone, unless it hides nothing (rule 4).
    fn delete(&mut self, user: &[u8], seq: SeqNo) -> Result<()> {
        if !self.deeper.lacks_key(user) {
            return self.write(user, pack_trailer(seq, Kind::Delete), &[]);
        }
        // No deeper level has the key. The tombstone is dropped, unless an older version is kept
        // for an older snapshot: the tombstone then hides that version. Of several tombstones in a
        // row the oldest does that for all stripes above it.
        self.held = Some(pack_trailer(seq, Kind::Delete));
        Ok(())
    }

    /// Reports to the sink that a version's reference is not written, if the version has one.
    #[inline]
    fn drop_reference(&mut self, version: &mut KeyVersion<'_>) -> Result<()> {
        match version.reference.take() {
            Some(to) => (self.sink).drop_reference(version.key, version.seq, &to),
            None => Ok(()),
        }
    }

    /// Writes a version that readers can see, with its encoded value or reference. `filtered`: the
    /// compaction filter decides over it first (rule 3).
    #[inline]
    fn keep(&mut self, version: &mut KeyVersion<'_>, value: &[u8], filtered: bool) -> Result<()> {
        let (key, seq) = (version.key, version.seq);
        let changed;
        let mut value = value;
        if filtered && version.kind != Kind::Delete && self.rules.filter.is_some() {
            match self.filter(version, value)? {
                Filtered::Unchanged => {}
                Filtered::Changed(new) => {
                    self.drop_reference(version)?;
                    changed = new;
                    value = &changed;
                }
                Filtered::Removed => {
                    self.drop_reference(version)?;
                    version.kind = Kind::Delete;
                }
            }
        }
        if version.kind == Kind::Delete {
            return self.delete(key, seq);
        }
        let kind = match version.reference {
            Some(_) => Kind::BlobRef,
            None => version.kind,
        };
        self.write(key, pack_trailer(seq, kind), value)
    }

    /// Asks the compaction filter about a version. Reads a separated value only if the key alone
    /// does not decide.
    fn filter(&mut self, version: &KeyVersion<'_>, value: &[u8]) -> Result<Filtered> {
        let (rules, key, seq) = (self.rules, version.key, version.seq);
        let (Some(to), Some(filter)) = (&version.reference, rules.filter) else {
            return rules.filter(key, seq, version.prefix(), value, &mut self.out);
        };
        match filter.filter_key(&rules.context(seq), key) {
            Some(KeyDecision::Keep) => return Ok(Filtered::Unchanged),
            Some(KeyDecision::Remove) => {
                self.out.filtered += 1;
                return Ok(Filtered::Removed);
            }
            None => {}
        }
        let payload = self.sink.read_value(key, seq, to)?;
        rules.filter(key, seq, version.prefix(), &payload, &mut self.out)
    }

    /// Writes the operands of a stripe as few entries without the version below them.
    fn release(&mut self, operands: &mut Fold<'_>) -> Result<()> {
        operands.release(&mut |key, seq, operand| self.operand(key, seq, operand))
    }

    /// Writes the value that operands give with nothing below them that their readers see. If the
    /// operator refuses, the operands stay. `filtered`: the compaction filter sees the value.
    fn merge_over_nothing(&mut self, operands: &mut Fold<'_>, filtered: bool) -> Result<()> {
        let Some((seq, mut value)) = operands.over(None) else {
            return self.release(operands);
        };
        let key = operands.key();
        if filtered {
            match self.rules.filter(key, seq, 0, &value, &mut self.out)? {
                Filtered::Unchanged => {}
                Filtered::Changed(new) => value = new,
                // A tombstone would hide nothing.
                Filtered::Removed => return Ok(()),
            }
        }
        self.write(key, pack_trailer(seq, Kind::Put), &value)
    }
}

/// The state of a merge between two entries.
struct Merger<'a> {
    rules: &'a MergeRules<'a>,
    writer: KeyWriter<'a>,
    dropped: RangeDelFilter<'a>,
    /// Number of the stripe above all snapshots.
    newest_stripe: usize,
    /// The current user key.
    user_key: Vec<u8>,
    /// Trailer of the last entry; `None` before the first.
    last_trailer: Option<u64>,
    /// Stripe of the current key's last version that no range tombstone hides.
    last_stripe: Option<usize>,
    /// Operands of `last_stripe`, newest first.
    operands: Fold<'a>,
    /// True if the compaction filter may see the value that the operands give.
    operands_are_newest: bool,
}

impl<'a> Merger<'a> {
    fn new(
        rules: &'a MergeRules<'a>,
        deeper: DeeperLevels<'a>,
        sink: &'a mut dyn MergeSink,
    ) -> Merger<'a> {
        Merger {
            rules,
            writer: KeyWriter {
                rules,
                deeper,
                sink,
                begun: false,
                held: None,
                scratch: Vec::new(),
                out: Outcome::default(),
            },
            dropped: RangeDelFilter::new(rules.cmp, rules.deleted, rules.snapshots),
            newest_stripe: rules.snapshots.len(),
            user_key: Vec::new(),
            last_trailer: None,
            last_stripe: None,
            operands: Fold::new(rules.merging),
            operands_are_newest: false,
        }
    }

    /// Returns true if the version is one of the current user key. Fails with `Corruption` if it
    /// does not come after the last entry in internal key order.
    #[inline]
    fn continues_key(&self, version: &KeyVersion<'_>) -> Result<bool> {
        let Some(last) = self.last_trailer else {
            return Ok(false);
        };
        match self.rules.cmp.user(version.key, &self.user_key) {
            Ordering::Greater => Ok(false),
            Ordering::Equal if version.trailer < last => Ok(true),
            _ => Err(out_of_order(version)),
        }
    }

    /// Ends the current user key: below its open operands is nothing, or only what deeper levels
    /// hold (rule 5).
    #[inline]
    fn end_key(&mut self) -> Result<()> {
        if !self.operands.is_open() {
            return Ok(());
        }
        match self.writer.deeper.lacks_key(&self.user_key) {
            true => (self.writer).merge_over_nothing(&mut self.operands, self.operands_are_newest),
            false => self.writer.release(&mut self.operands),
        }
    }

    #[inline]
    fn begin_key(&mut self, user_key: &[u8]) -> Result<()> {
        self.end_key()?;
        self.user_key.clear();
        self.user_key.extend_from_slice(user_key);
        self.last_stripe = None;
        self.writer.next_user_key();
        Ok(())
    }

    /// Decides over the next version of the current user key, which is the entry of `input`.
    /// `named` adds the path of the input table to an error about the entry.
    #[inline]
    fn add(
        &mut self,
        version: &mut KeyVersion<'_>,
        input: &MergingIter,
        named: &dyn Fn(Error) -> Error,
    ) -> Result<()> {
        let seq = version.seq;
        self.last_trailer = Some(version.trailer);
        let stripe = self.rules.snapshots.partition_point(|&s| s < seq);
        if self.dropped.hides(version.key, seq) {
            return self.drop_hidden(version, stripe);
        }
        let newest = self.last_stripe.is_none() && stripe == self.newest_stripe;
        if self.last_stripe == Some(stripe) {
            if !self.operands.is_open() {
                // A newer version of the same stripe hides this one from all readers.
                return self.writer.drop_reference(version);
            }
        } else if self.operands.is_open() {
            // Readers of an older stripe need the version below the operands as well.
            self.writer.release(&mut self.operands)?;
        }
        self.last_stripe = Some(stripe);
        if version.kind == Kind::Merge {
            return self.push_operand(version, input.value(), newest);
        }
        if version.kind == Kind::PutTtl
            && version.expire_at_ms(input.value()).map_err(named)? <= self.rules.now_ms
        {
            self.expire(version)?;
        }
        match self.operands.is_open() {
            true => self.merge_operands_over(version, input.value()),
            false => self.writer.keep(version, input.value(), newest),
        }
    }

    /// Drops a version that a range tombstone of its stripe hides (rule 6).
    fn drop_hidden(&mut self, version: &mut KeyVersion<'_>, stripe: usize) -> Result<()> {
        self.writer.drop_reference(version)?;
        // The tombstone also hides all older versions of the stripe, so the operands above this one
        // have nothing below them.
        if self.operands.is_open() && self.last_stripe == Some(stripe) {
            (self.writer).merge_over_nothing(&mut self.operands, self.operands_are_newest)?;
        }
        Ok(())
    }

    /// Takes an operand. `newest`: the compaction filter may see the value that it becomes part of.
    fn push_operand(
        &mut self,
        version: &KeyVersion<'_>,
        operand: &[u8],
        newest: bool,
    ) -> Result<()> {
        if !self.operands.is_open() {
            self.operands_are_newest = newest;
        }
        let writer = &mut self.writer;
        let mut write = |key: &[u8], seq, operand: &[u8]| writer.operand(key, seq, operand);
        (self.operands).push(version.key, version.seq, operand, &mut write)
    }

    /// Makes a tombstone of an expired value (rule 2).
    fn expire(&mut self, version: &mut KeyVersion<'_>) -> Result<()> {
        version.kind = Kind::Delete;
        self.writer.out.expired += 1;
        self.writer.drop_reference(version)
    }

    /// Writes the open operands and the value or tombstone below them in their stripe: merged into
    /// one value, or each as it is if that value has yet to expire or the operator refuses (rule
    /// 5).
    fn merge_operands_over(&mut self, version: &mut KeyVersion<'_>, value: &[u8]) -> Result<()> {
        let payload;
        let merged = match (version.kind, &version.reference) {
            (Kind::Put, Some(to)) => {
                payload = (self.writer.sink).read_value(version.key, version.seq, to)?;
                self.operands.over(Some(&payload))
            }
            (Kind::Put, None) => self.operands.over(Some(value)),
            (Kind::Delete, _) => self.operands.over(None),
            _ => None,
        };
        let Some((newest, merged)) = merged else {
            self.writer.release(&mut self.operands)?;
            return self.writer.keep(version, value, false);
        };
        self.writer.drop_reference(version)?;
        let mut version = KeyVersion {
            key: self.operands.key(),
            seq: newest,
            trailer: pack_trailer(newest, Kind::Put),
            kind: Kind::Put,
            reference: None,
        };
        (self.writer).keep(&mut version, &merged, self.operands_are_newest)
    }

    /// Ends the last user key. Returns the counts of entries.
    fn finish(mut self) -> Result<Outcome> {
        self.end_key()?;
        let mut out = self.writer.out;
        (out.merged, out.refused) = (self.operands.merged, self.operands.refused);
        Ok(out)
    }
}

#[cold]
fn out_of_order(version: &KeyVersion<'_>) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!(
            "expected internal keys in ascending order, found sequence number {} of a {}-byte key \
             after an equal or larger one",
            version.seq,
            version.key.len()
        ),
    )
}

/// Merges the entries of `input` into `sink` by the rules at the head of this module, and returns
/// the counts of entries. `blame` returns the table that a child of `input` stands in, for
/// messages.
///
/// Errors: errors of `input` and `sink`; `Corruption` for entries that are not valid or out of
/// order, `Unsupported` for reserved kinds, `Invalid` for values of a filter that are too long, and
/// `Cancelled` after a cancellation.
pub(crate) fn merge(
    rules: &MergeRules<'_>,
    mut input: MergingIter,
    deeper: DeeperLevels<'_>,
    sink: &mut dyn MergeSink,
    blame: &dyn Fn(Option<usize>) -> Option<Arc<TableFile>>,
) -> Result<Outcome> {
    let mut merger = Merger::new(rules, deeper, sink);
    input.seek_to_first()?;
    while input.valid() {
        if rules.cancelled.load(Atomic::Relaxed) {
            return Err(cancelled());
        }
        let named = |e: Error| match blame(input.valid().then(|| input.child())) {
            Some(t) if e.path().is_none() => e.in_file(&t.path()),
            _ => e,
        };
        let mut version = KeyVersion::parse(&input).map_err(named)?;
        merger.writer.out.entries_in += 1;
        if !merger.continues_key(&version).map_err(named)? {
            merger.begin_key(version.key)?;
        }
        merger.add(&mut version, &input, &named)?;
        input.next()?;
    }
    merger.finish()
}
