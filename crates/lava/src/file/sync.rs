//! Syncs of open files.

use super::LavaFile;
use crate::metadata_record::JournalRecord;
use crate::runs::BLOCK;
use crate::state::ExtentChange;
use basalt_fs::{Error, ErrorKind, Result};

impl LavaFile {
    /// Makes the data durable, and the records that are needed to find it. With `all`, the exact
    /// length is durable, too, and the space behind it is freed.
    pub(super) fn sync(&self, all: bool) -> Result<()> {
        self.check_syncs()?;
        let inode = &self.inode;
        if all && self.appends {
            self.check_appends()?;
            let mut tail = inode.lock_appends();
            self.drain(&mut tail)?;
            let mut state = self.fs.state.lock();
            let pos = inode.pos();
            let linked = inode.is_linked(&self.path)?;
            let blocks = pos.div_ceil(BLOCK);
            if inode.extents().blocks() > blocks {
                state.change_extents(inode, linked, ExtentChange::Cut(blocks));
            }
            if linked {
                let len = JournalRecord::Length {
                    ino: inode.ino,
                    len: pos,
                };
                let n = state.record(&len).expect("an open file with a name");
                inode.set_last_record(n);
                inode.set_exact(true);
            }
        }
        if inode.buffers.is_used() {
            self.drain(&mut inode.lock_appends())?;
        }
        let cached = inode.cached_end();
        self.fs
            .sync(inode.last_record())
            .inspect_err(|e| self.sync_failed(e))?;
        inode.set_uncached(cached);
        Ok(())
    }

    /// After a failed sync, the durable state of the file is unknown, so later syncs fail. If the
    /// journal only had no space, nothing was tried, and a later sync may succeed.
    fn sync_failed(&self, e: &Error) {
        if e.kind() != ErrorKind::NoSpace || self.fs.check_writable().is_err() {
            self.inode.fail_syncs(e);
        }
    }

    /// Syncs several files of one filesystem with one transaction and one device flush.
    pub fn sync_batch(files: &[&LavaFile]) -> Result<()> {
        for f in files {
            // This error is known before anything is done, so it concerns none of the other files.
            f.check_syncs()?;
        }
        for f in files.iter().filter(|f| f.inode.buffers.is_used()) {
            f.drain(&mut f.inode.lock_appends())?;
        }
        let Some(first) = files.first() else {
            return Ok(());
        };
        let cached: Vec<u64> = files.iter().map(|f| f.inode.cached_end()).collect();
        let records = files.iter().map(|f| f.inode.last_record());
        let done = first.fs.sync(records.max().unwrap_or(0));
        if let Err(e) = &done {
            files.iter().for_each(|f| f.sync_failed(e));
        }
        done?;
        for (f, cached) in files.iter().zip(cached) {
            f.inode.set_uncached(cached);
        }
        Ok(())
    }
}
