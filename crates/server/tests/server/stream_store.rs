//! Strings and streams in one store: checkpoints, the engines of a store, and the metrics of the
//! log engine.

use crate::client::{Client, TestServer, spawn};
use basalt::env::EnvBuilder;
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt::{Db, EngineKind, ErrorKind, Options, Store, StoreOptions};
use basalt_sim::When;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Returns the number in an integer reply or in a bulk string.
fn number(reply: &str) -> u64 {
    let digits = reply.trim_end().rsplit("\r\n").next().unwrap();
    digits.trim_start_matches(':').parse().unwrap()
}

/// A client alternately sets a number and appends the same number to a stream, while checkpoints
/// are made. Every checkpoint has a state that the client saw. Every fifth number begins a new
/// stream, so that a checkpoint can run between the two commits of an epoch.
#[test]
fn a_checkpoint_has_strings_and_streams_of_one_moment() {
    for policy in ["always", "never"] {
        copies_of_one_moment(policy);
    }
}

fn copies_of_one_moment(policy: &str) {
    const COPIES: u64 = 4;
    let server = TestServer::start("moment", |o| {
        o.sync = basalt_server::SyncPolicy::parse(policy).unwrap();
    });
    let address = server.address;
    let (done, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (to, end) = (done.clone(), stop.clone());
    let writer = spawn(move || {
        let mut c = Client::connect(address);
        let mut n = 0;
        while !end.load(SeqCst) {
            n += 1;
            assert_eq!(c.call(&["SET", "n", &n.to_string()]), "+OK\r\n");
            let id = format!("{n}-0");
            let added = format!("${}\r\n{id}\r\n", id.len());
            let stream = format!("s{}", n / 5);
            assert_eq!(c.call(&["XADD", &stream, &id, "f", "v"]), added);
            to.store(n, SeqCst);
        }
    });
    let mut c = server.client();
    let mut least = Vec::new();
    for n in 0..COPIES {
        while done.load(SeqCst) < 40 * (n + 1) {
            std::thread::yield_now();
        }
        least.push(done.load(SeqCst));
        let target = server.dir.join(format!("copy{n}"));
        let made = c.call(&["BASALT", "CHECKPOINT", target.to_str().unwrap()]);
        assert_eq!(made, "+OK\r\n");
    }
    stop.store(true, SeqCst);
    writer.join().unwrap();
    let mut dir = server.stop();
    for n in 0..COPIES {
        let copy = TestServer::start_in(dir, |o| o.dir = format!("copy{n}").into());
        let mut c = copy.client();
        let set = number(&c.words("GET n"));
        let streams = number(&c.words("DBSIZE")) - 1;
        let lengths = (0..streams).map(|s| number(&c.words(&format!("XLEN s{s}"))));
        let lengths: Vec<u64> = lengths.collect();
        let added: u64 = lengths.iter().sum();
        assert!(added >= least[n as usize], "{added}, {least:?}");
        // A number is set before it is appended.
        assert!(set == added || set == added + 1, "{set}, {lengths:?}");
        for (s, len) in lengths.iter().enumerate() {
            let all = if s == 0 { 4 } else { 5 };
            assert!(*len == all || s + 1 == lengths.len(), "{lengths:?}");
        }
        // The copy is a store of its own, and takes writes.
        let (stream, id) = (format!("s{streams}"), format!("{}-0", added + 1));
        let id = format!("${}\r\n{id}\r\n", id.len());
        let more = format!("XADD {stream} {}-0 f v", added + 1);
        assert_eq!(c.words(&more), id);
        dir = copy.stop();
    }
    let env = EnvBuilder::new(HostFs::new(HostOptions::new(&dir)).unwrap()).build();
    for n in 0..COPIES {
        let options = StoreOptions::default();
        let report = Store::check(&env, format!("copy{n}"), &options, &mut |_, _| ());
        assert_eq!(report.unwrap().damage().count(), 0);
    }
    remove(&dir);
}

/// Returns the sorted names in a directory.
fn entries(dir: &Path) -> Vec<String> {
    let fs = HostFs::new(HostOptions::new(dir)).unwrap();
    let names = fs.list(Path::new("")).unwrap();
    let mut names: Vec<String> = names.into_iter().map(|e| e.name).collect();
    names.sort();
    names
}

/// Removes the directory of a stopped server.
#[expect(
    clippy::disallowed_methods,
    reason = "the test removes its own directory"
)]
fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
}

