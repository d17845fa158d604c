//! The limit of the memory of extent usage, and ranges that are derived.

use super::*;
use crate::page::PageKind;
use crate::page_format::PageBuilder;
use crate::page_format::tests::stored;
use crate::tests::{Changes, Content, DIR, content, disk, open_with, options, write};
use crate::{PageTree, TreeOptions};
use basalt_env::sync::atomic::AtomicBool;
use basalt_env::{CachePriority, Env, Random};
use basalt_fs::FileSystem;
use basalt_kv::codec::Compression;
use basalt_sim::SimFs;
use std::path::Path;
use std::sync::Arc;

const KEYS: u64 = 3000;

fn key(n: u64) -> Vec<u8> {
    format!("k{n:05}").into_bytes()
}

fn some_changes(random: &Random, count: u64, value: u8) -> Changes {
    // Some leaves change more often than others.
    let keys = (0..count).map(|_| key(random.below(KEYS) * random.below(KEYS) / KEYS));
    keys.map(|key| (key, Some(vec![value; 20]))).collect()
}

/// Writes changes to a tree and to its model.
fn write_both(tree: &PageTree, model: &mut Content, changes: Changes) {
    let borrowed = changes.iter();
    tree.write(borrowed.map(|(key, value)| (&key[..], value.as_deref())))
        .unwrap();
    for (key, value) in changes {
        model.insert(key, value.unwrap());
    }
}

/// Rounds of writes and maintenance.
const ROUNDS: u8 = 60;

/// Overwrites keys at random, and maintains a tree. Returns the bytes of its extents, on average
/// over the second half of the rounds: between collections, they rise.
fn maintained(usage_bytes: u64) -> u64 {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        usage_bytes,
        base_garbage: 0.1,
        // Only `base_garbage` says when an extent is collected.
        max_space_amp: 100.0,
        ..options()
    };
    let mut tree = PageTree::open(&env, DIR, &options).unwrap();
    let random = Random::from_seed(1);
    let mut model = Content::new();
    let (mut most, mut without, mut derived, mut bytes) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        let count = if round == 0 { 10 * KEYS } else { 600 };
        let changes = some_changes(&random, count, round);
        write_both(&tree, &mut model, changes);
        tree.storage.compact(&|| true).unwrap();
        most = most.max(tree.stats().extent_range_bytes);
        tree.maintain().unwrap();
        let stats = tree.stats();
        without += stats.extents_without_ranges;
        let of_ranges = stats.extent_range_bytes;
        if round >= ROUNDS / 2 {
            bytes += stats.extent_bytes();
        }
        // One extent is not sealed.
        assert!(of_ranges <= usage_bytes + 200, "round {round}: {of_ranges}");
        assert!(env.ledger().usage().index >= of_ranges + stats.mapping_bytes);
        if round % 10 == 9 {
            let found = tree.iter(&tree.snapshot(), b"").unwrap();
            let found = found.map(|entry| entry.unwrap());
            let found: Content = found.map(|(key, value)| (key, value.to_vec())).collect();
            assert!(found == model);
            tree.verify().unwrap();
            let before = tree.storage.usage.lock().clone();
            derived += stats.derived_extent_ranges;
            tree.close().unwrap();
            drop(tree);
            tree = PageTree::open(&env, DIR, &options).unwrap();
            let after = tree.storage.usage.lock().clone();
            for (extent, usage) in before.iter().filter(|(_, usage)| usage.valid > 0) {
                assert_eq!(after.get(extent).unwrap().ranges, usage.ranges);
            }
            assert!(env.ledger().usage().index >= tree.stats().extent_range_bytes);
        }
    }
    println!("limit {usage_bytes}: {most} bytes at most, {without} without, {derived} derived");
    match usage_bytes {
        0 | 300 => assert!(most > usage_bytes && without > 300 && derived >= 10),
        _ => assert_eq!((without, derived), (0, 0)),
    }
    tree.close().unwrap();
    bytes / u64::from(ROUNDS / 2)
}

