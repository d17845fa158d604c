//! The rule that the parts of the engine depend on each other in one direction.
//!
//! The modules below `lsm::db` are the parts. A path to a part is a dependency, and so is a call: a
//! module that calls a method of the engine depends on the module that defines the method.

use super::Text;
use super::modules::{Graph, Site};
use super::tokens::{Token, closing, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet};

/// The directory whose files and directories are the parts.
const DIRECTORY: &str = "crates/lsm/src/db/";
/// The type through which the parts call each other.
const HOLDER: &str = "Engine";

/// Returns the part that a file belongs to, or `None` for files that are no part.
fn part(path: &str) -> Option<&str> {
    let name = path.strip_prefix(DIRECTORY)?;
    let name = name.split('/').next()?.trim_end_matches(".rs");
    (name != "tests").then_some(name)
}

/// Calls `with` for each token, with the type of the `impl` that the token is in.
fn each_impl<'t>(all: &[Token<'t>], mut with: impl FnMut(usize, Option<&'t str>)) {
    let mut now: Option<(&str, usize)> = None;
    for at in 0..all.len() {
        if now.is_some_and(|(_, end)| at >= end) {
            now = None;
        }
        if now.is_none() && all[at].text == "impl" && is_item(all, at) {
            let open = (at..all.len()).find(|i| matches!(all[*i].text, "{" | ";"));
            if let Some(open) = open.filter(|i| all[*i].text == "{") {
                let head = &all[at + 1..open];
                now = implemented(head).map(|name| (name, closing(all, open)));
            }
        }
        with(at, now.map(|(name, _)| name));
    }
}

/// An `impl` in a type begins behind another token than that of an item does.
fn is_item(all: &[Token], at: usize) -> bool {
    at == 0 || matches!(all[at - 1].text, "}" | ";" | "]" | "{")
}

/// Returns the name of the type that an `impl` is for, given the tokens before its `{`.
fn implemented<'t>(head: &[Token<'t>]) -> Option<&'t str> {
    let behind = head.iter().rposition(|t| t.text == "for").map(|i| i + 1);
    let mut depth = 0i32;
    let mut name = None;
    for token in &head[behind.unwrap_or(0)..] {
        match token.text {
            "<" => depth += 1,
            ">" => depth -= 1,
            "where" => break,
            _ if depth == 0 && token.is_word() => name = Some(token.text),
            _ => {}
        }
    }
    name
}

/// Builds the graph of the parts from all texts of the tree.
pub fn graph(texts: &[Text]) -> Graph {
    let sources: Vec<(&str, &str, Vec<Token>)> = (texts.iter())
        .filter(|t| !t.is_test())
        .filter_map(|t| Some((part(&t.path)?, t.path.as_str(), tokens(&t.text))))
        .map(|(part, path, all)| (part, path, without_tests(&all)))
        .collect();
    let parts: BTreeSet<&str> = sources.iter().map(|(part, _, _)| *part).collect();
    // Methods of the holder, by name: where they are defined.
    let mut methods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (part, _, all) in &sources {
        each_impl(all, |at, of| {
            if of == Some(HOLDER)
                && all[at].text == "fn"
                && let Some(name) = all.get(at + 1)
            {
                methods.entry(name.text).or_default().insert(part);
            }
        });
    }
    let mut graph = Graph::default();
    for (part, path, all) in &sources {
        let text = |at: usize| all.get(at).map_or("", |t| t.text);
        let mut add = |to: &str, line| {
            if to != *part {
                graph.add(part, to, (path.to_string(), line) as Site);
            }
        };
        each_impl(all, |at, of| {
            // A path: `crate::db::part` anywhere, or `super::part` in a file that is a part itself.
            let is_file = path[DIRECTORY.len()..].matches('/').count() == 0;
            let from_root = text(at) == "crate" && text(at + 2) == "db";
            let name = match from_root {
                true => text(at + 4),
                false if is_file && text(at) == "super" => text(at + 2),
                false => "",
            };
            if parts.contains(name) {
                add(name, all[at].line);
            }
            // A call: `self.method(` in the holder, `engine.method(`, `.engine().method(`.
            let calls = text(at) == "." && text(at + 2) == "(";
            let receiver = at.checked_sub(1).map_or("", text);
            let on_holder = match receiver {
                "self" => of == Some(HOLDER),
                "engine" => true,
                ")" => at >= 3 && text(at - 3) == "engine",
                _ => false,
            };
            if calls && on_holder {
                for to in methods.get(text(at + 1)).into_iter().flatten() {
                    add(to, all[at].line);
                }
            }
        });
    }
    graph
}

/// Complains of parts that form a cycle.
pub fn complaints(texts: &[Text]) -> Vec<String> {
    let graph = graph(texts);
    let mut out = Vec::new();
    for set in graph.cycles() {
        let parts = set.iter().copied().collect::<Vec<_>>().join(", ");
        out.push(format!(
            "{DIRECTORY}: the parts {parts} form a cycle: {}. Move what both need to the lower part",
            graph.shortest(&set)
        ));
    }
    out
}

/// A rule that complains of nothing is not a rule.
#[test]
fn the_rule_for_engine_parts_reports_violations() {
    let found = |files: &[(&str, &str)]| {
        let texts: Vec<Text> = (files.iter())
            .map(|(name, text)| Text::new(&format!("{DIRECTORY}{name}"), text))
            .collect();
        complaints(&texts)
    };
    // A call through the engine closes a circle that no path shows.
    let lower = (
        "a.rs",
        "use super::engine::Engine;\nimpl Engine { fn f(&self) { self.g(); } }",
    );
    let upper = ("b.rs", "impl Engine {\n fn g(&self) { self.f(); }\n}");
    let circle = found(&[lower, upper]);
    assert_eq!(circle.len(), 1, "{circle:?}");
    assert!(
        circle[0].contains("a -> b (crates/lsm/src/db/a.rs:2) -> a (crates/lsm/src/db/b.rs:2)"),
        "{circle:?}"
    );
    // So do paths of a directory, and calls of another type's code on an engine.
    let directory = [
        ("a.rs", "use super::b::B;"),
        ("a/c.rs", "fn f() { crate::db::b::g() }"),
        (
            "b.rs",
            "impl<T> From<T> for Handle { fn h(&self) { self.engine().k(); } }",
        ),
        (
            "d.rs",
            "impl Engine { fn k(&self) {} }\nuse crate::db::a::X;",
        ),
    ];
    assert_eq!(found(&directory).len(), 1, "{:?}", found(&directory));
    // Methods of other types, tests, and paths inside of a directory are no dependencies.
    let free = [
        ("a.rs", "use super::b::B;\nimpl Engine { fn f(&self) {} }"),
        (
            "b.rs",
            "impl Other { fn g(&self) { self.f(); } }\n#[cfg(test)] mod tests { use super::super::a; }",
        ),
        ("c/d.rs", "use super::a;"),
        ("tests/b.rs", "use crate::db::a;"),
    ];
    assert_eq!(found(&free), [""; 0]);
}
