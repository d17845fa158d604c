//! The table's promises, against models: what was added comes back at every snapshot and from every
//! direction, and damage is an error. Every failure names the seed that repeats it.

mod damage;
mod format;
mod neighbour_reads;
mod ranges;
mod sectors;

use super::*;
use crate::InternalIter;
use crate::format::filter;
use basalt_env::{Env, IoPriority, Random};
use basalt_fs::ErrorKind;
use basalt_kv::entry::FoundEntry;
use basalt_kv::key::{
    Comparator, Kind, MAX_SEQ, internal_key, pack_trailer, seek_trailer, split_internal_key,
    trailer_seq,
};
use basalt_kv::prefix::PrefixExtractor;
pub(super) use basalt_sim::campaign::scale;
use basalt_sim::{SimFs, SimOptions};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

pub(super) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A comparator whose equality is not that of bytes: there is no filter and no hash index.
pub(super) struct NoCase;
impl Comparator for NoCase {
    fn name(&self) -> &str {
        "test.nocase"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

/// A descending comparator with bytewise equality: the table uses hash index and filter, in a
/// user's order.
pub(super) struct Reverse;
impl Comparator for Reverse {
    fn name(&self) -> &str {
        "test.reverse"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }
    fn separator(&self, a: &[u8], b: &[u8]) -> Vec<u8> {
        // The separator is sometimes outside its bounds: the builder must not trust it.
        if a.len().is_multiple_of(2) {
            b.to_vec()
        } else {
            a.to_vec()
        }
    }
    fn equality_is_bytewise(&self) -> bool {
        true
    }
}

pub(super) fn sim_env(cache_bytes: u64) -> (Arc<SimFs>, Env) {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::builder(fs.clone())
        .stepped()
        .seed(7)
        .cache_bytes(cache_bytes)
        .build();
    (fs, env)
}

pub(super) fn options(cmp: Cmp) -> TableOptions {
    TableOptions {
        family: TableFamily::default(),
        cmp,
        block_bytes: 4096,
        filter_bits_per_key: 10,
        prefix_extractor: None,
        compression: Compression::None,
        warm_cache: false,
        flush_flag: None,
    }
}

pub(super) fn build(
    env: &Env,
    path: &Path,
    id: u128,
    options: &TableOptions,
    entries: &Entries,
) -> TableMeta {
    let file = env.fs().create(path).expect("create");
    let mut b = TableBuilder::new(env, file, path, id, options.clone(), IoPriority::High);
    for (k, v) in entries {
        b.add(k, v).expect("add");
    }
    let estimate = b.estimated_size();
    let meta = b.finish().expect("finish");
    // The current block counts with its bytes before compression.
    let slack = meta.size / 4 + 64 + options.block_bytes as u64;
    assert!(estimate <= meta.size + slack, "{estimate} {}", meta.size);
    env.fs().sync_metadata(Path::new("")).expect("sync names");
    meta
}

pub(super) fn open(env: &Env, path: &Path, meta: &TableMeta, cmp: &Cmp) -> Arc<TableReader> {
    let file = env.fs().open(path).expect("open");
    TableReader::open(env, file, path, meta.file_id, meta.size, cmp.clone()).expect("open table")
}

fn any_of<T: Clone>(r: &Random, of: &[T]) -> T {
    of[r.below(of.len() as u64) as usize].clone()
}

fn random_key(r: &Random, style: u64) -> Vec<u8> {
    match style {
        // Few letters in short keys give many shared prefixes, keys that are prefixes of others,
        // and the empty key.
        0 => (0..r.below(6)).map(|_| b'a' + r.below(3) as u8).collect(),
        1 => format!("user{:08}", r.below(5000)).into_bytes(),
        2 => (0..r.below(24)).map(|_| r.next_u64() as u8).collect(),
        3 => {
            let mut k = vec![b'x'; r.below(300) as usize];
            k.extend_from_slice(&r.below(100).to_be_bytes());
            k
        }
        // These keys have letters of both cases, for the comparator that ignores case.
        _ => (0..1 + r.below(4)).map(|_| any_of(r, b"aAbBcC")).collect(),
    }
}

pub(super) fn random_entries(
    r: &Random,
    cmp: &Cmp,
    n: u64,
    style: u64,
    most_value: u64,
) -> Entries {
    let versions = any_of(r, &[1, 3, 60]);
    let mut entries = Entries::new();
    let mut seqs: Vec<u64> = (0..n * 2).collect();
    for i in (1..seqs.len()).rev() {
        seqs.swap(i, r.below(i as u64 + 1) as usize);
    }
    while (entries.len() as u64) < n {
        let key = random_key(r, style);
        for _ in 0..1 + r.below(versions) {
            let kinds = [
                Kind::Put,
                Kind::Put,
                Kind::Delete,
                Kind::PutTtl,
                Kind::Merge,
            ];
            let kind = any_of(r, &kinds);
            let mut value = Vec::new();
            if kind == Kind::PutTtl {
                value.extend_from_slice(&r.next_u64().to_le_bytes());
            }
            if kind != Kind::Delete {
                let fill = r.next_u64() as u8;
                let noisy = r.one_in(2);
                value.extend(
                    (0..r.below(most_value + 1)).map(
                        |_| {
                            if noisy { r.next_u64() as u8 } else { fill }
                        },
                    ),
                );
            }
            let Some(seq) = seqs.pop() else { break };
            entries.push((internal_key(&key, pack_trailer(seq, kind)), value));
        }
        if seqs.is_empty() {
            break;
        }
    }
    entries.sort_by(|a, b| cmp.internal(&a.0, &b.0));
    entries
}

/// Returns the model's answer.
fn model_get<'a>(
    entries: &'a Entries,
    cmp: &Cmp,
    user: &[u8],
    seq: u64,
) -> Option<&'a (Vec<u8>, Vec<u8>)> {
    let target = internal_key(user, seek_trailer(seq));
    let at = entries.partition_point(|(k, _)| cmp.internal(k, &target) == Ordering::Less);
    entries
        .get(at)
        .filter(|(k, _)| cmp.user(split_internal_key(k).0, user) == Ordering::Equal)
}

