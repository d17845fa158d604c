//! Tests of the module `explain`.

use super::*;
use crate::tests::write_some;
use crate::{PageTree, TreeOptions, TreeSnapshot};
use basalt_env::{Env, Random};
use basalt_kv::codec::Compression;
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;

const DIR: &str = "tree";

fn options() -> TreeOptions {
    TreeOptions::default()
        .page_bytes(400)
        .extent_bytes(8 << 10)
        .max_deltas(4)
        .overwrite_ratio(2.5)
        .compression(Compression::None)
}

/// Checks what the parts of an explanation say of each other.
fn check_form(key: &[u8], explained: &PageExplanation) {
    let leaf = explained.leaf.as_ref().expect("no page is damaged");
    assert!(leaf.keys.has(key));
    let (base, deltas) = leaf.pages.split_last().expect("there is a base page");
    assert!(base.is_base && deltas.iter().all(|page| !page.is_base));
    let mut is_decided = false;
    let (mut bytes, mut reads) = (0, 0);
    for page in &leaf.pages {
        let counts = page.part.as_ref().is_none_or(|part| part.has(key));
        match &page.verdict {
            PageVerdict::OutsidePart => assert!(!counts),
            PageVerdict::FilteredOut => assert!(counts && !is_decided && !page.is_base),
            PageVerdict::Absent => assert!(counts && !is_decided),
            PageVerdict::Found(_) => {
                assert!(counts && !is_decided);
                is_decided = true;
            }
            PageVerdict::Hidden(_) => assert!(counts && is_decided),
            PageVerdict::Damaged(e) => panic!("{e}"),
        }
        if counts {
            bytes += page.position.bytes;
            reads += 1;
        }
    }
    let of_index = explained.index.iter().map(|step| step.position.bytes);
    assert_eq!(explained.device_bytes, bytes + of_index.sum::<u64>());
    // Neighbouring pages share a read.
    let index = explained.index.len() as u64;
    assert!((index + 1..=index + reads).contains(&explained.device_reads));
    assert!(
        explained
            .index
            .iter()
            .all(|step| step.child < step.children)
    );
}

/// Returns the number of keys that were compared, and those for which a delta page decides, a page
/// hides an older entry, or only a part of a page counts.
fn compare(tree: &PageTree, snapshot: &TreeSnapshot) -> [u64; 4] {
    let mut counts = [0; 4];
    for n in 0..300 {
        let key = format!("k{n:03}");
        let key = key.as_bytes();
        let explained = tree.explain(snapshot, key);
        check_form(key, &explained);
        let found = (explained.found()).map(|entry| (entry.kind.unwrap(), entry.value.clone()));
        assert_eq!(found, tree.entry(snapshot, key, true).unwrap());
        let pages = explained.leaf.unwrap().pages;
        let has = |wanted: fn(&ExplainedPage) -> bool| u64::from(pages.iter().any(wanted));
        counts[0] += 1;
        counts[1] += has(|p| !p.is_base && matches!(p.verdict, PageVerdict::Found(_)));
        counts[2] += has(|p| matches!(p.verdict, PageVerdict::Hidden(Some(_))));
        counts[3] += has(|p| p.part.is_some());
    }
    counts
}

/// Writes leaves again, and commits a write before that, so that parts of its pages count.
fn split_beside_a_write(tree: &PageTree, random: &Random, round: u8) {
    for leaf in tree.storage.mapping.due(2) {
        let Some(prepared) = tree.storage.prepare_compaction(leaf, true).unwrap() else {
            continue;
        };
        write_some(tree, random, 30, round);
        tree.storage.commit_prepared(&prepared).unwrap();
    }
}

#[test]
fn an_explanation_agrees_with_the_lookup() {
    let mut sums = [0; 4];
    for seed in 0..4 {
        let fs = SimFs::new(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let tree = PageTree::open(&Env::for_tests(fs, seed), DIR, &options()).unwrap();
        let random = Random::from_seed(seed);
        let old = tree.snapshot();
        for round in 0..30 {
            write_some(&tree, &random, 30, round);
            match random.below(5) {
                0 => tree.maintain().unwrap(),
                1 | 2 => split_beside_a_write(&tree, &random, round),
                _ => {}
            }
            if round % 5 == 0 {
                let counts = compare(&tree, &tree.snapshot());
                sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
            }
        }
        // The tree was empty then.
        assert_eq!(compare(&tree, &old)[1..3], [0, 0]);
        tree.close().unwrap();
    }
    println!("keys, found in a delta page, hiding, in parts: {sums:?}");
    assert!(sums[1] > 300 && sums[2] > 300 && sums[3] > 300, "{sums:?}");
}

#[test]
fn damage_is_a_part_of_the_explanation() {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::for_tests(fs.clone(), 1);
    let tree = PageTree::open(&env, DIR, &options()).unwrap();
    for round in 0..20 {
        write_some(&tree, &Random::from_seed(round), 30, round as u8);
        tree.maintain().unwrap();
    }
    let key = b"k150";
    tree.write([(&key[..], Some(&b"newest"[..]))]).unwrap();
    let sound = tree.explain(&tree.snapshot(), key);
    tree.close().unwrap();
    assert!(sound.error.is_none() && !sound.index.is_empty());
    let pages = sound.leaf.unwrap().pages;
    let snapshot = fs.snapshot();
    let explain_without = |page: &PagePosition| {
        let damaged = snapshot.kill();
        let path = Path::new(DIR).join(&page.file);
        let at = page.offset + page.bytes - 1;
        damaged.flip_bit(&path, at, 0).unwrap();
        let env = Env::for_tests(damaged, 1);
        let tree = PageTree::open_read_only(&env, DIR, &options(), &|_| true).unwrap();
        let explained = tree.explain(&tree.snapshot(), key);
        let error = explained.error.clone().expect("a page is damaged");
        assert_eq!(
            (error.path(), error.offset()),
            (Some(&*path), Some(page.offset))
        );
        explained
    };
    let without_root = explain_without(&sound.index[0].position);
    assert!(without_root.leaf.is_none() && without_root.index.is_empty());
    let without_base = explain_without(&pages.last().unwrap().position);
    // The newest page still says what it has.
    assert_eq!(without_base.found().unwrap().value, &b"newest"[..]);
    let verdicts = without_base.leaf.unwrap().pages;
    assert!(matches!(
        verdicts.last().unwrap().verdict,
        PageVerdict::Damaged(_)
    ));
    let without_newest = explain_without(&pages[0].position).leaf.unwrap().pages;
    assert!(matches!(without_newest[0].verdict, PageVerdict::Damaged(_)));
}
