//! An inode that is open: what all handles of one file share.
//!
//! # Invariants
//! - The next append goes to `pos`. Only the holder of the append lock moves it.
//! - Reads are legal up to [`OpenInode::readable`]: the end of a growing file if the end is known,
//!   the end of the allocated space otherwise.
//! - `extents` shares the list of the metadata. For an orphan, an open file without a name, it is
//!   the only owner of the list. It changes by [`OpenInode::change_extents`] alone, which the state
//!   calls under its lock.
//! - `last_record` is the number of the newest journal record about the inode. A sync makes that
//!   record durable.
//! - The bytes `cached_from..cached_end` may be in the page cache of the device and are read from
//!   there.

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::extents::Extents;
use super::meta::InodeAttrs;
use super::metadata_record::{Ino, InodeKind, JournalRecord};
use super::runs::BLOCK;
use super::write_buffer::FileBuffers;
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};

/// The state of the names of an open inode: it still has one, or none.
pub enum LinkState {
    /// The inode has a name. The table of open inodes counts the handles.
    Linked,
    /// The last name was removed. The blocks are freed when the last handle is closed.
    Orphan {
        /// Open handles.
        handles: usize,
        /// Number of the record that removed the last name.
        removal: u64,
    },
    /// A new log has taken over the space.
    Recycled,
}

/// The state that the holder of the append lock changes.
#[derive(Default)]
pub struct AppendTail {
    /// Offset in the file up to which the last page of the page cache is filled.
    pub filled_to: u64,
    /// First released block at or behind the append position, if there is one. The append that
    /// reaches it allocates space again.
    pub hole_ahead: Option<u64>,
}

/// The state that all handles of one file share.
pub struct OpenInode {
    pub ino: Ino,
    pub link_state: Mutex<LinkState>,
    pub buffers: FileBuffers,
    kind: InodeKind,
    tail: Mutex<AppendTail>,
    extents: RwLock<Extents>,
    /// Offset in the file of the next append, in bytes.
    pos: AtomicU64,
    /// Space of the file with its holes, in bytes.
    space: AtomicU64,
    /// The file may be longer than `pos`: nothing was appended since the mount, and the journal did
    /// not record the length.
    inexact: bool,
    /// The metadata has the exact length.
    exact: AtomicBool,
    last_record: AtomicU64,
    /// Bytes were appended, or space was allocated for appends.
    appended: AtomicBool,
    cached_from: AtomicU64,
    cached_end: AtomicU64,
    appends_failed: OnceLock<Error>,
    syncs_failed: OnceLock<Error>,
}

impl OpenInode {
    /// Returns the open inode of a file that has a name.
    pub fn new(ino: Ino, attrs: InodeAttrs, extents: Extents, last_record: u64) -> OpenInode {
        OpenInode {
            ino,
            link_state: Mutex::new(LinkState::Linked),
            buffers: FileBuffers::default(),
            kind: attrs.kind,
            tail: Mutex::default(),
            space: AtomicU64::new(extents.blocks() * BLOCK),
            extents: RwLock::new(extents),
            pos: AtomicU64::new(attrs.len),
            inexact: attrs.inexact,
            exact: AtomicBool::new(!attrs.inexact),
            last_record: AtomicU64::new(last_record),
            appended: AtomicBool::new(false),
            cached_from: AtomicU64::new(0),
            cached_end: AtomicU64::new(0),
            appends_failed: OnceLock::new(),
            syncs_failed: OnceLock::new(),
        }
    }

    /// Returns the kind of the inode.
    pub fn kind(&self) -> InodeKind {
        self.kind
    }

