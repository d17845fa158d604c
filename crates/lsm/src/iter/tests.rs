//! Merged and user iterators against plain sorted maps, over random histories and random walks.

mod ranges;

use super::*;
use basalt_env::Random;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::key::*;
use basalt_kv::merge::Merging;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering as Atomic};

/// Runs `n * BASALT_SCALE` seeds; a failure prints the seed, and `BASALT_SEED` repeats it alone.
pub(crate) fn seeds(name: &str, n: u64, mut run: impl FnMut(u64)) {
    if let Ok(seed) = std::env::var("BASALT_SEED") {
        return run(seed.parse().expect("BASALT_SEED is a number"));
    }
    let scale = basalt_sim::campaign::scale();
    let n = n * scale;
    for seed in 0..n {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = result {
            eprintln!(
                "repeat with: BASALT_SEED={seed} cargo test -p basalt-lsm --lib {name} -- --nocapture"
            );
            std::panic::resume_unwind(panic);
        }
    }
    println!("{name}: seeds={n}");
}

/// A cursor over entries in memory, which can fail at a chosen movement.
pub(crate) struct VecIter {
    cmp: Cmp,
    entries: Arc<Vec<(Vec<u8>, Bytes)>>,
    at: Option<usize>,
    fuse: Arc<AtomicI64>,
}

impl VecIter {
    pub(crate) fn new(cmp: Cmp, mut entries: Vec<(Vec<u8>, Bytes)>) -> VecIter {
        entries.sort_by(|a, b| cmp.internal(&a.0, &b.0));
        VecIter {
            cmp,
            entries: Arc::new(entries),
            at: None,
            fuse: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }
    pub(crate) fn with_fuse(mut self, fuse: Arc<AtomicI64>) -> VecIter {
        self.fuse = fuse;
        self
    }
    fn to(&mut self, at: Option<usize>) -> Result<()> {
        self.at = None;
        if self.fuse.fetch_sub(1, Atomic::SeqCst) <= 0 {
            return Err(Error::new(ErrorKind::Io, "injected"));
        }
        self.at = at.filter(|&i| i < self.entries.len());
        Ok(())
    }
    fn here(&self) -> &(Vec<u8>, Bytes) {
        &self.entries[self.at.expect("positioned")]
    }
}

impl InternalIter for VecIter {
    fn valid(&self) -> bool {
        self.at.is_some()
    }
    fn seek_to_first(&mut self) -> Result<()> {
        self.to(Some(0))
    }
    fn seek_to_last(&mut self) -> Result<()> {
        self.to(self.entries.len().checked_sub(1))
    }
    fn seek(&mut self, target: &[u8]) -> Result<()> {
        let i = self
            .entries
            .partition_point(|e| self.cmp.internal(&e.0, target) == Ordering::Less);
        self.to(Some(i))
    }
    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        let i = self
            .entries
            .partition_point(|e| self.cmp.internal(&e.0, target) != Ordering::Greater);
        self.to(i.checked_sub(1))
    }
    fn next(&mut self) -> Result<()> {
        let i = self.at.expect("positioned");
        self.to(Some(i + 1))
    }
    fn prev(&mut self) -> Result<()> {
        let i = self.at.expect("positioned");
        self.to(i.checked_sub(1))
    }
    fn key(&self) -> &[u8] {
        &self.here().0
    }
    fn value(&self) -> &[u8] {
        &self.here().1
    }
    fn pinned_value(&self) -> Bytes {
        self.here().1.clone()
    }
}

/// A comparator that compares bytes from the last to the first, unlike `memcmp`.
pub(crate) struct Backwards;
impl Comparator for Backwards {
    fn name(&self) -> &str {
        "test.backwards"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.iter().rev().cmp(b.iter().rev())
    }
}

pub(crate) fn random_cmp(r: &Random) -> Cmp {
    if r.one_in(4) {
        Cmp::Custom(Arc::new(Backwards))
    } else {
        Cmp::Bytewise
    }
}

/// Returns short keys over few bytes, 0 and 0xff among them. Some share a long prefix.
pub(crate) fn random_key(r: &Random, spread: u64) -> Vec<u8> {
    let mut k = if r.one_in(3) {
        b"prefix-".to_vec()
    } else {
        Vec::new()
    };
    for _ in 0..r.below(spread) {
        k.push([0, 1, b'a', b'b', 0xfe, 0xff][r.below(6) as usize]);
    }
    k
}

/// One version: user key, sequence number, kind, payload.
pub(crate) type Version = (Vec<u8>, SeqNo, Kind, Vec<u8>);
pub(crate) type History = Vec<Version>;

