//! The rules of the project that no compiler checks, as tests. Without them each reviewer would
//! have to remember the rules.
//!
//! Each rule is a function from the tree to complaints, and each has a canary in a test such as
//! [`the_source_rules_report_violations`]: a text that breaks it. A complaint has the file, the
//! line and the remedy.

#![expect(
    clippy::disallowed_methods,
    reason = "it reads the source tree, which is on the host's disk"
)]

mod crates;
mod language;
mod locks;
mod modules;
mod pages;
mod parts;
mod planted;
mod shape;
mod tokens;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A text of the tree, by its path from the root, with `/` between names.
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn new(path: &str, text: &str) -> Text {
        Text {
            path: path.into(),
            text: text.into(),
        }
    }

    /// Returns the crate's directory name, or an empty text for files outside of `crates/`.
    fn krate(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            _ => "",
        }
    }

    /// Returns true for a file that only tests compile.
    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or("");
        self.path.contains("/tests/")
            || name.starts_with("tests_")
            || matches!(name, "tests.rs" | "golden.rs" | "fuzzing.rs")
    }

    fn complaint(&self, line: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all texts of the tree with this ending, except the output of builds.
fn texts(ending: &str) -> Vec<Text> {
    fn walk(dir: &Path, from: &str, ending: &str, out: &mut Vec<Text>) {
        for entry in std::fs::read_dir(dir).expect("a readable directory") {
            let entry = entry.expect("a readable directory");
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = match from {
                "" => name.clone(),
                from => format!("{from}/{name}"),
            };
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                let made = name.starts_with("target")
                    || ["corpus", "artifacts", "basalt-data"].contains(&&*name);
                if !name.starts_with('.') && !made {
                    walk(&entry.path(), &path, ending, out);
                }
            } else if kind.is_file() && name.ends_with(ending) {
                let text = std::fs::read_to_string(entry.path()).expect("UTF-8");
                out.push(Text { path, text });
            }
        }
    }
    let mut out = Vec::new();
    walk(&root(), "", ending, &mut out);
    out.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!out.is_empty(), "no {ending} found");
    out
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Complains of a name that says where an item is kept, and not what it is.
fn drawer_names(t: &Text) -> Vec<String> {
    let drawers = [
        "util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff", "shared",
    ];
    let mut out = Vec::new();
    let parts = t.path.split(['/', '.', '_', '-']);
    if let Some(part) = parts.into_iter().find(|p| drawers.contains(p)) {
        out.push(t.complaint(0, &format!("name it after what it is, not {part:?}")));
    }
    for (i, line) in t.text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        let name = match words[..] {
            ["mod" | "struct" | "trait" | "enum", name, ..] => name,
            [_, "mod" | "struct" | "trait" | "enum", name] => name,
            _ => continue,
        };
        let name = name.trim_end_matches(|c: char| !c.is_alphanumeric());
        let tail = ["Util", "Utils", "Helper", "Helpers", "Manager"];
        if drawers.contains(&name) || tail.iter().any(|t| name.ends_with(t)) {
            out.push(t.complaint(i, &format!("name it after what it is, not {name:?}")));
        }
    }
    out
}

/// Complains of a file whose first line does not say what the module is. Inline modules are free.
fn heads(t: &Text) -> Vec<String> {
    if t.text.starts_with("//! ") || t.text.trim().is_empty() {
        return Vec::new();
    }
    vec![t.complaint(0, "begin with `//!`: what the module is, owns and promises")]
}

/// Complains of unfinished code, and of encodings in the host's byte order.
fn leftovers(t: &Text) -> Vec<String> {
    // The words are in parts, so that this file does not complain of itself.
    let words = [
        ("to", "do!("),
        ("unimple", "mented!("),
        ("d", "bg!("),
        ("FIX", "ME"),
        ("XX", "X"),
        ("TO", "DO"),
        ("to_ne_", "bytes"),
        ("from_ne_", "bytes"),
    ]
    .map(|(a, b)| format!("{a}{b}"));
    let mut out = Vec::new();
    for (i, line) in t.text.lines().enumerate() {
        if let Some(word) = words.iter().find(|w| line.contains(&***w)) {
            out.push(t.complaint(i, &format!("{word} does not belong in the tree")));
        }
    }
    out
}

