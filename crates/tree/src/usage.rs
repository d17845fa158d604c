//! How much of each extent is in use (ArkDB, section 4.2.1): ranges for extents of base pages, and
//! sizes for extents of delta pages, which may be in several chains. Ranges that do not fit in the
//! limit of their memory are dropped, and derived again when a collection needs them (decision
//! 0049).

mod ranges;

use crate::mapping::SysTime;
use crate::page_id::PageId;
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_stream::ExtentId;
pub(crate) use ranges::ByteRanges;
use std::collections::BTreeMap;

/// The lock of the usage table, for tests under the scheduler. It comes after the locks of the
/// crate `stream`, because an append takes it to hold the extent that it writes to.
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: basalt_env::sync::lock_log::CrateLocks =
    basalt_env::sync::lock_log::CrateLocks {
        order: &["Storage::usage"],
        leaves: &[],
    };
/// The byte for an extent of base pages without ranges in a system checkpoint. Those with ranges
/// and those of delta pages have the number of their stream.
const BASE_WITHOUT_RANGES: u8 = 3;

/// The stream of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum StreamKind {
    Base = 1,
    Delta = 2,
}

/// What is in use of an extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExtentUsage {
    pub kind: StreamKind,
    /// Bytes of valid pages. A delta page counts once for each chain that has it.
    pub valid: u64,
    /// The valid bytes; `None` if the ranges were dropped. Empty for delta pages.
    pub ranges: Option<ByteRanges>,
    /// The last time at which a page of it became garbage.
    pub freed: SysTime,
    /// No reader before this time needs a page of it. Not stored: after a recovery there are no
    /// older readers.
    pub born: SysTime,
}

/// The usage of all extents that have, or had, a valid page.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct UsageTable {
    extents: BTreeMap<ExtentId, ExtentUsage>,
    /// Extents with pages of transactions that are not committed yet, and the number of those.
    written: BTreeMap<ExtentId, u32>,
}

/// An extent that is sealed, and its bytes.
pub(crate) type SealedExtent = (ExtentId, u64);

impl UsageTable {
    /// Counts a page as valid from a time on.
    ///
    /// Errors: a sentence, if the extent is of the other stream, or has more bytes in use than
    /// there can be; then nothing has changed.
    pub fn add(&mut self, kind: StreamKind, page: PageId, time: SysTime) -> Result<(), String> {
        let usage = self.extents.entry(page.extent).or_insert(ExtentUsage {
            kind,
            valid: 0,
            ranges: Some(ByteRanges::default()),
            freed: 0,
            born: time,
        });
        if usage.kind != kind {
            return Err(format!("page {page} is in an extent of another stream"));
        }
        let valid = usage.valid.checked_add(u64::from(page.len));
        usage.valid =
            valid.ok_or_else(|| format!("the bytes in use beside page {page} overflow"))?;
        if let Some(ranges) = usage.ranges.as_mut().filter(|_| kind == StreamKind::Base) {
            ranges.add(page.offset, page.offset + page.len);
        }
        Ok(())
    }

    /// Counts a page as garbage since a time.
    ///
    /// Errors: a sentence, if the page was not valid; then nothing has changed. For an extent
    /// without ranges, only the sum of bytes is known.
    pub fn remove(&mut self, kind: StreamKind, page: PageId, time: SysTime) -> Result<(), String> {
        let usage = self.extents.get_mut(&page.extent);
        let usage = usage.filter(|u| u.kind == kind && u.valid >= u64::from(page.len));
        let usage = usage.ok_or_else(|| format!("page {page} is not in use"))?;
        if let Some(ranges) = usage.ranges.as_mut().filter(|_| kind == StreamKind::Base)
            && !ranges.remove(page.offset, page.offset + page.len)
        {
            return Err(format!("page {page} is not in use"));
        }
        usage.valid -= u64::from(page.len);
        usage.freed = usage.freed.max(time);
        if usage.valid == 0 {
            usage.ranges = Some(ByteRanges::default());
        }
        Ok(())
    }

    /// Returns true if a base page was added before. An extent without ranges gets no new page
    /// (see [`UsageTable::drop_ranges`]), so the answer for it is always true.
    pub fn has_base(&self, page: PageId) -> bool {
        self.extents.get(&page.extent).is_some_and(|usage| {
            let ranges = usage.ranges.as_ref();
            ranges.is_none_or(|ranges| ranges.have(page.offset, page.offset + page.len))
        })
    }

    /// Returns the bytes of memory of all ranges.
    pub fn range_bytes(&self) -> u64 {
        let ranges = self.extents.values().filter_map(|of| of.ranges.as_ref());
        ranges.map(ByteRanges::memory).sum()
    }

    /// Returns the bytes of memory of the table, about.
    pub fn memory(&self) -> u64 {
        let extents = self.extents.len() * size_of::<(ExtentId, ExtentUsage)>();
        extents as u64 + self.range_bytes()
    }

