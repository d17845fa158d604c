//! `log rename`.

use super::LogPlace;
use super::show::image;
use crate::check::lost_streams;
use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::log_args::Rename;
use crate::output::print;
use crate::store::Access;
use basalt::ErrorKind;
use basalt_log::Log;
use basalt_server::layout::STREAM_LOG_PREFIX;
use basalt_server::stream_check::StreamWithoutLog;
use serde_json::json;

/// The beginning of the names that a repair gives to logs whose names are lost.
const RECOVERED: &str = "recovered-";

/// Runs `basalt log rename`.
pub fn rename(place: &LogPlace, args: &Rename) -> Outcome {
    // A wrong rename to a stream's name can be undone.
    if !args.new.starts_with(RECOVERED) {
        place.refuse_stream(&args.old)?;
    }
    let (old, new) = (escape(args.old.as_bytes()), escape(args.new.as_bytes()));
    let stream = match args.new.starts_with(STREAM_LOG_PREFIX) {
        true => Some(stream_without_log(place, &args.new)?),
        false => None,
    };
    let engine = place.open(Access::Remove)?;
    let log = place.log(&engine, &args.old)?;
    if let Some(stream) = &stream
        && !args.yes
        && let Some(what) = stream.difference(&log).map_err(|e| place.failure(e))?
    {
        return Err(Failure::new(format!(
            "{old} does not seem to be the log of the stream {}: {what}; run it with --yes if it is",
            escape(&stream.key)
        )));
    }
    let taken = match &stream {
        Some(stream) => describe_stream(place, args, stream, &log)?,
        None => String::new(),
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
    print(&match args.json {
        true => format!(
            "{:#}\n",
            json!({
                "dir": place.store.directory(), "image": image(place),
                "log": args.old, "renamed_to": args.new,
            })
        ),
        false => format!("{old} is named {new}{taken}\n"),
    })?;
    Ok(0)
}

/// Returns a clause that says which entries a stream gets by the rename, and how to undo it.
///
/// Errors: those of reads.
fn describe_stream(
    place: &LogPlace,
    args: &Rename,
    stream: &StreamWithoutLog,
    log: &Log,
) -> Result<String, Failure> {
    let entries = match StreamWithoutLog::ids(log).map_err(|e| place.failure(e))? {
        Some((first, last)) => format!("the entries {first} to {last}"),
        None => "no readable entry".to_string(),
    };
    Ok(format!(
        ": the stream {} has {entries} now; if they are not its own, `basalt log rename {} {} {}` undoes the rename",
        escape(&stream.key),
        place.argument,
        args.new,
        args.old
    ))
}

/// Returns the stream whose log is missing and must have this name.
///
/// Errors: a message if no stream lacks such a log. The server removes logs whose names belong to
/// no stream, so the command gives such a name only to restore a missing log.
fn stream_without_log(place: &LogPlace, name: &str) -> Result<StreamWithoutLog, Failure> {
    // Its locks are released before the store is opened for the change.
    let keys = place.locate(Access::Read)?.keys;
    let missing = match &keys {
        Some(keys) => lost_streams(keys, &[])?,
        None => Vec::new(),
    };
    let stream = missing.into_iter().find(|stream| stream.log == name);
    stream.ok_or_else(|| {
        Failure::new(format!(
            "cannot rename a log to {}: names with this prefix are for streams of the server, and no stream of {} lacks this log; choose another name",
            escape(name.as_bytes()),
            place.store
        ))
    })
}
