//! The workloads on a filesystem, by the calls that engines make.

use super::Slice;
use super::target::Target;
use crate::Stop;
use crate::device::Measured;
use basalt::env::{Clock, Random, thread};
use basalt::fs::{AlignedBuf, File, Intent};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of a file of the append workload.
const FILE: u64 = 256 << 20;

/// Returns aligned bytes that no device can compress.
fn noise(len: usize) -> AlignedBuf {
    let random = Random::from_seed(len as u64);
    let mut buf = AlignedBuf::zeroed_direct(len);
    for part in buf.chunks_mut(8) {
        part.copy_from_slice(&random.next_u64().to_le_bytes()[..part.len()]);
    }
    buf
}

/// Runs `op` until the time has passed, and measures each call. `op` returns the bytes that it
/// appended.
fn until(
    time: Duration,
    clock: &Clock,
    mut op: impl FnMut() -> Result<u64, Stop>,
) -> Result<Slice, Stop> {
    let mut slice = Slice::default();
    let start = clock.now();
    let mut last = start;
    while last.saturating_sub(start) < time {
        slice.bytes += op()?;
        let now = clock.now();
        let took = now.saturating_sub(last);
        slice.measured.latency.record(took.as_nanos() as u64);
        slice.measured.ops += 1;
        last = now;
    }
    slice.measured.time = last.saturating_sub(start);
    Ok(slice)
}

/// Measures synced appends of 4 KiB into files of 256 MB.
pub fn appends(t: &mut Target, all: bool, time: Duration, clock: &Clock) -> Result<Slice, Stop> {
    let (fs, buf) = (t.fs(), noise(4096));
    let path = Path::new("append");
    let mut file = fs.create(path)?;
    fs.sync_metadata(Path::new(""))?;
    let done = until(time, clock, || {
        if file.len() >= FILE {
            fs.remove(path)?;
            file = fs.create(path)?;
            fs.sync_metadata(Path::new(""))?;
        }
        file.append(&[IoSlice::new(&buf)], Intent::Sync)?;
        match all {
            true => file.sync_all()?,
            false => file.sync_data()?,
        }
        Ok(buf.len() as u64)
    });
    drop(file);
    fs.remove(path)?;
    fs.sync_metadata(Path::new(""))?;
    done
}

/// Runs `work` on `threads` threads and sums up their results.
fn run_threads(
    threads: usize,
    clock: &Clock,
    work: impl Fn(usize) -> Result<Slice, Stop> + Send + Sync,
) -> Result<Slice, Stop> {
    let start = clock.now();
    let parts: Vec<Result<Slice, Stop>> = thread::scope(|s| {
        let work = &work;
        let handles: Vec<_> = (0..threads).map(|n| s.spawn(move || work(n))).collect();
        let all = handles.into_iter();
        all.map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    });
    let mut all = Slice {
        measured: Measured {
            time: clock.now().saturating_sub(start),
            ..Measured::default()
        },
        ..Slice::default()
    };
    for part in parts {
        let part = part?;
        all.bytes += part.bytes;
        all.measured.ops += part.measured.ops;
        all.measured.latency.merge(&part.measured.latency);
    }
    Ok(all)
}

/// Measures sixteen threads that append, with one sync at the end. Each append is a call of its
/// own, or one of many that the filesystem may batch.
pub fn writers(
    t: &mut Target,
    size: usize,
    bytes: u64,
    intent: Intent,
    clock: &Clock,
) -> Result<Slice, Stop> {
    const THREADS: usize = 16;
    let fs = t.fs();
    let path = |n: usize| PathBuf::from(format!("writer-{n}"));
    let done = run_threads(THREADS, clock, |n| {
        let (file, buf) = (fs.create(&path(n))?, noise(size));
        let mut slice = Slice::default();
        let mut last = clock.now();
        for _ in 0..(bytes / THREADS as u64).div_ceil(size as u64) {
            file.append(&[IoSlice::new(&buf)], intent)?;
            let now = clock.now();
            slice
                .measured
                .latency
                .record(now.saturating_sub(last).as_nanos() as u64);
            last = now;
            slice.measured.ops += 1;
            slice.bytes += size as u64;
        }
        file.sync_all()?;
        Ok(slice)
    });
    for n in 0..THREADS {
        fs.remove(&path(n))?;
    }
    fs.sync_metadata(Path::new(""))?;
    done
}

/// Number of files of the read workload.
const READ_FILES: u64 = 8;

pub fn prepare_reads(t: &mut Target, bytes: u64) -> Result<(), Stop> {
    let (fs, buf) = (t.fs(), noise(1 << 20));
    for n in 0..READ_FILES {
        let path = PathBuf::from(format!("read-{n}"));
        let file = fs.create(&path)?;
        for _ in 0..(bytes / READ_FILES).div_ceil(buf.len() as u64) {
            file.append(&[IoSlice::new(&buf)], Intent::Sync)?;
        }
        file.sync_all()?;
        drop(file);
        t.files.push(fs.open(&path)?);
    }
    Ok(fs.sync_metadata(Path::new(""))?)
}

