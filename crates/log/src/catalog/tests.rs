//! Edits are read as they were written, and bytes that are no edit are refused.

use super::*;
use basalt_env::Random;

fn all_changes() -> Vec<Change> {
    let file = PhysicalFile {
        file_id: 7 << 100,
        role: Role::Data,
        end: None,
    };
    let end = |offset, reverse_index| FileEnd {
        offset,
        reverse_index,
    };
    vec![
        Change::Store(99),
        Change::NextFile(12),
        Change::Add(3, file),
        Change::Add(
            4,
            PhysicalFile {
                role: Role::Moved,
                end: Some(end(0, None)),
                ..file
            },
        ),
        Change::Add(
            5,
            PhysicalFile {
                role: Role::Meta,
                ..file
            },
        ),
        Change::End(3, end(70_000, Some(60_000))),
        Change::Remove(4),
        Change::Checkpoint(CheckpointFile {
            number: 9,
            file_id: 1 << 90,
            end: 4096,
        }),
    ]
}

#[test]
fn edits_are_read_as_they_were_written() {
    let bytes = encode(&all_changes());
    assert_eq!(decode(&bytes).unwrap(), all_changes());
    let mut catalog = Catalog::default();
    catalog.apply(&all_changes()).unwrap();
    assert_eq!((catalog.store_id, catalog.next_file), (99, 12));
    assert_eq!(catalog.files.len(), 2);
    let mut again = Catalog::default();
    again
        .apply(&decode(&encode(&catalog.changes())).unwrap())
        .unwrap();
    assert_eq!(again, catalog);
    for wrong in [
        Change::Add(3, catalog.files[&3]),
        Change::End(
            3,
            FileEnd {
                offset: 5,
                reverse_index: None,
            },
        ),
        Change::Remove(77),
    ] {
        let e = catalog.apply(&[wrong]).unwrap_err();
        assert!(e.is_corruption(), "{e}");
    }
}

#[test]
fn unknown_changes_are_refused_or_ignored_by_their_tag() {
    let with_tag = |tag: u64| {
        let mut bytes = encode(&[Change::NextFile(5)]);
        put_varint(&mut bytes, tag);
        put_varint(&mut bytes, 2);
        bytes.extend_from_slice(b"xy");
        decode(&bytes)
    };
    assert_eq!(with_tag(129).unwrap(), [Change::NextFile(5)]);
    let e = with_tag(100).unwrap_err();
    assert_eq!(e.kind(), basalt_fs::ErrorKind::Unsupported);
}

#[test]
fn bytes_that_are_no_edit_do_no_harm() {
    let good = encode(&all_changes());
    for seed in 0..3000 {
        let random = Random::from_seed(seed);
        let mut bytes = good.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = 0xff,
            _ => bytes.truncate(at),
        }
        if let Ok(changes) = decode(&bytes) {
            let _ = Catalog::default().apply(&changes);
        }
    }
}
