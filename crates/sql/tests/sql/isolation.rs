//! Isolation of transactions: the anomalies by their names (Adya's classes, in the form of the
//! Hermitage tests), and what snapshot isolation makes of each.

mod foreign_keys;
mod interleaved;

use crate::harness::Sql;

/// Returns sessions of one database with the table `test`, which has the rows 1|10 and 2|20.
fn sessions<const N: usize>() -> [Sql; N] {
    let mut first = Sql::new();
    first.run(
        "CREATE TABLE test (id INT PRIMARY KEY, value INT);
         INSERT INTO test VALUES (1, 10), (2, 20)",
    );
    let database = first.database.clone();
    std::array::from_fn(|_| Sql::of(&database))
}

const ALL: &str = "SELECT * FROM test ORDER BY id";

fn state(sql: &mut Sql, script: &str) -> &'static str {
    sql.fail(script).state().0
}

#[test]
fn g0_write_cycles_are_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = 11 WHERE id = 1");
    b.run("BEGIN; UPDATE test SET value = 12 WHERE id = 1");
    a.run("UPDATE test SET value = 21 WHERE id = 2; COMMIT");
    assert_eq!(a.run(ALL), ["1|11", "2|21"]);
    b.run("UPDATE test SET value = 22 WHERE id = 2");
    assert_eq!(state(&mut b, "COMMIT"), "40001");
    assert_eq!(b.run(ALL), ["1|11", "2|21"]);
}

#[test]
fn g1a_aborted_reads_are_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = 101 WHERE id = 1");
    b.run("BEGIN");
    assert_eq!(b.run(ALL), ["1|10", "2|20"]);
    a.run("ROLLBACK");
    assert_eq!(b.run(ALL), ["1|10", "2|20"]);
    b.run("COMMIT");
}

#[test]
fn g1b_intermediate_reads_are_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = 101 WHERE id = 1");
    b.run("BEGIN");
    assert_eq!(b.run(ALL), ["1|10", "2|20"]);
    a.run("UPDATE test SET value = 11 WHERE id = 1; COMMIT");
    assert_eq!(b.run(ALL), ["1|10", "2|20"]);
    b.run("COMMIT");
    assert_eq!(b.run(ALL), ["1|11", "2|20"]);
}

#[test]
fn g1c_circular_information_flow_is_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = 11 WHERE id = 1");
    b.run("BEGIN; UPDATE test SET value = 22 WHERE id = 2");
    assert_eq!(a.run("SELECT value FROM test WHERE id = 2"), ["20"]);
    assert_eq!(b.run("SELECT value FROM test WHERE id = 1"), ["10"]);
    a.run("COMMIT");
    b.run("COMMIT");
    assert_eq!(a.run(ALL), ["1|11", "2|22"]);
}

#[test]
fn otv_an_observed_transaction_does_not_vanish() {
    let [mut a, mut b, mut c] = sessions();
    a.run(
        "BEGIN; UPDATE test SET value = 11 WHERE id = 1; UPDATE test SET value = 19 WHERE id = 2",
    );
    b.run("BEGIN; UPDATE test SET value = 12 WHERE id = 1");
    a.run("COMMIT");
    c.run("BEGIN");
    assert_eq!(c.run("SELECT value FROM test WHERE id = 1"), ["11"]);
    b.run("UPDATE test SET value = 18 WHERE id = 2");
    assert_eq!(c.run("SELECT value FROM test WHERE id = 2"), ["19"]);
    assert_eq!(state(&mut b, "COMMIT"), "40001");
    assert_eq!(c.run(ALL), ["1|11", "2|19"]);
    c.run("COMMIT");
}

#[test]
fn pmp_predicates_do_not_change_between_reads_and_writes() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN");
    assert!(a.run("SELECT * FROM test WHERE value = 30").is_empty());
    b.run("INSERT INTO test VALUES (3, 30)");
    assert!(a.run("SELECT * FROM test WHERE value % 3 = 0").is_empty());
    a.run("COMMIT");
    // A write by a predicate: the other transaction has moved rows out of it and into it.
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = value + 10");
    b.run("BEGIN");
    assert_eq!(b.run("SELECT * FROM test WHERE value = 20"), ["2|20"]);
    a.run("COMMIT");
    b.run("DELETE FROM test WHERE value = 20");
    assert_eq!(state(&mut b, "COMMIT"), "40001");
    assert_eq!(a.run(ALL), ["1|20", "2|30"]);
}

