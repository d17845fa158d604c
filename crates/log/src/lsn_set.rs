//! A compressed set of log sequence numbers (LSNs): the LSNs that one page of the index still has.
//!
//! A set of consecutive LSNs takes no memory beyond the struct. Any other set is a list of runs in
//! varints. A run of one LSN, as redo logs have them, takes the bytes of the distance to the LSN
//! before it: 2 for distances up to 8,192.

use basalt_kv::encoding::{get_varint64, put_varint};
use std::ops::RangeInclusive;

/// The head of a run whose distance does not fit beside the flag of the head. Distance and length
/// follow it.
const FAR: u64 = u64::MAX;
/// Distances from here on are those of [`FAR`].
const LEAST_FAR: u64 = FAR >> 1;

/// A set of LSNs in rising order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LsnSet {
    /// The smallest LSN. Without meaning if `count` is 0.
    first: u64,
    /// The largest LSN. Without meaning if `count` is 0.
    last: u64,
    /// Number of LSNs.
    count: u32,
    /// The runs behind `first`, encoded; empty if all LSNs are consecutive.
    runs: Box<[u8]>,
}

impl LsnSet {
    /// Returns the set of LSNs that `rising` has, which must be in strictly rising order.
    pub fn from_rising(rising: impl IntoIterator<Item = u64>) -> LsnSet {
        let mut builder = RunsBuilder::default();
        for lsn in rising {
            builder.add_run(lsn..=lsn);
        }
        builder.finish()
    }

    /// Returns the set of all LSNs of some runs, which must be in rising order and not overlap.
    pub fn from_runs(runs: impl IntoIterator<Item = RangeInclusive<u64>>) -> LsnSet {
        let mut builder = RunsBuilder::default();
        for run in runs {
            builder.add_run(run);
        }
        builder.finish()
    }

    /// Returns the number of LSNs.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns true if the set has no LSN.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the smallest LSN, if there is any.
    pub fn first(&self) -> Option<u64> {
        (self.count > 0).then_some(self.first)
    }

    /// Returns the largest LSN, if there is any.
    pub fn last(&self) -> Option<u64> {
        (self.count > 0).then_some(self.last)
    }

    /// Returns the LSNs as one range, if they are consecutive and there is any.
    pub fn as_run(&self) -> Option<RangeInclusive<u64>> {
        (self.count > 0 && self.runs.is_empty()).then_some(self.first..=self.last)
    }

    /// Returns the maximal runs of consecutive LSNs, in rising order.
    pub fn runs(&self) -> Runs<'_> {
        Runs {
            left: &self.runs,
            next: match (self.count, self.runs.is_empty()) {
                (0, _) => None,
                (_, true) => Some(self.first..=self.last),
                (_, false) => None,
            },
            before: self.first,
            begun: false,
        }
    }

    /// Returns true if the set has this LSN. Costs a walk over the runs before it.
    pub fn contains(&self, lsn: u64) -> bool {
        if self.count == 0 || lsn < self.first || lsn > self.last {
            return false;
        }
        self.runs.is_empty()
            || self
                .runs()
                .take_while(|run| *run.start() <= lsn)
                .any(|run| lsn <= *run.end())
    }

    /// Returns the number of LSNs of the set in a range.
    pub fn count_in(&self, range: &RangeInclusive<u64>) -> u32 {
        if self.count == 0 || *range.end() < self.first || *range.start() > self.last {
            return 0;
        }
        if *range.start() <= self.first && self.last <= *range.end() {
            return self.count;
        }
        self.runs().map(|run| overlap(&run, range)).sum()
    }

    /// Removes the LSNs in a range, and returns how many there were.
    pub fn remove(&mut self, range: &RangeInclusive<u64>) -> u32 {
        let gone = self.count_in(range);
        if gone == self.count {
            *self = LsnSet::from_rising([]);
        } else if gone > 0 {
            let mut builder = RunsBuilder::default();
            for run in self.runs() {
                let (from, to) = (*run.start(), *run.end());
                if from < *range.start() {
                    builder.add_run(from..=to.min(*range.start() - 1));
                }
                if to > *range.end() {
                    builder.add_run(from.max(*range.end() + 1)..=to);
                }
            }
            *self = builder.finish();
        }
        gone
    }

    /// Returns the bytes of memory beyond the struct.
    pub fn memory(&self) -> usize {
        self.runs.len()
    }
}

/// Returns the number of LSNs that two ranges have in common.
fn overlap(run: &RangeInclusive<u64>, range: &RangeInclusive<u64>) -> u32 {
    let from = (*run.start()).max(*range.start());
    let to = (*run.end()).min(*range.end());
    match from <= to {
        true => (to - from + 1) as u32,
        false => 0,
    }
}

/// Iterator over the runs of a set.
pub(crate) struct Runs<'a> {
    left: &'a [u8],
    /// The only run of a set without encoded runs.
    next: Option<RangeInclusive<u64>>,
    /// The last LSN of the run before, or the first LSN of the set.
    before: u64,
    begun: bool,
}

impl Iterator for Runs<'_> {
    type Item = RangeInclusive<u64>;

    fn next(&mut self) -> Option<RangeInclusive<u64>> {
        if let Some(run) = self.next.take() {
            return Some(run);
        }
        if self.left.is_empty() {
            return None;
        }
        let mut at = 0;
        let mut number = || get_varint64(self.left, &mut at).expect("the set encoded it");
        // The distance to the run before, and whether the run has more than one LSN.
        let head = number();
        let distance = match head {
            FAR => number(),
            _ => head >> 1,
        };
        let more = match head & 1 {
            1 => number(),
            _ => 0,
        };
        let start = match self.begun {
            true => self.before + distance + 2,
            false => self.before,
        };
        self.begun = true;
        self.before = start + more;
        self.left = &self.left[at..];
        Some(start..=start + more)
    }
}

