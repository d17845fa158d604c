//! The event loop: one thread that accepts, reads, executes, submits and replies for all clients.
//!
//! A turn of the loop:
//! 1. Wait until a socket is ready, an epoch has ended, a slow read is done or a signal came.
//! 2. Let epochs that ended release (or fail) the replies that wait for them.
//! 3. For each client with something to do: run the requests that have arrived, read more, in bounded portions.
//! 4. Submit the open epoch as one batch, if its dependencies allow.
//! 5. Write replies.
//!
//! So all clients that were ready in a turn share a commit, the engine's commit groups join the epochs in flight, and no
//! client costs a thread. A client is not read while its replies pile up or while a slow read of its own runs, and none is
//! while the writes on their way take all the room they may.

mod background;
mod connection;

use crate::command::{Action, Executed, Executor, Outcome, Session, store_error};
use crate::cursor::Cursors;
use crate::keyspace::{EpochLimits, Keyspace};
use crate::options::{ServerOptions, SyncPolicy};
use crate::resp::Protocol;
use crate::resp::reply::Reply;
use crate::resp::request::Request;
use crate::store::{DbStore, Store};
use background::{Asker, Reclaimer, SlowReader, SlowResult, Syncer, report};
use basalt::env::{MemoryKind, Reservation};
use basalt::{Env, Error, ErrorKind, Result};
use connection::{Connection, Progress, READ_BYTES};
use mio::net::{TcpListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::Read as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const SIGNALS: Token = Token(2);
const FIRST_CLIENT: usize = 3;

/// Requests of one client in a turn, before the others have theirs.
const REQUESTS_A_TURN: usize = 1024;
/// Reads of one client in a turn.
const READS_A_TURN: usize = 8;
/// Files that the process needs besides clients.
const OTHER_FILES: u64 = 64;

/// What comes to the loop from other threads.
enum Event {
    Epoch { slot: usize, result: Result<()> },
    Slow(SlowResult),
}

/// What other threads hold of the loop.
struct Shared {
    waker: Waker,
    events: Mutex<Vec<Event>>,
    stop: AtomicBool,
}

impl Shared {
    fn post(&self, event: Event) {
        let mut events = self.events.lock();
        let first = events.is_empty();
        events.push(event);
        drop(events);
        if first {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            // While something is awaited the loop also looks every second.
            report(&format!("cannot wake the event loop: {e}"));
        }
    }
}

/// Stops a running server from any thread.
#[derive(Clone)]
pub struct ShutdownHandle(Arc<Shared>);

impl ShutdownHandle {
    /// Finishes what was accepted, closes the store and lets [`Server::run`] return. May be called more than once.
    pub fn shutdown(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// A bound server over an open store.
pub struct Server {
    poll: Poll,
    listener: Option<TcpListener>,
    shared: Arc<Shared>,
    signals: Option<UnixStream>,
    exec: Executor,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    next_id: u64,
    run_list: Vec<usize>,
    /// Clients that wait for room for their writes.
    stalled: Vec<usize>,
    /// Clients with a request that waits for the thread for slow reads, in order.
    parked: VecDeque<Asker>,
    /// Clients that wait for an epoch, by slot.
    waiting: [Vec<Asker>; 16],
    /// Whose replies may have become writable in this turn.
    to_write: Vec<usize>,
    accept_blocked: bool,
    stopping: Option<Duration>,
    slow: SlowReader,
    syncer: Syncer,
    reclaimer: Reclaimer,
    booked: Reservation,
    buffer: Box<[u8]>,
    reply: Reply,
}

/// Runs a server until SIGTERM, SIGINT or SHUTDOWN: [`Server::bind`], [`Server::stop_on_signals`], `ready` with the
/// address, [`Server::run`].
pub fn serve(env: &Env, options: ServerOptions, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let mut server = Server::bind(env, options)?;
    server.stop_on_signals()?;
    ready(server.local_addr());
    server.run()
}

fn io_error(what: &str, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {e}"))
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => Error::new(
            ErrorKind::Busy,
            format!(
                "{address} is in use by another program: stop it, or choose another address with --listen ADDR:PORT"
            ),
        ),
        std::io::ErrorKind::PermissionDenied => Error::invalid(format!(
            "no permission to listen on {address}: choose a port from 1024 on with --listen ADDR:PORT"
        )),
        std::io::ErrorKind::AddrNotAvailable => Error::invalid(format!(
            "{} is not an address of this machine: choose another with --listen ADDR:PORT",
            address.ip()
        )),
        _ => Error::new(ErrorKind::Io, format!("cannot listen on {address}: {e}; choose another address with --listen ADDR:PORT")),
    })
}

/// Raises the limit of open files as far as needed and allowed; the number of clients it leaves room for.
fn room_for_clients(wanted: usize, engine_files: u64) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let others = engine_files + OTHER_FILES;
    let need = wanted as u64 + others;
    let limit = getrlimit(Resource::Nofile);
    let mut have = limit.current.unwrap_or(u64::MAX);
    if have < need {
        let raised = limit.maximum.map_or(need, |m| m.min(need));
        if setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(raised),
                maximum: limit.maximum,
            },
        )
        .is_ok()
        {
            have = raised;
        }
    }
    if have >= need {
        return wanted;
    }
    // Too few for both: clients and the engine share what there is.
    let room = have.saturating_sub(others).max(have / 2) as usize;
    report(&format!(
        "only {have} files may be open, so at most {room} clients are served; raise the limit (ulimit -n {need}) for {wanted}"
    ));
    room.max(1)
}

