//! Settings: all that a caller can choose, each with its unit, its default and its cost.

mod limits;
mod passive;
mod setters;

use limits::within;
pub use passive::{LogMode, OwnerLog, PassiveOptions};
pub(crate) use setters::setters;

use crate::listener::EventListener;
use basalt_fs::{Error, Result};
pub use basalt_kv::codec::Compression;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::merge::MergeOperator;
use basalt_kv::prefix::Prefixes;
pub use basalt_kv::write_options::{Durability, WriteOptions};
pub use basalt_tree::TreeOptions;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Create the store if there is none. Default `true`.
    pub create_if_missing: bool,
    /// Create the store also in a directory that holds files of no store. Default `false`: such a
    /// directory is refused with `InvalidArgument`, and no file is left in it. `lost+found` does
    /// not count. An existing store may have any files beside it.
    pub allow_nonempty_dir: bool,
    /// Fail with `AlreadyExists` if there is a store. Default `false`.
    pub error_if_exists: bool,
    /// Whether the store keeps a log of its own, or relies on that of its owner. Default
    /// [`LogMode::Own`].
    pub log: LogMode,
    /// Settings of the family `default`, and of families not named in `families`.
    pub default_family: FamilyOptions,
    /// Settings of families by name.
    pub families: BTreeMap<String, FamilyOptions>,
    /// Bytes of all families' memtables together at which they are sealed and flushed, 4 KiB to 1
    /// TiB. Default 64 MiB. A larger value means fewer and larger level-0 tables, more memory and a
    /// longer recovery.
    pub write_buffer_bytes: u64,
    /// Number of sealed memtable sets that may wait for their flush before writers are held, 1
    /// to 65,536. Default 3.
    pub max_sealed_memtables: usize,
    /// Time without writes after which a store flushes its memtables and deletes the logs kept for
    /// their space. The real time is up to twice as long. Zero turns this off. At most a hundred
    /// years. Default one minute.
    pub idle_release: Duration,
    /// Bytes that blob files may take for each reachable byte in them, apart from
    /// [`Options::space_slack`]. Garbage collection keeps blob files below this bound. If garbage
    /// collection cannot, writers are slowed (stall cause `space`). 1.05 to 1000. Default 1.25. A
    /// smaller bound means more rewriting; see [`crate::db::BlobStats::collections_write_amp`] for
    /// the present amount.
    pub max_space_amp: f64,
    /// Name of the store in metrics and messages. Default: the path.
    pub name: Option<String>,
    /// Listeners that receive the events of background work, in the order given. Default none. See
    /// [`crate::listener`].
    pub listeners: Vec<Arc<dyn EventListener>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create_if_missing: true,
            allow_nonempty_dir: false,
            error_if_exists: false,
            log: LogMode::Own,
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

setters! { Options {
    create_if_missing: bool,
    allow_nonempty_dir: bool,
    error_if_exists: bool,
    log: LogMode,
    default_family: FamilyOptions,
    families: BTreeMap<String, FamilyOptions>,
    write_buffer_bytes: u64,
    max_sealed_memtables: usize,
    idle_release: Duration,
    max_space_amp: f64,
    name: Option<String>,
    listeners: Vec<Arc<dyn EventListener>>,
} }

impl Options {
    /// Returns the settings of a family.
    pub fn family(&self, name: &str) -> &FamilyOptions {
        self.families.get(name).unwrap_or(&self.default_family)
    }
    /// Checks that values are inside their documented ranges. The error names the option, its value
    /// and its range.
    pub fn validate(&self) -> Result<()> {
        within(
            "write_buffer_bytes",
            self.write_buffer_bytes,
            limits::WRITE_BUFFER_BYTES,
        )?;
        within(
            "max_sealed_memtables",
            self.max_sealed_memtables,
            limits::SEALED_MEMTABLES,
        )?;
        within("max_space_amp", self.max_space_amp, limits::SPACE_AMP)?;
        within(
            "seconds of idle_release",
            self.idle_release.as_secs(),
            limits::IDLE_RELEASE_SECONDS,
        )?;
        if let LogMode::Passive(passive) = &self.log {
            passive.validate()?;
        }
        self.default_family.validate("default")?;
        self.families
            .iter()
            .try_for_each(|(name, f)| f.validate(name))
    }
}

