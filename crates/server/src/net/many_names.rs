//! Commands with more than [`MANY_NAMES`] names: EXISTS, TOUCH, MGET, DEL, UNLINK, MSET and MSETNX.
//!
//! Such a command is atomic, and each of its steps on the loop handles a bounded number of names:
//! 1. Another thread makes a table of the names ([`Names`]).
//! 2. For all commands but MSET, the fetch reads the names piece by piece, and the answers follow
//!    writes ([`crate::fetch::many_names`]).
//! 3. When every name has an answer, the command takes effect, in one step. The writes of DEL,
//!    UNLINK, MSET and MSETNX are one [`Layer`] of the open epoch.
//! 4. Then the counts and the reply are made in pieces ([`super::assembling`]).

use super::assembling::{Assembly, Purpose};
use super::background::{Requester, join, start};
use super::connection::Connection;
use super::{Event, LoopHandle, Server, enqueue};
use crate::answers::{AnswerSlots, Answers, places};
use crate::command::table::{self, Spec};
use crate::command::{store_error, wrong_arguments};
use crate::epoch::Epochs;
use crate::fetch::{Need, PIECE_NAMES};
use crate::layer::Layer;
use crate::layout;
use crate::names::Names;
use crate::resp::request::Request;
use basalt::env::thread::{BackgroundThread, StopSignal};
use basalt::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// A command with more names than this runs in pieces.
const MANY_NAMES: usize = 1024;

/// The operation of a command on its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ManyKind {
    Read(Purpose),
    Delete,
    Set,
    SetAbsent,
}

impl ManyKind {
    fn of(spec: &Spec) -> Option<ManyKind> {
        Some(match spec.name {
            "exists" | "touch" => ManyKind::Read(Purpose::Existing),
            "mget" => ManyKind::Read(Purpose::Strings),
            "del" | "unlink" => ManyKind::Delete,
            "mset" => ManyKind::Set,
            "msetnx" => ManyKind::SetAbsent,
            _ => return None,
        })
    }

    /// Returns what has to be read for each name.
    fn need(self) -> Option<Need> {
        match self {
            ManyKind::Set => None,
            ManyKind::Read(Purpose::Strings) => Some(Need::Strings),
            _ => Some(Need::Meta),
        }
    }

    /// Returns the number of arguments from one name to the next.
    fn step(self) -> usize {
        match self {
            ManyKind::Set | ManyKind::SetAbsent => 2,
            _ => 1,
        }
    }
}

/// The stage of a command with very many names.
enum Stage {
    /// The command has not begun, or waits until fetches of other clients end.
    New(Request),
    /// The other thread makes the table of names.
    Preparing,
    /// Its table of names is made. If there are places for the answers, the names are fetched next.
    /// Otherwise the names are being fetched, or need no fetch.
    Prepared(Arc<Names>, Option<AnswerSlots>),
    /// The table could not be made.
    Failed,
}

/// A command with very many names that has not taken effect.
pub(super) struct ManyCommand {
    spec: &'static Spec,
    kind: ManyKind,
    stage: Stage,
    /// Bytes of memory that the request holds, or that the input of the table being made holds.
    request_bytes: usize,
}

impl ManyCommand {
    /// Takes the command of a request if it has very many names. Leaves a request that has only the
    /// name of the command.
    pub fn take(request: &mut Request) -> Option<Box<ManyCommand>> {
        if request.len() <= MANY_NAMES {
            return None;
        }
        let spec = table::resolve(request).ok()?;
        let kind = ManyKind::of(spec).filter(|kind| request.len() / kind.step() > MANY_NAMES)?;
        let whole = std::mem::replace(request, Request::from_arguments(&[spec.name]));
        Some(Box::new(ManyCommand {
            spec,
            kind,
            request_bytes: whole.memory(),
            stage: Stage::New(whole),
        }))
    }

    /// Returns the bytes of memory that the command holds, besides its fetch.
    pub fn memory(&self) -> usize {
        match &self.stage {
            Stage::Prepared(names, places) => {
                names.memory() + places.as_ref().map_or(0, AnswerSlots::memory)
            }
            _ => self.request_bytes,
        }
    }
}

/// The result of making the table of names for a client.
pub(super) struct PreparedNames {
    requester: Requester,
    /// Bytes of the input of the table.
    input_bytes: usize,
    result: NameTable,
}

enum NameTable {
    /// The table, with places for the answers if the names have to be fetched.
    Made(Arc<Names>, Option<AnswerSlots>),
    /// The client disconnected before the table was made.
    GivenUp,
    /// Making the table has panicked.
    Failed,
}

/// The input of a table of names.
enum TableInput {
    Request(Request),
    /// A table that was made before: only the places for the answers are made again.
    Names(Arc<Names>),
}

