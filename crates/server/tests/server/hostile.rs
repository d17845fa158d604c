//! Malicious and broken clients: the server answers with Redis's errors, bounds their cost, and
//! serves others.

use crate::client::{Client, TestServer, encode, fresh_dir, spawn};
use basalt::env::Random;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, When};
use std::time::Duration;

fn number(c: &mut Client, section: &str, name: &str) -> u64 {
    let info = c.call(&["INFO", section]);
    let line = info.lines().find(|l| l.starts_with(name)).unwrap();
    line.split(':').nth(1).unwrap().parse().unwrap()
}

fn memory(c: &mut Client) -> u64 {
    number(c, "memory", "mem_clients_peak:")
}

#[test]
fn protocol_errors_are_answered_and_close_the_connection() {
    let server = TestServer::start("protocol", |_| {});
    for (input, reply) in [
        (
            &b"*a\r\n"[..],
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*2000000\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            b"*1\r\n:1\r\n",
            "-ERR Protocol error: expected '$', got ':'\r\n",
        ),
        (
            b"*1\r\n$-5\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            b"get \"a\r\n",
            "-ERR Protocol error: unbalanced quotes in request\r\n",
        ),
        (
            b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$x\r\nPING\r\n",
            "+PONG\r\n+PONG\r\n-ERR Protocol error: invalid bulk length\r\n",
        ),
    ] {
        let mut c = server.client();
        c.send(input);
        for line in reply.split_inclusive("\r\n") {
            assert_eq!(String::from_utf8(c.reply().unwrap()).unwrap(), line);
        }
        assert!(c.is_closed());
    }
    let mut c = server.client();
    c.send(&vec![b'x'; 70_000]);
    assert_eq!(
        c.reply().unwrap(),
        b"-ERR Protocol error: too big inline request\r\n"
    );
    for http in ["POST / HTTP/1.1\r\n", "GET /\r\nHost: localhost\r\n"] {
        let mut c = server.client();
        c.send(format!("{http}\r\nSET hacked 1\r\n").as_bytes());
        while c.reply().is_some() {}
    }
    assert_eq!(server.client().words("EXISTS hacked"), ":0\r\n");
}

#[test]
fn announced_lengths_allocate_nothing() {
    let server = TestServer::start("announced", |_| {});
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    for c in &mut clients {
        c.send(b"*1000000\r\n$536870912\r\nabc");
    }
    assert!(memory(&mut server.client()) < 1 << 20);
}

#[test]
fn a_client_that_does_not_read_its_replies_is_not_read() {
    let server = TestServer::start("slow-reader", |_| {});
    let mut c = server.client();
    let value = vec![b'v'; 1 << 20];
    c.send(&encode(&[b"SET", b"k", &value]));
    assert_eq!(c.reply().unwrap(), b"+OK\r\n");
    // 300 MB of replies are in the queue, and none was read yet.
    c.send(&b"GET k\r\n".repeat(300));
    let mut other = server.client();
    for _ in 0..50 {
        assert_eq!(other.words("PING"), "+PONG\r\n");
    }
    let peak = memory(&mut other);
    assert!(
        peak < 16 << 20,
        "{peak} bytes for a client that does not read"
    );
    for _ in 0..300 {
        assert_eq!(c.reply().unwrap().len(), value.len() + 12);
    }
    assert_eq!(c.words("PING"), "+PONG\r\n");
}

/// Regression test: while a slow disk synced one epoch, eight more of 32 MiB each piled up behind
/// it.
#[test]
fn a_slow_disk_makes_writers_wait_instead_of_memory_grow() {
    const BOUND: u64 = 4 << 20;
    const VALUE: usize = 256 << 10;
    let slow = |fs| -> std::sync::Arc<dyn basalt::fs::FileSystem> {
        let faults = FaultFs::new(fs, 1);
        for op in [OpKind::SyncData, OpKind::SyncFiles, OpKind::SyncAll] {
            faults.inject(Fault {
                op: Some(op),
                path: ".log".into(),
                when: When::From(1),
                kind: FaultKind::Latency(Duration::from_millis(100)),
            });
        }
        faults
    };
    let server = TestServer::start_over(fresh_dir("slow-disk"), slow, |o| {
        o.pending_write_bytes = BOUND as usize;
    });
    let address = server.address;
    let writers: Vec<_> = (0..8u8)
        .map(|n| {
            spawn(move || {
                let mut c = Client::connect(address);
                let value = vec![n; VALUE];
                let mut all = Vec::new();
                for i in 0..16u8 {
                    all.extend(encode(&[b"SET", &[n, i], &value]));
                }
                c.send(&all);
                for _ in 0..16 {
                    assert_eq!(c.reply().unwrap(), b"+OK\r\n");
                }
            })
        })
        .collect();
    for w in writers {
        w.join().unwrap();
    }
    let mut c = server.client();
    let peak = number(&mut c, "memory", "mem_pending_writes_peak:");
    assert!(peak >= BOUND, "{peak} bytes: the disk was not slow");
    let most = BOUND + VALUE as u64 + 1024;
    assert!(peak <= most, "{peak} bytes of writes waited for the disk");
    assert_eq!(c.words("DBSIZE"), ":128\r\n");
}

