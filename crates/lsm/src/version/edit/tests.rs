//! Unit tests of `edit`.

use super::*;
use basalt_blob::{BlobMeta, FamilyShare, IndexFile};
use basalt_env::Random;
use std::sync::Arc;

fn sample(r: &Random) -> Edit {
    let key = |r: &Random| {
        (0..8 + r.below(20))
            .map(|_| r.next_u64() as u8)
            .collect::<Vec<u8>>()
    };
    let opt = |r: &Random| (!r.one_in(2)).then(|| r.next_u64() >> r.below(64));
    Edit {
        store_id: opt(r).map(u128::from),
        features: Some([r.next_u64() as u32, 0, 1]),
        next_file: opt(r).map(|n| n >> 16),
        last_seq: opt(r).map(|n| n >> 9),
        add_families: (0..r.below(3))
            .map(|i| (i as u32, format!("family {i}"), "basalt.bytewise".into()))
            .collect(),
        drop_families: (0..r.below(3)).map(|_| r.next_u64() as u32).collect(),
        add_tables: (0..r.below(4))
            .map(|_| AddTable {
                family: r.next_u64() as u32 / 2,
                level: r.below(7) as u32,
                number: r.next_u64() >> 16,
                meta: TableMeta {
                    file_id: r.next_u128(),
                    size: r.next_u64() >> 16,
                    digest: r.next_u128(),
                    entries: r.next_u64() >> 16,
                    deletes: 0,
                    smallest: key(r),
                    largest: key(r),
                    min_seq: r.next_u64(),
                    max_seq: r.next_u64() >> 9,
                    raw_key_bytes: r.next_u64() >> 16,
                    raw_value_bytes: r.next_u64() >> 16,
                    soonest_expiry_ms: u64::MAX,
                    range_deletes: 0,
                    references: References::default(),
                    shift: 0,
                },
                location: FileLocation::Local,
            })
            .collect(),
        remove_tables: (0..r.below(4)).map(|_| (1, 2, r.next_u64())).collect(),
        add_logs: (0..r.below(3))
            .map(|_| (r.next_u64() >> 16, r.next_u128()))
            .collect(),
        remove_logs: (0..r.below(3)).map(|_| r.next_u64()).collect(),
        left_logs: (0..r.below(3))
            .map(|_| (r.next_u64(), r.next_u64() >> 16))
            .collect(),
        end_logs: (0..r.below(3))
            .map(|_| (r.next_u64(), r.next_u64() >> 16))
            .collect(),
        next_family: Some(r.next_u64() as u32 / 2),
        merge_operators: (0..r.below(3))
            .map(|i| (i as u32, format!("operator {i}")))
            .collect(),
        pages: (0..r.below(3))
            .map(|i| (i as u32, r.next_u64() >> 9))
            .collect(),
        trees: (0..r.below(3))
            .map(|i| (i as u32, r.next_u64() as u32))
            .collect(),
        flush_flags: (0..r.below(3))
            .map(|_| {
                let flag = FlushFlag::of(r.next_u64() >> 2, 1 + (r.next_u64() >> 10), r.below(9));
                (flag, (0..1 + r.below(3)).map(|i| i as u32 * 7).collect())
            })
            .collect(),
        passive_from: opt(r).map(|n| n >> 9),
        wall_ms: opt(r).map(|n| n >> 16),
        add_blobs: (0..r.below(3)).map(|_| sample_blob(r)).collect(),
        remove_blobs: (0..r.below(3)).map(|_| r.next_u64()).collect(),
        mark_blobs: (0..r.below(3))
            .map(|i| (r.next_u64(), vec![7; i as usize]))
            .collect(),
        lineage: (0..r.below(3)).map(|i| (i, sample_group(r))).collect(),
        forget_names: (0..r.below(3)).map(|_| r.next_u64()).collect(),
        blob_times: (0..r.below(3))
            .map(|_| (r.next_u64(), r.next_u64() >> 16))
            .collect(),
    }
}

