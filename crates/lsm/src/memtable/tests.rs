//! Tests the memtable against a plain model, under threads, and in its memory.
//!
//! The tests named `small_*` are short enough to run under Miri: `cargo +nightly miri test -p
//! basalt-lsm memtable::tests::small`.

pub(super) mod hooks;

use super::*;
use basalt_env::Random;
use basalt_kv::key::{Comparator, MAX_SEQ, internal_key};
use basalt_sim::campaign::scale;
use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Orders shorter keys first, then compares the bytes from the end: very different from bytewise.
struct Backwards;

fn backwards(a: &[u8], b: &[u8]) -> Ordering {
    a.len()
        .cmp(&b.len())
        .then_with(|| a.iter().rev().cmp(b.iter().rev()))
}

impl Comparator for Backwards {
    fn name(&self) -> &str {
        "test.backwards"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        backwards(a, b)
    }
}

/// A key in the order of a test's comparator.
#[derive(Clone, PartialEq, Eq)]
struct Ordered(Vec<u8>, bool);

impl PartialOrd for Ordered {
    fn partial_cmp(&self, o: &Ordered) -> Option<Ordering> {
        Some(Ord::cmp(self, o))
    }
}
impl Ord for Ordered {
    fn cmp(&self, o: &Ordered) -> Ordering {
        if self.1 {
            backwards(&self.0, &o.0)
        } else {
            self.0.cmp(&o.0)
        }
    }
}

type Model = BTreeMap<(Ordered, Reverse<u64>), (Kind, Vec<u8>)>;

fn key_of(r: &Random) -> Vec<u8> {
    // The keys have few distinct bytes, zeros among them, and lengths around the 8 of the prefix.
    let len = r.below(12) as usize;
    (0..len)
        .map(|_| [0, 0, 1, 255][r.below(4) as usize])
        .collect()
}

fn value_of(r: &Random) -> Bytes {
    let len = match r.below(10) {
        0 => 0,
        1 => 511 + r.below(3),
        2 => 2000,
        _ => r.below(60),
    };
    Bytes::from((0..len).map(|_| r.next_u64() as u8).collect::<Vec<_>>())
}

fn model_run(seed: u64, ops: u64, custom: bool) {
    let r = Random::from_seed(seed);
    let cmp = if custom {
        Cmp::Custom(Arc::new(Backwards))
    } else {
        Cmp::Bytewise
    };
    let mem = MemTable::new(cmp);
    let mut model = Model::new();
    let say = format!("memtable model seed={seed} custom={custom}");
    for seq in 1..=ops {
        let (key, value) = (key_of(&r), value_of(&r));
        let kinds = [
            Kind::Put,
            Kind::Put,
            Kind::Delete,
            Kind::PutTtl,
            Kind::Merge,
        ];
        let kind = kinds[r.below(5) as usize];
        let value = if kind == Kind::Delete {
            Bytes::new()
        } else {
            value
        };
        mem.insert(&key, seq, kind, &value);
        model.insert((Ordered(key, custom), Reverse(seq)), (kind, value.to_vec()));
        let probe = key_of(&r);
        let at = r.below(seq + 2);
        let want = model
            .range((Ordered(probe.clone(), custom), Reverse(at))..)
            .next()
            .filter(|((k, _), _)| k.0 == probe);
        let got = mem.get(&probe, at);
        match (want, got) {
            (None, None) => {}
            (Some(((_, seq), (kind, value))), Some(f)) => {
                assert_eq!(
                    (seq.0, *kind, &value[..]),
                    (f.seq, f.kind, &f.value[..]),
                    "{say}"
                );
            }
            (w, g) => panic!("{say}: expected {:?}, found {g:?}", w.map(|(k, _)| k.1)),
        }
    }
    assert_eq!(mem.len(), model.len(), "{say}");
    let flat: Vec<(Vec<u8>, Vec<u8>)> = model
        .iter()
        .map(|((k, s), (kind, v))| (internal_key(&k.0, pack_trailer(s.0, *kind)), v.clone()))
        .collect();
    let mut it = mem.iter();
    assert!(!it.valid());
    it.seek_to_first().unwrap();
    for (k, v) in &flat {
        assert!(
            it.valid() && it.key() == k && it.value() == v && it.pinned_value() == v,
            "{say}"
        );
        it.next().unwrap();
    }
    assert!(!it.valid(), "{say}");
    it.seek_to_last().unwrap();
    for (k, v) in flat.iter().rev() {
        assert!(it.valid() && it.key() == k && it.value() == v, "{say}");
        it.prev().unwrap();
    }
    assert!(!it.valid(), "{say}");
    for _ in 0..ops.min(200) {
        let to = internal_key(&key_of(&r), seek_trailer(r.below(ops + 2)));
        let after = flat
            .iter()
            .position(|(k, _)| mem.cmp().internal(k, &to) != Ordering::Less);
        it.seek(&to).unwrap();
        assert_eq!(
            it.valid().then(|| it.key().to_vec()),
            after.map(|i| flat[i].0.clone()),
            "{say}"
        );
        let before = flat
            .iter()
            .rposition(|(k, _)| mem.cmp().internal(k, &to) != Ordering::Greater);
        it.seek_for_prev(&to).unwrap();
        assert_eq!(
            it.valid().then(|| it.key().to_vec()),
            before.map(|i| flat[i].0.clone()),
            "{say}"
        );
        if let Some(i) = before {
            it.seek_for_prev(&flat[i].0).unwrap();
            assert_eq!(
                it.key(),
                flat[i].0,
                "{say}: an entry is at or before itself"
            );
        }
    }
}

