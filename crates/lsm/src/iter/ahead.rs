//! [`ReadAhead`]: a cursor over live keys that reads values out of blob files before they are asked for, many at once.
//!
//! A movement of a [`UserIter`] comes to a value elsewhere and leaves it unread. After a seek it is read alone, and after the first step, too:
//! short scans read nothing that nobody wants. From then on the cursor beneath runs ahead of what is shown, over entries that are
//! kept here, until it has met 2, then 4, 8, ... values, and reads them together. What was read in vain, when whoever walks turns or leaves,
//! is never more than what was shown.
//!
//! What is shown is what the cursor beneath would show, entry by entry: its errors, its end and its pauses come when the entries before
//! them were shown, an unreadable value is told at its entry, and what running ahead has used of the skip budget is given back when it
//! was in vain. Where running ahead meets many entries that are not shown it rests, so that nobody waits for more than was asked for.

use super::user::{UserIter, without_expiry};
use crate::blob::counts::ReadCounts;
use crate::blob::together::{self, Located, Pages};
use crate::blob::{Name, Reference};
use crate::key::SeqNo;
use basalt_fs::{Bytes, Error, Result};
use std::collections::VecDeque;

/// Values read together at most.
const MOST_VALUES: u32 = 32;
/// Bytes of values read together, unless one alone is longer; and of other entries that are kept.
const MOST_BYTES: usize = 1 << 20;
/// Entries that are kept, those with values of their own included.
const MOST_ENTRIES: usize = 128;
/// Running ahead rests after so many entries that are not shown.
const PASSED_OVER: u64 = 64;

/// An entry that was met.
pub(super) struct Shown {
    key: Vec<u8>,
    value: Value,
    /// When its time is over.
    pub(super) expire_at_ms: Option<u64>,
    /// What was left of the skip budget, and jumps that did not count yet.
    pub(super) left: (u64, u64),
    /// Its value was read before it was come to.
    ahead: bool,
}

enum Value {
    Here(Bytes),
    Unread(SeqNo, Reference),
    Failed(Error),
}

impl Shown {
    pub(super) fn new(
        key: &[u8],
        value: std::result::Result<Bytes, (SeqNo, Reference)>,
        expire_at_ms: Option<u64>,
        left: (u64, u64),
    ) -> Shown {
        Shown {
            key: key.to_vec(),
            value: match value {
                Ok(value) => Value::Here(value),
                Err((seq, to)) => Value::Unread(seq, to),
            },
            expire_at_ms,
            left,
            ahead: false,
        }
    }

    /// Bytes that keeping it costs.
    fn bytes(&self) -> usize {
        self.key.len()
            + match &self.value {
                Value::Here(value) => value.len(),
                _ => 0,
            }
    }
}

/// Where the cursor beneath is.
enum Beneath {
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
struct Run {
    up: bool,
    entries: VecDeque<Shown>,
    beneath: Beneath,
    /// Where it is counted what was read in vain, once something was read.
    counts: Option<ReadCounts>,
}

impl Drop for Run {
    fn drop(&mut self) {
        let unused = self.entries.iter().filter(|e| e.ahead).count();
        if let Some(counts) = self.counts.as_ref().filter(|_| unused > 0) {
            counts.ahead_unused.add(unused as u64);
        }
    }
}

/// See the module.
pub struct ReadAhead {
    at: UserIter,
    /// Never empty.
    run: Option<Run>,
    /// Times that values were read on the way in one direction, since the last seek.
    times: u32,
    up: bool,
    /// Index pages for values to come, where the cache does not keep them.
    pages: Pages,
    /// [`MOST_VALUES`], or fewer.
    most: u32,
    /// Bytes that were read of the values that were read together last, and what these have in memory: compressed ones grow. Those to come
    /// are taken for alike.
    grown: (u64, u64),
}

impl ReadAhead {
    /// Over a cursor that is not positioned.
    pub fn new(at: UserIter) -> ReadAhead {
        ReadAhead {
            at,
            run: None,
            times: 0,
            up: true,
            pages: Pages::default(),
            most: MOST_VALUES,
            grown: (1, 1),
        }
    }

    /// Reads nothing ahead: each movement costs what it would without this module.
    #[cfg(test)]
    pub(crate) fn one_by_one(mut self) -> ReadAhead {
        self.most = 1;
        self
    }

    /// True while the cursor beneath is perhaps further on than what is shown.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> bool {
        self.run.is_some()
    }

    /// What is left of the skip budget where it stands.
    #[cfg(test)]
    pub(crate) fn left(&self) -> (u64, u64) {
        match &self.run {
            Some(run) => run.entries[0].left,
            None => self.at.left(),
        }
    }

    /// Before a seek: what was read ahead is not wanted, and not taken from the skip budget.
    fn forget(&mut self) {
        if let Some(run) = self.run.take() {
            self.at.restore(run.entries[0].left);
        }
    }

    fn sought(&mut self, moved: Result<()>, up: bool) -> Result<()> {
        moved?;
        (self.times, self.up) = (0, up);
        self.pages = Pages::default();
        self.arrived(up)
    }

