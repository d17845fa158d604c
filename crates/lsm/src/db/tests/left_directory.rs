//! A directory whose store is gone while its readers live on. It belongs to the next store.

use super::prelude::*;
use crate::db::tests::blobs::{FREE, check, test_env};
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;
use std::path::Path;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options {
        default_family: FamilyOptions {
            min_blob_size: Some(100),
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn value(n: u8, round: u8) -> Vec<u8> {
    // Every second value is separated.
    vec![n ^ round; if n.is_multiple_of(2) { 20 } else { 2000 }]
}

fn put_all(db: &Db, round: u8, sync: &WriteOptions) -> Entries {
    let f = db.default_family();
    let all: Entries = (0..40u8).map(|n| (vec![n], value(n, round))).collect();
    for (key, value) in &all {
        db.put(&f, key, value, sync).unwrap();
    }
    all
}

fn names(env: &Env) -> Vec<String> {
    let mut names: Vec<String> = (env.fs().list(Path::new("db")).unwrap().into_iter())
        .map(|e| e.name)
        .collect();
    names.sort();
    names
}

fn expect(db: &Db, all: &Entries) {
    let f = db.default_family();
    for (key, value) in all {
        let found = db.get(&f, key, &ReadOptions::default()).unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]), "{key:?}");
    }
}

/// The way in which a store ends while a reader lives on.
#[derive(Debug, Clone, Copy)]
enum End {
    Close,
    Drop,
    Abandon,
}

/// The reader that lives on.
#[derive(Debug, Clone, Copy)]
enum Reader {
    Iter,
    Tailing,
    Value,
}

/// Writes all keys twice, with tables, blob files and a log that became a blob file. All of them
/// are obsolete, and only the reader holds them. Then ends the store and removes the directory.
fn reader_of_a_store_that_is_gone(env: &Env, end: End, reader: Reader) -> Box<dyn std::any::Any> {
    let db = Db::open(env, "db", options()).unwrap();
    let f = db.default_family();
    put_all(&db, 1, &WriteOptions::SYNC);
    db.flush().unwrap();
    put_all(&db, 2, &FREE);
    db.flush().unwrap();
    let read = ReadOptions {
        tailing: matches!(reader, Reader::Tailing),
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&f, &read).unwrap();
    iter.seek(&[7]).unwrap();
    let held: Box<dyn std::any::Any> = match reader {
        Reader::Iter | Reader::Tailing => Box::new(iter),
        Reader::Value => {
            let value = iter.pinned_value();
            Box::new((value, iter, db.snapshot()))
        }
    };
    for n in 0..40u8 {
        db.delete(&f, &[n], &FREE).unwrap();
    }
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    match end {
        End::Close => db.close().unwrap(),
        End::Drop => drop(db),
        End::Abandon => db.abandon(),
    }
    held
}

/// Regression test: an iterator that was still alive when its store was closed removed obsolete
/// tables, blob files and logs by their paths when it was dropped. In the meantime another store
/// had been made in the directory, whose files had the same names. Its live log was among the
/// removed files, and acknowledged writes with it.
#[test]
fn late_readers_remove_no_file_of_the_next_store() {
    let mut met = 0;
    for end in [End::Close, End::Drop, End::Abandon] {
        for reader in [Reader::Iter, Reader::Tailing, Reader::Value] {
            for flushed in [false, true] {
                let (env, _) = test_env();
                let held = reader_of_a_store_that_is_gone(&env, end, reader);
                let old = names(&env);
                for name in &old {
                    env.fs().remove(&Path::new("db").join(name)).unwrap();
                }
                let next = Db::open(&env, "db", options()).unwrap();
                put_all(&next, 3, &WriteOptions::SYNC);
                if flushed {
                    next.flush().unwrap();
                }
                let all = put_all(&next, 4, &WriteOptions::SYNC);
                while env.jobs().step() {}
                let named = names(&env);
                met += named.iter().filter(|n| old.contains(n)).count();
                drop(held);
                while env.jobs().step() {}
                assert_eq!(names(&env), named, "{end:?}, {reader:?}, {flushed}");
                expect(&next, &all);
                next.abandon();
                let next = Db::open(&env, "db", options()).unwrap();
                expect(&next, &all);
                next.close().unwrap();
                check(&env, &options());
            }
        }
    }
    assert!(met > 18, "{met} files of the next stores had old names");
}

