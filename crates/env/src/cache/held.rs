//! A block's memory in the ledger: the cache's while the cache holds the block, and from then on its readers' until the last
//! of them lets go.

use crate::budget::MemoryLedger;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::Bytes;
use std::sync::Arc;

/// What a block's memory counts for once the cache has let go of it; nothing before.
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

/// Owns a block's memory for all who hold a part of it.
struct Owner {
    bytes: Bytes,
    /// Goes with the memory: the last holder gives both back.
    _claim: Arc<Claim>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Memory of a claim and an owner, their reference counts included.
pub(super) const BYTES: usize = size_of::<Claim>() + size_of::<Owner>() + 4 * size_of::<usize>();

/// A block in the cache.
pub(super) struct Held {
    bytes: Bytes,
    claim: Option<Arc<Claim>>,
}

impl Held {
    /// `charge` is the memory that the block keeps alive.
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

    /// The block; a reader takes a reference, or is done with it while the shard is locked.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// In place of a block that left.
    pub(super) fn nothing() -> Held {
        Held {
            bytes: Bytes::new(),
            claim: None,
        }
    }

    /// The cache lets go: whoever still reads the block holds its memory now. Not under a shard's lock.
    pub(super) fn let_go(self) {
        if let Some(claim) = self.claim {
            claim.ledger.pin(claim.bytes);
            claim.pinned.store(true, SeqCst);
        }
    }
}
