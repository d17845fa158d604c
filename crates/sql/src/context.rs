//! [`SessionContext`]: what functions of SQL know of their session.

use crate::catalog::{Object, ObjectId, SequenceDef};
use crate::definition;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::functions::FunctionContext;
use crate::schema::Schema;
use crate::storage::Storage;
use basalt::env::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};

/// Name of the database. A directory has one database.
pub const DATABASE: &str = "basalt";

/// Variables of a session by their names in lower case, shared with the session.
pub type Settings = Arc<Mutex<BTreeMap<String, String>>>;

/// What functions of SQL know of their session. Functions run while the state of the session is
/// locked, so this is apart from it.
pub struct SessionContext {
    /// The store.
    pub storage: Arc<Storage>,
    /// Name of the user.
    pub user: String,
    /// Begin of the transaction, in microseconds since 1970.
    transaction_us: AtomicI64,
    /// The first error of the running statement.
    raised: Mutex<Option<SqlError>>,
    /// The transaction has taken or set values of sequences that its user sees.
    has_sequence_values: AtomicBool,
    /// The last value that the session took from each sequence.
    last_values: Mutex<BTreeMap<ObjectId, i64>>,
    /// The variables of the session.
    settings: Settings,
    /// The schema of the running statement. The statement keeps it.
    schema: Mutex<Weak<Schema>>,
}

impl SessionContext {
    /// Returns the context of a new session.
    pub fn new(storage: Arc<Storage>, user: String) -> SessionContext {
        SessionContext {
            storage,
            user,
            transaction_us: AtomicI64::new(0),
            raised: Mutex::default(),
            has_sequence_values: AtomicBool::new(false),
            last_values: Mutex::default(),
            settings: Settings::default(),
            schema: Mutex::default(),
        }
    }

    /// Returns the variables of the session.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Notes the schema of the statement that begins.
    pub fn set_schema(&self, schema: &Arc<Schema>) {
        *self.schema.lock() = Arc::downgrade(schema);
    }

    /// Returns the time in microseconds since 1970.
    pub fn now_us(&self) -> i64 {
        self.storage.env().clock().wall_ms() as i64 * 1000
    }

    /// Notes that a transaction begins now.
    pub fn begin_transaction(&self) {
        self.transaction_us.store(self.now_us(), Ordering::Relaxed);
    }

    /// Returns `true` once if the transaction has taken or set values of sequences.
    pub fn take_sequence_values(&self) -> bool {
        self.has_sequence_values.swap(false, Ordering::Relaxed)
    }

    /// Returns the begin of the transaction, in microseconds since 1970.
    pub fn transaction_us(&self) -> i64 {
        self.transaction_us.load(Ordering::Relaxed)
    }

    /// Keeps an error, if it is the first one of the statement.
    pub fn raise(&self, error: SqlError) {
        self.raised.lock().get_or_insert(error);
    }

    /// Takes the error of the statement.
    pub fn take_error(&self) -> Option<SqlError> {
        self.raised.lock().take()
    }

