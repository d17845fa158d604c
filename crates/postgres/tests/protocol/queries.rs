//! Queries of both protocols, transactions, errors and COPY.

use crate::client::{Client, server};
use pgwire::messages::copy::{CopyData, CopyDone, CopyFail};
use pgwire::messages::extendedquery::Bind;

const TABLE: &str = "CREATE TABLE t (id integer PRIMARY KEY, name text)";

/// Returns a client of a new server whose table `t` has the rows 1 to `rows`.
fn table(rows: usize) -> (basalt_postgres::PostgresServer, Client) {
    let server = server();
    let mut client = Client::session(&server);
    client.query(TABLE);
    client.query("COPY t FROM STDIN");
    for i in 1..=rows {
        client.put(CopyData::new(format!("{i}\trow {i}\n").into_bytes().into()));
    }
    client.put(CopyDone::new()).send();
    assert_eq!(client.answers(), [format!("C COPY {rows}"), "Z I".into()]);
    (server, client)
}

#[test]
fn simple_queries_return_rows_as_text() {
    let (_server, mut client) = table(2);
    assert_eq!(
        client.query("SELECT id, name FROM t ORDER BY id"),
        [
            "T id:23:0 name:25:0",
            "D 1|row 1",
            "D 2|row 2",
            "C SELECT 2",
            "Z I"
        ]
    );
    assert_eq!(
        client.query("INSERT INTO t VALUES (3, NULL)"),
        ["C INSERT 0 1", "Z I"]
    );
    assert_eq!(
        client.rows("SELECT id, name FROM t WHERE id = 3"),
        ["3|NULL"]
    );
    assert_eq!(client.query(""), ["I", "Z I"]);
    assert_eq!(client.query(" ; "), ["I", "Z I"]);
    client.terminate();
}

#[test]
fn statements_of_a_query_are_one_transaction() {
    let (_server, mut client) = table(1);
    let answers = client.query("INSERT INTO t VALUES (2, 'a'); INSERT INTO t VALUES (1, 'b')");
    assert_eq!(answers[0], "C INSERT 0 1");
    assert!(answers[1].starts_with("E ERROR 23505"), "{answers:?}");
    assert_eq!(answers[2], "Z I");
    // The first insert is undone.
    assert_eq!(client.rows("SELECT id FROM t"), ["1"]);

    // BEGIN inside takes the statements before it along, and the transaction stays open.
    let answers =
        client.query("INSERT INTO t VALUES (2, 'a'); BEGIN; INSERT INTO t VALUES (3, 'b')");
    assert_eq!(answers, ["C INSERT 0 1", "C BEGIN", "C INSERT 0 1", "Z T"]);
    assert_eq!(client.query("ROLLBACK"), ["C ROLLBACK", "Z I"]);
    assert_eq!(client.rows("SELECT id FROM t"), ["1"]);

    // COMMIT inside keeps what was before it, also if a later statement fails.
    let answers = client.query("INSERT INTO t VALUES (2, 'a'); COMMIT; SELECT * FROM missing");
    assert!(answers[1].starts_with("N WARNING 25P01"), "{answers:?}");
    assert_eq!(answers[2], "C COMMIT");
    assert!(answers[3].starts_with("E ERROR 42P01"), "{answers:?}");
    assert_eq!(client.rows("SELECT id FROM t ORDER BY id"), ["1", "2"]);

    let answers = client.query("SELECT id FROM t WHERE id = 1; SAVEPOINT a");
    assert!(answers[3].starts_with("E ERROR 25P01"), "{answers:?}");
}

/// The session refuses changes of the catalog inside of transactions, also of those that the
/// connection begins around several statements.
#[test]
fn scripts_may_change_the_catalog() {
    let (_server, mut client) = table(1);
    let script = "INSERT INTO t VALUES (2, 'a'); CREATE TABLE u (id integer); \
                  INSERT INTO u VALUES (1); SELECT id FROM u; CREATE TABLE v (id integer)";
    assert_eq!(
        client.query(script),
        [
            "C INSERT 0 1",
            "C CREATE TABLE",
            "C INSERT 0 1",
            "T id:23:0",
            "D 1",
            "C SELECT 1",
            "C CREATE TABLE",
            "Z I"
        ]
    );
    for name in ["w", "x"] {
        let query = format!("CREATE TABLE {name} (id integer)");
        client
            .parse("", &query, &[])
            .bind("", "", &[])
            .execute("", 0);
    }
    let answers = client.sync();
    assert!(!answers.iter().any(|a| a.starts_with('E')), "{answers:?}");
    client.query("BEGIN");
    let answers = client.query("CREATE TABLE y (id integer)");
    assert!(answers[0].starts_with("E ERROR 25001"), "{answers:?}");
    assert_eq!(answers[1], "Z E");
}

