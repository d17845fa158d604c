//! `put`, `get`, `del`, `scan`, and the text formats of `load` and `export`, with the real binary.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Scratch, ended};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

const NONE: [&str; 0] = [];

#[test]
fn a_put_value_is_returned_until_it_is_deleted() {
    let s = Scratch::new("put");
    s.run("put", ["greeting", "hello"]).ok();
    assert_eq!(
        s.run("get", ["greeting"]).ok(),
        b"hello",
        "no byte is added"
    );
    s.run_with("put", ["piped"], b"from\0a pipe\n").ok();
    assert_eq!(s.run("get", ["piped"]).ok(), b"from\0a pipe\n");
    s.run_with("put", ["piped", "-"], b"").ok();
    assert_eq!(
        s.run("get", ["piped"]).ok(),
        b"",
        "an empty value is a value"
    );
    let file = s.file("value", [0xff; 70_000]);
    s.run(
        "put",
        [
            std::ffi::OsStr::new("big"),
            "--value-file".as_ref(),
            file.as_os_str(),
        ],
    )
    .ok();
    assert_eq!(s.run("get", ["big"]).ok(), [0xff; 70_000]);
    let strange = std::ffi::OsStr::from_bytes(b"k\xff\xfe");
    s.run("put", [strange, "raw".as_ref()]).ok();
    assert_eq!(s.run("get", ["-e", "k\\xff\\xfe"]).ok(), b"raw");

    assert_eq!(
        s.run("del", ["greeting", "piped", "greeting", "never"])
            .ok(),
        b"2\n"
    );
    let gone = s.run("get", ["greeting"]);
    assert_eq!(
        (gone.code, &gone.out[..], &gone.err[..]),
        (Some(1), &b""[..], "")
    );
    let gone = s.run("del", ["greeting"]);
    assert_eq!((gone.code, gone.text()), (Some(1), "0\n"));
    assert_eq!(s.run("check", NONE).code, Some(0));
}

#[test]
fn scan_prints_a_range_in_order_one_safe_line_an_entry() {
    let s = Scratch::new("scan");
    let text = "a\t1\nab\t2\nb\\n\\x1b\tx\\ty\nc\t\nd\\xff\t\\xfe\\\\\n";
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    assert_eq!(s.scan(), text);
    let scan = |args: &[&str]| String::from_utf8(s.run("scan", args).ok()).unwrap();
    assert_eq!(scan(&["--prefix", "a"]), "a\t1\nab\t2\n");
    assert_eq!(
        scan(&["--from", "ab", "--to", "c", "--keys-only"]),
        "ab\nb\\n\\x1b\n"
    );
    assert_eq!(
        scan(&["--reverse", "--limit", "2", "--keys-only"]),
        "d\\xff\nc\n"
    );
    assert_eq!(
        scan(&["--prefix", "a", "--from", "aa", "--reverse"]),
        "ab\t2\n"
    );
    assert_eq!(
        scan(&["-e", "--prefix", "d\\xff", "--keys-only"]),
        "d\\xff\n"
    );
    assert_eq!(scan(&["--from", "x"]), "");
    assert_eq!(scan(&["--from", "c", "--to", "b"]), "");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(
        scan(&["--json", "--from", "c"]),
        "{\"key\":\"c\",\"value\":\"\"}\n{\"key_b64\":\"ZP8=\",\"value_b64\":\"/lw=\"}\n"
    );
    assert_eq!(
        scan(&["--json", "--keys-only", "--limit", "1"]),
        "{\"key\":\"a\"}\n"
    );
}

