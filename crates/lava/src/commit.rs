//! Makes records durable: transactions in the journal, flushes of the device, checkpoints.
//!
//! A thread that needs durability waits for one device flush. The flush also covers all data
//! written before it started. The thread that flushes for all others writes a transaction of all
//! requested records first.
//!
//! - this file: transactions, flushes, syncs, the unmount
//! - `checkpoint_writer`: writes a checkpoint; takes new blocks of a device that has grown
//! - `discard`: discards free space on the device
//!
//! A commit that finds the journal full writes a checkpoint, and a checkpoint begins with a commit,
//! so the three files are one module.

mod checkpoint_writer;
mod discard;

use std::path::Path;

use super::counters::WriteCause;
use super::maintenance::{BackgroundWork, Maintenance};
use super::mounted::{JournalState, MountedFs};
use super::state::{ExtentPurpose, MountState};
use basalt_fs::{Error, ErrorKind, Result};

/// Ends all changes when it is dropped with a filesystem: records were taken from the queue but not
/// written. If writing them fails, the journal must not accept later records. If a write returned
/// an error, the filesystem has that error already, because only the first one counts.
struct FailOnDrop<'s>(Option<&'s MountedFs>);

impl Drop for FailOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.0 {
            fs.fail(Error::new(
                ErrorKind::Poisoned,
                "writing the journal panicked, and its contents are unknown",
            ));
        }
    }
}

impl Drop for MountedFs {
    fn drop(&mut self) {
        if !self.read_only && self.check_writable().is_ok() {
            // If this fails, changes without a sync may be lost, as after a power cut.
            let _ = self.unmount();
        }
    }
}

impl MountedFs {
    /// Writes transactions until one has this record. They are durable after the next flush.
    ///
    /// Errors: `NoSpace` if the journal can get no more space: then nothing is written, and the
    /// records stay pending. Each other error ends all changes.
    pub fn commit(&self, record: u64) -> Result<()> {
        for made_room in [false, true] {
            if self.progress.written().0 >= record {
                return Ok(());
            }
            {
                let mut journal = self.journal.lock();
                if self.progress.written().0 >= record {
                    return Ok(());
                }
                match self.commit_all(&mut journal, ExtentPurpose::Commit, |_| ()) {
                    Err(e) if e.kind() == ErrorKind::NoSpace && !made_room => {}
                    done => return done,
                }
            }
            // Blocks that are being discarded are free soon, so they are no reason for `NoSpace`.
            self.wait_for_discards();
            // A checkpoint writes all pending records and frees the space of the journal. One
            // checkpoint is enough for all threads that found the journal full.
            let one = self.checkpointing.lock();
            let written = self.progress.written().0;
            let made = match written >= record {
                true => Ok(0),
                false => self.checkpoint_locked(None),
            };
            drop(one);
            if self.progress.written().0 < record {
                made?;
            }
            // If a later step of the checkpoint failed, the transaction was written all the same.
            self.check_writable()?;
        }
        unreachable!("the second time decides")
    }

    /// Writes all pending records. Calls `beside` with the state at the moment when the records are
    /// taken from it.
    fn commit_all<R>(
        &self,
        journal: &mut JournalState,
        purpose: ExtentPurpose,
        beside: impl FnOnce(&MountState) -> R,
    ) -> Result<R> {
        self.check_writable()?;
        let mut unwritten = FailOnDrop(None);
        let (pending, mut extents, recorded, beside) = {
            let mut state = self.state.lock();
            let sizes = state.pending.transactions().map(|t| t.len());
            let count = journal.writer.extents_for(sizes);
            let Some(extents) = state.journal_extents(count, purpose) else {
                return Err(no_space_to_remove("for its journal"));
            };
            let pending = std::mem::take(&mut state.pending);
            unwritten.0 = Some(self);
            (pending, extents.into_iter(), state.recorded, beside(&state))
        };
        let mut last = None;
        for records in pending.transactions() {
            let synced = self.progress.durable_seq();
            if journal.writer.needs_next() {
                let next = extents.next();
                journal.writer.set_next(next.expect("counted"));
            }
            if journal.writer.is_full(records.len()) {
                let next = extents.next();
                journal.writer.switch_extent(Some(next.expect("counted")));
            }
            let before = journal.writer.bytes();
            let written = journal.writer.write(&*self.device, records, synced);
            last = Some(written.map_err(|e| self.fail(e))?);
            self.counters
                .add_write(WriteCause::Journal, journal.writer.bytes() - before);
        }
        debug_assert!(extents.next().is_none(), "an extent too many");
        self.progress.set_written(recorded, last);
        unwritten.0 = None;
        if journal.is_due() {
            self.maintenance.request();
        }
        Ok(beside)
    }

