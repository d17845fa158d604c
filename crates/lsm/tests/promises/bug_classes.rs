//! Bugs that trusted engines shipped, as tests of this one. Each names its story.

use crate::history::options;
use crate::runner::{DIR, environment, read_all, sim_disk, verify_closed};
use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_lsm::{Db, ErrorKind, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, When, campaign, repeat};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const WALL: u64 = 1_700_000_000_000;

fn env_over(disk: &Arc<SimFs>, seed: u64) -> Env {
    let fs: Arc<dyn FileSystem> = disk.clone();
    environment(&fs, seed, WALL).0
}

fn small() -> Options {
    options(3)
}

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .expect("a sound disk")
        .map(|v| v.to_vec())
}

fn put(db: &Db, key: &[u8], value: &[u8], sync: bool) {
    db.put(
        &db.default_family(),
        key,
        value,
        &WriteOptions::synced(sync),
    )
    .expect("a sound disk");
}

/// Class 1 (RocksDB 7.7.0: the directory of CURRENT was not synced; 7.6.0: syncs skipped after
/// DropColumnFamily).
#[test]
fn names_are_durable_before_anything_is_acknowledged() {
    for policy in campaign::cases(0..CrashPolicy::ALL.len() as u64) {
        let _repeat = repeat!(
            names_are_durable_before_anything_is_acknowledged,
            "BASALT_CASE={policy}"
        );
        let policy = CrashPolicy::ALL[policy as usize];
        let disk = sim_disk(1, 512, 1 << 40);
        let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
        let doomed = db
            .create_family("doomed", FamilyOptions::default())
            .expect("made");
        db.create_family("kept", FamilyOptions::default())
            .expect("made");
        db.put(&doomed, b"k", b"v", &WriteOptions::SYNC)
            .expect("written");
        db.drop_family(&doomed).expect("dropped");
        put(&db, b"after the drop", b"durable", true);
        let left = disk.crash(policy, 7);
        db.abandon();
        let db = Db::open(&env_over(&left, 2), DIR, small()).expect("open");
        assert_eq!(db.families(), ["default", "kept"], "{policy:?}");
        assert_eq!(
            get(&db, b"after the drop").as_deref(),
            Some(&b"durable"[..]),
            "{policy:?}"
        );
    }
}

/// Class 2 (RocksDB 7.7.0: FlushWAL(true) left a tail never synced; 9.3.0: tables ahead of logs): a
/// sync covers all earlier writes, in the current log and in those before it.
#[test]
fn a_sync_covers_everything_before_it_also_in_earlier_logs() {
    for policy in campaign::cases(0..CrashPolicy::ALL.len() as u64) {
        let _repeat = repeat!(
            a_sync_covers_everything_before_it_also_in_earlier_logs,
            "BASALT_CASE={policy}"
        );
        let policy = CrashPolicy::ALL[policy as usize];
        let disk = sim_disk(2, 512, 1 << 40);
        // There is much room for sealed memtables, and no flush runs: logs follow each other.
        let options = small().write_buffer_bytes(4096).max_sealed_memtables(100);
        let db = Db::open(&env_over(&disk, 1), DIR, options).expect("open");
        for n in 0..60u32 {
            put(&db, &n.to_le_bytes(), &[n as u8; 300], false);
        }
        db.sync().expect("synced");
        for n in 60..80u32 {
            put(&db, &n.to_le_bytes(), &[n as u8; 300], false);
        }
        let left = disk.crash(policy, 9);
        db.abandon();
        let db = Db::open(&env_over(&left, 2), DIR, small()).expect("open");
        let there: Vec<bool> = (0..80u32)
            .map(|n| get(&db, &n.to_le_bytes()).is_some())
            .collect();
        assert!(
            there[..60].iter().all(|t| *t),
            "{policy:?}: something synced is lost"
        );
        assert!(
            there.is_sorted_by(|a, b| a >= b),
            "{policy:?}: a hole in {there:?}"
        );
    }
}

