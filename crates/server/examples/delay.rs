//! Measures how long one request of each command makes another client wait, and prints the table of
//! `docs/server.md`.
//!
//! Run `cargo run --release -p basalt-server --example delay -- DIR [NAMES] [VALUE_MIB]`. It starts
//! a server on a new store in `DIR/store`. One client sends the request, and another client sends
//! PING after PING. The printed time is the longest PING during the request.

use basalt::Result;
use basalt::env::{Clock, EnvBuilder, thread};
use basalt::fs::{HostFs, HostOptions};
use basalt_server::{Server, ServerOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn io(e: std::io::Error) -> basalt::Error {
    basalt::Error::new(basalt::ErrorKind::Io, e.to_string())
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for a in args {
        out.extend_from_slice(format!("${}\r\n", a.len()).as_bytes());
        out.extend_from_slice(a);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A client that skips the content of replies.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        Ok(Client {
            stream,
            buffer: Vec::new(),
            at: 0,
        })
    }

    fn fill(&mut self) -> Result<()> {
        self.at = 0;
        self.buffer.resize(256 << 10, 0);
        let n = self.stream.read(&mut self.buffer).map_err(io)?;
        self.buffer.truncate(n);
        match n {
            0 => Err(basalt::Error::invalid("the server closed the connection")),
            _ => Ok(()),
        }
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if self.at == self.buffer.len() {
                self.fill()?;
            }
            line.push(self.buffer[self.at]);
            self.at += 1;
        }
        Ok(line)
    }

    fn skip(&mut self, mut n: usize) -> Result<()> {
        while n > 0 {
            if self.at == self.buffer.len() {
                self.fill()?;
            }
            let part = n.min(self.buffer.len() - self.at);
            self.at += part;
            n -= part;
        }
        Ok(())
    }

    /// Reads one reply and returns its first line.
    fn reply(&mut self) -> Result<String> {
        let line = self.line()?;
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        let n: i64 = text[1..].parse().unwrap_or(0);
        match line[0] {
            b'$' if n >= 0 => self.skip(n as usize + 2)?,
            b'*' => {
                for _ in 0..n {
                    self.reply()?;
                }
            }
            _ => {}
        }
        Ok(text)
    }

    fn call(&mut self, args: &[Vec<u8>]) -> Result<String> {
        self.stream.write_all(&encode(args)).map_err(io)?;
        self.reply()
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|w| w.as_bytes().to_vec()).collect()
}

