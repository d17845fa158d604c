//! The event loop: one thread that accepts, reads, executes, submits and replies for all clients.
//!
//! A turn of the loop:
//! 1. Wait until a socket is ready, an epoch has ended, a slow read is done or a signal came.
//! 2. Let epochs that ended release (or fail) the replies that wait for them.
//! 3. For each client with something to do: run the requests that have arrived, read more, in
//!    bounded portions.
//! 4. Submit the open epoch as one batch, if its dependencies allow.
//! 5. Write replies.
//!
//! All clients that were ready in a turn share a commit. The engine's commit groups join the epochs
//! in flight. No client costs a thread. A turn reads a bounded part of the store (`serving`). If a
//! command needs more, another thread reads it while the request waits (`fetching`). The loop does
//! not read from a client while the client's replies pile up or while a slow read of the client
//! runs. It reads from no client while the writes in flight are at their limit.
//!
//! Modules: `accepting` (new and closed connections), `serving` (a client's turn), `fetching`
//! (requests that wait for reads), `streams` (requests that wait for reads of streams), `blocking`
//! (requests that wait for entries of streams), `sweeping` (streams that lost their keys),
//! `many_names` and `assembling` (commands with very many names and their replies), `replying`
//! (replies of finished commits and reads), `stopping` (shutdown), `connection` (one client's
//! bytes), `background` (the server's other threads).

mod accepting;
mod assembling;
mod background;
mod blocking;
mod connection;
mod fetching;
mod many_names;
mod replying;
mod serving;
mod stopping;
mod streams;
mod sweeping;