    /// After a movement of the cursor beneath, which shows what it stands on.
    #[inline]
    fn arrived(&mut self, up: bool) -> Result<()> {
        match self.at.is_unread() {
            true => self.read(up),
            false => Ok(()),
        }
    }

    fn read(&mut self, up: bool) -> Result<()> {
        if self.up != up {
            (self.times, self.up) = (0, up);
        }
        self.times = self.times.saturating_add(1);
        match self.times {
            n if n <= 2 || self.most == 1 => self.at.read_value(),
            n => self.run_ahead(up, (1 << (n - 2).min(16)).min(self.most)),
        }
    }

    /// From the entry that the cursor beneath stands on, until it has met so many values elsewhere.
    fn run_ahead(&mut self, up: bool, values: u32) -> Result<()> {
        let (mut entries, mut unread, mut bytes) = (VecDeque::new(), 0, 0);
        self.at.spare_beyond(PASSED_OVER);
        let beneath = loop {
            unread += u32::from(self.at.is_unread());
            let shown = self.at.shown();
            bytes += shown.bytes();
            entries.push_back(shown);
            if unread >= values || bytes >= MOST_BYTES || entries.len() == MOST_ENTRIES {
                break Beneath::There;
            }
            match self.step_beneath(up) {
                Err(e) => break Beneath::Failed(e),
                Ok(()) if self.at.valid() => {}
                Ok(()) if self.at.rests() => break Beneath::Rests,
                Ok(()) => break Beneath::Behind,
            }
        };
        self.at.spare_beyond(u64::MAX);
        self.run = Some(Run {
            up,
            entries,
            beneath,
            counts: None,
        });
        self.show_first()
    }

    fn step_beneath(&mut self, up: bool) -> Result<()> {
        match up {
            true => self.at.next(),
            false => self.at.prev(),
        }
    }

    /// The first entry of the run is to be shown, with its value.
    fn show_first(&mut self) -> Result<()> {
        let run = self.run.as_ref().expect("there is a first entry");
        if let Value::Unread(..) = run.entries[0].value {
            self.read_together();
        }
        let run = self.run.as_ref().expect("there is a first entry");
        if let Value::Failed(e) = &run.entries[0].value {
            let e = e.clone();
            self.forget();
            self.at.unposition();
            return Err(e);
        }
        Ok(())
    }

    /// Reads values that were met: the first, and as many more as there is room for.
    fn read_together(&mut self) {
        let (Some(run), Some((values, cmp))) = (&mut self.run, self.at.sources()) else {
            return;
        };
        let mut met = Vec::new();
        let mut entries = Vec::new();
        for (i, entry) in run.entries.iter().enumerate() {
            let Value::Unread(seq, to) = &entry.value else {
                continue;
            };
            let name = Name {
                family: values.family,
                key: &entry.key,
                seq: *seq,
            };
            met.push((i, *to));
            entries.push((name, to.number, cmp));
        }
        let located = values.blobs.locate(&entries, &mut self.pages, values.how);
        let mut came: Vec<(usize, Result<Bytes>)> = Vec::with_capacity(met.len());
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        let mut room: Option<usize> = None;
        let (stored, held) = self.grown;
        let in_memory = |l: &Located<'_>| {
            let bytes = u128::from(held) * l.read_len() as u128 / u128::from(stored.max(1));
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        for ((i, to), located) in met.into_iter().zip(located) {
            match located {
                Ok(l) => {
                    // What is read before it is asked for must not push anybody out of memory.
                    let free = || usize::try_from(l.env().ledger().free()).unwrap_or(MOST_BYTES);
                    let left = room.unwrap_or_else(|| MOST_BYTES.min(free()));
                    if !wanted.is_empty() && in_memory(&l) > left {
                        break;
                    }
                    room = Some(left.saturating_sub(in_memory(&l)));
                    places.push((i, to));
                    wanted.push(l);
                }
                Err(e) => came.push((i, Err(e))),
            }
        }
        run.counts = run
            .counts
            .take()
            .or_else(|| Some(wanted.first()?.counts().clone()));
        let mut grown = (0, 0);
        let read = together::read(&wanted, values.how);
        for (((i, to), l), read) in places.into_iter().zip(&wanted).zip(read) {
            if let Ok(value) = &read {
                let around = l.read_len() - l.value_len();
                grown.0 += l.read_len() as u64;
                grown.1 += (around + value.len()) as u64;
            }
            came.push((i, read.and_then(|payload| without_expiry(payload, &to))));
        }
        if grown.0 > 0 {
            self.grown = grown;
        }
        let mut ahead = 0;
        for (i, value) in came {
            match value {
                Ok(value) => {
                    run.entries[i].value = Value::Here(value);
                    run.entries[i].ahead = i > 0;
                    ahead += u64::from(i > 0);
                }
                Err(e) if i == 0 => run.entries[i].value = Value::Failed(e),
                // It is read again when it is to be shown: perhaps the device will do it then.
                Err(_) => {}
            }
        }
        if let Some(counts) = &run.counts {
            counts.ahead.add(ahead);
        }
        if values.how.fill_cache {
            self.pages = Pages::default();
        }
    }

