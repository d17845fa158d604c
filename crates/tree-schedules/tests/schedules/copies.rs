//! System checkpoints and copies of a tree beside commits, compactions and erasures. A copy has the
//! content of one moment of its call, and a power cut beside a system checkpoint loses nothing.

use crate::case;
use crate::history::{Script, WRITERS};
use crate::world::{ERASED, World, open, options};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_sim::{campaign, repeat};
use std::sync::{Arc, Mutex};

const COPIES: [&str; 2] = ["copy1", "copy2"];

/// Places of the counts of this model.
const CHECKPOINTS: usize = 0;
const CUTS: usize = 1;
const COPIED_BESIDE: usize = 2;
const WITHOUT_LINKS: usize = 3;

/// Copies the tree. Returns the moments between which the copy was begun.
fn copy(world: &World, dir: &str, own: &Counts) -> (u64, u64) {
    (0..below(20)).for_each(|_| yield_now());
    let begun = world.history.lock().unwrap().tick();
    let copy = world.tree.begin_copy().expect("begins");
    let ended = world.history.lock().unwrap().tick();
    let before = world.history.lock().unwrap().acknowledged();
    (0..below(400)).for_each(|_| yield_now());
    let check_continue = || {
        (0..below(100)).for_each(|_| yield_now());
        Ok(())
    };
    let made = copy.write(dir, true, &check_continue).expect("writes");
    count(own, WITHOUT_LINKS, u64::from(made.linked_bytes == 0));
    let after = world.history.lock().unwrap().acknowledged();
    count(own, COPIED_BESIDE, u64::from(after > before));
    (begun, ended)
}

fn model(totals: &Counts, own: &Counts) {
    let script = Script {
        salt: below(u64::MAX),
        is_preloaded: percent(80),
        value_bytes: [30, 100],
    };
    let least = [0, 1 << 20][below(2) as usize];
    // Each maintenance takes a system checkpoint. In half of the schedules it does nothing else, so
    // that commits meet the system checkpoints more often.
    let options = options(least).checkpoint_bytes(0);
    let options = match percent(50) {
        true => options,
        false => options
            .max_deltas(64)
            .mapping_bytes(1 << 20)
            .cold_merge_ratio(0.0)
            .base_garbage(1.0)
            .delta_garbage(1.0)
            .max_space_amp(100.0),
    };
    let world = World::with_links(options, script, totals, percent(50));
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            (0..4).for_each(|_| world.write(writer));
        }));
    }
    let cuts = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let (maintainer, to) = (world.clone(), cuts.clone());
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..3 {
                match percent(80) {
                    true => maintainer.tree.maintain().expect("maintains"),
                    false => maintainer.maintain(),
                }
                // A later system checkpoint would hide what is wrong with this one.
                to.lock().unwrap().push(maintainer.cut_the_power());
                maintainer.note_extents();
            }
        }));
    }
    let copied = Arc::new(Mutex::new(Vec::new()));
    let (copier, to, of_copier) = (world.clone(), copied.clone(), own.clone());
    threads.push(shuttle::thread::spawn(move || {
        for dir in COPIES {
            let span = copy(&copier, dir, &of_copier);
            to.lock().unwrap().push((dir, span));
        }
    }));
    let reader = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..2 {
            (0..below(40)).for_each(|_| yield_now());
            reader.look();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    count(own, CHECKPOINTS, world.tree.stats().system_checkpoints);
    world.release_all();
    for (dir, span) in copied.lock().unwrap().drain(..) {
        let copied = open(&world.disk, dir, &world.options);
        copied.verify().expect("verifies");
        world.saw(&copied, span, false);
        copied.maintain().expect("maintains");
        world.saw(&copied, span, false);
        copied.close().expect("closes");
    }
    for cut in cuts.lock().unwrap().drain(..) {
        world.recover(cut);
        count(own, CUTS, 1);
    }
    world.end();
}

#[test]
fn copies_and_system_checkpoints_have_one_moment_in_any_schedule() {
    let (totals, own) = (counts(), counts());
    let mut schedules = 0;
    for seed in campaign::cases(0..6 * campaign::scale()) {
        let _repeat = repeat!(
            copies_and_system_checkpoints_have_one_moment_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let (totals, own) = (totals.clone(), own.clone());
        case(seed, move || model(&totals, &own));
        schedules += CASE as u64;
    }
    let [checkpoints, cuts, beside, without_links] = std::array::from_fn(|i| counted(&own, i));
    let erased = counted(&totals, ERASED);
    basalt_sim::campaign!(
        "tree_copy_schedules={schedules} system_checkpoints={checkpoints} cuts={cuts} \
         copied_beside_commits={beside} without_links={without_links} erased={erased}"
    );
    if campaign::case().is_none() {
        assert!(checkpoints > 3 * schedules, "{checkpoints} checkpoints");
        assert_eq!(cuts, 6 * schedules);
        assert!(beside > schedules / 4, "{beside} copies beside commits");
        assert!(
            without_links > schedules / 2,
            "{without_links} without links"
        );
        assert!(erased > schedules, "{erased} extents were erased");
    }
}
