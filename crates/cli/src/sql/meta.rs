//! Commands that begin with a backslash.

/// The text of `\?`.
pub const HELP: &str = "\
General
  \\q                     end the shell
  \\? , \\h [COMMAND]      show this help, or the form of an SQL command
  \\r                     drop the statement that has begun
  \\p                     show the statement that has begun
  \\timing [on|off]       show the time of each statement
  \\echo TEXT             print the text

Input and output
  \\i FILE                run the statements of the file
  \\copy T [(COLUMNS)] from 'FILE' [csv] [header] [delimiter 'C'] [null 'TEXT']
                         read rows of a file into the table
  \\copy T to 'FILE' [csv] [header] ...
                         write the rows of the table, or of a (QUERY), to a file

Definitions
  \\d                     list tables, views and sequences
  \\d NAME                describe a table, view, sequence or index; * matches any
                         characters, ? one character
  \\dt \\dv \\ds \\di [NAME]  list tables, views, sequences or indexes

Form of results
  \\x [on|off]            show one line a column
  \\pset null TEXT        show this text for NULL
  \\pset format FORMAT    aligned, csv or json
";

/// The forms of SQL commands, for `\h`.
const SYNTAX: &[(&str, &str)] = &[
    (
        "ALTER TABLE",
        "ALTER TABLE [IF EXISTS] name { ADD [COLUMN] column type [constraint ...] | DROP [COLUMN] column [CASCADE] |\n    RENAME [COLUMN] column TO name | RENAME TO name | ALTER [COLUMN] column { SET DEFAULT expression | DROP DEFAULT |\n    { SET | DROP } NOT NULL | TYPE type } | ADD constraint | DROP CONSTRAINT name [CASCADE] } [, ...]",
    ),
    ("BEGIN", "BEGIN [READ ONLY | READ WRITE]"),
    ("COMMIT", "COMMIT"),
    (
        "COPY",
        "COPY { table [(column [, ...])] | (query) } { FROM STDIN | TO STDOUT }\n    [WITH (FORMAT { text | csv }, DELIMITER 'c', NULL 'text', HEADER, QUOTE 'c', ESCAPE 'c')]",
    ),
    (
        "CREATE INDEX",
        "CREATE [UNIQUE] INDEX [IF NOT EXISTS] [name] ON table (column [, ...])",
    ),
    (
        "CREATE SEQUENCE",
        "CREATE SEQUENCE [IF NOT EXISTS] name [START n] [INCREMENT n]",
    ),
    (
        "CREATE TABLE",
        "CREATE TABLE [IF NOT EXISTS] name (column type [constraint ...] [, ...] [, table constraint ...])\nCREATE TABLE [IF NOT EXISTS] name AS query",
    ),
    (
        "CREATE VIEW",
        "CREATE [OR REPLACE] VIEW name [(column [, ...])] AS query",
    ),
    (
        "DELETE",
        "DELETE FROM table [USING tables] [WHERE condition] [RETURNING expression [, ...]]",
    ),
    (
        "DROP",
        "DROP { TABLE | VIEW | INDEX | SEQUENCE } [IF EXISTS] name [, ...] [CASCADE]",
    ),
    ("EXPLAIN", "EXPLAIN [ANALYZE] statement"),
    (
        "INSERT",
        "INSERT INTO table [(column [, ...])] { VALUES (value [, ...]) [, ...] | query | DEFAULT VALUES }\n    [ON CONFLICT [(column [, ...])] { DO NOTHING | DO UPDATE SET column = value [, ...] [WHERE condition] }]\n    [RETURNING expression [, ...]]",
    ),
    ("ROLLBACK", "ROLLBACK [TO SAVEPOINT name]"),
    ("SAVEPOINT", "SAVEPOINT name"),
    (
        "SELECT",
        "[WITH [RECURSIVE] name AS (query) [, ...]] SELECT [DISTINCT] expression [[AS] name] [, ...] [FROM tables] [WHERE condition]\n    [GROUP BY expression [, ...]] [HAVING condition] [{ UNION | INTERSECT | EXCEPT } [ALL] query]\n    [ORDER BY expression [ASC | DESC] [, ...]] [LIMIT n] [OFFSET n]",
    ),
    (
        "TRUNCATE",
        "TRUNCATE [TABLE] name [, ...] [RESTART IDENTITY] [CASCADE]",
    ),
    (
        "UPDATE",
        "UPDATE table SET column = value [, ...] [FROM tables] [WHERE condition] [RETURNING expression [, ...]]",
    ),
];

