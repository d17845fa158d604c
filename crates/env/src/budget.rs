//! Budgets shared by all engines: the memory ledger, open files, and the rate of background I/O.
//!
//! Promises: the bytes of a [`Reservation`] are returned exactly once, whatever path drops it. The
//! ledger never loses or invents a byte. Only [`RateLimiter::acquire`] waits.

use crate::clock::Clock;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, named};
use basalt_fs::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The purpose of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memtables, mutable and sealed.
    Memtable,
    /// The block cache.
    Cache,
    /// Blocks and values that readers hold beyond the cache.
    Pinned,
    /// Staging buffers of logs, flushes and compactions, and write buffers of a filesystem in an
    /// image.
    Buffer,
    /// Requests and replies of a server's clients.
    Client,
    /// Indexes that an engine keeps in memory beside the cache, such as those of logs.
    Index,
}

/// Bytes in use by kind, and the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerUse {
    /// Bytes of memtables.
    pub memtable: u64,
    /// Bytes of the block cache.
    pub cache: u64,
    /// Bytes of pinned blocks and values.
    pub pinned: u64,
    /// Bytes of buffers.
    pub buffer: u64,
    /// Bytes of requests and replies.
    pub client: u64,
    /// Bytes of indexes.
    pub index: u64,
    /// Bytes of the budget.
    pub budget: u64,
}

impl LedgerUse {
    /// Returns the bytes of all kinds together.
    pub fn total(&self) -> u64 {
        self.memtable + self.cache + self.pinned + self.buffer + self.client + self.index
    }
}

/// The state that all clones of a [`MemoryLedger`] share.
struct Ledger {
    /// Bytes of the budget.
    budget: u64,
    /// Bytes of the budget that belong to the cache. Other kinds may not grow into this part while
    /// the cache is still filling, because the cache would then have to grow past the budget.
    cache_part: AtomicU64,
    /// Bytes in use by kind.
    by_kind: [AtomicU64; 6],
    /// Bytes of all kinds but the cache, together.
    others: AtomicU64,
}

impl Ledger {
    fn cache_claim(&self) -> u64 {
        let part = self.cache_part.load(Relaxed).min(self.budget / 4 * 3);
        self.by_kind[MemoryKind::Cache as usize]
            .load(Relaxed)
            .max(part)
    }

    fn add(&self, kind: MemoryKind, bytes: u64) {
        if kind != MemoryKind::Cache {
            self.others.fetch_add(bytes, Relaxed);
        }
        self.by_kind[kind as usize].fetch_add(bytes, Relaxed);
    }

    fn try_add(&self, kind: MemoryKind, bytes: u64) -> bool {
        if kind == MemoryKind::Cache {
            let part = self.cache_part.load(Relaxed).min(self.budget / 4 * 3);
            let room = self
                .budget
                .saturating_sub(self.others.load(Relaxed))
                .max(part);
            return self.by_kind[kind as usize]
                .fetch_update(Relaxed, Relaxed, |now| {
                    now.checked_add(bytes).filter(|after| *after <= room)
                })
                .is_ok();
        }
        let room = self.budget.saturating_sub(self.cache_claim());
        let fits = self
            .others
            .fetch_update(Relaxed, Relaxed, |now| {
                now.checked_add(bytes).filter(|after| *after <= room)
            })
            .is_ok();
        if fits {
            self.by_kind[kind as usize].fetch_add(bytes, Relaxed);
        }
        fits
    }

    fn sub(&self, kind: MemoryKind, bytes: u64) {
        if kind != MemoryKind::Cache {
            self.others.fetch_sub(bytes, Relaxed);
        }
        let before = self.by_kind[kind as usize].fetch_sub(bytes, Relaxed);
        assert!(
            before >= bytes,
            "memory ledger: {bytes} bytes of {kind:?} released, {before} reserved"
        );
    }
}

/// One ledger for all memory that engines use. Memory is reserved before it is allocated. Cloning
/// is cheap.
///
/// The block cache's part of the budget (its capacity, at most three quarters of the budget) is
/// kept free while the cache is still filling. So a cache that warms up never pushes the whole past
/// the budget.
#[derive(Clone)]
pub struct MemoryLedger(Arc<Ledger>);

/// Bytes that are reserved in a ledger. They are returned when the reservation is dropped.
pub struct Reservation {
    ledger: Arc<Ledger>,
    kind: MemoryKind,
    bytes: u64,
}

