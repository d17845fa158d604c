//! Sets of log sequence numbers (LSNs), as ranges.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// A set of LSNs. Its memory is proportional to the number of runs of consecutive LSNs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LsnSet {
    /// The last LSN of each maximal run, by its first one.
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl LsnSet {
    /// Returns the number of LSNs.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of runs of consecutive LSNs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Returns the run that contains an LSN.
    pub fn run_of(&self, lsn: u64) -> Option<RangeInclusive<u64>> {
        let (first, last) = self.runs.range(..=lsn).next_back()?;
        (*last >= lsn).then_some(*first..=*last)
    }

    pub fn contains(&self, lsn: u64) -> bool {
        self.run_of(lsn).is_some()
    }

    /// Adds an LSN.
    pub fn insert(&mut self, lsn: u64) {
        self.insert_run(lsn..=lsn);
    }

    /// Adds a range of LSNs.
    pub fn insert_run(&mut self, run: RangeInclusive<u64>) {
        if run.is_empty() {
            return;
        }
        let (mut first, mut last) = run.into_inner();
        // Runs that overlap or adjoin the new run are merged with it.
        while let Some((from, to)) = self.runs.range(..=last.saturating_add(1)).next_back() {
            let (from, to) = (*from, *to);
            if to.saturating_add(1) < first {
                break;
            }
            (first, last) = (first.min(from), last.max(to));
            self.runs.remove(&from);
            self.count -= to - from + 1;
        }
        self.count += last - first + 1;
        self.runs.insert(first, last);
    }

    /// Removes the LSNs below `lsn`.
    pub fn remove_below(&mut self, lsn: u64) {
        while let Some(run) = self.runs.first_entry().filter(|run| *run.key() < lsn) {
            let (first, last) = run.remove_entry();
            self.count -= last - first + 1;
            if last >= lsn {
                self.insert_run(lsn..=last);
            }
        }
    }

    /// Returns the number of LSNs in a range.
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        let before = self.run_of(range.start).map(|run| *run.start());
        let runs = self
            .runs
            .range(before.unwrap_or(range.start)..range.end.max(range.start));
        let part = |(first, last): (&u64, &u64)| {
            (last + 1)
                .min(range.end)
                .saturating_sub(*first.max(&range.start))
        };
        runs.map(part).sum()
    }

    /// Returns the smallest LSN from `lsn` on that is not in the set.
    pub fn next_absent(&self, lsn: u64) -> u64 {
        self.run_of(lsn).map_or(lsn, |run| run.end() + 1)
    }

    /// Skips `n` LSNs from `from` on that are not in the set. Returns the next LSN that is not in
    /// the set.
    pub fn skip_absent(&self, from: u64, n: u64) -> u64 {
        let (mut at, mut left) = (self.next_absent(from), n);
        while left > 0 {
            match self.runs.range(at..).next() {
                Some((first, last)) if first - at <= left => {
                    left -= first - at;
                    at = last + 1;
                }
                _ => return at + left,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests;
