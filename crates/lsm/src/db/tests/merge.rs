//! Merge operators through the public interface of a store: every way to read, operator names,
//! refusals, expiry, and stores that are checked and repaired.

use super::prelude::*;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_kv::merge::{AddU64, Append, Max};
use basalt_kv::merge::{MergeOperator, MergeRefusal};
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::time::Duration;

const NOW: u64 = 1_700_000_000_000;

fn room() -> (Arc<SimFs>, Env, Arc<ManualClock>) {
    let disk = SimFs::new(SimOptions::default());
    let manual_clock = ManualClock::new(NOW);
    let env = EnvBuilder::for_tests(disk.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    (disk, env, manual_clock)
}

fn with(operator: impl MergeOperator + 'static) -> Options {
    Options {
        default_family: FamilyOptions {
            merge_operator: Some(Arc::new(operator)),
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

const FREE: WriteOptions = WriteOptions::UNSYNCED;

/// Reads the value of a key in every way. All answers must agree.
fn read(db: &Db, key: &[u8], options: &ReadOptions) -> Result<Option<(Vec<u8>, Option<u64>)>> {
    let f = db.default_family();
    let point = db
        .get_with_expiry(&f, key, options)
        .map(|v| v.map(|v| (v.value.to_vec(), v.expire_at_ms)));
    let value = point.as_ref().ok().map(|p| p.as_ref().map(|p| p.0.clone()));
    let same = |other: Result<Option<Bytes>>, way: &str| {
        let other = other.ok().map(|v| v.map(|v| v.to_vec()));
        assert_eq!(other, value, "{way} of {key:?}");
    };
    same(db.get(&f, key, options), "get");
    let asked = [(&f, &b"absent"[..]), (&f, key)];
    same(db.multi_get(&asked, options).pop().unwrap(), "multi_get");
    let mut within = db.multi_get_within(&asked[1..], options, 0);
    same(within.pop().unwrap().unwrap(), "multi_get_within");
    for forward in [true, false] {
        let mut iter = db.iter(&f, options)?;
        let moved = if forward {
            iter.seek(key)
        } else {
            iter.seek_for_prev(key)
        };
        let shown = moved.map(|()| {
            let here = iter.valid() && iter.key() == key;
            here.then(|| (iter.value().to_vec(), iter.expire_at_ms()))
        });
        assert_eq!(shown.ok(), point.as_ref().ok().cloned(), "cursor {forward}");
    }
    point
}

fn text(db: &Db, key: &[u8]) -> Option<String> {
    let shown = read(db, key, &ReadOptions::default()).unwrap();
    shown.map(|v| String::from_utf8(v.0).unwrap())
}

/// Nothing, a flush, a flush and a compaction.
fn wait_idle(db: &Db, how: u64) {
    if how > 0 {
        db.flush().unwrap();
    }
    if how > 1 {
        db.compact_range(&db.default_family(), None, None).unwrap();
    }
}

#[test]
fn operands_read_the_same_in_memtables_tables_and_logs() {
    for ways in 0..3u64.pow(4) {
        let (_, env, _) = room();
        let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
        let f = db.default_family();
        let way = |i: u32| ways / 3u64.pow(i) % 3;
        let mut snapshots: Vec<(Snapshot, Option<&str>)> = Vec::new();
        db.merge(&f, b"k", b"a", &FREE).unwrap();
        wait_idle(&db, way(0));
        assert_eq!(text(&db, b"k").as_deref(), Some("a"));
        snapshots.push((db.snapshot(), Some("a")));
        db.merge(&f, b"k", b"b", &FREE).unwrap();
        db.merge(&f, b"k", b"c", &FREE).unwrap();
        wait_idle(&db, way(1));
        assert_eq!(text(&db, b"k").as_deref(), Some("a,b,c"));
        snapshots.push((db.snapshot(), Some("a,b,c")));
        db.delete(&f, b"k", &FREE).unwrap();
        snapshots.push((db.snapshot(), None));
        db.merge(&f, b"k", b"d", &FREE).unwrap();
        wait_idle(&db, way(2));
        assert_eq!(text(&db, b"k").as_deref(), Some("d"));
        db.put(&f, b"k", b"e", &FREE).unwrap();
        db.merge(&f, b"k", b"", &FREE).unwrap();
        wait_idle(&db, way(3));
        for _ in 0..2 {
            assert_eq!(text(&db, b"k").as_deref(), Some("e,"), "{ways}");
            for (snapshot, expected) in &snapshots {
                let options = ReadOptions {
                    snapshot: Some(snapshot.clone()),
                    ..ReadOptions::default()
                };
                let shown = read(&db, b"k", &options).unwrap().map(|v| v.0);
                assert_eq!(shown.as_deref(), expected.map(str::as_bytes), "{ways}");
            }
            wait_idle(&db, 2);
        }
        // Without snapshots all operands become one value.
        snapshots.clear();
        db.put(&f, b"k", b"e", &FREE).unwrap();
        db.merge(&f, b"k", b"f", &FREE).unwrap();
        wait_idle(&db, 2);
        let entries: u64 = db.stats().families[0]
            .levels
            .iter()
            .map(|l| l.entries)
            .sum();
        assert_eq!(entries, 1);
        db.abandon();
        let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
        assert_eq!(text(&db, b"k").as_deref(), Some("e,f"));
    }
}

#[test]
fn a_flush_merges_many_operands_into_one() {
    let (_, env, _) = room();
    let db = Db::open(&env, "db", with(AddU64)).unwrap();
    let f = db.default_family();
    for _ in 0..10 {
        let mut batch = WriteBatch::new();
        for _ in 0..1000 {
            batch.merge(&f, b"n", &1u64.to_le_bytes()).unwrap();
        }
        db.write(batch, &FREE).unwrap();
    }
    let ten_thousand = (10_000u64.to_le_bytes().to_vec(), None);
    let shown = || read(&db, b"n", &ReadOptions::default()).unwrap();
    assert_eq!(shown().as_ref(), Some(&ten_thousand));
    db.flush().unwrap();
    assert_eq!(db.stats().families[0].levels[0].entries, 1);
    assert_eq!(shown().as_ref(), Some(&ten_thousand));
}

#[test]
fn operands_outlive_the_value_that_they_were_merged_with() {
    for how in 0..3 {
        let (_, env, manual_clock) = room();
        let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
        let f = db.default_family();
        let mut batch = WriteBatch::new();
        batch.put_ttl(&f, b"k", b"short", NOW + 1000).unwrap();
        db.write(batch, &FREE).unwrap();
        wait_idle(&db, how);
        db.merge(&f, b"k", b"a", &FREE).unwrap();
        db.merge(&f, b"k", b"b", &FREE).unwrap();
        wait_idle(&db, how);
        let shown = || read(&db, b"k", &ReadOptions::default()).unwrap();
        assert_eq!(shown(), Some((b"short,a,b".to_vec(), Some(NOW + 1000))));
        manual_clock.advance(Duration::from_millis(999));
        assert_eq!(shown(), Some((b"short,a,b".to_vec(), Some(NOW + 1000))));
        manual_clock.advance(Duration::from_millis(1));
        assert_eq!(shown(), Some((b"a,b".to_vec(), None)), "{how}");
        db.merge(&f, b"k", b"c", &FREE).unwrap();
        wait_idle(&db, how);
        assert_eq!(shown(), Some((b"a,b,c".to_vec(), None)), "{how}");
    }
}

#[test]
fn refused_operands_are_kept_and_the_store_goes_on() {
    for bad in ["R", "P"] {
        for base in [None, Some("base"), Some("R")] {
            let (_, env, _) = room();
            let db = Db::open(&env, "db", with(RefusingOperator)).unwrap();
            let f = db.default_family();
            for key in [&b"a"[..], b"m", b"z"] {
                if let Some(base) = base {
                    let base = if key == b"m" { base } else { "base" };
                    db.put(&f, key, base.as_bytes(), &FREE).unwrap();
                }
                db.merge(&f, key, b"1", &FREE).unwrap();
            }
            let before = db.snapshot();
            db.merge(&f, b"m", bad.as_bytes(), &FREE).unwrap();
            for key in [&b"a"[..], b"m", b"z"] {
                db.merge(&f, key, b"2", &FREE).unwrap();
            }
            let good = if base.is_some() { "base,1,2" } else { "1,2" };
            let check = |db: &Db| {
                assert_eq!(text(db, b"a").as_deref(), Some(good));
                assert_eq!(text(db, b"z").as_deref(), Some(good));
                let e = read(db, b"m", &ReadOptions::default()).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::InvalidArgument);
                for part in ["\"default\"", "key of 1 bytes", "test.touchy"] {
                    assert!(e.to_string().contains(part), "{e}");
                }
            };
            check(&db);
            for _ in 0..2 {
                wait_idle(&db, 2);
                check(&db);
                db.wait_idle().unwrap();
            }
            // The value is that before the bad operand, unless the versions below it are refused as
            // well.
            let then = ReadOptions {
                snapshot: Some(before.clone()),
                ..ReadOptions::default()
            };
            let shown = read(&db, b"m", &then);
            match base {
                Some("R") => assert!(shown.is_err()),
                Some(_) => assert_eq!(shown.unwrap().unwrap().0, b"base,1"),
                None => assert_eq!(shown.unwrap().unwrap().0, b"1"),
            }
            drop((before, then));
            wait_idle(&db, 2);
            db.close().unwrap();
            // With a corrected operator of the same name no operand is lost.
            let db = Db::open(&env, "db", with(AcceptingOperator)).unwrap();
            let whole = base.map_or(String::new(), |b| format!("{b},")) + &format!("1,{bad},2");
            assert_eq!(text(&db, b"m"), Some(whole));
            db.put(&db.default_family(), b"m", b"new", &FREE).unwrap();
            wait_idle(&db, 2);
            assert_eq!(text(&db, b"m").as_deref(), Some("new"));
        }
    }
}

/// Refuses operands that contain an R, and panics at a P.
struct RefusingOperator;
impl MergeOperator for RefusingOperator {
    fn name(&self) -> &str {
        "test.touchy"
    }
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, MergeRefusal> {
        let all = existing.into_iter().chain(operands.iter().copied());
        for part in all {
            if part.contains(&b'R') {
                return Err(MergeRefusal::new("an R"));
            }
            assert!(!part.contains(&b'P'), "a P");
        }
        Append::new(",").full_merge(key, existing, operands)
    }
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        for part in operands {
            if part.contains(&b'R') {
                return None;
            }
            assert!(!part.contains(&b'P'), "a P");
        }
        Append::new(",").partial_merge(key, operands)
    }
}

/// The corrected form of [`RefusingOperator`].
struct AcceptingOperator;
impl MergeOperator for AcceptingOperator {
    fn name(&self) -> &str {
        "test.touchy"
    }
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, crate::MergeRefusal> {
        Append::new(",").full_merge(key, existing, operands)
    }
}

#[test]
fn operands_need_an_operator_and_obey_the_limits_of_values() {
    let (_, env, _) = room();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let e = db.merge(&f, b"k", b"x", &FREE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(
        e.to_string().contains("\"default\" has no merge operator"),
        "{e}"
    );
    let counters = FamilyOptions {
        merge_operator: Some(Arc::new(AddU64)),
        ..FamilyOptions::default()
    };
    let f = db.create_family("counters", counters).unwrap();
    let mut batch = WriteBatch::new();
    let e = batch.merge(&f, b"k", b"x").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    for part in [
        "\"counters\"",
        "basalt.add.u64",
        "1 bytes, expected a number of 8",
    ] {
        assert!(e.to_string().contains(part), "{e}");
    }
    assert!(batch.is_empty());
    let e = batch
        .merge(&f, &vec![0; crate::MAX_KEY_LEN + 1], &[0; 8])
        .unwrap_err();
    assert!(e.to_string().contains("key of"), "{e}");
    batch.merge(&f, b"k", &[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    db.write(batch, &FREE).unwrap();
    let value = db.get(&f, b"k", &ReadOptions::default()).unwrap().unwrap();
    assert_eq!(value[..], 1u64.to_le_bytes());
}

#[test]
fn a_family_keeps_the_name_of_its_operator() {
    let (_, env, _) = room();
    let open = |options: Options| Db::open(&env, "db", options);
    let db = open(Options::default()).unwrap();
    db.put(&db.default_family(), b"k", b"base", &FREE).unwrap();
    db.close().unwrap();
    // A family without an operator takes one, and keeps it.
    let db = open(with(AcceptingOperator)).unwrap();
    db.merge(&db.default_family(), b"k", b"1", &FREE).unwrap();
    let counters = FamilyOptions {
        merge_operator: Some(Arc::new(Max)),
        ..FamilyOptions::default()
    };
    let f = db.create_family("largest", counters).unwrap();
    db.merge(&f, b"k", b"7", &WriteOptions::SYNC).unwrap();
    db.abandon();
    for (options, given) in [
        (Options::default(), "the options give none"),
        (
            with(Append::new(",")),
            "the options give \"basalt.append:2c\"",
        ),
    ] {
        let e = open(options).err().expect("refused");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        for part in ["\"default\"", "\"test.touchy\"", given] {
            assert!(e.to_string().contains(part), "{e}");
        }
    }
    // A reader that meets no operand needs no operator.
    let report = Db::verify_store(&env, "db", &Options::default(), &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let repaired = Db::repair(&env, "db", &Options::default(), &mut |_, _| ()).unwrap();
    assert!(repaired.sound);
    // A built-in operator is known by its name.
    let mut options = with(AcceptingOperator);
    options
        .families
        .insert("largest".into(), FamilyOptions::default());
    let db = open(options).unwrap();
    assert_eq!(text(&db, b"k").as_deref(), Some("base,1"));
    let f = db.family("largest").unwrap();
    db.merge(&f, b"k", b"5", &FREE).unwrap();
    let value = db.get(&f, b"k", &ReadOptions::default()).unwrap().unwrap();
    assert_eq!(&value[..], b"7");
    // A family that is made anew under the name is another family.
    db.drop_family(&f).unwrap();
    db.create_family("largest", FamilyOptions::default())
        .unwrap();
    db.close().unwrap();
    let mut options = with(AcceptingOperator);
    options
        .families
        .insert("largest".into(), FamilyOptions::default());
    let db = open(options).unwrap();
    let f = db.family("largest").unwrap();
    assert!(db.merge(&f, b"k", b"5", &FREE).is_err());
}

#[test]
fn a_repair_without_the_operator_name_keeps_the_operands() {
    let (disk, env, _) = room();
    let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
    let f = db.default_family();
    for (i, op) in ["a", "b", "c", "d"].iter().enumerate() {
        for key in 0..50 {
            let key = format!("k{key:02}");
            if i == 0 {
                db.put(&f, key.as_bytes(), op.as_bytes(), &FREE).unwrap();
            } else {
                db.merge(&f, key.as_bytes(), op.as_bytes(), &FREE).unwrap();
            }
        }
        db.flush().unwrap();
    }
    db.close().unwrap();
    let names = basalt_fs::FileSystem::list(&*disk, Path::new("db")).unwrap();
    for name in names.iter().map(|e| &e.name) {
        if name.starts_with("MANIFEST") {
            basalt_fs::FileSystem::remove(&*disk, &Path::new("db").join(name)).unwrap();
        }
    }
    let report = Db::repair(&env, "db", &Options::default(), &mut |_, _| ()).unwrap();
    assert!(
        report.notes.iter().any(|n| n.contains("merge operands")),
        "{:?}",
        report.notes
    );
    // Opened without an operator, reads fail with a clear error, and compactions keep the operands.
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let e = read(&db, b"k07", &ReadOptions::default()).unwrap_err();
    assert!(e.to_string().contains("without a merge operator"), "{e}");
    db.put(&db.default_family(), b"k00", b"new", &FREE).unwrap();
    db.flush().unwrap();
    db.compact_range(&db.default_family(), None, None).unwrap();
    db.close().unwrap();
    let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
    assert_eq!(text(&db, b"k07").as_deref(), Some("a,b,c,d"));
    assert_eq!(text(&db, b"k00").as_deref(), Some("new"));
    wait_idle(&db, 2);
    assert_eq!(text(&db, b"k49").as_deref(), Some("a,b,c,d"));
}

#[test]
fn a_bounded_read_of_operands_stays_within_its_budget() {
    let (_, env, _) = room();
    let db = Db::open(&env, "db", with(Append::new(","))).unwrap();
    let f = db.default_family();
    for key in 0..10u8 {
        for _ in 0..10 {
            db.merge(&f, &[key], &[b'x'; 100], &FREE).unwrap();
        }
    }
    for flushed in [false, true] {
        wait_idle(&db, u64::from(flushed));
        let mut open: Vec<u8> = (0..10).collect();
        let mut calls = 0;
        while !open.is_empty() {
            calls += 1;
            let asked: Vec<(&Family, &[u8])> =
                open.iter().map(|k| (&f, std::slice::from_ref(k))).collect();
            let got = db.multi_get_within(&asked, &ReadOptions::default(), 9000);
            let answered = got.iter().flatten().count();
            assert!((1..=4).contains(&answered), "{answered} answers");
            let mut later = Vec::new();
            for (key, got) in open.iter().zip(got) {
                match got {
                    Some(value) => assert_eq!(value.unwrap().unwrap().len(), 1009),
                    None => later.push(*key),
                }
            }
            open = later;
        }
        assert!(calls > 2);
    }
}

/// A filter that removes values with an x, and changes those with a c.
struct ByLetter;
impl crate::CompactionFilter for ByLetter {
    fn name(&self) -> &str {
        "by letter"
    }
    fn filter(
        &self,
        _context: &crate::FilterContext<'_>,
        _key: &[u8],
        value: &[u8],
    ) -> crate::FilterDecision {
        match value {
            v if v.contains(&b'x') => crate::FilterDecision::Remove,
            v if v.contains(&b'c') => crate::FilterDecision::Change(b"changed".to_vec()),
            _ => crate::FilterDecision::Keep,
        }
    }
}

#[test]
fn a_compaction_filter_sees_merged_values_only() {
    for base in [false, true] {
        let (_, env, _) = room();
        let mut options = with(Append::new(","));
        options.default_family.compaction_filter = Some(Arc::new(ByLetter));
        // The test starts all compactions.
        options.default_family.l0_compaction_trigger = 100;
        options.default_family.l0_slowdown = 100;
        let db = Db::open(&env, "db", options).unwrap();
        let f = db.default_family();
        for (key, parts) in [
            ("gone", ["1", "x", "2"]),
            ("kept", ["1", "2", "3"]),
            ("new", ["c", "1", "2"]),
        ] {
            if base {
                db.put(&f, key.as_bytes(), b"base", &FREE).unwrap();
            }
            for part in parts {
                db.merge(&f, key.as_bytes(), part.as_bytes(), &FREE)
                    .unwrap();
                db.flush().unwrap();
            }
        }
        // The value lies below operands that may not be merged with it. The filter is not asked
        // about it either.
        let mut batch = WriteBatch::new();
        batch.put_ttl(&f, b"ttl", b"x", NOW + 1000).unwrap();
        batch.merge(&f, b"ttl", b"x").unwrap();
        db.write(batch, &FREE).unwrap();
        let snapshot = db.snapshot();
        wait_idle(&db, 2);
        assert!(text(&db, b"gone").is_some(), "the snapshot needs it");
        drop(snapshot);
        wait_idle(&db, 2);
        let kept = if base { "base,1,2,3" } else { "1,2,3" };
        assert_eq!(text(&db, b"gone"), None);
        assert_eq!(text(&db, b"kept").as_deref(), Some(kept));
        assert_eq!(text(&db, b"new").as_deref(), Some("changed"));
        assert_eq!(text(&db, b"ttl").as_deref(), Some("x,x"));
    }
}
