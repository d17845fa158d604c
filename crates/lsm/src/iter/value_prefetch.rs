//! [`ValuePrefetch`]: a cursor over live keys that reads values out of blob files before they are asked for, many at once.
//!
//! A movement of a [`UserIter`] comes to a value elsewhere and leaves it unread. After a seek it is read with as many more as each of the last
//! eight scans of the family went on to ([`ScanHistory`](super::ScanHistory)): alone, where one of them was short, and after the first step, too. From then on the
//! cursor beneath runs ahead of what is shown, over entries that are kept here, until it has met 2, then 4, 8, ... values, and reads them
//! together; a long scan asks for the next ones while it shows those that it has, and leaves the cache alone. What was read in vain, when whoever walks turns or leaves, is never more than what was shown, or than all eight scans before it wanted.
//!
//! What is shown is what the cursor beneath would show, entry by entry: its errors, its end and its pauses come when the entries before
//! them were shown, an unreadable value is told at its entry, and what running ahead has used of the skip budget is given back when it
//! was in vain. Where running ahead meets many entries that are not shown it rests, so that nobody waits for more than was asked for.

mod run;

pub(super) use run::EntryMeta;

use super::user::{UserIter, without_expiry};
use crate::iter::FlightPermit;
use basalt_blob::batch_read::{InFlight, Located, Pages, Sought};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::SeqNo;
use basalt_kv::separated::Name;
use run::{Beneath, Flight, Met, Run, Value};
use std::collections::VecDeque;

/// Values read together at most.
const MAX_VALUES: u32 = 1024;
/// Bytes of values read together, unless one alone is longer; and of other entries that are kept.
const MAX_BYTES: usize = 1 << 20;
/// Entries that are kept, those with values of their own included.
const MAX_ENTRIES: usize = 2048;
/// Running ahead rests after so many entries that are not shown.
const PASSED_OVER: u64 = 64;

impl Drop for ValuePrefetch {
    fn drop(&mut self) {
        self.end_scan();
    }
}

/// The chunks of a memtable, see the module.
pub struct ValuePrefetch {
    at: UserIter,
    /// Never empty.
    run: Option<Run>,
    /// Values come to on the way in one direction, since the last seek.
    taken: u32,
    /// Values come to since the last seek.
    scanned: u32,
    /// Bytes that were read ahead since the last seek.
    bytes: u64,
    /// Values that scans usually come to, as far as that holds for this one.
    usual: u32,
    up: bool,
    /// Index pages for values to come, where the cache does not keep them.
    pages: Pages,
    /// [`MAX_VALUES`], or fewer.
    most: u32,
    /// Bytes of a value in memory, of those read together last; 0 before any were.
    mean: usize,
    /// Bytes that were read of the values that were read together last, and what these have in memory: compressed ones grow. Those to come
    /// are taken for alike.
    grown: (u64, u64),
}

impl ValuePrefetch {
    /// Over a cursor that is not positioned.
    pub fn new(at: UserIter) -> ValuePrefetch {
        ValuePrefetch {
            at,
            run: None,
            taken: 0,
            scanned: 0,
            bytes: 0,
            usual: 0,
            up: true,
            pages: Pages::default(),
            most: MAX_VALUES,
            mean: 0,
            grown: (1, 1),
        }
    }

    /// Reads so many values together at most. With 1 it reads nothing ahead: each movement costs what it would without this module.
    #[cfg(test)]
    pub(crate) fn at_most(mut self, values: u32) -> ValuePrefetch {
        self.most = values;
        self
    }

    /// True while values are on their way.
    #[cfg(test)]
    pub(crate) fn flies(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.flight.is_some())
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

    /// Before a seek, and at the end: a scan is over.
    fn end_scan(&mut self) {
        let scanned = std::mem::take(&mut self.scanned);
        if let Some((values, _)) = self.at.sources().filter(|_| scanned > 0) {
            values.scan_history.scanned(scanned);
        }
    }

    /// What was read ahead is not wanted, and not taken from the skip budget.
    fn forget(&mut self) {
        if let Some(run) = self.run.take() {
            self.at.restore(run.entries[0].left);
        }
    }

    fn sought(&mut self, moved: Result<()>, up: bool) -> Result<()> {
        self.end_scan();
        moved?;
        (self.taken, self.bytes, self.up) = (0, 0, up);
        self.usual = (self.at.sources()).map_or(0, |(values, _)| values.scan_history.least());
        self.pages = Pages::default();
        self.arrived(up)
    }

    /// After a movement of the cursor beneath, which shows what it stands on.
    #[inline]
    fn arrived(&mut self, up: bool) -> Result<()> {
        match self.at.is_value_unread() {
            true => self.read(up),
            false => Ok(()),
        }
    }

