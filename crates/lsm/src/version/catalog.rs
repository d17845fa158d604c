//! The catalog: the state that the manifest's edits add up to, as plain data.

mod blob_table;
mod blobs;
#[cfg(test)]
pub(crate) mod probe;

pub use blob_table::{BlobTable, BlobTotals, FamilyBlobs, disk_bytes};
pub use blobs::CatalogBlob;

use super::FileLocation;
use super::LEVELS;
use super::edit::{AddTable, Edit};
use super::engines::{self, EngineKind, PASSIVE, REFERENCES_IN_PAGES};
use super::file_map::FileMap;
use basalt_blob::BlobMeta;
use basalt_blob::lineage::Lineage;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::flush_flag::FlushFlag;
use basalt_kv::key::SeqNo;
pub use basalt_kv::limits::DEFAULT_FAMILY as DEFAULT;
use basalt_table::TableMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A log that may hold records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveLog {
    /// The log's id.
    pub file_id: u128,
    /// The position where the records end, once it is fixed; everything before it is synced.
    pub end: Option<u64>,
    /// The position where the records end although they are not known to be synced so far. A power
    /// cut may take them, and then everything in later logs with them.
    pub left: Option<u64>,
}

impl LiveLog {
    /// Returns a log that takes records.
    pub fn open(file_id: u128) -> LiveLog {
        LiveLog {
            file_id,
            end: None,
            left: None,
        }
    }
}

/// A family as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogFamily {
    /// The family's name.
    pub name: String,
    /// Name of the family's comparator.
    pub comparator: String,
    /// Name of the family's merge operator, if it ever had one.
    pub merge_operator: Option<String>,
    /// The highest sequence number in the family's pages; `None` if the family is kept in tables.
    pub pages: Option<SeqNo>,
    /// Number of the tree of pages, 0 at first. A repair writes another tree.
    pub tree: u32,
    /// Up to where the family is persisted, in a passive store.
    pub flush_flag: Option<FlushFlag>,
    /// The family's tables, by file number.
    pub tables: FileMap<CatalogTable>,
}

/// A table in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogTable {
    /// The level that the table is in.
    pub level: u32,
    /// The table's metadata.
    pub meta: Arc<TableMeta>,
    /// Location of the table's file.
    pub location: FileLocation,
}

impl CatalogTable {
    /// Returns a table whose file is in the store's directory.
    pub fn local(level: u32, meta: impl Into<Arc<TableMeta>>) -> CatalogTable {
        CatalogTable {
            level,
            meta: meta.into(),
            location: FileLocation::Local,
        }
    }
}

/// The state that the manifest records. A clone shares the entries of its files with the original
/// and costs about one reference count for each hundred files. An edit copies only the chunks that
/// it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The store's id.
    pub store_id: u128,
    /// Families by id.
    pub families: BTreeMap<u32, CatalogFamily>,
    /// The next family id.
    pub next_family: u32,
    /// Blob files by number.
    pub blobs: BlobTable,
    /// The targets of the numbers whose files garbage collection rewrote.
    pub lineage: Arc<Lineage>,
    /// Live logs by number.
    pub logs: BTreeMap<u64, LiveLog>,
    /// The next file number.
    pub next_file: u64,
    /// The highest sequence number in tables.
    pub last_seq: SeqNo,
    /// The highest wall time that the store has seen, ms since 1970.
    pub wall_ms: u64,
    /// The other engines of the store.
    pub engines: BTreeSet<EngineKind>,
    /// True if pages may have references to blob files. It stays true.
    pub has_references_in_pages: bool,
    /// True if the store is passive: it has no log, and its owner's log has what is not persisted.
    /// It stays true.
    pub passive: bool,
    /// The newest sequence number of the store when it became passive.
    pub passive_from: SeqNo,
    /// Notifies tests of copies and drops.
    #[cfg(test)]
    pub(crate) probe: probe::Probe,
}

/// Sequence numbers of a passive store that are for prepared tables. Items must get the same
/// sequence numbers in each replay, so prepared tables take theirs from a range of their own,
/// below.
const PREPARED_SEQS: u64 = 1 << 40;

/// The bound of sums over all files of a store: a few such sums still add up without overflow.
const MAX_TOTAL: u64 = 1 << 56;

/// Returns the sum, or `None` from [`MAX_TOTAL`] on.
fn add_up(mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
    numbers.try_fold(0u64, |sum, n| {
        sum.checked_add(n).filter(|sum| *sum < MAX_TOTAL)
    })
}

