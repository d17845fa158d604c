//! Streams under `kill -9`. Each client adds entries to its own streams, and to one that all
//! clients share. After every kill, each acknowledged entry must exist once and in order, and no
//! trimmed or deleted entry may come back.

use super::{CLIENTS, Client, Commands, Dir, Server, StoreLocation, seed};
use basalt::env::{Clock, Random};
use basalt_sim::{campaign, repeat};
use std::io::{Read, Write};
use std::time::Duration;

/// Kills at `BASALT_SCALE=1`.
const KILLS: u64 = 12;
/// Number of entries that an XADD with MAXLEN keeps.
const CAP: u64 = 100;
/// Number of entries that the verification leaves in a stream that nothing else trims.
const KEPT: u64 = 300;

/// The work of a client's n-th command.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Adds to the stream that only the verification trims.
    Own,
    /// Adds to the stream of all clients, with an id that the server generates.
    Shared,
    /// Adds to the stream that holds [`CAP`] entries.
    Capped,
    /// Adds to the stream that is deleted from time to time.
    Brief,
    /// Deletes the stream of [`Work::Brief`].
    Delete,
}

fn work(n: u64) -> Work {
    match (n % 4, n % 64) {
        (0, _) => Work::Own,
        (1, _) => Work::Shared,
        (2, _) => Work::Capped,
        (_, 3) => Work::Delete,
        _ => Work::Brief,
    }
}

/// Returns the value of a client's n-th entry. Its length and bytes follow from both numbers.
fn value(client: u64, n: u64) -> Vec<u8> {
    let r = Random::from_seed(client << 40 | n);
    let len = match r.below(40) {
        0 => 10_000 + r.below(10_000),
        _ => r.below(200),
    };
    let mut v = format!("{client}:{n}:").into_bytes();
    while (v.len() as u64) < len {
        v.extend_from_slice(&r.next_u64().to_le_bytes());
    }
    v
}

fn push_command(c: &mut Client, out: &mut Vec<u8>, client: u64, n: u64) {
    let id = format!("{}-7", n + 1);
    let (own, capped, brief) = (
        format!("own{client}"),
        format!("capped{client}"),
        format!("brief{client}"),
    );
    let (id, cap) = (id.as_bytes(), CAP.to_string());
    let v = &value(client, n)[..];
    let args: &[&[u8]] = match work(n) {
        Work::Own => &[b"XADD", own.as_bytes(), id, b"v", v],
        Work::Shared => &[b"XADD", b"shared", b"*", b"v", v],
        Work::Capped => &[
            b"XADD",
            capped.as_bytes(),
            b"MAXLEN",
            cap.as_bytes(),
            id,
            b"v",
            v,
        ],
        Work::Brief => &[b"XADD", brief.as_bytes(), id, b"v", v],
        Work::Delete => &[b"DEL", brief.as_bytes()],
    };
    c.send(out, args);
}

const COMMANDS: Commands = Commands {
    push: push_command,
    read_reply: |c, client| {
        let line = c.line()?;
        match line.chars().next() {
            Some(':') => Ok(()),
            Some('$') => c.line().map(drop),
            _ => panic!("client {client}: the server answered {line:?}"),
        }
    },
};

/// The commands of one client, numbered from 0.
#[derive(Clone, Default)]
struct KnownCommands {
    sent: u64,
    acked: u64,
    /// Ranges of commands that a kill left unacknowledged.
    doubt: Vec<(u64, u64)>,
    /// Number of the first command whose entry in the client's own stream was not trimmed.
    trimmed_to: u64,
}

impl KnownCommands {
    fn is_acknowledged(&self, n: u64) -> bool {
        n < self.acked && !self.doubt.iter().any(|&(from, to)| (from..to).contains(&n))
    }
}

impl Client {
    /// Returns the length in the head of a reply.
    fn head(&mut self, kind: char) -> u64 {
        let line = self.line().expect("a reply");
        let n = line.strip_prefix(kind).and_then(|n| n.parse().ok());
        n.unwrap_or_else(|| panic!("a reply of kind {kind}, not {line:?}"))
    }