/// Class 3 (RocksDB 9.2.0, Pebble 567 and 543: a recycled log's old record, or a hole, was
/// accepted): every record of a recycled log stands where an old one of the same size ends, so a
/// stale record would be found at the right place.
#[test]
fn stale_records_of_a_recycled_log_are_not_replayed() {
    let _repeat = repeat!(stale_records_of_a_recycled_log_are_not_replayed, "");
    let disk = sim_disk(3, 512, 1 << 40);
    let db = Db::open(&env_over(&disk, 1), DIR, small().write_buffer_bytes(8192)).expect("open");
    let reused = {
        let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = count.clone();
        let mut names = std::collections::BTreeSet::new();
        let mut last = String::new();
        disk.on_mutation(move |s| {
            // A reuse is a log made without a removal of the one it replaces. The test counts
            // creations; the names give the rest.
            if s.call == OpKind::CreateLog && s.path != last {
                last.clone_from(&s.path);
                names.insert(s.path);
                seen.store(names.len() as u64, std::sync::atomic::Ordering::SeqCst);
            }
        });
        count
    };
    for round in 0..12u8 {
        for n in 0..20u8 {
            put(&db, &[n], &[round; 400], n % 2 == 0);
            db.env().jobs().step();
        }
        db.flush().expect("flushed");
        for &policy in CrashPolicy::ALL {
            put(&db, b"last", &[round; 400], true);
            put(&db, b"unsynced", &[round; 400], false);
            let left = disk.crash(policy, u64::from(round));
            let after = Db::open(&env_over(&left, 5), DIR, small()).expect("open");
            for n in 0..20u8 {
                assert_eq!(
                    get(&after, &[n]),
                    Some(vec![round; 400]),
                    "{policy:?}, round {round}"
                );
            }
            assert_eq!(
                get(&after, b"last"),
                Some(vec![round; 400]),
                "{policy:?}, round {round}"
            );
            after.abandon();
        }
    }
    assert!(
        reused.load(std::sync::atomic::Ordering::SeqCst) > 3,
        "several logs lived"
    );
    db.abandon();
}

/// Class 4 (RocksDB 7.2.0 and 7.4.0: the second recovery failed; redb 4.2.0: a double crash rolled
/// durable commits back): the power goes at *every* change of a recovery, and again at every change
/// of the recovery after that.
#[test]
fn a_crash_at_every_step_of_two_recoveries_loses_nothing() {
    let _repeat = repeat!(a_crash_at_every_step_of_two_recoveries_loses_nothing, "");
    let disk = sim_disk(4, 512, 1 << 40);
    let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
    let other = db
        .create_family("other", FamilyOptions::default())
        .expect("made");
    for n in 0..40u8 {
        let mut b = WriteBatch::new();
        b.put(&db.default_family(), &[n % 10], &[n; 200])
            .expect("fits");
        b.put(&other, &[n % 10], &[n; 200]).expect("fits");
        db.write(b, &WriteOptions::synced(n % 4 == 0))
            .expect("written");
    }
    db.sync().expect("synced");
    let want = read_all(&db).expect("a sound disk");
    let crashed = disk.crash(CrashPolicy::AnySubset, 1);
    db.abandon();
    let watch = |disk: &Arc<SimFs>, seed| {
        disk.record_snapshots(1);
        let db = Db::open(&env_over(disk, seed), DIR, small()).expect("open");
        assert!(
            read_all(&db).expect("a sound disk") == want,
            "recovery lost something"
        );
        db.abandon();
        disk.take_snapshots()
    };
    let mut states = 0u64;
    let only = campaign::case().map(|c| c[0]);
    for (i, first) in watch(&crashed, 10).into_iter().enumerate() {
        let policy = CrashPolicy::ALL[i % CrashPolicy::ALL.len()];
        let again = first.crash(policy, i as u64);
        for (j, second) in watch(&again, 11).into_iter().enumerate() {
            let _repeat = repeat!(
                a_crash_at_every_step_of_two_recoveries_loses_nothing,
                "BASALT_CASE={states}"
            );
            if only.is_some_and(|n| n != states) {
                states += 1;
                continue;
            }
            let policy = CrashPolicy::ALL[(i + j) % CrashPolicy::ALL.len()];
            watch(&second.crash(policy, j as u64), 12);
            states += 1;
        }
    }
    assert!(states > 200, "only {states} double crashes");
}