/// Builds a set from runs in rising order. Adjacent runs become one.
#[derive(Default)]
struct RunsBuilder {
    bytes: Vec<u8>,
    first: u64,
    /// The run that may still grow.
    open: Option<RangeInclusive<u64>>,
    /// The last LSN of the run before `open`.
    before: Option<u64>,
    count: u32,
}

impl RunsBuilder {
    fn add_run(&mut self, run: RangeInclusive<u64>) {
        self.count += (run.end() - run.start() + 1) as u32;
        match &mut self.open {
            None => {
                self.first = *run.start();
                self.open = Some(run);
            }
            Some(open) if *open.end() + 1 == *run.start() => {
                *open = *open.start()..=*run.end();
            }
            Some(open) => {
                debug_assert!(*open.end() < *run.start(), "runs rise");
                let closed = std::mem::replace(open, run);
                self.close(closed);
            }
        }
    }

    fn close(&mut self, run: RangeInclusive<u64>) {
        let distance = self.before.map_or(0, |before| run.start() - before - 2);
        let more = run.end() - run.start();
        if distance >= LEAST_FAR {
            for number in [FAR, distance, more] {
                put_varint(&mut self.bytes, number);
            }
        } else {
            put_varint(&mut self.bytes, distance << 1 | u64::from(more > 0));
            if more > 0 {
                put_varint(&mut self.bytes, more);
            }
        }
        self.before = Some(*run.end());
    }

    fn finish(mut self) -> LsnSet {
        let Some(open) = self.open.take() else {
            return LsnSet {
                first: 0,
                last: 0,
                count: 0,
                runs: Box::default(),
            };
        };
        let last = *open.end();
        if self.before.is_some() {
            self.close(open);
        }
        LsnSet {
            first: self.first,
            last,
            count: self.count,
            runs: self.bytes.into_boxed_slice(),
        }
    }
}

impl LsnSet {
    /// Appends the set to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.count));
        if self.count > 0 {
            put_varint(out, self.first);
            put_varint(out, self.last - self.first);
            put_varint(out, self.runs.len() as u64);
            out.extend_from_slice(&self.runs);
        }
    }

    /// Decodes a set. Returns `None` if the bytes are no set that [`LsnSet::encode`] makes.
    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<LsnSet> {
        let count = u32::try_from(get_varint64(bytes, at)?).ok()?;
        if count == 0 {
            return Some(LsnSet::from_rising([]));
        }
        let first = get_varint64(bytes, at)?;
        let last = first.checked_add(get_varint64(bytes, at)?)?;
        let len = usize::try_from(get_varint64(bytes, at)?).ok()?;
        let encoded = bytes.get(*at..at.checked_add(len)?)?;
        *at += len;
        if encoded.is_empty() {
            let consecutive = u64::from(count) == (last - first).checked_add(1)?;
            return consecutive.then(|| LsnSet::from_runs([first..=last]));
        }
        // Every number of untrusted bytes is checked here, so that the iterator need not.
        let (mut found, mut end, mut from) = (0u64, None::<u64>, 0);
        while from < encoded.len() {
            let head = get_varint64(encoded, &mut from)?;
            let distance = match head {
                FAR => get_varint64(encoded, &mut from).filter(|far| *far >= LEAST_FAR)?,
                _ => head >> 1,
            };
            let more = match head & 1 {
                1 => get_varint64(encoded, &mut from).filter(|more| *more > 0 || head == FAR)?,
                _ => 0,
            };
            let start = match end {
                None if distance == 0 => first,
                None => return None,
                Some(end) => end.checked_add(distance.checked_add(2)?)?,
            };
            end = Some(start.checked_add(more)?);
            found = found.checked_add(more.checked_add(1)?)?;
        }
        let set = LsnSet {
            first,
            last,
            count,
            runs: encoded.into(),
        };
        let several = set.runs().nth(1).is_some();
        (found == u64::from(count) && end == Some(last) && several).then_some(set)
    }
}

/// Encodes sets of LSNs, one behind the other.
#[derive(Default)]
pub(crate) struct SetsEncoder {
    bytes: Vec<u8>,
    count: u64,
    /// Consecutive LSNs that may still grow.
    open: Option<RangeInclusive<u64>>,
}

impl SetsEncoder {
    /// Adds a set. Consecutive LSNs behind consecutive ones become one set.
    pub fn add(&mut self, set: &LsnSet) {
        let Some(run) = set.as_run() else {
            self.close();
            if !set.is_empty() {
                set.encode(&mut self.bytes);
                self.count += 1;
            }
            return;
        };
        // A set counts its LSNs with 32 bits.
        let joined = |open: &RangeInclusive<u64>| {
            open.end().checked_add(1) == Some(*run.start())
                && run.end() - open.start() < u64::from(u32::MAX)
        };
        self.open = match self.open.take() {
            Some(open) if joined(&open) => Some(*open.start()..=*run.end()),
            open => {
                self.open = open;
                self.close();
                Some(run)
            }
        };
    }

    fn close(&mut self) {
        if let Some(run) = self.open.take() {
            LsnSet::from_runs([run]).encode(&mut self.bytes);
            self.count += 1;
        }
    }

    /// Appends the number of sets and the sets to `out`.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.close();
        put_varint(out, self.count);
        out.extend_from_slice(&self.bytes);
    }
}

#[cfg(test)]
mod tests;