struct PrepareJob {
    requester: Requester,
    input: TableInput,
    /// Bytes of the input.
    input_bytes: usize,
    kind: ManyKind,
    secret: u64,
    /// Set when no request waits for the table any more.
    gone: Arc<AtomicBool>,
}

impl PrepareJob {
    /// Makes the table, unless its client has gone. A panic fails this request only: the jobs
    /// behind it need this thread.
    fn run(self) -> PreparedNames {
        let (requester, input_bytes) = (self.requester, self.input_bytes);
        let result = match self.gone.load(Ordering::Acquire) {
            true => NameTable::GivenUp,
            false => catch_unwind(AssertUnwindSafe(|| self.table())).unwrap_or(NameTable::Failed),
        };
        PreparedNames {
            requester,
            input_bytes,
            result,
        }
    }

    fn table(self) -> NameTable {
        let is_write = !matches!(self.kind, ManyKind::Read(_));
        let names = match self.input {
            TableInput::Names(names) => names,
            TableInput::Request(request) => {
                Arc::new(Names::new(request, self.kind.step(), is_write, self.secret))
            }
        };
        let places = self.kind.need().map(|_| places(names.len()));
        NameTable::Made(names, places)
    }
}

enum Work {
    Prepare(PrepareJob),
    Drop(Box<dyn Send>),
}

/// The thread that makes tables of names, and frees large memory. It is not the fetching thread,
/// because a table of a million names takes longer than most reads.
#[derive(Default)]
pub(super) struct Preparer {
    queue: Option<mpsc::Sender<Work>>,
    stop: StopSignal,
    thread: Option<BackgroundThread>,
    /// Number of tables that are awaited.
    awaited: usize,
    /// Bytes of the inputs of awaited tables whose clients have gone.
    gone_bytes: usize,
}

impl Preparer {
    /// Returns the bytes that are held for clients that have gone.
    pub fn gone_bytes(&self) -> usize {
        self.gone_bytes
    }

    /// Drops a command whose client is gone, or takes no reply.
    pub fn discard_command(&mut self, command: Box<ManyCommand>) {
        if matches!(command.stage, Stage::Preparing) {
            self.gone_bytes += command.request_bytes;
        }
        self.discard(command);
    }

    /// Returns true if tables are awaited.
    pub fn is_busy(&self) -> bool {
        self.awaited > 0
    }

    /// Returns the number of tables that are awaited.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Frees memory on the thread, because freeing it takes long.
    pub fn discard(&mut self, what: Box<dyn Send>) {
        if let Some(queue) = &self.queue {
            // If there is no thread, the memory is freed here.
            let _ = queue.send(Work::Drop(what));
        }
    }

    fn prepare(&mut self, job: PrepareJob, shared: &Arc<LoopHandle>) {
        self.awaited += 1;
        if self.queue.is_none() {
            let (sender, receiver) = mpsc::channel::<Work>();
            let (shared, stop) = (shared.clone(), self.stop.clone());
            self.thread = start("basalt-names", move || {
                for work in receiver {
                    match work {
                        Work::Prepare(job) if !stop.is_sent() => {
                            shared.post(Event::Prepared(job.run()));
                        }
                        Work::Prepare(_) => {}
                        Work::Drop(what) => drop(what),
                    }
                }
            });
            self.queue = Some(sender);
        }
        let queue = self.queue.as_ref().expect("just made");
        if let Err(mpsc::SendError(Work::Prepare(job))) = queue.send(Work::Prepare(job)) {
            // The thread could not be started: a slow answer is better than none.
            shared.post(Event::Prepared(job.run()));
        }
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        self.stop.send();
        self.queue = None;
        join(&mut self.thread);
    }
}

