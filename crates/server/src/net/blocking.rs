//! Requests that wait for entries of streams (XREAD and XREADGROUP with BLOCK). A blocked request
//! stays on its connection. It runs again when an epoch has ended that adds to one of its streams,
//! or removes the stream or a group. It does not run before the end of that epoch, so no client
//! sees an entry that could be lost. Requests run again in the order of their arrival.
//!
//! The first run of a request may see writes whose commits have not ended: a last id that `$`
//! stands for, or a new group. If such a commit fails, the request is answered with its error, as a
//! request that does not block is. The request cannot wait on, because what it has kept never
//! existed. It is not run anew either: `$` would then stand for a later id in its other streams,
//! and the client would miss entries without a notice. If a later run of the request has seen such
//! writes, it only runs again, because later runs keep nothing.

use super::background::Requester;
use super::connection::Connection;
use super::{Server, enqueue};
use crate::command::{AwaitingGroup, Block, BlockEnd, Resumed};
use crate::epoch::Epochs;
use crate::stream::StreamId;
use basalt::{Bytes, Error};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The wait of one request.
pub(crate) struct BlockedRequest {
    /// The request's position in the order of arrival.
    number: u64,
    /// Time at which the wait ends, or `None` for never.
    until: Option<Duration>,
    keys: Vec<Bytes>,
    after: Vec<StreamId>,
    groups: Vec<AwaitingGroup>,
    /// Epochs that have not ended and whose writes the first run has seen.
    depends_on: Epochs,
    /// Epochs that have not ended and whose writes a later run has seen.
    seen_again: Epochs,
    end: Option<BlockEnd>,
}

impl BlockedRequest {
    /// Notes that an epoch has ended. Returns true if the request must run again.
    pub fn epoch_ended(&mut self, epoch: usize, result: &Result<(), Error>) -> bool {
        let bit = 1 << epoch;
        let (first, again) = (self.depends_on & bit != 0, self.seen_again & bit != 0);
        self.depends_on &= !bit;
        self.seen_again &= !bit;
        let Err(e) = result else { return false };
        if first && self.end.is_none() {
            self.end = Some(BlockEnd::Failed(e.clone()));
        }
        first || again
    }
}

impl Connection {
    /// Returns true if a blocked request may run now. A request that waits for a job on a stream
    /// runs when the job has ended, and sees all writes until then. If each wake-up ran it, each
    /// could queue another job, without limit. A request that waits for its turn to pin streams
    /// runs when its turn has come.
    pub(super) fn may_run_blocked(&self) -> bool {
        let ends = self.blocked.as_ref().is_some_and(|b| b.end.is_some());
        ends || (self.stream_job.is_none() && !self.awaits_turn)
    }
}

/// The blocked clients.
#[derive(Default)]
pub(super) struct BlockedClients {
    /// Number of requests that were blocked so far.
    begun: u64,
    clients: BTreeMap<u64, Requester>,
    by_key: BTreeMap<Bytes, BTreeSet<u64>>,
    deadlines: BTreeSet<(Duration, u64)>,
}

impl BlockedClients {
    /// Returns the time at which the first wait ends.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }
}

impl Server {
    /// Blocks a client's request, whose run has seen the writes of the epochs `depends_on`. A
    /// blocked request stays blocked.
    pub(super) fn block(
        &mut self,
        c: &mut Connection,
        slot: usize,
        block: Block,
        depends_on: Epochs,
    ) {
        if let Some(blocked) = &mut c.blocked {
            blocked.seen_again |= depends_on;
            return;
        }
        self.blocked.begun += 1;
        let number = self.blocked.begun;
        let timeout = (block.timeout_ms > 0).then(|| Duration::from_millis(block.timeout_ms));
        let until = timeout.map(|timeout| self.exec.env.clock().now().saturating_add(timeout));
        let requester = Requester { slot, id: c.id };
        self.blocked.clients.insert(number, requester);
        self.blocked.deadlines.extend(until.map(|at| (at, number)));
        for key in &block.keys {
            let waiting = self.blocked.by_key.entry(key.clone()).or_default();
            waiting.insert(number);
            self.exec.keys.watch(key);
        }
        if let Some(session) = &mut self.exec.sessions[slot] {
            session.blocked = true;
        }
        c.blocked = Some(Box::new(BlockedRequest {
            number,
            until,
            keys: block.keys,
            after: block.after,
            groups: block.groups,
            depends_on,
            seen_again: 0,
            end: None,
        }));
    }

