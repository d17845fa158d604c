//! Delta pages of index pages: a user checkpoint with few changes for each leaf (decision 0048).

use super::{Content, PUT, disk, options};
use crate::cursor::TreeCursor;
use crate::{PageTree, PageVerdict, TreeOptions};
use basalt_env::{Env, Random};
use std::sync::Arc;

const DIR: &str = "tree";

fn key(n: usize) -> Vec<u8> {
    format!("k{n:05}").into_bytes()
}

/// Returns a tree of many leaves without delta pages, and what it has. Changes of fewer bytes for a
/// leaf than `least` go to index pages.
fn filled(keys: usize, least: usize) -> (PageTree, Content) {
    filled_with(keys, least, 16)
}

fn filled_with(keys: usize, least: usize, block_bytes: usize) -> (PageTree, Content) {
    let options = TreeOptions {
        block_bytes,
        ..options()
    };
    filled_as(options, keys, least)
}

fn filled_as(options: TreeOptions, keys: usize, least: usize) -> (PageTree, Content) {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        max_deltas: 3,
        overwrite_ratio: 0.5,
        ..options
    };
    let tree = PageTree::open(&env, DIR, &options.leaf_delta_bytes(Some(least))).unwrap();
    let content: Content = (0..keys).map(|n| (key(n), vec![b'a'; 20])).collect();
    let changes = content
        .iter()
        .map(|(key, value)| (&key[..], Some(&value[..])));
    tree.write(changes).unwrap();
    assert_eq!(tree.stats().delta_pages, 0);
    (tree, content)
}

/// Gives every `step`th key a new value, and deletes the key behind it.
fn change(tree: &PageTree, content: &mut Content, from: usize, step: usize, value: u8) {
    let mut changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    for n in (from..content.len()).step_by(step) {
        changes.push((key(n), Some(vec![value; 20])));
        changes.push((key(n + 1), None));
    }
    let borrowed = changes
        .iter()
        .map(|(key, value)| (&key[..], value.as_deref()));
    tree.write(borrowed).unwrap();
    for (key, value) in changes {
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
    }
}

fn check(tree: &PageTree, content: &Content, keys: usize) {
    let snapshot = tree.snapshot();
    for n in 0..keys {
        let found = tree.get(&snapshot, &key(n)).unwrap();
        assert_eq!(
            found.as_deref(),
            content.get(&key(n)).map(|v| &v[..]),
            "{n}"
        );
        let explained = tree.explain(&snapshot, &key(n));
        let explained = explained
            .found()
            .filter(|entry| entry.kind == Some(basalt_kv::key::Kind::Put));
        assert_eq!(explained.map(|e| &e.value[..]), found.as_deref(), "{n}");
    }
    let all: Vec<Vec<u8>> = (0..keys).map(key).collect();
    let all: Vec<&[u8]> = all.iter().map(|key| &key[..]).collect();
    for (n, found) in tree
        .entries(&snapshot, &all, true, &mut |_| true)
        .into_iter()
        .enumerate()
    {
        let found = found.unwrap().unwrap();
        let value = found
            .filter(|(kind, _)| *kind == basalt_kv::key::Kind::Put)
            .map(|(_, v)| v);
        assert_eq!(
            value.as_deref(),
            content.get(&key(n)).map(|v| &v[..]),
            "{n}"
        );
    }
    tree.verify().unwrap();
}

