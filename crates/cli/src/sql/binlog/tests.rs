//! Records of the binlog as lines.

use super::*;

fn record(kind: BinlogKind) -> BinlogRecord {
    BinlogRecord {
        tsn: 7,
        commit_ms: 1000,
        kind,
    }
}

fn lines(record: &BinlogRecord) -> (String, String) {
    let (mut json, mut text) = (String::new(), String::new());
    record_json(record, &mut json);
    record_text(record, &mut text);
    assert_eq!(json.lines().count(), 1);
    serde_json::from_str::<serde_json::Value>(&json).expect("one document");
    (json, text)
}

#[test]
fn a_transaction_has_images_and_keys() {
    let columns = vec![
        ("id".to_string(), SqlType::Integer),
        ("name".to_string(), SqlType::Text),
    ];
    let change = RowChange {
        table: "t".into(),
        operation: RowOperation::Update,
        columns,
        key: vec![("id".to_string(), Value::Integer(1))],
        before: Some(vec![Value::Integer(1), Value::Null]),
        after: Some(vec![Value::Integer(2), Value::Text("a\nb".into())]),
    };
    let deleted = RowChange {
        operation: RowOperation::Delete,
        after: None,
        ..change.clone()
    };
    let (json, text) = lines(&record(BinlogKind::Transaction(vec![change, deleted])));
    assert_eq!(
        json,
        "{\"tsn\":7,\"commit_time\":\"1970-01-01T00:00:01.000Z\",\"changes\":[\
         {\"table\":\"t\",\"op\":\"update\",\"key\":{\"id\":1},\"before\":{\"id\":1,\"name\":null},\
         \"after\":{\"id\":2,\"name\":\"a\\nb\"}},\
         {\"table\":\"t\",\"op\":\"delete\",\"key\":{\"id\":1},\"before\":{\"id\":1,\"name\":null},\
         \"after\":null}]}\n"
    );
    assert_eq!(
        text,
        "7 1970-01-01T00:00:01.000Z update t -(id=1, name=NULL) +(id=2, name=a b)\n\
         7 1970-01-01T00:00:01.000Z delete t -(id=1, name=NULL)\n"
    );
}

#[test]
fn other_records_name_what_changed() {
    let (json, text) = lines(&record(BinlogKind::Ddl {
        statement: "CREATE TABLE t (\n id int)".into(),
    }));
    assert!(
        json.contains("\"ddl\":\"CREATE TABLE t (\\n id int)\""),
        "{json}"
    );
    assert_eq!(text.lines().count(), 1);
    let (json, _) = lines(&record(BinlogKind::Sequence {
        sequence: Some("s".into()),
        next: Some(33),
    }));
    assert!(
        json.contains("\"sequence\":{\"name\":\"s\",\"next\":33}"),
        "{json}"
    );
    let (json, _) = lines(&record(BinlogKind::Backfill {
        table: Some("t".into()),
        entries: 5,
    }));
    assert!(
        json.contains("\"backfill\":{\"table\":\"t\",\"entries\":5}"),
        "{json}"
    );
}
