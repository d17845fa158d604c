//! A store's part in the memory budget that it shares with other stores. The store reports the bytes
//! of its active memtables, seals them on request, and promises the bytes that the flush will free.
//!
//! The thread that needs memory makes the request, perhaps while it holds the `writer` lock of another
//! store. So the request never waits for the `writer` lock of this store. A job seals the memtables, or
//! the writer that holds the lock seals them.

use super::engine::{Engine, State};
use super::memtable_set::MemtableSet;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::{Holder, JobPriority, Promise};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Delay before a seal is tried again when the `writer` lock is taken. That writer has often sealed by then.
const BUSY: Duration = Duration::from_millis(5);
/// So often.
const TRIES: u32 = 20;
/// Memtables are worth writing out for other stores from this part of the write buffer on.
const WORTH: u64 = 8;

/// See [`Engine::hold_memory`].
#[derive(Default)]
pub(crate) struct StoreMemory {
    holder: OnceLock<Holder>,
    /// The generation that is to be sealed, 0 for none.
    asked: AtomicU64,
}

/// Work that keeps promises, until this is dropped. A panic in it breaks them: other stores would wait for ever.
pub(crate) struct Keeping<'a>(&'a Engine);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_promises(&mut self.0.state.lock());
        }
    }
}

impl Engine {
    /// See [`Keeping`]. The caller must not hold `state` when it panics.
    pub fn keep_promises(&self) -> Keeping<'_> {
        Keeping(self)
    }

    /// From here on this store can be asked for the memory of its memtables.
    pub fn hold_memory(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        let give = move |promise| {
            if let Some(engine) = engine.upgrade() {
                engine.give_memory_back(promise);
            }
        };
        let worth = self.ctx.options.write_buffer_bytes / WORTH;
        let holder = self.ctx.env.relief().register(worth, give);
        assert!(self.memory.holder.set(holder).is_ok(), "called once");
    }

    /// The active memtables hold so many bytes.
    pub fn note_memory(&self, bytes: u64) {
        if let Some(holder) = self.memory.holder.get() {
            holder.set(bytes);
        }
    }

    /// True when the active memtables are to be sealed because memory is short.
    pub fn is_memory_wanted(&self, active: &MemtableSet) -> bool {
        self.memory.asked.load(SeqCst) == active.number
    }

    fn give_memory_back(self: &Arc<Self>, promise: Promise) {
        let mut state = self.state.lock();
        let view = self.view();
        // A store that cannot flush its sealed memtables cannot keep a promise. A store with the most
        // sealed memtables that it may have has already promised their bytes.
        if self.health.flush_error().is_some()
            || self.health.is_halted()
            || self.ctx.is_closing()
            || self.health.check_jobs().is_err()
            || view.sealed.len() >= self.ctx.options.max_sealed_memtables
        {
            return;
        }
        if view.active.is_empty() {
            // A group is on its way into them, or they were sealed since the store was chosen.
            if let Some(holder) = self.memory.holder.get() {
                holder.may_be_asked();
            }
            return;
        }
        let number = view.active.number;
        state.promised.insert(number, promise);
        self.memory.asked.store(number, SeqCst);
        drop(state);
        let engine = self.clone();
        self.ctx
            .env
            .jobs()
            .spawn(self.ctx.owner, JobPriority::Flush, move || {
                engine.seal_for_memory(number, TRIES)
            });
    }

    fn seal_for_memory(self: &Arc<Self>, number: u64, tries: u32) {
        let _keeping = self.keep_promises();
        let is_due = || !self.ctx.is_closing() && self.active_generation().number == number;
        if is_due() && self.health.check_jobs().is_ok() {
            let Some(mut writer) = self.writer.try_lock() else {
                if let Some(tries) = tries.checked_sub(1) {
                    return self.after(BUSY, move |engine| engine.seal_for_memory(number, tries));
                }
                // Its writer waits for something else, with the lock. It seals when it goes on, and others may be asked now.
                return self.note_flushed(number);
            };
            // A failure is in the state, where the next write finds it.
            if is_due() {
                let _ = self.seal(&mut writer);
            }
        }
        // The store is closed, or the seal has failed: nothing will come.
        let is_active = self.active_generation().number == number;
        let kept = is_active.then(|| self.state.lock().promised.remove(&number));
        drop(kept);
        self.ctx.env.jobs().notify();
    }

    /// A generation is sealed: its memory is on its way back.
    pub fn note_sealed(&self, state: &mut State, sealed: &MemtableSet) {
        if self.health.flush_error().is_none() {
            let promise = || self.ctx.env.relief().promise(sealed.memory());
            state.promised.entry(sealed.number).or_insert_with(promise);
        }
        if let Some(holder) = self.memory.holder.get() {
            holder.begin_anew();
        }
    }

    /// A generation was written out, and nobody but readers holds it.
    pub fn note_flushed(&self, number: u64) {
        let kept = self.state.lock().promised.remove(&number);
        drop(kept);
        // A store that had to refuse may be able to give now.
        let is_asked = self.is_memory_wanted(&self.active_generation());
        if let Some(holder) = self.memory.holder.get()
            && !is_asked
        {
            holder.may_be_asked();
        }
    }

    /// No memory comes back before a flush succeeds.
    pub fn break_promises(&self, state: &mut State) {
        state.promised.clear();
    }
}
