//! The storage tier against a model, with small pages, short chains and small extents.

mod cold_leaves;
mod compaction_waves;
mod crafted_pages;
mod damaged_chains;
mod dropped_entries;
mod failed_compactions;
mod index_deltas;
mod lost_files;
mod mapping_limit;
mod releases;
mod runs;
mod scan_ahead;
mod space_bound;

use crate::cursor::TreeCursor;
use crate::entries::CheckedChanges;
use crate::storage::{Prepared, Storage, View};
use crate::{PageTree, TreeOptions};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use basalt_env::{Env, Random};
use basalt_fs::{ErrorKind, FileSystem, Result};
use basalt_kv::codec::Compression;
use basalt_kv::key::Kind;
use basalt_sim::campaign::scale;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot, When};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) const DIR: &str = "tree";
const PUT: u8 = Kind::Put as u8;

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(crate) fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

pub(crate) fn options() -> TreeOptions {
    TreeOptions {
        page_bytes: 400,
        // Of larger pages, a lookup reads the head and one block.
        block_bytes: 16,
        extent_bytes: 8 << 10,
        max_deltas: 4,
        // Headers are a large part of small delta pages.
        overwrite_ratio: 2.5,
        leaf_delta_bytes: Some(0),
        compression: Compression::None,
        ..TreeOptions::default()
    }
}

/// Opens a tree with settings that differ from one opening to the next.
pub(crate) fn open(fs: &Arc<SimFs>) -> Result<Storage> {
    let seed = extents_seed(fs);
    // From one opening to the next, changes go to leaves, to index pages, or to both.
    let least = [0, 150, 1 << 20][(seed.count_ones() + fs.op_count() as u32) as usize % 3];
    let options = options().leaf_delta_bytes(Some(least));
    // In some lives, extents lose their ranges, and are collected soon.
    let n = ((seed >> 7) + fs.op_count()) as usize % 3;
    let options = options.usage_bytes([0, 300, 8 << 20][n]);
    // Small extents are erased soon, and large ones have whole blocks of garbage before.
    let options = options.extent_bytes([64 << 10, 8 << 10, 8 << 10][(seed >> 11) as usize % 3]);
    open_with(fs, &options.base_garbage([0.1, 0.2, 0.5][n]))
}

pub(crate) fn open_with(fs: &Arc<SimFs>, options: &TreeOptions) -> Result<Storage> {
    let env = Env::for_tests(fs.clone(), extents_seed(fs) ^ fs.op_count());
    Storage::open(&env, Path::new(DIR), options)
}

/// Returns a number that depends on the extents of the tree. A tree that is opened again must not
/// draw the numbers of extents that it has: a real source of random numbers does not repeat itself.
fn extents_seed(fs: &Arc<SimFs>) -> u64 {
    let extents = [crate::storage::BASE, crate::storage::DELTA].map(|stream| {
        let list = fs.list(&Path::new(DIR).join(stream));
        let names = list.unwrap_or_default().into_iter().map(|entry| entry.name);
        names.fold(0, |crc, name| crc32c::crc32c_append(crc, name.as_bytes()))
    });
    u64::from(extents[0]) << 32 | u64::from(extents[1])
}

/// A step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(Changes),
    /// Writes changes whose pages were written before a compaction or a collection.
    WriteBeside(Changes, bool),
    /// Compacts a leaf after a write that was committed while the compaction wrote its pages.
    CompactBeside(Changes),
    Compact,
    Collect,
    Checkpoint,
    Reopen,
}

fn changes(random: &Random) -> Changes {
    let mut changes = Changes::new();
    let from = random.below(400);
    let (count, spread) = match random.below(12) {
        // Many delta pages for each leaf.
        0 => (400, 400),
        1..4 => (random.below(60), 400),
        _ => (1 + random.below(12), 1 + random.below(60)),
    };
    for _ in 0..count {
        let key = format!("k{:05}", (from + random.below(spread)) % 400).into_bytes();
        let deletes = random.one_in(4);
        let value = vec![random.next_u64() as u8; random.below(40) as usize];
        changes.insert(key, (!deletes).then_some(value));
    }
    // Sometimes a whole range goes.
    if random.one_in(12) {
        for n in from..from + 80 {
            changes.insert(format!("k{:05}", n % 400).into_bytes(), None);
        }
    }
    changes
}

