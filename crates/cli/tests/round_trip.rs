//! The round trip of a directory: `basalt load --files` loads a directory of real files, and a
//! Redis client loads it a second time while the server runs. The process is killed at random
//! moments. After the load is repeated, the exported directory equals the original, and `basalt
//! check` is clean.
//!
//! The test command uses a few hundred generated files. `.ci/round-trip [DIRECTORY]` uses a real
//! directory: `BASALT_DIRECTORY` names one, and `BASALT_FILES` is the number of files to generate
//! without one.

#![allow(
    clippy::disallowed_methods,
    reason = "the directories that go in and come out are the host's own"
)]

mod harness;
use basalt::env::{Clock, Random};
use basalt_sim::{campaign, repeat};
use harness::{Ran, Scratch, ended};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Number of Redis clients, each with [`PIPELINE`] requests in flight.
const CLIENTS: u64 = 4;
const PIPELINE: usize = 16;

/// A file: its path relative to the directory, which is its key, and its length in bytes.
struct Known {
    key: String,
    bytes: u64,
}

struct Directory {
    path: PathBuf,
    files: Vec<Known>,
}

impl Directory {
    /// Returns the directory of the environment variable, or one made for the run.
    fn find(s: &Scratch) -> Directory {
        let path = match std::env::var_os("BASALT_DIRECTORY") {
            Some(dir) => PathBuf::from(dir),
            None => {
                let files = std::env::var("BASALT_FILES").ok();
                make(s, files.map_or(400, |n| n.parse().expect("a number")))
            }
        };
        let mut files = Vec::new();
        walk(&path, Path::new(""), &mut files);
        files.sort_by(|a, b| a.key.cmp(&b.key));
        assert!(!files.is_empty(), "{} has no files", path.display());
        Directory { path, files }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    fn read(&self, file: &Known) -> Vec<u8> {
        std::fs::read(self.path.join(&file.key)).expect("a file can be read")
    }

    /// Exports the store and compares the result with `diff -r`.
    fn check_export(&self, s: &Scratch, out: &str) {
        s.run("export", ["--files", out]).ok();
        let diff = Command::new("diff")
            .arg("-r")
            .arg(&self.path)
            .arg(s.path(out))
            .output()
            .expect("diff can be run");
        let text = String::from_utf8_lossy(&diff.stdout);
        let first: Vec<&str> = text.lines().take(10).collect();
        assert!(diff.status.success(), "the directories differ: {first:#?}");
        std::fs::remove_dir_all(s.path(out)).expect("it was made here");
    }
}

fn walk(root: &Path, at: &Path, files: &mut Vec<Known>) {
    for entry in std::fs::read_dir(root.join(at)).expect("a directory can be read") {
        let entry = entry.expect("an entry can be read");
        let path = at.join(entry.file_name());
        if entry.file_type().expect("it has a type").is_dir() {
            walk(root, &path, files);
        } else {
            files.push(Known {
                key: path.to_str().expect("names are text here").to_string(),
                bytes: entry.metadata().expect("it is there").len(),
            });
        }
    }
}

/// Makes files with the sizes of documentation, most of a few KiB and some of hundreds, in
/// directories of unequal size.
fn make(s: &Scratch, n: u64) -> PathBuf {
    let r = Random::from_seed(50_000);
    let text: Vec<u8> = (0..1 << 20)
        .map(|_| b"<a href=\"../std/index.html\">"[r.below(28) as usize])
        .collect();
    for i in 0..n {
        let len = match r.below(50) {
            0 => r.below(400 << 10),
            1..4 => r.below(60 << 10),
            4..6 => r.below(20),
            _ => 1000 + r.below(14_000),
        } as usize;
        let from = r.below((text.len() - len) as u64) as usize;
        let name = format!(
            "in/crate{}/mod{}/file {i}.html",
            r.below(1 + n / 2000),
            r.below(40)
        );
        s.file(name, &text[from..from + len]);
    }
    s.path("in")
}

fn check(s: &Scratch) -> Ran {
    s.run("check", [""; 0])
}

/// Kills loads at random moments, then loads once more to the end.
fn kill_loads(s: &Scratch, directory: &Directory, r: &Random, clock: &Clock, kills: u64) {
    let dir = directory
        .path
        .to_str()
        .expect("the directory's name is text");
    let mut killed = 0;
    // The duration of a load is measured: the moments of the kills lie within the lifetime of a
    // load. The device may have made the first one slow, so a load that ends sooner counts instead.
    let start = clock.now();
    s.run("load", ["--files", dir]).ok();
    let mut whole = clock.now().saturating_sub(start).as_micros() as u64;
    campaign!(
        "a whole load: {} MB in {:.1} s",
        directory.bytes() >> 20,
        whole as f64 / 1e6
    );
    std::fs::remove_dir_all(s.path("db")).expect("it was made here");
    let mut round = 0;
    while killed < kills && round < 20 * kills {
        round += 1;
        let mut load = s
            .command("load", ["--files", dir])
            .spawn()
            .expect("the tool starts");
        let start = clock.now();
        clock.sleep(Duration::from_micros(r.below(whole.max(2))));
        let lived = clock.now().saturating_sub(start).as_micros() as u64;
        let _ = load.kill();
        match ended(load).code {
            None => killed += 1,
            Some(_) => whole = whole.min(lived),
        }
        let found = check(s);
        // If the kill came before the store was made, there is no store to check.
        let none = found.code == Some(2) && found.err.contains("there is no store");
        assert!(found.code == Some(0) || none, "round {round}: {found:?}");
    }
    s.run("load", ["--files", dir]).ok();
    directory.check_export(s, "out");
    assert_eq!(check(s).code, Some(0));
    campaign!("killed_loads={killed} of {round}, then diff -r finds the directory identical");
    assert_eq!(killed, kills, "loads do not live long enough to be killed");
}

struct Server {
    child: Child,
    port: u16,
    /// The log stays open: a server that cannot write to it would behave differently.
    _log: BufReader<ChildStderr>,
}

impl Server {
    fn start(s: &Scratch) -> Server {
        let mut child = s
            .command("serve", ["--listen", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        log.read_line(&mut line)
            .expect("the server says where it listens");
        let port = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("no port in {line:?}"));
        Server {
            child,
            port,
            _log: log,
        }
    }
}

/// A minimal Redis client.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> std::io::Result<Client> {
        TcpStream::connect(("127.0.0.1", port)).map(|s| Client(BufReader::new(s)))
    }

