//! [`LockTable`]: locks on keys, their queues, and the end of a wait.
//!
//! The table is divided into stripes, each with a mutex of its own. A lock that no other
//! transaction has or waits for takes that mutex alone. A request that must wait also takes the
//! mutex of the graph of waits, and so does each change of a lock that has a queue. Queues are
//! served in the order of the requests: a request never overtakes another one, but an upgrade from
//! shared to exclusive goes before requests of transactions that hold nothing of the lock.
//!
//! A wait ends with the lock, at its time, or at once if it would close a cycle of waits.

use crate::counters::TransactionCounters;
use crate::family_key::{FamilyKey, FamilyKeyRef, KeyParts};
use crate::wait_graph::{Blockers, TransactionId, WaitGraph};
use basalt_env::Clock;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, named};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::family::Family;
use basalt_kv::key::readable_key;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

/// All locks of this crate, for tests under the scheduler: `docs/testing/schedules.md`. A stripe
/// serialises the locks of its keys, and the graph the waits of all stripes. A thread holds one
/// stripe at a time, and calls no other crate but for the time while it does.
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: basalt_env::sync::lock_log::CrateLocks =
    basalt_env::sync::lock_log::CrateLocks {
        order: &["LockTable::stripe", "LockTable::graph"],
        leaves: &[],
    };

/// Number of stripes.
const STRIPES: usize = 16;

/// A waiting thread reads the clock at least this often, because a clock may be moved.
const RECHECK: Duration = Duration::from_millis(10);

/// Most keys that the message of a deadlock names.
const NAMED_KEYS: usize = 8;

/// What a lock allows other transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockMode {
    /// Others may hold the lock in this mode as well: the key is read.
    Shared,
    /// No other transaction holds the lock: the key is written.
    Exclusive,
}

impl LockMode {
    fn allows(self, other: LockMode) -> bool {
        self == LockMode::Shared && other == LockMode::Shared
    }
}

#[derive(Clone, Copy)]
struct LockHolder {
    id: TransactionId,
    mode: LockMode,
}

struct LockRequest {
    id: TransactionId,
    mode: LockMode,
    granted: Arc<Condvar>,
}

/// A lock that at least one transaction holds.
#[derive(Default)]
struct KeyLock {
    holders: SmallVec<[LockHolder; 1]>,
    queue: VecDeque<LockRequest>,
}

impl KeyLock {
    fn held_by(&self, id: TransactionId) -> Option<LockMode> {
        self.holders.iter().find(|h| h.id == id).map(|h| h.mode)
    }

    fn is_free_for(&self, id: TransactionId, mode: LockMode) -> bool {
        self.holders
            .iter()
            .all(|h| h.id == id || h.mode.allows(mode))
    }

    fn hold(&mut self, id: TransactionId, mode: LockMode) {
        match self.holders.iter_mut().find(|h| h.id == id) {
            Some(holder) => holder.mode = mode,
            None => self.holders.push(LockHolder { id, mode }),
        }
    }

    /// Puts a request into the queue, and returns its position.
    fn push(&mut self, request: LockRequest) -> usize {
        let at = match self.held_by(request.id) {
            None => self.queue.len(),
            Some(_) => (self.queue.iter())
                .position(|r| self.held_by(r.id).is_none())
                .unwrap_or(self.queue.len()),
        };
        self.queue.insert(at, request);
        at
    }

    fn blockers(&self, at: usize) -> Blockers {
        if let Some(before) = at.checked_sub(1) {
            return Blockers::from_slice(&[self.queue[before].id]);
        }
        let LockRequest { id, mode, .. } = self.queue[at];
        let holders = self.holders.iter();
        let excluding = holders.filter(|h| h.id != id && !h.mode.allows(mode));
        excluding.map(|h| h.id).collect()
    }

    /// Sets the edges of the request at a position, if there is one.
    fn update_edges(&self, graph: &mut WaitGraph, at: usize) {
        if let Some(request) = self.queue.get(at) {
            graph.set_blockers(request.id, self.blockers(at));
        }
    }

