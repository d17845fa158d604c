//! INSERT, UPDATE, DELETE and COPY.

use super::super::*;
use super::harness::Harness;
use crate::Value;

#[test]
fn defaults_are_filled_in() {
    let mut h = Harness::empty();
    h.run(
        "CREATE TABLE d (a SERIAL PRIMARY KEY, b INT DEFAULT 7, c TEXT DEFAULT 'n/a', \
           t TIMESTAMP DEFAULT CURRENT_TIMESTAMP, e DATE DEFAULT '2024-1-2')",
    )
    .unwrap();
    h.run("INSERT INTO d (c) VALUES ('x'), (DEFAULT)").unwrap();
    h.run("INSERT INTO d DEFAULT VALUES").unwrap();
    h.run("INSERT INTO d (a, b) VALUES (50, NULL)").unwrap();
    h.run("INSERT INTO d (b) SELECT b + 1 FROM d WHERE a < 3 ORDER BY a")
        .unwrap();
    h.check(
        "SELECT a, b, c, e FROM d ORDER BY a",
        "1|7|x|2024-01-02;2|7|n/a|2024-01-02;3|7|n/a|2024-01-02;4|8|n/a|2024-01-02;\
         5|8|n/a|2024-01-02;50|NULL|n/a|2024-01-02",
    );
    h.check("SELECT DISTINCT t FROM d", "2026-03-04 05:06:07.89");
    h.run("UPDATE d SET b = DEFAULT, c = c || '!' WHERE a = 50")
        .unwrap();
    h.check("SELECT b, c FROM d WHERE a = 50", "7|n/a!");
}

#[test]
fn identity_columns() {
    let mut h = Harness::empty();
    h.run("CREATE TABLE k (a INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b INT)")
        .unwrap();
    h.run("INSERT INTO k (b) VALUES (5)").unwrap();
    h.run("INSERT INTO k OVERRIDING SYSTEM VALUE VALUES (9, 5)")
        .unwrap();
    h.run("INSERT INTO k OVERRIDING USER VALUE VALUES (9, 6)")
        .unwrap();
    h.check("SELECT a FROM k ORDER BY a", "1;2;9");
    h.fails("INSERT INTO k VALUES (7, 7)", "428C9");
    h.fails("INSERT INTO k SELECT 7, 7", "428C9");
    h.fails("UPDATE k SET a = 5", "428C9");
}

#[test]
fn inserts_of_queries_and_values() {
    let mut h = Harness::new();
    h.run("INSERT INTO t2 SELECT a + 10, a, b FROM t1 WHERE b IS NOT NULL")
        .unwrap();
    h.check("SELECT COUNT(*) FROM t2", "7");
    h.run("WITH x AS (SELECT 77 AS n) INSERT INTO t1 (a, c) SELECT n, 'w' FROM x")
        .unwrap();
    h.run("INSERT INTO t1 VALUES (78)").unwrap();
    h.run("INSERT INTO t1 (c, a) VALUES ('5', '79'), (5, 80)")
        .unwrap();
    h.check(
        "SELECT a, b, c FROM t1 WHERE a > 70 ORDER BY a",
        "77|NULL|w;78|NULL|NULL;79|NULL|5;80|NULL|5",
    );
    for (text, state) in [
        ("INSERT INTO t1 VALUES (1, 2, 'a', 4)", "42601"),
        ("INSERT INTO t1 (a, b) VALUES (1)", "42601"),
        ("INSERT INTO t1 (a, a) VALUES (1, 2)", "42701"),
        ("INSERT INTO t1 (nope) VALUES (1)", "42703"),
        ("INSERT INTO nope VALUES (1)", "42P01"),
        ("INSERT INTO t1 VALUES ('x', 1, 'a')", "22P02"),
        ("INSERT INTO t1 VALUES (1, TRUE, 'a')", "42804"),
        (
            "INSERT INTO t1 VALUES (1, 1, 'a text of more than twenty characters')",
            "22001",
        ),
        ("INSERT INTO t1 SELECT c, 1, 'a' FROM t1", "42804"),
        ("REPLACE INTO t1 VALUES (1, 99, 'q')", "42601"),
        (
            "INSERT INTO t1 VALUES (1, 9, 'q') ON DUPLICATE KEY UPDATE b = 1",
            "0A000",
        ),
    ] {
        let e = h.run(text).expect_err(text);
        let known = e.state().0 == state || (state == "42601" && e.state().0 == "0A000");
        assert!(known, "{text}: {e}");
    }
}

