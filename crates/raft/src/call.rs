//! Calls that block, on threads that may block; and errors as openraft has them.

use basalt::{Error, ErrorKind, Result};
use basalt_log::{LogBatch, LogEngine, WriteOptions};
use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, StorageError, StorageIOError};

/// Runs a call on a thread of tokio for blocking calls. A panic of the call goes on in the caller.
///
/// Errors: those of the call, and `Closed` if the runtime ends first.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the tokio runtime has ended")),
        },
    }
}

/// Commits a batch without blocking a thread, and returns its result.
pub(crate) async fn commit(
    engine: &LogEngine,
    batch: LogBatch,
    options: &WriteOptions,
) -> Result<()> {
    let (send, receive) = tokio::sync::oneshot::channel();
    engine.submit(batch, options)?.on_complete(move |result| {
        // The receiver is gone if openraft dropped the call.
        let _ = send.send(result);
    });
    let closed = |_| Error::new(ErrorKind::Closed, "the log engine ended before the write");
    receive.await.map_err(closed)?
}

/// Returns the error with its subject, as openraft reports it. openraft stops the node.
pub(crate) fn storage_error<N: NodeId>(
    subject: ErrorSubject<N>,
    verb: ErrorVerb,
    error: &Error,
) -> StorageError<N> {
    StorageIOError::new(subject, verb, AnyError::new(error)).into()
}
