//! Data blocks and the sectors that they are read with: a block takes no more sectors than its size
//! fills, whatever its entries, and salvage finds it without an index.

use super::super::block::TAIL_LEN;
use super::super::builder::SECTOR;
use super::super::format::{BlockHandle, BlockKind};
use super::super::resync;
use super::*;

const PATH: &str = "t";

/// Returns every data block, in order.
fn blocks(t: &TableReader) -> Vec<BlockHandle> {
    let mut out = Vec::new();
    for i in 0..t.top.len() {
        let at = t.partition_handle(i).unwrap();
        let partition = t.partition(i, &at, true).unwrap();
        for j in 0..partition.len() {
            out.push(t.data_handle(&partition, at.offset, j).unwrap());
        }
    }
    out
}

/// Checks each block: a block of one entry may be as long as its entry; all others take as few
/// sectors as their size has.
fn check(seed: u64, block_bytes: usize, entries: &Entries) -> Vec<BlockHandle> {
    let (fs, env) = sim_env(1 << 20);
    let path = Path::new(PATH);
    let options = TableOptions {
        block_bytes,
        ..options(Cmp::Bytewise)
    };
    let meta = build(&env, path, 3, &options, entries);
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    t.verify(&meta).expect("verify");
    let bytes = fs.read_all(path).expect("read");
    let blocks = blocks(&t);
    for b in &blocks {
        let end = b.offset as usize + b.stored as usize;
        let tail = &bytes[end - TAIL_LEN..end];
        let restarts = u32::from_le_bytes(tail[..4].try_into().unwrap());
        // A block without a hash index may have a single entry.
        if tail[7] != 0 || restarts > 1 {
            let first = b.offset / SECTOR as u64;
            let sectors = b.end().div_ceil(SECTOR as u64) - first;
            assert!(
                sectors as usize <= block_bytes / SECTOR,
                "seed {seed}: {sectors} sectors for {b:?}"
            );
        }
        let mut found = false;
        resync::ends(
            BlockKind::Data,
            &bytes[b.offset as usize..],
            1 << 20,
            |stored, method, raw| {
                found |= (stored, method, raw) == (b.stored as usize, 0, 0);
                found
            },
        );
        assert!(found, "seed {seed}: the end of {b:?} is not found again");
    }
    for n in 0..entries.len().min(300) {
        let (user, trailer) = split_internal_key(&entries[n * 31 % entries.len()].0);
        check_get(&t, entries, &Cmp::Bytewise, user, trailer_seq(trailer));
    }
    blocks
}

#[test]
fn blocks_of_small_entries_fill_whole_pages() {
    for value in [0, 10, 100, 200] {
        let entries: Entries = (0..20_000u64)
            .map(|n| {
                let key = format!("{n:08}00000000");
                let key = internal_key(key.as_bytes(), pack_trailer(n, Kind::Put));
                (key, vec![b'v'; value])
            })
            .collect();
        let blocks = check(value as u64, 4096, &entries);
        let (last, others) = blocks[1..].split_last().unwrap();
        for b in others {
            assert_eq!((b.offset % 4096, b.disk_len()), (0, 4096), "{value}");
        }
        assert!(last.offset.is_multiple_of(4096) && last.disk_len() <= 4096);
    }
}

#[test]
fn block_reads_touch_the_fewest_sectors() {
    for seed in 0..30 * scale() {
        let r = Random::from_seed(seed);
        let most_value = any_of(&r, &[0, 8, 60, 300, 1500, 9000]);
        let block_bytes = any_of(&r, &[4096, 4608, 8192, 16384]);
        let n = 50 + r.below(800);
        let style = r.below(4);
        let entries = random_entries(&r, &Cmp::Bytewise, n, style, most_value);
        check(seed, block_bytes, &entries);
    }
}
