//! Places of records in a blob file whose index cannot be read, found again from the records.
//!
//! An index holds nothing that the records do not say: a record's ordinal is its rank in the file,
//! and its checksum covers the file's random id and its place. The walk over the records is as long
//! as the file, so only callers that must go on without an index ask for it: a merge that drops
//! references (decision 0020). Readers of values report the damage instead.
//!
//! Promise: a place that is returned is the one that an intact index has for the record.

use super::BlobMeta;
use super::reader::BlobReader;
use super::reader::batch_read::RecordPlace;
use super::record::Name;
use super::salvage::salvage_known;
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_kv::key::SeqNo;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Returns true for an error after which the index may be derived: damage, or a device that cannot
/// read it.
pub fn is_worth_deriving(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Io)
}

/// Returns the places of the records of `names`, in this order. `reader` gives the pages of the
/// index that are still readable, if there are any. The function calls `go_on` at every record,
/// and ends with the error that `go_on` returns. It reads the whole file. It needs memory for the
/// places of `names` and for one read.
///
/// Errors: `Corruption` if a record is missing or its ordinal cannot be determined.
pub fn places_from_records(
    file: &dyn File,
    path: &Path,
    meta: &BlobMeta,
    reader: Option<&BlobReader>,
    names: &[Name<'_>],
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<RecordPlace>> {
    let mut wanted: HashMap<(u32, &[u8], SeqNo), usize> = HashMap::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        wanted.insert((name.family, name.key, name.seq), i);
    }
    let mut found: Vec<Option<(u32, Range<u64>)>> = vec![None; names.len()];
    let mut shares = BTreeMap::new();
    let (mut rank, mut shortest) = (0u32, u64::MAX);
    let walked = salvage_known(file, path, meta, &mut |record| {
        go_on()?;
        if !meta.families.contains_key(&record.family) {
            return Ok(());
        }
        let len = record.stored_len() as u64;
        let place = record.at..record.at + len;
        if let Some(i) = wanted.get(&(record.family, &record.key[..], record.seq)) {
            found[*i] = Some((rank, place));
        }
        let share: &mut super::FamilyShare = shares.entry(record.family).or_default();
        share.records += 1;
        share.bytes += len;
        shortest = shortest.min(len);
        rank += 1;
        Ok(())
    })?;
    let bad = |what: &str| Error::corruption(path, 0, what);
    let found: Option<Vec<RecordPlace>> = found.into_iter().collect();
    let found = found.ok_or_else(|| bad("a record that lost its reference is not there"))?;
    // The walk must have found all records that the manifest knows of, and no other: only then are
    // ranks ordinals. A log may have records of the same families that its index leaves out, and a
    // file may have lost some. If both sides have the same count and size, one of the lost records
    // is at least as long as the shortest that was found. So no record is lost if no gap between
    // records has room for it.
    let gap = walked.lost.iter().map(|gap| gap.end - gap.start).max();
    let whole = meta.index.is_none() || gap.is_none_or(|gap| gap < shortest);
    if shares == meta.families && whole {
        return Ok(found);
    }
    let reader = reader.ok_or_else(|| bad("neither its index nor its records are whole"))?;
    ordinals_by_place(reader, &found).or_else(|_| ordinals_by_hash(reader, names, found))
}

/// Returns the ordinals that the position pages have for these places.
fn ordinals_by_place(reader: &BlobReader, found: &[RecordPlace]) -> Result<Vec<RecordPlace>> {
    let starts = found.iter().enumerate();
    let starts: HashMap<u64, usize> = starts.map(|(i, (_, p))| (p.start, i)).collect();
    let (mut out, mut ordinal, mut met) = (found.to_vec(), 0u32, 0);
    reader.places(&mut |place| {
        if let Some(i) = starts.get(&place.start) {
            out[*i].0 = ordinal;
            met += 1;
        }
        ordinal += 1;
        Ok(())
    })?;
    match met == starts.len() && u64::from(ordinal) == reader.records() {
        true => Ok(out),
        false => Err(reader.damaged("its places are not those of its records")),
    }
}

/// Returns the ordinals that the hash pages have for these names.
fn ordinals_by_hash(
    reader: &BlobReader,
    names: &[Name<'_>],
    mut found: Vec<RecordPlace>,
) -> Result<Vec<RecordPlace>> {
    for (name, place) in names.iter().zip(&mut found) {
        place.0 = reader.ordinal(name)?;
    }
    Ok(found)
}
