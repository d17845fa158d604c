//! Basalt: an embeddable storage engine.
//!
//! This crate is the door: it re-exports what users of the engine need and adds nothing clever.

#![deny(missing_docs)]

pub use basalt_env as env;
pub use basalt_env::Env;
pub use basalt_fs as fs;
pub use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
pub use basalt_lsm as lsm;
pub use basalt_lsm::{
    CompactionFilter, Compression, Db, Event, EventListener, Family, FamilyOptions, FilterContext,
    FilterDecision, Options, ReadOptions, Snapshot, Ticket, WriteBatch, WriteOptions,
};
