//! [`MergingIter`]: many sorted cursors read as one.
//!
//! A binary heap of child numbers keeps the next child on top; moving the merged cursor moves that child and sifts it
//! down, which for children that run in stretches ends after one or two comparisons. Beside each child stands the
//! first 8 bytes of its user key as a number, so that under the bytewise order most comparisons touch no key at all.
//! Nothing is allocated per key.
//!
//! Children should not hold equal internal keys. Where they do, each is shown, the earlier child's first, in both directions.

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

/// A cursor over the union of its children. See the module.
pub struct MergingIter {
    cmp: Cmp,
    children: Vec<Box<dyn InternalIter>>,
    /// First 8 bytes of each valid child's user key, big-endian, padded with zeros; 0 under a user's comparator.
    prefixes: Vec<u64>,
    /// Valid children; the one that the cursor stands on first. Empty: the cursor is not valid.
    heap: Vec<u32>,
    direction: Direction,
    /// The key a change of direction starts from.
    pivot: Vec<u8>,
}

/// Orders as the bytewise order does wherever two prefixes differ: padding with zeros never puts a longer key first.
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
    /// Merges children that are all ordered by `cmp`. Not positioned.
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

    /// The number of the child that the cursor stands on, in the order given to [`MergingIter::new`]. Requires `valid`.
    pub fn child(&self) -> usize {
        self.heap[0] as usize
    }

    /// True when child `a` is shown before child `b` in the present direction.
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

    #[inline]
    fn note(&mut self, child: usize) {
        self.prefixes[child] = match self.cmp {
            Cmp::Bytewise => prefix_of(user_key(self.children[child].key())),
            Cmp::Custom(_) => 0,
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

    /// Makes the heap of all valid children.
    fn build(&mut self, direction: Direction) {
        self.direction = direction;
        self.heap.clear();
        for i in 0..self.children.len() {
            if self.children[i].valid() {
                self.note(i);
                self.heap.push(i as u32);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    /// After the top child moved.
    #[inline]
    fn settle_top(&mut self) {
        let top = self.heap[0] as usize;
        if self.children[top].valid() {
            self.note(top);
        } else {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
    }

    /// Moves every child; an error leaves the cursor invalid.
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

    /// Moves every child to the other side of the present entry and one entry on. Entries are ordered by key, then by
    /// child number, so that even equal keys are neither skipped nor shown twice.
    fn turn(&mut self, direction: Direction) -> Result<()> {
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
        // All children first say what they must read, so that the device has the reads of all at the same time.
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
            return self.turn(Direction::Forward);
        }
        if let Err(e) = self.children[self.heap[0] as usize].next() {
            self.heap.clear();
            return Err(e);
        }
        self.settle_top();
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        assert!(self.valid(), "prev on a cursor that is not positioned");
        if self.direction != Direction::Backward {
            return self.turn(Direction::Backward);
        }
        if let Err(e) = self.children[self.heap[0] as usize].prev() {
            self.heap.clear();
            return Err(e);
        }
        self.settle_top();
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
