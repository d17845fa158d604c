//! Stopping and starting a server, and the data that must exist then.

use crate::client::{TestServer, encode, spawn};
use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};
use basalt_server::{Server, ServerOptions};

#[test]
fn acknowledged_writes_survive_a_restart() {
    let server = TestServer::start("restart", |_| {});
    let mut c = server.client();
    for i in 0..500 {
        assert_eq!(
            c.call(&["SET", &format!("k{i}"), &format!("v{i}")]),
            "+OK\r\n"
        );
    }
    c.words("SET ending x PXAT 99999999999999");
    let dir = server.stop();
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    assert_eq!(c.words("DBSIZE"), ":501\r\n");
    assert_eq!(c.words("GET k499"), "$4\r\nv499\r\n");
    assert_eq!(c.words("PEXPIRETIME ending"), ":99999999999999\r\n");
}

#[test]
fn flushed_keys_stay_removed_after_a_restart() {
    let server = TestServer::start("flush", |_| {});
    let mut c = server.client();
    for i in 0..100 {
        c.call(&["SET", &format!("k{i}"), "v"]);
    }
    // All is one pipeline: keys before the flush are removed, keys behind it stay.
    c.send(b"SET before 1\r\nFLUSHALL\r\nSET after 1\r\nDBSIZE\r\nFLUSHDB\r\nSET last 1\r\n");
    for reply in [
        "+OK\r\n", "+OK\r\n", "+OK\r\n", ":1\r\n", "+OK\r\n", "+OK\r\n",
    ] {
        assert_eq!(c.reply().unwrap(), reply.as_bytes());
    }
    assert_eq!(c.words("KEYS *"), "*1\r\n$4\r\nlast\r\n");
    let dir = server.stop();
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    assert_eq!(c.words("KEYS *"), "*1\r\n$4\r\nlast\r\n");
    assert_eq!(c.words("SCAN 0"), "*2\r\n$1\r\n0\r\n*1\r\n$4\r\nlast\r\n");
}

#[test]
fn shutdown_commits_received_commands() {
    for policy in ["always", "never"] {
        let server = TestServer::start("shutdown", |o| {
            o.sync = basalt_server::SyncPolicy::parse(policy).unwrap();
        });
        let mut c = server.client();
        let mut request = Vec::new();
        for i in 0..1_000 {
            request.extend(encode(&[b"SET", format!("k{i}").as_bytes(), b"v"]));
        }
        request.extend_from_slice(b"SHUTDOWN\r\n");
        c.send(&request);
        for _ in 0..1_000 {
            assert_eq!(c.reply().unwrap(), b"+OK\r\n");
        }
        assert!(c.is_closed());
        let dir = server.stop();
        let server = TestServer::start_in(dir, |_| {});
        assert_eq!(server.client().words("DBSIZE"), ":1000\r\n");
    }
}

/// Regression test: counts and listings of many clients used up the whole time for stopping, and no
/// client got the replies behind them.
#[test]
fn stopping_answers_all_received_requests() {
    const KEYS: usize = 20_000;
    const CLIENTS: usize = 100;
    for drain in [0, 60] {
        let server = TestServer::start("stop", |o| {
            o.drain = std::time::Duration::from_secs(drain);
        });
        let mut c = server.client();
        for i in 0..KEYS {
            c.send(&encode(&[b"SET", format!("k{i}").as_bytes(), b"v"]));
        }
        for _ in 0..KEYS {
            assert_eq!(c.reply().unwrap(), b"+OK\r\n");
        }
        drop(c);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
        for (i, c) in clients.iter_mut().enumerate() {
            let requests = format!("PING\r\nDBSIZE\r\nSET new{i} v\r\nKEYS *\r\nRANDOMKEY\r\n");
            c.send(requests.as_bytes());
        }
        for c in &mut clients {
            // The requests came in one piece, so the others were read with the first.
            assert_eq!(c.reply().unwrap(), b"+PONG\r\n");
        }
        let readers: Vec<_> = clients
            .into_iter()
            .map(|mut c| {
                spawn(move || {
                    let replies: Vec<_> = std::iter::from_fn(|| c.reply()).collect();
                    replies.iter().map(|r| r[0] as char).collect::<String>()
                })
            })
            .collect();
        let dir = server.stop();
        for r in readers {
            let kinds = r.join().unwrap();
            let without_time = drain == 0 && ["-+-$", ":+-$", "-+*$"].contains(&&*kinds);
            assert!(kinds == ":+*$" || without_time, "{kinds}");
        }
        let server = TestServer::start_in(dir, |_| {});
        let keys = format!(":{}\r\n", KEYS + CLIENTS);
        assert_eq!(server.client().words("DBSIZE"), keys);
    }
}

#[test]
fn an_address_in_use_or_public_is_refused_in_one_sentence() {
    let server = TestServer::start("address", |_| {});
    let env = EnvBuilder::new(HostFs::new(HostOptions::new(&server.dir)).unwrap()).build();
    let bind = |listen: &str, unprotected| {
        let options = ServerOptions {
            dir: "other".into(),
            listen: listen.parse().unwrap(),
            unprotected,
            ..ServerOptions::default()
        };
        Server::bind(&env, options).map(|s| s.local_addr())
    };
    let e = bind(&server.address.to_string(), false)
        .unwrap_err()
        .to_string();
    assert!(e.contains("is in use") && e.contains("--listen"), "{e}");
    let e = bind("0.0.0.0:0", false).unwrap_err().to_string();
    assert!(
        e.contains("no password") && e.contains("--unprotected"),
        "{e}"
    );
    assert!(bind("0.0.0.0:0", true).is_ok());
    // A store has one server at a time.
    let options = ServerOptions {
        dir: "store".into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    assert!(Server::bind(&env, options).is_err());
}
