//! Names of logs with the real binary: renames, and stores that have lost the files with the names.
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage the host's files by hand"
)]

mod harness;
use harness::{Ran, Scratch, Server, ended, json};
use std::path::Path;
use std::process::{Command, Stdio};

fn log(s: &Scratch, args: &[&str]) -> Ran {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("log").args(args);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(c.spawn().expect("the tool starts"))
}

/// Removes the files with these extensions from a directory.
fn remove(dir: &Path, extensions: &[&str]) {
    let mut removed = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|e| e.to_str());
        if extension.is_some_and(|e| extensions.contains(&e)) {
            std::fs::remove_file(path).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, extensions.len());
}

/// Makes a closed store with trimmed logs. Returns what `ls` shows.
fn make(s: &Scratch) -> serde_json::Value {
    for (name, records, trimmed) in [("orders", 9, 4), ("audit", 5, 2), ("gone", 3, 3)] {
        for n in 1..=records {
            log(s, &["append", "l", name, &format!("{name} {n}")]).ok();
        }
        let up_to = trimmed.to_string();
        log(s, &["trim", "l", name, "--up-to", &up_to, "--yes"]).ok();
    }
    log(s, &["truncate", "l", "audit", "--from", "5", "--yes"]).ok();
    listed(s)
}

fn listed(s: &Scratch) -> serde_json::Value {
    json(log(s, &["ls", "l", "--json"]))["logs"].clone()
}

#[test]
fn a_log_is_renamed() {
    let s = Scratch::new("log-rename");
    let before = make(&s);
    let renamed = log(&s, &["rename", "l", "orders", "orders 2025"]);
    assert_eq!(renamed.ok(), b"orders is named orders 2025\n");
    log(&s, &["rename", "l", "orders", "new"]).fails(2, &["there is no log orders in l", "ls l"]);
    log(&s, &["rename", "l", "audit", "gone"])
        .fails(2, &["l has a log gone", "choose another name"]);
    log(&s, &["rename", "l", "audit", ""]).fails(2, &["0 bytes", "1 to 1024"]);
    log(&s, &["rename", "l", "audit", "redis.stream.0.1"]).fails(2, &["streams of the server"]);
    log(&s, &["rename", "none", "a", "b"]).fails(2, &["there is no log store in none"]);
    let none = "there is no log redis.stream.0.1";
    log(&s, &["rename", "l", "redis.stream.0.1", "b"]).fails(2, &[none]);
    let report = json(log(&s, &["rename", "l", "orders 2025", "orders", "--json"]));
    assert_eq!(
        (&report["log"], &report["renamed_to"]),
        (&"orders 2025".into(), &"orders".into())
    );
    assert_eq!(listed(&s), before);
}

/// The names and trim points of the logs of a closed store are in the checkpoint and in the names
/// file. The loss of either costs nothing.
#[test]
fn a_store_without_its_checkpoint_or_its_copy_keeps_names_and_trims() {
    let s = Scratch::new("log-names");
    let before = make(&s);
    for (lost, has) in [("checkpoint", "names"), ("names", "checkpoint")] {
        remove(&s.path("l"), &[lost]);
        let found = log(&s, &["check", "l"]);
        assert_eq!(found.code, Some(1), "{found:?}");
        let text = found.text();
        assert!(text.contains(&format!(".{lost}")), "{text}");
        let names = text.lines().find(|line| line.starts_with("names: "));
        let names = names.unwrap_or_else(|| panic!("{text}"));
        assert!(
            names.contains(&format!(".{has} has the names"))
                && names.ends_with("trim points of 3 logs"),
            "{text}"
        );
        let repaired = log(&s, &["repair", "l", "--yes"]);
        assert!(
            repaired.text().contains("no record is lost"),
            "{repaired:?}"
        );
        assert!(repaired.text().contains(names), "{repaired:?}");
        repaired.ok();
        assert_eq!(listed(&s), before);
        log(&s, &["check", "l"]).ok();
        let refused = log(&s, &["append", "l", "orders", "x", "--lsn", "4"]);
        refused.fails(2, &["not above 4"]);
    }
}

