//! Tables and their parts as targets of mutators: what each may be fed with, and what must hold
//! whatever it is fed with.
//!
//! Compiled for tests and under coverage-guided fuzzing (`--cfg fuzzing`) only. The list with the
//! promise that each checks is in `docs/testing/fuzzing.md`.

use super::format::filter;
use super::format::{
    BlockHandle, BlockKind, FOOTER_LEN, FOOTER_MAGIC, Footer, HEADER_LEN, HEADER_MAGIC, Header,
    MAX_COMPRESSED_RAW, block_checksum, open_block,
};
use super::properties::Properties;
use super::salvage::{KnownTable, salvage};
use super::{
    ReadPattern, TableBuilder, TableFamily, TableIter, TableMeta, TableOptions, TableReader, block,
    index,
};
use crate::InternalIter;
use basalt_env::{Env, EnvBuilder, IoPriority};
use basalt_fs::{Bytes, FileSystem};
use basalt_kv::codec::Compression;
use basalt_kv::codec::compressed;
use basalt_kv::key::{Cmp, Kind, internal_key, pack_trailer, seek_trailer, split_internal_key};
use basalt_kv::ranges::Fragments;
use basalt_sim::mutate::file_of;
use basalt_sim::mutate::{Target, Verdict};
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::sync::{Arc, OnceLock};

const ID: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
const PATH: &str = "table";
/// Bytes of the file that a lone footer claims to end.
const FOOTED: u64 = 1 << 20;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "table",
        run: table,
        seeds: || {
            let golden =
                basalt_sim::mutate::golden_bytes(include_str!("../../../docs/format/table.md"));
            vec![golden, sample().bytes.clone()]
        },
        words: &[&HEADER_MAGIC, &FOOTER_MAGIC],
    },
    Target {
        name: "table_block_replaced",
        run: table_block_replaced,
        seeds: || {
            let s = sample();
            let seed = |i: usize| [&[i as u8][..], s.payload(i)].concat();
            (0..s.places.len()).map(seed).collect()
        },
        words: &[],
    },
    Target {
        name: "table_header",
        run: table_header,
        seeds: || vec![sample().bytes[..HEADER_LEN].to_vec()],
        words: &[&HEADER_MAGIC],
    },
    Target {
        name: "table_footer",
        run: table_footer,
        seeds: || {
            let b = &sample().bytes;
            vec![b[b.len() - FOOTER_LEN..].to_vec()]
        },
        words: &[&FOOTER_MAGIC],
    },
    Target {
        name: "table_properties",
        run: table_properties,
        seeds: || vec![sample().of(BlockKind::Properties)],
        words: &[],
    },
    Target {
        name: "data_block",
        run: data_block,
        seeds: || {
            let s = sample();
            let of = |i: &usize| s.places[*i].0 == BlockKind::Data;
            let data = (0..s.places.len()).filter(of);
            data.map(|i| s.payload(i).to_vec()).collect()
        },
        words: &[],
    },
    Target {
        name: "index_block",
        run: index_block,
        seeds: || {
            let s = sample();
            vec![s.of(BlockKind::TopIndex), s.of(BlockKind::Index)]
        },
        words: &[],
    },
    Target {
        name: "filter_page",
        run: filter_page,
        seeds: || {
            let page = [7u8; 64 * 2];
            vec![[&[6, 200, 0, 0, 0][..], b"key of it", &page].concat()]
        },
        words: &[],
    },
    Target {
        name: "ranges_block",
        run: ranges_block,
        seeds: || vec![sample().of(BlockKind::Ranges)],
        words: &[b"rng\x01"],
    },
    Target {
        name: "block_envelope",
        run: block_envelope,
        seeds: || {
            let raw = b"compress me compress me compress me compress me".repeat(9);
            let len = (raw.len() as u32).to_le_bytes();
            let lz4 = compressed(Compression::Lz4, &raw).expect("lz4");
            let zstd = compressed(Compression::Zstd, &raw).expect("zstd");
            vec![
                [&[1][..], &len, &lz4].concat(),
                [&[2][..], &len, &zstd].concat(),
                [&[0, 0, 0, 0, 0][..], &raw].concat(),
            ]
        },
        words: &[],
    },
];