/// Scans turn round anywhere: at the borders of leaves, too, where a delta page of the index page
/// has keys of both.
fn check_scans(tree: &PageTree, content: &Content, keys: usize) {
    let random = Random::from_seed(content.len() as u64);
    let storage = &*tree.storage;
    let sorted: Vec<(&Vec<u8>, &Vec<u8>)> = content.iter().collect();
    let mut cursor = TreeCursor::at(storage, storage.view(), b"", true).unwrap();
    let mut last = 0;
    for _ in 0..600 {
        last = match random.one_in(2) {
            true => random.below(keys as u64),
            false => (last + 10).saturating_sub(random.below(20)),
        };
        let from = key(last as usize);
        // Between this entry and the one before.
        let mut at = sorted.partition_point(|(key, _)| **key < from);
        cursor.seek(&from).unwrap();
        let mut forward = random.one_in(2);
        for _ in 0..random.below(60) {
            forward ^= random.one_in(12);
            let expected = match forward {
                true => sorted.get(at),
                false => at.checked_sub(1).map(|before| &sorted[before]),
            };
            let mut found = None;
            while found.is_none()
                && if forward {
                    cursor.next()
                } else {
                    cursor.prev()
                }
                .unwrap()
            {
                let (kind, value) = cursor.entry();
                found = (kind == PUT).then(|| (cursor.key(), value.to_vec()));
            }
            let found = found.as_ref().map(|(key, value)| (key, value));
            assert_eq!(found, expected.copied());
            at = if forward {
                at + usize::from(found.is_some())
            } else {
                at.saturating_sub(1)
            };
        }
    }
}

#[test]
fn few_changes_for_each_leaf_become_one_delta_page_of_the_index_page() {
    for block_bytes in [16, 64, 100, 200] {
        few_changes(block_bytes);
    }
}

fn few_changes(block_bytes: usize) {
    const KEYS: usize = 2000;
    let (tree, mut content) = filled_with(KEYS, 150, block_bytes);
    let leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    // The first small user checkpoint goes to the leaves, and allows delta pages of index pages.
    change(&tree, &mut content, 0, 9, b'b');
    assert!(tree.stats().leaves_with_deltas > leaves / 2);
    tree.maintain().unwrap();
    let old = (tree.snapshot(), content.clone());
    let mut log_bytes = Vec::new();
    for round in 0..3 {
        let before = tree.stats();
        change(&tree, &mut content, 3 + round, 11, b'c' + round as u8);
        let stats = tree.stats();
        log_bytes.push(stats.system_log_bytes_written - before.system_log_bytes_written);
        assert_eq!(stats.leaves_with_deltas, before.leaves_with_deltas);
        assert!(stats.index_pages_with_deltas > 0);
        assert!(stats.index_delta_bytes > before.index_delta_bytes);
        check(&tree, &content, KEYS);
        check_scans(&tree, &content, KEYS);
    }
    assert!(
        log_bytes.iter().all(|bytes| *bytes < 40 * leaves / 4),
        "{log_bytes:?}"
    );
    let explained = tree.explain(&tree.snapshot(), &key(5));
    let pages = &explained.leaf.as_ref().unwrap().pages;
    assert!(pages[0].is_of_index && matches!(pages[0].verdict, PageVerdict::Found(_)));
    // They are consolidated, and then the leaves take them.
    let longest = tree.stats().longest_chain;
    tree.maintain().unwrap();
    assert!(tree.stats().longest_chain < longest);
    check(&tree, &content, KEYS);
    check_scans(&tree, &content, KEYS);
    let before = tree.stats().base_bytes_written;
    let mut round = 0;
    while tree.stats().base_bytes_written == before {
        round += 1;
        assert!(round < 100, "the leaves take no changes");
        change(&tree, &mut content, round, 5, b'f');
        tree.maintain().unwrap();
    }
    check(&tree, &content, KEYS);
    change(&tree, &mut content, 0, 50, b'g');
    tree.storage.rewrite_range(b"", None, &|| true).unwrap();
    assert_eq!(tree.stats().delta_pages, 0);
    check(&tree, &content, KEYS);
    check_scans(&tree, &content, KEYS);
    let (snapshot, content) = old;
    for n in 0..KEYS {
        let found = tree.get(&snapshot, &key(n)).unwrap();
        assert_eq!(
            found.as_deref(),
            content.get(&key(n)).map(|v| &v[..]),
            "{n}"
        );
    }
    tree.close().unwrap();
}

