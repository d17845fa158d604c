//! Results: ended epochs and slow reads release replies, replies go to their sockets, and the
//! memory of all clients is reserved within its bound.

use super::background::SlowResult;
use super::connection::{Connection, Progress};
use super::{Event, Server, enqueue};
use crate::command::{Session, store_error};
use crate::options::SyncPolicy;
use basalt::Result;

/// The bound divided by this number is the share below which a client holds too little to be
/// disconnected for.
const SMALL_SHARE: u64 = 64;

/// The bytes that a client holds of the bound.
#[derive(Clone, Copy)]
struct ClientShare {
    slot: usize,
    bytes: u64,
    /// True if the client asked to stay.
    stays: bool,
}

/// Returns the client to disconnect if all clients together hold more than `bound`: the one that
/// holds most of those that did not ask to stay. Asking has no effect once the clients that asked
/// hold half of the bound. Asking also never disconnects a client with a small share. Otherwise one
/// client that asks could drive out all the others, which would free no memory.
fn pick_client_to_close(holders: impl Iterator<Item = ClientShare>, bound: u64) -> Option<usize> {
    let most = |a: Option<ClientShare>, b: ClientShare| match a {
        Some(a) if a.bytes > b.bytes => Some(a),
        _ => Some(b),
    };
    let (mut any, mut other, mut staying) = (None, None, 0);
    for holder in holders {
        any = most(any, holder);
        if holder.stays {
            staying += holder.bytes;
        } else {
            other = most(other, holder);
        }
    }
    let other = other.filter(|o| staying <= bound / 2 && o.bytes >= bound / SMALL_SHARE);
    other.or(any).map(|h| h.slot)
}

impl Server {
    /// Takes in the results of other threads.
    pub(super) fn take_events(&mut self) {
        loop {
            let events = std::mem::take(&mut *self.shared.events.lock());
            if events.is_empty() {
                return;
            }
            for event in events {
                match event {
                    Event::Epoch {
                        slot,
                        policy,
                        result,
                    } => self.epoch_completed(slot, policy, result),
                    Event::Slow(result) => self.slow_done(result),
                    Event::Prepared(prepared) => self.prepared(prepared),
                    Event::Fetched(fetched) => self.fetcher.take_result(fetched),
                    Event::Stream(result) => self.stream_done(result),
                    Event::Swept(result) => self.swept(*result),
                    Event::Cursors(first) => self.cursors_done(first),
                }
            }
            // One epoch less is in flight, so the next may be submitted.
            self.submit();
        }
    }

    fn epoch_completed(&mut self, slot: usize, policy: SyncPolicy, result: Result<()>) {
        if result.is_err() {
            self.exec.counters.epoch_failures += 1;
            self.sweeper.commit_failed(self.now);
        } else if policy == SyncPolicy::EverySecond {
            // The policy at the submission decides. The present policy may differ, and might never
            // sync writes that were submitted before the change.
            self.syncer.written(self.exec.keys.store());
        }
        let (ended, flushed) = self.exec.keys.complete(slot, result);
        if flushed {
            self.reclaimer.start(self.exec.keys.store());
        }
        for epoch in ended {
            for requester in std::mem::take(&mut self.waiting[epoch.slot]) {
                let Some(c) = self.connections[requester.slot]
                    .as_mut()
                    .filter(|c| c.id == requester.id)
                else {
                    continue;
                };
                let failed = c.epoch_ended(epoch.slot, &epoch.result);
                let blocked = c.blocked.as_mut();
                if blocked.is_some_and(|b| b.epoch_ended(epoch.slot, &epoch.result)) {
                    c.unparked |= c.may_run_blocked();
                }
                if let Err(e) = &epoch.result {
                    let text = store_error(e);
                    self.exec.counters.count_errors(text.as_bytes(), failed);
                }
                enqueue(&mut self.run_list, c, requester.slot);
                self.to_write.push(requester.slot);
            }
        }
        self.wake_blocked();
        self.wake_stalled();
    }

