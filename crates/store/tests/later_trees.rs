//! Stores whose trees of pages a later version has written.

use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_log::{LogBatch, LogEngine, LogEngineOptions};
use basalt_lsm::{Db, Error, ErrorKind, FamilyOptions, Options, TreeOptions, WriteOptions};
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const DIR: &str = "store";

/// Appends a record to a log of the tree of the family `default`, whose store is closed. `record`
/// gets its log sequence number.
fn append_to_tree(env: &Env, log: &str, record: impl FnOnce(u64) -> Vec<u8>) {
    let logs = Path::new(DIR).join("pages/0/logs");
    let engine = LogEngine::open(env, logs, LogEngineOptions::default()).unwrap();
    let log = engine.log(log).unwrap();
    let next = log.last().or(log.trimmed()).map_or(1, |last| last + 1);
    let mut batch = LogBatch::new();
    batch.append(&log, next, &record(next)).unwrap();
    engine.write(batch, &WriteOptions::SYNC).unwrap();
    engine.close().unwrap();
}

/// Returns all files of a store but its locks, with their bytes.
fn all_files(fs: &SimFs) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut dirs, mut files) = (vec![PathBuf::from(DIR)], BTreeMap::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                dirs.push(path);
            } else if entry.name != "LOCK" {
                let bytes = fs.read_all(&path).unwrap().to_vec();
                files.insert(path, bytes);
            }
        }
    }
    files
}

fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    path.parent() == Some(Path::new(DIR)) && name.to_string_lossy().starts_with("MANIFEST")
}

/// A tree with features of a later version is not damaged: the store is refused in every way, with
/// a sentence that says what to do. A repair changes no byte, also if other files are damaged.
#[test]
fn trees_of_later_versions_are_refused() {
    // Bits 0 and 6: this version knows one of them.
    const FEATURES: u8 = 0x41;
    let system = |_: u64| vec![FEATURES];
    let checkpoint = |lsn: u64| [&lsn.to_le_bytes()[..], &[FEATURES, 9]].concat();
    for (log, damage) in [
        ("system", ""),
        ("checkpoint", ""),
        ("checkpoint", "manifest"),
        // The manifest does not say any more that the last flush counts.
        ("system", "edits"),
        ("system", "tree"),
        ("system", "table"),
    ] {
        let fs = SimFs::new(SimOptions::default());
        let env = Env::for_tests(fs.clone(), 1);
        let mut options = Options::default();
        options.default_family.pages = Some(TreeOptions::default().page_bytes(512));
        (options.families).insert("tables".into(), FamilyOptions::default());
        let db = Db::open(&env, DIR, options.clone()).unwrap();
        let tables = db.create_family("tables", FamilyOptions::default());
        let families = [db.default_family(), tables.unwrap()];
        let mut edits_before = 0;
        for round in 0..2u32 {
            for (family, n) in families
                .iter()
                .flat_map(|f| (0..100u32).map(move |n| (f, n)))
            {
                let key = (100 * round + n).to_be_bytes();
                db.put(family, &key, b"value", &WriteOptions::SYNC).unwrap();
            }
            let manifest = |(path, _): &(&PathBuf, &Vec<u8>)| is_manifest(path);
            edits_before = all_files(&fs).iter().find(manifest).unwrap().1.len();
            db.flush().unwrap();
        }
        db.close().unwrap();
        match log {
            "system" => append_to_tree(&env, log, system),
            _ => append_to_tree(&env, log, checkpoint),
        }
        let suffix = match damage {
            "tree" => Some(".extent"),
            "table" => Some(".tbl"),
            _ => None,
        };
        for (path, bytes) in all_files(&fs) {
            let name = path.file_name().unwrap().to_string_lossy();
            let is_own = path.parent() == Some(Path::new(DIR));
            let names_edits = name == "CURRENT" || name.starts_with("MANIFEST");
            if damage == "manifest" && is_own && names_edits {
                fs.remove(&path).unwrap();
            } else if damage == "edits" && is_manifest(&path) {
                assert!(bytes.len() > edits_before, "the last flush is an edit");
                for at in (edits_before..bytes.len()).step_by(16) {
                    fs.flip_bit(&path, at as u64, 1).unwrap();
                }
            } else if suffix.is_some_and(|suffix| name.ends_with(suffix)) {
                fs.flip_bit(&path, bytes.len() as u64 / 2, 1).unwrap();
            }
        }
        let before = all_files(&fs);
        let check = |e: &Error| {
            let what = format!("{e}");
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{log}, {damage}: {what}");
            assert!(what.contains("features 0x40 "), "{log}, {damage}: {what}");
            assert!(what.contains("the version that wrote it"), "{what}");
        };
        let is_found = damage != "manifest" && damage != "edits";
        if is_found {
            let opened = Db::open_read_only(&env, DIR, options.clone());
            check(&opened.err().expect("it is refused"));
        }
        let report = Db::verify_store(&env, DIR, &options, &mut |_, _| ()).unwrap();
        let mut found = report.damage.iter();
        check(
            found
                .find(|e| e.kind() == ErrorKind::Unsupported)
                .unwrap_or_else(|| panic!("{log}, {damage}: {:?}", report.damage)),
        );
        check(&Db::repair(&env, DIR, &options, &mut |_, _| ()).unwrap_err());
        assert_eq!(
            all_files(&fs),
            before,
            "{log}, {damage}: a file has changed"
        );
        if is_found {
            check(&Db::open(&env, DIR, options).err().expect("it is refused"));
        }
    }
}
