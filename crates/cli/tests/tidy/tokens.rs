//! Rust sources as tokens: identifiers, punctuation and the places of literals, with their lines.
//!
//! The lexer knows comments, strings and lifetimes, and nothing of the grammar above them. It
//! promises that no text of a comment or a literal becomes an identifier.

/// One token, and the line it begins in, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'t> {
    /// An identifier or keyword, `::`, a single punctuation character, or [`LITERAL`].
    pub text: &'t str,
    /// Line of the first character, counted from 0.
    pub line: usize,
}

impl Token<'_> {
    /// Returns whether the token is an identifier or a keyword.
    pub fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The text of each token that is a string, character or number, or a lifetime.
pub const LITERAL: &str = "\"\"";

/// Returns the tokens of a source text. Comments yield none.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    scan(text, |piece, text, line| match piece {
        Piece::Token => out.push(Token { text, line }),
        Piece::Literal => out.push(Token {
            text: LITERAL,
            line,
        }),
        Piece::Comment | Piece::Space => {}
    });
    out
}

/// Returns the comments of a source text, with the line that each begins in, counted from 0.
pub fn comments(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    scan(text, |piece, text, line| {
        if piece == Piece::Comment {
            out.push((line, text));
        }
    });
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Token,
    Literal,
    Comment,
    Space,
}

/// Calls `with` for each piece of a source text, with its text and the line that it begins in.
fn scan<'t>(text: &'t str, mut with: impl FnMut(Piece, &'t str, usize)) {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 0);
    while at < bytes.len() {
        let rest = &text[at..];
        let (piece, length) = match bytes[at] {
            c if c.is_ascii_whitespace() => (Piece::Space, 1),
            b'/' if rest.starts_with("//") => {
                (Piece::Comment, rest.find('\n').unwrap_or(rest.len()))
            }
            b'/' if rest.starts_with("/*") => (Piece::Comment, block_comment(rest)),
            b'"' => (Piece::Literal, quoted(rest, 0)),
            b'\'' => (Piece::Literal, quote_or_lifetime(rest)),
            b'0'..=b'9' => (Piece::Literal, word(rest)),
            b':' if rest.starts_with("::") => (Piece::Token, 2),
            c if c.is_ascii_punctuation() && c != b'_' => (Piece::Token, 1),
            _ => match (word(rest), literal_behind(rest, word(rest))) {
                (_, Some(length)) => (Piece::Literal, length),
                // Of a raw identifier, `r#` is no part of the name.
                (1, None) if rest.starts_with("r#") && word(&rest[2..]) > 0 => (Piece::Space, 2),
                (0, None) => (Piece::Space, rest.chars().next().map_or(1, char::len_utf8)),
                (length, None) => (Piece::Token, length),
            },
        };
        with(piece, &rest[..length], line);
        line += rest[..length].matches('\n').count();
        at += length;
    }
}

/// Bytes of the identifier or number at the beginning of `rest`.
fn word(rest: &str) -> usize {
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    end.unwrap_or(rest.len())
}

/// Bytes of the block comment at the beginning of `rest`. Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes of the string that begins with a quotation mark at `open`, its prefix included.
fn quoted(rest: &str, open: usize) -> usize {
    let bytes = rest.as_bytes();
    let mut at = open + 1;
    while at < bytes.len() && bytes[at] != bytes[open] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Bytes of the character or lifetime at the beginning of `rest`.
fn quote_or_lifetime(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) | (_, Some((_, '\''))) => quoted(rest, 0),
        _ => 1 + word(&rest[1..]),
    }
}

