//! Commits of system transactions beside each other: user checkpoints of three writers, two threads
//! of maintenance, a reader, and a power cut at some moment.

use crate::case;
use crate::history::{Script, WRITERS};
use crate::locks_not_taken;
use crate::world::read;
use crate::world::{ERASED, OVERLAPPED, RECONCILED, SIGHTS, WITH_INDEX_DELTAS, World, options};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_sim::{campaign, repeat};
use std::sync::{Arc, Mutex};

const ROUNDS: u64 = 4;

fn model(totals: &Counts, costs: &Counts, ranges: &Counts) {
    let script = Script {
        salt: below(u64::MAX),
        is_preloaded: percent(70),
        value_bytes: [30, 100],
    };
    let least = [0, 150, 1 << 20][below(3) as usize];
    let world = World::new(options(least), script, totals);
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..ROUNDS {
                world.write(writer);
                if percent(30) {
                    world.look();
                }
            }
        }));
    }
    for _ in 0..2 {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..4 {
                (0..below(20)).for_each(|_| yield_now());
                world.maintain();
            }
        }));
    }
    let cut = Arc::new(Mutex::new(None));
    let (reader, to) = (world.clone(), cut.clone());
    threads.push(shuttle::thread::spawn(move || {
        let cut = below(4);
        for i in 0..4 {
            let (snapshot, content) = reader.look();
            reader.inspect();
            if percent(30) {
                reader.tree.verify().expect("verifies");
            }
            if cut == i {
                *to.lock().unwrap() = Some(reader.cut_the_power());
            }
            assert!(
                read(&reader.tree, &snapshot) == content,
                "a snapshot has changed"
            );
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    count(costs, 0, shuttle::current::context_switches() as u64);
    let stats = world.tree.stats();
    count(costs, 1, stats.leaves_merged_for_readers);
    count(costs, 2, stats.cold_leaves_merged);
    count(costs, 3, stats.system_checkpoints);
    count(ranges, 0, stats.derived_extent_ranges);
    count(ranges, 1, stats.extents_without_ranges);
    world.inspect();
    if percent(50) {
        world.release_all();
    }
    if let Some(cut) = cut.lock().unwrap().take() {
        world.recover(cut);
        count(costs, 4, 1);
    }
    world.end();
}

#[test]
fn commits_keep_one_order_in_any_schedule() {
    let (totals, costs, ranges) = (counts(), counts(), counts());
    let mut schedules = 0;
    for seed in campaign::cases(0..8 * campaign::scale()) {
        let _repeat = repeat!(commits_keep_one_order_in_any_schedule, "BASALT_CASE={seed}");
        let (totals, costs, ranges) = (totals.clone(), costs.clone(), ranges.clone());
        case(seed, move || model(&totals, &costs, &ranges));
        schedules += CASE as u64;
    }
    let [steps, for_readers, cold, checkpoints, cuts] = std::array::from_fn(|i| counted(&costs, i));
    let total = |which| counted(&totals, which);
    let (sights, reconciled, overlapped) = (total(SIGHTS), total(RECONCILED), total(OVERLAPPED));
    let (index, erased) = (total(WITH_INDEX_DELTAS), total(ERASED));
    let (derived, without) = (counted(&ranges, 0), counted(&ranges, 1));
    basalt_sim::campaign!(
        "tree_commit_schedules={schedules} steps={steps} sights={sights} cuts={cuts} \
         reconciled={reconciled} overlapped={overlapped} with_index_deltas={index} \
         erased={erased} merged_for_readers={for_readers} cold={cold} \
         system_checkpoints={checkpoints} derived_ranges={derived} without_ranges={without}"
    );
    if campaign::case().is_none() {
        assert!(derived > schedules / 16, "{derived} ranges were derived");
        assert!(without > schedules / 16, "{without} extents without ranges");
        assert_eq!(cuts, schedules);
        assert!(sights > 8 * schedules, "{sights} contents were seen");
        assert!(reconciled > 4 * schedules, "{reconciled} parts of pages");
        assert!(overlapped > 2 * schedules, "{overlapped} ran beside others");
        assert!(index > 2 * schedules, "{index} index pages had delta pages");
        assert!(erased > schedules, "{erased} extents were erased");
        assert!(for_readers > schedules, "{for_readers} merges for readers");
        assert!(cold > schedules / 20, "{cold} merges of cold leaves");
        assert!(checkpoints > schedules, "{checkpoints} checkpoints");
        let missed = locks_not_taken();
        assert!(missed.is_empty(), "not taken: {missed:?}");
    }
}

/// The first entries of a tree became base pages beside another user checkpoint, which had found
/// the tree empty, too. If the other one committed first, its delta page hid the base pages, and a
/// key kept the older of two values. The general model found it in its first schedule. User
/// checkpoints of an empty tree run one at a time since.
#[test]
fn first_writes_of_a_tree_keep_their_order_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..4 * campaign::scale()) {
        let _repeat = repeat!(
            first_writes_of_a_tree_keep_their_order_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || {
            let script = Script {
                salt: below(u64::MAX),
                is_preloaded: false,
                value_bytes: [30, 100],
            };
            let world = World::new(options(0), script, &totals);
            let is_emptied = percent(50);
            if is_emptied {
                // The delta pages of its only leaf delete all entries. Maintenance empties it.
                for value in [Some(&b"value"[..]), None, None] {
                    world.tree.write([(&b"gone"[..], value)]).expect("writes");
                }
            }
            let threads = (0..WRITERS).map(|writer| {
                let world = world.clone();
                shuttle::thread::spawn(move || {
                    world.write(writer);
                    world.look();
                })
            });
            let threads: Vec<_> = threads.collect();
            if is_emptied {
                world.tree.maintain().expect("maintains");
            } else if percent(30) {
                world.maintain();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            world.look();
            world.tree.verify().expect("verifies");
            world.history.lock().unwrap().judge();
            world.tree.close().expect("closes");
        });
        schedules += CASE as u64;
    }
    let sights = counted(&totals, SIGHTS);
    basalt_sim::campaign!("tree_first_write_schedules={schedules} sights={sights}");
    assert!(sights == 4 * schedules || campaign::case().is_some());
}
