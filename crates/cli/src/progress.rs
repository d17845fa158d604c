//! Progress on a terminal: amount, rate and remaining time. Silent if standard error is not a
//! terminal.

use basalt::env::Clock;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Commands that are done within this time show no bar.
const DELAY: Duration = Duration::from_secs(2);

/// Returns true if standard error is a terminal.
pub fn watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Returns a bar over `total` bytes, or a running count without a total.
pub fn bytes(what: &'static str, total: Option<u64>) -> ProgressBar {
    bar(
        what,
        total,
        "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
        "{msg} {bytes} {bytes_per_sec}, {elapsed}",
    )
}

/// Returns a bar over about `total` entries, or a running count without a total.
pub fn entries(what: &'static str, total: Option<u64>) -> ProgressBar {
    bar(
        what,
        total,
        "{msg} [{bar:32}] {human_pos}/{human_len} {per_sec}, {eta} left",
        "{msg} {human_pos} entries {per_sec}, {elapsed}",
    )
}

/// A bar over bytes that is shown from two seconds on.
pub struct DelayedBar {
    what: &'static str,
    clock: Clock,
    began: Duration,
    bar: Option<ProgressBar>,
}

impl DelayedBar {
    pub fn new(what: &'static str) -> DelayedBar {
        let clock = Clock::system();
        DelayedBar {
            what,
            began: clock.now(),
            clock,
            bar: None,
        }
    }

    /// Moves the bar.
    pub fn at(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && self.clock.now() - self.began < DELAY {
            return;
        }
        let bar = self
            .bar
            .get_or_insert_with(|| bytes(self.what, Some(total)));
        if bar.length() != Some(total) {
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    /// Removes the bar.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, total: Option<u64>, known: &str, unknown: &str) -> ProgressBar {
    if !watched() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), known),
        None => (ProgressBar::no_length(), unknown),
    };
    let style = ProgressStyle::with_template(template).expect("the templates above are right");
    bar.with_style(style.progress_chars("=> "))
        .with_message(what)
}

/// Returns a number with its noun: `1 entry`, `2 entries`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns a number of entries as text.
pub fn count_entries(n: u64) -> String {
    count(n, "entry", "entries")
}

/// Returns bytes for people: `1.5 MiB`.
pub fn human_bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// Returns bytes, time and rate for the last line of a command.
pub fn rate(bytes: u64, took: std::time::Duration) -> String {
    let seconds = took.as_secs_f64().max(1e-6);
    format!(
        "{} in {seconds:.1} s, {}/s",
        human_bytes(bytes),
        human_bytes((bytes as f64 / seconds) as u64)
    )
}
