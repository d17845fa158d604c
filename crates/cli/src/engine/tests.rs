//! Tests of the module `engine`.

use super::*;

fn fitted(found: &[(&str, bool)], engine: Option<StoreEngine>) -> Options {
    let found = found.iter().map(|(name, pages)| (name.to_string(), *pages));
    fit(
        engine_defaults(),
        &found.collect(),
        engine,
        &TreeOptions::default(),
    )
}

/// Returns whether the options of a family have pages, and whether they have blob files.
fn parts(options: &Options, family: &str) -> (bool, bool) {
    let family = options.family(family);
    (family.pages.is_some(), family.min_blob_size.is_some())
}

#[test]
fn a_new_store_has_the_engine_of_the_flag() {
    let lsm = fitted(&[], None);
    assert_eq!(parts(&lsm, DEFAULT), (false, true));
    let tree = fitted(&[], Some(StoreEngine::Tree));
    assert_eq!(parts(&tree, DEFAULT), (true, true));
    assert_eq!(parts(&tree, "new"), (true, true));
}

#[test]
fn an_existing_store_keeps_the_engine_of_each_family() {
    let found = [(DEFAULT, true), ("levels", false), ("pages", true)];
    for engine in [None, Some(StoreEngine::Tree)] {
        let options = fitted(&found, engine);
        assert_eq!(parts(&options, DEFAULT), (true, true));
        assert_eq!(parts(&options, "new"), (true, true));
        assert_eq!(parts(&options, "levels"), (false, true));
        assert_eq!(parts(&options, "pages"), (true, true));
    }
    let options = fitted(&[(DEFAULT, false), ("pages", true)], None);
    assert_eq!(parts(&options, DEFAULT), (false, true));
    assert_eq!(parts(&options, "new"), (false, true));
    assert_eq!(parts(&options, "pages"), (true, true));
}

#[test]
fn an_engine_that_the_flag_asks_for_is_left_to_the_engine_to_refuse() {
    let options = fitted(&[(DEFAULT, false)], Some(StoreEngine::Tree));
    assert!(parts(&options, DEFAULT).0);
}