/// Returns an environment over a simulated disk that caches nothing: mutants of one file share its
/// id.
fn env(fs: Arc<SimFs>) -> Env {
    EnvBuilder::for_tests(fs, 7).cache_bytes(0).build()
}

/// Returns the thread's environment for readers of images.
fn idle_env() -> Env {
    thread_local! {
        static ENV: Env = env(SimFs::new(SimOptions::default()));
    }
    ENV.with(Env::clone)
}

struct Sample {
    bytes: Vec<u8>,
    /// Kind and payload range of every block but header, footer and filter pages.
    places: Vec<(BlockKind, std::ops::Range<usize>)>,
    keys: Vec<Vec<u8>>,
    meta: TableMeta,
}

impl Sample {
    fn payload(&self, place: usize) -> &[u8] {
        &self.bytes[self.places[place].1.clone()]
    }

    fn of(&self, kind: BlockKind) -> Vec<u8> {
        let at = self.places.iter().position(|p| p.0 == kind);
        self.payload(at.expect("every table has one")).to_vec()
    }
}

/// Returns a sound table of several uncompressed data blocks, with versions, tombstones and
/// expiring values.
fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let fs = SimFs::new(SimOptions::default());
        let env = env(fs.clone());
        let path = Path::new(PATH);
        let file = fs.create(path).expect("create");
        let options = TableOptions {
            family: TableFamily::default(),
            cmp: Cmp::Bytewise,
            block_bytes: 300,
            filter_bits_per_key: 10,
            prefix_extractor: None,
            compression: Compression::None,
            warm_cache: false,
            flush_flag: None,
        };
        let mut b = TableBuilder::new(&env, file, path, ID, options, IoPriority::High);
        let mut keys = Vec::new();
        for i in 0..40u64 {
            let key = format!("user{:04}", i * 3).into_bytes();
            if i % 5 == 0 {
                let k = internal_key(&key, pack_trailer(200 + i, Kind::Delete));
                b.add(&k, b"").expect("add");
            }
            let (kind, value) = match i % 4 {
                0 => (Kind::PutTtl, (1_700_000_000_000 + i).to_le_bytes().to_vec()),
                3 => (Kind::Merge, vec![i as u8; 5]),
                _ => (Kind::Put, vec![i as u8; i as usize]),
            };
            let k = internal_key(&key, pack_trailer(1 + i, kind));
            b.add(&k, &value).expect("add");
            keys.push(key);
        }
        b.delete_range(b"user0010", b"user0020", &[90, 12]);
        b.delete_range(b"user0020", b"user0021", &[300]);
        b.delete_range(b"user0080", b"v", &[45]);
        let meta = b.finish().expect("finish");
        let bytes = fs.read_all(path).expect("read")[..meta.size as usize].to_vec();
        let t = TableReader::open(&env, file_of(&bytes), path, ID, meta.size, Cmp::Bytewise)
            .expect("a sound table");
        let span = |h: &BlockHandle| h.offset as usize..h.offset as usize + h.stored as usize;
        let mut places = vec![
            (BlockKind::TopIndex, span(&t.footer.top)),
            (BlockKind::Properties, span(&t.footer.properties)),
        ];
        let ranges = t.properties.ranges.iter();
        places.extend(ranges.map(|h| (BlockKind::Ranges, span(h))));
        for i in 0..t.top.len() {
            let h = t.partition_handle(i).expect("handle");
            places.push((BlockKind::Index, span(&h)));
            let p = t.partition(i, &h, false).expect("partition");
            for j in 0..p.len() {
                let data = t.data_handle(&p, h.offset, j).expect("handle");
                places.push((BlockKind::Data, span(&data)));
            }
        }
        Sample {
            bytes,
            places,
            keys,
            meta,
        }
    })
}

