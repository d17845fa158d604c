//! Filter pages and index partitions that are read with those beside them: fewer reads return the
//! same blocks, and an error of one block does not reach the others.

use super::super::format::{BlockHandle, BlockKind, block_checksum};
use super::super::index::IndexBuilder;
use super::*;
use crate::format::filter;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, When};

const KEYS: u64 = 20_000;
const PATH: &str = "t";

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Builds a table of some twenty filter pages and thirty index partitions.
fn made(env: &Env) -> TableMeta {
    let entries: Entries = (0..KEYS)
        .map(|n| {
            (
                internal_key(&key(n), pack_trailer(n, Kind::Put)),
                vec![7; 16],
            )
        })
        .collect();
    let options = TableOptions {
        block_bytes: 128,
        filter_bits_per_key: 40,
        ..options(Cmp::Bytewise)
    };
    build(env, Path::new(PATH), 5, &options, &entries)
}

fn pages(t: &TableReader) -> Vec<BlockHandle> {
    let count = filter::pages(t.footer.filter_lines);
    (0..count).map(|n| t.filter_page(n)).collect()
}

fn partitions(t: &TableReader) -> Vec<BlockHandle> {
    let count = t.top.len();
    (0..count).map(|n| t.partition_handle(n).unwrap()).collect()
}

/// Asks for every filter page and every index partition, in another order than they lie in. Returns
/// the number of reads.
fn read_all(env: &Env, t: &TableReader) -> u64 {
    let before = env.fs().stats().reads;
    for n in 0..KEYS {
        assert!(t.may_hold(&key(n * 7919 % KEYS), true).unwrap());
    }
    let partitions = partitions(t);
    for i in 0..partitions.len() {
        let i = i * 7 % partitions.len();
        let here = t.partition(i, &partitions[i], true).unwrap();
        let (last, _) = here.entry(here.len() - 1).unwrap();
        assert_eq!(last, t.top.entry(i).unwrap().0, "another partition");
    }
    env.fs().stats().reads - before
}

#[test]
fn neighbouring_meta_blocks_are_read_together_if_they_fit_the_cache() {
    let (_, env) = sim_env(8 << 20);
    let meta = made(&env);
    let t = open(&env, Path::new(PATH), &meta, &Cmp::Bytewise);
    let (pages, partitions) = (pages(&t).len(), partitions(&t).len());
    assert!(pages > 16 && partitions > 16, "{pages} {partitions}");
    let most = 1 + pages.div_ceil(16) + partitions.div_ceil(16);
    let took = read_all(&env, &t);
    assert!(took <= most as u64, "{took} reads");
    assert_eq!(read_all(&env, &t), 0);
    let stats = env.cache().stats();
    assert_eq!(stats.pinned, stats.used, "all that was read is pinned");
    assert_eq!(env.ledger().usage().pinned, 0);
    drop(t);
    assert_eq!(env.cache().stats().used, 0);
}

/// Neighbours that the cache cannot keep would waste device time and the room of other blocks.
#[test]
fn without_cache_room_each_block_is_read_alone() {
    for cache in [0, 16 << 10, 64 << 10] {
        let (_, env) = sim_env(cache);
        let meta = made(&env);
        let t = open(&env, Path::new(PATH), &meta, &Cmp::Bytewise);
        read_all(&env, &t);
        assert!(env.cache().stats().pinned <= cache / 4);
        let before = env.fs().stats();
        let reads = read_all(&env, &t);
        let bytes = env.fs().stats().bytes_read - before.bytes_read;
        assert!(bytes <= reads * 8192, "{bytes} bytes in {reads} reads");
        assert_eq!(env.ledger().usage().pinned, 0);
    }
}

