//! A map by file number whose clones share all entries that neither of them has changed.
//!
//! The manifest's state and the tree's blob files are replaced with each edit, and an edit changes
//! few of their files. So entries lie in chunks behind `Arc`s. A clone counts references to chunks,
//! of which there are about a hundredth of the entries. A change copies the one chunk that contains
//! it.

use std::fmt::{Debug, Formatter};
use std::slice;
use std::sync::Arc;

/// The most entries of a chunk.
const MOST: usize = 256;
/// A chunk with fewer entries is joined with one beside it if both together stay well below
/// [`MOST`].
const LEAST: usize = MOST / 4;

/// Entries with neighbouring numbers.
#[derive(Clone)]
struct Chunk<V> {
    /// The lower bound of numbers in the chunk. All numbers in the chunk before it are lower.
    first: u64,
    /// Entries, ascending by number, at least one.
    entries: Arc<Vec<(u64, V)>>,
}

/// A sorted map by file number. A clone costs a reference count for about a hundred entries; a
/// change copies up to 256 entries.
#[derive(Clone)]
pub struct FileMap<V> {
    chunks: Vec<Chunk<V>>,
    len: usize,
}

impl<V> Default for FileMap<V> {
    fn default() -> FileMap<V> {
        FileMap {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

/// Returns the entries of a chunk for a change. They are copied if another map shares them.
fn own<V: Clone>(entries: &mut Arc<Vec<(u64, V)>>) -> &mut Vec<(u64, V)> {
    #[cfg(test)]
    if Arc::strong_count(entries) > 1 {
        COPIED.set(COPIED.get() + entries.len());
    }
    Arc::make_mut(entries)
}

#[cfg(test)]
thread_local! {
    /// Number of entries that this thread has copied because a change met a shared chunk.
    pub(crate) static COPIED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Number of entries that this thread has visited in walks over maps.
    pub(crate) static WALKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl<V> FileMap<V> {
    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the map has no file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the only chunk that may have the number, and the number's place in it or the place
    /// to insert it.
    fn find(&self, number: u64) -> Option<(usize, Result<usize, usize>)> {
        let after = self.chunks.partition_point(|c| c.first <= number);
        let chunk = after.checked_sub(1)?;
        let entries = &self.chunks[chunk].entries;
        Some((chunk, entries.binary_search_by_key(&number, |(n, _)| *n)))
    }

    /// Returns the map's value of a file. Costs two binary searches.
    #[inline]
    pub fn get(&self, number: &u64) -> Option<&V> {
        let (chunk, at) = self.find(*number)?;
        Some(&self.chunks[chunk].entries[at.ok()?].1)
    }

    /// Returns true if the map has the file.
    pub fn contains_key(&self, number: &u64) -> bool {
        self.get(number).is_some()
    }

    /// Returns all files, ascending by number.
    pub fn iter(&self) -> Iter<'_, V> {
        Iter {
            chunks: self.chunks.iter(),
            entries: [].iter(),
        }
    }

    /// Returns the file numbers, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &u64> + Clone {
        self.iter().map(|(number, _)| number)
    }

    /// Returns the values of all files, ascending by number.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Returns the file with the lowest number.
    pub fn first_key_value(&self) -> Option<(&u64, &V)> {
        self.iter().next()
    }

    /// Returns the file with the highest number.
    pub fn last_key_value(&self) -> Option<(&u64, &V)> {
        let (number, value) = self.chunks.last()?.entries.last()?;
        Some((number, value))
    }

    /// Removes all files.
    pub fn clear(&mut self) {
        *self = FileMap::default();
    }
}

impl<V: Clone> FileMap<V> {
    /// Returns the map's value of a file, to be changed. Costs a copy of up to 256 entries if a
    /// clone shares them.
    pub fn get_mut(&mut self, number: &u64) -> Option<&mut V> {
        let (chunk, at) = self.find(*number)?;
        let at = at.ok()?;
        Some(&mut own(&mut self.chunks[chunk].entries)[at].1)
    }

    /// Inserts a file and returns its former value. Costs a copy of up to 256 entries if a clone
    /// shares them.
    pub fn insert(&mut self, number: u64, value: V) -> Option<V> {
        if self.chunks.is_empty() {
            self.chunks.push(Chunk {
                first: number,
                entries: Arc::default(),
            });
        }
        let (chunk, at) = self.find(number).unwrap_or((0, Err(0)));
        let Chunk { first, entries } = &mut self.chunks[chunk];
        let entries = own(entries);
        match at {
            Ok(at) => return Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => entries.insert(at, (number, value)),
        }
        *first = number.min(*first);
        self.len += 1;
        if entries.len() > MOST {
            let upper = entries.split_off(MOST / 2);
            let upper = Chunk {
                first: upper[0].0,
                entries: Arc::new(upper),
            };
            self.chunks.insert(chunk + 1, upper);
        }
        None
    }

    /// Removes a file and returns its value. Costs a copy of up to 512 entries if a clone shares
    /// them.
    pub fn remove(&mut self, number: &u64) -> Option<V> {
        let (chunk, at) = self.find(*number)?;
        let at = at.ok()?;
        let entries = own(&mut self.chunks[chunk].entries);
        let (_, value) = entries.remove(at);
        self.len -= 1;
        if entries.is_empty() {
            self.chunks.remove(chunk);
        } else if entries.len() < LEAST {
            self.join(chunk);
        }
        Some(value)
    }

    /// Joins a small chunk with one beside it, if the result need not be divided soon.
    fn join(&mut self, chunk: usize) {
        for lower in [chunk.checked_sub(1), Some(chunk)].into_iter().flatten() {
            let Some(pair) = self.chunks.get(lower..lower + 2) else {
                continue;
            };
            if pair[0].entries.len() + pair[1].entries.len() <= MOST - LEAST {
                let upper = self.chunks.remove(lower + 1);
                let entries = own(&mut self.chunks[lower].entries);
                match Arc::try_unwrap(upper.entries) {
                    Ok(upper) => entries.extend(upper),
                    Err(shared) => entries.extend_from_slice(&shared),
                }
                return;
            }
        }
    }
}

impl<V> std::ops::Index<&u64> for FileMap<V> {
    type Output = V;

    fn index(&self, number: &u64) -> &V {
        self.get(number).expect("no such file")
    }
}

/// All files of a [`FileMap`], ascending by number.
pub struct Iter<'a, V> {
    chunks: slice::Iter<'a, Chunk<V>>,
    entries: slice::Iter<'a, (u64, V)>,
}

impl<V> Clone for Iter<'_, V> {
    fn clone(&self) -> Self {
        Iter {
            chunks: self.chunks.clone(),
            entries: self.entries.clone(),
        }
    }
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (&'a u64, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((number, value)) = self.entries.next() {
                #[cfg(test)]
                WALKED.set(WALKED.get() + 1);
                return Some((number, value));
            }
            self.entries = self.chunks.next()?.entries.iter();
        }
    }
}

impl<'a, V> IntoIterator for &'a FileMap<V> {
    type Item = (&'a u64, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}

impl<V: Clone> FromIterator<(u64, V)> for FileMap<V> {
    fn from_iter<I: IntoIterator<Item = (u64, V)>>(files: I) -> FileMap<V> {
        let mut map = FileMap::default();
        for (number, value) in files {
            map.insert(number, value);
        }
        map
    }
}

impl<V: PartialEq> PartialEq for FileMap<V> {
    fn eq(&self, other: &FileMap<V>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for FileMap<V> {}

impl<V: Debug> Debug for FileMap<V> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests;
