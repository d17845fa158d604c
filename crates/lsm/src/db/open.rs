//! Opening a store: lock, manifest, logs, and the clean state that the engine starts from.
//!
//! Recovery changes no file that it reads until a fresh manifest is current. Recovery writes the
//! content of the logs into new tables, then a new manifest that names them, then `CURRENT`. A
//! crash at any step leaves the old state or the new one, and unused files.

use super::engine::Engine;
use super::families::FamilyEntry;
use super::flush::write_table;
use super::flush_values::Values;
use super::lost_edits::{LoadedCatalog, NamedLogs, Search};
use super::memtable_set::MemtableSet;
use super::page_flush::write_pages;
use super::page_values::{PageValues, read_from};
use super::pages::{self, PageView};
use super::store_dir::{check_can_open_or_create, is_data, remove_unfinished, remove_unused_files};
use super::store_files::{LOCK, StoreFile};
use super::tree::OpenedTree;
use super::write_path::apply::insert;
use super::write_path::log_space::log_path;
use crate::options::{Compression, Options};
use crate::version::FileLocation;
use crate::version::catalog::{Catalog, CatalogTable, LiveLog};
use crate::version::edit::{AddBlob, Edit};
use crate::version::manifest::{self, CURRENT, Manifest};
use crate::version::{BlobSet, FamilyVersion, TableStore, Version};
use basalt_blob::inspect::indexed_logs;
use basalt_blob::{Name, Reference, Separator};
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::{Env, IoPriority};
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::batch::Ops;
use basalt_kv::key::{SEQ_LIMIT, SeqNo};
use basalt_kv::merge;
use basalt_records::salvage::describe_tail;
use basalt_records::{
    FileKind, RecordKind, RecordReader, StoredRecord, UNANNOUNCED, UNANNOUNCED_COMPRESSED,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Reads the catalog that `CURRENT` leads to. `None` for a directory without a store. A manifest
/// that has lost edits is refused before any file is removed as unused.
pub(crate) fn load_catalog(
    env: &Env,
    dir: &Path,
    names: &[String],
) -> Result<Option<LoadedCatalog>> {
    let Some(loaded) = read_catalog(env, dir, names)? else {
        return Ok(None);
    };
    match loaded.lost_edits(env, dir, names, Search::Unnamed)? {
        None => Ok(Some(loaded)),
        Some(e) => Err(e),
    }
}

/// Reads the catalog as [`load_catalog`] does, and also accepts a manifest whose last edits may be
/// lost.
pub(crate) fn read_catalog(
    env: &Env,
    dir: &Path,
    names: &[String],
) -> Result<Option<LoadedCatalog>> {
    let Some(current) = manifest::read_current(env, dir)? else {
        let mut data = None;
        for name in names {
            if data.is_none() && is_data(env, dir, name)? {
                data = Some(name.clone());
            }
        }
        if data.is_none() {
            let tree = pages::any_written(env, dir)?;
            data = tree.map(|path| path.display().to_string());
        }
        return match data {
            None => Ok(None),
            Some(n) => Err(Error::corruption(
                &dir.join(CURRENT),
                0,
                format!("CURRENT is missing but {n} is there; run `basalt repair` to rebuild the store from its files"),
            )
            .with_reach(Reach::Store)),
        };
    };
    let mut catalog = Catalog::default();
    let mut logs = NamedLogs::default();
    let end = manifest::replay(env, dir, &current, |edit| {
        let edit = Edit::decode(edit)?;
        logs.note(&edit);
        catalog.apply(&edit)
    })
    .map_err(|e| e.with_reach(Reach::Store))?;
    catalog.check_totals().map_err(|e| {
        let path = manifest::manifest_path(dir, current.number);
        e.at(&path, 0).with_reach(Reach::Store)
    })?;
    if !catalog.families.contains_key(&0) {
        return Err(Error::corruption(
            &manifest::manifest_path(dir, current.number),
            0,
            "the manifest's state lacks the family that every store has",
        )
        .with_reach(Reach::Store));
    }
    if catalog.store_id != current.store_id {
        return Err(Error::corruption(
            &manifest::manifest_path(dir, current.number),
            0,
            format!(
                "the manifest's state is of store {:032x}, CURRENT names {:032x}",
                catalog.store_id, current.store_id
            ),
        )
        .with_reach(Reach::Store));
    }
    Ok(Some(LoadedCatalog {
        manifest: current.number,
        end,
        catalog,
        logs,
    }))
}

/// Returns the families of a catalog with the options that the caller gives for them. The caller
/// need not give operators that come with the engine.
pub(crate) fn bind_families(
    catalog: &Catalog,
    options: &Options,
) -> Result<BTreeMap<u32, FamilyEntry>> {
    let mut families = BTreeMap::new();
    for (&id, f) in &catalog.families {
        let wanted = options.family(&f.name);
        if wanted.comparator.name() != f.comparator {
            return Err(Error::invalid(format!(
                "family {:?} was made with comparator {:?}, and the options give {:?}; open it with the comparator it was made with",
                f.name,
                f.comparator,
                wanted.comparator.name()
            )));
        }
        let mut wanted = wanted.clone();
        if wanted.merge_operator.is_none()
            && let Some(name) = &f.merge_operator
        {
            wanted.merge_operator = merge::built_in(name);
        }
        if f.pages.is_some() {
            wanted.pages.get_or_insert_default();
        }
        families.insert(
            id,
            FamilyEntry {
                id,
                name: f.name.as_str().into(),
                options: Arc::new(wanted),
                scan_history: Arc::default(),
                dropped_tombstones: Arc::default(),
            },
        );
    }
    Ok(families)
}

/// Refuses options that do not fit the engine that a family was made with. A check or a repair does
/// not call this.
pub(crate) fn check_engines(
    catalog: &Catalog,
    families: &BTreeMap<u32, FamilyEntry>,
) -> Result<()> {
    for (id, family) in &catalog.families {
        let options = &families[id].options;
        if options.pages.is_some() && family.pages.is_none() {
            return Err(Error::invalid(format!(
                "family {:?} is kept in levels of tables, and the options ask for pages; open it without `pages`, or copy its entries into a new family",
                family.name
            )));
        }
    }
    Ok(())
}

/// Refuses families without their merge operator, or with another operator. A check or a repair
/// merges no operands, and does not call this. A family that had no operator gets the one in the
/// options by the returned edit.
fn bind_operators(catalog: &Catalog, families: &BTreeMap<u32, FamilyEntry>) -> Result<Edit> {
    let mut edit = Edit::default();
    for (&id, f) in &catalog.families {
        let given = families[&id].options.merge_operator.as_ref();
        match (&f.merge_operator, given.map(|o| o.name())) {
            (None, Some(name)) => edit.merge_operators.push((id, name.to_string())),
            (Some(own), Some(name)) if own != name => {
                return Err(Error::invalid(format!(
                    "family {:?} holds operands of merge operator {own:?}, and the options give {name:?}; open it with the operator that it has",
                    f.name
                )));
            }
            (Some(own), None) => {
                return Err(Error::invalid(format!(
                    "family {:?} holds operands of merge operator {own:?}, and the options give none; set its `merge_operator` to that one",
                    f.name
                )));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
    Ok(edit)
}

/// Checks the record of an ingestion in a log. `known` is the highest sequence number that the
/// manifest knows, or `None` if edits of the manifest are lost. The edit of an ingestion is durable
/// before its record is written.
fn ingestion_is_known(
    record: &StoredRecord,
    known: Option<SeqNo>,
) -> std::result::Result<(), String> {
    if record.count != 1 || !record.payload.is_empty() {
        return Err("an ingestion with operations or a payload".into());
    }
    match known {
        Some(known) if record.first_seq > known => Err(format!(
            "prepared tables were added with sequence number {}, and the manifest knows none above {known}: it has lost its last edits",
            record.first_seq
        )),
        _ => Ok(()),
    }
}

/// Checks that a log may hold this record behind a record that ends with `last_seq`. Families from
/// `next_family` up do not exist. `known` is the highest sequence number that the manifest knows,
/// or `None` if edits of the manifest are lost. A `Corruption` error says what is wrong, without
/// file and offset. The check does not decompress values.
pub(crate) fn check_record(
    record: &StoredRecord,
    last_seq: SeqNo,
    next_family: u32,
    known: Option<SeqNo>,
) -> Result<()> {
    let bad = |what: String| Error::new(ErrorKind::Corruption, what);
    if !matches!(record.kind, RecordKind::Batch | RecordKind::Ingestion) {
        return Err(bad(format!(
            "expected a record of kind Batch or Ingestion, found {:?}",
            record.kind
        )));
    }
    let end = record.first_seq.saturating_add(u64::from(record.count));
    if record.first_seq <= last_seq || record.count == 0 || end > SEQ_LIMIT {
        return Err(bad(format!(
            "expected a record whose sequence numbers begin above {last_seq} and whose operations are 1 or more, found sequence number {} with {} operations",
            record.first_seq, record.count
        )));
    }
    if record.kind == RecordKind::Ingestion {
        return ingestion_is_known(record, known).map_err(bad);
    }
    let mut ops = 0;
    for op in Ops::new(&record.payload) {
        let op = op?;
        if op.family >= next_family {
            return Err(bad(format!(
                "expected an operation of a family below {next_family}, the manifest's next family id, found family {}",
                op.family
            )));
        }
        if op.record_at.is_some() && !record.separated {
            return Err(bad(UNANNOUNCED.into()));
        }
        if op.codec != Compression::None && !record.compressed {
            return Err(bad(UNANNOUNCED_COMPRESSED.into()));
        }
        ops += 1;
    }
    match ops == record.count {
        true => Ok(()),
        false => Err(bad(format!(
            "expected {} operations, as the record's header says, found {ops}",
            record.count
        ))),
    }
}

/// Returns the catalog of a closed store.
pub(crate) fn catalog_of(env: &Env, dir: &Path) -> Result<Catalog> {
    let names: Vec<String> = (env.fs().list(dir)?.into_iter())
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    match load_catalog(env, dir, &names)? {
        Some(loaded) => Ok(loaded.catalog),
        None => Err(Error::new(ErrorKind::NotFound, "no store here").in_file(dir)),
    }
}

/// The end of a log that a crash has torn. A recovery cuts it.
pub(crate) struct TornTail {
    /// Number of the log.
    number: u64,
    /// Offset of the end of the last good record.
    from: u64,
    /// Offset at which the log ended when the next one took over. All later logs are cut, too.
    to: Option<u64>,
}

impl TornTail {
    /// Names the file and the bytes that are cut. Reads the file's space.
    pub fn describe(&self, env: &Env, dir: &Path) -> Result<String> {
        let path = log_path(dir, self.number);
        match self.to {
            Some(to) => Ok(format!(
                "{} from offset {} to {to}, {} bytes, and all later logs",
                path.display(),
                self.from,
                to - self.from
            )),
            None => describe_tail(&*env.fs().open(&path)?, &path, self.from),
        }
    }
}

/// Reads the live logs in order, and passes each batch to `apply` after checks. The families of a
/// batch must be known (dropped ones included), an ended log must be whole, and a log after one
/// that did not end must be empty. Returns the torn tails that were found.
pub(crate) fn replay_logs(
    env: &Env,
    dir: &Path,
    store_id: u128,
    next_family: u32,
    known: SeqNo,
    logs: &BTreeMap<u64, LiveLog>,
    mut apply: impl FnMut(StoredRecord) -> Result<()>,
) -> Result<Vec<TornTail>> {
    let mut torn = Vec::new();
    let mut open_ended: Option<u64> = None;
    // A log that was left unsynced and lost its end: number, where it was cut.
    let mut cut: Option<(u64, u64)> = None;
    let mut last_seq = 0;
    // A log with an index was synced, even if the manifest does not say so: missing bytes of such a
    // log are no torn tail.
    let first = logs.keys().next().copied().unwrap_or(u64::MAX);
    let indexed = indexed_logs(env, dir, first, &BTreeSet::new())?;
    for (&number, log) in logs {
        let synced = (log.end).unwrap_or(indexed.get(&log.file_id).copied().unwrap_or(0));
        let path = log_path(dir, number);
        let missing = |what: &str| Error::corruption(&path, 0, what).with_reach(Reach::Store);
        let file = env.fs().open(&path).map_err(|e| {
            if e.is_not_found() {
                missing("the manifest names this log, and it is missing")
            } else {
                e
            }
        })?;
        let mut reader = RecordReader::open(file, &path, FileKind::Log, Some(log.file_id))?
            .ok_or_else(|| missing("the header is not that of the log that the manifest names"))?;
        if reader.header().store_id != store_id {
            return Err(missing("the log belongs to another store"));
        }
        let end = log.end.or(log.left).unwrap_or(u64::MAX);
        let header_end = reader.tail().end;
        while reader.tail().end < end
            && let Some(record) = reader.next(synced)?
        {
            if record.offset >= end {
                break;
            }
            if let Some((before, at)) = cut {
                // A store recovers a prefix of its writes, so writes after lost records are
                // dropped, too. But a write is synced only after all logs before it. So if a later
                // write was synced, the loss is damage.
                if reader.proven() > header_end || log.end.is_some() {
                    return Err(Error::corruption(
                        &log_path(dir, before),
                        at,
                        format!(
                            "expected a record, found none; the later log {number} was synced, so this log had been synced, too"
                        ),
                    ));
                }
                continue;
            }
            if let Some(before) = open_ended {
                return Err(Error::corruption(
                    &path,
                    record.offset,
                    format!(
                        "a record in log {number}, but the manifest does not record the end of log {before} before it"
                    ),
                ));
            }
            check_record(&record, last_seq, next_family, Some(known))
                .map_err(|e| e.at(&path, record.offset))?;
            last_seq = record.first_seq + u64::from(record.count) - 1;
            if record.kind == RecordKind::Ingestion {
                continue;
            }
            let at = record.offset;
            apply(record).map_err(|e| match e.path() {
                None if e.kind() == ErrorKind::Corruption => e.at(&path, at),
                _ => e,
            })?;
        }
        let tail = reader.tail();
        match log.left {
            _ if log.end.is_some() || cut.is_some() => {}
            Some(left) if tail.end >= left => {}
            Some(left) => {
                let from = tail.end;
                torn.push(TornTail {
                    number,
                    from,
                    to: Some(left),
                });
                cut = Some((number, tail.end));
            }
            None => {
                if tail.torn {
                    let from = tail.end;
                    torn.push(TornTail {
                        number,
                        from,
                        to: None,
                    });
                }
                open_ended.get_or_insert(number);
            }
        }
    }
    Ok(torn)
}

/// Opens a store; see the module.
pub(crate) fn open(env: &Env, dir: &Path, options: Options) -> Result<Arc<Engine>> {
    options.validate()?;
    let fs = env.fs();
    if !fs.exists(dir)? {
        if !options.create_if_missing {
            return Err(Error::new(
                ErrorKind::NotFound,
                "no store here, and create_if_missing is false",
            )
            .in_file(dir));
        }
        fs.create_dir(dir)?;
    } else {
        check_can_open_or_create(env, dir, &options)?;
    }
    let lock = fs.lock(&dir.join(LOCK))?;
    let mut names: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter(|e| !e.is_dir)
        .map(|e| e.name)
        .collect();
    let tables = TableStore::new(env, dir);
    let on_disk = names
        .iter()
        .filter_map(|n| StoreFile::parse(n)?.number())
        .max()
        .unwrap_or(0);

    let mut catalog = catalog_to_open(&tables, dir, &names, &options)?;
    let named_before = catalog.next_file;
    env.clock().observe_wall_ms(catalog.wall_ms);
    catalog.wall_ms = env.clock().wall_ms();
    catalog.next_file = catalog.next_file.max(on_disk + 1);
    let families = bind_families(&catalog, &options)?;
    check_engines(&catalog, &families)?;
    catalog.apply(&bind_operators(&catalog, &families)?)?;

    let is_low = |catalog: &Catalog| {
        super::back_pressure::disk_full::is_low(env, dir, &options, &catalog.logs)
    };
    if is_low(&catalog) {
        // Missing files are left to repair, which may need files that the catalog does not name.
        build_version(&tables, &catalog, &families)?;
        check_logs(env, dir, &catalog)?;
        remove_unfinished(env, dir, &names, named_before);
        if is_low(&catalog) {
            make_room_to_recover(env, dir, &mut names, &mut catalog);
        }
    }
    pages::check_unnamed(env, dir, &catalog, catalog.next_family)?;
    let mut trees = pages::open_all(&tables, dir, &catalog, &families, false)?;
    if catalog.passive && options.log.passive().is_none() {
        return Err(is_passive());
    }
    let logs = std::mem::take(&mut catalog.logs);
    let recovery = LogRecovery {
        env,
        dir,
        options: &options,
        tables: &tables,
        families: &families,
    };
    let mut last_seq = recovery.run(&mut trees, &mut catalog, &logs)?;
    if options.log.passive().is_some() {
        last_seq = become_passive(&mut catalog, last_seq)?;
    }
    catalog.note_references_in_pages();
    let number = catalog.next_file;
    catalog.next_file += 1;
    // Before anything is removed: a store that lacks a table stays as it is, for repair.
    let version = build_version(&tables, &catalog, &families)?;
    let manifest = Manifest::create(
        env,
        dir,
        catalog.store_id,
        number,
        &catalog.to_edit().encode(),
    )?;
    trees.values().for_each(|tree| tree.pages.note_recorded());
    remove_unused_files(env, dir, &names, &catalog, number);
    pages::remove_unnamed(env, dir, &catalog);

    let opened = OpenedTree {
        tables,
        manifest,
        catalog,
        families,
        version,
        pages: trees,
        last_seq,
    };
    let engine = Engine::new(env, dir.to_path_buf(), options, opened, Some(lock), false);
    engine.begin_background_work();
    Ok(engine)
}

/// Makes a store passive whose newest sequence number is `last_seq`, if it is not. Returns the
/// newest sequence number that is persisted. Items with later numbers are lost, and the numbers are
/// given again.
fn become_passive(catalog: &mut Catalog, last_seq: SeqNo) -> Result<SeqNo> {
    catalog.make_passive(last_seq);
    (catalog.check_flags()).map_err(|e| e.with_reach(Reach::Store))?;
    let flags = catalog.flags();
    Ok(flags.values().map(|flag| flag.last_seq).max().unwrap_or(0))
}

/// Returns the catalog of the store that is opened, or of a new one.
fn catalog_to_open(
    tables: &Arc<TableStore>,
    dir: &Path,
    names: &[String],
    options: &Options,
) -> Result<Catalog> {
    let env = tables.env();
    match load_catalog(env, dir, names)? {
        Some(_) if options.error_if_exists => Err(Error::new(
            ErrorKind::AlreadyExists,
            "a store is here, and error_if_exists is set",
        )
        .in_file(dir)),
        Some(loaded) => Ok(loaded.catalog),
        None if !options.create_if_missing => Err(Error::new(
            ErrorKind::NotFound,
            "no store here, and create_if_missing is false",
        )
        .in_file(dir)),
        None => {
            // The process that made the directory may have died before the directory's name was
            // durable.
            sync_ancestors(env, dir)?;
            // And the lock's: it says whose a manifest is that a power cut leaves without a header.
            env.fs().sync_metadata(dir)?;
            // No family is known.
            pages::check_unnamed(env, dir, &Catalog::default(), 0)?;
            new_catalog(tables, dir, options)
        }
    }
}

/// The error of an opening of a passive store as a store with a log.
fn is_passive() -> Error {
    Error::invalid(
        "the store is passive: its owner's log has what is not persisted yet, so only its owner can open it, with `Db::open_passive`; `Db::open_read_only` reads it after a clean close",
    )
}

/// Reads the logs and keeps nothing of them. Recovery on a full disk removes files before it reads
/// the logs, and logs may show that edits which named such files are lost.
fn check_logs(env: &Env, dir: &Path, catalog: &Catalog) -> Result<()> {
    let (store_id, next_family) = (catalog.store_id, catalog.next_family);
    let (known, logs) = (catalog.last_seq, &catalog.logs);
    replay_logs(env, dir, store_id, next_family, known, logs, |_| Ok(())).map(drop)
}

/// Removes all files that the catalog does not name, so that a recovery on a full disk has their
/// space: outputs of jobs that were cut off, files that an edit has dropped, and logs kept for
/// their space. A fresh manifest with the same state is written first. Without it, a power cut
/// could bring back the state before the last edit, which names some of these files.
///
/// The logs have been read, and the caller has checked that the tables exist: a damaged store keeps
/// all its files for repair.
fn make_room_to_recover(env: &Env, dir: &Path, names: &mut Vec<String>, catalog: &mut Catalog) {
    let number = catalog.next_file;
    catalog.next_file += 1;
    let path = manifest::manifest_path(dir, number);
    let name = path.file_name().expect("a manifest has a name");
    names.push(name.to_string_lossy().into_owned());
    // If the manifest cannot be written, the recovery tries without the space.
    if Manifest::create(
        env,
        dir,
        catalog.store_id,
        number,
        &catalog.to_edit().encode(),
    )
    .is_ok()
    {
        remove_unused_files(env, dir, names, catalog, number);
    }
}

/// Makes the names of the store's directory and of its parents survive a power cut. A directory
/// that this process may not open, or cannot sync, is skipped: this process made no directory in
/// it.
fn sync_ancestors(env: &Env, dir: &Path) -> Result<()> {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const EINVAL: i32 = 22;
    const EROFS: i32 = 30;
    for parent in dir.ancestors().skip(1) {
        match env.fs().sync_metadata(parent) {
            Err(e) if matches!(e.os_error(), Some(EPERM | EACCES | EINVAL | EROFS)) => {}
            other => other?,
        }
    }
    Ok(())
}

fn new_catalog(tables: &Arc<TableStore>, dir: &Path, options: &Options) -> Result<Catalog> {
    let env = tables.env();
    let default = options.family("default");
    if default.pages.is_some() {
        // The manifest that names the tree comes later.
        let made = pages::create(tables, dir, 0, "default", default)?;
        made.pages.leave(false)?;
    }
    let mut catalog = Catalog::default();
    catalog.apply(&Edit {
        store_id: Some(env.random().next_u128()),
        next_file: Some(1),
        next_family: Some(1),
        add_families: vec![(0, "default".into(), default.comparator.name().into())],
        pages: default.pages.iter().map(|_| (0, 0)).collect(),
        ..Edit::default()
    })?;
    Ok(catalog)
}

/// The recovery of the logs of a store that is being opened.
struct LogRecovery<'a> {
    env: &'a Env,
    dir: &'a Path,
    options: &'a Options,
    tables: &'a Arc<TableStore>,
    families: &'a BTreeMap<u32, FamilyEntry>,
}

impl LogRecovery<'_> {
    /// Replays the logs into memtables and writes those to tables and pages of the catalog. Returns
    /// the last sequence number.
    fn run(
        &self,
        trees: &mut BTreeMap<u32, PageView>,
        catalog: &mut Catalog,
        logs: &BTreeMap<u64, LiveLog>,
    ) -> Result<SeqNo> {
        let families = self.families.values();
        let orders = families.map(|f| (f.id, f.options.comparator.clone()));
        let fresh = || MemtableSet::new(self.env, 0, orders.clone());
        let mut memtable_set = fresh();
        let mut last_seq = catalog.last_seq;
        let (store_id, next_family) = (catalog.store_id, catalog.next_family);
        let (known, dir) = (catalog.last_seq, self.dir);
        replay_logs(self.env, dir, store_id, next_family, known, logs, |r| {
            let last = r.first_seq + u64::from(r.count) - 1;
            memtable_set.note_seq(last);
            insert(&memtable_set, &r.payload, r.first_seq)?;
            last_seq = last_seq.max(last);
            memtable_set.book_memory();
            if memtable_set.memory() >= self.options.write_buffer_bytes {
                self.write_out(&memtable_set, trees, catalog)?;
                memtable_set = fresh();
            }
            Ok(())
        })?;
        self.write_out(&memtable_set, trees, catalog)?;
        catalog.last_seq = catalog.last_seq.max(last_seq);
        Ok(last_seq)
    }

    /// Writes memtables to tables and pages, and notes these in the catalog.
    fn write_out(
        &self,
        memtable_set: &MemtableSet,
        trees: &mut BTreeMap<u32, PageView>,
        catalog: &mut Catalog,
    ) -> Result<()> {
        let (env, tables, families) = (self.env, self.tables, self.families);
        let next = AtomicU64::new(catalog.next_file);
        let new_number = || next.fetch_add(1, SeqCst);
        let may_compress = |f: &FamilyEntry| f.options.blob_compression != Compression::None;
        let separator = Separator::new(
            env,
            tables.clone(),
            Box::new(&new_number),
            IoPriority::High,
            false,
        )
        .with_compressed(families.values().any(may_compress));
        let mut values = Values::new(separator, None, &new_number);
        // What pages refer to before these memtables.
        let blobs = match trees.is_empty() {
            true => BlobSet::default(),
            false => BlobSet::of(tables, catalog),
        };
        let mut edit = Edit::default();
        for (id, mem) in memtable_set.mems.iter().filter(|(_, m)| !m.is_empty()) {
            let family = &families[id];
            if let Some(tree) = trees.get_mut(id) {
                let seq = memtable_set.last_seq();
                let numbers = Box::new(&new_number);
                let values = PageValues::new(tables, *id, &family.options, numbers, false);
                let read = |name: &Name<'_>, to: &Reference| read_from(&blobs, name, to);
                write_pages(env, tree, family, mem, seq, &read, values)?;
                for (number, meta) in tree.pages.unrecorded_blobs() {
                    edit.add_blobs.push(AddBlob {
                        number,
                        meta,
                        location: FileLocation::Local,
                    });
                }
                *tree = PageView::of(&tree.pages, seq);
                edit.pages.push((*id, seq));
                continue;
            }
            let number = new_number();
            let add = write_table(
                tables,
                number,
                family,
                mem,
                &[],
                (false, None),
                Some(&mut values),
            )?;
            edit.add_tables.push(add);
        }
        for (number, meta) in values.finish(env, tables, false)? {
            let meta = Arc::new(meta);
            edit.add_blobs.push(AddBlob {
                number,
                meta,
                location: FileLocation::Local,
            });
        }
        if !edit.add_tables.is_empty() || !edit.add_blobs.is_empty() {
            env.fs().sync_metadata(self.dir)?;
        }
        edit.date_blobs(env.clock().wall_ms());
        edit.next_file = Some(next.load(SeqCst));
        catalog.apply(&edit)
    }
}

/// The first version, checked against the directory: every table must be there with its size.
pub(super) fn build_version(
    tables: &Arc<TableStore>,
    catalog: &Catalog,
    families: &BTreeMap<u32, FamilyEntry>,
) -> Result<Version> {
    let mut version = Version::default();
    for (id, f) in &catalog.families {
        let cmp = families[id].options.comparator.clone();
        let mut fv = FamilyVersion::empty(cmp.clone());
        for (&number, CatalogTable { level, meta, .. }) in &f.tables {
            let path = tables.path(number);
            tables.check_present(&path, meta.size, number)?;
            fv.push(
                *level as usize,
                tables.table(number, meta.clone(), cmp.clone()),
            );
        }
        fv.sort();
        fv.check().map_err(|what| {
            Error::new(
                ErrorKind::Corruption,
                format!("family {:?}: {what}", f.name),
            )
            .with_reach(Reach::Store)
        })?;
        for table in fv.levels.iter().flatten() {
            let lacks = |n: &u64| !catalog.blobs.contains_key(n) && !catalog.lineage.is_name(*n);
            if let Some((n, _)) = table.meta.references.iter().find(|(n, _)| lacks(n)) {
                return Err(Error::corruption(
                    &table.path(),
                    0,
                    format!("it refers to blob file {n}, which the manifest does not know; run `basalt repair`"),
                )
                .with_reach(Reach::Store));
            }
        }
        if !catalog.lineage.is_in_order(*id, &cmp) {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("family {:?}: the lineage of its blob files is out of order; run `basalt repair`", f.name),
            )
            .with_reach(Reach::Store));
        }
        version.families.insert(*id, Arc::new(fv));
    }
    for (&number, blob) in &catalog.blobs {
        let paths = tables.blob_paths(number, &blob.meta);
        match &blob.meta.index {
            None => tables.check_present(&paths[0], blob.meta.size, number)?,
            Some(index) => {
                tables.check_present(&paths[0], blob.meta.data_end, number)?;
                tables.check_present(&paths[1], index.size, number)?;
            }
        }
    }
    version.blobs = Arc::new(BlobSet::of(tables, catalog));
    Ok(version)
}
