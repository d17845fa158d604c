//! The first word of a statement, by which the protocol treats some statements differently.

/// What a statement is, as far as the protocol needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyword {
    /// BEGIN or START TRANSACTION.
    Begin,
    /// COMMIT or END.
    Commit,
    /// ROLLBACK or ABORT, also TO SAVEPOINT.
    Rollback,
    /// SAVEPOINT or RELEASE.
    Savepoint,
    /// A statement that returns rows and writes nothing: SELECT, VALUES or TABLE.
    Select,
    /// INSERT, UPDATE or DELETE.
    Write,
    /// DEALLOCATE or DISCARD.
    Deallocate,
    /// A statement that the session refuses inside of a transaction: a change of the catalog, or
    /// TRUNCATE.
    Ddl,
    /// COPY, whose columns are not those of rows.
    Copy,
    /// Every other statement.
    Other,
}

/// Returns the text after blanks, comments and opening parentheses.
fn skip_blanks(mut text: &str) -> &str {
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        if let Some(comment) = text.strip_prefix("--") {
            text = comment.find('\n').map_or("", |end| &comment[end..]);
        } else if text.starts_with("/*") {
            text = skip_comment(text);
        } else {
            return text;
        }
    }
}

/// Returns the text after a comment, which may have comments inside.
fn skip_comment(text: &str) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return &text[at..];
        }
    }
    ""
}

/// Returns the first word of a text, and the text after it.
fn word(text: &str) -> (&str, &str) {
    let text = skip_blanks(text);
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    text.split_at(end.unwrap_or(text.len()))
}

/// Returns the keyword of a statement.
pub fn keyword(text: &str) -> Keyword {
    const WORDS: [(&str, Keyword); 22] = [
        ("select", Keyword::Select),
        ("insert", Keyword::Write),
        ("update", Keyword::Write),
        ("delete", Keyword::Write),
        ("begin", Keyword::Begin),
        ("commit", Keyword::Commit),
        ("end", Keyword::Commit),
        ("rollback", Keyword::Rollback),
        ("abort", Keyword::Rollback),
        ("start", Keyword::Begin),
        ("values", Keyword::Select),
        ("table", Keyword::Select),
        ("savepoint", Keyword::Savepoint),
        ("release", Keyword::Savepoint),
        ("deallocate", Keyword::Deallocate),
        ("discard", Keyword::Deallocate),
        ("merge", Keyword::Write),
        ("copy", Keyword::Copy),
        ("create", Keyword::Ddl),
        ("drop", Keyword::Ddl),
        ("alter", Keyword::Ddl),
        ("truncate", Keyword::Ddl),
    ];
    let (first, _) = word(text);
    let found = WORDS
        .iter()
        .find(|(word, _)| first.eq_ignore_ascii_case(word));
    found.map_or(Keyword::Other, |(_, keyword)| *keyword)
}

/// What DEALLOCATE or DISCARD removes of the statements that were prepared by the protocol.
#[derive(Debug, PartialEq, Eq)]
pub enum Deallocated {
    /// All of them.
    All,
    /// The one of this name.
    Name(String),
    /// None.
    None,
}

/// Returns what a statement DEALLOCATE or DISCARD removes.
pub fn deallocated(text: &str) -> Deallocated {
    let (first, rest) = word(text);
    let (second, behind) = word(rest);
    if first.eq_ignore_ascii_case("discard") {
        return match second.eq_ignore_ascii_case("all") {
            true => Deallocated::All,
            false => Deallocated::None,
        };
    }
    let rest = match second.eq_ignore_ascii_case("prepare") {
        true => behind,
        false => rest,
    };
    let rest = skip_blanks(rest).trim_end_matches(|c: char| c.is_whitespace() || c == ';');
    match rest.strip_prefix('"').and_then(|r| r.strip_suffix('"')) {
        Some(quoted) => Deallocated::Name(quoted.replace("\"\"", "\"")),
        None if rest.eq_ignore_ascii_case("all") => Deallocated::All,
        None => Deallocated::Name(rest.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests;
