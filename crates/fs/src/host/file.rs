//! An open host file: its descriptors, its failures, reads and syncs. Appends are in `append.rs`,
//! and the space ahead of a log is in `space.rs`.
//!
//! # What the fields promise
//! - `pos` is the offset of the next append. It changes only under `append_state`.
//! - `size` is the kernel's file size. It grows only under `space`, so that a write past it (a
//!   growing append, or `extend_log`) is alone. An append below it needs no such lock.
//! - `[0, written_to)` are extents that are written and durable as metadata: an overwrite there
//!   changes nothing that a read needs. Bytes below `pos` are never written again through this
//!   handle, so a hole punched among them does not break this.
//! - `own_started > own_synced` means that some append since the last good sync of this file went
//!   through the page cache or past `written_to`. So only a sync of *this* file makes it durable.
//! - `[lazy_from, lazy_end)` may be dirty in the page cache and is read from there.

use std::any::Any;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::mmap_append::MappedWindow;
use super::probe::{DirectAlign, FileFacts};
use super::sys::Sys;
use super::{HostShared, read};
use crate::{Bytes, Error, ErrorKind, File, Intent, Result};

/// The operations that a handle allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The handle is from `create`. The file grows with each append.
    Growing,
    /// The handle is from `create_log`. The file has written space ahead of the appends.
    Log,
    /// Opened for reading.
    ReadOnly,
}

/// The state of appends, under their lock.
pub(super) struct AppendState {
    /// Offset up to which the last page was filled through the page cache. An append that ends
    /// before it needs no zeros.
    pub(super) filled_to: u64,
    /// Offset up to which space is allocated and was never written, from the page of the append
    /// position on. Only that page itself may be written.
    pub(super) fresh_to: u64,
    /// Offset up to which blocks past the end of the file may be allocated.
    pub(super) reserved_to: u64,
    /// The window that takes small lazy appends to a log.
    pub(super) window: Option<MappedWindow>,
    /// True if the log opens no windows any more.
    pub(super) windows_ended: bool,
    /// Offset from which the log opens windows: the end of the space that it was created with.
    pub(super) windows_from: u64,
}

/// The descriptors and facts that a handle is made from.
pub(super) struct OpenedFile {
    pub(super) buffered: Option<OwnedFd>,
    pub(super) direct: Option<(OwnedFd, DirectAlign)>,
    pub(super) facts: FileFacts,
    pub(super) overwrites_in_place: bool,
}

/// An open file of a host directory.
pub(super) struct HostFile {
    pub(super) shared: Arc<HostShared>,
    path: PathBuf,
    pub(super) kind: Kind,
    /// The descriptor for the page cache. At least one of the two descriptors exists, and a handle
    /// that appends always has this one.
    buffered: Option<OwnedFd>,
    pub(super) direct: Option<(OwnedFd, DirectAlign)>,
    pub(super) dev: u64,
    pub(super) overwrites_in_place: bool,
    pub(super) append_state: Mutex<AppendState>,
    pub(super) space: Mutex<()>,
    /// Held during one `extend_log`.
    pub(super) extending: Mutex<()>,
    pub(super) pos: AtomicU64,
    pub(super) size: AtomicU64,
    pub(super) written_to: AtomicU64,
    pub(super) own_started: AtomicU64,
    own_synced: AtomicU64,
    pub(super) lazy_from: AtomicU64,
    pub(super) lazy_end: AtomicU64,
    /// The error of a failed append. If set, all appends fail.
    appends_failed: OnceLock<Error>,
    /// The error of a failed sync. If set, all appends and syncs fail.
    sync_failed: OnceLock<Error>,
}

impl HostFile {
    pub(super) fn new(
        shared: Arc<HostShared>,
        path: PathBuf,
        kind: Kind,
        opened: OpenedFile,
    ) -> HostFile {
        assert!(
            opened.buffered.is_some() || (kind == Kind::ReadOnly && opened.direct.is_some()),
            "a handle without a descriptor"
        );
        let size = opened.facts.size;
        HostFile {
            shared,
            path,
            kind,
            buffered: opened.buffered,
            direct: opened.direct,
            dev: opened.facts.dev,
            overwrites_in_place: opened.overwrites_in_place,
            append_state: Mutex::new(AppendState {
                filled_to: 0,
                fresh_to: 0,
                reserved_to: 0,
                window: None,
                windows_ended: false,
                windows_from: 0,
            }),
            space: Mutex::new(()),
            extending: Mutex::new(()),
            pos: AtomicU64::new(0),
            size: AtomicU64::new(size),
            written_to: AtomicU64::new(0),
            own_started: AtomicU64::new(0),
            own_synced: AtomicU64::new(0),
            lazy_from: AtomicU64::new(0),
            lazy_end: AtomicU64::new(0),
            appends_failed: OnceLock::new(),
            sync_failed: OnceLock::new(),
        }
    }

