//! `basalt`: the server and the tools in one binary. A command is a module of its name.
//!
//! The modules that all commands use, from below: `progress`, `location` (where a store lies),
//! `failure` (how a command ends), `output` (results), `filesystem` (the disk or an image),
//! `text_entry` and `directory` (entries and files), `args` (the command line) and `store` (the
//! entries of a store).

// The macros of these lints panic if the write fails, as on a full disk or a closed pipe: use
// `output::note` and `output::print`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod args;
mod blob;
mod budget;
mod check;
mod checkpoint;
mod compact;
mod directory;
mod engine;
mod escape;
mod export;
mod failure;
mod filesystem;
mod findings;
mod fs;
#[cfg(test)]
mod fuzzing;
mod keyspace;
mod load;
mod location;
mod log;
mod log_args;
mod log_report;
mod output;
mod point;
mod progress;
mod separation;
mod serve;
mod sql;
mod sql_args;
mod stats;
mod store;
mod text_entry;
mod tree;
mod tree_args;

use args::Command;
use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use failure::{EXIT_FAILED, Failure};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Lets a write beyond the limit on the size of files (`ulimit -f`) fail with an error. Otherwise
/// the signal SIGXFSZ ends the process without a message.
fn report_large_files() {
    let caught = Arc::new(AtomicBool::new(false));
    // If this fails, SIGXFSZ ends the process, as by default.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, caught);
}

fn main() -> ExitCode {
    report_large_files();
    let cli = args::Cli::try_parse().unwrap_or_else(|mut e| {
        // A flag of another command is no value. The parser would advise to pass it as one, which
        // is wrong here.
        let flag = matches!(e.get(ContextKind::InvalidArg),
            Some(ContextValue::String(arg)) if arg.starts_with("--"));
        if flag {
            e.remove(ContextKind::Suggested);
        }
        e.exit()
    });
    let outcome = match cli.command {
        Command::Serve(a) => serve::serve(a),
        Command::Put(a) => point::put(a),
        Command::Get(a) => point::get(a),
        Command::Del(a) => point::del(a),
        Command::Scan(a) => point::scan(a),
        Command::Load(a) => load::load(a),
        Command::Export(a) => export::export(a),
        Command::Stats(a) => stats::stats(a),
        Command::Blob(a) => blob::blob(a),
        Command::Log(a) => log::log(a),
        Command::Tree(a) => tree::tree(a),
        Command::Sql(a) => sql::sql(*a),
        Command::Compact(a) => compact::compact(a),
        Command::Checkpoint(a) => checkpoint::checkpoint(a),
        Command::Check(a) => check::check(a),
        Command::Repair(a) => check::repair(a),
        Command::Fs(a) => fs::fs(a),
        Command::Bench(a) => basalt_bench::run(a).map_err(|e| match e.output {
            Some(broken) => Failure::output("standard output", broken),
            None => Failure::new(e.sentence),
        }),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Message(sentence, code)) => {
            output::note(format_args!("basalt: {sentence}"));
            ExitCode::from(code)
        }
        Err(Failure::Busy(sentence)) => {
            output::note(format_args!("basalt: {sentence}"));
            ExitCode::from(EXIT_FAILED)
        }
    }
}