#[test]
fn a_failed_transaction_only_ends() {
    let (_server, mut client) = table(1);
    assert_eq!(client.query("BEGIN"), ["C BEGIN", "Z T"]);
    let answers = client.query("SELECT * FROM missing");
    assert!(answers[0].starts_with("E ERROR 42P01"));
    assert_eq!(answers[1], "Z E");
    let answers = client.query("SELECT id FROM t");
    assert!(answers[0].starts_with("E ERROR 25P02"), "{answers:?}");
    let answers = client.parse("", "SELECT id FROM t", &[]).sync();
    assert!(answers[0].starts_with("E ERROR 25P02"), "{answers:?}");
    assert_eq!(answers[1], "Z E");
    assert_eq!(client.query("COMMIT"), ["C ROLLBACK", "Z I"]);
    assert_eq!(client.rows("SELECT id FROM t"), ["1"]);

    // An error of the protocol fails the transaction, too.
    client.query("BEGIN");
    let answers = client.bind("", "missing", &[]).sync();
    assert!(answers[0].starts_with("E ERROR 26000"), "{answers:?}");
    assert_eq!(answers[1], "Z E");
    let answers = client
        .parse("", "ROLLBACK", &[])
        .bind("", "", &[])
        .execute("", 0)
        .sync();
    assert_eq!(answers, ["1", "2", "C ROLLBACK", "Z I"]);
}

#[test]
fn errors_have_all_fields() {
    let (_server, mut client) = table(1);
    let answers = client.query("INSERT INTO t VALUES (1, 'again')");
    for field in ["E ERROR 23505 ", " D=", " s=public", " t=t", " n=t_pkey"] {
        assert!(answers[0].contains(field), "{answers:?}");
    }
    // The position counts characters of the whole query.
    let alone = client.query("SELECT * FROM missing");
    let second = client.query("SELECT 'ä'; SELECT * FROM missing");
    assert!(alone[0].contains(" P=15"), "{alone:?}");
    assert!(second.iter().any(|a| a.contains(" P=27")), "{second:?}");
}

#[test]
fn prepared_statements_take_both_formats() {
    let (_server, mut client) = table(3);
    client.parse("one", "SELECT id, name FROM t WHERE id = $1", &[23]);
    client.describe(b'S', "one").bind("", "one", &[Some("2")]);
    client.describe(b'P', "").execute("", 0);
    assert_eq!(
        client.sync(),
        [
            "1",
            "t [23]",
            "T id:23:0 name:25:0",
            "2",
            "T id:23:0 name:25:0",
            "D 2|row 2",
            "C SELECT 1",
            "Z I"
        ]
    );
    let name = || Some("one".to_owned());
    let value = vec![Some(3_i32.to_be_bytes().to_vec().into())];
    client.put(Bind::new(None, name(), vec![1], value, vec![1, 0]));
    client.describe(b'P', "").execute("", 0);
    let answers = client.sync();
    assert_eq!(
        answers,
        [
            "2",
            "T id:23:1 name:25:0",
            "D 00000003|row 3",
            "C SELECT 1",
            "Z I"
        ]
    );
    // A portal is over after its rows.
    client
        .bind("p", "one", &[Some("1")])
        .execute("p", 0)
        .execute("p", 0);
    assert_eq!(
        client.sync(),
        ["2", "D 1|row 1", "C SELECT 1", "C SELECT 0", "Z I"]
    );
    client
        .close(b'S', "one")
        .close(b'S', "never")
        .bind("", "one", &[Some("1")]);
    let answers = client.sync();
    assert_eq!(answers[..2], ["3", "3"]);
    assert!(answers[2].starts_with("E ERROR 26000"), "{answers:?}");
}

