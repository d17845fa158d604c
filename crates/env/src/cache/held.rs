//! The memory of a cached block in the ledger. It counts for the cache while the cache holds the
//! block. After that it counts for the block's readers, until the last of them drops it.

use crate::budget::MemoryLedger;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::Bytes;
use std::sync::Arc;

/// The booking of a block's memory after the eviction. It books nothing before.
struct Claim {
    ledger: MemoryLedger,
    bytes: u64,
    pinned: AtomicBool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if *self.pinned.get_mut() {
            self.ledger.unpin(self.bytes);
        }
    }
}

/// Owns a block's memory for all holders of a part of it.
struct Owner {
    bytes: Bytes,
    /// The booking, which is dropped with the memory.
    _claim: Arc<Claim>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes of a booking and an owner, their reference counts included.
pub(super) const BYTES: usize = size_of::<Claim>() + size_of::<Owner>() + 4 * size_of::<usize>();

/// A block in the cache.
pub(super) struct Held {
    bytes: Bytes,
    claim: Option<Arc<Claim>>,
}

impl Held {
    /// Wraps a block. `charge` is the bytes of memory that the block keeps alive.
    pub(super) fn new(block: Bytes, charge: u64, ledger: &MemoryLedger) -> Held {
        let claim = Arc::new(Claim {
            ledger: ledger.clone(),
            bytes: charge,
            pinned: AtomicBool::new(false),
        });
        Held {
            bytes: Bytes::from_owner(Owner {
                bytes: block,
                _claim: claim.clone(),
            }),
            claim: Some(claim),
        }
    }

    /// Returns the block. A reader clones it, or finishes while the shard is locked.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns a value that stands in the slot of an evicted block.
    pub(super) fn nothing() -> Held {
        Held {
            bytes: Bytes::new(),
            claim: None,
        }
    }

    /// Ends the cache's hold: readers that still have the block hold its memory from now on. Must
    /// not be called under a shard's lock.
    pub(super) fn let_go(self) {
        if let Some(claim) = self.claim {
            claim.ledger.pin(claim.bytes);
            claim.pinned.store(true, SeqCst);
        }
    }
}