/// Returns the families of each flag, in the order of their ids.
pub(crate) fn group_flags(
    flags: impl Iterator<Item = (u32, FlushFlag)>,
) -> Vec<(FlushFlag, Vec<u32>)> {
    let mut groups: BTreeMap<(u64, u64, u64), Vec<u32>> = BTreeMap::new();
    for (id, flag) in flags {
        let key = (flag.tsn, flag.first_seq, flag.items());
        groups.entry(key).or_default().push(id);
    }
    let flag = |(tsn, first_seq, items)| FlushFlag::of(tsn, first_seq, items);
    (groups.into_iter().map(|(key, ids)| (flag(key), ids))).collect()
}

fn bad(what: String) -> Error {
    Error::new(ErrorKind::Corruption, what)
}

impl Catalog {
    /// Adds the features of an edit.
    ///
    /// Errors: `Unsupported` for features that this version does not know.
    pub(crate) fn apply_features(&mut self, edit: &Edit) -> Result<()> {
        // Unknown compatible features are ignored.
        let [_, read_compatible, incompatible] = edit.features.unwrap_or_default();
        let (engines, rest) = engines::of_bits(incompatible);
        match (rest & !(REFERENCES_IN_PAGES | PASSIVE)) | read_compatible {
            0 => {
                self.engines.extend(engines);
                self.has_references_in_pages |= rest & REFERENCES_IN_PAGES != 0;
                self.passive |= rest & PASSIVE != 0;
                Ok(())
            }
            unknown => Err(Error::unsupported(format!(
                "the store uses features {unknown:#x} that this version does not know; open it with the version that wrote it"
            ))),
        }
    }

    /// Returns the incompatible feature bits.
    fn incompatible_features(&self) -> u32 {
        let bit = |has: bool, bit| if has { bit } else { 0 };
        engines::to_bits(&self.engines)
            | bit(self.has_references_in_pages, REFERENCES_IN_PAGES)
            | bit(self.passive, PASSIVE)
    }

    /// Returns true if a blob file has values of a family in pages.
    fn has_values_of_pages(&self, blob: &BlobMeta) -> bool {
        let mut families = blob.families.keys();
        families.any(|id| (self.families.get(id)).is_some_and(|family| family.pages.is_some()))
    }

    /// Returns the features that an edit must have: all that are set behind it, if it sets one that
    /// was not set before. A blob file with values of a family in pages sets one.
    pub(crate) fn features_of(&self, edit: &Edit) -> Option<[u32; 3]> {
        let before = self.incompatible_features();
        let [_, _, asked] = edit.features.unwrap_or_default();
        let mut blobs = edit.add_blobs.iter();
        let of_pages = match blobs.any(|blob| self.has_values_of_pages(&blob.meta)) {
            true => REFERENCES_IN_PAGES,
            false => 0,
        };
        let after = before | asked | of_pages;
        (after != before).then_some([0, 0, after])
    }

    /// Notes whether a blob file has values of a family in pages, for a state that is about to be
    /// written whole.
    pub(crate) fn note_references_in_pages(&mut self) {
        let mut blobs = self.blobs.values();
        if blobs.any(|blob| self.has_values_of_pages(&blob.meta)) {
            self.has_references_in_pages = true;
        }
    }

    /// Applies an edit after checking that it fits. After an error the catalog may hold a part of
    /// the edit, and the caller drops the catalog.
    ///
    /// Errors: `Unsupported` for features that this version does not know; `Corruption` for an edit
    /// that does not fit the catalog.
    pub fn apply(&mut self, edit: &Edit) -> Result<()> {
        #[cfg(test)]
        probe::note("an edit is applied");
        self.apply_features(edit)?;
        self.apply_counters(edit)?;
        self.apply_families(edit)?;
        self.apply_flush_flags(edit)?;
        self.apply_tables(edit)?;
        self.apply_blobs(edit)?;
        self.apply_logs(edit)
    }

    /// Applies the store's id, the next numbers and the highest sequence number and time.
    fn apply_counters(&mut self, edit: &Edit) -> Result<()> {
        if let Some(id) = edit.store_id {
            self.store_id = id;
        }
        if let Some(n) = edit.next_file {
            if n < self.next_file {
                return Err(bad(format!(
                    "next file number goes back from {} to {n}",
                    self.next_file
                )));
            }
            self.next_file = n;
        }
        if let Some(n) = edit.last_seq {
            self.last_seq = self.last_seq.max(n);
        }
        if let Some(n) = edit.passive_from {
            if !self.passive {
                return Err(bad(format!(
                    "the edit says that the store is passive from sequence number {n} on, and the store is not passive"
                )));
            }
            self.passive_from = n;
        }
        if let Some(n) = edit.wall_ms {
            self.wall_ms = self.wall_ms.max(n);
        }
        if let Some(n) = edit.next_family {
            if n < self.next_family {
                return Err(bad(format!(
                    "next family id goes back from {} to {n}",
                    self.next_family
                )));
            }
            self.next_family = n;
        }
        Ok(())
    }

