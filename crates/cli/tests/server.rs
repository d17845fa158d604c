//! `basalt serve` and the tools on one store: the tools read what a Redis client sets, and the
//! other way round.

mod harness;
use harness::{Scratch, Server, ended};
use std::net::TcpListener;

#[test]
fn redis_clients_and_the_tools_see_the_same_entries() {
    let s = Scratch::new("serve");
    s.run("put", ["from-tool", "1"]).ok();
    let server = Server::start(&s, &[]);
    assert_eq!(server.ask(&[b"GET", b"from-tool"], 7), b"$1\r\n1\r\n");
    assert_eq!(
        server.ask(&[b"SET", b"from-client", b"\0\xff"], 5),
        b"+OK\r\n"
    );
    assert_eq!(server.ask(&[b"SET", b"", b"empty key"], 5), b"+OK\r\n");
    s.run("get", ["from-tool"])
        .fails(2, &["in use by process", "redis-cli INFO", "stop it"]);
    s.run("check", [""; 0]).fails(2, &["in use"]);
    server.signal(rustix::process::Signal::TERM);
    let ran = ended(server.child);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(s.run("get", ["from-client"]).ok(), b"\0\xff");
    assert_eq!(s.run("get", [""]).ok(), b"empty key");
    assert_eq!(s.run("check", [""; 0]).code, Some(0));

    // A client's FLUSHDB applies to the tools as well.
    let server = Server::start(&s, &["--sync", "everysec"]);
    assert_eq!(server.ask(&[b"FLUSHALL"], 5), b"+OK\r\n");
    assert_eq!(server.ask(&[b"SET", b"new", b"n"], 5), b"+OK\r\n");
    server.signal(rustix::process::Signal::INT);
    assert_eq!(ended(server.child).code, Some(0));
    assert_eq!(s.scan(), "new\tn\n");
}

/// A compaction of the tool drops the keys that FLUSHALL removed.
#[test]
fn a_compaction_frees_the_space_of_flushall() {
    let s = Scratch::new("flushed");
    let text: String = (0..2000)
        .map(|i| format!("k{i:06}\t{}\n", "v".repeat(1000)))
        .collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    // A server that is killed at once has no time to drop the keys that it flushed.
    let mut server = Server::start(&s, &[]);
    assert_eq!(server.ask(&[b"FLUSHALL"], 5), b"+OK\r\n");
    server.child.kill().unwrap();
    ended(server.child);
    s.run("put", ["kept", "1"]).ok();
    s.run("compact", [""; 0]).ok();
    assert_eq!(s.scan(), "kept\t1\n");
    let bytes: usize = harness::tree(&s.path("db"))
        .iter()
        .filter(|(name, _)| name.extension().is_some_and(|e| e == "tbl"))
        .map(|(_, content)| content.len())
        .sum();
    assert!(bytes < 100_000, "{bytes} bytes of tables");
}

#[test]
fn acknowledged_sets_survive_a_kill() {
    let s = Scratch::new("serve-kill");
    let server = Server::start(&s, &["--sync", "always"]);
    for i in 0..100 {
        let key = format!("k{i:03}");
        assert_eq!(server.ask(&[b"SET", key.as_bytes(), b"v"], 5), b"+OK\r\n");
    }
    server.signal(rustix::process::Signal::KILL);
    assert_eq!(ended(server.child).code, None);
    assert_eq!(s.run("check", [""; 0]).code, Some(0));
    assert_eq!(s.scan().lines().count(), 100);
}

#[test]
fn budgets_are_given_by_flags_and_shown_by_the_server() {
    let s = Scratch::new("budgets");
    let flags = [
        "--memory=128M",
        "--cache=32M",
        "--write-buffer=8M",
        "--background-threads=3",
        "--io-limit=50M",
        "--open-files=100",
        "--max-clients=50",
        "--timeout=3600",
        "--tcp-keepalive=60",
    ];
    let server = Server::start(&s, &flags);
    let want = [
        ("basalt-background-threads", "3"),
        ("basalt-cache", "33554432"),
        ("basalt-io-limit", "52428800"),
        ("basalt-memory", "134217728"),
        ("basalt-open-files", "100"),
        ("basalt-write-buffer", "8388608"),
        ("maxclients", "50"),
        ("maxmemory-clients", "67108864"),
        ("proto-max-bulk-len", "16777216"),
        ("tcp-keepalive", "60"),
        ("timeout", "3600"),
    ];
    for (name, value) in want {
        let reply = format!(
            "*2\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n",
            name.len(),
            value.len()
        );
        let got = server.ask(&[b"CONFIG", b"GET", name.as_bytes()], reply.len());
        assert_eq!(String::from_utf8_lossy(&got), reply);
    }
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(ended(server.child).code, Some(0));
    // A load takes these flags, too. A wrong combination is refused with a sentence that names the
    // flags.
    s.file("in.tsv", "k\tv\n");
    s.run("load", ["in.tsv", "--write-buffer=1M", "--io-limit=100M"])
        .ok();
    for (flags, parts) in [
        (["--cache=1G"], ["--cache", "--memory"]),
        (["--write-buffer=1G"], ["--write-buffer", "--memory"]),
        (["--write-buffer=1K"], ["--write-buffer", "64K"]),
        (["--io-limit=10"], ["--io-limit", "1M"]),
    ] {
        s.run("serve", flags).fails(2, &parts);
        s.run("load", [flags[0], "in.tsv"]).fails(2, &parts);
    }
}

#[test]
fn a_port_in_use_names_the_flag() {
    let s = Scratch::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    s.run("serve", ["--listen", &listen])
        .fails(2, &["--listen", &listen]);
    s.run("serve", ["--listen", "nonsense"])
        .fails(2, &["--listen"]);
}
