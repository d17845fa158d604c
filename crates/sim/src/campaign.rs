//! Counts of test campaigns, and the line that repeats a failure. The test runner shows the output
//! of a passing test only on request. The counts of a campaign are part of the output of every run,
//! so that a campaign that silently tries less is noticed.

use std::cell::Cell;
use std::fmt::Arguments;
use std::io::Write;
use std::ops::Range;

/// Writes a line to standard output past the test runner's capture. Tests call it through
/// [`campaign!`](crate::campaign!).
#[doc(hidden)]
pub fn say(line: Arguments<'_>) {
    // A closed output is no reason to fail a test.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a campaign's counts as `println!` would, also when the test passes and its output is
/// captured.
#[macro_export]
macro_rules! campaign {
    ($($line:tt)*) => {
        $crate::campaign::say(format_args!($($line)*))
    };
}

/// The effort of a campaign, as a multiple of its default. The environment variable `BASALT_SCALE`
/// sets it to a whole number (`3`) or a part (`1/3`). `n * scale()` is never 0 if `n` is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    times: u64,
    parts: u64,
}

impl Scale {
    /// Returns the floor under a count that is at least `n` at a scale of 1. A part of the default
    /// effort has few cases, and their counts vary more. So the floor of a part is a quarter of its
    /// share.
    pub fn floor(self, n: u64) -> u64 {
        match self.times >= self.parts {
            true => n * self.times / self.parts,
            false => (n * self.times / (self.parts * 4)).max(1),
        }
    }

    /// Returns a third of this effort, for a second run of tests that have run once.
    pub fn third(self) -> Scale {
        Scale {
            parts: self.parts * 3,
            ..self
        }
    }
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.parts {
            1 => write!(f, "{}", self.times),
            parts => write!(f, "{}/{parts}", self.times),
        }
    }
}

impl std::str::FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        let (times, parts) = text.trim().split_once('/').unwrap_or((text.trim(), "1"));
        let number = |n: &str| n.parse().ok().filter(|n| *n > 0);
        match (number(times), number(parts)) {
            (Some(times), Some(parts)) => Ok(Scale { times, parts }),
            _ => Err(format!(
                "BASALT_SCALE is {text:?}, expected a number such as 3, or a part such as 1/3"
            )),
        }
    }
}

impl std::ops::Mul<Scale> for u64 {
    type Output = u64;

    fn mul(self, scale: Scale) -> u64 {
        (self * scale.times).div_ceil(scale.parts)
    }
}

/// Returns the effort that `BASALT_SCALE` sets, or 1 if the variable is not set.
///
/// # Panics
/// If the variable is neither a number nor a part.
pub fn scale() -> Scale {
    let text = std::env::var("BASALT_SCALE").unwrap_or_else(|_| "1".into());
    text.parse().unwrap_or_else(|e: String| panic!("{e}"))
}

/// Returns the numbers in the environment variable `BASALT_CASE`, separated by commas: the one case
/// of a campaign that is to run.
pub fn case() -> Option<Vec<u64>> {
    let text = std::env::var("BASALT_CASE").ok()?;
    let number = |n: &str| {
        n.trim()
            .parse()
            .expect("BASALT_CASE is numbers separated by commas")
    };
    Some(text.split(',').map(number).collect())
}

/// Returns the cases of a campaign: all of `every`, or the first number of `BASALT_CASE` alone.
pub fn cases(every: Range<u64>) -> Range<u64> {
    match case() {
        Some(numbers) => numbers[0]..numbers[0] + 1,
        None => every,
    }
}

/// A guard that prints the line that repeats the running case, if the case panics.
/// [`repeat!`](crate::repeat!) makes it.
pub struct Repeat(String);

impl Repeat {
    #[doc(hidden)]
    pub fn new(package: &str, module: &str, test: &str, variables: Arguments<'_>) -> Repeat {
        let target = module.split("::").next().unwrap_or(module);
        let target = if target == package.replace('-', "_") {
            "--lib".to_string()
        } else {
            format!("--test {target}")
        };
        let variables = match variables.to_string() {
            none if none.is_empty() => none,
            some => some + " ",
        };
        Repeat(format!(
            "repeat with: {variables}cargo test -p {package} {target} {test} -- --nocapture"
        ))
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        thread_local!(static SAID: Cell<bool> = const { Cell::new(false) });
        // The innermost guard has the most exact line, so those around it print nothing.
        if std::thread::panicking() && !SAID.replace(true) {
            eprintln!("{}", self.0);
        }
    }
}

/// Makes a guard for one case of a campaign. Its arguments are the test function that runs the
/// case, and the variables that make the function run this case alone. If the case panics, one line
/// says how to repeat it.
#[macro_export]
macro_rules! repeat {
    ($test:ident, $($variables:tt)+) => {{
        // If a test is renamed, the compiler finds its line here.
        let _: fn() = $test;
        $crate::campaign::Repeat::new(
            env!("CARGO_PKG_NAME"),
            module_path!(),
            stringify!($test),
            format_args!($($variables)+),
        )
    }};
}

#[cfg(test)]
mod tests;
