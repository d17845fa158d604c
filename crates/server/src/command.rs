//! Commands. All run on one thread, one request after the other. Writes go into the keyspace's open
//! epoch, and the connection holds the reply until the epochs that it depends on have ended.
//!
//! A handler reads and checks everything before its first write, so that an error never leaves half
//! a command behind.

pub(crate) mod budgets;
pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod info;
pub(crate) mod introspect;
pub(crate) mod key;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod system;
pub mod table;

use crate::cursor::Cursors;
use crate::epoch::Epochs;
use crate::fetch::Need;
use crate::keyspace::{Capture, Keyspace, Missed, StreamNeed};
use crate::layout;
use crate::options::{ServerOptions, SyncPolicy};
use crate::resp::Protocol;
use crate::resp::reply::Reply;
use crate::resp::request::Request;
use crate::store::Store;
use crate::stream::StreamId;
use basalt::{Bytes, Env, Error, ErrorKind};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use table::Spec;

/// The reason of an error reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A text that begins with its code.
    Text(String),
    /// The key has another type than the command works on.
    WrongType,
    /// The store failed.
    Store(Error),
    /// Nothing was done. The request runs again when its keys were fetched.
    Fetch(Need),
    /// Nothing was done. The request runs again when the stream is in memory.
    Stream(StreamNeed),
}

impl From<Missed> for Failure {
    fn from(missed: Missed) -> Failure {
        match missed {
            Missed::Fetch(need) => Failure::Fetch(need),
            Missed::Stream(need) => Failure::Stream(need),
            Missed::Store(e) => Failure::Store(e),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Store(e)
    }
}

impl Failure {
    pub fn new(text: impl Into<String>) -> Failure {
        Failure::Text(text.into())
    }
    pub fn syntax() -> Failure {
        Failure::new("ERR syntax error")
    }
    pub fn not_an_integer() -> Failure {
        Failure::new("ERR value is not an integer or out of range")
    }
    /// Returns the text of the error reply.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Failure::Text(t) => t.into(),
            Failure::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".into()
            }
            Failure::Store(e) => store_error(e).into(),
            Failure::Fetch(_) | Failure::Stream(_) => {
                "ERR the keys of this command were not fetched".into()
            }
        }
    }
}

/// Returns the error reply for an error of the store. The codes are those of client libraries:
/// READONLY and MISCONF for a store that accepts no writes now, ERR for the rest.
pub(crate) fn store_error(e: &Error) -> String {
    let code = match e.kind() {
        ErrorKind::ReadOnly => "READONLY",
        ErrorKind::NoSpace | ErrorKind::Poisoned | ErrorKind::Io => "MISCONF",
        ErrorKind::Busy => "BUSY",
        _ => "ERR",
    };
    format!("{code} {e}")
}

pub(crate) type CommandResult = Result<Outcome, Failure>;

/// The end of a command.
pub(crate) enum Outcome {
    /// The reply is complete.
    Replied,
    /// The reply is complete, and the connection closes after it.
    Close,
    /// Another thread makes the reply. The client's next requests wait for it.
    Slow(Box<SlowRead>),
    /// Nothing was done. The request runs again when the thread for slow reads has room.
    Later,
    /// Nothing was done. The request runs again when another thread has read its keys.
    Fetch(Need),
    /// Nothing was done. The request runs again when the stream is in memory.
    Stream(StreamNeed),
    /// Nothing was done. The request runs again when one of its streams was written, or when its
    /// timeout has passed.
    Block(Box<Block>),
    /// Nothing was done. The request runs again when cursor numbers were reserved, or the
    /// reservation failed.
    NoCursor,
    /// The server stops, without a reply.
    Shutdown,
}

/// The wait of a blocking request.
pub(crate) struct Block {
    /// Longest wait in ms, or 0 for no limit.
    pub timeout_ms: u64,
    /// The keys of the streams whose writes end the wait.
    pub keys: Vec<Bytes>,
    /// The request waits for entries after these ids, one for each key. Empty for XREADGROUP.
    pub after: Vec<StreamId>,
    /// The groups that the request reads with, one for each key. Empty for XREAD.
    pub groups: Vec<AwaitingGroup>,
}

