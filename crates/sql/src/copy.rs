//! COPY's text and CSV formats, with PostgreSQL's rules (PostgreSQL's manual, COPY, "File
//! Formats").
//!
//! [`CopyDecoder`] turns bytes of a client or a file into rows of texts. [`CopyEncoder`] turns rows
//! of texts into bytes. Neither knows the types of the columns. The data comes from outside: the
//! decoder answers malformed data with an error and keeps at most one row in memory.

use crate::error::{SqlError, SqlResult, SqlState};
use crate::statement::CopyFormat;

/// Default of the most bytes of one row, in the form of the data.
pub const MAX_COPY_ROW: usize = 256 << 20;

/// Characters of a row that an error shows.
const MESSAGE_CHARACTERS: usize = 100;

/// The text of a line that ends the data.
const END_MARKER: &[u8] = b"\\.";

/// Bytes that cannot be the delimiter of the text format, because escapes consist of them.
const NO_TEXT_DELIMITERS: &[u8] = b"\\.abcdefghijklmnopqrstuvwxyz0123456789";

/// A row of COPY data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRow {
    /// The line of the data at which the row begins, from 1. A header counts as a line.
    pub line: u64,
    /// The texts of the columns; `None` is NULL.
    pub fields: Vec<Option<String>>,
}

impl CopyFormat {
    /// Returns the default of the text format, or that of CSV.
    pub fn of_kind(csv: bool) -> CopyFormat {
        CopyFormat {
            csv,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { "" } else { "\\N" }.to_string(),
            header: false,
            quote: b'"',
            escape: b'"',
        }
    }

    /// Checks that rows in the format can be read again.
    ///
    /// Errors: 22023 if a delimiter, quote, escape or text of NULL is not possible.
    pub fn check(&self) -> SqlResult<()> {
        let refuse = |text: &str| {
            Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                text.to_string(),
            ))
        };
        let is_line_end = |b: u8| b == b'\n' || b == b'\r';
        let one_byte = |b: u8| b.is_ascii() && b != 0;
        if !one_byte(self.delimiter) || is_line_end(self.delimiter) {
            return refuse("COPY delimiter must be a single one-byte character that ends no line");
        }
        if !self.csv && NO_TEXT_DELIMITERS.contains(&self.delimiter) {
            let delimiter = char::from(self.delimiter);
            return refuse(&format!("COPY delimiter cannot be \"{delimiter}\""));
        }
        if self.null.bytes().any(is_line_end) {
            return refuse("COPY null representation cannot use newline or carriage return");
        }
        if self.null.as_bytes().contains(&self.delimiter) {
            return refuse("COPY delimiter character must not appear in the NULL specification");
        }
        if !self.csv {
            return Ok(());
        }
        if !one_byte(self.quote) || is_line_end(self.quote) {
            return refuse("COPY quote must be a single one-byte character that ends no line");
        }
        if !one_byte(self.escape) || is_line_end(self.escape) {
            return refuse("COPY escape must be a single one-byte character that ends no line");
        }
        if self.quote == self.delimiter {
            return refuse("COPY delimiter and quote must be different");
        }
        if self.null.as_bytes().contains(&self.quote) {
            return refuse("CSV quote character must not appear in the NULL specification");
        }
        Ok(())
    }
}

/// The end of the lines of the data. The first line decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Newline,
    Return,
    ReturnNewline,
}

/// Reads rows from chunks of bytes. The rows, and the first error, do not depend on how the data is
/// cut into chunks.
#[derive(Debug)]
pub struct CopyDecoder {
    format: CopyFormat,
    /// Names of the columns.
    columns: Vec<String>,
    /// Maximum bytes of a row.
    max_row: usize,
    /// The bytes of the current line, without its end.
    line: Vec<u8>,
    /// The number of the line that the next byte belongs to, from 1.
    line_number: u64,
    /// The number of the line at which the current row began.
    row_line: u64,
    line_end: Option<LineEnd>,
    /// The byte before was a carriage return outside of quotes, and not yet the end of a line.
    after_return: bool,
    /// The byte before was a backslash (text) or an escape in quotes (CSV) that is not escaped.
    after_escape: bool,
    in_quotes: bool,
    /// The next line is the header.
    at_header: bool,
    is_done: bool,
    failed: Option<SqlError>,
}

impl CopyDecoder {
    /// Returns a decoder for rows of the columns, which are named in errors.
    pub fn new(format: CopyFormat, columns: Vec<String>) -> CopyDecoder {
        CopyDecoder {
            at_header: format.header,
            format,
            columns,
            max_row: MAX_COPY_ROW,
            line: Vec::new(),
            line_number: 1,
            row_line: 1,
            line_end: None,
            after_return: false,
            after_escape: false,
            in_quotes: false,
            is_done: false,
            failed: None,
        }
    }

