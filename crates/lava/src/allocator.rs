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

/// Blocks of the shortest run that is discarded. Shorter runs are not worth a call to the device.
const DISCARD_MIN: u64 = (64 << 10) / BLOCK;
/// Largest number of blocks in one discard.
const DISCARD_MAX: u64 = (32 << 20) / BLOCK;

fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|r| r.len).sum()
}

/// Runs with the sum of their blocks.
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

/// Blocks of a running discard. [`Allocator::end_discard`] takes them back.
#[must_use]
#[derive(Debug)]
pub struct Discarding(Vec<Run>);

impl Discarding {
    /// Returns the runs, in no order.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }
}

/// The state of each block.
pub struct Allocator {
    /// All blocks that can be used.
    total: u64,
    used: u64,
    free: FreeSpace,
    /// Awaiting blocks by the number of the record that must be durable before they are free.
    awaiting: BTreeMap<u64, Vec<Run>>,
    awaiting_blocks: u64,
    /// Idle blocks; `None` if free space is not discarded.
    idle: Option<RunList>,
    discarding: u64,
    /// Spare extents for the journal, one run each.
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

    /// Asserts that every block is in one state.
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

    /// Adds blocks to idle, or to free if the run is short or is not discarded.
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

    /// Moves `blocks` free blocks that are one run to used. If no free run is long enough, all idle
    /// blocks become free first. Returns `None` if that does not help.
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

    /// Moves an extent from used to spare.
    pub fn keep_spare(&mut self, run: Run) {
        self.leave_used(run.len);
        self.spares.push(run);
        self.check();
    }

    /// Moves an extent from spare to used. Returns `None` if there is no spare one.
    pub fn take_spare(&mut self) -> Option<Run> {
        let run = self.spares.pop()?;
        self.used += run.len;
        self.check();
        Some(run)
    }

    // From used to free.

    /// Moves the blocks that a record freed from used to awaiting, and on to idle or free if the
    /// record is durable.
    pub fn free_after(&mut self, record: u64, runs: Vec<Run>) {
        let blocks = blocks_of(&runs);
        self.leave_used(blocks);
        self.awaiting_blocks += blocks;
        if blocks > 0 {
            self.awaiting.entry(record).or_default().extend(runs);
        }
        self.made_durable(self.durable);
    }

    /// Notes that the first `records` records are durable, and moves the blocks that they freed
    /// from awaiting to idle or free.
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

    /// Moves blocks from used to idle or free at once, because nothing on the device refers to them
    /// any more.
    pub fn release(&mut self, run: Run) {
        self.leave_used(run.len);
        self.make_unused(run);
        self.check();
    }

    /// Adds the blocks `new`, because the device is longer now. The first `used` of them are used,
    /// the others are idle or free.
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

    // Discards.

    /// Makes later freed blocks idle until they are discarded.
    pub fn discard_from_now_on(&mut self) {
        self.idle = Some(RunList::default());
    }

    /// Moves all idle blocks to free, and ends discards.
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

    /// Moves idle blocks, at most 32 MiB of them, to discarding. Returns `None` if none is idle.
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

    // Counts.

    /// Returns the free blocks, without the idle ones.
    pub fn free(&self) -> &FreeSpace {
        &self.free
    }

    /// Returns the number of free and idle blocks.
    pub fn unused(&self) -> u64 {
        self.free.blocks() + self.idle_blocks()
    }

    fn idle_blocks(&self) -> u64 {
        self.idle.as_ref().map_or(0, |idle| idle.blocks)
    }

    /// Returns `true` if some blocks are idle.
    pub fn has_idle(&self) -> bool {
        self.idle_blocks() > 0
    }

    /// Returns `true` while a discard runs.
    pub fn is_discarding(&self) -> bool {
        self.discarding > 0
    }

    /// Returns the number of blocks that become free later: those that are awaiting, idle or
    /// discarding.
    pub fn waiting(&self) -> u64 {
        self.awaiting_blocks + self.idle_blocks() + self.discarding
    }

    /// Returns the number of spare extents.
    pub fn spares(&self) -> usize {
        self.spares.list.len()
    }

    /// Moves exactly these blocks, free or spare, to used, for tests that need a certain place.
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

    /// Returns the number of used blocks.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used
    }
}
