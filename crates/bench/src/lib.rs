//! Measures an engine and, in the same run, the device under it.
//!
//! Absolute figures of shared machines drift by a third between runs. What this crate reports are therefore ratios
//! taken in one run: of the engine to the device's own rate, of many threads to one, of device bytes to user bytes.
//!
//! Rooms: [`args`] what can be asked; [`engine`] the door that engines stand behind; [`data`] keys and values by seed, with
//! [`sizes`] and [`pick`]; [`drive`] threads that operate; [`workload`] what is run on one engine; [`compare`] engines beside
//! each other; [`files`] filesystems beside each other; [`device`] the device without any engine; [`counters`] bytes by the process's and by the kernel's
//! accounting; [`statistics`] medians and intervals; [`machine`] where it ran; [`report`] tables and JSON; [`page`]
//! charts; [`progress`] how far it is.

#![deny(missing_docs)]

pub mod args;
pub mod compare;
pub mod counters;
pub mod data;
pub mod device;
pub mod drive;
pub mod engine;
pub mod files;
pub mod machine;
pub mod page;
pub mod pick;
pub mod progress;
pub mod report;
pub mod sizes;
pub mod statistics;
pub mod workload;

pub use args::{AFTER_HELP, Args};

use std::io::Write;

/// Why a run ended early.
#[derive(Debug)]
pub struct Stop {
    /// One sentence that says what to do.
    pub sentence: String,
    /// The failed write to standard output, when it was that.
    pub output: Option<std::io::Error>,
}

impl Stop {
    /// With a sentence.
    pub fn new(sentence: impl Into<String>) -> Stop {
        Stop {
            sentence: sentence.into(),
            output: None,
        }
    }
}

impl From<basalt::Error> for Stop {
    fn from(e: basalt::Error) -> Stop {
        Stop::new(e.to_string())
    }
}

/// Runs what `args` ask for and prints the report to standard output. Returns the exit code.
pub fn run(args: Args) -> Result<u8, Stop> {
    let json = args.workload.common().is_some_and(|c| c.json);
    let text = match &args.workload {
        args::Workload::Compare(asked) => compare::run(asked)?,
        args::Workload::Report(asked) => page::run(asked)?,
        args::Workload::Fs(asked) => files::run(asked)?,
        workload => {
            let report = workload::run(workload)?;
            if json {
                format!("{:#}\n", report.json())
            } else {
                report.table()
            }
        }
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Stop {
            sentence: format!("cannot write to standard output: {e}"),
            output: Some(e),
        })?;
    Ok(0)
}
