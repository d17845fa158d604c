//! Storage of a Raft node that runs [openraft] 0.9: its log in [`basalt_log::LogEngine`], its state
//! machine in [`basalt::Db`]. `docs/raft.md` shows how a node is set up.
//!
//! Modules, from the bottom up: `codec` (persisted values), `call` (calls that block, and errors),
//! `tail` (the newest entries, in memory), `log_store` ([`LogStore`]), `log_reader`
//! ([`LogReader`]), `snapshot_data` ([`StateSnapshot`]), `state_machine` ([`StateMachine`],
//! [`Apply`]), `state_reader` ([`StateReader`]).
//!
//! No call blocks a thread of the asynchronous runtime: appends and votes are submitted, and a
//! callback of the log engine reports the result. All other calls to a store run on threads that
//! tokio keeps for blocking calls, so a tokio runtime is needed.

#![deny(missing_docs)]

mod call;
mod codec;
mod log_reader;
mod log_store;
mod snapshot_data;
mod state_machine;
mod state_reader;
mod tail;

pub use log_reader::LogReader;
pub use log_store::LogStore;
pub use snapshot_data::StateSnapshot;
pub use state_machine::{Apply, SnapshotBuilder, StateMachine, StateWriter};
pub use state_reader::{StateReader, StateView};
