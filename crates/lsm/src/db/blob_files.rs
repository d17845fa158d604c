//! Statistics of each blob file: the live records of each family, and the retired file numbers that
//! stand for the file.

use super::engine::Engine;
use crate::version::blob_names;
use basalt_blob::BlobMeta;
use basalt_kv::key::SeqNo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One blob file of a store. See [`super::Db::blob_files`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BlobFileStats {
    /// Number of the file.
    pub number: u64,
    /// Name of the file with the records, in the store's directory. A log that became a blob file
    /// keeps its name.
    pub name: String,
    /// Facts of the manifest about the file.
    pub(crate) meta: Arc<BlobMeta>,
    /// Creation time in ms since 1970. `None` if the manifest has no time: for files that a repair
    /// found or an older version wrote.
    pub made_ms: Option<u64>,
    /// Records of each family, ordered by family id.
    pub families: Vec<BlobFamilyStats>,
    /// Retired file numbers that stand for this file, for some of their keys.
    pub names: Vec<u64>,
}

/// Records of one family in a blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobFamilyStats {
    /// Id of the family.
    pub id: u32,
    /// Name of the family; `None` if it was dropped, and then none of its records is live.
    pub name: Option<String>,
    /// Number of records in the file.
    pub records: u64,
    /// Bytes of records in the file, header and key included.
    pub bytes: u64,
    /// Number of records that tables refer to.
    pub live_records: u64,
    /// Bytes of records that tables refer to, header and key included.
    pub live_bytes: u64,
}

impl BlobFileStats {
    /// Returns the number of records in the file, of all families.
    pub fn records(&self) -> u64 {
        self.meta.records
    }

    /// Returns the lowest sequence number of a record in the file.
    pub fn min_seq(&self) -> SeqNo {
        self.meta.min_seq
    }

    /// Returns the highest sequence number of a record in the file.
    pub fn max_seq(&self) -> SeqNo {
        self.meta.max_seq
    }

    /// Returns the XXH3-128 of the whole file. 0 for a log, whose index has a digest.
    pub fn digest(&self) -> u128 {
        self.meta.digest
    }

    /// Returns the bytes of records that tables refer to, of all families.
    pub fn live_bytes(&self) -> u64 {
        self.families.iter().map(|f| f.live_bytes).sum()
    }

    /// Returns the number of records that tables refer to, of all families.
    pub fn live_records(&self) -> u64 {
        self.families.iter().map(|f| f.live_records).sum()
    }

    /// Returns the bytes on disk, a separate index included.
    pub fn bytes(&self) -> u64 {
        self.meta.size + self.meta.index.map_or(0, |i| i.size)
    }

    /// Returns the bytes on disk that no table refers to.
    pub fn garbage_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.live_bytes())
    }
}

impl Engine {
    /// Returns all blob files, in the order of their numbers.
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
