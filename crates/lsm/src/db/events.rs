//! The queue of events between the engine and its listeners. [`crate::listener`] documents its
//! promises.
//!
//! The queue holds no reference to the engine, so a listener that blocks keeps no store alive.

use crate::listener::{Event, EventListener, QUEUED_EVENTS};
use basalt_env::Jobs;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[derive(Default)]
struct EventQueue {
    waiting: VecDeque<Event>,
    listeners: Vec<Arc<dyn EventListener>>,
    /// Number of events ever queued. `done` is the number of those that were delivered or lost.
    queued: u64,
    done: u64,
    lost: u64,
    listeners_lost: u64,
    /// True while a thread or a job delivers events, or is about to.
    is_delivering: bool,
    /// True once the store is closed. Listeners are dropped when all events are delivered.
    closed: bool,
}

/// A store's events. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events(Arc<Inner>);

struct Inner {
    /// True if the store has no listeners. This is read without the lock.
    has_no_listeners: AtomicBool,
    queue: Mutex<EventQueue>,
    delivered: Condvar,
}

impl Events {
    pub fn new(listeners: Vec<Arc<dyn EventListener>>) -> Events {
        Events(Arc::new(Inner {
            has_no_listeners: AtomicBool::new(listeners.is_empty()),
            queue: Mutex::new(EventQueue {
                listeners,
                ..EventQueue::default()
            }),
            delivered: Condvar::new(),
        }))
    }

    /// Returns true if the store has no listeners.
    pub fn has_no_listeners(&self) -> bool {
        self.0.has_no_listeners.load(SeqCst)
    }

    /// Queues an event. `make` is called only if the store has listeners. Takes no other lock and
    /// may be called under any lock.
    pub fn notify(&self, jobs: &Jobs, make: impl FnOnce() -> Event) {
        if self.has_no_listeners() {
            return;
        }
        let event = make();
        let mut queue = self.0.queue.lock();
        if queue.closed {
            return;
        }
        if queue.waiting.len() >= QUEUED_EVENTS {
            queue.waiting.pop_front();
            queue.lost += 1;
            queue.done += 1;
        }
        queue.waiting.push_back(event);
        queue.queued += 1;
        // A job would run wherever a thread waits, also under the writer's lock, which a listener
        // that writes needs.
        if jobs.is_stepped() || std::mem::replace(&mut queue.is_delivering, true) {
            return;
        }
        drop(queue);
        let inner = self.0.clone();
        if basalt_env::thread::spawn("basalt-events", move || inner.deliver_all()).is_err() {
            // No thread is available: the next event tries again. A thread that waits for delivery
            // delivers the events itself.
            self.0.queue.lock().is_delivering = false;
            self.0.delivered.notify_all();
        }
    }

    /// Waits until all events queued so far were delivered or lost. The caller delivers them now
    /// under a stepped scheduler, and if no thread could be started for them.
    pub fn wait(&self) {
        let mut queue = self.0.queue.lock();
        let upto = queue.queued;
        while queue.done < upto {
            if queue.is_delivering {
                self.0.delivered.wait(&mut queue);
                continue;
            }
            queue.is_delivering = true;
            drop(queue);
            self.0.deliver_all();
            queue = self.0.queue.lock();
        }
    }

    /// Ends the queue: no further event comes. Listeners are dropped once the queued events are
    /// delivered. The caller delivers them as in [`Events::wait`], but waits for no other thread.
    pub fn close(&self) {
        self.0.has_no_listeners.store(true, SeqCst);
        let mut queue = self.0.queue.lock();
        queue.closed = true;
        if !std::mem::replace(&mut queue.is_delivering, true) {
            drop(queue);
            self.0.deliver_all();
        }
    }

    /// Returns the number of events that were dropped because listeners were slow, and the number
    /// of panics of listeners.
    pub fn lost(&self) -> (u64, u64) {
        let queue = self.0.queue.lock();
        (queue.lost, queue.listeners_lost)
    }
}

impl Inner {
    /// Delivers events until none waits. The caller has set `is_delivering`.
    fn deliver_all(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(event) = queue.waiting.pop_front() else {
                queue.is_delivering = false;
                let gone = if queue.closed {
                    std::mem::take(&mut queue.listeners)
                } else {
                    Vec::new()
                };
                self.delivered.notify_all();
                drop(queue);
                drop(gone);
                return;
            };
            let listeners = queue.listeners.clone();
            drop(queue);
            let panicked: Vec<_> = listeners
                .into_iter()
                .filter(|l| catch_unwind(AssertUnwindSafe(|| l.on_event(&event))).is_err())
                .collect();
            let mut queue = self.queue.lock();
            queue
                .listeners
                .retain(|l| !panicked.iter().any(|p| Arc::ptr_eq(p, l)));
            queue.listeners_lost += panicked.len() as u64;
            queue.done += 1;
            self.delivered.notify_all();
            drop(queue);
            // This may be the last reference to a listener, and its `drop` is user code, too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panicked)));
        }
    }
}