    fn slow_done(&mut self, result: SlowResult) {
        self.slow.done();
        if let Some(count) = result.count {
            self.exec.count = Some(count);
        }
        let slot = result.requester.slot;
        if let Some(c) = self.connections[slot]
            .as_mut()
            .filter(|c| c.id == result.requester.id)
        {
            if let Some(text) = result.reply.error_text() {
                self.exec.counters.count_errors(text, 1);
            }
            c.slow_done(result.reply);
            enqueue(&mut self.run_list, c, slot);
            self.to_write.push(slot);
        }
    }

    fn cursors_done(&mut self, first: Result<u64>) {
        self.reserver.done();
        match first {
            Ok(first) => self.exec.cursors.give(first),
            Err(e) => self.exec.cursor_failure = Some(e),
        }
        // The failure concerns the waiting clients. The next one that needs a number tries again.
        for requester in std::mem::take(&mut self.cursorless) {
            let c = self.connections[requester.slot].as_mut();
            let waits =
                |c: &&mut Connection| c.id == requester.id && c.parked.is_some() && !c.fetching;
            if let Some(c) = c.filter(waits) {
                c.unparked = true;
                self.serve(requester.slot);
            }
        }
        self.exec.cursor_failure = None;
    }

    pub(super) fn write_replies(&mut self) {
        let mut list = std::mem::take(&mut self.to_write);
        list.sort_unstable();
        list.dedup();
        for slot in list.drain(..) {
            let Some(mut c) = self.connections[slot].take() else {
                continue;
            };
            let mut alive = true;
            if c.can_write() {
                let paused = c.reply_bytes() > self.exec.options.reply_soft_bytes;
                match c.write() {
                    Progress::Bytes(n) => {
                        if n > 0 {
                            c.active = self.now;
                        }
                        self.exec.counters.output_bytes += n as u64;
                        if paused && c.reply_bytes() <= self.exec.options.reply_soft_bytes {
                            enqueue(&mut self.run_list, &mut c, slot);
                        }
                    }
                    _ => alive = false,
                }
            }
            // No byte will come, and every reply was sent.
            let last = c.closing
                || (c.ended && c.starved)
                || (self.stopping.is_some() && c.starved && !c.slow);
            alive &= !(last && c.is_flushed());
            self.account(&mut c, slot);
            self.connections[slot] = Some(c);
            if !alive {
                self.drop_client(slot);
            }
        }
        self.to_write = list;
    }

    pub(super) fn account(&mut self, c: &mut Connection, slot: usize) {
        let session = self.exec.sessions[slot].as_ref();
        let fetched = match c.fetching {
            true => self.exec.keys.fetch_memory(c.id),
            false => 0,
        };
        let bytes = c.memory() + fetched + session.map_or(0, Session::memory);
        let total = &mut self.exec.client_bytes;
        *total = *total - c.accounted as u64 + bytes as u64;
        c.accounted = bytes;
        if let Some(session) = &mut self.exec.sessions[slot] {
            session.input_bytes = c.input.len();
            session.reply_bytes = c.reply_bytes();
        }
    }

    /// Reserves the memory in the ledger, and disconnects the client that holds most if all hold
    /// too much.
    pub(super) fn book(&mut self) {
        while self.exec.client_bytes > self.exec.options.client_memory_bytes {
            let clients = self.connections.iter().enumerate();
            let holders = clients.filter_map(|(slot, c)| {
                Some(ClientShare {
                    slot,
                    bytes: c.as_ref()?.accounted as u64,
                    stays: self.exec.sessions[slot].as_ref()?.no_evict,
                })
            });
            let Some(slot) = pick_client_to_close(holders, self.exec.options.client_memory_bytes)
            else {
                break;
            };
            self.exec.counters.evicted_clients += 1;
            self.drop_client(slot);
        }
        let peak = &mut self.exec.client_bytes_peak;
        *peak = (*peak).max(self.exec.client_bytes);
        let gone = self.preparer.gone_bytes() as u64;
        self.exec.gone_client_bytes = gone;
        let pending = self.exec.keys.pending_bytes() as u64;
        let streams = self.exec.keys.stream_memory() as u64;
        let bytes = self.exec.client_bytes + gone + pending + streams;
        if self.booked.bytes() != bytes {
            self.booked.resize(bytes);
        }
        (self.exec).show_budgets(self.connections.len() - self.free.len());
    }
}

#[cfg(test)]
mod tests;
