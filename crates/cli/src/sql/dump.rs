//! `sql load --dump`: the output of `pg_dump`, with COPY blocks or with INSERT statements.

use super::input::ByteLines;
use super::load::{Load, LoadError, NoRows};
use super::splitter::{Splitter, Statement};
use crate::failure::Failure;
use crate::output::note;
use basalt_sql::statement::CopyFormat;
use basalt_sql::{Outcome, SqlError, SqlResult, SqlState};

/// Statements that use features that are not supported, and are named.
const NAMED: u64 = 10;

/// What a load does with a statement of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A database does not need it: settings, owners, privileges, comments, transactions.
    Skip,
    /// COPY FROM STDIN: rows follow.
    Copy,
    /// INSERT, which is committed in batches.
    Insert,
    /// Any other statement, which is a transaction of its own.
    Other,
}

/// Beginnings of statements that a database does not need, in upper case, with one blank between
/// words.
const SKIPPED: &[&str] = &[
    "SET ",
    "RESET ",
    "SELECT PG_CATALOG.SET_CONFIG(",
    "SELECT SET_CONFIG(",
    "COMMENT ON ",
    "GRANT ",
    "REVOKE ",
    "SECURITY LABEL ",
    "BEGIN",
    "START TRANSACTION",
    "COMMIT",
    "END",
    "CREATE EXTENSION ",
    "DROP EXTENSION ",
    "CREATE SCHEMA PUBLIC",
    "ALTER DEFAULT PRIVILEGES ",
    "CREATE DATABASE ",
    "ALTER DATABASE ",
    "DROP DATABASE ",
];

/// Ends of ALTER statements that a database does not need: the words after the object's name.
const SKIPPED_ALTER: &[&str] = &[
    " OWNER TO ",
    " CLUSTER ON ",
    " REPLICA IDENTITY ",
    " SET TABLESPACE ",
    " ENABLE ROW LEVEL SECURITY",
    " SET STATISTICS ",
    " SET STORAGE ",
];

/// Characters of a statement that decide about its kind. Values of rows can be long.
const HEAD: usize = 400;

/// Returns what a load does with a statement.
fn kind(text: &str) -> Kind {
    let head: String = text.chars().take(HEAD).collect();
    let words: Vec<&str> = head.split_whitespace().collect();
    let head = words.join(" ").to_uppercase();
    if head.starts_with("INSERT ") {
        return Kind::Insert;
    }
    if head.starts_with("COPY ") && head.contains(" FROM STDIN") {
        return Kind::Copy;
    }
    let begins = |start: &&str| match start.ends_with([' ', '(']) {
        true => head.starts_with(*start),
        false => head == **start || head.starts_with(&format!("{start} ")),
    };
    let is_skipped = SKIPPED.iter().any(begins)
        || (head.starts_with("ALTER ") && SKIPPED_ALTER.iter().any(|end| head.contains(end)));
    match is_skipped {
        true => Kind::Skip,
        false => Kind::Other,
    }
}

/// Returns the number of rows that a command tag has: `INSERT 0 5`.
fn rows_of(tag: &str) -> u64 {
    let last = tag.rsplit(' ').next();
    last.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Loads a dump.
pub fn load(
    load: &mut Load,
    lines: &mut ByteLines,
    skip_unsupported: bool,
) -> Result<(), LoadError> {
    let mut dump = Dump {
        load,
        skip_unsupported,
        first: 0,
        last: 0,
    };
    let mut splitter = Splitter::default();
    loop {
        if dump.load.interrupter.was_interrupted() {
            dump.roll_back();
            return Err(LoadError::Interrupted);
        }
        let text = match lines.read_text() {
            Ok(text) => text,
            Err(e) => {
                dump.roll_back();
                return Err(e.into());
            }
        };
        let Some(text) = text else {
            break;
        };
        dump.load.counts.bytes += text.len() as u64;
        if splitter.is_between() && text.starts_with('\\') {
            // Commands of psql: \connect, \restrict, \unrestrict.
            dump.load.counts.skipped += 1;
            splitter.skip_line();
            continue;
        }
        for statement in splitter.push(&text) {
            let before = lines.line;
            dump.run(&statement, lines)?;
            splitter.skip_lines(lines.line - before);
        }
        dump.load.show_progress();
    }
    if let Some(statement) = splitter.finish() {
        dump.roll_back();
        return Err(LoadError::Input(Failure::new(format!(
            "{}, line {}: the file ends in the middle of a statement",
            lines.name, statement.line
        ))));
    }
    dump.commit(lines.line + 1)
}

/// The load of a dump.
struct Dump<'a> {
    load: &'a mut Load,
    skip_unsupported: bool,
    /// The first and the last line of the open transaction.
    first: u64,
    last: u64,
}

