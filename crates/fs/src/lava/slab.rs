//! A table of small values in chunks: it grows without moving what it has, and a copy of it costs a pointer for each chunk, as a chunk is copied
//! only when it changes afterwards. So a checkpoint of a hundred thousand files takes its copy in microseconds.

use std::sync::Arc;

/// Values that share a copy.
const CHUNK: usize = 256;

/// See the module's head.
#[derive(Clone, Default)]
pub struct Slab<T> {
    chunks: Vec<Arc<[T]>>,
    len: usize,
}

impl<T: Clone + Default> Slab<T> {
    /// Places in use or not, from 0 on.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The value at a place below [`Slab::len`].
    pub fn get(&self, i: usize) -> &T {
        assert!(i < self.len, "place {i} of {}", self.len);
        &self.chunks[i / CHUNK][i % CHUNK]
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, i: usize) -> &mut T {
        assert!(i < self.len, "place {i} of {}", self.len);
        let chunk = &mut self.chunks[i / CHUNK];
        if Arc::get_mut(chunk).is_none() {
            *chunk = chunk.iter().cloned().collect();
        }
        &mut Arc::get_mut(chunk).expect("just made unique")[i % CHUNK]
    }

    /// Adds a place, and returns which.
    pub fn push(&mut self, value: T) -> usize {
        let i = self.len;
        if i == self.chunks.len() * CHUNK {
            self.chunks.push((0..CHUNK).map(|_| T::default()).collect());
        }
        self.len += 1;
        *self.get_mut(i) = value;
        i
    }

    /// All values, by place.
    pub fn iter(&self) -> impl Iterator<Item = &T> + '_ {
        self.chunks.iter().flat_map(|c| c.iter()).take(self.len)
    }

    /// Bytes of memory, without what values have elsewhere.
    pub fn memory(&self) -> usize {
        self.chunks.len() * (CHUNK * size_of::<T>() + size_of::<Arc<[T]>>() + 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_apart() {
        let mut slab = Slab::default();
        for i in 0..1000u64 {
            assert_eq!(slab.push(i), i as usize);
        }
        let copy = slab.clone();
        for i in (0..1000).step_by(300) {
            *slab.get_mut(i) += 7;
        }
        slab.push(5);
        assert!(copy.iter().copied().eq(0..1000));
        assert_eq!(
            (*slab.get(300), *slab.get(301), slab.len()),
            (307, 301, 1001)
        );
    }
}
