//! Unit tests of `free_space`.

use super::*;
use basalt_sim::rng::Rng;

#[test]
fn free_space_behaves_like_a_set_of_blocks() {
    const BLOCKS: u64 = 300;
    for seed in 0..200 {
        let mut c = Rng::of(&[seed, 6]);
        let mut space = FreeSpace::default();
        let mut model = BTreeSet::new();
        let mut held: Vec<Run> = Vec::new();
        assert!(space.free(Run {
            start: 0,
            len: BLOCKS
        }));
        model.extend(0..BLOCKS);
        for _ in 0..200 {
            match c.below(4) {
                0 if !held.is_empty() => {
                    let run = held.swap_remove(c.below(held.len() as u64) as usize);
                    assert!(space.free(run));
                    model.extend(run.start..run.end());
                    assert!(!space.free(run), "twice");
                }
                1 => {
                    let run = Run {
                        start: c.below(BLOCKS),
                        len: c.below(9),
                    };
                    let can = (run.start..run.end()).all(|b| model.contains(&b));
                    assert_eq!(space.take(run), can, "seed {seed} {run:?}");
                    if can && run.len > 0 {
                        (run.start..run.end()).for_each(|b| {
                            model.remove(&b);
                        });
                        held.push(run);
                    }
                }
                _ => {
                    let near = c.coin().then(|| c.below(BLOCKS));
                    let want = c.below(40);
                    let got = space.allocate_all(want, near);
                    assert_eq!(got.is_some(), want <= model.len() as u64);
                    for run in got.into_iter().flatten() {
                        for b in run.start..run.end() {
                            assert!(model.remove(&b), "given out twice");
                        }
                        held.push(run);
                    }
                }
            }
            assert_eq!(space.blocks(), model.len() as u64);
            let all: Vec<u64> = space.iter().flat_map(|r| r.start..r.end()).collect();
            assert!(all.iter().eq(model.iter()));
            let touching = space.iter().zip(space.iter().skip(1));
            assert!(touching.into_iter().all(|(a, b)| a.end() < b.start));
        }
    }
}

#[test]
fn short_runs_are_allocated_first_and_files_stay_contiguous() {
    let mut space = FreeSpace::default();
    for (start, len) in [(10, 5), (20, 2), (30, 100)] {
        assert!(space.free(Run { start, len }));
    }
    let at = |run: Option<Run>| run.map(|r| (r.start, r.len));
    assert_eq!(at(space.allocate(2, None)), Some((20, 2)));
    assert_eq!(at(space.allocate(3, Some(30))), Some((30, 3)));
    assert_eq!(at(space.allocate(3, Some(33))), Some((33, 3)));
    assert_eq!(at(space.allocate(6, Some(3))), Some((36, 6)));
    assert_eq!(at(space.allocate(1000, None)), Some((42, 88)));
    assert_eq!(at(space.allocate(1000, None)), Some((10, 5)));
    assert_eq!(space.allocate(1, None), None);
}