/// Reads any bytes as a block of range tombstones. An accepted block is what the builder would
/// write for its contents.
fn ranges_block(payload: &[u8]) -> Verdict {
    let mut ranges = Fragments::default();
    if super::ranges::read_block(&Cmp::Bytewise, payload, &mut ranges).is_err() {
        return Verdict::Refused;
    }
    let again = Fragments::build(&Cmp::Bytewise, ranges.iter(), None);
    assert!(ranges.iter().eq(again.iter()), "disjoint and in order");
    for p in ranges.iter() {
        let newest = ranges.newest(&Cmp::Bytewise, p.from, u64::MAX);
        assert!(newest.is_some_and(|n| n >= p.seq));
        let at = ranges.newest(&Cmp::Bytewise, p.from, p.seq);
        assert_eq!(at, Some(p.seq));
    }
    Verdict::Accepted
}

/// Reads any bytes as a table.
fn table(bytes: &[u8]) -> Verdict {
    let len = bytes.len() as u64;
    let id = bytes
        .len()
        .checked_sub(FOOTER_LEN)
        .and_then(|at| Footer::own_id(Path::new(PATH), len, &bytes[at..]))
        .unwrap_or(ID);
    walk(bytes, id, None)
}

/// Replaces one block's payload in a sound table by any bytes, under a checksum that fits. A
/// hostile writer can do this, and so would a bug in a writer. The input's first byte chooses the
/// block.
fn table_block_replaced(input: &[u8]) -> Verdict {
    let Some((which, payload)) = input.split_first() else {
        return Verdict::Refused;
    };
    let s = sample();
    let (kind, span) = &s.places[usize::from(*which) % s.places.len()];
    let mut bytes = s.bytes.clone();
    let n = payload.len().min(span.len());
    bytes[span.clone()][..n].copy_from_slice(&payload[..n]);
    bytes[span.clone()][n..].fill(0);
    let sum = block_checksum(*kind, 0, ID, span.start as u64, &bytes[span.clone()]);
    bytes[span.end] = 0;
    bytes[span.end + 1..][..8].copy_from_slice(&sum.to_le_bytes());
    walk(&bytes, ID, Some(&s.meta))
}

