//! [`Storage`]: the store of a database with its binlog, from the opening to the close.

mod commit;
mod replay;
mod sequences;

pub use commit::{KeyChecks, ReferenceCheck, ReferenceSide, TransactionWork, check_reference};

use crate::catalog::{Object, ObjectId, TableDef};
use crate::committer::{Committer, StorageLog};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::history::{Change, SchemaHistory};
use crate::options::DatabaseOptions;
use crate::schema::Schema;
use crate::translate::family_name;
use basalt::env::Env;
use basalt::env::sync::{Condvar, Mutex, MutexGuard, RwLock};
use basalt::{
    Db, Family, Store, Transaction, TransactionDb, TransactionDbOptions, TransactionOptions,
};
use sequences::Sequences;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Name of the binlog among the logs of the store.
pub const BINLOG: &str = "binlog";

/// Longest wait of a commit for the commits of others that have written the same keys.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of keys that commits lock at the same time.
const MAX_LOCKS: usize = 1 << 26;

/// The store of a database with its binlog.
pub struct Storage {
    env: Env,
    store: Store,
    db: Db,
    transactions: TransactionDb,
    committer: Committer,
    /// The present schema. A commit holds the lock for reading until its items are visible. A
    /// change of the schema holds it for writing, so no commit is under way meanwhile.
    schema: RwLock<Arc<Schema>>,
    history: Mutex<SchemaHistory>,
    sequences: Sequences,
    /// Held while the catalog is changed: one change at a time.
    changing: Mutex<()>,
    blocked: BlockedTables,
    options: DatabaseOptions,
}

/// Tables whose commits wait for a change of their definition.
#[derive(Default)]
struct BlockedTables {
    tables: Mutex<BTreeSet<ObjectId>>,
    released: Condvar,
}

/// Excludes other catalog changes until it is dropped. Commits to tables passed to
/// [`block`](Self::block) wait until then.
pub struct SchemaChange<'s> {
    storage: &'s Storage,
    blocked: Vec<ObjectId>,
    _changing: MutexGuard<'s, ()>,
}

impl SchemaChange<'_> {
    /// Blocks commits to the tables. Returns when all commits to them that had begun are finished.
    pub fn block(&mut self, tables: impl IntoIterator<Item = ObjectId>) {
        let mut blocked = self.storage.blocked.tables.lock();
        for table in tables {
            if blocked.insert(table) {
                self.blocked.push(table);
            }
        }
        drop(blocked);
        // A commit holds the lock for reading.
        drop(self.storage.schema.write());
    }
}

impl Drop for SchemaChange<'_> {
    fn drop(&mut self) {
        let mut blocked = self.storage.blocked.tables.lock();
        for table in &self.blocked {
            blocked.remove(table);
        }
        self.storage.blocked.released.notify_all();
    }
}

impl Storage {
    /// Opens the store in a directory, or makes one, and replays what it lacks of the binlog.
    ///
    /// Errors: those of the store and of the log engine; `Corruption` for damaged records.
    pub fn open(env: &Env, dir: &Path, options: &DatabaseOptions) -> SqlResult<Storage> {
        let opened = replay::open(env, dir, options)?;
        let transaction_options = TransactionDbOptions::default()
            .lock_timeout(LOCK_TIMEOUT)
            .max_locks(MAX_LOCKS)
            .check_unlocked_writes(false);
        let db = opened.store.db().clone();
        let transactions = TransactionDb::new(&db, transaction_options)?;
        let last = opened.log.last().or(opened.log.trimmed()).unwrap_or(0);
        let logs = opened.store.logs()?;
        let catalog = opened.history.catalog(last);
        let families = replay::families_of(&catalog, &|name| db.family(name));
        let schema = Schema::new(catalog, families, db.default_family());
        let sequences = Sequences::read(&db, &schema)?;
        let storage = Storage {
            env: env.clone(),
            committer: Committer::new(
                db.clone(),
                logs,
                opened.log,
                options.storage_log,
                last + 1,
                options.binlog_retention_bytes,
            ),
            store: opened.store,
            db,
            transactions,
            schema: RwLock::new(Arc::new(schema)),
            history: Mutex::new(opened.history),
            sequences,
            changing: Mutex::default(),
            blocked: BlockedTables::default(),
            options: options.clone(),
        };
        for family in storage.unnamed_families() {
            // The process died after the change of the catalog and before the drop.
            storage.db.drop_family(&family)?;
        }
        storage.remove_unfinished()?;
        Ok(storage)
    }

