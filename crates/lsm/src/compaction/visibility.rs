//! [`Stripes`]: which versions of a key a reader can still see.

use basalt_kv::key::{Cmp, Kind, SeqNo};
use std::cmp::Ordering;

/// Walks versions in internal key order (newest first within a key) and returns which are visible.
/// Live snapshots cut the sequence numbers into stripes. Of each key, readers see only the newest
/// version of a stripe and, if that is an operand, the versions below it.
pub struct Stripes<'a> {
    /// Sequence numbers of the live snapshots, ascending.
    snapshots: &'a [SeqNo],
    key: Vec<u8>,
    /// The stripe of the last version of `key`; `None` before the first key.
    stripe: Option<usize>,
    /// Sequence number of that version.
    seq: SeqNo,
    /// True if that version is a visible operand, so that the version below it is visible as well.
    open: bool,
}

impl<'a> Stripes<'a> {
    /// Takes the sequence numbers of the live snapshots, ascending.
    pub fn new(snapshots: &'a [SeqNo]) -> Stripes<'a> {
        debug_assert!(snapshots.is_sorted());
        Stripes {
            snapshots,
            key: Vec::new(),
            stripe: None,
            seq: 0,
            open: false,
        }
    }

    /// Returns the stripe of a sequence number: the number of snapshots that are too old to see it.
    pub fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|&s| s < seq)
    }

    /// Returns true if this version is the newest of its key in its stripe, or has only operands
    /// above it there. The caller passes every version, in order. A version that comes twice is not
    /// visible the second time.
    pub fn is_visible(&mut self, cmp: &Cmp, user_key: &[u8], seq: SeqNo, kind: Kind) -> bool {
        let stripe = self.stripe(seq);
        let same_key = self.stripe.is_some() && cmp.user(&self.key, user_key) == Ordering::Equal;
        let again = same_key && seq == self.seq;
        let visible = !same_key || (!again && (self.open || self.stripe != Some(stripe)));
        if !again {
            self.open = visible && kind == Kind::Merge;
        }
        self.seq = seq;
        if !same_key {
            self.key.clear();
            self.key.extend_from_slice(user_key);
        }
        self.stripe = Some(stripe);
        visible
    }
}
