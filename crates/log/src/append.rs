//! The way of an append through the datalog: checked, written with its group, added to the indexes.
//!
//! The removal of a range that is no trim goes through the same queue, so that it has its place
//! among the appends.

use crate::apply::add_entry;
use crate::engine::{Engine, L0_ENTRIES};
use crate::mapping::Location;
use crate::namespace::LogInner;
use crate::options::Duplicates;
use crate::physical::ReadableFile;
use crate::queue::{Commit, Results, TicketState};
use crate::request::{DataRequest, PendingEntry};
use crate::reverse_index::ReverseEntry;
use crate::writer::PhysicalWriter;
use basalt_env::JobPriority;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::{Outgoing, RecordKind};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Engine {
    /// Commits a request to the datalog, and waits for it.
    pub fn run_data(&self, request: DataRequest) -> Result<()> {
        self.check_open()?;
        let cost = request.cost();
        self.data_queue.run(request, cost, &DataCommit(self))
    }

    /// Queues a request to the datalog.
    pub fn submit_data(&self, request: DataRequest) -> Arc<TicketState> {
        if let Err(e) = self.check_open() {
            return TicketState::done(Err(e));
        }
        let cost = request.cost();
        self.data_queue.submit(request, cost, &DataCommit(self))
    }

    /// Waits for a request that was submitted.
    pub fn wait_data(&self, ticket: &Arc<TicketState>) -> Result<()> {
        self.data_queue.wait(ticket, &DataCommit(self))
    }
}

/// Commits groups of the datalog's queue.
pub(crate) struct DataCommit<'a>(pub &'a Engine);

impl Commit<DataRequest> for DataCommit<'_> {
    fn commit(&self, group: &mut [DataRequest]) -> Results {
        let mut writer = self.0.data.lock();
        let mut results = Results::with_capacity(group.len());
        let mut rest = group;
        while !rest.is_empty() {
            let removes = |request: &DataRequest| matches!(request, DataRequest::Remove { .. });
            let n = rest.iter().position(removes).unwrap_or(rest.len());
            let (appends, behind) = rest.split_at_mut(n);
            self.0.commit_appends(&mut writer, appends, &mut results);
            rest = match behind.split_first_mut() {
                Some((first, behind)) => {
                    results.push(self.0.commit_remove(&mut writer, first));
                    behind
                }
                None => &mut [],
            };
        }
        results
    }

    fn lead_in_background(&self) {
        self.0.in_background(JobPriority::Commit, |engine| {
            engine.data_queue.lead_one(&DataCommit(engine));
        });
    }
}

impl Engine {
    fn commit_appends(
        &self,
        writer: &mut PhysicalWriter,
        group: &mut [DataRequest],
        results: &mut Results,
    ) {
        if group.is_empty() {
            return;
        }
        let begun = results.len();
        let mut seen = Seen::default();
        for request in group.iter() {
            results.push(match request {
                DataRequest::Append { entries, .. } => seen.check(entries),
                DataRequest::Remove { .. } | DataRequest::Sync => Ok(()),
            });
        }
        let checked = &results[begun..];
        let written = self.write_appends(writer, group, checked);
        for (request, checked) in group.iter().zip(checked) {
            // The index step clears the state of all other appends under its own lock.
            if checked.is_err() || written.is_err() {
                forget_committing(request);
            }
        }
        match written {
            Ok(placed) => {
                let (mut records, mut user_bytes) = (0, 0);
                for record in &placed.records {
                    // The reverse index has all records of the file, live or not.
                    if let DataRequest::Append { entries, .. } = &group[record.request]
                        && let Some(file) = &placed.file
                    {
                        writer.note_entries(entries.iter().map(|entry| ReverseEntry {
                            log: entry.log.number,
                            lsn: entry.lsn,
                            location: record.location_of(file, entry),
                        }));
                        records += entries.len() as u64;
                        user_bytes += self.add_to_indexes(entries, file, record);
                    }
                }
                // Only the holder of the writer's lock adds to these counters.
                let counters = &self.logs.counters;
                counters.batches.add_exclusive(placed.records.len() as u64);
                counters.records.add_exclusive(records);
                counters.user_bytes.add_exclusive(user_bytes);
            }
            Err(e) => {
                for result in &mut results[begun..] {
                    if result.is_ok() {
                        *result = Err(e.clone());
                    }
                }
            }
        }
        let syncs = |request: &DataRequest| matches!(request, DataRequest::Sync);
        if group.iter().any(syncs) {
            // Trims and creations are made durable, too.
            let synced = self.meta.lock().sync();
            for (request, result) in group.iter().zip(&mut results[begun..]) {
                if syncs(request) && result.is_ok() {
                    *result = synced.clone();
                }
            }
        }
    }

