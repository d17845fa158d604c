//! Sorted tables: immutable files of internal keys and values in checksummed blocks.
//!
//! A flush or compaction writes a table front to back ([`TableBuilder`]), and an engine reads it by
//! points and with cursors ([`TableReader`], [`TableIter`]). [`InternalIter`] is the cursor that
//! all sources of entries have in common. The framing of blocks ([`BlockHandle`], [`open_block`],
//! [`block_checksum`]) also serves the indexes of blob files.
//!
//! | module | what it has |
//! |---|---|
//! | `format` | header, footer, block trailers, filter pages: the persisted numbers |
//! | `exact_read`, `source` | reads of exact lengths; where the reader's file comes from |
//! | `block`, `index` | data blocks; index blocks |
//! | `ranges` | range tombstones |
//! | `properties` | what a table says of itself |
//! | `builder` | writes a file |
//! | `reader` | opens a file, point lookups; cursors, lookups of many keys, whole-table walks |
//! | `resync` | where a block may end |
//! | [`salvage`] | what a damaged table still holds |
//!
//! A module depends only on modules above it in this table, and on `basalt-kv`. The format is
//! specified in `docs/format/table.md`, the reasons are in `docs/decisions/0005-table-format.md`.
//!
//! Promises: a read returns what was added or an error; every block's checksum covers its kind, its
//! file's id and its offset; no bytes of a file make a reader panic, hang, or allocate beyond what
//! the file holds plus 16 MiB.

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

mod block;
mod builder;
mod exact_read;
mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod properties;
mod ranges;
mod reader;
mod resync;
pub mod salvage;
mod source;
#[cfg(test)]
mod tests;

pub use builder::TableBuilder;
pub use exact_read::{check_reach, read_exact};
pub use format::{
    BLOCK_TRAILER_LEN, BlockHandle, BlockKind, block_checksum, block_trailer, open_block,
};
pub use properties::{decode_references, encode_references, family_of};
pub use reader::{
    InternalIter, Lookup, LookupStep, ReadBudget, SeekBlock, SeekRead, TableIter, TableReader,
    Wanted, hash_of,
};
pub use source::FileSource;

use basalt_kv::codec::Compression;
use basalt_kv::flush_flag::FlushFlag;
use basalt_kv::key::{
    Cmp, MAX_SEQ, SEQ_SHIFT, SeqNo, internal_key, split_internal_key, trailer_seq,
};
use basalt_kv::limits::DEFAULT_FAMILY;
use basalt_kv::prefix::Prefixes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes at a file's end that identify it as a table.
pub const END_LEN: usize = format::FOOTER_MAGIC.len();

/// Returns true if a file's first bytes are those of a table.
pub fn begins_one(first: &[u8]) -> bool {
    first.starts_with(&format::HEADER_MAGIC)
}

/// Returns true if a file's last [`END_LEN`] bytes are those of a table.
pub fn ends_one(last: &[u8]) -> bool {
    last == format::FOOTER_MAGIC
}

/// The family that a table belongs to, as the table's properties say. `repair` uses it if it can
/// read no manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFamily {
    /// The family's id.
    pub id: u32,
    /// The family's name, 1 to 255 bytes.
    pub name: Arc<str>,
}

impl Default for TableFamily {
    /// Returns the family that every store has.
    fn default() -> TableFamily {
        TableFamily {
            id: 0,
            name: DEFAULT_FAMILY.into(),
        }
    }
}

/// The settings with which a table is built.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// The family that the table belongs to.
    pub family: TableFamily,
    /// The family's comparator.
    pub cmp: Cmp,
    /// Bytes of a data block before compression.
    pub block_bytes: usize,
    /// Filter bits a key; 0 for no filter.
    pub filter_bits_per_key: u32,
    /// The extractor of the prefixes that go into the filter beside the keys.
    pub prefix_extractor: Option<Prefixes>,
    /// Compression of data blocks.
    pub compression: Compression,
    /// If true, filter pages, index partitions and data blocks go into the cache as they are
    /// written.
    pub warm_cache: bool,
    /// In a passive store, up to where the family is persisted with this table. `repair` uses it if
    /// it cannot read the manifest.
    pub flush_flag: Option<FlushFlag>,
}

