//! Many keys at once: their reads are in flight together, whatever tables and levels they lie in,
//! and within the budget.

use crate::watched::{Batch, Watched};
use basalt_env::Random;
use basalt_lsm::{Bytes, Compression, Db, Family, Options, ReadOptions, WriteOptions};
use std::collections::BTreeMap;

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn options() -> Options {
    let mut options = Options::default();
    let f = &mut options.default_family;
    f.block_bytes = 1024;
    f.table_bytes = 16 << 10;
    f.base_level_bytes = 64 << 10;
    f.l0_compaction_trigger = 100;
    f.l0_slowdown = 100;
    options
}

/// Makes 2,000 keys over a dozen tables of the lowest level and three of level 0. None of them is
/// in a cache.
fn filled() -> (std::sync::Arc<Watched>, Db, Family) {
    let disk = Watched::new();
    let db = Db::open(&disk.env(64 << 20), "db", options()).expect("open");
    let f = db.default_family();
    for n in 0..2000 {
        db.put(&f, &key(n), &[1; 100], &UNSYNCED).expect("put");
    }
    db.flush().expect("flush");
    db.compact_range(&f, None, None).expect("compact");
    for part in 0..3 {
        for n in (0..2000).filter(|n| n % 30 == part) {
            let value = [2 + part as u8; 100];
            db.put(&f, &key(n), &value, &UNSYNCED).expect("put");
        }
        db.flush().expect("flush");
    }
    db.close().expect("close");
    let db = Db::open(&disk.env(64 << 20), "db", options()).expect("open");
    let f = db.default_family();
    // Tables are opened on their first use.
    let levels = &db.stats().families[0].levels;
    let files: u64 = levels.iter().map(|l| l.tables).sum();
    assert!(levels[0].tables == 3 && files >= 13, "{files} tables");
    (disk, db, f)
}

fn value(n: u32) -> Option<u8> {
    match n % 30 {
        _ if n >= 2000 => None,
        part @ 0..=2 => Some(2 + part as u8),
        _ => Some(1),
    }
}

fn check(names: &[u32], got: Vec<basalt_lsm::Result<Option<Bytes>>>) {
    assert_eq!(names.len(), got.len());
    for (n, got) in names.iter().zip(got) {
        let got = got.expect("read").map(|v| v[0]);
        assert_eq!(got, value(*n), "key {n}");
    }
}

#[test]
fn multi_get_reads_keys_of_many_tables_in_one_batch() {
    for fill_cache in [true, false] {
        let (disk, db, f) = filled();
        let read = ReadOptions::default().fill_cache(fill_cache);
        // This walk opens all tables outside of the counted reads, and leaves their filters,
        // indexes and data unread.
        db.iter(&f, &read)
            .expect("iter")
            .seek_to_first()
            .expect("seek");
        for n in (0..2000).step_by(20) {
            let mut it = db.iter(&f, &read.clone().fill_cache(false)).expect("iter");
            it.seek(&key(n)).expect("seek");
        }
        // The keys lie across the whole range: in each table of each level, and some exist nowhere.
        let names: Vec<u32> = (0..40).map(|i| i * 51 + i % 3).collect();
        let keys: Vec<Vec<u8>> = names.iter().map(|n| key(*n)).collect();
        let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
        let (got, alone, batches) = disk.watch(|| db.multi_get(&asked, &read));
        check(&names, got);
        let most = batches.iter().map(|b| b.files).max();
        basalt_sim::campaign!(
            "keys={} fill_cache={fill_cache} batches={} reads={} files_in_a_batch={most:?} alone={alone}",
            names.len(),
            batches.len(),
            batches.iter().map(|b| b.reads).sum::<usize>(),
        );
        // Level 0 has three tables and the bottom ten or more: their reads are batched in a few
        // rounds, not one after the other.
        assert!(most >= Some(8), "{batches:?}");
        assert!(batches.len() as u64 + alone <= 12, "{alone} {batches:?}");
        if !fill_cache {
            continue;
        }
        // All blocks are in the cache now.
        let (got, alone, batches) = disk.watch(|| db.multi_get(&asked, &read));
        check(&names, got);
        assert_eq!((alone, batches), (0, Vec::new()));
    }
}

/// A seek waits for one batch of reads, however many sources it has, and shows the same as without.
#[test]
fn a_seek_reads_the_blocks_of_all_runs_in_one_batch() {
    for fill_cache in [true, false] {
        let (disk, db, f) = filled();
        let read = ReadOptions::default().fill_cache(fill_cache);
        // The lookups open all tables and read their indexes, which a seek needs before it knows
        // its blocks. All of level 0 lies across the level below, and the seek goes to each of its
        // tables.
        for n in (0..2000).step_by(10) {
            let mut it = db.iter(&f, &ReadOptions::default()).expect("iter");
            it.seek(&key(n)).expect("seek");
        }
        let (mut together, mut further) = (0, 0);
        for n in (7..1990).step_by(101) {
            // Pinned blocks stay.
            db.env().cache().set_capacity(0);
            db.env().cache().set_capacity(64 << 20);
            let mut it = db.iter(&f, &read).expect("iter");
            let (sought, alone, batches) = disk.watch(|| it.seek(&key(n)));
            sought.expect("seek");
            together += u64::from(batches.iter().any(|b| b.reads >= 3));
            assert!(batches.len() <= 1, "{batches:?}");
            // The walk has as many keys as a block holds. The next block of the level with most of
            // them was read with the first.
            let (_, walked, batches) = disk.watch(|| {
                for n in n..n + 8 {
                    assert_eq!(it.key(), key(n));
                    assert_eq!(it.value()[0], value(n).expect("there is one"));
                    it.next().expect("next");
                }
            });
            further += walked + batches.len() as u64;
            // The blocks that were read are in the cache, if they are to be kept.
            let mut again = db.iter(&f, &read).expect("iter");
            let (sought, alone_again, batches) = disk.watch(|| again.seek(&key(n)));
            sought.expect("seek");
            assert_eq!((batches.is_empty() && alone_again == 0), fill_cache);
            assert!(alone <= 1, "{alone} reads outside of batches");
        }
        basalt_sim::campaign!("fill_cache={fill_cache} together={together} further={further}");
        assert!(together >= 15, "{together} of 20 seeks");
        assert!(further <= 8, "{further} reads for 20 walks");
    }
}