/// Settings of one column family.
#[derive(Clone)]
#[non_exhaustive]
pub struct FamilyOptions {
    /// Order of the keys. Fixed for the life of the family, and checked by name when the store is
    /// opened.
    pub comparator: Cmp,
    /// Bytes of a data block before compression, 64 to 1048576. Default 4096. A larger block means
    /// a smaller index and more bytes for each point read.
    pub block_bytes: usize,
    /// Filter bits for each key, 0 to 64; 0 builds no filter. Default 10, about 1 % false
    /// positives.
    pub filter_bits_per_key: u32,
    /// Extracts the prefix of a key. With an extractor, the filters of tables also hold prefixes.
    /// So iterators over one prefix (see [`ReadOptions::prefix_same_as_start`], or bounds that
    /// leave one prefix) skip tables without that prefix.
    ///
    /// Requires the bytewise order. The extractor may change from one opening to the next. Tables
    /// made with another extractor serve such iterators as if they had no filter. Default none. The
    /// cost is filter bits for each distinct prefix of a table.
    pub prefix_extractor: Option<Prefixes>,
    /// Bytes of a value from which it is kept in a blob file, and tables hold a reference to it.
    /// Merges then move references instead of values, and garbage collection frees the space of
    /// dead values apart from merges.
    ///
    /// The setting may change from one opening to the next; values already written stay where they
    /// are until a merge meets them. Needs an order in which equal keys are equal bytes. Default
    /// `None`: all values are in tables.
    pub min_blob_size: Option<usize>,
    /// Compression of values in blob files, each value by itself. The thread that puts a value into
    /// a [`crate::WriteBatch`] compresses it. So the log, which becomes the blob file, holds the
    /// compressed value, and garbage collection moves it as it is. A reader decompresses the value
    /// when it reads it from the device. Memtables and the block cache hold values decompressed.
    ///
    /// A value stays uncompressed if compression would save less than an eighth. `min_blob_size`
    /// counts uncompressed bytes. The setting may change from one opening to the next; values
    /// already written stay as they are until a merge or a flush writes them again. Default `None`:
    /// uncompressed, which versions without this option read, too.
    pub blob_compression: Compression,
    /// Compression of data blocks. Default `None`: uncompressed. `bottom_compression` may set
    /// another compression for the lowest level.
    pub compression: Compression,
    /// Compression of data blocks in the lowest level, which holds most data. Default: the same as
    /// `compression`.
    pub bottom_compression: Option<Compression>,
    /// Bytes of a table at which a compaction starts the next table, 1 KiB to 1 TiB. Default 64
    /// MiB.
    pub table_bytes: u64,
    /// Number of level-0 tables that starts a compaction, 1 to 1,048,576. Default 4.
    pub l0_compaction_trigger: usize,
    /// Number of level-0 tables from which writers are slowed, gradually more up to twice that
    /// number. At least `l0_compaction_trigger`, at most 1,048,576. Default 12.
    pub l0_slowdown: usize,
    /// Bytes of compaction debt (see `Stats::compaction_debt`) from which writers are slowed. The
    /// delay grows up to twice that number, where writers wait. At least 1. Default 64 GiB.
    pub debt_slowdown_bytes: u64,
    /// Target bytes of level 1, or of the base level, which dynamic level sizes place. 1 KiB to 1
    /// PiB. Default 256 MiB.
    pub base_level_bytes: u64,
    /// Factor by which each level is larger than the level above, 2 to 65,536. Default 10.
    pub level_multiplier: u32,
    /// Compact level 0 for reads, before it has [`FamilyOptions::l0_compaction_trigger`] tables
    /// (Pebble's read compactions). Such a compaction starts when there are no writes, and enough
    /// reads of level-0 tables on the device were in vain to pay for it. Default `true`. For
    /// families in pages, the store merges the pages of a leaf when device reads of its delta pages
    /// have cost as much, also beside writes.
    pub l0_compaction_for_reads: bool,
    /// Filter that is called for every value that a compaction meets and no snapshot needs. Default
    /// none.
    pub compaction_filter: Option<Arc<dyn CompactionFilter>>,
    /// Operator that applies operands to values, see [`crate::WriteBatch::merge`]. A family without
    /// an operator may get one at any opening; its name is checked from then on. Operators that
    /// come with the engine need not be given again. Default none.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Settings of the family's pages, if it is to be kept in a tree of pages instead of levels of
    /// tables (ArkDB). The choice is made when the family is created, and stays. A family that was
    /// made with pages has them also if `None` is given, with default settings. Default `None`:
    /// levels.
    ///
    /// Pages need the bytewise order. Values of `min_blob_size` and more go to blob files, except
    /// those in lists of operands (decision 0046). Options about tables and levels have no effect
    /// on such a family. `docs/tree.md` says when to choose which.
    pub pages: Option<TreeOptions>,
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
            pages: None,
        }
    }
}

