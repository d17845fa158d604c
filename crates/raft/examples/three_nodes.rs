//! Three Raft nodes in one process, on simulated disks. While writers write, each node in turn
//! loses its power and starts again. In the end every acknowledged write is on every node.
//!
//! ```sh
//! cargo run --release -p basalt-raft --example three_nodes -- [ROUNDS] [WRITES]
//! ```
//!
//! `ROUNDS` is how often each node is killed, 3 by default. `WRITES` is how many writes are
//! acknowledged while one of the nodes is dead, and again before the next one is killed, 200 by
//! default.

use basalt::env::{EnvBuilder, sync::Mutex};
use basalt::{Db, Options};
use basalt_log::{LogEngine, LogEngineOptions};
use basalt_raft::{Apply, LogStore, StateMachine, StateReader, StateSnapshot, StateWriter};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

openraft::declare_raft_types!(
    /// A command is a key and its new value.
    pub Types:
        D = (String, String),
        R = (),
        SnapshotData = StateSnapshot,
);

const NODES: [u64; 3] = [1, 2, 3];
const WRITERS: u64 = 4;
/// How long the example sleeps before it looks again.
const PAUSE: Duration = Duration::from_millis(10);

struct KeyValues;

impl Apply<Types> for KeyValues {
    fn apply(
        &self,
        (key, value): (String, String),
        state: &mut StateWriter<'_>,
    ) -> basalt::Result<()> {
        state.put(key.as_bytes(), value.as_bytes())
    }

    fn empty_reply(&self) {}
}

/// Opens a node's storage.
fn open(fs: &Arc<SimFs>) -> basalt::Result<(LogStore<Types>, StateMachine<Types, KeyValues>)> {
    let env = EnvBuilder::new(fs.clone()).memory_bytes(32 << 20).build();
    let engine = LogEngine::open(&env, "log", LogEngineOptions::default().file_bytes(1 << 20))?;
    let db = Db::open(&env, "state", Options::default())?;
    basalt_raft::open(&engine, &db, "node", KeyValues)
}

/// A node between a start and a loss of power.
#[derive(Clone)]
struct Life {
    raft: Raft<Types>,
    reader: StateReader,
    fs: Arc<SimFs>,
    /// False from the loss of power on. No message of a dead node arrives, and none reaches it.
    alive: Arc<AtomicBool>,
}

/// The network, and who can be reached.
#[derive(Default)]
struct Cluster {
    lives: Mutex<BTreeMap<u64, Life>>,
    /// Snapshots of which a node has received a part.
    snapshots: AtomicU64,
}

impl Cluster {
    fn life(&self, id: u64) -> Option<Life> {
        self.lives.lock().get(&id).cloned()
    }

    /// Starts a node on a disk.
    async fn start(self: &Arc<Self>, id: u64, fs: Arc<SimFs>) {
        let disk = fs.clone();
        let opened = tokio::task::spawn_blocking(move || open(&disk)).await;
        let (log, state) = opened.expect("no panic").expect("the node's disk");
        let reader = state.reader();
        let alive = Arc::new(AtomicBool::new(true));
        let config = Config {
            heartbeat_interval: 50,
            election_timeout_min: 200,
            election_timeout_max: 400,
            // Small numbers, so that a node which was dead needs a snapshot.
            snapshot_policy: SnapshotPolicy::LogsSinceLast(50),
            max_in_snapshot_log_to_keep: 10,
            replication_lag_threshold: 40,
            snapshot_max_chunk_size: 4096,
            ..Config::default()
        };
        let config = Arc::new(config.validate().expect("a valid configuration"));
        let network = Network {
            cluster: self.clone(),
            alive: alive.clone(),
        };
        let raft = Raft::new(id, config, network, log, state).await;
        let raft = raft.expect("a node that starts");
        let life = Life {
            raft,
            reader,
            fs,
            alive,
        };
        self.lives.lock().insert(id, life);
    }

    /// Cuts the power of a node. Returns its disk as the power cut leaves it.
    async fn kill(&self, id: u64, policy: CrashPolicy, seed: u64) -> Arc<SimFs> {
        let life = self.lives.lock().remove(&id).expect("a living node");
        life.alive.store(false, SeqCst);
        let disk = life.fs.crash(policy, seed);
        life.fs.power_off();
        // It ends with the error of its disk, or as asked.
        let _ = life.raft.shutdown().await;
        disk
    }