pub(crate) fn history(random: &Random, count: usize) -> Vec<Step> {
    let step = |_| match random.below(12) {
        0 | 1 => Step::Compact,
        2 => Step::Collect,
        3 if random.one_in(2) => Step::Checkpoint,
        4 if random.one_in(3) => Step::Reopen,
        5 => Step::WriteBeside(changes(random), random.one_in(2)),
        6 => Step::CompactBeside(changes(random)),
        _ => Step::Write(changes(random)),
    };
    (0..count).map(step).collect()
}

fn prepare<'a>(storage: &'a Storage, changes: &Changes, note: u64) -> Result<Prepared<'a>> {
    let changes = changes.iter();
    let changes = changes.map(|(key, value)| (&key[..], value.as_deref()));
    let note = Some(note.to_le_bytes().to_vec());
    storage.prepare_user_checkpoint(&mut CheckedChanges::new(changes), note)
}

pub(crate) fn write(storage: &Storage, changes: &Changes, note: u64) -> Result<()> {
    let prepared = prepare(storage, changes, note)?;
    storage.commit_prepared(&prepared).map(|_| ())
}

/// Writes changes of so many random keys to a tree.
pub(crate) fn write_some(tree: &PageTree, random: &Random, count: u64, round: u8) {
    let keys = (0..count).map(|_| format!("k{:03}", random.below(300)));
    let changes: BTreeMap<String, Option<[u8; 20]>> = keys
        .map(|key| (key, (random.below(5) > 0).then_some([round; 20])))
        .collect();
    let changes = changes.iter();
    tree.write(changes.map(|(key, value)| (key.as_bytes(), value.as_ref().map(|v| &v[..]))))
        .unwrap();
}

pub(crate) fn run(storage: &mut Storage, fs: &Arc<SimFs>, step: &Step, note: u64) -> Result<()> {
    // Maintenance of a tree does it behind collections.
    storage.limit_usage();
    match step {
        Step::Write(changes) => write(storage, changes, note),
        Step::WriteBeside(changes, compacts) => {
            let prepared = prepare(storage, changes, note)?;
            // The first pages of a tree keep compactions and collections out.
            if prepared._maintenance.is_some() {
                return storage.commit_prepared(&prepared).map(|_| ());
            }
            match compacts {
                true => storage.compact(&|| true)?,
                false => storage.collect_garbage(&|| true)?,
            };
            storage.commit_prepared(&prepared).map(|_| ())
        }
        Step::CompactBeside(changes) => {
            let due = storage.mapping.due(storage.options.max_deltas);
            let compaction = match due.first() {
                Some(leaf) => storage.prepare_compaction(*leaf, false)?,
                None => None,
            };
            write(storage, changes, note)?;
            match compaction {
                Some(compaction) => storage.commit_prepared(&compaction).map(|_| ()),
                None => Ok(()),
            }
        }
        Step::Compact => storage.compact(&|| true).map(|_| ()),
        Step::Collect => storage.collect_garbage(&|| true).map(|_| ()),
        Step::Checkpoint => storage.take_checkpoint(),
        Step::Reopen => {
            storage.close()?;
            *storage = open(fs)?;
            Ok(())
        }
    }
}

fn is_write(step: &Step) -> bool {
    matches!(
        step,
        Step::Write(_) | Step::WriteBeside(..) | Step::CompactBeside(_)
    )
}

pub(crate) fn apply(content: &mut Content, step: &Step) {
    if let Step::Write(changes) | Step::WriteBeside(changes, _) | Step::CompactBeside(changes) =
        step
    {
        for (key, value) in changes {
            match value {
                Some(value) => content.insert(key.clone(), value.clone()),
                None => content.remove(key),
            };
        }
    }
}

/// Returns what the tree has in a view, read forward and backward.
pub(crate) fn content(storage: &Storage, view: &Arc<View>) -> Result<Content> {
    let mut found = Content::new();
    let mut cursor = TreeCursor::at(storage, view.clone(), b"", true)?;
    while cursor.next()? {
        let (kind, value) = cursor.entry();
        if kind == PUT {
            found.insert(cursor.key(), value.to_vec());
        }
    }
    let mut back = Content::new();
    while cursor.prev()? {
        let (kind, value) = cursor.entry();
        if kind == PUT {
            back.insert(cursor.key(), value.to_vec());
        }
    }
    assert_eq!(found, back, "both directions");
    Ok(found)
}

