//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

/// Mutants of a target at scale 1, by what one costs.
fn mutants(name: &str) -> u64 {
    match name {
        "table" | "table_block_replaced" => 10_000,
        "data_block" => 50_000,
        _ => 100_000,
    }
}

#[test]
fn mutants_of_tables_are_read_or_refused() {
    campaigns(TARGETS, mutants, 1, 700_000);
}

#[test]
fn golden_tables_verify() {
    let target = TARGETS.iter().find(|t| t.name == "table").expect("there");
    for seed in (target.seeds)() {
        let verdict = (target.run)(&seed);
        assert_eq!(verdict, Verdict::Accepted, "{} bytes", seed.len());
    }
}
