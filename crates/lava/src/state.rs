//! The state under one lock: the metadata, the blocks, the pending records, and the open inodes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::allocator::Allocator;
use super::extents::Extents;
use super::layout::TRANSACTION_GOAL;
use super::meta::{ApplyEffect, ApplyError, Meta};
use super::metadata_record::{Ino, JournalRecord};
use super::open_inode::{LinkState, OpenInode};
use super::runs::{BLOCK, Run};

/// Number of spare extents for the journal.
const SPARES: usize = 3;
/// Number of spare extents that only a checkpoint may take. A checkpoint frees the whole journal.
const LAST_SPARES: usize = 2;

/// The purpose for which journal extents are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentPurpose {
    /// A transaction, which leaves the spare extents that a checkpoint needs.
    Commit,
    /// A checkpoint.
    Checkpoint,
}

/// A change of the extents of an open file.
pub enum ExtentChange {
    /// Adds these runs at the end.
    Grow(Vec<Run>),
    /// Removes all blocks from this one on.
    Cut(u64),
    /// Makes a hole of these blocks.
    Punch(Range<u64>),
}

/// Largest number of runs in one record.
const RUNS_A_RECORD: usize = 500;

/// Records that no transaction has yet.
#[derive(Default)]
pub struct PendingRecords {
    bytes: Vec<u8>,
    /// Offsets at which transactions begin, without that of the first one.
    cuts: Vec<usize>,
}

impl PendingRecords {
    /// Returns the size of the records, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, record: &JournalRecord) {
        let last = self.cuts.last().copied().unwrap_or(0);
        if self.bytes.len() - last >= TRANSACTION_GOAL {
            self.cuts.push(self.bytes.len());
        }
        record.encode(&mut self.bytes);
    }

    /// Returns the records of each transaction.
    pub fn transactions(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let ends = self.cuts.iter().copied().chain([self.bytes.len()]);
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let parts = starts.zip(ends).map(|(from, to)| &self.bytes[from..to]);
        parts.filter(|p| !p.is_empty())
    }
}

/// The state of a mount that changes under one lock.
pub struct MountState {
    pub meta: Meta,
    pub blocks: Allocator,
    pub pending: PendingRecords,
    /// Number of records since the mount.
    pub recorded: u64,
    /// Number of threads that wait for a discard to end.
    pub discard_waiters: usize,
    /// Open inodes that have a name, and the number of handles of each.
    pub open: BTreeMap<Ino, (Arc<OpenInode>, usize)>,
    /// Blocks of a journal extent.
    journal_blocks: u64,
    /// Blocks of the last checkpoint.
    pub last_checkpoint: u64,
}

impl MountState {
    pub fn new(meta: Meta, blocks: Allocator, journal_blocks: u32) -> MountState {
        MountState {
            meta,
            blocks,
            pending: PendingRecords::default(),
            recorded: 0,
            discard_waiters: 0,
            open: BTreeMap::new(),
            journal_blocks: u64::from(journal_blocks),
            last_checkpoint: 0,
        }
    }

    /// Applies a record in memory, and adds it to the pending records. Returns the record's number.
    ///
    /// Errors: why the record cannot be applied; then nothing is changed.
    pub fn record(&mut self, record: &JournalRecord) -> Result<u64, ApplyError> {
        let changed = match record {
            JournalRecord::Grow { ino, .. }
            | JournalRecord::Cut { ino, .. }
            | JournalRecord::Punch { ino, .. } => {
                self.open.get(ino).map(|(inode, _)| (*ino, inode))
            }
            _ => None,
        };
        let meta = &mut self.meta;
        let effect = match changed {
            None => meta.apply(record),
            // Readers of the file wait meanwhile, so the list has one owner and is changed in
            // place.
            Some((ino, inode)) => inode.change_extents(|shown| {
                *shown = Extents::default();
                let effect = meta.apply(record);
                *shown = meta.extents(ino).expect("an open file with a name");
                effect
            }),
        };
        let ApplyEffect { freed, gone } = effect?;
        self.pending.push(record);
        self.recorded += 1;
        self.blocks.free_after(self.recorded, freed);
        if let Some((ino, extents)) = gone {
            match self.open.remove(&ino) {
                // Open handles go on reading. The blocks are freed with the last handle.
                Some((inode, handles)) => inode.become_orphan(handles, self.recorded),
                None => self
                    .blocks
                    .free_after(self.recorded, extents.runs().collect()),
            }
        }
        Ok(self.recorded)
    }

