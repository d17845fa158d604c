//! The path from the root to a leaf.

use crate::page::{Page, PageKind};
use crate::page_id::PageId;
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::Result;

/// An index page on the way to a leaf.
#[derive(Clone)]
pub(crate) struct Step {
    /// The id under which its parent names it.
    pub key: PageId,
    pub page: Page,
    /// The child that the way goes on with.
    pub child: usize,
}

/// The way from the root to a leaf.
#[derive(Clone)]
pub(crate) struct Path {
    /// Index pages, the root first.
    pub steps: Vec<Step>,
    /// The id under which the leaf's parent names it.
    pub leaf: PageId,
}

impl Path {
    /// Returns the first key behind the leaf; `None` for the last leaf.
    pub fn end(&self) -> Option<Vec<u8>> {
        Path::end_below(&self.steps)
    }

    /// Returns the first key behind the index page that names the leaf; `None` for the last one.
    pub fn end_of_parent(&self) -> Option<Vec<u8>> {
        Path::end_below(&self.steps[..self.steps.len().saturating_sub(1)])
    }

    fn end_below(steps: &[Step]) -> Option<Vec<u8>> {
        let mut up = steps.iter().rev();
        up.find_map(|step| {
            let next = step.child + 1;
            (next < step.page.count()).then(|| step.page.key(next))
        })
    }
}

impl Storage {
    /// Returns the way to the leaf that has a key in a view.
    pub fn path(&self, view: &View, key: &[u8]) -> Result<Path> {
        self.path_by(view, |page| page.child_of(key))
    }

    /// Returns the way to the last leaf in a view.
    pub fn path_to_end(&self, view: &View) -> Result<Path> {
        self.path_by(view, |page| page.count() - 1)
    }

    /// Returns the way that goes on with the child that `choose` returns for each index page.
    fn path_by(&self, view: &View, choose: impl Fn(&Page) -> usize) -> Result<Path> {
        let mut at = view.root.id;
        let mut steps = Vec::with_capacity(view.root.level as usize);
        for level in (1..=view.root.level).rev() {
            let page = self.index_page(view, at, level)?;
            let child = choose(&page);
            let below = page.child(child);
            steps.push(Step {
                key: at,
                page,
                child,
            });
            at = below;
        }
        Ok(Path { steps, leaf: at })
    }

    /// Returns an index page by the id under which its parent names it.
    pub fn index_page(&self, view: &View, key: PageId, level: u8) -> Result<Page> {
        let base = match self.mapping.base_of(key, view.time) {
            Some(base) => base,
            // The call returns the error that names the page.
            None => self.pages_of(view, key)?.base,
        };
        let page = self.cached_page(StreamKind::Base, base)?;
        self.check_index_page(base, page, level)
    }

    /// Returns the page if it is an index page of a level.
    pub fn check_index_page(&self, base: PageId, page: Page, level: u8) -> Result<Page> {
        match page.level == level && page.kind == PageKind::Index {
            true => Ok(page),
            false => Err(self.bad_page(
                StreamKind::Base,
                base,
                &format!(
                    "expected an index page of level {level}, found level {}",
                    page.level
                ),
            )),
        }
    }
}
