//! Modes, queues and edges of single locks.

use super::*;
use basalt_env::ManualClock;
use basalt_kv::family::FamilyConfig;
use basalt_kv::key::Comparator;
use std::cmp::Ordering;

/// Keys that differ in case only are one key.
struct WithoutCase;

impl Comparator for WithoutCase {
    fn name(&self) -> &str {
        "without case"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
    fn equality_is_bytewise(&self) -> bool {
        false
    }
}

struct Locks {
    table: LockTable,
    family: Family,
    counters: TransactionCounters,
}

impl Locks {
    fn new(family: Family) -> Locks {
        let clock = Clock::manual(ManualClock::new(0));
        Locks {
            table: LockTable::new(clock, 100),
            family,
            counters: TransactionCounters::default(),
        }
    }

    /// Asks for a lock without waiting.
    fn lock(&self, id: TransactionId, key: &str, mode: LockMode) -> Result<bool> {
        self.table.lock(&self.call(id, key, mode), &self.counters)
    }

    fn call<'a>(&'a self, id: TransactionId, key: &'a str, mode: LockMode) -> LockCall<'a> {
        LockCall {
            id,
            family: &self.family,
            key: key.as_bytes(),
            mode,
            timeout: Duration::ZERO,
        }
    }

    /// Puts a request behind the others of the lock of the key `a`.
    fn enqueue(&self, lock: &mut KeyLock, id: TransactionId, mode: LockMode) {
        let call = self.call(id, "a", mode);
        let granted = Arc::new(Condvar::new());
        self.table.enqueue(lock, &call, granted).unwrap();
    }

