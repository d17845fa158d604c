//! The decoders of images as targets of mutators. The list with the promise that each checks is in
//! `docs/testing/fuzzing.md`.
//!
//! Compiled for tests, and in `fuzz/lava`, which builds these sources once more with the feature
//! `fuzzing`: the simulated device is in a crate above, on which this one depends in tests alone.

use super::filesystem::LavaFs;
use super::frame::{CheckpointPiece, ExtentHeader, Transaction};
use super::layout::{SUPERBLOCKS, Superblock, Uuid, checksum};
use super::metadata_record::{JournalRecord, MetaRecordReader};
use super::options::LavaOptions;
use super::probe::{self, Probed};
use super::runs::BLOCK;
use super::{check, format, journal};
use basalt_fs::device::Device;
use basalt_fs::{Error, ErrorKind, FileSystem, Intent};
use basalt_sim::mutate::{Target, Verdict};
use basalt_sim::{DeviceCut, SimDevice};
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Returns all targets of this crate.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter()
}

/// Runs the target of this name.
///
/// # Panics
/// If there is no such target, or if its promise does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = targets().find(|t| t.name == name);
    (target.expect("a target of this name").run)(input);
}

const TARGETS: &[Target] = &[
    Target {
        name: "lava_superblock",
        run: superblock,
        seeds: || vec![sample().superblock.encode(SUPERBLOCKS[0])],
        words: &[b"BSLTLAVA"],
    },
    Target {
        name: "lava_records",
        run: records,
        seeds: || sample().transactions.clone(),
        words: &[],
    },
    Target {
        name: "lava_journal",
        run: journal,
        seeds: || vec![sample().journal.clone()],
        words: &[b"LVTX", b"LVJX"],
    },
    Target {
        name: "lava_transaction",
        run: transaction,
        seeds: || sample().transactions.clone(),
        words: &[],
    },
    Target {
        name: "lava_checkpoint",
        run: checkpoint,
        seeds: || vec![sample().checkpoint.clone()],
        words: &[],
    },
    Target {
        name: "lava_metadata",
        run: metadata,
        seeds: || sample().places.clone(),
        words: &[b"LVTX", b"LVJX", b"LVCK", b"BSLTLAVA"],
    },
];

const UNIT: usize = 512;
const UUID: Uuid = [7; 16];

/// A sound image with each kind of content, partly in the checkpoint and partly in the journal.
struct Sample {
    device: Arc<SimDevice>,
    superblock: Superblock,
    /// The written part of the first journal extent.
    journal: Vec<u8>,
    journal_at: u64,
    journal_start: super::checkpoint::JournalStart,
    /// The records of each transaction.
    transactions: Vec<Vec<u8>>,
    /// The records of the checkpoint.
    checkpoint: Vec<u8>,
    /// Pieces of metadata. Each one begins with the number of its unit on the device.
    places: Vec<Vec<u8>>,
}

fn by_hand() -> LavaOptions {
    LavaOptions::default()
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let device = SimDevice::new(8 << 20, UNIT);
        format::format(&*device, UUID, false, Path::new("image")).expect("a filesystem");
        let fs = LavaFs::mount(device.clone(), &by_hand()).expect("a mount");
        fs.create_dir(Path::new("d/e")).expect("a directory");
        for i in 0..8 {
            let path = format!("d/{i}");
            let file = fs.create(Path::new(&path)).expect("a file");
            file.append(&[IoSlice::new(&vec![i; 20_000])], Intent::Sync)
                .expect("bytes");
            if i % 2 == 0 {
                file.release_range(4096..8192).expect("a hole");
            }
            file.sync_all().expect("a sync");
            if i == 3 {
                fs.link(Path::new("d/1"), Path::new("l"))
                    .expect("a second name");
                fs.checkpoint().expect("a checkpoint");
            }
        }
        fs.remove(Path::new("d/2")).expect("it is there");
        fs.rename(Path::new("d/4"), Path::new("d/e/f"))
            .expect("it is there");
        fs.sync_metadata(Path::new("")).expect("a sync");
        let superblock = fs.shared.journal.lock().superblock.clone();
        let device = device.cut(DeviceCut::All);
        let (_, journal_start) =
            super::checkpoint::read(&*device, &superblock, Path::new("")).expect("it is sound");
        let journal_at = journal_start.run.start * BLOCK;
        let all = device.peek(journal_at, (journal_start.run.len * BLOCK) as usize);
        let (mut at, mut transactions) = (UNIT, Vec::new());
        while let Some((t, size)) =
            Transaction::decode(&all[at..], &UUID, journal_at + at as u64, UNIT)
        {
            transactions.push(t.records.to_vec());
            at += size;
        }
        assert!(transactions.len() > 3, "the journal has something in it");
        let place = superblock.checkpoint[0].start * BLOCK;
        let bytes = device.peek(place, superblock.checkpoint_bytes as usize);
        let (piece, _) = CheckpointPiece::decode(&bytes, &UUID, place, UNIT).expect("a piece");
        let checkpoint = piece.records.to_vec();
        let placed = |at: u64, len: usize| {
            let mut piece = ((at / UNIT as u64) as u32).to_le_bytes().to_vec();
            piece.extend(device.peek(at, len));
            piece
        };
        let places = vec![
            placed(SUPERBLOCKS[0], 4096),
            placed(SUPERBLOCKS[1], 4096),
            placed(place, bytes.len()),
            placed(journal_at, at),
        ];
        Sample {
            journal: all[..at].to_vec(),
            journal_at,
            journal_start,
            superblock,
            transactions,
            checkpoint,
            places,
            device,
        }
    })
}