#[test]
fn a_store_without_both_files_lists_the_logs_that_lose_their_names() {
    let s = Scratch::new("log-no-names");
    make(&s);
    remove(&s.path("l"), &["checkpoint", "names"]);
    let found = log(&s, &["check", "l", "--json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let found: serde_json::Value = serde_json::from_slice(&found.out).unwrap();
    let unnamed = found["unnamed_logs"].as_array().unwrap().clone();
    assert_eq!(
        (
            &unnamed[0]["name"],
            &unnamed[0]["number"],
            &unnamed[0]["last"]
        ),
        (&"recovered-1".into(), &1.into(), &9.into()),
        "{found}"
    );
    let repaired = log(&s, &["repair", "l", "--yes"]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    let line = format!(
        "name lost: log 1 is named \"recovered-1\": {} records, LSNs {} to 9",
        unnamed[0]["records"], unnamed[0]["first"]
    );
    assert!(repaired.text().contains(&line), "{repaired:?}");
    log(&s, &["rename", "l", "recovered-1", "orders"]).ok();
    assert_eq!(
        log(&s, &["tail", "l", "orders", "-n", "1"]).ok(),
        b"9\torders 9\n"
    );
}

#[test]
fn streams_survive_the_loss_of_either_file_and_are_listed_without_both() {
    let s = Scratch::new("stream-names");
    let server = Server::start(&s, &[]);
    for key in ["orders", "audit"] {
        for n in 1..=8 {
            let id = format!("{n}-{}", 20 - key.len());
            server.reply(&["XADD", key, &id, "field", &format!("{key} {n}")]);
        }
    }
    server.reply(&["XADD", "audit", "9-0", "field", "audit 9"]);
    assert_eq!(server.reply(&["XTRIM", "orders", "MINID", "4-0"]), ":3\r\n");
    assert_eq!(server.reply(&["XDEL", "orders", "6-14"]), ":1\r\n");
    server.reply(&["XGROUP", "CREATE", "orders", "g", "0"]);
    server.reply(&["XADD", "dropped", "1-0", "field", "value"]);
    let read = |server: &Server, key| server.reply(&["XRANGE", key, "-", "+"]);
    let before = ["orders", "audit"].map(|key| read(&server, key));
    assert!(before[0].starts_with("*4\r\n"), "{before:?}");
    server.stop();
    let logs = s.path("db/logs");
    for lost in ["checkpoint", "names"] {
        remove(&logs, &[lost]);
        let found = s.run("check", [""; 0]);
        assert_eq!(found.code, Some(1), "{found:?}");
        assert!(found.text().contains("has the names"), "{found:?}");
        s.run("repair", ["--yes"]).ok();
        s.run("check", [""; 0]).ok();
        let server = Server::start(&s, &[]);
        assert_eq!(["orders", "audit"].map(|key| read(&server, key)), before);
        server.stop();
    }

    // Without any log, too, the check names the streams.
    let aside = s.path("aside");
    std::fs::rename(&logs, &aside).unwrap();
    let found = s.run("check", [""; 0]);
    assert_eq!(found.code, Some(1), "{found:?}");
    for part in ["they are missing", "the stream orders is without its log"] {
        assert!(found.text().contains(part), "{found:?}");
    }
    std::fs::rename(&aside, &logs).unwrap();

    remove(&logs, &["checkpoint", "names"]);
    let found = s.run("check", [""; 0]);
    assert_eq!(found.code, Some(1), "{found:?}");
    for key in ["orders", "audit", "dropped"] {
        let sentence = format!("the stream {key} is without its log");
        assert!(found.text().contains(&sentence), "{found:?}");
    }
    let repaired = s.run("repair", ["--yes"]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    let text = repaired.text();
    assert!(!text.contains("no key is lost"), "{text}");
    assert!(
        text.contains("lost: the stream orders is without its log"),
        "{text}"
    );
    // The repaired files are sound, and the store still says what is missing.
    let found = s.run("check", ["--json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let found: serde_json::Value = serde_json::from_slice(&found.out).unwrap();
    assert_eq!(
        (&found["sound"], &found["damage"]),
        (&false.into(), &serde_json::json!([]))
    );
    let missing = found["streams_without_log"].as_array().unwrap();
    assert_eq!(missing.len(), 3, "{found}");
    let server = Server::start(&s, &[]);
    let error = read(&server, "orders");
    assert!(
        error.starts_with('-') && error.contains("entries of the stream are lost"),
        "{error}"
    );
    assert_eq!(server.reply(&["DEL", "dropped"]), ":1\r\n");
    server.stop();
    // The streams were made in this order, and so were their logs.
    let [audit, orders] = [(0, "audit"), (2, "orders")].map(|(i, key)| {
        assert_eq!(missing[i]["key"], key);
        missing[i]["log"].as_str().unwrap()
    });
    let rename = |old: &str, new: &str| log(&s, &["rename", "db/logs", old, new]);
    // A log is not given to the wrong stream by mistake, and a name can be taken back.
    let wrong = "does not seem to be the log of the stream";
    rename("recovered-2", orders).fails(2, &[wrong, "orders", "LSN 8", "8-15", "8-14", "--yes"]);
    let named = log(&s, &["rename", "db/logs", "recovered-2", orders, "--yes"]);
    let taken = format!(
        "the stream orders has the entries 1-15 to 9-0 now; if they are not its own, `basalt log rename db/logs {orders} recovered-2 --yes`"
    );
    assert!(named.text().contains(&taken), "{named:?}");
    let kept = [
        "the log of the stream orders",
        "--yes",
        &format!("`basalt log rename db/logs other {orders} --yes` gives it back"),
    ];
    rename(orders, "other").fails(2, &kept);
    rename("recovered-1", orders).fails(2, &["first rename that log away"]);
    rename(orders, "recovered-2").fails(2, &["the stream orders", "--yes"]);
    rename(orders, audit).fails(2, &["of a stream to another stream"]);
    let taken = log(&s, &["rename", "db/logs", orders, "recovered-2", "--yes"]);
    assert!(taken.text().contains("without its log now"), "{taken:?}");
    for (old, new) in [("recovered-1", orders), ("recovered-2", audit)] {
        rename(old, new).ok();
    }
    s.run("check", [""; 0]).ok();
    let server = Server::start(&s, &[]);
    assert_eq!(
        ["audit", "orders"].map(|key| read(&server, key).len() > 100),
        [true; 2]
    );
    server.stop();
}

/// XADD does not write the key of a stream. The next LSN of such a key is 1, so nothing was
/// compared, and any log could be given to the stream.
#[test]
fn a_stream_gets_only_a_log_of_entries() {
    let s = Scratch::new("stream-entries");
    let server = Server::start(&s, &[]);
    server.reply(&["XADD", "k", "5-0", "field", "value"]);
    server.reply(&["XADD", "set", "5-0", "field", "value"]);
    // The last id of this key is above the id of its last entry.
    assert_eq!(server.reply(&["XSETID", "set", "9-0"]), "+OK\r\n");
    server.stop();
    let names = json(log(&s, &["ls", "db", "--json"]))["logs"].clone();
    let [stream, set] = [0, 1].map(|i| names[i]["name"].as_str().unwrap());
    let rename = |old: &str, new: &str, more: &[&str]| {
        log(&s, &[&["rename", "db", old, new][..], more].concat())
    };
    rename(stream, "it's -1", &["--yes"]).ok();
    log(&s, &["append", "db", "orders", "order 1"]).ok();
    log(&s, &["append", "db", "orders", "order 2"]).ok();
    let no_entry = ["the stream k", "LSN 1 is no entry of a stream", "--yes"];
    rename("orders", stream, &[]).fails(2, &no_entry);
    let report = json(rename("it's -1", stream, &["--json"]));
    assert_eq!(
        [&report["stream"], &report["first_id"], &report["last_id"]],
        ["k", "5-0", "5-0"]
    );
    // The command that is printed is one that a shell reads.
    let away = rename(stream, "it's -1", &["--yes"]);
    let undo = format!("`basalt log rename db 'it'\\''s -1' {stream} --yes` gives it back");
    assert!(away.text().contains(&undo), "{away:?}");
    rename("it's -1", stream, &[]).ok();
    rename(set, "recovered-9", &["--yes"]).ok();
    rename("recovered-9", set, &[]).ok();
    let server = Server::start(&s, &[]);
    assert!(server.reply(&["XRANGE", "k", "-", "+"]).contains("5-0"));
    server.stop();
}
