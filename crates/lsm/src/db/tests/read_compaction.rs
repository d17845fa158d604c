//! Level 0 is merged when readers have paid for it: only without writes, and not for reads that
//! would have gone to the device anyway.

use super::prelude::*;
use crate::listener::{CompactionReason, Event, EventListener};
use crate::options::WriteOptions;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use parking_lot::Mutex;
use std::time::Duration;

const KEYS: u32 = 600;

/// The reasons of compactions, and whether they failed.
#[derive(Default)]
pub(super) struct Reasons(Mutex<Vec<(CompactionReason, bool)>>);

impl EventListener for Reasons {
    fn on_event(&self, event: &Event) {
        if let Event::CompactionEnd {
            compaction, error, ..
        } = event
        {
            self.0.lock().push((compaction.reason, error.is_some()));
        }
    }
}

impl Reasons {
    /// Returns the compactions for this reason that succeeded and that failed.
    pub(super) fn count(&self, reason: CompactionReason) -> (usize, usize) {
        let reasons = self.0.lock();
        let count = |failed| reasons.iter().filter(|r| **r == (reason, failed)).count();
        (count(false), count(true))
    }
}

struct Store {
    env: Env,
    faults: Arc<FaultFs>,
    db: Db,
    reasons: Arc<Reasons>,
    value: Vec<u8>,
}

impl Store {
    /// All keys are in the lowest level, every third of them again in two tables of level 0. The
    /// cache keeps no block.
    fn new(filter_bits: u32, for_reads: bool, value: usize) -> Store {
        let faults = FaultFs::new(SimFs::new(SimOptions::default()), 5);
        let env = basalt_env::EnvBuilder::for_tests(faults.clone(), 5)
            .cache_bytes(0)
            .build();
        let reasons = Arc::new(Reasons::default());
        let options = Options {
            default_family: FamilyOptions {
                filter_bits_per_key: filter_bits,
                l0_compaction_for_reads: for_reads,
                ..FamilyOptions::default()
            },
            listeners: vec![reasons.clone()],
            ..Options::default()
        };
        let db = Db::open(&env, "db", options).unwrap();
        let store = Store {
            env,
            faults,
            db,
            reasons,
            value: vec![7; value],
        };
        store.write(1);
        let family = store.db.default_family();
        store.db.compact_range(&family, None, None).unwrap();
        store.write(3);
        store.write(3);
        store.wait_idle();
        assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
        store
    }

    fn put(&self, n: u32) {
        let key = format!("key{n:06}");
        let family = self.db.default_family();
        self.db
            .put(
                &family,
                key.as_bytes(),
                &self.value,
                &WriteOptions::UNSYNCED,
            )
            .unwrap();
    }

    fn write(&self, step: usize) {
        (0..KEYS).step_by(step).for_each(|n| self.put(n));
        self.db.flush().unwrap();
    }

    fn wait_idle(&self) {
        while self.env.jobs().step() {}
    }

    fn a_while(&self) {
        self.env.clock().sleep(Duration::from_secs(2));
    }

    fn level0(&self) -> usize {
        self.db.engine().tree.view().version.families[&self.db.default_family().id()].levels[0]
            .len()
    }

    /// Returns the merges for readers that succeeded and that failed.
    fn tried(&self) -> (usize, usize) {
        self.wait_idle();
        self.db.wait_for_listeners();
        self.reasons.count(CompactionReason::Reads)
    }

    fn seek(&self, n: u32) {
        let family = self.db.default_family();
        let mut it = self.db.iter(&family, &ReadOptions::default()).unwrap();
        it.seek(format!("key{:06}", n % KEYS).as_bytes()).unwrap();
        assert_eq!(it.key(), format!("key{:06}", n % KEYS).as_bytes());
        drop(it);
        self.wait_idle();
    }

    fn get(&self, key: &str) -> bool {
        let found = self
            .db
            .get(
                &self.db.default_family(),
                key.as_bytes(),
                &ReadOptions::default(),
            )
            .unwrap();
        self.wait_idle();
        found.is_some()
    }
}

