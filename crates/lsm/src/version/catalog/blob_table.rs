//! The blob files of a catalog, with sums that each change maintains.
//!
//! The bound on garbage (decision 0021) is compared with these sums after every change of the tree,
//! under a lock that each commit group takes. A walk over all blob files would delay the groups in
//! proportion to the number of files.

use super::CatalogBlob;
use crate::version::file_map::FileMap;
use basalt_blob::FamilyShare;
use std::collections::BTreeMap;
use std::ops::Deref;

/// The records of a family in blob files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FamilyBlobs {
    /// Number and bytes of the records that are not marked.
    pub live: FamilyShare,
    /// Number of files by the mean length of the family's records in the file. The key is the mean
    /// in bytes, as the bits of an `f64`: positive numbers have the order of their bits.
    means: FileMap<u32>,
}

impl FamilyBlobs {
    /// Returns the greatest mean length of the family's records in any file, in bytes.
    pub fn longest_mean(&self) -> f64 {
        let longest = self.means.last_key_value();
        longest.map_or(0.0, |(mean, _)| f64::from_bits(*mean))
    }
}

/// Sums over the blob files of a catalog. They are exact once a manifest has passed
/// [`super::Catalog::check_totals`]; before that, impossible numbers in a damaged manifest wrap
/// around.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobTotals {
    /// Bytes of the files and of their indexes.
    pub disk: u64,
    /// Bytes of all records, including marked records and records of dropped families.
    pub records: u64,
    /// Sums by family. A dropped family stays here as long as a file has records of it.
    pub families: BTreeMap<u32, FamilyBlobs>,
}

/// Returns the bytes of a blob file and of its index.
pub fn disk_bytes(blob: &CatalogBlob) -> u64 {
    blob.meta.size + blob.meta.index.map_or(0, |i| i.size)
}

/// Returns the records of a family in a file that are not marked.
fn live(blob: &CatalogBlob, family: u32, all: FamilyShare) -> FamilyShare {
    let marked = blob.garbage.families().get(&family);
    let marked = marked.copied().unwrap_or_default();
    FamilyShare {
        records: all.records.wrapping_sub(marked.records),
        bytes: all.bytes.wrapping_sub(marked.bytes),
    }
}

fn mean(share: FamilyShare) -> u64 {
    (share.bytes as f64 / share.records.max(1) as f64).to_bits()
}

impl BlobTotals {
    /// Adds up the sums over some files.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a CatalogBlob>) -> BlobTotals {
        let mut totals = BlobTotals::default();
        files.into_iter().for_each(|blob| totals.add(blob));
        totals
    }

    fn add(&mut self, blob: &CatalogBlob) {
        self.disk = self.disk.wrapping_add(disk_bytes(blob));
        for (id, share) in &blob.meta.families {
            self.records = self.records.wrapping_add(share.bytes);
            let (own, live) = (
                self.families.entry(*id).or_default(),
                live(blob, *id, *share),
            );
            own.live.records = own.live.records.wrapping_add(live.records);
            own.live.bytes = own.live.bytes.wrapping_add(live.bytes);
            match own.means.get_mut(&mean(*share)) {
                Some(files) => *files += 1,
                None => {
                    own.means.insert(mean(*share), 1);
                }
            }
        }
    }

    fn subtract(&mut self, blob: &CatalogBlob) {
        self.disk = self.disk.wrapping_sub(disk_bytes(blob));
        for (id, share) in &blob.meta.families {
            self.records = self.records.wrapping_sub(share.bytes);
            let own = self.families.get_mut(id).expect("the file was added");
            let live = live(blob, *id, *share);
            own.live.records = own.live.records.wrapping_sub(live.records);
            own.live.bytes = own.live.bytes.wrapping_sub(live.bytes);
            let files = own
                .means
                .get_mut(&mean(*share))
                .expect("the file was added");
            *files -= 1;
            if *files == 0 {
                own.means.remove(&mean(*share));
            }
            if own.means.is_empty() {
                self.families.remove(id);
            }
        }
    }
}

/// The blob files of a catalog by number. A clone shares all files that neither copy changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobTable {
    files: FileMap<CatalogBlob>,
    totals: BlobTotals,
}

impl Deref for BlobTable {
    type Target = FileMap<CatalogBlob>;

    fn deref(&self) -> &FileMap<CatalogBlob> {
        &self.files
    }
}

impl<'a> IntoIterator for &'a BlobTable {
    type Item = (&'a u64, &'a CatalogBlob);
    type IntoIter = crate::version::file_map::Iter<'a, CatalogBlob>;

    fn into_iter(self) -> Self::IntoIter {
        self.files.iter()
    }
}

impl BlobTable {
    /// Returns the sums over the files, in constant time.
    pub fn totals(&self) -> &BlobTotals {
        &self.totals
    }

    /// Inserts a file and returns the former entry with its number.
    pub fn insert(&mut self, number: u64, blob: CatalogBlob) -> Option<CatalogBlob> {
        self.totals.add(&blob);
        let former = self.files.insert(number, blob);
        former.iter().for_each(|blob| self.totals.subtract(blob));
        former
    }

    /// Removes a file and returns its entry.
    pub fn remove(&mut self, number: &u64) -> Option<CatalogBlob> {
        let former = self.files.remove(number);
        former.iter().for_each(|blob| self.totals.subtract(blob));
        former
    }

    /// Changes the entry of a file. Returns `None` if the file is not in the table.
    pub fn change<T>(
        &mut self,
        number: &u64,
        change: impl FnOnce(&mut CatalogBlob) -> T,
    ) -> Option<T> {
        let blob = self.files.get_mut(number)?;
        self.totals.subtract(blob);
        let out = change(blob);
        self.totals.add(blob);
        Some(out)
    }

    /// Removes all files.
    pub fn clear(&mut self) {
        *self = BlobTable::default();
    }
}

#[cfg(test)]
mod tests;
