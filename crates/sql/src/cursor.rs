//! [`RowCursor`]: a scan of a table by one of its keys.
//!
//! A cursor reads the store as of the transaction's snapshot, and over it the transaction's own
//! writes as they were when the scan began. So a statement never sees its own writes.

use crate::catalog::TableDef;
use crate::codec::Row;
use crate::error::{SqlError, SqlResult};
use crate::keys::{
    Exact, KeyPart, KeyType, decode_columns, encode_key_value, exact_value, is_inside, next_prefix,
    skip_columns, whole,
};
use crate::plan::Plan;
use crate::row_write::{Target, missing_row, row_name};
use crate::state::{SessionState, SharedState, read_error};
use crate::value::{Value, ValueRef};
use basalt::{Bytes, Iter};
use std::collections::BTreeMap;

/// Maximum bytes of rows in a hash table. A larger table is scanned for each row of the other one.
const MAX_HASH_BYTES: usize = 64 << 20;

/// The range of a scan.
pub struct Bounds {
    /// Which key, and how it is compared.
    pub plan: Plan,
    /// The values that it is compared with.
    pub values: Vec<Value>,
}

/// A scan of a table by one of its keys.
pub struct RowCursor {
    target: Target,
    /// Positions of the columns that statements see.
    visible: Vec<u16>,
    plan: Plan,
    source: Source,
    current: Option<CurrentRow>,
    hash: Option<HashTable>,
    /// The cursor has looked up a value of a hash table's column. The next lookup builds the table.
    has_sought: bool,
}

/// The source of a cursor's rows.
enum Source {
    /// There are no more rows.
    Nothing,
    /// A scan of a family.
    Scan(Box<Scan>),
    /// Rows of a hash table that have the sought value.
    Hits(std::vec::IntoIter<(Bytes, Bytes)>),
}

/// The row that a cursor is at.
struct CurrentRow {
    /// The encoded primary key.
    key: Bytes,
    content: Content,
}

enum Content {
    /// The encoded row, and where its values begin.
    Row { row: Bytes, starts: Vec<u32> },
    /// The values by position, from the key of an index entry.
    Entry(BTreeMap<u16, Value>),
}

/// A scan of a family: stored entries, and over them own writes.
struct Scan {
    stored: Iter,
    own: Vec<(Bytes, Option<Bytes>)>,
    /// The next own write: from the front, or from the back if the scan goes backwards.
    own_at: usize,
    reverse: bool,
    is_begun: bool,
}

/// A hash table over one column of a table.
struct HashTable {
    column: u16,
    /// Keys and rows by the encoded value.
    rows: BTreeMap<Vec<u8>, Vec<(Bytes, Bytes)>>,
    /// The table is too large: it is scanned.
    is_too_large: bool,
}

impl Scan {
    /// Moves to the next entry, and returns its key and value.
    fn next(&mut self) -> SqlResult<Option<(Bytes, Bytes)>> {
        loop {
            if !self.is_begun {
                self.is_begun = true;
                match self.reverse {
                    true => self.stored.seek_to_last()?,
                    false => self.stored.seek_to_first()?,
                }
            }
            let own = self.own.get(match self.reverse {
                false => self.own_at,
                true => self.own.len().wrapping_sub(self.own_at + 1),
            });
            let order = match (self.stored.valid(), own) {
                (false, None) => return Ok(None),
                (true, None) => std::cmp::Ordering::Less,
                (false, Some(_)) => std::cmp::Ordering::Greater,
                (true, Some((key, _))) => {
                    let order = self.stored.key().cmp(key);
                    if self.reverse { order.reverse() } else { order }
                }
            };
            if order.is_lt() {
                let key = Bytes::copy_from_slice(self.stored.key());
                let value = self.stored.pinned_value();
                self.advance_stored()?;
                return Ok(Some((key, value)));
            }
            let own = own.cloned();
            if order.is_eq() {
                self.advance_stored()?;
            }
            self.own_at += 1;
            if let Some((key, Some(value))) = own {
                return Ok(Some((key, value)));
            }
        }
    }

    fn advance_stored(&mut self) -> SqlResult<()> {
        match self.reverse {
            true => self.stored.prev()?,
            false => self.stored.next()?,
        }
        Ok(())
    }
}

impl RowCursor {
    /// Returns a cursor that is at no row.
    pub fn new(target: Target) -> RowCursor {
        RowCursor {
            visible: target.table.visible().map(|(at, _)| at).collect(),
            target,
            plan: Plan::default(),
            source: Source::Nothing,
            current: None,
            hash: None,
            has_sought: false,
        }
    }

