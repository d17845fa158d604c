//! What is new is at hand when it is asked for: files are opened by the job that made them, and what the cache had of a value
//! that moved goes along.

use super::engine::Engine;
use basalt_env::CacheKey;

impl Engine {
    /// Opens what just became part of the tree, so that no reader waits for it. What fails is for readers to meet.
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

    /// Values have moved to these new files. The cache has them under their new places from here on; a record says which version of which
    /// key it is wherever it lies, and that is what a hit is held against.
    pub(super) fn cache_moves(&self, renamed: &[(CacheKey, CacheKey)], blobs: &[u64]) {
        if !renamed.is_empty() {
            self.open_new(&[], blobs);
        }
        for (from, to) in renamed {
            self.ctx.env.cache().rename(*from, *to);
        }
    }
}