    /// Applies added families, their merge operators, and dropped families.
    fn apply_families(&mut self, edit: &Edit) -> Result<()> {
        for (id, name, comparator) in &edit.add_families {
            if self.families.values().any(|f| f.name == *name) || (*id == 0) != (name == DEFAULT) {
                return Err(bad(format!(
                    "the edit adds family {id} with the name {name:?}, which another family has"
                )));
            }
            let family = CatalogFamily {
                name: name.clone(),
                comparator: comparator.clone(),
                merge_operator: None,
                pages: None,
                tree: 0,
                flush_flag: None,
                tables: FileMap::default(),
            };
            if *id >= self.next_family || self.families.insert(*id, family).is_some() {
                return Err(bad(format!(
                    "the edit adds family {id} ({name:?}), which already exists or is not below the next family id, {}",
                    self.next_family
                )));
            }
        }
        for (id, name) in &edit.merge_operators {
            let known = self.families.get_mut(id);
            match known.map(|f| f.merge_operator.get_or_insert_with(|| name.clone())) {
                Some(operator) if operator == name => {}
                _ => {
                    return Err(bad(format!(
                        "the edit gives family {id} the merge operator {name:?}, but the family has another one or does not exist"
                    )));
                }
            }
        }
        for (id, seq) in &edit.pages {
            let Some(family) = self.families.get_mut(id).filter(|f| f.tables.is_empty()) else {
                return Err(bad(format!(
                    "the edit keeps family {id} in pages, but the family has tables or does not exist"
                )));
            };
            if let Some(before) = family.pages.replace(*seq).filter(|before| before > seq) {
                return Err(bad(format!(
                    "the pages of family {id} go back from sequence number {before} to {seq}"
                )));
            }
            self.last_seq = self.last_seq.max(*seq);
        }
        for (id, tree) in &edit.trees {
            let family = self.families.get_mut(id).filter(|f| f.pages.is_some());
            let Some(family) = family else {
                return Err(bad(format!(
                    "the edit names tree {tree} of family {id}, which is not kept in pages"
                )));
            };
            family.tree = *tree;
        }
        for id in &edit.drop_families {
            if *id == 0 || self.families.remove(id).is_none() {
                return Err(bad(format!(
                    "the edit drops family {id}, which does not exist or is the family {DEFAULT:?} of every store"
                )));
            }
        }
        Ok(())
    }

    /// Applies flush flags.
    fn apply_flush_flags(&mut self, edit: &Edit) -> Result<()> {
        let all =
            (edit.flush_flags.iter()).flat_map(|(flag, ids)| ids.iter().map(move |id| (flag, id)));
        for (flag, id) in all {
            let family = self.families.get_mut(id).filter(|_| self.passive);
            let Some(family) = family else {
                return Err(bad(format!(
                    "the edit has a flush flag of family {id}, but the family does not exist, or the store is not passive"
                )));
            };
            if let Some(before) = family.flush_flag.filter(|before| before.tsn > flag.tsn) {
                return Err(bad(format!(
                    "the flush flag of family {id} goes back from transaction {} to {}",
                    before.tsn, flag.tsn
                )));
            }
            family.flush_flag = Some(*flag);
        }
        Ok(())
    }

    /// Applies removed tables, then added tables: an edit may move a table to another level.
    fn apply_tables(&mut self, edit: &Edit) -> Result<()> {
        for (family, level, number) in &edit.remove_tables {
            match self
                .families
                .get_mut(family)
                .and_then(|f| f.tables.remove(number))
            {
                Some(table) if table.level == *level => {}
                _ => {
                    return Err(bad(format!(
                        "the edit removes table {number} from level {level} of family {family}, but that level does not have it"
                    )));
                }
            }
        }
        for t in &edit.add_tables {
            if let Some(other) = self.family_of(t.number) {
                return Err(bad(format!(
                    "the edit adds table {} to family {}, but family {other} has it already",
                    t.number, t.family
                )));
            }
            let Some(f) = self.families.get_mut(&t.family) else {
                return Err(bad(format!(
                    "the edit adds table {} to family {}, which does not exist",
                    t.number, t.family
                )));
            };
            if t.level as usize >= LEVELS {
                return Err(bad(format!(
                    "the edit adds table {} to level {}, but the lowest level is {}",
                    t.number,
                    t.level,
                    LEVELS - 1
                )));
            }
            if f.pages.is_some() {
                return Err(bad(format!(
                    "the edit adds table {} to family {}, which is kept in pages",
                    t.number, t.family
                )));
            }
            let table = CatalogTable {
                level: t.level,
                meta: Arc::new(t.meta.clone()),
                location: t.location,
            };
            f.tables.insert(t.number, table);
            self.last_seq = self.last_seq.max(t.meta.max_seq);
        }
        Ok(())
    }

