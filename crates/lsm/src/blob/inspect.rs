//! A blob file without the store that it is of: what it says of itself, and whether that is so.

use super::layout::{BLOB_MAGIC, HEADER_LEN, check_header};
use super::reader::{BlobReader, Layout, read_directory};
use super::{BlobMeta, builder, verify};
use basalt_env::Env;
use basalt_fs::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// What a blob file says of itself.
#[derive(Debug, Clone)]
pub struct BlobReport {
    /// As the manifest would remember it. Its digest is 0 unless all of it was read.
    pub meta: BlobMeta,
    /// How its index is laid out.
    pub layout: Layout,
    /// Sum of its records' hashes, modulo 2^64.
    pub hash_sum: u64,
}

/// Header, directory and footer. `Corruption` when they are damaged or not a blob file's.
pub fn explain(env: &Env, path: &Path) -> Result<BlobReport> {
    open(env, path).map(|(_, report)| report)
}

/// Every byte of a blob file: each record is read, verified and found again by the index. The first damage is the error. `progress` is told bytes as
/// they are read, twice as many as the file has.
pub fn verify(env: &Env, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<BlobReport> {
    let (reader, mut report) = open(env, path)?;
    verify::verify_records(&reader, path, &report.meta, progress)?;
    let file = env.fs().open(path)?;
    report.meta.digest = verify::digest(&*file, path, report.meta.size)?;
    progress(report.meta.size);
    Ok(report)
}

fn open(env: &Env, path: &Path) -> Result<(BlobReader, BlobReport)> {
    let file = env.fs().open(path)?;
    let size = env.fs().stat(path)?.len;
    let header = file.read(
        0,
        HEADER_LEN.min(usize::try_from(size).unwrap_or(HEADER_LEN)),
    )?;
    if !super::begins_one(&header) || header.len() < HEADER_LEN {
        let what = format!(
            "is no blob file: does not begin with {}",
            BLOB_MAGIC.escape_ascii()
        );
        return Err(Error::corruption(path, 0, what));
    }
    let id = u128::from_le_bytes(header[16..32].try_into().expect("16 bytes"));
    check_header(path, &BLOB_MAGIC, id, &header)?;
    let (_, directory) = read_directory(&*file, path, id, size)?;
    let hash_sum = directory.hash_sum;
    if directory.records_in != id {
        let what = "the directory is of another file's records".to_string();
        return Err(Error::corruption(path, 0, what));
    }
    let meta = builder::meta(directory, None, size, 0);
    let reader = BlobReader::open(env, Arc::new(file), path, &meta)?;
    let layout = reader.layout();
    let report = BlobReport {
        meta,
        layout,
        hash_sum,
    };
    Ok((reader, report))
}