/// The memory of ranges stays within its limit, also across openings, and the space of the tree
/// does not depend on the limit.
#[test]
fn ranges_of_extents_stay_within_their_limit() {
    let unlimited = maintained(8 << 20);
    for limit in [0, 300] {
        let bytes = maintained(limit);
        let (least, most) = (unlimited / 10 * 9, unlimited / 10 * 11);
        println!("limit {limit}: {bytes} bytes of {unlimited}");
        assert!((least..most).contains(&bytes), "{bytes} of {unlimited}");
    }
}

/// A tree with extents without ranges that are to be collected.
fn with_victims(seed: u64, usage_bytes: u64) -> (Arc<SimFs>, TreeOptions, Content) {
    let fs = disk(seed);
    let options = options().usage_bytes(usage_bytes);
    let storage = open_with(&fs, &options).unwrap();
    let random = Random::from_seed(seed);
    let mut model = Content::new();
    for round in 0..12 {
        let count = if round == 0 { 10 * KEYS } else { 1500 };
        let changes = some_changes(&random, count, round);
        write(&storage, &changes, u64::from(round)).unwrap();
        for (key, value) in changes {
            model.insert(key, value.unwrap());
        }
        storage.limit_usage();
        storage.compact(&|| true).unwrap();
    }
    storage.close().unwrap();
    (fs, options, model)
}

/// Returns the live pages of each extent without ranges.
fn live_pages(storage: &Storage) -> BTreeMap<ExtentId, Vec<PageId>> {
    let unknown = storage.pages_to_find(&BTreeSet::new()).by_rank;
    let mut live: BTreeMap<ExtentId, Vec<PageId>> =
        unknown.into_iter().map(|id| (id, Vec::new())).collect();
    let walked = storage.for_each_base(&|| true, &mut |page| {
        if let Some(pages) = live.get_mut(&page.extent) {
            pages.push(page);
        }
    });
    assert!(walked.unwrap().unwrap().is_none());
    live
}

fn path_of(extent: ExtentId) -> std::path::PathBuf {
    Path::new(DIR).join(extent_file(StreamKind::Base, extent))
}

/// All garbage of extents without ranges is damaged. Their collection does not notice.
#[test]
fn damaged_garbage_does_not_stop_a_collection() {
    for usage_bytes in [0, 100, 300] {
        let (fs, options, model) = with_victims(3, usage_bytes);
        let storage = open_with(&fs, &options).unwrap();
        let live = live_pages(&storage);
        assert!(live.len() > 3, "{} extents", live.len());
        let mut flipped = 0;
        for (extent, pages) in &live {
            let path = path_of(*extent);
            for offset in
                (basalt_stream::EXTENT_HEADER as u64..fs.stat(&path).unwrap().len).step_by(7)
            {
                let has = |page: &PageId| {
                    (u64::from(page.offset)..u64::from(page.offset + page.len)).contains(&offset)
                };
                if !pages.iter().any(has) {
                    fs.flip_bit(&path, offset, 2).unwrap();
                    flipped += 1;
                }
            }
        }
        assert!(flipped > 1000, "{flipped}");
        let all = live.keys().copied().collect();
        storage.relocate_bases(&all, &|| true).unwrap();
        storage.erase_dead().unwrap();
        let extents = storage.base.extents();
        assert!(extents.iter().all(|extent| !live.contains_key(&extent.id)));
        let derived = storage.stats().derived_extent_ranges;
        assert!(derived >= live.len() as u64, "{derived}");
        storage.verify().unwrap();
        assert!(content(&storage, &storage.view()).unwrap() == model);
    }
}

