//! Names: which directory has which name for which inode. A hash table indexes a table of entries
//! of 24 bytes; the text of all names lies in one buffer. The entries of a directory are a doubly
//! linked list, so the cost of listing a directory grows with its own names alone.

use hashbrown::HashTable;
use std::sync::Arc;

use super::cow_table::CowTable;
use super::metadata_record::Ino;
use super::steps::count_steps;

/// The index that ends a list of entries.
const NONE: u32 = u32::MAX;
/// Bytes of a piece of the text.
const PIECE: usize = 1 << 16;

#[derive(Clone, Copy, Default)]
struct NameEntry {
    dir: Ino,
    ino: Ino,
    /// Offset of the text: the piece times [`PIECE`], and the offset in the piece.
    at: u32,
    /// Indexes of the previous and the next entry of the same directory, or [`NONE`].
    before: u32,
    behind: u32,
    /// Length of the text; 0 for an entry that is free.
    len: u16,
}

/// The text of all names, and of some removed ones.
#[derive(Clone, Default)]
struct NameText {
    pieces: Vec<Arc<Vec<u8>>>,
    /// Bytes of removed names.
    dead: usize,
}

impl NameText {
    fn get(&self, at: u32, len: u16) -> &str {
        let at = at as usize;
        let piece = &self.pieces[at / PIECE];
        let bytes = &piece[at % PIECE..at % PIECE + usize::from(len)];
        std::str::from_utf8(bytes).expect("names came from text")
    }

    fn push(&mut self, name: &str) -> u32 {
        let fits = |p: &Arc<Vec<u8>>| p.len() + name.len() <= PIECE;
        if !self.pieces.last().is_some_and(fits) {
            self.pieces.push(Arc::default());
        }
        let n = self.pieces.len() - 1;
        let piece = Arc::make_mut(&mut self.pieces[n]);
        let at = n * PIECE + piece.len();
        piece.extend_from_slice(name.as_bytes());
        u32::try_from(at).expect("4 GiB of names")
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|p| p.len()).sum()
    }
}

/// The names of all inodes.
#[derive(Default)]
pub struct Names {
    entries: CowTable<NameEntry>,
    text: NameText,
    free: Vec<u32>,
    table: HashTable<u32>,
    /// The index of the first entry of each directory that has entries, by directory.
    firsts: HashTable<u32>,
}

/// A copy of the names.
#[derive(Clone)]
pub struct NamesCopy {
    entries: CowTable<NameEntry>,
    text: NameText,
}

