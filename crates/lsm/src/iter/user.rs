//! [`UserIter`]: the cursor over live user keys, each once, as of one sequence number and one time.
//!
//! Below it is a merged cursor over all versions of all keys. Where the merged cursor stands
//! depends on the direction:
//! - Forward, it stands on the entry of the current key, so that key and value are read in place.
//! - Backward, it stands before all entries of the current key, because the newest version of a key
//!   comes last in this direction. Key and pinned value are kept here.
//! - Forward, if the newest version of the current key is an operand, it stands behind the
//!   operands. Key and merged value are kept here.
//!
//! A movement does not read a value that is in a blob file. [`UserIter::read_value`] reads it;
//! [`ValuePrefetch`](super::ValuePrefetch) reads many at once.
//!
//! A version is visible if its sequence number is not above that of the reader. The newest visible
//! version of a key decides. A tombstone, a newer range tombstone or an expired value hides the
//! key. An operand is merged with the versions below it, down to the newest range tombstone over
//! the key. The wall time is fixed when the iterator is made.
//!
//! A long run of tombstones is walked over entry by entry. A reader that must return soon sets
//! `ReadOptions::max_skippable_entries`. When the iterator has skipped that many entries it pauses
//! before a key that it has not examined, and [`UserIter::resume_key`] returns that key.

mod blob_access;
mod classify;
mod read_ahead;
mod seek;
mod walk;

pub(crate) use blob_access::BlobAccess;
pub(super) use blob_access::without_expiry;

use crate::iter::{Cover, InternalIter, MergingIter};
use basalt_blob::Reference;
use basalt_env::sync::atomic::AtomicU64;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Cmp, SeqNo, user_key};
use basalt_kv::merge::Merging;
use basalt_kv::prefix::Narrowing;
use std::any::Any;
use std::sync::Arc;

/// A trailer that sorts before every entry of its user key.
const FIRST_TRAILER: u64 = u64::MAX;
/// A trailer that sorts after, or equal to, every entry of its user key.
const LAST_TRAILER: u64 = 0;

/// The bounds of an iterator: sequence number, key range and time.
#[derive(Debug, Clone)]
pub struct IterBounds {
    /// Versions above this sequence number are not visible.
    pub seq: SeqNo,
    /// First user key of the range, inclusive; `None` for unbounded.
    pub lower: Option<Vec<u8>>,
    /// End of the range of user keys, exclusive; `None` for unbounded.
    pub upper: Option<Vec<u8>>,
    /// Wall time in milliseconds since 1970. Values that expire at or before it are not visible.
    pub now_ms: u64,
}

/// The places of the current key and value, and of the merged cursor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IterPosition {
    /// The iterator is not positioned.
    Invalid,
    /// The merged cursor stands on the current entry. The value begins after `prefix` bytes of
    /// expiry.
    OnEntry { prefix: usize },
    /// The merged cursor stands on the current entry, whose value is in a blob file. `saved_value`
    /// is the value once it was read.
    OnReference,
    /// `saved_key` and `saved_value` are current. The merged cursor stands before all entries of
    /// that key, or is not valid.
    Before,
    /// `saved_key` and `saved_value` are current. The merged cursor stands on an entry of that key,
    /// or behind it, or is not valid.
    Behind,
    /// `saved_key` and `saved_value` are current. The merged cursor stands anywhere.
    Anywhere,
    /// The iterator has skipped as many entries as it may for now, and has not examined
    /// `saved_key`.
    Paused,
}

