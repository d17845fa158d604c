//! Basalt: an embeddable storage engine.
//!
//! This crate is the door: it re-exports what users of the engine need and adds nothing clever.
//!
//! # Values that are changed without being read
//!
//! A family with a [`MergeOperator`] takes operands. Those for sums, appended parts, largest and smallest values are in [`merge`].
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
//! # Much data at once
//!
//! Keys that come in order are written once, into tables beside the store, and added in one step: all of them or none.
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

pub use basalt_blob as blob;
pub use basalt_env as env;
pub use basalt_env::Env;
pub use basalt_fs as fs;
pub use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
pub use basalt_kv as kv;
pub use basalt_kv::merge;
pub use basalt_lava as lava;
pub use basalt_lsm as lsm;
pub use basalt_lsm::db::{
    Bottommost, CheckpointOptions, CheckpointReport, CompactControl, CompactOptions,
    CompactProgress, Precondition, Prepared, Stats, TableWriter, UserRange, ValueMeta,
    ValueWithExpiry,
};
pub use basalt_lsm::{
    CompactionFilter, Compression, Db, Durability, Event, EventListener, Family, FamilyOptions,
    FilterContext, FilterDecision, Iter, KeyDecision, MergeOperator, MergeRefusal, Options,
    PrefixExtractor, Prefixes, ReadOptions, Snapshot, Ticket, WriteBatch, WriteOptions,
};
pub use basalt_table as table;
