//! CREATE TABLE: columns, keys and constraints.

use super::{Changes, MAX_COLUMNS, MAX_KEY_COLUMNS, check_name, new_index};
use crate::catalog::{CheckDef, ForeignKeyDef, Object, ObjectId, SequenceDef, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::statement::{ConstraintKind, CreateTable, NewColumn, NewConstraint};
use crate::types::SqlType;
use std::sync::Arc;

/// Returns the changes of CREATE TABLE, and the number of the table. `is_ready`: statements see it
/// at once.
///
/// Errors: 42P07, 42701, 42P16, 42830, and others of bad definitions.
pub fn create_table(
    changes: &mut Changes<'_>,
    create: &CreateTable,
    is_ready: bool,
) -> SqlResult<ObjectId> {
    changes.take_name(&create.name)?;
    let id = changes.new_id();
    let mut table = TableDef {
        id,
        name: create.name.clone(),
        columns: Vec::new(),
        primary_key: Vec::new(),
        primary_key_name: String::new(),
        row_sequence: None,
        indexes: Vec::new(),
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        version: 1,
        is_ready,
        storage: id,
    };
    for column in &create.columns {
        add_column(changes, &mut table, column)?;
    }
    // Keys come before foreign keys, which may refer to the table itself.
    let is_key = |c: &&NewConstraint| !matches!(c.kind, ConstraintKind::ForeignKey { .. });
    for constraint in create.constraints.iter().filter(is_key) {
        add_constraint(changes, &mut table, constraint, true)?;
    }
    for constraint in create.constraints.iter().filter(|c| !is_key(c)) {
        add_constraint(changes, &mut table, constraint, true)?;
    }
    if table.primary_key.is_empty() {
        let sequence = changes.new_id();
        let name = changes.free_name(&table.name, &["row number"], "seq");
        changes.put(Object::Sequence(Arc::new(SequenceDef {
            id: sequence,
            name,
            start: 1,
            increment: 1,
            owner: Some((id, table.columns.len() as u16)),
        })));
        table.row_sequence = Some(sequence);
    }
    changes.put(Object::Table(Arc::new(table)));
    Ok(id)
}

/// Adds a column to a table.
///
/// Errors: 42701, 42602, 54011.
pub fn add_column(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    new: &NewColumn,
) -> SqlResult<()> {
    let name = &new.column.name;
    check_name(name)?;
    let lower = name.to_lowercase();
    let mut others = table.columns.iter().filter(|column| !column.dropped);
    if others.any(|column| column.name.to_lowercase() == lower) {
        return Err(SqlError::new(
            SqlState::DUPLICATE_COLUMN,
            format!(
                "column \"{name}\" of relation \"{}\" already exists",
                table.name
            ),
        )
        .with_table(&table.name)
        .with_column(name));
    }
    if table.columns.len() >= MAX_COLUMNS {
        return Err(SqlError::new(
            SqlState::TOO_MANY_COLUMNS,
            format!(
                "table \"{}\" has {MAX_COLUMNS} columns, which is the limit",
                table.name
            ),
        ));
    }
    let mut column = new.column.clone();
    if let Some((start, increment)) = new.serial {
        if !column.ty.is_integer() {
            return Err(SqlError::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("identity column \"{name}\" must be an integer"),
            ));
        }
        let sequence = changes.free_name(&table.name, &[name], "seq");
        let id = changes.new_id();
        changes.put(Object::Sequence(Arc::new(SequenceDef {
            id,
            name: sequence,
            start,
            increment,
            owner: Some((table.id, table.columns.len() as u16)),
        })));
        column.sequence = Some(id);
    }
    table.columns.push(column);
    Ok(())
}

fn positions(table: &TableDef, names: &[String]) -> SqlResult<Vec<u16>> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let at = table.column(name).ok_or_else(|| {
            SqlError::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" named in key does not exist"),
            )
        })?;
        if found.contains(&at) {
            return Err(SqlError::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{name}\" appears twice in a key"),
            ));
        }
        found.push(at);
    }
    if found.len() > MAX_KEY_COLUMNS {
        return Err(SqlError::new(
            SqlState::TOO_MANY_COLUMNS,
            format!(
                "a key has {} columns, at most {MAX_KEY_COLUMNS} are allowed",
                found.len()
            ),
        ));
    }
    Ok(found)
}

