//! Directories in and out with the real binary: identical, inside their directory, and complete
//! after a kill.
#![expect(
    clippy::disallowed_methods,
    reason = "tests build and look at the host's directories by hand"
)]

mod harness;
use basalt::env::{Clock, Random};
use harness::{Scratch, ended, tree};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Makes a directory of files of many sizes, with empty ones and strange names among them.
fn make_directory(s: &Scratch, files: u64, seed: u64) {
    let random = Random::from_seed(seed);
    for i in 0..files {
        let mut name = Vec::from(b"in/".as_slice());
        for _ in 0..random.below(4) {
            name.extend_from_slice(format!("dir {}/", random.below(5)).as_bytes());
        }
        name.extend_from_slice(format!("file{i}").as_bytes());
        if random.one_in(5) {
            name.extend_from_slice(b"\xff\n\\ \xc3\xa4");
        }
        let size = match random.below(10) {
            0 => 0,
            1..8 => random.below(3000),
            _ => random.below(200_000),
        };
        let content: Vec<u8> = (0..size).map(|_| random.next_u64() as u8).collect();
        s.file(std::ffi::OsStr::from_bytes(&name), content);
    }
}

#[test]
fn a_loaded_directory_is_exported_identically() {
    let s = Scratch::new("directory");
    make_directory(&s, 300, 5);
    let before = tree(&s.path("in"));
    let ran = s.run("load", ["--files", "in"]);
    assert!(ran.err.contains("loaded 300 entries"), "{}", ran.err);
    ran.ok();
    let (name, content) = before.iter().find(|(_, c)| !c.is_empty()).unwrap();
    assert_eq!(
        &s.run("get", [name.as_os_str()]).ok(),
        content,
        "the key is the relative path"
    );
    s.run("export", ["--files", "out"]).ok();
    assert_eq!(tree(&s.path("out")), before);

    s.run("export", ["--files", "out"])
        .fails(2, &["out is not empty", "--overwrite"]);
    s.file("out/file-of-mine", b"stays");
    s.run("export", ["--files", "out", "--overwrite"]).ok();
    assert_eq!(std::fs::read(s.path("out/file-of-mine")).unwrap(), b"stays");
    assert_eq!(tree(&s.path("out")).len(), before.len() + 1);

    s.run("load", ["--files", "in", "--prefix", "second/"]).ok();
    s.run("export", ["--files", "out2", "--prefix", "second/"])
        .ok();
    assert_eq!(tree(&s.path("out2")), before);
}

#[test]
fn files_that_a_store_cannot_keep_are_counted_and_reported() {
    let s = Scratch::new("odd");
    s.file("in/a", b"1");
    s.file("outside", b"2");
    std::fs::create_dir_all(s.path("in/empty")).unwrap();
    std::os::unix::fs::symlink("../outside", s.path("in/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", s.path("in/dangling")).unwrap();
    let ran = s.run("load", ["--files", "in"]);
    for part in [
        "left out 2 symbolic links",
        "left out 1 directory without files",
        "loaded 1 entry, ",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    ran.ok();
    assert_eq!(s.scan(), "a\t1\n");
    s.run("load", ["--files", "in", "--follow-symlinks"])
        .fails(2, &["in/dangling", "No such file", "--skip-bad"]);
    let ran = s.run("load", ["--files", "in", "--follow-symlinks", "--skip-bad"]);
    assert!(
        ran.err.contains("1 entry could not be stored"),
        "{}",
        ran.err
    );
    ran.ok();
    assert_eq!(s.scan(), "a\t1\nlink\t2\n");
    // The store inside the directory is not read into itself.
    s.run("del", ["a", "link"]).ok();
    let ran = s.run("load", ["--files", "."]);
    assert!(ran.err.contains("it is the store itself"), "{}", ran.err);
    ran.ok();
    assert_eq!(s.scan(), "in/a\t1\noutside\t2\n");
}

#[test]
fn a_file_too_large_is_named_before_it_is_read() {
    let s = Scratch::new("large");
    let large = std::fs::File::create(s.file("in/large", b"")).unwrap();
    large.set_len((1 << 30) + 1).unwrap();
    s.file("in/z", b"fits");
    s.run("load", ["--files", "in"])
        .fails(2, &["in/large", "1073741825 bytes", "1 GiB"]);
    s.run("load", ["--files", "in", "--skip-bad"]).ok();
    assert_eq!(s.scan(), "z\tfits\n");
}

#[test]
fn an_export_never_leaves_its_directory() {
    let s = Scratch::new("escape");
    let hostile = [
        "../up",
        "/tmp/basalt-hostile",
        "a/../../up",
        "..",
        ".",
        "a//b",
        "a/",
        "nul\\0",
        "",
        "link/inside",
        "ok/file",
        "ok",
        "plain",
    ];
    let text: String = hostile.iter().map(|k| format!("{k}\tx\n")).collect();
    s.run_with("load", ["--format", "tsv"], text.as_bytes())
        .ok();
    std::fs::create_dir_all(s.path("out")).unwrap();
    std::fs::create_dir_all(s.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", s.path("out/link")).unwrap();
    let ran = s.run("export", ["--files", "out", "--overwrite"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("not exported: ../up") && ran.err.contains("11 keys cannot be file names"),
        "{}",
        ran.err
    );
    assert_eq!(tree(&s.path("elsewhere")), []);
    assert!(!s.path("up").exists() && !Path::new("/tmp/basalt-hostile").exists());
    assert_eq!(std::fs::read(s.path("out/plain")).unwrap(), b"x");
    s.run("export", ["--files", "db/out"])
        .fails(2, &["lie one inside the other"]);
    s.run("export", ["--files", ".", "--overwrite"])
        .fails(2, &["lie one inside the other"]);
}

/// A load is killed at a random moment. After a second load the store holds the whole directory,
/// and is sound.
#[test]
fn a_load_can_be_repeated_after_a_kill() {
    let s = Scratch::new("kill");
    make_directory(&s, 400, 6);
    let before = tree(&s.path("in"));
    let seed = basalt_sim::campaign::case().map_or(7, |c| c[0]);
    let _repeat = basalt_sim::repeat!(a_load_can_be_repeated_after_a_kill, "BASALT_CASE={seed}");
    let random = Random::from_seed(seed);
    let clock = Clock::system();
    let rounds = 4 * basalt_sim::campaign::scale();
    let mut killed = 0;
    for round in 0..rounds {
        let mut child = s.command("load", ["--files", "in"]).spawn().unwrap();
        clock.sleep(std::time::Duration::from_micros(random.below(150_000)));
        let _ = child.kill();
        let ran = ended(child);
        killed += u64::from(ran.code.is_none());
        let check = s.run("check", [""; 0]);
        // If the kill came before the store was made, there is no store to check.
        let none = check.code == Some(2) && check.err.contains("there is no store");
        assert!(
            check.code == Some(0) || none,
            "seed {seed} round {round}: {check:?}"
        );
    }
    basalt_sim::campaign!("killed_loads={killed} of {rounds}");
    s.run("load", ["--files", "in"]).ok();
    s.run("export", ["--files", "out"]).ok();
    assert!(
        tree(&s.path("out")) == before,
        "seed {seed}: the directory came back different"
    );
    assert_eq!(s.run("check", [""; 0]).code, Some(0));
}
