//! Replies of commands with very many names ([`super::many_names`]), made in pieces: each turn of
//! the loop adds the answers of some names to a reply.

use super::connection::Connection;
use super::{Server, enqueue};
use crate::answers::{Answers, ManyAnswer};
use crate::command::{store_error, too_long};
use crate::resp::reply::Reply;
use std::sync::Arc;

/// Names whose answers one turn adds to a reply.
const NAMES_A_TURN: usize = 1024;

/// The content of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The number of names whose keys exist.
    Existing,
    /// The number of keys that existed.
    Deleted,
    /// The strings.
    Strings,
}

/// A reply that is made in pieces from answers in memory.
pub(super) struct Assembly {
    answers: Arc<Answers>,
    purpose: Purpose,
    /// Time at which the command took effect, in ms since 1970.
    now_ms: u64,
    /// Index of the next name.
    next: usize,
    reply: Reply,
    hits: u64,
    misses: u64,
}

impl Assembly {
    /// Begins a reply with the bytes in `reply`.
    pub fn new(answers: Arc<Answers>, purpose: Purpose, now_ms: u64, reply: Reply) -> Assembly {
        Assembly {
            answers,
            purpose,
            now_ms,
            next: 0,
            reply,
            hits: 0,
            misses: 0,
        }
    }

    /// Returns the bytes of memory that the reply holds.
    pub fn memory(&self) -> usize {
        self.answers.names().memory() + self.answers.memory() + self.reply.len()
    }

    /// Adds the answers of the names before `end`. Returns the text of an error that replaces the
    /// reply.
    fn add(&mut self, end: usize, limit: usize) -> Result<(), String> {
        for name in self.next..end {
            // A key that is named twice is deleted once.
            if self.purpose == Purpose::Deleted && !self.answers.names().is_last(name) {
                continue;
            }
            let answer = self.answers.answer(name, self.now_ms);
            if let ManyAnswer::Failed(e) = answer {
                return Err(store_error(e));
            }
            let is_there = !matches!(answer, ManyAnswer::Absent);
            self.hits += u64::from(is_there);
            self.misses += u64::from(!is_there);
            if self.purpose == Purpose::Strings {
                match answer {
                    ManyAnswer::String(data) => self.reply.bulk(data),
                    ManyAnswer::Shared(data) => self.reply.bulk_of(data),
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

impl Server {
    /// Adds the answers of some names to a client's reply.
    pub(super) fn assemble(&mut self, c: &mut Connection, slot: usize) {
        let Some(mut a) = c.assembly.take() else {
            return;
        };
        let limit = self.exec.options.reply_hard_bytes;
        let names = a.answers.names().len();
        let end = names.min(a.next + NAMES_A_TURN);
        self.exec.keys.add_names(end - a.next);
        // The fetch ended early because the strings together were too long.
        let added = match a.answers.has_all() {
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
                if a.purpose != Purpose::Deleted {
                    self.exec.counters.hits += a.hits;
                    self.exec.counters.misses += a.misses;
                }
                if a.purpose != Purpose::Strings {
                    reply.integer(a.hits as i64);
                }
            }
            Err(text) => {
                self.exec.counters.count_errors(text.as_bytes(), 1);
                reply.clear();
                reply.error_bytes(text.as_bytes());
            }
        }
        self.preparer.discard(a);
        c.slow_done(reply);
    }
}
