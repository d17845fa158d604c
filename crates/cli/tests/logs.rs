//! `log` with the real binary: records in and out, trims, a followed log, check and repair, in
//! directories and in images.
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage and look at the host's files by hand"
)]

mod harness;
use basalt::fs::{HostFs, HostOptions};
use basalt::{Env, Store, StoreOptions};
use basalt_log::{LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use harness::{Ran, Scratch, ended, fs, json, tree};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

fn command(s: &Scratch, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).arg("log").args(args);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    c
}

fn log(s: &Scratch, args: &[&str]) -> Ran {
    ended(command(s, args).spawn().expect("the tool starts"))
}

fn log_with(s: &Scratch, args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(s, args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    drop(stdin);
    ended(child)
}

/// Opens the store in `l` in this process.
fn open(s: &Scratch) -> LogEngine {
    let path = s.path("l");
    let env = Env::builder(HostFs::new(HostOptions::new(&path)).unwrap()).build();
    LogEngine::open(&env, &path, LogEngineOptions::default()).unwrap()
}

/// Runs the commands of a transcript, `$ ` before each, and compares what they print. Standard
/// error comes first, and the exit code last if it is not 0.
fn transcript(s: &Scratch, text: &str) {
    let mut found = String::new();
    for shown in text.lines().filter(|line| line.starts_with("$ ")) {
        let line = &shown[2..];
        let (line, input) = match line.split_once(" < ") {
            Some((line, input)) => (line, input.replace("\\n", "\n")),
            None => (line, String::new()),
        };
        let args: Vec<&str> = line.split(' ').collect();
        let ran = log_with(s, &args, input.as_bytes());
        let out = String::from_utf8(ran.out).unwrap();
        found += &format!("{shown}\n{}{}", ran.err, out);
        if ran.code != Some(0) {
            found += &format!("[{}]\n", ran.code.unwrap());
        }
    }
    assert_eq!(found, text);
}

#[test]
fn records_go_in_and_come_out() {
    let s = Scratch::new("log-transcript");
    transcript(
        &s,
        "\
$ append l a one
basalt: made the log a in l
1
$ append l a < two\\nthree\\n
2 to 3
$ append l a nine --lsn 9
9
$ append l b -e x\\ty\\x00
basalt: made the log b in l
1
$ ls l
  log  records  first  last  bytes
  a          4      1     9   43 B
  b          1      1     1   11 B
$ stat l a
a: 4 records, 43 B with their heads
LSNs 1 to 9; 5 of them are missing, in 1 gap
never trimmed
an append with an existing LSN is refused
$ dump l a
1\tone
2\ttwo
3\tthree
9\tnine
$ dump l a --from 2 --to 8
2\ttwo
3\tthree
$ dump l a --from 3 --limit 1 --hex
3\t7468726565
$ dump l b
1\tx\\ty\\x00
$ dump l b --json
{\"lsn\":1,\"data\":\"x\\ty\\u0000\"}
$ tail l a -n 2
3\tthree
9\tnine
$ append l a again --lsn 9
basalt: log \"a\" has a record with LSN 9; `basalt log stat l a` shows which LSNs are used
[2]
$ dump l c
basalt: there is no log c in l; `basalt log ls l` lists them
[2]
$ dump l a --from 5 --to 4
basalt: --to 4 is below --from 5; give an LSN of 5 or more
[2]
$ trim l a --up-to 2
basalt: trim removes 2 of 4 records of a for good, LSNs 1 to 2; run it with --yes
[2]
$ trim l a --up-to 20 --yes
basalt: cannot trim a up to 20: its last LSN is 9, and later appends up to 20 would be refused; use --up-to 9, or add --beyond-last to trim anyway
[2]
$ trim l a --up-to 2 --yes
2 records trimmed, 20 B; 2 left
$ dump l a
3\tthree
9\tnine
$ append l a late --lsn 2
basalt: LSN 2 of log \"a\" is not above 2, up to which the log was trimmed; `basalt log stat l a` shows which LSNs are used
[2]
$ trim l a --up-to 20 --beyond-last --yes
2 records trimmed, 23 B; 0 left
$ append l a next
21
$ append l a -e < last\\nbad\\q\\nnever\\n
basalt: line 2 of standard input: \\q is unknown: \\t \\n \\r \\0 \\\\ and \\xNN are the escapes; appended and durable: line 1 (LSN 22)
[2]
$ append l a --lsn 20 < x\\ny\\n
basalt: line 1 of standard input: LSN 20 of log \"a\" is not above 20, up to which the log was trimmed; `basalt log stat l a` shows which LSNs are used; nothing was appended
[2]
$ dump l a
21\tnext
22\tlast
$ append l a --lsn -1 x
error: invalid value '-1' for '--lsn <LSN>': invalid digit found in string

For more information, try '--help'.
[2]
$ truncate l a --from 22
basalt: truncate removes 1 of 2 records of a for good, LSN 22; their LSNs can be appended again; run it with --yes
[2]
$ truncate l a --from 22 --yes
1 record removed, 11 B; 1 left
$ truncate l a --from 22 --yes
0 records removed, 0 B; 1 left
$ append l a again
22
$ rm l b
basalt: rm removes the log b for good, with 1 record, LSN 1; run it with --yes
[2]
$ rm l b --yes
b removed, 1 record, 11 B
$ rm l b --yes
basalt: there is no log b in l; `basalt log ls l` lists them
[2]
$ ls l
  log  records  first  last  bytes
  a          2     21    22   23 B
$ ls none
basalt: there is no log store in none; name another, or make one with `basalt log append none LOG`
[2]
$ check none
basalt: there is no log store in none; name another, or make one with `basalt log append none LOG`
[2]
",
    );
}

#[test]
fn scripts_get_json_and_raw_bytes() {
    let s = Scratch::new("log-json");
    let bytes: Vec<u8> = (0..=255).collect();
    s.file("record", &bytes);
    let report = json(log(&s, &["append", "l", "a", "--file", "record", "--json"]));
    assert_eq!(
        (&report["first"], &report["records"]),
        (&1.into(), &1.into())
    );
    assert_eq!(log(&s, &["dump", "l", "a", "--raw"]).ok(), bytes);
    let line = log(&s, &["dump", "l", "a", "--json"]).ok();
    let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert!(
        line["data_b64"].as_str().unwrap().starts_with("AAEC"),
        "{line}"
    );
    // A log must keep LSNs for later records.
    let all = [
        "trim",
        "l",
        "a",
        "--beyond-last",
        "--yes",
        "--up-to",
        "18446744073709551615",
    ];
    log(&s, &all).fails(
        2,
        &[
            "no LSN would be left for new records",
            "run `basalt log rm l a`",
        ],
    );
    // A creation that failed has left a manifest. The next one succeeds.
    s.file("n/MANIFEST-000001", b"");
    log(&s, &["append", "n", "a", "x"]).ok();
    // What `dump` prints can be appended again.
    let text = String::from_utf8(log(&s, &["dump", "l", "a"]).ok()).unwrap();
    let (_, record) = text.trim_end().split_once('\t').unwrap();
    let input = format!("{record}\n");
    log_with(&s, &["append", "l", "again", "-e"], input.as_bytes()).ok();
    assert_eq!(log(&s, &["dump", "l", "again", "--raw"]).ok(), bytes);

    let list = json(log(&s, &["ls", "l", "--json"]));
    assert_eq!(list["logs"][0]["name"], "a");
    assert_eq!(list["logs"][1]["last"], 1);
    let stat = json(log(&s, &["stat", "l", "--json"]));
    assert_eq!((&stat["logs"], &stat["records"]), (&2.into(), &2.into()));
    let stat = json(log(&s, &["stat", "l", "a", "--json"]));
    assert_eq!(
        (&stat["gaps"], &stat["duplicates"]),
        (&0.into(), &"refuse".into())
    );
    let trimmed = json(log(
        &s,
        &["trim", "l", "a", "--up-to", "1", "--yes", "--json"],
    ));
    assert_eq!(trimmed["trimmed_records"], 1);
    let check = json(log(&s, &["check", "l", "--json"]));
    assert_eq!(
        (&check["sound"], &check["records"]),
        (&true.into(), &1.into())
    );
    // Nothing is made for input that cannot be read.
    log(&s, &["append", "m", "a", "--file", "missing"]).fails(2, &["cannot open missing"]);
    log_with(&s, &["append", "l", "a", "-e"], b"bad \\q\n").fails(2, &["line 1", "\\q is unknown"]);
    assert!(!s.path("m").exists());
}

#[test]
fn commands_that_read_change_nothing() {
    let s = Scratch::new("log-read");
    let input: String = (0..500).map(|n| format!("record {n}\n")).collect();
    log_with(&s, &["append", "l", "a"], input.as_bytes()).ok();
    let before = tree(&s.path("l"));
    for args in [
        &["ls", "l"][..],
        &["stat", "l"],
        &["stat", "l", "a"],
        &["dump", "l", "a"],
        &["tail", "l", "a"],
        &["check", "l"],
        &["repair", "l", "--yes"],
    ] {
        let ran = log(&s, args);
        assert_eq!(ran.err, "", "no terminal, so no progress is shown");
        ran.ok();
    }
    assert_eq!(tree(&s.path("l")), before);
    let dump = log(&s, &["dump", "l", "a"]).ok();
    assert_eq!(dump.iter().filter(|b| **b == b'\n').count(), 500);
}

#[test]
fn a_store_has_one_owner_at_a_time() {
    let s = Scratch::new("log-busy");
    log(&s, &["append", "l", "a", "one"]).ok();
    let engine = open(&s);
    for args in [
        &["ls", "l"][..],
        &["append", "l", "a", "x"],
        &["tail", "-f", "l", "a"],
        &["trim", "l", "a", "--up-to", "1", "--yes"],
        &["truncate", "l", "a", "--from", "1", "--yes"],
        &["rm", "l", "a", "--yes"],
        &["check", "l"],
        &["repair", "l", "--yes"],
    ] {
        let args = [args, &["--wait", "0"]].concat();
        log(&s, &args).fails(2, &["the log store in l is in use by process", "stop"]);
    }
    let waited = log(&s, &["ls", "l", "--wait", "1"]);
    assert_eq!(waited.code, Some(2), "{waited:?}");
    for part in ["waiting until it is free", "waited 1 s", "--wait SECONDS"] {
        assert!(waited.err.contains(part), "{part}: {}", waited.err);
    }
    // A command that waits goes on when the store is free.
    let mut waiting = command(&s, &["append", "l", "a", "two", "--wait", "600"]);
    let mut child = waiting.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    assert!(next_line(&mut err).contains("waiting until it is free"));
    engine.close().unwrap();
    assert_eq!(ended(child).ok(), b"2\n");
    // Readers are named, too, if the system tells who has the lock.
    let path = s.path("l");
    let env = Env::builder(HostFs::new(HostOptions::new(&path)).unwrap()).build();
    let reader = LogEngine::open_read_only(&env, &path, LogEngineOptions::default()).unwrap();
    let refused = log(&s, &["append", "l", "a", "x", "--wait", "0"]);
    let ours = format!(
        "the log store in l is in use by process {} (",
        std::process::id()
    );
    refused.fails(2, &[&ours, "one owner at a time"]);
    reader.close().unwrap();
    log(&s, &["ls", "l"]).ok();
}

/// Reads lines of a running command.
fn next_line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_followed_log_shows_what_others_append() {
    let s = Scratch::new("log-follow");
    let first: String = (1..=20).map(|n| format!("{n}\n")).collect();
    log_with(&s, &["append", "l", "a"], first.as_bytes()).ok();
    let mut child: Child = command(&s, &["tail", "-f", "-n", "2", "l", "a"])
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    assert_eq!(next_line(&mut out), "19\t19\n");
    assert_eq!(next_line(&mut out), "20\t20\n");
    // The command that follows may be reading just now. Then this one waits.
    let append = |data: &str| {
        log(&s, &["append", "l", "a", data]).ok();
    };
    append("twenty-one");
    assert_eq!(next_line(&mut out), "21\ttwenty-one\n");
    // A process that keeps the store open is waited for.
    let engine = loop {
        let path = s.path("l");
        let env = Env::builder(HostFs::new(HostOptions::new(&path)).unwrap()).build();
        match LogEngine::open(&env, &path, LogEngineOptions::default()) {
            Ok(engine) => break engine,
            Err(e) => assert_eq!(e.kind(), basalt::ErrorKind::Busy, "{e}"),
        }
    };
    let held = engine.log("a").unwrap();
    held.append(30, b"thirty", &WriteOptions::SYNC).unwrap();
    let line = next_line(&mut err);
    assert!(
        line.contains("in use by process") && line.contains("waiting"),
        "{line}"
    );
    engine.close().unwrap();
    drop((held, engine));
    assert_eq!(next_line(&mut out), "30\tthirty\n");
    append("last");
    assert_eq!(next_line(&mut out), "31\tlast\n");
    // What was printed does not hold any more.
    log(&s, &["truncate", "l", "a", "--from", "31", "--yes"]).ok();
    let line = next_line(&mut err);
    assert!(
        line.contains("printed records of a were removed or replaced; the log now ends at LSN 30"),
        "{line}"
    );
    append("in its place");
    assert_eq!(next_line(&mut out), "31\tin its place\n");
    // The notice came a second time with the append, although nothing was removed since.
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("that were printed"), "{rest}");
}

#[test]
fn a_command_that_follows_ends_when_its_reader_has_gone() {
    let s = Scratch::new("log-follow-reader");
    log(&s, &["append", "l", "a", "one"]).ok();
    let mut child: Child = command(&s, &["tail", "-f", "l", "a"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_line(&mut out), "1\tone\n");
    drop(out);
    // No record comes any more that would make it write.
    child.wait().unwrap();
}

#[test]
fn an_append_that_fails_leaves_no_log() {
    let s = Scratch::new("log-append-fails");
    log(&s, &["append", "l", "a", "one"]).ok();
    let refused = log_with(&s, &["append", "l", "b", "--with-lsns"], b"x\n");
    refused.fails(2, &["line 1", "expected an LSN", "nothing was appended"]);
    let refused = log(
        &s,
        &["append", "l", "c", "x", "--lsn", "18446744073709551615"],
    );
    refused.fails(2, &["LSN"]);
    let names = json(log(&s, &["ls", "l", "--json"]));
    assert_eq!(names["logs"].as_array().unwrap().len(), 1, "{names}");
    // The largest LSN, and the largest record.
    let last = "18446744073709551614";
    log(&s, &["append", "end", "a", "x", "--lsn", last]).ok();
    let refused = log(&s, &["append", "end", "a", "y"]);
    refused.fails(2, &["the log a is full", last, "another log"]);
    let large = std::fs::File::create(s.path("large")).unwrap();
    large.set_len((1 << 30) + 1).unwrap();
    let refused = log(&s, &["append", "l", "c", "--file", "large"]);
    refused.fails(2, &["large has more than 1073741568 bytes", "a record"]);
    // Records that were appended before the failure stay, and so does their log.
    let refused = log_with(&s, &["append", "l", "b", "--with-lsns"], b"1\tx\ny\n");
    refused.fails(2, &["line 2", "appended and durable: line 1 (LSN 1)"]);
    assert_eq!(log(&s, &["dump", "l", "b"]).ok(), b"1\tx\n");
}

#[test]
fn damage_is_named_and_repaired() {
    let s = Scratch::new("log-damage");
    let engine = open(&s);
    for name in ["a", "b"] {
        let log = engine.create(name, LogOptions::default()).unwrap();
        for lsn in 1..=50u64 {
            let data = format!("{name}-{lsn}-").repeat(20);
            log.append(lsn, data.as_bytes(), &WriteOptions::SYNC)
                .unwrap();
        }
    }
    engine.close().unwrap();
    let mut files = tree(&s.path("l")).into_iter();
    let (name, mut bytes) = files
        .find(|(name, _)| name.extension().is_some_and(|e| e == "data"))
        .unwrap();
    let wanted = b"b-33-b-33-";
    let at = bytes
        .windows(wanted.len())
        .position(|w| w == wanted)
        .unwrap();
    bytes[at] ^= 4;
    std::fs::write(s.path("l").join(&name), &bytes).unwrap();
    let before = tree(&s.path("l"));

    let ran = log(&s, &["check", "l"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in [
        "lost: ",
        "LSN 33 of log \"b\"",
        &name.display().to_string(),
        "is damaged in 1 place: ",
        "99 records in 2 logs after a repair",
        "basalt log repair l",
    ] {
        assert!(ran.text().contains(part), "{part} is not in {}", ran.text());
    }
    let report = log(&s, &["check", "l", "--json"]);
    assert_eq!(report.code, Some(1));
    let report: serde_json::Value = serde_json::from_slice(&report.out).unwrap();
    assert_eq!(report["sound"], false);
    assert!(report["damage"][0]["offset"].as_u64().is_some(), "{report}");
    let lost = &report["losses"][0];
    assert_eq!((&lost["log"], &lost["first"]), (&"b".into(), &33.into()));
    assert_eq!(
        (&report["records"], &lost["records"]),
        (&99.into(), &1.into())
    );
    assert_eq!(tree(&s.path("l")), before);

    // Records before the damaged one are printed, and the error names it.
    let ran = log(&s, &["dump", "l", "b"]);
    assert_eq!(ran.text().lines().count(), 32);
    ran.fails(2, &["LSN 33 of log \"b\"", "basalt log check l"]);

    log(&s, &["repair", "l"]).fails(2, &["copy the directory", "--yes"]);
    assert_eq!(tree(&s.path("l")), before);
    let ran = log(&s, &["repair", "l", "--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in [
        "LSN 33 of log \"b\"",
        "kept 99 records in 2 logs; ",
        "moved aside: lost/",
    ] {
        assert!(ran.text().contains(part), "{part} is not in {}", ran.text());
    }
    log(&s, &["check", "l"]).ok();
    let dump = log(&s, &["dump", "l", "b"]).ok();
    assert_eq!(dump.iter().filter(|b| **b == b'\n').count(), 49);
    let again = log(&s, &["repair", "l", "--yes"]);
    assert!(again.text().contains("nothing was changed"), "{again:?}");
    again.ok();
}

#[test]
fn images_have_log_stores_too() {
    let s = Scratch::new("log-image");
    log(&s, &["append", "i:logs", "a", "x"]).fails(2, &["there is no image i", "--size 20G"]);
    log(&s, &["append", "i", "a", "x", "--size", "64M"])
        .fails(2, &["name the store in it", "i:logs"]);
    let ran = log(&s, &["append", "i:logs", "a", "one", "--size", "64M"]);
    assert!(ran.err.contains("made i, 64.00 MiB"), "{}", ran.err);
    ran.ok();
    assert_eq!(log(&s, &["append", "i:logs", "a", "two"]).ok(), b"2\n");
    assert_eq!(log(&s, &["dump", "i:logs", "a"]).ok(), b"1\tone\n2\ttwo\n");
    assert_eq!(
        log(&s, &["tail", "-n", "1", "i:logs", "a"]).ok(),
        b"2\ttwo\n"
    );
    let report = json(log(&s, &["check", "i:logs", "--json"]));
    assert_eq!(
        (&report["dir"], &report["image"]),
        (&"logs".into(), &"i".into())
    );
    log(&s, &["trim", "i:logs", "a", "--up-to", "1", "--yes"]).ok();
    log(&s, &["check", "i:logs"]).ok();
    log(&s, &["ls", "i:other"]).fails(2, &["no store other in i"]);
    log(&s, &["ls", "i"]).fails(2, &["i is not a directory", "i:PATH"]);
    fs(&s, &["check", "i"]).ok();
    fs(&s, &["cp", "i:logs", "copy"]).ok();
    assert_eq!(log(&s, &["dump", "copy", "a"]).ok(), b"2\ttwo\n");
}

/// A store of keys has logs only if it was given some, and a store of logs has no keys: neither is
/// damaged by a command for the other kind.
#[test]
fn stores_of_keys_and_of_logs_are_told_apart() {
    let s = Scratch::new("log-kinds");
    s.run("put", ["k", "v"]).ok();
    log(&s, &["append", "l", "a", "x"]).ok();
    let before = tree(&s.dir);
    for args in [
        &["ls", "db"][..],
        &["trim", "db", "a", "--up-to", "1", "--yes"],
        &["check", "db"],
        &["repair", "db", "--yes"],
    ] {
        log(&s, args).fails(2, &["has no logs", "basalt log append db LOG"]);
    }
    let keys = |command: &str, args: &[&str]| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
        c.current_dir(&s.dir)
            .arg(command)
            .args(["--dir", "l"])
            .args(args);
        let c = c.stdin(Stdio::null()).stdout(Stdio::piped());
        ended(c.stderr(Stdio::piped()).spawn().unwrap())
    };
    keys("check", &[]).fails(2, &["l holds a store of logs", "basalt log"]);
    keys("repair", &["--yes"]).fails(2, &["holds a store of logs"]);
    keys("put", &["k", "v"]).fails(2, &["holds a store of logs"]);
    keys("get", &["k"]).fails(2, &["holds a store of logs"]);
    assert_eq!(tree(&s.dir), before);
    s.file("other/x", b"x");
    log(&s, &["append", "other", "a", "x"])
        .fails(2, &["other files, such as x", "--allow-nonempty-dir"]);
    log(&s, &["append", "other", "a", "x", "--allow-nonempty-dir"]).ok();
    log(&s, &["append", "other", "a", "y"]).ok();
}

/// One store has keys and logs, and each command for the store covers both.
#[test]
fn a_store_of_keys_has_logs_beside_them() {
    let s = Scratch::new("log-beside");
    s.run("put", ["k", "v"]).ok();
    assert!(json(s.run("stats", ["--json"]))["logs"].is_null());
    let made = log(&s, &["append", "db", "a", "one"]);
    assert!(made.err.contains("made the log a in db"), "{}", made.err);
    made.ok();
    assert_eq!(log(&s, &["append", "db", "a", "two"]).ok(), b"2\n");
    assert_eq!(log(&s, &["dump", "db", "a"]).ok(), b"1\tone\n2\ttwo\n");
    assert_eq!(s.run("get", ["k"]).ok(), b"v");
    let stats = json(s.run("stats", ["--json"]));
    assert_eq!(stats["logs"]["records"], 2, "{stats}");
    let text = s.run("stats", [""; 0]);
    assert!(text.text().contains("1 / 2"), "{}", text.text());
    let report = json(s.run("check", ["--json"]));
    assert_eq!(
        (&report["sound"], &report["logs"]["records"]),
        (&true.into(), &2.into())
    );
    let copied = json(s.run("checkpoint", ["copy", "--json"]));
    assert!(copied["logs"]["files"].as_u64() > Some(0), "{copied}");
    assert_eq!(log(&s, &["dump", "copy", "a"]).ok(), b"1\tone\n2\ttwo\n");

    // A log of the server is only read.
    let path = s.path("db");
    let env = Env::builder(HostFs::new(HostOptions::new(&path)).unwrap()).build();
    let store = Store::open(&env, &path, StoreOptions::default()).unwrap();
    let logs = store.logs().unwrap();
    let stream = logs.create("redis.stream.0.1", LogOptions::default());
    let stream = stream.unwrap();
    stream.append(1, b"entry", &WriteOptions::SYNC).unwrap();
    store.close().unwrap();
    for change in [
        &["append", "db", "redis.stream.0.1", "x"][..],
        &["trim", "db", "redis.stream.0.1", "--up-to", "1", "--yes"],
        &["truncate", "db", "redis.stream.0.1", "--from", "1", "--yes"],
        &["rm", "db", "redis.stream.0.1", "--yes"],
    ] {
        let refused = log(&s, change);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("XTRIM"), "{}", refused.err);
    }
    let dumped = log(&s, &["dump", "db", "redis.stream.0.1"]).ok();
    assert_eq!(dumped, b"1\tentry\n");

    // Damage of the logs is damage of the store.
    let files = tree(&s.path("db/logs"));
    let data = |name: &std::path::Path| name.extension().is_some_and(|e| e == "data");
    for (name, mut bytes) in files.into_iter().filter(|(name, _)| data(name)) {
        if let Some(at) = bytes.windows(3).position(|w| w == b"two") {
            bytes[at] ^= 1;
            std::fs::write(s.path("db/logs").join(name), bytes).unwrap();
        }
    }
    let ran = s.run("check", [""; 0]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["LSN 2 of log \"a\"", "basalt repair"] {
        assert!(ran.text().contains(part), "{part} is not in {}", ran.text());
    }
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["lost: ", "LSN 2 of log \"a\"", "kept 2 records in 2 logs; "] {
        assert!(ran.text().contains(part), "{part} is not in {}", ran.text());
    }
    s.run("check", [""; 0]).ok();
    assert_eq!(log(&s, &["dump", "db", "a"]).ok(), b"1\tone\n");
    assert_eq!(s.run("get", ["k"]).ok(), b"v");
}

/// A user can make room in a full image: `trim` and `rm` succeed.
#[test]
fn logs_in_a_full_image_are_trimmed_and_removed() {
    let s = Scratch::new("log-full");
    s.file("record", vec![7; 1 << 20]);
    for round in 0..3 {
        let mut runs = 0;
        let full = loop {
            let name = ["a", "b"][runs % 2];
            let args = [
                "append", "i:logs", name, "--file", "record", "--size", "16M",
            ];
            let ran = log(&s, &args);
            if ran.code != Some(0) {
                break ran;
            }
            runs += 1;
        };
        let trim = format!("log trim i:logs {} --up-to LSN", ["a", "b"][runs % 2]);
        for part in ["the image is full", &trim] {
            assert!(full.err.contains(part), "{full:?}");
        }
        // A store that is not there has nothing to trim.
        let new = log(&s, &["append", "i:other", "a", "--file", "record"]);
        assert_eq!(new.code, Some(2), "{new:?}");
        assert!(!new.err.contains("log trim"), "{new:?}");
        assert!(runs >= 8, "round {round}: only {runs} records fitted");
        let stat = json(log(&s, &["stat", "i:logs", "a", "--json"]));
        let last = stat["last"].as_u64().expect("it has records").to_string();
        log(&s, &["trim", "i:logs", "a", "--up-to", &last, "--yes"]).ok();
        log(&s, &["rm", "i:logs", "b", "--yes"]).ok();
    }
    log(&s, &["check", "i:logs"]).ok();
}

/// The command ends with a message, and not by the signal SIGXFSZ.
#[test]
fn a_write_beyond_the_limit_on_file_sizes_is_an_error() {
    let s = Scratch::new("log-limit");
    s.file("record", vec![7; 2 << 20]);
    let limited = |args: &str| {
        let mut shell = Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_basalt");
        // Units of 512 bytes or of 1 KiB.
        let script = format!("ulimit -f 1024; exec {binary} log {args}");
        shell.current_dir(&s.dir).args(["-c", &script]);
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        ended(shell.stderr(Stdio::piped()).spawn().unwrap())
    };
    limited("append l a first").ok();
    limited("append l a --file record").fails(2, &["ulimit -f", "l/"]);
    limited("trim l a --up-to 1 --yes").ok();
    log(&s, &["check", "l"]).ok();
}

/// The write of many lines fails. The message says with which line to continue, and all lines
/// before it are in the log.
#[test]
fn a_failed_write_of_lines_says_with_which_line_to_continue() {
    const LINES: u64 = 600_000;
    let s = Scratch::new("log-go-on");
    let lines: String = (1..=LINES).map(|n| format!("{n}\n")).collect();
    s.file("lines", lines.into_bytes());
    let binary = env!("CARGO_BIN_EXE_basalt");
    // Units of 512 bytes or of 1 KiB.
    let script = format!("ulimit -f 8192; exec {binary} log append l a < lines");
    let mut shell = Command::new("sh");
    shell.current_dir(&s.dir).args(["-c", &script]);
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = ended(shell.spawn().unwrap());
    let message = failed.err.clone();
    failed.fails(2, &["ulimit -f", "; appended and durable: lines 1 to "]);
    let (_, next) = message
        .rsplit_once("continue with line ")
        .expect("it says so");
    let next: u64 = next.trim().parse().unwrap();
    assert!(next > 1 && next < LINES, "{next}");
    let stat = json(log(&s, &["stat", "l", "a", "--json"]));
    assert_eq!(stat["records"].as_u64(), Some(next - 1));
}