#[test]
fn the_memtable_equals_a_sorted_map() {
    for seed in basalt_sim::campaign::cases(0..20 * scale()) {
        let _repeat = basalt_sim::repeat!(the_memtable_equals_a_sorted_map, "BASALT_CASE={seed}");
        model_run(seed, 1500, seed % 4 == 3);
    }
}

#[test]
fn small_the_memtable_equals_a_sorted_map() {
    model_run(7, 60, false);
    model_run(8, 60, true);
}

#[test]
fn keys_with_equal_padded_prefixes_are_distinguished() {
    let mem = MemTable::new(Cmp::Bytewise);
    let keys: [&[u8]; 7] = [
        b"",
        b"\0",
        b"\0\0",
        b"ab",
        b"ab\0",
        b"ab\0\0\0\0\0\0",
        b"ab\0\0\0\0\0\0\0",
    ];
    for (i, k) in keys.iter().enumerate().rev() {
        mem.insert(k, 5, Kind::Put, &Bytes::from(vec![i as u8]));
    }
    for (i, k) in keys.iter().enumerate() {
        assert_eq!(mem.get(k, MAX_SEQ).unwrap().value[..], [i as u8]);
        assert!(mem.get(k, 4).is_none());
    }
    let mut it = mem.iter();
    it.seek_to_first().unwrap();
    for k in keys {
        assert_eq!(basalt_kv::key::user_key(it.key()), k);
        it.next().unwrap();
    }
}

#[test]
#[should_panic(expected = "inserted twice")]
fn a_second_insert_of_an_entry_is_refused() {
    let mem = MemTable::new(Cmp::Bytewise);
    mem.insert(b"k", 1, Kind::Put, &Bytes::new());
    mem.insert(b"k", 1, Kind::Put, &Bytes::new());
}

/// Returns a value that shows whether it was torn: the entry's number, repeated.
fn stamped(n: u64, len: usize) -> Bytes {
    Bytes::from(
        n.to_le_bytes()
            .iter()
            .copied()
            .cycle()
            .take(len)
            .collect::<Vec<_>>(),
    )
}

fn check_stamp(key: &[u8], value: &[u8]) {
    let n = u64::from_be_bytes(key[key.len() - 8..].try_into().unwrap());
    assert!(
        value
            .iter()
            .zip(n.to_le_bytes().iter().cycle())
            .all(|(a, b)| a == b),
        "the value of entry {n} is not its own"
    );
}

