//! `sql load`: rows of a file into a table, in batches that commit one by one.

use super::database::{self, sentence};
use super::dump;
use super::input::ByteLines;
use super::interrupt::Interrupter;
use crate::failure::{Failure, Outcome as CommandOutcome};
use crate::output::{note, print};
use crate::progress::{self, count};
use crate::sql_args::SqlLoad;
use basalt::env::Clock;
use basalt_sql::copy::{CopyDecoder, CopyEncoder, CopyRow};
use basalt_sql::statement::CopyFormat;
use basalt_sql::{CopyIn, Outcome, Row, RowSink, Session, SqlError, SqlResult, SqlState};
use indicatif::ProgressBar;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Rows between two updates of the progress bar.
const BAR_ROWS: u64 = 256;

/// The line of a statement that is not in the file.
const NO_LINE: u64 = 0;

/// What a load has done so far.
#[derive(Debug, Default)]
pub struct LoadCounts {
    /// Rows that are committed.
    pub rows: u64,
    /// Rows of the open batch.
    pub pending: u64,
    /// Bytes of the file that were read.
    pub bytes: u64,
    /// Statements of a dump that ran, without those that insert rows.
    pub statements: u64,
    /// Statements and lines of a dump that were skipped, because a database does not need them.
    pub skipped: u64,
    /// Statements that were left out by --skip-unsupported.
    pub unsupported: u64,
    /// The line at which the first row or statement begins that is not committed.
    pub next_line: u64,
}

/// A failure of a load, at a line of the file.
pub enum LoadError {
    /// The database refused something at a line, or between two lines.
    Sql { error: SqlError, from: u64, to: u64 },
    /// Ctrl-C.
    Interrupted,
    /// The file cannot be read.
    Input(Failure),
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> LoadError {
        LoadError::Input(failure)
    }
}

/// A running load: the session, and what was done.
pub struct Load {
    pub session: Session,
    pub interrupter: Interrupter,
    pub counts: LoadCounts,
    pub bar: ProgressBar,
    pub batch: u64,
    pub from_line: u64,
}

/// Drops the rows of statements that a load runs.
pub struct NoRows;

impl RowSink for NoRows {
    fn row(&mut self, _: &Row<'_>) -> SqlResult<()> {
        Ok(())
    }
}

/// Runs `basalt sql load`.
pub fn load(args: &SqlLoad) -> CommandOutcome {
    let file = args.dump.as_deref().or(args.file.as_deref());
    let file = file.unwrap_or(Path::new("-"));
    let format = table_format(args, file)?;
    // A missing file is reported before a database is made.
    let (mut lines, len) = ByteLines::open(file)?;
    let make = args.dump.is_some().then_some(args.make);
    let database = database::open(&args.place, make)?;
    let place = args.place.store();
    let session = database
        .session()
        .map_err(|e| database::failure(&place, &e))?;
    let clock = Clock::system();
    let began = clock.now();
    let interrupter = Interrupter::install(session.interrupt_handle(), false);
    let mut load = Load {
        session,
        interrupter: interrupter.clone(),
        counts: LoadCounts {
            next_line: args.from_line,
            ..LoadCounts::default()
        },
        bar: progress::bytes("loading", len),
        batch: args.batch,
        from_line: args.from_line,
    };
    let ended = interrupter.run(|| match &args.table {
        Some(table) => load.table(&mut lines, &copy_statement(table, &args.columns), &format),
        None => dump::load(&mut load, &mut lines, args.skip_unsupported),
    });
    load.bar.finish_and_clear();
    let counts = std::mem::take(&mut load.counts);
    drop(load);
    let closed = database.close();
    report(
        args,
        &lines.name,
        &counts,
        clock.now().saturating_sub(began),
        ended,
    )?;
    closed.map_err(|e| database::failure(&place, &e))?;
    Ok(0)
}

/// Returns the format of the flags, checked.
fn table_format(args: &SqlLoad, file: &Path) -> Result<CopyFormat, Failure> {
    let is_csv_name = file
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("csv"));
    let csv = args.csv || (is_csv_name && !args.text);
    let mut format = CopyFormat::of_kind(csv);
    format.header = args.header;
    if let Some(delimiter) = &args.delimiter {
        format.delimiter = one_byte("--delimiter", delimiter)?;
    }
    if let Some(null) = &args.null {
        format.null.clone_from(null);
    }
    format.quote = one_byte("--quote", &args.quote)?;
    format.escape = format.quote;
    format.check().map_err(|e| {
        Failure::new(format!(
            "{}; see --delimiter, --null and --quote",
            e.message()
        ))
    })?;
    Ok(format)
}

