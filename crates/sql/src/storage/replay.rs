//! Opening: the replay of the binlog into the families that lack it.

use super::{BINLOG, is_passive};
use crate::catalog::{Catalog, Object};
use crate::error::SqlResult;
use crate::history::{Change, SchemaHistory, definition_key, definition_value};
use crate::options::DatabaseOptions;
use crate::record::{BinlogRecord, RecordBody};
use crate::translate::{Families, MissingFamily, TableLayout, Translation, family_name};
use basalt::env::Env;
use basalt::log::{Log, LogOptions};
use basalt::{
    Bytes, Db, Error, Family, FamilyOptions, ReadOptions, Replay, Result, Store, Tsn, WriteBatch,
    WriteOptions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::sequences::sequence_entry;

/// The key, in the catalog's family, of the last transaction that is applied. Only a store with a
/// log of its own has it.
const APPLIED: &[u8] = &[3];

/// A store whose families have the whole binlog.
pub struct Opened {
    pub store: Store,
    pub log: Log,
    pub history: SchemaHistory,
}

/// Returns the families of all tables and indexes of a catalog.
pub fn families_of(catalog: &Catalog, family: &dyn Fn(&str) -> Option<Family>) -> Families {
    let storages = catalog.tables().flat_map(|table| table.storages());
    storages
        .filter_map(|storage| Some((storage, family(&family_name(storage))?)))
        .collect()
}

/// Opens a store, and replays what it lacks.
pub fn open(env: &Env, dir: &Path, options: &DatabaseOptions) -> SqlResult<Opened> {
    match is_passive(options) {
        true => open_passive(env, dir, options),
        false => open_logged(env, dir, options),
    }
}

fn open_passive(env: &Env, dir: &Path, options: &DatabaseOptions) -> SqlResult<Opened> {
    let mut state: Option<ReplayState> = None;
    let mut replay = |run: &mut Replay, tsn: Tsn, record: Bytes| -> Result<()> {
        let state = match &mut state {
            Some(state) => state,
            None => {
                let mut history = SchemaHistory::default();
                let mut iter = run.iter_persisted(&run.default_family())?;
                iter.seek_to_first()?;
                while iter.valid() {
                    if iter.key() == APPLIED {
                        return Err(not_passive());
                    }
                    history.add_entry(iter.key(), iter.value())?;
                    iter.next()?;
                }
                state.insert(ReplayState::new(history, &options.families))
            }
        };
        let bytes = record.len() as u64;
        let batch = state.apply(run, tsn, &record)?;
        run.replay(basalt::Logged::at(tsn).bytes(bytes), batch)?;
        state.drop_families(run)
    };
    let (store, log) = Store::open_passive(env, dir, options.store_options(), BINLOG, &mut replay)?;
    let history = read_history(store.db())?;
    let applied = ReadOptions::default();
    if store
        .db()
        .get(&store.db().default_family(), APPLIED, &applied)?
        .is_some()
    {
        return Err(not_passive().into());
    }
    Ok(Opened {
        store,
        log,
        history,
    })
}

fn not_passive() -> Error {
    Error::invalid(
        "cannot open the database as a passive store: its store has a log of its own; set DatabaseOptions::storage_log to StorageLog::Own",
    )
}

fn open_logged(env: &Env, dir: &Path, options: &DatabaseOptions) -> SqlResult<Opened> {
    let store = Store::open(env, dir, options.store_options())?;
    let log = store
        .logs()?
        .open_or_create(BINLOG, LogOptions::default())?;
    let db = store.db().clone();
    let catalog = db.default_family();
    let applied = db.get(&catalog, APPLIED, &ReadOptions::default())?;
    let applied = match applied.as_deref().map(<[u8; 8]>::try_from) {
        None => 0,
        Some(Ok(tsn)) => Tsn::from_le_bytes(tsn),
        Some(Err(_)) => {
            let e = Error::new(
                basalt::ErrorKind::Corruption,
                "the number of the last applied transaction is damaged",
            );
            return Err(e.into());
        }
    };
    if applied > log.last().or(log.trimmed()).unwrap_or(0) {
        // A power cut took unsynced transactions from the binlog, and the log of the store kept
        // them. The binlog cannot be read across the gap, so it begins after it.
        log.trim(applied, &WriteOptions::SYNC)?;
    }
    let mut state = ReplayState::new(read_history(&db)?, &options.families);
    let mut target = LoggedTarget { db: &db };
    for record in log.iter(applied + 1) {
        let (tsn, record) = record?;
        let mut batch = state.apply(&mut target, tsn, &record)?;
        put_applied(&mut batch, &catalog, tsn)?;
        db.write(batch, &WriteOptions::UNSYNCED)?;
        state.drop_families(&mut target)?;
    }
    db.sync()?;
    let history = read_history(&db)?;
    Ok(Opened {
        store,
        log,
        history,
    })
}

/// Adds to a batch that its transaction is applied, for a store with a log of its own.
pub fn put_applied(batch: &mut WriteBatch, catalog: &Family, tsn: Tsn) -> Result<()> {
    batch.put(catalog, APPLIED, &tsn.to_le_bytes())
}

/// Reads the versions of all definitions.
fn read_history(db: &Db) -> Result<SchemaHistory> {
    let mut history = SchemaHistory::default();
    let mut iter = db.iter(&db.default_family(), &ReadOptions::default())?;
    iter.seek_to_first()?;
    while iter.valid() {
        history.add_entry(iter.key(), iter.value())?;
        iter.next()?;
    }
    Ok(history)
}

/// A store into which the binlog is replayed.
pub trait ReplayTarget {
    /// Returns a family.
    fn family(&self, name: &str) -> Option<Family>;
    /// Returns the family of the catalog.
    fn catalog_family(&self) -> Family;
    /// Returns the family for items of families that are gone; `None` if these items are left out.
    fn dropped_family(&self) -> Option<Family>;
    /// Creates a family.
    fn create_family(&mut self, name: &str, options: FamilyOptions) -> Result<Family>;
    /// Drops a family.
    fn drop_family(&mut self, family: &Family) -> Result<()>;
}

impl ReplayTarget for Replay {
    fn family(&self, name: &str) -> Option<Family> {
        Replay::family(self, name)
    }

    fn catalog_family(&self) -> Family {
        self.default_family()
    }

    fn dropped_family(&self) -> Option<Family> {
        Some(Replay::dropped_family(self))
    }

    fn create_family(&mut self, name: &str, options: FamilyOptions) -> Result<Family> {
        Replay::create_family(self, name, options)
    }

    fn drop_family(&mut self, family: &Family) -> Result<()> {
        Replay::drop_family(self, family)
    }
}

struct LoggedTarget<'a> {
    db: &'a Db,
}

