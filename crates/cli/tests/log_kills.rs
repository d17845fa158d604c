//! `basalt log append` and `log trim` under `kill -9`.
//!
//! The oracle is in this process: a record counts as acknowledged when the command has printed its
//! LSN. After every kill `log check` must be clean. Every acknowledged record must be there with
//! its bytes. Of a killed append the first records may be there, up to any of them, and nothing
//! else. Of a killed trim all records are gone or none.

mod harness;
use basalt::env::{Clock, Random, thread};
use basalt_sim::{campaign, repeat};
use harness::{Ran, Scratch, ended};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Kills at `BASALT_SCALE=1`.
const KILLS: u64 = 30;
/// Bytes that the log is trimmed to.
const KEPT_BYTES: usize = 512 << 10;

fn spawn(s: &Scratch, args: &[&str]) -> Child {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("log").args(args);
    c.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    c.spawn().expect("the tool starts")
}

fn log(s: &Scratch, args: &[&str]) -> Ran {
    ended(spawn(s, args))
}

/// Returns a record of a run of the tool. Its length and bytes follow from both numbers.
fn record(run: u64, n: u64) -> String {
    let r = Random::from_seed(run << 32 | n);
    let len = match r.below(20) {
        0 => 30_000 + r.below(70_000),
        1..=4 => r.below(30),
        _ => r.below(6000),
    };
    let fill = char::from(b'a' + r.below(26) as u8);
    let mut text = format!("{run}/{n}/");
    text.extend(std::iter::repeat_n(fill, len as usize));
    text
}

/// What the log must have, and what it may have.
#[derive(Default)]
struct Oracle {
    /// Records that must be there.
    records: BTreeMap<u64, String>,
    /// The LSN behind all records that were ever there.
    next: u64,
    kills: u64,
    acknowledged: u64,
    trims: u64,
    /// Records of killed appends that were there.
    survivors: u64,
}

/// How a run of the tool ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    /// By itself.
    Itself,
    /// By a kill at a random moment, before it has read all of its input.
    WhileReading,
    /// By a kill at a random moment, unless it is faster.
    AtAnyTime,
}

impl End {
    fn random(random: &Random) -> End {
        match random.below(4) {
            0 => End::Itself,
            1 | 2 => End::WhileReading,
            _ => End::AtAnyTime,
        }
    }
}

/// Runs the tool with this input, and kills it as `end` says.
fn run(s: &Scratch, args: &[&str], input: Vec<u8>, end: End, random: &Random) -> Ran {
    let mut child = spawn(s, args);
    let mut stdin = child.stdin.take().expect("it is piped");
    // The end of the input comes when the sender is dropped.
    let (more, input_ends) = mpsc::channel::<()>();
    let writer = thread::spawn("log-kill-input", move || {
        // A killed reader breaks the pipe.
        let _ = stdin.write_all(&input);
        let _ = input_ends.recv();
        drop(stdin);
    })
    .expect("a thread");
    let held = (end == End::WhileReading).then_some(more);
    if end != End::Itself {
        // Half of the kills come early, when files and logs are being made.
        let limit = if random.one_in(2) { 8_000 } else { 60_000 };
        let after = Duration::from_micros(random.below(limit));
        Clock::system().sleep(after);
        let _ = child.kill();
    }
    let ran = ended(child);
    drop(held);
    writer.join().expect("the input was written");
    ran
}

impl Oracle {
    fn append(&mut self, s: &Scratch, n: u64, random: &Random) {
        let end = End::random(random);
        let count = 1 + random.below(1 + random.below(1200));
        let sent: Vec<String> = (0..count).map(|i| record(n, i)).collect();
        let input: String = sent.iter().map(|record| format!("{record}\n")).collect();
        let ran = run(s, &["append", "l", "a"], input.into_bytes(), end, random);
        let first = self.next;
        let all = (first..).zip(sent);
        let printed = match count {
            1 => format!("{first}\n"),
            _ => format!("{first} to {}\n", first + count - 1),
        };
        if ran.text() == printed {
            // A kill that comes now is too late to take anything back.
            self.acknowledged += count;
            self.records.extend(all);
            self.next += count;
        } else {
            assert!(end != End::Itself, "run {n}: {ran:?}");
            assert_eq!((ran.code, ran.text()), (None, ""), "run {n}: {ran:?}");
            let may_be_there = all.collect();
            let found = self.look(s, n, may_be_there);
            self.survivors += found;
        }
        self.kills += u64::from(ran.code.is_none());
    }

