//! The limit of the page mapping table's memory. Leaves leave the table when the index page above
//! them is written again with their new ids, so the index pages with most such leaves go first.

use crate::page_id::PageId;
use crate::storage::Storage;
use basalt_fs::{ErrorKind, Result};

/// Index pages that are written again between two looks at the whole table.
const PAGES_BETWEEN_LOOKS: usize = 16;

impl Storage {
    /// Writes leaves with delta pages and their index pages again if the page mapping table has
    /// more memory than the options allow, until it has four fifths of that, as long as `goes_on`
    /// returns true. What only old snapshots need stays.
    ///
    /// Cost: below the limit, a look at each entry of the table. Above it, a read of all index
    /// pages, through the cache, and writes of the leaves with delta pages below those that are
    /// written again.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was written before stays so.
    /// Damage of a page is returned when the others are done.
    pub fn limit_mapping(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        self.mapping.give_back_room();
        let most = self.options.mapping_bytes;
        if self.book_mapping() <= most {
            return Ok(());
        }
        let mut crowded = self.mapped_leaves()?;
        crowded.sort_unstable_by(|a, b| b.cmp(a));
        let mut failed = None;
        for some in crowded.chunks(PAGES_BETWEEN_LOOKS) {
            for (_, low) in some {
                if !goes_on() {
                    break;
                }
                match self.rename_leaves(low) {
                    // An index page that cannot be read keeps no other one from its turn.
                    Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                    renamed => renamed?,
                }
            }
            self.mapping.give_back_room();
            if self.book_mapping() <= most / 5 * 4 {
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

    /// Returns, for each index page above leaves that the table has, their number and a key below
    /// it.
    fn mapped_leaves(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let view = self.view();
        let mut found = Vec::new();
        let mut low = Some(Vec::new()).filter(|_| view.root.level > 0);
        while let Some(key) = low {
            let path = self.path(&view, &key)?;
            let page = &path.steps.last().expect("the root is an index page").page;
            let leaves = (0..page.count()).map(|i| page.child(i));
            let is_mapped = |leaf: &PageId| self.mapping.has(*leaf);
            let leaves = leaves.filter(is_mapped).count() as u64;
            if leaves > 0 {
                found.push((leaves, key));
            }
            low = path.end_of_parent();
        }
        Ok(found)
    }
}
