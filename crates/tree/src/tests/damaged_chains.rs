//! Leaves and index pages with a damaged page get changes, and their chains stay short.

use super::{DIR, disk, options};
use crate::mapping::Pages;
use crate::storage::extent_file;
use crate::usage::StreamKind;
use crate::{PageTree, TreeOptions};
use basalt_env::Env;
use basalt_fs::ErrorKind;
use std::path::Path;

const ROUNDS: u8 = 40;

/// Writes to a tree again and again after a page is damaged: the base page of the leaf or index
/// page that has delta pages, or the delta page with a number. Changes of fewer bytes for a leaf
/// than `least` go to index pages. Returns the longest chain.
fn longest_chain(least: usize, damaged: Option<usize>) -> u64 {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let options = TreeOptions {
        max_deltas: 4,
        ..options().leaf_delta_bytes(Some(least))
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let key = |n: usize| format!("k{n:05}").into_bytes();
    let write = |round: u8, keys: &mut dyn Iterator<Item = usize>| {
        let keys: Vec<Vec<u8>> = keys.map(key).collect();
        let value = [round; 20];
        tree.write(keys.iter().map(|key| (&key[..], Some(&value[..]))))
            .unwrap();
    };
    write(0, &mut (0..100));
    // The first small changes go to the leaves in any case.
    let first = 4 + u8::from(least > 0);
    for round in 1..first {
        write(round, &mut (0..100).step_by(10));
    }
    let storage = &*tree.storage;
    let mut chains = Vec::new();
    storage.mapping.for_each(|key, _| chains.push(key));
    let view = storage.view();
    chains.sort_unstable();
    let mut pages = (chains.iter()).map(|key| storage.pages_of(&view, *key).unwrap());
    let is_wanted = |of: &Pages| of.deltas.len() == 3 && of.has_index_deltas == (least > 0);
    let pages = pages.find(is_wanted).expect("there are three delta pages");
    drop(view);
    let (kind, id) = match damaged {
        Some(i) => (StreamKind::Delta, pages.deltas[i].id),
        None => (StreamKind::Base, pages.base),
    };
    let path = Path::new(DIR).join(extent_file(kind, id.extent));
    fs.flip_bit(&path, u64::from(id.offset + id.len - 1), 1)
        .unwrap();
    let mut longest = 0;
    for round in first..ROUNDS {
        write(round, &mut (0..100).step_by(10));
        if let Err(e) = tree.maintain() {
            assert_eq!(e.kind(), ErrorKind::Corruption);
            assert_eq!(e.path(), Some(&*path), "{e}");
        }
        longest = longest.max(tree.stats().longest_chain);
    }
    // The damage is found by each maintenance that meets it, and newer changes can be read.
    assert!(tree.verify().is_err());
    if damaged.is_some() {
        let found = tree.get(&tree.snapshot(), &key(50)).unwrap();
        assert_eq!(found.as_deref(), Some(&[ROUNDS - 1; 20][..]));
    }
    tree.abandon().unwrap();
    longest
}

/// Regression test: an index page with a damaged delta page was not compacted any more, and each
/// flush added a delta page to it.
#[test]
fn chains_with_a_damaged_page_stay_short() {
    for damaged in [Some(0), Some(1), Some(2), None] {
        for least in [1 << 20, 0] {
            let longest = longest_chain(least, damaged);
            println!("least {least}, damaged {damaged:?}: {longest}");
            assert!(longest <= 12, "least {least}, {damaged:?}: {longest}");
        }
    }
}

/// Returns settings with which only compactions merge leaves.
fn without_collections(max_deltas: usize) -> TreeOptions {
    TreeOptions {
        max_deltas,
        overwrite_ratio: 0.0,
        base_garbage: 1.0,
        delta_garbage: 1.0,
        max_space_amp: 100.0,
        cold_merge_ratio: 0.0,
        ..options()
    }
}

/// Writes to all leaves of a tree.
fn write_all(tree: &PageTree, round: u8) {
    let keys: Vec<Vec<u8>> = (0..300).map(|n| format!("k{n:05}").into_bytes()).collect();
    let value = [round; 20];
    tree.write(keys.iter().map(|key| (&key[..], Some(&value[..]))))
        .unwrap();
}

/// Regression test: a damaged leaf kept all leaves below its index page from being written again.
#[test]
fn neighbours_of_a_damaged_leaf_are_compacted() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let tree = PageTree::open(&env, DIR, &without_collections(3)).unwrap();
    write_all(&tree, 0);
    let leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    assert!(leaves > 10, "{leaves} leaves");
    let path = (tree.storage.path(&tree.storage.view(), b"k00150")).unwrap();
    let file = Path::new(DIR).join(extent_file(StreamKind::Base, path.leaf.extent));
    fs.flip_bit(&file, u64::from(path.leaf.offset + path.leaf.len - 1), 1)
        .unwrap();
    for round in 1..20 {
        write_all(&tree, round);
        let maintained = tree.maintain();
        // Until its chain is long again, nothing reads the damaged leaf.
        assert!(round != 3 || maintained.is_err());
        if let Err(e) = maintained {
            assert_eq!(
                (e.kind(), e.path()),
                (ErrorKind::Corruption, Some(&*file)),
                "{e}"
            );
        }
        let stats = tree.stats();
        match round % 3 {
            0 => assert_eq!(stats.leaves_with_deltas, 1, "round {round}"),
            _ => assert!(stats.leaves_with_deltas > 10, "round {round}"),
        }
        assert!(stats.longest_chain <= 6, "{}", stats.longest_chain);
    }
    tree.abandon().unwrap();
}

