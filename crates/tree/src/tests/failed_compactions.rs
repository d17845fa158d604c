//! Compactions of different index pages beside each other, of which one fails.

use super::{Content, DIR, content, disk, options};
use crate::storage::Storage;
use crate::{PageTree, TreeOptions};
use basalt_env::Env;
use basalt_fs::ErrorKind;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, When};
use std::path::Path;
use std::sync::Arc;

const KEYS: u64 = 300;

fn key(n: u64) -> Vec<u8> {
    format!("k{n:05}").into_bytes()
}

fn with_extents(extent_bytes: u64) -> TreeOptions {
    TreeOptions {
        // A compaction rewrites each leaf that is due.
        overwrite_ratio: 0.0,
        extent_bytes,
        ..options()
    }
}

/// A tree in which all leaves are due.
fn due_tree(faulty: &Arc<FaultFs>, options: &TreeOptions) -> (PageTree, Content) {
    let env = Env::for_tests(faulty.clone(), 1);
    let tree = PageTree::open(&env, DIR, options).unwrap();
    let mut model = Content::new();
    for round in 0..7 {
        let changes: Content = (0..KEYS).map(|n| (key(n), vec![round; 20])).collect();
        tree.write(
            changes
                .iter()
                .map(|(key, value)| (&key[..], Some(&value[..]))),
        )
        .unwrap();
        model.extend(changes);
    }
    (tree, model)
}

/// Checks what a tree has, and what it has after a power cut.
fn check(storage: &Storage, disk: &Arc<SimFs>, model: &Content, say: &str) {
    let found = content(storage, &storage.view()).unwrap_or_else(|e| panic!("{say}: {e}"));
    assert!(found == *model, "{say}");
    storage.verify().unwrap_or_else(|e| panic!("{say}: {e}"));
    for (seed, policy) in CrashPolicy::ALL.iter().enumerate() {
        let crashed = disk.crash(*policy, seed as u64);
        let env = Env::for_tests(crashed, 2 + seed as u64);
        let recovered = Storage::open(&env, Path::new(DIR), &storage.options);
        let recovered = recovered.unwrap_or_else(|e| panic!("{say}, {policy:?}: {e}"));
        let found = content(&recovered, &recovered.view()).unwrap();
        assert!(found == *model, "{say}, {policy:?}");
        recovered.verify().unwrap();
    }
}

/// Prepares two compactions. Of the second one, the append `n` fails. If `has_own_extents`, its
/// pages are in other extents than those of the first one, otherwise in the same one.
fn run(kind: FaultKind, n: u64, has_own_extents: bool) {
    let say = format!("{kind:?} at append {n}, own extents: {has_own_extents}");
    let disk = disk(1);
    let faulty = FaultFs::new(disk.clone(), n);
    let extent_bytes = if has_own_extents { 4 << 10 } else { 64 << 10 };
    let (tree, model) = due_tree(&faulty, &with_extents(extent_bytes));
    let storage = &*tree.storage;
    let paths = [0, KEYS / 2].map(|n| storage.path(&storage.view(), &key(n)).unwrap());
    let parents = paths.each_ref().map(|path| path.steps.last().unwrap());
    assert!(parents[0].key != parents[1].key, "{say}: two index pages");
    // Otherwise the second compaction comes to its end, which waits for the first one.
    let leaves = parents[1].page.count();
    assert!(leaves > 6, "{say}: {leaves} leaves");
    let first = storage.prepare_compaction(paths[0].leaf, false).unwrap();
    let first = first.expect("the leaf is due");
    if has_own_extents {
        storage.base.seal().unwrap();
    }
    let before = storage.stats().base_extent_bytes;
    faulty.inject(Fault {
        op: Some(OpKind::Append),
        path: ".extent".to_string(),
        // The header of an extent is an append, too.
        when: When::Nth(n + u64::from(has_own_extents)),
        kind,
    });
    let failed = storage.prepare_compaction(paths[1].leaf, false);
    let error = failed.map(|_| ()).expect_err(&say);
    let expected = match kind {
        FaultKind::Enospc => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    assert_eq!(error.kind(), expected, "{say}: {error}");
    assert_eq!(faulty.fired().len(), 1, "{say}");
    faulty.clear();
    // Nothing in the file of the failed append waits for a sync.
    let is_alone = has_own_extents && n == 1;
    let committed = storage.commit_prepared(&first);
    drop(first);
    match committed {
        Ok(_) => assert!(is_alone, "{say}"),
        // The filesystem may have lost bytes of an earlier append to the file.
        Err(e) => assert!(!is_alone && e.kind() == ErrorKind::Poisoned, "{say}: {e}"),
    }
    check(storage, &disk, &model, &say);
    // What failed maintenance has written is given back.
    tree.restart().unwrap();
    tree.reclaim().unwrap();
    let extents = tree.inspect_extents();
    let dead = extents.iter().filter(|e| e.is_sealed && e.valid_bytes == 0);
    assert_eq!(dead.count(), 0, "{say}: {extents:?}");
    if has_own_extents {
        let after = storage.stats().base_extent_bytes;
        assert!(after <= before, "{say}: {after} bytes, {before} before");
    }
    check(storage, &disk, &model, &say);
    // Nothing keeps the failed compaction from being done.
    storage.compact(&|| true).unwrap();
    let max_deltas = storage.options.max_deltas;
    assert!(storage.mapping.due(max_deltas).is_empty(), "{say}");
    check(storage, &disk, &model, &say);
    tree.close().unwrap();
}

/// An append of one compaction fails while another one is prepared. The other one is committed,
/// unless the file of the failed append has other bytes that no sync has covered. Then a sync of
/// the stream fails, and so does the other compaction, which changes nothing either.
#[test]
fn a_failed_compaction_leaves_others_and_all_entries() {
    for kind in [FaultKind::Eio, FaultKind::Enospc] {
        run(kind, 1, true);
        run(kind, 2, true);
        run(kind, 1, false);
    }
}
