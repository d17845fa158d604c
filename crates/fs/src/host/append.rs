//! Appending: which way to the device, and what is recorded before and after.
//!
//! | file | intent | bytes | way |
//! |---|---|---|---|
//! | log | `Sync` | position and total are multiples of the write unit | direct |
//! | log | `Lazy` | up to 4 KiB, into space that the file has yet to get | a window of the page cache, see `window` |
//! | log | any other | | page cache, the last page filled with zeros |
//! | growing | `Sync` | position and total are multiples of the write unit | direct |
//! | growing | any | position is, and at least 64 KiB of whole units | those direct, the tail by page cache |
//! | growing | any other | | page cache |
//!
//! Without direct I/O every way is the page cache, by write calls. Both descriptors see one file: the kernel writes back and drops
//! the cached pages of a range before and after it is written directly, so the ways may alternate.
//!
//! The zeros after a lazy append complete its last page. A recycled page that is only partly overwritten would
//! first be read from the device, inside the append; a page overwritten whole is not. For the same reason windows are for logs whose space was
//! never written: they end with the first synced append, and where space is written ahead or taken over. So there is never space
//! ahead of the appends that is neither written nor a window's.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use super::file::{HostFile, Kind, Tail};
use super::sys::Account;
use super::window::{self, Window};
use crate::{Error, Intent, Result};

/// What the page cache manages, in bytes.
const PAGE: u64 = 4096;
/// From here on, whole units of a growing file go to the device directly even when no sync is near.
const DIRECT_MIN: usize = 64 * 1024;

/// Appends up to this size go through a window. For larger ones a write call costs less than making their pages writable.
const MAPPED_MAX: usize = 4096;
/// A window's largest size: opening it makes each of its pages writable, which takes a moment, and the appender waits.
const WINDOW: u64 = 256 * 1024;
/// The first one's.
pub(super) const WINDOW_MIN: u64 = 16 * 1024;
/// Bytes that the windows of the process have together, without those that have [`WINDOW_MIN`]
/// bytes. Without this limit, 300 stores would hold 100 MB in windows.
pub(super) const WINDOWS_MOST: u64 = 4 << 20;

/// Returns the most bytes of a new window while all windows of the process have `open` bytes. A
/// window takes a part of what is left of [`WINDOWS_MOST`], so that logs that are idle and keep their
/// windows leave something for the others.
pub(super) fn window_most(open: u64) -> u64 {
    let left = WINDOWS_MOST.saturating_sub(open);
    let part = left / (WINDOWS_MOST / WINDOW);
    (part / PAGE * PAGE).clamp(WINDOW_MIN, WINDOW)
}
/// Space for windows is taken so much at a time; a small log takes as much as it has.
const FRESH_MIN: u64 = 64 * 1024;
const FRESH_MAX: u64 = 1 << 20;

static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

