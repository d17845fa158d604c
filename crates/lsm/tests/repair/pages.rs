//! Repair of families in pages: damaged trees, and trees beside other damage.

use super::*;

/// Seeds of stores that keep every second family in pages.
const SEEDS: std::ops::Range<u64> = 700..800;

pub(super) fn is_in_pages(seed: u64, family: usize) -> bool {
    SEEDS.contains(&seed) && (seed + family as u64).is_multiple_of(2)
}

/// Returns settings of small pages and short chains.
pub(super) fn small_pages() -> TreeOptions {
    TreeOptions::default()
        .page_bytes(512)
        .block_bytes(16)
        .extent_bytes(8 << 10)
        .max_deltas(3)
        .checkpoint_bytes(1 << 10)
}

/// Returns the files of all trees, by their paths, with their lengths.
fn files_of_trees(fs: &SimFs) -> Vec<(PathBuf, u64)> {
    let (mut dirs, mut files) = (vec![path("pages")], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            match entry.is_dir {
                true => dirs.push(path),
                // Of a file that is not sealed, the filesystem does not know the length.
                false => files.push((path.clone(), fs.read_all(&path).unwrap().len() as u64)),
            }
        }
    }
    files.sort();
    files
}

/// Damages a file of a tree. Returns what was done.
fn damage_file(fs: &SimFs, path: &Path, len: u64, r: &Random) -> String {
    let name = path.display();
    match r.below(8) {
        0 => {
            fs.remove(path).unwrap();
            format!("{name} removed")
        }
        1 => {
            let to = r.below(len.max(1));
            fs.truncate(path, to).unwrap();
            format!("{name} cut to {to}")
        }
        2 => {
            let at = r.below(len.max(1)) / 512 * 512;
            let zeros = vec![0; 512.min(len.saturating_sub(at)) as usize];
            fs.overwrite(path, at, &zeros).unwrap();
            format!("zeros at {at} of {name}")
        }
        _ => {
            let at = r.below(len.max(1));
            if len > 0 {
                fs.flip_bit(path, at, (at % 8) as u8).unwrap();
            }
            format!("byte {at} of {name}")
        }
    }
}

#[test]
fn repair_survives_damaged_trees() {
    let (mut written, mut lossless) = (0, 0);
    for seed in basalt_sim::campaign::cases(700..700 + 4 * scale()) {
        let _repeat = basalt_sim::repeat!(repair_survives_damaged_trees, "BASALT_CASE={seed}");
        let store = Store::build(seed, 2, seed % 4 < 2);
        let files = files_of_trees(&store.disk.kill());
        let r = Random::from_seed(seed);
        for (n, (file, len)) in files.iter().enumerate() {
            for again in 0..2 {
                let what = format!("file {n} of a tree, {again}");
                let mut said = String::new();
                let report = store.try_damage(&what, |fs| said = damage_file(fs, file, *len, &r));
                written += report.trees_written;
                lossless += u64::from(!report.sound && report.losses.is_empty());
            }
        }
    }
    basalt_sim::campaign!("trees_written={written} without_loss={lossless}");
    assert!(written > 20, "{written}");
}

#[test]
fn repair_survives_missing_trees() {
    for seed in 704..708 {
        let store = Store::build(seed, 2, false);
        let trees = path("pages");
        let report = store.try_damage("all trees removed", |fs| {
            for (file, _) in files_of_trees(fs) {
                fs.remove(&file).unwrap();
            }
        });
        assert!(report.trees_written > 0 && !report.losses.is_empty());
        let report = store.try_damage("the logs of a tree removed", |fs| {
            let tree = fs.list(&trees).unwrap().remove(0).name;
            let logs = trees.join(tree).join("logs");
            for entry in fs.list(&logs).unwrap() {
                fs.remove(&logs.join(entry.name)).unwrap();
            }
        });
        assert_eq!(report.trees_written, 1, "{report:#?}");
        assert!(report.set_aside.iter().any(|name| name.contains("pages-")));
    }
}

