//! `log check` and `log repair`.

use super::LogPlace;
use super::show::image;
use crate::check::{Findings, damage_json, findings};
use crate::failure::{EXIT_FAILED, EXIT_NO, Failure, Outcome};
use crate::output::print;
use crate::progress::{DelayedBar, count, human_bytes};
use crate::store::Access;
use basalt_log::{LogEngine, LogEngineOptions, LogRepairReport, LogVerifyReport};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::{BufRead, IsTerminal};

/// Runs `basalt log check`.
pub fn check(place: &LogPlace, as_json: bool) -> Outcome {
    let (env, path) = place.environment(Access::Read)?;
    place.check_directory(&env, &path, Access::Read)?;
    let mut bar = DelayedBar::new("checking");
    let options = LogEngineOptions::default();
    let report = LogEngine::check(&env, &path, &options, &mut |done, total| {
        bar.at(done, total)
    });
    bar.end();
    let report = report.map_err(|e| place.failure(e))?;
    let sound = report.damage.is_empty();
    print(&match as_json {
        true => format!("{:#}\n", json_of(place, &report)),
        false => text_of(place, &report),
    })?;
    Ok(if sound { 0 } else { EXIT_NO })
}

fn json_of(place: &LogPlace, report: &LogVerifyReport) -> Value {
    let mut value = report_json(report);
    value["dir"] = json!(place.store.directory());
    value["image"] = json!(image(place));
    value
}

/// Returns the findings of a check of logs as `--json` shows them.
pub fn report_json(report: &LogVerifyReport) -> Value {
    let damage = damage_json(&report.damage);
    json!({
        "sound": report.damage.is_empty(), "files": report.files, "bytes": report.bytes, "logs": report.logs,
        "records": report.records, "live_bytes": report.live_bytes, "pages": report.pages,
        "damage": damage, "orphans": report.unused_files, "unnamed": report.unnamed,
        "foreign": report.foreign, "torn_tails": report.torn_tails,
    })
}

/// Returns the findings of a check of logs, a line each.
pub fn report_findings(report: &LogVerifyReport) -> String {
    findings(&Findings {
        damage: &report.damage,
        unused_files: &report.unused_files,
        unnamed: &report.unnamed,
        foreign: &report.foreign,
        torn_tails: &report.torn_tails,
    })
}

/// Returns what a check of logs has read.
pub fn walked(report: &LogVerifyReport) -> String {
    format!(
        "{}, {}, {} in {}",
        count(report.files, "file", "files"),
        human_bytes(report.bytes),
        count(report.records, "record", "records"),
        count(report.logs, "log", "logs")
    )
}

fn text_of(place: &LogPlace, report: &LogVerifyReport) -> String {
    let mut text = report_findings(report);
    let walked = walked(report);
    let _ = match report.damage.len() {
        0 => writeln!(text, "{} is sound: {walked}", place.store),
        n => writeln!(
            text,
            "{} is damaged in {}: {walked}; {}, then run `basalt log repair {}`",
            place.store,
            count(n as u64, "place", "places"),
            place.store.copy_first(),
            place.argument
        ),
    };
    text
}

/// Runs `basalt log repair`.
pub fn repair(place: &LogPlace, yes: bool, as_json: bool) -> Outcome {
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::new(format!(
                "repair changes the store in {}; {} first, then run it with --yes",
                place.store,
                place.store.copy_first()
            )));
        }
        eprint!(
            "Repair keeps what verifies in {} and moves damaged files aside. Is there a copy of it? Go on? [y/N] ",
            place.store
        );
        let mut answer = String::new();
        (std::io::stdin().lock().read_line(&mut answer))
            .map_err(|e| Failure::new(format!("cannot read the answer: {e}; run it with --yes")))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::Message("nothing was changed".into(), EXIT_FAILED));
        }
    }
    let (env, path) = place.environment(Access::Remove)?;
    place.check_directory(&env, &path, Access::Remove)?;
    let mut bar = DelayedBar::new("repairing");
    let options = LogEngineOptions::default();
    let report = LogEngine::repair(&env, &path, &options, &mut |done, total| {
        bar.at(done, total)
    });
    bar.end();
    let report = report.map_err(|e| place.failure(e))?;
    let whole = is_whole(&report);
    if as_json {
        let mut value = repair_json(&report);
        value["dir"] = json!(place.store.directory());
        value["image"] = json!(image(place));
        print(&format!("{value:#}\n"))?;
    } else {
        print(&repair_text(&report))?;
    }
    Ok(if whole { 0 } else { EXIT_NO })
}

/// Returns true if the repaired logs have exactly the records that they should have.
pub fn is_whole(report: &LogRepairReport) -> bool {
    report.lost.is_empty() && report.reappearing.is_empty()
}

/// Returns the result of a repair of logs as `--json` shows it.
pub fn repair_json(report: &LogRepairReport) -> Value {
    json!({
        "whole": is_whole(report),
        "sound": report.sound, "logs": report.logs, "records_kept": report.records_kept,
        "files_kept": report.files_kept, "files_written": report.files_written,
        "lost": report.lost, "reappearing": report.reappearing, "notes": report.notes,
        "set_aside": report.set_aside,
    })
}

/// Returns the result of a repair of logs, for people.
pub fn repair_text(report: &LogRepairReport) -> String {
    let mut text = String::new();
    for lost in &report.lost {
        let _ = writeln!(text, "lost: {lost}");
    }
    for back in &report.reappearing {
        let _ = writeln!(text, "may show again: {back}");
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for name in &report.set_aside {
        let _ = writeln!(text, "moved aside: {name}");
    }
    let _ = writeln!(
        text,
        "{} in {} kept, in {} kept as they were and {} written anew; {}",
        count(report.records_kept, "record", "records"),
        count(report.logs, "log", "logs"),
        count(report.files_kept, "file", "files"),
        report.files_written,
        match (report.sound, is_whole(report)) {
            (true, _) => "the logs were sound, and nothing was changed",
            (false, true) => "nothing is lost",
            (false, false) => "the losses are listed above",
        }
    );
    text
}
