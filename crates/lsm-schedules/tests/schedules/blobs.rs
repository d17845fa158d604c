//! Blob files: garbage collections, compactions that drop references meanwhile, and readers that
//! hold files that are gone from the tree. Each job finds its work in an earlier version. When it
//! ends, it brings its findings up to date, whatever ended before it. A mark that hit another
//! record, or a reference that leads nowhere, is found by the scan at the end.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_lsm_schedules::db::{Bottommost, CompactOptions};
use basalt_lsm_schedules::{
    Compression, Db, Family, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const KEYS: usize = 9;

fn key(n: usize) -> Vec<u8> {
    format!("key{n:02}").into_bytes()
}

fn value(key: usize, round: u64) -> Vec<u8> {
    let mut v = round.to_le_bytes().to_vec();
    v.push(key as u8);
    v.resize(200, b'.');
    v
}

fn options() -> Options {
    Options::default()
        .write_buffer_bytes(4096)
        .max_space_amp(1.05)
        .default_family(
            FamilyOptions::default()
                .min_blob_size(Some(100))
                .blob_compression(Compression::Lz4)
                .block_bytes(256)
                .table_bytes(1024)
                .l0_compaction_trigger(2)
                .l0_slowdown(8)
                .base_level_bytes(2048)
                .level_multiplier(2),
        )
        .idle_release(Duration::ZERO)
}

/// For each key, the round of its last write that has returned.
type Returned = Arc<[AtomicU64; KEYS]>;

/// Sets a third of the keys, so that files keep some live records.
fn write(db: &Db, family: &Family, returned: &Returned, round: u64) {
    let mut batch = WriteBatch::new();
    let third = || (0..KEYS).filter(|k| round < 2 || *k as u64 % 3 == round % 3);
    for k in third() {
        batch.put(family, &key(k), &value(k, round)).unwrap();
    }
    db.write(batch, &WriteOptions::default()).expect("writes");
    third().for_each(|k| returned[k].store(round, SeqCst));
}

/// Reads every key, one after the other or by a slow walk: none is older than the last write that
/// had returned.
fn look(db: &Db, family: &Family, returned: &Returned, totals: &Counts) {
    let due: Vec<u64> = returned.iter().map(|r| r.load(SeqCst)).collect();
    let check = |k: usize, v: &[u8]| {
        let round = u64::from_le_bytes(v[..8].try_into().unwrap());
        assert_eq!(v, value(k, round), "another key's value");
        assert!(
            round >= due[k],
            "round {round} of key {k}, {} had returned",
            due[k]
        );
    };
    let read = ReadOptions::default().snapshot(percent(50).then(|| db.snapshot()));
    if percent(50) {
        for k in 0..KEYS {
            let found = db.get(family, &key(k), &read).expect("reads");
            check(k, &found.expect("it is never deleted"));
            yield_now();
        }
    } else {
        let mut iter = db.iter(family, &read).expect("an iterator");
        iter.seek_to_first().expect("reads");
        for k in 0..KEYS {
            assert!(iter.valid() && iter.key() == key(k), "a key is missing");
            check(k, iter.value());
            yield_now();
            iter.next().expect("reads");
        }
    }
    count(totals, 1, 1);
}

fn model(totals: &Counts) {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(2 + below(2) as usize)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .cache_bytes([0, 2000, 1 << 20][below(3) as usize])
        .open_files(1 + below(4) as usize)
        .build();
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let returned: Returned = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    for round in 1..=3 {
        write(&db, &family, &returned, round);
        db.flush().expect("flushes");
    }
    let mut threads = Vec::new();
    let (w, f, r) = (db.clone(), family.clone(), returned.clone());
    threads.push(shuttle::thread::spawn(move || {
        for round in 4..8 {
            write(&w, &f, &r, round);
            w.flush().expect("flushes");
        }
    }));
    let (reader, f, r, t) = (db.clone(), family.clone(), returned.clone(), totals.clone());
    threads.push(shuttle::thread::spawn(move || {
        (0..3).for_each(|_| look(&reader, &f, &r, &t));
    }));
    let (c, f) = (db.clone(), family.clone());
    threads.push(shuttle::thread::spawn(move || match below(3) {
        0 => c.wait_idle().expect("becomes idle"),
        which => {
            let all = CompactOptions::default().relocate_values(which == 2);
            c.compact(&f, &all).expect("compacts");
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    // Entries that a snapshot kept at the bottom are dropped as well, once no merge runs that began
    // before the snapshot's drop.
    db.wait_idle().expect("becomes idle");
    let all = CompactOptions::default()
        .bottommost(Bottommost::Force)
        .relocate_values(true);
    db.compact(&family, &all).expect("compacts");
    db.wait_idle().expect("becomes idle");
    look(&db, &family, &returned, totals);
    let stats = db.stats();
    let (blobs, tables) = (stats.blobs, &stats.families[0].levels);
    count(totals, 2, blobs.collections);
    count(totals, 3, blobs.names_forgotten);
    count(totals, 4, blobs.relocated_bytes);
    count(totals, 0, shuttle::current::context_switches() as u64);
    db.close().expect("closes");
    let report = Db::verify_store(&env, "db", &options(), &mut |_, _| ()).expect("walks");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
    assert_eq!(blobs.live_records, KEYS as u64, "{blobs:?} {tables:?}");
    assert_eq!(
        (report.blob_bytes, report.referred_bytes),
        (blobs.bytes, blobs.live_bytes)
    );
}

#[test]
fn garbage_collections_are_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..30 * campaign::scale()) {
        let _repeat = repeat!(
            garbage_collections_are_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, looks, collections, forgotten, relocated] =
        std::array::from_fn(|i| counted(&totals, i));
    campaign!(
        "blob_schedules={schedules} steps={steps} looks={looks} collections={collections} names_forgotten={forgotten} relocated={relocated}"
    );
    if campaign::case().is_none() {
        assert!(
            collections > schedules,
            "few collections: {collections} in {schedules}"
        );
        assert!(
            forgotten * 2 > schedules,
            "few names: {forgotten} in {schedules}"
        );
        assert!(
            relocated > schedules * 100,
            "few values moved: {relocated} bytes in {schedules}"
        );
    }
}
