//! Options: the promises of each durability.

use super::prelude::*;
use crate::options::Durability;
use basalt_sim::{CrashPolicy, SimFs, SimOptions};

/// Only a write with `Device` waits for a sync. The other two survive the death of the process.
#[test]
fn a_write_survives_the_failures_that_its_durability_names() {
    assert_eq!(WriteOptions::default(), WriteOptions::UNSYNCED);
    assert_eq!(WriteOptions::synced(false), WriteOptions::UNSYNCED);
    assert_eq!(WriteOptions::synced(true), WriteOptions::SYNC);
    for (durability, syncs, after_power_cut) in [
        (Durability::None, 0, false),
        (Durability::Process, 0, false),
        (Durability::Device, 1, true),
    ] {
        let disk = SimFs::new(SimOptions::default());
        let env = Env::for_tests(disk.clone(), 1);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        let family = db.default_family();
        db.put(&family, b"old", b"", &WriteOptions::SYNC).unwrap();
        let before = db.stats().log_syncs;
        let options = WriteOptions::default().durability(durability);
        db.put(&family, b"new", b"", &options).unwrap();
        assert_eq!(db.stats().log_syncs - before, syncs, "{durability:?}");
        let survives = |policy, key: &[u8]| {
            let env = Env::for_tests(disk.crash(policy, 1), 1);
            let db = Db::open(&env, "db", Options::default()).unwrap();
            let found = db.get(&db.default_family(), key, &ReadOptions::default());
            let found = found.unwrap().is_some();
            db.close().unwrap();
            found
        };
        assert!(survives(CrashPolicy::EverythingUnsynced, b"new"));
        assert!(survives(CrashPolicy::NothingUnsynced, b"old"));
        assert_eq!(
            survives(CrashPolicy::NothingUnsynced, b"new"),
            after_power_cut,
            "{durability:?}"
        );
        db.close().unwrap();
    }
}
