//! [`ValuePrefetch`]: a cursor over live keys that reads values out of blob files before the reader
//! asks for them, many at once.
//!
//! A movement of a [`UserIter`] that comes to a value in a blob file leaves the value unread. This
//! cursor reads it together with later ones:
//! - After a seek it reads as many more values as each of the last eight scans of the family went
//!   on to ([`ScanHistory`](super::ScanHistory)). If one of them was short, it reads the value
//!   alone, also after the first step.
//! - From then on the [`UserIter`] runs ahead of the current key. Its entries are buffered until it
//!   has passed 2, then 4, 8, ... unread values, which are read together.
//! - A long scan submits the reads of the next values while the reader consumes those that it has,
//!   and does not fill the cache.
//!
//! When the reader turns or ends, the values read in vain are no more than the scan had consumed,
//! or than all eight scans before it consumed.
//!
//! The cursor shows what the [`UserIter`] would show, entry by entry. Errors, the end and pauses
//! come after the entries before them. An unreadable value fails at its own entry. Skips that were
//! used in vain by running ahead are given back. Running ahead stops where it meets many entries
//! that are not visible, so that the reader does not wait for more than it asked for.

mod buffer;

pub(super) use buffer::BufferedEntry;

use super::user::{UserIter, without_expiry};
use crate::iter::AsyncReadPermit;
use basalt_blob::Name;
use basalt_blob::batch_read::{InFlight, KeptIndexPages, Located, ValueRequest};
use basalt_fs::{Bytes, Result};
use basalt_kv::key::SeqNo;
use buffer::{BufferedValue, EntryBuffer, FillState, PendingReads, ValueBatch};
use std::collections::VecDeque;

/// Most values that are read together.
const MAX_VALUES: u32 = 1024;
/// Most bytes of values that are read together, unless one alone is longer; and most bytes of other
/// entries that are buffered.
const MAX_BYTES: usize = 1 << 20;
/// Most entries that are buffered, with values of any kind.
const MAX_ENTRIES: usize = 2048;
/// Running ahead stops after this many entries that are not visible.
const MAX_SKIPS_AHEAD: u64 = 64;

impl Drop for ValuePrefetch {
    fn drop(&mut self) {
        self.end_scan();
    }
}

/// A cursor that reads values ahead. See the module.
pub struct ValuePrefetch {
    iter: UserIter,
    /// Entries from the current one on, if `iter` is perhaps ahead of it. Never empty.
    buffer: Option<EntryBuffer>,
    /// Values in blob files that the reader has come to, in one direction, since the last seek.
    values_in_direction: u32,
    /// Values in blob files that the reader has come to since the last seek.
    values_since_seek: u32,
    /// Bytes of values read since the last seek.
    bytes_read: u64,
    /// Values that scans usually come to, as far as that holds for this one.
    expected_values: u32,
    up: bool,
    /// Index pages of blob files for the next values, if the cache does not keep them.
    pages: KeptIndexPages,
    /// Most values that are read together: [`MAX_VALUES`], or fewer in tests.
    max_batch: u32,
    /// Mean bytes in memory of the values that were read together last; 0 before the first.
    mean_value_bytes: usize,
    /// Bytes on the device, and bytes in memory, of the values that were read together last.
    /// Compressed values grow. The next values are assumed to have the same ratio.
    expansion: (u64, u64),
}

impl ValuePrefetch {
    /// Returns a cursor over `iter`, which is not positioned.
    pub fn new(iter: UserIter) -> ValuePrefetch {
        ValuePrefetch {
            iter,
            buffer: None,
            values_in_direction: 0,
            values_since_seek: 0,
            bytes_read: 0,
            expected_values: 0,
            up: true,
            pages: KeptIndexPages::default(),
            max_batch: MAX_VALUES,
            mean_value_bytes: 0,
            expansion: (1, 1),
        }
    }

    /// Limits how many values are read together. With 1 the cursor reads nothing ahead: each
    /// movement costs as much as without this module.
    #[cfg(test)]
    pub(crate) fn with_max_batch(mut self, values: u32) -> ValuePrefetch {
        self.max_batch = values;
        self
    }

    /// Returns true while reads of values are pending.
    #[cfg(test)]
    pub(crate) fn has_pending_reads(&self) -> bool {
        self.buffer.as_ref().is_some_and(|b| b.pending.is_some())
    }

