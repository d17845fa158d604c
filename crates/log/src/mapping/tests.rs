//! Mappings compared with the entries that they were made of, and their size.

use super::*;
use basalt_env::Random;

/// Returns entries as one log of `logs` sees them.
fn entries(random: &Random, count: u64, logs: u64) -> Vec<(u64, Location)> {
    let (mut lsn, mut file, mut end) = (random.below(1000), random.below(9), 64);
    (0..count)
        .map(|_| {
            lsn += 1 + if random.one_in(9) {
                random.below(900)
            } else {
                0
            };
            let others = random.below(2 * logs - 1) * 2200;
            let offset = match random.below(9) {
                0 => end + others,
                1 => random.next_u64() >> 24,
                _ => (end + others).next_multiple_of(8) + 40,
            };
            if random.one_in(40) {
                file = random.next_u64() >> random.below(60) >> 1;
            }
            let len = match random.one_in(4) {
                true => 300,
                false => random.below(1 << 32) as u32 >> random.below(32),
            };
            end = offset + u64::from(len);
            (lsn, Location { file, offset, len })
        })
        .collect()
}

fn check_every_entry<C: Coding + Default + Clone + PartialEq + std::fmt::Debug>() {
    for seed in 0..500 {
        let random = Random::from_seed(seed);
        let all = entries(&random, 1 + random.below(100), 1 + random.below(30));
        let mapping = Entries::<C>::of(all.iter().copied());
        assert!(mapping.iter().eq(all.iter().copied()), "seed {seed}");
        assert_eq!(mapping.count() as usize, all.len());
        assert_eq!(
            (mapping.first(), mapping.last()),
            (all[0].0, all[all.len() - 1].0)
        );
        let again = Entries::<C>::decode(mapping.bytes(), mapping.count()).unwrap();
        assert_eq!(again, mapping, "seed {seed}");
        for w in all.windows(2) {
            assert_eq!(mapping.get(w[0].0), Some(w[0].1));
            assert_eq!(mapping.get(w[0].0 + 1).is_some(), w[1].0 == w[0].0 + 1);
        }
        // A decoded mapping goes on as the first one does.
        let (mut one, mut other) = (mapping.clone(), again);
        let more = Location {
            file: 3,
            offset: 99,
            len: 7,
        };
        one.push(mapping.last() + 5, more);
        other.push(mapping.last() + 5, more);
        assert_eq!(one.bytes(), other.bytes());
    }
}

#[test]
fn every_entry_is_found_and_decoded() {
    check_every_entry::<OnDisk>();
    check_every_entry::<InMemory>();
}

/// Distances on both sides of each border between two codes.
#[test]
fn every_distance_is_encoded() {
    let borders = [
        0,
        19,
        20,
        29,
        30,
        1 << 16,
        5 << 17,
        10 << 16,
        1 << 20,
        1_i64 << 40,
    ];
    for distance in borders.iter().flat_map(|b| [b - 1, *b, b + 1]) {
        let before = Location {
            file: 1,
            offset: 80,
            len: 100,
        };
        let after = Location {
            offset: (184 + 8 * distance) as u64,
            ..before
        };
        let all = [(1, before), (2, after)];
        assert!(Mapping::of(all).iter().eq(all), "{distance}");
        assert!(Chunk::of(all).iter().eq(all), "{distance}");
        let bytes = Chunk::of(all).bytes().len() - Chunk::of([all[0]]).bytes().len();
        let on_disk = Mapping::of(all).bytes().len() - Mapping::of([all[0]]).bytes().len();
        let expected = match distance {
            20..0xa_0000 => 3,
            0..20 => 1,
            _ => on_disk,
        };
        assert_eq!(bytes, expected, "{distance}");
    }
}

#[test]
fn entries_are_small() {
    let bytes_each = |logs: u64, len: u32| {
        let mapping = Chunk::of((0..64).map(|i| {
            let offset = 64 + 40 + i * logs * u64::from(len + 40).next_multiple_of(8);
            (
                1000 + i,
                Location {
                    file: 1,
                    offset,
                    len: len + (i % 7) as u32,
                },
            )
        }));
        mapping.bytes().len() as f64 / 64.0
    };
    assert!(bytes_each(1, 1000) < 5.1, "{}", bytes_each(1, 1000));
    assert!(bytes_each(1000, 2000) < 5.1, "{}", bytes_each(1000, 2000));
    let contiguous = Mapping::of((0..64).map(|i| {
        (
            i,
            Location {
                file: 1,
                offset: 104 + i * 300,
                len: 300,
            },
        )
    }));
    assert!(contiguous.bytes().len() < 72);
}

#[test]
fn bytes_that_are_no_mapping_are_refused() {
    let mut accepted = 0;
    for seed in 0..5000 {
        let random = Random::from_seed(seed);
        let all = entries(&random, 1 + random.below(60), 5);
        let mut bytes = Mapping::of(all.iter().copied()).bytes().to_vec();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.extend((0..9).map(|_| random.next_u64() as u8)),
            _ => bytes.truncate(at),
        }
        let count = all.len() as u32 + random.below(2) as u32;
        if let Some(mapping) = Mapping::decode(&bytes, count) {
            assert_eq!(mapping.iter().count(), count as usize);
            accepted += 1;
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
    assert_eq!(Mapping::decode(&[], 0), None, "no mapping is empty");
}

#[test]
fn records_behind_all_offsets_are_refused() {
    let limit = i64::MAX as u64 & !7;
    for (offset, is_one) in [(limit - 104, true), (limit - 88, false), (limit + 8, false)] {
        let location = Location {
            file: 1,
            offset,
            len: 100,
        };
        let mapping = Mapping::of([(5, location)]);
        assert_eq!(
            Mapping::decode(mapping.bytes(), 1).is_some(),
            is_one,
            "{offset}"
        );
    }
}

/// A damaged checkpoint may have offsets and numbers of files near the largest ones.
#[test]
fn a_mapping_with_the_largest_numbers_becomes_a_chunk() {
    let at = |file, offset, len| Location { file, offset, len };
    let largest = i64::MAX as u64;
    for all in [
        [(1, at(1, largest - 111, 111)), (2, at(1, 1 << 62, 8))],
        [(1, at(largest, 8, 8)), (2, at(largest + 9, 8, 8))],
    ] {
        let mapping = Mapping::of(all);
        let decoded = Mapping::decode(mapping.bytes(), mapping.count()).unwrap();
        assert!(Chunk::of(decoded.iter()).iter().eq(all), "{all:?}");
    }
}
