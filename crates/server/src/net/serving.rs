//! A client's turn: it runs requests and reads bytes, in bounded portions, until it has to wait.

use super::background::Requester;
use super::connection::{Connection, Progress};
use super::many_names::ManyCommand;
use super::{Server, enqueue};
use crate::command::{Action, Executed, Outcome, table};
use crate::epoch::Epochs;
use crate::resp::request::Request;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of requests of one client in a turn.
const REQUESTS_A_TURN: usize = 1024;
/// Number of reads of one client's socket in a turn.
const READS_A_TURN: usize = 8;
/// Number of reads of the store for one client, after which its turn ends.
const STORE_READS_A_TURN: u64 = 256;
/// Bytes of separated values that are read for one client in a turn.
const STORE_BYTES_A_TURN: u64 = 2 << 20;
/// A turn ends after this time, even if it has read little: the device may be slow.
const TIME_A_TURN: Duration = Duration::from_millis(5);

/// The costs so far when a turn began.
pub(super) struct Spent {
    reads: u64,
    bytes: u64,
    now: Duration,
}

impl Server {
    /// Returns the costs so far.
    pub(super) fn begin_turn(&self) -> Spent {
        let (reads, bytes) = self.exec.keys.spent();
        let now = self.exec.env.clock().now();
        Spent { reads, bytes, now }
    }

    /// Returns true if the loop has spent at least `turns` client turns since `since`: in reads, in
    /// bytes or in time.
    pub(super) fn is_spent(&self, since: &Spent, turns: u32) -> bool {
        let (reads, bytes) = self.exec.keys.spent();
        reads - since.reads >= STORE_READS_A_TURN * u64::from(turns)
            || bytes - since.bytes >= STORE_BYTES_A_TURN * u64::from(turns)
            || self.exec.env.clock().now() - since.now >= TIME_A_TURN * turns
    }

    /// Runs a client's turn.
    pub(super) fn serve(&mut self, slot: usize) {
        let Some(mut c) = self.connections[slot].take() else {
            return;
        };
        c.queued = false;
        let reads = self.exec.keys.spent().0;
        let names = self.exec.keys.names();
        self.assemble(&mut c, slot);
        let alive = self.turn(&mut c, slot);
        let peak = &mut self.exec.counters.turn_names_peak;
        *peak = (self.exec.keys.names() - names).max(*peak);
        let reads = self.exec.keys.spent().0 - reads;
        let peak = &mut self.exec.counters.turn_reads_peak;
        *peak = reads.max(*peak);
        self.account(&mut c, slot);
        self.connections[slot] = Some(c);
        if alive {
            self.to_write.push(slot);
        } else {
            self.drop_client(slot);
        }
        for action in std::mem::take(&mut self.exec.actions) {
            let (victim, id) = match action {
                Action::Kill { slot, id } => (slot, id),
                Action::Unblock { slot, id, end } => {
                    self.unblock(slot, id, end);
                    continue;
                }
            };
            match &mut self.connections[victim] {
                // The client closes itself, after its reply was sent. A request behind this one
                // never runs, and must not keep its fetch.
                Some(c) if c.id == id && victim == slot => {
                    c.closing = true;
                    c.parked = None;
                    let many = c.many.take();
                    let mut c = self.connections[victim].take().expect("just seen");
                    self.end_fetch(&mut c);
                    self.connections[victim] = Some(c);
                    if let Some(many) = many {
                        self.preparer.discard_command(many);
                    }
                }
                Some(c) if c.id == id => self.drop_client(victim),
                _ => {}
            }
        }
    }

