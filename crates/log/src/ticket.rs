//! The handle of a batch that was submitted.

use crate::engine::Engine;
use crate::queue::TicketState;
use basalt_fs::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A submitted batch whose result is still to come. The drop of a ticket does not take the batch
/// back. If the last handle of the engine is dropped without a close, a batch that waits fails with
/// `Closed`.
///
/// A ticket is also a future of the result, for async callers. A poll takes one lock and never
/// waits: a job of the commit lane commits the batch. A poll after the end returns the result
/// again.
pub struct LogTicket {
    pub(crate) state: Arc<TicketState>,
    pub(crate) engine: Arc<Engine>,
}

impl LogTicket {
    /// Waits until the records can be read and are acknowledged as the write options say. Errors
    /// are those of [`crate::Log::append`].
    pub fn wait(self) -> Result<()> {
        self.engine.wait_data(&self.state)
    }

    /// Returns the result, or `None` if the batch is not complete. Never waits.
    pub fn try_result(&self) -> Option<Result<()>> {
        self.state.result()
    }

    /// Calls `then` with the result, on the thread that completes the batch, or at once if it is
    /// complete. `then` must not block, because all stores share the commit lane that may call it.
    pub fn on_complete(self, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.state.on_complete(Box::new(then));
    }
}

impl Future for LogTicket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.state.poll(cx.waker())
    }
}
