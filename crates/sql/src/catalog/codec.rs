//! How definitions are encoded: in the catalog's family, and in the binlog.

use super::Object;
use super::schema::{
    CheckDef, ColumnDef, ForeignKeyAction, ForeignKeyDef, IndexDef, SequenceDef, TableDef, ViewDef,
};
use crate::codec::{Reader, put_text, put_value, put_varint};
use crate::types::SqlType;
use basalt::Result;
use basalt_kv::encoding::zigzag;
use std::sync::Arc;

/// The format of definitions that is written.
const FORMAT: u8 = 1;

const TABLE: u8 = 1;
const VIEW: u8 = 2;
const SEQUENCE: u8 = 3;

/// Encodes a definition.
pub fn encode_object(object: &Object) -> Vec<u8> {
    let mut out = vec![FORMAT];
    match object {
        Object::Table(table) => {
            out.push(TABLE);
            put_table(&mut out, table);
        }
        Object::View(view) => {
            out.push(VIEW);
            put_view(&mut out, view);
        }
        Object::Sequence(sequence) => {
            out.push(SEQUENCE);
            put_varint(&mut out, sequence.id.into());
            put_text(&mut out, &sequence.name);
            put_varint(&mut out, zigzag(sequence.start));
            put_varint(&mut out, zigzag(sequence.increment));
            put_flag(&mut out, sequence.owner.is_some());
            if let Some((table, column)) = sequence.owner {
                put_varint(&mut out, table.into());
                put_varint(&mut out, column.into());
            }
        }
    }
    out
}

/// Decodes a definition.
///
/// Errors: `Corruption` for malformed bytes, and for another format.
pub fn decode_object(bytes: &[u8]) -> Result<Object> {
    let mut reader = Reader::new(bytes, "a definition of the catalog");
    let format = reader.u8()?;
    if format != FORMAT {
        return Err(reader.unknown("format", format));
    }
    let object = match reader.u8()? {
        TABLE => Object::Table(Arc::new(read_table(&mut reader)?)),
        VIEW => Object::View(Arc::new(read_view(&mut reader)?)),
        SEQUENCE => Object::Sequence(Arc::new(SequenceDef {
            id: reader.u32()?,
            name: reader.text()?.to_owned(),
            start: reader.signed()?,
            increment: reader.signed()?,
            owner: match reader.bool()? {
                true => Some((reader.u32()?, reader.u16()?)),
                false => None,
            },
        })),
        kind => return Err(reader.unknown("kind", kind)),
    };
    reader.end()?;
    Ok(object)
}

fn put_flag(out: &mut Vec<u8>, flag: bool) {
    out.push(u8::from(flag));
}

fn put_optional_text(out: &mut Vec<u8>, text: Option<&str>) {
    put_flag(out, text.is_some());
    if let Some(text) = text {
        put_text(out, text);
    }
}

fn put_optional_id(out: &mut Vec<u8>, id: Option<u32>) {
    // Numbers of objects begin with 1.
    put_varint(out, id.unwrap_or(0).into());
}

fn put_positions(out: &mut Vec<u8>, positions: &[u16]) {
    put_varint(out, positions.len() as u64);
    for position in positions {
        put_varint(out, (*position).into());
    }
}

