//! Tests of the module `flags`.

use super::*;

#[test]
fn sizes() {
    assert_eq!(parse_size("4096"), Ok(4096));
    assert_eq!(parse_size("4K"), Ok(4096));
    assert_eq!(parse_size("64MiB"), Ok(64 << 20));
    assert_eq!(parse_size("2g"), Ok(2 << 30));
    for bad in ["", "K", "4X", "-1", "99999999999G", "1.5M"] {
        assert!(parse_size(bad).is_err(), "{bad}");
    }
}
