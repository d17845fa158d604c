//! Extents whose ranges could not be derived because of damage (decision 0049).

use basalt_fs::Error;
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};

/// After damage, index pages are walked again for an extent when base pages with one in this many
/// of the tree's bytes were written.
const REPEATED_WALK_PART: u64 = 8;

/// Damage that kept ranges of extents from being derived. A walk of the index pages would meet it
/// again, so maintenance reports it without another walk until much was written.
#[derive(Default)]
pub(crate) struct UnderivedExtents(BTreeMap<ExtentId, Underived>);

struct Underived {
    damage: Error,
    /// Bytes of base pages that the tree had written when the damage was found.
    written: u64,
}

impl UnderivedExtents {
    /// Notes the damage that a walk has met on its way to the pages of some extents. `written` are
    /// the bytes of base pages that were written before.
    pub fn note(&mut self, extents: &BTreeSet<ExtentId>, damage: &Error, written: u64) {
        for extent in extents {
            let damage = damage.clone();
            self.0.insert(*extent, Underived { damage, written });
        }
    }

    /// Forgets extents that have ranges again, or were erased.
    pub fn forget(&mut self, extents: &BTreeSet<ExtentId>) {
        self.0.retain(|extent, _| !extents.contains(extent));
    }

    /// Returns which of some extents are among these, and the damage of the first one. Forgets
    /// those behind whose damage much was written: a page that could not be read once may be sound.
    /// `base_bytes` are those of all valid base pages.
    pub fn among(
        &mut self,
        extents: &BTreeSet<ExtentId>,
        written: u64,
        base_bytes: u64,
    ) -> (BTreeSet<ExtentId>, Option<Error>) {
        let most = base_bytes / REPEATED_WALK_PART;
        (self.0).retain(|_, of| written.saturating_sub(of.written) <= most);
        let found: BTreeSet<ExtentId> = extents
            .iter()
            .copied()
            .filter(|extent| self.0.contains_key(extent))
            .collect();
        let first = found.first().and_then(|extent| self.0.get(extent));
        let damage = first.map(|of| of.damage.clone());
        (found, damage)
    }
}

#[cfg(test)]
mod tests;
