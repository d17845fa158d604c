//! Functions over the catalog: definitions of objects, numbers of relations, sizes, and the texts
//! that stand for arrays.

use super::Behaviour::{Pure, Strict, Volatile};
use super::{Arguments, Entry};
use crate::array_text::{array_item, array_items};
use crate::definition as def;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::value::{Value, ValueRef};

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_regclass", 1, Volatile, |a| {
        let ValueRef::Integer(oid) = a.get(0)? else {
            return Ok(a.get(0)?.to_value());
        };
        let name = def::relation_name(&a.context.schema().catalog, oid);
        Ok(Value::Text(name.unwrap_or_else(|| oid.to_string())))
    }),
    ("basalt_regclass_oid", 1, Volatile, |a| {
        if a.any_null() {
            return Ok(Value::Null);
        }
        let name = a.text(0)?;
        let oid = relation_oid(a, &name).ok_or_else(|| {
            let message = format!("relation \"{name}\" does not exist");
            SqlError::new(SqlState::UNDEFINED_TABLE, message)
        })?;
        Ok(Value::Integer(oid))
    }),
    ("basalt_to_regclass", 1, Volatile, |a| {
        if a.any_null() {
            return Ok(Value::Null);
        }
        let name = a.text(0)?;
        Ok(relation_oid(a, &name).map_or(Value::Null, Value::Integer))
    }),
    ("basalt_regtype_oid", 1, Strict, |a| {
        let name = a.text(0)?;
        let plain = name.trim().trim_matches('"').to_lowercase();
        let plain = plain.strip_prefix("pg_catalog.").unwrap_or(&plain);
        let found = def::TYPES.iter().find(|ty| ty.name == plain);
        let oid = found.map(|ty| ty.oid).ok_or_else(|| {
            let message = format!("type \"{name}\" does not exist");
            SqlError::new(SqlState::UNDEFINED_OBJECT, message)
        })?;
        Ok(Value::Integer(oid))
    }),
    ("basalt_is_visible", 1, Strict, |a| {
        Ok(Value::from(def::is_visible(a.integer(0)?)))
    }),
    ("basalt_get_indexdef", -1, Volatile, index_definition),
    ("basalt_get_constraintdef", -1, Volatile, |a| {
        let Some(oid) = number(a, 0)? else {
            return Ok(Value::Null);
        };
        let schema = a.context.schema();
        let found = def::find_constraint(&schema.catalog, oid);
        Ok(found.map_or(Value::Null, |(table, constraint)| {
            let catalog = &schema.catalog;
            Value::Text(def::constraint_definition(catalog, table, constraint.kind))
        }))
    }),
    ("basalt_get_viewdef", -1, Volatile, |a| {
        let oid = match a.get(0)? {
            ValueRef::Null => return Ok(Value::Null),
            ValueRef::Text(name) => relation_oid(a, name),
            _ => number(a, 0)?,
        };
        let schema = a.context.schema();
        let text = oid.and_then(|oid| def::view_definition(&schema.catalog, oid));
        Ok(text.map_or(Value::Null, Value::Text))
    }),
    ("basalt_get_serial_sequence", 2, Volatile, |a| {
        if a.any_null() {
            return Ok(Value::Null);
        }
        let (table, column) = (a.text(0)?, a.text(1)?);
        let found = def::serial_sequence(&a.context.schema().catalog, &table, &column);
        Ok(found.map_or(Value::Null, Value::Text))
    }),
    ("basalt_relation_size", -1, Volatile, |a| {
        let oid = match a.get(0)? {
            ValueRef::Null => return Ok(Value::Null),
            ValueRef::Text(name) => relation_oid(a, name),
            _ => number(a, 0)?,
        };
        let Some(oid) = oid else {
            return Ok(Value::Null);
        };
        a.context.relation_bytes(oid).map(Value::Integer)
    }),
    ("basalt_database_size", 1, Volatile, |a| {
        a.context.database_bytes().map(Value::Integer)
    }),
    ("basalt_size_pretty", 1, Strict, |a| {
        Ok(Value::Text(size_text(a.integer(0)?)))
    }),
    ("basalt_array", -1, Pure, |a| {
        let items = (0..a.len()).map(|at| array_item(a.get(at)?));
        let items = items.collect::<SqlResult<Vec<String>>>()?;
        Ok(Value::Text(format!("{{{}}}", items.join(","))))
    }),
    ("basalt_array_item", 1, Pure, |a| {
        array_item(a.get(0)?).map(Value::Text)
    }),
    ("basalt_array_json", 1, Strict, |a| {
        let items = array_items(&a.text(0)?);
        let texts = items.into_iter().map(|item| match item {
            None => "null".to_owned(),
            Some(text) if text.parse::<i64>().is_ok() => text,
            Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        });
        Ok(Value::Text(format!(
            "[{}]",
            texts.collect::<Vec<String>>().join(",")
        )))
    }),
    ("basalt_array_to_string", 2, Strict, |a| {
        let items = array_items(&a.text(0)?).into_iter().flatten();
        Ok(Value::Text(
            items.collect::<Vec<String>>().join(&a.text(1)?),
        ))
    }),
    ("basalt_array_remove", 2, Strict, |a| {
        let removed = a.text(1)?;
        let items = array_items(&a.text(0)?).into_iter();
        let kept = items.filter(|item| item.as_deref() != Some(&*removed));
        let kept =
            kept.map(|item| array_item(item.as_deref().map_or(ValueRef::Null, ValueRef::Text)));
        Ok(Value::Text(format!(
            "{{{}}}",
            kept.collect::<SqlResult<Vec<String>>>()?.join(",")
        )))
    }),
    ("basalt_array_get", 2, Strict, |a| {
        let at = usize::try_from(a.integer(1)?).unwrap_or(usize::MAX);
        let item = array_items(&a.text(0)?).into_iter().nth(at).flatten();
        Ok(item.map_or(Value::Null, |item| match item.parse() {
            Ok(n) => Value::Integer(n),
            Err(_) => Value::Text(item),
        }))
    }),
    // The first subscript: vectors of numbers begin at 0.
    ("basalt_array_lower", 1, Strict, |a| {
        Ok(Value::from(a.text(0)?.trim().starts_with('{')))
    }),
    ("basalt_current_setting", -1, Volatile, |a| {
        if a.get(0)? == ValueRef::Null {
            return Ok(Value::Null);
        }
        let name = a.text(0)?.to_lowercase();
        let is_missing_fine = a.len() > 1 && a.integer(1)? != 0;
        match a.context.setting(&name) {
            Some(value) => Ok(Value::Text(value)),
            None if is_missing_fine => Ok(Value::Null),
            None => {
                let message = format!("unrecognized configuration parameter \"{name}\"");
                Err(SqlError::new(SqlState::UNDEFINED_OBJECT, message))
            }
        }
    }),
    ("basalt_array_upper", 2, Strict, |a| {
        let count = array_items(&a.text(0)?).len();
        Ok(match count {
            0 => Value::Null,
            count => Value::Integer(count as i64),
        })
    }),
];