#[test]
fn a_damaged_live_page_of_a_collected_extent_is_reported() {
    let (fs, options, _) = with_victims(4, 0);
    let storage = open_with(&fs, &options).unwrap();
    let view = storage.view();
    let leaf = storage.path(&view, &key(1000)).unwrap();
    let parent = leaf.steps.last().unwrap();
    let victims = live_pages(&storage);
    let children = (0..parent.page.count()).map(|i| parent.page.child(i));
    let bases = children.map(|child| storage.pages_of(&view, child).unwrap().base);
    let lost = bases
        .into_iter()
        .find(|base| victims.contains_key(&base.extent));
    let lost = lost.expect("a leaf is in an extent without ranges");
    fs.flip_bit(
        &path_of(lost.extent),
        u64::from(lost.offset + lost.len - 1),
        1,
    )
    .unwrap();
    // Its extent is collected in any case.
    let of = BTreeSet::from([lost.extent]);
    storage.derive_ranges(&BTreeSet::new(), &|| true).unwrap();
    let e = storage.relocate_bases(&of, &|| true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(e.path(), Some(&*path_of(lost.extent)));
    assert_eq!(e.offset(), Some(u64::from(lost.offset)));
}

/// What is below a damaged index page is not found. Only the extents with such pages stay, and the
/// error names the index page.
#[test]
fn a_damaged_index_page_keeps_only_extents_with_pages_below_it() {
    let (mut stayed, mut collected) = (0, 0);
    for seed in 0..6 {
        let (fs, options, _) = with_victims(20 + seed, if seed % 2 == 0 { 0 } else { 1 << 20 });
        let options = options.max_space_amp(1.05);
        let storage = open_with(&fs, &options).unwrap();
        storage.usage.lock().drop_ranges(&storage.sealed_bases(), 0);
        let view = storage.view();
        assert!(view.root.level > 0);
        let path = storage.path(&view, &key(seed * 400)).unwrap();
        let index = path.steps.last().unwrap();
        let index_base = storage.pages_of(&view, index.key).unwrap().base;
        let below: BTreeSet<ExtentId> = (0..index.page.count())
            .map(|i| {
                storage
                    .pages_of(&view, index.page.child(i))
                    .unwrap()
                    .base
                    .extent
            })
            .collect();
        let victims = live_pages(&storage);
        storage.abandon().unwrap();
        drop((view, path, storage));
        let at = u64::from(index_base.offset + index_base.len - 1);
        fs.flip_bit(&path_of(index_base.extent), at, 1).unwrap();
        let storage = open_with(&fs, &options).unwrap();
        storage.usage.lock().drop_ranges(&storage.sealed_bases(), 0);
        let e = storage
            .relocate_bases(&victims.keys().copied().collect(), &|| true)
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert_eq!(e.path(), Some(&*path_of(index_base.extent)), "{e}");
        for extent in victims.keys().filter(|id| **id != index_base.extent) {
            let usage = storage.usage.lock();
            let valid = usage.get(*extent).map_or(0, |usage| usage.valid);
            match below.contains(extent) {
                true => stayed += u64::from(valid > 0),
                false => {
                    assert_eq!(valid, 0, "seed {seed}: extent {extent} has live pages");
                    collected += 1;
                }
            }
        }
    }
    println!("damaged index pages: {stayed} extents stayed, {collected} were collected");
    assert!(stayed > 5 && collected > 5, "{stayed} {collected}");
}

/// Regression test: each maintenance walked all index pages again as long as one was damaged. Now
/// the damage is reported without a walk, and met again when a part of the tree was written.
#[test]
fn damage_that_hides_pages_is_not_walked_to_at_each_try() {
    let (fs, options, mut model) = with_victims(9, 0);
    // No index page stays in the cache.
    let env = Env::builder(fs.clone()).seed(9).cache_bytes(0).build();
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let storage = &*tree.storage;
    let (live, view) = (live_pages(storage), storage.view());
    let path = storage.path(&view, &key(1000)).unwrap();
    let index_page = path.steps.last().unwrap();
    let base_of = |key: PageId| storage.pages_of(&view, key).unwrap().base;
    let index = base_of(index_page.key);
    let mut children = (0..index_page.page.count()).map(|i| base_of(index_page.page.child(i)));
    let is_victim = |page: &PageId| live.contains_key(&page.extent) && page.extent != index.extent;
    let below = children.find(is_victim).expect("a leaf of a victim").extent;
    drop(view);
    let damaged = path_of(index.extent);
    let flip = || {
        let at = u64::from(index.offset + index.len - 1);
        fs.flip_bit(&damaged, at, 1).unwrap();
    };
    flip();
    let victims = BTreeSet::from([below]);
    let reads_of_try = || {
        let before = fs.stats().reads;
        let e = storage.relocate_bases(&victims, &|| true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert_eq!(e.path(), Some(&*damaged), "{e}");
        fs.stats().reads - before
    };
    assert!(reads_of_try() > 10);
    assert_eq!(reads_of_try(), 0);
    // Other extents are collected meanwhile.
    let others = live.keys().copied().filter(|id| *id != index.extent);
    let _ = storage.relocate_bases(&others.collect(), &|| true);
    assert!(storage.stats().derived_extent_ranges > 0);
    // The damage was one of a transfer. What the index page hid is found again.
    flip();
    let random = Random::from_seed(9);
    for round in 20..30 {
        write_both(&tree, &mut model, some_changes(&random, 2000, round));
        tree.maintain().unwrap();
    }
    storage.relocate_bases(&victims, &|| true).unwrap();
    let usage = storage.usage.lock().get(below).cloned();
    assert!(usage.is_none_or(|usage| usage.valid == 0));
    tree.verify().unwrap();
    assert!(content(storage, &storage.view()).unwrap() == model);
    tree.close().unwrap();
}

/// A walk of all index pages leaves the cache to lookups.
#[test]
fn a_walk_leaves_the_cache_as_it_is() {
    let (fs, options, _) = with_victims(10, 0);
    let storage = open_with(&fs, &options).unwrap();
    let cache = storage.env.cache();
    storage.get(&storage.view(), &key(1000), true).unwrap();
    let before = cache.stats();
    assert!(before.inserts > 0, "a lookup puts its pages there");
    let derived = storage.derive_ranges(&BTreeSet::new(), &|| true).unwrap();
    assert!(!derived.known.is_empty());
    let after = cache.stats();
    assert_eq!((after.inserts, after.used), (before.inserts, before.used));
    assert!(
        after.hits > before.hits,
        "pages in the cache are not read again"
    );
}

/// Regression test: a walk came to index pages as often as there were ways to them, which is
/// exponential in the levels of a crafted tree.
#[test]
fn an_index_page_that_is_named_twice_is_damage() {
    let (fs, options, _) = with_victims(8, 0);
    let options = TreeOptions {
        mapping_bytes: 0,
        ..options
    };
    let storage = open_with(&fs, &options).unwrap();
    let view = storage.view();
    let (root, level) = (view.root.id, view.root.level);
    assert!(level >= 2, "{level}");
    let page = storage.index_page(&view, root, level).unwrap();
    let mut crafted = PageBuilder::new(PageKind::Index, level);
    for i in 0..2 {
        crafted.add(&page.key(i), 0, &page.child(0).to_bytes());
    }
    let (id, bytes) = stored(&mut crafted, Compression::None, 4096);
    let crafted = Page::open(id, &bytes).unwrap().to_cached();
    let base = storage.mapping.base_of(root, view.time).unwrap();
    let (cache, charge) = (storage.env.cache(), crafted.len());
    cache.insert(cache_key(base), crafted, charge, CachePriority::High);
    let walked = storage.for_each_base(&|| true, &mut |_| ()).unwrap();
    let e = walked.expect("it was not ended").expect("damage");
    assert!(e.to_string().contains("one of them twice"), "{e}");
    let e = storage.limit_mapping(&|| true).unwrap_err();
    assert!(e.to_string().contains("one of them twice"), "{e}");
}

/// Bytes that count as in use, and that no index page names, are a defect of the tables.
#[test]
fn bytes_in_use_without_a_page_are_reported() {
    let (fs, options, model) = with_victims(5, 0);
    let storage = open_with(&fs, &options).unwrap();
    let live = live_pages(&storage);
    let extent = *live.keys().next().unwrap();
    let wrong = PageId {
        extent,
        offset: 4000,
        len: 7,
    };
    (storage.usage.lock().add(StreamKind::Base, wrong, 1)).unwrap();
    let all = live.keys().copied().collect();
    let e = storage.relocate_bases(&all, &|| true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(e.path(), Some(&*path_of(extent)));
    for other in live.keys().filter(|id| **id != extent) {
        // It may be erased.
        let usage = storage.usage.lock();
        assert!(usage.get(*other).is_none_or(|usage| usage.valid == 0));
    }
    assert!(e.to_string().contains("count as in use"), "{e}");
    let survey = storage.survey();
    assert!(survey.damage[0].to_string().contains("count as in use"));
    assert!(content(&storage, &storage.view()).unwrap() == model);
}

#[test]
fn a_walk_that_is_ended_derives_nothing() {
    let (fs, options, _) = with_victims(6, 0);
    let storage = open_with(&fs, &options).unwrap();
    let derived = storage.derive_ranges(&BTreeSet::new(), &|| false).unwrap();
    assert!(derived.known.is_empty() && derived.damaged.is_empty());
    assert_eq!(storage.stats().derived_extent_ranges, 0);
}

/// A transaction has written pages to extents that are sealed now, and is not committed. The ranges
/// of these extents say which of its pages are new, so they stay.
#[test]
fn extents_that_a_transaction_writes_to_keep_their_ranges() {
    let fs = disk(7);
    let options = options().usage_bytes(0).overwrite_ratio(0.0);
    let storage = open_with(&fs, &options).unwrap();
    let random = Random::from_seed(7);
    let mut kept = 0;
    write(&storage, &some_changes(&random, 10 * KEYS, 0), 0).unwrap();
    for round in 1..30 {
        write(&storage, &some_changes(&random, 1500, round), 0).unwrap();
        let due = storage.mapping.due(2);
        let Some(leaf) = due.first() else {
            continue;
        };
        let prepared = storage.prepare_compaction(*leaf, true).unwrap();
        storage.base.seal().unwrap();
        storage.limit_usage();
        let Some(prepared) = prepared else {
            continue;
        };
        let written: BTreeSet<ExtentId> = prepared.tx.written().map(|id| id.extent).collect();
        storage.commit_prepared(&prepared).unwrap();
        let usage = storage.usage.lock();
        let with_ranges = written.iter().filter_map(|id| usage.get(*id));
        kept += with_ranges
            .filter(|of| of.kind == StreamKind::Base && of.ranges.is_some())
            .count();
        drop(usage);
        storage.verify().unwrap();
        drop(prepared);
        storage.compact(&|| true).unwrap();
        storage.collect_garbage(&|| true).unwrap();
        storage.verify().unwrap();
    }
    assert!(kept > 10, "{kept}");
}

/// One thread writes, and two maintain the tree: one drops ranges that the other one has derived.
#[test]
fn threads_drop_and_derive_ranges_of_one_tree() {
    let env = Env::for_tests(disk(8), 8);
    let options = options().usage_bytes(100).base_garbage(0.1);
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let random = Random::from_seed(8);
    let mut model = Content::new();
    let is_writing = AtomicBool::new(true);
    basalt_env::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while is_writing.load(SeqCst) {
                    tree.maintain().unwrap();
                    tree.verify().unwrap();
                }
            });
        }
        // On a busy machine, the two threads may have done little when the writes end.
        let is_enough = |round| round >= 100 && tree.stats().derived_extent_ranges > 0;
        let mut round = 0;
        while !is_enough(round) && round < 250 {
            let count = if round == 0 { 10 * KEYS } else { 600 };
            let changes = some_changes(&random, count, round);
            write_both(&tree, &mut model, changes);
            round += 1;
        }
        is_writing.store(false, SeqCst);
    });
    tree.maintain().unwrap();
    assert!(tree.stats().derived_extent_ranges > 0);
    let found = tree.iter(&tree.snapshot(), b"").unwrap();
    let found = found.map(|entry| entry.unwrap());
    let found: Content = found.map(|(key, value)| (key, value.to_vec())).collect();
    assert!(found == model);
    tree.verify().unwrap();
    tree.close().unwrap();
}