    /// Returns the families that belong to no table or index.
    pub fn unnamed_families(&self) -> Vec<Family> {
        // A change of the catalog makes and drops families under the lock.
        unnamed_families(&self.db, &self.schema.read())
    }

    /// Removes indexes and tables whose building has ended early.
    ///
    /// Errors: those of the binlog and of the store.
    pub fn remove_unfinished(&self) -> SqlResult<()> {
        let schema = self.schema();
        let mut tables = schema.catalog.tables();
        if let Some(table) = tables.find(|table| !table.is_ready) {
            let owned = schema.catalog.objects().filter(|object| match object {
                Object::Sequence(sequence) => sequence.owner.is_some_and(|o| o.0 == table.id),
                _ => false,
            });
            let owned = owned.map(|sequence| (sequence.id(), None));
            let changes = owned.chain([(table.id, None)]).collect();
            // Readers of the binlog have seen that the table was created.
            let statement = format!("DROP TABLE \"{}\"", table.name.replace('"', "\"\""));
            self.change_schema(&statement, |_| Ok(Some(changes)))?;
        }
        let unfinished = |table: &&Arc<TableDef>| table.indexes.iter().any(|i| !i.is_ready);
        self.change_schema("", |schema| {
            let tables = schema.catalog.tables().filter(unfinished);
            let changes: Vec<Change> = tables
                .map(|table| {
                    let mut table = TableDef::clone(table);
                    table.remove_unready_indexes();
                    table.version += 1;
                    (table.id, Some(Object::Table(Arc::new(table))))
                })
                .collect();
            Ok(Some(changes).filter(|changes| !changes.is_empty()))
        })?;
        Ok(())
    }

    /// Returns the environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the families' store.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Returns the store with its logs.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the committer.
    pub fn committer(&self) -> &Committer {
        &self.committer
    }

    /// Returns the settings.
    pub fn options(&self) -> &DatabaseOptions {
        &self.options
    }

    /// Returns the present schema.
    pub fn schema(&self) -> Arc<Schema> {
        self.schema.read().clone()
    }

    /// Returns the versions of all definitions, as of now.
    pub fn history(&self) -> SchemaHistory {
        self.history.lock().clone()
    }

    /// Returns the right to change the catalog, once no other change is under way.
    pub fn begin_change(&self) -> SchemaChange<'_> {
        SchemaChange {
            _changing: self.changing.lock(),
            storage: self,
            blocked: Vec::new(),
        }
    }

    /// Begins a transaction: a snapshot, and the schema of the same moment.
    ///
    /// Errors: those of [`TransactionDb::begin`].
    pub fn begin(&self) -> SqlResult<(Transaction, Arc<Schema>)> {
        let schema = self.schema.read();
        let transaction = self.transactions.begin(&TransactionOptions::optimistic())?;
        Ok((transaction, schema.clone()))
    }

    /// Closes the store. A clean close leaves nothing to replay.
    ///
    /// Errors: those of [`Store::close`].
    pub fn close(&self) -> SqlResult<()> {
        self.store.close().map_err(SqlError::from)
    }
}

/// Returns the error of a transaction that another one has overtaken.
fn conflict(what: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::SERIALIZATION_FAILURE, what).with_hint("run the transaction again")
}

/// Returns the families of a store that belong to no table or index of a schema.
fn unnamed_families(db: &Db, schema: &Schema) -> Vec<Family> {
    let storages = schema.catalog.tables().flat_map(|table| table.storages());
    let named: BTreeSet<String> = storages.map(family_name).collect();
    let mut families = db.families();
    families.retain(|name| name != "default" && !named.contains(name));
    families.iter().filter_map(|name| db.family(name)).collect()
}

/// Says whether the store is passive.
fn is_passive(options: &DatabaseOptions) -> bool {
    options.storage_log == StorageLog::None
}
