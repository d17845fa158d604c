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
use basalt_server::layout::STREAM_LOG_PREFIX;
use serde_json::json;

/// Runs `basalt log rename`.
pub fn rename(place: &LogPlace, args: &Rename) -> Outcome {
    place.refuse_stream(&args.old)?;
    let (old, new) = (escape(args.old.as_bytes()), escape(args.new.as_bytes()));
    // The server removes logs with names of streams that no stream has. After a repair, a log gets
    // the name of its stream back.
    if args.new.starts_with(STREAM_LOG_PREFIX) {
        // Its locks are released before the store is opened for the change.
        let keys = place.locate(Access::Read)?.keys;
        let missing = match &keys {
            Some(keys) => lost_streams(keys, &[])?,
            None => Vec::new(),
        };
        if !missing.iter().any(|stream| stream.log == args.new) {
            return Err(Failure::new(format!(
                "cannot name a log {new}: such names are of streams of the server, and no stream of {} has a log with this name; choose another name",
                place.store
            )));
        }
    }
    let engine = place.open(Access::Remove)?;
    drop(place.log(&engine, &args.old)?);
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
        false => format!("{old} is named {new}\n"),
    })?;
    Ok(0)
}
