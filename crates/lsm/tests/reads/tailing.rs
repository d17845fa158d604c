//! Cursors that follow the store, and those that are refreshed: the memory that they hold, and how
//! they end.

use crate::watched::Watched;
use basalt_env::Env;
use basalt_lsm::db::Iter;
use basalt_lsm::{Db, ErrorKind, Family, FamilyOptions, Options, ReadOptions, WriteOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;

fn open() -> (Env, Db, Family) {
    let env = Watched::new().env(8 << 20);
    let options = Options::default().write_buffer_bytes(16 << 10);
    let db = Db::open(&env, "db", options).expect("open");
    let f = db.default_family();
    (env, db, f)
}

fn tailing() -> ReadOptions {
    ReadOptions::default().tailing(true)
}

fn put(db: &Db, f: &Family, n: u32) {
    let key = format!("{n:08}");
    db.put(f, key.as_bytes(), &[7; 100], &UNSYNCED)
        .expect("put");
}

fn here(it: &Iter) -> Option<u32> {
    let key = it.valid().then(|| it.key())?;
    std::str::from_utf8(key).expect("digits").parse().ok()
}

fn table_files(env: &Env) -> u64 {
    let names = env.fs().list(Path::new("db")).expect("list");
    names.iter().filter(|e| e.name.ends_with(".tbl")).count() as u64
}

/// A reader is always at the end of a log of events: it sees every event once, in order, over many
/// memtables and tables.
#[test]
fn a_tailing_cursor_at_the_end_yields_each_entry_once() {
    let (env, db, f) = open();
    let mut it = db.iter(&f, &tailing()).expect("iter");
    it.seek_to_first().expect("seek");
    assert_eq!(here(&it), None);
    let mut next = 0;
    for n in 0..3000 {
        put(&db, &f, n);
        if n % 7 == 0 {
            env.jobs().step();
        }
        if n % 500 == 499 {
            db.compact_range(&f, None, None).expect("compact");
        }
        // Events also come in bursts.
        if n % 11 != 0 {
            continue;
        }
        loop {
            it.next().expect("next");
            let Some(found) = here(&it) else { break };
            assert_eq!(found, next);
            next += 1;
        }
        assert_eq!(next, n + 1);
    }
}

/// One thread writes and another follows.
#[test]
fn a_cursor_follows_a_writer_on_another_thread() {
    let env = basalt_env::Env::builder(Watched::new()).seed(3).build();
    let options = Options::default().write_buffer_bytes(16 << 10);
    let db = Db::open(&env, "db", options).expect("open");
    let f = db.default_family();
    let written = AtomicBool::new(false);
    basalt_env::thread::scope(|s| {
        let (db, f, written) = (&db, &f, &written);
        s.spawn(move || {
            (0..5000).for_each(|n| put(db, f, n));
            written.store(true, SeqCst);
        });
        let mut it = db.iter(f, &tailing()).expect("iter");
        it.seek(b"").expect("seek");
        let mut next = 0;
        loop {
            // The count is loaded before the cursor moves: then the end that the cursor meets is
            // the end.
            let all = written.load(SeqCst);
            if let Some(found) = here(&it) {
                assert_eq!(found, next);
                next += 1;
            } else if all && next == 5000 {
                break;
            }
            it.next().expect("next");
            assert!(!all || next == 5000 || it.valid(), "ends at {next}");
        }
    });
    db.close().expect("close");
}

/// Regression test of another engine's bug: its tailing cursors skipped keys written between the
/// one shown and the next.
#[test]
fn a_tailing_cursor_yields_keys_written_ahead_of_it() {
    let (_, db, f) = open();
    [10, 30].into_iter().for_each(|n| put(&db, &f, n));
    let mut it = db.iter(&f, &tailing()).expect("iter");
    it.seek(b"").expect("seek");
    assert_eq!(here(&it), Some(10));
    put(&db, &f, 20);
    put(&db, &f, 5);
    it.next().expect("next");
    assert_eq!(here(&it), Some(20));
    db.delete(&f, b"00000030", &UNSYNCED).expect("delete");
    it.next().expect("next");
    assert_eq!(here(&it), None);
    // This key lies behind the cursor.
    put(&db, &f, 15);
    it.next().expect("next");
    assert_eq!(here(&it), None);
    put(&db, &f, 21);
    db.flush().expect("flush");
    it.next().expect("next");
    assert_eq!(here(&it), Some(21));
    it.seek_to_first().expect("seek");
    assert_eq!(here(&it), Some(5));
}

#[test]
fn a_moving_cursor_releases_old_tables() {
    let (env, db, f) = open();
    for refreshed in [false, true] {
        (0..1000).for_each(|n| put(&db, &f, n));
        db.compact_range(&f, None, None).expect("compact");
        db.wait_idle().expect("becomes idle");
        while env.jobs().step() {}
        let before = table_files(&env);
        let mut it = match refreshed {
            false => db.iter(&f, &tailing()),
            true => db.iter(&f, &ReadOptions::default()),
        }
        .expect("iter");
        it.seek(b"").expect("seek");
        for _ in 0..3 {
            (0..1000).for_each(|n| put(&db, &f, n));
            db.compact_range(&f, None, None).expect("compact");
        }
        while env.jobs().step() {}
        assert!(table_files(&env) > before, "the cursor holds old tables");
        if refreshed {
            it.refresh(None).expect("refresh");
        } else {
            it.next().expect("next");
            assert_eq!(here(&it), Some(1));
        }
        while env.jobs().step() {}
        let named: u64 = db.stats().families[0].levels.iter().map(|l| l.tables).sum();
        assert_eq!(table_files(&env), named, "refreshed: {refreshed}");
    }
}

#[test]
fn a_failed_tailing_cursor_keeps_its_position() {
    let (_, db, _) = open();
    let f = (db.create_family("other", FamilyOptions::default())).expect("family");
    put(&db, &f, 1);
    let with_snapshot = tailing().snapshot(Some(db.snapshot()));
    let e = db.iter(&f, &with_snapshot).err().expect("refused");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let mut tail = db.iter(&f, &tailing()).expect("iter");
    let mut plain = db.iter(&f, &ReadOptions::default()).expect("iter");
    tail.seek(b"").expect("seek");
    plain.seek(b"").expect("seek");
    for refused in [tail.prev(), tail.seek_to_last(), tail.seek_for_prev(b"x")] {
        let e = refused.expect_err("it walks up only");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains("tailing"), "{e}");
    }
    assert_eq!(here(&tail), Some(1));

    db.drop_family(&f).expect("dropped");
    let gone = plain.refresh(None).expect_err("dropped");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(here(&plain), Some(1), "as it was");
    let gone = tail.next().expect_err("dropped");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(here(&tail), None);

    let f = db.default_family();
    put(&db, &f, 2);
    let mut tail = db.iter(&f, &tailing()).expect("iter");
    let mut plain = db.iter(&f, &ReadOptions::default()).expect("iter");
    tail.seek(b"").expect("seek");
    plain.seek(b"").expect("seek");
    db.close().expect("close");
    let closed = tail.next().expect_err("closed");
    assert_eq!(closed.kind(), ErrorKind::Closed);
    assert!(!tail.valid());
    assert_eq!(tail.next().expect_err("closed").kind(), ErrorKind::Closed);
    let closed = plain.refresh(None).expect_err("closed");
    assert_eq!(closed.kind(), ErrorKind::Closed);
    assert_eq!(here(&plain), Some(2), "it shows its moment on");
}

/// A step before the first seek panicked, although `next` returns a result.
#[test]
fn a_tailing_cursor_needs_a_seek_before_a_step() {
    let (_, db, f) = open();
    put(&db, &f, 1);
    let mut it = db.iter(&f, &tailing()).expect("iter");
    let unsought = |it: &mut Iter| {
        let e = it.next().expect_err("not positioned");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(!it.valid());
    };
    unsought(&mut it);
    it.seek_to_first().expect("seek");
    assert_eq!(here(&it), Some(1));
    it.refresh(None).expect("refresh");
    unsought(&mut it);
    // As a Rust iterator it still begins with the first entry.
    let entry = Iterator::next(&mut it).expect("an entry").expect("entry");
    assert_eq!(entry.0[..], *b"00000001");
}
