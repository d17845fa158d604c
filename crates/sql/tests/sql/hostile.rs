//! Statements that must not take the process down, and those that must not reach SQLite.

use crate::harness::Sql;
use basalt::env::{Clock, EnvBuilder, ManualClock};
use basalt_sim::campaign;
use basalt_sim::campaign::scale;
use basalt_sim::rng::Rng;
use basalt_sim::{SimFs, SimOptions};
use basalt_sql::{TransactionStatus, Value};
use std::time::Duration;

const ENDLESS: &str = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) \
                       SELECT count(*) FROM r";

/// Runs a script whose outcome does not matter. Returns the SQLSTATE of its error.
fn outcome(sql: &mut Sql, script: &str) -> Option<&'static str> {
    sql.try_run(script).err().map(|e| e.state().0)
}

#[test]
fn deep_nesting_is_refused_or_answered() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY, b BOOLEAN)");
    for depth in [10, 50, 100, 1_000, 30_000] {
        let shapes = [
            format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth)),
            format!("SELECT {}1", "- ".repeat(depth)),
            format!("SELECT {}TRUE", "NOT ".repeat(depth)),
            format!("SELECT 1{}", " + 1".repeat(depth)),
            format!("SELECT 'a'{}", " || 'a'".repeat(depth)),
            format!("SELECT * FROM t WHERE a = 1{}", " OR a = 2".repeat(depth)),
            format!("SELECT * FROM t WHERE a = 1{}", " AND b".repeat(depth)),
            format!("SELECT {}1{}", "(SELECT ".repeat(depth), ")".repeat(depth)),
            format!("SELECT 1{}", " UNION SELECT 1".repeat(depth)),
            format!("SELECT {}1{}", "abs(".repeat(depth), ")".repeat(depth)),
            format!(
                "SELECT {}1{}",
                "CASE WHEN TRUE THEN ".repeat(depth),
                " END".repeat(depth)
            ),
            format!("SELECT 1{}", "::int".repeat(depth)),
            format!("SELECT * FROM t{}", " JOIN t USING (a)".repeat(depth)),
            format!(
                "SELECT * FROM {}t{}",
                "(SELECT * FROM ".repeat(depth),
                ") x".repeat(depth)
            ),
            format!("EXPLAIN {}SELECT 1", "EXPLAIN ".repeat(depth)),
            format!(
                "WITH {}z AS (SELECT 1) SELECT 1",
                "a AS (SELECT 1), ".repeat(depth)
            ),
            "(".repeat(depth),
            "[".repeat(depth),
            format!("SELECT ARRAY{}", "[".repeat(depth)),
            format!(
                "CREATE TABLE x (a INT CHECK ({}TRUE{}))",
                "(".repeat(depth),
                ")".repeat(depth)
            ),
        ];
        for shape in shapes {
            let state = outcome(&mut sql, &shape);
            let known = state.is_none_or(|state| state != "XX000" && !state.starts_with("58"));
            assert!(known, "{depth} levels of {:.60}: {state:?}", shape);
            sql.try_run("DROP TABLE IF EXISTS x")
                .expect("it may be there");
        }
    }
    assert_eq!(sql.run("SELECT 1"), ["1"]);
}