/// Class 5 (fjall 112: two partitions, one flushed, the log removed; Pebble 77b1bbf50): a log is
/// removed only after the parts of all families in it are in tables.
#[test]
fn a_log_is_kept_as_long_as_any_family_needs_it() {
    for policy in campaign::cases(0..CrashPolicy::ALL.len() as u64) {
        let _repeat = repeat!(
            a_log_is_kept_as_long_as_any_family_needs_it,
            "BASALT_CASE={policy}"
        );
        let policy = CrashPolicy::ALL[policy as usize];
        let disk = sim_disk(5, 512, 1 << 40);
        let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
        let quiet = db
            .create_family("quiet", FamilyOptions::default())
            .expect("made");
        db.put(&quiet, b"one", b"write", &WriteOptions::SYNC)
            .expect("written");
        for n in 0..200u32 {
            put(&db, &n.to_le_bytes(), &[1; 200], n % 10 == 0);
            if n % 50 == 0 {
                db.env().jobs().step();
            }
        }
        db.wait_idle().expect("becomes idle");
        let left = disk.crash(policy, 3);
        db.abandon();
        let db = Db::open(&env_over(&left, 2), DIR, small()).expect("open");
        let quiet = db.family("quiet").expect("it was made");
        let v = db
            .get(&quiet, b"one", &ReadOptions::default())
            .expect("a sound disk");
        assert_eq!(v.as_deref(), Some(&b"write"[..]), "{policy:?}");
    }
}

/// Class 6 (RocksDB 9.5.0: the latest valid MANIFEST deleted; 6316: ENOSPC in the middle of it):
/// changes of the tree fail for want of space again and again, and the manifest that opens always
/// holds everything.
#[test]
fn a_failed_manifest_write_keeps_the_manifest_before() {
    for from in campaign::cases(1..12) {
        let _repeat = repeat!(
            a_failed_manifest_write_keeps_the_manifest_before,
            "BASALT_CASE={from}"
        );
        let disk = sim_disk(6, 512, 1 << 40);
        let faulty = FaultFs::new(disk.clone(), from);
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let (env, manual_clock) = environment(&fs, 1, WALL);
        let db = Db::open(&env, DIR, small()).expect("open");
        put(&db, b"first", b"1", true);
        faulty.inject(Fault {
            op: None,
            path: "MANIFEST".into(),
            when: When::From(from),
            kind: FaultKind::Enospc,
        });
        let mut durable = 0u32;
        for n in 1..80u32 {
            manual_clock.advance(Duration::from_millis(60));
            if db
                .put(
                    &db.default_family(),
                    b"n",
                    &[&n.to_le_bytes()[..], &[7; 300]].concat(),
                    &WriteOptions::SYNC,
                )
                .is_ok()
            {
                durable = n;
            }
        }
        let left = disk.crash(CrashPolicy::ALL[from as usize % 10], from);
        db.abandon();
        let db = Db::open(&env_over(&left, 2), DIR, small()).expect("open");
        assert_eq!(get(&db, b"first").as_deref(), Some(&b"1"[..]));
        let n = get(&db, b"n").map_or(0, |v| {
            u32::from_le_bytes(v[..4].try_into().expect("four bytes"))
        });
        assert!(n >= durable, "{n} is there, {durable} was acknowledged");
    }
}

