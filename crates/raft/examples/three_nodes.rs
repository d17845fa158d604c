//! Three Raft nodes in one process, on simulated disks. While writers write, each node in turn
//! loses its power and starts again, and then all lose it at once, three times. In the end every
//! acknowledged write is on every node.
//!
//! No node starts an election by itself: the program chooses a candidate when a leader is gone. So
//! a slow machine makes a run slower, and does not change what the run does.
//!
//! ```sh
//! cargo run --release -p basalt-raft --example three_nodes -- [ROUNDS] [WRITES]
//! ```
//!
//! `ROUNDS` is how often each node is killed, 3 by default. `WRITES` is how many writes at least
//! are acknowledged while one of the nodes is dead, and again before the next one is killed, 200 by
//! default.

use basalt::Options;
use basalt::env::{EnvBuilder, sync::Mutex};
use basalt_log::{LogEngine, LogEngineOptions};
use basalt_raft::{Apply, LogStore, StateMachine, StateReader, StateSnapshot, StateWriter};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Config, Raft, RaftMetrics, ServerState, SnapshotPolicy};
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
/// How often all nodes lose their power at once.
const JOINT_KILLS: u64 = 3;
/// How long the example sleeps before it looks again.
const PAUSE: Duration = Duration::from_millis(10);
/// Milliseconds after a message of the leader in which a node votes for no other node.
const LEASE: u64 = 300;
/// How long a candidate may take before the example lets it, or another one, begin again.
const CANDIDACY: Duration = Duration::from_millis(LEASE / 2);
/// A cluster without an acknowledged write for so long gets a new leader.
const SILENCE: Duration = Duration::from_secs(5);
/// A cluster that has not done what is waited for after so long has failed.
const FAILURE: Duration = Duration::from_secs(300);

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
    // The Raft log is the only log: the state is passive.
    basalt_raft::open_passive(
        &engine,
        &env,
        "state",
        Options::default(),
        "node",
        KeyValues,
    )
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

/// The nodes that can be reached, and what has happened to all nodes.
#[derive(Default)]
struct Cluster {
    lives: Mutex<BTreeMap<u64, Life>>,
    /// Keys whose writes are acknowledged.
    acknowledged: Mutex<Vec<String>>,
    /// Snapshots that a node has received as a whole.
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
            heartbeat_interval: LEASE / 6,
            election_timeout_min: LEASE / 2,
            election_timeout_max: LEASE,
            enable_elect: false,
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

    /// Cuts the power of nodes at one moment. Returns their disks as the power cut leaves them.
    async fn kill(&self, ids: &[u64], policy: CrashPolicy, seed: u64) -> Vec<Arc<SimFs>> {
        let remove = |id| self.lives.lock().remove(id).expect("a living node");
        let lives: Vec<Life> = ids.iter().map(remove).collect();
        for life in &lives {
            life.alive.store(false, SeqCst);
        }
        let disks = lives.iter().map(|life| life.fs.crash(policy, seed));
        let disks = disks.collect();
        for life in &lives {
            life.fs.power_off();
        }
        for life in &lives {
            // It ends with the error of its disk, or as asked.
            let _ = life.raft.shutdown().await;
        }
        disks
    }

    /// Returns a living node that takes itself for the leader.
    fn leader(&self) -> Option<Life> {
        let lives = self.lives.lock();
        let leads = |life: &&Life| life.raft.metrics().borrow().state == ServerState::Leader;
        lives.values().find(leads).cloned()
    }

    /// Makes one of the candidates the leader, the first one if its log allows it.
    async fn elect(&self, candidates: &[u64]) {
        // A candidacy fails while the lease of the leader before lasts, and if another node has
        // more entries. So each candidate has four in a row.
        for candidacy in 0.. {
            let id = candidates[candidacy / 4 % candidates.len()];
            let life = self.life(id).expect("a living node");
            // A node that leads already ignores it.
            let elected = life.raft.trigger().elect().await;
            elected.expect("a candidate whose disk works");
            let leads = life.raft.wait(Some(CANDIDACY));
            let leads = leads.state(ServerState::Leader, "a candidate leads");
            if leads.await.is_ok() {
                return;
            }
        }
    }

