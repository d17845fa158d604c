//! Types and names of results, and types of parameters.

use super::super::*;
use super::harness::Harness;
use SqlType as T;

#[test]
fn results_have_names_and_types() {
    let mut h = Harness::new();
    h.run("CREATE TABLE y (id BIGINT PRIMARY KEY, n NUMERIC(12,2), f REAL, d DATE, u UUID, j JSONB, s SMALLINT)").unwrap();
    h.run("CREATE VIEW v AS SELECT a, count(*) AS n FROM t1 GROUP BY a")
        .unwrap();
    for (expr, name, ty) in [
        ("a", "a", T::Integer),
        ("c", "c", T::Varchar(Some(20))),
        ("count(*)", "count", T::BigInt),
        ("sum(a)", "sum", T::BigInt),
        ("sum(id)", "sum", T::Numeric(Some((1000, 0)))),
        ("sum(n)", "sum", T::Numeric(Some((1000, 2)))),
        ("avg(a)", "avg", T::Numeric(None)),
        ("avg(f)", "avg", T::Double),
        ("min(d)", "min", T::Date),
        ("max(c)", "max", T::Varchar(Some(20))),
        ("a = 1", "?column?", T::Boolean),
        ("a + 1", "?column?", T::Integer),
        ("a + id", "?column?", T::BigInt),
        ("s + s", "?column?", T::SmallInt),
        ("n * 2", "?column?", T::Numeric(Some((1000, 2)))),
        ("f * 2", "?column?", T::Double),
        ("'x'", "?column?", T::Text),
        ("NULL", "?column?", T::Text),
        ("1.5", "?column?", T::Numeric(Some((1000, 1)))),
        ("9999999999", "?column?", T::BigInt),
        ("CASE WHEN a = 1 THEN 'x' END", "case", T::Text),
        ("CASE WHEN a = 1 THEN 2 ELSE a END", "a", T::Integer),
        ("coalesce(a, 1)", "coalesce", T::Integer),
        ("coalesce(s, 1)", "coalesce", T::Integer),
        ("'12'::int", "int4", T::Integer),
        ("CAST(a AS TEXT)", "a", T::Text),
        ("upper(c)", "upper", T::Text),
        ("length(c)", "length", T::Integer),
        ("(SELECT max(v) FROM t2)", "max", T::Integer),
        ("EXISTS (SELECT 1)", "exists", T::Boolean),
        ("now()", "now", T::Timestamptz),
        ("CURRENT_DATE", "current_date", T::Date),
        ("EXTRACT(year FROM d)", "extract", T::Numeric(None)),
        ("d + 1", "?column?", T::Date),
        ("d + INTERVAL '1 day'", "?column?", T::Timestamp),
        ("u", "u", T::Uuid),
        ("row_number() OVER ()", "row_number", T::BigInt),
        ("lag(c) OVER (ORDER BY a)", "lag", T::Varchar(Some(20))),
        ("c || 'x'", "?column?", T::Text),
        ("nullif(a, 1)", "nullif", T::Integer),
        ("a AS \"Mixed\"", "Mixed", T::Integer),
    ] {
        let grouped =
            ["count", "sum", "avg", "min", "max"].contains(&name) && !expr.starts_with('(');
        let group = if grouped { "" } else { "ORDER BY 1" };
        let query = h.query(&format!("SELECT {expr} FROM t1, y {group}"));
        assert_eq!(
            (query.columns[0].name.as_str(), query.columns[0].ty),
            (name, ty),
            "{expr}"
        );
    }
    let t1 = h.catalog.table("t1").unwrap().id;
    assert_eq!(
        h.query("SELECT x.b FROM t1 x").columns[0].origin,
        Some((t1, 1))
    );
    assert_eq!(h.query("SELECT b + 1 FROM t1 x").columns[0].origin, None);
    let types = |h: &Harness, text: &str| -> Vec<SqlType> {
        h.query(text).columns.iter().map(|c| c.ty).collect()
    };
    assert_eq!(types(&h, "SELECT * FROM v"), [T::Integer, T::BigInt]);
    assert_eq!(
        types(
            &h,
            "WITH x AS (SELECT sum(a) AS s FROM t1) SELECT s, s + 1 FROM x"
        ),
        [T::BigInt, T::BigInt]
    );
    assert_eq!(
        types(&h, "SELECT a FROM t1 UNION SELECT id FROM y"),
        [T::BigInt]
    );
    assert_eq!(
        types(&h, "VALUES (1, 'a'), (2.5, NULL)"),
        [T::Numeric(Some((1000, 1))), T::Text]
    );
}

