//! A database on a simulated disk, its content as text, and short calls on it.

use basalt::env::Env;
use basalt::log::LogEngineOptions;
use basalt::{FamilyOptions, Options, PassiveOptions};
use basalt_sim::{SimFs, SimOptions};
use basalt_sql::catalog::Object;
use basalt_sql::{Database, DatabaseOptions, Row, Session, SqlError, SqlResult, StorageLog};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Directory of the database.
pub const DIR: &str = "db";

/// The rows of each table and view, as sorted text, behind a line with the names of the columns.
pub type Content = BTreeMap<String, Vec<String>>;

pub fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit: 512,
        capacity: 1 << 28,
        seed,
    })
}

/// Returns settings under which few rows already make flushes, and families that are persisted up
/// to different transactions. Some seeds keep little of the binlog.
pub fn options(seed: u64, storage_log: StorageLog) -> DatabaseOptions {
    let families = FamilyOptions::default()
        .block_bytes(512)
        .table_bytes(8 << 10);
    let passive = PassiveOptions::default()
        .max_pinned_log_bytes(Some([5 << 10, 24 << 10, 1 << 30][seed as usize % 3]));
    DatabaseOptions::default()
        .storage_log(storage_log)
        .binlog_retention_bytes([1 << 30, 2 << 10][seed as usize % 2])
        .tables(Options::default().write_buffer_bytes([64 << 10, 12 << 10][seed as usize % 2]))
        .logs(LogEngineOptions::default())
        .passive(passive)
        .families(families)
}

/// Returns all modes of a store under a binlog.
pub fn storage_log(seed: u64) -> StorageLog {
    match seed % 8 {
        3 => StorageLog::Own { synced: true },
        7 => StorageLog::Own { synced: false },
        _ => StorageLog::None,
    }
}

/// A session with its database.
pub struct Sql {
    pub database: Database,
    pub session: Session,
}

impl Sql {
    pub fn open(env: &Env, dir: &str, options: &DatabaseOptions) -> SqlResult<Sql> {
        Sql::of(&Database::open(env, dir, options.clone())?)
    }

    pub fn of(database: &Database) -> SqlResult<Sql> {
        Ok(Sql {
            database: database.clone(),
            session: database.session()?,
        })
    }

    /// Runs a script. Returns the rows of its last statement, with `|` between columns.
    pub fn try_run(&mut self, script: &str) -> SqlResult<Vec<String>> {
        let mut rows = Vec::new();
        for statement in self.session.parse(script)? {
            let prepared = self.session.prepare(&statement, &[])?;
            rows.clear();
            let mut sink = |row: &Row<'_>| {
                let columns = prepared.columns().iter().enumerate();
                let texts = columns.map(|(at, column)| {
                    let mut text = String::new();
                    column.ty.write_text(row.get(at)?, &mut text);
                    Ok(text)
                });
                rows.push(texts.collect::<SqlResult<Vec<String>>>()?.join("|"));
                Ok(())
            };
            self.session.execute(&prepared, &[], &mut sink)?;
        }
        Ok(rows)
    }

    /// Runs a script that succeeds.
    pub fn run(&mut self, script: &str) -> Vec<String> {
        let rows = self.try_run(script);
        rows.unwrap_or_else(|e| panic!("{script}\nfails: {e}"))
    }

    /// Returns the content of all tables and views.
    pub fn try_content(&mut self) -> SqlResult<Content> {
        let catalog = self.database.catalog();
        let mut content = Content::new();
        for object in catalog.objects() {
            if let Object::Sequence(_) = object {
                continue;
            }
            let query = format!("SELECT * FROM {}", object.name());
            let statement = self.session.parse(&query)?.remove(0);
            let prepared = self.session.prepare(&statement, &[])?;
            let names = prepared.columns().iter().map(|c| c.name.clone());
            let names = names.collect::<Vec<String>>().join("|");
            let mut rows = self.try_run(&query)?;
            rows.sort_unstable();
            rows.insert(0, names);
            content.insert(object.name().to_owned(), rows);
        }
        Ok(content)
    }

    /// Returns the content of all tables and views of a database on a sound disk.
    pub fn content(&mut self) -> Content {
        let content = self.try_content();
        content.unwrap_or_else(|e| panic!("the content cannot be read: {e}"))
    }

    /// Checks rows, index entries and references against each other.
    pub fn check(&self) {
        let report = self.database.check(&mut |_| ()).expect("a sound disk");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }

    /// Stops the database as the death of the process would.
    pub fn abandon(self) {
        self.database.store().db().clone().abandon();
    }
}

/// Compares the content of two databases, table by table.
///
/// # Panics
/// If they differ. The message has the first table that does.
pub fn assert_same(found: &Content, wanted: &Content, what: &str) {
    for (name, rows) in wanted {
        assert_eq!(found.get(name), Some(rows), "table {name}, {what}");
    }
    let names = |content: &Content| content.keys().cloned().collect::<Vec<String>>();
    assert_eq!(names(found), names(wanted), "{what}");
}

/// Says whether an error is one that a sound database gives for a statement that does not fit.
pub fn is_of_statement(e: &SqlError) -> bool {
    let class = &e.state().0[..2];
    matches!(class, "22" | "23" | "2B" | "42") || e.state().0 == "25001"
}
