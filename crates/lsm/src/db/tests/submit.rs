//! Submitted batches without a waiting thread. The ledger has their memory, the queue is bounded,
//! and no thread waits for itself.

use super::prelude::*;
use crate::db::throttle::WaitMode;
use crate::db::write_path::queue::QUEUE_BYTES;
use basalt_env::EnvBuilder;
use basalt_sim::{SimFs, SimOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const MIB: usize = 1 << 20;
const FREE: WriteOptions = WriteOptions::UNSYNCED;
/// A time that only a hanging thread takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn batch(f: &Family, key: u32, bytes: usize) -> WriteBatch {
    let mut b = WriteBatch::new();
    b.put(f, &key.to_be_bytes(), &vec![7; bytes]).unwrap();
    b
}

fn new_env(rest: impl FnOnce(EnvBuilder) -> EnvBuilder) -> Env {
    rest(Env::builder(SimFs::new(SimOptions::default())).seed(1)).build()
}

fn opened(env: &Env, dir: &str) -> Db {
    Db::open(env, dir, Options::default()).unwrap()
}

fn stepped(budget: u64) -> (Env, Db) {
    let env = new_env(|env| env.stepped().memory_bytes(budget));
    let db = opened(&env, "db");
    (env, db)
}

/// A store with this many threads for background jobs.
fn threaded(threads: usize) -> Db {
    opened(&new_env(|env| env.threads(threads)), "db")
}

/// Waits for a thread that hangs if the code is wrong. The scope of that thread could not end.
fn expect_end<T>(completed: &mpsc::Receiver<T>, what: &str) {
    if completed.recv_timeout(PATIENCE).is_err() {
        eprintln!("{what} hangs");
        std::process::abort();
    }
}

/// Regression test: a thread submitted 200 MiB before the commit lane took any of it. All of it was
/// held in memory, and was not in the ledger.
#[test]
fn submitted_batches_are_booked_in_the_ledger_and_bounded() {
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let before = env.ledger().usage().buffer;
    let mut tickets = Vec::new();
    let mut most = 0;
    for key in 0..200 {
        tickets.push(db.submit(batch(&f, key, MIB), &FREE));
        let held = env.ledger().usage().buffer - before;
        if key < 8 {
            let queued = u64::from(key + 1) * MIB as u64;
            assert!(
                held >= queued,
                "{queued} bytes are queued, {held} in the ledger"
            );
        }
        most = most.max(held);
    }
    // The log has a staging buffer.
    let bound = (QUEUE_BYTES + 4 * MIB) as u64;
    assert!(most <= bound, "{most} bytes, more than {bound}");
    for (key, ticket) in tickets.into_iter().enumerate() {
        ticket.wait().unwrap();
        let got = db.get(&f, &(key as u32).to_be_bytes(), &ReadOptions::default());
        assert_eq!(got.unwrap().map(|v| v.len()), Some(MIB));
    }
    db.flush().unwrap();
    db.close().unwrap();
    assert_eq!(env.ledger().usage().buffer, 0, "all is given back");
}

/// A batch larger than the limit of the queue is admitted if no other batch is queued, and the next
/// one waits for it.
#[test]
fn a_batch_larger_than_the_queue_is_admitted_alone() {
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let large = db.submit(batch(&f, 1, QUEUE_BYTES + MIB), &FREE);
    assert!(large.try_result().is_none());
    assert!(env.ledger().usage().buffer > QUEUE_BYTES as u64);
    let next = db.submit(batch(&f, 2, 10), &FREE);
    assert!(
        large
            .try_result()
            .expect("the second one waited for it")
            .is_ok()
    );
    assert!(next.try_result().is_none());
    next.wait().unwrap();
    db.close().unwrap();
}

/// If the memory budget is used up, batches are admitted one at a time.
#[test]
fn a_submit_waits_while_the_memory_budget_is_used_up() {
    let (env, db) = stepped(64 << 20);
    let f = db.default_family();
    let all = env
        .ledger()
        .reserve(basalt_env::MemoryKind::Pinned, 64 << 20);
    let first = db.submit(batch(&f, 1, 1000), &FREE);
    assert!(first.try_result().is_none());
    let second = db.submit(batch(&f, 2, 1000), &FREE);
    assert!(
        first
            .try_result()
            .expect("the second one waited for it")
            .is_ok()
    );
    assert!(second.try_result().is_none());
    drop(all);
    let third = db.submit(batch(&f, 3, 1000), &FREE);
    assert!(second.try_result().is_none(), "there is room for both");
    third.wait().unwrap();
    assert!(second.try_result().is_some());
    db.close().unwrap();
}