    pub(super) fn sys(&self) -> &Sys {
        &self.shared.sys
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the path. It changes once, when a reused log takes its new name.
    pub(super) fn set_path(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// Returns the descriptor for everything but direct transfers. The kernel reports errors of
    /// either descriptor's writes to both: it keeps errors with the file, and both descriptors were
    /// opened before the first write.
    pub(super) fn main_fd(&self) -> BorrowedFd<'_> {
        match (&self.buffered, &self.direct) {
            (Some(fd), _) => fd.as_fd(),
            (None, Some((fd, _))) => fd.as_fd(),
            (None, None) => unreachable!("checked when the handle was made"),
        }
    }

    pub(super) fn read_fd(&self, direct: bool) -> BorrowedFd<'_> {
        match &self.direct {
            Some((fd, _)) if direct => fd.as_fd(),
            _ => self.main_fd(),
        }
    }

    /// Returns the offset up to which a read that ends at `wished` can go.
    pub(super) fn readable_end(&self, wished: u64) -> u64 {
        let size = self.size.load(SeqCst);
        if self.kind != Kind::ReadOnly || wished <= size {
            return size;
        }
        // Another handle may have extended the file meanwhile.
        match rustix::fs::fstat(self.main_fd()) {
            Ok(s) => {
                let now = u64::try_from(s.st_size).unwrap_or(0);
                self.size.store(now, SeqCst);
                now
            }
            Err(_) => size,
        }
    }

    /// Returns the alignment, in bytes, of a direct read of this range, or `None` if the read must
    /// go through the page cache.
    pub(super) fn direct_read_align(&self, from: u64, to: u64) -> Option<usize> {
        let (_, align) = self.direct.as_ref()?;
        let dirty = self.kind != Kind::ReadOnly
            && from < self.lazy_end.load(SeqCst)
            && to > self.lazy_from.load(SeqCst);
        (!dirty).then_some(align.offset)
    }

    pub(super) fn fail_appends(&self, e: &Error) {
        let _ = self.appends_failed.set(e.clone());
    }

    pub(super) fn fail_syncs(&self, e: &Error) {
        let _ = self.sync_failed.set(e.clone());
    }

    fn poisoned(&self, cause: &Error) -> Error {
        Error::new(
            ErrorKind::Poisoned,
            format!(
                "an earlier write or sync of this file failed, and it is unknown which bytes reached the device; \
                 begin a new file or reopen the store (first failure: {cause})"
            ),
        )
        .in_file(&self.path)
    }

    pub(super) fn check_syncs(&self) -> Result<()> {
        self.sync_failed
            .get()
            .map_or(Ok(()), |e| Err(self.poisoned(e)))
    }

