//! Trees that are being created, and trees that have lost files.

use super::{DIR, disk, options};
use crate::PageTree;
use basalt_env::Env;
use basalt_fs::{ErrorKind, FileSystem};
use basalt_log::{LogEngine, LogEngineOptions, LogOptions};
use basalt_stream::Stream;
use std::path::Path;

/// A tree that a crash interrupted before its first checkpoint has logs, and no streams.
#[test]
fn a_tree_that_is_being_created_is_no_tree() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    PageTree::open(&env, DIR, &options())
        .unwrap()
        .close()
        .unwrap();
    for name in ["base", "delta"] {
        let dir = Path::new(DIR).join(name);
        for entry in fs.list(&dir).unwrap() {
            fs.remove(&dir.join(entry.name)).unwrap();
        }
        fs.remove(&dir).unwrap();
    }
    let opened = || PageTree::open_read_only(&env, DIR, &options(), &|_| true);
    // With a checkpoint, the tree has lost its streams.
    assert_eq!(
        opened().err().map(|e| e.kind()),
        Some(ErrorKind::Corruption)
    );
    let logs = Path::new(DIR).join("logs");
    for entry in fs.list(&logs).unwrap() {
        fs.remove(&logs.join(entry.name)).unwrap();
    }
    let log = LogEngine::open(&env, &logs, LogEngineOptions::default()).unwrap();
    for name in ["system", "checkpoint"] {
        log.create(name, LogOptions::default()).unwrap();
    }
    log.close().unwrap();
    assert_eq!(opened().err().map(|e| e.kind()), Some(ErrorKind::NotFound));
    PageTree::open(&env, DIR, &options())
        .unwrap()
        .close()
        .unwrap();
}

/// To create the streams anew would remove the extents.
#[test]
fn a_tree_without_its_checkpoint_keeps_its_extents() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let tree = PageTree::open(&env, DIR, &options()).unwrap();
    tree.write([(&b"k"[..], Some(&b"v"[..]))]).unwrap();
    tree.abandon().unwrap();
    drop(tree);
    let logs = Path::new(DIR).join("logs");
    let log = LogEngine::open(&env, &logs, LogEngineOptions::default()).unwrap();
    log.delete("checkpoint").unwrap();
    log.close().unwrap();
    for name in ["base", "delta"] {
        let dir = Path::new(DIR).join(name);
        for entry in fs.list(&dir).unwrap() {
            if !entry.name.ends_with(".extent") {
                fs.remove(&dir.join(entry.name)).unwrap();
            }
        }
    }
    let extents = || Stream::extent_files(&env, Path::new(DIR).join("base")).unwrap();
    let before = extents();
    let e = PageTree::open(&env, DIR, &options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert_eq!(extents(), before);
    assert!(!before.is_empty());
    // The logs of a closed tree are not made anew either.
    for entry in fs.list(&logs).unwrap() {
        fs.remove(&logs.join(entry.name)).unwrap();
    }
    let existing = options().create_if_missing(false);
    let e = PageTree::open(&env, DIR, &existing).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(fs.list(&logs).unwrap().len(), 0);
}

/// A tree without logs is evidence of a store as long as a page of it has entries.
#[test]
fn a_tree_without_logs_was_written_if_a_page_has_entries() {
    for (has_entries, is_merged) in [(false, false), (true, false), (true, true)] {
        let fs = disk(1);
        let env = Env::for_tests(fs.clone(), 1);
        let tree = PageTree::open(&env, DIR, &options()).unwrap();
        if has_entries {
            tree.write([(&b"k"[..], Some(&b"v"[..]))]).unwrap();
        }
        if is_merged {
            tree.compact_range(b"", None, &|| true).unwrap();
        }
        tree.close().unwrap();
        drop(tree);
        if is_merged {
            // Opens seal the extent of delta pages, and erase it.
            PageTree::open(&env, DIR, &options())
                .unwrap()
                .close()
                .unwrap();
            let deltas = Stream::extent_files(&env, Path::new(DIR).join("delta")).unwrap();
            assert_eq!(deltas, []);
        }
        let logs = Path::new(DIR).join("logs");
        for entry in fs.list(&logs).unwrap() {
            fs.remove(&logs.join(entry.name)).unwrap();
        }
        assert_eq!(PageTree::was_written(&env, DIR).unwrap(), has_entries);
        let extents = || Stream::extent_files(&env, Path::new(DIR).join("base")).unwrap();
        let before = extents();
        match PageTree::open(&env, DIR, &options()) {
            Ok(tree) => {
                assert!(!has_entries);
                tree.close().unwrap();
            }
            Err(e) => {
                assert!(has_entries && e.kind() == ErrorKind::Corruption, "{e}");
                assert_eq!(extents(), before);
            }
        }
    }
}
