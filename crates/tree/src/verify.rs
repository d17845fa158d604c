//! Verification of a tree: every page that its view reaches, and what the tables say of them.

use crate::page::{Page, PageKind};
use crate::page_id::PageId;
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::Result;
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};

/// A page that is to be verified.
struct Below {
    key: PageId,
    level: u8,
    /// The keys that it may have: from `low` on, and below `high`.
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

impl Storage {
    /// Reads and verifies all pages of the newest view, past the cache. Checks that their keys are
    /// where the index pages say, and that the usage of extents counts them and nothing else.
    ///
    /// Errors: the first `Corruption` names what is damaged.
    pub fn verify(&self) -> Result<()> {
        let (view, usage) = self.view_with_usage();
        let mut reached: BTreeMap<ExtentId, u64> = BTreeMap::new();
        let mut below = vec![Below {
            key: view.root.id,
            level: view.root.level,
            low: None,
            high: None,
        }];
        let mut visited: BTreeSet<PageId> = BTreeSet::new();
        while let Some(page) = below.pop() {
            if !visited.insert(page.key) {
                let what = "two entries of index pages name this page";
                return Err(self.bad_page(StreamKind::Base, page.key, what));
            }
            self.verify_page(&view, page, &mut below, &mut reached)?;
        }
        for (extent, usage) in usage.iter() {
            let found = reached.remove(&extent).unwrap_or(0);
            if found != usage.valid {
                return Err(self.inconsistent(format!(
                    "extent {extent} has {found} bytes of pages, and {} count as in use",
                    usage.valid
                )));
            }
        }
        match reached.keys().next() {
            None => Ok(()),
            Some(extent) => {
                Err(self.inconsistent(format!("no page of extent {extent} counts as in use")))
            }
        }
    }

    fn verify_page(
        &self,
        view: &View,
        at: Below,
        below: &mut Vec<Below>,
        reached: &mut BTreeMap<ExtentId, u64>,
    ) -> Result<()> {
        let pages = self.pages_of(view, at.key)?;
        let mut count = |id: PageId| *reached.entry(id.extent).or_default() += u64::from(id.len);
        for delta in &pages.deltas {
            count(delta.id);
            let page = self.page_uncached(StreamKind::Delta, delta.id)?;
            if delta.part.is_none() {
                self.verify_range(StreamKind::Delta, delta.id, &page, &at)?;
            }
        }
        count(pages.base);
        let page = self.page_uncached(StreamKind::Base, pages.base)?;
        let kind = match at.level {
            0 => PageKind::Leaf,
            _ => PageKind::Index,
        };
        if page.kind != kind || page.level != at.level || (at.level > 0 && !pages.deltas.is_empty())
        {
            let what = format!(
                "expected a page of level {}, found level {}",
                at.level, page.level
            );
            return Err(self.bad_page(StreamKind::Base, pages.base, &what));
        }
        self.verify_range(StreamKind::Base, pages.base, &page, &at)?;
        if at.level > 0 {
            for i in 0..page.count() {
                let low = (i > 0).then(|| page.key(i));
                let high = (i + 1 < page.count()).then(|| page.key(i + 1));
                below.push(Below {
                    key: page.child(i),
                    level: at.level - 1,
                    low: low.or_else(|| at.low.clone()),
                    high: high.or_else(|| at.high.clone()),
                });
            }
        }
        Ok(())
    }

    fn verify_range(&self, kind: StreamKind, id: PageId, page: &Page, at: &Below) -> Result<()> {
        let Some(last) = page.count().checked_sub(1) else {
            return Ok(());
        };
        // The first key of an index page may be above the smallest key below it.
        let low = at.low.as_ref().filter(|_| page.kind != PageKind::Index);
        let begins_in = low.is_none_or(|low| *low <= page.key(0));
        let ends_in = at.high.as_ref().is_none_or(|high| page.key(last) < *high);
        match begins_in && ends_in {
            true => Ok(()),
            false => Err(self.bad_page(kind, id, "a key is outside of the range of the page")),
        }
    }
}
