//! Semicolons end statements only outside of strings, names, comments and parentheses.

use super::*;

fn split(script: &str) -> Vec<(u64, String)> {
    let mut splitter = Splitter::default();
    let mut all = Vec::new();
    for line in script.split_inclusive('\n') {
        all.extend(splitter.push(line));
    }
    all.extend(splitter.finish());
    all.into_iter().map(|s| (s.line, s.text)).collect()
}

#[test]
fn statements_end_at_semicolons() {
    assert_eq!(
        split("SELECT 1; SELECT\n 2;\n\n-- none;\nSELECT 3 -- c;\n;;\nSELECT 4"),
        [
            (1, "SELECT 1".to_string()),
            (1, "SELECT\n 2".to_string()),
            (5, "SELECT 3 -- c;".to_string()),
            (7, "SELECT 4".to_string()),
        ]
    );
    assert_eq!(split("  \n-- only\n/* a ; */ ;\n"), []);
}

#[test]
fn semicolons_in_strings_names_comments_and_parentheses_end_nothing() {
    for one in [
        "SELECT 'a;''b;'",
        "SELECT \"a;\"\"b;\"",
        "SELECT E'a\\';b;'",
        "SELECT $$a;'$$",
        "SELECT $x$a;$$;$y$;$x$",
        "SELECT /* a; /* b; */ c; */ 1",
        "CREATE RULE r AS (SELECT 1; SELECT 2)",
        "SELECT 'a\n;\nb'",
        "SELECT table' ;'",
    ] {
        assert_eq!(split(&format!("{one};")), [(1, one.to_string())]);
    }
    // A backslash in a plain string is a character, and `$1` begins no string.
    for (script, n) in [("SELECT 'a\\';SELECT 2;", 2), ("SELECT $1;SELECT a$b$;", 2)] {
        assert_eq!(split(script).len(), n, "{script}");
    }
}

#[test]
fn the_prompt_says_what_is_open() {
    for (text, prompt) in [
        ("", '='),
        ("-- c\n", '='),
        ("SELECT 1\n", '-'),
        ("SELECT (1\n", '('),
        ("SELECT '\n", '\''),
        ("SELECT \"\n", '"'),
        ("SELECT $a$\n", '$'),
        ("SELECT /*\n", '*'),
    ] {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.push(text), []);
        assert_eq!(splitter.prompt(), prompt, "{text}");
        assert_eq!(splitter.is_between(), prompt == '=', "{text}");
        splitter.reset(9);
        assert_eq!(
            splitter.push("A;"),
            [Statement {
                text: "A".into(),
                line: 9
            }]
        );
    }
}

/// A generator of numbers for the seeded test (xorshift64*).
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// Pieces of which the scripts of the seeded test consist.
const PIECES: &[&str] = &[
    "SELECT", " ", "\n", ";", "'", "\"", "$", "$$", "$a$", "--", "/*", "*/", "\\", "E'", "e", "(",
    ")", "é", "1", "''",
];

#[test]
fn any_script_is_split_and_lines_do_not_matter() {
    for seed in 1..5000 {
        let mut below = numbers(seed);
        let script: String = (0..below(40))
            .map(|_| PIECES[below(PIECES.len())])
            .collect();
        let by_line = split(&script);
        let mut splitter = Splitter::default();
        let mut all = splitter.push(&script);
        all.extend(splitter.finish());
        let at_once: Vec<(u64, String)> = all.into_iter().map(|s| (s.line, s.text)).collect();
        assert_eq!(by_line, at_once, "seed={seed}: {script:?}");
        let lines = 1 + script.matches('\n').count() as u64;
        assert!(
            by_line
                .iter()
                .all(|(line, text)| *line <= lines && !text.is_empty())
        );
    }
}