    fn read(&mut self, up: bool) -> Result<()> {
        if self.up != up {
            (self.taken, self.usual, self.up) = (0, 0, up);
        }
        let values = self.batch();
        self.take();
        match values {
            0 | 1 => self.at.read_value(),
            values => self.run_ahead(up, values),
        }
    }

    /// How many of the values that come next are worth reading at once: as many as were come to, or as scans usually come to.
    fn batch(&self) -> u32 {
        let left = self.usual.saturating_sub(self.taken);
        self.taken.max(left).min(self.most)
    }

    /// Another value is come to.
    fn take(&mut self) {
        self.taken = self.taken.saturating_add(1);
        self.scanned = self.scanned.saturating_add(1);
    }

    /// From the entry that the cursor beneath stands on, until it has met so many values elsewhere.
    fn run_ahead(&mut self, up: bool, values: u32) -> Result<()> {
        let first = self.at.entry_meta();
        let mut run = Run {
            up,
            entries: VecDeque::from([first]),
            beneath: Beneath::There,
            left: 0,
            flight: None,
            counts: None,
        };
        self.walk_on(&mut run, values - 1);
        self.run = Some(run);
        self.show_first()
    }

    /// On from the last entry of a run, until so many more values elsewhere are met.
    fn walk_on(&mut self, run: &mut Run, values: u32) {
        // What it holds counts, and what is to be read as if it were as long as what was read last.
        let mut bytes: usize = run.entries.iter().map(|e| e.bytes()).sum();
        let values = values.min((MAX_BYTES / self.mean.max(1)) as u32);
        let (mut unread, mut met) = (0, 0);
        self.at.spare_beyond(PASSED_OVER);
        while unread < values && bytes < 2 * MAX_BYTES && met < MAX_ENTRIES {
            run.beneath = match self.step_beneath(run.up) {
                Err(e) => Beneath::Failed(e),
                Ok(()) if self.at.valid() => Beneath::There,
                Ok(()) if self.at.rests() => Beneath::Rests,
                Ok(()) => Beneath::Behind,
            };
            if !matches!(run.beneath, Beneath::There) {
                break;
            }
            unread += u32::from(self.at.is_value_unread());
            met += 1;
            let shown = self.at.entry_meta();
            bytes += shown.bytes();
            run.entries.push_back(shown);
        }
        self.at.spare_beyond(u64::MAX);
    }

    /// A long scan asks for the values that come next while it shows those that it has.
    fn keep_ahead(&mut self) {
        let Some(mut run) = self.run.take() else {
            return;
        };
        let most = self.most.min((MAX_BYTES / self.mean.max(1)) as u32);
        let there = matches!(run.beneath, Beneath::There) && run.flight.is_none();
        if there && self.batch() >= most && run.entries.len() < most as usize / 2 {
            let known = run.entries.len();
            self.walk_on(&mut run, most);
            self.ask(&mut run, known);
        }
        self.run = Some(run);
    }

    /// Asks for values from the entry `from` of the run on.
    fn ask(&mut self, run: &mut Run, from: usize) {
        let Some((values, cmp)) = self.at.sources() else {
            return;
        };
        let Some(leave) = FlightPermit::of(&values.scan_history) else {
            return;
        };
        let met = Met::of(run, from, values, cmp, &mut self.pages, self.grown);
        let how = met.how(values.how, self.bytes);
        let wanted = met.wanted;
        let of = met.places.into_iter().zip(&wanted);
        let of = of.map(|((i, to), l)| (run.left + i as u64, to, l.place()));
        let flight = Flight {
            of: of.collect(),
            reads: InFlight::begin(&wanted, how, true),
            how,
            _leave: leave,
        };
        self.bytes += wanted.iter().map(|l| l.read_len() as u64).sum::<u64>();
        if values.how.fill_cache {
            flight.reads.is_of_scan(&wanted);
        }
        let counts = wanted.first().map(|l| l.counts().clone());
        if let Some(counts) = counts {
            counts.ahead.add(flight.of.len() as u64);
            run.counts.get_or_insert(counts);
            run.flight = Some(flight);
        }
        if values.how.fill_cache {
            self.pages = Pages::default();
        }
    }

    /// Waits for the values that are on their way.
    fn land(&mut self) {
        let (Some(run), Some((values, cmp))) = (&mut self.run, self.at.sources()) else {
            return;
        };
        let Some(Flight {
            reads,
            of,
            how,
            _leave,
        }) = run.flight.take()
        else {
            return;
        };
        let mut located = Vec::with_capacity(of.len());
        for (n, to, place) in &of {
            let entry = &run.entries[(n - run.left) as usize];
            let Value::LazyValue(seq, _) = &entry.value else {
                unreachable!("what is in flight is not read otherwise");
            };
            let name = Name {
                family: values.family,
                key: &entry.key,
                seq: *seq,
            };
            let file = values.blobs.file(to.number, &name, cmp);
            let reader = file.and_then(|file| file.reader());
            let reader = reader.expect("it was there when it was asked for, and is kept");
            let name = to.record(&name);
            located.push(Located::again(Sought { reader, name }, place.clone()));
        }
        let came = reads.finish(&located, how);
        for ((n, to, _), read) in of.into_iter().zip(came) {
            // One that failed is read again when it is to be shown.
            if let Ok(value) = read.and_then(|payload| without_expiry(payload, &to)) {
                let entry = &mut run.entries[(n - run.left) as usize];
                (entry.value, entry.ahead) = (Value::Here(value), true);
            }
        }
    }

