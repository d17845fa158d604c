//! [`InputIter`]: the cursor of a compaction over its input tables, which checks that it read every
//! entry.
//!
//! The cursor only moves forward. It counts the entries of every table, and compares the count with
//! the manifest's when it has read a table whole. A table that ends early without an error is
//! damaged.

use crate::iter::InternalIter;
use crate::version::TableFile;
use basalt_env::sync::Mutex;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{Cmp, encode_internal_key, user_key};
use basalt_table::{ReadPattern, TableIter};
use std::cmp::Ordering;
use std::sync::Arc;

/// The entries that a cursor has read, shared with its compaction.
#[derive(Default)]
pub(super) struct InputProgress {
    /// The table under the cursor.
    pub(super) table: Option<Arc<TableFile>>,
    /// Entries read of each table that the cursor has left.
    pub(super) seen: Vec<(Arc<TableFile>, u64)>,
}

/// A forward cursor over ascending, disjoint tables, cut to user keys in `[from, to)`.
pub(super) struct InputIter {
    tables: std::vec::IntoIter<Arc<TableFile>>,
    cmp: Cmp,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    open: Option<(Arc<TableFile>, TableIter)>,
    seen: u64,
    progress: Arc<Mutex<InputProgress>>,
}

impl InputIter {
    pub(super) fn new(
        tables: Vec<Arc<TableFile>>,
        cmp: Cmp,
        from: Option<Vec<u8>>,
        to: Option<Vec<u8>>,
        progress: Arc<Mutex<InputProgress>>,
    ) -> InputIter {
        InputIter {
            tables: tables.into_iter(),
            cmp,
            from,
            to,
            open: None,
            seen: 0,
            progress,
        }
    }

    /// Returns true if the table lies inside the range, so that this cursor reads all its entries.
    fn reads_whole(&self, t: &TableFile) -> bool {
        let after_from = self
            .from
            .as_ref()
            .is_none_or(|f| self.cmp.user(t.smallest_user(), f) != Ordering::Less);
        let before_to = self.to.as_ref().is_none_or(|to| t.ends_before(to));
        after_from && before_to
    }

    /// Closes the open table. Fails with `Corruption` if its entries are not as many as the
    /// manifest records.
    fn close_table(&mut self) -> Result<()> {
        let Some((table, _)) = self.open.take() else {
            return Ok(());
        };
        let seen = std::mem::take(&mut self.seen);
        let mut progress = self.progress.lock();
        progress.table = None;
        progress.seen.push((table.clone(), seen));
        if self.reads_whole(&table) && seen != table.meta.entries {
            return Err(Error::corruption(
                &table.path(),
                0,
                format!(
                    "expected {} entries as the manifest records, found {seen}",
                    table.meta.entries
                ),
            ));
        }
        Ok(())
    }

    /// Stays on the current entry if it is inside the range. Otherwise moves to the next table that
    /// has one.
    fn find_entry(&mut self) -> Result<()> {
        loop {
            if let Some((_, iter)) = &self.open {
                let inside = iter.valid()
                    && self
                        .to
                        .as_ref()
                        .is_none_or(|to| self.cmp.user(user_key(iter.key()), to) == Ordering::Less);
                if inside {
                    self.seen += 1;
                    return Ok(());
                }
            }
            self.close_table()?;
            let Some(table) = self.tables.next() else {
                return Ok(());
            };
            let before = self.from.as_ref().is_some_and(|f| table.ends_before(f));
            let after = self
                .to
                .as_ref()
                .is_some_and(|to| self.cmp.user(table.smallest_user(), to) != Ordering::Less);
            if before || after {
                continue;
            }
            self.progress.lock().table = Some(table.clone());
            let mut iter = table.reader()?.iter(ReadPattern::Compaction);
            match &self.from {
                Some(from) if self.cmp.user(table.smallest_user(), from) == Ordering::Less => {
                    let mut target = Vec::new();
                    encode_internal_key(&mut target, from, u64::MAX);
                    iter.seek(&target)?;
                }
                _ => iter.seek_to_first()?,
            }
            self.open = Some((table, iter));
        }
    }

    fn iter(&self) -> &TableIter {
        &self.open.as_ref().expect("the cursor is positioned").1
    }
}

fn forward_only() -> Result<()> {
    Err(Error::unsupported(
        "a compaction's input is read once, forward",
    ))
}

impl InternalIter for InputIter {
    fn valid(&self) -> bool {
        self.open.is_some()
    }
    /// Moves to the first entry of the range. Called once.
    fn seek_to_first(&mut self) -> Result<()> {
        self.find_entry()
    }
    fn seek_to_last(&mut self) -> Result<()> {
        forward_only()
    }
    fn seek(&mut self, _target: &[u8]) -> Result<()> {
        forward_only()
    }
    fn seek_for_prev(&mut self, _target: &[u8]) -> Result<()> {
        forward_only()
    }
    fn next(&mut self) -> Result<()> {
        let (_, iter) = self.open.as_mut().expect("the cursor is positioned");
        iter.next()?;
        self.find_entry()
    }
    fn prev(&mut self) -> Result<()> {
        forward_only()
    }
    #[inline]
    fn key(&self) -> &[u8] {
        self.iter().key()
    }
    #[inline]
    fn value(&self) -> &[u8] {
        self.iter().value()
    }
    fn pinned_value(&self) -> Bytes {
        self.iter().pinned_value()
    }
}
