//! `log append`.

use super::remove::lsns as lsns_text;
use super::show::image;
use super::{LogPlace, OpenLogs};
use crate::directory::open_named;
use crate::escape::{escape, for_shell, unescape};
use crate::failure::{Failure, Outcome};
use crate::log_args::Append;
use crate::output::{note, print_done};
use crate::progress::count;
use crate::store::{Access, argument};
use basalt::ErrorKind;
use basalt_log::{Log, LogBatch, LogOptions, MAX_BATCH_BYTES, MAX_LSN, WriteOptions};
use serde_json::json;
use std::fmt::Display;
use std::io::{BufRead, Read};
use std::ops::RangeInclusive;
use std::path::Path;

/// Bytes of lines that are appended as one batch.
const BATCH_BYTES: usize = 1 << 20;
/// The longest escape of a byte, in bytes.
const ESCAPED_BYTES: usize = 4;
/// The longest LSN and the tab behind it, in bytes.
const LSN_BYTES: usize = 21;
/// Most bytes of a batch beyond its only record.
const BATCH_OVERHEAD: usize = 256;
/// Most bytes of a record, so that a batch has room for it.
const MAX_RECORD_BYTES: usize = MAX_BATCH_BYTES - BATCH_OVERHEAD;

/// Runs `basalt log append`.
pub fn append(place: LogPlace, args: &Append) -> Outcome {
    place.refuse_stream(&args.log)?;
    // The record is read before the store is opened: nothing is made for a missing file.
    let record = match (&args.data, &args.file) {
        (Some(data), _) if data != "-" => Some(argument(data, args.escaped)?),
        (_, Some(file)) => {
            let opened = open_named(file).map_err(|e| Failure::os("open", file, e))?;
            // A device or a pipe has no length.
            let len = rustix::fs::fstat(&opened).map_or(0, |s| s.st_size);
            if usize::try_from(len).is_ok_and(|len| len > MAX_RECORD_BYTES) {
                return Err(too_long(file.display()));
            }
            Some(read_record(opened, file)?)
        }
        _ => None,
    };
    let logs = place.open(Access::Write(args.make()))?;
    let (log, is_new) = match logs.log(&args.log) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            (logs.create(&args.log, LogOptions::default()), true)
        }
        found => (found, false),
    };
    let log = log.map_err(|e| {
        let others = !logs.list().is_empty();
        place.append_failure(others.then_some("LOG"), e)
    })?;
    let mut appender = Appender {
        place: &place,
        next: args.lsn.or_else(|| next_lsn(&log)),
        end: log.last().max(log.trimmed()),
        logs,
        log,
        is_new,
        batch: LogBatch::new(),
        pending: Span::default(),
        written: Span::default(),
        line: 0,
    };
    let added = match (&record, args.with_lsns) {
        (Some(record), _) => appender.add_next(record),
        (None, true) => appender.add_dumped_lines(),
        (None, false) => appender.add_lines(args.escaped),
    };
    let written = added.and_then(|()| appender.write(&WriteOptions::SYNC));
    let span = match (written, &record) {
        (Ok(()), _) => appender.finish()?,
        (Err(e), Some(_)) => {
            appender.remove_new_log();
            return Err(e);
        }
        (Err(e), None) => return Err(appender.report_partial_append(&e)),
    };
    if span.records == 0 && !args.json {
        note(format_args!(
            "basalt: standard input has no lines; nothing was appended"
        ));
    }
    let text = match (args.json, &span.lsns) {
        (true, lsns) => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(&place), "log": args.log,
                "records": span.records, "first": lsns.as_ref().map(|lsns| lsns.start()),
                "last": lsns.as_ref().map(|lsns| lsns.end()),
            })
        ),
        (false, None) => String::new(),
        (false, Some(lsns)) if args.with_lsns => format!(
            "{}, {}\n",
            count(span.records, "record", "records"),
            lsns_text(lsns)
        ),
        (false, Some(lsns)) if span.records == 1 => format!("{}\n", lsns.start()),
        (false, Some(lsns)) => format!("{} to {}\n", lsns.start(), lsns.end()),
    };
    let done = match span.records {
        0 => "nothing was appended",
        _ => "the records were appended",
    };
    print_done(&text, done)?;
    Ok(0)
}

/// Returns the LSN behind all records, trimmed ones included, or `None` behind the largest LSN.
fn next_lsn(log: &Log) -> Option<u64> {
    lsn_behind(log.last().max(log.trimmed()).unwrap_or(0))
}

fn lsn_behind(lsn: u64) -> Option<u64> {
    (lsn < MAX_LSN).then(|| lsn + 1)
}

