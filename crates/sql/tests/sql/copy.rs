//! COPY, EXPLAIN ANALYZE and notices, by the calls of a session.

use crate::harness::Sql;
use basalt_sql::{Outcome, Row, SqlResult};

/// Runs COPY FROM STDIN with data in parts.
fn copy_in(sql: &mut Sql, statement: &str, parts: &[&[u8]]) -> SqlResult<u64> {
    let parsed = sql.session.parse(statement)?;
    let prepared = sql.session.prepare(&parsed[0], &[])?;
    let mut sink = |_: &Row<'_>| Ok(());
    let Outcome::CopyIn(mut copy) = sql.session.execute(&prepared, &[], &mut sink)? else {
        panic!("{statement} takes no data");
    };
    for part in parts {
        sql.session.copy_data(&mut copy, part)?;
    }
    sql.session.copy_done(copy)
}

/// Runs COPY TO STDOUT. Returns the number of rows, and the rows.
fn copy_out(sql: &mut Sql, statement: &str) -> (u64, Vec<String>) {
    let parsed = sql.session.parse(statement).expect("it is well formed");
    let prepared = sql.session.prepare(&parsed[0], &[]).expect("it fits");
    let mut values = Vec::new();
    let mut sink = |row: &Row<'_>| {
        let row = (0..row.len()).map(|at| Ok(row.get(at)?.to_value()));
        values.push(row.collect::<SqlResult<Vec<_>>>()?);
        Ok(())
    };
    let outcome = sql.session.execute(&prepared, &[], &mut sink);
    let Ok(Outcome::CopyOut { columns, rows, .. }) = outcome else {
        panic!("{statement} returns no data");
    };
    let texts = values.into_iter().map(|row| {
        let texts = row.iter().zip(&columns).map(|(value, column)| {
            let mut text = String::new();
            match value.is_null() {
                true => text.push_str("NULL"),
                false => column.ty.write_text(value.as_ref(), &mut text),
            }
            text
        });
        texts.collect::<Vec<String>>().join("|")
    });
    (rows, texts.collect())
}

fn state<T: std::fmt::Debug>(done: SqlResult<T>) -> &'static str {
    done.expect_err("the data is wrong").state().0
}

fn table() -> Sql {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE t (id SERIAL PRIMARY KEY, s TEXT, n NUMERIC(6,2) DEFAULT 1, b BOOL CHECK (b));
         CREATE TABLE c (t INT REFERENCES t, d DATE UNIQUE)",
    );
    sql
}

#[test]
fn data_in_both_formats_and_in_any_parts() {
    let text = b"1\ta\\tb\t1.5\tt\n2\t\\N\t\\N\t\\N\n3\t\t2\ttrue\n".as_slice();
    let csv = b"id,s,n,b\n1,\"a\tb\",1.5,t\n2,,,\n3,\"\",2,true\n".as_slice();
    let expected = ["1|a\tb|1.50|t", "2|NULL|NULL|NULL", "3||2.00|t"];
    for (options, data) in [("", text), ("WITH (FORMAT csv, HEADER)", csv)] {
        for size in [1, 2, 7, 1_000] {
            let mut sql = table();
            let parts: Vec<&[u8]> = data.chunks(size).collect();
            let copy = format!("COPY t FROM STDIN {options}");
            assert_eq!(
                copy_in(&mut sql, &copy, &parts).expect("the data is right"),
                3
            );
            assert_eq!(sql.run("SELECT * FROM t ORDER BY id"), expected);
            let (rows, out) = copy_out(&mut sql, "COPY (SELECT * FROM t ORDER BY id) TO STDOUT");
            assert_eq!((rows, out), (3, expected.map(str::to_owned).to_vec()));
            assert_eq!(copy_out(&mut sql, "COPY t (s) TO STDOUT").0, 3);
            sql.check();
        }
    }
}

#[test]
fn columns_that_are_not_copied_get_their_defaults() {
    let mut sql = table();
    copy_in(&mut sql, "COPY t (s) FROM STDIN", &[b"x\ny\n\\.\n"]).expect("the data is right");
    assert_eq!(
        sql.run("SELECT id, s, n FROM t ORDER BY id"),
        ["1|x|1.00", "2|y|1.00"]
    );
}

#[test]
fn a_copy_that_fails_leaves_nothing() {
    let mut sql = table();
    sql.run("INSERT INTO t (s) VALUES ('kept')");
    for (copy, data, expected) in [
        ("COPY t FROM STDIN", "7\ta\t1\tt\n7\tb\t1\tt\n", "23505"),
        ("COPY t FROM STDIN", "7\ta\t1\tf\n", "23514"),
        ("COPY t FROM STDIN", "7\ta\tx\tt\n", "22P02"),
        ("COPY t FROM STDIN", "7\ta\n", "22P04"),
        ("COPY t FROM STDIN", "7\ta\t1\tt\tmore\n", "22P04"),
        ("COPY t (id, n) FROM STDIN", "7\t12345678\n", "22003"),
        (
            "COPY c FROM STDIN",
            "1\t2024-01-01\n9\t2024-01-02\n",
            "23503",
        ),
        ("COPY c FROM STDIN", "1\t2024-13-01\n", "22008"),
        (
            "COPY c FROM STDIN",
            "1\t2024-01-01\n1\t2024-01-01\n",
            "23505",
        ),
    ] {
        let done = copy_in(&mut sql, copy, &[data.as_bytes()]);
        assert_eq!(state(done), expected, "{copy}: {data}");
        assert_eq!(sql.run("SELECT count(*) FROM t"), ["1"]);
        assert_eq!(sql.run("SELECT count(*) FROM c"), ["0"]);
    }
    let foreign = b"7\t\xff\t1\tt\n".as_slice();
    assert_eq!(
        state(copy_in(&mut sql, "COPY t FROM STDIN", &[foreign])),
        "22P04"
    );
    // A transaction block has failed after a copy that has.
    sql.run("BEGIN; INSERT INTO t (s) VALUES ('block')");
    assert_eq!(
        state(copy_in(&mut sql, "COPY t FROM STDIN", &[b"x\n"])),
        "22P04"
    );
    assert_eq!(sql.status_text(), "Failed");
    sql.run("ROLLBACK; BEGIN");
    copy_in(&mut sql, "COPY t (s) FROM STDIN", &[b"a\nb\n"]).expect("the data is right");
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["3"]);
    sql.run("ROLLBACK");
    assert_eq!(sql.run("SELECT s FROM t"), ["kept"]);
    sql.check();
}

