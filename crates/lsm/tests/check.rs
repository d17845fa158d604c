//! `check` notices every changed byte that has a meaning in the format, and calls no file harmless
//! that may hold live data.

use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_lsm::db::{Db, VerifyReport};
use basalt_lsm::{Compression, Options, WriteOptions};
use basalt_sim::{SimFs, SimOptions, SimSnapshot};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR: &str = "store";

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn check(fs: &Arc<SimFs>) -> VerifyReport {
    let env = Env::for_tests(fs.clone(), 1);
    Db::verify_store(&env, DIR, &Options::default(), &mut |_, _| {}).unwrap()
}

/// Makes a store with a table and a blob file, and with a live log if it was not closed.
fn store(closed: bool) -> SimSnapshot {
    store_with(closed, Compression::None)
}

/// Makes a store whose values, if compressed, are longer: short ones would not be worth it.
fn store_with(closed: bool, codec: Compression) -> SimSnapshot {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::for_tests(fs.clone(), 3);
    let mut options = Options::default();
    options.default_family.min_blob_size = Some(7);
    options.default_family.blob_compression = codec;
    let times = if codec == Compression::None { 1 } else { 8 };
    let db = Db::open(&env, DIR, options).unwrap();
    let family = db.default_family();
    let put = |i: u32, options: &WriteOptions| {
        let value = vec![b'v'; (i % 13) as usize * times];
        db.put(&family, format!("key {i:03}").as_bytes(), &value, options)
            .unwrap();
    };
    (0..60).for_each(|i| put(i, &WriteOptions::SYNC));
    db.flush().unwrap();
    (60..70).for_each(|i| put(i, &WriteOptions::SYNC));
    // These puts are written together, so that the padding of records shows too.
    (70..80).for_each(|i| put(i, &WriteOptions::UNSYNCED));
    (80..82).for_each(|i| put(i, &WriteOptions::SYNC));
    if closed {
        db.close().unwrap();
    } else {
        db.abandon();
    }
    let report = check(&fs);
    assert!(report.damage.is_empty(), "{report:#?}");
    fs.snapshot()
}

fn files(fs: &SimFs) -> Vec<String> {
    let list = fs.list(Path::new(DIR)).unwrap();
    list.into_iter()
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect()
}

/// Returns the bytes of a log that docs/format/log.md calls undefined: between records, and behind
/// the last one. The records are found as the page describes them.
fn free_of_log(bytes: &[u8]) -> Vec<bool> {
    const UNIT: usize = 512;
    let mut free = vec![true; bytes.len()];
    free[..UNIT].fill(false);
    let u32_at = |i: usize| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
    let (mut at, mut chain) = (UNIT, 0);
    loop {
        let places = [at, at.next_multiple_of(UNIT)];
        let here =
            |i: &&usize| **i + 40 <= bytes.len() && u32_at(**i + 32) == chain && u32_at(**i) != 0;
        let Some(&start) = places.iter().find(here) else {
            return free;
        };
        chain = u32_at(start);
        at = (start + 40 + u32_at(start + 8) as usize).next_multiple_of(8);
        free[start..at].fill(false);
    }
}

#[test]
fn every_meaningful_byte_is_covered_by_a_check() {
    let mut flipped = 0;
    for (closed, codec) in [
        (true, Compression::None),
        (false, Compression::None),
        (true, Compression::Zstd),
        (false, Compression::Lz4),
    ] {
        let disk = store_with(closed, codec);
        let reference = check(&disk.kill());
        for name in files(&disk.kill()) {
            // The page on the store's directory says that the contents of the lock file are for
            // people.
            if name == "LOCK" || reference.unused_files.contains(&name) {
                continue;
            }
            let bytes = disk.kill().read_all(&path(&name)).unwrap();
            let free = match name.ends_with(".log") {
                true => free_of_log(&bytes),
                false => vec![false; bytes.len()],
            };
            let used = free.iter().rposition(|f| !f).unwrap_or(0) + 1;
            for at in (0..used).filter(|at| !free[*at]) {
                let fs = disk.kill();
                fs.flip_bit(&path(&name), at as u64, (at % 8) as u8)
                    .unwrap();
                let report = check(&fs);
                // No later record proves that the last group of a log was synced: it is cut, and
                // the cut is reported.
                let reported =
                    !report.damage.is_empty() || report.torn_tails != reference.torn_tails;
                assert!(
                    reported || (name.ends_with(".log") && report.entries < reference.entries),
                    "closed: {closed}, {codec:?}, byte {at} of {name} ({used} used): {report:#?}"
                );
                flipped += 1;
            }
        }
    }
    assert!(flipped > 5000, "{flipped}");
}

