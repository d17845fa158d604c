//! The durability contract as checks that every filesystem passes: `HostFs`, `LavaFs`, `SimFs`,
//! `FaultFs` without faults, and future ones. The tests of a filesystem call [`run_all`]. A
//! filesystem whose power can be cut also calls [`crash::run_all`]. [`trace`] plays one random
//! history on two filesystems, which must give the same answers.
//!
//! A failed check panics with its name and the expected result.

pub mod crash;
pub mod trace;

use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::rng::Rng;
use basalt_fs::{
    Error, ErrorKind, File, FileSystem, Intent, Lifetime, LogOptions, ReadRequest, Result,
};

pub use trace::{Trace, random_trace};

/// A check of one promise on an empty filesystem.
pub type Check = fn(&Arc<dyn FileSystem>);

/// All checks that need no crash, by name.
pub const CHECKS: &[(&str, Check)] = &[
    ("facts are within their limits", facts),
    ("names are made, listed and missed", names),
    ("a rename replaces", rename_replaces),
    (
        "a removed file can be read while it is open",
        removed_is_readable,
    ),
    ("a full directory stays", full_directory_stays),
    ("links share one file", links_share),
    ("appends return offsets and are read at once", appends_read),
    ("large and vectored appends keep their bytes", large_appends),
    ("reads end where the space ends", reads_end),
    ("an opened file takes no appends", opened_is_read_only),
    (
        "aligning moves to the next unit and harms nothing",
        aligning,
    ),
    ("sync_all makes the length exact", exact_length),
    ("a log has its space and grows past it", log_space),
    ("only logs are extended", only_logs_extend),
    ("a reused log begins a new life", reuse),
    (
        "a log with a second name is not written over",
        reuse_of_linked,
    ),
    ("a failed reuse leaves the old log", failed_reuse),
    ("batched reads complete once each", batched_reads),
    ("several files are synced together", sync_files),
    ("released space harms nothing around it", release),
    (
        "appends go on after space around their position was released",
        release_around_position,
    ),
    ("a lock is held once and names its holder", locks),
    (
        "readers beside an appender see whole appends",
        readers_beside_appender,
    ),
];

/// Runs every check, each on an empty filesystem of its own from `make`.
///
/// # Panics
/// If a check fails. Its name is printed before.
pub fn run_all(make: &dyn Fn() -> Arc<dyn FileSystem>) {
    for (name, check) in CHECKS {
        eprintln!("conformance: {name}");
        check(&make());
    }
}

pub(crate) fn p(s: &str) -> &Path {
    Path::new(s)
}

pub(crate) fn append(f: &Arc<dyn File>, bytes: &[u8]) -> u64 {
    f.append(&[IoSlice::new(bytes)], Intent::Sync)
        .expect("append")
}

/// Returns bytes that differ by seed and position.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Rng::of(&[seed, 17]).fill(&mut v);
    v
}

pub(crate) const fn log(capacity: u64) -> LogOptions<'static> {
    LogOptions {
        capacity,
        reuse: None,
    }
}

#[track_caller]
fn expect_err<T>(result: Result<T>, kind: ErrorKind) -> Error {
    match result {
        Ok(_) => panic!("expected {}, got Ok", kind.name()),
        Err(e) => {
            assert_eq!(e.kind(), kind, "{e}");
            e
        }
    }
}

fn list(fs: &Arc<dyn FileSystem>, dir: &str) -> Vec<String> {
    let entries = fs.list(p(dir)).expect("list");
    assert!(entries.is_sorted(), "a list is sorted: {entries:?}");
    entries.into_iter().map(|e| e.name).collect()
}

fn facts(fs: &Arc<dyn FileSystem>) {
    let info = fs.info();
    assert!(info.write_unit.is_power_of_two() && (512..=4096).contains(&info.write_unit));
    assert!(!info.description.is_empty());
    assert!(["io_uring", "threads", "memory"].contains(&info.read_backend));
    let space = fs.space(p("")).expect("space");
    assert!(space.free <= space.total);
    let before = fs.stats();
    let f = fs.create(p("f")).expect("create");
    append(&f, &[1; 10_000]);
    f.sync_data().expect("sync");
    f.read(0, 10_000).expect("read");
    let after = fs.stats();
    assert!(after.bytes_written >= before.bytes_written + 10_000);
    assert!(after.bytes_read >= before.bytes_read + 10_000);
    assert!(after.writes > before.writes && after.reads > before.reads);
    assert!(after.syncs > before.syncs);
}