    /// Waits until there is space for more names, if freed blocks may give it.
    ///
    /// Errors: `NoSpace`.
    pub fn wait_for_name_space(&self, path: &Path) -> Result<()> {
        let mut tries = 0;
        loop {
            let state = self.state.lock();
            if state.has_room_for_names() {
                return Ok(());
            }
            if tries == 4 || state.blocks.waiting() == 0 {
                return Err(no_space("for more names").in_file(path));
            }
            drop(state);
            // The blocks of removed files are free once the removal is durable.
            self.sync_all_metadata()?;
            self.wait_for_discards();
            tries += 1;
        }
    }

    /// Writes the pending records if there are many. Without this, records that no caller syncs
    /// would grow without bound, and a checkpoint has to write them all.
    pub fn commit_if_many_pending(&self) -> Result<()> {
        let (bytes, recorded) = {
            let state = self.state.lock();
            (state.pending.bytes() as u64, state.recorded)
        };
        match bytes >= self.pending_limit {
            true => self.commit(recorded),
            false => Ok(()),
        }
    }

    /// Makes everything durable that was written before this call, and the metadata up to this
    /// record.
    pub fn sync(&self, record: u64) -> Result<()> {
        self.counters.time_sync(|| {
            if self.read_only {
                return self.flush();
            }
            self.progress.request(record);
            loop {
                self.check_writable()?;
                // The data must be durable even if the records cannot be written.
                self.flush_with_requested()?;
                if self.progress.durable_records() >= record {
                    return Ok(());
                }
                // The journal had no space, or the next flush was one without a transaction. With
                // the record written, one more flush is enough.
                self.commit(record)?;
            }
        })
    }

    /// Writes the requested records that no transaction has. The thread that flushes for all others
    /// calls it.
    ///
    /// Errors: all but `NoSpace`, which the threads that wait for the records get, and no others.
    fn commit_requested(&self) -> Result<()> {
        if !self.progress.is_write_requested() {
            return Ok(());
        }
        let mut journal = self.journal.lock();
        if !self.progress.is_write_requested() {
            return Ok(());
        }
        match self.commit_all(&mut journal, ExtentPurpose::Commit, |_| ()) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
            done => done,
        }
    }

    /// Makes all metadata durable, and everything that was written before this call.
    pub fn sync_all_metadata(&self) -> Result<()> {
        let recorded = self.state.lock().recorded;
        if self.progress.durable_records() >= recorded {
            // The sync of a file made all records durable.
            return match self.read_only {
                true => Ok(()),
                false => self.check_writable(),
            };
        }
        self.sync(recorded)
    }

    /// Makes written bytes and transactions durable.
    fn flush(&self) -> Result<()> {
        let done = self.flusher.flush(|| self.flush_device());
        done.map_err(|e| self.fail(e))
    }

    /// Writes the requested records, if there is space, then makes all written bytes durable.
    fn flush_with_requested(&self) -> Result<()> {
        let done = self.flusher.flush(|| {
            self.commit_requested()?;
            self.flush_device()
        });
        done.map_err(|e| self.fail(e))
    }

    fn flush_device(&self) -> Result<()> {
        let (records, seq) = self.progress.written();
        self.device.flush()?;
        self.progress.set_durable_seq(seq);
        if self.progress.durable_records() < records {
            let mut state = self.state.lock();
            state.made_durable(records);
            if state.blocks.has_idle() {
                drop(state);
                self.maintenance.request();
            }
            // This comes last: a thread that sees the number finds the freed blocks free.
            self.progress.set_durable_records(records);
        }
        Ok(())
    }

    /// Makes everything durable, and writes to the superblock how far the journal goes.
    fn unmount(&self) -> Result<()> {
        self.sync_all_metadata()?;
        while self.discard_some() {}
        if self.is_due() {
            // Without space for a checkpoint, the next mount reads the longer journal.
            let _ = self.checkpoint();
            self.check_writable()?;
        }
        // No other thread writes superblocks now. This thread must not hold `journal`, because the
        // thread that flushes may wait for it.
        let _one = self.checkpointing.lock();
        let mut superblock = self.journal.lock().superblock.clone();
        let seq = self.progress.durable_seq();
        if superblock.clean_seq >= seq {
            return Ok(());
        }
        superblock.clean_seq = seq;
        self.write_superblocks(&superblock)?;
        self.journal.lock().superblock = superblock;
        Ok(())
    }
}

impl BackgroundWork for MountedFs {
    fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    fn work(&self) -> bool {
        // One discard at a time, so that a checkpoint does not wait for all of them.
        let more = self.discard_some();
        // A checkpoint may have become due while the last one was written.
        if self.is_due() && self.checkpoint().is_err() {
            self.journal.lock().postpone_checkpoint();
        }
        more
    }
}

fn no_space(purpose: &str) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "the image is full: there is no room {purpose}; remove something (`basalt fs rm`), or \
             `basalt fs grow` it"
        ),
    )
}

/// The error for an image so full that not even removals can be written.
fn no_space_to_remove(purpose: &str) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "the image is full: there is no room {purpose}; make it larger with `basalt fs grow`"
        ),
    )
}