fn read_record(from: impl Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut record = Vec::new();
    from.take(MAX_RECORD_BYTES as u64 + 1)
        .read_to_end(&mut record)
        .map_err(|e| Failure::os("read", name, e))?;
    match record.len() > MAX_RECORD_BYTES {
        true => Err(too_long(name.display())),
        false => Ok(record),
    }
}

/// Makes the failure of a record beyond the limit.
fn too_long(what: impl Display) -> Failure {
    Failure::new(format!(
        "{what} has more than {MAX_RECORD_BYTES} bytes, the most that a record may have"
    ))
}

/// Reads a line of at most `most` bytes without its end. Returns false at the end of the input.
fn read_line(stdin: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> Result<bool, Failure> {
    line.clear();
    let name = Path::new("standard input");
    let mut limited = stdin.take(most as u64 + 1);
    let read = limited.read_until(b'\n', line);
    read.map_err(|e| Failure::os("read", name, e))?;
    let ended = line.is_empty();
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    match line.len() > most {
        true => Err(Failure::new(format!("the line has more than {most} bytes"))),
        false => Ok(!ended),
    }
}

/// Splits a line of `basalt log dump` into its LSN and its record, still escaped.
fn split_dumped(line: &[u8]) -> Option<(u64, &[u8])> {
    let tab = line.iter().position(|b| *b == b'\t')?;
    let lsn = std::str::from_utf8(&line[..tab]).ok()?.parse().ok()?;
    Some((lsn, &line[tab + 1..]))
}

/// A number of records, and the range of their LSNs.
#[derive(Clone, Default)]
struct Span {
    records: u64,
    lsns: Option<RangeInclusive<u64>>,
}

impl Span {
    fn add(&mut self, other: Span) {
        self.records += other.records;
        self.lsns = match (self.lsns.take(), other.lsns) {
            (Some(a), Some(b)) => Some(*a.start().min(b.start())..=*a.end().max(b.end())),
            (a, b) => a.or(b),
        };
    }

    fn add_lsn(&mut self, lsn: u64) {
        self.add(Span {
            records: 1,
            lsns: Some(lsn..=lsn),
        });
    }
}

/// Appends records in batches.
struct Appender<'a> {
    place: &'a LogPlace,
    logs: OpenLogs,
    log: Log,
    /// True if the command made the log.
    is_new: bool,
    /// LSN of the next record that has none of its own; `None` behind the largest LSN.
    next: Option<u64>,
    /// The largest LSN, at the start, that the log had or that was trimmed.
    end: Option<u64>,
    /// Records that are not written yet.
    batch: LogBatch,
    /// The records of `batch`.
    pending: Span,
    /// Records that were written, durable or not.
    written: Span,
    /// Number of the last line that was read, from 1.
    line: u64,
}

