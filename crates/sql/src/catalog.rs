//! [`Catalog`]: all definitions of a database, as of one moment.

mod codec;
mod schema;

pub use codec::{decode_object, encode_object};
pub use schema::{
    CheckDef, ColumnDef, ColumnPosition, ForeignKeyAction, ForeignKeyDef, IndexDef, ObjectId,
    SequenceDef, TableDef, ViewDef,
};

use std::collections::BTreeMap;
use std::sync::Arc;

/// An object of the catalog. Indexes are parts of their tables.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A table.
    Table(Arc<TableDef>),
    /// A view.
    View(Arc<ViewDef>),
    /// A sequence.
    Sequence(Arc<SequenceDef>),
}

impl Object {
    /// Returns the number of the object.
    pub fn id(&self) -> ObjectId {
        match self {
            Object::Table(table) => table.id,
            Object::View(view) => view.id,
            Object::Sequence(sequence) => sequence.id,
        }
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        match self {
            Object::Table(table) => &table.name,
            Object::View(view) => &view.name,
            Object::Sequence(sequence) => &sequence.name,
        }
    }
}

/// All definitions of a database, as of one moment. A change makes a new catalog.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    objects: BTreeMap<ObjectId, Object>,
    /// Numbers by name in lower case, of tables, views, sequences and indexes: they share one
    /// namespace, as in PostgreSQL. Two names that differ only in case are refused, because the
    /// executor does not distinguish them.
    names: BTreeMap<String, Named>,
    /// Number of changes. A session that has declared its tables by another version declares them
    /// again.
    pub version: u64,
    /// The next number of an object.
    pub next_id: ObjectId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Object(ObjectId),
    /// An index of the table.
    Index(ObjectId, ObjectId),
}

impl Catalog {
    /// Returns the object of this name. A table that is not ready is not found.
    pub fn object(&self, name: &str) -> Option<&Object> {
        let is_visible = |object: &&Object| match object {
            Object::Table(table) => table.name == name && table.is_ready,
            object => object.name() == name,
        };
        match self.names.get(&name.to_lowercase())? {
            Named::Object(id) => self.objects.get(id).filter(is_visible),
            Named::Index(..) => None,
        }
    }

    /// Returns the object of this number.
    pub fn by_id(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(&id)
    }

    /// Returns the table of this name.
    pub fn table(&self, name: &str) -> Option<&Arc<TableDef>> {
        match self.object(name)? {
            Object::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the table of this number.
    pub fn table_by_id(&self, id: ObjectId) -> Option<&Arc<TableDef>> {
        match self.objects.get(&id)? {
            Object::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the view of this name.
    pub fn view(&self, name: &str) -> Option<&Arc<ViewDef>> {
        match self.object(name)? {
            Object::View(view) => Some(view),
            _ => None,
        }
    }

    /// Returns the sequence of this name.
    pub fn sequence(&self, name: &str) -> Option<&Arc<SequenceDef>> {
        match self.object(name)? {
            Object::Sequence(sequence) => Some(sequence),
            _ => None,
        }
    }

    /// Returns the table of an index of this name, and the number of the index.
    pub fn index(&self, name: &str) -> Option<(&Arc<TableDef>, ObjectId)> {
        match *self.names.get(&name.to_lowercase())? {
            Named::Index(table, index) => {
                let table = self.table_by_id(table)?;
                (table.index(index)?.name == name).then_some((table, index))
            }
            Named::Object(_) => None,
        }
    }

    /// Returns `true` if an object or an index has the name, or one that differs only in case.
    pub fn is_taken(&self, name: &str) -> bool {
        self.names.contains_key(&name.to_lowercase())
    }

    /// Returns all objects, by number.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// Returns all tables, by number.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableDef>> {
        self.objects.values().filter_map(|o| match o {
            Object::Table(table) => Some(table),
            _ => None,
        })
    }

    /// Returns the tables that have a foreign key to the table, with the key.
    pub fn children(
        &self,
        parent: ObjectId,
    ) -> impl Iterator<Item = (&Arc<TableDef>, &ForeignKeyDef)> {
        self.tables().flat_map(move |table| {
            let keys = table
                .foreign_keys
                .iter()
                .filter(move |k| k.parent == parent);
            keys.map(move |key| (table, key))
        })
    }

    /// Adds an object, or replaces the object of the same number.
    pub fn put(&mut self, object: Object) {
        self.remove(object.id());
        let id = object.id();
        if let Object::Table(table) = &object {
            for index in &table.indexes {
                let named = Named::Index(id, index.id);
                self.names.insert(index.name.to_lowercase(), named);
                self.next_id = self.next_id.max(index.id + 1);
            }
            let last = table.storages().max().unwrap_or(0);
            self.next_id = self.next_id.max(last + 1);
        }
        self.names
            .insert(object.name().to_lowercase(), Named::Object(id));
        self.next_id = self.next_id.max(id + 1);
        self.objects.insert(id, object);
    }

    /// Removes an object.
    pub fn remove(&mut self, id: ObjectId) -> Option<Object> {
        let object = self.objects.remove(&id)?;
        self.names.retain(|_, named| match *named {
            Named::Object(named) | Named::Index(named, _) => named != id,
        });
        Some(object)
    }
}
