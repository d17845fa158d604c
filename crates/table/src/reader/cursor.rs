//! [`InternalIter`]: the cursor that tables, memtables and merged sources have in common.

use super::{SeekBlock, SeekRead};
use basalt_fs::{Bytes, Result};
use basalt_kv::prefix::Narrow;
use std::sync::Arc;

/// A cursor over internal keys in order. Made unpositioned: [`InternalIter::valid`] is false until a seek.
///
/// Every movement may meet the disk and fail; after an error the cursor is not valid.
pub trait InternalIter: Send {
    /// True when positioned on an entry.
    fn valid(&self) -> bool;
    /// Until told otherwise whoever moves the cursor wants entries of this prefix alone, all of them, and seeks from keys of the prefix
    /// or from beside all of them: a source without any may say that it is empty. Takes effect with the next seek to a key.
    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        let _ = to;
    }
    /// To the first entry.
    fn seek_to_first(&mut self) -> Result<()>;
    /// To the last entry.
    fn seek_to_last(&mut self) -> Result<()>;
    /// To the first entry at or after the internal key `target`.
    fn seek(&mut self, target: &[u8]) -> Result<()>;
    /// Does of [`InternalIter::seek`] what comes before the read of the block that it lands in, and says which block that is when it is
    /// not in memory: so those of several cursors are read together. [`InternalIter::finish_seek`] with the same target must follow;
    /// until then nothing else may be asked.
    fn begin_seek(&mut self, target: &[u8]) -> Result<Option<SeekRead>> {
        let _ = target;
        Ok(None)
    }
    /// The rest of the seek. `landed` is what was asked for, if anything was.
    fn finish_seek(&mut self, target: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        debug_assert!(landed.is_none(), "a block that was not asked for");
        self.seek(target)
    }
    /// To the last entry at or before the internal key `target`.
    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()>;
    /// To the next entry. Requires `valid`.
    fn next(&mut self) -> Result<()>;
    /// To the previous entry. Requires `valid`.
    fn prev(&mut self) -> Result<()>;
    /// The internal key here. Requires `valid`; stays until the next movement.
    fn key(&self) -> &[u8];
    /// The value here. Requires `valid`; stays until the next movement.
    fn value(&self) -> &[u8];
    /// The value here, pinned: it outlives the cursor and is not copied.
    fn pinned_value(&self) -> Bytes;
}
