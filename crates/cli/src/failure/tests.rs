//! Tests of the module `failure`.

use super::*;

fn in_d() -> StoreLocation {
    StoreLocation {
        dir: "d".into(),
        image: None,
    }
}

#[test]
fn a_locked_store_error_names_the_holder_once() {
    let e = basalt::Error::new(
        ErrorKind::Busy,
        "the store is in use by process 12 (basalt serve); stop it, or use another directory",
    );
    let Failure::Busy(text) = Failure::store(&in_d(), e) else {
        panic!("a command can wait for it");
    };
    assert_eq!(
        text,
        "the store in d is in use by process 12 (basalt serve); ask a running server with `redis-cli INFO`, or stop it and try again"
    );
    assert_eq!(holder("busy: budget used up"), None);
}

#[test]
fn a_damage_error_gives_its_advice_once_and_its_offset() {
    let e = basalt::Error::corruption(
        Path::new("d/MANIFEST-000001"),
        0,
        "CURRENT names this manifest, and it is missing; run `basalt repair` to rebuild it",
    );
    let Failure::Message(text, _) = Failure::store(&in_d(), e) else {
        panic!("it is told");
    };
    assert_eq!(text.matches("basalt repair").count(), 1, "{text}");
    assert!(
        text.contains("it is missing (d/MANIFEST-000001 at offset 0)"),
        "{text}"
    );
}

#[test]
fn large_sizes_are_shown_in_units() {
    for (text, says) in [
        (
            "no room for 966367641600 more bytes; make",
            "no room for 900.00 GiB more; make",
        ),
        ("it has 67108864 bytes, and", "it has 64.00 MiB, and"),
        ("4095 bytes of 67108864", "4095 bytes of 67108864"),
        ("", ""),
    ] {
        assert_eq!(readable_sizes(text), says);
    }
}

#[test]
fn a_full_image_error_says_how_to_grow_the_image() {
    let message = |free: u64| {
        let text = format!(
            "no space: {free} bytes are free on the disk of db, of which 8388608 are reserved for work that frees space: delete something"
        );
        full(Path::new("i"), "--image i", &text)
    };
    let says = message(5 << 20);
    let begins = "the image i is full: 5.00 MiB are free, and 8.00 MiB are reserved for work that frees space; delete keys and run `basalt compact --image i`, ";
    assert!(says.starts_with(begins), "{says}");
    let says = message(3 << 20);
    assert!(!says.contains("delete keys"), "{says}");
    let says = full(Path::new("i"), "--image i", "no space: the image is full");
    assert!(
        says.starts_with("the image i is full; delete keys and run"),
        "{says}"
    );
}

/// A trim, a removal or a repair that finds no space cannot be helped by a trim.
#[test]
fn the_lack_of_space_is_not_mended_by_the_command_that_failed() {
    let e = basalt::Error::new(ErrorKind::NoSpace, "the image is full");
    let failure = Failure::log_store(&in_d(), "d", e);
    let text = failure.sentence();
    assert!(text.contains("make space under d"), "{text}");
    assert!(!text.contains("log trim"), "{text}");
}
