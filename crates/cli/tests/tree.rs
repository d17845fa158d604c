//! `tree` with the real binary: the pages of a store are printed, checked, and a read is explained.
//! Nothing is changed.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use basalt::fs::{HostFs, HostOptions};
use basalt::{CompactOptions, Db, Env, FamilyOptions, Options, TreeOptions, WriteOptions};
use harness::{Ran, Scratch, ended, json, tree};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs `basalt tree` in the scratch directory.
fn run(s: &Scratch, args: &[&str]) -> Ran {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("tree").args(args);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(c.spawn().expect("the tool starts"))
}

fn text(ran: Ran) -> String {
    String::from_utf8(ran.ok()).expect("text")
}

/// Returns the objects that `dump --json` prints.
fn dump(s: &Scratch, args: &[&str]) -> Vec<Value> {
    let args = [&["dump", "db", "--json"], args].concat();
    let lines = text(run(s, &args));
    let objects = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    objects.collect()
}

/// Returns the nodes of a kind in a family.
fn nodes<'a>(all: &'a [Value], family: &str, kind: &str) -> Vec<&'a Value> {
    let wanted = |node: &&Value| node["family"] == family && node["node"] == kind;
    all.iter().filter(wanted).collect()
}

/// Values that do not become shorter by compression, so that there are many pages.
fn value(n: u32) -> String {
    let mut x = u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut digit = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        char::from(b'a' + (x % 26) as u8)
    };
    (0..400).map(|_| digit()).collect()
}

/// Makes a store in pages of some leaves, of which two have delta pages.
fn filled(name: &str) -> Scratch {
    let s = Scratch::new(name);
    let lines: String = (0..1000)
        .map(|n| format!("k{n:04}\t{}\n", value(n)))
        .collect();
    let load = ["--engine", "tree", "--format", "tsv"];
    s.run_with("load", load, lines.as_bytes()).ok();
    s.run("put", ["k0010", "newer"]).ok();
    s.run("del", ["k0900"]).ok();
    s
}

#[test]
fn a_dump_prints_every_page_and_entry() {
    let s = filled("tree-dump");
    let before = tree(&s.path("db"));
    let all = dump(&s, &["--entries"]);
    let leaves = nodes(&all, "redis.keys", "leaf");
    assert!(leaves.len() > 4, "{}", leaves.len());
    // Each leaf begins where the one before ends.
    assert_eq!(leaves[0]["keys"]["from"], Value::Null);
    for two in leaves.windows(2) {
        assert_eq!(two[0]["keys"]["to"], two[1]["keys"]["from"]);
    }
    assert_eq!(leaves.last().unwrap()["keys"]["to"], Value::Null);
    let index = nodes(&all, "redis.keys", "index");
    assert_eq!(index[0]["base"]["entries"], leaves.len());
    let pages = |leaf: &Value| -> Vec<Value> {
        let deltas = leaf["deltas"].as_array().unwrap().iter();
        std::iter::once(&leaf["base"])
            .chain(deltas)
            .cloned()
            .collect()
    };
    let mut newest = std::collections::BTreeMap::new();
    for page in leaves.iter().flat_map(|leaf| pages(leaf)) {
        let list = page["list"].as_array().expect("entries");
        assert_eq!(page["entries"], list.len());
        for entry in list {
            newest.insert(entry["key"].to_string(), entry["kind"].clone());
        }
        // The page is where the dump says.
        let path = s.path("db/pages/1").join(page["file"].as_str().unwrap());
        let end = page["offset"].as_u64().unwrap() + page["bytes"].as_u64().unwrap();
        assert!(std::fs::metadata(path).unwrap().len() >= end);
    }
    let kind = |key: &str| {
        let mut found = newest
            .iter()
            .filter(|(k, _)| k.ends_with(&format!("{key}\"")));
        found
            .next()
            .unwrap_or_else(|| panic!("{key} is not there"))
            .1
    };
    assert_eq!(kind("k0010"), "value");
    assert_eq!(kind("k0900"), "tombstone");
    let summary = nodes(&all, "redis.keys", "family")[0];
    assert_eq!(summary["counts"]["leaves"], leaves.len());
    assert_eq!(summary["counts"]["delta_pages"], 2);
    assert_eq!(summary["is_whole"], true);
    let extents = summary["extents"].as_array().unwrap();
    assert!(extents.len() >= 2, "{extents:?}");
    // The default family has pages, too.
    assert_eq!(nodes(&all, "default", "leaf").len(), 1);
    let shown = text(run(
        &s,
        &["dump", "db", "--family", "redis.keys", "--entries"],
    ));
    for part in [
        "family redis.keys, 1 level of index pages",
        "index page of level 1: all keys",
        "leaf 1: keys before ",
        "leaf 2: keys from ",
        "  delta  delta/",
        "1 tombstone",
        "tombstone\t",
        "k0010\t\\x",
        "in use, sealed",
    ] {
        assert!(
            shown.contains(part) || part.contains("\\x"),
            "{part:?}\n{shown}"
        );
    }
    assert!(shown.contains("printed: ") && !shown.contains("there are more"));
    assert_eq!(tree(&s.path("db")), before, "a dump changes nothing");
}

