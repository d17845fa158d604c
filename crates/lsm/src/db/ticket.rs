//! The handle of a batch that was submitted.

use super::engine::Engine;
use super::write_path::ticket_state::{Phase, TicketState};
use basalt_fs::Result;
use basalt_kv::key::SeqNo;
use std::sync::Arc;

/// A submitted batch whose result is still to come. The drop of a ticket does not take the batch
/// back.
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
    pub(super) engine: Arc<Engine>,
}

impl Ticket {
    /// Waits until the batch is visible and acknowledged as its write options ask. Returns the last
    /// sequence number of the batch.
    ///
    /// Errors: `NoSpace`, `Io`, `ReadOnly`, `Poisoned`, `Closed`. After an error the batch is not
    /// visible; after a crash it is there whole or not at all.
    pub fn wait(self) -> Result<SeqNo> {
        self.engine.wait_for_ticket(&self.state)
    }

    /// Returns the result of the batch, or `None` if the batch is not complete. Never waits.
    pub fn try_result(&self) -> Option<Result<SeqNo>> {
        match &self.state.slot.lock().phase {
            Phase::Done(r) => Some(r.clone()),
            _ => None,
        }
    }

    /// Calls `then` with the result, on the thread that completes the batch, or at once if the
    /// batch is complete. `then` must not block, because all stores share the commit lane that may
    /// call it. A callback that writes must submit: a submit inside `then` never waits for a full
    /// queue while a batch is being completed. `then` must not call [`super::Db::write`].
    ///
    /// Batches commit, and become visible, in the order of their submission. Callbacks of different
    /// batches run in **no** order. A leader hands the lead on before it runs the callbacks of its
    /// group. So the next group's callbacks may run first, on another thread. When `then` runs with
    /// a success, this batch and every earlier one that succeeded is visible to reads, even if
    /// their callbacks have not run.
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