#[test]
fn a_client_beyond_the_limit_gets_an_error() {
    let server = TestServer::start("flood", |o| o.max_clients = 20);
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for c in &mut clients {
        assert_eq!(c.words("PING"), "+PONG\r\n");
    }
    for _ in 0..100 {
        let mut c = server.client();
        assert_eq!(
            c.reply().unwrap(),
            b"-ERR max number of clients reached\r\n"
        );
        assert!(c.is_closed());
    }
    // When one client leaves, one may connect.
    assert_eq!(clients.pop().unwrap().words("QUIT"), "+OK\r\n");
    let mut tries = 0;
    loop {
        let mut c = server.client();
        c.send(b"PING\r\n");
        if c.reply().is_some_and(|r| r == b"+PONG\r\n") {
            break;
        }
        tries += 1;
        assert!(tries < 10_000);
    }
}

#[test]
fn the_client_with_most_memory_is_closed_over_the_limit() {
    let server = TestServer::start("evict", |o| o.client_memory_bytes = 4 << 20);
    let mut small = server.client();
    assert_eq!(small.words("PING"), "+PONG\r\n");
    let mut large = server.client();
    let _ = std::io::Write::write_all(
        &mut large.stream,
        &encode(&[b"SET", b"k", &vec![b'v'; 30 << 20]]),
    );
    assert!(large.is_closed());
    assert_eq!(small.words("EXISTS k"), ":0\r\n");
    assert!(small.words("INFO stats").contains("evicted_clients:1\r\n"));
}

#[test]
fn closed_connections_leave_no_resources() {
    let server = TestServer::start("churn", |_| {});
    for i in 0..500 {
        let mut c = server.client();
        match i % 4 {
            0 => assert_eq!(c.words("PING"), "+PONG\r\n"),
            1 => c.send(b"*3\r\n$3\r\nSET\r\n$1\r\n"),
            2 => c.send(b"INCR n\r\nDBSIZE\r\nKEYS *\r\n"),
            _ => {}
        }
    }
    let mut c = server.client();
    let mut other = server.client();
    let id = other.words("CLIENT ID");
    assert_eq!(c.call(&["CLIENT", "KILL", "ID", id[1..].trim()]), ":1\r\n");
    assert!(other.is_closed());
    // A half-closed connection still gets its replies.
    let mut half = server.client();
    half.send(b"SET a 1\r\nGET a\r\n");
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.reply().unwrap(), b"+OK\r\n");
    assert_eq!(half.reply().unwrap(), b"$1\r\n1\r\n");
    assert!(half.is_closed());
}

