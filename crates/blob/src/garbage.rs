//! Garbage of a blob file: the records that compactions have dropped the references to, and their
//! bytes by family.
//!
//! The marks are exact: the edit that removes the last reference to a record marks it, once, and no
//! record is ever unmarked. The manifest keeps the marks as a list of runs, or as one bit a record
//! where that is shorter.

use super::FamilyShare;
use basalt_kv::encoding::{get_varint, put_varint};
use std::collections::BTreeMap;
use std::ops::Range;

/// A record that lost its last reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// The number of the blob file that had the record when it was looked up.
    pub file: u64,
    /// The record's rank among the records of that file, from 0.
    pub ordinal: u32,
    /// The family's id.
    pub family: u32,
    /// Bytes of the record, header and key included.
    pub bytes: u64,
    /// The record's hash in that file, see [`super::Name::hash`].
    pub hash: u64,
}

/// The marked records of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Garbage {
    records: u32,
    bits: Vec<u64>,
    families: BTreeMap<u32, FamilyShare>,
    /// Sum of the marked records' hashes, modulo 2^64.
    hash_sum: u64,
}

/// Tags of the two encodings of marks.
const BITS: u8 = 0;
const RUNS: u8 = 1;

impl Garbage {
    /// Returns the garbage of a file with `records` records, none of which is marked.
    pub fn none(records: u32) -> Garbage {
        Garbage {
            records,
            bits: vec![0; (records as usize).div_ceil(64)],
            families: BTreeMap::new(),
            hash_sum: 0,
        }
    }

    /// Marks a record of a family, with its bytes (header and key included) and its hash
    /// ([`super::Name::hash`]).
    ///
    /// Returns false and changes nothing if the record was marked before. Two references to one
    /// record break a rule of the tree, and the caller decides about it. Panics if the file has no
    /// such record.
    #[must_use = "a record that is marked twice had two references"]
    pub fn mark(&mut self, ordinal: u32, family: u32, bytes: u64, hash: u64) -> bool {
        assert!(
            ordinal < self.records,
            "record {ordinal} of {}",
            self.records
        );
        let (word, bit) = (ordinal as usize / 64, 1 << (ordinal % 64));
        if self.bits[word] & bit != 0 {
            return false;
        }
        self.bits[word] |= bit;
        let share = self.families.entry(family).or_default();
        share.records += 1;
        share.bytes += bytes;
        self.hash_sum = self.hash_sum.wrapping_add(hash);
        true
    }

