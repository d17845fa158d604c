//! Releases: the space of byte ranges of sealed extents goes back to the filesystem.

use crate::extent::{Extent, ExtentId, HEADER};
use crate::stream::{Inner, Stream};
use basalt_fs::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

impl Stream {
    /// Gives the space of ranges of a sealed extent back to the filesystem. Returns the bytes by
    /// which the extent shrank on the device. The filesystem frees the whole blocks inside each
    /// range, so ranges that touch are best given as one. Reads there return zeros, the old bytes
    /// or `Corruption` from then on. A read that began before the release may return these, too,
    /// even in another stream that has erased the extent meanwhile.
    ///
    /// An extent that another stream has stays as it is, because that stream may need the bytes;
    /// the call then returns `None`. Links of this stream wait meanwhile.
    ///
    /// A release is not durable: a power cut may bring space back. It never takes bytes outside
    /// the ranges.
    ///
    /// Errors: `NotFound` if the stream does not have the extent; `InvalidArgument` if the extent
    /// is not sealed, or if a range ends before it begins, begins inside the first
    /// [`EXTENT_HEADER`](crate::EXTENT_HEADER) bytes or ends behind the extent; `ReadOnly`;
    /// `Corruption` if the file is missing or has a damaged header. Then nothing is released. After
    /// an error of the filesystem, for example if it has no holes, a part may be released.
    ///
    /// Costs two lookups of the file's metadata and one call of the filesystem for each range. If
    /// the result is `None`, the cost is one lookup.
    pub fn release(&self, extent: ExtentId, ranges: &[Range<u64>]) -> Result<Option<u64>> {
        let inner = &self.inner;
        inner.check_writable()?;
        // A link made after the check of the names would lose the bytes that are released.
        let _names = inner.names.write();
        let extent = inner.sealed(extent)?;
        let len = extent.len();
        if let Some(wrong) = ranges.iter().find(|range| !is_inside(range, len)) {
            return Err(Error::invalid(format!(
                "bytes {} to {} cannot be released; the extent has bytes {HEADER} to {len}",
                wrong.start, wrong.end
            ))
            .in_file(&extent.path));
        }
        let before = extent.stat(&inner.env)?;
        if before.links > 1 {
            return Ok(None);
        }
        let file = extent.file(&inner.env)?;
        let released = ranges
            .iter()
            .try_for_each(|range| file.release_range(range.clone()));
        // A failed release may have freed a part.
        let after = extent.stat(&inner.env);
        released?;
        Ok(Some(before.on_disk.saturating_sub(after?.on_disk)))
    }
}

/// Returns true if a range lies behind the header and before the end of an extent of `len` bytes.
fn is_inside(range: &Range<u64>, len: u64) -> bool {
    HEADER as u64 <= range.start && range.start <= range.end && range.end <= len
}

impl Inner {
    /// Returns a sealed extent.
    ///
    /// Errors: `NotFound` for an unknown extent, `InvalidArgument` for one that is not sealed.
    fn sealed(&self, id: ExtentId) -> Result<Arc<Extent>> {
        let entry = self.manifested.lock().catalog.extents.get(&id).copied();
        let extent = self.extents.read().get(&id).cloned();
        match (entry, extent) {
            (Some(entry), Some(extent)) if entry.len.is_some() => Ok(extent),
            (Some(_), _) => Err(Error::invalid(format!(
                "extent {id} is appended to; seal it first"
            ))),
            (None, _) => Err(self.unknown(id)),
        }
    }
}