#[test]
fn long_lists_texts_and_rows() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)");
    let list = |n: u64| {
        (0..n)
            .map(|n| n.to_string())
            .collect::<Vec<String>>()
            .join(", ")
    };
    let rows: Vec<String> = (0..3_000).map(|n| format!("({n}, 'x')")).collect();
    assert_eq!(
        sql.tag(&format!("INSERT INTO t VALUES {}", rows.join(", "))),
        "INSERT 0 3000"
    );
    let many = format!("SELECT count(*) FROM t WHERE a IN ({})", list(20_000));
    assert_eq!(sql.run(&many), ["3000"]);
    let not = format!("SELECT count(*) FROM t WHERE a NOT IN ({})", list(2_000));
    assert_eq!(sql.run(&not), ["1000"]);
    let long = "y".repeat(4 << 20);
    sql.run(&format!("UPDATE t SET b = '{long}' WHERE a = 7"));
    assert_eq!(
        sql.run("SELECT length(b) FROM t WHERE a = 7"),
        [(4 << 20).to_string()]
    );
    for columns in [100, 1_000, 5_000, 40_000] {
        let names = (0..columns).map(|n| format!("c{n} INT"));
        let create = format!(
            "CREATE TABLE w ({})",
            names.collect::<Vec<String>>().join(", ")
        );
        match outcome(&mut sql, &create) {
            None => {
                let values = format!("INSERT INTO w VALUES ({})", list(columns));
                assert_eq!(outcome(&mut sql, &values), None, "{columns} columns");
                let last = columns - 1;
                assert_eq!(
                    sql.run(&format!("SELECT c{last} FROM w")),
                    [last.to_string()]
                );
                sql.run("DROP TABLE w");
            }
            Some(state) => assert_eq!(state, "54011", "{columns} columns"),
        }
        let state = outcome(&mut sql, &format!("SELECT {}", list(columns)));
        assert!(
            state.is_none_or(|state| state.starts_with("54")),
            "{columns} results: {state:?}"
        );
    }
    for parameters in [1, 1_000, 30_000, 70_000] {
        let names = (1..=parameters).map(|n| format!("${n}::int"));
        let query = format!(
            "SELECT 1 WHERE 1 IN ({})",
            names.collect::<Vec<String>>().join(", ")
        );
        let values = vec![Value::Integer(1); parameters];
        let done = sql.try_run_with(&query, &values);
        let state = done.err().map(|e| e.state().0);
        assert!(
            state.is_none_or(|s| s.starts_with("54") || s == "42P02"),
            "{parameters}: {state:?}"
        );
    }
    assert_eq!(outcome(&mut sql, "SELECT $0"), Some("42P02"));
    assert!(outcome(&mut sql, "SELECT $99999999999").is_some());
    assert!(outcome(&mut sql, "SELECT repeat('x', 2000000000)").is_some());
    assert!(outcome(&mut sql, "SELECT lpad('x', 2000000000)").is_some());
    let name = "n".repeat(100_000);
    assert!(outcome(&mut sql, &format!("SELECT {name}")).is_some());
    assert!(
        outcome(&mut sql, &format!("CREATE TABLE {name} (a INT)")).is_none_or(|s| s == "42622")
    );
    sql.check();
}

#[test]
fn an_interrupt_ends_statements_without_an_end() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t SELECT generate_series FROM generate_series(1, 300)");
    let endless = [
        ENDLESS.to_owned(),
        "SELECT count(*) FROM t a, t b, t c, t d WHERE a.a + b.a + c.a + d.a < 0".to_owned(),
        "INSERT INTO t SELECT a.a FROM t a, t b, t c, t d WHERE a.a + b.a + c.a + d.a < 0"
            .to_owned(),
    ];
    for (at, statement) in endless.iter().enumerate() {
        let handle = sql.session.interrupt_handle();
        let database = sql.database.clone();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let state = basalt::env::thread::scope(|scope| {
            scope.spawn(|| {
                // The statement may not run yet, so the interrupt is sent until it has ended.
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    handle.interrupt();
                    std::thread::yield_now();
                }
                drop(database);
            });
            let state = outcome(&mut sql, statement);
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            state
        });
        assert_eq!(state, Some("57014"), "statement {at}");
        let _ = outcome(&mut sql, "SELECT 1");
        assert_eq!(sql.run("SELECT count(*) FROM t"), ["300"]);
    }
    sql.check();
}

