//! Changes of the catalog: from a command to new definitions.
//!
//! The functions here look at a catalog and return what changes in it. They write nothing.

mod alter;
mod table;

pub use alter::{Altered, alter_table, rekey};
pub use table::{create_table, index_columns};

use crate::catalog::{
    Catalog, ForeignKeyDef, IndexDef, Object, ObjectId, SequenceDef, TableDef, ViewDef,
};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::history::Change;
use crate::statement::Drop;
use crate::vtab::KEY_COLUMN;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum bytes of a name.
const MAX_NAME: usize = 63;

/// Maximum number of columns of a table, dropped ones included.
pub const MAX_COLUMNS: usize = 1000;

/// Maximum number of columns of a key or an index.
pub const MAX_KEY_COLUMNS: usize = 31;

/// Definitions that a command changes, over a catalog.
pub struct Changes<'c> {
    catalog: &'c Catalog,
    changed: BTreeMap<ObjectId, Option<Object>>,
    /// Names that new objects have taken.
    names: Vec<String>,
    next_id: ObjectId,
}

impl<'c> Changes<'c> {
    /// Begins changes of a catalog.
    pub fn new(catalog: &'c Catalog) -> Changes<'c> {
        Changes {
            catalog,
            changed: BTreeMap::new(),
            names: Vec::new(),
            next_id: catalog.next_id.max(1),
        }
    }

    /// Returns the catalog before the changes.
    pub fn catalog(&self) -> &'c Catalog {
        self.catalog
    }

    /// Returns a number that no object has had.
    pub fn new_id(&mut self) -> ObjectId {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds or replaces a definition.
    pub fn put(&mut self, object: Object) {
        self.changed.insert(object.id(), Some(object));
    }

    /// Removes a definition.
    pub fn remove(&mut self, id: ObjectId) {
        self.changed.insert(id, None);
    }

    /// Returns a table as the changes leave it.
    pub fn table(&self, id: ObjectId) -> Option<Arc<TableDef>> {
        match self.changed.get(&id) {
            Some(Some(Object::Table(table))) => Some(table.clone()),
            Some(_) => None,
            None => self.catalog.table_by_id(id).cloned(),
        }
    }

    /// Takes a name for a new object.
    ///
    /// Errors: 42P07 if it is taken; 42602 and 42622 for a name that no object can have.
    pub fn take_name(&mut self, name: &str) -> SqlResult<()> {
        check_name(name)?;
        if self.is_taken(name) {
            return Err(SqlError::new(
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{name}\" already exists"),
            ));
        }
        self.names.push(name.to_lowercase());
        Ok(())
    }

    fn is_taken(&self, name: &str) -> bool {
        self.catalog.is_taken(name) || self.names.contains(&name.to_lowercase())
    }

    /// Returns a free name that begins as the given parts do, in PostgreSQL's manner.
    pub fn free_name(&mut self, table: &str, columns: &[&str], suffix: &str) -> String {
        let mut base = table.to_owned();
        for column in columns {
            base.push('_');
            base.push_str(column);
        }
        let mut number = 0;
        loop {
            let tail = match number {
                0 => format!("_{suffix}"),
                n => format!("_{suffix}{n}"),
            };
            let mut cut = base.len().min(MAX_NAME - tail.len());
            while !base.is_char_boundary(cut) {
                cut -= 1;
            }
            let name = format!("{}{tail}", &base[..cut]);
            if !self.is_taken(&name) {
                self.names.push(name.to_lowercase());
                return name;
            }
            number += 1;
        }
    }

    /// Returns the changed definitions.
    pub fn finish(self) -> Vec<Change> {
        self.changed.into_iter().collect()
    }
}

/// Checks that an object or a column can have a name.
///
/// Errors: 42602, 42622.
pub fn check_name(name: &str) -> SqlResult<()> {
    if name.is_empty() || name.contains('\0') || name.eq_ignore_ascii_case(KEY_COLUMN) {
        return Err(SqlError::new(
            SqlState::INVALID_NAME,
            format!("no object can have the name {name:?}"),
        ));
    }
    if name.len() > MAX_NAME {
        return Err(SqlError::new(
            SqlState::NAME_TOO_LONG,
            format!(
                "the name \"{name}\" has {} bytes, at most {MAX_NAME} are allowed",
                name.len()
            ),
        ));
    }
    if name.to_lowercase().starts_with("sqlite_") {
        return Err(SqlError::new(
            SqlState::INVALID_NAME,
            format!("the name \"{name}\" begins with sqlite_, which is reserved"),
        ));
    }
    Ok(())
}