/// Checks that a refused image has an error of a fitting kind.
fn refused(e: &Error) -> Verdict {
    let kinds = [
        ErrorKind::Corruption,
        ErrorKind::InvalidArgument,
        ErrorKind::Unsupported,
        ErrorKind::NotFound,
        // The metadata leaves no space for the journal.
        ErrorKind::NoSpace,
    ];
    assert!(kinds.contains(&e.kind()), "{e}");
    Verdict::Refused
}

/// Decodes a superblock as it is, and with a right checksum. A decoded superblock is encoded to the
/// same fields.
fn superblock(input: &[u8]) -> Verdict {
    let mut bytes = input.to_vec();
    bytes.resize(4096, 0);
    let plain = Superblock::decode(&bytes, SUPERBLOCKS[0]);
    let uuid: Uuid = bytes[32..48].try_into().expect("16 bytes");
    let sum = checksum(&uuid, SUPERBLOCKS[0], &bytes[12..]);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    let sealed = Superblock::decode(&bytes, SUPERBLOCKS[0]);
    assert!(plain.is_err() || plain == sealed);
    if let Ok(s) = &sealed {
        let again = Superblock::decode(&s.encode(SUPERBLOCKS[0]), SUPERBLOCKS[0]);
        assert_eq!(again.as_ref(), Ok(s));
    }
    Verdict::of(sealed.is_ok())
}

/// Decodes records. Each decoded record is encoded to one that decodes to the same; nothing follows
/// an error.
fn records(input: &[u8]) -> Verdict {
    let mut reader = MetaRecordReader(input);
    while let Some(record) = reader.next() {
        let Ok(record) = record else {
            assert!(reader.next().is_none(), "something follows an error");
            return Verdict::Refused;
        };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let mut again = MetaRecordReader(&bytes);
        assert!(matches!(again.next(), Some(Ok(r)) if r == record));
        assert!(again.next().is_none());
    }
    Verdict::Accepted
}

/// Replays the first extent of a journal. Transactions come in order, and a second replay gives the
/// same result.
fn journal(input: &[u8]) -> Verdict {
    let sample = sample();
    let left = sample.device.cut(DeviceCut::All);
    let room = u64::from(sample.superblock.journal_blocks) * BLOCK;
    let mut bytes = input.to_vec();
    bytes.resize(room as usize, 0);
    left.damage(sample.journal_at, &bytes);
    let source = journal::JournalSource {
        device: &*left,
        uuid: UUID,
        unit: UNIT,
        blocks: sample.superblock.blocks,
        journal_blocks: sample.superblock.journal_blocks,
        name: Path::new("image"),
    };
    let from = sample.journal_start.seq;
    let read = || {
        let mut seen = Vec::new();
        let tail = journal::replay(&source, sample.journal_start, |seq, _, records| {
            assert_eq!(seq, from + seen.len() as u64, "in order");
            seen.push(records.to_vec());
            Ok(())
        });
        tail.map(|t| (t, seen))
    };
    match (read(), read()) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a, b);
            assert_eq!(a.0.seq, from + a.1.len() as u64);
            // Only transactions with a right checksum are read.
            Verdict::of(!a.1.is_empty())
        }
        (Err(a), Err(b)) => {
            assert_eq!(a.to_string(), b.to_string());
            refused(&a)
        }
        (a, b) => panic!("{a:?} and then {b:?}"),
    }
}