/// Returns the positions of an index's columns.
///
/// Errors: 42703, 42701, 54011.
pub fn index_columns(table: &TableDef, names: &[String]) -> SqlResult<Vec<u16>> {
    let found = positions(table, names)?;
    for at in &found {
        let column = &table.columns[usize::from(*at)];
        if matches!(column.ty, SqlType::Json) {
            return Err(SqlError::new(
                SqlState::UNDEFINED_OBJECT,
                format!(
                    "data type {} has no default operator class for an index",
                    column.ty
                ),
            ));
        }
    }
    Ok(found)
}

/// Adds a constraint to a table. `is_empty`: the table has no rows, so that an index is ready at
/// once.
///
/// Errors: 42P16, 42703, 42830, 42710.
pub fn add_constraint(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    new: &NewConstraint,
    is_empty: bool,
) -> SqlResult<()> {
    if let Some(name) = &new.name {
        check_name(name)?;
        if constraint_names(table).any(|other| other == name) {
            return Err(SqlError::new(
                SqlState::DUPLICATE_OBJECT,
                format!(
                    "constraint \"{name}\" for relation \"{}\" already exists",
                    table.name
                ),
            ));
        }
    }
    match &new.kind {
        ConstraintKind::PrimaryKey(names) => add_primary_key(changes, table, new, names),
        ConstraintKind::Unique(names) => {
            let columns = index_columns(table, names)?;
            let name = match &new.name {
                Some(name) => {
                    changes.take_name(name)?;
                    name.clone()
                }
                None => {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    changes.free_name(&table.name, &names, "key")
                }
            };
            let index = new_index(changes, name, columns, true, true, is_empty);
            table.indexes.push(index);
            Ok(())
        }
        ConstraintKind::Check {
            expression,
            text,
            columns,
        } => {
            let name = new.name.clone().unwrap_or_else(|| {
                let column: Vec<&str> = match &columns[..] {
                    [column] => vec![column],
                    _ => Vec::new(),
                };
                free_constraint(table, &column, "check")
            });
            table.checks.push(CheckDef {
                name,
                expression: expression.clone(),
                text: text.clone(),
            });
            Ok(())
        }
        ConstraintKind::ForeignKey { .. } => add_foreign_key(changes, table, new, is_empty),
    }
}

/// Returns the names of a table's constraints.
pub fn constraint_names(table: &TableDef) -> impl Iterator<Item = &String> {
    let keys = table.foreign_keys.iter().map(|key| &key.name);
    let checks = table.checks.iter().map(|check| &check.name);
    let unique = table.indexes.iter().filter(|index| index.is_constraint);
    let primary = (!table.primary_key.is_empty()).then_some(&table.primary_key_name);
    keys.chain(checks)
        .chain(unique.map(|index| &index.name))
        .chain(primary)
}

fn free_constraint(table: &TableDef, columns: &[&str], suffix: &str) -> String {
    let mut base = table.name.clone();
    for column in columns {
        base.push('_');
        base.push_str(column);
    }
    let mut number = 0;
    loop {
        let name = match number {
            0 => format!("{base}_{suffix}"),
            n => format!("{base}_{suffix}{n}"),
        };
        if !constraint_names(table).any(|other| *other == name) {
            return name;
        }
        number += 1;
    }
}

fn add_primary_key(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    new: &NewConstraint,
    names: &[String],
) -> SqlResult<()> {
    if !table.primary_key.is_empty() {
        return Err(SqlError::new(
            SqlState::INVALID_TABLE_DEFINITION,
            format!(
                "multiple primary keys for table \"{}\" are not allowed",
                table.name
            ),
        ));
    }
    let columns = index_columns(table, names)?;
    for at in &columns {
        table.columns[usize::from(*at)].not_null = true;
    }
    table.primary_key_name = match &new.name {
        Some(name) => {
            changes.take_name(name)?;
            name.clone()
        }
        None => changes.free_name(&table.name, &[], "pkey"),
    };
    table.primary_key = columns;
    Ok(())
}