#[test]
fn repair_survives_damage_beside_trees() {
    let mut cases = 0;
    for seed in basalt_sim::campaign::cases(710..710 + 4 * scale()) {
        let _repeat =
            basalt_sim::repeat!(repair_survives_damage_beside_trees, "BASALT_CASE={seed}");
        let store = Store::build(seed, 3, seed % 4 < 2);
        let r = Random::from_seed(seed);
        let mut others = store.files("MANIFEST");
        others.extend(store.files("CURRENT"));
        others.extend(store.files(".log"));
        others.extend(store.files(".tbl").pop());
        for (name, len) in &others {
            for _ in 0..6 {
                let at = r.below(*len);
                store.try_damage(&format!("byte {at} of {name}"), |fs| {
                    fs.flip_bit(&path(name), at, (at % 8) as u8).unwrap();
                });
                cases += 1;
            }
            store.try_damage(&format!("{name} removed"), |fs| {
                fs.remove(&path(name)).unwrap();
                fs.sync_metadata(Path::new(DIR)).unwrap();
            });
        }
        let files = files_of_trees(&store.disk.kill());
        for _ in 0..6 {
            let (file, len) = &files[r.below(files.len() as u64) as usize];
            let (name, other) = &others[r.below(others.len() as u64) as usize];
            let at = r.below(*other);
            let what = format!("byte {at} of {name}, and {}", file.display());
            store.try_damage(&what, |fs| {
                fs.flip_bit(&path(name), at, (at % 8) as u8).unwrap();
                damage_file(fs, file, *len, &r);
            });
        }
    }
    basalt_sim::campaign!("damages={cases}");
    assert!(cases > 40, "{cases}");
}

/// Returns a store whose damaged tree a repair writes anew, damaged, and the store as it was. Every
/// third one has lost its manifest and the logs of the tree as well.
fn damaged_store(seed: u64) -> (Store, Arc<SimFs>) {
    let store = Store::build(seed, 2, false);
    let r = Random::from_seed(seed);
    let fs = store.disk.kill();
    let extents: Vec<_> = (files_of_trees(&fs).into_iter())
        .filter(|(file, _)| file.to_string_lossy().ends_with(".extent"))
        .collect();
    for (file, len) in &extents {
        // Each page has one of these bytes, but for the smallest ones.
        for at in (512..*len).step_by(150) {
            fs.flip_bit(file, at, 2).unwrap();
        }
    }
    let (log, _) = store.files(".log")[0].clone();
    fs.flip_bit(&path(&log), 700 + r.below(1000), 2).unwrap();
    if seed.is_multiple_of(3) {
        for name in names(&fs) {
            if name == "CURRENT" || name.starts_with("MANIFEST") {
                fs.remove(&path(&name)).unwrap();
            }
        }
        for (file, len) in files_of_trees(&fs) {
            if file.parent().unwrap().ends_with("logs") {
                (0..len)
                    .step_by(300)
                    .for_each(|at| fs.flip_bit(&file, at, 2).unwrap());
            }
        }
        fs.sync_metadata(Path::new(DIR)).unwrap();
    }
    (store, fs)
}

/// The tables of a set that was prepared and not added are in no edit. Regression test: if the
/// manifest was damaged, repair added them to their family in pages, and no version opened the
/// store any more.
#[test]
fn prepared_tables_of_a_family_in_pages_are_set_aside() {
    let seed = 740;
    let fs = SimFs::new(SimOptions::default());
    let env = env(&fs, seed);
    let db = Db::open(&env, DIR, options(seed)).unwrap();
    let family = db.default_family();
    db.put(&family, b"a", b"1", &WriteOptions::SYNC).unwrap();
    db.flush().unwrap();
    let mut table = db.prepare(&family).unwrap();
    table.add(b"b", b"2").unwrap();
    let set = table.finish().unwrap();
    let left = fs.kill();
    drop((set, family));
    db.abandon();
    for name in names(&left) {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            left.remove(&path(&name)).unwrap();
        }
    }
    left.sync_metadata(Path::new(DIR)).unwrap();
    let env = super::env(&left, 2);
    let report = Db::repair(&env, DIR, &options(seed), &mut |_, _| {}).unwrap();
    assert!(!report.sound);
    let aside = |name: &String| name.ends_with(".tbl");
    assert!(
        report.set_aside.iter().any(aside),
        "{:?} {report:#?}",
        names(&left)
    );
    let db = Db::open(&env, DIR, options(seed)).unwrap();
    let read = ReadOptions::default();
    let found = db.get(&db.default_family(), b"a", &read).unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(&db.default_family(), b"b", &read).unwrap(), None);
    db.close().unwrap();
}

/// Regression test: families in pages got made-up names, and the report counted no entries.
#[test]
fn families_in_pages_keep_their_names_without_a_manifest() {
    let fs = SimFs::new(SimOptions::default());
    let env = env(&fs, 1);
    let in_pages = FamilyOptions::default().pages(Some(small_pages()));
    let db = Db::open(&env, DIR, Options::default()).unwrap();
    let family = db.create_family("mine", in_pages).unwrap();
    for n in 0..100u8 {
        db.put(&family, &[n], &[n; 50], &WriteOptions::SYNC)
            .unwrap();
    }
    db.flush().unwrap();
    drop(family);
    db.close().unwrap();
    for name in names(&fs) {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove(&path(&name)).unwrap();
        }
    }
    let report = Db::repair(&env, DIR, &Options::default(), &mut |_, _| {}).unwrap();
    assert!(!report.sound);
    assert!(report.entries_kept >= 100, "{report:#?}");
    let db = Db::open(&env, DIR, Options::default()).unwrap();
    let family = db.family("mine").expect("the name is kept");
    for n in 0..100u8 {
        let found = db.get(&family, &[n], &ReadOptions::default()).unwrap();
        assert_eq!(found.as_deref(), Some(&[n; 50][..]));
    }
    drop(family);
    db.close().unwrap();
}

