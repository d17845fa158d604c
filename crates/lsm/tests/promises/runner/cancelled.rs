//! Requested compactions that are cancelled on their way: nothing changes for readers, whenever
//! that happens.

use super::Runner;
use crate::history::FAMILIES;
use basalt_lsm::ErrorKind;
use basalt_lsm::db::CompactOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

impl Runner {
    /// Compacts the family, and cancels that after `after` calls of its progress function.
    pub(super) fn compact_cancelled(&mut self, family: usize, after: u8) {
        self.wait_for_tickets();
        let Some(family) = self.families.get(FAMILIES[family]).cloned() else {
            return;
        };
        let mut options = CompactOptions::default();
        let (control, calls) = (options.control.clone(), AtomicU64::new(0));
        options.progress = Some(Arc::new(move |_| {
            if calls.fetch_add(1, SeqCst) + 1 >= u64::from(after) {
                control.cancel();
            }
        }));
        let result = self.db.as_ref().expect("open").compact(&family, &options);
        match result {
            Err(e) if e.kind() == ErrorKind::Cancelled => self.cancelled += 1,
            result => {
                if self.allow("compact", result).is_some() {
                    self.all_durable();
                }
            }
        }
    }
}
