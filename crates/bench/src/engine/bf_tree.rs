//! Bf-Tree as a measured engine, for workloads whose data need not survive a crash.
//!
//! Its log is not wired into a recovery, so synced puts are refused. Only a snapshot survives the
//! process. A store that is opened again is written to a snapshot when it is closed. The next open
//! works on a copy of the snapshot, because Bf-Tree changes the file that it recovers from. It
//! gets the largest power of two within `--cache` for its buffer, and reads through the page
//! cache, which no budget counts. `--block-size` is the size of its leaves, 4 to 32 KiB, which
//! bounds an entry to half a leaf.

use super::{Budget, Engine, Log, host_directory};
use crate::Stop;
use crate::cold_files::copy_file;
use crate::flags::Switch;
use basalt::fs::FileSystem;
use bf_tree::{BfTree, Config, ConfigError, LeafInsertResult, LeafReadResult};
use bf_tree::{ScanReturnField, StorageBackend};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SNAPSHOT: &str = "store.snapshot";
const WORK: &str = "store.bftree";
/// Bytes of the longest key.
const KEY: usize = 64;
/// Bytes of the shortest entry, which bounds the entries of a leaf.
const SHORTEST: usize = 8;
/// Bytes of a leaf besides two of the longest entries.
const LEAF_HEAD: usize = 320;
const LEAF: u64 = 4 << 10;
const LARGEST_LEAF: u64 = 32 << 10;

thread_local! {
    /// The entry that is read. Bf-Tree needs a buffer that has space for any entry.
    static ENTRY: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGEST_LEAF as usize]);
}

pub(super) struct BfStore {
    tree: BfTree,
    /// The directory of the store.
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    /// True if the store is opened again after it was closed.
    reopened: bool,
    /// True if a put or a deletion has changed the store.
    changed: AtomicBool,
    configuration: Value,
}

fn wrong(e: ConfigError) -> Stop {
    Stop::new(format!("Bf-Tree: {e:?}"))
}

impl BfStore {
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<BfStore, Stop> {
        super::refuse_compression("Bf-Tree", budget)?;
        let reopened = budget.store_use.reopened;
        let fs = host_directory(path, Switch::Off)?;
        if fs.exists(Path::new(WORK))? {
            fs.remove(Path::new(WORK))?;
        }
        let leaf = budget
            .block_bytes()
            .next_multiple_of(LEAF)
            .min(LARGEST_LEAF);
        let longest = (leaf as usize - LEAF_HEAD) / 2;
        let buffer = 1 << budget.cache.max(4 * leaf).ilog2();
        let tree = if fs.exists(Path::new(SNAPSHOT))? {
            copy_file(&path.join(SNAPSHOT), &path.join(WORK)).map_err(|e| {
                Stop::new(format!(
                    "Bf-Tree: cannot copy the snapshot in {}: {}",
                    path.display(),
                    std::io::Error::from(e)
                ))
            })?;
            let work = path.join(WORK);
            BfTree::new_from_cpr_snapshot(work, reopened, None, Some(buffer), None)
        } else {
            let mut config = Config::new(path.join(WORK), buffer);
            config
                .storage_backend(StorageBackend::Std)
                .leaf_page_size(leaf as usize)
                .cb_min_record_size(SHORTEST)
                .cb_max_record_size(longest)
                .cb_max_key_len(KEY)
                .use_snapshot(reopened);
            BfTree::with_config(config, None)
        };
        Ok(BfStore {
            tree: tree.map_err(wrong)?,
            fs,
            path: path.to_path_buf(),
            reopened,
            changed: AtomicBool::new(false),
            configuration: json!({
                "cb_size_byte": buffer, "leaf_page_size": leaf, "cb_max_record_size": longest,
                "cb_max_key_len": KEY, "use_snapshot": reopened, "write_ahead_log": false,
                "direct": false, "others": "defaults",
            }),
        })
    }

    /// Notes that a write changes the store. Returns an error if the write must survive a crash.
    fn begin_write(&self, log: Log) -> Result<(), Stop> {
        if log == Log::Synced {
            return Err(Stop::new(
                "Bf-Tree loses its puts in a crash, so it has no synced put: leave it out",
            ));
        }
        // Threads that only load the flag share its cache line.
        if !self.changed.load(Relaxed) {
            self.changed.store(true, Relaxed);
        }
        Ok(())
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(Stop::new(format!(
                "Bf-Tree: {why} (keys have at most {KEY} bytes, and entries half of --block-size, at most 16K)"
            ))),
        }
    }
}

impl Engine for BfStore {
    fn name(&self) -> String {
        format!("bf-tree {}", super::locked_version("bf-tree"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.begin_write(log)?;
        self.insert(key, value)
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        self.begin_write(log)?;
        // Bf-Tree has no batches. Other threads see a part of one.
        entries.iter().try_for_each(|(k, v)| self.insert(k, v))
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.begin_write(log)?;
        self.tree.delete(key);
        Ok(())
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        ENTRY.with_borrow_mut(|entry| match self.tree.read(key, entry) {
            LeafReadResult::Found(len) => {
                show(&entry[..len as usize]);
                Ok(true)
            }
            LeafReadResult::Deleted | LeafReadResult::NotFound => Ok(false),
            LeafReadResult::InvalidKey => Err(Stop::new(format!(
                "Bf-Tree: a key has {} bytes; it has at most {KEY}",
                key.len()
            ))),
        })
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        // Bf-Tree refuses an empty key. No key of a workload is before this one.
        let start: &[u8] = match key.is_empty() {
            true => &[0],
            false => key,
        };
        let both = ScanReturnField::KeyAndValue;
        let mut iter = self
            .tree
            .scan_with_count(start, limit as usize, both)
            .map_err(|e| Stop::new(format!("Bf-Tree: {e:?}")))?;
        ENTRY.with_borrow_mut(|entry| {
            let mut seen = 0;
            while let Some((key, value)) = iter.next(entry) {
                let (key, rest) = entry.split_at(key);
                show(key, &rest[..value]);
                seen += 1;
            }
            Ok(seen)
        })
    }
    fn flush(&self) -> Result<(), Stop> {
        // Bf-Tree has no memtables, and no call that writes its buffer.
        Ok(())
    }
    fn close(&self) -> Result<(), Stop> {
        if self.changed.load(Relaxed) {
            if self.reopened {
                self.tree.cpr_snapshot(self.path.join(SNAPSHOT));
            } else if self.fs.exists(Path::new(SNAPSHOT))? {
                // The bytes of the store are those of the file that the run has changed.
                return Ok(self.fs.remove(Path::new(SNAPSHOT))?);
            } else {
                return Ok(());
            }
        }
        // The tree keeps the file open until it is dropped.
        Ok(self.fs.remove(Path::new(WORK))?)
    }
}
