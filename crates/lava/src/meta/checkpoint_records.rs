//! The records of a checkpoint: those that make the metadata from nothing.

use super::Meta;
use super::inode::{ExtentLists, Inode, extents_of};
use crate::cow_table::CowTable;
use crate::extents::Extent;
use crate::metadata_record::{Ino, InodeKind, JournalRecord};
use crate::names::NamesCopy;
use crate::runs::Run;

/// Largest number of runs in one record.
const RUNS_A_RECORD: usize = 500;

/// A copy of the metadata, which is written as a checkpoint while the original changes.
pub struct MetaCopy {
    inodes: CowTable<Inode>,
    lists: ExtentLists,
    names: NamesCopy,
}

impl Meta {
    /// Copies the metadata. The cost is one pointer for each chunk of the tables.
    pub fn copy(&self) -> MetaCopy {
        MetaCopy {
            inodes: self.inodes.clone(),
            lists: self.lists.clone(),
            names: self.names.copy(),
        }
    }

    /// Returns an upper bound of the size of a checkpoint, in bytes.
    pub fn checkpoint_bound(&self) -> u64 {
        let (names, text) = self.names.size();
        // The longest records of each kind (see `metadata_record`), and a quarter more for free
        // space at the ends of pieces.
        let records = self.used as u64 * 42 + names * 13 + text + self.allocated.extents * 30;
        records + records / 4 + 4096
    }
}

impl MetaCopy {
    /// Calls `each` with the records that make the metadata from nothing, until `each` returns an
    /// error.
    pub fn records<E>(
        &self,
        mut each: impl FnMut(&JournalRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        for (ino, inode) in self.inodes.iter() {
            let Some(kind) = inode.kind() else { continue };
            let (ino, is_dir) = (ino as Ino, kind == InodeKind::Dir);
            let len = if is_dir { 0 } else { inode.len };
            each(&JournalRecord::Inode { ino, kind, len })?;
            if is_dir {
                continue;
            }
            let mut runs = Vec::new();
            let extents = extents_of(inode, &self.lists);
            for Extent { len, place, .. } in extents.iter() {
                if (place.is_none() || runs.len() == RUNS_A_RECORD) && !runs.is_empty() {
                    let runs = std::mem::take(&mut runs);
                    each(&JournalRecord::Grow { ino, runs })?;
                }
                match place {
                    Some(start) => runs.push(Run { start, len }),
                    None => each(&JournalRecord::Hole { ino, blocks: len })?,
                }
            }
            if !runs.is_empty() {
                each(&JournalRecord::Grow { ino, runs })?;
            }
            match inode.is_inexact() {
                true => each(&JournalRecord::Append { ino })?,
                false => each(&JournalRecord::Length { ino, len })?,
            }
        }
        for (dir, name, ino) in self.names.iter() {
            let name = name.to_string();
            each(&JournalRecord::Link { dir, name, ino })?;
        }
        Ok(())
    }
}
