//! The counts of the shape of each crate, as a table, and ceilings for those that only shrink: long
//! functions, long files, wide comments, banned words, doc comments that are no sentence.

use super::language::{banned, doc_fragments, wide_comments};
use super::modules::Graph;
use super::tokens::{functions, tokens, without_tests};
use super::{Text, none, rust};
use std::collections::{BTreeMap, BTreeSet};

/// Lines of a function above which it counts as long.
const LONG_FUNCTION: usize = 120;
/// Lines of a file, tests and comments included, above which it counts as long.
const LONG_FILE: usize = 1000;

/// Numbers that tell how much long code a crate has. They only shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ceiling {
    /// Functions of more than [`LONG_FUNCTION`] lines, tests not among them.
    long_functions: usize,
    /// Files of more than [`LONG_FILE`] lines, tests among them.
    long_files: usize,
    /// Lines of comments of more than 100 columns, tests among them.
    wide_comments: usize,
    /// Banned words in comments and in names ([`super::language`]).
    banned_words: usize,
    /// Doc comments that are no sentence, tests among them ([`super::language`]).
    doc_fragments: usize,
}

/// The ceilings of the crates that still break a rule: none does.
const CEILINGS: &[(&str, Ceiling)] = &[];

/// Makes a ceiling of the counts of long functions, long files, wide comments, banned words and doc
/// comments that are no sentence, in this order.
const fn ceiling(counts: [usize; 5]) -> Ceiling {
    let [
        long_functions,
        long_files,
        wide_comments,
        banned_words,
        doc_fragments,
    ] = counts;
    Ceiling {
        long_functions,
        long_files,
        wide_comments,
        banned_words,
        doc_fragments,
    }
}