/// Bytes of the literal whose prefix (`b`, `c`, `r`, `br`, `cr`) is the first `name` bytes of
/// `rest`.
fn literal_behind(rest: &str, name: usize) -> Option<usize> {
    let behind = &rest[name..];
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    match &rest[..name] {
        "b" if behind.starts_with('\'') => Some(quoted(rest, name)),
        "b" | "c" if behind.starts_with('"') => Some(quoted(rest, name)),
        "r" | "br" | "cr" if behind[hashes..].starts_with('"') => {
            let end = format!("\"{}", "#".repeat(hashes));
            let text = name + hashes + 1;
            let found = rest[text..].find(&end);
            Some(found.map_or(rest.len(), |at| text + at + end.len()))
        }
        _ => None,
    }
}

/// Removes the items that only tests and fuzzers compile, by their `cfg` attributes.
pub fn without_tests<'t>(tokens: &[Token<'t>]) -> Vec<Token<'t>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let inner = texts_begin(&tokens[at..], &["#", "!", "["]);
        if !inner && !texts_begin(&tokens[at..], &["#", "["]) {
            out.push(tokens[at]);
            at += 1;
            continue;
        }
        let open = at + if inner { 2 } else { 1 };
        let close = closing(tokens, open);
        if !only_in_tests(&tokens[open + 1..close]) {
            out.extend_from_slice(&tokens[at..=close.min(tokens.len() - 1)]);
            at = close + 1;
        } else if inner {
            return Vec::new();
        } else {
            at = item_end(tokens, close + 1);
        }
    }
    out
}

fn texts_begin(tokens: &[Token], with: &[&str]) -> bool {
    tokens.len() >= with.len() && tokens.iter().zip(with).all(|(t, w)| t.text == *w)
}

/// Returns the index of the bracket that closes the one at `open`, or the number of tokens.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 1 => return i,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Returns whether the attribute is a `cfg` that holds in no build but those of tests and fuzzers.
fn only_in_tests(attribute: &[Token]) -> bool {
    texts_begin(attribute, &["cfg", "("]) && {
        let end = closing(attribute, 1);
        !may_be(&attribute[2..end]).0
    }
}

