//! Portals with row limits.

use crate::client::{Client, server, server_with};
use basalt_postgres::{PostgresOptions, PostgresServer};
use pgwire::messages::copy::{CopyData, CopyDone};

fn fill(server: &PostgresServer, rows: usize) -> Client {
    let mut client = Client::session(server);
    client.query("CREATE TABLE t (id integer PRIMARY KEY, name text)");
    client.query("COPY t FROM STDIN");
    for i in 1..=rows {
        client.put(CopyData::new(format!("{i}\trow {i}\n").into_bytes().into()));
    }
    client.put(CopyDone::new()).send();
    client.answers();
    client
}

const SELECT: &str = "SELECT id FROM t ORDER BY id";

#[test]
fn a_portal_continues_after_a_sync_in_a_transaction() {
    let server = server();
    let mut client = fill(&server, 5);
    client.query("BEGIN");
    client
        .parse("", SELECT, &[])
        .bind("p", "", &[])
        .execute("p", 2);
    assert_eq!(client.sync(), ["1", "2", "D 1", "D 2", "s", "Z T"]);
    assert_eq!(client.execute("p", 2).sync(), ["D 3", "D 4", "s", "Z T"]);
    assert_eq!(client.execute("p", 2).sync(), ["D 5", "C SELECT 1", "Z T"]);
    assert_eq!(client.execute("p", 2).sync(), ["C SELECT 0", "Z T"]);
    assert_eq!(client.query("COMMIT"), ["C COMMIT", "Z I"]);
    let answers = client.execute("p", 2).sync();
    assert!(answers[0].starts_with("E ERROR 34000"), "{answers:?}");
}

#[test]
fn a_portal_ends_with_the_sync_outside_of_a_transaction() {
    let server = server();
    let mut client = fill(&server, 5);
    client
        .parse("", SELECT, &[])
        .bind("p", "", &[])
        .execute("p", 2)
        .execute("p", 1);
    assert_eq!(
        client.sync(),
        ["1", "2", "D 1", "D 2", "s", "D 3", "s", "Z I"]
    );
    let answers = client.execute("p", 0).sync();
    assert!(answers[0].starts_with("E ERROR 34000"), "{answers:?}");
    assert_eq!(client.rows("SELECT name FROM t WHERE id = 1"), ["row 1"]);
}

#[test]
fn portals_are_read_in_turns() {
    let server = server();
    let mut client = fill(&server, 4);
    client.query("BEGIN");
    client
        .parse("s", SELECT, &[])
        .bind("a", "s", &[])
        .bind("b", "s", &[]);
    client
        .execute("a", 1)
        .execute("b", 3)
        .execute("a", 2)
        .execute("b", 0)
        .execute("a", 0);
    assert_eq!(
        client.sync(),
        [
            "1",
            "2",
            "2",
            "D 1",
            "s",
            "D 1",
            "D 2",
            "D 3",
            "s",
            "D 2",
            "D 3",
            "s",
            "D 4",
            "C SELECT 1",
            "D 4",
            "C SELECT 1",
            "Z T"
        ]
    );
    // A query of the simple protocol runs between two parts of a portal.
    client.bind("c", "s", &[]).execute("c", 1);
    assert_eq!(client.sync(), ["2", "D 1", "s", "Z T"]);
    assert_eq!(client.rows("SELECT name FROM t WHERE id = 2"), ["row 2"]);
    assert_eq!(client.execute("c", 2).sync(), ["D 2", "D 3", "s", "Z T"]);
    assert_eq!(client.execute("c", 0).sync(), ["D 4", "C SELECT 1", "Z T"]);
}

#[test]
fn a_closed_portal_sends_no_rows() {
    let server = server();
    let mut client = fill(&server, 5);
    client.query("BEGIN");
    client
        .parse("s", SELECT, &[])
        .bind("p", "s", &[])
        .execute("p", 2)
        .close(b'P', "p");
    client.bind("p", "s", &[]).execute("p", 1);
    assert_eq!(
        client.sync(),
        ["1", "2", "D 1", "D 2", "s", "3", "2", "D 1", "s", "Z T"]
    );
    assert_eq!(client.close(b'P', "p").sync(), ["3", "Z T"]);
    assert_eq!(client.query("COMMIT"), ["C COMMIT", "Z I"]);
}

#[test]
fn a_row_limit_inside_of_a_pipeline_keeps_its_transaction() {
    let server = server();
    let mut client = fill(&server, 5);
    client
        .parse("", "INSERT INTO t VALUES (6, 'six')", &[])
        .bind("", "", &[])
        .execute("", 0);
    client
        .parse("s", SELECT, &[])
        .bind("p", "s", &[])
        .execute("p", 2);
    assert_eq!(
        client.sync(),
        ["1", "2", "C INSERT 0 1", "1", "2", "D 1", "D 2", "s", "Z I"]
    );
    assert_eq!(client.rows("SELECT id FROM t WHERE id = 6"), ["6"]);
}

#[test]
fn rows_that_a_portal_keeps_are_bounded() {
    let server = server_with(PostgresOptions {
        portal_bytes: 1000,
        ..PostgresOptions::default()
    });
    let mut client = fill(&server, 500);
    client.query("BEGIN");
    client
        .parse("s", SELECT, &[])
        .bind("p", "s", &[])
        .execute("p", 2);
    assert_eq!(client.sync(), ["1", "2", "D 1", "D 2", "s", "Z T"]);
    // The portal itself may be read to its end without keeping rows.
    let answers = client.execute("p", 400).sync();
    assert_eq!(answers.len(), 402);
    let answers = client.query("SELECT name FROM t WHERE id = 1");
    assert!(answers[0].starts_with("E ERROR 25P02") || answers[0].starts_with("T "));
    client.query("ROLLBACK");

    client.query("BEGIN");
    client.bind("p", "s", &[]).execute("p", 2).sync();
    client.query("SELECT name FROM t WHERE id = 1");
    let answers = client.execute("p", 0).sync();
    assert!(answers[0].starts_with("E ERROR 54000"), "{answers:?}");
    assert_eq!(answers[1], "Z E");
    assert_eq!(client.query("ROLLBACK"), ["C ROLLBACK", "Z I"]);
}
