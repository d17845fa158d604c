//! [`Cancellation`]: whether the running statement of a session must end.

use crate::error::{SqlError, SqlResult, SqlState};
use basalt::env::Clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The deadline of a statement that has none.
const NEVER: u64 = u64::MAX;

/// Whether the running statement of a session must end: another thread requested it, or the
/// statement exceeded its timeout.
pub struct Cancellation {
    clock: Clock,
    is_requested: AtomicBool,
    /// The time of the clock from which on the statement is cancelled, in nanoseconds.
    deadline: AtomicU64,
}

impl Cancellation {
    /// Returns the state of a session that runs no statement.
    pub fn new(clock: Clock) -> Cancellation {
        Cancellation {
            clock,
            is_requested: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
        }
    }

    /// Requests the end of the running statement. [`Cancellation::clear`] drops the request; a
    /// session calls it before and after each statement.
    pub fn request(&self) {
        self.is_requested.store(true, Ordering::SeqCst);
    }

    /// Sets the timeout of the statement that begins now, in milliseconds; 0 is no timeout.
    pub fn set_timeout(&self, milliseconds: u64) {
        let deadline = match milliseconds {
            0 => NEVER,
            ms => {
                let end = self.clock.now().saturating_add(Duration::from_millis(ms));
                u64::try_from(end.as_nanos()).unwrap_or(NEVER)
            }
        };
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    /// Drops a request that came too late for the statement that has ended.
    pub fn clear(&self) {
        self.is_requested.store(false, Ordering::SeqCst);
    }

    /// Fails if the statement must end.
    ///
    /// Errors: 57014.
    pub fn check(&self) -> SqlResult<()> {
        if self.is_requested.load(Ordering::Relaxed) {
            return Err(SqlError::interrupted());
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline == NEVER || self.clock.now().as_nanos() < u128::from(deadline) {
            return Ok(());
        }
        Err(SqlError::new(
            SqlState::QUERY_CANCELED,
            "canceling statement due to statement timeout",
        ))
    }
}
