//! The engine of a store: levels of tables, or a tree of pages. It is chosen when a family is
//! created, and stays, so a command on an existing store finds it in the manifest.

use crate::budget::Budget;
use crate::failure::Failure;
use crate::location::{Access, StoreEngine, StoreLocation};
use basalt::{Db, Env, Options, TreeOptions};
use basalt_server::{engine_defaults, fit_families};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the options for the store in a directory, or for a new store with the engine of the
/// flags. Families
/// that are made in an existing store get the engine of its default family.
///
/// A manifest that cannot be read changes no options: opening the store then reports the cause.
///
/// Errors: if the flags say `--engine lsm`, and the store is kept in pages. This function checks
/// it, because options without pages do not make the engine refuse such a store.
pub fn options(
    place: &StoreLocation,
    (env, dir): (&Env, &Path),
    access: Access,
    budget: Option<&Budget>,
) -> Result<Options, Failure> {
    let options = budget.map_or_else(engine_defaults, Budget::engine);
    let pages = budget.map_or_else(TreeOptions::default, |b| b.separation.pages());
    let found = Db::families_of_closed(env, dir).unwrap_or_default();
    let engine = access.engine();
    if engine == Some(StoreEngine::Lsm) && is_in_pages(&found) {
        return Err(Failure::new(format!(
            "the store in {place} is kept in pages; leave --engine lsm out, or export its entries and load them into a new store"
        )));
    }
    Ok(fit(options, &found, engine, &pages))
}

/// Returns true if the default family of a store is in pages.
fn is_in_pages(found: &BTreeMap<String, bool>) -> bool {
    found.get(DEFAULT).is_some_and(|is_in_pages| *is_in_pages)
}

/// Adapts options to the engine of a new store, and to the families that a store has. The value of
/// a family is `true` if it is kept in pages. If the flag asks for pages, and the store is in
/// levels, the options ask for them, too, so that the engine can refuse them.
fn fit(
    mut options: Options,
    found: &BTreeMap<String, bool>,
    engine: Option<StoreEngine>,
    pages: &TreeOptions,
) -> Options {
    if engine == Some(StoreEngine::Tree) && !is_in_pages(found) {
        options.default_family = options.default_family.pages(Some(pages.clone()));
    }
    fit_families(options, found, pages)
}

/// The name of the family that every store has.
const DEFAULT: &str = "default";

#[cfg(test)]
mod tests;