fn names(fs: &Arc<dyn FileSystem>) {
    assert_eq!(list(fs, ""), Vec::<String>::new());
    expect_err(fs.open(p("a")), ErrorKind::NotFound);
    expect_err(fs.stat(p("a")), ErrorKind::NotFound);
    expect_err(fs.remove(p("a")), ErrorKind::NotFound);
    expect_err(fs.rename(p("a"), p("b")), ErrorKind::NotFound);
    expect_err(fs.link(p("a"), p("b")), ErrorKind::NotFound);
    expect_err(fs.list(p("d")), ErrorKind::NotFound);
    expect_err(fs.sync_metadata(p("d")), ErrorKind::NotFound);
    expect_err(fs.create(p("d/a")), ErrorKind::NotFound);
    assert!(!fs.exists(p("a")).expect("exists"));
    fs.create_dir(p("d/e")).expect("create_dir");
    fs.create_dir(p("d/e"))
        .expect("a directory that exists is no error");
    for name in ["d/b", "d/a", "d/c"] {
        fs.create(p(name)).expect("create");
    }
    expect_err(fs.create(p("d/a")), ErrorKind::AlreadyExists);
    expect_err(fs.create_log(p("d/a"), log(0)), ErrorKind::AlreadyExists);
    expect_err(fs.link(p("d/a"), p("d/b")), ErrorKind::AlreadyExists);
    assert_eq!(list(fs, "d"), ["a", "b", "c", "e"]);
    assert!(fs.stat(p("d/e")).expect("stat").is_dir);
    assert!(!fs.stat(p("d/a")).expect("stat").is_dir);
    assert!(
        fs.list(p("d"))
            .expect("list")
            .iter()
            .all(|e| e.is_dir == (e.name == "e"))
    );
    fs.remove(p("d/e")).expect("remove an empty directory");
    fs.remove(p("d/b")).expect("remove");
    fs.sync_metadata(p("d")).expect("sync_metadata");
    fs.sync_metadata(p("")).expect("sync_metadata of the root");
    assert_eq!(list(fs, "d"), ["a", "c"]);
    assert!(fs.create_dir(p("d/a")).is_err(), "a file has the name");
}

fn rename_replaces(fs: &Arc<dyn FileSystem>) {
    fs.create_dir(p("d")).expect("create_dir");
    let (a, b) = (
        fs.create(p("a")).expect("create"),
        fs.create(p("d/b")).expect("create"),
    );
    append(&a, b"of a");
    append(&b, b"of b");
    fs.rename(p("a"), p("d/b")).expect("rename");
    assert!(!fs.exists(p("a")).expect("exists"));
    let opened = fs.open(p("d/b")).expect("open");
    assert_eq!(opened.read(0, 4).expect("read"), &b"of a"[..]);
    assert_eq!(
        b.read(0, 4).expect("read"),
        &b"of b"[..],
        "open handles keep reading"
    );
    assert_eq!(
        append(&a, b"!"),
        4,
        "a renamed file can still be appended to"
    );
    fs.rename(p("d/b"), p("d/b")).expect("to itself");
    assert_eq!(list(fs, "d"), ["b"]);
}

fn removed_is_readable(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("f")).expect("create");
    append(&f, b"old");
    let opened = fs.open(p("f")).expect("open");
    fs.remove(p("f")).expect("remove");
    let new = fs.create(p("f")).expect("the name is free");
    append(&new, b"new");
    assert_eq!(f.read(0, 3).expect("read"), &b"old"[..]);
    assert_eq!(opened.read(0, 3).expect("read"), &b"old"[..]);
    assert_eq!(
        fs.open(p("f")).expect("open").read(0, 3).expect("read"),
        &b"new"[..]
    );
}

fn full_directory_stays(fs: &Arc<dyn FileSystem>) {
    fs.create_dir(p("d")).expect("create_dir");
    fs.create(p("d/a")).expect("create");
    assert!(fs.remove(p("d")).is_err());
    assert_eq!(list(fs, "d"), ["a"]);
}