pub fn end_reads(t: &mut Target) -> Result<(), Stop> {
    t.files.clear();
    let fs = t.fs();
    for n in 0..READ_FILES {
        fs.remove(Path::new(&format!("read-{n}")))?;
    }
    Ok(fs.sync_metadata(Path::new(""))?)
}

/// Measures reads of 4 KiB at random offsets.
pub fn reads(t: &mut Target, threads: usize, time: Duration, clock: &Clock) -> Result<Slice, Stop> {
    let files: Vec<Arc<dyn File>> = t.files.clone();
    run_threads(threads, clock, |n| {
        let random = Random::from_seed(n as u64 + 1);
        until(time, clock, || {
            let file = &files[random.below(files.len() as u64) as usize];
            let at = random.below(file.len() / 4096) * 4096;
            let got = file.read(at, 4096)?;
            match got.len() {
                4096 => Ok(0),
                n => Err(Stop::new(format!("a read of 4096 bytes gave {n}"))),
            }
        })
    })
}

/// Measures files that are made and removed again, with both steps durable.
pub fn small_files(
    t: &mut Target,
    threads: usize,
    bytes: usize,
    time: Duration,
    clock: &Clock,
) -> Result<Slice, Stop> {
    let fs = t.fs();
    let dir = |n: usize| PathBuf::from(format!("small-{n}"));
    for n in 0..threads {
        fs.create_dir(&dir(n))?;
    }
    fs.sync_metadata(Path::new(""))?;
    let done = run_threads(threads, clock, |n| {
        let (dir, buf) = (dir(n), noise(bytes.max(8)));
        let path = dir.join("file");
        until(time, clock, || {
            let file = fs.create(&path)?;
            if bytes > 0 {
                file.append(&[IoSlice::new(&buf[..bytes])], Intent::Sync)?;
                file.sync_all()?;
            }
            drop(file);
            fs.sync_metadata(&dir)?;
            fs.remove(&path)?;
            fs.sync_metadata(&dir)?;
            Ok(bytes as u64)
        })
    });
    for n in 0..threads {
        fs.remove(&dir(n))?;
    }
    fs.sync_metadata(Path::new(""))?;
    done
}

/// Measures synced appends of 4 KiB over 10,000 files, with a checkpoint every second if asked for.
pub fn sync_tail(
    t: &mut Target,
    syncs: u64,
    compacting: bool,
    clock: &Clock,
) -> Result<Slice, Stop> {
    const FILES: usize = 10_000;
    let fs = t.fs();
    let lava = t.lava().expect("of an image");
    let name = |n: usize| PathBuf::from(format!("many-{n}"));
    for n in 0..FILES {
        fs.create(&name(n))?;
    }
    fs.sync_metadata(Path::new(""))?;
    let over = AtomicBool::new(false);
    let mut left = syncs;
    let done = thread::scope(|s| {
        let over = &over;
        let beside = s.spawn(move || -> Result<(), Stop> {
            while compacting && !over.load(SeqCst) {
                lava.checkpoint()?;
                for _ in 0..100 {
                    if !over.load(SeqCst) {
                        clock.sleep(Duration::from_millis(10));
                    }
                }
            }
            Ok(())
        });
        let (path, buf) = (Path::new("tail"), noise(4096));
        let file = fs.create(path)?;
        let mut slice = Slice::default();
        let start = clock.now();
        let mut last = start;
        while left > 0 {
            left -= 1;
            file.append(&[IoSlice::new(&buf)], Intent::Sync)?;
            file.sync_data()?;
            let now = clock.now();
            slice
                .measured
                .latency
                .record(now.saturating_sub(last).as_nanos() as u64);
            slice.measured.ops += 1;
            slice.bytes += 4096;
            last = now;
        }
        slice.measured.time = last.saturating_sub(start);
        over.store(true, SeqCst);
        beside
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        fs.remove(path)?;
        Ok::<Slice, Stop>(slice)
    });
    over.store(true, SeqCst);
    for n in 0..FILES {
        fs.remove(&name(n))?;
    }
    fs.sync_metadata(Path::new(""))?;
    done
}

/// Measures the open of an image with 100,000 files and without a clean shutdown.
pub fn mount(t: &mut Target, clock: &Clock) -> Result<Slice, Stop> {
    const FILES: usize = 100_000;
    let name = |n: usize| PathBuf::from(format!("f-{n:06}"));
    {
        let fs = t.fs();
        if !fs.exists(&name(0))? {
            for n in 0..FILES {
                let file = fs.create(&name(n))?;
                file.expect_appends(4096);
            }
        }
        // These changes are in the journal alone.
        for n in 0..100 {
            fs.rename(&name(n), Path::new("aside"))?;
            fs.rename(Path::new("aside"), &name(n))?;
        }
        fs.sync_metadata(Path::new(""))?;
    }
    t.crash();
    let start = clock.now();
    t.mount()?;
    let took = clock.now().saturating_sub(start);
    let mut slice = Slice::default();
    slice.measured.ops = 1;
    slice.measured.time = took;
    slice.measured.latency.record(took.as_nanos() as u64);
    let found = t.lava().expect("of an image").usage().files;
    match found >= FILES as u64 {
        true => Ok(slice),
        false => Err(Stop::new(format!("a mount found {found} files"))),
    }
}
