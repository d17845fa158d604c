//! The blocks of an open file: allocates them for appends, cuts them at holes, releases ranges.

use std::ops::Range;

use super::LavaFile;
use crate::metadata_record::JournalRecord;
use crate::open_inode::AppendTail;
use crate::runs::{BLOCK, MAX_FILE_BLOCKS};
use crate::state::ExtentChange;
use basalt_fs::{Error, ErrorKind, Result};

/// Blocks that a file gets ahead of its appends at most: an extent of 1 MiB. Below that, a file
/// grows by as much as it has.
const MAX_PREALLOCATED_BLOCKS: u64 = (1 << 20) / BLOCK;
/// Space ahead of the appends is at most this part of the available space, see
/// [`File::append`](basalt_fs::File::append).
const PREALLOCATION_DIVISOR: u64 = 64;

impl LavaFile {
    /// Allocates blocks until the file has space for `bytes` bytes. With `ahead`, allocates more
    /// than that for later appends.
    ///
    /// Errors: `NoSpace`; `InvalidArgument` for more than the largest file.
    pub fn grow(&self, bytes: u64, ahead: bool) -> Result<()> {
        let blocks = bytes.div_ceil(BLOCK);
        if blocks > MAX_FILE_BLOCKS {
            return Err(
                Error::invalid(format!("{bytes} bytes pass the largest file")).in_file(&self.path),
            );
        }
        let inode = &self.inode;
        // Other threads may take the freed blocks first, so the number of tries is bounded.
        let (mut tries, full) = (0, || {
            Error::new(
                ErrorKind::NoSpace,
                "the image is full; remove something (`basalt fs rm`), or `basalt fs grow` it",
            )
            .in_file(&self.path)
        });
        loop {
            let mut state = self.fs.state.lock();
            let linked = inode.is_linked(&self.path)?;
            let has = inode.extents().blocks();
            if has >= blocks {
                return Ok(());
            }
            let need = blocks - has;
            let like = match ahead {
                true => {
                    let most =
                        MAX_PREALLOCATED_BLOCKS.min(state.available() / PREALLOCATION_DIVISOR);
                    need.max(has.min(most)).min(MAX_FILE_BLOCKS - has)
                }
                false => need,
            };
            let near = inode.extents().next_place();
            let Some(runs) = state.allocate(need, like, near) else {
                let waiting = state.blocks.waiting() > 0;
                if tries == 16 || !waiting {
                    return Err(full());
                }
                drop(state);
                // The blocks of removed files are free once the removal is durable.
                self.fs.sync_all_metadata()?;
                self.fs.wait_for_discards();
                tries += 1;
                continue;
            };
            state.change_extents(inode, linked, ExtentChange::Grow(runs));
            if linked {
                inode.set_exact(false);
            }
            drop(state);
            // The next sync reports an error. The space is allocated.
            let _ = self.fs.commit_if_many_pending();
            return Ok(());
        }
    }

    /// Cuts the file's space at its first hole, because a new log takes the space over. No other
    /// thread may append to the file any more.
    pub fn cut_at_hole(&self) -> Result<()> {
        let inode = &self.inode;
        let _appends = inode.lock_appends();
        let mut state = self.fs.state.lock();
        let hole = inode.extents().first_hole();
        let (true, Some(blocks)) = (inode.is_linked(&self.path)?, hole) else {
            return Ok(());
        };
        state.change_extents(inode, true, ExtentChange::Cut(blocks));
        Ok(())
    }

    /// Makes sure that an append up to the byte `end` meets no released block: the file's space is
    /// cut at the first one, and grows again from there. No data is lost, because no append has
    /// reached the block.
    pub(super) fn cut_hole_ahead(&self, tail: &mut AppendTail, end: u64) -> Result<()> {
        let Some(blocks) = tail.hole_ahead.filter(|hole| end > hole * BLOCK) else {
            return Ok(());
        };
        let inode = &self.inode;
        let mut state = self.fs.state.lock();
        let linked = inode.is_linked(&self.path)?;
        if inode.extents().blocks() > blocks {
            state.change_extents(inode, linked, ExtentChange::Cut(blocks));
        }
        tail.hole_ahead = None;
        Ok(())
    }

    /// Makes the metadata say that the file may go on behind its recorded length, if it does not
    /// say so already.
    pub(super) fn mark_length_inexact(&self) -> Result<()> {
        let inode = &self.inode;
        inode.set_appended();
        if inode.set_exact(false) {
            // A record of new space would say the same, but this path is rare.
            let mut state = self.fs.state.lock();
            if inode.is_linked(&self.path)? {
                let record = state.record(&JournalRecord::Append { ino: inode.ino });
                inode.set_last_record(record.expect("an open file with a name"));
            }
        }
        Ok(())
    }

    /// Makes holes of the blocks that lie in `range`, but for the block of the append position.
    pub(super) fn release(&self, range: Range<u64>) -> Result<()> {
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        if blocks.start >= blocks.end {
            return Ok(());
        }
        self.fs.check_writable()?;
        let inode = &self.inode;
        // No running write may go to a block that is released.
        let mut tail = inode.lock_appends();
        self.drain(&mut tail)?;
        let pos = inode.pos();
        // The next append begins inside of this block, beside bytes that a sync may have covered.
        let kept = (!pos.is_multiple_of(BLOCK)).then_some(pos / BLOCK);
        let parts = match kept.filter(|kept| blocks.contains(kept)) {
            Some(kept) => [blocks.start..kept, kept + 1..blocks.end],
            None => [blocks, 0..0],
        };
        let mut state = self.fs.state.lock();
        let Ok(linked) = inode.is_linked(&self.path) else {
            return Ok(());
        };
        for part in parts {
            let part = {
                let extents = inode.extents();
                let part = part.start..part.end.min(extents.blocks());
                if extents.within(part.clone()).all(|e| e.place.is_none()) {
                    continue;
                }
                part
            };
            let ahead = part.start.max(pos.div_ceil(BLOCK));
            if ahead < part.end {
                tail.hole_ahead = Some(tail.hole_ahead.map_or(ahead, |hole| hole.min(ahead)));
            }
            state.change_extents(inode, linked, ExtentChange::Punch(part));
        }
        drop((state, tail));
        // The next sync reports an error. The space is released.
        let _ = self.fs.commit_if_many_pending();
        Ok(())
    }
}
