//! [`EntryBuffer`]: entries that a cursor has passed and that are not consumed yet. Their values
//! are read, are being read, or are yet to be read.

use super::MAX_BYTES;
use crate::iter::AsyncReadPermit;
use crate::iter::user::BlobAccess;
use basalt_blob::batch_read::{InFlight, KeptIndexPages, Located, RecordPlace};
use basalt_blob::counters::ReadCounters;
use basalt_blob::{Name, ReadMode, Reference};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::{Cmp, SeqNo};
use std::collections::VecDeque;
use std::sync::Arc;

/// A copy of an entry that the cursor has passed.
pub(in crate::iter) struct BufferedEntry {
    pub(super) key: Vec<u8>,
    pub(super) value: BufferedValue,
    /// Time at which the value expires, in milliseconds since 1970; `None` for never.
    pub(in crate::iter) expire_at_ms: Option<u64>,
    /// Entries that the cursor could still skip here, and jumps that it had not counted yet.
    pub(in crate::iter) skips_left: (u64, u64),
    /// True if the value was read before the entry became the current one.
    pub(super) read_ahead: bool,
}

/// The value of a buffered entry.
pub(super) enum BufferedValue {
    Read(Bytes),
    /// Sequence number and reference of a value that was not read.
    Unread(SeqNo, Reference),
    Failed(Error),
}

impl BufferedEntry {
    /// Copies an entry with its value, or with sequence number and reference of a value that was
    /// not read.
    pub(in crate::iter) fn new(
        key: &[u8],
        value: std::result::Result<Bytes, (SeqNo, Reference)>,
        expire_at_ms: Option<u64>,
        skips_left: (u64, u64),
    ) -> BufferedEntry {
        BufferedEntry {
            key: key.to_vec(),
            value: match value {
                Ok(value) => BufferedValue::Read(value),
                Err((seq, to)) => BufferedValue::Unread(seq, to),
            },
            expire_at_ms,
            skips_left,
            read_ahead: false,
        }
    }

    /// Returns the value. Panics if it was not read.
    #[inline]
    pub(super) fn value(&self) -> &Bytes {
        match &self.value {
            BufferedValue::Read(value) => value,
            _ => unreachable!("the current value was read"),
        }
    }

    /// Returns the bytes of memory that the entry holds.
    pub(super) fn bytes(&self) -> usize {
        self.key.len()
            + match &self.value {
                BufferedValue::Read(value) => value.len(),
                _ => 0,
            }
    }
}

/// The position of the cursor that fills the buffer.
pub(super) enum FillState {
    /// On the last entry of the buffer.
    OnLast,
    /// Behind the last entry: at the end, or at a pause that the reader has yet to see.
    PastLast,
    /// Before keys that it did not examine, because it had skipped enough entries for one time.
    Resumable,
    /// Behind the last entry, where it failed.
    Failed(Error),
}

/// Entries that the cursor has passed, from the current one on. Never empty.
pub(super) struct EntryBuffer {
    pub(super) up: bool,
    pub(super) entries: VecDeque<BufferedEntry>,
    pub(super) fill: FillState,
    /// Number of entries that were consumed. The first entry of the buffer has this number.
    pub(super) consumed: u64,
    /// Reads of values of the last entries.
    pub(super) pending: Option<PendingReads>,
    /// Counters for values read in vain, once a value was read.
    pub(super) counts: Option<Arc<ReadCounters>>,
}

/// Reads that were submitted and whose values are not needed yet.
pub(super) struct PendingReads {
    pub(super) reads: InFlight,
    pub(super) how: ReadMode,
    pub(super) _permit: AsyncReadPermit,
    /// The number of each entry, as [`EntryBuffer::consumed`] counts, its reference, and the place
    /// of its record.
    pub(super) entries: Vec<(u64, Reference, RecordPlace)>,
}

impl EntryBuffer {
    /// Returns true if a read of the value of entry `i` is pending.
    pub(super) fn is_pending(&self, i: usize) -> bool {
        let first = self.pending.iter().flat_map(|p| p.entries.first()).next();
        first.is_some_and(|(first, ..)| self.consumed + i as u64 >= *first)
    }
}

