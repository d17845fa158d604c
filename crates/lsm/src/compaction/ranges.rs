//! Range tombstones in a merge: which entries they drop, which of them stay, and how they are cut
//! among the outputs.
//!
//! 1. An entry is dropped if a newer tombstone over it lies in the same stripe: a reader that sees
//!    the entry sees the tombstone, too.
//! 2. Of several tombstones over a range the newest of each stripe stays.
//! 3. A tombstone is dropped if it is in the oldest stripe (the merge then drops every entry that
//!    it hides) and no deeper table overlaps its range.
//! 4. An output holds the part of each tombstone that lies between its own first key and the next
//!    output's. Both ends are user keys, so the answer of a table about a key does not depend on
//!    its neighbours, and tables can be moved and merged one by one.

use super::run::CompactionJob;
use crate::version::TableFile;
use basalt_fs::{Error, Result};
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, RangeTombstone};
use basalt_table::TableBuilder;
use std::cmp::Ordering;
use std::sync::Arc;

/// Returns the part of a tombstone between two user keys; `None` is unbounded.
fn clip<'a>(
    cmp: &Cmp,
    p: RangeTombstone<'a>,
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
) -> RangeTombstone<'a> {
    RangeTombstone {
        from: match from {
            Some(f) if cmp.user(p.from, f) == Ordering::Less => f,
            _ => p.from,
        },
        to: match to {
            Some(t) if cmp.user(t, p.to) == Ordering::Less => t,
            _ => p.to,
        },
        seq: p.seq,
    }
}

/// Returns all range tombstones of a job's inputs inside its range that stay by rule 2. Fails with
/// `Corruption` if a table has not as many as the manifest records.
pub(super) fn input_tombstones(job: &CompactionJob<'_>) -> Result<Fragments> {
    let cmp = &job.options.comparator;
    let (from, to) = match &job.range {
        Some((from, to)) => (from.as_deref(), to.as_deref()),
        None => (None, None),
    };
    let mut readers = Vec::new();
    for t in job.plan.input_tables().filter(|t| t.meta.range_deletes > 0) {
        let reader = t.reader()?;
        let found = reader.ranges().pieces() as u64;
        if found != t.meta.range_deletes {
            return Err(Error::corruption(
                &t.path(),
                0,
                format!(
                    "expected {} range tombstones as the manifest records, found {found}",
                    t.meta.range_deletes
                ),
            ));
        }
        readers.push(reader);
    }
    let pieces = readers.iter().flat_map(|r| r.ranges().iter());
    let pieces = pieces.map(|p| clip(cmp, p, from, to));
    Ok(Fragments::build(cmp, pieces, Some(job.snapshots)))
}

/// Returns the tombstones that stay by rule 3. `deeper`: tables by level below the output level.
pub(crate) fn retained_tombstones(
    cmp: &Cmp,
    all: &Fragments,
    snapshots: &[SeqNo],
    deeper: &[Vec<Arc<TableFile>>],
) -> Fragments {
    let mut kept = Fragments::default();
    let mut seqs = Vec::new();
    for i in 0..all.len() {
        let (from, to) = all.range(i);
        let hides_deeper = deeper.iter().any(|tables| {
            let at = tables.partition_point(|t| t.ends_before(from));
            (tables.get(at)).is_some_and(|t| cmp.user(t.smallest_user(), to) == Ordering::Less)
        });
        seqs.clear();
        let needed = |seq: &&SeqNo| hides_deeper || snapshots.first().is_some_and(|s| s < *seq);
        seqs.extend(all.seqs_of(i).iter().filter(needed));
        if !seqs.is_empty() {
            kept.push(cmp, from, to, &seqs);
        }
    }
    kept
}

/// Answers for ascending keys whether a range tombstone drops an entry (rule 1).
pub(crate) struct RangeDelFilter<'a> {
    cmp: &'a Cmp,
    all: &'a Fragments,
    snapshots: &'a [SeqNo],
    /// Index of the first fragment that does not end before the last key.
    at: usize,
}