    /// Waits for running appends. While the guard lives, no thread appends to the file.
    pub fn lock_appends(&self) -> MutexGuard<'_, AppendTail> {
        self.tail.lock()
    }

    /// Returns the offset in the file of the next append, in bytes.
    pub fn pos(&self) -> u64 {
        self.pos.load(SeqCst)
    }

    /// Moves the position of the next append. The caller holds the append lock.
    pub fn set_pos(&self, pos: u64) {
        self.pos.store(pos, SeqCst);
    }

    /// Returns the space of the file with its holes, in bytes.
    pub fn space(&self) -> u64 {
        self.space.load(SeqCst)
    }

    /// Returns the offset up to which reads are legal, in bytes.
    pub fn readable(&self) -> u64 {
        match self.kind {
            InodeKind::File if !self.inexact => self.pos(),
            _ => self.space(),
        }
    }

    /// Returns the extents of the file, locked for reading.
    pub fn extents(&self) -> RwLockReadGuard<'_, Extents> {
        self.extents.read()
    }

    /// Changes the extents that readers see. Only the state calls it, under its lock.
    pub fn change_extents<R>(&self, change: impl FnOnce(&mut Extents) -> R) -> R {
        let mut extents = self.extents.write();
        let done = change(&mut extents);
        self.space.store(extents.blocks() * BLOCK, SeqCst);
        done
    }

    /// Returns the number of the newest record about the inode.
    pub fn last_record(&self) -> u64 {
        self.last_record.load(SeqCst)
    }

    /// Notes that the journal has a newer record about the inode.
    pub fn set_last_record(&self, record: u64) {
        self.last_record.store(record, SeqCst);
    }

    /// Notes whether the metadata has the exact length. Returns whether it had it before.
    pub fn set_exact(&self, exact: bool) -> bool {
        self.exact.swap(exact, SeqCst)
    }

    /// Notes that bytes were appended, or that space was allocated for appends.
    pub fn set_appended(&self) {
        self.appended.store(true, SeqCst);
    }

    /// Returns `true` after [`OpenInode::set_appended`].
    pub fn was_appended(&self) -> bool {
        self.appended.load(SeqCst)
    }

    /// Notes that the bytes `range` of the file go to the page cache of the device.
    pub fn add_cached(&self, range: Range<u64>) {
        if self.cached_from.load(SeqCst) >= self.cached_end.load(SeqCst) {
            self.cached_from.store(range.start, SeqCst);
        }
        self.cached_end.fetch_max(range.end, SeqCst);
    }

    /// Returns `true` if bytes of `range` may be in the page cache of the device.
    pub fn is_cached(&self, range: &Range<u64>) -> bool {
        range.start < self.cached_end.load(SeqCst) && range.end > self.cached_from.load(SeqCst)
    }

    /// Returns the end of the bytes that may be in the page cache of the device.
    pub fn cached_end(&self) -> u64 {
        self.cached_end.load(SeqCst)
    }

    /// Notes that a sync moved the bytes before `to` from the page cache to the device.
    pub fn set_uncached(&self, to: u64) {
        self.cached_from.fetch_max(to, SeqCst);
    }

    /// Makes the inode an orphan: record `removal` removed the last name. The journal has no
    /// records about blocks that the inode gets from here on, so a sync of the file makes the
    /// removal durable.
    pub fn become_orphan(&self, handles: usize, removal: u64) {
        self.last_record.fetch_max(removal, SeqCst);
        *self.link_state.lock() = LinkState::Orphan { handles, removal };
    }

    /// Ends the inode because a new log has taken over its space. Later appends fail.
    pub fn recycle(&self) {
        *self.link_state.lock() = LinkState::Recycled;
        let _ = self.appends_failed.set(recycled());
    }

    /// Returns whether the inode has a name. The caller holds the lock of the state.
    ///
    /// Errors: `Poisoned` if a new log has taken over the space.
    pub fn is_linked(&self, path: &Path) -> Result<bool> {
        match *self.link_state.lock() {
            LinkState::Linked => Ok(true),
            LinkState::Orphan { .. } => Ok(false),
            LinkState::Recycled => Err(recycled().in_file(path)),
        }
    }

    /// Makes later appends fail with this error, if they do not fail already.
    pub fn fail_appends(&self, e: &Error) {
        let _ = self.appends_failed.set(e.clone());
    }

    /// Makes later syncs and appends fail with this error, if they do not fail already.
    pub fn fail_syncs(&self, e: &Error) {
        let _ = self.syncs_failed.set(e.clone());
    }

    /// Returns `Poisoned` if an earlier write or sync failed, so that no sync can succeed.
    pub fn check_syncs(&self, path: &Path) -> Result<()> {
        match self.syncs_failed.get() {
            Some(e) => Err(poisoned(e, path)),
            None => Ok(()),
        }
    }

    /// Returns `Poisoned` if an earlier append, write or sync failed, so that no append can
    /// succeed.
    pub fn check_appends(&self, path: &Path) -> Result<()> {
        self.check_syncs(path)?;
        match self.appends_failed.get() {
            Some(e) => Err(poisoned(e, path)),
            None => Ok(()),
        }
    }

    /// Ends the write of the buffer at the offset `at` ([`FileBuffers::end_write`]). If it failed,
    /// later appends and syncs fail.
    pub fn end_write(&self, at: u64, done: Result<()>, give_back: impl FnMut(Option<AlignedBuf>)) {
        if let Err(e) = &done {
            self.fail_appends(e);
            self.fail_syncs(e);
        }
        self.buffers.end_write(at, done, give_back);
    }

    /// Returns the records that bring the metadata up to date when no handle appends any more: the
    /// space behind the last byte is freed, and the length is exact.
    pub fn closing_records(&self) -> Vec<JournalRecord> {
        if self.exact.load(SeqCst) {
            // Nothing was appended since the last sync of data and metadata.
            return Vec::new();
        }
        let mut pos = self.pos();
        if let Some(failed) = self.buffers.failed_at() {
            // The content of the bytes from there on is unknown.
            pos = pos.min(failed);
        }
        let mut records = Vec::new();
        if self.kind == InodeKind::File {
            records.extend(self.cut_to(pos));
        }
        let len = pos;
        records.push(JournalRecord::Length { ino: self.ino, len });
        records
    }

    fn cut_to(&self, pos: u64) -> Option<JournalRecord> {
        let blocks = pos.div_ceil(BLOCK);
        let ino = self.ino;
        (self.extents().blocks() > blocks).then_some(JournalRecord::Cut { ino, blocks })
    }
}

fn recycled() -> Error {
    Error::new(
        ErrorKind::Poisoned,
        "the space of this log was taken over by another",
    )
}

fn poisoned(cause: &Error, path: &Path) -> Error {
    Error::new(
        ErrorKind::Poisoned,
        format!(
            "an earlier write or sync of this file failed, and its bytes on the device are unknown; begin a new file or reopen the store (first failure: {cause})"
        ),
    )
    .in_file(path)
}
