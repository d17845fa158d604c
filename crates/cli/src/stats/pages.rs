//! A family that is kept in pages, in the report of `stats`.

use super::rounded;
use crate::output::rows;
use crate::progress::{count, human_bytes};
use basalt::{FamilyStats, PageTreeStats};
use serde_json::{Value, json};

/// Returns the section of a family. Without a number of leaves, the index pages cannot be read.
pub fn section(family: &FamilyStats, pages: &PageTreeStats, leaves: Option<u64>) -> String {
    let levels = count(pages.levels, "level", "levels");
    let head = format!(
        "\nfamily {}, in pages, {levels} of index pages\n",
        family.name
    );
    let leaves = leaves.map_or_else(|| "unknown".to_string(), |leaves| leaves.to_string());
    let extents = |bytes, extents, extent_bytes, garbage| {
        format!(
            "{} in {} of {}, {} of them garbage",
            human_bytes(bytes),
            count(extents, "extent", "extents"),
            human_bytes(extent_bytes),
            human_bytes(garbage)
        )
    };
    let base = extents(
        pages.base_bytes,
        pages.base_extents,
        pages.base_extent_bytes,
        pages.base_garbage_bytes,
    );
    let deltas = extents(
        pages.delta_bytes,
        pages.delta_extents,
        pages.delta_extent_bytes,
        pages.delta_garbage_bytes,
    );
    let chains = format!(
        "{:.2} on average, {} at most",
        pages.mean_chain(),
        pages.longest_chain
    );
    let due = format!(
        "{} with {} of delta pages, debt {:.2}",
        count(pages.due_leaves, "leaf", "leaves"),
        human_bytes(pages.due_delta_bytes),
        family.page_debt
    );
    let mapping = format!(
        "{}, {} of memory",
        count(pages.mapped_pages, "page", "pages"),
        human_bytes(pages.mapping_bytes)
    );
    let ranges = format!(
        "{} of memory, {} without",
        human_bytes(pages.extent_range_bytes),
        count(pages.extents_without_ranges, "extent", "extents")
    );
    let written = [
        pages.flush_bytes_written,
        pages.compaction_bytes_written,
        pages.collection_bytes_written,
        pages.system_log_bytes_written,
    ];
    head + &rows(&[
        (
            "leaves / with delta pages",
            format!("{leaves} / {}", pages.leaves_with_deltas),
        ),
        ("base pages", base),
        ("delta pages", format!("{}, {deltas}", pages.delta_pages)),
        ("delta pages of a leaf", chains),
        (
            "index pages with delta pages",
            format!(
                "{}, {}",
                pages.index_pages_with_deltas,
                human_bytes(pages.index_delta_bytes)
            ),
        ),
        ("due for a compaction", due),
        (
            "space amplification, at most",
            format!("{:.2}", pages.space_amp()),
        ),
        ("page mapping table", mapping),
        ("valid ranges of extents", ranges),
        (
            "system log",
            format!(
                "{} since the last system checkpoint",
                human_bytes(pages.system_log_bytes)
            ),
        ),
        (
            "flush/compaction/gc/log wrote",
            written.map(human_bytes).join(" / "),
        ),
    ])
}

/// Returns a family as `--json` shows it.
pub fn json(family: &FamilyStats, pages: &PageTreeStats, leaves: Option<u64>) -> Value {
    let since_open = json!({
        "flush_bytes_written": pages.flush_bytes_written,
        "compaction_bytes_written": pages.compaction_bytes_written,
        "collection_bytes_written": pages.collection_bytes_written,
        "base_bytes_written": pages.base_bytes_written, "delta_bytes_written": pages.delta_bytes_written,
        "system_log_bytes_written": pages.system_log_bytes_written,
        "system_checkpoints": pages.system_checkpoints,
        "leaves_merged_for_readers": pages.leaves_merged_for_readers,
        "cold_leaves_merged": pages.cold_leaves_merged,
        "derived_extent_ranges": pages.derived_extent_ranges,
        "released_bytes": pages.released_bytes,
        "failed_releases": pages.failed_releases,
    });
    json!({
        "index_levels": pages.levels, "leaves": leaves, "leaves_with_deltas": pages.leaves_with_deltas,
        "index_pages_with_deltas": pages.index_pages_with_deltas, "index_delta_bytes": pages.index_delta_bytes,
        "base_bytes": pages.base_bytes, "delta_pages": pages.delta_pages, "delta_bytes": pages.delta_bytes,
        "longest_chain": pages.longest_chain, "mean_chain": rounded(pages.mean_chain()),
        "due_leaves": pages.due_leaves, "due_delta_bytes": pages.due_delta_bytes, "debt": rounded(family.page_debt),
        "base_extents": {
            "extents": pages.base_extents, "bytes": pages.base_extent_bytes,
            "garbage_bytes": pages.base_garbage_bytes,
        },
        "delta_extents": {
            "extents": pages.delta_extents, "bytes": pages.delta_extent_bytes,
            "garbage_bytes": pages.delta_garbage_bytes,
        },
        "least_bytes": pages.least_bytes, "space_amp": rounded(pages.space_amp()),
        "mapped_pages": pages.mapped_pages, "mapping_bytes": pages.mapping_bytes,
        "extent_range_bytes": pages.extent_range_bytes,
        "extents_without_ranges": pages.extents_without_ranges,
        "system_log_bytes": pages.system_log_bytes,
        "since_open": since_open,
    })
}
