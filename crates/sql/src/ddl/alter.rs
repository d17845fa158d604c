//! ALTER TABLE.

use super::table::{add_column, add_constraint, constraint_names};
use super::{Changes, DROP_REFERENCES, check_name, find_table, refuse_readers, remove_index};
use crate::catalog::{Object, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::keys::KeyType;
use crate::statement::{AlterTable, ConstraintKind, NewConstraint};
use crate::types::SqlType;
use std::sync::Arc;

/// Calls in a default that have another value for each row.
const VOLATILE: [&str; 5] = [
    "basalt_nextval(",
    "basalt_uuid(",
    "basalt_random(",
    "random(",
    "basalt_clock",
];

/// Constraints that ALTER TABLE must check against the stored rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Altered {
    /// Columns that became NOT NULL.
    pub not_null: Vec<u16>,
    /// Names of new CHECK constraints.
    pub checks: Vec<String>,
    /// Names of new foreign keys.
    pub foreign_keys: Vec<String>,
}

/// Returns the changes of ALTER TABLE. The new definition of the table is among them. `is_empty`
/// says whether the table has no rows. `evaluate` returns the value of a default.
///
/// Errors: those of bad changes; 0A000 for changes that would rewrite rows.
pub fn alter_table(
    changes: &mut Changes<'_>,
    name: &str,
    alterations: &[AlterTable],
    is_empty: bool,
    evaluate: &dyn Fn(&str) -> SqlResult<crate::value::Value>,
) -> SqlResult<Altered> {
    let mut table = TableDef::clone(find_table(changes.catalog(), name)?);
    let mut altered = Altered::default();
    table.version += 1;
    for alteration in alterations {
        match alteration {
            AlterTable::AddColumn {
                column,
                if_not_exists,
                constraints,
            } => {
                if *if_not_exists && table.column(&column.column.name).is_some() {
                    continue;
                }
                add_column(changes, &mut table, column)?;
                fill_missing(&mut table, is_empty, evaluate)?;
                for constraint in constraints {
                    add(changes, &mut table, constraint, is_empty, &mut altered)?;
                }
            }
            AlterTable::AddConstraint(constraint) => {
                add(changes, &mut table, constraint, is_empty, &mut altered)?;
            }
            // What CASCADE would drop, the foreign keys of other tables, is refused in any case.
            AlterTable::DropColumn {
                name,
                if_exists,
                cascade: _,
            } => {
                if table.column(name).is_none() && *if_exists {
                    continue;
                }
                drop_column(changes, &mut table, name)?;
            }
            AlterTable::RenameColumn { from, to } => {
                rename_column(changes, &mut table, from, to)?;
            }
            AlterTable::RenameTable(to) => {
                changes.take_name(to)?;
                refuse_readers(changes.catalog(), &table.name)?;
                table.name = to.clone();
            }
            AlterTable::SetDefault { column, default } => {
                let at = find_column(&table, column)?;
                table.columns[at].default = default.clone();
            }
            AlterTable::SetNotNull { column, not_null } => {
                let at = find_column(&table, column)?;
                if !not_null && table.primary_key.contains(&(at as u16)) {
                    return Err(SqlError::new(
                        SqlState::INVALID_TABLE_DEFINITION,
                        format!("column \"{column}\" is in a primary key"),
                    ));
                }
                table.columns[at].not_null = *not_null;
                if *not_null {
                    altered.not_null.push(at as u16);
                }
            }
            AlterTable::SetType { column, ty } => set_type(&mut table, column, *ty, is_empty)?,
            AlterTable::DropConstraint {
                name,
                if_exists,
                cascade: _,
            } => {
                if *if_exists && !constraint_names(&table).any(|other| other == name) {
                    continue;
                }
                drop_constraint(changes, &mut table, name)?;
            }
            AlterTable::RenameConstraint { from, to } => {
                rename_constraint(changes, &mut table, from, to)?;
            }
            AlterTable::Nothing => {}
        }
    }
    changes.put(Object::Table(Arc::new(table)));
    Ok(altered)
}

