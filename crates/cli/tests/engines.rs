//! `--engine tree`: a store in pages, made by the tools and by the server, and opened again by all
//! of them without the flag.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Scratch, Server, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const NONE: [&str; 0] = [];

/// Values of two sizes. By default, the larger ones are in blob files.
fn lines() -> String {
    lines_with(6000)
}

/// Returns 300 lines. Every third value has this size.
fn lines_with(large: usize) -> String {
    let line = |i: usize| {
        let bytes = if i.is_multiple_of(3) { large } else { 20 };
        format!("k{i:04}\t{}\n", "v".repeat(bytes))
    };
    (0..300).map(line).collect()
}

/// Returns the paths of the store's files with this extension.
fn files_with(s: &Scratch, extension: &str) -> Vec<PathBuf> {
    let names = harness::tree(&s.path("db"))
        .into_iter()
        .map(|(name, _)| name);
    let wanted = names.filter(|name| name.extension().is_some_and(|e| e == extension));
    wanted.map(|name| s.path("db").join(name)).collect()
}

/// Checks that a store is in pages: there is a tree, and no table.
fn expect_pages(s: &Scratch) {
    assert!(s.path("db/pages").exists(), "there is no tree");
    assert!(files_with(s, "tbl").is_empty(), "there are tables");
}

/// Returns the report of `blob list`.
fn blob_list(s: &Scratch) -> serde_json::Value {
    json(s.run_plain(["blob", "list", "--dir", "db", "--json"]))
}

/// Returns the number of values in blob files.
fn separated(s: &Scratch) -> u64 {
    figure(&blob_list(s), "/live_records")
}

#[test]
fn a_store_in_pages_is_opened_by_every_tool_without_the_flag() {
    let s = Scratch::new("tree");
    s.run("put", ["--engine", "tree", "first", "1"]).ok();
    let text = lines();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    expect_pages(&s);
    assert_eq!(separated(&s), 100, "{:#}", blob_list(&s));
    assert_eq!(s.run("get", ["first"]).ok(), b"1");
    assert_eq!(s.run("get", ["k0003"]).ok(), [b'v'; 6000]);
    assert_eq!(s.scan(), format!("first\t1\n{text}"));
    assert_eq!(s.run("del", ["k0000", "first", "never"]).ok(), b"2\n");
    // A family that is made later has the engine of the store.
    s.run("put", ["--family", "raw", "a", &"x".repeat(5000)])
        .ok();
    assert_eq!(s.run("get", ["--family", "raw", "a"]).ok(), [b'x'; 5000]);
    s.run("compact", NONE).ok();
    expect_pages(&s);
    // One value was deleted.
    assert_eq!(separated(&s), 100, "{:#}", blob_list(&s));
    let files = blob_list(&s)["files"].to_string();
    assert!(files.contains("\"name\":\"raw\""), "{files}");
    let exported = s.run("export", ["--format", "tsv"]).ok();
    let rest = text.split_once('\n').expect("a line").1;
    assert_eq!(exported, rest.as_bytes());
    assert_eq!(s.run("check", NONE).code, Some(0));
    json(s.run("stats", ["--json"]));
    let copy = s.path("copy");
    s.run("checkpoint", [copy.as_os_str()]).ok();
    std::fs::rename(s.path("db"), s.path("original")).unwrap();
    std::fs::rename(&copy, s.path("db")).unwrap();
    assert_eq!(s.run("check", NONE).code, Some(0));
    assert_eq!(s.scan(), rest);
    assert_eq!(s.run("repair", ["--yes"]).code, Some(0));
    assert_eq!(s.scan(), rest);
}

#[test]
fn files_are_loaded_into_pages_and_exported() {
    let s = Scratch::new("tree-files");
    for n in 0..20 {
        s.file(format!("in/{n:02}"), vec![n; 700 * usize::from(n)]);
    }
    let load = ["--engine", "tree", "--compression", "zstd", "--files", "in"];
    s.run("load", load).ok();
    expect_pages(&s);
    s.run("export", ["--files", "out"]).ok();
    assert_eq!(harness::tree(&s.path("out")), harness::tree(&s.path("in")));
    assert_eq!(s.run("check", NONE).code, Some(0));
}

