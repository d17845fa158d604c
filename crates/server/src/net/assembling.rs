//! Reads with many names, in pieces: EXISTS, TOUCH and MGET with more than [`MANY_NAMES`].
//!
//! Such a request does not run at once. Its names are fetched first, and the answers follow writes
//! ([`crate::fetch`]). When every name has an answer, the command takes effect: the answers are frozen,
//! and the client's place for the reply is kept. Then each turn of the loop adds the answers of some
//! names to the reply.

use super::background::Asker;
use super::connection::Connection;
use super::{Server, enqueue};
use crate::command::table::{self, Spec};
use crate::command::{store_error, too_long};
use crate::fetch::{Answer, Fetch, Need};
use crate::layout;
use crate::resp::reply::Reply;
use crate::resp::request::Request;

/// With more names than this, a read runs in pieces.
const MANY_NAMES: usize = 1024;
/// Names whose answers one turn adds to a reply.
const NAMES_A_TURN: usize = 1024;

/// A reply that is made in pieces of answers that are there.
pub(super) struct Assembly {
    /// `None` until the turn that began it hands it over.
    pub request: Option<Request>,
    fetch: Fetch,
    /// When the command took effect, ms since 1970.
    now_ms: u64,
    /// The next name.
    next: usize,
    reply: Reply,
    hits: u64,
    misses: u64,
}

impl Assembly {
    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        let request = self.request.as_ref().map_or(0, Request::memory);
        request + self.fetch.memory() + self.reply.len()
    }

    /// Adds the answers of the names before `end`; an error's text instead of the reply if there is
    /// one.
    fn add(&mut self, end: usize, limit: usize) -> Result<(), String> {
        let request = self.request.as_ref().expect("handed over");
        let is_alive = |at: Option<u64>| at.is_none_or(|at| at > self.now_ms);
        for name in self.next..end {
            let key = request.arg(name);
            let answer = match key.len() > layout::MAX_KEY_LEN {
                true => &Answer::Absent,
                false => self.fetch.answer(key).expect("every name has an answer"),
            };
            let is_there = match answer {
                Answer::Absent => false,
                Answer::Plain(_) => true,
                Answer::Meta(meta) => is_alive(meta.expire_at_ms),
                Answer::Value(v) | Answer::Part(v) => is_alive(v.expire_at_ms),
                Answer::Failed(e) => return Err(store_error(e)),
            };
            self.hits += u64::from(is_there);
            self.misses += u64::from(!is_there);
            if self.fetch.need() == Need::Strings {
                match answer {
                    Answer::Value(v) if is_there => self.reply.bulk_of(&v.data),
                    _ => self.reply.null(),
                }
                if self.reply.len() > limit {
                    return Err(too_long(limit).text().into_owned());
                }
            }
        }
        self.next = end;
        Ok(())
    }
}

/// What a read with many names needs of them; `None` for other requests.
pub(super) fn many_names(request: &Request) -> Option<(Need, &'static Spec)> {
    if request.len() <= MANY_NAMES {
        return None;
    }
    let spec = table::resolve(request).ok()?;
    match spec.name {
        "exists" | "touch" => Some((Need::Meta, spec)),
        "mget" => Some((Need::Strings, spec)),
        _ => None,
    }
}

impl Server {
    /// Runs a read with many names: fetches them, or takes effect if they were fetched. False when
    /// the request waits.
    pub(super) fn run_in_pieces(
        &mut self,
        c: &mut Connection,
        slot: usize,
        request: &Request,
        (need, spec): (Need, &'static Spec),
        first: bool,
    ) -> bool {
        let frozen = match c.fetching {
            true => self.exec.keys.freeze(c.id),
            false => None,
        };
        let Some((fetch, depends_on)) = frozen else {
            // Not fetched yet, or a write that it followed failed, or the keyspace was flushed.
            self.fetch(c, slot, request, need, first);
            return false;
        };
        c.fetching = false;
        c.give_up_fetch();
        let (mut reply, replies) = self.exec.execute_in_pieces(slot, spec);
        if need == Need::Strings {
            reply.array(request.len() - 1);
        }
        self.wait_for(c, slot, depends_on);
        c.push_slow(depends_on, u32::from(replies));
        c.assembly = Some(Box::new(Assembly {
            request: None,
            fetch,
            now_ms: self.exec.env.clock().wall_ms(),
            next: 1,
            reply,
            hits: 0,
            misses: 0,
        }));
        enqueue(&mut self.run_list, c, slot);
        true
    }

    /// Makes the replies of a client wait for epochs.
    pub(super) fn wait_for(&mut self, c: &mut Connection, slot: usize, depends_on: u16) {
        let new = depends_on & !c.waits_for;
        let asker = Asker { slot, id: c.id };
        for (epoch, waiting) in self.waiting.iter_mut().enumerate() {
            if new & 1 << epoch != 0 {
                waiting.push(asker);
            }
        }
        c.waits_for |= new;
    }

    /// Adds the answers of some names to a client's reply.
    pub(super) fn assemble(&mut self, c: &mut Connection, slot: usize) {
        let Some(mut a) = c.assembly.take() else {
            return;
        };
        let limit = self.exec.options.reply_hard_bytes;
        let names = a.request.as_ref().expect("handed over").len();
        let end = names.min(a.next + NAMES_A_TURN);
        self.exec.keys.add_names(end - a.next);
        // Fetching ended early when the strings were too long together.
        let added = match a.fetch.has_all() {
            true => a.add(end, limit),
            false => Err(too_long(limit).text().into_owned()),
        };
        let mut reply = std::mem::take(&mut a.reply);
        match added {
            Ok(()) if end < names => {
                a.reply = reply;
                c.assembly = Some(a);
                enqueue(&mut self.run_list, c, slot);
                return;
            }
            Ok(()) => {
                self.exec.counters.hits += a.hits;
                self.exec.counters.misses += a.misses;
                if a.fetch.need() == Need::Meta {
                    reply.integer(a.hits as i64);
                }
            }
            Err(text) => {
                self.exec.counters.count_errors(text.as_bytes(), 1);
                reply.clear();
                reply.error_bytes(text.as_bytes());
            }
        }
        self.fetcher.discard(a);
        c.slow_done(reply);
    }
}
