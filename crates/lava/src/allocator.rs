//! Counts the blocks of the device by state, and moves blocks between the states.
//!
//! A block is in one of these states:
//!
//! | state | meaning |
//! |---|---|
//! | used | a file, the journal or a checkpoint has it |
//! | awaiting | freed by a record that is not durable yet: after a power cut the block is in use |
//! | idle | free, but not discarded on the device yet |
//! | discarding | a discard of the block runs on the device: no thread may write to the block |
//! | spare | kept for the journal |
//! | free | can be given out |
//!
//! Each transition is one function of this module, and no other code moves a block. Each function
//! ends with an assertion that every block of the device is in exactly one state. So a double free
//! stops the process before the block is allocated twice. The check of an image (`check`) computes
//! the owner of each block independently, from the bytes of the device.

use std::collections::BTreeMap;

use super::free_space::FreeSpace;
use super::runs::{BLOCK, Run};

/// Shorter free runs are not worth a call to the device.
const DISCARD_MIN: u64 = (64 << 10) / BLOCK;
/// Blocks that are away for one discard at most.
const DISCARD_MAX: u64 = (32 << 20) / BLOCK;

fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|r| r.len).sum()
}

/// RunList with their number of blocks.
#[derive(Debug, Default)]
struct RunList {
    list: Vec<Run>,
    blocks: u64,
}

impl RunList {
    fn push(&mut self, run: Run) {
        self.blocks += run.len;
        self.list.push(run);
    }

    fn pop(&mut self) -> Option<Run> {
        let run = self.list.pop()?;
        self.blocks -= run.len;
        Some(run)
    }
}

/// Blocks that the device is being told of. [`Allocator::end_discard`] takes them back.
#[must_use]
#[derive(Debug)]
pub struct Discarding(Vec<Run>);

impl Discarding {
    /// The runs, in no order.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }
}

/// See the module's head.
pub struct Allocator {
    /// All blocks that can be used.
    total: u64,
    used: u64,
    free: FreeSpace,
    /// By the record that is to be durable first.
    awaiting: BTreeMap<u64, Vec<Run>>,
    awaiting_blocks: u64,
    /// None where the device is not told of free space.
    idle: Option<RunList>,
    discarding: u64,
    /// Extents for the journal, in one piece each.
    spares: RunList,
    /// Number of metadata records that are durable.
    durable: u64,
}

impl Allocator {
    /// Returns an allocator of `total` blocks. The blocks that are not in `free` are used.
    pub fn new(free: FreeSpace, total: u64) -> Allocator {
        Allocator {
            total,
            used: total - free.blocks(),
            free,
            awaiting: BTreeMap::new(),
            awaiting_blocks: 0,
            idle: None,
            discarding: 0,
            spares: RunList::default(),
            durable: 0,
        }
    }

    /// Every block is in one state.
    fn check(&self) {
        let not_used = self.free.blocks() + self.waiting() + self.spares.blocks;
        assert_eq!(
            self.used + not_used,
            self.total,
            "blocks of an image are lost or given back twice"
        );
    }

    fn leave_used(&mut self, blocks: u64) {
        let left = self.used.checked_sub(blocks);
        self.used = left.expect("more blocks are given back than are used");
    }

    fn make_free(&mut self, run: Run) {
        assert!(
            self.free.free(run),
            "blocks {run:?} are given back that are free"
        );
    }

    /// To idle or free.
    fn make_unused(&mut self, run: Run) {
        match &mut self.idle {
            Some(idle) if run.len >= DISCARD_MIN => idle.push(run),
            _ => self.make_free(run),
        }
    }

    // From free to used.

    /// Moves `blocks` free blocks to used, in as few runs as possible, at `near` if those are
    /// free. Returns `None` if there are fewer free blocks. Idle blocks are not taken.
    pub fn take(&mut self, blocks: u64, near: Option<u64>) -> Option<Vec<Run>> {
        let runs = self.free.allocate_all(blocks, near)?;
        self.used += blocks;
        self.check();
        Some(runs)
    }

    /// Free to used: a run in one piece. Idle blocks become free for it.
    pub fn take_whole(&mut self, blocks: u64) -> Option<Run> {
        if self.free.longest() < blocks && !(self.free_idle() && self.free.longest() >= blocks) {
            return None;
        }
        let run = self.free.allocate(blocks, None)?;
        assert_eq!(run.len, blocks, "the longest is long enough");
        self.used += blocks;
        self.check();
        Some(run)
    }

    /// Used to spare.
    pub fn keep_spare(&mut self, run: Run) {
        self.leave_used(run.len);
        self.spares.push(run);
        self.check();
    }

