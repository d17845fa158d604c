//! Reports of the usage of a filesystem, and of the extents of a file.

use std::path::Path;

use super::extents::Extent;
use super::metadata_record::InodeKind;
use super::mounted::MountedFs;
use super::paths::{apply_error, lookup};
use super::runs::BLOCK;
use basalt_fs::Result;

/// The space, the files and the costs of a filesystem at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Size of the filesystem, in bytes.
    pub total_bytes: u64,
    /// Number of files, logs included.
    pub files: u64,
    /// Number of directories, the root included.
    pub dirs: u64,
    /// Number of extents of all files.
    pub extents: u64,
    /// Space of files, in bytes.
    pub file_bytes: u64,
    /// Free space, in bytes.
    pub free_bytes: u64,
    /// Number of free runs.
    pub free_pieces: u64,
    /// Size of the longest free run, in bytes.
    pub longest_free_bytes: u64,
    /// Space in free runs below 1 MiB, in bytes. A growing file asks for 1 MiB at most.
    pub short_free_bytes: u64,
    /// The filesystem's random number.
    pub uuid: [u8; 16],
    /// `true` if the image was not written when it was made.
    pub sparse: bool,
    /// Free space that files may not take, in bytes: it is for the journal and its checkpoints.
    pub reserved_bytes: u64,
    /// Memory of inodes, extents and names without the text of names, in bytes.
    pub memory: u64,
    /// Text of names, in bytes.
    pub name_bytes: u64,
    /// Size of the journal, in bytes.
    pub journal_bytes: u64,
    /// Size of the last checkpoint, in bytes.
    pub checkpoint_bytes: u64,
    /// Number of checkpoints written since the mount.
    pub checkpoints: u64,
    /// Number of checkpoints that failed since the mount. The journal goes on after a failure.
    pub failed_checkpoints: u64,
}

impl Usage {
    /// Returns the filesystem's number in the usual form of a UUID.
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

/// The metadata of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileReport {
    /// Number of the inode.
    pub inode: u64,
    /// `true` for a directory.
    pub is_dir: bool,
    /// `true` if [`FileSystem::create_log`](basalt_fs::FileSystem::create_log) made the file.
    pub is_log: bool,
    /// Number of names.
    pub links: u32,
    /// Length of a file, in bytes; number of names in a directory.
    pub len: u64,
    /// `true` if the file ends at `len`. Otherwise it may be longer, up to the end of its space.
    pub exact: bool,
    /// Extents of a file, in order.
    pub extents: Vec<ExtentReport>,
}

/// One extent of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtentReport {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Offset on the device, in bytes; `None` for a hole.
    pub place: Option<u64>,
}

impl MountedFs {
    /// Returns what the metadata has of a file or directory.
    ///
    /// Errors: `NotFound`.
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

    /// Returns the space, the files and the costs of the filesystem.
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
