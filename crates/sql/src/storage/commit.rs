//! The commit of a transaction, and of a change of the catalog.

use super::replay::{put_applied, put_changes, storage_changes};
use super::{Storage, conflict, unnamed_families};
use crate::catalog::{ObjectId, SequenceDef, TableDef};
use crate::committer::{Items, StorageLog};
use crate::error::{SqlError, SqlResult};
use crate::history::Change;
use crate::record::{BinlogRecord, RecordBody, RowEvent, TableEvents};
use crate::schema::Schema;
use crate::translate::{MissingFamily, Translation, family_name};
use crate::write_set::WriteSet;
use basalt::env::sync::RwLockReadGuard;
use basalt::{Bytes, Db, ErrorKind, KeyCheck, ReadOptions, Transaction, Tsn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A transaction that has not ended.
pub struct TransactionWork {
    /// The snapshot, and the locks of the commit.
    pub transaction: Transaction,
    /// The schema as of the snapshot.
    pub schema: Arc<Schema>,
    /// The writes, of rows and of index entries.
    pub writes: WriteSet,
    /// The tables that were written or locked.
    pub tables: BTreeMap<ObjectId, Arc<TableDef>>,
    /// The checks of the commit other than those of the writes.
    pub checks: KeyChecks,
}

/// The checks of a commit other than those of its writes.
#[derive(Default)]
pub struct KeyChecks {
    /// Keys of rows that were read FOR UPDATE, by family: they must be unchanged since the
    /// snapshot.
    pub locked: BTreeSet<(ObjectId, Bytes)>,
    /// What must hold of other tables.
    references: Vec<ReferenceCheck>,
}

/// A check of a foreign key for one value: if there are children, there must be a parent.
#[derive(Debug, Clone)]
pub struct ReferenceCheck {
    /// The family and the key of the parent.
    pub parent: (ObjectId, Bytes),
    /// The family and the prefix of the keys of the children.
    pub children: (ObjectId, Bytes),
    /// Which side a statement has written.
    pub written: ReferenceSide,
    /// The error if the check fails.
    pub error: SqlError,
}

/// A side of a foreign key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceSide {
    /// A parent row was deleted, or its key changed.
    Parent,
    /// A child row was inserted, or its foreign key changed.
    Child,
}

impl KeyChecks {
    fn is_empty(&self) -> bool {
        self.locked.is_empty() && self.references.is_empty()
    }

    /// Adds a check of a foreign key.
    pub fn add(&mut self, check: ReferenceCheck) {
        self.references.push(check);
    }

    /// Returns the number of checks of foreign keys, to which [`KeyChecks::truncate`] returns.
    pub fn len(&self) -> usize {
        self.references.len()
    }

    /// Removes the checks after the first `len`: their statements were undone.
    pub fn truncate(&mut self, len: usize) {
        self.references.truncate(len);
    }

    /// Returns the checks after the first `from`.
    pub fn since(&self, from: usize) -> &[ReferenceCheck] {
        &self.references[from..]
    }
}

