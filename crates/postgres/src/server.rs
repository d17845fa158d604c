//! The server: accepting connections, their limit, cancel requests, and stopping.
//!
//! One thread accepts. Each connection has a thread of its own, as in PostgreSQL each has a
//! process. A stopping server closes the reading side of every socket and interrupts running
//! statements. The threads of connections then find the end of their input, send the reason and
//! return.

use crate::activity::Activity;
use crate::backend::{self, Severity};
use crate::connection::Connection;
use crate::options::PostgresOptions;
use crate::socket::{self, Socket, room_for_connections};
use crate::startup::{authenticate, begin_session, negotiate};
use crate::state::{ServerState, too_many};
use crate::stats::{Counters, PostgresStats};
use crate::tls::Tls;
use crate::wire::{End, Wire};
use basalt::env::thread::{BackgroundThread, spawn};
use basalt::{Env, Error, ErrorKind, Result};
use basalt_sql::{Database, Session, SqlError, SqlState};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Wait before the next accept after the system had no files or threads left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Removes a connection when its thread ends for any reason.
struct Registered {
    server: Arc<ServerState>,
    process: i32,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.server.unregister(self.process);
    }
}

/// Serves a connection from its first byte to its end.
fn serve(registered: &Registered, socket: Socket) {
    let server = &registered.server;
    let mut wire = Wire::new(socket, server.options.max_message_bytes);
    wire.set_timeout(server.options.authentication_timeout);
    let end = match start(registered, &mut wire) {
        Ok(Some(started)) => {
            let Started {
                session,
                activity,
                greeting,
            } = started;
            let mut connection = Connection::new(wire, session, activity, server.clone(), greeting);
            let end = connection.run();
            send_end(server, connection.wire(), end);
            return;
        }
        Ok(None) => return,
        Err(end) => end,
    };
    send_end(server, &mut wire, end);
}

/// A session that began.
struct Started {
    session: Session,
    activity: Arc<Activity>,
    /// The first messages for the client.
    greeting: Vec<u8>,
}

/// Starts a session. Returns `None` if the client only cancelled a statement.
fn start(registered: &Registered, wire: &mut Wire) -> std::result::Result<Option<Started>, End> {
    let server = &registered.server;
    let Some(startup) = negotiate(wire, server)? else {
        return Ok(None);
    };
    authenticate(wire, server, &startup)?;
    let session = server.database.session_of(&startup.user);
    let mut session = session.map_err(End::Fatal)?;
    let activity = Arc::new(Activity::new(session.interrupt_handle()));
    let secret = server.begin_session(registered.process, activity.clone())?;
    if server.is_stopping() {
        return Err(End::Closed);
    }
    let greeting = begin_session(&mut session, &startup, registered.process, secret)?;
    Ok(Some(Started {
        session,
        activity,
        greeting,
    }))
}

/// Sends the reason why a connection ends.
fn send_end(server: &ServerState, wire: &mut Wire, end: End) {
    let error = match end {
        End::Fatal(error) => error,
        _ if server.is_stopping() => SqlError::new(
            SqlState::SHUTTING_DOWN,
            "terminating connection due to administrator command",
        ),
        End::Timeout | End::Closed => return,
    };
    server.counters.errors.add(1);
    backend::put_error(&mut wire.out, Severity::Fatal, &error);
    let _ = wire.flush();
    wire.linger();
}

/// A running server of PostgreSQL's protocol over a database.
pub struct PostgresServer {
    state: Arc<ServerState>,
    address: SocketAddr,
    /// The accepting thread ends when this is closed.
    waker: Option<UnixStream>,
    acceptor: Option<BackgroundThread>,
}

