//! Bytes of one file that were appended in bulk and are only in memory: the buffer that is being
//! filled, and the buffers whose writes have not ended.
//!
//! The bytes are contiguous and reach from [`FileBuffers::start`] to the end of the file. Reads
//! find them here. The buffers come from the pool that all files share (`buffer_pool`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

use super::runs::BLOCK;
use basalt_fs::{AlignedBuf, Error, Result};

/// Capacity of a buffer, in bytes.
pub const BUFFER: usize = 512 << 10;

/// A full buffer whose write was requested.
struct BufferWrite {
    /// Offset in the file of the first byte.
    at: u64,
    bytes: Arc<AlignedBuf>,
    /// The write has ended, well or with an error.
    ended: bool,
}

#[derive(Default)]
struct BufferList {
    /// Writes in the order of their offsets.
    writes: VecDeque<BufferWrite>,
    /// The buffer that takes appends, with the offset in the file of its first byte.
    filling: Option<(u64, AlignedBuf)>,
    /// The smallest offset at which a write failed, and the error of the latest failure. The bytes
    /// from there on may not be on the device.
    failed: Option<(u64, Error)>,
}

/// The buffers of one file. The holder of the file's append lock fills them; any thread may read
/// them and end their writes.
pub struct FileBuffers {
    list: Mutex<BufferList>,
    /// Offset in the file of the first byte in memory; `u64::MAX` if there is none.
    start: AtomicU64,
    /// Notified when a write has ended.
    write_ended: Condvar,
}

impl Default for FileBuffers {
    fn default() -> FileBuffers {
        FileBuffers {
            list: Mutex::default(),
            start: AtomicU64::new(u64::MAX),
            write_ended: Condvar::new(),
        }
    }
}

impl BufferList {
    fn start(&self) -> u64 {
        let first = self.writes.front().map(|w| w.at);
        first
            .or(self.filling.as_ref().map(|(at, _)| *at))
            .unwrap_or(u64::MAX)
    }

    /// Notes that the bytes from `at` on are not on the device. The buffers stay in memory for
    /// readers as long as the file is open. Returns the number of buffers that the pool must now
    /// count as lost.
    fn fail(&mut self, at: u64, e: &Error) -> usize {
        let before = self.failed.as_ref().map(|(at, _)| *at);
        let from = before.map_or(at, |before| before.min(at));
        self.failed = Some((from, e.clone()));
        match before {
            None => self.writes.iter().filter(|w| w.ended).count(),
            Some(_) => 1,
        }
    }
}

impl FileBuffers {
    /// Returns the offset in the file of the first byte in memory; `u64::MAX` if there is none.
    pub fn start(&self) -> u64 {
        self.start.load(SeqCst)
    }

    /// Returns `true` if the file has bytes that are only in memory.
    pub fn is_used(&self) -> bool {
        self.start() != u64::MAX
    }

    /// Returns the smallest offset in the file at which a write failed.
    pub fn failed_at(&self) -> Option<u64> {
        self.list.lock().failed.as_ref().map(|(at, _)| *at)
    }

    /// Returns the bytes of `range` that are in memory, and the offset in the file of the first of
    /// them. The offset is `range.end` if there are none.
    pub fn copy(&self, range: &Range<u64>) -> (u64, Vec<u8>) {
        let list = self.list.lock();
        let from = list.start().clamp(range.start, range.end);
        let mut all = Vec::new();
        let writes = list.writes.iter().map(|w| (w.at, &w.bytes[..]));
        let filling = list.filling.iter().map(|(at, bytes)| (*at, &bytes[..]));
        for (at, bytes) in writes.chain(filling) {
            let end = at + bytes.len() as u64;
            if from < end && at < range.end {
                let (a, b) = (from.max(at) - at, range.end.min(end) - at);
                all.extend_from_slice(&bytes[a as usize..b as usize]);
            }
        }
        (from, all)
    }

    /// Returns `true` if a buffer takes appends.
    pub fn is_filling(&self) -> bool {
        self.list.lock().filling.is_some()
    }

    /// Lets `buffer` take the appends from the offset `at` on. No other buffer may take appends.
    pub fn begin(&self, at: u64, buffer: AlignedBuf) {
        let mut list = self.list.lock();
        list.filling = Some((at, buffer));
        self.start.store(list.start(), SeqCst);
    }

