//! `basalt sql` with a database: statements and results, errors, COPY, loads and dumps.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Ran, Scratch};

const NONE: [&str; 0] = [];

/// Runs statements.
fn sql(s: &Scratch, args: &[&str]) -> Ran {
    s.run("sql", args)
}

/// Runs statements of standard input.
fn script(s: &Scratch, args: &[&str], text: &str) -> Ran {
    s.run_with("sql", args, text.as_bytes())
}

/// Runs a subcommand, which has `--dir` behind its name.
fn sub(s: &Scratch, args: &[&str]) -> Ran {
    let all = [&["sql"], args, &["--dir", "db"]].concat();
    s.run_plain(all)
}

fn text(ran: Ran) -> String {
    assert_eq!(ran.err, "");
    String::from_utf8(ran.ok()).expect("results are text")
}

/// Returns the only value of a query.
fn one(s: &Scratch, query: &str) -> String {
    let rows = text(sql(s, &["--csv", "-c", query]));
    rows.lines().nth(1).expect("one row").to_string()
}

const PEOPLE: &str = "CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, born date, \
                      score numeric(6,2), ok boolean DEFAULT true)";

fn people(name: &str) -> Scratch {
    let s = Scratch::new(name);
    let insert = "INSERT INTO people VALUES (1, 'Ada', '1815-12-10', 1.5, true), \
                  (20, 'Grace', NULL, 100, false)";
    assert_eq!(
        text(sql(&s, &["-c", PEOPLE, "-c", insert])),
        "CREATE TABLE\nINSERT 0 2\n"
    );
    s
}

#[test]
fn results_are_tables_csv_or_json() {
    let s = people("sql-results");
    let all = "SELECT * FROM people ORDER BY id";
    assert_eq!(
        text(sql(&s, &["-c", all])),
        " id | name  |    born    | score  | ok \n\
         ----+-------+------------+--------+----\n  \
         1 | Ada   | 1815-12-10 |   1.50 | t\n \
         20 | Grace |            | 100.00 | f\n(2 rows)\n\n"
    );
    assert_eq!(
        text(sql(&s, &["--csv", "-c", all])),
        "id,name,born,score,ok\n1,Ada,1815-12-10,1.50,t\n20,Grace,,100.00,f\n"
    );
    let lines = text(sql(&s, &["--json", "-c", all]));
    let rows: Vec<serde_json::Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!((&rows[0]["id"], &rows[1]["ok"]), (&1.into(), &false.into()));
    assert!(
        rows[1]["born"].is_null() && lines.starts_with("{\"id\":1,\"name\":"),
        "{lines}"
    );
    let document = harness::json(sql(&s, &["--json-document", "-c", all, "-c", "BEGIN"]));
    assert_eq!(document[0]["tag"], "SELECT 2");
    assert_eq!(document[0]["columns"][3]["type"], "numeric(6,2)");
    assert_eq!(document[0]["rows"][1]["name"], "Grace");
    assert_eq!(document[1]["tag"], "BEGIN");
}

#[test]
fn a_script_sets_the_form_of_results() {
    let s = people("sql-meta");
    let out = text(script(
        &s,
        &[],
        "\\pset null '<none>'\n\\x\nSELECT id, born FROM people WHERE id = 20;\n\\x off\n\
         SELECT born\nFROM people WHERE id = 20;\n\\echo done  'a  b'\n\\q\nSELECT 1;\n",
    ));
    assert_eq!(
        out,
        "-[ RECORD 1 ]\nid   | 20\nborn | <none>\n\n  born  \n--------\n <none>\n(1 row)\n\n\
         done a  b\n"
    );
    let timed = script(&s, &[], "\\timing\nSELECT 1;\n");
    assert!(
        timed.err.starts_with("Time: ") && timed.err.ends_with(" ms\n"),
        "{}",
        timed.err
    );
    for (command, part) in [("\\?", "\\timing"), ("\\h insert", "INSERT INTO table")] {
        assert!(text(script(&s, &[], command)).contains(part));
    }
}