/// Returns the byte that a flag gives. `\t` is a tab.
fn one_byte(flag: &str, text: &str) -> Result<u8, Failure> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] => Ok(*byte),
        _ => Err(Failure::new(format!(
            "{flag} takes one character of ASCII, and not {text:?}"
        ))),
    }
}

/// Returns a name as a statement has it: quoted unless it is a plain name in lower case.
pub fn quote_name(name: &str) -> String {
    let is_plain = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && (part.bytes()).all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    match name.split('.').all(is_plain) {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Returns the statement that takes rows for the columns of a table.
fn copy_statement(table: &str, columns: &[String]) -> String {
    let table = quote_name(table);
    match columns {
        [] => format!("COPY {table} FROM STDIN"),
        columns => {
            let columns: Vec<String> = columns.iter().map(|c| quote_name(c)).collect();
            format!("COPY {table} ({}) FROM STDIN", columns.join(", "))
        }
    }
}

/// A COPY whose rows are committed in batches. Each batch is a statement of its own.
struct BatchedCopy<'a> {
    statement: &'a str,
    /// The line of the statement, for errors.
    line: u64,
    copy: Option<CopyIn>,
    encoder: CopyEncoder,
    /// The first and the last line of the open batch.
    first: u64,
    last: u64,
    data: Vec<u8>,
}

impl Load {
    /// Loads the rows of a file.
    fn table(
        &mut self,
        lines: &mut ByteLines,
        statement: &str,
        format: &CopyFormat,
    ) -> Result<(), LoadError> {
        self.copy_rows(lines, statement, NO_LINE, format)
    }

    /// Hands the rows of the next lines to a COPY statement that begins at `line` of the file, up
    /// to the end marker or the end of the file.
    pub fn copy_rows(
        &mut self,
        lines: &mut ByteLines,
        statement: &str,
        line: u64,
        format: &CopyFormat,
    ) -> Result<(), LoadError> {
        let mut batched = BatchedCopy {
            statement,
            line,
            copy: None,
            encoder: CopyEncoder::new(CopyFormat::of_kind(false)),
            first: line,
            last: line,
            data: Vec::new(),
        };
        // The first COPY also says how many columns there are.
        let copy = batched.start(&mut self.session)?;
        let names = copy.columns().iter().map(|c| c.name.clone()).collect();
        batched.copy = Some(copy);
        let before = lines.line;
        let mut decoder = CopyDecoder::new(format.clone(), names);
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        loop {
            if self.interrupter.was_interrupted() {
                batched.abandon(&mut self.session, "interrupted");
                return Err(LoadError::Interrupted);
            }
            let is_more = !decoder.is_done() && lines.read(&mut bytes)?;
            let decoded = match is_more {
                true => decoder.decode(&bytes, &mut rows).map(|_| ()),
                false => decoder.finish(&mut rows),
            };
            self.counts.bytes += if is_more { bytes.len() as u64 } else { 0 };
            for row in rows.drain(..) {
                let at = before + row.line;
                if at >= self.from_line {
                    self.copy_row(&mut batched, &row, at)?;
                }
            }
            if let Err(error) = decoded {
                let at = before + decoder.line();
                batched.abandon(&mut self.session, error.message());
                return Err(LoadError::Sql {
                    error,
                    from: at,
                    to: at,
                });
            }
            if !is_more {
                break;
            }
        }
        self.commit_copy(&mut batched)?;
        self.counts.next_line = lines.line + 1;
        Ok(())
    }

    /// Hands over one row, and commits a full batch.
    fn copy_row(
        &mut self,
        batched: &mut BatchedCopy<'_>,
        row: &CopyRow,
        at: u64,
    ) -> Result<(), LoadError> {
        if self.counts.pending == 0 {
            batched.first = at;
            self.counts.next_line = at;
        }
        batched.last = at;
        let mut copy = match batched.copy.take() {
            Some(copy) => copy,
            None => batched.start(&mut self.session)?,
        };
        batched.data.clear();
        let fields = row.fields.iter().map(Option::as_deref);
        batched.encoder.row(fields, &mut batched.data);
        let taken = self.session.copy_data(&mut copy, &batched.data);
        batched.copy = Some(copy);
        if let Err(error) = taken {
            batched.abandon(&mut self.session, error.message());
            return Err(LoadError::Sql {
                error,
                from: at,
                to: at,
            });
        }
        self.counts.pending += 1;
        if self.counts.pending >= self.batch {
            self.commit_copy(batched)?;
        }
        Ok(())
    }

    /// Commits the open batch of a COPY.
    fn commit_copy(&mut self, batched: &mut BatchedCopy<'_>) -> Result<(), LoadError> {
        if let Some(copy) = batched.copy.take() {
            let done = self.session.copy_done(copy);
            done.map_err(|error| LoadError::Sql {
                error,
                from: batched.first,
                to: batched.last,
            })?;
            self.committed(batched.last + 1);
        }
        Ok(())
    }

    /// Counts the rows of the batch that was committed.
    pub fn committed(&mut self, next_line: u64) {
        self.counts.rows += std::mem::take(&mut self.counts.pending);
        self.counts.next_line = next_line;
        self.show_progress();
    }

    /// Moves the progress bar.
    pub fn show_progress(&self) {
        let rows = self.counts.rows + self.counts.pending;
        self.bar.set_position(self.counts.bytes);
        if rows.is_multiple_of(BAR_ROWS) || self.counts.pending == 0 {
            let text = format!("loading, {}", count(rows, "row", "rows"));
            self.bar.set_message(text);
        }
    }
}

impl BatchedCopy<'_> {
    /// Begins the statement of the next batch.
    fn start(&self, session: &mut Session) -> Result<CopyIn, LoadError> {
        let at_statement = |error| LoadError::Sql {
            error,
            from: self.line,
            to: self.line,
        };
        let begin = |session: &mut Session| -> SqlResult<CopyIn> {
            let parsed = session.parse(self.statement)?;
            let [one] = parsed.as_slice() else {
                return Err(SqlError::syntax("COPY is not one statement"));
            };
            let prepared = session.prepare(one, &[])?;
            match session.execute(&prepared, &[], &mut NoRows)? {
                Outcome::CopyIn(copy) => Ok(copy),
                _ => Err(SqlError::syntax("the statement takes no rows")),
            }
        };
        begin(session).map_err(at_statement)
    }

    /// Rolls the open batch back.
    fn abandon(&mut self, session: &mut Session, reason: &str) {
        if let Some(copy) = self.copy.take() {
            // The caller reports the reason.
            let _ = session.copy_fail(copy, reason);
        }
    }
}