#[test]
fn a_store_is_exported_and_loaded_in_both_formats() {
    let s = Scratch::new("formats");
    let mut text = String::new();
    for i in 0..3000 {
        text.push_str(&format!(
            "key-{i:05}\\x{:02x}\t{}\\n\\xff{i}\n",
            i % 256,
            "v".repeat(i % 700)
        ));
    }
    let ran = s.run_with("load", ["--format", "tsv"], text.as_bytes());
    assert!(
        ran.err.contains("loaded 3000 entries") && ran.err.contains("all 3000 are durable"),
        "{}",
        ran.err
    );
    assert!(
        !ran.err.contains('\r') && !ran.err.contains('\x1b'),
        "no bar without a terminal: {:?}",
        ran.err
    );
    ran.ok();
    let before = s.scan();
    for (i, format) in ["jsonl", "tsv"].iter().enumerate() {
        let file = format!("out.{format}");
        s.run("export", ["--output", &file]).ok();
        let to_stdout = s.run("export", ["--format", format]).ok();
        assert_eq!(to_stdout, std::fs::read(s.path(&file)).unwrap());
        let other = Scratch::new("formats-other");
        std::fs::copy(s.path(&file), other.path(&file)).unwrap();
        let args = if i == 0 {
            vec![file.as_str()]
        } else {
            vec!["-", "--format", format]
        };
        other.run_with("load", args, &to_stdout).ok();
        assert_eq!(other.scan(), before, "{format}");
    }
    let names: Vec<_> = std::fs::read_dir(&s.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        !names
            .iter()
            .any(|n| n.to_string_lossy().contains("partial")),
        "{names:?}"
    );
}

#[test]
fn an_expiry_is_exported_and_enforced() {
    let s = Scratch::new("expiry");
    s.run("put", ["session", "abc", "--expire-in", "100000"])
        .ok();
    s.run_with("load", NONE, b"{\"key\":\"old\",\"value\":\"x\",\"expire_at_ms\":1}\n{\"key\":\"far\",\"value\":\"y\",\"expire_at_ms\":99999999999999}\n")
        .ok();
    assert_eq!(s.run("get", ["old"]).code, Some(1));
    assert_eq!(s.run("get", ["session"]).ok(), b"abc");
    let lines = String::from_utf8(s.run("export", NONE).ok()).unwrap();
    assert!(
        lines.starts_with("{\"key\":\"far\",\"value\":\"y\",\"expire_at_ms\":99999999999999}\n"),
        "{lines}"
    );
    assert_eq!(lines.lines().count(), 2);
    let ran = s.run("export", ["--files", "out"]);
    assert!(ran.err.contains("2 entries have an expiry"), "{}", ran.err);
    s.run("put", ["session", "def"]).ok();
    assert!(
        s.scan().contains("session\tdef\n"),
        "a put without expiry takes it away"
    );
}

#[test]
fn a_wrong_line_is_named_and_earlier_lines_stay_loaded() {
    let s = Scratch::new("bad");
    let text =
        b"{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\"}\n{\"key\":\"c\",\"value\":\"3\"}\n";
    s.run_with("load", NONE, text).fails(
        2,
        &[
            "standard input, line 3",
            "neither \"value\"",
            "--skip-bad",
            "the 1 entry before it is in the store and durable",
        ],
    );
    assert_eq!(s.scan(), "a\t1\n");
    let file = s.file("in.jsonl", text);
    let ran = s.run("load", [file.as_os_str(), "--skip-bad".as_ref()]);
    assert!(
        ran.err.contains("in.jsonl, line 3") && ran.err.contains("1 entry could not be stored"),
        "{}",
        ran.err
    );
    ran.ok();
    assert_eq!(s.scan(), "a\t1\nc\t3\n");
    let key = format!("{}\tv\n", "k".repeat(65_537));
    s.run_with("load", ["--format", "tsv"], key.as_bytes())
        .fails(2, &["line 1", "the key has 65537 bytes", "64 KiB"]);
}

#[test]
fn families_are_separate_and_server_families_are_protected() {
    let s = Scratch::new("family");
    s.run("put", ["k", "redis"]).ok();
    s.run("put", ["--family", "mine", "k", "raw"]).ok();
    assert_eq!(s.run("get", ["k"]).ok(), b"redis");
    assert_eq!(s.run("get", ["--family", "mine", "k"]).ok(), b"raw");
    assert_eq!(s.run("scan", ["--family", "mine"]).ok(), b"k\traw\n");
    s.run("get", ["--family", "other", "k"])
        .fails(2, &["no family other", "default", "mine"]);
    s.run("put", ["--family", "redis.keys", "k", "v"])
        .fails(2, &["redis.keys", "leave --family out"]);
}