/// A table's metadata in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMeta {
    /// The random id in the table's header and in every checksum.
    pub file_id: u128,
    /// The range of bytes in the file.
    pub size: u64,
    /// XXH3-128 of the whole file.
    pub digest: u128,
    /// Returns the number of entries, without range tombstones.
    pub entries: u64,
    /// Number of entries that are tombstones.
    pub deletes: u64,
    /// First internal key, or the begin of the first range tombstone.
    pub smallest: Vec<u8>,
    /// Last internal key, or the end of the last range tombstone; see [`TableMeta::end_is_open`].
    pub largest: Vec<u8>,
    /// Lowest sequence number.
    pub min_seq: SeqNo,
    /// Highest sequence number.
    pub max_seq: SeqNo,
    /// Bytes of user keys before compression.
    pub raw_key_bytes: u64,
    /// Bytes of values before compression.
    pub raw_value_bytes: u64,
    /// Soonest expiry of any entry, ms since 1970; `u64::MAX` if no entry expires.
    pub soonest_expiry_ms: u64,
    /// Number of range tombstones: for each disjoint range, the tombstones that cover it.
    pub range_deletes: u64,
    /// Number of entries that refer to each blob file, by ascending file number.
    pub references: References,
    /// The number that is added to the stored sequence number of each entry; 0 for most tables.
    ///
    /// A table that was prepared beside the store gets its sequence numbers when it is added to the
    /// tree. `smallest` to `max_seq` include the shift. The file does not contain it.
    pub shift: u64,
}

/// Blob file numbers, ascending, each with its number of references.
pub type References = Arc<[(u64, u64)]>;

/// Counts references, see [`TableMeta::references`].
#[derive(Debug, Default)]
pub(crate) struct ReferenceCounter {
    counts: BTreeMap<u64, u64>,
    /// The number counted last, and its references in a row: neighbours often refer to one file.
    last: (u64, u64),
}

impl ReferenceCounter {
    pub(crate) fn add(&mut self, number: u64) {
        if number != self.last.0 {
            self.flush();
            self.last = (number, 0);
        }
        self.last.1 += 1;
    }

    fn flush(&mut self) {
        let (number, count) = std::mem::take(&mut self.last);
        if count > 0 {
            *self.counts.entry(number).or_default() += count;
        }
    }

    pub(crate) fn take(&mut self) -> References {
        self.flush();
        std::mem::take(&mut self.counts).into_iter().collect()
    }
}

impl TableMeta {
    /// Returns the metadata of a table without entries, from which counting begins.
    fn without_entries(file_id: u128, size: u64) -> TableMeta {
        TableMeta {
            file_id,
            size,
            digest: 0,
            entries: 0,
            deletes: 0,
            smallest: Vec::new(),
            largest: Vec::new(),
            min_seq: MAX_SEQ,
            max_seq: 0,
            raw_key_bytes: 0,
            raw_value_bytes: 0,
            soonest_expiry_ms: u64::MAX,
            range_deletes: 0,
            references: References::default(),
            shift: 0,
        }
    }

    /// Returns true if [`TableMeta::shifted`] may have made this metadata with the shift `by`.
    pub fn is_shiftable(&self, by: u64) -> bool {
        let seq = |key: &[u8]| trailer_seq(split_internal_key(key).1);
        let lowest = (self.min_seq)
            .min(seq(&self.smallest))
            .min(seq(&self.largest));
        self.shift == 0 && self.range_deletes == 0 && by <= lowest
    }

    /// Returns the metadata of the same table with sequence numbers that are higher by `by`.
    /// Returns `None` if that exceeds the highest number, and for a table with range tombstones,
    /// whose numbers are not shifted.
    pub fn shifted(mut self, by: u64) -> Option<TableMeta> {
        let highest = self.max_seq.checked_add(by)?;
        if highest > MAX_SEQ || (by > 0 && self.range_deletes > 0) {
            return None;
        }
        for key in [&mut self.smallest, &mut self.largest] {
            let (user, trailer) = split_internal_key(key);
            *key = internal_key(user, trailer + (by << SEQ_SHIFT));
        }
        self.min_seq += by;
        self.max_seq = highest;
        self.shift += by;
        Some(self)
    }
}

/// Settings of a reader: its use of the cache and of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// Blocks that are read go into the cache. Sequential reads are read ahead in growing steps.
    Cached,
    /// Blocks found in the cache are used, and blocks that are read are not kept. Sequential reads
    /// are read ahead.
    Uncached,
    /// A compaction's pass over the whole table: large reads, no block kept.
    Compaction,
}

/// Counts of a verification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableVerified {
    /// Bytes read, which is the file's size.
    pub bytes: u64,
    /// Blocks that were checked.
    pub blocks: u64,
    /// Entries that were checked.
    pub entries: u64,
}

/// LavaFS keeps the same contract as the simulated disk, and all of these tests.
#[cfg(test)]
#[test]
fn every_table_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_table_test_passes_on_lava", &["fuzzing::"]);
}
