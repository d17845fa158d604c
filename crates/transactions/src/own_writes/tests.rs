//! Savepoints, bytes and batches of own writes.

use super::*;
use basalt_sim::rng::Rng;

fn put(value: &str) -> Base {
    Base::Put(Bytes::copy_from_slice(value.as_bytes()), None)
}

/// Returns all writes, for comparisons.
fn writes(own: &OwnWrites) -> Vec<(Vec<u8>, Option<OwnWrite>)> {
    own.all()
        .map(|(_, key, state)| (key.user_key().to_vec(), state.write.clone()))
        .collect()
}

/// Adds a key if it is not there, as a transaction does.
fn add(own: &mut OwnWrites, family: &Family, key: &[u8]) {
    if own.get(family, key).is_none() {
        own.add(family, key, 0);
    }
}

/// Savepoints restore writes, keys and the count of bytes exactly, in any nesting.
#[test]
fn a_rollback_restores_writes_and_bytes() {
    let family = Family::detached(3);
    let mut rollbacks = 0;
    for seed in 0..300 {
        let mut rng = Rng::of(&[seed, 45]);
        let mut own = OwnWrites::default();
        let mut saved = Vec::new();
        for step in 0..60 {
            let key = [rng.below(4) as u8];
            match rng.below(12) {
                0..=4 => {
                    add(&mut own, &family, &key);
                    let value = "x".repeat(rng.below(50) as usize);
                    own.set(&family, &key, put(&value));
                }
                5..=7 => {
                    add(&mut own, &family, &key);
                    own.merge(&family, &key, Bytes::from(vec![b'm'; step]));
                }
                8 => {
                    add(&mut own, &family, &key);
                    own.set(&family, &key, Base::Delete);
                }
                9 => {
                    saved.push((writes(&own), own.bytes(), own.len()));
                    own.set_savepoint();
                }
                10 => assert_eq!(own.pop_savepoint().is_ok(), saved.pop().is_some()),
                _ => {
                    let restored = own.rollback_to_savepoint(false);
                    let Some((all, bytes, len)) = saved.pop() else {
                        assert!(restored.is_err());
                        continue;
                    };
                    rollbacks += 1;
                    assert_eq!(writes(&own), all);
                    assert_eq!((own.bytes(), own.len()), (bytes, len));
                }
            }
        }
        while !saved.is_empty() {
            own.pop_savepoint().unwrap();
            saved.pop();
        }
        // Without savepoints, the bytes are those of the keys and their writes.
        let each = own.all().map(|(_, key, state)| {
            let write = state.write.as_ref().map_or(0, OwnWrite::bytes);
            key.user_key().len() as u64 + KEY_OVERHEAD + write
        });
        assert_eq!(own.bytes(), each.sum::<u64>());
    }
    assert!(rollbacks > 300, "{rollbacks}");
}

/// A key that is read for update stays when its write is undone.
#[test]
fn a_rollback_keeps_keys_that_were_read() {
    let family = Family::detached(3);
    for keep in [false, true] {
        let mut own = OwnWrites::default();
        own.add(&family, b"read", 5);
        own.mark_read(&family, b"read");
        own.set_savepoint();
        own.set(&family, b"read", put("1"));
        own.add(&family, b"written", 6);
        own.set(&family, b"written", put("1"));
        own.rollback_to_savepoint(keep).unwrap();
        assert_eq!(own.get(&family, b"read").map(|k| k.since), Some(5));
        assert_eq!(own.get(&family, b"written").is_some(), keep);
        assert!(own.write_of(&family, b"read").is_none());
        assert!(own.batch().unwrap().is_empty());
    }
}

/// The batch has each key once, however often it was written.
#[test]
fn a_batch_has_the_effect_of_each_key() {
    let family = Family::detached(3);
    let mut own = OwnWrites::default();
    for n in 0..10 {
        add(&mut own, &family, b"b");
        own.set(&family, b"b", put(&n.to_string()));
    }
    add(&mut own, &family, b"a");
    own.set(&family, b"a", Base::Delete);
    add(&mut own, &family, b"c");
    let batch = own.batch().unwrap();
    assert_eq!(batch.len(), 2, "a key that was only read is not written");
    assert!(batch.payload().windows(1).any(|w| w == b"9"));
}

/// An own value that has expired is absent, also below operands.
#[test]
fn an_expired_value_is_absent() {
    let family = Family::detached(3);
    let write = OwnWrite {
        base: Base::Put(Bytes::from_static(b"v"), Some(100)),
        operands: Vec::new(),
    };
    let value = |now| {
        write
            .value(&family, b"k", now, || panic!("not read"))
            .unwrap()
    };
    assert_eq!(value(99), Some((Bytes::from_static(b"v"), Some(100))));
    assert_eq!(value(100), None);
}
