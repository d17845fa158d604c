//! Counts of garbage, by file.

use smallvec::SmallVec;

/// Numbers of bytes by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct BytesByFile(SmallVec<[(u64, u64); 2]>);

impl BytesByFile {
    /// Adds bytes of a file.
    pub fn add(&mut self, file: u64, bytes: u64) {
        match self.0.iter_mut().rev().find(|(f, _)| *f == file) {
            Some((_, sum)) => *sum += bytes,
            None => self.0.push((file, bytes)),
        }
    }

    /// Subtracts bytes of a file. Returns how many of them were counted: fewer only if a page says
    /// other lengths than the checkpoint.
    pub fn subtract(&mut self, file: u64, bytes: u64) -> u64 {
        let Some(at) = self.0.iter().position(|(f, _)| *f == file) else {
            return 0;
        };
        let counted = bytes.min(self.0[at].1);
        self.0[at].1 -= counted;
        if self.0[at].1 == 0 {
            self.0.swap_remove(at);
        }
        counted
    }

    /// Returns the bytes of a file.
    pub fn get(&self, file: u64) -> u64 {
        let of_file = self.0.iter().find(|(f, _)| *f == file);
        of_file.map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the files and their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the bytes of all files.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Adds the bytes of all files of `other`.
    pub fn add_all(&mut self, other: &BytesByFile) {
        for (file, bytes) in other.iter() {
            self.add(file, bytes);
        }
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of memory beyond the struct.
    pub fn heap(&self) -> usize {
        match self.0.spilled() {
            true => self.0.capacity() * size_of::<(u64, u64)>(),
            false => 0,
        }
    }

    /// Returns the bytes of all files, or `None` if the sum overflows.
    pub fn checked_sum(&self) -> Option<u64> {
        self.iter().try_fold(0u64, |sum, (_, n)| sum.checked_add(n))
    }
}

/// Garbage that a change has made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Freed {
    /// Bytes of records, by file of the datalog.
    pub records: BytesByFile,
    /// Bytes of pages, by file of the metalog.
    pub pages: BytesByFile,
    /// Number of records.
    pub count: u64,
}