    /// Copies bytes, which belong at the offset `at`, into the buffer that takes appends. Returns
    /// the number of bytes that fitted, and whether the buffer is full now.
    pub fn fill(&self, at: u64, bytes: &[u8]) -> (usize, bool) {
        let mut list = self.list.lock();
        let (from, buffer) = list.filling.as_mut().expect("a buffer takes appends");
        debug_assert_eq!(*from + buffer.len() as u64, at, "a gap in buffered bytes");
        let n = bytes.len().min(BUFFER - buffer.len());
        buffer.extend_from_slice(&bytes[..n]);
        (n, buffer.len() == BUFFER)
    }

    /// Moves the buffer that takes appends to the list of writes. Returns its offset in the file
    /// and its bytes, which the caller must write and then end with [`FileBuffers::end_write`].
    pub fn begin_write(&self) -> Option<(u64, Arc<AlignedBuf>)> {
        let mut list = self.list.lock();
        let (at, bytes) = list.filling.take()?;
        let bytes = Arc::new(bytes);
        list.writes.push_back(BufferWrite {
            at,
            bytes: Arc::clone(&bytes),
            ended: false,
        });
        Some((at, bytes))
    }

    /// Ends the write of the buffer at `at`, and removes buffers from memory that the device has.
    /// Calls `give_back` once for each buffer that the pool gets back, and with `None` for each
    /// buffer that the file keeps for good.
    pub fn end_write(
        &self,
        at: u64,
        done: Result<()>,
        mut give_back: impl FnMut(Option<AlignedBuf>),
    ) {
        let mut removed = Vec::new();
        let mut list = self.list.lock();
        let write = list.writes.iter_mut().find(|w| w.at == at);
        write.expect("a requested write").ended = true;
        let kept = match (done, &list.failed) {
            (Err(e), _) => list.fail(at, &e),
            (Ok(()), Some(_)) => 1,
            (Ok(()), None) => 0,
        };
        if list.failed.is_none() {
            while list.writes.front().is_some_and(|w| w.ended) {
                removed.extend(list.writes.pop_front().map(|w| w.bytes));
            }
        }
        self.start.store(list.start(), SeqCst);
        for bytes in removed {
            give_back(Arc::try_unwrap(bytes).ok());
        }
        (0..kept).for_each(|_| give_back(None));
        drop(list);
        self.write_ended.notify_all();
    }

    /// Waits until all requested writes have ended. Returns the error if one failed.
    pub fn wait_for_writes(&self) -> Result<()> {
        let mut list = self.list.lock();
        while list.writes.iter().any(|w| !w.ended) {
            self.write_ended.wait(&mut list);
        }
        match &list.failed {
            Some((_, e)) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// Returns the part of the buffer that takes appends which a direct write cannot end with: the
    /// buffer's offset in the file, the number of bytes before the part, and the part. `None` if
    /// the buffer ends at a multiple of `unit`, or if there is none.
    pub fn unaligned_end(&self, unit: usize) -> Option<(u64, usize, Vec<u8>)> {
        let list = self.list.lock();
        let (at, bytes) = list.filling.as_ref()?;
        let whole = match bytes.len().is_multiple_of(unit) {
            true => bytes.len(),
            false => bytes.len() / BLOCK as usize * BLOCK as usize,
        };
        (whole < bytes.len()).then(|| (*at, whole, bytes[whole..].to_vec()))
    }

    /// Cuts the buffer that takes appends to its first `whole` bytes, because the page cache of the
    /// device has the others. Returns the buffer if nothing is left in it.
    pub fn truncate(&self, whole: usize) -> Option<AlignedBuf> {
        let mut list = self.list.lock();
        let (at, mut bytes) = list.filling.take().expect("a buffer takes appends");
        if whole > 0 {
            bytes.truncate(whole);
            list.filling = Some((at, bytes));
            return None;
        }
        self.start.store(list.start(), SeqCst);
        Some(bytes)
    }

    /// Keeps the buffer that takes appends in memory for good, because bytes of it could not be
    /// written. Returns the number of buffers that the pool must count as lost.
    pub fn fail_filling(&self, e: &Error) -> usize {
        let mut list = self.list.lock();
        let (at, bytes) = list.filling.take().expect("a buffer takes appends");
        list.writes.push_back(BufferWrite {
            at,
            bytes: Arc::new(bytes),
            ended: true,
        });
        list.fail(at, e)
    }
}
