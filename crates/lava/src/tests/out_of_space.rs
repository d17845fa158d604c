//! Tests of full images: they take removals, mounts and more space, and no transaction of another
//! life continues a journal that ended.

use super::*;
use super::{by_hand, fresh, with_jobs};
use crate::frame::ExtentHeader;
use crate::runs::Run;
use crate::steps;
use basalt_fs::Intent;
use basalt_sim::{DeviceCut, SimDevice};
use std::io::IoSlice;

fn options(background: bool) -> LavaOptions {
    match background {
        true => with_jobs(),
        false => by_hand(),
    }
}

fn full_of_bytes(device: &Arc<SimDevice>, background: bool) -> Arc<LavaFs> {
    format::format(&**device, [7; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &options(background)).unwrap();
    let f = fs.create(Path::new("big")).unwrap();
    let e = loop {
        if let Err(e) = f.append(&[IoSlice::new(&[7; 4096])], Intent::Sync) {
            break e;
        }
    };
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    drop(f);
    fs.sync_metadata(Path::new("")).unwrap();
    fs
}

/// Makes names until there is no space for more. Each of them is durable at once, or all at the
/// end.
fn fill_with_names(fs: &LavaFs, prefix: &str, each: bool) -> u64 {
    for n in 0.. {
        let name = format!("{prefix}-an-empty-file-with-quite-a-name-{n:0100}");
        let made = fs.create(Path::new(&name)).map(|_| ());
        let made = made.and_then(|()| match each {
            true => fs.sync_metadata(Path::new("")),
            false => Ok(()),
        });
        if let Err(e) = made {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            assert!(e.to_string().contains("fs grow"), "{e}");
            return n;
        }
        assert!(n < 1_000_000, "it is never full");
    }
    unreachable!("the loop returns")
}

/// Empty files fill an image, too. The image is then as any full one, over mounts and power cuts.
#[test]
fn an_image_full_of_metadata_stays_usable() {
    let mut made = 0;
    for (background, each, size) in [
        (false, true, 4),
        (false, true, 8),
        (false, false, 8),
        (true, true, 64),
        (true, false, 64),
    ] {
        let device = SimDevice::new(size << 20, 512);
        let mut fs = full_of_bytes(&device, background);
        made += fill_with_names(&fs, "first", each);
        fs.sync_metadata(Path::new("")).unwrap();
        let mut device = device;
        for round in 0..6 {
            let place = format!("{size} MiB, {background}, {each}, round {round}");
            // This mount makes the changes that it can, and ends in one of several ways.
            drop(fs);
            device = device.cut(if round % 2 == 0 {
                DeviceCut::Nothing
            } else {
                DeviceCut::Some(round)
            });
            fs = LavaFs::mount(device.clone(), &options(background))
                .unwrap_or_else(|e| panic!("{place}: {e}"));
            assert!(fs.exists(Path::new("big")).unwrap(), "{place}");
            made += fill_with_names(&fs, &format!("{round}"), true);
            // Some changes take no space, and some free a little.
            fs.rename(Path::new("big"), Path::new("bug")).unwrap();
            fs.sync_metadata(Path::new(""))
                .unwrap_or_else(|e| panic!("{place}: {e}"));
            let gone = fs.list(Path::new("")).unwrap();
            for entry in gone.iter().filter(|e| e.name.len() > 100).take(20) {
                fs.remove(Path::new(&entry.name)).unwrap();
            }
            fs.rename(Path::new("bug"), Path::new("big")).unwrap();
            fs.sync_metadata(Path::new(""))
                .unwrap_or_else(|e| panic!("{place}: {e}"));
        }
        let checked = check::check(&*device.cut(DeviceCut::All), Path::new("image")).unwrap();
        assert!(checked.is_sound(), "{:?}", checked.damage);
        fs.remove(Path::new("big")).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        let f = fs.create(Path::new("after")).unwrap();
        for _ in 0..100 {
            f.append(&[IoSlice::new(&[7; 4096])], Intent::Sync).unwrap();
        }
        f.sync_all().unwrap();
    }
    basalt_sim::campaign!("names on full images: made={made}");
}

/// An image whose free space is in single blocks, without a run for a journal extent, can be
/// mounted, read and grown.
#[test]
fn an_image_without_room_for_its_journal_still_grows() {
    let device = SimDevice::new(8 << 20, 512);
    let fs = full_of_bytes(&device, false);
    // The test takes all remaining space, as fragmentation would.
    let superblock = fs.shared.journal.lock().superblock.clone();
    fs.abandon();
    drop(fs);
    let device = device.cut(DeviceCut::Nothing);
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    {
        let mut state = fs.shared.state.lock();
        let extent = u64::from(superblock.journal_blocks);
        while state.blocks.take_whole(extent).is_some() {}
        while state.blocks.take_spare().is_some() {}
        fs.shared.journal.lock().writer.forget_next();
    }
    let e = {
        fs.remove(Path::new("big")).unwrap();
        fs.sync_metadata(Path::new("")).unwrap_err()
    };
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    fs.shared.check_writable().unwrap();
    device.grow(8 << 20);
    // The pending records cannot be written. No data is lost by that.
    let e = fs.sync_metadata(Path::new("")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    fs.abandon();
    drop(fs);
    let fs = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    assert!(fs.exists(Path::new("big")).unwrap(), "it was not durable");
    assert!(fs.grow().unwrap() == 8 << 20);
    fs.remove(Path::new("big")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
}

/// Only the reserve for the last checkpoint is left: a commit writes that checkpoint and succeeds.
#[test]
fn a_commit_to_a_full_journal_writes_the_checkpoint() {
    let device = SimDevice::new(8 << 20, 4096);
    let fs = full_of_bytes(&device, false);
    let before = fs.shared.journal.lock().checkpoints;
    let names = ["big", "bug"].map(Path::new);
    for i in 0..600 {
        fs.rename(names[i % 2], names[(i + 1) % 2]).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
    }
    let written = fs.shared.journal.lock().checkpoints - before;
    assert!(
        written > 1,
        "{written} checkpoints: the journal never was full"
    );
    let fs = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    assert!(fs.exists(names[0]).unwrap());
}

/// If there is no space for names, syncs of other files still make data and written metadata
/// durable.
#[test]
fn a_sync_succeeds_while_records_of_other_files_have_no_space() {
    let (device, fs) = fresh(512);
    let make = |name: &str| {
        let log = LogOptions {
            capacity: 64 << 10,
            reuse: None,
        };
        fs.create_log(Path::new(name), log).unwrap()
    };
    let (log, grown) = (make("log"), make("grown"));
    let put = |byte| log.append(&[IoSlice::new(&[byte; 4096])], Intent::Sync);
    let others: Vec<String> = (0..1000).map(|n| format!("other-{n}")).collect();
    for name in &others {
        fs.create(Path::new(name)).unwrap();
    }
    put(1).unwrap();
    log.sync_data().unwrap();
    // The record is written, and not durable.
    grown
        .append(&[IoSlice::new(&[2; 65 << 10])], Intent::Lazy)
        .unwrap();
    {
        let mut state = fs.shared.state.lock();
        let blocks = u64::from(fs.shared.journal.lock().superblock.journal_blocks);
        while state.blocks.take_whole(blocks).is_some() {}
        while state.blocks.take_spare().is_some() {}
        fs.shared.journal.lock().writer.forget_next();
    }
    // Names are made until the last journal extent is full and no other can be allocated.
    let refused = others.iter().find_map(|name| {
        fs.remove(Path::new(name)).unwrap();
        fs.sync_metadata(Path::new("")).err()
    });
    let refused = refused.expect("it is never full");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    grown.sync_data().unwrap();
    put(3).unwrap();
    log.sync_data().unwrap();
    let refused = fs.sync_metadata(Path::new("")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    put(4).unwrap();
    fs.sync_files(&[Arc::clone(&log)]).unwrap();
    let len = log.len();
    fs.abandon();
    let fs = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    let log = fs.open(Path::new("log")).unwrap();
    assert_eq!(&log.read(len - 8192, 4096).unwrap()[..], &[3; 4096]);
    assert_eq!(&log.read(len - 4096, 4096).unwrap()[..], &[4; 4096]);
}

fn one(fs: &LavaFs, name: &str) {
    let f = fs.create(Path::new(name)).unwrap();
    f.append(&[IoSlice::new(&[7; 10])], Intent::Lazy).unwrap();
    // The image is not unmounted.
    std::mem::forget(f);
}

struct Place {
    seq: u64,
    current: Run,
    next: Option<Run>,
}

fn place(fs: &LavaFs) -> Place {
    let j = fs.shared.journal.lock();
    let (current, next) = j.writer.places();
    Place {
        seq: j.writer.seq(),
        current,
        next,
    }
}

/// A power cut leaves only the last extent of a journal that was not durable. A later life
/// allocates that extent as its next one, with the same transaction number as the first one there.
/// The journal ends there: transactions of the dead life do not continue it.
#[test]
fn stale_journal_extents_are_not_replayed() {
    let mut met = 0;
    for seed in 0..6u64 {
        let mut c = basalt_sim::rng::Rng::of(&[seed, 991]);
        let (device, fs) = fresh(512);
        for i in 0..c.below(40) {
            one(&fs, &format!("h{i}"));
        }
        fs.sync_metadata(Path::new("")).unwrap();
        let mut heads: Vec<(u64, Run)> = Vec::new();
        let mut i = 0;
        while heads.len() < 3 || i % 7 != 6 {
            let before = place(&fs).current;
            one(&fs, &format!("dead{i}"));
            i += 1;
            let now = place(&fs);
            if now.current != before {
                heads.push((now.seq - 1, now.current));
            }
        }
        let (first, r) = heads[2];
        let stale = device.peek(r.start * BLOCK, (r.len * BLOCK) as usize);
        let header = ExtentHeader::decode(&stale[..512], &[7; 16], r.start * BLOCK).unwrap();
        assert_eq!(header.first_seq, first);
        let device = device.cut(DeviceCut::Nothing);
        device.damage(r.start * BLOCK, &stale);

        let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
        let mut n = 0;
        let mut step = |fs: &LavaFs| {
            fs.create_dir(Path::new(&format!("new{n}"))).unwrap();
            n += 1;
            fs.sync_metadata(Path::new("")).unwrap();
        };
        while place(&fs).seq + 60 < first {
            step(&fs);
        }
        // The test makes it the next extent, because that rarely happens by itself.
        {
            let mut state = fs.shared.state.lock();
            if !state.blocks.take_exactly(r) {
                continue;
            }
            let mut journal = fs.shared.journal.lock();
            journal.writer.forget_next();
            journal.writer.set_next(r);
        }
        let mut turned = false;
        while place(&fs).seq < first && !turned {
            let before = place(&fs).current;
            // The present extent must not have named another one yet.
            step(&fs);
            turned = place(&fs).current != before;
        }
        if turned || place(&fs).next != Some(r) {
            continue;
        }
        assert_eq!(place(&fs).seq, first);
        fs.checkpoint().unwrap();
        met += 1;
        drop(fs);
        let fs = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
        let files = fs.list(Path::new("")).unwrap();
        assert!(
            !files.iter().any(|e| e.name.starts_with("dead")),
            "seed {seed}"
        );
        assert!(files.iter().filter(|e| e.name.starts_with("new")).count() == n);
    }
    assert!(met > 0, "no seed came there");
}

/// Regression test: the last handle of a removed file was closed before the removal was durable,
/// and its blocks went to another file one record early. A power cut then brought the name back,
/// over the other file's bytes.
#[test]
fn blocks_of_a_removed_file_are_freed_after_its_durable_removal() {
    for handles in [1, 2] {
        let (device, fs) = fresh(512);
        let f = fs.create(Path::new("f")).unwrap();
        let bytes = [3; 5 * 4096];
        f.append(&[IoSlice::new(&bytes)], Intent::Sync).unwrap();
        f.sync_all().unwrap();
        // Each record before the removal is durable.
        fs.sync_metadata(Path::new("")).unwrap();
        let free = fs.usage().free_bytes;
        let mut open: Vec<Arc<dyn File>> = vec![f];
        open.resize_with(handles, || fs.open(Path::new("f")).unwrap());
        fs.remove(Path::new("f")).unwrap();
        drop(open);
        assert_eq!(fs.usage().free_bytes, free, "its removal is not durable");
        // The new file needs as many blocks, because the shortest run that is long enough is taken.
        let g = fs.create(Path::new("g")).unwrap();
        let other = [4; 5 * 4096];
        g.append(&[IoSlice::new(&other)], Intent::Sync).unwrap();
        let again = LavaFs::mount(device.snapshot().killed(), &by_hand()).unwrap();
        let f = again.open(Path::new("f")).unwrap();
        assert!(f.read(0, bytes.len()).unwrap()[..] == bytes);
        let free = fs.usage().free_bytes;
        fs.sync_metadata(Path::new("")).unwrap();
        assert_eq!(fs.usage().free_bytes, free + bytes.len() as u64);
    }
}

/// Regression test: records of closed files and of released space stayed in memory until a caller
/// synced. A process that did nothing else held millions of them, and the next checkpoint had to
/// write all of them at once.
#[test]
fn records_of_closed_files_and_released_space_are_committed() {
    let (_, fs) = fresh(512);
    let bound = fs.shared.pending_limit as usize + 64;
    let pending = || fs.shared.state.lock().pending.bytes();
    const BLOCKS: u64 = 15_000;
    let options = LogOptions {
        capacity: BLOCKS * BLOCK,
        reuse: None,
    };
    let log = fs.create_log(Path::new("log"), options).unwrap();
    let before = fs.usage().journal_bytes;
    for i in (0..BLOCKS).step_by(2) {
        log.release_range(i * BLOCK..(i + 1) * BLOCK).unwrap();
        assert!(pending() <= bound, "{} bytes after hole {i}", pending());
    }
    assert!(fs.usage().journal_bytes > before, "some were written");
    drop(log);
    fs.remove(Path::new("log")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    let make = |i: u64| {
        let f = fs.create(Path::new(&format!("{i}"))).unwrap();
        f.append(&[IoSlice::new(&[1; 10])], Intent::Sync).unwrap();
        f.expect_appends(2 * BLOCK);
        f
    };
    let files: Vec<Arc<dyn File>> = (0..5_000).map(make).collect();
    fs.sync_metadata(Path::new("")).unwrap();
    let before = fs.usage().journal_bytes;
    for (i, f) in files.into_iter().enumerate() {
        drop(f);
        assert!(pending() <= bound, "{} bytes after file {i}", pending());
    }
    assert!(fs.usage().journal_bytes > before, "some were written");
}

/// After any history, the allocator counts as used exactly the blocks of files, journal and
/// checkpoint.
#[test]
fn the_allocator_counts_exactly_the_used_blocks() {
    for seed in 0..20u64 {
        let mut c = basalt_sim::rng::Rng::of(&[seed, 77]);
        let (_, fs) = fresh(512);
        let mut open: Vec<Arc<dyn File>> = Vec::new();
        for i in 0..200 {
            let name = format!("{}", c.below(12));
            let name = Path::new(&name);
            match c.below(9) {
                0 | 1 => open.extend(fs.create(name)),
                2 => {
                    let _ = fs.remove(name);
                }
                3 if !open.is_empty() => {
                    open.swap_remove(c.below(open.len() as u64) as usize);
                }
                4 => fs.sync_metadata(Path::new("")).unwrap(),
                5 if i % 5 == 0 => fs.checkpoint().unwrap(),
                6 => fs.discard(),
                _ => {
                    let n = c.below(open.len() as u64 + 1) as usize;
                    let Some(f) = open.get(n) else { continue };
                    let bytes = vec![7; c.below(60_000) as usize];
                    f.append(&[IoSlice::new(&bytes)], Intent::Sync).unwrap();
                    if c.coin() {
                        let from = c.below(60_000);
                        f.release_range(from..from + c.below(60_000)).unwrap();
                    }
                    if c.coin() {
                        f.sync_all().unwrap();
                    }
                    let _ = f.align_to_unit();
                }
            }
        }
        drop(open);
        let journal = fs.shared.journal.lock();
        let state = fs.shared.state.lock();
        let checkpoint = journal.superblock.checkpoint.iter().map(|r| r.len);
        let extents = journal.writer.extents() as u64;
        let metadata =
            checkpoint.sum::<u64>() + extents * u64::from(journal.superblock.journal_blocks);
        let files = state.meta.counts().blocks;
        assert_eq!(state.blocks.used(), files + metadata, "seed {seed}");
    }
}

/// Regression test: each hole of a file copied the list of all holes, in a running filesystem and
/// in each mount. 65,536 holes took two minutes, and a minute to mount.
#[test]
fn holes_take_few_steps_to_punch_and_to_mount() {
    let mut each = Vec::new();
    for holes in [1 << 12, 1 << 15] {
        let device = SimDevice::new(512 << 20, 512);
        format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
        let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
        let options = LogOptions {
            capacity: 2 * holes * BLOCK,
            reuse: None,
        };
        let log = fs.create_log(Path::new("log"), options).unwrap();
        let mut steps = Vec::new();
        let mut last = steps::steps();
        let mut lap = || {
            let now = steps::steps();
            steps.push((now - last) / holes);
            last = now;
        };
        for i in 0..holes {
            // Holes are made from both ends.
            let block = if i % 2 == 0 { i } else { 2 * holes - 1 - i } / 2 * 2;
            log.release_range(block * BLOCK..(block + 1) * BLOCK)
                .unwrap();
        }
        fs.sync_metadata(Path::new("")).unwrap();
        assert_eq!(fs.stat(Path::new("log")).unwrap().on_disk, holes * BLOCK);
        lap();
        // The mount reads all holes from the journal.
        let again = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
        assert_eq!(again.usage().extents, holes);
        lap();
        // The mount reads all holes from a checkpoint.
        fs.checkpoint().unwrap();
        let again = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
        assert_eq!(again.usage().extents, holes);
        lap();
        each.push(steps);
    }
    let (few, many) = (&each[0], &each[1]);
    for (few, many) in few.iter().zip(many) {
        assert!(
            *many <= 800 && *many <= 2 * few + 20,
            "{each:?} steps a hole"
        );
    }
}