    fn write_appends(
        &self,
        writer: &mut PhysicalWriter,
        group: &mut [DataRequest],
        checked: &[Result<()>],
    ) -> Result<Placed> {
        let mut sync = false;
        // With one writer, most groups have one request. These vectors then allocate nothing.
        let mut records: SmallVec<[Outgoing<'_>; 1]> = SmallVec::with_capacity(group.len());
        let mut of: SmallVec<[usize; 1]> = SmallVec::with_capacity(group.len());
        for (i, request) in group.iter_mut().enumerate() {
            match request {
                DataRequest::Append {
                    buf,
                    entries,
                    sync: synced,
                } if checked[i].is_ok() && !entries.is_empty() => {
                    sync |= *synced;
                    of.push(i);
                    records.push(Outgoing {
                        buf,
                        kind: RecordKind::Entries,
                        first_seq: self.next_seq.fetch_add(1, SeqCst),
                        count: entries.len() as u32,
                        payload_crc: 0,
                        separated: &[],
                        offset: 0,
                    });
                }
                DataRequest::Sync => sync = true,
                _ => {}
            }
        }
        if records.is_empty() {
            if sync {
                writer.sync()?;
            }
            return Ok(Placed::default());
        }
        self.end_failed_meta()?;
        let file = writer.append(&mut records, sync)?;
        let bytes = records.iter().map(|r| r.buf.len() as u64).sum();
        self.logs.counters.groups.add_exclusive(1);
        self.note_appended(bytes);
        self.tend_writer(writer, |engine| &engine.data);
        let mut placed = Placed {
            records: SmallVec::with_capacity(of.len()),
            file: Some(file),
        };
        for (r, request) in records.iter().zip(of) {
            placed.records.push(PlacedRecord {
                request,
                offset: r.offset,
                seq: r.first_seq,
            });
        }
        Ok(placed)
    }

    /// Adds the entries of a record to the indexes of their logs. Returns the bytes of their data.
    fn add_to_indexes(
        &self,
        entries: &[PendingEntry],
        file: &Arc<ReadableFile>,
        record: &PlacedRecord,
    ) -> u64 {
        let mut user_bytes = 0;
        // Most batches have one entry, and an append is short.
        let last_of_logs = (entries.len() > 1).then(|| last_of_logs(entries));
        for (i, entry) in entries.iter().enumerate() {
            // A checkpoint may encode a log between two entries of a batch. It must not say that it
            // has the batch before it has the last entry of the log.
            let is_last = last_of_logs.as_ref().is_none_or(|last| last.contains(&i));
            let seq = if is_last { record.seq } else { 0 };
            let location = record.location_of(file, entry);
            user_bytes += u64::from(entry.data_len);
            file.add_live(u64::from(entry.len));
            let load = |page| self.load_page(&entry.log, page);
            let mut flushes = false;
            // Appends compete with jobs for the log's lock, so each append takes it once.
            let mut note = |inner: &mut LogInner| {
                inner.committing = None;
                flushes = inner.index.in_memory() > L0_ENTRIES
                    && !std::mem::replace(&mut inner.flushing, true);
            };
            let freed = add_entry(&entry.log, seq, entry.lsn, location, &load, &mut note);
            if freed.count > 0 {
                self.has_replaced.store(true, SeqCst);
            }
            self.note_freed(&freed);
            if flushes {
                let log = entry.log.clone();
                self.in_background(JobPriority::Flush, move |engine| engine.flush_index(&log));
            }
        }
        user_bytes
    }

    fn commit_remove(&self, writer: &mut PhysicalWriter, request: &DataRequest) -> Result<()> {
        let DataRequest::Remove { log, op } = request else {
            unreachable!("the caller found a removal");
        };
        // On a full disk, only a removal frees space of the store, so the writer must not wait for
        // its retry pause.
        writer.resume_now()?;
        // Nothing that was appended before may be durable later than the removal.
        writer.sync()?;
        self.run_op(log, op.clone(), true)
    }
}

/// Where the records of a group are.
#[derive(Default)]
struct Placed {
    file: Option<Arc<ReadableFile>>,
    records: SmallVec<[PlacedRecord; 1]>,
}

struct PlacedRecord {
    /// Index of the request in the group.
    request: usize,
    offset: u64,
    seq: u64,
}

impl PlacedRecord {
    fn location_of(&self, file: &ReadableFile, entry: &PendingEntry) -> Location {
        Location {
            file: file.number,
            offset: self.offset + u64::from(entry.at),
            len: entry.len,
        }
    }
}

/// Returns the index of the last entry of each log.
fn last_of_logs(entries: &[PendingEntry]) -> BTreeSet<usize> {
    let mut logs: BTreeSet<u64> = BTreeSet::new();
    let from_behind = entries.iter().enumerate().rev();
    let last = from_behind.filter(|(_, entry)| logs.insert(entry.log.number));
    last.map(|(i, _)| i).collect()
}

fn forget_committing(request: &DataRequest) {
    if let DataRequest::Append { entries, .. } = request {
        for entry in entries {
            entry.log.lock().committing = None;
        }
    }
}

/// The LSNs of a group's batches that were checked so far.
#[derive(Default)]
struct Seen {
    /// Log numbers and LSNs.
    all: SmallVec<[(u64, u64); 1]>,
    /// The first ones of `all`, sorted, since an LSN was searched among them; and their number.
    sorted: BTreeSet<(u64, u64)>,
    sorted_count: usize,
}

impl Seen {
    /// Returns an error if an append of a batch must be refused.
    fn check(&mut self, entries: &[PendingEntry]) -> Result<()> {
        let begun = self.all.len();
        let checked = entries.iter().try_for_each(|entry| self.check_one(entry));
        if checked.is_err() {
            for gone in self.all.drain(begun..) {
                self.sorted.remove(&gone);
            }
            self.sorted_count = self.sorted_count.min(begun);
        }
        checked
    }

