//! Queries.

use super::harness::Harness;
use crate::Value;

#[test]
fn joins_and_subqueries() {
    let mut h = Harness::new();
    for (query, rows) in [
        (
            "SELECT t1.a, t2.v FROM t1 JOIN t2 ON t1.a = t2.a ORDER BY 2",
            "1|100;1|200;2|300",
        ),
        (
            "SELECT t1.a, t2.v FROM t1, t2 WHERE t1.a = t2.a AND t2.v > 100 ORDER BY v",
            "1|200;2|300",
        ),
        (
            "SELECT t1.a, t2.v FROM t1 LEFT JOIN t2 ON t1.a = t2.a ORDER BY 1, 2",
            "1|100;1|200;2|300;3|NULL;4|NULL",
        ),
        (
            "SELECT t1.a, t2.v FROM t1 RIGHT JOIN t2 ON t1.a = t2.a ORDER BY v",
            "1|100;1|200;2|300;NULL|400",
        ),
        (
            "SELECT t1.a, t2.v FROM t1 FULL JOIN t2 ON t1.a = t2.a ORDER BY a, v",
            "1|100;1|200;2|300;3|NULL;4|NULL;NULL|400",
        ),
        (
            "SELECT * FROM t1 JOIN t2 USING (a) ORDER BY v",
            "1|10|x|1|100;1|10|x|2|200;2|20|y|3|300",
        ),
        (
            "SELECT a FROM t1 FULL JOIN t2 USING (a) ORDER BY a",
            "1;1;2;3;4;9",
        ),
        (
            "SELECT a, v FROM t1 NATURAL JOIN t2 ORDER BY v",
            "1|100;1|200;2|300",
        ),
        (
            "SELECT count(*) FROM t1 x, (t1 y RIGHT JOIN t2 ON t2.a = y.a)",
            "16",
        ),
        (
            "SELECT count(*) FROM t1 x, t1 y RIGHT JOIN t2 ON t2.a = y.a",
            "16",
        ),
        (
            "SELECT x.a, y.a FROM t1 x JOIN t1 y ON x.b = y.b WHERE x.a < y.a",
            "2|4",
        ),
        (
            "SELECT a, (SELECT MAX(v) FROM t2 WHERE t2.a = t1.a) FROM t1 ORDER BY 1",
            "1|200;2|300;3|NULL;4|NULL",
        ),
        ("SELECT a FROM t1 WHERE a NOT IN (SELECT b FROM t1)", ""),
        (
            "SELECT a FROM t1 WHERE a = ANY (SELECT a FROM t2) ORDER BY a",
            "1;2",
        ),
        (
            "SELECT a FROM t1 WHERE a <> ALL (SELECT a FROM t2) ORDER BY a",
            "3;4",
        ),
        (
            "SELECT a FROM t1 WHERE NOT EXISTS (SELECT 1 FROM t2 WHERE t2.a = t1.a) ORDER BY a",
            "3;4",
        ),
        (
            "SELECT s.x FROM (SELECT a+1 AS x FROM t1) s WHERE s.x > 3 ORDER BY 1",
            "4;5",
        ),
        (
            "SELECT q.two FROM (SELECT a, b FROM t1) AS q(one, two) WHERE one = 1",
            "10",
        ),
        ("SELECT x.b FROM t1 AS x(b, a, d) WHERE x.a = 10", "1"),
        ("SELECT (SELECT v FROM t2 WHERE id = 1)", "100"),
        (
            "SELECT (a, b) IN ((1, 10), (2, 99)) FROM t1 WHERE a < 3 ORDER BY a",
            "t;f",
        ),
        (
            "SELECT a FROM t1 WHERE (a, b) >= (2, 20) ORDER BY a",
            "2;3;4",
        ),
        (
            "SELECT a FROM t1 WHERE (a, b) IN (SELECT a, v / 10 FROM t2)",
            "1",
        ),
    ] {
        h.check(query, rows);
    }
    h.fails("SELECT (SELECT v FROM t2 WHERE a = 1)", "21000");
    h.fails(
        "SELECT t1.a, s.m FROM t1 CROSS JOIN LATERAL (SELECT MAX(v) AS m FROM t2) s",
        "0A000",
    );
}

