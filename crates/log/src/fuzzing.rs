//! The decoders of this crate as targets of mutators: the input of each, and what must hold for any
//! input.
//!
//! The module is compiled only for tests and under coverage-guided fuzzing (`--cfg fuzzing`).
//! `docs/testing/fuzzing.md` lists the targets with the promise that each checks.

use crate::catalog::{self, Change, CheckpointFile, FileEnd, PhysicalFile, Role};
use crate::checkpoint;
use crate::index::{Freed, LogIndex, PageContent, PageLocation};
use crate::log_ops::LogOp;
use crate::mapping::{Location, Mapping};
use crate::options::{Duplicates, LogOptions};
use crate::reverse_index::{self, ReverseEntry, ReverseIndexBuilder};
use basalt_fs::AlignedBuf;
use basalt_records::entries::{entries, open_entry, push_entry};
use basalt_sim::mutate::{Target, Verdict};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "log_manifest_edit",
        run: manifest_edit,
        seeds: || vec![catalog::encode(&changes())],
        words: &[&[1, 16], &[3], &[0x80, 1]],
    },
    Target {
        name: "log_ops",
        run: log_ops,
        seeds: || vec![encoded(&ops()), encoded(&ops()[4..])],
        words: &[&[1], &[4], &[5], &[0xff, 0xff, 0xff, 0xff, 0x0f]],
    },
    Target {
        name: "log_index",
        run: log_index,
        seeds: || {
            let mut out = Vec::new();
            index().encode(&mut out);
            vec![out]
        },
        words: &[&[0], &[0xff, 0xff, 0xff, 0xff, 0x0f]],
    },
    Target {
        name: "log_reverse_index",
        run: reverse_index,
        seeds: || vec![segment()],
        words: &[&[0], &[2, 64, 65]],
    },
    Target {
        name: "log_checkpoint",
        run: checkpoint,
        seeds: || checkpoint::examples(index()),
        words: &[&[0], &[1]],
    },
    Target {
        name: "log_entries",
        run: log_entries,
        seeds: || vec![payload()],
        words: &[&[0], &[1], &[0xff, 0xff, 0xff, 0xff, 0x1f]],
    },
];

/// Runs the target of this name. Panics if it does not exist, or if its promise does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(input);
}

fn verdict(accepted: bool) -> Verdict {
    match accepted {
        true => Verdict::Accepted,
        false => Verdict::Refused,
    }
}

fn changes() -> Vec<Change> {
    let end = FileEnd {
        offset: 70_000,
        reverse_index: Some(64_512),
    };
    let file = PhysicalFile {
        file_id: 0x1234_5678,
        role: Role::Data,
        end: None,
    };
    let checkpoint = CheckpointFile {
        number: 9,
        file_id: 77,
        end: 4_096,
    };
    vec![
        Change::Store(5),
        Change::NextFile(300),
        Change::Add(3, file),
        Change::End(3, end),
        Change::Remove(2),
        Change::Checkpoint(checkpoint),
        Change::Names(CheckpointFile {
            number: 10,
            ..checkpoint
        }),
    ]
}

/// Any bytes as an edit of the manifest. What is read is written back to the same changes.
fn manifest_edit(bytes: &[u8]) -> Verdict {
    let Ok(changes) = catalog::decode(bytes) else {
        return Verdict::Refused;
    };
    let again = catalog::decode(&catalog::encode(&changes)).expect("it was just written");
    assert_eq!(again, changes);
    Verdict::Accepted
}

fn locations(n: u64) -> impl Iterator<Item = (u64, Location)> {
    (0..n).map(|i| {
        let location = Location {
            file: 3 + i / 50,
            offset: 512 + i % 50 * 200,
            len: 90 + (i % 7) as u32 * 10,
        };
        (10 + i * 2 - i % 2, location)
    })
}

fn ops() -> Vec<LogOp> {
    vec![
        LogOp::Create {
            log: 1,
            name: "a".to_string(),
            options: LogOptions::default().duplicates(Duplicates::Replace),
        },
        LogOp::Trim { log: 1, up_to: 77 },
        LogOp::Remove {
            log: 300,
            range: 5..=1 << 40,
        },
        LogOp::Delete { log: 1 },
        LogOp::Page {
            log: 2,
            mapping: Mapping::of(locations(100)),
        },
        LogOp::Rename {
            log: 300,
            name: "another name".to_string(),
        },
    ]
}

