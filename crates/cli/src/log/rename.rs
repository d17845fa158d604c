//! `log rename`.

use super::LogPlace;
use super::show::image;
use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::log_args::Rename;
use crate::output::print;
use crate::store::Access;
use basalt::ErrorKind;
use serde_json::json;

/// Runs `basalt log rename`.
pub fn rename(place: &LogPlace, args: &Rename) -> Outcome {
    // The name of a stream as the new one gives a stream its log back after a repair.
    place.refuse_stream(&args.old)?;
    let (old, new) = (escape(args.old.as_bytes()), escape(args.new.as_bytes()));
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