#[test]
fn nulls_are_ordered_as_in_postgresql() {
    let mut h = Harness::new();
    h.check("SELECT a FROM t1 ORDER BY b, a", "1;2;4;3");
    h.check("SELECT a FROM t1 ORDER BY b DESC, a DESC", "3;4;2;1");
    h.check("SELECT a FROM t1 ORDER BY b NULLS FIRST, a", "3;1;2;4");
    h.check("SELECT a FROM t1 ORDER BY b DESC NULLS LAST, a", "2;4;1;3");
    h.check(
        "SELECT a, ROW_NUMBER() OVER (ORDER BY b DESC, a) FROM t1 ORDER BY 2",
        "3|1;2|2;4|3;1|4",
    );
    h.check(
        "SELECT b FROM t1 UNION SELECT NULL ORDER BY 1 DESC",
        "NULL;20;10",
    );
    h.check(
        "SELECT t1.a FROM t2 LEFT JOIN t1 ON t1.a = t2.a ORDER BY t1.a, id",
        "1;1;2;NULL",
    );
    // An index can give the order of a column that is never NULL.
    assert!(
        !h.query("SELECT a FROM t1 ORDER BY a")
            .executable
            .sql
            .contains("NULLS")
    );
    assert!(
        h.query("SELECT a FROM t1 ORDER BY b")
            .executable
            .sql
            .contains("NULLS LAST")
    );
}

#[test]
fn aggregates_and_groups() {
    let mut h = Harness::new();
    for (query, rows) in [
        (
            "SELECT b, COUNT(*), SUM(a) FROM t1 GROUP BY b ORDER BY b",
            "10|1|1;20|2|6;NULL|1|3",
        ),
        (
            "SELECT b AS k, COUNT(*) FROM t1 GROUP BY k HAVING COUNT(*) > 1",
            "20|2",
        ),
        (
            "SELECT b, COUNT(*) FROM t1 GROUP BY 1 ORDER BY 2 DESC, 1",
            "20|2;10|1;NULL|1",
        ),
        (
            "SELECT a % 2, SUM(a) FROM t1 GROUP BY a % 2 ORDER BY 1",
            "0|6;1|4",
        ),
        (
            "SELECT t1.a, t1.b FROM t1 GROUP BY t1.a ORDER BY a",
            "1|10;2|20;3|NULL;4|20",
        ),
        (
            "SELECT COUNT(b), COUNT(*), SUM(b), MIN(b), MAX(b) FROM t1",
            "3|4|50|10|20",
        ),
        ("SELECT COUNT(*) FILTER (WHERE b = 20) FROM t1", "2"),
        ("SELECT STRING_AGG(c, ',') FROM t1 WHERE a < 3", "x,y"),
        ("SELECT STRING_AGG(c, '+' ORDER BY a DESC) FROM t1", "z+y+x"),
        ("SELECT COUNT(DISTINCT b), SUM(DISTINCT b) FROM t1", "2|30"),
        (
            "SELECT COUNT(*), SUM(a), MAX(a) FROM t1 WHERE a > 100",
            "0|NULL|NULL",
        ),
        ("SELECT bool_and(b > 5), bool_or(b > 15) FROM t1", "t|t"),
        (
            "SELECT round(stddev(a), 4), var_pop(a) FROM t1",
            "1.2910|1.25",
        ),
        (
            "SELECT a, SUM(a) OVER (PARTITION BY b ORDER BY a) FROM t1 WHERE b = 20",
            "2|2;4|6",
        ),
        (
            "SELECT a, LAG(a, 1, 0) OVER w FROM t1 WINDOW w AS (ORDER BY a)",
            "1|0;2|1;3|2;4|3",
        ),
        (
            "SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t1",
            "1;3;5;7",
        ),
    ] {
        h.check(query, rows);
    }
    h.fails("SELECT a, b FROM t1 GROUP BY b", "42803");
    h.fails("SELECT * FROM t1 GROUP BY b", "42803");
    h.fails("SELECT a, COUNT(*) FROM t1", "42803");
    h.fails("SELECT SUM(SUM(a)) FROM t1", "42803");
    h.fails("SELECT a FROM t1 WHERE SUM(a) > 1", "42803");
    h.fails("SELECT b FROM t1 GROUP BY ROLLUP (b)", "0A000");
}

