//! Hot paths alone, for a profiler: a lookup in a cached table, a missing key, a cursor's next and
//! seek, and a cache hit. The same paths run through a whole store, on as many threads as the
//! arguments say: get, miss, and a scan of ten entries.
//!
//! ```sh
//! cargo build --release -p basalt-bench --example hot_paths
//! valgrind --tool=callgrind target/release/examples/hot_paths get 100000
//! target/release/examples/hot_paths db-get 3000000 2
//! ```
//! Run it with 0 rounds first and subtract the result: the rest belongs to the path.

use basalt::env::{BlockCache, CacheKey, CachePriority, IoPriority, MemoryLedger, Random};
use basalt::fs::{AlignedBuf, Bytes};
use basalt::{Compression, Db, Env, Options, ReadOptions, Result, WriteOptions};
use basalt_kv::key::{Cmp, Kind, MAX_SEQ, internal_key, pack_trailer};
use basalt_lsm::iter::InternalIter;
use basalt_sim::{SimFs, SimOptions};
use basalt_table::{ReadPattern, TableBuilder, TableFamily, TableOptions, TableReader};
use std::path::Path;
use std::sync::Arc;

const ENTRIES: u64 = 200_000;

fn key(n: u64) -> Vec<u8> {
    internal_key(
        format!("user{:012}", n * 7).as_bytes(),
        pack_trailer(n, Kind::Put),
    )
}

fn table(env: &Env) -> Result<Arc<TableReader>> {
    let path = Path::new("table");
    let options = TableOptions {
        family: TableFamily::default(),
        cmp: Cmp::Bytewise,
        block_bytes: 4096,
        filter_bits_per_key: 10,
        prefix_extractor: None,
        compression: Compression::None,
        warm_cache: true,
        flush_flag: None,
    };
    let mut builder = TableBuilder::new(
        env,
        env.fs().create(path)?,
        path,
        1,
        options,
        IoPriority::High,
    );
    for n in 0..ENTRIES {
        builder.add(&key(n), &[n as u8; 100])?;
    }
    let meta = builder.finish()?;
    TableReader::open(
        env,
        env.fs().open(path)?,
        path,
        meta.file_id,
        meta.size,
        Cmp::Bytewise,
    )
}

