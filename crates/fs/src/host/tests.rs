//! The host directory against the contract's rules, on the real kernel. Tests inject faults through
//! `sys`.
#![expect(
    clippy::disallowed_methods,
    reason = "these tests prepare and inspect real directories and threads"
)]

use basalt_sim::campaign;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use rustix::io::Errno;

use super::read;
use super::stage::STAGE_KEPT_MAX;
use super::sys::Fault;
use super::*;
use crate::AlignedBuf;
use crate::{ErrorKind, Intent, Lifetime};

mod log_space;
mod windows;

/// A directory for one test, removed afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        Dir::under(&std::env::temp_dir())
    }

    fn under(base: &Path) -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, SeqCst);
        let p = base.join(format!("basalt-host-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&p).unwrap();
        Dir(p)
    }

    fn fs(&self) -> Arc<HostFs> {
        HostFs::new(HostOptions::new(&self.0)).unwrap()
    }

    fn fs_with(&self, f: impl FnOnce(HostOptions) -> HostOptions) -> Arc<HostFs> {
        HostFs::new(f(HostOptions::new(&self.0))).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns bytes that differ at every offset and in every life.
fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|i| {
            (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd134_2543_de82_ef95))
                .to_le_bytes()[7]
                | 1
        })
        .collect()
}

/// A small random generator, so that a failing seed can be repeated.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn log(fs: &HostFs, name: &str, capacity: u64, reuse: Option<&str>) -> Arc<dyn File> {
    let reuse = reuse.map(Path::new);
    fs.create_log(Path::new(name), LogOptions { capacity, reuse })
        .unwrap()
}

fn host(f: &Arc<dyn File>) -> &HostFile {
    f.as_any().downcast_ref().unwrap()
}

fn put(f: &Arc<dyn File>, bytes: &[u8], intent: Intent) -> u64 {
    f.append(&[IoSlice::new(bytes)], intent).unwrap()
}