pub(crate) fn random_history(r: &Random, n: u64, spread: u64) -> History {
    let hot = random_key(r, spread);
    (1..=n)
        .map(|seq| {
            let key = if r.one_in(4) {
                hot.clone()
            } else {
                random_key(r, spread)
            };
            let value = format!("v{seq}").into_bytes();
            match r.below(6) {
                0 | 1 => (key, seq, Kind::Delete, Vec::new()),
                2 => {
                    let mut payload = r.below(100).to_le_bytes().to_vec();
                    payload.extend(value);
                    (key, seq, Kind::PutTtl, payload)
                }
                _ => (key, seq, Kind::Put, value),
            }
        })
        .collect()
}

/// Turns a part of the values into operands.
pub(crate) fn add_operands(r: &Random, history: &mut History) {
    let share = 1 + r.below(4);
    for e in history.iter_mut().filter(|e| e.2 == Kind::Put) {
        if r.below(5) < share {
            e.2 = Kind::Merge;
        }
    }
}

/// Returns the operator of [`visible`]. Its values show the order of the operands, with a mark
/// between them.
pub(crate) fn appending() -> Merging {
    let options = crate::FamilyOptions {
        merge_operator: Some(Arc::new(basalt_kv::merge::Append::new("|"))),
        ..crate::FamilyOptions::default()
    };
    Merging::new("family".into(), options.merge_operator)
}

pub(crate) fn encode(e: &Version) -> (Vec<u8>, Bytes) {
    (
        internal_key(&e.0, pack_trailer(e.1, e.2)),
        Bytes::copy_from_slice(&e.3),
    )
}

/// Returns the live keys that a reader must see, in `cmp` order, with value and expiry.
pub(crate) fn visible(
    cmp: &Cmp,
    history: &[Version],
    seq: SeqNo,
    now_ms: u64,
) -> Vec<(Vec<u8>, Vec<u8>, Option<u64>)> {
    let mut versions: BTreeMap<&[u8], Vec<&Version>> = BTreeMap::new();
    for e in history.iter().filter(|e| e.1 <= seq) {
        versions.entry(&e.0).or_default().push(e);
    }
    let mut out = Vec::new();
    for (key, mut of_key) in versions {
        // Applies the versions in the order in which they were written. After a value has expired,
        // the operands that were appended to it are visible alone.
        of_key.sort_by_key(|e| e.1);
        let mut base: Option<(Vec<u8>, Option<u64>)> = None;
        let mut appended: Option<Vec<u8>> = None;
        for e in of_key {
            match e.2 {
                Kind::Merge => match &mut appended {
                    Some(a) => a.extend([b"|", &e.3[..]].concat()),
                    None => appended = Some(e.3.clone()),
                },
                Kind::Put => (base, appended) = (Some((e.3.clone(), None)), None),
                Kind::PutTtl => {
                    let at = u64::from_le_bytes(e.3[..8].try_into().unwrap());
                    (base, appended) = (Some((e.3[8..].to_vec(), Some(at))), None);
                }
                _ => (base, appended) = (None, None),
            }
        }
        let base = base.filter(|b| b.1.is_none_or(|at| at > now_ms));
        match (base, appended) {
            (Some((b, at)), Some(a)) => out.push((key.to_vec(), [&b[..], b"|", &a].concat(), at)),
            (Some((b, at)), None) => out.push((key.to_vec(), b, at)),
            (None, Some(a)) => out.push((key.to_vec(), a, None)),
            (None, None) => {}
        }
    }
    out.sort_by(|a, b| cmp.user(&a.0, &b.0));
    out
}

fn deal(r: &Random, cmp: &Cmp, history: &History) -> Vec<Box<dyn InternalIter>> {
    let n = 1 + r.below(6) as usize;
    let mut parts = vec![Vec::new(); n];
    for e in history {
        parts[r.below(n as u64) as usize].push(encode(e));
    }
    parts
        .into_iter()
        .map(|p| Box::new(VecIter::new(cmp.clone(), p)) as Box<dyn InternalIter>)
        .collect()
}

