//! Statistics of a tree.

/// What a tree has and costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageTreeStats {
    /// Levels of index pages.
    pub levels: u64,
    /// Entries of the page mapping table.
    pub mapped_pages: u64,
    /// Bytes of valid base pages.
    pub base_bytes: u64,
    /// Bytes of valid delta pages. A page shared by several leaves counts once for each.
    pub delta_bytes: u64,
    /// Bytes of all extents of base pages.
    pub base_extent_bytes: u64,
    /// Bytes of all extents of delta pages.
    pub delta_extent_bytes: u64,
    /// Bytes of base pages that were written since the tree was opened.
    pub base_bytes_written: u64,
    /// Bytes of delta pages that were written since the tree was opened.
    pub delta_bytes_written: u64,
    /// Bytes of the system log since the last system checkpoint.
    pub system_log_bytes: u64,
}