pub(super) fn check_get(t: &TableReader, entries: &Entries, cmp: &Cmp, user: &[u8], seq: u64) {
    let found = t.get(user, seq, true).expect("get");
    let expected = model_get(entries, cmp, user, seq);
    match (&found, expected) {
        (None, None) => {}
        (Some(f), Some((k, v))) => {
            let (_, trailer) = split_internal_key(k);
            assert_eq!(f.seq, trailer_seq(trailer), "key {user:02x?} at {seq}");
            assert_eq!(f.kind as u8, trailer as u8);
            assert_eq!(&f.value[..], &v[..]);
        }
        _ => panic!("key {user:02x?} at {seq}: found {found:?}, expected {expected:?}"),
    }
}

pub(super) fn check_all_gets(t: &TableReader, entries: &Entries, cmp: &Cmp) {
    for (k, _) in entries {
        let (user, trailer) = split_internal_key(k);
        let seq = trailer_seq(trailer);
        for s in [seq, seq + 1, seq.saturating_sub(1), 0, MAX_SEQ] {
            check_get(t, entries, cmp, user, s);
        }
    }
}

/// Runs lookups side by side: each round reads the blocks that all of them need in one batch.
fn look_up_batch(
    t: &Arc<TableReader>,
    keys: &[&[u8]],
    seq: u64,
    fill_cache: bool,
) -> Vec<Option<FoundEntry>> {
    let target = |key: &[u8]| internal_key(key, seek_trailer(seq));
    let mut steps: Vec<LookupStep> = (keys.iter())
        .map(|k| Lookup::begin(t, k, &target(k), seq).expect("begin"))
        .collect();
    let mut rounds = 0;
    loop {
        let on = |s: &LookupStep| match s {
            LookupStep::On(lookup) => Some(lookup.wanted().clone()),
            LookupStep::Is(_) => None,
        };
        let wanted: Vec<Wanted> = steps.iter().filter_map(on).collect();
        if wanted.is_empty() {
            break;
        }
        let mut read = Wanted::read_batch(&wanted, fill_cache).into_iter();
        let feed = |(step, key): (LookupStep, &&[u8])| match step {
            LookupStep::On(lookup) => {
                let payload = read.next().expect("one a wish").expect("read");
                lookup.feed(&payload, key, &target(key), seq).expect("fed")
            }
            done => done,
        };
        steps = steps.into_iter().zip(keys).map(feed).collect();
        rounds += 1;
    }
    assert!(rounds <= 3, "filter, index, data: {rounds} rounds");
    let found = |s| match s {
        LookupStep::Is(found) => found,
        LookupStep::On(_) => unreachable!("all are done"),
    };
    steps.into_iter().map(found).collect()
}

