//! [`Outcome`]: the files and counts of a merge, and the check that it read every entry.

use crate::compaction::pick::Plan;
use basalt_blob::BlobMeta;
use basalt_blob::garbage::Dead;
use basalt_env::CacheKey;
use basalt_fs::{Error, Result};
use basalt_table::TableMeta;
use std::collections::BTreeMap;

/// The files and counts of a merge.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// New tables in key order: number and metadata. Their data is durable. Their names are not,
    /// until the caller syncs the directory.
    pub outputs: Vec<(u64, TableMeta)>,
    /// New blob files: number and metadata. They are as durable as the tables.
    pub blobs: Vec<(u64, BlobMeta)>,
    /// Blob records that lost their reference.
    pub dead: Vec<Dead>,
    /// One error for each blob file whose index could not be read. The places of its records in
    /// `dead` were derived from the records.
    pub unreadable_indexes: Vec<Error>,
    /// Bytes of relocated values, headers and keys included.
    pub moved: u64,
    /// Number of relocated values. Their old records are in `dead`.
    pub moved_records: u64,
    /// Old and new cache key of each relocated value that is in the cache.
    pub renamed: Vec<(CacheKey, CacheKey)>,
    /// Bytes of tables read. A table read in part counts in proportion to its entries.
    pub bytes_read: u64,
    /// Bytes of tables and blob files written.
    pub bytes_written: u64,
    /// Entries read.
    pub entries_in: u64,
    /// Entries written.
    pub entries_out: u64,
    /// Entries that the compaction filter removed or changed.
    pub filtered: u64,
    /// Expired values.
    pub expired: u64,
    /// Operands merged into a value or another operand.
    pub merged: u64,
    /// Keys whose operands the merge operator refused.
    pub refused: u64,
    /// Entries read of each input table, by its number.
    pub read: BTreeMap<u64, u64>,
}

/// Adds up the outcomes of a plan's key ranges, given in key order. Fails with `Corruption` if the
/// ranges together did not read every entry that the manifest records of the inputs. The caller
/// then removes the outputs.
pub fn combine(plan: &Plan, parts: Vec<Outcome>) -> Result<Outcome> {
    let mut all = Outcome::default();
    for part in parts {
        all.outputs.extend(part.outputs);
        all.blobs.extend(part.blobs);
        all.dead.extend(part.dead);
        all.unreadable_indexes.extend(part.unreadable_indexes);
        all.moved += part.moved;
        all.moved_records += part.moved_records;
        all.renamed.extend(part.renamed);
        all.bytes_read += part.bytes_read;
        all.bytes_written += part.bytes_written;
        all.entries_in += part.entries_in;
        all.entries_out += part.entries_out;
        all.merged += part.merged;
        all.refused += part.refused;
        all.filtered += part.filtered;
        all.expired += part.expired;
        for (table, seen) in part.read {
            *all.read.entry(table).or_default() += seen;
        }
    }
    check_all_read(plan, &all)?;
    Ok(all)
}

/// Checks that every entry of every input was read once. Fails with `Corruption` that names the
/// table.
pub(super) fn check_all_read(plan: &Plan, outcome: &Outcome) -> Result<()> {
    let mut expected = 0;
    for t in plan.input_tables() {
        let seen = outcome.read.get(&t.number).copied().unwrap_or(0);
        if seen != t.meta.entries {
            return Err(Error::corruption(
                &t.path(),
                0,
                format!(
                    "expected {} entries as the manifest records, a compaction read {seen}",
                    t.meta.entries
                ),
            ));
        }
        expected += seen;
    }
    assert_eq!(
        expected, outcome.entries_in,
        "entries merged are the entries read"
    );
    Ok(())
}