    pub(super) fn check_appends(&self) -> Result<()> {
        self.check_syncs()?;
        if let Some(e) = self.appends_failed.get() {
            return Err(self.poisoned(e));
        }
        if self.kind == Kind::ReadOnly {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the file was opened for reading; appends go through the handle that created it",
            )
            .in_file(&self.path));
        }
        Ok(())
    }

    /// Returns true if every append that returned since the last sync is a complete direct write
    /// into written space. Then a flush of the device's cache through any file makes those appends
    /// durable.
    pub(super) fn flush_is_enough(&self) -> bool {
        self.overwrites_in_place && self.own_started.load(SeqCst) == self.own_synced.load(SeqCst)
    }

    /// Returns true if `fdatasync` of this file is known to flush its device's cache.
    pub(super) fn flushes_device(&self) -> bool {
        self.overwrites_in_place
    }

    pub(super) fn sync_now(&self, all: bool) -> Result<()> {
        self.check_syncs()?;
        // The counts are read before the call, because the call covers no append that starts later.
        let own = self.own_started.load(SeqCst);
        let lazy = self.lazy_end.load(SeqCst);
        let (what, done) = if all {
            ("syncing data and length", self.sys().fsync(self.main_fd()))
        } else {
            ("syncing data", self.sys().fdatasync(self.main_fd()))
        };
        match done {
            Ok(()) => {
                // A sync that failed meanwhile may have taken the error that this sync should have
                // seen.
                self.check_syncs()?;
                self.own_synced.fetch_max(own, SeqCst);
                self.lazy_from.fetch_max(lazy, SeqCst);
                Ok(())
            }
            Err(e) => {
                let e = Error::io(what, &self.path, e.into());
                self.fail_syncs(&e);
                Err(e)
            }
        }
    }

    /// Cuts the file to the append position, so that its length is exact, and releases the space
    /// ahead.
    fn cut_to_position(&self) -> Result<()> {
        let mut state = self.append_state.lock();
        let _space = self.space.lock();
        let pos = self.pos.load(SeqCst);
        // Blocks past the end are released, too.
        let reserved = std::mem::take(&mut state.reserved_to) > pos;
        if self.size.load(SeqCst) == pos && !reserved {
            return Ok(());
        }
        self.written_to.fetch_min(pos, SeqCst);
        state.filled_to = 0;
        state.fresh_to = 0;
        // A store into a mapping past the end of its file would end the process.
        state.window = None;
        rustix::fs::ftruncate(self.main_fd(), pos).map_err(|e| {
            Error::io(
                &format!("cutting the file to its length of {pos} bytes"),
                &self.path,
                e.into(),
            )
        })?;
        self.size.store(pos, SeqCst);
        Ok(())
    }

    /// Opens a descriptor that may change the file, for a handle that was opened for reading.
    fn reopen_writable(&self) -> rustix::io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let name = format!("/proc/self/fd/{}", self.main_fd().as_raw_fd());
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(name, flags, rustix::fs::Mode::empty())
    }
}

impl File for HostFile {
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        self.append_bufs(bufs, intent)
    }

    fn align_to_unit(&self) -> Result<u64> {
        self.align_position()
    }

    fn sync_data(&self) -> Result<()> {
        self.sync_now(false)
    }

    fn sync_all(&self) -> Result<()> {
        self.check_syncs()?;
        if self.kind != Kind::ReadOnly {
            self.cut_to_position()?;
        }
        self.sync_now(true)
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        read::read_now(self, offset, len)
    }

    fn len(&self) -> u64 {
        match self.kind {
            Kind::ReadOnly => self.readable_end(u64::MAX),
            _ => self.pos.load(SeqCst),
        }
    }

    fn allocated(&self) -> u64 {
        self.readable_end(u64::MAX)
    }

    fn extend_log(&self, capacity: u64) -> Result<()> {
        if self.kind != Kind::Log {
            return Err(
                Error::invalid("space is written ahead only in logs, made by create_log")
                    .in_file(&self.path),
            );
        }
        self.check_appends()?;
        self.write_space(capacity)
    }

    fn expect_appends(&self, to: u64) {
        self.reserve_past_end(to);
    }

    fn release_range(&self, range: Range<u64>) -> Result<()> {
        const BLOCK: u64 = 4096;
        let Some(from) = range.start.checked_next_multiple_of(BLOCK) else {
            return Ok(());
        };
        let mut to = range.end / BLOCK * BLOCK;
        // Most ranges between large values contain no whole block. Then the file's size is not
        // needed.
        if from < to {
            to = to.min(self.allocated() / BLOCK * BLOCK);
        }
        if from >= to {
            return Ok(());
        }
        if self.kind != Kind::ReadOnly && to > self.pos.load(SeqCst) {
            // A store into a released page of a window takes space anew, and ends the process if
            // the disk is full.
            self.end_windows(&mut self.append_state.lock())?;
            to = to.min(self.allocated() / BLOCK * BLOCK);
            if from >= to {
                return Ok(());
            }
            // Released space ahead of the appends is no longer written space.
            self.written_to.fetch_min(from, SeqCst);
        }
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let punched = if self.kind == Kind::ReadOnly {
            self.reopen_writable()
                .and_then(|fd| rustix::fs::fallocate(fd, mode, from, to - from))
        } else {
            rustix::fs::fallocate(self.main_fd(), mode, from, to - from)
        };
        punched.map_err(|e| {
            let what = format!("releasing {} bytes", to - from);
            Error::io(&what, &self.path, e.into()).at(&self.path, from)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
