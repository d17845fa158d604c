//! `log append`.

use super::show::image;
use super::{LogPlace, OpenLogs};
use crate::directory::open_named;
use crate::escape::{escape, unescape};
use crate::failure::{Failure, Outcome};
use crate::log_args::Append;
use crate::output::print;
use crate::store::{Access, argument};
use basalt::ErrorKind;
use basalt_log::{Log, LogBatch, LogOptions, MAX_BATCH_BYTES, WriteOptions};
use serde_json::json;
use std::io::{BufRead, Read};
use std::path::Path;

/// Bytes of lines that are appended as one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Room that a batch needs beside its only record.
const HEADS: usize = 256;

/// Runs `basalt log append`.
pub fn append(place: LogPlace, args: &Append) -> Outcome {
    place.refuse_stream(&args.log)?;
    // The record is read before the store is opened: nothing is made for a missing file.
    let record = match (&args.data, &args.file) {
        (Some(data), _) if data != "-" => Some(argument(data, args.escaped)?),
        (_, Some(file)) => {
            let opened = open_named(file).map_err(|e| Failure::os("open", file, e))?;
            Some(read_record(opened, file)?)
        }
        _ => None,
    };
    let engine = place.open(Access::Write(args.make()))?;
    let log = match engine.log(&args.log) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let made = engine.create(&args.log, LogOptions::default());
            let made = made.map_err(|e| place.failure(e))?;
            eprintln!(
                "basalt: made the log {} in {}",
                escape(args.log.as_bytes()),
                place.store
            );
            made
        }
        found => found.map_err(|e| place.failure(e))?,
    };
    let mut appender = Appender {
        place: &place,
        first: args.lsn.unwrap_or_else(|| next_lsn(&log)),
        engine,
        log,
        batch: LogBatch::new(),
        written: 0,
    };
    let added = match &record {
        Some(record) => appender.add(record),
        None => appender.add_lines(args.escaped),
    };
    let written = added.and_then(|()| appender.write(&WriteOptions::SYNC));
    let (first, n) = match (written, &record) {
        (Ok(()), _) => appender.finish()?,
        (Err(e), Some(_)) => return Err(e),
        (Err(e), None) => return Err(appender.report_partial_append(&e)),
    };
    let last = first + n.saturating_sub(1);
    print(&match (args.json, n) {
        (true, _) => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(&place), "log": args.log,
                "records": n, "first": (n > 0).then_some(first), "last": (n > 0).then_some(last),
            })
        ),
        (false, 0) => {
            eprintln!("basalt: standard input has no lines; nothing was appended");
            String::new()
        }
        (false, 1) => format!("{first}\n"),
        (false, _) => format!("{first} to {last}\n"),
    })?;
    Ok(0)
}

/// Returns the LSN behind all records, trimmed ones included.
fn next_lsn(log: &Log) -> u64 {
    let last = log.last().max(log.trimmed());
    last.map_or(1, |last| last.saturating_add(1))
}

fn read_record(from: impl Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut record = Vec::new();
    from.take(MAX_BATCH_BYTES as u64 + 1)
        .read_to_end(&mut record)
        .map_err(|e| Failure::os("read", name, e))?;
    Ok(record)
}

/// Reads a line without its end. Returns false at the end of the input.
fn read_line(stdin: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, Failure> {
    line.clear();
    let name = Path::new("standard input");
    let mut limited = stdin.take(MAX_BATCH_BYTES as u64 + 1);
    let read = limited.read_until(b'\n', line);
    read.map_err(|e| Failure::os("read", name, e))?;
    let ended = line.is_empty();
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    Ok(!ended)
}

/// Appends records in batches.
struct Appender<'a> {
    place: &'a LogPlace,
    engine: OpenLogs,
    log: Log,
    /// LSN of the first record.
    first: u64,
    /// Records that are not written yet.
    batch: LogBatch,
    /// Number of records that were written, durable or not.
    written: u64,
}

impl Appender<'_> {
    /// Adds each line of standard input as a record.
    fn add_lines(&mut self, escaped: bool) -> Result<(), Failure> {
        let mut stdin = std::io::stdin().lock();
        let mut line = Vec::new();
        while read_line(&mut stdin, &mut line)? {
            let number = self.added() + 1;
            let of_line =
                |what: &str| Failure::new(format!("line {number} of standard input: {what}"));
            let record = match escaped {
                true => unescape(&line).map_err(|what| of_line(&what))?,
                false => std::mem::take(&mut line),
            };
            self.make_room(record.len())?;
            self.add(&record).map_err(|e| of_line(e.sentence()))?;
        }
        Ok(())
    }

    /// Returns the number of records that were added.
    fn added(&self) -> u64 {
        self.written + self.batch.len() as u64
    }

    /// Writes the records so far if the next one does not fit into their batch.
    fn make_room(&mut self, bytes: usize) -> Result<(), Failure> {
        match self.batch.bytes() + bytes + HEADS > BATCH_BYTES {
            true => self.write(&WriteOptions::UNSYNCED),
            false => Ok(()),
        }
    }

    fn add(&mut self, record: &[u8]) -> Result<(), Failure> {
        let lsn = self.first.checked_add(self.added());
        let lsn = lsn.ok_or_else(|| Failure::new("there is no LSN left for the record"))?;
        let added = self.batch.append(&self.log, lsn, record);
        added.map_err(|e| self.failure(e))
    }

    fn write(&mut self, options: &WriteOptions) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        let in_batch = batch.len() as u64;
        self.engine
            .write(batch, options)
            .map_err(|e| self.failure(e))?;
        self.written += in_batch;
        Ok(())
    }

    fn failure(&self, e: basalt::Error) -> Failure {
        match e.kind() {
            ErrorKind::AlreadyExists | ErrorKind::InvalidArgument => {
                let text = e.to_string();
                let (_, what) = text.split_once(": ").unwrap_or(("", &text));
                let log = escape(self.log.name().as_bytes());
                Failure::new(format!(
                    "{what}; `basalt log stat {} {log}` shows which LSNs are used",
                    self.place.argument
                ))
            }
            _ => self.place.failure(e),
        }
    }

    /// Closes the store after a failure. Returns the failure, which names the lines that are
    /// durable, so that the user can go on with the next one.
    fn report_partial_append(mut self, e: &Failure) -> Failure {
        let pending = match self.batch.len() {
            0 => Ok(()),
            _ => self.write(&WriteOptions::SYNC),
        };
        let closed = self.engine.close().map_err(|e| self.place.failure(e));
        let before = match self.written {
            0 => "no line".to_string(),
            1 => format!("line 1, LSN {},", self.first),
            n => {
                let last = self.first + n - 1;
                format!("lines 1 to {n}, LSNs {} to {last},", self.first)
            }
        };
        Failure::new(match pending.and(closed) {
            Ok(()) if self.written == 0 => format!("{}; nothing was appended", e.sentence()),
            Ok(()) => format!("{}; only {before} went in, durably", e.sentence()),
            Err(close) => format!(
                "{}; {before} went in, and it is not known what survives a power cut ({})",
                e.sentence(),
                close.sentence()
            ),
        })
    }

    /// Closes the store. Returns the first LSN and the number of records.
    fn finish(self) -> Result<(u64, u64), Failure> {
        self.engine.close().map_err(|e| self.place.failure(e))?;
        Ok((self.first, self.written))
    }
}