    /// Changes the extents of an open file. `linked` says whether the file has a name. An orphan is
    /// the only owner of its extents, so no record is made.
    pub fn change_extents(&mut self, inode: &OpenInode, linked: bool, change: ExtentChange) {
        let ino = inode.ino;
        if linked {
            let records = match change {
                ExtentChange::Grow(runs) => {
                    let parts = runs.chunks(RUNS_A_RECORD).map(<[Run]>::to_vec);
                    parts
                        .map(|runs| JournalRecord::Grow { ino, runs })
                        .collect()
                }
                ExtentChange::Cut(blocks) => vec![JournalRecord::Cut { ino, blocks }],
                ExtentChange::Punch(Range { start: from, end }) => {
                    let blocks = end - from;
                    vec![JournalRecord::Punch { ino, from, blocks }]
                }
            };
            for record in records {
                let n = self.record(&record).expect("an open file with a name");
                inode.set_last_record(n);
            }
            return;
        }
        let freed = inode.change_extents(|own| match change {
            ExtentChange::Grow(runs) => {
                runs.iter().for_each(|r| own.push(Some(r.start), r.len));
                Vec::new()
            }
            ExtentChange::Cut(blocks) => own.cut(blocks),
            ExtentChange::Punch(blocks) => own.punch(blocks),
        });
        // The blocks may not be free before the removal of the last name is durable. That record is
        // not newer than `recorded`.
        self.blocks.free_after(self.recorded, freed);
    }

    /// Notes that the first `records` records are durable. The blocks that they freed can be used.
    pub fn made_durable(&mut self, records: u64) {
        self.blocks.made_durable(records);
    }

    /// Returns `true` if `blocks` blocks are free in at most `pieces` runs, the reserve included.
    pub fn has_room_in(&mut self, blocks: u64, pieces: usize) -> bool {
        self.blocks.free().longest_in(pieces) >= blocks
            || self.blocks.free_idle() && self.blocks.free().longest_in(pieces) >= blocks
    }

    /// Allocates blocks for a checkpoint, also from the reserve.
    pub fn allocate_reserved(&mut self, blocks: u64) -> Option<Vec<Run>> {
        if self.blocks.free().blocks() < blocks {
            self.blocks.free_idle();
        }
        self.blocks.take(blocks, None)
    }

    /// Returns an upper bound of the blocks of a checkpoint now.
    pub fn checkpoint_blocks(&self) -> u64 {
        self.meta.checkpoint_bound().div_ceil(BLOCK)
    }

    /// Returns the blocks that files may not take: those for the journal until the next checkpoint,
    /// and for that checkpoint. The value depends on the last checkpoint, so that it seldom
    /// changes, or on the present metadata if that is much larger.
    pub fn reserve(&self) -> u64 {
        let last = 6 * self.journal_blocks + 3 * self.last_checkpoint;
        last.max(4 * self.journal_blocks + self.checkpoint_blocks())
    }

    /// Returns `true` if there is space for more files and names: for a larger checkpoint, and for
    /// the journal until it is written. This is less than the reserve, so that a caller that frees
    /// space on a full image can make files for that.
    pub fn has_room_for_names(&self) -> bool {
        self.blocks.unused() >= 2 * self.journal_blocks + self.checkpoint_blocks()
    }

