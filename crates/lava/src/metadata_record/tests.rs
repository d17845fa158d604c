//! Unit tests of `metadata_record`.

use super::*;

fn some() -> Vec<JournalRecord> {
    let name = |s: &str| s.to_string();
    let run = |start, len| Run { start, len };
    vec![
        JournalRecord::Inode {
            ino: 7,
            kind: InodeKind::Log,
            len: u64::MAX,
        },
        JournalRecord::Link {
            dir: 0,
            name: name("a"),
            ino: u32::MAX,
        },
        JournalRecord::Unlink {
            dir: 3,
            name: "n".repeat(255),
        },
        JournalRecord::Rename {
            dir: 1,
            name: name("x"),
            to_dir: 2,
            to_name: name("ü"),
        },
        JournalRecord::Reuse {
            dir: 1,
            name: name("x"),
            to_dir: 200,
            to_name: name("y"),
        },
        JournalRecord::Grow {
            ino: 300,
            runs: vec![run(1, 1), run(1 << 32, 1 << 20)],
        },
        JournalRecord::Hole { ino: 1, blocks: 5 },
        JournalRecord::Length { ino: 1, len: 127 },
        JournalRecord::Append { ino: 128 },
        JournalRecord::Cut {
            ino: 1,
            blocks: 128,
        },
        JournalRecord::Punch {
            ino: 1,
            from: 0,
            blocks: 1 << 40,
        },
        JournalRecord::Jump {
            run: run(9, 10),
            seq: 1 << 60,
            life: u64::MAX,
        },
        JournalRecord::Create {
            ino: 5,
            kind: InodeKind::Dir,
            dir: 0,
            name: name("d"),
        },
    ]
}

#[test]
fn records_round_trip_and_truncated_ones_are_refused() {
    let mut bytes = Vec::new();
    some().iter().for_each(|r| r.encode(&mut bytes));
    let mut reader = MetaRecordReader(&bytes);
    for want in some() {
        assert_eq!(reader.next(), Some(Ok(want)));
    }
    assert_eq!(reader.next(), None);
    for record in some() {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for cut in 1..bytes.len() {
            assert!(
                matches!(MetaRecordReader(&bytes[..cut]).next(), Some(Err(_))),
                "{record:?} cut to {cut} bytes"
            );
        }
    }
}

#[test]
fn unwritten_bytes_are_not_a_record() {
    for bytes in [
        &[0u8][..],
        &[14, 0, 0],
        &[3, 0, 0],                      // an empty name
        &[2, 0, 2, 0xff, 0xfe, 1],       // not UTF-8
        &[8, 0x80, 0x00, 5],             // a number in two bytes that needs one
        &[6, 1, 0],                      // no runs
        &[6, 1, 1, 5, 0],                // an empty run
        &[6, 1, 0xff, 0xff, 0x7f, 5, 1], // more runs than bytes
        &[
            8, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,
        ],
        &[12, 1, 4, 0, 1, b'a'], // no such kind
    ] {
        assert!(
            matches!(MetaRecordReader(bytes).next(), Some(Err(_))),
            "{bytes:?} is taken for a record"
        );
    }
}
