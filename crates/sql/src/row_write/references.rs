//! Foreign keys: parents of new rows, and children of rows that go.

use super::{Target, delete, key_text, replace};
use crate::catalog::{ForeignKeyAction, ForeignKeyDef, ObjectId, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::keys::{Exact, KeyPart, encode_key_value, exact_value, next_prefix, skip_columns};
use crate::schema::Schema;
use crate::state::SessionState;
use crate::storage::{ReferenceCheck, ReferenceSide};
use crate::translate::row_values;
use crate::value::Value;
use basalt::{Bytes, Db, ReadOptions};
use std::sync::Arc;

/// Maximum number of levels of cascades.
const MAX_CASCADES: usize = 256;

/// Returns the key by which a parent is found: the family, and the encoded values. Returns `None`
/// if no parent can have the values.
fn parent_key(
    schema: &Schema,
    key: &ForeignKeyDef,
    values: &[Value],
) -> SqlResult<Option<(ObjectId, Bytes)>> {
    let parent = Target::of(schema, key.parent)?;
    let (storage, parts) = referenced_key(&parent, key)?;
    let mut encoded = Vec::new();
    for part in parts {
        let at = key
            .parent_columns
            .iter()
            .position(|column| *column == part.column);
        let at = at.ok_or_else(|| SqlError::internal("a foreign key lacks a column"))?;
        let value = &values[usize::from(key.columns[at])];
        // A rounded value would be another one.
        let Exact::Value(value) = exact_value(part, value) else {
            return Ok(None);
        };
        encode_key_value(&mut encoded, part, value.as_ref())?;
    }
    Ok(Some((storage, Bytes::from(encoded))))
}

/// Returns the family and the columns of the parent's key that a foreign key refers to.
fn referenced_key<'p>(
    parent: &'p Target,
    key: &ForeignKeyDef,
) -> SqlResult<(ObjectId, &'p [KeyPart])> {
    let Some(id) = key.parent_index else {
        return Ok((parent.table.storage, &parent.layout.key));
    };
    let at = parent.table.indexes.iter().position(|index| index.id == id);
    let at = at.ok_or_else(|| SqlError::internal("a foreign key refers to no index"))?;
    let index = &parent.layout.indexes[at];
    Ok((index.storage, &index.parts))
}

/// Returns the family and the key by which children find a parent with the values `row`.
fn parent_entry(
    parent: &Target,
    key: &ForeignKeyDef,
    row: &[Value],
) -> SqlResult<(ObjectId, Bytes)> {
    let (storage, parts) = referenced_key(parent, key)?;
    let mut encoded = Vec::new();
    for part in parts {
        encode_key_value(&mut encoded, part, row[usize::from(part.column)].as_ref())?;
    }
    Ok((storage, Bytes::from(encoded)))
}

/// Returns the family of a table's index, or of its rows.
fn key_storage(table: &Target, index: Option<usize>) -> ObjectId {
    match index {
        None => table.table.storage,
        Some(at) => table.layout.indexes[at].storage,
    }
}

fn missing_parent(
    table: &TableDef,
    key: &ForeignKeyDef,
    parent: &str,
    values: &[Value],
) -> SqlError {
    SqlError::new(
        SqlState::FOREIGN_KEY_VIOLATION,
        format!(
            "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
            table.name, key.name
        ),
    )
    .with_detail(format!(
        "Key {} is not present in table \"{parent}\".",
        key_text(table, &key.columns, values)
    ))
    .with_table(&table.name)
    .with_constraint(&key.name)
}

/// Checks that the parent of a stored row is stored, as of what `options` reads.
///
/// Errors: 23503; those of a read.
pub fn check_stored_parent(
    schema: &Schema,
    db: &Db,
    options: &ReadOptions,
    table: &TableDef,
    key: &ForeignKeyDef,
    values: &[Value],
) -> SqlResult<()> {
    if key
        .columns
        .iter()
        .any(|column| values[usize::from(*column)].is_null())
    {
        return Ok(());
    }
    let parent = match schema.catalog.table_by_id(key.parent) {
        Some(parent) => parent.name.clone(),
        None => String::new(),
    };
    let Some((storage, sought)) = parent_key(schema, key, values)? else {
        return Err(missing_parent(table, key, &parent, values));
    };
    match db.get(schema.family(storage)?, &sought, options)? {
        Some(_) => Ok(()),
        None => Err(missing_parent(table, key, &parent, values)),
    }
}

