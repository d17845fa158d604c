//! Chooses the store that must free memory when the budget of an environment runs out.
//!
//! Every store that holds memtables registers as a [`Holder`]. When memory is short, the holder
//! with the most bytes is asked to free them, even if another store needs the memory. Otherwise
//! many stores that each hold a little would exceed the budget together. A holder promises the
//! bytes that it is about to free, so that no other holder is asked for the same bytes.
//!
//! Guarantees: no call in this module waits for memory. A holder that was asked is not asked again
//! before [`Holder::begin_anew`]. The bytes of a [`Promise`] are subtracted exactly once, when it
//! drops.

use crate::budget::MemoryLedger;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One part in this many of the memory that is not the cache's is kept free: holders are asked
/// before a writer has to wait.
const KEPT_FREE: u64 = 8;

/// The function that asks a holder to free memory. It takes the promise to keep.
type ReleaseMemory = Arc<dyn Fn(Promise) + Send + Sync>;

/// The registry's part of a holder.
struct HolderSlot {
    /// Bytes that the holder has.
    bytes: AtomicU64,
    /// Bytes from which on asking the holder is worth it.
    worth: u64,
    /// True if the holder was asked and has not begun anew.
    asked: AtomicBool,
    release_memory: ReleaseMemory,
}

/// The state that all clones of a [`Relief`] share.
struct ReliefState {
    ledger: MemoryLedger,
    /// Number of the next holder, and the holders by number.
    holders: Mutex<(u64, BTreeMap<u64, Arc<HolderSlot>>)>,
    /// Bytes that were promised and are not back yet.
    coming: AtomicU64,
}

/// The holders of one environment. Cloning is cheap.
#[derive(Clone)]
pub struct Relief(Arc<ReliefState>);

/// A registered owner of memory that can free it on request. A dropped holder is no longer asked.
pub struct Holder {
    relief: Relief,
    id: u64,
    slot: Arc<HolderSlot>,
}

/// Bytes that will soon be back in the ledger. The promise is dropped when they are back, or when
/// they will not come.
pub struct Promise {
    relief: Relief,
    bytes: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.relief.0.coming.fetch_sub(self.bytes, SeqCst);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let slot = self.relief.0.holders.lock().1.remove(&self.id);
        // The function of the holder may own values whose drop calls this module.
        drop(slot);
    }
}

impl Holder {
    /// Sets the number of bytes that the holder has now.
    pub fn set(&self, bytes: u64) {
        self.slot.bytes.store(bytes, Relaxed);
    }
    /// Allows this module to ask the holder again.
    pub fn allow_requests(&self) {
        self.slot.asked.store(false, SeqCst);
    }
    /// Sets the holder's bytes to 0 and allows this module to ask it again.
    pub fn begin_anew(&self) {
        self.slot.bytes.store(0, Relaxed);
        self.slot.asked.store(false, SeqCst);
    }
}

impl Relief {
    /// Returns a registry without holders.
    pub fn new(ledger: MemoryLedger) -> Relief {
        Relief(Arc::new(ReliefState {
            ledger,
            holders: Mutex::default(),
            coming: AtomicU64::new(0),
        }))
    }

    /// Registers a holder of memory. `release_memory` is called on the thread that needs memory,
    /// under none of this module's locks. `release_memory` must not wait, and must keep the promise
    /// until the memory is free. A holder with less than `worth` bytes is asked only if it holds
    /// half of an even share.
    pub fn register(
        &self,
        worth: u64,
        release_memory: impl Fn(Promise) + Send + Sync + 'static,
    ) -> Holder {
        let slot = Arc::new(HolderSlot {
            bytes: AtomicU64::new(0),
            worth,
            asked: AtomicBool::new(false),
            release_memory: Arc::new(release_memory),
        });
        let mut holders = self.0.holders.lock();
        let id = holders.0;
        holders.0 += 1;
        holders.1.insert(id, slot.clone());
        drop(holders);
        Holder {
            relief: self.clone(),
            id,
            slot,
        }
    }

    /// Announces that this many bytes will soon be back in the ledger.
    pub fn promise(&self, bytes: u64) -> Promise {
        self.0.coming.fetch_add(bytes, SeqCst);
        Promise {
            relief: self.clone(),
            bytes,
        }
    }

    /// Returns the bytes that were promised and are not back in the ledger yet.
    pub fn coming(&self) -> u64 {
        self.0.coming.load(SeqCst)
    }

    /// Returns the bytes that are free now or were promised.
    fn free_soon(&self) -> u64 {
        // A budget may be as large as numbers are.
        self.0.ledger.free().saturating_add(self.coming())
    }

    /// Asks for memory before it runs out. The call costs a few loads as long as enough memory is
    /// free.
    pub fn look_ahead(&self) {
        let keep = self.0.ledger.room() / KEPT_FREE;
        if self.free_soon() < keep {
            self.ask(keep);
        }
    }

    /// Asks at most one more holder, so that `bytes` become free. Returns true if any promised
    /// bytes are outstanding.
    ///
    /// The holder with the most bytes is asked. A holder is never asked while it holds less than
    /// its `worth` and also less than half of an even share. In that case readers or clients hold
    /// the memory, and flushing small memtables would not free it. Cost: a load for each holder.
    pub fn ask(&self, bytes: u64) -> bool {
        if self.free_soon() >= bytes {
            return self.coming() > 0;
        }
        let holders = self.0.holders.lock();
        let even_share = self.0.ledger.room() / (holders.1.len() as u64).max(1);
        let most = holders
            .1
            .values()
            .filter(|s| !s.asked.load(Relaxed))
            .map(|s| (s.bytes.load(Relaxed), s))
            .filter(|(held, s)| *held > 0 && *held >= s.worth.min(even_share / 2))
            .max_by_key(|(held, _)| *held);
        if let Some((held, slot)) = most
            && !slot.asked.swap(true, SeqCst)
        {
            let release_memory = slot.release_memory.clone();
            // The promise is counted under the lock, so that the next caller sees it.
            let promise = self.promise(held);
            drop(holders);
            release_memory(promise);
        }
        self.coming() > 0
    }
}

#[cfg(test)]
mod tests;
