//! The fields of an edit that concern blob files.

use super::{Edit, Input, MAX_FILE_NUMBER, MAX_QUANTITY, bytes, field, varint};
use crate::MAX_KEY_LEN;
use crate::version::FileLocation;
use basalt_blob::lineage::LineageGroup;
use basalt_blob::{BlobMeta, FamilyShare, IndexFile};
use basalt_fs::Result;
use basalt_kv::key::SEQ_LIMIT;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A blob file that the edit adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddBlob {
    /// File number.
    pub number: u64,
    /// The file's metadata.
    pub meta: Arc<BlobMeta>,
    /// Location of the file, and of its index if it is a log.
    pub location: FileLocation,
}

fn share(b: &mut Vec<u8>, id: u32, share: &FamilyShare) {
    varint(b, u64::from(id));
    varint(b, share.records);
    varint(b, share.bytes);
}

pub(super) fn encode(e: &Edit, o: &mut Vec<u8>) {
    for AddBlob { number, meta, .. } in &e.add_blobs {
        field(o, 16, |b| {
            varint(b, *number);
            b.extend_from_slice(&meta.file_id.to_le_bytes());
            b.extend_from_slice(&meta.digest.to_le_bytes());
            for n in [meta.data_end, meta.size, meta.min_seq, meta.max_seq] {
                varint(b, n);
            }
            varint(b, meta.families.len() as u64);
            for (id, of) in &meta.families {
                share(b, *id, of);
            }
            if let Some(index) = &meta.index {
                varint(b, index.number);
                b.extend_from_slice(&index.file_id.to_le_bytes());
                b.extend_from_slice(&index.digest.to_le_bytes());
                varint(b, index.size);
            }
        });
    }
    for number in &e.remove_blobs {
        field(o, 17, |b| varint(b, *number));
    }
    for (number, marks) in &e.mark_blobs {
        field(o, 18, |b| {
            varint(b, *number);
            bytes(b, marks);
        });
    }
    for (id, group) in &e.lineage {
        field(o, 19, |b| {
            varint(b, *id);
            varint(b, group.names.len() as u64);
            for name in &group.names {
                varint(b, *name);
            }
            varint(b, group.targets.len() as u64);
            for (family, targets) in &group.targets {
                varint(b, u64::from(*family));
                varint(b, targets.len() as u64);
                for (first, number) in targets {
                    bytes(b, first);
                    varint(b, *number);
                }
            }
        });
    }
    for name in &e.forget_names {
        field(o, 20, |b| varint(b, *name));
    }
}

/// Encodes the times of blob files. Ignorable fields come last.
pub(super) fn encode_times(e: &Edit, o: &mut Vec<u8>) {
    for (number, made_ms) in &e.blob_times {
        field(o, 65, |b| {
            varint(b, *number);
            varint(b, *made_ms);
        });
    }
}

impl Edit {
    /// Sets the time when the added blob files were made, ms since 1970.
    pub fn date_blobs(&mut self, now_ms: u64) {
        let times = self.add_blobs.iter().map(|b| (b.number, now_ms));
        self.blob_times = times.collect();
    }
}

/// Decodes the body of a field with one of the tags above.
pub(super) fn decode(e: &mut Edit, tag: u64, f: &mut Input<'_>) -> Result<()> {
    match tag {
        16 => e.add_blobs.push(added(f)?),
        17 => e.remove_blobs.push(f.varint()?),
        18 => e.mark_blobs.push((f.varint()?, f.bytes()?.to_vec())),
        19 => e.lineage.push((f.varint()?, group(f)?)),
        20 => e.forget_names.push(f.varint()?),
        tag => unreachable!("tag {tag} is not about blob files"),
    }
    Ok(())
}

fn below(what: &str, n: u64, limit: u64) -> Result<u64> {
    match n < limit {
        true => Ok(n),
        false => Err(Input::bad(&format!("{what} is {n}"))),
    }
}

fn added(f: &mut Input<'_>) -> Result<AddBlob> {
    let number = below("number of a blob file", f.varint()?, MAX_FILE_NUMBER)?;
    let (file_id, digest) = (f.u128()?, f.u128()?);
    let data_end = below("a blob file's size", f.varint()?, MAX_QUANTITY)?;
    let size = below("a blob file's size", f.varint()?, MAX_QUANTITY)?;
    let min_seq = f.varint()?;
    let max_seq = below("a blob file's sequence number", f.varint()?, SEQ_LIMIT)?;
    let mut families = BTreeMap::new();
    let mut all = FamilyShare::default();
    for _ in 0..f.varint()? {
        let id = f.u32()?;
        let of = FamilyShare {
            records: below("records of a blob file", f.varint()?, 1 << 32)?,
            bytes: below("bytes of a blob file", f.varint()?, MAX_QUANTITY)?,
        };
        // A sum past 64 bits is past the limits below, too.
        all.records = all.records.saturating_add(of.records);
        all.bytes = all.bytes.saturating_add(of.bytes);
        let last = families.last_key_value();
        if of.records == 0 || last.is_some_and(|(last, _)| *last >= id) {
            return Err(Input::bad(&format!(
                "family {id} of blob file {number} has no records in it, or is not above the family before it"
            )));
        }
        families.insert(id, of);
    }
    let index = match f.rest.is_empty() {
        true => None,
        false => Some(IndexFile {
            number: below("number of an index", f.varint()?, MAX_FILE_NUMBER)?,
            file_id: f.u128()?,
            digest: f.u128()?,
            size: below("size of an index", f.varint()?, MAX_QUANTITY)?,
        }),
    };
    let records = all.records;
    if !(1..1 << 32).contains(&records) || all.bytes > data_end || min_seq > max_seq {
        return Err(Input::bad(&format!(
            "blob file {number} has {records} records of {} bytes in {data_end} bytes of data, with sequence numbers from {min_seq} to {max_seq}: expected 1 to 2^32 - 1 records that fit, and ascending sequence numbers",
            all.bytes
        )));
    }
    let meta = BlobMeta {
        file_id,
        data_end,
        index,
        size,
        digest,
        records,
        families,
        min_seq,
        max_seq,
    };
    Ok(AddBlob {
        number,
        meta: Arc::new(meta),
        location: FileLocation::Local,
    })
}

fn group(f: &mut Input<'_>) -> Result<LineageGroup> {
    let mut group = LineageGroup::default();
    for _ in 0..f.varint()? {
        let name = below("name of a blob file", f.varint()?, MAX_FILE_NUMBER)?;
        group.names.push(name);
    }
    for _ in 0..f.varint()? {
        let family = f.u32()?;
        let mut targets = Vec::new();
        for _ in 0..f.varint()? {
            let first = f.bytes()?;
            below(
                "length of a key",
                first.len() as u64,
                MAX_KEY_LEN as u64 + 1,
            )?;
            let number = below("number of a blob file", f.varint()?, MAX_FILE_NUMBER)?;
            targets.push((Arc::from(first), number));
        }
        let last = group.targets.last_key_value();
        if targets.is_empty() || last.is_some_and(|(last, _)| *last >= family) {
            return Err(Input::bad(&format!(
                "the lineage of family {family} has no targets, or is not above the family before it"
            )));
        }
        group.targets.insert(family, targets);
    }
    Ok(group)
}
