//! A directory into the store, without log and memtables: its files come in the order of their
//! keys. One thread walks and reads. This thread compresses and writes tables, which are added
//! every few hundred megabytes. So an interrupted load keeps most of its work.

use super::Load;
use crate::directory::{DirectoryFile, DirectoryWalk, LeftOut, UnreadablePath, bytes_of, measure};
use crate::escape::brief;
use crate::failure::Failure;
use crate::progress;
use crate::store::Limits;
use crate::text_entry::KvRecord;
use basalt::ErrorKind;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Tables are added when they have this many bytes.
const STEP: u64 = 256 << 20;
/// Files are passed on in chunks of this many bytes, unless one file is longer, while the next
/// chunk is read. At most two chunks are in memory.
const CHUNK: usize = 1 << 20;
/// Bytes that an entry counts for at least.
const ENTRY: usize = 256;

/// An entry, or the reason why it could not be read.
type Item = Result<KvRecord, String>;

impl Load<'_> {
    pub(super) fn directory(&mut self, dir: &Path, follow: bool) -> (Result<(), Failure>, LeftOut) {
        let store_dir = self.store.place().on_disk();
        if progress::watched() {
            let (_, bytes) = measure(dir, follow, Some(store_dir));
            self.bar = progress::bytes("loading", Some(bytes));
        }
        let walk = match DirectoryWalk::new(dir, follow, Some(store_dir)) {
            Ok(walk) => walk,
            Err(e) => {
                let failed = Failure::os("read the directory", dir, e);
                return (Err(failed), LeftOut::default());
            }
        };
        let (send, receive) = sync_channel(0);
        let limits = self.limits;
        basalt::env::thread::scope(|s| {
            let reader = s.spawn(move || read_all(dir, walk, limits, &send));
            // If this thread ends early, the reading thread finds the channel closed.
            let ended = self.take_all(dir, receive);
            let left_out = reader
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p));
            (ended, left_out)
        })
    }

    fn take_all(&mut self, dir: &Path, chunks: Receiver<Vec<Item>>) -> Result<(), Failure> {
        for item in chunks.into_iter().flatten() {
            match item {
                Ok(record) => self.add_to_table(dir, record)?,
                Err(why) => self.bad(why)?,
            }
        }
        Ok(())
    }

    fn add_to_table(&mut self, dir: &Path, mut record: KvRecord) -> Result<(), Failure> {
        self.bar.inc(record.value.len() as u64);
        let path = (!self.prefix.is_empty()).then(|| record.key.clone());
        record.key.splice(..0, self.prefix.iter().copied());
        let name = || name(dir, path.as_ref().unwrap_or(&record.key));
        let checked = (self.limits).check(&record.key, record.value.len() as u64, name);
        if let Err(why) = checked {
            return self.bad(why);
        }
        let table = match &mut self.table {
            Some(table) => table,
            none => none.insert(self.store.prepare().map_err(|e| self.store.failure(e))?),
        };
        match self.store.add(table, &record) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::InvalidArgument => {
                return self.bad(format!("{}: {e}", name()));
            }
            Err(e) => return Err(self.store.failure(e)),
        }
        let full = table.user_bytes() >= STEP;
        self.prepared.0 += 1;
        self.prepared.1 += (record.key.len() + record.value.len()) as u64;
        match full {
            true => self.add_table(),
            false => Ok(()),
        }
    }

    /// Adds the prepared tables to the store.
    pub(super) fn add_table(&mut self) -> Result<(), Failure> {
        let Some(table) = self.table.take() else {
            return Ok(());
        };
        let (entries, bytes) = std::mem::take(&mut self.prepared);
        let added = table
            .finish()
            .and_then(|set| self.store.db().ingest(&[set]));
        added.map_err(|e| self.store.failure(e))?;
        self.entries += entries;
        self.bytes += bytes;
        Ok(())
    }
}

/// Reads all files of a walk, until the channel is closed.
fn read_all(
    dir: &Path,
    mut walk: DirectoryWalk,
    limits: Limits,
    to: &SyncSender<Vec<Item>>,
) -> LeftOut {
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for found in walk.by_ref() {
        let item = read(dir, found, limits);
        // A failed read is reported at once.
        bytes += item
            .as_ref()
            .map_or(CHUNK, |r| ENTRY + r.key.len() + r.value.len());
        chunk.push(item);
        if bytes >= CHUNK {
            bytes = 0;
            if to.send(std::mem::take(&mut chunk)).is_err() {
                return walk.left_out;
            }
        }
    }
    // A receiver that has closed the channel has an error of its own.
    let _ = to.send(chunk);
    walk.left_out
}

fn read(dir: &Path, found: Result<DirectoryFile, UnreadablePath>, limits: Limits) -> Item {
    let mut found = found.map_err(|u| {
        let why = std::io::Error::from(u.why);
        format!("cannot read {}: {why}", name(dir, &u.path))
    })?;
    // The length is checked first: a file that is too large is refused before it is read.
    limits.check(&[], found.len, || name(dir, &found.path))?;
    let mut value = Vec::with_capacity(found.len as usize + 1);
    let limit = basalt::MAX_VALUE_LEN as u64 + 1;
    let read = found.file.by_ref().take(limit).read_to_end(&mut value);
    read.map_err(|e| format!("cannot read {}: {e}", name(dir, &found.path)))?;
    Ok(KvRecord {
        key: found.path,
        value,
        expire_at_ms: None,
    })
}

fn name(dir: &Path, path: &[u8]) -> String {
    format!("{}/{}", brief(bytes_of(dir)), brief(path))
}
