//! `log check` and `log repair`.

use super::LogPlace;
use super::show::image;
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::findings::confirm_repair;
use crate::log_report::{
    is_of_later_version, is_whole, repair_json, repair_text, report_findings, report_json, walked,
};
use crate::output::print_report;
use crate::progress::{DelayedBar, count};
use crate::store::{Access, LogsLocation};
use basalt_log::{LogEngine, LogEngineOptions, LogVerifyReport};
use serde_json::{Value, json};
use std::fmt::Write;

/// Runs `basalt log check`.
pub fn check(place: &LogPlace, as_json: bool) -> Outcome {
    let location = place.locate(Access::Read)?;
    let report = match &location.missing {
        Some(e) => {
            let mut report = LogVerifyReport::default();
            report.damage.push(e.clone());
            report
        }
        None => check_logs(place, &location)?,
    };
    let sound = report.damage.is_empty();
    print_report(&match as_json {
        true => format!("{:#}\n", json_of(place, &report)),
        false => text_of(place, &location, &report),
    })?;
    Ok(if sound { 0 } else { EXIT_NO })
}

fn check_logs(place: &LogPlace, location: &LogsLocation) -> Result<LogVerifyReport, Failure> {
    let (env, path) = (&location.env, &location.path);
    place.check_directory(env, path, Access::Read)?;
    let mut bar = DelayedBar::new("checking");
    let options = LogEngineOptions::default();
    let report = place.retry_while_busy(|| {
        let mut show = |done, total| bar.at(done, total);
        LogEngine::check(env, path, &options, &mut show).map_err(|e| place.failure(e))
    });
    bar.end();
    report
}

fn json_of(place: &LogPlace, report: &LogVerifyReport) -> Value {
    let mut value = report_json(report);
    value["dir"] = json!(place.store.directory());
    value["image"] = json!(image(place));
    value
}

fn text_of(place: &LogPlace, location: &LogsLocation, report: &LogVerifyReport) -> String {
    let mut text = report_findings(report, "");
    let walked = walked(report);
    let _ = match report.damage.len() {
        0 => writeln!(text, "{} is sound: {walked}", place.store),
        _ if is_of_later_version(report) => writeln!(
            text,
            "{} cannot be checked as a whole: {walked}; check it with the version of basalt that wrote it",
            place.store
        ),
        n => writeln!(
            text,
            "{} is damaged in {}: {walked}; {}, then run `{}`",
            place.store,
            count(n as u64, "place", "places"),
            place.store.copy_first(),
            match (&location.missing, &location.keys) {
                // There are no logs to repair: the repair of the whole store reports them as lost.
                (Some(_), Some(keys)) => format!("basalt repair {}", keys.flags()),
                _ => format!("basalt log repair {}", place.in_shell()),
            }
        ),
    };
    text
}

/// Runs `basalt log repair`.
pub fn repair(place: &LogPlace, yes: bool, as_json: bool) -> Outcome {
    if !yes {
        confirm_repair(&place.store)?;
    }
    let location = place.locate(Access::Remove)?;
    if let (Some(e), Some(keys)) = (location.missing, &location.keys) {
        return Err(Failure::store(keys, e));
    }
    let (env, path) = (&location.env, &location.path);
    place.check_directory(env, path, Access::Remove)?;
    let mut bar = DelayedBar::new("repairing");
    let options = LogEngineOptions::default();
    let report = place.retry_while_busy(|| {
        let mut show = |done, total| bar.at(done, total);
        LogEngine::repair(env, path, &options, &mut show).map_err(|e| place.failure(e))
    });
    bar.end();
    let report = report?;
    let whole = is_whole(&report);
    let text = if as_json {
        let mut value = repair_json(&report);
        value["dir"] = json!(place.store.directory());
        value["image"] = json!(image(place));
        format!("{value:#}\n")
    } else {
        repair_text(&report, "")
    };
    print_report(&text).map_err(|e| e.after("the store was repaired"))?;
    Ok(if whole { 0 } else { EXIT_NO })
}
