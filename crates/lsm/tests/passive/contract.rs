//! What the interface of a passive store promises and refuses.

use crate::database::DIR;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_kv::merge::AddU64;
use basalt_lsm::db::{Logged, Replay};
use basalt_lsm::{
    Compression, Db, ErrorKind, Event, EventListener, FamilyOptions, LogMode, Options,
    PassiveOptions, ReadOptions, Result, WriteBatch, WriteOptions,
};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn disk() -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit: 512,
        capacity: 1 << 30,
        seed: 1,
    })
}

fn passive(options: PassiveOptions) -> Options {
    Options::default()
        .log(LogMode::Passive(options))
        .write_buffer_bytes(64 << 10)
}

fn open(env: &Env) -> Replay {
    Db::open_passive(env, DIR, passive(PassiveOptions::default())).expect("a sound store")
}

/// A transaction with `items` items.
fn batch(db: &Db, family: &str, items: u64) -> WriteBatch {
    let family = db.family(family).expect("the test made it");
    let mut batch = WriteBatch::new();
    for n in 0..items {
        batch
            .put(&family, format!("{n}").as_bytes(), b"v")
            .expect("a short key");
    }
    batch
}

/// Returns a store with one item of the family `cold` in memory, and the family `default` flushed
/// once, and its last transaction.
fn uneven(disk: &Arc<SimFs>) -> (Db, u64) {
    let env = Env::for_tests(disk.clone(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    db.create_family("cold", FamilyOptions::default())
        .expect("a new name");
    db.write_at(1, batch(&db, "cold", 1)).expect("the next");
    let mut tsn = 1;
    while db.stats().flushes == 0 {
        tsn += 1;
        db.write_at(tsn, batch(&db, "default", 100))
            .expect("the next");
        env.jobs().step();
    }
    (db, tsn)
}

/// Replays the log of [`uneven`] into its store, from the beginning.
fn complete(env: &Env, last: u64) -> Db {
    let mut replay = open(env);
    assert_eq!(replay.next_tsn(), 1);
    let cold = replay.family("cold").expect("it was made");
    let mut of_cold = WriteBatch::new();
    of_cold.put(&cold, b"0", b"v").expect("a short key");
    replay.replay(1, of_cold).expect("the first");
    for tsn in 2..=last {
        let mut batch = WriteBatch::new();
        for n in 0..100 {
            batch
                .put(&replay.default_family(), format!("{n}").as_bytes(), b"v")
                .expect("a short key");
        }
        replay.replay(tsn, batch).expect("as before");
    }
    let db = replay.finish(last).expect("all of the log");
    let found = db.get(&cold, b"0", &ReadOptions::default()).expect("sound");
    assert_eq!(found.as_deref(), Some(&b"v"[..]));
    db
}

fn refusal<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) {
    let e = result.err().expect("it is refused");
    assert_eq!(e.kind(), kind, "{e}");
    let text = e.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

#[test]
fn transactions_come_once_and_in_order() {
    let env = Env::for_tests(disk(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let first = db.write_at(1, batch(&db, "default", 2)).expect("the first");
    refusal(
        db.write_at(1, batch(&db, "default", 1)),
        ErrorKind::InvalidArgument,
        &["applied already", "next one is transaction 2"],
    );
    refusal(
        db.write_at(0, batch(&db, "default", 1)),
        ErrorKind::InvalidArgument,
        &["transaction 0 was given after"],
    );
    refusal(
        db.write_at(4, batch(&db, "default", 1)),
        ErrorKind::InvalidArgument,
        &["missing", "next one is transaction 2"],
    );
    // A transaction without items has a number, and no sequence number.
    let second = db.write_at(2, WriteBatch::new()).expect("an empty one");
    assert_eq!(second, first);
    let third = db.write_at(3, batch(&db, "default", 1)).expect("the third");
    assert_eq!(third, first + 1);
}

#[test]
fn a_passive_store_refuses_writes_without_a_number() {
    let env = Env::for_tests(disk(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let family = db.default_family();
    let unsynced = WriteOptions::default();
    refusal(
        db.put(&family, b"a", b"1", &unsynced),
        ErrorKind::InvalidArgument,
        &["passive", "write_at"],
    );
    refusal(db.sync(), ErrorKind::InvalidArgument, &["passive"]);
    refusal(
        db.submit(batch(&db, "default", 1), &unsynced).wait(),
        ErrorKind::InvalidArgument,
        &["passive"],
    );
    db.close().expect("sound");
    refusal(
        Db::open(&env, DIR, Options::default()),
        ErrorKind::InvalidArgument,
        &["passive", "open_passive"],
    );
    refusal(
        Db::open(&env, "other", passive(PassiveOptions::default())),
        ErrorKind::InvalidArgument,
        &["open_passive"],
    );
    refusal(
        Db::open_passive(&env, "other", Options::default()),
        ErrorKind::InvalidArgument,
        &["LogMode::Passive"],
    );

    let with_log = Db::open(&env, "other", Options::default()).expect("a new store");
    refusal(
        with_log.write_at(1, batch(&with_log, "default", 1)),
        ErrorKind::InvalidArgument,
        &["not passive"],
    );
    refusal(
        with_log.persistence_points(),
        ErrorKind::InvalidArgument,
        &["not passive"],
    );
    refusal(
        with_log.subscribe(),
        ErrorKind::InvalidArgument,
        &["not passive"],
    );
}

#[test]
fn preconditions_are_checked_without_a_write() {
    use basalt_lsm::db::Precondition;
    let env = Env::for_tests(disk(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let family = db.default_family();
    let before = db.snapshot().seq();
    db.write_at(1, batch(&db, "default", 1)).expect("the next");
    let check = |seq| {
        let unchanged = [Precondition::unchanged(&family, b"0", seq)];
        db.write_if(WriteBatch::new(), &unchanged, &WriteOptions::default())
    };
    refusal(check(before), ErrorKind::Conflict, &[]);
    check(db.snapshot().seq()).expect("nothing has changed since");
    db.write_at(2, WriteBatch::new())
        .expect("a check takes no number");
}

#[test]
fn the_end_of_a_replay_is_checked() {
    let disk = disk();
    let env = Env::for_tests(disk.clone(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    for tsn in 1..=5 {
        db.write_at(tsn, batch(&db, "default", tsn))
            .expect("the next");
    }
    db.flush().expect("sound");
    db.write_at(6, batch(&db, "default", 1)).expect("the next");
    db.abandon();

    // The log ends before what the store has.
    let env = Env::for_tests(disk.kill(), 2);
    refusal(
        open(&env).finish(4),
        ErrorKind::Corruption,
        &["persisted up to transaction 5", "ends with transaction 4"],
    );
    // A part of the log was not replayed.
    refusal(
        open(&env).finish(6),
        ErrorKind::InvalidArgument,
        &["replay from transaction 6"],
    );
    // The log was trimmed too far.
    let mut replay = open(&env);
    assert_eq!(replay.points().replay_from(), 6);
    refusal(
        replay.replay(7, WriteBatch::new()),
        ErrorKind::InvalidArgument,
        &["transaction 7 was given after transaction 5"],
    );
    // Transactions before the point are skipped, as long as none was replayed.
    replay.replay(4, WriteBatch::new()).expect("an old one");
    let mut last = WriteBatch::new();
    last.put(&replay.default_family(), b"0", b"w")
        .expect("a short key");
    let replayed = replay.replay(6, last).expect("the next");
    assert_eq!((replayed.applied, replayed.dropped), (1, 0));
    refusal(
        replay.replay(5, WriteBatch::new()),
        ErrorKind::InvalidArgument,
        &["transaction 5 was given after transaction 6"],
    );
    let db = replay.finish(6).expect("all of the log");
    let value = db
        .get(&db.default_family(), b"0", &ReadOptions::default())
        .expect("sound");
    assert_eq!(value.as_deref(), Some(&b"w"[..]));
}

#[test]
fn another_log_is_noticed() {
    let disk = disk();
    let (db, last) = uneven(&disk);
    let points = db.persistence_points().expect("it is passive");
    assert_eq!(
        points.global, 0,
        "the cold family holds the point back: {points:?}"
    );
    let flushed = points
        .families
        .iter()
        .map(|f| f.flag.tsn)
        .max()
        .expect("two families");
    db.abandon();
    let env = Env::for_tests(disk.kill(), 2);
    let mut replay = open(&env);
    let items = |tsn: u64| if tsn == flushed { 99 } else { 100 };
    let family = replay.default_family();
    let mut of_one = WriteBatch::new();
    of_one.put(&family, b"0", b"v").expect("a short key");
    replay.replay(1, of_one).expect("as before");
    for tsn in 2..=flushed {
        let mut batch = WriteBatch::new();
        for n in 0..items(tsn) {
            batch
                .put(&family, format!("{n}").as_bytes(), b"v")
                .expect("a short key");
        }
        let replayed = replay.replay(tsn, batch);
        match tsn == flushed {
            false => assert_eq!(replayed.expect("as before").applied, 0, "default has it"),
            true => refusal(
                replayed,
                ErrorKind::Corruption,
                &["had 100 items", "now has 99", "another log"],
            ),
        }
    }
    // Nothing of the other log was persisted: the right log completes the store.
    drop(replay);
    drop(complete(&env, last));
}

/// Replays a log that is not the store's: the family `cold` gets other values, and enough of them
/// that the replay applies them. It ends before transaction `end`.
fn replay_another_log(env: &Env, end: u64) -> Replay {
    let mut replay = open(env);
    let cold = replay.family("cold").expect("it was made");
    for tsn in 1..end {
        let mut other = WriteBatch::new();
        other.put(&cold, b"0", &[b'x'; 12 << 10]).expect("short");
        let replayed = replay.replay(tsn, other).expect("no flag is here");
        assert_eq!(replayed.applied, 1);
    }
    replay
}

/// A dropped replay flushes what it has applied, and the next opening goes on from there. After
/// another log was noticed, or a log that has lost its end, nothing of it is flushed: the right log
/// still completes the store.
#[test]
fn another_log_is_not_persisted() {
    let disk = disk();
    let (db, last) = uneven(&disk);
    let points = db.persistence_points().expect("it is passive");
    let flags = points.families.iter().map(|f| f.flag.tsn);
    let flushed = flags.max().expect("two families");
    assert!(flushed > 3, "{points:?}");
    db.abandon();
    let killed = disk.kill();

    // Without the error, the drop flushes.
    let env = Env::for_tests(killed.kill(), 2);
    drop(replay_another_log(&env, 3));
    assert!(open(&env).next_tsn() > 1, "the test proves nothing");

    let env = Env::for_tests(killed, 3);
    refusal(
        replay_another_log(&env, 3).finish(2),
        ErrorKind::Corruption,
        &["the log has lost transactions"],
    );
    let mut replay = replay_another_log(&env, 3);
    assert_eq!(replay.points().families, points.families);
    for tsn in 3..=flushed {
        let replayed = replay.replay(tsn, WriteBatch::new());
        match tsn == flushed {
            false => assert_eq!(replayed.expect("no flag is here").applied, 0),
            true => refusal(replayed, ErrorKind::Corruption, &["another log"]),
        }
    }
    drop(replay);
    assert_eq!(open(&env).points().families, points.families);
    drop(complete(&env, last));
}

/// Returns the number of tables of a family.
fn tables_of(db: &Db, family: &str) -> u64 {
    let stats = db.stats();
    let mut families = stats.families.iter();
    let family = families.find(|f| f.name == family).expect("it was made");
    family.levels.iter().map(|level| level.tables).sum()
}

/// A family that is created again by a replay gets tables, and a family that has them does not.
/// The latter has merged its tables with a later delete: the same tables once more would bring the
/// deleted key back.
#[test]
fn a_replay_ingests_only_into_families_that_lack_the_tables() {
    let disk = disk();
    let env = Env::for_tests(disk.clone(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let table = |db: &Db, name: &str, keys: &[&[u8]], value: &[u8]| {
        let family = db.family(name).expect("it was made");
        let mut table = db.prepare(&family).expect("open");
        for key in keys {
            table.add(key, value).expect("in order");
        }
        table.finish().expect("a sound disk")
    };
    for name in ["cold", "gone", "kept"] {
        db.create_family(name, FamilyOptions::default())
            .expect("a new name");
    }
    db.write_at(1, batch(&db, "cold", 1)).expect("the next");
    let both: [&[u8]; 2] = [b"deleted", b"k"];
    let tables = ["gone", "kept"].map(|name| table(&db, name, &both, b"old"));
    db.ingest_at(2, &tables).expect("the next");
    db.drop_family(&db.family("gone").expect("it was made"))
        .expect("it exists");
    let newer = |family: &basalt_lsm::Family| {
        let mut batch = WriteBatch::new();
        batch.delete(family, b"deleted").expect("a short key");
        batch.put(family, b"k", b"new").expect("a short key");
        batch
    };
    let kept = db.family("kept").expect("it was made");
    db.write_at(3, newer(&kept)).expect("the next");
    // More ingestions persist the family alone, and the old table is compacted away.
    let last = 6;
    for tsn in 4..=last {
        db.ingest_at(tsn, &[table(&db, "kept", &[b"k"], b"newest")])
            .expect("the next");
    }
    db.wait_idle().expect("sound");
    let tables_before = tables_of(&db, "kept");
    assert_eq!(tables_before, 1);
    assert_eq!(db.persistence_points().expect("it is passive").global, 0);
    db.abandon();

    let env = Env::for_tests(disk.kill(), 2);
    let mut replay = open(&env);
    let cold = replay.family("cold").expect("it was made");
    let mut of_cold = WriteBatch::new();
    of_cold.put(&cold, b"k", b"v").expect("a short key");
    replay.replay(1, of_cold).expect("the first");
    let gone = replay
        .create_family("gone", FamilyOptions::default())
        .expect("it was dropped");
    let kept = replay.family("kept").expect("it was made");
    let prepare = |replay: &Replay| {
        [&gone, &kept]
            .into_iter()
            .map(|family| {
                let mut table = replay.prepare(family)?;
                table.add(b"deleted", b"old")?;
                table.add(b"k", b"old")?;
                table.finish()
            })
            .collect()
    };
    let families = [&gone, &kept];
    replay.ingest(2, &families, prepare).expect("the next");
    replay.replay(3, newer(&kept)).expect("the next");
    for tsn in 4..=last {
        let done = replay.ingest(tsn, &[&kept], |_| panic!("the family has it"));
        assert_eq!(done.expect("the next").dropped, 1);
    }
    let db = replay.finish(last).expect("all of the log");
    let read = |family, key: &[u8]| {
        db.get(family, key, &ReadOptions::default())
            .expect("sound")
            .map(|value| value.to_vec())
    };
    assert_eq!(read(&kept, b"k").as_deref(), Some(&b"newest"[..]));
    assert_eq!(read(&kept, b"deleted"), None);
    assert_eq!(tables_of(&db, "kept"), tables_before);
    for key in both {
        assert_eq!(read(&gone, key).as_deref(), Some(&b"old"[..]));
    }
}

#[test]
fn nothing_is_readable_before_the_replay_is_complete() {
    let disk = disk();
    let (db, tsn) = uneven(&disk);
    db.abandon();
    let disk = disk.kill();
    let env = Env::for_tests(disk.clone(), 2);
    refusal(
        Db::open_read_only(&env, DIR, Options::default()),
        ErrorKind::InvalidArgument,
        &[
            "passive",
            "\"default\" is persisted up to",
            "\"cold\" only up to 0",
            "from transaction 1",
        ],
    );
    complete(&env, tsn).close().expect("sound");
    let reader = Db::open_read_only(&env, DIR, Options::default()).expect("it was closed");
    let cold = reader.family("cold").expect("it was created");
    assert!(
        reader
            .get(&cold, b"0", &ReadOptions::default())
            .expect("sound")
            .is_some()
    );
}

#[test]
fn a_store_with_a_log_becomes_passive_with_all_its_data() {
    let disk = disk();
    let env = Env::for_tests(disk.clone(), 1);
    let options = Options::default();
    let sums = FamilyOptions::default().merge_operator(Some(Arc::new(AddU64)));
    let db = Db::open(&env, DIR, options).expect("a new store");
    let family = db.create_family("sums", sums).expect("a new name");
    for _ in 0..3 {
        db.merge(&family, b"a", &1u64.to_le_bytes(), &WriteOptions::SYNC)
            .expect("sound");
    }
    db.abandon();
    let disk = disk.crash(CrashPolicy::NothingUnsynced, 1);
    let env = Env::for_tests(disk, 2);
    let replay = open(&env);
    assert_eq!(replay.next_tsn(), 1, "the owner's log begins here");
    let db = replay.finish(0).expect("an empty log");
    let family = db.family("sums").expect("it was created");
    let mut one = WriteBatch::new();
    one.merge(&family, b"a", &1u64.to_le_bytes())
        .expect("an operand");
    db.write_at(1, one).expect("the first");
    let sum = db
        .get(&family, b"a", &ReadOptions::default())
        .expect("sound");
    assert_eq!(sum.as_deref(), Some(&4u64.to_le_bytes()[..]));
    assert_eq!(db.stats().log_bytes, 0, "it has no log");
}

/// Keeps the global points that it hears of.
#[derive(Default)]
struct Heard(Mutex<Vec<u64>>);

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        if let Event::Persisted { global, .. } = event {
            self.0.lock().unwrap().push(*global);
        }
    }
}

#[test]
fn who_waits_for_a_persistence_point_hears_of_it() {
    let heard = Arc::new(Heard::default());
    let env = Env::for_tests(disk(), 1);
    let options = passive(PassiveOptions::default()).listeners(vec![heard.clone()]);
    let replay = Db::open_passive(&env, DIR, options).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let mut watch = db.subscribe().expect("it is passive");
    db.write_at(1, batch(&db, "default", 1)).expect("the next");
    assert_eq!(watch.next(Duration::ZERO).expect("open"), None);
    db.flush().expect("sound");
    let points = watch
        .next(Duration::from_secs(1))
        .expect("open")
        .expect("it was flushed");
    assert_eq!((points.global, points.applied), (1, 1));
    assert_eq!(
        watch.next(Duration::ZERO).expect("open"),
        None,
        "it was seen"
    );
    db.wait_for_listeners();
    assert_eq!(*heard.0.lock().unwrap(), [1]);
    points.check_trim(2).expect("nobody needs transaction 1");
    refusal(
        points.check_trim(3),
        ErrorKind::InvalidArgument,
        &["from transaction 2 on", "\"default\""],
    );
    db.close().expect("sound");
    refusal(watch.next(Duration::from_secs(1)), ErrorKind::Closed, &[]);
}

/// A load of eight hours on a clock that the test moves: each minute has 64 KiB of a family, one
/// family has one key in the beginning and one an hour, and another one none.
#[test]
fn an_idle_family_pins_the_log_no_longer_than_its_owner_allows() {
    const BOUND: u64 = 1 << 20;
    let clock = ManualClock::new(1_700_000_000_000);
    let builder = EnvBuilder::for_tests(disk(), 1);
    let env = builder.clock(Clock::manual(clock.clone())).build();
    let options = PassiveOptions::default().max_pinned_log_bytes(Some(BOUND));
    let replay = Db::open_passive(&env, DIR, passive(options)).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    for name in ["rare", "idle"] {
        db.create_family(name, FamilyOptions::default())
            .expect("a new name");
    }
    let (mut tsn, mut most) = (0, 0);
    for minute in 0..8 * 60 {
        if minute % 60 == 0 {
            tsn += 1;
            db.write_at(tsn, batch(&db, "rare", 1)).expect("the next");
        }
        for _ in 0..16 {
            tsn += 1;
            let at = Logged::at(tsn).bytes(4 << 10);
            db.write_at(at, batch(&db, "default", 40))
                .expect("the next");
            let stats = db.stats().passive.expect("it is passive");
            most = most.max(stats.pinned_log_bytes);
            env.jobs().step();
        }
        clock.advance(Duration::from_secs(60));
    }
    let stats = db.stats().passive.expect("it is passive");
    assert!(most > BOUND / 2, "the load was too small: {most}");
    assert!(most <= 2 * BOUND, "{most}");
    // A family that holds the point back for an hour is flushed in that hour: the log has 4 MiB.
    assert!((8..=40).contains(&stats.early_flushes), "{stats:?}");
    assert!(
        stats.early_flush_bytes < stats.early_flushes * (96 << 10),
        "{stats:?}"
    );
}

#[test]
fn empty_transactions_pin_nothing() {
    let env = Env::for_tests(disk(), 1);
    let options = PassiveOptions::default().max_pinned_log_bytes(Some(4 << 10));
    let replay = Db::open_passive(&env, DIR, passive(options)).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    for tsn in 1..=1000 {
        db.write_at(Logged::at(tsn).bytes(100), WriteBatch::new())
            .expect("the next");
        env.jobs().step();
    }
    let stats = db.stats().passive.expect("it is passive");
    assert!(stats.pinned_log_bytes <= 8 << 10, "{stats:?}");
    assert!(
        db.stats().families[0]
            .levels
            .iter()
            .all(|level| level.tables == 0)
    );
}

/// Without a log, a separated value is written by the flush, and by nothing else.
#[test]
fn separated_values_are_written_once() {
    let env = Env::for_tests(disk(), 1);
    let values = FamilyOptions::default()
        .min_blob_size(Some(100))
        .blob_compression(Compression::Lz4);
    let families = [("values".to_string(), values.clone())];
    let options = passive(PassiveOptions::default())
        .write_buffer_bytes(1 << 20)
        .families(families.into_iter().collect());
    let replay = Db::open_passive(&env, DIR, options).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let family = db.create_family("values", values).expect("a new name");
    let value = |n: u64| -> Vec<u8> {
        // Half of it can be compressed.
        let noise = (0..500u64).map(|i| (i * i * (n + 7) % 251) as u8);
        noise.chain([7; 500]).collect()
    };
    for n in 0..200u64 {
        let mut batch = WriteBatch::new();
        batch
            .put(&family, &n.to_le_bytes(), &value(n))
            .expect("a short key");
        db.write_at(n + 1, batch).expect("the next");
    }
    let stats = db.stats();
    assert_eq!((stats.wal_bytes_written, stats.flush_bytes_written), (0, 0));
    db.flush().expect("sound");
    let stats = db.stats();
    assert_eq!((stats.wal_bytes_written, stats.log_bytes), (0, 0));
    assert_eq!(stats.blobs.live_records, 200, "{:?}", stats.blobs);
    let written = stats.flush_bytes_written;
    assert!(
        (60_000..180_000).contains(&written),
        "200,000 bytes, compressed: {written}"
    );
    for n in 0..200u64 {
        let found = db
            .get(&family, &n.to_le_bytes(), &ReadOptions::default())
            .expect("sound");
        assert_eq!(found.as_deref(), Some(&value(n)[..]));
    }
}

/// The state of another replica takes the place of a part of the log.
#[test]
fn a_store_goes_on_behind_the_state_of_another_replica() {
    let disk = disk();
    let env = Env::for_tests(disk.clone(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let cold = db
        .create_family("cold", FamilyOptions::default())
        .expect("a new name");
    for tsn in 1..=3 {
        db.write_at(tsn, batch(&db, "default", 1))
            .expect("the next");
    }
    let table = |value: &[u8]| {
        let mut table = db.prepare(&cold).expect("open");
        table.add(b"k", value).expect("in order");
        table.finish().expect("a sound disk")
    };
    let early = db.rebase(3, &[table(b"early")]);
    refusal(
        early,
        ErrorKind::InvalidArgument,
        &["up to transaction 3", "a later transaction"],
    );
    let late = db.rebase(u64::MAX, &[table(b"late")]);
    refusal(
        late,
        ErrorKind::InvalidArgument,
        &["beyond the highest number"],
    );
    db.rebase(100, &[table(b"v")]).expect("a later one");
    let points = db.persistence_points().expect("it is passive");
    assert_eq!((points.global, points.applied), (100, 100), "{points:?}");
    let skipped = db.write_at(4, batch(&db, "default", 1));
    refusal(
        skipped,
        ErrorKind::InvalidArgument,
        &["transaction 4 was given after transaction 100"],
    );
    db.write_at(101, batch(&db, "cold", 1)).expect("the next");
    db.abandon();

    let env = Env::for_tests(disk.kill(), 2);
    let mut replay = open(&env);
    assert_eq!(replay.next_tsn(), 101);
    let mut last = WriteBatch::new();
    let cold = replay.family("cold").expect("it was made");
    last.put(&cold, b"0", b"v").expect("a short key");
    replay.replay(101, last).expect("the next");
    let db = replay.finish(101).expect("all of the log");
    for key in [&b"0"[..], b"k"] {
        let found = db.get(&cold, key, &ReadOptions::default()).expect("sound");
        assert_eq!(found.as_deref(), Some(&b"v"[..]));
    }
}

/// Many families that hold the point back are flushed in few steps, and not one after the other.
#[test]
fn many_idle_families_are_flushed_in_one_step() {
    const FAMILIES: u64 = 200;
    const BOUND: u64 = 1 << 20;
    let env = Env::for_tests(disk(), 1);
    let options = PassiveOptions::default().max_pinned_log_bytes(Some(BOUND));
    let options = passive(options).write_buffer_bytes(16 << 20);
    let replay = Db::open_passive(&env, DIR, options).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let mut tsn = 0;
    for n in 0..FAMILIES {
        let name = format!("idle{n}");
        db.create_family(&name, FamilyOptions::default())
            .expect("a new name");
        tsn += 1;
        db.write_at(tsn, batch(&db, &name, 1)).expect("the next");
    }
    let before = db.stats().flushes;
    for _ in 0..(3 * BOUND / 2) >> 10 {
        tsn += 1;
        db.write_at(Logged::at(tsn).bytes(1 << 10), batch(&db, "default", 1))
            .expect("the next");
        env.jobs().step();
    }
    let stats = db.stats();
    let passive = stats.passive.expect("it is passive");
    assert!(passive.global > FAMILIES, "{passive:?}");
    assert!(
        stats.flushes - before <= 2,
        "{} flushes",
        stats.flushes - before
    );
}

/// An iterator holds the memtables of its beginning. Their bytes stay in the account, also when
/// families are sealed and flushed one after the other.
#[test]
fn memory_that_a_reader_holds_stays_in_the_account() {
    let env = Env::for_tests(disk(), 1);
    let db = open(&env).finish(0).expect("an empty log");
    let names = ["a", "b"];
    let mut tsn = 0;
    let mut write = |name: &str| {
        tsn += 1;
        db.write_at(tsn, batch(&db, name, 150)).expect("the next");
    };
    for name in names {
        db.create_family(name, FamilyOptions::default())
            .expect("a new name");
        write(name);
    }
    let family = db.family("a").expect("it was made");
    let iter = db.iter(&family, &ReadOptions::default()).expect("open");
    // Each family fills the buffer in turn, so that the memtables of the beginning go one by one.
    for name in names {
        let flushes = db.stats().flushes;
        while db.stats().flushes == flushes {
            write(name);
            env.jobs().step();
        }
    }
    db.flush().expect("a sound disk");
    let booked = || env.ledger().usage().memtable;
    let empty = db.stats().memtable_bytes;
    assert!(
        booked() >= empty + (8 << 10),
        "{} bytes beside {empty}",
        booked()
    );
    drop(iter);
    assert!(
        booked() < empty + (8 << 10),
        "{} bytes beside {empty}",
        booked()
    );
}

#[test]
fn what_is_persisted_of_a_family_is_read_before_the_replay() {
    let disk = disk();
    let (db, _) = uneven(&disk);
    let points = db.persistence_points().expect("it is passive");
    let point = |name: &str| {
        let found = points.families.iter().find(|f| f.family == name);
        found.expect("the test made it").flag.tsn
    };
    assert!(point("default") > 1 && point("cold") < 1, "{points:?}");
    db.abandon();
    let env = Env::for_tests(disk.kill(), 2);
    let mut run = open(&env);
    let count = |run: &Replay, name: &str| {
        let family = run.family(name).expect("the test made it");
        run.iter_persisted(&family).map(|mut iter| {
            iter.seek_to_first().expect("sound");
            let mut n = 0;
            while iter.valid() {
                n += 1;
                iter.next().expect("sound");
            }
            n
        })
    };
    // The family `default` is ahead of the family `cold`, which has nothing on the device.
    assert_eq!(count(&run, "default").expect("nothing is replayed"), 100);
    assert_eq!(count(&run, "cold").expect("nothing is replayed"), 0);
    let family = run.family("cold").expect("the test made it");
    let mut one = WriteBatch::new();
    one.put(&family, b"0", b"v").expect("a short key");
    run.replay(1, one).expect("the next");
    refusal(
        count(&run, "cold"),
        ErrorKind::InvalidArgument,
        &["\"cold\"", "before the replay begins"],
    );
}