fn check_points(storage: &Storage, view: &View, model: &Content, random: &Random) {
    for _ in 0..10 {
        let key = format!("k{:05}", random.below(400)).into_bytes();
        let found = storage.get(view, &key, true).unwrap();
        let found = found.filter(|(kind, _)| *kind == PUT);
        assert_eq!(
            found.as_ref().map(|(_, v)| &v[..]),
            model.get(&key).map(|v| &v[..])
        );
        // Compactions split leaves, and collections let none grow.
        let leaf = storage.path(view, &key).unwrap().leaf;
        let base = storage.pages_of(view, leaf).unwrap().base;
        assert!(base.len as usize <= 2 * options().page_bytes, "{base}");
    }
}

#[test]
fn histories_agree_with_a_model() {
    let (mut levels, mut erased, mut held_checks) = (0, 0, 0);
    let (mut with_index_deltas, mut pushed_down) = (0, 0);
    let (mut derived, mut without_ranges, mut released) = (0, 0, 0);
    for seed in basalt_sim::campaign::cases(0..30 * basalt_sim::campaign::scale()) {
        let random = Random::from_seed(seed);
        let fs = disk(seed);
        let mut storage = open(&fs).unwrap();
        let mut model = Content::new();
        let mut held: Vec<(Arc<View>, Content)> = Vec::new();
        let (mut before, mut note) = (0, Vec::new());
        let (mut index_pages, mut derived_before, mut released_before) = (0, 0, 0);
        for (n, step) in history(&random, 120).iter().enumerate() {
            if matches!(step, Step::Reopen) {
                held.clear();
            }
            run(&mut storage, &fs, step, n as u64)
                .unwrap_or_else(|e| panic!("seed {seed}, step {n}: {step:?}: {e}"));
            apply(&mut model, step);
            if is_write(step) {
                note = (n as u64).to_le_bytes().to_vec();
            }
            assert_eq!(storage.note(), note, "seed {seed}, step {n}");
            let stats = storage.stats();
            // Counted since the tree was opened.
            derived += stats.derived_extent_ranges.saturating_sub(derived_before);
            derived_before = stats.derived_extent_ranges;
            released += stats.released_bytes.saturating_sub(released_before);
            released_before = stats.released_bytes;
            without_ranges += u64::from(stats.extents_without_ranges > 0);
            let view = storage.view();
            levels = levels.max(view.root.level);
            let sums = storage.mapping.sums(0);
            with_index_deltas += u64::from(sums.index_pages > 0);
            pushed_down += u64::from(sums.index_pages < index_pages);
            index_pages = sums.index_pages;
            check_points(&storage, &view, &model, &random);
            if random.one_in(6) {
                assert_eq!(
                    content(&storage, &view).unwrap(),
                    model,
                    "seed {seed}, step {n}"
                );
                storage.verify().unwrap();
            }
            // Compactions and collections change nothing that old views see.
            if random.one_in(5) {
                held.push((view, model.clone()));
            }
            if held.len() > 3 {
                let (view, model) = held.remove(random.below(held.len() as u64) as usize);
                assert_eq!(
                    content(&storage, &view).unwrap(),
                    model,
                    "seed {seed}, step {n}"
                );
                held_checks += 1;
            }
            let extents = storage.base.extents().len() + storage.delta.extents().len();
            erased += before.max(extents) - extents;
            before = extents;
        }
    }
    println!("tree histories: levels={levels} erased={erased} old_views={held_checks}");
    println!("tree histories: index_deltas={with_index_deltas} pushed_down={pushed_down}");
    println!("tree histories: derived_ranges={derived} without_ranges={without_ranges}");
    println!("tree histories: released_bytes={released}");
    let has_all = levels >= 2 && erased > 50 && held_checks > 30;
    let has_index = with_index_deltas > 200 && pushed_down > 10;
    let has_derived = derived > 25 && without_ranges > 200 && released > 8 << 10;
    assert!(has_all && has_index && has_derived || basalt_sim::campaign::case().is_some());
}