    /// Runs requests and reads bytes in turn. Returns false if the connection is broken.
    fn turn(&mut self, c: &mut Connection, slot: usize) -> bool {
        let mut requests = 0;
        let mut reads = 0;
        let begun = self.begin_turn();
        loop {
            c.starved = false;
            loop {
                // A command with very many names that has begun ends: while its fetch is behind, no
                // layer of another client is taken. A request that has pinned streams ends, too,
                // because other requests wait for their turn.
                let is_unread = c.reply_bytes() > self.exec.options.reply_soft_bytes;
                let others_wait = c.many.is_some() || self.exec.keys.has_pins(c.id);
                if c.closing || c.slow || (is_unread && !others_wait) {
                    return true;
                }
                if c.parked.is_some() && !c.unparked {
                    // A blocked client that has closed its side would wait forever.
                    return !(c.reset || (c.blocked.is_some() && c.peer_closed));
                }
                let mut is_full = self.exec.keys.is_full();
                if is_full {
                    self.submit();
                    is_full = self.exec.keys.is_full();
                }
                if requests == REQUESTS_A_TURN || (requests > 0 && self.is_spent(&begun, 1)) {
                    enqueue(&mut self.run_list, c, slot);
                    return true;
                }
                let request = match c.parked.take() {
                    Some(request) => Ok(Some(request)),
                    None => c.parser.next(&mut c.input),
                };
                match request {
                    Ok(Some(mut request)) => {
                        requests += 1;
                        if is_http(request.arg(0)) {
                            // This is a browser that a web page led here. It must not send commands
                            // in a body.
                            return false;
                        }
                        if is_full && c.many.is_none() && is_write(&request) {
                            // Reads continue, because they take none of the room that writes wait
                            // for. A command with very many names waits when it is ready.
                            c.parked = Some(request);
                            self.stall(c, slot);
                            return true;
                        }
                        if c.many.is_none() {
                            c.many = ManyCommand::take(&mut request);
                        }
                        if !self.execute(c, slot, &request) {
                            c.parked = Some(request);
                            return true;
                        }
                        if c.reply_bytes() > self.exec.options.reply_hard_bytes {
                            return false;
                        }
                    }
                    Ok(None) => {
                        c.starved = true;
                        break;
                    }
                    Err(e) => {
                        let text = format!("ERR Protocol error: {e}");
                        self.exec.counters.count_errors(text.as_bytes(), 1);
                        self.reply.clear();
                        self.reply.error(text);
                        c.push(&mut self.reply, 0, 1);
                        c.closing = true;
                        return true;
                    }
                }
            }
            c.rest();
            if !c.readable || self.stopping.is_some() {
                return true;
            }
            if reads == READS_A_TURN || (reads > 0 && self.is_spent(&begun, 1)) {
                enqueue(&mut self.run_list, c, slot);
                return true;
            }
            reads += 1;
            match c.read(&mut self.buffer) {
                Progress::Bytes(n) => {
                    c.active = self.now;
                    self.exec.counters.input_bytes += n as u64;
                }
                Progress::Blocked | Progress::Ended => return true,
                Progress::Broken => return false,
            }
        }
    }

    /// Lets a client's request wait for room for its writes.
    pub(super) fn stall(&mut self, c: &mut Connection, slot: usize) {
        c.unparked = true;
        if !std::mem::replace(&mut c.stalled, true) {
            self.stalled.push(slot);
        }
    }

    /// Lets the requests that wait for room check again.
    pub(super) fn wake_stalled(&mut self) {
        for slot in std::mem::take(&mut self.stalled) {
            if let Some(c) = &mut self.connections[slot] {
                c.stalled = false;
                enqueue(&mut self.run_list, c, slot);
            }
        }
    }

