//! Errors of scripts: messages and positions.

use super::super::*;
use super::harness::Harness;

#[test]
fn scripts_are_split() {
    let script = "SELECT 1; -- one;\n  SELECT 'a;b', \"x;y\" ,$$;$$ ;;\nINSERT INTO t VALUES (E'\\';') /* ; */";
    let parsed = parse(script).unwrap();
    let texts: Vec<&str> = parsed.iter().map(ParsedStatement::text).collect();
    assert_eq!(
        texts,
        [
            "SELECT 1",
            "SELECT 'a;b', \"x;y\" ,$$;$$",
            "INSERT INTO t VALUES (E'\\';')"
        ]
    );
    assert_eq!(parse(" -- nothing").unwrap()[0].text(), "");
    assert_eq!(
        parse("SELECT '日本' ; SELECT 2").unwrap()[1].text(),
        "SELECT 2"
    );
}

#[test]
fn errors_have_positions() {
    let h = Harness::new();
    for (text, state, message, position) in [
        (
            "SELECT nope FROM t1",
            "42703",
            "column \"nope\" does not exist",
            Some(8),
        ),
        (
            "SELECT 'é', nope FROM t1",
            "42703",
            "column \"nope\" does not exist",
            Some(13),
        ),
        (
            "SELECT *\nFROM nope",
            "42P01",
            "relation \"nope\" does not exist",
            Some(15),
        ),
        (
            "SELECT t1.nope FROM t1",
            "42703",
            "column t1.nope does not exist",
            Some(8),
        ),
        (
            "SELECT t2.a FROM t1",
            "42P01",
            "missing FROM-clause entry for table \"t2\"",
            Some(8),
        ),
        (
            "SELECT a AS z FROM t1 WHERE z = 1",
            "42703",
            "column \"z\" does not exist",
            Some(29),
        ),
        (
            "SELECT frob(a, 'x') FROM t1",
            "42883",
            "function frob(integer, unknown) does not exist",
            Some(8),
        ),
        ("SELECT a FROM WHERE", "42601", "", None),
        (
            "SELECT a FROM t1 WHERE",
            "42601",
            "syntax error at end of input",
            None,
        ),
        (
            "SELECT a FROM t1 WHERE a = 1 2",
            "42601",
            "syntax error at or near \"2\"",
            Some(30),
        ),
        ("SELECT 'abc", "42601", "", None),
        (
            "INSERT INTO t1 (x) VALUES (1)",
            "42703",
            "column \"x\" of relation \"t1\" does not exist",
            Some(17),
        ),
        (
            "SELECT b FROM t1 WHERE b = TRUE",
            "42883",
            "operator does not exist: integer = boolean",
            None,
        ),
        (
            "SELECT a, b FROM t1 GROUP BY b",
            "42803",
            "column \"t1.a\" must appear in the GROUP BY clause or be used in an aggregate function",
            Some(8),
        ),
    ] {
        let e = h.command(text).expect_err(text);
        assert_eq!(e.state().0, state, "{text}: {e}");
        assert!(message.is_empty() || e.message() == message, "{text}: {e}");
        assert!(
            position.is_none() || e.position() == position,
            "{text}: {:?}",
            e.position()
        );
    }
    let e = parse("SELECT 1;\nSELEC 2").unwrap_err();
    assert_eq!((e.state().0, e.position()), ("42601", Some(11)), "{e}");
}

#[test]
fn clauses_that_are_not_known_are_refused() {
    let h = Harness::new();
    for text in [
        "SELECT a FROM t1 TABLESAMPLE SYSTEM (10)",
        "SELECT a INTO x FROM t1",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t1",
        "SELECT first_value(a) IGNORE NULLS OVER (ORDER BY a) FROM t1",
        "SELECT a FROM t1 ORDER BY a FETCH FIRST 2 ROWS WITH TIES",
        "SELECT a FROM t1 INTERSECT ALL SELECT a FROM t2",
        "SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM t1",
        "SELECT a FROM t1 WHERE c SIMILAR TO 'x'",
        "SELECT a FROM t1 WHERE c COLLATE \"de_DE\" = 'x'",
        "SELECT json_agg(a) FROM t1",
        "WITH x AS (INSERT INTO t1 VALUES (5) RETURNING a) SELECT * FROM x",
        "MERGE INTO t1 USING t2 ON t1.a = t2.a WHEN MATCHED THEN DELETE",
        "DECLARE c CURSOR FOR SELECT 1",
        "INSERT INTO t1 VALUES (1) ON CONFLICT (a) WHERE a > 1 DO NOTHING",
        "SELECT * FROM unnest('{1}')",
        "SELECT count(*) FROM t1 GROUP BY GROUPING SETS ((a), (b))",
    ] {
        let e = h.command(text).expect_err(text);
        assert!(matches!(e.state().0, "0A000" | "42601"), "{text}: {e}");
    }
}
