//! Unit tests of `file_map`.

use super::*;
use basalt_env::Random;
use std::collections::BTreeMap;

/// Checks that chunks are as their comments say, and not many more than the entries need.
fn check(map: &FileMap<u64>) {
    let mut before = None;
    for chunk in &map.chunks {
        assert!((1..=MOST).contains(&chunk.entries.len()));
        for (at, (number, _)) in chunk.entries.iter().enumerate() {
            assert!(chunk.first <= *number && before < Some(*number));
            assert!(at > 0 || before < Some(chunk.first));
            before = Some(*number);
        }
    }
    for pair in map.chunks.windows(2) {
        let (a, b) = (pair[0].entries.len(), pair[1].entries.len());
        assert!(a >= LEAST || b >= LEAST, "{a} and {b} are one chunk");
    }
}

#[test]
fn a_file_map_is_a_sorted_map_with_independent_clones() {
    for seed in 0..8 {
        let r = Random::from_seed(seed);
        let (mut map, mut model) = (FileMap::default(), BTreeMap::new());
        let mut kept: Vec<(FileMap<u64>, BTreeMap<u64, u64>)> = Vec::new();
        for round in 0..6000 {
            // The map grows at its end, is changed everywhere, and shrinks to nothing.
            let number = match round < 2000 {
                true => round + r.below(3) * 100,
                false => r.below(2500),
            };
            let shrinks = round > 4000;
            match r.below(if shrinks { 12 } else { 4 }) {
                0 => assert_eq!(map.insert(number, round), model.insert(number, round)),
                1 if !shrinks => {
                    assert_eq!(map.insert(number, round), model.insert(number, round));
                }
                2 => {
                    assert_eq!(map.get_mut(&number), model.get_mut(&number));
                    if let (Some(a), Some(b)) = (map.get_mut(&number), model.get_mut(&number)) {
                        (*a, *b) = (round, round);
                    }
                }
                _ => {
                    // Existing numbers are chosen more often than random ones.
                    let number = model.range(number..).next().map_or(number, |(n, _)| *n);
                    assert_eq!(map.remove(&number), model.remove(&number), "seed {seed}");
                }
            }
            assert_eq!(map.get(&number), model.get(&number), "seed {seed}");
            assert_eq!(map.last_key_value(), model.last_key_value(), "seed {seed}");
            assert_eq!(map.len(), model.len());
            if round % 500 == 0 {
                check(&map);
                kept.push((map.clone(), model.clone()));
            }
        }
        check(&map);
        kept.push((map, model));
        for (map, model) in kept {
            assert!(map.iter().eq(model.iter()), "seed {seed}");
            assert_eq!(map.is_empty(), model.is_empty());
            assert_eq!(map, model.into_iter().collect(), "seed {seed}");
        }
    }
}

#[test]
fn a_change_copies_only_nearby_entries() {
    let mut map: FileMap<u64> = (0..100_000).map(|n| (n * 3, n)).collect();
    assert!(map.chunks.len() <= 100_000 / 100, "{}", map.chunks.len());
    for change in [
        |m: &mut FileMap<u64>| m.insert(150_001, 1),
        |m: &mut FileMap<u64>| m.remove(&150_000),
        |m: &mut FileMap<u64>| m.get_mut(&150_003).copied(),
    ] {
        let kept = map.clone();
        COPIED.set(0);
        change(&mut map);
        assert!((1..=2 * MOST).contains(&COPIED.get()), "{}", COPIED.get());
        drop(kept);
    }
    COPIED.set(0);
    map.insert(7, 7);
    assert_eq!(COPIED.get(), 0, "no other copy shares the chunk");
}