/// Regression test: a damaged delta page kept all leaves of an extent, or all chains of delta
/// pages, from being moved, and each try wrote them again.
#[test]
fn collections_move_all_but_the_damaged_leaf() {
    for kind in [StreamKind::Base, StreamKind::Delta] {
        let fs = disk(1);
        let env = Env::for_tests(fs.clone(), 1);
        let tree = PageTree::open(&env, DIR, &without_collections(64)).unwrap();
        write_all(&tree, 0);
        let storage = &*tree.storage;
        for round in 1..4 {
            write_all(&tree, round);
            storage.delta.seal().unwrap();
        }
        storage.base.seal().unwrap();
        let leaf = storage.path(&storage.view(), b"k00150").unwrap().leaf;
        let pages = storage.pages_of(&storage.view(), leaf).unwrap();
        let damaged = pages.deltas[0].id;
        let file = Path::new(DIR).join(extent_file(StreamKind::Delta, damaged.extent));
        fs.flip_bit(&file, u64::from(damaged.offset + damaged.len - 1), 1)
            .unwrap();
        let before = tree.stats();
        assert!(before.leaves_with_deltas > 10, "{before:?}");
        let victims = storage
            .stream(kind)
            .extents()
            .iter()
            .map(|e| e.id)
            .collect();
        let relocate = || match kind {
            StreamKind::Base => storage.relocate_bases(&victims, &|| true),
            StreamKind::Delta => storage.relocate_deltas(&victims, &|| true),
        };
        let e = relocate().unwrap_err();
        assert_eq!(
            (e.kind(), e.path()),
            (ErrorKind::Corruption, Some(&*file)),
            "{e}"
        );
        let after = tree.stats();
        assert_eq!(after.leaves_with_deltas, 1, "{kind:?}");
        assert!(after.base_bytes_written > before.base_bytes_written);
        // The next try finds nothing but the damaged leaf.
        relocate().unwrap_err();
        let again = tree.stats();
        assert_eq!(again.base_bytes_written, after.base_bytes_written);
        let found = tree.get(&tree.snapshot(), b"k00299").unwrap();
        assert_eq!(found.as_deref(), Some(&[3; 20][..]));
        // No transaction begins once maintenance is to end.
        storage.relocate_deltas(&victims, &|| false).unwrap();
        tree.abandon().unwrap();
    }
}
