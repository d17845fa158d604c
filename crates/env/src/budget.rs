//! Budgets shared by all engines: the memory ledger, open files, background I/O.

use crate::clock::Clock;

/// What memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memtables, mutable and sealed.
    Memtable,
    /// The block cache.
    Cache,
    /// Blocks and values held by readers beyond the cache.
    Pinned,
    /// Staging buffers of logs, flushes and compactions.
    Buffer,
    /// A server's clients: requests and replies.
    Client,
}

/// Bytes in use by kind, and the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerUse {
    /// Memtables.
    pub memtable: u64,
    /// Block cache.
    pub cache: u64,
    /// Pinned reads.
    pub pinned: u64,
    /// Buffers.
    pub buffer: u64,
    /// Clients.
    pub client: u64,
    /// The budget.
    pub budget: u64,
}

impl LedgerUse {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.memtable + self.cache + self.pinned + self.buffer + self.client
    }
}

/// One ledger for all memory that engines use: reserved before it is allocated. Cheap to clone.
#[derive(Clone)]
pub struct MemoryLedger(std::sync::Arc<()>);

/// Bytes booked in a ledger; given back when dropped.
pub struct Reservation(());

impl MemoryLedger {
    /// A ledger with a budget in bytes.
    pub fn new(budget: u64) -> MemoryLedger {
        let _ = budget;
        todo!()
    }
    /// Books bytes if they fit the budget; `None` when they do not.
    pub fn try_reserve(&self, kind: MemoryKind, bytes: u64) -> Option<Reservation> {
        let _ = (kind, bytes);
        todo!()
    }
    /// Books bytes even past the budget: for what must not fail, such as applying a write that is already durable.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64) -> Reservation {
        let _ = (kind, bytes);
        todo!()
    }
    /// Bytes in use.
    pub fn usage(&self) -> LedgerUse {
        todo!()
    }
    /// Past the budget by so many bytes; engines flush or slow down in answer.
    pub fn over_budget(&self) -> u64 {
        todo!()
    }
}

impl Reservation {
    /// Grows or shrinks the booking, past the budget if need be.
    pub fn resize(&mut self, bytes: u64) {
        let _ = bytes;
        todo!()
    }
    /// Bytes booked.
    pub fn bytes(&self) -> u64 {
        todo!()
    }
}

/// How many files engines may hold open together. Cheap to clone.
#[derive(Clone)]
pub struct OpenFiles(std::sync::Arc<()>);

impl OpenFiles {
    /// A budget of `limit` files.
    pub fn new(limit: usize) -> OpenFiles {
        let _ = limit;
        todo!()
    }
    /// The limit.
    pub fn limit(&self) -> usize {
        todo!()
    }
    /// Counts one file as open and returns true when the total is now above the limit, so that the caller closes an idle one.
    pub fn opened(&self) -> bool {
        todo!()
    }
    /// Counts one file as closed.
    pub fn closed(&self) {
        todo!()
    }
    /// Files open now.
    pub fn count(&self) -> usize {
        todo!()
    }
}

/// Who asks for I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoPriority {
    /// Flush: user writes wait for it.
    High,
    /// Compaction and GC.
    Low,
}

/// A token bucket over background I/O. Cheap to clone.
#[derive(Clone)]
pub struct RateLimiter(std::sync::Arc<()>);

impl RateLimiter {
    /// `bytes_per_s` of 0 means no limit.
    pub fn new(bytes_per_s: u64, clock: Clock) -> RateLimiter {
        let _ = (bytes_per_s, clock);
        todo!()
    }
    /// Waits until `bytes` may pass. High goes before Low.
    pub fn acquire(&self, bytes: u64, priority: IoPriority) {
        let _ = (bytes, priority);
        todo!()
    }
    /// Changes the rate; 0 lifts it.
    pub fn set_rate(&self, bytes_per_s: u64) {
        let _ = bytes_per_s;
        todo!()
    }
    /// Bytes passed so far.
    pub fn passed(&self) -> u64 {
        todo!()
    }
}
