//! Consumer groups under `kill -9`. Each client has its own stream. The number of a command
//! determines the command. After every kill, the stream and its groups must have the state after
//! some command, and no acknowledged command may come after it. The stream may also have entries of
//! later commands, because an epoch commits its appends before its other writes. So no acknowledged
//! XADD, XDEL, XGROUP, XREADGROUP, XACK or XCLAIM is lost, every pending entry has its group, and
//! no delivered entry is delivered as a new one again.

use super::{CLIENTS, Client, Commands, Dir, Server, StoreLocation, seed};
use basalt::env::{Clock, Random};
use basalt_sim::{campaign, repeat};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// Kills at `BASALT_SCALE=1`.
const KILLS: u64 = 10;
/// Number of entries that an XADD with MAXLEN keeps.
const KEPT: u64 = 60;

/// A command on a client's stream. The number of an entry is that of the command that adds the
/// entry.
#[derive(Debug, Clone, PartialEq)]
enum Command {
    Add(u64),
    /// Adds an entry and trims the stream.
    AddAndTrim(u64),
    Delete(Vec<u64>),
    Create(&'static str),
    Destroy(&'static str),
    Read(&'static str, u64),
    Acknowledge(&'static str, Vec<u64>),
    Claim(&'static str, u64, Vec<u64>),
    DeleteConsumer(&'static str, u64),
}

impl Command {
    /// Returns a client's n-th command.
    fn new(client: u64, n: u64) -> Command {
        let r = Random::from_seed(client << 40 | n);
        let recent = || n.saturating_sub(r.below(80)) + 1;
        let some = || (0..1 + r.below(4)).map(|_| recent()).collect();
        let group = if r.one_in(3) { "h" } else { "g" };
        match r.below(24) {
            _ if n < 2 => Command::Create(["g", "h"][n as usize]),
            0..=8 => Command::Add(n + 1),
            9 => Command::AddAndTrim(n + 1),
            10..=11 => Command::Delete(some()),
            12..=16 => Command::Read(group, r.below(3)),
            17..=19 => Command::Acknowledge(group, some()),
            20..=21 => Command::Claim(group, r.below(3), some()),
            22 => Command::DeleteConsumer(group, r.below(3)),
            _ if r.one_in(2) => Command::Destroy("h"),
            _ => Command::Create("h"),
        }
    }

    fn words(&self, stream: &str) -> Vec<String> {
        let words = |text: String| text.split(' ').map(str::to_string).collect();
        let ids = |ids: &[u64]| ids.iter().map(|n| format!(" {n}-7")).collect::<String>();
        words(match self {
            Command::Add(n) => format!("XADD {stream} {n}-7 v {n}"),
            Command::AddAndTrim(n) => format!("XADD {stream} MAXLEN {KEPT} {n}-7 v {n}"),
            Command::Delete(list) => format!("XDEL {stream}{}", ids(list)),
            Command::Create(group) => format!("XGROUP CREATE {stream} {group} 0 MKSTREAM"),
            Command::Destroy(group) => format!("XGROUP DESTROY {stream} {group}"),
            Command::Read(group, consumer) => {
                format!("XREADGROUP GROUP {group} c{consumer} COUNT 3 STREAMS {stream} >")
            }
            Command::Acknowledge(group, list) => format!("XACK {stream} {group}{}", ids(list)),
            Command::Claim(group, consumer, list) => {
                format!("XCLAIM {stream} {group} c{consumer} 0{}", ids(list))
            }
            Command::DeleteConsumer(group, consumer) => {
                format!("XGROUP DELCONSUMER {stream} {group} c{consumer}")
            }
        })
    }
}

/// A group: the last entry delivered, and for each pending entry its consumer and its number of
/// deliveries.
#[derive(Debug, Clone, Default, PartialEq)]
struct Group {
    last: u64,
    pending: BTreeMap<u64, (u64, u64)>,
}

/// The state of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
struct Stream {
    exists: bool,
    entries: BTreeSet<u64>,
    groups: BTreeMap<String, Group>,
}

impl Stream {
    fn apply(&mut self, command: &Command) {
        let group = match command {
            Command::Read(group, _)
            | Command::Acknowledge(group, _)
            | Command::Claim(group, _, _)
            | Command::DeleteConsumer(group, _) => self.groups.get_mut(*group),
            _ => None,
        };
        match (command, group) {
            (Command::Add(n) | Command::AddAndTrim(n), _) => {
                self.exists = true;
                self.entries.insert(*n);
                let trims = matches!(command, Command::AddAndTrim(_));
                while trims && self.entries.len() as u64 > KEPT {
                    self.entries.pop_first();
                }
            }
            (Command::Delete(list), _) => self.entries.retain(|n| !list.contains(n)),
            (Command::Create(group), _) => {
                self.exists = true;
                self.groups.entry(group.to_string()).or_default();
            }
            (Command::Destroy(group), _) => {
                self.groups.remove(*group);
            }
            (Command::Read(_, consumer), Some(group)) => {
                let new: Vec<u64> = self.entries.range(group.last + 1..).copied().collect();
                for n in new.into_iter().take(3) {
                    group.last = n;
                    group.pending.insert(n, (*consumer, 1));
                }
            }
            (Command::Acknowledge(_, list), Some(group)) => {
                group.pending.retain(|n, _| !list.contains(n));
            }
            (Command::Claim(_, consumer, list), Some(group)) => {
                for n in list {
                    if !self.entries.contains(n) {
                        group.pending.remove(n);
                    } else if let Some(pending) = group.pending.get_mut(n) {
                        *pending = (*consumer, pending.1 + 1);
                    }
                }
            }
            (Command::DeleteConsumer(_, consumer), Some(group)) => {
                group.pending.retain(|_, (of, _)| of != consumer);
            }
            // The group does not exist.
            (_, None) => {}
        }
    }
}

/// A client's stream as the test knows it.
#[derive(Clone, Default)]
struct KnownStream {
    sent: u64,
    /// The state after all acknowledged commands that are not in `doubt`.
    stream: Stream,
    /// Numbers of the commands that the server may have executed, in ascending order.
    doubt: Vec<u64>,
}

fn send(c: &mut Client, out: &mut Vec<u8>, words: &[String]) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    c.send(out, &words);
}

/// Reads a reply of any kind. Returns the words of its bulk strings and its integers.
fn reply(c: &mut Client) -> std::io::Result<Vec<String>> {
    let (mut left, mut out) = (1, Vec::new());
    while left > 0 {
        left -= 1;
        let line = c.line()?;
        let (kind, text) = line.split_at(1);
        match kind {
            "*" => left += text.parse::<i64>().expect("a length").max(0),
            "$" if text == "-1" => {}
            "$" => {
                let len: usize = text.parse().expect("a length");
                let mut bytes = vec![0; len + 2];
                c.read.read_exact(&mut bytes)?;
                out.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
            }
            "-" if text.starts_with("NOGROUP") || text.starts_with("BUSYGROUP") => {}
            "+" | ":" => out.push(text.to_string()),
            _ => panic!("the server answered {line:?}"),
        }
    }
    Ok(out)
}

const COMMANDS: Commands = Commands {
    push: |c, out, client, n| {
        let stream = format!("stream{client}");
        send(c, out, &Command::new(client, n).words(&stream));
    },
    read_reply: |c, _| reply(c).map(drop),
};

/// Reads the state of a stream.
fn read(c: &mut Client, stream: &str) -> Stream {
    let mut ask = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let mut out = Vec::new();
        send(c, &mut out, &words);
        c.write.write_all(&out).expect("connected");
        reply(c).expect("a reply")
    };
    let number = |id: &str| {
        let (ms, seq) = id.split_once('-').expect("an id");
        assert!(seq == "7" || ms == "0", "the id {id} was never given");
        ms.parse::<u64>().expect("an id")
    };
    let mut found = Stream::default();
    for entry in ask(&format!("XRANGE {stream} - +")).chunks(3) {
        assert_eq!(
            (&entry[1][..], &*entry[2]),
            ("v", entry[0].trim_end_matches("-7"))
        );
        found.entries.insert(number(&entry[0]));
    }
    let len = ask(&format!("XLEN {stream}"));
    assert_eq!(
        len,
        [found.entries.len().to_string()],
        "the length of {stream}"
    );
    if ask(&format!("EXISTS {stream}")) == ["0"] {
        return found;
    }
    found.exists = true;
    for group in ask(&format!("XINFO GROUPS {stream}")).split(|word| word == "name") {
        let Some(name) = group.first() else { continue };
        let last = group.iter().position(|word| word == "last-delivered-id");
        let mut of = Group {
            last: number(&group[last.expect("a field") + 1]),
            pending: BTreeMap::new(),
        };
        for entry in ask(&format!("XPENDING {stream} {name} - + 1000000")).chunks(4) {
            let consumer = entry[1]
                .trim_start_matches('c')
                .parse()
                .expect("a consumer");
            let deliveries = entry[3].parse().expect("a number");
            of.pending.insert(number(&entry[0]), (consumer, deliveries));
        }
        found.groups.insert(name.clone(), of);
    }
    found
}

/// Returns the states that a stream may have after a kill. These are the state after each command,
/// and this state with the appends of a later epoch without its other writes.
fn candidates(stream: &Stream, doubt: &[Command]) -> Vec<Stream> {
    let mut all = Vec::new();
    let mut done = stream.clone();
    for n in 0..=doubt.len() {
        all.push(done.clone());
        let (mut appended, mut whole) = (done.clone(), done.clone());
        for command in doubt[n..].iter().filter(|_| done.exists) {
            let len = whole.entries.len() as u64;
            whole.apply(command);
            match command {
                Command::Add(n) => {
                    appended.entries.insert(*n);
                }
                Command::AddAndTrim(n) => {
                    appended.entries.insert(*n);
                    // The trim counts the deletions of its epoch.
                    let first = whole.entries.first().copied().filter(|_| len >= KEPT);
                    appended.entries.retain(|n| *n >= first.unwrap_or(0));
                }
                _ => {}
            }
            all.push(appended.clone());
        }
        if let Some(command) = doubt.get(n) {
            done.apply(command);
        }
    }
    all
}

fn verify(port: u16, state: &mut [KnownStream]) {
    let mut c = Client::connect(port).expect("connect");
    for (client, known) in state.iter_mut().enumerate() {
        let stream = format!("stream{client}");
        let found = read(&mut c, &stream);
        let doubt = known.doubt.iter().map(|n| Command::new(client as u64, *n));
        let candidates = candidates(&known.stream, &doubt.collect::<Vec<_>>());
        assert!(
            candidates.contains(&found),
            "{stream} does not have the state after any of the commands {:?}: {found:?}\nbefore: {:?}",
            known.doubt,
            known.stream
        );
        known.stream = found;
        known.doubt.clear();
    }
}

#[test]
fn no_acknowledged_change_of_a_group_is_lost_under_kill_9() {
    let dir = Dir::new();
    let _repeat = repeat!(
        no_acknowledged_change_of_a_group_is_lost_under_kill_9,
        "BASALT_SEED={}",
        seed()
    );
    let store = StoreLocation::Dir(dir.0.join("store"));
    let clock = Clock::system();
    let r = Random::from_seed(seed());
    let mut state = vec![KnownStream::default(); CLIENTS as usize];
    let kills = KILLS * campaign::scale();
    let mut acknowledged = 0;
    for _ in 0..kills {
        let sync = ["always", "always", "everysec", "never"][r.below(4) as usize];
        let server = Server::start(&store, sync, &clock);
        verify(server.port, &mut state);
        let sent = state.iter().map(|known| known.sent);
        let counts = COMMANDS.kill_meanwhile(server, sent, &clock, &r);
        for (client, (known, (sent, new))) in state.iter_mut().zip(counts).enumerate() {
            acknowledged += new;
            let acked = known.sent + new;
            for n in known.sent..acked {
                known.stream.apply(&Command::new(client as u64, n));
            }
            known.doubt.extend(acked..sent);
            known.sent = sent;
        }
        store.check();
    }
    let server = Server::start(&store, "always", &clock);
    verify(server.port, &mut state);
    server.kill();
    store.check();
    let pending = |known: &KnownStream| known.stream.groups.values().map(|g| g.pending.len()).sum();
    let pending: Vec<usize> = state.iter().map(pending).collect();
    campaign!("kills={kills} acknowledged={acknowledged} pending={pending:?}");
    assert!(
        acknowledged > kills * 20,
        "only {acknowledged} commands were acknowledged in {kills} rounds: the test tests nothing"
    );
}
