//! `log check` and `log repair`.

use super::LogPlace;
use super::show::image;
use crate::failure::{EXIT_NO, Outcome};
use crate::findings::confirm_repair;
use crate::log_report::{is_whole, repair_json, repair_text, report_findings, report_json, walked};
use crate::output::print;
use crate::progress::{DelayedBar, count};
use crate::store::Access;
use basalt_log::{LogEngine, LogEngineOptions, LogVerifyReport};
use serde_json::{Value, json};
use std::fmt::Write;

/// Runs `basalt log check`.
pub fn check(place: &LogPlace, as_json: bool) -> Outcome {
    let (env, path) = place.environment(Access::Read)?;
    place.check_directory(&env, &path, Access::Read)?;
    let mut bar = DelayedBar::new("checking");
    let options = LogEngineOptions::default();
    let report = place.when_free(|| {
        let mut show = |done, total| bar.at(done, total);
        LogEngine::check(&env, &path, &options, &mut show).map_err(|e| place.failure(e))
    });
    bar.end();
    let report = report?;
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

fn text_of(place: &LogPlace, report: &LogVerifyReport) -> String {
    let mut text = report_findings(report, "");
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
        confirm_repair(&place.store)?;
    }
    let (env, path) = place.environment(Access::Remove)?;
    place.check_directory(&env, &path, Access::Remove)?;
    let mut bar = DelayedBar::new("repairing");
    let options = LogEngineOptions::default();
    let report = place.when_free(|| {
        let mut show = |done, total| bar.at(done, total);
        LogEngine::repair(&env, &path, &options, &mut show).map_err(|e| place.failure(e))
    });
    bar.end();
    let report = report?;
    let whole = is_whole(&report);
    if as_json {
        let mut value = repair_json(&report);
        value["dir"] = json!(place.store.directory());
        value["image"] = json!(image(place));
        print(&format!("{value:#}\n"))?;
    } else {
        print(&repair_text(&report, ""))?;
    }
    Ok(if whole { 0 } else { EXIT_NO })
}
