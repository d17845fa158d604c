//! Writing behind: a thread of the file's own appends the collected bytes while the caller makes
//! the next ones. One piece is being written to the device, one waits, and one is being filled. A
//! caller that fills faster than the device writes waits for the device.

use super::{Appender, PIECE};
use crate::sync::{Condvar, Mutex, panicking};
use crate::thread::BackgroundThread;
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};
use std::sync::Arc;

#[derive(Default)]
struct WriteBehindState {
    /// The piece that is written next.
    waiting: Option<AlignedBuf>,
    /// Memory of a piece that was written, for reuse.
    free: Option<AlignedBuf>,
    /// True while a piece is being written.
    busy: bool,
    /// True if no more pieces will come.
    ended: bool,
    failed: Option<Error>,
}

#[derive(Default)]
struct WriteBehindShared {
    state: Mutex<WriteBehindState>,
    changed: Condvar,
}

/// A file's writing thread, see the module. A drop waits for the piece that is being written; the
/// waiting piece is not written.
pub(super) struct WriteBehind {
    shared: Arc<WriteBehindShared>,
    /// Held for its drop alone, which waits for the thread. A panic has been reported: the piece is
    /// not in the file, and callers that waited for it got the error.
    _thread: BackgroundThread,
}

impl WriteBehind {
    /// Starts the thread. Returns `Err` with the appender if no thread can be started.
    pub fn begin(appender: Appender) -> std::result::Result<WriteBehind, Appender> {
        let shared = Arc::<WriteBehindShared>::default();
        let (own, given) = (shared.clone(), Arc::new(Mutex::new(Some(appender))));
        let taken = given.clone();
        let run = move || {
            let appender = taken.lock().take();
            own.serve(appender.expect("given to this thread alone"));
        };
        match BackgroundThread::start("basalt-write", run) {
            Ok(thread) => Ok(WriteBehind {
                shared,
                _thread: thread,
            }),
            Err(_) => Err(given.lock().take().expect("the thread did not begin")),
        }
    }

    /// Passes a piece to the thread, and returns memory for the next piece.
    pub fn push(&self, piece: AlignedBuf) -> Result<AlignedBuf> {
        let mut state = self.shared.state.lock();
        while state.waiting.is_some() && state.failed.is_none() {
            self.shared.changed.wait(&mut state);
        }
        if let Some(e) = &state.failed {
            return Err(e.clone());
        }
        state.waiting = Some(piece);
        let free = state.free.take();
        drop(state);
        self.shared.changed.notify_all();
        Ok(free.unwrap_or_else(|| {
            let mut fresh = AlignedBuf::zeroed_direct(0);
            fresh.reserve_exact(PIECE);
            fresh
        }))
    }

    /// Waits until all pieces that were pushed are written.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        while (state.waiting.is_some() || state.busy) && state.failed.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl WriteBehindShared {
    fn serve(&self, mut appender: Appender) {
        let _ends = PanicGuard(self);
        let mut state = self.state.lock();
        loop {
            while state.waiting.is_none() && !state.ended {
                self.changed.wait(&mut state);
            }
            let Some(piece) = state.waiting.take().filter(|_| !state.ended) else {
                return;
            };
            state.busy = true;
            drop(state);
            // The caller may push the next piece.
            self.changed.notify_all();
            let appended = appender.append_gathered(&piece);
            state = self.state.lock();
            state.busy = false;
            state.failed = appended.err();
            let mut piece = piece;
            piece.clear();
            state.free = Some(piece);
            self.changed.notify_all();
            if state.failed.is_some() {
                return;
            }
        }
    }
}

/// Reports a panic of the writing thread to the threads that wait for it.
struct PanicGuard<'a>(&'a WriteBehindShared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if panicking() {
            let what = "the thread that writes a file stopped on a broken invariant";
            let mut state = self.0.state.lock();
            state.failed = Some(Error::new(ErrorKind::Poisoned, what));
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
    }
}