/// Makes a store in pages with 100 values of 2000 bytes, which are in blob files from 1K on.
fn separated_store(name: &str) -> (Scratch, String) {
    let s = Scratch::new(name);
    let text = lines_with(2000);
    let load = [
        "--engine",
        "tree",
        "--min-blob-size",
        "1K",
        "--format",
        "tsv",
    ];
    s.run_with("load", load, text.as_bytes()).ok();
    (s, text)
}

#[test]
fn large_values_of_pages_are_in_blob_files_from_the_size_of_the_flag() {
    let (s, text) = separated_store("tree-blobs");
    expect_pages(&s);
    let listed = blob_list(&s);
    assert_eq!(separated(&s), 100, "{listed:#}");
    assert!(
        listed["files"]
            .to_string()
            .contains("\"name\":\"redis.keys\"")
    );
    let on_disk = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    let bytes: u64 = files_with(&s, "blob").iter().map(on_disk).sum();
    assert!(bytes > 100 * 2000, "{bytes} bytes of blob files");
    let stats = json(s.run("stats", ["--json"]));
    assert_eq!(figure(&stats, "/blobs/live_records"), 100, "{stats:#}");
    assert_eq!(figure(&stats, "/blobs/bytes"), bytes, "{stats:#}");
    assert!(figure(&stats, "/page_bytes") < bytes, "{stats:#}");
    // Each command that writes decides for its own values.
    s.run("put", ["by-default", &"d".repeat(2000)]).ok();
    assert_eq!(separated(&s), 100);
    s.run("put", ["larger", &"l".repeat(5000)]).ok();
    assert_eq!(separated(&s), 101);
    let none = ["--min-blob-size", "0", "--format", "tsv"];
    let line = format!("none\t{}\n", "n".repeat(9000));
    s.run_with("load", none, line.as_bytes()).ok();
    assert_eq!(separated(&s), 101);
    assert_eq!(s.run("get", ["by-default"]).ok(), [b'd'; 2000]);
    assert_eq!(s.run("get", ["larger"]).ok(), [b'l'; 5000]);
    assert_eq!(s.run("get", ["none"]).ok(), [b'n'; 9000]);
    assert_eq!(s.run("get", ["k0003"]).ok(), [b'v'; 2000]);
    s.run("del", ["by-default", "larger", "none"]).ok();
    // New values of 30 keys. A compaction drops the references to the old ones.
    let newer: String = (0..30)
        .map(|i| format!("k{:04}\t{}\n", 3 * i, "w".repeat(1500)))
        .collect();
    let load = ["--min-blob-size", "1K", "--format", "tsv"];
    s.run_with("load", load, newer.as_bytes()).ok();
    s.run("compact", ["--min-blob-size", "1K"]).ok();
    assert_eq!(separated(&s), 100, "{:#}", blob_list(&s));
    let mut expected: BTreeMap<&str, &str> = BTreeMap::new();
    let both = text.lines().chain(newer.lines());
    expected.extend(both.filter_map(|line| line.split_once('\t')));
    let expected: String = (expected.iter())
        .map(|(key, value)| format!("{key}\t{value}\n"))
        .collect();
    assert_eq!(s.scan(), expected);
    s.run_plain(["blob", "verify", "--dir", "db"]).ok();
    assert_eq!(s.run("check", NONE).code, Some(0));
    s.run("repair", ["--yes"]).ok();
    assert_eq!(s.scan(), expected);
    assert_eq!(separated(&s), 100, "{:#}", blob_list(&s));
    assert_eq!(s.run("check", NONE).code, Some(0));
}