impl MemoryLedger {
    /// Returns a ledger with a budget in bytes.
    pub fn new(budget: u64) -> MemoryLedger {
        MemoryLedger(Arc::new(Ledger {
            budget,
            cache_part: AtomicU64::new(0),
            by_kind: Default::default(),
            others: AtomicU64::new(0),
        }))
    }
    /// Reserves bytes if they fit the budget. Returns `None` if they do not.
    pub fn try_reserve(&self, kind: MemoryKind, bytes: u64) -> Option<Reservation> {
        self.0.try_add(kind, bytes).then(|| Reservation {
            ledger: self.0.clone(),
            kind,
            bytes,
        })
    }
    /// Reserves bytes even past the budget. It is for work that must not fail, such as applying a
    /// write that is already durable.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64) -> Reservation {
        self.0.add(kind, bytes);
        Reservation {
            ledger: self.0.clone(),
            kind,
            bytes,
        }
    }
    /// Returns the bytes in use.
    pub fn usage(&self) -> LedgerUse {
        let of = |kind: MemoryKind| self.0.by_kind[kind as usize].load(Relaxed);
        LedgerUse {
            memtable: of(MemoryKind::Memtable),
            cache: of(MemoryKind::Cache),
            pinned: of(MemoryKind::Pinned),
            buffer: of(MemoryKind::Buffer),
            client: of(MemoryKind::Client),
            index: of(MemoryKind::Index),
            budget: self.0.budget,
        }
    }
    /// Returns the bytes in use beyond the budget, or 0. Engines answer with a flush or slow down.
    /// The cache counts with the larger of the bytes it holds and the part kept for it.
    pub fn over_budget(&self) -> u64 {
        (self.0.others.load(Relaxed) + self.0.cache_claim()).saturating_sub(self.0.budget)
    }
    /// Returns the bytes that [`MemoryLedger::try_reserve`] may still reserve for anything but the
    /// cache.
    pub fn free(&self) -> u64 {
        self.0
            .budget
            .saturating_sub(self.0.others.load(Relaxed) + self.0.cache_claim())
    }
    /// Returns the bytes that all kinds but the cache may have together.
    pub fn room(&self) -> u64 {
        self.0.budget.saturating_sub(self.0.cache_claim())
    }
    /// Reserves cache memory that readers keep. [`MemoryLedger::unpin`] returns it.
    pub(crate) fn pin(&self, bytes: u64) {
        self.0.add(MemoryKind::Pinned, bytes);
    }
    /// Returns bytes that [`MemoryLedger::pin`] reserved.
    pub(crate) fn unpin(&self, bytes: u64) {
        self.0.sub(MemoryKind::Pinned, bytes);
    }
    /// Keeps `bytes` more of the budget for a cache.
    pub(crate) fn widen_cache_part(&self, bytes: u64) {
        self.0.cache_part.fetch_add(bytes, Relaxed);
    }
    /// Takes back bytes that [`MemoryLedger::widen_cache_part`] kept.
    pub(crate) fn narrow_cache_part(&self, bytes: u64) {
        self.0.cache_part.fetch_sub(bytes, Relaxed);
    }
}

impl Reservation {
    /// Grows or shrinks the reservation, past the budget if necessary.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.ledger.add(self.kind, bytes - self.bytes);
        } else if bytes < self.bytes {
            self.ledger.sub(self.kind, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
    /// Grows or shrinks the reservation. Returns false, and changes nothing, if the growth does not
    /// fit the budget.
    pub fn try_resize(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes {
            if !self.ledger.try_add(self.kind, bytes - self.bytes) {
                return false;
            }
            self.bytes = bytes;
        } else {
            self.resize(bytes);
        }
        true
    }
    /// Ties the reservation to memory. It ends when the last part of the returned bytes is dropped.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Booked {
            bytes,
            _booked: self,
        })
    }
    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Returns the purpose of the bytes.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Memory with its reservation.
struct Booked {
    bytes: Bytes,
    _booked: Reservation,
}

impl AsRef<[u8]> for Booked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The state that all clones of an [`OpenFiles`] share.
struct Files {
    limit: usize,
    open: AtomicUsize,
}

/// The number of files that engines may have open together. Cloning is cheap.
#[derive(Clone)]
pub struct OpenFiles(Arc<Files>);

