//! The blob files of a version. A file is opened by its first read. It is removed when the manifest
//! no longer names it and the last version or reader that holds it is dropped.
//!
//! A log that is a blob file has its index in a second file, and gives back the blocks in which no
//! record lies. When no version needs it any more, the engine may take its space for a new log.

use super::file_map::FileMap;
use super::open::{OpenFile, OpenOnRead};
use super::{DataFileKind, TableStore, catalog::Catalog};
use basalt_blob::batch_read::{KeptIndexPages, Located, RecordPlace, ValueRequest, locate};
use basalt_blob::derive::places_from_records;
use basalt_blob::lineage::Lineage;
use basalt_blob::{BLOCK, BlobMeta, BlobReader, ReadMode, blob_name, blob_names};
use basalt_env::JobPriority;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_fs::{Bytes, Error, Reach, Result};
use basalt_kv::key::{Cmp, Kind};
use basalt_kv::separated::{Name, Reference};
use basalt_table::ReadBudget;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// One blob file.
pub struct BlobFile {
    /// The blob file's number.
    pub number: u64,
    /// The blob file's metadata in the manifest.
    pub meta: Arc<BlobMeta>,
    obsolete: AtomicBool,
    file: Arc<OpenFile>,
    /// The index of a log; `None` for other blob files.
    index: Option<Arc<OpenFile>>,
    reader: OnceLock<BlobReader>,
    opening: Mutex<()>,
    store: Arc<TableStore>,
}

impl BlobFile {
    /// Returns the blob file's path.
    pub fn path(&self) -> PathBuf {
        self.paths().swap_remove(0)
    }

    /// Returns the paths of the blob file's files, the one with the records first.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.store.blob_paths(self.number, &self.meta)
    }

    /// Returns the reader, and makes it on the first call.
    #[inline]
    pub fn reader(&self) -> Result<&BlobReader> {
        match self.reader.get() {
            Some(reader) => Ok(reader),
            None => self.open(),
        }
    }

    /// Returns the number of device reads for scans of this file's values, and the sum of their
    /// `alike`, since the reader was made. See [`crate::blob::BlobReader::scans`].
    pub fn scans(&self) -> (u64, u64) {
        self.reader.get().map_or((0, 0), |r| r.scans())
    }

    /// Resets the counts of [`BlobFile::scans`].
    pub fn forget_scans(&self) {
        if let Some(reader) = self.reader.get() {
            reader.forget_scans();
        }
    }

    #[cold]
    fn open(&self) -> Result<&BlobReader> {
        let _one_at_a_time = self.opening.lock();
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let (env, paths) = (&self.store.env, self.paths());
        let reader = match &self.index {
            None => BlobReader::open(
                env,
                Arc::new(OpenOnRead(self.file.clone())),
                &paths[0],
                &self.meta,
            )?,
            Some(index) => BlobReader::open_log(
                env,
                (Box::new(OpenOnRead(self.file.clone())), &paths[0]),
                (Box::new(OpenOnRead(index.clone())), &paths[1]),
                &self.meta,
            )?,
        };
        Ok(self.reader.get_or_init(|| reader))
    }

    /// Returns the places of some of the file's records, which its index does not hold. Reads all
    /// records; see [`basalt_blob::derive`].
    pub(crate) fn places_from_records(
        &self,
        names: &[Name<'_>],
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<RecordPlace>> {
        let reader = self.reader().ok();
        let file = self.file.file()?;
        places_from_records(&*file, &self.path(), &self.meta, reader, names, go_on)
    }

    /// Gives back the space of a log in which no record of its index lies. The header stays,
    /// because repair identifies the log by it.
    pub fn trim(&self) -> Result<()> {
        let file = self.store.env.fs().open(&self.path())?;
        let mut kept = BLOCK;
        self.reader()?.places(&mut |place| {
            if place.start > kept {
                file.release_range(kept..place.start)?;
            }
            kept = place.end;
            Ok(())
        })?;
        file.release_range(kept..file.allocated())
    }

    /// Marks the file as removed from the manifest: the file is removed when the last holder drops
    /// it.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, SeqCst);
    }
}

impl Drop for BlobFile {
    fn drop(&mut self) {
        self.file.close();
        if let Some(index) = &self.index {
            index.close();
        }
        if self.obsolete.load(SeqCst) {
            if let Some(reader) = self.reader.get() {
                reader.forget_index();
            }
            let (store, paths) = (self.store.clone(), self.paths());
            let (number, meta) = (self.number, self.meta.clone());
            self.store.jobs.spawn(JobPriority::Housekeeping, move || {
                let mut paths = paths.into_iter();
                let records = paths.next().expect("the one with the records");
                // Reusing the space fills its holes, so only a log with few holes is worth it.
                let whole = meta.size + meta.data_end / 8 >= meta.data_end;
                let end = whole.then_some(meta.data_end);
                let take = store.dead_logs.get().filter(|_| meta.index.is_some());
                if !take.is_some_and(|take| take(number, end)) {
                    store.remove_and_report(&records, DataFileKind::Blob, number);
                } else if let Some(callback) = store.removed.get() {
                    callback(DataFileKind::Blob, number, &records);
                }
                paths.for_each(|index| store.remove(&index));
            });
        }
    }
}

impl std::fmt::Debug for BlobFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = blob_names(self.number, &self.meta).swap_remove(0);
        write!(f, "{name}[{} bytes]", self.meta.size)
    }
}