fn undefined(kind: &str, name: &str) -> SqlError {
    let state = match kind {
        "table" | "view" | "sequence" => SqlState::UNDEFINED_TABLE,
        _ => SqlState::UNDEFINED_OBJECT,
    };
    SqlError::new(state, format!("{kind} \"{name}\" does not exist"))
}

fn wrong_kind(kind: &str, name: &str) -> SqlError {
    SqlError::new(
        SqlState::WRONG_OBJECT_TYPE,
        format!("\"{name}\" is not a {kind}"),
    )
}

/// Finds a table.
///
/// Errors: 42P01, 42809.
pub fn find_table<'c>(catalog: &'c Catalog, name: &str) -> SqlResult<&'c Arc<TableDef>> {
    match catalog.object(name) {
        Some(Object::Table(table)) => Ok(table),
        Some(_) => Err(wrong_kind("table", name)),
        None => Err(SqlError::new(
            SqlState::UNDEFINED_TABLE,
            format!("relation \"{name}\" does not exist"),
        )),
    }
}

/// Returns the views that read an object, also by way of other views.
fn views_on(catalog: &Catalog, name: &str) -> Vec<Arc<ViewDef>> {
    let mut found: Vec<Arc<ViewDef>> = Vec::new();
    let mut names = vec![name.to_owned()];
    while let Some(name) = names.pop() {
        for object in catalog.objects() {
            let Object::View(view) = object else { continue };
            let is_new = !found.iter().any(|known| known.id == view.id);
            if is_new && view.reads.contains(&name) {
                names.push(view.name.clone());
                found.push(view.clone());
            }
        }
    }
    found
}

/// The hint of a DROP that CASCADE would allow.
const USE_CASCADE: &str = "use DROP ... CASCADE to drop the dependent objects too";

/// The hint of a change that foreign keys of other tables refuse, also with CASCADE.
const DROP_REFERENCES: &str = "drop the foreign keys that refer to it first";

/// Returns the error of a DROP of an object that others depend on. `hint` says what to do.
fn dependent(kind: &str, name: &str, dependents: &[String], hint: &str) -> SqlError {
    SqlError::new(
        SqlState::DEPENDENT_OBJECTS,
        format!("cannot drop {kind} {name} because other objects depend on it"),
    )
    .with_detail(dependents.join("; "))
    .with_hint(hint)
}

/// Returns the changes of DROP TABLE.
///
/// Errors: 42P01, 42809; 2BP01 without CASCADE.
pub fn drop_tables(changes: &mut Changes<'_>, drop: &Drop) -> SqlResult<()> {
    let catalog = changes.catalog();
    let mut dropped = Vec::new();
    for name in &drop.names {
        match catalog.object(name) {
            Some(Object::Table(table)) => dropped.push(table.clone()),
            Some(_) => return Err(wrong_kind("table", name)),
            None if drop.if_exists => {}
            None => return Err(undefined("table", name)),
        }
    }
    let is_dropped = |id: ObjectId| dropped.iter().any(|table| table.id == id);
    for table in &dropped {
        let views = views_on(catalog, &table.name);
        let children: Vec<(Arc<TableDef>, ForeignKeyDef)> = catalog
            .children(table.id)
            .filter(|(child, _)| !is_dropped(child.id))
            .map(|(child, key)| (child.clone(), key.clone()))
            .collect();
        if !drop.cascade && (!views.is_empty() || !children.is_empty()) {
            let views = views
                .iter()
                .map(|v| format!("view \"{}\" depends on it", v.name));
            let keys = children.iter().map(|(child, key)| {
                format!(
                    "constraint \"{}\" on table \"{}\" depends on it",
                    key.name, child.name
                )
            });
            let all: Vec<String> = views.chain(keys).collect();
            return Err(dependent("table", &table.name, &all, USE_CASCADE));
        }
        for view in views {
            changes.remove(view.id);
        }
        for (child, _) in children {
            let child = changes.table(child.id);
            if let Some(child) = child {
                let mut child = TableDef::clone(&child);
                child.foreign_keys.retain(|key| key.parent != table.id);
                child.version += 1;
                changes.put(Object::Table(Arc::new(child)));
            }
        }
    }
    for table in &dropped {
        changes.remove(table.id);
        for object in catalog.objects() {
            if let Object::Sequence(sequence) = object
                && sequence.owner.is_some_and(|(owner, _)| owner == table.id)
            {
                changes.remove(sequence.id);
            }
        }
    }
    Ok(())
}