impl PostgresServer {
    /// Binds the address and serves clients until [`PostgresServer::stop`]. The caller closes the
    /// database after that. The limit of open files is raised as far as the connections need and
    /// the system allows. If it allows less, fewer connections are served.
    ///
    /// Errors: options out of range, a certificate that cannot be used, an address that is in use
    /// or not permitted, a thread that cannot be started.
    pub fn start(
        database: Database,
        env: &Env,
        mut options: PostgresOptions,
    ) -> Result<PostgresServer> {
        options.validate()?;
        options.max_connections =
            room_for_connections(options.max_connections, env.open_files().limit() as u64);
        let tls = options.tls.as_ref().map(Tls::new).transpose()?;
        let listener = listen(options.listen)?;
        let address = listener
            .local_addr()
            .map_err(|e| io_error("reading the address of its socket", &e))?;
        let counters = Counters::new(env, &address.to_string());
        let state = Arc::new(ServerState::new(database, options, tls, counters));
        let (waker, wakeup) =
            UnixStream::pair().map_err(|e| io_error("creating a socket pair", &e))?;
        let (accepting, clock) = (state.clone(), env.clock().clone());
        let acceptor = BackgroundThread::start("pg-accept", move || {
            accept(&accepting, &listener, &wakeup, &|| {
                clock.sleep(ACCEPT_PAUSE)
            });
        })
        .map_err(|e| io_error("starting the accept thread", &e))?;
        Ok(PostgresServer {
            state,
            address,
            waker: Some(waker),
            acceptor: Some(acceptor),
        })
    }

    /// Returns the address that the server listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns what the server counted.
    pub fn stats(&self) -> PostgresStats {
        self.state.counters.read()
    }

    /// Ends all sessions: running statements are interrupted, open transactions are rolled back,
    /// and each client gets the error 57P01. Returns when the last one has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.state.begin_stop();
        self.waker = None;
        self.acceptor = None;
        self.state.end_connections();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn io_error(what: &str, e: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("cannot start the PostgreSQL server: {what}: {e}"),
    )
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => Error::new(
            ErrorKind::Busy,
            format!(
                "cannot serve PostgreSQL clients on {address}: the address is in use; stop the other program, or choose another address"
            ),
        ),
        std::io::ErrorKind::PermissionDenied => Error::invalid(format!(
            "cannot serve PostgreSQL clients on {address}: permission denied; choose a port from 1024 on"
        )),
        std::io::ErrorKind::AddrNotAvailable => Error::invalid(format!(
            "cannot serve PostgreSQL clients on {address}: this machine does not have the address; choose another address"
        )),
        _ => Error::new(
            ErrorKind::Io,
            format!("cannot serve PostgreSQL clients on {address}: {e}; choose another address"),
        ),
    })
}

/// Accepts connections until the other end of `wakeup` is closed.
fn accept(
    server: &Arc<ServerState>,
    listener: &TcpListener,
    wakeup: &UnixStream,
    pause: &dyn Fn(),
) {
    loop {
        let mut polled = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(wakeup, PollFlags::IN),
        ];
        if poll(&mut polled, None).is_err() || server.is_stopping() {
            if server.is_stopping() {
                return;
            }
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if begin_connection(server, stream).is_err() {
                    pause();
                }
            }
            Err(e) => match e.kind() {
                std::io::ErrorKind::WouldBlock
                | std::io::ErrorKind::Interrupted
                | std::io::ErrorKind::ConnectionAborted => {}
                // Files or memory are exhausted.
                _ => pause(),
            },
        }
    }
}

/// Starts the thread of a connection.
fn begin_connection(server: &Arc<ServerState>, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    socket::prepare(&stream, server.options.tcp_keepalive);
    let mut socket = Socket(Arc::new(stream));
    let Some(process) = server.register(socket.clone()) else {
        server.counters.rejected.add(1);
        let mut message = Vec::new();
        backend::put_error(&mut message, Severity::Fatal, &too_many());
        return socket.write_all(&message);
    };
    let registered = Registered {
        server: server.clone(),
        process,
    };
    spawn("pg-connection", move || serve(&registered, socket)).map(drop)
}
