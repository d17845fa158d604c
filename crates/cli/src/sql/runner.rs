//! Runs one statement: prepares and executes it, prints its rows, and moves the data of COPY.

use super::input::Input;
use super::interrupt::Interrupter;
use super::render::{ResultFormat, ResultPrinter, Style, error_text};
use super::splitter::Statement;
use crate::failure::Failure;
use crate::output::prompt;
use crate::progress::DelayedBar;
use basalt::env::Clock;
use basalt_sql::{Outcome, ParsedStatement, Session, SqlError, SqlResult};
use std::cell::Cell;
use std::io::Write;
use std::time::Duration;

/// Bytes of COPY data that are handed over at a time.
const COPY_BYTES: usize = 64 << 10;
/// The line that ends COPY data among statements.
const END_MARKER: &[u8] = b"\\.";

/// A session and the settings of its output.
pub struct Runner {
    pub session: Session,
    pub interrupter: Interrupter,
    pub style: Style,
    pub is_timing: bool,
    pub is_quiet: bool,
    /// Statements in the JSON document so far.
    items: Cell<u64>,
    clock: Clock,
}

/// The rows or data of a statement on their way out.
pub enum Target<'a> {
    /// Standard output.
    Stdout,
    /// A file of `\copy`.
    File(&'a mut dyn Write),
}

