//! Reads with a bound: many keys within a budget of bytes, and iterators that pause instead of
//! walking over long runs of deleted keys. A caller asks again for the rest of a bounded read, and
//! in the end every caller has seen the same.

use basalt_env::{Env, EnvBuilder, Random};
use basalt_lsm::{Db, Family, Options, ReadOptions, Snapshot, WriteOptions};
use basalt_sim::{SimFs, SimOptions};

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;

fn open(change: impl FnOnce(&mut Options)) -> (Env, Db) {
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 7)
        .cache_bytes(32 << 20)
        .memory_bytes(64 << 20)
        .build();
    let mut options = Options::default();
    change(&mut options);
    let db = Db::open(&env, "db", options).expect("open");
    (env, db)
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// Returns the bytes of data blocks in the cache, which reads have brought into memory.
fn data_bytes(env: &Env) -> u64 {
    let stats = env.cache().stats();
    stats.used - stats.used_high
}

/// Regression test. An MGET of large values once read all of them before it checked the limit of
/// its reply.
#[test]
fn multi_get_within_reads_no_more_than_its_budget() {
    const VALUE: usize = 10 << 10;
    const BUDGET: usize = 100 << 10;
    let (env, db) = open(|_| ());
    let f = db.default_family();
    for i in 0..300 {
        let value = vec![i as u8; VALUE];
        db.put(&f, &key(i), &value, &UNSYNCED).expect("put");
        if i == 100 || i == 200 {
            db.flush().expect("flush");
        }
    }
    let names: Vec<Vec<u8>> = (0..310).map(|i| key(i * 7 % 310)).collect();
    let mut asked: Vec<(&Family, &[u8])> = names.iter().map(|k| (&f, &k[..])).collect();
    let read = ReadOptions::default();
    let mut calls = 0;
    while !asked.is_empty() {
        let before = data_bytes(&env);
        let answers = db.multi_get_within(&asked, &read, BUDGET);
        calls += 1;
        let read_now = (data_bytes(&env) - before) as usize;
        assert!(read_now <= BUDGET + 2 * VALUE, "{read_now} bytes were read");
        let mut held = 0;
        let mut again = Vec::new();
        for ((family, key), answer) in asked.iter().zip(answers) {
            let Some(answer) = answer else {
                again.push((*family, *key));
                continue;
            };
            let answer = answer.expect("no read fails");
            held += answer.as_ref().map_or(0, |v| v.len());
            assert_eq!(answer, db_get(&db, &f, key), "{key:?}");
        }
        assert!(held <= BUDGET + VALUE, "{held} bytes were answered");
        assert!(again.len() < asked.len(), "a call must get further");
        asked = again;
    }
    assert!(
        calls >= 300 * VALUE / BUDGET,
        "{calls} calls answered everything"
    );
}

fn db_get(db: &Db, f: &Family, key: &[u8]) -> Option<basalt_lsm::Bytes> {
    let read = ReadOptions::default().fill_cache(false);
    db.get(f, key, &read).expect("get")
}

/// For random stores and budgets, every key that was put off is answered when asked again, with the
/// answer of a single lookup.
#[test]
fn keys_beyond_the_budget_are_answered_by_later_calls() {
    let r = Random::from_seed(3);
    let (env, db) = open(|o| {
        o.write_buffer_bytes = 16 << 10;
        o.default_family.block_bytes = 512;
        o.default_family.table_bytes = 8 << 10;
        o.default_family.base_level_bytes = 16 << 10;
    });
    let f = db.default_family();
    for round in 0..40 {
        for _ in 0..60 {
            let k = key(r.below(300) as u32);
            if r.one_in(5) {
                db.delete(&f, &k, &UNSYNCED).expect("delete");
            } else {
                let value = vec![round as u8; r.below(900) as usize];
                db.put(&f, &k, &value, &UNSYNCED).expect("put");
            }
        }
        while env.jobs().step() {}
        let names: Vec<Vec<u8>> = (0..80).map(|_| key(r.below(320) as u32)).collect();
        let mut asked: Vec<(&Family, &[u8])> = names.iter().map(|k| (&f, &k[..])).collect();
        while !asked.is_empty() {
            let budget = r.below(5_000) as usize;
            let answers = db.multi_get_within(&asked, &ReadOptions::default(), budget);
            let mut again = Vec::new();
            for ((family, k), answer) in asked.iter().zip(answers) {
                match answer {
                    Some(answer) => assert_eq!(answer.expect("read"), db_get(&db, &f, k)),
                    None => again.push((*family, *k)),
                }
            }
            assert!(again.len() < asked.len(), "a call must get further");
            asked = again;
        }
    }
}