#[test]
fn names_of_statements_and_portals_are_checked() {
    let (_server, mut client) = table(1);
    client
        .parse("s", "SELECT id FROM t", &[])
        .parse("s", "SELECT name FROM t", &[]);
    let answers = client.sync();
    assert!(answers[1].starts_with("E ERROR 42P05"), "{answers:?}");
    client.bind("p", "s", &[]).bind("p", "s", &[]);
    let answers = client.sync();
    assert!(answers[1].starts_with("E ERROR 42P03"), "{answers:?}");
    let answers = client.execute("p", 0).sync();
    assert!(answers[0].starts_with("E ERROR 34000"), "{answers:?}");
    let answers = client.bind("", "s", &[Some("1")]).sync();
    assert!(answers[0].starts_with("E ERROR 08P01"), "{answers:?}");
    let answers = client.parse("", "SELECT 1; SELECT 2", &[]).sync();
    assert!(answers[0].starts_with("E ERROR 42601"), "{answers:?}");
    client.put(Bind::new(None, Some("s".into()), vec![], vec![], vec![2]));
    let answers = client.sync();
    assert!(answers[0].starts_with("E ERROR 22023"), "{answers:?}");
    client.put(Bind::new(
        None,
        Some("s".into()),
        vec![],
        vec![],
        vec![0, 0],
    ));
    let answers = client.sync();
    assert!(answers[0].starts_with("E ERROR 08P01"), "{answers:?}");
    let answers = client.parse("", "SELECT $1", &[1007]).sync();
    assert!(answers[0].starts_with("E ERROR 0A000"), "{answers:?}");
    // SQL's DEALLOCATE removes statements of the protocol.
    assert_eq!(client.query("DEALLOCATE s"), ["C DEALLOCATE", "Z I"]);
    let answers = client.bind("", "s", &[]).sync();
    assert!(answers[0].starts_with("E ERROR 26000"), "{answers:?}");
}

#[test]
fn an_empty_statement_is_prepared() {
    let (_server, mut client) = table(1);
    client
        .parse("", "", &[])
        .describe(b'S', "")
        .bind("", "", &[])
        .execute("", 0);
    assert_eq!(client.sync(), ["1", "t []", "n", "2", "I", "Z I"]);
}

#[test]
fn an_error_in_a_pipeline_skips_to_the_sync() {
    let (_server, mut client) = table(1);
    client
        .parse("", "INSERT INTO t VALUES (2, 'a')", &[])
        .bind("", "", &[])
        .execute("", 0);
    client.parse("", "SELECT * FROM missing", &[]);
    client.bind("", "", &[]).execute("", 0);
    client
        .parse("", "INSERT INTO t VALUES (3, 'b')", &[])
        .bind("", "", &[])
        .execute("", 0);
    let answers = client.sync();
    assert_eq!(answers[..3], ["1", "2", "C INSERT 0 1"]);
    assert!(answers[3].starts_with("E ERROR 42P01"), "{answers:?}");
    assert_eq!(answers[4..], ["Z I"]);
    // The pipeline was one transaction.
    assert_eq!(client.rows("SELECT id FROM t"), ["1"]);
}

#[test]
fn a_pipeline_is_one_transaction() {
    let (server, mut client) = table(0);
    for i in 1..=2 {
        let query = format!("INSERT INTO t VALUES ({i}, 'a')");
        client
            .parse("", &query, &[])
            .bind("", "", &[])
            .execute("", 0);
    }
    let answers = client.sync();
    assert_eq!(
        answers,
        ["1", "2", "C INSERT 0 1", "1", "2", "C INSERT 0 1", "Z I"]
    );
    let mut other = Client::session(&server);
    assert_eq!(other.rows("SELECT id FROM t"), ["1", "2"]);
}

#[test]
fn flush_sends_answers_before_the_sync() {
    let (_server, mut client) = table(1);
    client.parse("s", "SELECT id FROM t", &[]).flush().send();
    assert_eq!(client.answer(), "1");
    client.bind("", "s", &[]).flush().send();
    assert_eq!(client.answer(), "2");
    client.execute("", 0).flush().send();
    assert_eq!(client.answer(), "D 1");
    assert_eq!(client.answer(), "C SELECT 1");
    assert_eq!(client.sync(), ["Z I"]);
}

