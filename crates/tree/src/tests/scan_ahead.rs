//! Long scans: their read-ahead, what they put into the cache, and damage that they read ahead.

use super::{DIR, disk, options};
use crate::storage::extent_file;
use crate::usage::StreamKind;
use crate::{EntryCursor, PageTree, TreeOptions};
use basalt_env::{CacheStats, Env};
use basalt_fs::ErrorKind;
use basalt_sim::SimFs;
use std::path::Path;
use std::sync::Arc;

pub(super) const KEYS: usize = 4000;
/// Bytes of a value.
const VALUE: usize = 100;
/// Entries of a short scan, which goes on to one leaf at most.
const SHORT: usize = 8;

pub(super) fn key(n: usize) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

pub(super) fn with_options() -> TreeOptions {
    TreeOptions {
        page_bytes: 4096,
        block_bytes: 400,
        extent_bytes: 1 << 20,
        ..options()
    }
}

/// Returns a tree with delta pages on some leaves, opened with an empty cache.
pub(super) fn opened(fs: &Arc<SimFs>) -> PageTree {
    opened_with(fs, &with_options())
}

fn opened_with(fs: &Arc<SimFs>, options: &TreeOptions) -> PageTree {
    let env = Env::for_tests(fs.clone(), 1);
    let tree = PageTree::open(&env, DIR, options).unwrap();
    let put = |keys: &mut dyn Iterator<Item = usize>, value: &[u8]| {
        let keys: Vec<Vec<u8>> = keys.map(key).collect();
        tree.write(keys.iter().map(|key| (&key[..], Some(value))))
            .unwrap();
    };
    put(&mut (0..KEYS), &[b'a'; VALUE]);
    tree.compact_range(b"", None, &|| true).unwrap();
    if options.leaf_delta_bytes != Some(0) {
        // The first checkpoint of small changes still writes to the leaves.
        put(&mut (0..KEYS / 2).step_by(7), &[b'x'; VALUE]);
        tree.compact_range(b"", None, &|| true).unwrap();
    }
    put(&mut (0..KEYS / 2).step_by(7), &[b'b'; VALUE]);
    tree.close().unwrap();
    let env = Env::for_tests(fs.clone(), 2);
    PageTree::open(&env, DIR, options).unwrap()
}

fn reads(tree: &PageTree) -> u64 {
    tree.storage.env.fs().stats().reads
}

fn cached(tree: &PageTree) -> CacheStats {
    tree.storage.env.cache().stats()
}

/// Reads so many entries from a key on, in a direction, and checks them.
fn scan(cursor: &mut EntryCursor, from: usize, count: usize, forward: bool) {
    cursor.seek(&key(from)).unwrap();
    let mut found = Vec::new();
    for i in 0..count {
        let n = match forward {
            true => from + i,
            false => from - 1 - i,
        };
        let moved = match forward {
            true => cursor.next_entry().unwrap(),
            false => cursor.prev_entry().unwrap(),
        };
        assert!(moved, "entry {n}");
        found.clear();
        cursor.take_key(&mut found).unwrap();
        assert_eq!(found, key(n));
        let is_changed = n < KEYS / 2 && n.is_multiple_of(7);
        let value = if is_changed { b'b' } else { b'a' };
        assert_eq!(cursor.value(), [value; VALUE]);
        assert_eq!(cursor.pinned_value(), cursor.value());
    }
}

#[test]
fn a_long_scan_reads_many_leaves_with_one_read() {
    let fs = disk(1);
    let tree = opened(&fs);
    let leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    assert!(leaves > 100);
    for forward in [true, false] {
        let before = reads(&tree);
        let from = if forward { 0 } else { KEYS };
        scan(
            &mut tree.cursor(&tree.snapshot(), false),
            from,
            KEYS,
            forward,
        );
        let read = reads(&tree) - before;
        println!("{read} reads of {leaves} leaves");
        assert!(read < leaves / 4, "{read} reads of {leaves} leaves");
    }
    tree.abandon().unwrap();
}

