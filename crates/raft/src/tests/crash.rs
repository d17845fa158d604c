//! A power cut at every change of the disk.

use super::*;
use basalt::env::{Random, sync::Mutex};
use basalt_sim::{CrashPolicy, SimSnapshot};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine, StorageHelper};
use openraft::{RaftLogReader, RaftSnapshotBuilder, Vote};
use std::collections::{BTreeMap, BTreeSet};

/// Power cuts and kills that are tried at `BASALT_SCALE=1`.
const LEAST_STATES: u64 = 800;
/// The same on LavaFS, which writes seldom: a device write is several changes of names.
const LEAST_STATES_ON_LAVA: u64 = 200;

/// What a node has been asked for, and what it has acknowledged.
#[derive(Clone, Default)]
struct Promises {
    /// Terms of all entries that were ever appended, by index.
    appended: BTreeMap<u64, BTreeSet<u64>>,
    /// Terms of the acknowledged entries that were not truncated since, by index.
    acknowledged: BTreeMap<u64, u64>,
    /// Terms of votes: acknowledged, and asked for.
    votes: (u64, u64),
    /// Terms of all committed entries, by index.
    committed: Vec<u64>,
    /// Number of entries that were applied.
    applied: usize,
    /// Number of entries in snapshots that were built or installed.
    durable_state: usize,
    /// Purged indexes that were asked for.
    purged: BTreeSet<u64>,
}

/// The promises of a run. Threads of the engines change the disk while others acknowledge. So what
/// counts for a moment of the disk is what was acknowledged before it, and asked for until now.
struct History {
    fs: Arc<SimFs>,
    now: Mutex<Promises>,
    /// What was acknowledged after so many changes of the disk.
    kept: Mutex<Vec<(u64, Promises)>>,
}

impl History {
    fn ask<T>(&self, change: impl FnOnce(&mut Promises) -> T) -> T {
        change(&mut self.now.lock())
    }

    fn acknowledge(&self, change: impl FnOnce(&mut Promises)) {
        let mut now = self.now.lock();
        change(&mut now);
        let promises = now.clone();
        drop(now);
        self.kept.lock().push((self.fs.op_count(), promises));
    }

    /// Returns what must hold for a disk after `op` changes, which was seen when `asked` was what
    /// had been asked for.
    fn at(&self, op: u64, mut asked: Promises) -> Promises {
        let kept = self.kept.lock();
        let before = kept.iter().rfind(|(ops, _)| *ops <= op);
        let before = before.map(|(_, kept)| kept.clone()).unwrap_or_default();
        // Entries that were truncated since are not asked for any more.
        let acknowledged = &before.acknowledged;
        let kept = |index: &u64, term: &mut u64| acknowledged.get(index) == Some(term);
        asked.acknowledged.retain(kept);
        asked.votes.0 = before.votes.0;
        asked.applied = before.applied;
        asked.durable_state = before.durable_state;
        asked
    }
}

fn command(term: u64, index: u64) -> Option<Command> {
    let key = format!("k{}", index % 7);
    match (index + term) % 5 {
        0 => None,
        1 => Some((key, None)),
        _ => Some((key, Some(format!("{term}/{index}")))),
    }
}

/// Returns the state after entries with these terms.
fn content_after(terms: &[u64]) -> BTreeMap<String, String> {
    let mut content = BTreeMap::new();
    for (index, term) in (0..).zip(terms) {
        match command(*term, index) {
            Some((key, Some(value))) => content.insert(key, value),
            Some((key, None)) => content.remove(&key),
            None => None,
        };
    }
    content
}

fn content(node: &Node) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let view = node.state.reader().view();
    let mut keys = view.iter().unwrap();
    let mut content = BTreeMap::new();
    keys.seek_to_first().unwrap();
    while keys.valid() {
        content.insert(text(keys.key()), text(keys.value()));
        keys.next().unwrap();
    }
    content
}