/// A damaged value costs this value, and no page.
#[test]
fn a_damaged_value_of_pages_is_found_and_alone_lost() {
    let (s, text) = separated_store("tree-blob-damage");
    let path = files_with(&s, "blob").remove(0);
    let mut content = std::fs::read(&path).unwrap();
    let middle = content.windows(2000).position(|w| w == [b'v'; 2000]);
    content[middle.expect("a value") + 1000] ^= 1;
    std::fs::write(&path, content).unwrap();
    let found = s.run("check", NONE);
    assert_eq!(found.code, Some(1), "{found:?}");
    assert!(found.text().contains(".blob"), "{found:?}");
    let repaired = s.run("repair", ["--yes"]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    assert_eq!(s.run("check", NONE).code, Some(0));
    assert_eq!(separated(&s), 99, "{:#}", blob_list(&s));
    let left = s.scan();
    assert_eq!(left.lines().count(), 299);
    let known: BTreeSet<&str> = text.lines().collect();
    assert!(left.lines().all(|line| known.contains(line)));
}

#[test]
fn the_engine_of_an_existing_store_stays() {
    let s = Scratch::new("tree-refused");
    s.run_with("load", ["--engine", "tree", "--min-blob-size", "0"], b"")
        .ok();
    expect_pages(&s);
    s.run("put", ["--engine", "lsm", "k", "v"]).fails(
        2,
        &["the store in db is kept in pages", "leave --engine lsm out"],
    );
    s.run("put", ["k", "v"]).ok();
    expect_pages(&s);
    let s = Scratch::new("tree-on-lsm");
    s.run("put", ["k", "v"]).ok();
    s.run("put", ["--engine", "tree", "k", "w"])
        .fails(2, &["kept in levels of tables", "leave --engine tree out"]);
    s.run("serve", ["--engine", "tree", "--port", "0"])
        .fails(2, &["kept in levels of tables", "leave --engine tree out"]);
    assert_eq!(s.run("get", ["k"]).ok(), b"v");
}

#[test]
fn the_server_works_over_pages() {
    let s = Scratch::new("tree-served");
    let large = "x".repeat(9000);
    let server = Server::start(&s, &["--engine", "tree"]);
    assert_eq!(server.reply(&["SET", "a", "1"]), "+OK\r\n");
    assert_eq!(server.reply(&["SET", "large", &large]), "+OK\r\n");
    assert_eq!(server.reply(&["SET", "gone", "2"]), "+OK\r\n");
    assert_eq!(server.reply(&["INCR", "a"]), ":2\r\n");
    assert_eq!(server.reply(&["DEL", "gone", "never"]), ":1\r\n");
    assert_eq!(server.reply(&["EXPIRE", "a", "1000"]), ":1\r\n");
    assert_eq!(
        server.reply(&["XADD", "events", "1-1", "f", "v"]),
        "$3\r\n1-1\r\n"
    );
    let info = server.reply(&["INFO"]);
    for part in [
        "basalt_engine:tree\r\n",
        "redis_keys_pages:",
        "redis_keys_page_extents:",
        "redis_keys_page_writes:",
    ] {
        assert!(info.contains(part), "{part} is not in {info}");
    }
    server.stop();
    expect_pages(&s);
    assert_eq!(separated(&s), 1);
    let server = Server::start(&s, &[]);
    let info = server.reply(&["INFO", "basalt"]);
    assert!(info.contains("blob_files:1\r\n"), "{info}");
    assert_eq!(server.reply(&["GET", "a"]), "$1\r\n2\r\n");
    assert_eq!(server.reply(&["GET", "gone"]), "$-1\r\n");
    assert_eq!(server.reply(&["STRLEN", "large"]), ":9000\r\n");
    let left = server.reply(&["TTL", "a"]);
    let seconds: u64 = left[1..].trim_end().parse().unwrap();
    assert!((1..=1000).contains(&seconds), "{left}");
    assert_eq!(server.reply(&["XLEN", "events"]), ":1\r\n");
    assert_eq!(server.reply(&["FLUSHALL"]), "+OK\r\n");
    assert_eq!(server.reply(&["SET", "new", "n"]), "+OK\r\n");
    server.stop();
    assert_eq!(s.scan(), "new\tn\n");
    s.run("compact", NONE).ok();
    assert_eq!(s.run("check", NONE).code, Some(0));
}

/// Returns a number of a JSON object by the names that lead to it.
fn figure(of: &serde_json::Value, path: &str) -> u64 {
    let found = of.pointer(path).and_then(serde_json::Value::as_u64);
    found.unwrap_or_else(|| panic!("{path} is not a number in {of:#}"))
}

/// Returns the bytes of all extents on the disk.
fn extent_bytes(s: &Scratch, dir: &str) -> u64 {
    let files = harness::tree(&s.path(dir)).into_iter();
    let extents = files.filter(|(name, _)| name.extension().is_some_and(|e| e == "extent"));
    extents.map(|(_, content)| content.len() as u64).sum()
}

#[test]
fn reports_count_pages_as_they_count_tables() {
    let s = Scratch::new("tree-figures");
    let text = lines();
    // With the large values in pages, there are several leaves.
    let load = [
        "--engine",
        "tree",
        "--min-blob-size",
        "0",
        "--format",
        "tsv",
    ];
    s.run_with("load", load, text.as_bytes()).ok();
    for key in ["k0001", "k0200"] {
        s.run("put", [key, "newer"]).ok();
    }
    let stats = json(s.run("stats", ["--json"]));
    let families = stats["families"].as_array().expect("a list");
    let named = |name: &str| families.iter().find(|f| f["name"] == name).unwrap();
    let keys = &named("redis.keys")["pages"];
    assert!(figure(keys, "/leaves") > 3, "{keys:#}");
    // Each put was flushed when its command ended.
    assert_eq!(figure(keys, "/delta_pages"), 2, "{keys:#}");
    assert_eq!(figure(keys, "/leaves_with_deltas"), 2, "{keys:#}");
    assert_eq!(figure(keys, "/longest_chain"), 1, "{keys:#}");
    assert!(figure(keys, "/base_bytes") > 0 && figure(keys, "/delta_bytes") > 0);
    let disk = extent_bytes(&s, "db");
    assert_eq!(figure(&stats, "/page_bytes"), disk);
    let amp = stats["amplification"]["space"].as_f64().expect("a number");
    assert!((1.0..10.0).contains(&amp), "{amp}");
    let shown = s.run("stats", NONE).ok();
    let shown = String::from_utf8(shown).unwrap();
    for part in [
        "family redis.keys, in pages, 1 level of index pages",
        "leaves / with delta pages",
        "page mapping table",
        "since the last system checkpoint",
        "space amplification, at most",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    assert!(
        !shown.contains("L0"),
        "levels of a family in pages\n{shown}"
    );
    let metrics = String::from_utf8(s.run("stats", ["--prometheus"]).ok()).unwrap();
    assert_eq!(figure(keys, "/since_open/failed_releases"), 0, "{keys:#}");
    for name in [
        "base_bytes",
        "delta_bytes",
        "longest_chain",
        "debt_percent",
        "failed_releases_total",
    ] {
        let name = format!("basalt_pages_{name}{{");
        let lines = metrics.lines().filter(|line| line.starts_with(&name));
        assert!(
            lines
                .clone()
                .any(|line| line.contains("family=\"redis.keys\"")),
            "{name} is not in\n{metrics}"
        );
    }
    // 300 entries in base pages, 2 newer ones, and those of the server.
    let checked = json(s.run("check", ["--json"]));
    let entries = figure(&checked, "/entries");
    assert!((302..320).contains(&entries), "{checked:#}");
    assert!(figure(&checked, "/bytes") >= disk);
    let report = json(s.run("compact", ["--json"]));
    // Garbage may be collected before the report begins.
    assert!(figure(&report, "/page_bytes_before") > 0, "{report:#}");
    assert!(figure(&report, "/page_bytes_written") > 0, "{report:#}");
    assert!(figure(&report, "/delta_bytes_before") > 0, "{report:#}");
    assert_eq!(figure(&report, "/delta_bytes_after"), 0, "{report:#}");
    let said = String::from_utf8(s.run("compact", NONE).ok()).unwrap();
    assert!(
        said.contains("of pages written; delta pages had 0 B, now 0 B")
            && !said.contains("tables had"),
        "{said}"
    );
    let copied = json(s.run("checkpoint", ["--json", "copy"]));
    assert!(figure(&copied, "/page_families") >= 2, "{copied:#}");
    let pages = harness::tree(&s.path("copy/pages"));
    let of_families = pages
        .iter()
        .filter(|(_, content)| !content.is_empty())
        .count();
    assert!(figure(&copied, "/page_files") > 0 && of_families > 0);
    assert!(
        figure(&copied, "/page_bytes") >= extent_bytes(&s, "copy"),
        "{copied:#}"
    );
    let said = String::from_utf8(s.run("checkpoint", ["second"]).ok()).unwrap();
    assert!(said.contains(" of pages of "), "{said}");
}