#[test]
fn conflicts_become_queries() {
    let mut h = Harness::new();
    h.run("CREATE TABLE u (a INT PRIMARY KEY, b INT, c TEXT, UNIQUE (b, c))")
        .unwrap();
    let write = h.write("INSERT INTO u VALUES (1, 99, 'q') ON CONFLICT DO NOTHING");
    let on = write.on_conflict.unwrap();
    assert!(on.target.is_none() && on.update.is_none());
    let write = h.write(
        "INSERT INTO u AS x VALUES ($1, 99, 'q') ON CONFLICT (a) DO UPDATE \
         SET b = excluded.b + x.b + $2, c = DEFAULT WHERE x.b < 100",
    );
    assert_eq!(
        write.executable.parameters,
        [SqlType::Integer, SqlType::Integer]
    );
    let on = write.on_conflict.unwrap();
    assert_eq!(on.target, Some(ConflictTarget::PrimaryKey));
    let update = on.update.unwrap();
    assert_eq!(
        (&update.columns[..], update.parameters_from),
        (&[1, 2][..], 6)
    );
    let values = |stored: i64| -> Vec<Value> {
        vec![
            1.into(),
            stored.into(),
            "old".into(),
            1.into(),
            99.into(),
            "q".into(),
            1.into(),
            1000.into(),
        ]
    };
    let rows = h.execute(&update.query, &[], &values(10)).unwrap();
    assert_eq!(rows, ["1109|NULL"]);
    assert!(
        h.execute(&update.query, &[], &values(100))
            .unwrap()
            .is_empty()
    );
    let by_index = h.write("INSERT INTO u VALUES (1) ON CONFLICT (c, b) DO NOTHING");
    let Some(ConflictTarget::Index(_)) = by_index.on_conflict.unwrap().target else {
        panic!("no index");
    };
    let named = h.write("INSERT INTO u VALUES (1) ON CONFLICT ON CONSTRAINT u_pkey DO NOTHING");
    assert_eq!(
        named.on_conflict.unwrap().target,
        Some(ConflictTarget::PrimaryKey)
    );
    h.fails(
        "INSERT INTO u VALUES (1) ON CONFLICT (b) DO NOTHING",
        "42P10",
    );
    h.fails(
        "INSERT INTO u VALUES (1) ON CONFLICT DO UPDATE SET b = 1",
        "42601",
    );
    h.fails(
        "INSERT INTO u VALUES (1) ON CONFLICT (a) DO UPDATE SET nope = 1",
        "42703",
    );
    h.fails(
        "INSERT INTO u VALUES (1) ON CONFLICT (a) DO UPDATE SET b = (SELECT 1)",
        "0A000",
    );
}

#[test]
fn returning_becomes_a_query() {
    let h = Harness::new();
    let write = h.write("INSERT INTO t1 VALUES (9, $1, 'n') RETURNING *, a + $2 AS s, upper(c)");
    let returning = write.returning.unwrap();
    assert_eq!(returning.parameters_from, 3);
    let names: Vec<&str> = returning.columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "s", "upper"]);
    assert_eq!(returning.columns[1].origin.map(|o| o.1), Some(1));
    let row = [9.into(), 8.into(), "n".into(), 8.into(), 100.into()];
    let rows = h
        .execute(&returning.query, &returning.columns, &row)
        .unwrap();
    assert_eq!(rows, ["9|8|n|109|N"]);
    let update = h.write(
        "UPDATE t1 AS x SET b = 5 WHERE a = 1 RETURNING x.b, CASE WHEN x.b > 1 THEN 'y' END",
    );
    let returning = update.returning.unwrap();
    let rows = h
        .execute(&returning.query, &[], &[1.into(), 5.into(), Value::Null])
        .unwrap();
    assert_eq!(rows, ["5|y"]);
    assert!(h.write("DELETE FROM t1 RETURNING a").returning.is_some());
    assert_eq!(
        h.command("DELETE FROM t1 RETURNING count(*)")
            .unwrap_err()
            .state()
            .0,
        "42803"
    );
}