/// If the part of a checkpoint that copies logs fails, the checkpoint returns an error and leaves
/// no files. The server continues.
#[test]
fn a_checkpoint_of_streams_that_fails_is_an_error() {
    let mut faults: Option<Arc<FaultFs>> = None;
    let server = TestServer::start_over(
        crate::client::fresh_dir("moment-fault"),
        |fs| {
            let faulty = FaultFs::new(fs, 1);
            faults = Some(faulty.clone());
            faulty
        },
        |_| {},
    );
    let faults = faults.unwrap();
    let mut c = server.client();
    c.words("XADD s 1-1 f v");
    let target = server.dir.join("copy");
    let checkpoint = |c: &mut Client| c.call(&["BASALT", "CHECKPOINT", target.to_str().unwrap()]);
    faults.inject(Fault {
        op: None,
        path: "copy.checkpoint-unfinished/logs".to_string(),
        when: When::From(1),
        kind: FaultKind::Enospc,
    });
    let failed = checkpoint(&mut c);
    assert!(
        failed.starts_with('-') && failed.contains("logs"),
        "{failed}"
    );
    assert_eq!(entries(&server.dir), ["store"]);
    faults.clear();
    assert_eq!(c.words("XADD s 2-1 f v"), "$3\r\n2-1\r\n");
    assert_eq!(checkpoint(&mut c), "+OK\r\n");
    drop(c);
    let copy = TestServer::start_in(server.stop(), |o| o.dir = "copy".into());
    assert_eq!(copy.client().words("XLEN s"), ":2\r\n");
}

/// A store without streams has no log engine, so builds without one open it. A store that had
/// streams says so in its manifest, and opens again.
#[test]
fn only_a_store_with_streams_has_a_log_engine() {
    let server = TestServer::start("engines", |_| {});
    let mut c = server.client();
    c.words("SET a 1");
    // A read of a stream that does not exist makes no log engine either.
    assert_eq!(c.words("XLEN s"), ":0\r\n");
    assert_eq!(c.words("XADD s NOMKSTREAM 1-1 f v"), "$-1\r\n");
    assert!(!c.words("INFO basalt").contains("logical_logs"));
    let target = server.dir.join("copy");
    let made = c.call(&["BASALT", "CHECKPOINT", target.to_str().unwrap()]);
    assert_eq!(made, "+OK\r\n");
    drop(c);
    let dir = server.stop();
    let env = EnvBuilder::new(HostFs::new(HostOptions::new(&dir)).unwrap()).build();
    for store in ["store", "copy"] {
        let db = Db::open_read_only(&env, store, Options::default()).unwrap();
        assert_eq!(db.engines(), []);
        assert!(!entries(&dir.join(store)).iter().any(|name| name == "logs"));
    }
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    assert_eq!(c.words("XADD s 1-1 f v"), "$3\r\n1-1\r\n");
    drop(c);
    let dir = server.stop();
    {
        // What the tools do: all engines are opened together, and the tables are not copied alone.
        let store = Store::open(&env, "store", StoreOptions::default()).unwrap();
        assert_eq!(store.db().engines(), [EngineKind::Logs]);
        assert_eq!(store.existing_logs().unwrap().list().len(), 1);
        let alone = store.db().checkpoint("alone", &Default::default());
        assert_eq!(alone.unwrap_err().kind(), ErrorKind::Unsupported);
        store.close().unwrap();
    }
    let server = TestServer::start_in(dir, |_| {});
    assert_eq!(server.client().words("XLEN s"), ":1\r\n");
}

/// INFO and the metrics have the same numbers of the log engine.
#[test]
fn info_and_metrics_agree_about_the_log_engine() {
    let server = TestServer::start("log-figures", |_| {});
    let mut c = server.client();
    for n in 1..=10 {
        c.words(&format!("XADD s {n}-0 f v"));
    }
    c.words("XADD t 1-0 f v");
    let (info, metrics) = (c.words("INFO basalt"), c.words("BASALT METRICS"));
    let find = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line.trim().parse().unwrap()
    };
    for (field, metric) in [
        ("logical_logs", "logs"),
        ("logical_log_records", "log_records"),
        ("logical_log_live_bytes", "log_live_bytes"),
        ("logical_log_ended_bytes", "log_ended_bytes"),
        ("logical_log_ended_live_bytes", "log_ended_live_bytes"),
        ("logical_log_data_files", "log_data_files"),
        ("logical_log_meta_files", "log_meta_files"),
        ("logical_log_index_bytes", "log_index_bytes"),
        ("logical_log_index_pages", "log_index_pages"),
    ] {
        let shown = find(&info, &format!("{field}:"));
        let metric = format!("basalt_{metric}{{store=\"store/logs\"}}");
        let measured = find(&metrics, &metric);
        assert_eq!(shown, measured, "{field}");
    }
    assert_eq!(find(&info, "logical_logs:"), 2);
    assert_eq!(find(&info, "logical_log_records:"), 11);
    assert!(info.contains("logical_log_space_amp:"), "{info}");
}