#[test]
fn p4_lost_updates_are_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; SELECT * FROM test WHERE id = 1");
    b.run("BEGIN; SELECT * FROM test WHERE id = 1");
    a.run("UPDATE test SET value = 11 WHERE id = 1");
    b.run("UPDATE test SET value = 11 WHERE id = 1");
    a.run("COMMIT");
    assert_eq!(state(&mut b, "COMMIT"), "40001");
}

#[test]
fn g_single_read_skew_is_prevented() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN");
    assert_eq!(a.run("SELECT value FROM test WHERE id = 1"), ["10"]);
    b.run(
        "BEGIN; UPDATE test SET value = 12 WHERE id = 1; UPDATE test SET value = 18 WHERE id = 2;
         COMMIT",
    );
    assert_eq!(a.run("SELECT value FROM test WHERE id = 2"), ["20"]);
    // The same by a predicate, and by a write.
    assert_eq!(
        a.run("SELECT id FROM test WHERE value % 5 = 0 ORDER BY id"),
        ["1", "2"]
    );
    assert_eq!(a.tag("DELETE FROM test WHERE value = 20"), "DELETE 1");
    assert_eq!(state(&mut a, "COMMIT"), "40001");
    assert_eq!(b.run(ALL), ["1|12", "2|18"]);
}

#[test]
fn g2_item_write_skew_is_allowed_and_for_update_prevents_it() {
    // Snapshot isolation allows write skew: each transaction writes what the other one has read.
    let read = "SELECT * FROM test WHERE id IN (1, 2)";
    let [mut a, mut b] = sessions();
    a.run(&format!("BEGIN; {read}"));
    b.run(&format!("BEGIN; {read}"));
    a.run("UPDATE test SET value = 11 WHERE id = 1");
    b.run("UPDATE test SET value = 21 WHERE id = 2");
    a.run("COMMIT");
    b.run("COMMIT");
    assert_eq!(a.run(ALL), ["1|11", "2|21"]);
    for lock in ["FOR UPDATE", "FOR SHARE"] {
        let [mut a, mut b] = sessions();
        a.run(&format!("BEGIN; {read} {lock}"));
        b.run(&format!("BEGIN; {read} {lock}"));
        a.run("UPDATE test SET value = 11 WHERE id = 1");
        b.run("UPDATE test SET value = 21 WHERE id = 2");
        a.run("COMMIT");
        assert_eq!(state(&mut b, "COMMIT"), "40001", "{lock}");
        assert_eq!(a.run(ALL), ["1|11", "2|20"]);
    }
}

#[test]
fn g2_anti_dependency_cycles_over_predicates_are_allowed() {
    let [mut a, mut b] = sessions();
    let read = "SELECT * FROM test WHERE value % 3 = 0";
    assert!(a.run(&format!("BEGIN; {read}")).is_empty());
    assert!(b.run(&format!("BEGIN; {read}")).is_empty());
    a.run("INSERT INTO test VALUES (3, 30)");
    b.run("INSERT INTO test VALUES (4, 42)");
    a.run("COMMIT");
    b.run("COMMIT");
    assert_eq!(a.run(&format!("{read} ORDER BY id")), ["3|30", "4|42"]);
}

#[test]
fn for_update_keeps_a_row_that_only_a_condition_reads() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; SELECT value FROM test WHERE id = 1 FOR UPDATE");
    b.run("UPDATE test SET value = 0 WHERE id = 1");
    a.run("INSERT INTO test VALUES (9, 90)");
    assert_eq!(state(&mut a, "COMMIT"), "40001");
    assert_eq!(b.run(ALL), ["1|0", "2|20"]);
    // Rows that are locked and not changed by others are no conflict.
    a.run("BEGIN; SELECT value FROM test WHERE id = 2 FOR UPDATE");
    b.run("UPDATE test SET value = 5 WHERE id = 1");
    a.run("UPDATE test SET value = 25 WHERE id = 2; COMMIT");
    assert_eq!(b.run(ALL), ["1|5", "2|25"]);
}