#[test]
fn min_and_max_of_a_key_read_one_row() {
    let mut h = Harness::empty();
    h.run("CREATE TABLE o (w INT, d INT, id INT, x INT, PRIMARY KEY (w, d, id))")
        .unwrap();
    h.run("INSERT INTO o VALUES (1,1,5,NULL),(1,1,3,7),(1,2,1,8),(2,1,9,1)")
        .unwrap();
    h.run("CREATE INDEX ox ON o (x)").unwrap();
    for (query, rows, rewritten) in [
        ("SELECT MIN(id) FROM o WHERE w = 1 AND d = 1", "3", true),
        ("SELECT MAX(id) FROM o WHERE d = 1 AND w = 1", "5", true),
        ("SELECT MAX(id) FROM o WHERE d = 7 AND w = 1", "NULL", true),
        ("SELECT MIN(x) FROM o", "1", true),
        ("SELECT MAX(w) AS m FROM o", "2", true),
        ("SELECT MIN(id) FROM o WHERE w = 1", "1", false),
        ("SELECT MIN(id) FROM o WHERE w = 1 AND d > 1", "1", false),
        (
            "SELECT MIN(id) FROM o WHERE w = 1 AND d = 1 AND x = 7",
            "3",
            false,
        ),
        ("SELECT MIN(x), MAX(x) FROM o", "1|8", false),
    ] {
        h.check(query, rows);
        let sql = h.query(query).executable.sql;
        assert_eq!(sql.contains("LIMIT 1"), rewritten, "{sql}");
    }
}

#[test]
fn set_operations_and_with() {
    let mut h = Harness::new();
    for (query, rows) in [
        (
            "SELECT a FROM t1 UNION SELECT a FROM t2 ORDER BY a DESC LIMIT 2",
            "9;4",
        ),
        (
            "SELECT a FROM t1 INTERSECT SELECT a FROM t2 ORDER BY 1",
            "1;2",
        ),
        ("SELECT a FROM t1 EXCEPT SELECT a FROM t2 ORDER BY 1", "3;4"),
        // INTERSECT binds more tightly than UNION.
        ("SELECT 1 UNION SELECT 2 INTERSECT SELECT 3 ORDER BY 1", "1"),
        (
            "(SELECT a FROM t1 ORDER BY a LIMIT 1) UNION ALL (SELECT a FROM t1 ORDER BY a DESC LIMIT 1)",
            "1;4",
        ),
        (
            "SELECT '2026-01-01' UNION SELECT DATE '2025-01-01' ORDER BY 1",
            "2025-01-01;2026-01-01",
        ),
        (
            "WITH x AS (SELECT a FROM t1 WHERE a > 2) SELECT * FROM x ORDER BY a",
            "3;4",
        ),
        (
            "WITH t1 AS (SELECT a FROM t1 WHERE a > 2) SELECT * FROM t1 ORDER BY a",
            "3;4",
        ),
        (
            "WITH x(n) AS (SELECT a FROM t1), y AS (SELECT n * 2 AS m FROM x) SELECT max(m) FROM y",
            "8",
        ),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n < 5) SELECT SUM(n) FROM r",
            "15",
        ),
        ("VALUES (1, 'a'), (2, NULL) ORDER BY 1 DESC", "2|NULL;1|a"),
        (
            "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(n, t) WHERE n = 2",
            "2|b",
        ),
        ("SELECT * FROM generate_series(2, 4)", "2;3;4"),
        ("SELECT g FROM generate_series(10, 1, -4) AS g", "10;6;2"),
        (
            "SELECT count(*) FROM generate_series(1, 10) AS g(n) JOIN t1 ON t1.a = g.n",
            "4",
        ),
        ("SELECT a FROM t1 ORDER BY a FETCH FIRST 2 ROWS ONLY", "1;2"),
        ("SELECT a FROM t1 ORDER BY a OFFSET 2", "3;4"),
        ("SELECT a FROM t1 ORDER BY a LIMIT ALL OFFSET 3", "4"),
        ("SELECT DISTINCT b FROM t1 ORDER BY b", "10;20;NULL"),
    ] {
        h.check(query, rows);
    }
    h.fails("SELECT 1 UNION SELECT 1, 2", "42601");
    h.fails("SELECT a FROM t1 UNION SELECT c FROM t1", "42804");
    h.fails("SELECT 1 UNION SELECT 'a'", "22P02");
    h.fails("SELECT a FROM t1 LIMIT -1", "2201W");
    h.fails("SELECT a FROM t1 ORDER BY 9", "42P10");
    h.fails("SELECT DISTINCT a FROM t1 ORDER BY b", "42P10");
    h.fails("SELECT DISTINCT ON (b) b FROM t1 ORDER BY b", "0A000");
    assert_eq!(
        h.run_with("SELECT a FROM t1 ORDER BY a LIMIT $1", &[Value::Null])
            .unwrap(),
        "1;2;3;4"
    );
    let e = h
        .run_with("SELECT a FROM t1 LIMIT $1", &[Value::Integer(-1)])
        .unwrap_err();
    assert_eq!(e.state().0, "2201W");
}