/// Does with a table everything that a reader can do. A table that verifies reads the same from
/// both ends and by points.
fn walk(bytes: &[u8], id: u128, meta: Option<&TableMeta>) -> Verdict {
    let path = Path::new(PATH);
    let len = bytes.len() as u64;
    let env = idle_env();
    let most = bytes.len();
    for known in [
        KnownTable::default(),
        KnownTable {
            file_id: Some(id),
            size: Some(len),
            shift: 5,
        },
    ] {
        let mut last: Option<Vec<u8>> = None;
        let _ = salvage(
            &*file_of(bytes),
            path,
            &known,
            &Cmp::Bytewise,
            &mut |k, _| {
                if let Some(last) = &last {
                    assert!(
                        Cmp::Bytewise.internal(last, k).is_lt(),
                        "salvage out of order"
                    );
                }
                last = Some(k.to_vec());
                Ok(())
            },
        );
    }
    let inspected = TableReader::inspect(&env, file_of(bytes), path, Cmp::Bytewise);
    let Ok(t) = TableReader::open(&env, file_of(bytes), path, id, len, Cmp::Bytewise) else {
        return Verdict::Refused;
    };
    for key in sample().keys.iter().step_by(7) {
        for seq in [0, 20, 300] {
            let _ = t.get(key, seq, true);
        }
        let _ = t.approximate_offset(&internal_key(key, seek_trailer(9)), true);
    }
    let _ = t.get(b"", u64::MAX, false);
    let (mut entries, mut forward) = (Vec::new(), true);
    let mut it: TableIter = t.iter(ReadPattern::Uncached);
    if it.seek_to_first().is_err() {
        forward = false;
    }
    while forward && it.valid() {
        entries.push((it.key().to_vec(), it.value().to_vec()));
        assert!(entries.len() <= most, "a cursor without an end");
        forward = it.next().is_ok();
    }
    let mut backward = t.iter(ReadPattern::Compaction);
    let (mut steps, mut whole) = (0, backward.seek_to_last().is_ok());
    while whole && backward.valid() {
        steps += 1;
        assert!(steps <= most, "a cursor without an end");
        whole = backward.prev().is_ok();
    }
    let _ = it.seek_for_prev(&internal_key(b"user0050", seek_trailer(9)));
    let meta = meta.cloned().or(inspected.ok());
    // The digest in the manifest belongs to the sound table, so this check must not compare it.
    let Some(mut meta) = meta else {
        return Verdict::Refused;
    };
    meta.digest = xxhash_rust::xxh3::xxh3_128(bytes);
    meta.size = len;
    meta.file_id = id;
    let Ok(verified) = t.verify(&meta) else {
        return Verdict::Refused;
    };
    assert!(forward && whole, "verified, and cannot be read");
    assert_eq!(verified.entries, entries.len() as u64);
    assert_eq!(steps, entries.len());
    for (k, v) in distinct(&entries) {
        let (user, trailer) = split_internal_key(k);
        let found = t.get(user, trailer >> 8, false).expect("verified");
        let found = found.expect("a verified entry is found");
        assert_eq!(
            (found.kind as u8, &found.value[..]),
            (k[user.len()], &v[..])
        );
    }
    Verdict::Accepted
}

/// Returns the entries without those that differ from the one before only in their kind, which no
/// engine writes.
fn distinct(entries: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
    entries.iter().enumerate().filter_map(|(i, e)| {
        let same = |b: &(Vec<u8>, Vec<u8>)| {
            let ((bu, bt), (u, t)) = (split_internal_key(&b.0), split_internal_key(&e.0));
            bu == u && bt >> 8 == t >> 8
        };
        (i == 0 || !same(&entries[i - 1])).then_some(e)
    })
}