#[test]
fn a_limited_dump_says_that_there_is_more() {
    let s = filled("tree-limit");
    let all = dump(&s, &["--family", "redis.keys", "--limit", "2"]);
    assert_eq!(nodes(&all, "redis.keys", "leaf").len(), 2);
    assert!(nodes(&all, "default", "leaf").is_empty());
    let first = &nodes(&all, "redis.keys", "leaf")[0]["base"];
    assert!(first["entries"].as_u64().unwrap() > 0 && first["list"].is_null());
    assert_eq!(nodes(&all, "redis.keys", "family")[0]["is_whole"], false);
    let shown = text(run(&s, &["dump", "db", "--limit", "1"]));
    assert!(
        shown.contains("printed, and there are more: 1 leaf"),
        "{shown}"
    );
}

#[test]
fn a_check_counts_pages_and_finds_damage() {
    let s = filled("tree-check");
    let sound = json(run(&s, &["check", "db", "--json"]));
    assert_eq!(sound["sound"], true, "{sound:#}");
    let families = sound["families"].as_array().unwrap();
    let keys = families.iter().find(|f| f["name"] == "redis.keys").unwrap();
    assert!(keys["counts"]["leaves"].as_u64().unwrap() > 4, "{keys:#}");
    assert!(
        keys["counts"]["entries"].as_u64().unwrap() >= 1002,
        "{keys:#}"
    );
    assert_eq!(keys["counts"]["delta_pages"], 2);
    let shown = text(run(&s, &["check", "db", "--family", "redis.keys"]));
    assert!(
        shown.contains("family redis.keys: ") && shown.contains("sound in its pages: 1 family"),
        "{shown}"
    );
    // One byte of the page of the second leaf.
    let all = dump(&s, &["--family", "redis.keys"]);
    let leaves = nodes(&all, "redis.keys", "leaf");
    let damaged = &leaves[1]["base"];
    let (file, offset) = (
        damaged["file"].as_str().unwrap(),
        damaged["offset"].as_u64().unwrap(),
    );
    let path = s.path("db/pages/1").join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[offset as usize + 100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let before = tree(&s.path("db"));
    let ran = run(&s, &["check", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let place = format!("{file} at {offset}");
    for part in [
        "damage: ",
        file,
        "damaged in 1 place",
        "basalt repair --dir db",
    ] {
        assert!(
            ran.text().contains(part),
            "{part:?} is not in {}",
            ran.text()
        );
    }
    let ran = run(&s, &["check", "db", "--json"]);
    assert_eq!(ran.code, Some(1));
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    let families = report["families"].as_array().unwrap();
    let keys = families.iter().find(|f| f["name"] == "redis.keys").unwrap();
    assert_eq!(keys["damage"][0]["offset"], offset, "{keys:#}");
    assert_eq!(keys["damage"].as_array().unwrap().len(), 1);
    assert_eq!(keys["counts"]["leaves"], leaves.len(), "the rest was read");
    // A dump says where, and goes on with the rest.
    let ran = run(&s, &["dump", "db", "--family", "redis.keys"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let shown = ran.text();
    assert!(
        shown.contains("DAMAGED: ") && shown.contains(&place),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("leaf {}: ", leaves.len())),
        "{shown}"
    );
    let ran = run(&s, &["dump", "db", "--family", "redis.keys", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    // Keys of the leaf cannot be read, and those of others can.
    let low = leaves[1]["keys"]["from"].as_str().unwrap();
    let key = &low[low.rfind('k').unwrap()..];
    let ran = run(&s, &["explain", "db", key]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("DAMAGED: ") && ran.text().contains("A read fails: "));
    assert!(text(run(&s, &["explain", "db", "k0999"])).contains("A read finds a value of 401 B."));
    assert_eq!(tree(&s.path("db")), before, "nothing was changed");
}

/// Removes the extents of a stream of the family. Returns their names.
fn remove_extents(s: &Scratch, stream: &str) -> Vec<String> {
    let extents = extents(s, stream);
    for name in &extents {
        std::fs::remove_file(s.path("db").join(name)).unwrap();
    }
    extents
        .iter()
        .map(|name| name.display().to_string())
        .collect()
}

/// Returns the extents of a stream of the family, as paths in the store.
fn extents(s: &Scratch, stream: &str) -> Vec<PathBuf> {
    let files = tree(&s.path("db")).into_iter().map(|(name, _)| name);
    files
        .filter(|name| name.starts_with(format!("pages/1/{stream}")))
        .filter(|name| name.extension().is_some_and(|of| of == "extent"))
        .collect()
}

#[test]
fn a_missing_extent_is_damage_of_its_pages() {
    let s = filled("tree-extent");
    let leaves = nodes(&dump(&s, &[]), "redis.keys", "leaf").len();
    // The delta pages are in one extent or in two.
    let removed = remove_extents(&s, "delta");
    let ran = run(&s, &["check", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let shown = ran.text();
    let places = match removed.len() {
        1 => "damaged in 1 place;".to_string(),
        n => format!("damaged in {n} places;"),
    };
    let mut parts: Vec<&str> = removed.iter().map(String::as_str).collect();
    parts.extend([&places[..], "basalt repair --dir db"]);
    parts.push("the manifest names this extent, and it is missing");
    for part in parts {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let ran = run(&s, &["dump", "db", "--family", "redis.keys"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let shown = ran.text();
    assert_eq!(shown.matches("DAMAGED: ").count(), 2, "{shown}");
    assert!(shown.contains(&format!("leaf {leaves}: ")), "{shown}");
    let ran = run(&s, &["explain", "db", "k0010"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("A read fails: "), "{}", ran.text());
    // Keys in other extents can be read. Writes fail until a repair.
    assert!(s.run("get", ["k0500"]).text().contains(&value(500)));
    s.run("get", ["k0010"]).fails(2, &["is damaged", "missing"]);
    s.run("stats", ["--json"]).ok();
    s.run("put", ["k0500", "v"])
        .fails(2, &["is damaged", "missing", "basalt repair"]);
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!ran.text().contains("all keys"), "{}", ran.text());
    assert!(s.run("get", ["k0011"]).text().contains(&value(11)));
    s.run("check", ["--json"]).ok();
}

#[test]
fn a_tree_without_logs_is_damaged_and_not_touched() {
    let s = filled("tree-logs");
    for (name, _) in tree(&s.path("db")) {
        if name.starts_with("pages/1/logs") {
            std::fs::remove_file(s.path("db").join(name)).unwrap();
        }
    }
    let before = tree(&s.path("db"));
    let ran = s.run("check", ["--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    let damage = report["damage"].as_array().unwrap();
    assert!(damage[0].to_string().contains("pages/1/logs"), "{report:#}");
    s.run("put", ["k0500", "v"])
        .fails(2, &["is damaged", "pages/1", "basalt check"]);
    let now = tree(&s.path("db"));
    let of_tree = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        let names = files.iter().map(|(name, _)| name.clone());
        names.filter(|name| name.starts_with("pages/1")).collect()
    };
    assert_eq!(of_tree(&now), of_tree(&before));
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("note: pages/1: "), "{}", ran.text());
    assert!(s.run("get", ["k0010"]).text().contains("newer"));
}

#[test]
fn the_logs_of_a_tree_are_no_logs_of_users() {
    let s = filled("tree-log-tool");
    for args in [
        &["append", "db/pages/1/logs", "mine", "x"][..],
        &["rm", "db/pages/1/logs", "checkpoint", "--yes"],
    ] {
        let args = [&["log"], args].concat();
        s.run_plain(args)
            .fails(2, &["the logs of a tree of pages", "basalt tree"]);
    }
    s.run_plain(["log", "ls", "db/pages/1/logs"]).ok();
    s.run("check", ["--json"]).ok();
}

/// A name proves nothing: a file that is called as the directory of trees is no tree.
#[test]
fn a_file_called_pages_is_no_store() {
    let s = Scratch::new("tree-no-store");
    s.file("db/pages", "1 to 20");
    s.run("put", ["k", "v"])
        .fails(2, &["holds files and no store", "--allow-nonempty-dir"]);
}

/// The name is in the tree, too, so that Redis clients find their keys.
#[test]
fn keys_in_pages_are_found_after_a_lost_manifest() {
    let s = filled("tree-manifest");
    for (name, _) in tree(&s.path("db")) {
        if name.to_string_lossy().starts_with("MANIFEST") {
            std::fs::remove_file(s.path("db").join(name)).unwrap();
        }
    }
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!ran.text().contains("kept 0 "), "{}", ran.text());
    assert!(s.run("get", ["k0010"]).text().contains("newer"));
    assert!(s.run("get", ["k0500"]).text().contains(&value(500)));
}

#[test]
fn the_rest_of_a_truncated_extent_is_kept() {
    let s = filled("tree-cut");
    let all = dump(&s, &[]);
    let leaves = nodes(&all, "redis.keys", "leaf");
    let cut = &leaves[3]["base"];
    let path = s.path("db/pages/1").join(cut["file"].as_str().unwrap());
    let offset = cut["offset"].as_u64().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(offset + 100).unwrap();
    let ran = run(&s, &["check", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["the manifest says that it has", "damaged in 1 place"] {
        let shown = ran.text();
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    // The index page was behind the cut.
    let ran = run(&s, &["dump", "db", "--family", "redis.keys"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("index page of level 1: all keys"));
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("lost: pages/1/base/"), "{}", ran.text());
    assert!(s.run("get", ["k0000"]).text().contains(&value(0)));
    assert!(s.run("get", ["k0010"]).text().contains("newer"));
    // The last page before the cut is whole.
    let low = leaves[2]["keys"]["from"].as_str().unwrap();
    let first: u32 = low[low.rfind('k').unwrap() + 1..].parse().unwrap();
    let kept = s.run("get", [format!("k{first:04}")]);
    assert!(kept.text().contains(&value(first)), "{kept:?}");
    s.run("check", ["--json"]).ok();
}

#[test]
fn an_explanation_says_what_a_read_visits() {
    let s = filled("tree-explain");
    let explain = |key: &str| json(run(&s, &["explain", "db", key, "--json"]));
    let verdicts = |explained: &Value| -> Vec<String> {
        let pages = explained["pages"]["leaf"]["pages"].as_array().unwrap();
        let verdict = |page: &Value| format!("{} {}", page["page"], page["verdict"]);
        pages.iter().map(|p| verdict(p).replace('"', "")).collect()
    };
    let newer = explain("k0010");
    assert_eq!(
        verdicts(&newer),
        ["delta found", "base hidden"],
        "{newer:#}"
    );
    assert_eq!(
        newer["answer"]["value_bytes"], 6,
        "with the byte of its type"
    );
    assert_eq!(newer["memtables_decide"], false);
    let deleted = explain("k0900");
    assert_eq!(verdicts(&deleted), ["delta found", "base hidden"]);
    assert_eq!(deleted["pages"]["versions"][0]["kind"], "Delete");
    assert_eq!(deleted["answer"]["found"], false);
    // A neighbour in the leaf needs the base page. The filter keeps it from the delta page.
    let neighbour = explain("k0011");
    assert_eq!(verdicts(&neighbour), ["delta filtered_out", "base found"]);
    let plain = explain("k0500");
    assert_eq!(verdicts(&plain), ["base found"]);
    // An index page and a leaf.
    assert_eq!(plain["device_reads"], 2, "{plain:#}");
    assert_eq!(plain["pages"]["index"].as_array().unwrap().len(), 1);
    let of_pages = plain["pages"]["index"][0]["page"]["bytes"]
        .as_u64()
        .unwrap()
        + plain["pages"]["leaf"]["pages"][0]["bytes"]
            .as_u64()
            .unwrap();
    assert_eq!(plain["device_bytes"], of_pages);
    let absent = explain("k0500x");
    assert_eq!(verdicts(&absent), ["base absent"]);
    let shown = text(run(&s, &["explain", "db", "k0010"]));
    for part in [
        "key k0010 in family redis.keys, stored as ",
        "  1. memtable of 0 entries",
        "  2. index page of level 1, base/",
        "the page mapping table has its base page and 1 delta page",
        "the newest entry of the key: value of 6 B",
        "hidden by the newer page",
        "device reads of",
        "A read finds a value of 6 B.",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let shown = text(run(&s, &["explain", "db", "k0900"]));
    assert!(
        shown.contains("the newest entry of the key: tombstone")
            && shown.contains("A read finds no value."),
        "{shown}"
    );
}

/// Changes of a few keys of many leaves are in a delta page of the index page. It has entries, and
/// no children.
#[test]
fn delta_pages_of_index_pages_are_shown() {
    let s = Scratch::new("tree-index-deltas");
    let path = s.path("db");
    let env = Env::builder(HostFs::new(HostOptions::new(&path)).unwrap()).build();
    let pages = TreeOptions::default()
        .page_bytes(4096)
        .leaf_delta_bytes(Some(2000));
    let family = FamilyOptions::default().pages(Some(pages));
    let options = Options::default().default_family(family);
    let db = Db::open(&env, &path, options).unwrap();
    let default = db.default_family();
    for (step, text) in [(1, 0), (50, 1), (50, 2)] {
        for n in (0..500).step_by(step) {
            let value = value(n + text);
            let key = format!("k{n:04}");
            let free = WriteOptions::UNSYNCED;
            db.put(&default, key.as_bytes(), value.as_bytes(), &free)
                .unwrap();
        }
        db.flush().unwrap();
        if step == 1 {
            // If maintenance runs during the first flush, it leaves one leaf, which is split later.
            db.compact(&default, &CompactOptions::default()).unwrap();
        }
    }
    db.close().unwrap();

    let all = dump(&s, &["--family", "default", "--entries"]);
    let index = nodes(&all, "default", "index");
    let deltas: Vec<&Value> = (index.iter())
        .flat_map(|node| node["deltas"].as_array().unwrap())
        .collect();
    let entries = deltas
        .iter()
        .map(|delta| delta["entries"].as_u64().unwrap());
    assert_eq!(entries.sum::<u64>(), 10, "{index:#?}");
    assert_eq!(deltas[0]["list"][0]["value"], value(2), "{index:#?}");
    let shown = text(run(&s, &["dump", "db", "--family", "default"]));
    assert!(shown.contains("  delta  "), "{shown}");
    let of_delta = shown.lines().filter(|line| line.contains("  delta  "));
    assert!(
        of_delta.into_iter().all(|line| line.contains("entr")),
        "{shown}"
    );

    let explained = text(run(&s, &["explain", "db", "--family", "default", "k0050"]));
    for part in [
        "delta page of the index page",
        "the page mapping table has its base page and 1 delta page\n",
    ] {
        assert!(explained.contains(part), "{part:?} is not in\n{explained}");
    }
    let explained = run(
        &s,
        &["explain", "db", "--family", "default", "k0050", "--json"],
    );
    let explained = text(explained);
    assert!(explained.contains("index_delta"), "{explained}");
    s.run_plain(["tree", "check", "db"]).ok();
}

#[test]
fn references_to_blob_files_are_shown_as_such() {
    let s = Scratch::new("tree-references");
    let lines: String = (0..100)
        .map(|n| format!("k{n:04}\t{}\n", value(n).repeat(5)))
        .collect();
    let load = [
        "--engine",
        "tree",
        "--min-blob-size",
        "1K",
        "--format",
        "tsv",
    ];
    s.run_with("load", load, lines.as_bytes()).ok();
    s.run("put", ["k0003", "newer"]).ok();
    let listed = json(s.run_plain(["blob", "list", "--dir", "db", "--json"]));
    let number = &listed["files"][0]["number"];
    let all = dump(&s, &["--family", "redis.keys", "--entries"]);
    let leaf = nodes(&all, "redis.keys", "leaf")[0];
    let base = leaf["base"]["list"].as_array().unwrap();
    assert!(base.len() >= 100, "{leaf:#}");
    let references = base.iter().filter(|entry| entry["kind"] == "reference");
    let references: Vec<&Value> = references.collect();
    assert_eq!(references.len(), 100, "{leaf:#}");
    for entry in references {
        assert_eq!(&entry["blob_file"], number, "{entry:#}");
        assert_eq!(entry["value"], Value::Null, "{entry:#}");
    }
    let delta = leaf["deltas"][0]["list"].as_array().unwrap();
    let newer = delta.iter().find(|entry| entry["kind"] == "value").unwrap();
    assert_eq!(newer["blob_file"], Value::Null, "{newer:#}");
    let shown = text(run(&s, &["dump", "db", "--entries"]));
    let references = shown.lines().filter(|line| {
        let is_reference = line.trim_start().starts_with("reference\t");
        is_reference && line.ends_with(&format!("\tblob file {number}"))
    });
    assert_eq!(references.count(), 100, "{shown}");
    let shown = text(run(&s, &["explain", "db", "k0000"]));
    for part in [
        format!("the newest entry of the key: value in blob file {number}"),
        "The read of the value from its blob file comes in addition.".to_string(),
        "A read finds a value of 1.95 KiB.".to_string(),
    ] {
        assert!(shown.contains(&part), "{part:?} is not in\n{shown}");
    }
    let shown = text(run(&s, &["explain", "db", "k0003"]));
    let hidden = format!("an older value in blob file {number}, hidden by the newer page");
    assert!(shown.contains(&hidden), "{hidden:?} is not in\n{shown}");
    assert!(!shown.contains("comes in addition"), "{shown}");
}

#[test]
fn an_explanation_shows_what_the_log_has() {
    let s = filled("tree-log");
    // A killed server leaves its writes in the log.
    let server = harness::Server::start(&s, &[]);
    assert_eq!(server.reply(&["SET", "k0500", "in the log"]), "+OK\r\n");
    assert_eq!(
        server.reply(&["SET", "k0600", "short", "PX", "1"]),
        "+OK\r\n"
    );
    server.signal(rustix::process::Signal::KILL);
    ended(server.child);
    let shown = text(run(&s, &["explain", "db", "k0500"]));
    for part in [
        "value of 11 B at sequence number ",
        "The memtables decide: a read visits none of the pages below.",
        "A read finds a value of 11 B.",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let shown = text(run(&s, &["explain", "db", "k0600"]));
    assert!(
        shown.contains(", expired at ") && shown.contains("A read finds no value."),
        "{shown}"
    );
    let shown = text(run(&s, &["explain", "db", "k0700"]));
    assert!(
        shown.contains("that are not flushed): no entry of the key"),
        "{shown}"
    );
}

#[test]
fn a_family_in_levels_is_explained_and_has_no_pages() {
    let s = Scratch::new("tree-levels");
    for round in 0..2 {
        s.run("put", ["--family", "mine", "k", &format!("v{round}")])
            .ok();
        s.run("put", ["--family", "mine", "other", "v"]).ok();
    }
    let shown = text(run(&s, &["explain", "db", "k", "--family", "mine"]));
    for part in [
        "level ",
        ".tbl",
        "value of 2 B at sequence number ",
        "A read finds a value of 2 B.",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let report = json(run(
        &s,
        &["explain", "db", "k", "--family", "mine", "--json"],
    ));
    assert_eq!(report["pages"], Value::Null);
    assert_eq!(report["tables"][0]["verdict"], "found", "{report:#}");
    // The older version is hidden, or was merged away.
    for older in &report["tables"].as_array().unwrap()[1..] {
        assert_eq!(older["verdict"], "hidden");
    }
    run(&s, &["dump", "db", "--family", "mine"])
        .fails(2, &["mine is kept in levels of tables", "basalt stats"]);
    run(&s, &["check", "db", "--family", "mine"])
        .fails(2, &["mine is kept in levels of tables", "basalt stats"]);
    run(&s, &["dump", "db"]).fails(2, &["db has no family in pages"]);
    run(&s, &["check", "db"]).fails(2, &["db has no family in pages"]);
    // There are no keys of Redis clients.
    run(&s, &["explain", "db", "k"]).fails(2, &["no keys of Redis clients", "--family", "mine"]);
}

#[test]
fn wrong_arguments_get_an_error_that_names_them() {
    let s = filled("tree-errors");
    for action in ["dump", "check"] {
        run(&s, &[action, "db", "--family", "yours"])
            .fails(2, &["no family yours", "default", "redis.keys"]);
        run(&s, &[action, "missing"]).fails(2, &["there is no store in missing"]);
    }
    run(&s, &["explain", "db", "k", "--family", "yours"])
        .fails(2, &["no family yours", "default", "redis.keys"]);
    run(&s, &["explain", "missing", "k"]).fails(2, &["there is no store in missing"]);
    run(&s, &["explain", "db", "-e", "\\q"]).fails(2, &["\\q is unknown"]);
    s.file("plain/notes.txt", "mine");
    run(&s, &["dump", "plain"]).fails(2, &["there is no store in plain"]);
    let server = harness::Server::start(&s, &[]);
    // Before it answers, it may not hold its store yet.
    assert_eq!(server.reply(&["PING"]), "+PONG\r\n");
    for args in [
        &["dump", "db"][..],
        &["check", "db"],
        &["explain", "db", "k"],
    ] {
        run(&s, args).fails(2, &["the store in db is in use by"]);
    }
    server.stop();
    // Without a stream, the tree does not open: the message says where.
    let extent = |name: &PathBuf| name.starts_with("pages/1/base");
    let files = tree(&s.path("db"));
    for (name, _) in files.iter().filter(|(name, _)| extent(name)) {
        std::fs::remove_file(s.path("db").join(name)).unwrap();
    }
    run(&s, &["dump", "db"]).fails(2, &["the store in db is damaged", "db/pages/1"]);
    let ran = run(&s, &["check", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("db/pages/1"), "{}", ran.text());
}

#[test]
fn pages_in_an_image_are_shown() {
    let s = Scratch::new("tree-image");
    harness::fs(&s, &["format", "store.lava", "--size", "256M", "--sparse"]).ok();
    let mut put = Command::new(env!("CARGO_BIN_EXE_basalt"));
    put.current_dir(&s.dir)
        .args(["put", "--image", "store.lava", "--dir", "db"]);
    put.args(["--engine", "tree", "k", "v"])
        .stdin(Stdio::null());
    assert!(put.status().unwrap().success());
    let shown = text(run(&s, &["dump", "store.lava:db", "--entries"]));
    assert!(
        shown.contains("family redis.keys") && shown.contains("value\t"),
        "{shown}"
    );
    assert!(text(run(&s, &["check", "store.lava:db"])).contains("is sound in its pages"));
    let shown = text(run(&s, &["explain", "store.lava:db", "k"]));
    assert!(shown.contains("A read finds a value of 2 B."), "{shown}");
}

#[test]
fn without_an_index_page_the_tools_say_what_they_cannot_reach() {
    let s = filled("tree-index");
    let all = dump(&s, &["--family", "redis.keys"]);
    let root = &nodes(&all, "redis.keys", "index")[0]["base"];
    let file = root["file"].as_str().unwrap();
    let offset = root["offset"].as_u64().unwrap();
    let path = s.path("db/pages/1").join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[offset as usize + 60] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ran = run(&s, &["dump", "db", "--family", "redis.keys"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let shown = ran.text();
    assert!(
        shown.contains("index page of level 1: all keys") && shown.contains("DAMAGED: "),
        "{shown}"
    );
    assert!(
        shown.contains("printed: 0 leaves") && shown.contains("extent base/"),
        "{shown}"
    );
    let ran = run(&s, &["explain", "db", "k0001", "--family", "redis.keys"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.text().contains("A read fails: ") && ran.text().contains(file),
        "{ran:?}"
    );
    let ran = run(&s, &["check", "db"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.text().contains("as far as they can be read, 0 leaves"),
        "{}",
        ran.text()
    );
    let stats = json(s.run("stats", ["--json"]));
    let families = stats["families"].as_array().unwrap();
    let keys = families.iter().find(|f| f["name"] == "redis.keys").unwrap();
    assert_eq!(keys["pages"]["leaves"], Value::Null, "{keys:#}");
    let shown = String::from_utf8(s.run("stats", [""; 0]).ok()).unwrap();
    assert!(shown.contains("unknown / 2"), "{shown}");
}
