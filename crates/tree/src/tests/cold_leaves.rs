//! Merges of leaves that do not change any more.

use super::{Content, disk, options};
use crate::{PageTree, TreeOptions};
use basalt_env::Env;

const DIR: &str = "tree";
const KEYS: usize = 3000;

fn key(n: usize) -> Vec<u8> {
    format!("k{n:05}").into_bytes()
}

/// Writes a value to every `step`th key from `from` to `to`.
fn write(tree: &PageTree, content: &mut Content, from: usize, to: usize, step: usize, value: u8) {
    let changes: Content = (from..to)
        .step_by(step)
        .map(|n| (key(n), vec![value; 20]))
        .collect();
    let borrowed = changes
        .iter()
        .map(|(key, value)| (&key[..], Some(&value[..])));
    tree.write(borrowed).unwrap();
    content.extend(changes);
}

/// Fragments the lower half of the keys, and then writes to the upper half. Returns the tree and
/// what it has.
fn with_cold_half(ratio: f64) -> (PageTree, Content) {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        max_deltas: 8,
        cold_merge_ratio: ratio,
        ..options()
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let mut content = Content::new();
    write(&tree, &mut content, 0, KEYS, 1, b'a');
    for value in 0..3 {
        write(&tree, &mut content, 0, KEYS / 2, 7, value);
    }
    for value in 0..30 {
        write(&tree, &mut content, KEYS / 2, KEYS, 5, value);
        tree.maintain().unwrap();
    }
    (tree, content)
}

fn fragmented_below(tree: &PageTree, end: usize) -> usize {
    let mut fragmented = 0;
    tree.inspect(&tree.snapshot(), false, &mut |node| {
        let is_below = node
            .keys
            .high
            .as_deref()
            .is_some_and(|high| high < &key(end)[..]);
        fragmented += usize::from(node.level == 0 && is_below && !node.deltas.is_empty());
        true
    });
    fragmented
}

#[test]
fn leaves_without_recent_changes_are_merged_within_a_budget() {
    let (never, _) = with_cold_half(0.0);
    assert_eq!(never.stats().cold_leaves_merged, 0);
    let all = fragmented_below(&never, KEYS / 2);
    assert!(all > 100, "{all}");
    never.close().unwrap();

    let (some, content) = with_cold_half(0.25);
    let left = fragmented_below(&some, KEYS / 2);
    let merged = some.stats().cold_leaves_merged;
    assert!(
        left < all && merged > 0,
        "{merged} merged, {left} of {all} left"
    );
    // The leaves in use are not among them, and what they cost is within the budget.
    assert!(merged as usize <= all);
    let stats = some.stats();
    assert!(
        merged * 300 <= stats.flush_bytes_written / 4,
        "{merged} leaves, {stats:?}"
    );
    let found = some.iter(&some.snapshot(), b"").unwrap();
    let found: Content = found
        .map(|e| e.unwrap())
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    assert!(found == content);
    some.verify().unwrap();
    some.close().unwrap();

    let (much, _) = with_cold_half(100.0);
    assert_eq!(fragmented_below(&much, KEYS / 2), 0);
    much.close().unwrap();
}