/// Class 7 (RocksDB 8.7.0: a failed flush deleted another flush's tables; 11.0.0: sequence numbers
/// went backwards after a recovery from an error).
#[test]
fn failed_flushes_lose_nothing_and_sequence_numbers_grow() {
    for k in campaign::cases(1..10) {
        let _repeat = repeat!(
            failed_flushes_lose_nothing_and_sequence_numbers_grow,
            "BASALT_CASE={k}"
        );
        let disk = sim_disk(7, 512, 1 << 40);
        let faulty = FaultFs::new(disk.clone(), k);
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let (env, manual_clock) = environment(&fs, 1, WALL);
        let db = Db::open(&env, DIR, small()).expect("open");
        let family = db.default_family();
        faulty.inject(Fault {
            op: None,
            path: ".tbl".into(),
            when: When::EveryKth(k),
            kind: FaultKind::Eio,
        });
        let mut last = 0;
        let mut there = std::collections::BTreeMap::new();
        for n in 0..150u32 {
            manual_clock.advance(Duration::from_millis(70));
            let key = (n % 40).to_le_bytes();
            if let Ok(seq) = db.put(
                &family,
                &key,
                &[n as u8; 200],
                &WriteOptions::synced(n % 3 == 0),
            ) {
                assert!(seq > last, "{seq} after {last}");
                last = seq;
                there.insert(key, n);
            }
        }
        faulty.clear();
        manual_clock.advance(Duration::from_secs(100));
        put(&db, b"again", b"written", true);
        db.wait_idle().expect("the fault is gone");
        for (k, n) in &there {
            assert_eq!(get(&db, k), Some(vec![*n as u8; 200]));
        }
        let seq = db
            .put(&family, b"x", b"y", &WriteOptions::SYNC)
            .expect("written");
        assert!(seq > last);
        db.close().expect("closed");
        let db = Db::open(&env, DIR, small()).expect("open");
        let again = db
            .put(&db.default_family(), b"x", b"y", &WriteOptions::SYNC)
            .expect("written");
        assert!(again > seq, "{again} after reopening, {seq} before");
        for (k, n) in &there {
            assert_eq!(get(&db, k), Some(vec![*n as u8; 200]));
        }
        db.close().expect("closed");
        verify_closed(&env);
    }
}

/// Class 8 (RocksDB 8.7.0: a read error at offset 0 became "end of file", and compaction lost the
/// rest; Pebble a370be5e7): a read that fails is an error, never an absent key, and a compaction
/// that cannot read drops nothing.
#[test]
fn a_failed_read_is_never_an_absent_key() {
    for k in campaign::cases(1..40) {
        let _repeat = repeat!(a_failed_read_is_never_an_absent_key, "BASALT_CASE={k}");
        let disk = sim_disk(8, 512, 1 << 40);
        let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
        for n in 0..120u32 {
            put(&db, &n.to_be_bytes(), &[n as u8; 100], false);
        }
        db.close().expect("closed");
        let faulty = FaultFs::new(disk.clone(), k);
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let (env, manual_clock) = environment(&fs, 2, WALL);
        let db = Db::open(&env, DIR, small()).expect("open");
        faulty.inject(Fault {
            op: Some(OpKind::Read),
            path: ".tbl".into(),
            when: When::EveryKth(k),
            kind: FaultKind::Eio,
        });
        let family = db.default_family();
        for n in 0..120u32 {
            if let Ok(v) = db.get(&family, &n.to_be_bytes(), &ReadOptions::default()) {
                assert_eq!(v.as_deref(), Some(&[n as u8; 100][..]), "k {k}");
            }
        }
        if let Ok(mut iter) = db.iter(&family, &ReadOptions::default()) {
            let mut seen = 0u32;
            let mut result = iter.seek_to_first();
            while result.is_ok() && iter.valid() {
                assert_eq!(
                    iter.key(),
                    seen.to_be_bytes(),
                    "an iterator leaves nothing out"
                );
                seen += 1;
                result = iter.next();
            }
            assert!(
                result.is_err() || seen == 120,
                "an iterator ends early without an error"
            );
        }
        let _ = db.compact_range(&family, None, None);
        faulty.clear();
        manual_clock.advance(Duration::from_secs(100));
        let _ = db.compact_range(&family, None, None);
        for n in 0..120u32 {
            assert_eq!(
                get(&db, &n.to_be_bytes()),
                Some(vec![n as u8; 100]),
                "k {k}"
            );
        }
        db.close().expect("closed");
        verify_closed(&env);
    }
}