#[test]
fn sqlites_own_statements_are_refused() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1)");
    for refused in [
        "ATTACH 'x' AS y",
        "ATTACH DATABASE 'x' AS y",
        "DETACH main",
        "PRAGMA table_info(t)",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_table_info('t')",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM main.sqlite_master",
        "SELECT * FROM main.t",
        "SELECT * FROM temp.t",
        "INSERT INTO sqlite_schema VALUES (1)",
        "DELETE FROM sqlite_master",
        "UPDATE sqlite_master SET sql = ''",
        "CREATE VIRTUAL TABLE v USING basalt",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END",
        "SELECT \"basalt key\" FROM t",
        "SELECT t.\"basalt key\" FROM t",
        "INSERT INTO t (a, \"basalt key\") VALUES (2, '\\x00')",
        "UPDATE t SET \"basalt key\" = '\\x00'",
        "SELECT * FROM t WHERE \"basalt key\" IS NOT NULL",
        "CREATE TABLE u (\"basalt key\" INT)",
        "ALTER TABLE t ADD COLUMN \"basalt key\" INT",
        "ALTER TABLE t RENAME COLUMN a TO \"basalt key\"",
        "SELECT rowid FROM t",
        "SELECT _rowid_ FROM t",
        "SELECT oid FROM t",
        "SELECT sqlite_version()",
        "SELECT randomblob(10)",
        "SELECT zeroblob(1000000000)",
        "SELECT writefile('x', 'y')",
        "SELECT readfile('/etc/passwd')",
        "SELECT basalt_nextval(1)",
        "SELECT fts3_tokenizer('x')",
        "VACUUM INTO 'x'",
        "SELECT * FROM json_each('[1]')",
        "SELECT a FROM t INDEXED BY x",
        "REPLACE INTO t VALUES (1)",
        "INSERT OR REPLACE INTO t VALUES (1)",
        "SELECT a GLOB '*' FROM t",
        "SELECT 'a' MATCH 'a'",
        "SELECT `a` FROM t",
        "SELECT [a] FROM t",
        "SELECT ?1",
        "SELECT :name",
        "SELECT @name",
    ] {
        let state = outcome(&mut sql, refused);
        let state = state.unwrap_or_else(|| panic!("{refused} succeeds"));
        assert!(state != "XX000" && state != "42501", "{refused}: {state}");
    }
    assert_eq!(sql.run("SELECT * FROM t"), ["1"]);
    sql.check();
}

