//! `check` and `repair`: verification of a store, and salvage of a damaged one.

use crate::args;
use crate::escape::escape;
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::findings::{Findings, confirm_repair, damage_json, findings};
use crate::location::StoreLocation;
use crate::log_report;
use crate::output::print_report;
use crate::progress::{self, count, count_entries, human_bytes};
use crate::store::{Access, environment};
use basalt::{Db, EngineKind, ErrorKind, KeyRange, Loss, Options, Store, StoreOptions};
use basalt_server::catalog;
use basalt_server::layout::{KEYS_FAMILY, catalog_start};
use basalt_server::stream_check::{StreamWithoutLog, streams_without_log};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fmt::Write;

/// The directory of the logs in a store's directory, before names of files in it.
const LOGS: &str = "logs/";

/// Returns a callback that moves a progress bar.
fn moves(bar: &ProgressBar) -> impl FnMut(u64, u64) + '_ {
    |done, total| {
        if bar.length() != Some(total) {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}

/// Runs `basalt check`.
pub fn check(args: args::Check) -> Outcome {
    let place = &args.store;
    let (env, path) = environment(place, Access::Read, None)?;
    let bar = progress::bytes("checking", Some(0));
    let logs_dir = path.join(EngineKind::Logs.directory());
    let checked = Store::check(&env, path, &StoreOptions::default(), &mut moves(&bar));
    drop(env);
    bar.finish_and_clear();
    let checked = checked.map_err(|e| Failure::store(place, e))?;
    let (mut report, logs) = (checked.tables, checked.logs);
    if report.damage.is_empty() && report.files > 0 {
        report.damage.extend(catalog_damage(place)?);
    }
    let of_missing_logs = |e: &basalt::Error| e.path() == Some(&*logs_dir);
    let streams = match &logs {
        Some(logs) if report.damage.is_empty() && !log_report::is_of_later_version(logs) => {
            lost_streams(place, &logs.log_names)?
        }
        None if !report.damage.is_empty() && report.damage.iter().all(of_missing_logs) => {
            lost_streams(place, &[])?
        }
        _ => Vec::new(),
    };
    let in_logs = logs.as_ref().map_or(0, |logs| logs.damage.len());
    let places = report.damage.len() + in_logs;
    let sound = places == 0 && streams.is_empty();
    if args.json {
        let damage = damage_json(&report.damage);
        print_report(&format!(
            "{:#}\n",
            json!({
                "dir": place.directory(), "image": place.image.as_ref().map(|i| i.display().to_string()), "sound": sound, "files": report.files, "bytes": report.bytes,
                "entries": report.entries, "damage": damage, "orphans": report.unused_files,
                "unnamed": report.unnamed, "foreign": report.foreign, "torn_tails": report.torn_tails,
                "logs": logs.as_ref().map(log_report::report_json),
                "streams_without_log": streams_json(&streams),
            })
        ))?;
    } else {
        let mut text = findings(&Findings {
            damage: &report.damage,
            unused_files: &report.unused_files,
            unnamed: &report.unnamed,
            foreign: &report.foreign,
            torn_tails: &report.torn_tails,
        });
        let mut walked = format!(
            "{}, {}, {} as stored (older versions of a key, deletions and the server's own count too)",
            count(report.files, "file", "files"),
            human_bytes(report.bytes),
            count_entries(report.entries)
        );
        if let Some(logs) = &logs {
            text += &log_report::report_findings(logs, LOGS);
            walked += &format!("; of logs {}", log_report::walked(logs));
        }
        for stream in &streams {
            let _ = writeln!(text, "lost: {}", stream_sentence(stream));
        }
        let _ = match places {
            0 if sound => writeln!(text, "{place} is sound: {walked}"),
            0 => writeln!(
                text,
                "the files of {place} are sound, and {}: {walked}; {LOST_STREAMS}",
                count(
                    streams.len() as u64,
                    "stream is without its log",
                    "streams are without their logs"
                )
            ),
            n => writeln!(
                text,
                "{place} is damaged in {}: {walked}; {}, then run `basalt repair {}`",
                count(n as u64, "place", "places"),
                place.copy_first(),
                place.flags()
            ),
        };
        print_report(&text)?;
    }
    Ok(if sound { 0 } else { EXIT_NO })
}

/// What a user can do about streams without their logs.
const LOST_STREAMS: &str = "if a log that a repair named recovered-N has the entries of a stream, `basalt log rename` gives it the name of the missing log; otherwise remove the key with DEL";

fn stream_sentence(stream: &StreamWithoutLog) -> String {
    format!(
        "the stream {} is without its log {} and has no entries",
        escape(&stream.key),
        stream.log
    )
}

/// Returns streams without their logs as `--json` shows them.
fn streams_json(streams: &[StreamWithoutLog]) -> Vec<Value> {
    let one = |stream: &StreamWithoutLog| json!({"key": escape(&stream.key), "log": stream.log});
    streams.iter().map(one).collect()
}

/// Returns the streams of Redis keys whose logs are not among the logs with these names, which are
/// sorted. Changes nothing.
pub fn lost_streams(
    place: &StoreLocation,
    logs: &[String],
) -> Result<Vec<StreamWithoutLog>, Failure> {
    let (env, path) = environment(place, Access::Read, None)?;
    let opened = Db::open_read_only(&env, path, Options::default());
    let Some(db) = open_server_store(place, opened)? else {
        return Ok(Vec::new());
    };
    let Some(keys) = db.family(KEYS_FAMILY) else {
        return Ok(Vec::new());
    };
    let has_log = |name: &str| logs.binary_search_by(|log| log.as_str().cmp(name)).is_ok();
    match streams_without_log(&db, &keys, &has_log) {
        // This version cannot judge the layout of a later one.
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        found => found.map_err(|e| Failure::store(place, e)),
    }
}

/// Returns an open store. The result is `None` if the store needs an order or an operator that only
/// its own program has: it is not a store of the server.
fn open_server_store(
    place: &StoreLocation,
    opened: basalt::Result<Db>,
) -> Result<Option<Db>, Failure> {
    match opened {
        Ok(db) => Ok(Some(db)),
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::InvalidArgument | ErrorKind::Unsupported
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(Failure::store(place, e)),
    }
}

/// Returns the damage of the catalog of Redis keys in a store whose files are sound. Changes
/// nothing.
fn catalog_damage(place: &StoreLocation) -> Result<Option<basalt::Error>, Failure> {
    let (env, path) = environment(place, Access::Read, None)?;
    let opened = Db::open_read_only(&env, path, Options::default());
    let Some(db) = open_server_store(place, opened)? else {
        return Ok(None);
    };
    let Some(keys) = db.family(KEYS_FAMILY) else {
        return Ok(None);
    };
    match catalog::read(&db, &keys) {
        Err(e) if e.is_corruption() => Ok(Some(e)),
        // This version cannot judge the layout of a later one.
        Err(e) if e.kind() != ErrorKind::Unsupported => Err(Failure::store(place, e)),
        _ => Ok(None),
    }
}

/// Rebuilds the catalog of Redis keys where a part of it is lost, or may be lost. Returns a
/// sentence for each such part.
fn repair_catalog(place: &StoreLocation, losses: &[Loss]) -> Result<Vec<String>, Failure> {
    let first = catalog_start();
    let doubtful = losses.iter().any(|loss| {
        let family = loss
            .family
            .as_deref()
            .is_none_or(|name| name == KEYS_FAMILY);
        let reaches = |range: &KeyRange| range.to.as_ref().is_none_or(|to| to[..] >= first[..]);
        let in_reach = match &loss.keys {
            Some(range) => reaches(range),
            None => loss.older_may_reappear,
        };
        family && (in_reach || loss.seqs.is_some())
    });
    if !doubtful && catalog_damage(place)?.is_none() {
        return Ok(Vec::new());
    }
    let (env, path) = environment(place, Access::Remove, None)?;
    let opened = Db::open(&env, path, Options::default());
    let Some(db) = open_server_store(place, opened)? else {
        return Ok(Vec::new());
    };
    let lost = match db.family(KEYS_FAMILY) {
        Some(keys) => match catalog::repair(&db, &keys, doubtful) {
            Err(e) if e.kind() == ErrorKind::Unsupported => Vec::new(),
            repaired => repaired.map_err(|e| Failure::store(place, e))?,
        },
        None => Vec::new(),
    };
    db.close().map_err(|e| Failure::store(place, e))?;
    Ok(lost)
}

/// Runs `basalt repair`.
pub fn repair(args: args::Repair) -> Outcome {
    let place = &args.store;
    if !args.yes {
        confirm_repair(place)?;
    }
    let (env, path) = environment(place, Access::Remove, None)?;
    let bar = progress::bytes("repairing", Some(0));
    let repaired = Store::repair(&env, path, &StoreOptions::default(), &mut moves(&bar));
    // The image is opened again for the catalog.
    drop(env);
    bar.finish_and_clear();
    let repaired = repaired.map_err(|e| Failure::store(place, e))?;
    let (mut report, logs) = (repaired.tables, repaired.logs);
    // The report of the repair is printed even if the catalog fails.
    let logs_failure = repaired.logs_failure.map(|e| Failure::store(place, e));
    let (lost, failed) = match repair_catalog(place, &report.losses) {
        Ok(lost) => (lost, logs_failure),
        Err(e) => (Vec::new(), Some(e)),
    };
    report.lost.extend(lost);
    let mut streams = Vec::new();
    let mut failed = failed;
    if let (Some(logs), None) = (&logs, &failed) {
        // The report of the repair is printed even if this fails.
        match lost_streams(place, &logs.log_names) {
            Ok(found) => streams = found,
            Err(e) => failed = Some(e),
        }
    }
    report.lost.extend(streams.iter().map(stream_sentence));
    let whole = report.lost.is_empty() && logs.as_ref().is_none_or(log_report::is_whole);
    let text = if args.json {
        format!(
            "{:#}\n",
            json!({
                "dir": place.directory(), "image": place.image.as_ref().map(|i| i.display().to_string()), "whole": whole, "tables_kept": report.tables_kept,
                "tables_written": report.tables_written,
                "trees_kept": report.trees_kept, "trees_written": report.trees_written,
                "blobs_kept": report.blobs_kept, "blobs_written": report.blobs_written,
                "entries_kept": report.entries_kept, "lost": report.lost, "notes": report.notes, "set_aside": report.set_aside,
                "logs": logs.as_ref().map(log_report::repair_json), "streams_without_log": streams_json(&streams),
            })
        )
    } else {
        let mut text = String::new();
        for lost in &report.lost {
            let _ = writeln!(text, "lost: {lost}");
        }
        for note in &report.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for name in &report.set_aside {
            let _ = writeln!(text, "moved aside: {name}");
        }
        let trees = match (report.trees_kept, report.trees_written) {
            (0, 0) => String::new(),
            (kept, written) => format!(
                "; {} unchanged, {written} written",
                count(kept, "tree of pages", "trees of pages")
            ),
        };
        let blobs = match (report.blobs_kept, report.blobs_written) {
            (0, 0) => String::new(),
            (kept, written) => format!(
                "; {} unchanged, {written} written",
                count(kept, "blob file", "blob files")
            ),
        };
        let _ = writeln!(
            text,
            "kept {}; {} unchanged, {} written{trees}{blobs}; {}",
            count_entries(report.entries_kept),
            count(report.tables_kept, "table", "tables"),
            report.tables_written,
            match (report.lost.is_empty(), logs.is_some()) {
                (true, true) => "no key is lost",
                (true, false) => "nothing is lost",
                (false, _) => "the losses are listed above",
            }
        );
        if let Some(logs) = &logs {
            text += &log_report::repair_text(logs, LOGS);
        }
        if !streams.is_empty() {
            let _ = writeln!(text, "streams without their logs: {LOST_STREAMS}");
        }
        text
    };
    let printed = print_report(&text).map_err(|e| e.after("the store was repaired"));
    match failed {
        Some(e) => Err(e),
        None => printed.map(|()| if whole { 0 } else { EXIT_NO }),
    }
}
