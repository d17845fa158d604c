//! The files that make up the tree: immutable [`Version`]s, and the tables that they name.
//!
//! A reader clones an `Arc<Version>` and works on it undisturbed. A flush or compaction installs
//! the next version through the manifest. A table's file is removed when the manifest no longer
//! names it and the last version or reader that holds it is dropped, never earlier.

mod blobs;
pub mod catalog;
pub mod edit;
mod engines;
pub mod file_map;
pub mod level;
mod location;
mod open;
mod removal;

pub use basalt_blob::{blob_name, blob_names, index_name, log_name};
pub use basalt_kv::flush_flag::{FlushFlag, Tsn};
pub use basalt_records::manifest;
pub use blobs::{BlobFile, BlobSet};
pub use engines::EngineKind;
pub(crate) use engines::to_bits as engine_bits;
pub use location::FileLocation;

use basalt_env::sync::atomic::{AtomicBool, Ordering as Atomic};
use basalt_env::sync::{Mutex, RwLock, named};
use basalt_env::{Env, JobOwner, JobPriority};
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_kv::key::{Cmp, user_key};
use basalt_table::{TableMeta, TableReader};
use level::Level;
use open::{OpenFile, OpenOnRead, OpenTables};
use removal::Removal;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Levels of a tree, level 0 included.
pub const LEVELS: usize = 7;

/// Returns the name of a table's file.
pub fn table_name(number: u64) -> String {
    format!("{number:06}.tbl")
}

/// Takes over a log that no version needs any more, by its number and the end of its written space.
/// Returns `false` if the engine is gone and did not take the log.
type DeadLogs = Box<dyn Fn(u64, Option<u64>) -> bool + Send + Sync>;

/// The kind of a data file: a file that versions hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFileKind {
    /// A table.
    Table,
    /// A blob file.
    Blob,
}

/// Returns the blob files of the newest version; `None` if the engine is gone.
type NewestBlobs = Box<dyn Fn() -> Option<Arc<BlobSet>> + Send + Sync>;

/// The listener that is called with kind, number and path of each removed file.
type Removed = Box<dyn Fn(DataFileKind, u64, &Path) + Send + Sync>;

/// The directory of a store's tables, which opens and removes them.
pub struct TableStore {
    env: Env,
    dir: PathBuf,
    jobs: JobOwner,
    open: Arc<OpenTables>,
    /// Called with each file that was removed because no version or reader holds it any more.
    removed: OnceLock<Removed>,
    dead_logs: OnceLock<DeadLogs>,
    newest_blobs: OnceLock<NewestBlobs>,
    removal: Removal,
    /// True once the directory may belong to another store: see [`TableStore::leave`].
    left: RwLock<bool>,
}

impl TableStore {
    /// Makes the table store of a directory.
    pub fn new(env: &Env, dir: &Path) -> Arc<TableStore> {
        Arc::new(TableStore {
            env: env.clone(),
            dir: dir.to_path_buf(),
            jobs: env.jobs().new_owner(),
            open: OpenTables::new(env),
            removed: OnceLock::new(),
            dead_logs: OnceLock::new(),
            newest_blobs: OnceLock::new(),
            removal: Removal::default(),
            left: named("TableStore::left", RwLock::new(false)),
        })
    }

    /// Sets the function that is called now and then, from within reads, as readers go to the
    /// device for tables. Can be set once; `callback` must not block.
    pub fn on_extra_reads(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _ = self.open.extra_reads.set(Box::new(callback));
    }

    /// Calls the function of [`TableStore::on_extra_reads`], if one is set.
    pub fn note_extra_reads(&self) {
        if let Some(callback) = self.open.extra_reads.get() {
            callback();
        }
    }

    /// Sets the function that is called with kind, number and path of every removed file. Can be
    /// set once; `callback` must not block.
    pub fn when_removed(
        &self,
        callback: impl Fn(DataFileKind, u64, &Path) + Send + Sync + 'static,
    ) {
        let _ = self.removed.set(Box::new(callback));
    }

