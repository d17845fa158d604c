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
/// A write is durable and whole, or not there, when [`PageTree::write`] returns or fails. Writes
/// cost three syncs, so they should be large: tens of megabytes. Reads, [`PageTree::maintain`] and
/// other writes go on beside a write.
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
        let checked = changes.into_iter().map_while(|(key, value)| {
            let rises = before.as_deref().is_none_or(|before| before < key);
            let value_len = value.map_or(0, <[u8]>::len);
            if !rises || key.len() > MAX_KEY_LEN || value_len > MAX_VALUE_LEN {
                wrong = Some(format!(
                    "a key of {} bytes with a value of {value_len} bytes; keys must rise and have at most {MAX_KEY_LEN} bytes, values {MAX_VALUE_LEN}",
                    key.len()
                ));
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
        self.storage.compact()?;
        self.storage.collect_garbage()?;
        match self.storage.checkpoint_is_due() {
            true => self.storage.take_checkpoint(),
            false => Ok(()),
        }
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
