//! Opening a store: the manifest, then the metalog, then the datalog (pageserver 5.3).
//!
//! Recovery appends nothing to files of earlier runs. A file that was being written gets its end:
//! where its records end, after a sync of what was found.

use crate::apply::{PlacedOp, add_entry, apply_to_log};
use crate::catalog::{Catalog, FileEnd, Role};
use crate::checkpoint::{self, CheckpointHead, checkpoint_path, names_path};
use crate::engine::Recovered;
use crate::index::{EntryPlace, Freed, PageLocation};
use crate::log_ops::LogOp;
use crate::lost_edits::{Search, newer_than_catalog};
use crate::mapping::{Location, Mapping};
use crate::namespace::{LogState, Namespace};
use crate::options::LogEngineOptions;
use crate::pages;
use crate::physical::{self, PhysicalLogs, ReadableFile, ReplayStart, file_path};
use crate::reserve;
use crate::writer::PhysicalWriter;
use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_fs::{Error, ErrorKind, LockGuard, Result};
use basalt_records::entries::entries;
use basalt_records::manifest::{CURRENT, manifest_path};
use basalt_records::{Expect, FileKind, RECORD_HEADER, RecordKind, RecordReader, StoredRecord};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is wrong with a record, if anything.
type Applied = std::result::Result<(), String>;

/// Name of the file whose lock says that a process has the store open.
pub(crate) const LOCK: &str = "LOCK";
/// Extensions of files that a log store makes.
const OWN: [&str; 5] = ["data", "moved", "meta", "checkpoint", "names"];

/// Numbers of open engines, so that a log of one is not used with another.
static ENGINES: AtomicU64 = AtomicU64::new(1);

/// Opens the store in a directory, or creates one.
pub(crate) fn open(env: &Env, dir: &Path, options: &LogEngineOptions) -> Result<Recovered> {
    let fs = env.fs();
    if !fs.exists(&dir.join(CURRENT))? {
        if !options.create_if_missing {
            return Err(Error::new(
                ErrorKind::NotFound,
                "there is no log store in this directory; open it with create_if_missing",
            )
            .in_file(dir));
        }
        fs.create_dir(dir)?;
        if let Some(parent) = dir.parent() {
            fs.sync_metadata(parent)?;
        }
    }
    let lock = fs.lock(&dir.join(LOCK))?;
    let found = physical::load(env, dir)?;
    let (number, catalog) = match found.as_ref() {
        Some((current, catalog)) => {
            check_is_newest(env, dir, current.number, catalog)?;
            (current.number, catalog.clone())
        }
        None => {
            check_is_empty(env, dir)?;
            let catalog = Catalog {
                store_id: env.random().next_u128(),
                next_file: 1,
                ..Catalog::default()
            };
            (0, catalog)
        }
    };
    let logs = PhysicalLogs::open(env, dir, catalog.clone(), number, options.file_bytes)?;
    let logs = Arc::new(logs);
    let (recovered, ends) = replay(env, &catalog, &logs, options, Some(lock))?;
    // Nothing was written so far, so an open that fails leaves the store as it was.
    let unused = unused_files(env, dir, number, &catalog)?;
    if found.is_none() || !ends.is_empty() || !unused.is_empty() {
        write_ends(env, &logs, &ends, &unused)?;
    }
    Ok(recovered)
}