/// Returns the forms of the commands whose names begin with these words, or the names of all.
pub fn syntax(words: &str) -> Result<String, String> {
    let wanted = words.trim().trim_end_matches(';').to_uppercase();
    if wanted.is_empty() {
        let names: Vec<&str> = SYNTAX.iter().map(|(name, _)| *name).collect();
        return Ok(format!("Help is available for: {}\n", names.join(", ")));
    }
    let found = SYNTAX.iter().filter(|(name, _)| {
        name.starts_with(&wanted) || (wanted.starts_with(name) && !name.is_empty())
    });
    let text: String = found.map(|(_, form)| format!("{form}\n\n")).collect();
    match text.is_empty() {
        true => Err(format!(
            "there is no help for {wanted}; \\h lists the commands"
        )),
        false => Ok(text),
    }
}

/// A command that begins with a backslash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaCommand {
    Quit,
    Help,
    Syntax(String),
    Reset,
    Print,
    /// `None` turns a setting to its other value.
    Timing(Option<bool>),
    Expanded(Option<bool>),
    Null(String),
    Format(String),
    Echo(String),
    Include(String),
    Describe(String),
    /// The letters after `\d`, and a pattern.
    List(String, Option<String>),
    Copy(FileCopy),
}

/// The arguments of `\copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCopy {
    /// The statement for the server, with STDIN or STDOUT for the file.
    pub statement: String,
    pub file: String,
    pub is_from: bool,
}

/// Splits a line into words. Single quotes hold blanks, and two of them in quotes are one. Other
/// text keeps its form.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut rest) = (Vec::new(), line.trim());
    while !rest.is_empty() {
        let (mut word, mut chars) = (String::new(), rest.char_indices().peekable());
        let (mut in_quotes, mut end) = (false, rest.len());
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' if in_quotes && chars.peek().is_some_and(|(_, c)| *c == '\'') => {
                    word.push('\'');
                    chars.next();
                }
                '\'' => in_quotes = !in_quotes,
                c if c.is_whitespace() && !in_quotes => {
                    end = at;
                    break;
                }
                c => word.push(c),
            }
        }
        if in_quotes {
            return Err("a quote is not closed".to_string());
        }
        words.push(word);
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

