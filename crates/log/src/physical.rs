//! Physical logs: the files that all logical logs share. One of each role is being written; the
//! others have ended and are read, until nothing in them is live. How they are written:
//! [`crate::writer`].

use crate::catalog::{self, Catalog, Change, CheckpointFile, FileEnd, PhysicalFile, Role};
use crate::counters::Counters;
use crate::reserve::{self, Reserve, ReserveHeld};
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use basalt_env::sync::{Mutex, RwLock, named};
use basalt_env::{Env, MemoryLedger};
use basalt_fs::{AlignedBuf, Bytes, Error, ErrorKind, File, LogOptions, Result};
use basalt_records::manifest::{CURRENT, Current, Manifest, manifest_path};
use basalt_records::{
    FileHeader, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordWriter, ResumePoint, reaches,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A file has this part of all live bytes, within bounds, so that a file that is half garbage is a
/// small part of the space.
const LIVE_PART: u64 = 16;
/// Bytes of a file of the datalog if few bytes are live.
const SMALL_FILE: u64 = 16 << 20;
/// Bounds on the bytes of a file of the metalog.
const META_FILE: Range<u64> = 1 << 20..4 << 20;
/// Between the bounds, a file of the metalog has the live bytes divided by this number.
const META_PART: u64 = 128;
/// A file of moved records has the bytes of a file of the datalog divided by this number. Few
/// records are moved, and the garbage of a file stays until the file has ended.
const MOVED_PART: u64 = 4;
/// Removed files whose space waits for the next files.
const MOST_RECYCLED: usize = 2;
/// A manifest is written anew when it has this many times the bytes that it began with, and this
/// many bytes.
const MANIFEST_GROWTH: u64 = 4;
const MANIFEST_LEAST: u64 = 64 << 10;

/// A point of a physical log from which on it is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplayStart {
    /// Number of the file. Files with smaller numbers are not replayed.
    pub file: u64,
    /// Offset of the end of the last record that is not replayed; 0 for the whole file.
    pub offset: u64,
    /// Header checksum of that record.
    pub chain: u32,
}

impl ReplayStart {
    /// Returns the point in a file with this number, or `None` for a file that is replayed whole.
    pub fn point_in(&self, file: u64) -> Option<ResumePoint> {
        let (offset, chain) = (self.offset, self.chain);
        (self.file == file && offset > 0).then_some(ResumePoint { offset, chain })
    }
}

/// A physical log that can be read.
pub(crate) struct ReadableFile {
    pub number: u64,
    pub file_id: u128,
    pub role: Role,
    pub path: PathBuf,
    file: Arc<dyn File>,
    /// Bytes of live records or pages.
    pub live: AtomicU64,
    /// Bytes of all records or pages that were ever live in the file. A recovery knows only the end
    /// of the file, so after a recovery the field is at least that offset, until a collection has
    /// read the file's reverse index. Garbage is this minus `live`.
    pub ever_live: AtomicU64,
    /// The end of its records, once the file takes no more.
    end: Mutex<Option<FileEnd>>,
    /// True if a write or a sync of the file has failed. Its space is not used again.
    has_failed: AtomicBool,
    /// True if a collection found a record that cannot be read.
    is_damaged: AtomicBool,
    /// Locked during a sync that runs beside appends. True if such a sync has failed.
    beside: Mutex<bool>,
}

