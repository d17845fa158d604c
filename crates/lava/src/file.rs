//! An open file: a handle, and what the [`File`] trait does with it.
//!
//! - `space`: allocates, cuts and releases the blocks of the file
//! - `append`: writes appended bytes, direct or through the page cache
//! - `buffered`: gathers bulk appends in write buffers
//! - `read`: finds where bytes lie, and reads them
//! - `sync`: makes data and metadata durable

mod append;
mod buffered;
mod read;
mod space;
mod sync;

use std::any::Any;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::metadata_record::InodeKind;
use super::mounted::MountedFs;
use super::open_inode::OpenInode;
use super::runs::{BLOCK, MAX_FILE_BLOCKS};
use basalt_fs::{Bytes, Error, ErrorKind, File, Intent, Result};

/// A handle of an open file.
pub struct LavaFile {
    fs: Arc<MountedFs>,
    inode: Arc<OpenInode>,
    path: PathBuf,
    /// The handle may append: `create` or `create_log` made it.
    appends: bool,
}

impl Drop for LavaFile {
    fn drop(&mut self) {
        if self.inode.buffers.is_used() {
            // No caller can get the error. The page cache of a kernel drops such errors, too.
            let _ = self.drain(&mut self.inode.lock_appends());
        }
        self.fs.state.lock().close(&self.inode);
        if !self.fs.read_only {
            // The next sync reports an error, because it finds the records still pending.
            let _ = self.fs.commit_if_many_pending();
        }
    }
}

impl LavaFile {
    /// Returns a handle of an inode that the state counts as opened once more.
    pub fn new(
        fs: Arc<MountedFs>,
        inode: Arc<OpenInode>,
        path: PathBuf,
        appends: bool,
    ) -> LavaFile {
        LavaFile {
            fs,
            inode,
            path,
            appends,
        }
    }

    /// Returns the path that the file was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the file was opened on this mount.
    pub fn is_on(&self, fs: &Arc<MountedFs>) -> bool {
        Arc::ptr_eq(&self.fs, fs)
    }

    fn check_syncs(&self) -> Result<()> {
        self.inode.check_syncs(&self.path)
    }

    fn check_appends(&self) -> Result<()> {
        if !self.appends {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the file was opened for reading; appends go through the handle that created it",
            )
            .in_file(&self.path));
        }
        self.inode.check_appends(&self.path)?;
        self.fs.check_writable()
    }
}

impl File for LavaFile {
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        let inode = &self.inode;
        let mut tail = inode.lock_appends();
        self.check_appends()?;
        let offset = inode.pos();
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            return Ok(offset);
        }
        let end = offset
            .checked_add(total as u64)
            .filter(|end| *end <= MAX_FILE_BLOCKS * BLOCK)
            .ok_or_else(|| {
                Error::invalid(format!("{total} bytes at {offset} pass the largest file"))
                    .in_file(&self.path)
            })?;
        let mut run = || -> Result<()> {
            self.cut_hole_ahead(&mut tail, end)?;
            if end > inode.space() {
                self.grow(end, true)?;
            }
            self.mark_length_inexact()?;
            if intent == Intent::Bulk && self.uses_buffers() {
                return self.put_buffered(&mut tail, offset, bufs);
            }
            self.drain(&mut tail)?;
            if intent == Intent::Lazy {
                // The bytes outlive this process only if the records of their space and of the
                // name do.
                self.fs.commit(inode.last_record())?;
            }
            self.put(&mut tail, offset, bufs, intent)
        };
        run()
            .map_err(|e| e.at(&self.path, offset))
            .inspect_err(|e| {
                inode.fail_appends(e);
            })?;
        inode.set_pos(end);
        Ok(offset)
    }

    fn align_to_unit(&self) -> Result<u64> {
        let mut tail = self.inode.lock_appends();
        self.check_appends()?;
        self.drain(&mut tail)?;
        let pos = self.inode.pos();
        let aligned = pos.next_multiple_of(self.fs.facts.unit as u64);
        if aligned != pos {
            self.grow(aligned, false)?;
            self.mark_length_inexact()?;
        }
        self.inode.set_pos(aligned);
        Ok(aligned)
    }

    fn sync_data(&self) -> Result<()> {
        self.sync(false)
    }

    fn sync_all(&self) -> Result<()> {
        self.sync(true)
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let (range, read) = self.plan(offset, len);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let done = match read {
            Some(read) => self.fs.device.read(read),
            None => self.read_pieces(range),
        };
        done.map_err(|e| e.at(&self.path, offset))
    }

    fn len(&self) -> u64 {
        self.inode.pos()
    }

    fn allocated(&self) -> u64 {
        self.inode.readable()
    }

    fn extend_log(&self, capacity: u64) -> Result<()> {
        if self.inode.kind() != InodeKind::Log {
            return Err(
                Error::invalid("space is written ahead only in logs, made by create_log")
                    .in_file(&self.path),
            );
        }
        self.check_appends()?;
        self.cut_hole_ahead(&mut self.inode.lock_appends(), capacity)?;
        self.grow(capacity, false)?;
        self.sync(false)
    }

    fn expect_appends(&self, to: u64) {
        if self.check_appends().is_ok() {
            // If there is no space, the append itself reports the error. Space without appends is
            // freed when the last handle is closed.
            let _ = self.grow(to, false);
            self.inode.set_appended();
        }
    }

    fn release_range(&self, range: Range<u64>) -> Result<()> {
        self.release(range)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
