//! Functions that statements do not reach, and what the executor must not do.

use super::{FunctionContext, register};
use crate::catalog::Catalog;
use crate::schema::Schema;
use crate::translate::Families;
use crate::{SqlError, SqlResult};
use basalt::Family;
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::types::Value as Native;
use std::sync::Arc;

#[derive(Default)]
struct Context {
    raised: Mutex<Vec<SqlError>>,
}

impl FunctionContext for Context {
    fn transaction_time_us(&self) -> i64 {
        0
    }
    fn clock_us(&self) -> i64 {
        1
    }
    fn random(&self) -> u64 {
        u64::MAX
    }
    fn nextval(&self, _: u32) -> SqlResult<i64> {
        panic!("a defect of the context")
    }
    fn currval(&self, _: u32) -> SqlResult<i64> {
        Ok(7)
    }
    fn setval(&self, _: u32, value: i64, _: bool) -> SqlResult<i64> {
        Ok(value)
    }
    fn raise(&self, error: SqlError) {
        self.raised.lock().push(error);
    }
    fn user(&self) -> String {
        "u".to_string()
    }
    fn database(&self) -> String {
        "d".to_string()
    }
    fn schema(&self) -> Arc<Schema> {
        let nothing = Family::detached(0);
        Arc::new(Schema::new(Catalog::default(), Families::new(), nothing))
    }
    fn setting(&self, _: &str) -> Option<String> {
        None
    }
    fn relation_bytes(&self, _: i64) -> SqlResult<i64> {
        Ok(0)
    }
    fn database_bytes(&self) -> SqlResult<i64> {
        Ok(0)
    }
}

fn open() -> (Connection, Arc<Context>) {
    let connection = Connection::open_in_memory().unwrap();
    let context = Arc::new(Context::default());
    register(&connection, context.clone()).unwrap();
    (connection, context)
}

#[test]
fn clock_and_chance_come_from_the_context() {
    let (connection, context) = open();
    for sql in [
        "SELECT date('now')",
        "SELECT datetime()",
        "SELECT strftime('%s', 'now')",
        "SELECT julianday('now')",
        "SELECT unixepoch()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT CURRENT_DATE",
        "SELECT CURRENT_TIME",
        "SELECT randomblob(8)",
        "SELECT timediff('now', '2024-01-01')",
    ] {
        let failed = connection.query_row(sql, [], |row| row.get::<_, Native>(0));
        assert!(failed.is_err(), "{sql}: {failed:?}");
        assert_eq!(
            context.raised.lock().pop().unwrap().state().0,
            "0A000",
            "{sql}"
        );
    }
    let one = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, Native>(0))
            .unwrap()
    };
    assert_eq!(one("SELECT random()"), Native::Integer(-1));
    let uuid = Native::Text("ffffffff-ffff-4fff-bfff-ffffffffffff".into());
    assert_eq!(one("SELECT basalt_uuid()"), uuid);
    let Native::Real(x) = one("SELECT basalt_random()") else {
        panic!("no number")
    };
    assert!((0.0..1.0).contains(&x));
    assert_eq!(
        one("SELECT basalt_now()"),
        Native::Text("1970-01-01 00:00:00".into())
    );
}

#[test]
fn a_panic_is_an_error() {
    let (connection, context) = open();
    let failed = connection.query_row("SELECT basalt_nextval(1)", [], |row| row.get::<_, i64>(0));
    assert!(failed.is_err());
    assert_eq!(context.raised.lock().pop().unwrap().state().0, "XX000");
    assert_eq!(
        connection.query_row("SELECT basalt_currval(1)", [], |row| row.get(0)),
        Ok(7)
    );
}

