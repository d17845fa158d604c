//! Random transactions of several sessions, step by step, beside a model of snapshot isolation: a
//! map for each version.

use crate::harness::Sql;
use basalt_sim::campaign::{cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{campaign, repeat};
use std::collections::{BTreeMap, BTreeSet};

const SESSIONS: usize = 3;
const CASES: u64 = 60;
const STEPS: u64 = 120;

/// The rows: a unique value and a number by key.
type Rows = BTreeMap<i64, (Option<i64>, i64)>;

/// A key of the table, or a value of its unique column.
type Touched = BTreeSet<(bool, i64)>;

/// An open transaction.
#[derive(Clone)]
struct Open {
    /// Commits before the snapshot.
    begin: usize,
    snapshot: Rows,
    rows: Rows,
    /// Keys and unique values that were written.
    touched: Touched,
    /// Keys that were read FOR UPDATE.
    locked: BTreeSet<i64>,
    /// The state at the savepoint.
    saved: Option<Box<Open>>,
}

struct Model {
    rows: Rows,
    /// What each commit has changed.
    commits: Vec<Touched>,
    open: [Option<Open>; SESSIONS],
}

impl Model {
    fn open(&mut self, session: usize) -> &mut Open {
        let (begin, rows) = (self.commits.len(), &self.rows);
        self.open[session].get_or_insert_with(|| Open {
            begin,
            snapshot: rows.clone(),
            rows: rows.clone(),
            touched: Touched::new(),
            locked: BTreeSet::new(),
            saved: None,
        })
    }

    /// Returns `true` if other commits since the snapshot have changed what the transaction has
    /// written or locked.
    fn conflicts(&self, open: &Open) -> bool {
        let mut later = self.commits[open.begin..].iter().flatten();
        later.any(|key| open.touched.contains(key) || key.0 && open.locked.contains(&key.1))
    }
}

/// Puts a row into a transaction, or removes it, and notes what this touches. Returns `false` if
/// another row has the unique value.
fn put(open: &mut Open, key: i64, row: Option<(Option<i64>, i64)>) -> bool {
    if let Some((Some(unique), _)) = row {
        let mut others = open.rows.iter();
        if others.any(|(other, (u, _))| *other != key && *u == Some(unique)) {
            return false;
        }
    }
    let old = match row {
        Some(row) => open.rows.insert(key, row),
        None => open.rows.remove(&key),
    };
    open.touched.insert((true, key));
    let (before, after) = (old.and_then(|old| old.0), row.and_then(|row| row.0));
    if before != after {
        let values = before.into_iter().chain(after);
        open.touched.extend(values.map(|value| (false, value)));
    }
    true
}

/// Runs a random statement of an open transaction, and compares its answer. Returns what it was.
fn step(sql: &mut Sql, open: &mut Open, rng: &mut Rng) -> &'static str {
    let key = rng.below(8) as i64;
    let unique = rng.coin().then(|| rng.below(6) as i64);
    let shown = unique.map_or("NULL".to_owned(), |u| u.to_string());
    match rng.below(9) {
        0 | 1 => {
            let is_free = !open.rows.contains_key(&key) && put(open, key, Some((unique, 0)));
            refused(
                sql,
                &format!("INSERT INTO t VALUES ({key}, {shown}, 0)"),
                !is_free,
            );
            "insert"
        }
        2 => {
            let row = open.rows.get(&key).copied();
            let is_free = row.is_none_or(|(_, n)| put(open, key, Some((unique, n))));
            refused(
                sql,
                &format!("UPDATE t SET u = {shown} WHERE k = {key}"),
                !is_free,
            );
            "update of a unique column"
        }
        3 => {
            let rows = open.rows.clone();
            for (k, (u, n)) in rows.into_iter().filter(|(k, _)| *k >= key) {
                put(open, k, Some((u, n + 1)));
            }
            sql.run(&format!("UPDATE t SET n = n + 1 WHERE k >= {key}"));
            "update of a range"
        }
        4 => {
            if open.rows.contains_key(&key) {
                put(open, key, None);
            }
            sql.run(&format!("DELETE FROM t WHERE k = {key}"));
            "delete"
        }
        5 => {
            let row = open.rows.get(&key).map(|(u, n)| line(key, *u, *n));
            let found = sql.run(&format!("SELECT * FROM t WHERE k = {key} FOR UPDATE"));
            assert_eq!(found, Vec::from_iter(row));
            if !found.is_empty() {
                open.locked.insert(key);
            }
            "lock"
        }
        6 => {
            let above = |(_, (u, _)): &(&i64, &(Option<i64>, i64))| u.is_some_and(|u| u >= 3);
            let n = open.rows.iter().filter(above).count();
            assert_eq!(
                sql.run("SELECT count(*) FROM t WHERE u >= 3"),
                [n.to_string()]
            );
            "read by index"
        }
        7 if open.saved.is_some() && rng.coin() => {
            let saved = open.saved.take().expect("it was looked at");
            // Locks stay: they only make the commit stricter.
            let locked = std::mem::take(&mut open.locked);
            *open = Open {
                locked,
                saved: Some(saved.clone()),
                ..*saved
            };
            sql.run("ROLLBACK TO s");
            "rollback to savepoint"
        }
        7 => {
            sql.run("SAVEPOINT s");
            open.saved = None;
            open.saved = Some(Box::new(open.clone()));
            "savepoint"
        }
        _ => {
            let all = open.rows.iter().map(|(k, (u, n))| line(*k, *u, *n));
            assert_eq!(
                sql.run("SELECT * FROM t ORDER BY k"),
                all.collect::<Vec<String>>()
            );
            "read"
        }
    }
}

