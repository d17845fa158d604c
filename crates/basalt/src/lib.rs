//! Basalt: an embeddable storage engine.
//!
//! This crate is the facade. It has every name that its signatures need, and no module of an
//! engine. [`env`] and [`fs`] are whole crates, because programs implement the traits in them.
//!
//! # Reading and writing
//!
//! ```
//! use basalt::{Db, Env, Options, ReadOptions, WriteBatch, WriteOptions};
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let db = Db::open(&env, "store", Options::default().write_buffer_bytes(16 << 20))?;
//! let family = db.default_family();
//! let mut batch = WriteBatch::new();
//! batch.put(&family, b"a", b"1")?;
//! batch.put(&family, b"b", b"2")?;
//! db.write(batch, &WriteOptions::SYNC)?;
//!
//! let from_b = ReadOptions::default().lower_bound(Some(b"b".to_vec()));
//! let mut iter = db.iter(&family, &from_b)?;
//! iter.seek_to_first()?;
//! assert_eq!((iter.key(), iter.value()), (&b"b"[..], &b"2"[..]));
//! # drop(iter);
//! db.close()
//! # }
//! ```
//!
//! # Values that are changed without being read
//!
//! A family with a [`MergeOperator`] takes operands. Operators for sums, appended parts, largest
//! and smallest values are in [`merge`].
//!
//! ```
//! use basalt::{Db, Env, FamilyOptions, Options, ReadOptions, WriteOptions, merge::AddU64};
//! use std::sync::Arc;
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let db = Db::open(&env, "store", Options::default())?;
//! let counters = FamilyOptions::default().merge_operator(Some(Arc::new(AddU64)));
//! let visits = db.create_family("visits", counters)?;
//!
//! let one = 1u64.to_le_bytes();
//! for page in ["/", "/docs", "/"] {
//!     db.merge(&visits, page.as_bytes(), &one, &WriteOptions::default())?;
//! }
//! let count = db.get(&visits, b"/", &ReadOptions::default())?;
//! assert_eq!(count.as_deref(), Some(&2u64.to_le_bytes()[..]));
//! db.close()
//! # }
//! ```
//!
//! # Transactions
//!
//! A [`TransactionDb`] begins transactions over any families of a store. An optimistic transaction
//! reads as of its begin, and its commit fails with [`ErrorKind::Conflict`] if a key that it has
//! written, or read by [`Transaction::get_for_update`], was changed since.
//! [`TransactionDb::with_retry`] then runs it again.
//!
//! ```
//! use basalt::{Db, Env, Options, ReadOptions, WriteOptions};
//! use basalt::{TransactionDb, TransactionDbOptions, TransactionOptions};
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let db = Db::open(&env, "store", Options::default())?;
//! let family = db.default_family();
//! db.put(&family, b"stock", b"\x03", &WriteOptions::SYNC)?;
//!
//! let transactions = TransactionDb::new(&db, TransactionDbOptions::default())?;
//! let (options, read) = (TransactionOptions::optimistic(), ReadOptions::default());
//! let left = transactions.with_retry(&options, &WriteOptions::SYNC, 10, |order| {
//!     let stock = order.get_for_update(&family, b"stock", &read)?;
//!     let left = stock.map_or(0, |stock| stock[0]).saturating_sub(1);
//!     order.put(&family, b"stock", &[left])?;
//!     order.put(&family, b"order-1", b"one piece")?;
//!     Ok(left)
//! })?;
//! assert_eq!(left, 2);
//! assert!(db.get(&family, b"order-1", &read)?.is_some());
//! # drop(transactions);
//! db.close()
//! # }
//! ```
//!
//! A pessimistic transaction locks its keys instead. Other transactions wait for a lock, at most
//! [`TransactionDbOptions::lock_timeout`]. A wait that would never end is refused at once, with
//! [`ErrorKind::Deadlock`].
//!
//! ```
//! use basalt::{Db, Env, ErrorKind, Options, ReadOptions, WriteOptions};
//! use basalt::{TransactionDb, TransactionDbOptions, TransactionOptions};
//! use std::time::Duration;
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let db = Db::open(&env, "store", Options::default())?;
//! let family = db.default_family();
//! let transactions = TransactionDb::new(&db, TransactionDbOptions::default())?;
//! let options = TransactionOptions::pessimistic().lock_timeout(Some(Duration::ZERO));
//!
//! let mut first = transactions.begin(&options)?;
//! let mut second = transactions.begin(&options)?;
//! first.put(&family, b"a", b"1")?;
//! let refused = second.put(&family, b"a", b"2").unwrap_err();
//! assert_eq!(refused.kind(), ErrorKind::Busy);
//! first.commit(&WriteOptions::SYNC)?;
//! second.put(&family, b"a", b"2")?;
//! second.commit(&WriteOptions::SYNC)?;
//! # drop(transactions);
//! db.close()
//! # }
//! ```
//!
//! # Tables and logs in one store
//!
//! A [`Store`] keeps logical logs beside its tables: under one lock, with one check and one
//! checkpoint that has both as of the same moment.
//!
//! ```
//! use basalt::log::LogOptions;
//! use basalt::{CheckpointOptions, Env, Store, StoreOptions, WriteOptions};
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let store = Store::open(&env, "store", StoreOptions::default())?;
//! let raft = store.logs()?.open_or_create("raft", LogOptions::default())?;
//! raft.append(1, b"set a to 1", &WriteOptions::SYNC)?;
//! let family = store.db().default_family();
//! store.db().put(&family, b"a", b"1", &WriteOptions::SYNC)?;
//! store.checkpoint("copy", &CheckpointOptions::default())?;
//! store.close()
//! # }
//! ```
//!
//! # Much data at once
//!
//! Keys that come in order are written once, into tables beside the store. One step adds all of
//! them or none.
//!
//! ```
//! use basalt::{Db, Env, Options, ReadOptions};
//!
//! # fn main() -> basalt::Result<()> {
//! # let env = Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1);
//! let db = Db::open(&env, "store", Options::default())?;
//! let family = db.default_family();
//! let mut table = db.prepare(&family)?;
//! for n in 0..1000u32 {
//!     table.add(&n.to_be_bytes(), b"a value of any size")?;
//! }
//! let prepared = table.finish()?;
//! assert_eq!(db.get(&family, &7u32.to_be_bytes(), &ReadOptions::default())?, None);
//! db.ingest(&[prepared])?;
//! assert!(db.get(&family, &7u32.to_be_bytes(), &ReadOptions::default())?.is_some());
//! db.close()
//! # }
//! ```

