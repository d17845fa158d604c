//! The rule that the modules of a crate depend on each other in one direction.
//!
//! A module is a child of the crate's root with all that is below it: `a.rs` and the directory `a/`
//! are one. The root is a node as well, named by its file, if it defines items that modules use. A
//! path through a re-export counts for the module that the root re-exports from. Code that only
//! tests compile is left out.

use super::Text;
use super::tokens::{Token, closing, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Cycles that crates still have: crate and modules. The table only shrinks.
pub const ALLOWED: &[(&str, &[&str])] = &[];

/// The first place where a module names another: path, and line counted from 0.
pub type Site = (String, usize);

/// The modules of one crate and, for each, the modules that it names.
#[derive(Default)]
pub struct Graph {
    edges: BTreeMap<String, BTreeMap<String, Site>>,
}

/// A file of the crate, with the module that it belongs to.
struct ModuleSource<'t> {
    path: &'t str,
    module: Vec<String>,
    tokens: Vec<Token<'t>>,
}

/// A path in a source: segments that are relative to the root, and the line.
struct Reference {
    segments: Vec<String>,
    /// The name that a `use` gives to the path.
    name: Option<String>,
    public: bool,
    line: usize,
}

/// Returns the files of a crate that builds without tests, beginning with the root or roots.
fn sources<'t>(krate: &str, texts: &'t [Text]) -> Vec<ModuleSource<'t>> {
    let find = |path: &str| texts.iter().find(|t| t.path == path);
    let mut out = Vec::new();
    let mut waiting: VecDeque<(&Text, Vec<String>)> = VecDeque::new();
    for root in ["lib.rs", "main.rs"] {
        let root = find(&format!("crates/{krate}/src/{root}"));
        waiting.extend(root.map(|t| (t, Vec::new())));
    }
    while let Some((text, module)) = waiting.pop_front() {
        let left = without_tests(&tokens(&text.text));
        let (directory, file) = text.path.rsplit_once('/').unwrap_or(("", &text.path));
        let directory = match file {
            "lib.rs" | "main.rs" | "mod.rs" => directory.to_string(),
            _ => text.path.trim_end_matches(".rs").to_string(),
        };
        each_scope(&left, &module, |at, scope| {
            if let [word, name, end] = &left[at..left.len().min(at + 3)]
                && (word.text, end.text) == ("mod", ";")
            {
                let inline = scope[module.len()..].iter().map(String::as_str);
                let path = [&*directory].into_iter().chain(inline).chain([name.text]);
                let path = path.collect::<Vec<_>>().join("/");
                let found = find(&format!("{path}.rs")).or(find(&format!("{path}/mod.rs")));
                let child = scope.iter().cloned().chain([name.text.to_string()]);
                waiting.extend(found.map(|t| (t, child.collect())));
            }
        });
        out.push(ModuleSource {
            path: &text.path,
            module,
            tokens: left,
        });
    }
    out
}

/// Calls `with` for each token, with the module that the token is in.
fn each_scope(tokens: &[Token], module: &[String], mut with: impl FnMut(usize, &[String])) {
    let mut scope = module.to_vec();
    let mut ends = Vec::new();
    for at in 0..tokens.len() {
        if ends.last() == Some(&at) {
            ends.pop();
            scope.pop();
        }
        with(at, &scope);
        if let [word, name, open] = &tokens[at..tokens.len().min(at + 3)]
            && (word.text, open.text) == ("mod", "{")
        {
            scope.push(name.text.to_string());
            ends.push(closing(tokens, at + 2));
        }
    }
}

/// Returns the path from the root, or `None` if the path may begin outside of the crate.
fn from_root(segments: &[&str], scope: &[String], top: &BTreeSet<String>) -> Option<Vec<String>> {
    let mut base = scope.to_vec();
    let mut rest = segments;
    match segments.first().copied() {
        Some("crate") => (base, rest) = (Vec::new(), &segments[1..]),
        Some("self") => rest = &segments[1..],
        Some("super") => {
            while let Some(("super", behind)) = rest.split_first().map(|(s, b)| (*s, b)) {
                base.pop();
                rest = behind;
            }
        }
        Some(name) if scope.is_empty() && top.contains(name) => {}
        _ => return None,
    }
    base.extend(rest.iter().map(|s| s.to_string()));
    Some(base)
}

