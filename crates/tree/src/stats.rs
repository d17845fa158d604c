//! Statistics of a tree.

/// What a tree has and costs. Counters begin at 0 when the tree is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageTreeStats {
    /// Levels of index pages.
    pub levels: u64,
    /// Entries of the page mapping table.
    pub mapped_pages: u64,
    /// Bytes of memory of the page mapping table, about.
    pub mapping_bytes: u64,
    /// Number of leaves that have delta pages.
    pub leaves_with_deltas: u64,
    /// Number of index pages that have delta pages, with changes of the leaves below them.
    pub index_pages_with_deltas: u64,
    /// Bytes of the delta pages of index pages.
    pub index_delta_bytes: u64,
    /// Number of delta pages. A page shared by several leaves counts once for each.
    pub delta_pages: u64,
    /// Delta pages of the leaf or index page that has most.
    pub longest_chain: u64,
    /// Number of leaves and of index pages whose delta pages are due for a compaction. Index pages
    /// count although the name has only leaves.
    pub due_leaves: u64,
    /// Bytes of the delta pages of leaves and of index pages that are due for a compaction. A page
    /// shared by several leaves counts once for each that is due.
    pub due_delta_bytes: u64,
    /// Bytes of valid base pages.
    pub base_bytes: u64,
    /// Bytes of valid delta pages. A page shared by several leaves counts once for each.
    pub delta_bytes: u64,
    /// Bytes of the largest page of each leaf, and of all index pages: at least this much is left
    /// when all leaves are written again, unless delta pages delete keys.
    pub least_bytes: u64,
    /// Number of extents of base pages.
    pub base_extents: u64,
    /// Number of extents of delta pages.
    pub delta_extents: u64,
    /// Bytes that all extents of base pages take on the device. These are fewer than the lengths
    /// of their files after the space of garbage pages was released.
    pub base_extent_bytes: u64,
    /// Bytes that all extents of delta pages take on the device, as for base pages.
    pub delta_extent_bytes: u64,
    /// Bytes of memory of the ranges of valid bytes in extents of base pages.
    pub extent_range_bytes: u64,
    /// Number of extents of base pages whose ranges were dropped to save memory.
    pub extents_without_ranges: u64,
    /// Number of extents whose ranges were derived from index pages, since the tree was opened.
    pub derived_extent_ranges: u64,
    /// Bytes on the device in extents of base pages that no valid page has, headers included.
    pub base_garbage_bytes: u64,
    /// Bytes on the device in extents of delta pages that no valid page has, headers included. The
    /// number is a lower bound: a page shared by several leaves hides garbage of its extent.
    pub delta_garbage_bytes: u64,
    /// Bytes of base pages that were written.
    pub base_bytes_written: u64,
    /// Bytes of delta pages that were written.
    pub delta_bytes_written: u64,
    /// Bytes of pages that user checkpoints wrote.
    pub flush_bytes_written: u64,
    /// Bytes of pages that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Bytes of pages that garbage collections wrote. If a collection has to split a leaf, the
    /// pages of that leaf count for compactions.
    pub collection_bytes_written: u64,
    /// Bytes of the system log since the last system checkpoint.
    pub system_log_bytes: u64,
    /// Bytes of system transactions and system checkpoints that were written.
    pub system_log_bytes_written: u64,
    /// Number of system checkpoints that were taken.
    pub system_checkpoints: u64,
    /// Number of leaves and index pages that were chosen for a merge because readers had paid for
    /// it, since the tree was opened.
    pub leaves_merged_for_readers: u64,
    /// Number of leaves that were chosen for a merge because they were cold, since the tree was
    /// opened.
    pub cold_leaves_merged: u64,
    /// Bytes on the device that releases of garbage pages have freed in extents that were not
    /// erased, since the tree was opened.
    pub released_bytes: u64,
    /// Number of releases of garbage pages that the filesystem refused with an error, one for each
    /// extent and attempt, since the tree was opened. Their space stays until the extent is
    /// collected. A filesystem without holes does not count.
    pub failed_releases: u64,
}

impl PageTreeStats {
    /// Returns the bytes that all extents take on the device, garbage included.
    pub fn extent_bytes(&self) -> u64 {
        self.base_extent_bytes + self.delta_extent_bytes
    }

    /// Returns the bytes on the device in all extents that no valid page has.
    pub fn garbage_bytes(&self) -> u64 {
        self.base_garbage_bytes + self.delta_garbage_bytes
    }

    /// Returns the average number of delta pages of the leaves and index pages that have some, and
    /// 0 if none has.
    pub fn mean_chain(&self) -> f64 {
        let pages = self.leaves_with_deltas + self.index_pages_with_deltas;
        self.delta_pages as f64 / pages.max(1) as f64
    }

    /// Returns an estimate of the space amplification: bytes of extents on the device divided by
    /// [`PageTreeStats::least_bytes`]. It is too low if delta pages delete many keys.
    pub fn space_amp(&self) -> f64 {
        self.extent_bytes() as f64 / self.least_bytes.max(1) as f64
    }

    /// Returns the bytes that were written: pages, system transactions and system checkpoints.
    pub fn bytes_written(&self) -> u64 {
        self.base_bytes_written + self.delta_bytes_written + self.system_log_bytes_written
    }
}
