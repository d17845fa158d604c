//! Repair of a closed store: verified records are kept, every loss is reported, and no byte is
//! thrown away.
//!
//! The steps:
//! 1. `check` walks the store. If it finds no damage, nothing is changed.
//! 2. `salvage` reads the logs from all readable parts.
//! 3. If the manifest is whole, a fresh one with the same state says that the numbers of the next
//!    files are given out. So an interrupted repair leaves unused files, and no sign of lost edits.
//! 4. Records in damaged files are written again, to files of moved records.
//! 5. A checkpoint with all logs begins behind all files, so that nothing is replayed.
//! 6. Damaged files durably get a second name, or a copy, in the directory `lost`. Then a fresh
//!    manifest becomes current, and then the first names are removed. A crash before the manifest
//!    is current leaves the damaged store as it was, with unused files. A later crash leaves the
//!    repaired store.

use super::check::{WalkProgress, Walked, walk};
use super::known_files::{KnownFiles, is_own, parse_manifest};
use super::live_read::RecordFile;
use super::report::LogRepairReport;
use super::salvage::{Salvage, SalvagedLog};
use crate::catalog::{self, Catalog, FileEnd, PhysicalFile, Role};
use crate::checkpoint::{self, CheckpointHead, checkpoint_path, names_path};
use crate::index::Inserted;
use crate::mapping::Location;
use crate::namespace::LogState;
use crate::options::LogEngineOptions;
use crate::physical::{ReplayStart, append_payload, file_path, log_header};
use crate::recovery::{self, LOCK};
use crate::reverse_index::{ReverseEntry, ReverseIndexBuilder};
use basalt_env::Env;
use basalt_env::file_copy::{cannot_link, copy_file};
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};
use basalt_records::entries::{LARGEST_ENTRY_HEAD, open_entry, push_entry};
use basalt_records::manifest::{CURRENT, Manifest, manifest_path};
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind, RecordWriter};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The directory for damaged files, below that of the store.
const LOST_DIR: &str = "lost";
/// The note of a repair without any readable manifest.
const NO_MANIFEST: &str = "no manifest is readable, so the repair cannot tell whether physical logs are missing or synced records are cut off at the ends of files";
/// More files than a repair writes.
const MAX_FILES: u64 = 1 << 20;
/// Bytes of records that are written again with one write.
const STEP: usize = 1 << 20;

/// Repairs the closed store in a directory.
pub(crate) fn repair(
    env: &Env,
    dir: &Path,
    options: &LogEngineOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LogRepairReport> {
    options.validate()?;
    let fs = env.fs();
    if !fs.exists(dir)? {
        return Err(recovery::no_store(dir));
    }
    let names = fs.list(dir)?;
    if !names.iter().any(|e| e.name == CURRENT || is_own(&e.name)) {
        return Err(recovery::no_store(dir));
    }
    let _lock = fs.lock(&dir.join(LOCK))?;
    let mut progress = WalkProgress::new(progress);
    let walked = walk(env, dir, options, &mut progress)?;
    let later = |e: &&Error| e.kind() == ErrorKind::Unsupported;
    if let Some(e) = walked.report.damage.iter().find(later) {
        let e = e.clone();
        return Err(e.context("a later version wrote this store; repair it with that version"));
    }
    let mut report = LogRepairReport::default();
    if walked.report.damage.is_empty() {
        report.sound = true;
        report.files_kept = walked.known.files.len() as u64;
        report.logs = walked.report.logs;
        report.log_names = walked.report.log_names;
        report.records_kept = walked.report.records;
        return Ok(report);
    }
    let mut step = |bytes| progress.step(bytes);
    let salvage = Salvage::run(env, dir, &walked.known, &mut step)?;
    let first_file = walked.known.next_file.max(highest_in_lost(env, dir)? + 1);
    let mut repair = Repair {
        env,
        dir,
        options,
        walked: &walked,
        first_file,
        next_file: first_file,
        interim: None,
        may_be_current: false,
        next_seq: salvage.next_seq,
        aside: BTreeSet::new(),
        report,
    };
    let done = repair.run(salvage);
    if done.is_err() && !repair.may_be_current {
        repair.remove_unfinished();
    }
    done.map(|()| repair.report)
}

/// Returns the largest number of a file that was set aside. It is not given out again.
fn highest_in_lost(env: &Env, dir: &Path) -> Result<u64> {
    let entries = match env.fs().list(&dir.join(LOST_DIR)) {
        Ok(entries) => entries,
        Err(e) if e.is_not_found() => Vec::new(),
        Err(e) => return Err(e),
    };
    let numbers = entries
        .iter()
        .filter_map(|e| crate::physical::number_of(e.name.split('~').next().unwrap_or_default()));
    Ok(numbers.filter(|n| *n < u64::MAX >> 8).max().unwrap_or(0))
}

/// One repair.
struct Repair<'a> {
    env: &'a Env,
    dir: &'a Path,
    options: &'a LogEngineOptions,
    walked: &'a Walked,
    /// The number of the first file that the repair writes.
    first_file: u64,
    next_file: u64,
    /// Number of the manifest that is current while the repair writes.
    interim: Option<u64>,
    /// True if the repaired store may be current.
    may_be_current: bool,
    next_seq: u64,
    /// Names of files to be moved into `lost`.
    aside: BTreeSet<String>,
    report: LogRepairReport,
}