    fn trim(&mut self, s: &Scratch, n: u64, random: &Random) {
        let Some(up_to) = self.trim_point() else {
            return;
        };
        let end = match random.one_in(2) {
            true => End::Itself,
            false => End::AtAnyTime,
        };
        let text = up_to.to_string();
        let args = ["trim", "l", "a", "--up-to", &text, "--yes"];
        let ran = run(s, &args, Vec::new(), end, random);
        self.kills += u64::from(ran.code.is_none());
        let kept = self.records.split_off(&(up_to + 1));
        if ran.code == Some(0) || ran.text().contains("trimmed") {
            self.records = kept;
            self.trims += 1;
            return;
        }
        assert_eq!((end, ran.code), (End::AtAnyTime, None), "run {n}: {ran:?}");
        let found = dump(s);
        if !found.contains_key(&up_to) {
            self.records = kept;
        } else {
            self.records.extend(kept);
        }
    }

    /// Returns an LSN up to which the log may be trimmed, if it is long.
    fn trim_point(&self) -> Option<u64> {
        let mut bytes = 0;
        let long = self.records.iter().rev().find(|(_, record)| {
            bytes += record.len();
            bytes > KEPT_BYTES
        });
        long.map(|(lsn, _)| *lsn)
    }

    /// Compares the log with what must be there, and takes over what is there of a killed append.
    /// Returns how many of its records are there.
    fn look(&mut self, s: &Scratch, n: u64, may_be_there: BTreeMap<u64, String>) -> u64 {
        let check = log(s, &["check", "l"]);
        // If the kill came before the store was made, there is no store to check.
        let none = self.next == 1 && check.code == Some(2) && check.err.contains("no log store");
        assert!(check.code == Some(0) || none, "run {n}: {check:?}");
        let found = if none { BTreeMap::new() } else { dump(s) };
        let mut more = may_be_there.into_iter();
        let before = self.records.len();
        let behind = found.range(self.next..);
        for (lsn, record) in behind {
            let sent = more.next();
            assert_eq!(sent.as_ref(), Some(&(*lsn, record.clone())), "run {n}");
            self.records.extend(sent);
        }
        let survived = (self.records.len() - before) as u64;
        self.next += survived;
        let wrong = (found.iter().zip(&self.records)).find(|(found, right)| found != right);
        assert!(wrong.is_none(), "run {n}: {wrong:?}");
        assert_eq!(found.len(), self.records.len(), "run {n}");
        survived
    }
}

/// Returns all records of the log, which may not exist yet.
fn dump(s: &Scratch) -> BTreeMap<u64, String> {
    let ran = log(s, &["dump", "l", "a"]);
    if ran.code == Some(2) && ran.err.contains("there is no log") {
        return BTreeMap::new();
    }
    let text = String::from_utf8(ran.ok()).expect("the records are text");
    let line = |line: &str| {
        let (lsn, record) = line.split_once('\t').expect("an LSN and a record");
        (lsn.parse().expect("a number"), record.to_string())
    };
    text.lines().map(line).collect()
}

#[test]
fn killed_appends_and_trims_lose_nothing_that_was_acknowledged() {
    let seed = campaign::case().map_or(3, |case| case[0]);
    let _repeat = repeat!(
        killed_appends_and_trims_lose_nothing_that_was_acknowledged,
        "BASALT_CASE={seed}"
    );
    let s = Scratch::new("log-kills");
    let random = Random::from_seed(seed);
    let mut oracle = Oracle {
        next: 1,
        ..Oracle::default()
    };
    let kills = KILLS * campaign::scale();
    let mut n = 0;
    while oracle.kills < kills {
        n += 1;
        oracle.append(&s, n, &random);
        if n % 3 == 0 {
            oracle.trim(&s, n, &random);
        }
        oracle.look(&s, n, BTreeMap::new());
    }
    let Oracle {
        kills,
        acknowledged,
        trims,
        survivors,
        ..
    } = oracle;
    campaign!(
        "log_kills={kills} runs={n} acknowledged={acknowledged} survivors={survivors} trims={trims}"
    );
    assert!(acknowledged > 0, "no append ended by itself");
}