#[test]
fn expressions() {
    let mut h = Harness::new();
    for (query, rows) in [
        (
            "SELECT CASE WHEN b = 20 THEN 'tw' ELSE 'o' END FROM t1 ORDER BY a",
            "o;tw;o;tw",
        ),
        (
            "SELECT CASE b WHEN 10 THEN 1 WHEN 20 THEN 2 END FROM t1 ORDER BY a",
            "1;2;NULL;2",
        ),
        (
            "SELECT CAST('12' AS INT) + 1, CAST(12 AS VARCHAR), '12'::int + 1",
            "13|12|13",
        ),
        (
            "SELECT 7 / 2, -7 / 2, 7 % 3, -7 % 3, 7.0 / 2, 2 ^ 10",
            "3|-3|1|-1|3.5|1024",
        ),
        ("SELECT 0.1 + 0.2, 1.5 * 2, 0.1 + 0.2 = 0.3", "0.3|3.0|t"),
        (
            "SELECT NULL OR TRUE, NULL AND FALSE, NULL = NULL, NOT TRUE",
            "t|f|NULL|f",
        ),
        (
            "SELECT a FROM t1 WHERE b IS DISTINCT FROM 20 ORDER BY a",
            "1;3",
        ),
        (
            "SELECT a FROM t1 WHERE (b = 20) IS NOT TRUE ORDER BY a",
            "1;3",
        ),
        ("SELECT 'a' || 'b' || 1 || TRUE", "ab1true"),
        (
            "SELECT 'abc' LIKE 'A%', 'abc' LIKE 'a%', 'abc' ILIKE 'A%', 'a%b' LIKE 'a\\%b'",
            "f|t|t|t",
        ),
        (
            "SELECT 'a%b' LIKE 'a#%b' ESCAPE '#', 'é' LIKE '_', 'a' LIKE ''",
            "t|t|f",
        ),
        ("SELECT a FROM t1 WHERE c LIKE 'y%'", "2"),
        ("SELECT a FROM t1 WHERE c NOT LIKE 'y%' ORDER BY a", "1;3"),
        (
            "SELECT 'abc' ~ '^a.c$', 'ABC' ~* 'b', 'abc' !~ 'z'",
            "t|t|t",
        ),
        (
            "SELECT 5 BETWEEN 1 AND 9, 'b' BETWEEN 'c' AND 'd', 5 NOT IN (1, 2)",
            "t|f|t",
        ),
        ("SELECT a FROM t1 WHERE a IN ('1', 2) ORDER BY a", "1;2"),
        ("SELECT a FROM t1 WHERE b NOT IN (10, NULL)", ""),
        (
            "SELECT COALESCE(b, -1), NULLIF(a, 1) FROM t1 ORDER BY a",
            "10|NULL;20|2;-1|3;20|4",
        ),
        ("SELECT GREATEST(1, NULL, 2), LEAST(3, 1, NULL)", "2|1"),
        (
            "SELECT E'a\\nb' = 'a' || chr(10) || 'b', $$it's$$",
            "t|it's",
        ),
        (
            "SELECT SUBSTRING('hello' FROM 2 FOR 3), SUBSTRING('hello', -2, 4), SUBSTR('héllo', 2, 2)",
            "ell|h|él",
        ),
        (
            "SELECT POSITION('l' IN 'hello'), TRIM('  a '), TRIM(LEADING 'x' FROM 'xxa'), OVERLAY('abcdef' PLACING 'ZZ' FROM 2 FOR 3)",
            "3|a|a|aZZef",
        ),
        (
            "SELECT UPPER('aé'), LENGTH('日本語'), LEFT('abc', -1), LPAD('7', 3, '0'), REVERSE('abc')",
            "AÉ|3|ab|007|cba",
        ),
        (
            "SELECT CONCAT('a', NULL, 1, TRUE), CONCAT_WS('-', 'a', NULL, 'b')",
            "a1true|a-b",
        ),
        (
            "SELECT ROUND(2.567, 2), ROUND(2.5), ROUND(-2.5), TRUNC(2.99), MOD(7, 3), ABS(-3)",
            "2.57|3|-3|2|1|3",
        ),
        (
            "SELECT CEIL(2.1), FLOOR(2.9), POWER(2, 3), SQRT(16), SIGN(-5)",
            "3|2|8|4|-1",
        ),
        ("SELECT 5 & 6, 5 | 6, 5 # 6, ~5, 1 << 4", "4|7|3|-6|16"),
        (
            "SELECT -9223372036854775808, -(-9223372036854775807)",
            "-9223372036854775808|9223372036854775807",
        ),
        (
            "SELECT CAST(2.5 AS INT), CAST(TRUE AS TEXT), CAST('t' AS BOOLEAN), 1::boolean",
            "3|true|t|t",
        ),
        (
            "SELECT CAST('abcdef' AS VARCHAR(3)), 'ab'::char(4) || '|'",
            "abc|ab|",
        ),
        (
            "SELECT current_user, current_database(), current_schema()",
            "tester|basalt|public",
        ),
        (
            "SELECT split_part('a,b,c', ',', 2), md5('abc'), initcap('hello world')",
            "b|900150983cd24fb0d6963f7d28e17f72|Hello World",
        ),
    ] {
        h.check(query, rows);
    }
}

