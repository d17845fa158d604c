//! Manifest edits: the changes between two versions, as tagged fields.
//!
//! A field is a tag (varint), a length (varint) and that many bytes. Tags from 64 up are ignorable:
//! a build that does not know one skips it. Any other unknown tag refuses the manifest. Tags are
//! persisted and never reused.

mod blobs;
mod flags;

pub use blobs::AddBlob;

use super::FileLocation;
use basalt_blob::lineage::LineageGroup;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::flush_flag::FlushFlag;
use basalt_kv::key::{SEQ_LIMIT, SeqNo, TRAILER_LEN};
pub use basalt_kv::limits::{MAX_FAMILY, MAX_FILE_NUMBER};
use basalt_table::{References, TableMeta, decode_references, encode_references};
use std::collections::BTreeMap;

/// The bound of sizes and counts of one file, and of wall times.
/// [`super::catalog::Catalog::check_totals`] checks the sums over many files.
const MAX_QUANTITY: u64 = 1 << 48;

/// A table that the edit adds to a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddTable {
    /// Family id.
    pub family: u32,
    /// Level, from 0.
    pub level: u32,
    /// File number.
    pub number: u64,
    /// The table's metadata.
    pub meta: TableMeta,
    /// Location of the file.
    pub location: FileLocation,
}

/// One change of the tree, applied whole or not at all. The tags say what each field means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// Tag 1: the store's random id, 16 bytes; first edit of a manifest only.
    pub store_id: Option<u128>,
    /// Tag 2: feature bits, three u32: compatible, read-compatible, incompatible.
    pub features: Option<[u32; 3]>,
    /// Tag 3: the first file number that was never used, u64. No higher one was used either.
    pub next_file: Option<u64>,
    /// Tag 4: the bound of sequence numbers in tables: no table has a higher one, u64.
    pub last_seq: Option<SeqNo>,
    /// Tag 5: families that are created: id, name, comparator name.
    pub add_families: Vec<(u32, String, String)>,
    /// Tag 6: families that are dropped.
    pub drop_families: Vec<u32>,
    /// Tag 7: tables that are added. Tag 15: the same, followed by the number of range tombstones,
    /// for tables that have some. Tag 21: the same as tag 15, followed by the references, for
    /// tables that refer to blob files. Tag 22, behind those: number and [`TableMeta::shift`] of a
    /// table that was prepared. Tag 23, behind the tags of blob files: number and location of an
    /// added table or blob file that is outside the store's directory.
    pub add_tables: Vec<AddTable>,
    /// Tag 8: tables that are removed: family, level, number.
    pub remove_tables: Vec<(u32, u32, u64)>,
    /// Tag 9: logs that may hold records from now on: number, file id. Their headers are synced.
    pub add_logs: Vec<(u64, u128)>,
    /// Tag 10: logs that are removed, because their contents are in tables.
    pub remove_logs: Vec<u64>,
    /// Tag 11: ended logs: number, position. Everything before the position is synced, nothing
    /// after it counts.
    pub end_logs: Vec<(u64, u64)>,
    /// Tag 13: left logs, to which no more records go: number, position. Everything before the
    /// position was written, but is not known to be synced. Nothing after it counts. Tag 11 with
    /// the same position may follow.
    pub left_logs: Vec<(u64, u64)>,
    /// Tag 12: the first family id that was never used. No higher one was used either.
    pub next_family: Option<u32>,
    /// Tag 14: merge operators of families from now on: id, name of the operator.
    pub merge_operators: Vec<(u32, String)>,
    /// Tag 24: families that are kept in pages: id, and the highest sequence number whose entry of
    /// the family is in its pages. Every lower one is there, too.
    pub pages: Vec<(u32, SeqNo)>,
    /// Tag 25: trees that repairs have written: id of the family, number of the tree.
    pub trees: Vec<(u32, u32)>,
    /// Tag 26: flush flags of families of a passive store: the flag, and the ids of the families
    /// that are persisted up to it from now on.
    pub flush_flags: Vec<(FlushFlag, Vec<u32>)>,
    /// Tag 27: the sequence number of the newest entry of a store when it became passive. The
    /// numbers behind it, up to the first transaction, are for prepared tables.
    pub passive_from: Option<SeqNo>,
    /// Tag 16: blob files that are added.
    pub add_blobs: Vec<AddBlob>,
    /// Tag 17: blob files that are removed: garbage collection rewrote them, or they have no live
    /// record.
    pub remove_blobs: Vec<u64>,
    /// Tag 18: records of blob files that lost their reference. Each item is a file's number and
    /// the marks that this edit adds, encoded by [`basalt_blob::garbage::Garbage`].
    pub mark_blobs: Vec<(u64, Vec<u8>)>,
    /// Tag 19: groups of names with their targets from now on, by group id.
    pub lineage: Vec<(u64, LineageGroup)>,
    /// Tag 20: names that no table refers to any more.
    pub forget_names: Vec<u64>,
    /// Tag 64 (ignorable): the highest wall time that the store has seen, ms since 1970, so that
    /// expired entries stay expired.
    pub wall_ms: Option<u64>,
    /// Tag 65 (ignorable): when blob files were made: number, ms since 1970.
    pub blob_times: Vec<(u64, u64)>,
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn bytes(out: &mut Vec<u8>, b: &[u8]) {
    varint(out, b.len() as u64);
    out.extend_from_slice(b);
}

