//! Records that are whole for the log engine, and wrong for Raft.

use super::*;
use crate::codec::encode;
use basalt::WriteOptions;
use basalt_log::WriteOptions as LogWriteOptions;
use openraft::RaftLogReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};

const SYNC: &LogWriteOptions = &LogWriteOptions::SYNC;

/// Writes a log of three entries. Returns its disk.
fn three_entries() -> Arc<SimFs> {
    let fs = disk(1);
    run(async {
        let mut node = Node::open(fs.clone()).unwrap();
        let entries = (0..3).map(|i| entry(1, i, Some(("k".into(), Some("v".into())))));
        node.log.blocking_append(entries).await.unwrap();
        let vote = openraft::Vote::new(7, 1);
        node.log.save_vote(&vote).await.unwrap();
    });
    fs
}

/// Opens a node whose disk has `bytes` in the place of entry 2.
fn with_last(bytes: &[u8]) -> Result<Node> {
    let fs = three_entries().kill();
    let node = Node::open(fs.clone()).unwrap();
    let log = node.engine.log("node/entries").unwrap();
    log.truncate_suffix(2).unwrap();
    log.append(2, bytes, SYNC).unwrap();
    Node::open(fs.kill())
}

#[test]
fn an_entry_that_cannot_be_decoded_is_an_error_that_names_it() {
    let good = encode(&entry(1, 2, None)).unwrap();
    let mut wrong = vec![vec![], vec![0], vec![1], vec![9; 100], vec![255; 30]];
    wrong.extend((1..good.len()).map(|len| good[..len].to_vec()));
    // Another entry's bytes.
    wrong.push(encode(&entry(1, 5, None)).unwrap());
    for bytes in wrong {
        let e = with_last(&bytes).err().expect("a wrong entry");
        assert!(e.is_corruption(), "{e}");
        for part in ["LSN 2", "node/entries"] {
            assert!(e.to_string().contains(part), "{e} does not name {part}");
        }
    }
    with_last(&good).unwrap();
}

/// An entry in the middle is read only when it is needed.
#[test]
fn a_wrong_entry_is_an_error_of_its_readers() {
    let fs = disk(1);
    run(async {
        let mut node = Node::open(fs.clone()).unwrap();
        let log = node.engine.log("node/entries").unwrap();
        for index in 0..4 {
            let mut bytes = encode(&entry(1, index, None)).unwrap();
            if index == 2 {
                bytes.push(0);
            }
            log.append(index, &bytes, SYNC).unwrap();
        }
        node = Node::open(fs.kill()).unwrap();
        assert_eq!(node.log.try_get_log_entries(..2).await.unwrap().len(), 2);
        let e = node.log.try_get_log_entries(..).await.unwrap_err();
        assert!(e.to_string().contains("LSN 2"), "{e}");
        let e = node.log.limited_get_log_entries(2, 3).await.unwrap_err();
        assert!(e.to_string().contains("LSN 2"), "{e}");
    });
}

#[test]
fn a_hole_in_the_log_is_an_error_that_says_what_to_do() {
    let fs = three_entries().kill();
    let node = Node::open(fs.clone()).unwrap();
    let log = node.engine.log("node/entries").unwrap();
    log.remove(1..=1).unwrap();
    let e = Node::open(fs.kill()).err().expect("a hole");
    assert!(e.is_corruption(), "{e}");
    for part in ["has no entry 1", "node/entries", "remove the node"] {
        assert!(e.to_string().contains(part), "{e} does not name {part}");
    }
}

#[test]
fn wrong_records_of_vote_and_applied_log_id_are_errors() {
    let fs = three_entries().kill();
    run(async {
        let mut node = Node::open(fs.clone()).unwrap();
        let vote = node.log.read_vote().await.unwrap();
        assert_eq!(vote, Some(openraft::Vote::new(7, 1)));
        let log = node.engine.log("node/state").unwrap();
        log.append(1, &[1, 200], SYNC).unwrap();
        let e = node.log.read_vote().await.unwrap_err();
        assert!(e.to_string().contains("node/state"), "{e}");
        // The committed log id.
        log.append(2, &[2], SYNC).unwrap();
        let e = Node::open(fs.kill()).err().expect("a wrong record");
        assert!(e.to_string().contains("LSN 2"), "{e}");
    });
    let env = basalt::Env::for_tests(disk(2), 1);
    let db = Db::open(&env, "state", Options::default()).unwrap();
    StateMachine::<Types, _>::open(&db, "node", KeyValues).unwrap();
    let meta = db.family("node/meta").unwrap();
    for (key, bytes) in [("applied", &[1, 255][..]), ("current", &[1, 2])] {
        db.put(&meta, key.as_bytes(), bytes, &WriteOptions::SYNC)
            .unwrap();
        let opened = StateMachine::<Types, _>::open(&db, "node", KeyValues);
        let e = opened.err().expect("a wrong value");
        assert!(e.is_corruption() && e.to_string().contains(key), "{e}");
        db.delete(&meta, key.as_bytes(), &WriteOptions::SYNC)
            .unwrap();
    }
}