fn links_share(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("a")).expect("create");
    let links = |name: &str| fs.stat(p(name)).expect("stat").links;
    append(&f, b"one");
    assert_eq!(links("a"), 1);
    fs.link(p("a"), p("b")).expect("link");
    assert_eq!((links("a"), links("b")), (2, 2));
    append(&f, b" two");
    fs.remove(p("a")).expect("remove");
    assert_eq!(links("b"), 1);
    assert_eq!(list(fs, ""), ["b"]);
    let b = fs.open(p("b")).expect("open");
    assert_eq!(b.read(0, 7).expect("read"), &b"one two"[..]);
    fs.link(p("b"), p("c")).expect("link");
    fs.rename(p("b"), p("c"))
        .expect("two names of one file: nothing happens");
    assert_eq!((links("b"), links("c")), (2, 2));
    fs.create_dir(p("d/e")).expect("create_dir");
    assert_eq!(links("d"), 1, "of a directory");
    assert_eq!(
        fs.open(p("c")).expect("open").read(0, 7).expect("read"),
        &b"one two"[..]
    );
}

fn appends_read(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("f")).expect("create");
    assert!(f.is_empty());
    let mut model = Vec::new();
    for i in 0..200u64 {
        let bytes = noise(i, (i * 7 % 900) as usize);
        assert_eq!(append(&f, &bytes), model.len() as u64);
        model.extend_from_slice(&bytes);
        assert_eq!(f.len(), model.len() as u64);
        let from = (i * 131) as usize % (model.len() + 1);
        assert_eq!(
            f.read(from as u64, 2_000).expect("read")[..],
            model[from..].chunks(2_000).next().unwrap_or(&[])[..]
        );
    }
    assert!(f.allocated() >= f.len());
}

fn large_appends(fs: &Arc<dyn FileSystem>) {
    for (i, intent) in [Intent::Sync, Intent::Lazy, Intent::Bulk]
        .into_iter()
        .enumerate()
    {
        let f = fs.create(p(["a", "b", "c"][i])).expect("create");
        let unit = fs.info().write_unit;
        let (x, y, z) = (noise(1, unit * 700), noise(2, 3 << 20), noise(3, 12_345));
        let bufs = [
            IoSlice::new(&x),
            IoSlice::new(&[]),
            IoSlice::new(&y),
            IoSlice::new(&z),
        ];
        assert_eq!(f.append(&bufs, intent).expect("append"), 0);
        let many: Vec<IoSlice<'_>> = z.chunks(7).map(IoSlice::new).collect();
        let all = [&x[..], &y, &z, &z].concat();
        f.append(&many, intent)
            .expect("append of very many buffers");
        f.sync_data().expect("sync");
        assert_eq!(f.read(0, all.len()).expect("read"), all);
        assert_eq!(
            fs.open(p(["a", "b", "c"][i]))
                .expect("open")
                .read(0, all.len())
                .expect("read"),
            all
        );
    }
}

fn reads_end(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("f")).expect("create");
    assert_eq!(f.read(0, 10).expect("read").len(), 0);
    append(&f, b"abc");
    assert_eq!(f.read(1, 2).expect("read"), &b"bc"[..]);
    assert!(f.read(0, 1 << 20).expect("read").len() as u64 <= f.allocated());
    assert_eq!(f.read(1 << 40, 10).expect("read").len(), 0);
    assert_eq!(f.read(u64::MAX - 5, 100).expect("read").len(), 0);
}

fn opened_is_read_only(fs: &Arc<dyn FileSystem>) {
    append(&fs.create(p("f")).expect("create"), b"abc");
    let f = fs.open(p("f")).expect("open");
    expect_err(
        f.append(&[IoSlice::new(b"d")], Intent::Lazy),
        ErrorKind::ReadOnly,
    );
    expect_err(f.align_to_unit(), ErrorKind::ReadOnly);
    assert_eq!(f.read(0, 3).expect("read"), &b"abc"[..]);
}

fn aligning(fs: &Arc<dyn FileSystem>) {
    let unit = fs.info().write_unit as u64;
    for (name, f) in [
        ("plain", fs.create(p("plain")).expect("create")),
        (
            "log",
            fs.create_log(p("log"), log(unit * 8)).expect("create_log"),
        ),
    ] {
        assert_eq!(f.align_to_unit().expect("align"), 0);
        append(&f, b"first");
        f.sync_data().expect("sync");
        assert_eq!(f.align_to_unit().expect("align"), unit);
        assert_eq!(f.align_to_unit().expect("align"), unit);
        assert_eq!(f.len(), unit);
        assert_eq!(append(&f, b"second"), unit);
        f.sync_data().expect("sync");
        for f in [Arc::clone(&f), fs.open(p(name)).expect("open")] {
            assert_eq!(f.read(0, 5).expect("read"), &b"first"[..]);
            assert_eq!(f.read(unit, 6).expect("read"), &b"second"[..]);
            assert_eq!(f.read(0, unit as usize).expect("read").len() as u64, unit);
        }
    }
}

