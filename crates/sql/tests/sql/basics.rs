//! Tables, constraints and transactions.

use crate::harness::Sql;

#[test]
fn rows_are_inserted_updated_and_deleted() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY, b TEXT, c INT)");
    assert_eq!(
        sql.tag("INSERT INTO t VALUES (1, 'one', 10), (2, 'two', 20), (3, NULL, 30)"),
        "INSERT 0 3"
    );
    assert_eq!(sql.run("SELECT * FROM t WHERE a = 2"), ["2|two|20"]);
    assert_eq!(sql.tag("UPDATE t SET c = c + 1 WHERE a >= 2"), "UPDATE 2");
    assert_eq!(
        sql.run("SELECT a, b, c FROM t ORDER BY a DESC"),
        ["3|NULL|31", "2|two|21", "1|one|10"]
    );
    assert_eq!(sql.tag("DELETE FROM t WHERE b IS NULL"), "DELETE 1");
    assert_eq!(sql.run("SELECT count(*), sum(c) FROM t"), ["2|31"]);
    sql.check();
}

#[test]
fn constraints_are_enforced() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(5) NOT NULL UNIQUE, n INT CHECK (n > 0));
         CREATE TABLE c (id SERIAL PRIMARY KEY, p INT REFERENCES p ON DELETE CASCADE, q INT DEFAULT 7);
         INSERT INTO p VALUES (1, 'a', 1), (2, 'b', NULL);
         INSERT INTO c (p) VALUES (1), (1), (2), (NULL)",
    );
    let mut state = |script: &str| sql.fail(script).state().0;
    assert_eq!(state("INSERT INTO p VALUES (1, 'c', 1)"), "23505");
    assert_eq!(state("INSERT INTO p VALUES (3, 'a', 1)"), "23505");
    assert_eq!(state("INSERT INTO p VALUES (3, NULL, 1)"), "23502");
    assert_eq!(state("INSERT INTO p VALUES (3, 'c', 0)"), "23514");
    assert_eq!(state("INSERT INTO p VALUES (3, 'toolong', 1)"), "22001");
    assert_eq!(state("UPDATE p SET n = -1 WHERE id = 1"), "23514");
    assert_eq!(state("UPDATE p SET name = NULL"), "23502");
    assert_eq!(state("INSERT INTO c (p) VALUES (9)"), "23503");
    assert_eq!(state("UPDATE p SET id = 10 WHERE id = 1"), "23503");
    assert_eq!(state("SELECT nothing FROM p"), "42703");
    assert_eq!(state("SELECT * FROM nothing"), "42P01");
    assert_eq!(state("SELEC 1"), "42601");
    assert_eq!(
        sql.run("SELECT * FROM c ORDER BY id"),
        ["1|1|7", "2|1|7", "3|2|7", "4|NULL|7"]
    );
    sql.run("DELETE FROM p WHERE id = 1");
    assert_eq!(sql.run("SELECT id FROM c ORDER BY id"), ["3", "4"]);
    sql.check();
}

#[test]
fn a_failed_statement_leaves_nothing() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (5)");
    sql.run("BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s");
    assert_eq!(
        sql.fail("INSERT INTO t VALUES (2), (3), (5)").state().0,
        "23505"
    );
    assert_eq!(sql.fail("SELECT 1").state().0, "25P02");
    sql.run("ROLLBACK TO s");
    assert_eq!(sql.run("SELECT a FROM t ORDER BY a"), ["1", "5"]);
    sql.run("COMMIT");
    assert_eq!(sql.run("SELECT a FROM t ORDER BY a"), ["1", "5"]);
}

#[test]
fn upserts_and_returning() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (k TEXT PRIMARY KEY, n INT NOT NULL DEFAULT 1, u INT UNIQUE)");
    let upsert = "INSERT INTO t (k) VALUES ('a') ON CONFLICT (k) DO UPDATE SET n = t.n + excluded.n RETURNING k, n";
    assert_eq!(sql.run(upsert), ["a|1"]);
    assert_eq!(sql.run(upsert), ["a|2"]);
    assert_eq!(
        sql.tag("INSERT INTO t (k) VALUES ('a') ON CONFLICT DO NOTHING"),
        "INSERT 0 0"
    );
    assert_eq!(sql.run("UPDATE t SET n = 9 RETURNING n * 2"), ["18"]);
    assert_eq!(sql.run("DELETE FROM t RETURNING k, n"), ["a|9"]);
    sql.check();
}

#[test]
fn another_sessions_changes_are_seen_at_the_next_transaction() {
    let mut a = Sql::new();
    let mut b = Sql::of(&a.database);
    a.run("CREATE TABLE t (a INT PRIMARY KEY, n INT); INSERT INTO t VALUES (1, 1)");
    assert_eq!(b.run("SELECT n FROM t"), ["1"]);
    b.run("BEGIN");
    assert_eq!(b.run("SELECT n FROM t"), ["1"]);
    a.run("UPDATE t SET n = 2");
    assert_eq!(b.run("SELECT n FROM t"), ["1"]);
    assert_eq!(b.fail("UPDATE t SET n = n + 10; COMMIT").state().0, "40001");
    b.run("ROLLBACK");
    assert_eq!(b.run("SELECT n FROM t"), ["2"]);
    a.run("CREATE INDEX ON t (n); ALTER TABLE t ADD COLUMN m INT DEFAULT 5");
    assert_eq!(b.run("SELECT a, n, m FROM t WHERE n = 2"), ["1|2|5"]);
    a.check();
}

#[test]
fn a_table_with_rows_gets_a_primary_key() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE t (a INT, b TEXT, c INT UNIQUE);
         CREATE INDEX t_b ON t (b);
         INSERT INTO t VALUES (3, 'x', 30), (1, 'y', NULL), (2, 'x', 20), (2, 'z', 21)",
    );
    assert_eq!(
        sql.fail("ALTER TABLE t ADD PRIMARY KEY (a)").state().0,
        "23505"
    );
    assert_eq!(
        sql.fail("ALTER TABLE t ADD PRIMARY KEY (c)").state().0,
        "23502"
    );
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["4"]);
    sql.check();
    sql.run("DELETE FROM t WHERE b = 'z'; ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (a)");
    assert_eq!(sql.run("SELECT * FROM t"), ["1|y|NULL", "2|x|20", "3|x|30"]);
    assert_eq!(
        sql.run("SELECT a FROM t WHERE b = 'x' ORDER BY a"),
        ["2", "3"]
    );
    assert_eq!(sql.run("SELECT a FROM t WHERE c = 20"), ["2"]);
    let e = sql.fail("INSERT INTO t VALUES (3, 'q', 1)");
    assert_eq!((e.state().0, e.constraint()), ("23505", Some("k")));
    sql.check();
}

#[test]
fn a_table_of_a_query_that_fails_is_not_made() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1), (0)");
    assert_eq!(
        sql.fail("CREATE TABLE q AS SELECT 1 / a FROM t ORDER BY a DESC")
            .state()
            .0,
        "22012"
    );
    assert_eq!(sql.fail("SELECT * FROM q").state().0, "42P01");
    assert_eq!(
        sql.tag("CREATE TABLE q AS SELECT a, a + 1 AS b FROM t"),
        "SELECT 2"
    );
    assert_eq!(sql.run("SELECT * FROM q ORDER BY a"), ["0|1", "1|2"]);
    sql.check();
}