/// Complains of the marks that a merge leaves where it could not decide.
fn merge_marks(t: &Text) -> Vec<String> {
    let marks = ["<<<<<<<", ">>>>>>>"].map(|mark| format!("{mark} "));
    let mut lines = t.text.lines();
    let marked = lines.position(|line| marks.iter().any(|mark| line.starts_with(mark)));
    let complaint = |i| t.complaint(i, "a mark of a merge that was not finished");
    marked.map(complaint).into_iter().collect()
}

/// Complains of `unsafe` outside of a module whose head allows it and states its invariant.
fn unsafe_modules(t: &Text) -> Vec<String> {
    let allow = "#![allow(unsafe_code)]";
    let keyword = format!("un{}", "safe");
    let allowed = t.text.lines().any(|l| l == allow);
    let uses = t.text.lines().enumerate().find(|(_, l)| {
        let code = l.split("//").next().unwrap_or("");
        let opens = |next: &str| code.contains(&format!("{keyword} {next}"));
        opens("{") || opens("impl") || opens("fn") || opens("extern")
    });
    let mut out = Vec::new();
    if let Some((i, _)) = uses
        && !allowed
    {
        out.push(t.complaint(
            i,
            "unsafe code outside of a module with #![allow(unsafe_code)] at its head",
        ));
    }
    if allowed {
        let head: String = t
            .text
            .lines()
            .take_while(|l| l.starts_with("//") || l.trim().is_empty())
            .collect();
        let head = head.to_lowercase();
        if !head.contains("invariant") && !head.contains(&keyword) {
            out.push(t.complaint(0, "the head of an unsafe module states its invariant"));
        }
    }
    if t.text.contains("(unsafe_code)") && !allowed && t.path.ends_with(".rs") {
        let i = t.text.lines().position(|l| l.contains("(unsafe_code)"));
        if !t.path.ends_with("tests/tidy/main.rs") {
            out.push(t.complaint(
                i.unwrap_or(0),
                "unsafe code is allowed for a whole module or not at all",
            ));
        }
    }
    out
}

/// Complains of a module with unsafe code that is missing on the page of its checks.
fn unchecked_unsafe(t: &Text, page: &str) -> Vec<String> {
    let allow = "#![allow(unsafe_code)]";
    if !t.text.lines().any(|l| l == allow) || page.contains(&format!("`{}`", t.path)) {
        return Vec::new();
    }
    let what = "say in docs/testing/memory.md what checks this module's unsafe code";
    vec![t.complaint(0, what)]
}

/// Complains of a ban of `clippy.toml` that is lifted without `expect` or without a reason. A whole
/// file may lift a ban only in tests and where the ban's replacement is implemented.
fn lifted_bans(t: &Text) -> Vec<String> {
    let ban = format!("clippy::{}", "disallowed_");
    let lines: Vec<&str> = t.text.lines().collect();
    let mut out = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        if !line.contains(&ban) || line.trim_start().starts_with("//") {
            continue;
        }
        // The attribute begins at most four lines before and ends at most four behind.
        let begin = (i.saturating_sub(4)..=i).rev().find(|j| {
            lines[*j].trim_start().starts_with("#[") || lines[*j].trim_start().starts_with("#![")
        });
        let Some(begin) = begin else { continue };
        let attribute = lines[begin..lines.len().min(i + 5)].join(" ");
        let attribute = attribute.split(")]").next().unwrap_or("");
        // Not every test binary uses all of a module that several share.
        if !attribute.contains("expect(") && !t.path.contains("/tests/") {
            out.push(t.complaint(i, "lift a ban with `expect`, not `allow`"));
        }
        if !attribute.contains("reason") {
            out.push(t.complaint(i, "say the reason for lifting the ban"));
        }
        let whole = attribute.trim_start().starts_with("#![");
        // `directory` copies the user's own files, which are not those of a store.
        let exempt = ["fs", "env"].contains(&t.krate())
            || t.is_test()
            || t.path == "crates/cli/src/directory.rs";
        if whole && !exempt {
            out.push(t.complaint(i, "a ban is lifted for a whole file outside of fs and env"));
        }
    }
    out
}

