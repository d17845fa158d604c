//! Budgets shared by all engines: the memory ledger, open files, background I/O.
//!
//! Promises: what a [`Reservation`] booked is given back exactly once, whatever path drops it; the ledger never
//! loses or invents a byte. Nobody waits inside a budget except in [`RateLimiter::acquire`].

use crate::clock::Clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use basalt_fs::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memtables, mutable and sealed.
    Memtable,
    /// The block cache.
    Cache,
    /// Blocks and values held by readers beyond the cache.
    Pinned,
    /// Staging buffers of logs, flushes and compactions, and write buffers of a filesystem in an
    /// image.
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

struct Ledger {
    budget: u64,
    /// The cache's part: other kinds may not grow into it while the cache is still filling, because the cache
    /// would then have to grow past the budget.
    cache_part: AtomicU64,
    by_kind: [AtomicU64; 5],
    /// All kinds but the cache, together.
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
            "memory ledger: {bytes} bytes of {kind:?} given back, {before} booked"
        );
    }
}

/// One ledger for all memory that engines use: reserved before it is allocated. Cheap to clone.
///
/// The block cache's part of the budget (its capacity, at most three quarters of the budget) is kept free for it
/// while it is still filling, so that a cache that warms up never pushes the whole past the budget.
#[derive(Clone)]
pub struct MemoryLedger(Arc<Ledger>);

/// Bytes booked in a ledger; given back when dropped.
pub struct Reservation {
    ledger: Arc<Ledger>,
    kind: MemoryKind,
    bytes: u64,
}

impl MemoryLedger {
    /// A ledger with a budget in bytes.
    pub fn new(budget: u64) -> MemoryLedger {
        MemoryLedger(Arc::new(Ledger {
            budget,
            cache_part: AtomicU64::new(0),
            by_kind: Default::default(),
            others: AtomicU64::new(0),
        }))
    }
    /// Books bytes if they fit the budget; `None` when they do not.
    pub fn try_reserve(&self, kind: MemoryKind, bytes: u64) -> Option<Reservation> {
        self.0.try_add(kind, bytes).then(|| Reservation {
            ledger: self.0.clone(),
            kind,
            bytes,
        })
    }
    /// Books bytes even past the budget: for what must not fail, such as applying a write that is already durable.
    pub fn reserve(&self, kind: MemoryKind, bytes: u64) -> Reservation {
        self.0.add(kind, bytes);
        Reservation {
            ledger: self.0.clone(),
            kind,
            bytes,
        }
    }
    /// Bytes in use.
    pub fn usage(&self) -> LedgerUse {
        let of = |kind: MemoryKind| self.0.by_kind[kind as usize].load(Relaxed);
        LedgerUse {
            memtable: of(MemoryKind::Memtable),
            cache: of(MemoryKind::Cache),
            pinned: of(MemoryKind::Pinned),
            buffer: of(MemoryKind::Buffer),
            client: of(MemoryKind::Client),
            budget: self.0.budget,
        }
    }
    /// Past the budget by so many bytes; engines flush or slow down in answer. The cache counts with what it holds or
    /// with the part kept for it, whichever is more.
    pub fn over_budget(&self) -> u64 {
        (self.0.others.load(Relaxed) + self.0.cache_claim()).saturating_sub(self.0.budget)
    }
    /// What may still be booked by [`MemoryLedger::try_reserve`] for anything but the cache, in bytes.
    pub fn free(&self) -> u64 {
        self.0
            .budget
            .saturating_sub(self.0.others.load(Relaxed) + self.0.cache_claim())
    }
    /// What all kinds but the cache may hold together, in bytes.
    pub fn room(&self) -> u64 {
        self.0.budget.saturating_sub(self.0.cache_claim())
    }
    /// Books what readers keep of a cache's memory; [`MemoryLedger::unpin`] gives it back.
    pub(crate) fn pin(&self, bytes: u64) {
        self.0.add(MemoryKind::Pinned, bytes);
    }
    /// See [`MemoryLedger::pin`].
    pub(crate) fn unpin(&self, bytes: u64) {
        self.0.sub(MemoryKind::Pinned, bytes);
    }
    /// Keeps `bytes` more of the budget for a cache.
    pub(crate) fn widen_cache_part(&self, bytes: u64) {
        self.0.cache_part.fetch_add(bytes, Relaxed);
    }
    /// Takes back what [`MemoryLedger::widen_cache_part`] gave.
    pub(crate) fn narrow_cache_part(&self, bytes: u64) {
        self.0.cache_part.fetch_sub(bytes, Relaxed);
    }
}

impl Reservation {
    /// Grows or shrinks the booking, past the budget if need be.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.ledger.add(self.kind, bytes - self.bytes);
        } else if bytes < self.bytes {
            self.ledger.sub(self.kind, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
    /// Grows or shrinks the booking; false, and nothing changed, when the growth does not fit the budget.
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
    /// Ties the booking to memory: it ends when the last part of the returned bytes goes.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Booked {
            bytes,
            _booked: self,
        })
    }
    /// Bytes booked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// What they are booked for.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Memory with its booking.
struct Booked {
    bytes: Bytes,
    _booked: Reservation,
}

impl AsRef<[u8]> for Booked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Files {
    limit: usize,
    open: AtomicUsize,
}

/// How many files engines may hold open together. Cheap to clone.
#[derive(Clone)]
pub struct OpenFiles(Arc<Files>);

