//! The cost of one request: metadata reads no value, a range keeps no value in memory, and a
//! request with many names lets other clients have their turns. All tests use counters, and none
//! uses time.

use crate::client::{Client, TestServer, encode};

const LEN: usize = 1 << 20;

/// Returns a number of INFO's section `Basalt`, before a comma if it has several parts.
fn info(c: &mut Client, name: &str) -> u64 {
    let text = c.words("INFO basalt");
    let field = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let field = field.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    let digits = field.trim_start_matches("used=").split(',').next();
    digits.unwrap().parse().unwrap()
}

fn set(c: &mut Client, key: &str, value: &[u8], more: &[&str]) {
    let mut args = vec![b"SET".as_slice(), key.as_bytes(), value];
    args.extend(more.iter().map(|m| m.as_bytes()));
    c.send(&encode(&args));
    assert_eq!(c.reply().unwrap(), b"+OK\r\n");
}

/// Returns a server whose values lie in blob files and are in no cache.
fn reopened(name: &str, keys: usize, len: usize) -> TestServer {
    let server = TestServer::start(name, |_| {});
    let mut c = server.client();
    for n in 0..keys {
        let value = vec![b'a' + n as u8 % 26; len];
        set(&mut c, &format!("k{n}"), &value, &[]);
    }
    TestServer::start_in(server.stop(), |_| {})
}

/// Regression test: one small request about a large value read the whole value. A hundred STRLEN of
/// 32 MiB made all other clients wait for 17 seconds.
#[test]
fn requests_about_a_value_do_not_read_it() {
    let server = reopened("metadata", 12, LEN);
    let mut c = server.client();
    let before = info(&mut c, "blob_value_reads");
    assert_eq!(c.words("EXISTS k0 k1 k2 k2 never"), ":4\r\n");
    assert_eq!(c.words("TOUCH k0 k1"), ":2\r\n");
    assert_eq!(c.words("TYPE k3"), "+string\r\n");
    assert_eq!(c.words("TTL k3"), ":-1\r\n");
    assert_eq!(c.words("PEXPIRETIME k3"), ":-1\r\n");
    assert_eq!(c.words("PERSIST k3"), ":0\r\n");
    assert_eq!(c.words("EXPIRE k3 100 XX"), ":0\r\n");
    assert_eq!(c.words("OBJECT ENCODING k3"), "$3\r\nraw\r\n");
    assert_eq!(c.words("OBJECT REFCOUNT k3"), ":1\r\n");
    assert_eq!(c.words("SET k3 x NX"), "$-1\r\n");
    assert_eq!(c.words("SETNX k3 x"), ":0\r\n");
    assert_eq!(c.words("MSETNX k3 x k4 y"), ":0\r\n");
    let refused = "-ERR value is not an integer or out of range\r\n";
    assert_eq!(c.words("INCR k3"), refused);
    assert_eq!(c.words("SET k4 new XX"), "+OK\r\n");
    assert_eq!(c.words("SET k5 new KEEPTTL"), "+OK\r\n");
    assert_eq!(c.words("EXPIRE k6 0"), ":1\r\n");
    assert_eq!(c.words("DEL k7 k8 never"), ":2\r\n");
    assert_eq!(c.words("EXISTS k6 k7 k8"), ":0\r\n");
    for _ in 0..100 {
        assert_eq!(c.words("STRLEN k9"), format!(":{LEN}\r\n"));
    }
    // The number is the key's size in a memtable.
    assert_eq!(
        c.words("MEMORY USAGE k9"),
        format!(":{}\r\n", 6 + 2 + LEN + 1 + 48)
    );
    assert_eq!(info(&mut c, "blob_value_reads"), before, "values read");
    assert!(info(&mut c, "blob_head_reads") > 0);
    // Reads of a value are still right.
    let whole = format!("${LEN}\r\n{}\r\n", "j".repeat(LEN));
    assert_eq!(c.words("GET k9"), whole);
    assert_eq!(info(&mut c, "blob_value_reads"), before + 1);
}

