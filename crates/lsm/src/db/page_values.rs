//! Separated values of families in pages (decision 0046): where a flush puts them, how the value of
//! a reference in pages is read, and the references that the pages have dropped.

use crate::options::{Compression, FamilyOptions};
use crate::version::{BlobSet, TableStore};
use basalt_blob::{BlobMeta, Name, NewNumber, ReadMode, Reference, Separator, blob_name};
use basalt_env::store_dir::Created;
use basalt_env::sync::{Mutex, named};
use basalt_env::{IoPriority, MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Cmp, Kind, SeqNo};
use basalt_tree::{DropObserver, DroppedEntry};
use std::sync::Arc;

/// Numbers and metadata of finished blob files.
pub(crate) type FinishedBlobs = Vec<(u64, Arc<BlobMeta>)>;

/// Reads the value that a reference in pages leads to: the kind and the payload that the entry
/// would have with its value.
pub(crate) type ReadReference<'a> = &'a dyn Fn(&Name<'_>, &Reference) -> Result<(Kind, Bytes)>;

/// Returns the kind and the payload that an entry in pages would have with its value. `blobs` are
/// those of the view that has the pages.
pub(crate) fn read_from(blobs: &BlobSet, name: &Name<'_>, to: &Reference) -> Result<(Kind, Bytes)> {
    blobs.read(name, to, &Cmp::Bytewise, ReadMode::job(false))
}

/// The values that a flush separates from the keys of one family. Unless the blob files are kept,
/// a drop removes them.
pub(crate) struct PageValues<'a> {
    // Dropped before `created`, so that no builder is alive when its file is removed.
    separator: Option<Separator<'a>>,
    finished: FinishedBlobs,
    created: Created,
    store: Arc<TableStore>,
    family: u32,
    min_blob_size: Option<usize>,
    codec: Compression,
}

impl<'a> PageValues<'a> {
    /// Begins the separation for a family. If `warm`, new index pages and records go into the
    /// cache.
    pub fn new(
        store: &Arc<TableStore>,
        family: u32,
        options: &FamilyOptions,
        new_number: NewNumber<'a>,
        warm: bool,
    ) -> PageValues<'a> {
        let env = store.env();
        let separator = options.min_blob_size.map(|_| {
            Separator::new(env, store.clone(), new_number, IoPriority::High, warm)
                .with_compressed(options.blob_compression != Compression::None)
                .of_pages()
        });
        PageValues {
            separator,
            finished: Vec::new(),
            created: Created::new(store.clone()),
            store: store.clone(),
            family,
            min_blob_size: options.min_blob_size,
            codec: options.blob_compression,
        }
    }

    /// Returns a separation that leaves all values in the pages.
    pub fn none(store: &Arc<TableStore>) -> PageValues<'a> {
        let options = FamilyOptions::default().min_blob_size(None);
        let no_number = Box::new(|| unreachable!("no blob file is made"));
        PageValues::new(store, 0, &options, no_number, false)
    }

    /// Writes a large value to a blob file. Returns the payload of the reference that the page gets
    /// in its place; `None` for a value that stays in the page.
    pub fn put(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        kind: Kind,
        payload: &[u8],
    ) -> Result<Option<Bytes>> {
        let Some(separator) = &mut self.separator else {
            return Ok(None);
        };
        if !Separator::wants(self.min_blob_size, kind, payload) {
            return Ok(None);
        }
        let family = self.family;
        let name = Name { family, key, seq };
        separator.begin_user_key()?;
        let reference = separator.put(&name, kind, payload, self.codec)?;
        Ok(Some(Bytes::copy_from_slice(reference)))
    }

    /// Ends the last blob file. The content of all files is durable then, their names are not. The
    /// pages must not be committed before.
    pub fn finish(&mut self) -> Result<()> {
        let Some(separator) = self.separator.take() else {
            return Ok(());
        };
        for (number, meta) in separator.finish()? {
            self.created.add(self.store.dir().join(blob_name(number)));
            self.finished.push((number, Arc::new(meta)));
        }
        Ok(())
    }

    /// Returns the finished files, which a drop no longer removes.
    pub fn keep(&mut self) -> FinishedBlobs {
        self.created.keep();
        std::mem::take(&mut self.finished)
    }
}

/// The references that the pages of a family have dropped, and whose records are not marked as
/// garbage yet. The memory ledger counts them.
pub(crate) struct DroppedReferences {
    ledger: MemoryLedger,
    waiting: Mutex<BookedEntries>,
}

/// Dropped entries with their memory in the ledger.
pub(crate) struct BookedEntries {
    entries: Vec<DroppedEntry>,
    booked: Reservation,
}

impl BookedEntries {
    fn empty(ledger: &MemoryLedger) -> BookedEntries {
        BookedEntries {
            entries: Vec::new(),
            booked: ledger.reserve(MemoryKind::Buffer, 0),
        }
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[DroppedEntry] {
        &self.entries
    }

    fn add(&mut self, entries: Vec<DroppedEntry>) {
        let heap = |entry: &DroppedEntry| size_of::<DroppedEntry>() + entry.key.len();
        let more: usize = (entries.iter())
            .map(|entry| heap(entry) + entry.value.len())
            .sum();
        self.booked.resize(self.booked.bytes() + more as u64);
        self.entries.extend(entries);
    }
}

impl DroppedReferences {
    /// Returns an empty list, whose memory this ledger counts.
    pub fn new(ledger: &MemoryLedger) -> DroppedReferences {
        let waiting = Mutex::new(BookedEntries::empty(ledger));
        DroppedReferences {
            ledger: ledger.clone(),
            waiting: named("DroppedReferences::waiting", waiting),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().entries.is_empty()
    }

    /// Takes all references. The ledger counts them until they are dropped.
    pub fn take(&self) -> BookedEntries {
        let empty = BookedEntries::empty(&self.ledger);
        std::mem::replace(&mut self.waiting.lock(), empty)
    }

    /// Gives back references whose records could not be marked.
    pub fn give_back(&self, taken: BookedEntries) {
        let BookedEntries { entries, booked } = taken;
        drop(booked);
        self.waiting.lock().add(entries);
    }
}

impl DropObserver for DroppedReferences {
    fn observes(&self, kind: Kind) -> bool {
        kind == Kind::BlobRef
    }

    fn note_dropped(&self, dropped: Vec<DroppedEntry>) {
        self.waiting.lock().add(dropped);
    }
}

#[cfg(test)]
mod tests;
