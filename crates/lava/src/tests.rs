//! Tests of LavaFS on a simulated device: the contract of filesystems, and failures of the device.

mod buffers;
mod group_flush;
mod images;
mod maintenance;
mod misdirected_writes;
mod out_of_space;
mod power_cuts;
mod threads;

use super::metadata_record::JournalRecord;
use super::runs::BLOCK;
use super::*;
use basalt_env::EnvBuilder;
use basalt_fs::device::Device;
use basalt_fs::{ErrorKind, File, FileSystem, Intent, Lifetime, LogOptions, ReadRequest, Result};
use basalt_sim::conformance;
use basalt_sim::{DeviceCut, SimDevice};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;

fn by_hand() -> LavaOptions {
    LavaOptions::default()
}

/// Returns options with a job pool that has threads, which write checkpoints and buffers.
fn with_jobs() -> LavaOptions {
    LavaOptions {
        env: Some(EnvBuilder::without_fs().parts()),
        ..LavaOptions::default()
    }
}

fn fresh(unit: usize) -> (Arc<SimDevice>, Arc<LavaFs>) {
    let device = SimDevice::new(SIZE, unit);
    format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    (device, fs)
}

#[test]
fn lava_keeps_the_filesystem_contract() {
    for unit in [512, 4096] {
        conformance::run_all(&|| fresh(unit).1);
    }
}

#[test]
fn lava_keeps_the_contract_over_power_cuts() {
    let make = |seed: u64| {
        let (device, fs) = fresh(if seed % 4 == 3 { 4096 } else { 512 });
        let fs: Arc<dyn FileSystem> = fs;
        let cut: conformance::crash::PowerCut = Box::new(move |seed| {
            let left = device.cut(DeviceCut::Some(seed));
            LavaFs::mount(left, &by_hand()).expect("a mount after a power cut")
        });
        (fs, cut)
    };
    conformance::crash::run_all(&make, 40);
}

fn scale() -> u64 {
    let scale = std::env::var("BASALT_SCALE").ok();
    scale.and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// The same history on the simulated filesystem and on LavaFS gives the same answers. Checkpoints
/// and new mounts lie between some of the steps.
#[test]
fn lava_answers_as_the_simulated_disk() {
    let mut steps = 0;
    for seed in basalt_sim::campaign::cases(0..400 * scale()) {
        let _repeat = basalt_sim::repeat!(lava_answers_as_the_simulated_disk, "BASALT_CASE={seed}");
        let trace = conformance::random_trace(seed, 120);
        let model: Arc<dyn FileSystem> = basalt_sim::SimFs::new(basalt_sim::SimOptions::default());
        let (_, fs) = fresh(512);
        let fs: Arc<dyn FileSystem> = fs;
        let (actual, expected) = (trace.play(&fs), trace.play(&model));
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual, expected, "seed {seed}");
        }
        steps += actual.len();
    }
    basalt_sim::campaign!("traces: steps={steps}");
}

