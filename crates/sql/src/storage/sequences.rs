//! Sequences. Each number is returned once, also if the transaction that took it is rolled back.
//!
//! One binlog record reserves 256 numbers, so that most calls write nothing. Reserved numbers that
//! were not used are lost when the database is closed or crashes. The record is not synced: a later
//! synced commit makes it durable. Before that, a power cut can return a number again.

use crate::catalog::{Object, ObjectId, SequenceDef};
use crate::codec::{Reader, put_varint};
use crate::committer::{Committer, Items};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::record::{BinlogRecord, RecordBody};
use crate::schema::Schema;
use basalt::env::sync::Mutex;
use basalt::{Db, Family, ReadOptions, WriteBatch};
use basalt_kv::encoding::zigzag;
use std::collections::BTreeMap;

/// The first byte of the keys of sequences in the catalog's family.
const SEQUENCE: u8 = 2;

/// Numbers that one record reserves.
const RESERVED: i64 = 256;

/// The numbers of all sequences that were asked for numbers.
pub struct Sequences {
    catalog: Family,
    states: Mutex<BTreeMap<ObjectId, SequenceState>>,
}

#[derive(Debug, Clone, Copy)]
struct SequenceState {
    /// The next number; `None` if the sequence has none left.
    next: Option<i64>,
    /// Number of reserved numbers from `next` on.
    reserved: i64,
}

/// Returns the entry of a sequence in the catalog's family.
pub fn sequence_entry(id: ObjectId, next: Option<i64>) -> (Vec<u8>, Vec<u8>) {
    let mut key = vec![SEQUENCE];
    key.extend_from_slice(&id.to_be_bytes());
    let mut value = vec![u8::from(next.is_some())];
    put_varint(&mut value, zigzag(next.unwrap_or(0)));
    (key, value)
}

impl Sequences {
    /// Reads the next number of each sequence of a schema.
    ///
    /// Errors: those of a read; `Corruption` for damaged entries.
    pub fn read(db: &Db, schema: &Schema) -> basalt::Result<Sequences> {
        let mut states = BTreeMap::new();
        for object in schema.catalog.objects() {
            let Object::Sequence(sequence) = object else {
                continue;
            };
            let (key, _) = sequence_entry(sequence.id, None);
            let value = db.get(&schema.catalog_family, &key, &ReadOptions::default())?;
            if let Some(value) = value {
                let mut reader = Reader::new(&value, "the state of a sequence");
                let (is_some, next) = (reader.bool()?, reader.signed()?);
                reader.end()?;
                let state = SequenceState {
                    next: is_some.then_some(next),
                    reserved: 0,
                };
                states.insert(sequence.id, state);
            }
        }
        Ok(Sequences {
            catalog: schema.catalog_family.clone(),
            states: Mutex::new(states),
        })
    }

    /// Returns the next number of a sequence.
    ///
    /// Errors: 55000 if the sequence has none left; those of [`Committer::commit`].
    pub fn next(
        &self,
        committer: &Committer,
        now_ms: u64,
        sequence: &SequenceDef,
    ) -> SqlResult<i64> {
        let mut states = self.states.lock();
        let fresh = SequenceState {
            next: Some(sequence.start),
            reserved: 0,
        };
        let state = states.entry(sequence.id).or_insert(fresh);
        let next = state.next.ok_or_else(|| {
            SqlError::new(
                SqlState::OBJECT_NOT_IN_STATE,
                format!("sequence {:?} has no further value", sequence.name),
            )
        })?;
        if state.reserved == 0 {
            let behind = sequence.increment.checked_mul(RESERVED);
            let behind = behind.and_then(|n| next.checked_add(n));
            self.reserve(committer, now_ms, sequence.id, behind)?;
            state.reserved = RESERVED;
        }
        state.next = next.checked_add(sequence.increment);
        state.reserved -= 1;
        Ok(next)
    }

    /// Sets the next number of a sequence.
    ///
    /// Errors: those of [`Committer::commit`].
    pub fn set(
        &self,
        committer: &Committer,
        now_ms: u64,
        id: ObjectId,
        next: Option<i64>,
    ) -> SqlResult<()> {
        let mut states = self.states.lock();
        self.reserve(committer, now_ms, id, next)?;
        states.insert(id, SequenceState { next, reserved: 0 });
        Ok(())
    }

    fn reserve(
        &self,
        committer: &Committer,
        now_ms: u64,
        id: ObjectId,
        next: Option<i64>,
    ) -> SqlResult<()> {
        let body = RecordBody::Sequence { id, next };
        let commit_ms = now_ms;
        let record = BinlogRecord { commit_ms, body }.encode();
        let (key, value) = sequence_entry(id, next);
        let mut items = WriteBatch::new();
        items.put(&self.catalog, &key, &value)?;
        // The record of a transaction that uses the numbers comes after this one in the binlog.
        committer.commit(record, Items::Ready(items), false)?;
        Ok(())
    }
}