    /// Sets the most bytes of a row. The default is [`MAX_COPY_ROW`].
    pub fn max_row(mut self, bytes: usize) -> CopyDecoder {
        self.max_row = bytes;
        self
    }

    /// Returns `true` if the end marker `\.` was read. Later bytes are not data.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the line at which the row that is being read begins, from 1.
    pub fn line(&self) -> u64 {
        self.row_line
    }

    /// Appends the rows that end in the chunk to `rows`. Returns how many bytes of the chunk are
    /// data: fewer than its length only if the end marker is in it.
    ///
    /// Errors: 22P04 for malformed data, with the line, and 54000 for a row that is too long. Rows
    /// before the error are in `rows`. A decoder that has failed fails again with the same error.
    pub fn decode(&mut self, chunk: &[u8], rows: &mut Vec<CopyRow>) -> SqlResult<usize> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        for (at, byte) in chunk.iter().enumerate() {
            if self.is_done {
                return Ok(at);
            }
            if let Err(e) = self.take(*byte, rows) {
                self.failed = Some(e.clone());
                return Err(e);
            }
        }
        Ok(chunk.len())
    }

    /// Ends the data. A last line without an end is a row.
    ///
    /// Errors: those of [`CopyDecoder::decode`].
    pub fn finish(&mut self, rows: &mut Vec<CopyRow>) -> SqlResult<()> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let finished = self.finish_line(rows);
        if let Err(e) = &finished {
            self.failed = Some(e.clone());
        }
        finished
    }

    fn finish_line(&mut self, rows: &mut Vec<CopyRow>) -> SqlResult<()> {
        if self.is_done {
            return Ok(());
        }
        if self.in_quotes {
            return Err(self.malformed("unterminated CSV quoted field"));
        }
        if self.after_return {
            match self.line_end {
                None => self.line_end = Some(LineEnd::Return),
                Some(_) => return Err(self.stray("carriage return")),
            }
            return self.end_line(rows);
        }
        match self.line.is_empty() {
            true => Ok(()),
            false => self.end_line(rows),
        }
    }

    /// Takes the next byte.
    fn take(&mut self, byte: u8, rows: &mut Vec<CopyRow>) -> SqlResult<()> {
        if self.after_return {
            self.after_return = false;
            if byte == b'\n' {
                self.line_end = Some(LineEnd::ReturnNewline);
                return self.end_line(rows);
            }
            if self.line_end.is_some() {
                return Err(self.stray("carriage return"));
            }
            self.line_end = Some(LineEnd::Return);
            self.end_line(rows)?;
            if self.is_done {
                return Ok(());
            }
        }
        let is_data = match self.format.csv {
            false => self.after_escape,
            true => self.in_quotes,
        };
        match (byte, is_data, self.line_end) {
            (b'\n', false, None | Some(LineEnd::Newline)) => {
                self.line_end = Some(LineEnd::Newline);
                return self.end_line(rows);
            }
            (b'\n', false, Some(_)) => return Err(self.stray("newline")),
            (b'\r', false, None | Some(LineEnd::ReturnNewline)) => {
                self.after_return = true;
                return Ok(());
            }
            (b'\r', false, Some(LineEnd::Return)) => return self.end_line(rows),
            (b'\r', false, Some(LineEnd::Newline)) => {
                return Err(self.stray("carriage return"));
            }
            (b'\n', true, _) => self.line_number += 1,
            _ => {}
        }
        self.track_escapes(byte);
        if self.line.len() >= self.max_row {
            let most = self.max_row;
            return Err(SqlError::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a row of COPY data has more than {most} bytes"),
            )
            .with_detail(self.place()));
        }
        self.line.push(byte);
        Ok(())
    }

    /// Updates quotes and escapes by a byte of the line, so that the end of the line is found.
    fn track_escapes(&mut self, byte: u8) {
        if !self.format.csv {
            self.after_escape = byte == b'\\' && !self.after_escape;
            return;
        }
        let CopyFormat { quote, escape, .. } = self.format;
        // A doubled quote leaves the quotes and enters them again.
        let is_escape = escape != quote && byte == escape;
        if self.in_quotes && is_escape {
            self.after_escape = !self.after_escape;
        }
        if byte == quote && !self.after_escape {
            self.in_quotes = !self.in_quotes;
        }
        if !is_escape {
            self.after_escape = false;
        }
    }

    /// Makes a row of the line.
    fn end_line(&mut self, rows: &mut Vec<CopyRow>) -> SqlResult<()> {
        let line = std::mem::take(&mut self.line);
        let parsed = self.parse_line(&line);
        self.line = line;
        if let Some(fields) = parsed.map_err(|what| self.malformed(what))? {
            rows.push(CopyRow {
                line: self.row_line,
                fields,
            });
        }
        self.line.clear();
        self.line_number += 1;
        self.row_line = self.line_number;
        self.after_escape = false;
        self.in_quotes = false;
        Ok(())
    }

    /// Returns the fields of a line, or `None` for the header and the end marker.
    fn parse_line(&mut self, line: &[u8]) -> Result<Option<Vec<Option<String>>>, String> {
        if std::mem::take(&mut self.at_header) {
            return Ok(None);
        }
        if line == END_MARKER {
            self.is_done = true;
            return Ok(None);
        }
        match self.format.csv {
            true => self.csv_fields(line),
            false => self.text_fields(line),
        }
        .map(Some)
    }

    /// Returns a field for the column of this position.
    fn field(&self, at: usize, bytes: Vec<u8>) -> Result<String, String> {
        let invalid = |byte: u8| {
            let column = self.columns.get(at).map_or("", String::as_str);
            format!(
                "invalid byte sequence for encoding \"UTF8\": 0x{byte:02x}, in column \"{column}\""
            )
        };
        if bytes.contains(&0) {
            return Err(invalid(0));
        }
        String::from_utf8(bytes).map_err(|e| {
            invalid(
                e.as_bytes()
                    .get(e.utf8_error().valid_up_to())
                    .map_or(0, |b| *b),
            )
        })
    }

    /// Checks that a line with `found` fields or more, of which the last was just read, has as many
    /// as there are columns.
    fn check_count(&self, found: usize, is_last: bool) -> Result<(), String> {
        if found > self.columns.len() {
            return Err("extra data after last expected column".to_string());
        }
        match self.columns.get(found) {
            Some(column) if is_last => Err(format!("missing data for column \"{column}\"")),
            _ => Ok(()),
        }
    }

    fn text_fields(&self, line: &[u8]) -> Result<Vec<Option<String>>, String> {
        let mut fields = Vec::with_capacity(self.columns.len());
        if self.columns.is_empty() && line.is_empty() {
            return Ok(fields);
        }
        let mut at = 0;
        loop {
            self.check_count(fields.len() + 1, false)?;
            let start = at;
            let mut bytes = Vec::new();
            let mut is_over = true;
            while let Some(byte) = line.get(at) {
                at += 1;
                match *byte {
                    b if b == self.format.delimiter => {
                        is_over = false;
                        break;
                    }
                    b'\\' => at = unescape(line, at, &mut bytes)?,
                    b => bytes.push(b),
                }
            }
            let raw = &line[start..at - usize::from(!is_over)];
            // The text of NULL is compared before escapes are read.
            fields.push(match raw == self.format.null.as_bytes() {
                true => None,
                false => Some(self.field(fields.len(), bytes)?),
            });
            self.check_count(fields.len(), is_over)?;
            if is_over {
                return Ok(fields);
            }
        }
    }

    fn csv_fields(&self, line: &[u8]) -> Result<Vec<Option<String>>, String> {
        let CopyFormat {
            delimiter,
            quote,
            escape,
            ..
        } = self.format;
        let mut fields = Vec::with_capacity(self.columns.len());
        if self.columns.is_empty() && line.is_empty() {
            return Ok(fields);
        }
        let mut at = 0;
        loop {
            self.check_count(fields.len() + 1, false)?;
            let mut bytes = Vec::new();
            let (mut is_over, mut in_quotes, mut was_quoted) = (true, false, false);
            while let Some(byte) = line.get(at).copied() {
                at += 1;
                if in_quotes {
                    let next = line.get(at).copied();
                    if byte == escape
                        && let Some(next) = next.filter(|n| *n == escape || *n == quote)
                    {
                        bytes.push(next);
                        at += 1;
                    } else if byte == quote {
                        in_quotes = false;
                    } else {
                        bytes.push(byte);
                    }
                } else if byte == delimiter {
                    is_over = false;
                    break;
                } else if byte == quote {
                    (in_quotes, was_quoted) = (true, true);
                } else {
                    bytes.push(byte);
                }
            }
            if in_quotes {
                return Err("unterminated CSV quoted field".to_string());
            }
            let is_null = !was_quoted && bytes == self.format.null.as_bytes();
            fields.push(match is_null {
                true => None,
                false => Some(self.field(fields.len(), bytes)?),
            });
            self.check_count(fields.len(), is_over)?;
            if is_over {
                return Ok(fields);
            }
        }
    }

    /// Returns the error for the end of a line of another kind than those before.
    fn stray(&self, what: &str) -> SqlError {
        match self.format.csv {
            true => self
                .malformed(format!("unquoted {what} found in data"))
                .with_hint(format!("Use quoted CSV field to represent {what}.")),
            false => {
                let escape = if what == "newline" { "\\n" } else { "\\r" };
                self.malformed(format!("literal {what} found in data"))
                    .with_hint(format!("Use \"{escape}\" to represent {what}."))
            }
        }
    }

    fn malformed(&self, what: impl Into<String>) -> SqlError {
        SqlError::new(SqlState::BAD_COPY_FORMAT, what).with_detail(self.place())
    }

    /// Returns the line of the data that an error is about, and its beginning.
    fn place(&self) -> String {
        let most = self.line.len().min(MESSAGE_CHARACTERS * 4);
        let text = String::from_utf8_lossy(&self.line[..most]);
        let shown: String = text.chars().take(MESSAGE_CHARACTERS).collect();
        let dots = if shown.len() < self.line.len() {
            "..."
        } else {
            ""
        };
        format!("COPY, line {}: \"{shown}{dots}\"", self.row_line)
    }
}

