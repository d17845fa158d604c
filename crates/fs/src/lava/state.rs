//! What changes under one lock: the metadata, free space, the records that no transaction has yet, and which files are open.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::file::{Hold, Node};
use super::layout::TRANSACTION_GOAL;
use super::meta::{Effect, Meta, Refusal};
use super::record::{Ino, Record};
use super::runs::{BLOCK, Run};
use super::space::FreeSpace;

/// Journal extents that are kept in hand.
const SPARES: usize = 3;
/// Of these, those that only a checkpoint gets: it gives back all that the journal has.
const LAST_SPARES: usize = 2;

/// Who asks for extents of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A transaction: it leaves what a checkpoint needs.
    Commit,
    /// A checkpoint.
    Checkpoint,
}

/// Shorter free runs are not worth a call to the device.
const DISCARD_MIN: u64 = (64 << 10) / BLOCK;
/// Blocks that are away for one discard at most.
const DISCARD_MAX: u64 = (32 << 20) / BLOCK;

/// Records that wait for a transaction.
#[derive(Default)]
pub struct Pending {
    bytes: Vec<u8>,
    /// Where transactions may begin, behind the first one.
    cuts: Vec<usize>,
}

impl Pending {
    /// Bytes of records.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, record: &Record) {
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
pub struct State {
    pub meta: Meta,
    pub space: FreeSpace,
    pub pending: Pending,
    /// Records so far.
    pub recorded: u64,
    /// Blocks that are free once so many records are durable.
    frees: VecDeque<(u64, Vec<Run>)>,
    waiting: u64,
    /// Runs that are free but for the device, which is to be told first. None where it is not told.
    idle: Option<Vec<Run>>,
    idle_blocks: u64,
    /// Blocks that it is being told of.
    discarding: u64,
    /// So many records are durable.
    durable: u64,
    /// Extents for the journal, in one piece each: nobody else gets them.
    spares: Vec<Run>,
    /// Open files, and how many handles each has.
    pub open: BTreeMap<Ino, (Arc<Node>, usize)>,
    /// Blocks of a journal extent.
    journal_blocks: u64,
    /// Blocks of the last checkpoint.
    pub last_checkpoint: u64,
}

impl State {
    pub fn new(meta: Meta, space: FreeSpace, journal_blocks: u32) -> State {
        State {
            meta,
            space,
            pending: Pending::default(),
            recorded: 0,
            frees: VecDeque::new(),
            waiting: 0,
            idle: None,
            idle_blocks: 0,
            discarding: 0,
            durable: 0,
            spares: Vec::new(),
            open: BTreeMap::new(),
            journal_blocks: u64::from(journal_blocks),
            last_checkpoint: 0,
        }
    }

    /// Does what a record says, in memory, and notes it for the next transaction. Returns the record's number.
    pub fn record(&mut self, record: &Record) -> Result<u64, Refusal> {
        let Effect { freed, gone } = self.meta.apply(record)?;
        self.pending.push(record);
        self.recorded += 1;
        self.free_later(freed);
        if let Some((ino, extents)) = gone {
            match self.open.remove(&ino) {
                // Whoever has it open reads on: the blocks go with the last handle.
                Some((node, handles)) => node.lose_name(handles, self.recorded),
                None => self.free_later(extents.runs().collect()),
            }
        }
        Ok(self.recorded)
    }

    /// Blocks that nothing refers to as soon as all records so far are durable.
    pub fn free_later(&mut self, runs: Vec<Run>) {
        if !runs.is_empty() {
            self.waiting += runs.iter().map(|r| r.len).sum::<u64>();
            self.frees.push_back((self.recorded, runs));
            // Of a file without a name no record may be left to wait for.
            self.made_durable(self.durable);
        }
    }

    /// So many records are durable: what they freed is free.
    pub fn made_durable(&mut self, records: u64) {
        self.durable = self.durable.max(records);
        while self.frees.front().is_some_and(|(n, _)| *n <= records) {
            let (_, runs) = self.frees.pop_front().expect("just seen");
            for run in runs {
                self.waiting -= run.len;
                self.give_back(run);
            }
        }
    }

