//! One shard: its entries, and which of them it evicts for room.
//!
//! # The policy
//!
//! Every entry is in one of five queues, oldest first. It has a small count of uses, which a hit
//! raises (to at most [`MOST_USES`]) and a pass of the clock lowers.
//!
//! 1. `Low`: blocks read once. A new Low block takes the room of older Low blocks, so a scan costs
//!    the rest of the cache one block. A Low block that was used twice moves to `Small` when it
//!    reaches the head of its queue. One use may come from the scan itself, which reads what it
//!    read ahead.
//! 2. `Small` and `Main`: data, by S3-FIFO. New blocks go to `Small`, which is kept to a tenth. At
//!    the head of `Small`, a block that was used moves to `Main`. A block that was not used is
//!    evicted, and its hash becomes a ghost, for about as long as a full turn of the data takes. A
//!    block that returns while it is a ghost goes to `Main` at once. `Main` is a clock: a used
//!    block goes around again.
//! 3. `High`: index and filter blocks, a clock. They are evicted after all data, with two
//!    exceptions: if they fill more than three quarters of the shard, and if a block was not used
//!    while data of the shard's whole size was evicted [`HIGH_AGE`] times (its file is most likely
//!    gone).
//! 4. `Pinned`: index and filter blocks that the reader of an open file holds, so that it finds
//!    them without asking the cache. They are not evicted; their reader removes them when it ends.
//!    They fill at most a quarter of the shard, and a High block beyond that is not pinned. If the
//!    capacity is lowered, they stay, even beyond it.
//!
//! So the order of eviction is: High beyond three quarters, Low, aged High, Small beyond a tenth,
//! Main, Small, High.

use super::cached_block::CachedBlock;
use super::index::Index;
use super::{CacheKey, CachePriority, CacheStats};
use crate::budget::Reservation;
use crate::sync::atomic::{AtomicU8, Ordering::Relaxed};
use basalt_fs::Bytes;

/// Largest count of uses of an entry.
const MOST_USES: u8 = 3;
/// Age, in turns of the shard's data, from which on an unused High block is evicted.
const HIGH_AGE: u32 = 8;
/// The slot number that stands for no slot.
const NONE: u32 = u32::MAX;

/// The queue of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Low,
    Small,
    Main,
    High,
    Pinned,
}

/// Number of queues.
const QUEUES: usize = 5;

/// A cached block with its queue links. Free entries have an empty block.
pub(super) struct Entry {
    key: CacheKey,
    block: CachedBlock,
    /// Bytes that the entry counts with, overhead included.
    charge: u64,
    /// The entry before this one in its queue.
    prev: u32,
    /// The next slot in the queue, or in the list of free slots.
    next: u32,
    /// For a High entry, the shard's age when its last use was seen.
    seen: u32,
    queue: Queue,
    /// Count of uses, at most [`MOST_USES`].
    uses: AtomicU8,
}

/// Bytes of one entry in its slab.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES <= 96);

impl Entry {
    pub(super) fn hash(&self) -> u64 {
        self.key.hash()
    }

    pub(super) fn into_block(self) -> CachedBlock {
        self.block
    }
}

/// A queue: its first and last entry, and the bytes of all its entries.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    bytes: u64,
}

const EMPTY_LIST: List = List {
    head: NONE,
    tail: NONE,
    bytes: 0,
};

/// The entries of one part of the cache.
pub(super) struct Shard {
    /// Capacity in bytes.
    capacity: u64,
    /// All entries, by slot.
    slab: Vec<Entry>,
    /// First slot of the list of free slots.
    free: u32,
    index: Index,
    lists: [List; QUEUES],
    /// Ghosts: hashes of evicted data, direct mapped. The high half is the hash's, and the low half
    /// is the value of `evicted_blocks` at the eviction. The table is as long as the index.
    ghosts: Vec<u64>,
    /// Number of data blocks evicted, wrapping.
    evicted_blocks: u32,
    /// Bytes of data blocks evicted since `age` last grew.
    evicted_bytes: u64,
    /// Grows by one each time data of the shard's capacity was evicted.
    age: u32,
    /// Number of blocks inserted.
    inserts: u64,
    /// Number of blocks evicted for room.
    evictions: u64,
    /// The shard's bytes in the memory ledger.
    booked: Reservation,
}