fn both_ways() -> [(&'static str, bool); 2] {
    [("direct", true), ("buffered", false)]
}

/// Random appends of every size, alignment, intent and cut equal a plain vector. The test reads
/// them back at random while some are unsynced, and again after reopening.
#[test]
fn buffers_of_brief_reads_have_few_sizes() {
    let mut sizes = std::collections::BTreeSet::new();
    for want in (512..=1 << 20).step_by(512) {
        let room = read::brief_room(want);
        assert!(room >= want && room <= want + want / 2, "{room} for {want}");
        if (STAGE_KEPT_MAX + 1..=384 << 10).contains(&want) {
            sizes.insert(room >> 10);
        } else {
            assert_eq!(room, want);
        }
    }
    assert_eq!(Vec::from_iter(sizes), [96, 128, 192, 256, 384]);
}

#[test]
fn random_appends_read_back() {
    for (name, direct) in both_ways() {
        for seed in campaign::cases(1..1 + 12 * campaign::scale()) {
            let _repeat = basalt_sim::repeat!(random_appends_read_back, "BASALT_CASE={seed}");
            let dir = Dir::new();
            let fs = dir.fs_with(|o| o.direct(direct));
            let mut rng = Rng(seed);
            let is_log = seed % 3 != 0;
            let f = if is_log && seed % 3 == 1 {
                windows::mapped_log(&fs, "f")
            } else if is_log {
                let old = log(&fs, "old", 256 * 1024, None);
                put(&old, &pattern(99, 0, 200 * 1024), Intent::Lazy);
                drop(old);
                log(&fs, "f", rng.below(600) * 1024, Some("old"))
            } else {
                fs.create(Path::new("f")).unwrap()
            };
            let say = format!("way={name} seed={seed}");
            let mut model: Vec<u8> = Vec::new();
            let mut defined: Vec<bool> = Vec::new();
            for _ in 0..60 {
                match rng.below(12) {
                    0 => {
                        let n = f.align_to_unit().unwrap() as usize;
                        assert_eq!(
                            n,
                            model.len().next_multiple_of(fs.info().write_unit),
                            "{say}"
                        );
                        model.resize(n, 0);
                        defined.resize(n, false);
                    }
                    1 => f.sync_data().unwrap(),
                    2 if is_log && rng.below(3) == 0 => {
                        f.extend_log(rng.below(1 << 20)).unwrap();
                    }
                    3 if rng.below(4) == 0 => {
                        f.sync_all().unwrap();
                        assert_eq!(
                            fs.stat(Path::new("f")).unwrap().len,
                            model.len() as u64,
                            "{say}"
                        );
                    }
                    _ => {
                        let unit = fs.info().write_unit as u64;
                        let size = match rng.below(5) {
                            0 => rng.below(200),
                            1 => rng.below(4) * unit,
                            2 => rng.below(40) * unit,
                            3 => rng.below(10_000),
                            _ => rng.below(300) * unit + rng.below(2) * 77,
                        };
                        let bytes = pattern(seed, model.len() as u64, size as usize);
                        // The memory is aligned or not, in one buffer or several.
                        let mut aligned = AlignedBuf::zeroed_direct(0);
                        aligned.extend_from_slice(&bytes);
                        let cut = rng.below(size + 1) as usize;
                        let cut = if rng.below(2) == 0 {
                            cut / 512 * 512
                        } else {
                            cut
                        };
                        let whole: &[u8] = if rng.below(2) == 0 { &aligned } else { &bytes };
                        let intent = if rng.below(2) == 0 {
                            Intent::Sync
                        } else {
                            Intent::Lazy
                        };
                        let bufs = [IoSlice::new(&whole[..cut]), IoSlice::new(&whole[cut..])];
                        let at = f.append(&bufs, intent).unwrap();
                        assert_eq!(at, model.len() as u64, "{say}");
                        model.extend_from_slice(&bytes);
                        defined.resize(model.len(), true);
                    }
                }
                assert_eq!(f.len(), model.len() as u64, "{say}");
                assert!(f.allocated() >= f.len(), "{say}");
                let other = fs.open(Path::new("f")).unwrap();
                for f in [&f, &other] {
                    let from = rng.below(model.len() as u64 + 1) as usize;
                    let len = rng.below(20_000) as usize;
                    let got = f.read(from as u64, len).unwrap();
                    let need = len.min(model.len() - from);
                    assert!(
                        got.len() >= need && got.len() <= len,
                        "{say} from={from} len={len}"
                    );
                    for i in 0..need {
                        assert!(
                            !defined[from + i] || got[i] == model[from + i],
                            "{say} byte {} is {} instead of {}",
                            from + i,
                            got[i],
                            model[from + i]
                        );
                    }
                }
            }
            f.sync_all().unwrap();
            drop(f);
            let f = fs.open(Path::new("f")).unwrap();
            assert_eq!(f.len(), model.len() as u64, "{say}");
            let got = f.read(0, usize::MAX).unwrap();
            assert_eq!(got.len(), model.len(), "{say}");
            assert!(
                (0..model.len()).all(|i| !defined[i] || got[i] == model[i]),
                "{say}"
            );
        }
    }
}

/// A reused log shows its earlier life behind the new appends, keeps its space, and loses its old
/// name.
#[test]
fn recycled_space_keeps_its_content_until_overwritten() {
    for (_, direct) in both_ways() {
        let dir = Dir::new();
        let fs = dir.fs_with(|o| o.direct(direct));
        let old = log(&fs, "1.log", 64 * 1024, None);
        let first = pattern(1, 0, 60 * 1024);
        put(&old, &first, Intent::Lazy);
        old.sync_data().unwrap();
        drop(old);
        let new = log(&fs, "2.log", 128 * 1024, Some("1.log"));
        assert!(!fs.exists(Path::new("1.log")).unwrap());
        assert_eq!(new.len(), 0);
        assert_eq!(new.allocated(), 128 * 1024);
        assert!(new.read(0, first.len()).unwrap()[..] == first[..]);
        assert!(
            new.read(64 * 1024, 64 * 1024)
                .unwrap()
                .iter()
                .all(|b| *b == 0)
        );
        let second = pattern(2, 0, 5 * 512);
        put(&new, &second, Intent::Sync);
        new.sync_data().unwrap();
        let got = new.read(0, first.len()).unwrap();
        assert!(got[..second.len()] == second[..]);
        // Through the page cache, the rest of the last page is zeros, and the next page is
        // unchanged.
        assert!(got[4096..] == first[4096..]);
        let rest = &got[second.len()..4096];
        assert!(rest == &first[second.len()..4096] || rest.iter().all(|b| *b == 0));
        // The name of a new log must be free. If it is taken, the old log is unchanged.
        let again = LogOptions {
            capacity: 1 << 20,
            reuse: Some(Path::new("2.log")),
        };
        fs.create(Path::new("3.log")).unwrap();
        let e = fs.create_log(Path::new("3.log"), again).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
        assert_eq!(fs.stat(Path::new("2.log")).unwrap().allocated, 128 * 1024);
    }
}

/// Reuse does not overwrite a log that a checkpoint links.
#[test]
fn a_log_with_a_second_name_is_not_reused() {
    let dir = Dir::new();
    let fs = dir.fs();
    let old = log(&fs, "1.log", 8192, None);
    put(&old, &pattern(1, 0, 4096), Intent::Sync);
    fs.link(Path::new("1.log"), Path::new("checkpoint"))
        .unwrap();
    let options = LogOptions {
        capacity: 8192,
        reuse: Some(Path::new("1.log")),
    };
    let e = fs.create_log(Path::new("2.log"), options).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(fs.exists(Path::new("1.log")).unwrap());
    assert!(!fs.exists(Path::new("2.log")).unwrap());
    fs.remove(Path::new("checkpoint")).unwrap();
    fs.create_log(Path::new("2.log"), options).unwrap();
}

#[test]
fn a_failed_append_poisons_appends() {
    let dir = Dir::new();
    let fs = dir.fs();
    for fault in [
        Fault::Write(Errno::NOSPC),
        Fault::ShortWrite(100, Errno::NOSPC),
    ] {
        let name = format!("{fault:?}");
        let f = fs.create(Path::new(&name)).unwrap();
        put(&f, b"first", Intent::Lazy);
        fs.shared.sys.faults.lock().push_back(fault);
        let e = f
            .append(&[IoSlice::new(&[7; 300])], Intent::Lazy)
            .unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::NoSpace, Some(5)), "{e}");
        assert!(e.to_string().contains("appending 300 bytes"), "{e}");
        let e = f.append(&[IoSlice::new(b"x")], Intent::Lazy).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
        assert!(f.align_to_unit().is_err());
        // Earlier appends can still be made durable and read.
        f.sync_data().unwrap();
        assert_eq!(f.len(), 5);
        assert_eq!(&f.read(0, 5).unwrap()[..], b"first");
    }
}

