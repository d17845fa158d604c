//! Promises of the block cache: the right bytes or none, the capacity, which blocks are kept
//! longer, one load for many threads.

mod support;

use basalt_env::{BlockCache, CacheKey, CachePriority, MemoryLedger, Random};
use basalt_fs::{Bytes, Error, ErrorKind};
use basalt_sim::campaign::scale;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use CachePriority::*;

/// More bytes than an entry's overhead, for tests that count entries.
const OVERHEAD: u64 = 304;

fn key(file: u128, block: u64) -> CacheKey {
    CacheKey {
        file,
        offset: block * 4096,
    }
}

/// Returns bytes that show which key they belong to.
fn block(key: CacheKey, len: usize) -> Bytes {
    let mut bytes = vec![0; len.max(24)];
    bytes[..16].copy_from_slice(&key.file.to_le_bytes());
    bytes[16..24].copy_from_slice(&key.offset.to_le_bytes());
    Bytes::from(bytes)
}

fn check(key: CacheKey, bytes: &Bytes, context: &str) {
    assert_eq!(bytes[..16], key.file.to_le_bytes(), "{context}");
    assert_eq!(bytes[16..24], key.offset.to_le_bytes(), "{context}");
}

fn cache(capacity: u64) -> (BlockCache, MemoryLedger) {
    let ledger = MemoryLedger::new(1 << 40);
    (BlockCache::new(capacity, ledger.clone()), ledger)
}

#[test]
fn a_random_history_agrees_with_a_model() {
    for seed in basalt_sim::campaign::cases(0..30 * scale()) {
        let _repeat =
            basalt_sim::repeat!(a_random_history_agrees_with_a_model, "BASALT_CASE={seed}");
        let context = format!("repeat with seed {seed}");
        let random = Random::from_seed(seed);
        let mut capacity = random.below(40 << 20) >> random.below(12);
        let (cache, ledger) = cache(capacity);
        // The blocks that were inserted and not removed. Only these may be found.
        let mut model: BTreeMap<(u128, u64), usize> = BTreeMap::new();
        let files: Vec<u128> = (0..4).map(|_| random.next_u128()).collect();
        let blocks = 1 + random.below(2000);
        let longest = 1 + random.below(60_000);
        let (mut hits, mut misses) = (0, 0);
        for _ in 0..4000 {
            let k = key(files[random.below(4) as usize], random.below(blocks));
            let id = (k.file, k.offset);
            match random.below(100) {
                0..45 => match cache.get(k) {
                    Some(found) => {
                        hits += 1;
                        check(k, &found, &context);
                        assert_eq!(Some(&found.len()), model.get(&id), "{context}");
                    }
                    None => misses += 1,
                },
                45..90 => {
                    let len = 24 + random.below(longest) as usize;
                    let priority = [High, Normal, Low][random.below(3) as usize];
                    cache.insert(k, block(k, len), len, priority);
                    let fits = len as u64 + 512 <= capacity.min(8 << 20) / 2;
                    if fits {
                        assert!(cache.contains(k), "{context}: inserted and not here");
                    }
                    // A block that is too large is not kept, but an earlier one of the key may be.
                    if cache.contains(k) && fits {
                        model.insert(id, len);
                    } else if !fits {
                        cache.remove(k);
                        model.remove(&id);
                    }
                }
                90..97 => {
                    cache.remove(k);
                    model.remove(&id);
                    assert!(!cache.contains(k), "{context}");
                }
                _ if random.one_in(8) => {
                    capacity = random.below(40 << 20) >> random.below(12);
                    cache.set_capacity(capacity);
                }
                _ => {}
            }
            let stats = cache.stats();
            assert!(stats.used <= capacity, "{context}: {stats:?}");
            assert!(stats.used_high <= stats.used, "{context}");
            assert_eq!(ledger.usage().cache, stats.used, "{context}");
            assert_eq!((stats.hits, stats.misses), (hits, misses), "{context}");
        }
        cache.set_capacity(0);
        assert_eq!(cache.stats().used, 0, "{context}");
        assert_eq!(ledger.usage().total(), 0, "{context}");
    }
}

