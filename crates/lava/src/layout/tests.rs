//! Unit tests of `layout`.

use super::*;

fn some() -> Superblock {
    Superblock {
        uuid: *b"0123456789abcdef",
        generation: 7,
        unit: 512,
        blocks: 5000,
        journal_blocks: 16,
        checkpoint_bytes: 10_000,
        checkpoint_seq: 3,
        checkpoint: vec![Run { start: 300, len: 2 }, Run { start: 400, len: 1 }],
        clean_seq: 9,
        sparse: true,
        no_discard: true,
        unknown: 0,
    }
}

#[test]
fn a_superblock_round_trips_and_any_flipped_bit_is_refused() {
    let s = some();
    let bytes = s.encode(SUPERBLOCKS[0]);
    assert_eq!(Superblock::decode(&bytes, SUPERBLOCKS[0]), Ok(s));
    let elsewhere = Superblock::decode(&bytes, SUPERBLOCKS[1]);
    assert_eq!(
        elsewhere,
        Err(SuperblockError::Damaged("its checksum is wrong"))
    );
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(
            Superblock::decode(&flipped, SUPERBLOCKS[0]).is_err(),
            "bit {bit}"
        );
    }
    let short = Superblock::decode(&bytes[..4000], SUPERBLOCKS[0]);
    assert_eq!(short, Err(SuperblockError::Foreign));
}

#[test]
fn newer_versions_and_newer_features_are_distinguished() {
    let with = |at: usize, value: u32| {
        let s = some();
        let mut b = s.encode(SUPERBLOCKS[0]);
        b[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let sum = checksum(&s.uuid, SUPERBLOCKS[0], &b[12..]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        Superblock::decode(&b, SUPERBLOCKS[0])
    };
    assert_eq!(with(12, 2), Err(SuperblockError::Version(2)));
    assert!(with(16, 8).is_ok(), "compatible");
    assert_eq!(with(20, 8).map(|s| s.unknown), Ok(8), "to be read");
    assert_eq!(with(24, 8), Err(SuperblockError::Features(8)));
    for (at, value) in [
        (28, 513),
        (56, 3),
        (64, 2),
        (64, 100_000),
        (68, 241),
        (104, 0),
    ] {
        assert!(
            matches!(with(at, value), Err(SuperblockError::Damaged(_))),
            "{value} at {at}"
        );
    }
}