/// Files that are longer than the limit without their tests, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];
const LONGEST: usize = 900;

/// Complains of a file that is too long to be read at once.
fn long_files(t: &Text) -> Vec<String> {
    let code = t.text.lines().take_while(|l| *l != "#[cfg(test)]").count();
    let listed = LONG_FILES.iter().any(|(p, _)| *p == t.path);
    match (code > LONGEST, listed) {
        (true, false) if !t.is_test() => vec![t.complaint(
            0,
            &format!("{code} lines of code, at most {LONGEST}: split it by subject"),
        )],
        (false, true) => vec![t.complaint(0, "short again: strike it from LONG_FILES")],
        _ => Vec::new(),
    }
}

/// Complains of a module of a crate that is not where all modules are: `name.rs` beside the
/// directory `name/`, and unit tests in `name/tests.rs`.
fn places_of_modules(t: &Text) -> Vec<String> {
    let mut out = Vec::new();
    if t.path.contains("/src/") && t.path.ends_with("/mod.rs") {
        out.push(t.complaint(0, "name the file after its directory, and put it beside it"));
    }
    let inline = format!("mod {} {{", "tests");
    // Tests of unsafe code may be unsafe themselves, and are read with its invariant.
    let is_unsafe = t.text.lines().any(|l| l == "#![allow(unsafe_code)]");
    if t.path.contains("/src/")
        && !is_unsafe
        && let Some(line) = t.text.lines().position(|l| l == inline)
    {
        out.push(t.complaint(
            line,
            "move the unit tests to a file `tests.rs` of the module",
        ));
    }
    out
}

fn rust() -> Vec<Text> {
    texts(".rs")
}

#[test]
fn sources_keep_the_rules() {
    let rules = [
        drawer_names,
        heads,
        leftovers,
        merge_marks,
        unsafe_modules,
        lifted_bans,
        long_files,
        places_of_modules,
    ];
    let sources = rust();
    assert!(sources.len() > 100, "only {} sources found", sources.len());
    none(
        sources
            .iter()
            .flat_map(|t| rules.iter().flat_map(|rule| rule(t)))
            .collect(),
    );
    let pages = texts(".md");
    none(pages.iter().flat_map(merge_marks).collect());
    let checks = pages.iter().find(|t| t.path == "docs/testing/memory.md");
    let checks = checks.map_or("", |t| &t.text);
    none(
        sources
            .iter()
            .flat_map(|t| unchecked_unsafe(t, checks))
            .collect(),
    );
    for (path, reason) in LONG_FILES {
        assert!(
            !reason.is_empty() && sources.iter().any(|t| t.path == *path),
            "{path}"
        );
    }
}

#[test]
fn modules_depend_in_one_direction() {
    let sources = rust();
    let crates: BTreeSet<&str> = sources.iter().map(Text::krate).collect();
    let each = crates.iter();
    none(
        each.flat_map(|krate| modules::cycles(krate, &sources, modules::ALLOWED))
            .collect(),
    );
    for (krate, _) in modules::ALLOWED {
        assert!(crates.contains(krate), "{krate} is gone");
    }
}

#[test]
fn the_parts_of_the_engine_depend_in_one_direction() {
    let sources = rust();
    none(parts::complaints(&sources));
    let graph = parts::graph(&sources);
    assert!(graph.edges() > 100, "{} dependencies", graph.edges());
}

/// The lints that the rules of the tree need are in force.
#[test]
fn the_lints_are_denied() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("there");
    let (cargo, clippy) = (read("Cargo.toml"), read("clippy.toml"));
    for lint in [
        "missing_docs",
        "unsafe_code",
        "unsafe_op_in_unsafe_fn",
        "host_endian_bytes",
        "undocumented_unsafe_blocks",
        "disallowed_methods",
        "disallowed_types",
    ] {
        assert!(
            cargo.contains(&format!("{lint} = \"deny\"")),
            "{lint} is not denied"
        );
    }
    for banned in [
        "std::time::Instant::now",
        "std::time::SystemTime::now",
        "std::thread::spawn",
        "std::thread::sleep",
        "std::thread::Builder",
        "std::fs::write",
        "std::fs::File::open",
        "std::fs::File::create",
        "std::hash::RandomState::new",
    ] {
        assert!(
            clippy.contains(&format!("\"{banned}\"")),
            "{banned} is not banned"
        );
    }
    let bare = clippy
        .lines()
        .find(|l| l.contains("path = ") && !l.contains("reason = \"use "));
    assert_eq!(bare, None, "a ban names its replacement");
}