fn concurrent_run(writers: u64, readers: u64, each: u64) {
    let mem = MemTable::new(Cmp::Bytewise);
    let done: Vec<AtomicU64> = (0..writers).map(|_| AtomicU64::new(0)).collect();
    let finished = AtomicUsize::new(0);
    let key = |n: u64| {
        let mut k = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56)
            .to_be_bytes()
            .to_vec();
        k.extend_from_slice(&n.to_be_bytes());
        k
    };
    basalt_env::thread::scope(|s| {
        for w in 0..writers {
            let (mem, done, finished, key) = (&mem, &done, &finished, &key);
            s.spawn(move || {
                for i in 0..each {
                    let n = i * writers + w;
                    let len = if n.is_multiple_of(17) {
                        600
                    } else {
                        8 + n as usize % 90
                    };
                    mem.insert(&key(n), n + 1, Kind::Put, &stamped(n, len));
                    done[w as usize].store(i + 1, SeqCst);
                }
                finished.fetch_add(1, SeqCst);
            });
        }
        for reader in 0..readers {
            let (mem, done, finished, key) = (&mem, &done, &finished, &key);
            s.spawn(move || {
                let r = Random::from_seed(reader);
                loop {
                    let over = finished.load(SeqCst) as u64 == writers;
                    // An entry whose insert has returned is found. A cursor that starts later
                    // visits all such entries, in order.
                    let before: u64 = done.iter().map(|d| d.load(SeqCst)).sum();
                    for _ in 0..50 {
                        let w = r.below(writers);
                        let have = done[w as usize].load(SeqCst);
                        if have > 0 {
                            let n = r.below(have) * writers + w;
                            let f = mem
                                .get(&key(n), MAX_SEQ)
                                .expect("acknowledged entry is found");
                            assert_eq!(f.seq, n + 1);
                            check_stamp(&key(n), &f.value);
                            let (mut it, at) = (mem.iter(), key(n));
                            let exact = internal_key(&at, pack_trailer(n + 1, Kind::Put));
                            it.seek_for_prev(&exact).unwrap();
                            assert_eq!(it.key(), exact, "an entry is at or before itself");
                            it.prev().unwrap();
                            if it.valid() {
                                assert!(basalt_kv::key::user_key(it.key()) < &at[..]);
                                it.next().unwrap();
                                assert!(basalt_kv::key::user_key(it.key()) <= &at[..]);
                            }
                            it.seek(&exact).unwrap();
                            assert_eq!(it.key(), exact, "an entry is at or after itself");
                        }
                    }
                    // The same must hold backwards, from the end.
                    let before_last: u64 = done.iter().map(|d| d.load(SeqCst)).sum();
                    let mut it = mem.iter();
                    it.seek_to_last().unwrap();
                    let (mut count, mut last) = (0, Vec::new());
                    while it.valid() {
                        let k = basalt_kv::key::user_key(it.key());
                        assert!(count == 0 || last.as_slice() > k, "order holds backwards");
                        last.clear();
                        last.extend_from_slice(k);
                        count += 1;
                        it.prev().unwrap();
                    }
                    assert!(
                        count >= before_last,
                        "met {count} of {before_last} backwards"
                    );
                    let mut it = mem.iter();
                    it.seek_to_first().unwrap();
                    let (mut count, mut last) = (0, Vec::new());
                    while it.valid() {
                        let k = basalt_kv::key::user_key(it.key());
                        assert!(
                            count == 0 || last.as_slice() < k,
                            "order holds at all times"
                        );
                        check_stamp(k, it.value());
                        last.clear();
                        last.extend_from_slice(k);
                        count += 1;
                        it.next().unwrap();
                    }
                    assert!(count >= before, "cursor met {count} of {before} entries");
                    if over {
                        assert_eq!(count, writers * each);
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(mem.len() as u64, writers * each);
}

#[test]
fn threads_insert_while_others_read() {
    for _ in 0..1u64 * scale() {
        concurrent_run(4, 2, 8_000);
    }
}

#[test]
fn small_threads_insert_while_others_read() {
    concurrent_run(2, 1, 20);
}

/// The test inserts enough entries to split inner nodes.
#[test]
fn small_threads_split_inner_nodes() {
    concurrent_run(2, 1, 100);
}

#[test]
fn the_memory_count_follows_the_content() {
    let mem = MemTable::new(Cmp::Bytewise);
    assert!(
        mem.memory() <= 4096,
        "an empty memtable costs {}",
        mem.memory()
    );
    let big = Bytes::from(vec![1u8; 3 << 20]);
    mem.insert(b"big", 1, Kind::Put, &big);
    assert!((3 << 20..(3 << 20) + 8192).contains(&mem.memory()));
    mem.add_pinned(1 << 20);
    assert!(mem.memory() >= 4 << 20);
    let (before, n) = (mem.memory(), 20_000);
    for i in 0..n {
        mem.insert(
            format!("key{i:013}").as_bytes(),
            2 + i,
            Kind::Put,
            &Bytes::from(vec![0; 100]),
        );
    }
    let each = (mem.memory() - before) as u64 / n;
    assert!((120..230).contains(&each), "{each} bytes an entry of 116");
}

#[test]
fn values_are_pinned_and_not_copied() {
    let mem = MemTable::new(Cmp::Bytewise);
    let large = Bytes::from(vec![7u8; 4096]);
    mem.insert(b"large", 1, Kind::Put, &large);
    mem.insert(b"small", 2, Kind::Put, &Bytes::from_static(b"value"));
    let (l, s) = (mem.get(b"large", 9).unwrap(), mem.get(b"small", 9).unwrap());
    assert_eq!(l.value.as_ptr(), large.as_ptr(), "the batch's own memory");
    assert_eq!(
        s.value.as_ptr(),
        mem.get(b"small", 9).unwrap().value.as_ptr(),
        "the node's own memory"
    );
    let weak = Arc::downgrade(&mem);
    let mut it = mem.iter();
    it.seek_to_first().unwrap();
    let held = it.pinned_value();
    drop((it, mem));
    assert_eq!(
        s.value, "value",
        "a pinned value outlives the table's other owners"
    );
    drop(s);
    assert!(
        weak.upgrade().is_none(),
        "a large value pins only the batch's memory"
    );
    assert_eq!((&l.value[..], &held[..]), (&large[..], &large[..]));
}

#[test]
fn small_dropping_the_table_drops_every_large_value() {
    struct Counted(Arc<AtomicUsize>, Vec<u8>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let mem = MemTable::new(Cmp::Bytewise);
    for i in 0..40u64 {
        let v = Bytes::from_owner(Counted(dropped.clone(), vec![0; 4096]));
        mem.insert(&i.to_be_bytes(), i, Kind::Put, &v);
    }
    assert_eq!(dropped.load(SeqCst), 0);
    let held = mem.get(&3u64.to_be_bytes(), MAX_SEQ).unwrap();
    drop(mem);
    assert_eq!(dropped.load(SeqCst), 39);
    drop(held);
    assert_eq!(dropped.load(SeqCst), 40);
}

#[test]
fn runs_of_ascending_keys_from_several_threads_stay_in_order() {
    // Runs are placed by a shortcut behind the last insert. Other threads and the other runs
    // interrupt it.
    let mem = MemTable::new(Cmp::Bytewise);
    let (threads, each) = (3u64, 6000u64);
    basalt_env::thread::scope(|s| {
        for t in 0..threads {
            let mem = &mem;
            s.spawn(move || {
                for i in 0..each {
                    let run = i / 500 % 3;
                    let key = [&run.to_be_bytes()[..], &i.to_be_bytes(), &[t as u8]].concat();
                    mem.insert(&key, i * threads + t, Kind::Put, &stamped(i, 20));
                }
            });
        }
    });
    let mut it = mem.iter();
    it.seek_to_first().unwrap();
    let (mut last, mut n) = (Vec::new(), 0);
    while it.valid() {
        assert!(last.as_slice() < it.key());
        last = it.key().to_vec();
        n += 1;
        it.next().unwrap();
    }
    assert_eq!(n, threads * each);
    for i in 0..each {
        let key = [&(i / 500 % 3).to_be_bytes()[..], &i.to_be_bytes(), &[1]].concat();
        assert_eq!(mem.get(&key, MAX_SEQ).unwrap().value, stamped(i, 20));
    }
}