/// A table that gets a primary key, although it has rows.
pub struct Rekeyed {
    /// The definition while rows are written to their new family. The families for the rows, and
    /// for the entries of each index, are those of indexes that are not ready, in this order.
    pub building: TableDef,
    /// The definition when all rows are there.
    pub done: TableDef,
}

/// Returns the definitions of a table with rows that gets a primary key.
///
/// Errors: 42P16, 42703.
pub fn rekey(
    changes: &mut Changes<'_>,
    table: &TableDef,
    constraint: &NewConstraint,
) -> SqlResult<Rekeyed> {
    let mut done = table.clone();
    add_constraint(changes, &mut done, constraint, true)?;
    done.row_sequence = None;
    let mut building = table.clone();
    building.version += 1;
    let name = done.primary_key_name.clone();
    let mut family = |columns: &[u16], name: String| {
        let mut index = super::new_index(changes, name, columns.to_vec(), true, false, false);
        index.storage = index.id;
        building.indexes.push(index.clone());
        index.storage
    };
    done.storage = family(&done.primary_key, name);
    for index in &mut done.indexes {
        index.storage = family(&index.columns, format!("{} (new keys)", index.name));
    }
    Ok(Rekeyed { building, done })
}

/// Renames a table.
pub fn rename_table(changes: &mut Changes<'_>, from: &str, to: &str) -> SqlResult<()> {
    refuse_readers(changes.catalog(), from)?;
    let mut table = TableDef::clone(find_table(changes.catalog(), from)?);
    table.name = to.to_owned();
    table.version += 1;
    changes.put(Object::Table(Arc::new(table)));
    Ok(())
}

fn find_column(table: &TableDef, name: &str) -> SqlResult<usize> {
    let found = table.column(name).map(usize::from);
    found.ok_or_else(|| {
        SqlError::new(
            SqlState::UNDEFINED_COLUMN,
            format!(
                "column \"{name}\" of relation \"{}\" does not exist",
                table.name
            ),
        )
        .with_table(&table.name)
        .with_column(name)
    })
}

/// Gives the newest column its value in rows that are there already.
fn fill_missing(
    table: &mut TableDef,
    is_empty: bool,
    evaluate: &dyn Fn(&str) -> SqlResult<crate::value::Value>,
) -> SqlResult<()> {
    let Some(column) = table.columns.last_mut() else {
        return Ok(());
    };
    if is_empty {
        return Ok(());
    }
    if column.sequence.is_some() {
        return Err(SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!(
                "ADD COLUMN \"{}\" with SERIAL or IDENTITY is not supported in a table that has rows",
                column.name
            ),
        )
        .with_hint("create a new table with the column, and copy the rows into it"));
    }
    if let Some(default) = &column.default {
        if VOLATILE.iter().any(|name| default.contains(name)) {
            return Err(SqlError::unsupported(format!(
                "a column \"{}\" with another default for each row of a table",
                column.name
            ))
            .with_hint("add the column without a default, and fill it by UPDATE"));
        }
        let value = column.ty.coerce(evaluate(default)?)?;
        column.missing = Some(value).filter(|value| !value.is_null());
    }
    if column.not_null && column.missing.is_none() {
        return Err(SqlError::new(
            SqlState::NOT_NULL_VIOLATION,
            format!(
                "column \"{}\" of relation \"{}\" contains null values",
                column.name, table.name
            ),
        )
        .with_hint("give the column a default"));
    }
    Ok(())
}