/// After a power cut at any change of the disk, the tree has what its committed transactions wrote,
/// and what the one in doubt wrote or nothing of it.
#[test]
fn a_power_cut_at_every_change_keeps_committed_transactions() {
    let (mut states, mut derived) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..2 * basalt_sim::campaign::scale()) {
        let random = Random::from_seed(seed);
        let fs = disk(seed);
        let mut storage = open(&fs).unwrap();
        let points: Arc<Mutex<Vec<(SimSnapshot, usize)>>> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let (to, steps_done) = (points.clone(), done.clone());
        fs.on_mutation(move |snapshot| to.lock().push((snapshot, steps_done.load(SeqCst))));
        let steps = history(&random, 30);
        let mut models = vec![Content::new()];
        for (n, step) in steps.iter().enumerate() {
            run(&mut storage, &fs, step, n as u64).unwrap();
            let mut model = models[n].clone();
            apply(&mut model, step);
            models.push(model);
            done.fetch_add(1, SeqCst);
        }
        fs.on_mutation(|_| {});
        for (snapshot, done) in points.lock().iter() {
            for policy in CrashPolicy::ALL.iter() {
                let say = format!("seed {seed}, after step {done}, {policy:?}, state {states}");
                let crashed = snapshot.crash(*policy, seed * 10_000 + states);
                let storage = open(&crashed).unwrap_or_else(|e| panic!("{say}: {e}"));
                let view = storage.view();
                let found = content(&storage, &view).unwrap_or_else(|e| panic!("{say}: {e}"));
                let after = (done + 1).min(steps.len());
                assert!(found == models[*done] || found == models[after], "{say}");
                storage.verify().unwrap();
                // The tree goes on.
                write(&storage, &changes(&random), 1).unwrap();
                storage.limit_usage();
                storage.compact(&|| true).unwrap();
                storage.collect_garbage(&|| true).unwrap();
                storage.verify().unwrap();
                derived += storage.stats().derived_extent_ranges;
                storage.close().unwrap();
                states += 1;
            }
        }
    }
    basalt_sim::campaign!("tree_crash_states={states} derived_ranges={derived}");
    let least = basalt_sim::campaign::scale().floor(3500);
    assert!(
        states >= least && derived >= least / 10 || basalt_sim::campaign::case().is_some(),
        "{states} {derived}"
    );
}

/// The faults, and whether they stay for several calls.
const FAULTS: [(FaultKind, bool); 5] = [
    (FaultKind::Eio, false),
    (FaultKind::Eio, true),
    (FaultKind::Enospc, false),
    (FaultKind::ShortWrite, false),
    (FaultKind::FailedSync, false),
];

/// Runs a history in which the `k`-th call fails. Returns the number of calls, and of extents whose
/// ranges were derived.
fn run_with_fault(seed: u64, (kind, stays): (FaultKind, bool), k: u64) -> (u64, u64) {
    let say = format!("seed {seed}, {kind:?} stays {stays}, call {k}");
    let disk = disk(seed);
    let faulty = FaultFs::new(disk.clone(), k);
    let env = Env::for_tests(faulty.clone(), seed);
    let n = k as usize / 2 % 2;
    let options = options().usage_bytes([0, 8 << 20][n]);
    let options = options.base_garbage([0.1, 0.5][n]);
    let mut storage = Storage::open(&env, Path::new(DIR), &options).unwrap();
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: if stays { When::From(k) } else { When::Nth(k) },
        kind,
    });
    let mut model = Content::new();
    // Writes since the last commit that failed. A recovery may find one of them.
    let mut doubt: Vec<Step> = Vec::new();
    let mut failed = 0;
    // A step of two transactions may fail after the first.
    let one_call = |s: &Step| {
        matches!(
            s,
            Step::Write(_) | Step::Compact | Step::Collect | Step::Checkpoint
        )
    };
    let steps = history(&Random::from_seed(seed), 24)
        .into_iter()
        .filter(one_call);
    for (n, step) in steps.enumerate() {
        match run(&mut storage, &disk, &step, n as u64) {
            Ok(()) => {
                // A step that commits nothing leaves the doubt.
                if matches!(step, Step::Write(_)) {
                    doubt.clear();
                }
                apply(&mut model, &step);
            }
            Err(_) => {
                failed += 1;
                if matches!(step, Step::Write(_)) {
                    doubt.push(step);
                }
            }
        }
        if failed == 3 {
            faulty.clear();
        }
        match content(&storage, &storage.view()) {
            Ok(found) => assert_eq!(found, model, "{say}, step {n}"),
            Err(e) => assert!(failed < 3, "{say}, step {n}: {e}"),
        }
    }
    let calls = faulty.seen(rule);
    let mut derived = storage.stats().derived_extent_ranges;
    faulty.clear();
    if k.is_multiple_of(2) {
        // A stream whose sync has failed takes nothing more, and a checkpoint needs no stream.
        let _ = storage.close();
    }
    drop(storage);
    let storage = open(&disk.kill()).unwrap_or_else(|e| panic!("{say}: {e}"));
    let found = content(&storage, &storage.view()).unwrap();
    let with = |step: &Step| {
        let mut model = model.clone();
        apply(&mut model, step);
        model
    };
    let is_possible = found == model || doubt.iter().any(|step| with(step) == found);
    assert!(is_possible, "{say}: {failed} failed");
    storage.verify().unwrap_or_else(|e| panic!("{say}: {e}"));
    write(&storage, &changes(&Random::from_seed(k)), 0).unwrap();
    storage.limit_usage();
    storage.compact(&|| true).unwrap();
    storage.collect_garbage(&|| true).unwrap();
    storage.verify().unwrap();
    derived += storage.stats().derived_extent_ranges;
    (calls, derived)
}