    /// Returns true if an entry has a log number and an LSN. Rising LSNs need no search.
    fn has(&mut self, entry: &(u64, u64)) -> bool {
        self.sorted.extend(&self.all[self.sorted_count..]);
        self.sorted_count = self.all.len();
        self.sorted.contains(entry)
    }

    fn check_one(&mut self, entry: &PendingEntry) -> Result<()> {
        let log = &entry.log;
        let mut inner = log.lock();
        if inner.deleted {
            return Err(log.deleted());
        }
        if let Some(trimmed) = inner.trimmed.filter(|trimmed| entry.lsn <= *trimmed) {
            return Err(Error::invalid(format!(
                "LSN {} of log {:?} is not above {trimmed}, up to which the log was trimmed",
                entry.lsn,
                log.name()
            )));
        }
        let highest = inner.index.last().max(inner.committing);
        if highest.is_some_and(|highest| entry.lsn <= highest)
            && log.options.duplicates == Duplicates::Refuse
        {
            let here = (log.number, entry.lsn);
            if self.has(&here) || inner.index.find(entry.lsn).is_some() {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!("log {:?} has a record with LSN {}", log.name(), entry.lsn),
                ));
            }
        }
        inner.committing = highest.max(Some(entry.lsn));
        self.all.push((log.number, entry.lsn));
        Ok(())
    }
}
