//! `--engine tree`: a store in pages, made by the tools and by the server, and opened again by all
//! of them without the flag.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Scratch, Server, json};

const NONE: [&str; 0] = [];

/// Values of two sizes. Larger ones would be in blob files in a store of levels.
fn lines() -> String {
    (0..300)
        .map(|i| {
            format!(
                "k{i:04}\t{}\n",
                "v".repeat(if i % 3 == 0 { 6000 } else { 20 })
            )
        })
        .collect()
}

/// Checks that a store is in pages: there is a tree, and no table or blob file.
fn expect_pages(s: &Scratch) {
    let files = harness::tree(&s.path("db"));
    let has = |extension: &str| {
        let mut names = files.iter().map(|(name, _)| name);
        names.any(|name| name.extension().is_some_and(|e| e == extension))
    };
    assert!(s.path("db/pages").exists(), "there is no tree");
    assert!(!has("tbl") && !has("blob"), "there are tables");
}

#[test]
fn a_store_in_pages_is_opened_by_every_tool_without_the_flag() {
    let s = Scratch::new("tree");
    s.run("put", ["--engine", "tree", "first", "1"]).ok();
    let text = lines();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    expect_pages(&s);
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

#[test]
fn flags_that_exclude_each_other_are_refused() {
    let s = Scratch::new("tree-refused");
    let both = ["--engine", "tree", "--min-blob-size", "8K"];
    for command in ["load", "serve"] {
        s.run(command, both)
            .fails(2, &["--min-blob-size", "--engine tree"]);
    }
    assert!(!s.path("db").exists(), "a store was made");
    s.run_with("load", ["--engine", "tree", "--min-blob-size", "0"], b"")
        .ok();
    expect_pages(&s);
    s.run("compact", ["--min-blob-size", "8K"])
        .fails(2, &["kept in pages", "leave --min-blob-size out"]);
    s.run("serve", ["--min-blob-size", "4K", "--port", "0"])
        .fails(2, &["kept in pages", "leave --min-blob-size out"]);
    // The engine of an existing store stays, in both directions.
    s.run("put", ["--engine", "lsm", "k", "v"]).ok();
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
    let info = server.reply(&["INFO", "basalt"]);
    for part in [
        "redis_keys_pages:",
        "redis_keys_page_extents:",
        "redis_keys_page_writes:",
    ] {
        assert!(info.contains(part), "{part} is not in {info}");
    }
    server.stop();
    expect_pages(&s);
    let server = Server::start(&s, &[]);
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
    s.run_with(
        "load",
        ["--engine", "tree", "--format", "tsv"],
        text.as_bytes(),
    )
    .ok();
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
    for name in ["base_bytes", "delta_bytes", "longest_chain", "debt_percent"] {
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
