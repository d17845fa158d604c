//! Requests to the two queues of a log engine.

use crate::log_ops::LogOp;
use crate::namespace::LogState;
use crate::queue::Cost;
use basalt_fs::AlignedBuf;
use basalt_records::RECORD_HEADER;
use smallvec::SmallVec;
use std::sync::Arc;

/// An append of a batch.
pub(crate) struct PendingEntry {
    pub log: Arc<LogState>,
    pub lsn: u64,
    /// Offset of the entry in the batch's record.
    pub at: u32,
    /// Bytes of the entry, head included.
    pub len: u32,
    /// Bytes of the record.
    pub data_len: u32,
}

/// A request to the datalog.
pub(crate) enum DataRequest {
    /// A batch of appends.
    Append {
        buf: AlignedBuf,
        entries: SmallVec<[PendingEntry; 1]>,
        sync: bool,
    },
    /// The removal of a range of a log. A group of its own.
    Remove { log: Arc<LogState>, op: LogOp },
    /// A sync of everything before.
    Sync,
}

impl DataRequest {
    /// Returns what the request costs.
    pub fn cost(&self) -> Cost {
        let (bytes, syncs) = match self {
            DataRequest::Append { buf, sync, .. } => (buf.len(), *sync),
            DataRequest::Remove { .. } | DataRequest::Sync => (RECORD_HEADER, true),
        };
        Cost { bytes, syncs }
    }
}

/// A request to the metalog.
pub(crate) struct MetaRequest {
    pub log: Arc<LogState>,
    pub op: LogOp,
    pub sync: bool,
}
