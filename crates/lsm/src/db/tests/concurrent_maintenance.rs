//! Helpers, which compact a tree beside the job that maintains it: full disks, faults that several
//! jobs find, and other long jobs that wait for a thread.

use super::listener::Errors;
use super::pages::{START_MS, env_on, get, options, put};
use super::prelude::*;
use crate::db::pages::FamilyPages;
use crate::options::{CompactionFilter, FilterContext, FilterDecision};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, AtomicUsize};
use basalt_env::{Clock, EnvBuilder, JobPriority, ManualClock};
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::path::Path;
use std::time::Duration;

const KEYS: usize = 1000;
const ROUNDS: usize = 5;

fn key(n: usize) -> String {
    format!("key{n:05}")
}

fn write_round(db: &Db, round: usize) {
    (0..KEYS).for_each(|n| put(db, &key(n), &format!("value {round}")));
    db.flush().unwrap();
}

fn check_values(db: &Db) {
    let wanted = format!("value {}", ROUNDS - 1);
    (0..KEYS).for_each(|n| assert_eq!(get(db, &key(n)).as_deref(), Some(&wanted[..])));
}

/// Returns the tree of a store that is far behind. The caller is the job that maintains it.
fn fall_behind(db: &Db) -> Arc<FamilyPages> {
    (0..2).for_each(|round| write_round(db, round));
    db.wait_idle().unwrap();
    let pages = db.engine().tree.view().pages[&0].pages.clone();
    pages.note_written();
    assert!(pages.begin_maintenance());
    (2..ROUNDS).for_each(|round| write_round(db, round));
    assert!(pages.tree().stats().due_leaves > 0);
    pages
}

/// A compaction filter that keeps all entries, and makes one call when it sees the first one.
#[derive(Default)]
struct CallOnce(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl CompactionFilter for CallOnce {
    fn name(&self) -> &str {
        "call once"
    }

    fn filter(&self, _: &FilterContext<'_>, _: &[u8], _: &[u8]) -> FilterDecision {
        let call = self.0.lock().take();
        if let Some(call) = call {
            call();
        }
        FilterDecision::Keep
    }
}

/// Writers are refused while a helper finds no space. When there is some again, writes and
/// compactions go on, and nothing is lost.
#[test]
fn a_helper_on_a_full_disk_is_tried_again() {
    let disk = SimFs::new(SimOptions {
        capacity: 4 << 20,
        ..SimOptions::default()
    });
    let (env, clock) = env_on(&disk);
    let db = Db::open(&env, "db", options()).unwrap();
    let engine = db.engine();
    let pages = fall_behind(&db);
    let free = disk.space(Path::new("")).unwrap().free;
    let ballast = Path::new("ballast");
    disk.write_file(ballast, &vec![7; free as usize]).unwrap();
    pages.set_debt(1000);
    assert!(pages.begin_help(1));
    engine.help_to_maintain(&pages);
    let failed = engine.health.compaction_error().expect("it has failed");
    assert_eq!(failed.kind(), ErrorKind::NoSpace, "{failed}");
    assert!(pages.has_failed() && pages.is_busy());
    // The fault is reported once, and each failure makes the next attempt wait.
    clock.advance(Duration::from_secs(60));
    assert!(!engine.health.compactions_are_paused());
    assert!(pages.begin_help(1));
    engine.help_to_maintain(&pages);
    assert!(engine.health.compactions_are_paused());
    pages.end_maintenance(false, true);
    engine.schedule_page_maintenance();
    assert!(!pages.is_maintained(), "the pause has not ended");
    let write = |key: &[u8], value: &[u8]| {
        let family = db.default_family();
        db.put(&family, key, value, &WriteOptions::SYNC)
    };
    for _ in 0..4 {
        // The logs have some space left.
        let mut writes = (0..1000).map(|_| write(b"filler", &[7; 1000]));
        let refused = writes.find_map(std::result::Result::err);
        let refused = refused.expect("the disk is full");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(refused.retryable(), "{refused}");
        check_values(&db);
        clock.advance(Duration::from_secs(60));
        // An attempt may find the space of logs that a flush has removed.
        while env.jobs().step() {}
    }
    disk.remove(ballast).unwrap();
    clock.advance(Duration::from_secs(60));
    while env.jobs().step() {}
    assert_eq!(pages.tree().stats().due_leaves, 0);
    assert!(!pages.has_failed() && !pages.is_busy());
    write(b"resumed", b"yes").unwrap();
    db.wait_idle().unwrap();
    assert!(engine.health.compaction_error().is_none());
    check_values(&db);
    drop(pages);
    db.close().unwrap();
    let db = Db::open(&env, "db", options()).unwrap();
    check_values(&db);
    assert_eq!(get(&db, "resumed").as_deref(), Some("yes"));
    db.close().unwrap();
}

/// If a sync of a helper fails, the maintenance beside it can write no more pages, either. It was
/// reported as a second fault.
#[test]
fn one_failed_sync_is_reported_once() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let clock = ManualClock::new(START_MS);
    let env = EnvBuilder::for_tests(faults.clone(), 1);
    let env = env.clock(Clock::manual(clock.clone())).build();
    let (filter, errors) = (Arc::new(CallOnce::default()), Arc::new(Errors::default()));
    let mut options = options().listeners(vec![errors.clone()]);
    options.default_family.compaction_filter = Some(filter.clone());
    let db = Db::open(&env, "db", options).unwrap();
    let engine = db.engine();
    let pages = fall_behind(&db);
    pages.end_maintenance(false, false);
    let (helped, helper) = (pages.clone(), engine.clone());
    *filter.0.lock() = Some(Box::new(move || {
        faults.inject(Fault {
            op: Some(OpKind::SyncAll),
            path: "db/pages/0/base".to_string(),
            when: When::Nth(1),
            kind: FaultKind::FailedSync,
        });
        helped.set_debt(1000);
        assert!(helped.begin_help(1));
        helper.help_to_maintain(&helped);
    }));
    engine.schedule_page_maintenance();
    while filter.0.lock().is_some() {
        assert!(env.jobs().step(), "maintenance has compacted nothing");
    }
    assert!(pages.has_failed() && pages.tree().stats().due_leaves > 0);
    clock.advance(Duration::from_secs(60));
    while env.jobs().step() {}
    assert_eq!(pages.tree().stats().due_leaves, 0);
    assert!(!pages.has_failed() && !pages.is_busy());
    check_values(&db);
    drop(pages);
    db.close().unwrap();
    let reported: Vec<ErrorKind> = errors.0.lock().iter().map(Error::kind).collect();
    assert_eq!(reported, [ErrorKind::Io]);
}