/// Returns all keys by iterators that pause, as of one moment, and how often they paused.
fn walk(db: &Db, f: &Family, at: &Snapshot, budget: u64, back: bool) -> (Vec<Vec<u8>>, u32) {
    let read = ReadOptions::default()
        .snapshot(Some(at.clone()))
        .max_skippable_entries(budget);
    let mut found = Vec::new();
    let mut pauses = 0;
    let mut from: Option<Vec<u8>> = None;
    loop {
        let mut it = db.iter(f, &read).expect("iter");
        match (&from, back) {
            (None, false) => it.seek_to_first(),
            (None, true) => it.seek_to_last(),
            (Some(k), false) => it.seek(k),
            (Some(k), true) => it.seek_for_prev(k),
        }
        .expect("seek");
        while it.valid() {
            found.push(it.key().to_vec());
            if back { it.prev() } else { it.next() }.expect("move");
        }
        let Some(key) = it.resume_key() else {
            return (found, pauses);
        };
        assert_ne!(from.as_deref(), Some(key), "an iterator must get further");
        from = Some(key.to_vec());
        pauses += 1;
        assert!(pauses < 1_000_000);
    }
}

/// Regression test. A million deleted keys in a row once held up every reader that scanned over
/// them until the end of the run.
#[test]
fn an_iterator_with_max_skippable_entries_pauses_and_misses_nothing() {
    let (_, db) = open(|_| ());
    let f = db.default_family();
    for i in 0..20_000 {
        db.put(&f, &key(i), b"v", &UNSYNCED).expect("put");
        if i == 10_000 {
            db.flush().expect("flush");
        }
    }
    for i in (0..20_000).filter(|i| !(4_000..4_010).contains(i)) {
        db.delete(&f, &key(i), &UNSYNCED).expect("delete");
    }
    let left: Vec<Vec<u8>> = (4_000..4_010).map(key).collect();
    let now = db.snapshot();
    for back in [false, true] {
        let expected: Vec<_> = match back {
            false => left.clone(),
            true => left.iter().rev().cloned().collect(),
        };
        let (found, pauses) = walk(&db, &f, &now, u64::MAX, back);
        assert_eq!((found, pauses), (expected.clone(), 0));
        let (found, pauses) = walk(&db, &f, &now, 1_000, back);
        assert_eq!(found, expected);
        assert!((18..=60).contains(&pauses), "{pauses} pauses, back: {back}");
        let (found, _) = walk(&db, &f, &now, 1, back);
        assert_eq!(found, expected);
    }
}

/// Tries random histories, budgets and snapshots, both ways.
#[test]
fn paused_scans_answer_as_unpaused_ones() {
    let r = Random::from_seed(11);
    let (env, db) = open(|o| {
        o.write_buffer_bytes = 8 << 10;
        o.default_family.table_bytes = 4 << 10;
        o.default_family.base_level_bytes = 8 << 10;
    });
    let f = db.default_family();
    let mut kept: Vec<Snapshot> = Vec::new();
    for round in 0..30 {
        for _ in 0..100 {
            let k = key(r.below(40 + 5 * round) as u32);
            match r.below(4) {
                0 => db.put(&f, &k, &vec![7; r.below(200) as usize], &UNSYNCED),
                1 => db.put(&f, b"key000007", b"hot", &UNSYNCED),
                _ => db.delete(&f, &k, &UNSYNCED),
            }
            .expect("write");
        }
        kept.push(db.snapshot());
        env.jobs().step();
        let at = &kept[r.below(kept.len() as u64) as usize];
        for back in [false, true] {
            let (all, _) = walk(&db, &f, at, u64::MAX, back);
            let (found, _) = walk(&db, &f, at, 1 + r.below(20), back);
            assert_eq!(found, all, "round {round}, back: {back}");
        }
    }
}
