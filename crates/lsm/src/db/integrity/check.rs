//! Verification of a closed store: every byte with a meaning is read and checked, and nothing is
//! changed.
//!
//! The walk does not stop at damage. A damaged manifest is read as far as it verifies, and every
//! table and every log is walked. In a damaged file, the walk goes on behind the damage.

mod blobs;
mod flags;

use super::manifest_salvage::{SalvagedCatalog, salvage_manifest};
use super::walk::{
    LogScan, Progress, check_len, end_of_records, is_missing, lock_to_read, no_store, open_named,
};
use crate::db::open::{bind_families, replay_logs};
use crate::db::pages;
use crate::db::store_files::{NamedFiles, StoreFile};
use crate::db::write_path::apply;
use crate::db::write_path::log_space::log_path;
use crate::options::Options;
use crate::version::catalog::{Catalog, CatalogTable, LiveLog};
use crate::version::edit::Edit;
use crate::version::manifest::{self, CURRENT, CURRENT_LEN, manifest_path};
use crate::version::{EngineKind, table_name};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::key::Cmp;
use basalt_records::salvage::{BAD_PAYLOAD, NO_RECORD, Part, describe_tail};
use basalt_records::verify::{Padding, check_spare};
use basalt_records::{FileKind, RecordReader};
use basalt_table::salvage::{KnownTable, salvage};
use basalt_table::{TableMeta, TableReader, TableVerified};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The result of [`crate::db::Db::verify_store`]: what was walked, and the damage that was found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Entries seen in tables and logs.
    pub entries: u64,
    /// Bytes of blob files.
    pub blob_bytes: u64,
    /// Bytes of records in blob files that references in tables lead to, counted by following each
    /// reference. The rest is garbage, headers and indexes.
    pub referred_bytes: u64,
    /// Records in blob files of families in pages that no reference leads to and that are not
    /// marked as garbage: the marks were lost in a crash, or newer entries hide the references.
    /// Their space is in use.
    pub unmarked_records: u64,
    /// All damage that was found, with the damage that keeps the store from opening first. Empty if
    /// the store is sound.
    pub damage: Vec<Error>,
    /// Names of store files that no edit names. Unfinished work left them, and the next open
    /// removes them.
    pub unused_files: Vec<String>,
    /// Names of store files that the readable metadata does not name, if the manifest or `CURRENT`
    /// is damaged or cut short. They may hold live data that a repair needs.
    pub unnamed: Vec<String>,
    /// Files that are not a store's. They are left alone.
    pub foreign: Vec<String>,
    /// Torn log tails that a recovery will cut: normal after a crash.
    pub torn_tails: Vec<String>,
    /// The other engines that the store has, as far as the manifest is readable. They are not
    /// walked.
    pub engines: Vec<EngineKind>,
}

impl VerifyReport {
    /// Adds an error to the findings if it is damage, a missing file or an unsupported feature.
    /// Returns every other error, which ends the walk.
    fn note(&mut self, e: Error) -> Result<()> {
        match e.kind() {
            ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::NotFound => {
                self.damage.push(e);
                Ok(())
            }
            _ => Err(e),
        }
    }
}

/// The findings of a walk, and the data that a repair starts from.
pub(super) struct Walked {
    pub report: VerifyReport,
    pub learned: SalvagedCatalog,
    /// Tables of the catalog that are damaged or missing.
    pub bad_tables: BTreeSet<u64>,
    /// Families whose trees of pages are damaged or missing.
    pub bad_trees: BTreeSet<u32>,
    /// Entries of the pages of each family in pages.
    pub tree_entries: BTreeMap<u32, u64>,
    /// Blob files of the catalog that are damaged or missing.
    pub bad_blobs: BTreeSet<u64>,
    /// Files of the directory.
    pub names: Vec<String>,
}