/// Returns the changes of DROP VIEW.
///
/// Errors: 42P01, 42809; 2BP01 without CASCADE.
pub fn drop_views(changes: &mut Changes<'_>, drop: &Drop) -> SqlResult<()> {
    let catalog = changes.catalog();
    for name in &drop.names {
        let view = match catalog.object(name) {
            Some(Object::View(view)) => view,
            Some(_) => return Err(wrong_kind("view", name)),
            None if drop.if_exists => continue,
            None => return Err(undefined("view", name)),
        };
        let others = views_on(catalog, name);
        let others: Vec<_> = others
            .iter()
            .filter(|v| !drop.names.contains(&v.name))
            .collect();
        if !others.is_empty() && !drop.cascade {
            let others = others
                .iter()
                .map(|v| format!("view \"{}\" depends on it", v.name));
            let others = others.collect::<Vec<String>>();
            return Err(dependent("view", name, &others, USE_CASCADE));
        }
        others.iter().for_each(|other| changes.remove(other.id));
        changes.remove(view.id);
    }
    Ok(())
}

/// Returns the changes of DROP INDEX.
///
/// Errors: 42704; 2BP01 for the index of a constraint, or one that a foreign key needs.
pub fn drop_indexes(changes: &mut Changes<'_>, drop: &Drop) -> SqlResult<()> {
    let catalog = changes.catalog();
    for name in &drop.names {
        let Some((table, index)) = catalog.index(name) else {
            if drop.if_exists {
                continue;
            }
            return Err(undefined("index", name));
        };
        let table = changes.table(table.id).unwrap_or_else(|| table.clone());
        remove_index(changes, TableDef::clone(&table), index, drop.cascade)?;
    }
    Ok(())
}

fn remove_index(
    changes: &mut Changes<'_>,
    mut table: TableDef,
    index: ObjectId,
    cascade: bool,
) -> SqlResult<()> {
    let def = table.index(index).cloned();
    let def = def.ok_or_else(|| SqlError::internal("an index of no table"))?;
    if def.is_constraint && !cascade {
        return Err(SqlError::new(
            SqlState::DEPENDENT_OBJECTS,
            format!(
                "cannot drop index \"{}\" because a constraint of table \"{}\" requires it",
                def.name, table.name
            ),
        )
        .with_hint(format!(
            "drop constraint \"{}\" on table \"{}\" instead",
            def.name, table.name
        )));
    }
    let parents = changes.catalog().children(table.id);
    let mut needed = parents.filter(|(_, key)| key.parent_index == Some(index));
    if let Some((child, key)) = needed.next() {
        let all = [format!(
            "constraint \"{}\" on table \"{}\" depends on it",
            key.name, child.name
        )];
        return Err(dependent("index", &def.name, &all, DROP_REFERENCES));
    }
    table.indexes.retain(|other| other.id != index);
    for key in &table.foreign_keys {
        if !table.is_served(&key.columns) {
            return Err(dependent(
                "index",
                &def.name,
                &[format!(
                    "foreign key \"{}\" of table \"{}\" needs it",
                    key.name, table.name
                )],
                "drop this foreign key first",
            ));
        }
    }
    table.version += 1;
    changes.put(Object::Table(Arc::new(table)));
    Ok(())
}

/// Returns an index for a new definition.
pub fn new_index(
    changes: &mut Changes<'_>,
    name: String,
    columns: Vec<u16>,
    unique: bool,
    is_constraint: bool,
    is_ready: bool,
) -> IndexDef {
    let id = changes.new_id();
    IndexDef {
        id,
        name,
        columns,
        unique,
        is_constraint,
        is_ready,
        storage: id,
    }
}

/// Returns the changes of CREATE SEQUENCE.
///
/// Errors: 42P07, 22023.
pub fn create_sequence(
    changes: &mut Changes<'_>,
    name: &str,
    start: i64,
    increment: i64,
    owner: Option<(ObjectId, u16)>,
) -> SqlResult<ObjectId> {
    changes.take_name(name)?;
    if increment == 0 {
        return Err(SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "INCREMENT must not be zero",
        ));
    }
    let id = changes.new_id();
    changes.put(Object::Sequence(Arc::new(SequenceDef {
        id,
        name: name.to_owned(),
        start,
        increment,
        owner,
    })));
    Ok(id)
}