    /// Sets the function that takes over every log that was a blob file and that no version needs
    /// any more. Its arguments are the log's number and the end of its written space in bytes. If
    /// it returns `false`, the log's file is removed. It can be set once.
    pub fn when_log_dies(&self, take: impl Fn(u64, Option<u64>) -> bool + Send + Sync + 'static) {
        let _ = self.dead_logs.set(Box::new(take));
    }

    /// Sets the function that returns the blob files of the newest version. It can be set once.
    pub fn read_blobs_from(
        &self,
        newest: impl Fn() -> Option<Arc<BlobSet>> + Send + Sync + 'static,
    ) {
        let _ = self.newest_blobs.set(Box::new(newest));
    }

    /// Returns the blob files of the newest version; `None` while no engine has the store open.
    pub fn newest_blobs(&self) -> Option<Arc<BlobSet>> {
        self.newest_blobs.get().and_then(|newest| newest())
    }

    /// Returns the owner of the store's jobs.
    pub fn jobs(&self) -> &JobOwner {
        &self.jobs
    }

    /// Returns the store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Makes a file that no manifest names yet. Returns `Closed` after the store has left the
    /// directory.
    pub fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        let left = self.left.read();
        match *left {
            true => Err(Error::new(ErrorKind::Closed, "the store is closed")),
            false => self.env.fs().create(path),
        }
    }

    /// Gives the directory back: from the return of this call on, the store makes and removes no
    /// file in it. The next store in the directory removes files that its manifest does not name,
    /// and may give their numbers to files of its own.
    pub fn leave(&self) {
        *self.left.write() = true;
    }

    /// Returns the path of a table.
    pub fn path(&self, number: u64) -> PathBuf {
        self.dir.join(table_name(number))
    }

    /// Checks that a table or blob file of the manifest exists, and is not shorter than the
    /// manifest says.
    pub fn check_present(&self, path: &Path, size: u64, number: u64) -> Result<()> {
        match self.env.fs().stat(path) {
            Ok(s) if s.len.max(s.allocated) >= size => Ok(()),
            Ok(s) => Err(Error::corruption(
                path,
                s.len,
                format!(
                    "file {number} is {} bytes, the manifest says {size}; run `basalt repair`",
                    s.len
                ),
            )),
            Err(e) if e.is_not_found() => Err(Error::corruption(
                path,
                0,
                format!("the manifest names file {number}, and it is missing; run `basalt repair`"),
            )),
            Err(e) => Err(e),
        }
    }

    /// Returns a table that the manifest names or is about to name.
    pub fn table(
        self: &Arc<Self>,
        number: u64,
        meta: impl Into<Arc<TableMeta>>,
        cmp: Cmp,
    ) -> Arc<TableFile> {
        Arc::new(TableFile {
            number,
            meta: meta.into(),
            cmp,
            compacting: AtomicBool::new(false),
            obsolete: AtomicBool::new(false),
            file: OpenFile::new(&self.open, self.path(number)),
            reader: OnceLock::new(),
            opening: named("TableFile::opening", Mutex::new(())),
            store: self.clone(),
        })
    }
}

/// One table of the tree.
pub struct TableFile {
    /// The table's file number; newer tables have larger ones.
    pub number: u64,
    /// The table's metadata in the manifest.
    pub meta: Arc<TableMeta>,
    cmp: Cmp,
    /// True while a compaction has the table as an input.
    pub compacting: AtomicBool,
    obsolete: AtomicBool,
    file: Arc<OpenFile>,
    /// The reader, made on the first use and kept. A read from it needs no lock and no reference
    /// count.
    reader: OnceLock<Arc<TableReader>>,
    opening: Mutex<()>,
    store: Arc<TableStore>,
}