/// Class 9 (RocksDB 11.1.0, 7.10.0, 6.11; fjall 230: a compaction misses an input, and an old
/// version comes back).
#[test]
fn no_old_version_reappears_after_compactions() {
    for seed in campaign::cases(0..30) {
        let _repeat = repeat!(
            no_old_version_reappears_after_compactions,
            "BASALT_CASE={seed}"
        );
        let disk = sim_disk(seed, 512, 1 << 40);
        let db = Db::open(&env_over(&disk, seed), DIR, options(seed)).expect("open");
        let family = db.default_family();
        let mut c = crate::rng::Rng::of(&[seed, 61]);
        let mut newest = [None::<u64>; 30];
        for n in 0..300u64 {
            let k = c.below(30) as usize;
            if c.percent(30) {
                db.delete(&family, &[k as u8], &WriteOptions::default())
                    .expect("written");
                newest[k] = None;
            } else {
                put(
                    &db,
                    &[k as u8],
                    &[&n.to_le_bytes()[..], &[0; 120]].concat(),
                    false,
                );
                newest[k] = Some(n);
            }
            match c.below(12) {
                0 => db.flush().expect("flushed"),
                1 => {
                    let (a, b) = (c.below(30) as u8, c.below(30) as u8);
                    db.compact_range(&family, Some(&[a.min(b)]), Some(&[a.max(b)]))
                        .expect("compacted");
                }
                2 => drop(db.env().jobs().step()),
                _ => {}
            }
            for (k, want) in newest.iter().enumerate() {
                let have = get(&db, &[k as u8])
                    .map(|v| u64::from_le_bytes(v[..8].try_into().expect("eight")));
                assert_eq!(have, *want, "key {k} after {n} writes");
            }
        }
    }
}

/// Class 11 (RocksDB 9.10.0: a snapshot at sequence number 0; 7.1.0: flush, write and snapshot in
/// one moment).
#[test]
fn a_snapshot_of_nothing_stays_empty_through_flushes_and_compactions() {
    let _repeat = repeat!(
        a_snapshot_of_nothing_stays_empty_through_flushes_and_compactions,
        ""
    );
    let disk = sim_disk(11, 512, 1 << 40);
    let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
    let family = db.default_family();
    let nothing = ReadOptions::default().snapshot(Some(db.snapshot()));
    put(&db, b"k", b"1", false);
    let one = ReadOptions::default().snapshot(Some(db.snapshot()));
    db.flush().expect("flushed");
    db.delete(&family, b"k", &WriteOptions::SYNC)
        .expect("written");
    let gone = ReadOptions::default().snapshot(Some(db.snapshot()));
    put(&db, b"k", b"2", false);
    for _ in 0..2 {
        let seen: Vec<Option<Vec<u8>>> = [&nothing, &one, &gone]
            .iter()
            .map(|r| {
                db.get(&family, b"k", r)
                    .expect("a sound disk")
                    .map(|v| v.to_vec())
            })
            .collect();
        assert_eq!(seen, [None, Some(b"1".to_vec()), None]);
        assert_eq!(get(&db, b"k"), Some(b"2".to_vec()));
        db.compact_range(&family, None, None).expect("compacted");
    }
}

/// Class 17 (SlateDB 271: two writers; RocksDB 10.9.0: a file deleted because the clock moved
/// back).
#[test]
fn a_store_has_one_owner_and_no_file_depends_on_the_clock() {
    let _repeat = repeat!(a_store_has_one_owner_and_no_file_depends_on_the_clock, "");
    let disk = sim_disk(17, 512, 1 << 40);
    let fs: Arc<dyn FileSystem> = disk.clone();
    let (env, manual_clock) = environment(&fs, 1, WALL);
    let db = Db::open(&env, DIR, small()).expect("open");
    let second = Db::open(&env_over(&disk, 2), DIR, small());
    assert_eq!(second.err().map(|e| e.kind()), Some(ErrorKind::Busy));
    for n in 0..200u32 {
        // Each write is later by the monotonic clock, and earlier by the wall clock.
        manual_clock.advance(Duration::from_secs(1));
        manual_clock.set_wall_ms(WALL - u64::from(n) * 3_600_000);
        put(&db, &n.to_le_bytes(), &[n as u8; 150], n % 5 == 0);
        db.env().jobs().step();
    }
    db.close().expect("closed");
    let (env, _) = environment(&fs, 3, 1_000);
    let db = Db::open(&env, DIR, small()).expect("open");
    assert!((0..200u32).all(|n| get(&db, &n.to_le_bytes()) == Some(vec![n as u8; 150])));
    db.close().expect("closed");
    verify_closed(&env);
}

