//! Queues the requests whose keys another thread reads ([`crate::fetch`]), chooses the request
//! that is read next, and takes in the results.
//!
//! A request that needs more than the loop may read stays on its connection. The thread reads a
//! piece of its keys, then one of the next client, so that a request of a million names does not
//! hold up one of a single long value. At most [`FETCHES`] requests have fetches; the others wait,
//! where they cost nothing.

use super::background::{Requester, start};
use super::connection::Connection;
use super::{Event, LoopHandle, Server, enqueue};
use crate::command::table;
use crate::fetch::many_names::{ManyPiece, ManyRead, read_many};
use crate::fetch::{Answer, Need, PIECE_NAMES, Piece, read};
use crate::resp::request::Request;
use crate::store::Store;
use basalt::env::thread::{BackgroundThread, StopSignal};
use basalt::{Bytes, Error, ErrorKind};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Number of requests with fetches at a time. Each write checks the answers of all of them.
pub(super) const FETCHES: usize = 16;
/// Number of requests with fetches that write. A write that has all answers may wait for room, and
/// keeps its place meanwhile. The other places are left to reads, so that only writes wait for
/// room.
const WRITE_FETCHES: usize = 12;

/// Number of pieces that one turn of the loop takes in, and that it asks for.
const PIECES_A_TURN: usize = 4;

/// The result of reading the keys of a piece.
pub(super) struct Fetched {
    requester: Requester,
    answers: FetchAnswers,
}

enum FetchAnswers {
    /// The answers by key; `None` for a key that the piece had no room for.
    Few(Vec<(Bytes, Option<Answer>)>),
    Many(ManyRead),
}

enum Keys {
    Few(Piece),
    Many(ManyPiece),
}

/// A piece to be read.
struct FetchJob {
    requester: Requester,
    keys: Keys,
    /// Set when no request waits for the piece any more.
    gone: Arc<AtomicBool>,
}

impl FetchJob {
    /// Reads the piece, unless no request waits for it any more. Otherwise clients that send
    /// requests and disconnect could queue work without end.
    fn run(self, store: &dyn Store) -> Fetched {
        let wanted = || !self.gone.load(Ordering::Acquire);
        // A panic fails this request only: the pieces behind it need this thread.
        let panicked = || Error::new(ErrorKind::Poisoned, "the thread that reads keys panicked");
        let answers = match self.keys {
            Keys::Few(piece) => {
                let failure = piece.failure();
                let read = catch_unwind(AssertUnwindSafe(|| read(store, piece, wanted)));
                FetchAnswers::Few(read.unwrap_or_else(|_| failure(panicked())))
            }
            Keys::Many(piece) => {
                let failure = piece.failure();
                let read = catch_unwind(AssertUnwindSafe(|| read_many(store, piece, wanted)));
                FetchAnswers::Many(read.unwrap_or_else(|_| failure(panicked())))
            }
        };
        Fetched {
            requester: self.requester,
            answers,
        }
    }
}

/// The thread that reads for waiting requests, and the requests.
#[derive(Default)]
pub(super) struct Fetcher {
    queue: Option<mpsc::Sender<FetchJob>>,
    stop: StopSignal,
    thread: Option<BackgroundThread>,
    /// Pieces that are being read, or were read and are in `results`.
    pieces: usize,
    results: VecDeque<Fetched>,
    /// Clients whose reads wait for others' fetches to end.
    waiting: VecDeque<Requester>,
    /// Clients whose writes wait for others' fetches to end.
    waiting_writes: VecDeque<Requester>,
    /// Number of requests that write and have a place.
    writes: usize,
}

impl Fetcher {
    /// Returns true if results are awaited, or requests wait for others' fetches to end.
    pub fn is_busy(&self) -> bool {
        self.pieces > 0 || !self.waiting.is_empty() || !self.waiting_writes.is_empty()
    }

    /// Returns true if results of pieces wait in the queue.
    pub fn has_pieces(&self) -> bool {
        !self.results.is_empty()
    }

    /// Adds the result of a piece.
    pub fn take_result(&mut self, fetched: Fetched) {
        self.results.push_back(fetched);
    }