    /// Writes until the write is acknowledged.
    async fn write(&self, key: &str) {
        for turn in 0.. {
            let id = NODES[turn % NODES.len()];
            let Some(life) = self.life(id) else {
                continue;
            };
            if life.raft.metrics().borrow().current_leader == Some(id) {
                let command = (key.to_string(), format!("value of {key}"));
                let written = life.raft.client_write(command);
                let written = tokio::time::timeout(Duration::from_secs(1), written).await;
                if matches!(written, Ok(Ok(_))) && life.alive.load(SeqCst) {
                    return;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Makes the connections of a node.
struct Network {
    cluster: Arc<Cluster>,
    alive: Arc<AtomicBool>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Connection {
        Connection {
            cluster: self.cluster.clone(),
            alive: self.alive.clone(),
            target,
        }
    }
}

/// The way from one node to another.
struct Connection {
    cluster: Arc<Cluster>,
    /// Whether the sender lives.
    alive: Arc<AtomicBool>,
    target: u64,
}

type Answer<T, E = openraft::error::Infallible> =
    Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Connection {
    /// Calls the other node. The answer arrives if both still live then.
    async fn call<T, E, F>(&self, call: impl FnOnce(Raft<Types>) -> F) -> Answer<T, E>
    where
        E: std::error::Error,
        F: Future<Output = Result<T, RaftError<u64, E>>>,
    {
        let unreachable = || {
            let e = std::io::Error::other(format!("node {} is dead", self.target));
            RPCError::Unreachable(Unreachable::new(&e))
        };
        let life = self.cluster.life(self.target);
        let life = life.filter(|_| self.alive.load(SeqCst));
        let life = life.ok_or_else(unreachable)?;
        let answer = call(life.raft).await;
        match life.alive.load(SeqCst) && self.alive.load(SeqCst) {
            true => answer.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e))),
            false => Err(unreachable()),
        }
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        self.call(|raft| async move { raft.append_entries(request).await })
            .await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        if request.done {
            self.cluster.snapshots.fetch_add(1, SeqCst);
        }
        self.call(|raft| async move { raft.install_snapshot(request).await })
            .await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        self.call(|raft| async move { raft.vote(request).await })
            .await
    }
}

/// What a run did.
#[derive(Debug)]
pub struct Report {
    /// Losses of power.
    pub kills: u64,
    /// Acknowledged writes, all of which are on all nodes.
    pub writes: usize,
    /// Snapshots that were sent to a node.
    pub snapshots: u64,
}

/// Kills each node `rounds` times. `writes` writes are acknowledged while a node is dead, and as
/// many before the next one dies. Panics if an acknowledged write is lost.
pub fn run(rounds: u64, writes: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(async {
        let cluster = Arc::new(Cluster::default());
        for id in NODES {
            let options = SimOptions {
                seed: id,
                ..SimOptions::default()
            };
            cluster.start(id, SimFs::new(options)).await;
        }
        let first = cluster.life(1).expect("a living node");
        let members = BTreeSet::from(NODES);
        first.raft.initialize(members).await.expect("a new cluster");

        let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
        let end = Arc::new(AtomicBool::new(false));
        let writers = (0..WRITERS).map(|writer| {
            let (cluster, acknowledged) = (cluster.clone(), acknowledged.clone());
            let end = end.clone();
            tokio::spawn(async move {
                for number in 0.. {
                    if end.load(SeqCst) {
                        break;
                    }
                    let key = format!("{writer}/{number}");
                    cluster.write(&key).await;
                    acknowledged.lock().push(key);
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let more_writes = || async {
            let target = acknowledged.lock().len() + writes as usize;
            while acknowledged.lock().len() < target {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let mut kills = 0;
        for _ in 0..rounds {
            for id in NODES {
                more_writes().await;
                let policy = CrashPolicy::ALL[kills as usize % CrashPolicy::ALL.len()];
                let disk = cluster.kill(id, policy, kills).await;
                kills += 1;
                more_writes().await;
                cluster.start(id, disk).await;
            }
        }
        more_writes().await;
        end.store(true, SeqCst);
        for writer in writers {
            writer.await.expect("no panic");
        }
        let acknowledged = std::mem::take(&mut *acknowledged.lock());
        for id in NODES {
            let reader = cluster.life(id).expect("a living node").reader;
            let keys = acknowledged.clone();
            let missing = move || -> Vec<String> {
                let view = reader.view();
                let is_there = |key: &String| {
                    let value = view.get(key.as_bytes()).expect("a read");
                    value.is_some_and(|v| *v == *format!("value of {key}").as_bytes())
                };
                keys.iter().filter(|key| !is_there(key)).cloned().collect()
            };
            wait_for_all_writes(id, missing).await;
        }
        for id in NODES {
            let life = cluster.life(id).expect("a living node");
            life.raft.shutdown().await.expect("no panic");
        }
        Report {
            kills,
            writes: acknowledged.len(),
            snapshots: cluster.snapshots.load(SeqCst),
        }
    })
}

/// Waits until a node has caught up. A write that is missing for a minute is lost.
async fn wait_for_all_writes(id: u64, missing: impl Fn() -> Vec<String> + Clone + Send + 'static) {
    let mut lost = Vec::new();
    for _ in 0..6000 {
        let look = tokio::task::spawn_blocking(missing.clone());
        lost = look.await.expect("no panic");
        if lost.is_empty() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("node {id} lost acknowledged writes: {lost:?}");
}

#[cfg_attr(test, expect(dead_code, reason = "the test calls `run`"))]
fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|n| n.parse().expect("a number"));
    let rounds = numbers.next().unwrap_or(3);
    let writes = numbers.next().unwrap_or(200);
    let report = run(rounds, writes);
    println!(
        "{} kills, {} acknowledged writes are on all nodes, {} snapshots were sent",
        report.kills, report.writes, report.snapshots
    );
}
