//! The blob files of a catalog, with sums that each change maintains.
//!
//! The bound on garbage (decision 0021) is compared with these sums after every change of the tree,
//! under a lock that each commit group takes. A walk over all blob files would hold the groups up
//! by as much as the store has files.

use super::CatalogBlob;
use crate::blob::FamilyShare;
use crate::version::file_map::FileMap;
use std::collections::BTreeMap;
use std::ops::Deref;

/// What a family has in blob files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FamilyBlobs {
    /// Records that are not marked, and their bytes.
    pub live: FamilyShare,
    /// How many files hold records of the family that are so long in the mean. The key is the mean
    /// in bytes, as the bits of an `f64`: positive numbers have the order of their bits.
    means: FileMap<u32>,
}

impl FamilyBlobs {
    /// The longest that the family's records are in the mean in any file, in bytes.
    pub fn longest_mean(&self) -> f64 {
        let longest = self.means.last_key_value();
        longest.map_or(0.0, |(mean, _)| f64::from_bits(*mean))
    }
}

/// Sums over the blob files of a catalog. They are exact once a manifest has passed
/// [`super::Catalog::check_totals`]; numbers that no store has wrap around before that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobTotals {
    /// Bytes of the files and of their indexes.
    pub disk: u64,
    /// Bytes of all records, marked ones and those of dropped families among them.
    pub records: u64,
    /// By family, dropped ones among them as long as a file has their records.
    pub families: BTreeMap<u32, FamilyBlobs>,
}

/// Bytes of a blob file and of its index.
pub fn disk_bytes(blob: &CatalogBlob) -> u64 {
    blob.meta.size + blob.meta.index.map_or(0, |i| i.size)
}

/// The part of a family in a file that is not marked.
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
    /// The sums of some files, added up anew.
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

/// The blob files of a catalog by number. A clone shares all files that neither of the two changes.
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
    /// Sums over the files. Costs nothing.
    pub fn totals(&self) -> &BlobTotals {
        &self.totals
    }

    /// Puts a file in and returns what was there of it.
    pub fn insert(&mut self, number: u64, blob: CatalogBlob) -> Option<CatalogBlob> {
        self.totals.add(&blob);
        let former = self.files.insert(number, blob);
        former.iter().for_each(|blob| self.totals.subtract(blob));
        former
    }

    /// Takes a file out and returns what was there of it.
    pub fn remove(&mut self, number: &u64) -> Option<CatalogBlob> {
        let former = self.files.remove(number);
        former.iter().for_each(|blob| self.totals.subtract(blob));
        former
    }

    /// Changes what is known of a file. `None` when it is not there.
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

    /// Forgets all files.
    pub fn clear(&mut self) {
        *self = BlobTable::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::BlobMeta;
    use crate::blob::garbage::Garbage;
    use basalt_env::Random;
    use std::sync::Arc;

    fn file(r: &Random) -> CatalogBlob {
        let mut families = BTreeMap::new();
        for id in 0..1 + r.below(3) as u32 {
            let records = 1 + r.below(4);
            let bytes = records * 10 + r.below(1000);
            families.insert(id, FamilyShare { records, bytes });
        }
        let records = families.values().map(|s| s.records).sum();
        let bytes: u64 = families.values().map(|s| s.bytes).sum();
        CatalogBlob {
            meta: Arc::new(BlobMeta {
                file_id: 1,
                data_end: bytes,
                index: None,
                size: bytes + r.below(10),
                digest: 0,
                records,
                families,
                min_seq: 0,
                max_seq: 0,
            }),
            garbage: Arc::new(Garbage::none(records as u32)),
            made_ms: None,
        }
    }

    #[test]
    fn sums_of_blob_files_are_those_of_a_recount_after_every_change() {
        let r = Random::from_seed(11);
        let mut table = BlobTable::default();
        let mut longest_left = 0;
        for round in 0..4000 {
            let number = r.below(60);
            match r.below(if round < 3000 { 3 } else { 6 }) {
                0 => {
                    table.insert(number, file(&r));
                }
                1 => {
                    table.change(&number, |blob| {
                        let n = r.below(blob.meta.records) as u32;
                        let _ = Arc::make_mut(&mut blob.garbage).mark(n, 0, 1, 0);
                    });
                }
                _ => {
                    let before = longest(&table);
                    table.remove(&number);
                    longest_left += usize::from(longest(&table) < before);
                }
            }
            assert_eq!(
                *table.totals(),
                BlobTotals::of(table.values()),
                "round {round}"
            );
            let all = table.values().filter_map(|b| b.meta.families.get(&0));
            let all = all.map(|s| s.bytes as f64 / s.records as f64);
            assert_eq!(longest(&table), all.fold(0.0, f64::max), "round {round}");
        }
        assert!(
            longest_left > 10,
            "the longest mean left {longest_left} times"
        );
        table.clear();
        assert_eq!(*table.totals(), BlobTotals::default());
    }

    fn longest(table: &BlobTable) -> f64 {
        let family = table.totals().families.get(&0);
        family.map_or(0.0, FamilyBlobs::longest_mean)
    }
}