/// Adds the paths of the `use` tree that begins at `at`, behind `prefix`, and returns the index of
/// its end.
fn use_tree<'t>(
    tokens: &[Token<'t>],
    mut at: usize,
    prefix: &[&'t str],
    out: &mut Vec<(Vec<&'t str>, &'t str, usize)>,
) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |t| t.line);
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|t| !matches!(t.text, "}" | ";")) {
                    at = use_tree(tokens, at, &path, out);
                    at += usize::from(tokens.get(at).is_some_and(|t| t.text == ","));
                }
                return at + 1;
            }
            "," | "}" | ";" => break,
            "as" => {
                let name = tokens.get(at + 1).map_or("_", |t| t.text);
                out.push((path, name, line));
                return at + 2;
            }
            "::" => {}
            "self" if !path.is_empty() => {}
            text => path.push(text),
        }
        at += 1;
    }
    let name = path.last().copied().unwrap_or("_");
    out.push((path, name, line));
    at
}

/// Returns the paths into the crate that a source contains.
fn references(source: &ModuleSource, top: &BTreeSet<String>) -> Vec<Reference> {
    let all = &source.tokens;
    let text = |at: usize| all.get(at).map_or("", |t| t.text);
    let (mut out, mut behind) = (Vec::new(), 0);
    each_scope(all, &source.module, |at, scope| {
        if at < behind {
            return;
        }
        let mut add = |segments: &[&str], name: Option<&str>, public, line| {
            if let Some(segments) = from_root(segments, scope, top) {
                out.push(Reference {
                    segments,
                    name: name.map(str::to_string),
                    public,
                    line,
                });
            }
        };
        let before = at.checked_sub(1).map_or("", text);
        // `use<'a>` in a type is no declaration.
        if text(at) == "use" && text(at + 1) != "<" {
            let mut found = Vec::new();
            behind = use_tree(all, at + 1, &[], &mut found);
            for (segments, name, line) in found {
                add(&segments, Some(name), matches!(before, "pub" | ")"), line);
            }
        } else if all[at].is_word() && text(at + 1) == "::" && !matches!(before, "::" | "in") {
            let mut segments = vec![text(at)];
            let mut next = at + 1;
            while text(next) == "::" && all.get(next + 1).is_some_and(Token::is_word) {
                segments.push(text(next + 1));
                next += 2;
            }
            add(&segments, None, false, all[at].line);
        }
    });
    out
}

/// Returns the names of the items that a root defines itself.
fn root_items(root: &ModuleSource) -> BTreeSet<String> {
    let kinds = [
        "fn", "struct", "enum", "trait", "type", "const", "static", "union",
    ];
    let mut out = BTreeSet::new();
    let mut depth = 0usize;
    for pair in root.tokens.windows(2) {
        match pair[0].text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            kind if depth == 0 && kinds.contains(&kind) && pair[1].is_word() => {
                out.insert(pair[1].text.to_string());
            }
            _ => {}
        }
    }
    out
}

