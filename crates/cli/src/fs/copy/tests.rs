//! Tests of the module `copy`.

use super::*;

#[test]
fn names_of_unfinished_copies_are_short_and_known_again() {
    let long = "x".repeat(255);
    for name in ["a", "b", "CURRENT", &long] {
        let aside = aside(&Path::new("d").join(name));
        assert_eq!(aside.parent(), Some(Path::new("d")));
        assert!(is_aside(aside.file_name().unwrap()), "{aside:?}");
    }
    assert_ne!(aside(Path::new("a")), aside(Path::new("b")));
    for name in ["a.unfinished", ".cp-.unfinished", ".cp-0000000G.unfinished"] {
        assert!(!is_aside(OsStr::new(name)), "{name}");
    }
}
