//! A store's part in the memory budget that it shares with other stores. The store reports the
//! bytes of its active memtables, seals them on request, and promises the bytes that the flush will
//! free.

use super::BackPressure;
use crate::db::memtable_set::MemtableSet;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_env::{Holder, Promise};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Part of the write buffer above which a store can be asked for the memory of its memtables.
const MIN_HELD_DIVISOR: u64 = 8;

/// The store's account with the relief of the environment.
pub(crate) struct StoreMemory {
    holder: OnceLock<Holder>,
    /// Number of the memtable set that is to be sealed, or 0 for none.
    asked: AtomicU64,
    /// Bytes that memtable sets will free when they are flushed, by the number of the set.
    promised: Mutex<BTreeMap<u64, Promise>>,
}

/// Guard of work that keeps promises. A panic in the work breaks the promises. Otherwise other
/// stores would wait for them without end.
pub(crate) struct KeepPromises<'a>(&'a StoreMemory);

impl Drop for KeepPromises<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_promises();
        }
    }
}

impl Default for StoreMemory {
    fn default() -> StoreMemory {
        StoreMemory {
            holder: OnceLock::new(),
            asked: AtomicU64::new(0),
            promised: named("StoreMemory::promised", Mutex::default()),
        }
    }
}

impl StoreMemory {
    /// Returns the guard of work that keeps promises.
    pub fn keep_promises(&self) -> KeepPromises<'_> {
        KeepPromises(self)
    }

    /// Notes that the active memtables hold `bytes` bytes.
    pub fn note_memory(&self, bytes: u64) {
        if let Some(holder) = self.holder.get() {
            holder.set(bytes);
        }
    }

    /// Returns true if the active memtables are to be sealed because memory is short. `active` is
    /// the number of their set.
    pub fn is_wanted(&self, active: u64) -> bool {
        self.asked.load(SeqCst) == active
    }

    /// Promises the memory of a memtable set that is about to be sealed on request.
    pub fn promise(&self, number: u64, promise: Promise) {
        self.promised.lock().insert(number, promise);
        self.asked.store(number, SeqCst);
    }

    /// Ends the promise of a memtable set, because its memory came back or will not come.
    pub fn end_promise(&self, number: u64) {
        let ended = self.promised.lock().remove(&number);
        drop(ended);
    }

    /// Lets other stores ask for the memory of the active memtables again.
    pub fn allow_requests(&self) {
        if let Some(holder) = self.holder.get() {
            holder.allow_requests();
        }
    }

    /// Notes that a memtable set was flushed, and that only readers hold it. `active` is the number
    /// of the active set.
    pub fn note_flushed(&self, number: u64, active: u64) {
        self.end_promise(number);
        // A store that had to refuse before may be able to give memory now.
        if !self.is_wanted(active) {
            self.allow_requests();
        }
    }

    /// Returns true while memory is promised.
    #[cfg(test)]
    pub fn has_promised(&self) -> bool {
        !self.promised.lock().is_empty()
    }

    /// Breaks all promises: no memory comes back before a flush succeeds.
    pub fn break_promises(&self) {
        self.promised.lock().clear();
    }
}

impl BackPressure {
    /// Registers the store as a holder of memory. `give` is called, on any thread, to have the
    /// active memtables sealed; the promise is for their bytes.
    pub fn hold_memory(&self, give: impl Fn(Promise) + Send + Sync + 'static) {
        let worth = self.ctx.options.write_buffer_bytes / MIN_HELD_DIVISOR;
        let holder = self.ctx.env.relief().register(worth, give);
        assert!(self.memory.holder.set(holder).is_ok(), "called once");
    }

    /// Notes that a memtable set is sealed. Promises its memory, unless the last flush has failed.
    pub fn note_sealed(&self, sealed: &MemtableSet) {
        if self.health.flush_error().is_none() {
            let promise = || self.ctx.env.relief().promise(sealed.memory());
            let mut promised = self.memory.promised.lock();
            promised.entry(sealed.number).or_insert_with(promise);
        }
        if let Some(holder) = self.memory.holder.get() {
            holder.begin_anew();
        }
    }
}
