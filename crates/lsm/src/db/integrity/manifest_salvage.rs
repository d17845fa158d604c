//! Salvage of the metadata of a store whose manifest or `CURRENT` is damaged: every edit that
//! verifies is applied with leniency.

use super::report::Loss;
use crate::db::lost_edits::{LoadedCatalog, NamedLogs, Search};
use crate::db::open::read_catalog;
use crate::db::store_files::StoreFile;
use crate::db::write_path::log_space::log_path;
use crate::options::Options;
use crate::version::catalog::{
    Catalog, CatalogBlob, CatalogFamily, CatalogTable, DEFAULT, LiveLog,
};
use crate::version::edit::Edit;
use crate::version::file_map::FileMap;
use crate::version::manifest::{self, CURRENT, Current, manifest_path};
use crate::version::{FlushFlag, blob_names, table_name};
use basalt_blob::garbage::Garbage;
use basalt_blob::inspect::indexed_logs;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::salvage::{self, Part};
use basalt_records::{FileKind, RecordKind, RecordReader};
use basalt_table;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The catalog, and how far it can be trusted.
#[derive(Debug, Default)]
pub(crate) struct SalvagedCatalog {
    pub catalog: Catalog,
    /// True if nothing is missing: tables are on the levels that the catalog says, and no file
    /// belongs to an unknown edit.
    pub sure: bool,
    /// True if at least one edit was readable.
    pub any_edit: bool,
    /// Number of missing edits; `None` if it is not known.
    pub lost_edits: Option<u64>,
    /// Numbers of tables, logs and blob files that a readable edit removed.
    pub retired: BTreeSet<u64>,
    pub dropped_families: BTreeSet<u32>,
    /// The family that each table on disk names, if no readable edit removed the table.
    pub table_families: BTreeMap<u64, u32>,
    /// The flush flag that each table on disk names, if edits may be lost.
    pub table_flags: BTreeMap<u64, FlushFlag>,
    /// Offset in the manifest, in bytes, at which the last readable edit ends.
    end: u64,
    /// Losses of the metadata itself.
    pub losses: Vec<Loss>,
    /// Damaged metadata files.
    pub damaged: Vec<String>,
}

/// Replaces a flag by a later one.
pub(super) fn raise(known: &mut Option<FlushFlag>, flag: FlushFlag) {
    if known.is_none_or(|known| known.tsn < flag.tsn) {
        *known = Some(flag);
    }
}

/// Returns the made-up name of a family whose own name is lost.
pub(super) fn recovered_name(id: u32) -> String {
    format!("recovered-{id}")
}

