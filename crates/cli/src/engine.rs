//! The engine of a store: levels of tables, or a tree of pages. It is chosen when a family is
//! created, and stays, so a command on an existing store finds it in the manifest.

use crate::budget::Budget;
use crate::failure::Failure;
use crate::location::StoreEngine;
use basalt::{Db, Env, Options, TreeOptions};
use basalt_server::engine_defaults;
use std::collections::BTreeMap;
use std::path::Path;

/// Checks that the flags of a budget are possible with an engine.
pub fn check_flags(engine: StoreEngine, budget: &Budget) -> Result<(), Failure> {
    if engine == StoreEngine::Tree && budget.separation.asks_for_blobs() {
        return Err(Failure::new(
            "--min-blob-size is for blob files, and a store with --engine tree keeps all values in its pages; leave one of the two out",
        ));
    }
    Ok(())
}

/// Returns the options for the store in a directory, or for a new store with this engine. Families
/// that are made in an existing store get the engine of its default family.
///
/// A manifest that cannot be read changes no options: opening the store then reports the cause.
pub fn options(env: &Env, dir: &Path, engine: StoreEngine, budget: Option<&Budget>) -> Options {
    let options = budget.map_or_else(engine_defaults, Budget::engine);
    let pages = budget.map_or_else(TreeOptions::default, |b| b.separation.pages());
    let asks_for_blobs = budget.is_some_and(|b| b.separation.asks_for_blobs());
    let found = Db::families_of_closed(env, dir).unwrap_or_default();
    fit(options, &found, engine, pages, asks_for_blobs)
}

/// Adapts options to the families that a store has. The value of a family is `true` if it is kept
/// in pages. Options that the flags ask for stay, so that the engine can refuse them.
fn fit(
    mut options: Options,
    found: &BTreeMap<String, bool>,
    engine: StoreEngine,
    pages: TreeOptions,
    asks_for_blobs: bool,
) -> Options {
    let levels = options.default_family.clone();
    let in_pages = match asks_for_blobs {
        true => levels.clone(),
        false => levels.clone().min_blob_size(None).pages(Some(pages)),
    };
    let default_is_in_pages = found.get(DEFAULT).is_some_and(|in_pages| *in_pages);
    if default_is_in_pages || engine == StoreEngine::Tree {
        options.default_family = in_pages.clone();
    }
    for (name, is_in_pages) in found.iter().filter(|(name, _)| *name != DEFAULT) {
        let family = match is_in_pages {
            true => in_pages.clone(),
            false => levels.clone(),
        };
        options.families.insert(name.clone(), family);
    }
    options
}

/// The name of the family that every store has.
const DEFAULT: &str = "default";

#[cfg(test)]
mod tests;
