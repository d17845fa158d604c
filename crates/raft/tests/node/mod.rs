//! What several test binaries use: a type configuration, a state machine of keys and values, and a
//! node's storage over any filesystem.

use basalt::env::EnvBuilder;
use basalt::fs::FileSystem;
use basalt::{Db, Env, Options, Result};
use basalt_log::{LogEngine, LogEngineOptions};
use basalt_raft::{Apply, LogStore, StateMachine, StateSnapshot, StateWriter};
use std::sync::Arc;

openraft::declare_raft_types!(
    /// Commands are pairs of a key and a value, or of a key and nothing.
    pub Types:
        D = (String, Option<String>),
        R = Option<String>,
        SnapshotData = StateSnapshot,
);

/// Keys and values. The reply is the value before.
pub struct KeyValues;

impl Apply<Types> for KeyValues {
    fn apply(
        &self,
        (key, value): (String, Option<String>),
        state: &mut StateWriter<'_>,
    ) -> Result<Option<String>> {
        let before = state.get(key.as_bytes())?;
        match value {
            Some(value) => state.put(key.as_bytes(), value.as_bytes())?,
            None => state.delete(key.as_bytes())?,
        }
        Ok(before.map(|b| String::from_utf8_lossy(&b).into_owned()))
    }

    fn empty_reply(&self) -> Option<String> {
        None
    }
}

/// An open node without openraft.
pub struct Node {
    pub engine: LogEngine,
    pub db: Db,
    pub log: LogStore<Types>,
    pub state: StateMachine<Types, KeyValues>,
}

impl Node {
    /// Opens a node with files small enough that short tests use several.
    pub fn open(fs: Arc<dyn FileSystem>) -> Result<Node> {
        let env: Env = EnvBuilder::new(fs)
            .memory_bytes(16 << 20)
            .cache_bytes(1 << 20)
            .threads(2)
            .build();
        let options = LogEngineOptions::default().file_bytes(8 << 10);
        let engine = LogEngine::open(&env, "log", options)?;
        let db = Db::open(&env, "state", Options::default())?;
        let (log, state) = basalt_raft::open(&engine, &db, "node", KeyValues)?;
        Ok(Node {
            engine,
            db,
            log,
            state,
        })
    }
}
