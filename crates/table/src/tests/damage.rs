//! Damage and hostile bytes. For every damaged table, the tests check three things. `verify`
//! reports the damage. `get` and cursors return what the undamaged table returns, or an error,
//! never other bytes. No reader panics, hangs, or allocates past the cap. Decoders alone, behind
//! the checksums, must end without a panic.

use super::super::format::filter;
use super::super::format::{
    BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header, MAX_COMPRESSED_RAW,
    block_checksum, open_block,
};
use super::super::properties::Properties;
use super::super::{block, index};
use super::*;
use basalt_fs::{Bytes, Result};
use basalt_kv::codec::compressed;

/// Reads everything that can be read and compares it with the expected entries.
fn right_or_error(t: &Arc<TableReader>, entries: &Entries) -> Result<()> {
    let mut first_error = None;
    for (k, v) in entries {
        let (user, trailer) = split_internal_key(k);
        match t.get(user, trailer_seq(trailer), true) {
            Ok(Some(f)) => assert_eq!((f.kind as u8, &f.value[..]), (trailer as u8, &v[..])),
            Ok(None) => panic!("key {user:02x?} is gone without an error"),
            Err(e) => first_error = Some(e),
        }
    }
    let mut it = t.iter(ReadPattern::Uncached);
    let mut n = 0;
    let mut walk = || -> Result<()> {
        it.seek_to_first()?;
        while it.valid() {
            assert_eq!(
                (it.key(), it.value()),
                (&entries[n].0[..], &entries[n].1[..])
            );
            n += 1;
            it.next()?;
        }
        assert_eq!(
            n,
            entries.len(),
            "the cursor ends early and does not say so"
        );
        it.seek_to_last()?;
        while it.valid() {
            n -= 1;
            assert_eq!(
                (it.key(), it.value()),
                (&entries[n].0[..], &entries[n].1[..])
            );
            it.prev()?;
        }
        assert_eq!(n, 0);
        Ok(())
    };
    let walked = walk();
    first_error.map_or(walked, Err)
}

/// Opens and reads damaged bytes in place of a good table. Returns true if a read noticed the
/// damage.
fn judge(
    fs: &SimFs,
    env: &Env,
    path: &Path,
    bytes: &[u8],
    meta: &TableMeta,
    entries: &Entries,
) -> bool {
    fs.write_file(path, bytes).expect("write");
    let file = env.fs().open(path).expect("open");
    match TableReader::open(env, file, path, meta.file_id, meta.size, Cmp::Bytewise) {
        Ok(t) => {
            let read = right_or_error(&t, entries);
            let verified = t.verify(meta);
            let e = verified.expect_err("verify must report the damage");
            assert!(
                matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
                "{e}"
            );
            assert_eq!(e.path(), Some(path), "{e}");
            if let Err(e) = &read {
                assert!(e.is_corruption(), "{e}");
            }
            read.is_err()
        }
        Err(e) => {
            assert!(e.is_corruption(), "{e}");
            assert_eq!(e.path(), Some(path), "{e}");
            true
        }
    }
}

fn sample(
    seed: u64,
    n: u64,
    most_value: u64,
    options: &TableOptions,
    id: u128,
) -> (Arc<SimFs>, Env, TableMeta, Entries, Vec<u8>) {
    let (fs, env) = sim_env(0);
    let r = Random::from_seed(seed);
    let entries = random_entries(&r, &Cmp::Bytewise, n, 1, most_value);
    let path = Path::new("t");
    let meta = build(&env, path, id, options, &entries);
    let bytes = fs.read_all(path).expect("read");
    let bytes = bytes[..meta.size as usize].to_vec();
    (fs, env, meta, entries, bytes)
}

#[test]
fn every_flipped_bit_and_truncation_is_detected() {
    let mut flipped = 0;
    for (seed, compression) in [
        (1, Compression::None),
        (2, Compression::Lz4),
        (3, Compression::Zstd),
    ] {
        println!("repeat with: seed {seed}");
        let options = TableOptions {
            compression,
            block_bytes: 128,
            ..options(Cmp::Bytewise)
        };
        let (fs, env, meta, entries, mut bytes) = sample(seed, 20, 40, &options, 77);
        let path = Path::new("t");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                // The filter has one page: without padding, some reader checks every byte.
                assert!(
                    judge(&fs, &env, path, &bytes, &meta, &entries),
                    "bit {bit} of byte {at} flipped and no read noticed"
                );
                bytes[at] ^= 1 << bit;
                flipped += 1;
            }
        }
        for len in 0..bytes.len() {
            judge(&fs, &env, path, &bytes[..len], &meta, &entries);
        }
    }
    println!("flipped_bits={flipped}");
    assert!(flipped >= 20_000, "{flipped} bits flipped");
}

