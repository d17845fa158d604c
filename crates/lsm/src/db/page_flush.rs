//! The flush of a memtable to pages: of each key, its newest state.
//!
//! Large values go to blob files, and their references to the pages. The files are finished when
//! the entries are, before the pages are committed. Values in lists of operands stay in the pages.
//!
//! Entries in pages have no sequence number, and there is one for each key. So operands are merged
//! with what the tree has, and a range tombstone becomes a tombstone for each key that the tree has
//! in its range. Readers that need an older state hold a view with the memtable and the older
//! content of the tree.

use super::families::FamilyEntry;
use super::page_values::{PageValues, ReadReference};
use super::page_versions::{Versions, entry_of, versions_of};
use super::pages::PageView;
use crate::iter::InternalIter;
use crate::memtable::{MemIter, MemTable};
use basalt_blob::{Name, Reference};
use basalt_env::Env;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{Cmp, Kind, SeqNo, split_internal_key, trailer_seq};
use basalt_kv::merge::Merging;
use basalt_kv::ranges::Fragments;
use basalt_tree::{EntryCursor, SortedEntries};
use std::sync::Arc;

/// The entries of a memtable as the tree of its family takes them.
pub(crate) struct FlushEntries<'a> {
    /// The tree before the flush.
    tree: &'a PageView,
    family: u32,
    merging: Merging,
    now_ms: u64,
    /// Reads values that the tree refers to.
    read: ReadReference<'a>,
    values: PageValues<'a>,
    mem: MemIter,
    /// True if `key`, `kind` and `value` are the memtable's next entry, which is not taken yet.
    has_next: bool,
    key: Vec<u8>,
    kind: Kind,
    value: Bytes,
    deleted: DeletedKeys,
    /// True once an entry is current.
    is_taken: bool,
    /// True if the current entry is a tombstone of `deleted`.
    is_deleted: bool,
}

/// The keys of the tree that range tombstones of the memtable delete.
struct DeletedKeys {
    ranges: Fragments,
    /// The range that `cursor` is in.
    at: usize,
    cursor: EntryCursor,
    is_sought: bool,
    /// The next key, if `has_next`.
    key: Vec<u8>,
    has_next: bool,
}

impl DeletedKeys {
    /// Finds the next key of the tree that has a value and is deleted.
    fn find_next(&mut self) -> Result<()> {
        self.has_next = false;
        while self.at < self.ranges.len() {
            let (from, to) = self.ranges.range(self.at);
            if !self.is_sought {
                self.cursor.seek(from)?;
                self.is_sought = true;
            }
            while self.cursor.next_entry()? {
                self.key.clear();
                let kind = self.cursor.take_key(&mut self.key)?;
                if &self.key[..] >= to {
                    break;
                }
                if kind != Kind::Delete {
                    self.has_next = true;
                    return Ok(());
                }
            }
            self.at += 1;
            self.is_sought = false;
        }
        Ok(())
    }
}

