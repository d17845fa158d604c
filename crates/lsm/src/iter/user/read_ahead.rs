//! The parts of a [`UserIter`] that [`ValuePrefetch`](crate::iter::ValuePrefetch) needs to run
//! ahead of the current key and to return to it.

use super::{BlobAccess, IterPosition, UserIter};
use crate::iter::InternalIter;
use crate::iter::value_prefetch::BufferedEntry;
use basalt_env::sync::atomic::Ordering::Relaxed;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::Cmp;

impl UserIter {
    /// Returns the current value if the merged cursor stands on it, on the way up.
    pub(in crate::iter) fn value_at_hand(&self) -> Option<&[u8]> {
        match self.position {
            IterPosition::OnEntry { prefix } => Some(&self.iter.value()[prefix..]),
            _ => None,
        }
    }

    /// Returns a copy of the current entry, with its value if that was read, and with the skips
    /// that are left. Requires `valid`.
    pub(in crate::iter) fn buffered_entry(&self) -> BufferedEntry {
        BufferedEntry::new(
            self.key(),
            match self.lazy_value {
                Some((seq, to)) => Err((seq, to)),
                None => Ok(self.pinned_value()),
            },
            self.expire_at_ms,
            self.skips_left(),
        )
    }

    /// Returns the number of entries that the iterator may still skip, and the number of jumps that
    /// it has not counted yet.
    pub(in crate::iter) fn skips_left(&self) -> (u64, u64) {
        let jumps = self.jumps.as_ref().map_or(0, |j| j.load(Relaxed));
        (self.skips_left, jumps)
    }

    /// Returns to an entry that the iterator has passed. The merged cursor stays where it is.
    pub(in crate::iter) fn return_to(&mut self, key: Vec<u8>, value: Bytes, entry: &BufferedEntry) {
        self.invalidate();
        self.position = IterPosition::Anywhere;
        (self.saved_key, self.saved_value) = (key, value);
        self.expire_at_ms = entry.expire_at_ms;
        self.restore_skips(entry.skips_left);
    }

    /// Sets the skips that are left back to an earlier result of [`UserIter::skips_left`].
    pub(in crate::iter) fn restore_skips(&mut self, (skips, jumps): (u64, u64)) {
        (self.skips_left, self.skips_reserved) = (skips, 0);
        if let Some(pending) = &self.jumps {
            pending.store(jumps, Relaxed);
        }
    }

    /// Makes movements pause after this many more skipped entries; `u64::MAX` lifts the limit.
    pub(in crate::iter) fn pause_after(&mut self, skips: u64) {
        self.skips_reserved = self.skips_left.saturating_sub(skips);
    }

    /// Returns true if the iterator paused although it may skip more entries. [`UserIter::resume`]
    /// continues.
    pub(in crate::iter) fn can_resume(&self) -> bool {
        self.position == IterPosition::Paused && self.skips_left > 0
    }

    /// Continues from where the iterator paused.
    pub(in crate::iter) fn resume(&mut self, up: bool) -> Result<()> {
        self.invalidate();
        match up {
            true => self.find_forward(false),
            false => self.find_backward(),
        }
    }

    /// Returns the access to blob files and the order of keys.
    pub(in crate::iter) fn blob_access(&self) -> Option<(&BlobAccess, &Cmp)> {
        self.blobs.as_ref().map(|b| (b, &self.cmp))
    }

    /// Returns the wall time by which values expire, in milliseconds since 1970.
    pub(in crate::iter) fn now_ms(&self) -> u64 {
        self.bounds.now_ms
    }
}
