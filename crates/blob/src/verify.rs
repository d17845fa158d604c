//! Verification of a whole blob file: every byte is digested, and every record is checked and found
//! again by the index.

use super::reader::BlobReader;
use super::{BlobMeta, FamilyShare};
use basalt_fs::{Error, File, Result};
use basalt_kv::codec::Compression;
use basalt_kv::key::MAX_SEQ;
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of one read.
const STEP: usize = 1 << 20;
/// Number of records that are looked up together.
const LOOKUPS: usize = 1 << 16;

/// Returns the digest of the first `len` bytes of a file.
pub fn digest(file: &dyn File, path: &Path, len: u64) -> Result<u128> {
    let mut digest = Xxh3Default::new();
    let mut at = 0;
    while at < len {
        let want = usize::try_from(len - at).unwrap_or(STEP).min(STEP);
        let piece = basalt_table::read_exact(file, path, at, want)?;
        digest.update(&piece);
        at += want as u64;
    }
    Ok(digest.digest128())
}

/// Reads every record of a blob file, and compares all of them with the manifest's entry.
pub fn verify(reader: &BlobReader, file: &dyn File, path: &Path, meta: &BlobMeta) -> Result<()> {
    let bad = |what: String| Error::corruption(path, 0, what);
    if meta.index.is_none() {
        let found = digest(file, path, meta.size)?;
        if found != meta.digest {
            return Err(bad(format!(
                "digest is {found:032x}, the manifest records {:032x}",
                meta.digest
            )));
        }
    }
    verify_records(reader, path, meta, &mut |_| ()).map(|_| ())
}

/// Verifies that the index leads from each hash to the record that has it, and empties the list.
/// Reads each page of the index at most once.
fn find_all(reader: &BlobReader, lookups: &mut Vec<(u64, u32)>) -> Result<()> {
    // Pages are ranges of hashes.
    lookups.sort_unstable();
    let mut page = None;
    for (hash, ordinal) in lookups.drain(..) {
        let n = reader.hash_page(hash);
        let bytes = match page.take() {
            Some((of, bytes)) if of == n => bytes,
            _ => reader.hash_page_bytes(n)?,
        };
        let (mut found, twins) = reader.candidates_in(&bytes, hash)?;
        if !twins.is_empty() {
            // A lookup takes the record that has the name. Of two records with one name, it finds
            // the same one each time.
            found = reader.found_by_name_of(ordinal)?;
        }
        if found != ordinal {
            return Err(reader.damaged(&format!(
                "the index leads to record {found} for the key of record {ordinal}"
            )));
        }
        page = Some((n, bytes));
    }
    Ok(())
}

/// Byte counts of the values in a blob file, expiries included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ValueBytes {
    /// Number of compressed values.
    pub compressed: u64,
    /// Stored bytes of all values.
    pub stored: u64,
    /// Bytes of all values after decompression.
    pub own: u64,
}

/// Does what [`verify`] does without the digest, and returns the byte counts of the values.
/// `progress` is called with the bytes of each read.
pub fn verify_records(
    reader: &BlobReader,
    path: &Path,
    meta: &BlobMeta,
    progress: &mut dyn FnMut(u64),
) -> Result<ValueBytes> {
    let bad = |what: String| Error::corruption(path, 0, what);
    // Records lie in the order of their keys, and the index is in the order of their hashes. One
    // lookup for each record would read a page from the device each time.
    let mut families: BTreeMap<u32, FamilyShare> = BTreeMap::new();
    let (mut sum, mut seqs) = (0u64, (MAX_SEQ, 0));
    let mut values = ValueBytes::default();
    let mut lookups = Vec::new();
    let mut before = |len: usize| {
        progress(len as u64);
        Ok(())
    };
    reader.walk(&|_| true, &mut before, &mut |ordinal, record| {
        let share = families.entry(record.family).or_default();
        share.records += 1;
        share.bytes += (super::record::HEADER_LEN + record.key.len() + record.value.len()) as u64;
        let payload = record.payload().map_err(|what| {
            let what = format!("blob record with a compressed value: {what}");
            Error::corruption(path, record.at, what)
        })?;
        values.compressed += u64::from(record.codec != Compression::None);
        values.stored += record.value.len() as u64;
        values.own += payload.len() as u64;
        seqs = (seqs.0.min(record.seq), seqs.1.max(record.seq));
        sum = sum.wrapping_add(record.name().hash(meta.file_id));
        lookups.push((reader.hash_of(&record.name()), ordinal));
        match lookups.len() < LOOKUPS {
            true => Ok(()),
            false => find_all(reader, &mut lookups),
        }
    })?;
    find_all(reader, &mut lookups)?;
    if families != meta.families || seqs != (meta.min_seq, meta.max_seq) {
        return Err(bad(format!(
            "its records are {families:?} of sequence numbers {seqs:?}, the manifest records {:?} of {:?}",
            meta.families,
            (meta.min_seq, meta.max_seq)
        )));
    }
    match sum == reader.hash_sum() {
        true => Ok(values),
        false => Err(bad(format!(
            "the hashes of its records add up to {sum:016x}, its directory says {:016x}",
            reader.hash_sum()
        ))),
    }
}
