//! Tests of the module `inspect`, and of statistics beside it.

use super::*;
use crate::tests::write_some;
use crate::{PageTree, TreeOptions};
use basalt_env::{Env, Random};
use basalt_fs::{ErrorKind, FileSystem};
use basalt_kv::codec::Compression;
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "tree";

type Content = BTreeMap<Vec<u8>, Bytes>;

fn options() -> TreeOptions {
    TreeOptions::default()
        .page_bytes(400)
        .block_bytes(16)
        .extent_bytes(8 << 10)
        .max_deltas(3)
        .overwrite_ratio(2.5)
        .compression(Compression::None)
}

fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

fn open(fs: &Arc<SimFs>) -> PageTree {
    PageTree::open(&Env::for_tests(fs.clone(), 1), DIR, &options()).unwrap()
}

/// Returns all nodes of a tree.
fn nodes(tree: &PageTree, with_entries: bool) -> Vec<InspectedNode> {
    let mut nodes = Vec::new();
    tree.inspect(&tree.snapshot(), with_entries, &mut |node| {
        nodes.push(node);
        true
    });
    nodes
}

/// Returns the content of a tree by what its leaves have.
fn content(nodes: &[InspectedNode]) -> Content {
    let mut all = Content::new();
    for leaf in nodes.iter().filter(|node| node.level == 0) {
        // The newest entry of a key is put in last.
        for page in std::iter::once(&leaf.base).chain(&leaf.deltas) {
            for entry in &page.content.as_ref().unwrap().entries {
                assert!(leaf.keys.has(&entry.key), "a key outside of its leaf");
                match entry.kind {
                    Some(Kind::Delete) => all.remove(&entry.key),
                    _ => all.insert(entry.key.clone(), entry.value.clone()),
                };
            }
        }
    }
    all
}

/// Checks the statistics of a tree against a walk over its pages.
fn compare(tree: &PageTree, nodes: &[InspectedNode]) {
    let stats = tree.stats();
    let leaves: Vec<_> = nodes.iter().filter(|node| node.level == 0).collect();
    let sum = |pages: &mut dyn Iterator<Item = &InspectedPage>| -> u64 {
        pages.map(|page| page.position.bytes).sum()
    };
    let of_leaves = tree.count_leaves(&tree.snapshot()).unwrap();
    assert_eq!(of_leaves, leaves.len() as u64);
    let with_deltas: Vec<_> = leaves.iter().filter(|l| !l.deltas.is_empty()).collect();
    assert_eq!(stats.leaves_with_deltas, with_deltas.len() as u64);
    let chains = with_deltas.iter().map(|leaf| leaf.deltas.len() as u64);
    assert_eq!(stats.delta_pages, chains.clone().sum::<u64>());
    assert_eq!(stats.longest_chain, chains.clone().max().unwrap_or(0));
    assert_eq!(
        stats.due_leaves,
        chains.filter(|n| *n >= 3).count() as u64,
        "leaves that are due"
    );
    let base_bytes = sum(&mut nodes.iter().map(|node| &node.base));
    assert_eq!(stats.base_bytes, base_bytes);
    let deltas = &mut nodes.iter().flat_map(|node| &node.deltas);
    assert_eq!(stats.delta_bytes, sum(deltas));
    let largest = nodes.iter().map(|node| {
        let pages = std::iter::once(&node.base).chain(&node.deltas);
        pages.map(|page| page.position.bytes).max().unwrap()
    });
    assert_eq!(stats.least_bytes, largest.sum::<u64>());
    let mapped = nodes.iter().filter(|node| node.is_mapped).count() as u64;
    assert!(mapped <= stats.mapped_pages, "{mapped} {stats:?}");
    assert_eq!(
        stats.base_bytes_written + stats.delta_bytes_written,
        stats.flush_bytes_written + stats.compaction_bytes_written + stats.collection_bytes_written
    );
    let extents = tree.inspect_extents();
    let of_stream = |name: &str| {
        let extents = extents.iter().filter(|e| e.file.starts_with(name));
        let garbage = extents.clone().map(|e| e.bytes - e.valid_bytes).sum();
        (extents.count() as u64, garbage)
    };
    assert_eq!(
        of_stream("base/"),
        (stats.base_extents, stats.base_garbage_bytes)
    );
    let bytes: u64 = extents.iter().map(|e| e.bytes).sum();
    assert_eq!(bytes, stats.extent_bytes());
}