impl Server {
    /// Binds the address, then opens (or makes) the store. Clients may connect from here on; they are served by [`Server::run`].
    ///
    /// Errors: `Busy` when the address is in use or another process has the store open, `InvalidArgument` for
    /// options outside their ranges, and whatever opening the store reports.
    pub fn bind(env: &Env, mut options: ServerOptions) -> Result<Server> {
        options.validate()?;
        let listener = listen(options.listen)?;
        options.max_clients =
            room_for_clients(options.max_clients, env.open_files().limit() as u64);
        let engine = options.engine.clone();
        let store = DbStore::open(env, &options.dir, engine)?;
        Server::over(env, options, listener, Arc::new(store))
    }

    fn over(
        env: &Env,
        options: ServerOptions,
        mut listener: TcpListener,
        store: Arc<dyn Store>,
    ) -> Result<Server> {
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
        // A store that takes no writes serves all the same; the first SCAN that needs a cursor tries again.
        if let Ok(first) = store.reserve_cursors() {
            cursors.give(first);
        }
        let mut reclaimer = Reclaimer::new();
        if store.generation()? > 0 {
            // A flush whose space a crash or a stop kept from coming back.
            reclaimer.start(&store);
        }
        Ok(Server {
            poll,
            listener: Some(listener),
            shared: Arc::new(Shared {
                waker,
                events: Mutex::new(Vec::new()),
                stop: AtomicBool::new(false),
            }),
            signals: None,
            exec: Executor {
                keys: Keyspace::new(store, limits)?,
                env: env.clone(),
                sync: options.sync,
                sessions: Vec::new(),
                cursors,
                counters: Default::default(),
                count: None,
                actions: Vec::new(),
                slow_room: true,
                started: now,
                listening,
                client_bytes: 0,
                client_bytes_peak: 0,
                sampled: (0, now),
                options,
            },
            connections: Vec::new(),
            free: Vec::new(),
            next_id: 1,
            run_list: Vec::new(),
            stalled: Vec::new(),
            parked: VecDeque::new(),
            waiting: Default::default(),
            to_write: Vec::new(),
            accept_blocked: false,
            stopping: None,
            slow: SlowReader::new(),
            syncer: Syncer::new(),
            reclaimer,
            booked: env.ledger().reserve(MemoryKind::Client, 0),
            buffer: vec![0; READ_BYTES].into(),
            reply: Reply::default(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.exec.listening
    }

    /// A handle that stops it.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.shared.clone())
    }

    /// Lets SIGTERM and SIGINT stop the server as [`ShutdownHandle::shutdown`] does. A second one ends the wait for
    /// clients that do not take their replies; commits are finished all the same.
    pub fn stop_on_signals(&mut self) -> Result<()> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let pair = || std::os::unix::net::UnixStream::pair();
        let (receiver, sender) = pair().map_err(|e| io_error("signals", e))?;
        let other = sender.try_clone().map_err(|e| io_error("signals", e))?;
        receiver
            .set_nonblocking(true)
            .map_err(|e| io_error("signals", e))?;
        for (signal, pipe) in [(SIGTERM, sender), (SIGINT, other)] {
            signal_hook::low_level::pipe::register(signal, pipe)
                .map_err(|e| io_error("signals", e))?;
        }
        let mut receiver = UnixStream::from_std(receiver);
        self.poll
            .registry()
            .register(&mut receiver, SIGNALS, Interest::READABLE)
            .map_err(|e| io_error("signals", e))?;
        self.signals = Some(receiver);
        Ok(())
    }

    /// Serves until it is told to stop; then finishes what was accepted, closes the store and returns.
    pub fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(io_error("poll", e)),
            }
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
            for slot in std::mem::take(&mut self.run_list) {
                self.serve(slot);
                // At once, not at the end of the turn: ten thousand clients could each have asked for something large.
                if self.exec.client_bytes > self.exec.options.client_memory_bytes {
                    self.book();
                }
            }
            self.submit();
            self.take_events();
            self.unpark();
            self.write_replies();
            self.book();
            if self.stopping.is_some() && self.stopped() {
                return self.close();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.run_list.is_empty() {
            Some(Duration::ZERO)
        } else if self.accept_blocked || self.stopping.is_some() {
            Some(Duration::from_millis(20))
        } else if self.exec.keys.in_flight() > 0 || self.slow.is_busy() {
            // Should a wake fail, what other threads have finished is found all the same.
            Some(Duration::from_secs(1))
        } else {
            None
        }
    }

