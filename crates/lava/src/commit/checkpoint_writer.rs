//! Writes checkpoints of a mounted filesystem, and takes new blocks of a device that has grown.

use std::io::IoSlice;

use super::no_space_to_remove;
use crate::checkpoint::{self, CheckpointPieces};
use crate::counters::WriteCause;
use crate::layout::{MAX_CHECKPOINT_RUNS, SUPERBLOCKS, Superblock, max_inodes};
use crate::metadata_record::JournalRecord;
use crate::mounted::MountedFs;
use crate::runs::{BLOCK, MAX_BLOCKS, Run};
use crate::state::{ExtentPurpose, MountState};
use basalt_fs::device::Way;
use basalt_fs::{Error, ErrorKind, Result};

impl MountedFs {
    /// Writes a checkpoint and frees the journal before it. Changes wait only while the metadata is
    /// copied, which takes microseconds. Later changes go to a new extent of the journal.
    ///
    /// Errors leave the old checkpoint and the journal as they are. An error of a flush ends all
    /// changes.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_of_size(None).map(|_| ())
    }

    /// Takes the blocks that the device has become longer by: writes a checkpoint of the new size,
    /// and frees the new blocks. Returns their size in bytes.
    ///
    /// Errors: those of [`MountedFs::checkpoint`]; `InvalidArgument` for more than 32 TiB.
    pub fn grow(&self) -> Result<u64> {
        // A second caller finds no new blocks.
        let _alone = self.growing.lock();
        let blocks = self.device.facts().len / BLOCK;
        if blocks > MAX_BLOCKS {
            return Err(Error::invalid(format!(
                "{} bytes are too large for an image; {} are the most",
                blocks * BLOCK,
                MAX_BLOCKS * BLOCK
            )));
        }
        if blocks <= self.journal.lock().superblock.blocks {
            return Ok(0);
        }
        let before = self.journal.lock().superblock.blocks;
        let free = self.checkpoint_of_size(Some(blocks))?;
        let mut state = self.state.lock();
        state.meta.set_max_inodes(max_inodes(blocks));
        let new = Run {
            start: before,
            len: blocks - before,
        };
        state.blocks.grow(new, free - before);
        state.keep_spares();
        Ok((blocks - before) * BLOCK)
    }

    /// Writes a checkpoint, with a new size of the filesystem in blocks if one is given. Returns
    /// the first new block that is free.
    fn checkpoint_of_size(&self, size: Option<u64>) -> Result<u64> {
        let _one = self.checkpointing.lock();
        self.checkpoint_locked(size)
    }

    /// Writes a checkpoint as [`MountedFs::checkpoint_of_size`] does. The caller holds
    /// `checkpointing`.
    pub(super) fn checkpoint_locked(&self, size: Option<u64>) -> Result<u64> {
        self.check_writable()?;
        if size.is_none() {
            // This is checked before anything is done, because each try takes a journal extent.
            let room = |state: &mut MountState| {
                let need = state.checkpoint_blocks();
                state.has_room_in(need, MAX_CHECKPOINT_RUNS).then_some(())
            };
            if self.with_discards(room).is_none() {
                return Err(no_space_to_remove("for a checkpoint"));
            }
        }
        let (copy, jump, extents, bytes, seq, mut superblock) = {
            let mut journal = self.journal.lock();
            let copy = |state: &MountState| state.meta.copy();
            let copy = match self.commit_all(&mut journal, ExtentPurpose::Checkpoint, copy) {
                Err(e) if e.kind() == ErrorKind::NoSpace && self.wait_for_discards() => {
                    self.commit_all(&mut journal, ExtentPurpose::Checkpoint, copy)?
                }
                done => done?,
            };
            // Later records go behind the jump. The extent behind this one is allocated when the
            // first of them is written.
            if !journal.writer.is_fresh() {
                journal.writer.switch_extent(None);
            }
            let (run, life, extents) = journal.writer.fresh_extent();
            let seq = journal.writer.seq();
            let (bytes, superblock) = (journal.writer.bytes(), journal.superblock.clone());
            let jump = JournalRecord::Jump { run, seq, life };
            (copy, jump, extents, bytes, seq - 1, superblock)
        };
        let pieces = CheckpointPieces::of(&copy, jump, self.facts.unit);
        drop(copy);
        let blocks = pieces.bytes().div_ceil(BLOCK);
        let blocks_before = superblock.blocks;
        let more = size.unwrap_or(blocks_before) - blocks_before;
        let runs = match more >= blocks {
            // The new blocks need no free space among the old ones.
            true => Some(vec![Run {
                start: blocks_before,
                len: blocks,
            }]),
            false => self.with_discards(|state| state.allocate_reserved(blocks)),
        };
        let runs = runs.ok_or_else(|| no_space_to_remove("for a checkpoint"))?;
        let taken = if more >= blocks { blocks } else { 0 };
        let old = std::mem::replace(&mut superblock.checkpoint, runs.clone());
        superblock.generation += 1;
        superblock.blocks = size.unwrap_or(blocks_before);
        superblock.checkpoint_bytes = pieces.bytes();
        superblock.checkpoint_seq = seq;
        let written = match runs.len() <= MAX_CHECKPOINT_RUNS {
            true => self.write_checkpoint(&pieces, &superblock),
            false => Err(Error::new(
                ErrorKind::NoSpace,
                "the image's free space lies in too many pieces for a checkpoint",
            )),
        };
        if let Err(e) = written {
            let mut state = self.state.lock();
            let runs = if taken > 0 { Vec::new() } else { runs };
            runs.into_iter().for_each(|run| state.blocks.release(run));
            return Err(e);
        }
        let placed = self.write_superblocks(&superblock);
        // After an error, a mount may find either superblock, so the blocks of both stay used.
        placed.map_err(|e| self.fail(e))?;
        let mut journal = self.journal.lock();
        let mut unneeded: Vec<Run> = journal.writer.drop_extents(extents, bytes);
        unneeded.extend(old);
        journal.set_checkpoint(superblock);
        let mut state = self.state.lock();
        unneeded
            .into_iter()
            .for_each(|run| state.blocks.release(run));
        state.last_checkpoint = blocks;
        state.keep_spares();
        Ok(blocks_before + taken)
    }

    fn write_checkpoint(&self, pieces: &CheckpointPieces, superblock: &Superblock) -> Result<()> {
        let runs = &superblock.checkpoint;
        for (at, bytes) in pieces.sealed(&self.uuid, superblock.generation, runs) {
            checkpoint::write(&*self.device, runs, at, &bytes)?;
            self.counters
                .add_write(WriteCause::Checkpoint, bytes.len() as u64);
        }
        self.flush()
    }

    /// Writes both copies of the superblock with a flush after each, so that a power cut leaves one
    /// of them whole.
    pub(super) fn write_superblocks(&self, superblock: &Superblock) -> Result<()> {
        for at in SUPERBLOCKS {
            // An abandoned image gets no more writes.
            self.check_writable()?;
            let bytes = superblock.encode(at);
            self.device
                .write(at, &[IoSlice::new(&bytes)], Way::Direct)?;
            self.counters
                .add_write(WriteCause::Superblock, bytes.len() as u64);
            self.flush()?;
        }
        Ok(())
    }
}