fn exact_length(fs: &Arc<dyn FileSystem>) {
    for (name, f) in [
        ("plain", fs.create(p("plain")).expect("create")),
        (
            "log",
            fs.create_log(p("log"), log(40_000)).expect("create_log"),
        ),
    ] {
        append(&f, &[7; 5_001]);
        f.sync_all().expect("sync_all");
        assert_eq!(f.len(), 5_001);
        let opened = fs.open(p(name)).expect("open");
        assert_eq!(opened.len(), 5_001);
        assert_eq!(fs.stat(p(name)).expect("stat").len, 5_001);
        assert_eq!(opened.read(0, 5_001).expect("read"), vec![7; 5_001]);
        let at = f.align_to_unit().expect("align");
        assert_eq!(append(&f, &[8; 100]), at, "appends go on after it");
        f.sync_data().expect("sync");
        assert_eq!(f.read(at, 100).expect("read"), vec![8; 100]);
    }
}

fn log_space(fs: &Arc<dyn FileSystem>) {
    let f = fs.create_log(p("log"), log(20_000)).expect("create_log");
    assert!(f.allocated() >= 20_000);
    assert!(fs.stat(p("log")).expect("stat").allocated >= 20_000);
    assert_eq!(f.len(), 0);
    if fs.info().zeroed {
        assert_eq!(f.read(0, 20_000).expect("read"), vec![0; 20_000]);
    }
    let bytes = noise(1, 50_000);
    let mut at = 0;
    for part in bytes.chunks(4_096) {
        assert_eq!(append(&f, part), at, "also past the capacity");
        at += part.len() as u64;
        f.sync_data().expect("sync");
    }
    assert_eq!(f.read(0, bytes.len()).expect("read"), bytes);
    f.extend_log(100_000).expect("extend_log");
    f.extend_log(10)
        .expect("less than there is: nothing happens");
    assert!(f.allocated() >= 100_000);
    assert_eq!(f.len(), bytes.len() as u64);
    let end = at.next_multiple_of(4096);
    let ahead = f.read(end, 8_192).expect("read");
    assert!(ahead.len() == 8_192 && (!fs.info().zeroed || ahead == vec![0; 8_192]));
    assert_eq!(f.read(0, bytes.len()).expect("read"), bytes);
    let none = fs.create_log(p("none"), log(0)).expect("create_log");
    append(&none, b"grows");
    assert_eq!(none.read(0, 5).expect("read"), &b"grows"[..]);
}

fn only_logs_extend(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("f")).expect("create");
    expect_err(f.extend_log(4_096), ErrorKind::InvalidArgument);
    assert_eq!(append(&f, b"abc"), 0, "a refused call poisons nothing");
}

fn reuse(fs: &Arc<dyn FileSystem>) {
    fs.create_dir(p("d")).expect("create_dir");
    let old = fs.create_log(p("old"), log(32_768)).expect("create_log");
    append(&old, &[1; 30_000]);
    old.sync_data().expect("sync");
    drop(old);
    let options = LogOptions {
        capacity: 65_536,
        reuse: Some(p("old")),
    };
    let new = fs.create_log(p("d/new"), options).expect("create_log");
    assert!(!fs.exists(p("old")).expect("exists"), "it loses its name");
    assert_eq!(new.len(), 0);
    assert!(new.allocated() >= 65_536);
    assert_eq!(append(&new, &[2; 1_000]), 0);
    new.sync_data().expect("sync");
    let at = new.align_to_unit().expect("align");
    append(&new, &[3; 40_000]);
    new.sync_data().expect("sync");
    let opened = fs.open(p("d/new")).expect("open");
    for f in [new, opened] {
        assert_eq!(f.read(0, 1_000).expect("read"), vec![2; 1_000]);
        assert_eq!(f.read(at, 40_000).expect("read"), vec![3; 40_000]);
    }
}