impl TableStore {
    /// Returns the path of a blob file.
    pub fn blob_path(&self, number: u64) -> PathBuf {
        self.dir.join(blob_name(number))
    }

    /// Returns the paths of a blob file's files, the one with the records first.
    pub fn blob_paths(&self, number: u64, meta: &BlobMeta) -> Vec<PathBuf> {
        let names = blob_names(number, meta).into_iter();
        names.map(|n| self.dir.join(n)).collect()
    }

    /// Returns a blob file that the manifest names or is about to name.
    pub fn blob(self: &Arc<Self>, number: u64, meta: Arc<BlobMeta>) -> Arc<BlobFile> {
        let files = self.blob_paths(number, &meta).into_iter();
        let mut files = files.map(|path| OpenFile::new(&self.open, path));
        Arc::new(BlobFile {
            number,
            meta,
            obsolete: AtomicBool::new(false),
            file: files.next().expect("the one with the records"),
            index: files.next(),
            reader: OnceLock::new(),
            opening: named("BlobFile::opening", Mutex::new(())),
            store: self.clone(),
        })
    }
}

/// Blob files and the meaning of their numbers, at one moment.
#[derive(Clone, Debug, Default)]
pub struct BlobSet {
    /// Files by number.
    pub files: FileMap<Arc<BlobFile>>,
    /// The targets of numbers whose files garbage collection rewrote.
    pub lineage: Arc<Lineage>,
}

impl BlobSet {
    /// Returns the files of a catalog. None of them is opened or checked.
    pub fn of(store: &Arc<TableStore>, catalog: &Catalog) -> BlobSet {
        let files = catalog.blobs.iter();
        BlobSet {
            files: files
                .map(|(n, b)| (*n, store.blob(*n, b.meta.clone())))
                .collect(),
            lineage: catalog.lineage.clone(),
        }
    }

    /// Returns the file with the record that the entry of `name` refers to by `number`. Returns
    /// `Corruption` if there is none.
    #[inline]
    pub fn file(&self, number: u64, name: &Name<'_>, cmp: &Cmp) -> Result<&Arc<BlobFile>> {
        if let Some(file) = self.files.get(&number) {
            return Ok(file);
        }
        let means = self.lineage.resolve(number, name.family, name.key, cmp);
        means
            .and_then(|number| self.files.get(&number))
            .ok_or_else(|| {
                Error::new(
                    basalt_fs::ErrorKind::Corruption,
                    format!(
                        "key {:02x?} of family {} with sequence number {} refers to blob file {number}, \
                         which neither exists nor has a successor; run `basalt check`",
                        name.key, name.family, name.seq
                    ),
                )
                .with_reach(Reach::File)
            })
    }

    /// Returns the kind and the payload that the entry of `name` would have with its value in the
    /// tree.
    pub fn read(
        &self,
        name: &Name<'_>,
        to: &Reference,
        cmp: &Cmp,
        how: ReadMode,
    ) -> Result<(Kind, Bytes)> {
        let read = self.read_within(name, to, cmp, how, &mut ReadBudget::unbounded());
        read.map(|r| r.expect("nothing is put off without a bound"))
    }

    /// Returns what [`BlobSet::read`] returns, and takes the payload from `budget` before it is
    /// read. Returns `None` if the budget is too small.
    pub fn read_within(
        &self,
        name: &Name<'_>,
        to: &Reference,
        cmp: &Cmp,
        how: ReadMode,
        budget: &mut ReadBudget,
    ) -> Result<Option<(Kind, Bytes)>> {
        let file = self.file(to.number, name, cmp)?;
        let payload = file.reader()?.get_within(&to.record(name), how, budget)?;
        Ok(payload.map(|p| (to.kind(), p)))
    }

    /// Bytes of the payload that the entry of `name`, which refers to it so, would have with its
    /// value in the tree. See [`basalt_blob::BlobReader::payload_len_within`].
    pub fn payload_len_within(
        &self,
        name: &Name<'_>,
        to: &Reference,
        cmp: &Cmp,
        how: ReadMode,
        budget: &mut ReadBudget,
    ) -> Result<Option<usize>> {
        let file = self.file(to.number, name, cmp)?;
        (file.reader()?).payload_len_within(&to.record(name), how, budget)
    }

    /// Locates the payloads that entries refer to by these numbers. All index pages that this needs
    /// are read together.
    pub(crate) fn locate<'a>(
        &'a self,
        entries: &[(Name<'a>, u64, &Cmp)],
        pages: &mut KeptIndexPages,
        how: ReadMode,
    ) -> Vec<Result<Located<'a>>> {
        let mut sought = Vec::with_capacity(entries.len());
        let mut failed = Vec::with_capacity(entries.len());
        for (name, number, cmp) in entries {
            let file = self.file(*number, name, cmp);
            match file.and_then(|file| file.reader()) {
                Ok(reader) => {
                    sought.push(ValueRequest {
                        reader,
                        name: *name,
                    });
                    failed.push(None);
                }
                Err(e) => failed.push(Some(e)),
            }
        }
        let mut located = locate(sought, pages, how).into_iter();
        (failed.into_iter())
            .map(|failed| match failed {
                Some(e) => Err(e),
                None => located.next().expect("each that has a file"),
            })
            .collect()
    }
}
