//! Sorted tables: immutable files of internal keys and values in checksummed blocks.
//!
//! Rooms: `format` (header, footer, trailers: the persisted numbers), `properties`, `block` (data blocks), `index`, `filter`,
//! `ranges` (range tombstones), `builder` (writes a file), `reader` (opens one, point lookups), `lookup` (many of them at once), `pins` (index and filter blocks at hand), `near` (those beside them), `source` (its file), `iter` (cursors and their read-ahead), `verify` (whole-table
//! walks), `salvage` (what a damaged one still holds), `resync` (where a
//! block may end). The format is specified in `docs/format/table.md`, the reasons are in `docs/decisions/0005-table-format.md`.
//!
//! Promises: a read returns what was added or an error; every block's checksum covers its kind, its file's id and its
//! offset; no bytes of a file make a reader panic, hang, or allocate beyond what the file holds plus 16 MiB.

mod block;
mod builder;
mod cursor;
mod filter;
pub(crate) mod format;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod index;
mod iter;
mod lookup;
mod neighbour_reads;
mod pinned_meta;
mod properties;
mod ranges;
mod reader;
mod resync;
pub mod salvage;
mod seek_prefetch;
mod source;
#[cfg(test)]
mod tests;
mod verify;

pub use builder::TableBuilder;
pub use cursor::InternalIter;
pub use iter::TableIter;
pub(crate) use lookup::{Lookup, Step, Wanted};
pub use properties::family_of;
pub(crate) use properties::{decode_references, encode_references};
pub use reader::{ReadBudget, TableReader};
pub(crate) use reader::{check_reach, hash_of, read_exact};
pub use seek_prefetch::{SeekBlock, SeekRead};
pub use source::Source;

use crate::codec::Compression;
use crate::key::{Cmp, MAX_SEQ, SEQ_SHIFT, SeqNo, internal_key, split_internal_key, trailer_seq};
use crate::limits::DEFAULT_FAMILY;
use crate::prefix::Prefixes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes at a table's end that say that it is one.
pub const END_LEN: usize = format::FOOTER_MAGIC.len();

/// True when a file's first bytes are those of a table.
pub fn begins_one(first: &[u8]) -> bool {
    first.starts_with(&format::HEADER_MAGIC)
}

/// True when a file's last [`END_LEN`] bytes are those of a table.
pub fn ends_one(last: &[u8]) -> bool {
    last == format::FOOTER_MAGIC
}

/// The family that a table belongs to, as the table itself says it: what `repair` has when no manifest can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFamily {
    /// Its id.
    pub id: u32,
    /// Its name, 1 to 255 bytes.
    pub name: Arc<str>,
}

impl Default for TableFamily {
    /// The family that every store has.
    fn default() -> TableFamily {
        TableFamily {
            id: 0,
            name: DEFAULT_FAMILY.into(),
        }
    }
}

/// How a table is built.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// Whose it is.
    pub family: TableFamily,
    /// The family's order.
    pub cmp: Cmp,
    /// Bytes of a data block before compression.
    pub block_bytes: usize,
    /// Filter bits a key; 0 for none.
    pub filter_bits_per_key: u32,
    /// Whose prefixes go into the filter beside the keys.
    pub prefix_extractor: Option<Prefixes>,
    /// Compression of data blocks.
    pub compression: Compression,
    /// Put filter pages, index partitions and data blocks into the cache as they are written.
    pub warm_cache: bool,
}

/// What the manifest remembers of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMeta {
    /// The random id in its header and in every checksum.
    pub file_id: u128,
    /// Bytes.
    pub size: u64,
    /// XXH3-128 of the whole file.
    pub digest: u128,
    /// Entries, range tombstones not among them.
    pub entries: u64,
    /// Entries that are tombstones.
    pub deletes: u64,
    /// First internal key, or where the first range tombstone begins.
    pub smallest: Vec<u8>,
    /// Last internal key, or where the last range tombstone ends; see [`TableMeta::end_is_open`].
    pub largest: Vec<u8>,
    /// Lowest sequence number.
    pub min_seq: SeqNo,
    /// Highest sequence number.
    pub max_seq: SeqNo,
    /// Bytes of user keys before compression.
    pub raw_key_bytes: u64,
    /// Bytes of values before compression.
    pub raw_value_bytes: u64,
    /// Soonest expiry of any entry, ms since 1970; `u64::MAX` when nothing expires.
    pub soonest_expiry_ms: u64,
    /// Range tombstones: disjoint ranges, times the tombstones of each.
    pub range_deletes: u64,
    /// How many entries refer to each blob file number, ascending.
    pub references: References,
    /// What its entries' sequence numbers are shown with more than they are stored with: a table that was prepared gets its place in history when
    /// it is added to the tree. `smallest` to `max_seq` are as they are shown. The file does not know of it. 0 for all others.
    pub shift: u64,
}

/// Blob file numbers, ascending, and how many references each has.
pub type References = Arc<[(u64, u64)]>;

/// Counts references, see [`TableMeta::references`].
#[derive(Debug, Default)]
pub(crate) struct ReferenceCounter {
    counts: BTreeMap<u64, u64>,
    /// The number counted last, and how often in a row: neighbours often lie in one file.
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
    /// Of a table without entries: what counting begins from.
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

    /// True for what [`TableMeta::shifted`] may have made, by so much.
    pub(crate) fn is_shiftable(&self, by: u64) -> bool {
        let seq = |key: &[u8]| trailer_seq(split_internal_key(key).1);
        let lowest = (self.min_seq)
            .min(seq(&self.smallest))
            .min(seq(&self.largest));
        self.shift == 0 && self.range_deletes == 0 && by <= lowest
    }

    /// The same table with sequence numbers that are so much higher. `None` when that is beyond the highest, and for one with range
    /// tombstones, whose numbers are not shifted.
    pub(crate) fn shifted(mut self, by: u64) -> Option<TableMeta> {
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

/// How a reader treats the cache and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// Blocks read go into the cache; sequential reads are read ahead in growing steps.
    Cached,
    /// Blocks found in the cache are used, blocks read are not kept; sequential reads are read ahead.
    Uncached,
    /// A compaction's pass over the whole table: large reads, nothing kept.
    Compaction,
}

/// Verification's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableVerified {
    /// Bytes read, which is the file's size.
    pub bytes: u64,
    /// Blocks checked.
    pub blocks: u64,
    /// Entries seen.
    pub entries: u64,
}
