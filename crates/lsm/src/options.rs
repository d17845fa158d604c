//! Settings: what a caller can choose, each with its unit, its default and what it costs.

use crate::listener::EventListener;
use basalt_fs::{Error, Result};
pub use basalt_kv::codec::Compression;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::merge::MergeOperator;
use basalt_kv::prefix::Prefixes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a store.
#[derive(Clone)]
pub struct Options {
    /// Make the store when there is none. Default true.
    pub create_if_missing: bool,
    /// Make it also in a folder that holds files which are no store's. Default false: such a folder is refused with
    /// `InvalidArgument`, and nothing is left in it. `lost+found` is nobody's file; an existing store may have any beside it.
    pub allow_nonempty_dir: bool,
    /// Fail with `AlreadyExists` when there is one. Default false.
    pub error_if_exists: bool,
    /// Settings of the family `default`, and of families not named in `families`.
    pub default_family: FamilyOptions,
    /// Settings of families by name.
    pub families: BTreeMap<String, FamilyOptions>,
    /// Memtable bytes of all families together at which they are sealed and flushed. Default 64 MiB.
    /// Larger: fewer, larger level-0 tables, more memory, longer recovery.
    pub write_buffer_bytes: u64,
    /// Sealed generations of memtables that may wait for their flush before writers are held. Default 3.
    pub max_sealed_memtables: usize,
    /// A store to which nothing was written for so long (up to twice that) writes its memtables out and deletes the logs kept
    /// for their space. Zero: never. Default one minute.
    pub idle_release: Duration,
    /// Bytes that blob files may take for each byte of theirs that can be reached, but for [`Options::space_slack`]: collections keep them below
    /// it, and writers are slowed where these cannot (stall cause `space`). At least 1.05. Default 1.25. Smaller: more is rewritten, see
    /// [`crate::db::BlobStats::collections_write_amp`] for how much at the moment.
    pub max_space_amp: f64,
    /// A name for metrics and messages. Default: the path.
    pub name: Option<String>,
    /// Told what the store does in the background, in the order given. Default none. See [`crate::listener`].
    pub listeners: Vec<Arc<dyn EventListener>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            allow_nonempty_dir: false,
            error_if_exists: false,
            default_family: FamilyOptions::default(),
            families: BTreeMap::new(),
            write_buffer_bytes: 64 << 20,
            max_sealed_memtables: 3,
            idle_release: Duration::from_secs(60),
            max_space_amp: 1.25,
            name: None,
            listeners: Vec::new(),
        }
    }
}

impl Options {
    /// The settings of a family.
    pub fn family(&self, name: &str) -> &FamilyOptions {
        self.families.get(name).unwrap_or(&self.default_family)
    }
    /// Checks that values are inside their documented ranges.
    pub fn validate(&self) -> Result<()> {
        if self.write_buffer_bytes < 4 << 10 {
            return Err(Error::invalid(format!(
                "write_buffer_bytes is {}, at least 4096 is needed",
                self.write_buffer_bytes
            )));
        }
        if self.max_sealed_memtables == 0 {
            return Err(Error::invalid(
                "max_sealed_memtables is 0, at least 1 is needed",
            ));
        }
        if !(1.05..=1000.0).contains(&self.max_space_amp) {
            return Err(Error::invalid(format!(
                "max_space_amp is {}, allowed are 1.05 to 1000",
                self.max_space_amp
            )));
        }
        self.default_family.validate("default")?;
        self.families
            .iter()
            .try_for_each(|(name, f)| f.validate(name))
    }
}