#[test]
fn mutated_statements_do_not_panic() {
    const STATEMENTS: [&str; 26] = [
        "SELECT a, b, count(*) FROM t WHERE a > 1.5 AND b LIKE 'x%' GROUP BY a, b HAVING sum(a) > 2",
        "SELECT * FROM t x LEFT JOIN u y ON x.a = y.a AND y.d = '2024-01-02' ORDER BY 1 DESC LIMIT 3",
        "INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL) ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *",
        "UPDATE t SET b = upper(b) || 'x', a = a + 10 WHERE a IN (SELECT a FROM u) RETURNING a, b",
        "DELETE FROM t USING u WHERE t.a = u.a AND u.n BETWEEN 1 AND 2.5",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r, t",
        "SELECT row_number() OVER (PARTITION BY a ORDER BY b DESC NULLS LAST) FROM t",
        "SELECT extract(year FROM d), d + INTERVAL '1 day', date_trunc('month', d) FROM u",
        "SELECT CASE WHEN a = 1 THEN 'x' ELSE b END, coalesce(b, 'y'), a::text FROM t",
        "CREATE TABLE v (id SERIAL PRIMARY KEY, x NUMERIC(8,2) DEFAULT 1.5 CHECK (x > 0), y INT REFERENCES t)",
        "ALTER TABLE t ADD COLUMN z INT DEFAULT 5, ALTER COLUMN b SET NOT NULL",
        "CREATE UNIQUE INDEX i ON t (b, a)",
        "CREATE VIEW w AS SELECT a, b FROM t WHERE a > 0",
        "SELECT a FROM t UNION SELECT n FROM u EXCEPT SELECT 3 ORDER BY 1",
        "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AND (a, b) > (1, 'a')",
        "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (50, 'q'); ROLLBACK TO s; COMMIT",
        "PREPARE p (int) AS SELECT * FROM t WHERE a = $1; EXECUTE p (1); DEALLOCATE p",
        "SET statement_timeout = '5s'; SHOW statement_timeout; RESET ALL",
        "EXPLAIN ANALYZE SELECT * FROM t JOIN u USING (a)",
        "TRUNCATE TABLE t, u RESTART IDENTITY CASCADE",
        "DROP TABLE IF EXISTS v, w CASCADE",
        "SELECT string_agg(b, ',' ORDER BY a) FILTER (WHERE a > 1), count(DISTINCT b) FROM t",
        "SELECT to_char(d, 'YYYY-MM-DD'), substring(b FROM 1 FOR 2), trim(both 'x' from b) FROM t, u",
        "CREATE SEQUENCE q START 5 INCREMENT BY 2; SELECT nextval('q'), currval('q'), setval('q', 9)",
        "SELECT '\\xff'::bytea, E'a\\n', U&'\\0061', $$x$$, '{\"a\": 1}'::jsonb ->> 'a', 1e400, .5",
        "COPY t (a, b) TO STDOUT WITH (FORMAT csv, HEADER, DELIMITER ';', NULL 'n')",
    ];
    const SETUP: &str = "DROP TABLE IF EXISTS t CASCADE; DROP TABLE IF EXISTS u CASCADE;
         CREATE TABLE t (a INT PRIMARY KEY, b TEXT);
         CREATE TABLE u (a INT, n NUMERIC, d DATE);
         INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL);
         INSERT INTO u VALUES (1, 1.5, '2024-01-02'), (2, 2, NULL)";
    let mut words: Vec<&str> = STATEMENTS.iter().flat_map(|s| s.split(' ')).collect();
    words.extend([
        "NULL",
        "-1",
        "9223372036854775807",
        "''",
        "(",
        ")",
        ",",
        ";",
        "*",
        "$1",
        "::",
        "1e999",
        "\"",
        "'",
        "--",
        "/*",
        "\u{0}",
        "\u{1f600}",
        "'NaN'",
        "-9223372036854775808",
        "%",
        "//",
    ]);
    let mut rng = Rng::new(77);
    let mut sql = with_ticking_clock();
    let (mut succeeded, mut failed) = (0, 0);
    let rounds = 12_000 * scale();
    for round in 0..rounds {
        if sql.session.status() != TransactionStatus::Idle {
            sql.run("ROLLBACK");
        }
        if round % 50 == 0 {
            sql.run(SETUP);
        }
        let mut parts: Vec<String> = rng
            .pick(&STATEMENTS)
            .split(' ')
            .map(str::to_owned)
            .collect();
        for _ in 0..rng.pick(&[1, 1, 1, 2, 4]) {
            let at = rng.below(parts.len() as u64) as usize;
            match rng.below(8) {
                5.. => {
                    // A word of the same kind leaves many statements well formed.
                    let is_alike = |word: &&&str| kind_of(word) == kind_of(&parts[at]);
                    let alike: Vec<&&str> = words.iter().filter(is_alike).collect();
                    if !alike.is_empty() {
                        parts[at] = rng.pick(&alike).to_string();
                    }
                }
                0 => {
                    parts.remove(at);
                }
                1 => parts.insert(at, rng.pick(&words).to_owned()),
                2 => parts[at] = rng.pick(&words).to_owned(),
                3 => {
                    let other = rng.below(parts.len() as u64) as usize;
                    parts.swap(at, other);
                }
                _ => {
                    let mut chars: Vec<char> = parts[at].chars().collect();
                    if !chars.is_empty() {
                        let c = rng.below(chars.len() as u64) as usize;
                        chars[c] = char::from(rng.below(128) as u8);
                    }
                    parts[at] = chars.into_iter().collect();
                }
            }
            if parts.is_empty() {
                parts.push("SELECT".to_owned());
            }
        }
        let statement = parts.join(" ");
        // A mutated statement may run without an end.
        let set = sql.session.set_variable("statement_timeout", "100ms");
        set.expect("the variable exists");
        match run_bounded(&mut sql, &statement) {
            Ok(()) => succeeded += 1,
            Err(e) => {
                failed += 1;
                assert!(e.state().0 != "XX000", "{statement}\nfails: {e}");
            }
        }
    }
    campaign!("mutated statements: succeeded={succeeded} failed={failed}");
    assert!(succeeded >= scale().floor(400) && failed >= scale().floor(1_000));
    let _ = sql.try_run("ROLLBACK");
    sql.check();
}

