//! `checkpoint`: a copy of a closed store that shares its tables.

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::progress::{count, human_bytes};
use crate::store::{Access, open_db};
use basalt::CheckpointOptions;
use basalt::ErrorKind;
use serde_json::json;

/// Runs `basalt checkpoint`.
pub fn checkpoint(args: args::Checkpoint) -> Outcome {
    let place = &args.store;
    let out = match place.image {
        Some(_) => args.out.clone(),
        None => std::path::absolute(&args.out).map_err(|e| Failure::os("find", &args.out, e))?,
    };
    let db = open_db(place, Access::Remove, None)?;
    let options = CheckpointOptions::default().copy_tables(args.copy);
    let made = db.checkpoint(&out, &options);
    db.close().map_err(|e| Failure::store(place, e))?;
    let made = made.map_err(|e| match e.kind() {
        ErrorKind::Unsupported => Failure::new(format!("{e}; --copy does")),
        // A target such as /backup is meant to be on the disk.
        ErrorKind::NotFound if let Some(image) = &place.image => Failure::new(format!(
            "{0} has no directory {1}: with --image the copy is made inside of the image, and `basalt fs cp {0}:NAME DIR` takes it out; name a directory of the image, or make one with `basalt fs mkdir`",
            image.display(),
            args.out.parent().unwrap_or(&args.out).display()
        )),
        // These errors concern the copy and not the store.
        ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Busy => {
            Failure::new(e.to_string())
        }
        _ => Failure::store(place, e),
    })?;
    print(&if args.json {
        let report = json!({
            "dir": place.directory(), "out": args.out.display().to_string(), "tables": made.tables,
            "linked_bytes": made.linked_bytes, "copied_bytes": made.copied_bytes, "log_bytes": made.log_bytes,
        });
        format!("{report:#}\n")
    } else {
        let out = match &place.image {
            None => args.out.display().to_string(),
            Some(image) => format!("{}:{}", image.display(), args.out.display()),
        };
        format!(
            "{out}: {}, {} linked, {} copied, {} of log\n",
            count(made.tables, "table", "tables"),
            human_bytes(made.linked_bytes),
            human_bytes(made.copied_bytes),
            human_bytes(made.log_bytes)
        )
    })?;
    Ok(0)
}