#[test]
fn a_client_gives_a_copy_up() {
    let mut sql = table();
    let parsed = sql
        .session
        .parse("COPY t (s) FROM STDIN")
        .expect("it is well formed");
    let prepared = sql.session.prepare(&parsed[0], &[]).expect("it fits");
    let mut sink = |_: &Row<'_>| Ok(());
    let outcome = sql.session.execute(&prepared, &[], &mut sink);
    let Ok(Outcome::CopyIn(mut copy)) = outcome else {
        panic!("COPY FROM takes data");
    };
    sql.session
        .copy_data(&mut copy, b"a\nb\n")
        .expect("the data is right");
    let e = sql
        .session
        .copy_fail(copy, "the client has changed its mind");
    assert_eq!(e.state().0, "57014");
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["0"]);
    // A copy that is dropped has no effect either.
    let outcome = sql.session.execute(&prepared, &[], &mut sink);
    let Ok(Outcome::CopyIn(mut copy)) = outcome else {
        panic!("COPY FROM takes data");
    };
    sql.session
        .copy_data(&mut copy, b"a\nb\n")
        .expect("the data is right");
    drop(copy);
    sql.run("ROLLBACK");
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["0"]);
    for refused in [
        "COPY t FROM '/etc/passwd'",
        "COPY t TO '/tmp/x'",
        "COPY t TO PROGRAM 'sh'",
    ] {
        let state = sql.fail(refused).state().0;
        assert!(["0A000", "42501"].contains(&state), "{refused}: {state}");
    }
}

#[test]
fn explain_analyze_counts_what_a_statement_reads() {
    let mut sql = table();
    sql.run("INSERT INTO t (s, n) SELECT 'x', g.n FROM generate_series(1, 100) AS g(n)");
    let plan = sql.run("EXPLAIN ANALYZE SELECT * FROM t WHERE id = 5");
    assert_eq!(plan[0], "Scan t: get by the primary key (id=?)");
    assert!(plan.contains(&"Rows: 1".to_owned()), "{plan:?}");
    assert!(
        plan.contains(&"Scans: 0, entries read: 0, gets: 1".to_owned()),
        "{plan:?}"
    );
    let plan = sql.run("EXPLAIN ANALYZE SELECT * FROM t WHERE n > 0");
    assert!(
        plan.contains(&"Scans: 1, entries read: 100, gets: 0".to_owned()),
        "{plan:?}"
    );
    let plan = sql.run("EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM t");
    assert!(plan[0].contains("\"Entries\": 100"), "{plan:?}");
    // ANALYZE carries a write out, EXPLAIN alone does not.
    sql.run("EXPLAIN DELETE FROM t");
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["100"]);
    let plan = sql.run("EXPLAIN ANALYZE DELETE FROM t WHERE id <= 10");
    assert!(plan.contains(&"Rows: 10".to_owned()), "{plan:?}");
    assert_eq!(sql.run("SELECT count(*) FROM t"), ["90"]);
    assert_eq!(sql.fail("EXPLAIN SELECT * FROM nothing").state().0, "42P01");
    assert_eq!(
        sql.fail("EXPLAIN CREATE TABLE x (a INT)").state().0,
        "0A000"
    );
    sql.check();
}

/// Returns the notices of a statement, with their codes.
fn notices(sql: &mut Sql, statement: &str) -> Vec<String> {
    let parsed = sql.session.parse(statement).expect("it is well formed");
    let prepared = sql.session.prepare(&parsed[0], &[]).expect("it fits");
    let mut sink = |_: &Row<'_>| Ok(());
    let outcome = sql.session.execute(&prepared, &[], &mut sink);
    match outcome.unwrap_or_else(|e| panic!("{statement}\nfails: {e}")) {
        Outcome::Done { notices, .. } => {
            let shown = notices
                .iter()
                .map(|n| format!("{} {}", n.state().0, n.message()));
            shown.collect()
        }
        _ => panic!("{statement} is a COPY"),
    }
}

#[test]
fn statements_without_an_effect_say_so() {
    let mut sql = table();
    for (statement, expected) in [
        ("COMMIT", "25P01 there is no transaction in progress"),
        ("ROLLBACK", "25P01 there is no transaction in progress"),
        (
            "SET LOCAL application_name = 'x'",
            "25P01 SET LOCAL can only be used in transaction blocks",
        ),
        (
            "SET TRANSACTION READ ONLY",
            "25P01 SET TRANSACTION can only be used in transaction blocks",
        ),
        (
            "CREATE TABLE IF NOT EXISTS t (a INT)",
            "42P07 relation \"t\" already exists, skipping",
        ),
    ] {
        assert_eq!(notices(&mut sql, statement), [expected], "{statement}");
    }
    sql.run("BEGIN");
    let expected = ["25001 there is already a transaction in progress"];
    assert_eq!(notices(&mut sql, "BEGIN"), expected);
    sql.run("COMMIT");
}
