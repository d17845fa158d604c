//! The limit of background I/O: all bytes of flushes, merges and copies are counted by it, and wait
//! for it.

use super::prelude::*;
use crate::options::WriteOptions;
use basalt_env::{Clock, EnvBuilder, IoPriority, ManualClock};
use basalt_sim::{SimFs, SimOptions};

const RATE: u64 = 1 << 20;

fn store() -> (Env, Db) {
    let fs = SimFs::new(SimOptions::default());
    let env = EnvBuilder::for_tests(fs, 3)
        .clock(Clock::manual(ManualClock::new(1_700_000_000_000)))
        .io_bytes_per_s(RATE)
        .build();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    (env, db)
}

fn fill(db: &Db, round: u32) {
    let family = db.default_family();
    for n in 0..600 {
        let key = (n * 7 + round).to_be_bytes();
        let options = WriteOptions::UNSYNCED;
        db.put(&family, &key, &[round as u8; 1000], &options)
            .unwrap();
    }
}

#[test]
fn flushes_merges_and_copies_obey_the_io_limit() {
    let (env, db) = store();
    let limit = env.io_limit();
    let (mut passed, mut waited) = (limit.passed(), limit.waited(IoPriority::High));
    for round in 0..3 {
        fill(&db, round);
        let before = db.stats().flush_bytes_written;
        db.flush().unwrap();
        let written = db.stats().flush_bytes_written - before;
        assert!(written > 600_000, "{written}");
        assert!(limit.passed() - passed >= written, "a flush of {written}");
        assert!(limit.waited(IoPriority::High) > waited, "a flush waits");
        (passed, waited) = (limit.passed(), limit.waited(IoPriority::High));
    }
    let waited = limit.waited(IoPriority::Low);
    let before = db.stats();
    db.compact_range(&db.default_family(), None, None).unwrap();
    let after = db.stats();
    let moved = after.compaction_bytes_read + after.compaction_bytes_written
        - before.compaction_bytes_read
        - before.compaction_bytes_written;
    assert!(moved > 3_000_000, "{moved}");
    // A merge does not read index and filter as a whole.
    let passed = limit.passed() - passed;
    assert!(passed >= moved / 20 * 19, "{passed} of a merge of {moved}");
    assert!(limit.waited(IoPriority::Low) > waited, "a merge waits");

    // A checkpoint links the tables, and copies the logs.
    fill(&db, 4);
    db.sync().unwrap();
    let (passed, waited) = (limit.passed(), limit.waited(IoPriority::Low));
    db.checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    let copied = limit.passed() - passed;
    assert!(copied >= 2 * 600_000, "a copy of {copied}");
    assert!(limit.waited(IoPriority::Low) > waited, "a copy waits");
    db.close().unwrap();
}

#[test]
fn a_lifted_io_limit_has_no_effect() {
    let (env, db) = store();
    env.io_limit().set_rate(0);
    fill(&db, 0);
    db.flush().unwrap();
    db.compact_range(&db.default_family(), None, None).unwrap();
    let waited = [IoPriority::High, IoPriority::Low].map(|p| env.io_limit().waited(p));
    assert!(waited.iter().all(|w| w.is_zero()), "{waited:?}");
    assert!(env.io_limit().passed() > 600_000);
    db.close().unwrap();
}