fn reuse_of_linked(fs: &Arc<dyn FileSystem>) {
    let old = fs.create_log(p("old"), log(16_384)).expect("create_log");
    append(&old, &[1; 10_000]);
    old.sync_data().expect("sync");
    fs.link(p("old"), p("checkpoint")).expect("link");
    let options = LogOptions {
        capacity: 16_384,
        reuse: Some(p("old")),
    };
    // The call may fail, or take other space. It must not overwrite the content of another name.
    if let Ok(new) = fs.create_log(p("new"), options) {
        append(&new, &[2; 10_000]);
        new.sync_data().expect("sync");
        assert_eq!(new.read(0, 10_000).expect("read"), vec![2; 10_000]);
        assert!(!fs.exists(p("old")).expect("exists"));
    }
    let kept = fs.open(p("checkpoint")).expect("open");
    assert_eq!(kept.read(0, 10_000).expect("read"), vec![1; 10_000]);
}

fn failed_reuse(fs: &Arc<dyn FileSystem>) {
    let reuse = LogOptions {
        capacity: 4_096,
        reuse: Some(p("old")),
    };
    expect_err(fs.create_log(p("new"), reuse), ErrorKind::NotFound);
    assert_eq!(list(fs, ""), Vec::<String>::new());
    append(
        &fs.create_log(p("old"), log(0)).expect("create_log"),
        b"kept",
    );
    append(&fs.create(p("taken")).expect("create"), b"also");
    expect_err(fs.create_log(p("taken"), reuse), ErrorKind::AlreadyExists);
    assert_eq!(
        fs.open(p("old")).expect("open").read(0, 4).expect("read"),
        &b"kept"[..]
    );
    assert_eq!(
        fs.open(p("taken")).expect("open").read(0, 4).expect("read"),
        &b"also"[..]
    );
}

fn batched_reads(fs: &Arc<dyn FileSystem>) {
    let (a, b) = (
        fs.create(p("a")).expect("create"),
        fs.create(p("b")).expect("create"),
    );
    let (x, y) = (noise(1, 300_000), noise(2, 100_000));
    append(&a, &x);
    append(&b, &y);
    a.sync_data().expect("sync");
    let b = fs.open(p("b")).expect("open");
    for n in [0usize, 1, 2, 64, 300] {
        let mut rng = Rng::new(n as u64);
        let plan: Vec<(bool, u64, usize)> = (0..n)
            .map(|_| (rng.coin(), rng.below(120_000), rng.below(20_000) as usize))
            .collect();
        let reads = plan
            .iter()
            .map(|&(first, offset, len)| ReadRequest {
                file: Arc::clone(if first { &a } else { &b }),
                offset,
                len,
                lifetime: match len % 2 {
                    0 => Lifetime::Brief,
                    _ => Lifetime::Cached,
                },
            })
            .collect();
        let mut seen = vec![false; n];
        let mut done = fs.submit_reads(reads);
        if rng.coin() {
            done.wait_all();
        }
        let mut turn = 0;
        loop {
            turn += 1;
            let next = if turn % 3 == 0 {
                done.try_next().or_else(|| done.next())
            } else {
                done.next()
            };
            let Some((i, bytes)) = next else { break };
            assert!(
                !std::mem::replace(&mut seen[i], true),
                "read {i} completed twice"
            );
            let (first, offset, len) = plan[i];
            let all = if first { &x } else { &y };
            let from = (offset as usize).min(all.len());
            let want = &all[from..(from + len).min(all.len())];
            let got = bytes.expect("read");
            // There may be allocated space past the length.
            assert!(
                got.len() >= want.len() && got[..want.len()] == *want,
                "read {i} of {n}"
            );
        }
        assert!(seen.iter().all(|s| *s));
        assert!(done.next().is_none() && done.try_next().is_none());
    }
    let unread = (0..50).map(|i| ReadRequest {
        file: Arc::clone(&a),
        offset: i * 1_000,
        len: 5_000,
        lifetime: Lifetime::Cached,
    });
    drop(fs.submit_reads(unread.collect()));
}

fn sync_files(fs: &Arc<dyn FileSystem>) {
    let files: Vec<Arc<dyn File>> = (0..5)
        .map(|i| {
            let name = format!("f{i}");
            match i % 2 {
                0 => fs.create(p(&name)).expect("create"),
                _ => fs.create_log(p(&name), log(8_192)).expect("create_log"),
            }
        })
        .collect();
    for (i, f) in files.iter().enumerate() {
        append(f, &noise(i as u64, 3_000));
    }
    fs.sync_files(&files).expect("sync_files");
    fs.sync_files(&[]).expect("of none");
    fs.sync_files(&files[..1]).expect("again, with nothing new");
    for (i, f) in files.iter().enumerate() {
        f.align_to_unit().expect("align");
        append(f, &[9; 10]);
        assert_eq!(f.read(0, 3_000).expect("read"), noise(i as u64, 3_000));
    }
    fs.sync_files(&files).expect("sync_files");
}

