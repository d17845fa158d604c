//! Writes of rows: what INSERT, UPDATE and DELETE do to a table, its indexes and the tables that
//! refer to it, with all constraints.

mod references;

pub use references::check_stored_parent;

use crate::catalog::{ObjectId, TableDef};
use crate::codec::encode_row;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::keys::primary_key;
use crate::schema::Schema;
use crate::state::SessionState;
use crate::statement::{ConflictTarget, ConflictUpdate, WriteKind};
use crate::translate::{TableLayout, row_values};
use crate::value::{Value, ValueRef};
use basalt::Bytes;
use std::sync::Arc;

/// A table that is written, and how its rows become items.
#[derive(Clone)]
pub struct Target {
    /// The definition.
    pub table: Arc<TableDef>,
    /// How rows become items.
    pub layout: Arc<TableLayout>,
}

/// Why a row cannot have its key.
struct KeyConflict {
    /// The key: `None` for the primary key, otherwise the number of the index.
    index: Option<ObjectId>,
    /// The primary key of the row that has it.
    holder: Bytes,
}

impl Target {
    /// Returns a table of the session's schema.
    ///
    /// Errors: 42P01 if it does not exist.
    pub fn find(state: &SessionState, table: ObjectId) -> SqlResult<Target> {
        Target::of(state.schema()?, table)
    }

    /// Returns a table of a schema.
    ///
    /// Errors: 42P01 if it does not exist.
    pub fn of(schema: &Schema, table: ObjectId) -> SqlResult<Target> {
        let missing = || {
            SqlError::new(
                SqlState::UNDEFINED_TABLE,
                format!(
                    "the table with number {table} does not exist any more; another session dropped it"
                ),
            )
        };
        Ok(Target {
            table: schema
                .catalog
                .table_by_id(table)
                .ok_or_else(missing)?
                .clone(),
            layout: schema.layout(table).ok_or_else(missing)?.clone(),
        })
    }
}

/// Returns a value for each column of the table, in its types. `visible` has one for each column
/// that is not dropped.
fn checked_values(
    state: &SessionState,
    table: &TableDef,
    visible: Vec<Value>,
) -> SqlResult<Vec<Value>> {
    let mut values = Vec::with_capacity(table.columns.len());
    let mut given = visible.into_iter();
    for column in &table.columns {
        if column.dropped {
            values.push(Value::Null);
            continue;
        }
        let value = given.next().unwrap_or_default();
        let value = column.ty.coerce(value);
        let value = value.map_err(|e| e.with_table(&table.name).with_column(&column.name))?;
        if column.not_null && value.is_null() {
            return Err(SqlError::new(
                SqlState::NOT_NULL_VIOLATION,
                format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    column.name, table.name
                ),
            )
            .with_table(&table.name)
            .with_column(&column.name));
        }
        values.push(value);
    }
    check_constraints(state, table, &values)?;
    Ok(values)
}

/// Returns the values of the columns that statements see.
fn visible_values<'v>(table: &'v TableDef, values: &'v [Value]) -> impl Iterator<Item = &'v Value> {
    table.visible().map(|(at, _)| &values[usize::from(at)])
}

/// Checks the CHECK constraints of a table.
///
/// Errors: 23514; those of the expressions.
pub fn check_constraints(
    state: &SessionState,
    table: &TableDef,
    values: &[Value],
) -> SqlResult<()> {
    if table.checks.is_empty() {
        return Ok(());
    }
    let columns = table.visible().enumerate();
    let columns = columns.map(|(at, (_, column))| {
        format!("?{} AS \"{}\"", at + 1, column.name.replace('"', "\"\""))
    });
    let columns = columns.collect::<Vec<String>>().join(", ");
    let conditions = table
        .checks
        .iter()
        .map(|check| format!("({})", check.expression));
    let conditions = conditions.collect::<Vec<String>>().join(", ");
    let query = format!("SELECT {conditions} FROM (SELECT {columns})");
    let row = state.checker.row(&query, visible_values(table, values))?;
    for (check, holds) in table.checks.iter().zip(row.unwrap_or_default()) {
        let is_false = match holds {
            Value::Null => false,
            Value::Integer(n) => n == 0,
            Value::Real(x) => x == 0.0,
            _ => true,
        };
        if is_false {
            return Err(SqlError::new(
                SqlState::CHECK_VIOLATION,
                format!(
                    "new row for relation \"{}\" violates check constraint \"{}\"",
                    table.name, check.name
                ),
            )
            .with_table(&table.name)
            .with_constraint(&check.name));
        }
    }
    Ok(())
}

