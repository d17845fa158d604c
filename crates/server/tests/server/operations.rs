//! Requests of an operator to a running server: a checkpoint, its metrics, and INFO's section of
//! the engine.

use crate::client::{TestServer, encode, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

#[test]
fn a_checkpoint_taken_during_writes_can_be_served() {
    let server = TestServer::start("checkpoint", |_| {});
    let address = server.address;
    let (acknowledged, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (done, end) = (acknowledged.clone(), stop.clone());
    let writer = spawn(move || {
        let mut c = crate::client::Client::connect(address);
        let mut n = 0;
        while !end.load(SeqCst) {
            n += 1;
            let reply = c.call(&["SET", &format!("k{n:06}"), &format!("v{n}")]);
            assert_eq!(reply, "+OK\r\n");
            done.store(n, SeqCst);
        }
        n
    });
    let mut c = server.client();
    c.words("SET ending x PXAT 99999999999999");
    while acknowledged.load(SeqCst) < 50 {
        std::thread::yield_now();
    }
    let least = acknowledged.load(SeqCst);
    let target = server.dir.join("copy");
    let made = c.call(&["BASALT", "CHECKPOINT", target.to_str().unwrap()]);
    assert_eq!(made, "+OK\r\n");
    let most = acknowledged.load(SeqCst) + 1;
    // The target exists now.
    let again = c.call(&["BASALT", "CHECKPOINT", target.to_str().unwrap()]);
    assert!(
        again.starts_with("-ERR") && again.contains("the target exists"),
        "{again}"
    );
    stop.store(true, SeqCst);
    let written = writer.join().unwrap();
    assert_eq!(c.words("DBSIZE"), format!(":{}\r\n", written + 1));
    let dir = server.stop();
    let copy = TestServer::start_in(dir, |o| o.dir = "copy".into());
    let mut c = copy.client();
    let size: u64 = c.words("DBSIZE")[1..].trim().parse().unwrap();
    let keys = size - 1;
    assert!(
        (least..=most).contains(&keys),
        "{least} <= {keys} <= {most}"
    );
    for n in 1..=keys {
        let (key, value) = (format!("k{n:06}"), format!("v{n}"));
        let want = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(c.call(&["GET", &key]), want, "every one up to {keys}");
    }
    assert_eq!(c.words("PEXPIRETIME ending"), ":99999999999999\r\n");
}

#[test]
fn a_checkpoint_that_cannot_be_made_is_an_error_and_the_server_goes_on() {
    let server = TestServer::start("checkpoint-errors", |_| {});
    let mut c = server.client();
    c.words("SET a 1");
    for target in ["copy", "./copy", ""] {
        let reply = c.call(&["BASALT", "CHECKPOINT", target]);
        assert!(
            reply.starts_with("-ERR") && reply.contains("absolute path"),
            "{reply}"
        );
    }
    c.send(&encode(&[b"BASALT", b"CHECKPOINT", b"/tmp/a\0b"]));
    let reply = String::from_utf8(c.reply().unwrap()).unwrap();
    assert!(reply.contains("absolute path"), "{reply}");
    let nowhere = server.dir.join("no/such/place");
    let reply = c.call(&["BASALT", "CHECKPOINT", nowhere.to_str().unwrap()]);
    assert!(
        reply.starts_with('-') && reply.contains("make it first"),
        "{reply}"
    );
    let store = server.dir.join("store");
    let reply = c.call(&["BASALT", "CHECKPOINT", store.to_str().unwrap()]);
    assert!(reply.contains("the target exists"), "{reply}");
    for wrong in [
        "BASALT",
        "BASALT CHECKPOINT",
        "BASALT CHECKPOINT a b",
        "BASALT NOTHING",
    ] {
        let reply = c.words(wrong);
        assert!(reply.starts_with("-ERR"), "{wrong}: {reply}");
    }
    assert_eq!(c.words("GET a"), "$1\r\n1\r\n");
}

/// Returns the number behind a name that begins a line.
fn figure(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.trim().parse().expect("a number")
}

#[test]
fn metrics_and_info_agree_about_the_engine() {
    let server = TestServer::start("metrics", |o| {
        o.engine.write_buffer_bytes = 64 << 10;
    });
    let mut c = server.client();
    for n in 0..400 {
        let reply = c.call(&["SET", &format!("k{n:06}"), &"v".repeat(1000)]);
        assert_eq!(reply, "+OK\r\n");
    }
    // Background flushes do not change these values after the last write. Tables appear soon.
    let info = loop {
        let info = c.words("INFO basalt");
        if info.contains("_level") {
            break info;
        }
        std::thread::yield_now();
    };
    assert!(
        info.contains("# Basalt\r\n") && !info.contains("# Server"),
        "{info}"
    );
    for name in ["memtables", "level0", "memory_budget", "compaction_debt"] {
        assert!(figure(&info, &format!("stalls_{name}:")) >= 0.0);
        assert!(figure(&info, &format!("stall_us_{name}:")) >= 0.0);
    }
    for budget in [
        "memory_bytes",
        "cache_bytes",
        "open_files",
        "background_threads",
        "background_io_bytes_per_s",
        "write_buffer_bytes",
        "sealed_memtables",
        "clients",
        "client_memory_bytes",
        "pending_write_bytes",
    ] {
        let line = format!("budget_{budget}:used=");
        assert!(info.contains(&line), "{line} is not in\n{info}");
    }
    assert!(info.contains("budget_clients:used=1,limit="), "{info}");
    assert!(info.contains("budget_write_buffer_bytes:used=") && info.contains(",limit=65536\r\n"));
    let level = info.lines().find(|l| l.starts_with("redis_keys_level"));
    let level = level.expect("tables of the keys' family");
    for part in [
        "tables=",
        "bytes=",
        "entries=",
        "score=",
        "written=",
        "write_amp=",
    ] {
        assert!(level.contains(part), "{part} is not in {level}");
    }
    assert!(info.contains("compactions_running:") && info.contains("background_io_wait_us:high="));

    let reply = c.words("BASALT METRICS");
    let (head, text) = reply.split_once("\r\n").expect("a bulk string");
    let text = text.strip_suffix("\r\n").expect("its end");
    assert_eq!(head, format!("${}", text.len()));
    // Each line is a comment, or a name with labels and a number. Each name has a description.
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a number");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(name.starts_with("basalt_"), "{line}");
        let bare = name.split('{').next().unwrap();
        let bare = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| {
                bare.strip_suffix(end)
                    .filter(|b| text.contains(&format!("# TYPE {b} histogram")))
            })
            .unwrap_or(bare);
        assert!(
            text.contains(&format!("# TYPE {bare} ")),
            "{bare} has no type"
        );
    }
    for name in [
        "basalt_stalls_total{",
        "basalt_budget_limit{",
        "basalt_level_tables{",
        "basalt_level_range_deletes{",
        "basalt_budget_used{budget=\"clients\"} 1\n",
        "basalt_budget_limit{budget=\"pending_write_bytes\"} 67108864\n",
        "basalt_budget_used{budget=\"client_memory_bytes\"} ",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
}
