//! The bytes of a store on disk while it is written to, sampled every second.

use crate::Stop;
use crate::engine::tree_bytes;
use basalt::fs::FileSystem;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The bytes of a store at one moment.
#[derive(Clone, Copy, Debug)]
pub struct SpaceSample {
    /// Bytes allocated on disk.
    pub disk_bytes: u64,
    /// Bytes of live data, as the caller counts them.
    pub live_bytes: u64,
}

/// Samples the bytes of a store until [`SpaceWatch::end`].
pub struct SpaceWatch {
    stop: Sender<()>,
    seen: Receiver<Vec<SpaceSample>>,
}

impl SpaceWatch {
    /// Begins to sample the store `store`. `live` returns the bytes of live data now.
    pub fn begin(
        fs: Arc<dyn FileSystem>,
        store: &str,
        live: impl Fn() -> u64 + Send + 'static,
    ) -> Result<SpaceWatch, Stop> {
        let (stop, stopped) = channel::<()>();
        let (send, seen) = channel();
        let store = store.to_string();
        basalt::env::thread::spawn("bench-space", move || {
            let mut samples = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1))
            {
                // A directory that changes during the listing is sampled again a second later.
                let disk = tree_bytes(fs.as_ref(), Path::new(&store));
                samples.extend(disk.map(|disk_bytes| SpaceSample {
                    disk_bytes,
                    live_bytes: live(),
                }));
            }
            let _ = send.send(samples);
        })
        .map_err(|e| Stop::new(format!("cannot start a thread: {e}")))?;
        Ok(SpaceWatch { stop, seen })
    }

    /// Ends the sampling. Returns the bytes after each second.
    pub fn end(self) -> Vec<SpaceSample> {
        drop(self.stop);
        self.seen.recv().unwrap_or_default()
    }
}
