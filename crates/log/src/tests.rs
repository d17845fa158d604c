//! The log engine over a simulated disk: a model, power cuts at every change of the disk, damage.

mod closing;
mod concurrent;
mod copy;
mod crash;
mod damage;
mod failed_calls;
mod faults;
mod formats;
mod full_disk;
mod integrity;
mod interrupted_repair;
mod limits;
mod lost_edits;
mod memory;
mod names;
mod page_reads;
mod promises;
mod read_ahead;
mod tails;

use crate::catalog::Role;
use crate::{Duplicates, Log, LogBatch, LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use basalt_env::{Env, Random};
use basalt_fs::{ErrorKind, FileSystem, Result};
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "logs";
const UNSYNCED: &WriteOptions = &WriteOptions::UNSYNCED;
const SYNC: &WriteOptions = &WriteOptions::SYNC;

fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

/// Small files, so that short tests use several, and make checkpoints.
fn options() -> LogEngineOptions {
    LogEngineOptions::default().file_bytes(8 << 10)
}

fn open(fs: &Arc<SimFs>) -> Result<LogEngine> {
    LogEngine::open(&Env::for_tests(fs.clone(), fs.op_count()), DIR, options())
}

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    /// Appends to logs, by the logs' indexes.
    Append(Vec<(usize, u64, Vec<u8>)>, bool),
    Trim(usize, u64),
    Remove(usize, RangeInclusive<u64>),
    /// Deletes a log, and creates one with its name.
    Replace(usize),
    Sync,
    /// Closes and opens the store.
    Reopen,
}

/// The records of each log.
type Content = Vec<BTreeMap<u64, Vec<u8>>>;

/// What the logs of a history should have.
#[derive(Debug, Clone)]
struct Model {
    logs: Content,
    trimmed: Vec<Option<u64>>,
}

const LOGS: usize = 3;

fn log_name(i: usize) -> String {
    format!("log/{i}")
}

/// The last log replaces duplicates.
fn log_options(i: usize) -> LogOptions {
    let duplicates = match i == LOGS - 1 {
        true => Duplicates::Replace,
        false => Duplicates::Refuse,
    };
    LogOptions::default().duplicates(duplicates)
}

impl Model {
    fn new() -> Model {
        Model {
            logs: vec![BTreeMap::new(); LOGS],
            trimmed: vec![None; LOGS],
        }
    }

    /// Returns the error kind with which a step must fail.
    fn refusal(&self, step: &Step) -> Option<ErrorKind> {
        let Step::Append(entries, _) = step else {
            return None;
        };
        let mut seen = Vec::new();
        for (log, lsn, _) in entries {
            if self.trimmed[*log].is_some_and(|trimmed| *lsn <= trimmed) {
                return Some(ErrorKind::InvalidArgument);
            }
            let there = self.logs[*log].contains_key(lsn) || seen.contains(&(*log, *lsn));
            if there && log_options(*log).duplicates == Duplicates::Refuse {
                return Some(ErrorKind::AlreadyExists);
            }
            seen.push((*log, *lsn));
        }
        None
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Append(entries, _) => {
                for (log, lsn, data) in entries {
                    if self.trimmed[*log].is_none_or(|trimmed| *lsn > trimmed) {
                        self.logs[*log].insert(*lsn, data.clone());
                    }
                }
            }
            Step::Trim(log, up_to) => {
                self.trimmed[*log] = self.trimmed[*log].max(Some(*up_to));
                self.logs[*log].retain(|lsn, _| lsn > up_to);
            }
            Step::Remove(log, range) => self.logs[*log].retain(|lsn, _| !range.contains(lsn)),
            Step::Replace(log) => {
                self.logs[*log].clear();
                self.trimmed[*log] = None;
            }
            Step::Sync | Step::Reopen => {}
        }
    }
}

