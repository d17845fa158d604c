//! `compact` and `checkpoint` with the real binary: they change a store's shape or copy it, and
//! change no entry.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Ran, Scratch, tree};
use std::os::unix::fs::MetadataExt;

const NONE: [&str; 0] = [];

/// Makes a store in which every key was written twice and every third one is deleted.
fn filled(name: &str) -> Scratch {
    let s = Scratch::new(name);
    for round in 0..2 {
        let text: String = (0..3000)
            .map(|i| format!("k{i:06}\t{}\n", format!("{round}-{i}.").repeat(20)))
            .collect();
        s.run_with("load", ["--format", "tsv"], text.as_bytes())
            .ok();
    }
    let gone: Vec<String> = (0..3000).step_by(3).map(|i| format!("k{i:06}")).collect();
    s.run("del", &gone).ok();
    s
}

/// Returns the report. Nothing else was printed: there is no bar without a terminal.
fn output_of(ran: Ran) -> Vec<u8> {
    assert_eq!(ran.err, "", "no terminal, so no progress is shown");
    ran.ok()
}

fn json(ran: Ran) -> serde_json::Value {
    serde_json::from_slice(&output_of(ran)).expect("one JSON object")
}

fn table_bytes(s: &Scratch, dir: &str) -> u64 {
    let files = tree(&s.path(dir)).into_iter();
    let tables = files.filter(|(name, _)| name.extension().is_some_and(|e| e == "tbl"));
    tables.map(|(_, content)| content.len() as u64).sum()
}

#[test]
fn a_compaction_gives_space_back_and_changes_no_entry() {
    let s = filled("compact");
    let (before, size) = (s.scan(), table_bytes(&s, "db"));
    assert_eq!(before.lines().count(), 2000);
    let report = json(s.run("compact", ["--json"]));
    let figure = |name: &str| report[name].as_u64().expect("a number");
    assert_eq!(report["dir"], "db");
    assert!(figure("merged_bytes") > 0, "{report}");
    assert_eq!(figure("table_bytes_before"), size);
    assert_eq!(figure("table_bytes_after"), table_bytes(&s, "db"));
    assert!(figure("table_bytes_after") < size / 2, "{report}");
    assert_eq!(s.scan(), before);
    // Everything is in the lowest level, and stays there if the flag says so.
    let again = json(s.run("compact", ["--json", "--bottommost", "skip"]));
    assert_eq!(again["merged_bytes"], 0, "{again}");
    // Redis keys have a filter: a rewrite drops the keys that FLUSHALL removed.
    let again = json(s.run("compact", ["--json", "--bottommost", "if-filter"]));
    assert_eq!(
        again["merged_bytes"], again["table_bytes_before"],
        "{again}"
    );
    let text = output_of(s.run("compact", ["--family", "redis.keys"]));
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains(" merged; tables had ") && text.lines().count() == 1,
        "{text}"
    );
    assert_eq!(s.scan(), before);
    assert_eq!(s.run("check", NONE).code, Some(0));
}

#[test]
fn a_compaction_of_a_missing_store_or_family_is_refused() {
    let s = Scratch::new("compact-errors");
    s.run("compact", NONE)
        .fails(2, &["there is no store in db", "--dir"]);
    assert!(!s.path("db").exists(), "nothing is made");
    // A wrong directory stays as it is.
    s.file("db/notes.txt", "mine");
    s.run("compact", NONE)
        .fails(2, &["there is no store in db", "--dir"]);
    assert_eq!(tree(&s.path("db")).len(), 1);
    std::fs::remove_dir_all(s.path("db")).unwrap();
    s.run("put", ["--family", "mine", "k", "v"]).ok();
    s.run("compact", ["--family", "yours"])
        .fails(2, &["no family yours", "default", "mine"]);
    assert_eq!(s.run("get", ["--family", "mine", "k"]).ok(), b"v");
    s.run("compact", ["--family", "mine"]).ok();
    assert_eq!(s.run("check", NONE).code, Some(0));
}

#[test]
fn a_checkpoint_is_an_independent_store_with_linked_tables() {
    let s = filled("checkpoint");
    let before = s.scan();
    let report = json(s.run("checkpoint", ["--json", "copy"]));
    let figure = |name: &str| report[name].as_u64().expect("a number");
    assert_eq!(
        (&report["dir"], &report["out"]),
        (&"db".into(), &"copy".into())
    );
    assert!(figure("tables") > 0, "{report}");
    assert_eq!(figure("linked_bytes"), table_bytes(&s, "copy"));
    assert_eq!(figure("copied_bytes"), 0);
    let mut shared = 0;
    for (name, _) in tree(&s.path("copy")) {
        let meta = std::fs::metadata(s.path("copy").join(&name)).unwrap();
        shared += u64::from(meta.nlink() > 1);
    }
    assert_eq!(
        shared,
        figure("tables"),
        "tables are linked, and nothing else"
    );
    let there = |args: &[&str]| {
        let mut c = std::process::Command::new(env!("CARGO_BIN_EXE_basalt"));
        let out = c.current_dir(&s.dir).args(args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(there(&["scan", "--dir", "copy"]), before);
    // The store and its copy are independent.
    there(&["put", "--dir", "copy", "only", "there"]);
    there(&["compact", "--dir", "copy"]);
    assert_eq!(s.scan(), before);
    s.run("del", ["k000001"]).ok();
    assert!(there(&["scan", "--dir", "copy"]).contains("k000001\t"));
    assert_eq!(s.run("check", NONE).code, Some(0));
    there(&["check", "--dir", "copy"]);
    let text = String::from_utf8(output_of(s.run("checkpoint", ["second"]))).unwrap();
    assert!(
        text.starts_with("second: ") && text.contains(" linked, 0 B copied, "),
        "{text}"
    );
}

#[test]
fn a_failed_checkpoint_names_the_reason_and_leaves_no_files() {
    let s = Scratch::new("checkpoint-errors");
    s.run("checkpoint", ["copy"])
        .fails(2, &["there is no store in db", "--dir"]);
    s.run("put", ["k", "v"]).ok();
    s.file("taken/notes.txt", "mine");
    s.run("checkpoint", ["taken"])
        .fails(2, &["taken", "the target exists"]);
    s.file("file", "mine");
    s.run("checkpoint", ["file"])
        .fails(2, &["file", "the target exists"]);
    s.run("checkpoint", ["db"])
        .fails(2, &["db", "the target exists"]);
    s.run("checkpoint", ["no/such/place"])
        .fails(2, &["no/such", "make it first"]);
    // A foreign directory with the name of an unfinished checkpoint is not taken for a leftover.
    s.file("copy.checkpoint-unfinished/notes.txt", "mine");
    s.run("checkpoint", ["copy"])
        .fails(2, &["notes.txt", "move it away"]);
    let mut names: Vec<_> = std::fs::read_dir(&s.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["copy.checkpoint-unfinished", "db", "file", "taken"]);
    assert_eq!(tree(&s.path("taken")).len(), 1);
    assert_eq!(s.run("get", ["k"]).ok(), b"v");
}