#[test]
fn copy_writes_text_and_csv() {
    let (_server, mut client) = table(1);
    client.query("INSERT INTO t VALUES (2, 'tab\there, \"quoted\"'), (3, NULL), (4, '')");
    assert_eq!(
        client.query("COPY t TO STDOUT"),
        [
            "H 2",
            "d 1\trow 1\n",
            "d 2\ttab\\there, \"quoted\"\n",
            "d 3\t\\N\n",
            "d 4\t\n",
            "c",
            "C COPY 4",
            "Z I"
        ]
    );
    assert_eq!(
        client.query("COPY t TO STDOUT WITH (FORMAT csv, HEADER)"),
        [
            "H 2",
            "d id,name\n",
            "d 1,row 1\n",
            "d 2,\"tab\there, \"\"quoted\"\"\"\n",
            "d 3,\n",
            "d 4,\"\"\n",
            "c",
            "C COPY 4",
            "Z I"
        ]
    );
    client.parse("", "COPY t TO STDOUT", &[]).describe(b'S', "");
    let answers = client.bind("", "", &[]).execute("", 0).sync();
    assert_eq!(answers[..5], ["1", "t []", "n", "2", "H 2"]);
    assert_eq!(answers[9..], ["c", "C COPY 4", "Z I"]);
    let answers = client.query("COPY t TO STDOUT WITH (FORMAT binary)");
    assert!(answers[0].starts_with("E ERROR 0A000"), "{answers:?}");
}

#[test]
fn copy_reads_until_done_or_failed() {
    let (_server, mut client) = table(1);
    // Rows are split over messages, and a Sync and a Flush in between are ignored.
    assert_eq!(client.query("COPY t FROM STDIN"), ["G 2"]);
    client.put(CopyData::new(b"2\tt"[..].into())).flush();
    client.put(CopyData::new(b"wo\n3\t\\N\n"[..].into()));
    client.put(CopyDone::new()).send();
    assert_eq!(client.answers(), ["C COPY 2", "Z I"]);
    assert_eq!(
        client.rows("SELECT name FROM t WHERE id > 1 ORDER BY id"),
        ["two", "NULL"]
    );

    client.query("COPY t FROM STDIN");
    client.put(CopyFail::new("no more".into())).send();
    let answers = client.answers();
    assert!(answers[0].starts_with("E ERROR 57014"), "{answers:?}");
    assert!(answers[0].contains("no more"), "{answers:?}");
    assert_eq!(answers[1], "Z I");

    // Bad data: the error comes at once, and the rest of the data is ignored.
    client.query("COPY t FROM STDIN");
    for _ in 0..3 {
        client.put(CopyData::new(b"only one column\n"[..].into()));
    }
    client.put(CopyDone::new()).send();
    let answers = client.answers();
    assert!(answers[0].starts_with("E ERROR 22P04"), "{answers:?}");
    assert_eq!(answers[1], "Z I");

    // In the extended protocol, too: libpq sends a Sync behind the Execute.
    client
        .parse("", "COPY t FROM STDIN", &[])
        .bind("", "", &[])
        .execute("", 0);
    assert_eq!(client.sync(), ["1", "2", "G 2"]);
    client
        .put(CopyData::new(b"9\tnine\n"[..].into()))
        .put(CopyDone::new());
    assert_eq!(client.sync(), ["C COPY 1", "Z I"]);

    // Another message ends the COPY.
    client.query("COPY t FROM STDIN");
    let answers = client.query("SELECT id FROM t");
    assert!(answers[0].starts_with("E ERROR 08P01"), "{answers:?}");
    assert_eq!(client.rows("SELECT id FROM t WHERE id = 9"), ["9"]);
}

#[test]
fn large_results_arrive_in_order() {
    let (_server, mut client) = table(30_000);
    let rows = client.rows("SELECT id, name FROM t ORDER BY id");
    assert_eq!(rows.len(), 30_000);
    assert!(
        rows.iter()
            .enumerate()
            .all(|(i, row)| *row == format!("{0}|row {0}", i + 1))
    );
}

#[test]
fn variables_are_reported_when_they_change() {
    let server = server();
    let mut client = Client::session(&server);
    let answers = client.query("SET application_name TO 'tests'");
    assert_eq!(answers, ["C SET", "S application_name=tests", "Z I"]);
    assert_eq!(
        client.query("SET application_name TO 'tests'"),
        ["C SET", "Z I"]
    );
}