impl ReadableFile {
    /// Reads exactly `len` bytes.
    ///
    /// Errors: `Corruption` if the file ends before.
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let bytes = self.file.read(offset, len)?;
        self.check_len(offset, len, bytes)
    }

    /// Returns `bytes` if they are `len` bytes, which a read at `offset` returned.
    ///
    /// Errors: `Corruption` if the file ends before.
    pub fn check_len(&self, offset: u64, len: usize, bytes: Bytes) -> Result<Bytes> {
        if bytes.len() != len {
            return Err(Error::corruption(
                &self.path,
                offset,
                format!("expected {len} bytes, found {}", bytes.len()),
            ));
        }
        Ok(bytes)
    }

    /// Returns the end of the file's records, or `None` while it is being written.
    pub fn end(&self) -> Option<FileEnd> {
        *self.end.lock()
    }

    /// Notes that a write or a sync of the file has failed.
    pub fn note_failure(&self) {
        self.has_failed.store(true, Relaxed);
    }

    /// Returns true if the file takes no more records.
    pub fn takes_no_more(&self) -> bool {
        self.end().is_some() || self.has_failed.load(Relaxed)
    }

    /// Notes that a record of the file cannot be read.
    pub fn note_unreadable(&self) {
        self.is_damaged.store(true, Relaxed);
    }

    /// Returns false if a record of the file is known to be damaged.
    pub fn is_readable(&self) -> bool {
        !self.is_damaged.load(Relaxed)
    }

    /// Syncs the bytes below an offset beside appends, through a handle of its own. The next append
    /// after them must begin in another unit.
    ///
    /// Errors: if the sync has failed, [`ReadableFile::failed_beside`] is true from then on.
    pub fn sync_beside(&self, env: &Env, end: u64) -> Result<()> {
        let mut failed = self.beside.lock();
        let handle = env.fs().open(&self.path)?;
        let unit = env.fs().info().write_unit as u64;
        let done = handle.sync_data_to(end.next_multiple_of(unit));
        if done.is_err() {
            *failed = true;
            self.note_failure();
        }
        done
    }

    /// Waits for the sync that runs beside appends, and returns true if one has failed. A later
    /// sync through the writer's handle may not learn of that failure.
    pub fn failed_beside(&self) -> bool {
        *self.beside.lock()
    }

    /// Returns the file, for a reader of all its records.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Returns true for a file of records that takes no more of them, and of which nothing is live.
    pub fn is_dead(&self) -> bool {
        self.role != Role::Meta && self.end().is_some() && self.live.load(Acquire) == 0
    }

    /// Adds live bytes.
    pub fn add_live(&self, bytes: u64) {
        self.live.fetch_add(bytes, Relaxed);
        self.ever_live.fetch_add(bytes, Relaxed);
    }

    /// Subtracts live bytes. Returns true if nothing in the file is live any more.
    pub fn subtract_live(&self, bytes: u64) -> bool {
        // A damaged store may have counted fewer bytes than its pages say.
        let subtract = |live: u64| Some(live.saturating_sub(bytes));
        let before = self.live.fetch_update(Release, Relaxed, subtract);
        before.is_ok_and(|before| before > 0 && before <= bytes)
    }
}

/// The manifest, and what it says.
struct Manifested {
    /// Until the first edit, the manifest that was found, which takes no edits.
    manifest: Manifest,
    catalog: Catalog,
    /// True if an edit was installed since the store was opened.
    is_changed: bool,
    /// Files that a failed edit may have named, until a fresh manifest is written.
    doubtful: Vec<(u64, PathBuf)>,
}

/// All physical logs of a store.
///
/// Locks: the manifest's, then that of the list of files, a leaf.
pub(crate) struct PhysicalLogs {
    env: Env,
    dir: PathBuf,
    store_id: u128,
    pub counters: Arc<Counters>,
    /// Largest bytes of a file.
    file_bytes: u64,
    /// True if the store was opened for reading only.
    read_only: bool,
    /// True since the store was closed. It changes under the lock of the manifest.
    closed: AtomicBool,
    manifested: Mutex<Manifested>,
    files: RwLock<BTreeMap<u64, Arc<ReadableFile>>>,
    /// Removed files. Later files reuse the space of those that no reader holds.
    recycled: Mutex<Vec<Arc<ReadableFile>>>,
    /// True if the next files need written space.
    wants_space: AtomicBool,
    /// Removed files that stay as long as a copy may need them.
    kept: Mutex<KeptFiles>,
    /// Space for removals on a full disk.
    reserve: Reserve,
}

