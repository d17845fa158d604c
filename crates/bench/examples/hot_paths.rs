//! Hot paths alone, for a profiler: a cached table get, a missing key, a cursor's next and seek, a cache hit.
//!
//! ```sh
//! cargo build --release -p basalt-bench --example hot_paths
//! valgrind --tool=callgrind target/release/examples/hot_paths get 100000
//! ```
//! Run with 0 rounds first and subtract: what is left belongs to the path.

use basalt::env::{BlockCache, CacheKey, CachePriority, IoPriority, MemoryLedger, Random};
use basalt::fs::Bytes;
use basalt::fs::sim::{SimFs, SimOptions};
use basalt::lsm::iter::InternalIter;
use basalt::lsm::key::{Cmp, Kind, MAX_SEQ, internal_key, pack_trailer};
use basalt::lsm::table::{ReadPattern, TableBuilder, TableFamily, TableOptions, TableReader};
use basalt::{Compression, Env, Result};
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
        compression: Compression::None,
        warm_cache: true,
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
                    "hot_paths: name a path (get, miss, next, seek, cache) and a number of rounds"
                );
                std::process::exit(2);
            }
        };
    }
    let ns = (clock.now() - start).as_nanos() as u64 / rounds.max(1);
    println!("{what}: {rounds} rounds, {found} found, {ns} ns each");
    Ok(())
}