/// A group that a blocked request reads with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitingGroup {
    /// The incarnation of the stream.
    pub incarnation: u64,
    /// The number of the group in its stream.
    pub group: u64,
}

/// The reason why a blocked request ends without entries.
#[derive(Debug, Clone)]
pub(crate) enum BlockEnd {
    TimedOut,
    /// CLIENT UNBLOCK with ERROR.
    Refused,
    /// The commit of writes has failed that the first run of the request has seen.
    Failed(Error),
}

/// A blocked request that runs again.
pub(crate) struct Resumed {
    pub after: Vec<StreamId>,
    pub groups: Vec<AwaitingGroup>,
    pub end: Option<BlockEnd>,
}

/// A read of the whole keyspace.
pub(crate) struct SlowRead {
    pub capture: Capture,
    pub what: SlowKind,
    pub reply: Reply,
    pub reply_limit: usize,
    /// Set when no client waits for the result any more.
    pub gone: Arc<AtomicBool>,
}

/// The error reply to a read of the whole keyspace that a stopping server has no time for.
pub(crate) const NO_SLOW_READS: &str = "ERR the server is stopping and ends walks over all keys";

/// The purpose of a [`SlowRead`].
pub(crate) enum SlowKind {
    Count,
    Keys {
        pattern: Vec<u8>,
    },
    /// A copy of the store in a directory.
    Checkpoint {
        store: Arc<dyn Store>,
        target: PathBuf,
    },
    /// Some key, searched from this engine key on if there is one.
    Random {
        from: Vec<u8>,
    },
}

/// The number of keys at the time of the count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub keys: u64,
    pub expires: u64,
    /// The first expiry after the count, in ms since 1970. Without changes, the count is exact
    /// until then.
    pub next_expiry_ms: Option<u64>,
    pub changes: u64,
    pub counted_at_ms: u64,
}

/// The settings of a connection, and its fields in CLIENT LIST.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: u64,
    pub address: SocketAddr,
    pub local: SocketAddr,
    pub name: String,
    pub library: String,
    pub library_version: String,
    pub protocol: Protocol,
    pub reply_off: bool,
    pub reply_skip: bool,
    pub reply_skip_next: bool,
    pub no_evict: bool,
    /// True if the client's request waits for entries of streams.
    pub blocked: bool,
    pub created: Duration,
    pub last: Duration,
    pub last_command: &'static str,
    pub input_bytes: usize,
    pub reply_bytes: usize,
}

impl Session {
    /// Returns the bytes whose length the client chose.
    pub fn memory(&self) -> usize {
        self.name.len() + self.library.len() + self.library_version.len()
    }
}

/// Counters since the start or CONFIG RESETSTAT.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counters {
    pub connections: u64,
    pub rejected: u64,
    pub evicted_clients: u64,
    /// Clients that were disconnected because they were idle.
    pub idle_clients: u64,
    pub commands: u64,
    pub errors: u64,
    /// Error replies by the code at the beginning of their text.
    pub errors_by_code: BTreeMap<String, u64>,
    pub hits: u64,
    pub misses: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub epochs: u64,
    pub epoch_failures: u64,
    pub cursors_forgotten: u64,
    /// The most reads of the store that one client's turn on the loop had.
    pub turn_reads_peak: u64,
    /// The most names that one client's turn on the loop looked for.
    pub turn_names_peak: u64,
    /// Requests whose keys another thread read.
    pub fetches: u64,
}

/// Number of error codes that are counted apart. The server's own texts have fewer. The bound is
/// for texts without a code.
const ERROR_CODES: usize = 32;
/// Longest error code in bytes, as in Redis.
const ERROR_CODE_LEN: usize = 32;

impl Counters {
    /// Counts error replies by the first word of their text, as Redis does.
    pub fn count_errors(&mut self, text: &[u8], n: u64) {
        if n == 0 {
            return;
        }
        self.errors += n;
        let head = &text[..text.len().min(ERROR_CODE_LEN)];
        let code = head.iter().position(|b| *b == b' ').map(|end| &head[..end]);
        let known = |code: &&[u8]| !code.is_empty() && code.iter().all(u8::is_ascii_uppercase);
        let code = String::from_utf8_lossy(code.filter(known).unwrap_or(b"ERR"));
        if let Some(count) = self.errors_by_code.get_mut(&*code) {
            *count += n;
        } else if self.errors_by_code.len() < ERROR_CODES {
            self.errors_by_code.insert(code.into_owned(), n);
        }
    }
}

