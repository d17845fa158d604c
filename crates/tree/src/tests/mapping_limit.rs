//! The limit of the page mapping table's memory.

use super::{Content, disk, options};
use crate::{PageTree, TreeOptions};
use basalt_env::{Env, Random};

const DIR: &str = "tree";
const KEYS: u64 = 3000;

fn key(n: u64) -> Vec<u8> {
    format!("k{n:05}").into_bytes()
}

fn write(tree: &PageTree, content: &mut Content, changes: &Content) {
    let borrowed = changes
        .iter()
        .map(|(key, value)| (&key[..], Some(&value[..])));
    tree.write(borrowed).unwrap();
    content.extend(changes.clone());
}

fn check(tree: &PageTree, content: &Content) {
    let found = tree.iter(&tree.snapshot(), b"").unwrap();
    let found: Content = found
        .map(|entry| entry.unwrap())
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    assert!(found == *content);
    tree.verify().unwrap();
}

/// Every leaf gets delta pages, again and again. Maintenance keeps the table within its limit, and
/// the ledger knows its memory. Only what an old snapshot needs exceeds it, until the snapshot
/// ends.
#[test]
fn the_page_mapping_table_stays_within_its_limit() {
    const MOST: u64 = 30_000;
    let env = Env::for_tests(disk(1), 1);
    let options = TreeOptions {
        mapping_bytes: MOST,
        max_deltas: 8,
        ..options()
    };
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    let random = Random::from_seed(1);
    let mut content = Content::new();
    let all: Content = (0..KEYS).map(|n| (key(n), vec![b'a'; 20])).collect();
    write(&tree, &mut content, &all);
    let (mut above, mut old) = (0, None);
    for round in 0..12 {
        let changed = (0..600).map(|_| key(random.below(KEYS)));
        let changes: Content = changed.map(|key| (key, vec![round; 20])).collect();
        write(&tree, &mut content, &changes);
        above += u64::from(tree.stats().mapping_bytes > MOST);
        tree.maintain().unwrap();
        let memory = tree.stats().mapping_bytes;
        // Its logs are booked, too.
        assert!(env.ledger().usage().index >= memory);
        match round {
            4 => old = Some((tree.snapshot(), content.clone())),
            // Maintenance writes no leaf again for what the snapshot needs.
            5..8 => assert!(tree.storage.mapping.sums(0).newest_memory <= MOST),
            8 => old = None,
            _ => assert!(memory <= MOST, "round {round}: {memory}"),
        }
        if let Some((snapshot, content)) = &old {
            for n in 0..KEYS {
                let found = tree.get(snapshot, &key(n)).unwrap();
                assert_eq!(
                    found.as_deref(),
                    content.get(&key(n)).map(|v| &v[..]),
                    "{n}"
                );
            }
        }
        check(&tree, &content);
    }
    assert!(above >= 10, "{above}");
    tree.close().unwrap();
    let tree = PageTree::open(&env, DIR, &options).unwrap();
    assert!(env.ledger().usage().index >= tree.stats().mapping_bytes);
    check(&tree, &content);
    tree.close().unwrap();
}
