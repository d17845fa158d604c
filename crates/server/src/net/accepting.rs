//! Accepting and closing connections: the listening socket, the limit of clients that the open
//! files allow, and the slots of connections and their sessions.

use super::background::report;
use super::connection::Connection;
use super::{FIRST_CLIENT, Server, enqueue};
use crate::command::Session;
use crate::options::KEEPALIVE_MOST;
use crate::resp::Protocol;
use basalt::{Error, ErrorKind, Result};
use mio::net::TcpListener;
use mio::{Interest, Token};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// The shortest time between two checks for idle clients.
const LEAST_IDLE_LOOK: Duration = Duration::from_millis(100);

/// Files that the process needs besides those of clients.
const OTHER_FILES: u64 = 64;

pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
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

/// Raises the limit of open files as far as needed and allowed. Returns the number of clients that
/// it allows.
pub(super) fn room_for_clients(wanted: usize, engine_files: u64) -> usize {
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
    // If there are too few files for both, clients and the engine share them.
    let room = have.saturating_sub(others).max(have / 2) as usize;
    report(&format!(
        "only {have} files may be open, so at most {room} clients are served; raise the limit (ulimit -n {need}) for {wanted}"
    ));
    room.max(1)
}

/// Lets the system find clients whose machine is gone. The first probe comes after `interval`
/// without traffic, and three more come a third of it apart. Zero turns the probes off.
fn keep_alive(stream: &impl AsFd, interval: Duration) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, !interval.is_zero())?;
    if !interval.is_zero() {
        let seconds = |n: u64| Duration::from_secs(n.clamp(1, KEEPALIVE_MOST));
        sockopt::set_tcp_keepidle(stream, seconds(interval.as_secs()))?;
        sockopt::set_tcp_keepintvl(stream, seconds(interval.as_secs() / 3))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
    }
    Ok(())
}

impl Server {
    pub(super) fn accept(&mut self) {
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
                    // Files or memory are exhausted. The listener reports readiness only once, so
                    // the loop checks again soon.
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
            if let Err(e) = keep_alive(&stream, self.exec.options.tcp_keepalive) {
                // The client is served nevertheless.
                report(&format!("cannot set TCP keepalive for {address}: {e}"));
            }
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
                blocked: false,
                created: now,
                last: now,
                last_command: "NULL",
                input_bytes: 0,
                reply_bytes: 0,
            });
            let mut connection = Connection::new(id, stream, self.exec.options.limits());
            connection.active = now;
            enqueue(&mut self.run_list, &mut connection, slot);
            self.connections[slot] = Some(connection);
        }
    }

    pub(super) fn drop_client(&mut self, slot: usize) {
        if let Some(mut c) = self.connections[slot].take() {
            let _ = self.poll.registry().deregister(&mut c.stream);
            self.end_fetch(&mut c);
            self.end_block(&mut c, slot);
            if let Some(assembly) = c.assembly.take() {
                self.preparer.discard(assembly);
            }
            if let Some(many) = c.many.take() {
                self.preparer.discard_command(many);
            }
            self.exec.client_bytes -= c.accounted as u64;
            self.exec.sessions[slot] = None;
            self.free.push(slot);
        }
    }

    /// Disconnects clients that were idle for too long. A client whose reply waits for a commit or
    /// another thread is not idle.
    pub(super) fn drop_idle(&mut self) {
        let limit = self.exec.options.idle_timeout;
        if limit.is_zero() || (limit == self.idle_limit && self.now < self.idle_look_at) {
            return;
        }
        let mut next = limit;
        for slot in 0..self.connections.len() {
            let Some(c) = &self.connections[slot] else {
                continue;
            };
            // A client in the run list has sent bytes, and has not had its turn yet.
            if c.awaits_reply() || c.queued {
                continue;
            }
            match limit.checked_sub(self.now.saturating_sub(c.active)) {
                Some(left) if !left.is_zero() => next = next.min(left),
                _ => {
                    self.exec.counters.idle_clients += 1;
                    self.drop_client(slot);
                }
            }
        }
        // A check visits all clients, so two checks are at least this far apart for any
        // distribution of times.
        self.idle_look_at = self.now + next.max(LEAST_IDLE_LOOK);
        self.idle_limit = limit;
    }
}
