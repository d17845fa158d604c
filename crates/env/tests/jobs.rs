//! Promises of the job pool: order, drain, panics, the commit lane, stepping.

mod support;

use basalt_env::{Clock, JobOwner, JobPriority, Jobs, ManualClock, Random};
use basalt_sim::campaign::scale;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use JobPriority::*;

type Log = Arc<Mutex<Vec<String>>>;

/// Returns a job that counts its runs.
fn add_one(count: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
    let count = count.clone();
    move || {
        count.fetch_add(1, SeqCst);
    }
}

fn say(log: &Log, what: impl Into<String>) -> impl FnOnce() + Send + 'static {
    let (log, what) = (log.clone(), what.into());
    move || log.lock().unwrap().push(what)
}

#[test]
fn stepped_jobs_run_by_priority_and_then_by_age() {
    let jobs = Jobs::stepped(Clock::system());
    let (a, b) = (jobs.new_owner(), jobs.new_owner());
    assert_ne!(a.number(), b.number());
    let log = Log::default();
    for (owner, priority, what) in [
        (&a, Helper, "helper"),
        (&a, Gc, "gc"),
        (&b, Compaction, "compaction 1"),
        (&a, Compaction, "compaction 2"),
        (&a, Flush, "flush"),
        (&b, Housekeeping, "housekeeping"),
        (&b, Commit, "commit"),
    ] {
        owner.spawn(priority, say(&log, what));
    }
    assert_eq!(jobs.pending(), [1, 1, 1, 2, 1, 1]);
    assert_eq!(jobs.parallelism(), 0);
    while jobs.step() {}
    let order = "commit, flush, housekeeping, compaction 1, compaction 2, gc, helper";
    assert_eq!(log.lock().unwrap().join(", "), order);
    assert_eq!(jobs.pending(), [0; 6]);
}

/// Runs a random program of jobs that queue jobs, wait, step and drain, all on one thread.
fn stepped_program(seed: u64) -> Vec<String> {
    fn body(jobs: Jobs, random: Random, log: Log, owner: JobOwner, name: String, depth: u32) {
        log.lock().unwrap().push(format!("{name}<"));
        for child in 0..random.below(4) {
            if depth == 0 {
                break;
            }
            let priority =
                [Commit, Flush, Housekeeping, Compaction, Gc, Helper][random.below(6) as usize];
            let (j, r, l, o) = (jobs.clone(), random.clone(), log.clone(), owner.clone());
            let child = format!("{name}.{child}");
            owner.spawn(priority, move || body(j, r, l, o, child, depth - 1));
        }
        match random.below(6) {
            0 => drop(jobs.step()),
            1 => {
                let goal = log.lock().unwrap().len() + 3;
                let log = log.clone();
                jobs.wait_until(None, &mut || log.lock().unwrap().len() >= goal);
            }
            2 => owner.drain(),
            3 if random.one_in(4) => panic!("{name} gives up"),
            _ => jobs.notify(),
        }
        log.lock().unwrap().push(format!("{name}>"));
    }
    let (jobs, random, log) = (
        Jobs::stepped(Clock::system()),
        Random::from_seed(seed),
        Log::default(),
    );
    let owners: Vec<JobOwner> = (0..4).map(|_| jobs.new_owner()).collect();
    for (n, owner) in owners.iter().enumerate() {
        let (j, r, l, o) = (jobs.clone(), random.clone(), log.clone(), owner.clone());
        owner.spawn(Compaction, move || body(j, r, l, o, n.to_string(), 4));
    }
    while jobs.step() {}
    assert_eq!(jobs.pending(), [0; 6], "seed {seed}");
    let log = log.lock().unwrap().clone();
    log.into_iter()
        .chain(owners.iter().map(|owner| format!("{:?}", owner.panicked())))
        .collect()
}

