//! `sql binlog`: prints the records of the binlog of a closed database.

use super::database::{self, failure};
use super::json;
use super::time::format_ms;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::sql_args::{BinlogShow, BinlogTail, SqlLocation};
use basalt_sql::{BinlogKind, BinlogReader, BinlogRecord, RowChange, RowOperation, SqlType, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum wait for a record. After it, the command checks whether its output is still read.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes of text after which the text is printed.
const BUFFER_BYTES: usize = 64 << 10;

/// Opens the binlog of a closed database.
fn open(location: &SqlLocation) -> Result<BinlogReader, Failure> {
    let store = location.store();
    let (env, dir) = database::place(&store, None)?;
    BinlogReader::open(&env, dir).map_err(|e| failure(&store, &e))
}

/// Runs `basalt sql binlog tail`.
pub fn tail(args: &BinlogTail) -> Outcome {
    let store = args.place.store();
    let failed = |e| failure(&store, &e);
    let mut reader = open(&args.place)?;
    if let Some(from) = args.from {
        reader.seek(from).map_err(failed)?;
    }
    let mut rest = args.limit.unwrap_or(u64::MAX);
    let mut text = String::new();
    while rest > 0 {
        // Lines are printed before the command waits for more of them.
        let next = reader.next(Duration::ZERO).map_err(failed);
        let record = match next {
            Err(e) => {
                print(&text)?;
                return Err(e);
            }
            Ok(record) => record,
        };
        let record = match record {
            Some(record) => record,
            None => {
                print(&text)?;
                text.clear();
                if !args.follow {
                    break;
                }
                if is_reader_gone() {
                    return Err(Failure::ReaderGone);
                }
                match reader.next(PAUSE).map_err(failed)? {
                    Some(record) => record,
                    None => continue,
                }
            }
        };
        rest -= 1;
        match args.json {
            true => record_json(&record, &mut text),
            false => record_text(&record, &mut text),
        }
        if text.len() >= BUFFER_BYTES {
            print(&text)?;
            text.clear();
        }
    }
    print(&text)?;
    Ok(0)
}

/// Returns true if no process reads standard output any more.
fn is_reader_gone() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let gone = PollFlags::ERR | PollFlags::NVAL;
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone)
}

fn op_name(op: RowOperation) -> &'static str {
    match op {
        RowOperation::Insert => "insert",
        RowOperation::Update => "update",
        RowOperation::Delete => "delete",
    }
}

/// Appends the values of columns as an object.
fn image(columns: &[(String, SqlType)], values: &[Value], out: &mut String) {
    let fields = columns.iter().zip(values);
    let fields = fields.map(|((name, ty), value)| (name.as_str(), value.as_ref(), *ty));
    json::object(fields, out);
}

/// Appends the values of the primary key as an object.
fn key(change: &RowChange, out: &mut String) {
    let fields = change.key.iter().map(|(name, value)| {
        let column = change.columns.iter().find(|(column, _)| column == name);
        let ty = column.map_or(SqlType::BigInt, |(_, ty)| *ty);
        (name.as_str(), value.as_ref(), ty)
    });
    json::object(fields, out);
}

