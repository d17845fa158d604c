//! The reads that the seek of a merged cursor waits for. Each of its cursors names the block that
//! it is about to land in, and those that are not in memory are read together. So a seek takes
//! about as long as one read, however many sources it has.

use super::TableReader;
use crate::exact_read::read_exact;
use crate::format::BlockHandle;
use basalt_env::MemoryKind;
use basalt_fs::{Bytes, Lifetime, ReadRequest, Result};
use std::sync::Arc;

/// The read that the seek of a cursor needs: the block that it lands in, and perhaps the following
/// block.
pub struct SeekRead {
    table: Arc<TableReader>,
    handle: BlockHandle,
    /// Bytes to read from the block's offset on.
    len: usize,
}

/// Bytes of a table's file as they were read, reserved in the ledger.
pub struct SeekBlock {
    pub(crate) handle: BlockHandle,
    pub(crate) bytes: Bytes,
}

impl SeekRead {
    /// Makes a read of `len` bytes that begins with the block at `handle`.
    pub(crate) fn new(table: &Arc<TableReader>, handle: BlockHandle, len: usize) -> SeekRead {
        SeekRead {
            table: table.clone(),
            handle,
            len,
        }
    }

    /// Does all the reads, in flight together. The first failure is the result of the whole batch.
    pub fn read_batch(seek_reads: &[SeekRead]) -> Result<Vec<SeekBlock>> {
        let Some(first) = seek_reads.first() else {
            return Ok(Vec::new());
        };
        let ledger = first.table.env.ledger();
        let mut booked = Vec::with_capacity(seek_reads.len());
        let mut requests = Vec::with_capacity(seek_reads.len());
        for l in seek_reads {
            booked.push(Some(ledger.reserve(MemoryKind::Pinned, l.len as u64)));
            requests.push(ReadRequest {
                file: l.table.file()?,
                offset: l.handle.offset,
                len: l.len,
                lifetime: Lifetime::Cached,
            });
        }
        let mut read: Vec<Option<Bytes>> = vec![None; seek_reads.len()];
        first.table.env.foreground_io().foreground_read();
        let mut done = first.table.env.fs().submit_reads(requests);
        done.wait_all();
        while let Some((i, bytes)) = done.next() {
            let l = &seek_reads[i];
            let whole = |bytes: &Bytes| bytes.len() == l.len;
            let bytes = match bytes {
                Ok(bytes) if whole(&bytes) => bytes,
                // An error of the following block is reported when a reader needs that block.
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
        let landed = seek_reads.iter().zip(read).map(|(l, bytes)| SeekBlock {
            handle: l.handle,
            bytes: bytes.expect("each read ends"),
        });
        Ok(landed.collect())
    }
}
