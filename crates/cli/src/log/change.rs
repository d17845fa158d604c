//! `log append` and `log trim`.

use super::LogPlace;
use super::show::image;
use crate::directory::open_named;
use crate::escape::{escape, unescape};
use crate::failure::{EXIT_FAILED, Failure, Outcome};
use crate::log_args::{Append, Trim};
use crate::output::print;
use crate::progress::{count, human_bytes};
use crate::store::{Access, argument};
use basalt::ErrorKind;
use basalt_log::{Log, LogBatch, LogEngine, LogOptions, MAX_BATCH_BYTES, WriteOptions};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;

/// Bytes of lines that are appended as one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Room that a batch needs beside its only record.
const HEADS: usize = 256;

/// Refuses a log whose records only the server writes.
fn check_is_no_servers(log: &str) -> Result<(), Failure> {
    match log.starts_with("redis.") {
        false => Ok(()),
        true => Err(Failure::new(format!(
            "the log {} holds a stream of Redis clients in the server's encoding; \
             change the stream by XADD, XTRIM and XDEL",
            escape(log.as_bytes())
        ))),
    }
}

/// Runs `basalt log append`.
pub fn append(args: &Append) -> Outcome {
    check_is_no_servers(&args.log)?;
    let place = LogPlace::making(&args.path, args.make())?;
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
        appended: 0,
    };
    match record {
        Some(record) => appender.add(&record)?,
        None => {
            let mut stdin = std::io::stdin().lock();
            let mut line = Vec::new();
            while read_line(&mut stdin, &mut line)? {
                let number = appender.appended + 1;
                let record = match args.escaped {
                    true => unescape(&line).map_err(|e| {
                        Failure::new(format!("line {number} of standard input: {e}"))
                    })?,
                    false => std::mem::take(&mut line),
                };
                appender.add(&record)?;
            }
        }
    }
    let (first, n) = appender.finish()?;
    let last = first + n.saturating_sub(1);
    print(&match (args.json, n) {
        (true, _) => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(&place), "log": args.log,
                "records": n, "first": (n > 0).then_some(first), "last": (n > 0).then_some(last),
            })
        ),
        (false, 0) => String::new(),
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
    engine: LogEngine,
    log: Log,
    first: u64,
    batch: LogBatch,
    appended: u64,
}

impl Appender<'_> {
    fn add(&mut self, record: &[u8]) -> Result<(), Failure> {
        if self.batch.bytes() + record.len() + HEADS > BATCH_BYTES {
            self.write(&WriteOptions::UNSYNCED)?;
        }
        let lsn = self.first.checked_add(self.appended);
        let lsn = lsn.ok_or_else(|| Failure::new("there is no LSN left for the record"))?;
        let added = self.batch.append(&self.log, lsn, record);
        added.map_err(|e| self.failure(e))?;
        self.appended += 1;
        Ok(())
    }

    fn write(&mut self, options: &WriteOptions) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        let in_batch = batch.len() as u64;
        let written = self.engine.write(batch, options);
        written.map_err(|e| {
            self.appended -= in_batch;
            self.failure(e)
        })
    }

    /// Makes the failure of an append, which says what was appended before.
    fn failure(&self, e: basalt::Error) -> Failure {
        let before = match self.appended {
            0 => String::new(),
            n => format!(
                "; {} before it were appended",
                count(n, "record", "records")
            ),
        };
        match e.kind() {
            ErrorKind::AlreadyExists | ErrorKind::InvalidArgument => {
                let text = e.to_string();
                let (_, what) = text.split_once(": ").unwrap_or(("", &text));
                let log = escape(self.log.name().as_bytes());
                Failure::new(format!(
                    "{what}; `basalt log stat {} {log}` shows which LSNs are used{before}",
                    self.place.argument
                ))
            }
            _ => self.place.failure(e),
        }
    }

    /// Makes all records durable. Returns the first LSN and the number of records.
    fn finish(mut self) -> Result<(u64, u64), Failure> {
        self.write(&WriteOptions::SYNC)?;
        self.engine.close().map_err(|e| self.place.failure(e))?;
        Ok((self.first, self.appended))
    }
}

/// Runs `basalt log trim`.
pub fn trim(args: &Trim) -> Outcome {
    check_is_no_servers(&args.log)?;
    let place = LogPlace::new(&args.path);
    let name = escape(args.log.as_bytes());
    let engine = place.open(Access::Remove)?;
    let log = place.log(&engine, &args.log)?;
    let up_to = args.up_to;
    let ends = (log.first().zip(log.last())).filter(|(first, _)| *first <= up_to);
    let records = ends.map_or(0, |(first, last)| {
        let range = first..=last.min(up_to);
        let missing = log.gaps(range.clone()).into_iter();
        let missing: u64 = missing.map(|gap| gap.end() - gap.start() + 1).sum();
        range.end() - range.start() + 1 - missing
    });
    let what = match ends {
        None => {
            format!("{name} has no record up to LSN {up_to}; later appends up to it are refused")
        }
        Some((first, last)) => format!(
            "{} of {} of {name} go for good, LSNs {first} to {}",
            count(records, "record", "records"),
            log.count(),
            last.min(up_to)
        ),
    };
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::new(format!(
                "trim removes records: {what}; run it with --yes"
            )));
        }
        eprint!("{what}. Go on? [y/N] ");
        let mut answer = String::new();
        (std::io::stdin().lock().read_line(&mut answer))
            .map_err(|e| Failure::new(format!("cannot read the answer: {e}; run it with --yes")))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::Message("nothing was changed".into(), EXIT_FAILED));
        }
    }
    let before = log.bytes();
    log.trim(up_to, &WriteOptions::SYNC)
        .map_err(|e| place.failure(e))?;
    let freed = before.saturating_sub(log.bytes());
    let kept = log.count();
    drop(log);
    engine.close().map_err(|e| place.failure(e))?;
    print(&match args.json {
        true => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(&place), "log": args.log,
                "up_to": up_to, "trimmed_records": records, "trimmed_bytes": freed, "records": kept,
            })
        ),
        false => format!(
            "{} trimmed, {}; {kept} left\n",
            count(records, "record", "records"),
            human_bytes(freed)
        ),
    })?;
    Ok(0)
}