impl ReplayTarget for LoggedTarget<'_> {
    fn family(&self, name: &str) -> Option<Family> {
        self.db.family(name)
    }

    fn catalog_family(&self) -> Family {
        self.db.default_family()
    }

    fn dropped_family(&self) -> Option<Family> {
        None
    }

    fn create_family(&mut self, name: &str, options: FamilyOptions) -> Result<Family> {
        self.db.create_family(name, options)
    }

    fn drop_family(&mut self, family: &Family) -> Result<()> {
        self.db.drop_family(family)
    }
}

/// The state of a replay.
struct ReplayState {
    /// Settings of the families that the replay makes.
    family_options: FamilyOptions,
    history: SchemaHistory,
    /// Families that were looked up; `None` for those that are gone.
    families: Families,
    gone: BTreeSet<u32>,
    layouts: BTreeMap<u32, (u64, Arc<TableLayout>)>,
    /// Families that the last record has dropped.
    to_drop: Vec<Family>,
}

/// Returns the numbers of the families that a change adds, and of those that it drops.
pub fn storage_changes(
    before: &dyn Fn(u32) -> Option<Object>,
    changes: &[Change],
) -> (Vec<u32>, Vec<u32>) {
    let storages = |object: Option<&Object>| -> BTreeSet<u32> {
        match object {
            Some(Object::Table(table)) => table.storages().collect(),
            _ => BTreeSet::new(),
        }
    };
    let (mut added, mut dropped) = (Vec::new(), Vec::new());
    for (id, object) in changes {
        let (old, new) = (storages(before(*id).as_ref()), storages(object.as_ref()));
        added.extend(new.difference(&old));
        dropped.extend(old.difference(&new));
    }
    (added, dropped)
}

impl ReplayState {
    fn new(history: SchemaHistory, family_options: &FamilyOptions) -> ReplayState {
        ReplayState {
            family_options: family_options.clone(),
            history,
            families: Families::new(),
            gone: BTreeSet::new(),
            layouts: BTreeMap::new(),
            to_drop: Vec::new(),
        }
    }

    /// Looks up a family, once.
    fn find(&mut self, target: &dyn ReplayTarget, storage: u32) {
        if self.families.contains_key(&storage) || self.gone.contains(&storage) {
            return;
        }
        match target.family(&family_name(storage)) {
            Some(family) => {
                self.families.insert(storage, family);
            }
            None => {
                self.gone.insert(storage);
            }
        }
    }