/// A request of a command to the event loop.
#[derive(Debug)]
pub(crate) enum Action {
    /// Closes the connection in a slot, if it still has this id.
    Kill { slot: usize, id: u64 },
    /// Ends the wait of a blocked request.
    Unblock { slot: usize, id: u64, end: BlockEnd },
}

/// The state that commands work on.
pub(crate) struct Executor {
    pub env: Env,
    pub options: ServerOptions,
    pub keys: Keyspace,
    pub sync: SyncPolicy,
    pub sessions: Vec<Option<Session>>,
    pub cursors: Cursors,
    /// The error of the last failed reservation of cursor numbers, for requests that waited for it.
    pub cursor_failure: Option<Error>,
    /// True if another block of cursor numbers should be reserved.
    pub cursors_wanted: bool,
    pub counters: Counters,
    pub count: Option<Count>,
    pub actions: Vec<Action>,
    /// The running request, if it was blocked before.
    pub resumed: Option<Resumed>,
    /// True if the thread for slow reads has room.
    pub slow_room: bool,
    /// True if the server stops, and has no time for slow reads.
    pub no_slow_reads: bool,
    pub started: Duration,
    pub listening: SocketAddr,
    pub client_bytes: u64,
    pub client_bytes_peak: u64,
    /// Bytes of requests whose clients have disconnected, and which another thread still holds.
    pub gone_client_bytes: u64,
    pub budget_gauges: budgets::BudgetGauges,
    /// Commands and time at the last INFO, for rates.
    pub sampled: (u64, Duration),
}

/// The context of one command.
pub(crate) struct Context<'a> {
    pub exec: &'a mut Executor,
    pub slot: usize,
    pub reply: &'a mut Reply,
    pub spec: &'static Spec,
}

impl Context<'_> {
    pub fn session(&mut self) -> &mut Session {
        self.exec.sessions[self.slot]
            .as_mut()
            .expect("the running command's session")
    }
    pub fn keys(&mut self) -> &mut Keyspace {
        &mut self.exec.keys
    }
    pub fn now_ms(&self) -> u64 {
        self.exec.keys.now_ms()
    }
}

/// The result of a command for the event loop.
pub(crate) struct Executed {
    pub outcome: Outcome,
    pub depends_on: Epochs,
    /// False if the client asked for no reply.
    pub replies: bool,
}

impl Executor {
    /// Returns the number of keys, if it was counted since the last change.
    pub fn exact_count(&self) -> Option<u64> {
        let count = self.count?;
        let now = self.keys.now_ms();
        (count.changes == self.keys.changes() && count.next_expiry_ms.is_none_or(|at| at > now))
            .then_some(count.keys)
    }

    /// Runs one request of the session in `slot`. `reply` must be empty. It receives exactly one
    /// reply, unless the outcome is slow or to come later.
    pub fn execute(&mut self, slot: usize, request: &Request, reply: &mut Reply) -> Executed {
        debug_assert!(reply.is_empty());
        self.counters.commands += 1;
        self.keys.begin(self.env.clock().wall_ms());
        let now = self.env.clock().now();
        let looked_up = (self.counters.hits, self.counters.misses);
        let session = self.sessions[slot].as_mut().expect("a session");
        session.last = now;
        reply.set_protocol(session.protocol);
        let outcome = match table::resolve(request) {
            Ok(spec) => {
                session.last_command = spec.full_name;
                self.keys.set_client(session.id, spec.writes());
                let mut context = Context {
                    exec: self,
                    slot,
                    reply,
                    spec,
                };
                let checked =
                    check_arguments(spec, request).and_then(|()| check_keys(spec, request));
                match checked.and_then(|()| (spec.run)(&mut context, request)) {
                    Err(Failure::Fetch(need)) => Ok(Outcome::Fetch(need)),
                    Err(Failure::Stream(need)) => Ok(Outcome::Stream(need)),
                    done => done,
                }
            }
            Err(text) => Err(Failure::Text(text)),
        };
        let outcome = outcome.unwrap_or_else(|failure| {
            assert!(
                !self.keys.wrote(),
                "a command failed after its first write: {failure:?}"
            );
            let text = failure.text();
            self.counters.count_errors(text.as_bytes(), 1);
            reply.clear();
            reply.error_bytes(text.as_bytes());
            Outcome::Replied
        });
        if matches!(
            outcome,
            Outcome::Later
                | Outcome::NoCursor
                | Outcome::Fetch(..)
                | Outcome::Stream(..)
                | Outcome::Block(..)
        ) {
            assert!(!self.keys.wrote(), "a command that runs again has written");
            (self.counters.hits, self.counters.misses) = looked_up;
            reply.clear();
            self.counters.commands -= 1;
            // A blocked request keeps what it has seen, so it depends on these epochs. The other
            // outcomes keep nothing.
            let seen = self.keys.finish();
            let keeps = matches!(outcome, Outcome::Block(..));
            return Executed {
                outcome,
                depends_on: if keeps { seen } else { 0 },
                replies: false,
            };
        }
        let replies = self.takes_reply(slot);
        if !replies {
            reply.clear();
        }
        Executed {
            outcome,
            depends_on: self.keys.finish(),
            replies,
        }
    }

