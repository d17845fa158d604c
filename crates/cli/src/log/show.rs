//! `log ls`, `log stat` and `log dump`.

use super::LogPlace;
use super::records::RecordPrinter;
use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::log_args::Dump;
use crate::output::{print, table};
use crate::progress::{count, human_bytes};
use crate::store::Access;
use basalt_log::{Duplicates, Log};
use serde_json::{Value, json};
use std::fmt::Write;

/// Returns an LSN, or a dash for none.
fn lsn(n: Option<u64>) -> String {
    n.map_or("-".to_string(), |n| n.to_string())
}

fn json_of(log: &Log) -> Value {
    json!({
        "name": &*log.name(), "records": log.count(), "bytes": log.bytes(), "first": log.first(),
        "last": log.last(), "trimmed": log.trimmed(), "duplicates": duplicates(log),
    })
}

fn duplicates(log: &Log) -> &'static str {
    match log.options().duplicates {
        Duplicates::Replace => "replace",
        _ => "refuse",
    }
}

/// Runs `basalt log ls`.
pub fn list(place: &LogPlace, as_json: bool) -> Outcome {
    let engine = place.open(Access::Read)?;
    let mut logs = Vec::new();
    for name in engine.list() {
        logs.push(place.log(&engine, &name)?);
    }
    let text = if as_json {
        let all: Vec<Value> = logs.iter().map(json_of).collect();
        format!(
            "{:#}\n",
            json!({"dir": place.store.directory(), "image": image(place), "logs": all})
        )
    } else {
        let head = ["log", "records", "first", "last", "bytes"].map(String::from);
        let rows = logs.iter().map(|log| {
            let name = escape(log.name().as_bytes());
            let (first, last) = (lsn(log.first()), lsn(log.last()));
            [
                name,
                log.count().to_string(),
                first,
                last,
                human_bytes(log.bytes()),
            ]
        });
        let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
        match logs.is_empty() {
            true => format!("{} has no logs\n", place.store),
            false => table(&rows),
        }
    };
    print(&text)?;
    engine.close().map_err(|e| place.failure(e))?;
    Ok(0)
}

/// Returns the image for reports to scripts.
pub fn image(place: &LogPlace) -> Option<String> {
    let image = place.store.image.as_ref();
    image.map(|i| i.display().to_string())
}

/// Runs `basalt log stat`.
pub fn stat(place: &LogPlace, log: Option<&str>, as_json: bool) -> Outcome {
    let engine = place.open(Access::Read)?;
    let text = match log {
        Some(name) => stat_log(&place.log(&engine, name)?, as_json),
        None => {
            let s = engine.stats();
            if as_json {
                let report = json!({
                    "dir": place.store.directory(), "image": image(place), "logs": s.logs,
                    "records": s.records, "live_bytes": s.live_bytes, "data_files": s.data_files,
                    "meta_files": s.meta_files, "ended_bytes": s.ended_bytes,
                    "ended_live_bytes": s.ended_live_bytes, "space_amp": s.space_amp(),
                    "index_bytes": s.index_bytes, "index_pages": s.index_pages,
                });
                format!("{report:#}\n")
            } else {
                let mut text = format!(
                    "{}: {} in {}, {} with their heads\n",
                    place.store,
                    count(s.records, "record", "records"),
                    count(s.logs, "log", "logs"),
                    human_bytes(s.live_bytes)
                );
                let _ = writeln!(
                    text,
                    "{} with records and {} with operations; {} on disk for each live byte",
                    count(s.data_files, "file", "files"),
                    s.meta_files,
                    format_args!("{:.2} bytes", s.space_amp())
                );
                let _ = writeln!(
                    text,
                    "index: {} of memory, and {}",
                    human_bytes(s.index_bytes),
                    count(s.index_pages, "page on disk", "pages on disk")
                );
                text
            }
        }
    };
    print(&text)?;
    engine.close().map_err(|e| place.failure(e))?;
    Ok(0)
}

fn stat_log(log: &Log, as_json: bool) -> String {
    let ends = log.first().zip(log.last());
    let gaps = ends.map_or(Vec::new(), |(first, last)| log.gaps(first..=last));
    let missing: u64 = gaps.iter().map(|gap| gap.end() - gap.start() + 1).sum();
    if as_json {
        let mut report = json_of(log);
        report["gaps"] = json!(gaps.len());
        report["missing"] = json!(missing);
        return format!("{report:#}\n");
    }
    let mut text = format!(
        "{}: {}, {} with their heads\n",
        escape(log.name().as_bytes()),
        count(log.count(), "record", "records"),
        human_bytes(log.bytes())
    );
    if let Some((first, last)) = ends {
        let _ = match gaps.len() as u64 {
            0 => writeln!(text, "LSNs {first} to {last}, all of them"),
            n => writeln!(
                text,
                "LSNs {first} to {last}; {missing} of them are missing, in {}",
                count(n, "gap", "gaps")
            ),
        };
    }
    let _ = match log.trimmed() {
        Some(trimmed) => writeln!(text, "trimmed up to LSN {trimmed}"),
        None => writeln!(text, "never trimmed"),
    };
    let _ = match duplicates(log) {
        "replace" => writeln!(text, "an append with an existing LSN replaces the record"),
        _ => writeln!(text, "an append with an existing LSN is refused"),
    };
    text
}

/// Runs `basalt log dump`.
pub fn dump(place: &LogPlace, args: &Dump) -> Outcome {
    if args.to.is_some_and(|to| to < args.from) {
        return Err(Failure::new(format!(
            "--to {} is below --from {from}; give an LSN of {from} or more",
            args.to.unwrap_or(0),
            from = args.from
        )));
    }
    let engine = place.open(Access::Read)?;
    let log = place.log(&engine, &args.log)?;
    let mut printer = RecordPrinter::new(args.format.format());
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut records = log.iter(args.from);
    while left > 0 {
        let Some(record) = records.next() else {
            break;
        };
        // The records before the damaged one are printed first.
        let (lsn, data) = match record {
            Ok(record) => record,
            Err(e) => {
                printer.flush()?;
                return Err(place.failure(e));
            }
        };
        if args.to.is_some_and(|to| lsn > to) {
            break;
        }
        printer.print(lsn, &data)?;
        left -= 1;
    }
    printer.flush()?;
    drop(records);
    engine.close().map_err(|e| place.failure(e))?;
    Ok(0)
}