    /// The device is to be told of what is free.
    pub fn discard_from_now_on(&mut self) {
        self.idle = Some(Vec::new());
    }

    /// Blocks that nobody has any more, and whose freeing is durable.
    pub fn give_back(&mut self, run: Run) {
        match &mut self.idle {
            Some(idle) if run.len >= DISCARD_MIN => {
                self.idle_blocks += run.len;
                idle.push(run);
            }
            _ => self.now_free(run),
        }
    }

    fn now_free(&mut self, run: Run) {
        let free = self.space.free(run);
        debug_assert!(free, "blocks {run:?} are given back that nobody had");
    }

    /// Blocks that the device is to be told of; nobody gets them meanwhile. [`State::discarded`] gives them back.
    pub fn take_to_discard(&mut self) -> Vec<Run> {
        let mut taken = Vec::new();
        let Some(idle) = &mut self.idle else {
            return taken;
        };
        let mut left = DISCARD_MAX;
        while let Some(mut run) = idle.pop() {
            let len = run.len.min(left);
            if len < run.len {
                idle.push(Run {
                    start: run.start + len,
                    len: run.len - len,
                });
                run.len = len;
            }
            left -= len;
            taken.push(run);
            if left == 0 {
                break;
            }
        }
        self.discarding += DISCARD_MAX - left;
        self.idle_blocks -= DISCARD_MAX - left;
        taken
    }

    /// The device was told, or would not listen.
    pub fn discarded(&mut self, runs: Vec<Run>) {
        for run in runs {
            self.discarding -= run.len;
            self.now_free(run);
        }
    }

    /// True when the device is being told of something.
    pub fn is_discarding(&self) -> bool {
        self.discarding > 0
    }

    /// Free at once, whatever the device knows: somebody needs it.
    fn take_idle(&mut self) -> bool {
        let idle = self.idle.as_mut().map(std::mem::take).unwrap_or_default();
        let some = !idle.is_empty();
        self.idle_blocks = 0;
        for run in idle {
            self.now_free(run);
        }
        some
    }

    /// Blocks that wait for a transaction to be durable, or for the device to hear of them.
    pub fn waiting(&self) -> u64 {
        self.waiting + self.idle_blocks + self.discarding
    }

    /// Something is free but for the device.
    pub fn has_idle(&self) -> bool {
        self.idle_blocks > 0
    }

    /// True when so many blocks can be had in so many pieces, of the reserve if need be.
    pub fn has_room_in(&mut self, blocks: u64, pieces: usize) -> bool {
        self.space.longest_in(pieces) >= blocks
            || self.take_idle() && self.space.longest_in(pieces) >= blocks
    }

    /// All that nobody has, the reserve included.
    pub fn free_blocks(&self) -> u64 {
        self.space.blocks() + self.idle_blocks
    }

    /// The device is told nothing any more.
    pub fn discard_no_more(&mut self) {
        self.take_idle();
        self.idle = None;
    }

    /// Blocks for a checkpoint, of the reserve if need be.
    pub fn allocate_reserved(&mut self, blocks: u64) -> Option<Vec<Run>> {
        if self.space.blocks() < blocks {
            self.take_idle();
        }
        self.space.allocate_all(blocks, None)
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
        self.free_blocks() >= 2 * self.journal_blocks + self.checkpoint_blocks()
    }

    /// Blocks that files may take now.
    pub fn available(&self) -> u64 {
        self.space.blocks().saturating_sub(self.reserve())
    }

    /// Blocks for a file: as many as it would like, or those that it needs. None when there are not so many.
    pub fn allocate(&mut self, need: u64, like: u64, near: Option<u64>) -> Option<Vec<Run>> {
        if like > self.available() {
            self.take_idle();
        }
        let available = self.available();
        let want = if like <= available { like } else { need };
        if want > available {
            return None;
        }
        self.space.allocate_all(want, near)
    }

