//! Range tombstones: the result of `delete_range` until all the versions that it hides are gone.
//!
//! A range tombstone hides every older version of the user keys in `[from, to)`. Its holders keep
//! it in [`Fragments`]: disjoint ranges in order, each with the sequence numbers of the tombstones
//! that cover it. A memtable's list, which grows, is `memtable::live_ranges`. `iter::range_cover`
//! asks all sources of a view, and `iter::masked` lets a cursor jump over the keys that newer
//! sources have deleted.
//!
//! Promises: an answer never depends on how tombstones were cut or joined. The ends of ranges are
//! exclusive everywhere.

use crate::key::{Cmp, SeqNo};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A tombstone, or a part of one: a range of user keys `[from, to)` that was deleted at a sequence
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeTombstone<'a> {
    /// First user key that is deleted.
    pub from: &'a [u8],
    /// First user key behind the range.
    pub to: &'a [u8],
    /// Sequence number of the tombstone. Older versions are hidden.
    pub seq: SeqNo,
}

/// A range of [`Fragments`]. Its keys are ranges of the shared buffer.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    from: usize,
    from_len: u32,
    to: usize,
    to_len: u32,
    /// Index of its first sequence number. Its numbers end where those of the next fragment begin.
    seqs: usize,
}

/// Disjoint ranges in order, each with the sequence numbers of its tombstones, the newest first.
/// The value never changes.
#[derive(Debug, Default, Clone)]
pub struct Fragments {
    keys: Vec<u8>,
    list: Vec<Fragment>,
    seqs: Vec<SeqNo>,
}

/// Returns fragments without ranges.
#[doc(hidden)]
pub static NOTHING: Fragments = Fragments {
    keys: Vec::new(),
    list: Vec::new(),
    seqs: Vec::new(),
};

/// The cover of all keys between two keys, the first inclusive, the second exclusive. `None` is
/// unbounded.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// The newest tombstone that covers the keys, or 0 for none.
    pub seq: SeqNo,
    /// First user key of the stretch.
    pub from: Option<&'a [u8]>,
    /// First user key behind the stretch.
    pub to: Option<&'a [u8]>,
}