use crate::command::Executor;
use crate::command::budgets::BudgetGauges;
use crate::cursor::Cursors;
use crate::epoch::EpochLimits;
use crate::keyspace::Keyspace;
use crate::options::{ServerOptions, SyncPolicy};
use crate::resp::reply::Reply;
use crate::store::{DbStore, Store};
use crate::stream::sweep::SweepResult;
use accepting::{listen, room_for_clients};
use background::{CursorReserver, Reclaimer, Requester, SlowReader, SlowResult, Syncer, report};
use basalt::env::{MemoryKind, Reservation};
use basalt::{Env, Error, ErrorKind, Result};
use blocking::BlockedClients;
use connection::{Connection, READ_BYTES};
use fetching::{Fetched, Fetcher};
use many_names::{PreparedNames, Preparer};
use mio::net::{TcpListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stopping::Stopping;
use streams::{StreamResult, StreamWorker};
use sweeping::Sweeper;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const SIGNALS: Token = Token(2);
const FIRST_CLIENT: usize = 3;
/// Number of client turns whose cost ends a turn of the loop.
const LOOP_TURNS: u32 = 4;

/// The shortest sleep of a loop that waits for clients to become idle.
const LEAST_SLEEP: Duration = Duration::from_millis(1);

/// An event for the loop from another thread.
enum Event {
    Epoch {
        slot: usize,
        /// The policy under which the epoch was submitted.
        policy: SyncPolicy,
        result: Result<()>,
    },
    Slow(SlowResult),
    /// The answers of a piece, for a request that waits for it.
    Fetched(Fetched),
    /// The table of names of a command with very many names.
    Prepared(PreparedNames),
    /// The result of a job on a stream.
    Stream(StreamResult),
    /// The result of a sweep.
    Swept(Box<SweepResult>),
    /// The first of a block of cursor numbers.
    Cursors(Result<u64>),
}

/// The part of the loop that other threads use.
struct LoopHandle {
    waker: Waker,
    events: Mutex<Vec<Event>>,
    /// True if the loop waits, or will wait without another check of `events`.
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl LoopHandle {
    fn post(&self, event: Event) {
        self.events.lock().push(event);
        // The loop sets `asleep` before it checks the events for the last time, under their lock.
        // So it has seen this event, or it is woken. While the loop is awake, as for events of its
        // own thread, a wake would only cost.
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Notes that the loop goes to sleep. Returns false if there are events, so that it must not.
    fn sleeps(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.events.lock().is_empty()
    }

    fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            // While the loop waits for events, it also wakes up every second.
            report(&format!("cannot wake the event loop: {e}"));
        }
    }
}

/// Stops a running server from any thread.
#[derive(Clone)]
pub struct ShutdownHandle(Arc<LoopHandle>);

impl ShutdownHandle {
    /// Finishes the accepted requests, closes the store and lets [`Server::run`] return. Further
    /// calls do nothing.
    pub fn shutdown(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// A bound server over an open store.
pub struct Server {
    poll: Poll,
    listener: Option<TcpListener>,
    shared: Arc<LoopHandle>,
    signals: Option<UnixStream>,
    exec: Executor,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    next_id: u64,
    run_list: Vec<usize>,
    /// Clients that wait for room for their writes.
    stalled: Vec<usize>,
    /// Clients with a request that waits for the thread for slow reads, in order.
    parked: VecDeque<Requester>,
    /// Clients whose SCAN waits for a cursor number.
    cursorless: Vec<Requester>,
    /// Clients that wait for an epoch, by slot.
    waiting: [Vec<Requester>; 16],
    /// Clients whose replies may have become writable in this turn.
    to_write: Vec<usize>,
    accept_blocked: bool,
    /// The time at which this turn of the loop began.
    now: Duration,
    /// The time of the next check for idle clients, and the limit by which it was computed.
    idle_look_at: Duration,
    idle_limit: Duration,
    stopping: Option<Stopping>,
    /// True after a second signal: the server waits for no client.
    urgent: bool,
    slow: SlowReader,
    fetcher: Fetcher,
    streams: StreamWorker,
    sweeper: Sweeper,
    blocked: BlockedClients,
    preparer: Preparer,
    syncer: Syncer,
    reclaimer: Reclaimer,
    reserver: CursorReserver,
    booked: Reservation,
    buffer: Box<[u8]>,
    reply: Reply,
}

/// Runs a server until SIGTERM, SIGINT or SHUTDOWN. It calls [`Server::bind`],
/// [`Server::stop_on_signals`], `ready` with the address, and [`Server::run`].
pub fn serve(env: &Env, options: ServerOptions, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    serve_on(Listening::begin(&options)?, env, options, ready)
}

/// A bound address, for callers with long work before there is an environment. An address that is
/// refused fails before that work.
pub struct Listening(TcpListener);

impl Listening {
    /// Checks the options and binds their address. Clients may connect from now on, and wait.
    ///
    /// Errors: `Busy` if the address is in use, `InvalidArgument` for options outside their ranges.
    pub fn begin(options: &ServerOptions) -> Result<Listening> {
        options.validate()?;
        Ok(Listening(listen(options.listen)?))
    }
}

/// Runs a server like [`serve`] at an address that is bound already.
pub fn serve_on(
    listening: Listening,
    env: &Env,
    options: ServerOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let mut server = Server::open(listening, env, options)?;
    server.stop_on_signals()?;
    ready(server.local_addr());
    server.run()
}

fn io_error(what: &str, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {e}"))
}

impl Server {
    /// Binds the address, then opens (or makes) the store. Clients may connect from now on;
    /// [`Server::run`] serves them.
    ///
    /// Errors: `Busy` if the address is in use or another process has the store open,
    /// `InvalidArgument` for options outside their ranges, and errors of opening the store.
    pub fn bind(env: &Env, options: ServerOptions) -> Result<Server> {
        Server::open(Listening::begin(&options)?, env, options)
    }

    fn open(listening: Listening, env: &Env, mut options: ServerOptions) -> Result<Server> {
        options.validate()?;
        options.max_clients =
            room_for_clients(options.max_clients, env.open_files().limit() as u64);
        let engine = options.engine.clone();
        let store = DbStore::open(env, &options.dir, engine)?;
        Server::over(env, options, listening.0, Arc::new(store))
    }

    fn over(
        env: &Env,
        mut options: ServerOptions,
        mut listener: TcpListener,
        store: Arc<dyn Store>,
    ) -> Result<Server> {
        options.fit(env.ledger().usage().budget);
        let poll = Poll::new().map_err(|e| io_error("poll", e))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|e| io_error("poll", e))?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(|e| io_error("poll", e))?;
        let listening = listener.local_addr().map_err(|e| io_error("listen", e))?;
        let now = env.clock().now();
        let limits = EpochLimits {
            pending_bytes: options.pending_write_bytes,
            ..EpochLimits::default()
        };
        let mut cursors = Cursors::default();
        // A store that accepts no writes is served nevertheless. A SCAN that needs a cursor tries
        // again.
        if let Ok(first) = store.reserve_cursors() {
            cursors.give(first);
        }
        let mut keys = Keyspace::new(store.clone(), limits, env.random().next_u64())?;
        keys.limit_streams(usize::try_from(options.stream_memory_bytes).unwrap_or(usize::MAX));
        // A store that accepts no writes is served without this sweep, and keeps all logs.
        if store.existing_logs().is_some()
            && let Ok(incarnation) = store.next_incarnation()
        {
            keys.sweep_earlier_than(incarnation);
        }
        let mut reclaimer = Reclaimer::new();
        if store.generation()? > 0 {
            // A crash or a stop may have kept the space of an earlier flush from being reclaimed.
            reclaimer.start(&store);
        }
        Ok(Server {
            poll,
            listener: Some(listener),
            shared: Arc::new(LoopHandle {
                waker,
                events: Mutex::new(Vec::new()),
                asleep: AtomicBool::new(false),
                stop: AtomicBool::new(false),
            }),
            signals: None,
            exec: Executor {
                keys,
                env: env.clone(),
                sync: options.sync,
                sessions: Vec::new(),
                cursors,
                cursor_failure: None,
                cursors_wanted: false,
                counters: Default::default(),
                count: None,
                actions: Vec::new(),
                resumed: None,
                slow_room: true,
                no_slow_reads: false,
                started: now,
                listening,
                client_bytes: 0,
                client_bytes_peak: 0,
                gone_client_bytes: 0,
                budget_gauges: BudgetGauges::new(env),
                sampled: (0, now),
                options,
            },
            connections: Vec::new(),
            free: Vec::new(),
            next_id: 1,
            run_list: Vec::new(),
            stalled: Vec::new(),
            parked: VecDeque::new(),
            cursorless: Vec::new(),
            waiting: Default::default(),
            to_write: Vec::new(),
            accept_blocked: false,
            now,
            idle_look_at: Duration::ZERO,
            idle_limit: Duration::ZERO,
            stopping: None,
            urgent: false,
            slow: SlowReader::new(),
            fetcher: Fetcher::default(),
            streams: StreamWorker::default(),
            sweeper: Sweeper::default(),
            blocked: BlockedClients::default(),
            preparer: Preparer::default(),
            syncer: Syncer::new(),
            reclaimer,
            reserver: CursorReserver::default(),
            booked: env.ledger().reserve(MemoryKind::Client, 0),
            buffer: vec![0; READ_BYTES].into(),
            reply: Reply::default(),
        })
    }

    /// Returns the address that the server listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.exec.listening
    }

    /// Returns a handle that stops the server.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.shared.clone())
    }

    /// Serves until a stop. Then it finishes the accepted requests, closes the store and returns.
    pub fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let mut timeout = self.timeout();
            if timeout != Some(Duration::ZERO) && !self.shared.sleeps() {
                timeout = Some(Duration::ZERO);
            }
            let polled = self.poll.poll(&mut events, timeout);
            self.shared.asleep.store(false, Ordering::SeqCst);
            match polled {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(io_error("poll", e)),
            }
            self.now = self.exec.env.clock().now();
            let mut accept = self.accept_blocked;
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    SIGNALS => self.signalled(),
                    Token(n) => {
                        let slot = n - FIRST_CLIENT;
                        if let Some(Some(c)) = self.connections.get_mut(slot) {
                            c.readable |= event.is_readable() || event.is_read_closed();
                            c.peer_closed |= event.is_read_closed();
                            c.reset |= event.is_error() || event.is_write_closed();
                            c.writable |= event.is_writable() || event.is_write_closed();
                            enqueue(&mut self.run_list, c, slot);
                        }
                    }
                }
            }
            if accept {
                self.accept();
            }
            if self.shared.stop.load(Ordering::Acquire) {
                self.begin_stop();
            }
            self.take_events();
            self.expire_blocked();
            self.take_fetched();
            self.sweep_streams();
            let list = std::mem::take(&mut self.run_list);
            let turn = self.begin_turn();
            for (n, slot) in list.iter().copied().enumerate() {
                if n > 0 && self.is_spent(&turn, LOOP_TURNS) {
                    // Signals, new clients and results of other threads are handled in between. The
                    // rest of the list comes first in the next turn.
                    let later = std::mem::replace(&mut self.run_list, list[n..].to_vec());
                    self.run_list.extend(later);
                    break;
                }
                self.serve(slot);
                // This check is not left to the end of the turn: ten thousand clients could each
                // have asked for a large reply.
                if self.exec.client_bytes > self.exec.options.client_memory_bytes {
                    self.book();
                }
            }
            self.submit();
            self.reserve_cursors();
            self.take_events();
            self.unpark();
            self.write_replies();
            self.drop_idle();
            self.book();
            self.discard_layers();
            self.remove_entries();
            if self.exec.keys.take_room_freed() {
                self.wake_stalled();
            }
            // This comes last: clients that were dropped above have given back the places that
            // others wait for.
            self.unpark_fetches();
            self.unpark_turns();
            if self.stopping.is_some() && self.stopped() {
                return self.close();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let idle = (!self.exec.options.idle_timeout.is_zero()).then(|| {
            let now = self.exec.env.clock().now();
            self.idle_look_at.saturating_sub(now).max(LEAST_SLEEP)
        });
        let blocked = self.blocked.next_deadline().map(|at| {
            let now = self.exec.env.clock().now();
            at.saturating_sub(now).max(LEAST_SLEEP)
        });
        let other = self.timeout_of_work();
        let sweeps = self.timeout_of_sweeps();
        let all = other.into_iter().chain(idle).chain(blocked).chain(sweeps);
        all.min()
    }

    /// Returns the timeout like [`Server::timeout`], without the one for clients that become idle.
    fn timeout_of_work(&self) -> Option<Duration> {
        if !self.run_list.is_empty() || self.fetcher.has_pieces() {
            Some(Duration::ZERO)
        } else if self.accept_blocked || self.stopping.is_some() {
            Some(Duration::from_millis(20))
        } else if self.exec.keys.in_flight() > 0
            || self.slow.is_busy()
            || self.fetcher.is_busy()
            || self.streams.is_busy()
            || self.sweeper.is_busy()
            || self.preparer.is_busy()
            || self.reserver.is_busy()
        {
            // If a wake fails, results of other threads are still found.
            Some(Duration::from_secs(1))
        } else {
            None
        }
    }

    /// Reserves cursor numbers for scans: before they are needed, and again for scans that wait.
    fn reserve_cursors(&mut self) {
        if std::mem::take(&mut self.exec.cursors_wanted) {
            self.reserver.start(self.exec.keys.store(), &self.shared);
        }
    }

    fn submit(&mut self) {
        let policy = self.exec.sync;
        let sync = policy == SyncPolicy::Always;
        let shared = &self.shared;
        let submitted = self.exec.keys.submit(sync, |slot| {
            let shared = shared.clone();
            Box::new(move |result| {
                shared.post(Event::Epoch {
                    slot,
                    policy,
                    result,
                })
            })
        });
        self.exec.counters.epochs += u64::from(submitted);
    }
}

fn enqueue(list: &mut Vec<usize>, c: &mut Connection, slot: usize) {
    if !c.queued {
        c.queued = true;
        list.push(slot);
    }
}

#[cfg(test)]
mod tests;
