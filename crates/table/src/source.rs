//! Where a table's reader gets its file: it asks for it at each read of the device, so that the file may be closed meanwhile.

use basalt_fs::{File, Result};
use std::sync::Arc;

/// Where a table's file comes from when it must be read.
pub trait Source: Send + Sync + 'static {
    /// The file, opened when it is not open. It stays open as long as it is held.
    fn file(&self) -> Result<Arc<dyn File>>;

    /// Called now and then as readers go to the device for the table: whether it had better be merged may be asked again.
    /// From within reads: it must not block.
    fn extra_reads(&self) {}
}

impl Source for Arc<dyn File> {
    fn file(&self) -> Result<Arc<dyn File>> {
        Ok(self.clone())
    }
}
