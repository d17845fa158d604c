//! The bound of the space of pages.

use super::{Content, disk, options, write_some};
use crate::{PageTree, TreeOptions};
use basalt_env::{Env, Random};

const DIR: &str = "tree";
const KEYS: u64 = 3000;

/// Overwrites keys at random, and returns the largest bytes of extents for each byte of pages in
/// use that were left by maintenance, beyond two extents.
fn largest_amp(bound: f64) -> f64 {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        // No extent is collected for its own garbage.
        base_garbage: 1.0,
        delta_garbage: 1.0,
        max_space_amp: bound,
        ..options()
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let random = Random::from_seed(1);
    let mut content = Content::new();
    let mut largest: f64 = 0.0;
    for round in 0..60 {
        let count = if round == 0 { KEYS } else { 700 };
        let key = |n: u64| match round {
            0 => n,
            _ => random.below(KEYS),
        };
        let keys = (0..count).map(|n| format!("k{:05}", key(n)).into_bytes());
        let changes: Content = keys.map(|key| (key, vec![round; 30])).collect();
        let borrowed = changes
            .iter()
            .map(|(key, value)| (&key[..], Some(&value[..])));
        tree.write(borrowed).unwrap();
        content.extend(changes);
        tree.maintain().unwrap();
        let stats = tree.stats();
        let used = stats.base_bytes + stats.delta_bytes;
        let beyond = stats
            .extent_bytes()
            .saturating_sub(2 * options.extent_bytes);
        largest = largest.max(beyond as f64 / used as f64);
    }
    let found = tree.iter(&tree.snapshot(), b"").unwrap();
    let found = found.map(|entry| entry.unwrap());
    let found: Content = found.map(|(key, value)| (key, value.to_vec())).collect();
    assert!(found == content);
    tree.verify().unwrap();
    tree.close().unwrap();
    largest
}

#[test]
fn the_space_of_pages_stays_within_its_bound() {
    let loose = largest_amp(100.0);
    assert!(loose > 2.4, "{loose}");
    for bound in [1.2, 1.5, 2.0] {
        let amp = largest_amp(bound);
        // A collection writes pages to the extents that are being written.
        assert!(amp <= bound * 1.1, "{amp} with a bound of {bound}");
    }
}

/// A compaction of all pages leaves no garbage in the extent that is written to.
#[test]
fn a_compaction_of_all_keys_leaves_no_garbage() {
    let fs = disk(1);
    let options = TreeOptions {
        extent_bytes: 1 << 20,
        ..options()
    };
    let tree = PageTree::open(&Env::for_tests(fs, 1), DIR, &options).unwrap();
    for round in 0..10 {
        write_some(&tree, &Random::from_seed(round), 200, round as u8);
        tree.maintain().unwrap();
    }
    tree.compact_range(b"", None, &|| true).unwrap();
    tree.maintain().unwrap();
    let stats = tree.stats();
    assert!(
        stats.base_garbage_bytes * 8 < stats.base_extent_bytes,
        "{stats:?}"
    );
    tree.close().unwrap();
}
