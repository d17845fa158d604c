//! [`BinlogRecord`]: one transaction in the binlog.
//!
//! A record is a format byte, the time of the commit in ms since 1970, a kind, and a body. Rows are
//! logged and not statements, so that a replay makes the same items as the commit. An update has
//! the new row, and the old values of the columns that changed.

use crate::catalog::{ObjectId, TableDef, decode_object, encode_object};
use crate::codec::{Reader, Row, put_bytes, put_text, put_value, put_varint};
use crate::history::Change;
use crate::value::Value;
use basalt::{Bytes, Result, Tsn};
use basalt_kv::encoding::zigzag;

/// The format of records that is written.
const FORMAT: u8 = 1;

const TRANSACTION: u8 = 1;
const DDL: u8 = 2;
const SEQUENCE: u8 = 3;
const BACKFILL: u8 = 4;

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;

/// A change of one row. Its table is that of the [`TableEvents`] around it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowEvent {
    /// The encoded primary key.
    pub key: Bytes,
    /// What happened.
    pub change: RowChange,
}

/// What happened to a row. Rows are encoded.
#[derive(Debug, Clone, PartialEq)]
pub enum RowChange {
    /// The row is new.
    Insert(Bytes),
    /// The row was replaced.
    Update {
        /// The new row.
        after: Bytes,
        /// Positions and values of the columns that had other values before.
        before: Vec<(u16, Value)>,
    },
    /// The row was deleted.
    Delete(Bytes),
}

/// The changes of one table, by key.
#[derive(Debug, Clone, PartialEq)]
pub struct TableEvents {
    /// Number of the table.
    pub table: ObjectId,
    /// The changes, in the order of their keys.
    pub events: Vec<RowEvent>,
}

/// What a record is about.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordBody {
    /// Rows were changed.
    Transaction(Vec<TableEvents>),
    /// Definitions were changed.
    Ddl {
        /// The statement.
        statement: String,
        /// The new definitions.
        changes: Vec<Change>,
        /// Versions of definitions, by object and transaction, that are needed no more.
        pruned: Vec<(ObjectId, Tsn)>,
    },
    /// Values of a sequence were reserved: after a restart it continues from `next`.
    Sequence {
        /// Number of the sequence.
        id: ObjectId,
        /// The next value that is not taken; `None` if there is none.
        next: Option<i64>,
    },
    /// Entries of an index that is being built.
    Backfill {
        /// Number of the table.
        table: ObjectId,
        /// Number of the index.
        index: ObjectId,
        /// Keys and values of the entries.
        entries: Vec<(Bytes, Bytes)>,
    },
}

/// One transaction in the binlog.
#[derive(Debug, Clone, PartialEq)]
pub struct BinlogRecord {
    /// Time of the commit, in ms since 1970.
    pub commit_ms: u64,
    /// What was changed.
    pub body: RecordBody,
}

impl BinlogRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.commit_ms);
        match &self.body {
            RecordBody::Transaction(tables) => {
                out.push(TRANSACTION);
                put_varint(&mut out, tables.len() as u64);
                for table in tables {
                    put_varint(&mut out, table.table.into());
                    put_varint(&mut out, table.events.len() as u64);
                    for event in &table.events {
                        put_event(&mut out, event);
                    }
                }
            }
            RecordBody::Ddl {
                statement,
                changes,
                pruned,
            } => {
                out.push(DDL);
                put_text(&mut out, statement);
                put_varint(&mut out, changes.len() as u64);
                for (id, object) in changes {
                    put_varint(&mut out, (*id).into());
                    put_bytes(
                        &mut out,
                        &object.as_ref().map(encode_object).unwrap_or_default(),
                    );
                }
                put_varint(&mut out, pruned.len() as u64);
                for (id, tsn) in pruned {
                    put_varint(&mut out, (*id).into());
                    put_varint(&mut out, *tsn);
                }
            }
            RecordBody::Sequence { id, next } => {
                out.push(SEQUENCE);
                put_varint(&mut out, (*id).into());
                out.push(u8::from(next.is_some()));
                put_varint(&mut out, zigzag(next.unwrap_or(0)));
            }
            RecordBody::Backfill {
                table,
                index,
                entries,
            } => {
                out.push(BACKFILL);
                put_varint(&mut out, (*table).into());
                put_varint(&mut out, (*index).into());
                put_varint(&mut out, entries.len() as u64);
                for (key, value) in entries {
                    put_bytes(&mut out, key);
                    put_bytes(&mut out, value);
                }
            }
        }
        out
    }

    /// Decodes a record. Rows share the memory of `bytes`.
    ///
    /// Errors: `Corruption` for malformed bytes, and for another format.
    pub fn decode(bytes: &Bytes) -> Result<BinlogRecord> {
        let mut reader = Reader::new(bytes, "a record of the binlog");
        let format = reader.u8()?;
        if format != FORMAT {
            return Err(reader.unknown("format", format));
        }
        let commit_ms = reader.varint()?;
        let body = match reader.u8()? {
            TRANSACTION => {
                let n = reader.count()?;
                let tables = (0..n).map(|_| read_table(&mut reader, bytes));
                RecordBody::Transaction(tables.collect::<Result<_>>()?)
            }
            DDL => RecordBody::Ddl {
                statement: reader.text()?.to_owned(),
                changes: {
                    let n = reader.count()?;
                    let changes = (0..n).map(|_| read_change(&mut reader));
                    changes.collect::<Result<_>>()?
                },
                pruned: {
                    let n = reader.count()?;
                    let pruned = (0..n).map(|_| Ok((reader.u32()?, reader.varint()?)));
                    pruned.collect::<Result<_>>()?
                },
            },
            SEQUENCE => {
                let id = reader.u32()?;
                let (is_some, next) = (reader.bool()?, reader.signed()?);
                let next = is_some.then_some(next);
                RecordBody::Sequence { id, next }
            }
            BACKFILL => RecordBody::Backfill {
                table: reader.u32()?,
                index: reader.u32()?,
                entries: {
                    let n = reader.count()?;
                    let entries = (0..n).map(|_| {
                        let key = bytes.slice_ref(reader.bytes()?);
                        Ok((key, bytes.slice_ref(reader.bytes()?)))
                    });
                    entries.collect::<Result<_>>()?
                },
            },
            kind => return Err(reader.unknown("kind", kind)),
        };
        reader.end()?;
        Ok(BinlogRecord { commit_ms, body })
    }
}