#[test]
fn a_failed_sync_poisons_and_is_never_repeated() {
    let dir = Dir::new();
    let fs = dir.fs();
    for errno in [Errno::IO, Errno::NOSPC, Errno::INTR] {
        let f = log(&fs, &format!("{}", errno.raw_os_error()), 8192, None);
        put(&f, &[1; 512], Intent::Sync);
        fs.shared.sys.faults.lock().push_back(Fault::Sync(errno));
        let before = fs.stats().syncs;
        assert_ne!(f.sync_data().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(fs.stats().syncs, before + 1);
        for e in [
            f.sync_data().unwrap_err(),
            f.sync_all().unwrap_err(),
            f.append(&[IoSlice::new(&[1; 512])], Intent::Sync)
                .unwrap_err(),
            f.extend_log(1 << 20).unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
        }
        assert_eq!(fs.stats().syncs, before + 1);
        assert_eq!(f.read(0, 512).unwrap().len(), 512);
    }
}

/// The failure of a common sync poisons all its files. A file that was poisoned before does not
/// poison the others.
#[test]
fn sync_of_several_files_shares_its_failure() {
    let dir = Dir::new();
    let fs = dir.fs();
    let files: Vec<_> = (0..3)
        .map(|i| log(&fs, &format!("{i}"), 8192, None))
        .collect();
    for f in &files {
        put(f, &[1; 512], Intent::Sync);
    }
    fs.shared
        .sys
        .faults
        .lock()
        .push_back(Fault::Sync(Errno::IO));
    assert!(fs.sync_files(&files).is_err());
    for f in &files {
        assert_eq!(f.sync_data().unwrap_err().kind(), ErrorKind::Poisoned);
    }
    let well = log(&fs, "well", 8192, None);
    assert!(fs.sync_files(&[files[0].clone(), well.clone()]).is_err());
    put(&well, &[1; 512], Intent::Sync);
    well.sync_data().unwrap();
}

/// Direct writes into written space need one flush for all; anything else needs its own sync.
#[test]
fn one_device_flush_syncs_several_logs() {
    let dir = Dir::new();
    let fs = dir.fs();
    let files: Vec<_> = (0..3)
        .map(|i| log(&fs, &format!("{i}"), 16384, None))
        .collect();
    let one = vec![1; fs.info().write_unit];
    let syncs = |files: &[Arc<dyn File>]| {
        let before = fs.stats().syncs;
        fs.sync_files(files).unwrap();
        fs.stats().syncs - before
    };
    for f in &files {
        put(f, &one, Intent::Sync);
    }
    let light = files.iter().all(|f| host(f).flushes_device());
    assert_eq!(syncs(&files), if light { 1 } else { 3 });
    // One lazy append, and one past the capacity.
    put(&files[0], &one, Intent::Lazy);
    put(&files[1], &[2; 32768], Intent::Sync);
    put(&files[2], &one, Intent::Sync);
    assert_eq!(syncs(&files), if light { 2 } else { 3 });
    assert_eq!(syncs(&files), if light { 1 } else { 3 });
}

/// A sync between the start of an append and the move of its bytes covers none of the bytes. So a
/// flush of the device is not enough afterwards.
#[test]
fn a_sync_during_an_append_does_not_cover_it() {
    let dir = Dir::new();
    let fs = dir.fs();
    let unit = fs.info().write_unit;
    let lazy = log(&fs, "lazy", 16384, None);
    let grows = log(&fs, "grows", 16384, None);
    let mapped = windows::mapped_log(&fs, "mapped");
    let cases = [
        (&lazy, Intent::Lazy, 100),
        (&grows, Intent::Sync, 8 * 16384_usize),
        (&mapped, Intent::Lazy, 100),
    ];
    for (f, intent, len) in cases {
        f.sync_data().unwrap();
        let light = host(f).flushes_device();
        assert_eq!(host(f).flush_is_enough(), light);
        let syncs = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (beside, count) = (f.clone(), syncs.clone());
        *fs.shared.sys.beside.lock() = Some(Box::new(move || {
            host(&beside).sync_now(false).unwrap();
            count.fetch_add(1, SeqCst);
        }));
        put(
            f,
            &vec![3; len.next_multiple_of(if intent == Intent::Sync { unit } else { 1 })],
            intent,
        );
        *fs.shared.sys.beside.lock() = None;
        assert!(syncs.load(SeqCst) > 0, "a sync came between");
        assert!(!host(f).flush_is_enough(), "{intent:?}, {len} bytes");
        f.sync_data().unwrap();
        assert_eq!(host(f).flush_is_enough(), light);
    }
}

#[test]
fn the_lock_names_its_holder() {
    let dir = Dir::new();
    let fs = dir.fs();
    let path = Path::new("LOCK");
    std::fs::write(
        dir.0.join("LOCK"),
        "pid 999999999\ncommand long dead\nrubbish",
    )
    .unwrap();
    let guard = fs.lock(path).unwrap();
    let e = fs.lock(path).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Busy);
    assert!(
        e.to_string()
            .contains(&format!("this process itself {}", std::process::id())),
        "{e}"
    );
    drop(guard);
    drop(fs.lock(path).unwrap());

    // Another process: if `flock` of util-linux is installed, it holds the file, and the message
    // names it.
    let file = dir.0.join("LOCK");
    let child = std::process::Command::new("flock")
        .arg(&file)
        .args([
            "-c",
            &format!(
                "echo \"pid $$\ncommand sh\" > {}; echo ready; read x",
                file.display()
            ),
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return };
    let mut ready = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let e = fs.lock(path).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Busy);
    let text = e.to_string();
    assert!(
        text.contains("in use by process ") && text.contains("stop it, or use another directory"),
        "{text}"
    );
    drop(child.stdin.take());
    child.wait().unwrap();
    fs.lock(path).unwrap();

    // A reader in another process writes no name. The kernel names it, and not the dead owner that
    // left its own.
    std::fs::write(&file, "pid 1\ncommand dead\n").unwrap();
    let reader = std::process::Command::new("flock")
        .args(["--shared", "--no-fork"])
        .arg(&file)
        .args(["sh", "-c", "echo ready; read x"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut reader = reader.unwrap();
    std::io::Read::read_exact(reader.stdout.as_mut().unwrap(), &mut ready).unwrap();
    drop(fs.lock_shared(path).unwrap());
    let text = fs.lock(path).err().unwrap().to_string();
    let says = format!("in use by process {} (", reader.id());
    assert!(text.contains(&says), "{text}");
    drop(reader.stdin.take());
    reader.wait().unwrap();
}

/// Every backend gives the same results, for batches smaller and larger than the ring, whether they
/// are read to the end or dropped early.
#[test]
fn read_backends_agree() {
    let dir = Dir::new();
    let writer = dir.fs();
    let f = writer.create(Path::new("t")).unwrap();
    let content = pattern(5, 0, 1_000_123);
    put(&f, &content, Intent::Lazy);
    f.sync_all().unwrap();
    let mut systems = vec![
        dir.fs_with(|o| o.read_backend(ReadBackend::Threads).read_threads(3)),
        dir.fs_with(|o| o.read_backend(ReadBackend::Threads).direct(false)),
    ];
    for direct in [true, false] {
        let o = HostOptions::new(&dir.0)
            .direct(direct)
            .read_backend(ReadBackend::IoUring);
        match HostFs::new(o) {
            Ok(fs) => systems.push(fs),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported),
        }
    }
    for fs in systems {
        let say = fs.info().description;
        let f = fs.open(Path::new("t")).unwrap();
        let mut rng = Rng(11);
        for n in [0, 1, 2, 63, 64, 65, 300] {
            let reads: Vec<_> = (0..n)
                .map(|i| ReadRequest {
                    file: f.clone(),
                    offset: rng.below(1_010_000),
                    len: match i % 7 {
                        3 => 0,
                        5 => rng.below(500_000) as usize,
                        _ => rng.below(30_000) as usize,
                    },
                    lifetime: match i % 2 {
                        0 => Lifetime::Brief,
                        _ => Lifetime::Cached,
                    },
                })
                .collect();
            let mut batch = fs.submit_reads(reads.clone());
            let mut seen = vec![false; n];
            if rng.below(3) == 0 {
                batch.wait_all();
            }
            while let Some((i, r)) = if rng.below(2) == 0 {
                batch.next()
            } else {
                batch.try_next().or_else(|| batch.next())
            } {
                assert!(!std::mem::replace(&mut seen[i], true), "{say}: {i} twice");
                let from = (reads[i].offset as usize).min(content.len());
                let to = (from + reads[i].len).min(content.len());
                assert!(
                    r.unwrap()[..] == content[from..to],
                    "{say}: read {i} of {n}"
                );
            }
            assert!(seen.iter().all(|s| *s), "{say}");
            assert!(batch.next().is_none());
            // The batch is dropped early, also by another thread than the one that submitted it.
            let mut early = fs.submit_reads(reads);
            early.next();
            std::thread::scope(|s| {
                s.spawn(move || drop(early));
            });
        }
        // A batch outlives the thread that submitted it.
        let requests: Vec<_> = (0..200)
            .map(|i| ReadRequest {
                file: f.clone(),
                offset: i * 4096,
                len: 4096,
                lifetime: Lifetime::Cached,
            })
            .collect();
        let fs2 = fs.clone();
        let mut batch = std::thread::spawn(move || fs2.submit_reads(requests))
            .join()
            .unwrap();
        let mut n = 0;
        while let Some((i, r)) = batch.next() {
            assert!(r.unwrap()[..] == content[i * 4096..(i + 1) * 4096], "{say}");
            n += 1;
        }
        assert_eq!(n, 200, "{say}");
    }
}

/// Errors reach the completions, one for each read.
#[test]
fn batch_errors_name_the_file() {
    let dir = Dir::new();
    for backend in [ReadBackend::Auto, ReadBackend::Threads] {
        let fs = dir.fs_with(|o| o.read_backend(backend).direct(false));
        // A handle for writing only cannot be read. This is the nearest thing to a failing device.
        let path = dir.0.join("w");
        std::fs::write(&path, [1; 4096]).unwrap();
        let fd = rustix::fs::open(&path, OFlags::WRONLY, Mode::empty()).unwrap();
        let opened = fs.with_direct(&path, OFlags::WRONLY, fd).unwrap();
        let f: Arc<dyn File> = Arc::new(HostFile::new(
            fs.shared.clone(),
            path,
            Kind::ReadOnly,
            opened,
        ));
        let read = ReadRequest {
            file: f,
            offset: 10,
            len: 20,
            lifetime: Lifetime::Cached,
        };
        let mut batch = fs.submit_reads(vec![read; 5]);
        for _ in 0..5 {
            let e = batch.next().unwrap().1.unwrap_err();
            assert_eq!((e.kind(), e.offset()), (ErrorKind::Io, Some(10)), "{e}");
            assert!(e.to_string().contains("reading 20 bytes"), "{e}");
        }
        assert!(batch.next().is_none());
    }
}

/// Zeros that are written ahead never land on appended bytes, inside or past the present capacity.
#[test]
fn extending_a_log_keeps_concurrent_appends() {
    for (name, direct) in both_ways() {
        let dir = Dir::new();
        let fs = dir.fs_with(|o| o.direct(direct));
        let f = log(&fs, "l", 64 * 1024, None);
        let goal = 12 << 20;
        std::thread::scope(|s| {
            let g = f.clone();
            s.spawn(move || {
                for capacity in (0..=goal).step_by(3 << 20) {
                    g.extend_log(capacity).unwrap();
                }
            });
            let mut at = 0;
            for i in 0..150u64 {
                // Large appends run ahead of the zeros.
                let len = if i % 10 == 0 {
                    512 * 1024
                } else {
                    512 * (1 + i as usize % 5)
                };
                let intent = if i % 3 == 0 {
                    Intent::Lazy
                } else {
                    Intent::Sync
                };
                assert_eq!(put(&f, &pattern(3, at, len), intent), at);
                at += len as u64;
                if i % 8 == 0 {
                    f.sync_data().unwrap();
                }
            }
        });
        f.sync_data().unwrap();
        let end = f.len() as usize;
        assert!(f.allocated() >= goal, "{name}");
        let got = fs
            .open(Path::new("l"))
            .unwrap()
            .read(0, f.allocated() as usize)
            .unwrap();
        assert!(got[..end] == pattern(3, 0, end)[..], "{name}");
        assert!(got[end..].iter().all(|b| *b == 0), "{name}");
    }
}

/// A write of more buffers than one call takes, aligned and not, and of more bytes than the staging
/// memory holds.
#[test]
fn large_vectored_appends_read_back() {
    let dir = Dir::new();
    let fs = dir.fs();
    let mut aligned = AlignedBuf::zeroed_direct(0);
    aligned.extend_from_slice(&pattern(8, 0, 3 << 20));
    let odd = pattern(9, 0, 3000 * 1000);
    for intent in [Intent::Sync, Intent::Lazy] {
        let f = log(&fs, &format!("{intent:?}"), 1 << 20, None);
        let pieces: Vec<_> = aligned.chunks(1024).map(IoSlice::new).collect();
        assert_eq!(pieces.len(), 3072);
        f.append(&pieces, intent).unwrap();
        let mut bufs: Vec<_> = odd.chunks(1000).map(IoSlice::new).collect();
        let pad = vec![0; odd.len().next_multiple_of(512) - odd.len()];
        bufs.push(IoSlice::new(&pad));
        bufs.insert(7, IoSlice::new(&[]));
        assert_eq!(f.append(&bufs, intent).unwrap(), 3 << 20);
        f.sync_data().unwrap();
        let f = fs.open(Path::new(&format!("{intent:?}"))).unwrap();
        assert!(f.read(0, 3 << 20).unwrap()[..] == aligned[..]);
        assert!(f.read(3 << 20, odd.len()).unwrap()[..] == odd[..]);
    }
}

/// A filesystem without direct I/O is used through the page cache, and `info` reports it.
#[test]
fn refused_direct_io_falls_back_and_is_reported() {
    let shm = Path::new("/dev/shm");
    if !rustix::fs::statfs(shm).is_ok_and(|s| s.f_type as u64 == 0x0102_1994) {
        return;
    }
    let dir = Dir::under(shm);
    let fs = dir.fs();
    let info = fs.info();
    assert!(!info.direct);
    assert!(
        info.description.contains("page cache"),
        "{}",
        info.description
    );
    let f = log(&fs, "l", 8192, None);
    put(&f, &pattern(1, 0, 1024), Intent::Sync);
    f.sync_data().unwrap();
    assert!(f.read(0, 1024).unwrap()[..] == pattern(1, 0, 1024)[..]);
    let again = log(&fs, "m", 16384, Some("l"));
    assert_eq!(again.allocated(), 16384);
    assert!(!host(&again).flush_is_enough());
}

#[test]
fn invalid_names_are_refused() {
    let dir = Dir::new();
    let fs = HostFs::new(HostOptions::new(dir.0.join("not/yet"))).unwrap();
    assert_eq!(
        fs.list(Path::new("")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    fs.create_dir(Path::new("")).unwrap();
    fs.create_dir(Path::new("a/b/c")).unwrap();
    fs.create_dir(Path::new("a/b/c")).unwrap();
    let f = fs.create(Path::new("a/f")).unwrap();
    put(&f, b"x", Intent::Lazy);
    assert_eq!(
        fs.create(Path::new("a/f")).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        fs.create_dir(Path::new("a/f")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        fs.link(Path::new("a/f"), Path::new("a/b"))
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    for e in [
        fs.open(Path::new("a")).err().unwrap(),
        fs.list(Path::new("a/f")).unwrap_err(),
        fs.sync_metadata(Path::new("a/f")).unwrap_err(),
        fs.link(Path::new("a"), Path::new("z")).unwrap_err(),
    ] {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let e = fs.open(Path::new("a/none")).err().unwrap();
    assert!(
        e.is_not_found() && e.to_string().contains("opening a file"),
        "{e}"
    );
    assert!(fs.remove(Path::new("a")).is_err());
    let names: Vec<_> = fs
        .list(Path::new("a"))
        .unwrap()
        .into_iter()
        .map(|e| (e.name, e.is_dir))
        .collect();
    assert_eq!(names, [("b".into(), true), ("f".into(), false)]);
    fs.rename(Path::new("a/f"), Path::new("a/g")).unwrap();
    fs.link(Path::new("a/g"), Path::new("a/h")).unwrap();
    fs.sync_metadata(Path::new("a")).unwrap();
    fs.remove(Path::new("a/g")).unwrap();
    assert_eq!(&f.read(0, 9).unwrap()[..], b"x");
    // An absolute path is not joined to the root.
    assert!(fs.exists(&dir.0.join("not/yet/a/h")).unwrap());
    fs.remove(Path::new("a/b/c")).unwrap();
    assert!(!fs.exists(Path::new("a/b/c")).unwrap());
    let e = fs
        .open(Path::new("a/h"))
        .unwrap()
        .append(&[IoSlice::new(b"y")], Intent::Lazy)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    assert_eq!(
        f.extend_log(1).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let space = fs.space(Path::new("")).unwrap();
    assert!(space.free <= space.total && space.total > 0);
    assert!(HostFs::new(HostOptions::new(&dir.0).write_unit(1000)).is_err());
    // Absurd ranges neither panic nor allocate.
    assert!(f.read(u64::MAX, usize::MAX).unwrap().is_empty());
    assert_eq!(f.read(0, usize::MAX).unwrap().len(), 1);
    f.release_range(5..u64::MAX).unwrap();
    f.release_range(u64::MAX - 1..u64::MAX).unwrap();
}

/// The bytes of a direct read lie in the memory that the device wrote to.
#[test]
fn read_buffers_outlive_the_file() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = fs.create(Path::new("t")).unwrap();
    put(&f, &pattern(4, 0, 100_000), Intent::Lazy);
    f.sync_data().unwrap();
    let bytes = f.read(777, 50_000).unwrap();
    let part = bytes.slice(5..);
    drop((f, fs, bytes));
    assert!(part[..] == pattern(4, 782, 49_995)[..]);
}

/// Zeros that complete a page do not count as appended bytes, and a lazy append inside a page adds
/// none.
#[test]
fn appended_and_prewritten_bytes_are_counted_apart() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = log(&fs, "l", 64 * 1024, None);
    assert_eq!(fs.stats().bytes_prewritten, 64 * 1024);
    for _ in 0..5 {
        put(&f, &[1; 1000], Intent::Lazy);
    }
    let stats = fs.stats();
    assert_eq!(stats.bytes_written, 5000);
    assert_eq!(stats.bytes_prewritten, 64 * 1024 + 3096 + 3192);
    f.read(0, 5000).unwrap();
    assert_eq!(fs.stats().bytes_read, 5000);
}
