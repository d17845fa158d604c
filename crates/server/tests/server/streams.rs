//! Streams over TCP: restarts, entries that are not in memory, trims.

use crate::client::{TestServer, encode};

#[test]
fn streams_survive_a_restart() {
    const ENTRIES: u64 = 1_000;
    let mut server = TestServer::start("streams", |_| {});
    let dir = {
        let mut c = server.client();
        for i in 1..=ENTRIES {
            let (id, value) = (format!("{i}-0"), format!("v{i}"));
            c.send(&encode(&[
                b"XADD",
                b"s",
                id.as_bytes(),
                b"f",
                value.as_bytes(),
            ]));
        }
        for i in 1..=ENTRIES {
            let id = format!("{i}-0");
            let expected = format!("${}\r\n{id}\r\n", id.len());
            assert_eq!(c.reply().unwrap(), expected.as_bytes());
        }
        c.words("XADD gone 1-1 f v");
        assert_eq!(c.words("DEL gone"), ":1\r\n");
        c.words("XADD trimmed 1-1 f v");
        c.words("XADD trimmed MAXLEN 0 2-2 f v");
        server.stop()
    };
    for _ in 0..2 {
        server = TestServer::start_in(dir.clone(), |_| {});
        let mut c = server.client();
        assert_eq!(c.words("XLEN s"), format!(":{ENTRIES}\r\n"));
        assert_eq!(c.words("TYPE s"), "+stream\r\n");
        assert_eq!(c.words("EXISTS gone"), ":0\r\n");
        assert_eq!(c.words("XLEN trimmed"), ":0\r\n");
        let small =
            "-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n";
        assert_eq!(c.words("XADD trimmed 2-2 f v"), small);
        assert_eq!(c.words("XADD s 1000-0 f v"), small);
        let one = |i: u64| {
            let (id, v) = (format!("{i}-0"), format!("v{i}"));
            let (a, b) = (id.len(), v.len());
            format!("*2\r\n${a}\r\n{id}\r\n*2\r\n$1\r\nf\r\n${b}\r\n{v}\r\n")
        };
        // Entries at both ends, in the middle, and all of them.
        for (line, entries) in [
            ("XRANGE s - + COUNT 2", vec![1, 2]),
            ("XREVRANGE s + - COUNT 2", vec![1000, 999]),
            ("XRANGE s 500 501", vec![500, 501]),
            ("XRANGE s (500-0 (503-0", vec![501, 502]),
            ("XREVRANGE s 10 9", vec![10, 9]),
            ("XRANGE s 871 + COUNT 3", vec![871, 872, 873]),
            ("XRANGE s 1001 +", vec![]),
            ("XRANGE s 5 4", vec![]),
            ("XRANGE s - +", (1..=ENTRIES).collect()),
            ("XREVRANGE s + -", (1..=ENTRIES).rev().collect()),
        ] {
            let entries: Vec<u64> = entries;
            let body: String = entries.iter().map(|i| one(*i)).collect();
            let expected = format!("*{}\r\n{body}", entries.len());
            assert_eq!(c.words(line), expected, "{line}");
        }
        server.stop();
    }
}

