//! Shares flushes of the device. A thread that needs a flush while one runs waits for the next one,
//! which one of the waiting threads runs for all of them.

use parking_lot::{Condvar, Mutex};

use basalt_fs::{Error, Result};

#[derive(Default)]
struct FlushState {
    /// Number of flushes that have begun.
    begun: u64,
    /// Number of the last flush that succeeded. All flushes before it have ended, too.
    done: u64,
    running: bool,
    /// Number of threads that wait for a flush of another thread.
    waiting: usize,
    /// The error of a failed flush, which ends all flushes.
    failed: Option<Error>,
}

/// The flushes of one device.
#[derive(Default)]
pub struct Flusher {
    state: Mutex<FlushState>,
    ended: Condvar,
}

/// Ends all flushes if one panics, and wakes the threads that wait for it.
struct FlushGuard<'f>(Option<&'f Flusher>);

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        if let Some(flusher) = self.0 {
            let mut state = flusher.state.lock();
            state.running = false;
            state.failed = Some(Error::new(
                basalt_fs::ErrorKind::Poisoned,
                "a flush panicked, and the durable state is unknown",
            ));
            flusher.ended.notify_all();
        }
    }
}

impl Flusher {
    /// Returns the number of threads that wait for a flush of another thread.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits for a flush that begins after this call, or runs it. After an error every call fails,
    /// because it is unknown what is durable.
    pub fn flush(&self, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mine = state.begun + 1;
        loop {
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            if state.done >= mine {
                return Ok(());
            }
            if !state.running {
                break;
            }
            state.waiting += 1;
            self.ended.wait(&mut state);
            state.waiting -= 1;
        }
        state.running = true;
        state.begun += 1;
        let own = state.begun;
        drop(state);
        let mut guard = FlushGuard(Some(self));
        let result = run();
        guard.0 = None;
        let mut state = self.state.lock();
        state.running = false;
        match &result {
            Ok(()) => state.done = own,
            Err(e) => state.failed = Some(e.clone()),
        }
        drop(state);
        self.ended.notify_all();
        result
    }
}