impl Appender<'_> {
    /// Adds each line of standard input as a record.
    fn add_lines(&mut self, escaped: bool) -> Result<(), Failure> {
        let most = match escaped {
            true => ESCAPED_BYTES * MAX_RECORD_BYTES,
            false => MAX_RECORD_BYTES,
        };
        self.for_each_line(most, |appender, line| {
            let record = match escaped {
                true => unescape(line).map_err(Failure::new)?,
                false => std::mem::take(line),
            };
            let lsn = appender.take_next()?;
            appender.add_line(lsn, &record)
        })
    }

    /// Adds each line of standard input, which `basalt log dump` printed, as a record.
    fn add_dumped_lines(&mut self) -> Result<(), Failure> {
        let most = ESCAPED_BYTES * MAX_BATCH_BYTES + LSN_BYTES;
        self.for_each_line(most, |appender, line| {
            let (lsn, record) = split_dumped(line).ok_or_else(|| {
                Failure::new("expected an LSN, a tab and a record, as printed by `basalt log dump`")
            })?;
            let record = unescape(record).map_err(Failure::new)?;
            appender.add_line(lsn, &record)
        })
    }

    /// Calls `add` with each line of standard input. A failure gets the number of the line.
    fn for_each_line(
        &mut self,
        most: usize,
        mut add: impl FnMut(&mut Self, &mut Vec<u8>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut stdin = std::io::stdin().lock();
        let mut line = Vec::new();
        for number in 1_u64.. {
            let of_line = |e: Failure| {
                Failure::new(format!("line {number} of standard input: {}", e.sentence()))
            };
            if !read_line(&mut stdin, &mut line, most).map_err(of_line)? {
                break;
            }
            self.line = number;
            add(self, &mut line).map_err(of_line)?;
        }
        Ok(())
    }

    /// Adds the record of a line. The records of earlier lines are written first if the batch is
    /// full, or if the engine may refuse this record, so that a failure is caused by this line
    /// alone.
    fn add_line(&mut self, lsn: u64, record: &[u8]) -> Result<(), Failure> {
        let full = self.batch.bytes() + record.len() + BATCH_OVERHEAD > BATCH_BYTES;
        let last = self.pending.lsns.as_ref().map(|lsns| *lsns.end());
        let is_used = |end: Option<u64>| end.is_some_and(|end| lsn <= end);
        let may_conflict = is_used(self.end) || is_used(last) || is_used(self.last_written());
        if full || may_conflict {
            self.write(&WriteOptions::UNSYNCED)?;
        }
        self.add(lsn, record)?;
        match may_conflict {
            true => self.write(&WriteOptions::UNSYNCED),
            false => Ok(()),
        }
    }

    fn last_written(&self) -> Option<u64> {
        self.written.lsns.as_ref().map(|lsns| *lsns.end())
    }

    /// Adds a record with the next LSN.
    fn add_next(&mut self, record: &[u8]) -> Result<(), Failure> {
        let lsn = self.take_next()?;
        self.add(lsn, record)
    }

    fn take_next(&mut self) -> Result<u64, Failure> {
        let lsn = self.next.ok_or_else(|| {
            Failure::new(format!(
                "the log {} is full: its last LSN is {MAX_LSN}, the largest; append to another log",
                escape(self.log.name().as_bytes())
            ))
        })?;
        self.next = lsn_behind(lsn);
        Ok(lsn)
    }

    fn add(&mut self, lsn: u64, record: &[u8]) -> Result<(), Failure> {
        let added = self.batch.append(&self.log, lsn, record);
        added.map_err(|e| match record.len() > MAX_RECORD_BYTES {
            true => too_long("the record"),
            false => self.failure(e),
        })?;
        self.pending.add_lsn(lsn);
        Ok(())
    }

    fn write(&mut self, options: &WriteOptions) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        let pending = std::mem::take(&mut self.pending);
        self.logs
            .write(batch, options)
            .map_err(|e| self.failure(e))?;
        self.written.add(pending);
        Ok(())
    }

    fn failure(&self, e: basalt::Error) -> Failure {
        match e.kind() {
            ErrorKind::AlreadyExists | ErrorKind::InvalidArgument => {
                let text = e.to_string();
                let (_, what) = text.split_once(": ").unwrap_or(("", &text));
                let log = for_shell(self.log.name().as_bytes());
                Failure::new(format!(
                    "{what}; `basalt log stat {} {log}` shows which LSNs are used",
                    self.place.in_shell()
                ))
            }
            _ if !self.is_new => {
                let log = for_shell(self.log.name().as_bytes());
                self.place.append_failure(Some(&log), e)
            }
            _ => {
                let others = self.logs.list().len() > 1;
                self.place.append_failure(others.then_some("LOG"), e)
            }
        }
    }

    /// Closes the store after a failure. Returns the failure, which names the lines that are
    /// durable, so that the user can go on with the next one.
    fn report_partial_append(mut self, e: &Failure) -> Failure {
        let pending = match self.batch.len() {
            0 => Ok(()),
            _ => self.write(&WriteOptions::SYNC),
        };
        if self.written.records == 0 {
            self.remove_new_log();
        }
        let closed = self.logs.close().map_err(|e| self.place.failure(e));
        let before = match (&self.written.lsns, self.written.records) {
            (None, _) => String::new(),
            (Some(lsns), 1) => format!("line 1 ({})", lsns_text(lsns)),
            (Some(lsns), n) => format!("lines 1 to {n} ({})", lsns_text(lsns)),
        };
        // If a batch fails, none of its lines is appended.
        let next = self.written.records + 1;
        let go_on = match next < self.line {
            true => format!(
                "; lines {next} to {} were not appended; continue with line {next}",
                self.line
            ),
            false => String::new(),
        };
        Failure::new(match (pending.and(closed), self.written.records) {
            (Ok(()), 0) => format!("{}; nothing was appended", e.sentence()),
            (Ok(()), _) => format!("{}; appended and durable: {before}{go_on}", e.sentence()),
            (Err(close), 0) => format!(
                "{}; no record is known to be appended, because the last write or the close failed ({})",
                e.sentence(),
                close.sentence()
            ),
            (Err(close), _) => format!(
                "{}; appended: {before}; a power cut may remove these records, because the last write or the close failed ({})",
                e.sentence(),
                close.sentence()
            ),
        })
    }

    /// Removes the log if this command made it and appended no record.
    fn remove_new_log(&self) {
        if self.is_new {
            // The append has failed already, and its error says why. An empty log does no harm.
            let _ = self.logs.delete(&self.log.name());
        }
    }

    /// Closes the store. Returns the records that were appended.
    fn finish(self) -> Result<Span, Failure> {
        if self.is_new {
            note(format_args!(
                "basalt: made the log {} in {}",
                escape(self.log.name().as_bytes()),
                self.place.store
            ));
        }
        self.logs.close().map_err(|e| self.place.failure(e))?;
        Ok(self.written)
    }
}
