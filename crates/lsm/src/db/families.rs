//! A family as an open store knows it.

use crate::iter::ScanHistory;
use crate::options::FamilyOptions;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_kv::key::SeqNo;
use basalt_table::TableFamily;
use std::sync::Arc;

/// A family as the open store knows it.
#[derive(Clone)]
pub(crate) struct FamilyEntry {
    pub id: u32,
    pub name: Arc<str>,
    pub options: Arc<FamilyOptions>,
    /// Statistics of how far the scans of the family go.
    pub scan_history: Arc<ScanHistory>,
    /// No tombstone of the family that a compaction has dropped has a higher sequence number.
    pub dropped_tombstones: Arc<AtomicU64>,
}

impl FamilyEntry {
    /// Returns a sequence number that no tombstone of the family exceeds that a compaction has
    /// dropped. A key may have been deleted up to this number, and the tree does not show it.
    pub fn dropped_tombstones(&self) -> SeqNo {
        self.dropped_tombstones.load(SeqCst)
    }

    /// Notes that tombstones up to a sequence number may be dropped, before they are.
    pub fn note_dropped_tombstones(&self, seq: SeqNo) {
        self.dropped_tombstones.fetch_max(seq, SeqCst);
    }

    /// Returns the id and the name of the family as its tables record them.
    pub fn in_table(&self) -> TableFamily {
        TableFamily {
            id: self.id,
            name: self.name.clone(),
        }
    }
}
