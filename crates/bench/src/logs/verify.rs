//! Checks of what a workload has appended and trimmed: a run with a wrong byte fails.

use super::workload::LogWorker;
use crate::Stop;
use std::sync::atomic::Ordering::Relaxed;

/// Records that are read at random places.
const SAMPLES: u64 = 2000;
/// Logs that are read whole, if they are short.
const WHOLE: u64 = 4;
/// Most records of a log that is read whole.
const SHORT: u64 = 20_000;

/// Reads records of all logs and compares them with what was appended. Trimmed and removed records
/// must be gone.
pub(super) fn check(worker: &mut LogWorker) -> Result<(), Stop> {
    let logs = worker.logs.clone();
    for log in 0..logs.len() {
        bounds(worker, log)?;
        let first = logs.log(log).first.load(Relaxed);
        if first > 1 {
            absent(worker, log, first - 1)?;
        }
    }
    for _ in 0..SAMPLES {
        let log = worker.random.below(logs.len());
        let progress = logs.log(log);
        let (first, next) = (progress.first.load(Relaxed), progress.next.load(Relaxed));
        if first == next {
            continue;
        }
        let lsn = first + worker.random.below(next - first);
        match progress.has(lsn) {
            true => worker.read(log, lsn)?,
            false => absent(worker, log, lsn)?,
        }
    }
    for log in 0..logs.len().min(WHOLE) {
        let progress = logs.log(log);
        if progress.next.load(Relaxed) - progress.first.load(Relaxed) <= SHORT {
            worker.iterate(log)?;
        }
    }
    Ok(())
}

/// Checks the first and the last LSN of a log.
pub(super) fn bounds(worker: &LogWorker, log: u64) -> Result<(), Stop> {
    let progress = worker.logs.log(log);
    let (first, next) = (progress.first.load(Relaxed), progress.next.load(Relaxed));
    let expected = (first < next).then(|| (first, next - 1));
    let found = worker.store.bounds(log)?;
    match found == expected {
        true => Ok(()),
        false => Err(worker.wrong(format!(
            "log {log} has the records {found:?}, and {expected:?} were appended"
        ))),
    }
}

fn absent(worker: &LogWorker, log: u64, lsn: u64) -> Result<(), Stop> {
    match worker.store.read(log, lsn, &mut |_| ())? {
        false => Ok(()),
        true => Err(worker.wrong(format!("LSN {lsn} of log {log} was removed, and is there"))),
    }
}