    /// One step while there is a run.
    fn step(&mut self, up: bool) -> Result<()> {
        let run = self.run.as_mut().expect("there is a run");
        if run.up != up {
            self.turn_back();
            self.step_beneath(up)?;
            return self.arrived(up);
        }
        if run.entries.len() > 1 {
            run.entries.pop_front();
            run.entries[0].ahead = false;
            return self.show_first();
        }
        let mut run = self.run.take().expect("there is a run");
        match std::mem::replace(&mut run.beneath, Beneath::There) {
            Beneath::There => self.step_beneath(up)?,
            Beneath::Rests => self.at.resume(up)?,
            Beneath::Behind => return Ok(()),
            Beneath::Failed(e) => return Err(e),
        }
        self.arrived(up)
    }

    /// The cursor beneath goes back to what is shown.
    fn turn_back(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        let mut first = run.entries.pop_front().expect("a run is never empty");
        let key = std::mem::take(&mut first.key);
        let Value::Here(value) = &mut first.value else {
            unreachable!("what is shown was read");
        };
        let value = std::mem::take(value);
        self.at.stand_at(key, value, &first);
        self.times = 0;
    }

    /// See [`UserIter::has_deleted`].
    pub(crate) fn has_deleted(&self) -> bool {
        self.at.has_deleted()
    }

    /// See [`UserIter::renew`].
    pub(crate) fn renew(&mut self, seq: SeqNo, now_ms: u64, skips: u64) {
        self.forget();
        self.at.renew(seq, now_ms, skips);
    }

    /// At another time, and with another skip budget from here on.
    pub(crate) fn allow(&mut self, now_ms: u64, skips: u64) {
        if let Some(run) = &self.run {
            // What was met is what there is now when no time went back, none is over since, and none of the budget counts.
            let over = |e: &Shown| e.expire_at_ms.is_some_and(|at| at <= now_ms);
            let same = now_ms >= self.at.now_ms() && !run.entries.iter().any(over);
            if !same || skips != u64::MAX {
                self.turn_back();
            }
        }
        if skips != u64::MAX {
            // What is read ahead under a budget for each movement would be met again by the next.
            self.times = 0;
        }
        self.at.allow(now_ms, skips);
    }

    /// Shows nothing until it is sought again.
    pub(crate) fn unposition(&mut self) {
        self.forget();
        self.at.unposition();
    }

    /// See [`UserIter::take_prefix_of`].
    pub(crate) fn take_prefix_of(&mut self, other: &mut ReadAhead) {
        self.at.take_prefix_of(&mut other.at);
    }

    /// True when positioned on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.run.is_some() || self.at.valid()
    }

    /// See [`UserIter::paused_at`].
    pub fn paused_at(&self) -> Option<&[u8]> {
        match &self.run {
            None => self.at.paused_at(),
            Some(_) => None,
        }
    }

    /// To the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.forget();
        let moved = self.at.seek_to_first();
        self.sought(moved, true)
    }

    /// To the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.forget();
        let moved = self.at.seek_to_last();
        self.sought(moved, false)
    }

    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.forget();
        let moved = self.at.seek(key);
        self.sought(moved, true)
    }

    /// See [`UserIter::go_on`].
    pub(crate) fn go_on(&mut self, key: &[u8], or_at: bool) -> Result<()> {
        self.forget();
        let moved = self.at.go_on(key, or_at);
        self.sought(moved, true)
    }

    /// To the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.forget();
        let moved = self.at.seek_for_prev(key);
        self.sought(moved, false)
    }

    /// To the next key. Requires `valid`.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if self.run.is_some() {
            return self.step(true);
        }
        self.at.next()?;
        self.arrived(true)
    }

    /// To the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        if self.run.is_some() {
            return self.step(false);
        }
        self.at.prev()?;
        self.arrived(false)
    }

    /// The user key here. Requires `valid`.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match &self.run {
            None => self.at.key(),
            Some(run) => &run.entries[0].key,
        }
    }

    fn first(run: &Run) -> &Bytes {
        match &run.entries[0].value {
            Value::Here(value) => value,
            _ => unreachable!("what is shown was read"),
        }
    }

    /// The value here (expiry stripped). Requires `valid`.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match &self.run {
            None => self.at.value(),
            Some(run) => ReadAhead::first(run),
        }
    }

    /// The value here, if it was at hand without another read. Requires `valid`.
    pub fn value_at_hand(&self) -> Option<&[u8]> {
        match &self.run {
            None => self.at.value_at_hand(),
            Some(run) => Some(ReadAhead::first(run)),
        }
    }

    /// The value here, pinned. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        match &self.run {
            None => self.at.pinned_value(),
            Some(run) => ReadAhead::first(run).clone(),
        }
    }

    /// The expiry of the value here, ms since 1970. Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        match &self.run {
            None => self.at.expire_at_ms(),
            Some(run) => run.entries[0].expire_at_ms,
        }
    }
}
