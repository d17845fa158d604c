//! [`IndexBuild`]: the entries of a family that is being filled, in pieces for the binlog.

use crate::catalog::{IndexDef, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::schema::Schema;
use crate::storage::Storage;
use basalt::{Bytes, ReadOptions};
use std::collections::BTreeSet;

/// Maximum number of entries of one binlog record.
const MAX_ENTRIES: usize = 4096;
/// Maximum bytes of the entries of one binlog record.
const MAX_BYTES: usize = 1 << 20;

/// Fills the family of an index that is not ready.
pub struct IndexBuild<'s> {
    storage: &'s Storage,
    schema: &'s Schema,
    table: &'s TableDef,
    index: &'s IndexDef,
    entries: Vec<(Bytes, Bytes)>,
    bytes: usize,
    /// Keys of the entries that no other entry may have.
    unique: BTreeSet<Bytes>,
}

impl<'s> IndexBuild<'s> {
    /// Begins to fill the family of an index.
    pub fn new(
        storage: &'s Storage,
        schema: &'s Schema,
        table: &'s TableDef,
        index: &'s IndexDef,
    ) -> IndexBuild<'s> {
        IndexBuild {
            storage,
            schema,
            table,
            index,
            entries: Vec::new(),
            bytes: 0,
            unique: BTreeSet::new(),
        }
    }

    /// Adds an entry. With `unique`, no other entry may have its key; `unique` returns the columns
    /// and values of the key for the error.
    ///
    /// Errors: 23505; those of the binlog and of the store.
    pub fn add(
        &mut self,
        key: Bytes,
        value: Bytes,
        unique: Option<&dyn Fn() -> String>,
    ) -> SqlResult<()> {
        if let Some(key_text) = unique {
            let family = self.schema.family(self.index.storage)?;
            let is_new = self.unique.insert(key.clone());
            let db = self.storage.db();
            if !is_new || db.get(family, &key, &ReadOptions::default())?.is_some() {
                return Err(SqlError::new(
                    SqlState::UNIQUE_VIOLATION,
                    format!("could not create unique index \"{}\"", self.index.name),
                )
                .with_detail(format!("Key {} is duplicated.", key_text()))
                .with_table(&self.table.name)
                .with_constraint(&self.index.name));
            }
        }
        self.bytes += key.len() + value.len();
        self.entries.push((key, value));
        match self.entries.len() >= MAX_ENTRIES || self.bytes >= MAX_BYTES {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// Writes the last entries.
    ///
    /// Errors: those of the binlog and of the store.
    pub fn finish(mut self) -> SqlResult<()> {
        match self.entries.is_empty() {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> SqlResult<()> {
        let entries = std::mem::take(&mut self.entries);
        self.unique.clear();
        self.bytes = 0;
        let (table, index) = (self.table.id, self.index.id);
        let storage = self.index.storage;
        self.storage
            .backfill(self.schema, table, index, storage, entries)
    }
}
