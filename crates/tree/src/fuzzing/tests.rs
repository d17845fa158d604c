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

/// A record that uses a feature without its bit would be damage for a version without the feature.
#[test]
fn records_begin_with_all_features_that_they_use() {
    let transaction = transaction().encode();
    let checkpoint = joined(&checkpoint());
    let is_read = |is_checkpoint: bool, features: u8| {
        let mut bytes = [&transaction, &checkpoint][usize::from(is_checkpoint)].clone();
        bytes[0] = features;
        match is_checkpoint {
            true => SystemCheckpoint::decode(&bytes).is_some(),
            false => SystemTx::decode(&bytes).is_some(),
        }
    };
    // Bit 0: index deltas. Bit 1: extents without ranges.
    assert_eq!((transaction[0], checkpoint[0]), (1, 3));
    let read = |is_checkpoint: bool| (0..8).filter(|n| is_read(is_checkpoint, *n)).collect();
    let (of_transaction, of_checkpoint): (Vec<u8>, Vec<u8>) = (read(false), read(true));
    assert_eq!(of_transaction, [1, 3]);
    assert_eq!(of_checkpoint, [3]);
    assert_eq!(SystemTx::default().encode()[0], 0);
    let check = |features: u8| features::check(&[features], Path::new("pages/0"));
    (0..4).for_each(|known| check(known).unwrap());
    let e = check(0x2b).unwrap_err();
    assert_eq!(e.kind(), basalt_fs::ErrorKind::Unsupported);
    assert!(e.to_string().contains("features 0x28 "), "{e}");
}
