//! Words that comments and names do not use, the width of comments, and doc comments that are no
//! sentence.
//!
//! The lists hold words that have a standard term in the field, and words that hide the subject of
//! a sentence. Old code still breaks these rules: the ceilings in [`super::shape`] only shrink.

use super::Text;
use super::tokens::{Token, closing, comments, item_end, tokens, without_tests};
use std::ops::RangeInclusive;

/// Columns at which comments wrap.
pub const WIDEST: usize = 100;

/// Words of comments, and what to write instead.
const OF_COMMENTS: &[(&str, &str)] = &[
    ("whoever", "name the subject"),
    ("somebody", "name the subject"),
    ("nobody", "name the subject"),
    ("everybody", "name the subject"),
    ("anybody", "name the subject"),
    ("someone", "name the subject"),
    ("rooms", "module"),
    ("house", "project"),
    ("door", "interface"),
    ("doors", "interface"),
    ("arrow", "dependency"),
    ("arrows", "dependency"),
    ("courtesy", "I/O priority"),
    ("courteous", "at low priority"),
    ("hurry", "urgent"),
    ("chance", "random number"),
    ("weigh", "compare"),
];

/// Words of names, and the word to use instead. Words of one name stand with `_` between them.
const OF_NAMES: &[(&str, &str)] = &[
    ("chance", "rng"),
    ("company", "group_wait"),
    ("courtesy", "io_priority"),
    ("departed", "dropped_refs"),
    ("figures", "metrics"),
    ("gather", "relocate"),
    ("habit", "scan_history"),
    ("hurry", "urgent"),
    ("insertion", "apply"),
    ("landing", "seek_prefetch"),
    ("let_in", "admit"),
    ("look_at", "read"),
    ("packed", "compressed"),
    ("paused_at", "resume_key"),
    ("put_headed", "put_parts"),
    ("scattered", "relocation"),
    ("settle", "wait_idle"),
    ("shadows", "hidden_garbage"),
    ("shown", "striped_view"),
    ("skip_budget", "max_skippable_entries"),
    ("spared", "io_priority"),
    ("tell", "report"),
    ("together", "batch"),
    ("unread", "lazy_value"),
    ("weigh", "compare"),
];

/// A banned word in a text.
pub struct Banned {
    /// Line, counted from 0.
    pub line: usize,
    pub word: &'static str,
    pub instead: &'static str,
}

/// Returns the banned words in the comments of a source, and in the names that it declares. Names
/// of tests and code between backticks are free.
pub fn banned(t: &Text) -> Vec<Banned> {
    let mut out = Vec::new();
    for (line, comment) in comments(&t.text) {
        for (i, text) in comment.lines().enumerate() {
            // Every second piece between backticks is code.
            let prose = text.split('`').step_by(2);
            let words = prose.flat_map(|p| p.split(|c: char| !c.is_alphanumeric() && c != '_'));
            for found in words {
                let found = found.to_lowercase();
                let known = OF_COMMENTS.iter().filter(|(word, _)| *word == found);
                out.extend(known.map(|(word, instead)| Banned {
                    line: line + i,
                    word,
                    instead,
                }));
            }
        }
    }
    if t.is_test() {
        return out;
    }
    let code = without_tests(&tokens(&t.text));
    let text = |at: usize| code.get(at).map_or("", |t| t.text);
    for (at, token) in code.iter().enumerate().filter(|(_, t)| t.is_word()) {
        let before = at.checked_sub(1).map_or("", text);
        let is_field = matches!(before, "pub" | ")") && text(at + 1) == ":";
        let is_item = [
            "fn", "struct", "enum", "trait", "type", "mod", "const", "static",
        ]
        .contains(&before);
        if !is_item && !is_field {
            continue;
        }
        let name = format!("_{}_", snake(token.text));
        let known = OF_NAMES
            .iter()
            .filter(|(word, _)| name.contains(&format!("_{word}_")));
        out.extend(known.map(|(word, instead)| Banned {
            line: token.line,
            word,
            instead,
        }));
    }
    out
}

/// Returns a name in lower case with `_` between its words.
fn snake(name: &str) -> String {
    let mut out = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
        before = c;
    }
    out
}

/// Returns the lines, counted from 0, that are comments wider than [`WIDEST`] columns.
pub fn wide_comments(t: &Text) -> Vec<usize> {
    let lines = t.text.lines().enumerate();
    let wide =
        lines.filter(|(_, l)| l.trim_start().starts_with("//") && l.chars().count() > WIDEST);
    wide.map(|(i, _)| i).collect()
}

/// Returns the first lines, counted from 0, of the doc comments that are no sentence. A sentence
/// begins with a capital letter or with code, and ends in `.`, `:` or `;`, or in a code block, a
/// list or a table. The help texts of flags are free: by convention they end without a period.
pub fn doc_fragments(t: &Text) -> Vec<usize> {
    let mut blocks: Vec<(usize, Vec<&str>)> = Vec::new();
    for (line, comment) in comments(&t.text) {
        let Some(doc) = comment.strip_prefix("///").filter(|d| !d.starts_with('/')) else {
            continue;
        };
        match blocks.last_mut() {
            Some((first, block)) if *first + block.len() == line => block.push(doc),
            _ => blocks.push((line, vec![doc])),
        }
    }
    let help = help_texts(&tokens(&t.text));
    blocks.retain(|(line, block)| !is_sentence(block) && !help.iter().any(|h| h.contains(line)));
    blocks.into_iter().map(|(line, _)| line).collect()
}