fn add(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    constraint: &NewConstraint,
    is_empty: bool,
    altered: &mut Altered,
) -> SqlResult<()> {
    if matches!(constraint.kind, ConstraintKind::PrimaryKey(_)) {
        if !is_empty {
            return Err(SqlError::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!(
                    "ADD PRIMARY KEY together with other changes of table \"{}\" is not supported, because the table has rows",
                    table.name
                ),
            )
            .with_hint("add the primary key by a statement of its own"));
        }
        if let Some(sequence) = table.row_sequence.take() {
            changes.remove(sequence);
        }
        // Indexes end with the key of the row, which is another one now.
        table.storage = changes.new_id();
        for index in &mut table.indexes {
            index.storage = changes.new_id();
        }
    }
    add_constraint(changes, table, constraint, is_empty)?;
    match &constraint.kind {
        ConstraintKind::Check { .. } => {
            altered
                .checks
                .extend(table.checks.last().map(|c| c.name.clone()));
        }
        ConstraintKind::ForeignKey { .. } => {
            let added = table.foreign_keys.last();
            altered
                .foreign_keys
                .extend(added.map(|key| key.name.clone()));
        }
        ConstraintKind::PrimaryKey(_) | ConstraintKind::Unique(_) => {}
    }
    Ok(())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn drop_column(changes: &mut Changes<'_>, table: &mut TableDef, name: &str) -> SqlResult<()> {
    let at = find_column(table, name)?;
    let position = at as u16;
    if table.primary_key.contains(&position) {
        return Err(SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("DROP COLUMN \"{name}\" is not supported: the column is in the primary key"),
        ));
    }
    refuse_readers(changes.catalog(), &table.name)?;
    let parents = changes.catalog().children(table.id);
    let mut references = parents.filter(|(_, key)| key.parent_columns.contains(&position));
    if let Some((child, key)) = references.next() {
        let all = [format!(
            "constraint \"{}\" on table \"{}\" depends on it",
            key.name, child.name
        )];
        let column = format!("{name} of table {}", table.name);
        return Err(super::dependent("column", &column, &all, DROP_REFERENCES));
    }
    let mark = quoted(name);
    table
        .checks
        .retain(|check| !check.expression.contains(&mark));
    table
        .foreign_keys
        .retain(|key| !key.columns.contains(&position));
    table
        .indexes
        .retain(|index| !index.columns.contains(&position));
    let unserved = table
        .foreign_keys
        .iter()
        .find(|key| !table.is_served(&key.columns));
    if let Some(key) = unserved {
        return Err(super::dependent(
            "column",
            &format!("{name} of table {}", table.name),
            &[format!(
                "foreign key \"{}\" of table \"{}\" needs an index with it",
                key.name, table.name
            )],
            "create an index on the columns of the foreign key first",
        ));
    }
    let column = &mut table.columns[at];
    column.dropped = true;
    (column.default, column.not_null) = (None, false);
    if let Some(sequence) = column.sequence.take() {
        changes.remove(sequence);
    }
    Ok(())
}

fn rename_column(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    from: &str,
    to: &str,
) -> SqlResult<()> {
    check_name(to)?;
    let at = find_column(table, from)?;
    let lower = to.to_lowercase();
    let mut others = table.columns.iter().enumerate();
    if others.any(|(other, c)| other != at && !c.dropped && c.name.to_lowercase() == lower) {
        return Err(SqlError::new(
            SqlState::DUPLICATE_COLUMN,
            format!(
                "column \"{to}\" of relation \"{}\" already exists",
                table.name
            ),
        ));
    }
    refuse_readers(changes.catalog(), &table.name)?;
    for check in &mut table.checks {
        check.expression = replace_name(&check.expression, &quoted(from), &quoted(to));
        check.text = check.expression.clone();
    }
    table.columns[at].name = to.to_owned();
    Ok(())
}