/// The data of COPY FROM STDIN.
pub enum CopySource<'a> {
    /// Lines after the statement, up to `\.`.
    Script(&'a mut Input),
    /// All bytes of a file of `\copy`, with their number if it is known.
    Reader(&'a mut dyn std::io::Read, Option<u64>),
}

/// The failure of a statement, or of the shell's own input or output.
enum RunError {
    Sql(SqlError),
    Shell(Failure),
}

impl From<SqlError> for RunError {
    fn from(e: SqlError) -> RunError {
        RunError::Sql(e)
    }
}

impl From<Failure> for RunError {
    fn from(e: Failure) -> RunError {
        RunError::Shell(e)
    }
}

impl Runner {
    pub fn new(session: Session, interrupter: Interrupter, style: Style) -> Runner {
        Runner {
            session,
            interrupter,
            style,
            is_timing: false,
            is_quiet: false,
            items: Cell::new(0),
            clock: Clock::system(),
        }
    }

    /// Runs a statement of a script. `origin` names the script in messages. Returns `false` if the
    /// statement failed, after printing its error.
    pub fn run(
        &mut self,
        statement: &Statement,
        origin: Option<&str>,
        mut target: Target<'_>,
        mut source: CopySource<'_>,
    ) -> Result<bool, Failure> {
        let began = self.clock.now();
        let parsed = self.session.parse(&statement.text);
        let ran = parsed.map_err(RunError::Sql).and_then(|all| {
            all.iter()
                .try_for_each(|one| self.run_parsed(one, &mut target, &mut source))
        });
        let took = self.clock.now().saturating_sub(began);
        let is_done = match ran {
            Ok(()) => true,
            Err(RunError::Sql(e)) => {
                if self.style.format == ResultFormat::JsonDocument {
                    self.item_of_error(&e)?;
                }
                self.print_error("ERROR", &e, statement, origin);
                false
            }
            Err(RunError::Shell(failure)) => return Err(failure),
        };
        if self.is_timing {
            prompt(format_args!("Time: {}\n", milliseconds(took)));
        }
        Ok(is_done)
    }

    /// Prints an error or a notice to standard error.
    pub fn print_error(
        &self,
        severity: &str,
        e: &SqlError,
        statement: &Statement,
        origin: Option<&str>,
    ) {
        let text = error_text(severity, e, &statement.text);
        match origin {
            Some(origin) => prompt(format_args!("{origin}:{}: {text}", statement.line)),
            None => prompt(format_args!("{text}")),
        }
    }

    fn run_parsed(
        &mut self,
        statement: &ParsedStatement,
        target: &mut Target<'_>,
        source: &mut CopySource<'_>,
    ) -> Result<(), RunError> {
        let prepared = self.session.prepare(statement, &[])?;
        let copy_out = prepared.copy_out();
        let (copy_format, columns) = match &copy_out {
            Some((format, columns)) => (Some(format), &columns[..]),
            None => (None, prepared.columns()),
        };
        let mut stdout = std::io::stdout().lock();
        let is_document = self.style.format == ResultFormat::JsonDocument;
        let is_file = matches!(target, Target::File(_));
        let output = |e: std::io::Error| {
            RunError::Shell(match is_file {
                true => Failure::new(format!("cannot write the file of \\copy: {e}")),
                false => Failure::output("standard output", e),
            })
        };
        let out: &mut dyn Write = match target {
            Target::Stdout => &mut stdout,
            Target::File(file) => *file,
        };
        let mut printer = ResultPrinter::new(out, &self.style, columns, copy_format);
        let session = &mut self.session;
        let ran = self
            .interrupter
            .run(|| session.execute(&prepared, &[], &mut printer));
        let outcome = match ran {
            Ok(outcome) => outcome,
            Err(e) => {
                if let Some(broken) = printer.abandon() {
                    return Err(output(broken));
                }
                return Err(e.into());
            }
        };
        let has_rows = !prepared.columns().is_empty();
        match outcome {
            Outcome::Done { tag, notices, .. } => {
                if is_document {
                    self.separator()?;
                }
                printer.finish(&tag, false).map_err(output)?;
                let no_statement = Statement {
                    text: String::new(),
                    line: 0,
                };
                for notice in &notices {
                    self.print_error("NOTICE", notice, &no_statement, None);
                }
                self.print_tag(&tag, has_rows)
            }
            Outcome::CopyOut { rows, .. } => {
                printer.finish("", true).map_err(output)?;
                match is_file {
                    // The data is on standard output, and nothing else may be.
                    false => Ok(()),
                    true => self.print_tag(&format!("COPY {rows}"), false),
                }
            }
            Outcome::CopyIn(copy) => {
                drop(printer);
                drop(stdout);
                let rows = self.copy_in(copy, source)?;
                let tag = format!("COPY {rows}");
                if is_document {
                    self.separator()?;
                    let mut text = String::from("{\"tag\":");
                    super::json::string(&tag, &mut text);
                    text.push('}');
                    crate::output::print(&text)?;
                }
                self.print_tag(&tag, false)
            }
        }
    }

    /// Begins the next object of the JSON document.
    fn separator(&self) -> Result<(), Failure> {
        let items = self.items.replace(self.items.get() + 1);
        crate::output::print(if items == 0 { "[" } else { ",\n" })
    }

    /// Adds a statement that failed to the JSON document.
    fn item_of_error(&self, e: &SqlError) -> Result<(), Failure> {
        self.separator()?;
        let mut text = String::from("{\"error\":{\"sqlstate\":");
        super::json::string(e.state().0, &mut text);
        text.push_str(",\"message\":");
        super::json::string(e.message(), &mut text);
        text.push_str("}}");
        crate::output::print(&text)
    }

    /// Ends the JSON document.
    pub fn end_document(&self) -> Result<(), Failure> {
        match (self.style.format, self.items.get()) {
            (ResultFormat::JsonDocument, 0) => crate::output::print("[]\n"),
            (ResultFormat::JsonDocument, _) => crate::output::print("]\n"),
            _ => Ok(()),
        }
    }

    fn print_tag(&self, tag: &str, has_rows: bool) -> Result<(), RunError> {
        let is_shown = self.style.format == ResultFormat::Aligned && !has_rows && !self.is_quiet;
        if is_shown && !tag.is_empty() {
            crate::output::print(&format!("{tag}\n"))?;
        }
        Ok(())
    }

    /// Hands the data of COPY FROM STDIN to the session. Returns the number of rows.
    fn copy_in(
        &mut self,
        mut copy: basalt_sql::CopyIn,
        source: &mut CopySource<'_>,
    ) -> Result<u64, RunError> {
        let mut ended: SqlResult<()> = Ok(());
        let mut data = Vec::new();
        let mut line = Vec::new();
        let (mut bar, mut done) = (DelayedBar::new("copying"), 0);
        loop {
            let is_end = match source {
                CopySource::Script(input) => loop {
                    if !input.read_data(&mut line)? || line.trim_ascii_end() == END_MARKER {
                        break true;
                    }
                    data.extend_from_slice(&line);
                    if data.len() >= COPY_BYTES {
                        break false;
                    }
                },
                CopySource::Reader(reader, len) => {
                    data.resize(COPY_BYTES, 0);
                    let n = match reader.read(&mut data) {
                        Ok(n) => n,
                        Err(e) => {
                            let e = self.session.copy_fail(copy, &e.to_string());
                            return Err(e.into());
                        }
                    };
                    data.truncate(n);
                    done += n as u64;
                    if let Some(len) = len {
                        bar.at(done, (*len).max(done));
                    }
                    n == 0
                }
            };
            // After an error, the rest of the data is read and dropped: it is not a statement.
            if ended.is_ok() && !data.is_empty() {
                let (session, copy) = (&mut self.session, &mut copy);
                ended = self.interrupter.run(|| session.copy_data(copy, &data));
            }
            data.clear();
            if is_end || (ended.is_err() && matches!(source, CopySource::Reader(..))) {
                break;
            }
        }
        bar.end();
        let session = &mut self.session;
        match ended {
            Ok(()) => Ok(self.interrupter.run(|| session.copy_done(copy))?),
            Err(e) => {
                // The error that the caller sees is the first one.
                let _ = session.copy_fail(copy, e.message());
                Err(e.into())
            }
        }
    }
}

/// Returns a duration as psql shows it.
pub fn milliseconds(took: Duration) -> String {
    let ms = took.as_secs_f64() * 1000.0;
    match ms < 1000.0 {
        true => format!("{ms:.3} ms"),
        false => {
            let s = took.as_secs();
            let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
            let fraction = took.subsec_millis();
            match h {
                0 => format!("{ms:.3} ms ({m:02}:{s:02}.{fraction:03})"),
                _ => format!("{ms:.3} ms ({h:02}:{m:02}:{s:02}.{fraction:03})"),
            }
        }
    }
}