#[test]
fn parameters_are_inferred() {
    let mut h = Harness::new();
    h.run("CREATE TABLE y (id BIGINT PRIMARY KEY, n NUMERIC(12,2), d TIMESTAMP, b BOOLEAN, c CHAR(4))").unwrap();
    for (text, types) in [
        ("SELECT * FROM y WHERE id = $1", vec![T::BigInt]),
        (
            "SELECT * FROM y WHERE $1 < n AND d BETWEEN $2 AND $3",
            vec![T::Numeric(None), T::Timestamp, T::Timestamp],
        ),
        (
            "SELECT * FROM y WHERE id IN ($1, $2) LIMIT $3 OFFSET $4",
            vec![T::BigInt; 4],
        ),
        (
            "SELECT $1::date, CAST($2 AS INT), $3",
            vec![T::Date, T::Integer, T::Text],
        ),
        (
            "SELECT $1 + 1, $2 || 'x', upper($3)",
            vec![T::Integer, T::Text, T::Text],
        ),
        ("SELECT d + $1, d - $2 FROM y", vec![T::Text, T::Text]),
        (
            "SELECT * FROM y WHERE b = $2 AND $1",
            vec![T::Boolean, T::Boolean],
        ),
        (
            "SELECT coalesce($1, id), CASE WHEN b THEN $2 ELSE n END FROM y",
            vec![T::BigInt, T::Numeric(None)],
        ),
        (
            "SELECT * FROM y WHERE c LIKE $1 AND id > ALL (SELECT 1)",
            vec![],
        ),
        ("SELECT id FROM y UNION ALL SELECT $1", vec![T::BigInt]),
        (
            "SELECT * FROM y WHERE id = (SELECT max(a) FROM t1 WHERE b = $1)",
            vec![T::Integer],
        ),
        (
            "SELECT * FROM y WHERE $1 IN (SELECT id FROM y)",
            vec![T::BigInt],
        ),
    ] {
        match h.command(text) {
            Ok(Command::Query(query)) => assert_eq!(query.executable.parameters, types, "{text}"),
            Ok(other) => panic!("{text}: {other:?}"),
            Err(e) => assert!(types.is_empty(), "{text}: {e}"),
        }
    }
    let write = h.write("INSERT INTO y (c, n, d) VALUES ($1, $2 + 1, $3)");
    assert_eq!(
        write.executable.parameters,
        [T::Text, T::Integer, T::Timestamp]
    );
    let write = h.write("UPDATE y SET n = $1, b = $2 WHERE id = $3");
    assert_eq!(
        write.executable.parameters,
        [T::Numeric(None), T::Boolean, T::BigInt]
    );
    let write = h.write("INSERT INTO y (id, b) SELECT $1, $2");
    assert_eq!(write.executable.parameters, [T::BigInt, T::Boolean]);
    let parsed = parse("SELECT * FROM y WHERE id = $1").unwrap();
    match analyze(&parsed[0], &h.catalog, &[Some(T::Integer)]) {
        Ok(Command::Query(query)) => assert_eq!(query.executable.parameters, [T::Integer]),
        other => panic!("{other:?}"),
    }
    assert_eq!(h.command("SELECT $0").unwrap_err().state().0, "42P02");
}
