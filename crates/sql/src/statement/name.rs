//! Names: how they are folded, quoted and qualified.

use super::parse::{Places, positioned};
use super::system::is_reserved;
use crate::error::{SqlError, SqlResult, SqlState};
use sqlparser::ast::{Ident, ObjectName, ObjectNamePart};

/// Maximum bytes of a name, as in PostgreSQL.
const MAX_NAME_BYTES: usize = 63;

/// Returns a name as PostgreSQL takes it: in lower case unless it was quoted, and cut.
pub(super) fn fold(ident: &Ident) -> String {
    let mut name = match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    };
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES)
            .rev()
            .find(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or(0));
    }
    name
}

/// Returns a name in double quotes, for the executor.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns a text in single quotes, for the executor.
pub(super) fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A name of a table, view, sequence or index, with its schema if it is not `public`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Qualified {
    /// `pg_catalog` or `information_schema`.
    pub(super) schema: Option<String>,
    pub(super) name: String,
    pub(super) position: Option<u32>,
}

impl Qualified {
    /// Returns the name with its schema, for messages.
    pub(super) fn display(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// Returns the parts of a name.
pub(super) fn parts(name: &ObjectName) -> SqlResult<Vec<&Ident>> {
    let mut out = Vec::new();
    for part in &name.0 {
        match part {
            ObjectNamePart::Identifier(ident) => out.push(ident),
            ObjectNamePart::Function(_) => {
                return Err(SqlError::unsupported("a function in a name"));
            }
        }
    }
    Ok(out)
}

/// Returns the name of an object. The schema `public` is dropped, and schemas other than those of
/// the system are refused with 3F000.
pub(super) fn qualified(name: &ObjectName, places: &Places) -> SqlResult<Qualified> {
    let mut parts = parts(name)?;
    let last = parts
        .pop()
        .ok_or_else(|| SqlError::syntax("an empty name"))?;
    let position = parts.first().unwrap_or(&last).span.start;
    let position = places.position(position);
    let schema = parts.pop().map(fold);
    if let Some(database) = parts.pop() {
        let message = format!(
            "cross-database references are not implemented: \"{}\"",
            fold(database)
        );
        let error = SqlError::new(SqlState::FEATURE_NOT_SUPPORTED, message);
        return Err(positioned(error, position));
    }
    let schema = match schema.as_deref() {
        None | Some("public") => None,
        Some("pg_catalog" | "information_schema") => schema,
        Some(other) => {
            let message = format!("schema \"{other}\" does not exist");
            let error = SqlError::new(SqlState::INVALID_SCHEMA_NAME, message);
            return Err(positioned(error, position));
        }
    };
    let name = fold(last);
    if name.is_empty() {
        return Err(SqlError::syntax("zero-length delimited identifier"));
    }
    Ok(Qualified {
        schema,
        name,
        position,
    })
}

/// Returns the name of an object of the user. The schemas of the system are refused with 42501.
pub(super) fn user_name(name: &ObjectName, places: &Places) -> SqlResult<String> {
    let found = qualified(name, places)?;
    match &found.schema {
        None if is_reserved(&found.name) => {
            let message = format!("the name \"{}\" is reserved for the system", found.name);
            Err(SqlError::new(SqlState("42939"), message))
        }
        None => Ok(found.name),
        Some(_) => {
            let message = format!(
                "permission denied: \"{}\" is of the system",
                found.display()
            );
            Err(SqlError::new(SqlState::INSUFFICIENT_PRIVILEGE, message))
        }
    }
}

/// Returns the one name of a column.
pub(super) fn column_name(name: &ObjectName) -> SqlResult<&Ident> {
    match parts(name)?[..] {
        [ident] => Ok(ident),
        _ => Err(SqlError::syntax(format!("a qualified column name: {name}"))),
    }
}