#[test]
fn two_sessions_insert_the_same_key() {
    for unique in [
        "id INT PRIMARY KEY, n INT",
        "n INT PRIMARY KEY, id INT UNIQUE",
        "id INT UNIQUE, n INT",
    ] {
        let mut a = Sql::new();
        a.run(&format!("CREATE TABLE t ({unique})"));
        let mut b = Sql::of(&a.database);
        let second = "INSERT INTO t (id, n) VALUES (1, 20)";
        a.run("BEGIN; INSERT INTO t (id, n) VALUES (1, 10)");
        b.run(&format!("BEGIN; {second}"));
        a.run("COMMIT");
        assert_eq!(state(&mut b, "COMMIT"), "40001", "{unique}");
        // The transaction that is run again finds the row.
        assert_eq!(state(&mut b, second), "23505", "{unique}");
        assert_eq!(a.run("SELECT count(*) FROM t"), ["1"]);
        a.check();
    }
}

#[test]
fn an_update_and_an_insert_meet_at_a_unique_key() {
    let mut a = Sql::new();
    a.run("CREATE TABLE t (id INT PRIMARY KEY, u TEXT UNIQUE); INSERT INTO t VALUES (1, 'a')");
    let mut b = Sql::of(&a.database);
    a.run("BEGIN; UPDATE t SET u = 'b' WHERE id = 1");
    b.run("BEGIN; INSERT INTO t VALUES (2, 'b')");
    b.run("COMMIT");
    assert_eq!(state(&mut a, "COMMIT"), "40001");
    // A key that a transaction frees can be taken by a later one alone.
    a.run("BEGIN; DELETE FROM t WHERE id = 1");
    assert_eq!(state(&mut b, "INSERT INTO t VALUES (3, 'a')"), "23505");
    a.run("COMMIT");
    b.run("INSERT INTO t VALUES (3, 'a')");
    assert_eq!(a.run("SELECT * FROM t ORDER BY id"), ["2|b", "3|a"]);
    a.check();
}

/// Returns two sessions of a database with the parents 1 and 2 and no child.
fn family(action: &str) -> [Sql; 2] {
    let mut a = Sql::new();
    a.run(&format!(
        "CREATE TABLE p (id INT PRIMARY KEY, n INT);
         CREATE TABLE c (id INT PRIMARY KEY, p INT REFERENCES p {action});
         INSERT INTO p VALUES (1, 0), (2, 0)"
    ));
    let b = Sql::of(&a.database);
    [a, b]
}

#[test]
fn a_parent_is_deleted_while_a_child_is_inserted() {
    for action in [
        "",
        "ON DELETE CASCADE",
        "ON DELETE SET NULL",
        "ON DELETE RESTRICT",
    ] {
        for child_is_first in [true, false] {
            let [mut a, mut b] = family(action);
            a.run("BEGIN; DELETE FROM p WHERE id = 1");
            b.run("BEGIN; INSERT INTO c VALUES (1, 1)");
            let (first, second) = match child_is_first {
                true => (&mut b, &mut a),
                false => (&mut a, &mut b),
            };
            first.run("COMMIT");
            let failed = state(second, "COMMIT");
            assert!(["40001", "23503"].contains(&failed), "{action}: {failed}");
            let expected: &[&str] = if child_is_first { &["1|1"] } else { &[] };
            assert_eq!(first.run("SELECT * FROM c"), expected);
            let left = if child_is_first { "2" } else { "1" };
            assert_eq!(first.run("SELECT count(*) FROM p"), [left]);
            a.check();
        }
    }
}

#[test]
fn children_of_one_parent_do_not_conflict() {
    let [mut a, mut b] = family("");
    a.run("BEGIN; INSERT INTO c VALUES (1, 1)");
    b.run("BEGIN; INSERT INTO c VALUES (2, 1)");
    a.run("COMMIT");
    b.run("COMMIT");
    // A change of a parent's other columns does not conflict with a new child.
    a.run("BEGIN; INSERT INTO c VALUES (3, 1)");
    b.run("UPDATE p SET n = n + 1 WHERE id = 1");
    let done = a.try_run("COMMIT");
    assert!(done.is_ok(), "{done:?}");
    a.check();
}