    /// Adds the marks of a later edit. `file` has the number of records and bytes of each family in
    /// the file.
    ///
    /// An error says why the marks do not fit the file or the marks before them; then nothing is
    /// changed. Both sides come from disk, so the sums are checked here, where they are made. Each
    /// edit alone may be within a family's records while their sum is not.
    pub fn absorb(
        &mut self,
        more: &Garbage,
        file: &BTreeMap<u32, FamilyShare>,
    ) -> Result<(), &'static str> {
        if self.records != more.records {
            return Err("the marks are for another number of records than the file has");
        }
        if !self.bits.iter().zip(&more.bits).all(|(a, b)| a & b == 0) {
            return Err("some of the records are marked already");
        }
        let mut families = self.families.clone();
        for (id, share) in &more.families {
            let own = families.entry(*id).or_default();
            let all = file.get(id).copied().unwrap_or_default();
            let records = own.records.checked_add(share.records);
            let bytes = own.bytes.checked_add(share.bytes);
            match (records, bytes) {
                (Some(records), Some(bytes)) if records <= all.records && bytes <= all.bytes => {
                    *own = FamilyShare { records, bytes };
                }
                _ => {
                    return Err(
                        "a family would have more garbage than it has records or bytes in the file",
                    );
                }
            }
        }
        self.families = families;
        (self.bits.iter_mut().zip(&more.bits)).for_each(|(a, b)| *a |= b);
        self.hash_sum = self.hash_sum.wrapping_add(more.hash_sum);
        Ok(())
    }

    /// Returns true for a marked record.
    #[inline]
    pub fn has(&self, ordinal: u32) -> bool {
        self.bits
            .get(ordinal as usize / 64)
            .is_some_and(|w| w >> (ordinal % 64) & 1 == 1)
    }

    /// Returns the marked records and bytes of each family.
    pub fn families(&self) -> &BTreeMap<u32, FamilyShare> {
        &self.families
    }

    /// Returns the number of marked records.
    pub fn records(&self) -> u64 {
        self.families.values().map(|s| s.records).sum()
    }

    /// Returns the bytes of the marked records.
    pub fn bytes(&self) -> u64 {
        self.families.values().map(|s| s.bytes).sum()
    }

    /// Returns the sum of the hashes of marked records, modulo 2^64. This sum and the sum over the
    /// records that a garbage collection copies must add up to the file's own
    /// ([`super::BlobReader::hash_sum`]). Then no mark hit a wrong record.
    pub fn hash_sum(&self) -> u64 {
        self.hash_sum
    }

    /// Returns true if no record is live.
    pub fn is_all(&self) -> bool {
        self.records() == u64::from(self.records)
    }

    /// Returns the runs of marked records, ascending.
    pub fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (i, word) in self.bits.iter().enumerate().filter(|(_, w)| **w != 0) {
            let first = i as u32 * 64;
            for n in (first..first + 64).filter(|n| word >> (n % 64) & 1 == 1) {
                match runs.last_mut() {
                    Some(last) if last.end == n => last.end += 1,
                    _ => runs.push(n..n + 1),
                }
            }
        }
        runs
    }

    /// Encodes the marks for the manifest.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.hash_sum.to_le_bytes().to_vec();
        put_varint(&mut out, u64::from(self.records));
        put_varint(&mut out, self.families.len() as u64);
        for (id, share) in &self.families {
            put_varint(&mut out, u64::from(*id));
            put_varint(&mut out, share.records);
            put_varint(&mut out, share.bytes);
        }
        let mut runs = Vec::new();
        let mut at = 0;
        for run in self.runs() {
            put_varint(&mut runs, u64::from(run.start - at));
            put_varint(&mut runs, u64::from(run.end - run.start));
            at = run.end;
        }
        let whole = (self.records as usize).div_ceil(8);
        if runs.len() < whole {
            out.push(RUNS);
            out.extend_from_slice(&runs);
        } else {
            out.push(BITS);
            let bytes = self.bits.iter().flat_map(|w| w.to_le_bytes());
            out.extend(bytes.take(whole));
        }
        out
    }

    /// Decodes marks. Returns `None` for bytes that [`Garbage::encode`] does not write for a file
    /// with these families.
    pub fn decode(bytes: &[u8], file: &BTreeMap<u32, FamilyShare>) -> Option<Garbage> {
        let records: u64 = file.values().map(|s| s.records).sum();
        let records = u32::try_from(records).ok()?;
        let hash_sum = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let mut at = 8;
        if get_varint(bytes, &mut at, 32)? != u64::from(records) {
            return None;
        }
        let mut found = Garbage::none(records);
        found.hash_sum = hash_sum;
        for _ in 0..get_varint(bytes, &mut at, 32)? {
            let id = get_varint(bytes, &mut at, 32)? as u32;
            let share = FamilyShare {
                records: get_varint(bytes, &mut at, 63)?,
                bytes: get_varint(bytes, &mut at, 63)?,
            };
            let last = found.families.last_key_value();
            let all = file.get(&id)?;
            if last.is_some_and(|(last, _)| *last >= id)
                || share.records == 0
                || share.records > all.records
                || share.bytes > all.bytes
            {
                return None;
            }
            found.families.insert(id, share);
        }
        let (kind, rest) = bytes.get(at..)?.split_first()?;
        let marked = match *kind {
            RUNS => found.take_runs(rest)?,
            BITS => found.take_bits(rest)?,
            _ => return None,
        };
        (found.records() == marked && found.encode() == bytes).then_some(found)
    }

    fn take_runs(&mut self, bytes: &[u8]) -> Option<u64> {
        let (mut at, mut next, mut marked) = (0, 0u64, 0);
        while at < bytes.len() {
            let start = next + get_varint(bytes, &mut at, 32)?;
            let end = start + get_varint(bytes, &mut at, 32)?;
            if end > u64::from(self.records) {
                return None;
            }
            for n in start..end {
                self.bits[n as usize / 64] |= 1 << (n % 64);
            }
            marked += end - start;
            next = end;
        }
        Some(marked)
    }

    fn take_bits(&mut self, bytes: &[u8]) -> Option<u64> {
        if bytes.len() != (self.records as usize).div_ceil(8) {
            return None;
        }
        for (word, of) in self.bits.iter_mut().zip(bytes.chunks(8)) {
            let mut le = [0; 8];
            le[..of.len()].copy_from_slice(of);
            *word = u64::from_le_bytes(le);
        }
        let past = self.records % 64;
        let stray = past != 0 && self.bits.last().is_some_and(|w| w >> past != 0);
        let ones = self.bits.iter().map(|w| u64::from(w.count_ones())).sum();
        (!stray).then_some(ones)
    }
}

#[cfg(test)]
mod tests;