#[test]
fn expressions_that_fail() {
    let mut h = Harness::new();
    for (query, state) in [
        ("SELECT 1 / 0", "22012"),
        ("SELECT 1 / (a - a) FROM t1", "22012"),
        ("SELECT 1.0 / 0", "22012"),
        ("SELECT 9223372036854775807 + 1", "22003"),
        ("SELECT 2147483647 + 1", "22003"),
        ("SELECT (-9223372036854775807 - 1) / -1", "22003"),
        ("SELECT ABS(-9223372036854775807 - 1)", "22003"),
        ("SELECT CAST(1e30 AS INT)", "22003"),
        ("SELECT CAST('zz' AS INT)", "22P02"),
        ("SELECT 'a' + 1", "22P02"),
        ("SELECT c + 1 FROM t1", "42883"),
        ("SELECT a FROM t1 WHERE a = c", "42883"),
        ("SELECT a FROM t1 WHERE a = 'x'", "22P02"),
        ("SELECT a FROM t1 WHERE a", "42804"),
        ("SELECT NOT 5", "42804"),
        ("SELECT nope(1)", "42883"),
        ("SELECT UPPER()", "42883"),
        ("SELECT SUBSTRING('hello', 2, -1)", "22011"),
        ("SELECT 'x' ~ '('", "2201B"),
        ("SELECT a FROM t1 WHERE a > ANY ('{1,2}')", "0A000"),
    ] {
        h.fails(query, state);
    }
}

