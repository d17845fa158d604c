//! The logs of a damaged store, as the readable parts of its files have them.
//!
//! The steps:
//! 1. The newest checkpoint that is whole has the logs as they were. If only parts of a checkpoint
//!    verify, the logs in them count, and all files are replayed for the others. The names file
//!    beside the checkpoint has the names, options and trim points of these others, and which of
//!    their records were live.
//! 2. Operations of the metalog and appends of the datalog are sorted by their sequence numbers and
//!    applied. Pages are left out: their entries are appends, too.
//! 3. Moved records replace the places that they name as their source.
//! 4. Entries of pages that cannot be read are searched in all files.
//! 5. Every record is read. A record that does not verify is lost, with its log and LSN.
//! 6. If damage took what could prove the end of a file, the bytes behind its last record are
//!    reported: nothing says whether they are a torn tail or acknowledged records.
//!
//! Memory: some 100 bytes for each live record and each replayed operation.

mod ends;
mod losses;
mod names;

use super::known_files::{KnownFile, KnownFiles};
use super::report::{LogLoss, LogUnprovenEnd};
use crate::catalog::{CheckpointFile, Role};
use crate::checkpoint::{self, CheckpointHead, checkpoint_path};
use crate::index::{EntryPlace, PageLocation};
use crate::log_ops::LogOp;
use crate::mapping::{Location, Mapping};
use crate::namespace::LogState;
use crate::options::{Duplicates, LogOptions};
use crate::reverse_index;
use basalt_env::Env;
use basalt_fs::{ErrorKind, Result};
use basalt_records::entries::{EntryHead, entries, open_entry};
use basalt_records::salvage::{self, Part, SalvagedRecord, scan};
use basalt_records::{RECORD_HEADER, RecordKind, open_record};
use losses::Claims;
use names::{CopiedLsns, CopiedNames};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::Path;

/// A log, as the readable parts of the store have it.
pub(super) struct SalvagedLog {
    pub name: String,
    pub options: LogOptions,
    pub trimmed: Option<u64>,
    /// True if the creation of the log is lost, and so its name and options.
    pub made_up: bool,
    /// Sequence number up to which the checkpoint has appends and removals; `None` for a log that
    /// no checkpoint has.
    applied: Option<u64>,
    /// The LSNs that a names file has; `None` for a log of a checkpoint, or of the metalog.
    copied: Option<CopiedLsns>,
    records: BTreeMap<u64, Location>,
}

impl SalvagedLog {
    fn made_up(number: u64) -> SalvagedLog {
        SalvagedLog {
            name: format!("recovered-{number}"),
            // Without the operations that were lost, an LSN may have been appended twice.
            options: LogOptions::default().duplicates(Duplicates::Replace),
            trimmed: None,
            made_up: true,
            applied: None,
            copied: None,
            records: BTreeMap::new(),
        }
    }

    /// Returns the LSNs and locations of the records, in rising order.
    pub fn records(&self) -> impl Iterator<Item = (u64, Location)> + '_ {
        self.records.iter().map(|(lsn, at)| (*lsn, *at))
    }
}

/// Returns the name of a file.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A change of a log at a sequence number.
enum Event {
    Append { lsn: u64, location: Location },
    Remove(RangeInclusive<u64>),
}

/// What a scan of a file knows around a damaged part of it.
#[derive(Clone, Copy)]
struct Scanned<'s> {
    /// All records of the file whose headers verify.
    all: &'s [SalvagedRecord],
    /// The smallest sequence number that records of the part can have.
    seq: u64,
}

/// A copy of a record that a garbage collection has made.
struct Move {
    log: u64,
    lsn: u64,
    seq: u64,
    source: (u64, u64),
    to: Location,
}

