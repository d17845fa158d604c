//! Tests of records of the binlog: round trips, and damaged bytes.

use super::{BinlogRecord, RecordBody, RowChange, RowEvent, TableEvents};
use crate::catalog::{Object, SequenceDef};
use crate::value::Value;
use basalt::Bytes;
use basalt::env::Random;
use std::sync::Arc;

fn bytes(random: &Random) -> Bytes {
    (0..random.below(20))
        .map(|_| random.next_u64() as u8)
        .collect::<Vec<u8>>()
        .into()
}

fn event(random: &Random) -> RowEvent {
    let change = match random.below(3) {
        0 => RowChange::Insert(bytes(random)),
        1 => RowChange::Delete(bytes(random)),
        _ => RowChange::Update {
            after: bytes(random),
            before: vec![
                (3, Value::from(7)),
                (9, Value::Null),
                (11, Value::from("x")),
            ],
        },
    };
    RowEvent {
        key: bytes(random),
        change,
    }
}

fn record(random: &Random) -> BinlogRecord {
    let sequence = Object::Sequence(Arc::new(SequenceDef {
        id: 12,
        name: "s".to_owned(),
        start: -3,
        increment: 2,
        owner: Some((7, 1)),
    }));
    let body = match random.below(4) {
        0 => RecordBody::Transaction(
            (0..random.below(3))
                .map(|table| TableEvents {
                    table: table as u32,
                    events: (0..random.below(4)).map(|_| event(random)).collect(),
                })
                .collect(),
        ),
        1 => RecordBody::Ddl {
            statement: "CREATE SEQUENCE s".to_owned(),
            changes: vec![(12, Some(sequence)), (13, None)],
            pruned: vec![(12, 4), (13, 90_000)],
        },
        2 => RecordBody::Sequence {
            id: 12,
            next: (!random.one_in(3)).then_some(random.next_u64() as i64),
        },
        _ => RecordBody::Backfill {
            table: 7,
            index: 8,
            entries: (0..random.below(4))
                .map(|_| (bytes(random), bytes(random)))
                .collect(),
        },
    };
    BinlogRecord {
        commit_ms: random.below(1 << 42),
        body,
    }
}

#[test]
fn records_are_read_as_they_were_written() {
    let random = Random::from_seed(5);
    for _ in 0..5_000 {
        let record = record(&random);
        let encoded = Bytes::from(record.encode());
        assert_eq!(
            BinlogRecord::decode(&encoded).expect("it was encoded"),
            record
        );
    }
}

#[test]
fn damaged_records_are_errors() {
    let random = Random::from_seed(6);
    let mut errors = 0;
    for _ in 0..20_000 {
        let mut encoded = record(&random).encode();
        match random.below(3) {
            0 => encoded.truncate(random.below(encoded.len() as u64) as usize),
            1 => {
                let at = random.below(encoded.len() as u64) as usize;
                encoded[at] ^= 1 << random.below(8);
            }
            _ => encoded.push(0),
        }
        // No call panics, or allocates more than the bytes that are there.
        errors += usize::from(BinlogRecord::decode(&Bytes::from(encoded)).is_err());
    }
    assert!(errors > 10_000, "{errors} of 20,000");
}
