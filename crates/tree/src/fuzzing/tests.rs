//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

#[test]
fn mutants_of_tree_formats_are_read_or_refused() {
    campaigns(TARGETS, |_| 40_000, 1, 100_000);
}

#[test]
fn seeds_decode() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            assert_eq!((target.run)(&seed), Verdict::Accepted, "{}", target.name);
        }
    }
}
