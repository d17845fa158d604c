//! Tests of owned threads and of the signal that stops them.

use super::{BackgroundThread, StopSignal, panic_message};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

/// Starts a thread that waits for a signal and then sets the flag.
fn waiter(stop: &StopSignal, ended: &Arc<AtomicBool>) -> BackgroundThread {
    let (stop, ended) = (stop.clone(), ended.clone());
    let run = move || {
        while !stop.wait_for(Duration::from_secs(3600)) {}
        ended.store(true, SeqCst);
    };
    BackgroundThread::start("test-waiter", run).unwrap()
}

#[test]
fn a_join_and_a_drop_wait_for_the_end() {
    for drops in [false, true] {
        let (stop, ended) = (StopSignal::default(), Arc::new(AtomicBool::new(false)));
        let thread = waiter(&stop, &ended);
        assert!(!ended.load(SeqCst));
        stop.send();
        match drops {
            true => drop(thread),
            false => thread.join().unwrap(),
        }
        assert!(ended.load(SeqCst));
    }
}

#[test]
fn a_detached_thread_runs_on() {
    let (stop, ended) = (StopSignal::default(), Arc::new(AtomicBool::new(false)));
    // This would wait for ever if it waited for the thread.
    waiter(&stop, &ended).detach();
    assert!(!ended.load(SeqCst));
    stop.send();
}

#[test]
fn a_join_returns_the_message_of_a_panic() {
    let start = |run: fn()| BackgroundThread::start("test-panic", run).unwrap();
    let seven = || panic!("the number is {}", std::hint::black_box(7));
    assert_eq!(start(seven).join().unwrap_err(), "the number is 7");
    let silent = || std::panic::resume_unwind(Box::new(7));
    assert_eq!(start(silent).join().unwrap_err(), "");
    // A drop swallows the panic.
    drop(start(silent));
    assert_eq!(panic_message(&"text").as_deref(), Some("text"));
    assert_eq!(panic_message(&7), None);
}

#[test]
fn a_signal_is_sent_once_and_for_all_clones() {
    let stop = StopSignal::default();
    let clone = stop.clone();
    assert!(!stop.is_sent() && !clone.wait_for(Duration::ZERO));
    stop.send();
    stop.send();
    // A wait that begins after the signal returns at once.
    assert!(clone.is_sent() && clone.wait_for(Duration::from_secs(3600)));
}

#[test]
fn one_signal_wakes_all_waiters() {
    let stop = StopSignal::default();
    let (sender, receiver) = mpsc::channel();
    let start = |n: usize| {
        let (stop, sender) = (stop.clone(), sender.clone());
        let run = move || {
            while !stop.wait_for(Duration::from_secs(3600)) {}
            sender.send(n).unwrap();
        };
        BackgroundThread::start("test-waiter", run).unwrap()
    };
    let threads: Vec<_> = (0..4).map(start).collect();
    stop.send();
    drop(threads);
    drop(sender);
    let mut woken: Vec<usize> = receiver.iter().collect();
    woken.sort_unstable();
    assert_eq!(woken, [0, 1, 2, 3]);
}
