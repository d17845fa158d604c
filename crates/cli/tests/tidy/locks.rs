//! Rules of locks: crates that run under the scheduler take their locks from `basalt_env::sync`,
//! each name that a lock is given is in the list of its crate, and `docs/architecture.md` shows the
//! order of all locks as the crates list it.

use super::{Text, none, rust, texts};

/// The crates that are built once more under the scheduler.
const SCHEDULED: &[&str] = &[
    "env",
    "kv",
    "records",
    "table",
    "blob",
    "lsm",
    "log",
    "stream",
    "tree",
    "transactions",
];

/// The page that shows the order of locks.
const PAGE: &str = "docs/architecture.md";

/// Returns the names in the list `field` of the `LOCK_ORDER` in a source, without the marks of
/// arrays.
fn listed<'t>(text: &'t str, field: &str) -> Vec<&'t str> {
    let constant = text.split("LOCK_ORDER: ").nth(1).unwrap_or("");
    let constant = constant.split("};").next().unwrap_or("");
    let list = constant.split(&format!(" {field}: &[")).nth(1);
    let names = list
        .and_then(|list| list.split("],\n").next())
        .unwrap_or("");
    let names = names.split('"').skip(1).step_by(2);
    names.map(|name| name.trim_end_matches("[]")).collect()
}

/// Complains of a lock that the scheduler does not see.
fn foreign_locks(t: &Text) -> Vec<String> {
    let is_source = t.path.contains("/src/") && !t.path.starts_with("crates/env/src/sync");
    if !SCHEDULED.contains(&t.krate()) || t.is_test() || !is_source {
        return Vec::new();
    }
    let is_foreign = |line: &&str| {
        let line = line.trim_start();
        let is_std = line.starts_with("use std::sync::") || line.contains(" std::sync::");
        let is_lock = ["Mutex", "RwLock", "Condvar"]
            .iter()
            .any(|lock| line.contains(lock));
        !line.starts_with("//") && (line.contains("parking_lot::") || (is_std && is_lock))
    };
    let lines = t.text.lines().enumerate();
    let found = lines.filter(|(_, line)| is_foreign(line));
    let what = "take locks from `basalt_env::sync`, where the scheduler sees them";
    found.map(|(i, _)| t.complaint(i, what)).collect()
}

/// Complains of names that locks of a crate are given, and that its list does not have.
fn unlisted_names(krate: &str, sources: &[Text]) -> Vec<String> {
    let is_own = |t: &&Text| t.krate() == krate && t.path.contains("/src/") && !t.is_test();
    let own = || sources.iter().filter(is_own);
    let lists = own().flat_map(|t| [listed(&t.text, "order"), listed(&t.text, "leaves")]);
    let listed: Vec<&str> = lists.flatten().collect();
    let mut out = Vec::new();
    for t in own() {
        for call in ["named(", "SpinLockMark::new("] {
            for (at, _) in t.text.match_indices(call) {
                let argument = t.text[at + call.len()..].trim_start();
                let name = argument.strip_prefix('"').and_then(|a| a.split('"').next());
                if let Some(name) = name.filter(|name| !listed.contains(name)) {
                    let line = t.text[..at].lines().count().saturating_sub(1);
                    out.push(t.complaint(line, &format!("give {name} a place in LOCK_ORDER")));
                }
            }
        }
    }
    out
}

/// Complains of locks that the page does not show, or not in the order of the source.
fn undocumented(source: &Text, page: &Text) -> Vec<String> {
    let (mut at, mut out) = (0, Vec::new());
    for name in listed(&source.text, "order") {
        match page.text[at..].find(&format!("`{name}`")) {
            Some(found) => at += found,
            None => out.push(page.complaint(0, &format!("show {name} in the order of locks"))),
        }
    }
    out
}

#[test]
fn locks_are_listed_and_documented() {
    let sources = rust();
    none(sources.iter().flat_map(foreign_locks).collect());
    let crates = SCHEDULED.iter();
    none(crates.flat_map(|k| unlisted_names(k, &sources)).collect());
    let pages = texts(".md");
    let page = pages.iter().find(|t| t.path == PAGE).expect("there");
    let orders = sources.iter().filter(|t| SCHEDULED.contains(&t.krate()));
    none(orders.flat_map(|t| undocumented(t, page)).collect());
    let shown = sources.iter().map(|t| listed(&t.text, "order").len());
    assert!(shown.sum::<usize>() > 10, "the constants are not found");
}

/// Each rule complains of a text that breaks it.
#[test]
fn the_lock_rules_report_violations() {
    let source = |text: &str| Text::new("crates/lsm/src/a.rs", text);
    let list = "pub const LOCK_ORDER: CrateLocks = CrateLocks {\n    order: &[\"a::A\", \
                \"b::B[]\"],\n    leaves: &[\"C::c\"],\n};\n";
    assert_eq!(listed(list, "order"), ["a::A", "b::B"]);
    assert_eq!(listed(list, "leaves"), ["C::c"]);
    for (text, n) in [
        ("use basalt_env::sync::Mutex;", 0),
        ("use std::sync::{Arc, OnceLock};", 0),
        ("use std::sync::{Arc, Mutex};", 1),
        ("use parking_lot::RwLock;", 1),
        ("    lock: std::sync::Mutex<u8>,", 1),
    ] {
        assert_eq!(foreign_locks(&source(text)).len(), n, "{text}");
    }
    let unlisted = |text: &str| unlisted_names("lsm", &[source(&format!("{list}{text}"))]).len();
    assert_eq!(unlisted("named(\"C::c\", lock)"), 0);
    assert_eq!(unlisted("named(\"D::d\", lock)"), 1);
    assert_eq!(unlisted("named(\n    \"D::d\",\n    lock)"), 1);
    assert_eq!(unlisted("SpinLockMark::new(\"D::d\", &lock)"), 1);
    for (text, n) in [("`a::A`, `b::B`", 0), ("`b::B`, `a::A`", 1), ("`a::A`", 1)] {
        let found = undocumented(&source(list), &Text::new(PAGE, text));
        assert_eq!(found.len(), n, "{text}");
    }
}
