//! Verification of a closed store: every byte that means something is read and checked, nothing is changed.

use super::log::log_path;
use super::open::{LOCK, StoreFile, bind_families, load_catalog, replay_logs};
use crate::options::Options;
use crate::table::TableReader;
use crate::version::catalog::Catalog;
use crate::version::manifest::manifest_path;
use crate::version::table_name;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use std::path::Path;

/// What [`super::Db::verify_store`] walked and found.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Entries seen in tables and logs.
    pub entries: u64,
    /// Everything found wrong, what keeps the store from opening first; empty when the store is sound.
    pub damage: Vec<Error>,
    /// Files that belong to nothing: the next open removes those that are a store's.
    pub orphans: Vec<String>,
    /// Torn log tails that a recovery will cut: normal after a crash.
    pub torn_tails: Vec<String>,
}

impl VerifyReport {
    /// Sorts an error: damage and missing files are findings, everything else ends the walk.
    fn note(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::NotFound
                ) =>
            {
                self.damage.push(e);
                Ok(())
            }
            other => other,
        }
    }
}

pub(super) fn verify_store(
    env: &Env,
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport> {
    let fs = env.fs();
    if !fs.exists(dir)? {
        return Err(Error::new(ErrorKind::NotFound, "no store here").in_file(dir));
    }
    let _lock = fs.lock(&dir.join(LOCK))?;
    let names: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    let mut report = VerifyReport::default();
    let (current, catalog, manifest_bytes) = match load_catalog(env, dir, &names) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(Error::new(ErrorKind::NotFound, "no store here").in_file(dir)),
        Err(e) => {
            report.note(Err(e))?;
            return Ok(report);
        }
    };
    let manifest_len = fs.stat(&manifest_path(dir, current.number))?.len;
    report.files += 2;
    report.bytes += manifest_bytes;
    if manifest_len > manifest_bytes + fs.info().write_unit as u64 {
        report.torn_tails.push(format!(
            "{} from offset {manifest_bytes}",
            manifest_path(dir, current.number).display()
        ));
    }
    let total = total_bytes(env, dir, &catalog) + manifest_bytes;
    progress(report.bytes, total);
    verify_tables(env, dir, options, &catalog, &mut report, total, progress)?;
    verify_logs(env, dir, &catalog, &mut report, total, progress)?;

    for name in names {
        let known = match StoreFile::parse(&name) {
            Some(StoreFile::Table(n)) => {
                catalog.families.values().any(|f| f.tables.contains_key(&n))
            }
            Some(StoreFile::Log(n)) => catalog.logs.contains_key(&n),
            Some(StoreFile::Manifest(n)) => n == current.number,
            Some(StoreFile::Current | StoreFile::Lock) => true,
            Some(StoreFile::CurrentTmp) | None => false,
        };
        if !known {
            report.orphans.push(name);
        }
    }
    Ok(report)
}

fn total_bytes(env: &Env, dir: &Path, catalog: &Catalog) -> u64 {
    let tables: u64 = catalog
        .families
        .values()
        .flat_map(|f| f.tables.values())
        .map(|(_, m)| m.size)
        .sum();
    let logs: u64 = catalog
        .logs
        .keys()
        .filter_map(|n| env.fs().stat(&log_path(dir, *n)).ok())
        .map(|s| s.allocated)
        .sum();
    tables + logs
}

fn verify_tables(
    env: &Env,
    dir: &Path,
    options: &Options,
    catalog: &Catalog,
    report: &mut VerifyReport,
    total: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let families = bind_families(catalog, options)?;
    for (id, family) in &catalog.families {
        let cmp = families[id].options.comparator.clone();
        let mut version = crate::version::FamilyVersion::empty(cmp.clone());
        let store = crate::version::TableStore::new(env, dir, env.jobs().new_owner());
        for (&number, (level, meta)) in &family.tables {
            let path = dir.join(table_name(number));
            version.levels[*level as usize].push(store.table(number, meta.clone(), cmp.clone()));
            let walked = env.fs().open(&path).and_then(|file| {
                let stat = env.fs().stat(&path)?;
                if stat.len != meta.size && stat.allocated < meta.size {
                    return Err(Error::corruption(
                        &path,
                        stat.len,
                        format!("{} bytes, the manifest says {}", stat.len, meta.size),
                    ));
                }
                let reader =
                    TableReader::open(env, file, &path, meta.file_id, meta.size, cmp.clone())?;
                let seen = reader.verify(meta)?;
                report.entries += seen.entries;
                Ok(())
            });
            report.note(walked)?;
            report.files += 1;
            report.bytes += meta.size;
            progress(report.bytes, total);
        }
        version.sort();
        if let Err(what) = version.check() {
            report.damage.push(Error::new(
                ErrorKind::Corruption,
                format!("family {:?}: {what}", family.name),
            ));
        }
    }
    Ok(())
}

fn verify_logs(
    env: &Env,
    dir: &Path,
    catalog: &Catalog,
    report: &mut VerifyReport,
    total: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let mut entries = 0;
    let walked = replay_logs(env, dir, catalog.store_id, &catalog.logs, |r| {
        entries += u64::from(r.record.count);
        Ok(())
    });
    report.entries += entries;
    report.files += catalog.logs.len() as u64;
    for n in catalog.logs.keys() {
        report.bytes += env.fs().stat(&log_path(dir, *n)).map_or(0, |s| s.allocated);
    }
    progress(report.bytes, total.max(report.bytes));
    match walked {
        Ok(torn) => {
            report.torn_tails.extend(torn);
            Ok(())
        }
        Err(e) => report.note(Err(e)),
    }
}
