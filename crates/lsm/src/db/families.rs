//! A family as an open store knows it.

use crate::iter::ScanHistory;
use crate::options::FamilyOptions;
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
}

impl FamilyEntry {
    /// Returns the id and the name of the family as its tables record them.
    pub fn in_table(&self) -> TableFamily {
        TableFamily {
            id: self.id,
            name: self.name.clone(),
        }
    }
}