setters! { FamilyOptions {
    comparator: Cmp,
    block_bytes: usize,
    filter_bits_per_key: u32,
    prefix_extractor: Option<Prefixes>,
    min_blob_size: Option<usize>,
    blob_compression: Compression,
    compression: Compression,
    bottom_compression: Option<Compression>,
    table_bytes: u64,
    l0_compaction_trigger: usize,
    l0_slowdown: usize,
    debt_slowdown_bytes: u64,
    base_level_bytes: u64,
    level_multiplier: u32,
    l0_compaction_for_reads: bool,
    compaction_filter: Option<Arc<dyn CompactionFilter>>,
    merge_operator: Option<Arc<dyn MergeOperator>>,
    pages: Option<TreeOptions>,
} }

impl FamilyOptions {
    /// Checks that values are inside their documented ranges, and that they fit each other. The
    /// error names the family, the option, its value and its range.
    pub fn validate(&self, family: &str) -> Result<()> {
        self.check_limits()
            .and_then(|()| self.check_order())
            .and_then(|()| self.check_pages())
            .map_err(|e| e.context(format!("family {family:?}")))
    }

    /// Checks each number.
    fn check_limits(&self) -> Result<()> {
        within("block_bytes", self.block_bytes, limits::BLOCK_BYTES)?;
        within(
            "filter_bits_per_key",
            self.filter_bits_per_key,
            limits::FILTER_BITS_PER_KEY,
        )?;
        within("table_bytes", self.table_bytes, limits::TABLE_BYTES)?;
        within(
            "l0_compaction_trigger",
            self.l0_compaction_trigger,
            limits::L0_TABLES,
        )?;
        within("l0_slowdown", self.l0_slowdown, limits::L0_TABLES)?;
        if self.l0_slowdown < self.l0_compaction_trigger {
            return Err(Error::invalid(format!(
                "l0_slowdown is {}: it must not be below l0_compaction_trigger, which is {}",
                self.l0_slowdown, self.l0_compaction_trigger
            )));
        }
        within(
            "debt_slowdown_bytes",
            self.debt_slowdown_bytes,
            limits::DEBT_BYTES,
        )?;
        within(
            "base_level_bytes",
            self.base_level_bytes,
            limits::LEVEL_BYTES,
        )?;
        within(
            "level_multiplier",
            self.level_multiplier,
            limits::LEVEL_MULTIPLIER,
        )
    }

    /// Checks the options of a family that is to be kept in pages.
    fn check_pages(&self) -> Result<()> {
        let Some(pages) = &self.pages else {
            return Ok(());
        };
        pages.validate()?;
        if let Cmp::Custom(order) = &self.comparator {
            return Err(Error::invalid(format!(
                "pages need the bytewise order, and the comparator is {:?}",
                order.name()
            )));
        }
        Ok(())
    }

    /// Checks names, and options that need a certain order of keys.
    fn check_order(&self) -> Result<()> {
        within(
            "bytes in the name of comparator",
            self.comparator.name().len(),
            limits::NAME_BYTES,
        )?;
        if let Some(operator) = &self.merge_operator {
            within(
                "bytes in the name of merge_operator",
                operator.name().len(),
                limits::NAME_BYTES,
            )?;
        }
        if let Some(prefixes) = &self.prefix_extractor {
            prefixes.check().map_err(Error::invalid)?;
            if let Cmp::Custom(order) = &self.comparator {
                return Err(Error::invalid(format!(
                    "prefix_extractor {:?} needs the bytewise order, and the comparator is {:?}",
                    prefixes.name(),
                    order.name()
                )));
            }
        }
        if self.min_blob_size.is_some() && !self.comparator.equality_is_bytewise() {
            return Err(Error::invalid(format!(
                "min_blob_size needs an order in which equal keys are equal bytes, and comparator \
                 {:?} does not say that it is one",
                self.comparator.name()
            )));
        }
        Ok(())
    }
}

/// Facts about an entry for a compaction filter, besides key and value.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct FilterContext<'a> {
    /// Name of the family.
    pub family: &'a str,
    /// Level that the entry is being written to.
    pub level: usize,
    /// Sequence number of the entry.
    pub seq: SeqNo,
    /// Wall time in ms since 1970, the same for the whole compaction.
    pub now_ms: u64,
}

