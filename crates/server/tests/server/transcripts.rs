//! Transcripts of a real Redis 7.0: the same commands get the same bytes from this server. They are
//! files in `transcripts/`, so the comparison needs no Redis. Where a `redis-server` of version 7.0
//! is installed, another test compares the files with it. `BASALT_RECORD=1` writes them anew.
//!
//! # Format
//! - `A> words`: client `A` sends a command and waits for the reply, which is on the next lines.
//! - `A& words`: client `A` sends a command that blocks. Its reply comes later.
//! - `A?`: client `A` waits for that reply, which is on the next lines.
//! - `= bytes`: the reply. If the protocols differ, `2= bytes` and `3= bytes`.
//! - `~` before a command: the decimal numbers of its reply depend on the time, and are shown as
//!   `#`.
//! - `#` begins a comment.
//!
//! Words are separated by single spaces, and have the escapes of Rust's byte strings; `""` is the
//! empty word. Each file begins with an empty database.

use crate::client::{Client, TestServer, encode};
use crate::oracle::Redis;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The transcripts in `transcripts/`.
const FILES: &[&str] = &[
    "entries",
    "trimming",
    "ranges",
    "deletes",
    "reads",
    "groups",
    "repeated_streams",
    "claims",
    "info",
    "types",
    "blocking",
    "blocking_groups",
    "set_id",
    "keys",
];

/// The number of commands that must be compared.
const LEAST: usize = 785;

/// A step of a transcript.
#[derive(Clone)]
struct Step {
    /// The line as it is in the file.
    line: String,
    client: char,
    action: Action,
    masked: bool,
    /// The replies in RESP2 and RESP3, escaped.
    replies: [Option<String>; 2],
}

#[derive(Clone, PartialEq)]
enum Action {
    Call(Vec<Vec<u8>>),
    Begin(Vec<Vec<u8>>),
    Await,
}

/// A line of a transcript.
#[derive(Clone)]
enum Line {
    Comment(String),
    Step(Step),
}

fn path(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/server/transcripts");
    dir.join(format!("{name}.txt"))
}

fn word(text: &str) -> Vec<u8> {
    if text == "\"\"" {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'\\', [b'n', tail @ ..]) => (b'\n', tail),
            (b'\\', [b'r', tail @ ..]) => (b'\r', tail),
            (b'\\', [b'x', a, b, tail @ ..]) => {
                let digits = [*a, *b];
                let digits = std::str::from_utf8(&digits).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), tail)
            }
            _ => (*first, tail),
        };
        out.push(byte);
        rest = tail;
    }
    out
}

fn step(line: &str) -> Step {
    let masked = line.starts_with('~');
    let mut text = line.trim_start_matches('~').chars();
    let client = text.next().expect("a client");
    let kind = text.next();
    let words = || text.as_str().trim_start().split(' ').map(word).collect();
    let action = match kind {
        Some('>') => Action::Call(words()),
        Some('&') => Action::Begin(words()),
        Some('?') => Action::Await,
        _ => panic!("no step of a transcript: {line}"),
    };
    Step {
        line: line.to_string(),
        client,
        action,
        masked,
        replies: [None, None],
    }
}

fn parse(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for line in text.lines() {
        let reply = [("= ", 0..2), ("2= ", 0..1), ("3= ", 1..2)];
        let reply = reply
            .into_iter()
            .find_map(|(prefix, at)| Some((line.strip_prefix(prefix)?, at)));
        if let Some((reply, protocols)) = reply {
            let Some(Line::Step(step)) = lines.last_mut() else {
                panic!("a reply without a command: {line}");
            };
            step.replies[protocols].fill(Some(reply.to_string()));
        } else if line.is_empty() || line.starts_with('#') {
            lines.push(Line::Comment(line.to_string()));
        } else {
            lines.push(Line::Step(step(line)));
        }
    }
    lines
}

/// Returns a text with `#` in place of each decimal number.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Returns a reply as transcripts show it. Numbers of Redis's radix tree are left out.
fn shown(reply: &[u8], masked: bool) -> String {
    let mut text = reply.escape_ascii().to_string();
    for field in ["radix-tree-keys", "radix-tree-nodes"] {
        let Some(at) = text.find(field) else {
            continue;
        };
        let from = at + field.len() + r"\r\n:".len();
        let len = text[from..].find('\\').expect("a number");
        text.replace_range(from..from + len, "#");
    }
    match masked {
        true => without_numbers(&text),
        false => text,
    }
}

/// The clients of a running transcript.
struct Clients {
    address: SocketAddr,
    protocol: &'static str,
    clients: BTreeMap<char, Client>,
    observer: Client,
    blocked: usize,
}

impl Clients {
    fn new(address: SocketAddr, protocol: &'static str) -> Clients {
        let mut observer = Client::connect(address);
        observer.words("FLUSHALL");
        Clients {
            address,
            protocol,
            clients: BTreeMap::new(),
            observer,
            blocked: 0,
        }
    }