    /// Lets a client's request wait until fetches of other clients end. If `first` is true, the
    /// request has waited before and goes to the front.
    fn wait(&mut self, requester: Requester, writes: bool, first: bool) {
        let waiting = match writes {
            true => &mut self.waiting_writes,
            false => &mut self.waiting,
        };
        match first {
            true => waiting.push_front(requester),
            false => waiting.push_back(requester),
        }
    }

    fn ask(&mut self, job: FetchJob, store: &Arc<dyn Store>, shared: &Arc<LoopHandle>) {
        self.pieces += 1;
        if self.queue.is_none() {
            let (sender, receiver) = mpsc::channel::<FetchJob>();
            let (store, shared, stop) = (store.clone(), shared.clone(), self.stop.clone());
            self.thread = start("basalt-fetch", move || {
                for job in receiver {
                    if stop.is_sent() {
                        return;
                    }
                    shared.post(Event::Fetched(job.run(&*store)));
                }
            });
            self.queue = Some(sender);
        }
        let queue = self.queue.as_ref().expect("just made");
        if let Err(mpsc::SendError(job)) = queue.send(job) {
            // The thread could not be started: a slow answer is better than none.
            shared.post(Event::Fetched(job.run(&**store)));
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop.send();
        self.queue = None;
        super::background::join(&mut self.thread);
    }
}

impl Server {
    /// Makes a client's request wait for its keys. `first` is for a request that has waited before.
    pub(super) fn fetch(
        &mut self,
        c: &mut Connection,
        slot: usize,
        request: &Request,
        need: Need,
        first: bool,
    ) {
        let writes = table::resolve(request).is_ok_and(|spec| spec.writes());
        let taken = self.exec.keys.fetches();
        if !c.fetching && !self.take_place(c, slot, taken, writes, first) {
            // The fetch begins when there is a place. Otherwise the request would run, and only
            // find again that it needs one.
            c.needs_fetch = Some(need);
            return;
        }
        self.exec.counters.fetches += u64::from(!c.fetching);
        c.fetching = true;
        c.fetched_names = 0;
        c.give_up_fetch();
        c.fetch_gone = Some(Arc::default());
        let random = self.exec.env.random();
        let secrets = (random.next_u64(), random.next_u64());
        self.exec.keys.begin_fetch(c.id, need, secrets);
        if !self.fetch_more(c, slot, request) {
            // All keys are in memory.
            c.unparked = true;
            enqueue(&mut self.run_list, c, slot);
        }
    }

    /// Takes a place for a request's fetch, if `taken` places are taken so far. Otherwise the
    /// request waits, and the result is false.
    pub(super) fn take_place(
        &mut self,
        c: &mut Connection,
        slot: usize,
        taken: usize,
        writes: bool,
        first: bool,
    ) -> bool {
        let new_write = writes && !c.write_place;
        if taken >= FETCHES || (new_write && self.fetcher.writes >= WRITE_FETCHES) {
            let requester = Requester { slot, id: c.id };
            self.fetcher.wait(requester, writes, first);
            return false;
        }
        c.write_place = writes;
        self.fetcher.writes += usize::from(new_write);
        true
    }

    /// Gives back the place of a client's request that writes.
    pub(super) fn give_place_back(&mut self, c: &mut Connection) {
        self.fetcher.writes -= usize::from(std::mem::take(&mut c.write_place));
    }

    /// Asks for the next piece of a client's fetch. Returns false if all was read.
    fn fetch_more(&mut self, c: &mut Connection, slot: usize, request: &Request) -> bool {
        let spec = table::resolve(request).expect("it ran before");
        let mut looked = c.fetched_names;
        let places = spec.keys(request.len()).skip(looked);
        let limit = self.exec.options.reply_hard_bytes;
        let piece = self.exec.keys.next_piece(
            c.id,
            limit,
            &mut places.map(|i| {
                looked += 1;
                request.arg(i)
            }),
        );
        c.fetched_names = looked;
        let Some(piece) = piece else { return false };
        self.ask(c, slot, Keys::Few(piece));
        true
    }

    /// Asks for the next piece of a client's fetch with very many names. Returns false if all names
    /// were read.
    pub(super) fn fetch_many(&mut self, c: &mut Connection, slot: usize) -> bool {
        let limit = self.exec.options.reply_hard_bytes;
        let now_ms = self.exec.env.clock().wall_ms();
        // The fetch applies layers here, so that fewer remain when all names were read.
        self.exec.keys.catch_up(c.id, PIECE_NAMES, now_ms);
        let piece = (self.exec.keys).next_many(c.id, PIECE_NAMES, limit, now_ms);
        let Some(piece) = piece else { return false };
        self.ask(c, slot, Keys::Many(piece));
        true
    }

