//! The loop on a store whose commits the test holds back: replies wait for them, and clients do not
//! wait for each other.

mod blocking;
mod commits;
mod connections;
mod fetches;
mod many_names;
mod slow_reads;
mod stopping;
mod stream_jobs;
mod stream_pins;

use super::*;
use crate::layout;
use crate::store::memory::{MemoryStore, ReadOf};
use basalt::env::{Clock, EnvBuilder, ManualClock};
use basalt::fs::{HostFs, HostOptions};
use std::io::{Read, Write};
use std::net::TcpStream;

struct World {
    store: MemoryStore,
    address: SocketAddr,
    stop: ShutdownHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new(change: impl FnOnce(&mut ServerOptions)) -> World {
        World::over(MemoryStore::default(), Clock::system(), change)
    }

    fn over(store: MemoryStore, clock: Clock, change: impl FnOnce(&mut ServerOptions)) -> World {
        let fs = HostFs::new(HostOptions::new(std::env::temp_dir())).unwrap();
        let env = EnvBuilder::new(fs).clock(clock).build();
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerOptions::default()
        };
        change(&mut options);
        let listener = listen(options.listen).unwrap();
        let server = Server::over(&env, options, listener, Arc::new(store.clone())).unwrap();
        let (address, stop) = (server.local_addr(), server.shutdown_handle());
        let thread =
            basalt::env::thread::spawn("basalt-server", move || server.run().unwrap()).unwrap();
        World {
            store,
            address,
            stop,
            thread: Some(thread),
        }
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    fn wait_held(&self, n: usize) {
        while self.store.held() != n {
            basalt::env::Clock::system().sleep(Duration::from_millis(1));
        }
    }

    fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
        assert!(self.store.0.lock().closed);
    }
}

fn send(c: &mut TcpStream, line: &str) {
    c.write_all(format!("{line}\r\n").as_bytes()).unwrap();
}

fn expect(c: &mut TcpStream, reply: &str) {
    let mut got = vec![0; reply.len()];
    c.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

/// Makes a round trip on another connection. Everything sent before it has then been executed.
fn round(w: &World) {
    let mut c = w.client();
    send(&mut c, "PING");
    expect(&mut c, "+PONG\r\n");
}

fn nothing_yet(c: &mut TcpStream) {
    c.set_nonblocking(true).unwrap();
    let e = c.peek(&mut [0]).expect_err("a reply came too early");
    assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
    c.set_nonblocking(false).unwrap();
}

fn failed() -> Result<()> {
    Err(Error::new(ErrorKind::NoSpace, "the disk is full"))
}

/// Bytes of a value that the loop never reads itself.
const LONG: usize = 1 << 20;

/// Returns a world that separates values from 1,000 bytes on, and where reads by other threads than
/// the loop's wait.
fn holding_fetches() -> World {
    let w = World::new(|_| {});
    hold_fetches(&w);
    w
}

fn hold_fetches(w: &World) {
    let thread = w.thread.as_ref().unwrap().thread().id();
    let mut s = w.store.0.lock();
    (s.apart_from, s.hold_fetches, s.loop_thread) = (1000, true, Some(thread));
}

/// Returns the reads of the loop, and those of other threads.
fn reads(w: &World) -> (Vec<ReadOf>, Vec<ReadOf>) {
    let s = w.store.0.lock();
    let by_loop = |r: &&(std::thread::ThreadId, ReadOf)| Some(r.0) == s.loop_thread;
    let (here, there): (Vec<_>, Vec<_>) = s.reads.iter().partition(by_loop);
    let of =
        |list: Vec<&(std::thread::ThreadId, ReadOf)>| list.iter().map(|r| r.1.clone()).collect();
    (of(here), of(there))
}

fn wait_fetch(w: &World) {
    while reads(w).1.is_empty() {
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
    panic!("what is waited for does not come");
}

/// Sets keys to long values, each of which the loop leaves to another thread.
fn set_long(w: &World, keys: &[&str]) {
    let long = "v".repeat(LONG);
    let mut c = w.client();
    for key in keys {
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${LONG}\r\n", key.len());
        c.write_all(format!("{head}{long}\r\n").as_bytes()).unwrap();
        expect(&mut c, "+OK\r\n");
    }
}

/// Returns a number of INFO.
fn info(c: &mut TcpStream, name: &str) -> u64 {
    send(c, "INFO everything");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n") {
        let mut byte = [0];
        c.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let len: usize = std::str::from_utf8(&head[1..])
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut text = vec![0; len + 2];
    c.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .parse()
        .unwrap()
}

/// Keeps all places for fetches taken, and returns the clients that have them.
fn all_fetches(w: &World) -> Vec<TcpStream> {
    let mut clients: Vec<_> = (0..16).map(|_| w.client()).collect();
    for c in &mut clients {
        send(c, "GET long");
    }
    let mut d = w.client();
    wait_until(|| info(&mut d, "fetched_requests") == 16);
    clients
}

/// Returns `command` with the names `n0` to `n2999`.
fn of_many(command: &str) -> String {
    let names: String = (0..3000).map(|n| format!(" n{n}")).collect();
    format!("{command}{names}")
}