/// Walks at random and compares each step with the model.
fn check_cursor(
    r: &Random,
    t: &Arc<TableReader>,
    entries: &Entries,
    cmp: &Cmp,
    pattern: ReadPattern,
    style: u64,
) {
    let mut it = t.iter(pattern);
    assert!(!it.valid());
    let mut n = 0;
    it.seek_to_first().expect("first");
    while it.valid() {
        assert_eq!(
            (it.key(), it.value()),
            (&entries[n].0[..], &entries[n].1[..])
        );
        n += 1;
        it.next().expect("next");
    }
    assert_eq!(n, entries.len());
    it.seek_to_last().expect("last");
    while it.valid() {
        n -= 1;
        assert_eq!(
            (it.key(), it.value()),
            (&entries[n].0[..], &entries[n].1[..])
        );
        it.prev().expect("prev");
    }
    assert_eq!(n, 0);
    let mut at: Option<usize> = None;
    for _ in 0..300 {
        let what = r.below(8);
        let target = if r.one_in(2) {
            let k = &entries[r.below(entries.len() as u64) as usize].0;
            let (user, trailer) = split_internal_key(k);
            let delta = r.below(3);
            internal_key(user, (trailer + (delta << 8)).saturating_sub(1 << 8))
        } else {
            internal_key(
                &random_key(r, style),
                seek_trailer(r.below(2 * entries.len() as u64)),
            )
        };
        match what {
            0 => {
                it.seek(&target).expect("seek");
                let i =
                    entries.partition_point(|(k, _)| cmp.internal(k, &target) == Ordering::Less);
                at = (i < entries.len()).then_some(i);
            }
            1 => {
                it.seek_for_prev(&target).expect("seek_for_prev");
                let i =
                    entries.partition_point(|(k, _)| cmp.internal(k, &target) != Ordering::Greater);
                at = i.checked_sub(1);
            }
            2 if r.one_in(10) => {
                it.seek_to_first().expect("first");
                at = Some(0);
            }
            3 if r.one_in(10) => {
                it.seek_to_last().expect("last");
                at = Some(entries.len() - 1);
            }
            n => {
                for _ in 0..r.below(40) {
                    let Some(i) = at else { break };
                    if n % 2 == 0 {
                        it.next().expect("next");
                        at = (i + 1 < entries.len()).then_some(i + 1);
                    } else {
                        it.prev().expect("prev");
                        at = i.checked_sub(1);
                    }
                    assert_eq!(it.valid(), at.is_some());
                    if let Some(i) = at {
                        assert_eq!(it.key(), entries[i].0);
                    }
                }
            }
        }
        assert_eq!(it.valid(), at.is_some());
        if let Some(i) = at {
            assert_eq!(
                (it.key(), it.value()),
                (&entries[i].0[..], &entries[i].1[..])
            );
            assert_eq!(it.pinned_value(), entries[i].1);
        }
    }
}

pub(super) fn check_meta(meta: &TableMeta, entries: &Entries) {
    assert_eq!(meta.entries, entries.len() as u64);
    assert_eq!(meta.smallest, entries[0].0);
    assert_eq!(meta.largest, entries[entries.len() - 1].0);
    let seqs = || {
        entries
            .iter()
            .map(|(k, _)| trailer_seq(split_internal_key(k).1))
    };
    assert_eq!(meta.min_seq, seqs().min().expect("some"));
    assert_eq!(meta.max_seq, seqs().max().expect("some"));
    let kinds = |kind: Kind| {
        entries
            .iter()
            .filter(move |(k, _)| split_internal_key(k).1 as u8 == kind as u8)
    };
    assert_eq!(meta.deletes, kinds(Kind::Delete).count() as u64);
    let soonest = kinds(Kind::PutTtl)
        .map(|(_, v)| u64::from_le_bytes(v[..8].try_into().expect("expiry")))
        .min();
    assert_eq!(meta.soonest_expiry_ms, soonest.unwrap_or(u64::MAX));
}

