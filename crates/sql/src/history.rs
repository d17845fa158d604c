//! [`SchemaHistory`]: the versions of all definitions that the binlog may still need.
//!
//! Families are persisted up to different transactions, so a replay meets rows of tables as they
//! were: with an index that was dropped since, or of a table that is gone. The catalog's family
//! keeps each version of a definition under the number of its transaction.

use crate::catalog::{Catalog, Object, ObjectId, TableDef, decode_object, encode_object};
use crate::codec::Reader;
use basalt::{Result, Tsn};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first byte of the keys of definitions in the catalog's family.
const DEFINITION: u8 = 1;

/// A definition of an object, or `None` where the object was dropped.
pub type Change = (ObjectId, Option<Object>);

/// The versions of all definitions, by object and transaction.
#[derive(Debug, Clone, Default)]
pub struct SchemaHistory {
    versions: BTreeMap<ObjectId, BTreeMap<Tsn, Option<Object>>>,
}

/// Returns the key of a version in the catalog's family.
pub fn definition_key(id: ObjectId, tsn: Tsn) -> Vec<u8> {
    let mut key = vec![DEFINITION];
    key.extend_from_slice(&id.to_be_bytes());
    key.extend_from_slice(&tsn.to_be_bytes());
    key
}

/// Returns the value of a version in the catalog's family. That of a dropped object is empty.
pub fn definition_value(object: Option<&Object>) -> Vec<u8> {
    object.map(encode_object).unwrap_or_default()
}

impl SchemaHistory {
    /// Adds an entry of the catalog's family, if it is a version of a definition.
    ///
    /// Errors: `Corruption` for a malformed entry.
    pub fn add_entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.first() != Some(&DEFINITION) {
            return Ok(());
        }
        let mut reader = Reader::new(&key[1..], "a key of the catalog");
        let id = ObjectId::from_be_bytes(reader.take(4)?.try_into().expect("four bytes"));
        let tsn = Tsn::from_be_bytes(reader.take(8)?.try_into().expect("eight bytes"));
        reader.end()?;
        let object = match value.is_empty() {
            true => None,
            false => {
                let object = decode_object(value);
                let entry = || format!("catalog entry of object {id}, transaction {tsn}");
                Some(object.map_err(|e| e.context(entry()))?)
            }
        };
        if object.as_ref().is_some_and(|object| object.id() != id) {
            return Err(reader.damaged("its definition has another number"));
        }
        self.versions.entry(id).or_default().insert(tsn, object);
        Ok(())
    }

    /// Adds the changes of a transaction.
    pub fn apply(&mut self, tsn: Tsn, changes: &[Change]) {
        for (id, object) in changes {
            let versions = self.versions.entry(*id).or_default();
            versions.insert(tsn, object.clone());
        }
    }

    /// Returns an object as of the end of a transaction.
    pub fn object(&self, id: ObjectId, tsn: Tsn) -> Option<&Object> {
        let versions = self.versions.get(&id)?;
        versions.range(..=tsn).next_back()?.1.as_ref()
    }

    /// Returns a table as of the end of a transaction.
    pub fn table(&self, id: ObjectId, tsn: Tsn) -> Option<&Arc<TableDef>> {
        match self.object(id, tsn)? {
            Object::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the catalog as of the end of a transaction.
    pub fn catalog(&self, tsn: Tsn) -> Catalog {
        let mut catalog = Catalog::default();
        let mut next_id = 1;
        for (id, versions) in &self.versions {
            next_id = next_id.max(id + 1);
            for table in versions.values().flatten().filter_map(as_table) {
                let ids = table.indexes.iter().map(|index| index.id);
                next_id = ids
                    .chain(table.storages())
                    .fold(next_id, |n, id| n.max(id + 1));
            }
            if let Some(Some(object)) = versions.range(..=tsn).next_back().map(|(_, o)| o) {
                catalog.put(object.clone());
            }
        }
        catalog.next_id = next_id;
        catalog.version = tsn;
        catalog
    }

    /// Removes versions, by object and transaction.
    pub fn remove(&mut self, pruned: &[(ObjectId, Tsn)]) {
        for (id, tsn) in pruned {
            if let Some(versions) = self.versions.get_mut(id) {
                versions.remove(tsn);
            }
        }
    }

    /// Returns the versions that no transaction after `tsn` can need, by object and transaction.
    /// The newest version of a dropped object stays, so that its number is never used again.
    pub fn unneeded(&self, tsn: Tsn) -> Vec<(ObjectId, Tsn)> {
        let mut unneeded = Vec::new();
        for (id, versions) in &self.versions {
            if let Some((kept, _)) = versions.range(..=tsn).next_back() {
                unneeded.extend(versions.range(..kept).map(|(at, _)| (*id, *at)));
            }
        }
        unneeded
    }
}

fn as_table(object: &Object) -> Option<&Arc<TableDef>> {
    match object {
        Object::Table(table) => Some(table),
        _ => None,
    }
}