#![deny(missing_docs)]

pub use basalt_env as env;
pub use basalt_env::Env;
pub use basalt_fs as fs;
pub use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
pub use basalt_kv::batch::{BatchIter, BatchOp};
pub use basalt_kv::key::{Cmp, Comparator, Kind, SeqNo};
pub use basalt_kv::limits::{MAX_KEY_LEN, MAX_VALUE_LEN};
pub use basalt_kv::merge::{MergeOperator, MergeRefusal};
pub use basalt_kv::prefix::{PrefixExtractor, Prefixes};
pub use basalt_kv::{Compression, Family, Snapshot, WriteBatch};
pub use basalt_lsm::db::{
    BlobCompressionStats, BlobFamilyStats, BlobFileStats, BlobReadStats, BlobShare, BlobStats,
    Bottommost, CheckpointOptions, CheckpointReport, CompactControl, CompactOptions,
    CompactProgress, Db, ExplainedLeaf, ExplainedMemtable, ExplainedPage, ExplainedTable,
    ExplainedVersion, FamilyPoint, FamilyStats, IndexStep, InspectedExtent, InspectedNode,
    InspectedPage, Iter, KeyRange, LevelStats, Logged, Loss, MAX_PRECONDITIONS, OnProgress,
    PageContent, PageCounts, PageEntry, PageExplanation, PageInspector, PagePosition, PageRange,
    PageTreeStats, PageVerdict, PassiveStats, PersistencePoints, PersistenceWatch, Precondition,
    Prepared, RangeSize, ReadExplanation, ReadOnlyReason, RepairReport, Replay, Replayed,
    StallStats, Stats, TableVerdict, TableWriter, Ticket, TreeCheck, UserRange, ValueMeta,
    ValueWithExpiry, VerifyReport,
};
pub use basalt_lsm::listener::{
    BackgroundErrorReason, BlobFileInfo, BlobFileReason, CompactionInfo, CompactionReason, Event,
    EventListener, GcInfo, QUEUED_EVENTS, StallCause, TableInfo, WriteCause,
};
pub use basalt_lsm::options::{
    CompactionFilter, Durability, FamilyOptions, FilterContext, FilterDecision, KeyDecision,
    LogMode, Options, OwnerLog, PassiveOptions, ReadOptions, TreeOptions, WriteOptions,
};
pub use basalt_lsm::version::{FlushFlag, Tsn};
pub use basalt_store::ReplayRecord;

/// Merge operators that come with the engine.
pub mod merge {
    pub use basalt_kv::merge::{AddI64, AddU64, Append, Max, Min};
}

pub use basalt_lsm::db::{CheckpointPart, EngineKind};
pub use basalt_store::{
    Store, StoreCheckpointReport, StoreOptions, StoreRepairReport, StoreStats, StoreVerifyReport,
};
pub use basalt_transactions::{
    Concurrency, KeyCheck, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_KEYS, PreparedTransaction,
    Transaction, TransactionDb, TransactionDbOptions, TransactionIter, TransactionOptions,
    TransactionStats,
};

/// LavaLog: logical logs, beside the tables of a [`Store`] or in a store of their own.
pub mod log {
    pub use basalt_log::{
        Duplicates, Log, LogBatch, LogCopy, LogCopyReport, LogEngine, LogEngineOptions,
        LogEngineStats, LogIter, LogLoss, LogOptions, LogRepairReport, LogTicket, LogUnprovenEnd,
        LogVerification, LogVerifyReport, MAX_BATCH_BYTES, MAX_LSN, UnnamedLog, WriteOptions,
    };
}

/// LavaFS: a filesystem of its own, in an image file or on a block device.
pub mod lava {
    pub use basalt_lava::{ExtentReport, FileReport, LavaFs, LavaOptions, Usage};

    /// Images: making, opening, growing and checking them.
    pub mod image {
        pub use basalt_lava::image::{Checked, Format, Progress, Step, check, format, grow, open};
    }
}

/// The examples of the page on logs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/logs.md")]
struct PageOnLogs;

/// The examples of the page on transactions.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/transactions.md")]
struct PageOnTransactions;

/// The examples of the page on passive stores.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/passive.md")]
struct PageOnPassiveStores;
