//! The losses of a salvage: which records cannot be read any more. Losses of records that follow
//! one another are one loss, because damage takes whole stretches of a log.

use super::super::live_read::{IndexedRecord, read_all};
use super::{KnownFile, LogLoss, Salvage, SalvagedLog};
use crate::mapping::Location;
use basalt_fs::{ErrorKind, Result};
use basalt_records::entries::EntryHead;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

impl Salvage<'_> {
    /// Adds a loss. It becomes a part of the loss before it if both have the same cause and no
    /// LSN lies between them.
    pub(super) fn lose(&mut self, loss: LogLoss) {
        if let (Some(last), Some(lsns)) = (self.losses.last_mut(), &loss.lsns)
            && let Some(before) = &last.lsns
            && (&last.file, &last.log, &last.reason) == (&loss.file, &loss.log, &loss.reason)
            && before.contains(&lsns.start().saturating_sub(1))
        {
            last.records += loss.records;
            last.lsns = Some(*before.start()..=*lsns.end().max(before.end()));
            last.bytes = last.bytes.start.min(loss.bytes.start)..last.bytes.end.max(loss.bytes.end);
            return;
        }
        self.losses.push(loss);
    }

    /// Reports records that only their own damaged heads name.
    pub(super) fn lose_claimed(
        &mut self,
        file: &KnownFile,
        bytes: Range<u64>,
        claims: &[EntryHead],
    ) {
        let mut names_removed = false;
        let mut claimed: Vec<(u64, u64)> = claims.iter().map(|head| (head.log, head.lsn)).collect();
        claimed.sort_unstable();
        for (number, lsn) in claimed {
            let log = self.logs.get(&number);
            let trimmed = log.and_then(|log| log.trimmed);
            if self.was_deleted(number) || trimmed.is_some_and(|trimmed| lsn <= trimmed) {
                names_removed = true;
                continue;
            }
            // A log whose creation is lost may get its first record later.
            let name = log.map_or_else(|| SalvagedLog::made_up(number).name, |l| l.name.clone());
            self.lose(LogLoss {
                log: Some(name),
                lsns: Some(lsn..=lsn),
                records: 1,
                ..LogLoss::of_file(
                    &file.name,
                    bytes.clone(),
                    "it does not verify; log and LSN are those that the damaged bytes say",
                )
            });
        }
        if names_removed {
            // The damage may be in the log's number or in the LSN.
            let reason = "a record does not verify; its damaged bytes name one that was trimmed or deleted, and if that is wrong, another one is lost";
            self.lose(LogLoss::of_file(&file.name, bytes, reason));
        }
    }

    /// Reports records of a log of which no file has a copy.
    pub(super) fn lose_unplaced(&mut self, name: &str, lsns: &[u64]) {
        for lsn in lsns {
            self.lose(LogLoss {
                log: Some(name.to_string()),
                lsns: Some(*lsn..=*lsn),
                records: 1,
                reason: "no file has a readable copy of them".to_string(),
                ..LogLoss::default()
            });
        }
    }

    /// Reads every record, and leaves out those that do not verify.
    pub(super) fn read_records(&mut self) -> Result<()> {
        let known = self.known;
        let file = |n: u64| known.files.get(&n).and_then(|f| f.records.clone());
        let mut losses = Vec::new();
        for (number, log) in &mut self.logs {
            let mut wanted: Vec<IndexedRecord> = log
                .records()
                .map(|(lsn, location)| IndexedRecord {
                    log: *number,
                    lsn,
                    location,
                })
                .collect();
            let mut bad = Vec::new();
            let mut done = 0;
            let progress = &mut *self.progress;
            read_all(&mut wanted, &file, &mut |record, found| {
                done += u64::from(record.location.len);
                if done > 1 << 20 {
                    progress(std::mem::take(&mut done));
                }
                match found {
                    Ok(true) => return Ok(()),
                    Ok(false) => bad.push((*record, "its file is missing")),
                    Err(e) if e.kind() == ErrorKind::Corruption => {
                        bad.push((*record, "it does not verify"));
                    }
                    Err(e) => return Err(e),
                }
                Ok(())
            })?;
            // Records are read in the order of their places.
            bad.sort_unstable_by_key(|(record, _)| record.lsn);
            for (record, _) in &bad {
                log.records.remove(&record.lsn);
            }
            for run in bad.chunk_by(|(a, because_a), (b, because_b)| {
                a.location.file == b.location.file
                    && because_a == because_b
                    && log.records.range(a.lsn..b.lsn).next().is_none()
            }) {
                losses.push(loss_of_run(&log.name, run, known));
            }
        }
        self.losses.append(&mut losses);
        Ok(())
    }

    /// Returns a note for each log whose last records are lost: the next records would get their
    /// LSNs.
    pub(super) fn notes_on_lost_ends(&self) -> Vec<String> {
        let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, lsns) in self
            .losses
            .iter()
            .filter_map(|l| l.log.as_ref().zip(l.lsns.as_ref()))
        {
            let last = lost.entry(name).or_default();
            *last = (*last).max(*lsns.end());
        }
        let note = |(name, lost): (&str, u64)| {
            let log = self.logs.values().find(|log| log.name == name)?;
            let last = log.records.keys().next_back().copied().max(log.trimmed);
            (last < Some(lost)).then(|| {
                let ends = last.map_or_else(
                    || "has no record any more".to_string(),
                    |last| format!("ends at LSN {last} now"),
                );
                format!(
                    "log {name:?} {ends}, and records up to LSN {lost} are lost; an append above that LSN keeps what read them from taking new records for lost ones"
                )
            })
        };
        lost.into_iter().filter_map(note).collect()
    }
}

/// Returns the loss of records of one file. No record of the log lies between them.
fn loss_of_run(
    log: &str,
    run: &[(IndexedRecord, &'static str)],
    known: &super::KnownFiles,
) -> LogLoss {
    let (first, reason) = run[0];
    let (last, _) = run[run.len() - 1];
    let end_of = |at: Location| at.offset.saturating_add(u64::from(at.len));
    let places = run.iter().map(|(record, _)| record.location);
    let begin = first.location.offset..end_of(first.location);
    let bytes = places.fold(begin, |bytes, at| {
        bytes.start.min(at.offset)..bytes.end.max(end_of(at))
    });
    let number = first.location.file;
    let name = known.files.get(&number).map(|f| f.name.clone());
    LogLoss {
        file: name.unwrap_or_else(|| format!("physical log {number}")),
        bytes,
        log: Some(log.to_string()),
        lsns: Some(RangeInclusive::new(first.lsn, last.lsn)),
        records: run.len() as u64,
        reason: reason.to_string(),
    }
}