#[test]
fn blocks_stay_while_they_fit_also_when_shards_change() {
    let (cache, ledger) = cache(512 << 20);
    let keys: Vec<_> = (0..5000).map(|n| key(77 + n / 1000, n as u64)).collect();
    for (n, k) in keys.iter().enumerate() {
        cache.insert(*k, block(*k, 1000), 1000, [High, Normal, Low][n % 3]);
    }
    for capacity in [8 << 20, 1 << 30, 16 << 20, 64 << 20] {
        cache.set_capacity(capacity);
        for k in &keys {
            check(*k, &cache.get(*k).expect("it fits"), "resize");
        }
        assert_eq!(ledger.usage().cache, cache.stats().used);
    }
    assert_eq!(cache.stats().evictions, 0);
    drop(cache);
    assert_eq!(ledger.usage().total(), 0);
}

#[test]
fn high_priority_blocks_outlive_scans_and_many_data_blocks() {
    let (cache, _) = cache(1 << 20);
    let high: Vec<_> = (0..64).map(|n| key(1, n)).collect();
    for k in &high {
        cache.insert(*k, block(*k, 4096), 4096, High);
    }
    for n in 0..5000 {
        let k = key(2, n);
        cache.insert(k, block(k, 4096), 4096, Low);
        assert!(cache.get(k).is_some(), "the newest is here");
    }
    for n in 0..1000 {
        let k = key(3, n);
        cache.insert(k, block(k, 4096), 4096, Normal);
    }
    assert!(high.iter().all(|k| cache.contains(*k)));
    assert!(cache.stats().used_high >= 64 * 4096);
}

#[test]
fn a_low_priority_scan_evicts_about_one_data_block() {
    let (cache, _) = cache(1 << 20);
    for n in 0..1000 {
        let k = key(1, n);
        cache.insert(k, block(k, 4096), 4096, Normal);
    }
    let before: Vec<_> = (0..1000).filter(|n| cache.contains(key(1, *n))).collect();
    assert!(before.len() > 230, "{}", before.len());
    for n in 0..10_000 {
        let k = key(2, n);
        cache.insert(k, block(k, 4096), 4096, Low);
    }
    let after = before
        .iter()
        .filter(|n| cache.contains(key(1, **n)))
        .count();
    assert!(after + 2 >= before.len(), "{after} of {}", before.len());
}

#[test]
fn hot_data_outlives_a_scan_even_without_the_hint() {
    let (cache, _) = cache(4 << 20);
    let random = Random::from_seed(5);
    let hot = 400u64;
    let (mut asked, mut found) = (0, 0);
    for round in 0..200_000u64 {
        let scanned = key(2, round);
        if round % 2 == 0 {
            cache.insert(scanned, block(scanned, 4096), 4096, Normal);
            continue;
        }
        let k = key(1, random.below(hot));
        let here = cache
            .get_or_load(k, Normal, || {
                asked += 1;
                Ok(block(k, 4096))
            })
            .expect("no error");
        check(k, &here, "hot");
        found += 1;
    }
    // The hot data has 1.6 MiB of 4 MiB, beside a scan of 400 MiB.
    assert!(asked * 50 < found, "{asked} loads of {found}");
}

#[test]
fn high_priority_blocks_are_evicted_last_and_age() {
    let (cache, _) = cache(1 << 20);
    for n in 0..100 {
        let k = key(1, n);
        cache.insert(k, block(k, 4096), 4096, High);
    }
    let live = key(1, 0);
    for n in 0..8000 {
        let k = key(2, n);
        cache.insert(k, block(k, 4096), 4096, Normal);
        assert!(cache.get(live).is_some(), "after {n}");
    }
    let left = (0..100).filter(|n| cache.contains(key(1, *n))).count();
    assert_eq!(left, 1, "the one in use stays, the others went in time");
    // High blocks alone may fill the cache, and are then a clock.
    for n in 0..1000 {
        let k = key(3, n);
        cache.insert(k, block(k, 4096), 4096, High);
        assert!(cache.contains(k));
    }
    let stats = cache.stats();
    assert!(stats.used_high * 10 > stats.capacity * 7, "{stats:?}");
}

