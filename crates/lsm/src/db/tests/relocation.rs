//! Values in the order of their arrival are relocated into the order of their keys: when scans have
//! paid for it, or when a caller asks.

use super::prelude::*;
use crate::db::tests::read_compaction::Reasons;
use crate::listener::CompactionReason;
use basalt_env::EnvBuilder;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, SimFs, SimOptions, When};

const KEYS: u64 = 3000;
const LEN: usize = 6000;
const FREE: WriteOptions = WriteOptions::UNSYNCED;

struct Store {
    env: Env,
    faults: Arc<FaultFs>,
    db: Db,
    reasons: Arc<Reasons>,
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut v = format!("{key}/{version}/").into_bytes();
    v.resize(LEN, (key ^ version) as u8);
    v
}

impl Store {
    /// The values are in a dozen files, and no two neighbours lie next to each other. The cache
    /// keeps no block.
    fn new(max_space_amp: f64) -> Store {
        let faults = FaultFs::new(SimFs::new(SimOptions::default()), 5);
        let env = EnvBuilder::for_tests(faults.clone(), 5)
            .cache_bytes(0)
            .build();
        let reasons = Arc::new(Reasons::default());
        let options = Options {
            write_buffer_bytes: 1 << 20,
            max_space_amp,
            default_family: FamilyOptions {
                min_blob_size: Some(100),
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
        };
        // 1777 has no divisor in common with the number of keys.
        for n in 0..KEYS {
            store.put(n * 1777 % KEYS, 0);
        }
        store.db.flush().unwrap();
        let family = store.db.default_family();
        store.db.compact_range(&family, None, None).unwrap();
        store.steps();
        store
    }

    fn put(&self, key: u64, version: u64) {
        let family = self.db.default_family();
        let (key, value) = (key.to_be_bytes(), value(key, version));
        self.db.put(&family, &key, &value, &FREE).unwrap();
    }

    fn steps(&self) {
        while self.env.jobs().step() {}
    }

    /// Returns the reads of the device of a full scan, and checks its result.
    fn scan(&self, options: &ReadOptions, version: impl Fn(u64) -> u64) -> u64 {
        let before = self.env.fs().stats().reads;
        let mut it = self.db.iter(&self.db.default_family(), options).unwrap();
        it.seek_to_first().unwrap();
        for key in 0..KEYS {
            assert_eq!(it.key(), key.to_be_bytes());
            assert!(it.value() == value(key, version(key)), "key {key}");
            it.next().unwrap();
        }
        assert!(!it.valid());
        self.env.fs().stats().reads - before
    }

    fn relocated_bytes(&self) -> u64 {
        self.db.stats().blobs.relocated_bytes
    }

    /// Returns the merges for scans that succeeded and that failed.
    fn tried(&self) -> (usize, usize) {
        self.db.wait_for_listeners();
        self.reasons.count(CompactionReason::Relocation)
    }

    fn check(self) {
        let options = self.db.engine().ctx.options.clone();
        self.db.close().unwrap();
        let report = Db::verify_store(&self.env, "db", &options, &mut |_, _| ()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
    }
}

/// With `relocate_values` a compaction relocates values, with and without readers.
#[test]
fn relocate_values_brings_values_into_key_order() {
    let store = Store::new(1.25);
    let family = store.db.default_family();
    let before = store.scan(&ReadOptions::default(), |_| 0);
    let files = store.db.blob_files().len();
    assert!(
        files > 8 && before > KEYS,
        "{before} reads of {files} files"
    );
    let snapshot = store.db.snapshot();
    (0..KEYS).step_by(7).for_each(|n| store.put(n, 1));
    let old = ReadOptions {
        snapshot: Some(snapshot.clone()),
        ..ReadOptions::default()
    };
    let mut half = store.db.iter(&family, &old).unwrap();
    half.seek(&(KEYS / 2).to_be_bytes()).unwrap();
    let options = CompactOptions {
        relocate_values: true,
        ..CompactOptions::default()
    };
    store.db.compact(&family, &options).unwrap();
    let now = |key: u64| u64::from(key.is_multiple_of(7));
    let after = store.scan(&ReadOptions::default(), now);
    assert!(after * 15 < before, "{after} reads, {before} before");
    store.scan(&old, |_| 0);
    for key in KEYS / 2..KEYS {
        assert_eq!(
            (half.key(), half.value()),
            (&key.to_be_bytes()[..], &value(key, 0)[..])
        );
        half.next().unwrap();
    }
    drop((half, old, snapshot));
    store.steps();
    let blobs = store.db.stats().blobs;
    assert_eq!(blobs.names, 0, "nothing stands for what was moved");
    let moved = KEYS + KEYS.div_ceil(7);
    assert!(blobs.relocated_bytes >= moved * LEN as u64, "{blobs:?}");
    assert!(store.db.blob_files().len() <= 2, "old files are gone");
    store.check();
}

/// Scans that read values one by one pay for their relocation, once. Afterwards scans read long
/// stretches, and no value is relocated any more.
#[test]
fn scans_trigger_the_relocation_of_their_values_once() {
    let store = Store::new(1.25);
    let first = store.scan(&ReadOptions::default(), |_| 0);
    let mut last = first;
    for _ in 0..12 {
        store.steps();
        last = store.scan(&ReadOptions::default(), |_| 0);
    }
    store.steps();
    assert!(last * 4 < first, "{last} reads of a scan, {first} at first");
    let moved = store.relocated_bytes();
    let all = KEYS * LEN as u64;
    assert!(moved > all / 2 && moved < 2 * all, "{moved} moved");
    assert!(
        store.tried().0 >= 1 && store.tried().1 == 0,
        "{:?}",
        store.tried()
    );
    for _ in 0..20 {
        store.scan(&ReadOptions::default(), |_| 0);
        store.steps();
    }
    assert_eq!(store.relocated_bytes(), moved, "what lies well stays");
    store.check();
}

/// Gets, scans over keys, scans that are marked as one-time, and short scans do not pay.
#[test]
fn gets_and_one_time_scans_trigger_no_relocation() {
    let store = Store::new(1.25);
    let family = store.db.default_family();
    for round in 0..10 {
        for n in 0..KEYS {
            let key = (n * 7 % KEYS).to_be_bytes();
            store
                .db
                .get(&family, &key, &ReadOptions::default())
                .unwrap();
            if n % 10 == round {
                let mut it = store.db.iter(&family, &ReadOptions::default()).unwrap();
                it.seek(&key).unwrap();
            }
        }
        let keys_only = ReadOptions {
            keys_only: true,
            ..ReadOptions::default()
        };
        let mut it = store.db.iter(&family, &keys_only).unwrap();
        it.seek_to_first().unwrap();
        while it.valid() {
            it.next().unwrap();
        }
        let once = ReadOptions {
            fill_cache: false,
            ..ReadOptions::default()
        };
        store.scan(&once, |_| 0);
        store.steps();
    }
    assert_eq!((store.relocated_bytes(), store.tried()), (0, (0, 0)));
    store.check();
}

/// A merge for scans that comes to an unreadable value fails alone. The store does not count as
/// failing, no data is lost, and the merge is not repeated at once.
#[test]
fn a_relocation_with_an_unreadable_value_fails_alone() {
    let store = Store::new(1.25);
    for _ in 0..3 {
        store.scan(&ReadOptions::default(), |_| 0);
    }
    let family = store.db.default_family();
    store.faults.inject(Fault {
        op: Some(OpKind::Create),
        path: ".blob".into(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    store.scan(&ReadOptions::default(), |_| 0);
    store.steps();
    assert_eq!((store.tried().0, store.relocated_bytes()), (0, 0));
    assert!(store.tried().1 >= 1, "it was tried");
    store.db.wait_idle().unwrap();
    store.put(KEYS + 1, 0);
    store.faults.clear();
    store
        .db
        .delete(&family, &(KEYS + 1).to_be_bytes(), &FREE)
        .unwrap();
    let before = store.scan(&ReadOptions::default(), |_| 0);
    for _ in 0..12 {
        store.steps();
        store.scan(&ReadOptions::default(), |_| 0);
    }
    store.steps();
    let after = store.scan(&ReadOptions::default(), |_| 0);
    assert!(after * 4 < before, "{after} reads, {before} before");
    store.check();
}

/// Scans that end before an order would help them do not pay, nor do scans that find the order.
#[test]
fn short_scans_trigger_no_relocation() {
    let store = Store::new(1.25);
    let family = store.db.default_family();
    let scan = |from: u64, values: u64| {
        let options = ReadOptions::default();
        let mut it = store.db.iter(&family, &options).unwrap();
        it.seek(&(from % (KEYS - values)).to_be_bytes()).unwrap();
        for _ in 0..values {
            assert!(it.valid());
            it.next().unwrap();
        }
    };
    for n in 0..4 * KEYS {
        scan(n * 31, 5);
    }
    store.steps();
    assert_eq!(
        (store.relocated_bytes(), store.tried()),
        (0, (0, 0)),
        "five values"
    );
    let options = CompactOptions {
        relocate_values: true,
        ..CompactOptions::default()
    };
    store.db.compact(&family, &options).unwrap();
    let moved = store.relocated_bytes();
    for n in 0..4 * KEYS {
        scan(n * 31, 20);
        if n % 500 == 0 {
            store.steps();
        }
    }
    store.steps();
    assert_eq!(store.relocated_bytes(), moved, "what lies well stays");
    store.check();
}

/// An unreadable value stays where it is. The other values are relocated, and the store does not
/// count as failing.
#[test]
fn an_unreadable_value_is_not_relocated() {
    let store = Store::new(1.25);
    let family = store.db.default_family();
    let bad = store.db.blob_files()[3].name.clone();
    store.faults.inject(Fault {
        op: Some(OpKind::Read),
        path: bad.clone(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    let options = CompactOptions {
        relocate_values: true,
        ..CompactOptions::default()
    };
    store.db.compact(&family, &options).unwrap();
    store.faults.clear();
    let moved = store.relocated_bytes();
    assert!(moved > KEYS * LEN as u64 / 2, "{moved}");
    let there = |f: &BlobFileStats| f.name == bad;
    assert!(store.db.blob_files().iter().any(there), "{bad} is left");
    store.scan(&ReadOptions::default(), |_| 0);
    store.check();
}