#[test]
fn tables_answer_as_the_model() {
    for case in basalt_sim::campaign::cases(0..60 * scale()) {
        let _repeat = basalt_sim::repeat!(tables_answer_as_the_model, "BASALT_CASE={case}");
        let seed = 0x7ab1e + case;
        let r = Random::from_seed(seed);
        let style = r.below(5);
        let cmp = any_of(
            &r,
            &[
                Cmp::Bytewise,
                Cmp::Bytewise,
                Cmp::Custom(Arc::new(NoCase)),
                Cmp::Custom(Arc::new(Reverse)),
            ],
        );
        let options = TableOptions {
            family: TableFamily::default(),
            cmp: cmp.clone(),
            flush_flag: None,
            block_bytes: any_of(&r, &[64, 200, 1000, 4096, 65536]),
            filter_bits_per_key: any_of(&r, &[0, 1, 10, 20, 64]),
            prefix_extractor: match cmp {
                Cmp::Bytewise => any_of(
                    &r,
                    &[
                        None,
                        Some(Prefixes::Fixed(2)),
                        Some(Prefixes::Capped(5)),
                        Some(Prefixes::Delimited(b'b')),
                    ],
                ),
                _ => None,
            },
            compression: any_of(
                &r,
                &[Compression::None, Compression::Lz4, Compression::Zstd],
            ),
            warm_cache: r.one_in(2),
        };
        let n = 1 + r.below(any_of(&r, &[3, 100, 1500]));
        let most_value = any_of(&r, &[0, 20, 200, 2000]);
        let entries = random_entries(&r, &cmp, n, style, most_value);
        let (_, env) = sim_env(any_of(&r, &[0, 20_000, 8 << 20]));
        let path = Path::new("t");
        let meta = build(&env, path, r.next_u128(), &options, &entries);
        check_meta(&meta, &entries);
        let t = open(&env, path, &meta, &cmp);
        let verified = t.verify(&meta).expect("verify");
        assert_eq!(
            (verified.entries, verified.bytes),
            (meta.entries, meta.size)
        );
        check_all_gets(&t, &entries, &cmp);
        for _ in 0..200 {
            let seq = r.below(2 * entries.len() as u64);
            check_get(&t, &entries, &cmp, &random_key(&r, style), seq);
        }
        let mut keys: Vec<Vec<u8>> = (0..50).map(|_| random_key(&r, style)).collect();
        keys.extend(
            entries
                .iter()
                .map(|(k, _)| split_internal_key(k).0.to_vec()),
        );
        if r.one_in(2) {
            keys.sort_by(|a, b| cmp.user(a, b));
        }
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let seq = r.below(2 * entries.len() as u64);
        let many = look_up_batch(&t, &keys, seq, r.one_in(2));
        for (key, found) in keys.iter().zip(many) {
            let expected = model_get(&entries, &cmp, key, seq);
            assert_eq!(found.is_some(), expected.is_some());
            if let (Some(f), Some((k, v))) = (found, expected) {
                assert_eq!(f.seq, trailer_seq(split_internal_key(k).1));
                assert_eq!(&f.value[..], &v[..]);
            }
        }
        for pattern in [
            ReadPattern::Cached,
            ReadPattern::Uncached,
            ReadPattern::Compaction,
        ] {
            check_cursor(&r, &t, &entries, &cmp, pattern, style);
        }
        let file = env.fs().open(path).expect("open");
        assert_eq!(
            TableReader::inspect(&env, file, path, cmp.clone()).expect("inspect"),
            meta
        );
        let mut last = 0;
        for (k, _) in &entries {
            let at = t.approximate_offset(k, true).expect("offset");
            assert!(at >= last && at < meta.size);
            last = at;
        }
    }
}

