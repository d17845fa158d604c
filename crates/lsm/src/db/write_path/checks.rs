//! The preconditions of a batch that waits in the commit queue.

use basalt_kv::family::Family;
use basalt_kv::key::SeqNo;

/// A precondition in the commit queue: no entry of `key` is newer than `since`.
pub(crate) struct Check {
    pub family: Family,
    pub key: Box<[u8]>,
    pub since: SeqNo,
    /// Sequence number up to which the caller's thread has checked it; `since` or higher. The
    /// commit leader only looks for newer entries, which are in memory as a rule.
    pub checked: SeqNo,
}

impl Check {
    /// Returns the bytes of memory that the precondition holds.
    pub fn memory(&self) -> usize {
        size_of::<Check>() + self.key.len()
    }
}
