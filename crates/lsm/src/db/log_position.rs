//! The position of a passive store in its owner's log, as the commit leader knows it.

use crate::version::{FlushFlag, Tsn};
use basalt_fs::{Error, Reach, Result};
use basalt_kv::flush_flag::TSN_LIMIT;
use basalt_kv::key::{SEQ_LIMIT, SeqNo};
use std::collections::{BTreeMap, BTreeSet};

/// The position of a transaction in the owner's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Logged {
    /// The number of the transaction.
    pub tsn: Tsn,
    /// Bytes that the transaction takes in the owner's log. `None`: about as many as its batch.
    pub bytes: Option<u64>,
}

impl Logged {
    /// Returns the position of transaction `tsn`.
    pub fn at(tsn: Tsn) -> Logged {
        Logged { tsn, bytes: None }
    }

    /// Returns the position with the bytes that the transaction takes in the owner's log.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Logged {
        self.bytes = Some(bytes);
        self
    }
}

impl From<Tsn> for Logged {
    fn from(tsn: Tsn) -> Logged {
        Logged::at(tsn)
    }
}

/// A transaction, and where its end is in the owner's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogPoint {
    pub flag: FlushFlag,
    /// Bytes of the owner's log from the global persistence point at the opening to the end of the
    /// transaction.
    pub log_end: u64,
}

/// The flags that a flush installs with its tables.
#[derive(Debug)]
pub(crate) struct SealedFlags {
    /// The last transaction that was applied before the seal.
    pub last: Tsn,
    /// For each family, up to where it is persisted once the set and all sets before it are
    /// flushed.
    pub points: Vec<(u32, LogPoint)>,
}

impl SealedFlags {
    /// Returns the flag of a family.
    pub fn of(&self, family: u32) -> Option<FlushFlag> {
        let point = self.points.iter().find(|(id, _)| *id == family);
        point.map(|(_, point)| point.flag)
    }
}

/// The position of a passive store in its owner's log.
pub(crate) struct PassivePosition {
    /// The last transaction that was applied.
    last: LogPoint,
    /// For each family with items in the active memtables, the transaction before the first of
    /// them.
    bases: BTreeMap<u32, LogPoint>,
    /// Bytes of the owner's log, counted as [`LogPoint::log_end`], that no recovery needs once all
    /// sealed memtables are flushed.
    sealed_to: u64,
    /// During a replay, the flags of families that are persisted further than the replay is.
    ahead: BTreeMap<u32, FlushFlag>,
    /// The families that were persisted least when the store was opened.
    least: Vec<u32>,
}

impl PassivePosition {
    /// Returns the position of a store that is being opened, from the flags of its families: that
    /// of the family that is persisted least.
    pub fn new(flags: &BTreeMap<u32, FlushFlag>) -> PassivePosition {
        let least = flags.values().min_by_key(|flag| flag.tsn);
        let flag = *least.expect("every store has a family");
        let ahead = flags.iter().filter(|(_, f)| f.tsn > flag.tsn);
        PassivePosition {
            last: LogPoint { flag, log_end: 0 },
            bases: BTreeMap::new(),
            sealed_to: 0,
            ahead: ahead.map(|(id, flag)| (*id, *flag)).collect(),
            least: (flags.iter().filter(|(_, f)| f.tsn == flag.tsn))
                .map(|(id, _)| *id)
                .collect(),
        }
    }

