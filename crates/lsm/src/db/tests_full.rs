//! A full disk and a killed process: what the logs hold must fit beside them once more, as tables, or the store cannot
//! be opened.

use super::*;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::campaign;
use basalt_fs::sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CAPACITY: u64 = 16 << 20;

/// What is written, and how.
#[derive(Debug, Clone, Copy)]
struct Load {
    value_bytes: usize,
    sync: bool,
    /// Background jobs that run after each write. Without any, memtables are flushed when a writer waits for it.
    jobs: usize,
    /// Values from this length on are separated.
    min_blob_size: Option<usize>,
    /// Keys are written again after so many others, so that compactions and collections have work.
    keys: u64,
}

impl Load {
    fn options(&self) -> Options {
        Options {
            // All memtables together are ten times the reserve of this disk.
            write_buffer_bytes: 2 << 20,
            default_family: FamilyOptions {
                min_blob_size: self.min_blob_size,
                table_bytes: 512 << 10,
                base_level_bytes: 2 << 20,
                ..FamilyOptions::default()
            },
            ..Options::default()
        }
    }

    fn write_options(&self) -> WriteOptions {
        match self.sync {
            true => WriteOptions::SYNC,
            false => WriteOptions::UNSYNCED,
        }
    }

    /// The value of a write: bytes that do not compress, and that no other write has.
    fn value(&self, n: u64) -> Vec<u8> {
        let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut value = Vec::with_capacity(self.value_bytes + 8);
        while value.len() < self.value_bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            value.extend_from_slice(&state.to_le_bytes());
        }
        value.truncate(self.value_bytes);
        value
    }

    fn key(&self, n: u64) -> [u8; 8] {
        (n % self.keys).to_be_bytes()
    }
}

/// The environment of one process. Each process has a seed of its own, or it would give files the ids that an earlier
/// process gave to others.
fn environment(disk: &Arc<SimFs>, seed: u64) -> (Env, Arc<ManualClock>) {
    let hands = ManualClock::new(1_700_000_000_000);
    let env = EnvBuilder::for_tests(disk.clone(), seed)
        .clock(Clock::manual(hands.clone()))
        .build();
    (env, hands)
}

/// Opens what a killed process left, finds every acknowledged write, and writes again once enough was deleted.
fn reopen(load: &Load, disk: &Arc<SimFs>, acknowledged: u64, what: &str) {
    let (env, hands) = environment(disk, 2);
    let options = load.options();
    let db = Db::open(&env, "db", options.clone())
        .unwrap_or_else(|e| panic!("{load:?}, {what}: the store does not open: {e}"));
    let f = db.default_family();
    let newest: BTreeMap<u64, u64> = (0..acknowledged).map(|n| (n % load.keys, n)).collect();
    for (key, &n) in &newest {
        let got = db.get(&f, &key.to_be_bytes(), &ReadOptions::default());
        let got = got.unwrap();
        // The write at hand may be there, too.
        let next = (acknowledged % load.keys == *key).then(|| load.value(acknowledged));
        assert!(
            got.as_deref() == Some(&load.value(n)[..])
                || (next.is_some() && got.as_deref() == next.as_deref()),
            "{load:?}, {what}: write {n} of {acknowledged} is lost"
        );
    }
    let mut tries = 0;
    let mut wait = |e: &Error| {
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        hands.advance(Duration::from_secs(2));
        while env.jobs().step() {}
        tries += 1;
        assert!(tries < 50, "{load:?}, {what}: {e} {:?}", db.stats());
    };
    if load.sync {
        // Padded logs leave many small tables in level 0, and whether a merge of all of them fits is no matter of this
        // test.
        return db.abandon();
    }
    // Everything: a merge that keeps a part of its tables may need more space for that part than is free.
    for key in newest.keys() {
        while let Err(e) = db.delete(&f, &key.to_be_bytes(), &WriteOptions::UNSYNCED) {
            wait(&e);
        }
    }
    while let Err(e) = db.put(&f, b"after", &load.value(1), &WriteOptions::SYNC) {
        wait(&e);
    }
    db.close().unwrap();
    let report = Db::verify_store(&env, "db", &options, &mut |_, _| ()).unwrap();
    assert!(
        report.damage.is_empty(),
        "{load:?}, {what}: {:?}",
        report.damage
    );
}