fn sample_blob(r: &Random) -> AddBlob {
    let families: BTreeMap<u32, FamilyShare> = (0..1 + r.below(3))
        .map(|i| {
            let share = FamilyShare {
                records: 1 + r.below(1 << 20),
                bytes: r.below(1 << 30),
            };
            (i as u32, share)
        })
        .collect();
    let index = r.one_in(2).then(|| IndexFile {
        number: r.next_u64() >> 16,
        file_id: r.next_u128(),
        size: r.below(1 << 20),
        digest: r.next_u128(),
    });
    AddBlob {
        number: r.next_u64() >> 16,
        meta: Arc::new(BlobMeta {
            file_id: r.next_u128(),
            data_end: (1 << 33) + r.below(1 << 20),
            index,
            size: r.next_u64() >> 16,
            digest: r.next_u128(),
            records: families.values().map(|s| s.records).sum(),
            families,
            min_seq: r.below(1 << 20),
            max_seq: (1 << 20) + r.below(1 << 20),
        }),
        location: FileLocation::Local,
    }
}

fn sample_group(r: &Random) -> LineageGroup {
    let targets = |r: &Random| {
        (0..1 + r.below(3))
            .map(|i| (Arc::from(&[i as u8][..]), r.next_u64() >> 16))
            .collect()
    };
    LineageGroup {
        names: (0..r.below(4)).map(|_| r.next_u64() >> 16).collect(),
        targets: (0..r.below(3) as u32).map(|f| (f, targets(r))).collect(),
    }
}

#[test]
fn edits_survive_encoding_and_mutants_never_panic() {
    for seed in basalt_sim::campaign::cases(0..300) {
        let _repeat = basalt_sim::repeat!(
            edits_survive_encoding_and_mutants_never_panic,
            "BASALT_CASE={seed}"
        );
        let r = Random::from_seed(seed);
        let mut e = sample(&r);
        // Tables with range tombstones come after those without, and tables with references
        // come last.
        let with = e.add_tables.len() - r.below(e.add_tables.len() as u64 + 1) as usize;
        for t in &mut e.add_tables[with..] {
            t.meta.range_deletes = 1 + r.below(1 << 20);
        }
        for t in e.add_tables.iter_mut().skip(with + 1) {
            t.meta.references = [(3, 1), (1 << 40, 1 + r.below(1 << 20))].into();
        }
        // Some tables without range tombstones were prepared.
        for t in e.add_tables.iter_mut().filter(|_| r.one_in(2)) {
            let most = (1..64).rev().map(|bits| 1u64 << bits);
            let shift = most
                .map(|n| n >> r.below(8))
                .find(|n| t.meta.is_shiftable(*n));
            t.meta.shift = shift.unwrap_or(0);
        }
        let bytes = e.encode();
        assert_eq!(Edit::decode(&bytes).unwrap(), e, "repeat with seed {seed}");
        for _ in 0..200 {
            let mut m = bytes.clone();
            for _ in 0..=r.below(3) {
                let i = r.below(m.len() as u64) as usize;
                match r.below(3) {
                    0 => m[i] = r.next_u64() as u8,
                    1 => m[i] ^= 1 << r.below(8),
                    _ => m.truncate(i.max(1)),
                }
            }
            let _ = Edit::decode(&m);
        }
    }
}