#[test]
fn zeroed_swapped_and_foreign_sectors_are_detected() {
    let options = TableOptions {
        block_bytes: 500,
        filter_bits_per_key: 64,
        ..options(Cmp::Bytewise)
    };
    let (fs, env, meta, entries, bytes) = sample(4, 700, 20, &options, 77);
    // The foreign file has the same entries and another id: every block lies at the same offset.
    let (_, _, other, _, foreign) = sample(4, 700, 20, &options, 78);
    assert_eq!(meta.size, other.size);
    let path = Path::new("t");
    let r = Random::from_seed(5);
    let sectors = bytes.len() / 512;
    assert!(sectors > 40, "{sectors} sectors");
    let mut images = 0;
    for s in 0..sectors {
        let here = s * 512..s * 512 + 512;
        let mut variants = Vec::new();
        let mut zeroed = bytes.clone();
        zeroed[here.clone()].fill(0);
        variants.push(zeroed);
        let mut replaced = bytes.clone();
        replaced[here.clone()].copy_from_slice(&foreign[here.clone()]);
        variants.push(replaced);
        for _ in 0..3 * scale() {
            let o = r.below(sectors as u64) as usize * 512;
            let mut swapped = bytes.clone();
            swapped[here.clone()].copy_from_slice(&bytes[o..o + 512]);
            swapped[o..o + 512].copy_from_slice(&bytes[here.clone()]);
            variants.push(swapped);
        }
        for v in variants.iter().filter(|v| **v != bytes) {
            judge(&fs, &env, path, v, &meta, &entries);
            images += 1;
        }
    }
    judge(&fs, &env, path, &foreign, &meta, &entries);
    println!("images={images}");
    assert!(images > 100);
}

/// Changes bytes at random: flips, overwrites with critical values, cuts, insertions, and moved
/// pieces.
fn mutate(r: &Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + r.below(3) {
        if bytes.is_empty() {
            return;
        }
        // The end of a block describes the layout of the rest: half of the changes go there.
        let n = bytes.len() as u64;
        let at = if r.one_in(2) {
            r.below(n)
        } else {
            n - 1 - r.below(n.min(24))
        } as usize;
        match r.below(7) {
            0 => bytes[at] ^= 1 << r.below(8),
            1 => bytes[at] = any_of(r, &[0, 1, 0x7f, 0x80, 0xff, 254, 253]),
            2 => {
                let v = any_of(
                    r,
                    &[0u32, 1, u32::MAX, i32::MAX as u32, n as u32, n as u32 - 1],
                );
                for (i, b) in v.to_le_bytes().into_iter().enumerate() {
                    if let Some(x) = bytes.get_mut(at + i) {
                        *x = b;
                    }
                }
            }
            3 => bytes.truncate(at),
            4 => bytes.insert(at, r.next_u64() as u8),
            5 => {
                bytes.remove(at);
            }
            _ => {
                let from = r.below(n) as usize;
                let len = (r.below(16) as usize).min(bytes.len() - at.max(from));
                bytes.copy_within(from..from + len, at);
            }
        }
    }
}

/// Runs every reader of a data block's payload. Errors are fine; panics and endless walks are not.
fn exercise_block(r: &Random, payload: &[u8]) {
    let bytes = Bytes::copy_from_slice(payload);
    let most = payload.len() + 1;
    for cmp in [Cmp::Bytewise, Cmp::Custom(Arc::new(NoCase))] {
        let key = random_key(r, 1);
        let hash = cmp.equality_is_bytewise().then(|| filter::key_hash(&key));
        let _ = block::get(payload, &cmp, &key, r.below(300), hash);
        let _ = block::get(payload, &cmp, &key, r.below(300), None);
        let mut c = block::BlockCursor::new();
        if c.load(bytes.clone()).is_err() {
            return;
        }
        let mut steps = 0;
        let _ = c.seek_to_first();
        while c.valid() && c.next().is_ok() {
            steps += 1;
            assert!(steps <= most, "endless");
        }
        let _ = c.seek_to_last();
        steps = 0;
        while c.valid() {
            let _ = (c.key().len(), c.value().len(), c.pinned_value().len());
            if c.prev().is_err() {
                break;
            }
            steps += 1;
            assert!(steps <= most, "endless");
        }
        let _ = c.seek(&cmp, &internal_key(&key, seek_trailer(r.below(300))));
        if c.valid() {
            let _ = c.prev();
        }
        let _ = c.check_all(Some(filter::key_hash));
    }
}