#[test]
fn definitions_are_described() {
    let s = people("sql-describe");
    let schema = "CREATE TABLE pets (id serial PRIMARY KEY, owner int REFERENCES people(id) \
                  ON DELETE CASCADE, CHECK (owner > 0)); CREATE INDEX pets_owner ON pets (owner); \
                  CREATE VIEW adults AS SELECT name FROM people;";
    script(&s, &["-q"], schema).ok();
    let pets = text(script(&s, &[], "\\d pets\n"));
    for part in [
        "Table \"public.pets\"",
        "| integer |",
        "not null",
        "\"pets_pkey\" PRIMARY KEY, btree (id)",
        "\"pets_owner\" btree (owner)",
        "FOREIGN KEY (owner) REFERENCES people(id) ON DELETE CASCADE",
        "CHECK (",
    ] {
        assert!(pets.contains(part), "{part}: {pets}");
    }
    assert!(text(script(&s, &[], "\\d people\n")).contains("Referenced by:"));
    let list = text(script(&s, &[], "\\d\n"));
    for part in ["| adults", "| people", "| pets ", "| view", "| sequence"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    assert!(text(script(&s, &[], "\\dt\n")).contains("(2 rows)"));
    // The foreign key came first, and made an index of its own.
    assert!(text(script(&s, &[], "\\di pets*\n")).contains("(3 rows)"));
    assert!(text(script(&s, &[], "\\dv\n")).contains("(1 row)"));
    let ran = script(&s, &[], "\\d none\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn errors_have_code_position_and_detail_and_stop_a_script() {
    let s = people("sql-errors");
    s.file(
        "bad.sql",
        "SELECT 1;\n\nSELECT id,\n  nam FROM people;\nSELECT 2;\n",
    );
    let ran = sql(&s, &["--csv", "-f", "bad.sql"]);
    assert_eq!(
        (ran.code, ran.text().lines().count()),
        (Some(1), 2),
        "{ran:?}"
    );
    assert!(
        ran.err.starts_with("bad.sql:3: ERROR:  42703: "),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("\nLINE 2:   nam FROM people\n          ^\n"),
        "{}",
        ran.err
    );
    let ran = sql(&s, &["--csv", "--keep-going", "-f", "bad.sql"]);
    assert_eq!(
        (ran.code, ran.text().lines().count()),
        (Some(1), 4),
        "{ran:?}"
    );
    let ran = sql(&s, &["-c", "INSERT INTO people VALUES (1, 'Eve')"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.starts_with("ERROR:  23505: ") && ran.err.contains("\nDETAIL:  "),
        "{ran:?}"
    );
    let ran = sql(&s, &["--json-document", "-c", "SELECT nothing"]);
    let document: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(document[0]["error"]["sqlstate"], "42703");
    let ran = script(&s, &[], "\\foo\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("invalid command \\foo"), "{}", ran.err);
}

#[test]
fn a_transaction_that_is_not_committed_is_rolled_back() {
    let s = people("sql-transaction");
    let change = "BEGIN; DELETE FROM people;";
    assert_eq!(text(script(&s, &[], change)), "BEGIN\nDELETE 2\n");
    assert_eq!(one(&s, "SELECT count(*) FROM people"), "2");
    let change = "BEGIN; DELETE FROM people WHERE id = 1; COMMIT;";
    assert_eq!(text(script(&s, &["-q"], change)), "");
    assert_eq!(one(&s, "SELECT count(*) FROM people"), "1");
}

#[test]
fn copy_goes_through_scripts_and_files() {
    let s = people("sql-copy");
    let out = text(script(
        &s,
        &[],
        "COPY people (id, name, ok) FROM STDIN;\n3\tTab\\tby\tf\n4\tNo\\nNull\t\\N\n\\.\n\
         COPY (SELECT id, name FROM people ORDER BY id) TO STDOUT;\n",
    ));
    assert_eq!(
        out,
        "COPY 2\n1\tAda\n3\tTab\\tby\n4\tNo\\nNull\n20\tGrace\n"
    );
    let copies = "\\copy people to 'all.csv' csv header\nDELETE FROM people;\n\
                  \\copy people from 'all.csv' csv header\n\
                  \\copy (select count(*) from people) to 'n.txt'\n";
    assert_eq!(
        text(script(&s, &[], copies)),
        "COPY 4\nDELETE 4\nCOPY 4\nCOPY 1\n"
    );
    assert_eq!(std::fs::read(s.path("n.txt")).unwrap(), b"4\n");
    // The rest of the data of a COPY that failed is no statement.
    let ran = script(
        &s,
        &["--keep-going"],
        "COPY people (id, name) FROM STDIN;\n1\tagain\n;DELETE FROM people;\n\\.\nSELECT 7;\n",
    );
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains(" 7\n(1 row)\n"), "{ran:?}");
    assert_eq!(one(&s, "SELECT count(*) FROM people"), "4");
    let ran = script(&s, &[], "\\copy people from 'none'\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn a_load_commits_in_batches_and_goes_on_after_a_failure() {
    let s = people("sql-load");
    let rows: String = (100..200).map(|i| format!("{i},\"name\n{i}\"\n")).collect();
    s.file("rows.csv", format!("id,name\n{rows}150,again\n300,last\n"));
    let load = |more: &[&str]| {
        let args = [
            "load",
            "rows.csv",
            "--table",
            "people",
            "--columns",
            "id,name",
            "--header",
        ];
        sub(&s, &[&args, more].concat())
    };
    load(&["--batch", "30"]).fails(
        2,
        &[
            "rows.csv, line 202",
            "SQLSTATE 23505",
            "90 rows are committed",
            "--from-line 182",
        ],
    );
    assert_eq!(one(&s, "SELECT count(*) FROM people"), "92");
    s.file("rows.csv", format!("id,name\n{rows}250,other\n300,last\n"));
    let report = harness::json(load(&["--from-line", "182", "--json"]));
    assert_eq!(
        (&report["rows"], &report["next_line"]),
        (&12.into(), &204.into())
    );
    assert!(report["error"].is_null(), "{report}");
    assert_eq!(one(&s, "SELECT count(*) FROM people"), "104");
    s.file("rows.csv", "1000,short\n1001\n");
    let ran = sub(
        &s,
        &[
            "load",
            "rows.csv",
            "--table",
            "people",
            "--columns",
            "id,name",
        ],
    );
    ran.fails(
        2,
        &[
            "line 2",
            "missing data for column \"name\"",
            "SQLSTATE 22P04",
        ],
    );
    let ran = sub(&s, &["load", "rows.csv", "--table", "none"]);
    ran.fails(2, &["SQLSTATE 42P01", "nothing is committed"]);
}

const DUMP: &str = "\
--
-- PostgreSQL database dump
--

\\restrict abc

SET statement_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);

CREATE TABLE public.shops (
    id integer NOT NULL,
    name text
);


ALTER TABLE public.shops OWNER TO postgres;

CREATE SEQUENCE public.shops_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

ALTER SEQUENCE public.shops_id_seq OWNED BY public.shops.id;
ALTER TABLE ONLY public.shops ALTER COLUMN id SET DEFAULT nextval('public.shops_id_seq'::regclass);

COPY public.shops (id, name) FROM stdin;
1\tone
2\ttwo; 'x
3\t\\N
\\.

INSERT INTO public.shops VALUES (4, 'four;');
INSERT INTO public.shops VALUES (5, 'fi
ve'), (6, 'six');

SELECT pg_catalog.setval('public.shops_id_seq', 6, true);

ALTER TABLE ONLY public.shops
    ADD CONSTRAINT shops_pkey PRIMARY KEY (id);

COMMENT ON TABLE public.shops IS 'shops';
\\unrestrict abc
";

#[test]
fn a_dump_of_postgresql_is_loaded() {
    let s = Scratch::new("sql-dump");
    s.file("shop.sql", DUMP);
    let ran = sub(&s, &["load", "--dump", "shop.sql", "--batch", "2"]);
    assert!(ran.err.contains("skipped 6 statements"), "{}", ran.err);
    assert!(ran.err.contains("loaded 6 rows"), "{}", ran.err);
    ran.ok();
    assert_eq!(
        one(&s, "SELECT count(*) || ',' || max(id) FROM shops"),
        "\"6,6\""
    );
    assert_eq!(
        one(&s, "INSERT INTO shops (name) VALUES ('x') RETURNING id"),
        "7"
    );
    // The lines of the file are named, and the statements before stay.
    s.file(
        "bad.sql",
        "CREATE TABLE a (b int);\nINSERT INTO a VALUES (1);\nINSERT INTO c\nVALUES (1);\n",
    );
    sub(&s, &["load", "--dump", "bad.sql", "--batch", "1"]).fails(
        2,
        &["bad.sql, line 3", "1 row is committed", "--from-line 3"],
    );
    s.file("open.sql", "CREATE TABLE d (");
    sub(&s, &["load", "--dump", "open.sql"]).fails(2, &["open.sql, line 1", "in the middle"]);
}

#[test]
fn the_binlog_has_every_change() {
    let s = people("sql-binlog");
    let change =
        "UPDATE people SET name = 'Ada L.' WHERE id = 1; DELETE FROM people WHERE id = 20;";
    script(&s, &["-q"], change).ok();
    let lines = text(sub(&s, &["binlog", "tail", "--json"]));
    let records: Vec<serde_json::Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert!(
        records
            .iter()
            .any(|r| r["ddl"].as_str().is_some_and(|d| d.contains("people")))
    );
    let changes: Vec<&serde_json::Value> = records
        .iter()
        .flat_map(|r| r["changes"].as_array().into_iter().flatten())
        .collect();
    let ops: Vec<&str> = changes.iter().map(|c| c["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["insert", "insert", "update", "delete"]);
    assert_eq!(changes[2]["key"]["id"], 1);
    assert_eq!(changes[2]["before"]["name"], "Ada");
    assert_eq!(changes[2]["after"]["name"], "Ada L.");
    assert!(changes[3]["after"].is_null() && changes[0]["before"].is_null());
    let last = records.last().unwrap()["tsn"].as_u64().unwrap();
    let from = last.to_string();
    let tail = text(sub(&s, &["binlog", "tail", "--json", "--from", &from]));
    assert_eq!(tail.lines().count(), 1);
    let shown = harness::json(sub(&s, &["binlog", "show", "--json"]));
    assert_eq!(
        (&shown["last"]["tsn"], &shown["changes"]),
        (&last.into(), &4.into())
    );
}

#[test]
fn a_database_in_use_is_not_opened() {
    let s = people("sql-busy");
    let mut child = s
        .command("sql", NONE)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"SELECT 42;\n").unwrap();
    // The shell has the database open once it has answered.
    let mut answer = [0; 8];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    sql(&s, &["-c", "SELECT 1"]).fails(2, &["has it open"]);
    drop(stdin);
    harness::ended(child).ok();
    sql(&s, &["-c", "SELECT 1"]).ok();
}

#[test]
fn ctrl_c_cancels_a_statement() {
    let s = Scratch::new("sql-interrupt");
    let endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) \
                   SELECT count(*) FROM r";
    let ran = s
        .command("sql", ["--csv", "-c", "SELECT 1", "-c", endless])
        .spawn()
        .unwrap();
    let mut child = ran;
    let mut answer = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    basalt::env::Clock::system().sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = harness::ended(child);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("ERROR:  57014: "), "{}", ran.err);
}
