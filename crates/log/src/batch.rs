//! Batches of appends to one or several logical logs, encoded as they will lie on disk.

use crate::namespace::LogState;
use crate::request::{DataRequest, PendingEntry};
use basalt_fs::{AlignedBuf, Error, Result};
use basalt_kv::write_options::WriteOptions;
use basalt_records::RECORD_HEADER;
use basalt_records::entries::{LARGEST_ENTRY_HEAD, push_entry};
use smallvec::SmallVec;
use std::sync::Arc;

/// Largest LSN of a record. The number above it stands for "behind all records".
pub const MAX_LSN: u64 = u64::MAX - 1;
/// Most bytes of a batch.
pub const MAX_BATCH_BYTES: usize = 1 << 30;

/// Appends that become durable together or not at all.
#[derive(Default)]
pub struct LogBatch {
    pub(crate) buf: AlignedBuf,
    pub(crate) entries: SmallVec<[PendingEntry; 1]>,
}

impl LogBatch {
    /// Returns an empty batch.
    pub fn new() -> LogBatch {
        LogBatch::default()
    }

    /// Adds the append of a record to a log, as [`LogBatch::append`] does.
    pub(crate) fn append_to(&mut self, log: &Arc<LogState>, lsn: u64, data: &[u8]) -> Result<()> {
        if lsn > MAX_LSN {
            return Err(Error::invalid(format!(
                "LSN {lsn} of log {:?} is above the largest, {MAX_LSN}",
                log.name()
            )));
        }
        if self.buf.is_empty() {
            let need = RECORD_HEADER + LARGEST_ENTRY_HEAD + data.len();
            self.buf.reserve_exact(need.min(MAX_BATCH_BYTES));
            self.buf.resize(RECORD_HEADER, 0);
        }
        let at = self.buf.len();
        if MAX_BATCH_BYTES - at.min(MAX_BATCH_BYTES) < data.len() + LARGEST_ENTRY_HEAD {
            return Err(Error::invalid(format!(
                "a batch of {at} bytes and a record of {} bytes are more than {MAX_BATCH_BYTES} bytes; append them in several batches",
                data.len()
            )));
        }
        push_entry(&mut self.buf, log.number, lsn, None, data);
        self.entries.push(PendingEntry {
            log: log.clone(),
            lsn,
            at: at as u32,
            len: (self.buf.len() - at) as u32,
            data_len: data.len() as u32,
        });
        Ok(())
    }

    /// Returns the number of appends.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no append.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes that the batch takes in the datalog, apart from padding.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }
}

impl DataRequest {
    /// Returns the request to append a batch.
    pub(crate) fn of_batch(batch: LogBatch, options: &WriteOptions) -> DataRequest {
        match batch.is_empty() && options.is_synced() {
            true => DataRequest::Sync,
            false => DataRequest::Append {
                buf: batch.buf,
                entries: batch.entries,
                sync: options.is_synced(),
            },
        }
    }
}
