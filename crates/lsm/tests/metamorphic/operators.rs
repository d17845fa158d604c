//! The operators and extractors that a user gives a family: merge operators, one of which is the
//! user's own, and extractors of key prefixes.
//!
//! An operator belongs to the history, because it decides answers. Whether a built-in one is named
//! when a store is opened, and which extractor a family has, belongs to the options. The ranges of
//! keys with a prefix are computed anew here.

use crate::operations::FAMILIES;
use crate::settings::EXPIRABLE;
use basalt_kv::merge::{AddU64, Append, Max};
use basalt_lsm::{MergeOperator, MergeRefusal, PrefixExtractor, Prefixes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of times that the user's operator computed a value, and that it made one operand of many.
pub static FULL: AtomicU64 = AtomicU64::new(0);
pub static PARTIAL: AtomicU64 = AtomicU64::new(0);

/// The operand that is accepted, and refused when it is merged.
pub const POISON: &[u8] = b"!";

/// A merge operator whose operands are functions x -> ax + b modulo 2^64: they do not commute, and
/// one stands for several. Values are numbers, and other bytes count as the number they hash to. A
/// value that every reader takes for absent counts as none.
struct Affine;

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// Returns an operand of `len` bytes, or of as many as it needs if that is more.
pub fn affine(a: u64, b: u64, len: usize) -> Vec<u8> {
    let mut operand = [&b"+"[..], &a.to_le_bytes(), &b.to_le_bytes()].concat();
    operand.resize(len.max(operand.len()), b'.');
    operand
}

fn parts(operand: &[u8]) -> Option<(u64, u64)> {
    (operand != POISON).then(|| (word(&operand[1..]), word(&operand[9..])))
}

impl MergeOperator for Affine {
    fn name(&self) -> &str {
        "tests.affine"
    }
    fn check_operand(&self, operand: &[u8]) -> Result<(), MergeRefusal> {
        if operand == POISON || (operand.len() >= 17 && operand[0] == b'+') {
            Ok(())
        } else {
            Err(MergeRefusal::new("no function"))
        }
    }
    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal> {
        FULL.fetch_add(1, Relaxed);
        let mut x = match existing {
            None => 0,
            Some(value) if value.first() == Some(&EXPIRABLE) => 0,
            Some(value) if value.len() == 9 && value[0] == b'=' => word(&value[1..]),
            Some(value) => (value.iter()).fold(1, |sum, b| crate::rng::mix(sum ^ u64::from(*b))),
        };
        for operand in operands {
            let (a, b) = parts(operand).ok_or_else(|| MergeRefusal::new("poison"))?;
            x = x.wrapping_mul(a).wrapping_add(b);
        }
        Ok([&b"="[..], &x.to_le_bytes()].concat())
    }
    fn partial_merge(&self, _key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        // Some operands stay by themselves: an operator need not have an answer.
        if parts(operands[0])?.1 % 5 == 0 {
            return None;
        }
        let (mut a, mut b) = (1u64, 0u64);
        for operand in operands {
            let (c, d) = parts(operand)?;
            (a, b) = (a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d));
        }
        PARTIAL.fetch_add(1, Relaxed);
        Some(affine(a, b, 0))
    }
}

/// Returns the operator of a family of [`FAMILIES`].
pub fn operator(family: usize) -> Arc<dyn MergeOperator> {
    match family {
        0 => Arc::new(Affine),
        1 => Arc::new(Append::new(",")),
        2 => Arc::new(Max),
        _ => Arc::new(AddU64),
    }
}

/// An extractor whose prefix goes up to the first digit; keys without one have no prefix.
struct Word;

impl PrefixExtractor for Word {
    fn name(&self) -> &str {
        "tests.word"
    }
    fn prefix_len(&self, key: &[u8]) -> Option<usize> {
        key.iter().position(u8::is_ascii_digit)
    }
}

/// Returns one of the extractors that options draw from; the first ones belong to the families of
/// the same number.
pub fn extractor(n: u64) -> Prefixes {
    match n {
        0 => Prefixes::Fixed(6),
        1 => Prefixes::Delimited(b'/'),
        2 => Prefixes::Capped(6),
        3 => Prefixes::Custom(Arc::new(Word)),
        4 => Prefixes::Fixed(1),
        _ => Prefixes::Capped(3),
    }
}

/// Returns the extractor for walks over a prefix of this family.
pub fn own_extractor(family: usize) -> Prefixes {
    assert!(family < FAMILIES.len());
    extractor(family as u64)
}

/// Returns the first key behind all keys with this prefix.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let at = prefix.iter().rposition(|b| *b < 0xff)?;
    let mut end = prefix[..=at].to_vec();
    end[at] += 1;
    Some(end)
}

/// Returns the range of the keys that share this key's prefix under the family's own extractor: the
/// first key, and the first behind. Returns `None` if the key has no prefix.
pub fn region(family: usize, key: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let starting = |prefix: &[u8]| (prefix.to_vec(), behind(prefix));
    match family {
        0 => key.get(..6).map(starting),
        1 => {
            let slash = key.iter().position(|b| *b == b'/')?;
            Some(starting(&key[..=slash]))
        }
        2 if key.len() < 6 => Some((key.to_vec(), Some([key, &[0]].concat()))),
        2 => Some(starting(&key[..6])),
        _ => {
            let word = &key[..key.iter().position(u8::is_ascii_digit)?];
            Some(([word, b"0"].concat(), Some([word, b":"].concat())))
        }
    }
}
