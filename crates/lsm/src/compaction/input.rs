//! [`InputIter`]: a compaction's pass over tables, which misses nothing silently.
//!
//! It reads forward only, counts the entries of every table, and holds them against the manifest's count as soon as a table
//! was read whole: a table that ends early without an error is damage, not an end.

use crate::iter::InternalIter;
use crate::version::TableFile;
use basalt_env::sync::Mutex;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{Cmp, encode_internal_key, user_key};
use basalt_table::{ReadPattern, TableIter};
use std::cmp::Ordering;
use std::sync::Arc;

/// What one cursor has read so far, shared with the compaction that drives it.
#[derive(Default)]
pub(super) struct Progress {
    /// The table under the cursor.
    pub(super) table: Option<Arc<TableFile>>,
    /// Entries seen of each finished or abandoned table.
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
    progress: Arc<Mutex<Progress>>,
}

impl InputIter {
    pub(super) fn new(
        tables: Vec<Arc<TableFile>>,
        cmp: Cmp,
        from: Option<Vec<u8>>,
        to: Option<Vec<u8>>,
        progress: Arc<Mutex<Progress>>,
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

    /// True when the table lies inside the range, so that all its entries are read here.
    fn whole(&self, t: &TableFile) -> bool {
        let after_from = self
            .from
            .as_ref()
            .is_none_or(|f| self.cmp.user(t.smallest_user(), f) != Ordering::Less);
        let before_to = self.to.as_ref().is_none_or(|to| t.ends_before(to));
        after_from && before_to
    }

    /// Closes the open table's account.
    fn leave(&mut self) -> Result<()> {
        let Some((table, _)) = self.open.take() else {
            return Ok(());
        };
        let seen = std::mem::take(&mut self.seen);
        let mut progress = self.progress.lock();
        progress.table = None;
        progress.seen.push((table.clone(), seen));
        if self.whole(&table) && seen != table.meta.entries {
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

    /// Stays when there is an entry inside the range here; otherwise goes on to the next table.
    fn arrive(&mut self) -> Result<()> {
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
            self.leave()?;
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
    /// To the first entry of the range. Once.
    fn seek_to_first(&mut self) -> Result<()> {
        self.arrive()
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
        self.arrive()
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
