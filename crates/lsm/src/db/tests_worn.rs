//! Level 0 is merged once readers have paid for it: when nobody writes, and not for reads that would have gone to the device anyway.

use super::*;
use crate::listener::{Event, EventListener};
use crate::options::WriteOptions;
use basalt_fs::sim::{SimFs, SimOptions};
use parking_lot::Mutex;

const KEYS: u32 = 600;

/// Why compactions ran.
#[derive(Default)]
struct Reasons(Mutex<Vec<&'static str>>);

impl EventListener for Reasons {
    fn on_event(&self, event: &Event) {
        if let Event::CompactionEnd { compaction, .. } = event {
            self.0.lock().push(compaction.reason);
        }
    }
}

struct Store {
    env: Env,
    db: Db,
    reasons: Arc<Reasons>,
}

impl Store {
    /// All keys in the lowest level, every third of them again in two tables of level 0. No block stays in memory.
    fn new(filter_bits: u32, for_reads: bool) -> Store {
        let env = basalt_env::EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 5)
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
        let store = Store { env, db, reasons };
        store.write(1);
        let family = store.db.default_family();
        store.db.compact_range(&family, None, None).unwrap();
        store.write(3);
        store.write(3);
        store.settle();
        assert_eq!((store.level0(), store.merged_for_reads()), (2, 0));
        store
    }

    fn put(&self, n: u32) {
        let key = format!("key{n:06}");
        let family = self.db.default_family();
        self.db
            .put(&family, key.as_bytes(), &[7; 100], &WriteOptions::UNSYNCED)
            .unwrap();
    }

    fn write(&self, step: usize) {
        (0..KEYS).step_by(step).for_each(|n| self.put(n));
        self.db.flush().unwrap();
    }

    fn settle(&self) {
        while self.env.jobs().step() {}
    }

    fn a_while(&self) {
        self.env.clock().sleep(std::time::Duration::from_secs(2));
    }

    fn level0(&self) -> usize {
        self.db.engine().view().version.families[&self.db.default_family().id()].levels[0].len()
    }

    fn merged_for_reads(&self) -> usize {
        self.settle();
        self.db.wait_for_listeners();
        let reasons = self.reasons.0.lock();
        reasons.iter().filter(|r| **r == "reads of level 0").count()
    }

    fn seek(&self, n: u32) {
        let family = self.db.default_family();
        let mut it = self.db.iter(&family, &ReadOptions::default()).unwrap();
        it.seek(format!("key{:06}", n % KEYS).as_bytes()).unwrap();
        assert_eq!(it.key(), format!("key{:06}", n % KEYS).as_bytes());
        drop(it);
        self.settle();
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
        self.settle();
        found.is_some()
    }
}

#[test]
fn seeks_that_look_into_level_0_have_it_merged_when_nobody_writes() {
    let store = Store::new(10, true);
    (0..400).for_each(|n| store.seek(n * 7));
    assert_eq!(store.merged_for_reads(), 0, "somebody had just written");
    store.a_while();
    (0..300).for_each(|n| store.seek(n * 7));
    assert_eq!((store.level0(), store.merged_for_reads()), (0, 1));
    (0..2000).for_each(|n| store.seek(n * 7));
    assert_eq!(store.merged_for_reads(), 1, "nothing is left to merge");
    store.db.close().unwrap();
}

#[test]
fn lookups_that_find_nothing_in_level_0_have_it_merged() {
    // Without filters each lookup of an absent key reads a block of each table.
    let store = Store::new(0, true);
    for n in 0..600 {
        assert!(!store.get(&format!("key{n:06}x")));
        if n == 300 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.merged_for_reads()), (0, 1));
    store.db.close().unwrap();
}

#[test]
fn level_0_stays_when_somebody_writes_or_reads_find_what_they_look_for_or_it_is_not_wanted() {
    let store = Store::new(10, true);
    for n in 0..1500 {
        if n % 300 == 0 {
            store.put(n);
            store.a_while();
        }
        store.seek(n * 7);
    }
    assert_eq!((store.level0(), store.merged_for_reads()), (2, 0));
    store.db.close().unwrap();

    let store = Store::new(10, true);
    for n in 0..1500 {
        assert!(store.get(&format!("key{:06}", n * 3 % KEYS)));
        if n % 300 == 0 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.merged_for_reads()), (2, 0));
    store.db.close().unwrap();

    let store = Store::new(10, false);
    for n in 0..1500 {
        store.seek(n * 7);
        if n % 300 == 0 {
            store.a_while();
        }
    }
    assert_eq!((store.level0(), store.merged_for_reads()), (2, 0));
    store.db.close().unwrap();
}
