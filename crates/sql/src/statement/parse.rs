//! [`ParsedStatement`]: a script is split into statements, and each is parsed.

use crate::error::{SqlError, SqlResult, SqlState};
use sqlparser::ast::Statement;
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, TokenizerError};
use std::sync::Arc;

/// Maximum bytes of a script.
const MAX_BYTES: usize = 64 << 20;

/// Nested parentheses, subqueries and operators that the parser may open at once. The parser and
/// the analysis take a few kilobytes of stack for each.
const MAX_NESTING: usize = 60;

/// Maximum number of operators on one path of a statement's tree, whose nodes are dropped
/// recursively.
const MAX_OPERATORS: usize = 5_000;

/// A statement of a script: its text, and what the parser made of it.
#[derive(Debug, Clone)]
pub struct ParsedStatement(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    text: String,
    /// `None` for an empty statement, and for those that the parser does not know.
    statement: Option<Statement>,
    special: Option<Special>,
    places: Arc<Places>,
}

/// A statement that the parser does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    /// CHECKPOINT.
    Checkpoint,
    /// DEALLOCATE ALL.
    DeallocateAll,
    /// VACUUM, ANALYZE, REINDEX and others: nothing to do, by tag.
    Nothing(&'static str),
}

/// Where the lines of a script begin, in characters.
#[derive(Debug)]
pub(super) struct Places {
    /// For each line, its first character in the script, from 0, and its first byte.
    lines: Vec<(u32, usize)>,
}

impl Places {
    fn new(script: &str) -> Places {
        let mut lines = vec![(0, 0)];
        for (chars, (at, c)) in script.char_indices().enumerate() {
            if c == '\n' {
                lines.push((chars as u32 + 1, at + 1));
            }
        }
        Places { lines }
    }

    /// Returns the position of a location in characters from 1, or `None` if it is not known.
    pub(super) fn position(&self, location: Location) -> Option<u32> {
        let line = usize::try_from(location.line).ok()?.checked_sub(1)?;
        let (chars, _) = self.lines.get(line)?;
        let column = u32::try_from(location.column).ok().filter(|c| *c > 0)?;
        Some(chars + column)
    }

    /// Returns the byte of a location in the script. Locations that only grow cost one pass over
    /// the script.
    fn byte(&self, script: &str, location: Location, cursor: &mut Cursor) -> usize {
        let line = (location.line as usize).saturating_sub(1);
        let Some((_, start)) = self.lines.get(line) else {
            return script.len();
        };
        let column = (location.column as usize).saturating_sub(1);
        if cursor.line != line || cursor.column > column {
            *cursor = Cursor {
                line,
                column: 0,
                byte: *start,
            };
        }
        let rest = &script[cursor.byte..];
        let found = rest.char_indices().nth(column - cursor.column);
        cursor.column = column;
        cursor.byte = found.map_or(script.len(), |(at, _)| cursor.byte + at);
        cursor.byte
    }
}

/// A location of a script with its byte.
#[derive(Default)]
struct Cursor {
    line: usize,
    column: usize,
    byte: usize,
}

impl ParsedStatement {
    /// Returns the text of the statement, without the semicolon and blanks around it.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns what the parser made of it; `None` for an empty statement.
    pub(super) fn statement(&self) -> Option<&Statement> {
        self.0.statement.as_ref()
    }

    pub(super) fn special(&self) -> Option<Special> {
        self.0.special
    }

    pub(super) fn places(&self) -> &Arc<Places> {
        &self.0.places
    }
}