/// Returns what kind of word the first and the last letter of a word make it.
fn kind_of(word: &str) -> (u8, u8) {
    let kind = |letter: Option<char>| match letter {
        Some(c) if c.is_ascii_digit() || c == '-' => 0,
        Some(c) if c.is_ascii_uppercase() => 1,
        Some(c) if c.is_ascii_lowercase() => 2,
        Some(c) => c as u8,
        None => 3,
    };
    (kind(word.chars().next()), kind(word.chars().next_back()))
}

/// Runs a script. A statement that returns very many rows, or runs for long, is ended.
fn run_bounded(sql: &mut Sql, script: &str) -> Result<(), basalt_sql::SqlError> {
    for statement in sql.session.parse(script)? {
        let prepared = sql.session.prepare(&statement, &[])?;
        let values = vec![Value::Null; prepared.parameters().len()];
        let mut rows = 0;
        let mut sink = |_: &basalt_sql::Row<'_>| {
            rows += 1;
            match rows < 2_000 {
                true => Ok(()),
                false => Err(basalt_sql::SqlError::new(
                    basalt_sql::SqlState::QUERY_CANCELED,
                    "enough rows",
                )),
            }
        };
        if let basalt_sql::Outcome::CopyIn(copy) =
            sql.session.execute(&prepared, &values, &mut sink)?
        {
            return Err(sql.session.copy_fail(copy, "the test ends it"));
        }
    }
    Ok(())
}

/// Returns a session of a database whose clock moves by a millisecond with each look at it.
fn with_ticking_clock() -> Sql {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_millis(1));
    let fs = SimFs::new(SimOptions::default());
    let env = EnvBuilder::for_tests(fs, 1).clock(Clock::manual(clock));
    Sql::of(&crate::harness::open(&env.build()))
}

#[test]
fn a_timeout_ends_statements() {
    let mut sql = with_ticking_clock();
    sql.run("CREATE TABLE t (a INT PRIMARY KEY, b INT)");
    sql.run("INSERT INTO t SELECT n, n FROM generate_series(1, 3000) AS g(n)");
    let scan = "SELECT count(*) FROM t x, t y WHERE x.a + y.a < 0";
    sql.run("SET statement_timeout = '50ms'");
    for statement in [ENDLESS, scan] {
        let e = sql.fail(statement);
        assert_eq!(e.state().0, "57014");
        assert_eq!(e.message(), "canceling statement due to statement timeout");
    }
    sql.run("BEGIN");
    assert_eq!(outcome(&mut sql, ENDLESS), Some("57014"));
    assert_eq!(outcome(&mut sql, "SELECT 1"), Some("25P02"));
    sql.run("ROLLBACK; SET statement_timeout = 0");
    assert_eq!(sql.run("SELECT count(*) FROM t WHERE b > 10"), ["2990"]);
    sql.run("BEGIN; SET LOCAL statement_timeout = '20ms'");
    assert_eq!(outcome(&mut sql, ENDLESS), Some("57014"));
    sql.run("ROLLBACK");
    assert_eq!(sql.run("SHOW statement_timeout"), ["0"]);
    assert_eq!(
        outcome(&mut sql, "SET statement_timeout = 'soon'"),
        Some("22023")
    );
    assert_eq!(
        sql.run("SELECT count(*) FROM t x JOIN t y ON x.b = y.b"),
        ["3000"]
    );
}
