//! Stores of logs, and of keys with logs beside them, as users meet them: one lock, lost and cut
//! files, torn tails, directories without the right to write, and copies of logs.
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage and look at the host's files by hand"
)]

mod harness;
use basalt::fs::{HostFs, HostOptions};
use basalt::{Db, Env, Options, Store, StoreOptions};
use basalt_log::{Duplicates, LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use harness::{Ran, Scratch, ended, json, tree};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const NONE: [&str; 0] = [];

fn basalt(s: &Scratch, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_basalt"));
    c.current_dir(&s.dir).args(args).stdin(Stdio::null());
    c.stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

fn log(s: &Scratch, args: &[&str]) -> Ran {
    let all = [&["log"], args].concat();
    ended(basalt(s, &all).spawn().expect("the tool starts"))
}

fn log_with(s: &Scratch, args: &[&str], input: &[u8]) -> Ran {
    let all = [&["log"], args].concat();
    let mut child = basalt(s, &all).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses a line closes the pipe.
    let _ = stdin.write_all(input);
    drop(stdin);
    ended(child)
}

fn env(path: &Path) -> Env {
    Env::builder(HostFs::new(HostOptions::new(path)).unwrap()).build()
}

fn open(s: &Scratch) -> LogEngine {
    let path = s.path("l");
    LogEngine::open(&env(&path), &path, LogEngineOptions::default()).unwrap()
}

/// Copies a directory, as a power cut would leave it: without locks.
fn copy(s: &Scratch, from: &str, to: &str) {
    for (name, content) in tree(&s.path(from)) {
        s.file(Path::new(to).join(name), content);
    }
}

/// Returns the only file with this extension.
fn file_of(s: &Scratch, dir: &str, extension: &str) -> std::path::PathBuf {
    let files = tree(&s.path(dir)).into_iter().map(|(name, _)| name);
    let mut files = files.filter(|name| name.extension().is_some_and(|e| e == extension));
    s.path(dir).join(files.next().expect("there is one"))
}

#[test]
fn lost_logs_of_a_store_of_keys_are_damage() {
    let s = Scratch::new("logs-lost");
    s.run("put", ["k", "v"]).ok();
    log(&s, &["append", "db", "a", "one"]).ok();
    // A store of a program that has logs and never had a table.
    let path = s.path("other");
    let store = Store::open(&env(&path), &path, StoreOptions::default()).unwrap();
    store.logs().unwrap();
    store.close().unwrap();
    std::fs::remove_dir_all(path.join("logs")).unwrap();
    log(&s, &["ls", "other"]).fails(2, &["other is damaged", "they are missing"]);

    for (case, left) in [
        ("gone", None),
        ("empty", Some("")),
        ("locked", Some("LOCK")),
    ] {
        let dir = format!("db-{case}");
        copy(&s, "db", &dir);
        std::fs::remove_dir_all(s.path(&dir).join("logs")).unwrap();
        if let Some(left) = left {
            std::fs::create_dir(s.path(&dir).join("logs")).unwrap();
            if !left.is_empty() {
                s.file(Path::new(&dir).join("logs").join(left), b"");
            }
        }
        let before = tree(&s.path(&dir));
        let advice = format!("basalt repair --dir {dir}");
        let checked = log(&s, &["check", &dir]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        for part in [
            "damage: ",
            "the store has logs, and they are missing",
            &advice,
        ] {
            assert!(checked.text().contains(part), "{part}: {checked:?}");
        }
        let report = log(&s, &["check", &dir, "--json"]);
        assert_eq!(report.code, Some(1), "{report:?}");
        let report: serde_json::Value = serde_json::from_slice(&report.out).unwrap();
        assert_eq!(report["sound"], false);
        for command in [
            &["ls", &dir][..],
            &["stat", &dir],
            &["dump", &dir, "a"],
            &["tail", &dir, "a"],
            &["trim", &dir, "a", "--up-to", "1", "--yes"],
            &["truncate", &dir, "a", "--from", "1", "--yes"],
            &["rm", &dir, "a", "--yes"],
            &["repair", &dir, "--yes"],
        ] {
            let ran = log(&s, command);
            ran.fails(2, &["is damaged", "they are missing", "basalt check --dir"]);
        }
        assert_eq!(tree(&s.path(&dir)), before);
        log(&s, &["append", &dir, "a", "x"]).fails(2, &["is damaged", "they are missing"]);
        // The directory of the logs is another name of them.
        let logs = format!("{dir}/logs");
        let refused = ["is damaged", "they are missing"];
        log(&s, &["append", &logs, "a", "x"]).fails(2, &refused);
        log(&s, &["ls", &logs]).fails(2, &refused);
        log(&s, &["repair", &logs, "--yes"]).fails(2, &refused);
        let checked = log(&s, &["check", &logs]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        assert!(checked.text().contains("they are missing"), "{checked:?}");
        // A refused append opened the tables for writing, which wrote a new manifest.
        assert_eq!(tree(&s.path(&dir)), before);
        let at = |args: &[&str]| ended(basalt(&s, args).spawn().unwrap());
        let checked = at(&["check", "--dir", &dir]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        assert!(checked.text().contains("they are missing"), "{checked:?}");
        let repaired = at(&["repair", "--dir", &dir, "--yes"]);
        assert_eq!(repaired.code, Some(1), "{repaired:?}");
        assert!(
            repaired
                .text()
                .contains("lost: the logs of the store are missing"),
            "{repaired:?}"
        );
        log(&s, &["check", &dir]).ok();
        assert_eq!(log(&s, &["append", &dir, "a", "new"]).ok(), b"1\n");
    }
}

/// Keys and logs of one store are under one lock, whichever of the two a command works on.
#[test]
fn a_store_of_keys_and_logs_has_one_lock() {
    let s = Scratch::new("logs-lock");
    s.run("put", ["k", "v"]).ok();
    log(&s, &["append", "db", "a", "one"]).ok();
    let path = s.path("db");
    let ours = format!("in use by process {} (", std::process::id());
    let writes: [&[&str]; 4] = [
        &["append", "db", "a", "x"],
        // The directory of the logs is another name of them.
        &["append", "db/logs", "a", "x"],
        &["trim", "db", "a", "--up-to", "1", "--yes"],
        &["repair", "db", "--yes"],
    ];
    let reads: [&[&str]; 3] = [&["ls", "db"], &["check", "db"], &["dump", "db/logs", "a"]];
    let with_no_wait = |args: &[&str]| log(&s, &[args, &["--wait", "0"]].concat());

    // A program with the tables alone.
    let db = Db::open(&env(&path), &path, Options::default()).unwrap();
    for args in writes.iter().chain(&reads) {
        let ran = with_no_wait(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.err.contains(&ours), "{args:?}: {ran:?}");
    }
    let waiting = ["log", "append", "db", "a", "two", "--wait", "600"];
    let mut child = basalt(&s, &waiting).spawn().unwrap();
    let mut line = String::new();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    err.read_line(&mut line).unwrap();
    assert!(line.contains("waiting until it is free"), "{line}");
    db.close().unwrap();
    assert_eq!(ended(child).ok(), b"2\n");

    // Readers of the keys and of the logs run side by side, and exclude writers of both.
    let reader = Db::open_read_only(&env(&path), &path, Options::default()).unwrap();
    for args in &reads {
        with_no_wait(args).ok();
    }
    for args in &writes {
        assert_eq!(with_no_wait(args).code, Some(2), "{args:?}");
    }
    s.run("check", NONE).ok();
    reader.close().unwrap();

    // A command that appends to a log holds the keys, too.
    let mut appends = basalt(&s, &["log", "append", "db", "b"]);
    let mut child = appends.stdin(Stdio::piped()).spawn().unwrap();
    let theirs = format!("in use by process {} (", child.id());
    // A pipe has 64 KiB, so the command reads before all is written, and it locks before it reads.
    let record = "x".repeat(256 << 10);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(record.as_bytes()).unwrap();
    for (command, args) in [("put", &["k", "w"][..]), ("del", &["k"]), ("get", &["k"])] {
        s.run(command, args).fails(2, &[&theirs, "stop it"]);
    }
    drop(stdin);
    let ran = ended(child);
    assert!(ran.err.contains("made the log b in db"), "{ran:?}");
    ran.ok();
    s.run("put", ["k", "w"]).ok();
    let dumped = log(&s, &["dump", "db", "b"]).ok();
    assert_eq!(dumped, format!("1\t{record}\n").into_bytes());
    s.run("check", NONE).ok();

    // A store of logs alone has its own lock, and one of keys alone gets no logs by being asked.
    log(&s, &["append", "l", "a", "x"]).ok();
    log(&s, &["rm", "l", "a", "--yes"]).ok();
    s.file("foreign/7.log", b"a program's own");
    log(&s, &["rm", "foreign", "a", "--yes"]).fails(2, &["there is no log store in foreign"]);
    assert_eq!(tree(&s.path("foreign")).len(), 1);
}

#[test]
fn a_check_counts_each_byte_once() {
    let s = Scratch::new("logs-size");
    let input: String = (0..20_000).map(|n| format!("record {n}\n")).collect();
    log_with(&s, &["append", "l", "a"], input.as_bytes()).ok();
    let report = json(log(&s, &["check", "l", "--json"]));
    let files: u64 = tree(&s.path("l")).iter().map(|(_, c)| c.len() as u64).sum();
    let (read, live) = (
        report["bytes"].as_u64().unwrap(),
        report["live_bytes"].as_u64().unwrap(),
    );
    assert!(read <= files && read > live, "{read} of {files}: {report}");
}

#[test]
fn a_file_that_is_cut_in_its_header_is_called_cut() {
    let s = Scratch::new("logs-cut");
    log(&s, &["append", "l", "a", "one"]).ok();
    let data = file_of(&s, "l", "data");
    let whole = std::fs::read(&data).unwrap();
    for len in [0, 100, 200, 300] {
        std::fs::write(&data, &whole[..len]).unwrap();
        let ran = log(&s, &["check", "l"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let cut = format!("the file is cut at byte {len}, inside of its header");
        assert!(
            ran.text().contains(&cut) && !ran.text().contains("zeros"),
            "{ran:?}"
        );
    }
}

/// A check says how many bytes of which file the next open cuts.
#[test]
fn a_torn_tail_is_named_with_its_bytes() {
    let s = Scratch::new("logs-torn");
    s.run("put", ["k", "v"]).ok();
    let path = s.path("db");
    let store = Store::open(&env(&path), &path, StoreOptions::default()).unwrap();
    let made = store.logs().unwrap().create("a", LogOptions::default());
    let a = made.unwrap();
    a.append(1, b"synced", &WriteOptions::SYNC).unwrap();
    a.append(2, &[b'x'; 3000], &WriteOptions::UNSYNCED).unwrap();
    let family = store.db().default_family();
    let db = store.db();
    db.put(&family, b"kept", b"1", &basalt::WriteOptions::SYNC)
        .unwrap();
    db.put(
        &family,
        b"torn",
        &[b'y'; 2000],
        &basalt::WriteOptions::default(),
    )
    .unwrap();
    copy(&s, "db", "crashed");
    drop(a);
    store.close().unwrap();
    let tear = |dir: &str, byte: u8| -> (String, u64) {
        for (name, mut content) in tree(&s.path(dir)) {
            let wanted = [byte; 500];
            if let Some(at) = content.windows(500).position(|w| w == wanted) {
                content[at + 100] ^= 1;
                std::fs::write(s.path(dir).join(&name), content).unwrap();
                return (name.display().to_string(), at as u64);
            }
        }
        panic!("no file of {dir} has the record");
    };
    let torn = [
        ("crashed/logs", tear("crashed/logs", b'x'), 3000),
        ("crashed", tear("crashed", b'y'), 2000),
    ];
    let checks = [
        log(&s, &["check", "crashed"]),
        ended(basalt(&s, &["check", "--dir", "crashed"]).spawn().unwrap()),
    ];
    for ((dir, (name, at), len), ran) in torn.iter().zip(checks) {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let path = s.path(dir).join(name).display().to_string();
        let line = ran.text().lines().find(|line| line.contains(&path));
        let line = line.unwrap_or_else(|| panic!("{path} is not in {}", ran.text()));
        let start = format!("torn tail of a log: {path} from offset ");
        let rest = line.strip_prefix(&start);
        let rest = rest.unwrap_or_else(|| panic!("{start} does not begin {line}"));
        let (from, rest) = rest.split_once(", at most ").unwrap();
        let (bytes, rest) = rest.split_once(" bytes ").unwrap();
        let (from, bytes): (u64, u64) = (from.parse().unwrap(), bytes.parse().unwrap());
        assert!(from < *at && from + bytes >= at + len, "{line}");
        assert!(bytes < len + 1000, "{line}");
        assert!(rest.contains("the next open cuts it"), "{line}");
    }
    log(&s, &["append", "crashed", "a", "next"]).ok();
    let dump = log(&s, &["dump", "crashed", "a"]).ok();
    assert_eq!(dump, b"1\tsynced\n2\tnext\n");
    assert!(!log(&s, &["check", "crashed"]).text().contains("torn"));
}

/// What `dump` prints makes an equal log, with gaps and any bytes.
#[test]
fn a_dump_can_be_appended_with_its_lsns() {
    let s = Scratch::new("logs-copy");
    let engine = open(&s);
    let a = engine.create("a", LogOptions::default()).unwrap();
    let random = basalt::env::Random::from_seed(7);
    let mut lsn = 0;
    for n in 0..300u64 {
        lsn += 1 + random.below(3);
        let len = [0, 1, 40, 3000][n as usize % 4];
        let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        a.append(lsn, &bytes, &WriteOptions::UNSYNCED).unwrap();
    }
    // Ends of lines, escapes, and the largest LSN.
    let special: [&[u8]; 6] = [
        b"\r",
        b"x\r\n",
        b"\\t\t",
        b"\n\n",
        b"\0",
        "caf\u{e9} \u{202e}".as_bytes(),
    ];
    for bytes in special {
        lsn += 1;
        a.append(lsn, bytes, &WriteOptions::UNSYNCED).unwrap();
    }
    a.append(basalt_log::MAX_LSN, b"last", &WriteOptions::SYNC)
        .unwrap();
    drop(a);
    engine.close().unwrap();
    for store in ["copy", "db"] {
        if store == "db" {
            s.run("put", ["k", "v"]).ok();
        }
        let dump = log(&s, &["dump", "l", "a"]).ok();
        let ran = log_with(&s, &["append", store, "a", "--with-lsns"], &dump);
        let last = basalt_log::MAX_LSN;
        let first = String::from_utf8_lossy(&dump)
            .split_once('\t')
            .unwrap()
            .0
            .to_string();
        assert_eq!(
            String::from_utf8_lossy(&ran.ok()),
            format!("307 records, LSNs {first} to {last}\n")
        );
        for form in [&[][..], &["--raw"], &["--json"]] {
            let read = |store: &str| log(&s, &[&["dump", store, "a"], form].concat()).ok();
            assert!(read("l") == read(store), "{store} {form:?}");
        }
        let stat = |store: &str| {
            let mut stat = json(log(&s, &["stat", store, "a", "--json"]));
            stat["bytes"].take();
            stat
        };
        assert_eq!(stat("l"), stat(store));
    }
    let empty = log_with(&s, &["append", "copy", "b", "--with-lsns", "--json"], b"");
    assert_eq!(json(empty)["records"], 0);
}

/// A message that advises a command quotes the names in it for the shell.
#[test]
fn advice_quotes_names_for_the_shell() {
    let s = Scratch::new("logs-quotes");
    let name = "a; touch gone";
    log(&s, &["append", "my logs", name, "x"]).ok();
    log(&s, &["append", "my logs", name, "x", "--lsn", "1"])
        .fails(2, &["`basalt log stat 'my logs' 'a; touch gone'`"]);
    log(&s, &["stat", "my logs", "b"]).fails(2, &["`basalt log ls 'my logs'`"]);
    log(&s, &["ls", "no logs"]).fails(2, &["`basalt log append 'no logs' LOG`"]);
}

/// A failure names the line that caused it, and all lines before it are durable.
#[test]
fn a_line_that_is_refused_is_named() {
    let s = Scratch::new("logs-lines");
    log(&s, &["append", "l", "a", "nine", "--lsn", "9"]).ok();
    log(&s, &["append", "l", "a", "seven", "--lsn", "7"]).ok();
    let refused = log_with(&s, &["append", "l", "a", "--lsn", "5"], b"5\n6\n7\n8\n");
    refused.fails(
        2,
        &[
            "line 3 of standard input: ",
            "has a record with LSN 7",
            "; appended and durable: lines 1 to 2 (LSNs 5 to 6)",
        ],
    );
    let append = |input: &str| log_with(&s, &["append", "l", "a", "--with-lsns"], input.as_bytes());
    append("20\ta\n25\tb\n21\tc\n25\td\n").fails(
        2,
        &[
            "line 4 of",
            "has a record with LSN 25",
            "; appended and durable: lines 1 to 3 (LSNs 20 to 25)",
        ],
    );
    log(&s, &["trim", "l", "a", "--up-to", "6", "--yes"]).ok();
    append("30\tx\n6\ty\n").fails(
        2,
        &[
            "line 2 of",
            "up to which the log was trimmed",
            "; appended and durable: line 1 (LSN 30)",
        ],
    );
    for (line, part) in [
        ("no tab", "an LSN, a tab and a record"),
        ("x\ty", "an LSN, a tab and a record"),
        ("\ty", "an LSN, a tab and a record"),
        ("-1\ty", "an LSN, a tab and a record"),
        ("18446744073709551616\ty", "an LSN, a tab and a record"),
        ("18446744073709551615\ty", "18446744073709551615"),
        ("40\t\\q", "\\q is unknown"),
        ("", "an LSN, a tab and a record"),
    ] {
        let ran = append(&format!("{line}\n"));
        ran.fails(
            2,
            &["line 1 of standard input: ", part, "nothing was appended"],
        );
    }
    let dump = log(&s, &["dump", "l", "a"]).ok();
    let dump = String::from_utf8(dump).unwrap();
    assert_eq!(dump, "7\tseven\n9\tnine\n20\ta\n21\tc\n25\tb\n30\tx\n");

    // A log that replaces records takes all of them.
    let engine = open(&s);
    let replaces = LogOptions::default().duplicates(Duplicates::Replace);
    engine.create("r", replaces).unwrap();
    engine.close().unwrap();
    let twice = b"1\ta\n2\tb\n1\tc\n1\td\n";
    log_with(&s, &["append", "l", "r", "--with-lsns"], twice).ok();
    assert_eq!(log(&s, &["dump", "l", "r"]).ok(), b"1\td\n2\tb\n");
}

/// Commands that only read need no right to write, and the others say what to do.
#[test]
fn a_directory_without_the_right_to_write_can_be_read() {
    let s = Scratch::new("logs-read-only");
    s.run("put", ["k", "v"]).ok();
    log(&s, &["append", "db", "a", "one"]).ok();
    log(&s, &["append", "l", "a", "one"]).ok();
    let image = ["put", "--image", "i", "--size", "64M", "k", "v"];
    ended(basalt(&s, &image).spawn().unwrap()).ok();
    let binary = s.path("basalt");
    std::fs::copy(env!("CARGO_BIN_EXE_basalt"), &binary).unwrap();
    let set = |mode: u32, file_mode: u32| {
        for (name, _) in tree(&s.dir) {
            let path = s.path(name);
            let executes = if path == binary { 0o111 } else { 0 };
            let mode = std::fs::Permissions::from_mode(file_mode | executes);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        for dir in ["db/logs", "db", "l", ""] {
            std::fs::set_permissions(s.path(dir), std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o555, 0o444);
    let before = tree(&s.dir);
    let run = |args: &[&str]| {
        let mut c = Command::new(&binary);
        c.current_dir(&s.dir).args(args).stdin(Stdio::null());
        c.stdout(Stdio::piped()).stderr(Stdio::piped());
        if rustix::process::geteuid().is_root() {
            // The superuser may write everywhere.
            c.uid(65_534).gid(65_534);
        }
        ended(c.spawn().unwrap())
    };
    for args in [
        &["get", "--dir", "db", "k"][..],
        &["scan", "--dir", "db"],
        &["export", "--dir", "db"],
        &["stats", "--dir", "db"],
        &["blob", "list", "--dir", "db"],
        &["blob", "verify", "--dir", "db"],
        &["check", "--dir", "db"],
        &["log", "ls", "db"],
        &["log", "check", "db"],
        &["log", "ls", "l"],
        &["log", "stat", "l"],
        &["log", "stat", "l", "a"],
        &["log", "dump", "l", "a"],
        &["log", "tail", "l", "a"],
        &["log", "check", "l"],
        &["get", "--image", "i", "k"],
        &["check", "--image", "i"],
        &["fs", "ls", "i"],
        &["fs", "check", "i"],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
    for args in [
        &["put", "--dir", "db", "k", "v"][..],
        &["put", "--dir", "new", "k", "v"],
        &["del", "--dir", "db", "k"],
        &["load", "--dir", "db"],
        &["compact", "--dir", "db"],
        &["checkpoint", "--dir", "db", "out"],
        &["repair", "--dir", "db", "--yes"],
        &["serve", "--dir", "db", "--listen", "127.0.0.1:0"],
        &["log", "append", "db", "a", "x"],
        &["log", "append", "l", "a", "x"],
        &["log", "append", "new", "a", "x"],
        &["log", "trim", "l", "a", "--up-to", "1", "--yes"],
        &["log", "truncate", "l", "a", "--from", "1", "--yes"],
        &["log", "rm", "l", "a", "--yes"],
        &["log", "repair", "l", "--yes"],
        &["put", "--image", "i", "k", "v"],
        &["fs", "mkdir", "i", "x"],
        &["fs", "format", "j", "--size", "64M"],
    ] {
        let ran = run(args);
        let parts = ["run the command as the owner", "work on a copy"];
        assert!(
            parts.iter().all(|part| ran.err.contains(part)),
            "{args:?}: {ran:?}"
        );
        ran.fails(2, &parts);
    }
    assert_eq!(tree(&s.dir), before);
    // A file that may not be read needs other advice.
    set(0o555, 0o222);
    let ran = run(&["log", "ls", "l"]);
    assert!(!ran.err.contains("no write permission"), "{ran:?}");
    ran.fails(2, &["permission denied", "run the command as the owner"]);
    set(0o755, 0o644);
}
