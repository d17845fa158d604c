//! The pages of a family, for tools.

use super::engine::Engine;
use super::open::{bind_families, load_catalog};
use super::pages::{self, PageView};
use super::store_files::LOCK;
use crate::options::Options;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::family::Family;
use basalt_tree::{InspectedExtent, InspectedNode, PageTreeStats, TreeCheck};
use std::path::Path;

/// The pages of a family at the moment at which [`super::Db::inspect_pages`] was called. What it
/// needs is kept until it is dropped. The entries of memtables are not in it.
pub struct PageInspector {
    view: PageView,
}

impl PageInspector {
    /// Calls `each` with all index pages and leaves, in the order of their keys, an index page
    /// before those below it, as long as it returns true. If `with_entries`, leaves come with their
    /// entries. Reads each page once, past the cache. A damaged page is a finding of its node, and
    /// the walk goes on with the next page that it can reach.
    pub fn each(&self, with_entries: bool, each: &mut dyn FnMut(InspectedNode) -> bool) {
        let tree = self.view.pages.tree();
        tree.inspect(&self.view.snapshot, with_entries, each);
    }

    /// Returns the extents of the family, those of base pages first. Reads nothing.
    pub fn extents(&self) -> Vec<InspectedExtent> {
        self.view.pages.tree().inspect_extents()
    }

    /// Returns what the pages have and cost. Reads nothing.
    pub fn stats(&self) -> PageTreeStats {
        self.view.pages.tree().stats()
    }

    /// Returns the number of leaves. Reads all index pages, through the cache.
    ///
    /// Errors: those of reading an index page.
    pub fn count_leaves(&self) -> Result<u64> {
        self.view.pages.tree().count_leaves(&self.view.snapshot)
    }
}

impl Engine {
    /// See [`super::Db::inspect_pages`].
    pub fn inspect_pages(&self, family: &Family) -> Result<PageInspector> {
        self.ctx.check_open()?;
        let view = self.tree.view();
        self.check_family(&view, family)?;
        match view.pages.get(&family.id()) {
            Some(pages) => Ok(PageInspector {
                view: pages.clone(),
            }),
            None => Err(Error::invalid(format!(
                "family {:?} is kept in levels of tables, and has no pages",
                family.name()
            ))),
        }
    }
}

/// See [`super::Db::check_pages`].
pub(super) fn check_pages(
    env: &Env,
    dir: &Path,
    options: &Options,
    wanted: Option<&str>,
) -> Result<Vec<(String, TreeCheck)>> {
    let fs = env.fs();
    let none = || Error::new(ErrorKind::NotFound, "no store here").in_file(dir);
    if !fs.exists(dir)? {
        return Err(none());
    }
    let _lock = fs.lock_shared(&dir.join(LOCK))?;
    let files = fs.list(dir)?.into_iter().filter(|e| !e.is_dir);
    let names: Vec<String> = files.map(|e| e.name).collect();
    let loaded = load_catalog(env, dir, &names)?.ok_or_else(none)?;
    let families = bind_families(&loaded.catalog, options)?;
    let mut checked = Vec::new();
    for (id, family) in &loaded.catalog.families {
        if wanted.is_some_and(|wanted| wanted != family.name) {
            continue;
        }
        let mut one = loaded.catalog.clone();
        one.families.retain(|other, _| other == id);
        let found = pages::check(env, dir, &one, &families)?;
        checked.extend(
            found
                .into_iter()
                .map(|(_, found)| (family.name.clone(), found)),
        );
    }
    Ok(checked)
}