/// Adds checks that the parents of a row exist: at the end of the statement, and at the commit.
pub fn check_parents(
    state: &mut SessionState,
    target: &Target,
    old: Option<&[Value]>,
    values: &[Value],
) -> SqlResult<()> {
    let table = &target.table;
    for key in &table.foreign_keys {
        let value = |column: &u16| &values[usize::from(*column)];
        let is_same =
            |column: &u16| old.is_some_and(|old| old[usize::from(*column)] == *value(column));
        let has_null = key.columns.iter().any(|column| value(column).is_null());
        if has_null || key.columns.iter().all(is_same) {
            continue;
        }
        let sought = parent_key(state.schema()?, key, values)?;
        let parent = Target::find(state, key.parent)?.table;
        let error = missing_parent(table, key, &parent.name, values);
        let Some(sought) = sought else {
            return Err(error);
        };
        let (index, parts) = serving_key(target, key)?;
        let mut prefix = Vec::new();
        for part in &parts {
            let value = &values[usize::from(part.column)];
            encode_key_value(&mut prefix, part, value.as_ref())?;
        }
        state.touch(&parent)?;
        state.work_mut()?.checks.add(ReferenceCheck {
            parent: sought,
            children: (key_storage(target, index), Bytes::from(prefix)),
            written: ReferenceSide::Child,
            error,
        });
    }
    Ok(())
}

/// The children of a row by one foreign key.
struct Children {
    child: Target,
    key: ForeignKeyDef,
    /// Position of the child's index that begins with the columns of the key; `None` for its
    /// primary key.
    index: Option<usize>,
    /// The prefix of the keys of the children's entries.
    prefix: Vec<u8>,
}

/// Returns the tables that refer to a row, with the prefix of their entries. Keys with a NULL have
/// no children. With `new`, keys that stay the same are left out.
fn children(
    state: &SessionState,
    target: &Target,
    old: &[Value],
    new: Option<&[Value]>,
) -> SqlResult<Vec<Children>> {
    let schema = state.schema()?.clone();
    let mut found = Vec::new();
    for (child, key) in schema.catalog.children(target.table.id) {
        let parent_value = |column: &u16| &old[usize::from(*column)];
        let is_same = |column: &u16| {
            new.is_some_and(|new| new[usize::from(*column)] == old[usize::from(*column)])
        };
        let mut columns = key.parent_columns.iter();
        if columns.any(|column| parent_value(column).is_null())
            || key.parent_columns.iter().all(is_same)
        {
            continue;
        }
        let child = Target::find(state, child.id)?;
        let (index, parts) = serving_key(&child, key)?;
        let mut prefix = Vec::new();
        let mut is_possible = true;
        for part in &parts {
            let at = key.columns.iter().position(|column| *column == part.column);
            let at = at.ok_or_else(|| SqlError::internal("a foreign key lacks a column"))?;
            match exact_value(part, parent_value(&key.parent_columns[at])) {
                Exact::Value(value) => encode_key_value(&mut prefix, part, value.as_ref())?,
                // No child can have the value of the parent.
                Exact::Never | Exact::Unknown => is_possible = false,
            }
        }
        if !is_possible {
            continue;
        }
        found.push(Children {
            child,
            key: key.clone(),
            index,
            prefix,
        });
    }
    Ok(found)
}

/// Returns the key of a child table that begins with the columns of a foreign key, and its parts.
fn serving_key(child: &Target, key: &ForeignKeyDef) -> SqlResult<(Option<usize>, Vec<KeyPart>)> {
    let n = key.columns.len();
    let serves = |parts: &[KeyPart]| {
        parts.len() >= n
            && parts[..n]
                .iter()
                .all(|part| key.columns.contains(&part.column))
    };
    if serves(&child.layout.key) {
        return Ok((None, child.layout.key[..n].to_vec()));
    }
    let at = child
        .layout
        .indexes
        .iter()
        .position(|index| serves(&index.parts));
    match at {
        Some(at) => Ok((Some(at), child.layout.indexes[at].parts[..n].to_vec())),
        None => Err(SqlError::internal(format!(
            "no index of table \"{}\" serves its foreign key \"{}\"",
            child.table.name, key.name
        ))),
    }
}

/// Does what foreign keys say about the children of a deleted row.
pub fn on_delete(state: &mut SessionState, target: &Target, old: &[Value]) -> SqlResult<()> {
    for children in children(state, target, old, None)? {
        let action = children.key.on_delete;
        apply(state, target, &children, action, old, None)?;
    }
    Ok(())
}

/// Does what foreign keys say about the children of a row whose key has changed.
pub fn on_update(
    state: &mut SessionState,
    target: &Target,
    old: &[Value],
    new: &[Value],
) -> SqlResult<()> {
    for children in children(state, target, old, Some(new))? {
        let action = children.key.on_update;
        apply(state, target, &children, action, old, Some(new))?;
    }
    Ok(())
}