/// Mounts a device. An image that mounts is sound, and all its files can be read. With `write`, it
/// also takes a new file. If the mount finds damage, a check finds damage, too.
fn exercise(left: &Arc<SimDevice>, write: bool) -> Verdict {
    let name = Path::new("image");
    let checked = check::check(&**left, name);
    let fs = match LavaFs::mount(left.clone(), &by_hand()) {
        Ok(fs) => fs,
        Err(e) => {
            // A check finds the damage that a mount finds.
            if e.is_corruption() {
                assert!(checked.is_ok_and(|c| !c.is_sound()), "{e}");
            }
            return refused(&e);
        }
    };
    let checked = checked.expect("what mounts can be checked");
    assert!(checked.is_sound(), "{:?}", checked.damage);
    let mut dirs = vec![std::path::PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for e in fs.list(&dir).expect("a directory") {
            let path = dir.join(&e.name);
            if e.is_dir {
                dirs.push(path);
                continue;
            }
            let len = fs.stat(&path).expect("it is listed").len.min(1 << 16);
            fs.open(&path)
                .expect("it is listed")
                .read(0, len as usize)
                .expect("it is on the device");
        }
    }
    if !write {
        return Verdict::Accepted;
    }
    let made = fs.create(Path::new("new")).and_then(|f| {
        f.append(&[IoSlice::new(&[5; 4096])], Intent::Sync)?;
        f.sync_all()
    });
    if made.is_ok() {
        fs.sync_metadata(Path::new("")).expect("its name");
        drop(fs);
        let after = check::check(&**left, name).expect("it is an image");
        assert!(after.is_sound(), "{:?}", after.damage);
    }
    Verdict::Accepted
}

/// Appends one more transaction with a right checksum to the journal.
fn transaction(input: &[u8]) -> Verdict {
    let sample = sample();
    let left = sample.device.cut(DeviceCut::All);
    let room = sample.superblock.journal_blocks as usize * BLOCK as usize - sample.journal.len();
    let input = &input[..input.len().min(room / 2)];
    let at = sample.journal_at + sample.journal.len() as u64;
    let header = ExtentHeader::decode(&sample.journal[..UNIT], &UUID, sample.journal_at);
    let seq = sample.superblock.checkpoint_seq + 1 + sample.transactions.len() as u64;
    let one = Transaction {
        life: header.expect("it is sound").life,
        seq,
        synced: seq - 1,
        records: input,
    };
    left.damage(at, &one.encode(&UUID, at, UNIT));
    exercise(&left, true)
}

/// Replaces the checkpoint by one with a right checksum.
fn checkpoint(input: &[u8]) -> Verdict {
    let sample = sample();
    let left = sample.device.cut(DeviceCut::All);
    let mut superblock = sample.superblock.clone();
    let place = superblock.checkpoint[0];
    let room = (place.len * BLOCK) as usize - super::frame::PIECE_HEADER;
    let piece = CheckpointPiece {
        generation: superblock.generation,
        index: 0,
        records: &input[..input.len().min(room)],
    };
    let bytes = piece.encode(&UUID, place.start * BLOCK, UNIT);
    superblock.checkpoint_bytes = bytes.len() as u64;
    left.damage(place.start * BLOCK, &bytes);
    for at in SUPERBLOCKS {
        left.damage(at, &superblock.encode(at));
    }
    // A checkpoint with a wrong jump has lost the journal. The space of the journal is then free,
    // and its frames are found there later.
    let mut last = None;
    let mut reader = MetaRecordReader(piece.records);
    while let Some(record) = reader.next() {
        last = record.ok();
    }
    let honest = matches!(last, Some(JournalRecord::Jump { run, life, .. }) if run == sample.journal_start.run && life == sample.journal_start.life);
    exercise(&left, honest)
}

/// Writes any bytes to any unit: stale ones, those of another place, torn ones.
fn metadata(input: &[u8]) -> Verdict {
    let Some((unit, bytes)) = input.split_first_chunk::<4>() else {
        return Verdict::Refused;
    };
    let sample = sample();
    let left = sample.device.cut(DeviceCut::All);
    let len = left.facts().len;
    let at = u64::from(u32::from_le_bytes(*unit)) * UNIT as u64 % len;
    let bytes = &bytes[..bytes.len().min((len - at) as usize)];
    left.damage(at, bytes);
    let found = probe::probe(&*left, Path::new("image"));
    let ours = matches!(found, Ok(Probed::Image(..)));
    let verdict = exercise(&left, true);
    assert!(ours || verdict == Verdict::Refused);
    verdict
}

#[cfg(test)]
mod tests;
