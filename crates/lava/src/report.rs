//! What a filesystem tells of itself and of its files.

use std::path::Path;

use super::extents::Extent;
use super::mounted::MountedFs;
use super::paths::{apply_error, lookup};
use super::record::InodeKind;
use super::runs::BLOCK;
use basalt_fs::Result;

/// What a filesystem has and costs at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All there is.
    pub total_bytes: u64,
    /// Files, logs among them.
    pub files: u64,
    /// Directories, the root among them.
    pub dirs: u64,
    /// Extents of all files.
    pub extents: u64,
    /// Bytes of space that files have.
    pub file_bytes: u64,
    /// Bytes that nobody has.
    pub free_bytes: u64,
    /// How many pieces these are in.
    pub free_pieces: u64,
    /// The longest of them, in bytes.
    pub longest_free_bytes: u64,
    /// Bytes in pieces below 1 MiB, the largest extent that a growing file asks for.
    pub short_free_bytes: u64,
    /// The filesystem's random number.
    pub uuid: [u8; 16],
    /// The image was not written when it was made.
    pub sparse: bool,
    /// Bytes of what is free that files may not have: they are for the journal and its checkpoints.
    pub reserved_bytes: u64,
    /// Bytes of memory that inodes, extents and names take, without the text of names.
    pub memory: u64,
    /// Bytes of names.
    pub name_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Checkpoints since the image was mounted.
    pub checkpoints: u64,
    /// Checkpoints that were due and could not be written; the journal goes on then.
    pub failed_checkpoints: u64,
}

impl Usage {
    /// The filesystem's number as people read it.
    pub fn uuid_text(&self) -> String {
        let n = u128::from_be_bytes(self.uuid);
        let part = |from: u32, digits: u32| (n >> from) & ((1 << (digits * 4)) - 1);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            part(96, 8),
            part(80, 4),
            part(64, 4),
            part(48, 4),
            part(0, 12)
        )
    }
}

/// What a filesystem knows of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// Its number.
    pub inode: u64,
    /// True for a directory.
    pub is_dir: bool,
    /// Made by [`FileSystem::create_log`].
    pub is_log: bool,
    /// Names it has.
    pub links: u32,
    /// Bytes of a file; names in a directory.
    pub len: u64,
    /// The file ends there; else it may go on as far as its space goes.
    pub exact: bool,
    /// Where its bytes lie.
    pub extents: Vec<ExtentReport>,
}

/// A piece of a file that lies together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentReport {
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// First byte on the device; none where space was given back.
    pub place: Option<u64>,
}

impl MountedFs {
    /// What is known of a file or directory. `NotFound`.
    pub fn describe(&self, path: &Path) -> Result<FileReport> {
        let state = self.state.lock();
        let ino = lookup(&state, path)?;
        let attrs = state.meta.attrs(ino).map_err(|r| apply_error(r, path))?;
        let extents = state.meta.extents(ino).unwrap_or_default();
        let of = |e: Extent| ExtentReport {
            offset: e.at * BLOCK,
            len: e.len * BLOCK,
            place: e.place.map(|p| p * BLOCK),
        };
        Ok(FileReport {
            inode: u64::from(ino),
            is_dir: attrs.kind == InodeKind::Dir,
            is_log: attrs.kind == InodeKind::Log,
            links: attrs.links,
            len: attrs.len,
            exact: !attrs.inexact,
            extents: extents.iter().map(of).collect(),
        })
    }

    /// What the filesystem has and costs.
    pub fn usage(&self) -> Usage {
        let (blocks, sparse, journal_bytes, checkpoint_bytes, checkpoints, failed_checkpoints) = {
            let journal = self.journal.lock();
            (
                journal.superblock.blocks,
                journal.superblock.sparse,
                journal.writer.bytes(),
                journal.superblock.checkpoint_bytes,
                journal.checkpoints,
                journal.failed_checkpoints,
            )
        };
        let state = self.state.lock();
        let counts = state.meta.counts();
        Usage {
            total_bytes: blocks * BLOCK,
            files: counts.files,
            dirs: counts.dirs,
            extents: counts.extents,
            file_bytes: counts.blocks * BLOCK,
            free_bytes: state.blocks.unused() * BLOCK,
            free_pieces: state.blocks.free().pieces() as u64,
            longest_free_bytes: state.blocks.free().longest() * BLOCK,
            short_free_bytes: state.blocks.free().shorter_than((1 << 20) / BLOCK) * BLOCK,
            uuid: self.uuid,
            sparse,
            reserved_bytes: state.reserve() * BLOCK,
            memory: counts.memory,
            name_bytes: counts.text,
            journal_bytes,
            checkpoint_bytes,
            checkpoints,
            failed_checkpoints,
        }
    }
}