#[test]
fn stepped_runs_repeat_by_seed_and_jobs_may_step() {
    let mut different = std::collections::BTreeSet::new();
    for seed in basalt_sim::campaign::cases(0..50 * scale()) {
        let _repeat = basalt_sim::repeat!(
            stepped_runs_repeat_by_seed_and_jobs_may_step,
            "BASALT_CASE={seed}"
        );
        let first = stepped_program(seed);
        assert_eq!(first, stepped_program(seed), "repeat with seed {seed}");
        different.insert(first);
    }
    assert!(different.len() > 25, "the programs hardly differ");
}

#[test]
fn a_stepped_wait_ends_when_no_job_is_left() {
    let jobs = Jobs::stepped(Clock::system());
    let owner = jobs.new_owner();
    let flag = Arc::new(AtomicBool::new(false));
    assert!(!jobs.wait_until(None, &mut || false));
    let set = flag.clone();
    owner.spawn(Gc, move || set.store(true, SeqCst));
    // A timeout of zero calls `done()` and runs no job.
    assert!(!jobs.wait_until(Some(Duration::ZERO), &mut || flag.load(SeqCst)));
    assert_eq!(jobs.pending()[Gc as usize], 1);
    assert!(jobs.wait_until(None, &mut || flag.load(SeqCst)));
}

#[test]
fn stepped_drain_and_cancel_apply_to_one_owner() {
    let jobs = Jobs::stepped(Clock::system());
    let (a, b) = (jobs.new_owner(), jobs.new_owner());
    let log = Log::default();
    a.spawn(Gc, say(&log, "a"));
    b.spawn(Flush, say(&log, "b"));
    a.drain();
    assert_eq!(*log.lock().unwrap(), ["a"]);
    // Queued jobs that hold the pool would keep it alive for ever. Cancelling them breaks the
    // cycle.
    let held = Arc::new(());
    let (pool, kept) = (jobs.clone(), held.clone());
    b.spawn(Compaction, move || drop((pool, kept)));
    assert_eq!(b.cancel(), 2);
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(jobs.pending(), [0; 6]);
    assert!(!jobs.step());
}

#[test]
fn a_panic_is_recorded_for_its_owner_and_the_pool_goes_on() {
    for jobs in [Jobs::stepped(Clock::system()), Jobs::threads(1)] {
        let (bad, good) = (jobs.new_owner(), jobs.new_owner());
        bad.spawn(Flush, || panic!("block {} is {}", 7, "gone"));
        bad.spawn(Compaction, || panic!("a consequence"));
        bad.drain();
        assert_eq!(bad.panicked().as_deref(), Some("block 7 is gone"));
        let ran = Arc::new(AtomicBool::new(false));
        let set = ran.clone();
        good.spawn(Compaction, move || set.store(true, SeqCst));
        good.drain();
        assert!(ran.load(SeqCst));
        assert_eq!(good.panicked(), None);
        assert_eq!(jobs.pending(), [0; 6]);
    }
}

#[test]
fn commits_and_flushes_do_not_wait_for_compactions() {
    let jobs = Jobs::threads(3);
    let (long, short) = (jobs.new_owner(), jobs.new_owner());
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let open = Arc::new(AtomicBool::new(false));
    for n in 0..8 {
        let (pool, open, running, most) =
            (jobs.clone(), open.clone(), running.clone(), most.clone());
        long.spawn(if n % 2 == 0 { Compaction } else { Gc }, move || {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            pool.wait_until(None, &mut || open.load(SeqCst));
            running.fetch_sub(1, SeqCst);
        });
    }
    assert!(jobs.wait_until(None, &mut || running.load(SeqCst) == 2));
    // Compactions occupy two of three threads, and these jobs must still run.
    let count = Arc::new(AtomicUsize::new(0));
    for priority in [Commit, Flush, Housekeeping, Commit] {
        short.spawn(priority, add_one(&count));
    }
    short.drain();
    assert_eq!(count.load(SeqCst), 4);
    assert_eq!(
        jobs.pending(),
        [0, 0, 0, 4, 4, 0],
        "six queued and two running"
    );
    open.store(true, SeqCst);
    jobs.notify();
    long.drain();
    assert_eq!(most.load(SeqCst), 2, "one thread stays free of long jobs");

    // With a single thread, the lane still exists.
    let jobs = Jobs::threads(1);
    let (owner, open) = (jobs.new_owner(), Arc::new(AtomicBool::new(false)));
    let (pool, gate) = (jobs.clone(), open.clone());
    owner.spawn(Compaction, move || {
        pool.wait_until(None, &mut || gate.load(SeqCst));
    });
    let commits = jobs.new_owner();
    commits.spawn(Commit, move || open.store(true, SeqCst));
    owner.drain();
}