    /// Returns the state of a blocked request for its next run. Returns `None` if the request is
    /// not blocked.
    pub(super) fn resumed(&self, c: &Connection) -> Option<Resumed> {
        let blocked = c.blocked.as_ref()?;
        Some(Resumed {
            after: blocked.after.clone(),
            groups: blocked.groups.clone(),
            end: blocked.end.clone(),
        })
    }

    /// Unblocks a client's request, which was answered or will not run again. Returns the epochs
    /// that its answer depends on besides those of its last run.
    pub(super) fn end_block(&mut self, c: &mut Connection, slot: usize) -> Epochs {
        let Some(blocked) = c.blocked.take() else {
            return 0;
        };
        self.blocked.clients.remove(&blocked.number);
        if let Some(at) = blocked.until {
            self.blocked.deadlines.remove(&(at, blocked.number));
        }
        for key in &blocked.keys {
            self.exec.keys.unwatch(key);
            if let Some(waiting) = self.blocked.by_key.get_mut(key) {
                waiting.remove(&blocked.number);
                if waiting.is_empty() {
                    self.blocked.by_key.remove(key);
                }
            }
        }
        if let Some(session) = &mut self.exec.sessions[slot] {
            session.blocked = false;
        }
        blocked.depends_on
    }

    /// Schedules the blocked requests for which an epoch has ended that wrote one of their streams.
    pub(super) fn wake_blocked(&mut self) {
        let written = self.exec.keys.take_written_streams();
        let waiting = |key| self.blocked.by_key.get(key).into_iter().flatten();
        let woken: BTreeSet<u64> = written.iter().flat_map(waiting).copied().collect();
        for number in woken {
            self.run_blocked(number, None);
        }
    }

    /// Ends the waits whose time has passed.
    pub(super) fn expire_blocked(&mut self) {
        while let Some((at, number)) = self.blocked.deadlines.first().copied()
            && at <= self.now
        {
            self.blocked.deadlines.remove(&(at, number));
            self.run_blocked(number, Some(BlockEnd::TimedOut));
        }
    }

    /// Ends the wait of a client, if it is blocked.
    pub(super) fn unblock(&mut self, slot: usize, id: u64, end: BlockEnd) {
        let c = self.connections[slot].as_ref().filter(|c| c.id == id);
        if let Some(number) = c.and_then(|c| Some(c.blocked.as_ref()?.number)) {
            self.run_blocked(number, Some(end));
        }
    }

    fn run_blocked(&mut self, number: u64, end: Option<BlockEnd>) {
        let Some(requester) = self.blocked.clients.get(&number) else {
            return;
        };
        let c = self.connections[requester.slot].as_mut();
        let Some(c) = c.filter(|c| c.id == requester.id) else {
            return;
        };
        if let Some(blocked) = &mut c.blocked {
            blocked.end = blocked.end.take().or(end);
        }
        if c.may_run_blocked() {
            c.unparked = true;
            enqueue(&mut self.run_list, c, requester.slot);
        }
    }

    /// Disconnects the blocked clients, because the server stops.
    pub(super) fn drop_blocked(&mut self) {
        let clients: Vec<Requester> = self.blocked.clients.values().copied().collect();
        for client in clients {
            self.drop_client(client.slot);
        }
    }
}
