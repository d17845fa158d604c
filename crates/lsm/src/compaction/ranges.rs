//! Range tombstones in a merge: what they drop, which of them stay, and how they are cut among the outputs.
//!
//! 1. An entry is dropped when a newer tombstone over it lies in the same stripe: whoever sees the one sees the other.
//! 2. Of several tombstones over a range the newest of each stripe stays.
//! 3. A tombstone goes when it is in the oldest stripe (then every entry it hides is dropped here) and no deeper table's range meets its own.
//! 4. An output holds the part of each tombstone that lies between its own first key and the next output's. Both ends are user keys, so what
//!    a table says of a key does not depend on its neighbours, and tables can be moved and merged one by one.

use super::run::Job;
use crate::version::TableFile;
use basalt_fs::{Error, Result};
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, Piece};
use basalt_table::TableBuilder;
use std::cmp::Ordering;
use std::sync::Arc;

/// The part of a key range that lies inside another; `None` is unbounded.
fn clip<'a>(cmp: &Cmp, p: Piece<'a>, from: Option<&'a [u8]>, to: Option<&'a [u8]>) -> Piece<'a> {
    Piece {
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

/// All range tombstones of a job's inputs inside its range, thinned by rule 2. `Corruption` when a table has not as many as the
/// manifest records.
pub(super) fn of_inputs(job: &Job<'_>) -> Result<Fragments> {
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

/// What stays of them by rule 3. `deeper`: tables below the output level.
pub(crate) fn that_stay(
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

/// Rule 1 for ascending keys.
pub(crate) struct Dropped<'a> {
    cmp: &'a Cmp,
    all: &'a Fragments,
    snapshots: &'a [SeqNo],
    at: usize,
}

impl<'a> Dropped<'a> {
    pub(crate) fn new(cmp: &'a Cmp, all: &'a Fragments, snapshots: &'a [SeqNo]) -> Dropped<'a> {
        Dropped {
            cmp,
            all,
            snapshots,
            at: 0,
        }
    }

    fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|&s| s < seq)
    }

    /// True when a tombstone hides the entry from everybody who could see it. Keys must be asked in ascending order.
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

    /// True when every entry of a table is hidden so: it need not be read.
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

/// Hands the tombstones that stay to one table after the other.
pub(crate) struct Cutter {
    cmp: Cmp,
    kept: Fragments,
    /// The first fragment that is not handed out whole, and where the rest of it begins.
    at: usize,
    rest: Option<Vec<u8>>,
    /// The first fragment that the table being written has not taken in.
    counted: usize,
    /// Bytes of those it has.
    bytes: u64,
}

impl Cutter {
    pub(crate) fn new(cmp: Cmp, kept: Fragments) -> Cutter {
        Cutter {
            cmp,
            kept,
            at: 0,
            rest: None,
            counted: 0,
            bytes: 0,
        }
    }

    /// True when a table that ends before `end` (`None`: nowhere) would get some.
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

    /// The next range that begins at or before `user_key` (`None`: anywhere) and that the table being written has not taken in: where it
    /// begins. The table may be cut there; [`Cutter::take_in`] moves on.
    pub(crate) fn next_begin(&self, user_key: Option<&[u8]>) -> Option<&[u8]> {
        let from = (self.counted < self.kept.len()).then(|| self.kept.range(self.counted).0)?;
        let due = user_key.is_none_or(|k| self.cmp.user(from, k) != Ordering::Greater);
        due.then_some(from)
    }

    /// The table being written takes the next range in.
    pub(crate) fn take_in(&mut self) {
        let (from, to) = self.kept.range(self.counted);
        let seqs = self.kept.seqs_of(self.counted).len();
        self.bytes += (6 + from.len() + to.len() + 8 * seqs) as u64;
        self.counted += 1;
    }

    /// Bytes of the ranges that the table being written has taken in.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives a table that ends before `end` (`None`: nowhere) its part.
    pub(crate) fn give(&mut self, end: Option<&[u8]>, builder: &mut TableBuilder) {
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