#[test]
fn a_merging_cursor_equals_one_sorted_list() {
    seeds("a_merging_cursor_equals_one_sorted_list", 5000, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let history = random_history(&r, r.below(60), 4);
        let mut all: Vec<_> = history.iter().map(encode).collect();
        all.sort_by(|a, b| cmp.internal(&a.0, &b.0));
        let mut m = MergingIter::new(cmp.clone(), deal(&r, &cmp, &history));
        assert!(!m.valid());
        let mut at: Option<usize> = None;
        for _ in 0..80 {
            let target = internal_key(
                &random_key(&r, 4),
                pack_trailer(r.below(history.len() as u64 + 2), Kind::Put),
            );
            match (r.below(10), at) {
                (0, _) => {
                    m.seek_to_first().unwrap();
                    at = Some(0);
                }
                (1, _) => {
                    m.seek_to_last().unwrap();
                    at = all.len().checked_sub(1);
                }
                (2, _) => {
                    m.seek(&target).unwrap();
                    at = Some(all.partition_point(|e| cmp.internal(&e.0, &target).is_lt()));
                }
                (3, _) => {
                    m.seek_for_prev(&target).unwrap();
                    at = all
                        .partition_point(|e| cmp.internal(&e.0, &target).is_le())
                        .checked_sub(1);
                }
                (4..=6, Some(i)) => {
                    m.next().unwrap();
                    at = Some(i + 1);
                }
                (_, Some(i)) => {
                    m.prev().unwrap();
                    at = i.checked_sub(1);
                }
                (_, None) => {}
            }
            at = at.filter(|&i| i < all.len());
            assert_eq!(m.valid(), at.is_some());
            if let Some(i) = at {
                assert_eq!(m.key(), &all[i].0[..]);
                assert_eq!(m.value(), &all[i].1[..]);
                // The value is pinned, not copied.
                assert_eq!(m.pinned_value().as_ptr(), m.value().as_ptr());
            }
        }
    });
}

#[test]
fn equal_keys_yield_the_earlier_child_first() {
    let entry = |c: u8| {
        let k = internal_key(b"k", pack_trailer(7, Kind::Put));
        (k, Bytes::from(vec![c]))
    };
    let children = (0..4u8)
        .map(|c| Box::new(VecIter::new(Cmp::Bytewise, vec![entry(c)])) as Box<dyn InternalIter>)
        .collect();
    let mut m = MergingIter::new(Cmp::Bytewise, children);
    m.seek_to_first().unwrap();
    let r = Random::from_seed(1);
    let mut at = 0usize;
    for _ in 0..200 {
        assert_eq!((m.value()[0] as usize, m.child()), (at, at));
        if at < 3 && (at == 0 || r.one_in(2)) {
            m.next().unwrap();
            at += 1;
        } else {
            m.prev().unwrap();
            at -= 1;
        }
    }
}

#[test]
fn a_merging_cursor_is_usable_after_an_error() {
    seeds("an_error_anywhere_leaves", 200, |seed| {
        let r = Random::from_seed(seed);
        let mut history = random_history(&r, 40, 4);
        if r.one_in(2) {
            add_operands(&r, &mut history);
        }
        let fuse = Arc::new(AtomicI64::new(r.below(60) as i64));
        let (left, right): (Vec<_>, Vec<_>) = history.iter().partition(|e| e.1 % 2 == 0);
        let children = [left, right]
            .into_iter()
            .map(|part| {
                let entries = part.into_iter().map(encode).collect();
                Box::new(VecIter::new(Cmp::Bytewise, entries).with_fuse(fuse.clone()))
                    as Box<dyn InternalIter>
            })
            .collect();
        let m = MergingIter::new(Cmp::Bytewise, children);
        let view = IterBounds {
            seq: MAX_SEQ,
            lower: None,
            upper: None,
            now_ms: 50,
        };
        let mut u = UserIter::new(m, Cmp::Bytewise, view, Vec::new()).with_merging(appending());
        let walk = |u: &mut UserIter| -> Result<()> {
            u.seek_to_first()?;
            for _ in 0..100 {
                if !u.valid() {
                    u.seek_to_last()?;
                } else if r.one_in(3) {
                    u.prev()?;
                } else {
                    u.next()?;
                }
            }
            Ok(())
        };
        assert!(walk(&mut u).is_err());
        assert!(!u.valid());
        fuse.store(i64::MAX, Atomic::SeqCst);
        u.seek_to_first().unwrap();
        let mut got = Vec::new();
        while u.valid() {
            got.push((u.key().to_vec(), u.value().to_vec(), u.expire_at_ms()));
            u.next().unwrap();
        }
        assert_eq!(got, visible(&Cmp::Bytewise, &history, MAX_SEQ, 50));
    });
}