    /// Returns the families that are persisted least, at the opening.
    pub fn least_persisted(&self) -> impl Iterator<Item = u32> + '_ {
        self.least.iter().copied()
    }

    /// Returns the last transaction that was applied.
    pub fn last(&self) -> FlushFlag {
        self.last.flag
    }

    /// Returns the end of the last transaction in the owner's log, in bytes, as
    /// [`LogPoint::log_end`] counts it.
    pub fn log_end(&self) -> u64 {
        self.last.log_end
    }

    /// Returns the sequence number that the next item gets.
    pub fn next_seq(&self) -> SeqNo {
        self.last.flag.last_seq + 1
    }

    /// Returns the flags of families that are persisted further than the replay is.
    pub fn ahead(&self) -> &BTreeMap<u32, FlushFlag> {
        &self.ahead
    }

    /// Returns true if the replay need not give family `id` the items of transaction `tsn`.
    pub fn has(&self, id: u32, tsn: Tsn) -> bool {
        self.ahead.get(&id).is_some_and(|flag| flag.tsn >= tsn)
    }

    /// Returns true if the replay has to give family `id` the item with number `seq`.
    pub fn lacks(&self, id: u32, seq: SeqNo) -> bool {
        self.ahead.get(&id).is_none_or(|flag| seq > flag.last_seq)
    }

    /// Checks that transaction `tsn` is the next one.
    ///
    /// Errors: `InvalidArgument`.
    pub fn check_next(&self, tsn: Tsn) -> Result<()> {
        PassivePosition::check_follows(tsn, self.last.flag.tsn)
    }

    /// Checks that transaction `tsn` is later than the last one.
    ///
    /// Errors: `InvalidArgument`.
    pub fn check_later(&self, tsn: Tsn) -> Result<()> {
        let last = self.last.flag.tsn;
        if tsn >= TSN_LIMIT {
            return Err(Error::invalid(format!(
                "transaction {tsn} is beyond the highest number, {}",
                TSN_LIMIT - 1
            )));
        }
        match tsn > last {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the store has everything up to transaction {last}: give `rebase` a later transaction than that, not {tsn}"
            ))),
        }
    }

    /// Checks that transaction `tsn` is the next one behind transaction `last`.
    ///
    /// Errors: `InvalidArgument`.
    pub fn check_follows(tsn: Tsn, last: Tsn) -> Result<()> {
        let what = match tsn {
            t if t == last + 1 => return Ok(()),
            t if t == last => format!("transaction {tsn} was applied already"),
            t if t < last => format!("transaction {tsn} was given after transaction {last}"),
            _ => format!(
                "transaction {tsn} was given after transaction {last}, and those between are missing"
            ),
        };
        Err(Error::invalid(format!(
            "{what}: apply each transaction of the log once and in the log's order; the next one is transaction {}",
            last + 1
        )))
    }

    /// Notes that a transaction with `items` items was applied. `families` are those with items of
    /// the transaction in the active memtables.
    pub fn note_applied(
        &mut self,
        tsn: Tsn,
        items: u64,
        log_bytes: u64,
        families: impl Iterator<Item = u32>,
    ) {
        let before = self.last;
        for id in families {
            self.bases.entry(id).or_insert(before);
        }
        self.last = LogPoint {
            flag: FlushFlag::of(tsn, self.next_seq(), items),
            log_end: before.log_end.saturating_add(log_bytes),
        };
    }

    /// Returns the families whose flag the replay has reached with the last transaction. They are
    /// no longer ahead.
    pub fn take_reached(&mut self) -> Vec<u32> {
        if self.ahead.is_empty() {
            return Vec::new();
        }
        let last = self.last.flag.tsn;
        let reached = self.ahead.iter().filter(|(_, flag)| flag.tsn <= last);
        let reached: Vec<u32> = reached.map(|(id, _)| *id).collect();
        self.ahead.retain(|_, flag| flag.tsn > last);
        reached
    }

    /// Forgets a family that was dropped.
    pub fn forget(&mut self, id: u32) {
        self.bases.remove(&id);
        self.ahead.remove(&id);
    }

    /// Notes that the memtables of families are sealed. `all` are all families. Returns the flags
    /// for their flush.
    pub fn seal(&mut self, sealed: &BTreeSet<u32>, all: impl Iterator<Item = u32>) -> SealedFlags {
        self.bases.retain(|id, _| !sealed.contains(id));
        let point = |id: &u32| self.bases.get(id).copied().unwrap_or(self.last);
        let points: Vec<(u32, LogPoint)> = (all.filter(|id| !self.ahead.contains_key(id)))
            .map(|id| (id, point(&id)))
            .collect();
        let ends = self.bases.values().map(|base| base.log_end);
        self.sealed_to = ends.min().unwrap_or(self.last.log_end);
        SealedFlags {
            last: self.last.flag.tsn,
            points,
        }
    }

    /// Returns the families to seal because the owner's log after the persistence point is longer
    /// than `bound` bytes; `None` if it is not. The set is empty if no active memtable holds the
    /// point back, and only flags are to be installed.
    pub fn overdue(&self, bound: u64) -> Option<BTreeSet<u32>> {
        if self.last.log_end.saturating_sub(self.sealed_to) <= bound {
            return None;
        }
        // Families within the last quarter of the bound are flushed with the others, in one step.
        let from = self.last.log_end - bound + bound / 4;
        let overdue = self.bases.iter().filter(|(_, base)| base.log_end < from);
        Some(overdue.map(|(id, _)| *id).collect())
    }
}

/// Checks that the store has sequence numbers left for `items` items, the first of which gets
/// `first`.
///
/// Errors: `Unsupported`.
pub(crate) fn check_seqs(first: SeqNo, items: u64) -> Result<()> {
    match first.checked_add(items) {
        Some(next) if next <= SEQ_LIMIT => Ok(()),
        _ => Err(Error::unsupported(format!(
            "the next sequence number is {first}, and {items} more reach the limit: copy the data into a new store"
        ))
        .with_reach(Reach::Store)),
    }
}

#[cfg(test)]
mod tests;