fn put_event(out: &mut Vec<u8>, event: &RowEvent) {
    match &event.change {
        RowChange::Insert(after) => {
            out.push(INSERT);
            put_bytes(out, &event.key);
            put_bytes(out, after);
        }
        RowChange::Update { after, before } => {
            out.push(UPDATE);
            put_bytes(out, &event.key);
            put_bytes(out, after);
            put_varint(out, before.len() as u64);
            for (column, value) in before {
                put_varint(out, (*column).into());
                put_value(out, value.as_ref());
            }
        }
        RowChange::Delete(before) => {
            out.push(DELETE);
            put_bytes(out, &event.key);
            put_bytes(out, before);
        }
    }
}

fn read_table(reader: &mut Reader<'_>, bytes: &Bytes) -> Result<TableEvents> {
    let table = reader.u32()?;
    let n = reader.count()?;
    let events = (0..n).map(|_| {
        let op = reader.u8()?;
        let key = bytes.slice_ref(reader.bytes()?);
        let row = bytes.slice_ref(reader.bytes()?);
        let change = match op {
            INSERT => RowChange::Insert(row),
            UPDATE => {
                let n = reader.count()?;
                let before = (0..n).map(|_| Ok((reader.u16()?, reader.value()?)));
                RowChange::Update {
                    before: before.collect::<Result<_>>()?,
                    after: row,
                }
            }
            DELETE => RowChange::Delete(row),
            _ => return Err(reader.damaged("the kind of a change is unknown")),
        };
        Ok(RowEvent { key, change })
    });
    Ok(TableEvents {
        table,
        events: events.collect::<Result<_>>()?,
    })
}

fn read_change(reader: &mut Reader<'_>) -> Result<Change> {
    let id = reader.u32()?;
    let object = reader.bytes()?;
    let object = match object.is_empty() {
        true => None,
        false => Some(decode_object(object)?),
    };
    match object.as_ref().is_some_and(|object| object.id() != id) {
        true => Err(reader.damaged("a definition has another number")),
        false => Ok((id, object)),
    }
}

impl RowEvent {
    /// Returns the event that turns one row into another; `None` if they are equal.
    ///
    /// Errors: `Corruption` for malformed rows.
    pub fn between(
        table: &TableDef,
        key: Bytes,
        before: Option<&Bytes>,
        after: Option<&Bytes>,
    ) -> Result<Option<RowEvent>> {
        let change = match (before, after) {
            (None, None) => return Ok(None),
            (None, Some(after)) => RowChange::Insert(after.clone()),
            (Some(before), None) => RowChange::Delete(before.clone()),
            (Some(before), Some(after)) if before == after => return Ok(None),
            (Some(before), Some(after)) => RowChange::Update {
                before: differences(table, &Row::new(before)?, &Row::new(after)?)?,
                after: after.clone(),
            },
        };
        Ok(Some(RowEvent { key, change }))
    }
}

/// Returns positions and old values of the columns that differ. A column that was added after the
/// old row was written had the value that the table's definition gives such rows.
fn differences(table: &TableDef, before: &Row<'_>, after: &Row<'_>) -> Result<Vec<(u16, Value)>> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    before.starts(&mut old)?;
    after.starts(&mut new)?;
    let mut different = Vec::new();
    for (column, new) in new.iter().enumerate() {
        let value = match old.get(column) {
            Some(start) => before.value_at(*start)?,
            None => table.missing(column),
        };
        if value != after.value_at(*new)? {
            different.push((column as u16, value.to_value()));
        }
    }
    Ok(different)
}

#[cfg(test)]
mod tests;