/// What is left of a store.
pub(super) struct Salvage<'a> {
    env: &'a Env,
    dir: &'a Path,
    pub known: &'a KnownFiles,
    pub logs: BTreeMap<u64, SalvagedLog>,
    pub next_seq: u64,
    pub next_log: u64,
    pub losses: Vec<LogLoss>,
    /// Ends of files that nothing proves.
    pub unproven_ends: Vec<LogUnprovenEnd>,
    /// Damage that cost no record by itself.
    pub notes: Vec<String>,
    /// What may show again although it was trimmed, removed or deleted.
    pub reappearing: Vec<String>,
    /// Names of damaged checkpoints.
    pub bad_checkpoints: Vec<String>,
    /// Names of damaged names files.
    pub bad_names: Vec<String>,
    copied: CopiedNames,
    /// Ends of the records of each file.
    pub ends: BTreeMap<u64, u64>,
    /// Numbers of the replayed files whose damage may have taken records that prove their own ends.
    damaged: BTreeSet<u64>,
    /// Replayed files that were cut, by number, and the offset of the cut.
    cut: BTreeMap<u64, u64>,
    /// Numbers of files whose last records are gone, as the next files prove.
    lost_tails: BTreeSet<u64>,
    /// Numbers of files behind which a file is lost, which could prove their ends.
    without_next: BTreeSet<u64>,
    /// Number and role of the file that was read last, and the checksum of its last record.
    last: Option<(u64, Role, Option<u32>)>,
    /// True if a whole checkpoint was found.
    has_checkpoint: bool,
    head: CheckpointHead,
    deleted: BTreeSet<u64>,
    events: BTreeMap<u64, Vec<(u64, Event)>>,
    claims: Vec<Claims>,
    moves: Vec<Move>,
    /// Places of the records of the datalog, in their order, and their sequence numbers.
    places: Vec<((u64, u64), u64)>,
    /// LSNs whose page of the index cannot be read, by log.
    unplaced: BTreeMap<u64, BTreeSet<u64>>,
    /// True if operations of the metalog are lost.
    lost_ops: bool,
    /// Number of records that were seen, and their largest sequence number.
    seen: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Salvage<'a> {
    /// Reads all files. `progress` is called with numbers of bytes that were read.
    pub fn run(
        env: &'a Env,
        dir: &'a Path,
        known: &'a KnownFiles,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Salvage<'a>> {
        let mut s = Salvage {
            env,
            dir,
            known,
            logs: BTreeMap::new(),
            next_seq: 1,
            next_log: 1,
            losses: Vec::new(),
            unproven_ends: Vec::new(),
            notes: Vec::new(),
            reappearing: Vec::new(),
            bad_checkpoints: Vec::new(),
            bad_names: Vec::new(),
            copied: CopiedNames::default(),
            ends: BTreeMap::new(),
            damaged: BTreeSet::new(),
            cut: BTreeMap::new(),
            lost_tails: BTreeSet::new(),
            without_next: BTreeSet::new(),
            last: None,
            has_checkpoint: false,
            head: CheckpointHead::default(),
            deleted: BTreeSet::new(),
            events: BTreeMap::new(),
            claims: Vec::new(),
            moves: Vec::new(),
            places: Vec::new(),
            unplaced: BTreeMap::new(),
            lost_ops: false,
            seen: 0,
            progress,
        };
        s.read_checkpoints()?;
        if !s.has_checkpoint {
            s.read_names()?;
        }
        for role in [Role::Meta, Role::Data, Role::Moved] {
            for file in known.files.values().filter(|f| f.role == role) {
                s.read_file(file)?;
            }
        }
        s.note_unproven_ends()?;
        s.place_lost_pages()?;
        s.note_outdated_claims();
        s.apply_events();
        s.apply_moves();
        s.lose_claimed();
        s.note_reappearing();
        s.read_records()?;
        s.lose_copied();
        s.lose_cut();
        Ok(s)
    }

    /// Takes the newest whole checkpoint, or else what can be read of a damaged one.
    fn read_checkpoints(&mut self) -> Result<()> {
        let known = self.known;
        // A damaged checkpoint that no edit names was interrupted, and the one before it counts.
        let is_newest = |c: &&CheckpointFile| known.named.is_none_or(|named| c.number >= named);
        let mut damaged = Vec::new();
        for c in known.checkpoints.iter().filter(is_newest) {
            let path = checkpoint_path(self.dir, c.number);
            match checkpoint::read(self.env, &path, c, 0) {
                Ok((head, logs)) => {
                    self.has_checkpoint = true;
                    self.copied.file = Some(file_name(&path));
                    self.take_head(head);
                    for log in logs {
                        self.take_log(&log)?;
                    }
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Corruption => damaged.push(c),
                Err(e) => return Err(e),
            }
        }
        for c in damaged {
            let path = checkpoint_path(self.dir, c.number);
            let name = file_name(&path);
            self.bad_checkpoints.push(name.clone());
            if self.has_checkpoint {
                self.notes.push(format!(
                    "{name}: the checkpoint is not whole, and an older one is used"
                ));
                continue;
            }
            if !self.logs.is_empty() {
                continue;
            }
            let reason = match self.read_parts(c, &path)? {
                0 => "the checkpoint cannot be read; all files are replayed".to_string(),
                n => format!(
                    "the checkpoint is damaged; {n} of its logs are readable, and all files are replayed for the others"
                ),
            };
            self.notes.push(format!("{name}: {reason}"));
        }
        Ok(())
    }

    /// Takes the readable logs of a damaged checkpoint, and returns their number.
    fn read_parts(&mut self, c: &CheckpointFile, path: &Path) -> Result<usize> {
        let file = match self.env.fs().open(path) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Ok(0),
            Err(e) => return Err(e),
        };
        let mut logs = Vec::new();
        for (i, found) in scan(&*file, path, c.file_id, u64::MAX)?
            .found
            .iter()
            .enumerate()
        {
            if !found.whole || found.kind != RecordKind::Checkpoint {
                continue;
            }
            let payload = salvage::read(&*file, path, found)?.payload;
            // The head is only needed for numbers that must not be given out twice: the files are
            // replayed from their beginnings.
            match CheckpointHead::decode(&payload).filter(|_| i == 0 && found.follows) {
                Some(head) => {
                    (self.next_seq, self.next_log) = (head.next_seq, head.next_log);
                    self.copied.at = head.next_seq;
                }
                None => logs.extend(checkpoint::decode_log(&payload, 0)),
            }
        }
        for log in &logs {
            self.take_log(log)?;
        }
        Ok(logs.len())
    }

    fn take_head(&mut self, head: CheckpointHead) {
        (self.next_seq, self.next_log) = (head.next_seq, head.next_log);
        self.head = head;
    }

    /// Takes a log of a checkpoint, with the entries of its pages.
    fn take_log(&mut self, log: &LogState) -> Result<()> {
        let inner = log.lock();
        let applied = inner.applied_seq;
        self.next_seq = self.next_seq.max(applied.saturating_add(1));
        let mut taken = SalvagedLog {
            name: log.name().to_string(),
            options: log.options,
            trimmed: inner.trimmed,
            made_up: false,
            applied: Some(applied),
            copied: None,
            records: BTreeMap::new(),
        };
        let mut pages: BTreeMap<PageLocation, Option<Mapping>> = BTreeMap::new();
        let mut unplaced = BTreeSet::new();
        for (lsn, place) in inner.index.entries_from(0, usize::MAX) {
            let location = match place {
                EntryPlace::Known(location) => Some(location),
                EntryPlace::OnPage(at) => {
                    if let Entry::Vacant(slot) = pages.entry(at) {
                        let page = self.read_page(log.number, at)?;
                        if page.is_none() {
                            self.note_bad_page(&log.name(), at);
                        }
                        slot.insert(page);
                    }
                    pages[&at].as_ref().and_then(|page| page.get(lsn))
                }
            };
            match location {
                Some(location) => {
                    taken.records.insert(lsn, location);
                }
                None => {
                    unplaced.insert(lsn);
                }
            }
        }
        if !unplaced.is_empty() {
            self.unplaced.insert(log.number, unplaced);
        }
        self.next_log = self.next_log.max(log.number.saturating_add(1));
        self.logs.insert(log.number, taken);
        Ok(())
    }

    fn note_bad_page(&mut self, log: &str, at: PageLocation) {
        let name = self.known.files.get(&at.file);
        let name = name.map_or(format!("{:06}.meta", at.file), |f| f.name.clone());
        self.notes.push(format!(
            "{name}: the page of the index of log {log:?} at offset {} cannot be read; its records are searched in all files",
            at.offset
        ));
    }

    /// Reads a page of a log's index. Returns `None` if it does not verify.
    fn read_page(&self, log: u64, at: PageLocation) -> Result<Option<Mapping>> {
        let file = self.known.files.get(&at.file);
        let Some(records) = file.and_then(|f| f.records.as_ref()) else {
            return Ok(None);
        };
        let len = u64::from(at.len).min(records.file.allocated());
        let bytes = records.file.read(at.offset, len as usize)?;
        if bytes.len() < RECORD_HEADER
            || open_record(records.file_id, at.offset, &bytes) != Ok(RecordKind::LogOps)
        {
            return Ok(None);
        }
        Ok(match LogOp::decode(&bytes, &mut RECORD_HEADER.clone()) {
            Some(LogOp::Page { log: of, mapping }) if of == log => Some(mapping),
            _ => None,
        })
    }

    /// Returns the point from which a file is replayed, or `None` if it is not replayed at all.
    fn replayed_from(&self, file: &KnownFile) -> Option<u64> {
        let start = self.head.start_of(file.role);
        if file.number < start.file {
            return None;
        }
        Some(start.point_in(file.number).map_or(0, |point| point.offset))
    }

    /// Replays a file, as far as it verifies.
    fn read_file(&mut self, file: &KnownFile) -> Result<()> {
        let Some(from) = self.replayed_from(file) else {
            return Ok(());
        };
        let before = self.last.filter(|(_, role, _)| *role == file.role);
        let Some(records) = &file.records else {
            self.without_next.extend(before.map(|(number, ..)| number));
            self.lost_ops |= file.role == Role::Meta;
            let end = file.end.map_or(0, |end| end.offset);
            self.lose(LogLoss::of_file(
                &file.name,
                0..end,
                "the manifest names this file, and it is missing",
            ));
            return Ok(());
        };
        let found = scan(&*records.file, &records.path, records.file_id, u64::MAX)?;
        let limit = file.end.map_or(u64::MAX, |end| end.offset);
        let synced = found.proven.max(file.end.map_or(0, |end| end.offset));
        let (mut seq, mut end) = (0, file.first_record);
        let mut last = None;
        for part in found.parts(file.first_record, limit, synced) {
            let (start, behind) = match &part {
                Part::Whole(r) | Part::Broken(r) => (r.offset, r.end),
                Part::Hole(bytes) => (bytes.start, bytes.end),
            };
            end = end.max(behind);
            match &part {
                // The last segment is written when the next file has records already.
                Part::Whole(r) if r.kind == RecordKind::ReverseIndex => {}
                Part::Whole(r) => last = Some(r.checksum),
                Part::Broken(_) | Part::Hole(_) => {
                    self.damaged.insert(file.number);
                }
            }
            if behind <= from {
                continue;
            }
            match part {
                Part::Whole(r) => {
                    seq = seq.max(r.first_seq);
                    self.take_record(file, r)?;
                }
                Part::Broken(r) => {
                    seq = seq.max(r.first_seq);
                    let all = &found.found;
                    self.take_broken(file, r, Scanned { all, seq })?;
                }
                Part::Hole(_) => {
                    let reason = "no record verifies in these bytes, which were synced";
                    let scanned = Scanned {
                        all: &found.found,
                        seq: seq + 1,
                    };
                    self.take_hole(file, start..behind, scanned, &[], reason)?;
                }
            }
        }
        // The header is durable before the manifest names the file. So a file without a header was
        // cut.
        let space = records.file.allocated().max(records.file.len());
        let no_header = space < file.first_record || records.last_nonzero(0)? == 0;
        if end == file.first_record && no_header {
            self.lost_ops |= file.role == Role::Meta;
            self.cut.insert(file.number, 0);
            self.without_next.extend(before.map(|(number, ..)| number));
        } else if end < from && records.last_nonzero(end)? < from {
            self.cut.insert(file.number, end);
        }
        self.compare_with_last(file, &found);
        self.last = Some((file.number, file.role, last));
        self.ends.insert(file.number, end);
        (self.progress)(end);
        Ok(())
    }

    fn take_record(&mut self, file: &KnownFile, found: &SalvagedRecord) -> Result<()> {
        let records = file.records.as_ref().expect("the file was scanned");
        let record = salvage::read(&*records.file, &records.path, found)?;
        self.next_seq = self.next_seq.max(found.first_seq.saturating_add(1));
        self.seen += u64::from(found.first_seq > 0);
        match found.kind {
            RecordKind::LogOps | RecordKind::LogNames if file.role == Role::Meta => {
                let mut at = 0;
                while at < record.payload.len() {
                    match LogOp::decode(&record.payload, &mut at) {
                        Some(op) => self.take_op(found.first_seq, op),
                        None => {
                            self.lost_ops = true;
                            break;
                        }
                    }
                }
            }
            RecordKind::Entries if file.role != Role::Meta => {
                if file.role == Role::Data {
                    let place = (file.number, found.offset);
                    self.places.push((place, found.first_seq));
                }
                for (at, head) in entries(&record.payload).flatten() {
                    let offset = found.offset + (RECORD_HEADER + at) as u64;
                    self.take_entry(file, found.first_seq, offset, &head);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the entries of a damaged record that verify alone.
    fn take_broken(
        &mut self,
        file: &KnownFile,
        found: &SalvagedRecord,
        scanned: Scanned<'_>,
    ) -> Result<()> {
        let seq = scanned.seq;
        let reason = "the checksum of the record is wrong";
        if file.role == Role::Meta || found.kind != RecordKind::Entries {
            // A reverse index has nothing that its records have not.
            if found.kind != RecordKind::ReverseIndex {
                self.take_hole(file, found.offset..found.end, scanned, &[], reason)?;
            }
            return Ok(());
        }
        let records = file.records.as_ref().expect("the file was scanned");
        let start = found.offset + RECORD_HEADER as u64;
        let space = records.file.allocated().max(records.file.len());
        let len = found.end.min(space).saturating_sub(start);
        let bytes = records.file.read(start, len as usize)?;
        let (mut at, mut claims) = (0, Vec::new());
        for _ in 0..found.count {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(head) = EntryHead::parse(rest).filter(|_| rest.len() > 4) else {
                break;
            };
            let end = at.saturating_add(head.head_len + head.len as usize);
            let Some(entry) = bytes.get(at..end) else {
                break;
            };
            let offset = start + at as u64;
            match open_entry(records.file_id, offset, entry) {
                Ok(_) => self.take_entry(file, seq, offset, &head),
                Err(_) => claims.push(head),
            }
            at = end;
        }
        self.next_seq = self.next_seq.max(seq.saturating_add(1));
        self.take_hole(file, found.offset..found.end, scanned, &claims, reason)
    }

    /// Takes the entries that lie in unreadable bytes, by the readable parts of the reverse index.
    /// They are read in the end, and lost then if they do not verify.
    fn take_hole(
        &mut self,
        file: &KnownFile,
        bytes: Range<u64>,
        scanned: Scanned<'_>,
        claims: &[EntryHead],
        reason: &str,
    ) -> Result<()> {
        let Scanned { all, seq } = scanned;
        if file.role == Role::Meta {
            self.lost_ops = true;
            self.lose(LogLoss::of_file(&file.name, bytes, reason));
            return Ok(());
        }
        if file.role == Role::Moved && self.has_checkpoint {
            // The index leads to the records, wherever they are, or to their lost copies.
            self.notes.push(format!(
                "{}, bytes {} to {}: {reason}",
                file.name, bytes.start, bytes.end
            ));
            return Ok(());
        }
        let records = file.records.as_ref().expect("the file was scanned");
        let mut entries = 0u64;
        for found in all {
            if !found.whole || found.kind != RecordKind::ReverseIndex {
                continue;
            }
            let payload = salvage::read(&*records.file, &records.path, found)?.payload;
            let (_, of) = reverse_index::decode(&payload, file.number).unwrap_or_default();
            for entry in of {
                let place = entry.location;
                if !bytes.contains(&place.offset) {
                    continue;
                }
                entries += 1;
                let head = EntryHead {
                    log: entry.log,
                    lsn: entry.lsn,
                    len: place.len,
                    source: None,
                    head_len: 0,
                };
                self.take_entry(file, seq, place.offset, &head);
            }
        }
        match entries {
            0 if claims.is_empty() => {
                let what = format!("{reason}; nothing says which records were there");
                self.lose(LogLoss::of_file(&file.name, bytes, &what));
            }
            0 => self.claim(file, bytes, seq, claims),
            n if file.role == Role::Moved => {
                let what = format!("{reason}; the copies of {n} records were there");
                self.lose(LogLoss::of_file(&file.name, bytes, &what));
            }
            n => self.notes.push(format!(
                "{}, bytes {} to {}: {reason}; they had {n} records",
                file.name, bytes.start, bytes.end
            )),
        }
        Ok(())
    }

    fn take_op(&mut self, seq: u64, op: LogOp) {
        let number = op.log();
        self.next_log = self.next_log.max(number.saturating_add(1));
        if let LogOp::Create { name, options, .. } = op {
            if self.was_deleted(number) || self.logs.get(&number).is_some_and(|l| !l.made_up) {
                return;
            }
            let log = self
                .logs
                .entry(number)
                .or_insert_with(|| SalvagedLog::made_up(number));
            (log.name, log.options, log.made_up) = (name, options, false);
            return;
        }
        if let LogOp::Delete { .. } = op {
            self.logs.remove(&number);
            self.events.remove(&number);
            self.deleted.insert(number);
            return;
        }
        if let LogOp::Rename { name, .. } = op {
            self.take_rename(number, seq, name);
            return;
        }
        let Some(log) = self.log_of(number) else {
            return;
        };
        match op {
            LogOp::Trim { up_to, .. } => log.trimmed = log.trimmed.max(Some(up_to)),
            LogOp::Remove { range, .. } if log.applied.is_none_or(|applied| seq > applied) => {
                let events = self.events.entry(number).or_default();
                events.push((seq, Event::Remove(range)));
            }
            _ => {}
        }
    }

    /// Returns true if the log was deleted: a deletion was read, or the checkpoint or its names
    /// file should have the log and does not.
    fn was_deleted(&self, number: u64) -> bool {
        self.deleted.contains(&number)
            || (number < self.copied.below.max(self.head.next_log)
                && !self.logs.contains_key(&number))
    }

    /// Returns a log, which gets a name if its creation is lost, or `None` if it was deleted.
    fn log_of(&mut self, number: u64) -> Option<&mut SalvagedLog> {
        if self.was_deleted(number) {
            return None;
        }
        self.next_log = self.next_log.max(number.saturating_add(1));
        let log = self.logs.entry(number);
        Some(log.or_insert_with(|| SalvagedLog::made_up(number)))
    }

    fn take_entry(&mut self, file: &KnownFile, seq: u64, offset: u64, head: &EntryHead) {
        let Some(len) = head.entry_len() else {
            return;
        };
        let Some(log) = self.log_of(head.log) else {
            return;
        };
        let location = Location {
            file: file.number,
            offset,
            len,
        };
        if let (Role::Moved, Some(source)) = (file.role, head.source) {
            self.moves.push(Move {
                log: head.log,
                lsn: head.lsn,
                seq,
                source,
                to: location,
            });
        } else if file.role == Role::Data && log.applied.is_none_or(|applied| seq > applied) {
            let lsn = head.lsn;
            let events = self.events.entry(head.log).or_default();
            events.push((seq, Event::Append { lsn, location }));
        }
    }

    /// Applies appends and removals of each log in their order.
    fn apply_events(&mut self) {
        // A moved record whose source file is missing stands for its append. The record may have
        // been replaced before the move, so the sequence number of the move gives no order. The
        // append is older than all records that lie behind the source.
        for m in &self.moves {
            let of_base = (self.logs.get(&m.log)).is_none_or(|log| log.applied.is_some());
            let gone = self
                .known
                .files
                .get(&m.source.0)
                .is_none_or(|f| f.records.is_none());
            if gone && !of_base {
                let (lsn, location) = (m.lsn, m.to);
                let events = self.events.entry(m.log).or_default();
                let behind = self.places.partition_point(|(place, _)| *place <= m.source);
                let before = self
                    .places
                    .get(behind)
                    .map(|(_, seq)| seq.saturating_sub(1));
                let seq = before.map_or(m.seq, |before| before.min(m.seq));
                events.push((seq, Event::Append { lsn, location }));
            }
        }
        for (number, mut events) in std::mem::take(&mut self.events) {
            let Some(log) = self.logs.get_mut(&number) else {
                continue;
            };
            events.sort_by_key(|(seq, _)| *seq);
            for (seq, event) in events {
                match event {
                    Event::Append { lsn, .. }
                        if log.copied.as_ref().is_some_and(|c| c.lacks(seq, lsn)) => {}
                    Event::Append { lsn, location } => {
                        log.records.insert(lsn, location);
                    }
                    Event::Remove(range) => {
                        log.records.retain(|lsn, _| !range.contains(lsn));
                        if let Some(copied) = &mut log.copied {
                            copied.remove(seq, &range);
                        }
                    }
                }
            }
        }
        for log in self.logs.values_mut() {
            if let Some(trimmed) = log.trimmed {
                log.records = log.records.split_off(&trimmed.saturating_add(1));
            }
        }
    }

    fn apply_moves(&mut self) {
        for m in &self.moves {
            let record = (self.logs.get_mut(&m.log)).and_then(|log| log.records.get_mut(&m.lsn));
            if let Some(at) = record.filter(|at| (at.file, at.offset) == m.source) {
                *at = m.to;
            }
        }
    }

    /// Searches all files for entries whose page of the index cannot be read.
    fn place_lost_pages(&mut self) -> Result<()> {
        if self.unplaced.is_empty() {
            return Ok(());
        }
        let mut found: BTreeMap<(u64, u64), Location> = BTreeMap::new();
        for role in [Role::Data, Role::Moved] {
            for file in self.known.files.values().filter(|f| f.role == role) {
                self.search_file(file, &mut found)?;
            }
        }
        for (number, lsns) in std::mem::take(&mut self.unplaced) {
            let Some(log) = self.logs.get_mut(&number) else {
                continue;
            };
            let mut missing = Vec::new();
            for lsn in lsns {
                if log.trimmed.is_some_and(|trimmed| lsn <= trimmed) {
                    continue;
                }
                match found.get(&(number, lsn)) {
                    Some(location) => {
                        log.records.insert(lsn, *location);
                    }
                    None => missing.push(lsn),
                }
            }
            let name = log.name.clone();
            self.lose_unplaced(&name, &missing);
        }
        Ok(())
    }

    fn search_file(
        &self,
        file: &KnownFile,
        found: &mut BTreeMap<(u64, u64), Location>,
    ) -> Result<()> {
        let Some(records) = &file.records else {
            return Ok(());
        };
        for r in scan(&*records.file, &records.path, records.file_id, u64::MAX)?.found {
            if !r.whole || r.kind != RecordKind::Entries {
                continue;
            }
            let payload = salvage::read(&*records.file, &records.path, &r)?.payload;
            for (at, head) in entries(&payload).flatten() {
                let key = (head.log, head.lsn);
                let wanted = (self.unplaced.get(&head.log)).is_some_and(|l| l.contains(&head.lsn));
                let applied = self.logs.get(&head.log).and_then(|log| log.applied);
                let Some(len) = head.entry_len().filter(|_| wanted) else {
                    continue;
                };
                let location = Location {
                    file: file.number,
                    offset: r.offset + (RECORD_HEADER + at) as u64,
                    len,
                };
                let old = found.get(&key);
                let replaces = match head.source {
                    None => applied.is_none_or(|applied| r.first_seq <= applied),
                    // A copy of this record, or of one whose file is gone.
                    Some((of, offset)) => old.is_none_or(|old| {
                        (old.file, old.offset) == (of, offset)
                            || !self.known.files.contains_key(&of)
                    }),
                };
                if replaces {
                    found.insert(key, location);
                }
            }
        }
        Ok(())
    }

    /// Says which records may show again although they were trimmed or removed.
    fn note_reappearing(&mut self) {
        // If the creation of a log is lost, so may be other operations around it.
        let has_base = self.has_checkpoint || self.copied.below > 0;
        self.lost_ops |= has_base && self.logs.values().any(|log| log.made_up);
        let all_seen = self.seen + 1 == self.next_seq;
        for (number, log) in &self.logs {
            let name = &log.name;
            // A checkpoint or its names file has all that came before it.
            let is_known = log.applied.is_some()
                || log.copied.is_some()
                || self.has_checkpoint
                || self.copied.below > 0;
            if log.made_up {
                self.reappearing.push(format!(
                    "log {number} is named {name:?}, because its creation is lost; it may have been deleted, and all of its records may have been trimmed"
                ));
            } else if !is_known && !all_seen {
                self.reappearing.push(format!(
                    "log {name:?}: operations before the readable ones may be lost, so records that were trimmed or removed may show again"
                ));
            } else if self.lost_ops {
                self.reappearing.push(format!(
                    "log {name:?}: operations of the metalog are lost, so records that were trimmed or removed may show again"
                ));
            }
        }
    }
}