/// The log of a stream with a bounded length does not grow.
#[test]
fn trimmed_entries_leave_the_log() {
    let server = TestServer::start("trims", |_| {});
    let mut c = server.client();
    for i in 1..=4_000u64 {
        let id = format!("{i}-0");
        c.send(&encode(&[
            b"XADD",
            b"s",
            b"MAXLEN",
            b"10",
            id.as_bytes(),
            b"f",
            b"v",
        ]));
    }
    for _ in 1..=4_000 {
        assert_eq!(c.reply().unwrap()[0], b'$');
    }
    assert_eq!(c.words("XLEN s"), ":10\r\n");
    let metrics = || {
        let mut c = server.client();
        let text = c.words("BASALT METRICS");
        let line = text.lines().find(|l| l.starts_with("basalt_log_records"));
        let line = line.expect("the log engine has metrics").to_string();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    while metrics() > 600 {
        basalt::env::Clock::system().sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(c.words("XRANGE s - + COUNT 1").matches("3991-0").count(), 1);
    let dir = server.stop();
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    assert_eq!(c.words("XLEN s"), ":10\r\n");
    assert_eq!(c.words("XRANGE s - + COUNT 1").matches("3991-0").count(), 1);
}

/// XREAD of several streams whose first entries are on the device only.
#[test]
fn several_streams_are_read_from_the_device() {
    const ENTRIES: u64 = 500;
    let server = TestServer::start("several-streams", |_| {});
    let mut c = server.client();
    let names = ["r", "s", "t"];
    for name in names {
        for i in 1..=ENTRIES {
            c.words(&format!("XADD {name} {i}-0 f v"));
        }
    }
    let dir = server.stop();
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    for (from, count, ids) in [
        (0, 2, ["1-0", "2-0"]),
        (200, 2, ["201-0", "202-0"]),
        (498, 5, ["499-0", "500-0"]),
    ] {
        let reply = c.words(&format!(
            "XREAD COUNT {count} STREAMS r s t {from} {from} {from}"
        ));
        let entries: String = ids
            .map(|id| {
                let len = id.len();
                format!("*2\r\n${len}\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n")
            })
            .concat();
        let expected = names.map(|name| format!("*2\r\n$1\r\n{name}\r\n*2\r\n{entries}"));
        assert_eq!(reply, format!("*3\r\n{}", expected.concat()));
    }
    // A blocked client is woken after its streams were loaded from the device.
    let mut waiting = server.client();
    waiting.send(&encode(&[
        b"XREAD", b"BLOCK", b"0", b"STREAMS", b"r", b"s", b"$", b"$",
    ]));
    while !c.words("INFO clients").contains("blocked_clients:1") {}
    c.words("XADD s 501-0 f v");
    let reply = String::from_utf8(waiting.reply().unwrap()).unwrap();
    assert!(
        reply.starts_with("*1\r\n*2\r\n$1\r\ns\r\n") && reply.contains("501-0"),
        "{reply}"
    );
}

/// Entries that are on the device only are deleted, delivered, read again and claimed, before and
/// after restarts.
#[test]
fn deleted_entries_and_groups_survive_a_restart() {
    const ENTRIES: u64 = 500;
    let mut server = TestServer::start("groups", |_| {});
    let mut c = server.client();
    for i in 1..=ENTRIES {
        c.words(&format!("XADD s {i}-0 f v{i}"));
    }
    let entry = |i: u64| {
        let (id, v) = (format!("{i}-0"), format!("v{i}"));
        let (a, b) = (id.len(), v.len());
        format!("*2\r\n${a}\r\n{id}\r\n*2\r\n$1\r\nf\r\n${b}\r\n{v}\r\n")
    };
    let gone = |i: u64| format!("*2\r\n${}\r\n{i}-0\r\n*-1\r\n", i.to_string().len() + 2);
    let of_s = |entries: &[String]| {
        let n = entries.len();
        format!("*1\r\n*2\r\n$1\r\ns\r\n*{n}\r\n{}", entries.concat())
    };
    assert_eq!(c.words("XGROUP CREATE s g 0"), "+OK\r\n");
    let dir = server.stop();
    server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    let first: Vec<String> = (1..=20).map(entry).collect();
    let read = "XREADGROUP GROUP g a COUNT 20 STREAMS s >";
    assert_eq!(c.words(read), of_s(&first));
    assert_eq!(c.words("XDEL s 1-0 5-0 6-0 5-0 777-0 30-0"), ":4\r\n");
    for _ in 0..2 {
        assert_eq!(c.words("XLEN s"), ":496\r\n");
        let history = [2, 3, 4, 5, 6, 7].map(|i| match i {
            5 | 6 => gone(i),
            i => entry(i),
        });
        let read = "XREADGROUP GROUP g a COUNT 6 STREAMS s 1";
        assert_eq!(c.words(read), of_s(&history));
        let around = [28, 29, 31, 32].map(entry).concat();
        assert_eq!(c.words("XRANGE s 28 32"), format!("*4\r\n{around}"));
        assert_eq!(c.words("XRANGE s 5 6"), "*0\r\n");
        drop(c);
        let dir = server.stop();
        server = TestServer::start_in(dir, |_| {});
        c = server.client();
    }
    // The ids of an undelivered entry, a pending entry, a deleted entry, and an entry that never
    // existed.
    let claim = "XCLAIM s g b 0 100-0 2-0 5-0 777-0 FORCE";
    let claimed = [entry(100), entry(2)].concat();
    assert_eq!(c.words(claim), format!("*2\r\n{claimed}"));
    let (next, rest) = ("$3\r\n7-0\r\n", [entry(2), entry(3), entry(4)].concat());
    assert_eq!(
        c.words("XAUTOCLAIM s g b 0 2 COUNT 4"),
        format!("*3\r\n{next}*3\r\n{rest}*1\r\n$3\r\n6-0\r\n")
    );
    assert_eq!(c.words("XACK s g 1-0 2-0 5-0"), ":2\r\n");
    let new: Vec<String> = (21..=30)
        .filter(|i| *i != 30)
        .chain([31])
        .map(entry)
        .collect();
    let read = "XREADGROUP GROUP g c COUNT 10 STREAMS s >";
    assert_eq!(c.words(read), of_s(&new));
    drop(c);
    let dir = server.stop();
    server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    let counts = ["a", "b", "c"]
        .into_iter()
        .zip([14, 3, 10])
        .map(|(name, n)| {
            let n = n.to_string();
            format!("*2\r\n$1\r\n{name}\r\n${}\r\n{n}\r\n", n.len())
        });
    let counts: String = counts.collect();
    let ends = "$3\r\n3-0\r\n$5\r\n100-0\r\n";
    assert_eq!(
        c.words("XPENDING s g"),
        format!("*4\r\n:27\r\n{ends}*3\r\n{counts}")
    );
    // The groups of a deleted stream are deleted, too. A new stream has none.
    assert_eq!(c.words("DEL s"), ":1\r\n");
    drop(c);
    let dir = server.stop();
    let server = TestServer::start_in(dir, |_| {});
    let mut c = server.client();
    c.words("XADD s 1-1 f v");
    assert_eq!(c.words("XINFO GROUPS s"), "*0\r\n");
}
