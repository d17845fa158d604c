//! The queue of events between the engine and its listeners. What it promises stands in [`crate::listener`].
//!
//! It holds nothing of the engine: a listener that blocks keeps no store alive.

use crate::listener::{Event, EventListener, QUEUED_EVENTS};
use basalt_env::Jobs;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Event>,
    listeners: Vec<Arc<dyn EventListener>>,
    /// Events ever queued, and told or lost.
    queued: u64,
    done: u64,
    lost: u64,
    listeners_lost: u64,
    /// A thread or job is at it, or on its way.
    telling: bool,
    /// The store is closed: listeners go when all is told.
    closed: bool,
}

/// A store's events. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Events(Arc<Inner>);

struct Inner {
    /// Nobody listens: asked without the lock.
    has_no_listeners: AtomicBool,
    queue: Mutex<Queue>,
    told: Condvar,
}

impl Events {
    pub fn new(listeners: Vec<Arc<dyn EventListener>>) -> Events {
        Events(Arc::new(Inner {
            has_no_listeners: AtomicBool::new(listeners.is_empty()),
            queue: Mutex::new(Queue {
                listeners,
                ..Queue::default()
            }),
            told: Condvar::new(),
        }))
    }

    /// Nobody listens.
    pub fn has_no_listeners(&self) -> bool {
        self.0.has_no_listeners.load(SeqCst)
    }

    /// Queues an event, which is made only if somebody listens. Takes no other lock and may be called under any.
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
        // A job would run wherever somebody waits, also under the writer's lock, which a listener that writes needs.
        if jobs.is_stepped() || std::mem::replace(&mut queue.telling, true) {
            return;
        }
        drop(queue);
        let inner = self.0.clone();
        if basalt_env::thread::spawn("basalt-events", move || inner.tell_all()).is_err() {
            // No thread to be had: the next event tries again, and so does whoever waits.
            self.0.queue.lock().telling = false;
            self.0.told.notify_all();
        }
    }

    /// Waits until everything queued so far was told or lost. Stepped, it is told now, by the caller.
    pub fn wait(&self, jobs: &Jobs) {
        let mut queue = self.0.queue.lock();
        if jobs.is_stepped() && !std::mem::replace(&mut queue.telling, true) {
            drop(queue);
            self.0.tell_all();
            return;
        }
        let upto = queue.queued;
        while queue.done < upto && queue.telling {
            self.0.told.wait(&mut queue);
        }
    }

    /// No further event comes. Listeners are let go of when what is queued was told.
    pub fn close(&self) {
        self.0.has_no_listeners.store(true, SeqCst);
        let mut queue = self.0.queue.lock();
        queue.closed = true;
        let gone = if queue.telling {
            Vec::new()
        } else {
            std::mem::take(&mut queue.listeners)
        };
        drop(queue);
        drop(gone);
    }

    /// Events that were dropped because listeners were slow, and listeners that panicked.
    pub fn lost(&self) -> (u64, u64) {
        let queue = self.0.queue.lock();
        (queue.lost, queue.listeners_lost)
    }
}

impl Inner {
    fn tell_all(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(event) = queue.waiting.pop_front() else {
                queue.telling = false;
                let gone = if queue.closed {
                    std::mem::take(&mut queue.listeners)
                } else {
                    Vec::new()
                };
                self.told.notify_all();
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
            self.told.notify_all();
            drop(queue);
            // The last holder of a listener may be this; its drop is user code, too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panicked)));
        }
    }
}