    /// Gives the lock to the first requests of the queue, as many as may have it.
    fn grant(&mut self, graph: &mut WaitGraph) {
        while let Some(first) = self.queue.front()
            && self.is_free_for(first.id, first.mode)
        {
            let request = self.queue.pop_front().expect("it was seen");
            self.hold(request.id, request.mode);
            graph.remove(request.id);
            request.granted.notify_all();
        }
        self.update_edges(graph, 0);
    }
}

/// The locks of one stripe.
#[derive(Default)]
struct LockStripe {
    locks: BTreeMap<FamilyKey, KeyLock>,
}

impl LockStripe {
    fn lock_of(&mut self, key: &FamilyKeyRef<'_>) -> &mut KeyLock {
        let lock = self.locks.get_mut(key as &dyn KeyParts);
        lock.expect("a lock with holders or requests is in the table")
    }
}

/// A request of a lock on a key.
pub struct LockCall<'a> {
    pub id: TransactionId,
    pub family: &'a Family,
    pub key: &'a [u8],
    pub mode: LockMode,
    /// Longest wait. `Duration::MAX` waits without a limit.
    pub timeout: Duration,
}

impl LockCall<'_> {
    fn what(&self) -> String {
        format!(
            "key {} of family {:?}",
            readable_key(self.key),
            self.family.name()
        )
    }
}

/// All locks of a handle.
pub struct LockTable {
    stripes: Vec<Mutex<LockStripe>>,
    graph: Mutex<WaitGraph>,
    /// Locks that are held or waited for, and the most there may be.
    locks: AtomicUsize,
    max_locks: usize,
    clock: Clock,
}

impl LockTable {
    /// Returns a table without locks.
    pub fn new(clock: Clock, max_locks: usize) -> LockTable {
        let stripe = || named("LockTable::stripe", Mutex::default());
        LockTable {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            graph: named("LockTable::graph", Mutex::default()),
            locks: AtomicUsize::new(0),
            max_locks,
            clock,
        }
    }

    /// Returns the number of locks that are held or waited for.
    pub fn len(&self) -> usize {
        self.locks.load(SeqCst)
    }

    fn stripe(&self, family: &Family, key: &[u8]) -> &Mutex<LockStripe> {
        // Keys that the comparator holds for equal must be in one stripe.
        let hashed = match family.cmp().equality_is_bytewise() {
            true => key,
            false => &[],
        };
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let hash = hasher.hash_one((family.id(), hashed));
        &self.stripes[hash as usize % STRIPES]
    }

    /// Locks a key for a transaction, or raises its lock to a stronger mode. Returns true if the
    /// transaction did not hold the lock before.
    ///
    /// Errors: `Busy` at the end of the time, and if there are too many locks; `Deadlock` if the
    /// wait would close a cycle. The lock is then as before.
    pub fn lock(&self, call: &LockCall<'_>, counters: &TransactionCounters) -> Result<bool> {
        let stripe = self.stripe(call.family, call.key);
        let sought = FamilyKeyRef::new(call.family, call.key);
        let mut guard = stripe.lock();
        let lock = guard.locks.get_mut(&sought as &dyn KeyParts);
        let held = lock.as_ref().and_then(|lock| lock.held_by(call.id));
        if held.is_some_and(|held| held >= call.mode) {
            return Ok(false);
        }
        let is_new = held.is_none();
        if is_new {
            self.count_lock()?;
        }
        let taken = match lock {
            None => {
                let mut lock = KeyLock::default();
                lock.hold(call.id, call.mode);
                guard
                    .locks
                    .insert(FamilyKey::new(call.family, call.key), lock);
                Ok(())
            }
            // A transaction that holds the lock alone is not held back by the queue.
            Some(lock)
                if lock.is_free_for(call.id, call.mode) && (lock.queue.is_empty() || !is_new) =>
            {
                lock.hold(call.id, call.mode);
                Ok(())
            }
            Some(_) => self.wait(&mut guard, call, &sought, counters),
        };
        if is_new && taken.is_err() {
            self.locks.fetch_sub(1, SeqCst);
        }
        taken.map(|()| is_new)
    }