impl Graph {
    /// Builds the graph of one crate from all texts of the tree.
    pub fn of(krate: &str, texts: &[Text]) -> Graph {
        let sources = sources(krate, texts);
        let roots = || sources.iter().filter(|s| s.module.is_empty());
        let top: BTreeSet<String> = (sources.iter())
            .filter_map(|s| s.module.first().cloned())
            .collect();
        // Names at the root: those of re-exported items lead to their module, others to the root.
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        for root in roots() {
            let file = root.path.rsplit('/').next().unwrap_or("");
            let own = root_items(root).into_iter();
            named.extend(own.map(|item| (item, file.to_string())));
            for r in references(root, &top) {
                if let (Some(name), Some(module)) = (r.name, r.segments.first()) {
                    named.insert(name, module.clone());
                }
            }
        }
        let mut graph = Graph::default();
        for source in &sources {
            let from = match source.module.first() {
                Some(module) => module,
                None => source.path.rsplit('/').next().unwrap_or(""),
            };
            for r in references(source, &top) {
                let Some(first) = r.segments.first() else {
                    continue;
                };
                let to = match top.get(first) {
                    Some(module) => Some(module),
                    None => named.get(first),
                };
                // The root does not use the names that it re-exports.
                let re_export = source.module.is_empty() && r.public;
                if let Some(to) = to
                    && to != from
                    && !re_export
                {
                    let edges = graph.edges.entry(from.to_string()).or_default();
                    let site = || (source.path.to_string(), r.line);
                    edges.entry(to.clone()).or_insert_with(site);
                }
            }
        }
        graph
    }

    /// Adds that `from` depends on `to`, unless that is known.
    pub fn add(&mut self, from: &str, to: &str, site: Site) {
        let edges = self.edges.entry(from.to_string()).or_default();
        edges.entry(to.to_string()).or_insert(site);
    }

    /// Returns the number of dependencies.
    pub fn edges(&self) -> usize {
        self.edges.values().map(BTreeMap::len).sum()
    }

    fn next<'g>(&'g self, from: &str) -> impl Iterator<Item = &'g str> {
        let edges = self.edges.get(from).into_iter().flatten();
        edges.map(|(to, _)| to.as_str())
    }

    /// Returns a shortest way from `from` to `to` of at least one edge.
    fn way<'g>(&'g self, from: &'g str, to: &str) -> Option<Vec<&'g str>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = VecDeque::from([from]);
        while let Some(at) = waiting.pop_front() {
            for next in self.next(at) {
                if next == to {
                    let mut way = vec![next, at];
                    while let Some(earlier) = before.get(way[way.len() - 1]) {
                        way.push(earlier);
                    }
                    way.reverse();
                    return Some(way);
                }
                if next != from && !before.contains_key(next) {
                    before.insert(next, at);
                    waiting.push_back(next);
                }
            }
        }
        None
    }

    /// Returns the sets of modules that depend on each other in a cycle.
    pub fn cycles(&self) -> Vec<BTreeSet<&str>> {
        let mut out: Vec<BTreeSet<&str>> = Vec::new();
        for module in self.edges.keys().map(String::as_str) {
            let known = out.iter().any(|set| set.contains(module));
            if known || self.way(module, module).is_none() {
                continue;
            }
            let others = self.edges.keys().map(String::as_str);
            let mutual =
                others.filter(|o| self.way(module, o).is_some() && self.way(o, module).is_some());
            out.push(mutual.collect());
        }
        out
    }

    /// Returns the shortest cycle through modules of `set`, with the place of each edge.
    pub fn shortest(&self, set: &BTreeSet<&str>) -> String {
        let ways = set.iter().filter_map(|m| self.way(m, m));
        let way = ways.min_by_key(Vec::len).unwrap_or_default();
        let mut out = way.first().map_or(String::new(), |m| m.to_string());
        for edge in way.windows(2) {
            let (path, line) = &self.edges[edge[0]][edge[1]];
            out += &format!(" -> {} ({path}:{})", edge[1], line + 1);
        }
        out
    }
}

