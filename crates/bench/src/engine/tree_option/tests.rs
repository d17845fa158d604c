//! Options by name, right and wrong ones.

use super::TreeOption;
use basalt::TreeOptions;

fn error(text: &str) -> String {
    TreeOption::parse(text).unwrap_err()
}

#[test]
fn options_are_set_by_name() {
    let mut pages = TreeOptions::default();
    for text in [
        "overwrite_ratio=0.25",
        "extent_bytes=16M",
        "leaf_delta_bytes=0",
    ] {
        let option = TreeOption::parse(text).unwrap();
        assert_eq!(option.as_str(), text);
        pages = option.apply(pages).unwrap();
    }
    assert_eq!(pages.overwrite_ratio, 0.25);
    assert_eq!(pages.extent_bytes, 16 << 20);
    assert_eq!(pages.leaf_delta_bytes, Some(0));
    assert_eq!(pages.max_deltas, TreeOptions::default().max_deltas);
}

#[test]
fn wrong_options_get_an_error_that_says_what_is_right() {
    assert!(error("overwrite_ratio").contains("write NAME=VALUE"));
    assert!(error("overwrite_ratio=x").contains("it takes a number"));
    assert!(error("extent_bytes=x").starts_with("extent_bytes: "));
    assert!(error("ratio=1").contains("there are block_bytes"));
    // Validated as the engine does.
    assert!(error("max_space_amp=1").contains("1.05 to 100"));
}