/// Reads any bytes as a header, as they are and under a checksum that fits.
fn table_header(bytes: &[u8]) -> Verdict {
    let path = Path::new(PATH);
    let _ = Header::decode(path, bytes);
    let mut h = bytes.to_vec();
    h.resize(HEADER_LEN, 0);
    h[..8].copy_from_slice(&HEADER_MAGIC);
    let id = u128::from_le_bytes(h[16..32].try_into().expect("16 bytes"));
    let sum = block_checksum(BlockKind::Header, 0, id, 0, &h[..56]);
    h[56..].copy_from_slice(&sum.to_le_bytes());
    match Header::decode(path, &h) {
        Ok(header) => {
            let again = Header::decode(path, &header.encode()).expect("written by this build");
            assert_eq!(again, header);
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}

/// Reads any bytes as a footer, as they are and under a checksum that fits. The parts that it names
/// lie inside the file, in order.
fn table_footer(bytes: &[u8]) -> Verdict {
    let path = Path::new(PATH);
    let _ = Footer::decode(path, ID, FOOTED, bytes);
    let _ = Footer::own_id(path, FOOTED, bytes);
    let mut f = bytes.to_vec();
    f.resize(FOOTER_LEN, 0);
    f[72..80].copy_from_slice(&FOOTED.to_le_bytes());
    f[80..96].copy_from_slice(&ID.to_le_bytes());
    f[96..112].fill(0);
    let start = FOOTED - FOOTER_LEN as u64;
    // The last two parts must end where the footer begins. Without this, hardly a mutant would get
    // past the first check.
    let top = u64::from_le_bytes(f[0..8].try_into().expect("8 bytes"));
    let len = u64::from_le_bytes(f[8..16].try_into().expect("8 bytes"));
    if let Some(at) = top.checked_add(len).and_then(|n| n.checked_add(9))
        && start.checked_sub(9).is_some_and(|most| at <= most)
    {
        f[16..24].copy_from_slice(&at.to_le_bytes());
        f[24..32].copy_from_slice(&(start - at - 9).to_le_bytes());
    }
    let sum = block_checksum(BlockKind::Footer, 0, ID, start, &f[..112]);
    f[112..120].copy_from_slice(&sum.to_le_bytes());
    f[120..].copy_from_slice(&FOOTER_MAGIC);
    let Ok(footer) = Footer::decode(path, ID, FOOTED, &f) else {
        return Verdict::Refused;
    };
    assert!(footer.data_end <= footer.filter_offset && footer.filter_offset <= footer.index_offset);
    assert!(footer.index_offset < footer.top.offset && footer.properties.end() == start);
    for hash in [0, 1 << 32, u64::MAX] {
        if footer.filter_lines > 0 {
            let (page, at) = filter::locate(hash, footer.filter_lines);
            assert!(page < filter::pages(footer.filter_lines));
            let payload = filter::page_payload(footer.filter_lines, page);
            assert!(at + filter::LINE_BYTES <= payload);
            let page_end = footer.filter_offset + page * filter::PAGE_BYTES as u64 + payload as u64;
            assert!(page_end < footer.index_offset);
        }
    }
    Verdict::Accepted
}

/// Reads any bytes as properties. Accepted properties are written back to the same properties.
fn table_properties(bytes: &[u8]) -> Verdict {
    let path = Path::new(PATH);
    match Properties::decode(path, 0, bytes) {
        Ok(p) => {
            let again = Properties::decode(path, 0, &p.encode()).expect("written by this build");
            assert_eq!(again, p);
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}

/// Reads any bytes as a data block: cursors end. A block that passes all checks reads the same from
/// both ends, and by points.
fn data_block(payload: &[u8]) -> Verdict {
    let bytes = Bytes::copy_from_slice(payload);
    let most = payload.len();
    let cmp = Cmp::Bytewise;
    for key in [&b""[..], b"user0003", b"user0060", b"zzz"] {
        for seq in [0, 30, 300] {
            let _ = block::get(payload, &cmp, key, seq, Some(filter::key_hash(key)));
            let _ = block::get(payload, &cmp, key, seq, None);
        }
    }
    let mut c = block::BlockCursor::new();
    if c.load(bytes.clone()).is_err() {
        return Verdict::Refused;
    }
    let (mut entries, mut good) = (Vec::new(), c.seek_to_first().is_ok());
    while good && c.valid() {
        entries.push((c.key().to_vec(), c.value().to_vec()));
        assert!(entries.len() <= most, "a cursor without an end");
        good = c.next().is_ok();
    }
    let (mut back, mut back_good) = (Vec::new(), c.seek_to_last().is_ok());
    while back_good && c.valid() {
        back.push((c.key().to_vec(), c.pinned_value().to_vec()));
        assert!(back.len() <= most, "a cursor without an end");
        back_good = c.prev().is_ok();
    }
    let _ = c.seek(&cmp, &internal_key(b"user0050", seek_trailer(9)));
    if c.valid() {
        let _ = c.prev();
    }
    let sound = c.check_all(Some(filter::key_hash)).is_ok()
        && good
        && entries.is_sorted_by(|a, b| cmp.internal(&a.0, &b.0).is_lt());
    if !sound {
        return Verdict::Refused;
    }
    back.reverse();
    assert!(back_good && back == entries, "the two directions differ");
    for (k, v) in distinct(&entries) {
        let (user, trailer) = split_internal_key(k);
        for hash in [None, Some(filter::key_hash(user))] {
            let hit = block::get(payload, &cmp, user, trailer >> 8, hash);
            let hit = hit.expect("a sound block").expect("an entry of it");
            assert_eq!(payload[hit.value.clone()], v[..]);
            assert_eq!(hit.seq, trailer >> 8);
        }
        c.seek(&cmp, k).expect("a sound block");
        assert!(c.valid() && c.key() == &k[..]);
    }
    Verdict::Accepted
}

/// Reads any bytes as an index block. A block that passes all checks finds each of its separators.
fn index_block(payload: &[u8]) -> Verdict {
    let cmp = Cmp::Bytewise;
    let Ok(b) = index::IndexBlock::new(Bytes::copy_from_slice(payload)) else {
        return Verdict::Refused;
    };
    assert!(b.len() * 4 <= payload.len());
    for key in [&b""[..], b"user0050", b"zzz"] {
        if let Ok(i) = b.seek(&cmp, &internal_key(key, seek_trailer(9))) {
            assert!(i <= b.len());
            if i < b.len() {
                let _ = b.entry(i);
            }
        }
    }
    if b.check_all(&cmp).is_err() {
        return Verdict::Refused;
    }
    for i in 0..b.len() {
        let (key, handle) = b.entry(i).expect("a sound block");
        assert_eq!(b.seek(&cmp, key).expect("a sound block"), i);
        let _ = (handle.end(), handle.is_inside(0, u64::MAX));
    }
    Verdict::Accepted
}

/// Tries any filter geometry and any line: every key's line lies in its page, and each added key is
/// found.
fn filter_page(input: &[u8]) -> Verdict {
    let Some((&[probes, a, b, c, d], rest)) = input.split_first_chunk::<5>() else {
        return Verdict::Refused;
    };
    let lines = u64::from(u32::from_le_bytes([a, b, c, d])).max(1);
    let probes = u32::from(probes) % (filter::MAX_PROBES + 1);
    let (key, page) = rest.split_at(rest.len().min(9));
    let hash = filter::key_hash(key);
    let (number, at) = filter::locate(hash, lines);
    assert!(number < filter::pages(lines));
    assert!(at + filter::LINE_BYTES <= filter::page_payload(lines, number));
    assert!(filter::disk_len(lines).is_some());
    assert!((1..=u64::from(u32::MAX)).contains(&filter::lines_for(lines << 20, probes)));
    let mut line = [0; filter::LINE_BYTES];
    let n = page.len().min(line.len());
    line[..n].copy_from_slice(&page[..n]);
    let before = filter::may_contain(&line, hash, probes);
    filter::add(&mut line, hash, probes);
    assert!(filter::may_contain(&line, hash, probes), "a false negative");
    Verdict::of(before)
}

/// Opens any compressed bytes that claim any length, under a checksum that fits: the result is an
/// error or has exactly the claimed length.
fn block_envelope(input: &[u8]) -> Verdict {
    let Some((&[method, a, b, c, d], stored)) = input.split_first_chunk::<5>() else {
        return Verdict::Refused;
    };
    let raw = u32::from_le_bytes([a, b, c, d]);
    let handle = BlockHandle {
        offset: 64,
        stored: stored.len() as u32,
        raw,
    };
    let mut disk = stored.to_vec();
    disk.push(method);
    let sum = block_checksum(BlockKind::Data, method, ID, 64, stored);
    disk.extend_from_slice(&sum.to_le_bytes());
    let disk = Bytes::from(disk);
    let path = Path::new(PATH);
    // The same bytes never pass as another kind.
    assert!(open_block(path, ID, BlockKind::Index, &handle, disk.clone()).is_err());
    match open_block(path, ID, BlockKind::Data, &handle, disk) {
        Ok(payload) if method == 0 => assert_eq!(payload, stored),
        Ok(payload) => {
            assert_eq!(payload.len(), raw as usize);
            assert!(payload.len() <= MAX_COMPRESSED_RAW);
        }
        Err(_) => return Verdict::Refused,
    }
    Verdict::Accepted
}

#[cfg(test)]
mod tests;
