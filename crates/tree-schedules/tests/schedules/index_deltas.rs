//! User checkpoints that begin to write delta pages of index pages while others still write to the
//! leaves. From then on they run one at a time, and no older entry hides a newer one.

use crate::case;
use crate::history::{Script, WRITERS};
use crate::world::{OVERLAPPED, RECONCILED, WITH_INDEX_DELTAS, World, options};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_sim::{campaign, repeat};

/// Places of the counts of this model.
const SWITCHED: usize = 0;

fn model(totals: &Counts, own: &Counts) {
    let script = Script {
        salt: below(u64::MAX),
        is_preloaded: true,
        value_bytes: [10, [30, 200][below(2) as usize]],
    };
    // Of the second one, some rounds go to the index page, and some to the leaves.
    let least = [1 << 20, 120][below(2) as usize];
    let world = World::new(options(least), script, totals);
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..3 {
                world.write(writer);
                if percent(50) {
                    world.look();
                }
            }
        }));
    }
    let compactor = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            (0..below(20)).for_each(|_| yield_now());
            compactor.inspect();
            match percent(50) {
                true => compactor.tree.maintain().expect("maintains"),
                false => compactor.maintain(),
            }
        }
    }));
    let before = counted(totals, OVERLAPPED);
    for thread in threads {
        thread.join().unwrap();
    }
    world.inspect();
    let has_overlapped = counted(totals, OVERLAPPED) > before;
    let is_switched = world.has_index_deltas();
    count(own, SWITCHED, u64::from(has_overlapped && is_switched));
    world.end();
}

#[test]
fn checkpoints_with_index_deltas_run_alone_in_any_schedule() {
    let (totals, own) = (counts(), counts());
    let mut schedules = 0;
    for seed in campaign::cases(0..8 * campaign::scale()) {
        let _repeat = repeat!(
            checkpoints_with_index_deltas_run_alone_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let (totals, own) = (totals.clone(), own.clone());
        case(seed, move || model(&totals, &own));
        schedules += CASE as u64;
    }
    let total = |which| counted(&totals, which);
    let (index, overlapped) = (total(WITH_INDEX_DELTAS), total(OVERLAPPED));
    let (reconciled, switched) = (total(RECONCILED), counted(&own, SWITCHED));
    basalt_sim::campaign!(
        "tree_index_delta_schedules={schedules} with_index_deltas={index} \
         overlapped={overlapped} switched={switched} reconciled={reconciled}"
    );
    if campaign::case().is_none() {
        assert!(index > schedules, "{index} index pages had delta pages");
        assert!(switched > schedules / 4, "{switched} began beside others");
        assert!(reconciled > schedules / 4, "{reconciled} parts of pages");
    }
}
