//! A state machine without a second log: its store is passive, and the Raft log is its owner's log.
//!
//! Transaction `n` of the store is the entry with index `n - 1`. Commands read the state, so the
//! families of a node are flushed atomically: after a crash the state is that of one entry, and
//! openraft applies the entries behind it again.

use crate::state_machine::{Apply, StateMachine};
use crate::{LogStore, StateSnapshot};
use basalt::env::Env;
use basalt::{Db, Error, ErrorKind, LogMode, Options, OwnerLog, PassiveOptions, Result};
use basalt_log::LogEngine;
use openraft::{Entry, RaftTypeConfig};
use std::path::Path;
use std::sync::Arc;

/// The Raft log, as the owner's log of the state.
struct RaftLog(LogEngine);

impl OwnerLog for RaftLog {
    fn make_durable(&self, _: u64) -> Result<()> {
        // A committed entry may be durable on other nodes only.
        self.0.sync()
    }
}

/// Opens log and state machine of a Raft node as [`crate::open`] does, with the state in a passive
/// store of its own in directory `path`: what is applied is written once, in the Raft log, and
/// reaches the store with its flushes. The node is the only user of the store. `options.log` may
/// have settings of a passive store, such as the bound of the log; the owner's log and the atomic
/// flush are set by this call.
///
/// A store of a node that was opened by [`crate::open`] is refused: its state has a log of its own.
///
/// Errors: those of [`Db::open_passive`] and [`crate::open`].
pub fn open_passive<C, A>(
    engine: &LogEngine,
    env: &Env,
    path: impl AsRef<Path>,
    mut options: Options,
    name: &str,
    apply: A,
) -> Result<(LogStore<C>, StateMachine<C, A>)>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    let path = path.as_ref();
    match Db::is_passive(env, path) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Error::invalid(
                "the store of the state has a log of its own; open it with `basalt_raft::open`, or begin with an empty directory and let the node receive a snapshot",
            )
            .in_file(path));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let passive = match options.log {
        LogMode::Passive(passive) => passive,
        _ => PassiveOptions::default(),
    };
    let owner: Arc<dyn OwnerLog> = Arc::new(RaftLog(engine.clone()));
    options.log = LogMode::Passive(passive.owner_log(Some(owner)).atomic_flush(true));
    let replay = Db::open_passive(env, path, options)?;
    // All families are as of one entry. openraft applies the entries behind it.
    let persisted = replay.points().global;
    let db = replay.finish(persisted)?;
    crate::open(engine, &db, name, apply)
}