/// Splits a script in PostgreSQL's dialect into statements and parses them. A script without a
/// statement has one empty statement.
///
/// Errors: 42601 for a malformed statement, with its position in the script, in characters from 1;
/// 54000 for a script of more than 64 MiB; 54001 for a statement that is nested too deeply; 0A000
/// for clauses that the parser would drop.
pub fn parse(script: &str) -> SqlResult<Vec<ParsedStatement>> {
    if script.len() > MAX_BYTES {
        let message = format!("a script has more than {MAX_BYTES} bytes");
        return Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
    }
    let places = Arc::new(Places::new(script));
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect, script).tokenize_with_location();
    let tokens = tokens.map_err(|e| tokenizer_error(&e, &places))?;
    let mut statements = Vec::new();
    let mut cursor = Cursor::default();
    for tokens in tokens.split(|t| t.token == Token::SemiColon) {
        let significant =
            |t: &&TokenWithSpan| !matches!(t.token, Token::Whitespace(_) | Token::EOF);
        let tokens: Vec<TokenWithSpan> = tokens.iter().filter(significant).cloned().collect();
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            continue;
        };
        let start = places.byte(script, first.span.start, &mut cursor);
        let end = places.byte(script, last.span.end, &mut cursor).max(start);
        let text = script[start..end].trim_end().to_owned();
        statements.push(parse_one(text, tokens, &places)?);
    }
    if statements.is_empty() {
        let (text, statement, special) = (String::new(), None, None);
        statements.push(ParsedStatement(Arc::new(Parsed {
            text,
            statement,
            special,
            places,
        })));
    }
    Ok(statements)
}

fn parse_one(
    text: String,
    tokens: Vec<TokenWithSpan>,
    places: &Arc<Places>,
) -> SqlResult<ParsedStatement> {
    check_depth(&tokens)?;
    check_lost_clauses(&tokens, places)?;
    let swallowed = counts_of_swallowed(tokens.iter().map(|t| &t.token));
    let places = places.clone();
    if let Some(special) = special(&tokens) {
        let special = Some(special);
        let parsed = Parsed {
            text,
            statement: None,
            special,
            places,
        };
        return Ok(ParsedStatement(Arc::new(parsed)));
    }
    let end = tokens.last().map(|t| t.span.end);
    let mut tokens = tokens;
    spell_out_copy_options(&mut tokens);
    let dialect = PostgreSqlDialect {};
    let mut parser = Parser::new(&dialect).with_recursion_limit(MAX_NESTING);
    parser = parser.with_tokens_with_locations(tokens);
    let statement = parser.parse_statement();
    let statement = statement.map_err(|e| parser_error(&e, &places, end))?;
    let next = parser.next_token();
    if next.token != Token::EOF {
        let error = SqlError::syntax(format!("syntax error at or near \"{}\"", next.token));
        return Err(positioned(error, places.position(next.span.start)));
    }
    check_swallowed(&statement, &swallowed)?;
    let parsed = Parsed {
        text,
        statement: Some(statement),
        special: None,
        places,
    };
    Ok(ParsedStatement(Arc::new(parsed)))
}

/// Writes ON and OFF after FREEZE and HEADER of a COPY as TRUE and FALSE, the only form that the
/// parser takes.
fn spell_out_copy_options(tokens: &mut [TokenWithSpan]) {
    let is = |token: &TokenWithSpan, word: &str| match &token.token {
        Token::Word(w) => w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word),
        _ => false,
    };
    if !tokens.first().is_some_and(|t| is(t, "COPY")) {
        return;
    }
    for at in 1..tokens.len() {
        if is(&tokens[at - 1], "FREEZE") || is(&tokens[at - 1], "HEADER") {
            if is(&tokens[at], "ON") {
                tokens[at].token = Token::make_keyword("TRUE");
            } else if is(&tokens[at], "OFF") {
                tokens[at].token = Token::make_keyword("FALSE");
            }
        }
    }
}

/// Words of other dialects that the parser takes in definitions of columns and then forgets.
const SWALLOWED: [&str; 10] = [
    "ASC",
    "AS",
    "AUTOINCREMENT",
    "AUTO_INCREMENT",
    "DESC",
    "IDENTITY",
    "INVISIBLE",
    "PROJECTION",
    "SRID",
    "UPDATE",
];

/// Counts the words of `SWALLOWED`.
fn counts_of_swallowed<'t>(tokens: impl Iterator<Item = &'t Token>) -> [usize; 10] {
    let mut counts = [0; 10];
    for token in tokens {
        if let Token::Word(word) = token
            && word.quote_style.is_none()
            && let Some(at) = SWALLOWED
                .iter()
                .position(|s| word.value.eq_ignore_ascii_case(s))
        {
            counts[at] += 1;
        }
    }
    counts
}

