//! The release of snapshots: threads hold, clone and drop them, and walk slowly, beside commits,
//! collections of garbage and erasures. A held snapshot is read right, and when none is left, no
//! extent stays without a page in use.

use crate::case;
use crate::history::{Content, Script};
use crate::world::{ERASED, SIGHTS, World, options, read};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_sim::{campaign, repeat};
use basalt_tree_schedules::TreeSnapshot;
use std::sync::{Arc, Mutex};

const HOLDERS: usize = 2;
const ROUNDS: u64 = 4;

/// Places of the counts of this model.
const OLD_READS: usize = 0;
const HANDED_OVER: usize = 1;
const OLD_EXTENTS: usize = 2;

/// Snapshots with their contents that a thread leaves to another one.
type Shelf = Arc<Mutex<Vec<(TreeSnapshot, Content)>>>;

fn erase(world: &World) {
    (0..below(10)).for_each(|_| yield_now());
    match below(3) {
        0 => world.tree.compact_range(b"", None, &|| true),
        1 => world.tree.maintain(),
        _ => world.tree.reclaim(),
    }
    .expect("gives space back");
    world.note_extents();
}

fn check(world: &World, held: &(TreeSnapshot, Content)) {
    let (snapshot, content) = held;
    assert!(read(&world.tree, snapshot) == *content, "it has changed");
}

/// Takes snapshots, and reads each of them again later. Some are dropped by the other holder.
fn hold(world: &World, shelf: &Shelf, own: &Counts) {
    let mut held: Vec<(TreeSnapshot, Content)> = Vec::new();
    for _ in 0..3 {
        let (snapshot, content) = world.look();
        if percent(60) {
            shelf
                .lock()
                .unwrap()
                .push((snapshot.clone(), content.clone()));
        }
        held.push((snapshot, content));
        if percent(40) {
            held.swap_remove(below(held.len() as u64) as usize);
        }
        let taken = percent(50).then(|| shelf.lock().unwrap().pop());
        if let Some(taken) = taken.flatten() {
            check(world, &taken);
            count(own, HANDED_OVER, 1);
        }
        if let Some(oldest) = held.first() {
            check(world, oldest);
            count(own, OLD_READS, 1);
        }
    }
    // An iterator keeps its pages without the snapshot.
    if let Some((snapshot, content)) = held.pop() {
        let iter = world.tree.iter(&snapshot, b"").expect("an iterator");
        drop((snapshot, held));
        let found = iter.map(|entry| {
            yield_now();
            let (key, value) = entry.expect("reads");
            (key, value.to_vec())
        });
        assert!(found.collect::<Content>() == content, "it has changed");
    }
}

fn model(totals: &Counts, own: &Counts) {
    let script = Script {
        salt: below(u64::MAX),
        is_preloaded: true,
        value_bytes: [30, 100],
    };
    let least = [0, 1 << 20][below(2) as usize];
    let world = World::new(options(least), script, totals);
    let shelf = Shelf::default();
    let mut threads = Vec::new();
    for writer in 0..2 {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            (0..ROUNDS).for_each(|_| world.write(writer));
        }));
    }
    let eraser = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        (0..4).for_each(|_| erase(&eraser));
    }));
    for _ in 0..HOLDERS {
        let (world, shelf, own) = (world.clone(), shelf.clone(), own.clone());
        threads.push(shuttle::thread::spawn(move || hold(&world, &shelf, &own)));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    // The last snapshots keep their pages, and only those.
    world.tree.compact_range(b"", None, &|| true).unwrap();
    world.tree.reclaim().expect("reclaims");
    let left: Vec<_> = shelf.lock().unwrap().drain(..).collect();
    left.iter().for_each(|held| check(&world, held));
    let extents = world.tree.inspect_extents();
    let old = extents.iter().filter(|e| e.is_sealed && e.valid_bytes == 0);
    let old = old.count() as u64;
    assert!(
        old == 0 || !left.is_empty(),
        "no snapshot needs {extents:?}"
    );
    count(own, OLD_EXTENTS, old);
    drop(left);
    world.release_all();
    world.end();
}

#[test]
fn snapshots_keep_pages_until_they_end_in_any_schedule() {
    let (totals, own) = (counts(), counts());
    let mut schedules = 0;
    for seed in campaign::cases(0..6 * campaign::scale()) {
        let _repeat = repeat!(
            snapshots_keep_pages_until_they_end_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let (totals, own) = (totals.clone(), own.clone());
        case(seed, move || model(&totals, &own));
        schedules += CASE as u64;
    }
    let [old_reads, handed_over, old_extents] = std::array::from_fn(|i| counted(&own, i));
    let (sights, erased) = (counted(&totals, SIGHTS), counted(&totals, ERASED));
    basalt_sim::campaign!(
        "tree_snapshot_schedules={schedules} sights={sights} old_reads={old_reads} \
         handed_over={handed_over} old_extents={old_extents} erased={erased}"
    );
    if campaign::case().is_none() {
        assert!(old_reads > 2 * schedules, "{old_reads} reads of old views");
        assert!(
            handed_over > schedules / 4,
            "{handed_over} were handed over"
        );
        assert!(
            old_extents > schedules / 20,
            "{old_extents} extents were kept"
        );
        assert!(erased > 3 * schedules, "{erased} extents were erased");
    }
}
