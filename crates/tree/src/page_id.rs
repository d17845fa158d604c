//! Physical page ids: where the bytes of a page are (ArkDB, section 4.1).

use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_stream::{ExtentAddress, ExtentId};
use std::fmt;

/// Bytes of an encoded id.
pub(crate) const PAGE_ID_LEN: usize = 16;

/// The id of a page: its place. A page that is written again has another id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PageId {
    pub extent: ExtentId,
    /// Offset of the first byte in the extent. Extents of a tree have less than 4 GiB.
    pub offset: u32,
    /// Bytes of the page.
    pub len: u32,
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}+{}", self.extent, self.offset, self.len)
    }
}

impl PageId {
    /// The id of no page.
    pub const NONE: PageId = PageId {
        extent: ExtentId(0),
        offset: 0,
        len: 0,
    };

    pub fn address(self) -> ExtentAddress {
        ExtentAddress {
            extent: self.extent,
            offset: u64::from(self.offset),
        }
    }

    /// Returns the id as index pages and page headers have it.
    pub fn to_bytes(self) -> [u8; PAGE_ID_LEN] {
        let mut bytes = [0; PAGE_ID_LEN];
        bytes[..8].copy_from_slice(&self.extent.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<PageId> {
        let bytes: &[u8; PAGE_ID_LEN] = bytes.try_into().ok()?;
        let u32_at = |at: usize| {
            let four = bytes[at..at + 4].try_into().expect("4 bytes");
            u32::from_le_bytes(four)
        };
        let extent = bytes[..8].try_into().expect("8 bytes");
        let id = PageId {
            extent: ExtentId(u64::from_le_bytes(extent)),
            offset: u32_at(8),
            len: u32_at(12),
        };
        id.ends_in_range().then_some(id)
    }

    /// Returns false for an id that no page has, because its end is above the largest offset.
    fn ends_in_range(self) -> bool {
        self.offset.checked_add(self.len).is_some()
    }

    /// Appends the id as the system log has it.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.extent.0.to_le_bytes());
        put_varint(out, u64::from(self.offset));
        put_varint(out, u64::from(self.len));
    }

    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<PageId> {
        let extent = bytes.get(*at..)?.first_chunk::<8>()?;
        *at += 8;
        let id = PageId {
            extent: ExtentId(u64::from_le_bytes(*extent)),
            offset: u32::try_from(get_varint64(bytes, at)?).ok()?,
            len: u32::try_from(get_varint64(bytes, at)?).ok()?,
        };
        id.ends_in_range().then_some(id)
    }
}
