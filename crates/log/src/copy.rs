//! Copies of an open store, as of one moment, that share its files.
//!
//! At that moment every writer switches to a new file. So the copy has only files that take no more
//! records, and a hard link is enough to copy one. The moment is taken under the locks of all
//! writers, so records, operations on logs and moved records agree. All slow work happens after it,
//! beside appends. Meanwhile no file of the moment is removed or recycled.
//!
//! Order, for a crash. All files but `CURRENT` are durable before `CURRENT` is. A directory without
//! `CURRENT` is no store.

use crate::catalog::{self, Catalog};
use crate::checkpoint::{checkpoint_path, names_path};
use crate::engine::Engine;
use crate::physical::{PinnedFiles, ReadableFile, file_path, number_of};
use crate::recovery::LOCK;
use crate::reserve::RESERVE;
use crate::writer::LeftFile;
use basalt_env::Env;
use basalt_env::file_copy::{cannot_link, copy_file};
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_records::manifest::{CURRENT, Manifest};
use std::path::Path;
use std::sync::Arc;

/// Contents and cost of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCopyReport {
    /// Number of files.
    pub files: u64,
    /// Bytes of files that were linked.
    pub linked_bytes: u64,
    /// Bytes of files that were copied.
    pub copied_bytes: u64,
}

/// What a store had at the moment of [`crate::LogEngine::begin_copy`]. Until it is dropped, the
/// store removes no file of the moment.
pub struct LogCopy {
    engine: Arc<Engine>,
    catalog: Catalog,
    /// The files of the catalog. They are not recycled while this holds them.
    files: Vec<Arc<ReadableFile>>,
    /// Files that the writers of the datalog, of the metalog and of moved records have left.
    left: [Vec<Arc<LeftFile>>; 3],
    _pinned: PinnedFiles,
}

impl LogCopy {
    /// Takes the moment.
    pub(crate) fn begin(engine: &Arc<Engine>) -> Result<LogCopy> {
        engine.check_open()?;
        engine.logs.check_writable()?;
        let (mut data, mut meta, mut moved) =
            (engine.data.lock(), engine.meta.lock(), engine.moved.lock());
        let left = [data.leave_all()?, meta.leave_all()?, moved.leave_all()?];
        let (catalog, files, pinned) = engine.logs.pin();
        Ok(LogCopy {
            engine: engine.clone(),
            files,
            catalog,
            left,
            _pinned: pinned,
        })
    }

