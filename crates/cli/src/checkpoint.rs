//! `checkpoint`: a copy of a closed store that shares its files.

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::progress::{count, human_bytes};
use crate::store::{Access, open_all};
use basalt::log::LogCopyReport;
use basalt::{CheckpointOptions, ErrorKind};
use serde_json::json;

/// Runs `basalt checkpoint`.
pub fn checkpoint(args: args::Checkpoint) -> Outcome {
    let place = &args.store;
    let out = match place.image {
        Some(_) => args.out.clone(),
        None => std::path::absolute(&args.out).map_err(|e| Failure::os("find", &args.out, e))?,
    };
    let store = open_all(place, Access::Remove)?;
    let options = CheckpointOptions::default().copy_tables(args.copy);
    let made = store.checkpoint(&out, &options);
    store.close().map_err(|e| Failure::store(place, e))?;
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
    let (tables, logs) = (made.tables, made.logs);
    print(&if args.json {
        let of_logs = |logs: LogCopyReport| {
            json!({
                "files": logs.files, "linked_bytes": logs.linked_bytes,
                "copied_bytes": logs.copied_bytes,
            })
        };
        let report = json!({
            "dir": place.directory(), "out": args.out.display().to_string(), "tables": tables.tables,
            "page_families": tables.page_families, "page_files": tables.page_files, "page_bytes": tables.page_bytes,
            "linked_bytes": tables.linked_bytes, "copied_bytes": tables.copied_bytes, "log_bytes": tables.log_bytes,
            "logs": logs.map(of_logs),
        });
        format!("{report:#}\n")
    } else {
        let out = match &place.image {
            None => args.out.display().to_string(),
            Some(image) => format!("{}:{}", image.display(), args.out.display()),
        };
        let pages = match tables.page_families {
            0 => String::new(),
            families => format!(
                ", {} of pages of {} in {}",
                human_bytes(tables.page_bytes),
                count(families, "family", "families"),
                count(tables.page_files, "file", "files")
            ),
        };
        let mut text = format!(
            "{out}: {}{pages}, {} linked, {} copied, {} of log\n",
            count(tables.tables, "table", "tables"),
            human_bytes(tables.linked_bytes),
            human_bytes(tables.copied_bytes),
            human_bytes(tables.log_bytes)
        );
        if let Some(logs) = logs {
            text += &format!(
                "{out}: {} of logs, {} linked, {} copied\n",
                count(logs.files, "file", "files"),
                human_bytes(logs.linked_bytes),
                human_bytes(logs.copied_bytes)
            );
        }
        text
    })?;
    Ok(0)
}