/// Returns whether a `cfg` predicate can be true, and whether it can be false, outside of tests.
fn may_be(predicate: &[Token]) -> (bool, bool) {
    let Some(first) = predicate.first() else {
        return (true, true);
    };
    let arguments = || {
        let end = closing(predicate, 1);
        let (mut out, mut begin, mut at) = (Vec::new(), 2, 2);
        while at < end {
            match predicate[at].text {
                "(" => at = closing(predicate, at),
                "," => {
                    out.push(may_be(&predicate[begin..at]));
                    begin = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if begin < end {
            out.push(may_be(&predicate[begin..end]));
        }
        out
    };
    match first.text {
        "test" | "fuzzing" => (false, true),
        "all" => {
            let all = arguments();
            (all.iter().all(|a| a.0), all.iter().any(|a| a.1))
        }
        "any" => {
            let any = arguments();
            (any.iter().any(|a| a.0), any.iter().all(|a| a.1))
        }
        "not" => arguments().first().map_or((true, true), |a| (a.1, a.0)),
        _ => (true, true),
    }
}

/// Returns the index behind the item, field, arm or statement that begins at `from`, which may
/// begin with attributes.
pub fn item_end(tokens: &[Token], from: usize) -> usize {
    let mut at = from;
    while texts_begin(&tokens[at..], &["#", "["]) {
        at = closing(tokens, at + 1) + 1;
    }
    // The first word that is not a modifier says how the item ends.
    let mut first = at;
    while first < tokens.len() {
        match tokens[first].text {
            "(" if first > at => first = closing(tokens, first),
            "pub" | "unsafe" | "async" | "extern" | LITERAL => {}
            "const" if tokens.get(first + 1).is_some_and(|t| t.text == "fn") => {}
            _ => break,
        }
        first += 1;
    }
    let (by_block, by_comma) = match tokens.get(first).map_or("", |t| t.text) {
        "use" | "const" | "static" | "type" | "let" => (false, false),
        "fn" | "mod" | "impl" | "struct" | "enum" | "trait" | "union" | "macro_rules" => {
            (true, false)
        }
        _ => (true, true),
    };
    while at < tokens.len() {
        match tokens[at].text {
            "{" if by_block => return closing(tokens, at) + 1,
            "(" | "[" | "{" => at = closing(tokens, at),
            ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if by_comma => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// A function's name, its first line counted from 0, and its number of lines.
pub struct Function<'t> {
    pub name: &'t str,
    pub line: usize,
    pub lines: usize,
}

/// Returns the functions with a body, nested ones as well.
pub fn functions<'t>(tokens: &[Token<'t>]) -> Vec<Function<'t>> {
    let mut out = Vec::new();
    for (i, pair) in tokens.windows(2).enumerate() {
        if pair[0].text != "fn" || !pair[1].is_word() {
            continue;
        }
        let mut at = i + 2;
        while at < tokens.len() && !matches!(tokens[at].text, "{" | ";") {
            at = match tokens[at].text {
                "(" | "[" => closing(tokens, at),
                _ => at,
            } + 1;
        }
        if tokens.get(at).is_some_and(|t| t.text == "{")
            && let Some(end) = tokens.get(closing(tokens, at))
        {
            out.push(Function {
                name: pair[1].text,
                line: pair[0].line,
                lines: end.line - pair[0].line + 1,
            });
        }
    }
    out
}

#[test]
fn the_tokenizer_leaves_out_comments_and_strings() {
    let texts = |text: &str| -> Vec<String> {
        let all = tokens(text);
        all.iter().map(|t| t.text.to_string()).collect()
    };
    let code = r##"a::b // c::d
        /* e /* f */ g */ h "i \" j" 'k' '\'' b'l' r#"m " n"# br"o" 'p q r#fn 1_u8 _s é"##;
    let l = LITERAL;
    let expected = [
        "a", "::", "b", "h", l, l, l, l, l, l, l, "q", "fn", l, "_s", "é",
    ];
    assert_eq!(texts(code), expected);
    assert_eq!(tokens("\"a\nb\"\nc")[1].line, 2);

    let found = comments("a // b \"c\n\"// d\" /* e\n */ f //g");
    assert_eq!(found, [(0, "// b \"c"), (1, "/* e\n */"), (2, "//g")]);

    let left = |text: &str| {
        let all = tokens(text);
        let left = without_tests(&all);
        left.iter().map(|t| t.text).collect::<Vec<_>>().join(" ")
    };
    for (text, expected) in [
        ("#[cfg(test)] mod tests; a", "a"),
        (
            "#[cfg(test)] #[path = \"b\"] pub(crate) mod tests { c(); } a",
            "a",
        ),
        ("#[cfg(any(test, fuzzing))] use a::{b, c}; a", "a"),
        (
            "#[cfg(all(test, feature = \"f\"))] fn f<A, B>(a: [u8; 3]) -> C { d } a",
            "a",
        ),
        ("#[cfg(test)] const F: [u8; 3] = [1; 3]; a", "a"),
        ("S { #[cfg(test)] f: u8, a: u8 }", "S { a : u8 }"),
        ("{ #[cfg(test)] f(a, b); a }", "{ a }"),
        ("#[cfg(not(test))] a", "# [ cfg ( not ( test ) ) ] a"),
        (
            "#[cfg(any(test, unix))] a",
            "# [ cfg ( any ( test , unix ) ) ] a",
        ),
        ("#![cfg(test)] a", ""),
    ] {
        assert_eq!(left(text), expected, "{text}");
    }
    let all = tokens("fn a(f: fn(u8)) -> [u8; 2] {\n fn b() {}\n}\ntrait C { fn d(); }");
    let all: Vec<_> = functions(&all)
        .iter()
        .map(|f| (f.name, f.line, f.lines))
        .collect();
    assert_eq!(all, [("a", 0, 3), ("b", 1, 1)]);
}