#[test]
fn references_hold_at_the_end_of_the_transaction() {
    // A commit refused transactions whose references held at its end: it checked each reference
    // that a statement had made or broken, also after a later statement had taken it back.
    let [mut a, _] = family("");
    a.run("BEGIN; INSERT INTO c VALUES (1, 1); DELETE FROM c; DELETE FROM p WHERE id = 1; COMMIT");
    assert_eq!(a.run("SELECT id FROM p"), ["2"]);
    a.run(
        "BEGIN; DELETE FROM p WHERE id = 2; INSERT INTO p VALUES (2, 5);
         INSERT INTO c VALUES (2, 2); COMMIT",
    );
    a.run("INSERT INTO p VALUES (3, 0)");
    a.run("BEGIN; UPDATE c SET p = 3; UPDATE c SET p = 2; DELETE FROM p WHERE id = 3; COMMIT");
    assert_eq!(a.run("SELECT * FROM c"), ["2|2"]);
    a.check();
}

#[test]
fn definitions_that_change_conflict_with_older_transactions() {
    for change in [
        "ALTER TABLE test ADD COLUMN more INT DEFAULT 1",
        "CREATE INDEX ON test (value)",
        "CREATE UNIQUE INDEX ON test (value)",
        "ALTER TABLE test ADD CONSTRAINT positive CHECK (value > 0)",
        "DROP TABLE test",
        "TRUNCATE test",
    ] {
        let [mut a, mut b] = sessions();
        a.run("BEGIN; UPDATE test SET value = 11 WHERE id = 1");
        b.run(change);
        assert_eq!(state(&mut a, "COMMIT"), "40001", "{change}");
        assert_eq!(a.status_text(), "Idle");
        if change != "DROP TABLE test" {
            a.check();
        }
    }
}

#[test]
fn readers_keep_the_definitions_of_their_snapshot() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN");
    assert_eq!(a.run(ALL), ["1|10", "2|20"]);
    b.run("ALTER TABLE test ADD COLUMN more INT DEFAULT 1; INSERT INTO test VALUES (3, 30, 3)");
    assert_eq!(a.run(ALL), ["1|10", "2|20"]);
    b.run("ALTER TABLE test DROP COLUMN value; CREATE INDEX ON test (more)");
    assert_eq!(a.run(ALL), ["1|10", "2|20"]);
    a.run("COMMIT");
    assert_eq!(a.run(ALL), ["1|1", "2|1", "3|3"]);
    a.run("BEGIN");
    assert_eq!(a.run("SELECT count(*) FROM test"), ["3"]);
    b.run("DROP TABLE test");
    // The rows are gone: the transaction is run again, and finds no table.
    assert_eq!(state(&mut a, "SELECT count(*) FROM test"), "40001");
    a.run("ROLLBACK");
    assert_eq!(state(&mut a, ALL), "42P01");
}

#[test]
fn single_statements_are_run_again_after_a_conflict() {
    // The first attempt of each statement is behind a commit of another session only sometimes; in
    // threads some of them are, and none may be lost.
    let mut a = Sql::new();
    a.run("CREATE TABLE n (id INT PRIMARY KEY, v INT); INSERT INTO n VALUES (1, 0)");
    const THREADS: usize = 3;
    const ADDITIONS: usize = 40;
    basalt::env::thread::scope(|scope| {
        for _ in 0..THREADS {
            let database = a.database.clone();
            scope.spawn(move || {
                let mut sql = Sql::of(&database);
                for _ in 0..ADDITIONS {
                    sql.run("UPDATE n SET v = v + 1 WHERE id = 1");
                }
            });
        }
    });
    let expected = (THREADS * ADDITIONS).to_string();
    assert_eq!(a.run("SELECT v FROM n"), [expected]);
}

#[test]
fn read_only_transactions_refuse_writes() {
    let [mut a, _] = sessions::<2>();
    for begin in [
        "BEGIN READ ONLY",
        "BEGIN; SET TRANSACTION READ ONLY",
        "SET default_transaction_read_only = on; BEGIN",
    ] {
        for write in [
            "INSERT INTO test VALUES (3, 3)",
            "UPDATE test SET value = 1",
            "DELETE FROM test",
            "SELECT * FROM test FOR UPDATE",
            "COPY test FROM STDIN",
        ] {
            a.run(begin);
            assert_eq!(a.run(ALL), ["1|10", "2|20"]);
            assert_eq!(state(&mut a, write), "25006", "{begin}; {write}");
            a.run("ROLLBACK");
        }
    }
    a.run("SET default_transaction_read_only = off");
    a.run("BEGIN; UPDATE test SET value = 1; COMMIT");
}