fn field(out: &mut Vec<u8>, tag: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    write(&mut body);
    varint(out, tag);
    bytes(out, &body);
}

/// Returns the tag under which a table is added.
fn add_tag(meta: &TableMeta) -> u64 {
    match meta {
        m if !m.references.is_empty() => 21,
        m if m.range_deletes > 0 => 15,
        _ => 7,
    }
}

/// A checked cursor over bytes from disk.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn bad(what: &str) -> Error {
        Error::new(ErrorKind::Corruption, format!("manifest edit: {what}"))
    }
    fn varint(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for (i, &b) in self.rest.iter().enumerate().take(10) {
            if i == 9 && b > 1 {
                break;
            }
            n |= u64::from(b & 0x7f) << (7 * i);
            if b < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(n);
            }
        }
        Err(Self::bad("number cut off"))
    }
    fn u32(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| Self::bad("number above 32 bits"))
    }
    fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.varint()?;
        if n > self.rest.len() as u64 {
            return Err(Self::bad("bytes cut off"));
        }
        let (a, b) = self.rest.split_at(n as usize);
        self.rest = b;
        Ok(a)
    }
    fn u128(&mut self) -> Result<u128> {
        let Some((a, b)) = self.rest.split_first_chunk::<16>() else {
            return Err(Self::bad("id cut off"));
        };
        self.rest = b;
        Ok(u128::from_le_bytes(*a))
    }
    fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Self::bad("name is not UTF-8"))
    }
    fn key(&mut self) -> Result<Vec<u8>> {
        let k = self.bytes()?;
        if k.len() < TRAILER_LEN || k.len() > crate::MAX_KEY_LEN + TRAILER_LEN {
            return Err(Self::bad(&format!("internal key of {} bytes", k.len())));
        }
        Ok(k.to_vec())
    }
    fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Self::bad("bytes left over in a field"))
        }
    }
}

fn bad_references(table: u64) -> Error {
    Input::bad(&format!("the references of table {table} do not decode"))
}