/// Checks a node after a crash. A kill loses no write, a power cut those that were not synced. A
/// passive state also loses in a kill what is not in its tables, and openraft applies it again.
async fn check(fs: Arc<SimFs>, promises: &Promises, (killed, is_passive): (bool, bool), say: &str) {
    let mut node = Node::open_as(fs, is_passive).unwrap_or_else(|e| panic!("{say}: {e}"));
    let vote = node.log.read_vote().await.unwrap();
    let vote = vote.map_or(0, |vote| vote.leader_id().term);
    let (acknowledged, asked) = promises.votes;
    assert!(
        (acknowledged..=asked).contains(&vote),
        "{say}: vote {vote}, acknowledged was {acknowledged}"
    );
    let applied = node.state.applied_state().await.unwrap().0;
    let applied = applied.map_or(0, |id| id.index as usize + 1);
    let least = if killed && !is_passive {
        promises.applied
    } else {
        promises.durable_state
    };
    assert!(
        applied >= least,
        "{say}: {applied} entries are applied, {least} were"
    );
    assert_eq!(
        content(&node),
        content_after(&promises.committed[..applied]),
        "{say}: the state after {applied} entries"
    );
    let state = node.log.get_log_state().await.unwrap();
    let purged = state.last_purged_log_id.map(|id| id.index);
    if let Some(purged) = purged {
        assert!(promises.purged.contains(&purged), "{say}: purged {purged}");
        assert!(
            applied as u64 > purged,
            "{say}: entries up to {purged} are purged, {applied} are applied"
        );
    }
    let entries = node.log.try_get_log_entries(..).await.unwrap();
    let mut next = purged.map_or(0, |purged| purged + 1);
    for found in &entries {
        let LogId { leader_id, index } = found.log_id;
        assert_eq!(index, next, "{say}: the index of an entry");
        next += 1;
        let term = leader_id.term;
        assert!(
            promises
                .appended
                .get(&index)
                .is_some_and(|t| t.contains(&term)),
            "{say}: entry {index} of term {term} was never appended"
        );
        assert_eq!(found, &entry(term, index, command(term, index)), "{say}");
    }
    for (index, term) in &promises.acknowledged {
        let in_log = entries.iter().any(|e| e.log_id == log_id(*term, *index));
        assert!(
            in_log || (*index as usize) < applied,
            "{say}: entry {index} of term {term} is lost; the log has {purged:?} to {next}"
        );
    }
    // What openraft does when it starts: it applies committed entries again.
    let mut helper = StorageHelper::new(&mut node.log, &mut node.state);
    let initial = helper.get_initial_state().await;
    initial.unwrap_or_else(|e| panic!("{say}: {e}"));
    let applied = node.state.applied_state().await.unwrap().0;
    let applied = applied.map_or(0, |id| id.index as usize + 1);
    assert_eq!(
        content(&node),
        content_after(&promises.committed[..applied]),
        "{say}: the state after the start"
    );
}

/// A node under test, beside a leader that has all committed entries.
struct Run {
    node: Node,
    leader: Node,
    history: Arc<History>,
    term: u64,
    /// Terms of the entries that the node should have, from index 0.
    log: Vec<u64>,
}

impl Run {
    async fn step(&mut self, random: &Random) {
        match random.below(12) {
            0..5 => self.append(random).await,
            5 | 6 => self.commit(random).await,
            7 => self.vote().await,
            8 => self.truncate(random).await,
            9 | 10 => self.snapshot_and_purge(random).await,
            _ => self.install(random).await,
        }
    }

    /// Appends entries, in several appends in flight.
    async fn append(&mut self, random: &Random) {
        let appends = 1 + random.below(3);
        let mut done = Vec::new();
        for _ in 0..appends {
            let first = self.log.len() as u64;
            let count = 1 + random.below(6);
            let indexes = first..first + count;
            let term = self.term;
            self.history.ask(|promises| {
                for index in indexes.clone() {
                    promises.appended.entry(index).or_default().insert(term);
                }
            });
            let entries = indexes.clone().map(|i| entry(term, i, command(term, i)));
            let (send, receive) = tokio::sync::oneshot::channel();
            let history = self.history.clone();
            let flushed = move |result: Result<()>| {
                result.unwrap();
                let acknowledged = indexes.map(|index| (index, term));
                history.acknowledge(|p| p.acknowledged.extend(acknowledged));
                send.send(()).unwrap();
            };
            // The two parts of `append`, whose callback only openraft can make.
            self.node.log.finish_purge(true).await.unwrap();
            let shared = &self.node.log.shared;
            shared.submit(entries, Box::new(flushed)).unwrap();
            self.log.extend(std::iter::repeat_n(term, count as usize));
            done.push(receive);
        }
        for receive in done {
            receive.await.unwrap();
        }
    }

    /// Commits and applies a part of the log.
    async fn commit(&mut self, random: &Random) {
        let from = self.history.ask(|p| p.committed.len());
        let count = random.below((self.log.len() - from) as u64 + 1) as usize;
        if count == 0 {
            return;
        }
        let to = from + count;
        let committed = self.log[..to].to_vec();
        self.history.ask(|p| p.committed = committed);
        let last = log_id(self.log[to - 1], to as u64 - 1);
        self.node.log.save_committed(Some(last)).await.unwrap();
        let range = from as u64..to as u64;
        let entries = self.node.log.try_get_log_entries(range).await.unwrap();
        assert_eq!(entries.len(), count);
        self.leader.state.apply(entries.clone()).await.unwrap();
        self.node.state.apply(entries).await.unwrap();
        self.history.acknowledge(|p| p.applied = to);
    }

    async fn vote(&mut self) {
        self.term += 1;
        let term = self.term;
        self.history.ask(|p| p.votes.1 = term);
        let vote = Vote::new(self.term, 1);
        self.node.log.save_vote(&vote).await.unwrap();
        self.history.acknowledge(|p| p.votes.0 = term);
    }