#[test]
fn every_failing_call_leaves_committed_transactions() {
    let (mut runs, mut derived) = (0, 0);
    let scale = basalt_sim::campaign::scale();
    for seed in 0..scale.floor(1) {
        for fault in FAULTS {
            let (calls, _) = run_with_fault(seed, fault, u64::MAX);
            let step = 1 + calls / 150;
            for k in (1..=calls).step_by(step as usize) {
                derived += run_with_fault(seed, fault, k).1;
                runs += 1;
            }
        }
    }
    basalt_sim::campaign!("tree_fault_runs={runs} derived_ranges={derived}");
    let is_enough = runs >= scale.floor(300) && derived >= scale.floor(100);
    assert!(is_enough, "{runs} {derived}");
}

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[test]
fn every_tree_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_tree_test_passes_on_lava", &[]);
}

/// Index pages of two children whose keys fill a page are found by a collection.
#[test]
fn keys_nearly_as_large_as_a_page_stay_readable() {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        extent_bytes: 4 << 20,
        ..TreeOptions::default()
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let key = |i: u64| {
        let mut key = format!("k{i:05}").into_bytes();
        key.resize(40 << 10, b'x');
        key
    };
    let random = Random::from_seed(1);
    let mut model = Content::new();
    for round in 0..40u8 {
        let written: Content = (0..8)
            .map(|_| (key(random.below(64)), vec![round; 20]))
            .collect();
        let changes = written.iter().map(|(k, v)| (&k[..], Some(&v[..])));
        tree.write(changes).unwrap();
        model.extend(written);
        tree.maintain().unwrap();
        tree.verify().unwrap();
    }
    let snapshot = tree.snapshot();
    let found: Vec<_> = tree
        .iter(&snapshot, b"")
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert!(
        found
            .iter()
            .map(|(k, v)| (&k[..], &v[..]))
            .eq(model.iter().map(|(k, v)| (&k[..], &v[..])))
    );
    let mut back: Vec<_> = tree
        .iter_back(&snapshot, &[0xff])
        .unwrap()
        .map(Result::unwrap)
        .collect();
    back.reverse();
    assert_eq!(found, back);
    let wrong = [(&b"b"[..], None), (&b"a"[..], None)];
    assert!(tree.write(wrong).is_err(), "keys must rise");
    tree.close().unwrap();
}

/// A snapshot that is held for long keeps what it sees, and nothing of what came and went since.
#[test]
fn an_old_snapshot_keeps_only_what_it_sees() {
    let random = Random::from_seed(9);
    let fs = disk(9);
    let storage = open_with(&fs, &options()).unwrap();
    let all = |value: u8| -> Changes {
        let key = |n: u64| format!("k{n:05}").into_bytes();
        (0..400).map(|n| (key(n), Some(vec![value; 20]))).collect()
    };
    write(&storage, &all(0), 0).unwrap();
    let (old, before) = (storage.view(), content(&storage, &storage.view()).unwrap());
    let mut most = 0;
    for round in 1..120u8 {
        write(&storage, &all(round), 0).unwrap();
        // Another reader comes and goes.
        let passing = random.one_in(2).then(|| storage.view());
        storage.compact(&|| true).unwrap();
        storage.collect_garbage(&|| true).unwrap();
        drop(passing);
        let stats = storage.stats();
        if round > 20 {
            let bytes = stats.base_extent_bytes + stats.delta_extent_bytes;
            most = most.max(bytes);
        }
    }
    assert_eq!(content(&storage, &old).unwrap(), before);
    storage.verify().unwrap();
    // Two states of 400 entries of some 40 bytes, and garbage.
    assert!(most < 200 << 10, "{most} bytes");
}