/// Files that the manifest no longer names, and that copies of the store may.
#[derive(Default)]
struct KeptFiles {
    /// Number of copies that are made.
    pins: usize,
    paths: Vec<PathBuf>,
}

/// While it lives, no file that the manifest named when it was made is removed.
pub(crate) struct PinnedFiles(Arc<PhysicalLogs>);

impl Drop for PinnedFiles {
    fn drop(&mut self) {
        let mut kept = self.0.kept.lock();
        kept.pins -= 1;
        let unused = match kept.pins {
            0 => std::mem::take(&mut kept.paths),
            _ => Vec::new(),
        };
        drop(kept);
        for path in unused {
            // A file that cannot be removed is unused, and the next open removes it.
            let _ = self.0.env.fs().remove(&path);
        }
    }
}

impl PhysicalLogs {
    /// Takes over the files that the manifest with this number names. Writes nothing; the first
    /// edit goes to a fresh manifest.
    pub fn open(
        env: &Env,
        dir: &Path,
        mut catalog: Catalog,
        number: u64,
        file_bytes: u64,
    ) -> Result<PhysicalLogs> {
        // Files that no manifest names are removed later. Until then their names are taken.
        for entry in env.fs().list(dir)? {
            if let Some(number) = number_of(&entry.name) {
                catalog.next_file = catalog.next_file.max(number.saturating_add(1));
            }
        }
        PhysicalLogs::of_catalog(env, dir, catalog, number, file_bytes, false)
    }

    /// Takes over the files that a manifest with this number names, and writes nothing, now or
    /// later.
    pub fn open_read_only(
        env: &Env,
        dir: &Path,
        catalog: Catalog,
        number: u64,
        file_bytes: u64,
    ) -> Result<PhysicalLogs> {
        PhysicalLogs::of_catalog(env, dir, catalog, number, file_bytes, true)
    }

    fn of_catalog(
        env: &Env,
        dir: &Path,
        catalog: Catalog,
        number: u64,
        file_bytes: u64,
        read_only: bool,
    ) -> Result<PhysicalLogs> {
        let manifest = Manifest::unwritten(dir, number, catalog.store_id);
        let mut files = BTreeMap::new();
        for (n, file) in &catalog.files {
            let path = file_path(dir, *n, file.role);
            let opened = env.fs().open(&path).map_err(|e| match e.is_not_found() {
                true => missing(&path),
                false => e,
            })?;
            let (len, end) = (opened.allocated(), file.end.map_or(0, |end| end.offset));
            if !reaches(len, end) {
                return Err(truncated(&path, len, end));
            }
            files.insert(*n, readable(opened, &path, *n, file));
        }
        Ok(PhysicalLogs {
            env: env.clone(),
            dir: dir.to_path_buf(),
            store_id: catalog.store_id,
            counters: Arc::default(),
            file_bytes,
            read_only,
            closed: AtomicBool::new(false),
            manifested: Mutex::new(Manifested {
                manifest,
                catalog,
                is_changed: false,
                doubtful: Vec::new(),
            }),
            files: named("PhysicalLogs::files", RwLock::new(files)),
            recycled: named("PhysicalLogs::recycled", Mutex::new(Vec::new())),
            wants_space: AtomicBool::new(false),
            kept: named("PhysicalLogs::kept", Mutex::default()),
            reserve: Reserve::new(env, dir),
        })
    }

    /// Returns a file, or `None` if it was removed.
    pub fn get(&self, number: u64) -> Option<Arc<ReadableFile>> {
        self.files.read().get(&number).cloned()
    }

    /// Returns all files, by number.
    pub fn all(&self) -> Vec<Arc<ReadableFile>> {
        self.files.read().values().cloned().collect()
    }

