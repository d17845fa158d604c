//! Inspects a blob file without its store: what the file says of itself, and whether that holds. A
//! log that is a blob file is named by its own path or by its index's; the other file is searched
//! beside it.

use super::layout::{BLOB_MAGIC, Directory, HEADER_LEN, INDEX_MAGIC, check_header, is_compressed};
use super::reader::{BlobReader, IndexLayout, read_directory};
use super::verify::ValueBytes;
use super::{BlobMeta, IndexFile, builder, verify};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_records::{FileKind, RecordReader};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The header and directory of a blob file, read without its store.
#[derive(Debug, Clone)]
pub struct BlobReport {
    /// The metadata that the manifest would have. The digest is 0 unless the whole file was read.
    pub meta: BlobMeta,
    /// The layout of the index.
    pub layout: IndexLayout,
    /// Sum of the records' hashes, modulo 2^64.
    pub hash_sum: u64,
    /// True if the header says that values may be compressed.
    pub compressed: bool,
    /// Byte counts of the values, if the whole file was read.
    pub values: Option<ValueBytes>,
}

/// Reads header, directory and footer. Returns `Corruption` if they are damaged or not those of a
/// blob file.
pub fn explain(env: &Env, path: &Path) -> Result<BlobReport> {
    open(env, path).map(|(_, report)| report)
}

