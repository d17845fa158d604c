//! Promises of the ledger, the open-file count and the I/O limit.

mod support;

use basalt_env::{
    Clock, IoPriority, LedgerUse, ManualClock, MemoryKind, MemoryLedger, OpenFiles, Random,
    RateLimiter,
};
use basalt_sim::campaign::scale;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const KINDS: [MemoryKind; 6] = [
    MemoryKind::Memtable,
    MemoryKind::Cache,
    MemoryKind::Pinned,
    MemoryKind::Buffer,
    MemoryKind::Client,
    MemoryKind::Index,
];

#[test]
fn a_reservation_is_granted_or_refused_and_released_on_drop() {
    let ledger = MemoryLedger::new(100);
    let mut a = ledger.try_reserve(MemoryKind::Memtable, 60).unwrap();
    assert!(ledger.try_reserve(MemoryKind::Buffer, 41).is_none());
    let b = ledger.try_reserve(MemoryKind::Buffer, 40).unwrap();
    assert_eq!((ledger.free(), ledger.over_budget()), (0, 0));
    let c = ledger.reserve(MemoryKind::Client, 7);
    assert_eq!(ledger.over_budget(), 7);
    let mut expected = LedgerUse::default();
    (expected.memtable, expected.buffer, expected.client) = (60, 40, 7);
    expected.budget = 100;
    assert_eq!(ledger.usage(), expected);
    assert!(!a.try_resize(61));
    a.resize(70);
    assert_eq!(ledger.over_budget(), 17);
    assert!(a.try_resize(10));
    assert_eq!((a.bytes(), a.kind()), (10, MemoryKind::Memtable));
    assert_eq!(ledger.usage().total(), 57);
    drop((a, b, c));
    assert_eq!(ledger.usage().total(), 0);
    // Sizes that would wrap are refused.
    let _held = ledger.reserve(MemoryKind::Pinned, 5);
    assert!(ledger.try_reserve(MemoryKind::Pinned, u64::MAX).is_none());
}

