//! Bulk appends through write buffers, where the device has no page cache that would gather them.

use std::io::IoSlice;
use std::sync::Arc;

use super::LavaFile;
use crate::buffer_pool::WriteJob;
use crate::counters::WriteCause;
use crate::metadata_record::InodeKind;
use crate::open_inode::AppendTail;
use crate::runs::BLOCK;
use basalt_fs::{Error, Intent, Result};

impl LavaFile {
    /// Returns `true` if bulk appends to this file go through write buffers.
    pub(super) fn uses_buffers(&self) -> bool {
        self.inode.kind() == InodeKind::File && self.fs.facts.direct
    }

    /// Appends bytes through the buffers at `offset`, where the file has space.
    pub(super) fn put_buffered(
        &self,
        tail: &mut AppendTail,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> Result<()> {
        let mut at = offset;
        for buf in bufs {
            let mut rest = &buf[..];
            while !rest.is_empty() {
                let n = self.put_some(tail, at, rest)?;
                at += n as u64;
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    /// Appends some of the bytes. Returns their number.
    fn put_some(&self, tail: &mut AppendTail, at: u64, bytes: &[u8]) -> Result<usize> {
        let buffers = &self.inode.buffers;
        if !buffers.is_filling() {
            if !at.is_multiple_of(BLOCK) {
                // A buffer begins at a multiple of the block size.
                let n = bytes.len().min((at.next_multiple_of(BLOCK) - at) as usize);
                self.wait_for_writes()?;
                self.put(tail, at, &[IoSlice::new(&bytes[..n])], Intent::Lazy)?;
                return Ok(n);
            }
            let Some(buffer) = self.fs.buffers.take() else {
                self.wait_for_writes()?;
                self.put(tail, at, &[IoSlice::new(bytes)], Intent::Sync)?;
                return Ok(bytes.len());
            };
            buffers.begin(at, buffer);
        }
        let (n, full) = buffers.fill(at, bytes);
        if full {
            self.write_buffer();
        }
        Ok(n)
    }

    /// Requests the write of the buffer that takes appends. Its end must be a legal end of a direct
    /// write.
    fn write_buffer(&self) {
        let inode = &self.inode;
        let Some((at, bytes)) = inode.buffers.begin_write() else {
            return;
        };
        let range = at..at + bytes.len() as u64;
        let pieces = self.pieces(range.clone());
        let places = pieces.into_iter().map(|(part, place)| {
            let part = (part.start - at) as usize..(part.end - at) as usize;
            place.map(|place| (place, part))
        });
        let Some(places) = places.collect::<Option<Vec<_>>>() else {
            let e = Error::corruption(&self.path, at, "an append into a hole");
            return inode.end_write(at, Err(e), |bytes| self.fs.buffers.give_back(bytes));
        };
        self.fs
            .counters
            .add_write(WriteCause::Data, bytes.len() as u64);
        self.fs.buffers.write(WriteJob {
            device: Arc::clone(&self.fs.device),
            inode: Arc::clone(inode),
            at,
            places,
            bytes,
        });
    }

    /// Waits for all requested writes of this file's buffers.
    fn wait_for_writes(&self) -> Result<()> {
        self.fs.buffers.wait_for_writes(&self.inode)
    }

    /// Writes all buffered bytes to the device or to its page cache. They are durable after the
    /// next flush of the device.
    pub(super) fn drain(&self, tail: &mut AppendTail) -> Result<()> {
        let buffers = &self.inode.buffers;
        if !buffers.is_used() {
            return Ok(());
        }
        // The part that no direct write can end with goes to the page cache first. Readers find it
        // in memory until it is there.
        if let Some((at, whole, end)) = buffers.unaligned_end(self.fs.facts.unit) {
            let from = at + whole as u64;
            let done = self.fs.check_writable();
            let done =
                done.and_then(|()| self.put(tail, from, &[IoSlice::new(&end)], Intent::Lazy));
            match done {
                Ok(()) => {
                    if let Some(buffer) = buffers.truncate(whole) {
                        self.fs.buffers.give_back(Some(buffer));
                    }
                }
                Err(e) => {
                    self.inode.fail_appends(&e);
                    self.inode.fail_syncs(&e);
                    let lost = buffers.fail_filling(&e);
                    (0..lost).for_each(|_| self.fs.buffers.give_back(None));
                }
            }
        }
        self.write_buffer();
        self.wait_for_writes()
    }
}
