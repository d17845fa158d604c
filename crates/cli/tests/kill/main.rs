//! The real binary under `kill -9` while several clients write.
//!
//! The oracle is in this process, outside the store: each client counts the writes that the server
//! acknowledged. After every kill `basalt check` must be clean. After the next start every
//! acknowledged write must exist with its bytes. A write that was sent but not acknowledged may
//! exist whole or not at all.

mod groups;
mod streams;

use basalt::env::{Clock, Random, thread};
use basalt_sim::{campaign, repeat};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const CLIENTS: u64 = 4;
/// Kills at `BASALT_SCALE=1`.
const KILLS: u64 = 50;

/// A directory that is removed when the test passes and kept when it fails.
struct Dir(PathBuf);

impl Dir {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's own directory, beside the store under test"
    )]
    fn new() -> Dir {
        let path = std::env::temp_dir().join(format!(
            "basalt-kill-{}-{:x}",
            std::process::id(),
            Random::from_system().next_u64()
        ));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Dir(path)
    }
}

impl Drop for Dir {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's own directory, beside the store under test"
    )]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns the value of a client's n-th write. Its length and bytes follow from both numbers.
fn value(client: u64, n: u64) -> Vec<u8> {
    let r = Random::from_seed(client << 40 | n);
    let len = match r.below(20) {
        0 => 20_000 + r.below(50_000),
        1..4 => 1_000 + r.below(5_000),
        _ => r.below(300),
    };
    let mut v = format!("{client}:{n}:").into_bytes();
    while (v.len() as u64) < len {
        v.extend_from_slice(&r.next_u64().to_le_bytes());
    }
    v
}

/// Number of keys of a client. Its n-th write goes to key n % KEYS.
const KEYS: u64 = 500;

fn key(client: u64, n: u64) -> Vec<u8> {
    format!("client{client}/key{:05}", n % KEYS).into_bytes()
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(place: &StoreLocation, sync: &str, clock: &Clock) -> Server {
        // The port is free for a moment before the server binds it. No other process of a test
        // machine asks for a port in that moment.
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|l| l.local_addr())
            .expect("a free port")
            .port();
        let child = Command::new(env!("CARGO_BIN_EXE_basalt"))
            .arg("serve")
            .args(place.flags())
            .args(place.size())
            .args(["--listen", &format!("127.0.0.1:{port}"), "--sync", sync])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the binary starts");
        let server = Server { child, port };
        for _ in 0..1000 {
            if let Ok(mut c) = Client::connect(server.port)
                && c.ping()
            {
                return server;
            }
            clock.sleep(Duration::from_millis(10));
        }
        panic!("the server did not answer within ten seconds");
    }

    fn kill(mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("the child ends");
    }
}

/// A minimal Redis client.
struct Client {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> std::io::Result<Client> {
        let write = TcpStream::connect(("127.0.0.1", port))?;
        write.set_nodelay(true)?;
        write.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client {
            read: BufReader::new(write.try_clone()?),
            write,
        })
    }

    fn send(&mut self, out: &mut Vec<u8>, args: &[&[u8]]) {
        let _ = write!(out, "*{}\r\n", args.len());
        for a in args {
            let _ = write!(out, "${}\r\n", a.len());
            out.extend_from_slice(a);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0u8];
        while !line.ends_with(b"\r\n") {
            self.read.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn bulk(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let len: i64 = line
            .strip_prefix('$')
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("a bulk reply, not {line:?}"));
        if len < 0 {
            return Ok(None);
        }
        let mut v = vec![0; len as usize + 2];
        self.read.read_exact(&mut v)?;
        v.truncate(len as usize);
        Ok(Some(v))
    }

    fn ping(&mut self) -> bool {
        self.write.write_all(b"PING\r\n").is_ok() && self.line().is_ok_and(|l| l == "+PONG")
    }
}

/// The commands of a kill campaign.
#[derive(Clone, Copy)]
struct Commands {
    /// Adds a client's n-th command to a pipeline.
    push: fn(&mut Client, out: &mut Vec<u8>, client: u64, n: u64),
    /// Reads the reply to a command.
    read_reply: fn(&mut Client, client: u64) -> std::io::Result<()>,
}