/// A cursor over live user keys. See the module.
pub struct UserIter {
    iter: MergingIter,
    cmp: Cmp,
    bounds: IterBounds,
    position: IterPosition,
    saved_key: Vec<u8>,
    saved_value: Bytes,
    /// Sequence number and reference of the current entry, while its value has not been read.
    lazy_value: Option<(SeqNo, Reference)>,
    expire_at_ms: Option<u64>,
    /// Entries that the iterator may still skip.
    skips_left: u64,
    /// The iterator pauses when `skips_left` is not above this number.
    skips_reserved: u64,
    merging: Merging,
    blobs: Option<BlobAccess>,
    /// Visible range tombstones.
    tombstones: Cover,
    /// Jumps that the cursors below have made over deleted ranges since this was last read. Each
    /// counts as a skipped entry.
    jumps: Option<Arc<AtomicU64>>,
    /// True if the iterator has examined a key since it was made or got another skip limit.
    examined: bool,
    /// Binds the iterator to one prefix, in a family with prefixes.
    narrowing: Option<Box<Narrowing>>,
    /// Memory for seek targets.
    target: Vec<u8>,
    /// Objects that have to outlive the cursor: version, memtables, snapshot.
    _pins: Vec<Arc<dyn Any + Send + Sync>>,
}

impl UserIter {
    /// Returns an iterator over a merged cursor, not positioned. `pins` are dropped with the
    /// iterator, after the cursor.
    pub fn new(
        iter: MergingIter,
        cmp: Cmp,
        bounds: IterBounds,
        pins: Vec<Arc<dyn Any + Send + Sync>>,
    ) -> UserIter {
        let tombstones = Cover::none(cmp.clone());
        UserIter {
            iter,
            cmp,
            bounds,
            position: IterPosition::Invalid,
            saved_key: Vec::new(),
            saved_value: Bytes::new(),
            lazy_value: None,
            expire_at_ms: None,
            skips_left: u64::MAX,
            skips_reserved: 0,
            merging: Merging::none(),
            blobs: None,
            tombstones,
            jumps: None,
            examined: false,
            narrowing: None,
            target: Vec::new(),
            _pins: pins,
        }
    }

    /// Sets the family's merge operator, for keys that have operands.
    pub(crate) fn with_merging(mut self, merging: Merging) -> UserIter {
        self.merging = merging;
        self
    }

    /// Sets the blob files that entries refer to.
    pub(crate) fn with_blobs(mut self, blobs: BlobAccess) -> UserIter {
        self.blobs = Some(blobs);
        self
    }

    /// Hides the keys that range tombstones cover. The cursors below count in `jumps` how often
    /// they jump over such ranges.
    pub(crate) fn with_range_tombstones(
        mut self,
        tombstones: Cover,
        jumps: Arc<AtomicU64>,
    ) -> UserIter {
        self.jumps = (!tombstones.is_empty()).then_some(jumps);
        self.tombstones = tombstones;
        self
    }

