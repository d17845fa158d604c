//! Values of a hundred kilobytes: they live in blob files, every command reads them whole, and
//! their space is reclaimed.

use crate::client::{Client, TestServer, encode};
use basalt::TreeOptions;
use basalt::env::Clock;
use basalt_server::ServerOptions;
use std::time::Duration;

const LEN: usize = 100 << 10;

fn value(n: usize) -> String {
    let mut v = format!("{n}-").repeat(LEN / 2);
    v.truncate(LEN);
    v
}

fn bulk(v: &str) -> String {
    format!("${}\r\n{v}\r\n", v.len())
}

/// Returns a field of INFO.
fn info(c: &mut Client, name: &str) -> u64 {
    let text = c.words("INFO basalt");
    let field = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let field = field.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    field.parse().unwrap()
}

/// Waits for background work. The timeout of the test's client ends the wait if the work never
/// ends.
fn until(mut done: impl FnMut() -> bool) {
    let clock = Clock::system();
    for _ in 0..6000 {
        if done() {
            return;
        }
        clock.sleep(Duration::from_millis(10));
    }
    panic!("it did not come to that");
}

/// Returns options with a small write buffer, for a store in pages or in levels.
fn small_buffer(in_pages: bool) -> impl Fn(&mut ServerOptions) {
    move |o| {
        o.engine.write_buffer_bytes = 1 << 20;
        o.engine.default_family.pages = in_pages.then(TreeOptions::default);
    }
}

#[test]
fn every_command_works_on_values_in_blob_files() {
    every_command_works("large", false);
}

#[test]
fn every_command_works_on_values_of_pages_in_blob_files() {
    every_command_works("large-pages", true);
}

fn every_command_works(name: &str, in_pages: bool) {
    let server = TestServer::start(name, small_buffer(in_pages));
    let mut c = server.client();
    let keys = 40;
    for n in 0..keys {
        assert_eq!(c.call(&["SET", &format!("k{n}"), &value(n)]), "+OK\r\n");
        assert_eq!(c.call(&["SET", &format!("small{n}"), "v"]), "+OK\r\n");
    }
    until(|| info(&mut c, "blob_files") > 0);
    let expect = |c: &mut Client| {
        for n in 2..keys {
            assert_eq!(c.call(&["GET", &format!("k{n}")]), bulk(&value(n)));
        }
        let whole = value(0) + "tail";
        assert_eq!(c.words("GET k0"), bulk(&whole));
        assert_eq!(c.words("STRLEN k0"), format!(":{}\r\n", LEN + 4));
        assert_eq!(c.words("GETRANGE k0 102398 -1"), bulk(&whole[102_398..]));
        assert_eq!(
            c.words("GETRANGE k7 50000 50009"),
            bulk(&value(7)[50_000..50_010])
        );
        assert_eq!(c.words("GET k1"), "$-1\r\n");
        assert_eq!(c.words("EXISTS k1 k2 k3"), ":2\r\n");
        assert_eq!(c.words("TYPE k2"), "+string\r\n");
        assert_eq!(c.words("DBSIZE"), format!(":{}\r\n", 2 * keys - 1));
        let all = c.words("SCAN 0 COUNT 1000 TYPE string");
        assert_eq!(all.matches("\r\nk").count(), keys - 1);
        let many = c.words("MGET k2 small3 k1 k39");
        assert_eq!(
            many,
            format!(
                "*4\r\n{}$1\r\nv\r\n$-1\r\n{}",
                bulk(&value(2)),
                bulk(&value(39))
            )
        );
    };
    assert_eq!(
        c.call(&["APPEND", "k0", "tail"]),
        format!(":{}\r\n", LEN + 4)
    );
    assert_eq!(c.words("DEL k1"), ":1\r\n");
    expect(&mut c);
    assert_eq!(c.words("PEXPIRE k39 99999999"), ":1\r\n");
    let dir = server.stop();
    let server = TestServer::start_in(dir, small_buffer(in_pages));
    let mut c = server.client();
    expect(&mut c);
    assert_ne!(c.words("PTTL k39"), ":-1\r\n");
    assert!(info(&mut c, "blob_live_bytes") > ((keys - 3) * LEN) as u64);
    let metrics = c.words("BASALT METRICS");
    let parts: &[&str] = match in_pages {
        true => &["basalt_pages_base_bytes{", "basalt_pages_delta_bytes{"],
        false => &["basalt_level_bytes{"],
    };
    let keys_bytes = (metrics.lines())
        .filter(|l| parts.iter().any(|part| l.starts_with(part)))
        .map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum::<u64>();
    assert!(
        (1..LEN as u64).contains(&keys_bytes),
        "{keys_bytes} bytes without the values"
    );
    // A pipeline of values is written, and then all are flushed: the space is reclaimed without a
    // restart.
    let mut request = Vec::new();
    for n in 0..20 {
        request.extend(encode(&[b"GET", format!("k{}", n % 5 + 2).as_bytes()]));
    }
    c.send(&request);
    for n in 0..20 {
        assert_eq!(c.reply().unwrap(), bulk(&value(n % 5 + 2)).as_bytes());
    }
    let (hits, reads) = (
        info(&mut c, "blob_value_hits"),
        info(&mut c, "blob_value_reads"),
    );
    assert!(
        hits >= 15 && reads >= (keys - 2) as u64,
        "{hits} hits, {reads} reads"
    );
    assert_eq!(c.words("FLUSHALL"), "+OK\r\n");
    until(|| info(&mut c, "blob_files") == 0);
}

/// The first server of a new directory makes its families with the same options with which later
/// ones open them.
#[test]
fn a_new_store_gives_flushed_space_back_without_a_restart() {
    flushed_space_returns("new", false);
}

#[test]
fn a_new_store_in_pages_gives_flushed_space_back_without_a_restart() {
    flushed_space_returns("new-pages", true);
}

fn flushed_space_returns(name: &str, in_pages: bool) {
    let server = TestServer::start(name, small_buffer(in_pages));
    let mut c = server.client();
    for n in 0..30 {
        assert_eq!(c.call(&["SET", &format!("k{n}"), &value(n)]), "+OK\r\n");
    }
    until(|| info(&mut c, "blob_files") > 0);
    assert_eq!(c.words("FLUSHALL"), "+OK\r\n");
    until(|| info(&mut c, "blob_files") == 0);
}

#[test]
fn separation_can_be_turned_off_and_on_over_one_store() {
    separation_can_be_turned_off_and_on("off", false);
}

#[test]
fn separation_can_be_turned_off_and_on_over_one_store_in_pages() {
    separation_can_be_turned_off_and_on("off-pages", true);
}

fn separation_can_be_turned_off_and_on(name: &str, in_pages: bool) {
    let mut server = TestServer::start(name, |o| {
        o.engine.default_family.pages = in_pages.then(TreeOptions::default);
        o.engine.default_family.min_blob_size = None;
    });
    for least in [Some(4096), None, Some(1000), Some(1)] {
        let mut c = server.client();
        for n in 0..8 {
            let key = format!("{least:?}-{n}");
            assert_eq!(c.call(&["SET", &key, &value(n)]), "+OK\r\n");
        }
        let dir = server.stop();
        server = TestServer::start_in(dir, |o| o.engine.default_family.min_blob_size = least);
    }
    let mut c = server.client();
    for least in [Some(4096), None, Some(1000), Some(1)] {
        for n in 0..8 {
            assert_eq!(c.call(&["GET", &format!("{least:?}-{n}")]), bulk(&value(n)));
        }
    }
    // These values were written while separation was on.
    assert!(info(&mut c, "blob_files") > 0);
}
