//! The encodings equal the bytes in `docs/format/sql.md`.

use crate::catalog::{Object, SequenceDef, encode_object};
use crate::codec::encode_row;
use crate::keys::{KeyPart, KeyType, encode_key_value};
use crate::record::{BinlogRecord, RecordBody, RowChange, RowEvent, TableEvents};
use crate::value::Value;
use basalt::Bytes;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../docs/format/sql.md");

fn assert_documented(bytes: &[u8]) {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let lines = DOCUMENT.lines().map(|line| line.replace(' ', ""));
    assert!(
        lines.into_iter().any(|line| line == hex),
        "the document lacks {hex}"
    );
}

#[test]
fn rows_equal_the_document() {
    assert_documented(&encode_row(&[
        Value::Integer(7),
        Value::from("seven"),
        Value::Null,
        Value::Real(1.5),
        Value::Integer(-300),
    ]));
}

#[test]
fn keys_equal_the_document() {
    let types = [KeyType::Integer(4), KeyType::Text, KeyType::Number];
    let values = [Value::Integer(-2), Value::from("a\0b"), Value::Real(1.5)];
    let mut key = Vec::new();
    for (ty, value) in types.into_iter().zip(&values) {
        let part = KeyPart {
            column: 0,
            ty,
            marked: false,
        };
        encode_key_value(&mut key, &part, value.as_ref()).expect("the value has the type");
    }
    assert_documented(&key);
}

#[test]
fn definitions_equal_the_document() {
    let sequence = SequenceDef {
        id: 9,
        name: "s".to_owned(),
        start: 1,
        increment: 1,
        owner: Some((7, 0)),
    };
    assert_documented(&encode_object(&Object::Sequence(Arc::new(sequence))));
}

#[test]
fn records_equal_the_document() {
    let row = |a, b| Bytes::from(encode_row(&[Value::Integer(a), Value::Integer(b)]));
    let insert = RowEvent {
        key: Bytes::from_static(&[0x0A]),
        change: RowChange::Insert(row(7, 5)),
    };
    let update = RowEvent {
        key: Bytes::from_static(&[0x0B]),
        change: RowChange::Update {
            after: row(8, 5),
            before: vec![(1, Value::Integer(4))],
        },
    };
    let record = BinlogRecord {
        commit_ms: 5,
        body: RecordBody::Transaction(vec![TableEvents {
            table: 3,
            events: vec![insert, update],
        }]),
    };
    assert_documented(&record.encode());
}
