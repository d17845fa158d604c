//! Events and metrics: what listeners receive, that they cannot block or break the store, and that
//! the numbers add up.

use super::prelude::*;
use crate::listener::{
    BackgroundErrorReason, CompactionInfo, CompactionReason, Event, EventListener, StallCause,
};
use crate::options::WriteOptions;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};

/// The errors of background jobs, in their order.
#[derive(Default)]
pub(super) struct Errors(pub Mutex<Vec<Error>>);

impl EventListener for Errors {
    fn on_event(&self, event: &Event) {
        if let Event::BackgroundError { error, .. } = event {
            self.0.lock().push(error.clone());
        }
    }
}

/// A listener that keeps the events, and calls the store once it has a handle.
#[derive(Default)]
struct EventRecorder {
    seen: Mutex<Vec<Event>>,
    db: Mutex<Option<Db>>,
    panics: bool,
}

impl EventListener for EventRecorder {
    fn on_event(&self, event: &Event) {
        self.seen.lock().push(event.clone());
        assert!(!self.panics, "a listener's own mistake");
        let db = self.db.lock().clone();
        if let Some(db) = db {
            let family = db.default_family();
            db.get(&family, b"key0001", &ReadOptions::default())
                .unwrap();
            db.put(&family, b"told", b"yes", &WriteOptions::SYNC)
                .unwrap();
            let _ = db.stats();
        }
    }
}

fn small(listeners: Vec<Arc<dyn EventListener>>) -> Options {
    Options {
        write_buffer_bytes: 8 << 10,
        default_family: FamilyOptions {
            table_bytes: 4 << 10,
            base_level_bytes: 16 << 10,
            level_multiplier: 4,
            ..FamilyOptions::default()
        },
        listeners,
        ..Options::default()
    }
}

fn fill(db: &Db, from: u32, n: u32) {
    let family = db.default_family();
    for i in from..from + n {
        let key = format!("key{:04}", i * 7919 % 1000);
        db.put(
            &family,
            key.as_bytes(),
            &[i as u8; 100],
            &WriteOptions::UNSYNCED,
        )
        .unwrap();
    }
}

