//! Stopping, starting again, and what must be there then.

use crate::client::{TestServer, encode};
use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};
use basalt_server::{Server, ServerOptions};

#[test]
fn everything_acknowledged_is_there_after_a_restart() {
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
fn flushed_keys_do_not_come_back() {
    let server = TestServer::start("flush", |_| {});
    let mut c = server.client();
    for i in 0..100 {
        c.call(&["SET", &format!("k{i}"), "v"]);
    }
    // All in one pipeline: what comes before is gone, what comes after stays.
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
fn shutdown_commits_what_has_arrived() {
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

#[test]
fn an_address_in_use_or_open_to_all_is_refused_in_one_sentence() {
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
    // And the store itself has one server at a time.
    let options = ServerOptions {
        dir: "store".into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    assert!(Server::bind(&env, options).is_err());
}