#[test]
fn a_block_of_the_whole_capacity_fits_and_a_larger_one_is_not_kept() {
    for capacity in [1000, 100_000, 8 << 20, 15 << 20] {
        let (cache, _) = cache(capacity);
        let len = capacity as usize - OVERHEAD as usize;
        for n in 0..3 {
            cache.insert(
                key(1, n),
                block(key(1, n), 100),
                len,
                [Low, Normal, High][n as usize],
            );
            assert!(cache.contains(key(1, n)), "capacity {capacity}");
        }
        cache.insert(key(2, 0), block(key(2, 0), 100), capacity as usize, High);
        assert!(!cache.contains(key(2, 0)));
        assert!(cache.stats().used <= capacity);
    }
    let (cache, ledger) = cache(0);
    cache.insert(key(1, 1), block(key(1, 1), 100), 100, High);
    assert!(cache.get(key(1, 1)).is_none());
    assert!(
        cache
            .get_or_load(key(1, 1), High, || Ok(block(key(1, 1), 9)))
            .is_ok()
    );
    assert_eq!(ledger.usage().total(), 0);
    cache.insert(key(1, 1), block(key(1, 1), 100), usize::MAX, High);
}

#[test]
fn concurrent_lookups_of_one_block_share_one_load() {
    let (cache, _) = cache(64 << 20);
    let rounds = 100 * scale();
    let loads = AtomicUsize::new(0);
    let start = Barrier::new(4);
    basalt_env::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..rounds {
                    let k = key(1, n);
                    start.wait();
                    let found = cache.get_or_load(k, Normal, || {
                        loads.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        Ok(block(k, 100))
                    });
                    check(k, &found.expect("no error"), "shared load");
                }
            });
        }
    });
    assert_eq!(loads.load(SeqCst) as u64, rounds);
}

#[test]
fn an_error_or_a_panic_while_loading_is_not_kept() {
    let (cache, _) = cache(1 << 20);
    let k = key(1, 1);
    let failed = cache.get_or_load(k, Normal, || Err(Error::new(ErrorKind::Io, "no luck")));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.get_or_load(k, Normal, || panic!("while loading"))
    }));
    assert!(panicked.is_err());
    // A load may itself ask for other blocks, and even for its own.
    let found = cache.get_or_load(k, Normal, || {
        cache.get_or_load(key(1, 2), High, || Ok(block(key(1, 2), 50)))?;
        cache.get_or_load(k, Normal, || Ok(block(k, 50)))
    });
    check(k, &found.expect("no error"), "nested");
    assert!(cache.contains(k) && cache.contains(key(1, 2)));
}

