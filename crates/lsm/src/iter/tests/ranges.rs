//! Fragments, live lists and covers, against a linear search through a list of tombstones.

use crate::iter::tests::{VecIter, random_cmp, seeds};
use crate::iter::*;
use crate::memtable::LiveRanges;
use basalt_env::Random;
use basalt_fs::Bytes;
use basalt_kv::key::{Cmp, Kind, SeqNo, internal_key, pack_trailer, user_key};
use basalt_kv::ranges::{Fragments, RangeTombstone};
use std::cmp::Ordering;
use std::sync::Arc;

type Tombstone = (Vec<u8>, Vec<u8>, SeqNo);

fn key(r: &Random) -> Vec<u8> {
    let len = r.below(3);
    (0..len).map(|_| b'a' + r.below(5) as u8).collect()
}

/// Returns ranges of all shapes: most are short, some are nested, some are empty or end before they
/// begin.
fn tombstones(r: &Random, n: u64) -> Vec<Tombstone> {
    let nested = r.one_in(4);
    (1..=n)
        .map(|seq| {
            if nested {
                let at = (seq % 120) as u8;
                (vec![at], vec![255 - at], seq)
            } else {
                (key(r), key(r), seq)
            }
        })
        .collect()
}

fn newest(cmp: &Cmp, all: &[Tombstone], key: &[u8], upto: SeqNo) -> Option<SeqNo> {
    let covers = |t: &&Tombstone| {
        cmp.user(&t.0, key) != Ordering::Greater
            && cmp.user(key, &t.1) == Ordering::Less
            && t.2 <= upto
    };
    all.iter().filter(covers).map(|t| t.2).max()
}

fn pieces(all: &[Tombstone]) -> impl Iterator<Item = RangeTombstone<'_>> {
    all.iter().map(|(from, to, seq)| RangeTombstone {
        from,
        to,
        seq: *seq,
    })
}

/// Checks that fragments are disjoint, in order, and that no two neighbours should be one.
fn check_shape(cmp: &Cmp, f: &Fragments) {
    for i in 0..f.len() {
        let (from, to) = f.range(i);
        assert_eq!(cmp.user(from, to), Ordering::Less);
        assert!(f.seqs_of(i).is_sorted_by(|a, b| a > b) && !f.seqs_of(i).is_empty());
        if i > 0 {
            let touch = cmp.user(f.range(i - 1).1, from);
            assert_ne!(touch, Ordering::Greater);
            assert!(touch == Ordering::Less || f.seqs_of(i - 1) != f.seqs_of(i));
        }
    }
}

#[test]
fn fragments_answer_as_the_tombstones_do() {
    seeds("fragments_answer", 2_000, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let n = r.below(40);
        let all = tombstones(&r, n);
        let whole = Fragments::build(&cmp, pieces(&all), None);
        check_shape(&cmp, &whole);
        // Fragments that are cut and built again are the same.
        let again = Fragments::build(&cmp, whole.iter(), None);
        assert!(whole.iter().eq(again.iter()));

        let mut snapshots: Vec<SeqNo> = (0..r.below(4)).map(|_| r.below(n + 2)).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let thinned = Fragments::build(&cmp, whole.iter(), Some(&snapshots));
        check_shape(&cmp, &thinned);
        let live = LiveRanges::default();
        for (from, to, seq) in &all {
            live.insert(&cmp, from, to, *seq);
        }
        for _ in 0..60 {
            let k = if r.one_in(2) {
                key(&r)
            } else {
                vec![r.below(256) as u8]
            };
            let upto = r.below(n + 2);
            let want = newest(&cmp, &all, &k, upto);
            assert_eq!(whole.newest(&cmp, &k, upto), want, "{k:?} upto {upto}");
            assert_eq!(live.newest(&cmp, &k, upto), want, "{k:?} upto {upto}");
            for at in snapshots.iter().copied().chain([SeqNo::MAX]) {
                assert_eq!(thinned.newest(&cmp, &k, at), newest(&cmp, &all, &k, at));
            }
            let s = whole.stretch(&cmp, &k, upto);
            assert_eq!(s.seq, want.unwrap_or(0));
            let inside = |x: &[u8]| {
                s.from.is_none_or(|f| cmp.user(f, x) != Ordering::Greater)
                    && s.to.is_none_or(|t| cmp.user(x, t) == Ordering::Less)
            };
            assert!(inside(&k));
            for _ in 0..10 {
                let other = key(&r);
                if inside(&other) {
                    assert_eq!(
                        newest(&cmp, &all, &other, upto),
                        want,
                        "one answer a stretch"
                    );
                }
            }
        }
    });
}