#[test]
fn a_walk_finds_the_content_and_agrees_with_the_statistics() {
    let mut most = crate::PageTreeStats::default();
    for seed in 0..4 {
        let (fs, random) = (disk(seed), Random::from_seed(seed));
        let tree = open(&fs);
        let mut old = None;
        for round in 0..60 {
            write_some(&tree, &random, 40, round);
            match random.below(6) {
                0 => tree.maintain().unwrap(),
                1 => tree.compact_range(b"k1", Some(b"k2"), &|| true).unwrap(),
                // A view that is held keeps versions of chains.
                2 => old = Some((tree.snapshot(), content(&nodes(&tree, true)))),
                _ => {}
            }
            let nodes = nodes(&tree, true);
            let by_cursor = tree.iter(&tree.snapshot(), b"").unwrap();
            let by_cursor: Content = by_cursor.map(Result::unwrap).collect();
            assert_eq!(content(&nodes), by_cursor, "seed {seed}, round {round}");
            if let Some((snapshot, before)) = &old {
                let seen = tree.iter(snapshot, b"").unwrap().map(Result::unwrap);
                assert_eq!(&seen.collect::<Content>(), before);
            }
            compare(&tree, &nodes);
        }
        let stats = tree.stats();
        most.collection_bytes_written += stats.collection_bytes_written;
        most.compaction_bytes_written += stats.compaction_bytes_written;
        most.levels = most.levels.max(stats.levels);
        most.mapping_bytes = most.mapping_bytes.max(stats.mapping_bytes);
        assert!(stats.flush_bytes_written > 0 && stats.system_log_bytes_written > 0);
        tree.close().unwrap();
    }
    // Each kind of work was done.
    assert!(most.collection_bytes_written > 0, "{most:?}");
    assert!(most.compaction_bytes_written > 0, "{most:?}");
    assert!(most.levels > 1 && most.mapping_bytes > 0, "{most:?}");
}

#[test]
fn a_limited_walk_ends_early() {
    let fs = disk(1);
    let tree = open(&fs);
    for round in 0..10 {
        write_some(&tree, &Random::from_seed(round), 40, round as u8);
    }
    let all = nodes(&tree, false);
    let mut seen = 0;
    tree.inspect(&tree.snapshot(), false, &mut |node| {
        assert_eq!(node.keys, all[seen].keys);
        seen += 1;
        seen < 3
    });
    assert_eq!(seen, 3);
    assert!(all.len() > 3);
}

#[test]
fn a_check_goes_on_behind_damage_and_counts_the_rest() {
    let fs = disk(2);
    let tree = open(&fs);
    for round in 0..30 {
        write_some(&tree, &Random::from_seed(round), 40, round as u8);
        tree.maintain().unwrap();
    }
    for round in 30..32 {
        write_some(&tree, &Random::from_seed(round), 40, round as u8);
    }
    let nodes = nodes(&tree, false);
    tree.close().unwrap();
    drop(tree);
    let check = |fs: &Arc<SimFs>| {
        let env = Env::for_tests(fs.clone(), 1);
        PageTree::check(&env, DIR, &options(), &|_| true).unwrap()
    };
    let sound = check(&fs);
    assert!(sound.damage.is_empty(), "{:?}", sound.damage);
    let leaves = nodes.iter().filter(|node| node.level == 0).count() as u64;
    let counts = sound.counts.clone();
    assert_eq!(counts.leaves, leaves);
    assert_eq!(counts.index_pages, nodes.len() as u64 - leaves);
    assert!(counts.delta_pages > 0 && counts.entries > 200, "{counts:?}");
    let snapshot = fs.snapshot();
    let (mut of_leaves, mut of_index) = (0, 0);
    for node in &nodes {
        for page in std::iter::once(&node.base).chain(&node.deltas) {
            let damaged = snapshot.kill();
            let path = Path::new(DIR).join(&page.position.file);
            let at = page.position.offset + page.position.bytes - 1;
            damaged.flip_bit(&path, at, 3).unwrap();
            let found = check(&damaged);
            let first = &found.damage[0];
            assert_eq!(first.kind(), ErrorKind::Corruption);
            assert_eq!(first.path(), Some(&*path), "{first}");
            assert_eq!(first.offset(), Some(page.position.offset), "{first}");
            if node.level == 0 && page.part.is_none() {
                // All other pages were read.
                assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
                assert_eq!(found.counts.leaves, leaves);
                let lost = page.content.as_ref().unwrap().count;
                assert_eq!(found.counts.entries, counts.entries - lost);
                of_leaves += 1;
            } else if node.level > 0 {
                assert!(found.counts.leaves < leaves);
                of_index += 1;
            }
        }
    }
    assert!(of_leaves > 20 && of_index > 1, "{of_leaves} {of_index}");
    assert!(fs.exists(Path::new(DIR)).unwrap());
}
