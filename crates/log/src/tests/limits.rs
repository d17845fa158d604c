//! Batches and LSNs at their limits.

use super::concurrent::head_of;
use super::*;
use crate::catalog::Change;
use crate::checkpoint::{self, CheckpointHead};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

/// Writes a checkpoint when it is woken.
struct CheckpointWhenWoken {
    engine: LogEngine,
    head: CheckpointHead,
    written: AtomicUsize,
}

impl Wake for CheckpointWhenWoken {
    fn wake(self: Arc<Self>) {
        if self.written.fetch_add(1, SeqCst) > 0 {
            return;
        }
        let e = self.engine.engine();
        let ((a, store), (b, _)) = (e.logs.new_file(), e.logs.new_file());
        let all = e.namespace.all_named();
        let written =
            checkpoint::write(&e.env, e.logs.dir(), [a, b], store, &self.head, &all).unwrap();
        let changes = [
            Change::Checkpoint(written.checkpoint),
            Change::Names(written.names),
        ];
        e.logs.install(&changes).unwrap();
    }
}

/// A checkpoint that encodes a log while a batch is added to its index has the batch, or a recovery
/// replays it. A reader that waits is woken between the first entry and the second.
#[test]
fn a_checkpoint_beside_a_batch_keeps_all_of_the_batch() {
    let options = || LogEngineOptions::default().file_bytes(1 << 20);
    for others in [0u64, 1, 3] {
        let fs = disk(1);
        let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
        let log = engine.create("a", LogOptions::default()).unwrap();
        let other = engine.create("b", LogOptions::default()).unwrap();
        log.append(1, b"one", SYNC).unwrap();
        let waker = Arc::new(CheckpointWhenWoken {
            engine: engine.clone(),
            head: head_of(engine.engine()),
            written: AtomicUsize::new(0),
        });
        log.state()
            .lock()
            .add_waker(&Arc::default(), &waker.clone().into());
        let mut batch = LogBatch::new();
        batch.append(&log, 2, b"two").unwrap();
        (1..=others).for_each(|lsn| batch.append(&other, lsn, b"x").unwrap());
        batch.append(&log, 3, b"three").unwrap();
        engine.write(batch, SYNC).unwrap();
        assert_eq!(waker.written.load(SeqCst), 1);
        engine.cut_power();
        drop((log, other, engine, waker));
        let engine = open(&fs.kill()).unwrap();
        let counts = ["a", "b"].map(|name| engine.log(name).unwrap().count());
        assert_eq!(counts, [3, others], "acknowledged records are lost");
        assert_eq!(engine.miscounts(), [""; 0]);
    }
}