impl OpenFiles {
    /// A budget of `limit` files.
    pub fn new(limit: usize) -> OpenFiles {
        OpenFiles(Arc::new(Files {
            limit,
            open: AtomicUsize::new(0),
        }))
    }
    /// The limit.
    pub fn limit(&self) -> usize {
        self.0.limit
    }
    /// Counts one file as open and returns true when the total is now above the limit, so that the caller closes an idle one.
    pub fn opened(&self) -> bool {
        self.0.open.fetch_add(1, Relaxed) + 1 > self.0.limit
    }
    /// Counts one file as closed.
    pub fn closed(&self) {
        let before = self.0.open.fetch_sub(1, Relaxed);
        assert!(before > 0, "open files: one more closed than opened");
    }
    /// Files open now.
    pub fn count(&self) -> usize {
        self.0.open.load(Relaxed)
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

/// Waits shorter than this are cut to it, so that a change of rate and a turn in the queue are noticed soon.
const LONGEST_NAP: Duration = Duration::from_millis(20);
/// After so many High grants in a row one Low request passes.
const HIGH_IN_A_ROW: u32 = 8;
/// Tokens are counted in millionths of a byte: rate times microseconds is then exact.
const MICRO: u128 = 1_000_000;

/// A budget: what it allows and what is used of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse {
    /// Snake case, unit last.
    pub name: &'static str,
    /// In use now.
    pub used: u64,
    /// Allowed; 0 for no limit.
    pub limit: u64,
}

struct Limiter {
    clock: Clock,
    /// Also in `Bucket`; here so that an unlimited `acquire` takes no lock.
    rate: AtomicU64,
    passed: AtomicU64,
    /// By priority: microseconds that requests have waited.
    waited_us: [AtomicU64; 2],
    /// When [`RateLimiter::recent_rate`] was asked last, and what had passed then.
    asked: Mutex<(Duration, u64, u64)>,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    rate: u64,
    tokens: u128,
    filled_at: Duration,
    next_ticket: u64,
    waiting: [VecDeque<u64>; 2],
    high_in_a_row: u32,
}

impl Bucket {
    /// The bucket holds a tenth of a second.
    fn depth(&self) -> u128 {
        u128::from((self.rate / 10).max(1)) * MICRO
    }
    /// A request passes in pieces of at most a twentieth of a second, so that a big one does not hold up others.
    fn piece(&self) -> u64 {
        (self.rate / 20).max(1)
    }
    fn fill(&mut self, now: Duration) {
        let us = now.saturating_sub(self.filled_at).as_micros();
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + u128::from(self.rate) * us).min(self.depth());
    }
    /// Which queue's head is next: High, unless Low has waited for too many of them.
    fn turn(&self) -> usize {
        let [high, low] = &self.waiting;
        let low_due = high.is_empty() || self.high_in_a_row >= HIGH_IN_A_ROW;
        usize::from(!low.is_empty() && low_due)
    }
}

/// A token bucket over background I/O. Cheap to clone.
///
/// Requests wait in two queues, first come, first served within each. Big requests are split and queue again for
/// each piece, so that several compactions share the rate; one Low piece passes after every eight High ones, so
/// that no one starves.
#[derive(Clone)]
pub struct RateLimiter(Arc<Limiter>);

impl RateLimiter {
    /// `bytes_per_s` of 0 means no limit.
    pub fn new(bytes_per_s: u64, clock: Clock) -> RateLimiter {
        RateLimiter(Arc::new(Limiter {
            rate: AtomicU64::new(bytes_per_s),
            passed: AtomicU64::new(0),
            waited_us: Default::default(),
            asked: Mutex::new((clock.now(), 0, 0)),
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

    /// Waits until `bytes` may pass. High goes before Low.
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

    /// Changes the rate; 0 lifts it, also for those who wait at present.
    pub fn set_rate(&self, bytes_per_s: u64) {
        let limiter = &*self.0;
        let mut bucket = limiter.bucket.lock();
        bucket.fill(limiter.clock.now());
        bucket.rate = bytes_per_s;
        bucket.tokens = bucket.tokens.min(bucket.depth());
        limiter.rate.store(bytes_per_s, Relaxed);
    }

    /// The rate in bytes a second; 0 for no limit.
    pub fn rate(&self) -> u64 {
        self.0.rate.load(Relaxed)
    }

    /// Bytes passed so far.
    pub fn passed(&self) -> u64 {
        self.0.passed.load(Relaxed)
    }

    /// How long requests of a priority have waited so far, all together.
    pub fn waited(&self, priority: IoPriority) -> Duration {
        Duration::from_micros(self.0.waited_us[priority as usize].load(Relaxed))
    }

    /// Bytes a second that passed between the last two questions, which count when they are a second or more apart.
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
            // Asked again in each round: the rate may have changed, and with it the size of a piece.
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
            let nap = if my_turn {
                missing.div_ceil(u128::from(bucket.rate))
            } else {
                // Whoever is at the head passes in at most a twentieth of a second; look again well before.
                1_000
            };
            let nap = Duration::from_micros(u64::try_from(nap).unwrap_or(u64::MAX));
            drop(bucket);
            self.clock.sleep(nap.min(LONGEST_NAP));
            // On a manual clock the sleep took no time: let the one whose turn it is run.
            std::thread::yield_now();
            bucket = self.bucket.lock();
        }
    }
}
