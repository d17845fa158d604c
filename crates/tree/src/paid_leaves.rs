//! Leaves that are merged for readers. A leaf with delta pages costs a read of the device for each
//! of them that the cache does not have, and a merge spares these reads from then on. So readers
//! pay: once their reads of the delta pages have cost as much as the merge, it is due.

use crate::page_id::PageId;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use basalt_env::sync::{Mutex, named};
use std::collections::BTreeSet;

/// A read of a delta page takes about as long as a merge takes for this many bytes of a leaf: it
/// reads them in several places, writes them, and their old places are collected later.
const BYTES_A_READ: u64 = 8 << 10;

/// Most leaves that wait for their merge. Readers pay for further ones again.
const MOST_WAITING: usize = 4096;

/// When this many leaves wait, they are merged. If a leaf is paid for twice, all waiting leaves
/// are merged without further delay.
const LEAVES_AT_ONCE: usize = 64;

/// The leaves that readers have paid for.
pub(crate) struct PaidLeaves {
    waiting: Mutex<BTreeSet<PageId>>,
    /// True if the waiting leaves are to be merged. Readers look at it without the lock.
    are_due: AtomicBool,
    /// Reads of delta pages so far.
    reads: AtomicU64,
}

impl Default for PaidLeaves {
    fn default() -> PaidLeaves {
        PaidLeaves {
            waiting: named("PaidLeaves::waiting", Mutex::default()),
            are_due: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        }
    }
}

impl PaidLeaves {
    /// Notes that a reader of a leaf has read delta pages from the device.
    ///
    /// `cost` is what the merge of the leaf writes, in bytes. The leaf is queued with a
    /// probability: the cost of the reads divided by that of the merge. So no leaf needs a count
    /// of its reads, and on average the reads have cost as much as the merge.
    pub fn note(&self, leaf: PageId, cost: u64, reads: u64) {
        if reads == 0 {
            return;
        }
        let number = self.reads.fetch_add(reads, Relaxed);
        let paid = reads.saturating_mul(BYTES_A_READ);
        if paid < cost && mixed(number ^ leaf.extent.0, leaf.offset) % cost >= paid {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING || waiting.contains(&leaf) {
            let is_new = waiting.insert(leaf);
            if !is_new || waiting.len() >= LEAVES_AT_ONCE {
                self.are_due.store(true, Relaxed);
            }
        }
    }

    /// Returns the number of reads of delta pages so far.
    #[cfg(test)]
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Returns true if leaves are to be merged.
    pub fn are_due(&self) -> bool {
        self.are_due.load(Relaxed)
    }

    /// Takes up to `most` leaves.
    pub fn take(&self, most: usize) -> Vec<PageId> {
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(leaf) = waiting.pop_first()
        {
            taken.push(leaf);
        }
        self.are_due.store(!waiting.is_empty(), Relaxed);
        taken
    }
}

/// Returns a number that looks random, and is the same in each replay.
fn mixed(number: u64, offset: u32) -> u64 {
    let mut n = (number ^ (u64::from(offset) << 32)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}