/// An event loop that bounds its own work is never held. Its batches are in the ledger as well.
#[test]
fn submit_nowait_is_in_the_ledger_and_does_not_wait() {
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let tickets: Vec<_> = (0..40)
        .map(|key| db.submit_nowait(batch(&f, key, MIB), &FREE))
        .collect();
    assert!(env.ledger().usage().buffer >= 40 * MIB as u64);
    assert!(tickets.iter().all(|t| t.try_result().is_none()));
    while env.jobs().step() {}
    for t in tickets {
        t.try_result().expect("committed").unwrap();
    }
    db.close().unwrap();
}

/// The submitting thread holds a lock that callbacks take. It has to free space in the queue
/// itself, because the lane is inside such a callback. It must not run callbacks, which would wait
/// for its own lock.
#[test]
fn a_submit_under_a_lock_of_callbacks_does_not_deadlock() {
    let db = threaded(1);
    let f = db.default_family();
    let answered = Arc::new(Mutex::new(0));
    let (done, is_done) = mpsc::channel();
    basalt_env::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..3 {
                let held = answered.lock().unwrap();
                // While the lock is held, the lane may be inside a callback of the last round.
                let submit = |key| db.submit(batch(&f, key, MIB), &FREE);
                let tickets: Vec<Ticket> = (0..60).map(submit).collect();
                drop(held);
                for ticket in tickets {
                    let answered = answered.clone();
                    ticket.on_complete(move |_| *answered.lock().unwrap() += 1);
                }
            }
            done.send(()).unwrap();
        });
        expect_end(&is_done, "the submitter");
    });
    db.close().unwrap();
}

/// A callback on the commit lane submits more than the queue holds. No other thread can free space.
#[test]
fn a_callback_may_submit_more_than_the_queue_holds() {
    let db = threaded(1);
    let f = db.default_family();
    let (tx, rx) = mpsc::channel();
    let answers = Arc::new(AtomicUsize::new(0));
    let (again, family, count) = (db.clone(), f.clone(), answers.clone());
    db.submit(batch(&f, 0, 10), &FREE).on_complete(move |_| {
        for key in 1..61 {
            let (tx, count) = (tx.clone(), count.clone());
            again
                .submit(batch(&family, key, MIB), &FREE)
                .on_complete(move |r| {
                    count.fetch_add(1, Ordering::SeqCst);
                    tx.send(r.is_ok()).unwrap();
                });
        }
    });
    for _ in 0..60 {
        assert!(rx.recv_timeout(PATIENCE).expect("an answer"));
    }
    assert_eq!(answers.load(Ordering::SeqCst), 60);
    db.close().unwrap();
}

/// Threads submit at the same time, some with and some without waiting for their batches. All of
/// them continue, and each thread's batches commit in order.
#[test]
fn threads_submit_through_a_full_queue() {
    let db = threaded(2);
    let f = db.default_family();
    basalt_env::thread::scope(|threads| {
        for t in 0..4u32 {
            let (db, f) = (&db, &f);
            threads.spawn(move || {
                let mut last = Vec::new();
                for n in 0..40 {
                    let ticket = db.submit(batch(f, t * 1000 + n, MIB), &FREE);
                    match t % 2 {
                        0 => last.push(ticket),
                        _ => drop(ticket.wait().unwrap()),
                    }
                }
                let seqs: Vec<SeqNo> = last.into_iter().map(|t| t.wait().unwrap()).collect();
                assert!(seqs.is_sorted(), "{seqs:?}");
            });
        }
    });
    assert_eq!(db.stats().commits, 160);
    db.close().unwrap();
}

/// Regression test: a callback that panicked in a job took the other callbacks of its group with
/// it. Their batches were committed, and their callbacks never ran.
#[test]
fn a_callback_that_panics_does_not_stop_the_others() {
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let completed = Arc::new(AtomicUsize::new(0));
    db.submit(batch(&f, 0, 10), &FREE)
        .on_complete(|_| panic!("a user's mistake"));
    for key in 1..5 {
        let completed = completed.clone();
        db.submit(batch(&f, key, 10), &FREE).on_complete(move |r| {
            completed.fetch_add(usize::from(r.is_ok()), Ordering::SeqCst);
        });
    }
    // The queue is full, so this thread leads the group, and leaves its callbacks to a job.
    let large = db.submit(batch(&f, 9, QUEUE_BYTES), &FREE);
    let next = db.submit(batch(&f, 10, 10), &FREE);
    assert_eq!(completed.load(Ordering::SeqCst), 0);
    while env.jobs().step() {}
    assert_eq!(completed.load(Ordering::SeqCst), 4);
    drop((large, next));
    db.abandon();
}

/// Regression test: the metric counted how often held threads woke up, and did not count a submit
/// that led the queue itself.
#[test]
fn each_held_submit_is_counted_once() {
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let engine = db.engine();
    for key in 0..20 {
        db.submit_nowait(batch(&f, key, MIB), &FREE);
    }
    assert_eq!(engine.ctx.counters.submits_held.get(), 0);
    // The submit is held until it has committed some groups itself.
    drop(db.submit(batch(&f, 100, 10), &FREE));
    assert_eq!(engine.ctx.counters.submits_held.get(), 1);
    while env.jobs().step() {}
    db.close().unwrap();
}