/// Returns random steps, each with what comes before it in mind.
fn history(random: &Random, count: usize) -> Vec<Step> {
    let mut model = Model::new();
    let mut steps = Vec::new();
    for _ in 0..count {
        let log = random.below(LOGS as u64) as usize;
        let ends = |log: usize| {
            let lsns = &model.logs[log];
            let end = |lsn: Option<&u64>| lsn.copied().unwrap_or(10);
            (end(lsns.keys().next()), end(lsns.keys().next_back()))
        };
        let some = |log: usize| {
            let (first, last) = ends(log);
            first.saturating_sub(3) + random.below(last - first + 6)
        };
        let step = match random.below(24) {
            0 => Step::Trim(log, some(log)),
            1 => Step::Remove(log, some(log)..=u64::MAX - 1),
            2 => {
                let from = some(log);
                Step::Remove(log, from..=from + random.below(5))
            }
            3 => Step::Sync,
            4 if random.one_in(3) => Step::Reopen,
            5 if random.one_in(4) => Step::Replace(log),
            _ => {
                let mut next: Vec<u64> = (0..LOGS).map(|log| ends(log).1).collect();
                let many = random.one_in(6);
                let n = if many { 30 } else { 0 } + 1 + random.below(4);
                let entries = (0..n).map(|_| {
                    let log = random.below(LOGS as u64) as usize;
                    next[log] += 1 + if random.one_in(10) {
                        random.below(20)
                    } else {
                        0
                    };
                    let lsn = match random.one_in(9) {
                        true => some(log),
                        false => next[log],
                    };
                    let len = match random.below(12) {
                        _ if many => random.below(300),
                        0 => 0,
                        1 => random.below(6000),
                        _ => random.below(200),
                    };
                    let fill = random.next_u64() as u8;
                    (
                        log,
                        lsn,
                        (0..len).map(|i| fill.wrapping_add(i as u8)).collect(),
                    )
                });
                Step::Append(entries.collect(), random.one_in(3))
            }
        };
        if model.refusal(&step).is_none() {
            model.apply(&step);
        }
        steps.push(step);
    }
    steps
}

/// What stores were made of, summed over all that were looked at.
#[derive(Debug, Default)]
struct Structure {
    pages: u64,
    files: u64,
    moved: u64,
    checkpoints: u64,
}

/// An open store of a history.
struct Store {
    fs: Arc<SimFs>,
    env: Env,
    engine: LogEngine,
    logs: Vec<Log>,
    /// Background jobs run after every so many steps.
    job_pause: usize,
    steps: usize,
}

impl Store {
    fn open(fs: &Arc<SimFs>) -> Result<Store> {
        // Each run of a program draws other random numbers.
        Store::open_on(fs, fs.clone(), fs.op_count())
    }

    /// Opens a store on a filesystem over a disk.
    fn open_on(disk: &Arc<SimFs>, fs: Arc<dyn FileSystem>, seed: u64) -> Result<Store> {
        let env = Env::for_tests(fs, seed);
        let engine = LogEngine::open(&env, DIR, options())?;
        // No job has run, so the counts are those of the recovery.
        assert_eq!(engine.miscounts(), [""; 0]);
        let logs = (0..LOGS)
            .map(|i| engine.open_or_create(&log_name(i), log_options(i)))
            .collect::<Result<_>>()?;
        Ok(Store {
            fs: disk.clone(),
            env,
            engine,
            logs,
            job_pause: 1,
            steps: 0,
        })
    }

    /// Runs a step, and the jobs that it leads to if their time has come.
    fn run(&mut self, step: &Step) -> Result<()> {
        let done = self.run_one(step);
        self.steps += 1;
        if self.steps.is_multiple_of(self.job_pause) {
            while self.env.jobs().step() {}
        }
        done
    }

