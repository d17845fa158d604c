//! Tests marks against a plain set, and that encoded marks decode to the same.

use super::*;
use basalt_env::Random;
use std::collections::BTreeSet;

fn hash(n: u32) -> u64 {
    u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the families of a file with `records` records.
fn file(records: u32) -> BTreeMap<u32, FamilyShare> {
    let mut all = Garbage::none(records);
    assert!((0..records).all(|n| all.mark(n, n % 3, 100 + u64::from(n), hash(n))));
    all.families().clone()
}

fn marked(records: u32, share: u64, seed: u64) -> (Garbage, BTreeSet<u32>) {
    let random = Random::from_seed(seed);
    let (mut garbage, mut set) = (Garbage::none(records), BTreeSet::new());
    for _ in 0..u64::from(records) * share / 100 {
        // Marks come in clusters, as a deleted range of keys makes them.
        let from = random.below(u64::from(records)) as u32;
        for n in from..records.min(from + 1 + random.below(20) as u32) {
            assert_eq!(
                garbage.mark(n, n % 3, 100 + u64::from(n), hash(n)),
                set.insert(n)
            );
        }
    }
    (garbage, set)
}

#[test]
fn garbage_marks_are_counted_once_and_survive_encoding() {
    for records in [0, 1, 63, 64, 65, 1000, 4100] {
        for share in [0, 1, 10, 60] {
            let (garbage, set) = marked(records, share, u64::from(records) + share);
            assert_eq!(garbage.records(), set.len() as u64);
            let bytes: u64 = set.iter().map(|n| 100 + u64::from(*n)).sum();
            assert_eq!(garbage.bytes(), bytes);
            assert!((0..records + 70).all(|n| garbage.has(n) == set.contains(&n)));
            let sum = set.iter().fold(0u64, |sum, n| sum.wrapping_add(hash(*n)));
            assert_eq!(garbage.hash_sum(), sum);
            let runs: Vec<u32> = garbage.runs().into_iter().flatten().collect();
            assert!(runs.iter().eq(&set));
            assert_eq!(garbage.is_all(), set.len() == records as usize);
            let encoded = garbage.encode();
            assert!(encoded.len() <= (records as usize).div_ceil(8) + 72);
            assert_eq!(Garbage::decode(&encoded, &file(records)), Some(garbage));
            assert_eq!(Garbage::decode(&encoded, &file(records + 1)), None);
        }
    }
}

/// Regression test. Two compactions dropped the same record, and it was counted twice: the file
/// counted as dead while a live record was in it.
#[test]
fn a_record_is_marked_as_garbage_only_once() {
    let (mut garbage, set) = marked(1000, 10, 1);
    assert!(!set.is_empty());
    let before = garbage.clone();
    let all = file(1000);
    let twice = garbage.absorb(&before, &all);
    assert!(twice.is_err(), "all of it for the second time");
    let mut one = Garbage::none(1000);
    let first = *set.first().expect("not empty");
    assert!(one.mark(first, first % 3, 1, hash(first)));
    let twice = garbage.absorb(&one, &all);
    assert!(twice.is_err(), "one record for the second time");
    let foreign = garbage.absorb(&Garbage::none(999), &all);
    assert!(foreign.is_err(), "of another file");
    assert_eq!(garbage, before, "a refusal changes nothing");
    let mut other = Garbage::none(1000);
    let next = (0..1000).find(|n| !set.contains(n)).expect("not all");
    assert!(other.mark(next, next % 3, 1, hash(next)));
    garbage.absorb(&other, &all).unwrap();
    assert_eq!(garbage.records(), before.records() + 1);
}

#[test]
fn a_file_of_garbage_only_is_encoded_in_a_few_bytes() {
    let mut garbage = Garbage::none(60_000);
    assert!((0..60_000).all(|n| garbage.mark(n, 0, 1000, hash(n))));
    assert!(garbage.is_all());
    assert!(garbage.encode().len() < 32);
    assert!(!garbage.mark(5, 0, 1000, hash(5)), "marked before");
    assert_eq!(garbage.bytes(), 60_000_000);
}

#[test]
fn damaged_garbage_bytes_are_refused_or_encode_to_themselves() {
    let (garbage, _) = marked(300, 10, 5);
    let sound = garbage.encode();
    let file = file(300);
    let random = Random::from_seed(6);
    let mut refused = 0;
    for _ in 0..3000 {
        let mut bytes = sound.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        if random.one_in(8) {
            bytes.truncate(at);
        }
        match Garbage::decode(&bytes, &file) {
            None => refused += 1,
            Some(found) => assert_eq!(found.encode(), bytes),
        }
    }
    assert!(refused > 1000, "{refused}");
}
