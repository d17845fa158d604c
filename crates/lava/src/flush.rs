//! One flush of the device for all who wait for one: whoever comes while one runs waits for the next, which one of them does for all.

use parking_lot::{Condvar, Mutex};

use basalt_fs::{Error, Result};

#[derive(Default)]
struct FlushState {
    /// Flushes that have begun.
    begun: u64,
    /// Flushes that have ended well; all that began before the last of them.
    done: u64,
    running: bool,
    /// Threads that wait for a flush that another one runs.
    waiting: usize,
    /// A flush that failed ends all.
    failed: Option<Error>,
}

/// See the module's head.
#[derive(Default)]
pub struct Flusher {
    state: Mutex<FlushState>,
    ended: Condvar,
}

/// A flush that panicked ends all, and nobody waits for it.
struct FlushGuard<'f>(Option<&'f Flusher>);

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        if let Some(flusher) = self.0 {
            let mut state = flusher.state.lock();
            state.running = false;
            state.failed = Some(Error::new(
                basalt_fs::ErrorKind::Poisoned,
                "a flush panicked, and what is durable is unknowable",
            ));
            flusher.ended.notify_all();
        }
    }
}

impl Flusher {
    /// Threads that wait for a flush that another one runs.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits for a flush that begins after this call, or does it. After an error every call fails: nobody knows what is durable.
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
