//! The source of a table's file. The reader asks for the file at each device read, so that the file
//! may be closed in between.

use basalt_fs::{File, Result};
use std::sync::Arc;

/// Provides the file of a table when a reader needs it.
pub trait FileSource: Send + Sync + 'static {
    /// Returns the file, opened if it is not open. The file stays open as long as the caller holds
    /// it.
    fn file(&self) -> Result<Arc<dyn File>>;

    /// Notifies the source, now and then, that readers go to the device for the table. The source
    /// may decide again whether to merge it. Reads call this, so it must not block.
    fn extra_reads(&self) {}
}

impl FileSource for Arc<dyn File> {
    fn file(&self) -> Result<Arc<dyn File>> {
        Ok(self.clone())
    }
}
