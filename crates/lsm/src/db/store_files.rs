//! The names of the files in a store's directory.

use crate::version::catalog::Catalog;
use crate::version::edit::MAX_FILE_NUMBER;
use crate::version::manifest::CURRENT;
use std::collections::BTreeSet;

/// The directory, inside a store's directory, to which damaged files are moved.
pub(crate) const LOST_DIR: &str = "lost";

/// The file whose lock says that a process has the store open.
pub(crate) const LOCK: &str = "LOCK";

/// The kind and number of a file, as its name in a store's directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFile {
    Table(u64),
    Blob(u64),
    /// The index of a log that is a blob file.
    Index(u64),
    Log(u64),
    Manifest(u64),
    Current,
    CurrentTmp,
    Lock,
}

impl StoreFile {
    pub fn parse(name: &str) -> Option<StoreFile> {
        let number = |s: &str| {
            let digits = s.len() >= 6 && s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<u64>()
                .ok()
                .filter(|n| digits && *n < MAX_FILE_NUMBER)
        };
        Some(match name {
            CURRENT => StoreFile::Current,
            "CURRENT.tmp" => StoreFile::CurrentTmp,
            LOCK => StoreFile::Lock,
            _ => {
                if let Some(n) = name.strip_prefix("MANIFEST-") {
                    StoreFile::Manifest(number(n)?)
                } else if let Some(n) = name.strip_suffix(".tbl") {
                    StoreFile::Table(number(n)?)
                } else if let Some(n) = name.strip_suffix(".blob") {
                    StoreFile::Blob(number(n)?)
                } else if let Some(n) = name.strip_suffix(".index") {
                    StoreFile::Index(number(n)?)
                } else {
                    StoreFile::Log(number(name.strip_suffix(".log")?)?)
                }
            }
        })
    }

    pub fn number(self) -> Option<u64> {
        match self {
            StoreFile::Table(n)
            | StoreFile::Blob(n)
            | StoreFile::Index(n)
            | StoreFile::Log(n)
            | StoreFile::Manifest(n) => Some(n),
            _ => None,
        }
    }
}

/// The files that belong to a store, as its catalog and `CURRENT` say. All other files with names
/// of a store's files are unused files.
pub(crate) struct NamedFiles<'a> {
    catalog: &'a Catalog,
    /// Numbers of the index files of logs that are blob files.
    indexes: BTreeSet<u64>,
    /// Number of the manifest that `CURRENT` names; `None` if `CURRENT` cannot be read.
    manifest: Option<u64>,
}

impl NamedFiles<'_> {
    /// Returns the files that a catalog names, and a manifest.
    pub fn new(catalog: &Catalog, manifest: Option<u64>) -> NamedFiles<'_> {
        NamedFiles {
            catalog,
            indexes: catalog.indexes(),
            manifest,
        }
    }

    /// Returns whether a file belongs to the store.
    pub fn has(&self, file: StoreFile) -> bool {
        let catalog = self.catalog;
        match file {
            StoreFile::Table(n) => catalog.families.values().any(|f| f.tables.contains_key(&n)),
            StoreFile::Blob(n) => catalog.has_blob(n, false),
            StoreFile::Index(n) => self.indexes.contains(&n),
            StoreFile::Log(n) => catalog.logs.contains_key(&n) || catalog.has_blob(n, true),
            StoreFile::Manifest(n) => self.manifest == Some(n),
            StoreFile::Current | StoreFile::Lock => true,
            StoreFile::CurrentTmp => false,
        }
    }
}