#[test]
fn impossible_numbers_in_an_edit_are_damage() {
    let too_large = [
        Edit {
            next_file: Some(u64::MAX),
            ..Edit::default()
        },
        Edit {
            last_seq: Some(SEQ_LIMIT),
            ..Edit::default()
        },
        Edit {
            next_family: Some(u32::MAX),
            ..Edit::default()
        },
        Edit {
            wall_ms: Some(u64::MAX),
            ..Edit::default()
        },
        Edit {
            add_logs: vec![(MAX_FILE_NUMBER, 1)],
            ..Edit::default()
        },
        Edit {
            end_logs: vec![(1, u64::MAX)],
            ..Edit::default()
        },
        Edit {
            left_logs: vec![(1, u64::MAX)],
            ..Edit::default()
        },
    ];
    for edit in too_large {
        let e = Edit::decode(&edit.encode()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{edit:?}");
    }
}

/// Regression test. A field may name a hundred thousand families, each with as many bytes as a
/// file may have. The sum of the bytes wrapped in release builds, came out small, and was
/// accepted.
#[test]
fn blob_file_bytes_beyond_64_bits_are_damage() {
    let share = basalt_blob::FamilyShare {
        records: 1,
        bytes: MAX_QUANTITY - 1,
    };
    let meta = basalt_blob::BlobMeta {
        families: (0..=1u32 << 16).map(|id| (id, share)).collect(),
        data_end: MAX_QUANTITY - 1,
        ..(*sample_blob(&Random::from_seed(1)).meta).clone()
    };
    let e = Edit {
        add_blobs: vec![AddBlob {
            number: 7,
            meta: std::sync::Arc::new(meta),
            location: FileLocation::Local,
        }],
        ..Edit::default()
    };
    let e = Edit::decode(&e.encode()).map(|_| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains("blob file 7"), "{e}");
}

#[test]
fn an_impossible_sequence_shift_is_damage() {
    let mut e = sample(&Random::from_seed(5));
    e.add_tables.truncate(1);
    let t = &mut e.add_tables[0].meta;
    (t.min_seq, t.max_seq) = (7, 9);
    for (key, seq) in [(&mut t.smallest, 7), (&mut t.largest, 9)] {
        *key = basalt_kv::key::internal_key(
            b"key",
            basalt_kv::key::pack_trailer(seq, crate::Kind::Put),
        );
    }
    t.shift = 7;
    assert_eq!(Edit::decode(&e.encode()).unwrap(), e);
    let refused = |e: &Edit, more: &[u8]| {
        let bytes = [&e.encode()[..], more].concat();
        let e = Edit::decode(&bytes).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.to_string().contains("shifted"), "{e}");
    };
    e.add_tables[0].meta.shift = 8;
    refused(&e, &[]);
    e.add_tables[0].meta.shift = 1;
    e.add_tables[0].meta.range_deletes = 1;
    refused(&e, &[]);
    e.add_tables[0].meta.range_deletes = 0;
    let number = e.add_tables[0].number;
    for (number, shift) in [(number, 2), (number + 1, 2), (number + 1, 0)] {
        let mut more = Vec::new();
        field(&mut more, 22, |b| {
            varint(b, number);
            varint(b, shift);
        });
        refused(&e, &more);
    }
}

/// This version knows no kind of location, for tables and for blob files. The position of the
/// field and the bytes behind the kind do not matter.
#[test]
fn an_unknown_location_of_a_file_is_refused_by_name() {
    let e = (0..)
        .map(|seed| sample(&Random::from_seed(seed)))
        .find(|e| !e.add_tables.is_empty() && !e.add_blobs.is_empty())
        .expect("some sample has both");
    let numbers = [e.add_tables[0].number, e.add_blobs[0].number, 77];
    for number in numbers {
        for kind in [0, 1, 2, 127, 128, u64::MAX] {
            for behind in [&[][..], b"bucket/table"] {
                let mut located = Vec::new();
                field(&mut located, 23, |b| {
                    varint(b, number);
                    varint(b, kind);
                    b.extend_from_slice(behind);
                });
                let plain = e.encode();
                for bytes in [
                    [&plain[..], &located].concat(),
                    [&located[..], &plain].concat(),
                ] {
                    let e = Edit::decode(&bytes).unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
                    let text = e.to_string();
                    assert!(text.contains(&format!("file {number} ")), "{text}");
                    assert!(text.contains("open the store with the version"), "{text}");
                }
            }
        }
    }
    let mut cut = Vec::new();
    field(&mut cut, 23, |b| varint(b, 7));
    let e = Edit::decode(&cut).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
}

#[test]
fn unknown_fields_are_skipped_when_ignorable_and_refused_when_not() {
    let mut b = Edit {
        next_file: Some(7),
        ..Edit::default()
    }
    .encode();
    field(&mut b, 99, |f| f.extend_from_slice(b"from the future"));
    assert_eq!(Edit::decode(&b).unwrap().next_file, Some(7));
    field(&mut b, 33, |f| f.extend_from_slice(b"x"));
    let e = Edit::decode(&b).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("tag 33"), "{e}");
}