/// Damaged request streams come in random pieces: the server lives, and the data of other clients
/// is untouched.
#[test]
fn damaged_request_streams_harm_no_other_client() {
    let server = TestServer::start("mutator", |_| {});
    let mut witness = server.client();
    assert_eq!(witness.words("SET witness intact"), "+OK\r\n");
    let seed = std::env::var("BASALT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0xbad);
    let _repeat = basalt_sim::repeat!(
        damaged_request_streams_harm_no_other_client,
        "BASALT_SEED={seed}"
    );
    let random = Random::from_seed(seed);
    let corpus: [&[&[u8]]; 8] = [
        &[b"SET", b"a", b"1", b"EX", b"100"],
        &[b"MSET", b"a", b"1", b"b", b"2"],
        &[b"HELLO", b"3"],
        &[b"SCAN", b"0", b"MATCH", b"*[a-z", b"COUNT", b"100"],
        &[b"SETRANGE", b"c", b"100", b"x"],
        &[b"INCRBYFLOAT", b"f", b"0.1"],
        &[b"CLIENT", b"KILL", b"SKIPME", b"yes", b"ID", b"99999"],
        &[b"KEYS", b"w*"],
    ];
    for _ in 0..400 * basalt_sim::campaign::scale() {
        let mut input = Vec::new();
        for _ in 0..1 + random.below(6) {
            let request = encode(corpus[random.below(corpus.len() as u64) as usize]);
            input.extend_from_slice(&request);
        }
        for _ in 0..random.below(6) {
            let at = random.below(input.len() as u64) as usize;
            match random.below(4) {
                0 => input[at] = random.next_u64() as u8,
                1 => input.truncate(at + 1),
                2 => input.insert(at, b"\r\n$*-0123456789"[random.below(15) as usize]),
                _ => input[at] ^= 1 << random.below(8),
            }
        }
        let mut c = server.client();
        let mut rest = &input[..];
        while !rest.is_empty() {
            let n = (1 + random.below(40) as usize).min(rest.len());
            // The server may have closed the connection already.
            if std::io::Write::write_all(&mut c.stream, &rest[..n]).is_err() {
                break;
            }
            rest = &rest[n..];
        }
    }
    assert_eq!(witness.words("GET witness"), "$6\r\nintact\r\n");
}

/// Deleted keys stay in the store as tombstones for a while. SCAN and RANDOMKEY must not hold other
/// clients up for them.
#[test]
fn a_long_run_of_deleted_keys_blocks_no_client() {
    const KEYS: usize = 60_000;
    let server = TestServer::start("deleted", |_| {});
    let mut c = server.client();
    let name = |i: usize| format!("user:{i:06}");
    for part in 0..10 {
        let keys: Vec<String> = (0..KEYS / 10).map(|i| name(part * KEYS / 10 + i)).collect();
        let pairs = keys.iter().flat_map(|k| [k.as_bytes(), &b"v"[..]]);
        let mset: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(pairs).collect();
        let del = keys.iter().map(|k| k.as_bytes());
        let del: Vec<&[u8]> = [&b"DEL"[..]].into_iter().chain(del).collect();
        c.send(&encode(&mset));
        c.send(&encode(&del));
        assert_eq!(c.reply().unwrap(), b"+OK\r\n");
        assert_eq!(c.reply().unwrap(), b":6000\r\n");
    }
    assert_eq!(c.words("RANDOMKEY"), "$-1\r\n");
    assert_eq!(c.words("SET user:045000 v"), "+OK\r\n");
    let mut cursor = "0".to_string();
    let mut found = 0;
    let mut calls = 0;
    loop {
        let reply = c.call(&["SCAN", &cursor, "COUNT", "100000"]);
        calls += 1;
        found += reply.matches("user:045000").count();
        cursor = reply.split("\r\n").nth(2).unwrap().to_string();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, 1);
    assert!((6..60).contains(&calls), "{calls} calls");
    for _ in 0..20 {
        assert_eq!(c.words("RANDOMKEY"), "$11\r\nuser:045000\r\n");
    }
}

/// Regression test: a client that asks to stay and holds everything drove all the others out. They
/// were disconnected first, which freed no memory.
#[test]
fn a_no_evict_client_causes_no_other_disconnects() {
    let server = TestServer::start("stay", |o| o.client_memory_bytes = 4 << 20);
    let mut small = server.client();
    assert_eq!(small.words("PING"), "+PONG\r\n");
    let mut large = server.client();
    assert_eq!(large.words("CLIENT NO-EVICT ON"), "+OK\r\n");
    let _ = std::io::Write::write_all(
        &mut large.stream,
        &encode(&[b"SET", b"k", &vec![b'v'; 30 << 20]]),
    );
    assert!(large.is_closed());
    assert_eq!(small.words("PING"), "+PONG\r\n");
}

/// Regression test: the bound of all clients was 2 GiB for every memory budget. Within half of the
/// budget, a request that is too long gets an error, and others drive no client out.
#[test]
fn the_longest_value_fits_the_memory_of_all_clients() {
    // Bytes of an eighth of the engine's default budget of 512 MiB.
    const LONGEST: usize = 64 << 20;
    let server = TestServer::start("longest", |_| {});
    let mut c = server.client();
    let setting = |c: &mut Client, name: &str| c.call(&["CONFIG", "GET", name]);
    assert!(setting(&mut c, "maxmemory-clients").ends_with("\r\n268435456\r\n"));
    assert!(setting(&mut c, "proto-max-bulk-len").ends_with("\r\n67108864\r\n"));
    assert!(setting(&mut c, "client-query-buffer-limit").ends_with("\r\n100663296\r\n"));
    let mut large = server.client();
    large.send(&encode(&[b"SET", b"k", &vec![b'v'; LONGEST]]));
    assert_eq!(large.reply().unwrap(), b"+OK\r\n");
    assert_eq!(
        large.words("APPEND k v"),
        "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
    );
    large.send(b"GET k\r\n");
    assert_eq!(large.reply().unwrap().len(), LONGEST + 13);
    large.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", LONGEST + 1).as_bytes());
    assert_eq!(
        large.reply().unwrap(),
        b"-ERR Protocol error: invalid bulk length\r\n"
    );
    assert!(c.words("INFO stats").contains("evicted_clients:0\r\n"));
}
