//! Tests of the workloads on logs and of their checks, with an engine in memory that gives wrong
//! answers on request.

use super::run::LogOrder;
use super::store::{LogEngineName, LogStore};
use super::verify;
use super::workload::{Case, Holes, LogWorker, LogWorkload, Logs};
use crate::Stop;
use crate::args::Args;
use crate::args::Command;
use crate::data::Data;
use crate::drive::{Tally, run_groups};
use crate::engine::Read;
use crate::progress::Progress;
use crate::sizes::{Sizes, SizesAsked};
use basalt::env::sync::Mutex;
use basalt::env::{Clock, Random};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// One bit of a record is wrong.
    Bit,
    /// A record of another log comes back.
    OtherLog,
    /// The last record is missing.
    LastIsMissing,
    /// A trim does nothing.
    NoTrim,
    /// A removal of a range does nothing.
    NoRemoval,
    /// An iteration leaves out a record.
    Skip,
    /// A gap is missing.
    NoGap,
}

/// Logs in maps.
#[derive(Default)]
struct Memory {
    logs: Mutex<BTreeMap<u64, BTreeMap<u64, Vec<u8>>>>,
    wrong: Option<Wrong>,
}

impl Memory {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Returns what is shown as the record of an LSN.
    fn shown(&self, log: u64, lsn: u64) -> Option<Vec<u8>> {
        let logs = self.logs.lock();
        let log = log + u64::from(self.is(Wrong::OtherLog));
        let mut record = logs.get(&log)?.get(&lsn)?.clone();
        if self.is(Wrong::Bit) {
            let last = record.len() - 1;
            record[last] ^= 1;
        }
        Some(record)
    }
}

