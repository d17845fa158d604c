//! Tests of the module `lsn_set`.

use super::LsnSet;
use basalt::env::Random;
use std::collections::BTreeSet;

/// Random changes and questions give the same answers as a plain set of numbers.
#[test]
fn answers_equal_those_of_a_plain_set() {
    for seed in 0..200 {
        let random = Random::from_seed(seed);
        let (mut set, mut plain) = (LsnSet::default(), BTreeSet::new());
        for _ in 0..60 {
            let (a, b) = (random.below(60), random.below(8));
            match random.below(8) {
                0 => {
                    set.remove_below(a / 4);
                    plain.retain(|n| *n >= a / 4);
                }
                1..=3 => {
                    set.insert_run(a..=a + b);
                    plain.extend(a..=a + b);
                }
                _ => {
                    set.insert(a);
                    plain.insert(a);
                }
            }
            assert_eq!(set.count(), plain.len() as u64);
            let starts = plain
                .iter()
                .filter(|n| **n == 0 || !plain.contains(&(**n - 1)));
            assert_eq!(set.runs(), starts.count(), "runs are maximal");
            let (from, to) = (random.below(70), random.below(70));
            assert_eq!(set.contains(from), plain.contains(&from));
            let between = plain.iter().filter(|n| (from..to).contains(*n)).count();
            assert_eq!(set.count_in(from..to), between as u64);
            let mut absent = (from..).filter(|n| !plain.contains(n));
            assert_eq!(set.next_absent(from), absent.clone().next().unwrap());
            assert_eq!(set.skip_absent(from, b), absent.nth(b as usize).unwrap());
        }
    }
}
