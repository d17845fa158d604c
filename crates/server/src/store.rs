//! The operations of a store that the server needs, as a narrow trait, and the engine as its
//! implementation.
//!
//! With the trait, the command layer and the event loop are tested against a store in memory whose
//! commits a test holds back, fails and reorders. Production has one implementation: [`DbStore`].

use crate::layer::Layer;
use crate::value::{Known, Value};
use basalt::log::LogEngine;
use basalt::{Bytes, Result};
use std::path::Path;
use std::sync::Arc;

/// Number of incarnation numbers that are reserved at a time.
pub(crate) const INCARNATION_BLOCK: u64 = 1 << 10;

/// Number of cursor numbers that are reserved at a time: 2^29 starts have a block each.
pub(crate) const CURSOR_BLOCK: u64 = 1 << 24;

/// One write of an epoch.
pub(crate) enum Write {
    Put {
        key: Bytes,
        value: Value,
    },
    Delete {
        key: Bytes,
    },
    /// The writes of a command with very many names.
    Layer(Arc<Layer>),
    Generation {
        generation: u32,
    },
    Element(ElementWrite),
}

/// A write of elements of a collection. Keys are in the encoding of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ElementWrite {
    Put {
        key: Bytes,
        value: Bytes,
    },
    Delete {
        key: Bytes,
    },
    /// Deletes the elements from `from` to before `to`.
    DeleteRange {
        from: Bytes,
        to: Bytes,
    },
}

impl ElementWrite {
    /// Returns the key, or the first key of a range.
    pub fn key(&self) -> &Bytes {
        match self {
            ElementWrite::Put { key, .. } | ElementWrite::Delete { key } => key,
            ElementWrite::DeleteRange { from, .. } => from,
        }
    }

    /// Returns the bytes of keys and value.
    pub fn bytes(&self) -> usize {
        match self {
            ElementWrite::Put { key, value } => key.len() + value.len(),
            ElementWrite::Delete { key } => key.len(),
            ElementWrite::DeleteRange { from, to } => from.len() + to.len(),
        }
    }
}

impl Write {
    /// Returns roughly the bytes that the write adds to a batch.
    fn bytes(&self) -> usize {
        match self {
            Write::Put { key, value } => key.len() + value.data.len(),
            Write::Delete { key } => key.len(),
            Write::Layer(layer) => layer.memory(),
            Write::Generation { .. } => 0,
            Write::Element(write) => write.bytes(),
        }
    }
}

/// Called once with a commit's result, on any thread. It must not block.
pub(crate) type CommitCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Called with engine key, encoded value and expiry of an entry. The result false ends the scan. A
/// separated value is not read; it is always a string ([`crate::layout::LEAST_MIN_BLOB_SIZE`]).
pub(crate) type EntryVisitor<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<u64>) -> bool + 'a;

/// A function that gets the key and the value of each element. An error ends the walk.
pub(crate) type ElementVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// The store at one moment.
pub(crate) trait StoreView: Send {
    /// Visits the live entries of `redis.keys` in `[from, to)` in order. After about `work` entries
    /// that are not live, it stops and returns the key to continue with.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<Option<Vec<u8>>>;
    /// Returns a key in `[from, to)` that no live key follows: the last live one, or the position
    /// after about `work` others.
    fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>>;
}

/// The operations of a store (see the module).
pub(crate) trait Store: Send + Sync {
    /// Returns a value by engine key. Expired entries may be hidden already; the caller checks the
    /// expiry of the others.
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;
    /// Returns the data of many values in one batch of reads. Values of other types than string
    /// count as absent. Reads count against `budget_bytes`. A key beyond the budget is `None`, and
    /// has to be asked for again. At least one is answered.
    fn get_strings(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// Returns a value like [`Store::get`], if its separated part is at most `budget_bytes` long,
    /// else `None`.
    fn get_within(&self, key: &[u8], budget_bytes: usize) -> Result<Option<Option<Value>>>;
    /// Returns data like [`Store::get_strings`], with a budget that holds for the first key as
    /// well.
    fn get_strings_up_to(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// Returns type and expiry of a key, its encoded value if it is inline, and with `lengths` the
    /// length of a string. Only one kind of separated value is read: a compressed one, for its
    /// length. The result is `None` if that is longer than `budget_bytes`.
    fn get_meta(
        &self,
        key: &[u8],
        lengths: bool,
        budget_bytes: usize,
    ) -> Result<Option<Option<Known>>>;
    /// Returns a view that pins the present moment.
    fn view(&self) -> Box<dyn StoreView>;
    /// Visits the elements whose keys begin with a prefix, in order. Blocks.
    fn elements(&self, prefix: &[u8], visit: &mut ElementVisitor<'_>) -> Result<()>;
    /// Queues writes to be committed together. Submissions take effect in order. The calls of their
    /// `done` come in any order.
    fn submit(&self, writes: Vec<Write>, sync: bool, done: CommitCallback);
    /// Queues entries of streams, which are committed together, like [`Store::submit`]. Their order
    /// relative to submitted writes is not defined.
    fn append(&self, appends: Vec<Append>, sync: bool, done: CommitCallback);
    /// Returns the engine of the streams' logs. Creates the engine if there is none. Blocks.
    fn logs(&self) -> Result<LogEngine>;
    /// Returns the engine of the streams' logs, or `None` if there is none.
    fn existing_logs(&self) -> Option<LogEngine>;
    /// Returns a number that no collection ever had. May block for a sync.
    fn next_incarnation(&self) -> Result<u64>;
    /// Removes the elements of collections, given by generation and incarnation. Returns true if
    /// there were any. Their removal is not synced. Blocks.
    fn remove_elements(&self, collections: &[(u32, u64)]) -> Result<bool>;
    /// Makes every acknowledged write survive a power cut. Blocks.
    fn sync(&self) -> Result<()>;
    /// Returns the current generation of the database at the time of the open.
    fn generation(&self) -> Result<u32>;
    /// Returns the first of [`CURSOR_BLOCK`] cursor numbers that were never given out, and never
    /// will be again. Blocks for a sync.
    fn reserve_cursors(&self) -> Result<u64>;
    /// Allows compactions to drop the generations before this one, which is durable.
    fn retire_below(&self, generation: u32);
    /// Compacts away the generations before the current one. Blocks, possibly for long.
    fn reclaim(&self) -> Result<()>;
    /// Copies the tables and the logs of one moment to a directory that does not exist. Blocks.
    fn checkpoint(&self, target: &Path) -> Result<()>;
    /// Returns shape and counters.
    fn stats(&self) -> basalt::Stats;
    /// Closes the store. Later calls fail with `Closed`.
    fn close(&self) -> Result<()>;
}

mod appends;
mod db;
mod encoder;
#[cfg(test)]
pub(crate) mod memory;

pub(crate) use appends::Append;
pub(crate) use db::DbStore;
