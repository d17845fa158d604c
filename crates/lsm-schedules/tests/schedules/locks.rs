//! The order of all locks, and how many of them a write takes.
//!
//! [`check_order`] runs behind each case of each model: no lock is missing in the lists, no leaf is
//! held while another lock is taken, and locks of the order are taken in the order. The model of
//! this module takes the locks that no other model takes.

use crate::explore::{CASE, below, case};
use basalt_env::sync::lock_log::{self, CrateLocks, LockPair};
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_lsm_schedules::db::{Bottommost, CheckpointOptions, CompactOptions};
use basalt_lsm_schedules::listener::{Event, EventListener};
use basalt_lsm_schedules::{Db, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use basalt_sim::campaign::scale;
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The locks of all crates that models run, from top to bottom. `blob`, `table` and `records` have
/// no locks.
const CRATES: [CrateLocks; 7] = [
    basalt_lsm_schedules::db::LOCK_ORDER,
    basalt_tree::LOCK_ORDER,
    basalt_tree::STREAM_LOCK_ORDER,
    basalt_tree::LOG_LOCK_ORDER,
    basalt_tree::USAGE_LOCK_ORDER,
    basalt_kv::snapshot::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// The locks of the crates that the model of this module runs.
const OF_MODEL: [CrateLocks; 3] = [CRATES[0], CRATES[5], CRATES[6]];

/// Locks that this module's model does not take.
const NOT_TAKEN: &[&str] = &[
    // The model of the cache takes these.
    "single_flight::Load",
    "single_flight::LoadProgress",
    // The models of `env-schedules` take these.
    "write_behind::WriteBehindState",
    "file_writer::Appender",
    "StopSignal::lock",
    // The model of families in pages takes these.
    "DroppedReferences::waiting",
    "FamilyPages::unrecorded_blobs",
    // The model of passive stores takes these.
    "Persistence::log_ends",
    "by_family::offered",
];

/// Checks the locks of the schedules of this thread ([`lock_log::assert_order`]).
pub fn check_order() {
    lock_log::assert_order(&CRATES);
}

/// Fails unless a schedule of this thread has taken each of these locks.
pub fn assert_taken(locks: &[&str]) {
    let taken = lock_log::names();
    let missed: Vec<_> = locks.iter().filter(|lock| !taken.contains(*lock)).collect();
    assert!(missed.is_empty(), "not taken: {missed:?}");
}

/// Returns the name of a listed lock without the mark of an array.
fn name(listed: &str) -> &str {
    listed.strip_suffix(lock_log::ARRAY).unwrap_or(listed)
}

/// A listener that needs no event.
struct Ignore;

impl EventListener for Ignore {
    fn on_event(&self, _event: &Event) {}
}

fn environment(seed: u64) -> Env {
    let clock = Clock::manual(ManualClock::ticking(
        1_700_000_000_000,
        Duration::from_micros(20),
    ));
    EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(2)
        .seed(seed)
        .clock(clock)
        .memory_bytes(16 << 20)
        .cache_bytes([0, 1 << 20][seed as usize % 2])
        .io_bytes_per_s(1 << 40)
        .build()
}

fn options() -> Options {
    let family = FamilyOptions::default()
        .min_blob_size(Some(64))
        .l0_compaction_trigger(2);
    Options::default()
        .write_buffer_bytes(4 << 10)
        .max_sealed_memtables(1)
        .max_space_amp(1.05)
        .default_family(family)
        .idle_release(Duration::ZERO)
        .listeners(vec![Arc::new(Ignore)])
}

/// Everything that users and jobs do at once, in one store.
fn model() {
    let env = environment(below(u64::MAX));
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let mut threads = Vec::new();
    for writer in 0..2u64 {
        let (db, family) = (db.clone(), family.clone());
        threads.push(shuttle::thread::spawn(move || {
            for n in 0..6u64 {
                let options = [WriteOptions::default(), WriteOptions::SYNC][below(2) as usize];
                let value = vec![n as u8; [8, 900][below(2) as usize]];
                let mut batch = WriteBatch::new();
                // More keys than a leaf of a memtable holds.
                for key in 0..4 + n {
                    let key = (writer * 100 + key).to_be_bytes();
                    batch.put(&family, &key, &value).unwrap();
                }
                db.write(batch, &options).unwrap();
            }
            let (from, to) = (0u64.to_be_bytes(), 2u64.to_be_bytes());
            let options = WriteOptions::default();
            db.delete_range(&family, &from, &to, &options).unwrap();
        }));
    }
    let (other, of, budgets) = (db.clone(), family.clone(), env.clone());
    threads.push(shuttle::thread::spawn(move || {
        let second = other.create_family("second", FamilyOptions::default());
        let snapshot = other.snapshot();
        for step in 0..4 {
            match (step + below(2)) % 5 {
                0 => other.flush().unwrap(),
                1 => other.compact(&of, &Default::default()).unwrap(),
                2 => {
                    drop(other.stats());
                    drop(budgets.budgets());
                    budgets.cache().set_capacity(below(2) << 20);
                }
                3 => {
                    let mut table = other.prepare(&of).unwrap();
                    table.add(b"z", &[1; 100]).unwrap();
                    other.ingest(&[table.finish().unwrap()]).unwrap();
                }
                _ => {
                    let to = format!("copy-{step}");
                    other.checkpoint(to, &CheckpointOptions::default()).unwrap();
                }
            }
            let _ = other.get(&of, b"z", &ReadOptions::default()).unwrap();
        }
        drop(snapshot);
        other.drop_family(&second.unwrap()).unwrap();
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    let all = CompactOptions::default().bottommost(Bottommost::Force);
    db.compact(&family, &all).unwrap();
    db.wait_idle().unwrap();
    db.close().unwrap();
}

/// Every pair of locks that any thread of a store takes stands in the documented order. A pair in
/// both orders could deadlock. Every case makes this check; here each listed lock is taken, too.
#[test]
fn locks_are_taken_in_the_documented_order() {
    let mut schedules = 0;
    for seed in campaign::cases(0..2 * scale()) {
        let _repeat = repeat!(
            locks_are_taken_in_the_documented_order,
            "BASALT_CASE={seed}"
        );
        case(seed, model);
        schedules += CASE;
    }
    let order: BTreeSet<&str> = OF_MODEL
        .iter()
        .flat_map(|c| c.order)
        .map(|l| name(l))
        .collect();
    let is_ordered = |pair: &&LockPair| order.contains(pair.first) && order.contains(pair.second);
    let ranked = lock_log::pairs().iter().filter(is_ordered).count();
    basalt_sim::campaign!("lock_schedules={schedules} ordered_pairs={ranked}");
    // Fewer would prove little: most locks of the order are taken under the writer's.
    assert!(ranked >= 8, "{ranked} pairs of the order were seen");
    if campaign::case().is_none() {
        let taken = lock_log::names();
        let listed = OF_MODEL.iter().flat_map(|c| c.order.iter().chain(c.leaves));
        let missed: Vec<&str> = (listed.map(|l| name(l)))
            .filter(|lock| !taken.contains(lock) && !NOT_TAKEN.contains(lock))
            .collect();
        assert!(missed.is_empty(), "listed, and not taken: {missed:?}");
        let needless = NOT_TAKEN.iter().find(|lock| taken.contains(*lock));
        assert_eq!(needless, None, "it is taken");
    }
}

/// A rule that complains of nothing is not a rule.
#[test]
fn the_lock_order_check_reports_violations() {
    let pair = |first: &'static str, second: &'static str, is_ascending: bool| LockPair {
        first,
        second,
        is_ascending,
    };
    let is_wrong = |pair: LockPair| lock_log::violation(&CRATES, &pair).is_some();
    let wrong = |a, b| is_wrong(pair(a, b, true)) && is_wrong(pair(a, b, false));
    let right = |a, b| !is_wrong(pair(a, b, true)) && !is_wrong(pair(a, b, false));
    assert!(right("write_path::Writer", "tree::TreeState"));
    assert!(right("tree::TreeState", "health::Failures"));
    assert!(wrong("tree::TreeState", "write_path::Writer"));
    assert!(wrong("health::Failures", "tree::TreeState"));
    assert!(wrong("health::Failures", "events::EventQueue"));
    assert!(wrong("tree::TreeState", "tree::TreeState"));
    // Locks of other crates, and locks with a given name.
    assert!(right("tree::TreeState", "LiveSnapshots"));
    assert!(right("TableFile::opening", "shard::Shard"));
    assert!(wrong("LiveSnapshots", "jobs::PoolState"));
    assert!(wrong("jobs::PoolState", "TableFile::opening"));
    assert!(wrong("shard::Shard", "TableFile::opening"));
    assert!(wrong("OpenFile::slot", "open::OpenFile"));
    // The locks of an array are taken in one direction.
    assert!(!is_wrong(pair("view::View", "view::View", true)));
    assert!(is_wrong(pair("view::View", "view::View", false)));
}

/// The check sees a lock that is not listed, whatever it guards, and pairs of all kinds of locks.
#[test]
fn the_log_of_locks_sees_all_kinds_of_locks() {
    use basalt_env::sync::{Condvar, Mutex, RwLock, SpinLockMark, named};
    lock_log::clear();
    basalt_env::sync::explore::case(0, || {
        let unnamed = Mutex::new(());
        let first = named("Test::first", Mutex::new(()));
        let second = named("Test::second", RwLock::new(0));
        let spins = false;
        let array = [(); 2].map(|()| named("Test::array", Mutex::new(0)));
        drop((second.read(), unnamed.lock()));
        drop((second.write(), first.lock()));
        drop((first.try_lock(), second.read()));
        drop((SpinLockMark::new("Test::spins", &spins), first.lock()));
        drop((array[0].lock(), array[1].lock()));
        // A wait takes its lock again, under the lock that was taken meanwhile.
        let mut waits = first.lock();
        let inner = array[0].lock();
        Condvar::new().wait_for(&mut waits, Duration::ZERO);
        drop((inner, waits));
    });
    let found: Vec<(&str, &str, bool)> = (lock_log::pairs().iter())
        .map(|pair| (pair.first, pair.second, pair.is_ascending))
        .collect();
    let has = |first: &str, second: &str| found.iter().any(|p| (p.0, p.1) == (first, second));
    assert!(has("Test::second", "()"), "{found:?}");
    assert!(has("Test::second", "Test::first"), "{found:?}");
    assert!(has("Test::first", "Test::second"), "{found:?}");
    assert!(has("Test::spins", "Test::first"), "{found:?}");
    assert!(found.contains(&("Test::array", "Test::array", true)));
    assert!(!found.contains(&("Test::array", "Test::array", false)));
    assert!(has("Test::first", "Test::array"), "{found:?}");
    assert!(has("Test::array", "Test::first"), "{found:?}");
    let crates = [CrateLocks {
        order: &["Test::first", "Test::array[]", "Test::spins"],
        leaves: &["Test::second"],
    }];
    let mut wrong = lock_log::violations(&crates);
    wrong.sort_unstable();
    assert_eq!(
        wrong,
        [
            "() is not listed, or twice: give the lock a name and a place",
            "Test::first is taken while Test::array is held",
            "Test::first is taken while Test::second is held",
            "Test::first is taken while Test::spins is held",
        ]
    );
    lock_log::clear();
}

/// An uncontended put takes each lock no more often than it must.
#[test]
fn an_uncontended_put_takes_few_locks() {
    let taken: Arc<std::sync::Mutex<Vec<&str>>> = Arc::default();
    let into = taken.clone();
    case(2, move || {
        let env = environment(7);
        let db = Db::open(&env, "db", options()).unwrap();
        let family = db.default_family();
        let put = |n: u64| {
            let key = n.to_be_bytes();
            db.put(&family, &key, b"value", &WriteOptions::default())
                .unwrap();
        };
        // The first begins the log.
        (0..3).for_each(put);
        lock_log::begin_list();
        put(3);
        *into.lock().unwrap() = lock_log::end_list();
        db.close().unwrap();
    });
    let taken = taken.lock().unwrap();
    let list = taken.join("\n  ");
    println!("locks={}\n  {list}", taken.len());
    assert!(taken.len() <= 9, "{} locks:\n  {list}", taken.len());
}
