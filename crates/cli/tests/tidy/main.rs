//! The rules that no compiler checks, as a test: what a reviewer would otherwise have to remember.
//!
//! Each rule is a function from the tree to complaints, and each has a canary in [`rules_bite`]: a
//! text that breaks it. A complaint says the file, the line and what to do.

#![expect(
    clippy::disallowed_methods,
    reason = "it reads the source tree, which is on the host's disk"
)]

mod language;
mod modules;
mod parts;
mod shape;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
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

    /// The crate's folder name, for files under `crates/`.
    fn krate(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            _ => "",
        }
    }

    /// Code that only tests run.
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

/// All texts of the tree with this ending, outside of what builds make.
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

/// A name that says where a thing was put, not what it is.
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

/// Every module says first what it is. Modules inside others' files are spared, whole files are
/// not.
fn heads(t: &Text) -> Vec<String> {
    if t.text.starts_with("//! ") || t.text.trim().is_empty() {
        return Vec::new();
    }
    vec![t.complaint(0, "begin with `//!`: what the module is, owns and promises")]
}

/// Nothing is left for later, and nothing is encoded in the host's byte order.
fn leftovers(t: &Text) -> Vec<String> {
    // Taken apart, so that this file does not complain of itself.
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

/// `unsafe` lives in modules that say so at their head, together with the invariant that makes it
/// sound.
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

/// Every module with unsafe code stands in the page that says what checks it.
fn unchecked_unsafe(t: &Text, page: &str) -> Vec<String> {
    let allow = "#![allow(unsafe_code)]";
    if !t.text.lines().any(|l| l == allow) || page.contains(&format!("`{}`", t.path)) {
        return Vec::new();
    }
    let what = "say in docs/testing/memory.md what checks this module's unsafe code";
    vec![t.complaint(0, what)]
}

/// Bans of `clippy.toml` are lifted by `expect` with a reason, where they must be; for whole files
/// only in tests and where the ban's replacement is made.
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
        // What several test binaries share, not all of them use.
        if !attribute.contains("expect(") && !t.path.contains("/tests/") {
            out.push(t.complaint(i, "lift a ban with `expect`, not `allow`"));
        }
        if !attribute.contains("reason") {
            out.push(t.complaint(i, "say the reason for lifting the ban"));
        }
        let whole = attribute.trim_start().starts_with("#![");
        // `folder` moves the user's own files, which are no store's.
        let exempt = ["fs", "env"].contains(&t.krate())
            || t.is_test()
            || t.path == "crates/cli/src/folder.rs";
        if whole && !exempt {
            out.push(t.complaint(i, "a ban is lifted for a whole file outside of fs and env"));
        }
    }
    out
}

/// Files longer than the limit without their tests, and why.
const LONG_FILES: &[(&str, &str)] = &[];
const LONGEST: usize = 900;

/// A file that is too long to be understood at once is split.
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

/// Links of a page, with the line they stand in: `](target)` outside of code.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut out, mut fenced) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for part in prose.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                let target = target.split_whitespace().next().unwrap_or("");
                out.push((i, target.to_string()));
            }
        }
    }
    out
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Links between pages lead somewhere, and to a heading that is there. `read` gives the text of a
/// path from the root.
fn broken_links(t: &Text, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut out = Vec::new();
    for (i, link) in links(&t.text) {
        if link.contains("://") || link.starts_with("mailto:") || link.is_empty() {
            continue;
        }
        let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
        let mut place: Vec<&str> = t.path.split('/').collect();
        if !file.is_empty() {
            place.pop();
            for part in file.split('/') {
                match part {
                    ".." => {
                        place.pop();
                    }
                    "." | "" => {}
                    part => place.push(part),
                }
            }
        }
        match read(&place.join("/")) {
            None => out.push(t.complaint(i, &format!("the link {link:?} leads nowhere"))),
            Some(text) => {
                let is_there = text
                    .lines()
                    .any(|l| l.starts_with('#') && anchor(l) == heading);
                if !heading.is_empty() && !is_there {
                    out.push(t.complaint(i, &format!("no heading for the link {link:?}")));
                }
            }
        }
    }
    out
}

/// Every decision has a number of its own and stands in the index.
fn decisions(pages: &[Text]) -> Vec<String> {
    let folder = "docs/decisions/";
    let of = |t: &&Text| t.path.starts_with(folder) && t.path != format!("{folder}README.md");
    let index = pages
        .iter()
        .find(|t| t.path == format!("{folder}README.md"));
    let index = index.map_or("", |t| &t.text);
    let (mut out, mut numbers) = (Vec::new(), BTreeSet::new());
    for t in pages.iter().filter(of) {
        let name = &t.path[folder.len()..];
        let number = name.split('-').next().unwrap_or("");
        if number.len() != 4 || !number.bytes().all(|b| b.is_ascii_digit()) {
            out.push(t.complaint(0, "a decision is named NNNN-title.md"));
        }
        if !numbers.insert(number.to_string()) {
            out.push(t.complaint(0, "another decision has this number"));
        }
        if !index.contains(&format!("({name})")) {
            out.push(t.complaint(0, "this decision is not in docs/decisions/README.md"));
        }
    }
    out
}