#[test]
fn the_ledger_is_exact_and_bounded_under_many_threads() {
    let budget = 1000;
    let ledger = MemoryLedger::new(budget);
    basalt_env::thread::scope(|scope| {
        for seed in 0..4 {
            let ledger = ledger.clone();
            scope.spawn(move || {
                let random = Random::from_seed(seed);
                let mut held = Vec::new();
                for _ in 0..20_000 * scale() {
                    let kind = KINDS[random.below(KINDS.len() as u64) as usize];
                    match random.below(4) {
                        0 | 1 => held.extend(ledger.try_reserve(kind, random.below(200))),
                        2 if !held.is_empty() => {
                            drop(held.swap_remove(random.below(held.len() as u64) as usize));
                        }
                        _ if !held.is_empty() => {
                            let at = random.below(held.len() as u64) as usize;
                            let size = random.below(200);
                            if held[at].try_resize(size) {
                                assert_eq!(held[at].bytes(), size);
                            }
                        }
                        _ => {}
                    }
                    if held.len() > 20 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert_eq!(ledger.usage().total(), 0);
    assert_eq!(ledger.free(), budget);
}

#[test]
fn the_open_file_count_says_when_a_file_must_be_closed() {
    let files = OpenFiles::new(2);
    assert!(!files.opened());
    assert!(!files.opened());
    assert!(files.opened());
    assert_eq!((files.count(), files.limit()), (3, 2));
    files.closed();
    files.closed();
    assert!(!files.opened());
}

#[test]
fn the_io_limit_is_exact_on_a_manual_clock() {
    for (rate, requests) in [
        (1_000_000, vec![4096; 1000]),
        (1_000_000, vec![10_000_000]),
        (333, vec![1, 5, 700, 2]),
        (10_000_000_000, vec![1 << 30, 1 << 32]),
        (1, vec![3]),
    ] {
        let clock = Clock::manual(ManualClock::new(0));
        let limit = RateLimiter::new(rate, clock.clone());
        let total: u64 = requests.iter().sum();
        for bytes in requests {
            limit.acquire(bytes, IoPriority::Low);
        }
        assert_eq!(limit.passed(), total);
        // The rate is not exceeded, and each wait is at most a microsecond too long.
        let exact = total as f64 / rate as f64;
        let took = clock.now().as_secs_f64();
        assert!(took >= exact - 1e-6, "rate {rate}: {took} s for {exact}");
        assert!(
            took <= exact * 1.01 + 0.001,
            "rate {rate}: {took} s for {exact}"
        );
    }
}

#[test]
fn unused_io_rate_is_saved_for_a_tenth_of_a_second() {
    let manual_clock = ManualClock::new(0);
    let clock = Clock::manual(manual_clock.clone());
    let limit = RateLimiter::new(1000, clock.clone());
    manual_clock.advance(Duration::from_secs(60));
    limit.acquire(100, IoPriority::High);
    assert_eq!(clock.now(), Duration::from_secs(60));
    limit.acquire(500, IoPriority::High);
    assert_eq!(clock.now(), Duration::from_millis(60_500));
}

#[test]
fn an_unlimited_rate_never_waits_and_the_rate_can_change() {
    let clock = Clock::manual(ManualClock::new(0));
    let limit = RateLimiter::new(0, clock.clone());
    limit.acquire(u64::MAX / 2, IoPriority::Low);
    assert_eq!(clock.now(), Duration::ZERO);
    limit.set_rate(1000);
    let before = limit.passed();
    limit.acquire(1000, IoPriority::Low);
    assert_eq!(limit.passed() - before, 1000);
    assert_eq!(clock.now(), Duration::from_secs(1));
    limit.set_rate(0);
    assert_eq!(limit.rate(), 0);
    limit.acquire(1 << 40, IoPriority::Low);
    assert_eq!(clock.now(), Duration::from_secs(1));
}

#[test]
fn lifting_the_limit_releases_waiting_threads() {
    let limit = RateLimiter::new(1, Clock::system());
    basalt_env::thread::scope(|scope| {
        for priority in [IoPriority::High, IoPriority::Low, IoPriority::Low] {
            let limit = limit.clone();
            scope.spawn(move || limit.acquire(1 << 30, priority));
        }
        std::thread::yield_now();
        limit.set_rate(0);
    });
    assert_eq!(limit.passed(), 3 << 30);
}

#[test]
fn high_priority_io_goes_first_and_low_is_not_starved() {
    // Time moves only by the sleeps of the waiting threads, so the rate is in short supply
    // throughout.
    let clock = Clock::manual(ManualClock::new(0));
    let limit = RateLimiter::new(1_000_000, clock);
    let (high, low) = (AtomicU64::new(0), AtomicU64::new(0));
    let low_when_high_ended = basalt_env::thread::scope(|scope| {
        let lows: Vec<_> = (0..2)
            .map(|_| {
                let (limit, low) = (limit.clone(), &low);
                scope.spawn(move || {
                    for _ in 0..400 {
                        limit.acquire(10_000, IoPriority::Low);
                        low.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        let highs: Vec<_> = (0..2)
            .map(|_| {
                let (limit, high) = (limit.clone(), &high);
                scope.spawn(move || {
                    for _ in 0..400 {
                        limit.acquire(10_000, IoPriority::High);
                        high.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        for t in highs {
            t.join().unwrap();
        }
        let at = low.load(SeqCst);
        for t in lows {
            t.join().unwrap();
        }
        at
    });
    assert_eq!((high.load(SeqCst), low.load(SeqCst)), (800, 800));
    assert_eq!(limit.passed(), 16_000_000);
    // The share of Low depends on how threads were scheduled. That all requests ended shows that
    // none starved.
    basalt_sim::campaign!(
        "low requests passed while high ones waited: {low_when_high_ended} of 800"
    );
}

#[test]
fn io_wait_time_is_counted_exactly_by_priority() {
    let manual_clock = ManualClock::new(0);
    let limit = RateLimiter::new(1_000_000, Clock::manual(manual_clock.clone()));
    limit.acquire(500_000, IoPriority::High);
    assert_eq!(limit.waited(IoPriority::High), Duration::from_millis(500));
    assert_eq!(limit.waited(IoPriority::Low), Duration::ZERO);
    // A changed rate takes effect at once.
    limit.set_rate(250_000);
    limit.acquire(500_000, IoPriority::Low);
    assert_eq!(limit.waited(IoPriority::Low), Duration::from_secs(2));
    assert_eq!(limit.waited(IoPriority::High), Duration::from_millis(500));
    // Without a limit, no request waits.
    limit.set_rate(0);
    limit.acquire(1 << 40, IoPriority::Low);
    assert_eq!(limit.waited(IoPriority::Low), Duration::from_secs(2));
    // The recent rate covers two calls at least a second apart.
    limit.recent_rate();
    manual_clock.advance(Duration::from_secs(4));
    limit.acquire(4_000, IoPriority::High);
    assert_eq!(limit.recent_rate(), 1_000);
    limit.acquire(1 << 30, IoPriority::High);
    assert_eq!(limit.recent_rate(), 1_000, "asked again within the second");
}
