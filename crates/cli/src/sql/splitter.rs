//! Statements of a script: where one ends and the next begins (PostgreSQL's manual, "Lexical
//! Structure"). The server has its own parser; this one finds only semicolons that end statements.

/// What the splitter is in the middle of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Inside {
    Code,
    /// A string; with `escapes` a backslash escapes the next character.
    Quotes {
        escapes: bool,
    },
    /// A quoted name.
    Name,
    /// A dollar-quoted string, with its tag.
    Dollars(String),
    /// A comment in `/*` and `*/`, which nest.
    Comment(u32),
}

/// A statement with its text and the line of the script at which it begins, from 1. The text has no
/// semicolon at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub text: String,
    pub line: u64,
}

/// Splits a script that is given line by line.
#[derive(Debug)]
pub struct Splitter {
    text: String,
    inside: Inside,
    /// The line at which the statement begins, if one has begun.
    begun: Option<u64>,
    /// Open parentheses. A semicolon in them ends no statement.
    depth: u32,
    line: u64,
}

impl Default for Splitter {
    fn default() -> Splitter {
        Splitter {
            text: String::new(),
            inside: Inside::Code,
            begun: None,
            depth: 0,
            line: 1,
        }
    }
}

impl Splitter {
    /// Returns `true` if no statement has begun. Blanks and comments are none.
    pub fn is_between(&self) -> bool {
        self.begun.is_none() && self.inside == Inside::Code
    }

    /// Returns `true` if a line that begins with a backslash is a command and no part of a string
    /// or a comment.
    pub fn is_in_code(&self) -> bool {
        self.inside == Inside::Code
    }

    /// Returns the character that shows in the prompt what the statement is in the middle of.
    pub fn prompt(&self) -> char {
        match &self.inside {
            Inside::Code if self.is_between() => '=',
            Inside::Code if self.depth > 0 => '(',
            Inside::Code => '-',
            Inside::Quotes { .. } => '\'',
            Inside::Name => '"',
            Inside::Dollars(_) => '$',
            Inside::Comment(_) => '*',
        }
    }

    /// Returns the text of the statement that has begun.
    pub fn pending(&self) -> &str {
        &self.text
    }

    /// Drops the statement that has begun. `line` is the number of the next line.
    pub fn reset(&mut self, line: u64) {
        *self = Splitter {
            line,
            ..Splitter::default()
        };
    }

    /// Counts a line that was no part of a statement.
    pub fn skip_line(&mut self) {
        self.skip_lines(1);
    }

    /// Counts lines that were no part of a statement.
    pub fn skip_lines(&mut self, n: u64) {
        self.line += n;
    }

    /// Ends the script. Returns the statement that has begun, although no semicolon ends it.
    pub fn finish(&mut self) -> Option<Statement> {
        self.end_statement()
    }

    /// Takes one line with its line feed, or a part of a line at the end of a script. Returns the
    /// statements that end in it.
    pub fn push(&mut self, line: &str) -> Vec<Statement> {
        let mut done = Vec::new();
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let taken = self.token_len(rest, c);
            let token = &rest[..taken];
            rest = &rest[taken..];
            if token == ";" && self.inside == Inside::Code && self.depth == 0 {
                done.extend(self.end_statement());
                continue;
            }
            let is_blank = self.inside == Inside::Code && token.trim().is_empty();
            let is_comment = matches!(self.inside, Inside::Comment(_))
                || token.starts_with("--")
                || token == "*/";
            if self.begun.is_none() && (is_blank || is_comment) {
                // Blanks and comments before a statement are no part of it.
                self.line += token.matches('\n').count() as u64;
                continue;
            }
            self.begun.get_or_insert(self.line);
            self.text.push_str(token);
            self.line += token.matches('\n').count() as u64;
        }
        done
    }

    fn end_statement(&mut self) -> Option<Statement> {
        let text = std::mem::take(&mut self.text);
        let begun = self.begun.take();
        self.inside = Inside::Code;
        self.depth = 0;
        Some(Statement {
            text: text.trim_end().to_string(),
            line: begun?,
        })
    }

    /// Returns the bytes of the next token, and updates what the splitter is in the middle of.
    fn token_len(&mut self, rest: &str, c: char) -> usize {
        match &mut self.inside {
            Inside::Code => self.code_token(rest, c),
            Inside::Quotes { escapes } => match c {
                '\\' if *escapes => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
                '\'' if rest[1..].starts_with('\'') => 2,
                '\'' => self.leave(1),
                _ => c.len_utf8(),
            },
            Inside::Name => match c {
                '"' => self.leave(1),
                _ => c.len_utf8(),
            },
            Inside::Dollars(tag) => {
                let len = tag.len();
                match rest.starts_with(tag.as_str()) {
                    true => self.leave(len),
                    false => c.len_utf8(),
                }
            }
            Inside::Comment(depth) => {
                if rest.starts_with("/*") {
                    *depth += 1;
                    2
                } else if rest.starts_with("*/") {
                    *depth -= 1;
                    if *depth == 0 {
                        self.inside = Inside::Code;
                    }
                    2
                } else {
                    c.len_utf8()
                }
            }
        }
    }

    fn leave(&mut self, len: usize) -> usize {
        self.inside = Inside::Code;
        len
    }

    fn code_token(&mut self, rest: &str, c: char) -> usize {
        if rest.starts_with("--") {
            return rest.find('\n').unwrap_or(rest.len());
        }
        if rest.starts_with("/*") {
            self.inside = Inside::Comment(1);
            return 2;
        }
        match c {
            '\'' => {
                self.inside = Inside::Quotes { escapes: false };
                1
            }
            '"' => {
                self.inside = Inside::Name;
                1
            }
            'e' | 'E' if rest[1..].starts_with('\'') => {
                self.inside = Inside::Quotes { escapes: true };
                2
            }
            '$' => match dollar_tag(rest) {
                Some(tag) => {
                    self.inside = Inside::Dollars(tag.to_string());
                    tag.len()
                }
                None => 1,
            },
            '(' => {
                self.depth += 1;
                1
            }
            ')' => {
                self.depth = self.depth.saturating_sub(1);
                1
            }
            c if c == '_' || c.is_alphanumeric() => {
                // A word is one token: the `e` at its end begins no string, and `$` in it no quote.
                let is_end = |c: char| !(c.is_alphanumeric() || c == '_' || c == '$');
                rest.find(is_end).unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        }
    }
}

/// Returns the tag `$name$` that begins a dollar-quoted string.
fn dollar_tag(rest: &str) -> Option<&str> {
    let inner = &rest[1..];
    let end = inner.find('$')?;
    let name = &inner[..end];
    let is_name = name.chars().all(|c| c == '_' || c.is_alphanumeric())
        && !name.starts_with(|c: char| c.is_ascii_digit());
    is_name.then(|| &rest[..end + 2])
}

#[cfg(test)]
mod tests;
