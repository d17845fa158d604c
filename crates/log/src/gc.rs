//! Garbage collection of the datalog: live records of a file with much garbage are written again,
//! to files of their own, and the file is removed (pageserver 5.3).
//!
//! Beyond the paper, victims are chosen by their garbage, not by their age. So a log that is never
//! trimmed pins no file for long: its records move once, to files that have little garbage from
//! then on.
//!
//! A moved record says which record it is. A recovery moves the record again if the index still has
//! it at that place. So the place must be known to the newest checkpoint: only files that are
//! older than it are collected.

use crate::catalog::Role;
use crate::engine::Engine;
use crate::index::{EntryPlace, Freed, PageLocation};
use crate::mapping::{Location, Mapping};
use crate::namespace::LogState;
use crate::physical::ReadableFile;
use crate::reverse_index::{self, ReverseEntry};
use basalt_env::JobPriority;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{AlignedBuf, Bytes, Error, Result};
use basalt_records::entries::{LARGEST_ENTRY_HEAD, entries, open_entry, push_entry};
use basalt_records::{
    Expect, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordReader, open_record,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Bytes of records that are moved with one write.
const STEP: usize = 1 << 20;
/// Number of entries of a file that are looked up at a time.
const ENTRIES_A_LOOKUP: usize = 64;
/// Maximum number of index pages in the cache of a search.
const CACHED_PAGES: usize = 64;
/// Bytes between two live records that are read along with them.
const GAP: u64 = 64 << 10;

/// A live record of a file that is being collected.
struct LiveRecord {
    log: Arc<LogState>,
    lsn: u64,
    from: Location,
    /// The page of the index that has the location, or `None` if L0 has it.
    page: Option<PageLocation>,
}

impl Engine {
    /// Has a job collect garbage if there is more than the options allow.
    pub fn schedule_gc(&self) {
        if self.gc_victim().is_some() && !self.collecting.swap(true, SeqCst) {
            self.in_background(JobPriority::Gc, |engine| {
                // A failure leaves the garbage where it is. The next checkpoint tries again.
                let _ = engine.collect_garbage();
                engine.collecting.store(false, SeqCst);
            });
        }
    }

    /// Collects garbage until there is as little as the options allow.
    pub fn collect_garbage(&self) -> Result<()> {
        while let Some(victim) = self.gc_victim() {
            self.check_open()?;
            if !self.collect(&victim)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns the file with the largest part of garbage, if all files together have too much.
    fn gc_victim(&self) -> Option<Arc<ReadableFile>> {
        let head = *self.head.lock();
        let (mut total, mut live) = (0, 0);
        let mut victim: Option<(f64, Arc<ReadableFile>)> = None;
        for file in self.logs.all() {
            let replayed_from = match file.role {
                Role::Meta => continue,
                Role::Data => head.data.file,
                Role::Moved => head.moved.file,
            };
            let Some(end) = file.end().filter(|end| end.offset > 0) else {
                continue;
            };
            let of_file = file.live.load(SeqCst);
            total += end.offset;
            live += of_file;
            let part = of_file as f64 / end.offset as f64;
            let better = victim.as_ref().is_none_or(|(other, _)| part < *other);
            if file.number < replayed_from && better {
                victim = Some((part, file));
            }
        }
        let too_much = total as f64 > live as f64 * self.max_space_amp;
        // A file without garbage but its heads and padding gains nothing.
        let gains = |(part, _): &(f64, Arc<ReadableFile>)| *part < 0.9;
        victim
            .filter(gains)
            .filter(|_| too_much)
            .map(|(_, file)| file)
    }

    /// Moves the live records of a file, and removes the file. Returns false if the file could not
    /// be removed yet, because a trim that runs beside has not counted its garbage.
    fn collect(&self, victim: &Arc<ReadableFile>) -> Result<bool> {
        let mut found = LiveSearch::default();
        let mut live = Vec::new();
        let mut bytes = 0;
        for some in entries_of(victim)?.chunks(ENTRIES_A_LOOKUP) {
            for record in found.live_records(self, some)? {
                bytes += record.from.len as usize;
                live.push(record);
                if bytes >= STEP {
                    self.move_records(victim, std::mem::take(&mut live))?;
                    bytes = 0;
                }
            }
        }
        self.move_records(victim, live)?;
        // What made the other records garbage, and the copies of these ones, must be durable before
        // the file is gone.
        self.sync_all()?;
        if victim.live.load(SeqCst) > 0 {
            return Ok(false);
        }
        self.logs.counters.gcs.add(1);
        self.logs.remove(victim.number, true)?;
        Ok(true)
    }

    /// Writes records again, and changes their locations.
    fn move_records(&self, victim: &ReadableFile, live: Vec<LiveRecord>) -> Result<()> {
        if live.is_empty() {
            return Ok(());
        }
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + STEP);
        buf.resize(RECORD_HEADER, 0);
        let mut places = Vec::with_capacity(live.len());
        let mut window = Window::default();
        for (i, record) in live.iter().enumerate() {
            let bytes = window.read(victim, &live[i..])?;
            let (head, data) = open_entry(victim.file_id, record.from.offset, &bytes)
                .map_err(|what| Error::corruption(&victim.path, record.from.offset, what))?;
            let at = buf.len();
            let source = Some((victim.number, record.from.offset));
            buf.reserve(LARGEST_ENTRY_HEAD + data.len());
            push_entry(&mut buf, head.log, head.lsn, source, &bytes[data]);
            places.push((at as u64, (buf.len() - at) as u32));
        }
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
            let mut inner = record.log.lock();
            if inner
                .index
                .move_record(record.lsn, record.from, record.page, to)
            {
                file.add_live(u64::from(to.len));
                freed
                    .records
                    .add(record.from.file, u64::from(record.from.len));
                if record.page.is_some() {
                    inner.index.drop_empty_pages(&mut freed);
                }
            }
        }
        self.note_freed(&freed);
        Ok(())
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

/// Bytes of a file that several records lie in.
#[derive(Default)]
struct Window {
    offset: u64,
    bytes: Bytes,
}

impl Window {
    /// Returns the bytes of the first of some records in the order of the file. Reads those that
    /// lie near behind it along with it.
    fn read(&mut self, file: &ReadableFile, records: &[LiveRecord]) -> Result<Bytes> {
        let at = records[0].from;
        let end = at.offset + u64::from(at.len);
        if at.offset < self.offset || end > self.offset + self.bytes.len() as u64 {
            let mut to = end;
            for next in &records[1..] {
                let next_end = next.from.offset + u64::from(next.from.len);
                if next.from.offset > to + GAP || next_end - at.offset > STEP as u64 {
                    break;
                }
                to = next_end;
            }
            self.bytes = Bytes::new();
            self.bytes = file.read(at.offset, (to - at.offset) as usize)?;
            self.offset = at.offset;
        }
        let from = (at.offset - self.offset) as usize;
        Ok(self.bytes.slice(from..from + at.len as usize))
    }
}

/// Returns the entries of a file that has ended, by its reverse index. A file whose end a recovery
/// found has no such index, and is read whole.
fn entries_of(file: &ReadableFile) -> Result<Vec<ReverseEntry>> {
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
    while let Some(record) = reader.next(end)? {
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