/// A thread that sends PING after PING and records the longest one.
struct Pinger {
    longest_us: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pinger {
    fn start(address: SocketAddr, clock: Clock) -> Result<Pinger> {
        let mut client = Client::connect(address)?;
        let (longest_us, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (longest, ended) = (longest_us.clone(), stop.clone());
        let run = move || {
            while !ended.load(Ordering::Acquire) {
                let begun = clock.now();
                if client.call(&words("PING")).is_err() {
                    return;
                }
                let took = (clock.now() - begun).as_micros() as u64;
                longest.fetch_max(took, Ordering::AcqRel);
            }
        };
        Ok(Pinger {
            longest_us,
            stop,
            thread: Some(thread::spawn("ping", run).map_err(io)?),
        })
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server on the store.
struct World {
    address: SocketAddr,
    stop: basalt_server::ShutdownHandle,
    thread: std::thread::JoinHandle<()>,
}

fn serve(dir: &str) -> Result<World> {
    let env = EnvBuilder::new(HostFs::new(HostOptions::new(dir))?).build();
    let options = ServerOptions {
        dir: "store".into(),
        listen: ([127, 0, 0, 1], 0).into(),
        ..ServerOptions::default()
    };
    let server = Server::bind(&env, options)?;
    let (address, stop) = (server.local_addr(), server.shutdown_handle());
    let run = move || {
        if let Err(e) = server.run() {
            eprintln!("delay: the server ended: {e}");
        }
    };
    let thread = thread::spawn("server", run).map_err(io)?;
    Ok(World {
        address,
        stop,
        thread,
    })
}

impl World {
    fn end(self) {
        self.stop.shutdown();
        let _ = self.thread.join();
    }
}

/// The keys with long values.
const LONG_KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn name(n: usize) -> Vec<u8> {
    format!("name:{n:08}").into_bytes()
}

/// Writes a value of `value` bytes to each of [`LONG_KEYS`], and a short one to each of `names`
/// names.
fn fill(client: &mut Client, names: usize, value: usize) -> Result<()> {
    for key in LONG_KEYS {
        client.call(&[b"SET".to_vec(), key.into(), vec![b'v'; value]])?;
    }
    let mut pairs = vec![b"MSET".to_vec()];
    for n in 0..names {
        pairs.extend([name(n), b"v".to_vec()]);
        if pairs.len() > 100_000 || n + 1 == names {
            client.call(&std::mem::replace(&mut pairs, vec![b"MSET".to_vec()]))?;
        }
    }
    Ok(())
}

/// A request that is measured: its name in the table, its bytes, and its number of replies.
type Request = (String, Vec<u8>, usize);

/// Returns `times` copies of a request.
fn pipeline(line: &str, times: usize) -> Vec<u8> {
    encode(&words(line)).repeat(times)
}

/// Returns the requests about the long values.
fn requests_of_values(value: usize) -> Vec<Request> {
    let mib = value >> 20;
    let append = [b"APPEND".to_vec(), b"d".to_vec(), b"x".to_vec()];
    let set = [b"SET".to_vec(), b"e".to_vec(), vec![b'v'; value]];
    vec![
        ("nothing".into(), vec![], 0),
        (
            format!("100 STRLEN, value of {mib} MiB"),
            pipeline("STRLEN a", 100),
            100,
        ),
        (
            format!("100 TYPE, value of {mib} MiB"),
            pipeline("TYPE a", 100),
            100,
        ),
        (
            format!("EXPIRE, value of {mib} MiB"),
            pipeline("EXPIRE f 1000", 1),
            1,
        ),
        (
            format!("100 GETRANGE of 10 bytes, value of {mib} MiB"),
            pipeline("GETRANGE b 0 9", 100),
            100,
        ),
        (format!("GET, value of {mib} MiB"), pipeline("GET c", 1), 1),
        (
            format!("10 GET, values of {mib} MiB"),
            pipeline("GET c", 10),
            10,
        ),
        (format!("SET, value of {mib} MiB"), encode(&set), 1),
        (format!("APPEND, value of {mib} MiB"), encode(&append), 1),
        (
            format!("DEL of 3 values of {mib} MiB"),
            pipeline("DEL a b c", 1),
            1,
        ),
    ]
}

/// Returns the requests about very many names, and those about the whole keyspace.
fn requests_of_names(names: usize) -> Vec<Request> {
    let all = |command: &str| {
        let command = std::iter::once(command.as_bytes().to_vec());
        let list: Vec<Vec<u8>> = command.chain((0..names).map(name)).collect();
        encode(&list)
    };
    let half = |command: &str| {
        let command = std::iter::once(command.as_bytes().to_vec());
        let pairs = (0..names / 2).flat_map(|n| [name(n), b"w".to_vec()]);
        let list: Vec<Vec<u8>> = command.chain(pairs).collect();
        encode(&list)
    };
    let many = format!("{names} names");
    vec![
        (format!("EXISTS, {many}"), all("EXISTS"), 1),
        (format!("MGET, {many}"), all("MGET"), 1),
        (
            "SCAN, COUNT 1000000, after the MGET".into(),
            pipeline("SCAN 0 COUNT 1000000", 1),
            1,
        ),
        (format!("KEYS, {many}"), pipeline("KEYS *", 1), 1),
        (format!("DBSIZE, {many}"), pipeline("DBSIZE", 1), 1),
        (format!("MSET, {} names", names / 2), half("MSET"), 1),
        (format!("DEL, {many}"), all("DEL"), 1),
        (format!("MSETNX, {} names", names / 2), half("MSETNX"), 1),
        (format!("UNLINK, {many}"), all("UNLINK"), 1),
        ("FLUSHALL".into(), pipeline("FLUSHALL", 1), 1),
    ]
}

/// Sends a request while another client sends PING after PING, and prints a row of the table.
fn measure(world: &World, client: &mut Client, clock: &Clock, request: Request) -> Result<()> {
    let (what, bytes, replies) = request;
    let pinger = Pinger::start(world.address, clock.clone())?;
    clock.sleep(Duration::from_millis(200));
    pinger.longest_us.store(0, Ordering::Release);
    let begun = clock.now();
    client.stream.write_all(&bytes).map_err(io)?;
    let mut last = String::new();
    for _ in 0..replies {
        last = client.reply()?;
    }
    let took = clock.now() - begun;
    clock.sleep(Duration::from_millis(300));
    let longest = pinger.longest_us.load(Ordering::Acquire);
    println!(
        "| {what} | {:.1} | {:.1} | `{last}` |",
        longest as f64 / 1000.0,
        took.as_micros() as f64 / 1000.0,
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| ".".into());
    let number = |text: Option<String>, or: usize| match text {
        None => Ok(or),
        Some(t) => t
            .parse()
            .map_err(|_| basalt::Error::invalid(format!("{t} is no number"))),
    };
    let names = number(args.next(), 1_000_000)?;
    let value = number(args.next(), 32)? << 20;
    let clock = Clock::system();

    let world = serve(&dir)?;
    fill(&mut Client::connect(world.address)?, names, value)?;
    // After a restart, the keys are in tables and blob files, and in no cache.
    world.end();
    let world = serve(&dir)?;
    let mut client = Client::connect(world.address)?;
    println!(
        "| request | another client's longest PING, ms | the request itself, ms | its reply |"
    );
    println!("|---|---|---|---|");
    for request in requests_of_values(value) {
        measure(&world, &mut client, &clock, request)?;
    }
    for request in requests_of_names(names) {
        measure(&world, &mut client, &clock, request)?;
    }
    world.end();
    Ok(())
}
