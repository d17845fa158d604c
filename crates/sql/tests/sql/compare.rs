//! Random statements over random tables, beside the same statements over plain tables of SQLite.
//!
//! Both sides evaluate expressions with SQLite. So the comparison proves codecs, bounds, indexes,
//! orders, hash tables, own writes and savepoints, and not the dialect.

mod schema;
mod statements;

use crate::harness::Sql;
use basalt_sim::campaign::{cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{campaign, repeat};
use basalt_sql::{Outcome, Row, SqlResult, Value};
use rusqlite::Connection;
use schema::{Table, dialect};
use statements::{Generator, Rows};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Databases at scale 1.
const CASES: u64 = 40;

/// Most rows of a table: joins of larger ones take long.
const MAX_ROWS: i64 = 60;

type Answer = Vec<Vec<Value>>;

/// What a campaign has done, by name.
type Counts = BTreeMap<&'static str, u64>;

/// A database of Basalt, and the same tables in SQLite.
struct Twins {
    basalt: Sql,
    sqlite: Connection,
    tables: Vec<Table>,
    counts: Counts,
}

/// Runs a statement on Basalt. Returns its rows, and their number or that of written rows.
fn run_basalt(sql: &mut Sql, statement: &str) -> SqlResult<(Answer, u64)> {
    let parsed = sql.session.parse(statement)?;
    let prepared = sql.session.prepare(&parsed[0], &[])?;
    let mut answer = Vec::new();
    let mut sink = |row: &Row<'_>| {
        let values = (0..row.len()).map(|at| Ok(row.get(at)?.to_value()));
        answer.push(values.collect::<SqlResult<Vec<Value>>>()?);
        Ok(())
    };
    match sql.session.execute(&prepared, &[], &mut sink)? {
        Outcome::Done { rows, .. } => Ok((answer, rows)),
        _ => panic!("{statement} is a COPY"),
    }
}

fn run_sqlite(sqlite: &Connection, statement: &str) -> rusqlite::Result<Answer> {
    let mut prepared = sqlite.prepare_cached(statement)?;
    let columns = prepared.column_count();
    let mut rows = prepared.raw_query();
    let mut answer = Vec::new();
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|at| {
            Ok(match row.get_ref(at)? {
                rusqlite::types::ValueRef::Null => Value::Null,
                rusqlite::types::ValueRef::Integer(n) => Value::Integer(n),
                rusqlite::types::ValueRef::Real(x) => Value::Real(x),
                rusqlite::types::ValueRef::Text(text) => {
                    Value::Text(String::from_utf8_lossy(text).into_owned())
                }
                rusqlite::types::ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
            })
        });
        answer.push(values.collect::<rusqlite::Result<Vec<Value>>>()?);
    }
    Ok(answer)
}

/// Compares values. Numbers that differ by the order of a sum are equal.
fn order_of(a: &Value, b: &Value) -> Ordering {
    let class = |value: &Value| match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    };
    let float = |value: &Value| match value {
        Value::Integer(n) => *n as f64,
        Value::Real(x) => *x,
        _ => 0.0,
    };
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        _ if class(a) == 1 && class(b) == 1 => {
            let (a, b) = (float(a), float(b));
            match (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0) {
                true => Ordering::Equal,
                false => a.total_cmp(&b),
            }
        }
        _ => class(a).cmp(&class(b)),
    }
}

fn row_order(a: &[Value], b: &[Value]) -> Ordering {
    let mut orders = a.iter().zip(b).map(|(a, b)| order_of(a, b));
    let order = orders.find(|order| order.is_ne());
    order.unwrap_or_else(|| a.len().cmp(&b.len()))
}

