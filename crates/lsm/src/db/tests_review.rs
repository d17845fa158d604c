//! Interleavings and failures that once broke a promise: each test is the shortest history that shows one.

use super::*;
use crate::options::{ReadOptions, WriteOptions};
use basalt_fs::sim::{SimFs, SimOptions};

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .unwrap()
        .map(|v| v.to_vec())
}

/// The space of a log may be asked for so late that the log is gone and another lives in its space: zeros would then go
/// over the other's acknowledged records.
#[test]
fn space_written_ahead_late_never_reaches_the_logs_next_life() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim, 1);
    let options = Options {
        write_buffer_bytes: 1 << 20,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    // Enough for the log to ask for more space, too little for a spare log.
    for i in 0..25u32 {
        db.put(&f, &i.to_le_bytes(), &[1; 8 << 10], &WriteOptions::SYNC)
            .unwrap();
    }
    assert!(
        env.jobs().pending().iter().sum::<usize>() > 0,
        "space was asked for"
    );
    db.flush().unwrap();
    db.put(&f, b"next life", b"here", &WriteOptions::SYNC)
        .unwrap();
    while env.jobs().step() {}
    db.put(&f, b"and after", b"here", &WriteOptions::SYNC)
        .unwrap();
    db.abandon();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    assert_eq!(get(&db, b"next life").unwrap(), b"here");
    assert_eq!(get(&db, b"and after").unwrap(), b"here");
}
