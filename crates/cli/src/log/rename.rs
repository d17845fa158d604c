//! `log rename`.

use super::LogPlace;
use super::show::image;
use crate::check::lost_streams;
use crate::escape::{escape, for_shell};
use crate::failure::{Failure, Outcome};
use crate::log_args::Rename;
use crate::output::print_done;
use crate::store::Access;
use basalt::ErrorKind;
use basalt_log::Log;
use basalt_server::layout::STREAM_LOG_PREFIX;
use basalt_server::stream_check::StreamWithoutLog;
use serde_json::{Value, json};

/// The beginning of the names that a repair gives to logs whose names are lost.
const RECOVERED: &str = "recovered-";
/// The beginning of a new name, in advice, for the log of a stream.
const ASIDE: &str = "aside.";

/// Runs `basalt log rename`.
pub fn rename(place: &LogPlace, args: &Rename) -> Outcome {
    let (old, new) = (escape(args.old.as_bytes()), escape(args.new.as_bytes()));
    let stream = stream_of(place, args)?;
    let engine = place.open(Access::Remove)?;
    let log = place.log(&engine, &args.old)?;
    let is_taken = engine.list().contains(&args.new);
    check_stream(place, args, stream.as_ref(), &log, is_taken)?;
    let ids = match &stream {
        Some(_) => StreamWithoutLog::ids(&log).map_err(|e| place.failure(e))?,
        None => None,
    };
    drop(log);
    engine
        .rename(&args.old, &args.new)
        .map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => Failure::new(format!(
                "cannot rename the log {old}: {} has a log {new}; choose another name",
                place.store
            )),
            _ => place.failure(e),
        })?;
    engine.close().map_err(|e| place.failure(e))?;
    let text = match args.json {
        true => format!(
            "{:#}\n",
            json_of(place, args, stream.as_ref(), ids.as_ref())
        ),
        false => format!(
            "{old} is named {new}{}\n",
            stream.map_or_else(String::new, |stream| describe_stream(
                place, args, &stream, ids
            ))
        ),
    };
    print_done(&text, "the log was renamed")?;
    Ok(0)
}

/// Returns true if a name is one that the server gives to logs of streams.
fn is_of_stream(log: &str) -> bool {
    log.starts_with(STREAM_LOG_PREFIX)
}

/// Returns the stream whose key names the log, by the old or the new name. The server removes logs
/// with names of streams that no stream has, so only the name of a stream's log can be given.
fn stream_of(place: &LogPlace, args: &Rename) -> Result<Option<StreamWithoutLog>, Failure> {
    let name = match (is_of_stream(&args.old), is_of_stream(&args.new)) {
        (false, false) => return Ok(None),
        (true, true) => {
            return Err(Failure::new(format!(
                "cannot give the log {0} of a stream to another stream; first rename it to {ASIDE}{0}",
                escape(args.old.as_bytes())
            )));
        }
        (true, false) => &args.old,
        (false, true) => &args.new,
    };
    // Its locks are released before the store is opened for the change.
    let streams = match &place.locate(Access::Read)?.keys {
        Some(keys) => lost_streams(keys, &[])?,
        None => Vec::new(),
    };
    let stream = streams.into_iter().find(|stream| stream.log == *name);
    if stream.is_none() && is_of_stream(&args.new) {
        return Err(Failure::new(format!(
            "cannot rename a log to {}: names with this prefix are for streams of the server, and no stream of {} has a log with this name; choose another name",
            escape(name.as_bytes()),
            place.store
        )));
    }
    Ok(stream)
}

/// Refuses to take the log of a stream away, or to give a stream a log that is not its own, without
/// `--yes`. Both can be undone.
fn check_stream(
    place: &LogPlace,
    args: &Rename,
    stream: Option<&StreamWithoutLog>,
    log: &Log,
    is_taken: bool,
) -> Result<(), Failure> {
    let (old, new) = (escape(args.old.as_bytes()), escape(args.new.as_bytes()));
    match stream {
        Some(stream) if is_of_stream(&args.new) && is_taken => Err(Failure::new(format!(
            "cannot rename the log {old}: the stream {} has its log {new}; first rename that log away, as by `{}`",
            escape(&stream.key),
            command(place, &args.new, &format!("{ASIDE}{new}"))
        ))),
        _ if args.yes => Ok(()),
        Some(stream) if is_of_stream(&args.new) => {
            match stream.difference(log).map_err(|e| place.failure(e))? {
                None => Ok(()),
                Some(what) => Err(Failure::new(format!(
                    "{old} does not seem to be the log of the stream {}: {what}; run it with --yes if it is",
                    escape(&stream.key)
                ))),
            }
        }
        Some(stream) => Err(Failure::new(format!(
            "{old} is the log of the stream {0}, and clients cannot read {0} without it; run it with --yes to rename it, and `{1}` gives it back",
            escape(&stream.key),
            command(place, &args.new, &args.old)
        ))),
        None if is_of_stream(&args.old) && !args.new.starts_with(RECOVERED) => {
            Err(Failure::new(format!(
                "{old} has the name of a stream's log, in the server's encoding, and no stream of {} has it; run it with --yes to rename it",
                place.store
            )))
        }
        None => Ok(()),
    }
}

/// Returns a clause that says what the rename has changed for a stream, and how to undo it.
fn describe_stream(
    place: &LogPlace,
    args: &Rename,
    stream: &StreamWithoutLog,
    ids: Option<(String, String)>,
) -> String {
    let key = escape(&stream.key);
    let undo = command(place, &args.new, &args.old);
    if !is_of_stream(&args.new) {
        return format!(": the stream {key} is without its log now; `{undo}` gives it back");
    }
    let entries = match ids {
        Some((first, last)) => format!("the entries {first} to {last}"),
        None => "no readable entry".to_string(),
    };
    format!(
        ": the stream {key} has {entries} now; if they are not its own, `{undo}` undoes the rename"
    )
}

fn json_of(
    place: &LogPlace,
    args: &Rename,
    stream: Option<&StreamWithoutLog>,
    ids: Option<&(String, String)>,
) -> Value {
    json!({
        "dir": place.store.directory(), "image": image(place),
        "log": args.old, "renamed_to": args.new,
        "stream": stream.map(|stream| escape(&stream.key)),
        "first_id": ids.map(|(first, _)| first), "last_id": ids.map(|(_, last)| last),
    })
}

/// Returns the command for a rename with `--yes`, as a shell reads it.
fn command(place: &LogPlace, old: &str, new: &str) -> String {
    let words = [place.argument.as_str(), old, new];
    let all = words.map(|word| for_shell(word.as_bytes())).join(" ");
    match words.iter().any(|word| word.starts_with('-')) {
        true => format!("basalt log rename --yes -- {all}"),
        false => format!("basalt log rename {all} --yes"),
    }
}
