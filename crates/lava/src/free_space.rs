//! Free runs of blocks, by place and by length.
//!
//! A growing file gets the blocks behind its end if they are free. Each other request gets the
//! shortest run that is long enough (best fit), so that long runs stay long.

use std::collections::{BTreeMap, BTreeSet};

use super::runs::Run;

/// A set of free blocks.
#[derive(Debug, Clone, Default)]
pub struct FreeSpace {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    blocks: u64,
}

impl FreeSpace {
    /// Returns the number of free blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of free runs.
    pub fn pieces(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the approximate memory, in bytes: two entries for each run.
    pub fn memory(&self) -> usize {
        self.pieces() * 64
    }

    /// Returns the blocks of the longest run.
    pub fn longest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Returns the blocks of the `pieces` longest runs.
    pub fn longest_in(&self, pieces: usize) -> u64 {
        let longest = self.by_len.iter().rev().take(pieces);
        longest.map(|(len, _)| len).sum()
    }

    /// Returns the blocks in runs that are shorter than `len`.
    pub fn shorter_than(&self, len: u64) -> u64 {
        self.by_len.range(..(len, 0)).map(|(len, _)| len).sum()
    }

    /// Returns all runs by place.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.by_start
            .iter()
            .map(|(&start, &len)| Run { start, len })
    }

    fn remove(&mut self, run: Run) {
        self.by_start.remove(&run.start);
        self.by_len.remove(&(run.len, run.start));
        self.blocks -= run.len;
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.by_start.insert(run.start, run.len);
            self.by_len.insert((run.len, run.start));
            self.blocks += run.len;
        }
    }

    /// Adds blocks. Returns `false`, without a change, if some of them are free already.
    #[must_use]
    pub fn free(&mut self, run: Run) -> bool {
        if run.len == 0 {
            return true;
        }
        let before = self.by_start.range(..=run.start).next_back();
        let before = before.map(|(&start, &len)| Run { start, len });
        let after = self.by_start.range(run.start..).next();
        let after = after.map(|(&start, &len)| Run { start, len });
        if before.is_some_and(|b| b.end() > run.start) || after.is_some_and(|a| a.start < run.end())
        {
            return false;
        }
        let mut whole = run;
        if let Some(b) = before.filter(|b| b.end() == run.start) {
            self.remove(b);
            whole = Run {
                start: b.start,
                len: b.len + whole.len,
            };
        }
        if let Some(a) = after.filter(|a| a.start == run.end()) {
            self.remove(a);
            whole.len += a.len;
        }
        self.insert(whole);
        true
    }

    /// Removes exactly these blocks. Returns `false`, without a change, if some of them are not
    /// free.
    #[must_use]
    pub fn take(&mut self, run: Run) -> bool {
        if run.len == 0 {
            return true;
        }
        let piece = self.by_start.range(..=run.start).next_back();
        let Some(piece) = piece
            .map(|(&start, &len)| Run { start, len })
            .filter(|p| p.end() >= run.end())
        else {
            return false;
        };
        self.remove(piece);
        self.insert(Run {
            start: piece.start,
            len: run.start - piece.start,
        });
        self.insert(Run {
            start: run.end(),
            len: piece.end() - run.end(),
        });
        true
    }

    /// Removes up to `want` blocks that are one run, at `near` if a run begins there. Returns
    /// `None` if no block is free.
    pub fn allocate(&mut self, want: u64, near: Option<u64>) -> Option<Run> {
        if want == 0 {
            return None;
        }
        let there = near.and_then(|near| Some((near, *self.by_start.get(&near)?)));
        let (start, len) = there.or_else(|| {
            let fits = self.by_len.range((want, 0)..).next();
            let longest = || self.by_len.last();
            fits.or_else(longest).map(|(len, start)| (*start, *len))
        })?;
        let run = Run {
            start,
            len: len.min(want),
        };
        let taken = self.take(run);
        assert!(taken, "a free run is free");
        Some(run)
    }

    /// Removes `want` blocks in as few runs as possible. Returns `None`, without a change, if fewer
    /// are free.
    pub fn allocate_all(&mut self, want: u64, near: Option<u64>) -> Option<Vec<Run>> {
        if self.blocks < want {
            return None;
        }
        let (mut runs, mut left, mut near) = (Vec::new(), want, near);
        while left > 0 {
            let run = self.allocate(left, near).expect("so much is free");
            left -= run.len;
            near = Some(run.end());
            runs.push(run);
        }
        Some(runs)
    }
}

#[cfg(test)]
mod tests;