#[test]
fn nested_ranges_take_linear_memory() {
    let live = LiveRanges::default();
    let n = 3000u32;
    let mut all = Vec::new();
    for i in 0..n {
        let (from, to) = (i.to_be_bytes(), (u32::MAX - i).to_be_bytes());
        live.insert(&Cmp::Bytewise, &from, &to, u64::from(i) + 1);
        all.push((from.to_vec(), to.to_vec(), u64::from(i) + 1));
    }
    // As fragments of one list the tombstones would have nine million sequence numbers.
    assert!(live.memory() < 3 << 20, "{} bytes", live.memory());
    assert_eq!(live.len(), n as usize);
    for i in [0, 1, 17, 1500, 2999, 3000, 100_000] {
        let k = u32::to_be_bytes(i);
        for upto in [0, 1, 1000, 5000] {
            let want = newest(&Cmp::Bytewise, &all, &k, upto);
            assert_eq!(live.newest(&Cmp::Bytewise, &k, upto), want);
        }
    }
}

/// A masked cursor yields every entry that no tombstone covers, in order, in both directions. Any
/// other entry that it yields is covered.
#[test]
fn a_masked_cursor_hides_no_live_entry() {
    seeds("masks_hide_nothing", 2_000, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let all: Vec<Tombstone> = tombstones(&r, 1 + r.below(12))
            .into_iter()
            .map(|(from, to, seq)| (from, to, seq + 100))
            .collect();
        let upto = 100 + r.below(14);
        let mut users: Vec<Vec<u8>> = (0..r.below(40)).map(|_| key(&r)).collect();
        users.sort_by(|a, b| cmp.user(a, b));
        users.dedup_by(|a, b| cmp.user(a, b) == Ordering::Equal);
        let entries: Vec<(Vec<u8>, Bytes)> = users
            .iter()
            .map(|u| (internal_key(u, pack_trailer(50, Kind::Put)), Bytes::new()))
            .collect();
        let half = all.len() / 2;
        let runs = [&all[..half], &all[half..]].map(|part| {
            let f = Fragments::build(&cmp, pieces(part), None);
            TombstoneSource::Run(Arc::new(f))
        });
        let jumps = Arc::default();
        let cover = || Cover::new(cmp.clone(), Arc::new(Vec::new()), 0, upto);
        assert!(cover().is_empty());
        let cover = Cover::new(cmp.clone(), Arc::new(runs.into()), 2, upto);
        let inner = Box::new(VecIter::new(cmp.clone(), entries));
        let mut it = MaskedIter::new(inner, cover, 60, jumps);
        let alive: Vec<&Vec<u8>> = users
            .iter()
            .filter(|u| newest(&cmp, &all, u, upto).is_none())
            .collect();
        for _ in 0..12 {
            let pivot = key(&r);
            let forward = r.one_in(2);
            let mut seen = Vec::new();
            if forward {
                it.seek(&internal_key(&pivot, u64::MAX)).unwrap();
            } else {
                it.seek_for_prev(&internal_key(&pivot, 0)).unwrap();
            }
            while it.valid() {
                seen.push(user_key(it.key()).to_vec());
                if forward { it.next() } else { it.prev() }.unwrap();
            }
            let mut want: Vec<Vec<u8>> = alive
                .iter()
                .filter(|u| match cmp.user(u, &pivot) {
                    Ordering::Equal => true,
                    order => (order == Ordering::Greater) == forward,
                })
                .map(|u| (*u).clone())
                .collect();
            if !forward {
                want.reverse();
            }
            assert_eq!(seen, want, "from {pivot:?}, forward {forward}");
        }
    });
}