    fn ask(&mut self, c: &Connection, slot: usize, keys: Keys) {
        let job = FetchJob {
            requester: Requester { slot, id: c.id },
            keys,
            gone: c.fetch_gone.clone().expect("it is fetching"),
        };
        let store = self.exec.keys.store().clone();
        self.fetcher.ask(job, &store, &self.shared);
    }

    /// Takes in the results of some pieces.
    pub(super) fn take_fetched(&mut self) {
        for _ in 0..PIECES_A_TURN {
            let Some(fetched) = self.fetcher.results.pop_front() else {
                return;
            };
            self.fetched(fetched);
        }
    }

    /// Takes in the result of a piece for its client.
    fn fetched(&mut self, fetched: Fetched) {
        let Fetched { requester, answers } = fetched;
        self.fetcher.pieces -= 1;
        let c = self.connections[requester.slot].take_if(|c| c.id == requester.id);
        let Some(mut c) = c else { return };
        if c.fetching
            && let Some(request) = c.parked.take()
        {
            let more = match answers {
                FetchAnswers::Few(answers) => {
                    self.exec.keys.take_answers(c.id, answers);
                    self.fetch_more(&mut c, requester.slot, &request)
                }
                FetchAnswers::Many(read) => {
                    let now_ms = self.exec.env.clock().wall_ms();
                    self.exec.keys.take_many(c.id, read, now_ms);
                    self.fetch_many(&mut c, requester.slot)
                }
            };
            if !more {
                c.unparked = true;
                enqueue(&mut self.run_list, &mut c, requester.slot);
            }
            c.parked = Some(request);
            self.account(&mut c, requester.slot);
        }
        self.connections[requester.slot] = Some(c);
    }

    /// Forgets the answers of a client whose request has run, or never will.
    pub(super) fn end_fetch(&mut self, c: &mut Connection) {
        self.end_stream_request(c);
        self.give_up_fetch(c);
    }

    /// Ends the fetch of a client's request, if it has one.
    pub(super) fn give_up_fetch(&mut self, c: &mut Connection) {
        c.needs_fetch = None;
        c.give_up_fetch();
        self.give_place_back(c);
        if std::mem::take(&mut c.fetching) {
            self.exec.keys.end_fetch(c.id);
            if let Some(fetch) = self.exec.keys.end_many(c.id) {
                self.preparer.discard(Box::new(fetch));
            }
        }
    }

    /// Lets requests run again that waited for others' fetches to end.
    pub(super) fn unpark_fetches(&mut self) {
        let taken = self.exec.keys.fetches() + self.preparer.awaited();
        let room = FETCHES.saturating_sub(taken);
        let for_writes = room.min(WRITE_FETCHES.saturating_sub(self.fetcher.writes));
        let mut waiting = std::mem::take(&mut self.fetcher.waiting_writes);
        let begun = self.unpark_some(&mut waiting, for_writes);
        self.fetcher.waiting_writes = waiting;
        let mut waiting = std::mem::take(&mut self.fetcher.waiting);
        self.unpark_some(&mut waiting, room - begun);
        self.fetcher.waiting = waiting;
    }

    /// Lets up to `most` of the waiting requests run again. Returns their number.
    fn unpark_some(&mut self, waiting: &mut VecDeque<Requester>, most: usize) -> usize {
        // Clients may disconnect faster than places become free.
        if waiting.len() > 2 * self.connections.len() {
            let connections = &self.connections;
            let here = |requester: &Requester| connections[requester.slot].as_ref().map(|c| c.id);
            waiting.retain(|requester| here(requester) == Some(requester.id));
        }
        let mut begun = 0;
        while begun < most
            && let Some(requester) = waiting.pop_front()
        {
            let c = self.connections[requester.slot].as_mut();
            // A request that ran again while a server stops may wait here twice.
            let waits =
                |c: &&mut Connection| c.id == requester.id && c.parked.is_some() && !c.fetching;
            if let Some(c) = c.filter(waits) {
                c.unparked = true;
                enqueue(&mut self.run_list, c, requester.slot);
                begun += 1;
            }
        }
        begun
    }
}
