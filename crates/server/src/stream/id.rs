//! Ids of stream entries.

use std::fmt;

/// The id of a stream entry: milliseconds, and a sequence number within the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    pub const MAX: StreamId = StreamId {
        ms: u64::MAX,
        seq: u64::MAX,
    };

    pub fn new(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    /// Parses `ms-seq`, or `ms`, which gets the sequence number `missing_seq`. As in Redis, numbers
    /// may have leading zeros.
    pub fn parse(text: &[u8], missing_seq: u64) -> Option<StreamId> {
        let (ms, seq) = match text.iter().position(|b| *b == b'-') {
            Some(dash) => (&text[..dash], parse_u64(&text[dash + 1..])?),
            None => (text, missing_seq),
        };
        Some(StreamId {
            ms: parse_u64(ms)?,
            seq,
        })
    }

    /// Returns the next larger id, or `None` for the largest.
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId::new(self.ms.checked_add(1)?, 0)),
        }
    }

    /// Returns the next smaller id, or `None` for the smallest.
    pub fn previous(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId::new(self.ms.checked_sub(1)?, u64::MAX)),
        }
    }
}

fn parse_u64(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    text.parse().ok().filter(|_| digits[0].is_ascii_digit())
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

#[cfg(test)]
mod tests;
