//! Garbage collection of the datalog: live records of a file with much garbage are written again,
//! to files of their own, and the file is removed (pageserver 5.3).
//!
//! Beyond the paper, victims are chosen by their garbage, not by their age. So a log that is never
//! trimmed pins no file for long: its records move once, to files that have little garbage from
//! then on.
//!
//! A moved record names its source. Recovery installs its new location only if the index still has
//! the record at the source. The newest checkpoint must know that location, so a collection takes
//! only files that are older than the checkpoint.

use crate::catalog::Role;
use crate::checkpoint::CheckpointHead;
use crate::engine::{Engine, IS_SMALL, L0_ENTRIES};
use crate::index::{EntryPlace, Freed, PageLocation};
use crate::mapping::{Location, Mapping};
use crate::namespace::LogState;
use crate::physical::ReadableFile;
use crate::reverse_index::{self, ReverseEntry};
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_env::{JobPriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, ErrorKind, Lifetime, ReadRequest, Result};
use basalt_records::entries::{LARGEST_ENTRY_HEAD, entries, open_entry, push_entry};
use basalt_records::{
    Expect, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordReader, open_record,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of records that are moved with one write.
const STEP: usize = 1 << 20;
/// Bytes that are read for one write, at least [`LEAST_READ`] for each read.
const READ_STEP: u64 = 4 << 20;
const LEAST_READ: u64 = 4 << 10;
/// Number of entries of a file that are looked up at a time.
const ENTRIES_A_LOOKUP: usize = 64;
/// Maximum number of index pages in the cache of a search.
const CACHED_PAGES: usize = 64;
/// Largest gap between two live records, in bytes, that one read covers.
const GAP: u64 = 16 << 10;
/// A file is collected only if a smaller part of its records than this is live.
const MAX_LIVE_PART: f64 = 0.9;
/// Garbage that starts no collection, as a number of files of the datalog. The oldest and the
/// newest records of a log share files with garbage, even if the log is trimmed soon. 0 in tests,
/// which have small logs.
const UNCOLLECTED_FILES: u64 = if IS_SMALL { 0 } else { 2 };

/// A live record of a file that is being collected.
struct LiveRecord {
    log: Arc<LogState>,
    lsn: u64,
    from: Location,
    /// The page of the index that has the location, or `None` if L0 has it.
    page: Option<PageLocation>,
}

impl LiveRecord {
    /// Returns the offsets of the record's first byte and of its end.
    fn range(&self) -> (u64, u64) {
        let Location { offset, len, .. } = self.from;
        (offset, offset + u64::from(len))
    }
}

/// Live records that are moved together.
#[derive(Default)]
struct MoveStep {
    records: Vec<LiveRecord>,
    /// Bytes of the records.
    bytes: usize,
    /// About the bytes that are read for them.
    read: u64,
}

impl MoveStep {
    fn add(&mut self, record: LiveRecord) {
        let (start, end) = record.range();
        let before = self.records.last().map_or(0, |last| last.range().1);
        self.read += match start.checked_sub(before) {
            Some(gap) if gap <= GAP => end - before,
            _ => end - start + LEAST_READ,
        };
        self.bytes += record.from.len as usize;
        self.records.push(record);
    }

    fn is_full(&self) -> bool {
        self.bytes >= STEP || self.read >= READ_STEP
    }
}

impl Engine {
    /// Schedules a job that collects garbage if there is more than the options allow, and that
    /// merges small files if there are many.
    pub fn schedule_gc(&self) {
        let is_due = self.gc_victim(&BTreeSet::new()).is_some() || self.small_files().is_some();
        if is_due && !self.collecting.swap(true, SeqCst) {
            self.in_background(JobPriority::Gc, |engine| {
                // After a failure the garbage stays. The next ended file or checkpoint tries again.
                let _ = engine.collect_garbage();
                let _ = engine.merge_small_files();
                engine.collecting.store(false, SeqCst);
            });
        }
    }

    /// Collects garbage until there is as little as the options allow.
    pub fn collect_garbage(&self) -> Result<()> {
        let mut stays = BTreeSet::new();
        while let Some(victim) = self.gc_victim(&stays) {
            self.check_open()?;
            match self.collect(&victim) {
                Ok(true) => {}
                Ok(false) => {
                    stays.insert(victim.number);
                }
                // The others can be collected.
                Err(e) if e.kind() == ErrorKind::Corruption => self.leave_damaged(&victim),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Notes that a file has records that cannot be read. It stays as it is while the store is
    /// open.
    pub fn leave_damaged(&self, file: &ReadableFile) {
        file.note_unreadable();
        self.logs.counters.damaged_files.add(1);
    }

    /// Returns true for a file of records that has ended and is older than the checkpoint. Younger
    /// files wait for the next checkpoint, and another job removes dead files.
    pub fn may_be_collected(&self, file: &ReadableFile, head: &CheckpointHead) -> bool {
        let replayed_from = match file.role {
            Role::Meta => return false,
            Role::Data => head.data.file,
            Role::Moved => head.moved.file,
        };
        let has_live = file.live.load(SeqCst) > 0;
        has_live && file.number < replayed_from && file.end().is_some() && file.is_readable()
    }

    /// Returns the file with the largest part of garbage, if all files together have too much.
    /// `stays` has the numbers of files that could not be removed.
    fn gc_victim(&self, stays: &BTreeSet<u64>) -> Option<Arc<ReadableFile>> {
        let head = *self.head.lock();
        let (mut total, mut live) = (0, 0);
        let mut victim: Option<(f64, Arc<ReadableFile>)> = None;
        for file in self.logs.all() {
            if file.role == Role::Meta {
                continue;
            }
            let of_file = file.live.load(SeqCst);
            live += of_file;
            let may_go = self.may_be_collected(&file, &head) && !stays.contains(&file.number);
            let Some(end) = file.end().filter(|_| may_go) else {
                total += of_file;
                continue;
            };
            // Headers of batches and padding are not garbage: saving them is not worth a move.
            let of_records = file.ever_live.load(SeqCst).min(end.offset);
            total += of_records;
            let part = of_file as f64 / of_records as f64;
            let better = victim.as_ref().is_none_or(|(other, _)| part < *other);
            if better {
                victim = Some((part, file));
            }
        }
        let least = live + UNCOLLECTED_FILES * self.logs.target_bytes(Role::Data);
        let too_much = total > least.max((live as f64 * self.max_space_amp) as u64);
        // Collecting a file with little garbage gains nothing.
        let gains = |(part, _): &(f64, Arc<ReadableFile>)| *part < MAX_LIVE_PART;
        let victim = victim.filter(gains).filter(|_| too_much);
        victim.map(|(_, file)| file)
    }

    /// Moves the live records of a file, and removes the file. Returns false if the file could not
    /// be removed yet: a trim that runs beside has not counted its garbage, or a trim could not
    /// read a page of the index.
    fn collect(&self, victim: &Arc<ReadableFile>) -> Result<bool> {
        let entries = entries_of(victim)?;
        let of_records = entries.iter().map(|e| u64::from(e.location.len)).sum();
        if victim.ever_live.swap(of_records, SeqCst) > of_records {
            // A recovery counted headers and padding, too. Another file may have more garbage now.
            return Ok(true);
        }
        self.move_live(victim, &entries)?;
        if victim.live.load(SeqCst) > 0 {
            return Ok(false);
        }
        // All garbage of the file is counted by now, so the sync covers everything that made it.
        self.sync_before_removal()?;
        self.logs.counters.gcs.add(1);
        self.logs.remove(victim.number, true)?;
        Ok(true)
    }

    /// Moves the live records of a file. Damage ends the moves; the rest stays where it is.
    pub fn move_live(&self, victim: &Arc<ReadableFile>, entries: &[ReverseEntry]) -> Result<()> {
        let mut found = LiveSearch::default();
        let mut step = MoveStep::default();
        for some in entries.chunks(ENTRIES_A_LOOKUP) {
            for record in found.live_records(self, some)? {
                step.add(record);
                if step.is_full() {
                    // A close does not wait for a whole collection.
                    self.check_open()?;
                    self.move_records(victim, std::mem::take(&mut step).records)?;
                }
            }
        }
        self.move_records(victim, step.records)
    }

    /// Writes records again, and changes their locations.
    fn move_records(&self, victim: &ReadableFile, mut live: Vec<LiveRecord>) -> Result<()> {
        if live.is_empty() {
            return Ok(());
        }
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + STEP);
        buf.resize(RECORD_HEADER, 0);
        let mut places = Vec::with_capacity(live.len());
        live.sort_by_key(|record| record.from.offset);
        let read = read_records(self, victim, &live)?;
        for (record, bytes) in live.iter().zip(&read.records) {
            let (head, data) = open_entry(victim.file_id, record.from.offset, bytes)
                .map_err(|what| Error::corruption(&victim.path, record.from.offset, what))?;
            let at = buf.len();
            let source = Some((victim.number, record.from.offset));
            buf.reserve(LARGEST_ENTRY_HEAD + data.len());
            push_entry(&mut buf, head.log, head.lsn, source, &bytes[data]);
            places.push((at as u64, (buf.len() - at) as u32));
        }
        drop(read);
        // A checkpoint must not begin between the write and the change of the indexes.
        let mut writer = self.moved.lock();
        let mut records = [Outgoing {
            buf: &mut buf,
            kind: RecordKind::Entries,
            first_seq: self.new_seq(),
            count: live.len() as u32,
            payload_crc: 0,
            separated: &[],
            offset: 0,
        }];
        // If the copies are not durable, the records stay where they are.
        let file = writer.append(&mut records, true)?;
        // A full file that has not ended keeps its garbage, and its reverse index in memory.
        self.tend_writer(&mut writer, |engine| &engine.moved);
        self.logs.counters.gc_records.add(live.len() as u64);
        let offset = records[0].offset;
        let location = |(at, len): (u64, u32)| Location {
            file: file.number,
            offset: offset + at,
            len,
        };
        writer.note_entries(
            live.iter()
                .zip(&places)
                .map(|(record, place)| ReverseEntry {
                    log: record.log.number,
                    lsn: record.lsn,
                    location: location(*place),
                }),
        );
        let mut freed = Freed::default();
        for (record, place) in live.iter().zip(places) {
            let to = location(place);
            // A copy of a record that was removed meanwhile is garbage at once.
            file.add_live(u64::from(to.len));
            let mut inner = record.log.lock();
            let (from, page) = (record.from, record.page);
            if !(inner.index).move_record(record.lsn, from, page, to, &mut freed) {
                freed.records.add(to.file, u64::from(to.len));
            }
        }
        self.note_freed(&freed);
        drop(writer);
        self.flush_moved(&live);
        Ok(())
    }

    /// Moves entries of logs from L0 to pages if too many are there after records were moved.
    fn flush_moved(&self, moved: &[LiveRecord]) {
        let logs: BTreeMap<u64, &Arc<LogState>> =
            moved.iter().map(|m| (m.log.number, &m.log)).collect();
        for log in logs.values() {
            let mut inner = log.lock();
            let flushes = inner.index.in_memory() > L0_ENTRIES
                && !std::mem::replace(&mut inner.flushing, true);
            drop(inner);
            if flushes {
                self.flush_index(log);
            }
        }
    }
}

/// A search for the live records of a file. The search caches index pages for later entries.
#[derive(Default)]
struct LiveSearch {
    pages: BTreeMap<(u64, PageLocation), Option<Mapping>>,
}

impl LiveSearch {
    /// Returns the live records among the entries: the index of the log has the same location.
    fn live_records(
        &mut self,
        engine: &Engine,
        entries: &[ReverseEntry],
    ) -> Result<Vec<LiveRecord>> {
        let mut live = Vec::new();
        for of_log in entries.chunk_by(|a, b| a.log == b.log) {
            let Some(log) = engine.namespace.by_number(of_log[0].log) else {
                continue;
            };
            // Appends compete for the log's lock, so one acquisition serves many entries.
            let inner = log.lock();
            let find = |entry: &ReverseEntry| inner.index.find(entry.lsn);
            let places: Vec<Option<EntryPlace>> = of_log.iter().map(find).collect();
            drop(inner);
            for (entry, place) in of_log.iter().zip(places) {
                let (found, page) = match place {
                    None => continue,
                    Some(EntryPlace::Known(location)) => (Some(location), None),
                    Some(EntryPlace::OnPage(page)) => {
                        let mapping = self.page(engine, log.number, page)?;
                        (mapping.and_then(|m| m.get(entry.lsn)), Some(page))
                    }
                };
                if found == Some(entry.location) {
                    live.push(LiveRecord {
                        log: log.clone(),
                        lsn: entry.lsn,
                        from: entry.location,
                        page,
                    });
                }
            }
        }
        Ok(live)
    }

    fn page(&mut self, engine: &Engine, log: u64, at: PageLocation) -> Result<Option<&Mapping>> {
        if self.pages.len() >= CACHED_PAGES && !self.pages.contains_key(&(log, at)) {
            self.pages.clear();
        }
        let page = match self.pages.entry((log, at)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(crate::pages::load(&engine.env, &engine.logs, log, at)?)
            }
        };
        Ok(page.as_ref())
    }
}

/// Records that were read, and their memory in the ledger.
struct ReadRecords {
    records: Vec<Bytes>,
    _booked: Reservation,
}

/// Reads records of a file. The records must be sorted by offset. One read covers records that are
/// near each other, and all reads are in flight at the same time.
fn read_records(
    engine: &Engine,
    file: &ReadableFile,
    records: &[LiveRecord],
) -> Result<ReadRecords> {
    let ranges = ranges_of(records);
    let len = |range: &Range<u64>| (range.end - range.start) as usize;
    let bytes: usize = ranges.iter().map(len).sum();
    let booked = (engine.env.ledger()).reserve(MemoryKind::Pinned, bytes as u64);
    let reads = ranges.iter().map(|range| ReadRequest {
        file: file.file().clone(),
        offset: range.start,
        len: len(range),
        lifetime: Lifetime::Cached,
    });
    let mut batch = engine.env.fs().submit_reads(reads.collect());
    batch.wait_all();
    let mut read = vec![Bytes::new(); ranges.len()];
    while let Some((i, bytes)) = batch.next() {
        read[i] = file.check_len(ranges[i].start, len(&ranges[i]), bytes?)?;
    }
    let mut current = 0;
    let bytes_of = |record: &LiveRecord| {
        let (start, end) = record.range();
        while ranges[current].end < end {
            current += 1;
        }
        let from = (start - ranges[current].start) as usize;
        read[current].slice(from..from + record.from.len as usize)
    };
    Ok(ReadRecords {
        records: records.iter().map(bytes_of).collect(),
        _booked: booked,
    })
}

/// Returns the ranges of a file to read, which cover all records. The records must be sorted by
/// offset.
fn ranges_of(records: &[LiveRecord]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for record in records {
        let (start, end) = record.range();
        match ranges.last_mut() {
            Some(last) if start <= last.end + GAP && end <= last.start + STEP as u64 => {
                last.end = last.end.max(end);
            }
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Returns the entries of a file that has ended, by its reverse index. A file whose end a recovery
/// found has no such index, and is read whole.
pub(crate) fn entries_of(file: &ReadableFile) -> Result<Vec<ReverseEntry>> {
    let Some(last) = file.end().and_then(|end| end.reverse_index) else {
        return scan(file);
    };
    let (others, tail) = segment(file, last)?;
    let mut all = Vec::new();
    for other in others {
        all.extend(segment(file, other)?.1);
    }
    all.extend(tail);
    Ok(all)
}

/// Reads a segment of the reverse index.
fn segment(file: &ReadableFile, offset: u64) -> Result<(Vec<u64>, Vec<ReverseEntry>)> {
    let bad = |what: String| Error::corruption(&file.path, offset, what);
    let head = file.read(offset, RECORD_HEADER)?;
    let len = basalt_records::record_len(file.file_id, offset, &head).map_err(bad)?;
    let record = file.read(offset, RECORD_HEADER + len as usize)?;
    match open_record(file.file_id, offset, &record).map_err(bad)? {
        RecordKind::ReverseIndex => {}
        kind => {
            return Err(bad(format!(
                "expected a reverse index, found a record of kind {kind:?}"
            )));
        }
    }
    reverse_index::decode(&record[RECORD_HEADER..], file.number)
        .ok_or_else(|| bad("a segment of the reverse index does not decode".to_string()))
}

/// Returns the entries of a file by reading all of its records.
fn scan(file: &ReadableFile) -> Result<Vec<ReverseEntry>> {
    let end = file.end().map_or(0, |end| end.offset);
    let expect = Expect {
        kind: FileKind::Log,
        file_id: Some(file.file_id),
        store_id: None,
        number: Some(file.number),
        proven_synced: end,
    };
    let reader = RecordReader::open_expecting(file.file().clone(), &file.path, &expect)?;
    let mut reader = reader.ok_or_else(|| crate::physical::missing(&file.path))?;
    // The file has ended, so its first record is right.
    reader.follow(None);
    let mut all = Vec::new();
    while reader.tail().end < end
        && let Some(record) = reader.next(end)?
    {
        if record.kind != RecordKind::Entries {
            continue;
        }
        for (at, head) in entries(&record.payload).flatten() {
            all.push(ReverseEntry {
                log: head.log,
                lsn: head.lsn,
                location: Location {
                    file: file.number,
                    offset: record.offset + (RECORD_HEADER + at) as u64,
                    len: head.entry_len().unwrap_or(0),
                },
            });
        }
    }
    Ok(all)
}
