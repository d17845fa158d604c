//! All metadata, in memory: inodes, their extents and their names.
//!
//! Only a [`JournalRecord`](super::metadata_record::JournalRecord) changes the metadata. The same
//! code applies a record when it is made and when a mount replays the journal, so a mount finds the
//! same metadata.
//!
//! An inode takes 24 bytes. A name takes 24 bytes and its text. Most files have one extent, which
//! is part of the inode.
//!
//! - this file: the types, and lookups
//! - `inode`: an inode in memory
//! - `inode_table`: makes, removes and changes inodes
//! - `apply`: applies a record
//! - `checkpoint_records`: the records of a checkpoint

mod apply;
mod checkpoint_records;
mod inode;
mod inode_table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::cow_table::CowTable;
use super::extents::{Allocated, Extents};
use super::free_space::FreeSpace;
use super::metadata_record::{Ino, InodeKind, ROOT};
use super::names::Names;
use super::runs::Run;
use super::steps::count_steps;
pub use checkpoint_records::MetaCopy;
use inode::{ExtentLists, Inode, extents_of};

/// Blocks that applying a record freed, and the file whose last name it removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ApplyEffect {
    /// Device blocks that were freed.
    pub freed: Vec<Run>,
    /// The file whose last name was removed, with its extents: open handles still read them.
    pub gone: Option<(Ino, Extents)>,
}

/// The reason why a record cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyError {
    /// There is no such name or inode.
    NotFound,
    /// The name is taken, by a file.
    Exists,
    /// The name is taken, by a directory.
    IsDir,
    /// The inode is no directory.
    NotDir,
    /// The directory contains names.
    NotEmpty,
    /// A directory would become part of itself.
    Loop,
    /// The file has a second name.
    HasLinks,
    /// The name is empty, has more than 255 bytes or a `/`, or is `.` or `..`.
    BadName,
    /// The image has the largest number of inodes or the largest size of names.
    TooManyFiles,
    /// A number of blocks or links is outside its limits.
    Limit,
    /// The record is not legal at this place.
    OutOfPlace,
}

impl ApplyError {
    /// Returns the reason in words, for messages about a damaged image.
    pub fn text(self) -> &'static str {
        match self {
            ApplyError::NotFound => "a name or an inode that is not there",
            ApplyError::Exists => "a name or an inode that is taken",
            ApplyError::IsDir => "a directory in a file's place",
            ApplyError::NotDir => "a file in a directory's place",
            ApplyError::NotEmpty => "a directory that is not empty",
            ApplyError::Loop => "a directory inside of itself",
            ApplyError::HasLinks => "a file with a second name",
            ApplyError::BadName => "a name that no file can have",
            ApplyError::TooManyFiles => "more inodes or names than the image can have",
            ApplyError::Limit => "a number outside its limits",
            ApplyError::OutOfPlace => "a record that has no place here",
        }
    }
}

/// All metadata of a filesystem.
#[derive(Default)]
pub struct Meta {
    inodes: CowTable<Inode>,
    /// Inode numbers below the highest one that no inode has.
    free: FreeSpace,
    lists: ExtentLists,
    names: Names,
    /// The largest number of inodes.
    max_inodes: usize,
    /// Inodes in use.
    used: usize,
    /// Directories among them.
    dirs: usize,
    /// Extents and blocks of all files on the device.
    allocated: Allocated,
    /// Memory of the lists of extents, in bytes.
    list_bytes: u64,
}

/// Numbers of inodes and extents, and the memory that they take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaCounts {
    /// Files, logs among them.
    pub files: u64,
    /// Directories, the root among them.
    pub dirs: u64,
    /// Extents of all files, without holes.
    pub extents: u64,
    /// Device blocks of all files.
    pub blocks: u64,
    /// Memory without the text of names, in bytes.
    pub memory: u64,
    /// Text of names, in bytes.
    pub text: u64,
}

/// The attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeAttrs {
    /// File, log or directory.
    pub kind: InodeKind,
    /// Length of a file, in bytes; number of names in a directory.
    pub len: u64,
    /// Blocks of a file, holes included.
    pub blocks: u64,
    /// The file may be longer than `len`, up to the end of its blocks.
    pub inexact: bool,
    /// Names of the inode.
    pub links: u32,
}

impl Meta {
    /// Returns metadata with an empty root directory.
    pub fn new(max_inodes: usize) -> Meta {
        let mut meta = Meta {
            max_inodes,
            ..Meta::default()
        };
        meta.make(ROOT, InodeKind::Dir, 0).expect("the first inode");
        meta
    }