impl OpenFiles {
    /// Returns a budget of `limit` files.
    pub fn new(limit: usize) -> OpenFiles {
        OpenFiles(Arc::new(Files {
            limit,
            open: AtomicUsize::new(0),
        }))
    }
    /// Returns the limit.
    pub fn limit(&self) -> usize {
        self.0.limit
    }
    /// Counts one file as open. Returns true if the total is now above the limit, so that the
    /// caller closes an idle file.
    pub fn opened(&self) -> bool {
        self.0.open.fetch_add(1, Relaxed) + 1 > self.0.limit
    }
    /// Counts one file as closed.
    pub fn closed(&self) {
        let before = self.0.open.fetch_sub(1, Relaxed);
        assert!(before > 0, "open files: one more closed than opened");
    }
    /// Returns the number of files that are open now.
    pub fn count(&self) -> usize {
        self.0.open.load(Relaxed)
    }
}

/// The priority of background I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoPriority {
    /// Flushes. User writes wait for them.
    High,
    /// Compactions and garbage collection.
    Low,
}

/// Longest wait at a time. A longer wait is split, so that a changed rate and a changed queue are
/// noticed soon.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// After this many grants to High in a row, one request of Low passes.
const HIGH_IN_A_ROW: u32 = 8;
/// Tokens are millionths of a byte, because the product of a rate and microseconds is then exact.
const MICRO: u128 = 1_000_000;

/// A budget: its limit, and the part in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetUse {
    /// The name in snake case, with the unit last.
    pub name: &'static str,
    /// The part in use now.
    pub used: u64,
    /// The limit; 0 for none.
    pub limit: u64,
}

impl BudgetUse {
    /// Returns the use of the budget `name`, whose unit comes last in the name. A limit of 0 stands
    /// for none.
    pub fn new(name: &'static str, used: u64, limit: u64) -> BudgetUse {
        BudgetUse { name, used, limit }
    }
}

/// The state that all clones of a [`RateLimiter`] share.
struct Limiter {
    clock: Clock,
    /// Bytes a second; 0 for no limit. `Bucket` has the rate, too. This copy lets an unlimited
    /// `acquire` avoid the lock.
    rate: AtomicU64,
    /// Bytes that have passed so far.
    passed: AtomicU64,
    /// Microseconds that requests have waited, by priority.
    waited_us: [AtomicU64; 2],
    /// Time at which [`RateLimiter::recent_rate`] last computed a rate, the bytes that had passed
    /// then, and that rate.
    asked: Mutex<(Duration, u64, u64)>,
    bucket: Mutex<Bucket>,
}

/// The tokens and queues of a limiter, under its lock.
struct Bucket {
    /// Bytes a second; 0 for no limit.
    rate: u64,
    /// Tokens in the bucket, in millionths of a byte.
    tokens: u128,
    /// Time up to which the bucket was filled.
    filled_at: Duration,
    /// Number of the next request.
    next_ticket: u64,
    /// Numbers of the waiting requests, by priority, in order of arrival.
    waiting: [VecDeque<u64>; 2],
    /// Number of pieces of High that passed since one of Low.
    high_in_a_row: u32,
}

impl Bucket {
    /// Returns the capacity of the bucket, in tokens: a tenth of a second.
    fn depth(&self) -> u128 {
        u128::from((self.rate / 10).max(1)) * MICRO
    }
    /// Returns the bytes that pass at a time: at most a twentieth of a second, so that a large
    /// request does not delay the others.
    fn piece(&self) -> u64 {
        (self.rate / 20).max(1)
    }
    fn fill(&mut self, now: Duration) {
        let us = now.saturating_sub(self.filled_at).as_micros();
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + u128::from(self.rate) * us).min(self.depth());
    }
    /// Returns the queue whose head passes next: High, unless Low has waited for too many of them.
    fn turn(&self) -> usize {
        let [high, low] = &self.waiting;
        let low_due = high.is_empty() || self.high_in_a_row >= HIGH_IN_A_ROW;
        usize::from(!low.is_empty() && low_due)
    }
}

/// A token bucket for background I/O. Cloning is cheap.
///
/// Requests wait in two queues, first come, first served within each. A large request is split and
/// queues again for each piece, so that several compactions share the rate. One piece of Low passes
/// after every eight of High, so that no request starves.
#[derive(Clone)]
pub struct RateLimiter(Arc<Limiter>);