/// Reads the catalog, or its readable part. The second value is the damage that was found. Returns
/// `Ok(None)` for a directory without a store.
///
/// A manifest whose records verify is trusted. The store removes a file, or gives back the space of
/// flushed records, only when a durable edit says so. If a file that the manifest names is gone, an
/// edit may be lost. Repair assumes so only if a later edit may have left a torn tail or files that
/// no edit names. Otherwise the files count as damaged. Without `CURRENT`, nothing says that a torn
/// tail had not been synced (decision 0026).
pub(crate) fn salvage_manifest(
    env: &Env,
    dir: &Path,
    names: &[String],
    options: &Options,
) -> Result<Option<(SalvagedCatalog, Option<Error>)>> {
    let (mut state, damage) = match read_catalog(env, dir, names) {
        Ok(None) => return Ok(None),
        Ok(Some(loaded)) => {
            let lost = loaded.lost_edits(env, dir, names, Search::All)?;
            if lost.is_none() && !lacks_anything(env, dir, names, &loaded.catalog)? {
                return Ok(Some((SalvagedCatalog::whole(loaded.catalog), None)));
            }
            (whole(env, dir, loaded.manifest)?, lost)
        }
        Err(e) if e.kind() == ErrorKind::Corruption => (None, Some(e)),
        Err(e) => return Err(e),
    };
    let current = match manifest::read_current(env, dir) {
        Ok(c) => c,
        Err(e) if e.kind() == ErrorKind::Corruption => None,
        Err(e) => return Err(e),
    };
    let mut manifests: Vec<u64> = names
        .iter()
        .filter_map(|n| match StoreFile::parse(n) {
            Some(StoreFile::Manifest(n)) => Some(n),
            _ => None,
        })
        .collect();
    manifests.sort_unstable();
    let mut l = SalvagedCatalog {
        lost_edits: Some(0),
        ..SalvagedCatalog::default()
    };
    match &current {
        Some(c) => {
            l.catalog.store_id = c.store_id;
            if manifests.contains(&c.number) {
                manifests.retain(|n| *n <= c.number);
            } else {
                l.lost_edits = None;
                l.losses.push(Loss::of_file(
                    &file_name(c.number),
                    0..c.synced,
                    "the manifest that CURRENT names is missing",
                ));
            }
        }
        None => {
            if names.iter().any(|n| n == CURRENT) {
                l.damaged.push(CURRENT.into());
            }
            l.losses.push(Loss::of_file(
                CURRENT,
                0..manifest::CURRENT_LEN as u64,
                "it is missing or damaged; the manifest with the highest number that holds edits is taken",
            ));
            // Manifests with higher numbers than the last one with a state were created and never
            // written.
            for (i, &number) in manifests.iter().enumerate().rev() {
                state = whole(env, dir, number)?;
                if state.as_ref().is_none_or(|(w, _)| w.catalog.store_id != 0) {
                    if state.is_some() {
                        manifests.truncate(i + 1);
                    }
                    break;
                }
            }
            state = state.filter(|(w, _)| w.catalog.store_id != 0);
        }
    }
    let of_current = (l.losses.clone(), l.damaged.clone());
    for &number in &manifests {
        let current = current.filter(|c| c.number == number);
        l.absorb_manifest(env, dir, number, current, options)?;
    }
    if let Some((whole, torn)) = state {
        let lacks = lacks_anything(env, dir, names, &whole.catalog)?;
        let unvouched = torn && current.is_none();
        let sign = whole.sign_of_loss(env, dir, names, Search::All)?;
        if sign.is_none() && !unvouched && !(lacks && (torn || l.has_unreferenced_files(names))) {
            let (losses, damaged) = of_current;
            let mut known = SalvagedCatalog {
                losses,
                damaged,
                ..SalvagedCatalog::whole(whole.catalog)
            };
            known.check_store(env, dir, options)?;
            return Ok(Some((known, damage)));
        }
        if l.lost_edits == Some(0) {
            l.lost_edits = None;
            let number = manifests.last().copied().unwrap_or(0);
            let len = env.fs().stat(&manifest_path(dir, number))?.len;
            let why = match sign {
                Some(sign) => &format!("an edit after this position is lost: {sign}"),
                None if lacks => {
                    "an edit after this position may be lost: files or synced log records that the earlier edits name are missing, and the directory has files that no edit names"
                }
                None => "an edit after this position may be lost: the bytes there do not verify",
            };
            let name = file_name(number);
            l.losses
                .push(Loss::of_file(&name, l.end..len.max(l.end), why));
            l.damaged.push(name);
        }
    }
    l.add_families_of_tables(env, dir, names, options)?;
    l.check_store(env, dir, options)?;
    Ok(Some((l, damage)))
}

/// Returns true if a file that the manifest names is missing, or synced records of a log are
/// missing.
fn lacks_anything(env: &Env, dir: &Path, names: &[String], catalog: &Catalog) -> Result<bool> {
    Ok(missing_files(catalog, names) || lacks_flushed_records(env, dir, catalog)?)
}

