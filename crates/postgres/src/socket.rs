//! Sockets of connections: one descriptor that two threads use, keepalive, and the limit of open
//! files.

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// The longest interval of TCP keepalive, in seconds, that the system takes.
pub const KEEPALIVE_MOST: u64 = 32_767;

/// Files that the process needs in addition to those of connections and of the store.
const OTHER_FILES: u64 = 64;

/// A socket. Clones are the same descriptor, so the thread of a connection reads and writes while
/// the server shuts it down.
#[derive(Clone)]
pub struct Socket(pub Arc<TcpStream>);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (&*self.0).write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sets what a new socket needs. With `keepalive`, the system probes a client's machine after that
/// time without traffic, three times a third of it apart. A client is served also without it.
pub fn prepare(socket: &TcpStream, keepalive: Duration) {
    let _ = socket.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(socket, !keepalive.is_zero());
    if !keepalive.is_zero() {
        let seconds = |n: u64| Duration::from_secs(n.clamp(1, KEEPALIVE_MOST));
        let _ = sockopt::set_tcp_keepidle(socket, seconds(keepalive.as_secs()));
        let _ = sockopt::set_tcp_keepintvl(socket, seconds(keepalive.as_secs() / 3));
        let _ = sockopt::set_tcp_keepcnt(socket, 3);
    }
}

/// Raises the limit of open files as far as needed and allowed. Returns the number of connections
/// that it allows, at most `wanted`.
pub fn room_for_connections(wanted: usize, store_files: u64) -> usize {
    let others = store_files + OTHER_FILES;
    let need = wanted as u64 + others;
    let limit = getrlimit(Resource::Nofile);
    let mut have = limit.current.unwrap_or(u64::MAX);
    if have < need {
        let raised = limit.maximum.map_or(need, |most| most.min(need));
        let wanted = Rlimit {
            current: Some(raised),
            maximum: limit.maximum,
        };
        if setrlimit(Resource::Nofile, wanted).is_ok() {
            have = raised;
        }
    }
    if have >= need {
        return wanted;
    }
    // If there are too few files for both, connections and the store share them.
    (have.saturating_sub(others).max(have / 2) as usize).max(1)
}
