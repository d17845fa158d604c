//! [`Cover`]: all range tombstones of a view, or of its newer part, asked for one key after the other.
//!
//! Sources stand in the order of a read, newest first. An answer is kept with the stretch of keys that it holds for, so that a scan asks the
//! sources once a stretch and not once an entry. Tables of a level are opened when a key comes into the range of one that has tombstones.

use crate::version::TableFile;
use basalt_fs::Result;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, Stretch};
use std::cmp::Ordering;
use std::sync::Arc;

/// Who has range tombstones.
pub(crate) enum Source {
    /// A memtable's run.
    Run(Arc<Fragments>),
    /// Tables with range tombstones, ascending and disjoint: one of level 0, or all such of a level.
    Tables(Vec<Arc<TableFile>>),
}

/// The chunks of a memtable, see the module.
pub(crate) struct Cover {
    cmp: Cmp,
    sources: Arc<Vec<Source>>,
    /// How many of the sources count.
    upto_source: usize,
    /// Tombstones above it are not visible.
    upto: SeqNo,
    /// What the last answer was, and for which keys it is one.
    known: bool,
    seq: SeqNo,
    from: Bound,
    to: Bound,
}

/// A key whose memory is used again; `set` is false for none.
#[derive(Default)]
struct Bound {
    set: bool,
    key: Vec<u8>,
}

impl Bound {
    fn get(&self) -> Option<&[u8]> {
        self.set.then_some(&self.key[..])
    }
    fn put(&mut self, key: Option<&[u8]>) {
        self.set = key.is_some();
        self.key.clear();
        self.key.extend_from_slice(key.unwrap_or_default());
    }
}

impl Cover {
    /// Of the first `upto_source` sources, as of `upto`.
    pub(crate) fn new(
        cmp: Cmp,
        sources: Arc<Vec<Source>>,
        upto_source: usize,
        upto: SeqNo,
    ) -> Cover {
        Cover {
            cmp,
            sources,
            upto_source,
            upto,
            known: false,
            seq: 0,
            from: Bound::default(),
            to: Bound::default(),
        }
    }

    /// Of nothing.
    pub(crate) fn none(cmp: Cmp) -> Cover {
        Cover::new(cmp, Arc::default(), 0, 0)
    }

    /// True when no key can be covered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.upto_source == 0
    }

    /// The newest visible tombstone that covers the key; 0 for none. Errors: whatever opening a table meets.
    #[inline]
    pub(crate) fn at(&mut self, key: &[u8]) -> Result<SeqNo> {
        if self.is_empty() {
            return Ok(0);
        }
        let inside = self.known
            && (self.to.get()).is_none_or(|to| self.cmp.user(key, to) == Ordering::Less)
            && (self.from.get()).is_none_or(|from| self.cmp.user(key, from) != Ordering::Less);
        if !inside {
            self.ask(key)?;
        }
        Ok(self.seq)
    }

    /// Where the last answer begins to hold.
    pub(crate) fn from(&self) -> Option<&[u8]> {
        self.from.get()
    }

    /// Where the last answer ends.
    pub(crate) fn to(&self) -> Option<&[u8]> {
        self.to.get()
    }

    fn ask(&mut self, key: &[u8]) -> Result<()> {
        self.known = false;
        self.seq = 0;
        self.from.put(None);
        self.to.put(None);
        let sources = self.sources.clone();
        for source in &sources[..self.upto_source] {
            match source {
                Source::Run(fragments) => {
                    self.narrow(fragments.stretch(&self.cmp.clone(), key, self.upto));
                }
                Source::Tables(tables) => self.ask_tables(tables, key)?,
            }
        }
        self.known = true;
        Ok(())
    }

    fn ask_tables(&mut self, tables: &[Arc<TableFile>], key: &[u8]) -> Result<()> {
        let cmp = self.cmp.clone();
        let i = tables.partition_point(|t| t.ends_before(key));
        if let Some(before) = i.checked_sub(1).map(|b| &tables[b]) {
            // Behind its end, or behind its last key: at most that much earlier the answer may differ.
            let end = before.largest_user();
            if before.end_is_open() || cmp.user(end, key) == Ordering::Less {
                self.narrow(Stretch {
                    seq: 0,
                    from: Some(end),
                    to: None,
                });
            }
        }
        let Some(table) = tables.get(i) else {
            return Ok(());
        };
        if cmp.user(table.smallest_user(), key) == Ordering::Greater {
            self.narrow(Stretch {
                seq: 0,
                from: None,
                to: Some(table.smallest_user()),
            });
            return Ok(());
        }
        let reader = table.reader()?;
        self.narrow(reader.ranges().stretch(&cmp, key, self.upto));
        // A table's tombstones say nothing of what its neighbours have.
        self.narrow(Stretch {
            seq: 0,
            from: Some(table.smallest_user()),
            to: None,
        });
        if table.end_is_open() {
            self.narrow(Stretch {
                seq: 0,
                from: None,
                to: Some(table.largest_user()),
            });
        } else if let Some(next) = tables.get(i + 1) {
            self.narrow(Stretch {
                seq: 0,
                from: None,
                to: Some(next.smallest_user()),
            });
        }
        Ok(())
    }

    fn narrow(&mut self, s: Stretch<'_>) {
        self.seq = self.seq.max(s.seq);
        if let Some(from) = s.from
            && (self.from.get()).is_none_or(|f| self.cmp.user(f, from) == Ordering::Less)
        {
            self.from.put(Some(from));
        }
        if let Some(to) = s.to
            && (self.to.get()).is_none_or(|t| self.cmp.user(to, t) == Ordering::Less)
        {
            self.to.put(Some(to));
        }
    }
}