    /// Returns a number for a new file, and the id of the store.
    pub fn new_file(&self) -> (u64, u128) {
        let mut m = self.manifested.lock();
        let number = m.catalog.next_file;
        m.catalog.next_file += 1;
        (number, self.store_id)
    }

    /// Returns a number below which all files of today are.
    pub fn next_number(&self) -> u64 {
        self.manifested.lock().catalog.next_file
    }

    /// Returns the newest checkpoint.
    #[cfg(test)]
    pub fn checkpoint(&self) -> Option<CheckpointFile> {
        self.checkpoint_files().0
    }

    /// Returns the newest checkpoint, and its names file.
    pub fn checkpoint_files(&self) -> (Option<CheckpointFile>, Option<CheckpointFile>) {
        let m = self.manifested.lock();
        (m.catalog.checkpoint, m.catalog.names)
    }

    /// Returns the environment's memory ledger.
    pub fn ledger(&self) -> &MemoryLedger {
        self.env.ledger()
    }

    /// Returns the environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the time of the environment's clock.
    pub fn now(&self) -> Duration {
        self.env.clock().now()
    }

    /// Returns the bytes that the next file of a role is to have.
    pub fn target_bytes(&self, role: Role) -> u64 {
        let live = self.live_bytes();
        let of_data = || {
            let least = SMALL_FILE.min(self.file_bytes);
            (live / LIVE_PART).clamp(least, self.file_bytes)
        };
        match role {
            Role::Meta => (live / META_PART)
                .clamp(META_FILE.start, META_FILE.end)
                .min(self.file_bytes),
            Role::Data => of_data(),
            Role::Moved => of_data() / MOVED_PART,
        }
    }

