//! [`ServerState`]: the options, passwords and connections that the threads of a server share.

use crate::activity::Activity;
use crate::options::{Passwords, PostgresOptions};
use crate::scram::{self, Verifier};
use crate::socket::Socket;
use crate::stats::Counters;
use crate::tls::Tls;
use crate::wire::End;
use basalt_sql::{Database, SqlError, SqlState};
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of connections without a session: clients that authenticate, that cancel, or that
/// get the error of too many sessions.
const MAX_STARTING_CONNECTIONS: usize = 64;

/// Time between two interrupts of a statement that does not end. A statement that began after the
/// first interrupt has not seen it.
const INTERRUPT_EVERY: Duration = Duration::from_millis(20);

/// A connection, for other threads.
struct ConnectionEntry {
    secret: [u8; 4],
    socket: Socket,
    /// Set when the session begins.
    activity: Option<Arc<Activity>>,
}

#[derive(Default)]
struct Connections {
    by_process: BTreeMap<i32, ConnectionEntry>,
    last_process: i32,
    /// Connections with a session.
    sessions: usize,
}

/// The state that the threads of a server share.
pub struct ServerState {
    /// The database.
    pub database: Database,
    /// The options.
    pub options: PostgresOptions,
    /// TLS, if there is a certificate.
    pub tls: Option<Tls>,
    /// The counters.
    pub counters: Counters,
    users: BTreeMap<String, Verifier>,
    shared_password: Option<Verifier>,
    /// The secret from which the salts of names without a password are computed.
    mock_secret: [u8; 32],
    connections: Mutex<Connections>,
    /// A connection ended.
    ended: Condvar,
    is_stopping: AtomicBool,
}

impl ServerState {
    /// Returns the state of a server without connections. Computes the hash of each password, which
    /// costs some milliseconds.
    pub fn new(
        database: Database,
        options: PostgresOptions,
        tls: Option<Tls>,
        counters: Counters,
    ) -> ServerState {
        let (users, shared_password) = match &options.passwords {
            Passwords::None => (BTreeMap::new(), None),
            Passwords::Shared(password) => (BTreeMap::new(), Some(Verifier::new(password))),
            Passwords::Users(users) => {
                let pairs = users.iter();
                let verifiers =
                    pairs.map(|(name, password)| (name.clone(), Verifier::new(password)));
                (verifiers.collect(), None)
            }
        };
        ServerState {
            database,
            tls,
            counters,
            users,
            shared_password,
            mock_secret: scram::random(),
            connections: Mutex::default(),
            ended: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            options,
        }
    }

    /// Tells all threads that the server stops.
    pub fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    /// Returns whether the server stops.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Returns the verifier of a user's password, or `None` if there are no passwords.
    pub fn verifier(&self, user: &str) -> Option<Cow<'_, Verifier>> {
        match &self.options.passwords {
            Passwords::None => None,
            Passwords::Shared(_) => self.shared_password.as_ref().map(Cow::Borrowed),
            Passwords::Users(_) => Some(match self.users.get(user) {
                Some(verifier) => Cow::Borrowed(verifier),
                None => Cow::Owned(Verifier::mock(&self.mock_secret, user)),
            }),
        }
    }

    /// Interrupts the statement of the connection with this number and secret.
    pub fn cancel(&self, process: i32, secret: &[u8]) {
        let connections = self.connections.lock();
        if let Some(entry) = connections.by_process.get(&process)
            && entry.secret == secret
            && let Some(activity) = &entry.activity
            && activity.cancel()
        {
            self.counters.cancels.add(1);
        }
    }

    /// Takes a number for a connection. Returns `None` if there are too many.
    pub fn register(&self, socket: Socket) -> Option<i32> {
        let mut connections = self.connections.lock();
        let starting = connections.by_process.len() - connections.sessions;
        if starting >= MAX_STARTING_CONNECTIONS {
            return None;
        }
        let mut process = connections.last_process;
        loop {
            process = process.checked_add(1).unwrap_or(1);
            if !connections.by_process.contains_key(&process) {
                break;
            }
        }
        connections.last_process = process;
        let entry = ConnectionEntry {
            secret: scram::random(),
            socket,
            activity: None,
        };
        connections.by_process.insert(process, entry);
        Some(process)
    }

    /// Counts a session and makes it known for cancel requests. Returns its secret.
    pub fn begin_session(
        &self,
        process: i32,
        activity: Arc<Activity>,
    ) -> std::result::Result<[u8; 4], End> {
        let mut connections = self.connections.lock();
        if connections.sessions >= self.options.max_connections {
            self.counters.rejected.add(1);
            return Err(End::Fatal(too_many()));
        }
        let entry = connections.by_process.get_mut(&process);
        let entry = entry.ok_or(End::Closed)?;
        entry.activity = Some(activity);
        let secret = entry.secret;
        connections.sessions += 1;
        self.counters.connections.add(1);
        self.counters.connections_total.add(1);
        Ok(secret)
    }

    /// Forgets a connection.
    pub fn unregister(&self, process: i32) {
        let mut connections = self.connections.lock();
        if let Some(entry) = connections.by_process.remove(&process)
            && entry.activity.is_some()
        {
            connections.sessions -= 1;
            self.counters.connections.add(-1);
        }
        self.ended.notify_all();
    }

    /// Ends all connections and waits for their threads.
    pub fn end_connections(&self) {
        let mut connections = self.connections.lock();
        for entry in connections.by_process.values() {
            let _ = entry.socket.0.shutdown(Shutdown::Read);
        }
        let mut waited = Duration::ZERO;
        while !connections.by_process.is_empty() {
            for entry in connections.by_process.values() {
                if let Some(activity) = &entry.activity {
                    activity.end();
                }
                if waited >= self.options.drain {
                    let _ = entry.socket.0.shutdown(Shutdown::Both);
                }
            }
            self.ended.wait_for(&mut connections, INTERRUPT_EVERY);
            waited += INTERRUPT_EVERY;
        }
    }
}

/// Returns the error of a connection beyond the limit.
pub fn too_many() -> SqlError {
    SqlError::new(
        SqlState::TOO_MANY_CONNECTIONS,
        "sorry, too many clients already",
    )
}