impl RateLimiter {
    /// Returns a limiter with a rate in bytes a second. 0 means no limit.
    pub fn new(bytes_per_s: u64, clock: Clock) -> RateLimiter {
        RateLimiter(Arc::new(Limiter {
            rate: AtomicU64::new(bytes_per_s),
            passed: AtomicU64::new(0),
            waited_us: Default::default(),
            asked: named("Limiter::asked", Mutex::new((clock.now(), 0, 0))),
            bucket: Mutex::new(Bucket {
                rate: bytes_per_s,
                tokens: 0,
                filled_at: clock.now(),
                next_ticket: 0,
                waiting: Default::default(),
                high_in_a_row: 0,
            }),
            clock,
        }))
    }

    /// Waits until `bytes` may pass. High passes before Low.
    pub fn acquire(&self, bytes: u64, priority: IoPriority) {
        let limiter = &*self.0;
        let mut left = bytes;
        if limiter.rate.load(Relaxed) != 0 {
            let began = limiter.clock.now();
            while left > 0 && limiter.rate.load(Relaxed) != 0 {
                left -= limiter.acquire_piece(left, priority as usize);
            }
            let waited = limiter.clock.now().saturating_sub(began);
            limiter.waited_us[priority as usize].fetch_add(waited.as_micros() as u64, Relaxed);
        }
        limiter.passed.fetch_add(left, Relaxed);
    }

    /// Changes the rate. 0 lifts the limit, also for requests that wait now.
    pub fn set_rate(&self, bytes_per_s: u64) {
        let limiter = &*self.0;
        let mut bucket = limiter.bucket.lock();
        bucket.fill(limiter.clock.now());
        bucket.rate = bytes_per_s;
        bucket.tokens = bucket.tokens.min(bucket.depth());
        limiter.rate.store(bytes_per_s, Relaxed);
    }

    /// Returns the rate in bytes a second; 0 for no limit.
    pub fn rate(&self) -> u64 {
        self.0.rate.load(Relaxed)
    }

    /// Returns the bytes that have passed so far.
    pub fn passed(&self) -> u64 {
        self.0.passed.load(Relaxed)
    }

    /// Returns how long the requests of a priority have waited so far, all together.
    pub fn waited(&self, priority: IoPriority) -> Duration {
        Duration::from_micros(self.0.waited_us[priority as usize].load(Relaxed))
    }

    /// Returns the rate, in bytes a second, between the last two calls that were at least a second
    /// apart.
    pub fn recent_rate(&self) -> u64 {
        let (now, passed) = (self.0.clock.now(), self.passed());
        let mut asked = self.0.asked.lock();
        let (at, before, _) = *asked;
        let apart = now.saturating_sub(at);
        if apart >= Duration::from_secs(1) {
            let rate = (passed - before) as f64 / apart.as_secs_f64();
            *asked = (now, passed, rate as u64);
        }
        asked.2
    }
}

impl Limiter {
    /// Waits for one piece of at most `left` bytes and returns its size.
    fn acquire_piece(&self, left: u64, queue: usize) -> u64 {
        let mut bucket = self.bucket.lock();
        let ticket = bucket.next_ticket;
        bucket.next_ticket += 1;
        bucket.waiting[queue].push_back(ticket);
        loop {
            // The piece is computed in each round, because the rate, and with it the size of a
            // piece, may have changed.
            let piece = left.min(bucket.piece());
            let cost = u128::from(piece) * MICRO;
            bucket.fill(self.clock.now());
            let my_turn = bucket.turn() == queue && bucket.waiting[queue].front() == Some(&ticket);
            let unlimited = bucket.rate == 0;
            if unlimited || (my_turn && bucket.tokens >= cost) {
                if my_turn {
                    bucket.waiting[queue].pop_front();
                    bucket.tokens = bucket.tokens.saturating_sub(cost);
                    bucket.high_in_a_row = if queue == 0 {
                        bucket.high_in_a_row.saturating_add(1)
                    } else {
                        0
                    };
                } else {
                    bucket.waiting[queue].retain(|t| *t != ticket);
                }
                let piece = if unlimited { left } else { piece };
                self.passed.fetch_add(piece, Relaxed);
                return piece;
            }
            let missing = cost.saturating_sub(bucket.tokens);
            let sleep = if my_turn {
                missing.div_ceil(u128::from(bucket.rate))
            } else {
                // The head of the queue passes in at most a twentieth of a second. This request
                // looks again well before that.
                1_000
            };
            let sleep = Duration::from_micros(u64::try_from(sleep).unwrap_or(u64::MAX));
            drop(bucket);
            self.clock.sleep(sleep.min(MAX_SLEEP));
            // On a manual clock the sleep took no time, so the thread at the head of the queue must
            // run.
            std::thread::yield_now();
            bucket = self.bucket.lock();
        }
    }
}