/// The tree according to the events, compared with the tree. Every table that was made is there or
/// was an input of a later merge, every begin has its end, and the bytes by level are those of
/// `stats`.
#[test]
fn events_report_every_change_of_the_tree() {
    let recorder = Arc::new(EventRecorder::default());
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", small(vec![recorder.clone()])).unwrap();
    fill(&db, 0, 3000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.compact_range(&db.default_family(), None, None).unwrap();
    db.wait_for_listeners();
    let stats = db.stats();
    let seen = std::mem::take(&mut *recorder.seen.lock());
    let mut tables: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    let mut created = BTreeSet::new();
    let mut open: BTreeMap<u64, CompactionInfo> = BTreeMap::new();
    let (mut sealed, mut flushing, mut flushed) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut written = [0u64; 7];
    let mut reasons = BTreeSet::new();
    for event in &seen {
        match event {
            Event::MemtableSealed {
                memtable_set,
                bytes,
            } => {
                assert!(*bytes > 0 && sealed.insert(*memtable_set));
            }
            Event::FlushBegin { memtable_set, .. } => {
                assert!(sealed.remove(memtable_set) && flushing.insert(*memtable_set));
            }
            Event::FlushEnd {
                memtable_set,
                tables: made,
                error,
                ..
            } => {
                assert!(error.is_none() && flushing.remove(memtable_set));
                flushed += 1;
                for t in made {
                    assert!(created.contains(&t.number), "created before the end");
                    written[0] += t.bytes;
                    tables.insert(t.number, (t.level, t.bytes));
                }
            }
            Event::TableCreated(t) => assert!(created.insert(t.number)),
            Event::CompactionBegin(c) => {
                reasons.insert(c.reason);
                let bytes: u64 = c.inputs.iter().map(|(_, n)| tables[n].1).sum();
                assert_eq!(bytes, c.input_bytes);
                assert!(open.insert(c.number, c.clone()).is_none());
            }
            Event::CompactionEnd {
                compaction,
                outputs,
                bytes_written,
                error,
                ..
            } => {
                assert!(error.is_none());
                assert_eq!(open.remove(&compaction.number).as_ref(), Some(compaction));
                for (level, n) in &compaction.inputs {
                    assert_eq!(tables.remove(n).map(|t| t.0), Some(*level));
                }
                for t in outputs {
                    assert_eq!(t.level, compaction.output_level);
                    tables.insert(t.number, (t.level, t.bytes));
                }
                written[compaction.output_level] += bytes_written;
                if compaction.trivial_move {
                    assert_eq!(*bytes_written, 0);
                } else {
                    assert_eq!(*bytes_written, outputs.iter().map(|t| t.bytes).sum::<u64>());
                }
            }
            Event::TableDeleted { number, path } => {
                assert!(created.contains(number) && !env.fs().exists(path).unwrap());
                assert!(
                    !tables.contains_key(number),
                    "deleted and still in the tree"
                );
            }
            Event::StallBegin { .. } | Event::StallEnd { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(sealed.is_empty() && flushing.is_empty() && open.is_empty());
    assert!(
        flushed > 10 && reasons.contains(&CompactionReason::Manual) && reasons.len() > 1,
        "{reasons:?}"
    );
    assert!(seen.iter().any(|e| matches!(e, Event::TableDeleted { .. })));
    assert_eq!(tables.len() as u64, stats.table_files);
    let family = &stats.families[0];
    for (level, l) in family.levels.iter().enumerate() {
        let here = tables.values().filter(|t| t.0 == level);
        assert_eq!(here.clone().count() as u64, l.tables, "level {level}");
        assert_eq!(here.map(|t| t.1).sum::<u64>(), l.bytes, "level {level}");
        assert_eq!(written[level], l.bytes_written, "level {level}");
    }
    let by_levels: u64 = family.levels.iter().map(|l| l.bytes_written).sum();
    assert_eq!(
        by_levels,
        stats.flush_bytes_written + stats.compaction_bytes_written
    );
    let read: u64 = family.levels.iter().map(|l| l.bytes_read).sum();
    assert_eq!(read, stats.compaction_bytes_read);
    assert_eq!(family.levels[0].write_amp(), Some(1.0));
    assert!(family.levels.iter().any(|l| l.write_amp() > Some(1.2)));
    assert_eq!((stats.events_lost, stats.listeners_lost), (0, 0));
    db.close().unwrap();
}

/// A listener reads and writes the store that calls it, with threads and stepped, while writers are
/// held back for memtables.
#[test]
fn a_listener_may_use_the_store() {
    for threads in [false, true] {
        let recorder = Arc::new(EventRecorder::default());
        let fs = SimFs::new(SimOptions::default());
        let env = match threads {
            true => Env::builder(fs).threads(2).build(),
            false => Env::for_tests(fs, 2),
        };
        let db = Db::open(&env, "db", small(vec![recorder.clone()])).unwrap();
        fill(&db, 0, 1000);
        *recorder.db.lock() = Some(db.clone());
        fill(&db, 1000, 500);
        // Moves on to the first event after the listener got the store.
        let told = || {
            db.get(&db.default_family(), b"told", &ReadOptions::default())
                .unwrap()
        };
        db.flush().unwrap();
        db.wait_for_listeners();
        assert_eq!(told().as_deref(), Some(&b"yes"[..]), "threads {threads}");
        *recorder.db.lock() = None;
        db.wait_for_listeners();
        db.close().unwrap();
    }
}

/// A listener panics once and is not called again. The other listener is, and the store continues.
#[test]
fn a_listener_that_panics_is_removed() {
    let bad = Arc::new(EventRecorder {
        panics: true,
        ..EventRecorder::default()
    });
    let good = Arc::new(EventRecorder::default());
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 3);
    let db = Db::open(&env, "db", small(vec![bad.clone(), good.clone()])).unwrap();
    fill(&db, 0, 500);
    db.flush().unwrap();
    db.wait_for_listeners();
    assert_eq!(bad.seen.lock().len(), 1);
    assert!(good.seen.lock().len() > 10);
    assert_eq!(db.stats().listeners_lost, 1);
    fill(&db, 500, 10);
    db.close().unwrap();
    assert_eq!(Arc::strong_count(&bad), 1, "the store holds it no more");
    assert_eq!(Arc::strong_count(&good), 1);
}

#[derive(Default)]
struct BlockingListener {
    open: Mutex<bool>,
    opened: Condvar,
    seen: Mutex<u64>,
}

impl EventListener for BlockingListener {
    fn on_event(&self, _: &Event) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        *self.seen.lock() += 1;
    }
}

/// A listener that never returns blocks no other thread: writes, flushes, compactions, stats and
/// the close continue. Its events are delivered when it returns.
#[test]
fn a_listener_that_blocks_holds_up_no_other_thread() {
    let stuck = Arc::new(BlockingListener::default());
    let fs = SimFs::new(SimOptions::default());
    let env = Env::builder(fs).threads(2).build();
    let db = Db::open(&env, "db", small(vec![stuck.clone()])).unwrap();
    fill(&db, 0, 2000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    db.compact_range(&db.default_family(), None, None).unwrap();
    assert!(db.stats().table_files > 0);
    assert_eq!(*stuck.seen.lock(), 0);
    db.close().unwrap();
    let db = Db::open(&env, "db", small(Vec::new())).unwrap();
    assert_eq!(*stuck.seen.lock(), 0);
    *stuck.open.lock() = true;
    stuck.opened.notify_all();
    while Arc::strong_count(&stuck) > 1 {
        std::thread::yield_now();
    }
    assert!(*stuck.seen.lock() > 50);
    db.close().unwrap();
}

/// Events that a listener is too slow for are dropped from the front of the queue and counted. The
/// others are delivered in order.
#[test]
fn the_oldest_events_of_a_full_queue_are_dropped_and_counted() {
    let recorder = Arc::new(EventRecorder::default());
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let events = events::Events::new(vec![recorder.clone()]);
    let event = |memtable_set| Event::MemtableSealed {
        memtable_set,
        bytes: 1,
    };
    let told = |from: u64| {
        let seen = std::mem::take(&mut *recorder.seen.lock());
        let numbers: Vec<u64> = (seen.iter())
            .map(|e| match e {
                Event::MemtableSealed { memtable_set, .. } => *memtable_set,
                other => panic!("{other:?}"),
            })
            .collect();
        let want: Vec<u64> = (from..from + numbers.len() as u64).collect();
        assert_eq!(numbers, want, "in order, none twice");
        numbers.len()
    };
    let most = crate::listener::QUEUED_EVENTS as u64;
    for n in 0..most + 5 {
        events.notify(env.jobs(), || event(n));
    }
    assert!(
        recorder.seen.lock().is_empty(),
        "the waiting thread delivers the events"
    );
    events.wait();
    assert_eq!(events.lost(), (5, 0));
    assert_eq!(told(5) as u64, most);
    // The queue has space again, and no more events are lost.
    for n in 0..100 {
        events.notify(env.jobs(), || event(n));
    }
    events.wait();
    assert_eq!((told(0), events.lost()), (100, (5, 0)));
    events.close();
    events.notify(env.jobs(), || panic!("no listener is left"));
    assert_eq!(Arc::strong_count(&recorder), 1);
}

/// If no thread could be started for events, they stayed in the queue: a wait for listeners came
/// back without their delivery, and a close dropped the listeners.
#[test]
fn events_without_a_thread_are_delivered_by_a_wait_and_by_a_close() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let event = || Event::MemtableSealed {
        memtable_set: 1,
        bytes: 1,
    };
    for waits in [true, false] {
        let recorder = Arc::new(EventRecorder::default());
        let events = events::Events::new(vec![recorder.clone()]);
        // Stepped jobs start no thread.
        events.notify(env.jobs(), event);
        events.notify(env.jobs(), event);
        if waits {
            events.wait();
            assert_eq!(recorder.seen.lock().len(), 2);
            events.notify(env.jobs(), event);
        }
        events.close();
        let delivered = if waits { 3 } else { 2 };
        assert_eq!(recorder.seen.lock().len(), delivered);
        assert_eq!(Arc::strong_count(&recorder), 1, "the listener is dropped");
    }
}

/// A failing flush is reported as its end and as a background error, and the store recovers by
/// itself.
#[test]
fn background_errors_and_stalls_are_reported() {
    let recorder = Arc::new(EventRecorder::default());
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 4);
    let env = Env::for_tests(faults.clone(), 4);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let db = Db::open(&env, "db", small(vec![recorder.clone()])).unwrap();
    fill(&db, 0, 20);
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: ".tbl".into(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    db.flush().unwrap_err();
    clock.advance(std::time::Duration::from_secs(2));
    // There are three sealed memtables and a full one, so writers wait until a flush has run.
    fill(&db, 20, 1000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    fill(&db, 0, 2);
    db.wait_for_listeners();
    let stats = db.stats();
    let seen = recorder.seen.lock();
    let failed = |e: &&Event| matches!(e, Event::FlushEnd { error: Some(_), tables, .. } if tables.is_empty());
    assert_eq!(seen.iter().filter(failed).count(), 1);
    let error = |e: &&Event| {
        matches!(
            e,
            Event::BackgroundError {
                during: BackgroundErrorReason::Flush,
                ..
            }
        )
    };
    assert_eq!(seen.iter().filter(error).count(), 1);
    let mut stalled: Option<StallCause> = None;
    let mut times: BTreeMap<StallCause, u64> = BTreeMap::new();
    for e in seen.iter() {
        match e {
            Event::StallBegin { cause } => {
                assert!(stalled.replace(*cause).is_none(), "one at a time");
                *times.entry(*cause).or_default() += 1;
            }
            Event::StallEnd { cause, .. } => assert_eq!(stalled.take(), Some(*cause)),
            _ => {}
        }
    }
    assert_eq!(stalled, None, "a write got through");
    assert!(!times.is_empty());
    for s in &stats.stalls {
        assert_eq!(s.count, times.get(&s.cause).copied().unwrap_or(0), "{s:?}");
    }
    drop(seen);
    db.close().unwrap();
}

/// A flush that has written its table and then fails has made no table. The next flush reports the
/// table that the tree has.
#[test]
fn a_failed_flush_reports_no_new_table() {
    let recorder = Arc::new(EventRecorder::default());
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 4);
    let env = Env::for_tests(faults.clone(), 4);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let db = Db::open(&env, "db", small(vec![recorder.clone()])).unwrap();
    fill(&db, 0, 20);
    faults.inject(Fault {
        op: Some(OpKind::SyncMetadata),
        path: String::new(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    db.flush().unwrap_err();
    db.wait_for_listeners();
    let told = || {
        let seen = std::mem::take(&mut *recorder.seen.lock());
        let created = seen.iter().filter(|e| matches!(e, Event::TableCreated(_)));
        let ended = seen.iter().find_map(|e| match e {
            Event::FlushEnd { tables, error, .. } => Some((tables.len(), error.is_some())),
            _ => None,
        });
        (created.count(), ended)
    };
    assert_eq!(told(), (0, Some((0, true))));
    clock.advance(std::time::Duration::from_secs(2));
    db.flush().unwrap();
    db.wait_for_listeners();
    assert_eq!(told(), (1, Some((1, false))));
    assert_eq!(db.stats().table_files, 1);
    db.close().unwrap();
}

/// The approximate sizes of adjoining ranges add up to the whole, and each error is within the
/// documented bound.
#[test]
fn approximate_sizes_keep_their_bound() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 5);
    let mut options = small(Vec::new());
    options.default_family.block_bytes = 512;
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    let key = |i: u32| format!("key{i:05}").into_bytes();
    for i in 0..4000 {
        db.put(&f, &key(i), &[1; 90], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    for i in 0..20 {
        db.put(&f, &key(i * 10), &[2; 90], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    let whole = db.approximate_sizes(&f, &[(None, None)]).unwrap()[0];
    let stats = db.stats();
    let bytes: u64 = stats.families[0].levels.iter().map(|l| l.bytes).sum();
    assert_eq!(whole.table_bytes, bytes);
    assert_eq!(
        (whole.memtable_entries, whole.memtable_bytes),
        (20, 20 * (8 + 8 + 90))
    );
    let cuts: Vec<Vec<u8>> = (0..=40).map(|i| key(i * 100)).collect();
    let ranges: Vec<_> = cuts
        .windows(2)
        .map(|w| (Some(&w[0][..]), Some(&w[1][..])))
        .collect();
    let sizes = db.approximate_sizes(&f, &ranges).unwrap();
    let sum: u64 = sizes.iter().map(|s| s.table_bytes).sum();
    assert_eq!(sum, bytes, "adjoining ranges add up");
    // 100 entries take about 100 bytes each. A table of 4 KiB holds about 40, with index and filter
    // below a fifth of it.
    let (least, most) = (100 * 98 - 2 * 600, 100 * 125 + 2 * 600 + 2 * 900);
    for s in &sizes {
        assert!((least..=most).contains(&s.table_bytes), "{s:?}");
    }
    // An empty range, and a range whose end is before its begin.
    let none = db
        .approximate_sizes(&f, &[(Some(b"x"), None), (Some(b"k2"), Some(b"k1"))])
        .unwrap();
    assert_eq!(none, [RangeSize::default(); 2]);
    let g = db.create_family("g", FamilyOptions::default()).unwrap();
    db.drop_family(&g).unwrap();
    let gone = db.approximate_sizes(&g, &ranges).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    db.close().unwrap();
}

/// Every level, stall cause and budget is among the metrics while the store is open, under the
/// names in `stats`.
#[test]
fn metrics_name_every_level_cause_and_budget() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 6);
    let mut options = small(Vec::new());
    options.name = Some("s".into());
    let db = Db::open(&env, "db", options).unwrap();
    fill(&db, 0, 2000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let (stats, text) = (db.stats(), env.metrics().prometheus());
    for s in &stats.stalls {
        for name in ["stalls_total", "stall_us_total"] {
            let line = format!("basalt_{name}{{cause=\"{}\",store=\"s\"}} ", s.cause);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    let budgets: Vec<_> = stats.budgets.iter().map(|b| b.name).collect();
    assert_eq!(
        budgets,
        [
            "memory_bytes",
            "cache_bytes",
            "open_files",
            "background_threads",
            "background_io_bytes_per_s",
            "write_buffer_bytes",
            "sealed_memtables"
        ]
    );
    for b in &stats.budgets {
        let bare = format!("basalt_budget_limit{{budget=\"{}\"}} {}\n", b.name, b.limit);
        let own = format!(
            "basalt_budget_limit{{budget=\"{}\",store=\"s\"}} {}\n",
            b.name, b.limit
        );
        assert!(
            text.contains(&bare) != text.contains(&own),
            "{bare} in\n{text}"
        );
    }
    for (n, l) in stats.families[0].levels.iter().enumerate() {
        let labels = format!("{{family=\"default\",level=\"{n}\",store=\"s\"}}");
        for (name, value) in [
            ("level_bytes", l.bytes),
            ("level_tables", l.tables),
            ("level_bytes_written_total", l.bytes_written),
            ("level_score_percent", (l.score * 100.0) as u64),
        ] {
            let line = format!("basalt_{name}{labels} {value}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    db.close().unwrap();
    assert!(!env.metrics().prometheus().contains("store=\"s\""));
}