    /// Applies added logs, the ends of logs, and removed logs.
    fn apply_logs(&mut self, edit: &Edit) -> Result<()> {
        for (number, file_id) in &edit.add_logs {
            if self.logs.insert(*number, LiveLog::open(*file_id)).is_some() {
                return Err(bad(format!(
                    "the edit adds log {number}, which already exists"
                )));
            }
        }
        for (number, end) in &edit.left_logs {
            match self.logs.get_mut(number) {
                Some(log) if log.left.or(log.end).is_none_or(|e| e == *end) => {
                    log.left = Some(*end);
                }
                _ => {
                    return Err(bad(format!(
                        "the edit leaves log {number} at offset {end}, but that log is not live or ends at another offset"
                    )));
                }
            }
        }
        for (number, end) in &edit.end_logs {
            match self.logs.get_mut(number) {
                Some(log) if log.end.or(log.left).is_none_or(|e| e == *end) => {
                    log.end = Some(*end);
                }
                _ => {
                    return Err(bad(format!(
                        "the edit ends log {number} at offset {end}, but that log is not live or ends at another offset"
                    )));
                }
            }
        }
        for number in &edit.remove_logs {
            if self.logs.remove(number).is_none() {
                return Err(bad(format!(
                    "the edit removes log {number}, which is not live"
                )));
            }
        }
        Ok(())
    }

    /// Checks that the manifest's numbers of all files add up to numbers that a store can have.
    /// `Corruption` names the sum that does not. Callers that read a manifest call this once, so
    /// that every later sum over tables or blob files stays far from overflow.
    pub fn check_totals(&self) -> Result<()> {
        let tables = || {
            self.families
                .values()
                .flat_map(|f| f.tables.values().map(|t| &t.meta))
        };
        let references = |m: &TableMeta| add_up(m.references.iter().map(|(_, n)| *n));
        let index = |b: &CatalogBlob| b.meta.index.map_or(0, |i| i.size);
        let sums = [
            ("sizes of tables", add_up(tables().map(|m| m.size))),
            ("entries of tables", add_up(tables().map(|m| m.entries))),
            ("deletes in tables", add_up(tables().map(|m| m.deletes))),
            (
                "range deletes in tables",
                add_up(tables().map(|m| m.range_deletes)),
            ),
            (
                "key bytes of tables",
                add_up(tables().map(|m| m.raw_key_bytes)),
            ),
            (
                "value bytes of tables",
                add_up(tables().map(|m| m.raw_value_bytes)),
            ),
            (
                "references in tables",
                add_up(tables().map(|m| references(m).unwrap_or(MAX_TOTAL))),
            ),
            (
                "sizes of blob files",
                add_up(self.blobs.values().map(|b| b.meta.size)),
            ),
            ("sizes of indexes", add_up(self.blobs.values().map(index))),
            // A family's bytes in a file are a part of the file's bytes.
            (
                "record bytes of blob files",
                add_up(self.blobs.values().map(|b| b.meta.data_end)),
            ),
            (
                "records of blob files",
                add_up(self.blobs.values().map(|b| b.meta.records)),
            ),
        ];
        for (what, sum) in sums {
            if sum.is_none() {
                return Err(bad(format!(
                    "the {what} add up to {MAX_TOTAL} or more, which no store has"
                )));
            }
        }
        Ok(())
    }

    /// Returns the family of a table. A table is never in two families: its file is removed when
    /// one of them removes it.
    pub fn family_of(&self, table: u64) -> Option<u32> {
        let mut families = self.families.iter();
        families
            .find(|(_, f)| f.tables.contains_key(&table))
            .map(|(id, _)| *id)
    }

    /// Returns the flush flag of each family that has one.
    pub(crate) fn flags(&self) -> BTreeMap<u32, FlushFlag> {
        let flags = self.families.iter();
        (flags.filter_map(|(id, f)| Some((*id, f.flush_flag?)))).collect()
    }

