//! Measures an engine and, in the same run, the device under it.
//!
//! Absolute results of shared machines drift by a third between runs. So this crate reports ratios
//! within one run: of the engine to the device's own rate, of many threads to one, of device bytes
//! to user bytes.
//!
//! Modules: [`args`] the whole command line, of which each module below defines its own flags;
//! [`engine`] the interface of engines; [`data`] keys and values by seed, with [`sizes`] and
//! [`pick`]; [`drive`] threads that run operations; [`workload`] workloads on one engine;
//! [`compare`] comparison of engines; [`logs`] of log engines; [`files`] comparison of
//! filesystems; [`device`] the device without an engine; [`cold_files`] copies that are not in the
//! page cache; [`counters`] bytes by the process's and by the kernel's counters; [`statistics`]
//! medians and intervals; [`machine`] facts about the machine; [`report`] tables and JSON;
//! [`html_report`] charts; [`flags`] values of flags; [`progress`] the progress line.

#![deny(missing_docs)]

pub mod args;
pub mod cold_files;
pub mod compare;
pub mod counters;
pub mod data;
pub mod device;
pub mod drive;
pub mod engine;
pub mod files;
pub mod flags;
pub mod html_report;
pub mod logs;
pub mod machine;
pub mod pick;
pub mod progress;
pub mod report;
pub mod sizes;
pub mod statistics;
mod stop;
pub mod workload;

pub use args::{AFTER_HELP, Args};
pub use stop::Stop;

use args::Command;
use std::io::Write;

/// Runs the command of `args` and prints the report to standard output. Returns the exit code.
pub fn run(args: Args) -> Result<u8, Stop> {
    let text = match &args.command {
        Command::Compare(asked) => compare::run(asked)?,
        Command::Log(asked) => logs::run(asked)?,
        Command::Report(asked) => html_report::run(asked)?,
        Command::Fs(asked) => files::run(asked)?,
        Command::Workload(workload) => {
            let report = workload::run(workload)?;
            if workload.common().json {
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