impl Edit {
    /// Returns the record's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut o = Vec::new();
        if let Some(id) = self.store_id {
            field(&mut o, 1, |b| b.extend_from_slice(&id.to_le_bytes()));
        }
        if let Some(f) = self.features {
            field(&mut o, 2, |b| {
                f.iter().for_each(|&n| varint(b, u64::from(n)))
            });
        }
        if let Some(n) = self.next_file {
            field(&mut o, 3, |b| varint(b, n));
        }
        if let Some(n) = self.last_seq {
            field(&mut o, 4, |b| varint(b, n));
        }
        for (id, name, cmp) in &self.add_families {
            field(&mut o, 5, |b| {
                varint(b, u64::from(*id));
                bytes(b, name.as_bytes());
                bytes(b, cmp.as_bytes());
            });
        }
        for id in &self.drop_families {
            field(&mut o, 6, |b| varint(b, u64::from(*id)));
        }
        let add_table = |o: &mut Vec<u8>, tag, t: &AddTable| {
            field(o, tag, |b| {
                let m = &t.meta;
                varint(b, u64::from(t.family));
                varint(b, u64::from(t.level));
                varint(b, t.number);
                b.extend_from_slice(&m.file_id.to_le_bytes());
                b.extend_from_slice(&m.digest.to_le_bytes());
                for n in [
                    m.size,
                    m.entries,
                    m.deletes,
                    m.min_seq,
                    m.max_seq,
                    m.raw_key_bytes,
                    m.raw_value_bytes,
                    m.soonest_expiry_ms,
                ] {
                    varint(b, n);
                }
                bytes(b, &m.smallest);
                bytes(b, &m.largest);
                if tag != 7 {
                    varint(b, m.range_deletes);
                }
                if tag == 21 {
                    bytes(b, &encode_references(&m.references));
                }
            });
        };
        let tagged = |tag| (self.add_tables.iter()).filter(move |t| add_tag(&t.meta) == tag);
        for t in tagged(7) {
            add_table(&mut o, 7, t);
        }
        for (family, level, number) in &self.remove_tables {
            field(&mut o, 8, |b| {
                varint(b, u64::from(*family));
                varint(b, u64::from(*level));
                varint(b, *number);
            });
        }
        for (number, id) in &self.add_logs {
            field(&mut o, 9, |b| {
                varint(b, *number);
                b.extend_from_slice(&id.to_le_bytes());
            });
        }
        for number in &self.remove_logs {
            field(&mut o, 10, |b| varint(b, *number));
        }
        for (number, end) in &self.end_logs {
            field(&mut o, 11, |b| {
                varint(b, *number);
                varint(b, *end);
            });
        }
        if let Some(n) = self.next_family {
            field(&mut o, 12, |b| varint(b, u64::from(n)));
        }
        for (number, end) in &self.left_logs {
            field(&mut o, 13, |b| {
                varint(b, *number);
                varint(b, *end);
            });
        }
        for (id, name) in &self.merge_operators {
            field(&mut o, 14, |b| {
                varint(b, u64::from(*id));
                bytes(b, name.as_bytes());
            });
        }
        for t in tagged(15) {
            add_table(&mut o, 15, t);
        }
        blobs::encode(self, &mut o);
        for t in tagged(21) {
            add_table(&mut o, 21, t);
        }
        for t in self.add_tables.iter().filter(|t| t.meta.shift > 0) {
            field(&mut o, 22, |b| {
                varint(b, t.number);
                varint(b, t.meta.shift);
            });
        }
        self.encode_locations(&mut o);
        self.encode_pages(&mut o);
        flags::encode(self, &mut o);
        if let Some(n) = self.wall_ms {
            field(&mut o, 64, |b| varint(b, n));
        }
        blobs::encode_times(self, &mut o);
        o
    }

    /// Decodes a payload. Returns `Unsupported` for unknown mandatory tags, and `Corruption` for
    /// any other malformed bytes.
    pub fn decode(payload: &[u8]) -> Result<Edit> {
        let mut e = Edit::default();
        let mut p = Input { rest: payload };
        let mut shifts = BTreeMap::new();
        let mut locations = BTreeMap::new();
        while !p.rest.is_empty() {
            let tag = p.varint()?;
            let mut f = Input { rest: p.bytes()? };
            match tag {
                1 => e.store_id = Some(f.u128()?),
                2 => e.features = Some([f.u32()?, f.u32()?, f.u32()?]),
                3 => e.next_file = Some(f.varint()?),
                4 => e.last_seq = Some(f.varint()?),
                5 => e.add_families.push((f.u32()?, f.text()?, f.text()?)),
                6 => e.drop_families.push(f.u32()?),
                7 | 15 | 21 => {
                    let (family, level, number) = (f.u32()?, f.u32()?, f.varint()?);
                    let (file_id, digest) = (f.u128()?, f.u128()?);
                    let mut n = [0u64; 8];
                    for slot in &mut n {
                        *slot = f.varint()?;
                    }
                    let [
                        size,
                        entries,
                        deletes,
                        min_seq,
                        max_seq,
                        raw_key_bytes,
                        raw_value_bytes,
                        soonest_expiry_ms,
                    ] = n;
                    let (smallest, largest) = (f.key()?, f.key()?);
                    let range_deletes = if tag == 7 { 0 } else { f.varint()? };
                    let references = match tag {
                        21 => decode_references(f.bytes()?),
                        _ => Some(References::default()),
                    };
                    let references = references.ok_or_else(|| bad_references(number))?;
                    if level as usize >= super::LEVELS {
                        return Err(Input::bad(&format!(
                            "table {number} is at level {level}, but the lowest level is {}",
                            super::LEVELS - 1
                        )));
                    }
                    e.add_tables.push(AddTable {
                        family,
                        level,
                        number,
                        meta: TableMeta {
                            file_id,
                            size,
                            digest,
                            entries,
                            deletes,
                            smallest,
                            largest,
                            min_seq,
                            max_seq,
                            raw_key_bytes,
                            raw_value_bytes,
                            soonest_expiry_ms,
                            range_deletes,
                            references,
                            shift: 0,
                        },
                        location: FileLocation::Local,
                    });
                    let meta = &e.add_tables[e.add_tables.len() - 1].meta;
                    if add_tag(meta) != tag {
                        return Err(Input::bad(&format!(
                            "table {number} is said to have range tombstones or references, and none"
                        )));
                    }
                }
                8 => e.remove_tables.push((f.u32()?, f.u32()?, f.varint()?)),
                9 => e.add_logs.push((f.varint()?, f.u128()?)),
                10 => e.remove_logs.push(f.varint()?),
                11 => e.end_logs.push((f.varint()?, f.varint()?)),
                13 => e.left_logs.push((f.varint()?, f.varint()?)),
                12 => e.next_family = Some(f.u32()?),
                14 => e.merge_operators.push((f.u32()?, f.text()?)),
                22 => {
                    let (number, shift) = (f.varint()?, f.varint()?);
                    if shift == 0 || shifts.insert(number, shift).is_some() {
                        return Err(Input::bad(&format!("table {number} is shifted by {shift}")));
                    }
                }
                23 => {
                    let (number, kind) = (f.varint()?, f.varint()?);
                    if locations
                        .insert(number, FileLocation::from_kind(number, kind)?)
                        .is_some()
                    {
                        return Err(Input::bad(&format!("file {number} has two locations")));
                    }
                }
                24 => e.pages.push((f.u32()?, f.varint()?)),
                25 => e.trees.push((f.u32()?, f.u32()?)),
                26 | 27 => flags::decode(&mut e, tag, &mut f)?,
                16..=20 => blobs::decode(&mut e, tag, &mut f)?,
                64 => e.wall_ms = Some(f.varint()?),
                65 => e.blob_times.push((f.varint()?, f.varint()?)),
                t if t >= 64 => continue,
                t => {
                    return Err(Error::unsupported(format!(
                        "the manifest holds a field with tag {t}, which a later version of Basalt wrote; open the store with that version"
                    )));
                }
            }
            f.end()?;
        }
        e.set_shifts(shifts)?;
        e.set_locations(locations)?;
        // The order is that of the encoding: tables with range tombstones, then tables with
        // references, come last.
        e.add_tables.sort_by_key(|t| add_tag(&t.meta));
        e.check_bounds()?;
        Ok(e)
    }

    /// Encodes what is in the pages of families.
    fn encode_pages(&self, o: &mut Vec<u8>) {
        for (id, seq) in &self.pages {
            field(o, 24, |b| {
                varint(b, u64::from(*id));
                varint(b, *seq);
            });
        }
        for (id, tree) in &self.trees {
            field(o, 25, |b| {
                varint(b, u64::from(*id));
                varint(b, u64::from(*tree));
            });
        }
    }

    /// Encodes the locations of added files that are outside the store's directory.
    fn encode_locations(&self, o: &mut Vec<u8>) {
        let tables = self.add_tables.iter().map(|t| (t.number, t.location));
        let blobs = self.add_blobs.iter().map(|b| (b.number, b.location));
        for (number, location) in tables.chain(blobs) {
            if let Some(kind) = location.kind() {
                field(o, 23, |b| {
                    varint(b, number);
                    varint(b, kind);
                });
            }
        }
    }

    /// Sets the shifts of prepared tables.
    ///
    /// Errors: `Corruption` for a shift that its table cannot have, or of a table that is not
    /// added.
    fn set_shifts(&mut self, mut shifts: BTreeMap<u64, SeqNo>) -> Result<()> {
        for t in &mut self.add_tables {
            let Some(shift) = shifts.remove(&t.number) else {
                continue;
            };
            if !t.meta.is_shiftable(shift) {
                let what = format!("table {} is shifted by {shift}, and cannot be", t.number);
                return Err(Input::bad(&what));
            }
            t.meta.shift = shift;
        }
        if let Some((number, _)) = shifts.first_key_value() {
            return Err(Input::bad(&format!(
                "table {number} is shifted and does not enter"
            )));
        }
        Ok(())
    }

    /// Sets the locations of added files.
    ///
    /// Errors: `Corruption` for the location of a file that is not added.
    fn set_locations(&mut self, mut locations: BTreeMap<u64, FileLocation>) -> Result<()> {
        for t in &mut self.add_tables {
            t.location = locations.remove(&t.number).unwrap_or_default();
        }
        for b in &mut self.add_blobs {
            b.location = locations.remove(&b.number).unwrap_or_default();
        }
        match locations.first_key_value() {
            None => Ok(()),
            Some((number, _)) => Err(Input::bad(&format!(
                "file {number} has a location and is not added"
            ))),
        }
    }

    /// Refuses numbers that no store reaches: counting on from them would overflow.
    fn check_bounds(&self) -> Result<()> {
        let most = |what: &str, n: Option<u64>, limit: u64| match n {
            Some(n) if n >= limit => Err(Input::bad(&format!("{what} is {n}"))),
            _ => Ok(()),
        };
        most("next file number", self.next_file, MAX_FILE_NUMBER)?;
        most("last sequence number", self.last_seq, SEQ_LIMIT)?;
        most(
            "last sequence number with a log",
            self.passive_from,
            SEQ_LIMIT,
        )?;
        most(
            "next family id",
            self.next_family.map(u64::from),
            u64::from(MAX_FAMILY) + 1,
        )?;
        let added = self.add_families.iter().map(|f| f.0);
        let family = added.chain(self.add_tables.iter().map(|t| t.family)).max();
        most("family id", family.map(u64::from), u64::from(MAX_FAMILY))?;
        most("wall time", self.wall_ms, MAX_QUANTITY)?;
        for (_, made_ms) in &self.blob_times {
            most("time of a blob file", Some(*made_ms), MAX_QUANTITY)?;
        }
        for (_, seq) in &self.pages {
            most("a sequence number of pages", Some(*seq), SEQ_LIMIT)?;
        }
        flags::check_bounds(&self.flush_flags)?;
        for (number, _) in &self.add_logs {
            most("number of a log", Some(*number), MAX_FILE_NUMBER)?;
        }
        for (_, end) in self.end_logs.iter().chain(&self.left_logs) {
            most("end of a log", Some(*end), MAX_QUANTITY)?;
        }
        for t in &self.add_tables {
            let m = &t.meta;
            most("number of a table", Some(t.number), MAX_FILE_NUMBER)?;
            most("a table's sequence number", Some(m.max_seq), SEQ_LIMIT)?;
            let quantities = [
                m.size,
                m.entries,
                m.deletes,
                m.raw_key_bytes,
                m.raw_value_bytes,
                m.range_deletes,
            ];
            let largest = quantities.into_iter().max();
            most("a table's size or count", largest, MAX_QUANTITY)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
