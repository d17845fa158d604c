//! The workloads on logs: what their threads do, and the state that the threads share.

use super::args::LogArgs;
use super::run::Prepared;
use super::store::{LogEngineName, LogStore};
use crate::Stop;
use crate::data::Data;
use crate::drive::{Group, GroupWorker, Tally};
use basalt::env::sync::Mutex;
use basalt::env::{Clock, Random};
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The workloads of `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogWorkload {
    /// Append to one log from one thread
    OneWriter,
    /// Append to many logs, from a thread for each
    ManyWriters,
    /// Append to random logs of a thousand, and trim each a hundred records behind
    ManyLogs,
    /// The same, with one log that is never trimmed and one that is trimmed out of order
    StuckLog,
    /// Read random records of a filled, reopened store, then iterate over its logs from the start
    Read,
    /// Iterate over the logs of a filled, reopened store from the start
    #[value(skip)]
    Iterate,
    /// Open a filled store that was not closed, until the program knows its logs (RocksDB: open and
    /// scan)
    Recover,
    /// List the gaps of a log with ten million LSNs and a thousand holes
    Gaps,
}

/// Records of a batch when a store is filled.
const BATCH: u64 = 64;
/// Bytes that writers keep in all their logs together. Older records are trimmed.
const KEPT: u64 = 64 << 20;
/// Records above `--behind` at which a writer trims its log.
const TRIM_STEP: u64 = 16;
/// LSNs that are removed at once in the log that is trimmed out of order.
const BLOCK: u64 = 8;
/// Blocks behind the newest one at which an odd block is removed, and an even one.
const REMOVED_BEHIND: [u64; 2] = [4, 32];
/// The log that is never trimmed, and the one that is trimmed out of order.
const STUCK: u64 = 0;
const OUT_OF_ORDER: u64 = 1;
/// Time between two trims of the logs of writers.
const TRIM_EVERY: Duration = Duration::from_millis(100);

impl LogWorkload {
    /// Returns the name on the command line.
    pub fn word(self) -> String {
        match self.to_possible_value() {
            Some(value) => value.get_name().to_string(),
            None => "iterate".into(),
        }
    }

    /// Parses the text of [`LogWorkload::word`].
    pub(super) fn parse(word: &str) -> Result<LogWorkload, String> {
        match word {
            "iterate" => Ok(LogWorkload::Iterate),
            word => LogWorkload::from_str(word, true),
        }
    }

    /// Returns true if threads append, each to logs of its own, and a thread beside them trims.
    pub(super) fn is_of_writers(self) -> bool {
        matches!(self, LogWorkload::OneWriter | LogWorkload::ManyWriters)
    }

    /// Returns true if threads trim the logs that they append to.
    pub(super) fn trims(self) -> bool {
        matches!(self, LogWorkload::ManyLogs | LogWorkload::StuckLog)
    }

    /// Returns true if threads append.
    pub(super) fn appends(self) -> bool {
        self.is_of_writers() || self.trims()
    }

    /// Returns true if the number of threads can be chosen.
    pub(super) fn has_threads(self) -> bool {
        self.trims() || matches!(self, LogWorkload::ManyWriters | LogWorkload::Read)
    }

    /// Returns the number of threads if no flag sets it.
    pub(super) fn threads(self, synced: bool) -> usize {
        match self {
            LogWorkload::ManyWriters if synced => 64,
            LogWorkload::ManyWriters => 4,
            LogWorkload::ManyLogs | LogWorkload::StuckLog => 2,
            _ => 1,
        }
    }

    /// Returns the content of the filled store that the workload runs on, if it needs one.
    pub(super) fn prepared(self) -> Option<Prepared> {
        match self {
            LogWorkload::Read | LogWorkload::Iterate => Some(Prepared::Closed),
            LogWorkload::Recover => Some(Prepared::Crashed),
            LogWorkload::Gaps => Some(Prepared::Gaps),
            _ => None,
        }
    }
}

/// A workload with one kind of append and one number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The workload.
    pub workload: LogWorkload,
    /// True if each append survives a power cut when it returns.
    pub synced: bool,
    /// Threads of the first group.
    pub threads: usize,
}

impl Case {
    /// Returns the name in reports.
    pub(super) fn name(&self) -> String {
        let unusual = match (self.workload.is_of_writers(), self.workload.trims()) {
            (true, _) if !self.synced => "-unsynced",
            (_, true) if self.synced => "-synced",
            _ => "",
        };
        format!("{}{unusual}", self.workload.word())
    }

    /// Returns the number of logs.
    pub(super) fn logs(&self, args: &LogArgs) -> u64 {
        match self.workload {
            LogWorkload::ManyWriters => self.threads as u64,
            LogWorkload::ManyLogs | LogWorkload::StuckLog => {
                let least = 2 + self.threads as u64;
                args.scaled(args.logs.unwrap_or(1000), least)
            }
            LogWorkload::Read | LogWorkload::Iterate | LogWorkload::Recover => {
                args.logs.unwrap_or(16)
            }
            LogWorkload::OneWriter | LogWorkload::Gaps => 1,
        }
    }

    /// Returns the reason if an engine cannot run the case.
    pub(super) fn check_engine(&self, engine: LogEngineName, args: &LogArgs) -> Result<(), Stop> {
        let name = self.name();
        let logs = self.logs(args);
        match engine {
            LogEngineName::RaftLog if logs > 1 => Err(Stop::new(format!(
                "raft-log keeps one log, and {name} has {logs}; leave one of the two out, or set --logs 1 for read and recover"
            ))),
            LogEngineName::RaftLog | LogEngineName::RaftEngine
                if self.workload == LogWorkload::Gaps =>
            {
                Err(Stop::new(format!(
                    "{} keeps no log with gaps; leave it out of {name}",
                    engine.word()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns what one thread does again and again, and what a thread beside it does.
    pub(super) fn groups(&self, args: &LogArgs, clock: &Clock) -> Vec<Group<LogWorker>> {
        let synced = self.synced;
        let behind = args.behind;
        let one_by_one = |op| Group {
            threads: self.threads,
            ops: args.ops.unwrap_or(u64::MAX),
            write_rate: 0,
            op,
        };
        let lead: Group<LogWorker> = match self.workload {
            LogWorkload::OneWriter | LogWorkload::ManyWriters => {
                one_by_one(Arc::new(move |w: &mut LogWorker, _| {
                    w.append(w.thread, synced)
                }))
            }
            LogWorkload::ManyLogs => one_by_one(Arc::new(move |w: &mut LogWorker, _| {
                let log = w.own_log();
                w.append(log, synced)?;
                w.trim_behind(log, behind)
            })),
            LogWorkload::StuckLog => one_by_one(Arc::new(move |w: &mut LogWorker, _| {
                let log = w.own_log();
                w.append(log, synced)?;
                match log {
                    STUCK => Ok(()),
                    OUT_OF_ORDER => w.remove_behind(log),
                    _ => w.trim_behind(log, behind),
                }
            })),
            LogWorkload::Read => one_by_one(Arc::new(|w: &mut LogWorker, _| w.read_random())),
            LogWorkload::Iterate => Group {
                threads: 1,
                ops: self.logs(args),
                write_rate: 0,
                op: Arc::new(|w: &mut LogWorker, log| w.iterate(log)),
            },
            LogWorkload::Gaps => Group {
                threads: 1,
                ops: args.ops.unwrap_or(20),
                write_rate: 0,
                op: Arc::new(|w: &mut LogWorker, _| w.gaps()),
            },
            LogWorkload::Recover => one_by_one(Arc::new(|_: &mut LogWorker, _| Ok(()))),
        };
        let mut groups = vec![lead];
        if self.workload.appends() {
            let clock = clock.clone();
            let kept = KEPT / args.record_size(self) / self.logs(args);
            let kept = self.workload.is_of_writers().then_some(kept);
            groups.push(Group {
                threads: 1,
                ops: u64::MAX,
                write_rate: 0,
                op: Arc::new(move |w: &mut LogWorker, n| {
                    clock.sleep(TRIM_EVERY);
                    if let Some(kept) = kept {
                        for log in 0..w.logs.len() {
                            w.trim_behind(log, kept)?;
                        }
                    }
                    match n % 10 {
                        9 => w.store.maintain(),
                        _ => Ok(()),
                    }
                }),
            });
        }
        groups
    }
}

/// What a run has appended to a log and removed from it.
#[derive(Default)]
pub(super) struct LogProgress {
    /// The LSN of the next append. The first one of a log is 1.
    pub next: AtomicU64,
    /// The first LSN that was not trimmed.
    pub first: AtomicU64,
    /// Blocks that were removed out of order.
    pub removed: Mutex<BTreeSet<u64>>,
}

impl LogProgress {
    /// Returns true if the log has a record of an LSN.
    pub fn has(&self, lsn: u64) -> bool {
        let between = self.first.load(Relaxed)..self.next.load(Relaxed);
        between.contains(&lsn) && !self.removed.lock().contains(&(lsn / BLOCK))
    }
}

/// The logs of a run, as its threads share them.
pub(super) struct Logs {
    logs: Vec<LogProgress>,
    /// Bytes of the records that were appended and not removed.
    pub live_bytes: AtomicU64,
}

impl Logs {
    /// Makes empty logs.
    pub fn new(logs: u64) -> Logs {
        let empty = |_| LogProgress {
            next: AtomicU64::new(1),
            first: AtomicU64::new(1),
            removed: Mutex::default(),
        };
        Logs {
            logs: (0..logs).map(empty).collect(),
            live_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the number of logs.
    pub fn len(&self) -> u64 {
        self.logs.len() as u64
    }

    /// Returns a log.
    pub fn log(&self, log: u64) -> &LogProgress {
        &self.logs[log as usize]
    }
}

/// One thread of a workload on logs.
pub(super) struct LogWorker {
    /// Random numbers of this thread.
    pub random: Random,
    /// The records.
    pub data: Data,
    /// The engine.
    pub store: Arc<dyn LogStore>,
    /// What was appended.
    pub logs: Arc<Logs>,
    /// Number of the thread, and of all threads of the group.
    pub thread: u64,
    /// Number of threads of the group.
    pub threads: u64,
    /// Bytes and counts.
    pub tally: Tally,
    /// Memory for a record.
    pub record: Vec<u8>,
    /// Memory for the records of a batch.
    pub batch: Vec<Vec<u8>>,
    /// The content of the store for `gaps`.
    pub holes: Holes,
}

impl GroupWorker for LogWorker {
    fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl LogWorker {
    /// Appends the next record to a log.
    pub fn append(&mut self, log: u64, synced: bool) -> Result<(), Stop> {
        let progress = self.logs.log(log);
        let lsn = progress.next.load(Relaxed);
        self.data.value(lsn, log, &mut self.record);
        self.store.append(log, lsn, &self.record, synced)?;
        progress.next.store(lsn + 1, Relaxed);
        self.count(self.record.len() as u64, 1);
        Ok(())
    }

    /// Appends the next `n` records to a log in batches, unsynced.
    pub fn append_many(&mut self, log: u64, n: u64) -> Result<(), Stop> {
        let mut left = n;
        while left > 0 {
            let count = left.min(BATCH);
            let first = self.logs.log(log).next.load(Relaxed);
            self.batch.resize_with(count as usize, Vec::new);
            let mut bytes = 0;
            for (lsn, record) in (first..).zip(&mut self.batch) {
                self.data.value(lsn, log, record);
                bytes += record.len() as u64;
            }
            self.store.append_batch(log, first, &self.batch)?;
            self.logs.log(log).next.store(first + count, Relaxed);
            self.count(bytes, count);
            left -= count;
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64, records: u64) {
        self.logs.live_bytes.fetch_add(bytes, Relaxed);
        self.tally.write_bytes += bytes;
        self.tally.puts += records;
    }

    /// Returns a random log of those that this thread appends to.
    fn own_log(&mut self) -> u64 {
        let own = (self.logs.len() - self.thread).div_ceil(self.threads);
        self.random.below(own) * self.threads + self.thread
    }

    /// Trims a log if it has some more than the newest `kept` records.
    pub fn trim_behind(&mut self, log: u64, kept: u64) -> Result<(), Stop> {
        let progress = self.logs.log(log);
        let (first, next) = (progress.first.load(Relaxed), progress.next.load(Relaxed));
        if next - first < kept + TRIM_STEP {
            return Ok(());
        }
        let up_to = next - kept - 1;
        self.store.trim(log, first, up_to)?;
        progress.first.store(up_to + 1, Relaxed);
        let freed = (first..=up_to).map(|lsn| self.data.value_len(lsn) as u64);
        self.logs.live_bytes.fetch_sub(freed.sum(), Relaxed);
        Ok(())
    }

    /// Removes a block of a log out of order, if a block has just become full.
    fn remove_behind(&mut self, log: u64) -> Result<(), Stop> {
        let next = self.logs.log(log).next.load(Relaxed);
        if !next.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let full = next / BLOCK - 1;
        for (parity, behind) in [1, 0].into_iter().zip(REMOVED_BEHIND) {
            // The block with LSN 0 is never full.
            let Some(block) = full
                .checked_sub(behind)
                .filter(|b| *b > 0 && b % 2 == parity)
            else {
                continue;
            };
            let range = block * BLOCK..=block * BLOCK + BLOCK - 1;
            if self.store.remove(log, range.clone())? {
                self.logs.log(log).removed.lock().insert(block);
            }
            let freed = range.map(|lsn| self.data.value_len(lsn) as u64);
            self.logs.live_bytes.fetch_sub(freed.sum(), Relaxed);
        }
        Ok(())
    }

    /// Reads a record that must be there, and compares it.
    pub fn read(&mut self, log: u64, lsn: u64) -> Result<(), Stop> {
        let (data, mut right, mut len) = (&self.data, true, 0);
        let found = self.store.read(log, lsn, &mut |record| {
            right = data.is_value(lsn, log, record);
            len = record.len();
        })?;
        if !found || !right {
            let what = if found { "a wrong record" } else { "no record" };
            return Err(self.wrong(format!("LSN {lsn} of log {log} has {what}")));
        }
        self.tally.gets += 1;
        self.tally.found += 1;
        self.tally.read_bytes += len as u64;
        Ok(())
    }

    fn read_random(&mut self) -> Result<(), Stop> {
        let log = self.random.below(self.logs.len());
        let progress = self.logs.log(log);
        let (first, next) = (progress.first.load(Relaxed), progress.next.load(Relaxed));
        let lsn = first + self.random.below(next - first);
        self.read(log, lsn)
    }

    /// Reads all records of a log in order, compares them, and checks that none is missing.
    pub fn iterate(&mut self, log: u64) -> Result<(), Stop> {
        let progress = self.logs.log(log);
        let mut lsns = (progress.first.load(Relaxed)..progress.next.load(Relaxed))
            .filter(|lsn| progress.has(*lsn));
        let (data, mut wrong, mut bytes, mut seen) = (&self.data, None, 0, 0);
        self.store.iterate(log, &mut |lsn, record| {
            let expected = lsns.next();
            if wrong.is_none() && (expected != Some(lsn) || !data.is_value(lsn, log, record)) {
                wrong = Some((lsn, expected));
            }
            bytes += record.len() as u64;
            seen += 1;
        })?;
        let missing = lsns.next();
        if let Some((lsn, expected)) = wrong {
            return Err(self.wrong(format!(
                "an iteration over log {log} gave LSN {lsn}, where LSN {expected:?} was appended, or a wrong record"
            )));
        }
        if let Some(lsn) = missing {
            return Err(self.wrong(format!(
                "an iteration over log {log} ended before LSN {lsn}"
            )));
        }
        self.tally.entries += seen;
        self.tally.read_bytes += bytes;
        Ok(())
    }

    /// Fills the log of `gaps`.
    pub fn fill_with_holes(&mut self) -> Result<(), Stop> {
        let mut next = 1;
        for hole in self.holes.all() {
            self.append_many(0, hole.start() - next)?;
            next = hole.end() + 1;
            self.logs.log(0).next.store(next, Relaxed);
        }
        self.append_many(0, self.holes.lsns + 1 - next)
    }

    fn gaps(&mut self) -> Result<(), Stop> {
        let found = self.store.gaps(0, 1..=self.holes.lsns)?;
        if found != self.holes.all() {
            return Err(self.wrong(format!(
                "{} gaps were found, and {} were made, or at other places",
                found.len(),
                self.holes.holes
            )));
        }
        self.tally.gets += 1;
        Ok(())
    }

    /// Returns the error of a wrong answer.
    pub fn wrong(&self, what: String) -> Stop {
        Stop::new(format!(
            "{what}: this is a bug, keep the data with --keep and report it with --seed {}",
            self.data.seed()
        ))
    }
}

/// The holes in the log of `gaps`, of 1 to 5 LSNs each, at equal distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holes {
    /// The largest LSN. It has a record.
    pub lsns: u64,
    /// Number of holes.
    pub holes: u64,
}

impl Holes {
    /// Returns the holes for a number of records in the stores of other workloads.
    pub fn new(records: u64) -> Holes {
        let lsns = records.max(100) * 10;
        Holes {
            lsns,
            holes: (lsns / 10_000).max(10),
        }
    }

    /// Returns all holes in order.
    pub fn all(&self) -> Vec<std::ops::RangeInclusive<u64>> {
        let step = self.lsns / self.holes;
        let hole = |n: u64| n * step + step / 2..=n * step + step / 2 + n % 5;
        (0..self.holes).map(hole).collect()
    }
}
