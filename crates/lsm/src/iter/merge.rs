//! [`MergingIter`]: many sorted cursors read as one.
//!
//! A binary heap of child numbers keeps the next child on top. Moving the merged cursor moves that
//! child and sifts it down. If many entries in a row come from one child, that takes one or two
//! comparisons. For each child the first 8 bytes of its user key are kept as a number, so that
//! under the bytewise order most comparisons touch no key. The cursor allocates nothing per key.
//!
//! Children should not hold equal internal keys. If they do, the cursor yields each, the earlier
//! child's first, in both directions.

use crate::iter::InternalIter;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Cmp, user_key};
use basalt_kv::prefix::Narrow;
use basalt_table::SeekRead;
use std::cmp::Ordering;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor over the entries of all its children. See the module.
pub struct MergingIter {
    cmp: Cmp,
    children: Vec<Box<dyn InternalIter>>,
    /// First 8 bytes of each valid child's user key, big-endian, padded with zeros; 0 under a
    /// custom comparator.
    prefixes: Vec<u64>,
    /// Numbers of the valid children as a heap, the current child first. Empty if the cursor is not
    /// valid.
    heap: Vec<u32>,
    direction: Direction,
    /// Memory for the internal key at which the direction changes.
    pivot: Vec<u8>,
}

/// Returns the first 8 bytes of a user key as a number. Where two numbers differ, they order the
/// keys as the bytewise order does: padding with zeros never puts a longer key first.
#[inline]
fn prefix_of(user: &[u8]) -> u64 {
    if let Some(first) = user.first_chunk::<8>() {
        u64::from_be_bytes(*first)
    } else {
        let mut b = [0u8; 8];
        b[..user.len()].copy_from_slice(user);
        u64::from_be_bytes(b)
    }
}

impl MergingIter {
    /// Returns a cursor over children that are all ordered by `cmp`, not positioned.
    pub fn new(cmp: Cmp, children: Vec<Box<dyn InternalIter>>) -> MergingIter {
        assert!(u32::try_from(children.len()).is_ok());
        MergingIter {
            cmp,
            prefixes: vec![0; children.len()],
            heap: Vec::with_capacity(children.len()),
            children,
            direction: Direction::Forward,
            pivot: Vec::new(),
        }
    }

    /// Returns the number of the current child, in the order given to [`MergingIter::new`].
    /// Requires `valid`.
    pub fn child(&self) -> usize {
        self.heap[0] as usize
    }

    /// Returns true if the entry of child `a` comes before that of child `b` in the present
    /// direction.
    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        let (x, y) = (a as usize, b as usize);
        let order = match self.prefixes[x].cmp(&self.prefixes[y]) {
            Ordering::Equal => self
                .cmp
                .internal(self.children[x].key(), self.children[y].key())
                .then(a.cmp(&b)),
            unequal => unequal,
        };
        (order == Ordering::Less) == (self.direction == Direction::Forward)
    }

    /// Updates the key prefix of a child that moved.
    #[inline]
    fn update_prefix(&mut self, child: usize) {
        self.prefixes[child] = match self.cmp {
            Cmp::Bytewise => prefix_of(user_key(self.children[child].key())),
            _ => 0,
        };
    }

    fn sift_down(&mut self, mut at: usize) {
        let len = self.heap.len();
        loop {
            let mut best = 2 * at + 1;
            if best >= len {
                return;
            }
            if best + 1 < len && self.before(self.heap[best + 1], self.heap[best]) {
                best += 1;
            }
            if !self.before(self.heap[best], self.heap[at]) {
                return;
            }
            self.heap.swap(at, best);
            at = best;
        }
    }

    /// Builds the heap of all valid children.
    fn build(&mut self, direction: Direction) {
        self.direction = direction;
        self.heap.clear();
        for i in 0..self.children.len() {
            if self.children[i].valid() {
                self.update_prefix(i);
                self.heap.push(i as u32);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    /// Restores the heap after its top child moved.
    #[inline]
    fn resift_top(&mut self) {
        let top = self.heap[0] as usize;
        if self.children[top].valid() {
            self.update_prefix(top);
        } else {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
    }

    /// Moves every child with `seek`. An error leaves the cursor invalid.
    fn position(
        &mut self,
        direction: Direction,
        mut seek: impl FnMut(&mut dyn InternalIter) -> Result<()>,
    ) -> Result<()> {
        self.heap.clear();
        for child in &mut self.children {
            seek(child.as_mut())?;
        }
        self.build(direction);
        Ok(())
    }

    /// Changes the direction: moves every child to the other side of the current entry, and one
    /// entry on. Entries are ordered by key, then by child number, so that even equal keys are
    /// neither skipped nor yielded twice.
    fn reverse(&mut self, direction: Direction) -> Result<()> {
        let current = self.heap[0] as usize;
        self.heap.clear();
        self.pivot.clear();
        self.pivot.extend_from_slice(self.children[current].key());
        for (i, child) in self.children.iter_mut().enumerate() {
            let pivot = &self.pivot;
            match direction {
                Direction::Forward => {
                    child.seek(pivot)?;
                    let same = child.valid()
                        && i <= current
                        && self.cmp.internal(child.key(), pivot) == Ordering::Equal;
                    if same {
                        child.next()?;
                    }
                }
                Direction::Backward => {
                    child.seek_for_prev(pivot)?;
                    let same = child.valid()
                        && i >= current
                        && self.cmp.internal(child.key(), pivot) == Ordering::Equal;
                    if same {
                        child.prev()?;
                    }
                }
            }
        }
        self.build(direction);
        Ok(())
    }
}

impl InternalIter for MergingIter {
    fn valid(&self) -> bool {
        !self.heap.is_empty()
    }

    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        self.children.iter_mut().for_each(|c| c.narrow(to));
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.position(Direction::Forward, |c| c.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.position(Direction::Backward, |c| c.seek_to_last())
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.heap.clear();
        // All children first return the reads that they need, so that the device gets all reads at
        // the same time.
        let mut seek_reads = Vec::new();
        let mut waiting = Vec::new();
        for (i, child) in self.children.iter_mut().enumerate() {
            if let Some(seek_read) = child.begin_seek(target)? {
                seek_reads.push(seek_read);
                waiting.push(i);
            }
        }
        let mut waiting = waiting.into_iter().peekable();
        let mut read = SeekRead::read_batch(&seek_reads)?.into_iter();
        for (i, child) in self.children.iter_mut().enumerate() {
            let landed = match waiting.next_if_eq(&i) {
                Some(_) => read.next(),
                None => None,
            };
            child.finish_seek(target, landed)?;
        }
        self.build(Direction::Forward);
        Ok(())
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.position(Direction::Backward, |c| c.seek_for_prev(target))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        assert!(self.valid(), "next on a cursor that is not positioned");
        if self.direction != Direction::Forward {
            return self.reverse(Direction::Forward);
        }
        if let Err(e) = self.children[self.heap[0] as usize].next() {
            self.heap.clear();
            return Err(e);
        }
        self.resift_top();
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        assert!(self.valid(), "prev on a cursor that is not positioned");
        if self.direction != Direction::Backward {
            return self.reverse(Direction::Backward);
        }
        if let Err(e) = self.children[self.heap[0] as usize].prev() {
            self.heap.clear();
            return Err(e);
        }
        self.resift_top();
        Ok(())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.children[self.heap[0] as usize].key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.children[self.heap[0] as usize].value()
    }

    fn pinned_value(&self) -> Bytes {
        self.children[self.heap[0] as usize].pinned_value()
    }
}