    /// Returns true while the cursor below may be ahead of the current key.
    #[cfg(test)]
    pub(crate) fn is_ahead(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns the skips that are left at the current entry.
    #[cfg(test)]
    pub(crate) fn skips_left(&self) -> (u64, u64) {
        match &self.buffer {
            Some(buffer) => buffer.entries[0].skips_left,
            None => self.iter.skips_left(),
        }
    }

    /// Records the length of the scan that ends: before a seek, and when the cursor is dropped.
    fn end_scan(&mut self) {
        let values = std::mem::take(&mut self.values_since_seek);
        if let Some((access, _)) = self.iter.blob_access().filter(|_| values > 0) {
            access.scan_history.record(values);
        }
    }

    /// Drops the buffer, and gives back the skips that running ahead has used.
    fn discard_buffer(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.iter.restore_skips(buffer.entries[0].skips_left);
        }
    }

    /// Begins a scan after a seek of the cursor below.
    fn after_seek(&mut self, moved: Result<()>, up: bool) -> Result<()> {
        self.end_scan();
        moved?;
        (self.values_in_direction, self.bytes_read, self.up) = (0, 0, up);
        let access = self.iter.blob_access();
        self.expected_values = access.map_or(0, |(access, _)| access.scan_history.min_values());
        self.pages = KeptIndexPages::default();
        self.after_move(up)
    }

    /// Reads the current value after a movement of the cursor below, if it is in a blob file.
    #[inline]
    fn after_move(&mut self, up: bool) -> Result<()> {
        match self.iter.has_lazy_value() {
            true => self.read_current(up),
            false => Ok(()),
        }
    }

    fn read_current(&mut self, up: bool) -> Result<()> {
        if self.up != up {
            (self.values_in_direction, self.expected_values, self.up) = (0, 0, up);
        }
        let values = self.batch_size();
        self.count_value();
        match values {
            0 | 1 => self.iter.read_value(),
            values => self.run_ahead(up, values),
        }
    }

    /// Returns how many of the next values are worth reading at once: as many as the scan has come
    /// to, or as scans usually come to.
    fn batch_size(&self) -> u32 {
        let expected = self
            .expected_values
            .saturating_sub(self.values_in_direction);
        self.values_in_direction.max(expected).min(self.max_batch)
    }

    /// Counts a value that the reader has come to.
    fn count_value(&mut self) {
        self.values_in_direction = self.values_in_direction.saturating_add(1);
        self.values_since_seek = self.values_since_seek.saturating_add(1);
    }

    /// Buffers entries from the current one on until there are `values` unread values, and reads
    /// the values.
    fn run_ahead(&mut self, up: bool, values: u32) -> Result<()> {
        let first = self.iter.buffered_entry();
        let mut buffer = EntryBuffer {
            up,
            entries: VecDeque::from([first]),
            fill: FillState::OnLast,
            consumed: 0,
            pending: None,
            counts: None,
        };
        self.extend(&mut buffer, values - 1);
        self.buffer = Some(buffer);
        self.read_first()
    }

    /// Moves on from the last entry of the buffer until `values` more unread values are in it.
    fn extend(&mut self, buffer: &mut EntryBuffer, values: u32) {
        // Counts the bytes that the buffer holds. Unread values are assumed to be as long as those
        // read last.
        let mut bytes: usize = buffer.entries.iter().map(|e| e.bytes()).sum();
        let values = values.min((MAX_BYTES / self.mean_value_bytes.max(1)) as u32);
        let (mut unread, mut passed) = (0, 0);
        self.iter.pause_after(MAX_SKIPS_AHEAD);
        while unread < values && bytes < 2 * MAX_BYTES && passed < MAX_ENTRIES {
            buffer.fill = match self.move_iter(buffer.up) {
                Err(e) => FillState::Failed(e),
                Ok(()) if self.iter.valid() => FillState::OnLast,
                Ok(()) if self.iter.can_resume() => FillState::Resumable,
                Ok(()) => FillState::PastLast,
            };
            if !matches!(buffer.fill, FillState::OnLast) {
                break;
            }
            unread += u32::from(self.iter.has_lazy_value());
            passed += 1;
            let entry = self.iter.buffered_entry();
            bytes += entry.bytes();
            buffer.entries.push_back(entry);
        }
        self.iter.pause_after(u64::MAX);
    }

