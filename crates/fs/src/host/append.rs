//! Appends: the way of the bytes to the device, and the bookkeeping before and after.
//!
//! | file | intent | bytes | way |
//! |---|---|---|---|
//! | log | `Sync` | position and total are multiples of the write unit | direct |
//! | log | `Lazy` | up to 4 KiB, into space to be allocated | `mmap_append`, into the page cache |
//! | log | any other | | page cache, the last page filled with zeros |
//! | growing | `Sync` | position and total are multiples of the write unit | direct |
//! | growing | any | position is, and at least 64 KiB of whole units | units direct, rest cached |
//! | growing | any other | | page cache |
//!
//! Without direct I/O, every way is the page cache, through write calls. Both descriptors see one
//! file: the kernel writes back and drops the cached pages of a range before and after the range is
//! written directly. So the ways may alternate.
//!
//! The zeros after a lazy append complete its last page. A recycled page that is only partly
//! overwritten would first be read from the device, inside the append. A page that is overwritten
//! whole is not read. For the same reason, windows are only for space that was never written: all
//! of a log, or what comes after the space that it was created with. They end with the first synced
//! append, and when space is written ahead later or taken over. So all space ahead of the appends
//! is either written or belongs to a window.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;

use super::file::{AppendState, HostFile, Kind};
use super::mmap_append::{self, MappedWindow};
use super::sys::Account;
use crate::{Error, Intent, Result};

/// Bytes of a page of the page cache.
const PAGE: u64 = 4096;
/// From this many bytes on, whole units of a growing file go to the device directly, even if no
/// sync is near.
const DIRECT_MIN: usize = 64 * 1024;

/// Appends up to this many bytes go through a window. For larger ones, a write call costs less than
/// making their pages writable.
const MAPPED_MAX: usize = 4096;
/// Largest size of a window, in bytes. Opening a window makes each of its pages writable. This
/// takes a moment, and the appender waits.
const WINDOW: u64 = 256 * 1024;
/// Bytes of the first window of a log.
pub(super) const WINDOW_MIN: u64 = 16 * 1024;
/// Bytes of all windows of the process together, without windows of [`WINDOW_MIN`] bytes. Without
/// this limit, 300 stores would hold 100 MB in windows.
pub(super) const WINDOWS_MOST: u64 = 4 << 20;

/// Returns the largest size, in bytes, of a new window while all windows of the process have `open`
/// bytes. A window takes a part of the rest of [`WINDOWS_MOST`], so that idle logs, which keep
/// their windows, leave memory for the others.
pub(super) fn window_most(open: u64) -> u64 {
    let left = WINDOWS_MOST.saturating_sub(open);
    let part = left / (WINDOWS_MOST / WINDOW);
    (part / PAGE * PAGE).clamp(WINDOW_MIN, WINDOW)
}
/// Least and most bytes of space that is allocated at a time for windows. Between the two limits, a
/// log doubles its space.
const FRESH_MIN: u64 = 64 * 1024;
const FRESH_MAX: u64 = 1 << 20;

/// Bytes of a large page (a folio of the kernel) of a window. After a sync, one store makes the
/// whole large page dirty, and the next sync writes all of it. So larger ones, which are made a
/// little faster, would write more bytes to the device.
const LARGE_PAGE: u64 = 32 * 1024;

/// Zeros for the last page of a lazy append and for the large pages of a window.
static ZEROS: [u8; LARGE_PAGE as usize] = [0; LARGE_PAGE as usize];