    /// Runs a request. Returns false if it must run again later.
    fn execute(&mut self, c: &mut Connection, slot: usize, request: &Request) -> bool {
        self.reply.clear();
        // Requests that have waited come first.
        let first = std::mem::take(&mut c.unparked);
        if let Some(need) = c.needs_fetch.take() {
            self.fetch(c, slot, request, need, first);
            return false;
        }
        if c.many.is_some() {
            let ended = self.run_many(c, slot, first);
            if ended {
                self.give_place_back(c);
            }
            return ended;
        }
        self.exec.slow_room = self.slow.room() > 0 && (first || self.parked.is_empty());
        self.exec.resumed = self.resumed(c);
        self.exec.keys.use_fetch(c.fetching.then_some(c.id));
        let Executed {
            outcome,
            depends_on,
            replies,
        } = self.exec.execute(slot, request, &mut self.reply);
        self.exec.keys.use_fetch(None);
        let outcome = match outcome {
            // A server that stops has already disconnected the blocked clients.
            Outcome::Block(_) if self.stopping.is_some() => Outcome::Close,
            outcome => outcome,
        };
        match outcome {
            Outcome::Fetch(need) => {
                self.fetch(c, slot, request, need, first);
                return false;
            }
            Outcome::Stream(need) => {
                self.await_stream(c, slot, need);
                return false;
            }
            Outcome::Block(block) => {
                self.end_fetch(c);
                self.wait_for(c, slot, depends_on);
                self.block(c, slot, *block, depends_on);
                return false;
            }
            _ => {}
        }
        self.end_fetch(c);
        let depends_on = depends_on | self.end_block(c, slot);
        self.wait_for(c, slot, depends_on);
        match outcome {
            Outcome::Replied => {}
            Outcome::Close => c.closing = true,
            Outcome::Later => {
                let requester = Requester { slot, id: c.id };
                if first {
                    self.parked.push_front(requester);
                } else {
                    self.parked.push_back(requester);
                }
                return false;
            }
            Outcome::NoCursor => {
                self.cursorless.push(Requester { slot, id: c.id });
                return false;
            }
            Outcome::Fetch(_) | Outcome::Stream(_) | Outcome::Block(_) => {
                unreachable!("it waits already")
            }
            Outcome::Slow(read) => {
                c.push_slow(depends_on, u32::from(replies));
                let requester = Requester { slot, id: c.id };
                let clock = self.exec.env.clock().clone();
                c.gone = Some(read.gone.clone());
                self.slow.ask(requester, *read, &self.shared, &clock);
                return true;
            }
            Outcome::Shutdown => {
                c.closing = true;
                self.shared.stop.store(true, Ordering::Release);
                self.shared.wake();
                return true;
            }
        }
        if replies {
            c.push(&mut self.reply, depends_on, 1);
        }
        true
    }

    /// Makes the replies of a client wait for epochs.
    pub(super) fn wait_for(&mut self, c: &mut Connection, slot: usize, depends_on: Epochs) {
        let new = depends_on & !c.waits_for;
        let requester = Requester { slot, id: c.id };
        for (epoch, waiting) in self.waiting.iter_mut().enumerate() {
            if new & 1 << epoch != 0 {
                waiting.push(requester);
            }
        }
        c.waits_for |= new;
    }

    /// Lets clients whose requests wait for the thread for slow reads continue, as many as it has
    /// room for.
    pub(super) fn unpark(&mut self) {
        let mut room = self.slow.room();
        while room > 0
            && let Some(requester) = self.parked.pop_front()
        {
            let c = self.connections[requester.slot].as_mut();
            // The other clients have disconnected.
            if let Some(c) = c.filter(|c| c.id == requester.id && c.parked.is_some()) {
                c.unparked = true;
                enqueue(&mut self.run_list, c, requester.slot);
                room -= 1;
            }
        }
        // Clients may disconnect faster than there is room.
        if self.parked.len() > 2 * self.connections.len() {
            let connections = &self.connections;
            self.parked.retain(|requester| {
                let c = connections[requester.slot].as_ref();
                c.is_some_and(|c| c.id == requester.id)
            });
        }
    }
}

/// Returns true if a request writes.
fn is_write(request: &Request) -> bool {
    table::resolve(request).is_ok_and(|spec| spec.writes())
}

/// Returns true for the first word of an HTTP request, which a web page can make a browser send
/// here.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