    /// In a long scan, submits the reads of the next values while the reader consumes the buffer.
    fn prefetch_next_batch(&mut self) {
        let Some(mut buffer) = self.buffer.take() else {
            return;
        };
        let most = self
            .max_batch
            .min((MAX_BYTES / self.mean_value_bytes.max(1)) as u32);
        let can_extend = matches!(buffer.fill, FillState::OnLast) && buffer.pending.is_none();
        if can_extend && self.batch_size() >= most && buffer.entries.len() < most as usize / 2 {
            let known = buffer.entries.len();
            self.extend(&mut buffer, most);
            self.submit_reads(&mut buffer, known);
        }
        self.buffer = Some(buffer);
    }

    /// Submits reads of unread values from entry `from` of the buffer on.
    fn submit_reads(&mut self, buffer: &mut EntryBuffer, from: usize) {
        let Some((access, cmp)) = self.iter.blob_access() else {
            return;
        };
        let Some(permit) = AsyncReadPermit::acquire(&access.scan_history) else {
            return;
        };
        let batch = ValueBatch::locate(buffer, from, access, cmp, &mut self.pages, self.expansion);
        let how = batch.how(access.how, self.bytes_read);
        self.bytes_read += batch.read_bytes();
        let located = batch.located;
        let entries = batch.entries.into_iter().zip(&located);
        let entries = entries.map(|((i, to), l)| (buffer.consumed + i as u64, to, l.place()));
        let pending = PendingReads {
            entries: entries.collect(),
            reads: InFlight::begin(&located, how, true),
            how,
            _permit: permit,
        };
        if access.how.fill_cache {
            pending.reads.is_of_scan(&located);
        }
        let counts = located.first().map(|l| l.counts().clone());
        if let Some(counts) = counts {
            counts.ahead.add(pending.entries.len() as u64);
            buffer.counts.get_or_insert(counts);
            buffer.pending = Some(pending);
        }
        if access.how.fill_cache {
            self.pages = KeptIndexPages::default();
        }
    }

    /// Waits for the pending reads and buffers their values.
    fn complete_reads(&mut self) {
        let (Some(buffer), Some((access, cmp))) = (&mut self.buffer, self.iter.blob_access())
        else {
            return;
        };
        let Some(PendingReads {
            reads,
            entries,
            how,
            _permit,
        }) = buffer.pending.take()
        else {
            return;
        };
        let mut located = Vec::with_capacity(entries.len());
        for (n, to, place) in &entries {
            let entry = &buffer.entries[(n - buffer.consumed) as usize];
            let BufferedValue::Unread(seq, _) = &entry.value else {
                unreachable!("a value with a pending read is not read otherwise");
            };
            let name = Name {
                family: access.family,
                key: &entry.key,
                seq: *seq,
            };
            let file = access.blobs.file(to.number, &name, cmp);
            let reader = file.and_then(|file| file.reader());
            let reader = reader.expect("the file was open when the read was submitted, and stays");
            let name = to.record(&name);
            located.push(Located::again(ValueRequest { reader, name }, place.clone()));
        }
        let values = reads.finish(&located, how);
        for ((n, to, _), read) in entries.into_iter().zip(values) {
            // A failed read is repeated when the value is current.
            if let Ok(value) = read.and_then(|payload| without_expiry(payload, &to)) {
                let entry = &mut buffer.entries[(n - buffer.consumed) as usize];
                (entry.value, entry.read_ahead) = (BufferedValue::Read(value), true);
            }
        }
    }

    fn move_iter(&mut self, up: bool) -> Result<()> {
        match up {
            true => self.iter.next(),
            false => self.iter.prev(),
        }
    }

    /// Makes sure that the value of the buffer's first entry is read. After an error the cursor is
    /// not valid.
    fn read_first(&mut self) -> Result<()> {
        let unread = |buffer: &Option<EntryBuffer>| {
            let buffer = buffer.as_ref().expect("there is a first entry");
            matches!(buffer.entries[0].value, BufferedValue::Unread(..))
        };
        if unread(&self.buffer) && self.buffer.as_ref().is_some_and(|b| b.is_pending(0)) {
            self.complete_reads();
        }
        if unread(&self.buffer) {
            self.read_batch();
        }
        let buffer = self.buffer.as_mut().expect("there is a first entry");
        buffer.entries[0].read_ahead = false;
        if let BufferedValue::Failed(e) = &buffer.entries[0].value {
            let e = e.clone();
            self.discard_buffer();
            self.iter.invalidate();
            return Err(e);
        }
        Ok(())
    }

