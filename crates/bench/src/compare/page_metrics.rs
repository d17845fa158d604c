//! The figures of a tree of pages in the results of a run: its mapping table, its system log, and
//! the bytes of its pages.

use crate::report::round;
use basalt::PageTreeStats;
use serde_json::{Value, json};

/// Returns the figures of a tree for the results of a run that put `put_bytes` bytes of keys and
/// values. `start` has the statistics before the run, `end` those after it. The object is empty if
/// the engine has no tree of pages.
pub fn page_metrics(
    start: Option<&PageTreeStats>,
    end: Option<&PageTreeStats>,
    put_bytes: u64,
) -> Value {
    let Some(end) = end else {
        return json!({});
    };
    let none = PageTreeStats::default();
    let start = start.unwrap_or(&none);
    let per_put = |bytes: u64| (put_bytes > 0).then(|| round(bytes as f64 / put_bytes as f64));
    let system_log = end.system_log_bytes_written - start.system_log_bytes_written;
    let written = end.bytes_written() - start.bytes_written();
    json!({
        "mapping_bytes": end.mapping_bytes,
        "mapped_pages": end.mapped_pages,
        "system_log_bytes": end.system_log_bytes,
        "system_log_bytes_written": system_log,
        "system_log_per_user_byte": per_put(system_log),
        "system_checkpoints": end.system_checkpoints - start.system_checkpoints,
        "page_bytes_written": written - system_log,
        "page_write_amp": per_put(written),
        "page_space_amp": round(end.space_amp()),
        "extent_bytes": end.extent_bytes(),
        "extent_garbage_bytes": end.garbage_bytes(),
        "delta_pages": end.delta_pages,
        "mean_delta_pages": round(end.mean_chain()),
    })
}
