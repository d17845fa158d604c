//! Discards free space on the device, and waits for running discards.

use std::sync::atomic::Ordering::SeqCst;

use rustix::io::Errno;

use crate::allocator::Discarding;
use crate::mounted::MountedFs;
use crate::runs::BLOCK;
use crate::state::MountState;
use basalt_fs::ErrorKind;

/// Frees the blocks of a discard when it ends, also by a panic: a thread may wait for them.
struct DiscardGuard<'s>(&'s MountedFs, Option<Discarding>);

impl DiscardGuard<'_> {
    fn end(&mut self) {
        if let Some(discarding) = self.1.take() {
            self.0.state.lock().blocks.end_discard(discarding);
            self.0.discarded.notify_all();
        }
    }
}

impl Drop for DiscardGuard<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl MountedFs {
    /// Calls `take` until it finds space. Between two calls, waits for a running discard, whose
    /// blocks become free. Another thread may begin a new discard each time, so the number of
    /// calls is bounded. Returns `None` if no call finds space: the image is full.
    pub(super) fn with_discards<R>(
        &self,
        mut take: impl FnMut(&mut MountState) -> Option<R>,
    ) -> Option<R> {
        for _ in 0..16 {
            let taken = take(&mut self.state.lock());
            if taken.is_some() || !self.wait_for_discards() {
                return taken.or_else(|| take(&mut self.state.lock()));
            }
        }
        take(&mut self.state.lock())
    }

    /// Discards some of the free space on the device. Returns `false` if there was none to discard.
    /// The blocks are not allocated meanwhile.
    pub fn discard_some(&self) -> bool {
        if self.check_writable().is_err() {
            return false;
        }
        let Some(discarding) = self.state.lock().blocks.begin_discard() else {
            return false;
        };
        let mut discarding = DiscardGuard(self, Some(discarding));
        let mut unsupported = false;
        let mut discarded = 0;
        for run in discarding.1.iter().flat_map(Discarding::runs) {
            // A failed discard is only counted. A device that supports none gets no more.
            match self.device.discard(run.start * BLOCK, run.len * BLOCK) {
                Ok(()) => discarded += run.len * BLOCK,
                Err(e) => {
                    self.counters.failed_discards.fetch_add(1, SeqCst);
                    let cannot = [Errno::OPNOTSUPP, Errno::INVAL, Errno::PERM, Errno::NOTTY];
                    let cannot = cannot.map(|e| Some(e.raw_os_error()));
                    if e.kind() == ErrorKind::Unsupported || cannot.contains(&e.os_error()) {
                        unsupported = true;
                        break;
                    }
                }
            }
        }
        self.counters.discarded.fetch_add(discarded, SeqCst);
        discarding.end();
        if unsupported {
            self.state.lock().blocks.discard_no_more();
        }
        true
    }

    /// Waits until the blocks of running discards are free. Returns `false` if none was running.
    pub fn wait_for_discards(&self) -> bool {
        let mut state = self.state.lock();
        let waits = state.blocks.is_discarding();
        state.discard_waiters += 1;
        while state.blocks.is_discarding() {
            self.discarded.wait(&mut state);
        }
        state.discard_waiters -= 1;
        waits
    }
}
