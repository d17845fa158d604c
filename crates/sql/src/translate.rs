//! From changes of rows to items of families: the translation of PASV (section 4).
//!
//! A commit and a replay call the same functions with the same events, so both make the same items
//! in the same order.

use crate::catalog::{ObjectId, TableDef};
use crate::codec::Row;
use crate::keys::{KeyPart, encode_key_value};
use crate::record::{RowChange, RowEvent};
use crate::value::Value;
use basalt::{Bytes, Family, Result, WriteBatch};
use std::collections::BTreeMap;

/// The families of a store by the number in their definitions.
pub type Families = BTreeMap<ObjectId, Family>;

/// Returns the name of a family.
pub fn family_name(storage: ObjectId) -> String {
    format!("object-{storage}")
}

/// How the rows of a table become items. It is made once for each version of a table.
#[derive(Debug, Clone)]
pub struct TableLayout {
    /// The columns of the primary key.
    pub key: Vec<KeyPart>,
    /// The indexes.
    pub indexes: Vec<IndexLayout>,
}

/// How the rows of a table become entries of an index.
#[derive(Debug, Clone)]
pub struct IndexLayout {
    /// Number of the index's family.
    pub storage: ObjectId,
    /// The columns of the index.
    pub parts: Vec<KeyPart>,
    /// No two rows have the same values, unless one is NULL.
    pub unique: bool,
}

/// An entry of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its key.
    pub key: Vec<u8>,
    /// The key has no primary key at its end: no other row may have it.
    pub is_unique: bool,
}

impl TableLayout {
    /// Returns the layout of a table.
    pub fn of(table: &TableDef) -> TableLayout {
        let index = |index: &crate::catalog::IndexDef| IndexLayout {
            storage: index.storage,
            parts: KeyPart::of_index(table, index),
            unique: index.unique,
        };
        TableLayout {
            key: KeyPart::of_primary_key(table),
            indexes: table.indexes.iter().map(index).collect(),
        }
    }
}

impl IndexLayout {
    /// Returns the entry of a row.
    ///
    /// Errors: `InvalidArgument` for a value that its column does not have.
    pub fn entry(&self, values: &[Value], primary_key: &[u8]) -> Result<IndexEntry> {
        let mut key = Vec::with_capacity(self.parts.len() * 9 + primary_key.len());
        let mut has_null = false;
        for part in &self.parts {
            let value = &values[usize::from(part.column)];
            has_null |= value.is_null();
            encode_key_value(&mut key, part, value.as_ref())?;
        }
        let is_unique = self.unique && !has_null;
        if !is_unique {
            key.extend_from_slice(primary_key);
        }
        Ok(IndexEntry { key, is_unique })
    }

    /// Returns `true` if one of the columns is an index column.
    fn has_column(&self, columns: &[(u16, Value)]) -> bool {
        let is_changed = |part: &KeyPart| columns.iter().any(|(at, _)| *at == part.column);
        self.parts.iter().any(is_changed)
    }
}

/// Decodes a row into a value for each column of the table.
///
/// Errors: `Corruption` for malformed bytes.
pub fn row_values(table: &TableDef, row: &[u8]) -> Result<Vec<Value>> {
    let mut values = Row::new(row)?.values()?;
    for column in values.len()..table.columns.len() {
        values.push(table.missing(column).to_value());
    }
    Ok(values)
}

/// What happens to the items of a family that does not exist.
pub enum MissingFamily<'a> {
    /// The translation fails: a commit has all families.
    Refuse,
    /// The items go to this family, where they take their sequence numbers and nothing else.
    Replace(&'a Family),
    /// The items are left out.
    Skip,
}

/// Items of a transaction, as they are translated.
pub struct Translation<'a> {
    families: &'a Families,
    missing: MissingFamily<'a>,
    batch: WriteBatch,
}

