//! A copy-on-write table of small values in chunks.
//!
//! The table grows without moving its values. A copy costs one pointer for each chunk, because a
//! chunk is copied only when it changes afterwards. So a checkpoint of 100,000 files takes its copy
//! in microseconds.

use std::sync::Arc;

/// Values in a chunk.
const CHUNK: usize = 256;

/// A table whose copies share chunks.
#[derive(Clone, Default)]
pub struct CowTable<T> {
    chunks: Vec<Arc<[T]>>,
    /// A chunk of defaults, which stands for all chunks without a change. So a table with one high
    /// index takes no memory for the indexes below it.
    blank: Option<Arc<[T]>>,
    len: usize,
}

impl<T: Clone + Default> CowTable<T> {
    /// Returns the number of indexes, used or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the value at an index.
    ///
    /// # Panics
    /// If the index is not below [`CowTable::len`].
    pub fn get(&self, i: usize) -> &T {
        assert!(i < self.len, "place {i} of {}", self.len);
        &self.chunks[i / CHUNK][i % CHUNK]
    }

    /// Returns the value at an index for a change. Copies the chunk if it is shared.
    ///
    /// # Panics
    /// If the index is not below [`CowTable::len`].
    pub fn get_mut(&mut self, i: usize) -> &mut T {
        assert!(i < self.len, "place {i} of {}", self.len);
        let chunk = &mut self.chunks[i / CHUNK];
        if Arc::get_mut(chunk).is_none() {
            *chunk = chunk.iter().cloned().collect();
        }
        &mut Arc::get_mut(chunk).expect("just made unique")[i % CHUNK]
    }

    /// Appends a value. Returns its index.
    pub fn push(&mut self, value: T) -> usize {
        let i = self.len;
        self.grow_to(i + 1);
        *self.get_mut(i) = value;
        i
    }

    /// Makes the table at least so long. New values are defaults.
    pub fn grow_to(&mut self, len: usize) {
        let chunks = len.div_ceil(CHUNK);
        if chunks > self.chunks.len() {
            let blank = (self.blank).get_or_insert_with(|| vec![T::default(); CHUNK].into());
            self.chunks.resize(chunks, Arc::clone(blank));
        }
        self.len = self.len.max(len);
    }

    fn is_blank(&self, chunk: &Arc<[T]>) -> bool {
        (self.blank.as_ref()).is_some_and(|blank| Arc::ptr_eq(blank, chunk))
    }

    /// Returns indexes and values in order, without the chunks that never changed.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> + '_ {
        let chunks = self.chunks.iter().enumerate();
        let changed = chunks.filter(|(_, chunk)| !self.is_blank(chunk));
        let values = changed.flat_map(|(c, chunk)| {
            let places = c * CHUNK..;
            places.zip(chunk.iter())
        });
        values.take_while(|(i, _)| *i < self.len)
    }

    /// Returns the memory of the table, in bytes, without allocations that values own.
    pub fn memory(&self) -> usize {
        let changed = self.chunks.iter().filter(|c| !self.is_blank(c)).count();
        self.chunks.len() * size_of::<Arc<[T]>>() + changed * (CHUNK * size_of::<T>() + 16)
    }
}

#[cfg(test)]
mod tests;
