//! The versions that a merge keeps, against a model of what every reader must see.

use super::*;
use crate::compaction::ranges::retained_tombstones;
use crate::compaction::{DeeperLevels, MergeRules, Outcome, merge};
use crate::iter::tests::{
    VecIter, add_operands, appending, encode, random_cmp, random_history, random_key, seeds,
    visible,
};
use crate::iter::{InternalIter, MergingIter};
use crate::options::{CompactionFilter, FilterContext, FilterDecision};
use basalt_env::Random;
use basalt_fs::ErrorKind;
use basalt_kv::merge::Merging;
use basalt_kv::ranges::{Fragments, NOTHING, RangeTombstone};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

fn run_merge(
    rules: &MergeRules<'_>,
    parts: Vec<Entries>,
    deeper: &[Vec<Arc<TableFile>>],
) -> Result<(Outcome, Entries)> {
    let children = parts
        .into_iter()
        .map(|p| Box::new(VecIter::new(rules.cmp.clone(), p)) as Box<dyn InternalIter>)
        .collect();
    let input = MergingIter::new(rules.cmp.clone(), children);
    let mut sink = VecSink::new(&[], 100);
    let out = merge(
        rules,
        input,
        DeeperLevels::new(rules.cmp, deeper),
        &mut sink,
        &|_| None,
    )?;
    // No two tables have versions of one user key.
    for pair in sink.tables.windows(2) {
        let (a, b) = (&pair[0].last().unwrap().0, &pair[1][0].0);
        assert!(rules.cmp.user(user_key(a), user_key(b)).is_lt());
    }
    Ok((out, sink.tables.concat()))
}

