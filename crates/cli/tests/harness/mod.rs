//! The real binary in a scratch directory, for all tests of the tool.
#![allow(
    dead_code,
    clippy::disallowed_methods,
    reason = "tests use the host's files and processes by hand; not every test uses all of this"
)]

use basalt::env::Clock;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A scratch directory with a store in `db`, removed afterwards.
pub struct Scratch {
    pub dir: PathBuf,
}

/// The result of a run of the tool.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("output is text")
    }
    /// Asserts the exit code and returns the output.
    #[track_caller]
    pub fn ok(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
    /// Asserts the exit code, and that the message is one line that says all of `parts`.
    #[track_caller]
    pub fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(
            self.err.trim_end().lines().count(),
            1,
            "one sentence: {}",
            self.err
        );
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in: {}", self.err);
        }
    }
}

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Relaxed);
        let dir =
            std::env::temp_dir().join(format!("basalt-cli-{}-{n}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a scratch directory can be made");
        Scratch { dir }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a file under the scratch directory, and the directories above it.
    pub fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it has one"))
            .expect("directories can be made");
        std::fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Returns the tool as a command in the scratch directory. `--dir db` follows `command` if it
    /// has that flag.
    pub fn command<A: AsRef<OsStr>>(
        &self,
        command: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
        c.current_dir(&self.dir).arg(command);
        if command != "bench" && command != "--help" {
            c.args(["--dir", "db"]);
        }
        c.args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        c
    }

    /// Runs the tool to its end.
    pub fn run<A: AsRef<OsStr>>(&self, command: &str, args: impl IntoIterator<Item = A>) -> Ran {
        ended(
            self.command(command, args)
                .spawn()
                .expect("the tool starts"),
        )
    }

    /// Runs the tool in the scratch directory with these arguments and no others.
    pub fn run_plain<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
        c.current_dir(&self.dir).args(args);
        c.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ended(c.spawn().expect("the tool starts"))
    }

    /// Runs the tool with this standard input.
    pub fn run_with<A: AsRef<OsStr>>(
        &self,
        command: &str,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Ran {
        let mut child = self
            .command(command, args)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        // A tool that refuses its input early closes the pipe. Its exit code and message say so.
        let _ = stdin.write_all(input);
        drop(stdin);
        ended(child)
    }

    /// Returns all entries, as `scan` prints them.
    pub fn scan(&self) -> String {
        String::from_utf8(self.run("scan", [""; 0]).ok()).expect("scan prints text")
    }
}

pub fn ended(child: Child) -> Ran {
    let out = child.wait_with_output().expect("the tool ends");
    Ran {
        code: out.status.code(),
        out: out.stdout,
        err: String::from_utf8(out.stderr).expect("messages are text"),
    }
}

/// Runs a command of `fs`, which has no `--dir`.
pub fn fs(s: &Scratch, args: &[&str]) -> Ran {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("fs").args(args);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(c.spawn().expect("the tool starts"))
}

/// Starts a server and waits for its first answer. It then holds its store.
pub fn serving(s: &Scratch, args: &[&str]) -> Child {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = port.local_addr().unwrap().to_string();
    drop(port);
    let own = ["--listen", &listen];
    let all = args.iter().chain(&own);
    let mut server = s.command("serve", all).spawn().unwrap();
    let clock = basalt::env::Clock::system();
    // The server must answer: while it only listens, it does not handle signals yet.
    let answers = || -> std::io::Result<()> {
        let mut client = std::net::TcpStream::connect(&listen)?;
        client.write_all(b"PING\r\n")?;
        std::io::Read::read_exact(&mut client, &mut [0; 7])
    };
    while answers().is_err() {
        assert!(server.try_wait().unwrap().is_none(), "the server ended");
        clock.sleep(std::time::Duration::from_millis(10));
    }
    server
}

/// Stops the server with SIGTERM.
pub fn stop(server: Child) {
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    ended(server).ok();
}

/// Returns the output as JSON.
pub fn json(ran: Ran) -> serde_json::Value {
    serde_json::from_slice(&ran.ok()).expect("JSON")
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Returns the names and contents under a directory.
pub fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    fn walk(dir: &Path, at: &Path, out: &mut Vec<(PathBuf, Vec<u8>)>) {
        for entry in std::fs::read_dir(dir.join(at)).expect("a directory can be read") {
            let entry = entry.expect("an entry can be read");
            let path = at.join(entry.file_name());
            if entry.file_type().expect("it has a type").is_dir() {
                walk(dir, &path, out);
            } else {
                let content = std::fs::read(dir.join(&path)).expect("a file can be read");
                out.push((path, content));
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, Path::new(""), &mut out);
    out.sort();
    out
}

/// A running `basalt serve`.
pub struct Server {
    pub child: Child,
    pub port: u16,
}

impl Server {
    /// Starts the server on a free port and waits for its first answer.
    pub fn start(s: &Scratch, args: &[&str]) -> Server {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let listen = format!("127.0.0.1:{port}");
        let child = s
            .command("serve", ["--listen", &listen].iter().chain(args))
            .spawn()
            .unwrap();
        let mut server = Server { child, port };
        let clock = Clock::system();
        while TcpStream::connect(&listen).is_err() {
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!("the server ended: {status}, {:?}", ended(server.child));
            }
            clock.sleep(Duration::from_millis(10));
        }
        server
    }

    /// Sends one command and returns the reply's bytes, of which there are `len`.
    pub fn ask(&self, command: &[&[u8]], len: usize) -> Vec<u8> {
        let mut reply = vec![0; len];
        self.send(command).read_exact(&mut reply).unwrap();
        reply
    }

    /// Sends one command, and then QUIT. Returns the reply of the command.
    pub fn reply(&self, command: &[&str]) -> String {
        let command: Vec<&[u8]> = command.iter().map(|part| part.as_bytes()).collect();
        let mut stream = self.send(&command);
        stream.write_all(b"*1\r\n$4\r\nQUIT\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let reply = reply.strip_suffix("+OK\r\n").expect("the reply of QUIT");
        reply.to_string()
    }

    fn send(&self, command: &[&[u8]]) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        stream.write_all(&request).unwrap();
        stream
    }

    /// Stops the server, and asserts that it has ended well.
    pub fn stop(self) {
        self.signal(rustix::process::Signal::TERM);
        let ran = ended(self.child);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}