fn release(fs: &Arc<dyn FileSystem>) {
    let f = fs.create(p("f")).expect("create");
    let bytes = noise(5, 65_536);
    append(&f, &bytes);
    f.sync_all().expect("sync_all");
    f.release_range(5_000..40_000).expect("release_range");
    f.release_range(50_000..50_100)
        .expect("less than a block: nothing happens");
    assert_eq!(f.read(0, 5_000).expect("read")[..], bytes[..5_000]);
    assert_eq!(f.read(40_000, 25_536).expect("read")[..], bytes[40_000..]);
    match f.read(8_192, 28_672) {
        Ok(got) => assert!(got.iter().all(|b| *b == 0) || got[..] == bytes[8_192..36_864]),
        Err(e) => assert!(e.is_corruption(), "{e}"),
    }
    assert_eq!(f.len(), 65_536);
    let at = append(&f, b"more");
    assert_eq!(f.read(at, 4).expect("read"), &b"more"[..]);
}

/// A release of space around the append position, for [`release_case`].
pub(crate) struct ReleaseCase {
    /// Capacity of the log, `None` for a plain file.
    capacity: Option<u64>,
    /// Bytes that are appended before the release.
    head: usize,
    /// A sync comes before the release.
    synced: bool,
    range: Range<u64>,
    /// The same range is released a second time.
    twice: bool,
}

/// Number of cases that [`release_case`] makes.
pub(crate) const RELEASE_CASES: u64 = 4 * 4 * 2 * 8 * 2;

/// The case of a number below [`RELEASE_CASES`].
pub(crate) fn release_case(n: u64) -> ReleaseCase {
    let (kind, n) = (n % 4, n / 4);
    let (head, n) = ([10_000, 12_288, 0, 100][(n % 4) as usize], n / 4);
    let (synced, n) = (n % 2 == 1, n / 2);
    let at = head as u64;
    let range = match n % 8 {
        // All of the file, and far beyond it.
        0 => 0..at + (1 << 20),
        1 => 0..u64::MAX,
        // Up to the position, and from the position on.
        2 => 0..at,
        3 => at..at + 40_000,
        // Across the position.
        4 => at.saturating_sub(6_000)..at + 6_000,
        5 => 4_096..20_480,
        // Beyond the position, within the space of a log and behind it.
        6 => at + 9_000..at + 26_000,
        _ => at + (1 << 20)..at + (2 << 20),
    };
    ReleaseCase {
        capacity: [None, Some(0), Some(8_192), Some(65_536)][kind as usize],
        head,
        synced,
        range,
        twice: n / 8 % 2 == 1,
    }
}

/// An offset in a file, and the bytes there.
pub(crate) type Piece = (u64, Vec<u8>);

impl ReleaseCase {
    /// Makes the file, appends, releases and appends again. Returns the file, and each byte that a
    /// reader must find.
    pub(crate) fn run(&self, fs: &Arc<dyn FileSystem>, name: &str) -> (Arc<dyn File>, Vec<Piece>) {
        let f = match self.capacity {
            None => fs.create(p(name)).expect("create"),
            Some(capacity) => fs.create_log(p(name), log(capacity)).expect("create_log"),
        };
        let head = noise(7, self.head);
        append(&f, &head);
        if self.synced {
            f.sync_data().expect("sync");
            f.align_to_unit().expect("align");
        }
        let at = f.len();
        for _ in 0..=usize::from(self.twice) {
            f.release_range(self.range.clone()).expect("release_range");
        }
        assert_eq!(f.len(), at, "the append position stays");
        // The bytes outside of the whole blocks of the range stay.
        let released = self.range.start.next_multiple_of(4096)..self.range.end / 4096 * 4096;
        let clipped = |n: u64| n.min(self.head as u64) as usize;
        let (from, to) = (clipped(released.start), clipped(released.end));
        let mut kept = vec![(0, head[..from].to_vec())];
        kept.push((to.max(from) as u64, head[to.max(from)..].to_vec()));
        if released.is_empty() {
            kept = vec![(0, head)];
        }
        for (i, (len, intent)) in [
            (100, Intent::Lazy),
            (5_000, Intent::Sync),
            (9_000, Intent::Bulk),
            (30_000, Intent::Sync),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes = noise(i as u64, len);
            let at = f.append(&[IoSlice::new(&bytes)], intent);
            kept.push((at.expect("an append after a release"), bytes));
        }
        (f, kept)
    }
}