    /// Returns the live bytes of all files with records.
    pub fn live_bytes(&self) -> u64 {
        let files = self.files.read();
        let with_records = files.values().filter(|file| file.role != Role::Meta);
        with_records.map(|file| file.live.load(Relaxed)).sum()
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true if the store was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns `ReadOnly` if the store was opened for reading only, and `Closed` after its close.
    pub fn check_writable(&self) -> Result<()> {
        match self.read_only {
            false if self.closed.load(SeqCst) => Err(reserve::closed()),
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::ReadOnly,
                "the store was opened for reading only; open it with `LogEngine::open` to change it",
            )),
        }
    }

    /// Refuses all changes from now on: another process may have the directory. Waits for an edit
    /// that is being written, and for the reserve.
    pub fn close(&self) {
        let manifested = self.manifested.lock();
        self.closed.store(true, SeqCst);
        drop(manifested);
        self.reserve.close();
    }

    /// Makes changes of the catalog durable.
    pub fn install(&self, changes: &[Change]) -> Result<()> {
        self.install_into(&mut self.manifested.lock(), changes)
    }

    fn install_into(&self, m: &mut Manifested, changes: &[Change]) -> Result<()> {
        // An edit that adds a file for new records must not use the reserve of removals.
        let is_for_records = |c: &Change| matches!(c, Change::Add(_, f) if f.role != Role::Meta);
        let may_use_reserve = !changes.iter().any(is_for_records);
        match self.try_install(m, changes) {
            // Only a fresh manifest settles which edits count, so every other edit may use the
            // reserve.
            Err(e)
                if e.kind() == ErrorKind::NoSpace && may_use_reserve && self.release_reserve() =>
            {
                self.try_install(m, changes)
            }
            done => done,
        }
    }

    /// Makes sure that removals have their space on a full disk, before new records are written.
    ///
    /// Errors: `NoSpace` if the disk lacks this space; `ReadOnly`.
    pub fn hold_reserve(&self) -> Result<ReserveHeld<'_>> {
        self.check_writable()?;
        self.reserve.hold()
    }

    /// Makes the reserve if there is none, as far as the disk has the space.
    pub fn keep_reserve(&self) {
        self.reserve.keep();
    }

    /// Returns true if the store accepts new records, as far as the process knows.
    pub fn accepts_records(&self) -> bool {
        self.reserve.is_held()
    }

    /// Releases recycled files and the reserve, for a removal or an edit that found the disk full.
    /// Returns false if there is no reserve.
    pub fn release_reserve(&self) -> bool {
        self.release_recycled();
        self.reserve.release()
    }

    /// Returns true if an edit was installed since the store was opened. A store without an edit
    /// has no new record either, because each process appends to files of its own.
    pub fn is_changed(&self) -> bool {
        self.manifested.lock().is_changed
    }

    /// Writes a fresh manifest if a failed edit may have named a file.
    fn renew_doubtful(&self, role: Role) -> Result<()> {
        let mut m = self.manifested.lock();
        match (m.doubtful.is_empty(), role) {
            (true, _) => Ok(()),
            (false, Role::Meta) => self.install_into(&mut m, &[]),
            // An edit before a file for new records must not use the reserve of removals.
            (false, Role::Data | Role::Moved) => self.try_install(&mut m, &[]),
        }
    }

    fn try_install(&self, m: &mut Manifested, changes: &[Change]) -> Result<()> {
        self.check_writable()?;
        let mut catalog = m.catalog.clone();
        catalog.apply(changes)?;
        let grown = m.manifest.bytes() > MANIFEST_LEAST.max(m.manifest.begun() * MANIFEST_GROWTH);
        if grown || m.manifest.in_doubt() {
            let number = catalog.next_file;
            catalog.next_file += 1;
            // If the attempt fails, the name is taken.
            m.catalog.next_file = catalog.next_file;
            let state = catalog::encode(&catalog.changes());
            // After a failure either manifest may be the current one.
            let old = m.manifest.number();
            m.manifest.doubt();
            m.manifest = Manifest::create(&self.env, &self.dir, self.store_id, number, &state)?;
            // An old manifest that stays is removed by the next open.
            let _ = self.env.fs().remove(&manifest_path(&self.dir, old));
            for (number, path) in std::mem::take(&mut m.doubtful) {
                if !catalog.files.contains_key(&number) {
                    let _ = self.env.fs().remove(&path);
                }
            }
        } else {
            m.manifest.append(&catalog::encode(changes))?;
        }
        m.catalog = catalog;
        m.is_changed = true;
        Ok(())
    }

    /// Begins a file of a role with `capacity` bytes of written space, or less on a full disk. With
    /// a capacity, it takes over the space of a removed file if there is one.
    pub fn begin(&self, role: Role, capacity: u64) -> Result<(RecordWriter, Arc<ReadableFile>)> {
        let recycled = match capacity {
            0 => None,
            _ => self.take_recycled(),
        };
        if let Some(old) = recycled {
            // To ask for more than the old file's space would zero the difference now.
            match self.begin_in(role, 0, Some(&old)) {
                Ok(begun) => return Ok(begun),
                // The old file has a second name, or was removed by hand. It is an unused file in
                // any case, and the next open removes it.
                Err(_) => self.env.fs().remove(&old).unwrap_or(()),
            }
        }
        match self.begin_in(role, capacity, None) {
            Err(e) if e.kind() == ErrorKind::NoSpace && capacity > 0 => {
                self.begin_in(role, 0, None)
            }
            begun => begun,
        }
    }

    /// Takes the path of a removed file that no reader holds. A reader must not find the records of
    /// the next file in its own file.
    fn take_recycled(&self) -> Option<PathBuf> {
        let mut recycled = self.recycled.lock();
        // A removed file gets no new readers, because only `files` gives files to readers.
        // `get_mut` also orders the last reads of earlier readers before the next file's writes.
        let unread = |file: &mut Arc<ReadableFile>| Arc::get_mut(file).is_some();
        let unread = recycled.iter_mut().position(unread)?;
        Some(recycled.swap_remove(unread).path.clone())
    }

    fn begin_in(
        &self,
        role: Role,
        capacity: u64,
        reuse: Option<&Path>,
    ) -> Result<(RecordWriter, Arc<ReadableFile>)> {
        self.check_writable()?;
        // Files that a failed edit may name are kept until a fresh manifest decides. So the fresh
        // manifest is written before another file is made.
        self.renew_doubtful(role)?;
        // The manifest is not locked while space is written.
        let (number, _) = self.new_file();
        let path = file_path(&self.dir, number, role);
        let file_id = self.env.random().next_u128();
        let fs = self.env.fs();
        let options = LogOptions { capacity, reuse };
        let (mut is_made, mut may_be_named) = (false, false);
        let begun = fs.create_log(&path, options).and_then(|file| {
            is_made = true;
            let header = log_header(&self.env, file_id, self.store_id, number);
            let mut writer = RecordWriter::create(file, &path, &header)?;
            // The header is durable before the manifest names the file. From then on a missing
            // header is damage.
            writer.sync()?;
            fs.sync_metadata(&self.dir)?;
            let entry = PhysicalFile {
                file_id,
                role,
                end: None,
            };
            let readable = readable(writer.file().clone(), &path, number, &entry);
            may_be_named = true;
            self.install(&[Change::Add(number, entry)])?;
            Ok((writer, readable))
        });
        if begun.is_err() && !is_made {
            // A file with this name is another one's.
        } else if begun.is_err() && !may_be_named {
            // Otherwise the manifest is in doubt: it may name the file, and a process that opens
            // the store before the next manifest is written must find it.
            let _ = fs.remove(&path);
        } else if begun.is_err() {
            self.manifested.lock().doubtful.push((number, path));
        }
        let (writer, readable) = begun?;
        self.files.write().insert(number, readable.clone());
        Ok((writer, readable))
    }

    /// Makes everything in a file durable, through a handle of its own.
    pub fn sync_file(&self, file: &ReadableFile) -> Result<()> {
        self.env.fs().open(&file.path)?.sync_data()
    }

    /// Records the ends of files that were being written.
    pub fn end_files(&self, ends: &[(u64, FileEnd)]) -> Result<()> {
        let changes: Vec<Change> = ends.iter().map(|(n, end)| Change::End(*n, *end)).collect();
        self.install(&changes)?;
        self.note_ends(ends);
        Ok(())
    }

    /// Gives back the space behind the end of a file. A failed append, or a process that was
    /// killed, leaves it.
    pub fn release_tail(&self, number: u64, end: u64) {
        if let Some(file) = self.get(number) {
            // The file keeps the space if it cannot be released.
            let _ = file.file.release_range(end..file.file.allocated());
        }
    }

    /// Notes the ends of files in memory alone.
    pub fn note_ends(&self, ends: &[(u64, FileEnd)]) {
        for (n, end) in ends {
            if let Some(file) = self.get(*n) {
                *file.end.lock() = Some(*end);
            }
        }
    }

    /// Removes a file of which nothing is live. Readers that have it go on reading. With `recycle`,
    /// the next file may take over its space.
    pub fn remove(&self, number: u64, recycle: bool) -> Result<()> {
        self.remove_all(&[number], recycle)
    }

    /// Removes files as [`PhysicalLogs::remove`] does, all with one edit of the manifest.
    pub fn remove_all(&self, numbers: &[u64], recycle: bool) -> Result<()> {
        let mut m = self.manifested.lock();
        let files: Vec<_> = numbers
            .iter()
            .filter_map(|number| self.get(*number))
            .collect();
        if files.is_empty() {
            return Ok(());
        }
        let removed = files.iter().map(|file| Change::Remove(file.number));
        self.install_into(&mut m, &removed.collect::<Vec<_>>())?;
        let mut known = self.files.write();
        for file in &files {
            known.remove(&file.number);
        }
        drop((known, m));
        self.counters.removed_files.add(files.len() as u64);
        for file in files {
            self.recycle_or_remove(file, recycle);
        }
        Ok(())
    }

    fn recycle_or_remove(&self, file: Arc<ReadableFile>, recycle: bool) {
        let path = file.path.clone();
        if self.keep(&path) {
            return;
        }
        let mut recycled = self.recycled.lock();
        // `note_space_need` first says that no space is needed and then empties the list under this
        // lock. Read before the lock, an old answer could keep a file that no caller removes.
        let recycle = recycle && self.wants_space.load(Relaxed);
        if recycle && !file.has_failed.load(Relaxed) && recycled.len() < MOST_RECYCLED {
            recycled.push(file);
            return;
        }
        drop(recycled);
        // A file that cannot be removed is unused, and the next open removes it.
        let _ = self.env.fs().remove(&path);
    }

    /// Returns the catalog and its files, and keeps the files that it names.
    pub fn pin(self: &Arc<Self>) -> (Catalog, Vec<Arc<ReadableFile>>, PinnedFiles) {
        // A removal changes the catalog and the list of files under this lock.
        let m = self.manifested.lock();
        self.kept.lock().pins += 1;
        let named = |file: &Arc<ReadableFile>| m.catalog.files.contains_key(&file.number);
        let files = self.all().into_iter().filter(named).collect();
        (m.catalog.clone(), files, PinnedFiles(self.clone()))
    }

    /// Returns true if the manifest names the checkpoint with this number, or may name it after an
    /// edit that failed.
    pub fn may_name_checkpoint(&self, number: u64) -> bool {
        let m = self.manifested.lock();
        m.manifest.in_doubt() || m.catalog.checkpoint.is_some_and(|c| c.number == number)
    }

    /// Removes a checkpoint that the manifest no longer names.
    pub fn remove_checkpoint(&self, path: &Path) {
        if !self.keep(path) {
            // A file that stays is unused, and the next open removes it.
            let _ = self.env.fs().remove(path);
        }
    }

    /// Returns true if a copy may need a file that the manifest no longer names. The file is
    /// removed with the last copy.
    fn keep(&self, path: &Path) -> bool {
        let mut kept = self.kept.lock();
        if kept.pins > 0 {
            kept.paths.push(path.to_path_buf());
        }
        kept.pins > 0
    }

    /// Removes what was kept for copies, for a store that closes: later, the directory may belong
    /// to another process.
    pub fn release_kept(&self) {
        let kept = std::mem::take(&mut self.kept.lock().paths);
        for path in kept {
            let _ = self.env.fs().remove(&path);
        }
    }

    /// Sets whether the next files need written space. If not, deletes the removed files that were
    /// kept for reuse.
    pub fn note_space_need(&self, needs: bool) {
        if self.wants_space.swap(needs, Relaxed) && !needs {
            self.release_recycled();
        }
    }

    /// Gives back the space of removed files that waits for the next files.
    pub fn release_recycled(&self) {
        for file in std::mem::take(&mut *self.recycled.lock()) {
            let _ = self.env.fs().remove(&file.path);
        }
    }
}