/// A filter that decides by the last digit of the value.
struct ByDigit;
impl CompactionFilter for ByDigit {
    fn name(&self) -> &str {
        "by digit"
    }
    fn filter(&self, context: &FilterContext<'_>, _key: &[u8], value: &[u8]) -> FilterDecision {
        assert_eq!(
            (context.family, context.level, context.now_ms),
            ("family", 3, 50)
        );
        match value.last() {
            Some(b'0'..=b'2') => FilterDecision::Remove,
            Some(b'3'..=b'5') => FilterDecision::Change(b"changed".to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

#[test]
fn every_snapshot_reads_the_same_before_and_after() {
    seeds("every_snapshot_reads_the_same", 10_000, |seed| {
        let r = Random::from_seed(seed);
        let cmp = random_cmp(&r);
        let mut history = random_history(&r, r.below(150), 1 + r.below(4));
        let mut snapshots: Vec<SeqNo> = (0..r.below(5))
            .map(|_| r.below(history.len() as u64 + 1))
            .collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let now_ms = 50;
        let filtered = r.one_in(3);
        // Filters over merged operands have a test of their own.
        if !filtered && r.one_in(2) {
            add_operands(&r, &mut history);
        }

        // The versions of each key are divided: the oldest lie deeper, the newest above, the others
        // are merged. Keys of a class share the cuts, so that deeper tables cover some key ranges
        // and not others.
        let n = history.len() as u64;
        let cuts: Vec<(u64, u64)> = (0..4)
            .map(|_| {
                let deep = if r.one_in(2) { 0 } else { r.below(n + 1) };
                let above = if r.one_in(2) { n } else { r.below(n + 1) };
                (deep, above.max(deep))
            })
            .collect();
        let class = |k: &[u8]| k.first().map_or(0, |b| usize::from(*b) % 4);
        let (mut deep, mut merged, mut above) = (Vec::new(), Vec::new(), Vec::new());
        // Range tombstones among the merged entries: newer than all deeper versions, older than all
        // versions above.
        let oldest = cuts.iter().map(|c| c.0).max().unwrap_or(0) + 1;
        let newest = cuts.iter().map(|c| c.1).min().unwrap_or(0);
        let ranges: Vec<(Vec<u8>, Vec<u8>, SeqNo)> = (0..r.below(5))
            .filter(|_| !filtered && oldest <= newest)
            .map(|_| {
                let seq = oldest + r.below(newest - oldest + 1);
                let (a, b) = (random_key(&r, 4), random_key(&r, 4));
                if cmp.user(&a, &b).is_lt() {
                    (a, b, seq)
                } else {
                    (b, a, seq)
                }
            })
            .collect();
        for e in history.iter().filter(|e| ranges.iter().all(|r| r.2 != e.1)) {
            let (d, a) = cuts[class(&e.0)];
            if e.1 <= d {
                deep.push(e.clone());
            } else if e.1 <= a {
                merged.push(e.clone());
            } else {
                above.push(e.clone());
            }
        }
        let store = store();
        let mut by_class: BTreeMap<usize, Entries> = BTreeMap::new();
        for e in &deep {
            by_class.entry(class(&e.0)).or_default().push(encode(e));
        }
        let deeper: Vec<Vec<Arc<TableFile>>> = by_class
            .into_values()
            .map(|mut entries| {
                entries.sort_by(|a, b| cmp.internal(&a.0, &b.0));
                vec![store.table(1, meta_of(&entries), cmp.clone())]
            })
            .collect();

        let all = ranges.iter().map(|(from, to, seq)| RangeTombstone {
            from,
            to,
            seq: *seq,
        });
        let deleted = Fragments::build(&cmp, all, Some(&snapshots));
        let kept = retained_tombstones(&cmp, &deleted, &snapshots, &deeper);
        let kept: Vec<(Vec<u8>, Vec<u8>, SeqNo)> = kept
            .iter()
            .map(|p| (p.from.to_vec(), p.to.to_vec(), p.seq))
            .collect();
        // Returns the live keys for a reader that applies these range tombstones.
        let shown = |history: &History, ranges: &[(Vec<u8>, Vec<u8>, SeqNo)], seq, now| {
            let hidden = |e: &(Vec<u8>, SeqNo, Kind, Vec<u8>)| {
                ranges.iter().any(|(from, to, at)| {
                    (e.1 + 1..=seq).contains(at)
                        && cmp.user(from, &e.0).is_le()
                        && cmp.user(&e.0, to).is_lt()
                })
            };
            let history: History = history.iter().filter(|e| !hidden(e)).cloned().collect();
            visible(&cmp, &history, seq, now)
        };

        let filter = ByDigit;
        let cancelled = AtomicBool::new(false);
        let rules = MergeRules {
            cmp: &cmp,
            snapshots: &snapshots,
            now_ms,
            filter: filtered.then_some(&filter as &dyn CompactionFilter),
            merging: &appending(),
            family: "family",
            level: 3,
            cancelled: &cancelled,
            deleted: &deleted,
        };
        let mut parts = vec![Vec::new(); 3];
        for e in &merged {
            parts[r.below(3) as usize].push(encode(e));
        }
        let (out, entries) = run_merge(&rules, parts, &deeper).unwrap();
        let result = decode(&entries);
        assert_eq!(out.entries_in, merged.len() as u64);
        assert_eq!(out.entries_out, result.len() as u64);

        // Applies the filter's decisions to the model: for the newest merged version, if no
        // snapshot sees it.
        let mut expected: History = deep.iter().chain(&merged).chain(&above).cloned().collect();
        if filtered {
            let mut newest: BTreeMap<&[u8], SeqNo> = BTreeMap::new();
            for e in &merged {
                let s = newest.entry(&e.0).or_default();
                *s = (*s).max(e.1);
            }
            let mut count = 0;
            for e in &mut expected {
                let seen = newest.get(&e.0[..]) == Some(&e.1);
                if !seen || snapshots.last().is_some_and(|&s| e.1 <= s) || e.2 == Kind::Delete {
                    continue;
                }
                let prefix = if e.2 == Kind::PutTtl { 8 } else { 0 };
                if prefix == 8 && expiry_of(&e.3).unwrap() <= now_ms {
                    continue;
                }
                match e.3.last().unwrap() {
                    b'0'..=b'2' => {
                        e.2 = Kind::Delete;
                        e.3.clear();
                        count += 1;
                    }
                    b'3'..=b'5' => {
                        e.3.truncate(prefix);
                        e.3.extend_from_slice(b"changed");
                        count += 1;
                    }
                    _ => {}
                }
            }
            assert_eq!(out.filtered, count);
        }
        let mut after: History = result.clone();
        after.extend(deep.iter().chain(&above).cloned());
        for seq in snapshots.iter().copied().chain([MAX_SEQ]) {
            for now in [now_ms, now_ms + 20, u64::MAX] {
                assert_eq!(
                    shown(&after, &kept, seq, now),
                    shown(&expected, &ranges, seq, now),
                    "snapshot {seq}, time {now}"
                );
            }
        }

        // Checks that the merge keeps nothing that no reader needs.
        let mut stripes = BTreeMap::new();
        let mut oldest: BTreeMap<&[u8], Kind> = BTreeMap::new();
        for e in &result {
            let stripe = snapshots.partition_point(|&s| s < e.1);
            // An operand is alone in its stripe, or above a value that it outlives.
            let above = stripes.insert((&e.0, stripe), e.2);
            assert!(
                above.is_none() || (above, e.2) == (Some(Kind::Merge), Kind::PutTtl),
                "two of a stripe are kept"
            );
            let in_vain = ranges.iter().any(|(from, to, at)| {
                *at > e.1
                    && snapshots.partition_point(|s| s < at) == stripe
                    && cmp.user(from, &e.0).is_le()
                    && cmp.user(&e.0, to).is_lt()
            });
            assert!(
                !in_vain,
                "kept, and hidden by a range tombstone of its stripe"
            );
            if e.2 == Kind::PutTtl {
                assert!(expiry_of(&e.3).unwrap() > now_ms);
            }
            oldest.insert(&e.0, e.2);
        }
        for (key, kind) in oldest {
            let below = deeper.iter().flatten().any(|t| {
                cmp.user(t.smallest_user(), key).is_le() && cmp.user(t.largest_user(), key).is_ge()
            });
            assert!(below || kind != Kind::Delete, "a tombstone hides nothing");
            // Below operands that a snapshot separates from their tombstone, which is dropped.
            let parted = !snapshots.is_empty();
            assert!(
                below || parted || kind != Kind::Merge,
                "an operand stands on nothing"
            );
        }
    });
}

static NO_OPERATOR: OnceLock<Merging> = OnceLock::new();

fn plain<'a>(cancelled: &'a AtomicBool) -> MergeRules<'a> {
    MergeRules {
        cmp: &Cmp::Bytewise,
        snapshots: &[],
        now_ms: 0,
        filter: None,
        merging: NO_OPERATOR.get_or_init(Merging::none),
        family: "family",
        level: 3,
        cancelled,
        deleted: &NOTHING,
    }
}

fn entry(key: &str, trailer: u64, value: &[u8]) -> (Vec<u8>, Bytes) {
    (
        internal_key(key.as_bytes(), trailer),
        Bytes::copy_from_slice(value),
    )
}

#[test]
fn damaged_entries_and_cancellation_fail_the_merge() {
    let no = AtomicBool::new(false);
    let put = |key, seq| entry(key, pack_trailer(seq, Kind::Put), b"v");
    for (parts, want) in [
        (
            vec![vec![entry("k", 5 << 8 | 9, b"")]],
            ErrorKind::Unsupported,
        ),
        (
            vec![vec![entry("k", 5 << 8 | 99, b"")]],
            ErrorKind::Corruption,
        ),
        (
            vec![vec![entry("k", 5 << 8 | 2, b"short")]],
            ErrorKind::Corruption,
        ),
        // One entry twice.
        (
            vec![vec![put("k", 5)], vec![put("k", 5)]],
            ErrorKind::Corruption,
        ),
    ] {
        assert_eq!(run_merge(&plain(&no), parts, &[]).unwrap_err().kind(), want);
    }
    let yes = AtomicBool::new(true);
    let e = run_merge(&plain(&yes), vec![vec![put("k", 5)]], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
}

#[test]
fn a_merge_keeps_sequence_numbers() {
    let no = AtomicBool::new(false);
    let puts = vec![
        entry("a", pack_trailer(7, Kind::Put), b"x"),
        entry("b", pack_trailer(9, Kind::Put), b"y"),
    ];
    let (_, entries) = run_merge(&plain(&no), vec![puts.clone()], &[]).unwrap();
    assert_eq!(entries, puts);
}

/// A comparator that ignores case.
struct NoCase;
impl Comparator for NoCase {
    fn name(&self) -> &str {
        "test.no-case"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

#[test]
fn a_merge_keeps_the_newest_bytes_of_equal_keys() {
    let no = AtomicBool::new(false);
    let cmp = Cmp::Custom(Arc::new(NoCase));
    let key = |k, seq, kind, v| entry(k, pack_trailer(seq, kind), v);
    let chain = || {
        vec![
            key("KEY", 9, Kind::Merge, b"c"),
            key("Key", 7, Kind::Merge, b"b"),
            key("key", 5, Kind::Put, b"a"),
        ]
    };
    let one = key("KEY", 9, Kind::Put, b"a|b|c");
    let two = vec![
        key("KEY", 9, Kind::Merge, b"b|c"),
        key("key", 5, Kind::Put, b"a"),
    ];
    for (snapshots, expected) in [(&[][..], vec![one]), (&[6], two)] {
        let rules = MergeRules {
            cmp: &cmp,
            snapshots,
            merging: &appending(),
            ..plain(&no)
        };
        let (out, entries) = run_merge(&rules, vec![chain()], &[]).unwrap();
        assert_eq!(entries, expected);
        assert_eq!((out.entries_in, out.refused), (3, 0));
    }
}