impl TableFile {
    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.store.path(self.number)
    }

    /// Returns the table's reader, and makes it on the first call. Its file is open while it is
    /// read, and otherwise within the open-file budget.
    pub fn reader(&self) -> Result<&Arc<TableReader>> {
        match self.reader.get() {
            Some(reader) => Ok(reader),
            None => self.open(),
        }
    }

    /// Returns the number of device reads that readers would have saved without this table, since
    /// its reader was made.
    pub fn extra_reads(&self) -> u64 {
        self.opened().map_or(0, |reader| reader.extra_reads())
    }

    /// Resets the count of [`TableFile::extra_reads`].
    pub fn reset_extra_reads(&self) {
        if let Some(reader) = self.opened() {
            reader.reset_extra_reads();
        }
    }

    /// Returns the reader, if it was made.
    #[inline]
    pub fn opened(&self) -> Option<&Arc<TableReader>> {
        self.reader.get()
    }

    #[cold]
    fn open(&self) -> Result<&Arc<TableReader>> {
        let _one_at_a_time = self.opening.lock();
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let reader = TableReader::open_shifted(
            &self.store.env,
            OpenOnRead(self.file.clone()),
            &self.path(),
            &self.meta,
            self.cmp.clone(),
        )?;
        Ok(self.reader.get_or_init(|| reader))
    }

    /// Returns the first user key.
    pub fn smallest_user(&self) -> &[u8] {
        user_key(&self.meta.smallest)
    }

    /// Returns the last user key or, with [`TableFile::end_is_open`], the first one behind the
    /// table.
    pub fn largest_user(&self) -> &[u8] {
        user_key(&self.meta.largest)
    }

    /// Returns true if a range tombstone reaches past the last entry: its end is then the table's,
    /// and not in the table.
    pub fn end_is_open(&self) -> bool {
        self.meta.end_is_open()
    }

    /// Returns true if all keys of the table lie before the user key.
    #[inline]
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.cmp.user(self.largest_user(), key) {
            Ordering::Less => true,
            Ordering::Equal => self.end_is_open(),
            Ordering::Greater => false,
        }
    }

    /// The manifest no longer names it: its file goes when the last holder lets go.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, Atomic::SeqCst);
    }

    /// Returns true if the ranges of two tables have a user key in common.
    pub fn meets(&self, other: &TableFile) -> bool {
        !self.ends_before(other.smallest_user()) && !other.ends_before(self.smallest_user())
    }

    /// Returns true if some key of the table may lie in the user key range, both ends inclusive,
    /// `None` unbounded.
    pub fn overlaps(&self, from: Option<&[u8]>, to: Option<&[u8]>) -> bool {
        let c = &self.cmp;
        from.is_none_or(|f| !self.ends_before(f))
            && to.is_none_or(|t| c.user(self.smallest_user(), t) != Ordering::Greater)
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        self.file.close();
        if self.obsolete.load(Atomic::SeqCst) {
            let (store, number) = (self.store.clone(), self.number);
            self.store.jobs.spawn(JobPriority::Housekeeping, move || {
                store.remove_and_report(&store.path(number), DataFileKind::Table, number);
            });
        }
    }
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{} bytes]", table_name(self.number), self.meta.size)
    }
}

/// One family's tables. Level 0: newest first, ranges overlap. Below: sorted by smallest key,
/// ranges of user keys disjoint.
#[derive(Clone, Debug)]
pub struct FamilyVersion {
    /// The family's comparator.
    pub cmp: Cmp,
    /// The tables of each level.
    pub levels: [Level; LEVELS],
}

impl FamilyVersion {
    /// Returns a family version without tables.
    pub fn empty(cmp: Cmp) -> FamilyVersion {
        FamilyVersion {
            cmp,
            levels: Default::default(),
        }
    }

    /// Returns the bytes of a level, in constant time: the level keeps the sum.
    pub fn level_bytes(&self, level: usize) -> u64 {
        self.levels[level].totals().bytes
    }

    /// Returns the table of a level below 0 whose range may hold the user key.
    pub fn find(&self, level: usize, key: &[u8]) -> Option<&Arc<TableFile>> {
        debug_assert!(level > 0);
        let tables = &self.levels[level];
        let i = tables.partition_point(|t| t.ends_before(key));
        tables
            .get(i)
            .filter(|t| self.cmp.user(t.smallest_user(), key) != Ordering::Greater)
    }