#[test]
fn the_longest_keys_and_large_values_read_back() {
    let seed = 0xb16;
    println!("repeat with: seed {seed:#x}");
    let r = Random::from_seed(seed);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mut entries = Entries::new();
        for (i, len) in [0, 1, 1000, 64 << 10, 65536 - 512, 65535, 5 << 20, 5 << 20]
            .into_iter()
            .enumerate()
        {
            let value: Vec<u8> = if i % 2 == 0 {
                (0..len).map(|_| r.next_u64() as u8).collect()
            } else {
                vec![i as u8; len]
            };
            let mut key = vec![b'k'; if i % 3 == 0 { 64 << 10 } else { 5 }];
            *key.last_mut().expect("a byte") = i as u8;
            entries.push((internal_key(&key, pack_trailer(i as u64, Kind::Put)), value));
            entries.push((
                internal_key(&[i as u8], pack_trailer(50, Kind::Put)),
                vec![1; 100],
            ));
        }
        entries.sort_by(|a, b| Cmp::Bytewise.internal(&a.0, &b.0));
        let (_, env) = sim_env(64 << 20);
        let path = Path::new("t");
        let options = TableOptions {
            compression,
            ..options(Cmp::Bytewise)
        };
        let meta = build(&env, path, 99, &options, &entries);
        check_meta(&meta, &entries);
        let t = open(&env, path, &meta, &Cmp::Bytewise);
        t.verify(&meta).expect("verify");
        check_all_gets(&t, &entries, &Cmp::Bytewise);
        for pattern in [ReadPattern::Cached, ReadPattern::Compaction] {
            check_cursor(&r, &t, &entries, &Cmp::Bytewise, pattern, 1);
        }
    }
}

#[test]
fn versions_of_one_key_may_span_restarts_blocks_and_partitions() {
    let (_, env) = sim_env(1 << 20);
    for block_bytes in [64, 512, 4096] {
        let mut entries = Entries::new();
        for (key, versions) in [
            (&b"a"[..], 3),
            (b"b", 3000),
            (b"ba", 1),
            (b"c", 17),
            (b"d", 16),
        ] {
            for s in (0..versions).rev() {
                entries.push((
                    internal_key(key, pack_trailer(s * 2 + 1, Kind::Put)),
                    s.to_le_bytes().to_vec(),
                ));
            }
        }
        let name = format!("t{block_bytes}");
        let path = Path::new(&name);
        let options = TableOptions {
            block_bytes,
            ..options(Cmp::Bytewise)
        };
        let meta = build(&env, path, block_bytes as u128, &options, &entries);
        let t = open(&env, path, &meta, &Cmp::Bytewise);
        t.verify(&meta).expect("verify");
        for key in [&b"a"[..], b"b", b"ba", b"bb", b"c", b"d", b""] {
            for seq in 0..6010 {
                check_get(&t, &entries, &Cmp::Bytewise, key, seq);
            }
        }
    }
}

#[test]
fn a_filter_of_ten_bits_has_few_false_positives() {
    let (_, env) = sim_env(64 << 20);
    let n = 100_000u64;
    let entries: Entries = (0..n)
        .map(|i| {
            (
                internal_key(&(i * 2).to_be_bytes(), pack_trailer(i, Kind::Put)),
                vec![],
            )
        })
        .collect();
    let path = Path::new("t");
    let meta = build(&env, path, 1, &options(Cmp::Bytewise), &entries);
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let mut passed = 0;
    for i in 0..n {
        let hash = filter::key_hash(&(i * 2 + 1).to_be_bytes());
        passed += u64::from(t.filter_may_contain(hash, true).expect("filter"));
        let hash = filter::key_hash(&(i * 2).to_be_bytes());
        assert!(t.filter_may_contain(hash, true).expect("filter"));
    }
    basalt_sim::campaign!("false positives: {passed} of {n}");
    assert!(passed * 1000 <= n * 13, "{passed} of {n} false positives");
}

#[test]
fn a_table_is_refused_with_a_wrong_comparator_id_or_size() {
    let (_, env) = sim_env(1 << 20);
    let r = Random::from_seed(1);
    let entries = random_entries(&r, &Cmp::Bytewise, 50, 1, 30);
    let path = Path::new("t");
    let meta = build(&env, path, 5, &options(Cmp::Bytewise), &entries);
    let file = || env.fs().open(path).expect("open");
    let kind = |id, size, cmp| {
        TableReader::open(&env, file(), path, id, size, cmp)
            .err()
            .map(|e| e.kind())
    };
    assert_eq!(
        kind(5, meta.size, Cmp::Custom(Arc::new(Reverse))),
        Some(ErrorKind::InvalidArgument)
    );
    for (id, size) in [
        (6, meta.size),
        (5, meta.size - 1),
        (5, meta.size + 1),
        (5, 0),
        (5, 100),
        (5, u64::MAX),
    ] {
        assert_eq!(kind(id, size, Cmp::Bytewise), Some(ErrorKind::Corruption));
    }
}

