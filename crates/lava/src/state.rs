//! What changes under one lock: the metadata, free space, the records that no transaction has yet, and which files are open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::allocator::Allocator;
use super::extents::Extents;
use super::layout::TRANSACTION_GOAL;
use super::meta::{ApplyEffect, ApplyError, Meta};
use super::open_inode::{LinkState, OpenInode};
use super::record::{Ino, JournalRecord};
use super::runs::{BLOCK, Run};

/// Journal extents that are kept in hand.
const SPARES: usize = 3;
/// Of these, those that only a checkpoint gets: it gives back all that the journal has.
const LAST_SPARES: usize = 2;

/// Who purpose for extents of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentPurpose {
    /// A transaction: it leaves what a checkpoint needs.
    Commit,
    /// A checkpoint.
    Checkpoint,
}

/// What becomes of the blocks of an open file.
pub enum ExtentChange {
    /// These are added at its end.
    Grow(Vec<Run>),
    /// All blocks from this one on go.
    Cut(u64),
    /// These become a hole.
    Punch(Range<u64>),
}

/// Runs in one record at most.
const RUNS_A_RECORD: usize = 500;

/// Records that wait for a transaction.
#[derive(Default)]
pub struct PendingRecords {
    bytes: Vec<u8>,
    /// Where transactions may begin, behind the first one.
    cuts: Vec<usize>,
}

impl PendingRecords {
    /// Bytes of records.
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

    /// The records of each transaction.
    pub fn transactions(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let ends = self.cuts.iter().copied().chain([self.bytes.len()]);
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let parts = starts.zip(ends).map(|(from, to)| &self.bytes[from..to]);
        parts.filter(|p| !p.is_empty())
    }
}

/// See the module's head.
pub struct MountState {
    pub meta: Meta,
    pub blocks: Allocator,
    pub pending: PendingRecords,
    /// Records so far.
    pub recorded: u64,
    /// Threads that wait for a discard to end.
    pub discard_waiters: usize,
    /// Open files, and how many handles each has.
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

    /// Does what a record says, in memory, and notes it for the next transaction. Returns the record's number.
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
            // Readers of the file wait meanwhile, so the list is not shared and is changed in place.
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
                // Whoever has it open reads on: the blocks go with the last handle.
                Some((inode, handles)) => inode.become_orphan(handles, self.recorded),
                None => self
                    .blocks
                    .free_after(self.recorded, extents.runs().collect()),
            }
        }
        Ok(self.recorded)
    }

    /// Changes where an open file's blocks lie. `linked` says whether it has a name: without one the list is the inode's
    /// alone, and no record is made.
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
        // Not before the removal of its last name is durable: `release` has that record.
        self.blocks.free_after(self.recorded, freed);
    }

    /// So many records are durable: what they freed is free.
    pub fn made_durable(&mut self, records: u64) {
        self.blocks.made_durable(records);
    }

    /// True when so many blocks can be had in so many pieces, of the reserve if need be.
    pub fn has_room_in(&mut self, blocks: u64, pieces: usize) -> bool {
        self.blocks.free().longest_in(pieces) >= blocks
            || self.blocks.free_idle() && self.blocks.free().longest_in(pieces) >= blocks
    }

    /// Blocks for a checkpoint, of the reserve if need be.
    pub fn allocate_reserved(&mut self, blocks: u64) -> Option<Vec<Run>> {
        if self.blocks.free().blocks() < blocks {
            self.blocks.free_idle();
        }
        self.blocks.take(blocks, None)
    }

    /// Blocks that a checkpoint may need now.
    pub fn checkpoint_blocks(&self) -> u64 {
        self.meta.checkpoint_bound().div_ceil(BLOCK)
    }

    /// Blocks that files may not have: for a journal that grows until the next checkpoint is written, and for that. By the last checkpoint, so that it seldom
    /// changes; by what there is now, if that is much larger.
    pub fn reserve(&self) -> u64 {
        let last = 6 * self.journal_blocks + 3 * self.last_checkpoint;
        last.max(4 * self.journal_blocks + self.checkpoint_blocks())
    }

    /// True when there is room for more files and names: for a larger checkpoint, and for the journal until it is written. Less than what files
    /// leave, so that whoever makes room on a full image can make files for that.
    pub fn has_room_for_names(&self) -> bool {
        self.blocks.unused() >= 2 * self.journal_blocks + self.checkpoint_blocks()
    }

    /// Blocks that files may take now.
    pub fn available(&self) -> u64 {
        self.blocks.free().blocks().saturating_sub(self.reserve())
    }

    /// Blocks for a file: as many as it would like, or those that it needs. None when there are not so many.
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

    /// Keeps extents for the journal, as many as there is room for beside a checkpoint.
    pub fn keep_spares(&mut self) {
        while self.blocks.spares() < SPARES {
            let Some(run) = self.extent_beside_checkpoint() else {
                return;
            };
            self.blocks.keep_spare(run);
        }
    }

    /// An extent for the journal, if what is left is enough for a checkpoint.
    fn extent_beside_checkpoint(&mut self) -> Option<Run> {
        let blocks = self.journal_blocks;
        match self.blocks.unused() >= blocks + self.checkpoint_blocks() {
            true => self.blocks.take_whole(blocks),
            false => None,
        }
    }

    /// So many extents for the journal; none of them when there are fewer.
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

    /// A handle of a file: the inode it shares with others of the same file.
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

    /// A handle goes.
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
                    // Not before the removal of the name is durable.
                    let removal = *removal;
                    let runs = inode.change_extents(|own| own.cut(0));
                    self.blocks.free_after(removal, runs);
                }
            }
            LinkState::Recycled => {}
        }
    }

    /// The last handle of a file that stays: its length is what was appended, and space that nobody appends to any more goes back.
    fn record_final_length(&mut self, inode: &OpenInode) {
        if !inode.was_appended() {
            return;
        }
        for record in inode.closing_records() {
            // It was open, so it is there.
            let _ = self.record(&record);
        }
    }
}