/// Regression test: a range of a value kept the value in memory until the client had taken the
/// range, and no client's account had the value. Two clients came to 2.1 GB with a budget of 512
/// MiB.
#[test]
fn a_range_reply_does_not_pin_its_value() {
    let (keys, len, part, times) = (40, 2 << 20, 16 << 10, 2000);
    let dir = reopened("ranges", keys, len).stop();
    // The cache has no room for any of them.
    let server = TestServer::start_with(dir, |fs| fs, |env| env.cache_bytes(1 << 20), |_| {});
    let mut c = server.client();
    let idle = info(&mut c, "budget_memory_bytes");
    // The client does not take the replies, which are longer than the sockets' buffers.
    let mut slow = server.client();
    assert_eq!(slow.words("CLIENT SETNAME slow"), "+OK\r\n");
    let mut request = Vec::new();
    for n in 0..times {
        let (key, end) = (format!("k{}", n % keys), (part - 1).to_string());
        request.extend(encode(&[b"GETRANGE", key.as_bytes(), b"0", end.as_bytes()]));
    }
    slow.send(&request);
    // The server goes on until 1 MiB of replies waits for the client.
    let waiting = |c: &mut Client| {
        let list = c.words("CLIENT LIST");
        let line = list.lines().find(|l| l.contains("name=slow")).unwrap();
        let field = line.split(' ').find_map(|f| f.strip_prefix("omem="));
        field.unwrap().parse::<usize>().unwrap()
    };
    while waiting(&mut c) < 1 << 20 {}
    let held = info(&mut c, "budget_memory_bytes") - idle;
    // The server holds the replies, the value that is being read, and the requests, but not one
    // value for each reply.
    assert!(held < 16 << 20, "{held} bytes");
    for n in 0..times {
        let reply = slow.reply().unwrap();
        assert_eq!(reply.len(), part + 2 + 8);
        let right = b'a' + (n % keys) as u8 % 26;
        assert!(reply[8..8 + part].iter().all(|b| *b == right), "{n}");
    }
}

/// Regression test: a request with many names held all other clients up until every name was looked
/// for. Another thread looks for them now, and the answer is that of one moment.
#[test]
fn a_request_with_many_names_is_consistent_and_in_pieces() {
    let server = TestServer::start("names", |_| {});
    let mut c = server.client();
    let names: Vec<String> = (0..5000).map(|n| format!("name{n}")).collect();
    let with = |first: &str| -> Vec<u8> {
        let mut args = vec![first.as_bytes()];
        args.extend(names.iter().map(|n| n.as_bytes()));
        encode(&args)
    };
    let mut all = vec![b"MSET".as_slice()];
    for n in &names[..4000] {
        all.extend([n.as_bytes(), n.as_bytes()]);
    }
    c.send(&encode(&all));
    assert_eq!(c.reply().unwrap(), b"+OK\r\n");
    let server = TestServer::start_in(server.stop(), |_| {});
    let mut c = server.client();
    let mut expected = String::from("*5000\r\n");
    for (n, name) in names.iter().enumerate() {
        match n < 4000 {
            true => expected += &format!("${}\r\n{name}\r\n", name.len()),
            false => expected += "$-1\r\n",
        }
    }
    for (command, reply) in [
        ("EXISTS", ":4000\r\n"),
        ("MGET", &expected[..]),
        ("DEL", ":4000\r\n"),
        ("EXISTS", ":0\r\n"),
    ] {
        c.send(&with(command));
        let got = c.reply().unwrap();
        assert!(got == reply.as_bytes(), "{command}: {} bytes", got.len());
    }
    // Hits and misses are counted once, for any number of runs of a command.
    let stats = c.words("INFO stats");
    assert!(stats.contains("keyspace_hits:8000\r\n"), "{stats}");
    assert!(stats.contains("keyspace_misses:7000\r\n"), "{stats}");
}