/// Locations of records that were written again: the old one, and the new one.
type Moved = BTreeMap<(u64, u64), Location>;

impl Repair<'_> {
    fn run(&mut self, mut salvage: Salvage<'_>) -> Result<()> {
        let known = &self.walked.known;
        self.give_out_numbers()?;
        let aside = (self.walked.bad.iter())
            .chain(&salvage.bad_checkpoints)
            .chain(&salvage.bad_names)
            .chain(&known.unnamed);
        let there = |name: &&String| self.walked.names.contains(name);
        self.aside = aside.filter(there).cloned().collect();
        let mut catalog = Catalog {
            store_id: match known.store_id {
                0 => self.env.random().next_u128(),
                id => id,
            },
            ..Catalog::default()
        };
        self.keep_files(known, &salvage, &mut catalog)?;
        let moved = self.write_again(known, &salvage, &mut catalog)?;
        let logs = self.logs(&salvage, &moved);
        let numbers = [self.new_file(), self.new_file()];
        let manifest = self.new_file();
        let start = ReplayStart {
            file: self.next_file,
            ..ReplayStart::default()
        };
        let head = CheckpointHead {
            next_seq: self.next_seq,
            next_log: salvage.next_log,
            meta: start,
            data: start,
            moved: start,
        };
        let store_id = catalog.store_id;
        let named: Vec<_> = logs.iter().map(|log| (log.name(), log.clone())).collect();
        let written = checkpoint::write(self.env, self.dir, numbers, store_id, &head, &named)?;
        catalog.checkpoint = Some(written.checkpoint);
        catalog.names = Some(written.names);
        catalog.next_file = self.next_file;
        let aside = self.link_aside()?;
        self.env.fs().sync_metadata(self.dir)?;
        let state = catalog::encode(&catalog.changes());
        self.may_be_current = true;
        Manifest::create(self.env, self.dir, catalog.store_id, manifest, &state)?;
        self.remove_old(&aside, &catalog, manifest)?;
        self.finish(&mut salvage, &logs);
        Ok(())
    }

    /// Writes a fresh manifest with the state of the store, in which the numbers of the repair are
    /// given out. Otherwise the files of an interrupted repair would look as if their edits were
    /// lost, and the store could not be opened. A store whose manifest is damaged cannot be opened
    /// anyway.
    fn give_out_numbers(&mut self) -> Result<()> {
        let Some(catalog) = &self.walked.known.catalog else {
            return Ok(());
        };
        let number = self.new_file();
        let mut catalog = catalog.clone();
        catalog.next_file = self.next_file + MAX_FILES;
        let state = catalog::encode(&catalog.changes());
        self.interim = Some(number);
        Manifest::create(self.env, self.dir, catalog.store_id, number, &state)?;
        Ok(())
    }

    /// Removes the files of a repair that failed. The store is as it was.
    fn remove_unfinished(&self) {
        let fs = self.env.fs();
        // What stays is unused, and the next open removes it.
        for name in &self.report.set_aside {
            let _ = fs.remove(&self.dir.join(name));
        }
        let entries = fs.list(self.dir).unwrap_or_default();
        for name in entries.into_iter().map(|entry| entry.name) {
            let number = parse_manifest(&name).or_else(|| crate::physical::number_of(&name));
            let is_new = number.is_some_and(|number| number >= self.first_file);
            if is_new && is_own(&name) && parse_manifest(&name) != self.interim {
                let _ = fs.remove(&self.dir.join(&name));
            }
        }
    }

    fn new_file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file - 1
    }

    /// Adds the sound files to the catalog, with their ends.
    fn keep_files(
        &mut self,
        known: &KnownFiles,
        salvage: &Salvage<'_>,
        catalog: &mut Catalog,
    ) -> Result<()> {
        for (number, file) in &known.files {
            let Some(records) = file
                .records
                .as_ref()
                .filter(|_| !self.aside.contains(&file.name))
            else {
                continue;
            };
            let end = match (file.end, salvage.ends.get(number)) {
                (Some(end), _) => end,
                (None, Some(end)) => FileEnd {
                    offset: *end,
                    reverse_index: None,
                },
                (None, None) => FileEnd {
                    offset: self.end_of(records, file.first_record)?,
                    reverse_index: None,
                },
            };
            // The bytes may only be in the page cache, if just the process died.
            records.file.sync_data()?;
            let entry = PhysicalFile {
                file_id: records.file_id,
                role: file.role,
                end: Some(end),
            };
            catalog.files.insert(*number, entry);
            self.report.files_kept += 1;
        }
        Ok(())
    }

    /// Returns the end of the records of a file that no replay reads.
    fn end_of(&self, records: &RecordFile, first_record: u64) -> Result<u64> {
        let found = basalt_records::salvage::scan(
            &*records.file,
            &records.path,
            records.file_id,
            u64::MAX,
        )?;
        let parts = found.parts(first_record, u64::MAX, found.proven);
        let ends = parts.iter().map(|part| match part {
            basalt_records::salvage::Part::Whole(r) => r.end,
            _ => first_record,
        });
        Ok(ends.max().unwrap_or(first_record))
    }

    /// Writes the records of damaged files again, to files of moved records.
    fn write_again(
        &mut self,
        known: &KnownFiles,
        salvage: &Salvage<'_>,
        catalog: &mut Catalog,
    ) -> Result<Moved> {
        let mut live: Vec<(Location, u64, u64)> = Vec::new();
        for (number, log) in &salvage.logs {
            let of_damaged = |at: &Location| !catalog.files.contains_key(&at.file);
            let records = log.records().filter(|(_, at)| of_damaged(at));
            live.extend(records.map(|(lsn, at)| (at, *number, lsn)));
        }
        live.sort_unstable_by_key(|(at, ..)| (at.file, at.offset));
        let mut moved = Moved::new();
        let mut writer: Option<CopyWriter> = None;
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER);
        let mut places = Vec::new();
        for (i, (at, log, lsn)) in live.iter().enumerate() {
            let file = known.files.get(&at.file).and_then(|f| f.records.as_ref());
            let file = file.expect("the record was read from it");
            let bytes = file.file.read(at.offset, at.len as usize)?;
            let (_, data) = open_entry(file.file_id, at.offset, &bytes)
                .map_err(|what| Error::corruption(&file.path, at.offset, what))?;
            if buf.is_empty() {
                buf.resize(RECORD_HEADER, 0);
            }
            buf.reserve(LARGEST_ENTRY_HEAD + data.len());
            let begin = buf.len();
            push_entry(
                &mut buf,
                *log,
                *lsn,
                Some((at.file, at.offset)),
                &bytes[data],
            );
            places.push(CopiedEntry {
                from: *at,
                log: *log,
                lsn: *lsn,
                at: begin as u64,
                len: (buf.len() - begin) as u32,
            });
            if buf.len() < STEP && i + 1 < live.len() {
                continue;
            }
            let full = |w: &CopyWriter| w.writer.end() >= self.options.file_bytes;
            if writer.as_ref().is_some_and(full) {
                let (number, file) = writer.take().expect("just checked").finish()?;
                catalog.files.insert(number, file);
            }
            let copy = match &mut writer {
                Some(copy) => copy,
                none => none.insert(self.new_copy(catalog.store_id)?),
            };
            copy.append(&mut buf, self.next_seq, &places, &mut moved)?;
            self.next_seq += 1;
            buf = AlignedBuf::with_capacity(RECORD_HEADER);
            places.clear();
        }
        if let Some(copy) = writer {
            let (number, file) = copy.finish()?;
            catalog.files.insert(number, file);
        }
        Ok(moved)
    }

    fn new_copy(&mut self, store_id: u128) -> Result<CopyWriter> {
        let number = self.new_file();
        let path = file_path(self.dir, number, Role::Moved);
        let fs = self.env.fs();
        let file_id = self.env.random().next_u128();
        let header = log_header(self.env, file_id, store_id, number);
        self.report.files_written += 1;
        Ok(CopyWriter {
            number,
            file_id,
            writer: RecordWriter::create(fs.create(&path)?, &path, &header)?,
            reverse: ReverseIndexBuilder::default(),
        })
    }

    /// Returns the logs as the checkpoint shall have them.
    fn logs(&mut self, salvage: &Salvage<'_>, moved: &Moved) -> Vec<Arc<LogState>> {
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let mut out = Vec::new();
        // Of two logs with one name, the one that was created later keeps it.
        for (number, log) in salvage.logs.iter().rev() {
            let name = match names.insert(&log.name) {
                true => log.name.clone(),
                false => {
                    let name = format!("recovered-{number}-{}", self.next_file);
                    self.report.reappearing.push(format!(
                        "an older log {:?}, whose deletion is lost, is named {name:?}",
                        log.name
                    ));
                    name
                }
            };
            out.push(self.log_state(*number, log, name, moved));
        }
        out.reverse();
        out
    }

    fn log_state(
        &self,
        number: u64,
        log: &SalvagedLog,
        name: String,
        moved: &Moved,
    ) -> Arc<LogState> {
        let state = LogState::new(0, number, &name, log.options);
        let mut inner = state.lock();
        inner.trimmed = log.trimmed;
        inner.applied_seq = self.next_seq.saturating_sub(1);
        for (lsn, at) in log.records() {
            let at = moved.get(&(at.file, at.offset)).copied().unwrap_or(at);
            let inserted = inner.index.insert(lsn, at);
            debug_assert_eq!(inserted, Inserted::New);
        }
        drop(inner);
        state
    }

    /// Gives every file to be set aside a second name in `lost`, or a copy there if the filesystem
    /// has no links. Returns the first names.
    fn link_aside(&mut self) -> Result<Vec<String>> {
        let fs = self.env.fs();
        if self.aside.is_empty() {
            return Ok(Vec::new());
        }
        let lost = self.dir.join(LOST_DIR);
        fs.create_dir(&lost)?;
        let names = std::mem::take(&mut self.aside);
        for name in &names {
            let (mut target, mut n) = (name.clone(), 1);
            while fs.exists(&lost.join(&target))? {
                n += 1;
                target = format!("{name}~{n}");
            }
            let (from, to) = (self.dir.join(name), lost.join(&target));
            self.report.set_aside.push(format!("{LOST_DIR}/{target}"));
            match fs.link(&from, &to) {
                Err(e) if cannot_link(&e) => {
                    let (file, len) = (fs.open(&from)?, fs.stat(&from)?.len);
                    copy_file(self.env, (&*file, &from), &to, len, &mut |_| Ok(()))?;
                }
                linked => linked?,
            }
        }
        fs.sync_metadata(&lost)?;
        Ok(names.into_iter().collect())
    }

    /// Removes names that the repaired store does not have. The store is current already.
    fn remove_old(&self, aside: &[String], catalog: &Catalog, manifest: u64) -> Result<()> {
        let fs = self.env.fs();
        for name in aside.iter().filter(|name| *name != CURRENT) {
            fs.remove(&self.dir.join(name))?;
        }
        if let Some(interim) = self.interim {
            // A manifest that stays is unused, as below.
            let _ = fs.remove(&manifest_path(self.dir, interim));
        }
        let checkpoint = catalog.checkpoint.expect("it was just written");
        let names = catalog.names.expect("it was just written");
        let mut kept = BTreeSet::from([
            manifest_path(self.dir, manifest),
            checkpoint_path(self.dir, checkpoint.number),
            names_path(self.dir, names.number),
        ]);
        let files = catalog.files.iter();
        kept.extend(files.map(|(n, f)| file_path(self.dir, *n, f.role)));
        for name in &self.walked.names {
            let is_aside = aside.contains(name);
            let replaced = parse_manifest(name).is_some()
                || name.ends_with(checkpoint::EXTENSION)
                || name.ends_with(checkpoint::NAMES_EXTENSION);
            if !is_aside && replaced && is_own(name) && !kept.contains(&self.dir.join(name)) {
                // A file that remains is an unused file, which the next open removes.
                let _ = fs.remove(&self.dir.join(name));
            }
        }
        fs.sync_metadata(self.dir)
    }

    fn finish(&mut self, salvage: &mut Salvage<'_>, logs: &[Arc<LogState>]) {
        let r = &mut self.report;
        let bad = |tail: &&String| !self.walked.bad.iter().any(|name| tail.contains(name));
        let torn = self.walked.report.torn_tails.iter().filter(bad);
        r.notes.extend(
            torn.map(|tail| format!("{tail}: a torn tail is cut, which is normal after a crash")),
        );
        if !self.walked.known.any_edit {
            r.notes.push(NO_MANIFEST.to_string());
        }
        r.logs = logs.len() as u64;
        r.log_names = logs.iter().map(|log| log.name().to_string()).collect();
        r.log_names.sort_unstable();
        r.records_kept = logs.iter().map(|log| log.lock().index.count()).sum();
        r.names = salvage.names_sentence();
        r.unnamed_logs = salvage.unnamed_logs();
        salvage.note_lost_ends();
        r.losses = std::mem::take(&mut salvage.losses);
        r.lost = r.losses.iter().map(ToString::to_string).collect();
        r.unproven_ends = std::mem::take(&mut salvage.unproven_ends);
        r.notes.append(&mut salvage.notes);
        r.reappearing.append(&mut salvage.reappearing);
    }
}

