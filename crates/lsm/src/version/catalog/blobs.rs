//! The catalog's blob files: the marked records of each, and the targets of names.

use super::{Catalog, bad};
use crate::version::FileLocation;
use crate::version::edit::{AddBlob, Edit};
use basalt_blob::garbage::Garbage;
use basalt_blob::{BlobMeta, FamilyShare};
use basalt_fs::Result;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A blob file as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogBlob {
    /// The file's metadata.
    pub meta: Arc<BlobMeta>,
    /// Location of the file.
    pub location: FileLocation,
    /// The marked records, which no reference reaches. Those of dropped families are not among
    /// them.
    pub garbage: Arc<Garbage>,
    /// Creation time of the file in ms since 1970, if the manifest has it.
    pub made_ms: Option<u64>,
}

impl CatalogBlob {
    /// Returns the unmarked records and bytes of the families for which `there_is` returns true.
    pub fn alive(&self, there_is: &dyn Fn(u32) -> bool) -> FamilyShare {
        let mut alive = FamilyShare::default();
        for (id, all) in self.meta.families.iter().filter(|(id, _)| there_is(**id)) {
            let marked = self.garbage.families().get(id).copied().unwrap_or_default();
            alive.records += all.records - marked.records;
            alive.bytes += all.bytes - marked.bytes;
        }
        alive
    }
}

impl Catalog {
    /// Applies the parts of an edit that concern blob files.
    pub(crate) fn apply_blobs(&mut self, edit: &Edit) -> Result<()> {
        for AddBlob {
            number,
            meta,
            location,
        } in &edit.add_blobs
        {
            let blob = CatalogBlob {
                meta: meta.clone(),
                location: *location,
                garbage: Arc::new(Garbage::none(meta.records as u32)),
                made_ms: None,
            };
            if self.lineage.is_name(*number) || self.blobs.insert(*number, blob).is_some() {
                return Err(bad(format!(
                    "the edit adds blob file {number}, which already exists or has a retired number"
                )));
            }
        }
        for (number, made_ms) in &edit.blob_times {
            // The time is for people to read: a time of a missing file does no harm.
            (self.blobs).change(number, |blob| blob.made_ms = Some(*made_ms));
        }
        for (number, marks) in &edit.mark_blobs {
            let absorbed = self.blobs.change(number, |blob| {
                let families = &blob.meta.families;
                match Garbage::decode(marks, families) {
                    None => Err("the marks do not decode"),
                    Some(more) => Arc::make_mut(&mut blob.garbage).absorb(&more, families),
                }
            });
            if let Err(why) = absorbed.unwrap_or(Err("that file does not exist")) {
                return Err(bad(format!(
                    "the edit marks garbage in blob file {number}, but {why}"
                )));
            }
        }
        for number in &edit.remove_blobs {
            if self.blobs.remove(number).is_none() {
                return Err(bad(format!(
                    "the edit removes blob file {number}, which does not exist"
                )));
            }
        }
        for (id, group) in &edit.lineage {
            let file = group.names.iter().find(|n| self.blobs.contains_key(n));
            if file.is_some() || !Arc::make_mut(&mut self.lineage).restore(*id, group.clone()) {
                return Err(bad(format!(
                    "lineage group {id} has retired file numbers {:?}; at least one is in another group or names an existing file",
                    group.names
                )));
            }
        }
        for name in &edit.forget_names {
            if !self.lineage.is_name(*name) {
                return Err(bad(format!(
                    "the edit removes the retired file number {name}, which does not exist"
                )));
            }
            Arc::make_mut(&mut self.lineage).forget(*name);
        }
        Ok(())
    }

    /// Returns true if a blob file has this number and is a log (or is not, if `is_log` is false).
    pub fn has_blob(&self, number: u64, is_log: bool) -> bool {
        let blob = self.blobs.get(&number);
        blob.is_some_and(|b| b.meta.index.is_some() == is_log)
    }

    /// Returns the numbers of the index files of logs that are blob files.
    pub fn indexes(&self) -> BTreeSet<u64> {
        let indexes = self.blobs.values().filter_map(|b| b.meta.index);
        indexes.map(|i| i.number).collect()
    }

    /// Returns the live records of a blob file: neither marked nor of a dropped family.
    pub fn alive(&self, blob: &CatalogBlob) -> FamilyShare {
        blob.alive(&|family| self.families.contains_key(&family))
    }

    /// Adds the state of the blob files to an edit of the whole state.
    pub(super) fn blobs_to_edit(&self, edit: &mut Edit) {
        for (number, blob) in &self.blobs {
            edit.add_blobs.push(AddBlob {
                number: *number,
                meta: blob.meta.clone(),
                location: blob.location,
            });
            edit.blob_times.extend(blob.made_ms.map(|ms| (*number, ms)));
            if blob.garbage.records() > 0 {
                edit.mark_blobs.push((*number, blob.garbage.encode()));
            }
        }
        let groups = self.lineage.groups().iter();
        edit.lineage = groups.map(|(id, g)| (*id, (**g).clone())).collect();
    }
}