impl<'a> FlushEntries<'a> {
    /// Reads the memtable of a family, at wall time `now_ms`.
    pub fn new(
        tree: &'a PageView,
        family: &FamilyEntry,
        mem: &Arc<MemTable>,
        now_ms: u64,
        read: ReadReference<'a>,
        values: PageValues<'a>,
    ) -> Result<FlushEntries<'a>> {
        let runs = mem.ranges();
        let pieces = runs.iter().flat_map(|run| run.iter());
        let ranges = Fragments::build(&family.options.comparator, pieces, Some(&[]));
        let mut deleted = DeletedKeys {
            ranges,
            at: 0,
            cursor: tree.pages.tree().cursor(&tree.snapshot, false),
            is_sought: false,
            key: Vec::new(),
            has_next: false,
        };
        deleted.find_next()?;
        let mut iter = mem.iter();
        iter.seek_to_first()?;
        let merge_operator = family.options.merge_operator.clone();
        let mut entries = FlushEntries {
            tree,
            family: family.id,
            read,
            values,
            merging: Merging::new(family.name.clone(), merge_operator),
            now_ms,
            mem: iter,
            has_next: false,
            key: Vec::new(),
            kind: Kind::Delete,
            value: Bytes::new(),
            deleted,
            is_taken: false,
            is_deleted: false,
        };
        entries.find_next()?;
        Ok(entries)
    }

    /// Returns the sequence number of the newest range tombstone over a key; 0 if there is none.
    fn deleted_at(&self, key: &[u8]) -> SeqNo {
        let ranges = &self.deleted.ranges;
        ranges.newest(&Cmp::Bytewise, key, SeqNo::MAX).unwrap_or(0)
    }

    /// Finds the next key of the memtable and its newest state. Keys that a range tombstone of the
    /// memtable hides are left out: if the tree has them, they are among [`DeletedKeys`].
    fn find_next(&mut self) -> Result<()> {
        self.has_next = false;
        while self.mem.valid() {
            self.key.clear();
            self.key
                .extend_from_slice(split_internal_key(self.mem.key()).0);
            let deleted_at = self.deleted_at(&self.key);
            // The versions that count, from the newest down: operands, and what ends them.
            let mut versions = Versions::new();
            let mut has_end = false;
            let newest = trailer_seq(split_internal_key(self.mem.key()).1);
            while self.mem.valid() {
                let (user, trailer) = split_internal_key(self.mem.key());
                if user != &self.key[..] {
                    break;
                }
                if !has_end {
                    let is_deleted = trailer_seq(trailer) < deleted_at;
                    versions.push(match is_deleted {
                        true => (Kind::Delete, Bytes::new()),
                        false => {
                            let kind = Kind::from_u8(trailer as u8);
                            let kind = kind.expect("inserted with a kind");
                            (kind, self.mem.pinned_value())
                        }
                    });
                    has_end = versions[versions.len() - 1].0 != Kind::Merge;
                }
                self.mem.next()?;
            }
            if let [(Kind::Delete, _)] = &versions[..]
                && deleted_at > 0
            {
                continue;
            }
            (self.kind, self.value) = match &versions[..] {
                [(kind, value)] if *kind != Kind::Merge => (*kind, value.clone()),
                _ => {
                    let is_open = !has_end && deleted_at == 0;
                    self.merged(versions, is_open)?
                }
            };
            let separated = self.values.put(&self.key, newest, self.kind, &self.value)?;
            if let Some(reference) = separated {
                (self.kind, self.value) = (Kind::BlobRef, reference);
            }
            self.has_next = true;
            return Ok(());
        }
        Ok(())
    }

    /// Returns the entry of the key. If `is_open`, what the tree has of the key is below the
    /// versions.
    fn merged(&self, mut versions: Versions, is_open: bool) -> Result<(Kind, Bytes)> {
        let found = match is_open {
            true => self.tree.entry_for_flush(&self.key)?,
            false => None,
        };
        if let Some(entry) = found {
            match entry {
                (Kind::BlobRef, payload) => versions.push(self.referred(&payload)?),
                entry => versions.extend(versions_of(entry)?),
            }
        }
        entry_of(versions, &self.merging, &self.key, self.now_ms)
    }

    /// Returns the entry of a reference with its value. An expired value is not read.
    fn referred(&self, payload: &[u8]) -> Result<(Kind, Bytes)> {
        let to = Reference::decode(payload)?;
        if to.is_over(self.now_ms) {
            return Ok((Kind::Delete, Bytes::new()));
        }
        let name = Name {
            family: self.family,
            key: &self.key,
            seq: 0,
        };
        (self.read)(&name, &to)
    }
}

impl SortedEntries for FlushEntries<'_> {
    fn advance(&mut self) -> Result<bool> {
        // The entry that was taken last is behind both.
        if self.is_taken {
            match self.is_deleted {
                true => self.deleted.find_next()?,
                false => self.find_next()?,
            }
        }
        if self.has_next && self.deleted.has_next && self.deleted.key == self.key {
            self.deleted.find_next()?;
        }
        self.is_taken = true;
        self.is_deleted = match (self.has_next, self.deleted.has_next) {
            (false, false) => {
                self.is_taken = false;
                self.values.finish()?;
                return Ok(false);
            }
            (true, true) => self.deleted.key < self.key,
            (_, is_deleted) => is_deleted,
        };
        Ok(true)
    }

    fn key(&self) -> &[u8] {
        match self.is_deleted {
            true => &self.deleted.key,
            false => &self.key,
        }
    }

    fn kind(&self) -> Kind {
        match self.is_deleted {
            true => Kind::Delete,
            false => self.kind,
        }
    }

    fn value(&self) -> &[u8] {
        match self.is_deleted {
            true => &[],
            false => &self.value,
        }
    }
}

/// Writes a memtable, whose highest sequence number is `seq`, to the pages of its family. Large
/// values go to `values`, and `read` reads values that the tree refers to. Writes nothing if an
/// earlier attempt has written the memtable.
///
/// The edit that records the write must have the blob files of
/// [`super::pages::FamilyPages::unrecorded_blobs`].
pub(crate) fn write_pages<'a>(
    env: &Env,
    tree: &'a PageView,
    family: &FamilyEntry,
    mem: &Arc<MemTable>,
    seq: SeqNo,
    read: ReadReference<'a>,
    values: PageValues<'a>,
) -> Result<()> {
    let write = || {
        let pages = &tree.pages;
        if !pages.has_written(seq) {
            let now_ms = env.clock().wall_ms();
            let mut entries = FlushEntries::new(tree, family, mem, now_ms, read, values)?;
            let written = pages.write(&mut entries, seq);
            // A write that has failed may be in the tree all the same.
            if written.is_ok() || pages.has_written(seq) {
                pages.note_blobs(entries.values.keep());
            }
            written?;
        }
        pages.note_written();
        Ok(())
    };
    write().map_err(|e: Error| {
        e.context(format!(
            "writing out a memtable of family {:?}",
            family.name
        ))
    })
}