#[test]
fn dates_and_times() {
    let mut h = Harness::empty();
    h.run("CREATE TABLE e (id INT PRIMARY KEY, d DATE, ts TIMESTAMP, tz TIMESTAMPTZ)")
        .unwrap();
    h.run(
        "INSERT INTO e VALUES (1, '2024-02-29', '2024-02-29T12:34:56', '2024-02-29 12:00:00+02'), \
           (2, 'Jan 5, 2025', '2025-01-05', '2025-01-05 00:00:00')",
    )
    .unwrap();
    for (query, rows) in [
        (
            "SELECT d, ts, tz FROM e ORDER BY id",
            "2024-02-29|2024-02-29 12:34:56|2024-02-29 10:00:00+00;2025-01-05|2025-01-05 00:00:00|2025-01-05 00:00:00+00",
        ),
        ("SELECT id FROM e WHERE ts >= '2025-01-05'", "2"),
        (
            "SELECT id FROM e WHERE ts BETWEEN '2024-1-1' AND '2024-12-31'",
            "1",
        ),
        ("SELECT id FROM e WHERE d = DATE '2024-02-29'", "1"),
        ("SELECT id FROM e WHERE d < ts", "1"),
        ("SELECT id FROM e WHERE d = ts", "2"),
        (
            "SELECT EXTRACT(YEAR FROM d), date_part('dow', d), EXTRACT(doy FROM ts) FROM e ORDER BY id",
            "2024|4|60;2025|0|5",
        ),
        (
            "SELECT EXTRACT(EPOCH FROM TIMESTAMP '1970-01-02 00:00:01.5')",
            "86401.5",
        ),
        (
            "SELECT DATE '2024-02-28' + INTERVAL '1' DAY, DATE '2024-02-28' + 2",
            "2024-02-29 00:00:00|2024-03-01",
        ),
        (
            "SELECT ts + INTERVAL '1 month 2 hours', ts - INTERVAL '1 year' FROM e WHERE id = 1",
            "2024-03-29 14:34:56|2023-02-28 12:34:56",
        ),
        (
            "SELECT d - DATE '2024-02-01', ts - TIMESTAMP '2024-02-28' FROM e WHERE id = 1",
            "28|1 day 12:34:56",
        ),
        (
            "SELECT EXTRACT(EPOCH FROM ts - TIMESTAMP '2024-02-29 12:34:00') FROM e WHERE id = 1",
            "56",
        ),
        (
            "SELECT date_trunc('month', ts), date_trunc('hour', ts) FROM e WHERE id = 1",
            "2024-02-01 00:00:00|2024-02-29 12:00:00",
        ),
        (
            "SELECT INTERVAL '1 day' * 2 + INTERVAL '3 hours', INTERVAL '36 hours' > INTERVAL '1 day'",
            "2 days 03:00:00|t",
        ),
        (
            "SELECT now(), CURRENT_DATE, CURRENT_TIMESTAMP = now(), clock_timestamp() > now()",
            "2026-03-04 05:06:07.89+00|2026-03-04|t|t",
        ),
        (
            "SELECT id FROM e WHERE ts < now() - INTERVAL '1 year' ORDER BY id",
            "1;2",
        ),
        (
            "SELECT to_char(ts, 'YYYY-MM-DD HH24:MI:SS Dy DDth'), to_char(1234.5, 'FM9,999.00') FROM e WHERE id = 1",
            "2024-02-29 12:34:56 Thu 29th|1,234.50",
        ),
        (
            "SELECT age(TIMESTAMP '2025-01-05', ts) FROM e WHERE id = 1",
            "10 mons 4 days 11:25:04",
        ),
        (
            "SELECT '2024-02-29'::date, '2024-02-29 1:02:03'::timestamp::date, tz AT TIME ZONE 'UTC' FROM e WHERE id = 1",
            "2024-02-29|2024-02-29|2024-02-29 10:00:00",
        ),
        (
            "SELECT make_date(2024, 2, 29), to_timestamp(0)",
            "2024-02-29|1970-01-01 00:00:00+00",
        ),
    ] {
        h.check(query, rows);
    }
    h.fails("SELECT CAST('2024-13-45' AS DATE)", "22008");
    h.fails("SELECT id FROM e WHERE d = 'soon'", "22007");
    h.fails("SELECT id FROM e WHERE d = 5", "42883");
    h.fails("SELECT DATE 'today'", "0A000");
    h.fails("SELECT date('now')", "42883");
    let clock = h
        .connection
        .query_row("SELECT datetime('now')", [], |_| Ok(()));
    assert!(clock.is_err());
}