#[test]
fn seeks_over_level_0_trigger_a_merge_without_writes() {
    let store = Store::new(10, true, 100);
    (0..400).for_each(|n| store.seek(n * 7));
    assert_eq!(store.tried(), (0, 0), "a write had just ended");
    store.a_while();
    (0..300).for_each(|n| store.seek(n * 7));
    assert_eq!((store.level0(), store.tried()), (0, (1, 0)));
    (0..2000).for_each(|n| store.seek(n * 7));
    assert_eq!(store.tried(), (1, 0), "nothing is left to merge");
    store.db.close().unwrap();
}

#[test]
fn lookups_that_miss_in_level_0_trigger_a_merge() {
    // Without filters each lookup of an absent key reads a block of each table.
    let store = Store::new(0, true, 100);
    for n in 0..600 {
        assert!(!store.get(&format!("key{n:06}x")));
        if n == 300 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.tried()), (0, (1, 0)));
    store.db.close().unwrap();
}

#[test]
fn reads_trigger_no_merge_beside_writes_or_hits_or_if_disabled() {
    let store = Store::new(10, true, 100);
    for n in 0..1500 {
        if n % 300 == 0 {
            store.put(n);
            store.a_while();
        }
        store.seek(n * 7);
    }
    assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
    store.db.close().unwrap();

    let store = Store::new(10, true, 100);
    for n in 0..1500 {
        assert!(store.get(&format!("key{:06}", n * 3 % KEYS)));
        if n % 300 == 0 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
    store.db.close().unwrap();

    let store = Store::new(10, false, 100);
    for n in 0..1500 {
        store.seek(n * 7);
        if n % 300 == 0 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
    store.db.close().unwrap();
}

/// A merge that rewrites 60 MB costs as much as 915 reads: 458 seeks that read two tables.
#[test]
fn a_larger_read_triggered_merge_needs_more_reads() {
    let store = Store::new(10, true, 60_000);
    for n in 0..600 {
        if n % 100 == 0 {
            store.a_while();
        }
        store.seek(n * 7);
    }
    assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
    for n in 0..300 {
        if n % 100 == 0 {
            store.a_while();
        }
        store.seek(n * 7);
    }
    assert_eq!((store.level0(), store.tried()), (0, (1, 0)));
    store.db.close().unwrap();
}

/// The merge is optional. After a failure it is not repeated until readers have paid again, and the
/// store does not count as failing.
#[test]
fn a_failed_read_triggered_merge_is_not_retried() {
    let store = Store::new(10, true, 60_000);
    let rule = store.faults.inject(Fault {
        op: Some(OpKind::Create),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Enospc,
    });
    (0..600).for_each(|n| store.seek(n * 7));
    store.a_while();
    (0..200).for_each(|n| store.seek(n * 7));
    assert_eq!((store.level0(), store.tried()), (2, (0, 1)));
    let calls = store.faults.seen(rule);
    assert!(calls > 0);
    for _ in 0..100 {
        store.env.clock().sleep(Duration::from_secs(60));
        store.wait_idle();
    }
    assert_eq!((store.faults.seen(rule), store.tried()), (calls, (0, 1)));
    store.db.wait_idle().unwrap();
    store.faults.clear();
    (0..600).for_each(|n| store.seek(n * 7));
    assert_eq!((store.level0(), store.tried()), (0, (1, 1)));
    store.db.close().unwrap();
}

/// A store with an error does no optional work.
#[test]
fn a_store_with_an_error_starts_no_read_triggered_merge() {
    let store = Store::new(10, true, 100);
    let error = Error::invalid("a log that cannot be written");
    store.db.engine().health.halt(error);
    for n in 0..2000 {
        store.seek(n * 7);
        if n % 300 == 0 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.tried()), (2, (0, 0)));
    store.db.abandon();
}