    /// Begins a scan, at its first row.
    ///
    /// Errors: those of a read.
    pub fn begin(&mut self, state: &mut SessionState, bounds: &Bounds) -> SqlResult<()> {
        state.check_interrupt()?;
        self.plan = bounds.plan;
        self.source = Source::Nothing;
        self.current = None;
        if self.plan.hash {
            return self.begin_hash(state, bounds);
        }
        let parts = self.parts().to_vec();
        let mut prefix = Vec::with_capacity(parts.len() * 9);
        let mut is_whole = true;
        for (part, value) in parts
            .iter()
            .zip(&bounds.values[..usize::from(self.plan.equal)])
        {
            match exact_value(part, value) {
                Exact::Value(value) => encode_key_value(&mut prefix, part, value.as_ref())?,
                Exact::Never => return Ok(()),
                Exact::Unknown => {
                    is_whole = false;
                    break;
                }
            }
        }
        if self.plan.point && is_whole {
            return self.get(state, &prefix);
        }
        let mut lower = prefix.clone();
        let mut upper = next_prefix(&prefix);
        if is_whole {
            let range = &bounds.values[usize::from(self.plan.equal)..];
            if !self.narrow(&parts, range, &mut lower, &mut upper)? {
                return Ok(());
            }
        }
        let storage = self.storage();
        self.scan(state, storage, lower, upper)?;
        self.advance(state)
    }

    /// Returns the columns of the plan's key.
    fn parts(&self) -> &[KeyPart] {
        match self.plan.key {
            0 => &self.target.layout.key,
            n => &self.target.layout.indexes[usize::from(n) - 1].parts,
        }
    }

    /// Returns the number of the family of the plan's key.
    fn storage(&self) -> u32 {
        match self.plan.key {
            0 => self.target.table.storage,
            n => self.target.layout.indexes[usize::from(n) - 1].storage,
        }
    }