/// Records the ends of files in a fresh manifest, and then removes the files that it does not name.
/// The fresh manifest comes first because a power cut could take the last edit back. The state
/// before that edit may name some of the files.
fn write_ends(env: &Env, logs: &PhysicalLogs, ends: &Ends, unused: &[UnusedFile]) -> Result<()> {
    let remove = |file: &UnusedFile| env.fs().remove(&logs.dir().join(&file.name));
    let had_reserve = reserve::exists(env, logs.dir());
    if let Err(e) = logs.end_files(ends) {
        let newer: Vec<_> = unused.iter().filter(|file| file.is_newer).collect();
        if e.kind() != ErrorKind::NoSpace || newer.is_empty() {
            return Err(e);
        }
        newer.into_iter().try_for_each(remove)?;
        // Some filesystems give space back only when the removals are durable.
        env.fs().sync_metadata(logs.dir())?;
        logs.end_files(ends)?;
    }
    for (number, end) in ends {
        logs.release_tail(*number, end.offset);
    }
    for file in unused {
        match remove(file) {
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
    }
    if had_reserve {
        // The fresh manifest may have taken a part of it.
        logs.keep_reserve();
    }
    Ok(())
}

/// Opens the store in a directory without permission, or intent, to change a byte. The lock that a
/// writer holds alone is shared by readers.
pub(crate) fn open_read_only(
    env: &Env,
    dir: &Path,
    options: &LogEngineOptions,
) -> Result<Recovered> {
    let fs = env.fs();
    if !fs.exists(dir)? {
        return Err(no_store(dir));
    }
    let lock = fs.lock_shared(&dir.join(LOCK))?;
    let Some((current, catalog)) = physical::load(env, dir)? else {
        check_is_empty(env, dir)?;
        return Err(no_store(dir));
    };
    check_is_newest(env, dir, current.number, &catalog)?;
    replay_read_only(env, dir, catalog, current.number, options, lock)
}

/// Refuses a manifest that has lost its last edits. The files that only those name would be removed
/// with their records.
fn check_is_newest(env: &Env, dir: &Path, manifest: u64, catalog: &Catalog) -> Result<()> {
    let names = env.fs().list(dir)?.into_iter().filter(|e| !e.is_dir);
    let names: Vec<String> = names.map(|e| e.name).collect();
    match newer_than_catalog(env, dir, &names, catalog, Search::FirstRecord)? {
        None => Ok(()),
        Some(newer) => Err(Error::corruption(
            &manifest_path(dir, manifest),
            0,
            format!(
                "the last edits of the manifest are lost: {newer} was written after an edit that the manifest does not have"
            ),
        )),
    }
}

/// Replays the files of a catalog, which the manifest with this number has. Changes nothing.
pub(crate) fn replay_read_only(
    env: &Env,
    dir: &Path,
    catalog: Catalog,
    manifest: u64,
    options: &LogEngineOptions,
    lock: Option<Box<dyn LockGuard>>,
) -> Result<Recovered> {
    let logs =
        PhysicalLogs::open_read_only(env, dir, catalog.clone(), manifest, options.file_bytes)?;
    let logs = Arc::new(logs);
    let (recovered, ends) = replay(env, &catalog, &logs, options, lock)?;
    logs.note_ends(&ends);
    Ok(recovered)
}

/// Returns the error for a directory that holds no store.
pub(crate) fn no_store(dir: &Path) -> Error {
    Error::new(ErrorKind::NotFound, "no store here").in_file(dir)
}

/// Ends of files, by number.
type Ends = Vec<(u64, FileEnd)>;

/// Replays what the files of a catalog have. Also returns the ends of files that were being written
/// when the store was last open.
fn replay(
    env: &Env,
    catalog: &Catalog,
    logs: &Arc<PhysicalLogs>,
    options: &LogEngineOptions,
    lock: Option<Box<dyn LockGuard>>,
) -> Result<(Recovered, Ends)> {
    let dir = logs.dir();
    let mut state = RecoveredLogs {
        env,
        engine: ENGINES.fetch_add(1, Relaxed),
        logs,
        namespace: Namespace::new(env.ledger()),
        deleted: BTreeSet::new(),
        ordered: BTreeMap::new(),
        next_seq: 1,
        next_log: 1,
        applied: BTreeMap::new(),
        head: CheckpointHead::default(),
        ends: Vec::new(),
        failed_page: OnceCell::new(),
    };
    if let Some(c) = &catalog.checkpoint {
        let path = checkpoint_path(dir, c.number);
        let (head, all) = checkpoint::read(env, &path, c, state.engine)?;
        state
            .take_checkpoint(head, all)
            .map_err(|what| Error::corruption(&path, 0, what))?;
    }
    // Moved records are replayed last. One is skipped if the index no longer has its source.
    for role in [Role::Meta, Role::Data, Role::Moved] {
        if role == Role::Moved {
            state.apply_all_ordered();
        }
        state.read_role(catalog, role)?;
    }
    if let Some(e) = state.failed_page.take() {
        return Err(e);
    }
    state.finish()?;
    let (ends, next_seq, next_log) = (state.ends, state.next_seq, state.next_log);
    let (number, namespace, head) = (state.engine, state.namespace, state.head);
    let recovered = Recovered {
        number,
        namespace,
        data: PhysicalWriter::new(logs, Role::Data),
        meta: PhysicalWriter::new(logs, Role::Meta),
        moved: PhysicalWriter::new(logs, Role::Moved),
        logs: logs.clone(),
        next_seq,
        next_log,
        file_bytes: options.file_bytes,
        max_space_amp: options.max_space_amp,
        head,
        lock,
    };
    Ok((recovered, ends))
}

/// Refuses to make a store in a directory that has files of one, but no manifest.
fn check_is_empty(env: &Env, dir: &Path) -> Result<()> {
    let is_own = |name: &str| OWN.contains(&name.rsplit('.').next().unwrap_or_default());
    match env
        .fs()
        .list(dir)?
        .iter()
        .find(|e| !e.is_dir && is_own(&e.name))
    {
        None => Ok(()),
        Some(entry) => Err(Error::corruption(
            &dir.join(CURRENT),
            0,
            format!("{CURRENT} is missing, but {} is there", entry.name),
        )),
    }
}

/// A file of the store that its manifest does not name. It was being made or removed when the store
/// was last open.
struct UnusedFile {
    name: String,
    /// True if no earlier state of the store names the file either.
    is_newer: bool,
}

/// Returns the files of the store that the manifest with this number does not name.
fn unused_files(
    env: &Env,
    dir: &Path,
    manifest: u64,
    catalog: &Catalog,
) -> Result<Vec<UnusedFile>> {
    let named = catalog
        .files
        .iter()
        .map(|(n, f)| file_path(dir, *n, f.role));
    let mut named: BTreeSet<PathBuf> = named.collect();
    named.extend((catalog.checkpoint).map(|c| checkpoint_path(dir, c.number)));
    named.extend((catalog.names).map(|c| names_path(dir, c.number)));
    named.insert(manifest_path(dir, manifest));
    let mut unused = Vec::new();
    for entry in env.fs().list(dir)?.into_iter().filter(|e| !e.is_dir) {
        let number = physical::number_of(&entry.name);
        let extension = entry.name.rsplit('.').next().unwrap_or_default();
        let is_manifest = entry.name.starts_with("MANIFEST-");
        let is_own = is_manifest || (number.is_some() && OWN.contains(&extension));
        if is_own && !named.contains(&dir.join(&entry.name)) {
            unused.push(UnusedFile {
                is_newer: number.is_some_and(|number| number >= catalog.next_file),
                name: entry.name,
            });
        }
    }
    Ok(unused)
}

/// An operation that is applied at its place among the appends.
struct OrderedOp {
    seq: u64,
    op: LogOp,
    at: PageLocation,
}

/// The logical logs while the files are read.
struct RecoveredLogs<'a> {
    env: &'a Env,
    engine: u64,
    logs: &'a PhysicalLogs,
    namespace: Namespace,
    /// Numbers of logs that were deleted.
    deleted: BTreeSet<u64>,
    /// Removals of ranges and pages by log, which have their place among the appends. The first
    /// ones come first.
    ordered: BTreeMap<u64, Vec<OrderedOp>>,
    next_seq: u64,
    next_log: u64,
    /// Sequence numbers up to which the checkpoint has the appends and removals of each log.
    applied: BTreeMap<u64, u64>,
    /// Where the checkpoint began; the beginning of all files if there is none.
    head: CheckpointHead,
    /// Ends of files that were being written.
    ends: Vec<(u64, FileEnd)>,
    /// The first error of the device when a page of the index was read for a moved record. The open
    /// fails with this error, because a replay without the page would lose the record. A later open
    /// may succeed.
    failed_page: OnceCell<Error>,
}

