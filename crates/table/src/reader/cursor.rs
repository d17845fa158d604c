//! The cursor that tables, memtables and merged sources have in common: [`InternalIter`].

use super::{SeekBlock, SeekRead};
use basalt_fs::{Bytes, Result};
use basalt_kv::prefix::Narrow;
use std::sync::Arc;

/// A cursor over internal keys in order. A new cursor is unpositioned: [`InternalIter::valid`] is
/// false until a seek.
///
/// Every movement may read from the disk and fail. After an error, the cursor is not valid.
pub trait InternalIter: Send {
    /// Returns true if the cursor is positioned on an entry.
    fn valid(&self) -> bool;
    /// Narrows the cursor to the keys of one prefix, or to all keys again with `None`.
    ///
    /// A caller that narrows wants all entries of the prefix and no others. It seeks only to keys
    /// of the prefix, or to keys before or after all of them. A source without such entries may
    /// claim to be empty. The next seek to a key applies the change.
    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        let _ = to;
    }
    /// Moves to the first entry.
    fn seek_to_first(&mut self) -> Result<()>;
    /// Moves to the last entry.
    fn seek_to_last(&mut self) -> Result<()>;
    /// Moves to the first entry at or after the internal key `target`.
    fn seek(&mut self, target: &[u8]) -> Result<()>;
    /// Does the part of [`InternalIter::seek`] that comes before its block read, and returns the
    /// block if it must be read from the device.
    ///
    /// So a caller can read the blocks of several cursors together. [`InternalIter::finish_seek`]
    /// with the same target must follow. No other method may be called before it.
    fn begin_seek(&mut self, target: &[u8]) -> Result<Option<SeekRead>> {
        let _ = target;
        Ok(None)
    }
    /// Finishes the seek. `landed` is the block that `begin_seek` asked for, if any.
    fn finish_seek(&mut self, target: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        debug_assert!(landed.is_none(), "a block that was not asked for");
        self.seek(target)
    }
    /// Moves to the last entry at or before the internal key `target`.
    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()>;
    /// Moves to the next entry. Requires `valid`.
    fn next(&mut self) -> Result<()>;
    /// Moves to the previous entry. Requires `valid`.
    fn prev(&mut self) -> Result<()>;
    /// Returns the internal key of the current entry. Requires `valid`; stays until the next
    /// movement.
    fn key(&self) -> &[u8];
    /// Returns the value of the current entry. Requires `valid`; stays until the next movement.
    fn value(&self) -> &[u8];
    /// Returns the value of the current entry, pinned: it outlives the cursor and is not copied.
    fn pinned_value(&self) -> Bytes;
}
