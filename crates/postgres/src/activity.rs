//! Whether a session runs a statement, for cancel requests.

use basalt_sql::InterruptHandle;
use parking_lot::Mutex;

/// The running statement of a session. A session that is interrupted while it runs none would end
/// its next one, so a cancel request first asks whether one runs.
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

    /// Waits for the client inside of a statement. A cancel request does nothing meanwhile.
    pub fn pause<T>(&self, wait: impl FnOnce() -> T) -> T {
        *self.is_running.lock() = false;
        let result = wait();
        *self.is_running.lock() = true;
        result
    }

    /// Interrupts the statement. Returns false if none runs.
    pub fn cancel(&self) -> bool {
        let is_running = self.is_running.lock();
        if *is_running {
            self.interrupt.interrupt();
        }
        *is_running
    }

    /// Interrupts the statement, or the next one.
    pub fn end(&self) {
        self.interrupt.interrupt();
    }
}