impl RecoveredLogs<'_> {
    fn take_checkpoint(&mut self, head: CheckpointHead, logs: Vec<Arc<LogState>>) -> Applied {
        for log in logs {
            let mut live = Freed::default();
            log.lock().index.live(&mut live);
            for (file, bytes) in live.records.iter().chain(live.pages.iter()) {
                // A file that does not exist was collected since, and the replay moves its records.
                if let Some(file) = self.logs.get(file) {
                    file.add_live(bytes);
                }
            }
            if log.number >= head.next_log {
                return Err(format!(
                    "log {} is in the checkpoint, which says that its number is not used yet",
                    log.number
                ));
            }
            self.applied.insert(log.number, log.lock().applied_seq);
            self.namespace.add(log).map_err(|e| e.to_string())?;
        }
        let applied = self
            .applied
            .values()
            .max()
            .map_or(0, |a| a.saturating_add(1));
        (self.next_seq, self.next_log) = (head.next_seq.max(applied), head.next_log);
        self.head = head;
        Ok(())
    }

    fn replayed_from(&self, role: Role) -> ReplayStart {
        self.head.start_of(role)
    }

    /// Returns true if the checkpoint has this append or removal.
    fn has_applied(&self, log: u64, seq: u64) -> bool {
        self.applied
            .get(&log)
            .is_some_and(|applied| seq <= *applied)
    }

    /// Returns true if a log that is not in the namespace was deleted: the checkpoint would have
    /// it, or a deletion was replayed. Otherwise the creation of the log is lost.
    fn was_deleted(&self, log: u64) -> bool {
        log < self.head.next_log || self.deleted.contains(&log)
    }

    /// Replays the files of a role, from the checkpoint's point on. The manifest learns the ends of
    /// files that were being written.
    fn read_role(&mut self, catalog: &Catalog, role: Role) -> Result<()> {
        let start = self.replayed_from(role);
        // The last record of the file before, if a power cut may have taken the file's tail.
        let mut follows = None;
        for (number, entry) in catalog.files.iter().filter(|(_, f)| f.role == role) {
            let end = entry.end.map(|end| end.offset);
            let replayed = *number >= start.file;
            if replayed || end.is_none() {
                let last = self.read_file(*number, end, follows, replayed)?;
                follows = last.filter(|_| end.is_none() && replayed);
            }
        }
        Ok(())
    }

    /// Reads a file. Its first record must continue the one with the header checksum `follows`, if
    /// that is known. Returns the header checksum that the next file's first record continues.
    fn read_file(
        &mut self,
        number: u64,
        end: Option<u64>,
        follows: Option<u32>,
        replayed: bool,
    ) -> Result<Option<u32>> {
        let file = self.logs.get(number).expect("the catalog names it");
        let expect = Expect {
            kind: FileKind::Log,
            file_id: Some(file.file_id),
            store_id: None,
            number: Some(number),
            proven_synced: end.unwrap_or(1),
        };
        let reader = RecordReader::open_expecting(file.file().clone(), &file.path, &expect)?;
        let mut reader = reader.ok_or_else(|| physical::missing(&file.path))?;
        match self.replayed_from(file.role).point_in(number) {
            Some(point) => reader.resume_at(&point)?,
            None => reader.follow(follows),
        }
        let mut last = reader.chain();
        while end.is_none_or(|end| reader.tail().end < end)
            && let Some(record) = reader.next(end.unwrap_or(0))?
        {
            if record.kind != RecordKind::ReverseIndex {
                // The last segment is written when the next file has records already.
                last = reader.chain();
            }
            if !replayed {
                continue;
            }
            self.next_seq = self.next_seq.max(record.first_seq.saturating_add(1));
            self.apply(&file, &record)
                .map_err(|what| Error::corruption(&file.path, record.offset, what))?;
        }
        if end.is_none() {
            // The bytes may only be in the page cache, if just the process died.
            if !self.logs.is_read_only() {
                file.file().sync_data()?;
            }
            let end = FileEnd {
                offset: reader.tail().end,
                reverse_index: None,
            };
            self.ends.push((number, end));
        }
        // A later file follows only a full one. If this one lost all records, none follows it.
        Ok(last.or(Some(0)))
    }

    fn apply(&mut self, file: &Arc<ReadableFile>, record: &StoredRecord) -> Applied {
        match (file.role, record.kind) {
            (Role::Meta, RecordKind::LogOps | RecordKind::LogNames) => self.apply_ops(file, record),
            (Role::Data, RecordKind::Entries) => self.apply_entries(file, record),
            (Role::Moved, RecordKind::Entries) => self.apply_moved(file, record),
            (Role::Data | Role::Moved, RecordKind::ReverseIndex) => Ok(()),
            (role, kind) => Err(format!(
                "a record of kind {kind:?} in a file of role {role:?}"
            )),
        }
    }

    fn apply_ops(&mut self, file: &ReadableFile, record: &StoredRecord) -> Applied {
        let place = PageLocation {
            file: file.number,
            offset: record.offset,
            len: (RECORD_HEADER + record.payload.len()) as u32,
        };
        let mut at = 0;
        while at < record.payload.len() {
            let op = LogOp::decode(&record.payload, &mut at)
                .ok_or_else(|| format!("the bytes at {at} of a record are not an operation"))?;
            self.apply_op(record.first_seq, op, place)?;
        }
        Ok(())
    }

    fn apply_op(&mut self, seq: u64, op: LogOp, at: PageLocation) -> Applied {
        let number = op.log();
        if let LogOp::Create { log, name, options } = op {
            self.next_log = self.next_log.max(log.saturating_add(1));
            let state = LogState::new(self.engine, log, &name, options);
            if self.namespace.by_number(log).is_some() || self.was_deleted(log) {
                // The checkpoint has the log already, or it was deleted since.
                return match log < self.head.next_log {
                    true => Ok(()),
                    false => Err(format!("log {log} is created twice")),
                };
            }
            return self.namespace.add(state).map_err(|e| e.to_string());
        }
        let Some(log) = self.namespace.by_number(number) else {
            return match self.was_deleted(number) {
                true => Ok(()),
                false => Err(format!(
                    "an operation on log {number}, and no record before it creates the log; records of the metalog are lost"
                )),
            };
        };
        match op {
            LogOp::Remove { .. } if self.has_applied(number, seq) => {}
            LogOp::Remove { .. } | LogOp::Page { .. } => {
                let ops = self.ordered.entry(number).or_default();
                ops.push(OrderedOp { seq, op, at });
            }
            LogOp::Rename { name, .. } => {
                let renamed = self.namespace.rename(number, &name);
                return renamed.map_err(|e| e.to_string());
            }
            LogOp::Delete { .. } => {
                // The checkpoint counted what it had of the log as live.
                let mut dead = Freed::default();
                log.lock().index.live(&mut dead);
                self.note_freed(&dead);
                self.namespace.remove(number);
                self.deleted.insert(number);
            }
            op => {
                let op = OrderedOp { seq, op, at };
                self.apply_placed(&log, &op);
            }
        }
        Ok(())
    }

    fn apply_entries(&mut self, file: &Arc<ReadableFile>, record: &StoredRecord) -> Applied {
        for entry in entries(&record.payload) {
            let (at, head) = entry.ok_or("a record of log entries does not decode")?;
            let Some(log) = self.namespace.by_number(head.log) else {
                if self.was_deleted(head.log) {
                    continue;
                }
                return Err(format!(
                    "an append to log {}, which no record of the metalog creates; the end of the metalog is lost",
                    head.log
                ));
            };
            if self.has_applied(log.number, record.first_seq) {
                continue;
            }
            let location = Location {
                file: file.number,
                offset: record.offset + (RECORD_HEADER + at) as u64,
                len: head
                    .entry_len()
                    .ok_or("the length of an entry does not fit in 32 bits")?,
            };
            self.apply_ordered(&log, Some(record.first_seq));
            file.add_live(u64::from(location.len));
            let load = |page| self.try_page(&log, page);
            let seq = record.first_seq;
            let freed = add_entry(&log, seq, head.lsn, location, &load, &mut |_| ());
            self.note_freed(&freed);
        }
        Ok(())
    }

    /// Takes over the new locations of records that a garbage collection has moved. A record that
    /// was removed or replaced since is left alone.
    fn apply_moved(&self, file: &ReadableFile, record: &StoredRecord) -> Applied {
        for entry in entries(&record.payload) {
            let (at, head) = entry.ok_or("a record of log entries does not decode")?;
            let source = head
                .source
                .ok_or("a moved entry does not say where it was")?;
            let Some(log) = self.namespace.by_number(head.log) else {
                continue;
            };
            let to = Location {
                file: file.number,
                offset: record.offset + (RECORD_HEADER + at) as u64,
                len: head
                    .entry_len()
                    .ok_or("the length of an entry does not fit in 32 bits")?,
            };
            let place = log.lock().index.find(head.lsn);
            let (from, page) = match place {
                None => continue,
                Some(EntryPlace::Known(from)) => (Some(from), None),
                Some(EntryPlace::OnPage(page)) => {
                    let mapping = self.load_page(&log, page);
                    (mapping.and_then(|m| m.get(head.lsn)), Some(page))
                }
            };
            let Some(from) = from.filter(|from| (from.file, from.offset) == source) else {
                continue;
            };
            let mut freed = Freed::default();
            let mut inner = log.lock();
            if (inner.index).move_record(head.lsn, from, page, to, &mut freed) {
                file.add_live(u64::from(to.len));
            }
            drop(inner);
            self.note_freed(&freed);
        }
        Ok(())
    }

    /// Applies the operations on a log that come before an append, or all that are left.
    fn apply_ordered(&mut self, log: &LogState, before: Option<u64>) {
        let Some(ops) = self.ordered.get_mut(&log.number) else {
            return;
        };
        let due = match before {
            Some(seq) => ops.iter().take_while(|op| op.seq < seq).count(),
            None => ops.len(),
        };
        let due: Vec<_> = ops.drain(..due).collect();
        for op in due {
            if let LogOp::Page { mapping, .. } = &op.op
                && !log.lock().index.has_page(mapping, op.at)
                && let Some(file) = self.logs.get(op.at.file)
            {
                file.add_live(u64::from(op.at.len));
            }
            self.apply_placed(log, &op);
        }
    }

    fn apply_placed(&self, log: &LogState, op: &OrderedOp) {
        let placed = PlacedOp {
            op: &op.op,
            seq: op.seq,
            at: op.at,
        };
        let freed = apply_to_log(log, &placed, &|page| self.try_page(log, page));
        self.note_freed(&freed);
    }

    /// Returns the entries of a page, or `None` if it cannot be read. A removal needs no page, so a
    /// bad sector under a page does not make the open fail.
    fn try_page(&self, log: &LogState, at: PageLocation) -> Option<Mapping> {
        pages::load(self.env, self.logs, log.number, at)
            .ok()
            .flatten()
    }

    /// Returns the entries of a page, or `None` if it is damaged. An error of the device makes the
    /// open fail.
    fn load_page(&self, log: &LogState, at: PageLocation) -> Option<Mapping> {
        match pages::load(self.env, self.logs, log.number, at) {
            Ok(page) => page,
            Err(e) => {
                if e.kind() != ErrorKind::Corruption {
                    let _ = self.failed_page.set(e);
                }
                None
            }
        }
    }

    fn note_freed(&self, freed: &Freed) {
        for (file, bytes) in freed.records.iter().chain(freed.pages.iter()) {
            if let Some(file) = self.logs.get(file) {
                file.subtract_live(bytes);
            }
        }
    }

    /// Applies the operations that come behind all appends.
    fn apply_all_ordered(&mut self) {
        for log in self.namespace.all() {
            self.apply_ordered(&log, None);
        }
    }

    /// Checks that every record is in a file that exists. In files that were being written, counts
    /// all bytes up to the end as once live, so that their garbage can be collected.
    fn finish(&mut self) -> Result<()> {
        for (number, end) in &self.ends {
            if let Some(file) = self.logs.get(*number) {
                file.ever_live.fetch_max(end.offset, Relaxed);
            }
        }
        for log in self.namespace.all() {
            let mut live = Freed::default();
            log.lock().index.live(&mut live);
            for (file, _) in live.records.iter().chain(live.pages.iter()) {
                if self.logs.get(file).is_none() {
                    let what = format!(
                        "log {:?} has records in physical log {file}, which the manifest does not name",
                        log.name()
                    );
                    return Err(Error::corruption(&self.logs.dir().join(CURRENT), 0, what));
                }
            }
        }
        Ok(())
    }
}
