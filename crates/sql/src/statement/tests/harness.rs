//! A small database: a catalog, and tables of SQLite with the same definitions.

use super::super::*;
use crate::catalog::{Catalog, CheckDef, IndexDef, Object, SequenceDef, TableDef, ViewDef};
use crate::functions::{FunctionContext, register};
use crate::schema::Schema;
use crate::translate::Families;
use crate::{SqlError, SqlResult, SqlType, Value};
use basalt::Family;
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::types::Value as Native;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time, random numbers and sequences of the tests.
#[derive(Default)]
pub struct TestContext {
    pub raised: Mutex<Option<SqlError>>,
    pub sequences: Mutex<BTreeMap<u32, i64>>,
    rng: Mutex<u64>,
}

impl FunctionContext for TestContext {
    fn transaction_time_us(&self) -> i64 {
        // 2026-03-04 05:06:07.89
        1_772_600_767_890_000
    }
    fn clock_us(&self) -> i64 {
        1_772_600_768_000_000
    }
    fn random(&self) -> u64 {
        let mut rng = self.rng.lock();
        *rng = rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (*rng ^ (*rng >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
    fn nextval(&self, sequence: u32) -> SqlResult<i64> {
        let mut sequences = self.sequences.lock();
        let value = sequences.entry(sequence).or_insert(0);
        *value += 1;
        Ok(*value)
    }
    fn currval(&self, sequence: u32) -> SqlResult<i64> {
        let value = self.sequences.lock().get(&sequence).copied();
        value.ok_or_else(|| SqlError::internal("currval is not yet defined"))
    }
    fn setval(&self, sequence: u32, value: i64, is_called: bool) -> SqlResult<i64> {
        self.sequences
            .lock()
            .insert(sequence, value - i64::from(!is_called));
        Ok(value)
    }
    fn raise(&self, error: SqlError) {
        *self.raised.lock() = Some(error);
    }
    fn user(&self) -> String {
        "tester".to_string()
    }
    fn database(&self) -> String {
        "basalt".to_string()
    }
    fn schema(&self) -> Arc<Schema> {
        let nothing = Family::detached(0);
        Arc::new(Schema::new(Catalog::default(), Families::new(), nothing))
    }
    fn setting(&self, _: &str) -> Option<String> {
        None
    }
    fn relation_bytes(&self, _: i64) -> SqlResult<i64> {
        Ok(0)
    }
    fn database_bytes(&self) -> SqlResult<i64> {
        Ok(0)
    }
}

/// A catalog, and a connection with its tables.
pub struct Harness {
    pub catalog: Catalog,
    pub connection: Connection,
    pub context: Arc<TestContext>,
}

/// The tables of most tests.
pub const SETUP: &[&str] = &[
    "CREATE TABLE t1 (a INT PRIMARY KEY, b INT, c VARCHAR(20))",
    "INSERT INTO t1 VALUES (1,10,'x'),(2,20,'y'),(3,NULL,'z'),(4,20,NULL)",
    "CREATE TABLE t2 (id INT PRIMARY KEY, a INT, v INT)",
    "INSERT INTO t2 VALUES (1,1,100),(2,1,200),(3,2,300),(4,9,400)",
    "CREATE INDEX i_t1_b ON t1 (b)",
];

impl Harness {
    /// Returns a database without tables.
    pub fn empty() -> Harness {
        let connection = Connection::open_in_memory().unwrap();
        // A name that is not resolved must not become a text.
        for option in [
            rusqlite::config::DbConfig::SQLITE_DBCONFIG_DQS_DML,
            rusqlite::config::DbConfig::SQLITE_DBCONFIG_DQS_DDL,
        ] {
            connection.set_db_config(option, false).unwrap();
        }
        let context = Arc::new(TestContext::default());
        register(&connection, context.clone()).unwrap();
        let mut catalog = Catalog::default();
        catalog.next_id = 100;
        Harness {
            catalog,
            connection,
            context,
        }
    }

    /// Returns a database with the tables of most tests.
    pub fn new() -> Harness {
        let mut harness = Harness::empty();
        for statement in SETUP {
            harness.run(statement).unwrap();
        }
        harness
    }

    /// Returns the command of a statement.
    pub fn command(&self, text: &str) -> SqlResult<Command> {
        let parsed = parse(text)?;
        analyze(&parsed[0], &self.catalog, &[])
    }

    /// Returns the query of a statement.
    pub fn query(&self, text: &str) -> Query {
        match self.command(text) {
            Ok(Command::Query(query)) => query,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Returns the write of a statement.
    pub fn write(&self, text: &str) -> Write {
        match self.command(text) {
            Ok(Command::Write(write)) => write,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// Runs SQL of the executor; the rows are in PostgreSQL's text.
    pub fn execute(
        &self,
        sql: &str,
        columns: &[ResultColumn],
        parameters: &[Value],
    ) -> SqlResult<Vec<String>> {
        let native = |v: &Value| match v {
            Value::Null => Native::Null,
            Value::Integer(n) => Native::Integer(*n),
            Value::Real(x) => Native::Real(*x),
            Value::Text(text) => Native::Text(text.clone()),
            Value::Blob(bytes) => Native::Blob(bytes.clone()),
        };
        *self.context.raised.lock() = None;
        let run = || -> rusqlite::Result<Vec<String>> {
            let mut statement = self.connection.prepare(sql)?;
            let width = statement.column_count();
            let count = statement.parameter_count();
            let bound = parameters.iter().take(count).map(native);
            let mut rows = statement.query(rusqlite::params_from_iter(bound))?;
            let mut out = Vec::new();
            while let Some(row) = rows.next()? {
                let mut line = Vec::new();
                for at in 0..width {
                    let value = match row.get_ref(at)? {
                        rusqlite::types::ValueRef::Null => Value::Null,
                        rusqlite::types::ValueRef::Integer(n) => Value::Integer(n),
                        rusqlite::types::ValueRef::Real(x) => Value::Real(x),
                        rusqlite::types::ValueRef::Text(text) => {
                            Value::Text(String::from_utf8_lossy(text).into_owned())
                        }
                        rusqlite::types::ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
                    };
                    let mut text = String::new();
                    match value.is_null() {
                        true => text.push_str("NULL"),
                        false => {
                            let ty = columns.get(at).map_or(SqlType::Text, |c| c.ty);
                            ty.write_text(value.as_ref(), &mut text);
                        }
                    }
                    line.push(text);
                }
                out.push(line.join("|"));
            }
            Ok(out)
        };
        run().map_err(|e| match self.context.raised.lock().take() {
            Some(error) => error,
            None => SqlError::internal(format!("SQLite: {e}, in {sql}")),
        })
    }

    /// Runs a statement; the rows are joined by semicolons.
    pub fn run(&mut self, text: &str) -> SqlResult<String> {
        self.run_with(text, &[])
    }

    /// Runs a statement with parameters.
    pub fn run_with(&mut self, text: &str, parameters: &[Value]) -> SqlResult<String> {
        let rows = match self.command(text)? {
            Command::Query(query) => {
                self.execute(&query.executable.sql, &query.columns, parameters)?
            }
            Command::Write(write) => {
                // Checks the other queries, too: they must be valid for SQLite.
                if let Some(returning) = &write.returning {
                    self.connection.prepare(&returning.query).unwrap();
                }
                if let Some(OnConflict {
                    update: Some(update),
                    ..
                }) = &write.on_conflict
                {
                    self.connection.prepare(&update.query).unwrap();
                }
                self.execute(&write.executable.sql, &[], parameters)?
            }
            Command::Ddl(ddl) => {
                self.define(ddl);
                Vec::new()
            }
            Command::Truncate { tables, .. } => {
                for table in tables {
                    let sql = format!("DELETE FROM {}", name::quote(&table));
                    self.execute(&sql, &[], &[])?;
                }
                Vec::new()
            }
            _ => Vec::new(),
        };
        Ok(rows.join(";"))
    }

    /// Runs a query and compares its rows.
    #[track_caller]
    pub fn check(&mut self, text: &str, expected: &str) {
        match self.run(text) {
            Ok(rows) => assert_eq!(rows, expected, "{text}\n{:?}", self.command(text)),
            Err(e) => panic!("{text}: {e}\n{:?}", self.command(text)),
        }
    }

    /// Runs a statement that must fail with a code.
    #[track_caller]
    pub fn fails(&mut self, text: &str, state: &str) -> SqlError {
        match self.run(text) {
            Ok(rows) => panic!("{text}: no error, but {rows}\n{:?}", self.command(text)),
            Err(e) => {
                assert_eq!(e.state().0, state, "{text}: {e}");
                e
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        self.catalog.next_id += 1;
        self.catalog.next_id
    }

    fn define(&mut self, ddl: Ddl) {
        match ddl {
            Ddl::CreateTable(create) => self.create_table(create),
            Ddl::CreateIndex {
                name,
                table,
                columns,
                unique,
                ..
            } => {
                let mut def = self.catalog.table(&table).unwrap().as_ref().clone();
                let id = self.next_id();
                let columns = columns.iter().map(|c| def.column(c).unwrap()).collect();
                def.indexes.push(IndexDef {
                    id,
                    name: name.unwrap_or_else(|| format!("index_{id}")),
                    columns,
                    unique,
                    is_constraint: false,
                    is_ready: true,
                    storage: id,
                });
                self.catalog.put(Object::Table(Arc::new(def)));
            }
            Ddl::CreateSequence {
                name,
                start,
                increment,
                ..
            } => {
                let id = self.next_id();
                let sequence = SequenceDef {
                    id,
                    name,
                    start,
                    increment,
                    owner: None,
                };
                self.catalog.put(Object::Sequence(Arc::new(sequence)));
            }
            Ddl::CreateView {
                name,
                columns,
                query,
                ..
            } => {
                let bound = self.query(&query);
                let names = bound.columns.iter().enumerate().map(|(at, c)| {
                    let name = columns.get(at).cloned().unwrap_or_else(|| c.name.clone());
                    (name, c.ty)
                });
                let columns: Vec<(String, SqlType)> = names.collect();
                let list: Vec<String> = columns.iter().map(|(n, _)| name::quote(n)).collect();
                let sql = format!(
                    "CREATE VIEW {}({}) AS {}",
                    name::quote(&name),
                    list.join(", "),
                    bound.executable.sql
                );
                self.connection.execute_batch(&sql).unwrap();
                let id = self.next_id();
                let reads = bound.executable.relations;
                let (query, text) = (bound.executable.sql, query);
                let view = ViewDef {
                    id,
                    name,
                    query,
                    text,
                    columns,
                    reads,
                };
                self.catalog.put(Object::View(Arc::new(view)));
            }
            Ddl::CreateTableAs { name, query, .. } => {
                let bound = self.query(&query);
                let columns = bound.columns.iter().map(|c| NewColumn {
                    column: crate::catalog::ColumnDef {
                        name: c.name.clone(),
                        ty: c.ty,
                        not_null: false,
                        default: None,
                        missing: None,
                        sequence: None,
                        always_generated: false,
                        dropped: false,
                    },
                    serial: None,
                });
                let columns = columns.collect();
                let create = CreateTable {
                    name: name.clone(),
                    if_not_exists: false,
                    columns,
                    constraints: vec![],
                };
                self.create_table(create);
                let sql = format!(
                    "INSERT INTO {} {}",
                    name::quote(&name),
                    bound.executable.sql
                );
                self.connection.execute_batch(&sql).unwrap();
            }
            Ddl::DropTable(drop) | Ddl::DropView(drop) => {
                for name in drop.names {
                    let Some(object) = self.catalog.object(&name).cloned() else {
                        continue;
                    };
                    let kind = match object {
                        Object::View(_) => "VIEW",
                        _ => "TABLE",
                    };
                    let sql = format!("DROP {kind} {}", name::quote(&name));
                    self.connection.execute_batch(&sql).unwrap();
                    self.catalog.remove(object.id());
                }
            }
            _ => {}
        }
    }

    fn create_table(&mut self, create: CreateTable) {
        if create.if_not_exists && self.catalog.is_taken(&create.name) {
            return;
        }
        let id = self.next_id();
        let mut columns = Vec::new();
        for new in create.columns {
            let mut column = new.column;
            if let Some((start, increment)) = new.serial {
                let sequence = self.next_id();
                let name = format!("{}_{}_seq", create.name, column.name);
                let owner = Some((id, columns.len() as u16));
                let def = SequenceDef {
                    id: sequence,
                    name,
                    start,
                    increment,
                    owner,
                };
                self.catalog.put(Object::Sequence(Arc::new(def)));
                column.sequence = Some(sequence);
            }
            columns.push(column);
        }
        let mut table = TableDef {
            id,
            primary_key_name: format!("{}_pkey", create.name),
            name: create.name,
            columns,
            primary_key: Vec::new(),
            row_sequence: None,
            indexes: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            version: 0,
            is_ready: true,
            storage: id,
        };
        for constraint in create.constraints {
            let positions = |table: &TableDef, names: &[String]| -> Vec<u16> {
                names.iter().map(|n| table.column(n).unwrap()).collect()
            };
            match constraint.kind {
                ConstraintKind::PrimaryKey(names) => {
                    table.primary_key = positions(&table, &names);
                }
                ConstraintKind::Unique(names) => {
                    let id = self.next_id();
                    let columns = positions(&table, &names);
                    let name = constraint.name.unwrap_or_else(|| format!("unique_{id}"));
                    let (unique, is_constraint, is_ready) = (true, true, true);
                    let index = IndexDef {
                        id,
                        name,
                        columns,
                        unique,
                        is_constraint,
                        is_ready,
                        storage: id,
                    };
                    table.indexes.push(index);
                }
                ConstraintKind::Check {
                    expression, text, ..
                } => {
                    let name = constraint.name.unwrap_or_else(|| "check".to_string());
                    table.checks.push(CheckDef {
                        name,
                        expression,
                        text,
                    });
                }
                ConstraintKind::ForeignKey { .. } => {}
            }
        }
        let mut parts: Vec<String> = Vec::new();
        for column in &table.columns {
            let affinity = match column.ty {
                SqlType::Boolean | SqlType::SmallInt | SqlType::Integer | SqlType::BigInt => "INT",
                SqlType::Real | SqlType::Double => "REAL",
                SqlType::Numeric(_) => "NUMERIC",
                SqlType::Bytea => "BLOB",
                _ => "TEXT",
            };
            let not_null = if column.not_null { " NOT NULL" } else { "" };
            parts.push(format!(
                "{} {affinity}{not_null}",
                name::quote(&column.name)
            ));
        }
        let quoted = |key: &[u16]| {
            let names = key
                .iter()
                .map(|p| name::quote(&table.columns[usize::from(*p)].name));
            names.collect::<Vec<_>>().join(", ")
        };
        if !table.primary_key.is_empty() {
            parts.push(format!("PRIMARY KEY ({})", quoted(&table.primary_key)));
        }
        for index in &table.indexes {
            parts.push(format!("UNIQUE ({})", quoted(&index.columns)));
        }
        for check in &table.checks {
            parts.push(format!("CHECK ({})", check.expression));
        }
        let sql = format!(
            "CREATE TABLE {} ({})",
            name::quote(&table.name),
            parts.join(", ")
        );
        self.connection
            .execute_batch(&sql)
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
        self.catalog.put(Object::Table(Arc::new(table)));
    }
}