pub(crate) fn verify_store(
    env: &Env,
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport> {
    let _lock = lock_to_read(env, dir)?;
    let walked = walk(env, dir, options, &mut Progress::new(progress))?;
    let mut report = walked.report;
    report.engines = walked.learned.catalog.engines.into_iter().collect();
    Ok(report)
}

/// Walks the store; the caller holds its lock.
pub(super) fn walk(
    env: &Env,
    dir: &Path,
    options: &Options,
    progress: &mut Progress<'_>,
) -> Result<Walked> {
    let fs = env.fs();
    let names: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    let Some((mut learned, damage)) = salvage_manifest(env, dir, &names, options)? else {
        return Err(no_store(dir));
    };
    let mut w = StoreWalk {
        env,
        dir,
        report: VerifyReport::default(),
        bad_tables: BTreeSet::new(),
        bad_trees: BTreeSet::new(),
        tree_entries: BTreeMap::new(),
        bad_blobs: BTreeSet::new(),
        bad_spare: Vec::new(),
        progress,
    };
    // Only a whole catalog can prove that no edit names a file.
    let certain = learned.sure && damage.is_none();
    w.report.damage.extend(damage);
    let manifest = w.metadata(&names)?;
    let catalog = &learned.catalog;
    w.progress.expect(total_bytes(env, dir, catalog));
    w.progress.step(0);
    w.tables(options, catalog)?;
    if certain {
        w.flags(catalog)?;
    }
    if !learned.sure {
        // A repair takes all writes of trees, because the edits that say which of them count may be
        // lost, and trees that no edit names, unless their family was dropped.
        let is_known = |e: &Error| e.kind() == ErrorKind::Unsupported;
        if !w.report.damage.iter().any(is_known) {
            let is_dropped = |family| learned.dropped_families.contains(&family);
            let of_later = pages::unsupported(env, dir, is_dropped)?;
            w.report.damage.extend(of_later);
        }
    }
    w.blobs(options, catalog, learned.sure)?;
    w.logs(catalog)?;
    w.report.bytes = w.progress.walked();
    let named = NamedFiles::new(catalog, manifest);
    for name in &names {
        let list = match StoreFile::parse(name) {
            None => &mut w.report.foreign,
            Some(file) if named.has(file) => continue,
            Some(_) if certain => &mut w.report.unused_files,
            Some(_) => &mut w.report.unnamed,
        };
        list.push(name.clone());
    }
    let bad_spare = w.bad_spare;
    learned.damaged.extend(bad_spare);
    Ok(Walked {
        report: w.report,
        learned,
        bad_tables: w.bad_tables,
        bad_trees: w.bad_trees,
        tree_entries: w.tree_entries,
        bad_blobs: w.bad_blobs,
        names,
    })
}

fn total_bytes(env: &Env, dir: &Path, catalog: &Catalog) -> u64 {
    let tables = (catalog.families.values())
        .flat_map(|f| f.tables.values())
        .map(|t| t.meta.size);
    let logs = (catalog.logs.keys())
        .filter_map(|n| env.fs().stat(&log_path(dir, *n)).ok())
        .map(|s| s.allocated);
    let blobs = catalog.blobs.values().map(|b| b.meta.size);
    // The sum is only for progress and may saturate, because a damaged manifest may say anything.
    (tables.chain(logs).chain(blobs)).fold(0, u64::saturating_add)
}

/// Reads every byte of a table: the file must be exactly the one that `meta` describes.
pub(super) fn verify_table(
    env: &Env,
    dir: &Path,
    family: u32,
    number: u64,
    meta: &TableMeta,
    cmp: &Cmp,
) -> Result<TableVerified> {
    let path = dir.join(table_name(number));
    let file = open_named(env, &path, "table")?;
    check_len(env, &path, meta.size)?;
    let table = TableReader::open_shifted(env, file, &path, meta, cmp.clone())?;
    if let Some(own) = table.family().filter(|f| f.id != family) {
        return Err(Error::corruption(
            &path,
            0,
            format!(
                "the table says that it is of family {} ({:?}), the manifest says {family}",
                own.id, own.name
            ),
        ));
    }
    table.verify(meta)
}

/// The check of all files of a store, one after the other.
struct StoreWalk<'a, 'p> {
    env: &'a Env,
    dir: &'a Path,
    report: VerifyReport,
    bad_tables: BTreeSet<u64>,
    bad_trees: BTreeSet<u32>,
    tree_entries: BTreeMap<u32, u64>,
    bad_blobs: BTreeSet<u64>,
    /// Logs and manifests whose records are whole and whose header or padding is damaged.
    bad_spare: Vec<String>,
    progress: &'a mut Progress<'p>,
}

impl StoreWalk<'_, '_> {
    /// Checks `CURRENT` and the manifest's end. Their content was checked when the catalog was
    /// read. Returns the manifest's number.
    fn metadata(&mut self, names: &[String]) -> Result<Option<u64>> {
        let fs = self.env.fs();
        let path = self.dir.join(CURRENT);
        if names.iter().any(|n| n == CURRENT) {
            self.report.files += 1;
            let len = fs.stat(&path)?.len;
            self.progress.count(len);
            if len > CURRENT_LEN as u64 {
                self.report.damage.push(Error::corruption(
                    &path,
                    CURRENT_LEN as u64,
                    format!("the file has {len} bytes, expected {CURRENT_LEN}"),
                ));
            }
        }
        let current = match manifest::read_current(self.env, self.dir) {
            Ok(Some(c)) => c,
            Ok(None) => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Corruption => return Ok(None),
            Err(e) => return Err(e),
        };
        let path = manifest_path(self.dir, current.number);
        self.spare(&path, FileKind::Manifest, current.file_id, u64::MAX)?;
        // Damage in the manifest is already known. Only its end remains to be checked.
        if let Ok(end) = manifest::replay(self.env, self.dir, &current, |edit| {
            Edit::decode(edit).map(drop)
        }) {
            let len = fs.stat(&path)?.len;
            self.report.files += 1;
            self.progress.count(end);
            if len > end + fs.info().write_unit as u64 {
                let tail = describe_tail(&*fs.open(&path)?, &path, end)?;
                self.report.torn_tails.push(tail);
            }
        }
        Ok(Some(current.number))
    }

    /// Checks the header's copies and the padding of a file of records. A missing file is reported
    /// elsewhere.
    fn spare(&mut self, path: &Path, kind: FileKind, file_id: u128, end: u64) -> Result<()> {
        let found = self
            .env
            .fs()
            .open(path)
            .and_then(|file| check_spare(&*file, path, kind, file_id, end, Padding::All));
        match found {
            Ok(found) => {
                if !found.is_empty() {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    self.bad_spare.push(name.into_owned());
                }
                self.report.damage.extend(found);
                Ok(())
            }
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => self.report.note(e),
        }
    }

    fn tables(&mut self, options: &Options, catalog: &Catalog) -> Result<()> {
        let families = bind_families(catalog, options)?;
        for (id, found) in pages::check(self.env, self.dir, catalog, &families)? {
            self.report.files += found.files;
            if !found.damage.is_empty() {
                self.bad_trees.insert(id);
            }
            self.report.entries += found.counts.entries;
            self.tree_entries.insert(id, found.counts.entries);
            self.report.damage.extend(found.damage);
            self.progress.step(found.bytes);
        }
        for (id, family) in &catalog.families {
            let cmp = families[id].options.comparator.clone();
            let mut version = crate::version::FamilyVersion::empty(cmp.clone());
            let store = crate::version::TableStore::new(self.env, self.dir);
            for (&number, CatalogTable { level, meta, .. }) in &family.tables {
                let table = store.table(number, meta.clone(), cmp.clone());
                version.push(*level as usize, table);
                self.report.files += 1;
                match verify_table(self.env, self.dir, *id, number, meta, &cmp) {
                    Ok(seen) => self.report.entries += seen.entries,
                    Err(e) => {
                        self.bad_tables.insert(number);
                        let corrupt = e.kind() == ErrorKind::Corruption;
                        let first = e.offset();
                        self.report.note(e)?;
                        if corrupt {
                            self.inside_table(number, meta, &cmp, first)?;
                        }
                    }
                }
                self.progress.step(meta.size);
            }
            version.sort();
            if let Err(what) = version.check() {
                self.report.damage.push(Error::new(
                    ErrorKind::Corruption,
                    format!("family {:?}: {what}", family.name),
                ));
            }
        }
        Ok(())
    }

    /// Reports the unreadable parts of a damaged table, except the one at `first`.
    fn inside_table(
        &mut self,
        number: u64,
        meta: &TableMeta,
        cmp: &Cmp,
        first: Option<u64>,
    ) -> Result<()> {
        let path = self.dir.join(table_name(number));
        let known = KnownTable::from(meta);
        let walked = self
            .env
            .fs()
            .open(&path)
            .and_then(|file| salvage(&*file, &path, &known, cmp, &mut |_, _| Ok(())));
        match walked {
            Ok(walked) => {
                self.report.entries += walked.entries;
                for part in walked.lost {
                    if first.is_none_or(|o| !part.bytes.contains(&o)) {
                        self.report.damage.push(Error::corruption(
                            &path,
                            part.bytes.start,
                            format!("bytes up to {}: {}", part.bytes.end, part.reason),
                        ));
                    }
                }
                Ok(())
            }
            // The error that led here already described the damage.
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn logs(&mut self, catalog: &Catalog) -> Result<()> {
        let mut entries = 0;
        let walked = replay_logs(
            self.env,
            self.dir,
            catalog.store_id,
            catalog.next_family,
            catalog.last_seq,
            &catalog.logs,
            |r| {
                entries += u64::from(r.count);
                apply::check(&r.payload)
            },
        );
        self.report.entries += entries;
        self.report.files += catalog.logs.len() as u64;
        match walked {
            Ok(torn) => {
                for tail in torn {
                    let tail = tail.describe(self.env, self.dir)?;
                    self.report.torn_tails.push(tail);
                }
            }
            Err(e) => {
                let first = (e.path().map(Path::to_path_buf), e.offset());
                self.report.note(e)?;
                for (&number, log) in &catalog.logs {
                    self.inside_log(number, log, &first)?;
                }
            }
        }
        for (&number, log) in &catalog.logs {
            let end = end_of_records(log);
            self.spare(&log_path(self.dir, number), FileKind::Log, log.file_id, end)?;
        }
        for n in catalog.logs.keys() {
            let bytes = self.env.fs().stat(&log_path(self.dir, *n));
            self.progress.step(bytes.map_or(0, |s| s.allocated));
        }
        Ok(())
    }

    /// Reports the holes of a log, except the one that is already known.
    fn inside_log(
        &mut self,
        number: u64,
        log: &LiveLog,
        first: &(Option<std::path::PathBuf>, Option<u64>),
    ) -> Result<()> {
        let path = log_path(self.dir, number);
        let file = match self.env.fs().open(&path) {
            Ok(f) => f,
            Err(e) if e.is_not_found() => {
                if first.0.as_ref() != Some(&path) {
                    let missing = Error::corruption(&path, 0, is_missing("log"));
                    self.report.damage.push(missing);
                }
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let scan = match LogScan::new(&*file, &path, log, 0) {
            Ok(s) => s,
            Err(e) => return self.report.note(e),
        };
        // The first record follows the header, which has a unit of the log's own.
        let header = RecordReader::open(file.clone(), &path, FileKind::Log, None);
        let unit = header
            .ok()
            .flatten()
            .map(|r| r.header().write_unit as usize);
        let start = unit.unwrap_or(self.env.fs().info().write_unit) as u64;
        for part in scan.parts(start) {
            let (from, to, what) = match part {
                Part::Whole(_) => continue,
                Part::Broken(f) => (f.offset, f.end, BAD_PAYLOAD),
                Part::Hole(bytes) => (bytes.start, bytes.end, NO_RECORD),
            };
            if first.0.as_ref() != Some(&path) || first.1 != Some(from) {
                self.report.damage.push(Error::corruption(
                    &path,
                    from,
                    format!("bytes up to {to}: {what}"),
                ));
            }
        }
        Ok(())
    }
}
