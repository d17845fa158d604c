//! [`PageTree`]: the storage tier of the tree engine, for programs that collect changes themselves.

use crate::cursor::{TreeCursor, is_delete};
use crate::options::TreeOptions;
use crate::stats::PageTreeStats;
use crate::storage::{Storage, View};
use basalt_env::Env;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::Kind;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use std::path::Path;
use std::sync::Arc;

/// A change of a key: its new value, or `None` to delete it.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// A tree of pages on two append-only streams, without a memory tier: each write is a user
/// checkpoint (ArkDB, section 3).
///
/// A write is atomic. When [`PageTree::write`] returns `Ok`, it is durable. After an error, the
/// next open may still find it, unless a later write succeeded. A write costs two syncs, of the
/// delta stream and of the log, so it should be large: tens of megabytes. Reads,
/// [`PageTree::maintain`] and other writes go on beside a write.
pub struct PageTree {
    storage: Storage,
}

/// The content of a tree at a moment. Pages that it needs stay while it lives.
#[derive(Clone)]
pub struct TreeSnapshot {
    view: Arc<View>,
}

impl PageTree {
    /// Opens the tree in a directory, or creates one. Reads the last system checkpoint and the
    /// system log, and no page.
    ///
    /// Errors: `Busy` if another process has it open; `NotFound` if there is none and the options
    /// do not allow to create one; `InvalidArgument` for options outside their ranges; `Corruption`
    /// names what is damaged.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: &TreeOptions) -> Result<PageTree> {
        Ok(PageTree {
            storage: Storage::open(env, path.as_ref(), options)?,
        })
    }

    /// Writes changes, all or none of them. Their keys must rise strictly.
    ///
    /// Errors: `InvalidArgument` for keys that do not rise, or that are longer than 64 KiB, and for
    /// values above 1 GiB; those of the filesystem. After an error nothing has changed, but it is
    /// unknown whether the next open finds the changes, unless a later write succeeds.
    pub fn write<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        let mut before: Option<Vec<u8>> = None;
        let mut wrong = None;
        let checked = (changes.into_iter().enumerate()).map_while(|(i, (key, value))| {
            let rises = before.as_deref().is_none_or(|before| before < key);
            let (key_len, value_len) = (key.len(), value.map_or(0, <[u8]>::len));
            if !rises {
                wrong = Some(format!("keys are not in rising order: entry {i}"));
            } else if key_len > MAX_KEY_LEN {
                wrong = Some(format!(
                    "key of {key_len} bytes, at most {MAX_KEY_LEN} are allowed"
                ));
            } else if value_len > MAX_VALUE_LEN {
                wrong = Some(format!(
                    "value of {value_len} bytes, at most {MAX_VALUE_LEN} are allowed"
                ));
            }
            if wrong.is_some() {
                return None;
            }
            match &mut before {
                Some(before) => {
                    before.clear();
                    before.extend_from_slice(key);
                }
                None => before = Some(key.to_vec()),
            }
            Some(match value {
                Some(value) => (key, Kind::Put as u8, value),
                None => (key, Kind::Delete as u8, &[][..]),
            })
        });
        let prepared = self.storage.prepare_user_checkpoint(checked, None)?;
        match wrong {
            Some(what) => Err(Error::invalid(what)),
            None => self.storage.commit_prepared(&prepared).map(|_| ()),
        }
    }

    /// Returns the content of this moment.
    pub fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot {
            view: self.storage.view(),
        }
    }

    /// Returns the value of a key. Costs a read of the base page and of each delta page of the leaf
    /// that is not in the cache, and of the index pages above.
    pub fn get(&self, snapshot: &TreeSnapshot, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.storage.get(&snapshot.view, key)?;
        Ok(found.and_then(|(kind, value)| (!is_delete(kind)).then_some(value)))
    }

    /// Returns the keys from `from` on and their values, in rising order.
    pub fn iter(&self, snapshot: &TreeSnapshot, from: &[u8]) -> Result<TreeIter<'_>> {
        let cursor = TreeCursor::at(&self.storage, snapshot.view.clone(), from)?;
        Ok(TreeIter {
            cursor,
            forward: true,
            ended: false,
        })
    }

    /// Returns the keys below `to` and their values, in falling order.
    pub fn iter_back(&self, snapshot: &TreeSnapshot, to: &[u8]) -> Result<TreeIter<'_>> {
        Ok(TreeIter {
            forward: false,
            ..self.iter(snapshot, to)?
        })
    }

    /// Compacts what is due, collects garbage, erases extents that no snapshot needs, and takes a
    /// system checkpoint if the system log is long. Writes and reads go on beside it.
    ///
    /// Errors: those of the filesystem, and `Corruption`; what was done before stays done.
    pub fn maintain(&self) -> Result<()> {
        // What gives space back comes first, and needs little.
        let erased = self.storage.erase_dead().map(|_| ());
        let compacted = self.storage.compact().map(|_| ());
        let collected = self.storage.collect_garbage().map(|_| ());
        let checkpointed = match self.storage.checkpoint_is_due() {
            true => self.storage.take_checkpoint(),
            false => Ok(()),
        };
        erased.and(compacted).and(collected).and(checkpointed)
    }

    /// Reads and verifies all pages, and checks that they, the page mapping table and the usage of
    /// the extents agree. Reads and writes go on beside it.
    ///
    /// Errors: the first `Corruption` names what is damaged.
    pub fn verify(&self) -> Result<()> {
        self.storage.verify()
    }

    /// Returns what the tree has and costs.
    pub fn stats(&self) -> PageTreeStats {
        self.storage.stats()
    }

    /// Takes a system checkpoint, so that the next open reads nothing else, and releases the
    /// directory.
    pub fn close(&self) -> Result<()> {
        self.storage.close()
    }
}

/// The entries of a tree from a key on.
pub struct TreeIter<'a> {
    cursor: TreeCursor<'a>,
    forward: bool,
    ended: bool,
}

impl Iterator for TreeIter<'_> {
    type Item = Result<(Vec<u8>, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let moved = match self.forward {
                true => self.cursor.next(),
                false => self.cursor.prev(),
            };
            match moved {
                Ok(true) => {
                    let (kind, value) = self.cursor.entry();
                    if !is_delete(kind) {
                        return Some(Ok((self.cursor.key(), value)));
                    }
                }
                Ok(false) => self.ended = true,
                Err(e) => {
                    self.ended = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}