    /// Returns the items of a record, after families that it creates exist.
    fn apply(
        &mut self,
        target: &mut dyn ReplayTarget,
        tsn: Tsn,
        record: &Bytes,
    ) -> Result<WriteBatch> {
        let record = BinlogRecord::decode(record)?;
        if let RecordBody::Ddl { changes, .. } = &record.body {
            let before = |id| self.history.object(id, tsn - 1).cloned();
            let (added, dropped) = storage_changes(&before, changes);
            for storage in added {
                let name = family_name(storage);
                let family = match target.family(&name) {
                    Some(family) => family,
                    None => target.create_family(&name, self.family_options.clone())?,
                };
                self.gone.remove(&storage);
                self.families.insert(storage, family);
            }
            for storage in dropped {
                self.families.remove(&storage);
                self.to_drop.extend(target.family(&family_name(storage)));
            }
            // Versions that the record prunes stay here: older records may need them yet.
            self.history.apply(tsn, changes);
        }
        self.translate(target, tsn, &record.body)
    }

    fn translate(
        &mut self,
        target: &dyn ReplayTarget,
        tsn: Tsn,
        body: &RecordBody,
    ) -> Result<WriteBatch> {
        let catalog = target.catalog_family();
        let mut tables = Vec::new();
        match body {
            RecordBody::Transaction(changed) => {
                for events in changed {
                    let table = self.table(events.table, tsn)?;
                    table
                        .storages()
                        .for_each(|storage| self.find(target, storage));
                    let layout = self.layouts.entry(table.id);
                    let layout = match layout.or_insert_with(|| layout_of(&table)) {
                        (version, layout) if *version == table.version => layout.clone(),
                        stale => {
                            *stale = layout_of(&table);
                            stale.1.clone()
                        }
                    };
                    tables.push((table, layout, events));
                }
            }
            RecordBody::Backfill { table, .. } => {
                let table = self.table(*table, tsn)?;
                table
                    .storages()
                    .for_each(|storage| self.find(target, storage));
            }
            RecordBody::Ddl { .. } | RecordBody::Sequence { .. } => {}
        }
        let dropped = target.dropped_family();
        let without_family = match &dropped {
            Some(family) => MissingFamily::Replace(family),
            None => MissingFamily::Skip,
        };
        let mut items = Translation::new(&self.families, without_family);
        for (table, layout, events) in &tables {
            items.delete_entries(table, layout, &events.events)?;
        }
        for (table, layout, events) in &tables {
            items.add_rows(table, layout, &events.events)?;
        }
        match body {
            RecordBody::Transaction(_) => {}
            RecordBody::Ddl {
                changes, pruned, ..
            } => put_changes(&mut items, &catalog, tsn, changes, pruned)?,
            RecordBody::Sequence { id, next } => {
                let (key, value) = sequence_entry(*id, *next);
                items.put(&catalog, &key, Some(&value))?;
            }
            RecordBody::Backfill {
                table,
                index,
                entries,
            } => {
                let table = self.table(*table, tsn)?;
                let index = table.index(*index).ok_or_else(|| missing(*index, tsn))?;
                items.add_entries(index.storage, entries)?;
            }
        }
        Ok(items.finish())
    }

    fn table(&self, id: u32, tsn: Tsn) -> Result<Arc<crate::catalog::TableDef>> {
        let table = self.history.table(id, tsn);
        table.cloned().ok_or_else(|| missing(id, tsn))
    }

    /// Drops the families that the last record has dropped.
    fn drop_families(&mut self, target: &mut dyn ReplayTarget) -> Result<()> {
        for family in std::mem::take(&mut self.to_drop) {
            target.drop_family(&family)?;
        }
        Ok(())
    }
}

fn layout_of(table: &crate::catalog::TableDef) -> (u64, Arc<TableLayout>) {
    (table.version, Arc::new(TableLayout::of(table)))
}

fn missing(id: u32, tsn: Tsn) -> Error {
    Error::new(
        basalt::ErrorKind::Corruption,
        format!("transaction {tsn} changes object {id}, which the catalog did not have then"),
    )
}

/// Adds the items of changed definitions.
pub fn put_changes(
    items: &mut Translation<'_>,
    catalog: &Family,
    tsn: Tsn,
    changes: &[Change],
    pruned: &[(u32, Tsn)],
) -> Result<()> {
    for (id, object) in changes {
        let value = definition_value(object.as_ref());
        items.put(catalog, &definition_key(*id, tsn), Some(&value))?;
    }
    for (id, tsn) in pruned {
        items.put(catalog, &definition_key(*id, *tsn), None)?;
    }
    Ok(())
}
