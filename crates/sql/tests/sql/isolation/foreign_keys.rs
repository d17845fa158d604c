//! Random writes of parents and children by several sessions. All references hold after each
//! commit.

use crate::harness::Sql;
use basalt_sim::campaign::{cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{campaign, repeat};
use std::collections::BTreeMap;

const SESSIONS: usize = 3;
const CASES: u64 = 40;
const STEPS: u64 = 120;

const ACTIONS: [&str; 5] = [
    "",
    "ON DELETE CASCADE ON UPDATE CASCADE",
    "ON DELETE SET NULL ON UPDATE SET NULL",
    "ON DELETE RESTRICT ON UPDATE RESTRICT",
    "ON DELETE SET DEFAULT ON UPDATE CASCADE",
];

fn write(rng: &mut Rng) -> String {
    let (key, other) = (rng.below(6), rng.below(6));
    match rng.below(9) {
        0 | 1 => format!("INSERT INTO p VALUES ({key}, 'u{other}')"),
        2 => format!("DELETE FROM p WHERE id = {key}"),
        3 => format!("UPDATE p SET id = {other} WHERE id = {key}"),
        4 => format!("UPDATE p SET u = 'u{other}' WHERE id = {key}"),
        5 => format!(
            "INSERT INTO c VALUES ({}, {key}, 'u{other}')",
            rng.below(30)
        ),
        6 => format!(
            "UPDATE c SET p = {key}, u = NULL WHERE id < {}",
            rng.below(30)
        ),
        7 => format!("UPDATE c SET u = 'u{key}' WHERE p = {other}"),
        _ => format!("DELETE FROM c WHERE p = {key}"),
    }
}

#[test]
fn references_hold_whatever_commits() {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for case in cases(0..CASES * scale()) {
        let _repeat = repeat!(references_hold_whatever_commits, "BASALT_CASE={case}");
        let mut rng = Rng::of(&[case, 0xf0e]);
        let mut first = Sql::new();
        let (one, two) = (rng.pick(&ACTIONS), rng.pick(&ACTIONS));
        first.run(&format!(
            "CREATE TABLE p (id INT PRIMARY KEY, u TEXT UNIQUE);
             CREATE TABLE c (id INT PRIMARY KEY, p INT REFERENCES p {one},
                             u TEXT REFERENCES p (u) {two});
             INSERT INTO p VALUES (0, 'u0'), (1, 'u1'), (2, NULL)"
        ));
        let database = first.database.clone();
        let mut sessions: [Sql; SESSIONS] = std::array::from_fn(|_| Sql::of(&database));
        for _ in 0..STEPS {
            let sql = &mut sessions[rng.below(SESSIONS as u64) as usize];
            let in_block = sql.status_text() != "Idle";
            let what = match rng.below(8) {
                0 if !in_block => {
                    sql.run("BEGIN");
                    continue;
                }
                0 | 1 if in_block => {
                    let committed = sql.try_run("COMMIT");
                    committed.err().map_or("commit", |e| e.state().0)
                }
                _ => {
                    let statement = write(&mut rng);
                    if in_block {
                        sql.run("SAVEPOINT s");
                    }
                    let done = sql.try_run(&statement);
                    if in_block {
                        sql.run(if done.is_ok() {
                            "RELEASE s"
                        } else {
                            "ROLLBACK TO s"
                        });
                    }
                    match done {
                        Ok(_) => "write",
                        Err(e) => {
                            let state = e.state().0;
                            let known = ["23503", "23505", "40001"].contains(&state);
                            assert!(known, "{statement}: {e}");
                            state
                        }
                    }
                }
            };
            *counts.entry(what).or_default() += 1;
            if rng.percent(10) {
                first.check();
            }
        }
        drop(sessions);
        first.check();
        for (column, parent) in [("p", "id"), ("u", "u")] {
            let orphans = format!(
                "SELECT count(*) FROM c WHERE {column} IS NOT NULL AND NOT EXISTS \
                 (SELECT 1 FROM p WHERE p.{parent} = c.{column})"
            );
            assert_eq!(first.run(&orphans), ["0"], "{column}");
        }
    }
    let shown: Vec<String> = counts
        .iter()
        .map(|(what, n)| format!("{what}={n}"))
        .collect();
    campaign!("foreign keys: {}", shown.join(", "));
    if basalt_sim::campaign::case().is_none() {
        for (what, floor) in [
            ("commit", 200),
            ("40001", 20),
            ("23503", 200),
            ("write", 1_000),
        ] {
            let n = counts.get(what).copied().unwrap_or(0);
            assert!(n >= scale().floor(floor), "{what}: {n}");
        }
    }
}
