//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

/// Mutants of a target at scale 1, by the cost of one.
fn mutants(name: &str) -> u64 {
    match name {
        "store_image" | "store_edit" | "store_batch" => 1_500,
        _ => 100_000,
    }
}

#[test]
fn mutants_of_every_format_are_read_or_refused() {
    campaigns(targets(), mutants, 1, 400_000);
}

#[test]
fn golden_inputs_decode() {
    assert_eq!(exercise(&golden().disk()), Verdict::Accepted);
}
