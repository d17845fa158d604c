//! The tables of one level in their order, with sums that each change maintains.
//!
//! Every change of the tree and every commit decision asks for the bytes of levels. A walk over all
//! tables would cost a store of 100,000 tables milliseconds each time. So a level updates its sums
//! when a table enters or leaves.

use super::TableFile;
use basalt_kv::key::Cmp;
use std::cmp::Ordering;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;

/// Sums over the tables of a level. They are exact once a manifest has passed
/// [`super::catalog::Catalog::check_totals`]; before that, impossible numbers in a damaged manifest
/// wrap around.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LevelTotals {
    /// Bytes of the tables' files.
    pub bytes: u64,
    /// Tombstones of single keys.
    pub deletes: u64,
    /// Tombstones of key ranges.
    pub range_deletes: u64,
    /// References to values in blob files.
    pub references: u64,
}

impl LevelTotals {
    fn of(t: &TableFile) -> LevelTotals {
        LevelTotals {
            bytes: t.meta.size,
            deletes: t.meta.deletes,
            range_deletes: t.meta.range_deletes,
            references: references(t),
        }
    }

    fn each(self, other: LevelTotals, change: fn(u64, u64) -> u64) -> LevelTotals {
        LevelTotals {
            bytes: change(self.bytes, other.bytes),
            deletes: change(self.deletes, other.deletes),
            range_deletes: change(self.range_deletes, other.range_deletes),
            references: change(self.references, other.references),
        }
    }
}

/// Returns the number of references from a table to values in blob files.
pub fn references(t: &TableFile) -> u64 {
    let counts = t.meta.references.iter().map(|(_, n)| *n);
    counts.fold(0, u64::saturating_add)
}

/// The tables of one level, as a slice in reading order. Clones share the slice until one of them
/// is changed.
#[derive(Debug, Clone, Default)]
pub struct Level {
    tables: Arc<Vec<Arc<TableFile>>>,
    totals: LevelTotals,
}

#[cfg(test)]
thread_local! {
    /// Number of tables over which this thread has begun to walk with [`Level::iter`].
    pub(crate) static WALKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Deref for Level {
    type Target = [Arc<TableFile>];

    #[inline]
    fn deref(&self) -> &[Arc<TableFile>] {
        &self.tables
    }
}

impl<'a> IntoIterator for &'a Level {
    type Item = &'a Arc<TableFile>;
    type IntoIter = slice::Iter<'a, Arc<TableFile>>;

    fn into_iter(self) -> slice::Iter<'a, Arc<TableFile>> {
        self.iter()
    }
}

impl Level {
    /// Returns all tables in order.
    #[inline]
    pub fn iter(&self) -> slice::Iter<'_, Arc<TableFile>> {
        #[cfg(test)]
        WALKED.set(WALKED.get() + self.tables.len());
        self.tables.iter()
    }

    /// Returns the sums over the tables, in constant time.
    #[inline]
    pub fn totals(&self) -> LevelTotals {
        self.totals
    }

    /// Adds up the sums over all tables.
    fn recount(&self) -> LevelTotals {
        let each = self.tables.iter().map(|t| LevelTotals::of(t));
        each.fold(LevelTotals::default(), |sum, t| {
            sum.each(t, u64::wrapping_add)
        })
    }

    /// Returns true if the sums match the tables. The cost is a walk over all tables.
    pub(super) fn adds_up(&self) -> bool {
        self.totals == self.recount()
    }

    /// Adds a table behind all others. The caller sorts the level afterwards.
    pub(super) fn push(&mut self, table: Arc<TableFile>) {
        self.insert(self.tables.len(), table);
    }

    /// Inserts a table at a position.
    pub(super) fn insert(&mut self, at: usize, table: Arc<TableFile>) {
        let own = LevelTotals::of(&table);
        self.totals = self.totals.each(own, u64::wrapping_add);
        Arc::make_mut(&mut self.tables).insert(at, table);
    }

    /// Removes the table at a position.
    pub(super) fn remove(&mut self, at: usize) -> Arc<TableFile> {
        let table = Arc::make_mut(&mut self.tables).remove(at);
        let own = LevelTotals::of(&table);
        self.totals = self.totals.each(own, u64::wrapping_sub);
        table
    }

    /// Sorts all tables.
    pub(super) fn sort_by(&mut self, order: impl Fn(&TableFile, &TableFile) -> Ordering) {
        Arc::make_mut(&mut self.tables).sort_by(|a, b| order(a, b));
    }

    /// Returns the position of a table in level 0, which is ordered by age: the newest first.
    pub(super) fn position_by_age(&self, max_seq: u64, number: u64) -> usize {
        self.partition_point(|t| (t.meta.max_seq, t.number) > (max_seq, number))
    }

    /// Returns the position of a table in a level below 0, which is ordered by the tables' smallest
    /// keys.
    pub(super) fn position_by_key(&self, cmp: &Cmp, smallest: &[u8]) -> usize {
        self.partition_point(|t| cmp.internal(&t.meta.smallest, smallest) == Ordering::Less)
    }
}

#[cfg(test)]
mod tests;