/// Settings of one column family.
#[derive(Clone)]
pub struct FamilyOptions {
    /// The order of keys. Fixed for the family's life; checked by name on open.
    pub comparator: Cmp,
    /// Bytes of a data block before compression. Default 4096. Larger: smaller index, more bytes a point read.
    pub block_bytes: usize,
    /// Filter bits a key; 0 builds none. Default 10, about 1 % false positives.
    pub filter_bits_per_key: u32,
    /// What of a key is its prefix. Tables then have prefixes in their filters as well, so that iterators over one prefix (see
    /// [`ReadOptions::prefix_same_as_start`], or bounds that leave one) pass over tables without it. Needs the bytewise order. May
    /// change from one opening to the next: tables made with another extractor serve such iterators as if they had no filter. Default
    /// none; costs filter bits for each distinct prefix of a table.
    pub prefix_extractor: Option<Prefixes>,
    /// Values from so many bytes on are kept in blob files, and tables have references to them: merges move references instead of values,
    /// and the space of dead values is collected apart from them. May change from one opening to the next; what was written stays where
    /// it is until a merge meets it. Needs an order in which equal keys are equal bytes. Default `None`: all values are in tables.
    pub min_blob_size: Option<usize>,
    /// Compression of values in blob files, each by itself. The thread that puts a value into a [`crate::WriteBatch`] compresses it, so that the log,
    /// which stays as the blob file, has it compressed, and collections move it as it is; whoever reads it from the device decompresses it, and
    /// memtables and the block cache hold it decompressed. A value of which this would not save an eighth stays as it is. What
    /// `min_blob_size` counts are a value's own bytes. May change from one opening to the next; what was written stays as it is until a
    /// merge or a flush writes it anew. Default `None`: as they are, which versions that do not know this option read, too.
    pub blob_compression: Compression,
    /// Compression of data blocks. Default `None`: as they are. That of the lowest level may be another, see `bottom_compression`.
    pub compression: Compression,
    /// Compression of the lowest level, where most data lives. Default the same as `compression`.
    pub bottom_compression: Option<Compression>,
    /// Bytes of a table at which a compaction starts the next one. Default 64 MiB.
    pub table_bytes: u64,
    /// Level-0 tables that start a compaction. Default 4.
    pub l0_compaction_trigger: usize,
    /// Level-0 tables from which writers are slowed, gradually more up to twice that number. Default 12.
    pub l0_slowdown: usize,
    /// Bytes that compactions owe (see `Stats::compaction_debt`) from which writers are slowed, gradually more up to twice that
    /// number, where they wait. Default 64 GiB.
    pub debt_slowdown_bytes: u64,
    /// Bytes of level 1 (or of the base level, which dynamic level sizes place). Default 256 MiB.
    pub base_level_bytes: u64,
    /// Each level is so many times larger than the one above. Default 10.
    pub level_multiplier: u32,
    /// Level 0 is merged before it has [`FamilyOptions::l0_compaction_trigger`] tables when nobody writes and readers have gone to the
    /// device for its tables in vain often enough to pay for it (Pebble's read compactions). Default true.
    pub l0_compaction_for_reads: bool,
    /// Called for every value that a compaction meets and no snapshot needs. Default none.
    pub compaction_filter: Option<Arc<dyn CompactionFilter>>,
    /// What operands do to values, see [`crate::WriteBatch::merge`]. A family that had none may get one whenever it is opened;
    /// from then on its name is checked. An operator that comes with the engine need not be given again. Default none.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
}

impl Default for FamilyOptions {
    fn default() -> FamilyOptions {
        FamilyOptions {
            comparator: Cmp::Bytewise,
            block_bytes: 4096,
            filter_bits_per_key: 10,
            prefix_extractor: None,
            min_blob_size: None,
            blob_compression: Compression::None,
            compression: Compression::None,
            bottom_compression: None,
            table_bytes: 64 << 20,
            l0_compaction_trigger: 4,
            l0_slowdown: 12,
            debt_slowdown_bytes: 64 << 30,
            base_level_bytes: 256 << 20,
            level_multiplier: 10,
            l0_compaction_for_reads: true,
            compaction_filter: None,
            merge_operator: None,
        }
    }
}

impl FamilyOptions {
    /// Checks that values are inside their documented ranges.
    pub fn validate(&self, family: &str) -> Result<()> {
        let bad = |what: String| Err(Error::invalid(format!("family {family:?}: {what}")));
        if !(64..=1 << 20).contains(&self.block_bytes) {
            return bad(format!(
                "block_bytes is {}, allowed are 64 to 1048576",
                self.block_bytes
            ));
        }
        if self.filter_bits_per_key > 64 {
            return bad(format!(
                "filter_bits_per_key is {}, allowed are 0 to 64",
                self.filter_bits_per_key
            ));
        }
        if let Some(prefixes) = &self.prefix_extractor {
            if let Err(what) = prefixes.check() {
                return bad(what);
            }
            if let Cmp::Custom(order) = &self.comparator {
                return bad(format!(
                    "prefix_extractor {:?} needs the bytewise order, and the comparator is {:?}",
                    prefixes.name(),
                    order.name()
                ));
            }
        }
        if self.min_blob_size.is_some() && !self.comparator.equality_is_bytewise() {
            return bad(format!(
                "min_blob_size needs an order in which equal keys are equal bytes, and comparator {:?} does not say that it is one",
                self.comparator.name()
            ));
        }
        if self.table_bytes < 1024 {
            return bad(format!(
                "table_bytes is {}, at least 1024 is needed",
                self.table_bytes
            ));
        }
        if self.l0_compaction_trigger == 0 || self.l0_slowdown < self.l0_compaction_trigger {
            return bad(format!(
                "l0_compaction_trigger is {} and l0_slowdown {}: the first must be at least 1 and not above the second",
                self.l0_compaction_trigger, self.l0_slowdown
            ));
        }
        if self.debt_slowdown_bytes == 0 {
            return bad("debt_slowdown_bytes is 0, at least 1 is needed".to_string());
        }
        if self.level_multiplier < 2 {
            return bad(format!(
                "level_multiplier is {}, at least 2 is needed",
                self.level_multiplier
            ));
        }
        if self.base_level_bytes < 1024 {
            return bad(format!(
                "base_level_bytes is {}, at least 1024 is needed",
                self.base_level_bytes
            ));
        }
        Ok(())
    }
}