/// Waits until the store has this number of logs.
fn wait_for_logs(c: &mut Client, logs: u64) {
    let mut found = u64::MAX;
    for _ in 0..20_000 {
        let info = c.words("INFO basalt");
        let line = info.lines().find_map(|l| l.strip_prefix("logical_logs:"));
        found = line.expect("there are logs").trim().parse().unwrap();
        if found == logs {
            return;
        }
        basalt::env::Clock::system().sleep(std::time::Duration::from_millis(2));
    }
    panic!("the store has {found} logs, not {logs}");
}

/// The running server removes the logs of streams that lost their keys in any way. No client reads
/// the expired streams.
#[test]
fn logs_of_dropped_streams_are_removed_while_the_server_runs() {
    let server = TestServer::start("sweep", |_| {});
    let mut c = server.client();
    for round in 0..3 {
        for n in 0..50 {
            c.words(&format!("XADD s{n} 1-1 f v"));
        }
        wait_for_logs(&mut c, 50);
        for n in 0..10 {
            assert_eq!(c.words(&format!("DEL s{n}")), ":1\r\n");
        }
        for n in 10..20 {
            assert_eq!(c.words(&format!("SET s{n} v")), "+OK\r\n");
        }
        for n in 20..30 {
            assert_eq!(c.words(&format!("PEXPIRE s{n} 1")), ":1\r\n");
        }
        // A command with very many names.
        let mut many = vec!["MSET".to_string()];
        for n in (30..40).chain(1000..5000) {
            many.extend([format!("s{n}"), "v".to_string()]);
        }
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(c.call(&many), "+OK\r\n");
        wait_for_logs(&mut c, 10);
        assert!(c.words("INFO memory").contains("\r\nmem_stream_keys:"));
        for n in 40..50 {
            assert_eq!(c.words(&format!("XLEN s{n}")), ":1\r\n");
        }
        if round > 0 {
            // Some wait for a sweep when the flush comes.
            for n in 40..45 {
                c.words(&format!("DEL s{n}"));
            }
        }
        assert_eq!(c.words("FLUSHALL"), "+OK\r\n");
        wait_for_logs(&mut c, 0);
    }
    // A server finds the streams of an earlier server.
    for n in 0..20 {
        c.words(&format!("XADD s{n} 1-1 f v"));
    }
    c.words("PEXPIRE s0 1");
    c.words("PEXPIRE s1 100000000");
    drop(c);
    let server = TestServer::start_in(server.stop(), |_| {});
    let mut c = server.client();
    wait_for_logs(&mut c, 19);
    for n in 2..10 {
        c.words(&format!("SET s{n} v"));
    }
    wait_for_logs(&mut c, 11);
    assert_eq!(c.words("PEXPIRE s1 1"), ":1\r\n");
    wait_for_logs(&mut c, 10);
}

/// If a client pipelines ranges over a whole stream and does not read the replies, the server holds
/// few replies. It reads the entries of a request only when there is room for the reply.
#[test]
fn pipelined_ranges_of_a_large_stream_take_bounded_memory() {
    const REQUESTS: usize = 2_000;
    let server = TestServer::start("ranges", |_| {});
    let mut c = server.client();
    let value = "v".repeat(4_000);
    for n in 1..=500 {
        c.call(&["XADD", "s", &format!("{n}-0"), "f", &value]);
    }
    let whole = c.words("XRANGE s - +").len();
    assert!(whole > 2_000_000);
    let before = c.words("INFO stats");
    let count = |info: &str| {
        let line = info
            .lines()
            .find_map(|l| l.strip_prefix("total_commands_processed:"));
        line.unwrap().trim().parse::<usize>().unwrap()
    };
    c.send(&b"XRANGE s - +\r\n".repeat(REQUESTS));
    let mut other = server.client();
    // The requests were read when some of them were answered.
    for _ in 0..20 {
        assert_eq!(c.reply().unwrap().len(), whole);
    }
    // The client reads no replies from here on, so the server answers a few more requests and
    // stops.
    let (mut done, mut same, mut polls) = (0, 0, 0);
    while same < 200 {
        let memory = other.words("INFO memory");
        let peak = memory
            .lines()
            .find_map(|l| l.strip_prefix("mem_clients_peak:"));
        let peak: usize = peak.unwrap().trim().parse().unwrap();
        assert!(peak < 12 * whole, "{peak} bytes for replies of {whole}");
        let fetched = other.words("INFO stats");
        let now = count(&fetched) - count(&before) - 2 * polls;
        polls += 1;
        same = if now == done { same + 1 } else { 0 };
        done = now;
    }
    assert!(done < REQUESTS, "the requests wait for the client");
}
