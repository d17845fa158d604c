//! SCAN's cursors: numbers that stand for a place in the order of keys.
//!
//! Redis cursors are integers, and clients parse them as such, some as a floating-point number with 53 bits. A place in an
//! ordered keyspace is a whole key. So the server keeps a bounded table from number to key, and a number also says by
//! itself roughly where it points, for when the table has forgotten it:
//!
//! - A cursor is 53 bits: the first 3 bytes of the last key seen, and 29 bits of a hash of that key. The same place
//!   always has the same number (a collision takes the next free one), so repeated scans do not fill the table.
//! - A cursor in the table goes on exactly behind its key.
//! - One that is not (pushed out by 16,384 younger ones, or from before a restart) goes on at the first key that begins with
//!   its 3 bytes: keys may come twice, as SCAN allows, and none is left out. A full scan returns every key
//!   that is there from its beginning to its end.
//!
//! Two different places share a number in one of 2^29 cases when one of them was pushed out; only then could a
//! scan that had rested for that long skip keys.

use std::collections::BTreeMap;

/// Places remembered at most.
const CAPACITY: usize = 16_384;
/// Bytes of remembered keys at most.
const CAPACITY_BYTES: usize = 16 << 20;
const HASH_BITS: u32 = 29;

/// Where a scan goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the first key.
    Start,
    /// Behind this key.
    Behind(Vec<u8>),
    /// At the first key not before these bytes.
    From(Vec<u8>),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cursors {
    places: BTreeMap<u64, (Vec<u8>, u64)>,
    by_age: BTreeMap<u64, u64>,
    age: u64,
    bytes: usize,
}

fn fnv(key: &[u8]) -> u64 {
    // FNV-1a, mixed: stable across restarts and builds, which the module promises.
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for b in key {
        h = (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    }
    h ^= h >> 32;
    h.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_BITS)
}

impl Cursors {
    /// The place a client's cursor stands for.
    pub fn place(&mut self, cursor: u64) -> Place {
        if cursor == 0 {
            return Place::Start;
        }
        if let Some((key, age)) = self.places.get_mut(&cursor) {
            self.age += 1;
            self.by_age.remove(age);
            *age = self.age;
            self.by_age.insert(self.age, cursor);
            return Place::Behind(key.clone());
        }
        let coarse = (cursor >> HASH_BITS) & 0xff_ffff;
        let bytes = (coarse as u32).to_be_bytes();
        // Trailing zeros stand for a shorter key as well: begin there.
        let mut from = bytes[1..].to_vec();
        while from.last() == Some(&0) {
            from.pop();
        }
        Place::From(from)
    }

    /// The cursor for going on behind `key`. Never 0.
    pub fn behind(&mut self, key: &[u8]) -> u64 {
        let mut coarse = 0u64;
        for i in 0..3 {
            coarse = coarse << 8 | u64::from(key.get(i).copied().unwrap_or(0));
        }
        let mask = (1 << HASH_BITS) - 1;
        let mut hash = fnv(key);
        let cursor = loop {
            let cursor = coarse << HASH_BITS | hash;
            let free = match self.places.get(&cursor) {
                None => true,
                Some((k, _)) => k == key,
            };
            if cursor != 0 && free {
                break cursor;
            }
            hash = (hash + 1) & mask;
        };
        self.age += 1;
        match self.places.insert(cursor, (key.to_vec(), self.age)) {
            Some((_, age)) => {
                self.by_age.remove(&age);
            }
            None => self.bytes += key.len(),
        }
        self.by_age.insert(self.age, cursor);
        while self.places.len() > CAPACITY || (self.bytes > CAPACITY_BYTES && self.places.len() > 1)
        {
            let (_, oldest) = self.by_age.pop_first().expect("as many ages as places");
            let (key, _) = self.places.remove(&oldest).expect("the same cursors");
            self.bytes -= key.len();
        }
        cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_stable_bounded_and_never_skip() {
        let mut c = Cursors::default();
        let cursor = c.behind(b"user:1");
        assert!(cursor > 0 && cursor < 1 << 53);
        assert_eq!(
            c.behind(b"user:1"),
            cursor,
            "the same place, the same number"
        );
        assert_eq!(Cursors::default().behind(b"user:1"), cursor);
        assert_eq!(c.place(0), Place::Start);
        assert_eq!(c.place(cursor), Place::Behind(b"user:1".to_vec()));
        for i in 0..3 * CAPACITY {
            c.behind(format!("k{i}").as_bytes());
        }
        assert_eq!(c.places.len(), CAPACITY);
        assert_eq!(c.by_age.len(), CAPACITY);
        // Forgotten: from the beginning of what it could have pointed to.
        assert_eq!(c.place(cursor), Place::From(b"use".to_vec()));
        let short = c.behind(b"");
        assert_ne!(short, 0);
        assert_eq!(Cursors::default().place(short), Place::From(vec![]));
        let long = vec![7u8; 65_000];
        for i in 0..1_000u32 {
            c.behind(&[&long[..], &i.to_be_bytes()].concat());
        }
        assert!(c.bytes <= CAPACITY_BYTES);
    }
}