/// What a compaction filter is told besides key and value.
#[derive(Debug, Clone, Copy)]
pub struct FilterContext<'a> {
    /// The family's name.
    pub family: &'a str,
    /// The level that the entry is being written to.
    pub level: usize,
    /// The entry's sequence number.
    pub seq: SeqNo,
    /// Wall time in ms since 1970, fixed for the whole compaction.
    pub now_ms: u64,
}

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterDecision {
    /// It stays.
    Keep,
    /// It is deleted, older versions with it.
    Remove,
    /// Its value is replaced.
    Change(Vec<u8>),
}

/// What becomes of an entry whose key decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDecision {
    /// It stays.
    Keep,
    /// It is deleted, older versions with it.
    Remove,
}

/// User code that sees every live value a compaction meets, unless a snapshot still needs it, and may drop or change it.
/// It must answer the same for the same entry at the same or a later time: an entry may be met many times or never.
pub trait CompactionFilter: Send + Sync {
    /// For messages.
    fn name(&self) -> &str;
    /// The decision by the key alone, where that is enough: a value in a blob file is not read then. `None`: the value decides. Asked
    /// for values in blob files only, and not for its own sake: [`CompactionFilter::filter`] must come to the same.
    fn filter_key(&self, context: &FilterContext<'_>, key: &[u8]) -> Option<KeyDecision> {
        let _ = (context, key);
        None
    }
    /// The decision.
    fn filter(&self, context: &FilterContext<'_>, key: &[u8], value: &[u8]) -> FilterDecision;
}

/// Settings of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Acknowledge only when the batch survives a power cut. Without it the batch survives the death of the process.
    /// Default false.
    pub sync: bool,
}

impl WriteOptions {
    /// Durable when acknowledged.
    pub const SYNC: WriteOptions = WriteOptions { sync: true };
    /// Durable some time later.
    pub const UNSYNCED: WriteOptions = WriteOptions { sync: false };
}

/// Settings of a read.
#[derive(Clone)]
pub struct ReadOptions {
    /// Read as of this snapshot; `None` reads the newest.
    pub snapshot: Option<basalt_kv::snapshot::Snapshot>,
    /// First user key an iterator may show, inclusive.
    pub lower_bound: Option<Vec<u8>>,
    /// First user key an iterator may not show any more.
    pub upper_bound: Option<Vec<u8>>,
    /// Show only keys that have the same prefix as the key that the iterator was last sought with; it is not valid beyond them, in
    /// both directions. A seek passes over tables and levels whose filters deny the prefix. Where the seek has no key (to the first,
    /// to the last), the prefix is that of the key it lands on; a seek key without a prefix bounds nothing. Needs
    /// [`FamilyOptions::prefix_extractor`]. Default false: all keys, in order, whatever the extractor.
    pub prefix_same_as_start: bool,
    /// Make a cursor that follows the store, see [`crate::db::Iter`]. Not with a snapshot. Default false.
    pub tailing: bool,
    /// Show keys, and no values: those in blob files are not read. Asking such an iterator for a value is a mistake of the caller's, and
    /// panics. Default false.
    pub keys_only: bool,
    /// Put what is read into the cache. Default true; scans over everything do better without. Values that an iterator reads ahead out of blob
    /// files stay out in any case once it has read as many as would fill a quarter of it since its last seek. With false, it also does not count as a scan whose
    /// like will come again, and which values are moved together for.
    pub fill_cache: bool,
    /// How many entries that are not shown (tombstones, older versions, values whose time is over; each 4 KiB of such a value counts
    /// as one more) an iterator passes over in its life. Then it pauses, and its `resume_key` says where another goes on. Default
    /// `u64::MAX`, which never pauses; at least 1. For readers that must not be held up by a long run of deleted keys.
    pub max_skippable_entries: u64,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            snapshot: None,
            lower_bound: None,
            upper_bound: None,
            prefix_same_as_start: false,
            tailing: false,
            keys_only: false,
            fill_cache: true,
            max_skippable_entries: u64::MAX,
        }
    }
}
