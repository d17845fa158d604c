//! The backlog: how far background work is behind the writers of a store.

use super::families::FamilyEntry;
use super::pages::PageView;
use crate::compaction::compaction_debt;
use crate::version::Version;
use std::collections::BTreeMap;

/// The backlog: how far the tree is behind its writers. It is part of a [`View`](super::view::View)
/// and is computed when the tree changes. 0 is no backlog; at 1 writers wait.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Backlog {
    /// Pressure of the tables in level 0.
    level0: f64,
    /// Pressure of the bytes that compactions owe.
    debt: f64,
    /// True if background work is behind, even if not far enough to slow writers. It then does not
    /// pause for foreground I/O.
    is_urgent: bool,
}

impl Backlog {
    /// Returns the pressure of the tables in level 0: 0 is well, 1 is where writers wait.
    pub fn level0(&self) -> f64 {
        self.level0
    }

    /// Returns the pressure of the bytes that compactions owe: 0 is well, 1 is where writers wait.
    pub fn debt(&self) -> f64 {
        self.debt
    }

    /// Returns true if background work should use all of the device that it can get.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Returns true if the backlog slows writers.
    pub fn slows_writers(&self) -> bool {
        self.level0 > 0.0 || self.debt > 0.0
    }

    /// Returns true if the backlog makes writers wait.
    pub fn holds_writers(&self) -> bool {
        self.level0 >= 1.0 || self.debt >= 1.0
    }

    /// Returns the worst backlog of all families. `sealed` is the number of memtable sets that wait
    /// for their flush.
    pub fn of(
        sealed: usize,
        families: &BTreeMap<u32, FamilyEntry>,
        version: &Version,
        pages: &BTreeMap<u32, PageView>,
    ) -> Backlog {
        let mut worst = Backlog {
            // A memtable is being flushed, and the next one is full before the flush ends.
            is_urgent: sealed > 1,
            ..Backlog::default()
        };
        for view in pages.values() {
            worst.is_urgent |= view.debt > 0.5;
            worst.debt = worst.debt.max(view.debt - 1.0);
        }
        for f in families.values() {
            let Some(version) = version.families.get(&f.id) else {
                continue;
            };
            let (tables, start) = (version.levels[0].len(), f.options.l0_slowdown);
            if tables >= start {
                let p = (tables - start + 1) as f64 / (start + 1) as f64;
                worst.level0 = worst.level0.max(p);
            }
            let trigger = f.options.l0_compaction_trigger;
            worst.is_urgent |= tables >= (trigger + trigger.div_ceil(2)).min(start);
            let (debt, start) = (
                compaction_debt(version, &f.options),
                f.options.debt_slowdown_bytes,
            );
            worst.is_urgent |= debt > start / 4;
            if debt > start {
                worst.debt = worst.debt.max((debt - start) as f64 / start as f64);
            }
        }
        worst
    }
}