#[test]
fn decoders_do_not_panic_on_mutated_bytes() {
    let path = Path::new("t");
    let seed = 0xf022;
    println!("repeat with: seed {seed:#x}");
    let r = Random::from_seed(seed);
    let (_, env, meta, _, bytes) = {
        let options = TableOptions {
            block_bytes: 700,
            ..options(Cmp::Bytewise)
        };
        sample(6, 120, 20, &options, 77)
    };
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let top = t
        .read_block(BlockKind::TopIndex, &t.footer.top)
        .expect("top");
    let properties = t
        .read_block(BlockKind::Properties, &t.footer.properties)
        .expect("properties");
    let partition_handle = t.partition_handle(0).expect("handle");
    let partition = t
        .read_block(BlockKind::Index, &partition_handle)
        .expect("partition");
    let p = index::IndexBlock::new(partition.clone()).expect("partition");
    let blocks: Vec<Bytes> = (0..p.len())
        .map(|j| {
            let h = t.data_handle(&p, 0, j).expect("handle");
            t.read_block(BlockKind::Data, &h).expect("block")
        })
        .collect();
    let mutations = 100_000 * scale();
    for i in 0..mutations {
        match i % 8 {
            0..5 => {
                let mut b = any_of(&r, &blocks).to_vec();
                mutate(&r, &mut b);
                exercise_block(&r, &b);
            }
            5 => {
                let mut b = any_of(&r, &[top.clone(), partition.clone()]).to_vec();
                mutate(&r, &mut b);
                if let Ok(b) = index::IndexBlock::new(Bytes::from(b)) {
                    let target = internal_key(&random_key(&r, 1), seek_trailer(5));
                    if let Ok(i) = b.seek(&Cmp::Bytewise, &target)
                        && i < b.len()
                    {
                        let _ = b.entry(i);
                    }
                    let _ = b.check_all(&Cmp::Bytewise);
                }
            }
            6 => {
                let mut b = properties.to_vec();
                mutate(&r, &mut b);
                let _ = Properties::decode(path, 0, &b);
            }
            _ => {
                // The damage stands behind a checksum that fits, as a hostile writer would make it.
                let mut f = bytes[bytes.len() - FOOTER_LEN..].to_vec();
                let at = r.below(112) as usize;
                f[at] = r.next_u64() as u8;
                let sum = block_checksum(
                    BlockKind::Footer,
                    0,
                    77,
                    meta.size - FOOTER_LEN as u64,
                    &f[..112],
                );
                f[112..120].copy_from_slice(&sum.to_le_bytes());
                let _ = Footer::decode(path, 77, meta.size, &f);
                let mut h = bytes[..HEADER_LEN].to_vec();
                mutate(&r, &mut h);
                let _ = Header::decode(path, &h);
            }
        }
    }
    println!("mutations={mutations}");
}

