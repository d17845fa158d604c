//! Admission: the check that the disk has space for data that is about to be written.

use super::engine::Engine;
use basalt_fs::Result;
use std::sync::Arc;

impl Engine {
    /// Checks that the disk has space for `bytes` outside the log. If the recovery of the logs
    /// needs these bytes, the memtables are flushed first.
    ///
    /// Errors: `NoSpace` if the disk is too full.
    pub(super) fn admit_bytes(self: &Arc<Self>, bytes: u64) -> Result<()> {
        self.pressure.admit_if(bytes, &|| false)?;
        for flushed in [false, true] {
            let Some((space, reserve)) = self.pressure.free() else {
                break;
            };
            let kept = self
                .pressure
                .reserved_for_recovery(reserve, &self.tree.view());
            if space.free >= kept + bytes {
                break;
            }
            if flushed {
                return Err(self.pressure.no_space(space, kept.max(reserve)));
            }
            self.seal_and_flush()?;
        }
        Ok(())
    }
}