/// Appends the byte of the escape whose backslash is before `at`. Returns the position after it.
/// A backslash at the end of a line stands for nothing.
fn unescape(line: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, String> {
    let Some(byte) = line.get(at).copied() else {
        return Ok(at);
    };
    let digits = |from: usize, most: usize, radix: u32| -> (u32, usize) {
        let all = line.get(from..).unwrap_or_default().iter().take(most);
        let digits = all.map_while(|b| char::from(*b).to_digit(radix));
        digits.fold((0, from), |(n, end), d| (n * radix + d, end + 1))
    };
    let (byte, end) = match byte {
        b'b' => (8, at + 1),
        b'f' => (12, at + 1),
        b'n' => (b'\n', at + 1),
        b'r' => (b'\r', at + 1),
        b't' => (b'\t', at + 1),
        b'v' => (11, at + 1),
        b'0'..=b'7' => {
            let (n, end) = digits(at, 3, 8);
            // Three octal digits have nine bits. PostgreSQL drops the highest, too.
            ((n & 0xff) as u8, end)
        }
        b'x' => match digits(at + 1, 2, 16) {
            (_, end) if end == at + 1 => (b'x', end),
            (n, end) => (n as u8, end),
        },
        b'.' => return Err("end-of-copy marker is not alone on its line".to_string()),
        other => (other, at + 1),
    };
    out.push(byte);
    Ok(end)
}

/// Writes rows of texts.
#[derive(Debug, Clone)]
pub struct CopyEncoder {
    format: CopyFormat,
}

impl CopyEncoder {
    /// Returns an encoder for the format.
    pub fn new(format: CopyFormat) -> CopyEncoder {
        CopyEncoder { format }
    }

    /// Appends the line with the names of the columns, if the format has a header.
    pub fn header<'a>(&self, names: impl IntoIterator<Item = &'a str>, out: &mut Vec<u8>) {
        if self.format.header {
            self.row(names.into_iter().map(Some), out);
        }
    }

    /// Appends a row. `None` is NULL.
    pub fn row<'a>(&self, fields: impl IntoIterator<Item = Option<&'a str>>, out: &mut Vec<u8>) {
        let start = out.len();
        let mut is_first = true;
        for field in fields {
            if !std::mem::take(&mut is_first) {
                out.push(self.format.delimiter);
            }
            match field {
                None => out.extend_from_slice(self.format.null.as_bytes()),
                Some(text) if self.format.csv => self.csv_field(text, out),
                Some(text) => self.text_field(text, out),
            }
        }
        if self.format.csv && out.get(start..) == Some(END_MARKER) {
            // A row of one column with this text would end the data.
            out.truncate(start);
            out.extend_from_slice(&[self.format.quote, b'\\', b'.', self.format.quote]);
        }
        out.push(b'\n');
    }

    fn text_field(&self, text: &str, out: &mut Vec<u8>) {
        for byte in text.bytes() {
            let escaped = match byte {
                8 => b'b',
                9 => b't',
                10 => b'n',
                11 => b'v',
                12 => b'f',
                13 => b'r',
                b'\\' => b'\\',
                b if b == self.format.delimiter => b,
                b => {
                    out.push(b);
                    continue;
                }
            };
            out.extend_from_slice(&[b'\\', escaped]);
        }
    }

    fn csv_field(&self, text: &str, out: &mut Vec<u8>) {
        let CopyFormat {
            delimiter,
            quote,
            escape,
            ..
        } = self.format;
        let needs_quotes = text == self.format.null
            || (text.bytes()).any(|b| b == delimiter || b == quote || b == b'\n' || b == b'\r');
        if !needs_quotes {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        out.push(quote);
        for byte in text.bytes() {
            if byte == quote || byte == escape {
                out.push(escape);
            }
            out.push(byte);
        }
        out.push(quote);
    }
}

#[cfg(test)]
mod tests;
