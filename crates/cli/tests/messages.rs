//! The messages of the tool for first use and for common mistakes.
#![expect(
    clippy::disallowed_methods,
    reason = "tests damage and look at the host's files by hand"
)]

mod harness;
use harness::Scratch;

const NONE: [&str; 0] = [];

fn names(s: &Scratch, part: &str) -> Vec<String> {
    let all = harness::tree(&s.path("db"));
    let names = all
        .into_iter()
        .map(|(n, _)| n.to_string_lossy().into_owned());
    names.filter(|n| n.contains(part)).collect()
}

#[test]
fn files_that_damaged_metadata_may_name_are_not_called_removable() {
    let s = Scratch::new("metadata");
    s.run_with("load", ["--format", "tsv"], b"a\t1\nb\t2\n")
        .ok();
    let table = names(&s, ".tbl").pop().expect("a closed store has a table");
    let manifest = names(&s, "MANIFEST").pop().expect("it is there");
    let whole = std::fs::read(s.path("db").join(&manifest)).unwrap();

    std::fs::remove_file(s.path("db").join(&manifest)).unwrap();
    let ran = s.run("check", NONE);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let line =
        format!("not named by readable metadata: {table} (repair may need it; do not remove it)");
    assert!(ran.text().contains(&line), "{}", ran.text());
    assert!(!ran.text().contains("harmless"), "{}", ran.text());

    std::fs::write(s.path("db").join(&manifest), &whole).unwrap();
    s.run("check", NONE).ok();
    std::fs::remove_file(s.path("db/CURRENT")).unwrap();
    let ran = s.run("check", NONE);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!ran.text().contains("harmless"), "{}", ran.text());
    s.run("get", ["a"]).fails(2, &["CURRENT is missing"]);
    let ran = s.run("get", ["a"]);
    assert_eq!(ran.err.matches("basalt repair").count(), 1, "{}", ran.err);
    let ran = s.run("repair", ["--yes"]);
    assert!(
        ran.text()
            .contains("kept 3 entries; 1 table unchanged, 0 written"),
        "{}",
        ran.text()
    );
    assert_eq!(s.run("get", ["a"]).ok(), b"1");
}

#[test]
fn a_default_budget_adapts_to_the_given_one() {
    let s = Scratch::new("budget");
    let load = |args: &[&str]| {
        let all = ["--format", "tsv"].iter().chain(args).copied();
        s.run_with("load", all.collect::<Vec<_>>(), b"a\t1\n")
    };
    load(&["--memory", "128M"]).ok();
    load(&["--memory", "32M"]).ok();
    load(&["--cache", "400M"]).fails(2, &["three quarters", "--cache", "--memory"]);
    load(&["--memory", "100M", "--cache", "80M"])
        .fails(2, &["three quarters", "--cache", "--memory"]);
}

#[test]
fn the_argument_parser_gives_no_wrong_advice() {
    let s = Scratch::new("advice");
    s.run("put", ["n", "-5"]).ok();
    assert_eq!(s.run("get", ["n"]).ok(), b"-5");
    let ran = s.run("get", ["n", "--json"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("'--json'") && !ran.err.contains("tip:"),
        "{}",
        ran.err
    );
    let ran = s.run("serve", ["--port", "no"]);
    assert!(
        ran.code == Some(2) && !ran.err.contains("unprotected"),
        "{}",
        ran.err
    );
}

#[test]
fn existing_targets_stay_and_unreadable_sources_are_reported() {
    let s = Scratch::new("there");
    s.run("put", ["a", "1"]).ok();
    s.file("out.jsonl", b"mine");
    s.run("export", ["--output", "out.jsonl"])
        .fails(2, &["out.jsonl is there already", "--overwrite"]);
    assert_eq!(std::fs::read(s.path("out.jsonl")).unwrap(), b"mine");
    s.run("export", ["--output", "out.jsonl", "--overwrite"])
        .ok();
    assert!(
        std::fs::read(s.path("out.jsonl"))
            .unwrap()
            .starts_with(b"{")
    );
    s.file("x.csv", b"a,1\n");
    s.run("load", ["x.csv"]).fails(2, &["x.csv", "--format"]);
    let ran = s.run_with("load", NONE, b"");
    assert!(ran.err.contains("loaded nothing"), "{}", ran.err);
    ran.ok();
}
