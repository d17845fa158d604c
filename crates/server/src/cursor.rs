//! SCAN's cursors: numbers that stand for a position in the order of keys.
//!
//! Redis cursors are integers, and clients parse them as such, some as a floating-point number with
//! 53 bits. A position in an ordered keyspace is a whole key. So the server keeps a bounded table
//! from number to key.
//!
//! - A number is given out once in the life of a store. The catalog has the first unused number,
//!   and a server reserves numbers in blocks ([`crate::store::CURSOR_BLOCK`]). So a cursor of any
//!   age is known exactly, or not at all.
//! - A cursor in the table continues at its key. A position in the table keeps its number, so that
//!   repeated scans do not fill it.
//! - A cursor that is not in the table (16,384 younger ones replaced it, or it is from before a
//!   restart) begins at the first key again: keys come twice, as SCAN allows, and none is left out.
//!   A full scan returns every key that exists from its beginning to its end.

use crate::layout::CURSOR_END;
use crate::store::CURSOR_BLOCK;
use basalt::Bytes;
use std::collections::BTreeMap;

/// Greatest number of remembered positions.
const CAPACITY: usize = 16_384;
/// Bytes of remembered keys at most.
const CAPACITY_BYTES: usize = 16 << 20;

/// The position where a scan continues.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScanPosition {
    /// At the first key.
    Start,
    /// At the first key that is not before this one.
    At(Bytes),
    /// The position is no longer known.
    Forgotten,
}

/// The cursors of a server (see the module).
#[derive(Default)]
pub(crate) struct Cursors {
    places: BTreeMap<u64, (Bytes, u64)>,
    numbers: BTreeMap<Bytes, u64>,
    by_age: BTreeMap<u64, u64>,
    age: u64,
    bytes: usize,
    next: u64,
    end: u64,
    /// The first number of a block that is used when this one is used up.
    spare: Option<u64>,
}

impl Cursors {
    /// Returns true if no number is left.
    pub fn is_used_up(&self) -> bool {
        self.next == self.end && self.spare.is_none()
    }

    /// Returns true if another block should be reserved. A reservation takes a sync, and scans
    /// meanwhile use the remaining half.
    pub fn wants_more(&self) -> bool {
        self.spare.is_none() && self.end - self.next <= CURSOR_BLOCK / 2
    }

    /// Skips `n` numbers.
    #[cfg(test)]
    pub fn skip(&mut self, n: u64) {
        self.next += n;
    }

    /// Takes a block of numbers that were never given out. The block must have been wanted.
    pub fn give(&mut self, first: u64) {
        assert!(first > 0 && first + CURSOR_BLOCK <= CURSOR_END);
        assert!(self.wants_more(), "a block of numbers would be lost");
        self.spare = Some(first);
    }

    /// Returns the position of a client's cursor.
    pub fn place(&mut self, cursor: u64) -> ScanPosition {
        if cursor == 0 {
            return ScanPosition::Start;
        }
        match self.touch(cursor) {
            Some(key) => ScanPosition::At(key),
            None => ScanPosition::Forgotten,
        }
    }

    /// Makes a position the youngest.
    fn touch(&mut self, cursor: u64) -> Option<Bytes> {
        let (key, age) = self.places.get_mut(&cursor)?;
        self.by_age.remove(age);
        self.age += 1;
        *age = self.age;
        self.by_age.insert(self.age, cursor);
        Some(key.clone())
    }

    /// Returns the cursor that continues at `key`. Numbers must be left.
    pub fn at(&mut self, key: Bytes) -> u64 {
        if let Some(&cursor) = self.numbers.get(&key) {
            self.touch(cursor);
            return cursor;
        }
        if self.next == self.end {
            self.next = self.spare.take().expect("a number was not reserved");
            self.end = self.next + CURSOR_BLOCK;
        }
        let cursor = self.next;
        self.next += 1;
        self.age += 1;
        self.bytes += key.len();
        self.places.insert(cursor, (key.clone(), self.age));
        self.numbers.insert(key, cursor);
        self.by_age.insert(self.age, cursor);
        while self.places.len() > CAPACITY || (self.bytes > CAPACITY_BYTES && self.places.len() > 1)
        {
            let (_, oldest) = self.by_age.pop_first().expect("as many ages as places");
            let (key, _) = self.places.remove(&oldest).expect("the same cursors");
            self.numbers.remove(&key);
            self.bytes -= key.len();
        }
        cursor
    }
}

#[cfg(test)]
mod tests;
