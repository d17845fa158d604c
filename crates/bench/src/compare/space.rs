//! What a store takes on disk while it is written to, looked at every second.

use crate::Stop;
use crate::engine::tree_bytes;
use basalt::fs::FileSystem;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Looks until it is ended.
pub struct SpaceWatch {
    stop: Sender<()>,
    seen: Receiver<Vec<u64>>,
}

impl SpaceWatch {
    /// Begins to look at the store `store`.
    pub fn begin(fs: Arc<dyn FileSystem>, store: &str) -> Result<SpaceWatch, Stop> {
        let (stop, stopped) = channel::<()>();
        let (send, seen) = channel();
        let store = store.to_string();
        basalt::env::thread::spawn("bench-space", move || {
            let mut samples = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1))
            {
                // A directory that changes while it is listed is looked at again a second later.
                samples.extend(tree_bytes(fs.as_ref(), Path::new(&store)));
            }
            let _ = send.send(samples);
        })
        .map_err(|e| Stop::new(format!("cannot start a thread: {e}")))?;
        Ok(SpaceWatch { stop, seen })
    }

    /// Bytes on disk after each second.
    pub fn end(self) -> Vec<u64> {
        drop(self.stop);
        self.seen.recv().unwrap_or_default()
    }
}