    /// Reads the unread values of the buffer: the first, and as many more as there is memory for.
    fn read_batch(&mut self) {
        let (Some(buffer), Some((access, cmp))) = (&mut self.buffer, self.iter.blob_access())
        else {
            return;
        };
        let batch = ValueBatch::locate(buffer, 0, access, cmp, &mut self.pages, self.expansion);
        let how = batch.how(access.how, self.bytes_read);
        let counts = batch.located.first().map(|l| l.counts().clone());
        let reads = InFlight::begin(&batch.located, how, false);
        if access.how.fill_cache {
            reads.is_of_scan(&batch.located);
        }
        self.bytes_read += batch.read_bytes();
        let mut values = batch.failed;
        let read = reads.finish(&batch.located, how);
        let mut expansion = (0, 0);
        for (((i, to), l), read) in batch.entries.into_iter().zip(&batch.located).zip(read) {
            if let Ok(value) = &read {
                let around = l.read_len() - l.value_len();
                expansion.0 += l.read_len() as u64;
                expansion.1 += (around + value.len()) as u64;
            }
            values.push((i, read.and_then(|payload| without_expiry(payload, &to))));
        }
        if expansion.0 > 0 {
            self.expansion = expansion;
            self.mean_value_bytes = expansion.1 as usize / batch.located.len();
        }
        let mut ahead = 0;
        for (i, value) in values {
            match value {
                Ok(value) => {
                    buffer.entries[i].value = BufferedValue::Read(value);
                    buffer.entries[i].read_ahead = i > 0;
                    ahead += u64::from(i > 0);
                }
                Err(e) if i == 0 => buffer.entries[i].value = BufferedValue::Failed(e),
                // The read is repeated when the value is current. The device may succeed then.
                Err(_) => {}
            }
        }
        if let Some(counts) = counts {
            counts.ahead.add(ahead);
            buffer.counts.get_or_insert(counts);
        }
        if access.how.fill_cache {
            self.pages = KeptIndexPages::default();
        }
    }

    /// Moves by one entry while there is a buffer.
    fn step(&mut self, up: bool) -> Result<()> {
        let buffer = self.buffer.as_mut().expect("there is a buffer");
        if buffer.up != up {
            self.return_to_current();
            self.move_iter(up)?;
            return self.after_move(up);
        }
        if buffer.entries.len() > 1 {
            buffer.entries.pop_front();
            buffer.consumed += 1;
            let first = &buffer.entries[0];
            if first.read_ahead || matches!(first.value, BufferedValue::Unread(..)) {
                self.count_value();
            }
            self.read_first()?;
            self.prefetch_next_batch();
            return Ok(());
        }
        let mut buffer = self.buffer.take().expect("there is a buffer");
        match std::mem::replace(&mut buffer.fill, FillState::OnLast) {
            FillState::OnLast => self.move_iter(up)?,
            FillState::Resumable => self.iter.resume(up)?,
            FillState::PastLast => return Ok(()),
            FillState::Failed(e) => return Err(e),
        }
        self.after_move(up)
    }

    /// Drops the buffer, and moves the cursor below back to the current entry.
    fn return_to_current(&mut self) {
        let Some(mut buffer) = self.buffer.take() else {
            return;
        };
        let mut first = buffer.entries.pop_front().expect("a buffer is never empty");
        let key = std::mem::take(&mut first.key);
        let value = first.value().clone();
        self.iter.return_to(key, value, &first);
        (self.values_in_direction, self.expected_values) = (0, 0);
    }

    /// Returns true if the cursor knows range tombstones, as [`UserIter::has_range_tombstones`]
    /// does.
    pub(crate) fn has_range_tombstones(&self) -> bool {
        self.iter.has_range_tombstones()
    }

