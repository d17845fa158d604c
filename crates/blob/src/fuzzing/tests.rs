//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

#[test]
fn mutants_of_blob_files_are_read_or_refused() {
    campaigns(TARGETS, |_| 100_000, 1, 450_000);
}
