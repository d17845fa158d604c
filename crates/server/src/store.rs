//! What the server needs of a store, as a narrow trait, and the engine behind it.
//!
//! The seam exists so that the command layer and the event loop can be tested against a store in
//! memory whose commits a test holds back, fails and reorders. Production has one implementation:
//! [`DbStore`].

use crate::layer::Layer;
use crate::value::{Known, Value};
use basalt::{Bytes, Result};
use std::path::Path;
use std::sync::Arc;

/// Cursor numbers reserved at a time: 2^29 starts have a block each.
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
}

impl Write {
    /// Returns roughly the bytes that the write adds to a batch.
    fn bytes(&self) -> usize {
        match self {
            Write::Put { key, value } => key.len() + value.data.len(),
            Write::Delete { key } => key.len(),
            Write::Layer(layer) => layer.memory(),
            Write::Generation { .. } => 0,
        }
    }
}

/// Called once with a commit's result, on any thread; must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Sees engine key, encoded value and expiry of an entry; false ends the scan. A value that lies
/// apart from the tree is not read for it, and is a string's
/// ([`crate::layout::LEAST_MIN_BLOB_SIZE`]).
pub(crate) type EntryVisitor<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<u64>) -> bool + 'a;

/// The store as of one moment.
pub(crate) trait StoreView: Send {
    /// Visits the live entries of `redis.keys` in `[from, to)` in order. After about `work` entries
    /// that are not live it gives up and returns the key to go on with.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<Option<Vec<u8>>>;
    /// A key in `[from, to)` that no live one follows: the last live one, or where it gave up after
    /// about `work` others.
    fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>>;
}

/// See the module.
pub(crate) trait Store: Send + Sync {
    /// A value by engine key. Expired entries may be hidden already; the caller checks the expiry
    /// of the others.
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;
    /// Many values' data in one batch of reads; other types than strings count as absent. What is
    /// read counts against `budget_bytes`; a key that it does not reach for is `None`, to be asked
    /// again. At least one is answered.
    fn get_strings(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// As [`Store::get`], if what has to be read apart from the tree for it is at most
    /// `budget_bytes` long; `None` if it is longer.
    fn get_within(&self, key: &[u8], budget_bytes: usize) -> Result<Option<Option<Value>>>;
    /// As [`Store::get_strings`], and the budget holds for the first key as well.
    fn get_strings_up_to(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// Type and expiry of a key, its encoded value when that is at hand, and with `lengths` how
    /// long a string is. No value that lies apart from the tree is read, but for the length of a
    /// compressed one: `None` if that is longer than `budget_bytes`.
    fn get_meta(
        &self,
        key: &[u8],
        lengths: bool,
        budget_bytes: usize,
    ) -> Result<Option<Option<Known>>>;
    /// Pins the present moment.
    fn view(&self) -> Box<dyn StoreView>;
    /// Queues writes to be committed together. Submissions take effect in order; the calls of their
    /// `done` come in any order.
    fn submit(&self, writes: Vec<Write>, sync: bool, done: Done);
    /// Makes every acknowledged write survive a power cut. Blocks.
    fn sync(&self) -> Result<()>;
    /// The current generation of the database, as of open.
    fn generation(&self) -> Result<u32>;
    /// The first of [`CURSOR_BLOCK`] cursor numbers that were never given out, and never will be
    /// again. Blocks for a sync.
    fn reserve_cursors(&self) -> Result<u64>;
    /// From here on compactions may drop what is older than this generation, which is durable.
    fn retire_below(&self, generation: u32);
    /// Compacts away what is older than the current generation. Blocks, possibly for long.
    fn reclaim(&self) -> Result<()>;
    /// Makes a copy of what is committed in a folder that does not exist. Blocks.
    fn checkpoint(&self, target: &Path) -> Result<()>;
    /// Shape and counters.
    fn stats(&self) -> basalt::lsm::db::Stats;
    /// Ends it. Later calls fail with `Closed`.
    fn close(&self) -> Result<()>;
}

mod db;
mod encoder;
#[cfg(test)]
pub(crate) mod memory;

pub(crate) use db::DbStore;