/// Prints the result of a load, or returns its failure.
fn report(
    args: &SqlLoad,
    name: &str,
    counts: &LoadCounts,
    took: Duration,
    ended: Result<(), LoadError>,
) -> Result<(), Failure> {
    let what = match &ended {
        Ok(()) => None,
        Err(LoadError::Interrupted) => Some("interrupted".to_string()),
        Err(LoadError::Input(Failure::Message(sentence, _))) => Some(sentence.clone()),
        Err(LoadError::Input(_)) => Some(format!("{name} cannot be read")),
        Err(LoadError::Sql {
            error,
            from: NO_LINE,
            ..
        }) => Some(sentence(error)),
        Err(LoadError::Sql { error, from, to }) => {
            let lines = match from == to {
                true => format!("line {from}"),
                false => format!("lines {from} to {to}"),
            };
            Some(format!("{name}, {lines}: {}", sentence(error)))
        }
    };
    let state = match &ended {
        Err(LoadError::Sql { error, .. }) => Some(error.state().0),
        Err(LoadError::Interrupted) => Some(SqlState::QUERY_CANCELED.0),
        _ => None,
    };
    if args.json {
        let report = json!({
            "file": name, "table": args.table, "rows": counts.rows, "bytes": counts.bytes,
            "statements": counts.statements, "skipped": counts.skipped,
            "unsupported": counts.unsupported, "next_line": counts.next_line, "error": what,
            "sqlstate": state,
        });
        print(&format!("{report:#}\n"))?;
    }
    if let Some(what) = what {
        return Err(Failure::new(match (counts.rows, counts.next_line) {
            (0, 0..=1) => format!("{what}; nothing is committed"),
            (n, line) => format!(
                "{what}; {} committed; to continue, run the load again with --from-line {line}",
                count(n, "row is", "rows are")
            ),
        }));
    }
    if args.json {
        return Ok(());
    }
    if counts.skipped > 0 {
        note(format_args!(
            "basalt: skipped {} that a database does not need",
            count(counts.skipped, "statement", "statements")
        ));
    }
    if counts.unsupported > 0 {
        note(format_args!(
            "basalt: left out {} (--skip-unsupported)",
            count(
                counts.unsupported,
                "statement that is not supported",
                "statements that are not supported"
            )
        ));
    }
    let statements = match counts.statements {
        0 => String::new(),
        n => format!(" and ran {}", count(n, "statement", "statements")),
    };
    note(format_args!(
        "loaded {}{statements}, {}; all of it is durable",
        count(counts.rows, "row", "rows"),
        progress::rate(counts.bytes, took)
    ));
    Ok(())
}

#[cfg(test)]
mod tests;
