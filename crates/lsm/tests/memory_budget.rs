//! The resident memory of a process with many stores stays within a stated factor of their memory
//! budget, and is returned when they close (`docs/decisions/0031-memory.md`). The test is alone in
//! its process, on a real filesystem: a simulated disk would be in its memory.

use basalt_env::process_memory::{keep_little, resident};
use basalt_env::{Env, Random};
use basalt_fs::{HostFs, HostOptions};
use basalt_lsm::{Db, Options, ReadOptions, WriteOptions};
use std::time::Duration;

const STORES: u64 = 100;
const BUDGET: u64 = 64 << 20;
const CACHE: u64 = 32 << 20;
/// Bytes that an open store needs besides its memtables.
const STORE: u64 = 40 << 10;
/// Bytes of code, stacks and tables that the process needs while stores work.
const PROGRAM: u64 = 6 << 20;

#[test]
fn many_stores_keep_to_their_memory_budget_and_release_it() {
    if resident().is_none() {
        return println!(
            "SKIPPED: this system does not say what a process holds; run this on Linux"
        );
    }
    keep_little();
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("resident");
    let fs = HostFs::new(HostOptions::new(&dir)).expect("a directory for tests");
    let env = Env::builder(fs)
        .memory_bytes(BUDGET)
        .cache_bytes(CACHE)
        .trims_memory(true)
        .build();
    let before = resident().expect("asked above");
    let run = env.random().next_u64();
    let stores: Vec<Db> = (0..STORES)
        .map(|n| Db::open(&env, format!("{run:x}-{n}"), Options::default()).expect("open"))
        .collect();
    let r = Random::from_seed(1);
    let junk: Vec<u8> = (0..70_000).map(|_| r.next_u64() as u8).collect();
    let (mut most_booked, mut most_held) = (0, 0);
    for round in 0..12_000u64 {
        let db = &stores[(r.next_u64() % STORES) as usize];
        let (f, key) = (db.default_family(), (r.next_u64() % 300).to_be_bytes());
        match r.next_u64() % 10 {
            0..=5 => {
                let len = (r.next_u64() % 70_000) as usize >> (r.next_u64() % 4);
                let put = db.put(&f, &key, &junk[..len], &WriteOptions::UNSYNCED);
                put.map(|_| ()).expect("written");
            }
            6 => {
                let deleted = db.delete(&f, &key, &WriteOptions::UNSYNCED);
                deleted.map(|_| ()).expect("written");
            }
            _ => {
                db.get(&f, &key, &ReadOptions::default()).expect("read");
            }
        }
        if round % 50 == 0 {
            most_booked = most_booked.max(env.ledger().usage().total());
            most_held = most_held.max(resident().expect("asked above") - before);
        }
    }
    basalt_sim::campaign!("budget={BUDGET} most_booked={most_booked} most_held={most_held}");
    // Buffers of flushes and compactions are reserved past the budget: a piece for each background
    // thread.
    assert!(most_booked <= BUDGET + (16 << 20), "{most_booked}");
    assert!(
        most_booked >= BUDGET / 2,
        "the budget is used: {most_booked}"
    );
    let may_hold = BUDGET / 4 * 5 + STORES * STORE;
    assert!(most_held <= may_hold, "{most_held} of {may_hold}");
    stores
        .into_iter()
        .for_each(|db| db.close().expect("closed"));
    let rest = || resident().expect("asked above").saturating_sub(before);
    let is_back = &mut || rest() <= CACHE + BUDGET / 10 + PROGRAM;
    let back = env
        .jobs()
        .wait_until(Some(Duration::from_secs(60)), is_back);
    basalt_sim::campaign!("held_after_close={}", rest());
    assert!(back, "{} after all stores are closed", rest());
    drop(env);
    #[expect(clippy::disallowed_methods, reason = "the test's own directory")]
    std::fs::remove_dir_all(&dir).expect("removed");
}
