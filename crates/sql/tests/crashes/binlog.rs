//! The binlog as its readers see it: its changes of rows, replayed, give the content.

use crate::database::{Content, DIR, disk, options, storage_log};
use crate::history::History;
use basalt::env::Env;
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::{campaign, repeat};
use basalt_sql::{BinlogKind, BinlogReader, RowChange, RowOperation, SqlType, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// A row by the names of its columns.
type NamedRow = BTreeMap<String, Value>;
/// Rows by their keys, as text.
type Rows = BTreeMap<String, NamedRow>;

/// Tables that are replayed from a binlog.
#[derive(Default)]
struct Replica {
    tables: BTreeMap<String, Rows>,
    changes: u64,
    statements: u64,
}

impl Replica {
    fn apply(&mut self, change: RowChange) {
        self.changes += 1;
        let table = change.table.clone();
        let rows = self.tables.entry(table).or_default();
        let key = format!("{:?}", change.key);
        let names: Vec<String> = change
            .columns
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        let named = |values: Vec<Value>| -> NamedRow {
            assert_eq!(values.len(), names.len());
            names.iter().cloned().zip(values).collect()
        };
        let before = change.before.map(named);
        assert_eq!(before.as_ref(), rows.get(&key), "{} {key}", change.table);
        match (change.operation, change.after.map(named)) {
            (RowOperation::Delete, None) => {
                rows.remove(&key);
            }
            (RowOperation::Insert | RowOperation::Update, Some(after)) => {
                assert_eq!(change.operation == RowOperation::Insert, before.is_none());
                rows.insert(key, after);
            }
            (operation, after) => panic!("{operation:?} with {after:?}"),
        }
    }

    /// Does what a statement of a history does to rows.
    fn execute(&mut self, statement: &str) {
        self.statements += 1;
        let words: Vec<&str> = statement.split_whitespace().collect();
        match words[..] {
            ["DROP", "TABLE", name, ..] => {
                self.tables.remove(name);
            }
            ["TRUNCATE", name, ..] => {
                self.tables.remove(name);
            }
            ["ALTER", "TABLE", name, "DROP", "COLUMN", column] => {
                let rows = self.tables.entry(name.to_owned()).or_default();
                rows.values_mut().for_each(|row| {
                    row.remove(column);
                });
            }
            [
                "ALTER",
                "TABLE",
                name,
                "ADD",
                "COLUMN",
                column,
                "INT",
                ref default @ ..,
            ] => {
                let value = match default {
                    ["DEFAULT", n] => Value::Integer(n.parse().expect("a number")),
                    _ => Value::Null,
                };
                let rows = self.tables.entry(name.to_owned()).or_default();
                rows.values_mut().for_each(|row| {
                    row.insert(column.to_owned(), value.clone());
                });
            }
            _ => {}
        }
    }

    fn read(&mut self, reader: &mut BinlogReader) {
        while let Some(record) = reader.next(Duration::ZERO).expect("a sound disk") {
            match record.kind {
                BinlogKind::Transaction(changes) => {
                    changes.into_iter().for_each(|change| self.apply(change));
                }
                BinlogKind::Ddl { statement } => self.execute(&statement),
                BinlogKind::Sequence { .. } | BinlogKind::Backfill { .. } => {}
            }
        }
    }

    /// Compares the tables with the content of a database.
    fn assert_is(&self, content: &Content, views: &[&str]) {
        for (name, rows) in content {
            if views.contains(&name.as_str()) {
                continue;
            }
            let names: Vec<&str> = rows[0].split('|').collect();
            let none = Rows::new();
            let replayed = self.tables.get(name).unwrap_or(&none).values();
            let mut texts: Vec<String> = replayed
                .map(|row| {
                    let texts = names.iter().map(|column| {
                        let mut text = String::new();
                        SqlType::Text.write_text(row[*column].as_ref(), &mut text);
                        text
                    });
                    texts.collect::<Vec<String>>().join("|")
                })
                .collect();
            texts.sort_unstable();
            assert_eq!(texts, rows[1..], "table {name}");
        }
    }
}

#[test]
fn changes_of_the_binlog_make_the_content() {
    let (mut changes, mut statements) = (0, 0);
    for seed in cases(0..10 * scale()) {
        let _repeat = repeat!(changes_of_the_binlog_make_the_content, "BASALT_CASE={seed}");
        let options = options(seed, storage_log(seed)).binlog_retention_bytes(1 << 30);
        let env = Env::for_tests(disk(seed), seed);
        let mut history = History::begin(seed, env, options).expect("a sound disk");
        // One replica follows, with readers that live for a while.
        let (mut follower, mut from) = (Replica::default(), 1);
        let mut reader = history.sql.database.binlog(Some(1)).expect("it is open");
        for step in 0..260 {
            let opened = history.openings;
            history.step();
            if history.openings > opened || step % 37 == 0 {
                reader = history.sql.database.binlog(Some(from)).expect("it is open");
            }
            follower.read(&mut reader);
            from = history.sql.database.last_transaction() + 1;
            if step % 10 == 0 {
                follower.assert_is(&history.model.last(), &["richest", "sums"]);
            }
        }
        follower.assert_is(&history.model.last(), &["richest", "sums"]);
        history.sql.database.close().expect("a sound disk");
        let mut late = Replica::default();
        let mut reader = BinlogReader::open(&history.env, DIR).expect("it was closed");
        assert_eq!((reader.first(), reader.last()), (1, from - 1));
        late.read(&mut reader);
        late.assert_is(&history.model.last(), &["richest", "sums"]);
        changes += late.changes;
        statements += late.statements;
    }
    campaign!("binlogs: {changes} changes of rows, {statements} statements");
    if case().is_none() {
        assert!(changes >= scale().floor(1500), "{changes}");
        assert!(statements >= scale().floor(150), "{statements}");
    }
}
