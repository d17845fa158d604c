//! The health of an open store: what has failed, when it is tried again, and whether writes go on.
//!
//! A store is *halted* when its log or its manifest is in doubt: writes get the error, and the next
//! write tries to resume. A store is *broken* when a commit or a job of it stopped on a broken
//! invariant: nothing is written any more. Errors of flushes and compactions are kept until an
//! attempt succeeds.
//!
//! Lock: `health`, a leaf. It may be taken under every other lock of the store.

use super::context::StoreContext;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Result};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time from a failed flush, compaction or resume to the next attempt.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest time from a failed compaction to the next attempt. The time doubles up to here.
const MAX_COMPACTION_PAUSE: Duration = Duration::from_secs(60);

/// The failures of a store. See the documentation of the module.
pub(crate) struct Health {
    ctx: Arc<StoreContext>,
    failures: Mutex<Failures>,
    /// True while `failures.halt` is set. Commit leaders read it without the lock.
    is_halted: AtomicBool,
    /// Message of a panic inside of a commit. Log and memtables may differ from then on.
    broken: OnceLock<String>,
}

struct Failures {
    halt: Option<Error>,
    flush: Option<Error>,
    /// Time of the environment's clock before which a failed flush is not tried again.
    flush_retry_at: Duration,
    compaction: Option<Error>,
    /// Time of the environment's clock before which failed compactions are not tried again.
    compaction_retry_at: Duration,
    /// Pause after the next failure of a compaction.
    compaction_pause: Duration,
}

impl Health {
    /// Returns the health of a store in which nothing has failed.
    pub fn new(ctx: &Arc<StoreContext>) -> Arc<Health> {
        Arc::new(Health {
            ctx: ctx.clone(),
            failures: Mutex::new(Failures {
                halt: None,
                flush: None,
                flush_retry_at: Duration::ZERO,
                compaction: None,
                compaction_retry_at: Duration::ZERO,
                compaction_pause: RETRY_PAUSE,
            }),
            is_halted: AtomicBool::new(false),
            broken: OnceLock::new(),
        })
    }

    /// Makes writes fail with `error` until the store resumes. Replaces an earlier error.
    pub fn halt(&self, error: Error) {
        let mut failures = self.failures.lock();
        failures.halt = Some(error);
        self.is_halted.store(true, SeqCst);
    }

    /// Makes writes fail with `error` until the store resumes. Keeps an earlier error.
    pub fn halt_unless_halted(&self, error: Error) {
        let mut failures = self.failures.lock();
        failures.halt.get_or_insert(error);
        self.is_halted.store(true, SeqCst);
    }

    /// Returns why writes fail, or `None` if they go on. Takes no lock if they go on.
    pub fn halted(&self) -> Option<Error> {
        match self.is_halted.load(SeqCst) {
            false => None,
            true => self.failures.lock().halt.clone(),
        }
    }

    /// Returns true while writes fail. Takes no lock.
    pub fn is_halted(&self) -> bool {
        self.is_halted.load(SeqCst)
    }

    /// Lets writes go on: nothing depends any more on the log or the manifest that was in doubt.
    pub fn resumed(&self) {
        let mut failures = self.failures.lock();
        failures.halt = None;
        self.is_halted.store(false, SeqCst);
    }

    /// Notes that a flush has failed. The next attempt may begin after [`RETRY_PAUSE`].
    pub fn flush_failed(&self, error: Error) {
        let mut failures = self.failures.lock();
        failures.flush = Some(error);
        failures.flush_retry_at = self.ctx.env.clock().now() + RETRY_PAUSE;
    }

    /// Notes that all sealed memtables were flushed.
    pub fn flush_succeeded(&self) {
        self.failures.lock().flush = None;
    }

    /// Returns the error of the last flush, if it failed.
    pub fn flush_error(&self) -> Option<Error> {
        self.failures.lock().flush.clone()
    }

    /// Returns true while a failed flush waits for its next attempt.
    pub fn flush_is_paused(&self) -> bool {
        let failures = self.failures.lock();
        failures.flush.is_some() && self.ctx.env.clock().now() < failures.flush_retry_at
    }

    /// Notes that a compaction has failed. The next attempt may begin at once, or after a pause
    /// that doubles with each failure up to one minute.
    pub fn compaction_failed(&self, error: Error, retry_at_once: bool) {
        let mut failures = self.failures.lock();
        failures.compaction = Some(error);
        failures.compaction_retry_at = self.ctx.env.clock().now();
        if !retry_at_once {
            let pause = failures.compaction_pause;
            failures.compaction_retry_at += pause;
            failures.compaction_pause = (pause * 2).min(MAX_COMPACTION_PAUSE);
        }
    }

    /// Notes one more failure by the fault that the last one has reported. The pause lasts at least
    /// as long as the shortest one from now on.
    pub fn compaction_failed_again(&self) {
        let mut failures = self.failures.lock();
        let earliest = self.ctx.env.clock().now() + RETRY_PAUSE;
        failures.compaction_retry_at = failures.compaction_retry_at.max(earliest);
    }

    /// Notes that a compaction has succeeded, or that none is due.
    pub fn compaction_succeeded(&self) {
        let mut failures = self.failures.lock();
        failures.compaction = None;
        failures.compaction_pause = RETRY_PAUSE;
    }

    /// Returns the error of the last compaction, if it failed.
    pub fn compaction_error(&self) -> Option<Error> {
        self.failures.lock().compaction.clone()
    }

    /// Returns true while failed compactions wait for their next attempt.
    pub fn compactions_are_paused(&self) -> bool {
        let failures = self.failures.lock();
        failures.compaction.is_some() && self.ctx.env.clock().now() < failures.compaction_retry_at
    }

    /// Returns the first error of these: the halt, the last flush, the last compaction.
    pub fn first_error(&self) -> Option<Error> {
        let failures = self.failures.lock();
        let error = failures.halt.as_ref().or(failures.flush.as_ref());
        error.or(failures.compaction.as_ref()).cloned()
    }

    /// Notes the message of a panic that left log and memtables in an unknown state.
    pub fn set_broken(&self, panic: String) {
        let _ = self.broken.set(panic);
    }

    /// Returns `Poisoned` if a commit or a job of the store stopped on a broken invariant.
    pub fn check_jobs(&self) -> Result<()> {
        if let Some(what) = self.broken.get() {
            return Err(Error::new(
                ErrorKind::Poisoned,
                format!("a commit panicked: {what}"),
            ));
        }
        match self.ctx.jobs.panicked() {
            None => Ok(()),
            Some(what) => Err(Error::new(
                ErrorKind::Poisoned,
                format!("a background job panicked: {what}"),
            )),
        }
    }
}
