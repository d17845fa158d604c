//! Compactions of leaves that the same flushes change.

use super::{Content, disk, options};
use crate::{PageTree, TreeOptions};
use basalt_env::Env;

const DIR: &str = "tree";
const MAX_DELTAS: usize = 8;

#[test]
fn leaves_that_change_together_are_compacted_at_different_times() {
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        max_deltas: MAX_DELTAS,
        // A compaction writes the leaf again, which then has no delta page.
        overwrite_ratio: 0.0,
        // Collections merge leaves, too.
        base_garbage: 1.0,
        max_space_amp: 100.0,
        ..options()
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let mut leaves = 0;
    let mut rounds_with_compactions = 0;
    let mut most_at_once = 0;
    for round in 0..60 {
        let step = if round == 0 { 1 } else { 4 };
        let keys = (0..4000).step_by(step);
        let keys = keys.map(|n| format!("k{n:05}").into_bytes());
        let changes: Content = keys.map(|key| (key, vec![round; 12])).collect();
        let borrowed = changes
            .iter()
            .map(|(key, value)| (&key[..], Some(&value[..])));
        tree.write(borrowed).unwrap();
        let before = tree.stats();
        tree.maintain().unwrap();
        let after = tree.stats();
        leaves = tree.count_leaves(&tree.snapshot()).unwrap();
        assert!(after.longest_chain < (MAX_DELTAS + MAX_DELTAS / 4) as u64);
        assert_eq!(after.due_leaves, 0);
        let compacted = before.leaves_with_deltas - after.leaves_with_deltas;
        rounds_with_compactions += u32::from(compacted > 0);
        // The first leaves are all written by one flush.
        if round > 12 {
            most_at_once = most_at_once.max(compacted);
        }
    }
    assert!(leaves > 200, "{leaves} leaves");
    assert!(
        most_at_once > 0 && most_at_once < leaves * 2 / 5,
        "{most_at_once} of {leaves}"
    );
    assert!(
        rounds_with_compactions > 40,
        "{rounds_with_compactions} rounds"
    );
    tree.close().unwrap();
}