    /// Drops ranges of extents of base pages until all ranges have at most `most` bytes, those of
    /// the extents with the least fraction of garbage first: they are collected last. An extent
    /// that a transaction writes to keeps its ranges, because they say which of its pages are new.
    /// Only sealed extents may lose them: no transaction begins to write to those.
    pub fn drop_ranges(&mut self, sealed: &[SealedExtent], most: u64) {
        let mut bytes = self.range_bytes();
        let mut known: Vec<(f64, ExtentId)> = Vec::new();
        for (id, len) in sealed {
            if let Some(usage) = self.extents.get(id)
                && usage.kind == StreamKind::Base
                && usage.valid > 0
                && usage.ranges.is_some()
                && !self.written.contains_key(id)
            {
                known.push((usage.garbage_fraction(*len), *id));
            }
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, id) in known {
            if bytes <= most {
                break;
            }
            let usage = self.extents.get_mut(&id);
            let dropped = usage.and_then(|usage| usage.ranges.take());
            bytes -= dropped.map_or(0, |ranges| ranges.memory());
        }
    }

    /// Gives an extent its ranges back. Returns false if their bytes are not those in use.
    pub fn set_ranges(&mut self, extent: ExtentId, ranges: ByteRanges) -> bool {
        let usage = self.extents.get_mut(&extent);
        let usage = usage.filter(|usage| usage.valid == ranges.total());
        usage.map(|usage| usage.ranges = Some(ranges)).is_some()
    }

    /// Takes the usage of all extents from another table. Extents that transactions write to stay
    /// held.
    pub fn replace(&mut self, other: UsageTable) {
        self.extents = other.extents;
    }

    /// Notes that a transaction writes to an extent, which stays until [`UsageTable::release`].
    pub fn hold(&mut self, extent: ExtentId) {
        *self.written.entry(extent).or_default() += 1;
    }

    /// Undoes [`UsageTable::hold`].
    pub fn release(&mut self, extent: ExtentId) {
        if let Some(count) = self.written.get_mut(&extent) {
            *count -= 1;
            if *count == 0 {
                self.written.remove(&extent);
            }
        }
    }

    /// Returns true if no page of an extent is valid for any reader, and no transaction writes to
    /// it. `readers` are the times of all readers in rising order, when the caller asked for them.
    /// Readers that began later have later times than the last one, unless times went back with a
    /// rollback. So an extent with a page that was valid at that time is not dead. An extent that
    /// the table does not have is dead: the pages in it were never committed.
    pub fn is_dead(&self, extent: ExtentId, readers: &[SysTime]) -> bool {
        let newest = readers.last().copied().unwrap_or(0);
        let unused = |usage: &ExtentUsage| {
            let mut readers = readers.iter();
            usage.valid == 0
                && usage.freed <= newest
                && !readers.any(|at| (usage.born..usage.freed).contains(at))
        };
        self.extents.get(&extent).is_none_or(unused) && !self.written.contains_key(&extent)
    }

    pub fn get(&self, extent: ExtentId) -> Option<&ExtentUsage> {
        self.extents.get(&extent)
    }

    /// Forgets an extent that was erased.
    pub fn forget(&mut self, extent: ExtentId) {
        self.extents.remove(&extent);
    }

    pub fn iter(&self) -> impl Iterator<Item = (ExtentId, &ExtentUsage)> {
        self.extents.iter().map(|(id, usage)| (*id, usage))
    }

    /// Appends the table as a system checkpoint has it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.extents.len() as u64);
        for (id, usage) in &self.extents {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.push(match usage.ranges {
                Some(_) => usage.kind as u8,
                None => BASE_WITHOUT_RANGES,
            });
            put_varint(out, usage.valid);
            put_varint(out, usage.freed);
            let Some(ranges) = &usage.ranges else {
                continue;
            };
            put_varint(out, ranges.len() as u64);
            for (from, to) in ranges.iter() {
                put_varint(out, u64::from(from));
                put_varint(out, u64::from(to));
            }
        }
    }

    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<UsageTable> {
        let mut table = UsageTable::default();
        for _ in 0..get_varint64(bytes, at)? {
            let id = bytes.get(*at..)?.first_chunk::<8>()?;
            *at += 8;
            let (kind, has_ranges) = match *bytes.get(*at)? {
                1 => (StreamKind::Base, true),
                2 => (StreamKind::Delta, true),
                BASE_WITHOUT_RANGES => (StreamKind::Base, false),
                _ => return None,
            };
            *at += 1;
            let (valid, freed) = (get_varint64(bytes, at)?, get_varint64(bytes, at)?);
            if !has_ranges && valid == 0 {
                return None;
            }
            let ranges = match has_ranges {
                true => Some(decode_ranges(bytes, at)?),
                false => None,
            };
            let usage = ExtentUsage {
                kind,
                valid,
                ranges,
                freed,
                born: 0,
            };
            table
                .extents
                .insert(ExtentId(u64::from_le_bytes(*id)), usage);
        }
        Some(table)
    }
}

impl ExtentUsage {
    /// Returns the fraction of garbage, 0 to 1, if the extent has `len` bytes.
    pub fn garbage_fraction(&self, len: u64) -> f64 {
        len.saturating_sub(self.valid) as f64 / len.max(1) as f64
    }
}

fn decode_ranges(bytes: &[u8], at: &mut usize) -> Option<ByteRanges> {
    let mut ranges = ByteRanges::default();
    for _ in 0..get_varint64(bytes, at)? {
        let from = u32::try_from(get_varint64(bytes, at)?).ok()?;
        let to = u32::try_from(get_varint64(bytes, at)?).ok()?;
        ranges.push(from, to)?;
    }
    Some(ranges)
}

#[cfg(test)]
mod tests;