/// Scans are right where a compaction has split leaves while their delta pages were written, and
/// where leaves became empty since. The borders of parts alone are tested in `page_source`.
#[test]
fn scans_are_right_where_leaves_were_split_and_emptied() {
    for block_bytes in [16, 128, 1000] {
        let random = Random::from_seed(5);
        let (tree, mut content) = filled_with(600, 0, block_bytes);
        let storage = &*tree.storage;
        for round in 0..40 {
            let from = random.below(500) as usize;
            let put = |content: &mut Content, n: usize, value: Option<Vec<u8>>| match value {
                Some(value) => drop(content.insert(key(n), value)),
                None => drop(content.remove(&key(n))),
            };
            // The leaves grow. A compaction splits them while their next delta pages are written.
            let grown: Vec<Vec<u8>> = (from..from + 100).map(key).collect();
            let value = [b'w'; 60];
            tree.write(grown.iter().map(|key| (&key[..], Some(&value[..]))))
                .unwrap();
            (from..from + 100).for_each(|n| put(&mut content, n, Some(value.to_vec())));
            let value = [round as u8; 30];
            let changed: Vec<usize> = (from..from + 100).step_by(2).collect();
            let keys: Vec<Vec<u8>> = changed.iter().map(|n| key(*n)).collect();
            let borrowed = keys.iter().map(|key| (&key[..], Some(&value[..])));
            let mut checked = crate::entries::CheckedChanges::new(borrowed);
            let prepared = storage.prepare_user_checkpoint(&mut checked, None).unwrap();
            storage.rewrite_range(b"", None, &|| true).unwrap();
            storage.commit_prepared(&prepared).unwrap();
            drop(prepared);
            (changed.iter()).for_each(|n| put(&mut content, *n, Some(value.to_vec())));
            // Some of them become empty, and their neighbours take their keys.
            for first in 0..3 {
                let gone: Vec<usize> = (from + 30 + first..from + 70).step_by(3).collect();
                let keys: Vec<Vec<u8>> = gone.iter().map(|n| key(*n)).collect();
                tree.write(keys.iter().map(|key| (&key[..], None))).unwrap();
                gone.iter().for_each(|n| put(&mut content, *n, None));
            }
            storage.compact(&|| true).unwrap();
            check_scans(&tree, &content, 600 + round);
        }
        tree.close().unwrap();
    }
}

/// User checkpoints with small changes run one at a time, even if several threads write: a delta
/// page of an index page hides what the leaves get.
#[test]
fn threads_with_few_changes_write_one_after_the_other() {
    const KEYS: usize = 600;
    let (tree, content) = filled(KEYS, 150);
    let content = Arc::new(content);
    basalt_env::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (tree, content) = (&tree, content.clone());
            scope.spawn(move || {
                for round in 0..200 {
                    // All keys get the same value. The large ones of one thread go to the leaves
                    // of index pages without delta pages.
                    let len = if thread == 0 { 200 } else { 2 };
                    let value = [&[thread, round][..], &vec![0; len - 2]].concat();
                    let changes = content
                        .keys()
                        .step_by(7)
                        .map(|key| (&key[..], Some(&value[..])));
                    tree.write(changes).unwrap();
                    let snapshot = tree.snapshot();
                    let mut values = content
                        .keys()
                        .step_by(7)
                        .map(|key| tree.get(&snapshot, key).unwrap());
                    let first = values.next().unwrap();
                    assert!(values.all(|value| value == first));
                    if round % 2 == 0 {
                        tree.maintain().unwrap();
                    }
                }
            });
        }
    });
    tree.verify().unwrap();
    tree.close().unwrap();
}

/// Leaves that take the changes of their index page are read together. The delta pages of the index
/// page counted as bytes of each leaf, so that the device read one leaf at a time.
#[test]
fn leaves_that_take_changes_of_their_index_page_are_read_together() {
    const KEYS: usize = 9000;
    let options = TreeOptions {
        page_bytes: 1000,
        extent_bytes: 64 << 10,
        ..options()
    };
    let (tree, mut content) = filled_as(options, KEYS, 1 << 20);
    for round in 0..5 {
        change(&tree, &mut content, round, 3, b'b' + round as u8);
    }
    let leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    assert!(tree.stats().index_pages_with_deltas > 0 && leaves > 100);
    let reads = || tree.storage.env.fs().stats().reads;
    let before = reads();
    tree.compact_range(b"", None, &|| true).unwrap();
    let reads = reads() - before;
    assert!(reads < leaves, "{reads} reads for {leaves} leaves");
    check(&tree, &content, KEYS);
}
