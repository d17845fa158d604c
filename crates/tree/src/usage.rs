//! How much of each extent is in use (ArkDB, section 4.2.1): ranges for extents of base pages, and
//! sizes for extents of delta pages, which may be in several chains.

use crate::mapping::SysTime;
use crate::page_id::PageId;
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_stream::ExtentId;
use std::collections::BTreeMap;

/// The lock of the usage table, for tests under the scheduler. It stands below the locks of the
/// crate `stream`: an append takes it to hold the extent that it writes to.
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: basalt_env::sync::lock_log::CrateLocks =
    basalt_env::sync::lock_log::CrateLocks {
        order: &["Storage::usage"],
        leaves: &[],
    };

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
    /// Offsets and ends of valid bytes, for base pages alone.
    pub ranges: BTreeMap<u32, u32>,
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

impl UsageTable {
    /// Counts a page as valid from a time on.
    pub fn add(&mut self, kind: StreamKind, page: PageId, time: SysTime) {
        let usage = self.extents.entry(page.extent).or_insert(ExtentUsage {
            kind,
            valid: 0,
            ranges: BTreeMap::new(),
            freed: 0,
            born: time,
        });
        usage.valid += u64::from(page.len);
        if kind == StreamKind::Base {
            usage.add_range(page.offset, page.offset + page.len);
        }
    }

    /// Counts a page as garbage since a time.
    ///
    /// Errors: a sentence, if the page was not valid.
    pub fn remove(&mut self, kind: StreamKind, page: PageId, time: SysTime) -> Result<(), String> {
        let usage = self.extents.get_mut(&page.extent);
        let usage = usage.filter(|u| u.kind == kind && u.valid >= u64::from(page.len));
        let usage = usage.ok_or_else(|| format!("page {page} is not in use"))?;
        usage.valid -= u64::from(page.len);
        usage.freed = usage.freed.max(time);
        match kind {
            StreamKind::Delta => Ok(()),
            StreamKind::Base => usage.remove_range(page.offset, page.offset + page.len),
        }
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

    /// Returns true if no page of an extent is valid for readers at these times, and no transaction
    /// writes to it. An extent that the table does not have is dead, too: what was written to it
    /// was never committed.
    pub fn is_dead(&self, extent: ExtentId, readers: &[SysTime]) -> bool {
        let unused = |usage: &ExtentUsage| {
            let mut readers = readers.iter();
            usage.valid == 0 && !readers.any(|at| (usage.born..usage.freed).contains(at))
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
            out.push(usage.kind as u8);
            put_varint(out, usage.valid);
            put_varint(out, usage.freed);
            put_varint(out, usage.ranges.len() as u64);
            for (from, to) in &usage.ranges {
                put_varint(out, u64::from(*from));
                put_varint(out, u64::from(*to));
            }
        }
    }

    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<UsageTable> {
        let mut table = UsageTable::default();
        for _ in 0..get_varint64(bytes, at)? {
            let id = bytes.get(*at..)?.first_chunk::<8>()?;
            *at += 8;
            let kind = match bytes.get(*at)? {
                1 => StreamKind::Base,
                2 => StreamKind::Delta,
                _ => return None,
            };
            *at += 1;
            let (valid, freed) = (get_varint64(bytes, at)?, get_varint64(bytes, at)?);
            let mut ranges = BTreeMap::new();
            let mut end_before = 0;
            for _ in 0..get_varint64(bytes, at)? {
                let from = u32::try_from(get_varint64(bytes, at)?).ok()?;
                let to = u32::try_from(get_varint64(bytes, at)?).ok()?;
                if from < end_before || to <= from {
                    return None;
                }
                end_before = to;
                ranges.insert(from, to);
            }
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
    fn add_range(&mut self, mut from: u32, mut to: u32) {
        if let Some((&before, &end)) = self.ranges.range(..from).next_back()
            && end == from
        {
            self.ranges.remove(&before);
            from = before;
        }
        if let Some(end) = self.ranges.remove(&to) {
            to = end;
        }
        self.ranges.insert(from, to);
    }

    fn remove_range(&mut self, from: u32, to: u32) -> Result<(), String> {
        let found = self.ranges.range(..=from).next_back();
        let Some((begin, end)) = found.map(|(b, e)| (*b, *e)).filter(|(_, end)| to <= *end) else {
            return Err(format!("bytes {from} to {to} are not in use"));
        };
        self.ranges.remove(&begin);
        if begin < from {
            self.ranges.insert(begin, from);
        }
        if to < end {
            self.ranges.insert(to, end);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
