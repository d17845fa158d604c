//! `compact`: merges the tables of a closed store with a progress bar. Ctrl-C ends it without harm.

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::progress::{self, human_bytes};
use crate::store::{Access, open_db};
use basalt::ErrorKind;
use basalt::{BlobStats, Bottommost, CompactOptions, PageTreeStats, Stats};
use indicatif::ProgressBar;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `basalt compact`.
pub fn compact(args: args::Compact) -> Outcome {
    let place = &args.store;
    let db = open_db(place, Access::Remove, Some(&args.budget))?;
    let names = match &args.family {
        Some(name) => vec![name.clone()],
        None => db.families(),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without this flag the process ends at once, which does no harm either. A second Ctrl-C
        // ends the program at any point, without a loss.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            interrupted.clone(),
        );
        let _ = signal_hook::flag::register(signal, interrupted.clone());
    }
    let bytes = || -> u64 {
        let stats = db.stats();
        let levels = stats.families.iter().flat_map(|f| &f.levels);
        levels.map(|l| l.bytes).sum()
    };
    let values = || db.stats().blobs;
    let pages = || PageBytes::of(&db.stats());
    let (before, values_before, pages_before, mut read) = (bytes(), values().bytes, pages(), 0);
    for name in names {
        let Some(family) = db.family(&name) else {
            return Err(Failure::new(format!(
                "the store has no family {name}; it has {}",
                db.families().join(", ")
            )));
        };
        let bar = progress::bytes("compacting", Some(0));
        let options = options(&args, &bar, &interrupted);
        let done = db.compact(&family, &options);
        bar.finish_and_clear();
        read += options.control.progress().done_bytes;
        if let Err(e) = done {
            return Err(match e.kind() {
                ErrorKind::Cancelled => Failure::new(format!(
                    "interrupted after {}; finished merges stay, no data is lost, and the command can be repeated",
                    human_bytes(read)
                )),
                _ => Failure::store(place, e),
            });
        }
    }
    if pages_before.extents > 0 {
        // Extents of pages that were written again become free in the background.
        db.wait_idle().map_err(|e| Failure::store(place, e))?;
    }
    // The total includes compactions that were due anyway and began at the open.
    let read = read.max(db.stats().compaction_bytes_read);
    // Old files are removed before the store is closed, so that the number is that of the
    // directory.
    let after = bytes();
    let values = values();
    let in_pages = pages();
    db.close().map_err(|e| Failure::store(place, e))?;
    print(&if args.json {
        let report = json!({
            "dir": place.directory(), "merged_bytes": read,
            "table_bytes_before": before, "table_bytes_after": after, "value_bytes_relocated": values.relocated_bytes,
            "page_bytes_before": pages_before.extents, "page_bytes_after": in_pages.extents, "page_bytes_written": in_pages.written,
            "delta_bytes_before": pages_before.deltas, "delta_bytes_after": in_pages.deltas,
            "blob_bytes_before": values_before, "blob_bytes_after": values.bytes, "blob_garbage_bytes": values.garbage_bytes(),
        });
        format!("{report:#}\n")
    } else {
        // A store that has only pages says nothing of tables.
        let of_tables = match (before + after, pages_before.extents + in_pages.extents) {
            (0, 1..) => String::new(),
            _ => format!(
                "{} merged; tables had {}, now {}\n",
                human_bytes(read),
                human_bytes(before),
                human_bytes(after)
            ),
        };
        of_tables + &of_pages(&pages_before, &in_pages) + &of_values(&args, values_before, &values)
    })?;
    Ok(0)
}

/// Bytes of pages, all families together.
struct PageBytes {
    /// Bytes of extents, garbage included.
    extents: u64,
    /// Bytes of delta pages.
    deltas: u64,
    /// Bytes of pages that were written since the store was opened.
    written: u64,
}

impl PageBytes {
    fn of(stats: &Stats) -> PageBytes {
        let sum = |of: fn(&PageTreeStats) -> u64| stats.pages().map(of).sum();
        PageBytes {
            extents: sum(PageTreeStats::extent_bytes),
            deltas: sum(|pages| pages.delta_bytes),
            written: sum(|pages| pages.base_bytes_written + pages.delta_bytes_written),
        }
    }
}

/// Returns the report about pages, if there are any.
fn of_pages(before: &PageBytes, after: &PageBytes) -> String {
    if before.extents == 0 && after.extents == 0 {
        return String::new();
    }
    format!(
        "{} of pages written; delta pages had {}, now {}; files of pages had {}, now {}\n",
        human_bytes(after.written),
        human_bytes(before.deltas),
        human_bytes(after.deltas),
        human_bytes(before.extents),
        human_bytes(after.extents)
    )
}

/// Returns the report about blob files, if there are any.
fn of_values(args: &args::Compact, before: u64, after: &BlobStats) -> String {
    let mut said = String::new();
    if before > 0 || after.bytes > 0 {
        said = format!(
            "blob files had {}, now {}, with {} of values\n",
            human_bytes(before),
            human_bytes(after.bytes),
            human_bytes(after.live_bytes)
        );
    }
    if args.relocate_values {
        said += &format!(
            "{} of values relocated\n",
            human_bytes(after.relocated_bytes)
        );
    }
    said
}

/// Returns options that move the bar and check for Ctrl-C with each table.
fn options(
    args: &args::Compact,
    bar: &ProgressBar,
    interrupted: &Arc<AtomicBool>,
) -> CompactOptions {
    let mut options = CompactOptions::default()
        .bottommost(match args.bottommost {
            args::Bottommost::Force => Bottommost::Force,
            args::Bottommost::Skip => Bottommost::Skip,
            args::Bottommost::IfFilter => Bottommost::IfFilter,
        })
        .relocate_values(args.relocate_values);
    let (bar, interrupted, control) = (bar.clone(), interrupted.clone(), options.control.clone());
    options.progress = Some(Arc::new(move |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.done_bytes);
        if interrupted.load(Ordering::Relaxed) {
            control.cancel();
        }
    }));
    options
}
