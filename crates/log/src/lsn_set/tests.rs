//! Sets compared with `BTreeSet`, and their size.

use super::*;
use basalt_env::Random;
use std::collections::BTreeSet;

/// Returns LSNs that rise by steps of one of several kinds.
fn lsns(random: &Random, count: u64) -> Vec<u64> {
    let mut lsn = [0, 1, 1000, u64::MAX - 100_000_000][random.below(4) as usize];
    let kind = random.below(4);
    (0..count)
        .map(|_| {
            lsn += match kind {
                0 => 1,
                1 => 1 + random.below(3),
                2 => 1 + random.below(5000),
                _ if random.one_in(50) => 1 + random.below(1000),
                _ => 1,
            };
            lsn
        })
        .collect()
}

fn check(set: &LsnSet, model: &BTreeSet<u64>) {
    assert_eq!(set.count() as usize, model.len());
    assert_eq!(set.is_empty(), model.is_empty());
    assert_eq!(set.first(), model.first().copied());
    assert_eq!(set.last(), model.last().copied());
    let all: Vec<u64> = set.runs().flatten().collect();
    assert!(all.iter().eq(model), "{all:?} and not {model:?}");
    let runs: Vec<_> = set.runs().collect();
    assert!(
        runs.windows(2).all(|w| w[0].end() + 1 < *w[1].start()),
        "runs are maximal"
    );
    let mut bytes = vec![7; 3];
    set.encode(&mut bytes);
    let mut at = 3;
    assert_eq!(LsnSet::decode(&bytes, &mut at).as_ref(), Some(set));
    assert_eq!(at, bytes.len());
}

#[test]
fn sets_agree_with_a_model() {
    for seed in 0..300 {
        let random = Random::from_seed(seed);
        let all = lsns(&random, random.below(300));
        let mut set = LsnSet::from_rising(all.iter().copied());
        let mut model: BTreeSet<u64> = all.iter().copied().collect();
        check(&set, &model);
        for _ in 0..20 {
            let pick = |extra: u64| match all.len() as u64 {
                0 => extra,
                n => (all[random.below(n) as usize] + extra).saturating_sub(2),
            };
            let (a, b) = (pick(random.below(5)), pick(random.below(5)));
            let range = a.min(b)..=a.max(b);
            let n = model.range(range.clone()).count() as u32;
            assert_eq!(set.count_in(&range), n);
            assert_eq!(set.contains(a), model.contains(&a));
            if random.one_in(3) {
                assert_eq!(set.remove(&range), n);
                model.retain(|lsn| !range.contains(lsn));
                check(&set, &model);
            }
        }
    }
}

#[test]
fn rising_lsns_cost_far_less_than_eight_bytes_each() {
    let bytes = |step: u64| {
        let set = LsnSet::from_rising((0..256).map(|i| 10_000_000_000 + i * step));
        (size_of::<LsnSet>() + set.memory()) as f64 / 256.0
    };
    assert!(bytes(1) < 0.2, "{} bytes a record", bytes(1));
    // Byte positions as LSNs, for records of a kilobyte.
    assert!(bytes(1000) < 2.2, "{} bytes a record", bytes(1000));
}

#[test]
fn bytes_that_are_no_set_are_refused() {
    let mut accepted = 0;
    for seed in 0..3000 {
        let random = Random::from_seed(seed);
        let all = lsns(&random, 1 + random.below(40));
        let mut bytes = Vec::new();
        LsnSet::from_rising(all).encode(&mut bytes);
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next_u64() as u8,
            _ => bytes.truncate(at),
        }
        let mut at = 0;
        if let Some(set) = LsnSet::decode(&bytes, &mut at) {
            // Bytes that are accepted are a set, and its own encoding.
            let mut again = Vec::new();
            set.encode(&mut again);
            assert_eq!(again, bytes[..at]);
            let all: Vec<u64> = set.runs().take(1000).flat_map(|r| r.take(1000)).collect();
            assert!(all.windows(2).all(|w| w[0] < w[1]));
            accepted += 1;
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
}

/// Gaps around the largest distance that fits beside the flag of a run.
#[test]
fn sets_with_gaps_of_half_of_all_lsns_have_their_lsns() {
    let half = 1u64 << 63;
    for gap in [half - 2, half - 1, half, half + 1, half + 2, u64::MAX - 20] {
        for (low, high) in [(1, 1), (3, 1), (1, 4), (5, 6)] {
            let lsns: Vec<u64> = (0..low)
                .chain((0..high).map(|i| low - 1 + gap + i))
                .collect();
            let set = LsnSet::from_rising(lsns.iter().copied());
            let mut bytes = Vec::new();
            set.encode(&mut bytes);
            let again = LsnSet::decode(&bytes, &mut 0);
            assert!(set.runs().flatten().eq(lsns), "{gap:x}: {low} and {high}");
            assert_eq!(again.as_ref(), Some(&set), "{gap:x}: {low} and {high}");
        }
    }
}
