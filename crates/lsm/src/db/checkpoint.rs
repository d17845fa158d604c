//! Checkpoints: a copy of the store that shares its tables and blob files.
//!
//! Tables and blob files never change, so a hard link is a copy. A log that is a blob file only
//! loses blocks without records, and a log with a second link is never used again. The records of
//! the memtables are in the logs. The logs are copied up to the place where they were synced at the
//! checkpoint's moment. If that is too much to copy, the memtables are flushed first. The moment is
//! taken under the writer's lock and the manifest's lock, so catalog, tables and ends of logs
//! agree. All slow work happens after it, at the same time as writes.
//!
//! Order, for a crash. All files but `CURRENT` are durable in the directory under its unfinished
//! name before `CURRENT` is. `CURRENT` is durable before the directory gets its own name. That name
//! is durable before the call returns.

use super::engine::Engine;
use super::manual_calls::CompactControl;
use super::pages::{self, PAGES_DIR, tree_dir};
use super::store_files::{LOCK, StoreFile};
use super::view::View;
use super::write_path::log_space::{PinnedLogs, log_path};
use crate::version::catalog::{Catalog, CatalogTable};
use crate::version::manifest::Manifest;
use crate::version::{EngineKind, Tsn};
use crate::version::{blob_names, table_name};
use basalt_env::file_copy::{cannot_link, copy_file};
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_tree::TreeCopy;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// Settings of [`super::Db::checkpoint`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointOptions {
    /// Bytes of log above which the memtables are flushed first, so that less is copied. Default 4
    /// MiB. 0 always flushes.
    pub flush_above_bytes: u64,
    /// Copy tables, blob files and files of pages that cannot be linked, because the target is on
    /// another filesystem or on one without links. Default `false`.
    pub copy_tables: bool,
}

impl Default for CheckpointOptions {
    fn default() -> CheckpointOptions {
        CheckpointOptions {
            flush_above_bytes: 4 << 20,
            copy_tables: false,
        }
    }
}

crate::options::setters! { CheckpointOptions {
    flush_above_bytes: u64,
    copy_tables: bool,
} }

/// Contents and cost of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Number of tables in the checkpoint.
    pub tables: u64,
    /// Number of blob files in the checkpoint.
    pub blob_files: u64,
    /// Number of families in the checkpoint that are kept in pages.
    pub page_families: u64,
    /// Number of files of these families: extents of pages, and files of system logs.
    pub page_files: u64,
    /// Bytes of the files of pages that were linked or copied. They are also in the two fields
    /// below.
    pub page_bytes: u64,
    /// Bytes of tables, blob files and files of pages that were linked.
    pub linked_bytes: u64,
    /// Bytes of tables, blob files and files of pages that were copied, and of the ends of system
    /// logs.
    pub copied_bytes: u64,
    /// Bytes of log that were copied.
    pub log_bytes: u64,
    /// The last transaction of the owner's log that a copy of a passive store has, in all families.
    pub transaction: Option<Tsn>,
}

/// Another engine of the store, whose data a checkpoint copies as of the same moment.
pub trait CheckpointPart {
    /// Returns the engine's kind. Its data is in the directory of this kind in the store's.
    fn kind(&self) -> EngineKind;
    /// Takes the moment: the copy has what was acknowledged so far. No write to tables is
    /// acknowledged during the call, which must be short.
    fn take_moment(&mut self) -> Result<()>;
    /// Writes the data of the moment into a directory that does not exist. Everything in it but its
    /// name is durable when the call returns.
    fn write(&mut self, dir: &Path) -> Result<()>;
    /// Removes a directory that an earlier checkpoint has begun to write.
    fn remove_unfinished(&mut self, dir: &Path) -> Result<()>;
}

/// Contents of the store at the moment of the checkpoint.
struct CheckpointContents<'a> {
    catalog: Catalog,
    /// Keeps the files of tables and blobs.
    _view: Arc<View>,
    /// Copies of the trees of families that are kept in pages.
    trees: Vec<(u32, TreeCopy)>,
    /// Number, handle and end (in bytes) of each log that holds records.
    logs: Vec<(u64, Arc<dyn File>, u64)>,
    _pinned: PinnedLogs<'a>,
}