/// A key that is not in the cache counts with its block, before the block is read.
#[test]
fn multi_get_counts_blocks_before_it_reads_them() {
    let (disk, db, f) = filled();
    // Each key is in a block of its own, of 800 to 1,100 bytes.
    let keys: Vec<Vec<u8>> = (0..40).map(|i| key(5 + i * 30)).collect();
    let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
    let read = ReadOptions::default().fill_cache(false);
    for budget in [1_100, 5_000, 20_000] {
        let (got, _, _) = disk.watch(|| db.multi_get_within(&asked, &read, budget));
        let answered = got.iter().flatten().count();
        assert!(
            answered * 800 <= budget + 1100,
            "{answered} answers in {budget} bytes"
        );
        assert!(
            answered * 2200 >= budget,
            "{answered} answers in {budget} bytes"
        );
    }
}

#[test]
fn no_batch_of_reads_is_larger_than_its_bound() {
    let (disk, db, f) = filled();
    let names: Vec<u32> = (0..2100).collect();
    let keys: Vec<Vec<u8>> = names.iter().map(|n| key(*n)).collect();
    let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
    for fill_cache in [false, true] {
        let read = ReadOptions::default().fill_cache(fill_cache);
        let (got, _, batches) = disk.watch(|| db.multi_get(&asked, &read));
        check(&names, got);
        let full = |b: &&Batch| b.reads == 64;
        assert!(batches.iter().filter(full).count() >= 2, "{batches:?}");
        assert!(batches.iter().all(|b| b.reads <= 64), "{batches:?}");
    }
}

/// For random stores, caches and budgets, each answer is that of a single lookup.
#[test]
fn random_multi_gets_answer_as_single_lookups() {
    let scale = basalt_sim::campaign::scale();
    for seed in basalt_sim::campaign::cases(0..20 * scale) {
        let _repeat = basalt_sim::repeat!(
            random_multi_gets_answer_as_single_lookups,
            "BASALT_CASE={seed}"
        );
        let r = Random::from_seed(seed);
        let cache = [0, 16 << 10, 8 << 20][r.below(3) as usize];
        let env = Watched::new().env(cache);
        let mut options = options();
        options.write_buffer_bytes = 8 << 10;
        options.default_family.table_bytes = 4 << 10;
        options.default_family.base_level_bytes = 8 << 10;
        options.default_family.filter_bits_per_key = [0, 3, 10][r.below(3) as usize];
        options.default_family.l0_compaction_trigger = 1 + r.below(6) as usize;
        options.default_family.min_blob_size = [None, Some(1), Some(200)][r.below(3) as usize];
        options.default_family.blob_compression =
            [Compression::None, Compression::Lz4, Compression::Zstd][seed as usize % 3];
        let db = Db::open(&env, "db", options).expect("open");
        let f = db.default_family();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut kept = None;
        for round in 0..25 {
            for _ in 0..40 {
                let k = key(r.below(300) as u32);
                if r.one_in(4) {
                    db.delete(&f, &k, &UNSYNCED).expect("delete");
                    model.remove(&k);
                } else {
                    let v = vec![round as u8; r.below(400) as usize];
                    db.put(&f, &k, &v, &UNSYNCED).expect("put");
                    model.insert(k, v);
                }
            }
            (0..r.below(4)).for_each(|_| {
                env.jobs().step();
            });
            if round == 12 {
                kept = Some((db.snapshot(), model.clone()));
            }
            let (snapshot, at) = match &kept {
                Some((s, then)) if r.one_in(2) => (Some(s.clone()), then),
                _ => (None, &model),
            };
            let read = ReadOptions::default()
                .snapshot(snapshot)
                .fill_cache(r.one_in(2));
            // Some keys occur twice.
            let names: Vec<Vec<u8>> = (0..r.below(150))
                .map(|_| key(r.below(320) as u32))
                .collect();
            let mut asked: Vec<(&Family, &[u8])> = names.iter().map(|k| (&f, &k[..])).collect();
            while !asked.is_empty() {
                let budget = [0, 3000, 100_000][r.below(3) as usize];
                let answers = db.multi_get_within(&asked, &read, budget);
                let mut again = Vec::new();
                for ((family, k), answer) in asked.iter().zip(answers) {
                    match answer {
                        Some(v) => {
                            assert_eq!(v.expect("read").as_deref(), at.get(*k).map(|v| &v[..]))
                        }
                        None => again.push((*family, *k)),
                    }
                }
                assert!(again.len() < asked.len(), "a call gets further");
                asked = again;
            }
        }
    }
}