impl Shard {
    pub(super) fn new(capacity: u64, booked: Reservation) -> Shard {
        Shard {
            capacity,
            slab: Vec::new(),
            free: NONE,
            index: Index::default(),
            lists: [EMPTY_LIST; QUEUES],
            ghosts: Vec::new(),
            evicted_blocks: 0,
            evicted_bytes: 0,
            age: 0,
            inserts: 0,
            evictions: 0,
            booked,
        }
    }

    fn used(&self) -> u64 {
        self.lists.iter().map(|l| l.bytes).sum()
    }

    fn bytes(&self, queue: Queue) -> u64 {
        self.lists[queue as usize].bytes
    }

    fn head(&self, queue: Queue) -> Option<u32> {
        let head = self.lists[queue as usize].head;
        (head != NONE).then_some(head)
    }

    fn find(&self, key: &CacheKey, hash: u64) -> Option<u32> {
        self.index
            .find(hash, |slot| self.slab[slot as usize].key == *key)
    }

    pub(super) fn get(&self, key: &CacheKey, hash: u64) -> Option<&Bytes> {
        let entry = &self.slab[self.find(key, hash)? as usize];
        // A lost race loses one use, which does no harm. A hot entry is not written at all.
        let uses = entry.uses.load(Relaxed);
        if uses < MOST_USES {
            entry.uses.store(uses + 1, Relaxed);
        }
        Some(entry.block.bytes())
    }

    pub(super) fn contains(&self, key: &CacheKey, hash: u64) -> bool {
        self.find(key, hash).is_some()
    }