impl LogStore for Memory {
    fn name(&self) -> String {
        "memory".into()
    }
    fn configuration(&self) -> Value {
        json!({})
    }
    fn append(&self, log: u64, lsn: u64, data: &[u8], _synced: bool) -> Result<(), Stop> {
        let before = (self.logs.lock().entry(log).or_default()).insert(lsn, data.to_vec());
        assert_eq!(before, None, "LSN {lsn} of log {log} is appended once");
        Ok(())
    }
    fn append_batch(&self, log: u64, first: u64, records: &[Vec<u8>]) -> Result<(), Stop> {
        (first..)
            .zip(records)
            .try_for_each(|(lsn, r)| self.append(log, lsn, r, false))
    }
    fn trim(&self, log: u64, from: u64, up_to: u64) -> Result<(), Stop> {
        if !self.is(Wrong::NoTrim) {
            let mut logs = self.logs.lock();
            let log = logs.entry(log).or_default();
            assert!(log.keys().next().is_none_or(|first| *first >= from));
            *log = log.split_off(&(up_to + 1));
        }
        Ok(())
    }
    fn remove(&self, log: u64, range: RangeInclusive<u64>) -> Result<bool, Stop> {
        if !self.is(Wrong::NoRemoval) {
            let mut logs = self.logs.lock();
            logs.entry(log)
                .or_default()
                .retain(|lsn, _| !range.contains(lsn));
        }
        Ok(true)
    }
    fn read(&self, log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.shown(log, lsn);
        if let Some(record) = &found {
            show(record);
        }
        Ok(found.is_some())
    }
    fn iterate(&self, log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop> {
        let lsns: Vec<u64> =
            (self.logs.lock().get(&log)).map_or_else(Vec::new, |l| l.keys().copied().collect());
        for (i, lsn) in lsns.into_iter().enumerate() {
            if self.is(Wrong::Skip) && i == 1 {
                continue;
            }
            if let Some(record) = self.shown(log, lsn) {
                show(lsn, &record);
            }
        }
        Ok(())
    }
    fn bounds(&self, log: u64) -> Result<Option<(u64, u64)>, Stop> {
        let logs = self.logs.lock();
        let Some(log) = logs.get(&log) else {
            return Ok(None);
        };
        let last = match self.is(Wrong::LastIsMissing) {
            true => log.keys().nth_back(1),
            false => log.keys().next_back(),
        };
        Ok(log.keys().next().copied().zip(last.copied()))
    }
    fn gaps(&self, log: u64, range: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        let logs = self.logs.lock();
        let (mut out, mut next) = (Vec::new(), *range.start());
        for lsn in logs.get(&log).into_iter().flat_map(BTreeMap::keys) {
            if *lsn > next {
                out.push(next..=lsn - 1);
            }
            next = lsn + 1;
        }
        if self.is(Wrong::NoGap) {
            out.pop();
        }
        Ok(out)
    }
    fn index_bytes(&self) -> Option<u64> {
        None
    }
    fn reads(&self) -> Read {
        Read::Hidden
    }
    fn close(&self) -> Result<(), Stop> {
        Ok(())
    }
}

/// Parses a command line of `log`.
fn parsed(words: &str) -> super::LogArgs {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = ["basalt-bench", "log"].into_iter().chain(words.split(' '));
    match Line::parse_from(words).args.command {
        Command::Log(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn worker(store: &Arc<Memory>, logs: &Arc<Logs>, thread: u64, threads: u64) -> LogWorker {
    let data = Data::new(7, 1 << 20, 8, 300, 0.0)
        .with_sizes(Sizes::new(&SizesAsked::Uniform(8, 300), 300).unwrap());
    LogWorker {
        random: Random::from_seed(thread),
        data,
        store: store.clone(),
        logs: logs.clone(),
        thread,
        threads,
        tally: Tally::default(),
        record: Vec::new(),
        batch: Vec::new(),
        holes: Holes::new(300),
    }
}

/// Runs a workload on an engine in memory, and then the checks.
fn ran(words: &str, wrong: Option<Wrong>) -> Result<(Arc<Memory>, Arc<Logs>), Stop> {
    let args = parsed(words);
    let case = args.cases().remove(0);
    let store = Arc::new(Memory {
        wrong,
        ..Memory::default()
    });
    let logs = Arc::new(Logs::new(case.logs(&args)));
    let groups = case.groups(&args, &Clock::system());
    let make = |g: u64, t: u64| {
        let threads = groups[g as usize].threads as u64;
        worker(&store, &logs, t, threads)
    };
    run_groups(&Clock::system(), &Progress::silent(), &groups, None, &make)?;
    verify::check(&mut worker(&store, &logs, 0, 1))?;
    Ok((store, logs))
}

const RUNS: [&str; 4] = [
    "one-writer --ops 3000",
    "many-writers --threads 5 --ops 3000",
    "many-logs --threads 1 --logs 9 --behind 20 --ops 4000",
    "stuck-log --threads 1 --logs 9 --behind 20 --ops 6000",
];

#[test]
fn every_workload_counts_the_live_bytes_of_its_logs() {
    for words in RUNS {
        let (store, logs) = ran(words, None).unwrap();
        let all = store.logs.lock();
        let live: usize = all.values().flat_map(BTreeMap::values).map(Vec::len).sum();
        assert_eq!(logs.live_bytes.load(Relaxed), live as u64, "{words}");
        let appended: u64 = (0..logs.len())
            .map(|log| logs.log(log).next.load(Relaxed) - 1)
            .sum();
        let asked = words.rsplit(' ').next().unwrap();
        assert_eq!(appended.to_string(), asked, "{words}");
    }
}

#[test]
fn logs_are_trimmed_as_the_workload_says() {
    let (store, _) = ran(RUNS[2], None).unwrap();
    for (log, records) in store.logs.lock().iter() {
        assert!(
            (20..36).contains(&records.len()),
            "{log}: {}",
            records.len()
        );
    }
    let (store, logs) = ran(RUNS[3], None).unwrap();
    let all = store.logs.lock();
    let appended = logs.log(0).next.load(Relaxed) - 1;
    assert_eq!(all[&0].len() as u64, appended, "log 0 is never trimmed");
    let lsns: Vec<u64> = all[&1].keys().copied().collect();
    assert_eq!(lsns[0], 1);
    let holes = lsns.windows(2).filter(|w| w[1] != w[0] + 1).count();
    assert!(holes > 5, "log 1 has {holes} holes");
    assert!(all[&2].len() < 36);
}

/// The checks notice each kind of wrong answer in each workload in which it can occur.
#[test]
fn a_wrong_answer_fails_the_run() {
    let cases = [
        (Wrong::Bit, &RUNS[..], "LSN"),
        (Wrong::OtherLog, &RUNS[..], "LSN"),
        (Wrong::LastIsMissing, &RUNS[..], "were appended"),
        (Wrong::NoTrim, &RUNS[2..], "were appended"),
        (Wrong::NoRemoval, &RUNS[3..], "LSN"),
        (Wrong::Skip, &RUNS[..], "iteration"),
    ];
    for (wrong, runs, says) in cases {
        for words in runs {
            let Err(stop) = ran(words, Some(wrong)) else {
                panic!("{words} does not notice {wrong:?}");
            };
            let sentence = stop.sentence;
            assert!(sentence.contains(says), "{words}, {wrong:?}: {sentence}");
            assert!(sentence.contains("--seed 7"), "{sentence}");
        }
    }
}

#[test]
fn gaps_are_compared_with_the_holes_that_were_made() {
    for (wrong, right) in [(None, true), (Some(Wrong::NoGap), false)] {
        let store = Arc::new(Memory {
            wrong,
            ..Memory::default()
        });
        let logs = Arc::new(Logs::new(1));
        let mut filling = worker(&store, &logs, 0, 1);
        filling.fill_with_holes().unwrap();
        let holes = filling.holes.all();
        assert_eq!(holes.len(), 10);
        let records: u64 = holes.iter().map(|h| h.end() - h.start() + 1).sum();
        let there = store.logs.lock()[&0].len() as u64;
        assert_eq!(there + records, filling.holes.lsns);
        let args = parsed("gaps --ops 2");
        let groups = args.cases()[0].groups(&args, &Clock::system());
        let ended = run_groups(
            &Clock::system(),
            &Progress::silent(),
            &groups,
            None,
            &|_, t| worker(&store, &logs, t, 1),
        );
        assert_eq!(ended.is_ok(), right, "{wrong:?}");
    }
}

#[test]
fn flags_make_the_cases_of_the_table() {
    let names = |words: &str| -> Vec<(String, usize)> {
        let cases = parsed(words).cases();
        cases.iter().map(|c| (c.name(), c.threads)).collect()
    };
    let is = |words: &str, expected: &[(&str, usize)]| {
        let expected: Vec<_> = (expected.iter())
            .map(|(n, t)| (n.to_string(), *t))
            .collect();
        assert_eq!(names(words), expected, "{words}");
    };
    is(
        "one-writer many-writers --sync on,off",
        &[
            ("one-writer", 1),
            ("one-writer-unsynced", 1),
            ("many-writers", 64),
            ("many-writers-unsynced", 4),
        ],
    );
    is("read gaps", &[("read", 1), ("iterate", 1), ("gaps", 1)]);
    is("many-logs stuck-log", &[("many-logs", 2), ("stuck-log", 2)]);
    is("many-logs --sync on", &[("many-logs-synced", 2)]);
    is(
        "one-writer many-writers --threads 3,7",
        &[("one-writer", 1), ("many-writers", 3), ("many-writers", 7)],
    );
    let sizes = |words: &str| {
        let args = parsed(words);
        args.record_size(&args.cases()[0])
    };
    assert_eq!(sizes("one-writer"), 1024);
    assert_eq!(sizes("one-writer --sync off"), 256);
    assert_eq!(sizes("many-logs"), 4096);
    assert_eq!(sizes("read --record-size 100"), 100);
    let logs = |words: &str| {
        let args = parsed(words);
        args.cases()[0].logs(&args)
    };
    assert_eq!(logs("many-logs --scale 0.01"), 10);
    assert_eq!(logs("stuck-log --scale 0.0001 --threads 6"), 8);
    assert_eq!(logs("recover"), 16);
}

#[test]
fn orders_name_the_case() {
    let args = parsed("many-logs --sync on --threads 3");
    let order = LogOrder {
        engine: LogEngineName::Basalt,
        case: args.cases()[0],
        store: "x".into(),
        fill: super::run::FillOrder::Measure,
        pair: 0,
        label: String::new(),
    };
    let case = Case {
        workload: LogWorkload::ManyLogs,
        synced: true,
        threads: 3,
    };
    assert_eq!(LogOrder::parse(&order.text()).unwrap().case, case);
}
