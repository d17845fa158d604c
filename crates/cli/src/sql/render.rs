//! Results of statements on standard output, and errors as psql prints them.

use super::aligned::{Column, Table, expanded};
use super::json;
use basalt_sql::copy::CopyEncoder;
use basalt_sql::statement::{CopyFormat, ResultColumn};
use basalt_sql::{Row, RowSink, SqlError, SqlResult, SqlState};
use std::fmt::Write as _;
use std::io::Write;

/// Bytes of a table in memory at which its rows are printed. Later rows are aligned with them as
/// far as they fit.
const TABLE_BYTES: usize = 64 << 20;
/// Bytes of output at which it is written.
const BUFFER_BYTES: usize = 64 << 10;

/// The form of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultFormat {
    /// Aligned tables.
    Aligned,
    /// CSV with a header.
    Csv,
    /// One JSON object a row.
    Json,
    /// One JSON array with an object for each statement.
    JsonDocument,
}

/// How results are shown.
#[derive(Debug, Clone)]
pub struct Style {
    pub format: ResultFormat,
    /// The text of NULL in tables.
    pub null: String,
    /// One line a column.
    pub is_expanded: bool,
}

/// Prints the rows of one statement.
pub struct ResultPrinter<'a> {
    out: &'a mut dyn Write,
    style: &'a Style,
    columns: Vec<ResultColumn>,
    /// Rows are the data of COPY TO STDOUT, or CSV.
    encoder: Option<CopyEncoder>,
    table: Option<Table>,
    text: String,
    data: Vec<u8>,
    rows: u64,
    /// The failure of a write. The statement then ends.
    failed: Option<std::io::Error>,
}

impl<'a> ResultPrinter<'a> {
    /// Makes a printer for the rows of a statement with these columns; `copy` is the format if the
    /// statement is COPY TO STDOUT.
    pub fn new(
        out: &'a mut dyn Write,
        style: &'a Style,
        columns: &[ResultColumn],
        copy: Option<&CopyFormat>,
    ) -> ResultPrinter<'a> {
        let csv = CopyFormat {
            header: true,
            ..CopyFormat::of_kind(true)
        };
        let format = match style.format {
            _ if copy.is_some() => copy.cloned(),
            ResultFormat::Csv => Some(csv),
            _ => None,
        };
        let is_table = style.format == ResultFormat::Aligned && format.is_none();
        let mut printer = ResultPrinter {
            out,
            style,
            columns: columns.to_vec(),
            encoder: format.map(CopyEncoder::new),
            table: None,
            text: String::new(),
            data: Vec::new(),
            rows: 0,
            failed: None,
        };
        if let (Some(encoder), false) = (&printer.encoder, columns.is_empty()) {
            let names = printer.columns.iter().map(|c| c.name.as_str());
            encoder.header(names, &mut printer.data);
        }
        if is_table && !style.is_expanded {
            let column = |c: &ResultColumn| Column {
                name: c.name.clone(),
                is_right: c.ty.is_number(),
            };
            printer.table = Some(Table::new(columns.iter().map(column).collect()));
        }
        printer
    }

    /// Ends the rows of a statement that succeeded. `tag` is its command tag.
    pub fn finish(mut self, tag: &str, is_copy: bool) -> std::io::Result<()> {
        match (self.style.format, &mut self.table) {
            _ if is_copy => {}
            (ResultFormat::JsonDocument, _) => self.end_item(tag),
            _ if self.columns.is_empty() => {}
            (ResultFormat::Aligned, Some(table)) => {
                table.take(None, &mut self.text);
                table.footer(&mut self.text);
            }
            (ResultFormat::Aligned, None) => match self.rows {
                0 => self.text.push_str("(0 rows)\n\n"),
                _ => self.text.push('\n'),
            },
            _ => {}
        }
        self.write()
    }

    /// Writes what was printed of a statement that failed. Returns the failure of a write.
    pub fn abandon(mut self) -> Option<std::io::Error> {
        // A table without its end would look like a whole result.
        let is_table = self.table.is_some() || self.style.format == ResultFormat::JsonDocument;
        if is_table || self.failed.is_some() {
            return self.failed;
        }
        self.write().err()
    }

    fn write(&mut self) -> std::io::Result<()> {
        self.data.extend_from_slice(self.text.as_bytes());
        self.text.clear();
        let written = self.out.write_all(&self.data);
        self.data.clear();
        written.and_then(|()| self.out.flush())
    }

    /// Ends the object of a statement in a document.
    fn end_item(&mut self, tag: &str) {
        let rows = std::mem::take(&mut self.text);
        let mut text = String::from("{\"tag\":");
        json::string(tag, &mut text);
        if !self.columns.is_empty() {
            text.push_str(",\"columns\":[");
            for (i, column) in self.columns.iter().enumerate() {
                let _ = write!(text, "{}{{\"name\":", if i > 0 { "," } else { "" });
                json::string(&column.name, &mut text);
                let _ = write!(text, ",\"type\":\"{}\"}}", column.ty);
            }
            let _ = write!(text, "],\"rows\":[{rows}]");
        }
        text.push('}');
        self.text = text;
    }

    /// Prints one row of texts.
    fn texts(&mut self, texts: &[Option<String>]) {
        let null = self.style.null.as_str();
        if let Some(encoder) = &self.encoder {
            encoder.row(texts.iter().map(Option::as_deref), &mut self.data);
        } else if let Some(table) = &mut self.table {
            table.row(texts.iter().map(|t| t.as_deref().unwrap_or(null)));
            if table.bytes() > TABLE_BYTES {
                table.take(None, &mut self.text);
            }
        } else {
            let names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
            let values: Vec<&str> = texts.iter().map(|t| t.as_deref().unwrap_or(null)).collect();
            expanded(self.rows, &names, &values, &mut self.text);
        }
    }
}