/// Parses a line that begins with a backslash. The error is a sentence.
pub fn parse(line: &str) -> Result<MetaCommand, String> {
    let line = line.trim();
    let (name, rest) = match line.find(char::is_whitespace) {
        Some(at) => (&line[..at], line[at..].trim()),
        None => (line, ""),
    };
    let name = name.strip_prefix('\\').unwrap_or(name);
    // psql takes the commands of the list with a semicolon, too.
    let name = name.trim_end_matches(';');
    let all = match name {
        "copy" => Vec::new(),
        _ => words(rest.trim_end_matches(';'))?,
    };
    let one = || match all.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(format!(
            "\\{name} takes one argument; \\? shows the commands"
        )),
    };
    let switch = || match all.first().map(String::as_str) {
        None => Ok(None),
        Some("on" | "true" | "1") => Ok(Some(true)),
        Some("off" | "false" | "0") => Ok(Some(false)),
        Some(other) => Err(format!("\\{name} takes on or off, and not {other}")),
    };
    Ok(match name {
        "q" | "quit" => MetaCommand::Quit,
        "?" => MetaCommand::Help,
        "h" | "help" => MetaCommand::Syntax(rest.to_string()),
        "r" | "reset" => MetaCommand::Reset,
        "p" | "print" => MetaCommand::Print,
        "timing" => MetaCommand::Timing(switch()?),
        "x" => MetaCommand::Expanded(switch()?),
        "echo" | "qecho" => MetaCommand::Echo(all.join(" ")),
        "i" | "include" => MetaCommand::Include(one()?),
        "pset" => match all.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["null"] => MetaCommand::Null(String::new()),
            ["null", text] => MetaCommand::Null(text.to_string()),
            ["format", format] => MetaCommand::Format(format.to_string()),
            ["x" | "expanded"] => MetaCommand::Expanded(None),
            ["x" | "expanded", "on"] => MetaCommand::Expanded(Some(true)),
            ["x" | "expanded", "off"] => MetaCommand::Expanded(Some(false)),
            _ => {
                return Err("\\pset takes null TEXT, format FORMAT or expanded on|off".to_string());
            }
        },
        "d" | "d+" => match all.first() {
            None => MetaCommand::List("tvs".to_string(), None),
            Some(_) => MetaCommand::Describe(one()?),
        },
        "copy" => MetaCommand::Copy(parse_copy(rest)?),
        _ => match name.trim_end_matches('+').strip_prefix('d') {
            Some(kinds) if !kinds.is_empty() && kinds.chars().all(|c| "tvsi".contains(c)) => {
                MetaCommand::List(kinds.to_string(), all.first().cloned())
            }
            _ => return Err(format!("invalid command \\{name}; \\? shows the commands")),
        },
    })
}

/// Returns the length of the source of a `\copy`: a name with columns, or a query in parentheses.
fn source_len(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0u32, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.checked_sub(1)?,
            (None, c) if c.is_whitespace() && depth == 0 => {
                let rest = text[at..].trim_start();
                let word = rest.split(|c: char| !c.is_alphanumeric()).next()?;
                if word.eq_ignore_ascii_case("from") || word.eq_ignore_ascii_case("to") {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Parses the arguments of `\copy`.
fn parse_copy(text: &str) -> Result<FileCopy, String> {
    let form = || "\\copy takes TABLE from 'FILE' or TABLE to 'FILE', and options".to_string();
    let text = text.trim_end_matches(';').trim();
    let len = source_len(text).ok_or_else(form)?;
    let (source, rest) = (text[..len].trim(), text[len..].trim());
    let at = rest.find(|c: char| !c.is_alphanumeric()).ok_or_else(form)?;
    let (direction, rest) = (&rest[..at], rest[at..].trim());
    let is_from = direction.eq_ignore_ascii_case("from");
    let (file, options) = match rest.strip_prefix('\'') {
        Some(_) => {
            let end = end_of_quotes(rest).ok_or("a quote is not closed")?;
            (rest[1..end].replace("''", "'"), &rest[end + 1..])
        }
        None => match rest.find(char::is_whitespace) {
            Some(at) => (rest[..at].to_string(), &rest[at..]),
            None => (rest.to_string(), ""),
        },
    };
    if source.is_empty() || file.is_empty() {
        return Err(form());
    }
    let end = if is_from { "FROM STDIN" } else { "TO STDOUT" };
    let statement = format!("COPY {source} {end} {}", options.trim());
    Ok(FileCopy {
        statement: statement.trim_end().to_string(),
        file,
        is_from,
    })
}

/// Returns the position of the quote that closes the one at the beginning.
fn end_of_quotes(text: &str) -> Option<usize> {
    let mut at = 1;
    loop {
        at += text.get(at..)?.find('\'')?;
        match text[at + 1..].starts_with('\'') {
            true => at += 2,
            false => return Some(at),
        }
    }
}

#[cfg(test)]
mod tests;