#[test]
fn updates_and_deletes() {
    let mut h = Harness::new();
    h.run("UPDATE t2 SET a = v, v = a WHERE id = 1").unwrap();
    h.check("SELECT a, v FROM t2 WHERE id = 1", "100|1");
    h.run("UPDATE t2 SET a = 1, v = 100 WHERE id = 1").unwrap();
    h.run("UPDATE t1 SET b = t2.v FROM t2 WHERE t2.a = t1.a AND t2.id = 3")
        .unwrap();
    h.check("SELECT a, b FROM t1 ORDER BY a", "1|10;2|300;3|NULL;4|20");
    h.run("UPDATE t1 AS z SET (b, c) = (1, 'new') WHERE z.a = 3")
        .unwrap();
    h.check("SELECT b, c FROM t1 WHERE a = 3", "1|new");
    h.run("UPDATE t1 SET (b, c) = (SELECT v, 'q' FROM t2 WHERE id = 4) WHERE a = 4")
        .unwrap();
    h.check("SELECT b, c FROM t1 WHERE a = 4", "400|q");
    h.run("UPDATE t1 SET b = (SELECT SUM(v) FROM t2 WHERE t2.a = t1.a) WHERE a IN (1, 2)")
        .unwrap();
    h.check("SELECT b FROM t1 WHERE a < 3 ORDER BY a", "300;300");
    h.run("WITH k AS (SELECT 3 AS n) UPDATE t1 SET b = 0 FROM k WHERE a = k.n")
        .unwrap();
    h.check("SELECT b FROM t1 WHERE a = 3", "0");
    h.run("DELETE FROM t2 USING t1 WHERE t1.a = t2.a AND t1.c = 'x'")
        .unwrap();
    h.check("SELECT id FROM t2 ORDER BY id", "3;4");
    h.run("CREATE TABLE p (x INT, y INT, PRIMARY KEY (x, y))")
        .unwrap();
    h.run("INSERT INTO p VALUES (1, 1), (1, 2), (2, 1)")
        .unwrap();
    h.run("DELETE FROM p AS q USING t1 WHERE t1.a = q.y AND t1.a = 2")
        .unwrap();
    h.check("SELECT x, y FROM p ORDER BY 1, 2", "1|1;2|1");
    h.run("WITH m AS (SELECT max(x) AS x FROM p) DELETE FROM p WHERE x IN (SELECT x FROM m)")
        .unwrap();
    h.check("SELECT x, y FROM p", "1|1");
    h.run("DELETE FROM t1").unwrap();
    h.check("SELECT count(*) FROM t1", "0");
    h.fails("UPDATE t1 SET b = 1, b = 2", "42601");
    h.fails("UPDATE t1 SET b = 'x'", "22P02");
    h.fails("UPDATE t1 SET b = c", "42804");
    h.fails("UPDATE t1 SET nope = 1", "42703");
    h.fails("DELETE FROM t1 WHERE nope = 1", "42703");
    h.fails("DELETE FROM pg_catalog.pg_class", "42501");
}

#[test]
fn copy_has_its_statements_and_format() {
    let h = Harness::new();
    let Command::Copy(copy) = h
        .command("COPY t1 (c, a) FROM STDIN WITH (FORMAT csv, HEADER, DELIMITER ';', NULL 'nil')")
        .unwrap()
    else {
        panic!("no COPY");
    };
    assert!(copy.from_client);
    assert_eq!(
        (
            copy.format.delimiter,
            copy.format.null.as_str(),
            copy.format.header
        ),
        (b';', "nil", true)
    );
    assert_eq!((copy.format.quote, copy.format.escape), (b'"', b'"'));
    let CopySource::Table {
        columns, insert, ..
    } = copy.source
    else {
        panic!("no table")
    };
    assert_eq!(columns, [2, 0]);
    assert_eq!(
        insert.executable.parameters,
        [SqlType::Varchar(Some(20)), SqlType::Integer]
    );
    assert_eq!(
        insert.executable.sql,
        "INSERT INTO \"t1\" (\"a\", \"b\", \"c\") VALUES (?2, NULL, ?1)"
    );
    let Command::Copy(copy) = h
        .command("COPY (SELECT a FROM t1) TO STDOUT CSV HEADER")
        .unwrap()
    else {
        panic!("no COPY");
    };
    assert!(copy.format.csv && copy.format.header && !copy.from_client);
    let Command::Copy(copy) = h.command("COPY t1 TO STDOUT").unwrap() else {
        panic!("no COPY")
    };
    assert_eq!(
        (copy.format.delimiter, copy.format.null.as_str()),
        (b'\t', "\\N")
    );
    assert_eq!(
        h.command("COPY t1 FROM '/etc/passwd'")
            .unwrap_err()
            .state()
            .0,
        "42501"
    );
    assert_eq!(
        h.command("COPY t1 FROM PROGRAM 'ls'")
            .unwrap_err()
            .state()
            .0,
        "42501"
    );
    assert_eq!(
        h.command("COPY nope FROM STDIN").unwrap_err().state().0,
        "42P01"
    );
}
