//! [`LevelIter`]: the tables of one sorted level read as one.
//!
//! Tables are opened when the cursor reaches them, so a scan over a short range opens one or two of a level's hundreds.
//! A table whose content disagrees with what the manifest says of its range is reported as damage, never passed over.

use crate::iter::InternalIter;
use crate::key::Cmp;
use crate::table::{ReadPattern, TableIter};
use crate::version::TableFile;
use basalt_fs::{Bytes, Error, Result};
use std::cmp::Ordering;
use std::sync::Arc;

/// A cursor over sorted tables with disjoint ranges of user keys. See the module.
pub struct LevelIter {
    tables: Vec<Arc<TableFile>>,
    cmp: Cmp,
    pattern: ReadPattern,
    /// The open table and its place in `tables`.
    open: Option<(usize, TableIter)>,
}

impl LevelIter {
    /// Over tables in ascending order. Opens nothing yet.
    pub fn new(tables: Vec<Arc<TableFile>>, cmp: Cmp, pattern: ReadPattern) -> LevelIter {
        debug_assert!(
            tables
                .windows(2)
                .all(|w| { cmp.user(w[0].largest_user(), w[1].smallest_user()) == Ordering::Less })
        );
        LevelIter {
            tables,
            cmp,
            pattern,
            open: None,
        }
    }

    /// Opens table `at` (unless it is the open one), moves in it and checks that it landed on an entry.
    fn land(
        &mut self,
        at: Option<usize>,
        seek: impl FnOnce(&mut TableIter) -> Result<()>,
    ) -> Result<()> {
        let Some(table) = at.and_then(|i| self.tables.get(i)) else {
            self.open = None;
            return Ok(());
        };
        let at = at.expect("a table was found at it");
        let mut iter = match self.open.take() {
            Some((i, iter)) if i == at => iter,
            _ => table.reader()?.iter(self.pattern),
        };
        seek(&mut iter)?;
        if !iter.valid() {
            return Err(Error::corruption(
                &table.path(),
                0,
                "expected an entry inside the key range that the manifest records, found none",
            ));
        }
        self.open = Some((at, iter));
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

    fn seek_to_first(&mut self) -> Result<()> {
        self.land(Some(0), |i| i.seek_to_first())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.land(self.tables.len().checked_sub(1), |i| i.seek_to_last())
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        let at = self
            .tables
            .partition_point(|t| self.cmp.internal(&t.meta.largest, target) == Ordering::Less);
        self.land(Some(at), |i| i.seek(target))
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        let after = self
            .tables
            .partition_point(|t| self.cmp.internal(&t.meta.smallest, target) != Ordering::Greater);
        self.land(after.checked_sub(1), |i| i.seek_for_prev(target))
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
        self.land(Some(next), |i| i.seek_to_first())
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
        self.land(previous, |i| i.seek_to_last())
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