impl HostFile {
    pub(super) fn append_bufs(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64> {
        let mut tail = self.tail.lock();
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
            return Err(
                Error::invalid(format!("{total} bytes at {offset} pass the largest file"))
                    .in_file(self.path()),
            );
        };
        if self.may_map(&tail, total, intent) && self.write_mapped(&mut tail, bufs, offset, end) {
            self.pos.store(end, SeqCst);
            return Ok(offset);
        }
        let direct = self.direct_part(offset, total, intent);
        if intent == Intent::Sync {
            let ended = self.end_windows(&mut tail);
            ended.inspect_err(|e| self.fail_appends(e))?;
        }
        let mut fill = 0;
        if direct < total
            && self.kind == Kind::Log
            && end > tail.filled_to
            && end < self.size.load(SeqCst)
        {
            fill = (end.next_multiple_of(PAGE) - end) as usize;
        }
        // Before the first byte moves: a sync of several files must not take this one for flushed. And once they have: a sync that came
        // between the two covers none of them.
        let own = direct < total || end > self.written_to.load(SeqCst);
        if own {
            self.own_started.fetch_add(1, SeqCst);
        }
        let reaches = end + fill as u64;
        let done = if reaches > self.size.load(SeqCst) {
            let _space = self.space.lock();
            let done = self.write(&mut tail, bufs, offset, total, direct, fill);
            if done.is_ok() {
                self.size.fetch_max(reaches, SeqCst);
            }
            done
        } else {
            self.write(&mut tail, bufs, offset, total, direct, fill)
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

    fn may_map(&self, tail: &Tail, total: usize, intent: Intent) -> bool {
        self.kind == Kind::Log
            && intent == Intent::Lazy
            && total <= MAPPED_MAX
            && !tail.windows_ended
            && (self.overwrites_in_place || self.sys().windows_anywhere())
    }

    /// Appends through a window, if there is one for these bytes or one can be had. If not, there is none any more, and nothing of
    /// these bytes is in the file.
    fn write_mapped(&self, tail: &mut Tail, bufs: &[IoSlice<'_>], offset: u64, end: u64) -> bool {
        let total = (end - offset) as usize;
        if !tail
            .window
            .as_ref()
            .is_some_and(|w| w.covers(offset, total))
        {
            tail.window = None;
            tail.window = self.open_window(tail, offset, end);
        }
        let Some(window) = &mut tail.window else {
            // Asked once: a device that is nearly full would be asked by each append. What stays allocated after an error here
            // is past the appends, and goes when the file is cut or removed.
            let _ = self.end_windows(tail);
            return false;
        };
        // Before the first byte moves, and once they have, as above.
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
        tail.filled_to = tail.filled_to.max(end.next_multiple_of(PAGE));
        true
    }

    /// A window from `offset`'s page to `end` at least, if it can be had.
    fn open_window(&self, tail: &mut Tail, offset: u64, end: u64) -> Option<Window> {
        let start = offset / PAGE * PAGE;
        if end > tail.fresh_to {
            let _space = self.space.lock();
            let size = self.size.load(SeqCst);
            if size > tail.fresh_to.max(start + PAGE) {
                // There is space that somebody wrote.
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
                // Part of it may be there, and the kernel's size with it.
                tail.reserved_to = 0;
                let _ = rustix::fs::ftruncate(self.main_fd(), size);
                return None;
            }
            self.size.fetch_max(to, SeqCst);
            tail.fresh_to = to;
        }
        // Each page of a window goes to the device with the next sync: the first ones are small.
        let most = window_most(window::open_bytes());
        let len = (start / 2).next_multiple_of(PAGE).clamp(WINDOW_MIN, most);
        let len = len.max((end - start).next_multiple_of(PAGE));
        let len = len.min(tail.fresh_to - start);
        #[cfg(test)]
        if self.sys().window_fault() {
            return None;
        }
        Window::open(self.main_fd(), start, len as usize).ok()
    }

    /// No more windows on this log, and what was allocated ahead for them goes back: a synced append into space that was never
    /// written waits for the journal, and whoever writes space ahead of synced appends begins at the end of the file, and takes all
    /// before it for written.
    pub(super) fn end_windows(&self, tail: &mut Tail) -> Result<()> {
        tail.windows_ended = true;
        tail.window = None;
        let fresh_to = std::mem::take(&mut tail.fresh_to);
        if fresh_to == 0 {
            return Ok(());
        }
        let _space = self.space.lock();
        let used = self.pos.load(SeqCst).next_multiple_of(PAGE);
        if used < fresh_to {
            tail.reserved_to = 0;
            rustix::fs::ftruncate(self.main_fd(), used).map_err(|e| {
                let what = format!("moving the end of the file back to {used}");
                Error::io(&what, self.path(), e.into())
            })?;
            self.size.store(used, SeqCst);
        }
        Ok(())
    }

    /// How many of the leading bytes go to the device directly.
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
        tail: &mut Tail,
        bufs: &[IoSlice<'_>],
        offset: u64,
        total: usize,
        direct: usize,
        fill: usize,
    ) -> rustix::io::Result<()> {
        if direct == total {
            tail.filled_to = 0;
            return self.write_direct(bufs, offset);
        }
        if direct != 0 {
            let (head, rest) = split(bufs, direct);
            self.write_direct(&head, offset)?;
            return self.write_buffered(tail, &rest, offset + direct as u64, total - direct, 0);
        }
        self.write_buffered(tail, bufs, offset, total, fill)
    }

    fn write_buffered(
        &self,
        tail: &mut Tail,
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
        tail.filled_to = end + fill as u64;
        Ok(())
    }

    /// Reads of these bytes go to the page cache from now until a sync that begins after this append.
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
        let tail = self.tail.lock();
        self.check_appends()?;
        let pos = self.pos.load(SeqCst);
        let aligned = pos.next_multiple_of(self.shared.unit as u64);
        if aligned > self.size.load(SeqCst) {
            // Reads are legal up to the position, so the file must reach it.
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
        drop(tail);
        Ok(aligned)
    }
}

/// The first `at` bytes and the rest.
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