    fn step_beneath(&mut self, up: bool) -> Result<()> {
        match up {
            true => self.at.next(),
            false => self.at.prev(),
        }
    }

    /// The first entry of the run is to be shown, with its value.
    fn show_first(&mut self) -> Result<()> {
        let unread = |run: &Option<Run>| {
            let run = run.as_ref().expect("there is a first entry");
            matches!(run.entries[0].value, Value::LazyValue(..))
        };
        if unread(&self.run) && self.run.as_ref().is_some_and(|run| run.is_in_flight(0)) {
            self.land();
        }
        if unread(&self.run) {
            self.read_batch();
        }
        let run = self.run.as_mut().expect("there is a first entry");
        run.entries[0].ahead = false;
        if let Value::Failed(e) = &run.entries[0].value {
            let e = e.clone();
            self.forget();
            self.at.unposition();
            return Err(e);
        }
        Ok(())
    }

    /// Reads values that were met: the first, and as many more as there is room for.
    fn read_batch(&mut self) {
        let (Some(run), Some((values, cmp))) = (&mut self.run, self.at.sources()) else {
            return;
        };
        let met = Met::of(run, 0, values, cmp, &mut self.pages, self.grown);
        let how = met.how(values.how, self.bytes);
        let counts = met.wanted.first().map(|l| l.counts().clone());
        let mut came = met.failed;
        let asked = InFlight::begin(&met.wanted, how, false);
        if values.how.fill_cache {
            asked.is_of_scan(&met.wanted);
        }
        let bytes = met.wanted.iter().map(|l| l.read_len() as u64);
        self.bytes += bytes.sum::<u64>();
        let read = asked.finish(&met.wanted, how);
        let mut grown = (0, 0);
        for (((i, to), l), read) in met.places.into_iter().zip(&met.wanted).zip(read) {
            if let Ok(value) = &read {
                let around = l.read_len() - l.value_len();
                grown.0 += l.read_len() as u64;
                grown.1 += (around + value.len()) as u64;
            }
            came.push((i, read.and_then(|payload| without_expiry(payload, &to))));
        }
        if grown.0 > 0 {
            self.grown = grown;
            self.mean = grown.1 as usize / met.wanted.len();
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
        if let Some(counts) = counts {
            counts.ahead.add(ahead);
            run.counts.get_or_insert(counts);
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
            run.left += 1;
            let first = &run.entries[0];
            let elsewhere = first.ahead || matches!(first.value, Value::LazyValue(..));
            if elsewhere {
                self.take();
            }
            self.show_first()?;
            self.keep_ahead();
            return Ok(());
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
        let value = first.own_value();
        self.at.stand_at(key, value, &first);
        (self.taken, self.usual) = (0, 0);
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
            let over = |e: &EntryMeta| e.expire_at_ms.is_some_and(|at| at <= now_ms);
            let same = now_ms >= self.at.now_ms() && !run.entries.iter().any(over);
            if !same || skips != u64::MAX {
                self.turn_back();
            }
        }
        if skips != u64::MAX {
            // What is read ahead under a budget for each movement would be met again by the next.
            (self.taken, self.usual) = (0, 0);
        }
        self.at.allow(now_ms, skips);
    }

    /// Shows nothing until it is sought again.
    pub(crate) fn unposition(&mut self) {
        self.forget();
        self.at.unposition();
    }

    /// See [`UserIter::take_prefix_of`].
    pub(crate) fn take_prefix_of(&mut self, other: &mut ValuePrefetch) {
        self.at.take_prefix_of(&mut other.at);
    }

    /// True when positioned on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.run.is_some() || self.at.valid()
    }

    /// See [`UserIter::resume_key`].
    pub fn resume_key(&self) -> Option<&[u8]> {
        match &self.run {
            None => self.at.resume_key(),
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
            Some(run) => ValuePrefetch::first(run),
        }
    }

    /// The value here, if it was at hand without another read. Requires `valid`.
    pub fn value_at_hand(&self) -> Option<&[u8]> {
        match &self.run {
            None => self.at.value_at_hand(),
            Some(run) => Some(ValuePrefetch::first(run)),
        }
    }

    /// The value here, pinned. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        match &self.run {
            None => self.at.pinned_value(),
            Some(run) => run.entries[0].own_value(),
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
