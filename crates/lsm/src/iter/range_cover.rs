//! [`Cover`]: the newest range tombstone over a key, of all sources of a read or of the newer ones.
//!
//! Sources stand in the order of a read, newest first. An answer is cached with the stretch of keys
//! that it holds for, so that a scan searches the sources once a stretch and not once an entry.
//! A table of a level is opened when a key comes into its range, if it has range tombstones.

use crate::version::TableFile;
use basalt_fs::Result;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, Stretch};
use std::cmp::Ordering;
use std::sync::Arc;

/// A source of range tombstones.
pub(crate) enum TombstoneSource {
    /// A run of a memtable.
    Run(Arc<Fragments>),
    /// Tables with range tombstones, ascending and disjoint: one table of level 0, or all such
    /// tables of another level.
    Tables(Vec<Arc<TableFile>>),
}

/// The range tombstones of a read, with the last answer. See the module.
pub(crate) struct Cover {
    cmp: Cmp,
    sources: Arc<Vec<TombstoneSource>>,
    /// Number of sources that count, from the newest on.
    upto_source: usize,
    /// Tombstones above this sequence number are not visible.
    upto: SeqNo,
    /// True if `seq` is the answer for the keys from `from` to `to`.
    known: bool,
    seq: SeqNo,
    from: OptionalKey,
    to: OptionalKey,
}

/// An optional key whose memory is used again.
#[derive(Default)]
struct OptionalKey {
    set: bool,
    key: Vec<u8>,
}

impl OptionalKey {
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
    /// Returns the cover of the first `upto_source` sources, as of sequence number `upto`.
    pub(crate) fn new(
        cmp: Cmp,
        sources: Arc<Vec<TombstoneSource>>,
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
            from: OptionalKey::default(),
            to: OptionalKey::default(),
        }
    }

    /// Returns a cover without tombstones.
    pub(crate) fn none(cmp: Cmp) -> Cover {
        Cover::new(cmp, Arc::default(), 0, 0)
    }

    /// Returns true if no key can be covered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.upto_source == 0
    }

    /// Returns the sequence number of the newest visible tombstone over the key; 0 for none. Fails
    /// with the error of opening a table.
    #[inline]
    pub(crate) fn at(&mut self, key: &[u8]) -> Result<SeqNo> {
        if self.is_empty() {
            return Ok(0);
        }
        let inside = self.known
            && (self.to.get()).is_none_or(|to| self.cmp.user(key, to) == Ordering::Less)
            && (self.from.get()).is_none_or(|from| self.cmp.user(key, from) != Ordering::Less);
        if !inside {
            self.search(key)?;
        }
        Ok(self.seq)
    }

    /// Returns the key from which on the last answer holds; `None` for unbounded.
    pub(crate) fn from(&self) -> Option<&[u8]> {
        self.from.get()
    }

    /// Returns the key before which the last answer holds; `None` for unbounded.
    pub(crate) fn to(&self) -> Option<&[u8]> {
        self.to.get()
    }

    /// Searches all sources for the newest tombstone over the key.
    fn search(&mut self, key: &[u8]) -> Result<()> {
        self.known = false;
        self.seq = 0;
        self.from.put(None);
        self.to.put(None);
        let sources = self.sources.clone();
        for source in &sources[..self.upto_source] {
            match source {
                TombstoneSource::Run(fragments) => {
                    self.narrow(fragments.stretch(&self.cmp.clone(), key, self.upto));
                }
                TombstoneSource::Tables(tables) => self.search_tables(tables, key)?,
            }
        }
        self.known = true;
        Ok(())
    }

    /// Searches the table whose range has the key, and limits the answer to where it holds.
    fn search_tables(&mut self, tables: &[Arc<TableFile>], key: &[u8]) -> Result<()> {
        let cmp = self.cmp.clone();
        let i = tables.partition_point(|t| t.ends_before(key));
        if let Some(before) = i.checked_sub(1).map(|b| &tables[b]) {
            // The key lies behind the end of the table before, or behind its last key. The answer
            // may differ for keys up to there.
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
        // The tombstones of a table say nothing about the keys of its neighbours.
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

    /// Combines the answer with that of one source.
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
