//! Sorted ranges of bytes.

/// Ranges of bytes of an extent, from an offset to an end. They are sorted, none is empty, and no
/// two of them overlap or touch.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct ByteRanges(Vec<(u32, u32)>);

impl ByteRanges {
    /// Returns the ranges of pages in any order; `None` if two pages overlap or one is empty.
    pub fn of_pages(mut pages: Vec<(u32, u32)>) -> Option<ByteRanges> {
        pages.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (from, to) in pages {
            match ranges.last_mut() {
                _ if to <= from => return None,
                Some((_, end)) if from < *end => return None,
                Some((_, end)) if from == *end => *end = to,
                _ => ranges.push((from, to)),
            }
        }
        ranges.shrink_to_fit();
        Some(ByteRanges(ranges))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the sum of the bytes of all ranges.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(from, to)| u64::from(to - from)).sum()
    }

    /// Returns the bytes of memory beside the struct.
    pub fn memory(&self) -> u64 {
        (self.0.capacity() * size_of::<(u32, u32)>()) as u64
    }

    /// Returns true if one range has all bytes from `from` to `to`.
    pub fn have(&self, from: u32, to: u32) -> bool {
        self.around(from, to).is_some()
    }

    /// Appends a range behind all others. Returns `None` if it is empty or not behind them.
    pub fn push(&mut self, from: u32, to: u32) -> Option<()> {
        let end_before = self.0.last().map_or(0, |(_, end)| *end);
        if from < end_before || to <= from {
            return None;
        }
        self.0.push((from, to));
        Some(())
    }

    /// Adds bytes that no range has.
    pub fn add(&mut self, from: u32, to: u32) {
        let next = self.0.partition_point(|(begin, _)| *begin < from);
        let joins_last = next > 0 && self.0[next - 1].1 == from;
        let joins_next = self.0.get(next).is_some_and(|(begin, _)| *begin == to);
        match (joins_last, joins_next) {
            (true, true) => {
                let (_, end) = self.0.remove(next);
                self.0[next - 1].1 = end;
            }
            (true, false) => self.0[next - 1].1 = to,
            (false, true) => self.0[next].0 = from,
            (false, false) => self.0.insert(next, (from, to)),
        }
    }

    /// Removes bytes. Returns false if no range has all of them; then nothing has changed.
    pub fn remove(&mut self, from: u32, to: u32) -> bool {
        let Some(i) = self.around(from, to) else {
            return false;
        };
        let (begin, end) = self.0[i];
        match (begin < from, to < end) {
            (true, true) => {
                self.0[i].1 = from;
                self.0.insert(i + 1, (to, end));
            }
            (true, false) => self.0[i].1 = from,
            (false, true) => self.0[i].0 = to,
            (false, false) => {
                self.0.remove(i);
                if self.0.capacity() > 4 * self.0.len() + 8 {
                    self.0.shrink_to(2 * self.0.len());
                }
            }
        }
        true
    }

    /// Returns the position of the range that has all bytes from `from` to `to`.
    fn around(&self, from: u32, to: u32) -> Option<usize> {
        let i = self.0.partition_point(|(begin, _)| *begin <= from);
        let i = i.checked_sub(1)?;
        (to <= self.0[i].1).then_some(i)
    }
}
