//! Which values a merge moves besides their references: correlated compaction and collection (LavaStore 3.2.2, decision 0023).
//!
//! Values lie in the order in which they were written, so a scan reads each for itself. A merge has their keys in order, and can write them
//! again side by side. That is worth it for files whose values scans have read so often, one by one, that writing them anew would have been
//! as cheap, and for which the merge has most of the references: the old file is then nearly empty, or gone, and nobody's name.

use crate::version::TableFile;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A file whose values had better lie elsewhere.
#[derive(Debug, Clone)]
pub struct RelocationCandidates {
    /// Its number.
    pub number: u64,
    /// It, and what stands for it in tables.
    pub names: Vec<u64>,
    /// Records that tables refer to.
    pub records: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// The part of the file that is garbage.
    pub garbage: f64,
}

/// What a choice is made from.
#[derive(Debug, Clone, Copy, Default)]
pub struct RelocationSet<'a> {
    /// The files.
    pub files: &'a [RelocationCandidates],
    /// All names of theirs.
    pub names: Option<&'a BTreeSet<u64>>,
    /// Bytes that may be written: old and new are there together for a while.
    pub room: u64,
}

impl RelocationSet<'_> {
    /// True for a table that refers to one of the files.
    pub fn concerns(&self, t: &TableFile) -> bool {
        let names = |names: &BTreeSet<u64>| {
            let mut references = t.meta.references.iter();
            references.any(|(n, _)| names.contains(n))
        };
        self.names.is_some_and(names)
    }

    /// The files whose values go with a merge of these tables: those with the most garbage first, and of about as much those whose
    /// references are spread over the fewest tables.
    pub fn gathered<'t>(&self, tables: impl Iterator<Item = &'t Arc<TableFile>>) -> BTreeSet<u64> {
        if self.files.is_empty() {
            return BTreeSet::new();
        }
        // References and tables by name.
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
