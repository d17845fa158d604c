//! [`Retention`]: how much of the binlog stays for its readers.

use basalt::Tsn;
use std::collections::VecDeque;

/// A mark is set once in this part of the retained bytes.
const MARKS: u64 = 64;

/// Counts the bytes of the binlog, and says up to where it may be trimmed.
pub struct Retention {
    /// Bytes that stay.
    retained: u64,
    /// Bytes that were appended, those of the log at the opening included.
    appended: u64,
    /// Transactions, and how many bytes had been appended at their ends.
    marks: VecDeque<(Tsn, u64)>,
    trimmed: Tsn,
}

impl Retention {
    /// Returns the retention of a log that has `bytes` bytes up to transaction `last`.
    pub fn new(retained: u64, bytes: u64, last: Tsn, trimmed: Tsn) -> Retention {
        Retention {
            retained,
            appended: bytes,
            marks: VecDeque::from([(last, bytes)]),
            trimmed,
        }
    }

    /// Notes appended transactions. Returns the transaction up to which the log may be trimmed, as
    /// far as its readers are concerned, if there is a new one.
    pub fn append(&mut self, last: Tsn, bytes: u64) -> Option<Tsn> {
        self.appended += bytes;
        let newest = self.marks.back().map_or(0, |mark| mark.1);
        if self.appended - newest < (self.retained / MARKS).max(1) {
            return None;
        }
        self.marks.push_back((last, self.appended));
        let kept_from = self.appended.saturating_sub(self.retained);
        let behind = self.marks.iter().take_while(|mark| mark.1 <= kept_from);
        let up_to = behind.last().map(|mark| mark.0);
        up_to.filter(|tsn| *tsn > self.trimmed)
    }

    /// Notes that the log was trimmed up to a transaction.
    pub fn trim(&mut self, up_to: Tsn) {
        self.trimmed = self.trimmed.max(up_to);
        while self.marks.front().is_some_and(|mark| mark.0 <= up_to) && self.marks.len() > 1 {
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
