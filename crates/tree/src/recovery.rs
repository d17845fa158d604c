//! Opening a tree: the last system checkpoint, then the system log (ArkDB, section 5.2). No page is
//! read.

use crate::features;
use crate::mapping::{Effects, State};
use crate::options::TreeOptions;
use crate::page::PageKind;
use crate::page_format::PageBuilder;
use crate::page_id::PageId;
use crate::storage::{BASE, DELTA, LOGS, PageWriter, Parts, Storage, extent_file};
use crate::system_log::{Root, SystemCheckpoint, SystemTx};
use crate::usage::StreamKind;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_log::{Duplicates, Log, LogEngine, LogEngineOptions, LogOptions};
use basalt_stream::{EXTENT_HEADER, ExtentId, Stream, StreamOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The file that names the manifest of the logs.
pub(crate) const CURRENT: &str = "CURRENT";
/// Names of the logs.
const SYSTEM: &str = "system";
const CHECKPOINT: &str = "checkpoint";

/// Says by the note of a user checkpoint whether it is to stay.
pub(crate) type Keep<'a> = &'a dyn Fn(&[u8]) -> bool;

impl Storage {
    /// Opens the storage tier in a directory, or creates one. All user checkpoints stay.
    #[cfg(test)]
    pub fn open(env: &Env, dir: &Path, options: &TreeOptions) -> Result<Storage> {
        Storage::open_keeping(env, dir, options, &|_| true)
    }

    /// Opens the storage tier in a directory, or creates one. From the first user checkpoint on
    /// whose note `keep` refuses, everything in the system log is dropped.
    ///
    /// Errors: `NotFound` if there is none and the options do not allow to create one; `Corruption`
    /// names what is damaged, and comes also if `keep` refuses a user checkpoint that is in the
    /// last system checkpoint; `Unsupported` for a tree with features of a later version.
    pub fn open_keeping(
        env: &Env,
        dir: &Path,
        options: &TreeOptions,
        keep: Keep<'_>,
    ) -> Result<Storage> {
        options.validate()?;
        let fs = env.fs();
        let logs = dir.join(LOGS);
        // To open the logs would make them.
        if !options.create_if_missing && !fs.exists(&logs.join(CURRENT))? {
            return Err(no_tree(dir));
        }
        fs.create_dir(dir)?;
        if let Some(parent) = dir.parent() {
            fs.sync_metadata(parent)?;
        }
        // Its lock is that of the tree.
        let log = LogEngine::open(env, &logs, LogEngineOptions::default())?;
        // A transaction that failed may be in the log. The next one has its number, and replaces
        // it.
        let replace = LogOptions::default().duplicates(Duplicates::Replace);
        let system = log.open_or_create(SYSTEM, replace)?;
        let checkpoint = log.open_or_create(CHECKPOINT, LogOptions::default())?;
        let newest = newest_checkpoint(dir, &checkpoint, &system)?;
        let stream = |name: &str| {
            let options = StreamOptions::default().extent_bytes(options.extent_bytes);
            let path = dir.join(name);
            match Stream::open(env, &path, options.clone()) {
                Err(e) if e.kind() == ErrorKind::NotFound && newest.is_none() => {
                    Stream::create(env, &path, options)
                }
                opened => opened.map_err(|e| missing_stream_is_corruption(&path, e)),
            }
        };
        let (base, delta) = (stream(BASE)?, stream(DELTA)?);
        let parts = Parts {
            env: env.clone(),
            dir: dir.to_path_buf(),
            options: options.clone(),
            base,
            delta,
            log,
            system: system.clone(),
            checkpoint: checkpoint.clone(),
        };
        let next_part = newest.map_or(1, |last| last + 1);
        let unknown = Root {
            id: PageId::NONE,
            level: 0,
        };
        let storage = Storage::new(parts, 0, unknown, next_part);
        let Some(last) = newest else {
            if !options.create_if_missing {
                return Err(no_tree(dir));
            }
            storage.create_root()?;
            return Ok(storage);
        };
        let dropped = storage.recover(&checkpoint, last, &system, keep)?;
        storage.check_extents()?;
        storage.check_ends()?;
        if let Some(dropped) = dropped {
            system.truncate_suffix(dropped)?;
        }
        // On a full disk, the next erasure repeats this.
        match storage.erase_dead() {
            Err(e) if e.kind() != ErrorKind::NoSpace => return Err(e),
            _ => {}
        }
        Ok(storage)
    }

    /// Opens the storage tier in a directory for reading. Nothing is written, and nothing may be
    /// committed. Pages in missing or truncated extents are damaged pages; the opening succeeds.
    ///
    /// Errors: `NotFound` if there is none; those of [`Storage::open_keeping`].
    pub fn open_read_only(
        env: &Env,
        dir: &Path,
        options: &TreeOptions,
        keep: Keep<'_>,
    ) -> Result<Storage> {
        let stream = |name: &str| {
            let options = StreamOptions::default().extent_bytes(options.extent_bytes);
            let path = dir.join(name);
            let opened = Stream::open_read_only(env, &path, options);
            opened.map_err(|e| missing_stream_is_corruption(&path, e))
        };
        let storage = Storage::open_over(env, dir, options, keep, &stream)?;
        storage.check_extents()?;
        Ok(storage)
    }

    /// Opens the storage tier for reading as [`Storage::open_read_only`] does, over the extents
    /// that are in the directory: the manifests of the streams are not needed. Pages in missing
    /// extents are damaged pages.
    pub fn open_salvage(
        env: &Env,
        dir: &Path,
        options: &TreeOptions,
        keep: Keep<'_>,
    ) -> Result<Storage> {
        let stream =
            |name: &str| Stream::open_for_salvage(env, dir.join(name), StreamOptions::default());
        Storage::open_over(env, dir, options, keep, &stream)
    }

    /// Opens the storage tier for reading over two streams.
    fn open_over(
        env: &Env,
        dir: &Path,
        options: &TreeOptions,
        keep: Keep<'_>,
        stream: &dyn Fn(&str) -> Result<Stream>,
    ) -> Result<Storage> {
        options.validate()?;
        if !env.fs().exists(&dir.join(LOGS))? {
            return Err(no_tree(dir));
        }
        let log = LogEngine::open_read_only(env, dir.join(LOGS), LogEngineOptions::default())?;
        let (system, checkpoint) = (log.log(SYSTEM)?, log.log(CHECKPOINT)?);
        let newest = newest_checkpoint(dir, &checkpoint, &system)?;
        // Before there is a checkpoint, there may be no streams.
        let last = newest.ok_or_else(|| no_tree(dir))?;
        let parts = Parts {
            env: env.clone(),
            dir: dir.to_path_buf(),
            options: options.clone(),
            base: stream(BASE)?,
            delta: stream(DELTA)?,
            log,
            system: system.clone(),
            checkpoint: checkpoint.clone(),
        };
        let unknown = Root {
            id: PageId::NONE,
            level: 0,
        };
        let storage = Storage::new(parts, 0, unknown, 1);
        storage.recover(&checkpoint, last, &system, keep)?;
        Ok(storage)
    }

    /// Goes back to the content before the first user checkpoint that is not confirmed. `keep`
    /// refuses its note, and none before it. Waits for maintenance; no user checkpoint may run.
    ///
    /// Errors: those of reading and writing the logs; then nothing has changed.
    pub fn roll_back(&self, keep: Keep<'_>) -> Result<()> {
        let _maintenance = self.maintenance.exclusive();
        if !self.has_unconfirmed() {
            return Ok(());
        }
        let (system, checkpoint) = self.logs();
        let parts = Parts {
            env: self.env.clone(),
            dir: self.dir.clone(),
            options: self.options.clone(),
            base: self.base.clone(),
            delta: self.delta.clone(),
            log: self.log.clone(),
            system: system.clone(),
            checkpoint: checkpoint.clone(),
        };
        let unknown = Root {
            id: PageId::NONE,
            level: 0,
        };
        let before = Storage::new(parts, 0, unknown, 1);
        let last = checkpoint.last().ok_or_else(|| no_tree(&self.dir))?;
        before.recover(checkpoint, last, system, keep)?;
        before.check_extents()?;
        self.roll_back_to(&before)
    }

    /// Reads the last system checkpoint and the system log behind it. Returns the first transaction
    /// that does not count, because `keep` refuses its note.
    fn recover(
        &self,
        checkpoint: &Log,
        last: u64,
        system: &Log,
        keep: Keep<'_>,
    ) -> Result<Option<u64>> {
        let encoded = self.read_checkpoint(checkpoint, last)?;
        features::check(&encoded, &self.dir)?;
        let found = SystemCheckpoint::decode(&encoded).ok_or_else(|| {
            self.inconsistent("the system checkpoint does not decode".to_string())
        })?;
        if !found.note.is_empty() && !keep(&found.note) {
            return Err(self.inconsistent(
                "the pages are newer than the record of them: the manifest has lost its last edits"
                    .to_string(),
            ));
        }
        self.replay(found, system, keep)
    }

    /// Reads the records of the newest checkpoint. An older one may be before it.
    fn read_checkpoint(&self, log: &Log, last: u64) -> Result<Vec<u8>> {
        let bad = || self.inconsistent("a part of the system checkpoint is missing".to_string());
        let read = |lsn: u64| log.read(lsn)?.ok_or_else(bad);
        let (first, _) = SystemCheckpoint::open_part(&read(last)?).ok_or_else(bad)?;
        let mut encoded = Vec::new();
        for lsn in first..=last {
            let record = read(lsn)?;
            let part = SystemCheckpoint::open_part(&record).filter(|(of, _)| *of == first);
            encoded.extend_from_slice(part.ok_or_else(bad)?.1);
        }
        Ok(encoded)
    }

    /// Creates the root of a new tree: an empty leaf.
    fn create_root(&self) -> Result<()> {
        let mut writer = PageWriter::new(self, StreamKind::Base);
        let mut builder = PageBuilder::new(PageKind::Leaf, 0);
        writer.add(&mut builder, PageId::NONE)?;
        let above = writer.finish()?;
        self.base.sync()?;
        let root = Root {
            id: above[0],
            level: 0,
        };
        let tx = SystemTx {
            above,
            ..SystemTx::default()
        };
        let mut effects = Effects::default();
        self.apply(0, &tx, &mut effects)
            .map_err(|what| self.inconsistent(what))?;
        self.set_recovered(0, root, Vec::new(), 0);
        self.take_checkpoint()
    }

    fn replay(&self, found: SystemCheckpoint, system: &Log, keep: Keep<'_>) -> Result<Option<u64>> {
        let (mut time, mut root, mut note) = (found.time, found.root, found.note);
        for (key, state) in found.chains {
            self.mapping.load(key, time, state);
        }
        *self.usage.lock() = found.usage;
        let mut log_bytes = 0;
        let mut dropped = None;
        let mut old = BTreeSet::new();
        for item in system.iter(time + 1) {
            let (lsn, record) = item?;
            let bad = |what: String| self.inconsistent(format!("system transaction {lsn}: {what}"));
            if lsn != time + 1 {
                return Err(bad(format!("expected transaction {}", time + 1)));
            }
            features::check(&record, &self.dir)?;
            let tx = SystemTx::decode(&record)
                .ok_or_else(|| bad("the record does not decode".to_string()))?;
            if tx.note.as_ref().is_some_and(|note| !keep(note)) {
                dropped = Some(lsn);
                break;
            }
            let mut effects = Effects::default();
            self.apply(lsn, &tx, &mut effects).map_err(bad)?;
            old.extend(effects.old);
            root = tx.root.unwrap_or(root);
            note = tx.note.unwrap_or(note);
            time = lsn;
            log_bytes += record.len() as u64;
        }
        // Prune only after the replay: a transaction may change a page that an earlier transaction
        // has rewritten.
        self.mapping.for_each(|key, _| {
            old.insert(key);
        });
        for key in old {
            self.mapping.prune(key, &[time]);
        }
        if self.mapping.any_index_deltas() {
            self.checkpoints.allow_index_deltas();
        }
        self.book_mapping();
        self.forget_erased();
        self.book_usage();
        self.set_recovered(time, root, note, log_bytes);
        Ok(dropped)
    }

    /// Forgets the usage of extents that were erased after the checkpoint.
    fn forget_erased(&self) {
        let there: BTreeSet<ExtentId> = [&self.base, &self.delta]
            .iter()
            .flat_map(|stream| stream.extents())
            .map(|extent| extent.id)
            .collect();
        let mut usage = self.usage.lock();
        let unused = usage
            .iter()
            .filter(|(id, usage)| usage.valid == 0 && !there.contains(id));
        let unused: Vec<ExtentId> = unused.map(|(id, _)| id).collect();
        unused.into_iter().for_each(|id| usage.forget(id));
    }

    /// Checks that the streams have all extents with pages.
    fn check_extents(&self) -> Result<()> {
        for (kind, name) in [(StreamKind::Base, BASE), (StreamKind::Delta, DELTA)] {
            let extents = self.stream(kind).extents();
            let usage = self.usage.lock();
            let there: BTreeSet<ExtentId> = extents.iter().map(|extent| extent.id).collect();
            let mut used = usage
                .iter()
                .filter(|(_, of)| of.kind == kind && of.valid > 0);
            if let Some((id, _)) = used.find(|(id, _)| !there.contains(id)) {
                let what = format!("the stream lacks extent {id}, which has pages of the tree");
                return Err(Error::corruption(&self.dir.join(name), 0, what));
            }
        }
        Ok(())
    }

    /// Checks that no extent ends before a page whose position is known: those in the page mapping
    /// table, and those in the ranges of extents. A page is durable before its transaction is, so a
    /// crash does not shorten its extent. The manifest of a stream does not have the length of the
    /// extent that was written to last.
    fn check_ends(&self) -> Result<()> {
        let header = EXTENT_HEADER as u64;
        let mut ends: BTreeMap<ExtentId, (StreamKind, u64)> = BTreeMap::new();
        for (id, of) in self.usage.lock().iter().filter(|(_, of)| of.valid > 0) {
            let ranges = of.ranges.iter().flat_map(|ranges| ranges.iter());
            let end = ranges.last().map_or(0, |(_, end)| u64::from(end));
            // A delta page counts once for each leaf that shares it.
            let least = match of.kind {
                StreamKind::Base => header + of.valid,
                StreamKind::Delta => header,
            };
            ends.insert(id, (of.kind, end.max(least)));
        }
        let mut note = |kind: StreamKind, page: PageId| {
            let end = u64::from(page.offset) + u64::from(page.len);
            let known = ends.entry(page.extent).or_insert((kind, end));
            known.1 = known.1.max(end);
        };
        self.mapping.for_each(|_, state| {
            if let State::Live(pages) = state {
                note(StreamKind::Base, pages.base);
                let deltas = pages.deltas.iter();
                deltas.for_each(|delta| note(StreamKind::Delta, delta.id));
            }
        });
        for (id, (kind, end)) in ends {
            let len = self.stream(kind).extent_len(id).unwrap_or(0);
            if len < end {
                let what = format!(
                    "the extent has {len} bytes, and pages of the tree lie before {end}: it was truncated"
                );
                let path = self.dir.join(extent_file(kind, id));
                return Err(Error::corruption(&path, len, what));
            }
        }
        Ok(())
    }

    /// Takes a system checkpoint, and closes the logs.
    pub fn close(&self) -> Result<()> {
        let taken = self.take_checkpoint();
        taken.and(self.log.close())
    }

    /// Releases the directory without a system checkpoint. Everything that was committed is in the
    /// system log.
    pub fn abandon(&self) -> Result<()> {
        self.log.close()
    }
}

/// Turns `NotFound` of a stream into `Corruption`, and returns other errors unchanged.
fn missing_stream_is_corruption(stream: &Path, e: Error) -> Error {
    match e.kind() {
        ErrorKind::NotFound => {
            let what = "the logs of the tree are there, and this stream of pages is missing";
            Error::corruption(stream, 0, what)
        }
        _ => e,
    }
}

/// Returns the number of the last record of the log of checkpoints; `None` for a tree that is being
/// created.
///
/// Errors: `Corruption` if the log has lost its records.
fn newest_checkpoint(dir: &Path, checkpoint: &Log, system: &Log) -> Result<Option<u64>> {
    let last = checkpoint.last();
    let was_there = checkpoint.trimmed().or(system.trimmed()).or(system.last());
    match last.is_none() && was_there.is_some() {
        false => Ok(last),
        true => {
            let what = "the system checkpoint is missing";
            Err(Error::new(ErrorKind::Corruption, what).in_file(dir))
        }
    }
}

fn no_tree(dir: &Path) -> Error {
    let what = "there is no tree in this directory; open it with create_if_missing";
    Error::new(ErrorKind::NotFound, what).in_file(dir)
}