    /// Spare to used.
    pub fn take_spare(&mut self) -> Option<Run> {
        let run = self.spares.pop()?;
        self.used += run.len;
        self.check();
        Some(run)
    }

    // From used to free.

    /// Used to awaiting, and on at once where the record is durable: blocks that a record gave up.
    pub fn free_after(&mut self, record: u64, runs: Vec<Run>) {
        let blocks = blocks_of(&runs);
        self.leave_used(blocks);
        self.awaiting_blocks += blocks;
        if blocks > 0 {
            self.awaiting.entry(record).or_default().extend(runs);
        }
        self.made_durable(self.durable);
    }

    /// Awaiting to idle or free: so many records are durable.
    pub fn made_durable(&mut self, records: u64) {
        self.durable = self.durable.max(records);
        while let Some(first) = self.awaiting.first_entry()
            && *first.key() <= self.durable
        {
            for run in first.remove() {
                self.awaiting_blocks -= run.len;
                self.make_unused(run);
            }
        }
        self.check();
    }

    /// Used to idle or free: nothing on the device refers to the blocks any more.
    pub fn release(&mut self, run: Run) {
        self.leave_used(run.len);
        self.make_unused(run);
        self.check();
    }

    /// The device is longer now. The first blocks of the new ones are used, the rest is idle or free.
    pub fn grow(&mut self, new: Run, used: u64) {
        self.total += new.len;
        self.used += used;
        if used < new.len {
            self.make_unused(Run {
                start: new.start + used,
                len: new.len - used,
            });
        }
        self.check();
    }

    // What the device is told.

    /// From now on the device is told of free space.
    pub fn discard_from_now_on(&mut self) {
        self.idle = Some(RunList::default());
    }

    /// Idle to free, from now on without telling the device.
    pub fn discard_no_more(&mut self) {
        self.free_idle();
        self.idle = None;
    }

    /// Moves all idle blocks to free without a discard, because a caller needs the space. Returns
    /// false if no block was idle.
    pub fn free_idle(&mut self) -> bool {
        let idle = self.idle.as_mut().map(std::mem::take).unwrap_or_default();
        let some = idle.blocks > 0;
        for run in idle.list {
            self.make_free(run);
        }
        self.check();
        some
    }

    /// Idle to discarding, some of it. None where nothing is idle.
    pub fn begin_discard(&mut self) -> Option<Discarding> {
        let idle = self.idle.as_mut()?;
        let (mut runs, mut left) = (Vec::new(), DISCARD_MAX);
        while left > 0
            && let Some(mut run) = idle.pop()
        {
            if run.len > left {
                idle.push(Run {
                    start: run.start + left,
                    len: run.len - left,
                });
                run.len = left;
            }
            left -= run.len;
            runs.push(run);
        }
        self.discarding += blocks_of(&runs);
        self.check();
        (!runs.is_empty()).then_some(Discarding(runs))
    }

    /// Moves the blocks of a finished discard to free, also if the device refused the discard.
    pub fn end_discard(&mut self, discarding: Discarding) {
        for run in discarding.0 {
            self.discarding -= run.len;
            self.make_free(run);
        }
        self.check();
    }

    // How much there is.

    /// Blocks that can be given out now, without those that are idle.
    pub fn free(&self) -> &FreeSpace {
        &self.free
    }

    /// Free and idle blocks.
    pub fn unused(&self) -> u64 {
        self.free.blocks() + self.idle_blocks()
    }

    fn idle_blocks(&self) -> u64 {
        self.idle.as_ref().map_or(0, |idle| idle.blocks)
    }

    /// Some blocks are idle.
    pub fn has_idle(&self) -> bool {
        self.idle_blocks() > 0
    }

    /// The device is being told of some blocks.
    pub fn is_discarding(&self) -> bool {
        self.discarding > 0
    }

    /// Blocks that become free by and by: those that are awaiting, idle or discarding.
    pub fn waiting(&self) -> u64 {
        self.awaiting_blocks + self.idle_blocks() + self.discarding
    }

    /// Extents that are kept for the journal.
    pub fn spares(&self) -> usize {
        self.spares.list.len()
    }

    /// Takes just these blocks, free or spare, for a test that wants them in a certain place.
    #[cfg(test)]
    pub fn take_exactly(&mut self, run: Run) -> bool {
        if self.spares.list.contains(&run) {
            self.spares.list.retain(|r| *r != run);
            self.spares.blocks -= run.len;
        } else if !self.free.take(run) {
            return false;
        }
        self.used += run.len;
        self.check();
        true
    }

    /// Blocks that are used.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used
    }
}
