//! Verification of a closed store: every byte with a meaning is read and checked, and nothing is
//! changed.
//!
//! The walk does not stop at damage. A store whose manifest is damaged is walked by the headers of
//! its files. In a damaged file the walk goes on behind the damage. If all files are sound, the
//! store is opened for reading, and all live records, all pages and the live bytes of all files are
//! verified. Otherwise a salvage names the logs and LSNs of the records that are lost.

use super::known_files::{KnownFile, KnownFiles, is_own, parse_manifest};
use super::report::LogVerifyReport;
use super::salvage::{Salvage, file_name};
use super::verify::LiveWalk;
use crate::catalog::{Catalog, CheckpointFile, Role};
use crate::checkpoint::{
    self, CheckpointHead, CopiedLog, checkpoint_path, decode_copied, names_path, names_record,
    read_names,
};
use crate::engine::Engine;
use crate::log_ops::LogOp;
use crate::lost_edits::{Search, newer_than_catalog};
use crate::mapping::Location;
use crate::namespace::LogState;
use crate::options::LogEngineOptions;
use crate::physical;
use crate::recovery::{self, LOCK};
use crate::reserve::RESERVE;
use crate::reverse_index::{self, ReverseEntry};
use basalt_env::Env;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::entries::entries;
use basalt_records::manifest::{self, CURRENT, CURRENT_LEN, Current, manifest_path};
use basalt_records::salvage::{Part, describe_tail, scan};
use basalt_records::verify::{Padding, check_spare};
use basalt_records::{Expect, FileKind, RECORD_HEADER, RecordKind, RecordReader, StoredRecord};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The name under which a replaced `CURRENT` is written.
const CURRENT_TMP: &str = "CURRENT.tmp";

/// The findings of a walk, and the data that a repair starts from.
pub(super) struct Walked {
    pub report: LogVerifyReport,
    pub known: KnownFiles,
    /// Names of damaged files.
    pub bad: BTreeSet<String>,
    /// Files of the directory.
    pub names: Vec<String>,
}

/// The progress of a walk: bytes read so far, and bytes to be read.
pub(super) struct WalkProgress<'a> {
    done: u64,
    total: u64,
    show: &'a mut dyn FnMut(u64, u64),
}

impl WalkProgress<'_> {
    pub fn new(show: &mut dyn FnMut(u64, u64)) -> WalkProgress<'_> {
        WalkProgress {
            done: 0,
            total: 0,
            show,
        }
    }

    /// Expects more bytes beyond those that were read.
    pub fn expect(&mut self, bytes: u64) {
        self.total = self.done.saturating_add(bytes);
    }

    /// Counts bytes that were read, and shows the progress.
    pub fn step(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
        (self.show)(self.done, self.total.max(self.done));
    }
}

