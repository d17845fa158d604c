//! Scans over leaves whose pages have many neighbouring entries each: runs of entries that are not
//! compared, across borders of blocks, turns and seeks.

use super::{DIR, disk, options};
use crate::{EntryCursor, PageTree, TreeOptions};
use basalt_env::Env;
use basalt_sim::rng::Rng;
use std::collections::BTreeMap;

const KEYS: u64 = 3000;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Writes random neighbouring keys many times, each time with new values and deletions.
fn filled(tree: &PageTree, rng: &mut Rng) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let mut model = BTreeMap::new();
    for round in 0..12 {
        let mut changes = BTreeMap::new();
        for _ in 0..rng.below(30) + 1 {
            let (first, step) = (rng.below(KEYS), rng.below(3) + 1);
            let last = first + step * (rng.below(60) + 1);
            for n in (first..last.min(KEYS)).step_by(step as usize) {
                let value = format!("{round} {n} {}", "v".repeat(rng.below(40) as usize));
                let is_kept = rng.below(10) > 0;
                changes.insert(key(n), is_kept.then(|| value.into_bytes()));
            }
        }
        tree.write((changes.iter()).map(|(key, value)| (&key[..], value.as_deref())))
            .unwrap();
        model.extend(changes);
        if round == 5 {
            tree.compact_range(b"", None, &|| true).unwrap();
            model.retain(|_, value| value.is_some());
        }
    }
    model
}

/// Checks the current entry of a cursor against that of the model.
fn assert_at(cursor: &EntryCursor, expected: (&Vec<u8>, &Option<Vec<u8>>), seed: u64) {
    let mut found = Vec::new();
    let (kind, value) = cursor.take(&mut found).unwrap();
    let is_deletion = kind == basalt_kv::key::Kind::Delete;
    let value = (!is_deletion).then(|| value.to_vec());
    assert_eq!((&found, &value), expected, "seed {seed}");
}

#[test]
fn runs_end_at_entries_of_other_pages_and_at_turns() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let env = Env::for_tests(disk(seed), 1);
        let options = TreeOptions {
            page_bytes: 16 << 10,
            block_bytes: 1 << 10,
            max_deltas: 8,
            ..options()
        };
        let tree = PageTree::open(&env, DIR, &options).unwrap();
        let model = filled(&tree, &mut rng);
        let snapshot = tree.snapshot();
        for fill_cache in [false, true] {
            let mut cursor = tree.cursor(&snapshot, fill_cache);
            for _ in 0..40 {
                let from = key(rng.below(KEYS));
                cursor.seek(&from).unwrap();
                // The next entry forward is the first one of `behind`.
                let mut behind = from;
                for _ in 0..rng.below(6) + 1 {
                    let forward = rng.below(3) > 0;
                    for _ in 0..rng.below(300) {
                        let (moved, expected) = match forward {
                            true => (cursor.next_entry(), model.range(behind.clone()..).next()),
                            false => {
                                let mut before = model.range(..behind.clone());
                                (cursor.prev_entry(), before.next_back())
                            }
                        };
                        assert_eq!(moved.unwrap(), expected.is_some(), "seed {seed}");
                        let Some(expected) = expected else {
                            break;
                        };
                        assert_at(&cursor, expected, seed);
                        behind = expected.0.clone();
                        if forward {
                            behind.push(0);
                        }
                    }
                }
            }
        }
    }
}