#[test]
fn functions_take_any_values() {
    let (connection, _) = open();
    let values = [
        "NULL",
        "0",
        "-1",
        "1",
        "9223372036854775807",
        "-9223372036854775808",
        "1e308",
        "-0.5",
        "''",
        "'é%_\\'",
        "'2024-02-29'",
        "'1 day'",
        "X''",
        "X'ff00'",
        "'interval'",
        "'date'",
        "'9999-12-31 23:59:59.999999'",
        "'0001-01-01'",
        "'999999999 years'",
        "9e999",
    ];
    for (name, arguments, _, _) in [
        super::numbers::ENTRIES,
        super::strings::ENTRIES,
        super::times::ENTRIES,
        super::format::ENTRIES,
        super::session::ENTRIES,
    ]
    .concat()
    {
        if name == "basalt_nextval" {
            continue;
        }
        let count = if arguments < 0 { 2 } else { arguments as usize };
        let mut at = vec![0; count];
        // All combinations of up to two arguments; of more, the first vary.
        for round in 0..values.len().pow(count.min(2) as u32).max(1) {
            for (place, at) in at.iter_mut().enumerate() {
                *at = match place {
                    0 => round % values.len(),
                    1 => round / values.len() % values.len(),
                    _ => (round * 7 + place * 5) % values.len(),
                };
            }
            let list: Vec<&str> = at.iter().map(|at| values[*at]).collect();
            let sql = format!("SELECT {name}({})", list.join(", "));
            if let Err(e) = connection.query_row(&sql, [], |row| row.get::<_, Native>(0)) {
                assert!(!e.to_string().contains("panicked"), "{sql}: {e}");
            }
        }
    }
}

#[test]
fn aggregates_over_nothing() {
    let (connection, context) = open();
    let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, Native>(0));
    assert_eq!(
        one("SELECT basalt_single(x) FROM (SELECT 1 AS x WHERE 0)"),
        Ok(Native::Null)
    );
    assert_eq!(
        one("SELECT basalt_single(x) FROM (SELECT 'a' AS x)"),
        Ok(Native::Text("a".into()))
    );
    assert!(one("SELECT basalt_single(x) FROM (SELECT 1 AS x UNION ALL SELECT 2)").is_err());
    assert_eq!(context.raised.lock().pop().unwrap().state().0, "21000");
    assert_eq!(
        one("SELECT basalt_var_samp(x) FROM (SELECT 1 AS x)"),
        Ok(Native::Null)
    );
    assert_eq!(
        one("SELECT basalt_var_pop(x) FROM (SELECT 1 AS x)"),
        Ok(Native::Real(0.0))
    );
}

#[test]
fn patterns_and_formats() {
    let (connection, _) = open();
    let one = |sql: &str| match connection.query_row(sql, [], |row| row.get::<_, Native>(0)) {
        Ok(Native::Text(text)) => text,
        Ok(other) => format!("{other:?}"),
        Err(e) => panic!("{sql}: {e}"),
    };
    for (sql, expected) in [
        ("basalt_like('abcabc', '%b%c')", "Integer(1)"),
        ("basalt_like('abcab', '%b%c')", "Integer(0)"),
        ("basalt_like('', '%')", "Integer(1)"),
        ("basalt_like('a%', 'a\\%')", "Integer(1)"),
        ("basalt_like('ab', 'a\\%')", "Integer(0)"),
        ("basalt_like('aaab', '%a_b')", "Integer(1)"),
        (
            "basalt_regexp_replace('abcb', 'b(.)?', '<\\1>', 'g')",
            "a<c><>",
        ),
        (
            "basalt_to_char(1234.567, '999,999.99', 'numeric')",
            "   1,234.57",
        ),
        ("basalt_to_char(-5, '000', 'integer')", "-005"),
        ("basalt_to_char(0.5, 'FM0.99', 'numeric')", "0.5"),
        (
            "basalt_to_char('2024-02-09', 'FMMonth DD, YYYY', 'date')",
            "February 09, 2024",
        ),
        (
            "basalt_to_char('2024-02-09 15:00:00', 'HH12:MI AM \"at\" Q', 'timestamp without time zone')",
            "03:00 PM at 1",
        ),
        ("basalt_encode(X'616263', 'base64')", "YWJj"),
        ("basalt_md5('')", "d41d8cd98f00b204e9800998ecf8427e"),
        (
            "basalt_date_trunc('week', '2024-02-29 10:00:00')",
            "2024-02-26 00:00:00",
        ),
        (
            "basalt_extract('week', '2021-01-03', 'date')",
            "Integer(53)",
        ),
        ("basalt_format_type(1043, 24)", "character varying(20)"),
        ("basalt_cast('12.345', 'numeric(6,2)')", "Real(12.35)"),
    ] {
        assert_eq!(one(&format!("SELECT {sql}")), expected, "{sql}");
    }
}