/// Inserts a row. `visible` has a value for each column that is not dropped.
///
/// Errors: those of constraints; those of reads.
pub fn insert(state: &mut SessionState, target: &Target, visible: Vec<Value>) -> SqlResult<()> {
    let table = &target.table;
    state.touch(table)?;
    let values = checked_values(state, table, visible)?;
    let row_number = match table.row_sequence {
        Some(sequence) => state.next_row_number(sequence)?,
        None => 0,
    };
    let key = Bytes::from(primary_key(&target.layout.key, &values, row_number)?);
    if let Some(conflict) = find_conflict(state, target, &values, &key, None)? {
        return on_conflict(state, target, &values, conflict);
    }
    write_row(state, target, &key, None, &values)?;
    references::check_parents(state, target, None, &values)?;
    note_written(state, table, &key, &values)
}

/// Counts a written row, and keeps what RETURNING makes of it.
fn note_written(
    state: &mut SessionState,
    table: &TableDef,
    key: &Bytes,
    values: &[Value],
) -> SqlResult<()> {
    let Some(write) = &mut state.write else {
        return Ok(());
    };
    write.rows += 1;
    if write
        .on_conflict
        .as_ref()
        .is_some_and(|c| c.update.is_some())
    {
        write.touched.insert(key.clone());
    }
    let Some(returning) = &write.returning else {
        return Ok(());
    };
    let parameters = visible_values(table, values).chain(&write.parameters);
    let row = state.checker.row(&returning.query, parameters)?;
    write.returned.extend(row);
    Ok(())
}

/// Returns the first unique key of the row that another row already has. `old` holds the key and
/// the values of the row before an update; `None` for an insert.
fn find_conflict(
    state: &mut SessionState,
    target: &Target,
    values: &[Value],
    key: &Bytes,
    old: Option<(&Bytes, &[Value])>,
) -> SqlResult<Option<KeyConflict>> {
    let table = &target.table;
    let is_same = old.is_some_and(|(old, _)| old == key);
    // The key that ON CONFLICT names counts before all others.
    let clause = state
        .write
        .as_ref()
        .and_then(|write| write.on_conflict.as_ref());
    let wanted = match clause.and_then(|clause| clause.target) {
        Some(ConflictTarget::Index(index)) => Some(index),
        Some(ConflictTarget::PrimaryKey) | None => None,
    };
    if let Some(wanted) = wanted
        && let Some(conflict) = find_index_conflict(state, target, values, key, old, Some(wanted))?
    {
        return Ok(Some(conflict));
    }
    if !is_same && state.get(table.storage, key)?.is_some() {
        return Ok(Some(KeyConflict {
            index: None,
            holder: key.clone(),
        }));
    }
    find_index_conflict(state, target, values, key, old, None)
}

/// Returns the first key of a unique index, or of the index `only`, that another row has.
fn find_index_conflict(
    state: &mut SessionState,
    target: &Target,
    values: &[Value],
    key: &Bytes,
    old: Option<(&Bytes, &[Value])>,
    only: Option<ObjectId>,
) -> SqlResult<Option<KeyConflict>> {
    let table = &target.table;
    for (index, entries) in table.indexes.iter().zip(&target.layout.indexes) {
        if !index.unique || only.is_some_and(|only| only != index.id) {
            continue;
        }
        let entry = entries.entry(values, key)?;
        if !entry.is_unique {
            continue;
        }
        if let Some((old_key, old)) = old
            && entries.entry(old, old_key)?.key == entry.key
        {
            continue;
        }
        if let Some(holder) = state.get(index.storage, &entry.key)? {
            return Ok(Some(KeyConflict {
                index: Some(index.id),
                holder,
            }));
        }
    }
    Ok(None)
}

