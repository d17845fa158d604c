//! Tests of the module `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

#[test]
fn mutants_of_every_format_are_read_or_refused() {
    campaigns(TARGETS, |_| 100_000, 1_001, 500_000);
}