    /// Waits until the condition holds.
    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let acknowledged = || self.acknowledged.lock().len();
        let (mut before, mut silent, mut waited) = (acknowledged(), Duration::ZERO, Duration::ZERO);
        while !holds() {
            assert!(waited < FAILURE, "no {what}: {:?}", self.metrics());
            tokio::time::sleep(PAUSE).await;
            waited += PAUSE;
            silent += PAUSE;
            if acknowledged() > before {
                (before, silent) = (acknowledged(), Duration::ZERO);
            }
            if silent >= SILENCE {
                // A late message of a candidacy that was given up may have ended a leadership.
                let living: Vec<u64> = self.lives.lock().keys().copied().collect();
                self.elect(&living).await;
                silent = Duration::ZERO;
            }
        }
    }

    fn metrics(&self) -> Vec<RaftMetrics<u64, BasicNode>> {
        let lives = self.lives.lock();
        let metrics = |life: &Life| life.raft.metrics().borrow().clone();
        lives.values().map(metrics).collect()
    }

    /// Waits until `count` more writes are acknowledged.
    async fn more_writes(&self, count: u64) {
        let target = self.acknowledged.lock().len() + count as usize;
        let enough = || self.acknowledged.lock().len() >= target;
        self.until("acknowledged write", enough).await;
    }

    /// Writes until the write is acknowledged.
    async fn write(&self, key: &str) {
        loop {
            if let Some(life) = self.leader() {
                let command = (key.to_string(), format!("value of {key}"));
                let metrics = life.raft.wait(Some(FAILURE));
                let acknowledged = tokio::select! {
                    written = life.raft.client_write(command) => written.is_ok(),
                    // It may never answer: another node may have overwritten the entry.
                    _ = metrics.metrics(|m| m.state != ServerState::Leader, "it leads") => false,
                };
                if acknowledged && life.alive.load(SeqCst) {
                    break;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.acknowledged.lock().push(key.to_string());
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
struct Report {
    /// Losses of power.
    kills: u64,
    /// Losses of power of the leader alone.
    leader_kills: u64,
    /// Acknowledged writes, all of which are on all nodes.
    writes: usize,
    /// Snapshots that a node received as a whole.
    snapshots: u64,
}

/// Kills each node `rounds` times, and then all at once three times. At least `writes` writes are
/// acknowledged while one node is dead, before each kill, and after the last one. Panics if an
/// acknowledged write is lost.
fn run(rounds: u64, writes: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build();
    runtime
        .expect("a runtime")
        .block_on(run_cluster(rounds, writes))
}

async fn run_cluster(rounds: u64, writes: u64) -> Report {
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
    drop(first);
    cluster.elect(&[1]).await;

    let end = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write_until(end.clone(), cluster.clone(), writer)))
        .collect();
    let (mut kills, mut leader_kills) = (0, 0);
    for _ in 0..rounds {
        for id in NODES {
            cluster.more_writes(writes).await;
            let leads = cluster
                .leader()
                .is_some_and(|life| life.raft.metrics().borrow().id == id);
            let victim = cluster.life(id).expect("a living node").raft.metrics();
            let policy = CrashPolicy::ALL[kills as usize % CrashPolicy::ALL.len()];
            let mut disk = cluster.kill(&[id], policy, kills).await;
            kills += 1;
            if leads {
                leader_kills += 1;
                // The first candidate is the node that is killed next.
                cluster.elect(&[id % 3 + 1, (id + 1) % 3 + 1]).await;
            }
            cluster.more_writes(writes).await;
            // The disk may have some entries that the metrics do not show.
            let last = victim.borrow().last_log_index.unwrap_or(0) + 4 * WRITERS;
            let purged = || {
                let purged = cluster.metrics().into_iter().map(|m| m.purged);
                purged
                    .into_iter()
                    .all(|p| p.is_some_and(|p| p.index > last))
            };
            // Then only a snapshot has what the dead node lacks.
            cluster.until("purge of the log", purged).await;
            cluster.start(id, disk.remove(0)).await;
        }
    }
    // Now no other node has what a node has acknowledged too early.
    for _ in 0..JOINT_KILLS {
        cluster.more_writes(writes).await;
        let policy = CrashPolicy::NothingUnsynced;
        let disks = cluster.kill(&NODES, policy, kills).await;
        kills += NODES.len() as u64;
        for (id, disk) in NODES.into_iter().zip(disks) {
            cluster.start(id, disk).await;
        }
        cluster.elect(&NODES).await;
    }
    cluster.more_writes(writes).await;
    end.store(true, SeqCst);
    for writer in writers {
        writer.await.expect("no panic");
    }
    let written = check_nodes(&cluster).await;
    Report {
        kills,
        leader_kills,
        writes: written,
        snapshots: cluster.snapshots.load(SeqCst),
    }
}

async fn write_until(end: Arc<AtomicBool>, cluster: Arc<Cluster>, writer: u64) {
    for number in 0.. {
        if end.load(SeqCst) {
            break;
        }
        cluster.write(&format!("{writer}/{number}")).await;
    }
}

/// Checks that each node has each acknowledged write, and stops the nodes. Returns the number of
/// these writes.
async fn check_nodes(cluster: &Cluster) -> usize {
    let leader = cluster.leader().expect("a leader").raft;
    let applied = leader.metrics().borrow().last_applied;
    let keys = cluster.acknowledged.lock().clone();
    for id in NODES {
        let Life { raft, reader, .. } = cluster.life(id).expect("a living node");
        let caught_up = raft.wait(Some(FAILURE));
        let caught_up = caught_up.applied_index_at_least(applied.map(|a| a.index), "all writes");
        caught_up.await.expect("a node that catches up");
        let keys = keys.clone();
        let lost = move || -> Vec<String> {
            let view = reader.view();
            let is_lost = |key: &String| {
                let value = view.get(key.as_bytes()).expect("a read");
                value.is_none_or(|v| *v != *format!("value of {key}").as_bytes())
            };
            keys.into_iter().filter(is_lost).collect()
        };
        let lost = tokio::task::spawn_blocking(lost).await.expect("no panic");
        assert!(
            lost.is_empty(),
            "node {id} lost acknowledged writes: {lost:?}"
        );
    }
    for id in NODES {
        let life = cluster.life(id).expect("a living node");
        life.raft.shutdown().await.expect("no panic");
    }
    keys.len()
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|n| n.parse().expect("a number"));
    let rounds = numbers.next().unwrap_or(3);
    let writes = numbers.next().unwrap_or(200);
    let report = run(rounds, writes);
    println!(
        "{} kills, {} of them of a leader alone. {} acknowledged writes are on all nodes. {} snapshots \
         were sent.",
        report.kills, report.leader_kills, report.writes, report.snapshots
    );
}

#[cfg(test)]
#[test]
fn no_acknowledged_write_is_lost_when_each_node_is_killed() {
    let report = run(1, 60);
    println!("{report:?}");
    assert_eq!(report.kills, 12);
    // The first leader is the first victim.
    assert!(report.leader_kills >= 1, "{report:?}");
    assert!(report.writes >= 10 * 60, "{report:?}");
    // The log of the others is purged before a victim starts again.
    assert!(report.snapshots >= 3, "{report:?}");
}