fn readable(
    file: Arc<dyn File>,
    path: &Path,
    number: u64,
    entry: &PhysicalFile,
) -> Arc<ReadableFile> {
    Arc::new(ReadableFile {
        number,
        file_id: entry.file_id,
        role: entry.role,
        path: path.to_path_buf(),
        file,
        live: AtomicU64::new(0),
        ever_live: AtomicU64::new(entry.end.map_or(0, |end| end.offset)),
        end: named("ReadableFile::end", Mutex::new(entry.end)),
        has_failed: AtomicBool::new(false),
        is_damaged: AtomicBool::new(false),
        beside: named("ReadableFile::beside", Mutex::new(false)),
    })
}

/// Returns the number in the name of a file of a log store, for files of all kinds.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let stem = name.strip_prefix("MANIFEST-").or(name.split('.').next());
    stem.and_then(|stem| stem.parse().ok())
}

/// Returns the number and the role in the name of a physical log.
pub(crate) fn parse_name(name: &str) -> Option<(u64, Role)> {
    let (stem, extension) = name.split_once('.')?;
    let role = [Role::Data, Role::Moved, Role::Meta]
        .into_iter()
        .find(|role| role.extension() == extension)?;
    let number = stem.parse().ok().filter(|n| *n < u64::MAX >> 8)?;
    (file_path(Path::new(""), number, role).to_str() == Some(name)).then_some((number, role))
}