#[test]
fn damage_of_a_block_fails_only_reads_of_that_block() {
    let (fs, env) = sim_env(0);
    let meta = made(&env);
    let whole = fs.read_all(Path::new(PATH)).expect("read");
    let t = open(&env, Path::new(PATH), &meta, &Cmp::Bytewise);
    for (kind, bad) in [
        (BlockKind::Filter, pages(&t)[5]),
        (BlockKind::Index, partitions(&t)[17]),
    ] {
        let mut bytes = whole[..meta.size as usize].to_vec();
        bytes[bad.offset as usize + 40] ^= 4;
        let (fs, env) = sim_env(8 << 20);
        fs.write_file(Path::new(PATH), &bytes).expect("write");
        let t = open(&env, Path::new(PATH), &meta, &Cmp::Bytewise);
        let mut failed = 0;
        for n in 0..KEYS {
            let key = key(n * 7919 % KEYS);
            let target = internal_key(&key, seek_trailer(KEYS));
            let (page, _) = t.filter_place(filter::key_hash(&key)).unwrap();
            let partition = t.find_partition(&target).unwrap().unwrap();
            let asks = match kind {
                BlockKind::Filter => t.filter_page(page) == bad,
                _ => t.partition_handle(partition).unwrap() == bad,
            };
            match t.get(&key, KEYS, true) {
                Ok(found) => assert!(!asks && found.is_some_and(|f| f.value == [7; 16][..])),
                Err(e) => {
                    assert!(
                        asks && e.is_corruption() && e.offset() == Some(bad.offset),
                        "{e}"
                    );
                    failed += 1;
                }
            }
        }
        assert!(failed > 100, "{failed} lookups met the damage");
    }
}

/// If the read of a group fails, or returns damage, a read of the block alone decides the lookup.
#[test]
fn a_failed_group_read_does_not_fail_the_lookup() {
    for kind in [FaultKind::Eio, FaultKind::BitFlip] {
        let faults = FaultFs::new(SimFs::new(SimOptions::default()), 3);
        let env = basalt_env::EnvBuilder::for_tests(faults.clone(), 3)
            .cache_bytes(8 << 20)
            .build();
        let meta = made(&env);
        let t = open(&env, Path::new(PATH), &meta, &Cmp::Bytewise);
        // The first read of a table is of a block alone. Later, so is each read after a failed one.
        assert!(t.may_hold(&key(0), true).unwrap());
        let rule = faults.inject(Fault {
            op: Some(OpKind::Read),
            path: String::new(),
            when: When::EveryKth(2),
            kind,
        });
        read_all(&env, &t);
        assert!(faults.seen(rule) >= 6, "{} reads", faults.seen(rule));
        faults.clear();
        assert_eq!(read_all(&env, &t), 0);
    }
}

/// A top-level index with a checksum that fits names partitions in falling order: a partition at a
/// lower offset cannot end a group.
#[test]
fn partitions_in_falling_order_are_read_alone() {
    let (fs, env) = sim_env(8 << 20);
    let meta = made(&env);
    let path = Path::new(PATH);
    let sound = open(&env, path, &meta, &Cmp::Bytewise);
    let handles = partitions(&sound);
    let mut top = IndexBuilder::default();
    for (i, handle) in handles.iter().rev().enumerate() {
        top.add(sound.top.entry(i).unwrap().0, handle);
    }
    let (payload, at) = (top.finish(), sound.footer.top);
    assert_eq!(payload.len(), at.stored as usize);
    let file = env.fs().open(path).unwrap();
    let mut image = file.read(0, meta.size as usize).unwrap().to_vec();
    let sum = block_checksum(BlockKind::TopIndex, 0, meta.file_id, at.offset, &payload);
    let (from, end) = (at.offset as usize, at.offset as usize + payload.len());
    image[from..end].copy_from_slice(&payload);
    image[end + 1..end + 9].copy_from_slice(&sum.to_le_bytes());
    fs.write_file(path, &image).unwrap();
    let file = env.fs().open(path).unwrap();
    let t = TableReader::open(&env, file, path, meta.file_id, meta.size, Cmp::Bytewise).unwrap();
    let before = env.fs().stats().reads;
    for n in (0..KEYS).step_by(100) {
        let _ = t.get(&key(n), KEYS, true);
    }
    let alone = env.fs().stats().reads - before;
    assert!(alone >= handles.len() as u64, "{alone} reads");
}
