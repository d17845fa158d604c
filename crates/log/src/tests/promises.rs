//! Histories against a model, and the promises of single calls.

use super::*;
use crate::LogTicket;
use crate::physical::ReadableFile;
use basalt_env::{MetricSample, MetricValue};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[test]
fn histories_agree_with_a_model() {
    let mut refused = 0;
    for seed in 0..60 * basalt_sim::campaign::scale() {
        let random = Random::from_seed(seed);
        let mut store = Store::open(&disk(seed)).unwrap();
        let mut model = Model::new();
        for step in history(&random, 120) {
            match model.refusal(&step) {
                Some(kind) => {
                    let e = store.run(&step).expect_err("the model refuses it");
                    assert_eq!(e.kind(), kind, "seed {seed}: {step:?}: {e}");
                    refused += 1;
                }
                None => {
                    store
                        .run(&step)
                        .unwrap_or_else(|e| panic!("seed {seed}: {step:?}: {e}"));
                    model.apply(&step);
                }
            }
            if random.one_in(8) {
                check_reads(&store, &model, &random);
            }
        }
        check_reads(&store, &model, &random);
    }
    println!("log histories: refused={refused}");
    assert!(refused > 100);
}

#[test]
fn a_deleted_log_is_gone_and_its_name_is_free() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    log.append(1, b"old", SYNC).unwrap();
    engine.delete("a").unwrap();
    assert_eq!(
        log.append(2, b"x", SYNC).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(log.read(1).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(engine.log("a").err().unwrap().kind(), ErrorKind::NotFound);
    let again = engine.create("a", LogOptions::default()).unwrap();
    again.append(7, b"new", SYNC).unwrap();
    engine.create("b", LogOptions::default()).unwrap();
    engine.close().unwrap();
    let engine = open(&fs).unwrap();
    assert_eq!(engine.list(), ["a", "b"]);
    let a = engine.log("a").unwrap();
    assert_eq!((a.first(), a.count()), (Some(7), 1));
    assert_eq!(a.read(7).unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn wrong_arguments_are_refused_with_their_reason() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 7);
    let missing = LogEngineOptions::default().create_if_missing(false);
    let e = LogEngine::open(&env, DIR, missing).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    for wrong in [
        LogEngineOptions::default().file_bytes(5),
        LogEngineOptions::default().max_space_amp(f64::NAN),
    ] {
        let e = LogEngine::open(&env, DIR, wrong).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let engine = open(&fs).unwrap();
    assert_eq!(open(&fs).err().unwrap().kind(), ErrorKind::Busy);
    for name in ["".to_string(), "x".repeat(1025)] {
        let e = engine.create(&name, LogOptions::default()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let log = engine.create("a", LogOptions::default()).unwrap();
    let e = log.append(u64::MAX, b"", SYNC).unwrap_err();
    assert!(e.to_string().contains("above the largest"), "{e}");
    let other_disk = disk(2);
    let other = open(&other_disk).unwrap();
    let mut batch = LogBatch::new();
    batch.append(&log, 1, b"").unwrap();
    let e = other.write(batch, SYNC).unwrap_err();
    assert!(e.to_string().contains("of another store"), "{e}");
    engine.close().unwrap();
    assert_eq!(
        log.append(1, b"", SYNC).unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(log.read(1).unwrap_err().kind(), ErrorKind::Closed);
}

/// A batch with one wrong append appends nothing.
#[test]
fn a_refused_batch_changes_nothing() {
    let engine = open(&disk(1)).unwrap();
    let a = engine.create("a", LogOptions::default()).unwrap();
    let b = engine.create("b", LogOptions::default()).unwrap();
    b.append(5, b"there", UNSYNCED).unwrap();
    let mut batch = LogBatch::new();
    batch.append(&a, 1, b"one").unwrap();
    batch.append(&b, 5, b"again").unwrap();
    let e = engine.write(batch, SYNC).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert_eq!((a.count(), b.count()), (0, 1));
    // The refused LSN of the other log is free.
    a.append(1, b"later", SYNC).unwrap();
}

#[test]
fn submitted_batches_are_committed_in_their_order_without_a_waiter() {
    let fs = disk(1);
    let env = Env::for_tests(fs, 7);
    let engine = LogEngine::open(&env, DIR, LogEngineOptions::default()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let done: Arc<basalt_env::sync::Mutex<Vec<u64>>> = Arc::default();
    for lsn in 1..=50 {
        let mut batch = LogBatch::new();
        batch.append(&log, lsn, b"data").unwrap();
        let done = done.clone();
        let ticket = engine.submit(batch, SYNC).unwrap();
        ticket.on_complete(move |result| {
            result.unwrap();
            done.lock().push(lsn);
        });
    }
    assert_eq!(log.count(), 0);
    let syncs = env.fs().stats().syncs;
    while env.jobs().step() {}
    assert!(done.lock().iter().copied().eq(1..=50));
    assert_eq!(log.count(), 50);
    let syncs = env.fs().stats().syncs - syncs;
    assert!(
        syncs < 6,
        "{syncs} syncs for 50 batches that were queued together"
    );
}

/// Counts how often a task is woken.
#[derive(Default)]
struct CountingWaker(std::sync::atomic::AtomicU64);

impl std::task::Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl CountingWaker {
    fn woken(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[test]
fn a_ticket_is_a_future_that_wakes_its_last_task_once() {
    let env = Env::for_tests(disk(1), 7);
    let engine = LogEngine::open(&env, DIR, LogEngineOptions::default()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let submit = |lsn: u64| {
        let mut batch = LogBatch::new();
        batch.append(&log, lsn, b"data").unwrap();
        engine.submit(batch, SYNC).unwrap()
    };
    let poll = |ticket: &mut LogTicket, waker: &Arc<CountingWaker>| {
        let waker = Waker::from(waker.clone());
        Pin::new(ticket).poll(&mut Context::from_waker(&waker))
    };
    let [former, task] = [(); 2].map(|()| Arc::new(CountingWaker::default()));
    let mut ticket = submit(1);
    assert!(poll(&mut ticket, &former).is_pending());
    assert!(poll(&mut ticket, &task).is_pending());
    assert!(poll(&mut ticket, &task).is_pending());
    let mut refused = submit(1);
    assert!(poll(&mut refused, &task).is_pending());
    // A ticket that was dropped wakes its task all the same.
    let mut dropped = submit(2);
    assert!(poll(&mut dropped, &task).is_pending());
    drop(dropped);
    assert_eq!((former.woken(), task.woken()), (0, 0));
    while env.jobs().step() {}
    assert_eq!((former.woken(), task.woken()), (0, 3));
    for _ in 0..2 {
        assert!(matches!(poll(&mut ticket, &task), Poll::Ready(Ok(()))));
    }
    let Poll::Ready(Err(e)) = poll(&mut refused, &task) else {
        panic!("the LSN is taken");
    };
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert_eq!(log.count(), 2);

    // A close answers every ticket.
    let mut last = submit(3);
    assert!(poll(&mut last, &task).is_pending());
    engine.close().unwrap();
    assert_eq!(task.woken(), 4);
    assert!(poll(&mut last, &task).is_ready());
    assert!(matches!(
        poll(&mut submit(4), &task),
        Poll::Ready(Err(e)) if e.kind() == ErrorKind::Closed
    ));
}

#[test]
fn threads_append_to_their_logs_at_the_same_time() {
    let fs = disk(1);
    let env = basalt_env::EnvBuilder::new(fs.clone()).build();
    let engine = LogEngine::open(&env, DIR, LogEngineOptions::default()).unwrap();
    let logs: Vec<Log> = (0..8)
        .map(|i| {
            engine
                .create(&format!("{i}"), LogOptions::default())
                .unwrap()
        })
        .collect();
    basalt_env::thread::scope(|scope| {
        for (i, log) in logs.iter().enumerate() {
            scope.spawn(move || {
                for lsn in 1..=300u64 {
                    let data = format!("{i}/{lsn}");
                    log.append(lsn, data.as_bytes(), &WriteOptions::synced(lsn % 50 == 0))
                        .unwrap();
                    if lsn % 40 == 0 {
                        log.trim(lsn - 20, UNSYNCED).unwrap();
                    }
                    assert_eq!(log.read(lsn).unwrap().unwrap(), data.as_bytes());
                }
            });
        }
    });
    for log in &logs {
        assert_eq!(
            (log.first(), log.last(), log.count()),
            (Some(261), Some(300), 40)
        );
    }
    engine.close().unwrap();
}

/// One log is never trimmed, and another one out of order, beside a log that is trimmed closely.
/// The bound on space holds, and the live records are read.
#[test]
fn a_log_that_is_never_trimmed_pins_no_space() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let engine = LogEngine::open(&env, DIR, options().file_bytes(32 << 10)).unwrap();
    let log = |name: &str| engine.create(name, LogOptions::default()).unwrap();
    let (fast, stuck, holes) = (log("fast"), log("stuck"), log("holes"));
    for lsn in 1..=6000u64 {
        fast.append(lsn, &[1; 400], UNSYNCED).unwrap();
        if lsn % 10 == 0 {
            stuck.append(lsn, &[2; 400], UNSYNCED).unwrap();
        }
        if lsn % 5 == 0 {
            holes.append(lsn, &[3; 400], UNSYNCED).unwrap();
        }
        if lsn % 50 == 0 {
            fast.trim(lsn.saturating_sub(100), UNSYNCED).unwrap();
            holes.remove(lsn - 25..=lsn - 6).unwrap();
            while env.jobs().step() {}
            let stats = engine.stats();
            // The files that no checkpoint is younger than are not collected yet.
            let young = 6 * (32 << 10);
            let bound = 1.3 * stats.ended_live_bytes as f64 + f64::from(young);
            assert!(stats.ended_bytes as f64 <= bound, "at LSN {lsn}: {stats:?}");
        }
    }
    assert_eq!((stuck.count(), holes.count()), (600, 1200 - 120 * 4));
    for (log, byte) in [(&stuck, 2), (&holes, 3)] {
        let right = |item: Result<(u64, _)>| item.unwrap().1 == vec![byte; 400];
        assert!(log.iter(0).all(right));
    }
    // Full files of moved records end, so that a collection can free their garbage in turn.
    let files = engine.engine().logs.all();
    let moved: Vec<bool> = (files.iter().filter(|file| file.role == Role::Moved))
        .map(|file| file.end().is_some())
        .collect();
    let unended = moved.iter().filter(|ended| !**ended).count();
    assert!(moved.len() > 2 && unended <= 1, "ended: {moved:?}");
    let stats = engine.stats();
    assert!(
        stats.index_pages > 2 && stats.space_amp() < 1.6,
        "{stats:?}"
    );
    engine.close().unwrap();
    let again = open(&fs).unwrap();
    assert_eq!(again.log("stuck").unwrap().count(), 600);
    assert_eq!(again.stats().live_bytes, stats.live_bytes);
}

#[test]
fn garbage_in_a_file_that_recovery_ended_is_collected() {
    let fs = disk(9);
    let engine = open(&fs).unwrap();
    let log = |name| engine.create(name, LogOptions::default()).unwrap();
    let (trimmed, kept) = (log("trimmed"), log("kept"));
    for lsn in 0..7 {
        trimmed.append(lsn, &[1; 500], UNSYNCED).unwrap();
        kept.append(lsn, &[2; 50], SYNC).unwrap();
    }
    // The checkpoint has only the live records, so a replay counts no others.
    trimmed.trim(7, SYNC).unwrap();
    engine.engine().checkpoint().unwrap();
    engine.cut_power();
    drop((trimmed, kept, engine));
    let engine = open(&fs.kill()).unwrap();
    engine.engine().checkpoint().unwrap();
    engine.engine().collect_garbage().unwrap();
    let files = engine.engine().logs.all();
    let is_old = |file: &ReadableFile| file.role == Role::Data && file.end().is_some();
    let old: Vec<u64> = (files.iter().filter(|f| is_old(f)))
        .map(|f| f.number)
        .collect();
    assert!(old.is_empty(), "ended files {old:?} of the datalog remain");
    let kept = engine.log("kept").unwrap();
    for lsn in 0..7 {
        assert_eq!(kept.read(lsn).unwrap().as_deref(), Some(&[2; 50][..]));
    }
}

#[test]
fn metrics_count_what_was_done() {
    let fs = disk(1);
    let env = Env::for_tests(fs, 1);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=200 {
        log.append(lsn, &[1; 100], &WriteOptions::synced(lsn % 50 == 0))
            .unwrap();
        while env.jobs().step() {}
    }
    log.trim(150, UNSYNCED).unwrap();
    while env.jobs().step() {}
    let value = |name: &str| {
        let all = env.metrics().snapshot();
        let found = all.iter().find(|s| s.name.ends_with(name));
        match found.map(|s| s.value.clone()) {
            Some(MetricValue::Counter(n)) => n,
            Some(MetricValue::Gauge(n)) => n as u64,
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(value("log_records_total"), 200);
    assert_eq!(value("log_user_bytes_total"), 20_000);
    assert_eq!(value("log_batches_total"), 200);
    assert_eq!(value("log_records"), 50);
    assert!(value("log_data_bytes_total") >= 20_000 + 200 * 48);
    for name in [
        "log_groups_total",
        "log_operations_total",
        "log_syncs_total",
        "log_meta_bytes_total",
        "log_pages_total",
        "log_checkpoints_total",
        "log_checkpoint_bytes_total",
        "log_removed_files_total",
        "log_data_files",
        "log_index_bytes",
    ] {
        assert!(value(name) > 0, "{name} is 0");
    }
    engine.close().unwrap();
    let left = env.metrics().snapshot();
    let of_logs = |s: &&MetricSample| s.name.contains("log_records");
    assert!(
        left.iter().find(of_logs).is_none(),
        "a closed store has no metrics"
    );
}

/// An iteration reads many records with one read of the device, from pages and from memory.
#[test]
fn an_iteration_reads_ahead() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let engine = LogEngine::open(&env, DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let other = engine.create("b", LogOptions::default()).unwrap();
    let data = |lsn: u64| vec![lsn as u8; 100 + lsn as usize % 50];
    for lsn in 1..=2000u64 {
        log.append(lsn, &data(lsn), UNSYNCED).unwrap();
        if lsn % 4 == 0 {
            other.append(lsn, &data(lsn), UNSYNCED).unwrap();
        }
        while env.jobs().step() {}
    }
    assert!(engine.stats().index_pages > 4);
    let reads = || env.fs().stats().reads;
    for forward in [true, false] {
        let before = reads();
        let iter = match forward {
            true => log.iter(0),
            false => log.iter_back(u64::MAX),
        };
        let mut n = 0;
        for (item, lsn) in iter.zip(1..) {
            let lsn = if forward { lsn } else { 2001 - lsn };
            assert_eq!(item.unwrap(), (lsn, data(lsn).into()));
            n += 1;
        }
        let reads = reads() - before;
        assert_eq!(n, 2000);
        // In tests a page has some thirty entries, and is read once.
        assert!(reads < 200, "{reads} reads for 2,000 records");
    }
}

/// How a program that has a store open for one record ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It lets the jobs run, and closes the store.
    Late,
    /// It closes the store at once.
    Early,
    /// It lets the jobs run, and is killed.
    Killed,
}

/// Opens a store for each record, in turn for two logs, and returns the disk.
fn many_opens(end: End, then: impl Fn(u64, &Arc<SimFs>)) -> Arc<SimFs> {
    let fs = disk(1);
    for lsn in 1..=200u64 {
        let (env, engine, logs) = open_small(&fs);
        let log = &logs[usize::from(lsn.is_multiple_of(2))];
        log.append(lsn, &lsn.to_be_bytes(), SYNC).unwrap();
        if end != End::Early {
            while env.jobs().step() {}
        }
        match end {
            End::Killed => engine.engine().cut_power(),
            End::Late | End::Early => engine.close().unwrap(),
        }
        drop((logs, engine));
        then(lsn, &fs);
    }
    fs
}

fn open_small(fs: &Arc<SimFs>) -> (Env, LogEngine, [Log; 2]) {
    let env = super::env(fs);
    let options = options().file_bytes(64 << 10);
    let engine = LogEngine::open(&env, DIR, options).unwrap();
    let logs = ["a", "b"].map(|name| {
        let log = engine.open_or_create(name, LogOptions::default());
        log.unwrap()
    });
    (env, engine, logs)
}

/// Every open begins files of its own. A store that is opened for each record does not get a file
/// for each of them, and keeps every record.
#[test]
fn many_small_files_become_few() {
    for end in [End::Late, End::Early, End::Killed] {
        let fs = many_opens(end, |_, _| ());
        let (_, engine, logs) = open_small(&fs);
        let stats = engine.stats();
        assert!(stats.data_files < 12, "{end:?}: {stats:?}");
        assert!(stats.meta_files < 12, "{end:?}: {stats:?}");
        for (i, log) in logs.iter().enumerate() {
            let found: Vec<(u64, Vec<u8>)> = log
                .iter(0)
                .map(|item| item.map(|(lsn, data)| (lsn, data.to_vec())).unwrap())
                .collect();
            let had: Vec<(u64, Vec<u8>)> = (1..=200u64)
                .filter(|lsn| usize::from(lsn.is_multiple_of(2)) == i)
                .map(|lsn| (lsn, lsn.to_be_bytes().to_vec()))
                .collect();
            assert_eq!(found, had, "{end:?}");
        }
    }
}

/// A small file with a damaged record stays, and the others are merged.
#[test]
fn a_damaged_small_file_keeps_no_other_from_a_merge() {
    let fs = many_opens(End::Late, |lsn, fs| {
        if lsn == 10 {
            // The file of this record is small until it is merged.
            let (env, engine, logs) = open_small(fs);
            while env.jobs().step() {}
            let at = logs[1].location(lsn).unwrap();
            let path = engine.engine().logs.get(at.file).unwrap().path.clone();
            engine.close().unwrap();
            let end = at.offset + u64::from(at.len);
            fs.flip_bit(&path, end - 1, 3).unwrap();
        }
    });
    let (_, engine, logs) = open_small(&fs);
    let stats = engine.stats();
    assert!(stats.data_files < 13, "{stats:?}");
    assert!(logs[1].read(10).unwrap_err().is_corruption());
    let read = |lsn: u64| logs[usize::from(lsn.is_multiple_of(2))].read(lsn).unwrap();
    let others = (1..=200u64).filter(|lsn| *lsn != 10);
    assert!(others.into_iter().all(|lsn| read(lsn).is_some()));
}

/// Records that are near each other cost one device read, and an error is that of one record.
#[test]
fn many_records_are_read_at_once() {
    let fs = disk(1);
    let env = super::env(&fs);
    let engine = LogEngine::open(&env, DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=300u64 {
        log.append(lsn, &[lsn as u8; 1000], UNSYNCED).unwrap();
    }
    engine.sync().unwrap();
    let lsns: Vec<u64> = (291..=300).chain([7, 7, 500, 100]).collect();
    let read = |lsns: &[u64]| -> Vec<Option<Vec<u8>>> {
        let found = log.read_many(lsns).into_iter();
        found
            .map(|data| data.unwrap().map(|data| data.to_vec()))
            .collect()
    };
    let data = |lsn: &u64| (*lsn <= 300).then(|| vec![*lsn as u8; 1000]);
    let had: Vec<_> = lsns.iter().map(data).collect();
    // The first call brings pages into the cache.
    assert_eq!(read(&lsns), had);
    let reads = || env.fs().stats().reads;
    let cost = |lsns: &[u64]| {
        let before = reads();
        let found = read(lsns);
        (found, reads() - before)
    };
    // The disk counts a batch, and each read in it.
    assert_eq!(cost(&[100]).1, 2);
    assert_eq!(cost(&lsns), (had, 4));
    assert_eq!(log.read_many(&[]).len(), 0);

    let at = log.location(295).unwrap();
    let path = format!("{DIR}/{:06}.data", at.file);
    fs.flip_bit(Path::new(&path), at.offset + 500, 1).unwrap();
    for (lsn, found) in lsns.iter().zip(log.read_many(&lsns)) {
        match found {
            Ok(found) => assert_eq!(found.as_deref(), data(lsn).as_deref(), "LSN {lsn}"),
            Err(e) => {
                assert_eq!(*lsn, 295, "{e}");
                assert!(e.to_string().contains("LSN 295 of log \"a\""), "{e}");
            }
        }
    }
    assert!(log.read_many(&[295])[0].is_err());
    engine.delete("a").unwrap();
    let e = log.read_many(&[1, 2]).remove(1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    engine.close().unwrap();
    let e = log.read_many(&[1]).remove(0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed);
}

/// A job ends a file some time after the writer has left it. If trims have emptied the file by
/// then, it is removed when it ends, and not only after the next checkpoint.
#[test]
fn a_file_that_is_emptied_before_it_ends_is_removed() {
    let fs = disk(1);
    let env = super::env(&fs);
    let engine = LogEngine::open(&env, DIR, options().file_bytes(64 << 10)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let file = |lsn| log.location(lsn).unwrap().file;
    let mut lsn = 1;
    log.append(lsn, &[1; 1000], UNSYNCED).unwrap();
    let first = file(1);
    while file(lsn) == first {
        // No checkpoint is due at the end of the file.
        while env.jobs().step() {}
        lsn += 1;
        log.append(lsn, &[1; 1000], UNSYNCED).unwrap();
    }
    let left = engine.engine().logs.get(first).unwrap();
    assert!(left.end().is_none(), "no job has run");
    log.trim(lsn - 1, SYNC).unwrap();
    let checkpoints = engine.engine().logs.counters.checkpoints.get();
    while env.jobs().step() {}
    assert_eq!(engine.engine().logs.counters.checkpoints.get(), checkpoints);
    assert!(left.end().is_some());
    assert!(engine.engine().logs.get(first).is_none());
}

/// If a log was deleted after the newest checkpoint, the next open counts its records as garbage.
#[test]
fn records_of_a_deleted_log_are_garbage_after_an_open() {
    let fs = disk(1);
    let store = Store::open(&fs).unwrap();
    for lsn in 1..=100 {
        store.logs[0].append(lsn, &[1; 300], UNSYNCED).unwrap();
    }
    store.engine.engine().checkpoint().unwrap();
    store.engine.delete(&log_name(0)).unwrap();
    store.engine.engine().cut_power();
    let fs = fs.kill();
    let engine = open(&fs).unwrap();
    let live: Vec<_> = engine.engine().miscounted();
    let files = live.iter().map(|(file, indexed)| (&file.path, *indexed));
    assert_eq!(files.collect::<Vec<_>>(), []);
    engine.close().unwrap();
}