    /// Sets the largest number of inodes.
    pub fn set_max_inodes(&mut self, max: usize) {
        self.max_inodes = max;
    }

    /// Returns the directory, the text and the inode of each name, in no order.
    pub fn names(&self) -> impl Iterator<Item = (Ino, &str, Ino)> + '_ {
        self.names.iter()
    }

    fn inode(&self, ino: Ino) -> Result<&Inode, ApplyError> {
        if ino as usize >= self.inodes.len() {
            return Err(ApplyError::NotFound);
        }
        let inode = self.inodes.get(ino as usize);
        inode.kind().map(|_| inode).ok_or(ApplyError::NotFound)
    }

    fn file(&self, ino: Ino) -> Result<&Inode, ApplyError> {
        let inode = self.inode(ino)?;
        match inode.kind() {
            Some(InodeKind::Dir) => Err(ApplyError::IsDir),
            _ => Ok(inode),
        }
    }

    fn dir(&self, ino: Ino) -> Result<&Inode, ApplyError> {
        let inode = self.inode(ino)?;
        match inode.kind() {
            Some(InodeKind::Dir) => Ok(inode),
            _ => Err(ApplyError::NotDir),
        }
    }

    /// Returns the attributes of an inode.
    pub fn attrs(&self, ino: Ino) -> Result<InodeAttrs, ApplyError> {
        let inode = self.inode(ino)?;
        Ok(InodeAttrs {
            kind: inode.kind().expect("it is in use"),
            len: inode.len,
            blocks: inode.blocks(),
            inexact: inode.is_inexact(),
            links: inode.links(),
        })
    }

    /// Returns the inode of a name in a directory.
    pub fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.names.find(dir, name)
    }

    /// Returns the parent of a directory.
    pub fn parent(&self, dir: Ino) -> Result<Ino, ApplyError> {
        Ok(self.dir(dir)?.first as Ino)
    }

    /// Returns the names and inodes of a directory, in no order. The cost grows with the number of
    /// names in that directory alone.
    pub fn children(&self, dir: Ino) -> impl Iterator<Item = (&str, Ino)> + '_ {
        self.names.children(dir)
    }

    /// Returns all inodes in use, by number.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, InodeAttrs)> + '_ {
        let numbers = self.inodes.iter().map(|(ino, _)| ino as Ino);
        numbers.filter_map(|ino| Some((ino, self.attrs(ino).ok()?)))
    }

    /// Returns the extents of a file.
    pub fn extents(&self, ino: Ino) -> Result<Extents, ApplyError> {
        Ok(extents_of(self.file(ino)?, &self.lists))
    }

    /// Returns a free number for a new inode.
    pub fn new_ino(&self) -> Result<Ino, ApplyError> {
        match self.free.iter().next() {
            Some(run) => Ok(run.start as Ino),
            None if self.inodes.len() < self.max_inodes => Ok(self.inodes.len() as Ino),
            None => Err(ApplyError::TooManyFiles),
        }
    }

    /// Returns files without a name, and directories that no path from the root reaches. A sound
    /// checkpoint has none. The cost is linear: each directory is visited once.
    pub fn unreachable(&self) -> Vec<Ino> {
        let (mut rooted, mut lost) = (BTreeSet::from([ROOT]), BTreeSet::new());
        let mut hangs = |at: Ino, attrs: InodeAttrs| {
            let (mut at, mut path) = (at, BTreeSet::new());
            while attrs.kind == InodeKind::Dir && !rooted.contains(&at) {
                count_steps(1);
                // A directory that is met twice is its own ancestor.
                let round = lost.contains(&at) || !path.insert(at);
                match self.parent(at) {
                    Ok(above) if !round => at = above,
                    _ => {
                        lost.append(&mut path);
                        return true;
                    }
                }
            }
            rooted.append(&mut path);
            attrs.links == 0
        };
        self.inodes()
            .filter(|(ino, attrs)| *ino != ROOT && hangs(*ino, *attrs))
            .map(|(ino, _)| ino)
            .collect()
    }

    /// Returns the numbers of inodes and extents.
    pub fn counts(&self) -> MetaCounts {
        let (entries, text) = self.names.memory();
        let memory = self.inodes.memory() + self.free.memory() + entries;
        let memory = memory + self.lists.table.memory() + self.lists.free.capacity() * 4;
        MetaCounts {
            files: (self.used - self.dirs) as u64,
            dirs: self.dirs as u64,
            extents: self.allocated.extents,
            blocks: self.allocated.blocks,
            memory: memory as u64 + self.list_bytes,
            text: text as u64,
        }
    }
}