impl Server {
    /// Continues a client's command with very many names. Returns false if the command waits and
    /// runs again later.
    pub(super) fn run_many(&mut self, c: &mut Connection, slot: usize, first: bool) -> bool {
        let mut command = c.many.take().expect("the caller has seen it");
        let kind = command.kind;
        match command.stage {
            Stage::New(request) => match refused(command.spec.name, kind, &request) {
                Some(text) => {
                    self.fail(c, slot, command.spec, &text);
                    self.preparer.discard(Box::new(request));
                    return true;
                }
                None => {
                    let writes = command.spec.writes();
                    command.stage = self.prepare(c, slot, kind, request, writes, first);
                }
            },
            Stage::Preparing => command.stage = Stage::Preparing,
            Stage::Failed => {
                let text = store_error(&Error::new(
                    ErrorKind::Poisoned,
                    "the thread that prepares requests panicked",
                ));
                self.fail(c, slot, command.spec, &text);
                return true;
            }
            Stage::Prepared(names, places) if kind.need().is_none() => {
                if !self.has_room_for_layer() {
                    command.stage = Stage::Prepared(names, places);
                    self.stall(c, slot);
                    c.many = Some(command);
                    return false;
                }
                self.take_effect(c, slot, command.spec, kind, Ready::Names(names));
                return true;
            }
            Stage::Prepared(names, Some(_)) if is_too_long(kind, &names) => {
                self.take_effect(c, slot, command.spec, kind, Ready::Names(names));
                return true;
            }
            Stage::Prepared(names, Some(places)) => {
                command.stage = Stage::Prepared(names.clone(), None);
                self.begin_many(c, slot, kind, names, places);
            }
            Stage::Prepared(names, None) => {
                let now_ms = self.exec.env.clock().wall_ms();
                let is_whole = (self.exec.keys.many(c.id)).is_some_and(|f| !f.is_void);
                command.stage = Stage::Prepared(names.clone(), None);
                if is_whole && self.exec.keys.catch_up(c.id, PIECE_NAMES, now_ms) {
                    // Other clients have their turn first.
                    c.unparked = true;
                    enqueue(&mut self.run_list, c, slot);
                } else if is_whole && command.spec.writes() && !self.has_room_for_layer() {
                    self.stall(c, slot);
                } else if let Some((answers, depends_on)) =
                    is_whole.then(|| self.exec.keys.freeze(c.id)).flatten()
                {
                    c.fetching = false;
                    c.give_up_fetch();
                    let ready = Ready::Fetched(Box::new(answers), depends_on);
                    self.take_effect(c, slot, command.spec, kind, ready);
                    return true;
                } else {
                    // A write among the answers failed, or the keyspace was flushed.
                    command.request_bytes = names.memory();
                    if let Some(fetch) = self.exec.keys.end_many(c.id) {
                        self.preparer.discard(Box::new(fetch));
                    }
                    command.stage = self.ask_for(c, slot, kind, TableInput::Names(names));
                }
            }
        }
        c.many = Some(command);
        false
    }

    /// Returns true if a further layer is taken now.
    fn has_room_for_layer(&mut self) -> bool {
        if self.exec.keys.is_full_of_layers() {
            self.submit();
        }
        !self.exec.keys.is_full_of_layers()
    }

    /// Asks for the table of names, unless too many fetches of other clients run.
    fn prepare(
        &mut self,
        c: &mut Connection,
        slot: usize,
        kind: ManyKind,
        request: Request,
        writes: bool,
        first: bool,
    ) -> Stage {
        let taken = self.exec.keys.fetches() + self.preparer.awaited;
        if !self.take_place(c, slot, taken, writes, first) {
            return Stage::New(request);
        }
        self.ask_for(c, slot, kind, TableInput::Request(request))
    }

    fn ask_for(
        &mut self,
        c: &mut Connection,
        slot: usize,
        kind: ManyKind,
        input: TableInput,
    ) -> Stage {
        c.give_up_fetch();
        let gone = c.fetch_gone.insert(Arc::default()).clone();
        let job = PrepareJob {
            requester: Requester { slot, id: c.id },
            input_bytes: match &input {
                TableInput::Request(request) => request.memory(),
                TableInput::Names(names) => names.memory(),
            },
            gone,
            input,
            kind,
            secret: self.exec.keys.secret(),
        };
        self.preparer.prepare(job, &self.shared);
        Stage::Preparing
    }

    /// Takes a table of names that was made.
    pub(super) fn prepared(&mut self, prepared: PreparedNames) {
        self.preparer.awaited -= 1;
        let slot = prepared.requester.slot;
        let c = self.connections[slot].as_mut();
        let c = c.filter(|c| c.id == prepared.requester.id && c.many.is_some());
        let Some(c) = c else {
            self.preparer.gone_bytes -= prepared.input_bytes;
            self.preparer.discard(Box::new(prepared));
            return;
        };
        if let Some(command) = c.many.as_mut() {
            command.stage = match prepared.result {
                NameTable::Made(names, places) => Stage::Prepared(names, places),
                NameTable::GivenUp | NameTable::Failed => Stage::Failed,
            };
        }
        c.unparked = true;
        enqueue(&mut self.run_list, c, slot);
    }

    /// Begins to fetch the names of a command, or begins again.
    fn begin_many(
        &mut self,
        c: &mut Connection,
        slot: usize,
        kind: ManyKind,
        names: Arc<Names>,
        places: AnswerSlots,
    ) {
        self.exec.counters.fetches += u64::from(!c.fetching);
        c.fetching = true;
        c.give_up_fetch();
        c.fetch_gone = Some(Arc::default());
        let need = kind.need().expect("it reads");
        let before = self.exec.keys.begin_many(c.id, need, names, places);
        if let Some(fetch) = before {
            self.preparer.discard(Box::new(fetch));
        }
        if !self.fetch_many(c, slot) {
            // All answers are in memory.
            c.unparked = true;
            enqueue(&mut self.run_list, c, slot);
        }
    }