/// Returns whether the lines of a doc comment begin and end as [`doc_fragments`] wants it.
fn is_sentence(lines: &[&str]) -> bool {
    let text = lines.join("\n");
    let begins = text.trim_start().trim_start_matches(['[', '"', '*', '(']);
    if !begins.starts_with(|c: char| c.is_uppercase() || c == '`') {
        return false;
    }
    // The last paragraph is a list if its first line is an item.
    let mut paragraphs = lines.split(|l| l.trim().is_empty());
    let Some(last) = paragraphs.rfind(|p| !p.is_empty()) else {
        return false;
    };
    let number = |l: &str| l.trim_start_matches(|c: char| c.is_ascii_digit()).len() < l.len();
    let is_item = |l: &str| {
        let l = l.trim_start();
        l.starts_with("- ") || l.starts_with("* ") || (number(l) && l.contains(". "))
    };
    let is_row = |l: &str| l.trim_start().starts_with('|');
    let ends = text.trim_end().trim_end_matches([')', '"', '*']);
    last.iter().any(|l| is_item(l))
        || last.iter().all(|l| is_row(l))
        || ends.ends_with(['.', ':', ';'])
        || ends.ends_with("```")
}

/// Returns the lines of the items whose doc comments become the help texts of a command, from the
/// derive to the item's end.
fn help_texts(tokens: &[Token]) -> Vec<RangeInclusive<usize>> {
    let derives = ["Args", "Parser", "Subcommand", "ValueEnum"];
    let mut out = Vec::new();
    for (at, three) in tokens.windows(3).enumerate() {
        if [three[0].text, three[1].text, three[2].text] != ["#", "[", "derive"] {
            continue;
        }
        let close = closing(tokens, at + 1);
        if tokens[at..close].iter().any(|t| derives.contains(&t.text)) {
            let end = item_end(tokens, close + 1).min(tokens.len());
            out.push(three[0].line..=tokens[end - 1].line);
        }
    }
    out
}

#[test]
fn the_rules_of_language_bite() {
    let found = |path: &str, text: &str| -> Vec<(usize, &str)> {
        let found = banned(&Text::new(path, text));
        found.into_iter().map(|b| (b.line, b.word)).collect()
    };
    // Taken apart, so that this file does not complain of itself.
    let nobody = ["no", "body"].concat();
    let text = format!("fn f() {{}} // {nobody}\n\n/* a\n {nobody}, `{nobody}` */ \"{nobody}\"");
    let expected = [(0, "nobody"), (3, "nobody")];
    assert_eq!(found("crates/k/src/lib.rs", &text), expected);
    assert_eq!(found("crates/k/src/tests.rs", &text), expected);
    let names = "fn wait_settled() { g.settle(); }\npub(crate) struct CanSettle { pub skip_budget: u64 }\n\
                 #[cfg(test)]\nmod tests { fn settle() {} }";
    let expected = [(1, "settle"), (1, "skip_budget")];
    assert_eq!(found("crates/k/src/lib.rs", names), expected);
    assert_eq!(found("crates/k/tests/a.rs", names), []);
    let wide = |n: usize| format!("x\n    //{}\n", "é".repeat(n));
    let wide = |n: usize| wide_comments(&Text::new("crates/k/src/lib.rs", &wide(n)));
    assert_eq!((wide(94), wide(95)), (vec![], vec![1]));
}

#[test]
fn the_rule_of_doc_comments_bites() {
    let found = |text: &str| doc_fragments(&Text::new("crates/k/src/lib.rs", text));
    for sentence in [
        "Bytes of a block.",
        "[`Block`] has\n/// two ends;",
        "`a` and `b` (and `c`.)",
        "The levels:\n///\n/// - one\n///   and a half\n/// - two",
        "Steps:\n/// 1. one",
        "A table.\n///\n/// | a |\n/// |---|\n/// | b |",
        "An example:\n///\n/// ```\n/// f()\n/// ```",
    ] {
        assert_eq!(
            found(&format!("/// {sentence}\nfn f() {{}}")),
            [],
            "{sentence}"
        );
    }
    for fragment in [
        "bytes of a block.",
        "4 KiB.",
        "Bytes of a block",
        "Bytes of a block,\n/// and of its trailer (5)",
        "Bytes.\n///\n/// Of a block",
        "- no paragraph begins with a list",
        "",
    ] {
        let text = format!("// a\n/// {fragment}\nfn f() {{}}\n/// A sentence.\nfn g() {{}}");
        assert_eq!(found(&text), [1], "{fragment}");
    }
    // Only the fields and variants of a command line are free.
    let flags = "/// The flags\n#[derive(Clone, clap::Args)]\npub(crate) struct F {\n/// Bytes\na: u8,\n}\n\
                 /// bytes\nstruct G;";
    assert_eq!(found(flags), [0, 6]);
    let derive = "#[derive(Clone)]\nstruct F {\n/// Bytes\na: u8 }";
    assert_eq!(found(derive), [2]);
    assert_eq!(found("//// no doc comment\n// nor this\n//! nor this"), []);
}