impl Commands {
    /// Sends pipelines of a few commands until the connection breaks. `sent` and `acked` count this
    /// client's commands.
    fn run_until_killed(
        self,
        port: u16,
        client: u64,
        sent: &AtomicU64,
        acked: &AtomicU64,
        stop: &AtomicBool,
    ) {
        let Ok(mut c) = Client::connect(port) else {
            return;
        };
        let r = Random::from_system();
        while !stop.load(SeqCst) {
            let pipeline = 1 + r.below(8);
            let mut out = Vec::new();
            for _ in 0..pipeline {
                let n = sent.fetch_add(1, SeqCst);
                (self.push)(&mut c, &mut out, client, n);
            }
            if c.write.write_all(&out).is_err() {
                return;
            }
            for _ in 0..pipeline {
                if (self.read_reply)(&mut c, client).is_err() {
                    return;
                }
                acked.fetch_add(1, SeqCst);
            }
        }
    }

    /// Kills the server while clients write. `sent` has the number of commands that each client has
    /// sent before. Returns the new numbers, and how many commands of this round each client has
    /// acknowledged: its first ones, because replies come in order.
    fn kill_meanwhile(
        self,
        server: Server,
        sent: impl Iterator<Item = u64>,
        clock: &Clock,
        r: &Random,
    ) -> Vec<(u64, u64)> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for (client, sent) in (0..).zip(sent) {
            let counts = Arc::new((AtomicU64::new(sent), AtomicU64::new(0)));
            let (port, stop, shared) = (server.port, stop.clone(), counts.clone());
            let handle = thread::spawn(&format!("kill-{client}"), move || {
                self.run_until_killed(port, client, &shared.0, &shared.1, &stop);
            })
            .expect("spawn");
            clients.push((counts, handle));
        }
        clock.sleep(Duration::from_millis(20 + r.below(250)));
        server.kill();
        stop.store(true, SeqCst);
        let mut counted = Vec::new();
        for (counts, handle) in clients {
            handle.join().expect("a client");
            counted.push((counts.0.load(SeqCst), counts.1.load(SeqCst)));
        }
        counted
    }
}

/// Writes of strings.
const WRITES: Commands = Commands {
    push: |c, out, client, n| c.send(out, &[b"SET", &key(client, n), &value(client, n)]),
    read_reply: |c, client| match c.line()? {
        l if l == "+OK" => Ok(()),
        l => panic!("client {client}: the server answered {l:?} to a SET"),
    },
};

/// The writes of one client, numbered from 0.
#[derive(Clone, Default)]
struct Known {
    /// Number of writes sent.
    sent: u64,
    /// Number of the first write that is not acknowledged. Writes in `doubt` before it may be
    /// missing.
    acked: u64,
    /// Ranges of writes that a kill left unacknowledged. Each of them may exist or not.
    doubt: Vec<(u64, u64)>,
}

impl Known {
    /// Returns the last acknowledged write to a key.
    fn must(&self, key: u64) -> Option<u64> {
        let mut n = last_write(key, self.acked)?;
        while self.doubt.iter().any(|&(from, to)| (from..to).contains(&n)) {
            n = n.checked_sub(KEYS)?;
        }
        Some(n)
    }
}

/// Returns the last of the first `count` writes that went to a key.
fn last_write(key: u64, count: u64) -> Option<u64> {
    (count > key).then(|| key + (count - 1 - key) / KEYS * KEYS)
}