/// Fails if the definition of a table has lost a word in the parser.
fn check_swallowed(statement: &Statement, before: &[usize; 10]) -> SqlResult<()> {
    if !matches!(
        statement,
        Statement::CreateTable(_) | Statement::AlterTable(_)
    ) {
        return Ok(());
    }
    let text = statement.to_string();
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, &text)
        .tokenize()
        .unwrap_or_default();
    let after = counts_of_swallowed(tokens.iter());
    for ((word, before), after) in SWALLOWED.iter().zip(before).zip(after) {
        if *before > after {
            return Err(SqlError::syntax(format!(
                "syntax error at or near \"{word}\""
            )));
        }
    }
    Ok(())
}

/// Returns a statement that the parser does not know.
fn special(tokens: &[TokenWithSpan]) -> Option<Special> {
    let words: Vec<String> = tokens
        .iter()
        .take(10)
        .map(|t| t.token.to_string())
        .collect();
    let words: Vec<String> = words.iter().map(|w| w.to_ascii_uppercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words {
        ["CHECKPOINT"] => Some(Special::Checkpoint),
        ["DEALLOCATE", "ALL"] | ["DEALLOCATE", "PREPARE", "ALL"] => Some(Special::DeallocateAll),
        ["ALTER", "SEQUENCE", _, "OWNED", "BY", ..]
        | ["ALTER", "SEQUENCE", _, ".", _, "OWNED", "BY", ..]
        | ["ALTER", "SEQUENCE", _, "OWNER", "TO", ..]
        | ["ALTER", "SEQUENCE", _, ".", _, "OWNER", "TO", ..] => {
            Some(Special::Nothing("ALTER SEQUENCE"))
        }
        // The parser knows other databases' forms of them.
        // SQLite's own form writes a file.
        ["VACUUM", "INTO", ..] => None,
        ["VACUUM", ..] => Some(Special::Nothing("VACUUM")),
        ["ANALYZE" | "ANALYSE", ..] => Some(Special::Nothing("ANALYZE")),
        ["REINDEX", ..] => Some(Special::Nothing("REINDEX")),
        ["SET", "XML", "OPTION", ..] => Some(Special::Nothing("SET")),
        _ => None,
    }
}

/// Refuses clauses that the parser accepts and drops.
fn check_lost_clauses(tokens: &[TokenWithSpan], places: &Places) -> SqlResult<()> {
    for (at, token) in tokens.iter().enumerate() {
        let Token::Word(word) = &token.token else {
            continue;
        };
        if word.quote_style.is_some() {
            continue;
        }
        let next = |offset: usize| match tokens.get(at + offset).map(|t| &t.token) {
            Some(Token::Word(word)) if word.quote_style.is_none() => word.value.to_uppercase(),
            _ => String::new(),
        };
        let lost = match word.value.to_uppercase().as_str() {
            "TABLESAMPLE" if matches!(tokens.get(at + 2), Some(t) if t.token == Token::LParen) => {
                Some("TABLESAMPLE")
            }
            "MERGE" if at == 0 => Some("MERGE"),
            "DECLARE" if at == 0 => Some("a cursor"),
            "EXCLUDE" if matches!(&*next(1), "TIES" | "GROUP" | "CURRENT") => Some("EXCLUDE"),
            _ => None,
        };
        if let Some(lost) = lost {
            let position = places.position(token.span.start);
            return Err(positioned(SqlError::unsupported(lost), position));
        }
    }
    Ok(())
}

/// Returns `true` for tokens that make the tree of an expression or a query one level deeper
/// without parentheses.
fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => {
            use Keyword as K;
            word.quote_style.is_none()
                && matches!(
                    word.keyword,
                    K::AND
                        | K::OR
                        | K::NOT
                        | K::IS
                        | K::IN
                        | K::LIKE
                        | K::ILIKE
                        | K::BETWEEN
                        | K::UNION
                        | K::EXCEPT
                        | K::INTERSECT
                        | K::CASE
                        | K::COLLATE
                        | K::AT
                        | K::SIMILAR
                        | K::XOR
                        | K::INTERVAL
                        | K::PRIOR
                )
        }
        Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::Placeholder(_)
        | Token::Comma
        | Token::LParen
        | Token::RParen
        | Token::Period
        | Token::SemiColon
        | Token::EOF
        | Token::Whitespace(_) => false,
        _ => true,
    }
}