fn put_type(out: &mut Vec<u8>, ty: SqlType) {
    let (tag, arguments): (u8, [Option<u32>; 2]) = match ty {
        SqlType::Boolean => (1, [None; 2]),
        SqlType::SmallInt => (2, [None; 2]),
        SqlType::Integer => (3, [None; 2]),
        SqlType::BigInt => (4, [None; 2]),
        SqlType::Real => (5, [None; 2]),
        SqlType::Double => (6, [None; 2]),
        SqlType::Numeric(None) => (7, [None; 2]),
        SqlType::Numeric(Some((precision, scale))) => {
            (8, [Some(precision.into()), Some(scale.into())])
        }
        SqlType::Text => (9, [None; 2]),
        SqlType::Varchar(None) => (10, [None; 2]),
        SqlType::Varchar(Some(n)) => (11, [Some(n), None]),
        SqlType::Char(n) => (12, [Some(n), None]),
        SqlType::Bytea => (13, [None; 2]),
        SqlType::Date => (14, [None; 2]),
        SqlType::Time => (15, [None; 2]),
        SqlType::Timestamp => (16, [None; 2]),
        SqlType::Timestamptz => (17, [None; 2]),
        SqlType::Uuid => (18, [None; 2]),
        SqlType::Json => (19, [None; 2]),
        SqlType::Jsonb => (20, [None; 2]),
    };
    out.push(tag);
    for argument in arguments.into_iter().flatten() {
        put_varint(out, argument.into());
    }
}

fn read_type(reader: &mut Reader<'_>) -> Result<SqlType> {
    Ok(match reader.u8()? {
        1 => SqlType::Boolean,
        2 => SqlType::SmallInt,
        3 => SqlType::Integer,
        4 => SqlType::BigInt,
        5 => SqlType::Real,
        6 => SqlType::Double,
        7 => SqlType::Numeric(None),
        8 => SqlType::Numeric(Some((reader.u16()?, reader.u16()?))),
        9 => SqlType::Text,
        10 => SqlType::Varchar(None),
        11 => SqlType::Varchar(Some(reader.u32()?)),
        12 => SqlType::Char(reader.u32()?),
        13 => SqlType::Bytea,
        14 => SqlType::Date,
        15 => SqlType::Time,
        16 => SqlType::Timestamp,
        17 => SqlType::Timestamptz,
        18 => SqlType::Uuid,
        19 => SqlType::Json,
        20 => SqlType::Jsonb,
        _ => return Err(reader.damaged("a type is unknown")),
    })
}

fn put_table(out: &mut Vec<u8>, table: &TableDef) {
    put_varint(out, table.id.into());
    put_text(out, &table.name);
    put_varint(out, table.version);
    put_varint(out, table.storage.into());
    put_flag(out, table.is_ready);
    put_varint(out, table.columns.len() as u64);
    for column in &table.columns {
        put_text(out, &column.name);
        put_type(out, column.ty);
        put_flag(out, column.not_null);
        put_optional_text(out, column.default.as_deref());
        put_flag(out, column.missing.is_some());
        if let Some(missing) = &column.missing {
            put_value(out, missing.as_ref());
        }
        put_optional_id(out, column.sequence);
        put_flag(out, column.always_generated);
        put_flag(out, column.dropped);
    }
    put_positions(out, &table.primary_key);
    put_text(out, &table.primary_key_name);
    put_optional_id(out, table.row_sequence);
    put_varint(out, table.indexes.len() as u64);
    for index in &table.indexes {
        put_varint(out, index.id.into());
        put_text(out, &index.name);
        put_positions(out, &index.columns);
        put_flag(out, index.unique);
        put_flag(out, index.is_constraint);
        put_flag(out, index.is_ready);
        put_varint(out, index.storage.into());
    }
    put_varint(out, table.checks.len() as u64);
    for check in &table.checks {
        put_text(out, &check.name);
        put_text(out, &check.expression);
        put_text(out, &check.text);
    }
    put_varint(out, table.foreign_keys.len() as u64);
    for key in &table.foreign_keys {
        put_text(out, &key.name);
        put_positions(out, &key.columns);
        put_varint(out, key.parent.into());
        put_positions(out, &key.parent_columns);
        put_optional_id(out, key.parent_index);
        out.push(key.on_delete as u8);
        out.push(key.on_update as u8);
    }
}

fn read_list<T>(
    reader: &mut Reader<'_>,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let n = reader.count()?;
    (0..n).map(|_| read(reader)).collect()
}