/// The metadata of 100,000 files is small, and a mount finds all of them.
#[test]
fn metadata_of_many_files_is_small() {
    let device = SimDevice::new(1 << 30, 512);
    format::format(&*device, [9; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    const FILES: u64 = 100_000;
    for i in 0..FILES {
        let f = fs.create(Path::new(&format!("{i:06}.tbl"))).unwrap();
        f.append(&[IoSlice::new(&[7; 512])], Intent::Sync).unwrap();
    }
    fs.sync_metadata(Path::new("")).unwrap();
    let usage = fs.usage();
    assert_eq!((usage.files, usage.extents), (FILES, FILES));
    assert_eq!(usage.name_bytes, FILES * 10);
    assert!(
        usage.memory <= FILES * 64 + usage.extents * 8,
        "{} bytes a file: {usage:?}",
        usage.memory / FILES
    );
    fs.checkpoint().unwrap();
    let after = fs.usage();
    assert!(after.journal_bytes < usage.journal_bytes && after.checkpoints == 1);
    // A tenth is removed. A mount finds the others in the checkpoint and the journal.
    for i in (0..FILES).step_by(10) {
        fs.remove(Path::new(&format!("{i:06}.tbl"))).unwrap();
    }
    fs.sync_metadata(Path::new("")).unwrap();
    let before = fs.usage();
    let left = device.cut(DeviceCut::Nothing);
    let again = LavaFs::mount(left.clone(), &by_hand()).unwrap();
    let found = again.usage();
    assert_eq!(found.files, FILES - FILES / 10);
    assert_eq!(
        (found.extents, found.file_bytes),
        (before.extents, before.file_bytes)
    );
    // The mount reads little more than the checkpoint and the journal.
    let read = left.stats().bytes_read;
    let there = found.checkpoint_bytes + before.journal_bytes;
    assert!(read < there + there / 2 + (2 << 20), "{read} of {there}");
}

/// A failed write or flush gives an error, and no durable data is lost.
#[test]
fn a_failed_write_or_flush_is_an_error_and_loses_no_durable_data() {
    use basalt_sim::DeviceFault;
    for (n, fault) in (0..60).flat_map(|n| {
        [
            (n, DeviceFault::Write(n)),
            (n, DeviceFault::Flush(n)),
            (n, DeviceFault::Lost(n)),
        ]
    }) {
        let (device, fs) = fresh(512);
        device.fail(fault);
        let mut durable = Vec::new();
        let mut failed = false;
        for i in 0..12u8 {
            let name = format!("{i}");
            let run = || -> Result<()> {
                let f = fs.create(Path::new(&name))?;
                f.append(&[IoSlice::new(&[i; 600])], Intent::Sync)?;
                f.sync_data()?;
                fs.sync_metadata(Path::new(""))?;
                if i == 5 {
                    fs.checkpoint()?;
                }
                Ok(())
            };
            match run() {
                Ok(()) => {
                    let flush = matches!(fault, DeviceFault::Flush(_));
                    assert!(!(failed && flush), "{fault:?} at {n}: a sync is believed");
                    durable.push(i);
                }
                Err(e) => {
                    let kinds = [ErrorKind::Io, ErrorKind::Poisoned];
                    assert!(kinds.contains(&e.kind()), "{e}");
                    failed = true;
                }
            }
        }
        let struck = device.faults_left() == 0;
        let left = device.cut(DeviceCut::Nothing);
        let mounted = LavaFs::mount(left, &by_hand());
        if let DeviceFault::Lost(_) = fault {
            // The device lost a write that it acknowledged. The mount shows an earlier state or an
            // error, and no wrong bytes.
            let Ok(mounted) = mounted else { continue };
            for (i, f) in
                (0..12u8).filter_map(|i| Some((i, mounted.open(Path::new(&format!("{i}"))).ok()?)))
            {
                let got = f.read(0, 600).unwrap();
                assert!(got.is_empty() || got[..] == [i; 600] || struck, "{fault:?}");
            }
            continue;
        }
        let mounted = mounted.unwrap_or_else(|e| panic!("{fault:?} at {n}: {e}"));
        for i in durable {
            let f = mounted.open(Path::new(&format!("{i}")));
            let got = f.unwrap_or_else(|e| panic!("{fault:?}: {e}")).read(0, 600);
            assert_eq!(got.unwrap(), vec![i; 600], "{fault:?}");
        }
    }
}

/// If a later frame proves that a lost write of the journal had been durable, the loss is damage.
#[test]
fn a_lost_transaction_is_damage() {
    let (device, fs) = fresh(512);
    let dir = Path::new("");
    fs.create(Path::new("a")).unwrap();
    fs.sync_metadata(dir).unwrap();
    device.fail(basalt_sim::DeviceFault::Lost(0));
    fs.create(Path::new("lost")).unwrap();
    fs.sync_metadata(dir).unwrap();
    let after = device.cut(DeviceCut::Nothing);
    assert!(
        LavaFs::mount(after, &by_hand()).is_ok(),
        "nothing tells it from a torn tail"
    );
    fs.create(Path::new("b")).unwrap();
    fs.sync_metadata(dir).unwrap();
    let after = device.cut(DeviceCut::Nothing);
    let e = LavaFs::mount(after, &by_hand()).err().expect("damage");
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(
        e.to_string().contains("transaction 2 is not readable"),
        "{e}"
    );
    // A clean unmount says how far the journal goes.
    drop(fs);
    let (device, fs) = fresh(512);
    fs.create(Path::new("a")).unwrap();
    drop(fs);
    let journal = runs::BLOCK * layout::FIRST_BLOCK;
    device.damage(journal + 512, &[0; 512]);
    let e = LavaFs::mount(device, &by_hand()).err().expect("damage");
    assert!(e.to_string().contains("a clean unmount recorded"), "{e}");
}

/// A transaction could not be written, and its records are lost. Each later change depends on them,
/// so all changes fail until the next mount, and each error names the first failure.
#[test]
fn a_failed_journal_write_fails_all_later_changes() {
    for writer in ["sync", "lazy append", "checkpoint"] {
        changes_end_when_the_journal_fails(writer);
    }
}

fn changes_end_when_the_journal_fails(writer: &str) {
    let (device, fs) = fresh(512);
    let dir = Path::new("");
    fs.create_dir(Path::new("d")).unwrap();
    let a = fs.create(Path::new("a")).unwrap();
    a.append(&[IoSlice::new(&[1; 600])], Intent::Sync).unwrap();
    fs.sync_metadata(dir).unwrap();
    let new = fs.create(Path::new("d/new")).unwrap();
    fs.rename(Path::new("a"), Path::new("d/lost")).unwrap();
    device.fail(basalt_sim::DeviceFault::Write(0));
    let written = match writer {
        "sync" => fs.sync_metadata(dir),
        "lazy append" => new.append(&[IoSlice::new(&[2])], Intent::Lazy).map(drop),
        _ => fs.checkpoint(),
    };
    let e = written.expect_err(writer);
    let faults = device.faults_left();
    assert_eq!((e.kind(), faults), (ErrorKind::Io, 0), "{writer}: {e}");
    let changes: [(&str, Result<()>); 6] = [
        ("create", fs.create(Path::new("d/b")).map(drop)),
        ("remove", fs.remove(Path::new("d/lost"))),
        ("rename", fs.rename(Path::new("d/lost"), Path::new("c"))),
        ("sync of names", fs.sync_metadata(dir)),
        ("sync of a file", a.sync_all()),
        ("checkpoint", fs.checkpoint()),
    ];
    for (change, result) in changes {
        let at = format!("{change} after {writer}");
        let e = result.expect_err(&at);
        assert_eq!(e.kind(), ErrorKind::Poisoned, "{at}: {e}");
        let first = "a write of the simulated device";
        assert!(e.to_string().contains(first), "{at}: {e}");
    }
    // The failed transaction is on the device whole or not at all.
    for (cut, names) in [
        (DeviceCut::Nothing, &["a"][..]),
        (DeviceCut::All, &["a", "d/lost"]),
    ] {
        let left = LavaFs::mount(device.cut(cut), &by_hand()).unwrap();
        let found = names.iter().filter_map(|n| left.open(Path::new(n)).ok());
        let found: Vec<_> = found.map(|f| f.read(0, 600).unwrap()).collect();
        assert_eq!(found, [vec![1; 600]], "{writer}, {cut:?}");
    }
}

/// The write of a checkpoint's first piece was lost. In its place lay the piece of an earlier
/// checkpoint, whose checksum is right. A mount that does not compare generations shows names of
/// both.
#[test]
fn a_piece_of_an_earlier_checkpoint_is_damage() {
    // In a small image, space is soon used for a checkpoint again.
    let device = SimDevice::new(8 << 20, 512);
    format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    for n in 0..3000 {
        fs.create(Path::new(&format!("{n:030}"))).unwrap();
    }
    let place = || fs.shared.journal.lock().superblock.checkpoint.clone();
    let changed = |from: u32, to: u32| {
        let path = |n| PathBuf::from(format!("{n:030}"));
        fs.rename(&path(from), &path(to)).unwrap();
        fs.checkpoint().unwrap();
        place()[0].bytes()
    };
    let old = changed(0, 5000);
    assert!(old.end - old.start > layout::PIECE as u64, "two pieces");
    let bytes = device.peek(old.start, layout::PIECE);
    let again = (1..500).find(|n| changed(*n, 5000 + n) == old);
    assert!(again.is_some(), "the space is used again");
    assert_ne!(device.peek(old.start, layout::PIECE), bytes);
    let sound = device.cut(DeviceCut::All);
    drop(LavaFs::mount(sound, &by_hand()).unwrap());
    let stale = device.cut(DeviceCut::All);
    stale.damage(old.start, &bytes);
    let checked = check::check(&*stale, Path::new("image")).unwrap();
    assert!(!checked.is_sound());
    let e = LavaFs::mount(stale, &by_hand()).err().expect("damage");
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains("is piece 0 of checkpoint"), "{e}");
}

/// A full image takes removals, can be mounted any number of times, and gets its space back.
#[test]
fn a_full_image_allows_removals_and_mounts() {
    let device = SimDevice::new(8 << 20, 512);
    format::format(&*device, [3; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    let block = vec![5u8; 4096];
    let (mut files, mut full) = (0, None);
    while full.is_none() {
        let name = format!("{files:05}");
        let f = fs.create(Path::new(&name)).unwrap();
        match f.append(&[IoSlice::new(&block)], Intent::Sync) {
            Ok(_) => files += 1,
            Err(e) => full = Some(e),
        }
    }
    let full = full.expect("the loop's end");
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(files > 1000);
    // Every second file is removed, so the free space is in single blocks. One large file takes all
    // of it.
    for i in (0..files).step_by(2) {
        fs.remove(Path::new(&format!("{i:05}"))).unwrap();
    }
    let large = fs.create(Path::new("large")).unwrap();
    for _ in 0..files / 2 {
        large.append(&[IoSlice::new(&block)], Intent::Sync).unwrap();
    }
    large.sync_all().unwrap();
    while large.append(&[IoSlice::new(&block)], Intent::Sync).is_ok() {}
    drop((large, fs));
    // Many mounts follow, each with a change, after a clean unmount or a power cut.
    let mut device = device;
    for round in 0..40 {
        let fs = LavaFs::mount(device.clone(), &by_hand())
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        fs.create(Path::new(&format!("round {round}"))).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        if round % 3 == 2 {
            device = device.cut(DeviceCut::Nothing);
        }
    }
    let fs = LavaFs::mount(device, &by_hand()).unwrap();
    assert!(fs.exists(Path::new("round 39")).unwrap());
    fs.remove(Path::new("large")).unwrap();
    let f = fs.create(Path::new("after")).unwrap();
    for _ in 0..files / 4 {
        f.append(&[IoSlice::new(&block)], Intent::Sync).unwrap();
    }
}

/// Space that was allocated ahead without appends is freed when the file is closed.
#[test]
fn preallocated_space_is_freed_at_close() {
    let (_, fs) = fresh(512);
    let before = fs.usage().free_bytes;
    let f = fs.create(Path::new("f")).unwrap();
    f.expect_appends(1 << 20);
    assert!(fs.usage().free_bytes + (1 << 20) <= before);
    drop(f);
    fs.sync_metadata(Path::new("")).unwrap();
    assert_eq!(fs.usage().free_bytes, before);
    assert_eq!(fs.stat(Path::new("f")).unwrap().on_disk, 0);
}

/// If an old log cannot be reused for a new one, the old log stays as it was.
#[test]
fn a_failed_log_reuse_leaves_the_old_log_unchanged() {
    let (_, fs) = fresh(512);
    let old = Path::new("old");
    let options = LogOptions {
        capacity: 100_000,
        reuse: None,
    };
    let f = fs.create_log(old, options).unwrap();
    f.append(&[IoSlice::new(&[3; 5000])], Intent::Sync).unwrap();
    f.sync_all().unwrap();
    drop(f);
    let options = LogOptions {
        capacity: 2 * SIZE,
        reuse: Some(old),
    };
    let e = fs.create_log(Path::new("new"), options).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    assert!(!fs.exists(Path::new("new")).unwrap());
    assert_eq!(fs.open(old).unwrap().read(0, 5000).unwrap(), vec![3; 5000]);
    assert_eq!(fs.stat(old).unwrap().len, 5000);
    // A log that may not be reused is not made longer either.
    fs.link(old, Path::new("second")).unwrap();
    let options = LogOptions {
        capacity: 200_000,
        reuse: Some(old),
    };
    let before = fs.describe(old).unwrap();
    fs.create_log(Path::new("new"), options).err().unwrap();
    assert_eq!(fs.describe(old).unwrap(), before);
    assert!(before.exact);
}

/// Lazily appended bytes outlive the process, with the space and the name that they need.
#[test]
fn lazy_appends_survive_a_process_crash() {
    let (device, fs) = fresh(512);
    let f = fs
        .create_log(
            Path::new("log"),
            LogOptions {
                capacity: 100_000,
                reuse: None,
            },
        )
        .unwrap();
    let g = fs.create(Path::new("file")).unwrap();
    for f in [&f, &g] {
        f.append(&[IoSlice::new(&[7; 5000])], Intent::Lazy).unwrap();
    }
    let left = LavaFs::mount(device.cut(DeviceCut::All), &by_hand()).unwrap();
    for name in ["log", "file"] {
        let f = left.open(Path::new(name)).unwrap();
        assert_eq!(f.read(0, 5000).unwrap(), vec![7; 5000], "{name}");
    }
}

/// Tests handles of a log's earlier life, files of another mount, and files that are removed while
/// they are open.
#[test]
fn stale_handles_do_no_harm() {
    let (device, fs) = fresh(512);
    let log = |path: &str, reuse: Option<&Path>| {
        let capacity = 50_000;
        fs.create_log(Path::new(path), LogOptions { capacity, reuse })
    };
    let old = log("old", None).unwrap();
    old.append(&[IoSlice::new(&[1; 512])], Intent::Sync)
        .unwrap();
    let new = log("new", Some(Path::new("old"))).unwrap();
    for i in 0..80u8 {
        new.append(&[IoSlice::new(&[i; 512])], Intent::Sync)
            .unwrap();
    }
    let poisoned = |r: Result<()>| assert_eq!(r.unwrap_err().kind(), ErrorKind::Poisoned);
    poisoned(old.sync_all());
    poisoned(old.append(&[IoSlice::new(&[1])], Intent::Sync).map(|_| ()));
    poisoned(old.extend_log(1 << 20));
    old.release_range(0..1 << 20).unwrap();
    drop(old);
    let other = fs.create(Path::new("other")).unwrap();
    other
        .append(&[IoSlice::new(&[9; 100_000])], Intent::Sync)
        .unwrap();
    assert_eq!(new.read(512 * 79, 512).unwrap(), vec![79; 512]);
    // A file of another image is synced and read by that image.
    let (device2, fs2) = fresh(512);
    let far = fs2.create(Path::new("far")).unwrap();
    far.append(&[IoSlice::new(&[4; 600])], Intent::Sync)
        .unwrap();
    fs2.sync_metadata(Path::new("")).unwrap();
    far.append(&[IoSlice::new(&[5; 424])], Intent::Sync)
        .unwrap();
    fs.sync_files(&[new.clone(), far.clone()]).unwrap();
    let left = LavaFs::mount(device2.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    let got = left.open(Path::new("far")).unwrap().read(600, 424).unwrap();
    assert_eq!(got, vec![5; 424]);
    let request = |file: &Arc<dyn File>| ReadRequest {
        file: file.clone(),
        offset: 0,
        len: 600,
        lifetime: Lifetime::Cached,
    };
    let mut reads = fs.submit_reads(vec![request(&far), request(&other)]);
    while let Some((i, got)) = reads.next() {
        assert_eq!(got.unwrap(), vec![[4, 9][i]; 600]);
    }
    drop(reads);
    // The space of a removed file is free when no handle is open and the removal is durable.
    let before = fs.usage().free_bytes;
    let size = fs.stat(Path::new("other")).unwrap().on_disk;
    fs.remove(Path::new("other")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    assert_eq!(fs.usage().free_bytes, before);
    drop(other);
    assert_eq!(fs.usage().free_bytes, before + size);
    drop((new, fs));
    LavaFs::mount(device, &by_hand()).expect("nothing is in two files");
}

/// A mount refuses or accepts invented metadata with right checksums, and does not panic.
#[test]
fn a_mount_of_invented_metadata_does_not_panic() {
    use super::frame::{CheckpointPiece, Transaction};
    let mut refused = 0;
    let (device, fs) = fresh(512);
    let dir = Path::new("");
    fs.create_dir(Path::new("d")).unwrap();
    for i in 0..6 {
        let f = fs.create(Path::new(&format!("d/{i}"))).unwrap();
        f.append(&[IoSlice::new(&[1; 9000])], Intent::Sync).unwrap();
        f.release_range(0..4096).unwrap();
        f.sync_all().unwrap();
        if i == 2 {
            fs.link(Path::new("r0"), Path::new("l")).unwrap();
            fs.checkpoint().unwrap();
        }
        fs.rename(Path::new(&format!("d/{i}")), Path::new(&format!("r{i}")))
            .unwrap();
        fs.sync_metadata(dir).unwrap();
    }
    let uuid = [7; 16];
    let superblock = fs.shared.journal.lock().superblock.clone();
    // Finds the frames: all units in the first megabytes of the device that are one.
    let all = device.peek(0, 4 << 20);
    let rounds = 3000 * scale();
    for round in 0..rounds {
        let mut c = basalt_sim::rng::Rng::of(&[round, 99]);
        let broken = device.cut(DeviceCut::All);
        let mutate = |c: &mut basalt_sim::rng::Rng, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for _ in 0..=c.below(3) {
                let at = c.below(bytes.len() as u64) as usize;
                match c.below(4) {
                    0 => bytes[at] = c.next_u64() as u8,
                    1 => bytes[at] ^= 1 << c.below(8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, c.pick(&[0, 1, 0x7f, 0x80, 0xff])),
                }
            }
            bytes
        };
        match c.below(3) {
            0 => {
                let mut s = superblock.clone();
                let invented = c.pick(&[0, 1, 200, 1 << 20, 1 << 33, 1 << 59, u64::MAX]);
                match c.below(7) {
                    0 => s.blocks = invented,
                    1 => s.checkpoint_bytes = invented,
                    2 => s.checkpoint_seq = invented,
                    3 => s.clean_seq = invented,
                    4 => s.journal_blocks = invented as u32,
                    5 => s.checkpoint[0].start = invented,
                    _ => s.checkpoint[0].len = invented,
                }
                for at in layout::SUPERBLOCKS {
                    broken.damage(at, &s.encode(at));
                }
            }
            1 => {
                let at = superblock.checkpoint[0].start * BLOCK;
                let bytes = &all[at as usize..];
                let (piece, _) = CheckpointPiece::decode(bytes, &uuid, at, 512).unwrap();
                let records = mutate(&mut c, piece.records);
                let piece = CheckpointPiece {
                    records: &records,
                    ..piece
                };
                let bytes = piece.encode(&uuid, at, 512);
                let mut s = superblock.clone();
                s.checkpoint_bytes = bytes.len() as u64;
                broken.damage(at, &bytes);
                for at in layout::SUPERBLOCKS {
                    broken.damage(at, &s.encode(at));
                }
            }
            _ => {
                let found: Vec<u64> = (0..all.len() as u64 / 512)
                    .map(|n| n * 512)
                    .filter(|at| {
                        let bytes = &all[*at as usize..];
                        let t = Transaction::decode(bytes, &uuid, *at, 512);
                        t.is_some_and(|(t, _)| t.seq > superblock.checkpoint_seq)
                    })
                    .collect();
                let at = found[c.below(found.len() as u64) as usize];
                let (t, _) = Transaction::decode(&all[at as usize..], &uuid, at, 512).unwrap();
                let records = mutate(&mut c, t.records);
                let t = Transaction {
                    records: &records,
                    ..t
                };
                broken.damage(at, &t.encode(&uuid, at, 512));
            }
        }
        if let Ok(fs) = LavaFs::mount(broken, &by_hand()) {
            let (mut files, mut dirs) = (BTreeMap::new(), Vec::new());
            power_cuts::shown(&fs, "", &mut files, &mut dirs);
            for f in files.values() {
                let _ = f.read(0, 20_000);
            }
        } else {
            refused += 1;
        }
    }
    basalt_sim::campaign!("made-up metadata: rounds={rounds} refused={refused}");
    assert!(refused > rounds / 4 && refused < rounds);
}
