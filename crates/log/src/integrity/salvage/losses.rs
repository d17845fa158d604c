//! The losses of a salvage: which records cannot be read any more. Losses of records that follow
//! one another are one loss, because damage takes whole stretches of a log.

use super::super::live_read::{IndexedRecord, read_all};
use super::{Event, KnownFile, LogLoss, Salvage, SalvagedLog};
use crate::mapping::Location;
use basalt_fs::{ErrorKind, Result};
use basalt_records::entries::EntryHead;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

/// The reason of a loss that only the damaged bytes themselves name.
const CLAIMED: &str =
    "it does not verify; log and LSN are read from the damaged bytes and may be wrong";

/// Records of a damaged part of a file that only their own heads name.
pub(super) struct Claims {
    /// The file, by its name.
    file: String,
    bytes: Range<u64>,
    /// The smallest sequence number that they can have.
    seq: u64,
    /// Number of the log, and LSN.
    named: BTreeSet<(u64, u64)>,
    /// Those of `named` that were appended again or removed later.
    outdated: BTreeSet<(u64, u64)>,
}

impl Salvage<'_> {
    /// Adds a loss. It becomes a part of the loss before it if both have the same cause and no
    /// LSN lies between them.
    pub(super) fn lose(&mut self, loss: LogLoss) {
        if let (Some(last), Some(lsns)) = (self.losses.last_mut(), &loss.lsns)
            && let Some(before) = &last.lsns
            && (&last.file, &last.log, &last.reason) == (&loss.file, &loss.log, &loss.reason)
            && before.end().checked_add(1) == Some(*lsns.start())
        {
            last.records += loss.records;
            last.lsns = Some(*before.start()..=*lsns.end());
            last.bytes = last.bytes.start.min(loss.bytes.start)..last.bytes.end.max(loss.bytes.end);
            return;
        }
        self.losses.push(loss);
    }

    /// Takes records that only their own damaged heads name. Later events tell whether they would
    /// still be there.
    pub(super) fn claim(
        &mut self,
        file: &KnownFile,
        bytes: Range<u64>,
        seq: u64,
        heads: &[EntryHead],
    ) {
        let named: BTreeSet<(u64, u64)> = heads.iter().map(|head| (head.log, head.lsn)).collect();
        self.claims.push(Claims {
            file: file.name.clone(),
            bytes,
            seq,
            named,
            outdated: BTreeSet::new(),
        });
    }

    /// Notes which claimed records a later append replaces, or a later removal removes.
    pub(super) fn note_outdated_claims(&mut self) {
        let mut by_log: BTreeMap<u64, BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
        for (i, claims) in self.claims.iter().enumerate() {
            for (log, lsn) in &claims.named {
                let of_log = by_log.entry(*log).or_default();
                of_log.entry(*lsn).or_default().push(i);
            }
        }
        for (log, claimed) in by_log {
            for (seq, event) in self.events.get(&log).into_iter().flatten() {
                let range = match event {
                    Event::Append { lsn, .. } => *lsn..=*lsn,
                    Event::Remove(range) if range.is_empty() => continue,
                    Event::Remove(range) => range.clone(),
                };
                for (lsn, at) in claimed.range(range) {
                    for i in at {
                        let claims = &mut self.claims[*i];
                        if claims.seq < *seq {
                            claims.outdated.insert((log, *lsn));
                        }
                    }
                }
            }
        }
    }

    /// Reports claimed records that would still be there.
    pub(super) fn lose_claimed(&mut self) {
        for claims in std::mem::take(&mut self.claims) {
            let mut not_lost = None;
            for (number, lsn) in claims.named {
                let log = self.logs.get(&number);
                // A log whose creation is lost may get its first record later.
                let name =
                    log.map_or_else(|| SalvagedLog::made_up(number).name, |l| l.name.clone());
                let is_gone = self.was_deleted(number)
                    || claims.outdated.contains(&(number, lsn))
                    || log.is_some_and(|log| {
                        log.records.contains_key(&lsn)
                            || log.trimmed.is_some_and(|trimmed| lsn <= trimmed)
                    });
                if is_gone {
                    not_lost = not_lost.or(Some((name, lsn)));
                    continue;
                }
                self.lose(LogLoss {
                    log: Some(name),
                    lsns: Some(lsn..=lsn),
                    records: 1,
                    ..LogLoss::of_file(&claims.file, claims.bytes.clone(), CLAIMED)
                });
            }
            if let Some((name, lsn)) = not_lost {
                // The damage may be in the log's number or in the LSN.
                let reason = format!(
                    "a record does not verify; its bytes say LSN {lsn} of log {name:?}, which is not lost: it is readable elsewhere, or was trimmed, removed or deleted; if these bytes are wrong, another record is lost"
                );
                self.lose(LogLoss::of_file(&claims.file, claims.bytes, &reason));
            }
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

    /// Notes the logs whose last records are lost: the next records would get their LSNs.
    pub fn note_lost_ends(&mut self) {
        let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
        for loss in self.losses.iter().filter(|loss| loss.reason != CLAIMED) {
            if let Some((name, lsns)) = loss.log.as_ref().zip(loss.lsns.as_ref()) {
                let last = lost.entry(name).or_default();
                *last = (*last).max(*lsns.end());
            }
        }
        for log in self.logs.values() {
            let last = log.records.keys().next_back().copied().max(log.trimmed);
            let Some(lost) = lost.get(&*log.name).filter(|lost| last < Some(**lost)) else {
                continue;
            };
            let ends = last.map_or_else(
                || "has no record any more".to_string(),
                |last| format!("ends at LSN {last} now"),
            );
            self.notes.push(format!(
                "log {:?} {ends}, and records up to LSN {lost} are lost; give the next record a larger LSN, so that readers do not take new records for the lost ones",
                log.name
            ));
        }
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
