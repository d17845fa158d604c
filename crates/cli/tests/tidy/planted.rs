//! Rules of the planted bugs: each patch applies, names its tests, and has a number of its own.

use super::{Text, none, root, rust, texts};
use std::collections::BTreeSet;

/// The directory of the planted bugs. The next constant is their least number, without the canary.
const PLANTED: &str = "docs/testing/planted/";
const PLANTED_AT_LEAST: usize = 40;

/// The header lines of a patch, and its hunks: the file of each, and the lines that it expects.
struct Patch<'t> {
    headers: Vec<(&'t str, &'t str)>,
    hunks: Vec<(&'t str, Vec<&'t str>)>,
}

impl<'t> Patch<'t> {
    fn parse(text: &'t str) -> Patch<'t> {
        let (mut headers, mut hunks) = (Vec::new(), Vec::new());
        let mut file = "";
        let mut old_lines: Option<Vec<&str>> = None;
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("--- a/") {
                hunks.extend(old_lines.take().map(|lines| (file, lines)));
                file = path;
            } else if line.starts_with("+++ b/") {
            } else if line.starts_with("@@ ") {
                hunks.extend(old_lines.replace(Vec::new()).map(|lines| (file, lines)));
            } else if let Some(lines) = &mut old_lines {
                let old = line.strip_prefix([' ', '-']);
                lines.extend(old.or(line.is_empty().then_some("")));
            } else if file.is_empty() {
                headers.extend(line.split_once(": "));
            }
        }
        hunks.extend(old_lines.map(|lines| (file, lines)));
        Patch { headers, hunks }
    }

    fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'t str> + 'a {
        let named = self.headers.iter().filter(move |(n, _)| *n == name);
        named.map(|(_, value)| *value)
    }
}

/// Complains of a planted bug without a description or tests, and of one that does not apply.
/// `read` returns the text of a path from the root.
fn planted_patch(t: &Text, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let patch = Patch::parse(&t.text);
    let mut out = Vec::new();
    for name in ["Title", "Area", "Class", "Test"] {
        if patch.header(name).next().is_none_or(str::is_empty) {
            out.push(t.complaint(0, &format!("a planted bug has a header line `{name}:`")));
        }
    }
    let crates = [
        "-p basalt-fs ",
        "-p basalt-env ",
        "-p basalt-env-schedules ",
        "-p basalt-kv ",
        "-p basalt-records ",
        "-p basalt-table ",
        "-p basalt-blob ",
        "-p basalt-lava ",
        "-p basalt-sim ",
        "-p basalt-lsm ",
        "-p basalt-lsm-schedules ",
        "-p basalt-log ",
        "-p basalt-log-schedules ",
        "-p basalt-store ",
        "-p basalt-raft --features openraft ",
        "-p basalt-transactions ",
        "-p basalt-transactions-schedules ",
        "-p basalt-server ",
        "-p basalt-stream ",
        "-p basalt-stream-schedules ",
        "-p basalt-tree ",
        "-p basalt-tree-schedules ",
        "-p basalt-cli ",
    ];
    for test in patch.header("Test") {
        let known = crates.iter().any(|c| test.starts_with(c));
        if !known || !(test.contains(" --lib") || test.contains(" --test ")) {
            out.push(t.complaint(0, &format!("name the crate and the target of {test:?}")));
        }
    }
    if patch.hunks.is_empty() {
        out.push(t.complaint(0, "a planted bug changes nothing"));
    }
    for (file, lines) in &patch.hunks {
        let text = read(file).unwrap_or_default();
        let there: Vec<&str> = text.lines().collect();
        if lines.is_empty() || !there.windows(lines.len()).any(|w| w == lines) {
            let what = format!("does not apply to {file} any more: cut the patch again");
            out.push(t.complaint(0, &what));
        }
    }
    out
}

/// Complains of a test that does not exist. `names` returns whether some source has a function or a
/// module whose name begins with the text.
fn planted_tests(t: &Text, names: &dyn Fn(&str) -> bool) -> Vec<String> {
    let patch = Patch::parse(&t.text);
    let filters = patch.header("Test").filter_map(|t| t.split_once(" -- "));
    let last = filters.map(|(_, filter)| filter.rsplit("::").next().unwrap_or(""));
    let gone = last.filter(|name| !names(name));
    gone.map(|name| t.complaint(0, &format!("no test or module is called {name}...")))
        .collect()
}

