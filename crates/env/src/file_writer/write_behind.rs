//! Writing behind: a thread of the file's own appends what was gathered while the next bytes are made. One piece is on its way to the device, one
//! waits, one is being filled; whoever fills faster waits for the device.

use super::{Appender, PIECE};
use crate::sync::{Condvar, JoinHandle, Mutex, panicking};
use crate::thread;
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};
use std::sync::Arc;

#[derive(Default)]
struct State {
    /// The next piece.
    waiting: Option<AlignedBuf>,
    /// Memory of a piece that was written.
    free: Option<AlignedBuf>,
    /// A piece is on its way.
    busy: bool,
    /// Nothing comes any more.
    ended: bool,
    failed: Option<Error>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module. Dropped, it waits for the piece on its way; what waits is not written.
pub(super) struct Behind {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Behind {
    /// `Err` with the appender when there is no thread to be had.
    pub fn begin(appender: Appender) -> std::result::Result<Behind, Appender> {
        let shared = Arc::<Shared>::default();
        let (own, given) = (shared.clone(), Arc::new(Mutex::new(Some(appender))));
        let taken = given.clone();
        let run = move || {
            let appender = taken.lock().take();
            own.serve(appender.expect("given to this thread alone"));
        };
        match thread::spawn("basalt-write", run) {
            Ok(thread) => Ok(Behind {
                shared,
                thread: Some(thread),
            }),
            Err(_) => Err(given.lock().take().expect("the thread did not begin")),
        }
    }

    /// Hands a piece over, and gets memory for the next one.
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

    /// Waits until all that was handed over is written.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        while (state.waiting.is_some() || state.busy) && state.failed.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl Shared {
    fn serve(&self, mut appender: Appender) {
        let _ends = Ends(self);
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
            // The next piece may come.
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

/// Whoever waits for a thread that panicked hears of it.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
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

impl Drop for Behind {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has told why, and its pieces are not there: whoever waited for them has not gone on.
            let _ = thread.join();
        }
    }
}