impl<'a> Translation<'a> {
    /// Begins a translation. `missing` says what happens to the items of families that are not in
    /// `families`.
    pub fn new(families: &'a Families, missing: MissingFamily<'a>) -> Translation<'a> {
        Translation {
            families,
            missing,
            batch: WriteBatch::new(),
        }
    }

    /// Returns the family for the items of an object; `None` if they are left out.
    fn family(&self, storage: ObjectId) -> Result<Option<&'a Family>> {
        if let Some(family) = self.families.get(&storage) {
            return Ok(Some(family));
        }
        match self.missing {
            MissingFamily::Replace(family) => Ok(Some(family)),
            MissingFamily::Skip => Ok(None),
            MissingFamily::Refuse => Err(basalt::Error::invalid(format!(
                "the store has no family {:?}",
                family_name(storage)
            ))),
        }
    }

    /// Adds an entry of an object, or its deletion.
    fn write(&mut self, storage: ObjectId, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match self.family(storage)? {
            Some(family) => self.put(family, key, value),
            None => Ok(()),
        }
    }

    /// Adds the deletions of index entries. Those of all tables come before the first
    /// [`Translation::add_rows`]: if two rows exchange the values of a unique index, an entry that
    /// one deletes is put by the other.
    pub fn delete_entries(
        &mut self,
        table: &TableDef,
        layout: &TableLayout,
        events: &[RowEvent],
    ) -> Result<()> {
        for event in events {
            match &event.change {
                RowChange::Insert(_) => {}
                RowChange::Update { before, .. } if before.is_empty() => {}
                RowChange::Update { after, before } => {
                    let changed = layout.indexes.iter().filter(|i| i.has_column(before));
                    let mut old = Vec::new();
                    for index in changed {
                        if old.is_empty() {
                            old = row_values(table, after)?;
                            for (column, value) in before {
                                if let Some(old) = old.get_mut(usize::from(*column)) {
                                    *old = value.clone();
                                }
                            }
                        }
                        let entry = index.entry(&old, &event.key)?;
                        self.write(index.storage, &entry.key, None)?;
                    }
                }
                RowChange::Delete(before) => {
                    let old = row_values(table, before)?;
                    for index in &layout.indexes {
                        let entry = index.entry(&old, &event.key)?;
                        self.write(index.storage, &entry.key, None)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the rows and the new entries of indexes.
    pub fn add_rows(
        &mut self,
        table: &TableDef,
        layout: &TableLayout,
        events: &[RowEvent],
    ) -> Result<()> {
        for event in events {
            let (after, changed) = match &event.change {
                RowChange::Insert(after) => (after, None),
                RowChange::Update { after, before } => (after, Some(before)),
                RowChange::Delete(_) => {
                    self.write(table.storage, &event.key, None)?;
                    continue;
                }
            };
            self.write(table.storage, &event.key, Some(after))?;
            let is_new = |index: &&IndexLayout| changed.is_none_or(|c| index.has_column(c));
            let mut values = Vec::new();
            for index in layout.indexes.iter().filter(is_new) {
                if values.is_empty() {
                    values = row_values(table, after)?;
                }
                let entry = index.entry(&values, &event.key)?;
                let value: &[u8] = match entry.is_unique {
                    true => &event.key,
                    false => &[],
                };
                self.write(index.storage, &entry.key, Some(value))?;
            }
        }
        Ok(())
    }

    /// Adds entries of an index.
    pub fn add_entries(&mut self, storage: ObjectId, entries: &[(Bytes, Bytes)]) -> Result<()> {
        let mut entries = entries.iter();
        entries.try_for_each(|(key, value)| self.write(storage, key, Some(value)))
    }

    /// Adds an entry of a family, or its deletion.
    pub fn put(&mut self, family: &Family, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.batch.put(family, key, value),
            None => self.batch.delete(family, key),
        }
    }

    /// Returns the items.
    pub fn finish(self) -> WriteBatch {
        self.batch
    }
}
