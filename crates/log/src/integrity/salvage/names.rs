//! Names, options and trim points from the names file of a checkpoint, for a salvage without a
//! whole checkpoint.

use super::{KnownFile, Salvage, SalvagedLog, file_name};
use crate::catalog::CheckpointFile;
use crate::checkpoint::{self, CheckpointHead, CopiedLog, decode_copied, names_path};
use crate::integrity::report::{LogLoss, UnnamedLog};
use crate::lsn_set::LsnSet;
use basalt_fs::{ErrorKind, Result};
use basalt_records::RecordKind;
use basalt_records::salvage::{self, scan};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// The LSNs of a log as a names file has them.
pub(super) struct CopiedLsns {
    /// The largest sequence number of the appends and removals that the LSNs have.
    seq: u64,
    /// Runs of consecutive LSNs, in rising order.
    runs: Vec<RangeInclusive<u64>>,
}

impl CopiedLsns {
    fn new(seq: u64, sets: &[LsnSet]) -> CopiedLsns {
        let mut runs: Vec<_> = sets.iter().flat_map(LsnSet::runs).collect();
        runs.sort_unstable_by_key(|run| *run.start());
        CopiedLsns { seq, runs }
    }

    /// Returns true if the names file has no record with this LSN, although a record with this
    /// sequence number was appended before the file was written.
    pub fn lacks(&self, seq: u64, lsn: u64) -> bool {
        let at = self.runs.partition_point(|run| *run.end() < lsn);
        let has = self.runs.get(at).is_some_and(|run| run.contains(&lsn));
        seq <= self.seq && !has
    }

    /// Removes the LSNs of a range, if the removal came after the names file was written.
    pub fn remove(&mut self, seq: u64, range: &RangeInclusive<u64>) {
        if seq > self.seq {
            let runs = std::mem::take(&mut self.runs);
            self.runs = runs
                .into_iter()
                .flat_map(|run| without(run, range))
                .collect();
        }
    }
}

/// Returns the parts of a run outside of a range.
fn without(
    run: RangeInclusive<u64>,
    range: &RangeInclusive<u64>,
) -> impl Iterator<Item = RangeInclusive<u64>> {
    let (begin, end) = (*run.start(), *run.end());
    let is_cut = begin <= *range.end() && *range.start() <= end;
    let before = is_cut.then(|| range.start().checked_sub(1)).flatten();
    let behind = is_cut.then(|| range.end().checked_add(1)).flatten();
    let left = [
        (!is_cut).then_some(run),
        before
            .filter(|last| begin <= *last)
            .map(|last| begin..=last),
        behind
            .filter(|first| *first <= end)
            .map(|first| first..=end),
    ];
    left.into_iter().flatten()
}