    fn signalled(&mut self) {
        let mut bytes = [0; 16];
        let Some(signals) = &mut self.signals else {
            return;
        };
        let mut again = self.stopping.is_some();
        while let Ok(n @ 1..) = signals.read(&mut bytes) {
            again |= n > 1;
        }
        if again {
            self.stopping = Some(Duration::ZERO);
        }
        self.shared.stop.store(true, Ordering::Release);
    }

    fn accept(&mut self) {
        self.accept_blocked = false;
        loop {
            let Some(listener) = &self.listener else {
                return;
            };
            let (mut stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(_) => {
                    // Out of files or memory: the listener is readable only once, so look again soon.
                    self.accept_blocked = true;
                    return;
                }
            };
            self.exec.counters.connections += 1;
            if self.connections.len() - self.free.len() >= self.exec.options.max_clients {
                self.exec.counters.rejected += 1;
                let _ = stream.write(b"-ERR max number of clients reached\r\n");
                continue;
            }
            let _ = stream.set_nodelay(true);
            let slot = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.exec.sessions.push(None);
                self.connections.len() - 1
            });
            let registered = self.poll.registry().register(
                &mut stream,
                Token(slot + FIRST_CLIENT),
                Interest::READABLE | Interest::WRITABLE,
            );
            if registered.is_err() {
                self.free.push(slot);
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let now = self.exec.env.clock().now();
            self.exec.sessions[slot] = Some(Session {
                id,
                address,
                local: stream.local_addr().unwrap_or(self.exec.listening),
                name: String::new(),
                library: String::new(),
                library_version: String::new(),
                protocol: Protocol::Resp2,
                reply_off: false,
                reply_skip: false,
                reply_skip_next: false,
                no_evict: false,
                created: now,
                last: now,
                last_command: "NULL",
                input_bytes: 0,
                reply_bytes: 0,
            });
            let mut connection = Connection::new(id, stream, self.exec.options.limits());
            enqueue(&mut self.run_list, &mut connection, slot);
            self.connections[slot] = Some(connection);
        }
    }

    fn drop_client(&mut self, slot: usize) {
        if let Some(mut c) = self.connections[slot].take() {
            let _ = self.poll.registry().deregister(&mut c.stream);
            self.exec.client_bytes -= c.accounted as u64;
            self.exec.sessions[slot] = None;
            self.free.push(slot);
        }
    }

    /// Takes in what other threads have finished.
    fn take_events(&mut self) {
        loop {
            let events = std::mem::take(&mut *self.shared.events.lock());
            if events.is_empty() {
                return;
            }
            for event in events {
                match event {
                    Event::Epoch { slot, result } => self.epoch_completed(slot, result),
                    Event::Slow(result) => self.slow_done(result),
                }
            }
            // An epoch in flight less: the next may go.
            self.submit();
        }
    }

    fn epoch_completed(&mut self, slot: usize, result: Result<()>) {
        if result.is_err() {
            self.exec.counters.epoch_failures += 1;
        } else if self.exec.sync == SyncPolicy::EverySecond {
            self.syncer.written(self.exec.keys.store());
        }
        let (ended, flushed) = self.exec.keys.complete(slot, result);
        if flushed {
            self.reclaimer.start(self.exec.keys.store());
        }
        for epoch in ended {
            for asker in std::mem::take(&mut self.waiting[epoch.slot]) {
                let Some(c) = self.connections[asker.slot]
                    .as_mut()
                    .filter(|c| c.id == asker.id)
                else {
                    continue;
                };
                let failed = c.epoch_ended(epoch.slot, &epoch.result);
                if let Err(e) = &epoch.result {
                    let text = store_error(e);
                    self.exec.counters.count_errors(text.as_bytes(), failed);
                }
                enqueue(&mut self.run_list, c, asker.slot);
                self.to_write.push(asker.slot);
            }
        }
        for slot in std::mem::take(&mut self.stalled) {
            if let Some(c) = &mut self.connections[slot] {
                c.stalled = false;
                enqueue(&mut self.run_list, c, slot);
            }
        }
    }

    fn slow_done(&mut self, result: SlowResult) {
        self.slow.done();
        if let Some(count) = result.count {
            self.exec.count = Some(count);
        }
        let slot = result.asker.slot;
        if let Some(c) = self.connections[slot]
            .as_mut()
            .filter(|c| c.id == result.asker.id)
        {
            if let Some(text) = result.reply.error_text() {
                self.exec.counters.count_errors(text, 1);
            }
            c.slow_done(result.reply);
            enqueue(&mut self.run_list, c, slot);
            self.to_write.push(slot);
        }
    }

    /// Gives a client its turn.
    fn serve(&mut self, slot: usize) {
        let Some(mut c) = self.connections[slot].take() else {
            return;
        };
        c.queued = false;
        let alive = self.turn(&mut c, slot);
        self.account(&mut c, slot);
        self.connections[slot] = Some(c);
        if alive {
            self.to_write.push(slot);
        } else {
            self.drop_client(slot);
        }
        for action in std::mem::take(&mut self.exec.actions) {
            let Action::Kill { slot: victim, id } = action;
            match &mut self.connections[victim] {
                // Its own end: the reply goes out first.
                Some(c) if c.id == id && victim == slot => c.closing = true,
                Some(c) if c.id == id => self.drop_client(victim),
                _ => {}
            }
        }
    }

    /// Runs and reads in turns. False when the connection is broken.
    fn turn(&mut self, c: &mut Connection, slot: usize) -> bool {
        let mut requests = 0;
        let mut reads = 0;
        loop {
            c.starved = false;
            loop {
                if c.closing || c.slow || c.reply_bytes() > self.exec.options.reply_soft_bytes {
                    return true;
                }
                if c.parked.is_some() && !c.unparked {
                    return true;
                }
                if self.exec.keys.is_full() {
                    self.submit();
                    if self.exec.keys.is_full() {
                        if !c.stalled {
                            c.stalled = true;
                            self.stalled.push(slot);
                        }
                        return true;
                    }
                }
                if requests == REQUESTS_A_TURN {
                    enqueue(&mut self.run_list, c, slot);
                    return true;
                }
                let request = match c.parked.take() {
                    Some(request) => Ok(Some(request)),
                    None => c.parser.next(&mut c.input),
                };
                match request {
                    Ok(Some(request)) => {
                        requests += 1;
                        if is_http(request.arg(0)) {
                            // A browser was led here: it gets no chance to send commands in a body.
                            return false;
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
            if reads == READS_A_TURN {
                enqueue(&mut self.run_list, c, slot);
                return true;
            }
            reads += 1;
            match c.read(&mut self.buffer) {
                Progress::Bytes(n) => self.exec.counters.input_bytes += n as u64,
                Progress::Blocked | Progress::Ended => return true,
                Progress::Broken => return false,
            }
        }
    }

    /// Runs a request; false when it must run again later.
    fn execute(&mut self, c: &mut Connection, slot: usize, request: &Request) -> bool {
        self.reply.clear();
        // Those that wait already come first.
        let first = std::mem::take(&mut c.unparked);
        self.exec.slow_room = self.slow.room() > 0 && (first || self.parked.is_empty());
        let Executed {
            outcome,
            depends_on,
            replies,
        } = self.exec.execute(slot, request, &mut self.reply);
        let new = depends_on & !c.waits_for;
        if new != 0 {
            let asker = Asker { slot, id: c.id };
            for (epoch, waiting) in self.waiting.iter_mut().enumerate() {
                if new & 1 << epoch != 0 {
                    waiting.push(asker);
                }
            }
            c.waits_for |= new;
        }
        match outcome {
            Outcome::Replied => {}
            Outcome::Close => c.closing = true,
            Outcome::Later => {
                let asker = Asker { slot, id: c.id };
                if first {
                    self.parked.push_front(asker);
                } else {
                    self.parked.push_back(asker);
                }
                return false;
            }
            Outcome::Slow(read) => {
                c.push_slow(depends_on, u32::from(replies));
                let asker = Asker { slot, id: c.id };
                let clock = self.exec.env.clock().clone();
                c.gone = Some(read.gone.clone());
                self.slow.ask(asker, *read, &self.shared, &clock);
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

    /// Lets clients go on whose requests wait for the thread for slow reads, as many as it has room for.
    fn unpark(&mut self) {
        let mut room = self.slow.room();
        while room > 0
            && let Some(asker) = self.parked.pop_front()
        {
            let c = self.connections[asker.slot].as_mut();
            // Others have left.
            if let Some(c) = c.filter(|c| c.id == asker.id && c.parked.is_some()) {
                c.unparked = true;
                enqueue(&mut self.run_list, c, asker.slot);
                room -= 1;
            }
        }
        // They may leave faster than there is room.
        if self.parked.len() > 2 * self.connections.len() {
            let connections = &self.connections;
            self.parked.retain(|asker| {
                let c = connections[asker.slot].as_ref();
                c.is_some_and(|c| c.id == asker.id)
            });
        }
    }

    fn submit(&mut self) {
        let sync = self.exec.sync == SyncPolicy::Always;
        let shared = &self.shared;
        let submitted = self.exec.keys.submit(sync, |slot| {
            let shared = shared.clone();
            Box::new(move |result| shared.post(Event::Epoch { slot, result }))
        });
        self.exec.counters.epochs += u64::from(submitted);
    }

    fn write_replies(&mut self) {
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
                        self.exec.counters.output_bytes += n as u64;
                        if paused && c.reply_bytes() <= self.exec.options.reply_soft_bytes {
                            enqueue(&mut self.run_list, &mut c, slot);
                        }
                    }
                    _ => alive = false,
                }
            }
            // Nothing more will come and everything has been said.
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

    fn account(&mut self, c: &mut Connection, slot: usize) {
        let session = self.exec.sessions[slot].as_ref();
        let bytes = c.memory() + session.map_or(0, Session::memory);
        let total = &mut self.exec.client_bytes;
        *total = *total - c.accounted as u64 + bytes as u64;
        c.accounted = bytes;
        if let Some(session) = &mut self.exec.sessions[slot] {
            session.input_bytes = c.input.len();
            session.reply_bytes = c.reply_bytes();
        }
    }

    /// Tells the ledger, and sends away whoever holds most when all hold too much.
    fn book(&mut self) {
        while self.exec.client_bytes > self.exec.options.client_memory_bytes {
            let largest = self
                .connections
                .iter()
                .enumerate()
                .filter_map(|(slot, c)| {
                    let session = self.exec.sessions[slot].as_ref()?;
                    Some((session.no_evict, c.as_ref()?.accounted, slot))
                })
                // Those that asked to stay go last.
                .max_by_key(|(no_evict, bytes, _)| (!no_evict, *bytes));
            let Some((_, _, slot)) = largest else {
                break;
            };
            self.exec.counters.evicted_clients += 1;
            self.drop_client(slot);
        }
        let peak = &mut self.exec.client_bytes_peak;
        *peak = (*peak).max(self.exec.client_bytes);
        let bytes = self.exec.client_bytes + self.exec.keys.pending_bytes() as u64;
        if self.booked.bytes() != bytes {
            self.booked.resize(bytes);
        }
    }

    /// Accepts nobody any more; what has been read is still served.
    fn begin_stop(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
            self.stopping
                .get_or_insert(self.exec.env.clock().now() + self.exec.options.drain);
            for (slot, c) in self.connections.iter_mut().enumerate() {
                if let Some(c) = c {
                    enqueue(&mut self.run_list, c, slot);
                }
            }
        }
    }

    fn stopped(&mut self) -> bool {
        let deadline = self.stopping.expect("it is stopping");
        if self.exec.env.clock().now() >= deadline {
            for slot in 0..self.connections.len() {
                self.drop_client(slot);
            }
        }
        self.connections.iter().all(Option::is_none) && self.exec.keys.is_settled()
    }

    fn close(self) -> Result<()> {
        let Server {
            exec,
            slow,
            syncer,
            mut reclaimer,
            ..
        } = self;
        drop(slow);
        drop(syncer);
        let store = exec.keys.store().clone();
        drop(exec);
        let closed = store.close();
        reclaimer.join();
        closed
    }
}

fn enqueue(list: &mut Vec<usize>, c: &mut Connection, slot: usize) {
    if !c.queued {
        c.queued = true;
        list.push(slot);
    }
}

/// What an HTTP request begins with, which a web page can make a browser send here.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

#[cfg(test)]
mod tests;
