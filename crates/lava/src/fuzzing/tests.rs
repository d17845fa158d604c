//! Unit tests of `fuzzing`.

use super::*;
use basalt_sim::mutate::campaigns;

#[test]
fn mutants_of_every_format_are_read_or_refused() {
    let mutants = |name: &str| match name {
        "lava_superblock" | "lava_records" => 50_000,
        _ => 10_000,
    };
    campaigns(targets(), mutants, 1, 100_000);
}

#[test]
fn the_sample_image_passes_the_check() {
    let left = sample().device.cut(DeviceCut::All);
    assert_eq!(exercise(&left, true), Verdict::Accepted);
    for target in targets() {
        for seed in (target.seeds)() {
            // A transaction that is appended a second time is refused.
            let again = target.name == "lava_transaction";
            let verdict = (target.run)(&seed);
            assert!(again || verdict == Verdict::Accepted, "{}", target.name);
        }
    }
}

#[test]
fn journal_record_tags_never_change() {
    let mut bytes = Vec::new();
    JournalRecord::Append { ino: 3 }.encode(&mut bytes);
    assert_eq!(records(&bytes), Verdict::Accepted);
    assert_eq!(records(&bytes[..1]), Verdict::Refused);
}
