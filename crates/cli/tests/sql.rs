//! `basalt sql` without a database: arguments, help texts, and what is refused before a database is
//! opened.

mod harness;
use harness::{Ran, Scratch};

fn run(s: &Scratch, args: &[&str]) -> Ran {
    let mut all = vec!["sql"];
    all.extend(args);
    s.run_plain(all)
}

/// Asserts that nothing was made.
#[track_caller]
fn is_empty(s: &Scratch) {
    let there = harness::tree(&s.dir);
    assert!(there.is_empty(), "{there:?}");
}

#[test]
fn help_texts_are_shown() {
    let s = Scratch::new("sql-help");
    for (args, parts) in [
        (
            &["--help"][..],
            &[
                "Exit codes:",
                "load",
                "binlog",
                "restore",
                "--json-document",
            ][..],
        ),
        (&["load", "--help"], &["--from-line", "--dump", "pg_dump"]),
        (&["binlog", "--help"], &["tail", "show"]),
        (&["binlog", "tail", "--help"], &["--follow", "commit_time"]),
        (&["binlog", "show", "--help"], &["--json"]),
        (&["restore", "--help"], &["--to-time", "--into"]),
    ] {
        let ran = run(&s, args);
        for part in parts {
            assert!(
                ran.text().contains(part),
                "{args:?}: {part} in {}",
                ran.text()
            );
        }
        ran.ok();
    }
    is_empty(&s);
}

#[test]
fn wrong_arguments_make_nothing() {
    let s = Scratch::new("sql-arguments");
    for args in [
        &["--json", "--csv"][..],
        &["--json", "--json-document"],
        &["--history", "h", "--no-history"],
        &["unknown"],
        &["load"],
        &["load", "x.csv"],
        &["load", "x.csv", "--table", "t", "--csv", "--text"],
        &["load", "x.csv", "--table", "t", "--batch", "0"],
        &["load", "x.csv", "--table", "t", "--from-line", "0"],
        &["load", "x.csv", "--dump", "x.sql"],
        &["load", "--dump", "x.sql", "--table", "t"],
        &["load", "--dump", "x.sql", "--header"],
        &["load", "x.csv", "--table", "t", "--skip-unsupported"],
        &["binlog"],
        &["binlog", "tail", "--from", "x"],
        &[
            "restore",
            "--checkpoint",
            "c",
            "--binlog",
            "b",
            "--into",
            "i",
        ],
        &[
            "restore",
            "--checkpoint",
            "c",
            "--binlog",
            "b",
            "--into",
            "i",
            "--to-tsn",
            "1",
            "--to-time",
            "x",
        ],
    ] {
        let ran = run(&s, args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.out.is_empty(), "{args:?}: {ran:?}");
    }
    is_empty(&s);
}

#[test]
fn missing_files_and_databases_are_named() {
    let s = Scratch::new("sql-missing");
    run(&s, &["-f", "none.sql"]).fails(2, &["cannot open none.sql"]);
    run(&s, &["load", "none.csv", "--table", "t"]).fails(2, &["cannot open none.csv"]);
    run(&s, &["load", "--dump", "none.sql"]).fails(2, &["cannot open none.sql"]);
    run(&s, &["binlog", "tail", "--dir", "none"]).fails(
        2,
        &[
            "there is no database in none",
            "--dir",
            "basalt sql --dir none",
        ],
    );
    run(&s, &["binlog", "show"]).fails(2, &["there is no database in ./basalt-sql"]);
    is_empty(&s);
    s.file("rows.csv", "1\n");
    run(&s, &["load", "rows.csv", "--table", "t"])
        .fails(2, &["there is no database in ./basalt-sql"]);
    assert_eq!(harness::tree(&s.dir).len(), 1, "only the file is there");
}

#[test]
fn formats_of_a_load_are_checked_before_the_file_is_read() {
    let s = Scratch::new("sql-formats");
    s.file("rows.txt", "1\n");
    for (flags, parts) in [
        (&["--delimiter", "ab"][..], &["--delimiter", "\"ab\""][..]),
        (&["--delimiter", "é"], &["--delimiter"]),
        (&["--delimiter", "n"], &["delimiter cannot be \"n\""]),
        (
            &["--csv", "--quote", ","],
            &["delimiter and quote must be different"],
        ),
        (&["--csv", "--null", "a,b"], &["NULL"]),
        (&["--null", "a\nb"], &["null"]),
    ] {
        let args = [&["load", "rows.txt", "--table", "t"], flags].concat();
        run(&s, &args).fails(2, parts);
    }
    assert_eq!(harness::tree(&s.dir).len(), 1, "only the file is there");
}

#[test]
fn a_restore_checks_its_arguments_first() {
    let s = Scratch::new("sql-restore");
    let restore = |args: &[&str]| {
        let all = [
            &[
                "restore",
                "--checkpoint",
                "c",
                "--binlog",
                "b",
                "--into",
                "i",
            ],
            args,
        ];
        run(&s, &all.concat())
    };
    restore(&["--to-time", "2025-01-02"]).fails(2, &["--to-time 2025-01-02", "zone"]);
    restore(&["--to-tsn", "7"]).fails(2, &["--checkpoint c", "no such directory"]);
    s.file("c/x", "");
    restore(&["--to-tsn", "7"]).fails(2, &["--binlog b", "no such directory"]);
    s.file("b/x", "");
    s.file("i/notes.txt", "mine");
    restore(&["--to-time", "2025-01-02T03:04:05Z"]).fails(2, &["--into i", "empty directory"]);
    assert_eq!(harness::tree(&s.dir).len(), 3);
}

#[test]
fn flags_for_postgresql_clients_are_checked() {
    let s = Scratch::new("sql-serve");
    let serve = |args: &[&str]| s.run_plain([&["serve", "--port", "0"], args].concat());
    serve(&["--postgres", "nonsense"]).fails(2, &["--postgres nonsense", "host and port"]);
    serve(&["--postgres", "0.0.0.0:0"]).fails(
        2,
        &["--postgres", "--postgres-password-file", "--unprotected"],
    );
    let with_password = ["--postgres", "127.0.0.1:0", "--postgres-password-file", "p"];
    serve(&with_password).fails(2, &["cannot open p"]);
    s.file("p", "\n");
    serve(&with_password).fails(2, &["--postgres-password-file p", "first line"]);
    s.file("cert.pem", "");
    let tls = [
        "--postgres",
        "127.0.0.1:0",
        "--postgres-tls-cert",
        "cert.pem",
    ];
    assert_eq!(serve(&tls).code, Some(2));
    serve(&[&tls[..], &["--postgres-tls-key", "key.pem"]].concat())
        .fails(2, &["cannot open key.pem"]);
    for flag in [
        "--sql-dir",
        "--postgres-password-file",
        "--postgres-tls-key",
    ] {
        let ran = serve(&[flag, "x"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("--postgres"), "{}", ran.err);
    }
    assert_eq!(
        harness::tree(&s.dir).len(),
        2,
        "only the two files are there"
    );
}
