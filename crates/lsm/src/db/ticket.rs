//! The handle of a batch that was submitted.

use super::engine::Engine;
use super::write_path::ticket_state::{Phase, TicketState};
use basalt_fs::Result;
use basalt_kv::key::SeqNo;
use std::sync::Arc;

/// A batch on its way. Dropping it does not take the batch back.
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
    pub(super) engine: Arc<Engine>,
}

impl Ticket {
    /// Waits until the batch is acknowledged as its write options ask, and visible. The last sequence number of the batch.
    ///
    /// Errors: `NoSpace`, `Io`, `ReadOnly`, `Poisoned`, `Closed`: the batch is not visible, and after a crash it is
    /// there whole or not at all.
    pub fn wait(self) -> Result<SeqNo> {
        self.engine.wait_for_ticket(&self.state)
    }

    /// The result, if there is one yet.
    pub fn try_result(&self) -> Option<Result<SeqNo>> {
        match &self.state.slot.lock().phase {
            Phase::Done(r) => Some(r.clone()),
            _ => None,
        }
    }

    /// Calls `then` with the result, on the thread that completes the batch, or at once if the result is
    /// there. `then` must not block: all stores share the commit lane that may call it. If it writes, it submits: a
    /// submit inside `then` never waits for a full queue while a batch is being completed. It must not call
    /// [`super::Db::write`].
    ///
    /// Order: batches are committed, and become visible, in the order in which they were submitted. Callbacks of
    /// different batches run in **no** order: a leader hands the lead on before it runs the callbacks of its group, so
    /// the next group's callbacks may run first, on another thread. When `then` runs with a success, this batch and
    /// every earlier one that succeeded is visible to reads, even if their callbacks have not run.
    pub fn on_complete(self, then: impl FnOnce(Result<SeqNo>) + Send + 'static) {
        let mut slot = self.state.slot.lock();
        if let Phase::Done(r) = &slot.phase {
            let r = r.clone();
            drop(slot);
            then(r);
        } else {
            slot.then = Some(Box::new(then));
        }
    }
}
