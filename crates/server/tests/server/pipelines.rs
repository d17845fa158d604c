//! Many requests at once: pipelines, half requests, concurrent clients, and large values.

use crate::client::{TestServer, encode, spawn};
use basalt::env::Random;

#[test]
fn ten_thousand_commands_in_one_write_are_answered_in_order() {
    let server = TestServer::start("pipeline", |_| {});
    let mut c = server.client();
    let mut request = Vec::new();
    for i in 0..10_000 {
        match i % 4 {
            0 => request.extend(encode(&[b"SET", format!("k{i}").as_bytes(), b"v"])),
            1 => request.extend(encode(&[b"INCR", b"n"])),
            2 => request.extend(encode(&[b"GET", format!("k{}", i - 2).as_bytes()])),
            _ => request.extend(encode(&[b"APPEND", b"a", b"x"])),
        }
    }
    c.send(&request);
    for i in 0..10_000 {
        let expected = match i % 4 {
            0 => "+OK\r\n".to_string(),
            2 => "$1\r\nv\r\n".to_string(),
            _ => format!(":{}\r\n", i / 4 + 1),
        };
        assert_eq!(c.reply().unwrap(), expected.as_bytes(), "reply {i}");
    }
    assert_eq!(c.words("DBSIZE"), ":2502\r\n");
    let info = c.words("INFO");
    let number = |name: &str| -> u64 {
        let line = info.lines().find(|l| l.starts_with(name)).unwrap();
        line.split(':').nth(1).unwrap().parse().unwrap()
    };
    assert!(
        number("epochs:") < 1_000,
        "7500 writes took {} commits",
        number("epochs:")
    );
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let server = TestServer::start("pieces", |_| {});
    let random = Random::from_seed(7);
    let mut c = server.client();
    let value = vec![b'v'; 100_000];
    let mut request = encode(&[b"SET", b"k", &value]);
    request.extend(encode(&[b"STRLEN", b"k"]));
    request.extend_from_slice(b"GETRANGE k 0 2\r\n");
    let mut at = 0;
    while at < request.len() {
        let n = (1 + random.below(20_000) as usize).min(request.len() - at);
        c.send(&request[at..at + n]);
        at += n;
    }
    assert_eq!(c.reply().unwrap(), b"+OK\r\n");
    assert_eq!(c.reply().unwrap(), b":100000\r\n");
    assert_eq!(c.reply().unwrap(), b"$3\r\nvvv\r\n");
}

#[test]
fn clients_side_by_side_lose_no_increment() {
    let server = TestServer::start("counters", |_| {});
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let mut c = server.client();
            spawn(move || {
                let mut last = 0;
                for i in 0..200 {
                    // A request comes alone or in a pipeline.
                    let n = if i % 10 == 0 { 20 } else { 1 };
                    c.send(&encode(&[b"INCR", b"n"]).repeat(n));
                    for _ in 0..n {
                        let reply = String::from_utf8(c.reply().unwrap()).unwrap();
                        let now: u64 = reply[1..].trim().parse().unwrap();
                        assert!(now > last, "went from {last} to {now}");
                        last = now;
                    }
                    let key = format!("mine:{t}");
                    assert_eq!(c.call(&["SET", &key, &i.to_string()]), "+OK\r\n");
                    let got = c.call(&["GET", &key]);
                    assert!(got.ends_with(&format!("\r\n{i}\r\n")), "{got}");
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    let total = 8 * (180 + 20 * 20);
    assert_eq!(server.client().words("GET n"), format!("$4\r\n{total}\r\n"));
}

#[test]
fn multi_key_commands_are_atomic_for_everyone() {
    let server = TestServer::start("atomic", |_| {});
    let mut writer = server.client();
    writer.words("MSET a 0 b 0 c 0");
    let mut reader = server.client();
    let check = spawn(move || {
        for _ in 0..2_000 {
            let reply = reader.words("MGET a b c");
            let values: Vec<&str> = reply.split("\r\n").collect();
            assert!(values[2] == values[4] && values[4] == values[6], "{reply}");
        }
    });
    for i in 1..1_000 {
        let i = i.to_string();
        writer.call(&["MSET", "a", &i, "b", &i, "c", &i]);
    }
    check.join().unwrap();
}

#[test]
fn large_values_round_trip() {
    let server = TestServer::start("large", |_| {});
    let mut c = server.client();
    for len in [8_191, 8_192, 65_536, 1 << 20, (20 << 20) + 1] {
        let value: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        c.send(&encode(&[b"SET", b"k", &value]));
        assert_eq!(c.reply().unwrap(), b"+OK\r\n");
        c.send(&encode(&[b"GET", b"k"]));
        let head = format!("${len}\r\n");
        let reply = c.reply().unwrap();
        assert!(reply.starts_with(head.as_bytes()));
        assert!(
            reply[head.len()..reply.len() - 2] == value,
            "{len} bytes came back wrong"
        );
    }
}
