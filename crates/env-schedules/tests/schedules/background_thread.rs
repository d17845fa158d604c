//! Background threads and the signal that stops them: threads that wait for the signal with and
//! without a limit, or only ask for it, while threads send it, and owners that join their threads,
//! drop them or let them run on. The scheduler reports a thread that is never woken as a deadlock.

use crate::{assert_taken, case};
use basalt_env_schedules::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use basalt_env_schedules::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env_schedules::sync::yield_now;
use basalt_env_schedules::thread::{BackgroundThread, StopSignal};
use basalt_sim::{campaign, repeat};
use std::sync::Arc;
use std::time::Duration;

/// The way in which a thread learns of the signal.
#[derive(Clone, Copy)]
enum Watch {
    /// It waits without a limit.
    Waits,
    /// It waits with a limit, which may be over at any moment.
    WaitsFor,
    /// It asks now and then.
    Asks,
}

/// A thread that serves a request, like the thread of the server that syncs once a second.
#[derive(Default)]
struct Worker {
    /// True from the request until the thread serves it.
    requested: AtomicBool,
    /// Number of times that the thread has served requests.
    served: AtomicU64,
    ended: AtomicBool,
}

impl Worker {
    fn run(&self, stop: &StopSignal, watch: Watch) {
        loop {
            let last = match watch {
                Watch::Waits => stop.wait_for(Duration::MAX),
                Watch::WaitsFor => stop.wait_for(Duration::from_secs(1)),
                Watch::Asks => {
                    yield_now();
                    stop.is_sent()
                }
            };
            if self.requested.swap(false, SeqCst) {
                self.served.fetch_add(1, SeqCst);
            }
            if last {
                break;
            }
            assert!(!matches!(watch, Watch::Waits), "a wait ended by itself");
        }
        assert!(stop.is_sent(), "a thread ended without the signal");
        self.ended.store(true, SeqCst);
    }
}

/// Requests something of the worker and sends the signal. Returns true if the signal was not sent
/// before the request, so that the worker must serve it.
fn request_and_stop(worker: &Worker, stop: &StopSignal) -> bool {
    worker.requested.store(true, SeqCst);
    let in_time = !stop.is_sent();
    stop.send();
    assert!(stop.is_sent() && stop.wait_for(Duration::MAX));
    in_time
}

/// Ends the ownership of a thread. However it ends, the thread ends, too.
fn release(thread: BackgroundThread, worker: &Worker) {
    match below(4) {
        0 => {
            thread.detach();
            while !worker.ended.load(SeqCst) {
                yield_now();
            }
        }
        1 => thread.join().expect("it does not panic"),
        _ => drop(thread),
    }
    assert!(worker.ended.load(SeqCst), "the owner did not wait");
}

fn model(totals: &Counts) {
    let stop = StopSignal::default();
    let early = percent(15);
    if early {
        stop.send();
    }
    let start = |_| {
        let worker = Arc::new(Worker::default());
        let watch = [Watch::Waits, Watch::WaitsFor, Watch::Asks][below(3) as usize];
        let (own, signal) = (worker.clone(), stop.clone());
        let run = move || own.run(&signal, watch);
        let thread = BackgroundThread::start("worker", run).expect("a thread starts");
        (thread, worker)
    };
    let workers: Vec<_> = (0..1 + below(2)).map(start).collect();
    let first = workers[0].1.clone();
    // Two threads may send the signal at once, also before a worker starts or waits.
    let senders: Vec<_> = (0..1 + below(2))
        .map(|_| {
            let (worker, stop) = (first.clone(), stop.clone());
            shuttle::thread::spawn(move || request_and_stop(&worker, &stop))
        })
        .collect();
    // An owner that sends no signal waits until another thread has sent it.
    if percent(50) {
        stop.send();
    }
    for (thread, worker) in workers {
        release(thread, &worker);
    }
    let in_time = senders.into_iter().map(|s| s.join().expect("it sends"));
    let in_time = in_time.filter(|in_time| *in_time).count() as u64;
    let served = first.served.load(SeqCst);
    assert!(in_time == 0 || served > 0, "a request was lost");
    count(totals, 0, shuttle::current::context_switches() as u64);
    count(totals, 1, in_time);
    count(totals, 2, u64::from(early));
}

#[test]
fn background_threads_end_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..20 * campaign::scale()) {
        let _repeat = repeat!(
            background_threads_end_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, in_time, early] = std::array::from_fn(|i| counted(&totals, i));
    campaign!(
        "stop_schedules={schedules} steps={steps} requests_in_time={in_time} sent_early={early}"
    );
    if campaign::case().is_none() {
        assert!(
            in_time > schedules / 4,
            "few requests are in time: {in_time}"
        );
        assert!(early > schedules / 20, "few signals are early: {early}");
        assert_taken(&["StopSignal::lock"]);
    }
}
