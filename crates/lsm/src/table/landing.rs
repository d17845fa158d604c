//! The reads that the seek of a merged cursor waits for: each of its cursors says which block it is about to land in, and those that are
//! not in memory are read together, so that a seek takes about as long as one read, however many runs it looks into.

use super::format::BlockHandle;
use super::reader::{TableReader, read_exact};
use basalt_env::MemoryKind;
use basalt_fs::{Bytes, ReadRequest, Result};
use std::sync::Arc;

/// What the seek of a cursor wants to be read: the block that it lands in, and perhaps the one behind it.
pub struct Landing {
    table: Arc<TableReader>,
    handle: BlockHandle,
    /// Bytes from the block's offset on.
    len: usize,
}

/// Bytes of a table's file as they were read, booked in the ledger.
pub struct Landed {
    pub(super) handle: BlockHandle,
    pub(super) bytes: Bytes,
}

impl Landing {
    /// Of the block at `handle` and as much behind it as makes `len` bytes.
    pub(super) fn new(table: &Arc<TableReader>, handle: BlockHandle, len: usize) -> Landing {
        Landing {
            table: table.clone(),
            handle,
            len,
        }
    }

    /// Reads what all of them want, in flight together. The first failure is everybody's.
    pub(crate) fn read_together(landings: &[Landing]) -> Result<Vec<Landed>> {
        let Some(first) = landings.first() else {
            return Ok(Vec::new());
        };
        let ledger = first.table.env.ledger();
        let mut booked = Vec::with_capacity(landings.len());
        let mut requests = Vec::with_capacity(landings.len());
        for l in landings {
            booked.push(Some(ledger.reserve(MemoryKind::Pinned, l.len as u64)));
            requests.push(ReadRequest {
                file: l.table.file()?,
                offset: l.handle.offset,
                len: l.len,
            });
        }
        let mut read: Vec<Option<Bytes>> = vec![None; landings.len()];
        first.table.env.foreground_io().foreground_read();
        let mut done = first.table.env.fs().submit_reads(requests);
        done.wait_all();
        while let Some((i, bytes)) = done.next() {
            let l = &landings[i];
            let whole = |bytes: &Bytes| bytes.len() == l.len;
            let bytes = match bytes {
                Ok(bytes) if whole(&bytes) => bytes,
                // What is wrong with the block behind is told to whoever needs it.
                _ => read_exact(
                    &*l.table.file()?,
                    &l.table.path,
                    l.handle.offset,
                    l.handle.disk_len(),
                )?,
            };
            l.table.wear();
            let booked = booked[i].take().expect("each read ends once");
            read[i] = Some(booked.hold(bytes));
        }
        let landed = landings.iter().zip(read).map(|(l, bytes)| Landed {
            handle: l.handle,
            bytes: bytes.expect("each read ends"),
        });
        Ok(landed.collect())
    }
}