impl Twins {
    fn new(rng: &mut Rng) -> Twins {
        let sqlite = Connection::open_in_memory().expect("memory is there");
        let set = sqlite.pragma_update(None, "case_sensitive_like", true);
        set.expect("the pragma exists");
        let tables = 1 + rng.below(3);
        let tables = (0..tables).map(|at| Table::random(rng, &format!("t{at}")));
        let mut twins = Twins {
            basalt: Sql::new(),
            sqlite,
            tables: tables.collect(),
            counts: Counts::new(),
        };
        for table in twins.tables.clone() {
            twins.both(&table.create());
            // One half of the indexes is built over rows.
            let (early, late): (Vec<usize>, Vec<usize>) =
                (0..table.indexes.len()).partition(|_| rng.coin());
            for at in early {
                twins.index(&table.name, at, rng);
            }
            for _ in 0..rng.below(12) {
                let rows: Vec<String> = (0..1 + rng.below(4)).map(|_| table.row(rng)).collect();
                twins.write(
                    &format!("INSERT INTO {} VALUES {}", table.name, rows.join(", ")),
                    false,
                );
            }
            for at in late {
                twins.index(&table.name, at, rng);
            }
        }
        twins
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Creates an index, which is unique if the rows allow it and the random numbers want it.
    fn index(&mut self, table: &str, at: usize, rng: &mut Rng) {
        let found = self.tables.iter().position(|t| t.name == table);
        let found = found.expect("the table exists");
        self.tables[found].indexes[at].1 = rng.percent(30);
        let create = self.tables[found].create_index(at);
        let done = run_basalt(&mut self.basalt, &create);
        let expected = self.sqlite.execute_batch(&create);
        assert_eq!(
            done.is_ok(),
            expected.is_ok(),
            "{create}: {done:?}, and SQLite {expected:?}"
        );
        if let Err(e) = done {
            assert_eq!(e.state().0, "23505", "{create}: {e}");
            self.tables[found].indexes[at].1 = false;
            self.both(&self.tables[found].create_index(at));
        }
    }

    /// Runs a statement that succeeds on both sides.
    fn both(&mut self, statement: &str) {
        let (ours, theirs) = (dialect(statement, false), dialect(statement, true));
        let done = run_basalt(&mut self.basalt, &ours);
        done.unwrap_or_else(|e| panic!("{ours}\nfails: {e}"));
        let done = self.sqlite.execute_batch(&theirs);
        done.unwrap_or_else(|e| panic!("{theirs}\nfails in SQLite: {e}"));
    }

    /// Runs a writing statement on both sides. If it fails, neither side keeps any of it.
    ///
    /// If the outcome depends on the order of its writes, one side alone may have found a conflict
    /// among the statement's own rows. Then neither side keeps it. Such a statement runs inside of
    /// a transaction block.
    fn write(&mut self, statement: &str, depends_on_order: bool) {
        let (ours, theirs) = (dialect(statement, false), dialect(statement, true));
        let in_block = self.basalt.session.status() != basalt_sql::TransactionStatus::Idle;
        if in_block {
            run_basalt(&mut self.basalt, "SAVEPOINT statement").expect("a block is open");
        }
        self.sqlite
            .execute_batch("SAVEPOINT statement")
            .expect("it is well formed");
        let done = run_basalt(&mut self.basalt, &ours);
        let expected = self.sqlite.execute(&theirs, []);
        let mut undo = expected.is_err();
        match (&done, &expected) {
            (Ok((_, rows)), Ok(expected)) => {
                assert_eq!(*rows, *expected as u64, "rows of {ours}");
                self.count("writes");
            }
            (Err(e), Err(_)) => {
                let known = ["23505", "23502"].contains(&e.state().0);
                assert!(known, "{ours}\nfails: {e}, and in SQLite: {expected:?}");
                self.count("refused writes");
            }
            _ if depends_on_order && in_block => {
                undo = true;
                self.count("writes whose order matters");
            }
            _ => panic!("{ours}\n{done:?}, and SQLite: {expected:?}"),
        }
        if in_block {
            let end = if undo {
                "ROLLBACK TO statement"
            } else {
                "RELEASE statement"
            };
            run_basalt(&mut self.basalt, end).expect("the savepoint is there");
        }
        let end = match undo {
            true => "ROLLBACK TO statement; RELEASE statement",
            false => "RELEASE statement",
        };
        self.sqlite
            .execute_batch(end)
            .expect("the savepoint is there");
    }

    /// Runs a query on both sides, and compares the rows.
    fn query(&mut self, statement: &str, rows: Rows) {
        let (ours, theirs) = (dialect(statement, false), dialect(statement, true));
        let found = run_basalt(&mut self.basalt, &ours);
        let (mut found, _) = found.unwrap_or_else(|e| panic!("{ours}\nfails: {e}"));
        let expected = run_sqlite(&self.sqlite, &theirs);
        let mut expected = expected.unwrap_or_else(|e| panic!("{theirs}\nfails in SQLite: {e}"));
        if rows == Rows::Unordered {
            found.sort_by(|a, b| row_order(a, b));
            expected.sort_by(|a, b| row_order(a, b));
        }
        let mut pairs = found.iter().zip(&expected);
        let is_same = found.len() == expected.len() && pairs.all(|(a, b)| row_order(a, b).is_eq());
        if !is_same {
            let plan = self.basalt.run(&format!("EXPLAIN {ours}"));
            let indexes = self
                .tables
                .iter()
                .map(|t| format!("{} {:?}", t.create(), t.indexes));
            let tables: Vec<String> = indexes.collect();
            panic!(
                "{ours}\nhas {found:?}\nand in SQLite {expected:?}\nplan {plan:#?}\ntables {tables:#?}"
            );
        }
        self.count("queries");
        if !found.is_empty() {
            self.count("queries with rows");
        }
    }

    /// Counts the kinds of plans of a query.
    fn explain(&mut self, statement: &str) {
        let statement = dialect(statement, false);
        let plan = self.basalt.run(&format!("EXPLAIN {statement}")).join("\n");
        let kinds = [
            ("point", "get by the primary key"),
            ("range of key", "range of the primary key"),
            ("range of index", "range of t"),
            ("backwards", ", backwards"),
            ("covering", ", without rows"),
            ("hash", "hash table over"),
            ("whole scan", "whole scan of"),
            ("sorted", "USE TEMP B-TREE FOR ORDER BY"),
        ];
        for (kind, text) in kinds {
            if plan.contains(text) {
                self.count(kind);
            }
        }
        if plan.contains("get by t") {
            self.count("point of index");
        }
        let uses_equal = plan.contains("=?");
        if uses_equal && statement.contains(" IN (") && !statement.contains("SELECT y") {
            self.count("in");
        }
        if plan.contains("range of t") && uses_equal && statement.contains("IS NULL") {
            self.count("is null");
        }
        let is_ordered = statement.contains("ORDER BY") && !statement.contains("OVER");
        if is_ordered && !plan.contains("TEMP B-TREE") {
            self.count("ordered by a key");
        }
    }

    /// Compares a condition whose value is a parameter with the one whose value is a literal.
    fn parameter(&mut self, rng: &mut Rng) {
        let table = &self.tables[rng.below(self.tables.len() as u64) as usize];
        let column = &table.columns[rng.below(table.columns.len() as u64) as usize];
        let literal = dialect(&column.kind.literal(rng), false);
        let op = rng.pick(&["=", "<", ">", "<=", ">=", "<>"]);
        let (name, ty) = (&column.name, dialect(&column.kind.declared(), false));
        let order = if rng.coin() { "" } else { " DESC" };
        let with = |value: &str| {
            let table = &table.name;
            format!("SELECT * FROM {table} WHERE {name} {op} {value} ORDER BY {name}{order}")
        };
        let (by_literal, by_parameter) = (with(&literal), with("$1"));
        let value = run_basalt(&mut self.basalt, &format!("SELECT CAST({literal} AS {ty})"));
        let value = value
            .unwrap_or_else(|e| panic!("{literal}: {e}"))
            .0
            .remove(0);
        let expected = self.basalt.run(&by_literal);
        let found = self.basalt.try_run_with(&by_parameter, &value);
        let found = found.unwrap_or_else(|e| panic!("{by_parameter}\nfails: {e}"));
        let mut found: Vec<String> = found.into_iter().map(|row| row.join("|")).collect();
        let mut expected = expected;
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{by_parameter} with {literal}");
        self.count("parameters");
    }

    fn queries(&mut self, rng: &mut Rng, n: u64) {
        for at in 0..n {
            let tables = self.tables.clone();
            let (query, rows) = Generator {
                rng,
                tables: &tables,
            }
            .query();
            self.query(&query, rows);
            if at % 4 == 0 {
                self.explain(&query);
                self.parameter(rng);
            }
        }
    }

    fn writes(&mut self, rng: &mut Rng, n: u64) {
        let in_block = self.basalt.session.status() != basalt_sql::TransactionStatus::Idle;
        for _ in 0..n {
            let tables = self.tables.clone();
            let (write, depends_on_order) = Generator {
                rng,
                tables: &tables,
            }
            .write();
            if in_block || !depends_on_order {
                self.write(&write, depends_on_order);
            }
        }
        for table in self.tables.clone() {
            let (name, column) = (&table.name, &table.columns[0].name);
            let count = format!("SELECT count(*) FROM {name}");
            let (answer, _) = run_basalt(&mut self.basalt, &count).expect("the table exists");
            if order_of(&answer[0][0], &Value::Integer(MAX_ROWS)).is_gt() {
                self.write(
                    &format!(
                        "DELETE FROM {name} WHERE {column} IS NULL OR {column} >= \
                         (SELECT {column} FROM {name} WHERE {column} IS NOT NULL \
                         ORDER BY {column} DESC LIMIT 1)"
                    ),
                    false,
                );
            }
        }
    }

    /// Adds a column, whose default the stored rows lack.
    fn add_column(&mut self, rng: &mut Rng) {
        let at = rng.below(self.tables.len() as u64) as usize;
        let table = &mut self.tables[at];
        let alter = table.add_column(rng);
        self.both(&alter);
        // A statement of SQLite that was prepared before tells the old number of columns.
        self.sqlite.flush_prepared_statement_cache();
        self.count("added columns");
    }

    /// Runs statements inside of a transaction block, with savepoints.
    fn block(&mut self, rng: &mut Rng) {
        self.both("BEGIN");
        self.writes(rng, 4);
        self.queries(rng, 16);
        for _ in 0..1 + rng.below(2) {
            self.both("SAVEPOINT s");
            self.writes(rng, 6);
            self.queries(rng, 12);
            match rng.coin() {
                true => {
                    self.both("ROLLBACK TO s");
                    self.count("rollbacks to savepoints");
                }
                false => self.both("RELEASE s"),
            }
            self.queries(rng, 6);
        }
        let end = if rng.percent(60) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        self.both(end);
        self.count("blocks");
    }

    /// Compares all rows, in the order of the first columns.
    fn compare_tables(&mut self) {
        for table in self.tables.clone() {
            self.query(&format!("SELECT * FROM {}", table.name), Rows::Unordered);
        }
        self.basalt.check();
    }
}

#[test]
fn answers_are_those_of_plain_tables() {
    let mut total = Counts::new();
    for case in cases(0..CASES * scale()) {
        let _repeat = repeat!(answers_are_those_of_plain_tables, "BASALT_CASE={case}");
        let mut rng = Rng::of(&[case, 0x5a1]);
        let mut twins = Twins::new(&mut rng);
        for _ in 0..3 {
            twins.queries(&mut rng, 60);
            twins.writes(&mut rng, 10);
            twins.block(&mut rng);
            if rng.coin() {
                twins.basalt.run("CHECKPOINT");
            }
            if rng.coin() {
                twins.add_column(&mut rng);
            }
        }
        twins.compare_tables();
        for (what, n) in twins.counts {
            *total.entry(what).or_default() += n;
        }
    }
    let counts: Vec<String> = total
        .iter()
        .map(|(what, n)| format!("{what}={n}"))
        .collect();
    campaign!("sql beside plain tables: {}", counts.join(", "));
    if basalt_sim::campaign::case().is_some() {
        return;
    }
    for (what, floor) in FLOORS {
        let n = total.get(what).copied().unwrap_or(0);
        assert!(
            n >= scale().floor(floor),
            "{what}: {n}, and at least {floor} were expected"
        );
    }
}

/// Floors under the counts at scale 1.
const FLOORS: [(&str, u64); 18] = [
    ("parameters", 2_000),
    ("added columns", 20),
    ("queries", 10_000),
    ("queries with rows", 6_000),
    ("writes", 600),
    ("refused writes", 60),
    ("blocks", 70),
    ("rollbacks to savepoints", 30),
    ("point", 200),
    ("point of index", 200),
    ("range of key", 200),
    ("range of index", 500),
    ("backwards", 30),
    ("covering", 300),
    ("hash", 200),
    ("in", 50),
    ("is null", 50),
    ("ordered by a key", 120),
];