impl<'a> FilterContext<'a> {
    /// Returns the context of an entry: the family's name, the level that the entry is being
    /// written to, its sequence number, and the wall time in ms since 1970. The function is for
    /// tests of filters.
    pub fn new(family: &'a str, level: usize, seq: SeqNo, now_ms: u64) -> FilterContext<'a> {
        FilterContext {
            family,
            level,
            seq,
            now_ms,
        }
    }
}

/// A compaction filter's decision about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterDecision {
    /// Keeps the entry.
    Keep,
    /// Deletes the entry and all older versions.
    Remove,
    /// Replaces the value of the entry.
    Change(Vec<u8>),
}

/// A compaction filter's decision about an entry by its key alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyDecision {
    /// Keeps the entry.
    Keep,
    /// Deletes the entry and all older versions.
    Remove,
}

/// User code that a compaction calls for every live value it meets, unless a snapshot still needs
/// the value. The filter may drop or change the value. Compactions may meet an entry many times or
/// never. So the filter must give the same answer for the same entry at the same or a later time.
pub trait CompactionFilter: Send + Sync {
    /// Returns the filter's name for messages.
    fn name(&self) -> &str;
    /// Returns the decision by the key alone, if the key suffices; a value in a blob file is then
    /// not read. `None`: the value decides. Compactions call this only for values in blob files. It
    /// is only an optimisation: [`CompactionFilter::filter`] must decide the same.
    fn filter_key(&self, context: &FilterContext<'_>, key: &[u8]) -> Option<KeyDecision> {
        let _ = (context, key);
        None
    }
    /// Returns the decision about an entry.
    fn filter(&self, context: &FilterContext<'_>, key: &[u8], value: &[u8]) -> FilterDecision;
}

/// Settings of a read.
#[derive(Clone)]
#[non_exhaustive]
pub struct ReadOptions {
    /// Read as of this snapshot. `None` reads the newest versions.
    pub snapshot: Option<basalt_kv::snapshot::Snapshot>,
    /// First user key that an iterator may show, inclusive.
    pub lower_bound: Option<Vec<u8>>,
    /// First user key that an iterator may no longer show: the bound is exclusive.
    pub upper_bound: Option<Vec<u8>>,
    /// Show only keys with the prefix of the key of the last seek. Beyond these keys the iterator
    /// is not valid, in both directions. A seek skips tables and levels whose filters exclude the
    /// prefix.
    ///
    /// A seek without a key (to the first or to the last) uses the prefix of the key it finds. A
    /// seek key without a prefix sets no limit. Needs [`FamilyOptions::prefix_extractor`]. With the
    /// default `false` the iterator shows all keys in order, and the extractor changes nothing.
    pub prefix_same_as_start: bool,
    /// Make a cursor that follows the store, see [`crate::db::Iter`]. Excludes `snapshot`. Default
    /// `false`.
    pub tailing: bool,
    /// Show keys without values: each value is empty, and values in blob files are not read.
    /// Default `false`.
    pub keys_only: bool,
    /// Put blocks and values that are read into the cache. Default `true`; `false` suits scans over
    /// all data. If `false`, the scan is also left out of the statistics that decide read-ahead and
    /// value relocation (decision 0023).
    ///
    /// A long scan of a family in pages puts few blocks into a cache that is full, in any case.
    ///
    /// An iterator counts the values that it has read ahead from blob files since its last seek.
    /// When they would fill a quarter of the cache, further ones stay out of the cache in any case.
    pub fill_cache: bool,
    /// Number of entries that an iterator may skip in its life: tombstones, older versions and
    /// expired values. Each 4 KiB of an expired value counts as one more entry. After that number
    /// the iterator pauses, and its `resume_key` is the key where another iterator continues. At
    /// least 1. Default `u64::MAX`, which never pauses. The limit is for readers that a long run of
    /// deleted keys must not delay.
    pub max_skippable_entries: u64,
}

impl ReadOptions {
    /// Checks that values are inside their documented ranges. A lower bound behind the upper bound
    /// is no error: no key lies between them.
    pub fn validate(&self) -> Result<()> {
        within(
            "max_skippable_entries",
            self.max_skippable_entries,
            limits::SKIPPABLE_ENTRIES,
        )
    }
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

setters! { ReadOptions {
    snapshot: Option<basalt_kv::snapshot::Snapshot>,
    lower_bound: Option<Vec<u8>>,
    upper_bound: Option<Vec<u8>>,
    prefix_same_as_start: bool,
    tailing: bool,
    keys_only: bool,
    fill_cache: bool,
    max_skippable_entries: u64,
} }