impl Dump<'_> {
    /// Runs a statement, and reads the rows after a COPY.
    fn run(&mut self, statement: &Statement, lines: &mut ByteLines) -> Result<(), LoadError> {
        let kind = kind(&statement.text);
        let is_before = statement.line < self.load.from_line;
        match kind {
            Kind::Skip => {
                self.load.counts.skipped += 1;
                Ok(())
            }
            Kind::Copy => {
                // The rows of a COPY that began before the first line may be after it.
                self.commit(statement.line)?;
                let format = CopyFormat::of_kind(false);
                self.load
                    .copy_rows(lines, &statement.text, statement.line, &format)
            }
            _ if is_before => Ok(()),
            Kind::Insert => self.insert(statement),
            Kind::Other => {
                self.commit(statement.line)?;
                match self.execute(&statement.text) {
                    Ok(_) => self.load.counts.statements += 1,
                    Err(e)
                        if self.skip_unsupported
                            && e.state() == SqlState::FEATURE_NOT_SUPPORTED =>
                    {
                        self.unsupported(statement, &lines.name, &e);
                    }
                    Err(error) => return Err(failed(error, statement.line)),
                }
                self.load.counts.next_line = lines.line + 1;
                Ok(())
            }
        }
    }

    /// Reports a statement that is left out.
    fn unsupported(&mut self, statement: &Statement, name: &str, e: &SqlError) {
        self.load.counts.unsupported += 1;
        if self.load.counts.unsupported <= NAMED {
            let line = statement.line;
            self.load.bar.suspend(|| {
                note(format_args!(
                    "basalt: {name}, line {line}: left out: {}",
                    e.message()
                ));
            });
        }
    }

    /// Runs an INSERT in the open transaction.
    fn insert(&mut self, statement: &Statement) -> Result<(), LoadError> {
        if self.load.counts.pending == 0 {
            self.first = statement.line;
            self.load.counts.next_line = statement.line;
            let begun = self.execute("BEGIN");
            begun.map_err(|e| failed(e, statement.line))?;
        }
        self.last = statement.line;
        match self.execute(&statement.text) {
            Ok(tag) => self.load.counts.pending += rows_of(&tag).max(1),
            Err(error) => {
                self.roll_back_open();
                return Err(failed(error, statement.line));
            }
        }
        match self.load.counts.pending >= self.load.batch {
            // The next statement may begin on the same line, but not in a dump of pg_dump.
            true => self.commit(statement.line + statement.text.matches('\n').count() as u64 + 1),
            false => Ok(()),
        }
    }

    /// Commits the open transaction.
    fn commit(&mut self, next_line: u64) -> Result<(), LoadError> {
        if self.load.counts.pending == 0 {
            return Ok(());
        }
        let committed = self.execute("COMMIT");
        committed.map_err(|error| LoadError::Sql {
            error,
            from: self.first,
            to: self.last,
        })?;
        self.load.committed(next_line);
        Ok(())
    }

    /// Rolls the open transaction back, if there is one.
    fn roll_back(&mut self) {
        if self.load.counts.pending > 0 {
            self.roll_back_open();
        }
    }

    fn roll_back_open(&mut self) {
        // The caller reports why. The end of the session rolls back, too.
        let _ = self.execute("ROLLBACK");
    }

    /// Runs statements, and returns the tag of the last one.
    fn execute(&mut self, text: &str) -> SqlResult<String> {
        let session = &mut self.load.session;
        let mut last = String::new();
        for statement in session.parse(text)? {
            let prepared = session.prepare(&statement, &[])?;
            match session.execute(&prepared, &[], &mut NoRows)? {
                Outcome::Done { tag, .. } => last = tag,
                Outcome::CopyOut { .. } => {}
                Outcome::CopyIn(copy) => {
                    return Err(session.copy_fail(copy, "no data follows the statement"));
                }
            }
        }
        Ok(last)
    }
}

fn failed(error: SqlError, line: u64) -> LoadError {
    LoadError::Sql {
        error,
        from: line,
        to: line,
    }
}

#[cfg(test)]
mod tests;