/// Sorts ranges, and joins those that overlap.
fn join_overlapping(ranges: &mut Vec<RangeInclusive<u64>>) {
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut joined: Vec<RangeInclusive<u64>> = Vec::new();
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start() <= last.end() => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

/// Returns the parts of a run outside of all ranges, which are sorted and do not overlap.
fn without_all(
    run: RangeInclusive<u64>,
    ranges: &[RangeInclusive<u64>],
) -> Vec<RangeInclusive<u64>> {
    let begin = ranges.partition_point(|range| range.end() < run.start());
    let mut left = vec![run];
    for range in &ranges[begin..] {
        // Only the last part can overlap a range that comes later.
        let Some(rest) = left
            .last()
            .filter(|rest| range.start() <= rest.end())
            .cloned()
        else {
            break;
        };
        left.pop();
        left.extend(without(rest, range));
    }
    left
}

/// What a salvage knows from names files.
#[derive(Default)]
pub(super) struct CopiedNames {
    /// A log of a smaller number that the names file does not have was deleted. 0 without a whole
    /// names file.
    pub below: u64,
    /// The sequence number at which the names of the checkpoint begin: renames before it are in
    /// them. 0 if it is not known.
    pub at: u64,
    /// The first record of a whole names file.
    pub head: Option<CheckpointHead>,
    /// Name of the whole file that has the names: a checkpoint or a names file.
    pub file: Option<String>,
    /// True if a checkpoint or a names file cannot be read, so that names may be lost.
    pub lost: bool,
}

impl CopiedNames {
    /// Returns true if the records reach the replay point in the names file. Records before that
    /// point were synced, so none of them is lost.
    pub fn proves(&self, file: &KnownFile, end: u64) -> bool {
        self.head.as_ref().is_some_and(|head| {
            let start = head.start_of(file.role);
            file.number > start.file || (file.number == start.file && end >= start.offset)
        })
    }
}

impl Salvage<'_> {
    /// Takes what the names file has of the logs that no checkpoint has.
    pub(super) fn read_names(&mut self) -> Result<()> {
        let known = self.known;
        self.copied.lost = !self.bad_checkpoints.is_empty();
        let mut damaged = Vec::new();
        for c in &known.names {
            let path = names_path(self.dir, c.number);
            match checkpoint::read_names(self.env, &path, c) {
                Ok((head, logs)) => {
                    self.copied.below = head.next_log;
                    self.copied.head = Some(head);
                    self.copied.file = Some(file_name(&path));
                    self.take_names(Some(head), logs);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Corruption => damaged.push(c),
                Err(e) => return Err(e),
            }
        }
        let mut has_names = self.copied.file.is_some();
        for c in damaged {
            let path = names_path(self.dir, c.number);
            let name = file_name(&path);
            self.copied.lost |= !has_names;
            self.bad_names.push(name.clone());
            if has_names {
                self.notes
                    .push(format!("{name}: the names file is not whole"));
                continue;
            }
            let (head, logs) = self.readable_names(c, &path)?;
            self.notes.push(format!(
                "{name}: the names file is damaged; {} of its logs are readable",
                logs.len()
            ));
            if !logs.is_empty() {
                self.take_names(head, logs);
                has_names = true;
            }
        }
        Ok(())
    }

    /// Returns the readable parts of a damaged names file.
    fn readable_names(
        &self,
        c: &CheckpointFile,
        path: &Path,
    ) -> Result<(Option<CheckpointHead>, Vec<CopiedLog>)> {
        let file = match self.env.fs().open(path) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Ok((None, Vec::new())),
            Err(e) => return Err(e),
        };
        let (mut head, mut logs) = (None, Vec::new());
        let found = scan(&*file, path, c.file_id, u64::MAX)?.found;
        for (i, found) in found.iter().enumerate() {
            if !found.whole || found.kind != RecordKind::Checkpoint {
                continue;
            }
            let payload = salvage::read(&*file, path, found)?.payload;
            let is_first = i == 0 && found.follows;
            match CheckpointHead::decode(&payload).filter(|_| is_first) {
                Some(found) => head = Some(found),
                None => logs.extend(decode_copied(&payload)),
            }
        }
        Ok((head, logs))
    }

    fn take_names(&mut self, head: Option<CheckpointHead>, logs: Vec<CopiedLog>) {
        let mut applied = 0;
        if let Some(head) = head {
            self.next_seq = self.next_seq.max(head.next_seq);
            self.next_log = self.next_log.max(head.next_log);
            self.copied.at = head.next_seq;
            applied = head.next_seq.saturating_sub(1);
        }
        for log in logs {
            let applied = applied.max(log.applied_seq);
            self.next_seq = self.next_seq.max(applied.saturating_add(1));
            self.next_log = self.next_log.max(log.number.saturating_add(1));
            let salvaged = || SalvagedLog {
                name: log.name,
                options: log.options,
                trimmed: log.trimmed,
                made_up: false,
                applied: None,
                copied: Some(CopiedLsns::new(applied, &log.lsns)),
                records: Default::default(),
            };
            self.logs.entry(log.number).or_insert_with(salvaged);
        }
    }

    /// Reports records that the names file has, that were not removed since, and of which no
    /// readable copy was found.
    pub(super) fn lose_copied(&mut self) {
        let mut known: BTreeMap<&str, Vec<RangeInclusive<u64>>> = BTreeMap::new();
        for loss in &self.losses {
            if let Some((name, lsns)) = loss.log.as_deref().zip(loss.lsns.clone()) {
                known.entry(name).or_default().push(lsns);
            }
        }
        known.values_mut().for_each(join_overlapping);
        let mut lost = Vec::new();
        for log in self.logs.values() {
            let runs = log.copied.iter().flat_map(|copied| copied.runs.iter());
            let mut missing: Vec<RangeInclusive<u64>> = Vec::new();
            for run in runs {
                let begin = log.trimmed.map_or(0, |trimmed| trimmed.saturating_add(1));
                let (mut next, last) = (begin.max(*run.start()), *run.end());
                let there = log.records.range(next.min(last)..=last);
                for lsn in there.map(|(lsn, _)| *lsn) {
                    if next < lsn {
                        missing.push(next..=lsn - 1);
                    }
                    // A damaged file may name an LSN that no record can have, the largest number.
                    next = next.max(lsn.saturating_add(1));
                }
                if next <= last {
                    missing.push(next..=last);
                }
            }
            let known = known.remove(log.name.as_str()).unwrap_or_default();
            let missing = missing.into_iter().flat_map(|run| without_all(run, &known));
            lost.extend(missing.map(|lsns| (log.name.clone(), lsns)));
        }
        let mut reason = "the names file has them, and no file has a readable copy".to_string();
        if self.lost_ops {
            reason += "; a lost part of the metalog may have removed them";
        }
        for (name, lsns) in lost {
            self.lose(LogLoss {
                log: Some(name),
                records: lsns.end() - lsns.start() + 1,
                lsns: Some(lsns),
                reason: reason.clone(),
                ..LogLoss::default()
            });
        }
    }

    /// Takes a rename, unless the checkpoint has a later name.
    pub(super) fn take_rename(&mut self, number: u64, seq: u64, name: String) {
        let at = self.copied.at;
        if let Some(log) = self.log_of(number)
            && seq >= at
            && log.applied.is_none_or(|applied| seq > applied || at > 0)
        {
            log.name = name;
        }
    }

    /// Returns the logs whose names are made up.
    pub fn unnamed_logs(&self) -> Vec<UnnamedLog> {
        let unnamed = self
            .logs
            .iter()
            .filter(|(number, log)| log.made_up && log.name == SalvagedLog::made_up(**number).name);
        let unnamed = unnamed.map(|(number, log)| {
            let (first, last) = (log.records.keys().next(), log.records.keys().next_back());
            UnnamedLog {
                number: *number,
                name: log.name.clone(),
                records: log.records.len() as u64,
                lsns: first.zip(last).map(|(first, last)| *first..=*last),
            }
        });
        unnamed.collect()
    }

    /// Says which files have the names, options and trim points of the logs.
    pub fn names_sentence(&self) -> String {
        let logs = |n: usize| format!("{n} log{}", if n == 1 { "" } else { "s" });
        let unnamed = self.unnamed_logs().len();
        let named = logs(self.logs.len() - unnamed);
        let mut text = match &self.copied.file {
            Some(file) => {
                format!("{file} has the names, options and trim points of {named}")
            }
            None if self.copied.lost => format!(
                "the checkpoint and the names file are damaged or missing; other files have the names of {named}; logs without records may be lost and not reported"
            ),
            None => format!("the metalog has the names, options and trim points of {named}"),
        };
        if self.lost_ops {
            text += "; creations, renames and trims in lost parts of the metalog are left out";
        }
        if unnamed > 0 {
            text += &format!(
                "; the names, options and trim points of {} are lost; in such a log, an append with an existing LSN replaces the record",
                logs(unnamed)
            );
        }
        text
    }
}