    /// Returns the blocks that files may take now.
    pub fn available(&self) -> u64 {
        self.blocks.free().blocks().saturating_sub(self.reserve())
    }

    /// Allocates blocks for a file: `like` blocks if they are available, `need` blocks otherwise.
    /// Returns `None` if fewer are available.
    pub fn allocate(&mut self, need: u64, like: u64, near: Option<u64>) -> Option<Vec<Run>> {
        if like > self.available() {
            self.blocks.free_idle();
        }
        let available = self.available();
        let want = if like <= available { like } else { need };
        if want > available {
            return None;
        }
        self.blocks.take(want, near)
    }

    /// Allocates spare extents for the journal, as far as a checkpoint keeps its space.
    pub fn keep_spares(&mut self) {
        while self.blocks.spares() < SPARES {
            let Some(run) = self.extent_beside_checkpoint() else {
                return;
            };
            self.blocks.keep_spare(run);
        }
    }

    /// Allocates an extent for the journal, if the other blocks are enough for a checkpoint.
    fn extent_beside_checkpoint(&mut self) -> Option<Run> {
        let blocks = self.journal_blocks;
        match self.blocks.unused() >= blocks + self.checkpoint_blocks() {
            true => self.blocks.take_whole(blocks),
            false => None,
        }
    }

    /// Allocates `count` extents for the journal. Returns `None`, without a change, if there are
    /// fewer.
    pub fn journal_extents(&mut self, count: usize, purpose: ExtentPurpose) -> Option<Vec<Run>> {
        let mut all = Vec::new();
        let least = match purpose {
            ExtentPurpose::Commit => LAST_SPARES,
            ExtentPurpose::Checkpoint => 0,
        };
        while all.len() < count {
            let run = self.extent_beside_checkpoint();
            let run = match run {
                None if self.blocks.spares() > least => self.blocks.take_spare(),
                run => run,
            };
            match run {
                Some(run) => all.push(run),
                None => {
                    all.into_iter().for_each(|run| self.blocks.keep_spare(run));
                    return None;
                }
            }
        }
        if count > 0 {
            self.keep_spares();
        }
        Some(all)
    }

    /// Opens an inode once more. Returns what all handles of the file share.
    pub fn open_inode(&mut self, ino: Ino) -> Result<Arc<OpenInode>, ApplyError> {
        if let Some((inode, handles)) = self.open.get_mut(&ino) {
            *handles += 1;
            return Ok(Arc::clone(inode));
        }
        let attrs = self.meta.attrs(ino)?;
        let extents = self.meta.extents(ino)?;
        let inode = Arc::new(OpenInode::new(ino, attrs, extents, self.recorded));
        self.open.insert(ino, (Arc::clone(&inode), 1));
        Ok(inode)
    }

    /// Closes a handle of an inode.
    pub fn close(&mut self, inode: &Arc<OpenInode>) {
        let mut link_state = inode.link_state.lock();
        match &mut *link_state {
            LinkState::Linked => {
                let (_, handles) = self.open.get_mut(&inode.ino).expect("it is open");
                *handles -= 1;
                if *handles == 0 {
                    self.open.remove(&inode.ino);
                    drop(link_state);
                    self.record_final_length(inode);
                }
            }
            LinkState::Orphan { handles, removal } => {
                *handles -= 1;
                if *handles == 0 {
                    // The blocks may not be free before the removal of the name is durable.
                    let removal = *removal;
                    let runs = inode.change_extents(|own| own.cut(0));
                    self.blocks.free_after(removal, runs);
                }
            }
            LinkState::Recycled => {}
        }
    }

    /// Records the final length of a file whose last handle was closed, and frees the space behind
    /// it.
    fn record_final_length(&mut self, inode: &OpenInode) {
        if !inode.was_appended() {
            return;
        }
        for record in inode.closing_records() {
            // The inode was open, so the record can be applied.
            let _ = self.record(&record);
        }
    }
}
