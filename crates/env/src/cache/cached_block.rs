//! The memory of a cached block in the ledger. It counts for the cache while the cache holds the
//! block. After that it counts for the block's readers, until the last of them drops it.

use crate::budget::MemoryLedger;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::Bytes;
use std::sync::Arc;

/// The reservation of a block's memory after the eviction. It reserves nothing before.
struct PinBooking {
    ledger: MemoryLedger,
    bytes: u64,
    pinned: AtomicBool,
}

impl Drop for PinBooking {
    fn drop(&mut self) {
        if *self.pinned.get_mut() {
            self.ledger.unpin(self.bytes);
        }
    }
}

/// Owns a block's memory for all holders of a part of it.
struct BlockMemory {
    bytes: Bytes,
    /// The reservation, which is dropped with the memory.
    _booking: Arc<PinBooking>,
}

impl AsRef<[u8]> for BlockMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of a reservation and an owner, their reference counts included.
pub(super) const BYTES: usize =
    size_of::<PinBooking>() + size_of::<BlockMemory>() + 4 * size_of::<usize>();

/// A block in the cache.
pub(super) struct CachedBlock {
    bytes: Bytes,
    booking: Option<Arc<PinBooking>>,
}

impl CachedBlock {
    /// Wraps a block. `charge` is the bytes of memory that the block keeps alive.
    pub(super) fn new(block: Bytes, charge: u64, ledger: &MemoryLedger) -> CachedBlock {
        let booking = Arc::new(PinBooking {
            ledger: ledger.clone(),
            bytes: charge,
            pinned: AtomicBool::new(false),
        });
        CachedBlock {
            bytes: Bytes::from_owner(BlockMemory {
                bytes: block,
                _booking: booking.clone(),
            }),
            booking: Some(booking),
        }
    }

    /// Returns the block. A reader clones it, or finishes while the shard is locked.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns a value that stands in the slot of an evicted block.
    pub(super) fn empty() -> CachedBlock {
        CachedBlock {
            bytes: Bytes::new(),
            booking: None,
        }
    }

    /// Ends the cache's hold: readers that still have the block hold its memory from now on. Must
    /// not be called under a shard's lock.
    pub(super) fn release(self) {
        if let Some(booking) = self.booking {
            booking.ledger.pin(booking.bytes);
            booking.pinned.store(true, SeqCst);
        }
    }
}
