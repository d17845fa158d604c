//! Repair of stores with merge operands. The same operand may stand in a log and in the tables that
//! its flush and later compactions wrote. The operand counts once, and so do the entries that it
//! was merged with.

use super::*;
use basalt_kv::merge::Append;
use basalt_lsm::MergeOperator;

fn appending(seed: u64) -> Options {
    let mut options = options(seed);
    let append: Arc<dyn MergeOperator> = Arc::new(Append::new(","));
    options.default_family.merge_operator = Some(append);
    options
}

/// The operands of each key, the oldest first.
type Operands = BTreeMap<Vec<u8>, Vec<String>>;

fn append(db: &Db, model: &mut Operands, key: &str, operand: &str) {
    let family = db.default_family();
    // A write that waits for a sync would run the jobs that are due. The tests keep the disk as it
    // is, so their writes do not wait.
    let options = WriteOptions::UNSYNCED;
    db.merge(&family, key.as_bytes(), operand.as_bytes(), &options)
        .unwrap();
    let all = model.entry(key.as_bytes().to_vec()).or_default();
    all.push(operand.to_string());
}

/// Removes the manifest and `CURRENT`, repairs the store, and compares every key with the model.
fn repair_without_a_manifest(fs: &Arc<SimFs>, seed: u64, model: &Operands, what: &str) {
    for name in names(fs).iter().filter(|n| n.starts_with("MANIFEST")) {
        fs.remove(&path(name)).unwrap();
    }
    fs.remove(&path("CURRENT")).unwrap();
    fs.sync_metadata(Path::new(DIR)).unwrap();
    let before = names(fs);
    let report = Db::repair(&env(fs, seed ^ 7), DIR, &appending(seed), &mut |_, _| {})
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let db = Db::open(&env(fs, seed ^ 9), DIR, appending(seed))
        .unwrap_or_else(|e| panic!("{what}: {e}\n{report:#?}"));
    let family = db.default_family();
    for (key, operands) in model {
        let found = db.get(&family, key, &ReadOptions::default()).unwrap();
        let found = found.map(|v| String::from_utf8_lossy(&v).into_owned());
        assert_eq!(
            found.as_deref(),
            Some(&operands.join(",")[..]),
            "{what}, {}: {before:?} {report:#?}",
            key.escape_ascii()
        );
    }
    db.close().unwrap();
}

/// A compaction merges an operand with the value below it, into a value with the operand's sequence
/// number. The operand itself still stands in its log, which is a blob file. Regression test:
/// repair kept the operand and dropped the value with the same number, and so lost all older
/// operands.
#[test]
fn repair_keeps_a_merged_value_over_its_operand() {
    let seed = 601;
    let fs = SimFs::new(SimOptions::default());
    let env = env(&fs, seed);
    let db = Db::open(&env, DIR, appending(seed)).unwrap();
    let family = db.default_family();
    let mut model = Operands::new();
    for key in 0..10 {
        let key = format!("key {key}");
        db.put(&family, key.as_bytes(), b"base", &WriteOptions::SYNC)
            .unwrap();
        model.insert(key.into_bytes(), vec!["base".into()]);
    }
    db.flush().unwrap();
    db.compact_range(&family, None, None).unwrap();
    for key in 0..10 {
        append(&db, &mut model, &format!("key {key}"), "operand");
    }
    // The values are so large that the log stays as a blob file.
    for n in 0..10 {
        let key = format!("large {n}");
        let mut value = key.clone().into_bytes();
        fill(&mut value, 9000);
        db.put(&family, key.as_bytes(), &value, &WriteOptions::SYNC)
            .unwrap();
    }
    db.flush().unwrap();
    db.compact_range(&family, None, None).unwrap();
    while env.jobs().step() {}
    let kept = db.blob_files().iter().any(|b| b.name.ends_with(".log"));
    assert!(kept, "{:?}", names(&fs));
    db.close().unwrap();
    repair_without_a_manifest(&fs.kill(), seed, &model, "closed");
}

/// The edit of a flush to pages is lost, and its log is there again: each operand must count once,
/// whether the repair keeps what the tree has or drops it.
#[test]
fn operands_of_a_log_that_a_tree_has_count_once() {
    let mut repaired = 0;
    for case in 0..12 {
        let (closes, lost) = (case % 2 == 1, case / 2);
        let seed = 740;
        let fs = SimFs::new(SimOptions::default());
        let env = env(&fs, seed);
        let db = Db::open(&env, DIR, appending(seed)).unwrap();
        let mut model = Operands::new();
        for round in 0..3 {
            for key in 0..20 {
                append(&db, &mut model, &format!("key {key}"), &round.to_string());
            }
            if round < 2 {
                db.flush().unwrap();
            }
        }
        db.put(&db.default_family(), b"end", b"", &WriteOptions::SYNC)
            .unwrap();
        let contents = |parts: &[&str]| -> Vec<(String, Vec<u8>)> {
            (names(&fs).into_iter())
                .filter(|name| parts.iter().any(|part| name.contains(part)))
                .map(|name| (name.clone(), fs.read_all(&path(&name)).unwrap()))
                .collect()
        };
        let mut kept = contents(&["CURRENT", "MANIFEST", ".log"]);
        db.flush().unwrap();
        // The edits of two flushes are lost, and that of the second log.
        for key in 0..20 {
            append(&db, &mut model, &format!("key {key}"), "last");
        }
        db.put(&db.default_family(), b"end", b"", &WriteOptions::SYNC)
            .unwrap();
        let is_new = |(name, _): &(String, Vec<u8>)| kept.iter().all(|(other, _)| name != other);
        let more: Vec<_> = contents(&[".log"]).into_iter().filter(is_new).collect();
        assert_eq!(more.len(), 1);
        kept.extend(more);
        db.flush().unwrap();
        match closes {
            true => db.close().unwrap(),
            false => db.abandon(),
        }
        let fs = fs.kill();
        for name in names(&fs).iter().filter(|name| name.contains("MANIFEST")) {
            fs.remove(&path(name)).unwrap();
        }
        for (name, bytes) in &kept {
            let bytes = match (lost, &name[..]) {
                (1, "CURRENT") => continue,
                (2.., name) if name.contains("MANIFEST") => {
                    let mut bytes = bytes.clone();
                    let at = bytes.len() * (lost - 1) / 6;
                    bytes[at] ^= 4;
                    bytes
                }
                _ => bytes.clone(),
            };
            fs.write_file(&path(name), &bytes).unwrap();
        }
        let what = format!("case {case}");
        let report = Db::repair(&env_of(&fs), DIR, &appending(seed), &mut |_, _| {}).unwrap();
        repaired += u64::from(!report.sound);
        let db = Db::open(&env_of(&fs), DIR, appending(seed)).unwrap();
        for (key, operands) in &model {
            let found = db.get(&db.default_family(), key, &ReadOptions::default());
            let found = found
                .unwrap()
                .map(|v| String::from_utf8_lossy(&v).into_owned());
            let expected = operands.join(",");
            assert_eq!(found.as_deref(), Some(&expected[..]), "{what}: {report:#?}");
        }
        db.close().unwrap();
    }
    assert!(repaired > 6, "{repaired}");
}

fn env_of(fs: &Arc<SimFs>) -> Env {
    env(fs, 5)
}