/// A long scan reads each head of a delta page of an index page once, and its blocks with the
/// leaves that they have keys of.
#[test]
fn a_long_scan_reads_delta_pages_of_index_pages_ahead() {
    let fs = disk(1);
    let options = TreeOptions {
        leaf_delta_bytes: Some(1 << 20),
        ..with_options()
    };
    let tree = opened_with(&fs, &options);
    let stats = tree.stats();
    assert!(
        stats.index_delta_bytes > 0 && stats.leaves_with_deltas == 0,
        "{stats:?}"
    );
    let leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    for forward in [true, false] {
        let before = reads(&tree);
        let from = if forward { 0 } else { KEYS };
        let mut cursor = tree.cursor(&tree.snapshot(), false);
        scan(&mut cursor, from, KEYS, forward);
        let read = reads(&tree) - before;
        println!("{read} reads of {leaves} leaves");
        assert!(read < leaves / 3, "{read} reads of {leaves} leaves");
    }
    tree.abandon().unwrap();
}

/// A scan that stays in two leaves reads nothing ahead of them.
#[test]
fn a_short_scan_reads_no_leaf_ahead() {
    let fs = disk(1);
    let tree = opened(&fs);
    let bytes = |tree: &PageTree| tree.storage.env.fs().stats().bytes_read;
    scan(&mut tree.cursor(&tree.snapshot(), true), 2500, 1, true);
    let (before, mut most) = (bytes(&tree), 0);
    for from in (2500..3000).step_by(25) {
        let before = bytes(&tree);
        scan(&mut tree.cursor(&tree.snapshot(), false), from, SHORT, true);
        most = most.max(bytes(&tree) - before);
    }
    assert!(bytes(&tree) > before);
    // Two leaves and an index page.
    assert!(most < 3 * 4096, "{most} bytes");
    tree.abandon().unwrap();
}

/// A scan that has returned 16 KiB of a leaf begins to read the next leaves before it comes to
/// them.
#[test]
fn a_scan_in_a_large_leaf_reads_the_next_leaves_ahead() {
    let fs = disk(1);
    let options = TreeOptions {
        page_bytes: 64 << 10,
        block_bytes: 64 << 10,
        ..with_options()
    };
    let tree = opened_with(&fs, &options);
    // In the second half of the keys, leaves have no delta pages.
    let snapshot = tree.snapshot();
    let path = (tree.storage.path(&tree.storage.view(), &key(3000))).unwrap();
    let step = path.steps.last().unwrap();
    let bound = |leaf: usize| {
        let low = step.page.key(leaf);
        (0..KEYS).find(|n| key(*n) >= low).unwrap()
    };
    let (low, high) = (bound(step.child), bound(step.child + 1));
    let entries = (16 << 10) / (VALUE + key(0).len());
    assert!(entries + 10 < high - low);
    for (from, forward) in [(low, true), (high, false)] {
        let read = |count: usize| {
            let mut cursor = tree.cursor(&snapshot, false);
            let before = reads(&tree);
            scan(&mut cursor, from, count, forward);
            reads(&tree) - before
        };
        let (few, many) = (read(entries - 1), read(entries + 2));
        println!("{few} reads for few entries, {many} for many");
        assert!(many > few, "{few} and {many} reads");
    }
    tree.abandon().unwrap();
}

/// A scan reads several blocks at once. Those that it does not come to do not go into the cache,
/// and a scan that comes to them reads nothing again.
#[test]
fn a_scan_caches_the_blocks_that_it_needs() {
    let fs = disk(1);
    // A leaf has 25 blocks or so, and does not come whole with its head.
    let options = TreeOptions {
        block_bytes: 200,
        ..with_options()
    };
    let tree = opened_with(&fs, &options);
    let snapshot = tree.snapshot();
    let begins = || (2100..3900).step_by(45);
    let scans = begins().count() as u64;
    let of_scans = |count: usize| {
        let before = (cached(&tree).inserts, reads(&tree));
        for from in begins() {
            scan(&mut tree.cursor(&snapshot, true), from, count, true);
        }
        (cached(&tree).inserts - before.0, reads(&tree) - before.1)
    };
    let (inserts, read) = of_scans(1);
    println!("{scans} scans of an entry: {inserts} inserts, {read} reads");
    // The head, the block of the entry, and that of the next entry.
    assert!(inserts <= 3 * scans + 5, "{inserts} inserts");
    let (_, read) = of_scans(4);
    println!("{scans} scans of four entries: {read} reads");
    assert!(read <= scans + scans / 4, "{read} reads");
    tree.abandon().unwrap();
}

