//! Extents whose ranges could not be derived because of damage (decision 0049).

use basalt_fs::Error;
use basalt_stream::ExtentId;
use std::collections::BTreeSet;

/// After damage, index pages are walked again when base pages with one in this many of the tree's
/// bytes were written.
const REPEATED_WALK_PART: u64 = 8;

/// Damage that kept ranges of extents from being derived. A walk of the index pages would meet it
/// again, so maintenance reports it without another walk until much was written.
#[derive(Default)]
pub(crate) struct UnderivedExtents {
    extents: BTreeSet<ExtentId>,
    /// The first damage; `None` without extents.
    damage: Option<Error>,
    /// Bytes of base pages that the tree had written when the damage was found.
    written: u64,
}

impl UnderivedExtents {
    /// Notes the damage of a walk. `written` are the bytes of base pages that were written before.
    pub fn note(&mut self, extents: &BTreeSet<ExtentId>, damage: Option<Error>, written: u64) {
        self.extents.extend(extents);
        self.damage = damage;
        self.written = written;
    }

    /// Returns which of some extents are among these, and the damage. Forgets all of them when
    /// much was written: a page that could not be read once may be sound, and `base_bytes` are
    /// those of all valid base pages.
    pub fn among(
        &mut self,
        extents: &BTreeSet<ExtentId>,
        written: u64,
        base_bytes: u64,
    ) -> (BTreeSet<ExtentId>, Option<Error>) {
        if written.saturating_sub(self.written) > base_bytes / REPEATED_WALK_PART {
            *self = UnderivedExtents::default();
        }
        let found: BTreeSet<ExtentId> = extents.intersection(&self.extents).copied().collect();
        let damage = self.damage.clone().filter(|_| !found.is_empty());
        (found, damage)
    }
}
