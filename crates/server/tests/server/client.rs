//! A server on a free port in a directory of its own, and a minimal client.

use basalt::env::EnvBuilder;
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt_server::{Server, ServerOptions, ShutdownHandle};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub struct TestServer {
    pub address: SocketAddr,
    pub dir: PathBuf,
    stop: ShutdownHandle,
    thread: Option<JoinHandle<basalt::Result<()>>>,
    keep: bool,
}

/// Returns a new directory of this test.
pub fn fresh_dir(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("basalt-server-{}-{name}-{n}", std::process::id()))
}

impl TestServer {
    pub fn start(name: &str, change: impl FnOnce(&mut ServerOptions)) -> TestServer {
        TestServer::start_in(fresh_dir(name), change)
    }

    pub fn start_in(dir: PathBuf, change: impl FnOnce(&mut ServerOptions)) -> TestServer {
        TestServer::start_over(dir, |fs| fs, change)
    }

    /// Starts a server like [`TestServer::start_in`], on a filesystem over the directory.
    pub fn start_over(
        dir: PathBuf,
        over: impl FnOnce(Arc<dyn FileSystem>) -> Arc<dyn FileSystem>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> TestServer {
        TestServer::start_with(dir, over, |env| env, change)
    }

    /// Starts a server like [`TestServer::start_over`], in a changed environment.
    #[expect(
        clippy::disallowed_methods,
        reason = "the test makes its own directory"
    )]
    pub fn start_with(
        dir: PathBuf,
        over: impl FnOnce(Arc<dyn FileSystem>) -> Arc<dyn FileSystem>,
        env: impl FnOnce(EnvBuilder) -> EnvBuilder,
        change: impl FnOnce(&mut ServerOptions),
    ) -> TestServer {
        std::fs::create_dir_all(&dir).unwrap();
        let mut options = ServerOptions {
            dir: "store".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerOptions::default()
        };
        change(&mut options);
        let fs = over(HostFs::new(HostOptions::new(&dir)).unwrap());
        let env = env(EnvBuilder::new(fs)).build();
        let server = Server::bind(&env, options).unwrap();
        let (address, stop) = (server.local_addr(), server.shutdown_handle());
        let thread = spawn(move || server.run());
        TestServer {
            address,
            dir,
            stop,
            thread: Some(thread),
            keep: false,
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops the server and returns its directory for the next one.
    pub fn stop(mut self) -> PathBuf {
        self.keep = true;
        self.stop.shutdown();
        self.thread.take().unwrap().join().unwrap().unwrap();
        self.dir.clone()
    }
}

impl Drop for TestServer {
    #[expect(
        clippy::disallowed_methods,
        reason = "the test removes its own directory"
    )]
    fn drop(&mut self) {
        self.stop.shutdown();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap().unwrap();
            }
        }
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

pub fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for a in args {
        out.extend_from_slice(format!("${}\r\n", a.len()).as_bytes());
        out.extend_from_slice(a);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub struct Client {
    pub stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        // With this timeout, a broken server fails the test instead of hanging it.
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        Client {
            stream,
            buf: Vec::new(),
            at: 0,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Waits for a byte in the buffer. Returns false if the connection has ended.
    fn fill(&mut self) -> bool {
        if self.at < self.buf.len() {
            return true;
        }
        self.at = 0;
        self.buf.resize(256 << 10, 0);
        let n = loop {
            match self.stream.read(&mut self.buf) {
                Ok(n) => break n,
                // io_uring interrupts the thread that opened the store.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // If a server closes with unread requests, the system reports a reset.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => break 0,
                Err(e) => panic!("reading a reply: {e}"),
            }
        };
        self.buf.truncate(n);
        n > 0
    }

    /// Returns one more byte, if the connection has one.
    fn byte(&mut self) -> Option<u8> {
        self.fill().then(|| {
            self.at += 1;
            self.buf[self.at - 1]
        })
    }

    fn bytes(&mut self, mut n: usize, out: &mut Vec<u8>) -> Option<()> {
        while n > 0 {
            if !self.fill() {
                return None;
            }
            let part = n.min(self.buf.len() - self.at);
            out.extend_from_slice(&self.buf[self.at..self.at + part]);
            self.at += part;
            n -= part;
        }
        Some(())
    }

    fn line(&mut self, out: &mut Vec<u8>) -> Option<Vec<u8>> {
        let start = out.len();
        loop {
            out.push(self.byte()?);
            if out.ends_with(b"\r\n") && out.len() >= start + 2 {
                return Some(out[start..out.len() - 2].to_vec());
            }
        }
    }

    fn value(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let line = self.line(out)?;
        let n = || -> i64 { std::str::from_utf8(&line[1..]).unwrap().parse().unwrap() };
        match line[0] {
            b'$' | b'=' if n() >= 0 => {
                self.bytes(n() as usize + 2, out)?;
            }
            b'*' | b'~' => {
                for _ in 0..n().max(0) {
                    self.value(out)?;
                }
            }
            b'%' => {
                for _ in 0..2 * n() {
                    self.value(out)?;
                }
            }
            b'+' | b'-' | b':' | b'_' | b'$' => {}
            other => panic!("unknown reply type {:?}", other as char),
        }
        Some(())
    }

    /// Returns the next reply's bytes, or `None` if the connection has ended.
    pub fn reply(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.value(&mut out)?;
        Some(out)
    }

    /// Sends one command and returns its reply, printable.
    pub fn call(&mut self, args: &[&str]) -> String {
        let args: Vec<&[u8]> = args.iter().map(|a| a.as_bytes()).collect();
        self.send(&encode(&args));
        let reply = self.reply().expect("a reply");
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Sends the words of a line as a command, like [`Client::call`].
    pub fn words(&mut self, line: &str) -> String {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Returns true if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.byte().is_none()
    }
}

/// Runs a function on a thread.
#[expect(
    clippy::disallowed_methods,
    reason = "tests wait for their threads' results"
)]
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(run)
}
