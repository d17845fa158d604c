//! Erasures of extents without valid pages, and releases of the space of garbage pages in others.

use crate::mapping::{Effects, SysTime};
use crate::storage::Storage;
use crate::usage::StreamKind;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::Result;
use basalt_stream::ExtentId;
use std::collections::BTreeSet;

/// Erases what died while maintenance goes on, each time it has written the bytes of an extent. A
/// long pass would keep it all to its end.
pub(crate) struct ErasuresBetween<'a> {
    storage: &'a Storage,
    /// Bytes of base pages that were written when extents were last erased.
    since: u64,
}

impl<'a> ErasuresBetween<'a> {
    pub fn new(storage: &'a Storage) -> ErasuresBetween<'a> {
        let since = storage.written.by_stream(StreamKind::Base);
        ErasuresBetween { storage, since }
    }

    /// Erases what died, if enough was written since the last time.
    ///
    /// Errors: those of [`Storage::erase_dead`].
    pub fn erase(&mut self) -> Result<()> {
        let written = self.storage.written.by_stream(StreamKind::Base);
        if written - self.since >= self.storage.options.extent_bytes {
            self.storage.erase_dead()?;
            self.since = written;
        }
        Ok(())
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
    /// erased. What cannot be given back stays for a collection.
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
                Ok(bytes) => {
                    self.written.released_bytes.fetch_add(bytes, SeqCst);
                }
                // Not every filesystem has files with holes.
                Err(_) => return self.releases.lock().close(),
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
        }
        self.release_garbage(readers[0]);
        Ok(erased)
    }
}
