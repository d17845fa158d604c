//! Ranges of user keys that tables cover: [`KeySpan`] of inputs, [`OutputRange`] of outputs.

use crate::version::{FamilyVersion, TableFile};
use basalt_kv::key::Cmp;
use std::cmp::Ordering;
use std::sync::Arc;

/// The user keys from the first to the last of some tables.
#[derive(Clone, Copy)]
pub(super) struct KeySpan<'a> {
    from: &'a [u8],
    to: &'a [u8],
    /// True if `to` itself is not in the span, because a range tombstone ends there.
    open: bool,
}

impl<'a> KeySpan<'a> {
    /// Returns the span of some tables; `None` for none.
    pub(super) fn of(cmp: &Cmp, tables: &'a [Arc<TableFile>]) -> Option<KeySpan<'a>> {
        let mut tables = tables.iter();
        let first = tables.next()?;
        let start = KeySpan {
            from: first.smallest_user(),
            to: first.largest_user(),
            open: first.end_is_open(),
        };
        Some(tables.fold(start, |mut span, t| {
            if cmp.user(t.smallest_user(), span.from) == Ordering::Less {
                span.from = t.smallest_user();
            }
            match cmp.user(t.largest_user(), span.to) {
                Ordering::Greater => (span.to, span.open) = (t.largest_user(), t.end_is_open()),
                Ordering::Equal => span.open &= t.end_is_open(),
                Ordering::Less => {}
            }
            span
        }))
    }

    fn ends_before(&self, cmp: &Cmp, key: &[u8]) -> bool {
        match cmp.user(self.to, key) {
            Ordering::Less => true,
            Ordering::Equal => self.open,
            Ordering::Greater => false,
        }
    }

    /// Returns the tables of a level that overlap the span.
    pub(super) fn tables(&self, version: &FamilyVersion, level: usize) -> Vec<Arc<TableFile>> {
        let inside = |t: &&Arc<TableFile>| {
            !t.ends_before(self.from) && !self.ends_before(&version.cmp, t.smallest_user())
        };
        version.levels[level]
            .iter()
            .filter(inside)
            .cloned()
            .collect()
    }
}

/// The range of user keys in a level that the outputs of a plan may cover. One output table may
/// span a gap between two inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputRange {
    family: u32,
    level: usize,
    from: Vec<u8>,
    to: Vec<u8>,
    /// True if `to` itself is not in the range.
    open: bool,
}

impl OutputRange {
    pub(super) fn new(family: u32, level: usize, span: &KeySpan<'_>) -> OutputRange {
        OutputRange {
            family,
            level,
            from: span.from.to_vec(),
            to: span.to.to_vec(),
            open: span.open,
        }
    }

    /// Returns the range of a table that enters a level with keys from `from` to `to`, both
    /// inclusive.
    pub(crate) fn of_keys(family: u32, level: usize, from: &[u8], to: &[u8]) -> OutputRange {
        let open = false;
        OutputRange::new(family, level, &KeySpan { from, to, open })
    }

    fn span(&self) -> KeySpan<'_> {
        KeySpan {
            from: &self.from,
            to: &self.to,
            open: self.open,
        }
    }

    /// Returns true if both ranges are in one level of one family and have a key in common.
    pub(crate) fn overlaps(&self, cmp: &Cmp, other: &OutputRange) -> bool {
        self.overlaps_span(cmp, other.family, other.level, &other.span())
    }

    /// Returns true if a plan over this span into that level of a family may write into this range.
    pub(super) fn overlaps_span(
        &self,
        cmp: &Cmp,
        family: u32,
        level: usize,
        span: &KeySpan<'_>,
    ) -> bool {
        let own = self.span();
        (self.family, self.level) == (family, level)
            && !own.ends_before(cmp, span.from)
            && !span.ends_before(cmp, own.from)
    }
}

/// Returns `seed` with all tables of its level that a merge has to take along: tables in the span
/// of `seed`, and so on until the span stays. All versions of each user key are then on one side of
/// the cut, and no table of the level is left out between the inputs.
pub(super) fn clean_cut(
    version: &FamilyVersion,
    level: usize,
    seed: Vec<Arc<TableFile>>,
) -> Vec<Arc<TableFile>> {
    let mut tables = seed;
    loop {
        let Some(span) = KeySpan::of(&version.cmp, &tables) else {
            return tables;
        };
        let wider = span.tables(version, level);
        if wider.len() <= tables.len() {
            return wider;
        }
        tables = wider;
    }
}
