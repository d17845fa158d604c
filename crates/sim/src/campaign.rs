//! How a test campaign says what it tried, and how to repeat what failed. The test runner shows what a passing test prints only when asked to; the
//! counts of a campaign belong to what every run says, so that one that silently tries less is seen.

use std::cell::Cell;
use std::fmt::Arguments;
use std::io::Write;
use std::ops::Range;

/// Writes a line to standard output past the test runner's capture. Use through [`campaign!`](crate::campaign!).
#[doc(hidden)]
pub fn say(line: Arguments<'_>) {
    // A closed output is no reason to fail a test.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a campaign's counts as `println!` would, also when the test passes and its output is captured.
#[macro_export]
macro_rules! campaign {
    ($($line:tt)*) => {
        $crate::campaign::say(format_args!($($line)*))
    };
}

/// The numbers in the environment variable `BASALT_CASE`, separated by commas: the one case of a campaign that is to run.
pub fn case() -> Option<Vec<u64>> {
    let text = std::env::var("BASALT_CASE").ok()?;
    let number = |n: &str| {
        n.trim()
            .parse()
            .expect("BASALT_CASE is numbers separated by commas")
    };
    Some(text.split(',').map(number).collect())
}

/// The cases of a campaign: all of `every`, or the first number of `BASALT_CASE` alone.
pub fn cases(every: Range<u64>) -> Range<u64> {
    match case() {
        Some(numbers) => numbers[0]..numbers[0] + 1,
        None => every,
    }
}

/// Prints the one line that repeats what is running, if it panics. Made by [`repeat!`](crate::repeat!).
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
        // The innermost says it best; those around it are silent.
        if std::thread::panicking() && !SAID.replace(true) {
            eprintln!("{}", self.0);
        }
    }
}

/// A guard for one case of a campaign: the test function that runs it, and the variables that make it run this case alone.
/// When the case panics, one line says how to repeat it.
#[macro_export]
macro_rules! repeat {
    ($test:ident, $($variables:tt)+) => {{
        // A test that is renamed takes its line along.
        let _: fn() = $test;
        $crate::campaign::Repeat::new(
            env!("CARGO_PKG_NAME"),
            module_path!(),
            stringify!($test),
            format_args!($($variables)+),
        )
    }};
}