/// Runs `rounds` operations on each of `threads` threads, on a store of `keys` keys. The store is
/// idle and fully cached.
fn store(env: &Env, what: &str, rounds: u64, threads: u64, keys: u64) -> Result<()> {
    let db = Db::open(env, "store", Options::default())?;
    let family = db.default_family();
    let name = |n: u64| format!("user{:012}", n * 7).into_bytes();
    for n in 0..keys {
        // The keys are far apart, so tables of one level hold parts of the whole range.
        let n = n * 48_271 % keys;
        db.put(&family, &name(n), &[n as u8; 100], &WriteOptions::UNSYNCED)?;
    }
    db.flush()?;
    db.wait_idle()?;
    let options = ReadOptions::default();
    let value = vec![5; 40 << 10];
    let mut all = db.iter(&family, &options)?;
    all.seek_to_first()?;
    while all.valid() {
        all.next()?;
    }
    drop(all);
    let one = |random: &Random| -> Result<u64> {
        let n = random.below(keys);
        Ok(match what {
            "db-get" => u64::from(db.get(&family, &name(n), &options)?.is_some()),
            "db-miss" => {
                let key = format!("user{:012}", n * 7 + 1).into_bytes();
                u64::from(db.get(&family, &key, &options)?.is_some())
            }
            "db-put" | "db-put-2k" | "db-put-8k" | "db-put-40k" => {
                let len = match what {
                    "db-put" => 100,
                    "db-put-2k" => 2 << 10,
                    "db-put-8k" => 8 << 10,
                    _ => 40 << 10,
                };
                db.put(&family, &name(n), &value[..len], &WriteOptions::UNSYNCED)?;
                1
            }
            _ => {
                let mut cursor = db.iter(&family, &options)?;
                cursor.seek(&name(n))?;
                for _ in 0..10 {
                    if cursor.valid() {
                        cursor.next()?;
                    }
                }
                u64::from(cursor.valid())
            }
        })
    };
    // These reads load every filter page and index partition as well.
    let random = Random::from_seed(2);
    for _ in 0..(keys / 8).min(rounds * 100) {
        one(&random)?;
    }
    let clock = basalt::env::Clock::system();
    let start = clock.now();
    let run = |seed: u64| -> Result<u64> {
        let random = Random::from_seed(seed);
        (0..rounds).try_fold(0, |sum, _| Ok(sum + one(&random)?))
    };
    let found: u64 = basalt::env::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|t| scope.spawn(move || run(t))).collect();
        let joined = handles.into_iter().map(|h| h.join().expect("a reader"));
        joined.sum::<Result<u64>>()
    })?;
    let ns = (clock.now() - start).as_nanos() as u64 / rounds.max(1);
    println!("{what}: {threads} threads of {rounds} rounds, {found} found, {ns} ns each");
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (what, rounds) = (
        args.next().unwrap_or_default(),
        args.next().and_then(|n| n.parse().ok()).unwrap_or(0u64),
    );
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .stepped()
        .seed(1)
        .memory_bytes(1 << 30)
        .cache_bytes(512 << 20)
        .build();
    if what.starts_with("db-") {
        let mut number = |default| args.next().and_then(|n| n.parse().ok()).unwrap_or(default);
        let (threads, keys) = (number(1), number(ENTRIES));
        return store(&env, &what, rounds, threads, keys);
    }
    let random = Random::from_seed(1);
    let (clock, mut found) = (basalt::env::Clock::system(), 0u64);
    let table = table(&env)?;
    let mut cursor = table.iter(ReadPattern::Cached);
    cursor.seek_to_first()?;
    let cache = BlockCache::new(256 << 20, MemoryLedger::new(1 << 30));
    for offset in 0..20_000 {
        cache.insert(
            CacheKey { file: 9, offset },
            Bytes::from(vec![7; 4096]),
            4096,
            CachePriority::Normal,
        );
    }
    let start = clock.now();
    for _ in 0..rounds {
        let n = random.below(ENTRIES);
        found += match what.as_str() {
            "get" => u64::from(
                table
                    .get(format!("user{:012}", n * 7).as_bytes(), MAX_SEQ, true)?
                    .is_some(),
            ),
            "miss" => u64::from(
                table
                    .get(format!("user{:012}", n * 7 + 1).as_bytes(), MAX_SEQ, true)?
                    .is_some(),
            ),
            "seek" => {
                cursor.seek(&key(n))?;
                u64::from(cursor.valid())
            }
            "next" => {
                if !cursor.valid() {
                    cursor.seek_to_first()?;
                }
                cursor.next()?;
                1
            }
            "insert" => {
                let block = AlignedBuf::cached_copy(&[7; 4096]);
                let offset = (1 << 20) + n;
                let key = CacheKey { file: 9, offset };
                cache.insert(key, block, 4096, CachePriority::Normal).len() as u64
            }
            "cache" => u64::from(
                cache
                    .get(CacheKey {
                        file: 9,
                        offset: n % 20_000,
                    })
                    .is_some(),
            ),
            _ => {
                eprintln!(
                    "hot_paths: name a path (get, miss, next, seek, cache, insert; or db-get, db-miss, db-scan, db-put, db-put-2k, -8k, -40k) and a number of rounds; \
                     behind the latter, threads and keys"
                );
                std::process::exit(2);
            }
        };
    }
    let ns = (clock.now() - start).as_nanos() as u64 / rounds.max(1);
    println!("{what}: {rounds} rounds, {found} found, {ns} ns each");
    Ok(())
}