/// Class 19 (redb 4.2.0: a header durable, the file's extension not): if every length is lost,
/// synced data is still found.
#[test]
fn lost_file_lengths_lose_no_synced_data() {
    for which in campaign::cases(0..2) {
        let _repeat = repeat!(lost_file_lengths_lose_no_synced_data, "BASALT_CASE={which}");
        let policy = [
            CrashPolicy::DataWithoutLength,
            CrashPolicy::LengthWithoutData,
        ][which as usize];
        let disk = sim_disk(19, 512, 1 << 40);
        let db = Db::open(&env_over(&disk, 1), DIR, small()).expect("open");
        for n in 0..100u32 {
            put(&db, &n.to_le_bytes(), &[n as u8; 200], true);
        }
        let left = disk.crash(policy, 1);
        db.abandon();
        let db = Db::open(&env_over(&left, 2), DIR, small()).expect("open");
        assert!((0..100u32).all(|n| get(&db, &n.to_le_bytes()) == Some(vec![n as u8; 200])));
    }
}

/// Class 20 (RocksDB 6.28.0: a recycled file number gave another file's cached block; 9.6.0:
/// MultiGet ignored a failed checksum; 11.3.0: an empty family name was accepted and not kept).
#[test]
fn cache_keys_have_more_than_the_file_number() {
    let _repeat = repeat!(cache_keys_have_more_than_the_file_number, "");
    let disk = sim_disk(20, 512, 1 << 40);
    // One environment and one cache serve two stores of the same name and with the same file
    // numbers, one after the other.
    let env = env_over(&disk, 1);
    for round in 0..3u8 {
        let db = Db::open(&env, DIR, small()).expect("open");
        for n in 0..100u32 {
            put(&db, &n.to_be_bytes(), &[round; 100], false);
        }
        db.flush().expect("flushed");
        db.wait_idle().expect("becomes idle");
        assert!((0..100u32).all(|n| get(&db, &n.to_be_bytes()) == Some(vec![round; 100])));
        let e = db.create_family("", FamilyOptions::default());
        assert_eq!(e.err().map(|e| e.kind()), Some(ErrorKind::InvalidArgument));
        db.close().expect("closed");
        if round == 2 {
            break;
        }
        for f in disk.list(Path::new(DIR)).expect("it is there") {
            disk.remove(&Path::new(DIR).join(f.name))
                .expect("it is there");
        }
    }
    // The data of one table is damaged; its cached blocks go with the environment. Its keys give an
    // error, the others do not.
    let tables: Vec<_> = disk
        .list(Path::new(DIR))
        .expect("it is there")
        .into_iter()
        .filter(|f| f.name.ends_with(".tbl"))
        .collect();
    let path = Path::new(DIR).join(&tables[0].name);
    disk.flip_bit(&path, 600, 3).expect("inside");
    let db = Db::open(&env_over(&disk, 9), DIR, small()).expect("lazily read");
    let keys: Vec<[u8; 4]> = (0..100u32).map(|n| n.to_be_bytes()).collect();
    let family = db.default_family();
    let asked: Vec<_> = keys.iter().map(|k| (&family, &k[..])).collect();
    let mut damaged = 0;
    for got in db.multi_get(&asked, &ReadOptions::default()) {
        match got {
            Ok(v) => assert_eq!(v.as_deref(), Some(&[2; 100][..])),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                damaged += 1;
            }
        }
    }
    assert!(
        (1..100).contains(&damaged),
        "{damaged} of 100 keys are damaged"
    );
    db.abandon();
}
