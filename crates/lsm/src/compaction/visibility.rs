//! Which versions of a key somebody can still see.

use basalt_kv::key::{Cmp, Kind, SeqNo};
use std::cmp::Ordering;

/// Walks versions in internal key order (newest first within a key) and tells which are the newest of their stripe:
/// live snapshots cut the sequence numbers into stripes, and of each key only the newest version of a stripe can be read, and
/// below operands what they stand over.
pub struct Stripes<'a> {
    /// The names, ascending.
    snapshots: &'a [SeqNo],
    key: Vec<u8>,
    /// The stripe of the last version of `key`; `None` before the first key.
    stripe: Option<usize>,
    /// Its sequence number.
    seq: SeqNo,
    /// It is an operand that somebody reads, and so is what lies below it.
    open: bool,
}

impl<'a> Stripes<'a> {
    /// `snapshots` are the live ones, ascending.
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

    /// The stripe of a sequence number: how many snapshots are too old to see it.
    pub fn stripe(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|&s| s < seq)
    }

    /// True when this version is the newest of its key in its stripe, or stands below operands only. Call for every version in
    /// order. Of one version that is met twice the second is not.
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
