//! The rows of the relations of `information_schema`.

use super::relation_rows::{Cells, Input, cells};
use crate::catalog::{ColumnPosition, SequenceDef, TableDef};
use crate::context::DATABASE;
use crate::definition::{self as def, ConstraintKind, ConstraintRef};
use crate::types::SqlType;
use crate::value::Value;

/// Returns the rows of a relation of `information_schema`, by its name.
pub fn of(input: &Input<'_>, name: &str) -> Vec<Cells> {
    match name {
        "schemata" => {
            let schemas = ["information_schema", "pg_catalog", "public"];
            let row = |name: &str| {
                cells! { catalog_name: DATABASE, schema_name: name, schema_owner: input.user }
            };
            schemas.into_iter().map(row).collect()
        }
        "tables" => tables(input),
        "views" => input
            .views()
            .map(|view| {
                let text = def::view_definition(input.catalog, def::object_oid(view.id));
                let mut row = relation(&view.name);
                row.extend(cells! {
                    view_definition: text.unwrap_or_default(), is_updatable: "NO",
                });
                row
            })
            .collect(),
        "columns" => columns(input),
        "sequences" => input.sequences().map(sequence).collect(),
        "table_constraints" => each(input, &|table, constraint| {
            let kind = match constraint.kind {
                ConstraintKind::PrimaryKey => "PRIMARY KEY",
                ConstraintKind::Unique(_) => "UNIQUE",
                ConstraintKind::Check(_) => "CHECK",
                ConstraintKind::ForeignKey(_) => "FOREIGN KEY",
            };
            let mut row = named(constraint.name);
            row.extend(relation(&table.name));
            row.extend(cells! {
                constraint_type: kind, is_deferrable: "NO", initially_deferred: "NO",
            });
            vec![row]
        }),
        "key_column_usage" => each(input, &|table, constraint| {
            key_columns(input, table, constraint)
        }),
        "referential_constraints" => each(input, &|_, constraint| {
            referential(input, constraint).into_iter().collect()
        }),
        "constraint_column_usage" => each(input, &|table, constraint| {
            used_columns(input, table, constraint)
        }),
        "check_constraints" => each(input, &|_, constraint| {
            let ConstraintKind::Check(check) = constraint.kind else {
                return Vec::new();
            };
            let mut row = named(constraint.name);
            row.push(("check_clause", Value::from(&*check.text)));
            vec![row]
        }),
        _ => Vec::new(),
    }
}

/// Returns the rows of all constraints.
fn each(
    input: &Input<'_>,
    rows: &dyn Fn(&TableDef, &ConstraintRef<'_>) -> Vec<Cells>,
) -> Vec<Cells> {
    let mut all = Vec::new();
    for table in input.catalog.tables() {
        for constraint in def::constraints(table) {
            all.extend(rows(table, &constraint));
        }
    }
    all
}

fn relation(name: &str) -> Cells {
    cells! { table_catalog: DATABASE, table_schema: "public", table_name: name }
}

fn named(constraint: &str) -> Cells {
    cells! {
        constraint_catalog: DATABASE, constraint_schema: "public", constraint_name: constraint,
    }
}

fn tables(input: &Input<'_>) -> Vec<Cells> {
    let mut all = Vec::new();
    for table in input.catalog.tables() {
        let mut row = relation(&table.name);
        row.extend(cells! { table_type: "BASE TABLE", is_insertable_into: "YES" });
        all.push(row);
    }
    for view in input.views() {
        let mut row = relation(&view.name);
        row.extend(cells! { table_type: "VIEW", is_insertable_into: "NO" });
        all.push(row);
    }
    all
}

/// Returns the cells that describe the type of a column.
fn type_cells(ty: SqlType) -> Cells {
    let without = match ty {
        SqlType::Varchar(_) => "character varying".to_owned(),
        SqlType::Char(_) => "character".to_owned(),
        SqlType::Numeric(_) => "numeric".to_owned(),
        ty => ty.to_string(),
    };
    let mut row = cells! {
        data_type: without, udt_schema: "pg_catalog", udt_name: def::type_row_of(ty).name,
    };
    let (precision, scale) = match ty {
        SqlType::SmallInt => (Some(16), Some(0)),
        SqlType::Integer => (Some(32), Some(0)),
        SqlType::BigInt => (Some(64), Some(0)),
        SqlType::Real => (Some(24), None),
        SqlType::Double => (Some(53), None),
        SqlType::Numeric(Some((precision, scale))) => {
            (Some(i64::from(precision)), Some(i64::from(scale)))
        }
        _ => (None, None),
    };
    row.extend(precision.map(|n| ("numeric_precision", Value::from(n))));
    row.extend(scale.map(|n| ("numeric_scale", Value::from(n))));
    match ty {
        SqlType::Varchar(Some(n)) | SqlType::Char(n) => {
            row.push(("character_maximum_length", Value::from(i64::from(n))));
        }
        SqlType::Date => row.push(("datetime_precision", Value::from(0))),
        SqlType::Time | SqlType::Timestamp | SqlType::Timestamptz => {
            row.push(("datetime_precision", Value::from(6)));
        }
        _ => {}
    }
    row
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "YES" } else { "NO" }
}