/// Reads every byte of a blob file: each record is read, verified and found again by the index. The
/// first damage is the error. `progress` is called with the bytes of each read, which add up to
/// twice the file's size.
pub fn verify(env: &Env, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<BlobReport> {
    let (reader, mut report) = open(env, path)?;
    let values = verify::verify_records(&reader, path, &report.meta, progress)?;
    report.values = Some(values);
    if report.meta.index.is_none() {
        let file = env.fs().open(path)?;
        report.meta.digest = verify::digest(&*file, path, report.meta.size)?;
        progress(report.meta.size);
    }
    Ok(report)
}

fn open(env: &Env, path: &Path) -> Result<(BlobReader, BlobReport)> {
    let file = env.fs().open(path)?;
    let size = env.fs().stat(path)?.len;
    let header = file.read(
        0,
        HEADER_LEN.min(usize::try_from(size).unwrap_or(HEADER_LEN)),
    )?;
    if basalt_records::begins_one(&header) {
        let id = log_id(env, path)?;
        let index = index_of(env, path, id)?;
        return open_log(env, path, &index);
    }
    if super::begins_index(&header) {
        let directory = index_directory(env, path)?.1;
        let log = log_with(env, path, directory.records_in)?;
        return open_log(env, &log, path);
    }
    if !super::begins_one(&header) || header.len() < HEADER_LEN {
        let what = format!(
            "is not a blob file: it does not begin with {}",
            BLOB_MAGIC.escape_ascii()
        );
        return Err(Error::corruption(path, 0, what));
    }
    let id = u128::from_le_bytes(header[16..32].try_into().expect("16 bytes"));
    check_header(path, &BLOB_MAGIC, id, &header)?;
    let (_, directory) = read_directory(&*file, path, id, size)?;
    if directory.records_in != id {
        let what = "the directory is of another file's records".to_string();
        return Err(Error::corruption(path, 0, what));
    }
    check_count(path, &directory)?;
    let hash_sum = directory.hash_sum;
    let meta = builder::meta(directory, None, size, 0);
    let reader = BlobReader::open(env, Arc::new(file), path, &meta)?;
    Ok(with_report(reader, meta, hash_sum, is_compressed(&header)))
}

fn open_log(env: &Env, log: &Path, index: &Path) -> Result<(BlobReader, BlobReport)> {
    let (file_id, directory) = index_directory(env, index)?;
    check_count(index, &directory)?;
    let hash_sum = directory.hash_sum;
    let file = env.fs().open(index)?;
    let compressed = is_compressed(&basalt_table::read_exact(&*file, index, 0, HEADER_LEN)?);
    let size = env.fs().stat(index)?.len;
    let number = index.file_stem().and_then(|n| n.to_str()?.parse().ok());
    let index_file = IndexFile {
        number: number.unwrap_or(0),
        file_id,
        size,
        digest: verify::digest(&*file, index, size)?,
    };
    let mut meta = builder::meta(directory, Some(index_file), 0, 0);
    let records = env.fs().open(log)?;
    let reader = BlobReader::open_log(
        env,
        (Box::new(records), log),
        (Box::new(file), index),
        &meta,
    )?;
    meta.size = reader.blocks()?;
    Ok(with_report(reader, meta, hash_sum, compressed))
}

fn with_report(
    reader: BlobReader,
    meta: BlobMeta,
    hash_sum: u64,
    compressed: bool,
) -> (BlobReader, BlobReport) {
    let layout = reader.layout();
    let report = BlobReport {
        meta,
        layout,
        hash_sum,
        compressed,
        values: None,
    };
    (reader, report)
}

fn check_count(path: &Path, directory: &Directory) -> Result<()> {
    match (1..1 << 32).contains(&directory.records) {
        true => Ok(()),
        false => {
            let what = format!("a blob file of {} records", directory.records);
            Err(Error::corruption(path, 0, what))
        }
    }
}

/// Returns an index's own id and its directory.
fn index_directory(env: &Env, path: &Path) -> Result<(u128, Directory)> {
    let file = env.fs().open(path)?;
    let header = basalt_table::read_exact(&*file, path, 0, HEADER_LEN)?;
    let id = u128::from_le_bytes(header[16..32].try_into().expect("16 bytes"));
    check_header(path, &INDEX_MAGIC, id, &header)?;
    let size = env.fs().stat(path)?.len;
    Ok((id, read_directory(&*file, path, id, size)?.1))
}

fn log_id(env: &Env, path: &Path) -> Result<u128> {
    let reader = RecordReader::open(env.fs().open(path)?, path, FileKind::Log, None)?;
    match reader {
        Some(reader) => Ok(reader.header().file_id),
        None => Err(Error::corruption(path, 0, "a log without a header")),
    }
}

/// Returns the files beside `path` whose names end in `end`.
fn beside(env: &Env, path: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let all = env.fs().list(dir)?.into_iter();
    let named = all.filter(|e| !e.is_dir && e.name.ends_with(end));
    Ok(named.map(|e| dir.join(e.name)).collect())
}

/// Returns the ids of the logs that indexes in a directory name, and the offset where the indexed
/// records of each end. Only indexes with numbers from `from` on that are not `known` count: a log
/// was synced before its index was begun.
pub fn indexed_logs(
    env: &Env,
    dir: &Path,
    from: u64,
    known: &BTreeSet<u64>,
) -> Result<BTreeMap<u128, u64>> {
    let mut logs = BTreeMap::new();
    for path in beside(env, &dir.join("x"), ".index")? {
        let number = path.file_stem().and_then(|n| n.to_str()?.parse().ok());
        if number.is_none_or(|n: u64| n < from || known.contains(&n)) {
            continue;
        }
        match index_directory(env, &path) {
            Ok((_, d)) => {
                let end = logs.entry(d.records_in).or_insert(0);
                *end = d.data_end.max(*end);
            }
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(logs)
}

/// Returns the index of a log. Flushes that were tried again leave several; the one with the most
/// records is returned.
fn index_of(env: &Env, log: &Path, id: u128) -> Result<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    for path in beside(env, log, ".index")? {
        match index_directory(env, &path) {
            Ok((_, d)) if d.records_in == id => {
                if best
                    .as_ref()
                    .is_none_or(|(records, _)| d.records > *records)
                {
                    best = Some((d.records, path));
                }
            }
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Corruption => {}
            Err(e) => return Err(e),
        }
    }
    best.map(|(_, path)| path).ok_or_else(|| {
        let what = "is a log without an index of separated values beside it: none was flushed";
        Error::corruption(log, 0, what)
    })
}

/// Returns the log that has the records of an index.
fn log_with(env: &Env, index: &Path, id: u128) -> Result<PathBuf> {
    for path in beside(env, index, ".log")? {
        match log_id(env, &path) {
            Ok(found) if found == id => return Ok(path),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Corruption => {}
            Err(e) => return Err(e),
        }
    }
    let what = format!("is the index of a log with the id {id:032x}, which is not beside it");
    Err(Error::corruption(index, 0, what))
}