/// The crates that each crate may depend on. Dependencies run down only, as docs/architecture.md
/// has them.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("fs", &[]),
    ("env", &["fs"]),
    ("lava", &["fs", "env"]),
    (SIM, &["fs", "env", "lava"]),
    ("kv", &["fs", "env"]),
    ("records", &["fs", "env", "kv"]),
    ("table", &["fs", "env", "kv"]),
    ("blob", &["fs", "env", "kv", "records", "table"]),
    ("lsm", &["fs", "env", "kv", "records", "table", "blob"]),
    // The sources of six of these once more, for tests alone.
    ("env-schedules", &["fs"]),
    ("kv-schedules", &["fs", "env"]),
    ("records-schedules", &["fs", "env", "kv"]),
    ("table-schedules", &["fs", "env", "kv"]),
    ("blob-schedules", &["fs", "env", "kv", "records", "table"]),
    (
        "lsm-schedules",
        &["fs", "env", "kv", "records", "table", "blob"],
    ),
    (
        "basalt",
        &["fs", "env", "kv", "table", "blob", "lava", "lsm"],
    ),
    ("server", &["basalt"]),
    ("bench", &["basalt"]),
    ("cli", &["basalt", "server", "bench"]),
];

/// The crate of simulated disks and injected faults. No binary contains it. Other crates depend on
/// it in the sections of their manifests that are listed here, and in no other.
const SIM: &str = "sim";
const SIM_SECTIONS: &[&str] = &[
    "[dev-dependencies]",
    // Set by cargo-fuzz alone.
    "[target.'cfg(fuzzing)'.dependencies]",
];