    /// Narrows a range by bounds on the column after the equal ones. Returns `false` if no row can
    /// be inside.
    fn narrow(
        &self,
        parts: &[KeyPart],
        range: &[Value],
        lower: &mut Vec<u8>,
        upper: &mut Option<Vec<u8>>,
    ) -> SqlResult<bool> {
        let Some(part) = parts.get(usize::from(self.plan.equal)) else {
            return Ok(true);
        };
        let mut range = range.iter();
        let prefix = lower.clone();
        if self.plan.has_lower {
            match range.next().map(|value| bound_value(part, value, true)) {
                Some(Exact::Value(value)) => encode_key_value(lower, part, value.as_ref())?,
                Some(Exact::Never) => return Ok(false),
                _ => {}
            }
        } else if self.plan.has_upper && part.marked {
            // NULL is below all values, and compares with none.
            lower.push(1);
        }
        if self.plan.has_upper {
            match range.next().map(|value| bound_value(part, value, false)) {
                Some(Exact::Value(value)) => {
                    let mut highest = prefix;
                    encode_key_value(&mut highest, part, value.as_ref())?;
                    *upper = next_prefix(&highest);
                }
                Some(Exact::Never) => return Ok(false),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Reads the one row of a point plan.
    fn get(&mut self, state: &mut SessionState, key: &[u8]) -> SqlResult<()> {
        let table = self.target.table.storage;
        if self.plan.key == 0 {
            if let Some(row) = state.get(table, key)? {
                self.set_row(state, Bytes::copy_from_slice(key), row)?;
            }
            return Ok(());
        }
        let Some(holder) = state.get(self.storage(), key)? else {
            return Ok(());
        };
        match state.get(table, &holder)? {
            Some(row) => self.set_row(state, holder, row),
            None => Err(self.missing_row(&holder)),
        }
    }

    /// Returns the error of an entry of the plan's index whose row does not exist.
    fn missing_row(&self, key: &[u8]) -> SqlError {
        let table = &self.target.table;
        let index = usize::from(self.plan.key).checked_sub(1);
        let index = index.and_then(|at| table.indexes.get(at));
        missing_row(table, index.map(|index| index.name.as_str()), key)
    }

    fn set_row(&mut self, state: &mut SessionState, key: Bytes, row: Bytes) -> SqlResult<()> {
        if state.locked.contains(&self.target.table.id) {
            let storage = self.target.table.storage;
            state.touch(&self.target.table)?;
            state
                .work_mut()?
                .checks
                .locked
                .insert((storage, key.clone()));
        }
        let mut starts = match self.current.take() {
            Some(CurrentRow {
                content: Content::Row { mut starts, .. },
                ..
            }) => {
                starts.clear();
                starts
            }
            _ => Vec::new(),
        };
        let read = Row::new(&row).and_then(|row| row.starts(&mut starts));
        read.map_err(|e| e.context(row_name(&self.target.table, &key)))?;
        self.current = Some(CurrentRow {
            key,
            content: Content::Row { row, starts },
        });
        Ok(())
    }

    fn scan(
        &mut self,
        state: &mut SessionState,
        storage: u32,
        lower: Vec<u8>,
        upper: Option<Vec<u8>>,
    ) -> SqlResult<()> {
        state.counts.scans += 1;
        let work = state.work()?;
        let own = work.writes.range(storage, &lower, upper.as_deref());
        let options = state
            .read_options()?
            .lower_bound(Some(lower))
            .upper_bound(upper);
        let stored = state
            .storage
            .db()
            .iter(work.schema.family(storage)?, &options)
            .map_err(read_error)?;
        self.source = Source::Scan(Box::new(Scan {
            stored,
            own,
            own_at: 0,
            reverse: self.plan.reverse,
            is_begun: false,
        }));
        Ok(())
    }

    /// Moves to the next row.
    ///
    /// Errors: those of a read.
    pub fn next(&mut self, state: &SharedState) -> SqlResult<()> {
        match &self.source {
            Source::Nothing => {
                self.current = None;
                Ok(())
            }
            _ => self.advance(&mut state.lock()),
        }
    }

    fn advance(&mut self, state: &mut SessionState) -> SqlResult<()> {
        let entry = match &mut self.source {
            Source::Nothing => None,
            Source::Hits(rows) => {
                let Some((key, row)) = rows.next() else {
                    self.current = None;
                    return Ok(());
                };
                return self.set_row(state, key, row);
            }
            Source::Scan(scan) => scan.next()?,
        };
        let Some((key, value)) = entry else {
            self.current = None;
            self.source = Source::Nothing;
            return Ok(());
        };
        state.counts.entries += 1;
        if state.counts.entries.is_multiple_of(1024) {
            state.check_interrupt()?;
        }
        if self.plan.key == 0 {
            return self.set_row(state, key, value);
        }
        let index = &self.target.layout.indexes[usize::from(self.plan.key) - 1];
        let mut values = Vec::new();
        let end = match self.plan.covering {
            true => decode_columns(&key, &index.parts, &mut values)?,
            false => skip_columns(&key, &index.parts)?,
        };
        let row_key = match value.is_empty() {
            true => key.slice(end..),
            false => value,
        };
        let is_locked = state.locked.contains(&self.target.table.id);
        if self.plan.covering && !is_locked {
            return self.set_entry(row_key, values);
        }
        match state.get(self.target.table.storage, &row_key)? {
            Some(row) => self.set_row(state, row_key, row),
            None => Err(self.missing_row(&row_key)),
        }
    }

    /// Takes the columns of an index and of the primary key as the row.
    fn set_entry(&mut self, row_key: Bytes, values: Vec<Value>) -> SqlResult<()> {
        let layout = &self.target.layout;
        let index = &layout.indexes[usize::from(self.plan.key) - 1];
        let columns = index.parts.iter().map(|part| part.column);
        let mut by_column: BTreeMap<u16, Value> = columns.zip(values).collect();
        let mut values = Vec::new();
        decode_columns(&row_key, &layout.key, &mut values)?;
        by_column.extend(layout.key.iter().map(|part| part.column).zip(values));
        self.current = Some(CurrentRow {
            key: row_key,
            content: Content::Entry(by_column),
        });
        Ok(())
    }

    /// Returns `true` if the cursor is at no row.
    pub fn is_at_end(&self) -> bool {
        self.current.is_none()
    }

    /// Returns a column of the current row, by its number in the declaration. The column after the
    /// last one is the encoded primary key.
    ///
    /// Errors: `XX001` for a damaged row.
    pub fn column(&self, column: usize) -> SqlResult<ValueRef<'_>> {
        let Some(current) = &self.current else {
            return Ok(ValueRef::Null);
        };
        let Some(position) = self.visible.get(column) else {
            return Ok(ValueRef::Blob(&current.key));
        };
        match &current.content {
            Content::Row { row, starts } => match starts.get(usize::from(*position)) {
                Some(start) => Ok(Row::new(row)?.value_at(*start)?),
                None => Ok(self.target.table.missing(usize::from(*position))),
            },
            Content::Entry(values) => match values.get(position) {
                Some(value) => Ok(value.as_ref()),
                None => Err(SqlError::internal("an index lacks a column that is read")),
            },
        }
    }

    /// Starts a lookup in the hash table. The first lookup scans the table without building the
    /// hash table, because an equality with a parameter is looked up only once. The second lookup
    /// builds the hash table.
    fn begin_hash(&mut self, state: &mut SessionState, bounds: &Bounds) -> SqlResult<()> {
        let column = u16::from(self.plan.column);
        if !std::mem::replace(&mut self.has_sought, true) {
            self.scan(state, self.target.table.storage, Vec::new(), None)?;
            return self.advance(state);
        }
        if self.hash.as_ref().is_none_or(|hash| hash.column != column) {
            self.hash = Some(self.build_hash(state, column)?);
        }
        let part = hash_part(&self.target.table, column);
        let value = bounds.values.first().unwrap_or(&Value::Null);
        let hash = self.hash.as_ref().filter(|hash| !hash.is_too_large);
        match (exact_value(&part, value), hash) {
            (Exact::Never, _) => Ok(()),
            (Exact::Value(value), Some(hash)) if !value.is_null() => {
                let mut sought = Vec::new();
                encode_key_value(&mut sought, &part, value.as_ref())?;
                let rows = hash.rows.get(&sought).cloned().unwrap_or_default();
                self.source = Source::Hits(rows.into_iter());
                self.advance(state)
            }
            (Exact::Value(value), _) if value.is_null() => Ok(()),
            _ => {
                let storage = self.target.table.storage;
                self.scan(state, storage, Vec::new(), None)?;
                self.advance(state)
            }
        }
    }

    fn build_hash(&mut self, state: &mut SessionState, column: u16) -> SqlResult<HashTable> {
        let part = hash_part(&self.target.table, column);
        self.scan(state, self.target.table.storage, Vec::new(), None)?;
        let source = std::mem::replace(&mut self.source, Source::Nothing);
        let mut hash = HashTable {
            column,
            rows: BTreeMap::new(),
            is_too_large: false,
        };
        let Source::Scan(mut scan) = source else {
            return Ok(hash);
        };
        let (mut bytes, mut starts) = (0, Vec::new());
        while let Some((key, row)) = scan.next()? {
            state.counts.entries += 1;
            if state.counts.entries.is_multiple_of(1024) {
                state.check_interrupt()?;
            }
            bytes += key.len() + row.len() + 100;
            if bytes > MAX_HASH_BYTES {
                hash.rows.clear();
                hash.is_too_large = true;
                return Ok(hash);
            }
            starts.clear();
            let decoded = Row::new(&row)?;
            decoded.starts(&mut starts)?;
            let value = match starts.get(usize::from(column)) {
                Some(start) => decoded.value_at(*start)?,
                None => self.target.table.missing(usize::from(column)),
            };
            if value != ValueRef::Null {
                let mut encoded = Vec::new();
                encode_key_value(&mut encoded, &part, value)?;
                hash.rows.entry(encoded).or_default().push((key, row));
            }
        }
        Ok(hash)
    }
}

fn hash_part(table: &TableDef, column: u16) -> KeyPart {
    KeyPart {
        column,
        ty: KeyType::of(table.columns[usize::from(column)].ty),
        marked: false,
    }
}

/// Returns a value that bounds a column, in the type of the column. The bound may be too wide by a
/// value, and never too narrow: SQLite compares again.
fn bound_value(part: &KeyPart, value: &Value, is_lower: bool) -> Exact {
    if value.is_null() {
        return Exact::Never;
    }
    match (part.ty, value) {
        (KeyType::Integer(bytes), Value::Integer(n)) => match is_inside(*n, bytes) {
            true => Exact::Value(Value::Integer(*n)),
            // All values of the column are on one side.
            false if (*n > 0) == is_lower => Exact::Never,
            false => Exact::Unknown,
        },
        (KeyType::Integer(bytes), Value::Real(x)) => {
            let rounded = if is_lower { x.floor() } else { x.ceil() };
            match whole(rounded) {
                Some(n) if is_inside(n, bytes) => Exact::Value(Value::Integer(n)),
                _ => Exact::Unknown,
            }
        }
        (KeyType::Number, Value::Integer(_)) => Exact::Value(value.clone()),
        (KeyType::Number, Value::Real(x)) if x.is_nan() => Exact::Unknown,
        (KeyType::Number, Value::Real(x)) => Exact::Value(match whole(*x) {
            Some(n) => Value::Integer(n),
            None => Value::Real(*x),
        }),
        (KeyType::Real, Value::Integer(n)) => Exact::Value(Value::Real(*n as f64)),
        (KeyType::Real, Value::Real(_))
        | (KeyType::Text, Value::Text(_))
        | (KeyType::Blob, Value::Blob(_)) => Exact::Value(value.clone()),
        _ => Exact::Unknown,
    }
}