impl Fragments {
    /// Cuts pieces, in any order, into fragments. With `snapshots` (ascending), of several
    /// tombstones that the same readers see only the newest one stays. A piece whose end is not
    /// above its start covers nothing and is left out.
    pub fn build<'a>(
        cmp: &Cmp,
        pieces: impl Iterator<Item = RangeTombstone<'a>>,
        snapshots: Option<&[SeqNo]>,
    ) -> Fragments {
        Self::build_within(cmp, pieces, snapshots, usize::MAX).expect("without a limit")
    }

    /// Builds fragments as [`Fragments::build`] does. Returns `None` if there would be more than
    /// `limit` parts.
    pub fn build_within<'a>(
        cmp: &Cmp,
        pieces: impl Iterator<Item = RangeTombstone<'a>>,
        snapshots: Option<&[SeqNo]>,
        limit: usize,
    ) -> Option<Fragments> {
        // The start and the end of each piece, in the order of keys.
        let mut events: Vec<(&[u8], SeqNo, bool)> = Vec::new();
        for p in pieces.filter(|p| cmp.user(p.from, p.to) == Ordering::Less) {
            events.push((p.from, p.seq, true));
            events.push((p.to, p.seq, false));
        }
        events.sort_by(|a, b| cmp.user(a.0, b.0));
        let mut out = Fragments::default();
        // The number of open pieces for each sequence number, because parts of one tombstone may
        // come from several tables.
        let mut open: BTreeMap<SeqNo, usize> = BTreeMap::new();
        let mut seqs = Vec::new();
        let mut at = 0;
        while at < events.len() {
            let key = events[at].0;
            while let Some((k, seq, begins)) = events.get(at)
                && cmp.user(k, key) == Ordering::Equal
            {
                let n = open.entry(*seq).or_default();
                if *begins {
                    *n += 1;
                } else {
                    // The start comes before the end, because it is a smaller key.
                    *n -= 1;
                }
                if *n == 0 {
                    open.remove(seq);
                }
                at += 1;
            }
            let Some((next, _, _)) = events.get(at) else {
                break;
            };
            seqs.clear();
            let mut last_stripe = None;
            for seq in open.keys().rev() {
                let stripe = snapshots.map(|s| s.partition_point(|x| x < seq));
                if stripe.is_none() || stripe != last_stripe {
                    seqs.push(*seq);
                }
                last_stripe = stripe;
            }
            if !seqs.is_empty() {
                out.push(cmp, key, next, &seqs);
                if out.seqs.len() > limit {
                    return None;
                }
            }
        }
        Some(out)
    }

    /// Adds a fragment behind the others. It is joined with the last one if that ends here and has
    /// the same numbers.
    pub fn push(&mut self, cmp: &Cmp, from: &[u8], to: &[u8], seqs: &[SeqNo]) {
        let touches = self
            .list
            .last()
            .filter(|l| cmp.user(self.key(l.to, l.to_len), from) == Ordering::Equal)
            .copied();
        let to_at = |keys: &mut Vec<u8>| {
            let at = keys.len();
            keys.extend_from_slice(to);
            at
        };
        if let Some(last) = touches
            && self.seqs[last.seqs..] == *seqs
        {
            let at = to_at(&mut self.keys);
            let last = self.list.last_mut().expect("just seen");
            (last.to, last.to_len) = (at, to.len() as u32);
            return;
        }
        let (from_at, from_len) = match touches {
            Some(last) => (last.to, last.to_len),
            None => {
                let at = self.keys.len();
                self.keys.extend_from_slice(from);
                (at, from.len() as u32)
            }
        };
        let fragment = Fragment {
            from: from_at,
            from_len,
            to: to_at(&mut self.keys),
            to_len: to.len() as u32,
            seqs: self.seqs.len(),
        };
        self.list.push(fragment);
        self.seqs.extend_from_slice(seqs);
    }

    fn key(&self, at: usize, len: u32) -> &[u8] {
        &self.keys[at..at + len as usize]
    }

    /// Returns the range of fragment `i`.
    pub fn range(&self, i: usize) -> (&[u8], &[u8]) {
        let f = &self.list[i];
        (self.key(f.from, f.from_len), self.key(f.to, f.to_len))
    }

    /// Returns the sequence numbers of fragment `i`, the newest first.
    pub fn seqs_of(&self, i: usize) -> &[SeqNo] {
        let end = self.list.get(i + 1).map_or(self.seqs.len(), |f| f.seqs);
        &self.seqs[self.list[i].seqs..end]
    }

    /// Returns the number of fragments.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns true if nothing is deleted.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the sum of the tombstones of all fragments, which is what a table counts.
    pub fn pieces(&self) -> usize {
        self.seqs.len()
    }

    /// Returns every fragment once for each of its tombstones.
    pub fn iter(&self) -> impl Iterator<Item = RangeTombstone<'_>> {
        (0..self.len()).flat_map(move |i| {
            let (from, to) = self.range(i);
            let piece = move |seq: &SeqNo| RangeTombstone {
                from,
                to,
                seq: *seq,
            };
            self.seqs_of(i).iter().map(piece)
        })
    }

    /// Returns the bytes of memory: 0 if nothing is deleted.
    pub fn memory(&self) -> usize {
        self.keys.capacity()
            + self.list.capacity() * size_of::<Fragment>()
            + self.seqs.capacity() * size_of::<SeqNo>()
    }

    /// Returns the index of the first fragment that ends above the key.
    pub fn at_or_after(&self, cmp: &Cmp, key: &[u8]) -> usize {
        self.list
            .partition_point(|f| cmp.user(self.key(f.to, f.to_len), key) != Ordering::Greater)
    }

    /// Returns the newest tombstone with a number of at most `upto` that covers the key.
    pub fn newest(&self, cmp: &Cmp, key: &[u8], upto: SeqNo) -> Option<SeqNo> {
        Some(self.stretch(cmp, key, upto).seq).filter(|s| *s > 0)
    }

    /// Returns the newest tombstone of at most `upto` that covers the key, and the stretch of keys
    /// for which that holds.
    pub fn stretch(&self, cmp: &Cmp, key: &[u8], upto: SeqNo) -> Stretch<'_> {
        let i = self.at_or_after(cmp, key);
        let before = i.checked_sub(1).map(|b| self.range(b).1);
        if i == self.len() {
            return Stretch {
                seq: 0,
                from: before,
                to: None,
            };
        }
        let (from, to) = self.range(i);
        if cmp.user(from, key) == Ordering::Greater {
            return Stretch {
                seq: 0,
                from: before,
                to: Some(from),
            };
        }
        let seqs = self.seqs_of(i);
        let newest = seqs.partition_point(|s| *s > upto);
        Stretch {
            seq: seqs.get(newest).copied().unwrap_or(0),
            from: Some(from),
            to: Some(to),
        }
    }
}
