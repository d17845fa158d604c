//! The choice of the blob files whose values a merge relocates: correlated compaction and garbage
//! collection (LavaStore 3.2.2, decision 0023).
//!
//! Values lie in the order in which they were written, so a scan reads each value by itself. A
//! merge has the keys in order, and can rewrite the values next to each other. That pays for files
//! whose values scans have read one by one so often that rewriting them would have been as cheap,
//! and for which the merge has most of the references. The old file is then nearly empty, or
//! removed.

use crate::version::TableFile;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A blob file whose values should be relocated.
#[derive(Debug, Clone)]
pub struct RelocationCandidates {
    /// The number of the file.
    pub number: u64,
    /// The file numbers in tables that mean this file: its own and retired ones.
    pub names: Vec<u64>,
    /// Number of records that tables refer to.
    pub records: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// The part of the file that is garbage, from 0 to 1.
    pub garbage: f64,
}

/// The candidates for relocation, and the space for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RelocationSet<'a> {
    /// The candidates.
    pub files: &'a [RelocationCandidates],
    /// All file numbers that mean one of the candidates.
    pub names: Option<&'a BTreeSet<u64>>,
    /// Bytes that may be written. Old and new values both take space for a while.
    pub room: u64,
}

impl RelocationSet<'_> {
    /// Returns true if the table refers to one of the candidates.
    pub fn concerns(&self, t: &TableFile) -> bool {
        let names = |names: &BTreeSet<u64>| {
            let mut references = t.meta.references.iter();
            references.any(|(n, _)| names.contains(n))
        };
        self.names.is_some_and(names)
    }

    /// Returns the candidates that a merge of these tables relocates. Files with the most garbage
    /// come first; among files with about as much, those whose references are in the fewest tables.
    pub fn files_of<'t>(&self, tables: impl Iterator<Item = &'t Arc<TableFile>>) -> BTreeSet<u64> {
        if self.files.is_empty() {
            return BTreeSet::new();
        }
        // Number of references and of tables by file number.
        let mut names: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for t in tables {
            for (name, references) in t.meta.references.iter() {
                let of = names.entry(*name).or_default();
                (of.0, of.1) = (of.0 + references, of.1 + 1);
            }
        }
        let mut covered: Vec<(&RelocationCandidates, u64)> = Vec::new();
        for f in self.files {
            let of = f.names.iter().filter_map(|n| names.get(n));
            let (references, tables) = of.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            if references > 0 && references * 2 >= f.records {
                covered.push((f, tables));
            }
        }
        covered.sort_by_key(|(f, tables)| (Reverse((f.garbage * 16.0) as u64), *tables, f.number));
        let (mut chosen, mut bytes) = (BTreeSet::new(), 0u64);
        for (f, _) in covered {
            if bytes.saturating_add(f.bytes) <= self.room {
                bytes += f.bytes;
                chosen.insert(f.number);
            }
        }
        chosen
    }
}