/// Dependencies between the project's own crates, those of tests included.
fn dependencies(manifest: &Text) -> Vec<String> {
    let krate = manifest.krate();
    let Some((_, below)) = DEPENDENCIES.iter().find(|(name, _)| *name == krate) else {
        return vec![manifest.complaint(0, "a new crate: give it its place in DEPENDENCIES")];
    };
    let (mut out, mut section) = (Vec::new(), "");
    for (i, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        if !section.contains("dependencies") {
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        let own = match name.strip_prefix("basalt-") {
            Some(own) => own,
            None if name == "basalt" => name,
            None => continue,
        };
        if own == SIM {
            if !SIM_SECTIONS.contains(&section) {
                out.push(manifest.complaint(i, "only tests depend on sim: [dev-dependencies]"));
            }
        } else if !below.contains(&own) {
            out.push(manifest.complaint(i, &format!("{krate} does not stand above {own}")));
        }
    }
    if !manifest.text.contains("[lints]\nworkspace = true") {
        out.push(manifest.complaint(0, "the workspace's lints hold in every crate"));
    }
    out
}

/// Where the planted bugs are, and how many there are at least, the canary not among them.
const PLANTED: &str = "docs/testing/planted/";
const PLANTED_AT_LEAST: usize = 40;

/// The header lines of a patch and its hunks: the file that each changes and the lines that it
/// expects there.
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

/// A planted bug says what it is and which tests notice it, and it applies to the sources. `read`
/// gives the text of a path from the root.
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
        "-p basalt-kv ",
        "-p basalt-records ",
        "-p basalt-table ",
        "-p basalt-blob ",
        "-p basalt-lava ",
        "-p basalt-sim ",
        "-p basalt-lsm ",
        "-p basalt-lsm-schedules ",
        "-p basalt-server ",
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

/// The tests that a planted bug names are there. `names` says whether some source has a function or
/// a module whose name begins so.
fn planted_tests(t: &Text, names: &dyn Fn(&str) -> bool) -> Vec<String> {
    let patch = Patch::parse(&t.text);
    let filters = patch.header("Test").filter_map(|t| t.split_once(" -- "));
    let last = filters.map(|(_, filter)| filter.rsplit("::").next().unwrap_or(""));
    let gone = last.filter(|name| !names(name));
    gone.map(|name| t.complaint(0, &format!("no test or module is called {name}...")))
        .collect()
}

/// There are enough planted bugs, each with a number of its own, and one canary.
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

fn rust() -> Vec<Text> {
    texts(".rs")
}

#[test]
fn sources_keep_the_rules() {
    let rules = [
        drawer_names,
        heads,
        leftovers,
        unsafe_modules,
        lifted_bans,
        long_files,
    ];
    let sources = rust();
    assert!(sources.len() > 100, "only {} sources found", sources.len());
    none(
        sources
            .iter()
            .flat_map(|t| rules.iter().flat_map(|rule| rule(t)))
            .collect(),
    );
    let checks = texts(".md");
    let checks = checks.iter().find(|t| t.path == "docs/testing/memory.md");
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
fn links_of_the_documents_lead_somewhere() {
    let read = |path: &str| {
        let path = root().join(path);
        if path.is_dir() {
            return Some(String::new());
        }
        std::fs::read(path)
            .ok()
            .map(|b| String::from_utf8_lossy(&b).into_owned())
    };
    let pages = texts(".md");
    none(
        pages
            .iter()
            .flat_map(|t| broken_links(t, &read))
            .chain(decisions(&pages))
            .collect(),
    );
}

/// `.ci/planted` can run: a patch that the code has outgrown is told of here and not the night
/// before a release.
#[test]
fn planted_bugs_can_be_planted() {
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

#[test]
fn crates_stand_in_their_order() {
    let manifests = texts("Cargo.toml");
    let members = manifests.iter().filter(|t| !t.krate().is_empty());
    none(members.clone().flat_map(dependencies).collect());
    let found: BTreeMap<&str, ()> = members.map(|t| (t.krate(), ())).collect();
    assert!(
        DEPENDENCIES
            .iter()
            .all(|(name, _)| found.contains_key(name))
    );
    for (name, below) in DEPENDENCIES {
        for b in *below {
            let lower = DEPENDENCIES.iter().position(|(n, _)| n == b);
            assert!(lower < DEPENDENCIES.iter().position(|(n, _)| n == name));
        }
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

/// The lints that rules of the tree lean on are in force.
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
fn rules_bite() {
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
    let read = |path: &str| (path == "docs/b.md").then(|| "# A `b`, and C".to_string());
    for (text, n) in [
        ("[b](b.md)", 0),
        ("[b](b.md#a-b-and-c)", 0),
        ("[b](../docs/b.md)", 0),
        ("`[b](c.md)`", 0),
        ("[b](https://c.md)", 0),
        ("[b](c.md)", 1),
        ("[b](b.md#d)", 1),
        ("[b](../b.md)", 1),
    ] {
        let found = broken_links(&Text::new("docs/a.md", text), &read);
        assert_eq!(found.len(), n, "{text}: {found:?}");
    }
    let pages = [
        Text::new("docs/decisions/README.md", "[1](0001-a.md)"),
        Text::new("docs/decisions/0001-a.md", ""),
        Text::new("docs/decisions/0001-b.md", ""),
    ];
    assert_eq!(decisions(&pages[..2]).len(), 0);
    assert_eq!(
        decisions(&pages).len(),
        2,
        "the number is taken, and not indexed"
    );
    let head = "Title: T.\nArea: a\nClass: c\nTest: -p basalt-fs --lib -- a::b\n\n";
    let hunk = "--- a/x.rs\n+++ b/x.rs\n@@ -1,3 +1,2 @@\n a\n-b\n c\n";
    let source = |path: &str| (path == "x.rs").then(|| "z\na\nb\nc\n".to_string());
    for (text, n) in [
        (format!("{head}{hunk}"), 0),
        // The line to be removed is not there, the file is not, nothing is changed.
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
    let lints = "[lints]\nworkspace = true";
    bites(
        dependencies,
        "crates/fs/Cargo.toml",
        &format!("{lints}\n[dependencies]\nbasalt-env.workspace = true"),
    );
    for (krate, section, own) in [
        ("fs", "[dependencies]", "basalt-lava"),
        ("env", "[dependencies]", "basalt-lava"),
        ("fs", "[dev-dependencies]", "basalt-env"),
        ("env", "[dependencies]", "basalt-sim"),
        ("bench", "[dependencies]", "basalt-sim"),
        ("lsm", "[build-dependencies]", "basalt-sim"),
        ("lsm", "[target.'cfg(unix)'.dependencies]", "basalt-sim"),
        ("sim", "[dependencies]", "basalt-lsm"),
    ] {
        let manifest = format!("{lints}\n{section}\n{own}.workspace = true");
        bites(
            dependencies,
            &format!("crates/{krate}/Cargo.toml"),
            &manifest,
        );
    }
    for (krate, section, own) in [
        ("fs", SIM_SECTIONS[0], "basalt-sim"),
        ("lsm", SIM_SECTIONS[1], "basalt-sim"),
        ("sim", "[dependencies]", "basalt-lava"),
    ] {
        let manifest = format!("{lints}\n{section}\n{own}.workspace = true");
        spares(
            dependencies,
            &format!("crates/{krate}/Cargo.toml"),
            &manifest,
        );
    }
    bites(
        dependencies,
        "crates/server/Cargo.toml",
        &format!("{lints}\n[dev-dependencies]\nbasalt-lsm = \"1\""),
    );
    bites(
        dependencies,
        "crates/fs/Cargo.toml",
        "[dependencies]\nbytes = \"1\"",
    );
    spares(
        dependencies,
        "crates/env/Cargo.toml",
        &format!("{lints}\n[dependencies]\nbasalt-fs = \"1\""),
    );
}
