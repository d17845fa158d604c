//! Tests of the module `copy`.

use super::*;

#[test]
fn names_of_unfinished_copies_are_short_and_recognised() {
    let long = "x".repeat(255);
    for name in ["a", "b", "CURRENT", &long] {
        let temporary_path = temporary_path(&Path::new("d").join(name));
        assert_eq!(temporary_path.parent(), Some(Path::new("d")));
        assert!(
            is_temporary_name(temporary_path.file_name().unwrap()),
            "{temporary_path:?}"
        );
    }
    assert_ne!(
        temporary_path(Path::new("a")),
        temporary_path(Path::new("b"))
    );
    for name in ["a.unfinished", ".cp-.unfinished", ".cp-0000000G.unfinished"] {
        assert!(!is_temporary_name(OsStr::new(name)), "{name}");
    }
}