    fn count_lock(&self) -> Result<()> {
        if self.locks.fetch_add(1, SeqCst) < self.max_locks {
            return Ok(());
        }
        self.locks.fetch_sub(1, SeqCst);
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "transactions hold {} locks, which is the limit max_locks: end transactions, or raise the limit",
                self.max_locks
            ),
        ))
    }

    /// Waits in the queue of a lock.
    fn wait(
        &self,
        guard: &mut MutexGuard<'_, LockStripe>,
        call: &LockCall<'_>,
        sought: &FamilyKeyRef<'_>,
        counters: &TransactionCounters,
    ) -> Result<()> {
        let end = match call.timeout {
            Duration::MAX => None,
            timeout => Some(self.clock.now().saturating_add(timeout)),
        };
        let granted = Arc::new(Condvar::new());
        if let Err(e) = self.enqueue(guard.lock_of(sought), call, granted.clone()) {
            counters.deadlocks.add(1);
            return Err(e);
        }
        counters.lock_waits.add(1);
        loop {
            let lock = guard.lock_of(sought);
            let Some(at) = lock.queue.iter().position(|r| r.id == call.id) else {
                return Ok(());
            };
            let left = match end {
                None => Duration::MAX,
                Some(end) => end.saturating_sub(self.clock.now()),
            };
            if left.is_zero() {
                let holders = lock.holders.len();
                self.give_up(lock, call.id, at);
                counters.lock_timeouts.add(1);
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "{} is locked by {holders} other transaction(s), and the wait of {:?} is over: try again, or roll the transaction back",
                        call.what(),
                        call.timeout
                    ),
                ));
            }
            match end {
                None => granted.wait(guard),
                Some(_) => {
                    granted.wait_for(guard, left.min(RECHECK));
                }
            }
        }
    }

    /// Puts a request into the queue of a lock.
    ///
    /// Errors: `Deadlock` if the wait would close a cycle. The request is then not in the queue.
    fn enqueue(
        &self,
        lock: &mut KeyLock,
        call: &LockCall<'_>,
        granted: Arc<Condvar>,
    ) -> Result<()> {
        let mut graph = self.graph.lock();
        let at = lock.push(LockRequest {
            id: call.id,
            mode: call.mode,
            granted,
        });
        graph.add(call.id, call.what(), lock.blockers(at));
        lock.update_edges(&mut graph, at + 1);
        let Some(keys) = graph.cycle(call.id) else {
            return Ok(());
        };
        let named = keys[..keys.len().min(NAMED_KEYS)].join(", ");
        let more = match keys.len().saturating_sub(NAMED_KEYS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "{} transactions would wait for each other, for {named}{more}: roll this transaction back, and begin again",
            keys.len()
        );
        lock.queue.remove(at);
        graph.remove(call.id);
        lock.update_edges(&mut graph, at);
        Err(Error::new(ErrorKind::Deadlock, message))
    }

    /// Removes a request whose time is over. Requests behind it may have the lock now.
    fn give_up(&self, lock: &mut KeyLock, id: TransactionId, at: usize) {
        let mut graph = self.graph.lock();
        lock.queue.remove(at);
        graph.remove(id);
        lock.update_edges(&mut graph, at);
        lock.grant(&mut graph);
    }

    /// Returns true if no lock is in the table, and no transaction waits.
    #[cfg(test)]
    fn is_unused(&self) -> bool {
        let is_empty = |stripe: &Mutex<LockStripe>| stripe.lock().locks.is_empty();
        self.stripes.iter().all(is_empty) && self.graph.lock().is_empty() && self.len() == 0
    }

    /// Releases a lock that a transaction holds.
    pub fn release(&self, id: TransactionId, family: &Family, key: &[u8]) {
        let stripe = self.stripe(family, key);
        let sought = FamilyKeyRef::new(family, key);
        let mut guard = stripe.lock();
        let lock = guard.lock_of(&sought);
        lock.holders.retain(|h| h.id != id);
        if !lock.queue.is_empty() {
            lock.grant(&mut self.graph.lock());
        }
        if lock.holders.is_empty() {
            guard.locks.remove(&sought as &dyn KeyParts);
        }
        self.locks.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests;
