//! Ctrl-C: it cancels the running statement, and not the shell.

use basalt_sql::InterruptHandle;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The exit code of a program that SIGINT ends.
const EXIT_INTERRUPTED: i32 = 128 + SIGINT;

/// Hands SIGINT to the statement that runs.
#[derive(Clone)]
pub struct Interrupter {
    is_running: Arc<AtomicBool>,
    was_interrupted: Arc<AtomicBool>,
}

impl Interrupter {
    /// Begins to catch SIGINT. While no statement runs, a shell on a terminal ignores it, and any
    /// other program ends: what was committed is durable.
    pub fn install(handle: InterruptHandle, is_interactive: bool) -> Interrupter {
        let interrupter = Interrupter {
            is_running: Arc::new(AtomicBool::new(false)),
            was_interrupted: Arc::new(AtomicBool::new(false)),
        };
        let caught = interrupter.clone();
        // Without the thread, SIGINT ends the process, as by default.
        if let Ok(mut signals) = Signals::new([SIGINT]) {
            let wait = move || {
                for _ in signals.forever() {
                    caught.interrupt(&handle, is_interactive);
                }
            };
            let _ = basalt::env::thread::spawn("sql-interrupt", wait);
        }
        interrupter
    }

    fn interrupt(&self, handle: &InterruptHandle, is_interactive: bool) {
        let again = self.was_interrupted.swap(true, SeqCst);
        if self.is_running.load(SeqCst) && (is_interactive || !again) {
            handle.interrupt();
        } else if !is_interactive {
            std::process::exit(EXIT_INTERRUPTED);
        }
    }

    /// Runs a statement, which SIGINT cancels meanwhile.
    pub fn run<T>(&self, statement: impl FnOnce() -> T) -> T {
        self.was_interrupted.store(false, SeqCst);
        self.is_running.store(true, SeqCst);
        let result = statement();
        self.is_running.store(false, SeqCst);
        result
    }

    /// Returns `true` if SIGINT came since the last statement began.
    pub fn was_interrupted(&self) -> bool {
        self.was_interrupted.load(SeqCst)
    }
}
