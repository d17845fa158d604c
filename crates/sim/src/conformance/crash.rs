//! Checks of the state after a power cut, for filesystems whose power can be cut.

use std::sync::Arc;

use super::{RELEASE_CASES, append, has_bytes, log, noise, p, release_case};
use basalt_fs::{FileSystem, LogOptions};

/// Cuts the power of one filesystem, and returns the filesystem that a new process finds
/// afterwards. The seed chooses that state. The old filesystem may go on or be dead.
pub type PowerCut = Box<dyn Fn(u64) -> Arc<dyn FileSystem>>;

/// A check of one promise. It writes to an empty filesystem, cuts the power and examines the
/// result.
pub type CrashCheck = fn(&Arc<dyn FileSystem>, &PowerCut, u64);

/// Every check, by name.
pub const CHECKS: &[(&str, CrashCheck)] = &[
    (
        "synced bytes survive, whatever is appended after",
        synced_bytes,
    ),
    ("bytes synced beside appends survive", synced_beside_appends),
    ("sync_all's length is exact", exact_length),
    (
        "synced names survive, removed names do not return",
        synced_names,
    ),
    ("a rename is atomic", atomic_rename),
    ("a synced rename stays", synced_rename),
    ("a sector is written whole or not at all", whole_sectors),
    ("a log's written space survives", log_space),
    ("a reused log keeps what its new life synced", reused_log),
    (
        "files synced together survive together",
        sync_files_as_a_group,
    ),
    ("a link survives with its bytes", synced_link),
    ("what a power cut left stays", left_stays),
    (
        "synced bytes survive in space that had been released",
        released_space,
    ),
];

/// Runs every check with each seed below `seeds`. `make` returns an empty filesystem and the switch
/// of its power.
///
/// # Panics
/// If a check fails. The message names the check and the seed.
pub fn run_all(make: &dyn Fn(u64) -> (Arc<dyn FileSystem>, PowerCut), seeds: u64) {
    for (name, check) in CHECKS {
        for seed in 0..seeds {
            let (fs, cut) = make(seed);
            let run = std::panic::AssertUnwindSafe(|| check(&fs, &cut, seed));
            if let Err(e) = std::panic::catch_unwind(run) {
                eprintln!("conformance: \"{name}\" fails with seed {seed}");
                std::panic::resume_unwind(e);
            }
        }
    }
}

fn synced_bytes(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let f = fs.create(p("f")).expect("create");
    fs.sync_metadata(p("")).expect("sync_metadata");
    let mut records = Vec::new();
    for i in 0..5 {
        let bytes = noise(
            seed + i,
            1 + (seed as usize * 377 + i as usize * 900) % 5_000,
        );
        records.push((append(&f, &bytes), bytes));
        f.sync_data().expect("sync");
        f.align_to_unit().expect("align");
    }
    append(&f, &noise(99, 9_000));
    let after = cut(seed);
    let f = after.open(p("f")).expect("open");
    for (at, bytes) in records {
        assert_eq!(f.read(at, bytes.len()).expect("read"), bytes);
    }
}

fn exact_length(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let len = 1 + (seed as usize * 997) % 20_000;
    let f = fs.create(p("f")).expect("create");
    let l = fs.create_log(p("l"), log(40_960)).expect("create_log");
    for f in [&f, &l] {
        append(f, &noise(seed, len));
        f.sync_all().expect("sync_all");
    }
    fs.sync_metadata(p("")).expect("sync_metadata");
    let after = cut(seed);
    for name in ["f", "l"] {
        let f = after.open(p(name)).expect("open");
        assert_eq!(f.len(), len as u64);
        assert_eq!(after.stat(p(name)).expect("stat").len, len as u64);
        assert_eq!(f.read(0, len).expect("read"), noise(seed, len));
    }
}

fn synced_names(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    fs.create_dir(p("d")).expect("create_dir");
    fs.create(p("d/gone")).expect("create");
    fs.sync_metadata(p("")).expect("sync_metadata");
    fs.sync_metadata(p("d")).expect("sync_metadata");
    fs.create(p("d/a")).expect("create");
    fs.remove(p("d/gone")).expect("remove");
    fs.sync_metadata(p("d")).expect("sync_metadata");
    fs.create(p("d/maybe")).expect("create");
    let after = cut(seed);
    let names: Vec<String> = after
        .list(p("d"))
        .expect("list")
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert!(names == ["a"] || names == ["a", "maybe"], "{names:?}");
}

fn atomic_rename(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    for (name, content) in [("CURRENT", b"old"), ("tmp", b"new")] {
        let f = fs.create(p(name)).expect("create");
        append(&f, content);
        f.sync_all().expect("sync_all");
        fs.sync_metadata(p("")).expect("sync_metadata");
    }
    fs.rename(p("tmp"), p("CURRENT")).expect("rename");
    let after = cut(seed);
    let got = after
        .open(p("CURRENT"))
        .expect("open")
        .read(0, 3)
        .expect("read");
    let tmp = after.exists(p("tmp")).expect("exists");
    assert!((got == b"old"[..] && tmp) || (got == b"new"[..] && !tmp));
}

fn synced_rename(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    for (name, content) in [("CURRENT", b"old"), ("tmp", b"new")] {
        let f = fs.create(p(name)).expect("create");
        append(&f, content);
        f.sync_all().expect("sync_all");
    }
    fs.rename(p("tmp"), p("CURRENT")).expect("rename");
    fs.sync_metadata(p("")).expect("sync_metadata");
    let after = cut(seed);
    let got = after
        .open(p("CURRENT"))
        .expect("open")
        .read(0, 3)
        .expect("read");
    assert_eq!(got, &b"new"[..]);
    assert!(!after.exists(p("tmp")).expect("exists"));
}