/// With `fill_cache` off, a scan leaves the cache as it is.
#[test]
fn a_scan_that_fills_no_cache_inserts_nothing() {
    let fs = disk(1);
    let tree = opened(&fs);
    let snapshot = tree.snapshot();
    // Index pages are cached in any case.
    scan(&mut tree.cursor(&snapshot, false), 0, KEYS, true);
    let before = cached(&tree);
    let delta_reads = |tree: &PageTree| tree.storage.paid.reads();
    scan(&mut tree.cursor(&snapshot, false), 0, KEYS, true);
    scan(&mut tree.cursor(&snapshot, false), KEYS, KEYS, false);
    assert_eq!(cached(&tree).inserts, before.inserts);
    assert_eq!(delta_reads(&tree), 0);
    // A scan with it fills the room that the cache has, and pays for merges.
    scan(&mut tree.cursor(&snapshot, true), 0, KEYS, true);
    assert!(cached(&tree).inserts > before.inserts + 100);
    assert!(delta_reads(&tree) > 0);
    // Then the cache has all pages, if it is large enough, and nothing is read.
    let before = reads(&tree);
    scan(&mut tree.cursor(&snapshot, true), 0, KEYS, true);
    assert_eq!(reads(&tree), before);
    tree.abandon().unwrap();
}

/// Regression test: flushes that merge operands counted as readers, who pay for merges of leaves.
#[test]
fn a_write_that_reads_pays_for_no_merge() {
    let fs = disk(1);
    let tree = opened(&fs);
    let snapshot = tree.snapshot();
    // Pages without the entry come first.
    let keys: Vec<Vec<u8>> = (1..KEYS / 2).step_by(7).map(key).collect();
    let before = cached(&tree);
    for key in &keys {
        let found = tree.entry_for_write(&snapshot, key).unwrap();
        assert_eq!(found, tree.entry(&snapshot, key, false).unwrap());
    }
    assert!(cached(&tree).inserts > before.inserts);
    assert_eq!(tree.storage.paid.reads(), 0);
    tree.abandon().unwrap();
    let env = Env::for_tests(fs, 3);
    let tree = PageTree::open(&env, DIR, &with_options()).unwrap();
    let snapshot = tree.snapshot();
    for key in &keys {
        tree.entry(&snapshot, key, true).unwrap();
    }
    assert!(tree.storage.paid.reads() > 0);
    tree.abandon().unwrap();
}

/// A full cache gets few pages of a long scan, and all of them in the end.
#[test]
fn a_long_scan_evicts_little() {
    let fs = disk(1);
    let tree = opened(&fs);
    let (snapshot, cache) = (tree.snapshot(), tree.storage.env.cache());
    cache.set_capacity(100 << 10);
    scan(&mut tree.cursor(&snapshot, true), 0, KEYS, true);
    let before = cached(&tree);
    scan(&mut tree.cursor(&snapshot, true), 0, KEYS, true);
    let leaves = tree.count_leaves(&snapshot).unwrap();
    let inserts = cached(&tree).inserts - before.inserts;
    println!("{inserts} inserts for {leaves} leaves");
    assert!(
        (1..leaves * 5).contains(&inserts),
        "{inserts} inserts for {leaves} leaves of ten blocks"
    );
    tree.abandon().unwrap();
}

/// A scan reads a damaged page ahead and does not come to it: it has no error. One that comes to it
/// has returned everything before.
#[test]
fn damage_is_reported_when_the_scan_comes_to_it() {
    let fs = disk(1);
    let tree = opened(&fs);
    let view = tree.storage.view();
    let path = tree.storage.path(&view, &key(3000)).unwrap();
    let low = path.steps.last().map(|step| step.page.key(step.child));
    let first = (0..KEYS).find(|n| key(*n) >= *low.as_ref().unwrap());
    let first = first.unwrap();
    let id = tree.storage.pages_of(&view, path.leaf).unwrap().base;
    drop(view);
    let file = Path::new(DIR).join(extent_file(StreamKind::Base, id.extent));
    fs.flip_bit(&file, u64::from(id.offset + id.len - 1), 1)
        .unwrap();
    let snapshot = tree.snapshot();
    let from = first - 1000;
    scan(&mut tree.cursor(&snapshot, false), from, 980, true);
    let mut cursor = tree.cursor(&snapshot, false);
    scan(&mut cursor, from, 1000, true);
    let mut moved = Ok(true);
    while let Ok(true) = moved {
        moved = cursor.next_entry();
    }
    let e = moved.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(e.path(), Some(&*file), "{e}");
    // The cursor goes on elsewhere.
    scan(&mut cursor, 100, 1000, true);
    tree.abandon().unwrap();
}