    /// Keeps extents for the journal, as many as there is room for beside a checkpoint.
    pub fn keep_spares(&mut self) {
        while self.spares.len() < SPARES {
            let Some(run) = self.extent_beside_checkpoint() else {
                return;
            };
            self.spares.push(run);
        }
    }

    #[cfg(test)]
    pub fn take_spares(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.spares)
    }

    #[cfg(test)]
    pub fn take_spare(&mut self, run: Run) -> bool {
        let before = self.spares.len();
        self.spares.retain(|r| *r != run);
        before > self.spares.len()
    }

    /// An extent for the journal, if what is left is enough for a checkpoint.
    fn extent_beside_checkpoint(&mut self) -> Option<Run> {
        let blocks = self.journal_blocks;
        match self.free_blocks() >= blocks + self.checkpoint_blocks() {
            true => self.allocate_whole(blocks),
            false => None,
        }
    }

    /// So many extents for the journal; none of them when there are fewer.
    pub fn journal_extents(&mut self, count: usize, asks: Asks) -> Option<Vec<Run>> {
        let mut all = Vec::new();
        let least = match asks {
            Asks::Commit => LAST_SPARES,
            Asks::Checkpoint => 0,
        };
        while all.len() < count {
            let run = self.extent_beside_checkpoint();
            let spare = |s: &mut Self| (s.spares.len() > least).then(|| s.spares.pop()).flatten();
            match run.or_else(|| spare(self)) {
                Some(run) => all.push(run),
                None => {
                    self.spares.extend(all);
                    return None;
                }
            }
        }
        if count > 0 {
            self.keep_spares();
        }
        Some(all)
    }

    /// A run in one piece, of the reserve if need be.
    pub fn allocate_whole(&mut self, blocks: u64) -> Option<Run> {
        if self.space.longest() < blocks && !(self.take_idle() && self.space.longest() >= blocks) {
            return None;
        }
        let run = self.space.allocate(blocks, None)?;
        assert_eq!(run.len, blocks, "the longest is long enough");
        Some(run)
    }

    /// A handle of a file: the node it shares with others of the same file.
    pub fn hold(&mut self, ino: Ino) -> Result<Arc<Node>, Refusal> {
        if let Some((node, handles)) = self.open.get_mut(&ino) {
            *handles += 1;
            return Ok(Arc::clone(node));
        }
        let facts = self.meta.facts(ino)?;
        let node = Arc::new(Node::new(ino, facts, self.meta.extents(ino)?));
        node.record.store(self.recorded, SeqCst);
        self.open.insert(ino, (Arc::clone(&node), 1));
        Ok(node)
    }

    /// A handle goes.
    pub fn release(&mut self, node: &Arc<Node>) {
        let mut hold = node.hold.lock();
        match &mut *hold {
            Hold::Named => {
                let (_, handles) = self.open.get_mut(&node.ino).expect("it is open");
                *handles -= 1;
                if *handles == 0 {
                    self.open.remove(&node.ino);
                    drop(hold);
                    self.settle(node);
                }
            }
            Hold::Nameless(handles, since) => {
                *handles -= 1;
                if *handles == 0 {
                    let runs: Vec<Run> = node.extents.write().cut(0);
                    self.waiting += runs.iter().map(|r| r.len).sum::<u64>();
                    // Not before the removal is durable, in the order of the others.
                    let since = *since;
                    let at = self.frees.partition_point(|(n, _)| *n <= since);
                    self.frees.insert(at, (since, runs));
                    self.made_durable(self.durable);
                }
            }
            Hold::Over => {}
        }
    }

    /// The last handle of a file that stays: its length is what was appended, and space that nobody appends to any more goes back.
    fn settle(&mut self, node: &Node) {
        if !node.was_appended() {
            return;
        }
        for record in node.settled() {
            // It was open, so it is there.
            let _ = self.record(&record);
        }
    }
}