/// Returns the changes of DROP SEQUENCE.
///
/// Errors: 42704, 42809; 2BP01 for the sequence of a column.
pub fn drop_sequences(changes: &mut Changes<'_>, drop: &Drop) -> SqlResult<()> {
    for name in &drop.names {
        match changes.catalog().object(name) {
            Some(Object::Sequence(sequence)) if sequence.owner.is_none() => {
                changes.remove(sequence.id);
            }
            Some(Object::Sequence(_)) => {
                let all = ["a column takes its values from it".to_owned()];
                return Err(dependent("sequence", name, &all, "drop the column instead"));
            }
            Some(_) => return Err(wrong_kind("sequence", name)),
            None if drop.if_exists => {}
            None => return Err(undefined("sequence", name)),
        }
    }
    Ok(())
}

/// Returns the changes of TRUNCATE: the tables get new, empty families.
///
/// Errors: 0A000 for a table that another one refers to, without CASCADE.
pub fn truncate(
    changes: &mut Changes<'_>,
    names: &[String],
    cascade: bool,
) -> SqlResult<Vec<Arc<TableDef>>> {
    let catalog = changes.catalog();
    let mut tables: Vec<Arc<TableDef>> = Vec::new();
    for name in names {
        tables.push(find_table(catalog, name)?.clone());
    }
    let mut at = 0;
    while at < tables.len() {
        let parent = tables[at].clone();
        for (child, _) in catalog.children(parent.id) {
            if tables.iter().any(|table| table.id == child.id) {
                continue;
            }
            if !cascade {
                return Err(SqlError::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!(
                        "cannot truncate table \"{}\": table \"{}\" has a foreign key to it",
                        parent.name, child.name
                    ),
                )
                .with_hint("truncate both tables in one statement, or use CASCADE"));
            }
            tables.push(child.clone());
        }
        at += 1;
    }
    for table in &tables {
        let mut table = TableDef::clone(table);
        table.storage = changes.new_id();
        for index in &mut table.indexes {
            index.storage = changes.new_id();
        }
        table.version += 1;
        changes.put(Object::Table(Arc::new(table)));
    }
    Ok(tables)
}

/// Returns the changes of ALTER ... RENAME of an index, a view or a sequence.
///
/// Errors: 42P01, 42P07; 2BP01 for a view that another one reads.
pub fn rename(changes: &mut Changes<'_>, from: &str, to: &str) -> SqlResult<()> {
    let catalog = changes.catalog();
    changes.take_name(to)?;
    if let Some((table, index)) = catalog.index(from) {
        let mut table = TableDef::clone(table);
        for def in &mut table.indexes {
            if def.id == index {
                def.name = to.to_owned();
            }
        }
        table.version += 1;
        changes.put(Object::Table(Arc::new(table)));
        return Ok(());
    }
    match catalog.object(from) {
        Some(Object::Sequence(sequence)) => {
            let mut sequence = SequenceDef::clone(sequence);
            sequence.name = to.to_owned();
            changes.put(Object::Sequence(Arc::new(sequence)));
            Ok(())
        }
        Some(Object::View(view)) => {
            refuse_readers(catalog, from)?;
            let mut view = ViewDef::clone(view);
            changes.remove(view.id);
            view.id = changes.new_id();
            view.name = to.to_owned();
            changes.put(Object::View(Arc::new(view)));
            Ok(())
        }
        Some(Object::Table(_)) => alter::rename_table(changes, from, to),
        None => Err(SqlError::new(
            SqlState::UNDEFINED_TABLE,
            format!("relation \"{from}\" does not exist"),
        )),
    }
}

/// Fails if a view reads an object: its query has the names of what it reads.
pub fn refuse_readers(catalog: &Catalog, name: &str) -> SqlResult<()> {
    let views = views_on(catalog, name);
    match views.first() {
        None => Ok(()),
        Some(view) => Err(SqlError::new(
            SqlState::DEPENDENT_OBJECTS,
            format!("cannot change \"{name}\": view \"{}\" reads it", view.name),
        )
        .with_hint("drop the view, and create it again after the change")),
    }
}