/// Regression test: a callback submitted to a store whose queue was full and which another thread
/// led. It waited, and kept the commit lane from all stores.
#[test]
fn a_callback_that_submits_does_not_block_the_commit_lane() {
    let (env, full) = stepped(512 << 20);
    let other = opened(&env, "other");
    let (f, of_other) = (full.default_family(), other.default_family());
    for key in 0..40 {
        full.submit_nowait(batch(&f, key, MIB), &FREE);
    }
    // No batch is taken from the queue meanwhile.
    assert!(full.engine().writes.queue().try_lead());
    let (tx, rx) = mpsc::channel();
    let (to, family) = (full.clone(), f.clone());
    let first = other.submit(batch(&of_other, 1, 10), &FREE);
    first.on_complete(move |r| {
        tx.send((r, to.submit(batch(&family, 50, 10), &FREE)))
            .unwrap()
    });
    let (done, is_done) = mpsc::channel();
    basalt_env::thread::scope(|threads| {
        let env = &env;
        threads.spawn(move || {
            while env.jobs().step() {}
            done.send(()).unwrap();
        });
        expect_end(&is_done, "the commit lane");
    });
    let (answer, queued) = rx.recv().expect("the callback ran");
    answer.unwrap();
    assert!(queued.try_result().is_none());
    full.engine().lead_group(None, WaitMode::Wait);
    while env.jobs().step() {}
    queued.try_result().expect("committed").unwrap();
    full.close().unwrap();
    other.close().unwrap();
}

/// Regression test: each group that was taken from a full queue woke every held submit, and most of
/// them went back to sleep. So a later submit could be admitted before an earlier one.
#[test]
fn a_full_queue_admits_held_submits_in_order() {
    const HELD: u32 = 24;
    let (env, db) = stepped(512 << 20);
    let f = db.default_family();
    let engine = db.engine();
    let queued = QUEUE_BYTES / MIB + 8;
    for key in 0..queued {
        db.submit_nowait(batch(&f, 1000 + key as u32, MIB), &FREE);
    }
    // No group is taken from the queue until all submits are held.
    assert!(engine.writes.queue().try_lead());
    let (done, is_done) = mpsc::channel();
    basalt_env::thread::scope(|threads| {
        for n in 0..HELD {
            let (db, f, done) = (&db, &f, done.clone());
            threads.spawn(move || {
                let ticket = db.submit(batch(f, n, MIB), &FREE);
                let seq = ticket.wait().unwrap();
                done.send((n, seq)).unwrap();
            });
            // A time that only a hanging thread takes.
            while engine.writes.queue().held() <= n as usize {
                std::thread::yield_now();
            }
        }
        // A leader takes one batch of this size in each group.
        engine.lead_group(None, WaitMode::Wait);
        let mut seqs = Vec::new();
        for _ in 0..HELD {
            let completed = is_done.recv_timeout(PATIENCE);
            let Ok(one) = completed else {
                eprintln!("a held submit hangs");
                std::process::abort();
            };
            seqs.push(one);
        }
        seqs.sort_unstable();
        assert!(seqs.is_sorted_by_key(|(_, seq)| *seq), "{seqs:?}");
    });
    // Each thread wakes once when its batch is queued. Each group that one thread leaves to another
    // costs at most one more wake.
    let wakes = engine.writes.queue().wakes();
    let groups = queued + HELD as usize;
    assert!(
        wakes <= HELD as usize + groups,
        "{wakes} wakes in {groups} groups"
    );
    while env.jobs().step() {}
    db.close().unwrap();
}

/// A leader that holds its group back hands the lead to a delayed job. If the store was closed
/// meanwhile, closing had found an active leader, and so led no group. The delayed job did not run
/// any more, and the callback of the batch was lost. Today only leaders on the commit lane hold
/// groups back, and closing waits for these, but callbacks must not depend on that.
#[test]
fn a_callback_is_called_if_the_store_closes_under_a_leader() {
    let (env, db) = stepped(64 << 20);
    let f = db.default_family();
    let engine = db.engine().clone();
    db.put(&f, b"a", b"1", &FREE).unwrap();
    let (tell, told) = mpsc::channel();
    let ticket = db.submit(batch(&f, 1, 10), &FREE);
    ticket.on_complete(move |result| tell.send(result).unwrap());
    // This thread is the leader from here on.
    assert!(engine.writes.queue().try_lead());
    db.close().unwrap();
    assert!(told.try_recv().is_err(), "the leader has not answered");
    assert!(engine.hand_over(Some(Duration::from_secs(1)), false));
    while env.jobs().step() {}
    let e = told.try_recv().expect("an answer").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
}