fn hash(dir: Ino, name: &str) -> u64 {
    let h = crc32c::crc32c_append(dir, name.as_bytes());
    // The table uses both ends of a hash, so the checksum is spread over all bits.
    u64::from(h).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn hash_dir(dir: Ino) -> u64 {
    u64::from(dir).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Names {
    fn place(&self, dir: Ino, name: &str) -> Option<u32> {
        let same = |&i: &u32| {
            let e = self.entries.get(i as usize);
            e.dir == dir && self.text.get(e.at, e.len) == name
        };
        self.table.find(hash(dir, name), same).copied()
    }

    /// Returns the inode of a name in a directory.
    pub fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        let i = self.place(dir, name)?;
        Some(self.entries.get(i as usize).ino)
    }

    /// Returns `true` if there is space for one more name: the text may have 4 GiB.
    pub fn has_room(&self) -> bool {
        self.text.pieces.len() < 1 << 16
    }

    /// Adds a name of 1 to 255 bytes, which must be free. [`Names::has_room`] must hold.
    pub fn insert(&mut self, dir: Ino, name: &str, ino: Ino) {
        let entry = NameEntry {
            dir,
            ino,
            at: self.text.push(name),
            before: NONE,
            behind: NONE,
            len: name.len() as u16,
        };
        let i = match self.free.pop() {
            Some(i) => {
                *self.entries.get_mut(i as usize) = entry;
                i
            }
            None => self.entries.push(entry) as u32,
        };
        let (entries, text) = (&self.entries, &self.text);
        self.table.insert_unique(hash(dir, name), i, |&i| {
            let e = entries.get(i as usize);
            hash(e.dir, text.get(e.at, e.len))
        });
        self.link(dir, i);
    }

    /// Puts an entry at the front of its directory's list.
    fn link(&mut self, dir: Ino, i: u32) {
        let entries = &self.entries;
        let of = |&i: &u32| entries.get(i as usize).dir;
        match self.firsts.find_mut(hash_dir(dir), |i| of(i) == dir) {
            None => {
                (self.firsts).insert_unique(hash_dir(dir), i, |i| hash_dir(of(i)));
            }
            Some(first) => {
                let behind = std::mem::replace(first, i);
                self.entries.get_mut(behind as usize).before = i;
                self.entries.get_mut(i as usize).behind = behind;
            }
        }
    }

    /// Takes an entry out of its directory's list.
    fn unlink(&mut self, i: u32) {
        let NameEntry {
            dir,
            before,
            behind,
            ..
        } = *self.entries.get(i as usize);
        if behind != NONE {
            self.entries.get_mut(behind as usize).before = before;
        }
        if before != NONE {
            self.entries.get_mut(before as usize).behind = behind;
            return;
        }
        let first = self.firsts.find_entry(hash_dir(dir), |&j| j == i);
        let Ok(mut first) = first else {
            unreachable!("a directory with names has a first one");
        };
        match behind {
            NONE => {
                first.remove();
            }
            behind => *first.get_mut() = behind,
        }
    }

    /// Removes a name. Returns its inode; `None` if there is no such name.
    pub fn remove(&mut self, dir: Ino, name: &str) -> Option<Ino> {
        let i = self.place(dir, name)?;
        let entry = self.table.find_entry(hash(dir, name), |&j| j == i).ok()?;
        entry.remove();
        self.unlink(i);
        let gone = std::mem::take(self.entries.get_mut(i as usize));
        self.free.push(i);
        self.text.dead += name.len();
        if self.text.dead > PIECE && self.text.dead > self.text.bytes() / 2 {
            self.compact_text();
        }
        Some(gone.ino)
    }

    /// Copies the text without that of removed names.
    fn compact_text(&mut self) {
        let old = std::mem::take(&mut self.text);
        for i in 0..self.entries.len() {
            let e = *self.entries.get(i);
            if e.len > 0 {
                self.entries.get_mut(i).at = self.text.push(old.get(e.at, e.len));
            }
        }
    }

    /// Returns the names and inodes of a directory, in no order. The cost grows with the number of
    /// names in that directory alone.
    pub fn children(&self, dir: Ino) -> impl Iterator<Item = (&str, Ino)> + '_ {
        let of = |&i: &u32| self.entries.get(i as usize).dir == dir;
        let mut next = self.firsts.find(hash_dir(dir), of).copied();
        std::iter::from_fn(move || {
            count_steps(1);
            let e = self.entries.get(next? as usize);
            next = Some(e.behind).filter(|i| *i != NONE);
            Some((self.text.get(e.at, e.len), e.ino))
        })
    }

    /// Copies all names. The cost is one pointer for each chunk and piece.
    pub fn copy(&self) -> NamesCopy {
        NamesCopy {
            entries: self.entries.clone(),
            text: self.text.clone(),
        }
    }

    /// Returns the directory, the text and the inode of each name, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &str, Ino)> + '_ {
        let all = self.entries.iter().map(|(_, e)| e).filter(|e| e.len > 0);
        all.inspect(|_| count_steps(1))
            .map(|e| (e.dir, self.text.get(e.at, e.len), e.ino))
    }

    /// Returns the number of names.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of names, and the size of their text in bytes.
    pub fn size(&self) -> (u64, u64) {
        let text = self.text.bytes() - self.text.dead;
        ((self.entries.len() - self.free.len()) as u64, text as u64)
    }

    /// Returns the memory of the entries with their tables, and of the text, in bytes.
    pub fn memory(&self) -> (usize, usize) {
        let table = (self.table.capacity() + self.firsts.capacity()) * 5 * 8 / 7;
        (
            self.entries.memory() + table + self.free.capacity() * 4,
            self.text.bytes(),
        )
    }
}

impl NamesCopy {
    /// Returns the directory, the text and the inode of each name, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &str, Ino)> + '_ {
        let all = self.entries.iter().map(|(_, e)| e).filter(|e| e.len > 0);
        all.map(|e| (e.dir, self.text.get(e.at, e.len), e.ino))
    }
}

#[cfg(test)]
mod tests;
