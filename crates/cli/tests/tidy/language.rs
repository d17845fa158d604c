//! Words that comments and names do not use, and the width of comments.
//!
//! The lists hold words that have a standard term in the field, and words that hide the subject of
//! a sentence. Old code still has many of them: the ceilings in [`super::shape`] only shrink.

use super::Text;
use super::tokens::{comments, tokens, without_tests};

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
