//! Readers that follow the tail of a log.

use super::*;
use crate::LogIter;
use basalt_env::EnvBuilder;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

fn threaded() -> (LogEngine, Log) {
    let env = EnvBuilder::new(disk(1)).build();
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("tail", LogOptions::default()).unwrap();
    (engine, log)
}

#[test]
fn a_reader_waits_for_records_and_misses_none() {
    let (engine, log) = threaded();
    basalt_env::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut iter = log.iter(1);
                scope.spawn(move || {
                    for lsn in 1..=500u64 {
                        let (found, data) = iter.next_timeout(LONG).unwrap().unwrap();
                        assert_eq!((found, &data[..]), (lsn, &lsn.to_le_bytes()[..]));
                    }
                })
            })
            .collect();
        for lsn in 1..=500u64 {
            let options = WriteOptions::synced(lsn % 100 == 0);
            log.append(lsn, &lsn.to_le_bytes(), &options).unwrap();
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
    engine.close().unwrap();
}

#[test]
fn a_reader_stops_waiting_at_its_time_a_deletion_or_a_close() {
    let (engine, log) = threaded();
    log.append(5, b"five", UNSYNCED).unwrap();
    let mut iter = log.iter(3);
    let short = Duration::from_millis(5);
    assert_eq!(iter.next_timeout(short).unwrap().unwrap().0, 5);
    assert!(iter.next_timeout(short).unwrap().is_none());
    // A late record below the position is not returned; one behind it is.
    log.append(2, b"two", UNSYNCED).unwrap();
    assert!(iter.next_timeout(short).unwrap().is_none());
    log.append(6, b"six", UNSYNCED).unwrap();
    assert_eq!(iter.next_timeout(short).unwrap().unwrap().0, 6);

    let other = engine.create("other", LogOptions::default()).unwrap();
    basalt_env::thread::scope(|scope| {
        let mut of_deleted = other.iter(0);
        let deleted = scope.spawn(move || of_deleted.next_timeout(LONG).unwrap_err().kind());
        let mut of_closed = log.iter(7);
        let closed = scope.spawn(move || of_closed.next_timeout(LONG).unwrap_err().kind());
        engine.delete("other").unwrap();
        assert_eq!(deleted.join().unwrap(), ErrorKind::NotFound);
        engine.close().unwrap();
        assert_eq!(closed.join().unwrap(), ErrorKind::Closed);
    });
}

#[test]
fn an_iterator_returns_a_late_record_behind_its_position() {
    let (engine, log) = threaded();
    for lsn in (1..=99u64).step_by(2) {
        log.append(lsn, &[lsn as u8], UNSYNCED).unwrap();
    }
    let (mut up, mut down) = (log.iter(0), log.iter_back(u64::MAX));
    assert_eq!(up.next().unwrap().unwrap().0, 1);
    assert_eq!(down.next().unwrap().unwrap().0, 99);
    log.append(50, &[50], UNSYNCED).unwrap();
    let lsns = |iter: LogIter| iter.map(|item| item.unwrap().0).collect::<Vec<u64>>();
    let mut expected: Vec<u64> = (3..=99).filter(|lsn| lsn % 2 == 1 || *lsn == 50).collect();
    assert_eq!(lsns(up), expected);
    expected.retain(|lsn| *lsn < 99);
    expected.insert(0, 1);
    expected.reverse();
    assert_eq!(lsns(down), expected);
    engine.close().unwrap();
}

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A log forgets the wakers of dropped iterators, also if it gets no record.
#[test]
fn a_log_without_records_keeps_no_waker_of_a_dropped_iterator() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let log = engine.create("tail", LogOptions::default()).unwrap();
    let mut kept = log.iter(1);
    for _ in 0..100 {
        let waker = Waker::from(Arc::new(Counter::default()));
        let mut cx = Context::from_waker(&waker);
        assert!(log.iter(1).poll_next(&mut cx).is_pending());
        assert!(kept.poll_next(&mut cx).is_pending());
    }
    assert!(log.state().lock().waiting_tasks() <= 2);
}

#[test]
fn a_task_is_woken_once_for_a_record() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let log = engine.create("tail", LogOptions::default()).unwrap();
    let woken = Arc::new(Counter::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut iter = log.iter(1);
    assert!(iter.poll_next(&mut cx).is_pending());
    assert!(iter.poll_next(&mut cx).is_pending());
    log.append(1, b"one", UNSYNCED).unwrap();
    log.append(2, b"two", UNSYNCED).unwrap();
    assert_eq!(woken.0.load(SeqCst), 1, "asked twice, woken once");
    for lsn in 1..=2 {
        let Poll::Ready(Ok((found, _))) = iter.poll_next(&mut cx) else {
            panic!("LSN {lsn} is there");
        };
        assert_eq!(found, lsn);
    }
    assert!(iter.poll_next(&mut cx).is_pending());
    engine.delete("tail").unwrap();
    assert_eq!(woken.0.load(SeqCst), 2);
    let Poll::Ready(Err(e)) = iter.poll_next(&mut cx) else {
        panic!("the log was deleted");
    };
    assert_eq!(e.kind(), ErrorKind::NotFound);
}
