//! Hostile statements end in errors.

use super::super::*;
use super::harness::{Harness, SETUP};

#[test]
fn nesting_is_limited() {
    let h = Harness::new();
    let nested = |open: &str, inner: &str, close: &str, n: usize| {
        format!("SELECT {}{inner}{}", open.repeat(n), close.repeat(n))
    };
    for text in [
        nested("(", "1", ")", 3000),
        nested("NOT ", "TRUE", "", 3000),
        nested("- ", "1", "", 3000),
        nested("(SELECT ", "1", ")", 3000),
        nested("CASE WHEN TRUE THEN ", "1", " END", 3000),
        nested("abs(", "1", ")", 3000),
        format!("SELECT 1{}", "::int".repeat(3000)),
        format!("SELECT 1{}", " + 1".repeat(4000)),
        format!("SELECT 1{}", " + 1".repeat(200_000)),
        format!("SELECT TRUE{}", " IS NULL".repeat(3000)),
        format!("SELECT 1{}", " UNION SELECT 1".repeat(4000)),
        format!("SELECT 1 FROM {}t1{}", "(".repeat(3000), ")".repeat(3000)),
    ] {
        let e = h.command(&text).expect_err(&text[..40]);
        assert!(
            matches!(e.state().0, "54001" | "42601" | "42883" | "0A000"),
            "{e}"
        );
    }
    let e = h.command(&nested("(", "1", ")", 3000)).unwrap_err();
    assert_eq!(e.state().0, "54001");
}

#[test]
fn wide_statements_run() {
    let mut h = Harness::new();
    let ands = format!(
        "SELECT count(*) FROM t1 WHERE a = 1{}",
        " AND a = 1".repeat(3000)
    );
    h.check(&ands, "1");
    let list: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
    h.check(
        &format!("SELECT count(*) FROM t1 WHERE a IN ({})", list.join(", ")),
        "4",
    );
    h.check(&nested_parentheses(25), "1");
    h.check(&format!("SELECT 1{}", " + 1".repeat(500)), "501");
    let rows: Vec<String> = (10..3000).map(|n| format!("({n}, 1, 'x')")).collect();
    h.run(&format!("INSERT INTO t1 VALUES {}", rows.join(", ")))
        .unwrap();
}

#[test]
fn scripts_of_one_line_are_split_in_linear_time() {
    let script = "SELECT 'é'; ".repeat(50_000);
    let parsed = parse(&script).unwrap();
    assert_eq!(parsed.len(), 50_000);
    assert_eq!(parsed[49_999].text(), "SELECT 'é'");
}

fn nested_parentheses(n: usize) -> String {
    format!("SELECT {}1{}", "(".repeat(n), ")".repeat(n))
}

/// A small generator of random numbers.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

const SEEDS: &[&str] = &[
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n < 5) SELECT SUM(n) FROM r",
    "SELECT a, SUM(a) OVER (PARTITION BY b ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t1",
    "INSERT INTO t1 AS x VALUES ($1, 99, 'q') ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING *",
    "UPDATE t1 SET b = t2.v FROM t2 WHERE t2.a = t1.a AND t2.id = 3 RETURNING a",
    "DELETE FROM t2 USING t1 WHERE t1.a = t2.a AND t1.c LIKE 'x%'",
    "CREATE TABLE k (a BIGSERIAL, b INT NOT NULL DEFAULT 1 CHECK (b > 0), c NUMERIC(6,2), PRIMARY KEY (b, a))",
    "ALTER TABLE t1 ADD COLUMN d INT NOT NULL DEFAULT 5, DROP COLUMN c, ALTER b TYPE BIGINT",
    "SELECT CASE WHEN b = 20 THEN 'tw' ELSE c END, EXTRACT(YEAR FROM DATE '2024-02-29' + INTERVAL '1 day') FROM t1",
    "SELECT * FROM t1 JOIN t2 USING (a) LEFT JOIN (SELECT a AS z FROM t1) q ON q.z = t2.id ORDER BY 1 DESC NULLS LAST LIMIT 3",
    "COPY t1 (a, b) FROM STDIN WITH (FORMAT csv, HEADER, DELIMITER ';')",
    "SELECT substring('hello' FROM 2 FOR 3), '5'::numeric(10,2), x'0f', E'\\n', b IS DISTINCT FROM 3 FROM t1 FOR UPDATE",
    "SELECT c ~ '^a', count(*) FILTER (WHERE a > 1) FROM t1 GROUP BY c HAVING count(*) > 1",
];

#[test]
fn truncated_and_mutated_statements_do_not_panic() {
    let h = Harness::new();
    let try_it = |text: &str| {
        if let Ok(statements) = parse(text) {
            for statement in statements {
                if let Ok(Command::Query(query)) = analyze(&statement, &h.catalog, &[]) {
                    // What is emitted must be well-formed for the executor.
                    if let Err(e) = h.connection.prepare(&query.executable.sql) {
                        let display = e.to_string();
                        let malformed =
                            display.contains("syntax error") || display.contains("no such");
                        assert!(!malformed, "{text}: {display}");
                    }
                }
            }
        }
    };
    let all: Vec<&str> = SEEDS.iter().chain(SETUP).copied().collect();
    for text in &all {
        for (at, _) in text.char_indices() {
            try_it(&text[..at]);
            try_it(&text[at..]);
        }
    }
    let mut rng = Rng(0x5eed);
    let words: Vec<&str> = all
        .iter()
        .flat_map(|t| t.split_inclusive([' ', '(', ')', ',']))
        .collect();
    for _ in 0..6000 {
        let mut tokens: Vec<&str> = all[rng.below(all.len())]
            .split_inclusive([' ', '(', ')', ','])
            .collect();
        for _ in 0..=rng.below(4) {
            let at = rng.below(tokens.len());
            match rng.below(4) {
                0 => {
                    tokens.remove(at);
                }
                1 => tokens.insert(at, words[rng.below(words.len())]),
                2 => tokens[at] = words[rng.below(words.len())],
                _ => {
                    let other = rng.below(tokens.len());
                    tokens.swap(at, other);
                }
            }
            if tokens.is_empty() {
                break;
            }
        }
        try_it(&tokens.concat());
    }
}