    fn send(&mut self, args: &[&[u8]]) -> std::io::Result<()> {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for a in args {
            out.extend_from_slice(format!("${}\r\n", a.len()).as_bytes());
            out.extend_from_slice(a);
            out.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&out)
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_string()),
        }
    }

    fn bulk(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let len: i64 = line
            .strip_prefix('$')
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("a string was asked for, the reply is {line:?}"));
        if len < 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(len as usize);
        Ok(Some(bytes))
    }
}

/// Sets every file from several clients until all are set or the server has died. Returns the
/// acknowledged files.
fn set_all(directory: &Directory, port: u16) -> Vec<usize> {
    let next = AtomicUsize::new(0);
    let acked = Mutex::new(Vec::new());
    let gone = AtomicBool::new(false);
    basalt::env::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                if set_some(directory, port, &next, &acked, &gone).is_err() {
                    gone.store(true, SeqCst);
                }
            });
        }
    });
    acked.into_inner().expect("no client panicked")
}

fn set_some(
    directory: &Directory,
    port: u16,
    next: &AtomicUsize,
    acked: &Mutex<Vec<usize>>,
    gone: &AtomicBool,
) -> std::io::Result<()> {
    let mut c = Client::connect(port)?;
    while !gone.load(SeqCst) {
        let first = next.fetch_add(PIPELINE, SeqCst);
        let mine = first..(first + PIPELINE).min(directory.files.len());
        if mine.is_empty() {
            return Ok(());
        }
        for i in mine.clone() {
            let file = &directory.files[i];
            c.send(&[b"SET", file.key.as_bytes(), &directory.read(file)])?;
        }
        for i in mine {
            let reply = c.line()?;
            assert_eq!(reply, "+OK", "SET {}", directory.files[i].key);
            acked.lock().expect("no client panicked").push(i);
        }
    }
    Ok(())
}