pub(crate) fn has_bytes(f: &Arc<dyn File>, kept: &[Piece], case: u64) {
    for (at, bytes) in kept {
        let got = f.read(*at, bytes.len()).expect("read");
        assert!(got == bytes[..], "release case {case}: bytes at {at}");
    }
}

/// An append failed with corruption, and poisoned its file, after space at its position had been
/// released. The bytes had no space to go to.
fn release_around_position(fs: &Arc<dyn FileSystem>) {
    for case in 0..RELEASE_CASES {
        let name = format!("f{case}");
        let (f, mut kept) = release_case(case).run(fs, &name);
        has_bytes(&f, &kept, case);
        f.sync_data().expect("sync");
        has_bytes(&fs.open(p(&name)).expect("open"), &kept, case);
        // A log is extended over its released space.
        let end = f.align_to_unit().expect("align");
        if release_case(case).capacity.is_some() && case % 3 == 0 {
            f.release_range(end..end + 100_000).expect("release_range");
            f.extend_log(end + 20_000).expect("extend_log");
        }
        let more = noise(9, 12_345);
        kept.push((append(&f, &more), more));
        f.sync_all().expect("sync_all");
        assert_eq!(f.len(), end + 12_345);
        has_bytes(&f, &kept, case);
        let opened = fs.open(p(&name)).expect("open");
        assert_eq!(opened.len(), end + 12_345);
        has_bytes(&opened, &kept, case);
        fs.remove(p(&name)).expect("remove");
        // Without a name, the file continues as before.
        f.release_range(0..end + 50_000).expect("release_range");
        f.align_to_unit().expect("align");
        let more = noise(10, 6_000);
        let kept = [(append(&f, &more), more)];
        f.sync_data().expect("sync");
        has_bytes(&f, &kept, case);
    }
}

fn locks(fs: &Arc<dyn FileSystem>) {
    let guard = fs.lock(p("LOCK")).expect("lock");
    let e = expect_err(fs.lock(p("LOCK")), ErrorKind::Busy);
    let pid = std::process::id().to_string();
    assert!(e.to_string().contains(&pid), "it names the holder: {e}");
    let other = fs.lock(p("OTHER")).expect("another lock");
    drop(guard);
    let again = fs.lock(p("LOCK")).expect("free again");
    drop((other, again));
    // Readers share the lock, and keep an exclusive holder out. A request for a missing lock
    // creates nothing.
    let shared = |name: &str| fs.lock_shared(p(name));
    let two = (shared("LOCK").expect("one"), shared("LOCK").expect("two"));
    assert!(two.0.is_some() && two.1.is_some());
    expect_err(fs.lock(p("LOCK")), ErrorKind::Busy);
    drop(two.0);
    expect_err(fs.lock(p("LOCK")), ErrorKind::Busy);
    drop(two.1);
    let alone = fs.lock(p("LOCK")).expect("readers are gone");
    assert_eq!(
        shared("LOCK").err().map(|e| e.kind()),
        Some(ErrorKind::Busy)
    );
    drop(alone);
    assert!(shared("NEVER").expect("no lock").is_none());
    assert!(!fs.exists(p("NEVER")).expect("stat"));
    expect_err(fs.lock(p("d/LOCK")), ErrorKind::NotFound);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the crate of threads is above this one"
)]
fn readers_beside_appender(fs: &Arc<dyn FileSystem>) {
    const RECORD: usize = 1_000;
    let f = fs.create_log(p("log"), log(100_000)).expect("create_log");
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !done.load(SeqCst) {
                    let whole = f.len() as usize / RECORD;
                    for i in whole.saturating_sub(3)..whole {
                        let got = f.read((i * RECORD) as u64, RECORD).expect("read");
                        assert_eq!(got, noise(i as u64, RECORD), "record {i}");
                    }
                }
            });
        }
        for i in 0..300 {
            append(&f, &noise(i, RECORD));
        }
        done.store(true, SeqCst);
    });
}