/// The counts of one crate.
struct Shape<'t> {
    krate: &'t str,
    files: usize,
    /// Lines with code that is built without tests.
    code_lines: usize,
    longest: (usize, &'t str),
    /// Name, path, line and length of each long function.
    long_functions: Vec<(&'t str, &'t str, usize, usize)>,
    /// Path and lines of each long file.
    long_files: Vec<(&'t str, usize)>,
    /// Path and line of each wide comment.
    wide_comments: Vec<(&'t str, usize)>,
    /// Places of each banned word, with the word to use instead.
    banned_words: BTreeMap<(&'static str, &'static str), Vec<(&'t str, usize)>>,
    /// Path and line of each doc comment that is no sentence.
    doc_fragments: Vec<(&'t str, usize)>,
    cycles: Vec<Vec<String>>,
}

fn shape<'t>(krate: &'t str, texts: &'t [Text]) -> Shape<'t> {
    let mut shape = Shape {
        krate,
        files: 0,
        code_lines: 0,
        longest: (0, ""),
        long_functions: Vec::new(),
        long_files: Vec::new(),
        wide_comments: Vec::new(),
        banned_words: BTreeMap::new(),
        doc_fragments: Vec::new(),
        cycles: Vec::new(),
    };
    let graph = Graph::of(krate, texts);
    for set in graph.cycles() {
        shape
            .cycles
            .push(set.into_iter().map(str::to_string).collect());
    }
    for t in texts.iter().filter(|t| t.krate() == krate) {
        let lines = t.text.lines().count();
        shape.files += 1;
        shape.longest = shape.longest.max((lines, &t.path));
        if lines > LONG_FILE {
            shape.long_files.push((&t.path, lines));
        }
        let wide = wide_comments(t).into_iter();
        shape
            .wide_comments
            .extend(wide.map(|line| (&*t.path, line + 1)));
        let fragments = doc_fragments(t).into_iter();
        shape
            .doc_fragments
            .extend(fragments.map(|line| (&*t.path, line + 1)));
        for b in banned(t) {
            let sites = shape.banned_words.entry((b.word, b.instead)).or_default();
            sites.push((&t.path, b.line + 1));
        }
        if t.is_test() {
            continue;
        }
        let all = without_tests(&tokens(&t.text));
        let lines: BTreeSet<usize> = all.iter().map(|t| t.line).collect();
        shape.code_lines += lines.len();
        for f in functions(&all)
            .into_iter()
            .filter(|f| f.lines > LONG_FUNCTION)
        {
            let function = (f.name, &*t.path, f.line + 1, f.lines);
            shape.long_functions.push(function);
        }
    }
    shape
}

/// Sites that a complaint lists at most.
const LISTED: usize = 8;

/// The counts of a crate are its ceilings: a larger one is a step back, a smaller one is to be
/// kept.
fn ceilings(shape: &Shape, allowed: &[(&str, Ceiling)]) -> Vec<String> {
    let listed = allowed.iter().find(|(name, _)| *name == shape.krate);
    let allowed = listed.map_or(Ceiling::default(), |(_, c)| *c);
    let functions = shape.long_functions.iter();
    let functions = functions.map(|(f, path, line, n)| format!("{f} ({path}:{line}, {n} lines)"));
    let files = shape.long_files.iter();
    let files = files.map(|(path, n)| format!("{path} ({n} lines)"));
    let wide = shape.wide_comments.iter();
    let wide = wide.map(|(path, line)| format!("{path}:{line}"));
    let words = shape.banned_words.iter().flat_map(|((word, instead), at)| {
        let site =
            move |(path, line): &(&str, usize)| format!("{word:?} ({instead}, {path}:{line})");
        at.iter().map(site)
    });
    let fragments = shape.doc_fragments.iter();
    let fragments = fragments.map(|(path, line)| format!("{path}:{line}"));
    let counts: [(&str, &str, Vec<String>, usize); 5] = [
        (
            "long functions",
            "split one of",
            functions.collect(),
            allowed.long_functions,
        ),
        (
            "long files",
            "split one of",
            files.collect(),
            allowed.long_files,
        ),
        (
            "wide comments",
            "wrap one of",
            wide.collect(),
            allowed.wide_comments,
        ),
        (
            "banned words",
            "replace one of",
            words.collect(),
            allowed.banned_words,
        ),
        (
            "doc comments that are no sentence",
            "begin with a capital letter and end with a period in",
            fragments.collect(),
            allowed.doc_fragments,
        ),
    ];
    let now = counts.each_ref().map(|(_, _, found, _)| found.len());
    let mut out = Vec::new();
    for (what, advice, mut found, allowed) in counts {
        let (krate, n) = (shape.krate, found.len());
        if n > allowed {
            if n > LISTED {
                found.truncate(LISTED);
                found.push(format!("{} more", n - LISTED));
            }
            let found = found.join(", ");
            out.push(format!(
                "crates/{krate}: {n} {what}, at most {allowed}: {advice} {found}"
            ));
        } else if n < allowed {
            out.push(format!(
                "crates/{krate}: {n} {what}, allowed are {allowed}: write ({krate:?}, \
                 ceiling({now:?})) to CEILINGS"
            ));
        }
    }
    out
}

fn crates(texts: &[Text]) -> BTreeSet<&str> {
    let crates = texts.iter().map(Text::krate);
    crates.filter(|krate| !krate.is_empty()).collect()
}

/// Prints the counts of each crate:
/// `cargo test -p basalt-cli --test tidy -- --nocapture code_shape_is_within_its_ceilings`.
#[test]
fn code_shape_is_within_its_ceilings() {
    let texts = rust();
    let shapes: Vec<Shape> = crates(&texts)
        .into_iter()
        .map(|k| shape(k, &texts))
        .collect();
    println!(
        "{:<14}{:>6}{:>12}{:>16}{:>12}{:>15}{:>14}{:>15}{:>19}  longest file",
        "crate",
        "files",
        "code lines",
        "functions >120",
        "files >1000",
        "wide comments",
        "banned words",
        "doc fragments",
        "modules in cycles"
    );
    for s in &shapes {
        println!(
            "{:<14}{:>6}{:>12}{:>16}{:>12}{:>15}{:>14}{:>15}{:>19}  {} ({} lines)",
            s.krate,
            s.files,
            s.code_lines,
            s.long_functions.len(),
            s.long_files.len(),
            s.wide_comments.len(),
            s.banned_words.values().map(Vec::len).sum::<usize>(),
            s.doc_fragments.len(),
            s.cycles.iter().map(Vec::len).sum::<usize>(),
            s.longest.1,
            s.longest.0,
        );
    }
    for s in &shapes {
        for (name, path, line, n) in &s.long_functions {
            println!("function of {n} lines: {name}, {path}:{line}");
        }
        for (path, n) in &s.long_files {
            println!("file of {n} lines: {path}");
        }
        let words = s.banned_words.iter();
        let words: Vec<String> = words
            .map(|((word, _), at)| format!("{word} {}", at.len()))
            .collect();
        if !words.is_empty() {
            println!("banned words of {}: {}", s.krate, words.join(", "));
        }
        for cycle in &s.cycles {
            println!("cycle in {}: {}", s.krate, cycle.join(", "));
        }
    }
    none(shapes.iter().flat_map(|s| ceilings(s, CEILINGS)).collect());
    for (krate, ceiling) in CEILINGS {
        assert!(shapes.iter().any(|s| s.krate == *krate), "{krate} is gone");
        assert_ne!(*ceiling, Ceiling::default(), "{krate} needs no ceiling");
    }
}

#[test]
fn the_ceiling_rule_reports_violations() {
    let long = |name: &str, n: usize| format!("fn {name}() {{\n{}}}\n", "x();\n".repeat(n - 2));
    let text = [
        long("a", 120),
        long("b", 121),
        format!("#[cfg(test)]\n{}", long("c", 700)),
        "// A comment.\n".repeat(60),
    ];
    let texts = [
        Text::new("crates/k/src/lib.rs", &text.concat()),
        Text::new(
            "crates/k/src/tests.rs",
            &format!(
                "{}// {}a door, two doors\n/// no sentence\n",
                long("d", 998),
                "word ".repeat(20)
            ),
        ),
        Text::new("crates/j/src/lib.rs", &long("e", 1000)),
    ];
    let shape = shape("k", &texts);
    assert_eq!((shape.files, shape.code_lines), (2, 241));
    assert_eq!(shape.longest, (1002, "crates/k/src/lib.rs"));
    assert_eq!(
        shape.long_functions,
        [("b", "crates/k/src/lib.rs", 121, 121)]
    );
    assert_eq!(shape.long_files, [("crates/k/src/lib.rs", 1002)]);
    assert_eq!(shape.wide_comments, [("crates/k/src/tests.rs", 999)]);
    assert_eq!(shape.doc_fragments, [("crates/k/src/tests.rs", 1000)]);
    for (allowed, n) in [
        ([1, 1, 1, 2, 1], 0),
        ([0, 1, 1, 2, 1], 1),
        ([1, 2, 1, 2, 1], 1),
        ([1, 1, 0, 3, 1], 2),
        ([1, 1, 1, 2, 0], 1),
        ([2, 0, 2, 1, 2], 5),
    ] {
        let allowed = [("j", ceiling([7; 5])), ("k", ceiling(allowed))];
        let found = ceilings(&shape, &allowed);
        assert_eq!(found.len(), n, "{found:?}");
    }
}