/// A batch with falling LSNs, and one with an LSN twice behind them.
#[test]
fn a_batch_of_falling_lsns_is_whole_or_refused() {
    const BATCH: u64 = 50_000;
    let fs = disk(1);
    let options = LogEngineOptions::default().file_bytes(64 << 20);
    let engine = LogEngine::open(&env(&fs), DIR, options).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let falling = |twice: Option<u64>| {
        let mut batch = LogBatch::new();
        let lsns = (1..=BATCH).rev().chain(twice);
        lsns.for_each(|lsn| batch.append(&log, lsn, b"x").unwrap());
        engine.write(batch, SYNC)
    };
    for twice in [1, 77, BATCH] {
        let refused = falling(Some(twice)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert!(
            refused.to_string().contains(&format!("LSN {twice}")),
            "{refused}"
        );
        assert_eq!(log.count(), 0);
    }
    falling(None).unwrap();
    assert_eq!(log.count(), BATCH);
    assert!(falling(None).is_err());
}

/// LSNs at both ends, with iterators in both directions.
#[test]
fn the_ends_of_the_lsns_work() {
    const MAX: u64 = crate::MAX_LSN;
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let other = engine.create("b", LogOptions::default()).unwrap();
    let low: Vec<u64> = (10..160).collect();
    let high: Vec<u64> = (0..150).map(|i| MAX - i).collect();
    let all: BTreeSet<u64> = low.iter().chain(&high).copied().collect();
    for (l, h) in low.iter().zip(&high) {
        log.append(*h, &h.to_le_bytes(), SYNC).unwrap();
        log.append(*l, &l.to_le_bytes(), SYNC).unwrap();
        while engine.engine().env.jobs().step() {}
    }
    other.append(MAX, b"x", SYNC).unwrap();
    assert!(log.append(u64::MAX, b"x", SYNC).is_err());
    assert_eq!(
        log.append(MAX, b"x", SYNC).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    let verify = |log: &Log, all: &BTreeSet<u64>| {
        let found: Vec<u64> = log.iter(0).map(|r| r.unwrap().0).collect();
        assert!(found.iter().eq(all.iter()));
        let mut back: Vec<u64> = log.iter_back(u64::MAX).map(|r| r.unwrap().0).collect();
        back.reverse();
        assert_eq!(back, found);
        for (lsn, read) in found.iter().zip(log.read_many(&found)) {
            assert_eq!(read.unwrap().unwrap()[..], lsn.to_le_bytes());
        }
        assert_eq!(log.gaps(0..=u64::MAX).last(), Some(&(u64::MAX..=u64::MAX)));
        let mut it = log.iter(MAX);
        assert_eq!(it.next().unwrap().unwrap().0, MAX);
        assert!(it.next().is_none());
        assert!(it.next_timeout(Duration::ZERO).unwrap().is_none());
        it.seek(u64::MAX);
        assert!(it.next().is_none());
    };
    verify(&log, &all);
    engine.engine().checkpoint().unwrap();
    verify(&log, &all);
    engine.close().unwrap();
    let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
    let log = engine.log("a").unwrap();
    verify(&log, &all);
    log.remove(100..=MAX - 100).unwrap();
    let all: BTreeSet<u64> = all
        .into_iter()
        .filter(|l| !(100..=MAX - 100).contains(l))
        .collect();
    verify(&log, &all);
    let other = engine.log("b").unwrap();
    other.trim(u64::MAX, SYNC).unwrap();
    assert_eq!((other.count(), other.trimmed()), (0, Some(MAX)));
    assert!(other.append(MAX, b"x", SYNC).is_err());
    engine.engine().cut_power();
    drop((log, other, engine));
    let report = LogEngine::check(&env(&fs), DIR, &options(), &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
    verify(&engine.log("a").unwrap(), &all);
    assert_eq!(engine.log("b").unwrap().trimmed(), Some(MAX));
    let log = engine.log("a").unwrap();
    log.remove(0..=u64::MAX).unwrap();
    assert_eq!(log.count(), 0);
    log.append(MAX, b"x", SYNC).unwrap();
    engine.close().unwrap();
}

/// Records at both ends of the LSNs, and a store that is closed and opened.
#[test]
fn a_log_with_a_wide_gap_survives_a_close() {
    for records in [1u64, 100] {
        let fs = disk(1);
        let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
        let log = engine.create("a", LogOptions::default()).unwrap();
        let other = engine.create("other", LogOptions::default()).unwrap();
        other.append(1, b"x", SYNC).unwrap();
        for i in 0..records {
            log.append(i, b"low", SYNC).unwrap();
        }
        for i in 0..records {
            log.append(u64::MAX - 200 + i, b"high", SYNC).unwrap();
            while engine.engine().env.jobs().step() {}
        }
        let bad = log.iter(0).filter(|r| r.is_err()).count();
        engine.close().unwrap();
        drop((log, other, engine));
        let report = LogEngine::check(&env(&fs), DIR, &options(), &mut |_, _| ()).unwrap();
        assert!(report.damage.is_empty() && bad == 0, "{report:?}");
        let engine = LogEngine::open(&env(&fs), DIR, options()).unwrap();
        let readable = engine
            .log("a")
            .unwrap()
            .iter(0)
            .filter(|r| r.is_ok())
            .count();
        assert_eq!(readable as u64, 2 * records);
    }
}
