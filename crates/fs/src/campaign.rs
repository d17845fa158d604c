//! How a test campaign says what it tried. The test runner shows what a passing test prints only when asked to; the
//! counts of a campaign belong to what every run says, so that one that silently tries less is seen.

use std::fmt::Arguments;
use std::io::Write;

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