/// Directory of a checkpoint that is being built. If the checkpoint is not finished, the drop
/// removes the directory.
struct UnfinishedDir<'a> {
    engine: &'a Engine,
    dir: PathBuf,
    done: bool,
}

impl Drop for UnfinishedDir<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.engine.writes.logs().trim([]);
            // If the directory cannot be removed now, the next checkpoint to the same place removes
            // it.
            let _ = self.engine.remove_unfinished(&self.dir, true);
        }
    }
}

/// Returns the path under which a checkpoint to `target` is built.
fn unfinished(target: &Path) -> Result<PathBuf> {
    let Some(name) = target.file_name() else {
        return Err(Error::invalid(format!(
            "{} has no file name; name the directory to create",
            target.display()
        )));
    };
    let mut name = name.to_os_string();
    name.push(".checkpoint-unfinished");
    Ok(target.with_file_name(name))
}

fn taken(target: &Path) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        "cannot make the checkpoint: the target exists; choose another directory",
    )
    .in_file(target)
}

impl Engine {
    pub fn checkpoint(
        self: &Arc<Self>,
        target: &Path,
        options: &CheckpointOptions,
        parts: &mut [&mut dyn CheckpointPart],
    ) -> Result<CheckpointReport> {
        self.ctx.check_writable()?;
        self.check_parts(self.tree.lock().catalog(), parts)?;
        // This guard is dropped last. Until then closing waits, and the paths below name files of
        // this store.
        let _noted = self.note_call(CompactControl::default())?;
        let fs = self.ctx.env.fs();
        let dir = unfinished(target)?;
        let parent = target.parent().unwrap_or(Path::new(""));
        if fs.exists(target)? {
            return Err(taken(target));
        }
        if !parent.as_os_str().is_empty() && !fs.exists(parent)? {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the directory to make the checkpoint in is not there; make it first",
            )
            .in_file(parent));
        }
        fs.create_dir(&dir)?;
        // If two checkpoints are built in one place, the second fails here. A directory whose lock
        // is free is left over from an unfinished checkpoint.
        let lock = fs.lock(&dir.join(LOCK))?;
        let mut building = UnfinishedDir {
            engine: self,
            dir,
            done: false,
        };
        for part in parts.iter_mut() {
            self.remove_part(&building.dir, *part)?;
        }
        self.remove_unfinished(&building.dir, false)?;
        let filled = self.fill_checkpoint(&building.dir, target, options, parts);
        if filled.is_err() {
            for part in parts {
                // If a directory cannot be removed now, the next checkpoint to the same place
                // removes it.
                let _ = self.remove_part(&building.dir, *part);
            }
        }
        let report = filled?;
        building.done = true;
        drop(lock);
        fs.sync_metadata(parent).map_err(|e| {
            e.context("the checkpoint is complete, but its name is not durable: a power cut may remove it")
        })?;
        Ok(report)
    }

    /// Removes what an unfinished checkpoint in `dir` has of a part.
    fn remove_part(&self, dir: &Path, part: &mut dyn CheckpointPart) -> Result<()> {
        let dir = dir.join(part.kind().directory());
        match self.ctx.env.fs().exists(&dir)? {
            true => part.remove_unfinished(&dir),
            false => Ok(()),
        }
    }

    /// Writes a checkpoint into the directory under its unfinished name, and renames this.
    fn fill_checkpoint(
        self: &Arc<Self>,
        dir: &Path,
        target: &Path,
        options: &CheckpointOptions,
        parts: &mut [&mut dyn CheckpointPart],
    ) -> Result<CheckpointReport> {
        let fs = self.ctx.env.fs();
        let contents = self.contents_to_copy(options, parts)?;
        let flags = contents.catalog.flags();
        let mut report = CheckpointReport {
            transaction: flags.values().map(|flag| flag.tsn).min(),
            ..CheckpointReport::default()
        };
        for family in contents.catalog.families.values() {
            for (&number, CatalogTable { meta, .. }) in &family.tables {
                report.tables += 1;
                let (from, to) = (self.ctx.tables.path(number), dir.join(table_name(number)));
                let file = (meta.size, Some(meta.digest));
                self.link_or_copy(&from, &to, file, options, &mut report)?;
            }
        }
        for (&number, blob) in &contents.catalog.blobs {
            report.blob_files += 1;
            let sizes = match &blob.meta.index {
                None => vec![(blob.meta.size, Some(blob.meta.digest))],
                Some(i) => vec![(blob.meta.data_end, None), (i.size, Some(i.digest))],
            };
            for (name, file) in blob_names(number, &blob.meta).into_iter().zip(sizes) {
                let (from, to) = (self.ctx.dir.join(&name), dir.join(&name));
                self.link_or_copy(&from, &to, file, options, &mut report)?;
            }
        }
        for (number, file, end) in &contents.logs {
            let (from, to) = (log_path(&self.ctx.dir, *number), log_path(dir, *number));
            self.copy(file, &from, &to, *end)?;
            report.log_bytes += end;
        }
        let CheckpointContents {
            mut catalog,
            _view,
            trees,
            logs,
            _pinned: pinned,
        } = contents;
        drop((logs, pinned));
        self.writes.logs().trim([]);
        if !trees.is_empty() {
            fs.create_dir(&dir.join(PAGES_DIR))?;
        }
        let has_trees = !trees.is_empty();
        for (id, tree) in trees {
            let number = catalog.families.get(&id).map_or(0, |f| f.tree);
            let check_continue = || self.ctx.check_open();
            let dir = tree_dir(dir, id, number);
            let tree = tree.write(dir, options.copy_tables, &check_continue)?;
            report.page_families += 1;
            report.page_files += tree.files;
            report.page_bytes += tree.linked_bytes + tree.copied_bytes;
            report.linked_bytes += tree.linked_bytes;
            report.copied_bytes += tree.copied_bytes;
            self.ctx.check_open()?;
        }
        if has_trees {
            fs.sync_metadata(&dir.join(PAGES_DIR))?;
        }
        for part in parts {
            part.write(&dir.join(part.kind().directory()))?;
            self.ctx.check_open()?;
        }
        let number = catalog.next_file;
        catalog.next_file += 1;
        // This call syncs the directory before `CURRENT`, and again after it.
        Manifest::create(
            &self.ctx.env,
            dir,
            self.ctx.store_id,
            number,
            &catalog.to_edit().encode(),
        )?;
        if fs.exists(target)? {
            return Err(taken(target));
        }
        fs.rename(dir, target)?;
        Ok(report)
    }

    /// Links a file that never changes, of this size and digest; or copies it. A log has no digest,
    /// because its records have checksums.
    fn link_or_copy(
        &self,
        from: &Path,
        to: &Path,
        (size, digest): (u64, Option<u128>),
        options: &CheckpointOptions,
        report: &mut CheckpointReport,
    ) -> Result<()> {
        self.ctx.check_open()?;
        let fs = self.ctx.env.fs();
        match fs.link(from, to) {
            Ok(()) => report.linked_bytes += size,
            Err(e) if !cannot_link(&e) => return Err(e),
            Err(e) if !options.copy_tables => {
                return Err(Error::unsupported(format!(
                    "tables cannot be linked there ({e}); give a directory on the store's own filesystem, or allow copies"
                )));
            }
            Err(_) => {
                let file = fs.open(from)?;
                let found = self.copy(&file, from, to, size)?;
                if let Some(digest) = digest.filter(|d| *d != found) {
                    return Err(Error::corruption(
                        from,
                        0,
                        format!("digest is {found:032x}, the manifest records {digest:032x}"),
                    ));
                }
                report.copied_bytes += size;
            }
        }
        Ok(())
    }

    /// Refuses a checkpoint that would lack an engine of the store.
    fn check_parts(&self, catalog: &Catalog, parts: &[&mut dyn CheckpointPart]) -> Result<()> {
        let lacks = |kind: &&EngineKind| parts.iter().all(|part| part.kind() != **kind);
        match catalog.engines.iter().find(lacks) {
            None => Ok(()),
            Some(kind) => Err(Error::unsupported(format!(
                "the store also has {kind}, which a checkpoint of its tables would lack; make the checkpoint with `Store::checkpoint`"
            ))),
        }
    }

    /// Determines the contents of the checkpoint: all writes acknowledged so far.
    fn contents_to_copy(
        self: &Arc<Self>,
        options: &CheckpointOptions,
        parts: &mut [&mut dyn CheckpointPart],
    ) -> Result<CheckpointContents<'_>> {
        let waiting: u64 = {
            let writer = self.writes.lock();
            let active = writer.log.as_ref().map_or(0, |l| l.writer.end());
            let state = self.tree.lock();
            active
                + state
                    .catalog()
                    .logs
                    .values()
                    .filter_map(|l| l.end.or(l.left))
                    .sum::<u64>()
        };
        let is_passive = self.persistence.is_some();
        if is_passive || waiting > options.flush_above_bytes {
            self.seal_and_flush()?;
        }
        let mut writer = self.writes.lock();
        self.ctx.check_open()?;
        self.sync_log(&mut writer)?;
        if is_passive {
            // The copy has all families as of one transaction. Little is left to flush.
            self.seal(&mut writer)?;
            self.flush_all()?;
        }
        let active = writer.log.as_ref().map(|l| (l.number, l.writer.end()));
        // While the manifest is frozen, no edit comes between the catalog and the files that it
        // names.
        let manifest = self.tree.freeze();
        let view = self.tree.view();
        let mut catalog = Catalog::clone(&self.tree.catalog());
        catalog.next_file = self.tree.next_file_number();
        catalog.last_seq = catalog.last_seq.max(self.tree.visible());
        catalog.wall_ms = self.ctx.env.clock().wall_ms();
        if let Some((number, end)) = active
            && let Some(log) = catalog.logs.get_mut(&number)
        {
            log.end = Some(end);
        }
        // A spare log has no end and no records.
        catalog.logs.retain(|_, log| log.end.is_some());
        let pinned = self
            .writes
            .logs()
            .pin(catalog.logs.keys().copied().collect());
        let mut logs = Vec::new();
        for (&number, log) in &catalog.logs {
            let file = self.ctx.env.fs().open(&log_path(&self.ctx.dir, number))?;
            logs.push((number, file, log.end.expect("those without were left out")));
        }
        let mut trees = Vec::new();
        for (id, tree) in view.pages.iter() {
            trees.push((*id, tree.pages.tree().begin_copy()?));
        }
        drop(manifest);
        self.check_parts(&catalog, parts)?;
        // Under the writer's lock: a write that was acknowledged before one in the copy is in the
        // copy too, in whichever engine it was.
        parts.iter_mut().try_for_each(|part| part.take_moment())?;
        drop(writer);
        Ok(CheckpointContents {
            catalog,
            _view: view,
            trees,
            logs,
            _pinned: pinned,
        })
    }

    /// Copies the first `len` bytes of a file, durably, and returns their digest.
    fn copy(&self, file: &Arc<dyn File>, from: &Path, to: &Path, len: u64) -> Result<u128> {
        let mut digest = Xxh3Default::new();
        copy_file(&self.ctx.env, (&**file, from), to, len, &mut |piece| {
            digest.update(piece);
            self.ctx.check_open()
        })?;
        Ok(digest.digest128())
    }

    /// Empties a directory under an unfinished name, and removes it if `whole` is set. Files that
    /// no checkpoint creates are left, and cause an error.
    fn remove_unfinished(&self, dir: &Path, whole: bool) -> Result<()> {
        let fs = self.ctx.env.fs();
        let mut ours = Vec::new();
        for entry in fs.list(dir)? {
            match StoreFile::parse(&entry.name) {
                Some(StoreFile::Lock) if !whole => {}
                Some(_) if !entry.is_dir => ours.push(entry.name),
                None if entry.is_dir && entry.name == PAGES_DIR => {
                    pages::remove_all(&self.ctx.env, dir)?;
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "{} holds {}, which no checkpoint has made; move it away",
                        dir.display(),
                        entry.name
                    )));
                }
            }
        }
        for name in ours {
            fs.remove(&dir.join(name))?;
        }
        if whole { fs.remove(dir) } else { Ok(()) }
    }
}