    /// Lets a command take effect in one step.
    fn take_effect(
        &mut self,
        c: &mut Connection,
        slot: usize,
        spec: &'static Spec,
        kind: ManyKind,
        ready: Ready,
    ) {
        let (names, fetched) = match ready {
            Ready::Names(names) => (names, None),
            Ready::Fetched(answers, depends_on) => {
                (answers.names().clone(), Some((answers, depends_on)))
            }
        };
        let refused = match fetched.as_ref().and_then(|(answers, _)| answers.failure()) {
            _ if is_too_long(kind, &names) => Some(format!(
                "ERR key is too long: {} bytes, at most {} are allowed",
                names.longest(),
                layout::MAX_KEY_LEN
            )),
            Some(e) => Some(store_error(e)),
            None => None,
        };
        if let Some(text) = refused {
            self.fail(c, slot, spec, &text);
            self.preparer.discard(Box::new((names, fetched)));
            return;
        }
        let now_ms = self.exec.env.clock().wall_ms();
        let (mut reply, replies) = self.exec.execute_in_pieces(slot, spec);
        self.exec.keys.begin(now_ms);
        let generation = self.exec.keys.generation();
        let mut assembled = None;
        let mut depends_on = 0;
        match (kind, fetched) {
            (ManyKind::Read(purpose), Some((answers, seen))) => {
                depends_on = seen;
                if purpose == Purpose::Strings {
                    reply.array(names.len());
                }
                assembled = Some((Arc::new(*answers), purpose));
            }
            (ManyKind::Delete, Some((answers, seen))) => {
                depends_on = seen;
                let answers = Arc::new(*answers);
                if answers.there() > 0 {
                    let layer = Layer::new(names, generation, Some(answers.clone()));
                    self.exec.keys.put_layer(layer, seen);
                }
                assembled = Some((answers, Purpose::Deleted));
            }
            (ManyKind::SetAbsent, Some((answers, seen))) => {
                depends_on = seen;
                let is_free = answers.there() == 0;
                self.preparer.discard(answers);
                reply.integer(i64::from(is_free));
                if is_free {
                    let layer = Layer::new(names, generation, None);
                    self.exec.keys.put_layer(layer, seen);
                }
            }
            (_, fetched) => {
                assert!(
                    fetched.is_none() && kind == ManyKind::Set,
                    "others are fetched"
                );
                let layer = Layer::new(names, generation, None);
                self.exec.keys.put_layer(layer, 0);
                reply.ok();
            }
        }
        depends_on |= self.exec.keys.finish();
        self.wait_for(c, slot, depends_on);
        match assembled {
            Some((answers, purpose)) => {
                c.push_slow(depends_on, u32::from(replies));
                let assembly = Assembly::new(answers, purpose, now_ms, reply);
                c.assembly = Some(Box::new(assembly));
                enqueue(&mut self.run_list, c, slot);
            }
            None if replies => c.push(&mut reply, depends_on, 1),
            None => {}
        }
    }

    /// Replies with an error to a command that is not carried out.
    fn fail(&mut self, c: &mut Connection, slot: usize, spec: &'static Spec, text: &str) {
        let (mut reply, replies) = self.exec.execute_in_pieces(slot, spec);
        self.exec.counters.count_errors(text.as_bytes(), 1);
        if replies {
            reply.error_bytes(text.as_bytes());
            c.push(&mut reply, 0, 1);
        }
    }

    /// Passes the layers that are no longer needed to the thread that frees them.
    pub(super) fn discard_layers(&mut self) {
        for layer in self.exec.keys.take_discarded() {
            self.preparer.discard(Box::new(layer));
        }
    }
}

/// The input with which a command takes effect.
enum Ready {
    Names(Arc<Names>),
    Fetched(Box<Answers>, Epochs),
}

/// Returns the error of a request whose number of arguments is wrong.
fn refused(name: &str, kind: ManyKind, request: &Request) -> Option<String> {
    let is_odd = !(request.len() - 1).is_multiple_of(kind.step());
    is_odd.then(|| wrong_arguments(name))
}

/// Returns true if a name is too long to be written.
fn is_too_long(kind: ManyKind, names: &Names) -> bool {
    !matches!(kind, ManyKind::Read(_)) && names.longest() > layout::MAX_KEY_LEN
}

#[cfg(test)]
mod tests;
