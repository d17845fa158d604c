//! Tables of text, as psql aligns them (PostgreSQL's manual, psql, `\pset format aligned`).

use std::fmt::Write as _;
use unicode_width::UnicodeWidthChar;

/// Columns between two tab stops.
const TAB: usize = 8;

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    /// Values are aligned to the right.
    pub is_right: bool,
}

/// A cell: its lines without control characters, and the width of each in columns of a terminal.
type Cell = Vec<(String, usize)>;

/// A table that is built row by row.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    names: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    /// Bytes of the cells.
    bytes: usize,
    /// Width of each column, of those that were taken out before, too.
    widths: Vec<usize>,
    /// The header was written.
    is_begun: bool,
    /// Rows that were taken out.
    taken: u64,
}

/// Returns the lines of a text as a terminal can show them: control characters are escaped.
fn cell(text: &str) -> Cell {
    let mut lines = Vec::new();
    let (mut line, mut width) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\n' => lines.push((std::mem::take(&mut line), std::mem::take(&mut width))),
            '\t' => {
                let blanks = TAB - width % TAB;
                line.push_str(&" ".repeat(blanks));
                width += blanks;
            }
            '\r' => {
                line.push_str("\\r");
                width += 2;
            }
            c if c.is_control() => {
                let escape = match u32::from(c) {
                    n if n < 0x80 => format!("\\x{n:02X}"),
                    n => format!("\\u{n:04X}"),
                };
                line.push_str(&escape);
                width += escape.len();
            }
            c => {
                line.push(c);
                width += c.width().unwrap_or(0);
            }
        }
    }
    lines.push((line, width));
    lines
}

fn cell_width(cell: &Cell) -> usize {
    cell.iter().map(|(_, width)| *width).max().unwrap_or(0)
}

impl Table {
    pub fn new(columns: Vec<Column>) -> Table {
        let names: Vec<Cell> = columns.iter().map(|c| cell(&c.name)).collect();
        Table {
            widths: names.iter().map(cell_width).collect(),
            names,
            columns,
            rows: Vec::new(),
            bytes: 0,
            is_begun: false,
            taken: 0,
        }
    }

    /// Makes a table whose columns are aligned to the left.
    pub fn of_names(names: &[&str]) -> Table {
        let column = |name: &&str| Column {
            name: (*name).to_string(),
            is_right: false,
        };
        Table::new(names.iter().map(column).collect())
    }

    /// Appends a row.
    pub fn row<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>) {
        let row: Vec<Cell> = cells.into_iter().map(cell).collect();
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(cell_width(cell));
            self.bytes += cell.iter().map(|(line, _)| line.len() + 48).sum::<usize>();
        }
        self.rows.push(row);
    }

    /// Returns the approximate bytes that the rows take in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the rows and drops them. The first call writes the header, with the title above.
    pub fn take(&mut self, title: Option<&str>, out: &mut String) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.header(title, out);
        }
        for row in std::mem::take(&mut self.rows) {
            self.taken += 1;
            let height = row.iter().map(Vec::len).max().unwrap_or(1);
            for at in 0..height {
                self.line(&row, at, out);
            }
        }
        self.bytes = 0;
    }

    fn header(&self, title: Option<&str>, out: &mut String) {
        if let Some(title) = title {
            let whole: usize = self.widths.iter().map(|w| w + 3).sum::<usize>().max(1) - 1;
            let blanks = whole.saturating_sub(title.chars().count()) / 2;
            let _ = writeln!(out, "{}{title}", " ".repeat(blanks));
        }
        let height = self.names.iter().map(Vec::len).max().unwrap_or(1);
        for at in 0..height {
            for (i, (name, width)) in self.names.iter().zip(&self.widths).enumerate() {
                let (text, own) = name.get(at).map_or(("", 0), |(t, w)| (t, *w));
                let left = (width - own) / 2;
                let right = width - own - left;
                let more = if at + 1 < name.len() { '+' } else { ' ' };
                let bar = if i > 0 { "|" } else { "" };
                let _ = write!(
                    out,
                    "{bar} {}{text}{}{more}",
                    " ".repeat(left),
                    " ".repeat(right)
                );
            }
            out.push('\n');
        }
        for (i, width) in self.widths.iter().enumerate() {
            if i > 0 {
                out.push('+');
            }
            out.push_str(&"-".repeat(width + 2));
        }
        out.push('\n');
    }

    /// Writes one line of the cells of a row.
    fn line(&self, row: &[Cell], at: usize, out: &mut String) {
        let last = row.len().saturating_sub(1);
        for (i, cell) in row.iter().enumerate() {
            let width = self.widths[i];
            let (text, own) = cell.get(at).map_or(("", 0), |(t, w)| (t, *w));
            let blanks = " ".repeat(width.saturating_sub(own));
            if i > 0 {
                out.push('|');
            }
            out.push(' ');
            let has_more = at + 1 < cell.len();
            if self.columns[i].is_right {
                out.push_str(&blanks);
                out.push_str(text);
            } else {
                out.push_str(text);
                // The last column has no blanks after its values.
                if i < last || has_more {
                    out.push_str(&blanks);
                }
            }
            match has_more {
                true => out.push('+'),
                false if i < last => out.push(' '),
                false => {}
            }
        }
        out.push('\n');
    }

    /// Writes the number of rows, and an empty line.
    pub fn footer(&self, out: &mut String) {
        let n = self.taken + self.rows.len() as u64;
        let _ = writeln!(out, "({n} row{})\n", if n == 1 { "" } else { "s" });
    }
}

/// Writes a row as one line a column, under a line with the number of the record.
pub fn expanded(number: u64, names: &[&str], values: &[&str], out: &mut String) {
    let names: Vec<Cell> = names.iter().map(|n| cell(n)).collect();
    let values: Vec<Cell> = values.iter().map(|v| cell(v)).collect();
    let name_width = names.iter().map(cell_width).max().unwrap_or(0);
    let value_width = values.iter().map(cell_width).max().unwrap_or(0);
    let title = format!("-[ RECORD {number} ]");
    let rule = format!(
        "{}+{}",
        "-".repeat(name_width + 1),
        "-".repeat(value_width + 1)
    );
    let behind = rule.get(title.len()..).unwrap_or("");
    let _ = writeln!(out, "{title}{behind}");
    for (name, value) in names.iter().zip(&values) {
        for at in 0..name.len().max(value.len()) {
            let part = |cell: &Cell| cell.get(at).cloned().unwrap_or_default();
            let ((name_line, own), (line, own_value)) = (part(name), part(value));
            let blanks = " ".repeat(name_width - own);
            let name_more = if at + 1 < name.len() { '+' } else { ' ' };
            let _ = write!(out, "{name_line}{blanks}{name_more}| {line}");
            if at + 1 < value.len() {
                let _ = write!(out, "{}+", " ".repeat(value_width - own_value));
            }
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests;
