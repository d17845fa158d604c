//! [`FileLocation`]: the location of the bytes of a table or a blob file.
//!
//! This version keeps all files of a store in its directory. The manifest has a field for files
//! outside of it, so that a later version can keep some on other storage. This version refuses such
//! a store, instead of missing the file. A local file has no such field, so manifests keep their
//! bytes (decision 0033).

use basalt_fs::{Error, Result};

/// The location of the bytes of a table or a blob file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileLocation {
    /// In the store's directory.
    #[default]
    Local,
}

impl FileLocation {
    /// Returns the number of the location's kind in a manifest, or `None` if the manifest has no
    /// field for the location.
    pub(super) fn kind(self) -> Option<u64> {
        match self {
            FileLocation::Local => None,
        }
    }

    /// Returns the location with a kind that a manifest names for a file.
    ///
    /// Errors: `Unsupported` for every kind, because this version has none but the local one.
    pub(super) fn from_kind(file: u64, kind: u64) -> Result<FileLocation> {
        Err(Error::unsupported(format!(
            "the manifest says that file {file} is kept outside the store's directory, at a location of kind {kind}, which this version does not know; open the store with the version that wrote it"
        )))
    }
}
