//! Commands on streams against the store in memory.

use super::*;
use basalt::{Error, ErrorKind};

/// A failed append does not change the stream, and the next append succeeds.
#[test]
fn a_failed_append_leaves_the_stream_as_it_was() {
    let mut w = World::new();
    w.check(&[
        ("XADD s 1-1 f a", "$3\r\n1-1\r\n"),
        ("XADD s 1-2 f b", "$3\r\n1-2\r\n"),
    ]);
    w.commit();
    for fails_in_tables in [false, true] {
        if fails_in_tables {
            // The epoch writes the key, too.
            w.store.hold(true);
            w.check(&[("EXPIRE s 1000", ":1\r\n")]);
        } else {
            w.store.0.lock().hold_appends = true;
            w.check(&[("XADD s 2-1 f lost", "$3\r\n2-1\r\n"), ("XLEN s", ":3\r\n")]);
        }
        let (sender, ended) = std::sync::mpsc::channel();
        let done = |slot| {
            Box::new(move |r| sender.send((slot, r)).unwrap()) as crate::store::CommitCallback
        };
        assert!(w.exec.keys.submit(true, done));
        let failure = Error::new(ErrorKind::Io, "the disk is gone");
        match fails_in_tables {
            true => w.store.release(0, Err(failure)),
            false => w.store.release_append(Err(failure)),
        }
        let (slot, result) = ended.recv().unwrap();
        w.exec.keys.complete(slot, result);
        w.store.hold(false);
        w.store.0.lock().hold_appends = false;
        w.check(&[("XLEN s", ":2\r\n"), ("TTL s", ":-1\r\n")]);
    }
    w.check(&[
        ("XADD s 2-1 f c", "$3\r\n2-1\r\n"),
        (
            "XREVRANGE s + - COUNT 1",
            "*1\r\n*2\r\n$3\r\n2-1\r\n*2\r\n$1\r\nf\r\n$1\r\nc\r\n",
        ),
    ]);
    w.commit();
}

/// The key of a new stream is written after its first entry, and before every later write.
#[test]
fn tables_are_written_after_the_appends_of_an_epoch() {
    let mut w = World::new();
    w.store.0.lock().hold_appends = true;
    w.check(&[("XADD s 1-1 f a", "$3\r\n1-1\r\n")]);
    let (sender, ended) = std::sync::mpsc::channel();
    let done = |sender: std::sync::mpsc::Sender<_>| {
        move |slot| {
            Box::new(move |r: basalt::Result<()>| sender.send((slot, r)).unwrap())
                as crate::store::CommitCallback
        }
    };
    assert!(w.exec.keys.submit(true, done(sender.clone())));
    assert!(
        w.store.0.lock().submissions.is_empty(),
        "the append is first"
    );
    // A write of the key without a read depends on no epoch, but it waits, too.
    w.check(&[("SET s string", "+OK\r\n")]);
    assert!(!w.exec.keys.submit(true, done(sender.clone())));
    w.store.release_append(Ok(()));
    let (slot, result) = ended.recv().unwrap();
    w.exec.keys.complete(slot, result);
    assert!(w.exec.keys.submit(true, done(sender)));
    let (slot, result) = ended.recv().unwrap();
    w.exec.keys.complete(slot, result);
    w.check(&[
        ("TYPE s", "+string\r\n"),
        (
            "XLEN s",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
    ]);
}

/// An expired stream does not exist, and a new stream at its key begins empty.
#[test]
fn streams_expire() {
    let mut w = World::new();
    w.check(&[
        ("XADD s 5-5 f a", "$3\r\n5-5\r\n"),
        ("PEXPIRE s 1500", ":1\r\n"),
        ("PTTL s", ":1500\r\n"),
        ("PERSIST s", ":1\r\n"),
        ("PEXPIRE s 1500", ":1\r\n"),
    ]);
    w.commit();
    w.clock.advance(Duration::from_millis(1500));
    w.check(&[
        ("XLEN s", ":0\r\n"),
        ("EXISTS s", ":0\r\n"),
        ("SCAN 0 TYPE stream", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("XADD s 1-1 f b", "$3\r\n1-1\r\n"),
        ("XLEN s", ":1\r\n"),
        ("TTL s", ":-1\r\n"),
        ("SCAN 0 TYPE stream", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\ns\r\n"),
        ("SET s x", "+OK\r\n"),
        ("DEL s", ":1\r\n"),
        ("XADD s 1-1 f c", "$3\r\n1-1\r\n"),
        ("FLUSHALL", "+OK\r\n"),
        ("XLEN s", ":0\r\n"),
    ]);
    w.commit();
}
