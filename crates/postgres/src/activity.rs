//! Whether a session runs a statement, for cancel requests.

use basalt_sql::InterruptHandle;
use parking_lot::Mutex;

/// Tracks whether a session runs a statement. A cancel request interrupts the session only while it
/// does, so that a late request has no effect on the next statement.
pub struct Activity {
    is_running: Mutex<bool>,
    interrupt: InterruptHandle,
}

impl Activity {
    /// Returns the activity of a session that runs nothing.
    pub fn new(interrupt: InterruptHandle) -> Activity {
        Activity {
            is_running: Mutex::new(false),
            interrupt,
        }
    }

    /// Runs a statement.
    pub fn run<T>(&self, statement: impl FnOnce() -> T) -> T {
        *self.is_running.lock() = true;
        let result = statement();
        *self.is_running.lock() = false;
        result
    }

    /// Waits for the client inside of a statement. A cancel request has no effect meanwhile.
    pub fn pause<T>(&self, wait: impl FnOnce() -> T) -> T {
        *self.is_running.lock() = false;
        let result = wait();
        *self.is_running.lock() = true;
        result
    }

    /// Interrupts the running statement. Returns `false` if no statement runs.
    pub fn cancel(&self) -> bool {
        let is_running = self.is_running.lock();
        if *is_running {
            self.interrupt.interrupt();
        }
        *is_running
    }

    /// Interrupts the running statement, if there is one. The caller repeats the call, because a
    /// statement that begins later has not seen it.
    pub fn end(&self) {
        self.interrupt.interrupt();
    }
}
