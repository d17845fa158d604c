//! [`PageIter`]: the entries of a tree of pages as merged readers take them, as the oldest source.
//!
//! The tree has one entry for each key, without a sequence number. It gets number 0. If it is a
//! list of versions ([`super::page_versions`]), their numbers count down to 0. They are not above
//! the numbers that the versions had, so each reader of the tree sees them.

use super::page_versions::{Versions, is_list, versions_of};
use super::pages::{FamilyPages, PageView};
use crate::iter::InternalIter;
use basalt_fs::{Bytes, Result};
use basalt_kv::key::{Kind, TRAILER_LEN, pack_trailer, split_internal_key};
use basalt_tree::EntryCursor;
use std::sync::Arc;

/// A cursor over the entries of a tree in a view.
pub(crate) struct PageIter {
    pages: Arc<FamilyPages>,
    cursor: EntryCursor,
    /// The last movement of `cursor`.
    forward: bool,
    /// The current internal key; its user key is that of the cursor's current entry.
    key: Vec<u8>,
    /// The kind of the cursor's current entry.
    kind: Kind,
    /// The versions of the current entry, if it is a list. Otherwise the cursor has the only one.
    list: Option<Versions>,
    /// The current version.
    at: usize,
    valid: bool,
}

impl PageIter {
    pub fn new(view: &PageView, fill_cache: bool) -> PageIter {
        PageIter {
            pages: view.pages.clone(),
            cursor: view.pages.tree().cursor(&view.snapshot, fill_cache),
            forward: true,
            key: Vec::new(),
            kind: Kind::Put,
            list: None,
            at: 0,
            valid: false,
        }
    }

    /// Returns the number of versions of the current entry.
    fn versions(&self) -> usize {
        self.list.as_ref().map_or(1, |list| list.len())
    }

    fn trailer_of(&self, at: usize) -> u64 {
        let kind = self.list.as_ref().map_or(self.kind, |list| list[at].0);
        pack_trailer((self.versions() - 1 - at) as u64, kind)
    }

    fn show(&mut self, at: usize) {
        self.at = at;
        let trailer = self.trailer_of(at);
        self.key.truncate(self.key.len() - TRAILER_LEN);
        self.key.extend_from_slice(&trailer.to_le_bytes());
    }

    /// Moves the cursor by a key. Afterwards the first version in the direction is current.
    fn step(&mut self, forward: bool) -> Result<()> {
        self.valid = false;
        self.forward = forward;
        let found = match forward {
            true => self.cursor.next_entry()?,
            false => self.cursor.prev_entry()?,
        };
        if found {
            self.key.clear();
            self.kind = self.cursor.take_key(&mut self.key)?;
            if is_list(self.kind) {
                let list = versions_of((self.kind, self.cursor.pinned_value()))?;
                let at = if forward { 0 } else { list.len() - 1 };
                self.list = Some(list);
                self.key.extend_from_slice(&[0; TRAILER_LEN]);
                self.show(at);
            } else {
                (self.list, self.at) = (None, 0);
                let trailer = pack_trailer(0, self.kind);
                self.key.extend_from_slice(&trailer.to_le_bytes());
            }
            self.valid = true;
        }
        Ok(())
    }

    /// Turns the cursor around: its last movement led to the current key, which is now behind it.
    fn turn(&mut self, forward: bool) -> Result<()> {
        if self.forward != forward {
            self.forward = forward;
            match forward {
                true => self.cursor.next_entry()?,
                false => self.cursor.prev_entry()?,
            };
        }
        Ok(())
    }
}

impl Drop for PageIter {
    fn drop(&mut self) {
        self.pages.note_reads();
    }
}

impl InternalIter for PageIter {
    fn valid(&self) -> bool {
        self.valid
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.valid = false;
        self.cursor.seek(b"")?;
        self.step(true)
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.valid = false;
        self.cursor.seek_to_end()?;
        self.step(false)
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.valid = false;
        let (user, target) = split_internal_key(target);
        self.pages.note_reads();
        self.cursor.seek(user)?;
        self.step(true)?;
        if self.valid && split_internal_key(&self.key).0 == user {
            match (0..self.versions()).find(|at| self.trailer_of(*at) <= target) {
                Some(at) => self.show(at),
                None => self.step(true)?,
            }
        }
        Ok(())
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.valid = false;
        let (user, target) = split_internal_key(target);
        self.cursor.seek(user)?;
        self.step(true)?;
        if self.valid && split_internal_key(&self.key).0 == user {
            let found = (0..self.versions()).rfind(|at| self.trailer_of(*at) >= target);
            if let Some(at) = found {
                self.show(at);
                return Ok(());
            }
        }
        self.cursor.seek(user)?;
        self.step(false)
    }

    fn next(&mut self) -> Result<()> {
        if self.at + 1 < self.versions() {
            self.show(self.at + 1);
            return Ok(());
        }
        self.valid = false;
        self.turn(true)?;
        self.step(true)
    }

    fn prev(&mut self) -> Result<()> {
        if self.at > 0 {
            self.show(self.at - 1);
            return Ok(());
        }
        self.valid = false;
        self.turn(false)?;
        self.step(false)
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn value(&self) -> &[u8] {
        match &self.list {
            Some(list) => &list[self.at].1,
            None => self.cursor.value(),
        }
    }

    fn pinned_value(&self) -> Bytes {
        match &self.list {
            Some(list) => list[self.at].1.clone(),
            None => self.cursor.pinned_value(),
        }
    }
}
