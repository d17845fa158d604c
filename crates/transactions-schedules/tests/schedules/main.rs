//! Models of transactions, run under thousands of interleavings that a scheduler chooses.
//! `docs/testing/schedules.md` says how these packages are built, and what they cannot see.

mod locks;
mod transfers;

use basalt_env::sync::explore::{self, below};
use basalt_env::sync::lock_log::CrateLocks;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_lsm::{Db, Options};
use basalt_sim::{SimFs, SimOptions};
use basalt_transactions_schedules::{TransactionDb, TransactionDbOptions};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// The locks of all crates that the models run, from top to bottom.
const CRATES: [CrateLocks; 4] = [
    basalt_transactions_schedules::LOCK_ORDER,
    basalt_lsm::db::LOCK_ORDER,
    basalt_kv::snapshot::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// Runs one case under many schedules, and checks their locks.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case_with_locks(seed, &CRATES, model);
}

/// Opens a new store with transactions.
fn open(options: TransactionDbOptions) -> TransactionDb {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(1)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .build();
    let db = Db::open(&env, "db", Options::default().idle_release(Duration::ZERO));
    TransactionDb::new(&db.expect("opens"), options).expect("valid options")
}