/// A rule that complains of nothing is not a rule.
#[test]
fn the_source_rules_report_violations() {
    let bites = |rule: fn(&Text) -> Vec<String>, path: &str, text: &str| {
        assert_eq!(rule(&Text::new(path, text)).len(), 1, "{path}: {text}");
    };
    let spares = |rule: fn(&Text) -> Vec<String>, path: &str, text: &str| {
        assert_eq!(
            rule(&Text::new(path, text)),
            Vec::<String>::new(),
            "{path}: {text}"
        );
    };
    bites(drawer_names, "crates/lsm/src/utils.rs", "//! U.");
    bites(drawer_names, "crates/lsm/src/a.rs", "pub mod common;");
    let drawer = format!("pub struct File{} {{", "Manager");
    bites(drawer_names, "crates/lsm/src/a.rs", &drawer);
    spares(drawer_names, "crates/lsm/src/a.rs", "struct Commons;");
    bites(places_of_modules, "crates/lsm/src/a/mod.rs", "//! A.");
    let inline = format!("//! A.\n#[cfg(test)]\nmod {} {{\n}}", "tests");
    bites(places_of_modules, "crates/lsm/src/a.rs", &inline);
    spares(places_of_modules, "crates/lsm/tests/a/mod.rs", &inline);
    spares(places_of_modules, "crates/lsm/src/a.rs", "mod tests;");
    bites(heads, "crates/lsm/src/a.rs", "use std::fmt;");
    spares(heads, "crates/lsm/src/a.rs", "//! What it is.");
    for (a, b) in [
        ("to", "do!()"),
        ("// FIX", "ME"),
        ("n.to_ne_", "bytes()"),
        ("d", "bg!(x)"),
    ] {
        bites(leftovers, "crates/lsm/src/a.rs", &format!("{a}{b}"));
    }
    bites(merge_marks, "docs/a.md", "# A\n<<<<<<< HEAD\n");
    spares(merge_marks, "docs/a.md", "A line `<<<<<<< ` of text");
    let block = format!("let x = un{} {{ *p }};", "safe");
    bites(unsafe_modules, "crates/lsm/src/a.rs", &block);
    let allow = "#![allow(unsafe_code)]\n";
    bites(
        unsafe_modules,
        "crates/lsm/src/a.rs",
        &format!("//! A.\n\n{allow}{block}"),
    );
    spares(
        unsafe_modules,
        "crates/lsm/src/a.rs",
        &format!("//! Invariant: p lives.\n\n{allow}{block}"),
    );
    let module = Text::new("crates/lsm/src/a.rs", allow);
    assert_eq!(
        unchecked_unsafe(&module, "| `crates/lsm/src/b.rs` |").len(),
        1
    );
    assert!(unchecked_unsafe(&module, "| `crates/lsm/src/a.rs` |").is_empty());
    let lint = format!("clippy::{}", "disallowed_methods");
    bites(
        lifted_bans,
        "crates/lsm/src/a.rs",
        &format!("#[allow({lint}, reason = \"r\")]"),
    );
    bites(
        lifted_bans,
        "crates/lsm/src/a.rs",
        &format!("#[expect({lint})]"),
    );
    bites(
        lifted_bans,
        "crates/lsm/src/a.rs",
        &format!("#![expect({lint}, reason = \"r\")]"),
    );
    spares(
        lifted_bans,
        "crates/lsm/tests/a.rs",
        &format!("#![expect(\n    {lint},\n    reason = \"r\"\n)]"),
    );
    bites(
        long_files,
        "crates/lsm/src/a.rs",
        &"let x = 1;\n".repeat(901),
    );
    spares(
        long_files,
        "crates/lsm/src/a.rs",
        &format!("{}#[cfg(test)]\n{}", "x\n".repeat(800), "x\n".repeat(800)),
    );
}
