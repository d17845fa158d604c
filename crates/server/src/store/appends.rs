//! Entries of streams on their way to the log engine.

use super::CommitCallback;
use basalt::log::{Log, LogBatch, LogEngine};
use basalt::{Bytes, WriteOptions};

/// The append of a stream's entry.
pub(crate) struct Append {
    pub log: Log,
    pub lsn: u64,
    pub record: Bytes,
}

/// Queues appends to logs of an engine, to be committed together.
pub(super) fn append(engine: &LogEngine, appends: &[Append], sync: bool, done: CommitCallback) {
    let mut batch = LogBatch::new();
    let added = appends
        .iter()
        .try_for_each(|a| batch.append(&a.log, a.lsn, &a.record));
    match added.and_then(|()| engine.submit(batch, &WriteOptions::synced(sync))) {
        Ok(ticket) => ticket.on_complete(done),
        Err(e) => done(Err(e)),
    }
}