#[test]
fn a_user_cursor_equals_a_map_of_live_keys() {
    seeds("a_user_cursor_equals_a_map_of_live_keys", 10_000, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let spread = 1 + r.below(4);
        let mut history = random_history(&r, r.below(120), spread);
        if r.one_in(2) {
            add_operands(&r, &mut history);
        }
        let seq = if r.one_in(2) {
            MAX_SEQ
        } else {
            r.below(history.len() as u64 + 1)
        };
        let now_ms = r.below(100);
        let bound = |r: &Random| r.one_in(2).then(|| random_key(r, spread + 1));
        let (lower, upper) = (bound(&r), bound(&r));
        let model: Vec<_> = visible(&cmp, &history, seq, now_ms)
            .into_iter()
            .filter(|e| lower.as_ref().is_none_or(|l| cmp.user(&e.0, l).is_ge()))
            .filter(|e| upper.as_ref().is_none_or(|u| cmp.user(&e.0, u).is_lt()))
            .collect();
        let view = IterBounds {
            seq,
            lower,
            upper,
            now_ms,
        };
        let m = MergingIter::new(cmp.clone(), deal(&r, &cmp, &history));
        let mut u = UserIter::new(m, cmp.clone(), view, Vec::new()).with_merging(appending());
        assert!(!u.valid());
        let mut at: Option<usize> = None;
        for _ in 0..60 {
            let target = random_key(&r, spread + 1);
            match (r.below(12), at) {
                (0, _) => {
                    u.seek_to_first().unwrap();
                    at = Some(0);
                }
                (1, _) => {
                    u.seek_to_last().unwrap();
                    at = model.len().checked_sub(1);
                }
                (2, _) => {
                    u.seek(&target).unwrap();
                    at = Some(model.partition_point(|e| cmp.user(&e.0, &target).is_lt()));
                }
                (3, _) => {
                    u.seek_for_prev(&target).unwrap();
                    at = model
                        .partition_point(|e| cmp.user(&e.0, &target).is_le())
                        .checked_sub(1);
                }
                (4..=7, Some(i)) => {
                    u.next().unwrap();
                    at = Some(i + 1);
                }
                (_, Some(i)) => {
                    u.prev().unwrap();
                    at = i.checked_sub(1);
                }
                (_, None) => {}
            }
            at = at.filter(|&i| i < model.len());
            assert_eq!(u.valid(), at.is_some());
            if let Some(i) = at {
                let pinned = u.pinned_value();
                assert_eq!(
                    (u.key(), u.value(), u.expire_at_ms()),
                    (&model[i].0[..], &model[i].1[..], model[i].2)
                );
                assert_eq!(pinned.as_ptr(), u.value().as_ptr());
            }
        }
    });
}

#[test]
fn many_versions_of_one_key_are_skipped_by_a_seek() {
    // 10,000 versions lie between two keys. The cursor may read only a few of them.
    let mut history: History = vec![(b"a".to_vec(), 1, Kind::Put, b"first".to_vec())];
    history.extend((2..10_002).map(|s| {
        let kind = if s % 2 == 0 { Kind::Put } else { Kind::Delete };
        (b"m".to_vec(), s, kind, Vec::new())
    }));
    history.push((b"z".to_vec(), 10_002, Kind::Put, b"last".to_vec()));
    for seq in [1, 2, 5_001, 5_002, 10_001, MAX_SEQ] {
        let model = visible(&Cmp::Bytewise, &history, seq, 0);
        let fuse = Arc::new(AtomicI64::new(120));
        let child = VecIter::new(Cmp::Bytewise, history.iter().map(encode).collect())
            .with_fuse(fuse.clone());
        let m = MergingIter::new(Cmp::Bytewise, vec![Box::new(child)]);
        let view = IterBounds {
            seq,
            lower: None,
            upper: None,
            now_ms: 0,
        };
        let mut u = UserIter::new(m, Cmp::Bytewise, view, Vec::new());
        u.seek_to_first().unwrap();
        let mut keys = Vec::new();
        while u.valid() {
            keys.push(u.key().to_vec());
            u.next().unwrap();
        }
        u.seek_to_last().unwrap();
        let mut back = Vec::new();
        while u.valid() {
            back.push(u.key().to_vec());
            u.prev().unwrap();
        }
        back.reverse();
        let expected: Vec<_> = model.into_iter().map(|e| e.0).collect();
        assert_eq!(keys, expected, "seq {seq}");
        assert_eq!(back, expected, "seq {seq}");
        assert_eq!(
            expected.iter().collect::<BTreeSet<_>>().len(),
            expected.len()
        );
    }
}

