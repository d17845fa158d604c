//! Requests that wait for a stream: another thread creates its log, loads it or reads its entries
//! ([`crate::stream::jobs`]), and then the request runs again.

use super::background::{Requester, join, start};
use super::connection::Connection;
use super::{Event, LoopHandle, Server, enqueue};
use crate::keyspace::StreamNeed;
use crate::store::Store;
use crate::stream::jobs::{StreamAnswer, StreamJob, run};
use basalt::env::thread::{BackgroundThread, StopSignal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

/// The requester of the server's own jobs.
const NO_CLIENT: Requester = Requester {
    slot: usize::MAX,
    id: 0,
};

/// The result of a job for a client's request.
pub(super) struct StreamResult {
    requester: Requester,
    /// The number of the job.
    number: u64,
    answer: StreamAnswer,
}

/// The thread that runs the jobs on streams, one after the other.
#[derive(Default)]
pub(super) struct StreamWorker {
    queue: Option<mpsc::Sender<(Requester, u64, StreamJob)>>,
    stop: StopSignal,
    thread: Option<BackgroundThread>,
    awaited: usize,
    /// Number of jobs so far.
    asked: u64,
    /// The slots of clients whose requests wait until others with pinned streams end, by client id.
    turns: BTreeMap<u64, usize>,
}

impl StreamWorker {
    /// Returns true if the result of a job is outstanding, or requests wait for their turn.
    pub fn is_busy(&self) -> bool {
        self.awaited > 0 || !self.turns.is_empty()
    }

    /// Queues a job, whose result is posted to `shared`. Returns the job's number.
    pub fn ask(
        &mut self,
        requester: Requester,
        job: StreamJob,
        store: &Arc<dyn Store>,
        shared: &Arc<LoopHandle>,
    ) -> u64 {
        self.awaited += 1;
        self.asked += 1;
        let number = self.asked;
        if self.queue.is_none() {
            let (sender, receiver) = mpsc::channel::<(Requester, u64, StreamJob)>();
            let (store, shared, stop) = (store.clone(), shared.clone(), self.stop.clone());
            self.thread = start("basalt-streams", move || {
                for (requester, number, job) in receiver {
                    if stop.is_sent() {
                        return;
                    }
                    let answer = run(&*store, job);
                    shared.post(Event::Stream(StreamResult {
                        requester,
                        number,
                        answer,
                    }));
                }
            });
            self.queue = Some(sender);
        }
        let queue = self.queue.as_ref().expect("just made");
        if let Err(mpsc::SendError((requester, number, job))) = queue.send((requester, number, job))
        {
            // The thread could not be started: a slow answer is better than none.
            let answer = run(&**store, job);
            shared.post(Event::Stream(StreamResult {
                requester,
                number,
                answer,
            }));
        }
        number
    }
}

impl Drop for StreamWorker {
    fn drop(&mut self) {
        self.stop.send();
        self.queue = None;
        join(&mut self.thread);
    }
}

impl Server {
    /// Makes a client's request wait for a stream.
    pub(super) fn await_stream(&mut self, c: &mut Connection, slot: usize, need: StreamNeed) {
        // The request may have run before its turn.
        if std::mem::take(&mut c.awaits_turn) {
            self.streams.turns.remove(&c.id);
        }
        match need {
            StreamNeed::Busy => self.stall(c, slot),
            StreamNeed::Turn => {
                // A request with pins may wait for a place for its fetch. So a request must not
                // keep such a place while it waits for requests with pins.
                self.give_up_fetch(c);
                c.awaits_turn = true;
                self.streams.turns.insert(c.id, slot);
            }
            StreamNeed::Job(job) => {
                // The keyspace has noted the job, so the job must run. A request with a job does
                // not run before its answer ([`Connection::may_run_blocked`]).
                debug_assert!(c.stream_job.is_none(), "one job at a time");
                let requester = Requester { slot, id: c.id };
                let store = self.exec.keys.store().clone();
                let number = self.streams.ask(requester, *job, &store, &self.shared);
                c.stream_job = Some(number);
            }
        }
    }

    /// Lets requests run again whose turn to pin streams has come.
    pub(super) fn unpark_turns(&mut self) {
        for id in self.exec.keys.take_admitted() {
            let Some(slot) = self.streams.turns.remove(&id) else {
                continue;
            };
            let c = self.connections[slot].as_mut();
            if let Some(c) = c.filter(|c| c.id == id) {
                c.awaits_turn = false;
                c.unparked = true;
                enqueue(&mut self.run_list, c, slot);
            }
        }
    }

    /// Forgets what a client's request, which has run or never will, needed for its streams.
    pub(super) fn end_stream_request(&mut self, c: &mut Connection) {
        c.stream_job = None;
        if std::mem::take(&mut c.awaits_turn) {
            self.streams.turns.remove(&c.id);
        }
        self.exec.keys.end_stream_request(c.id);
    }

    /// Begins to remove the records of dead entries from logs, in the background.
    pub(super) fn remove_entries(&mut self) {
        if let Some(job) = self.exec.keys.take_removals() {
            let store = self.exec.keys.store().clone();
            self.streams.ask(NO_CLIENT, job, &store, &self.shared);
        }
    }

    /// Applies the result of a job.
    pub(super) fn stream_done(&mut self, result: StreamResult) {
        self.streams.awaited -= 1;
        let StreamResult {
            requester,
            number,
            answer,
        } = result;
        if let StreamAnswer::Removed(_, Err(e)) = &answer {
            super::background::report(&format!("removing entries of streams failed: {e}"));
        }
        let c = self.connections.get_mut(requester.slot);
        let c = c.and_then(Option::as_mut);
        let waits = |c: &&mut Connection| c.id == requester.id && c.stream_job == Some(number);
        match c.filter(waits) {
            Some(c) => {
                c.stream_job = None;
                c.unparked = true;
                enqueue(&mut self.run_list, c, requester.slot);
                self.exec.keys.take_stream_answer(requester.id, answer);
            }
            // The request has ended, by a timeout or with its client. What the job has read may be
            // older than the client's next request. Later requests can use a loaded stream or a new
            // log.
            None => {
                self.exec.keys.take_stream_answer(NO_CLIENT.id, answer);
                self.exec.keys.end_stream_request(NO_CLIENT.id);
            }
        }
        self.wake_stalled();
    }
}