    fn run_one(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Append(entries, sync) => {
                let mut batch = LogBatch::new();
                for (log, lsn, data) in entries {
                    batch.append(&self.logs[*log], *lsn, data)?;
                }
                let options = WriteOptions::synced(*sync);
                match entries.len() {
                    // Both ways of an append, by turns.
                    1 => {
                        let (log, lsn, data) = &entries[0];
                        self.logs[*log].append(*lsn, data, &options)
                    }
                    2 => self.engine.submit(batch, &options)?.wait(),
                    _ => self.engine.write(batch, &options),
                }
            }
            Step::Trim(log, up_to) => self.logs[*log].trim(*up_to, SYNC),
            Step::Remove(log, range) => match *range.end() == u64::MAX - 1 {
                true => self.logs[*log].truncate_suffix(*range.start()),
                false => self.logs[*log].remove(range.clone()),
            },
            Step::Replace(log) => {
                let name = log_name(*log);
                match self.engine.delete(&name) {
                    // A call that failed before has deleted it.
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    deleted => deleted?,
                }
                self.logs[*log] = self.engine.create(&name, log_options(*log))?;
                Ok(())
            }
            Step::Sync => self.engine.sync(),
            Step::Reopen => {
                self.engine.close()?;
                *self = Store {
                    job_pause: self.job_pause,
                    ..Store::open(&self.fs.clone())?
                };
                Ok(())
            }
        }
    }

    fn pass_time(&self, time: Duration) {
        let clock = self.env.clock().as_manual().expect("tests set the clock");
        clock.advance(time);
    }

    /// Adds the numbers of pages and of files with moved records to `seen`.
    fn note_structure(&self, seen: &mut Structure) {
        let pages = self
            .logs
            .iter()
            .map(|log| log.state().lock().index.pages() as u64);
        seen.pages += pages.sum::<u64>();
        let files = self.engine.engine().logs.all();
        seen.files += files.len() as u64;
        seen.moved += files.iter().filter(|f| f.role == Role::Moved).count() as u64;
        seen.checkpoints += u64::from(self.engine.engine().logs.checkpoint().is_some());
    }

    fn content(&self) -> Result<Content> {
        let content = |log: &Log| {
            log.iter(0)
                .map(|item| item.map(|(lsn, data)| (lsn, data.to_vec())))
                .collect::<Result<BTreeMap<_, _>>>()
        };
        self.logs.iter().map(content).collect()
    }
}

fn env(fs: &Arc<SimFs>) -> Env {
    Env::for_tests(fs.clone(), fs.op_count())
}

/// Compares every way to read with the model.
fn check_reads(store: &Store, model: &Model, random: &Random) {
    assert_eq!(store.content().unwrap(), model.logs);
    for (log, lsns) in store.logs.iter().zip(&model.logs) {
        assert_eq!(log.first(), lsns.keys().next().copied());
        assert_eq!(log.last(), lsns.keys().next_back().copied());
        assert_eq!(log.count(), lsns.len() as u64);
        let lsn = random.below(log.last().unwrap_or(5) + 3);
        assert_eq!(
            log.read(lsn).unwrap().as_deref(),
            lsns.get(&lsn).map(Vec::as_slice)
        );
        let asked: Vec<u64> = (0..100)
            .map(|_| random.below(log.last().unwrap_or(5) + 3))
            .collect();
        for (lsn, found) in asked.iter().zip(log.read_many(&asked)) {
            assert_eq!(found.unwrap().as_deref(), lsns.get(lsn).map(Vec::as_slice));
        }
        let back: Vec<u64> = log.iter_back(lsn).map(|item| item.unwrap().0).collect();
        assert!(back.iter().eq(lsns.range(..=lsn).rev().map(|(lsn, _)| lsn)));
        let gaps = log.gaps(0..=lsn);
        let missing: Vec<u64> = gaps.into_iter().flatten().collect();
        assert!(
            missing
                .into_iter()
                .eq((0..=lsn).filter(|l| !lsns.contains_key(l)))
        );
    }
}
