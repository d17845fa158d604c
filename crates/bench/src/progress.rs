//! Progress of a long run: one line on standard error, rewritten in place, and only on a terminal.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

/// The progress line.
pub struct Progress {
    /// Label at the head of the line, or `None` if there is no terminal.
    label: Option<String>,
}

impl Progress {
    /// Makes a progress line, which is shown only if standard error is a terminal.
    pub fn new(label: impl Into<String>) -> Progress {
        let seen = rustix::termios::isatty(std::io::stderr());
        Progress {
            label: seen.then(|| label.into()),
        }
    }

    /// Makes a progress line that is never shown.
    pub fn silent() -> Progress {
        Progress { label: None }
    }

    /// Updates the line: operations done, of how many, and the time that has passed, of how much.
    pub fn update(&self, done: u64, of: u64, passed: Duration, time: Option<Duration>) {
        if let Some(label) = &self.label {
            let line = line(label, done, of, passed, time);
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// Removes the line.
    pub fn clear(&self) {
        if self.label.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(label: &str, done: u64, of: u64, passed: Duration, time: Option<Duration>) -> String {
    let seconds = passed.as_secs_f64();
    let mut line = format!(
        "{label}: {done} operations, {:.0}/s",
        done as f64 / seconds.max(1e-9)
    );
    let by_time = time.map(|t| (seconds / t.as_secs_f64().max(1e-9)).min(1.0));
    let by_ops = (of < u64::MAX && of > 0).then(|| done as f64 / of as f64);
    // The limit that is nearer ends the run.
    let part = by_time.unwrap_or(0.0).max(by_ops.unwrap_or(0.0));
    if part > 0.0 {
        let left = (seconds / part - seconds).max(0.0);
        let _ = write!(line, ", {:.0} %, {left:.0} s left", part * 100.0);
    }
    line
}

#[cfg(test)]
mod tests;