/// Reads every key and compares it with the state of each client. A key must have its newest
/// acknowledged write, or a later one that was sent.
fn verify(port: u16, state: &BTreeMap<u64, Known>) {
    let mut c = Client::connect(port).expect("connect");
    for (&client, known) in state {
        let keys = KEYS.min(known.sent);
        let mut out = Vec::new();
        for k in 0..keys {
            c.send(&mut out, &[b"GET", &key(client, k)]);
        }
        let (tx, rx) = mpsc::channel();
        let mut w = c.write.try_clone().expect("clone");
        let writer = thread::spawn("kill-verify", move || {
            let _ = w.write_all(&out);
            let _ = tx.send(());
        })
        .expect("spawn");
        for k in 0..keys {
            let found = c.bulk().expect("a reply");
            let (must, may) = (known.must(k), last_write(k, known.sent).expect("k < sent"));
            let first = must.unwrap_or(k);
            let candidates = (first..=may).step_by(KEYS as usize);
            let fits = match &found {
                None => must.is_none(),
                Some(v) => candidates.clone().any(|n| *v == value(client, n)),
            };
            assert!(
                fits,
                "client {client}, key {k}: acknowledged write {must:?}, sent up to {may}, found {}",
                found.map_or("nothing".into(), |v| String::from_utf8_lossy(
                    &v[..v.len().min(20)]
                )
                .into_owned())
            );
        }
        rx.recv().expect("all requests sent");
        writer.join().expect("writer");
    }
}

/// The location of the store.
enum StoreLocation {
    Dir(PathBuf),
    /// In an image that the first start makes.
    Image(PathBuf),
}

impl StoreLocation {
    fn flags(&self) -> Vec<OsString> {
        match self {
            StoreLocation::Dir(dir) => vec!["--dir".into(), dir.into()],
            StoreLocation::Image(image) => vec!["--image".into(), image.into()],
        }
    }

    fn size(&self) -> &[&str] {
        match self {
            StoreLocation::Dir(_) => &[],
            StoreLocation::Image(_) => &["--size", "1G"],
        }
    }

    /// Checks that the store and its image are sound.
    fn check(&self) {
        succeeds(
            Command::new(env!("CARGO_BIN_EXE_basalt"))
                .arg("check")
                .args(self.flags()),
        );
        if let StoreLocation::Image(image) = self {
            succeeds(
                Command::new(env!("CARGO_BIN_EXE_basalt"))
                    .args(["fs", "check"])
                    .arg(image),
            );
        }
    }
}

fn succeeds(command: &mut Command) {
    let out = command.output().expect("the binary runs");
    assert!(
        out.status.success(),
        "{command:?} after a kill: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn no_acknowledged_write_is_lost_under_kill_9() {
    let dir = Dir::new();
    let _repeat = repeat!(
        no_acknowledged_write_is_lost_under_kill_9,
        "BASALT_SEED={}",
        seed()
    );
    rounds(&StoreLocation::Dir(dir.0.join("store")));
}

#[test]
fn no_acknowledged_write_is_lost_under_kill_9_on_an_image() {
    let dir = Dir::new();
    let _repeat = repeat!(
        no_acknowledged_write_is_lost_under_kill_9_on_an_image,
        "BASALT_SEED={}",
        seed()
    );
    rounds(&StoreLocation::Image(dir.0.join("store.lava")));
}

/// Returns the seed of this run.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed_variable = std::env::var("BASALT_SEED").ok();
        seed_variable
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| Random::from_system().next_u64())
    })
}

fn rounds(store: &StoreLocation) {
    let clock = Clock::system();
    let r = Random::from_seed(seed());
    let mut state: BTreeMap<u64, Known> = (0..CLIENTS).map(|c| (c, Known::default())).collect();
    let kills = KILLS * campaign::scale();
    let mut acknowledged = 0;
    for _ in 0..kills {
        let sync = ["always", "always", "everysec", "never"][r.below(4) as usize];
        let server = Server::start(store, sync, &clock);
        verify(server.port, &state);
        let sent = state.values().map(|known| known.sent);
        let counts = WRITES.kill_meanwhile(server, sent, &clock, &r);
        for (known, (sent, new)) in state.values_mut().zip(counts) {
            acknowledged += new;
            known.acked = known.sent + new;
            known.sent = sent;
            if known.acked < sent {
                known.doubt.push((known.acked, sent));
            }
        }
        store.check();
    }
    let server = Server::start(store, "always", &clock);
    verify(server.port, &state);
    server.kill();
    store.check();
    campaign!("kills={kills} acknowledged={acknowledged}");
    assert!(
        acknowledged > kills * 20,
        "only {acknowledged} writes were acknowledged in {kills} rounds: the test tests nothing"
    );
}