    /// Returns the sequence number of prepared tables that a passive store knows by file number
    /// `file`. No transaction and no other prepared table has the number.
    ///
    /// Errors: `Unsupported` if all numbers are used up.
    pub(crate) fn prepared_seq(&self, file: u64) -> Result<SeqNo> {
        match file < PREPARED_SEQS / 2 {
            true => Ok(self.passive_from + file),
            false => Err(Error::unsupported(format!(
                "the store has made {file} files, and a passive store prepares tables only up to file number {}: copy the data into a new store",
                PREPARED_SEQS / 2
            ))),
        }
    }

    /// Returns the flag of the family that is persisted least.
    pub(crate) fn least_flag(&self) -> Option<FlushFlag> {
        let flags = self.families.values().filter_map(|f| f.flush_flag);
        flags.min_by_key(|flag| flag.tsn)
    }

    /// Makes the store passive if it is not. All entries up to `last_seq` are persisted.
    pub(crate) fn make_passive(&mut self, last_seq: SeqNo) {
        if !self.passive {
            self.passive = true;
            self.passive_from = last_seq;
            let flag = FlushFlag::before_first(last_seq + PREPARED_SEQS);
            (self.families.values_mut()).for_each(|f| f.flush_flag = Some(flag));
        }
    }

    /// Checks that a passive store has the flag of each family, and that items have higher
    /// sequence numbers than prepared tables.
    pub(crate) fn check_flags(&self) -> Result<()> {
        let prepared = self.passive_from.saturating_add(PREPARED_SEQS / 2);
        let mut flags = self
            .families
            .values()
            .filter_map(|f| Some((&f.name, f.flush_flag?)));
        if let Some((name, flag)) = flags.find(|(_, flag)| flag.first_seq <= prepared) {
            return Err(bad(format!(
                "the flush flag of family {name:?} has sequence number {}, and numbers up to {prepared} are for prepared tables",
                flag.first_seq
            )));
        }
        let mut families = self.families.values().filter(|_| self.passive);
        match families.find(|f| f.flush_flag.is_none()) {
            None => Ok(()),
            Some(family) => Err(bad(format!(
                "the store is passive, and family {:?} has no flush flag",
                family.name
            ))),
        }
    }

    /// Returns the flush flags of all families, each with its families.
    fn flush_flags(&self) -> Vec<(FlushFlag, Vec<u32>)> {
        group_flags(self.flags().into_iter())
    }

    /// Returns the whole state as the first edit of a fresh manifest.
    pub fn to_edit(&self) -> Edit {
        #[cfg(test)]
        probe::note("the whole state is written");
        let mut edit = Edit {
            store_id: Some(self.store_id),
            features: Some([0, 0, self.incompatible_features()]),
            next_file: Some(self.next_file),
            last_seq: Some(self.last_seq),
            add_families: self
                .families
                .iter()
                .map(|(id, f)| (*id, f.name.clone(), f.comparator.clone()))
                .collect(),
            add_tables: self
                .families
                .iter()
                .flat_map(|(family, f)| {
                    f.tables.iter().map(|(number, table)| AddTable {
                        family: *family,
                        level: table.level,
                        number: *number,
                        meta: TableMeta::clone(&table.meta),
                        location: table.location,
                    })
                })
                .collect(),
            add_logs: self.logs.iter().map(|(n, l)| (*n, l.file_id)).collect(),
            end_logs: self
                .logs
                .iter()
                .filter_map(|(n, l)| l.end.map(|e| (*n, e)))
                .collect(),
            left_logs: self
                .logs
                .iter()
                .filter(|(_, l)| l.end.is_none())
                .filter_map(|(n, l)| l.left.map(|e| (*n, e)))
                .collect(),
            next_family: Some(self.next_family),
            merge_operators: self
                .families
                .iter()
                .filter_map(|(id, f)| Some((*id, f.merge_operator.clone()?)))
                .collect(),
            pages: (self.families.iter())
                .filter_map(|(id, f)| Some((*id, f.pages?)))
                .collect(),
            trees: (self.families.iter())
                .filter(|(_, f)| f.tree > 0)
                .map(|(id, f)| (*id, f.tree))
                .collect(),
            flush_flags: self.flush_flags(),
            passive_from: self.passive.then_some(self.passive_from),
            wall_ms: Some(self.wall_ms),
            ..Edit::default()
        };
        self.blobs_to_edit(&mut edit);
        edit
    }
}
