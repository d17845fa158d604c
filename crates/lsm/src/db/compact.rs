//! Scheduling compactions: choosing them under the lock, running them on the shared pool, installing what they made.

use super::Family;
use super::engine::Engine;
use basalt_fs::Result;
use std::sync::Arc;

impl Engine {
    pub fn schedule_compactions(self: &Arc<Self>) {}
    pub fn compact_range(
        self: &Arc<Self>,
        _family: &Family,
        _from: Option<&[u8]>,
        _to: Option<&[u8]>,
    ) -> Result<()> {
        Ok(())
    }
    pub fn settle(self: &Arc<Self>) -> Result<()> {
        Ok(())
    }
}
