//! `basalt-bench`: the benchmarks as a separate binary. `basalt bench` runs the same code.

use clap::Parser;
use std::process::ExitCode;

/// Measures the engine and, in the same run, the device under it.
#[derive(Parser)]
#[command(name = "basalt-bench", version, after_help = basalt_bench::AFTER_HELP, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    args: basalt_bench::Args,
}

fn main() -> ExitCode {
    match basalt_bench::run(Cli::parse().args) {
        Ok(code) => ExitCode::from(code),
        Err(stop)
            if stop
                .output
                .as_ref()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(stop) => {
            eprintln!("basalt-bench: {}", stop.sentence);
            ExitCode::from(2)
        }
    }
}
