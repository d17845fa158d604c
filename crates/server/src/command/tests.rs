//! Commands without a network, for tests that control the clock or the store.

use super::*;
use crate::epoch::EpochLimits;
use crate::store::memory::MemoryStore;
use basalt::env::{Clock, EnvBuilder, ManualClock};
use basalt::fs::{HostFs, HostOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

const START_MS: u64 = 1_700_000_000_000;

struct World {
    exec: Executor,
    store: MemoryStore,
    clock: Arc<ManualClock>,
}

impl World {
    fn new() -> World {
        let clock = ManualClock::new(START_MS);
        let fs = HostFs::new(HostOptions::new(std::env::temp_dir())).unwrap();
        let env = EnvBuilder::new(fs)
            .clock(Clock::manual(clock.clone()))
            .seed(1)
            .build();
        let address = "127.0.0.1:1".parse().unwrap();
        let session = Session {
            id: 1,
            address,
            local: address,
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            protocol: Protocol::Resp2,
            reply_off: false,
            reply_skip: false,
            reply_skip_next: false,
            no_evict: false,
            blocked: false,
            created: Duration::ZERO,
            last: Duration::ZERO,
            last_command: "NULL",
            input_bytes: 0,
            reply_bytes: 0,
        };
        let store = MemoryStore::default();
        World {
            store: store.clone(),
            exec: Executor {
                keys: Keyspace::new(Arc::new(store), EpochLimits::default(), 5).unwrap(),
                budget_gauges: budgets::BudgetGauges::new(&env),
                env,
                options: ServerOptions::default(),
                sync: SyncPolicy::Always,
                sessions: vec![Some(session)],
                cursors: Cursors::default(),
                cursor_failure: None,
                cursors_wanted: false,
                counters: Counters::default(),
                count: None,
                actions: vec![],
                resumed: None,
                slow_room: true,
                no_slow_reads: false,
                started: Duration::ZERO,
                listening: address,
                client_bytes: 0,
                client_bytes_peak: 0,
                gone_client_bytes: 0,
                sampled: (0, Duration::ZERO),
            },
            clock,
        }
    }

    fn run(&mut self, line: &str) -> String {
        let request = Request::from_arguments(&line.split(' ').collect::<Vec<_>>());
        let mut reply = Reply::default();
        let executed = self.exec.execute(0, &request, &mut reply);
        if matches!(executed.outcome, Outcome::NoCursor) {
            match self.exec.keys.store().reserve_cursors() {
                Ok(first) => self.exec.cursors.give(first),
                Err(e) => self.exec.cursor_failure = Some(e),
            }
            self.exec.execute(0, &request, &mut reply);
            self.exec.cursor_failure = None;
        }
        let mut outcome = executed.outcome;
        while let Outcome::Stream(need) = outcome {
            match need {
                crate::keyspace::StreamNeed::Job(job) => {
                    let store = self.exec.keys.store().clone();
                    let answer = crate::stream::jobs::run(&*store, *job);
                    self.exec.keys.take_stream_answer(1, answer);
                }
                crate::keyspace::StreamNeed::Busy => self.commit(),
                crate::keyspace::StreamNeed::Turn => panic!("there is one client"),
            }
            outcome = self.exec.execute(0, &request, &mut reply).outcome;
        }
        self.exec.keys.end_stream_request(1);
        while let Outcome::Fetch(need) = outcome {
            self.exec.keys.begin_fetch(1, need, (1, 2));
            let spec = table::resolve(&request).unwrap();
            let mut keys = spec.keys(request.len()).map(|i| request.arg(i));
            let limit = self.exec.options.reply_hard_bytes;
            while let Some(piece) = self.exec.keys.next_piece(1, limit, &mut keys) {
                let answers = crate::fetch::read(&self.store, piece, || true);
                self.exec.keys.take_answers(1, answers);
            }
            self.exec.keys.use_fetch(Some(1));
            outcome = self.exec.execute(0, &request, &mut reply).outcome;
            self.exec.keys.use_fetch(None);
        }
        self.exec.keys.end_fetch(1);
        String::from_utf8(reply.to_vec()).unwrap()
    }

    /// Forgets what is in memory, as a restart does.
    fn reopen(&mut self) {
        let store = Arc::new(self.store.clone());
        self.exec.keys = Keyspace::new(store, EpochLimits::default(), 5).unwrap();
    }

    /// Submits all writes, lets `end` decide the held commits, and applies the result.
    fn end_epoch(&mut self, sync: bool, end: impl FnOnce(&MemoryStore)) {
        let (sender, ended) = std::sync::mpsc::channel();
        let done = |slot| {
            Box::new(move |r| sender.send((slot, r)).unwrap()) as crate::store::CommitCallback
        };
        assert!(self.exec.keys.submit(sync, done));
        end(&self.store);
        let (slot, result) = ended.recv().unwrap();
        self.exec.keys.complete(slot, result);
    }

    /// Commits all writes.
    fn commit(&mut self) {
        self.commit_with(true);
    }

    /// Commits all writes, with a sync or without one.
    fn commit_with(&mut self, sync: bool) {
        // The log engine commits on a thread of its own.
        self.end_epoch(sync, |_| {});
    }

    fn check(&mut self, script: &[(&str, &str)]) {
        for (line, reply) in script {
            assert_eq!(self.run(line), *reply, "{line}");
        }
    }

    /// Returns all keys by SCAN with the given options.
    fn scan_all(&mut self, options: &str, mut between: impl FnMut(&mut World)) -> Vec<String> {
        let mut cursor = "0".to_string();
        let mut keys = vec![];
        loop {
            let reply = self.run(format!("SCAN {cursor} {options}").trim_end());
            let lines: Vec<&str> = reply.split("\r\n").collect();
            assert_eq!(lines[0], "*2", "{reply}");
            cursor = lines[2].to_string();
            keys.extend(
                lines[5..]
                    .iter()
                    .step_by(2)
                    .filter(|k| !k.is_empty())
                    .map(|k| k.to_string()),
            );
            if cursor == "0" {
                return keys;
            }
            between(self);
        }
    }
}

#[test]
fn expiry_follows_the_clock() {
    let mut w = World::new();
    w.check(&[
        ("SET a 1 EX 10", "+OK\r\n"),
        ("TTL a", ":10\r\n"),
        ("PTTL a", ":10000\r\n"),
        ("PEXPIRETIME a", ":1700000010000\r\n"),
        ("EXPIRETIME a", ":1700000010\r\n"),
        ("APPEND a 2", ":2\r\n"),
        ("INCR a", ":13\r\n"),
        ("SETRANGE a 0 4", ":2\r\n"),
        ("INCRBYFLOAT a 0.5", "$4\r\n43.5\r\n"),
        ("TTL a", ":10\r\n"),
        ("SET b 1 PX 1500", "+OK\r\n"),
    ]);
    w.clock.advance(Duration::from_millis(1499));
    w.check(&[
        ("EXISTS a b", ":2\r\n"),
        ("PTTL b", ":1\r\n"),
        ("TTL b", ":0\r\n"),
    ]);
    w.clock.advance(Duration::from_millis(1));
    w.check(&[
        ("EXISTS a b", ":1\r\n"),
        ("GET b", "$-1\r\n"),
        ("TTL b", ":-2\r\n"),
        ("INCR b", ":1\r\n"),
        ("TTL b", ":-1\r\n"),
        ("SET a 1 KEEPTTL", "+OK\r\n"),
        ("PTTL a", ":8500\r\n"),
        ("GETEX a PERSIST", "$1\r\n1\r\n"),
        ("TTL a", ":-1\r\n"),
        ("EXPIRE a -1", ":1\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("SET c 1 PXAT 1600000000000", "+OK\r\n"),
        ("EXISTS c", ":0\r\n"),
        ("SETNX c 2", ":1\r\n"),
        ("TIME", "*2\r\n$10\r\n1700000001\r\n$6\r\n500000\r\n"),
    ]);
    w.clock.set_wall_ms(START_MS - 1_000_000);
    w.check(&[("GET b", "$1\r\n1\r\n")]);
}

#[test]
fn a_scan_returns_every_key_present_throughout() {
    let mut w = World::new();
    let mut expected = BTreeSet::new();
    for i in 0..2_000 {
        let key = format!("user:{i}");
        w.run(&format!("SET {key} v"));
        expected.insert(key);
    }
    let all: Vec<String> = w.scan_all("", |_| {});
    assert_eq!(all.len(), 2_000, "and each once, when nothing disturbs it");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
    // Keys come and go, and the server sometimes forgets every cursor.
    let mut n = 0;
    let found: BTreeSet<String> = w
        .scan_all("COUNT 7", |w| {
            n += 1;
            w.run(&format!("SET new:{n} v"));
            w.run(&format!("DEL new:{}", n - 1));
            if n == 20 {
                w.exec.cursors = Cursors::default();
            }
        })
        .into_iter()
        .collect();
    assert!(expected.is_subset(&found));
    assert_eq!(w.exec.counters.cursors_forgotten, 1);
    let some = w.scan_all("MATCH user:1?? COUNT 30", |_| {});
    assert_eq!(some.len(), 100);
    let none = w.scan_all("TYPE hash COUNT 500", |_| {});
    assert!(none.is_empty());
    // A cursor that no server gave out begins somewhere, and never causes an endless loop.
    let odd = w.run("SCAN 18446744073709551615");
    assert!(odd.starts_with("*2\r\n"), "{odd}");
}

/// Regression test: a run of deleted keys held the loop until its end, at any length.
#[test]
fn a_scan_pauses_inside_a_run_of_deleted_keys() {
    let mut w = World::new();
    for i in 0..25_000 {
        w.run(&format!("SET user:{i:05} v"));
    }
    w.commit();
    for i in (0..25_000).filter(|i| *i != 20_000) {
        w.run(&format!("DEL user:{i:05}"));
    }
    let first = w.run("SCAN 0 COUNT 1000000");
    assert!(first.ends_with("*0\r\n"), "no key yet: {first}");
    let mut pauses = 0;
    assert_eq!(w.scan_all("COUNT 5", |_| pauses += 1), ["user:20000"]);
    assert_eq!(pauses, 2, "10,000 keys at a time");
    assert_eq!(w.scan_all("MATCH user:2*", |_| {}), ["user:20000"]);
    // Long values are read as well, so fewer keys are read at a time.
    let value = "v".repeat(400 << 10);
    for i in 0..300 {
        w.run(&format!("SET long:{i:03} {value}"));
        if i % 50 == 0 {
            w.commit();
        }
    }
    w.commit();
    let mut calls = 0;
    let found = w.scan_all("COUNT 1000 MATCH long:*", |_| calls += 1);
    assert_eq!(found.len(), 300);
    assert_eq!(calls, 2, "three calls for 120 MB");
}

/// A pattern that is expensive to match is tried against few keys at a time.
#[test]
fn an_expensive_pattern_takes_several_calls() {
    let mut w = World::new();
    let long = "a".repeat(8_000);
    for i in 0..40 {
        w.run(&format!("SET {long}{i:02} v"));
    }
    let mut calls = |pattern: &str| {
        let mut calls = 0;
        let found = w.scan_all(&format!("COUNT 1000 MATCH {pattern}"), |_| calls += 1);
        assert_eq!(found.len(), 0);
        calls
    };
    let n = calls(&format!("*{}b*", "a".repeat(4_000)));
    assert!(n > 2, "{n} calls");
    // These patterns were expensive before patterns were compiled.
    assert_eq!(calls(&format!("*{}", "a*".repeat(500_000))), 0);
    assert_eq!(calls(&format!("*[{}]b", "x".repeat(500_000))), 0);
}

#[test]
fn keepalive_and_idle_timeout_are_settings() {
    let mut w = World::new();
    let failed = |name: &str, why: &str| {
        format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n")
    };
    w.check(&[
        ("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"),
        (
            "CONFIG GET tcp-keepalive",
            "*2\r\n$13\r\ntcp-keepalive\r\n$3\r\n300\r\n",
        ),
        ("CONFIG SET timeout 7 tcp-keepalive 60", "+OK\r\n"),
        ("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n7\r\n"),
        (
            "CONFIG SET timeout 8 tcp-keepalive 32768",
            &failed(
                "tcp-keepalive",
                "argument must be between 0 and 32767 inclusive",
            ),
        ),
        (
            "CONFIG SET TIMEOUT -1",
            &failed(
                "timeout",
                "argument must be between 0 and 2147483647 inclusive",
            ),
        ),
        (
            "CONFIG SET timeout x",
            &failed("timeout", "argument couldn't be parsed into an integer"),
        ),
        ("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n7\r\n"),
        (
            "CONFIG GET tcp-keepalive",
            "*2\r\n$13\r\ntcp-keepalive\r\n$2\r\n60\r\n",
        ),
    ]);
}

/// A restarted server must not take an old cursor for another position: a scan would skip keys.
#[test]
fn cursors_from_before_a_restart_are_never_mistaken() {
    let mut w = World::new();
    for i in 0..100 {
        w.run(&format!("SET k{i:02} v"));
    }
    let cursor = |reply: String| reply.split("\r\n").nth(2).unwrap().to_string();
    let old = cursor(w.run("SCAN 0 COUNT 10"));
    w.exec.cursors = Cursors::default();
    // Another position gets the first number after the restart.
    assert_ne!(cursor(w.run("SCAN 0 COUNT 90")), old);
    let reply = w.run(&format!("SCAN {old} COUNT 20"));
    assert!(reply.contains("k00") && reply.contains("k19"), "{reply}");
    w.exec.cursors = Cursors::default();
    w.store.0.lock().fail_reads = true;
    assert!(w.run("SCAN 0").starts_with("-MISCONF"));
}

#[test]
fn scans_ask_for_cursor_numbers_before_they_need_them() {
    let mut w = World::new();
    w.run("MSET a 1 b 2 c 3 d 4");
    assert!(w.run("SCAN 0 COUNT 1").starts_with("*2\r\n$1\r\n1\r\n"));
    w.exec.cursors_wanted = false;
    w.run("SCAN 1 COUNT 1");
    assert!(!w.exec.cursors_wanted);
    w.exec.cursors.skip(crate::store::CURSOR_BLOCK / 2);
    w.run("SCAN 0 COUNT 3");
    assert!(w.exec.cursors_wanted);
}

#[test]
fn randomkey_returns_an_existing_key() {
    let mut w = World::new();
    w.check(&[
        ("RANDOMKEY", "$-1\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("RANDOMKEY", "$1\r\na\r\n"),
    ]);
    for i in 0..50 {
        w.run(&format!("SET key:{i:02} 1"));
    }
    let seen: BTreeSet<String> = (0..200).map(|_| w.run("RANDOMKEY")).collect();
    assert!(seen.len() > 10, "{seen:?}");
    assert!(
        seen.iter()
            .all(|k| k.starts_with("$1\r\na") || k.starts_with("$6\r\nkey:"))
    );
}

#[test]
fn keys_and_values_past_the_limits_are_refused() {
    let mut w = World::new();
    let key = "k".repeat(layout::MAX_KEY_LEN);
    assert_eq!(w.run(&format!("SET {key} v")), "+OK\r\n");
    assert_eq!(w.run(&format!("GET {key}")), "$1\r\nv\r\n");
    let long = format!("{key}k");
    let refused = w.run(&format!("MSET a 1 {long} 2"));
    assert!(refused.starts_with("-ERR key is too long"), "{refused}");
    assert_eq!(w.run(&format!("MGET a {long}")), "*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(w.run(&format!("EXISTS {long}")), ":0\r\n");
    assert!(
        w.run("SETRANGE a 536870911 xx")
            .starts_with("-ERR string exceeds maximum")
    );
}

/// Regression test: an MGET read up to 1,024 values of any length before it checked the limit of
/// its reply.
#[test]
fn an_mget_past_the_reply_limit_is_refused_before_all_is_read() {
    const VALUE: usize = 64 << 10;
    let mut w = World::new();
    w.exec.options.reply_hard_bytes = 1 << 20;
    let value = "v".repeat(VALUE);
    for i in 0..200 {
        w.run(&format!("SET k{i} {value}"));
    }
    w.commit();
    let ask = |n: u32| {
        let keys: Vec<String> = (0..n).map(|i| format!("k{}", i % 200)).collect();
        format!("MGET {}", keys.join(" "))
    };
    assert_eq!(
        w.run(&ask(200)),
        "-ERR the reply would exceed 1048576 bytes\r\n"
    );
    let largest = w.store.0.lock().largest_batch;
    assert!(largest <= 1 << 20, "{largest} bytes were read for it");
    let whole = w.run(&ask(15));
    assert_eq!(whole.len(), 5 + 15 * (VALUE + 10));
    // One value is larger than the whole limit.
    w.exec.options.reply_hard_bytes = 1 << 10;
    assert_eq!(w.run(&ask(2)), "-ERR the reply would exceed 1024 bytes\r\n");
    assert_eq!(
        w.run("MGET nothing k nothing"),
        "*3\r\n$-1\r\n$-1\r\n$-1\r\n"
    );
    // The write is in flight, and counts as well.
    w.run(&format!("SET k0 {value}"));
    assert_eq!(w.run(&ask(1)), "-ERR the reply would exceed 1024 bytes\r\n");
    w.exec.options.reply_hard_bytes = 1 << 30;
    assert_eq!(w.run(&ask(200)).len(), 6 + 200 * (VALUE + 10));
}

#[test]
fn replies_can_be_turned_off() {
    let mut w = World::new();
    w.check(&[
        ("CLIENT REPLY OFF", ""),
        ("SET a 1", ""),
        ("GET a", ""),
        ("CLIENT REPLY ON", "+OK\r\n"),
        ("CLIENT REPLY SKIP", ""),
        ("GET a", ""),
        ("GET a", "$1\r\n1\r\n"),
        ("CLIENT REPLY OFF", ""),
        ("RESET", "+RESET\r\n"),
        ("GET a", "$1\r\n1\r\n"),
        ("CLIENT REPLY SKIP", ""),
        ("RESET", "+RESET\r\n"),
        ("GET a", "$1\r\n1\r\n"),
    ]);
    w.exec.sessions[0].as_mut().unwrap().reply_skip_next = true;
    w.check(&[("RESET", "+RESET\r\n"), ("GET a", "$1\r\n1\r\n")]);
}

#[test]
fn errors_are_counted_by_their_code() {
    let mut w = World::new();
    let stats = |w: &mut World| {
        let text = w.run("INFO errorstats");
        let lines = text.lines().filter(|l| l.starts_with("errorstat_"));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    assert!(stats(&mut w).is_empty());
    for line in ["NOSUCH", "GET", "HELLO 9", "SET a x", "INCR a"] {
        w.run(line);
    }
    assert_eq!(
        stats(&mut w),
        ["errorstat_ERR:count=3", "errorstat_NOPROTO:count=1"]
    );
    // For any texts, the table stays small.
    for i in 0..1_000u32 {
        let letter = |n: u32| char::from(b'A' + (n % 26) as u8);
        let text = format!("{}{}{} text", letter(i), letter(i / 26), letter(i / 676));
        w.exec.counters.count_errors(text.as_bytes(), 1);
    }
    w.exec.counters.count_errors(&[b'x'; 1_000], 1);
    assert!(stats(&mut w).len() <= ERROR_CODES);
    assert!(stats(&mut w).contains(&"errorstat_ERR:count=4".to_string()));
    assert_eq!(w.exec.counters.errors, 1_005);
    w.run("CONFIG RESETSTAT");
    assert!(stats(&mut w).is_empty());
}

/// Regression test: a SET with a million options, or a CONFIG GET with a million patterns, took
/// seconds of one turn of the loop.
#[test]
fn commands_without_key_lists_have_an_argument_limit() {
    let mut w = World::new();
    for (line, option, most) in [
        ("SET k v", " NX", 65_536 - 3),
        ("SCAN 0", " COUNT", 65_536 - 2),
        ("CONFIG GET", " x*", 1_024),
    ] {
        let reply = w.run(&format!("{line}{}", option.repeat(most)));
        assert!(!reply.contains("too many"), "{line}: {reply}");
        let reply = w.run(&format!("{line}{}", option.repeat(most + 1)));
        assert!(reply.starts_with("-ERR too many"), "{line}: {reply}");
    }
    assert_eq!(
        w.run(&format!("EXISTS{}", " k".repeat(100_000))),
        ":100000\r\n"
    );
}

/// Regression test: replies that are longer than their requests grew past every limit.
#[test]
fn replies_about_commands_and_clients_have_a_limit() {
    let mut w = World::new();
    w.exec.options.reply_hard_bytes = 100_000;
    for command in ["COMMAND INFO", "COMMAND DOCS"] {
        let line = format!("{command}{}", " client".repeat(10_000));
        let reply = w.run(&line);
        assert_eq!(reply, "-ERR the reply would exceed 100000 bytes\r\n");
    }
    w.exec.options.reply_hard_bytes = usize::MAX;
    let reply = w.run(&format!("COMMAND DOCS{}", " config".repeat(10_000)));
    assert_eq!(reply, "-ERR the reply would exceed 4194304 bytes\r\n");
    w.exec.options.reply_hard_bytes = 100_000;
    w.exec.sessions[0].as_mut().unwrap().name = "n".repeat(200_000);
    assert!(w.run("CLIENT LIST").starts_with("-ERR the reply would"));
    assert_eq!(w.run("CLIENT KILL ID 7 ID 1 SKIPME no"), ":1\r\n");
}

mod groups;
mod power_cuts;
mod streams;