/// Complains of too few planted bugs, of numbers that are used twice, and of a missing canary.
fn planted_numbers(patches: &[Text], least: usize) -> Vec<String> {
    let (mut out, mut numbers, mut canaries) = (Vec::new(), BTreeSet::new(), 0);
    for t in patches {
        let name = t.path.rsplit('/').next().unwrap_or("");
        let number = name.split('-').next().unwrap_or("");
        if !matches!(number.len(), 2 | 3) || !number.bytes().all(|b| b.is_ascii_digit()) {
            out.push(t.complaint(0, "a planted bug is named NN-name.patch or NNN-name.patch"));
        }
        if !numbers.insert(number.to_string()) {
            out.push(t.complaint(0, "another planted bug has this number"));
        }
        canaries += usize::from(
            Patch::parse(&t.text)
                .header("Expect")
                .any(|e| e == "survives"),
        );
    }
    if patches.len() < least + canaries || canaries != 1 {
        let bugs = patches.len().saturating_sub(canaries);
        out.push(format!(
            "{PLANTED}: {bugs} bugs and {canaries} canaries, expected {least} or more and 1"
        ));
    }
    out
}

/// `.ci/planted` can run. A patch that no longer applies fails this test, instead of the run in the
/// night before a release.
#[test]
fn every_planted_patch_applies_and_names_its_test() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let patches = texts(".patch");
    assert!(patches.iter().all(|t| t.path.starts_with(PLANTED)));
    let each = patches.iter().flat_map(|t| planted_patch(t, &read));
    let sources = rust();
    let names = |name: &str| {
        let (function, module) = (format!("fn {name}"), format!("mod {name}"));
        (sources.iter()).any(|t| t.text.contains(&function) || t.text.contains(&module))
    };
    let each = each.chain(patches.iter().flat_map(|t| planted_tests(t, &names)));
    none(
        each.chain(planted_numbers(&patches, PLANTED_AT_LEAST))
            .collect(),
    );
}

/// Each rule complains of a text that breaks it.
#[test]
fn the_planted_bug_rules_report_violations() {
    let head = "Title: T.\nArea: a\nClass: c\nTest: -p basalt-fs --lib -- a::b\n\n";
    let hunk = "--- a/x.rs\n+++ b/x.rs\n@@ -1,3 +1,2 @@\n a\n-b\n c\n";
    let source = |path: &str| (path == "x.rs").then(|| "z\na\nb\nc\n".to_string());
    for (text, n) in [
        (format!("{head}{hunk}"), 0),
        // The removed line is missing, the file is missing, and the patch changes nothing.
        (format!("{head}{}", hunk.replace("-b", "-d")), 1),
        (format!("{head}{}", hunk.replace("x.rs", "y.rs")), 1),
        (head.to_string(), 1),
        (format!("{}{hunk}", head.replace("Class: c\n", "")), 1),
        (format!("{}{hunk}", head.replace("--lib -- ", "")), 1),
    ] {
        let found = planted_patch(
            &Text::new("docs/testing/planted/01-a.patch", &text),
            &source,
        );
        assert_eq!(found.len(), n, "{text}: {found:?}");
    }
    let bug = Text::new("docs/testing/planted/01-a.patch", head);
    assert_eq!(planted_tests(&bug, &|name| name == "b").len(), 0);
    assert_eq!(planted_tests(&bug, &|name| name == "a").len(), 1);
    let bug = |name: &str| Text::new(&format!("{PLANTED}{name}.patch"), head);
    let canary = Text::new("docs/testing/planted/00-c.patch", "Expect: survives\n");
    let bugs = [
        canary,
        bug("01-a"),
        bug("02-b"),
        bug("02-c"),
        bug("three-d"),
    ];
    assert_eq!(planted_numbers(&bugs[..3], 2), Vec::<String>::new());
    assert_eq!(planted_numbers(&bugs[..3], 3).len(), 1, "too few");
    assert_eq!(planted_numbers(&bugs[1..3], 2).len(), 1, "no canary");
    assert_eq!(
        planted_numbers(&bugs, 2).len(),
        2,
        "a number taken, and none"
    );
}