/// Does what ON CONFLICT says, or fails.
fn on_conflict(
    state: &mut SessionState,
    target: &Target,
    values: &[Value],
    conflict: KeyConflict,
) -> SqlResult<()> {
    let clause = state
        .write
        .as_ref()
        .and_then(|write| write.on_conflict.as_ref());
    let found = match conflict.index {
        None => ConflictTarget::PrimaryKey,
        Some(index) => ConflictTarget::Index(index),
    };
    let applies =
        |clause: &&crate::statement::OnConflict| clause.target.is_none_or(|wanted| wanted == found);
    let Some(clause) = clause.filter(applies) else {
        return Err(unique_violation(&target.table, values, conflict.index));
    };
    let Some(update) = clause.update.clone() else {
        return Ok(());
    };
    update_conflicting(state, target, values, &conflict.holder, &update)
}

fn update_conflicting(
    state: &mut SessionState,
    target: &Target,
    values: &[Value],
    holder: &Bytes,
    update: &ConflictUpdate,
) -> SqlResult<()> {
    let table = &target.table;
    let write = state.write.as_ref();
    if write.is_some_and(|write| write.touched.contains(holder)) {
        return Err(SqlError::new(
            SqlState::CARDINALITY_VIOLATION,
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
        )
        .with_hint("ensure that no rows proposed for insertion within the same command have duplicate constrained values"));
    }
    let stored = read_row(state, target, holder)?;
    let parameters = write_parameters(state);
    let given = visible_values(table, &stored).chain(visible_values(table, values));
    let row = state.checker.row(&update.query, given.chain(&parameters))?;
    let Some(row) = row else {
        // The condition of DO UPDATE does not hold.
        return Ok(());
    };
    let mut changed = stored.clone();
    for (column, value) in update.columns.iter().zip(row) {
        changed[usize::from(*column)] = value;
    }
    let changed = visible_values(table, &changed).cloned().collect();
    replace(state, target, holder, stored, changed)
}

fn write_parameters(state: &SessionState) -> Vec<Value> {
    let write = state.write.as_ref();
    write
        .map(|write| write.parameters.clone())
        .unwrap_or_default()
}

fn read_row(state: &mut SessionState, target: &Target, key: &[u8]) -> SqlResult<Vec<Value>> {
    let row = state.get(target.table.storage, key)?;
    let row = row.ok_or_else(|| missing_row(&target.table, None, key))?;
    let values = row_values(&target.table, &row);
    Ok(values.map_err(|e| e.context(row_name(&target.table, key)))?)
}

/// Returns the words that name a row in messages of damage.
pub fn row_name(table: &TableDef, key: &[u8]) -> String {
    format!("table {:?}, row with key {key:02x?}", table.name)
}

/// Returns the error of an index entry whose row does not exist. `index` is the name of the index,
/// if it is known.
pub fn missing_row(table: &TableDef, index: Option<&str>, key: &[u8]) -> SqlError {
    let index = index.map_or("an index".to_owned(), |name| format!("index \"{name}\""));
    SqlError::new(
        SqlState::DATA_CORRUPTED,
        format!(
            "{index} of table \"{}\" has an entry for a row that does not exist (key {key:02x?})",
            table.name
        ),
    )
    .with_hint("check the database")
}

/// Updates the row with a key. `visible` has a value for each column that is not dropped.
///
/// Errors: those of constraints; those of reads.
pub fn update(
    state: &mut SessionState,
    target: &Target,
    key: &[u8],
    visible: Vec<Value>,
) -> SqlResult<()> {
    let stored = read_row(state, target, key)?;
    replace(state, target, &Bytes::copy_from_slice(key), stored, visible)
}

fn replace(
    state: &mut SessionState,
    target: &Target,
    old_key: &Bytes,
    old: Vec<Value>,
    visible: Vec<Value>,
) -> SqlResult<()> {
    let table = &target.table;
    state.touch(table)?;
    let values = checked_values(state, table, visible)?;
    let key = match table.primary_key.is_empty() {
        true => old_key.clone(),
        false => Bytes::from(primary_key(&target.layout.key, &values, 0)?),
    };
    let conflict = find_conflict(state, target, &values, &key, Some((old_key, &old)))?;
    if let Some(conflict) = conflict {
        return Err(unique_violation(table, &values, conflict.index));
    }
    if key == *old_key {
        write_row(state, target, &key, Some(&old), &values)?;
    } else {
        delete_row(state, target, old_key, &old)?;
        write_row(state, target, &key, None, &values)?;
    }
    references::check_parents(state, target, Some(&old), &values)?;
    references::on_update(state, target, &old, &values)?;
    note_written(state, table, &key, &values)
}