/// Returns the number of a relation that a text names, or that is its number.
fn relation_oid(a: &Arguments<'_, '_>, text: &str) -> Option<i64> {
    match text.trim().parse() {
        Ok(oid) => Some(oid),
        Err(_) => def::relation_oid(&a.context.schema().catalog, text),
    }
}

fn number(a: &Arguments<'_, '_>, at: usize) -> SqlResult<Option<i64>> {
    match at < a.len() && a.get(at)? != ValueRef::Null {
        true => a.integer(at).map(Some),
        false => Ok(None),
    }
}

/// Returns the statement of an index, or the name of one of its columns.
fn index_definition(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let Some(oid) = number(a, 0)? else {
        return Ok(Value::Null);
    };
    let schema = a.context.schema();
    let Some((table, index)) = def::find_index(&schema.catalog, oid) else {
        return Ok(Value::Null);
    };
    let column = number(a, 1)?.unwrap_or(0);
    if column == 0 {
        return Ok(Value::Text(def::index_definition(table, &index)));
    }
    let at = usize::try_from(column - 1)
        .ok()
        .and_then(|at| index.columns.get(at));
    let column = at.and_then(|at| table.columns.get(usize::from(*at)));
    Ok(column.map_or(Value::Null, |c| Value::Text(def::quote_name(&c.name))))
}

/// Returns bytes with a unit, as `pg_size_pretty` does.
fn size_text(bytes: i64) -> String {
    let (mut size, mut unit) = (bytes as f64, 0);
    while size.abs() >= 10_240.0 && unit < 5 {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    format!("{:.0} {}", size, units[unit])
}