impl Storage {
    /// Commits a transaction. Returns its TSN, or `None` if it has changed nothing.
    ///
    /// Errors: 40001 if another transaction has changed the same rows or the definition of a table
    /// since the snapshot; 23503 if another transaction has deleted a parent or added a child;
    /// those of the binlog and of the store.
    pub fn commit(&self, work: TransactionWork, synced: bool) -> SqlResult<Option<Tsn>> {
        let TransactionWork {
            mut transaction,
            schema,
            writes,
            tables,
            checks,
        } = work;
        if writes.is_empty() && checks.is_empty() {
            return Ok(None);
        }
        // Until the guard is dropped, the schema stays as it is.
        let current = self.schema_to_commit(&tables);
        for table in tables.values() {
            if !current.has_same(table) {
                return Err(conflict(format!(
                    "the definition of table {:?} was changed by another session",
                    table.name
                )));
            }
        }
        self.committer.apply_pending()?;
        check_keys(&mut transaction, &schema, &writes, &tables, &checks)?;
        let prepared = transaction.prepare().map_err(|e| match e.kind() {
            ErrorKind::Conflict | ErrorKind::Busy | ErrorKind::Deadlock => {
                conflict("could not serialize access due to concurrent update")
                    .with_detail(e.to_string())
            }
            _ => e.into(),
        })?;
        if self.committer.has_pending() {
            // A transaction whose locks this one has waited for is in the binlog and not in the
            // store, so the check of the keys did not see it.
            return Err(conflict("an earlier transaction is not applied yet"));
        }
        self.check_references(&schema, &writes, &checks)?;
        let mut changed = Vec::new();
        for table in tables.values() {
            let mut events = Vec::new();
            for (key, written) in writes.family(table.storage) {
                let (before, after) = (written.before.as_ref(), written.after.as_ref());
                events.extend(RowEvent::between(table, key.clone(), before, after)?);
            }
            if !events.is_empty() {
                let table = table.id;
                changed.push(TableEvents { table, events });
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        let mut items = Translation::new(&current.families, MissingFamily::Refuse);
        for with_layouts in [Translation::delete_entries, Translation::add_rows] {
            for events in &changed {
                let table = &tables[&events.table];
                let layout = current.layout(events.table);
                let layout = layout.expect("a table of the schema has a layout");
                with_layouts(&mut items, table, layout, &events.events)?;
            }
        }
        let record = BinlogRecord {
            commit_ms: self.env.clock().wall_ms(),
            body: RecordBody::Transaction(changed),
        };
        let items = self.with_applied(items.finish(), &current);
        let committed = self.committer.commit(record.encode(), items, synced);
        if committed.is_ok() {
            prepared.applied();
        }
        Ok(Some(committed?))
    }

    /// Returns the present schema, once none of the tables is blocked.
    fn schema_to_commit(
        &self,
        tables: &BTreeMap<ObjectId, Arc<TableDef>>,
    ) -> RwLockReadGuard<'_, Arc<Schema>> {
        loop {
            let schema = self.schema.read();
            let mut blocked = self.blocked.tables.lock();
            if !tables.keys().any(|table| blocked.contains(table)) {
                return schema;
            }
            drop(schema);
            self.blocked.released.wait(&mut blocked);
        }
    }

    /// Adds the number of the transaction to its items, in a store that has a log of its own.
    fn with_applied(&self, batch: basalt::WriteBatch, schema: &Schema) -> Items {
        match self.options.storage_log {
            StorageLog::None => Items::Ready(batch),
            StorageLog::Own { .. } => {
                let catalog = schema.catalog_family.clone();
                let mut batch = batch;
                Items::Late(Box::new(move |tsn| {
                    put_applied(&mut batch, &catalog, tsn)?;
                    Ok(batch)
                }))
            }
        }
    }

    /// Checks parents and children as of now. The locks are held, so that transactions that would
    /// change them are either visible or come later.
    fn check_references(
        &self,
        schema: &Schema,
        writes: &WriteSet,
        checks: &KeyChecks,
    ) -> SqlResult<()> {
        let newest = ReadOptions::default();
        checks
            .references
            .iter()
            .try_for_each(|check| check_reference(&self.db, schema, writes, check, &newest))
    }

    /// Changes the catalog. `change` gets the present schema, and returns the new definitions, or
    /// `None` if nothing is to be done. No commit is under way meanwhile. Returns the new schema.
    ///
    /// Errors: those of `change`, of the binlog, and of the store.
    pub fn change_schema(
        &self,
        statement: &str,
        change: impl FnOnce(&Schema) -> SqlResult<Option<Vec<Change>>>,
    ) -> SqlResult<Arc<Schema>> {
        let mut schema = self.schema.write();
        let Some(changes) = change(&schema)? else {
            return Ok(schema.clone());
        };
        let mut history = self.history.lock();
        let points = match self.options.storage_log {
            StorageLog::None => self.db.persistence_points()?.global,
            StorageLog::Own { .. } => self.committer.last(),
        };
        let trimmed = self.committer.log().trimmed().unwrap_or(0);
        let pruned = history.unneeded(points.min(trimmed));
        if !pruned.is_empty() {
            // A power cut must not bring back records whose definitions are gone.
            self.store.logs()?.sync()?;
        }
        let before = |id| schema.catalog.by_id(id).cloned();
        let (added, _) = storage_changes(&before, &changes);
        let record = BinlogRecord {
            commit_ms: self.env.clock().wall_ms(),
            body: RecordBody::Ddl {
                statement: statement.to_owned(),
                changes: changes.clone(),
                pruned: pruned.clone(),
            },
        };
        let (db, catalog) = (self.db.clone(), schema.catalog_family.clone());
        let (families, own_log) = (self.options.families.clone(), self.options.storage_log);
        let (late_changes, late_pruned) = (changes.clone(), pruned.clone());
        let items = Items::Late(Box::new(move |tsn| {
            for storage in added {
                let name = family_name(storage);
                if db.family(&name).is_none() {
                    db.create_family(&name, families.clone())?;
                }
            }
            let none = crate::translate::Families::new();
            let mut items = Translation::new(&none, MissingFamily::Refuse);
            put_changes(&mut items, &catalog, tsn, &late_changes, &late_pruned)?;
            let mut items = items.finish();
            if own_log != StorageLog::None {
                put_applied(&mut items, &catalog, tsn)?;
            }
            Ok(items)
        }));
        let tsn = self.committer.commit(record.encode(), items, true)?;
        history.apply(tsn, &changes);
        history.remove(&pruned);
        let mut catalog = schema.catalog.clone();
        for (id, object) in changes {
            match object {
                Some(object) => catalog.put(object),
                None => {
                    catalog.remove(id);
                }
            }
        }
        catalog.version = tsn;
        let families = super::replay::families_of(&catalog, &|name| self.db.family(name));
        *schema = Arc::new(Schema::new(
            catalog,
            families,
            schema.catalog_family.clone(),
        ));
        for family in unnamed_families(&self.db, &schema) {
            // Readers that have the family yet read to their end. The change is in the binlog: if
            // the drop fails, the next change or the next opening does it.
            let _ = self.db.drop_family(&family);
        }
        Ok(schema.clone())
    }

    /// Adds entries to an index that is being built.
    ///
    /// Errors: those of the binlog and of the store.
    pub fn backfill(
        &self,
        schema: &Schema,
        table: ObjectId,
        index: ObjectId,
        storage: ObjectId,
        entries: Vec<(Bytes, Bytes)>,
    ) -> SqlResult<()> {
        let mut items = Translation::new(&schema.families, MissingFamily::Refuse);
        items.add_entries(storage, &entries)?;
        let record = BinlogRecord {
            commit_ms: self.env.clock().wall_ms(),
            body: RecordBody::Backfill {
                table,
                index,
                entries,
            },
        };
        let items = self.with_applied(items.finish(), schema);
        self.committer.commit(record.encode(), items, false)?;
        Ok(())
    }

    /// Returns the next number of a sequence.
    ///
    /// Errors: 55000 if it has no further number; those of the binlog and of the store.
    pub fn next_value(&self, sequence: &SequenceDef) -> SqlResult<i64> {
        let now = self.env.clock().wall_ms();
        self.sequences.next(&self.committer, now, sequence)
    }

    /// Sets the next number of a sequence.
    ///
    /// Errors: those of the binlog and of the store.
    pub fn set_sequence(&self, sequence: ObjectId, next: Option<i64>) -> SqlResult<()> {
        let now = self.env.clock().wall_ms();
        self.sequences.set(&self.committer, now, sequence, next)
    }
}

/// Tells the transaction which keys its commit locks and checks.
fn check_keys(
    transaction: &mut Transaction,
    schema: &Schema,
    writes: &WriteSet,
    tables: &BTreeMap<ObjectId, Arc<TableDef>>,
    checks: &KeyChecks,
) -> SqlResult<()> {
    for table in tables.values() {
        let family = schema.family(table.storage)?;
        for (key, _) in writes.family(table.storage) {
            transaction.check_key(family, key, KeyCheck::Write)?;
        }
        // The key of an entry of another index ends with the key of its row.
        for index in table.indexes.iter().filter(|index| index.unique) {
            let family = schema.family(index.storage)?;
            for (key, _) in writes.family(index.storage) {
                transaction.check_key(family, key, KeyCheck::Write)?;
            }
        }
    }
    for (storage, key) in &checks.locked {
        transaction.check_key(schema.family(*storage)?, key, KeyCheck::Read)?;
    }
    for check in &checks.references {
        if check.written == ReferenceSide::Child {
            let (storage, key) = &check.parent;
            transaction.check_key(schema.family(*storage)?, key, KeyCheck::Lock)?;
        }
    }
    Ok(())
}

/// Checks a foreign key in what `options` reads, with the transaction's own writes. A later
/// statement may have taken back what the check is about, so the side that was not written is read,
/// too, before the check fails.
///
/// Errors: the error of the check; those of a read.
pub fn check_reference(
    db: &Db,
    schema: &Schema,
    writes: &WriteSet,
    check: &ReferenceCheck,
    options: &ReadOptions,
) -> SqlResult<()> {
    let has_parent = || has_parent(db, schema, writes, check, options);
    let has_children = || has_children(db, schema, writes, check, options);
    let holds = match check.written {
        ReferenceSide::Child => has_parent()? || !has_children()?,
        ReferenceSide::Parent => !has_children()? || has_parent()?,
    };
    match holds {
        true => Ok(()),
        false => Err(check.error.clone()),
    }
}

fn has_parent(
    db: &Db,
    schema: &Schema,
    writes: &WriteSet,
    check: &ReferenceCheck,
    options: &ReadOptions,
) -> SqlResult<bool> {
    let (storage, key) = &check.parent;
    match writes.get(*storage, key) {
        Some(written) => Ok(written.after.is_some()),
        None => Ok(db.get(schema.family(*storage)?, key, options)?.is_some()),
    }
}

fn has_children(
    db: &Db,
    schema: &Schema,
    writes: &WriteSet,
    check: &ReferenceCheck,
    options: &ReadOptions,
) -> SqlResult<bool> {
    let (storage, prefix) = (check.children.0, &check.children.1);
    let upper = crate::keys::next_prefix(prefix);
    let own = writes.range(storage, prefix, upper.as_deref());
    if own.iter().any(|(_, after)| after.is_some()) {
        return Ok(true);
    }
    let options = options.clone().lower_bound(Some(prefix.to_vec()));
    let options = options.upper_bound(upper).keys_only(true);
    let mut iter = db.iter(schema.family(storage)?, &options)?;
    iter.seek_to_first()?;
    while iter.valid() {
        if writes.get(storage, iter.key()).is_none() {
            return Ok(true);
        }
        iter.next()?;
    }
    Ok(false)
}
