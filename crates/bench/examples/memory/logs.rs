//! Memory of one store with many logs, by the workload `many-logs` of `basalt-bench log`: 1,000
//! logs, records of 256 B to 4 KiB, two threads, each log trimmed 100 records behind.

use crate::{counting, line};
use basalt::env::{Env, Random};
use basalt::fs::{HostFs, HostOptions};
use basalt::{Result, WriteOptions};
use basalt_log::{Log, LogEngine, LogEngineOptions, LogOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const LOGS: u64 = 1000;
const BEHIND: u64 = 100;
const STEP: u64 = 16;
const THREADS: u64 = 2;

/// Appends to random logs of one thread, and trims them, until `stop` is set.
fn append(logs: &[Log], thread: u64, stop: &AtomicBool, appended: &AtomicU64) -> Result<()> {
    let r = Random::from_seed(thread + 1);
    let junk: Vec<u8> = (0..4096).map(|_| r.next_u64() as u8).collect();
    let mut next = vec![1; logs.len()];
    while !stop.load(Relaxed) {
        let i = (r.below(LOGS / THREADS) * THREADS + thread) as usize;
        let len = 256 + r.below(4096 - 256) as usize;
        let lsn = next[i];
        logs[i].append(lsn, &junk[..len], &WriteOptions::UNSYNCED)?;
        next[i] += 1;
        if lsn.is_multiple_of(STEP) && lsn > BEHIND {
            logs[i].trim(lsn - BEHIND, &WriteOptions::UNSYNCED)?;
        }
        appended.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Runs the workload in a new directory for so many seconds, and prints where the memory is.
pub fn run(dir: &Path, seconds: u64) -> Result<()> {
    let fs = HostFs::new(HostOptions::new(dir))?;
    let env = Env::builder(fs).trims_memory(true).build();
    let engine = LogEngine::open(&env, "logs", LogEngineOptions::default())?;
    let open = |n| engine.open_or_create(&format!("log-{n}"), LogOptions::default());
    let logs: Vec<Log> = (0..LOGS).map(open).collect::<Result<_>>()?;
    line(Some(&env), "opened");
    let begun = counting::live();
    let (stop, appended) = (AtomicBool::new(false), AtomicU64::new(0));
    let show = |what: &str| {
        let stats = engine.stats();
        let (live, index) = (stats.live_bytes as f64, env.ledger().usage().index);
        let allocated = counting::live().saturating_sub(begun);
        line(Some(&env), what);
        println!(
            "{:>24}  {} appends; {} records, {:.1} MB live; of that: indexes {:.3} %, ledger {:.3} %, allocated since the open {:.3} %",
            "",
            appended.load(Relaxed),
            stats.records,
            live / 1e6,
            stats.index_bytes as f64 / live * 100.0,
            index as f64 / live * 100.0,
            allocated as f64 / live * 100.0
        );
    };
    basalt::env::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (logs, stop, appended) = (&logs, &stop, &appended);
            scope.spawn(move || append(logs, thread, stop, appended).expect("append"));
        }
        for s in 1..=seconds {
            env.clock().sleep(Duration::from_secs(1));
            if s % 5 == 0 {
                show(&format!("{s} s"));
            }
        }
        stop.store(true, Relaxed);
    });
    show("worked");
    counting::report();
    env.clock().sleep(Duration::from_secs(3));
    show("rested");
    engine.close()?;
    drop((logs, engine));
    line(Some(&env), "closed");
    Ok(())
}