    /// Returns the bytes of families, in tables and memtables.
    fn storage_bytes(
        &self,
        schema: &Schema,
        storages: impl Iterator<Item = ObjectId>,
    ) -> SqlResult<i64> {
        let mut bytes = 0;
        for storage in storages {
            let family = schema.family(storage)?;
            for size in self
                .storage
                .db()
                .approximate_sizes(family, &[(None, None)])?
            {
                bytes += size.table_bytes + size.memtable_bytes;
            }
        }
        Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    fn sequence(&self, id: ObjectId) -> SqlResult<Arc<SequenceDef>> {
        let schema = self.storage.schema();
        match schema.catalog.by_id(id) {
            Some(Object::Sequence(sequence)) => Ok(sequence.clone()),
            _ => Err(SqlError::new(
                SqlState::UNDEFINED_OBJECT,
                format!(
                    "the sequence with number {id} does not exist any more; another session dropped it"
                ),
            )),
        }
    }

    /// Returns the next value of a sequence.
    ///
    /// Errors: 42704 if it does not exist; 55000 if it has no further value; those of the binlog.
    pub fn next_value(&self, id: ObjectId) -> SqlResult<i64> {
        let sequence = self.sequence(id)?;
        let value = self.storage.next_value(&sequence)?;
        self.has_sequence_values.store(true, Ordering::Relaxed);
        self.last_values.lock().insert(id, value);
        Ok(value)
    }

    /// Returns the last value that this session took from a sequence.
    ///
    /// Errors: 42704 if it does not exist; 55000 if the session took none.
    pub fn last_value(&self, id: ObjectId) -> SqlResult<i64> {
        let sequence = self.sequence(id)?;
        self.last_values.lock().get(&id).copied().ok_or_else(|| {
            SqlError::new(
                SqlState::OBJECT_NOT_IN_STATE,
                format!(
                    "currval of sequence \"{}\" is not yet defined in this session",
                    sequence.name
                ),
            )
        })
    }

    /// Sets the next value of a sequence: the one after `value`, or `value` if `is_called` is
    /// `false`.
    ///
    /// Errors: 42704 if it does not exist; those of the binlog.
    pub fn set_value(&self, id: ObjectId, value: i64, is_called: bool) -> SqlResult<()> {
        let sequence = self.sequence(id)?;
        let next = match is_called {
            true => value.checked_add(sequence.increment),
            false => Some(value),
        };
        self.storage.set_sequence(id, next)?;
        self.has_sequence_values.store(true, Ordering::Relaxed);
        if is_called {
            self.last_values.lock().insert(id, value);
        }
        Ok(())
    }
}

impl FunctionContext for SessionContext {
    fn transaction_time_us(&self) -> i64 {
        self.transaction_us()
    }

    fn clock_us(&self) -> i64 {
        self.now_us()
    }

    fn random(&self) -> u64 {
        self.storage.env().random().next_u64()
    }

    fn nextval(&self, sequence: ObjectId) -> SqlResult<i64> {
        self.next_value(sequence)
    }

    fn currval(&self, sequence: ObjectId) -> SqlResult<i64> {
        self.last_value(sequence)
    }

    fn setval(&self, sequence: ObjectId, value: i64, is_called: bool) -> SqlResult<i64> {
        self.set_value(sequence, value, is_called)?;
        Ok(value)
    }

    fn raise(&self, error: SqlError) {
        SessionContext::raise(self, error);
    }

    fn user(&self) -> String {
        self.user.clone()
    }

    fn database(&self) -> String {
        DATABASE.to_owned()
    }

    fn schema(&self) -> Arc<Schema> {
        let schema = self.schema.lock().upgrade();
        schema.unwrap_or_else(|| self.storage.schema())
    }

    fn setting(&self, name: &str) -> Option<String> {
        self.settings.lock().get(name).cloned()
    }

    fn relation_bytes(&self, oid: i64) -> SqlResult<i64> {
        let schema = FunctionContext::schema(self);
        let id = definition::object_id(oid);
        let table = id.and_then(|id| schema.catalog.table_by_id(id));
        let index = definition::find_index(&schema.catalog, oid);
        let storages: Vec<ObjectId> = match (table, index) {
            (Some(table), _) => table.storages().collect(),
            (None, Some((table, index))) if index.primary => vec![table.storage],
            (None, Some((table, _))) => {
                let index = id.and_then(|id| table.index(id));
                index.map(|index| index.storage).into_iter().collect()
            }
            (None, None) => Vec::new(),
        };
        self.storage_bytes(&schema, storages.into_iter())
    }

    fn database_bytes(&self) -> SqlResult<i64> {
        let schema = FunctionContext::schema(self);
        let storages: Vec<ObjectId> = schema.families.keys().copied().collect();
        self.storage_bytes(&schema, storages.into_iter())
    }
}
