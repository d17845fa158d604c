//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

#[test]
fn mutants_of_records_are_read_or_refused() {
    let mutants = |name: &str| match name {
        "record_file" => 50_000,
        _ => 100_000,
    };
    campaigns(TARGETS, mutants, 1, 250_000);
}

#[test]
fn golden_records_decode() {
    let target = TARGETS.iter().find(|t| t.name == "record_file");
    let target = target.expect("there");
    for seed in (target.seeds)() {
        let verdict = (target.run)(&seed);
        assert_eq!(verdict, Verdict::Accepted, "{} bytes", seed.len());
    }
}