    fn client(&mut self, name: char) -> &mut Client {
        let (address, protocol) = (self.address, self.protocol);
        self.clients.entry(name).or_insert_with(|| {
            let mut client = Client::connect(address);
            client.call(&["HELLO", protocol]);
            client
        })
    }

    /// Waits until the server has as many blocked clients as the transcript.
    fn wait_for_blocked(&mut self) {
        let field = format!("blocked_clients:{}\r\n", self.blocked);
        for _ in 0..2000 {
            if self.observer.words("INFO clients").contains(&field) {
                return;
            }
            basalt::env::Clock::system().sleep(Duration::from_millis(5));
        }
        panic!("the server does not report {field}");
    }

    /// Carries out a step. Returns the reply, if the step has one.
    fn run(&mut self, step: &Step) -> Option<String> {
        let reply = match &step.action {
            Action::Call(words) => {
                let words: Vec<&[u8]> = words.iter().map(|w| &w[..]).collect();
                let client = self.client(step.client);
                client.send(&encode(&words));
                client.reply()
            }
            Action::Begin(words) => {
                let words: Vec<&[u8]> = words.iter().map(|w| &w[..]).collect();
                self.client(step.client).send(&encode(&words));
                self.blocked += 1;
                self.wait_for_blocked();
                return None;
            }
            Action::Await => {
                self.blocked -= 1;
                self.client(step.client).reply()
            }
        };
        Some(shown(&reply.expect("the connection is open"), step.masked))
    }
}

const PROTOCOLS: [&str; 2] = ["2", "3"];

fn steps(lines: &[Line]) -> impl Iterator<Item = &Step> {
    lines.iter().filter_map(|line| match line {
        Line::Step(step) => Some(step),
        Line::Comment(_) => None,
    })
}

/// Carries out a transcript. Returns the replies of its steps, and their differences to the file.
fn play(address: SocketAddr, lines: &[Line]) -> (Vec<[Option<String>; 2]>, Vec<String>) {
    let mut replies = vec![[None, None]; steps(lines).count()];
    let mut different = Vec::new();
    for (at, protocol) in PROTOCOLS.into_iter().enumerate() {
        let mut clients = Clients::new(address, protocol);
        for (n, step) in steps(lines).enumerate() {
            let reply = clients.run(step);
            if reply != step.replies[at] {
                let text = |reply: &Option<String>| reply.clone().unwrap_or_default();
                different.push(format!(
                    "{} (RESP{protocol})\n  file: {}\n  here: {}",
                    step.line,
                    text(&step.replies[at]),
                    text(&reply)
                ));
            }
            replies[n][at] = reply;
        }
    }
    (replies, different)
}

fn print(lines: &[Line], replies: &[[Option<String>; 2]]) -> String {
    let mut out = String::new();
    let mut replies = replies.iter();
    for line in lines {
        match line {
            Line::Comment(text) => out.push_str(&format!("{text}\n")),
            Line::Step(step) => {
                out.push_str(&format!("{}\n", step.line));
                match replies.next().expect("one for each step") {
                    [Some(two), Some(three)] if two == three => {
                        out.push_str(&format!("= {two}\n"));
                    }
                    [Some(two), Some(three)] => {
                        out.push_str(&format!("2= {two}\n3= {three}\n"));
                    }
                    _ => {}
                }
            }
        }
    }
    out
}

#[expect(
    clippy::disallowed_methods,
    reason = "transcripts are files of the source"
)]
fn read(name: &str) -> Vec<Line> {
    parse(&std::fs::read_to_string(path(name)).expect("a transcript"))
}

/// Every transcript is compared, from its first to its last command.
#[test]
fn commands_reply_as_the_transcripts_say() {
    let server = TestServer::start("transcripts", |_| {});
    let (mut n, mut wrong) = (0, Vec::new());
    for name in FILES {
        let lines = read(name);
        let (_, different) = play(server.address, &lines);
        if !different.is_empty() {
            let (count, list) = (different.len(), different.join("\n"));
            wrong.push(format!("{name}.txt, {count} replies:\n{list}"));
        }
        n += steps(&lines).count();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    basalt_sim::campaign!("{n} commands of transcripts compared, twice each");
    assert!(n >= LEAST, "too few transcripts were compared");
}

/// The transcripts equal the replies of an installed Redis.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "transcripts are files of the source"
)]
fn transcripts_are_the_replies_of_redis() {
    let Some(redis) = Redis::start() else {
        basalt_sim::campaign!(
            "SKIPPED: no redis-server 7.0 here (apt-get install -y redis-server); no transcript was checked"
        );
        return;
    };
    let record = std::env::var("BASALT_RECORD").is_ok();
    for name in FILES {
        let lines = read(name);
        let (replies, different) = play(redis.address, &lines);
        if record {
            std::fs::write(path(name), print(&lines, &replies)).expect("the file is writable");
            continue;
        }
        assert!(
            different.is_empty(),
            "{name}.txt, {} replies:\n{}",
            different.len(),
            different.join("\n")
        );
    }
}
