//! The limit of the page mapping table's memory. Leaves leave the table when the index page above
//! them is written again with their new ids, so the index pages with most such leaves go first.

use crate::page_id::PageId;
use crate::storage::Storage;
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::BTreeSet;

/// Index pages that are rewritten between two checks of the memory.
const PAGES_BETWEEN_CHECKS: usize = 16;

/// The number of mapped leaves below index pages, with a key below each.
type MappedLeaves = Vec<(u64, Vec<u8>)>;

impl Storage {
    /// Reduces the memory of the page mapping table to four fifths of
    /// [`crate::TreeOptions::mapping_bytes`] if it exceeds that. To do so, rewrites index pages,
    /// and the leaves below them that have delta pages. Stops when `goes_on` returns false. Entries
    /// that only old snapshots need are kept.
    ///
    /// Cost: below the limit, a look at each entry of the table. Above it, a read of all index
    /// pages, through the cache, and writes of the leaves with delta pages below those that are
    /// written again.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was written before stays so.
    /// Damage of a page is returned when the others are done. What is below a damaged index page of
    /// a higher level is left out.
    pub fn limit_mapping(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        self.mapping.shrink();
        let most = self.options.mapping_bytes;
        self.book_mapping();
        // What older readers need counts when they are gone.
        if self.mapping.sums(usize::MAX).newest_memory <= most || !goes_on() {
            return Ok(());
        }
        let (mut crowded, mut failed) = self.mapped_leaves()?;
        crowded.sort_unstable_by(|a, b| b.cmp(a));
        for batch in crowded.chunks(PAGES_BETWEEN_CHECKS) {
            for (_, low) in batch {
                if !goes_on() {
                    return failed.map_or(Ok(()), Err);
                }
                match self.rename_leaves(low) {
                    // An index page that cannot be read keeps no other one from its turn.
                    Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                    renamed => renamed?,
                }
            }
            self.mapping.shrink();
            self.book_mapping();
            if self.mapping.sums(usize::MAX).newest_memory <= most / 5 * 4 {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Books the memory of the table. Returns it.
    pub fn book_mapping(&self) -> u64 {
        let memory = self.mapping.sums(usize::MAX).memory;
        self.mapping_memory.lock().resize(memory);
        memory
    }

    /// Returns one pair for each index page of level 1 with leaves in the table: the number of
    /// these leaves, and a key below the index page. If an index page is damaged, returns its
    /// error, and the pairs without what is below it.
    fn mapped_leaves(&self) -> Result<(MappedLeaves, Option<Error>)> {
        // Without it, a rollback could take pages away that the view names.
        let _maintenance = self.maintenance.exclusive();
        let view = self.view();
        let (mut found, mut failed) = (MappedLeaves::new(), None);
        let mut visited = BTreeSet::new();
        // Index pages, with their smallest keys.
        let mut unvisited = vec![(view.root.id, view.root.level, Vec::new())];
        while let Some((key, level, low)) = unvisited.pop() {
            if level == 0 {
                continue;
            }
            let base = self.mapping.base_of(key, view.time).unwrap_or(key);
            if !visited.insert(base) {
                failed = failed.or(Some(self.named_twice(base)));
                continue;
            }
            let page = match self.index_page(&view, key, level) {
                Ok(page) => page,
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    failed = failed.or(Some(e));
                    continue;
                }
                Err(e) => return Err(e),
            };
            let children = (0..page.count()).map(|i| page.child(i));
            if level > 1 {
                let lows = (0..page.count()).map(|i| page.key(i));
                unvisited.extend(
                    children
                        .zip(lows)
                        .map(|(child, low)| (child, level - 1, low)),
                );
                continue;
            }
            let is_mapped = |leaf: &PageId| self.mapping.has_live_page(*leaf);
            let leaves = children.filter(is_mapped).count() as u64;
            if leaves > 0 {
                found.push((leaves, low));
            }
        }
        Ok((found, failed))
    }
}