/// Deletes the row with a key.
///
/// Errors: those of foreign keys; those of reads.
pub fn delete(state: &mut SessionState, target: &Target, key: &[u8]) -> SqlResult<()> {
    let table = &target.table;
    state.touch(table)?;
    let written = state.work()?.writes.get(table.storage, key);
    if written.is_some_and(|written| written.after.is_none()) {
        // A cascade of this statement has deleted the row meanwhile.
        return Ok(());
    }
    let old = read_row(state, target, key)?;
    let key = Bytes::copy_from_slice(key);
    delete_row(state, target, &key, &old)?;
    references::on_delete(state, target, &old)?;
    match state
        .write
        .as_ref()
        .is_some_and(|write| write.kind == WriteKind::Delete)
    {
        true => note_written(state, table, &key, &old),
        false => Ok(()),
    }
}

/// Returns the value of a row's key as of the snapshot, for the first write to it.
fn stored_before(
    state: &mut SessionState,
    storage: ObjectId,
    key: &[u8],
) -> SqlResult<Option<Bytes>> {
    match state.work()?.writes.get(storage, key) {
        // The write set has it.
        Some(_) => Ok(None),
        None => state.get_stored(storage, key),
    }
}

/// Writes a row and its index entries. `old` is what the row was before, if it was there.
fn write_row(
    state: &mut SessionState,
    target: &Target,
    key: &Bytes,
    old: Option<&[Value]>,
    values: &[Value],
) -> SqlResult<()> {
    let table = &target.table;
    for (index, entries) in table.indexes.iter().zip(&target.layout.indexes) {
        let entry = entries.entry(values, key)?;
        if let Some(old) = old {
            let before = entries.entry(old, key)?;
            if before == entry {
                continue;
            }
            state.put(index.storage, Bytes::from(before.key), None, None)?;
        }
        let value = match entry.is_unique {
            true => key.clone(),
            false => Bytes::new(),
        };
        state.put(index.storage, Bytes::from(entry.key), None, Some(value))?;
    }
    // A new row has no value before: `find_conflict` has found its key free, as of the snapshot or
    // by a delete of this transaction, which the write set knows.
    let before = match old {
        Some(_) => stored_before(state, table.storage, key)?,
        None => None,
    };
    let row = Bytes::from(encode_row(values));
    state.put(table.storage, key.clone(), before, Some(row))
}

/// Deletes a row and its index entries.
fn delete_row(
    state: &mut SessionState,
    target: &Target,
    key: &Bytes,
    old: &[Value],
) -> SqlResult<()> {
    let table = &target.table;
    for (index, entries) in table.indexes.iter().zip(&target.layout.indexes) {
        let entry = entries.entry(old, key)?;
        state.put(index.storage, Bytes::from(entry.key), None, None)?;
    }
    let before = stored_before(state, table.storage, key)?;
    state.put(table.storage, key.clone(), before, None)
}

fn unique_violation(table: &TableDef, values: &[Value], index: Option<ObjectId>) -> SqlError {
    let (name, columns) = match index.and_then(|id| table.index(id)) {
        Some(index) => (&index.name, &index.columns),
        None => (&table.primary_key_name, &table.primary_key),
    };
    SqlError::new(
        SqlState::UNIQUE_VIOLATION,
        format!("duplicate key value violates unique constraint \"{name}\""),
    )
    .with_detail(format!(
        "Key {} already exists.",
        key_text(table, columns, values)
    ))
    .with_table(&table.name)
    .with_constraint(name)
}

/// Returns columns and values of a key, as messages show them: `(a, b)=(1, x)`.
pub fn key_text(table: &TableDef, columns: &[u16], values: &[Value]) -> String {
    let names = columns
        .iter()
        .map(|at| table.columns[usize::from(*at)].name.clone());
    let values = columns
        .iter()
        .map(|at| match values[usize::from(*at)].as_ref() {
            ValueRef::Null => "null".to_owned(),
            value => {
                let mut text = String::new();
                table.columns[usize::from(*at)]
                    .ty
                    .write_text(value, &mut text);
                text
            }
        });
    let (names, values): (Vec<String>, Vec<String>) = (names.collect(), values.collect());
    format!("({})=({})", names.join(", "), values.join(", "))
}