fn encoded(ops: &[LogOp]) -> Vec<u8> {
    let mut out = Vec::new();
    ops.iter().for_each(|op| op.encode(&mut out));
    out
}

fn decoded(bytes: &[u8]) -> Option<Vec<LogOp>> {
    let (mut ops, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        ops.push(LogOp::decode(bytes, &mut at)?);
    }
    Some(ops)
}

/// Any bytes as the operations of a record. What is read is written back to the same operations.
fn log_ops(bytes: &[u8]) -> Verdict {
    let Some(ops) = decoded(bytes) else {
        return Verdict::Refused;
    };
    assert_eq!(decoded(&encoded(&ops)).as_ref(), Some(&ops));
    Verdict::Accepted
}

fn index() -> LogIndex {
    let mut index = LogIndex::default();
    for (lsn, location) in locations(150) {
        index.insert(lsn, location);
    }
    let page = index
        .next_page(40)
        .expect("there are enough entries")
        .mapping();
    let at = PageLocation {
        file: 8,
        offset: 1024,
        len: 300,
    };
    index.install_page(PageContent::of(&page), at, &mut Freed::default());
    index
}

/// Any bytes as an index of a log. It counts what it has, and can be changed.
fn log_index(bytes: &[u8]) -> Verdict {
    let mut at = 0;
    let Some(mut index) = LogIndex::decode(bytes, &mut at) else {
        return Verdict::Refused;
    };
    let mut again = Vec::new();
    index.encode(&mut again);
    assert_eq!(LogIndex::decode(&again, &mut 0).as_ref(), Some(&index));
    let all = index.entries_from(0, 100_000);
    let (first, last) = (all.first(), all.last());
    assert_eq!(index.first(), first.map(|(lsn, _)| *lsn));
    assert_eq!(index.last(), last.map(|(lsn, _)| *lsn));
    for (lsn, _) in all.iter().step_by(7) {
        assert!(index.find(*lsn).is_some());
    }
    let mut freed = Freed::default();
    index.remove(&(0..=u64::MAX), &mut |_| None, &mut freed);
    assert_eq!((index.count(), index.bytes()), (0, 0));
    verdict(at == bytes.len())
}

fn segment() -> Vec<u8> {
    let mut builder = ReverseIndexBuilder::default();
    builder.note_segment(5000);
    for (lsn, location) in locations(40) {
        let location = Location {
            file: 1,
            offset: lsn * 200,
            ..location
        };
        let log = lsn % 3;
        builder.add_all([ReverseEntry { log, lsn, location }]);
    }
    builder.take_segment(true)
}

/// Any bytes as a segment of a reverse index. What is read is written back to the same entries.
fn reverse_index(bytes: &[u8]) -> Verdict {
    let Some((others, entries)) = reverse_index::decode(bytes, 7) else {
        return Verdict::Refused;
    };
    let mut builder = ReverseIndexBuilder::default();
    others.iter().for_each(|at| builder.note_segment(*at));
    builder.add_all(entries.iter().copied());
    let again = reverse_index::decode(&builder.take_segment(true), 7);
    assert_eq!(again, Some((others, entries)));
    Verdict::Accepted
}

/// Any bytes as a record of a checkpoint. What is read is written back to the same record.
fn checkpoint(bytes: &[u8]) -> Verdict {
    verdict(checkpoint::reads_as_written(bytes))
}

fn payload() -> Vec<u8> {
    let mut buf = AlignedBuf::with_capacity(1 << 10);
    push_entry(&mut buf, 1, 10, None, b"first");
    push_entry(&mut buf, 1, 11, Some((4, 5000)), b"");
    push_entry(&mut buf, 900, 1 << 40, None, &[7; 300]);
    buf.to_vec()
}

/// Any bytes as the payload of a record of entries. Entries lie inside it, one after the other, and
/// each opens only with its checksum.
fn log_entries(bytes: &[u8]) -> Verdict {
    let mut end = 0;
    for entry in entries(bytes) {
        let Some((at, head)) = entry else {
            return Verdict::Refused;
        };
        assert_eq!(at, end);
        end = at + head.head_len + head.len as usize;
        let opened = open_entry(1, at as u64, &bytes[at..end]);
        assert!(opened.is_err(), "the checksum has no place yet");
        assert_eq!(head.entry_len(), u32::try_from(end - at).ok());
    }
    assert_eq!(end, bytes.len());
    Verdict::Accepted
}

#[cfg(test)]
mod tests;