/// Kills the server while clients load the directory into it, then loads once more to the end and
/// stops it with SIGTERM.
fn kill_server(s: &Scratch, directory: &Directory, r: &Random, clock: &Clock, kills: u64) {
    let server = Server::start(s);
    let start = clock.now();
    assert_eq!(set_all(directory, server.port).len(), directory.files.len());
    let whole = clock.now().saturating_sub(start).as_micros() as u64;
    campaign!(
        "a whole load through {CLIENTS} clients, synced: {} MB in {:.1} s",
        directory.bytes() >> 20,
        whole as f64 / 1e6
    );
    stop(server);
    std::fs::remove_dir_all(s.path("db")).expect("it was made here");
    let (mut interrupted, mut verified) = (0, 0);
    let mut round = 0;
    while interrupted < kills && round < 20 * kills {
        round += 1;
        let mut server = Server::start(s);
        let port = server.port;
        let wait = Duration::from_micros(r.below(whole.max(2)));
        let acked = basalt::env::thread::scope(|scope| {
            let clients = scope.spawn(|| set_all(directory, port));
            clock.sleep(wait);
            server.child.kill().expect("SIGKILL");
            server.child.wait().expect("the server ends");
            clients.join().expect("a client failed")
        });
        interrupted += u64::from(acked.len() < directory.files.len());
        let found = check(s);
        let none = found.code == Some(2) && found.err.contains("there is no store");
        assert!(
            found.code == Some(0) || none && acked.is_empty(),
            "round {round}: {found:?}"
        );
        // Every acknowledged file exists with its bytes.
        let server = Server::start(s);
        let mut c = Client::connect(server.port).expect("it listens");
        for some in acked.chunks(PIPELINE) {
            for &i in some {
                c.send(&[b"GET", directory.files[i].key.as_bytes()])
                    .expect("the server lives");
            }
            for &i in some {
                let file = &directory.files[i];
                let got = c.bulk().expect("the server lives");
                assert!(
                    got.as_deref() == Some(&directory.read(file)[..]),
                    "round {round}: {} was acknowledged, and is {}",
                    file.key,
                    if got.is_some() { "other bytes" } else { "gone" }
                );
            }
        }
        verified += acked.len();
        stop(server);
    }
    let server = Server::start(s);
    assert_eq!(set_all(directory, server.port).len(), directory.files.len());
    stop(server);
    directory.check_export(s, "out");
    assert_eq!(check(s).code, Some(0));
    campaign!(
        "killed_servers={round} in_midst_of_a_load={interrupted} acknowledged_and_verified={verified}, then diff -r finds the directory identical"
    );
    assert_eq!(interrupted, kills, "kills do not meet loads");
}

/// Sends SIGTERM. The server finishes the accepted requests and exits with code 0.
fn stop(mut server: Server) {
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = server.child.wait().expect("the server ends");
    assert_eq!(status.code(), Some(0), "after SIGTERM");
}

#[test]
fn a_directory_survives_kills_and_is_exported_identically() {
    let seed = campaign::case().map_or_else(|| Random::from_system().next_u64(), |c| c[0]);
    let _repeat = repeat!(
        a_directory_survives_kills_and_is_exported_identically,
        "BASALT_CASE={seed}"
    );
    let s = Scratch::new("round-trip");
    let directory = Directory::find(&s);
    let whole_run = std::env::var_os("BASALT_DIRECTORY").is_some()
        || std::env::var_os("BASALT_FILES").is_some();
    let kills = if whole_run { 6 } else { 2 } * campaign::scale();
    let (r, clock) = (Random::from_seed(seed), Clock::system());
    campaign!(
        "{}: {} files, {} bytes",
        directory.path.display(),
        directory.files.len(),
        directory.bytes()
    );
    kill_loads(&s, &directory, &r, &clock, kills);
    std::fs::remove_dir_all(s.path("db")).expect("it was made here");
    kill_server(&s, &directory, &r, &clock, kills);
}