    /// Returns true if the iterator knows range tombstones. They are those of the time when it was
    /// made.
    pub(crate) fn has_range_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }

    /// Limits how many entries the iterator skips in its life:
    /// `ReadOptions::max_skippable_entries`.
    pub fn with_max_skippable_entries(mut self, entries: u64) -> UserIter {
        self.skips_left = entries;
        self
    }

    /// Lets the cursors below skip sources without the prefix that the iterator is bound to.
    pub(crate) fn with_prefixes(mut self, narrowing: Narrowing) -> UserIter {
        self.narrowing = Some(Box::new(narrowing));
        self
    }

    /// Binds the iterator to the prefix that another iterator with the same options is bound to.
    pub(crate) fn take_prefix_of(&mut self, other: &mut UserIter) {
        self.narrowing = other.narrowing.take();
    }

    /// Moves the iterator to another sequence number and time, over the same sources, with a new
    /// skip limit. The iterator is then not positioned.
    pub(crate) fn refresh(&mut self, seq: SeqNo, now_ms: u64, max_skips: u64) {
        self.invalidate();
        self.bounds.seq = seq;
        self.set_limits(now_ms, max_skips);
    }

    /// Sets the time and the skip limit from here on. The position stays.
    pub(crate) fn set_limits(&mut self, now_ms: u64, max_skips: u64) {
        self.bounds.now_ms = now_ms;
        self.skips_left = max_skips;
        self.examined = false;
    }

    /// Makes the iterator invalid until the next seek.
    pub(crate) fn invalidate(&mut self) {
        self.position = IterPosition::Invalid;
        // A pinned value may hold a whole block, so the iterator drops it at once.
        self.saved_value = Bytes::new();
        self.lazy_value = None;
    }

    /// Returns true if the iterator is positioned on a key.
    pub fn valid(&self) -> bool {
        !matches!(self.position, IterPosition::Invalid | IterPosition::Paused)
    }

    /// Returns the key before which the iterator paused, because it has skipped as many entries as
    /// it may; it is not `valid` then. No live key lies between the key it was moved from and this
    /// one, which it has not examined. Another iterator continues with a seek to this key.
    pub fn resume_key(&self) -> Option<&[u8]> {
        (self.position == IterPosition::Paused).then_some(&self.saved_key)
    }

    /// Returns the current user key. Requires `valid`.
    pub fn key(&self) -> &[u8] {
        match self.position {
            IterPosition::Invalid | IterPosition::Paused => {
                panic!("key of an iterator that is not positioned")
            }
            IterPosition::OnEntry { .. } | IterPosition::OnReference => user_key(self.iter.key()),
            IterPosition::Before | IterPosition::Behind | IterPosition::Anywhere => &self.saved_key,
        }
    }

    /// Returns the current value without its expiry; empty if the iterator reads keys only.
    /// Requires `valid`, and that a value in a blob file was read.
    pub fn value(&self) -> &[u8] {
        match self.position {
            IterPosition::Invalid | IterPosition::Paused => {
                panic!("value of an iterator that is not positioned")
            }
            _ if self.reads_keys_only() => &[],
            IterPosition::OnEntry { prefix } => &self.iter.value()[prefix..],
            _ => {
                assert!(self.lazy_value.is_none(), "the value was read");
                &self.saved_value
            }
        }
    }

    /// Returns the current value, pinned, without its expiry. Requires what [`UserIter::value`]
    /// requires.
    pub fn pinned_value(&self) -> Bytes {
        match self.position {
            IterPosition::Invalid | IterPosition::Paused => {
                panic!("value of an iterator that is not positioned")
            }
            _ if self.reads_keys_only() => Bytes::new(),
            IterPosition::OnEntry { prefix } => self.iter.pinned_value().slice(prefix..),
            _ => {
                assert!(self.lazy_value.is_none(), "the value was read");
                self.saved_value.clone()
            }
        }
    }

    #[inline]
    fn reads_keys_only(&self) -> bool {
        self.blobs.as_ref().is_some_and(|b| b.keys_only)
    }

    /// Returns when the current value expires, in milliseconds since 1970; `None` for never.
    /// Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        assert!(self.valid(), "expiry of an iterator that is not positioned");
        self.expire_at_ms
    }

    /// Moves to the next key. Requires `valid`.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Result<()> {
        match self.position {
            IterPosition::Invalid | IterPosition::Paused => {
                panic!("next on an iterator that is not positioned")
            }
            IterPosition::OnEntry { .. } | IterPosition::OnReference => {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(user_key(self.iter.key()));
                self.invalidate();
                self.iter.next()?;
            }
            IterPosition::Behind => self.invalidate(),
            // To turn, the merged cursor would seek all its children. A seek past the key costs the
            // same.
            IterPosition::Before | IterPosition::Anywhere => {
                self.invalidate();
                return self.seek_behind_saved_key();
            }
        }
        self.find_forward(true)
    }

    /// Moves to the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        match self.position {
            IterPosition::Invalid | IterPosition::Paused => {
                panic!("prev on an iterator that is not positioned")
            }
            IterPosition::OnEntry { .. } | IterPosition::OnReference => {
                self.target_before_current();
                self.invalidate();
                self.seek_target_for_prev()?;
            }
            IterPosition::Behind | IterPosition::Anywhere => {
                self.invalidate();
                self.target_before_saved_key();
                self.seek_target_for_prev()?;
            }
            IterPosition::Before => self.invalidate(),
        }
        self.find_backward()
    }
}