#[test]
#[should_panic(expected = "not strictly ascending")]
fn a_builder_refuses_keys_out_of_order() {
    let (_, env) = sim_env(0);
    let path = Path::new("t");
    let file = env.fs().create(path).expect("create");
    let mut b = TableBuilder::new(
        &env,
        file,
        path,
        1,
        options(Cmp::Bytewise),
        IoPriority::High,
    );
    b.add(&internal_key(b"k", pack_trailer(2, Kind::Put)), b"v")
        .expect("add");
    b.add(&internal_key(b"k", pack_trailer(2, Kind::Put)), b"v")
        .expect("add");
}

#[test]
fn reserved_kinds_are_unsupported() {
    let (_, env) = sim_env(0);
    let path = Path::new("t");
    let file = env.fs().create(path).expect("create");
    let mut b = TableBuilder::new(
        &env,
        file,
        path,
        1,
        options(Cmp::Bytewise),
        IoPriority::High,
    );
    let e = b
        .add(&internal_key(b"k", pack_trailer(2, Kind::Prepare)), b"v")
        .expect_err("reserved");
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

/// A device error ends the table: later calls repeat it, and no caller takes the file for whole.
#[test]
fn a_failed_write_or_sync_fails_the_builder_for_good() {
    use basalt_sim::fault::{Fault, FaultFs, FaultKind};
    use basalt_sim::{OpKind, When};
    let r = Random::from_seed(3);
    let noise: Vec<u8> = (0..40_000).map(|_| r.next_u64() as u8).collect();
    let large = vec![7; 3 << 20];
    for (op, kind) in [
        (OpKind::Append, FaultKind::Eio),
        (OpKind::Append, FaultKind::Enospc),
        (OpKind::Append, FaultKind::ShortWrite),
        (OpKind::SyncAll, FaultKind::FailedSync),
    ] {
        let mut failed = 0;
        for nth in 1..100 {
            let fs = FaultFs::new(SimFs::new(SimOptions::default()), 1);
            let rule = fs.inject(Fault {
                op: Some(op),
                path: String::new(),
                when: When::Nth(nth),
                kind,
            });
            let env = Env::builder(fs.clone()).stepped().seed(1).build();
            let path = Path::new("t");
            let file = env.fs().create(path).expect("create");
            let mut b = TableBuilder::new(
                &env,
                file,
                path,
                1,
                options(Cmp::Bytewise),
                IoPriority::High,
            );
            let mut first: Option<basalt_fs::Error> = None;
            for i in 0..120u64 {
                let key = internal_key(&i.to_be_bytes(), pack_trailer(i, Kind::Put));
                let value = if i == 60 { &large } else { &noise };
                match (b.add(&key, value), &first) {
                    (Ok(()), None) => {}
                    (Err(e), None) => first = Some(e),
                    (Err(e), Some(f)) => assert_eq!(e.kind(), f.kind()),
                    (Ok(()), Some(f)) => panic!("an entry was taken after {f}"),
                }
            }
            let finished = b.finish();
            if fs.seen(rule) < nth {
                assert!(finished.is_ok());
                break;
            }
            finished.expect_err("a table that could not be written");
            failed += 1;
        }
        assert!((1..99).contains(&failed), "{failed} places failed");
    }
}

/// An extractor that claims a built-in name, and cuts no prefixes.
struct Impostor;
impl PrefixExtractor for Impostor {
    fn name(&self) -> &str {
        "basalt.fixed:2"
    }
    fn prefix_len(&self, _: &[u8]) -> Option<usize> {
        None
    }
}

#[test]
fn verification_finds_a_filter_without_the_prefixes_it_claims() {
    let entries: Entries = (0..50)
        .map(|n| {
            let key = format!("{n:03}").into_bytes();
            (internal_key(&key, pack_trailer(n, Kind::Put)), Vec::new())
        })
        .collect();
    let path = Path::new("t");
    for (prefixes, sound) in [
        (Prefixes::Fixed(2), true),
        (Prefixes::Custom(Arc::new(Impostor)), false),
    ] {
        let (_, env) = sim_env(0);
        let options = TableOptions {
            prefix_extractor: Some(prefixes),
            ..options(Cmp::Bytewise)
        };
        let meta = build(&env, path, 5, &options, &entries);
        let verified = open(&env, path, &meta, &Cmp::Bytewise).verify(&meta);
        match verified {
            Ok(_) => assert!(sound),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                assert!(
                    !sound && e.to_string().contains("filter lacks prefix"),
                    "{e}"
                );
            }
        }
    }
}
