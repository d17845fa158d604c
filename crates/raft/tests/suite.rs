//! openraft's own tests of storage, on a simulated disk and on a directory.

use basalt::env::EnvBuilder;
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt::{Db, Options, Result};
use basalt_log::{LogEngine, LogEngineOptions};
use basalt_raft::{Apply, LogStore, StateMachine, StateSnapshot, StateWriter};
use basalt_sim::{SimFs, SimOptions};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

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

/// Opens a node with files small enough that short tests use several, with a passive state or not.
fn open(
    fs: Arc<dyn FileSystem>,
    is_passive: bool,
) -> Result<(LogStore<Types>, StateMachine<Types, KeyValues>)> {
    let env = EnvBuilder::new(fs).build();
    let options = LogEngineOptions::default().file_bytes(8 << 10);
    let engine = LogEngine::open(&env, "log", options)?;
    if is_passive {
        let options = Options::default();
        return basalt_raft::open_passive(&engine, &env, "state", options, "node", KeyValues);
    }
    let db = Db::open(&env, "state", Options::default())?;
    basalt_raft::open(&engine, &db, "node", KeyValues)
}

/// Makes an empty node for each test. What `G` is the guard of lives as long as the node.
struct Builder<G> {
    make_fs: fn(u64) -> (G, Arc<dyn FileSystem>),
    made: AtomicU64,
    is_passive: bool,
}

impl<G> Builder<G> {
    fn new(is_passive: bool, make_fs: fn(u64) -> (G, Arc<dyn FileSystem>)) -> Builder<G> {
        Builder {
            make_fs,
            is_passive,
            made: AtomicU64::new(0),
        }
    }
}

impl<G: Send + Sync> StoreBuilder<Types, LogStore<Types>, StateMachine<Types, KeyValues>, G>
    for Builder<G>
{
    async fn build(
        &self,
    ) -> std::result::Result<(G, LogStore<Types>, StateMachine<Types, KeyValues>), StorageError<u64>>
    {
        let (guard, fs) = (self.make_fs)(self.made.fetch_add(1, SeqCst));
        let (log, state) = open(fs, self.is_passive).expect("an empty filesystem");
        Ok((guard, log, state))
    }
}

#[test]
fn the_suite_of_openraft_passes_on_a_simulated_disk() {
    for is_passive in [false, true] {
        let builder = Builder::new(is_passive, |seed| {
            let options = SimOptions {
                seed,
                ..SimOptions::default()
            };
            ((), SimFs::new(options))
        });
        Suite::test_all(builder).unwrap();
    }
}

/// A directory that is removed when this value is dropped.
struct TempDir(PathBuf);

impl Drop for TempDir {
    #[expect(
        clippy::disallowed_methods,
        reason = "outside the filesystem under test"
    )]
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "outside the filesystem under test"
)]
fn directory(number: u64) -> (TempDir, Arc<dyn FileSystem>) {
    let name = format!("basalt-raft-{}-{number}", std::process::id());
    let dir = TempDir(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&dir.0).expect("temporary directory");
    let fs = HostFs::new(HostOptions::new(&dir.0)).expect("a directory");
    (dir, fs)
}

#[test]
fn the_suite_of_openraft_passes_on_a_directory() {
    for is_passive in [false, true] {
        Suite::test_all(Builder::new(is_passive, directory)).unwrap();
    }
}
