//! Results of commands on standard output, tables in them, and notes on standard error.

use crate::failure::Failure;
use std::fmt::{Arguments, Write as _};
use std::io::Write as _;

/// Prints a result to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Failure::output("standard output", e))
}

/// Prints the report of a check or a repair to standard output. A reader that has closed the pipe
/// is no failure here: the exit code must still say what was found.
///
/// Errors: those of [`print()`], except [`Failure::ReaderGone`].
pub fn print_report(text: &str) -> Result<(), Failure> {
    match print(text) {
        Err(Failure::ReaderGone) => Ok(()),
        printed => printed,
    }
}

/// Prints the result of a command that has changed a store to standard output. `done` says what was
/// changed, in the past tense.
///
/// Errors: those of [`print()`], with `done` in the message.
pub fn print_done(text: &str, done: &str) -> Result<(), Failure> {
    print(text).map_err(|e| e.after(done))
}

/// Prints a line for people to standard error. A failure is ignored: it must not stop the command
/// or the server.
pub fn note(line: Arguments<'_>) {
    prompt(format_args!("{line}\n"));
}

/// Prints text for people to standard error, without the end of a line. A failure is ignored.
pub fn prompt(text: Arguments<'_>) {
    // One write keeps the line whole beside the lines of other processes.
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Formats names and values, one a line.
pub fn rows(lines: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (name, value) in lines {
        let _ = writeln!(out, "  {name:<30} {value}");
    }
    out
}

/// Formats rows as columns. The first column is aligned to the left, the others to the right.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (w, cell) in widths.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, w)) in row.iter().zip(widths).enumerate() {
            let _ = if i == 0 {
                write!(line, "  {cell:<w$}")
            } else {
                write!(line, "  {cell:>w$}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
