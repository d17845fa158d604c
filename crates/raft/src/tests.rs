//! Log and state machine of a node over a simulated disk: power cuts, damage, appends in flight.

mod appends;
mod crash;
mod damage;

use crate::{Apply, LogStore, StateMachine, StateSnapshot, StateWriter};
use basalt::env::EnvBuilder;
use basalt::fs::FileSystem;
use basalt::{Db, Options, Result};
use basalt_log::{LogEngine, LogEngineOptions};
use basalt_sim::{SimFs, SimOptions};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use std::sync::Arc;

/// A key, and its new value or `None` for a delete.
type Command = (String, Option<String>);

openraft::declare_raft_types!(
    Types:
        D = Command,
        R = (),
        SnapshotData = StateSnapshot,
);

struct KeyValues;

impl Apply<Types> for KeyValues {
    fn apply(&self, (key, value): Command, state: &mut StateWriter<'_>) -> Result<()> {
        match value {
            Some(value) => state.put(key.as_bytes(), value.as_bytes()),
            None => state.delete(key.as_bytes()),
        }
    }

    fn empty_reply(&self) {}
}

struct Node {
    engine: LogEngine,
    log: LogStore<Types>,
    state: StateMachine<Types, KeyValues>,
}

impl Node {
    /// Opens a node with files small enough that short tests use several.
    fn open(fs: Arc<dyn FileSystem>) -> Result<Node> {
        Node::open_as(fs, false)
    }

    /// Opens a node whose state has a log of its own, or is passive.
    fn open_as(fs: Arc<dyn FileSystem>, is_passive: bool) -> Result<Node> {
        let env = EnvBuilder::new(fs)
            .memory_bytes(16 << 20)
            .cache_bytes(1 << 20)
            .threads(1)
            .build();
        let options = LogEngineOptions::default().file_bytes(8 << 10);
        let engine = LogEngine::open(&env, "log", options)?;
        let (log, state) = match is_passive {
            true => {
                let options = Options::default().write_buffer_bytes(4 << 10);
                crate::open_passive(&engine, &env, "state", options, "node", KeyValues)?
            }
            false => {
                let db = Db::open(&env, "state", Options::default())?;
                crate::open(&engine, &db, "node", KeyValues)?
            }
        };
        Ok(Node { engine, log, state })
    }
}

fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

fn log_id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entry(term: u64, index: u64, command: Option<Command>) -> Entry<Types> {
    Entry {
        log_id: log_id(term, index),
        payload: command.map_or(EntryPayload::Blank, EntryPayload::Normal),
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}