fn whole_sectors(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let unit = fs.info().write_unit;
    let space = unit * 16;
    let f = fs
        .create_log(p("l"), log(space as u64))
        .expect("create_log");
    fs.sync_metadata(p("")).expect("sync_metadata");
    append(&f, &vec![7; space]);
    let after = cut(seed);
    let got = after
        .open(p("l"))
        .expect("open")
        .read(0, space)
        .expect("read");
    assert_eq!(got.len(), space);
    for sector in got.chunks(unit) {
        assert!(sector.iter().all(|b| *b == sector[0]), "a sector is torn");
        assert!(sector[0] == 0 || sector[0] == 7);
    }
}

fn log_space(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let f = fs.create_log(p("l"), log(20_480)).expect("create_log");
    fs.sync_metadata(p("")).expect("sync_metadata");
    append(&f, &noise(seed, 512));
    f.extend_log(49_152).expect("extend_log");
    let after = cut(seed);
    let f = after.open(p("l")).expect("open");
    assert!(f.allocated() >= 49_152);
    let ahead = f.read(40_960, 8_192).expect("read");
    assert!(ahead.len() == 8_192 && (!after.info().zeroed || ahead == vec![0; 8_192]));
}

fn reused_log(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let old = fs.create_log(p("old"), log(32_768)).expect("create_log");
    append(&old, &[1; 32_768]);
    old.sync_data().expect("sync");
    fs.sync_metadata(p("")).expect("sync_metadata");
    drop(old);
    let options = LogOptions {
        capacity: 32_768,
        reuse: Some(p("old")),
    };
    let new = fs.create_log(p("new"), options).expect("create_log");
    fs.sync_metadata(p("")).expect("sync_metadata");
    append(&new, &[2; 5_000]);
    new.sync_data().expect("sync");
    new.align_to_unit().expect("align");
    append(&new, &[3; 5_000]);
    let after = cut(seed);
    assert!(!after.exists(p("old")).expect("exists"));
    let new = after.open(p("new")).expect("open");
    assert_eq!(new.read(0, 5_000).expect("read"), vec![2; 5_000]);
    assert_eq!(new.read(16_384, 16_384).expect("read"), vec![1; 16_384]);
}

fn sync_files_as_a_group(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let files = [
        fs.create(p("a")).expect("create"),
        fs.create_log(p("b"), log(8_192)).expect("create_log"),
        fs.create_log(p("c"), log(8_192)).expect("create_log"),
    ];
    for f in &files {
        append(f, &noise(seed, 6_000));
    }
    fs.sync_metadata(p("")).expect("sync_metadata");
    fs.sync_files(&files).expect("sync_files");
    let after = cut(seed);
    for name in ["a", "b", "c"] {
        let f = after.open(p(name)).expect("open");
        assert_eq!(f.read(0, 6_000).expect("read"), noise(seed, 6_000));
    }
}

fn synced_beside_appends(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let f = fs.create_log(p("log"), log(0)).expect("create_log");
    fs.sync_metadata(p("")).expect("sync_metadata");
    let before = noise(seed, 3_000 + seed as usize % 1_500);
    append(&f, &before);
    let to = f.align_to_unit().expect("align");
    append(&f, &noise(seed + 1, 100));
    let other = fs.open(p("log")).expect("open");
    other.sync_data_to(to).expect("sync");
    // The append goes on in a sector that the sync did not cover.
    append(&f, &noise(seed + 2, 2_000));
    let after = cut(seed);
    let f = after.open(p("log")).expect("open");
    let len = before.len();
    assert_eq!(f.read(0, len).expect("read"), before);
}

fn synced_link(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    fs.create_dir(p("checkpoint")).expect("create_dir");
    let f = fs.create(p("a")).expect("create");
    append(&f, &noise(seed, 3_000));
    f.sync_all().expect("sync_all");
    fs.link(p("a"), p("checkpoint/a")).expect("link");
    fs.sync_metadata(p("checkpoint")).expect("sync_metadata");
    fs.sync_metadata(p("")).expect("sync_metadata");
    fs.remove(p("a")).expect("remove");
    let after = cut(seed);
    let f = after.open(p("checkpoint/a")).expect("open");
    assert_eq!(f.read(0, 4_000).expect("read"), noise(seed, 3_000));
}

fn left_stays(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    let f = fs.create(p("f")).expect("create");
    append(&f, &noise(seed, 20_000));
    let after = cut(seed);
    if let Ok(f) = after.open(p("f")) {
        let all = f.read(0, f.allocated() as usize).expect("read");
        assert_eq!(f.read(0, f.allocated() as usize).expect("read"), all);
        assert_eq!(all.len() as u64, f.allocated());
        let again = after.open(p("f")).expect("open");
        assert_eq!(again.len(), f.len());
    }
}

fn released_space(fs: &Arc<dyn FileSystem>, cut: &PowerCut, seed: u64) {
    // The step is large and odd, so that few seeds reach all kinds of cases.
    let case = seed * 97 % RELEASE_CASES;
    let (f, kept) = release_case(case).run(fs, "f");
    f.sync_data().expect("sync");
    fs.sync_metadata(p("")).expect("sync_metadata");
    // This append is not synced. It may be lost, but the bytes before it stay.
    let end = f.align_to_unit().expect("align");
    if seed % 2 == 1 {
        f.release_range(end..end + 60_000).expect("release_range");
        append(&f, &noise(seed, 20_000));
    }
    let after = cut(seed);
    let f = after.open(p("f")).expect("open");
    has_bytes(&f, &kept, case);
}