    fn text(&mut self) -> Vec<u8> {
        let mut v = vec![0; self.head('$') as usize + 2];
        self.read.read_exact(&mut v).expect("a reply");
        v.truncate(v.len() - 2);
        v
    }

    /// Returns the ids and values of a stream.
    fn entries(&mut self, stream: &str) -> Vec<((u64, u64), Vec<u8>)> {
        const PAGE: usize = 1000;
        let mut found: Vec<((u64, u64), Vec<u8>)> = Vec::new();
        let mut start = "-".to_string();
        loop {
            let mut out = Vec::new();
            let count = PAGE.to_string();
            let args = ["XRANGE", stream, &start, "+", "COUNT", &count];
            self.send(&mut out, &args.map(str::as_bytes));
            self.write.write_all(&out).expect("connected");
            let n = self.head('*') as usize;
            for _ in 0..n {
                assert_eq!(self.head('*'), 2, "id and fields");
                let id = String::from_utf8(self.text()).expect("an id");
                let (ms, seq) = id.split_once('-').expect("an id");
                let number = |n: &str| n.parse::<u64>().expect("an id");
                assert_eq!(self.head('*'), 2, "one field with its value");
                assert_eq!(self.text(), b"v");
                found.push(((number(ms), number(seq)), self.text()));
                start = format!("({id}");
            }
            if n < PAGE {
                break;
            }
        }
        assert!(
            found.is_sorted_by(|a, b| a.0 < b.0),
            "the ids of {stream} do not rise"
        );
        assert_eq!(self.number(&["XLEN", stream]), found.len() as u64);
        found
    }

    fn number(&mut self, args: &[&str]) -> u64 {
        let mut out = Vec::new();
        let args: Vec<&[u8]> = args.iter().map(|a| a.as_bytes()).collect();
        self.send(&mut out, &args);
        self.write.write_all(&out).expect("connected");
        self.head(':')
    }
}

/// Returns the client and the number of an entry's command, and checks its bytes.
fn origin(bytes: &[u8]) -> (u64, u64) {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
    let mut parts = text.split(':');
    let mut number = || parts.next().and_then(|n| n.parse::<u64>().ok());
    let (client, n) = (number().expect("a client"), number().expect("a number"));
    assert_eq!(bytes, value(client, n), "client {client}, entry {n}");
    (client, n)
}

/// Returns the numbers of the commands that made the entries of a client's stream.
fn numbers(c: &mut Client, stream: &str, client: u64, kind: Work) -> Vec<u64> {
    let entry = |((ms, seq), bytes): ((u64, u64), Vec<u8>)| {
        let (of, n) = origin(&bytes);
        assert_eq!((of, work(n) == kind), (client, true), "in {stream}");
        assert_eq!((ms, seq), (n + 1, 7), "in {stream}");
        n
    };
    c.entries(stream).into_iter().map(entry).collect()
}

/// Checks that the acknowledged commands of a kind, from `from` on, are among `found`, and that
/// every one of `found` was sent.
fn check_numbers(known: &KnownCommands, found: &[u64], from: u64, kind: Work, stream: &str) {
    let mut has = found.iter().copied().peekable();
    for n in (from..known.sent).filter(|n| work(*n) == kind) {
        let there = has.next_if_eq(&n).is_some();
        assert!(
            there || !known.is_acknowledged(n),
            "{stream}: the acknowledged entry {n} is lost"
        );
    }
    assert_eq!(
        has.next(),
        None,
        "{stream} has an entry that it must not have"
    );
}

