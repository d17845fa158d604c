//! Statements with their results in files, in the form of sqllogictest.
//!
//! Records are separated by empty lines, and begin with one of these lines:
//!
//! - `statement ok`: the statement succeeds.
//! - `statement tag TAG`: the statement succeeds with this command tag.
//! - `statement error [SQLSTATE [message]]`: the statement fails.
//! - `query TYPES [nosort|rowsort|valuesort]`: the rows are those behind `----`, one a line with
//!   `|` between the columns, or one value a line. `I` is an integer type, `R` another number, `B`
//!   a boolean, `T` any other type and `?` every type.
//!
//! Before a record there may be lines with `skipif NAME` and `onlyif NAME`. The database is
//! `postgresql`.
//!
//! The files of a corpus run from the directory in the environment variable `BASALT_SQLLOGICTEST`.

use crate::harness::Sql;
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt_sim::campaign;
use basalt_sql::{Row, SqlResult, SqlType, ValueRef};
use std::path::Path;

const FILES: [(&str, &str); 13] = [
    ("types", include_str!("logic/types.test")),
    ("dates", include_str!("logic/dates.test")),
    ("strings", include_str!("logic/strings.test")),
    ("numbers", include_str!("logic/numbers.test")),
    ("queries", include_str!("logic/queries.test")),
    ("writes", include_str!("logic/writes.test")),
    ("constraints", include_str!("logic/constraints.test")),
    ("sequences", include_str!("logic/sequences.test")),
    ("alter", include_str!("logic/alter.test")),
    ("views", include_str!("logic/views.test")),
    ("commands", include_str!("logic/commands.test")),
    ("errors", include_str!("logic/errors.test")),
    ("differences", include_str!("logic/differences.test")),
];

/// What a record expects.
enum Expected {
    Ok,
    Tag(String),
    Error(String, String),
    Rows {
        types: String,
        sort: String,
        lines: Vec<String>,
    },
}

/// A record of a file.
struct Record {
    line: usize,
    sql: String,
    expected: Expected,
}

/// Splits a file into records.
fn records(text: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    let mut is_skipped = false;
    while let Some((at, head)) = lines.next() {
        let head = head.trim();
        let words: Vec<&str> = head.split_whitespace().collect();
        match words[..] {
            ["halt", ..] => break,
            ["skipif", name] => is_skipped |= name == "postgresql",
            ["onlyif", name] => is_skipped |= name != "postgresql",
            ["statement" | "query", ..] => {
                let mut body = Vec::new();
                while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
                    body.push(line);
                }
                let rule = body.iter().position(|line| *line == "----");
                let sql = body[..rule.unwrap_or(body.len())].join("\n");
                let result = rule.map(|at| body[at + 1..].iter().map(|s| (*s).to_owned()));
                let result = result.map(Iterator::collect).unwrap_or_default();
                let expected = expected(&words, head, result);
                if !std::mem::take(&mut is_skipped) {
                    let line = at + 1;
                    records.push(Record {
                        line,
                        sql,
                        expected,
                    });
                }
            }
            _ => {}
        }
    }
    records
}

fn expected(words: &[&str], head: &str, lines: Vec<String>) -> Expected {
    match words {
        ["statement", "ok", ..] => Expected::Ok,
        ["statement", "tag", ..] => Expected::Tag(head["statement tag ".len()..].to_owned()),
        ["statement", "error", rest @ ..] => {
            let state = rest.first().map_or("", |state| *state);
            let message = head.split_once(state).map_or("", |(_, message)| message);
            let message = if state.is_empty() { "" } else { message };
            Expected::Error(state.to_owned(), message.trim().to_owned())
        }
        ["query", types, rest @ ..] => Expected::Rows {
            types: (*types).to_owned(),
            sort: rest.first().map_or("nosort", |sort| *sort).to_owned(),
            lines,
        },
        _ => panic!("{head:?} begins no record"),
    }
}

/// Returns the letter of a type.
fn letter(ty: SqlType) -> char {
    match ty {
        SqlType::Boolean => 'B',
        ty if ty.is_integer() => 'I',
        ty if ty.is_number() => 'R',
        _ => 'T',
    }
}

/// Returns a value as a file has it. Files of a corpus show numbers by the letter of the column.
fn shown(value: ValueRef<'_>, ty: SqlType, letter: char, is_corpus: bool) -> String {
    match (value, is_corpus, letter) {
        (ValueRef::Null, ..) => "NULL".to_owned(),
        (ValueRef::Text(""), true, _) => "(empty)".to_owned(),
        (ValueRef::Integer(n), true, 'R') => format!("{:.3}", n as f64),
        (ValueRef::Real(x), true, 'R') => format!("{x:.3}"),
        (ValueRef::Real(x), true, 'I') => format!("{}", x as i64),
        (value, ..) => {
            let mut text = String::new();
            ty.write_text(value, &mut text);
            text
        }
    }
}

