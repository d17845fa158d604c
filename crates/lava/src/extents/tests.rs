//! Unit tests of `extents`.

use super::*;
use crate::steps::steps;
use basalt_sim::rng::Rng;

/// Compares random operations with a plain list of blocks.
#[test]
fn extents_behave_like_a_list_of_blocks() {
    for seed in 0..300 {
        let mut c = Rng::of(&[seed, 5]);
        let mut extents = Extents::default();
        let mut model: Vec<Option<u64>> = Vec::new();
        let mut place = 100;
        let mut copies: Vec<(Extents, Vec<Option<u64>>)> = Vec::new();
        // Most lists are short; some have several chunks.
        for _ in 0..if seed % 20 == 0 { 2_000 } else { 60 } {
            match c.below(8) {
                0 => {
                    let to = c.below(model.len() as u64 + 3);
                    let mut freed = blocks_of(&extents.cut(to));
                    let tail = model.split_off((to as usize).min(model.len()));
                    let mut gone: Vec<u64> = tail.into_iter().flatten().collect();
                    freed.sort_unstable();
                    gone.sort_unstable();
                    assert_eq!(freed, gone);
                }
                1 => {
                    let from = c.below(model.len() as u64 + 2);
                    let to = from + c.below(9);
                    let freed = blocks_of(&extents.punch(from..to));
                    let mut gone = Vec::new();
                    for i in from..to.min(model.len() as u64) {
                        gone.extend(model[i as usize].take());
                    }
                    assert_eq!(freed, gone);
                }
                _ => {
                    let len = c.below(6);
                    if c.coin() {
                        place += c.below(50);
                    }
                    extents.push(Some(place), len);
                    model.extend((0..len).map(|i| Some(place + i)));
                    place += len;
                }
            }
            assert_eq!(extents.blocks(), model.len() as u64);
            let all: Vec<Option<u64>> = extents
                .iter()
                .flat_map(|e| (0..e.len).map(move |i| e.place.map(|p| p + i)))
                .collect();
            assert_eq!(all, model, "seed {seed}");
            let from = c.below(model.len() as u64 + 2);
            let to = from + c.below(12);
            let some: Vec<Option<u64>> = extents
                .within(from..to)
                .flat_map(|e| (0..e.len).map(move |i| e.place.map(|p| p + i)))
                .collect();
            let end = (to as usize).min(model.len());
            assert_eq!(some, model[(from as usize).min(end)..end]);
            let allocated: Vec<Run> = extents.runs().collect();
            let blocks = allocated.iter().map(|r| r.len).sum();
            let extents_count = allocated.len() as u64;
            let sums = Allocated {
                extents: extents_count,
                blocks,
            };
            assert_eq!(extents.allocated(), sums, "seed {seed}");
            if let Some(one) = extents.single().filter(|one| *one != 0) {
                assert_eq!(Extents::of_one(one, extents.blocks()), extents);
            }
            if c.percent(10) {
                copies.push((extents.clone(), model.clone()));
            }
        }
        for (copy, model) in copies {
            let all = copy.iter();
            let all = all.flat_map(|e| (0..e.len).map(move |i| e.place.map(|p| p + i)));
            assert!(all.eq(model), "seed {seed}: a copy changed");
        }
    }
}

/// Regression test: each hole rebuilt the whole list, so 65,536 holes in one file took two
/// minutes.
#[test]
fn punching_a_hole_takes_few_steps() {
    const HOLES: u64 = 1 << 16;
    let mut each = Vec::new();
    for from_the_end in [false, true] {
        let mut extents = Extents::default();
        extents.push(Some(1000), 2 * HOLES);
        let before = steps();
        for i in 0..HOLES {
            let i = if from_the_end { HOLES - 1 - i } else { i };
            assert_eq!(extents.punch(2 * i..2 * i + 1).len(), 1);
        }
        each.push((steps() - before) / HOLES);
        assert_eq!(
            (extents.allocated().extents, extents.allocated().blocks),
            (HOLES, HOLES)
        );
        // A copy is shared until one of the two changes.
        let (copy, before) = (extents.clone(), steps());
        extents.punch(1..2);
        extents.punch(3..4);
        assert!(
            steps() - before < 3 * HOLES / CHUNK as u64 * 4,
            "{}",
            steps() - before
        );
        assert_eq!(copy.allocated().extents, HOLES);
    }
    assert!(each.iter().all(|n| *n < 4 * CHUNK as u64), "{each:?} steps");
}

fn blocks_of(runs: &[Run]) -> Vec<u64> {
    runs.iter().flat_map(|r| r.start..r.end()).collect()
}
