//! From records in memory to records on the device: transactions, flushes, checkpoints.
//!
//! Who wants something to be durable waits for one flush, which covers the data that was written before just as well: whoever does it for all writes a
//! transaction of everything that waits before. Locks are taken in this order: a file's tail, checkpointing, the turn to flush, journal, state, a
//! node's hold, its extents. So nobody waits for a flush who holds the journal.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::Shared;
use super::allocator::Discarding;
use super::checkpoint::{self, Pieces};
use super::counts::Cause;
use super::journal::Writer;
use super::layout::{MAX_CHECKPOINT_RUNS, SUPERBLOCKS, Superblock, max_inodes};
use super::record::Record;
use super::runs::{BLOCK, MAX_BLOCKS, Run};
use super::state::{Asks, State};
use super::upkeep::{Upkeep, Work};
use basalt_fs::device::Way;
use basalt_fs::{Error, ErrorKind, Result};
use std::io::IoSlice;
use std::path::Path;

/// With so many extents a checkpoint is due, full or not: each mount begins one.
pub const DUE_EXTENTS: usize = 5;

/// How far things are.
#[derive(Default)]
pub struct Progress {
    /// Records that some transaction has, and the number of the last one.
    written: Mutex<(u64, u64)>,
    /// The same of what is durable.
    durable_records: AtomicU64,
    durable_seq: AtomicU64,
    /// Up to this record somebody waits, or did until there was no room.
    wanted: AtomicU64,
}

/// What makes a filesystem take no more changes.
#[derive(Default)]
pub struct Failure(OnceLock<Error>);

/// Records that wait no more and are not written yet: if they never are, nothing can follow them. Of a write that failed the error was told before, and the first
/// one counts.
struct Lost<'s>(Option<&'s Shared>);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.fail(Error::new(
                ErrorKind::Poisoned,
                "writing the journal panicked, and what it has is unknowable",
            ));
        }
    }
}

/// Gives the discarded blocks back, after a panic, too: a thread may wait for them.
struct EndsDiscard<'s>(&'s Shared, Option<Discarding>);

impl EndsDiscard<'_> {
    fn end(&mut self) {
        if let Some(discarding) = self.1.take() {
            self.0.state.lock().blocks.end_discard(discarding);
            self.0.discarded.notify_all();
        }
    }
}

impl Drop for EndsDiscard<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Progress {
    /// After a mount: all up to this transaction is on the device.
    pub fn starting_at(seq: u64) -> Progress {
        let progress = Progress::default();
        *progress.written.lock() = (0, seq);
        progress.durable_seq.store(seq, SeqCst);
        progress
    }
}

/// The journal and what it is to be replaced by.
pub struct Journal {
    pub writer: Writer,
    /// The newest superblock.
    pub superblock: Superblock,
    /// From so many bytes on a checkpoint is due.
    pub due_at: u64,
    /// From so many extents on, full or not.
    pub due_extents: usize,
    /// Errors of checkpoints so far.
    pub failed_checkpoints: u64,
    pub checkpoints: u64,
}

impl Journal {
    /// One could not be written: not each transaction asks again.
    pub fn wait_for_more(&mut self) {
        self.failed_checkpoints += 1;
        let more = u64::from(self.superblock.journal_blocks) * BLOCK;
        self.due_at = self.writer.bytes() + more;
        self.due_extents = self.writer.extents() + DUE_EXTENTS;
    }

    /// A checkpoint had better be written.
    pub fn is_due(&self) -> bool {
        self.writer.bytes() >= self.due_at || self.writer.extents() >= self.due_extents
    }
}

impl Shared {
    /// See [`Journal::is_due`].
    pub fn is_due(&self) -> bool {
        self.journal.lock().is_due()
    }