fn add_foreign_key(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    new: &NewConstraint,
    is_empty: bool,
) -> SqlResult<()> {
    let ConstraintKind::ForeignKey {
        columns: names,
        parent: parent_name,
        parent_columns: parent_names,
        on_delete,
        on_update,
    } = &new.kind
    else {
        return Err(SqlError::internal("a foreign key is another constraint"));
    };
    let columns = positions(table, names)?;
    let parent: Arc<TableDef> = match *parent_name == table.name {
        true => Arc::new(table.clone()),
        false => {
            let found = super::find_table(changes.catalog(), parent_name)?;
            changes.table(found.id).unwrap_or_else(|| found.clone())
        }
    };
    let parent_columns = match parent_names.is_empty() {
        true => parent.primary_key.clone(),
        false => positions(&parent, parent_names)?,
    };
    if parent_columns.len() != columns.len() {
        return Err(SqlError::new(
            SqlState::INVALID_FOREIGN_KEY,
            "number of referencing and referenced columns for foreign key disagree",
        ));
    }
    let parent_index = parent_key(&parent, &parent_columns)?;
    for (child, of_parent) in columns.iter().zip(&parent_columns) {
        let (a, b) = (
            &table.columns[usize::from(*child)],
            &parent.columns[usize::from(*of_parent)],
        );
        if !is_comparable(a.ty, b.ty) {
            return Err(SqlError::new(
                SqlState::DATATYPE_MISMATCH,
                format!(
                    "key columns \"{}\" and \"{}\" are of incompatible types: {} and {}",
                    a.name, b.name, a.ty, b.ty
                ),
            ));
        }
    }
    let child_names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = new.name.clone();
    let name = name.unwrap_or_else(|| free_constraint(table, &child_names, "fkey"));
    if !table.is_served(&columns) {
        // Deletes of parents look for children by this index.
        let index_name = changes.free_name(&table.name, &child_names, "idx");
        let index = new_index(changes, index_name, columns.clone(), false, false, is_empty);
        table.indexes.push(index);
    }
    if parent.id != table.id {
        // A transaction that has deleted a parent without this key conflicts.
        let mut parent = TableDef::clone(&parent);
        parent.version += 1;
        changes.put(Object::Table(Arc::new(parent)));
    }
    table.foreign_keys.push(ForeignKeyDef {
        name,
        columns,
        parent: parent.id,
        parent_columns,
        parent_index,
        on_delete: *on_delete,
        on_update: *on_update,
    });
    Ok(())
}

/// Returns the unique index that has exactly the columns; `None` for the primary key.
fn parent_key(parent: &TableDef, columns: &[u16]) -> SqlResult<Option<ObjectId>> {
    let is_key = |key: &[u16]| {
        key.len() == columns.len() && key.iter().all(|column| columns.contains(column))
    };
    if !parent.primary_key.is_empty() && is_key(&parent.primary_key) {
        return Ok(None);
    }
    let mut unique = parent
        .indexes
        .iter()
        .filter(|index| index.unique && index.is_ready);
    match unique.find(|index| is_key(&index.columns)) {
        Some(index) => Ok(Some(index.id)),
        None => Err(SqlError::new(
            SqlState::INVALID_FOREIGN_KEY,
            format!(
                "there is no unique constraint matching given keys for referenced table \"{}\"",
                parent.name
            ),
        )),
    }
}

fn is_comparable(a: SqlType, b: SqlType) -> bool {
    let is_text =
        |ty: SqlType| matches!(ty, SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_));
    let is_same = std::mem::discriminant(&a) == std::mem::discriminant(&b);
    is_same || (a.is_number() && b.is_number()) || (is_text(a) && is_text(b))
}