/// A reader whose store has left the directory removes no files. The next open removes them.
#[test]
fn an_open_removes_the_files_that_late_readers_kept() {
    for end in [End::Close, End::Drop, End::Abandon] {
        let (env, _) = test_env();
        let held = reader_of_a_store_that_is_gone(&env, end, Reader::Iter);
        drop(held);
        while env.jobs().step() {}
        Db::open(&env, "db", options()).unwrap().close().unwrap();
        check(&env, &options());
    }
}

/// Regression test: a job repeated a removal that had failed. The directory had changed hands
/// meanwhile, and the job removed the next store's file.
#[test]
fn a_repeated_removal_checks_the_owner_again() {
    use basalt_sim::fault::{Fault, FaultKind};
    use basalt_sim::{FaultFs, OpKind, When};
    let fs = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = Env::for_tests(fs.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    put_all(&db, 1, &FREE);
    db.flush().unwrap();
    let old = names(&env);
    fs.inject(Fault {
        op: Some(OpKind::Remove),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    let tables = db.engine().ctx.tables.clone();
    for name in &old {
        tables.remove(&Path::new("db").join(name));
    }
    assert_eq!(tables.unremoved(), old.len() as u64);
    db.abandon();
    fs.clear();
    // The next owner of the directory has files of the same names.
    for name in names(&env) {
        env.fs().remove(&Path::new("db").join(name)).unwrap();
    }
    for name in &old {
        let file = env.fs().create(&Path::new("db").join(name)).unwrap();
        let theirs = std::io::IoSlice::new(b"theirs");
        file.append(&[theirs], basalt_fs::Intent::Sync).unwrap();
    }
    tables.retry_removals();
    assert_eq!(tables.unremoved(), 0);
    assert_eq!(names(&env), old);
}

/// Regression test: a close did not wait for a checkpoint on another thread. The checkpoint went on
/// linking files by their names when the directory was already free, and another store could be
/// made in it.
#[test]
fn closing_waits_for_a_running_checkpoint() {
    use basalt_sim::fault::{Fault, FaultKind};
    use basalt_sim::{FaultFs, OpKind, When};
    use std::sync::mpsc;
    for abandon in [false, true] {
        let (met, has_met) = mpsc::sync_channel(1);
        let (go, gate) = mpsc::channel::<()>();
        let gate = basalt_env::sync::Mutex::new(gate);
        let hold = move |_| {
            met.send(()).unwrap();
            let _ = gate.lock().recv();
        };
        let sim = SimFs::new(SimOptions::default());
        let fs = FaultFs::with_sleep(sim, 1, Box::new(hold));
        let env = Env::builder(fs.clone()).threads(2).build();
        let db = Db::open(&env, "db", options()).unwrap();
        let all = put_all(&db, 1, &WriteOptions::SYNC);
        db.flush().unwrap();
        fs.inject(Fault {
            op: Some(OpKind::Link),
            path: String::new(),
            when: When::Nth(1),
            kind: FaultKind::Latency(std::time::Duration::from_millis(1)),
        });
        let copying = {
            let db = db.clone();
            basalt_env::thread::spawn("copying", move || {
                let e = db.checkpoint("copy", &Default::default()).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
            })
            .unwrap()
        };
        has_met.recv().unwrap();
        let closing = {
            let db = db.clone();
            let end = move || match abandon {
                true => db.abandon(),
                false => db.close().unwrap(),
            };
            basalt_env::thread::spawn("closing", end).unwrap()
        };
        while !db.engine().ctx.is_closing() {
            std::thread::yield_now();
        }
        for _ in 0..200 {
            assert!(!db.engine().ctx.has_left(), "abandon: {abandon}");
            let other = Db::open(&env, "db", options()).err().expect("still open");
            assert_eq!(other.kind(), ErrorKind::Busy, "{other}");
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        copying.join().unwrap();
        closing.join().unwrap();
        let named = env.fs().list(Path::new("")).unwrap();
        assert!(named.iter().all(|e| e.name == "db"), "{named:?}");
        let db = Db::open(&env, "db", options()).unwrap();
        expect(&db, &all);
        db.close().unwrap();
        check(&env, &options());
    }
}