#[test]
fn a_crash_during_a_repair_of_trees_can_be_repaired() {
    let mut crashes = 0;
    for seed in basalt_sim::campaign::cases(720..720 + 2 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_crash_during_a_repair_of_trees_can_be_repaired,
            "BASALT_CASE={seed}"
        );
        let (store, fs) = damaged_store(seed);
        fs.record_snapshots(5);
        let first = Db::repair(&env(&fs, seed), DIR, &options(seed), &mut |_, _| {}).unwrap();
        assert_eq!(first.trees_written, 1, "seed {seed}: {first:#?}");
        for snapshot in fs.take_snapshots() {
            for policy in CrashPolicy::ALL {
                let fs = snapshot.crash(*policy, seed);
                let what = format!("crash after {snapshot:?}, {policy:?}");
                let env = env(&fs, seed ^ 1);
                // Without `CURRENT` the manifest of the first repair may be taken, and then its
                // losses stay lost.
                let is_manifest = |name: &String| name.starts_with("MANIFEST");
                let is_begun = seed.is_multiple_of(3) && names(&fs).iter().any(is_manifest);
                let mut report = Db::repair(&env, DIR, &options(seed), &mut |_, _| {})
                    .unwrap_or_else(|e| panic!("seed {seed}, {what}: {e}"));
                if report.sound {
                    // The first repair had taken effect: its losses stay lost.
                    report.losses.clone_from(&first.losses);
                    report.notes.clone_from(&first.notes);
                    for name in &first.set_aside {
                        let is_there = fs.exists(&path(name)).unwrap();
                        assert!(is_there, "{name}: seed {seed}, {what}");
                    }
                }
                if is_begun && !report.sound {
                    report.losses.extend_from_slice(&first.losses);
                    report.notes.extend_from_slice(&first.notes);
                }
                store.check(&fs, &report, &what);
                crashes += 1;
            }
        }
    }
    basalt_sim::campaign!("crash_states={crashes}");
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn a_failed_call_during_a_repair_of_trees_loses_nothing() {
    use basalt_sim::fault::{Fault, FaultFs, FaultKind};
    use basalt_sim::{OpKind, When};
    let mut failed = 0;
    for (seed, op) in [
        (730, None),
        (731, Some(OpKind::Append)),
        (732, Some(OpKind::Read)),
        (733, Some(OpKind::SyncMetadata)),
        (735, None),
        (738, None),
        // Without the list of trees, a repair took a family for one without a tree.
        (738, Some(OpKind::List)),
        (734, Some(OpKind::List)),
    ] {
        let (store, damaged) = damaged_store(seed);
        let copy = env(&damaged.kill(), 1);
        let reference = Db::repair(&copy, DIR, &options(seed), &mut |_, _| {}).unwrap();
        let step = if op == Some(OpKind::List) { 1 } else { 3 };
        for n in (1..).step_by(step) {
            let fs = damaged.kill();
            let faulty = FaultFs::new(fs.clone(), seed);
            let env_of_fault = Env::for_tests(faulty.clone(), seed);
            let rule = faulty.inject(Fault {
                op,
                path: String::new(),
                when: When::Nth(n),
                kind: FaultKind::Eio,
            });
            let result = Db::repair(&env_of_fault, DIR, &options(seed), &mut |_, _| {});
            if faulty.seen(rule) < n {
                break;
            }
            let what = format!("call {n} of {op:?} failed, {:?}", result.as_ref().err());
            drop(env_of_fault);
            failed += 1;
            let fs = fs.kill();
            let is_manifest = |name: &String| name.starts_with("MANIFEST");
            let is_begun = seed.is_multiple_of(3) && names(&fs).iter().any(is_manifest);
            let mut report = Db::repair(&env(&fs, 2), DIR, &options(seed), &mut |_, _| {})
                .unwrap_or_else(|e| panic!("seed {seed}, {what}: {e}"));
            if report.sound {
                report.losses.clone_from(&reference.losses);
                report.notes.clone_from(&reference.notes);
            } else if is_begun {
                report.losses.extend_from_slice(&reference.losses);
                report.notes.extend_from_slice(&reference.notes);
            }
            store.check(&fs, &report, &what);
        }
    }
    basalt_sim::campaign!("failed_calls={failed}");
    assert!(failed > 50);
}