    /// An error when this takes no changes.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the image was opened for reading",
            ));
        }
        match self.failure.0.get() {
            None => Ok(()),
            Some(e) => Err(Error::new(
                ErrorKind::Poisoned,
                format!(
                    "an earlier write of the journal or a sync failed, and what is on the device is unknowable; \
                     open the image anew (first failure: {e})"
                ),
            )),
        }
    }

    /// Takes no more changes.
    pub fn give_up(&self) {
        self.fail(Error::new(ErrorKind::Closed, "the image was given up"));
        self.writers.stop();
    }

    fn fail(&self, e: Error) -> Error {
        let _ = self.failure.0.set(e.clone());
        e
    }

    /// Writes transactions until one has this record. They are not durable before a flush.
    ///
    /// Errors: `NoSpace` when the journal can have no more room: nothing is written, and the records go on waiting. All others end all changes.
    pub fn commit(&self, record: u64) -> Result<()> {
        for made_room in [false, true] {
            if self.progress.written.lock().0 >= record {
                return Ok(());
            }
            {
                let mut journal = self.journal.lock();
                if self.progress.written.lock().0 >= record {
                    return Ok(());
                }
                match self.commit_all(&mut journal, Asks::Commit, |_| ()) {
                    Err(e) if e.kind() == ErrorKind::NoSpace && !made_room => {}
                    done => return done,
                }
            }
            // Blocks that the device is being told of are free, too, and no reason to refuse anything.
            self.wait_for_discards();
            // It has all that waits, and gives back what the journal has. One is enough for all who met a full journal.
            let one = self.checkpointing.lock();
            let written = self.progress.written.lock().0;
            let made = match written >= record {
                true => Ok(0),
                false => self.checkpoint_alone(None),
            };
            drop(one);
            if self.progress.written.lock().0 < record {
                made?;
            }
            // What fails behind the transaction is no reason to say that it is not there.
            self.check_writable()?;
        }
        unreachable!("the second time decides")
    }

    /// Writes all that waits. `beside` sees the state at the moment when it is taken.
    fn commit_all<R>(
        &self,
        journal: &mut Journal,
        asks: Asks,
        beside: impl FnOnce(&State) -> R,
    ) -> Result<R> {
        self.check_writable()?;
        let mut lost = Lost(None);
        let (pending, mut extents, recorded, beside) = {
            let mut state = self.state.lock();
            let sizes = state.pending.transactions().map(|t| t.len());
            let count = journal.writer.extents_for(sizes);
            let Some(extents) = state.journal_extents(count, asks) else {
                return Err(only_more_space_helps("for its journal"));
            };
            let pending = std::mem::take(&mut state.pending);
            lost.0 = Some(self);
            (pending, extents.into_iter(), state.recorded, beside(&state))
        };
        let mut last = None;
        for records in pending.transactions() {
            let synced = self.progress.durable_seq.load(SeqCst);
            if journal.writer.needs_next() {
                let next = extents.next();
                journal.writer.set_next(next.expect("counted"));
            }
            if journal.writer.is_full(records.len()) {
                let next = extents.next();
                journal.writer.turn(Some(next.expect("counted")));
            }
            let before = journal.writer.bytes();
            let written = journal.writer.write(&*self.device, records, synced);
            last = Some(written.map_err(|e| self.fail(e))?);
            self.counts
                .wrote(Cause::Journal, journal.writer.bytes() - before);
        }
        debug_assert!(extents.next().is_none(), "an extent too many");
        let mut written = self.progress.written.lock();
        written.0 = written.0.max(recorded);
        written.1 = last.unwrap_or(written.1);
        drop(written);
        lost.0 = None;
        if journal.is_due() {
            self.upkeep.request();
        }
        Ok(beside)
    }

    /// Waits until there is room for more names, if there may be.
    ///
    /// Errors: `NoSpace`.
    pub fn room_for_names(&self, path: &Path) -> Result<()> {
        let mut tries = 0;
        loop {
            let state = self.state.lock();
            if state.has_room_for_names() {
                return Ok(());
            }
            if tries == 4 || state.blocks.waiting() == 0 {
                return Err(no_room("for more names").in_file(path));
            }
            drop(state);
            // What removed files had is free once their removal is durable.
            self.sync_all_metadata()?;
            self.wait_for_discards();
            tries += 1;
        }
    }

    /// Records that nobody syncs do not gather for ever: a checkpoint has to write them all.
    pub fn relieve(&self) -> Result<()> {
        let (bytes, recorded) = {
            let state = self.state.lock();
            (state.pending.bytes() as u64, state.recorded)
        };
        match bytes >= self.relief {
            true => self.commit(recorded),
            false => Ok(()),
        }
    }

    /// Everything that was written before this call survives a power cut when it returns, with the metadata up to this record.
    pub fn sync(&self, record: u64) -> Result<()> {
        self.counts.timed(|| {
            if self.read_only {
                return self.flush();
            }
            self.progress.wanted.fetch_max(record, SeqCst);
            loop {
                self.check_writable()?;
                // Always: data has to be durable whatever becomes of records.
                self.flush_with_wanted()?;
                if self.progress.durable_records.load(SeqCst) >= record {
                    return Ok(());
                }
                // It had no room, or a flush that writes none was the next one: with the record written, one more flush is enough.
                self.commit(record)?;
            }
        })
    }

    /// Writes what is waited for, if no transaction has it: for whoever flushes for all.
    ///
    /// Errors: all but `NoSpace`, which concerns those whose records wait, and no others.
    fn commit_wanted(&self) -> Result<()> {
        let wanted = || self.progress.wanted.load(SeqCst) > self.progress.written.lock().0;
        if !wanted() {
            return Ok(());
        }
        let mut journal = self.journal.lock();
        if !wanted() {
            return Ok(());
        }
        match self.commit_all(&mut journal, Asks::Commit, |_| ()) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
            done => done,
        }
    }

    /// As [`Shared::sync`], of all metadata there is.
    pub fn sync_all_metadata(&self) -> Result<()> {
        let recorded = self.state.lock().recorded;
        if self.progress.durable_records.load(SeqCst) >= recorded {
            // A sync of some file took it along.
            return match self.read_only {
                true => Ok(()),
                false => self.check_writable(),
            };
        }
        self.sync(recorded)
    }

    /// What was written is durable, with the records that transactions have.
    fn flush(&self) -> Result<()> {
        let done = self.flusher.flush(|| self.flush_device());
        done.map_err(|e| self.fail(e))
    }

    /// The same, with the records that are waited for, if there is room for them.
    fn flush_with_wanted(&self) -> Result<()> {
        let done = self.flusher.flush(|| {
            self.commit_wanted()?;
            self.flush_device()
        });
        done.map_err(|e| self.fail(e))
    }

    fn flush_device(&self) -> Result<()> {
        let (records, seq) = *self.progress.written.lock();
        self.device.flush()?;
        self.progress.durable_seq.fetch_max(seq, SeqCst);
        if self.progress.durable_records.load(SeqCst) < records {
            let mut state = self.state.lock();
            state.made_durable(records);
            if state.blocks.has_idle() {
                drop(state);
                self.upkeep.request();
            }
            // Last: whoever sees it takes what came free for free.
            self.progress.durable_records.store(records, SeqCst);
        }
        Ok(())
    }

    /// Writes a checkpoint, so that the journal before it is not needed any more. Whoever changes anything meanwhile waits for a copy of the metadata to
    /// be taken, which is a matter of microseconds, and writes to a new journal extent from then on.
    ///
    /// Errors leave the old checkpoint and the journal as they are; one of a flush ends all changes.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_for(None).map(|_| ())
    }

    /// Takes the whole device, which has become longer: a checkpoint of that size, and the blocks behind are free. Returns by how many bytes.
    pub fn grow(&self) -> Result<u64> {
        // A second one finds nothing left.
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
        let free = self.checkpoint_for(Some(blocks))?;
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

    /// With a new size in blocks, if one is given. Returns the first block that is new and free.
    fn checkpoint_for(&self, size: Option<u64>) -> Result<u64> {
        let _one = self.checkpointing.lock();
        self.checkpoint_alone(size)
    }

    /// The same, of whoever holds `checkpointing`.
    fn checkpoint_alone(&self, size: Option<u64>) -> Result<u64> {
        self.check_writable()?;
        if size.is_none() {
            // Seen before anything is done: each try takes a journal extent.
            let room = |state: &mut State| {
                let need = state.checkpoint_blocks();
                state.has_room_in(need, MAX_CHECKPOINT_RUNS).then_some(())
            };
            if self.with_discards(room).is_none() {
                return Err(only_more_space_helps("for a checkpoint"));
            }
        }
        let (copy, jump, extents, bytes, seq, mut superblock) = {
            let mut journal = self.journal.lock();
            let copy = |state: &State| state.meta.copy();
            let copy = match self.commit_all(&mut journal, Asks::Checkpoint, copy) {
                Err(e) if e.kind() == ErrorKind::NoSpace && self.wait_for_discards() => {
                    self.commit_all(&mut journal, Asks::Checkpoint, copy)?
                }
                done => done?,
            };
            // What is recorded from here on goes behind the jump. Where that goes on is found when it is begun.
            if !journal.writer.is_fresh() {
                journal.writer.turn(None);
            }
            let (run, life, extents) = journal.writer.fresh_extent();
            let seq = journal.writer.seq();
            let (bytes, superblock) = (journal.writer.bytes(), journal.superblock.clone());
            let jump = Record::Jump { run, seq, life };
            (copy, jump, extents, bytes, seq - 1, superblock)
        };
        let pieces = Pieces::of(&copy, jump, self.facts.unit);
        drop(copy);
        let blocks = pieces.bytes().div_ceil(BLOCK);
        let blocks_before = superblock.blocks;
        let more = size.unwrap_or(blocks_before) - blocks_before;
        let runs = match more >= blocks {
            // Whatever the old space has room for.
            true => Some(vec![Run {
                start: blocks_before,
                len: blocks,
            }]),
            false => self.with_discards(|state| state.allocate_reserved(blocks)),
        };
        let runs = runs.ok_or_else(|| only_more_space_helps("for a checkpoint"))?;
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
        // From here on nobody knows which one a mount finds: what both need stays.
        placed.map_err(|e| self.fail(e))?;
        let mut journal = self.journal.lock();
        let mut gone: Vec<Run> = journal.writer.give_up(extents, bytes);
        gone.extend(old);
        journal.due_at = due_at(&superblock);
        journal.due_extents = DUE_EXTENTS;
        journal.superblock = superblock;
        journal.checkpoints += 1;
        let mut state = self.state.lock();
        gone.into_iter().for_each(|run| state.blocks.release(run));
        state.last_checkpoint = blocks;
        state.keep_spares();
        Ok(blocks_before + taken)
    }

    /// Calls `take` until it finds space. Between two calls, waits for a running discard, whose
    /// blocks become free. Another thread may begin a new discard each time, so the number of
    /// calls is bounded. Returns `None` if no call finds space: the image is full.
    fn with_discards<R>(&self, mut take: impl FnMut(&mut State) -> Option<R>) -> Option<R> {
        for _ in 0..16 {
            let taken = take(&mut self.state.lock());
            if taken.is_some() || !self.wait_for_discards() {
                return taken.or_else(|| take(&mut self.state.lock()));
            }
        }
        take(&mut self.state.lock())
    }

    /// Tells the device what is free, some of it; false when there was nothing to tell. Blocks are given to nobody meanwhile.
    pub fn discard_some(&self) -> bool {
        if self.check_writable().is_err() {
            return false;
        }
        let Some(discarding) = self.state.lock().blocks.begin_discard() else {
            return false;
        };
        let mut discarding = EndsDiscard(self, Some(discarding));
        // It cannot be told.
        let mut deaf = false;
        let mut told = 0;
        for run in discarding.1.iter().flat_map(Discarding::runs) {
            // A device that does not listen is no reason to fail. One that cannot is asked no more.
            match self.device.discard(run.start * BLOCK, run.len * BLOCK) {
                Ok(()) => told += run.len * BLOCK,
                Err(e) => {
                    self.counts.failed_discards.fetch_add(1, SeqCst);
                    let cannot = [Errno::OPNOTSUPP, Errno::INVAL, Errno::PERM, Errno::NOTTY];
                    let cannot = cannot.map(|e| Some(e.raw_os_error()));
                    if e.kind() == ErrorKind::Unsupported || cannot.contains(&e.os_error()) {
                        deaf = true;
                        break;
                    }
                }
            }
        }
        self.counts.discarded.fetch_add(told, SeqCst);
        discarding.end();
        if deaf {
            self.state.lock().blocks.discard_no_more();
        }
        true
    }

    /// Until what the device is being told of is free. False when there was nothing to wait for.
    pub fn wait_for_discards(&self) -> bool {
        let mut state = self.state.lock();
        let waits = state.blocks.is_discarding();
        state.discard_waiters += 1;
        while state.blocks.is_discarding() {
            self.discarded.wait(&mut state);
        }
        state.discard_waiters -= 1;
        waits
    }

    fn write_checkpoint(&self, pieces: &Pieces, superblock: &Superblock) -> Result<()> {
        let runs = &superblock.checkpoint;
        for (at, bytes) in pieces.sealed(&self.uuid, superblock.generation, runs) {
            checkpoint::write(&*self.device, runs, at, &bytes)?;
            self.counts.wrote(Cause::Checkpoint, bytes.len() as u64);
        }
        self.flush()
    }

    /// One copy after the other: a power cut finds one of them whole.
    fn write_superblocks(&self, superblock: &Superblock) -> Result<()> {
        for at in SUPERBLOCKS {
            // Nothing after the image was given up.
            self.check_writable()?;
            let bytes = superblock.encode(at);
            self.device
                .write(at, &[IoSlice::new(&bytes)], Way::Direct)?;
            self.counts.wrote(Cause::Superblock, bytes.len() as u64);
            self.flush()?;
        }
        Ok(())
    }

    /// Everything is on the device, and the superblock says how far it goes. For the end.
    pub fn end(&self) -> Result<()> {
        self.sync_all_metadata()?;
        while self.discard_some() {}
        if self.is_due() {
            // Without room for it the journal goes on.
            let _ = self.checkpoint();
            self.check_writable()?;
        }
        // Nobody else writes superblocks. The journal is not held: whoever flushes may wait for it.
        let _one = self.checkpointing.lock();
        let mut superblock = self.journal.lock().superblock.clone();
        let seq = self.progress.durable_seq.load(SeqCst);
        if superblock.clean_seq >= seq {
            return Ok(());
        }
        superblock.clean_seq = seq;
        self.write_superblocks(&superblock)?;
        self.journal.lock().superblock = superblock;
        Ok(())
    }
}

impl Work for Shared {
    fn upkeep(&self) -> &Upkeep {
        &self.upkeep
    }

    fn work(&self) -> bool {
        // In small steps: a checkpoint does not wait for all of it.
        let more = self.discard_some();
        // A checkpoint may have become due while the last one was written.
        if self.is_due() && self.checkpoint().is_err() {
            self.journal.lock().wait_for_more();
        }
        more
    }
}

/// From how many bytes of journal on a checkpoint is due: a mount reads both.
pub fn due_at(superblock: &Superblock) -> u64 {
    let extent = u64::from(superblock.journal_blocks) * BLOCK;
    (2 * extent).max(superblock.checkpoint_bytes)
}

fn no_room(what: &str) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "the image is full: there is no room {what}; remove something (`basalt fs rm`), or `basalt fs grow` it"
        ),
    )
}

/// Where not even removals can be written.
fn only_more_space_helps(what: &str) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!("the image is full: there is no room {what}; make it larger with `basalt fs grow`"),
    )
}
