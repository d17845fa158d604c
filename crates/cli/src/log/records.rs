//! The forms in which records are printed.

use crate::escape::escape_into;
use crate::failure::Failure;
use crate::log_args::RecordFormat;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{BufWriter, StdoutLock, Write};

/// Prints records to standard output.
pub struct RecordPrinter {
    out: BufWriter<StdoutLock<'static>>,
    format: RecordFormat,
    line: String,
}

impl RecordPrinter {
    pub fn new(format: RecordFormat) -> RecordPrinter {
        RecordPrinter {
            out: BufWriter::with_capacity(64 << 10, std::io::stdout().lock()),
            format,
            line: String::new(),
        }
    }

    /// Prints a record.
    pub fn print(&mut self, lsn: u64, data: &[u8]) -> Result<(), Failure> {
        let written = match self.format {
            RecordFormat::Raw => self.out.write_all(data),
            format => {
                self.line.clear();
                render(format, lsn, data, &mut self.line);
                self.out.write_all(self.line.as_bytes())
            }
        };
        written.map_err(|e| Failure::output("standard output", e))
    }

    /// Writes out what was printed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.out.flush();
        flushed.map_err(|e| Failure::output("standard output", e))
    }
}

/// Appends the line of a record.
fn render(format: RecordFormat, lsn: u64, data: &[u8], line: &mut String) {
    match format {
        RecordFormat::Json => {
            let (name, text) = match std::str::from_utf8(data) {
                Ok(text) => ("data", text.to_string()),
                Err(_) => ("data_b64", STANDARD.encode(data)),
            };
            let _ = write!(line, "{{\"lsn\":{lsn},\"{name}\":{}}}", json!(text));
        }
        RecordFormat::Hex => {
            let _ = write!(line, "{lsn}\t");
            for byte in data {
                let _ = write!(line, "{byte:02x}");
            }
        }
        RecordFormat::Text | RecordFormat::Raw => {
            let _ = write!(line, "{lsn}\t");
            escape_into(data, line);
        }
    }
    line.push('\n');
}