fn columns(input: &Input<'_>) -> Vec<Cells> {
    let mut all = Vec::new();
    for table in input.catalog.tables() {
        for (at, column) in table.visible() {
            let is_null = !column.not_null && !table.primary_key.contains(&at);
            let is_identity = def::is_identity(column);
            let mut row = relation(&table.name);
            row.extend(cells! {
                column_name: &*column.name,
                ordinal_position: i64::from(at) + 1,
                is_nullable: yes_or_no(is_null),
                is_identity: yes_or_no(is_identity),
                is_generated: "NEVER",
                is_updatable: "YES",
            });
            row.extend(type_cells(column.ty));
            match is_identity {
                true => row.push(("identity_generation", Value::from("ALWAYS"))),
                false => {
                    let text = def::default_text(input.catalog, column);
                    row.extend(text.map(|text| ("column_default", Value::from(text))));
                }
            }
            all.push(row);
        }
    }
    for view in input.views() {
        for (at, (name, ty)) in view.columns.iter().enumerate() {
            let mut row = relation(&view.name);
            row.extend(cells! {
                column_name: &**name,
                ordinal_position: at as i64 + 1,
                is_nullable: "YES",
                is_identity: "NO",
                is_generated: "NEVER",
                is_updatable: "NO",
            });
            row.extend(type_cells(*ty));
            all.push(row);
        }
    }
    all
}

fn sequence(sequence: &SequenceDef) -> Cells {
    let (least, largest) = def::sequence_bounds(sequence);
    cells! {
        sequence_catalog: DATABASE,
        sequence_schema: "public",
        sequence_name: &*sequence.name,
        data_type: "bigint",
        start_value: sequence.start.to_string(),
        minimum_value: least.to_string(),
        maximum_value: largest.to_string(),
        increment: sequence.increment.to_string(),
        cycle_option: "NO",
    }
}

fn name_of(table: &TableDef, column: ColumnPosition) -> &str {
    let column = table.columns.get(usize::from(column));
    column.map_or("", |column| &column.name)
}

fn key_columns(input: &Input<'_>, table: &TableDef, constraint: &ConstraintRef<'_>) -> Vec<Cells> {
    let columns = match constraint.kind {
        ConstraintKind::PrimaryKey => &table.primary_key,
        ConstraintKind::Unique(index) => &index.columns,
        ConstraintKind::ForeignKey(key) => &key.columns,
        ConstraintKind::Check(_) => return Vec::new(),
    };
    let row = |(at, column): (usize, &ColumnPosition)| {
        let mut row = named(constraint.name);
        row.extend(relation(&table.name));
        row.extend(cells! {
            column_name: name_of(table, *column), ordinal_position: at as i64 + 1,
        });
        if let ConstraintKind::ForeignKey(key) = constraint.kind {
            let parent = input.catalog.table_by_id(key.parent);
            let unique = parent.map(|parent| match key.parent_index {
                None => &parent.primary_key[..],
                Some(id) => parent.index(id).map_or(&[][..], |index| &index.columns),
            });
            let wanted = key.parent_columns.get(at);
            let found = unique.and_then(|all| all.iter().position(|column| Some(column) == wanted));
            row.extend(
                found.map(|at| ("position_in_unique_constraint", Value::from(at as i64 + 1))),
            );
        }
        row
    };
    columns.iter().enumerate().map(row).collect()
}

fn referential(input: &Input<'_>, constraint: &ConstraintRef<'_>) -> Option<Cells> {
    let ConstraintKind::ForeignKey(key) = constraint.kind else {
        return None;
    };
    let parent = input.catalog.table_by_id(key.parent)?;
    let unique = match key.parent_index {
        None => &parent.primary_key_name,
        Some(id) => &parent.index(id)?.name,
    };
    let mut row = named(constraint.name);
    row.extend(cells! {
        unique_constraint_catalog: DATABASE,
        unique_constraint_schema: "public",
        unique_constraint_name: &**unique,
        match_option: "NONE",
        update_rule: def::action_name(key.on_update),
        delete_rule: def::action_name(key.on_delete),
    });
    Some(row)
}

fn used_columns(input: &Input<'_>, table: &TableDef, constraint: &ConstraintRef<'_>) -> Vec<Cells> {
    let (owner, columns) = match constraint.kind {
        ConstraintKind::PrimaryKey => (table, &table.primary_key),
        ConstraintKind::Unique(index) => (table, &index.columns),
        ConstraintKind::ForeignKey(key) => match input.catalog.table_by_id(key.parent) {
            Some(parent) => (&**parent, &key.parent_columns),
            None => return Vec::new(),
        },
        ConstraintKind::Check(_) => return Vec::new(),
    };
    let row = |column: &ColumnPosition| {
        let mut row = relation(&owner.name);
        row.extend(cells! { column_name: name_of(owner, *column) });
        row.extend(named(constraint.name));
        row
    };
    columns.iter().map(row).collect()
}
