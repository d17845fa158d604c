//! The tables and views that a session has declared to SQLite.
//!
//! SQLite has no data of its own here, but it must know a table before it takes a statement on it.
//! Tables are declared when a statement first names them, and again when their definitions change.

use super::Session;
use crate::catalog::{Object, ObjectId};
use crate::error::{SqlError, SqlResult};
use crate::schema::Schema;
use crate::sqlite_error;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a session has declared, by name.
#[derive(Default)]
pub struct Declared {
    objects: BTreeMap<String, DeclaredObject>,
    /// The version of the catalog as of which all of them are right.
    version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct DeclaredObject {
    id: ObjectId,
    version: u64,
    is_view: bool,
}

/// Allows statements to read and write tables. All other actions of SQLite are allowed only while
/// the session declares tables.
pub fn guard(connection: &mut Connection, is_declaring: &Arc<AtomicBool>) -> SqlResult<()> {
    let is_declaring = is_declaring.clone();
    let authorize = move |context: AuthContext<'_>| {
        if is_declaring.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        match context.action {
            AuthAction::Select
            | AuthAction::Read { .. }
            | AuthAction::Insert { .. }
            | AuthAction::Update { .. }
            | AuthAction::Delete { .. }
            | AuthAction::Recursive => Authorization::Allow,
            AuthAction::Function { function_name } if function_name != "load_extension" => {
                Authorization::Allow
            }
            _ => Authorization::Deny,
        }
    };
    let set = connection.authorizer(Some(authorize));
    set.map_err(|e| sqlite_error::of(&e))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns what an object is declared as.
fn declaration(object: &Object) -> Option<DeclaredObject> {
    match object {
        Object::Table(table) => Some(DeclaredObject {
            id: table.id,
            version: table.version,
            is_view: false,
        }),
        Object::View(view) => Some(DeclaredObject {
            id: view.id,
            version: 0,
            is_view: true,
        }),
        Object::Sequence(_) => None,
    }
}

impl Session {
    /// Declares the tables and views that a statement names, as they are in the schema.
    ///
    /// Errors: XX000 if SQLite refuses a declaration.
    pub(super) fn declare(&mut self, schema: &Schema, names: &[String]) -> SqlResult<()> {
        let is_current = self.declared.version == schema.catalog.version;
        let mut is_known = names
            .iter()
            .map(|name| self.declared.objects.contains_key(name));
        if is_current && is_known.all(|known| known) {
            return Ok(());
        }
        self.is_declaring.store(true, Ordering::Relaxed);
        let done = self.declare_changed(schema, names);
        self.is_declaring.store(false, Ordering::Relaxed);
        done.map_err(|e| self.context.take_error().unwrap_or(e))
    }

    fn declare_changed(&mut self, schema: &Schema, names: &[String]) -> SqlResult<()> {
        if self.declared.version != schema.catalog.version {
            let stale: Vec<String> = (self.declared.objects.iter())
                .filter(|(name, declared)| {
                    let now = schema.catalog.object(name).and_then(declaration);
                    now != Some(**declared)
                })
                .map(|(name, _)| name.clone())
                .collect();
            for name in stale {
                let declared = self.declared.objects.get(&name);
                let kind = match declared.is_some_and(|declared| declared.is_view) {
                    true => "VIEW",
                    false => "TABLE",
                };
                self.run_declaration(&format!("DROP {kind} {}", quoted(&name)))?;
                // An interrupted DROP is tried again.
                self.declared.objects.remove(&name);
            }
            self.declared.version = schema.catalog.version;
        }
        for name in names {
            if self.declared.objects.contains_key(name) {
                continue;
            }
            let Some(object) = schema.catalog.object(name) else {
                continue;
            };
            let statement = match object {
                Object::Table(table) => {
                    let module = crate::vtab::MODULE.to_string_lossy();
                    format!(
                        "CREATE VIRTUAL TABLE {} USING {module}",
                        quoted(&table.name)
                    )
                }
                Object::View(view) => {
                    let columns = view.columns.iter().map(|(name, _)| quoted(name));
                    let columns = columns.collect::<Vec<String>>().join(", ");
                    format!(
                        "CREATE VIEW {}({columns}) AS {}",
                        quoted(&view.name),
                        view.query
                    )
                }
                Object::Sequence(_) => continue,
            };
            self.run_declaration(&statement)?;
            if let Some(declared) = declaration(object) {
                self.declared.objects.insert(name.clone(), declared);
            }
        }
        Ok(())
    }

    fn run_declaration(&self, statement: &str) -> SqlResult<()> {
        self.connection.execute_batch(statement).map_err(|e| {
            SqlError::internal(format!("SQLite refuses the declaration {statement:?}: {e}"))
        })
    }
}
