//! Pages with right checksums and wrong contents, and tables that contradict each other.

use super::scan_ahead::{KEYS, key, opened, with_options};
use super::{DIR, disk};
use crate::PageTree;
use crate::cursor::{LeafCursor, LeafReads};
use crate::mapping::State;
use crate::page_id::PageId;
use crate::page_reads::{LoadedPages, PartReads, head_key};
use crate::usage::StreamKind;
use basalt_env::Env;
use basalt_fs::ErrorKind;
use std::collections::BTreeMap;

/// Regression test: a crafted index page names a page by another length. The head in the cache is
/// that of the place, and a page that was read ahead panicked beside it.
#[test]
fn a_page_of_another_length_is_damage() {
    let tree = opened(&disk(1));
    let (storage, view) = (&tree.storage, tree.storage.view());
    let path = storage.path(&view, &key(KEYS - 1)).unwrap();
    let id = storage.pages_of(&view, path.leaf).unwrap().base;
    let mut parts = PartReads::new(storage, true);
    parts.read(vec![parts.want_head((StreamKind::Base, id))]);
    let wrong = PageId {
        len: id.len - 1,
        ..id
    };
    let of = (StreamKind::Base, wrong);
    let stored = storage.base.read(id.address(), wrong.len as usize).unwrap();
    for is_cached in [true, false] {
        if !is_cached {
            parts = PartReads::new(storage, false);
            storage.env.cache().remove(head_key(id));
        }
        parts.give(of, stored.clone());
        let head = parts.head(of).expect("it was given");
        let opened = head.and_then(|head| {
            let block = parts.block(of, &head, head.blocks - 1);
            block.expect("it was given")
        });
        let e = opened.map(|page| page.count()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        let expected = format!("a page of {} bytes, expected {}", id.len, wrong.len);
        assert!(e.to_string().contains(&expected), "{e}");
    }
    // The cursor of a leaf refuses what was read ahead by the wrong length, and reads the page.
    let leaf = storage.leaf_pages(&view, &path).unwrap();
    let ahead = BTreeMap::from([(head_key(id), stored)]);
    for fill_cache in [true, false] {
        let how = LeafReads {
            stored: Some(&ahead),
            ..LeafReads::first(fill_cache)
        };
        LeafCursor::open(storage, &leaf, how).unwrap();
    }
    // A read of the right page is not disturbed.
    let of = (StreamKind::Base, id);
    let mut parts = PartReads::new(storage, true);
    parts.read(vec![parts.want_head(of)]);
    let head = parts.head(of).unwrap().unwrap();
    parts.read_block(of, &head, head.blocks - 1).unwrap();
}

/// Regression test: an index page in the place of a leaf read as deletions, because its entries
/// have the kind of one. A compaction would have dropped them.
#[test]
fn an_index_page_in_the_place_of_a_leaf_is_damage() {
    let tree = opened(&disk(1));
    let (storage, view) = (&tree.storage, tree.storage.view());
    assert!(view.root.level > 0);
    let State::Live(root) = storage.mapping.get(view.root.id, view.time) else {
        panic!("the root was rewritten");
    };
    let base = root.base;
    let mut parts = PartReads::new(storage, true);
    parts.read(vec![parts.want_head((StreamKind::Base, base))]);
    let found = parts.head((StreamKind::Base, base)).unwrap();
    let merged = storage.merge_pages(Some(base), &[], &LoadedPages::new());
    for e in [
        found.map(|_| ()).unwrap_err(),
        merged.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.to_string().contains("in the place of a leaf"), "{e}");
    }
}

/// Regression test: after a transaction that contradicts the tables, the system checkpoint of a
/// close replaced the log that shows what is wrong.
#[test]
fn a_contradiction_is_not_written_to_a_checkpoint() {
    let fs = disk(1);
    let tree = opened(&fs);
    let before = tree.stats().system_log_bytes;
    tree.storage.set_contradiction("a page is there twice");
    let e = tree.close().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains("a page is there twice"), "{e}");
    drop(tree);
    let env = Env::for_tests(fs, 3);
    let tree = PageTree::open(&env, DIR, &with_options()).unwrap();
    assert_eq!(tree.stats().system_log_bytes, before);
    tree.close().unwrap();
}
