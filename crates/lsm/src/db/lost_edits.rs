//! Signs that a manifest has lost its last edits, for example because it was cut or a byte of it is
//! damaged. The end of the manifest then looks as after a crash, but no crash takes a synced edit.

use super::store_files::StoreFile;
use super::write_path::log_space::log_path;
use crate::version::catalog::Catalog;
use crate::version::edit::Edit;
use crate::version::log_name;
use crate::version::manifest::manifest_path;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_records::salvage::{SalvagedRecord, scan};
use basalt_records::{FileKind, RecordKind, RecordReader};
use std::collections::BTreeSet;
use std::path::Path;

/// The logs that the edits of one manifest name. Logs that a later edit removed are included.
///
/// A log takes records only after the edit that names it is synced. A log whose number is not below
/// the `next_file` of the manifest's first edit was made after that edit, so an edit of this
/// manifest named it. If such a log has records and no edit names it, synced edits are lost.
/// A log below `next_file` proves nothing, because an earlier manifest may have removed it. If a
/// manifest became current between the choice of a log's number and the edit that names the log,
/// `CURRENT` vouches for that edit ([`super::tree`]).
#[derive(Debug, Default)]
pub(crate) struct NamedLogs {
    /// The `next_file` of the first edit, which is the whole state.
    first_new: Option<u64>,
    named: BTreeSet<u64>,
}

impl NamedLogs {
    /// Notes the logs of the manifest's next edit.
    pub fn note(&mut self, edit: &Edit) {
        if self.first_new.is_none() {
            self.first_new = edit.next_file;
        }
        self.named.extend(edit.add_logs.iter().map(|(n, _)| *n));
    }

    /// Returns the lowest number of a log that has records and that no edit names, or `None`.
    /// `names` are the files of the directory. Reads logs that no edit names, which a crash leaves
    /// only while a log is being prepared.
    ///
    /// Errors: `Unsupported` for a log of a later version, `Io`.
    fn log_without_edit(
        &self,
        env: &Env,
        dir: &Path,
        names: &[String],
        store_id: u128,
    ) -> Result<Option<u64>> {
        let first_new = self.first_new.unwrap_or(u64::MAX);
        let logs = names
            .iter()
            .filter_map(|name| match StoreFile::parse(name) {
                Some(StoreFile::Log(n)) => Some(n),
                _ => None,
            });
        let unnamed: BTreeSet<u64> = logs
            .filter(|n| *n >= first_new && !self.named.contains(n))
            .collect();
        for number in unnamed {
            if has_records(env, dir, number, store_id)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }
}

/// Returns true if a file is a log of this store with this number, and has records. Recycled space
/// may have the header or the records of an earlier life, which do not count.
fn has_records(env: &Env, dir: &Path, number: u64, store_id: u128) -> Result<bool> {
    let path = log_path(dir, number);
    let file = env.fs().open(&path)?;
    let header = match RecordReader::open(file.clone(), &path, FileKind::Log, None) {
        Ok(reader) => reader.map(|r| r.header().clone()),
        Err(e) if e.kind() == ErrorKind::Corruption => None,
        Err(e) => return Err(e),
    };
    match header.filter(|h| h.number == number && h.store_id == store_id) {
        None => Ok(false),
        Some(h) => Ok(!scan(&*file, &path, h.file_id, u64::MAX)?.found.is_empty()),
    }
}

/// Returns the number of a live log that notes an ingestion which the catalog does not know, and
/// the ingestion's sequence number. The edit of an ingestion is synced before its note is written.
fn ingestion_without_edit(env: &Env, dir: &Path, catalog: &Catalog) -> Result<Option<(u64, u64)>> {
    for (&number, log) in &catalog.logs {
        let path = log_path(dir, number);
        let file = match env.fs().open(&path) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => continue,
            Err(e) => return Err(e),
        };
        let records = scan(&*file, &path, log.file_id, log.end.unwrap_or(u64::MAX))?.found;
        let unknown =
            |r: &&SalvagedRecord| r.kind == RecordKind::Ingestion && r.first_seq > catalog.last_seq;
        if let Some(r) = records.iter().find(unknown) {
            return Ok(Some((number, r.first_seq)));
        }
    }
    Ok(None)
}

/// The extent of a search for signs of lost edits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// Logs that no edit names. An open reads the other logs later, and refuses by itself.
    Unnamed,
    /// All logs.
    All,
}

/// A catalog as a manifest gives it.
pub(crate) struct LoadedCatalog {
    /// Number of the manifest.
    pub manifest: u64,
    /// Offset in bytes at which the manifest's edits end.
    pub end: u64,
    pub catalog: Catalog,
    pub logs: NamedLogs,
}

impl LoadedCatalog {
    /// Returns the sign that edits are lost, or `None`. `names` are the files of the directory.
    ///
    /// Errors: `Unsupported` for a log of a later version, `Io`.
    pub fn sign_of_loss(
        &self,
        env: &Env,
        dir: &Path,
        names: &[String],
        search: Search,
    ) -> Result<Option<String>> {
        let catalog = &self.catalog;
        let unnamed = (self.logs).log_without_edit(env, dir, names, catalog.store_id)?;
        if let Some(n) = unnamed {
            let what = format!("{} has records, and no edit names it", log_name(n));
            return Ok(Some(what));
        }
        if search == Search::Unnamed {
            return Ok(None);
        }
        Ok(ingestion_without_edit(env, dir, catalog)?.map(|(n, seq)| {
            format!(
                "{} says that prepared tables were added with sequence number {seq}, and the edits know none above {}",
                log_name(n),
                catalog.last_seq
            )
        }))
    }

    /// Returns an error of the manifest if edits of it are lost.
    ///
    /// Errors: those of [`LoadedCatalog::sign_of_loss`].
    pub fn lost_edits(
        &self,
        env: &Env,
        dir: &Path,
        names: &[String],
        search: Search,
    ) -> Result<Option<Error>> {
        let sign = self.sign_of_loss(env, dir, names, search)?;
        Ok(sign.map(|sign| {
            Error::corruption(
                &manifest_path(dir, self.manifest),
                self.end,
                format!("{sign}: the manifest has lost its last edits; run `basalt check`, then `basalt repair`"),
            )
            .with_reach(Reach::Store)
        }))
    }
}
