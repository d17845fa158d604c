//! The block cache: one load for all readers of a block, reads of blocks while they are evicted,
//! pinned and removed blocks, and a capacity that changes meanwhile.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use crate::locks::assert_taken;
use basalt_env::sync::yield_now;
use basalt_env::{BlockCache, CacheKey, CachePriority, MemoryLedger};
use basalt_fs::{Bytes, Error};
use basalt_sim::{campaign, repeat};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const KEYS: u64 = 4;
/// Number of threads. Each has a key of its own behind those, which only this thread inserts, pins
/// and removes.
const THREADS: u64 = 3;

fn key(n: u64) -> CacheKey {
    CacheKey {
        file: 7,
        offset: n * 4096,
    }
}

fn block(n: u64, life: u64) -> Bytes {
    let mut bytes = vec![n as u8; 900];
    bytes[..8].copy_from_slice(&life.to_le_bytes());
    Bytes::from(bytes)
}

/// Checks that the bytes are a block of this key, and not one that was removed before the lookup
/// began.
fn check(n: u64, bytes: &Bytes) {
    assert_eq!(bytes.len(), 900);
    assert!(bytes[8..].iter().all(|b| *b == n as u8), "another's block");
}

/// Counts of the model's loads, by key.
#[derive(Default)]
struct Loads {
    flying: [AtomicU64; KEYS as usize],
    landed: [AtomicU64; KEYS as usize],
}

fn ask(cache: &BlockCache, loads: &Loads, n: u64, ends: u64) {
    let at = n as usize;
    let asked = catch_unwind(AssertUnwindSafe(|| {
        cache.get_or_load(key(n), CachePriority::Normal, || {
            let others = loads.flying[at].fetch_add(1, SeqCst);
            assert_eq!(others, 0, "a block is loaded by one at a time");
            yield_now();
            loads.flying[at].fetch_sub(1, SeqCst);
            match ends {
                0 => Err(Error::invalid("a load that fails")),
                1 => std::panic::resume_unwind(Box::new("a load that panics")),
                _ => Ok(block(n, loads.landed[at].fetch_add(1, SeqCst))),
            }
        })
    }));
    match asked {
        Ok(Ok(bytes)) => check(n, &bytes),
        Ok(Err(e)) => assert!(e.to_string().contains("a load that fails"), "{e}"),
        Err(panic) => {
            let ours = panic.downcast_ref() == Some(&"a load that panics");
            assert!(
                ours && ends == 1,
                "only the thread that panics sees the panic"
            );
        }
    }
}

/// Pins the block of a thread's own key, or checks the one that it has pinned. However other
/// threads fill the cache and change its capacity, a pinned block stays until it is removed.
fn keep(cache: &BlockCache, own: u64, life: u64, kept: &mut Option<Bytes>, totals: &Counts) {
    let Some(held) = kept else {
        let held = cache.insert(key(own), block(own, life), 900, CachePriority::High);
        yield_now();
        if cache.pin(key(own)) {
            count(totals, 2, 1);
            *kept = Some(held);
        }
        return;
    };
    let found = cache.get(key(own)).expect("a pinned block is here");
    assert_eq!(&found, held, "the one that was pinned");
    assert!(cache.pin(key(own)), "once more changes nothing");
    if percent(40) {
        cache.remove(key(own));
        assert!(cache.get(key(own)).is_none(), "it was taken out");
        *kept = None;
    }
}

fn model(totals: &Counts) {
    let ledger = MemoryLedger::new(64 << 20);
    // The capacity has room for all blocks, for some, or for none.
    let plenty = percent(40);
    let capacity = if plenty { 1 << 20 } else { below(4) * 1500 };
    let cache = BlockCache::new(capacity, ledger.clone());
    let loads = Arc::new(Loads::default());
    // With plenty of room and loads that succeed, each block is loaded once.
    let (once, resizes) = (plenty && percent(50), percent(40));
    let mut threads = Vec::new();
    for own in KEYS..KEYS + THREADS {
        let (cache, loads, totals) = (cache.clone(), loads.clone(), totals.clone());
        threads.push(shuttle::thread::spawn(move || {
            let mut read = Vec::new();
            let mut kept = None;
            for life in 0..5 {
                let n = below(if once { 2 } else { KEYS });
                match below(14) {
                    _ if once => ask(&cache, &loads, n, 2),
                    0..5 => ask(&cache, &loads, n, below(5)),
                    5..7 => read.extend(cache.get(key(n)).map(|b| (n, b))),
                    7 => {
                        let life = loads.landed[n as usize].fetch_add(1, SeqCst);
                        let held = cache.insert(key(n), block(n, life), 900, CachePriority::Low);
                        read.push((n, held));
                    }
                    8 => cache.remove(key(n)),
                    10.. => keep(&cache, own, life, &mut kept, &totals),
                    _ if resizes => {
                        // The capacity goes from one shard to two and back.
                        let bytes = [0, 2000, 5000, 16 << 20][below(4) as usize];
                        cache.set_capacity(bytes);
                    }
                    _ => assert!(cache.stats().used <= 16 << 20),
                }
            }
            read.iter().for_each(|(n, b)| check(*n, b));
            kept.map(|bytes| (own, bytes))
        }));
    }
    let mut kept = Vec::new();
    for thread in threads {
        kept.extend(thread.join().unwrap());
    }
    let stats = cache.stats();
    // In a cache of one shard the pinned blocks alone may exceed the capacity, after it was
    // lowered.
    let pinned: u64 = stats.pinned;
    assert!(stats.used <= stats.capacity + pinned, "{stats:?}");
    assert_eq!(pinned > 0, !kept.is_empty(), "{stats:?}");
    for (own, held) in kept {
        assert_eq!(cache.get(key(own)), Some(held), "pinned, and left so");
        cache.remove(key(own));
    }
    let stats = cache.stats();
    let usage = ledger.usage();
    assert_eq!(stats.pinned, 0, "nothing is pinned any more");
    assert!(stats.used <= stats.capacity, "{stats:?}");
    assert_eq!(usage.cache, stats.used, "the ledger knows what is held");
    assert_eq!(usage.pinned, 0, "no reader is left");
    let landed = |n: u64| loads.landed[n as usize].load(SeqCst);
    if once {
        assert!((0..2).all(|n| landed(n) <= 1), "loaded again");
    }
    cache.set_capacity(0);
    let usage = ledger.usage();
    assert_eq!((usage.cache, usage.pinned), (0, 0), "all is given back");
    count(totals, 0, shuttle::current::context_switches() as u64);
    count(totals, 1, (0..KEYS).map(landed).sum());
}

#[test]
fn the_block_cache_is_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..100 * campaign::scale()) {
        let _repeat = repeat!(
            the_block_cache_is_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE;
    }
    basalt_sim::campaign!(
        "cache_schedules={schedules} steps={} blocks={} pinned={}",
        counted(&totals, 0),
        counted(&totals, 1),
        counted(&totals, 2)
    );
    if campaign::case().is_none() {
        assert_taken(&["single_flight::Load", "single_flight::LoadProgress"]);
        let pinned = counted(&totals, 2) as usize;
        assert!(pinned >= schedules / 4, "too few pin anything");
    }
}