    /// Counts a command that CLIENT REPLY may leave without a reply. Returns true if it has one.
    fn takes_reply(&mut self, slot: usize) -> bool {
        let session = self.sessions[slot].as_mut().expect("a session");
        let silent = session.reply_off || session.reply_skip;
        session.reply_skip = std::mem::take(&mut session.reply_skip_next);
        !silent
    }

    /// Counts a command that runs in pieces, as [`Executor::execute`] does for others. Returns an
    /// empty reply for it, and true if the client takes one.
    pub fn execute_in_pieces(&mut self, slot: usize, spec: &Spec) -> (Reply, bool) {
        self.counters.commands += 1;
        let now = self.env.clock().now();
        let session = self.sessions[slot].as_mut().expect("a session");
        (session.last, session.last_command) = (now, spec.full_name);
        let reply = Reply::new(session.protocol);
        (reply, self.takes_reply(slot))
    }
}

/// Greatest number of arguments of a command without a list of keys. The loop reads all of them in
/// one turn.
const MOST_ARGUMENTS: usize = 65_536;

/// Refuses requests with so many options, names or patterns that other clients would wait long.
fn check_arguments(spec: &Spec, request: &Request) -> Result<(), Failure> {
    let takes_list = spec.keys.1 < 0;
    if !takes_list && request.len() > MOST_ARGUMENTS {
        return Err(Failure::new(format!(
            "ERR too many arguments for '{}' command: {}, at most {MOST_ARGUMENTS} are allowed",
            spec.full_name,
            request.len()
        )));
    }
    Ok(())
}

/// Refuses keys that the engine cannot hold, before the command does anything.
fn check_keys(spec: &Spec, request: &Request) -> Result<(), Failure> {
    if !spec.writes() {
        return Ok(());
    }
    for i in spec.keys(request.len()) {
        let len = request.arg(i).len();
        if len > layout::MAX_KEY_LEN {
            return Err(Failure::new(format!(
                "ERR key is too long: {len} bytes, at most {} are allowed",
                layout::MAX_KEY_LEN
            )));
        }
    }
    Ok(())
}

/// Returns the error of a command whose reply exceeds the limit.
pub(crate) fn too_long(limit: usize) -> Failure {
    Failure::new(format!("ERR the reply would exceed {limit} bytes"))
}

/// Parses an integer argument.
pub(crate) fn integer(request: &Request, index: usize) -> Result<i64, Failure> {
    crate::number::parse_i64(request.arg(index)).ok_or_else(Failure::not_an_integer)
}

/// Returns an argument as an upper-case word, for options.
pub(crate) fn word(request: &Request, index: usize) -> String {
    String::from_utf8_lossy(request.arg(index)).to_ascii_uppercase()
}

/// Returns a client's bytes for an error text: up to the first NUL, as Redis's C strings do.
pub(crate) fn quoted(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
}

pub(crate) fn wrong_arguments(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

#[cfg(test)]
mod tests;