impl<'a> RangeDelFilter<'a> {
    pub(crate) fn new(
        cmp: &'a Cmp,
        all: &'a Fragments,
        snapshots: &'a [SeqNo],
    ) -> RangeDelFilter<'a> {
        RangeDelFilter {
            cmp,
            all,
            snapshots,
            at: 0,
        }
    }

    fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|&s| s < seq)
    }

    /// Returns true if a tombstone hides the entry from all of its readers. Callers ask keys in
    /// ascending order.
    pub(crate) fn hides(&mut self, user_key: &[u8], seq: SeqNo) -> bool {
        while self.at < self.all.len()
            && self.cmp.user(self.all.range(self.at).1, user_key) != Ordering::Greater
        {
            self.at += 1;
        }
        if self.at == self.all.len()
            || self.cmp.user(self.all.range(self.at).0, user_key) == Ordering::Greater
        {
            return false;
        }
        let stripe = self.stripe(seq);
        let seqs = self.all.seqs_of(self.at).iter();
        seqs.take_while(|s| **s > seq)
            .any(|s| self.stripe(*s) == stripe)
    }

    /// Returns true if tombstones hide every entry of a table from all of its readers, by the
    /// table's metadata alone.
    pub(super) fn hides_table(&self, t: &TableFile) -> bool {
        let oldest = self.stripe(t.meta.min_seq);
        let mut i = self.all.at_or_after(self.cmp, t.smallest_user());
        let mut reached = t.smallest_user();
        while i < self.all.len() {
            let (from, to) = self.all.range(i);
            let hidden = (self.all.seqs_of(i).iter())
                .any(|s| *s > t.meta.max_seq && self.stripe(*s) == oldest);
            if !hidden || self.cmp.user(from, reached) == Ordering::Greater {
                return false;
            }
            let behind = match self.cmp.user(to, t.largest_user()) {
                Ordering::Greater => true,
                Ordering::Equal => t.end_is_open(),
                Ordering::Less => false,
            };
            if behind {
                return true;
            }
            reached = to;
            i += 1;
        }
        false
    }
}

/// Cuts range tombstones among output tables, which are written one after the other.
pub(crate) struct TombstoneCutter {
    cmp: Cmp,
    kept: Fragments,
    /// Index of the first fragment that no finished table has whole.
    at: usize,
    /// The key at which the rest of that fragment begins, if a finished table has a part of it.
    rest: Option<Vec<u8>>,
    /// Index of the first fragment that does not count for the current table.
    counted: usize,
    /// Estimated bytes of the fragments that count for the current table.
    bytes: u64,
}

impl TombstoneCutter {
    pub(crate) fn new(cmp: Cmp, kept: Fragments) -> TombstoneCutter {
        TombstoneCutter {
            cmp,
            kept,
            at: 0,
            rest: None,
            counted: 0,
            bytes: 0,
        }
    }

    /// Returns true if a table that ends before `end` (`None`: the last table) would get a
    /// tombstone.
    pub(crate) fn has_before(&self, end: Option<&[u8]>) -> bool {
        let Some(from) = self.next_from() else {
            return false;
        };
        end.is_none_or(|e| self.cmp.user(from, e) == Ordering::Less)
    }

    fn next_from(&self) -> Option<&[u8]> {
        let whole = || (self.at < self.kept.len()).then(|| self.kept.range(self.at).0);
        self.rest.as_deref().or_else(whole)
    }

    /// Returns where the next range begins that does not count for the current table, if that is at
    /// or before `user_key` (`None`: anywhere). The caller may cut the table there, then calls
    /// [`TombstoneCutter::count_next`].
    pub(crate) fn next_start(&self, user_key: Option<&[u8]>) -> Option<&[u8]> {
        let from = (self.counted < self.kept.len()).then(|| self.kept.range(self.counted).0)?;
        let due = user_key.is_none_or(|k| self.cmp.user(from, k) != Ordering::Greater);
        due.then_some(from)
    }

    /// Counts the next range for the current table.
    pub(crate) fn count_next(&mut self) {
        let (from, to) = self.kept.range(self.counted);
        let seqs = self.kept.seqs_of(self.counted).len();
        self.bytes += (6 + from.len() + to.len() + 8 * seqs) as u64;
        self.counted += 1;
    }

    /// Returns the estimated bytes of the ranges that count for the current table.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the part of the current table, which ends before `end` (`None`: the last table).
    pub(crate) fn write_before(&mut self, end: Option<&[u8]>, builder: &mut TableBuilder) {
        self.bytes = 0;
        while self.has_before(end) {
            let (from, to) = self.kept.range(self.at);
            let from = self.rest.as_deref().unwrap_or(from);
            let seqs = self.kept.seqs_of(self.at);
            if let Some(end) = end.filter(|e| self.cmp.user(e, to) == Ordering::Less) {
                builder.delete_range(from, end, seqs);
                self.rest = Some(end.to_vec());
                return;
            }
            builder.delete_range(from, to, seqs);
            self.rest = None;
            self.at += 1;
        }
    }
}