    /// Returns the tables of a level that overlap the user key range, both ends inclusive.
    pub fn overlapping(
        &self,
        level: usize,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Vec<Arc<TableFile>> {
        self.levels[level]
            .iter()
            .filter(|t| t.overlaps(from, to))
            .cloned()
            .collect()
    }

    /// Returns the position of a table in a level, or the position where it would enter.
    fn position(&self, level: usize, meta: &TableMeta, number: u64) -> usize {
        match level {
            // Level 0 is ordered by the newest sequence number, so that readers stop at the first
            // hit.
            0 => self.levels[0].position_by_age(meta.max_seq, number),
            _ => self.levels[level].position_by_key(&self.cmp, &meta.smallest),
        }
    }

    /// Adds a table at its place.
    pub fn insert(&mut self, level: usize, table: Arc<TableFile>) {
        let at = self.position(level, &table.meta, table.number);
        self.levels[level].insert(at, table);
    }

    /// Adds a table to a level without looking for its place. [`FamilyVersion::sort`] must follow
    /// before any other call.
    pub fn push(&mut self, level: usize, table: Arc<TableFile>) {
        self.levels[level].push(table);
    }

    /// Puts every level in order after tables were pushed in any order.
    pub fn sort(&mut self) {
        let cmp = self.cmp.clone();
        let age = |t: &TableFile| std::cmp::Reverse((t.meta.max_seq, t.number));
        self.levels[0].sort_by(|a, b| age(a).cmp(&age(b)));
        for level in &mut self.levels[1..] {
            level.sort_by(|a, b| cmp.internal(&a.meta.smallest, &b.meta.smallest));
        }
    }

    /// Removes a table and returns it, or returns `None` if the level does not have it. `meta` is
    /// the metadata of the table in the manifest. The cost is a binary search, and the move of the
    /// tables behind it.
    pub fn remove(
        &mut self,
        level: usize,
        number: u64,
        meta: &TableMeta,
    ) -> Option<Arc<TableFile>> {
        let at = self.position(level, meta, number);
        (self.levels[level].get(at)).filter(|t| t.number == number)?;
        Some(self.levels[level].remove(at))
    }

    /// Checks the rules that must hold in every version. The error says which rule is broken.
    pub fn check(&self) -> std::result::Result<(), String> {
        for (level, tables) in self.levels.iter().enumerate() {
            if !tables.adds_up() {
                return Err(format!(
                    "level {level}: its sums are not those of its tables"
                ));
            }
            for t in &**tables {
                self.check_ends(level, t)?;
            }
            for pair in tables.windows(2) {
                self.check_pair(level, &pair[0], &pair[1])?;
            }
        }
        Ok(())
    }

    /// Checks the rules of [`FamilyVersion::check`] for one table that has entered a level, and for
    /// its neighbours. A level that kept the rules before still keeps them if all tables that
    /// entered since pass. The removal of tables breaks no rule.
    pub fn check_entered(
        &self,
        level: usize,
        number: u64,
        meta: &TableMeta,
    ) -> std::result::Result<(), String> {
        let tables = &self.levels[level];
        let at = self.position(level, meta, number);
        let near = &tables[at.saturating_sub(1)..tables.len().min(at + 2)];
        let Some(t) = near.iter().find(|t| t.number == number) else {
            return Err(format!(
                "level {level}: table {number} is not where its keys are"
            ));
        };
        self.check_ends(level, t)?;
        let mut pairs = near.windows(2);
        pairs.try_for_each(|pair| self.check_pair(level, &pair[0], &pair[1]))
    }

    fn check_ends(&self, level: usize, t: &TableFile) -> std::result::Result<(), String> {
        match self.cmp.internal(&t.meta.smallest, &t.meta.largest) {
            Ordering::Greater => Err(format!(
                "{t:?} at level {level}: smallest key is above its largest"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that two tables may lie beside each other in a level.
    fn check_pair(
        &self,
        level: usize,
        a: &TableFile,
        b: &TableFile,
    ) -> std::result::Result<(), String> {
        match level {
            0 if a.meta.max_seq < b.meta.max_seq => Err(format!(
                "level 0 is out of order: table {a:?} stands before the newer table {b:?}"
            )),
            1.. if !a.ends_before(b.smallest_user()) => {
                Err(format!("level {level}: {a:?} and {b:?} overlap"))
            }
            _ => Ok(()),
        }
    }
}

/// All families' tables at one moment.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Families by id.
    pub families: BTreeMap<u32, Arc<FamilyVersion>>,
    /// The files of separated values.
    pub blobs: Arc<BlobSet>,
}
