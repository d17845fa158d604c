//! `basalt fs cp` in cases with a risk of harm or of a wrong message: stores in use, misspelt
//! images, files without a length.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Scratch, fs, serving, stop};

/// Regression test: a single file replaced one of a store that a server was writing, because only
/// copies of directories checked the lock.
#[test]
fn a_file_of_an_open_store_is_neither_replaced_nor_moved() {
    let s = Scratch::new("file-of-store");
    s.run("put", ["a", "1"]).ok();
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    fs(&s, &["cp", "db", "i:old"]).ok();
    let server = serving(&s, &[]);
    let current = std::fs::read(s.path("db/CURRENT")).unwrap();
    for to in ["db/CURRENT", "db", "./db/more"] {
        fs(&s, &["cp", "--overwrite", "i:old/CURRENT", to]).fails(2, &["in use by process"]);
    }
    fs(&s, &["cp", "db/CURRENT", "i:x"]).fails(2, &["in use by process"]);
    assert_eq!(std::fs::read(s.path("db/CURRENT")).unwrap(), current);
    assert!(!s.path("db/more").exists());
    stop(server);
    fs(&s, &["cp", "db/CURRENT", "i:x"]).ok();
    fs(&s, &["cp", "--overwrite", "i:x", "db/CURRENT"]).ok();
    // Another file under the lock's name would allow two processes to open the store.
    fs(&s, &["cp", "--overwrite", "i:x", "db/LOCK"]).fails(2, &["db/LOCK is the lock of a store"]);
    fs(&s, &["cp", "--overwrite", "db/CURRENT", "i:old/LOCK"])
        .fails(2, &["is the lock of a store"]);
    assert_eq!(s.run("get", ["a"]).ok(), b"1");
    // A file with this name that is no lock does not count as one.
    s.file("notes/LOCK", b"of another program");
    fs(&s, &["cp", "--overwrite", "i:x", "notes/LOCK"]).ok();
}

/// Regression test: the copy went to a file or a directory of the disk with the name
/// `other.lava:m2`.
#[test]
fn a_copy_into_a_missing_image_is_refused() {
    let s = Scratch::new("missing-image");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    s.file("dir/x", b"content");
    fs(&s, &["cp", "dir", "i:"]).ok();
    for from in ["i:dir", "i:dir/x", "dir/x"] {
        fs(&s, &["cp", from, "other.lava:m2"]).fails(
            2,
            &[
                "there is no image other.lava;",
                "`basalt fs format other.lava --size 20G`",
                "./other.lava:m2",
            ],
        );
    }
    assert!(!s.path("other.lava:m2").exists());
    // Names of the disk may have colons.
    fs(&s, &["cp", "i:dir", "./12:30"]).ok();
    fs(&s, &["cp", "i:dir/x", "12:30", "--overwrite"]).ok();
    fs(&s, &["cp", "i:dir/x", "dir/a:b"]).ok();
    assert_eq!(std::fs::read(s.path("12:30/x")).unwrap(), b"content");
}

/// Regression test: the file was copied as empty, and the copy reported success.
#[test]
fn a_file_that_reports_no_length_is_copied_to_its_end() {
    let s = Scratch::new("no-length");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    s.file("empty", b"");
    fs(&s, &["cp", "/proc/version", "i:v"]).ok();
    let version = std::fs::read("/proc/version").unwrap();
    assert!(!version.is_empty());
    assert_eq!(fs(&s, &["cat", "i", "v"]).ok(), version);
    fs(&s, &["cp", "empty", "i:e"]).ok();
    assert_eq!(fs(&s, &["cat", "i", "e"]).ok(), b"");
}

/// Regression test: a repeated copy after an interruption went into the directory that the first
/// one had left, without a message.
#[test]
fn a_repeated_copy_names_its_target_and_can_be_finished() {
    let s = Scratch::new("contents");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    for name in ["data/a", "data/sub/b"] {
        s.file(name, name);
    }
    fs(&s, &["cp", "data", "i:data"]).ok();
    // This is the state after an interruption: a file is missing.
    fs(&s, &["cp", "i:data", "copy"]).ok();
    std::fs::remove_file(s.path("copy/a")).unwrap();
    let ran = fs(&s, &["cp", "i:data", "copy"]);
    for part in [
        "copy exists already, so they are in ",
        "copy/data (FROM/. copies the content of FROM)",
    ] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    std::fs::remove_dir_all(s.path("copy/data")).unwrap();
    fs(&s, &["cp", "i:data/.", "copy"]).fails(2, &["copy/sub/b is there already"]);
    let ran = fs(&s, &["cp", "--overwrite", "i:data/.", "copy"]);
    assert!(!ran.err.contains("exists already"), "{ran:?}");
    ran.ok();
    assert_eq!(
        harness::tree(&s.path("copy")),
        harness::tree(&s.path("data"))
    );
    // The same in the other direction, and into a directory that does not exist.
    fs(&s, &["cp", "--overwrite", "data/.", "i:data"]).ok();
    fs(&s, &["cp", "data/./", "i:again"]).ok();
    assert_eq!(
        fs(&s, &["ls", "-r", "i"]).text(),
        "again/\nagain/a\nagain/sub/\nagain/sub/b\ndata/\ndata/a\ndata/sub/\ndata/sub/b\n"
    );
    fs(&s, &["cp", "data/a/.", "i:c"]).fails(2, &["is a file"]);
    // A file is copied into an existing directory, as in Unix.
    let ran = fs(&s, &["cp", "--overwrite", "i:data/a", "copy"]);
    assert!(!ran.err.contains("exists already"), "{ran:?}");
}