#[test]
fn concurrent_lookups_are_right_while_the_capacity_changes() {
    let (cache, ledger) = cache(2 << 20);
    let rounds = 15_000 * scale();
    let busiest = AtomicU64::new(0);
    basalt_env::thread::scope(|scope| {
        for seed in 0..4 {
            let (cache, busiest) = (&cache, &busiest);
            scope.spawn(move || {
                let random = Random::from_seed(seed);
                for _ in 0..rounds {
                    let k = key(u128::from(random.below(3)), random.below(3000));
                    let context = "four threads";
                    match random.below(20) {
                        0..8 => {
                            if let Some(found) = cache.get(k) {
                                check(k, &found, context);
                            }
                        }
                        8..12 => {
                            let priority = [High, Normal, Low][random.below(3) as usize];
                            let len = 24 + random.below(8000) as usize;
                            cache.insert(k, block(k, len), len, priority);
                        }
                        12..18 => {
                            let loaded = cache.get_or_load(k, Normal, || {
                                if random.one_in(10) {
                                    return Err(Error::new(ErrorKind::Io, "now and then"));
                                }
                                Ok(block(k, 3000))
                            });
                            if let Ok(found) = loaded {
                                check(k, &found, context);
                            }
                        }
                        18 => cache.remove(k),
                        _ if random.one_in(50) => {
                            cache.set_capacity((1 << 20) << random.below(6));
                        }
                        _ => {
                            busiest.fetch_max(cache.stats().used, SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert!(busiest.load(SeqCst) <= 32 << 20);
    assert_eq!(ledger.usage().cache, cache.stats().used);
    cache.set_capacity(0);
    assert_eq!(ledger.usage().total(), 0);
}

#[test]
fn the_cache_keeps_its_part_of_the_budget_while_it_fills() {
    use basalt_env::MemoryKind::{Cache, Memtable};
    let ledger = MemoryLedger::new(100_000);
    let cache = BlockCache::new(60_000, ledger.clone());
    assert!(ledger.try_reserve(Memtable, 40_001).is_none());
    let memtable = ledger.try_reserve(Memtable, 40_000).expect("its part");
    for n in 0..100 {
        cache.insert(key(1, n), block(key(1, n), 2000), 2000, Normal);
    }
    assert!(cache.stats().used > 55_000);
    assert_eq!(ledger.over_budget(), 0);
    assert!(ledger.usage().total() <= 100_000);
    assert!(ledger.try_reserve(Cache, 60_000).is_none());
    // The cache's part of the budget follows the capacity and ends with the cache.
    cache.set_capacity(10_000);
    drop(
        ledger
            .try_reserve(Memtable, 50_000)
            .expect("the part shrank"),
    );
    drop(cache);
    assert!(ledger.try_reserve(Memtable, 60_000).is_some());
    drop(memtable);
    assert_eq!(ledger.usage().total(), 0);
}

/// Draws block numbers by Zipf's law.
struct Skewed {
    sums: Vec<f64>,
}

impl Skewed {
    fn new(n: usize, exponent: f64) -> Skewed {
        let mut sum = 0.0;
        let weights = (1..=n).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Skewed {
            sums: weights.collect(),
        }
    }
    fn draw(&self, random: &Random) -> u64 {
        let at =
            random.below(1 << 53) as f64 / (1u64 << 53) as f64 * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|s| *s <= at) as u64
    }
}

/// An exact LRU of a number of blocks, for comparison.
struct Lru {
    blocks: usize,
    by_key: BTreeMap<(u128, u64), u64>,
    by_use: BTreeMap<u64, (u128, u64)>,
    now: u64,
}

impl Lru {
    fn ask(&mut self, key: (u128, u64)) -> bool {
        self.now += 1;
        let before = self.by_key.insert(key, self.now);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.now, key);
        if self.by_key.len() > self.blocks {
            let (_, oldest) = self.by_use.pop_first().expect("one more than fits");
            self.by_key.remove(&oldest);
        }
        before.is_some()
    }
}

#[test]
fn skewed_reads_hit_more_often_than_with_lru() {
    for (exponent, scans) in [(0.8, false), (1.0, false), (1.1, false), (0.9, true)] {
        let random = Random::from_seed(17);
        let skewed = Skewed::new(20_000, exponent);
        let (cache, _) = cache(2000 * (4096 + OVERHEAD));
        let mut lru = Lru {
            blocks: 2000,
            by_key: BTreeMap::new(),
            by_use: BTreeMap::new(),
            now: 0,
        };
        let (mut asked, mut ours, mut theirs) = (0u32, 0u32, 0u32);
        let data = Bytes::from(vec![7; 4096]);
        for n in 0..150_000u64 {
            // A scan of 3000 blocks from time to time, all misses for both.
            let scan = scans && n % 20_000 < 3000;
            let k = if scan {
                key(2, n)
            } else {
                key(1, skewed.draw(&random))
            };
            let mut hit = true;
            cache
                .get_or_load(k, Normal, || {
                    hit = false;
                    Ok(data.clone())
                })
                .expect("no error");
            let lru_hit = lru.ask((k.file, k.offset));
            if n > 30_000 && !scan {
                asked += 1;
                ours += u32::from(hit);
                theirs += u32::from(lru_hit);
            }
        }
        basalt_sim::campaign!(
            "exponent {exponent}, scans {scans}: of {asked} reads {ours} hit, with LRU {theirs}"
        );
        assert!(
            ours > theirs,
            "exponent {exponent}: {ours} of {asked}, LRU {theirs}"
        );
    }
}

/// Memory stays in the ledger while a reader holds it, and nothing stays reserved afterwards.
#[test]
fn an_evicted_block_stays_in_the_ledger_while_it_is_read() {
    let (cache, ledger) = cache(1 << 20);
    let pinned = || ledger.usage().pinned;
    let len = 64 << 10;
    let put = |n: u64| {
        let k = key(1, n);
        cache.insert(k, block(k, len), len, CachePriority::Normal)
    };
    let first = put(0);
    assert_eq!(pinned(), 0, "the cache's own");
    let part = first.slice(5..9);
    let again = first.clone();
    drop(first);
    for n in 1..100 {
        put(n);
    }
    assert!(!cache.contains(key(1, 0)));
    assert_eq!(pinned(), len as u64, "once, however many hold it");
    drop(again);
    assert_eq!(pinned(), len as u64, "a part keeps all of it");
    drop(part);
    assert_eq!(pinned(), 0);
    // Blocks leave the cache by removal, by replacement, because they are too large, and because
    // the capacity shrinks.
    let (a, b) = (put(200), put(200));
    assert_eq!(pinned(), len as u64, "the replaced one");
    cache.remove(key(1, 200));
    assert_eq!(pinned(), 2 * len as u64);
    drop((a, b));
    let k = key(2, 0);
    let large = cache.insert(k, block(k, 2 << 20), 2 << 20, CachePriority::Normal);
    assert_eq!(pinned(), 2 << 20);
    drop(large);
    let last = put(300);
    cache.set_capacity(0);
    assert_eq!((pinned(), ledger.usage().cache), (len as u64, 0));
    drop(cache);
    drop(last);
    assert_eq!(ledger.usage().total(), 0);
}

/// A pinned block is neither evicted nor lost from the account, and pinned blocks always leave room
/// for other blocks.
#[test]
fn pinned_blocks_stay_and_take_a_quarter_of_the_cache_at_most() {
    let (mut refused, mut stayed) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..20 * scale()) {
        let _repeat = basalt_sim::repeat!(
            pinned_blocks_stay_and_take_a_quarter_of_the_cache_at_most,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        // The cache has one shard, or four.
        let full = [1 << 20, 40 << 20][seed as usize % 2];
        let (cache, ledger) = cache(full);
        let mut pinned: BTreeMap<u64, Bytes> = BTreeMap::new();
        let (mut capacity, mut lowered) = (full, false);
        for n in 0..4000 {
            let k = key(1, n);
            match random.below(20) {
                0..=9 => drop(cache.insert(k, block(k, 4096), 4096, Normal)),
                10..=16 => {
                    let bytes = cache.insert(k, block(k, 16 << 10), 16 << 10, High);
                    if cache.pin(k) {
                        pinned.insert(n, bytes);
                        // Each shard has its quarter. Blocks that were pinned before the capacity
                        // was lowered stay beside it.
                        let kept = if lowered { full / 4 } else { 0 };
                        assert!(cache.stats().pinned <= capacity / 4 + kept);
                    } else {
                        refused += u64::from(cache.contains(k));
                    }
                }
                17 => {
                    assert!(!cache.pin(key(1, n + 1)), "what is not there");
                    drop(cache.insert(k, block(k, 4096), 4096, Normal));
                    assert!(!cache.pin(k), "data");
                }
                18 => {
                    let at = random.below(n + 1);
                    if let Some((&n, _)) = pinned.range(at..).next() {
                        pinned.remove(&n);
                        cache.remove(key(1, n));
                        assert!(!cache.contains(key(1, n)));
                    }
                }
                _ if random.below(40) == 0 => {
                    capacity = [full, full / 2, 0][random.below(3) as usize];
                    cache.set_capacity(capacity);
                    lowered |= capacity < full;
                    stayed += pinned.len();
                }
                _ => {}
            }
            if n % 50 == 0 {
                for n in pinned.keys() {
                    let found = cache.get(key(1, *n)).expect("a pinned block is here");
                    check(key(1, *n), &found, "pinned");
                }
            }
            let stats = cache.stats();
            assert!(stats.used <= capacity.max(stats.pinned), "{stats:?}");
            assert_eq!(ledger.usage().cache, stats.used);
            assert_eq!(
                ledger.usage().pinned,
                0,
                "pinned in the cache is the cache's"
            );
        }
        for n in pinned.keys() {
            cache.remove(key(1, *n));
        }
        assert_eq!(cache.stats().pinned, 0);
        assert_eq!(ledger.usage().pinned, 16384 * pinned.len() as u64, "held");
        drop(pinned);
        drop(cache);
        assert_eq!(ledger.usage().total(), 0);
    }
    assert!(
        refused > 100 && stayed > 100,
        "{refused} refused, {stayed} stayed"
    );
}

/// A renamed block is the same block under another key, in any shard. It keeps its uses, and every
/// byte is still counted.
#[test]
fn a_renamed_block_is_found_under_its_new_key_only() {
    for capacity in [1 << 20, 64 << 20] {
        let ledger = MemoryLedger::new(u64::MAX);
        let cache = BlockCache::new(capacity, ledger.clone());
        let key = |file, n: u64| CacheKey {
            file,
            offset: n * 4096,
        };
        for n in 0..100 {
            cache.insert(
                key(1, n),
                Bytes::from(vec![n as u8; 1000]),
                1000,
                CachePriority::Normal,
            );
        }
        // A block that has the other key already stays.
        cache.insert(
            key(2, 7),
            Bytes::from(vec![77; 10]),
            10,
            CachePriority::Normal,
        );
        let before = cache.stats();
        assert!(!cache.rename(key(3, 0), key(2, 0)), "it is not there");
        for n in 0..50 {
            assert!(cache.rename(key(1, n), key(2, n)));
        }
        for n in 0..100 {
            let expected = vec![n as u8; 1000];
            let here = cache.get(key(1, n)).map(|b| b.to_vec());
            let there = cache.get(key(2, n)).map(|b| b.to_vec());
            match n {
                7 => assert_eq!((here, there), (None, Some(vec![77; 10]))),
                0..50 => assert_eq!((here, there), (None, Some(expected))),
                _ => assert_eq!((here, there), (Some(expected), None)),
            }
        }
        let after = cache.stats();
        assert_eq!(
            (after.inserts, after.evictions),
            (before.inserts, before.evictions)
        );
        assert!(after.used < before.used && after.used > before.used - 2000);
        assert_eq!(ledger.usage().cache, after.used);
        // A rename to the same key changes nothing.
        assert!(cache.rename(key(1, 60), key(1, 60)) && cache.contains(key(1, 60)));
        for n in 0..100 {
            cache.remove(key(1, n));
            cache.remove(key(2, n));
        }
        assert_eq!((cache.stats().used, ledger.usage().cache), (0, 0));
    }
}

/// A block that was used often enough to stay does so under its new key, too.
#[test]
fn a_renamed_block_keeps_its_uses() {
    let cache = BlockCache::new(1 << 20, MemoryLedger::new(u64::MAX));
    let key = |file, n: u64| CacheKey {
        file,
        offset: n * 4096,
    };
    let put = |file, n| {
        cache.insert(
            key(file, n),
            Bytes::from(vec![1; 4000]),
            4000,
            CachePriority::Normal,
        );
    };
    for n in 0..20 {
        put(1, n);
        cache.get(key(1, n));
        cache.get(key(1, n));
        assert!(cache.rename(key(1, n), key(2, n)));
    }
    // A scan of blocks that are never read again.
    for n in 0..2000 {
        put(3, n);
    }
    assert!((0..20).all(|n| cache.contains(key(2, n))));
}