#[test]
fn errors_are_one_sentence_with_a_remedy() {
    let s = Scratch::new("errors");
    for command in ["scan", "stats", "check", "export"] {
        s.run(command, NONE)
            .fails(2, &["there is no store in db", "--dir", "basalt serve"]);
    }
    s.run("get", ["k"]).fails(2, &["there is no store in db"]);
    s.run("del", ["k"]).fails(2, &["there is no store in db"]);
    s.run("repair", ["--yes"])
        .fails(2, &["there is no store in db"]);
    assert!(
        !s.path("db").exists(),
        "commands that only look make nothing"
    );
    s.run("load", ["missing.jsonl"])
        .fails(2, &["cannot open missing.jsonl", "No such file"]);
    s.run("load", ["--files", "missing"])
        .fails(2, &["missing", "No such file"]);
    assert!(!s.path("db").exists(), "a load of nothing makes nothing");
    s.run("put", ["k".repeat(65_536).as_str(), "v"])
        .fails(2, &["the key has 65536 bytes"]);
    s.run("get", ["-e", "\\q"]).fails(2, &["\\q is unknown"]);
    s.file("db", b"a file");
    s.run("get", ["k"]).fails(2, &["db is not a directory"]);
    std::fs::remove_file(s.path("db")).unwrap();
    std::fs::create_dir(s.path("db")).unwrap();
    s.run("get", ["k"]).fails(2, &["there is no store in db"]);
    s.run("put", ["a", "1"]).ok();
    s.run("repair", NONE)
        .fails(2, &["copy the directory", "--yes"]);
    let wrong = s.run("scan", ["--no-such-flag"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("--no-such-flag"), "{}", wrong.err);
}

/// Regression test: `basalt put` in the wrong directory made a store among other files, without a
/// message.
#[test]
fn a_directory_of_other_files_is_not_taken_for_a_store() {
    let s = Scratch::new("foreign");
    s.file("db/notes.txt", "mine");
    let commands: [(&str, &[&str]); 3] = [
        ("put", &["k", "v"]),
        ("load", &["--format", "tsv"]),
        ("serve", &["--listen", "127.0.0.1:0"]),
    ];
    for (command, args) in commands {
        s.run(command, args).fails(
            2,
            &[
                "db holds files and no store (notes.txt)",
                "--dir",
                "--allow-nonempty-dir",
            ],
        );
    }
    s.run("get", ["k"]).fails(2, &["there is no store in db"]);
    let left = std::fs::read_dir(s.path("db"))
        .expect("it is there")
        .count();
    assert_eq!(left, 1, "nothing was made");
    s.run("put", ["--allow-nonempty-dir", "k", "v"]).ok();
    // The directory is a store now, and needs no flag.
    s.run("put", ["k2", "v2"]).ok();
    assert_eq!(s.run("get", ["k"]).ok(), b"v");
    s.run("check", [""; 0]).ok();
}

#[test]
fn help_explains_every_command() {
    let s = Scratch::new("help");
    let top = s.run("--help", NONE).ok();
    let top = String::from_utf8(top).unwrap();
    for part in [
        "A minute's tour",
        "Exit codes",
        "redis-cli set greeting hello",
    ] {
        assert!(top.contains(part), "{part}");
    }
    for command in [
        "serve",
        "put",
        "get",
        "del",
        "scan",
        "load",
        "export",
        "stats",
        "blob",
        "compact",
        "checkpoint",
        "check",
        "repair",
        "bench",
    ] {
        assert!(
            top.contains(&format!("  {command} ")),
            "{command} is not in the help"
        );
        let mut c = std::process::Command::new(env!("CARGO_BIN_EXE_basalt"));
        let help = c.args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(
            help.contains("Examples:") || help.contains("Exit codes:"),
            "{command} has no examples"
        );
        if command != "bench" {
            assert!(
                help.contains("--dir <DIR>") && help.contains("./basalt-data"),
                "{command} lacks --dir"
            );
        }
    }
}

#[test]
fn a_closed_pipe_ends_the_command_without_an_error() {
    let s = Scratch::new("pipe");
    let text: String = (0..20_000)
        .map(|i| format!("k{i:06}\t{}\n", "v".repeat(100)))
        .collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    for command in ["scan", "export"] {
        let mut child = s
            .command(command, NONE)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ran = ended(child);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{command}");
    }
}

#[test]
fn stats_and_check_print_json() {
    let s = Scratch::new("json");
    s.run("put", ["a", "1"]).ok();
    let json = |command: &str| -> serde_json::Value {
        serde_json::from_slice(&s.run(command, ["--json"]).ok()).unwrap()
    };
    let stats = json("stats");
    assert!(
        stats["families"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["name"] == "redis.keys"),
        "{stats}"
    );
    assert!(stats["cache"]["capacity_bytes"].as_u64().unwrap() > 0);
    let check = json("check");
    assert_eq!(check["sound"], true);
    assert!(
        check["entries"].as_u64().unwrap() >= 1 && check["bytes"].as_u64().unwrap() > 0,
        "{check}"
    );
    let text = String::from_utf8(s.run("stats", NONE).ok()).unwrap();
    for part in ["family redis.keys", "amplification", "cache", "memory"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = String::from_utf8(s.run("check", NONE).ok()).unwrap();
    assert!(text.contains("db is sound"), "{text}");
}

#[test]
fn damage_is_found_located_and_repaired() {
    let s = Scratch::new("damage");
    let text: String = (0..5000)
        .map(|i| format!("k{i:06}\t{}\n", "v".repeat(100)))
        .collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    let (name, _) = harness::tree(&s.path("db"))
        .into_iter()
        .filter(|(name, _)| !name.to_string_lossy().to_lowercase().contains("lock"))
        .max_by_key(|(name, content)| (name.extension().is_some_and(|e| e == "tbl"), content.len()))
        .unwrap();
    let path = s.path("db").join(&name);
    let mut content = std::fs::read(&path).unwrap();
    let middle = content.len() / 3;
    content[middle] ^= 0x40;
    std::fs::write(&path, content).unwrap();
    let ran = s.run("check", NONE);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.text().contains("damage: ") && ran.text().contains("basalt repair"),
        "{}",
        ran.text()
    );
    assert!(
        ran.text().contains(&*name.to_string_lossy()),
        "it says where: {}",
        ran.text()
    );
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("lost: "), "{}", ran.text());
    assert_eq!(s.run("check", NONE).code, Some(0));
    let left = s.scan();
    for line in left.lines() {
        assert!(text.contains(line), "a repair invents nothing: {line}");
    }
    assert!(
        left.lines().count() > 4000,
        "and loses no more than it must"
    );
}

/// The last entries of a store of Redis keys describe the other entries. If they are lost with the
/// end of a table, the store must not look empty.
#[test]
fn redis_keys_without_their_catalog_are_refused_until_repaired() {
    let s = Scratch::new("catalog");
    let text: String = (0..20_000)
        .map(|i| format!("k{i:06}\t{}\n", "v".repeat(100)))
        .collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    s.run("compact", NONE).ok();
    let tables = |s: &Scratch| {
        let names = harness::tree(&s.path("db")).into_iter();
        names.filter(|(name, _)| name.extension().is_some_and(|e| e == "tbl"))
    };
    let (name, content) = tables(&s).max_by_key(|(_, content)| content.len()).unwrap();
    let path = s.path("db").join(name);
    std::fs::write(path, &content[..content.len() / 2]).unwrap();
    let ran = s.run("repair", ["--yes"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.text()
            .contains("lost: the record of the layout of Redis keys"),
        "{}",
        ran.text()
    );
    let left = s.scan();
    assert!(left.lines().count() > 5000, "{}", left.lines().count());
    assert!(left.lines().all(|line| text.contains(line)));
    s.run("check", NONE).ok();
    assert!(
        s.run("repair", ["--yes"])
            .text()
            .contains("nothing is lost")
    );
}
