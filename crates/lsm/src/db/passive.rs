//! Passive stores: stores without a log, whose owner's log has what is not persisted (PASV).
//!
//! | module | what it has |
//! |---|---|
//! | [`by_family`] | many items into memtables, families in parallel |
//! | [`apply_at`] | transactions into memtables |
//! | [`calls`] | the calls of an open store |
//! | [`replay`] | the owner's log into a store that is being opened |
//!
//! [`super::log_position`] is the position in the owner's log, [`super::persistence`] what is
//! persisted.
//!
//! Families fill and flush their memtables independently of each other. When memtables are sealed,
//! the sealed set notes for each family the last transaction that is persisted once the set and all
//! sets before it are flushed. The edit of the flush installs these flags together with its tables.

pub(crate) mod apply_at;
mod by_family;
pub(crate) mod calls;
pub(crate) mod replay;