#[test]
fn savepoints_nest_and_shadow_each_other() {
    let [mut a, _] = sessions::<2>();
    a.run("BEGIN; UPDATE test SET value = 1 WHERE id = 1; SAVEPOINT s");
    a.run("UPDATE test SET value = 2 WHERE id = 1; SAVEPOINT s");
    a.run("DELETE FROM test WHERE id = 2; ROLLBACK TO s");
    assert_eq!(a.run(ALL), ["1|2", "2|20"]);
    a.run("RELEASE s; ROLLBACK TO s");
    assert_eq!(a.run(ALL), ["1|1", "2|20"]);
    a.run("ROLLBACK TO SAVEPOINT s; INSERT INTO test VALUES (3, 30); RELEASE SAVEPOINT s");
    assert_eq!(state(&mut a, "ROLLBACK TO s"), "3B001");
    a.run("ROLLBACK");
    assert_eq!(a.run(ALL), ["1|10", "2|20"]);
    for alone in ["SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"] {
        assert_eq!(state(&mut a, alone), "25P01", "{alone}");
    }
}

#[test]
fn failed_blocks_take_their_end_alone() {
    let [mut a, mut b] = sessions();
    a.run("BEGIN; UPDATE test SET value = 1 WHERE id = 1");
    assert_eq!(state(&mut a, "SELECT 1 / 0"), "22012");
    assert_eq!(a.status_text(), "Failed");
    for refused in [
        "SELECT 1",
        "UPDATE test SET value = 2",
        "SAVEPOINT s",
        "BEGIN",
        "SHOW all",
    ] {
        assert_eq!(state(&mut a, refused), "25P02", "{refused}");
    }
    // COMMIT of a failed block is a rollback, and says so.
    assert_eq!(a.tag("COMMIT"), "ROLLBACK");
    assert_eq!(a.run(ALL), ["1|10", "2|20"]);
    // A malformed or unknown statement fails the block, too.
    for broken in ["SELECT * FROM nothing", "SELECT nothing FROM test"] {
        a.run("BEGIN; UPDATE test SET value = 1 WHERE id = 1");
        a.fail(broken);
        a.run("ROLLBACK");
    }
    // A block that a conflict has ended is over.
    a.run("BEGIN; UPDATE test SET value = 1 WHERE id = 1");
    b.run("UPDATE test SET value = 2 WHERE id = 1");
    assert_eq!(state(&mut a, "COMMIT"), "40001");
    assert_eq!(a.status_text(), "Idle");
    assert_eq!(a.run(ALL), ["1|2", "2|20"]);
}

#[test]
fn statements_do_not_see_their_own_writes() {
    let [mut a, _] = sessions::<2>();
    // The row before the updated one is read by its key.
    a.run("BEGIN; UPDATE test SET value = (SELECT y.value FROM test y WHERE y.id = test.id - 1)");
    assert_eq!(a.run(ALL), ["1|NULL", "2|10"]);
    a.run("ROLLBACK; BEGIN; INSERT INTO test VALUES (3, 30)");
    a.run("DELETE FROM test WHERE EXISTS (SELECT 1 FROM test y WHERE y.id = test.id - 1)");
    assert_eq!(a.run(ALL), ["1|10"]);
    a.run("ROLLBACK; BEGIN; UPDATE test SET id = id + 10 WHERE id IN (1, 2, 11, 12)");
    assert_eq!(a.run(ALL), ["11|10", "12|20"]);
    a.run("ROLLBACK");
    a.run("CREATE INDEX ON test (value)");
    for begin in ["BEGIN", ""] {
        a.run(begin);
        a.run("INSERT INTO test SELECT id + 10, value + 1 FROM test WHERE value > 0");
        a.run("UPDATE test SET value = (SELECT max(value) FROM test) + 1");
        assert_eq!(a.run("SELECT DISTINCT value FROM test"), ["22"]);
        a.run("UPDATE test SET value = value + 1 WHERE value >= 22");
        assert_eq!(a.run("SELECT DISTINCT value FROM test"), ["23"]);
        a.run("DELETE FROM test WHERE value = (SELECT max(value) FROM test)");
        assert_eq!(a.run("SELECT count(*) FROM test"), ["0"]);
        match begin {
            "" => {}
            _ => assert!(a.run("ROLLBACK").is_empty()),
        }
    }
    a.check();
}
