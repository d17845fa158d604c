//! Writes appended bytes where the file has space: whole units directly, the rest through the page
//! cache of the device.

use std::io::IoSlice;

use super::LavaFile;
use crate::counters::WriteCause;
use crate::metadata_record::InodeKind;
use crate::open_inode::AppendTail;
use crate::runs::BLOCK;
use basalt_fs::device::Way;
use basalt_fs::{Error, Intent, Result};

/// Bytes from which on whole units of a growing file are written directly even if no sync is near.
const DIRECT_MIN: usize = 64 << 10;

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

impl LavaFile {
    /// Writes bytes at `offset`, where the file has space.
    pub(super) fn put(
        &self,
        tail: &mut AppendTail,
        offset: u64,
        bufs: &[IoSlice<'_>],
        intent: Intent,
    ) -> Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let end = offset + total as u64;
        let direct = self.direct_part(offset, total, intent);
        let (mut head, mut rest) = (Vec::new(), Vec::new());
        let mut left = direct;
        for b in bufs {
            let n = left.min(b.len());
            left -= n;
            let (now, later) = b.split_at(n);
            if !now.is_empty() {
                head.push(IoSlice::new(now));
            }
            if !later.is_empty() {
                rest.push(IoSlice::new(later));
            }
        }
        if !head.is_empty() {
            tail.filled_to = 0;
            self.write(offset, &head, Way::Direct)?;
            self.fs.counters.add_write(WriteCause::Data, direct as u64);
        }
        if !rest.is_empty() {
            let from = offset + direct as u64;
            self.inode.add_cached(from..end);
            // The page cache would first read a page that is only partly overwritten.
            if end > tail.filled_to {
                let to = end.next_multiple_of(BLOCK);
                rest.push(IoSlice::new(&ZEROS[..(to - end) as usize]));
                tail.filled_to = to;
            }
            self.write(from, &rest, Way::Cached)?;
            // The zeros are not counted, because the next append writes there again.
            self.fs.counters.add_write(WriteCause::Data, end - from);
        }
        Ok(())
    }

    /// Returns the number of leading bytes that are written directly.
    fn direct_part(&self, offset: u64, total: usize, intent: Intent) -> usize {
        let unit = self.fs.facts.unit;
        if !self.fs.facts.direct || !offset.is_multiple_of(unit as u64) {
            return 0;
        }
        let whole = total / unit * unit;
        match intent {
            Intent::Sync | Intent::Bulk if whole == total => whole,
            _ if self.inode.kind() == InodeKind::File && whole >= DIRECT_MIN => whole,
            _ => 0,
        }
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();

        let pieces = self.pieces(offset..offset + total as u64);
        let device = &self.fs.device;
        let place = |p: Option<u64>| {
            p.ok_or_else(|| Error::corruption(&self.path, offset, "an append into a hole"))
        };
        if let [(_, at)] = &pieces[..] {
            return device.write(place(*at)?, bufs, way);
        }
        let mut rest = bufs.to_vec();
        let mut rest = &mut rest[..];
        for (bytes, at) in pieces {
            let mut left = (bytes.end - bytes.start) as usize;
            let mut now = Vec::new();
            for b in rest.iter() {
                let n = left.min(b.len());
                left -= n;
                if n > 0 {
                    now.push(IoSlice::new(&b[..n]));
                }
            }
            device.write(place(at)?, &now, way)?;
            IoSlice::advance_slices(&mut rest, (bytes.end - bytes.start) as usize);
        }
        Ok(())
    }
}