/// Reads positions of columns, each below `columns`.
fn read_positions(reader: &mut Reader<'_>, columns: usize) -> Result<Vec<u16>> {
    read_list(reader, |reader| {
        let position = reader.u16()?;
        match usize::from(position) < columns {
            true => Ok(position),
            false => Err(reader.damaged("the position of a column is too large")),
        }
    })
}

fn read_optional_id(reader: &mut Reader<'_>) -> Result<Option<u32>> {
    Ok(Some(reader.u32()?).filter(|id| *id != 0))
}

fn read_action(reader: &mut Reader<'_>) -> Result<ForeignKeyAction> {
    Ok(match reader.u8()? {
        0 => ForeignKeyAction::Restrict,
        1 => ForeignKeyAction::Cascade,
        2 => ForeignKeyAction::SetNull,
        3 => ForeignKeyAction::SetDefault,
        _ => return Err(reader.damaged("the action of a foreign key is unknown")),
    })
}

fn read_column(reader: &mut Reader<'_>) -> Result<ColumnDef> {
    Ok(ColumnDef {
        name: reader.text()?.to_owned(),
        ty: read_type(reader)?,
        not_null: reader.bool()?,
        default: reader.optional_text()?,
        missing: match reader.bool()? {
            true => Some(reader.value()?),
            false => None,
        },
        sequence: read_optional_id(reader)?,
        always_generated: reader.bool()?,
        dropped: reader.bool()?,
    })
}

fn read_table(reader: &mut Reader<'_>) -> Result<TableDef> {
    let (id, name, version) = (reader.u32()?, reader.text()?.to_owned(), reader.varint()?);
    let storage = reader.u32()?;
    let is_ready = reader.bool()?;
    let columns = read_list(reader, read_column)?;
    let n = columns.len();
    Ok(TableDef {
        id,
        name,
        version,
        storage,
        is_ready,
        columns,
        primary_key: read_positions(reader, n)?,
        primary_key_name: reader.text()?.to_owned(),
        row_sequence: read_optional_id(reader)?,
        indexes: read_list(reader, |reader| {
            Ok(IndexDef {
                id: reader.u32()?,
                name: reader.text()?.to_owned(),
                columns: read_positions(reader, n)?,
                unique: reader.bool()?,
                is_constraint: reader.bool()?,
                is_ready: reader.bool()?,
                storage: reader.u32()?,
            })
        })?,
        checks: read_list(reader, |reader| {
            Ok(CheckDef {
                name: reader.text()?.to_owned(),
                expression: reader.text()?.to_owned(),
                text: reader.text()?.to_owned(),
            })
        })?,
        foreign_keys: read_list(reader, |reader| {
            Ok(ForeignKeyDef {
                name: reader.text()?.to_owned(),
                columns: read_positions(reader, n)?,
                parent: reader.u32()?,
                parent_columns: read_positions(reader, usize::from(u16::MAX))?,
                parent_index: read_optional_id(reader)?,
                on_delete: read_action(reader)?,
                on_update: read_action(reader)?,
            })
        })?,
    })
}

fn put_view(out: &mut Vec<u8>, view: &ViewDef) {
    put_varint(out, view.id.into());
    put_text(out, &view.name);
    put_text(out, &view.query);
    put_text(out, &view.text);
    put_varint(out, view.columns.len() as u64);
    for (name, ty) in &view.columns {
        put_text(out, name);
        put_type(out, *ty);
    }
    put_varint(out, view.reads.len() as u64);
    for name in &view.reads {
        put_text(out, name);
    }
}

fn read_view(reader: &mut Reader<'_>) -> Result<ViewDef> {
    Ok(ViewDef {
        id: reader.u32()?,
        name: reader.text()?.to_owned(),
        query: reader.text()?.to_owned(),
        text: reader.text()?.to_owned(),
        columns: read_list(reader, |reader| {
            Ok((reader.text()?.to_owned(), read_type(reader)?))
        })?,
        reads: read_list(reader, |reader| Ok(reader.text()?.to_owned()))?,
    })
}