    /// Writes the copy into a directory that does not exist. All of it but the directory's name is
    /// durable when the call returns. With `copy_files`, files that cannot be linked there are
    /// copied. After an error the directory may hold a part of the copy, and no `CURRENT`.
    ///
    /// Errors: `AlreadyExists` if the directory has files; `Unsupported` if files cannot be linked
    /// there and must not be copied; `Closed`, `NoSpace`, `Io`, `Corruption`.
    pub fn write(self, dir: impl AsRef<Path>, copy_files: bool) -> Result<LogCopyReport> {
        let (dir, env) = (dir.as_ref(), &self.engine.env);
        let mut report = LogCopyReport::default();
        env.fs().create_dir(dir)?;
        if !env.fs().list(dir)?.is_empty() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "cannot copy the logs: the directory has files; choose another one",
            )
            .in_file(dir));
        }
        let lock = env.fs().lock(&dir.join(LOCK))?;
        let mut catalog = self.end_files()?;
        for (number, known) in &catalog.files {
            let file = self.files.iter().find(|file| file.number == *number);
            let file = file.expect("the list of files has all that the catalog names");
            let end = known.end.expect("all files have ended").offset;
            let to = file_path(dir, *number, known.role);
            let from = (&**file.file(), &*file.path);
            self.link_or_copy(from, &to, end, copy_files, &mut report)?;
        }
        if let Some(checkpoint) = &catalog.checkpoint {
            let from = checkpoint_path(self.engine.logs.dir(), checkpoint.number);
            let to = checkpoint_path(dir, checkpoint.number);
            let file = env.fs().open(&from)?;
            let from = (&*file, &*from);
            self.link_or_copy(from, &to, checkpoint.end, copy_files, &mut report)?;
        }
        if let Some(names) = catalog.names {
            let from = names_path(self.engine.logs.dir(), names.number);
            match env.fs().open(&from) {
                Ok(file) => {
                    let (from, to) = ((&*file, &*from), names_path(dir, names.number));
                    self.link_or_copy(from, &to, names.end, copy_files, &mut report)?;
                }
                // The store is open without it, too, and the next checkpoint makes it anew.
                Err(e) if e.is_not_found() => catalog.names = None,
                Err(e) => return Err(e),
            }
        }
        let number = catalog.next_file;
        let state = catalog::encode(&catalog.changes());
        // This call syncs the directory before `CURRENT`, and again after it.
        Manifest::create(env, dir, catalog.store_id, number, &state)?;
        drop(lock);
        Ok(report)
    }

    /// Ends the files that the writers have left. Returns the catalog of the moment, in which all
    /// files have ended.
    fn end_files(&self) -> Result<Catalog> {
        let engine = &*self.engine;
        let writers = [&engine.data, &engine.meta, &engine.moved];
        for (left, writer) in self.left.iter().zip(writers) {
            for file in left {
                file.end(&engine.logs)?;
                writer.lock().forget_left(file);
            }
        }
        let mut catalog = self.catalog.clone();
        for file in &self.files {
            if let Some(known) = catalog.files.get_mut(&file.number) {
                known.end = known.end.or(file.end());
            }
        }
        // A file without an end had no records at the moment: it was only prepared. If it has ended
        // since, all its records are later than the moment.
        let has_records = |number: &u64| {
            let known = self.catalog.files.get(number);
            known.is_some_and(|file| file.end.is_some()) || self.was_left(*number)
        };
        catalog.files.retain(|number, _| has_records(number));
        Ok(catalog)
    }

    fn was_left(&self, number: u64) -> bool {
        self.left
            .iter()
            .flatten()
            .any(|left| left.number() == number)
    }

    fn link_or_copy(
        &self,
        (file, from): (&dyn File, &Path),
        to: &Path,
        len: u64,
        copy_files: bool,
        report: &mut LogCopyReport,
    ) -> Result<()> {
        self.engine.check_open()?;
        report.files += 1;
        match self.engine.env.fs().link(from, to) {
            Ok(()) => report.linked_bytes += len,
            Err(e) if !cannot_link(&e) => return Err(e),
            Err(e) if !copy_files => {
                return Err(Error::unsupported(format!(
                    "files of logs cannot be linked there ({e}); give a directory on the store's own filesystem, or allow copies"
                )));
            }
            Err(_) => {
                let open = &mut |_: &[u8]| self.engine.check_open();
                copy_file(&self.engine.env, (file, from), to, len, open)?;
                report.copied_bytes += len;
            }
        }
        Ok(())
    }
}

/// Removes a directory with a part of a copy, or nothing if there are files in it that no copy
/// makes.
///
/// Errors: `InvalidArgument` names such a file.
pub(crate) fn remove_unfinished(env: &Env, dir: &Path) -> Result<()> {
    let fs = env.fs();
    let entries = fs.list(dir)?;
    let ours = |name: &str| {
        [LOCK, CURRENT, "CURRENT.tmp", RESERVE].contains(&name) || number_of(name).is_some()
    };
    if let Some(other) = entries.iter().find(|e| e.is_dir || !ours(&e.name)) {
        return Err(Error::invalid(format!(
            "{} holds {}, which no checkpoint has made; move it away",
            dir.display(),
            other.name
        )));
    }
    for entry in entries {
        fs.remove(&dir.join(entry.name))?;
    }
    fs.remove(dir)
}
