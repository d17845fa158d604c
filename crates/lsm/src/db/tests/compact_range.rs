//! Manual compactions: progress, cancellation, the deepest level, and exclusive runs.

use super::prelude::*;
use crate::options::{CompactionFilter, FilterContext, FilterDecision, WriteOptions};
use basalt_sim::{SimFs, SimOptions};
use parking_lot::Mutex;
use std::sync::mpsc;

fn small() -> Options {
    Options {
        write_buffer_bytes: 16 << 10,
        default_family: FamilyOptions {
            table_bytes: 4 << 10,
            base_level_bytes: 16 << 10,
            level_multiplier: 4,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn fill(db: &Db, from: u32, n: u32) {
    let f = db.default_family();
    for i in from..from + n {
        let key = format!("key{:05}", i * 7919 % 3001);
        db.put(
            &f,
            key.as_bytes(),
            &i.to_le_bytes().repeat(20),
            &WriteOptions::UNSYNCED,
        )
        .unwrap();
    }
}

fn store(options: Options) -> (Env, Db) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", options).unwrap();
    fill(&db, 0, 3001);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    fill(&db, 3001, 1500);
    db.flush().unwrap();
    (env, db)
}

fn everything(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iter = db
        .iter(&db.default_family(), &ReadOptions::default())
        .unwrap();
    iter.seek_to_first().unwrap();
    let mut all = Vec::new();
    while iter.valid() {
        all.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next().unwrap();
    }
    all
}

#[test]
fn progress_reaches_its_total_and_names_levels_from_the_top() {
    let (_env, db) = store(small());
    db.wait_idle().unwrap();
    // The data is too little to start an automatic compaction, and none begins meanwhile: this
    // compaction reads every byte.
    fill(&db, 9000, 100);
    db.flush().unwrap();
    let seen: Arc<Mutex<Vec<CompactProgress>>> = Arc::default();
    let sink = seen.clone();
    let options = CompactOptions {
        exclusive: true,
        progress: Some(Arc::new(move |p| sink.lock().push(p))),
        ..CompactOptions::default()
    };
    let before = db.stats().compaction_bytes_read;
    db.compact(&db.default_family(), &options).unwrap();
    let seen = seen.lock();
    assert!(seen.len() > 50, "about one for each table: {}", seen.len());
    for pair in seen.windows(2) {
        assert!(pair[0].done_bytes <= pair[1].done_bytes, "{pair:?}");
        assert!(pair[0].level <= pair[1].level, "{pair:?}");
    }
    assert!(seen.iter().all(|p| p.done_bytes <= p.total_bytes));
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert_eq!(last.done_bytes, last.total_bytes);
    assert_eq!(last, options.control.progress());
    assert_eq!(last.done_bytes, db.stats().compaction_bytes_read - before);
    // The total is an estimate, but good enough to plan by.
    assert!(
        (last.total_bytes / 2..last.total_bytes * 2).contains(&first.total_bytes),
        "{first:?} {last:?}"
    );
}

/// A range may need tables beyond it, which the estimate does not include. The total then grows,
/// and is never below the bytes that are done.
#[test]
fn progress_of_a_range_stays_within_its_total() {
    for width in [1, 5, 40, 300] {
        let (_env, db) = store(small());
        for from in (0..3000).step_by(331) {
            let key = |i: u32| Some(format!("key{i:05}").into_bytes());
            let seen: Arc<Mutex<Vec<CompactProgress>>> = Arc::default();
            let sink = seen.clone();
            let options = CompactOptions {
                from: key(from),
                to: key(from + width),
                progress: Some(Arc::new(move |p| sink.lock().push(p))),
                ..CompactOptions::default()
            };
            db.compact(&db.default_family(), &options).unwrap();
            let seen = seen.lock();
            assert!(
                seen.iter().all(|p| p.done_bytes <= p.total_bytes),
                "{width} keys from {from}: {seen:?}"
            );
            let last = options.control.progress();
            assert_eq!(last.done_bytes, last.total_bytes);
        }
        db.close().unwrap();
    }
}

/// A compaction that is cancelled at any time returns `Cancelled`. The answers stay the same, no
/// file is left that no manifest names, and the compaction can be repeated.
#[test]
fn a_cancelled_compaction_loses_no_entry_and_leaves_no_file() {
    let (mut at, mut cancelled) = (0u64, 0);
    loop {
        let (env, db) = store(small());
        let want = everything(&db);
        let mut options = CompactOptions::default();
        let (control, calls) = (options.control.clone(), Arc::new(Mutex::new(0)));
        let heard = calls.clone();
        options.progress = Some(Arc::new(move |_| {
            let mut calls = calls.lock();
            *calls += 1;
            if *calls > at {
                control.cancel();
            }
        }));
        let result = db.compact(&db.default_family(), &options);
        assert_eq!(everything(&db), want);
        let ended = result.is_ok();
        if let Err(e) = result {
            assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
            assert_eq!(*heard.lock(), at + 1, "no further table is begun");
            cancelled += 1;
        }
        assert!(db.stats().read_only.is_none(), "nothing failed");
        if cancelled % 8 == 0 {
            db.wait_idle().unwrap();
            db.compact_range(&db.default_family(), None, None).unwrap();
            assert_eq!(everything(&db), want);
        }
        db.close().unwrap();
        let report = Db::verify_store(&env, "db", &small(), &mut |_, _| ()).unwrap();
        assert!(
            report.damage.is_empty() && report.unused_files.is_empty(),
            "{report:?}"
        );
        if ended {
            break;
        }
        at += 7;
    }
    assert!(cancelled > 8, "cancelled at {cancelled} moments only");
}

struct KeepAll;
impl CompactionFilter for KeepAll {
    fn name(&self) -> &str {
        "keep all"
    }
    fn filter(&self, _: &FilterContext<'_>, _: &[u8], _: &[u8]) -> FilterDecision {
        FilterDecision::Keep
    }
}

#[test]
fn the_bottommost_option_decides_the_deepest_level() {
    for (filter, bottommost, rewritten) in [
        (false, Bottommost::Force, true),
        (false, Bottommost::Skip, false),
        (false, Bottommost::IfFilter, false),
        (true, Bottommost::IfFilter, true),
        (true, Bottommost::Skip, false),
    ] {
        let mut options = small();
        if filter {
            options.default_family.compaction_filter = Some(Arc::new(KeepAll));
        }
        let (_env, db) = store(options);
        let f = db.default_family();
        // All data is at the bottom.
        db.compact_range(&f, None, None).unwrap();
        let before = db.stats().compaction_bytes_written;
        let options = CompactOptions {
            bottommost,
            ..CompactOptions::default()
        };
        db.compact(&f, &options).unwrap();
        let wrote = db.stats().compaction_bytes_written - before;
        assert_eq!(wrote > 0, rewritten, "{filter} {bottommost:?}");
        // Data above the bottom moves down in any case.
        fill(&db, 0, 30);
        db.compact(&f, &options).unwrap();
        let levels = &db.stats().families[0].levels;
        assert!(levels[..6].iter().all(|l| l.tables == 0), "{levels:?}");
    }
}

#[test]
fn an_exclusive_compaction_holds_back_automatic_ones() {
    let (_env, db) = store(small());
    let options = CompactOptions {
        exclusive: true,
        ..CompactOptions::default()
    };
    let (seen, inside): (Arc<Mutex<Vec<u64>>>, _) = (Arc::default(), db.clone());
    let sink = seen.clone();
    let watching = CompactOptions {
        progress: Some(Arc::new(move |_| {
            inside.engine().background.schedule();
            sink.lock().push(inside.stats().compactions);
        })),
        ..options.clone()
    };
    fill(&db, 0, 500);
    db.compact(&db.default_family(), &watching).unwrap();
    drop(watching);
    assert!(seen.lock().iter().all(|n| *n <= 1), "{:?}", seen.lock());
    // Afterwards automatic compactions begin again, also if the manual one was cancelled before it
    // began.
    let control = options.control.clone();
    control.cancel();
    let e = db.compact(&db.default_family(), &options).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    assert!(!db.engine().tree.lock().jobs.exclusive);
    for i in 0..4 {
        fill(&db, i * 400, 400);
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    assert!(db.stats().families[0].levels[0].tables < 4, "they have run");
    db.close().unwrap();
}

/// A panic of user code in a manual compaction ends that compaction, and no later one: between
/// merges, and during a merge.
#[test]
fn a_panic_in_a_callback_ends_only_its_own_compaction() {
    let (mut between, mut inside) = (0, 0);
    for at in [1, 2, 3, 4, 6, 9, 13, 20] {
        let (_env, db) = store(small());
        let want = everything(&db);
        let (calls, merging) = (Mutex::new(0), Arc::new(Mutex::new(false)));
        let (seen, store) = (merging.clone(), db.clone());
        let options = CompactOptions {
            progress: Some(Arc::new(move |_| {
                *calls.lock() += 1;
                *seen.lock() = store.stats().compactions > 0;
                assert!(*calls.lock() < at, "the callback's own fault");
            })),
            ..CompactOptions::default()
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            db.compact(&db.default_family(), &options)
        }));
        assert!(panicked.is_err());
        drop(options);
        match *merging.lock() {
            true => inside += 1,
            false => between += 1,
        }
        // Automatic compactions run, and end.
        db.wait_idle().unwrap();
        assert_eq!(db.stats().compactions, 0, "it counts as running still");
        db.compact_range(&db.default_family(), None, None).unwrap();
        assert_eq!(everything(&db), want);
        db.close().unwrap();
    }
    assert!(between > 0 && inside > 2, "{between} {inside}");
}

/// A manual compaction runs on its caller's thread. A close waits for it, and gives the directory
/// free only then.
#[test]
fn closing_waits_for_a_manual_compaction() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .threads(2)
        .build();
    let db = Db::open(&env, "db", small()).unwrap();
    fill(&db, 0, 3000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let want = everything(&db);
    let (met, at) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(Some(gate));
    let options = CompactOptions {
        progress: Some(Arc::new(move |p: CompactProgress| {
            // The hook acts once, during a merge.
            if p.done_bytes > 0
                && let Some(gate) = gate.lock().take()
            {
                met.send(()).unwrap();
                let _ = gate.recv();
            }
        })),
        ..CompactOptions::default()
    };
    let compacting = {
        let db = db.clone();
        basalt_env::thread::spawn("compacting", move || {
            let e = db.compact(&db.default_family(), &options).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        })
        .unwrap()
    };
    at.recv().unwrap();
    let closing = {
        let db = db.clone();
        basalt_env::thread::spawn("closing", move || db.close().unwrap()).unwrap()
    };
    while !db.engine().ctx.is_closing() {
        std::thread::yield_now();
    }
    // The directory belongs to the store for as long as the compaction runs.
    for _ in 0..200 {
        assert!(!db.engine().ctx.has_left());
        let other = Db::open(&env, "db", small()).err().expect("still open");
        assert_eq!(other.kind(), ErrorKind::Busy, "{other}");
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    compacting.join().unwrap();
    closing.join().unwrap();
    let db = Db::open(&env, "db", small()).unwrap();
    assert_eq!(everything(&db), want);
    db.close().unwrap();
    let report = Db::verify_store(&env, "db", &small(), &mut |_, _| ()).unwrap();
    assert!(
        report.damage.is_empty() && report.unused_files.is_empty(),
        "{report:?}"
    );
}

/// Two compactions shared one `CompactOptions`, and so one control. The end of the first removed
/// both from the list of calls, and a close gave the directory back under the second.
#[test]
fn closing_waits_for_each_compaction_of_one_control() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .threads(2)
        .build();
    let db = Db::open(&env, "db", small()).unwrap();
    fill(&db, 0, 1000);
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let (met, at) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(Some(gate));
    let options = CompactOptions {
        // The first call of the hook blocks. The compaction has claimed no tables then.
        progress: Some(Arc::new(move |_| {
            let gate = gate.lock().take();
            if let Some(gate) = gate {
                met.send(()).unwrap();
                let _ = gate.recv();
            }
        })),
        ..CompactOptions::default()
    };
    let blocked = {
        let (db, options) = (db.clone(), options.clone());
        basalt_env::thread::spawn("blocked", move || {
            let e = db.compact(&db.default_family(), &options).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        })
        .unwrap()
    };
    at.recv().unwrap();
    db.compact(&db.default_family(), &options).unwrap();
    assert!(db.engine().manual.runs_on_other_thread());
    let closing = {
        let db = db.clone();
        basalt_env::thread::spawn("closing", move || db.close().unwrap()).unwrap()
    };
    while !db.engine().ctx.is_closing() {
        std::thread::yield_now();
    }
    for _ in 0..200 {
        assert!(!db.engine().ctx.has_left());
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    blocked.join().unwrap();
    closing.join().unwrap();
}