/// Transactions that were prepared and never committed leave nothing behind.
#[test]
fn pages_without_a_transaction_are_erased() {
    let fs = disk(3);
    let storage = open_with(&fs, &options()).unwrap();
    let random = Random::from_seed(3);
    write(&storage, &changes(&random), 0).unwrap();
    let mut most = 0;
    for round in 0..300 {
        drop(prepare(&storage, &changes(&random), 1).unwrap());
        // The next commit syncs and seals the extents that were left.
        if round % 8 == 0 {
            write(&storage, &changes(&random), 0).unwrap();
            storage.compact(&|| true).unwrap();
        }
        storage.erase_dead().unwrap();
        most = most.max(storage.stats().delta_extent_bytes);
    }
    assert!(most < 16 * options().extent_bytes, "{most}");
    storage.verify().unwrap();
}

/// Every changed byte of an extent is found, or is in no page.
#[test]
fn damage_of_pages_is_found() {
    let fs = disk(4);
    let mut storage = open(&fs).unwrap();
    let random = Random::from_seed(4);
    let mut model = Content::new();
    for (n, step) in history(&random, 60).iter().enumerate() {
        run(&mut storage, &fs, step, n as u64).unwrap();
        apply(&mut model, step);
    }
    storage.close().unwrap();
    drop(storage);
    let snapshot = fs.snapshot();
    let (mut found, mut harmless) = (0, 0);
    for stream in ["base", "delta"] {
        let dir = Path::new(DIR).join(stream);
        for entry in fs.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            if !entry.name.ends_with(".extent") {
                continue;
            }
            let len = fs.read_all(&path).unwrap().len() as u64;
            for offset in (0..len).step_by(61) {
                let damaged = snapshot.kill();
                damaged.flip_bit(&path, offset, (offset % 8) as u8).unwrap();
                let say = format!("byte {offset} of {}", path.display());
                let checked = open(&damaged).and_then(|storage| {
                    storage.verify()?;
                    content(&storage, &storage.view())
                });
                match checked {
                    Ok(content) => {
                        assert_eq!(content, model, "{say}");
                        harmless += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Corruption, "{say}: {e}");
                        assert_eq!(e.path(), Some(&*path), "{say}: {e}");
                        found += 1;
                    }
                }
            }
        }
    }
    println!("damaged bytes of extents: {found} found, {harmless} harmless");
    assert!(found > 200, "{found}");
}

/// Writers, maintenance and readers on threads of their own. A reader sees each write whole.
#[test]
fn threads_write_read_and_maintain_one_tree() {
    let env = Env::for_tests(disk(5), 5);
    let tree = PageTree::open(&env, DIR, &options()).unwrap();
    let writing = AtomicUsize::new(2);
    basalt_env::thread::scope(|scope| {
        for writer in 0..2u8 {
            let (tree, writing) = (&tree, &writing);
            scope.spawn(move || {
                for round in 0..60u8 {
                    let key = |n: u32| format!("{writer}{:04}", n * 7 + u32::from(round) % 7);
                    let keys: Vec<String> = (0..40).map(key).collect();
                    let value = [round; 30];
                    let mark = format!("{writer}");
                    let all = [(mark.as_bytes(), Some(&value[..]))].into_iter();
                    let all = all.chain(keys.iter().map(|k| (k.as_bytes(), Some(&value[..]))));
                    tree.write(all).unwrap();
                }
                writing.fetch_sub(1, SeqCst);
            });
        }
        scope.spawn(|| {
            while writing.load(SeqCst) > 0 {
                tree.maintain().unwrap();
            }
        });
        scope.spawn(|| {
            while writing.load(SeqCst) > 0 {
                tree.compact_concurrently(&|| true).unwrap();
            }
        });
        for reader in 0..2u8 {
            let (tree, writing) = (&tree, &writing);
            scope.spawn(move || {
                while writing.load(SeqCst) > 0 {
                    let snapshot = tree.snapshot();
                    let mark = format!("{reader}");
                    let Some(last) = tree.get(&snapshot, mark.as_bytes()).unwrap() else {
                        continue;
                    };
                    let of_writer = tree.iter(&snapshot, mark.as_bytes()).unwrap();
                    let of_writer = of_writer.map(Result::unwrap).skip(1);
                    let of_writer =
                        of_writer.take_while(|(key, _)| key.starts_with(mark.as_bytes()));
                    let newest = of_writer.filter(|(_, value)| *value == last).count();
                    assert_eq!(newest, 40, "a write is there in part");
                }
            });
        }
    });
    tree.verify().unwrap();
    tree.close().unwrap();
}