/// Runs a query. Returns its types by letter, and its rows.
fn query(
    sql: &mut Sql,
    text: &str,
    types: &str,
    is_corpus: bool,
) -> SqlResult<(String, Vec<Vec<String>>)> {
    let mut last = (String::new(), Vec::new());
    for statement in sql.session.parse(text)? {
        let prepared = sql.session.prepare(&statement, &[])?;
        let columns = prepared.columns().to_vec();
        let mut rows = Vec::new();
        let mut sink = |row: &Row<'_>| {
            let letters = types.chars().chain(std::iter::repeat('T'));
            let values = columns.iter().zip(letters).enumerate();
            let values = values.map(|(at, (column, letter))| {
                Ok(shown(row.get(at)?, column.ty, letter, is_corpus))
            });
            rows.push(values.collect::<SqlResult<Vec<String>>>()?);
            Ok(())
        };
        sql.session.execute(&prepared, &[], &mut sink)?;
        last = (
            columns.iter().map(|column| letter(column.ty)).collect(),
            rows,
        );
    }
    Ok(last)
}

/// Runs a record. Returns what is wrong.
fn run(sql: &mut Sql, record: &Record, is_corpus: bool) -> Option<String> {
    match &record.expected {
        Expected::Ok => sql
            .try_run(&record.sql)
            .err()
            .map(|e| format!("fails: {e}")),
        Expected::Tag(expected) => {
            let tag = match sql.try_tag(&record.sql) {
                Ok(tag) => tag,
                Err(e) => return Some(format!("fails: {e}")),
            };
            (tag != *expected).then(|| format!("has the tag {tag}, and not {expected}"))
        }
        Expected::Error(state, message) => match sql.try_run(&record.sql) {
            Ok(rows) => Some(format!("succeeds with {rows:?}")),
            Err(e) => {
                let is_right = (state.is_empty() || is_corpus || e.state().0 == state)
                    && (message.is_empty() || is_corpus || e.message() == message);
                (!is_right).then(|| format!("fails with {e}\nand not with {state} {message}"))
            }
        },
        Expected::Rows { types, sort, lines } => {
            let (letters, rows) = match query(sql, &record.sql, types, is_corpus) {
                Ok(found) => found,
                Err(e) => return Some(format!("fails: {e}")),
            };
            let fits = |(a, b): (char, char)| a == '?' || a == b;
            let has_types =
                letters.len() == types.len() && types.chars().zip(letters.chars()).all(fits);
            if !is_corpus && !has_types {
                return Some(format!("has the types {letters}, and not {types}"));
            }
            compare(sql, rows, sort, lines)
        }
    }
}

fn compare(
    sql: &mut Sql,
    mut rows: Vec<Vec<String>>,
    sort: &str,
    lines: &[String],
) -> Option<String> {
    let mut expected = lines.to_vec();
    if sort == "rowsort" {
        rows.sort();
    }
    let mut values: Vec<String> = rows.iter().flatten().cloned().collect();
    if sort == "valuesort" {
        values.sort();
        expected.sort();
    }
    if let [line] = lines
        && let Some((count, hash)) = line.split_once(" values hashing to ")
    {
        let text: String = values.iter().map(|value| format!("{value}\n")).collect();
        let found = sql.run(&format!("SELECT md5('{}')", text.replace('\'', "''")));
        let is_same = count == values.len().to_string() && found == [hash];
        return (!is_same).then(|| format!("has {} values hashing to {found:?}", values.len()));
    }
    let mut by_row: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
    if sort == "rowsort" && expected.len() == by_row.len() {
        by_row.sort();
        expected.sort();
    }
    let is_same = expected == values || expected == by_row;
    (!is_same).then(|| {
        format!(
            "has\n{}\nand not\n{}",
            by_row.join("\n"),
            expected.join("\n")
        )
    })
}

#[test]
fn files_of_statements() {
    let (mut statements, mut queries, mut wrong) = (0, 0, Vec::new());
    for (name, text) in FILES {
        let mut sql = Sql::new();
        for record in records(text) {
            match record.expected {
                Expected::Rows { .. } => queries += 1,
                _ => statements += 1,
            }
            if let Some(what) = run(&mut sql, &record, false) {
                let line = record.line;
                wrong.push(format!("{name}.test:{line}: {}\n{what}", record.sql));
            }
        }
        sql.check();
    }
    campaign!("sql logic: statements={statements} queries={queries}");
    assert!(
        wrong.is_empty(),
        "{} records:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
    assert!(statements >= 150 && queries >= 200);
}

/// Runs a corpus of sqllogictest, such as that of SQLite. Most of its files are of SQLite's
/// dialect, so the counts are shown, and only defects of the program fail.
#[test]
fn a_corpus_of_files() {
    let Ok(directory) = std::env::var("BASALT_SQLLOGICTEST") else {
        campaign!("a_corpus_of_files: SKIPPED, BASALT_SQLLOGICTEST names no directory");
        return;
    };
    let fs = HostFs::new(HostOptions::new(directory)).expect("a directory");
    let entries = fs.list(Path::new("")).expect("the directory can be read");
    let names = entries.into_iter().map(|entry| entry.name);
    for name in names.filter(|name| name.ends_with(".test")) {
        let file = fs.open(Path::new(&name)).expect("the file can be opened");
        let bytes = file.read(0, file.len() as usize);
        let bytes = bytes.expect("the file can be read");
        let mut sql = Sql::new();
        let (mut right, mut wrong) = (0, 0);
        for record in records(&String::from_utf8_lossy(&bytes)) {
            match run(&mut sql, &record, true) {
                None => right += 1,
                Some(what) => {
                    assert!(!what.contains("XX000"), "{name}:{}: {what}", record.line);
                    wrong += 1;
                }
            }
        }
        sql.check();
        campaign!("{name}: right={right} wrong={wrong}");
    }
}
