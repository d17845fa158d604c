//! Keeps new data ready for readers. The job that made a file also opens it. If the cache has a
//! value that moved, the value stays cached under its new place.

use super::engine::Engine;
use basalt_env::CacheKey;

impl Engine {
    /// Opens files that just became part of the tree, so that no reader waits for it. Errors are
    /// left for readers to report.
    pub(super) fn open_new(&self, tables: &[u64], blobs: &[u64]) {
        let view = self.tree.view();
        let version = &view.version;
        for family in version.families.values() {
            for table in family.levels[0]
                .iter()
                .filter(|t| tables.contains(&t.number))
            {
                let _ = table.reader();
            }
        }
        for file in blobs.iter().filter_map(|n| version.blobs.files.get(n)) {
            let _ = file.reader();
        }
    }

    /// Renames cached values that have moved to these new files. From here on the cache has them
    /// under their new places. A record says which version of which key it is, wherever it is
    /// stored, and a cache hit is checked against that.
    pub(super) fn cache_moves(&self, renamed: &[(CacheKey, CacheKey)], blobs: &[u64]) {
        if !renamed.is_empty() {
            self.open_new(&[], blobs);
        }
        for (from, to) in renamed {
            self.ctx.env.cache().rename(*from, *to);
        }
    }
}