/// Fails if the tree of a statement would be so deep that walking or dropping it needs more stack
/// than a thread has.
fn check_depth(tokens: &[TokenWithSpan]) -> SqlResult<()> {
    // For each open parenthesis: AND and OR since the last comma, and other operators since the
    // last of them. Then the sum of all.
    let mut open = vec![(0usize, 0usize)];
    let mut sum = 0;
    for token in tokens {
        let is_logical = matches!(&token.token, Token::Word(word)
            if word.quote_style.is_none() && matches!(word.keyword, Keyword::AND | Keyword::OR));
        match &token.token {
            Token::LParen | Token::LBracket => open.push((0, 0)),
            Token::RParen | Token::RBracket if open.len() > 1 => {
                sum -= open.pop().map_or(0, |(logical, other)| logical + other);
            }
            Token::Comma => {
                if let Some((logical, other)) = open.last_mut() {
                    sum -= std::mem::take(logical) + std::mem::take(other);
                }
            }
            operator if is_operator(operator) => {
                if let Some((logical, other)) = open.last_mut() {
                    if is_logical {
                        sum -= std::mem::take(other);
                        *logical += 1;
                    } else {
                        *other += 1;
                    }
                    sum += 1;
                }
            }
            _ => {}
        }
        if sum > MAX_OPERATORS {
            return Err(too_complex());
        }
    }
    Ok(())
}

/// Returns the error for a statement that is nested too deeply.
pub(super) fn too_complex() -> SqlError {
    let message = "stack depth limit exceeded: the statement is nested too deeply";
    SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message)
}

/// Adds a position, if it is known.
pub(super) fn positioned(error: SqlError, position: Option<u32>) -> SqlError {
    match position {
        Some(position) => error.with_position(position),
        None => error,
    }
}

fn tokenizer_error(error: &TokenizerError, places: &Places) -> SqlError {
    let message = format!("syntax error: {}", lower_first(&error.message));
    positioned(SqlError::syntax(message), places.position(error.location))
}

fn parser_error(error: &ParserError, places: &Places, end: Option<Location>) -> SqlError {
    let message = match error {
        ParserError::RecursionLimitExceeded => return too_complex(),
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
    };
    let (message, location) = match message.rsplit_once(" at Line: ") {
        Some((message, place)) => (message, parse_place(place)),
        None => (&**message, None),
    };
    let position = location.or(end).and_then(|l| places.position(l));
    let found = message
        .rsplit_once("found: ")
        .map(|(_, found)| found.trim());
    let text = match found {
        Some("EOF") => "syntax error at end of input".to_string(),
        Some(found) => format!("syntax error at or near \"{found}\""),
        None => format!("syntax error: {}", lower_first(message)),
    };
    let error = positioned(SqlError::syntax(text), position);
    match found {
        Some(_) => error.with_detail(message.to_string()),
        None => error,
    }
}

fn parse_place(place: &str) -> Option<Location> {
    let (line, column) = place.split_once(", Column: ")?;
    Some(Location {
        line: line.trim().parse().ok()?,
        column: column.trim().parse().ok()?,
    })
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) if !text.starts_with("sql parser") => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_string(),
    }
}

/// Returns the text after the first AS that is outside of parentheses, in the text of a statement.
pub(super) fn text_behind_as(text: &str) -> SqlResult<String> {
    let dialect = PostgreSqlDialect {};
    let places = Places::new(text);
    let tokens = Tokenizer::new(&dialect, text).tokenize_with_location();
    let tokens = tokens.map_err(|e| tokenizer_error(&e, &places))?;
    let mut depth = 0;
    for token in &tokens {
        match &token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            Token::Word(word)
                if depth == 0 && word.quote_style.is_none() && word.keyword == Keyword::AS =>
            {
                return Ok(
                    text[places.byte(text, token.span.end, &mut Cursor::default())..]
                        .trim()
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    Err(SqlError::syntax("syntax error: AS is missing"))
}