fn missing_files(catalog: &Catalog, names: &[String]) -> bool {
    let there = |name: String| names.contains(&name);
    let tables = catalog.families.values().flat_map(|f| f.tables.keys());
    !tables.map(|n| table_name(*n)).all(there)
        || !(catalog.blobs.iter()).all(|(n, b)| blob_names(*n, &b.meta).into_iter().all(there))
        || !catalog.logs.keys().all(|n| there(format!("{n:06}.log")))
}

/// Returns true if a live log of the manifest lacks records before the offset up to which its index
/// says that it was synced. The store gives back a record's space only when the edit of the flush
/// is durable, so that edit may be lost. If a log is whole, an index beside it means only that a
/// flush had begun.
fn lacks_flushed_records(env: &Env, dir: &Path, catalog: &Catalog) -> Result<bool> {
    let first = catalog.logs.keys().next().copied().unwrap_or(u64::MAX);
    let indexed = indexed_logs(env, dir, first, &catalog.indexes())?;
    for (&number, log) in &catalog.logs {
        let Some(&synced) = indexed.get(&log.file_id) else {
            continue;
        };
        let path = log_path(dir, number);
        let file = match env.fs().open(&path) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Ok(true),
            Err(e) => return Err(e),
        };
        let scan = salvage::scan(&*file, &path, log.file_id, u64::MAX)?;
        let parts = scan.parts(0, u64::MAX, synced);
        if !parts.iter().all(|p| matches!(p, Part::Whole(_))) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn file_name(number: u64) -> String {
    format!("MANIFEST-{number:06}")
}

/// Returns the state of a whole manifest, and whether its tail is torn. Returns `None` for a
/// damaged manifest.
fn whole(env: &Env, dir: &Path, number: u64) -> Result<Option<(LoadedCatalog, bool)>> {
    let path = manifest_path(dir, number);
    let (mut catalog, mut logs) = (Catalog::default(), NamedLogs::default());
    let mut read = || -> Result<(u64, bool)> {
        let file = env.fs().open(&path)?;
        let Some(mut reader) = RecordReader::open(file, &path, FileKind::Manifest, None)? else {
            return Ok((0, false));
        };
        while let Some(r) = reader.next(0)? {
            let edit = Edit::decode(&r.payload)?;
            logs.note(&edit);
            catalog.apply(&edit)?;
        }
        Ok((reader.tail().end, reader.tail().torn))
    };
    match read() {
        Ok((end, torn)) => {
            let loaded = LoadedCatalog {
                manifest: number,
                end,
                catalog,
                logs,
            };
            Ok(Some((loaded, torn)))
        }
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
        Err(e) => Err(e),
    }
}

impl SalvagedCatalog {
    /// Wraps a catalog from which no edit is missing.
    fn whole(catalog: Catalog) -> SalvagedCatalog {
        SalvagedCatalog {
            catalog,
            sure: true,
            any_edit: true,
            lost_edits: Some(0),
            ..SalvagedCatalog::default()
        }
    }

    /// Returns true if the directory has a table, blob file or index that no edit names.
    fn has_unreferenced_files(&self, names: &[String]) -> bool {
        let indexes = self.catalog.indexes();
        names.iter().any(|n| match StoreFile::parse(n) {
            Some(StoreFile::Table(n)) => {
                !self.retired.contains(&n) && self.catalog.family_of(n).is_none()
            }
            Some(StoreFile::Blob(n)) => {
                !self.retired.contains(&n) && !self.catalog.blobs.contains_key(&n)
            }
            Some(StoreFile::Index(n)) => !indexes.contains(&n),
            _ => false,
        })
    }

    /// Adds the store id and the family `default` to the catalog if they are missing.
    fn check_store(&mut self, env: &Env, dir: &Path, options: &Options) -> Result<()> {
        let c = &mut self.catalog;
        if c.store_id == 0 {
            c.store_id = store_id_of_logs(env, dir)?.unwrap_or_else(|| env.random().next_u128());
        }
        c.next_family = c.next_family.max(1);
        self.family(0, options);
        Ok(())
    }

    /// Returns a family of the catalog. If it is missing, adds it under a made-up name.
    pub(super) fn family(&mut self, id: u32, options: &Options) -> &mut CatalogFamily {
        let name = if id == 0 {
            "default".to_string()
        } else {
            recovered_name(id)
        };
        self.catalog.next_family = self.catalog.next_family.max(id.saturating_add(1));
        self.catalog
            .families
            .entry(id)
            .or_insert_with(|| CatalogFamily {
                comparator: options.family(&name).comparator.name().to_string(),
                name,
                merge_operator: None,
                pages: None,
                tree: 0,
                flush_flag: None,
                tables: FileMap::default(),
            })
    }

    /// Adds the families that tables name, if edits are lost that may have made them.
    fn add_families_of_tables(
        &mut self,
        env: &Env,
        dir: &Path,
        names: &[String],
        options: &Options,
    ) -> Result<()> {
        if self.sure {
            return Ok(());
        }
        for name in names {
            let Some(StoreFile::Table(number)) = StoreFile::parse(name) else {
                continue;
            };
            let path = dir.join(name);
            let Some(says) = basalt_table::family_of(&*env.fs().open(&path)?, &path)? else {
                continue;
            };
            if let Some(flag) = says.flush_flag {
                self.table_flags.insert(number, flag);
            }
            let (own, comparator) = (says.family, says.comparator);
            let known = self.catalog.families.contains_key(&own.id);
            let retired = self.retired.contains(&number);
            if self.dropped_families.contains(&own.id) || (retired && !known) {
                continue;
            }
            if !retired {
                self.table_families.insert(number, own.id);
            }
            let made_up = recovered_name(own.id);
            if !known || self.catalog.families[&own.id].name == made_up {
                self.name_family(own.id, &own.name, &comparator, options);
            }
        }
        Ok(())
    }

    /// Gives a family the name and comparator that a readable edit or table says. No store writes a
    /// name that another family has: the family then keeps a made-up name.
    pub(super) fn name_family(&mut self, id: u32, name: &str, comparator: &str, options: &Options) {
        let taken = (id == 0) != (name == DEFAULT)
            || self
                .catalog
                .families
                .iter()
                .any(|(i, f)| *i != id && f.name == name);
        let f = self.family(id, options);
        if !taken {
            f.name = name.to_string();
        }
        f.comparator = comparator.to_string();
    }

    fn lose_edits(&mut self, n: Option<u64>) {
        self.lost_edits = self.lost_edits.zip(n).map(|(a, b)| a + b);
    }

    fn absorb_manifest(
        &mut self,
        env: &Env,
        dir: &Path,
        number: u64,
        current: Option<Current>,
        options: &Options,
    ) -> Result<()> {
        let name = file_name(number);
        let path = manifest_path(dir, number);
        let file = env.fs().open(&path)?;
        let header = match RecordReader::open(file.clone(), &path, FileKind::Manifest, None) {
            Ok(r) => r.map(|r| r.header().clone()),
            Err(e) if e.kind() == ErrorKind::Corruption => None,
            Err(e) => return Err(e),
        };
        let id = match (&current, &header) {
            (Some(c), _) => c.file_id,
            (None, Some(h)) => h.file_id,
            (None, None) => {
                // The manifest was created and never written, or its id is lost with its header:
                // none of its content can be trusted.
                self.damaged.push(name.clone());
                self.lose_edits(None);
                self.losses.push(Loss::of_file(
                    &name,
                    0..file.allocated().max(file.len()),
                    "its header is unreadable, so no edit in it can be verified",
                ));
                return Ok(());
            }
        };
        if let Some(h) = &header
            && self.catalog.store_id == 0
        {
            self.catalog.store_id = h.store_id;
        }
        let scan = salvage::scan(&*file, &path, id, u64::MAX)?;
        let mut next = 0;
        let mut end = header.as_ref().map_or(0, |h| u64::from(h.write_unit));
        let mut damaged = header.is_none();
        for f in &scan.found {
            let edit = if f.whole && f.kind == RecordKind::Edit {
                match Edit::decode(&salvage::read(&*file, &path, f)?.payload) {
                    Ok(e) => Some(e),
                    Err(e) if e.kind() == ErrorKind::Corruption => None,
                    Err(e) => return Err(e.at(&path, f.offset)),
                }
            } else {
                None
            };
            if f.first_seq > next {
                damaged = true;
                // The first edit is the whole state: without it the number of edits says nothing.
                self.lose_edits((next > 0).then_some(f.first_seq - next));
                self.losses.push(Loss::of_file(
                    &name,
                    end..f.offset,
                    &match f.first_seq - next {
                        1 => format!("edit {next} is lost"),
                        _ => format!("edits {next} to {} are lost", f.first_seq - 1),
                    },
                ));
            }
            match edit {
                Some(e) => {
                    self.absorb(&e, options)
                        .map_err(|e| e.at(&path, f.offset))?;
                    self.any_edit = true;
                }
                None => {
                    damaged = true;
                    self.lose_edits((f.first_seq > 0).then_some(1));
                    self.losses.push(Loss::of_file(
                        &name,
                        f.offset..f.end,
                        &format!("edit {} is lost: its bytes do not verify", f.first_seq),
                    ));
                }
            }
            next = f.first_seq + 1;
            end = f.end;
        }
        if let Some(c) = current
            && c.synced > end
        {
            damaged = true;
            self.lose_edits(None);
            self.losses.push(Loss::of_file(
                &name,
                end..c.synced,
                &format!("edits from {next} on are lost: CURRENT vouches for these bytes"),
            ));
        }
        self.end = end;
        if damaged {
            self.damaged.push(name);
        }
        Ok(())
    }

    /// Adds what an edit says of a passive store.
    fn absorb_flags(&mut self, edit: &Edit) {
        let from = edit.passive_from.unwrap_or(0);
        self.catalog.passive_from = self.catalog.passive_from.max(from);
        for (flag, ids) in &edit.flush_flags {
            for id in ids {
                if let Some(f) = self.catalog.families.get_mut(id) {
                    raise(&mut f.flush_flag, *flag);
                }
            }
        }
    }

    fn absorb(&mut self, edit: &Edit, options: &Options) -> Result<()> {
        // Refuses features of a later version.
        self.catalog.apply_features(edit)?;
        if edit.store_id.is_some() {
            // The edit is the whole state: files that it does not name are gone.
            let c = &mut self.catalog;
            let tables = c.families.values().flat_map(|f| f.tables.keys());
            (self.retired).extend(tables.chain(c.blobs.keys()).chain(c.logs.keys()));
            c.logs.clear();
            c.blobs.clear();
            let kept: BTreeSet<u32> = edit.add_families.iter().map(|f| f.0).collect();
            let gone = c.families.keys().filter(|id| !kept.contains(id));
            self.dropped_families.extend(gone);
            c.families.clear();
        }
        let c = &mut self.catalog;
        c.store_id = edit.store_id.unwrap_or(c.store_id);
        c.next_file = c.next_file.max(edit.next_file.unwrap_or(0));
        c.next_family = c.next_family.max(edit.next_family.unwrap_or(0));
        c.last_seq = c.last_seq.max(edit.last_seq.unwrap_or(0));
        c.wall_ms = c.wall_ms.max(edit.wall_ms.unwrap_or(0));
        for (id, name, comparator) in &edit.add_families {
            self.dropped_families.remove(id);
            self.name_family(*id, name, comparator, options);
        }
        self.absorb_flags(edit);
        for (id, operator) in &edit.merge_operators {
            if let Some(f) = self.catalog.families.get_mut(id) {
                // No store writes a second operator name for a family.
                f.merge_operator.get_or_insert_with(|| operator.clone());
            }
        }
        for (id, seq) in &edit.pages {
            // An edit that made the family is lost, if it is not known.
            let known = self.dropped_families.contains(id);
            let f = (!known).then(|| self.family(*id, options));
            if let Some(f) = f.filter(|f| f.tables.is_empty()) {
                f.pages = f.pages.max(Some(*seq));
                self.catalog.last_seq = self.catalog.last_seq.max(*seq);
            }
        }
        for (id, tree) in &edit.trees {
            let f = self.catalog.families.get_mut(id);
            if let Some(f) = f.filter(|f| f.pages.is_some()) {
                f.tree = *tree;
            }
        }
        for id in edit.drop_families.iter().filter(|id| **id != 0) {
            self.dropped_families.insert(*id);
            if let Some(f) = self.catalog.families.remove(id) {
                self.retired.extend(f.tables.keys());
            }
        }
        for (family, _, number) in &edit.remove_tables {
            if let Some(f) = self.catalog.families.get_mut(family) {
                f.tables.remove(number);
            }
            self.retired.insert(*number);
        }
        for t in &edit.add_tables {
            if self.dropped_families.contains(&t.family) {
                continue;
            }
            // No store writes an edit that gives one table to two families. The first family keeps
            // the table.
            if self
                .catalog
                .family_of(t.number)
                .is_some_and(|f| f != t.family)
            {
                continue;
            }
            // No store writes an edit that adds a table to a family in pages.
            let family = self.catalog.families.get(&t.family);
            if family.is_some_and(|f| f.pages.is_some()) {
                continue;
            }
            self.retired.remove(&t.number);
            self.catalog.last_seq = self.catalog.last_seq.max(t.meta.max_seq);
            let f = self.family(t.family, options);
            f.tables
                .insert(t.number, CatalogTable::local(t.level, t.meta.clone()));
        }
        for number in &edit.remove_logs {
            self.catalog.logs.remove(number);
            self.retired.insert(*number);
        }
        // A log may stay as a blob file. Marks and lineage are rebuilt from references and records.
        for b in &edit.add_blobs {
            self.retired.remove(&b.number);
            let blob = CatalogBlob {
                location: crate::version::FileLocation::Local,
                meta: b.meta.clone(),
                garbage: Arc::new(Garbage::none(b.meta.records as u32)),
                made_ms: None,
            };
            self.catalog.blobs.insert(b.number, blob);
        }
        for number in &edit.remove_blobs {
            self.catalog.blobs.remove(number);
            self.retired.insert(*number);
        }
        for (number, file_id) in &edit.add_logs {
            self.retired.remove(number);
            let log = LiveLog::open(*file_id);
            self.catalog.logs.insert(*number, log);
        }
        for (number, end) in &edit.left_logs {
            if let Some(log) = self.catalog.logs.get_mut(number) {
                log.left = Some(*end);
            }
        }
        for (number, end) in &edit.end_logs {
            if let Some(log) = self.catalog.logs.get_mut(number) {
                log.end = Some(*end);
            }
        }
        Ok(())
    }
}

fn store_id_of_logs(env: &Env, dir: &Path) -> Result<Option<u128>> {
    for entry in env.fs().list(dir)? {
        if let Some(StoreFile::Log(n)) = StoreFile::parse(&entry.name)
            && let Some(h) = log_header(env, dir, n)?
        {
            return Ok(Some(h.store_id));
        }
    }
    Ok(None)
}

/// Returns the header of a log, if the file is a log with this number.
pub(crate) fn log_header(
    env: &Env,
    dir: &Path,
    number: u64,
) -> Result<Option<basalt_records::FileHeader>> {
    let path = log_path(dir, number);
    let file = env.fs().open(&path)?;
    match RecordReader::open(file, &path, FileKind::Log, None) {
        Ok(r) => Ok(r.map(|r| r.header().clone()).filter(|h| h.number == number)),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
        Err(e) => Err(e),
    }
}