    fn push_back(&mut self, slot: u32, queue: Queue) {
        let list = &mut self.lists[queue as usize];
        let last = std::mem::replace(&mut list.tail, slot);
        let entry = &mut self.slab[slot as usize];
        (entry.queue, entry.prev, entry.next) = (queue, last, NONE);
        list.bytes += entry.charge;
        match last {
            NONE => list.head = slot,
            last => self.slab[last as usize].next = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let entry = &self.slab[slot as usize];
        let (queue, prev, next, charge) = (entry.queue, entry.prev, entry.next, entry.charge);
        let list = &mut self.lists[queue as usize];
        list.bytes -= charge;
        match prev {
            NONE => list.head = next,
            prev => self.slab[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.slab[next as usize].prev = prev,
        }
    }

    /// Removes an entry and returns its block.
    fn take_out(&mut self, slot: u32) -> CachedBlock {
        self.unlink(slot);
        let hash = self.slab[slot as usize].hash();
        self.index.remove(hash, slot);
        let entry = &mut self.slab[slot as usize];
        entry.next = std::mem::replace(&mut self.free, slot);
        std::mem::replace(&mut entry.block, CachedBlock::empty())
    }

    fn move_to(&mut self, slot: u32, queue: Queue) {
        self.unlink(slot);
        self.push_back(slot, queue);
    }

    /// Lowers an entry's uses. Returns false if it had none.
    fn use_up(&mut self, slot: u32) -> bool {
        let uses = self.slab[slot as usize].uses.get_mut();
        let used = *uses > 0;
        *uses = uses.saturating_sub(1);
        used
    }

    /// Sets an entry's uses to 0 and returns the former count.
    fn clear_uses(&mut self, slot: u32) -> u8 {
        std::mem::take(self.slab[slot as usize].uses.get_mut())
    }

    /// Returns the queue to evict from next, or `None` if the shard is empty.
    fn queue_to_evict(&self) -> Option<Queue> {
        let (small, main) = (self.bytes(Queue::Small), self.bytes(Queue::Main));
        let high = self.bytes(Queue::High);
        if high > self.capacity / 4 * 3 {
            return Some(Queue::High);
        }
        if self.head(Queue::Low).is_some() {
            return Some(Queue::Low);
        }
        if small + main == 0 {
            return (high > 0).then_some(Queue::High);
        }
        if small > (small + main) / 10 || main == 0 {
            return Some(Queue::Small);
        }
        Some(Queue::Main)
    }

    /// Evicts one block. The loop ends, because each round either evicts, or moves a block on in
    /// the order Low, Small, Main, or takes a use from it.
    fn evict_one(&mut self) -> Option<CachedBlock> {
        loop {
            let queue = self.queue_to_evict()?;
            let slot = self.head(queue).expect("the queue holds bytes");
            match queue {
                Queue::Low => {
                    if self.clear_uses(slot) >= 2 {
                        self.move_to(slot, Queue::Small);
                        continue;
                    }
                }
                Queue::High => {
                    if self.use_up(slot) {
                        self.slab[slot as usize].seen = self.age;
                        self.move_to(slot, Queue::High);
                        continue;
                    }
                }
                Queue::Small | Queue::Main => {
                    if let Some(aged) = self.aged_high() {
                        self.evictions += 1;
                        return Some(self.take_out(aged));
                    }
                    if queue == Queue::Small && self.clear_uses(slot) > 0 {
                        self.move_to(slot, Queue::Main);
                        continue;
                    }
                    if queue == Queue::Main && self.use_up(slot) {
                        self.move_to(slot, Queue::Main);
                        continue;
                    }
                    self.record_eviction(slot, queue);
                }
                Queue::Pinned => unreachable!("pinned blocks are never evicted"),
            }
            self.evictions += 1;
            return Some(self.take_out(slot));
        }
    }

    /// Returns a High block that was not used for long. Only the oldest are examined, because
    /// `seen` rises along the queue.
    fn aged_high(&mut self) -> Option<u32> {
        while let Some(slot) = self.head(Queue::High) {
            let age = self.age;
            let entry = &mut self.slab[slot as usize];
            if age.wrapping_sub(entry.seen) < HIGH_AGE {
                return None;
            }
            if std::mem::take(entry.uses.get_mut()) == 0 {
                return Some(slot);
            }
            entry.seen = age;
            self.move_to(slot, Queue::High);
        }
        None
    }

    /// Counts an evicted data block. The block becomes a ghost if it was never in Main.
    fn record_eviction(&mut self, slot: u32, queue: Queue) {
        let entry = &self.slab[slot as usize];
        self.evicted_bytes += entry.charge;
        if self.evicted_bytes >= self.capacity {
            self.evicted_bytes = 0;
            self.age = self.age.wrapping_add(1);
        }
        self.evicted_blocks = self.evicted_blocks.wrapping_add(1);
        if queue == Queue::Small && !self.ghosts.is_empty() {
            let hash = entry.hash();
            let at = hash as usize & (self.ghosts.len() - 1);
            self.ghosts[at] = (hash & !0xffff_ffff) | u64::from(self.evicted_blocks);
        }
    }

    /// Returns true if the block was evicted so recently that a cache of twice the size would still
    /// have it. Removes its ghost.
    fn take_ghost(&mut self, hash: u64) -> bool {
        if self.ghosts.is_empty() {
            return false;
        }
        let at = hash as usize & (self.ghosts.len() - 1);
        let ghost = self.ghosts[at];
        let since = self.evicted_blocks.wrapping_sub(ghost as u32);
        let entries = self.ghosts.len() as u32 / 4 * 3;
        if ghost == 0 || ghost >> 32 != hash >> 32 || since > entries {
            return false;
        }
        self.ghosts[at] = 0;
        true
    }

    fn add(&mut self, entry: Entry, queue: Queue) {
        let hash = entry.hash();
        let slot = if self.free != NONE {
            let slot = self.free;
            self.free = self.slab[slot as usize].next;
            self.slab[slot as usize] = entry;
            slot
        } else {
            let slot = u32::try_from(self.slab.len()).expect("a shard holds fewer entries");
            assert!(slot != NONE, "a shard holds fewer entries");
            if self.slab.len() == self.slab.capacity() {
                // The slab grows by a quarter and does not double, because the overhead charged for
                // an entry covers no more.
                self.slab.reserve_exact((self.slab.len() / 4).max(8));
            }
            self.slab.push(entry);
            slot
        };
        if self.index.add(hash, slot) {
            // The places of the ghosts depend on the size of the table. They are dropped, which
            // happens only while the cache fills.
            self.ghosts = vec![0; self.index.size()];
        }
        self.push_back(slot, queue);
    }

    pub(super) fn insert(
        &mut self,
        key: CacheKey,
        hash: u64,
        block: CachedBlock,
        charge: u64,
        priority: CachePriority,
        evicted: &mut Vec<CachedBlock>,
    ) {
        if charge > self.capacity.saturating_sub(self.bytes(Queue::Pinned)) {
            evicted.push(block);
            return;
        }
        let mut queue = match priority {
            CachePriority::High => Queue::High,
            CachePriority::Normal => Queue::Small,
            CachePriority::Low => Queue::Low,
        };
        let mut uses = 0;
        if let Some(slot) = self.find(&key, hash) {
            let old = &mut self.slab[slot as usize];
            uses = *old.uses.get_mut();
            queue = if (old.queue as u8) > queue as u8 {
                old.queue
            } else {
                queue
            };
            evicted.push(self.take_out(slot));
        } else if queue == Queue::Small && self.take_ghost(hash) {
            queue = Queue::Main;
        }
        let entry = Entry {
            key,
            block,
            charge,
            prev: NONE,
            next: NONE,
            seen: self.age,
            queue,
            uses: AtomicU8::new(uses),
        };
        self.inserts += 1;
        self.make_room(charge, evicted);
        self.add(entry, queue);
        self.book();
    }

    /// Returns true if an entry of this charge would evict no other one.
    pub(super) fn has_room(&self, charge: u64) -> bool {
        self.used() + charge <= self.capacity
    }

    fn make_room(&mut self, charge: u64, evicted: &mut Vec<CachedBlock>) {
        while !self.has_room(charge) {
            match self.evict_one() {
                Some(block) => evicted.push(block),
                None => return,
            }
        }
    }

    fn book(&mut self) {
        self.booked.resize(self.used());
    }

    pub(super) fn remove(&mut self, key: &CacheKey, hash: u64) -> Option<CachedBlock> {
        let slot = self.find(key, hash)?;
        let block = self.take_out(slot);
        self.book();
        Some(block)
    }

    /// Removes an entry, for [`Shard::insert_entry`] to insert it under another key.
    pub(super) fn take_entry(&mut self, key: &CacheKey, hash: u64, to: CacheKey) -> Option<Entry> {
        let slot = self.find(key, hash)?;
        let entry = &mut self.slab[slot as usize];
        let (charge, queue) = (entry.charge, entry.queue);
        let uses = AtomicU8::new(*entry.uses.get_mut());
        let block = self.take_out(slot);
        self.book();
        Some(Entry {
            key: to,
            block,
            charge,
            prev: NONE,
            next: NONE,
            seen: self.age,
            queue,
            uses,
        })
    }

    /// Pins a High block. Returns false if it is not present, or if the pinned blocks would fill
    /// more than a quarter.
    pub(super) fn pin(&mut self, key: &CacheKey, hash: u64) -> bool {
        let Some(slot) = self.find(key, hash) else {
            return false;
        };
        let entry = &self.slab[slot as usize];
        match entry.queue {
            Queue::Pinned => true,
            Queue::High if self.bytes(Queue::Pinned) + entry.charge <= self.capacity / 4 => {
                self.move_to(slot, Queue::Pinned);
                true
            }
            _ => false,
        }
    }

    /// Sets the capacity in bytes. [`Shard::shrink`] must follow.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Evicts down to the capacity. Releases the memory of the tables if no entry is left.
    pub(super) fn shrink(&mut self, evicted: &mut Vec<CachedBlock>) {
        self.make_room(0, evicted);
        if self.used() == 0 {
            self.take_all();
        }
        self.book();
    }

    /// Removes all entries, each queue in its order, and leaves the shard as new.
    pub(super) fn take_all(&mut self) -> Vec<Entry> {
        let mut order = Vec::new();
        for list in std::mem::replace(&mut self.lists, [EMPTY_LIST; QUEUES]) {
            let mut slot = list.head;
            while slot != NONE {
                order.push(slot);
                slot = self.slab[slot as usize].next;
            }
        }
        let mut slab: Vec<_> = std::mem::take(&mut self.slab)
            .into_iter()
            .map(Some)
            .collect();
        self.free = NONE;
        self.index = Index::default();
        self.ghosts = Vec::new();
        self.book();
        let take = |slot: u32| slab[slot as usize].take().expect("in one queue only");
        order.into_iter().map(take).collect()
    }

    /// Inserts an entry of another shard.
    pub(super) fn insert_entry(&mut self, mut entry: Entry, evicted: &mut Vec<CachedBlock>) {
        let room = self.capacity.saturating_sub(self.bytes(Queue::Pinned));
        if entry.charge > room && entry.queue != Queue::Pinned {
            self.evictions += 1;
            evicted.push(entry.block);
            return;
        }
        entry.seen = self.age;
        self.make_room(entry.charge, evicted);
        let queue = entry.queue;
        self.add(entry, queue);
        self.book();
    }

    pub(super) fn add_to(&self, stats: &mut CacheStats) {
        stats.inserts += self.inserts;
        stats.evictions += self.evictions;
        stats.used += self.used();
        stats.used_high += self.bytes(Queue::High) + self.bytes(Queue::Pinned);
        stats.pinned += self.bytes(Queue::Pinned);
    }
}
