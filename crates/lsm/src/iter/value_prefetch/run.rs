//! Entries that a cursor has met and not left, and the values of theirs that were read, are on their way, or are yet to be read.

use super::MAX_BYTES;
use crate::iter::FlightPermit;
use crate::iter::user::Values;
use basalt_blob::How;
use basalt_blob::batch_read::{InFlight, Located, Pages, Place};
use basalt_blob::counts::ReadCounts;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::separated::{Name, Reference};
use std::collections::VecDeque;

/// An entry that was met.
pub(in crate::iter) struct EntryMeta {
    pub(super) key: Vec<u8>,
    pub(super) value: Value,
    /// When its time is over.
    pub(in crate::iter) expire_at_ms: Option<u64>,
    /// What was left of the skip budget, and jumps that did not count yet.
    pub(in crate::iter) left: (u64, u64),
    /// Its value was read before it was come to.
    pub(super) ahead: bool,
}

pub(super) enum Value {
    Here(Bytes),
    LazyValue(SeqNo, Reference),
    Failed(Error),
}

impl EntryMeta {
    pub(in crate::iter) fn new(
        key: &[u8],
        value: std::result::Result<Bytes, (SeqNo, Reference)>,
        expire_at_ms: Option<u64>,
        left: (u64, u64),
    ) -> EntryMeta {
        EntryMeta {
            key: key.to_vec(),
            value: match value {
                Ok(value) => Value::Here(value),
                Err((seq, to)) => Value::LazyValue(seq, to),
            },
            expire_at_ms,
            left,
            ahead: false,
        }
    }

    /// Its value, which was read, for somebody who keeps it.
    pub(super) fn own_value(&self) -> Bytes {
        match &self.value {
            Value::Here(value) => value.clone(),
            _ => unreachable!("what is shown was read"),
        }
    }

    /// Bytes that keeping it costs.
    pub(super) fn bytes(&self) -> usize {
        self.key.len()
            + match &self.value {
                Value::Here(value) => value.len(),
                _ => 0,
            }
    }
}

/// Where the cursor beneath is.
pub(super) enum Beneath {
    /// On the last entry of the run.
    There,
    /// Where it has come to behind that: nowhere, or at a pause that is to be shown.
    Behind,
    /// Before keys that it was not to look at yet.
    Rests,
    /// It failed behind the last entry.
    Failed(Error),
}

/// Entries that were met and not left: the first is shown.
pub(super) struct Run {
    pub(super) up: bool,
    pub(super) entries: VecDeque<EntryMeta>,
    pub(super) beneath: Beneath,
    /// Entries that were left.
    pub(super) left: u64,
    /// Values of its last entries that are on their way.
    pub(super) flight: Option<Flight>,
    /// Where it is counted what was read in vain, once something was read.
    pub(super) counts: Option<ReadCounts>,
}

/// Values that were asked for and are not needed yet.
pub(super) struct Flight {
    pub(super) reads: InFlight,
    pub(super) how: How,
    pub(super) _leave: FlightPermit,
    /// Which entries they are of, counted from the first of the run, and where they lie.
    pub(super) of: Vec<(u64, Reference, Place)>,
}

impl Run {
    pub(super) fn is_in_flight(&self, i: usize) -> bool {
        let first = self.flight.iter().flat_map(|f| f.of.first()).next();
        first.is_some_and(|(first, ..)| self.left + i as u64 >= *first)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let flying = self.flight.as_ref().map_or(0, |f| f.of.len());
        let unused = self.entries.iter().filter(|e| e.ahead).count() + flying;
        if let Some(counts) = self.counts.as_ref().filter(|_| unused > 0) {
            counts.ahead_unused.add(unused as u64);
        }
    }
}

/// Values that are looked up together.
const LOCATE_BATCH: usize = 64;

/// Values that were met and not read.
pub(super) struct Met<'a> {
    /// Which entry of the run each is of that was located, and its reference.
    pub(super) places: Vec<(usize, Reference)>,
    pub(super) wanted: Vec<Located<'a>>,
    pub(super) failed: Vec<(usize, Result<Bytes>)>,
}

impl<'a> Met<'a> {
    /// Those of the entries from `from` on that are not on their way: the first, and as many more as there is room for, where as many bytes as were
    /// stored last have so many in memory.
    pub(super) fn of(
        run: &'a Run,
        from: usize,
        values: &'a Values,
        cmp: &'a Cmp,
        pages: &mut Pages,
        (stored, held): (u64, u64),
    ) -> Met<'a> {
        let in_memory = |l: &Located<'_>| {
            let bytes = u128::from(held) * l.read_len() as u128 / u128::from(stored.max(1));
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let mut out = Met {
            places: Vec::new(),
            wanted: Vec::new(),
            failed: Vec::new(),
        };
        let mut room: Option<usize> = None;
        let unread = run.entries.iter().enumerate().skip(from);
        let mut unread = unread.filter_map(|(i, entry)| match &entry.value {
            Value::LazyValue(seq, to) if !run.is_in_flight(i) => {
                let name = Name {
                    family: values.family,
                    key: &entry.key,
                    seq: *seq,
                };
                Some((i, *to, to.record(&name)))
            }
            _ => None,
        });
        // Some at a time: what there is no room for is not looked up.
        loop {
            let some: Vec<_> = unread.by_ref().take(LOCATE_BATCH).collect();
            if some.is_empty() {
                return out;
            }
            let entries: Vec<_> = some
                .iter()
                .map(|(_, to, name)| (*name, to.number, cmp))
                .collect();
            let located = values.blobs.locate(&entries, pages, values.how);
            for ((i, to, _), located) in some.into_iter().zip(located) {
                match located {
                    Ok(l) => {
                        // What is read before it is asked for must not push anybody out of memory.
                        let free = || usize::try_from(l.env().ledger().free()).unwrap_or(MAX_BYTES);
                        let left = room.unwrap_or_else(|| MAX_BYTES.min(free()));
                        let must = out.wanted.is_empty() && from == 0;
                        if !must && in_memory(&l) > left {
                            return out;
                        }
                        room = Some(left.saturating_sub(in_memory(&l)));
                        out.places.push((i, to));
                        out.wanted.push(l);
                    }
                    Err(e) => out.failed.push((i, Err(e))),
                }
            }
        }
    }

    /// How they are to be read, by a scan that has read so many bytes: a long one leaves the cache alone.
    pub(super) fn how(&self, usual: How, bytes: u64) -> How {
        let mut located = self.wanted.iter();
        let sweeps = located
            .next()
            .is_some_and(|l| l.env().cache().is_swept_by(bytes));
        How {
            fill_cache: usual.fill_cache && !sweeps,
            ..usual
        }
    }
}
