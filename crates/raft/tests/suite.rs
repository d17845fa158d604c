//! openraft's own tests of storage, on a simulated disk and on a directory.

mod node;

use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt_raft::{LogStore, StateMachine};
use basalt_sim::{SimFs, SimOptions};
use node::{KeyValues, Node, Types};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Makes an empty node for each test. What `G` is the guard of lives as long as the node.
struct Builder<G> {
    make_fs: fn(u64) -> (G, Arc<dyn FileSystem>),
    made: AtomicU64,
}

impl<G> Builder<G> {
    fn new(make_fs: fn(u64) -> (G, Arc<dyn FileSystem>)) -> Builder<G> {
        Builder {
            make_fs,
            made: AtomicU64::new(0),
        }
    }
}

impl<G: Send + Sync> StoreBuilder<Types, LogStore<Types>, StateMachine<Types, KeyValues>, G>
    for Builder<G>
{
    async fn build(
        &self,
    ) -> Result<(G, LogStore<Types>, StateMachine<Types, KeyValues>), StorageError<u64>> {
        let (guard, fs) = (self.make_fs)(self.made.fetch_add(1, SeqCst));
        let node = Node::open(fs).expect("an empty filesystem");
        Ok((guard, node.log, node.state))
    }
}

#[test]
fn the_suite_of_openraft_passes_on_a_simulated_disk() {
    let builder = Builder::new(|seed| {
        let options = SimOptions {
            seed,
            ..SimOptions::default()
        };
        ((), SimFs::new(options))
    });
    Suite::test_all(builder).unwrap();
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
    Suite::test_all(Builder::new(directory)).unwrap();
}