    /// Moves the cursor to another sequence number and time, as [`UserIter::refresh`] does.
    pub(crate) fn refresh(&mut self, seq: SeqNo, now_ms: u64, max_skips: u64) {
        self.discard_buffer();
        self.iter.refresh(seq, now_ms, max_skips);
    }

    /// Sets the time and the skip limit from here on, as [`UserIter::set_limits`] does.
    pub(crate) fn set_limits(&mut self, now_ms: u64, max_skips: u64) {
        if let Some(buffer) = &self.buffer {
            // Buffered entries are still right if time did not go back, none has expired since, and
            // skips are not limited.
            let over = |e: &BufferedEntry| e.expire_at_ms.is_some_and(|at| at <= now_ms);
            let same = now_ms >= self.iter.now_ms() && !buffer.entries.iter().any(over);
            if !same || max_skips != u64::MAX {
                self.return_to_current();
            }
        }
        if max_skips != u64::MAX {
            // With a skip limit for each movement, the next movement would pass the entries that
            // were read ahead once more.
            (self.values_in_direction, self.expected_values) = (0, 0);
        }
        self.iter.set_limits(now_ms, max_skips);
    }

    /// Makes the cursor invalid until the next seek.
    pub(crate) fn invalidate(&mut self) {
        self.discard_buffer();
        self.iter.invalidate();
    }

    /// Binds the cursor to the prefix of another one, as [`UserIter::take_prefix_of`] does.
    pub(crate) fn take_prefix_of(&mut self, other: &mut ValuePrefetch) {
        self.iter.take_prefix_of(&mut other.iter);
    }

    /// Returns true if the cursor is positioned on a key.
    #[inline]
    pub fn valid(&self) -> bool {
        self.buffer.is_some() || self.iter.valid()
    }

    /// Returns the key before which the cursor paused, as [`UserIter::resume_key`] does.
    pub fn resume_key(&self) -> Option<&[u8]> {
        match &self.buffer {
            None => self.iter.resume_key(),
            Some(_) => None,
        }
    }

    /// Moves to the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.discard_buffer();
        let moved = self.iter.seek_to_first();
        self.after_seek(moved, true)
    }

    /// Moves to the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.discard_buffer();
        let moved = self.iter.seek_to_last();
        self.after_seek(moved, false)
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.discard_buffer();
        let moved = self.iter.seek(key);
        self.after_seek(moved, true)
    }

    /// Moves to the first key behind `key`, or at it, as [`UserIter::continue_from`] does.
    pub(crate) fn continue_from(&mut self, key: &[u8], inclusive: bool) -> Result<()> {
        self.discard_buffer();
        let moved = self.iter.continue_from(key, inclusive);
        self.after_seek(moved, true)
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.discard_buffer();
        let moved = self.iter.seek_for_prev(key);
        self.after_seek(moved, false)
    }

    /// Moves to the next key. Requires `valid`.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor in the field's words; it lends keys, which Iterator cannot"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if self.buffer.is_some() {
            return self.step(true);
        }
        self.iter.next()?;
        self.after_move(true)
    }

    /// Moves to the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        if self.buffer.is_some() {
            return self.step(false);
        }
        self.iter.prev()?;
        self.after_move(false)
    }

    /// Returns the current user key. Requires `valid`.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match &self.buffer {
            None => self.iter.key(),
            Some(buffer) => &buffer.entries[0].key,
        }
    }

    /// Returns the current value without its expiry. Requires `valid`.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match &self.buffer {
            None => self.iter.value(),
            Some(buffer) => buffer.entries[0].value(),
        }
    }

    /// Returns the current value if that needs no further read. Requires `valid`.
    pub fn value_at_hand(&self) -> Option<&[u8]> {
        match &self.buffer {
            None => self.iter.value_at_hand(),
            Some(buffer) => Some(buffer.entries[0].value()),
        }
    }

    /// Returns the current value, pinned, without its expiry. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        match &self.buffer {
            None => self.iter.pinned_value(),
            Some(buffer) => buffer.entries[0].value().clone(),
        }
    }

    /// Returns when the current value expires, in milliseconds since 1970; `None` for never.
    /// Requires `valid`.
    pub fn expire_at_ms(&self) -> Option<u64> {
        match &self.buffer {
            None => self.iter.expire_at_ms(),
            Some(buffer) => buffer.entries[0].expire_at_ms,
        }
    }
}