#[test]
fn views_and_names() {
    let mut h = Harness::new();
    h.run("CREATE VIEW v (x, y) AS SELECT a, b FROM t1 WHERE b = 20")
        .unwrap();
    h.run("CREATE VIEW w AS SELECT x + 1 AS z, y FROM v")
        .unwrap();
    h.check("SELECT * FROM w ORDER BY z", "3|20;5|20");
    assert_eq!(
        h.query("SELECT * FROM w").executable.relations,
        ["t1", "v", "w"]
    );
    h.check("SELECT A FROM T1 WHERE A = 1", "1");
    h.check("SELECT public.t1.a FROM public.t1 WHERE t1.a = 1", "1");
    h.run("CREATE TABLE \"Q q\" (\"A b\" INT PRIMARY KEY, \"say \"\"hi\"\"\" TEXT)")
        .unwrap();
    h.run("INSERT INTO \"Q q\" VALUES (1, 'o''k')").unwrap();
    h.check("SELECT \"A b\", \"say \"\"hi\"\"\" FROM \"Q q\"", "1|o'k");
    h.check("SELECT 1 AS x, 2 AS x, 3 AS \"X\"", "1|2|3");
    h.check(
        "SELECT q.a FROM (SELECT a, a + 1 AS b FROM t1) q WHERE q.b = 2",
        "1",
    );
    h.fails("SELECT x FROM (SELECT 1 AS x, 2 AS x) q", "42702");
    h.fails("SELECT a FROM t1 x, t1 y", "42702");
    h.fails("SELECT 1 FROM t1, t1", "42712");
    h.fails("SELECT \"A\" FROM t1", "42703");
    h.check(
        "SELECT \"T\".a, t.id FROM t1 \"T\" JOIN t2 t ON t.id = \"T\".a WHERE t.id = 3",
        "3|3",
    );
    let query = h.query("SELECT c.relname FROM pg_catalog.pg_class c, information_schema.tables");
    assert!(
        query
            .executable
            .sql
            .contains("\"pg_catalog.pg_class\" AS \"c\"")
    );
    assert!(
        query
            .executable
            .sql
            .contains("\"information_schema.tables\"")
    );
}

#[test]
fn rows_are_locked() {
    let h = Harness::new();
    assert_eq!(
        h.query("SELECT a FROM t1 WHERE a = 1 FOR UPDATE").locked,
        ["t1"]
    );
    assert_eq!(
        h.query("SELECT 1 FROM t1 x JOIN t2 ON true FOR SHARE OF t2")
            .locked,
        ["t2"]
    );
    assert!(h.query("SELECT a FROM t1").locked.is_empty());
    assert_eq!(
        h.command("SELECT a FROM t1 FOR UPDATE SKIP LOCKED")
            .unwrap_err()
            .state()
            .0,
        "0A000"
    );
    assert_eq!(
        h.command("SELECT count(*) FROM t1 FOR UPDATE")
            .unwrap_err()
            .state()
            .0,
        "0A000"
    );
}
