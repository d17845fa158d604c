//! `log trim`, `log truncate` and `log rm`: the commands that remove records for good.

use super::show::image;
use super::{LogPlace, OpenLogs};
use crate::escape::{escape, for_shell};
use crate::failure::{Failure, Outcome};
use crate::findings::ask;
use crate::log_args::{Removal, Rm, Trim, Truncate};
use crate::output::print_done;
use crate::progress::{count, human_bytes};
use crate::store::Access;
use basalt_log::{Log, MAX_LSN, WriteOptions};
use serde_json::json;
use std::io::IsTerminal;
use std::ops::RangeInclusive;

/// Returns the number of records of a log in a range of LSNs.
fn records_in(log: &Log, range: RangeInclusive<u64>) -> u64 {
    let missing = log.gaps(range.clone()).into_iter();
    let missing: u64 = missing.map(|gap| gap.end() - gap.start() + 1).sum();
    range.end() - range.start() + 1 - missing
}

/// Returns a range of LSNs for people.
pub fn lsns(range: &RangeInclusive<u64>) -> String {
    match range.start() == range.end() {
        true => format!("LSN {}", range.start()),
        false => format!("LSNs {} to {}", range.start(), range.end()),
    }
}

/// Asks the user whether records are to be removed. `what` begins with the command's name.
///
/// Errors: a message that says what to do, if the user does not agree or cannot be asked.
fn confirm(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!("{what}; run it with --yes")));
    }
    ask(&format!("{what}."))
}

/// Removes records by `remove`, closes the store, and prints the result. `bound` is the flag's name
/// and its LSN, `done` the verb for what happened to the records, of which there are `records`.
fn remove_records(
    place: &LogPlace,
    removal: &Removal,
    logs: OpenLogs,
    log: Log,
    (bound, lsn): (&str, u64),
    (done, records): (&str, u64),
    remove: impl FnOnce(&Log) -> basalt::Result<()>,
) -> Outcome {
    let before = log.bytes();
    remove(&log).map_err(|e| place.failure(e))?;
    let freed = before.saturating_sub(log.bytes());
    let kept = log.count();
    drop(log);
    logs.close().map_err(|e| place.failure(e))?;
    let text = match removal.json {
        true => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(place), "log": removal.log,
                (bound): lsn, (format!("{done}_records")): records,
                (format!("{done}_bytes")): freed, "records": kept,
            })
        ),
        false => format!(
            "{} {done}, {}; {kept} left\n",
            count(records, "record", "records"),
            human_bytes(freed)
        ),
    };
    // A trim counts even if there was no record to remove: it refuses later appends.
    let what = match bound {
        "from" => "truncated",
        _ => "trimmed",
    };
    print_done(&text, &format!("the log was {what}"))?;
    Ok(0)
}

/// Runs `basalt log trim`.
pub fn trim(place: &LogPlace, args: &Trim) -> Outcome {
    place.refuse_stream(&args.removal.log)?;
    let name = escape(args.removal.log.as_bytes());
    let logs = place.open(Access::Remove)?;
    let log = place.log(&logs, &args.removal.log)?;
    let up_to = args.up_to;
    let end = log.last().max(log.trimmed());
    if up_to >= MAX_LSN {
        return Err(Failure::new(format!(
            "cannot trim {name} up to {up_to}: no LSN would be left for new records; to remove the log, run `basalt log rm {} {}`",
            place.in_shell(),
            for_shell(args.removal.log.as_bytes())
        )));
    }
    if end < Some(up_to) && !args.beyond_last {
        return Err(Failure::new(match end {
            Some(end) => format!(
                "cannot trim {name} up to {up_to}: its last LSN is {end}, and later appends up to {up_to} would be refused; \
                 use --up-to {end}, or add --beyond-last to trim anyway"
            ),
            None => format!(
                "cannot trim {name} up to {up_to}: it has no records, and later appends up to {up_to} would be refused; \
                 add --beyond-last to trim anyway"
            ),
        }));
    }
    let first = log.first().filter(|first| *first <= up_to);
    let range = first
        .zip(log.last())
        .map(|(first, last)| first..=last.min(up_to));
    let records = range.clone().map_or(0, |range| records_in(&log, range));
    let what = match &range {
        None => format!(
            "trim finds no record of {name} up to LSN {up_to}; later appends up to it are refused"
        ),
        Some(range) => format!(
            "trim removes {records} of {} of {name} for good, {}",
            count(log.count(), "record", "records"),
            lsns(range)
        ),
    };
    confirm(args.removal.yes, &what)?;
    remove_records(
        place,
        &args.removal,
        logs,
        log,
        ("up_to", up_to),
        ("trimmed", records),
        |log| log.trim(up_to, &WriteOptions::SYNC),
    )
}

/// Runs `basalt log truncate`.
pub fn truncate(place: &LogPlace, args: &Truncate) -> Outcome {
    place.refuse_stream(&args.removal.log)?;
    let name = escape(args.removal.log.as_bytes());
    let logs = place.open(Access::Remove)?;
    let log = place.log(&logs, &args.removal.log)?;
    let ends = log.first().zip(log.last());
    let ends = ends.filter(|(_, last)| *last >= args.from);
    let range = ends.map(|(first, last)| first.max(args.from)..=last);
    let records = range.clone().map_or(0, |range| records_in(&log, range));
    if let Some(range) = &range {
        let what = format!(
            "truncate removes {records} of {} of {name} for good, {}; their LSNs can be appended again",
            count(log.count(), "record", "records"),
            lsns(range)
        );
        confirm(args.removal.yes, &what)?;
    }
    remove_records(
        place,
        &args.removal,
        logs,
        log,
        ("from", args.from),
        ("removed", records),
        |log| log.truncate_suffix(args.from),
    )
}

/// Runs `basalt log rm`.
pub fn rm(place: &LogPlace, args: &Rm) -> Outcome {
    place.refuse_stream(&args.removal.log)?;
    let name = escape(args.removal.log.as_bytes());
    let logs = place.open(Access::Remove)?;
    let log = place.log(&logs, &args.removal.log)?;
    let (records, bytes) = (log.count(), log.bytes());
    let range = log.first().zip(log.last());
    let range = range.map(|(first, last)| format!(", {}", lsns(&(first..=last))));
    let what = format!(
        "rm removes the log {name} for good, with {}{}",
        count(records, "record", "records"),
        range.unwrap_or_default()
    );
    confirm(args.removal.yes, &what)?;
    drop(log);
    logs.delete(&args.removal.log)
        .map_err(|e| place.failure(e))?;
    logs.close().map_err(|e| place.failure(e))?;
    let text = match args.removal.json {
        true => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(place), "log": args.removal.log,
                "removed_records": records, "removed_bytes": bytes,
            })
        ),
        false => format!(
            "{name} removed, {}, {}\n",
            count(records, "record", "records"),
            human_bytes(bytes)
        ),
    };
    print_done(&text, "the log was removed")?;
    Ok(0)
}
