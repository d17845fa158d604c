//! Places of the bytes of an open file, and reads of them.

use std::ops::Range;

use super::LavaFile;
use crate::extents::Extent;
use crate::runs::BLOCK;
use basalt_fs::device::{DeviceRead, Way};
use basalt_fs::{AlignedBuf, Bytes, Result};

impl LavaFile {
    /// Returns the pieces of a range of the file: the bytes of each piece, and its offset on the
    /// device. A hole has no offset.
    pub(super) fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<u64>)> {
        let extents = self.inode.extents();
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let within = extents.within(blocks).map(|Extent { at, len, place }| {
            let bytes = (at * BLOCK).max(range.start)..((at + len) * BLOCK).min(range.end);
            let place = place.map(|p| p * BLOCK + (bytes.start - at * BLOCK));
            (bytes, place)
        });
        within.collect()
    }

    /// Returns the part of a range that can be read, and the read of the device that has all of it.
    /// The read is `None` if the part lies in several pieces, in a hole or in memory.
    pub fn plan(&self, offset: u64, len: usize) -> (Range<u64>, Option<DeviceRead>) {
        let inode = &self.inode;
        let end = offset.saturating_add(len as u64).min(inode.readable());
        let range = offset.min(end)..end;
        let pieces = self.pieces(range.clone());
        let read = match &pieces[..] {
            [(bytes, Some(at))] if *bytes == range && range.end <= inode.buffers.start() => {
                Some(self.device_read(bytes, *at))
            }
            _ => None,
        };
        (range, read)
    }

    fn device_read(&self, bytes: &Range<u64>, at: u64) -> DeviceRead {
        let cached = self.inode.is_cached(bytes);
        DeviceRead {
            offset: at,
            len: (bytes.end - bytes.start) as usize,
            way: if cached { Way::Cached } else { Way::Direct },
        }
    }

    /// Reads a range piece by piece, from the device and from write buffers.
    pub fn read_pieces(&self, range: Range<u64>) -> Result<Bytes> {
        let (from, buffered) = self.inode.buffers.copy(&range);
        let mut all = AlignedBuf::with_capacity((range.end - range.start) as usize);
        self.read_from_device(range.start..from, &mut all)?;
        all.extend_from_slice(&buffered);
        self.read_from_device(from + buffered.len() as u64..range.end, &mut all)?;
        Ok(Bytes::from_owner(all))
    }

    fn read_from_device(&self, range: Range<u64>, all: &mut AlignedBuf) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        for (bytes, at) in self.pieces(range) {
            match at {
                None => {
                    let len = all.len() + (bytes.end - bytes.start) as usize;
                    all.resize(len, 0);
                }
                Some(at) => {
                    all.extend_from_slice(&self.fs.device.read(self.device_read(&bytes, at))?);
                }
            }
        }
        Ok(())
    }
}