#[test]
fn gc_is_not_starved_by_compactions_that_never_run_out() {
    let jobs = Jobs::threads(1);
    let (owner, log) = (jobs.new_owner(), Log::default());
    let (start, wait) = mpsc::channel::<()>();
    owner.spawn(Flush, move || wait.recv().unwrap());
    for n in 0..20 {
        owner.spawn(Compaction, say(&log, format!("c{n}")));
    }
    owner.spawn(Gc, say(&log, "gc"));
    start.send(()).unwrap();
    owner.drain();
    let log = log.lock().unwrap();
    let at = log.iter().position(|l| l == "gc").unwrap();
    assert!(at < 10, "gc ran as number {at} of {}", log.len());
}

/// Helpers use the threads that other long jobs leave, and give them back when one waits.
#[test]
fn helpers_leave_their_threads_to_other_long_jobs() {
    let jobs = Jobs::threads(4);
    let (of_trees, of_tables) = (jobs.new_owner(), jobs.new_owner());
    let (running, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let open = Arc::new(AtomicBool::new(false));
    for _ in 0..5 {
        let (pool, open, running) = (jobs.clone(), open.clone(), running.clone());
        let ended = ended.clone();
        of_trees.spawn(Helper, move || {
            running.fetch_add(1, SeqCst);
            pool.wait_until(None, &mut || open.load(SeqCst) || pool.long_jobs_wait());
            running.fetch_sub(1, SeqCst);
            ended.fetch_add(1, SeqCst);
        });
    }
    assert!(jobs.wait_until(None, &mut || running.load(SeqCst) == 3));
    assert!(!jobs.long_jobs_wait() && ended.load(SeqCst) == 0);
    for priority in [Compaction, Gc, Compaction] {
        let count = Arc::new(AtomicUsize::new(0));
        of_tables.spawn(priority, add_one(&count));
        of_tables.drain();
        assert_eq!(count.load(SeqCst), 1);
    }
    open.store(true, SeqCst);
    jobs.notify();
    of_trees.drain();
    assert_eq!(ended.load(SeqCst), 5);
}

/// A store that closes waits for its helpers, also while compactions of another one never end.
#[test]
fn a_helper_gets_its_turn_though_compactions_always_wait() {
    fn chain(owner: &JobOwner, helped: &Arc<AtomicUsize>, left: usize, ran: &Arc<AtomicUsize>) {
        let (own, helped, ran) = (owner.clone(), helped.clone(), ran.clone());
        owner.spawn(Compaction, move || {
            ran.fetch_add(1, SeqCst);
            if left > 0 && helped.load(SeqCst) == 0 {
                chain(&own, &helped, left - 1, &ran);
            }
        });
    }
    let jobs = Jobs::threads(2);
    let (of_trees, of_tables) = (jobs.new_owner(), jobs.new_owner());
    let (helped, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // Each one queues the next before it ends, so some always wait.
    for _ in 0..8 {
        chain(&of_tables, &helped, 1000, &ran);
    }
    of_trees.spawn(Helper, add_one(&helped));
    of_trees.drain();
    assert_eq!(helped.load(SeqCst), 1);
    of_tables.drain();
    let ran = ran.load(SeqCst);
    assert!(ran < 4000, "{ran} compactions");
}

#[test]
fn drain_waits_for_jobs_that_queue_jobs() {
    fn tree(owner: &JobOwner, depth: u32, count: &Arc<AtomicU64>) {
        let (own, counter) = (owner.clone(), count.clone());
        let priority = [Commit, Flush, Housekeeping, Compaction, Gc, Helper][depth as usize % 6];
        owner.spawn(priority, move || {
            if depth > 0 {
                tree(&own, depth - 1, &counter);
                tree(&own, depth - 1, &counter);
            }
            counter.fetch_add(1, SeqCst);
        });
    }
    for jobs in [
        Jobs::stepped(Clock::system()),
        Jobs::threads(1),
        Jobs::threads(4),
    ] {
        for _ in 0..10 * scale() {
            let (owner, count) = (jobs.new_owner(), Arc::new(AtomicU64::new(0)));
            tree(&owner, 6, &count);
            owner.drain();
            assert_eq!(count.load(SeqCst), 127);
        }
    }
}

#[test]
fn a_job_may_drain_its_own_owner_and_drop_the_last_handle() {
    let (sender, result) = mpsc::channel();
    for jobs in [Jobs::stepped(Clock::system()), Jobs::threads(2)] {
        let owner = jobs.new_owner();
        let (own, sender) = (owner.clone(), sender.clone());
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        owner.spawn(Housekeeping, move || {
            for _ in 0..5 {
                own.spawn(Compaction, add_one(&counter));
            }
            own.drain();
            sender.send(counter.load(SeqCst)).unwrap();
            drop(own);
        });
        if jobs.is_stepped() {
            owner.drain();
        }
        drop((owner, jobs));
        assert_eq!(result.recv().unwrap(), 5);
    }
}

#[test]
fn dropping_the_last_handle_runs_and_awaits_queued_jobs() {
    for _ in 0..20 * scale() {
        let (jobs, count) = (Jobs::threads(2), Arc::new(AtomicUsize::new(0)));
        let owner = jobs.new_owner();
        for priority in [Gc, Compaction, Flush, Commit].repeat(5) {
            owner.spawn(priority, add_one(&count));
        }
        drop((owner, jobs));
        assert_eq!(count.load(SeqCst), 20);
        assert_eq!(Arc::strong_count(&count), 1, "every job is gone");
    }
}

#[test]
fn waits_end_by_notification_or_timeout() {
    let jobs = Jobs::threads(2);
    assert!(!jobs.wait_until(Some(Duration::from_millis(1)), &mut || false));
    assert!(!jobs.wait_until(Some(Duration::ZERO), &mut || false));
    // Two threads pass a ball many times, and each catch is a notification.
    let (ball, owner) = (Arc::new(AtomicU64::new(0)), jobs.new_owner());
    let throws = 2000 * scale();
    for side in 0..2 {
        let (pool, ball) = (jobs.clone(), ball.clone());
        let priority = if side == 0 { Commit } else { Flush };
        owner.spawn(priority, move || {
            while ball.load(SeqCst) < throws {
                pool.wait_until(None, &mut || {
                    let at = ball.load(SeqCst);
                    at % 2 == side || at >= throws
                });
                let _ = ball.fetch_update(SeqCst, SeqCst, |at| {
                    (at % 2 == side && at < throws).then_some(at + 1)
                });
                pool.notify();
            }
        });
    }
    owner.drain();
    assert_eq!(ball.load(SeqCst), throws);
}

#[test]
fn jobs_of_many_owners_run_from_many_threads() {
    let jobs = Jobs::threads(3);
    let total = Arc::new(AtomicU64::new(0));
    basalt_env::thread::scope(|scope| {
        for seed in 0..4 {
            let (jobs, total) = (jobs.clone(), total.clone());
            scope.spawn(move || {
                let random = Random::from_seed(seed);
                for _ in 0..50 * scale() {
                    let owner = jobs.new_owner();
                    let mine = Arc::new(AtomicU64::new(0));
                    let n = random.below(20);
                    for _ in 0..n {
                        let priority = [Commit, Flush, Housekeeping, Compaction, Gc, Helper]
                            [random.below(6) as usize];
                        let (mine, total) = (mine.clone(), total.clone());
                        owner.spawn(priority, move || {
                            mine.fetch_add(1, SeqCst);
                            total.fetch_add(1, SeqCst);
                        });
                    }
                    owner.drain();
                    assert_eq!(mine.load(SeqCst), n, "seed {seed}");
                }
            });
        }
    });
    assert_eq!(jobs.pending(), [0; 6]);
}

#[test]
fn delayed_jobs_run_at_their_time_and_drain_ignores_them() {
    let manual_clock = ManualClock::new(0);
    let jobs = Jobs::stepped(Clock::manual(manual_clock.clone()));
    let (a, b) = (jobs.new_owner(), jobs.new_owner());
    let log = Log::default();
    let ms = Duration::from_millis;
    a.spawn_after(Flush, ms(20), say(&log, "later"));
    a.spawn_after(Compaction, ms(10), say(&log, "sooner"));
    b.spawn_after(Commit, ms(10), say(&log, "of another"));
    assert!(!jobs.step(), "nothing is due");
    manual_clock.advance(ms(10));
    // Jobs that are due queue by priority, as any other.
    assert!(jobs.step());
    assert_eq!(*log.lock().unwrap(), ["of another"]);
    // A drain runs a job that is due, and drops a job that is not.
    a.drain();
    assert_eq!(*log.lock().unwrap(), ["of another", "sooner"]);
    manual_clock.advance(ms(100));
    assert!(!jobs.step(), "dropped by the drain");
    a.spawn_after(Gc, ms(5), say(&log, "cancelled"));
    assert_eq!(a.cancel(), 1);
    manual_clock.advance(ms(100));
    assert!(!jobs.step());
}

#[test]
fn delayed_jobs_run_with_idle_no_or_busy_threads() {
    let jobs = Jobs::threads(1);
    let owner = jobs.new_owner();
    let (done, finished) = mpsc::channel();
    let wait = || {
        finished
            .recv_timeout(Duration::from_secs(30))
            .expect("a delayed job comes due")
    };
    let sender = |what: &'static str| {
        let done = done.clone();
        move || done.send(what).unwrap()
    };
    // No thread has been started yet.
    owner.spawn_after(Flush, Duration::from_millis(5), sender("first"));
    assert_eq!(wait(), "first");
    // The thread waits without an end, then until a far time, then until a near one.
    owner.spawn_after(Flush, Duration::from_secs(3600), sender("far"));
    owner.spawn_after(Flush, Duration::from_millis(5), sender("near"));
    assert_eq!(wait(), "near");
    // The only thread is busy, but the commit lane is not.
    owner.spawn(Commit, sender("lane"));
    assert_eq!(wait(), "lane");
    let (release, held) = mpsc::channel::<()>();
    owner.spawn(Compaction, move || {
        let _ = held.recv();
    });
    owner.spawn_after(Commit, Duration::from_millis(5), sender("beside"));
    assert_eq!(wait(), "beside");
    release.send(()).unwrap();
    owner.drain();
    assert!(finished.try_recv().is_err(), "the far one is dropped");
}

/// The only thread waited for delayed jobs, then took a long job. No thread waited for delayed jobs
/// any more, although a second thread could be started.
#[test]
fn a_busy_thread_hands_over_the_wait_for_delayed_jobs() {
    let jobs = Jobs::threads(2);
    let owner = jobs.new_owner();
    let rest = || jobs.wait_until(Some(Duration::from_millis(30)), &mut || false);
    let (done, finished) = mpsc::channel();
    owner.spawn_after(Flush, Duration::from_millis(300), move || {
        done.send(()).unwrap();
    });
    rest();
    let (release, held) = mpsc::channel::<()>();
    owner.spawn(Compaction, move || {
        let _ = held.recv();
    });
    rest();
    finished
        .recv_timeout(Duration::from_secs(30))
        .expect("a delayed job comes due beside a long one");
    release.send(()).unwrap();
    owner.drain();
}