/// Replaces a quoted name, outside of strings.
fn replace_name(expression: &str, from: &str, to: &str) -> String {
    let mut out = String::with_capacity(expression.len());
    let mut rest = expression;
    while let Some(at) = rest.find(['\'', '"']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let quote = &rest[..1];
        // A doubled quote ends a token and begins the next one, which changes nothing here.
        let end = rest[1..].find(quote).map_or(rest.len(), |end| end + 2);
        let token = &rest[..end];
        out.push_str(if token == from { to } else { token });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn set_type(table: &mut TableDef, name: &str, ty: SqlType, is_empty: bool) -> SqlResult<()> {
    let at = find_column(table, name)?;
    let old = table.columns[at].ty;
    let position = at as u16;
    let keys = table.indexes.iter().map(|index| &index.columns);
    let is_key = keys
        .chain([&table.primary_key])
        .any(|key| key.contains(&position));
    let is_wider = match (old, ty) {
        (old, new) if old == new => true,
        (SqlType::SmallInt, SqlType::Integer | SqlType::BigInt)
        | (SqlType::Integer, SqlType::BigInt)
        | (SqlType::Real, SqlType::Double)
        | (SqlType::Varchar(_) | SqlType::Char(_), SqlType::Text | SqlType::Varchar(None))
        | (SqlType::Text, SqlType::Varchar(None))
        | (SqlType::Numeric(_), SqlType::Numeric(None)) => true,
        (SqlType::Varchar(Some(old)), SqlType::Varchar(Some(new))) => new >= old,
        (SqlType::Numeric(Some((p, s))), SqlType::Numeric(Some((precision, scale)))) => {
            s == scale && precision >= p
        }
        _ => false,
    };
    let same_key = KeyType::of(old) == KeyType::of(ty);
    if !is_empty && (!is_wider || (is_key && !same_key)) {
        return Err(SqlError::unsupported(format!(
            "a change of column \"{name}\" from {old} to {ty} in a table with rows"
        ))
        .with_hint("add a column of the new type, fill it by UPDATE, and drop the old one"));
    }
    table.columns[at].ty = ty;
    Ok(())
}

fn drop_constraint(changes: &mut Changes<'_>, table: &mut TableDef, name: &str) -> SqlResult<()> {
    if let Some(at) = table.checks.iter().position(|check| check.name == name) {
        table.checks.remove(at);
        return Ok(());
    }
    if let Some(at) = table.foreign_keys.iter().position(|key| key.name == name) {
        table.foreign_keys.remove(at);
        return Ok(());
    }
    let index = table
        .indexes
        .iter()
        .find(|index| index.is_constraint && index.name == name);
    if let Some(index) = index.map(|index| index.id) {
        remove_index(changes, table.clone(), index, true)?;
        table.indexes.retain(|other| other.id != index);
        return Ok(());
    }
    match !table.primary_key.is_empty() && table.primary_key_name == name {
        true => Err(SqlError::unsupported("a drop of a primary key")),
        false => Err(SqlError::new(
            SqlState::UNDEFINED_OBJECT,
            format!(
                "constraint \"{name}\" of relation \"{}\" does not exist",
                table.name
            ),
        )),
    }
}

fn rename_constraint(
    changes: &mut Changes<'_>,
    table: &mut TableDef,
    from: &str,
    to: &str,
) -> SqlResult<()> {
    check_name(to)?;
    if constraint_names(table).any(|other| other == to) {
        return Err(SqlError::new(
            SqlState::DUPLICATE_OBJECT,
            format!(
                "constraint \"{to}\" for relation \"{}\" already exists",
                table.name
            ),
        ));
    }
    if let Some(check) = table.checks.iter_mut().find(|check| check.name == from) {
        check.name = to.to_owned();
    } else if let Some(key) = table.foreign_keys.iter_mut().find(|key| key.name == from) {
        key.name = to.to_owned();
    } else if let Some(index) = table.indexes.iter_mut().find(|index| index.name == from) {
        changes.take_name(to)?;
        index.name = to.to_owned();
    } else if table.primary_key_name == from {
        changes.take_name(to)?;
        table.primary_key_name = to.to_owned();
    } else {
        return Err(SqlError::new(
            SqlState::UNDEFINED_OBJECT,
            format!(
                "constraint \"{from}\" of relation \"{}\" does not exist",
                table.name
            ),
        ));
    }
    Ok(())
}
