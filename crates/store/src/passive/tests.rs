//! Unit tests of `passive`: a database whose log is a log of its own store.

use crate::{Store, StoreOptions};
use basalt_env::Env;
use basalt_fs::{Bytes, ErrorKind, Result};
use basalt_log::{Log, WriteOptions};
use basalt_lsm::db::{CheckpointOptions, Replay};
use basalt_lsm::{
    FamilyOptions, LogMode, MergeOperator, MergeRefusal, Options, PassiveOptions, ReadOptions,
    WriteBatch,
};
use basalt_sim::campaign::{cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::sync::Arc;

/// A sum of numbers of 64 bits.
struct Sum;

impl MergeOperator for Sum {
    fn name(&self) -> &str {
        "sum"
    }
    fn full_merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, MergeRefusal> {
        let number = |bytes: &&[u8]| u64::from_le_bytes((*bytes).try_into().expect("eight bytes"));
        let sum: u64 = base.iter().chain(operands).map(number).sum();
        Ok(sum.to_le_bytes().to_vec())
    }
}

const DIR: &str = "store";
const SUMS: [&str; 3] = ["hot", "cold", "idle"];

fn options() -> StoreOptions {
    let sums = || FamilyOptions::default().merge_operator(Some(Arc::new(Sum)));
    let families = SUMS.map(|name| (name.to_string(), sums()));
    let tables = Options::default()
        .log(LogMode::Passive(
            PassiveOptions::default().max_pinned_log_bytes(Some(16 << 10)),
        ))
        .write_buffer_bytes(8 << 10)
        .default_family(sums())
        .families(families.into_iter().collect());
    StoreOptions::default().tables(tables)
}

/// A record of the log: families by number, keys, and what to add to them.
fn encode(items: &[(u8, u8, u64)]) -> Vec<u8> {
    let items = items.iter();
    items
        .flat_map(|(family, key, more)| [&[*family, *key][..], &more.to_le_bytes()].concat())
        .collect()
}

fn decode(record: &[u8]) -> impl Iterator<Item = (&'static str, [u8; 1], &[u8])> {
    let items = record.chunks(10);
    items.map(|item| (SUMS[item[0] as usize], [item[1]], &item[2..]))
}

fn replay(run: &mut Replay, tsn: u64, record: Bytes) -> Result<()> {
    let mut batch = WriteBatch::new();
    for (family, key, more) in decode(&record) {
        let family = match run.family(family) {
            Some(family) => family,
            None => run.create_family(family, options().tables.families[family].clone())?,
        };
        batch.merge(&family, &key, more)?;
    }
    run.replay(tsn, batch).map(|_| ())
}

fn open(env: &Env) -> Result<(Store, Log)> {
    let (store, log) = Store::open_passive(env, DIR, options(), "binlog", &mut replay)?;
    for name in SUMS {
        if store.db().family(name).is_none() {
            store
                .db()
                .create_family(name, options().tables.families[name].clone())?;
        }
    }
    Ok((store, log))
}

fn write(store: &Store, log: &Log, tsn: u64, record: &[u8], synced: bool) {
    let durability = if synced {
        WriteOptions::SYNC
    } else {
        WriteOptions::UNSYNCED
    };
    log.append(tsn, record, &durability).expect("a sound disk");
    let mut batch = WriteBatch::new();
    for (family, key, more) in decode(record) {
        let family = store.db().family(family).expect("it was made");
        batch.merge(&family, &key, more).expect("an operand");
    }
    store
        .db()
        .write_at(tsn, batch)
        .expect("the next transaction");
}

/// Checks the sums of a store against the records of its log, trimmed ones included.
fn check(store: &Store, records: &[Vec<u8>], end: usize) {
    let mut sums = std::collections::BTreeMap::new();
    for record in &records[..end] {
        for (family, key, more) in decode(record) {
            let sum = sums.entry((family, key)).or_insert(0u64);
            *sum += u64::from_le_bytes(more.try_into().expect("eight bytes"));
        }
    }
    let mut found = std::collections::BTreeMap::new();
    for name in SUMS {
        let family = store.db().family(name).expect("it was made");
        let mut iter = store
            .db()
            .iter(&family, &ReadOptions::default())
            .expect("open");
        iter.seek_to_first().expect("sound");
        while iter.valid() {
            let sum = u64::from_le_bytes(iter.value().try_into().expect("eight bytes"));
            found.insert((name, [iter.key()[0]]), sum);
            iter.next().expect("sound");
        }
    }
    assert_eq!(found, sums, "after {end} transactions");
}

#[test]
fn power_cuts_lose_no_synced_transaction_and_count_none_twice() {
    let (mut lost, mut trimmed) = (0, 0);
    for seed in cases(0..40 * scale()) {
        let _repeat = repeat!(
            power_cuts_lose_no_synced_transaction_and_count_none_twice,
            "BASALT_CASE={seed}"
        );
        let mut rng = Rng::of(&[seed, 30]);
        let mut disk = SimFs::new(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let mut records: Vec<Vec<u8>> = Vec::new();
        for life in 0..4 {
            let env = Env::for_tests(disk.clone(), seed * 10 + life);
            let (store, log) = open(&env).expect("a power cut leaves a sound store");
            let end = log.last().or(log.trimmed()).unwrap_or(0) as usize;
            lost += records.len() - end;
            records.truncate(end);
            check(&store, &records, end);
            let mut synced = end;
            for _ in 0..150 {
                let items = (0..1 + rng.below(4)).map(|_| {
                    let family = match rng.below(60) {
                        0 => 2,
                        1..8 => 1,
                        _ => 0,
                    };
                    (family, rng.below(20) as u8, 1 + rng.below(100))
                });
                let record = encode(&items.collect::<Vec<_>>());
                records.push(record.clone());
                let sync = rng.percent(10);
                write(&store, &log, records.len() as u64, &record, sync);
                if sync {
                    synced = records.len();
                }
                if rng.percent(10) {
                    let points = store.db().persistence_points().expect("it is passive");
                    log.trim(points.global, &WriteOptions::UNSYNCED)
                        .expect("a sound disk");
                }
                while rng.percent(50) && env.jobs().step() {}
            }
            let policy = rng.pick(CrashPolicy::ALL);
            let cut = disk.crash(policy, rng.next_u64());
            trimmed += log.trimmed().unwrap_or(0);
            // The handles go on with the disk before the power cut.
            drop((store, log));
            disk = cut;
            // What was synced is there.
            let env = Env::for_tests(disk.clone(), seed * 10 + 5 + life);
            let (store, log) = open(&env).expect("a power cut leaves a sound store");
            let end = log.last().or(log.trimmed()).unwrap_or(0) as usize;
            assert!(
                end >= synced,
                "{end} of {synced} synced transactions, {policy:?}"
            );
            check(&store, &records, end);
            lost += records.len() - end;
            records.truncate(end);
            match rng.coin() {
                true => store.close().expect("a sound disk"),
                false => drop(store),
            }
        }
    }
    campaign!("passive tables over a log of their store: {lost} lost, {trimmed} trimmed");
    assert!(lost > 0 && trimmed > 0);
}

#[test]
fn a_closed_store_needs_no_replay_and_can_be_copied() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let (store, log) = open(&env).expect("a new store");
    let records: Vec<Vec<u8>> = (1..=9).map(|n| encode(&[(0, n, 1), (1, 7, 2)])).collect();
    for (tsn, record) in (1..).zip(&records) {
        write(&store, &log, tsn, record, false);
    }
    store
        .checkpoint("copy", &CheckpointOptions::default())
        .expect("a sound disk");
    store.sync().expect("a sound disk");
    store.close().expect("a sound disk");
    let mut none = |_: &mut Replay, tsn: u64, _: Bytes| -> Result<()> {
        panic!("transaction {tsn} is replayed after a clean close")
    };
    for dir in [DIR, "copy"] {
        let opened = Store::open_passive(&env, dir, options(), "binlog", &mut none);
        let (store, log) = opened.expect("it was closed");
        check(&store, &records, 9);
        assert_eq!(log.last(), Some(9));
        store.close().expect("a sound disk");
    }
    // The close flushes what is in memory, which needs the log.
    let (store, log) = open(&env).expect("it was closed");
    write(&store, &log, 10, &records[0], false);
    store.close().expect("a sound disk");
    let opened = Store::open_passive(&env, DIR, options(), "binlog", &mut none);
    let (store, log) = opened.expect("it was closed");
    // A log that was trimmed too far is refused.
    write(&store, &log, 11, &records[0], true);
    log.trim(11, &WriteOptions::SYNC).expect("a sound disk");
    let env = Env::for_tests(disk.kill(), 2);
    let refused = open(&env).err().expect("transaction 11 is nowhere");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(
        refused.to_string().contains("trimmed up to transaction 11"),
        "{refused}"
    );
    let refused = Store::open(&env, "other", options())
        .err()
        .expect("it is passive");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
}