#[test]
fn a_damaged_copy_is_repaired_and_kept_aside() {
    let disk = store(false);
    for part in ["MANIFEST", ".log"] {
        for at in [20, 300, 450] {
            let fs = disk.kill();
            let reference = check(&fs);
            let named = |n: &&String| n.contains(part) && !reference.unused_files.contains(n);
            let name = files(&fs).iter().find(named).unwrap().clone();
            fs.flip_bit(&path(&name), at, 2).unwrap();
            let env = Env::for_tests(fs.clone(), 5);
            let report = Db::repair(&env, DIR, &Options::default(), &mut |_, _| {}).unwrap();
            assert!(!report.sound && report.losses.is_empty(), "{report:#?}");
            assert_eq!(report.set_aside, [format!("lost/{name}")]);
            assert!(check(&fs).damage.is_empty());
            let db = Db::open(&env, DIR, Options::default()).unwrap();
            let family = db.default_family();
            for i in 0..82 {
                let key = format!("key {i:03}");
                let value = db.get(&family, key.as_bytes(), &Default::default());
                assert!(value.unwrap().is_some(), "{key} after {at} of {name}");
            }
            db.close().unwrap();
        }
    }
}

#[test]
fn files_that_damaged_metadata_may_name_are_not_called_unused() {
    let disk = store(true);
    let manifest = files(&disk.kill())
        .into_iter()
        .find(|n| n.starts_with("MANIFEST"))
        .unwrap();
    let table = files(&disk.kill())
        .into_iter()
        .find(|n| n.ends_with(".tbl"))
        .unwrap();
    let len = disk.kill().stat(&path(&manifest)).unwrap().len;
    // The edit that names the table is one of these.
    let mut unnamed = 0;
    for edit in (512..len).step_by(512) {
        let fs = disk.kill();
        fs.flip_bit(&path(&manifest), edit + 50, 1).unwrap();
        let report = check(&fs);
        if report.damage.is_empty() {
            continue;
        }
        assert!(
            report.unused_files.is_empty(),
            "edit at {edit}: {report:#?}"
        );
        unnamed += u32::from(report.unnamed.contains(&table));
    }
    assert!(unnamed > 0, "an edit of {manifest} names {table}");
    type DamageFn<'a> = Box<dyn Fn(&SimFs) + 'a>;
    let harms: [(&str, DamageFn<'_>); 3] = [
        (
            "a manifest cut short",
            Box::new(|fs| fs.truncate(&path(&manifest), len.min(700)).unwrap()),
        ),
        (
            "no CURRENT",
            Box::new(|fs| fs.remove(&path("CURRENT")).unwrap()),
        ),
        (
            "no manifest",
            Box::new(|fs| fs.remove(&path(&manifest)).unwrap()),
        ),
    ];
    for (what, apply_damage) in &harms {
        let fs = disk.kill();
        fs.write_file(&path("notes.txt"), b"mine").unwrap();
        assert_eq!(check(&fs).foreign, ["notes.txt"]);
        apply_damage(&fs);
        let report = check(&fs);
        assert!(!report.damage.is_empty(), "{what}");
        assert!(report.unused_files.is_empty(), "{what}: {report:#?}");
        assert_eq!(report.foreign, ["notes.txt"], "{what}");
        let unnamed = |name: &String| report.unnamed.contains(name);
        match *what {
            // The remaining manifest has the whole state, and only the manifest itself is not
            // named.
            "no CURRENT" => assert_eq!(report.unnamed, std::slice::from_ref(&manifest), "{what}"),
            _ => assert!(unnamed(&table), "{what}: {report:#?}"),
        }
    }
    // A table of unfinished work is an unused file, and the catalog is whole.
    let fs = disk.kill();
    let before = check(&fs).unused_files;
    fs.write_file(&path("000099.tbl"), b"unfinished").unwrap();
    let report = check(&fs);
    assert_eq!(
        report.unused_files,
        [before, vec!["000099.tbl".into()]].concat()
    );
    assert!(report.unnamed.is_empty() && report.damage.is_empty());
}