/// Helpers of several trees, or of several stores, occupied all threads for long jobs. Compactions
/// of tables waited until the trees had caught up.
#[test]
fn a_helper_ends_when_another_long_job_waits() {
    let disk = SimFs::new(SimOptions::default());
    let (env, _clock) = env_on(&disk);
    let filter = Arc::new(CallOnce::default());
    let mut options = options();
    options.default_family.compaction_filter = Some(filter.clone());
    let db = Db::open(&env, "db", options).unwrap();
    let engine = db.engine();
    let pages = fall_behind(&db);
    let other = env.jobs().new_owner();
    let has_run = Arc::new(AtomicBool::new(false));
    let (owner, runs) = (other.clone(), has_run.clone());
    *filter.0.lock() = Some(Box::new(move || {
        owner.spawn(JobPriority::Compaction, move || runs.store(true, SeqCst));
    }));
    while env.jobs().step() {}
    let due = pages.tree().stats().due_leaves;
    pages.set_debt(1000);
    assert!(pages.begin_help(1));
    let (helped, helper) = (pages.clone(), engine.clone());
    other.spawn(JobPriority::Helper, move || {
        helper.help_to_maintain(&helped)
    });
    assert!(env.jobs().step());
    let left = pages.tree().stats().due_leaves;
    assert!(0 < left && left < due, "{left} of {due} leaves are due");
    assert!(env.jobs().step() && has_run.load(SeqCst));
    pages.end_maintenance(false, true);
    db.wait_idle().unwrap();
    assert_eq!(pages.tree().stats().due_leaves, 0);
    check_values(&db);
    drop(pages);
    db.close().unwrap();
}

/// The store begins its helpers behind all other long jobs.
#[test]
fn helpers_begin_when_no_other_long_job_waits() {
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(4)
        .build();
    let db = Db::open(&env, "db", options()).unwrap();
    let engine = db.engine();
    let pages = fall_behind(&db);
    let other = env.jobs().new_owner();
    let (begun, ends) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for _ in 0..3 {
        let (jobs, begun, ends) = (env.jobs().clone(), begun.clone(), ends.clone());
        other.spawn(JobPriority::Compaction, move || {
            begun.fetch_add(1, SeqCst);
            jobs.wait_until(None, &mut || ends.load(SeqCst));
        });
    }
    let all_begun = || begun.load(SeqCst) == 3;
    assert!(env.jobs().wait_until(None, &mut || all_begun()));
    let due = pages.tree().stats().due_leaves;
    pages.set_debt(1000);
    engine.schedule_page_maintenance();
    let (pending, still_due) = (env.jobs().pending(), pages.tree().stats().due_leaves);
    // Before the assertions: the pool waits for its jobs when it is dropped.
    ends.store(true, SeqCst);
    env.jobs().notify();
    other.drain();
    assert_eq!(pending[JobPriority::Helper as usize], 2, "{pending:?}");
    assert_eq!(still_due, due);
    let none_due = || pages.tree().stats().due_leaves == 0;
    assert!(env.jobs().wait_until(None, &mut || none_due()));
    pages.end_maintenance(false, true);
    db.wait_idle().unwrap();
    check_values(&db);
    drop(pages);
    db.close().unwrap();
}