#[test]
fn the_operands_of_a_key_are_read_once() {
    // 10,000 operands lie above a value, and as many versions below it, which the cursor must not
    // read.
    let n = 10_000u64;
    let mut history: History = vec![(b"a".to_vec(), 1, Kind::Put, b"first".to_vec())];
    history.extend((2..n).map(|s| (b"m".to_vec(), s, Kind::Put, b"old".to_vec())));
    history.extend((n..2 * n).map(|s| (b"m".to_vec(), s, Kind::Merge, b"x".to_vec())));
    history.push((b"z".to_vec(), 2 * n, Kind::Put, b"last".to_vec()));
    for (seq, operands) in [(MAX_SEQ, n), (n + 499, 500)] {
        let model = visible(&Cmp::Bytewise, &history, seq, 0);
        assert_eq!(model[1].1.len() as u64, 3 + 2 * operands);
        let walk = |allowed: u64, forward: bool| {
            let fuse = Arc::new(AtomicI64::new(allowed as i64));
            let child = VecIter::new(Cmp::Bytewise, history.iter().map(encode).collect())
                .with_fuse(fuse.clone());
            let m = MergingIter::new(Cmp::Bytewise, vec![Box::new(child)]);
            let view = IterBounds {
                seq,
                lower: None,
                upper: None,
                now_ms: 0,
            };
            let mut u = UserIter::new(m, Cmp::Bytewise, view, Vec::new()).with_merging(appending());
            let mut got = Vec::new();
            if forward {
                u.seek_to_first().unwrap();
            } else {
                u.seek_to_last().unwrap();
            }
            while u.valid() {
                got.push((u.key().to_vec(), u.value().to_vec(), u.expire_at_ms()));
                if forward {
                    u.next().unwrap();
                } else {
                    u.prev().unwrap();
                }
            }
            if !forward {
                got.reverse();
            }
            got
        };
        assert_eq!(walk(operands + 60, true), model);
        assert_eq!(walk(operands + 60, false), model);
    }
}

#[test]
fn operands_count_as_skipped_entries() {
    let mut history: History = Vec::new();
    for key in [b"a", b"b", b"c"] {
        for _ in 0..20 {
            let seq = history.len() as u64 + 1;
            history.push((key.to_vec(), seq, Kind::Merge, b"x".to_vec()));
        }
    }
    let model = visible(&Cmp::Bytewise, &history, MAX_SEQ, 0);
    for budget in [1, 19, 20, 21, 40, 60] {
        let (mut from, mut got, mut pauses) = (Vec::new(), Vec::new(), 0);
        loop {
            let child = VecIter::new(Cmp::Bytewise, history.iter().map(encode).collect());
            let m = MergingIter::new(Cmp::Bytewise, vec![Box::new(child)]);
            let view = IterBounds {
                seq: MAX_SEQ,
                lower: None,
                upper: None,
                now_ms: 0,
            };
            let mut u = UserIter::new(m, Cmp::Bytewise, view, Vec::new())
                .with_merging(appending())
                .with_max_skippable_entries(budget);
            u.seek(&from).unwrap();
            while u.valid() {
                got.push((u.key().to_vec(), u.value().to_vec(), u.expire_at_ms()));
                u.next().unwrap();
            }
            let Some(at) = u.resume_key() else { break };
            from = at.to_vec();
            pauses += 1;
        }
        assert_eq!(got, model, "budget {budget}");
        let expected = if budget <= 20 {
            2
        } else if budget <= 40 {
            1
        } else {
            0
        };
        assert_eq!(pauses, expected, "budget {budget}");
    }
}

#[test]
fn reserved_kinds_and_cut_expiries_are_refused() {
    for (kind, value, want) in [
        (9u8, &b""[..], ErrorKind::Unsupported),
        (77, &b""[..], ErrorKind::Corruption),
        (2, &b"short"[..], ErrorKind::Corruption),
    ] {
        let entry = (
            internal_key(b"k", (5 << 8) | u64::from(kind)),
            Bytes::copy_from_slice(value),
        );
        let child = VecIter::new(Cmp::Bytewise, vec![entry]);
        let view = IterBounds {
            seq: MAX_SEQ,
            lower: None,
            upper: None,
            now_ms: 0,
        };
        let m = MergingIter::new(Cmp::Bytewise, vec![Box::new(child)]);
        let mut u = UserIter::new(m, Cmp::Bytewise, view, Vec::new());
        assert_eq!(u.seek_to_first().unwrap_err().kind(), want);
        assert!(!u.valid());
        assert_eq!(u.seek_to_last().unwrap_err().kind(), want);
        assert!(!u.valid());
    }
}
