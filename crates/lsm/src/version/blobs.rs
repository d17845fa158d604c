//! The blob files of a version: opened when first read, removed when the last version or reader that holds them lets go and the
//! manifest no longer names them.

use super::open::OpenFile;
use super::{TableStore, catalog::Catalog};
use crate::blob::garbage::Dead;
use crate::blob::lineage::Lineage;
use crate::blob::together::{Located, Pages, Sought, locate};
use crate::blob::{BlobMeta, BlobReader, How, Name, Reference};
use crate::key::{Cmp, Kind};
use crate::table::ReadBudget;
use basalt_env::JobPriority;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::{Bytes, Error, Reach, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The name of a blob file.
pub fn blob_name(number: u64) -> String {
    format!("{number:06}.blob")
}

/// One blob file.
pub struct BlobFile {
    /// Its file number.
    pub number: u64,
    /// What the manifest remembers of it.
    pub meta: Arc<BlobMeta>,
    obsolete: AtomicBool,
    file: Arc<OpenFile>,
    reader: OnceLock<BlobReader>,
    opening: Mutex<()>,
    store: Arc<TableStore>,
}

impl BlobFile {
    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.store.blob_path(self.number)
    }

    /// Its reader; made when first asked for.
    #[inline]
    pub fn reader(&self) -> Result<&BlobReader> {
        match self.reader.get() {
            Some(reader) => Ok(reader),
            None => self.open(),
        }
    }

    #[cold]
    fn open(&self) -> Result<&BlobReader> {
        let _one_at_a_time = self.opening.lock();
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let source = Arc::new(self.file.clone());
        let reader = BlobReader::open(&self.store.env, source, &self.path(), &self.meta)?;
        Ok(self.reader.get_or_init(|| reader))
    }

    /// The manifest no longer names it: its file goes when the last holder lets go.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, SeqCst);
    }
}

impl Drop for BlobFile {
    fn drop(&mut self) {
        self.file.close();
        if self.obsolete.load(SeqCst) {
            let (store, path) = (self.store.clone(), self.path());
            self.store
                .env
                .jobs()
                .spawn(self.store.owner, JobPriority::Housekeeping, move || {
                    store.remove(&path);
                });
        }
    }
}

impl std::fmt::Debug for BlobFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{} bytes]", blob_name(self.number), self.meta.size)
    }
}

impl TableStore {
    /// Path of a blob file.
    pub fn blob_path(&self, number: u64) -> PathBuf {
        self.dir.join(blob_name(number))
    }

    /// A blob file that the manifest names or is about to name.
    pub fn blob(self: &Arc<Self>, number: u64, meta: Arc<BlobMeta>) -> Arc<BlobFile> {
        Arc::new(BlobFile {
            number,
            meta,
            obsolete: AtomicBool::new(false),
            file: OpenFile::new(&self.open, self.blob_path(number)),
            reader: OnceLock::new(),
            opening: Mutex::new(()),
            store: self.clone(),
        })
    }
}

/// Blob files and what their numbers mean, at one moment.
#[derive(Clone, Debug, Default)]
pub struct BlobSet {
    /// By number.
    pub files: BTreeMap<u64, Arc<BlobFile>>,
    /// What other numbers stand for.
    pub lineage: Arc<Lineage>,
}

impl BlobSet {
    /// The files of a catalog, none of which is looked at.
    pub fn of(store: &Arc<TableStore>, catalog: &Catalog) -> BlobSet {
        let files = catalog.blobs.iter();
        BlobSet {
            files: files
                .map(|(n, b)| (*n, store.blob(*n, b.meta.clone())))
                .collect(),
            lineage: catalog.lineage.clone(),
        }
    }

    /// The file that has what an entry of `name` refers to as `number`. `Corruption` when there is none.
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
                         which neither is there nor stands for one; run `basalt check`",
                        name.key, name.family, name.seq
                    ),
                )
                .with_reach(Reach::File)
            })
    }

    /// The record behind a reference of an entry of `name`, which loses it.
    pub fn find(&self, number: u64, name: &Name<'_>, cmp: &Cmp) -> Result<Dead> {
        let file = self.file(number, name, cmp)?;
        let (ordinal, place) = file.reader()?.find(name, true)?;
        Ok(Dead {
            file: file.number,
            ordinal,
            family: name.family,
            bytes: place.end - place.start,
            hash: name.hash(file.meta.file_id),
        })
    }

    /// The kind and payload that the entry of `name` would have with its value in the tree.
    pub fn read(
        &self,
        name: &Name<'_>,
        to: &Reference,
        cmp: &Cmp,
        how: How,
    ) -> Result<(Kind, Bytes)> {
        let read = self.read_within(name, to, cmp, how, &mut ReadBudget::unbounded());
        read.map(|r| r.expect("nothing is put off without a bound"))
    }

    /// As [`BlobSet::read`]; the payload is taken from `budget` before it is read, `None` when that does not reach.
    pub fn read_within(
        &self,
        name: &Name<'_>,
        to: &Reference,
        cmp: &Cmp,
        how: How,
        budget: &mut ReadBudget,
    ) -> Result<Option<(Kind, Bytes)>> {
        let file = self.file(to.number, name, cmp)?;
        let payload = file.reader()?.get_within(name, how, budget)?;
        Ok(payload.map(|p| (to.kind(), p)))
    }

    /// Where the payloads lie that entries refer to by these numbers, all index pages that it takes read together.
    pub(crate) fn locate<'a>(
        &'a self,
        entries: &[(Name<'a>, u64, &Cmp)],
        pages: &mut Pages,
        how: How,
    ) -> Vec<Result<Located<'a>>> {
        let mut sought = Vec::with_capacity(entries.len());
        let mut failed = Vec::with_capacity(entries.len());
        for (name, number, cmp) in entries {
            let file = self.file(*number, name, cmp);
            match file.and_then(|file| file.reader()) {
                Ok(reader) => {
                    sought.push(Sought {
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
