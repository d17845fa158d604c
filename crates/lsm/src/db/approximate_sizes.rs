//! Approximate sizes of key ranges.

use super::engine::Engine;
use super::{Family, RangeSize};
use crate::iter::InternalIter;
use crate::version::TableFile;
use basalt_fs::Result;
use basalt_kv::key::{Cmp, internal_key, user_key};
use std::cmp::Ordering;
use std::sync::Arc;

/// A range of user keys from the first (inclusive) to the second (exclusive). `None` is unbounded.
pub type UserRange<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

impl Engine {
    pub fn approximate_sizes(
        &self,
        family: &Family,
        ranges: &[UserRange<'_>],
    ) -> Result<Vec<RangeSize>> {
        self.ctx.check_open()?;
        let view = self.tree.view();
        self.check_family(&view, family)?;
        let cmp = &view.families[&family.id()].options.comparator;
        let mut out = Vec::with_capacity(ranges.len());
        for &(from, to) in ranges {
            let mut size = RangeSize::default();
            if let (Some(f), Some(t)) = (from, to)
                && cmp.user(f, t) != Ordering::Less
            {
                out.push(size);
                continue;
            }
            if let Some(pages) = view.pages.get(&family.id()) {
                let tree = pages.pages.tree();
                let from = from.unwrap_or_default();
                size.table_bytes += tree.approximate_bytes(&pages.snapshot, from, to)?;
            } else if let Some(tables) = view.version.families.get(&family.id()) {
                for t in tables.levels.iter().flatten() {
                    size.table_bytes += between(cmp, t, from, to)?;
                }
            }
            for mem in view.memtables(family.id()).filter(|m| !m.is_empty()) {
                let mut iter = mem.iter();
                match from {
                    Some(from) => iter.seek(&internal_key(from, u64::MAX))?,
                    None => iter.seek_to_first()?,
                }
                while iter.valid()
                    && to.is_none_or(|to| cmp.user(user_key(iter.key()), to) == Ordering::Less)
                {
                    size.memtable_entries += 1;
                    size.memtable_bytes += (iter.key().len() + iter.value().len()) as u64;
                    iter.next()?;
                }
            }
            out.push(size);
        }
        Ok(out)
    }
}

/// Returns the approximate bytes of a table between two keys, by its index.
fn between(cmp: &Cmp, t: &Arc<TableFile>, from: Option<&[u8]>, to: Option<&[u8]>) -> Result<u64> {
    let before = |key: &[u8]| {
        if cmp.user(t.largest_user(), key) == Ordering::Less {
            Ok(t.meta.size)
        } else if cmp.user(t.smallest_user(), key) != Ordering::Less {
            Ok(0)
        } else {
            let offset = t
                .reader()?
                .approximate_offset(&internal_key(key, u64::MAX), true)?;
            Ok(offset.min(t.meta.size))
        }
    };
    let end = to.map_or(Ok(t.meta.size), before)?;
    let begin = from.map_or(Ok(0), before)?;
    Ok(end.saturating_sub(begin))
}
