//! [`LevelIter`]: the tables of one sorted level read as one.
//!
//! Tables are opened when the cursor reaches them, so a scan over a short range opens one or two of
//! a level's hundreds. If the content of a table does not match the key range in the manifest, the
//! cursor fails with `Corruption` and never skips the table.

use crate::iter::InternalIter;
use crate::version::TableFile;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::Cmp;
use basalt_kv::prefix::Narrow;
use basalt_table::{ReadPattern, SeekBlock, SeekRead, TableIter};
use std::cmp::Ordering;
use std::sync::Arc;

/// A cursor over sorted tables with disjoint ranges of user keys. See the module.
pub struct LevelIter {
    tables: Vec<Arc<TableFile>>,
    cmp: Cmp,
    pattern: ReadPattern,
    /// True if a seek reads the next block along: see [`TableIter::with_next`].
    with_next: bool,
    /// Index in `tables` of the open table, and the cursor over it.
    open: Option<(usize, TableIter)>,
    /// Index and cursor of the table that a seek lands in, between the halves of the seek.
    seeking: Option<(usize, TableIter)>,
    narrow: Option<Arc<Narrow>>,
}

impl LevelIter {
    /// Returns a cursor over tables in ascending order, not positioned. Opens no table yet.
    pub fn new(tables: Vec<Arc<TableFile>>, cmp: Cmp, pattern: ReadPattern) -> LevelIter {
        debug_assert!(
            tables
                .windows(2)
                .all(|w| w[0].ends_before(w[1].smallest_user()))
        );
        LevelIter {
            tables,
            cmp,
            pattern,
            with_next: false,
            open: None,
            seeking: None,
            narrow: None,
        }
    }

    /// Makes seeks read the next block along, for the level that holds the most data: see
    /// [`TableIter::with_next`].
    pub(crate) fn with_next(mut self) -> LevelIter {
        self.with_next = true;
        self
    }

    /// Returns the index of the table to land in: `at` or, if the cursor is narrowed to a prefix,
    /// the first from `at` on, in the direction of the walk, that may have the prefix.
    fn narrowed(&self, at: Option<usize>, up: bool) -> Result<Option<usize>> {
        let Some(narrow) = &self.narrow else {
            return Ok(at);
        };
        let mut at = at;
        while let Some(table) = at.and_then(|i| self.tables.get(i)) {
            let (smallest, largest) = (table.smallest_user(), table.largest_user());
            if narrow.is_outside(smallest, largest) {
                return Ok(None);
            }
            if (table.reader()?).may_hold_prefix(narrow, self.pattern == ReadPattern::Cached)? {
                return Ok(at);
            }
            // A table that holds no key of the prefix and ends outside of it is the last that could
            // have the prefix.
            if !narrow.has(if up { largest } else { smallest }) {
                return Ok(None);
            }
            at = match (at, up) {
                (Some(i), true) => Some(i + 1),
                (Some(i), false) => i.checked_sub(1),
                (None, _) => None,
            };
        }
        Ok(None)
    }

    /// Opens table `at` if it is not open or, if it does not have the prefix, the next one that
    /// does. The returned cursor is not positioned.
    fn enter(&mut self, at: Option<usize>, up: bool) -> Result<Option<(usize, TableIter)>> {
        let open = self.open.take();
        let Some(at) = self.narrowed(at, up)? else {
            return Ok(None);
        };
        let Some(table) = self.tables.get(at) else {
            return Ok(None);
        };
        let iter = match open {
            Some((i, iter)) if i == at => iter,
            _ if self.with_next => table.reader()?.iter(self.pattern).with_next(),
            _ => table.reader()?.iter(self.pattern),
        };
        Ok(Some((at, iter)))
    }

    /// Opens a table, moves in it with `seek`, and checks that it landed on an entry, as
    /// [`LevelIter::landed`] does.
    fn land(
        &mut self,
        at: Option<usize>,
        up: bool,
        seek: impl FnOnce(&mut TableIter) -> Result<()>,
    ) -> Result<Option<usize>> {
        let Some((at, mut iter)) = self.enter(at, up)? else {
            return Ok(None);
        };
        seek(&mut iter)?;
        self.landed(at, iter)
    }