impl HostFile {
    pub(super) fn append_bufs(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        let mut state = self.append_state.lock();
        self.check_appends()?;
        let offset = self.pos.load(SeqCst);
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            return Ok(offset);
        }
        let Some(end) = offset
            .checked_add(total as u64)
            .filter(|end| *end <= i64::MAX as u64 - PAGE)
        else {
            return Err(Error::invalid(format!(
                "an append of {total} bytes at {offset} would pass the largest file size"
            ))
            .in_file(self.path()));
        };
        if self.may_map(&state, offset, total, intent)
            && self.write_mapped(&mut state, bufs, offset, end)
        {
            self.pos.store(end, SeqCst);
            return Ok(offset);
        }
        let direct = self.direct_part(offset, total, intent);
        if intent == Intent::Sync {
            let ended = self.end_windows(&mut state);
            ended.inspect_err(|e| self.fail_appends(e))?;
        }
        let mut fill = 0;
        if direct < total
            && self.kind == Kind::Log
            && end > state.filled_to
            && end < self.size.load(SeqCst)
        {
            fill = (end.next_multiple_of(PAGE) - end) as usize;
        }
        // The count changes before the first byte moves, so that a sync of several files does not
        // take this file for flushed. The count changes again after the last byte, because a sync
        // between the two changes covers none of the bytes.
        let own = direct < total || end > self.written_to.load(SeqCst);
        if own {
            self.own_started.fetch_add(1, SeqCst);
        }
        let reaches = end + fill as u64;
        let done = if reaches > self.size.load(SeqCst) {
            let _space = self.space.lock();
            let done = self.write(&mut state, bufs, offset, total, direct, fill);
            if done.is_ok() {
                self.size.fetch_max(reaches, SeqCst);
            }
            done
        } else {
            self.write(&mut state, bufs, offset, total, direct, fill)
        };
        match done {
            Ok(()) => {
                if own {
                    self.own_started.fetch_add(1, SeqCst);
                }
                self.pos.store(end, SeqCst);
                Ok(offset)
            }
            Err(e) => {
                let what = format!("appending {total} bytes");
                let e = Error::io(&what, self.path(), e.into()).at(self.path(), offset);
                self.fail_appends(&e);
                Err(e)
            }
        }
    }

    fn may_map(&self, state: &AppendState, offset: u64, total: usize, intent: Intent) -> bool {
        self.kind == Kind::Log
            && intent == Intent::Lazy
            && total <= MAPPED_MAX
            && !state.windows_ended
            && offset >= state.windows_from
            && (self.overwrites_in_place || self.sys().windows_anywhere())
    }

    /// Appends through a window, if one covers these bytes or can be opened. If not, the log has no
    /// window any more, none of these bytes is in the file, and the result is false.
    fn write_mapped(
        &self,
        state: &mut AppendState,
        bufs: &[IoSlice<'_>],
        offset: u64,
        end: u64,
    ) -> bool {
        let total = (end - offset) as usize;
        if !state
            .window
            .as_ref()
            .is_some_and(|w| w.covers(offset, total))
        {
            state.window = None;
            state.window = self.open_window(state, offset, end);
        }
        let Some(window) = &mut state.window else {
            // The log asks for a window once. Otherwise each append would ask a device that is
            // nearly full. Space that stays allocated after an error here is past the appends, and
            // is released when the file is cut or removed.
            let _ = self.end_windows(state);
            return false;
        };
        // The count changes before the first byte and after the last one, as in `append_bufs`.
        self.own_started.fetch_add(1, SeqCst);
        self.note_lazy(offset, end);
        #[cfg(test)]
        self.sys().before_bytes();
        let mut at = offset;
        for b in bufs {
            window.store(at, b);
            at += b.len() as u64;
        }
        self.own_started.fetch_add(1, SeqCst);
        self.sys().count_mapped(total);
        state.filled_to = state.filled_to.max(end.next_multiple_of(PAGE));
        true
    }

    /// Opens a window from the page of `offset` at least to `end`. Returns `None` if that is not
    /// possible.
    fn open_window(&self, state: &mut AppendState, offset: u64, end: u64) -> Option<MappedWindow> {
        let start = offset / PAGE * PAGE;
        if end > state.fresh_to {
            let _space = self.space.lock();
            let size = self.size.load(SeqCst);
            if size > state.fresh_to.max(start + PAGE) {
                // Another writer has written space here.
                return None;
            }
            let from = size.next_multiple_of(PAGE).max(start);
            let more = size
                .clamp(FRESH_MIN, FRESH_MAX)
                .max(end.saturating_sub(from));
            let to = (from + more).next_multiple_of(PAGE);
            if self
                .sys()
                .allocate(self.main_fd(), from, to - from)
                .is_err()
            {
                // A part of the space may be allocated, and the kernel's file size may include it.
                state.reserved_to = 0;
                let _ = rustix::fs::ftruncate(self.main_fd(), size);
                return None;
            }
            self.size.fetch_max(to, SeqCst);
            state.fresh_to = to;
        }
        // Each page of a window goes to the device with the next sync, so the first windows are
        // small.
        let most = window_most(mmap_append::open_bytes());
        let len = (start / 2).next_multiple_of(PAGE).clamp(WINDOW_MIN, most);
        let len = len.max((end - start).next_multiple_of(PAGE));
        let len = len.min(state.fresh_to - start);
        // The page of `offset` may have bytes of earlier appends. All later pages are fresh space.
        let fresh = offset.next_multiple_of(PAGE);
        #[cfg(test)]
        if self.sys().window_fault() {
            // A call that fails may have written some of the pages.
            let _ = fill_page_cache(self.main_fd(), fresh, fresh + PAGE);
            return None;
        }
        fill_page_cache(self.main_fd(), fresh, start + len).ok()?;
        MappedWindow::open(self.main_fd(), start, len as usize).ok()
    }

    /// Lets a log that was just created have windows from the end of its written space on.
    pub(super) fn allow_windows(&self) {
        let mut state = self.append_state.lock();
        state.windows_ended = false;
        state.windows_from = self.size.load(SeqCst);
    }

    /// Ends the windows of this log and releases the space that was allocated ahead for them. A
    /// synced append into space that was never written waits for the filesystem's journal. Also,
    /// writing space ahead of synced appends begins at the end of the file, and takes all space
    /// before it for written.
    pub(super) fn end_windows(&self, state: &mut AppendState) -> Result<()> {
        state.windows_ended = true;
        state.window = None;
        let fresh_to = std::mem::take(&mut state.fresh_to);
        if fresh_to == 0 {
            return Ok(());
        }
        let _space = self.space.lock();
        let used = self.pos.load(SeqCst).next_multiple_of(PAGE);
        if used < fresh_to {
            state.reserved_to = 0;
            rustix::fs::ftruncate(self.main_fd(), used).map_err(|e| {
                let what = format!("moving the end of the file back to {used}");
                Error::io(&what, self.path(), e.into())
            })?;
            self.size.store(used, SeqCst);
        }
        Ok(())
    }

    /// Returns how many of the leading bytes go to the device directly.
    fn direct_part(&self, offset: u64, total: usize, intent: Intent) -> usize {
        let unit = self.shared.unit;
        if self.direct.is_none() || !offset.is_multiple_of(unit as u64) {
            return 0;
        }
        let whole = total / unit * unit;
        let go = match (self.kind, intent) {
            (_, Intent::Sync | Intent::Bulk) if whole == total => true,
            (Kind::Growing, _) => whole >= DIRECT_MIN,
            _ => false,
        };
        if go { whole } else { 0 }
    }

    fn write(
        &self,
        state: &mut AppendState,
        bufs: &[IoSlice<'_>],
        offset: u64,
        total: usize,
        direct: usize,
        fill: usize,
    ) -> rustix::io::Result<()> {
        if direct == total {
            state.filled_to = 0;
            return self.write_direct(bufs, offset);
        }
        if direct != 0 {
            let (head, rest) = split(bufs, direct);
            self.write_direct(&head, offset)?;
            return self.write_buffered(state, &rest, offset + direct as u64, total - direct, 0);
        }
        self.write_buffered(state, bufs, offset, total, fill)
    }

    fn write_buffered(
        &self,
        state: &mut AppendState,
        bufs: &[IoSlice<'_>],
        offset: u64,
        total: usize,
        fill: usize,
    ) -> rustix::io::Result<()> {
        let end = offset + total as u64;
        self.note_lazy(offset, end);
        let fd = self.main_fd();
        if fill == 0 {
            return self
                .sys()
                .write_all(fd, bufs, offset, None, Account::Append);
        }
        let mut filled = Vec::with_capacity(bufs.len() + 1);
        filled.extend_from_slice(bufs);
        filled.push(IoSlice::new(&ZEROS[..fill]));
        self.sys()
            .write_all(fd, &filled, offset, None, Account::Append)?;
        self.sys().recount_as_prewritten(fill);
        state.filled_to = end + fill as u64;
        Ok(())
    }

    /// Sends reads of these bytes to the page cache, until a sync that begins after this append.
    fn note_lazy(&self, offset: u64, end: u64) {
        if self.lazy_from.load(SeqCst) >= self.lazy_end.load(SeqCst) {
            self.lazy_from.store(offset, SeqCst);
        }
        self.lazy_end.fetch_max(end, SeqCst);
    }

    fn write_direct(&self, bufs: &[IoSlice<'_>], offset: u64) -> rustix::io::Result<()> {
        let (fd, align) = self.direct.as_ref().expect("the way was chosen by it");
        let (fd, unit) = (fd.as_fd(), self.shared.unit);
        self.shared
            .stages
            .write(self.sys(), fd, bufs, offset, unit, align.memory)
    }

    pub(super) fn align_position(&self) -> Result<u64> {
        let state = self.append_state.lock();
        self.check_appends()?;
        let pos = self.pos.load(SeqCst);
        let aligned = pos.next_multiple_of(self.shared.unit as u64);
        if aligned > self.size.load(SeqCst) {
            // Reads are legal up to the position, so the file must reach the position.
            let _space = self.space.lock();
            self.own_started.fetch_add(1, SeqCst);
            rustix::fs::ftruncate(self.main_fd(), aligned).map_err(|e| {
                let what = format!("moving the end of the file to {aligned}");
                Error::io(&what, self.path(), e.into())
            })?;
            self.own_started.fetch_add(1, SeqCst);
            self.size.store(aligned, SeqCst);
        }
        self.pos.store(aligned, SeqCst);
        drop(state);
        Ok(aligned)
    }
}

/// Writes zeros to the fresh space from `from` to `to`, before a window maps it. Both are multiples
/// of [`PAGE`]. A write call makes large pages in the page cache. Without it, mapping the window
/// makes each small page separately, which takes four times as long. The zeros are in no counter:
/// the appends overwrite them in the page cache.
fn fill_page_cache(fd: BorrowedFd<'_>, from: u64, to: u64) -> rustix::io::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(LARGE_PAGE - at % LARGE_PAGE) as usize;
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, &ZEROS[..len], at))? {
            0 => return Err(rustix::io::Errno::IO),
            n => at += n as u64,
        }
    }
    Ok(())
}

/// Returns the first `at` bytes, and the rest.
fn split<'a>(bufs: &'a [IoSlice<'_>], at: usize) -> (Vec<IoSlice<'a>>, Vec<IoSlice<'a>>) {
    let (mut head, mut rest) = (Vec::with_capacity(bufs.len()), Vec::new());
    let mut left = at;
    for b in bufs {
        let n = left.min(b.len());
        left -= n;
        if n > 0 {
            head.push(IoSlice::new(&b[..n]));
        }
        if n < b.len() {
            rest.push(IoSlice::new(&b[n..]));
        }
    }
    (head, rest)
}
