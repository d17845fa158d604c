//! The workload `restart`: one process loads a store and is killed, and the next one opens it.
//!
//! The first process puts every key, syncs the last put, says on standard output that it is ready,
//! and waits. The comparison then kills it with `SIGKILL`, so that the engine closes nothing. A
//! synced put covers all puts before it, so every key was acknowledged and must be there. The
//! second process times the open and the first get, and then reads every key.

use super::run::{ORDER, Order, Run, merge};
use super::{page_metrics, same_program};
use crate::Stop;
use crate::counters::{Process, peak_rss, reset_peak_rss};
use crate::data::Data;
use crate::drive::{Driven, Group, Presence, Worker};
use crate::engine::{self, Budget, Engine, Log};
use crate::report::round;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;

/// Bytes of the system log at which the engine `tree` takes a system checkpoint during `restart`,
/// if no flag sets them. No run reaches them, so the open replays the whole system log.
pub(super) const NO_CHECKPOINT: u64 = 1 << 50;
/// The number of the signal `SIGKILL`.
const KILL: i32 = 9;

impl Run<'_> {
    /// Puts every key, reports that the store is loaded, and waits to be killed. Returns only if
    /// the comparison ends first.
    pub(super) fn load_and_wait(&self, engine: &Arc<dyn Engine>) -> Result<Value, Stop> {
        let start = self.clock.now();
        let groups = self.order.kind.groups(self.asked);
        let loaded = self.drive(engine, 1, &groups, None)?;
        // The last put is synced, and so are all puts before it.
        let last = Group {
            threads: 1,
            ops: 1,
            write_rate: 0,
            op: Arc::new(|w: &mut Worker, _| w.put(last_key(&w.data), Log::Synced)),
        };
        let synced = self.drive(engine, 2, &[last], None)?;
        let stats = engine.stats();
        let put_bytes =
            |driven: &[Driven]| -> u64 { driven.iter().map(|d| d.tally.write_bytes).sum() };
        let ready = json!({
            "load_seconds": round((self.clock.now() - start).as_secs_f64()),
            "put_bytes": put_bytes(&loaded) + put_bytes(&synced),
            "replay_bytes": stats.memtable_bytes,
            "log_space_bytes": stats.log_bytes,
            "system_log_bytes_at_crash": stats.pages.as_ref().map(|p| p.system_log_bytes),
            "system_checkpoints_before_crash": stats.pages.as_ref().map(|p| p.system_checkpoints),
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{ready}")
            .and_then(|()| out.flush())
            .map_err(|e| Stop::new(format!("cannot report the loaded store: {e}")))?;
        // Standard input ends when the comparison ends. So no process stays behind it.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        Err(Stop::new(
            "the comparison ended before it killed this process",
        ))
    }

    /// Opens the store of a killed process. Returns the time until the first get, after every key
    /// was read.
    pub(super) fn restart(&self, budget: &Budget) -> Result<Value, Stop> {
        let order = self.order;
        reset_peak_rss();
        let (process, start) = (Process::now(), self.clock.now());
        let engine = engine::open(
            order.engine,
            &self.asked.args.common.dir,
            &order.store,
            budget,
        )?;
        let opened = self.clock.now();
        self.get_last(&engine)?;
        let found = self.clock.now();
        let (counted, peak) = (Process::now().since(&process), peak_rss());
        let stats = engine.stats();
        let all = Group {
            threads: 2,
            ops: self.data.keys(),
            write_rate: 0,
            op: Arc::new(|w: &mut Worker, n| w.get(w.data.shuffled(n), Presence::Certain)),
        };
        let verified = self.drive(&engine, 4, &[all], None)?;
        let seconds = (found - start).as_secs_f64();
        let mut row = json!({
            "workload": order.kind.word(), "engine": engine.name(), "threads": order.threads, "pair": order.pair,
            "ops": 1, "seconds": round(seconds), "ops_per_s": round(1.0 / seconds.max(1e-9)),
            "restart_seconds": round(seconds),
            "open_seconds": round((opened - start).as_secs_f64()),
            "verified_keys": verified.iter().map(|d| d.tally.found).sum::<u64>(),
            "device_read_bytes": counted.read_bytes,
            "device_write_bytes": counted.write_bytes,
            "cpu_seconds": counted.cpu_ms as f64 / 1e3,
            "peak_rss_bytes": peak,
            "configuration": engine.configuration(),
        });
        merge(&mut row, page_metrics(None, stats.pages.as_ref(), 0));
        engine.close()?;
        Ok(row)
    }

    /// Reads the key of the last put, which was acknowledged as synced.
    fn get_last(&self, engine: &Arc<dyn Engine>) -> Result<(), Stop> {
        let n = last_key(&self.data);
        let (mut key, mut right) = (Vec::new(), false);
        self.data.key(n, &mut key);
        engine.get(&key, &mut |value| right = self.data.is_value_of(n, value))?;
        match right {
            true => Ok(()),
            false => Err(Stop::new(format!(
                "key number {n} was acknowledged as synced and is lost after a crash: this is a bug, \
                 keep the data with --keep and report it"
            ))),
        }
    }
}

/// Returns the number of the key that is put last.
fn last_key(data: &Data) -> u64 {
    data.shuffled(data.keys() - 1)
}

/// Runs the process that loads the store of `order`, and kills it when the store is loaded. Returns
/// the object that the process printed.
pub(super) fn load_and_kill(order: &Order) -> Result<Value, Stop> {
    let failed = |what: String| {
        Stop::new(format!(
            "the load of {} before its restart failed: {what}",
            order.engine.word()
        ))
    };
    let mut child = same_program(ORDER, &order.text())
        .and_then(|mut command| command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn())
        .map_err(|e| failed(e.to_string()))?;
    let mut line = String::new();
    let read = match child.stdout.take() {
        Some(out) => BufReader::new(out).read_line(&mut line),
        None => Ok(0),
    };
    // The process is killed in any case, so that none stays behind after an error.
    let killed = child.kill().and_then(|()| child.wait());
    let status = read.and(killed).map_err(|e| failed(e.to_string()))?;
    if line.is_empty() || status.signal() != Some(KILL) {
        return Err(failed(format!("{status} (its reason is above)")));
    }
    serde_json::from_str(&line).map_err(|e| failed(e.to_string()))
}