#[test]
fn limits_are_refused_and_named() {
    let env = Env::for_tests(disk(6), 6);
    let closed = TreeOptions {
        create_if_missing: false,
        ..options()
    };
    let missing = PageTree::open(&env, DIR, &closed).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let wrong = TreeOptions {
        max_deltas: 1,
        ..options()
    };
    let refused = PageTree::open(&env, DIR, &wrong).err().unwrap().to_string();
    assert!(
        refused.contains("max_deltas is 1; it must be 2 to 64"),
        "{refused}"
    );
    let tree = PageTree::open(&env, DIR, &options()).unwrap();
    assert_eq!(
        PageTree::open(&env, DIR, &options()).err().unwrap().kind(),
        ErrorKind::Busy
    );
    let long = vec![b'k'; basalt_kv::MAX_KEY_LEN + 1];
    let refused = tree.write([(&long[..], None)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(
        refused.to_string().contains("key of 65537 bytes"),
        "{refused}"
    );
    tree.write([(&long[1..], Some(&b"v"[..]))]).unwrap();
    let snapshot = tree.snapshot();
    assert_eq!(
        tree.get(&snapshot, &long[1..]).unwrap().as_deref(),
        Some(&b"v"[..])
    );
    tree.close().unwrap();
}

/// Opens the tree with the user checkpoints up to a note.
fn open_up_to(fs: &Arc<SimFs>, last: u64) -> Result<Storage> {
    let env = Env::for_tests(fs.clone(), fs.op_count());
    let keep = |note: &[u8]| {
        note.try_into()
            .is_ok_and(|note| u64::from_le_bytes(note) <= last)
    };
    let options = options().usage_bytes([0, 300, 8 << 20][fs.op_count() as usize % 3]);
    Storage::open_keeping(&env, Path::new(DIR), &options, &keep)
}

#[test]
fn a_recovery_goes_back_before_an_unconfirmed_write() {
    let mut erased = 0;
    for seed in 0..30 {
        let (fs, random) = (disk(seed), Random::from_seed(seed));
        let storage = open_up_to(&fs, 0).unwrap();
        let mut model = Content::new();
        let unconfirmed = |note: u64, with: &Changes| {
            let prepared = prepare(&storage, with, note).unwrap();
            storage.commit_unconfirmed(&prepared).unwrap();
        };
        for note in 1..40 {
            let with = changes(&random);
            unconfirmed(note, &with);
            storage.confirm();
            apply(&mut model, &Step::Write(with));
            storage.compact(&|| true).unwrap();
            storage.collect_garbage(&|| true).unwrap();
        }
        storage.take_checkpoint().unwrap();
        let confirmed = storage.view();
        let before = storage.base.extents().len() + storage.delta.extents().len();
        for note in 40..60 {
            unconfirmed(note, &changes(&random));
            storage.compact(&|| true).unwrap();
            erased += storage.collect_garbage(&|| true).unwrap();
            storage.take_checkpoint().unwrap();
        }
        let wanted = content(&storage, &confirmed).unwrap();
        assert_eq!(wanted, model, "seed {seed}");
        drop(confirmed);
        storage.erase_dead().unwrap();
        storage.abandon().unwrap();
        for policy in [
            CrashPolicy::NothingUnsynced,
            CrashPolicy::EverythingUnsynced,
        ] {
            let fs = fs.snapshot().crash(policy, seed);
            let storage = open_up_to(&fs, 39).unwrap();
            assert_eq!(
                content(&storage, &storage.view()).unwrap(),
                model,
                "seed {seed}"
            );
            storage.verify().unwrap();
            let extents = storage.base.extents().len() + storage.delta.extents().len();
            assert!(
                extents < 4 * before + 80,
                "{extents} extents, {before} before"
            );
            // The numbers of what was dropped are given out again.
            let with = changes(&random);
            let prepared = prepare(&storage, &with, 40).unwrap();
            storage.commit_unconfirmed(&prepared).unwrap();
            drop(prepared);
            storage.confirm();
            storage.close().unwrap();
            let mut after = model.clone();
            apply(&mut after, &Step::Write(with));
            let storage = open_up_to(&fs, 40).unwrap();
            assert_eq!(
                content(&storage, &storage.view()).unwrap(),
                after,
                "seed {seed}"
            );
            storage.close().unwrap();
            drop(storage);
            // A confirmed write that is unknown means that the memory tier has lost its record.
            let e = open_up_to(&fs, 39).err().expect("it is refused");
            assert_eq!(e.kind(), ErrorKind::Corruption);
        }
    }
    basalt_sim::campaign!("tree_erased_in_doubt={erased}");
    assert!(erased > 20, "only {erased} extents were erased in doubt");
}

/// Goes back behind writes that do not count, with compactions and collections behind them, while a
/// reader holds an older view.
#[test]
fn a_tree_in_use_goes_back_before_unconfirmed_writes() {
    for seed in 0..12 * scale() {
        let (fs, random) = (disk(seed), Random::from_seed(seed));
        let mut storage = open(&fs).unwrap();
        let mut model = Content::new();
        let mut note = 0;
        for round in 0..4 {
            for step in history(&random, 15) {
                note += 1;
                run(&mut storage, &fs, &step, note).unwrap();
                apply(&mut model, &step);
            }
            let old = (storage.view(), model.clone());
            for _ in 0..random.below(3) {
                let step = Step::Write(changes(&random));
                note += 1;
                run(&mut storage, &fs, &step, note).unwrap();
                apply(&mut model, &step);
            }
            let counted = note;
            for _ in 0..1 + random.below(3) {
                note += 1;
                let prepared = prepare(&storage, &changes(&random), note).unwrap();
                storage.commit_unconfirmed(&prepared).unwrap();
                drop(prepared);
                storage.compact(&|| true).unwrap();
                storage.collect_garbage(&|| true).unwrap();
            }
            let keep = |note: &[u8]| u64::from_le_bytes(note.try_into().unwrap()) <= counted;
            storage.roll_back(&keep).unwrap();
            let say = format!("seed {seed}, round {round}");
            assert_eq!(content(&storage, &storage.view()).unwrap(), model, "{say}");
            assert_eq!(content(&storage, &old.0).unwrap(), old.1, "{say}");
            storage.verify().unwrap();
            drop(old);
            storage.reclaim().unwrap();
            // A reader's view may have kept pages that only it needs.
            storage.verify().unwrap();
            if random.one_in(2) {
                storage.abandon().unwrap();
                drop(storage);
                storage = open(&fs.snapshot().crash(CrashPolicy::NothingUnsynced, seed)).unwrap();
                let found = content(&storage, &storage.view()).unwrap();
                assert_eq!(found, model, "{say}");
                storage.abandon().unwrap();
                drop(storage);
                storage = open(&fs).unwrap();
            }
        }
        storage.close().unwrap();
    }
}

#[test]
fn many_keys_are_found_as_one_is() {
    let (fs, random) = (disk(7), Random::from_seed(7));
    let storage = open(&fs).unwrap();
    for note in 0..30 {
        write(&storage, &changes(&random), note).unwrap();
    }
    let view = storage.view();
    let keys: Vec<Vec<u8>> = (0..420).map(|n| format!("k{n:05}").into_bytes()).collect();
    let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let single = |key: &[u8]| storage.get(&view, key, false).unwrap();
    let all = storage.get_many(&view, &asked, false, &mut |_| true);
    for (key, found) in asked.iter().zip(all) {
        assert_eq!(found.unwrap().unwrap(), single(key));
    }
    // Keys beyond a budget have no answer, and the others have theirs.
    let mut budget = 6_000usize;
    let some = storage.get_many(&view, &asked, false, &mut |bytes| {
        budget = budget.saturating_sub(bytes);
        budget > 0
    });
    let answered = some.iter().flatten().count();
    assert!(answered > 0 && answered < keys.len(), "{answered} answers");
    for (key, found) in asked.iter().zip(some) {
        assert!(found.is_none_or(|found| found.unwrap() == single(key)));
    }
}
