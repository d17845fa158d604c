//! What a check and a repair of logs show, for stores of logs alone and for those with keys.

use crate::findings::{Findings, damage_json, findings};
use crate::progress::{count, human_bytes};
use basalt_log::{LogLoss, LogRepairReport, LogUnprovenEnd, LogVerifyReport, UnnamedLog};
use serde_json::{Value, json};
use std::fmt::Write;

/// Returns the findings of a check of logs as `--json` shows them.
pub fn report_json(report: &LogVerifyReport) -> Value {
    let damage = damage_json(&report.damage);
    json!({
        "sound": report.damage.is_empty(), "files": report.files, "bytes": report.bytes, "logs": report.logs,
        "records": report.records, "live_bytes": report.live_bytes, "pages": report.pages,
        "damage": damage, "losses": losses_json(&report.losses), "orphans": report.unused_files, "unnamed": report.unnamed,
        "foreign": report.foreign, "torn_tails": report.torn_tails,
        "unproven_ends": unproven_json(&report.unproven_ends),
        "names": report.names, "unnamed_logs": unnamed_json(&report.unnamed_logs),
        "reappearing": report.reappearing,
    })
}

/// Returns the findings of a check of logs, a line each. `directory` is that of the logs in the
/// store's directory, or empty.
pub fn report_findings(report: &LogVerifyReport, directory: &str) -> String {
    let named = |names: &[String]| -> Vec<String> {
        names
            .iter()
            .map(|name| format!("{directory}{name}"))
            .collect()
    };
    let mut text = findings(&Findings {
        damage: &report.damage,
        unused_files: &named(&report.unused_files),
        unnamed: &named(&report.unnamed),
        foreign: &named(&report.foreign),
        // Torn tails already have full paths.
        torn_tails: &report.torn_tails,
    });
    for loss in &report.losses {
        let _ = writeln!(text, "lost: {loss}");
    }
    for end in &report.unproven_ends {
        let _ = writeln!(text, "unproven end: {directory}{end}");
    }
    for back in &report.reappearing {
        let _ = writeln!(text, "may show again after a repair: {back}");
    }
    add_names(&mut text, &report.names, &report.unnamed_logs);
    text
}

/// Appends what is known of the names of logs, a line each.
fn add_names(text: &mut String, names: &str, unnamed: &[UnnamedLog]) {
    for log in unnamed {
        let _ = writeln!(text, "name lost: {log}");
    }
    if !names.is_empty() {
        let _ = writeln!(text, "names: {names}");
    }
}

/// Returns logs without names as `--json` shows them.
fn unnamed_json(logs: &[UnnamedLog]) -> Vec<Value> {
    let one = |log: &UnnamedLog| {
        json!({
            "number": log.number, "name": log.name, "records": log.records,
            "first": log.lsns.as_ref().map(|lsns| *lsns.start()),
            "last": log.lsns.as_ref().map(|lsns| *lsns.end()),
        })
    };
    logs.iter().map(one).collect()
}

/// Returns losses of records as `--json` shows them.
fn losses_json(losses: &[LogLoss]) -> Vec<Value> {
    let one = |loss: &LogLoss| {
        json!({
            "file": loss.file, "offset": loss.bytes.start,
            "bytes": loss.bytes.end.saturating_sub(loss.bytes.start), "log": loss.log,
            "first": loss.lsns.as_ref().map(|lsns| *lsns.start()),
            "last": loss.lsns.as_ref().map(|lsns| *lsns.end()),
            "records": loss.records, "reason": loss.reason,
        })
    };
    losses.iter().map(one).collect()
}

/// Returns ends of files that nothing proves as `--json` shows them.
fn unproven_json(ends: &[LogUnprovenEnd]) -> Vec<Value> {
    let one = |end: &LogUnprovenEnd| {
        json!({
            "file": end.file, "offset": end.bytes.start,
            "bytes": end.bytes.end - end.bytes.start, "reason": end.reason,
        })
    };
    ends.iter().map(one).collect()
}

/// Returns true if a later version wrote something in the store that this one cannot read.
pub fn is_of_later_version(report: &LogVerifyReport) -> bool {
    let later = |e: &basalt::Error| e.kind() == basalt::ErrorKind::Unsupported;
    report.damage.iter().any(later)
}

/// Returns what a check of logs has read.
pub fn walked(report: &LogVerifyReport) -> String {
    let files = format!(
        "{}, {}",
        count(report.files, "file", "files"),
        human_bytes(report.bytes)
    );
    if is_of_later_version(report) {
        return format!("{files}, records not counted");
    }
    format!(
        "{files}, {} in {}{}",
        count(report.records, "record", "records"),
        count(report.logs, "log", "logs"),
        match report.damage.is_empty() {
            true => "",
            false => " after a repair",
        }
    )
}

/// Returns true if the repaired logs have exactly the records that they should have, and something
/// proves it.
pub fn is_whole(report: &LogRepairReport) -> bool {
    report.lost.is_empty() && report.reappearing.is_empty() && report.unproven_ends.is_empty()
}

/// Returns the result of a repair of logs as `--json` shows it.
pub fn repair_json(report: &LogRepairReport) -> Value {
    json!({
        "whole": is_whole(report),
        "sound": report.sound, "logs": report.logs, "records_kept": report.records_kept,
        "files_kept": report.files_kept, "files_written": report.files_written,
        "lost": report.lost, "losses": losses_json(&report.losses), "unproven_ends": unproven_json(&report.unproven_ends),
        "reappearing": report.reappearing, "notes": report.notes,
        "names": report.names, "unnamed_logs": unnamed_json(&report.unnamed_logs),
        "set_aside": report.set_aside,
    })
}

/// Returns the result of a repair of logs, for people. `directory` is that of the logs in the
/// store's directory, or empty.
pub fn repair_text(report: &LogRepairReport, directory: &str) -> String {
    let mut text = String::new();
    for lost in &report.lost {
        let _ = writeln!(text, "lost: {lost}");
    }
    for end in &report.unproven_ends {
        let _ = writeln!(text, "unproven end: {directory}{end}");
    }
    for back in &report.reappearing {
        let _ = writeln!(text, "may show again: {back}");
    }
    add_names(&mut text, &report.names, &report.unnamed_logs);
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for name in &report.set_aside {
        let _ = writeln!(text, "moved aside: {directory}{name}");
    }
    let _ = writeln!(
        text,
        "kept {} in {}; {} unchanged, {} written; {}",
        count(report.records_kept, "record", "records"),
        count(report.logs, "log", "logs"),
        count(report.files_kept, "file", "files"),
        report.files_written,
        match (report.sound, is_whole(report)) {
            (true, _) => "the logs were sound, and nothing was changed",
            (false, true) => "no record is lost",
            (false, false) => "the losses are listed above",
        }
    );
    text
}