    fn release(&self, id: TransactionId, key: &str) {
        self.table.release(id, &self.family, key.as_bytes());
    }
}

use LockMode::{Exclusive, Shared};

#[test]
fn modes_exclude_each_other_as_documented() {
    let locks = Locks::new(Family::detached(1));
    assert!(locks.lock(1, "a", Shared).unwrap());
    assert!(locks.lock(2, "a", Shared).unwrap());
    assert!(!locks.lock(1, "a", Shared).unwrap(), "it has it");
    assert!(locks.lock(1, "a", Exclusive).is_err());
    assert!(locks.lock(3, "a", Exclusive).is_err());
    locks.release(2, "a");
    assert!(!locks.lock(1, "a", Exclusive).unwrap(), "it is raised");
    assert!(!locks.lock(1, "a", Shared).unwrap(), "it has more");
    assert!(locks.lock(2, "a", Shared).is_err());
    assert!(locks.lock(2, "b", Exclusive).unwrap(), "another key");
    assert_eq!(locks.table.len(), 2);
    locks.release(1, "a");
    locks.release(2, "b");
    assert!(locks.table.is_unused());
}

#[test]
fn keys_that_compare_equal_are_one_lock() {
    let mut config = FamilyConfig::detached(1);
    config.comparator = basalt_kv::key::Cmp::Custom(Arc::new(WithoutCase));
    let locks = Locks::new(Family::new(config));
    for n in 0..40 {
        assert!(locks.lock(1, &format!("key{n}"), Exclusive).unwrap());
        assert!(locks.lock(2, &format!("KEY{n}"), Shared).is_err());
        assert!(!locks.lock(1, &format!("Key{n}"), Exclusive).unwrap());
    }
    (0..40).for_each(|n| locks.release(1, &format!("kEy{n}")));
    assert!(locks.table.is_unused());
}

/// Drives the queue of one lock, and checks who holds it, who waits, and for whom.
#[test]
fn a_queue_is_served_in_order_and_upgrades_go_first() {
    let mut lock = KeyLock::default();
    let mut graph = WaitGraph::default();
    let push = |lock: &mut KeyLock, graph: &mut WaitGraph, id, mode| {
        let granted = Arc::new(Condvar::new());
        let at = lock.push(LockRequest { id, mode, granted });
        graph.add(id, id.to_string(), lock.blockers(at));
        lock.update_edges(graph, at + 1);
        at
    };
    let holders = |lock: &KeyLock| lock.holders.iter().map(|h| h.id).collect::<Vec<_>>();
    let queue = |lock: &KeyLock| lock.queue.iter().map(|r| r.id).collect::<Vec<_>>();
    let edges = |lock: &KeyLock, at: usize| lock.blockers(at).to_vec();
    lock.hold(1, Shared);
    lock.hold(2, Shared);
    assert_eq!(push(&mut lock, &mut graph, 3, Exclusive), 0);
    assert_eq!(edges(&lock, 0), [1, 2]);
    // A reader behind a writer waits for the writer: no writer starves.
    assert_eq!(push(&mut lock, &mut graph, 4, Shared), 1);
    assert_eq!(edges(&lock, 1), [3]);
    assert_eq!(push(&mut lock, &mut graph, 5, Shared), 2);
    // A holder that wants more goes first, and waits for the other holder alone.
    assert_eq!(push(&mut lock, &mut graph, 1, Exclusive), 0);
    assert_eq!((edges(&lock, 0), edges(&lock, 1)), (vec![2], vec![1]));
    assert_eq!(queue(&lock), [1, 3, 4, 5]);
    assert_eq!(graph.cycle(1), None);
    // The other holder would have to wait for it, and it for the other one.
    assert_eq!(push(&mut lock, &mut graph, 2, Exclusive), 1);
    assert!(graph.cycle(2).is_some());
    lock.queue.remove(1);
    graph.remove(2);
    lock.update_edges(&mut graph, 1);
    lock.holders.retain(|h| h.id != 2);
    lock.grant(&mut graph);
    assert_eq!((holders(&lock), queue(&lock)), (vec![1], vec![3, 4, 5]));
    assert_eq!(lock.held_by(1), Some(Exclusive));
    lock.holders.clear();
    lock.grant(&mut graph);
    assert_eq!((holders(&lock), queue(&lock)), (vec![3], vec![4, 5]));
    assert_eq!(edges(&lock, 0), [3]);
    lock.holders.clear();
    lock.grant(&mut graph);
    assert_eq!((holders(&lock), queue(&lock)), (vec![4, 5], vec![]));
    assert!(graph.is_empty());
}

/// A writer behind readers waits for each of them once they have the lock, not for the last alone.
#[test]
fn a_grant_gives_the_next_request_edges_to_all_holders() {
    let locks = Locks::new(Family::detached(1));
    let mut lock = KeyLock::default();
    lock.hold(1, Exclusive);
    for (id, mode) in [(2, Shared), (3, Shared), (4, Exclusive)] {
        locks.enqueue(&mut lock, id, mode);
    }
    let mut graph = locks.table.graph.lock();
    lock.holders.clear();
    lock.grant(&mut graph);
    for reader in [2, 3] {
        graph.add(reader, "b".into(), Blockers::from_slice(&[4]));
        assert!(graph.cycle(reader).is_some(), "{reader} and 4");
        graph.remove(reader);
    }
    // A holder that ends is no part of a cycle any more.
    lock.holders.retain(|h| h.id != 2);
    lock.grant(&mut graph);
    graph.add(2, "b".into(), Blockers::from_slice(&[4]));
    assert_eq!(graph.cycle(2), None);
}

/// If a writer at the front gives up, the readers behind it have the lock at once.
#[test]
fn a_request_that_gives_up_lets_others_pass() {
    let locks = Locks::new(Family::detached(1));
    let mut lock = KeyLock::default();
    lock.hold(1, Shared);
    for (id, mode) in [(2, Exclusive), (3, Shared), (4, Exclusive)] {
        locks.enqueue(&mut lock, id, mode);
    }
    locks.table.give_up(&mut lock, 2, 0);
    assert_eq!(lock.held_by(3), Some(Shared));
    assert_eq!(lock.queue.len(), 1);
    let mut blockers = lock.blockers(0).to_vec();
    blockers.sort_unstable();
    assert_eq!(blockers, [1, 3]);
    locks.table.give_up(&mut lock, 4, 0);
    assert!(locks.table.graph.lock().is_empty());
}
