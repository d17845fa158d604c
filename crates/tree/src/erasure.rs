//! Erasures of extents without valid pages, and releases of the space of garbage pages in others.

use crate::mapping::{Effects, SysTime};
use crate::storage::Storage;
use crate::usage::StreamKind;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{ErrorKind, Result};
use basalt_stream::ExtentId;
use std::collections::BTreeSet;

/// Erases dead extents and releases garbage pages during maintenance, each time it has written the
/// base pages of an extent. Otherwise a long pass would free no space before its end.
pub(crate) struct ErasuresBetween<'a> {
    storage: &'a Storage,
    /// Bytes of base pages that were written before the last erasure.
    written_before: u64,
}

impl<'a> ErasuresBetween<'a> {
    pub fn new(storage: &'a Storage) -> ErasuresBetween<'a> {
        let written_before = storage.written.by_stream(StreamKind::Base);
        ErasuresBetween {
            storage,
            written_before,
        }
    }

    /// Calls [`Storage::erase_dead`] if the bytes of an extent were written since the last call.
    /// Its errors come again at the end of maintenance, and must not end the pass here.
    pub fn erase(&mut self) {
        let written = self.storage.written.by_stream(StreamKind::Base);
        if written - self.written_before >= self.storage.options.extent_bytes {
            let _ = self.storage.erase_dead();
            self.written_before = written;
        }
    }
}

impl Storage {
    /// Notes which pages a transaction made garbage.
    pub fn queue_releases(&self, time: SysTime, effects: &Effects) {
        let mut releases = self.releases.lock();
        for id in &effects.dead_bases {
            releases.add(time, StreamKind::Base, *id);
        }
        for id in &effects.unused_deltas {
            releases.add(time, StreamKind::Delta, *id);
        }
    }

    /// Gives back the space of garbage pages that no reader needs, in sealed extents that are not
    /// erased. Pages of an extent that a copy has, too, wait until the copy is gone. What cannot be
    /// given back stays for a collection.
    fn release_garbage(&self, oldest: SysTime) {
        let sealed = [StreamKind::Base, StreamKind::Delta].map(|kind| {
            let sealed = self.stream(kind).extents().into_iter().filter(|e| e.sealed);
            sealed.map(|e| e.id).collect::<BTreeSet<ExtentId>>()
        });
        let is_sealed =
            |kind: StreamKind, extent: ExtentId| sealed[kind as usize - 1].contains(&extent);
        let ready = self.releases.lock().take(oldest, &is_sealed);
        for ((kind, extent), ranges) in ready {
            match self.stream(kind).release(extent, &ranges) {
                Ok(Some(bytes)) => {
                    self.written.released_bytes.fetch_add(bytes, SeqCst);
                }
                Ok(None) => self.releases.lock().keep_shared((kind, extent), ranges),
                // The filesystem has no files with holes.
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    return self.releases.lock().close();
                }
                // A collection frees the space, too, and reports what is wrong with the extent.
                Err(_) => {
                    self.written.failed_releases.fetch_add(1, SeqCst);
                }
            }
        }
    }

    /// Erases extents that have no valid page for any reader, and gives back the space of other
    /// garbage pages. Returns the number of erased extents.
    pub fn erase_dead(&self) -> Result<usize> {
        let _erasing = self.erasing.lock();
        let readers = self.readers();
        let mut erased = 0;
        for kind in [StreamKind::Base, StreamKind::Delta] {
            let stream = self.stream(kind);
            let sealed = stream.extents().into_iter().filter(|e| e.sealed);
            let ids: Vec<ExtentId> = sealed.map(|e| e.id).collect();
            let dead: Vec<ExtentId> = {
                let usage = self.usage.lock();
                ids.into_iter()
                    .filter(|id| usage.is_dead(*id, &readers))
                    .collect()
            };
            if dead.is_empty() {
                continue;
            }
            stream.erase(&dead)?;
            erased += dead.len();
            let mut usage = self.usage.lock();
            dead.iter().for_each(|id| usage.forget(*id));
            drop(usage);
            self.releases.lock().forget(kind, &dead);
            (self.underived.lock()).forget(&dead.into_iter().collect());
        }
        self.release_garbage(readers[0]);
        Ok(erased)
    }
}