/// Fills the disk, and kills the process at moments on the way and when it is full.
fn fill_and_kill(load: Load) -> u64 {
    let disk = SimFs::new(SimOptions {
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let (env, _hands) = environment(&disk, 1);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let moments: Arc<Mutex<Vec<(u64, SimSnapshot)>>> = Arc::default();
    let db = Db::open(&env, "db", load.options()).unwrap();
    let (seen, sink) = (acknowledged.clone(), moments.clone());
    let calls = AtomicU64::new(0);
    disk.on_mutation(move |moment| {
        // The later, the fuller: the last of those kept are looked at.
        if calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(37) {
            let mut kept = sink.lock().unwrap();
            kept.push((seen.load(Ordering::SeqCst), moment));
            if kept.len() > 400 {
                kept.drain(..200);
            }
        }
    });
    let f = db.default_family();
    let mut n = 0;
    let full = loop {
        match db.put(&f, &load.key(n), &load.value(n), &load.write_options()) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
        acknowledged.store(n, Ordering::SeqCst);
        for _ in 0..load.jobs {
            env.jobs().step();
        }
        if n > 4 * CAPACITY / load.value_bytes as u64 {
            // Compactions keep up with overwrites: it never fills.
            break Error::new(ErrorKind::NoSpace, "never full");
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{load:?}: {full}");
    disk.on_mutation(|_| ());
    // The disk is not full while much of it is free.
    let free = env.fs().space(std::path::Path::new("db")).unwrap().free;
    assert!(
        free < CAPACITY / 3,
        "{load:?}: {full}, and {free} bytes are free"
    );
    reopen(&load, &disk.kill(), n, "killed when full");
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    let mut states = 1;
    // Some on the way, and more of the end.
    let last = moments.len();
    for (i, (acknowledged, moment)) in moments.iter().enumerate() {
        if i + 4 >= last || i % (last / 4).max(1) == 0 {
            let what = format!("killed at {moment:?}");
            reopen(&load, &moment.kill(), *acknowledged, &what);
            if load.sync {
                let cut = moment.crash(CrashPolicy::Torn, i as u64);
                reopen(
                    &load,
                    &cut,
                    *acknowledged,
                    &format!("power cut at {moment:?}"),
                );
                states += 1;
            }
            states += 1;
        }
    }
    db.close().ok();
    states
}

const BASE: Load = Load {
    value_bytes: 4000,
    sync: false,
    jobs: 0,
    min_blob_size: None,
    keys: u64::MAX,
};

fn all(loads: &[Load], least: u64) {
    let states: u64 = loads.iter().map(|load| fill_and_kill(*load)).sum();
    campaign!("killed_full={states}");
    assert!(states >= least, "only {states} states");
}

/// A store of 2 MiB memtables on a disk of 16 MiB kept 1 MiB free, and had up to 8 MiB in its logs that were in no
/// table. Killed then, it could not write them out when it was opened, said that the disk was full, and nothing could
/// be deleted to help it.
#[test]
fn a_store_that_is_killed_on_a_full_disk_opens() {
    let loads = [
        BASE,
        Load {
            value_bytes: 600,
            ..BASE
        },
        Load {
            min_blob_size: Some(1000),
            ..BASE
        },
        Load {
            value_bytes: 1_000_000,
            ..BASE
        },
    ];
    all(&loads, 15);
}

/// The same of synced writes, whose log is padded, and after a power cut.
#[test]
fn a_store_whose_power_is_cut_on_a_full_disk_opens() {
    let loads = [
        Load {
            value_bytes: 1000,
            sync: true,
            ..BASE
        },
        Load { sync: true, ..BASE },
        Load {
            min_blob_size: Some(1000),
            sync: true,
            ..BASE
        },
    ];
    all(&loads, 15);
}

/// The same while compactions run: their outputs, and inputs that were replaced, take space, too.
#[test]
fn a_store_that_is_killed_while_it_compacts_on_a_full_disk_opens() {
    if basalt_fs::sim::is_on_lava() {
        // There, an input that was removed has its space until the removal is durable, and a killed merge can leave too
        // little.
        return;
    }
    let loads = [
        Load { jobs: 1, ..BASE },
        Load {
            keys: 4000,
            jobs: 1,
            ..BASE
        },
    ];
    all(&loads, 10);
}
