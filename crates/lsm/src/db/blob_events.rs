//! What listeners hear of blob files and collections.

use super::engine::Engine;
use super::gc::Chosen;
use crate::listener::{BlobFileInfo, CollectionInfo, Event};
use crate::version::edit::Edit;
use basalt_blob::BlobMeta;
use basalt_env::sync::atomic::AtomicBool;
use basalt_fs::Result;
use std::sync::Arc;

/// What a collection did.
#[derive(Default)]
pub(super) struct Gathered {
    pub targets: Vec<BlobFileInfo>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// How many bytes fewer there are than before.
    pub freed: u64,
}

impl Engine {
    /// A blob file as listeners hear of it.
    pub(super) fn blob_info(
        &self,
        number: u64,
        meta: &BlobMeta,
        reason: &'static str,
    ) -> BlobFileInfo {
        let view = self.view();
        let families = meta.families.keys().filter_map(|id| view.families.get(id));
        BlobFileInfo {
            number,
            families: families.map(|f| f.name.to_string()).collect(),
            bytes: meta.size + meta.index.map_or(0, |i| i.size),
            records: meta.records,
            reason,
        }
    }

    /// Tells of the blob files that came with an edit, which is durable.
    pub(super) fn notify_blob_events(&self, edit: &Edit, collected: bool) {
        let ingested = edit.add_tables.iter().any(|t| t.meta.shift > 0);
        let reason = match (collected, edit.remove_tables.is_empty()) {
            (true, _) => "collection",
            (false, false) => "compaction",
            (false, true) if ingested => "ingest",
            (false, true) => "flush",
        };
        for b in &edit.add_blobs {
            self.tell(|| Event::BlobFileCreated(self.blob_info(b.number, &b.meta, reason)));
        }
    }

    /// Collects, and tells of it. How many bytes fewer there are then.
    pub(super) fn collect_aloud(
        self: &Arc<Self>,
        chosen: &Chosen,
        cancelled: &AtomicBool,
    ) -> Result<u64> {
        let collection = self.collection_info(&chosen.files);
        self.tell(|| Event::CollectionBegin(collection.clone()));
        let began = self.env.clock().now();
        let ended = self.collect(chosen, cancelled);
        self.tell(|| {
            let (done, error) = match &ended {
                Ok(done) => (Some(done), None),
                Err(e) => (None, Some(e.clone())),
            };
            Event::CollectionEnd {
                collection,
                targets: done.map_or_else(Vec::new, |d| d.targets.clone()),
                bytes_read: done.map_or(0, |d| d.bytes_read),
                bytes_written: done.map_or(0, |d| d.bytes_written),
                took: self.env.clock().now() - began,
                error,
            }
        });
        ended.map(|done| done.freed)
    }

    fn collection_info(&self, sources: &[u64]) -> CollectionInfo {
        let state = self.state.lock();
        let catalog = &state.catalog;
        let mut info = CollectionInfo {
            sources: sources.to_vec(),
            source_bytes: 0,
            live_bytes: 0,
        };
        for blob in sources.iter().filter_map(|n| catalog.blobs.get(n)) {
            info.source_bytes += blob.meta.size + blob.meta.index.map_or(0, |i| i.size);
            info.live_bytes += catalog.alive(blob).bytes;
        }
        info
    }
}