/// Returns the path of a physical log.
pub(crate) fn file_path(dir: &Path, number: u64, role: Role) -> PathBuf {
    dir.join(format!("{number:06}.{}", role.extension()))
}

/// Reads the catalog that `CURRENT` leads to. Returns `None` if there is no store.
pub(crate) fn load(env: &Env, dir: &Path) -> Result<Option<(Current, Catalog)>> {
    let Some(current) = basalt_records::manifest::read_current(env, dir)? else {
        return Ok(None);
    };
    let mut catalog = Catalog::default();
    basalt_records::manifest::replay(env, dir, &current, |edit| {
        catalog.apply(&catalog::decode(edit)?)
    })?;
    if catalog.store_id != current.store_id {
        return Err(Error::corruption(
            &manifest_path(dir, current.number),
            0,
            format!(
                "the manifest's state is of store {:032x}, {CURRENT} names {:032x}",
                catalog.store_id, current.store_id
            ),
        ));
    }
    catalog.next_file = catalog.next_file.max(current.number + 1);
    Ok(Some((current, catalog)))
}

/// Returns the header of a file of records with this id and number.
pub(crate) fn log_header(env: &Env, file_id: u128, store_id: u128, number: u64) -> FileHeader {
    FileHeader {
        kind: FileKind::Log,
        file_id,
        store_id,
        number,
        write_unit: env.fs().info().write_unit as u32,
        compatible: 0,
        incompatible: 0,
        previous: None,
    }
}

