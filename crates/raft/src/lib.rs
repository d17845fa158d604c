//! Storage of a Raft node that runs [openraft] 0.9: its log in [`basalt_log::LogEngine`], its state
//! machine in [`basalt::Db`]. `docs/raft.md` shows how a node is set up.
//!
//! Modules, from the bottom up: `codec` (persisted values), `call` (calls that block, and errors),
//! `snapshot_data` ([`StateSnapshot`]), `state_store` (the families of a node), `state_reader`
//! ([`StateReader`]), `state_link` (what a log must know of the state), `state_machine`
//! ([`StateMachine`], [`Apply`]), `tail` (the newest entries, in memory), `log_state` (what a log
//! and its readers share), `log_reader` ([`LogReader`]), `log_store` ([`LogStore`]), `passive`
//! ([`open_passive`]).
//!
//! The crate is empty without its feature `openraft`, so that a build of the whole workspace does
//! not compile openraft and its dependencies (decision 0038).
//!
//! No call blocks a thread of the asynchronous runtime: appends and votes are submitted, and a
//! callback of the log engine reports the result. All other calls to a store run on threads that
//! tokio keeps for blocking calls, so a tokio runtime is needed.

#![cfg(feature = "openraft")]
#![deny(missing_docs)]

mod call;
mod codec;
mod log_reader;
mod log_state;
mod log_store;
mod passive;
mod snapshot_data;
mod state_link;
mod state_machine;
mod state_reader;
mod state_store;
mod tail;
#[cfg(test)]
mod tests;

pub use log_reader::LogReader;
pub use log_store::LogStore;
pub use passive::open_passive;
pub use snapshot_data::StateSnapshot;
pub use state_machine::{Apply, SnapshotBuilder, StateMachine, StateWriter};
pub use state_reader::{StateReader, StateView};

use basalt::Db;
use basalt_log::LogEngine;
use openraft::{Entry, RaftTypeConfig};

/// Opens log and state machine of a Raft node, which are created if they do not exist. The name has
/// 1 to 250 bytes and is the node's own in engine and store. The call blocks, and must not run on a
/// thread of an asynchronous runtime.
///
/// Errors: those of [`LogStore::open`] and [`StateMachine::open`].
pub fn open<C, A>(
    engine: &LogEngine,
    db: &Db,
    name: &str,
    apply: A,
) -> basalt::Result<(LogStore<C>, StateMachine<C, A>)>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    let state = StateMachine::open(db, name, apply)?;
    let log = LogStore::open(engine, name)?.with_state(&state);
    Ok((log, state))
}

/// The code on the page for users compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/raft.md")]
struct PageForUsers;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_raft_test_passes_on_lava() {
    let without_io = ["codec::", "tail::"];
    basalt_sim::all_tests_on_lava("every_raft_test_passes_on_lava", &without_io);
}