/// An entry in the record that is about to be written.
struct CopiedEntry {
    from: Location,
    log: u64,
    lsn: u64,
    /// Offset in the record.
    at: u64,
    len: u32,
}

/// The writer of a file with records of damaged files.
struct CopyWriter {
    number: u64,
    file_id: u128,
    writer: RecordWriter,
    reverse: ReverseIndexBuilder,
}

impl CopyWriter {
    fn append(
        &mut self,
        buf: &mut AlignedBuf,
        seq: u64,
        entries: &[CopiedEntry],
        moved: &mut Moved,
    ) -> Result<()> {
        if self.reverse.is_full() {
            let offset = self.segment(false)?;
            self.reverse.note_segment(offset);
        }
        let mut records = [Outgoing {
            buf,
            kind: RecordKind::Entries,
            first_seq: seq,
            count: entries.len() as u32,
            payload_crc: 0,
            separated: &[],
            offset: 0,
        }];
        self.writer.append(&mut records, false)?;
        let offset = records[0].offset;
        for entry in entries {
            let to = Location {
                file: self.number,
                offset: offset + entry.at,
                len: entry.len,
            };
            moved.insert((entry.from.file, entry.from.offset), to);
            self.reverse.add_all([ReverseEntry {
                log: entry.log,
                lsn: entry.lsn,
                location: to,
            }]);
        }
        Ok(())
    }

    fn segment(&mut self, last: bool) -> Result<u64> {
        let payload = self.reverse.take_segment(last);
        append_payload(&mut self.writer, RecordKind::ReverseIndex, &payload)
    }

    fn finish(mut self) -> Result<(u64, PhysicalFile)> {
        let reverse_index = Some(self.segment(true)?);
        self.writer.sync()?;
        self.writer.file().sync_all()?;
        let end = FileEnd {
            offset: self.writer.end(),
            reverse_index,
        };
        let file = PhysicalFile {
            file_id: self.file_id,
            role: Role::Moved,
            end: Some(end),
        };
        Ok((self.number, file))
    }
}
