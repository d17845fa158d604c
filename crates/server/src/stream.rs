//! Redis streams: the entries of a stream are the records of a logical log of the log engine
//! ([`docs/decisions/0040`](../../../docs/decisions/0040-streams.md)).
//!
//! The log sequence number (LSN) of an entry is its position in the stream, counted from 1. Each
//! record also has the LSN of the first live entry. So an XADD is one append, with or without a
//! trim.

pub(crate) mod element;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod jobs;
pub(crate) mod loaded;
pub(crate) mod lsn_set;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod sweep;

pub(crate) use id::StreamId;