fn line(key: i64, unique: Option<i64>, n: i64) -> String {
    let unique = unique.map_or("NULL".to_owned(), |u| u.to_string());
    format!("{key}|{unique}|{n}")
}

/// Runs a write behind a savepoint. It fails with 23505 if the model says so.
fn refused(sql: &mut Sql, write: &str, is_refused: bool) {
    sql.run("SAVEPOINT one");
    let state = sql.try_run(write).err().map(|e| e.state().0);
    assert_eq!(state, is_refused.then_some("23505"), "{write}");
    sql.run(if is_refused {
        "ROLLBACK TO one"
    } else {
        "RELEASE one"
    });
}

#[test]
fn interleaved_transactions_are_isolated() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for case in cases(0..CASES * scale()) {
        let _repeat = repeat!(interleaved_transactions_are_isolated, "BASALT_CASE={case}");
        let mut rng = Rng::of(&[case, 0x150]);
        let mut first = Sql::new();
        first.run("CREATE TABLE t (k INT PRIMARY KEY, u INT UNIQUE, n INT)");
        let database = first.database.clone();
        let mut sessions: [Sql; SESSIONS] = std::array::from_fn(|_| Sql::of(&database));
        let mut model = Model {
            rows: Rows::new(),
            commits: Vec::new(),
            open: Default::default(),
        };
        for _ in 0..STEPS {
            let at = rng.below(SESSIONS as u64) as usize;
            let sql = &mut sessions[at];
            let is_open = model.open[at].is_some();
            if !is_open {
                // The snapshot is that of the first statement.
                sql.run("BEGIN; SELECT count(*) FROM t");
                model.open(at);
            }
            let what = match rng.below(6) {
                0 if is_open => {
                    let open = model.open[at].take().expect("it is open");
                    let conflicts = model.conflicts(&open);
                    let has_written = !open.touched.is_empty() || !open.locked.is_empty();
                    match sql.try_run("COMMIT") {
                        Ok(_) => {
                            assert!(!conflicts || !has_written, "a conflict was not found");
                            model.rows = merged(&model.rows, &open);
                            model.commits.push(changed(&open));
                            "commit"
                        }
                        Err(e) => {
                            assert_eq!(e.state().0, "40001", "{e}");
                            assert!(conflicts, "there is no conflict: {e}");
                            "conflict"
                        }
                    }
                }
                1 if is_open && rng.percent(30) => {
                    sql.run("ROLLBACK");
                    model.open[at] = None;
                    "rollback"
                }
                _ => step(sql, model.open(at), &mut rng),
            };
            *counts.entry(what).or_default() += 1;
        }
        for sql in &mut sessions {
            sql.run("ROLLBACK");
        }
        let all = model.rows.iter().map(|(k, (u, n))| line(*k, *u, *n));
        let found = first.run("SELECT * FROM t ORDER BY k");
        assert_eq!(found, all.collect::<Vec<String>>());
        first.check();
    }
    let shown: Vec<String> = counts
        .iter()
        .map(|(what, n)| format!("{what}={n}"))
        .collect();
    campaign!("interleaved transactions: {}", shown.join(", "));
    if basalt_sim::campaign::case().is_none() {
        for (what, floor) in [("commit", 300), ("conflict", 100), ("savepoint", 100)] {
            let n = counts.get(what).copied().unwrap_or(0);
            assert!(n >= scale().floor(floor), "{what}: {n}");
        }
    }
}

/// Returns the keys and unique values whose rows a transaction leaves other than it has found them.
fn changed(open: &Open) -> Touched {
    let holder = |rows: &Rows, unique: i64| {
        let mut rows = rows.iter();
        let found = rows.find(|(_, (u, _))| *u == Some(unique));
        found.map(|(key, _)| *key)
    };
    let is_changed = |&&(is_key, value): &&(bool, i64)| match is_key {
        true => open.snapshot.get(&value) != open.rows.get(&value),
        false => holder(&open.snapshot, value) != holder(&open.rows, value),
    };
    open.touched.iter().filter(is_changed).copied().collect()
}

/// Returns the rows with those that a transaction has written.
fn merged(rows: &Rows, open: &Open) -> Rows {
    let mut rows = rows.clone();
    for (_, key) in open.touched.iter().filter(|(is_key, _)| *is_key) {
        match open.rows.get(key) {
            Some(row) => rows.insert(*key, *row),
            None => rows.remove(key),
        };
    }
    rows
}