/// Checks the closed store in a directory.
pub(crate) fn check(
    env: &Env,
    dir: &Path,
    options: &LogEngineOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LogVerifyReport> {
    options.validate()?;
    if !env.fs().exists(dir)? {
        return Err(recovery::no_store(dir));
    }
    let _lock = env.fs().lock_shared(&dir.join(LOCK))?;
    let mut progress = WalkProgress::new(progress);
    let walked = walk(env, dir, options, &mut progress)?;
    let mut report = walked.report;
    let later = |e: &Error| e.kind() == ErrorKind::Unsupported;
    if !report.damage.is_empty() && !report.damage.iter().any(later) {
        name_lost_records(env, dir, &walked.known, &mut progress, &mut report)?;
    }
    Ok(report)
}

/// Adds the losses of records, and what is left, to the findings.
fn name_lost_records(
    env: &Env,
    dir: &Path,
    known: &KnownFiles,
    progress: &mut WalkProgress<'_>,
    report: &mut LogVerifyReport,
) -> Result<()> {
    let mut step = |bytes| progress.step(bytes);
    let mut salvage = Salvage::run(env, dir, known, &mut step)?;
    (report.pages, report.live_bytes) = (0, 0);
    report.logs = salvage.logs.len() as u64;
    report.log_names = salvage.logs.values().map(|log| log.name.clone()).collect();
    report.log_names.sort_unstable();
    let logs = salvage.logs.values();
    report.records = logs.map(|log| log.records().count() as u64).sum();
    report.unnamed_logs = salvage.unnamed_logs();
    report.names = salvage.names_sentence();
    report.reappearing = std::mem::take(&mut salvage.reappearing);
    report.unproven_ends = salvage.unproven_ends;
    report.losses = salvage.losses;
    Ok(())
}

/// Walks the store; the caller holds its lock.
pub(super) fn walk(
    env: &Env,
    dir: &Path,
    options: &LogEngineOptions,
    progress: &mut WalkProgress<'_>,
) -> Result<Walked> {
    let names: Vec<String> = (env.fs().list(dir)?.into_iter())
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    if !names.iter().any(|n| n == CURRENT || is_own(n)) {
        return Err(recovery::no_store(dir));
    }
    let mut w = StoreWalk {
        env,
        dir,
        report: LogVerifyReport::default(),
        bad: BTreeSet::new(),
        progress,
    };
    let loaded = w.metadata(&names)?;
    let manifest_is_sound = w.report.damage.is_empty() && w.report.torn_tails.is_empty();
    let (manifest, catalog) = match loaded {
        Some((current, catalog)) => (Some(current.number), Some(catalog)),
        None => (None, None),
    };
    let mut known = KnownFiles::learn(env, dir, &names, catalog.clone())?;
    if known.is_unfinished {
        return Err(recovery::no_store(dir));
    }
    known.manifest_is_sound = manifest_is_sound;
    let sizes = known.files.values().map(|f| w.size(f));
    let sizes = sizes.fold(0, u64::saturating_add);
    w.progress.expect(sizes);
    for file in known.files.values() {
        w.file(file, known.store_id)?;
    }
    w.checkpoint(&known)?;
    // Live records are read a second time by their index.
    w.report.bytes = w.progress.done;
    if let (true, Some(catalog), Some(number)) = (w.report.damage.is_empty(), &catalog, manifest) {
        w.live(options, catalog, number)?;
    }
    w.name_files(&names, &known, manifest);
    Ok(Walked {
        report: w.report,
        known,
        bad: w.bad,
        names,
    })
}

/// The check of all files of a store, one after the other.
struct StoreWalk<'a, 'p> {
    env: &'a Env,
    dir: &'a Path,
    report: LogVerifyReport,
    /// Names of damaged files.
    bad: BTreeSet<String>,
    progress: &'a mut WalkProgress<'p>,
}

impl StoreWalk<'_, '_> {
    /// Notes damage of a file.
    fn bad(&mut self, name: &str, e: Error) -> Result<()> {
        self.bad.insert(name.to_string());
        self.report.note(e)
    }

    fn size(&self, file: &KnownFile) -> u64 {
        let space = file.records.as_ref().map_or(0, |r| r.file.allocated());
        file.end.map_or(space, |end| end.offset)
    }

    /// Checks `CURRENT` and the manifest. Returns the catalog, if it is whole.
    fn metadata(&mut self, names: &[String]) -> Result<Option<(Current, Catalog)>> {
        let fs = self.env.fs();
        let path = self.dir.join(CURRENT);
        if !names.iter().any(|n| n == CURRENT) {
            let what = "CURRENT is missing, but files of a log store are there";
            self.report.damage.push(Error::corruption(&path, 0, what));
            return Ok(None);
        }
        self.report.files += 1;
        let len = fs.stat(&path)?.len;
        self.progress.step(len);
        let loaded = match physical::load(self.env, self.dir) {
            Ok(loaded) => loaded,
            Err(e) => {
                let name = e.path().and_then(Path::file_name);
                let name = name.map_or(CURRENT.into(), |n| n.to_string_lossy().into_owned());
                self.bad(&name, e)?;
                return Ok(None);
            }
        };
        if len > CURRENT_LEN as u64 {
            let what = format!("the file has {len} bytes, expected {CURRENT_LEN}");
            self.bad(CURRENT, Error::corruption(&path, CURRENT_LEN as u64, what))?;
        }
        if let Some((current, _)) = &loaded {
            let path = manifest_path(self.dir, current.number);
            self.spare(&path, FileKind::Manifest, current.file_id, u64::MAX)?;
            let end = manifest::replay(self.env, self.dir, current, |_| Ok(()))?;
            self.report.files += 1;
            self.progress.step(end);
            if fs.stat(&path)?.len > end + fs.info().write_unit as u64 {
                let tail = describe_tail(&*fs.open(&path)?, &path, end)?;
                self.report.torn_tails.push(tail);
            }
        }
        let Some((current, catalog)) = &loaded else {
            return Ok(None);
        };
        if let Some(newer) =
            newer_than_catalog(self.env, self.dir, names, catalog, Search::AllRecords)?
        {
            let path = manifest_path(self.dir, current.number);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let what = format!(
                "the last edits of the manifest are lost: {newer} was written after an edit that the manifest does not have"
            );
            self.bad(&name, Error::corruption(&path, 0, what))?;
            return Ok(None);
        }
        Ok(loaded)
    }

    /// Checks the header's copies and the padding of a file of records. A missing file is reported
    /// elsewhere.
    fn spare(&mut self, path: &Path, kind: FileKind, file_id: u128, end: u64) -> Result<()> {
        let found = (self.env.fs().open(path)).and_then(|file| {
            check_spare(&*file, path, kind, file_id, end, Padding::BetweenRecords)
        });
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match found {
            Ok(found) => found.into_iter().try_for_each(|e| self.bad(&name, e)),
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => self.bad(&name, e),
        }
    }

    /// Checks all records of a physical log.
    fn file(&mut self, file: &KnownFile, store_id: u128) -> Result<()> {
        let Some(records) = &file.records else {
            let path = physical::file_path(self.dir, file.number, file.role);
            return self.bad(&file.name, physical::missing(&path));
        };
        self.report.files += 1;
        let end = file.end.map_or(u64::MAX, |end| end.offset);
        self.spare(&records.path, FileKind::Log, records.file_id, end)?;
        let first = match self.records(file, store_id) {
            Ok(()) => None,
            Err(e) => {
                let (corrupt, first) = (e.kind() == ErrorKind::Corruption, e.offset());
                self.bad(&file.name, e)?;
                corrupt.then_some(first)
            }
        };
        if let Some(first) = first {
            self.behind_damage(file, first)?;
        }
        self.progress.step(self.size(file));
        Ok(())
    }

    /// Reads the records of a file up to the first damage, which is the error.
    fn records(&mut self, file: &KnownFile, store_id: u128) -> Result<()> {
        let records = file.records.as_ref().expect("the caller checked");
        let path = &records.path;
        let end = file.end.map(|end| end.offset);
        let expect = Expect {
            kind: FileKind::Log,
            file_id: Some(records.file_id),
            store_id: Some(store_id),
            number: Some(file.number),
            proven_synced: end.unwrap_or(1),
        };
        let reader = RecordReader::open_expecting(records.file.clone(), path, &expect)?;
        let mut reader = reader.ok_or_else(|| physical::missing(path))?;
        // Recovery knows which record the first one continues. Without that, any is right.
        reader.follow(None);
        let mut reverse = ReverseCheck::default();
        while end.is_none_or(|end| reader.tail().end < end)
            && let Some(record) = reader.next(end.unwrap_or(0))?
        {
            let checked = check_record(file, &record, &mut reverse);
            checked.map_err(|what| Error::corruption(path, record.offset, what))?;
        }
        let tail = reader.tail();
        let (found, torn) = (tail.end, tail.torn);
        let wrong = |what: String| Err(Error::corruption(path, found, what));
        match file.end {
            None if torn => {
                let tail = describe_tail(&*records.file, path, found)?;
                self.report.torn_tails.push(tail);
                Ok(())
            }
            None => Ok(()),
            Some(end) if end.offset != found => wrong(format!(
                "the records end at {found}, the manifest says {}",
                end.offset
            )),
            Some(end) if end.reverse_index.is_some() && !reverse.pending.is_empty() => {
                wrong(format!(
                    "{} records are not in the reverse index",
                    reverse.pending.len()
                ))
            }
            Some(end) => match (end.reverse_index, reverse.segments.last()) {
                (Some(expected), Some(last)) if *last != expected => wrong(format!(
                    "the manifest says that the last segment of the reverse index is at {expected}, but it is at {last}"
                )),
                (Some(expected), None) => wrong(format!(
                    "the manifest says that the last segment of the reverse index is at {expected}, but the file has no segment"
                )),
                _ => Ok(()),
            },
        }
    }

    /// Reports the damage of a file that lies behind the first one, at `first`.
    fn behind_damage(&mut self, file: &KnownFile, first: Option<u64>) -> Result<()> {
        let records = file.records.as_ref().expect("the caller checked");
        let found = scan(&*records.file, &records.path, records.file_id, u64::MAX)?;
        let end = file.end.map(|end| end.offset);
        let synced = found.proven.max(end.unwrap_or(0));
        let parts = found.parts(file.first_record, end.unwrap_or(u64::MAX), synced);
        let whole = |part: &Part| match part {
            Part::Whole(r) => (r.offset..r.end).contains(&first.unwrap_or(u64::MAX)),
            _ => false,
        };
        // Unless the damage is in what a record says, the first part that does not verify is it.
        let mut reported = first.is_some() && !parts.iter().any(whole);
        for part in parts {
            let (bytes, what) = match part {
                Part::Whole(_) => continue,
                Part::Broken(r) => (r.offset..r.end, "the checksum of a record is wrong"),
                Part::Hole(bytes) => (bytes, "no record verifies in these bytes"),
            };
            let is_behind = first.is_none_or(|first| bytes.end > first);
            if is_behind && std::mem::take(&mut reported) {
                continue;
            }
            let what = format!("bytes up to {}: {what}", bytes.end);
            let e = Error::corruption(&records.path, bytes.start, what);
            self.report.damage.push(e);
        }
        Ok(())
    }

    /// Checks the checkpoint that the manifest names, or the newest one, and the names file.
    fn checkpoint(&mut self, known: &KnownFiles) -> Result<()> {
        let mut checkpoint = None;
        if let Some(c) = known.checkpoints.first() {
            let path = checkpoint_path(self.dir, c.number);
            let read = |env: &Env| checkpoint::read(env, &path, c, 0);
            checkpoint = self.part_of_checkpoint(c, &path, read)?;
        }
        let Some(c) = known.names.first() else {
            return Ok(());
        };
        let path = names_path(self.dir, c.number);
        let names = self.part_of_checkpoint(c, &path, |env| read_names(env, &path, c))?;
        // Without the manifest, the two may be of different checkpoints.
        if let (Some(checkpoint), Some(names), true) = (checkpoint, names, known.catalog.is_some())
            && let Some(what) = difference(&checkpoint, &names)
        {
            self.bad(&file_name(&path), Error::corruption(&path, 0, what))?;
        }
        Ok(())
    }

    /// Checks a checkpoint or a names file, which `read` reads. Returns `None` if it is damaged.
    fn part_of_checkpoint<T>(
        &mut self,
        c: &CheckpointFile,
        path: &Path,
        read: impl FnOnce(&Env) -> Result<T>,
    ) -> Result<Option<T>> {
        self.report.files += 1;
        let end = if c.end == 0 { u64::MAX } else { c.end };
        self.spare(path, FileKind::Log, c.file_id, end)?;
        self.progress.step(c.end);
        match read(self.env) {
            Ok(found) => Ok(Some(found)),
            Err(e) => self.bad(&file_name(path), e).map(|()| None),
        }
    }

    /// Opens the store for reading, and reads everything that is live.
    fn live(&mut self, options: &LogEngineOptions, catalog: &Catalog, number: u64) -> Result<()> {
        let (env, dir) = (self.env, self.dir);
        let opened = recovery::replay_read_only(env, dir, catalog.clone(), number, options, None);
        let recovered = match opened {
            Ok(recovered) => recovered,
            Err(e) => {
                let name = e.path().and_then(Path::file_name);
                let name = name.map(|n| n.to_string_lossy().into_owned());
                return match name {
                    Some(name) => self.bad(&name, e),
                    None => self.report.note(e),
                };
            }
        };
        let engine = Engine::new(env, recovered);
        let mut walk = LiveWalk::new(&engine);
        self.progress.expect(walk.progress().1);
        let mut before = 0;
        while walk.step(&engine)? {
            let (done, _) = walk.progress();
            self.progress.step(done - before);
            before = done;
        }
        let live = walk.report;
        let report = &mut self.report;
        let named = engine.namespace.all_named().into_iter();
        report.log_names = named.map(|(name, _)| name.to_string()).collect();
        (report.logs, report.records) = (live.logs, live.records);
        (report.pages, report.live_bytes) = (live.pages, live.live_bytes);
        for e in live.damage {
            if let Some(name) = e.path().and_then(Path::file_name) {
                self.bad.insert(name.to_string_lossy().into_owned());
            }
            report.damage.push(e);
        }
        self.live_bytes(&engine);
        Ok(())
    }

    /// Compares the live bytes of all files with those of the indexes.
    fn live_bytes(&mut self, engine: &Engine) {
        for (file, indexed) in engine.miscounted() {
            let counted = file.live.load(SeqCst);
            let what = format!(
                "{counted} bytes of the file are counted as live, but the indexes refer to {indexed} bytes; no record is damaged"
            );
            let e = Error::corruption(&file.path, 0, what);
            self.report.damage.push(e);
        }
    }

    fn name_files(&mut self, names: &[String], known: &KnownFiles, manifest: Option<u64>) {
        let mut named: BTreeSet<String> = [CURRENT, LOCK, RESERVE].map(String::from).into();
        named.extend(known.files.values().map(|f| f.name.clone()));
        named.extend(known.newest_checkpoint());
        for name in names {
            let is_manifest = manifest.is_some() && parse_manifest(name) == manifest;
            if named.contains(name) || is_manifest {
                continue;
            }
            let list = match (is_own(name) || name == CURRENT_TMP, manifest.is_some()) {
                (false, _) => &mut self.report.foreign,
                (true, true) => &mut self.report.unused_files,
                (true, false) => &mut self.report.unnamed,
            };
            list.push(name.clone());
        }
        if manifest.is_none() {
            let unnamed = named.iter().filter(|n| names.contains(n) && is_own(n));
            self.report.unnamed.extend(unnamed.cloned());
        }
    }
}

/// Returns the first difference between a checkpoint and the names file.
fn difference(
    (head, logs): &(CheckpointHead, Vec<Arc<LogState>>),
    (copied_head, copied): &(CheckpointHead, Vec<CopiedLog>),
) -> Option<String> {
    if head != copied_head {
        return Some("the names file belongs to another checkpoint".to_string());
    }
    if logs.len() != copied.len() {
        return Some(format!(
            "the names file has {} logs, the checkpoint has {}",
            copied.len(),
            logs.len()
        ));
    }
    let expected = |log: &Arc<LogState>| decode_copied(&names_record(log)?);
    let differs =
        |(log, copied): &(&Arc<LogState>, &CopiedLog)| expected(log).as_ref() != Some(copied);
    let (log, copied) = logs.iter().zip(copied).find(differs)?;
    Some(format!(
        "log {} ({:?}) in the names file differs from log {} ({:?}) in the checkpoint",
        copied.number,
        copied.name,
        log.number,
        log.name()
    ))
}

/// The reverse index of a file, as far as the records before it say what it must have.
#[derive(Default)]
struct ReverseCheck {
    /// Entries since the last segment.
    pending: Vec<ReverseEntry>,
    /// Offsets of the segments so far.
    segments: Vec<u64>,
}

/// Returns what is wrong with a record of a file.
fn check_record(
    file: &KnownFile,
    record: &StoredRecord,
    reverse: &mut ReverseCheck,
) -> std::result::Result<(), String> {
    match (file.role, record.kind) {
        (Role::Meta, RecordKind::LogOps | RecordKind::LogNames) => {
            let mut at = 0;
            while at < record.payload.len() {
                let begun = at;
                LogOp::decode(&record.payload, &mut at).ok_or_else(|| {
                    format!("the bytes at {begun} of a record are not an operation")
                })?;
            }
            Ok(())
        }
        (Role::Data | Role::Moved, RecordKind::Entries) => {
            for entry in entries(&record.payload) {
                let (at, head) = entry.ok_or("a record of log entries does not decode")?;
                if head.source.is_some() != (file.role == Role::Moved) {
                    return Err(format!(
                        "LSN {} of log {}: entries of .moved files must name a source, entries of .data files must not",
                        head.lsn, head.log
                    ));
                }
                let len = head
                    .entry_len()
                    .ok_or("the length of an entry does not fit in 32 bits")?;
                reverse.pending.push(ReverseEntry {
                    log: head.log,
                    lsn: head.lsn,
                    location: Location {
                        file: file.number,
                        offset: record.offset + (RECORD_HEADER + at) as u64,
                        len,
                    },
                });
            }
            Ok(())
        }
        (Role::Data | Role::Moved, RecordKind::ReverseIndex) => {
            let (others, found) = reverse_index::decode(&record.payload, file.number)
                .ok_or("a segment of the reverse index does not decode")?;
            let pending = std::mem::take(&mut reverse.pending);
            if found != pending {
                let differ = found.iter().zip(&pending).find(|(a, b)| a != b);
                let place = |entry: &ReverseEntry| {
                    let (at, len) = (entry.location.offset, entry.location.len);
                    format!(
                        "LSN {} of log {} at {at}, {len} bytes",
                        entry.lsn, entry.log
                    )
                };
                let differ = differ.map_or(String::new(), |(indexed, written)| {
                    let (indexed, written) = (place(indexed), place(written));
                    format!(
                        "; the first difference is {indexed} in the index, {written} in the file"
                    )
                });
                return Err(format!(
                    "the reverse index has {} entries, and the file has {}{differ}",
                    found.len(),
                    pending.len()
                ));
            }
            let last = file.end.and_then(|end| end.reverse_index) == Some(record.offset);
            if last && others != reverse.segments {
                return Err(format!(
                    "the reverse index names segments at {others:?}, found {:?}",
                    reverse.segments
                ));
            }
            reverse.segments.push(record.offset);
            Ok(())
        }
        (role, kind) => Err(format!(
            "a record of kind {kind:?} in a file of role {role:?}"
        )),
    }
}