/// Appends a record as one line of JSON.
fn record_json(record: &BinlogRecord, out: &mut String) {
    let time = format_ms(record.commit_ms);
    let _ = write!(out, "{{\"tsn\":{},\"commit_time\":\"{time}\",", record.tsn);
    match &record.kind {
        BinlogKind::Transaction(changes) => {
            out.push_str("\"changes\":[");
            for (i, change) in changes.iter().enumerate() {
                out.push_str(if i > 0 { ",{\"table\":" } else { "{\"table\":" });
                json::string(&change.table, out);
                let _ = write!(out, ",\"op\":\"{}\",\"key\":", op_name(change.operation));
                key(change, out);
                for (name, values) in [("before", &change.before), ("after", &change.after)] {
                    let _ = write!(out, ",\"{name}\":");
                    match values {
                        Some(values) => image(&change.columns, values, out),
                        None => out.push_str("null"),
                    }
                }
                out.push('}');
            }
            out.push(']');
        }
        BinlogKind::Ddl { statement } => {
            out.push_str("\"ddl\":");
            json::string(statement, out);
        }
        BinlogKind::Sequence { sequence, next } => {
            out.push_str("\"sequence\":{\"name\":");
            json::string(sequence.as_deref().unwrap_or_default(), out);
            match next {
                Some(next) => _ = write!(out, ",\"next\":{next}}}"),
                None => out.push_str(",\"next\":null}"),
            }
        }
        BinlogKind::Backfill { table, entries } => {
            out.push_str("\"backfill\":{\"table\":");
            json::string(table.as_deref().unwrap_or_default(), out);
            let _ = write!(out, ",\"entries\":{entries}}}");
        }
    }
    out.push_str("}\n");
}

/// Appends a record as text, one line for each change.
fn record_text(record: &BinlogRecord, out: &mut String) {
    let head = format!("{} {}", record.tsn, format_ms(record.commit_ms));
    let line = |out: &mut String, rest: &str| {
        let rest: String = rest
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let _ = writeln!(out, "{head} {rest}");
    };
    match &record.kind {
        BinlogKind::Transaction(changes) => {
            for change in changes {
                let mut text = format!("{} {}", op_name(change.operation), change.table);
                for (sign, values) in [('-', &change.before), ('+', &change.after)] {
                    let Some(values) = values else { continue };
                    let _ = write!(text, " {sign}(");
                    for (i, ((name, ty), value)) in change.columns.iter().zip(values).enumerate() {
                        let comma = if i > 0 { ", " } else { "" };
                        let value = json::text(value.as_ref(), *ty);
                        let value = value.as_deref().unwrap_or("NULL");
                        let _ = write!(text, "{comma}{name}={value}");
                    }
                    text.push(')');
                }
                line(out, &text);
            }
        }
        BinlogKind::Ddl { statement } => line(out, &format!("ddl {statement}")),
        BinlogKind::Sequence { sequence, next } => {
            let name = sequence.as_deref().unwrap_or("(dropped)");
            let next = next.map_or("no further value".to_owned(), |n| format!("next value {n}"));
            line(out, &format!("sequence {name}: {next}"));
        }
        BinlogKind::Backfill { table, entries } => {
            let name = table.as_deref().unwrap_or("(dropped)");
            line(out, &format!("index of {name}, {entries} entries"));
        }
    }
}

/// Runs `basalt sql binlog show`.
pub fn show(args: &BinlogShow) -> Outcome {
    let store = args.place.store();
    let mut reader = open(&args.place)?;
    let (mut first, mut last) = (None, None);
    let (mut records, mut changes) = (0u64, 0u64);
    while let Some(record) = reader
        .next(Duration::ZERO)
        .map_err(|e| failure(&store, &e))?
    {
        let at = (record.tsn, record.commit_ms);
        first.get_or_insert(at);
        last = Some(at);
        records += 1;
        if let BinlogKind::Transaction(all) = &record.kind {
            changes += all.len() as u64;
        }
    }
    let ends = first.zip(last);
    print(&match (args.json, ends) {
        (true, _) => {
            let end = |(tsn, ms): (u64, u64)| serde_json::json!({"tsn": tsn, "commit_time": format_ms(ms)});
            let report = serde_json::json!({
                "dir": store.directory(), "records": records, "changes": changes,
                "first": first.map(end), "last": last.map(end),
            });
            format!("{report:#}\n")
        }
        (false, None) => format!("the binlog of {store} has no records\n"),
        (false, Some((first, last))) => crate::output::rows(&[
            ("records", records.to_string()),
            ("changes of rows", changes.to_string()),
            ("first", format!("{} {}", first.0, format_ms(first.1))),
            ("last", format!("{} {}", last.0, format_ms(last.1))),
        ]),
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests;