/// The modules of a crate form no cycle but those that are allowed, and no allowed cycle is larger
/// than the crate's.
pub fn cycles(krate: &str, texts: &[Text], allowed: &[(&str, &[&str])]) -> Vec<String> {
    let graph = Graph::of(krate, texts);
    let mine = allowed.iter().filter(|(name, _)| *name == krate);
    let rows: Vec<BTreeSet<&str>> = mine.map(|(_, m)| m.iter().copied().collect()).collect();
    let found = graph.cycles();
    let mut out = Vec::new();
    for set in &found {
        if rows.contains(set) {
            continue;
        }
        let modules = set.iter().copied().collect::<Vec<_>>().join(", ");
        out.push(match rows.iter().any(|row| set.is_subset(row)) {
            true => format!(
                "crates/{krate}: an allowed cycle is smaller now: write {{{modules}}} to ALLOWED"
            ),
            false => format!(
                "crates/{krate}: the modules {modules} form a cycle: {}. Move what both need to \
                 the lower module",
                graph.shortest(set)
            ),
        });
    }
    for row in &rows {
        if !found.iter().any(|set| set.is_subset(row)) {
            out.push(format!(
                "crates/{krate}: an allowed cycle is gone: strike {row:?} from ALLOWED"
            ));
        }
    }
    out
}

/// A rule that complains of nothing is not a rule.
#[test]
fn the_module_rule_reports_violations() {
    let complaints = |files: &[(&str, &str)], allowed: &[(&str, &[&str])]| {
        let path = |name: &str| format!("crates/k/src/{name}");
        let texts: Vec<Text> = (files.iter())
            .map(|(name, text)| Text::new(&path(name), text))
            .collect();
        cycles("k", &texts, allowed)
    };
    let one = |files: &[(&str, &str)], allowed: &[(&str, &[&str])], part: &str| {
        let found = complaints(files, allowed);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(part), "{found:?}");
    };
    let lib = ("lib.rs", "mod a;\npub mod b;");
    let two = [
        lib,
        ("a.rs", "\nuse std::{fmt, io};\nuse crate::{b::{self, C}};"),
        ("b.rs", "mod d;"),
        ("b/d.rs", "\n\nfn f() { super::super::a::g(); }"),
    ];
    let cycle = "a -> b (crates/k/src/a.rs:3) -> a (crates/k/src/b/d.rs:3)";
    one(&two, &[], cycle);
    // A cycle of the other crate does not count for this one.
    one(&two, &[("j", &["a", "b"])], cycle);
    assert_eq!(complaints(&two, &[("k", &["a", "b"])]), [""; 0]);
    one(&two, &[("k", &["a", "b", "c"])], "smaller");
    one(&two[..2], &[("k", &["a", "b"])], "gone");

    // In a cycle of three with a chord, the shortest cycle has two modules.
    let three = [
        ("main.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b;"),
        ("b/mod.rs", "pub fn f(c: crate::c::C) {}"),
        ("c.rs", "use super::{a::A, b};"),
    ];
    one(
        &three,
        &[],
        "modules a, b, c form a cycle: b -> c (crates/k/src/b/mod.rs:1) -> b",
    );

    // Names lead through the root: re-exported ones, and those defined there.
    let through = |root| {
        [
            ("lib.rs", root),
            ("a.rs", "use crate::E;"),
            ("b.rs", "use crate::a;"),
        ]
    };
    let through_root = through("mod a; mod b; pub use b::{D, F as E};");
    one(
        &through_root,
        &[],
        "a -> b (crates/k/src/a.rs:1) -> a (crates/k/src/b.rs:1)",
    );
    let through_root = through("mod a; mod b; struct E; fn f() { b::g() }");
    one(&through_root, &[], "a, b, lib.rs form a cycle: a -> lib.rs");
    assert_eq!(
        complaints(&through("mod a; mod b; pub use b::D; struct E;"), &[]),
        [""; 0]
    );

    // Neither tests nor visibilities nor other crates' paths nor comments are dependencies.
    let spared = [
        lib,
        (
            "a.rs",
            "use crate::b;\nfn f() -> impl C + use<'_> { g(); }\n#[cfg(test)]\nmod tests;",
        ),
        ("a/tests.rs", "use crate::b;"),
        (
            "b.rs",
            "//! [`crate::a`]\npub(in crate::b) fn f() { other::crate_a::g(\"crate::a\") }\n\
             #[cfg(test)] mod tests { use crate::a; }",
        ),
    ];
    assert_eq!(complaints(&spared, &[]), [""; 0]);
}