impl Drop for EntryBuffer {
    fn drop(&mut self) {
        let pending = self.pending.as_ref().map_or(0, |p| p.entries.len());
        let unused = self.entries.iter().filter(|e| e.read_ahead).count() + pending;
        if let Some(counts) = self.counts.as_ref().filter(|_| unused > 0) {
            counts.ahead_unused.add(unused as u64);
        }
    }
}

/// Values whose records are located together.
const LOCATE_BATCH: usize = 64;

/// Buffered entries whose values are to be read together.
pub(super) struct ValueBatch<'a> {
    /// Index in the buffer and reference of each located value.
    pub(super) entries: Vec<(usize, Reference)>,
    /// The located values, in the order of `entries`.
    pub(super) located: Vec<Located<'a>>,
    /// Index in the buffer and error of each value that could not be located.
    pub(super) failed: Vec<(usize, Result<Bytes>)>,
}

impl<'a> ValueBatch<'a> {
    /// Locates unread values of the entries from `from` on, without those whose reads are pending.
    /// Takes the first, and as many more as there is memory for.
    ///
    /// `stored` and `in_memory` are the bytes of earlier values on the device and decompressed. The
    /// batch assumes the same ratio.
    pub(super) fn locate(
        buffer: &'a EntryBuffer,
        from: usize,
        access: &'a BlobAccess,
        cmp: &'a Cmp,
        pages: &mut KeptIndexPages,
        (stored, in_memory): (u64, u64),
    ) -> ValueBatch<'a> {
        let memory = |l: &Located<'_>| {
            let bytes = u128::from(in_memory) * l.read_len() as u128 / u128::from(stored.max(1));
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let mut out = ValueBatch {
            entries: Vec::new(),
            located: Vec::new(),
            failed: Vec::new(),
        };
        let mut room: Option<usize> = None;
        let unread = buffer.entries.iter().enumerate().skip(from);
        let mut unread = unread.filter_map(|(i, entry)| match &entry.value {
            BufferedValue::Unread(seq, to) if !buffer.is_pending(i) => {
                let name = Name {
                    family: access.family,
                    key: &entry.key,
                    seq: *seq,
                };
                Some((i, *to, to.record(&name)))
            }
            _ => None,
        });
        // Locates a few values at a time, so that it locates few for which there is no memory.
        loop {
            let some: Vec<_> = unread.by_ref().take(LOCATE_BATCH).collect();
            if some.is_empty() {
                return out;
            }
            let entries: Vec<_> = some
                .iter()
                .map(|(_, to, name)| (*name, to.number, cmp))
                .collect();
            let located = access.blobs.locate(&entries, pages, access.how);
            for ((i, to, _), located) in some.into_iter().zip(located) {
                match located {
                    Ok(l) => {
                        // Values read ahead must not push other data out of memory.
                        let free = || usize::try_from(l.env().ledger().free()).unwrap_or(MAX_BYTES);
                        let left = room.unwrap_or_else(|| MAX_BYTES.min(free()));
                        let must = out.located.is_empty() && from == 0;
                        if !must && memory(&l) > left {
                            return out;
                        }
                        room = Some(left.saturating_sub(memory(&l)));
                        out.entries.push((i, to));
                        out.located.push(l);
                    }
                    Err(e) => out.failed.push((i, Err(e))),
                }
            }
        }
    }

    /// Returns how a scan that has read `bytes` of values should read the batch. A long scan does
    /// not fill the cache.
    pub(super) fn how(&self, usual: ReadMode, bytes: u64) -> ReadMode {
        let mut located = self.located.iter();
        let sweeps = located
            .next()
            .is_some_and(|l| l.env().cache().is_swept_by(bytes));
        ReadMode {
            fill_cache: usual.fill_cache && !sweeps,
            ..usual
        }
    }

    /// Returns the bytes to read from the device.
    pub(super) fn read_bytes(&self) -> u64 {
        self.located.iter().map(|l| l.read_len() as u64).sum()
    }
}
