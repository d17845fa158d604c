//! What blob files a store has, for people who ask: what is alive in each, of whom, and what names stand for it.

use super::engine::Engine;
use crate::version::blob_names;
use basalt_blob::BlobMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One blob file. See [`super::Db::blob_files`].
#[derive(Debug, Clone)]
pub struct BlobFileStats {
    /// Its number.
    pub number: u64,
    /// The name of the file with its records in the store's directory; a log, when `meta` has an index of its own.
    pub name: String,
    /// What the manifest remembers of it: size, digest, records, sequence numbers.
    pub meta: Arc<BlobMeta>,
    /// When it was made, ms since 1970. `None` where the manifest does not say: of files that a repair found, or an older version wrote.
    pub made_ms: Option<u64>,
    /// What is whose, by family id.
    pub families: Vec<BlobFamilyStats>,
    /// Numbers of collected files that stand for this one, for some of their keys.
    pub names: Vec<u64>,
}

/// One family in a blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFamilyStats {
    /// Its id.
    pub id: u32,
    /// Its name; `None` when it was dropped, and then nothing of it is alive.
    pub name: Option<String>,
    /// Records in the file.
    pub records: u64,
    /// Their bytes, header and key included.
    pub bytes: u64,
    /// Records that tables refer to.
    pub live_records: u64,
    /// Their bytes, header and key included.
    pub live_bytes: u64,
}

impl BlobFileStats {
    /// Bytes that tables refer to, of all families.
    pub fn live_bytes(&self) -> u64 {
        self.families.iter().map(|f| f.live_bytes).sum()
    }

    /// Records that tables refer to, of all families.
    pub fn live_records(&self) -> u64 {
        self.families.iter().map(|f| f.live_records).sum()
    }

    /// Bytes on disk, a separate index included.
    pub fn bytes(&self) -> u64 {
        self.meta.size + self.meta.index.map_or(0, |i| i.size)
    }

    /// Bytes on disk that nothing refers to.
    pub fn garbage_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.live_bytes())
    }
}

impl Engine {
    /// All blob files, by number.
    pub fn blob_files(&self) -> Vec<BlobFileStats> {
        let view = self.tree.view();
        let state = self.tree.lock();
        let catalog = &state.catalog();
        let mut names: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for group in catalog.lineage.groups().values() {
            for (_, to) in group.targets.values().flatten() {
                names.entry(*to).or_default().extend(&group.names);
            }
        }
        let file = |(number, blob): (&u64, &crate::version::catalog::CatalogBlob)| {
            let families = blob.meta.families.iter().map(|(id, all)| {
                let marked = blob.garbage.families().get(id).copied().unwrap_or_default();
                let there = catalog.families.contains_key(id);
                let live = |all: u64, marked: u64| if there { all - marked } else { 0 };
                BlobFamilyStats {
                    id: *id,
                    name: (view.families.get(id).filter(|_| there)).map(|f| f.name.to_string()),
                    records: all.records,
                    bytes: all.bytes,
                    live_records: live(all.records, marked.records),
                    live_bytes: live(all.bytes, marked.bytes),
                }
            });
            BlobFileStats {
                number: *number,
                name: blob_names(*number, &blob.meta).swap_remove(0),
                meta: blob.meta.clone(),
                made_ms: blob.made_ms,
                families: families.collect(),
                names: (names.get(number).into_iter().flatten().copied()).collect(),
            }
        };
        catalog.blobs.iter().map(file).collect()
    }
}