impl RowSink for ResultPrinter<'_> {
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()> {
        self.rows += 1;
        let mut values = Vec::with_capacity(self.columns.len());
        for at in 0..self.columns.len() {
            values.push(row.get(at)?);
        }
        let is_json = matches!(
            self.style.format,
            ResultFormat::Json | ResultFormat::JsonDocument
        );
        if is_json && self.encoder.is_none() {
            if self.style.format == ResultFormat::JsonDocument && self.rows > 1 {
                self.text.push(',');
            }
            let columns = self.columns.iter().zip(&values);
            let fields = columns.map(|(c, v)| (c.name.as_str(), *v, c.ty));
            json::object(fields, &mut self.text);
            if self.style.format == ResultFormat::Json {
                self.text.push('\n');
            }
        } else {
            let all = values.iter().zip(&self.columns);
            let texts: Vec<Option<String>> = all.map(|(v, c)| json::text(*v, c.ty)).collect();
            self.texts(&texts);
        }
        let is_document = self.style.format == ResultFormat::JsonDocument;
        if (self.text.len() + self.data.len() >= BUFFER_BYTES && !is_document)
            && let Err(e) = self.write()
        {
            let error = SqlError::new(SqlState::IO_ERROR, format!("cannot write the result: {e}"));
            self.failed = Some(e);
            return Err(error);
        }
        Ok(())
    }
}

/// Returns an error as psql prints it: severity, SQLSTATE and message, the line of the statement
/// with a caret under the position, detail and hint.
pub fn error_text(severity: &str, e: &SqlError, statement: &str) -> String {
    let mut text = format!("{severity}:  {}: {}\n", e.state().0, e.message());
    if let Some(position) = e.position() {
        text.push_str(&caret(statement, position));
    }
    for (name, part) in [("DETAIL", e.detail()), ("HINT", e.hint())] {
        if let Some(part) = part {
            let _ = writeln!(text, "{name}:  {part}");
        }
    }
    text
}

/// Characters of a line that are shown before and after the position of an error.
const CARET_BEFORE: usize = 50;
const CARET_BEHIND: usize = 20;

/// Returns the line of a statement with a caret under the position, in characters from 1.
fn caret(statement: &str, position: u32) -> String {
    let before = (position as usize).saturating_sub(1);
    let (mut line, mut start) = (1, 0);
    for (at, c) in statement.chars().enumerate().take(before) {
        if c == '\n' {
            (line, start) = (line + 1, at + 1);
        }
    }
    let all: Vec<char> = statement
        .chars()
        .skip(start)
        .take_while(|c| *c != '\n')
        .collect();
    let column = (before - start).min(all.len());
    let from = column.saturating_sub(CARET_BEFORE);
    let to = all.len().min(column + CARET_BEHIND);
    let show = |c: &char| if c.is_control() { ' ' } else { *c };
    let shown: String = all[from..to].iter().map(show).collect();
    let head = format!("LINE {line}: {}", if from > 0 { "..." } else { "" });
    let tail = if to < all.len() { "..." } else { "" };
    let width = |c: &char| unicode_width::UnicodeWidthChar::width(*c).unwrap_or(1);
    let blanks = head.len() + all[from..column].iter().map(width).sum::<usize>();
    format!("{head}{shown}{tail}\n{}^\n", " ".repeat(blanks))
}

#[cfg(test)]
mod tests;
