//! Names of blob files, of logs, and of the indexes of logs.

use super::BlobMeta;

/// Returns the name of a blob file.
pub fn blob_name(number: u64) -> String {
    format!("{number:06}.blob")
}

/// Returns the name of a log's file.
pub fn log_name(number: u64) -> String {
    format!("{number:06}.log")
}

/// Returns the name of the file with a log's index.
pub fn index_name(number: u64) -> String {
    format!("{number:06}.index")
}

/// Returns the names of a blob file's files, the one with the records first.
pub fn blob_names(number: u64, meta: &BlobMeta) -> Vec<String> {
    match meta.index {
        None => vec![blob_name(number)],
        Some(index) => vec![log_name(number), index_name(index.number)],
    }
}