fn verify_streams(port: u16, state: &mut [KnownCommands]) {
    let mut c = Client::connect(port).expect("connect");
    let mut shared: Vec<Vec<u64>> = vec![Vec::new(); state.len()];
    for (_, bytes) in c.entries("shared") {
        let (client, n) = origin(&bytes);
        shared[client as usize].push(n);
    }
    for (client, known) in state.iter_mut().enumerate() {
        check_numbers(known, &shared[client], 0, Work::Shared, "shared");
        let client = client as u64;

        let stream = format!("own{client}");
        let found = numbers(&mut c, &stream, client, Work::Own);
        check_numbers(known, &found, known.trimmed_to, Work::Own, &stream);
        if found.len() as u64 > KEPT {
            known.trimmed_to = found[found.len() - KEPT as usize];
            let least = (known.trimmed_to + 1).to_string();
            let trimmed = c.number(&["XTRIM", &stream, "MINID", &least]);
            assert_eq!(trimmed, found.len() as u64 - KEPT);
        }

        let stream = format!("capped{client}");
        let found = numbers(&mut c, &stream, client, Work::Capped);
        assert!(
            found.len() as u64 <= CAP,
            "{stream} is longer than its bound"
        );
        let from = match found.first() {
            Some(first) if found.len() as u64 == CAP => *first,
            _ => 0,
        };
        check_numbers(known, &found, from, Work::Capped, &stream);

        let stream = format!("brief{client}");
        let found = numbers(&mut c, &stream, client, Work::Brief);
        let deletes = (0..known.sent).rev().filter(|n| work(*n) == Work::Delete);
        // A deletion in doubt may have taken place, so the entries before it may be there or not.
        let last = deletes.clone().find(|n| known.is_acknowledged(*n));
        let in_doubt = deletes.take_while(|n| Some(*n) != last);
        let candidates = in_doubt.chain([last.unwrap_or(0)]);
        let from = candidates.filter(|from| found.first().is_none_or(|first| first >= from));
        check_numbers(known, &found, from.max().unwrap_or(0), Work::Brief, &stream);
    }
    wait_for_sweep(&mut c);
}

/// Waits until every log belongs to a stream. A kill may leave logs of deleted streams, and of
/// streams that were not created. The server removes these logs in the background.
fn wait_for_sweep(c: &mut Client) {
    let (mut logs, mut streams) = (0, 0);
    for _ in 0..20_000 {
        streams = c.number(&["DBSIZE"]);
        let mut out = Vec::new();
        c.send(&mut out, &[b"INFO", b"basalt"]);
        c.write.write_all(&out).expect("connected");
        let info = String::from_utf8(c.text()).expect("text");
        let line = info.lines().find_map(|l| l.strip_prefix("logical_logs:"));
        logs = line.map_or(0, |n| n.trim().parse().expect("a number"));
        if logs == streams {
            return;
        }
        Clock::system().sleep(Duration::from_millis(1));
    }
    panic!("there are {logs} logs of {streams} streams");
}

#[test]
fn no_acknowledged_entry_is_lost_under_kill_9() {
    let dir = Dir::new();
    let _repeat = repeat!(
        no_acknowledged_entry_is_lost_under_kill_9,
        "BASALT_SEED={}",
        seed()
    );
    let store = StoreLocation::Dir(dir.0.join("store"));
    let clock = Clock::system();
    let r = Random::from_seed(seed());
    let mut state = vec![KnownCommands::default(); CLIENTS as usize];
    let kills = KILLS * campaign::scale();
    let mut acknowledged = 0;
    for _ in 0..kills {
        let sync = ["always", "always", "everysec", "never"][r.below(4) as usize];
        let server = Server::start(&store, sync, &clock);
        verify_streams(server.port, &mut state);
        let sent = state.iter().map(|known| known.sent);
        let counts = COMMANDS.kill_meanwhile(server, sent, &clock, &r);
        for (known, (sent, new)) in state.iter_mut().zip(counts) {
            acknowledged += new;
            known.acked = known.sent + new;
            known.sent = sent;
            if known.acked < sent {
                known.doubt.push((known.acked, sent));
            }
        }
        store.check();
    }
    let server = Server::start(&store, "always", &clock);
    verify_streams(server.port, &mut state);
    server.kill();
    store.check();
    campaign!("kills={kills} acknowledged={acknowledged}");
    assert!(
        acknowledged > kills * 20,
        "only {acknowledged} commands were acknowledged in {kills} rounds: the test tests nothing"
    );
}