fn apply(
    state: &mut SessionState,
    target: &Target,
    children: &Children,
    action: ForeignKeyAction,
    old: &[Value],
    new: Option<&[Value]>,
) -> SqlResult<()> {
    let child = &children.child;
    let storage = key_storage(child, children.index);
    let error = SqlError::new(
        SqlState::FOREIGN_KEY_VIOLATION,
        format!(
            "update or delete on table \"{}\" violates foreign key constraint \"{}\" on table \"{}\"",
            target.table.name, children.key.name, child.table.name
        ),
    )
    .with_detail(format!(
        "Key {} is still referenced from table \"{}\".",
        key_text(&target.table, &children.key.parent_columns, old),
        child.table.name
    ))
    .with_table(&child.table.name)
    .with_constraint(&children.key.name);
    state.touch(&child.table)?;
    if action != ForeignKeyAction::Restrict {
        for key in child_rows(state, children, storage)? {
            cascade(state, child, &children.key, action, &key, new)?;
        }
    }
    // A row that another transaction adds meanwhile is found at the commit.
    let parent = parent_entry(target, &children.key, old)?;
    state.work_mut()?.checks.add(ReferenceCheck {
        parent,
        children: (storage, Bytes::copy_from_slice(&children.prefix)),
        written: ReferenceSide::Parent,
        error,
    });
    Ok(())
}

/// Returns the primary keys of the children.
fn child_rows(
    state: &mut SessionState,
    children: &Children,
    storage: ObjectId,
) -> SqlResult<Vec<Bytes>> {
    let entries = visible_entries(state, storage, &children.prefix)?;
    let Some(at) = children.index else {
        return Ok(entries.into_iter().map(|(key, _)| key).collect());
    };
    let index = &children.child.layout.indexes[at];
    let rows = entries
        .into_iter()
        .map(|(key, value)| match value.is_empty() {
            true => Ok(key.slice(skip_columns(&key, &index.parts)?..)),
            false => Ok(value),
        });
    rows.collect()
}

/// Returns the entries of a family with a prefix, as the transaction sees them.
fn visible_entries(
    state: &mut SessionState,
    storage: ObjectId,
    prefix: &[u8],
) -> SqlResult<Vec<(Bytes, Bytes)>> {
    let upper = next_prefix(prefix);
    let options: ReadOptions = state.read_options()?;
    let options = options
        .lower_bound(Some(prefix.to_vec()))
        .upper_bound(upper.clone());
    let work = state.work()?;
    let own = work.writes.range(storage, prefix, upper.as_deref());
    let mut iter = state
        .storage
        .db()
        .iter(work.schema.family(storage)?, &options)?;
    let mut entries = Vec::new();
    iter.seek_to_first()?;
    while iter.valid() {
        if work.writes.get(storage, iter.key()).is_none() {
            entries.push((Bytes::copy_from_slice(iter.key()), iter.pinned_value()));
        }
        iter.next()?;
    }
    entries.extend(
        own.into_iter()
            .filter_map(|(key, after)| Some((key, after?))),
    );
    Ok(entries)
}

/// Deletes a child, or gives it other values.
fn cascade(
    state: &mut SessionState,
    child: &Target,
    key: &ForeignKeyDef,
    action: ForeignKeyAction,
    row: &Bytes,
    new: Option<&[Value]>,
) -> SqlResult<()> {
    state.cascades += 1;
    if state.cascades > MAX_CASCADES {
        return Err(SqlError::new(
            SqlState::STATEMENT_TOO_COMPLEX,
            format!("foreign keys cascade over more than {MAX_CASCADES} levels"),
        ));
    }
    let done = cascade_one(state, child, key, action, row, new);
    state.cascades -= 1;
    done
}

fn cascade_one(
    state: &mut SessionState,
    child: &Target,
    key: &ForeignKeyDef,
    action: ForeignKeyAction,
    row: &Bytes,
    new: Option<&[Value]>,
) -> SqlResult<()> {
    let Some(stored) = state.get(child.table.storage, row)? else {
        // A cascade over another way has deleted it.
        return Ok(());
    };
    let write = state.write.take();
    let old = row_values(&child.table, &stored)?;
    let done = match (action, new) {
        (ForeignKeyAction::Cascade, None) => delete(state, child, row),
        _ => {
            let mut values = old.clone();
            for (at, column) in key.columns.iter().enumerate() {
                let value = match (action, new) {
                    (ForeignKeyAction::Cascade, Some(new)) => {
                        new[usize::from(key.parent_columns[at])].clone()
                    }
                    (ForeignKeyAction::SetDefault, _) => default_of(state, &child.table, *column)?,
                    _ => Value::Null,
                };
                values[usize::from(*column)] = value;
            }
            let table = Arc::clone(&child.table);
            let visible = table
                .visible()
                .map(|(at, _)| values[usize::from(at)].clone());
            replace(state, child, row, old, visible.collect())
        }
    };
    state.write = write;
    done
}

fn default_of(state: &SessionState, table: &TableDef, column: u16) -> SqlResult<Value> {
    let Some(default) = &table.columns[usize::from(column)].default else {
        return Ok(Value::Null);
    };
    let row = state
        .checker
        .row(&format!("SELECT {default}"), std::iter::empty())?;
    Ok(row.and_then(|mut row| row.pop()).unwrap_or_default())
}
