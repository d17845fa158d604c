//! Savepoints of a batch: lengths to which a rollback cuts it.
//!
//! A batch only grows at its end, and so does each table beside the encoded operations. A savepoint
//! is the length of each, and a rollback truncates all of them: the batch is byte for byte what the
//! operations before the savepoint encode to.

use super::WriteBatch;
use basalt_fs::{Error, Result};

/// Lengths of a batch and of the tables beside it at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Savepoint {
    /// Bytes of the record, its header among them.
    bytes: usize,
    /// Operations.
    count: u32,
    /// Distinct families.
    families: usize,
    /// Blob records.
    separated: usize,
    /// Uncompressed values of compressed blob records.
    raw: usize,
    /// Bytes that compression saved.
    saved_bytes: usize,
}

fn without_savepoint(what: &str) -> Error {
    Error::invalid(format!(
        "{what} on a write batch without a savepoint: call set_savepoint before"
    ))
}

impl WriteBatch {
    /// Remembers the batch as it is now. Savepoints nest: each rollback or pop takes the newest
    /// one. Costs 48 bytes until then.
    pub fn set_savepoint(&mut self) {
        self.savepoints.push(Savepoint {
            bytes: self.buf.len(),
            count: self.count,
            families: self.families.len(),
            separated: self.separated.len(),
            raw: self.raw.len(),
            saved_bytes: self.saved_bytes,
        });
    }

    /// Removes all operations that were added since the newest savepoint, and that savepoint. The
    /// batch keeps its memory.
    ///
    /// Errors: `InvalidArgument` without a savepoint; the batch is as it was.
    pub fn rollback_to_savepoint(&mut self) -> Result<()> {
        let to = (self.savepoints.pop()).ok_or_else(|| without_savepoint("rollback"))?;
        self.buf.truncate(to.bytes);
        self.count = to.count;
        self.families.truncate(to.families);
        self.separated.truncate(to.separated);
        self.raw.truncate(to.raw);
        self.saved_bytes = to.saved_bytes;
        Ok(())
    }

    /// Removes the newest savepoint and keeps all operations.
    ///
    /// Errors: `InvalidArgument` without a savepoint.
    pub fn pop_savepoint(&mut self) -> Result<()> {
        match self.savepoints.pop() {
            Some(_) => Ok(()),
            None => Err(without_savepoint("pop")),
        }
    }
}
