//! Many appends in flight, and what waits for what.

use super::*;
use basalt::env::sync::Mutex;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, When};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{RaftLogReader, RaftSnapshotBuilder};
use std::sync::mpsc;

/// One thread submits all appends, and readers see their entries at once.
#[test]
fn one_thread_keeps_many_appends_in_flight() {
    run(async {
        let mut node = Node::open(disk(1)).unwrap();
        let mut reader = node.log.get_log_reader().await;
        let (acknowledge, acknowledged) = mpsc::channel();
        for index in 0..300 {
            let acknowledge = acknowledge.clone();
            let flushed = move |result: Result<()>| {
                result.unwrap();
                acknowledge.send(index).unwrap();
            };
            let command = Some(("k".to_string(), Some("v".repeat(index as usize))));
            let entry = entry(1, index, command);
            let submitted = node.log.shared.submit([entry.clone()], Box::new(flushed));
            submitted.unwrap();
            assert_eq!(reader.try_get_log_entries(index..).await.unwrap(), [entry]);
        }
        let all = reader.try_get_log_entries(..).await.unwrap();
        assert!((0..).zip(&all).all(|(i, entry)| entry.log_id.index == i));
        assert_eq!(all.len(), 300);
        drop(acknowledge);
        let mut indexes: Vec<u64> = acknowledged.iter().collect();
        indexes.sort();
        assert_eq!(indexes, (0..300).collect::<Vec<_>>());
    });
}

/// After a failed append no later one is acknowledged, though its own write would succeed.
#[test]
fn no_append_behind_a_failed_one_is_acknowledged() {
    run(async {
        let (mut failed_later, mut succeeded_before) = (0, 0);
        for k in 0..12 {
            let faults = FaultFs::new(disk(k), k);
            let node = Node::open(faults.clone()).unwrap();
            faults.inject(Fault {
                op: None,
                path: ".data".to_string(),
                when: When::Nth(1 + k),
                kind: FaultKind::Eio,
            });
            let results: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
            let (done, all_done) = mpsc::channel();
            for index in 0..40 {
                let (results, done) = (results.clone(), done.clone());
                let flushed = move |result: Result<()>| {
                    results.lock().push((index, result.is_ok()));
                    let _ = done.send(());
                };
                let entry = entry(1, index, None);
                let _ = node.log.shared.submit([entry], Box::new(flushed));
            }
            assert_eq!(all_done.iter().take(40).count(), 40);
            let mut results = results.lock().clone();
            results.sort();
            let first_failed = results.iter().position(|(_, ok)| !ok).unwrap_or(40);
            assert!(results[first_failed..].iter().all(|(_, ok)| !ok));
            succeeded_before += first_failed;
            failed_later += 40 - first_failed;
        }
        assert!(failed_later > 0 && succeeded_before > 0);
    });
}

/// The results of three writes come in another order, and the first write has failed.
#[test]
fn results_that_come_early_wait_for_those_before_them() {
    let node = Node::open(disk(1)).unwrap();
    let shared = &node.log.shared;
    let results: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
    for append in 0..4 {
        let results = results.clone();
        let flushed = move |result: Result<()>| results.lock().push((append, result.is_ok()));
        let flushed = Box::new(flushed);
        let mut state = shared.state.lock();
        state.in_flight.insert(append, (flushed, None));
    }
    shared.complete(0, Ok(()));
    assert_eq!(*results.lock(), [(0, true)]);
    shared.complete(3, Ok(()));
    shared.complete(2, Ok(()));
    assert_eq!(*results.lock(), [(0, true)]);
    shared.complete(1, Err(basalt::Error::invalid("a failed write")));
    let all = [(0, true), (1, false), (2, false), (3, false)];
    assert_eq!(*results.lock(), all);
}

/// Entries may be purged that are applied, and whose state is not synced yet.
#[test]
fn a_purge_makes_the_state_durable_first() {
    run(async {
        let fs = disk(1);
        let mut node = Node::open(fs.clone()).unwrap();
        let entries = (0..6).map(|i| entry(1, i, Some((i.to_string(), Some("v".into())))));
        let entries: Vec<_> = entries.collect();
        node.log.blocking_append(entries.clone()).await.unwrap();
        node.state.apply(entries).await.unwrap();
        node.log.purge(log_id(1, 3)).await.unwrap();
        for (seed, policy) in (0..).zip(CrashPolicy::ALL) {
            let mut node = Node::open(fs.crash(*policy, seed)).unwrap();
            let state = node.log.get_log_state().await.unwrap();
            assert_eq!(state.last_purged_log_id, Some(log_id(1, 3)));
            let applied = node.state.applied_state().await.unwrap().0;
            assert!(applied >= Some(log_id(1, 3)), "{policy:?}: {applied:?}");
        }
    });
}

/// A snapshot is received while the log is purged: the purge is not durable before the snapshot is,
/// and an append behind it waits, because its entry would stand behind a hole.
#[test]
fn a_purge_waits_for_the_state_that_has_its_entries() {
    run(async {
        let mut leader = Node::open(disk(1)).unwrap();
        let entries = (0..10).map(|i| entry(1, i, Some((i.to_string(), Some("v".into())))));
        leader.state.apply(entries).await.unwrap();
        let mut builder = leader.state.get_snapshot_builder().await;
        let snapshot = builder.build_snapshot().await.unwrap();

        let fs = disk(2);
        let mut node = Node::open(fs.clone()).unwrap();
        node.log.blocking_append([entry(1, 0, None)]).await.unwrap();
        node.log.purge(log_id(1, 9)).await.unwrap();
        let state = node.log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(log_id(1, 9)));
        assert_eq!(state.last_log_id, Some(log_id(1, 9)));
        assert_eq!(node.log.try_get_log_entries(..).await.unwrap(), []);
        let mut killed = Node::open(fs.kill()).unwrap();
        let state = killed.log.get_log_state().await.unwrap();
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (None, Some(log_id(1, 0)))
        );

        let next = entry(1, 10, None);
        let append = node.log.blocking_append([next.clone()]);
        let mut append = Box::pin(append);
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(append.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
        let installed = node
            .state
            .install_snapshot(&snapshot.meta, snapshot.snapshot);
        installed.await.unwrap();
        append.await.unwrap();
        let mut killed = Node::open(fs.kill()).unwrap();
        let state = killed.log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(log_id(1, 9)));
        assert_eq!(killed.log.try_get_log_entries(..).await.unwrap(), [next]);
        let value = killed.state.reader().get(b"9").unwrap();
        assert_eq!(value.as_deref(), Some(&b"v"[..]));
    });
}
