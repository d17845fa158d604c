//! A queue that knows the memory of its items.
//!
//! Every change of an item goes through the queue. So the count of bytes cannot differ from what a
//! walk over the items finds, and reading it costs no walk.

use std::collections::VecDeque;
use std::ops::Deref;

/// A type with memory beyond its struct.
pub(crate) trait HeapBytes {
    /// Returns the bytes of memory beyond the struct. Costs no walk.
    fn heap_bytes(&self) -> usize;
}

/// A queue of items, and the sum of their memory. Reads go to the queue inside.
#[derive(Debug, Clone)]
pub(crate) struct CountedDeque<T> {
    items: VecDeque<T>,
    /// Bytes of memory of the items, beyond their structs.
    heap: usize,
}

impl<T> Default for CountedDeque<T> {
    fn default() -> CountedDeque<T> {
        CountedDeque {
            items: VecDeque::new(),
            heap: 0,
        }
    }
}

impl<T: PartialEq> PartialEq for CountedDeque<T> {
    fn eq(&self, other: &CountedDeque<T>) -> bool {
        // Equal items may have unequal capacities.
        self.items == other.items
    }
}

impl<T: Eq> Eq for CountedDeque<T> {}

impl<T> Deref for CountedDeque<T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.items
    }
}

impl<T: HeapBytes> CountedDeque<T> {
    /// Returns the bytes of memory of the queue and its items. Costs no walk.
    pub fn memory(&self) -> usize {
        self.items.capacity() * size_of::<T>() + self.heap
    }

    /// Adds an item behind all others.
    pub fn push_back(&mut self, item: T) {
        self.insert(self.items.len(), item);
    }

    /// Adds an item at a position.
    pub fn insert(&mut self, at: usize, item: T) {
        if self.items.len() == self.items.capacity() {
            // A queue doubles its memory, and most logs have few chunks.
            self.items.reserve_exact(1 + self.items.len() / 4);
        }
        self.heap += item.heap_bytes();
        self.items.insert(at, item);
    }

    /// Removes the item at a position.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        let item = self.items.remove(at);
        self.heap -= item.as_ref().map_or(0, HeapBytes::heap_bytes);
        self.shrink();
        item
    }

    /// Removes the items that `keep` refuses.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let heap = &mut self.heap;
        let mut checked = |item: &T| {
            let kept = keep(item);
            if !kept {
                *heap -= item.heap_bytes();
            }
            kept
        };
        // Most calls remove items at the front, which moves no others.
        while self.items.front().is_some_and(|item| !checked(item)) {
            self.items.pop_front();
        }
        self.items.retain(checked);
        self.shrink();
    }

    /// Changes the item at a position, which must be there.
    pub fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let item = &mut self.items[at];
        let before = item.heap_bytes();
        let result = change(item);
        self.heap = self.heap - before + item.heap_bytes();
        result
    }

    /// Replaces the item at a position, which must be there.
    pub fn set(&mut self, at: usize, item: T) {
        self.change(at, |old| *old = item);
    }

    /// Returns memory that many removed items had.
    fn shrink(&mut self) {
        if self.items.is_empty() {
            self.items = VecDeque::new();
        } else if self.items.capacity() > 4 + 2 * self.items.len() {
            self.items
                .shrink_to(self.items.len() + self.items.len() / 4);
        }
    }
}