    async fn truncate(&mut self, random: &Random) {
        let committed = self.history.ask(|p| p.committed.len());
        let from = committed + random.below((self.log.len() - committed) as u64 + 1) as usize;
        if from == self.log.len() {
            return;
        }
        self.history
            .ask(|p| p.acknowledged.split_off(&(from as u64)));
        let first = log_id(self.log[from], from as u64);
        self.node.log.truncate(first).await.unwrap();
        self.log.truncate(from);
        // Entries in their place are of a later term.
        self.vote().await;
    }

    async fn snapshot_and_purge(&mut self, random: &Random) {
        let mut builder = self.node.state.get_snapshot_builder().await;
        let snapshot = builder.build_snapshot().await.unwrap();
        let Some(last) = snapshot.meta.last_log_id else {
            return;
        };
        let durable = last.index as usize + 1;
        self.history.acknowledge(|p| p.durable_state = durable);
        let purged = self.node.log.get_log_state().await.unwrap();
        let from = purged.last_purged_log_id.map_or(0, |id| id.index + 1);
        if from <= last.index {
            let index = from + random.below(last.index - from + 1);
            self.history.ask(|p| p.purged.insert(index));
            let up_to = log_id(self.log[index as usize], index);
            self.node.log.purge(up_to).await.unwrap();
        }
    }

    /// Installs a snapshot of entries that the node does not have, with the purge first.
    async fn install(&mut self, random: &Random) {
        let from = self.history.ask(|p| p.committed.len());
        let to = self.log.len() + 1 + random.below(5) as usize;
        let mut committed = self.log[..from].to_vec();
        committed.resize(to, self.term);
        let term = self.term;
        let entries = (from as u64..to as u64).map(|i| entry(term, i, command(term, i)));
        self.leader.state.apply(entries).await.unwrap();
        let mut builder = self.leader.state.get_snapshot_builder().await;
        let snapshot = builder.build_snapshot().await.unwrap();
        let last = log_id(term, to as u64 - 1);
        self.history.ask(|promises| {
            promises.committed = committed.clone();
            // The snapshot replaces entries that were not committed.
            promises.acknowledged.split_off(&(from as u64));
            promises.purged.insert(last.index);
        });
        self.log = committed;
        self.node.log.purge(last).await.unwrap();
        let installed = self
            .node
            .state
            .install_snapshot(&snapshot.meta, snapshot.snapshot);
        installed.await.unwrap();
        self.history.acknowledge(|promises| {
            promises.applied = to;
            promises.durable_state = to;
        });
    }
}

struct CrashPoint {
    snapshot: SimSnapshot,
    /// What had been asked for when the disk was seen.
    asked: Promises,
}

#[test]
fn a_power_cut_at_every_change_keeps_what_was_acknowledged() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..6 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_at_every_change_keeps_what_was_acknowledged,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let is_passive = seed % 2 == 1;
        let fs = disk(seed);
        let history = Arc::new(History {
            fs: fs.clone(),
            now: Mutex::default(),
            kept: Mutex::default(),
        });
        let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
        run(async {
            let mut run = Run {
                node: Node::open_as(fs.clone(), is_passive).unwrap(),
                leader: Node::open(disk(seed + 1000)).unwrap(),
                history: history.clone(),
                term: 1,
                log: Vec::new(),
            };
            let (seen, all) = (history.clone(), points.clone());
            fs.on_mutation(move |snapshot| {
                let asked = seen.now.lock().clone();
                all.lock().push(CrashPoint { snapshot, asked });
            });
            for _ in 0..40 {
                run.step(&random).await;
            }
            run.node.log.blocking_append([]).await.unwrap();
            fs.on_mutation(|_| {});
        });
        let points = std::mem::take(&mut *points.lock());
        for (i, point) in points.iter().enumerate() {
            let policy = CrashPolicy::ALL[i % CrashPolicy::ALL.len()];
            let say = format!("raft crash seed={seed} at {:?} {policy:?}", point.snapshot);
            let promises = history.at(point.snapshot.op, point.asked.clone());
            let cut = point.snapshot.crash(policy, seed * 1000 + i as u64);
            run(check(cut, &promises, (false, is_passive), &say));
            states += 1;
            if i % 4 == 0 {
                let say = format!("raft kill seed={seed} at {:?}", point.snapshot);
                let killed = point.snapshot.kill();
                run(check(killed, &promises, (true, is_passive), &say));
                states += 1;
            }
        }
    }
    basalt_sim::campaign!("raft_crash_states={states}");
    let least = match basalt_sim::is_on_lava() {
        true => LEAST_STATES_ON_LAVA,
        false => LEAST_STATES,
    };
    assert!(
        basalt_sim::campaign::case().is_some() || states > least,
        "only {states} states"
    );
}