/// Appends a record with this payload, unsynced, and returns its offset. The record has no place in
/// the history of the logs.
pub(crate) fn append_payload(
    writer: &mut RecordWriter,
    kind: RecordKind,
    payload: &[u8],
) -> Result<u64> {
    append_payloads(writer, kind, &[payload])
}

/// Appends a record for each payload with one write, unsynced, and returns the offset of the first.
/// The records have no place in the history of the logs.
pub(crate) fn append_payloads(
    writer: &mut RecordWriter,
    kind: RecordKind,
    payloads: &[impl AsRef<[u8]>],
) -> Result<u64> {
    let buffers = payloads.iter().map(|payload| {
        let payload = payload.as_ref();
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
        buf.resize(RECORD_HEADER, 0);
        buf.extend_from_slice(payload);
        buf
    });
    let mut buffers: Vec<AlignedBuf> = buffers.collect();
    let records = buffers.iter_mut().map(|buf| Outgoing {
        kind,
        first_seq: 0,
        count: 1,
        payload_crc: basalt_records::payload_crc(&buf[RECORD_HEADER..], &[]),
        separated: &[],
        offset: 0,
        buf,
    });
    let mut records: Vec<Outgoing<'_>> = records.collect();
    writer.append(&mut records, false)?;
    Ok(records[0].offset)
}

/// Returns the error of a file that a manifest names and that does not exist.
pub(crate) fn missing(path: &Path) -> Error {
    Error::new(
        ErrorKind::Corruption,
        "the manifest names this file, and it is missing",
    )
    .at(path, 0)
}

/// Returns the error of an ended file that has fewer bytes than the manifest says.
fn truncated(path: &Path, len: u64, end: u64) -> Error {
    let what =
        format!("the file has {len} bytes, and the manifest says that its records have {end}");
    Error::corruption(path, len, what)
}

#[cfg(test)]
mod tests;