#[test]
fn hostile_tables_with_valid_checksums_do_no_harm() {
    let seed = 0x4057;
    println!("repeat with: seed {seed:#x}");
    let r = Random::from_seed(seed);
    let path = Path::new("t");
    let options = TableOptions {
        block_bytes: 300,
        compression: Compression::Lz4,
        ..options(Cmp::Bytewise)
    };
    let (fs, env, meta, entries, bytes) = sample(7, 200, 60, &options, 77);
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let mut places = vec![
        (BlockKind::TopIndex, t.footer.top),
        (BlockKind::Properties, t.footer.properties),
    ];
    for i in 0..t.top.len() {
        let h = t.partition_handle(i).expect("handle");
        places.push((BlockKind::Index, h));
        let p = t.partition(i, &h, false).expect("partition");
        for j in 0..p.len() {
            places.push((
                BlockKind::Data,
                t.data_handle(&p, h.offset, j).expect("handle"),
            ));
        }
    }
    let mut opened = 0;
    for _ in 0..2000 * scale() {
        let mut image = bytes.clone();
        // The index leads readers to blocks, so half of the changes go there.
        let (kind, h) = if r.one_in(2) {
            places[r.below(4) as usize]
        } else {
            any_of(&r, &places)
        };
        let (at, len) = (h.offset as usize, h.stored as usize);
        let mut payload = image[at..at + len].to_vec();
        mutate(&r, &mut payload);
        payload.resize(len, 0);
        let method = image[at + len];
        let sum = block_checksum(kind, method, 77, h.offset, &payload);
        image[at..at + len].copy_from_slice(&payload);
        image[at + len + 1..at + len + 9].copy_from_slice(&sum.to_le_bytes());
        fs.write_file(path, &image).expect("write");
        let file = env.fs().open(path).expect("open");
        let Ok(t) = TableReader::open(&env, file, path, 77, meta.size, Cmp::Bytewise) else {
            continue;
        };
        opened += 1;
        for _ in 0..20 {
            let (user, _) = split_internal_key(&entries[r.below(entries.len() as u64) as usize].0);
            let _ = t.get(user, r.below(400), true);
        }
        let _ = t.verify(&meta);
        let mut it = t.iter(any_of(&r, &[ReadPattern::Cached, ReadPattern::Compaction]));
        let mut steps = 0;
        let _ = it.seek_to_first();
        while it.valid() && it.next().is_ok() && steps < 100_000 {
            steps += 1;
        }
        let _ = it.seek_to_last();
        while it.valid() && it.prev().is_ok() && steps < 200_000 {
            steps += 1;
        }
        let _ = it.seek_for_prev(&internal_key(b"user0001", seek_trailer(9)));
        assert!(steps < 100_000, "endless");
        let file = env.fs().open(path).expect("open");
        let _ = TableReader::inspect(&env, file, path, Cmp::Bytewise);
    }
    println!("opened={opened}");
    assert!(opened > scale().floor(1000));
}

#[test]
fn blocks_that_claim_to_expand_too_far_are_refused() {
    let path = Path::new("t");
    let zeros = vec![0u8; 4 << 20];
    for (method, stored) in [
        (1u8, compressed(Compression::Lz4, &zeros).expect("lz4")),
        (2, compressed(Compression::Zstd, &zeros).expect("zstd")),
    ] {
        let try_raw = |raw: usize| {
            let handle = BlockHandle {
                offset: 64,
                stored: stored.len() as u32,
                raw: raw as u32,
            };
            let mut disk = stored.clone();
            disk.push(method);
            let sum = block_checksum(BlockKind::Data, method, 1, 64, &stored);
            disk.extend_from_slice(&sum.to_le_bytes());
            open_block(path, 1, BlockKind::Data, &handle, Bytes::from(disk))
        };
        assert_eq!(try_raw(zeros.len()).expect("honest"), zeros);
        for lie in [
            0,
            1,
            1000,
            zeros.len() - 1,
            zeros.len() + 1,
            MAX_COMPRESSED_RAW,
            MAX_COMPRESSED_RAW + 1,
            u32::MAX as usize,
        ] {
            assert!(try_raw(lie).expect_err("lie").is_corruption());
        }
    }
}

#[test]
fn inspect_counts_readable_entries_and_verify_checks_the_digest() {
    let options = TableOptions {
        block_bytes: 500,
        ..options(Cmp::Bytewise)
    };
    let (fs, env, meta, entries, bytes) = sample(8, 300, 20, &options, 77);
    let path = Path::new("t");
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let wrong = TableMeta {
        digest: meta.digest ^ 1,
        ..meta.clone()
    };
    assert!(t.verify(&wrong).expect_err("digest").is_corruption());
    let wrong = TableMeta {
        entries: meta.entries + 1,
        ..meta.clone()
    };
    assert!(t.verify(&wrong).expect_err("entries").is_corruption());
    let mut image = bytes.clone();
    image[HEADER_LEN + 20] ^= 1;
    fs.write_file(path, &image).expect("write");
    let file = env.fs().open(path).expect("open");
    let left = TableReader::inspect(&env, file, path, Cmp::Bytewise).expect("inspect");
    assert!(left.entries < meta.entries && left.entries > meta.entries / 2);
    assert_eq!(left.largest, meta.largest);
    assert!(entries.iter().any(|(k, _)| *k == left.smallest));
    assert_eq!(left.size, meta.size);
}