    /// Checks that the cursor over table `at` landed on an entry. Returns `at` if it did not and
    /// need not: the key range of a table with range tombstones is wider than its entries. Fails
    /// with `Corruption` if a table without range tombstones has no entry there.
    fn landed(&mut self, at: usize, iter: TableIter) -> Result<Option<usize>> {
        let table = &self.tables[at];
        if !iter.valid() && table.meta.range_deletes > 0 {
            return Ok(Some(at));
        }
        if !iter.valid() {
            return Err(Error::corruption(
                &table.path(),
                0,
                "expected an entry inside the key range that the manifest records, found none",
            ));
        }
        self.open = Some((at, iter));
        Ok(None)
    }

    /// Lands in table `at`, or on the first entry of the tables behind it.
    fn land_forward(
        &mut self,
        at: usize,
        seek: impl FnOnce(&mut TableIter) -> Result<()>,
    ) -> Result<()> {
        let missed = self.land(Some(at), true, seek)?;
        self.land_behind(missed)
    }

    /// Moves to the first entry behind a table that has no entry at the target.
    fn land_behind(&mut self, mut missed: Option<usize>) -> Result<()> {
        while let Some(at) = missed {
            missed = self.land(Some(at + 1), true, |i| i.seek_to_first())?;
        }
        Ok(())
    }

    /// Returns the index of the table that a seek lands in.
    fn table_of(&self, target: &[u8]) -> usize {
        self.tables
            .partition_point(|t| self.cmp.internal(&t.meta.largest, target) == Ordering::Less)
    }

    /// Lands in table `at`, or on the last entry of the tables before it.
    fn land_backward(
        &mut self,
        at: Option<usize>,
        seek: impl FnOnce(&mut TableIter) -> Result<()>,
    ) -> Result<()> {
        let mut missed = self.land(at, false, seek)?;
        while let Some(at) = missed {
            missed = self.land(at.checked_sub(1), false, |i| i.seek_to_last())?;
        }
        Ok(())
    }

    fn current(&self) -> &TableIter {
        &self.open.as_ref().expect("the cursor is not positioned").1
    }
}

impl InternalIter for LevelIter {
    fn valid(&self) -> bool {
        self.open.is_some()
    }

    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        self.narrow = to.cloned();
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.land_forward(0, |i| i.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.land_backward(self.tables.len().checked_sub(1), |i| i.seek_to_last())
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.land_forward(self.table_of(target), |i| i.seek(target))
    }

    fn begin_seek(&mut self, target: &[u8]) -> Result<Option<SeekRead>> {
        self.seeking = None;
        let Some((at, mut iter)) = self.enter(Some(self.table_of(target)), true)? else {
            return Ok(None);
        };
        let seek_read = iter.begin_seek(target)?;
        self.seeking = Some((at, iter));
        Ok(seek_read)
    }

    fn finish_seek(&mut self, target: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        let Some((at, mut iter)) = self.seeking.take() else {
            return Ok(());
        };
        iter.finish_seek(target, landed)?;
        let missed = self.landed(at, iter)?;
        self.land_behind(missed)
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        let after = self
            .tables
            .partition_point(|t| self.cmp.internal(&t.meta.smallest, target) != Ordering::Greater);
        self.land_backward(after.checked_sub(1), |i| i.seek_for_prev(target))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let (at, iter) = self.open.as_mut().expect("the cursor is not positioned");
        let moved = iter.next();
        if moved.is_ok() && iter.valid() {
            return Ok(());
        }
        let next = *at + 1;
        self.open = None;
        moved?;
        self.land_forward(next, |i| i.seek_to_first())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        let (at, iter) = self.open.as_mut().expect("the cursor is not positioned");
        let moved = iter.prev();
        if moved.is_ok() && iter.valid() {
            return Ok(());
        }
        let previous = at.checked_sub(1);
        self.open = None;
        moved?;
        self.land_backward(previous, |i| i.seek_to_last())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current().value()
    }

    fn pinned_value(&self) -> Bytes {
        self.current().pinned_value()
    }
}
