//! Images with the real binary: made by the first command, shown, copied, checked, grown, and
//! refused with a message.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the host's files by hand"
)]

mod harness;
use harness::{Scratch, ended, fs, json, serving, stop};
use std::process::Stdio;

const NONE: [&str; 0] = [];

/// Runs a command on the store in the image `i`.
fn on(s: &Scratch, command: &str, args: &[&str]) -> harness::Ran {
    s.run(command, ["--image", "i"].iter().chain(args))
}

#[test]
fn the_first_command_creates_the_image_that_later_ones_use() {
    let s = Scratch::new("image");
    on(&s, "get", &["a"]).fails(2, &["there is no image i", "basalt fs format i --size"]);
    on(&s, "put", &["a", "1"]).fails(2, &["there is no image i", "--size 20G"]);
    let ran = on(&s, "put", &["a", "1", "--size", "64M"]);
    assert!(ran.err.contains("made i, 64.00 MiB"), "{}", ran.err);
    ran.ok();
    assert_eq!(on(&s, "get", &["a"]).ok(), b"1");
    // The same size again does no harm. Another size is a mistake.
    on(&s, "put", &["b", "2", "--size", "64M"]).ok();
    on(&s, "put", &["b", "2", "--size", "65M"])
        .fails(2, &["i has 64M", "basalt fs grow i --size 65M"]);
    s.run("put", ["c", "3", "--size", "64M"])
        .code
        .filter(|c| *c == 2)
        .expect("--size needs --image");
    s.file("directory/x", vec![7; 100_000]);
    on(&s, "load", &["--files", "directory", "--prefix", "f/"]).ok();
    assert_eq!(on(&s, "scan", &["--keys-only"]).text(), "a\nb\nf/x\n");
    on(&s, "export", &["--files", "out", "--prefix", "f/"]).ok();
    assert_eq!(harness::tree(&s.path("out")).len(), 1);
    on(&s, "compact", &[]).ok();
    let made = on(&s, "checkpoint", &["copy"]).ok();
    assert!(made.starts_with(b"i:copy: "), "it lies in the image");
    on(&s, "repair", &["--yes"]).ok();
    on(&s, "blob", &["list"]).ok();
    on(&s, "blob", &["verify"]).ok();
    on(&s, "del", &["a"]).ok();
    let stats = json(on(&s, "stats", &["--json"]));
    assert!(
        stats["filesystem"]
            .as_str()
            .unwrap()
            .contains("LavaFS on image i")
    );
    let text = on(&s, "stats", &["--prometheus"]).ok();
    let text = String::from_utf8(text).unwrap();
    for name in [
        "lava_free_bytes",
        "lava_written_bytes{cause=\"journal\"}",
        "lava_sync_us",
    ] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
    assert!(
        String::from_utf8(on(&s, "check", &[]).ok())
            .unwrap()
            .contains("db in i is sound")
    );
    // No file of the store lies beside the image.
    let names: Vec<_> = harness::tree(&s.dir).into_iter().map(|(n, _)| n).collect();
    assert!(names.iter().all(|n| !n.starts_with("db")), "{names:?}");
    let report = json(fs(&s, &["check", "i", "--json"]));
    assert_eq!(report["sound"], true);
    assert_eq!(report["clean"], true);
    s.run("scan", NONE).fails(2, &["there is no store in db"]);
}

#[test]
fn files_are_copied_into_and_out_of_an_image() {
    let s = Scratch::new("copy");
    for (key, value) in [("a", "1"), ("b", "2")] {
        s.run("put", [key, value]).ok();
    }
    fs(&s, &["format", "i"]).fails(2, &["--size 20G"]);
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    fs(&s, &["cp", "db", "nowhere"]).fails(2, &["IMAGE:PATH"]);
    fs(&s, &["cp", "db", "i:store"]).ok();
    assert_eq!(
        on(&s, "get", &["a"]).code,
        Some(2),
        "it is in another directory"
    );
    let ran = fs(&s, &["ls", "i", "store"]);
    assert!(ran.text().contains("CURRENT\n"), "{}", ran.text());
    let all = json(fs(&s, &["ls", "i", "-r", "--json"]));
    assert!(
        all["entries"]
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["path"] == "store/CURRENT")
    );
    let current = fs(&s, &["cat", "i", "store/CURRENT"]).ok();
    assert_eq!(current, std::fs::read(s.path("db/CURRENT")).unwrap());
    let stat = json(fs(&s, &["stat", "i", "store/CURRENT", "--json"]));
    assert_eq!(stat["bytes"].as_u64(), Some(current.len() as u64));
    assert_eq!(stat["extents"].as_array().unwrap().len(), 1);
    fs(&s, &["cp", "i:store", "back"]).ok();
    let left = |name: &str| {
        let all = harness::tree(&s.path(name));
        all.into_iter()
            .map(|(n, bytes)| (n.file_name().map(|n| n.to_owned()), bytes))
            .collect::<Vec<_>>()
    };
    assert_eq!(left("db"), left("back"));
    // An existing directory takes the copy under its own name. An existing file stays.
    fs(&s, &["cp", "i:store/CURRENT", "back"]).fails(2, &["is there already", "--overwrite"]);
    fs(&s, &["cp", "i:store/CURRENT", "back", "--overwrite"]).ok();
    fs(&s, &["cp", "i:store", "back"]).ok();
    assert!(s.path("back/store/CURRENT").exists());
    // Links are not followed, the image is not copied into itself, and a store in use stays.
    std::os::unix::fs::symlink("..", s.path("back/up")).unwrap();
    let ran = fs(&s, &["cp", "back", "i:again"]);
    assert!(ran.err.contains("1 entry left out"), "{ran:?}");
    ran.ok();
    let ran = fs(&s, &["cp", ".", "i:all"]);
    assert!(ran.err.contains("2 entries left out"), "{ran:?}");
    ran.ok();
    let server = serving(&s, &[]);
    fs(&s, &["cp", "db", "i:busy"]).fails(2, &["in use"]);
    stop(server);
    fs(&s, &["cat", "i", "none"]).fails(2, &["there is no none in i", "basalt fs ls i"]);
    fs(&s, &["cp", "i:none", "x"]).fails(2, &["there is no none in i"]);
    fs(&s, &["ls", "i", "../up"]).fails(2, &["upward"]);
}

#[test]
fn an_image_has_one_owner_and_foreign_data_is_not_formatted() {
    let s = Scratch::new("owner");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    fs(&s, &["format", "i", "--size", "64M"]).fails(2, &["a Basalt image with 0 files", "--force"]);
    on(&s, "put", &["a", "1"]).ok();
    // Two processes cannot open the image.
    let server = serving(&s, &["--image", "i"]);
    on(&s, "put", &["b", "2"]).fails(
        2,
        &["the image i is in use by process", "basalt", "stop it"],
    );
    on(&s, "get", &["a"]).fails(2, &["the image i is in use by process"]);
    for command in [
        vec!["check", "i"],
        vec!["ls", "i"],
        vec!["grow", "i", "--size", "128M"],
        vec!["format", "i", "--force"],
    ] {
        fs(&s, &command).fails(2, &["in use by process"]);
    }
    stop(server);
    let ran = fs(&s, &["grow", "i", "--size", "128M"]);
    assert!(
        ran.text().contains("i has 128.00 MiB, 64.00 MiB more"),
        "{}",
        ran.text()
    );
    fs(&s, &["grow", "i", "--size", "64M"]).fails(2, &["cannot be made smaller"]);
    assert_eq!(on(&s, "get", &["a"]).ok(), b"1");
    let report = json(fs(&s, &["report", "i", "--json"]));
    assert_eq!(report["total_bytes"].as_u64(), Some(128 << 20));
    fs(&s, &["format", "i", "--force"]).ok();
    on(&s, "get", &["a"]).fails(2, &["there is no store db in i"]);
}

#[test]
fn a_damaged_image_is_reported_and_not_written() {
    let s = Scratch::new("damage");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    for n in 0..50 {
        on(&s, "put", &[&format!("k{n}"), "value"]).ok();
    }
    let whole = std::fs::read(s.path("i")).unwrap();
    let mut found = 0;
    for at in (0..4 << 20).step_by(4096) {
        if whole[at..at + 4096].iter().all(|b| *b == 0) {
            continue;
        }
        let mut flipped = whole.clone();
        flipped[at + 60] ^= 0x10;
        std::fs::write(s.path("i"), &flipped).unwrap();
        let ran = fs(&s, &["check", "i"]);
        match ran.code {
            Some(0) => continue,
            Some(1) => {}
            other => panic!("{other:?}: {ran:?}"),
        }
        assert!(ran.text().contains("damage: "), "{}", ran.text());
        on(&s, "put", &["x", "y"]).fails(2, &["the image i is damaged", "basalt fs check i"]);
        assert_eq!(
            std::fs::read(s.path("i")).unwrap(),
            flipped,
            "nothing was written"
        );
        found += 1;
    }
    assert!(found > 3, "{found} pages of metadata");
}

/// Regression test: the image was made before the server found that it cannot listen.
#[test]
fn a_server_that_cannot_listen_makes_no_image() {
    let s = Scratch::new("listen");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = &taken.local_addr().unwrap().to_string();
    let image = ["--image", "i", "--size", "64M", "--listen"];
    for (listen, says) in [(taken.as_str(), "in use"), ("0.0.0.0:7401", "no password")] {
        s.run("serve", image.iter().chain(&[listen]))
            .fails(2, &[says, "--listen"]);
        assert!(!s.path("i").exists());
    }
}

#[test]
fn directories_and_files_of_an_image_are_made_and_removed() {
    let s = Scratch::new("remove");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    on(&s, "put", &["a", "1"]).ok();
    on(&s, "checkpoint", &["monday"]).ok();
    fs(&s, &["mkdir", "i", "old/deep", "/other"]).ok();
    fs(&s, &["mkdir", "i", "old"]).ok();
    s.file("x", b"content");
    fs(&s, &["cp", "x", "i:old/deep"]).ok();
    fs(&s, &["mkdir", "i", "old/deep/x/y"]).fails(2, &["old/deep/x/y", "is a file"]);
    fs(&s, &["rm", "i", "old"]).fails(2, &["old in i is a directory", "-r"]);
    fs(&s, &["rm", "-r", "i", "old", "none"]).fails(2, &["there is no none in i"]);
    fs(&s, &["rm", "-r", "i", "/"]).fails(2, &["the root of i"]);
    fs(&s, &["rm", "-r", "i", "old/../other"]).fails(2, &["upward"]);
    assert_eq!(
        fs(&s, &["cat", "i", "old/deep/x"]).ok(),
        b"content",
        "what is refused removes nothing"
    );
    // A path below another one is removed with it.
    let ran = fs(&s, &["rm", "-r", "i", "old/deep/x", "old", "/old"]);
    assert!(
        ran.err
            .contains("removed 1 file and 2 directories from i, 4.00 KiB freed"),
        "{ran:?}"
    );
    ran.ok();
    // The store still works with the files that its checkpoint shared.
    let ran = fs(&s, &["rm", "-r", "i", "monday"]);
    assert!(ran.err.contains("under another name"), "{ran:?}");
    ran.ok();
    assert_eq!(on(&s, "get", &["a"]).ok(), b"1");
    let server = serving(&s, &["--image", "i"]);
    fs(&s, &["rm", "-r", "i", "db"]).fails(2, &["in use by process"]);
    stop(server);
    fs(&s, &["rm", "-r", "i", "db"]).ok();
    assert_eq!(fs(&s, &["ls", "i"]).text(), "other/\n");
    fs(&s, &["check", "i"]).ok();
}

#[test]
fn a_full_image_error_gives_the_remedy_and_deletes_work() {
    let s = Scratch::new("full");
    fs(&s, &["format", "i", "--size", "64M", "--sparse"]).ok();
    on(&s, "put", &["a", "1"]).ok();
    s.file("x", vec![1; 8 << 20]);
    let full = (0..10)
        .map(|n| fs(&s, &["cp", "x", &format!("i:x{n}")]))
        .find(|ran| ran.code != Some(0))
        .expect("so many do not fit");
    full.fails(
        2,
        &[
            "the image i is full, and i:x",
            "was not made or replaced",
            "`basalt fs rm -r i PATH`",
            "`basalt fs grow i --size 128M`",
        ],
    );
    s.file("v", vec![2; 4 << 20]);
    s.file("y", vec![1; 3 << 20]);
    fs(&s, &["cp", "y", "i:y"]).ok();
    on(&s, "put", &["v", "--value-file", "v"]).fails(
        2,
        &[
            "the image i is full",
            "MiB are free",
            "basalt compact --image i",
            "`basalt fs rm -r i PATH`",
            "`basalt fs grow i --size N`",
        ],
    );
    on(&s, "del", &["a"]).ok();
    on(&s, "compact", &[]).ok();
    fs(&s, &["rm", "i", "x0", "x1"]).ok();
    on(&s, "put", &["v", "--value-file", "v"]).ok();
    // A part of the directory exists.
    for n in 0..5 {
        s.file(format!("many/{n}"), vec![3; 4 << 20]);
    }
    fs(&s, &["cp", "many", "i:"]).fails(
        2,
        &[
            "the image i is full, and i:many is incomplete: ",
            " MiB were copied",
            "remove it with `basalt fs rm -r i many`",
            "`basalt fs grow i --size 128M`, and finish it with `basalt fs cp --overwrite ",
            "many/. i:many`",
        ],
    );
    // The message does not advise to remove what existed before the copy.
    let ran = fs(&s, &["cp", "--overwrite", "many/.", "i:many"]);
    assert!(ran.err.contains("fs rm -r i PATH`"), "{ran:?}");
    fs(&s, &["rm", "-r", "i", "many"]).ok();
}

/// Kills the tool while it copies to a directory of the disk, where it leaves a file. `made` is
/// what a copy makes that ends before the kill.
fn cut_off(s: &Scratch, args: &[&str], dir: &str, made: &str) {
    for _ in 0..100 {
        let mut tool = std::process::Command::new(env!("CARGO_BIN_EXE_basalt"));
        let tool = tool.current_dir(&s.dir).arg("fs").args(args);
        let mut child = tool.stderr(std::process::Stdio::null()).spawn().unwrap();
        let is_left = || {
            let there = s.path(dir).exists();
            there && leftovers(s, dir).iter().any(|name| name.contains(".cp-"))
        };
        while !is_left() && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
        if is_left() {
            return;
        }
        let made = s.path(made);
        let _ = std::fs::remove_file(&made).or_else(|_| std::fs::remove_dir_all(&made));
    }
    panic!("every copy ended before it was killed");
}

/// Returns the names in a directory of the disk that interrupted copies leave.
fn leftovers(s: &Scratch, dir: &str) -> Vec<String> {
    let all = std::fs::read_dir(s.path(dir)).unwrap();
    let names = all.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.contains("unfinished")).collect()
}

#[test]
fn a_copy_replaces_the_leftovers_of_an_interrupted_one() {
    let s = Scratch::new("takeover");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    s.file("from/large", vec![7; 20 << 20]);
    s.file("from/small", b"small");
    // A temporary name of an older version has no special meaning.
    s.file("from/small.unfinished", b"mine");
    fs(&s, &["cp", "from", "i:"]).ok();
    std::fs::create_dir(s.path("out")).unwrap();
    cut_off(&s, &["cp", "i:from/large", "out"], "out", "out/large");
    assert_eq!(leftovers(&s, "out").len(), 1);
    fs(&s, &["cp", "i:from/large", "out"]).ok();
    assert_eq!(leftovers(&s, "out"), [""; 0]);
    assert_eq!(
        std::fs::read(s.path("out/large")).unwrap(),
        vec![7; 20 << 20]
    );
    // A copy of another file, and then of a whole directory, removes leftovers as well.
    std::fs::remove_file(s.path("out/large")).unwrap();
    cut_off(&s, &["cp", "i:from/large", "out"], "out", "out/large");
    let left = leftovers(&s, "out").pop().unwrap();
    fs(&s, &["cp", "i:from/small", "out"]).ok();
    assert_eq!(leftovers(&s, "out"), [""; 0]);
    cut_off(&s, &["cp", "i:from", "out"], "out/from", "out/from");
    assert_eq!(leftovers(&s, "out/from").len(), 1);
    fs(&s, &["cp", "i:from", "out"]).ok();
    assert_eq!(leftovers(&s, "out/from"), ["small.unfinished"]);
    fs(&s, &["rm", "i", "from/small.unfinished"]).ok();
    // A file that another process still writes is locked.
    std::fs::remove_dir_all(s.path("out")).unwrap();
    let held = s.file(format!("out/{left}"), b"");
    let fd = std::fs::File::open(&held).unwrap();
    rustix::fs::flock(&fd, rustix::fs::FlockOperation::LockShared).unwrap();
    fs(&s, &["cp", "i:from/small", "out"]).ok();
    fs(&s, &["cp", "i:from/large", "out"]).fails(2, &["another `basalt fs cp`"]);
    drop(fd);
    fs(&s, &["cp", "i:from/large", "out"]).ok();
    assert_eq!(leftovers(&s, "out"), [""; 0]);
    // In an image, only a crash leaves such a file.
    fs(&s, &["cp", "from/small", &format!("i:{left}")]).ok();
    fs(&s, &["cp", "from/large", "i:"]).ok();
    assert_eq!(fs(&s, &["ls", "i"]).text(), "from/\nlarge\n");
    // Such files are not copied into an image.
    s.file(format!("from/{left}"), b"");
    let ran = fs(&s, &["cp", "from", "i:again"]);
    assert!(ran.err.contains("1 entry left out"), "{ran:?}");
    assert!(!fs(&s, &["ls", "i", "again"]).text().contains(".cp-"));
}

#[test]
fn named_links_are_followed_to_a_file_or_directory() {
    let s = Scratch::new("named");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    s.file("real/x", b"content");
    std::os::unix::fs::symlink("real", s.path("link")).unwrap();
    std::os::unix::fs::symlink("real/x", s.path("file")).unwrap();
    std::os::unix::fs::symlink("nowhere", s.path("dangling")).unwrap();
    fs(&s, &["cp", "link", "i:store"]).ok();
    fs(&s, &["cp", "file", "i:"]).ok();
    assert_eq!(fs(&s, &["ls", "-r", "i"]).text(), "file\nstore/\nstore/x\n");
    let made = std::process::Command::new("mkfifo")
        .arg(s.path("real/pipe"))
        .status();
    assert!(made.unwrap().success());
    fs(&s, &["cp", "real/pipe", "i:p"]).fails(2, &["real/pipe is a pipe"]);
    fs(&s, &["cp", "/dev/null", "i:p"]).fails(2, &["/dev/null is a pipe"]);
    fs(&s, &["cp", "i", "i:p"]).fails(2, &["the image itself"]);
    fs(&s, &["cp", "dangling", "i:p"]).fails(2, &["there is no dangling"]);
    let ran = fs(&s, &["cp", "link", "i:again"]);
    assert!(
        ran.err.contains("1 file copied to i:again, "),
        "where it lies: {ran:?}"
    );
    assert!(ran.err.contains("1 entry left out"), "{ran:?}");
    ran.ok();
    // Only files are replaced.
    fs(&s, &["cp", "--overwrite", "i:file", "real/pipe"]).fails(2, &["is a pipe", "not replaced"]);
    fs(&s, &["cp", "--overwrite", "i:file", "i"]).fails(2, &["the image itself"]);
    // A link to nothing occupies its name.
    fs(&s, &["cp", "i:file", "dangling"]).fails(2, &["is there already", "--overwrite"]);
    assert!(s.path("dangling").is_symlink() && !s.path("nowhere").exists());
    fs(&s, &["cp", "i:store", "dangling"]).fails(2, &["a link that leads to no directory"]);
    fs(&s, &["cp", "i:file", "dangling", "--overwrite"]).ok();
    fs(&s, &["cp", "i:store", "dangling"]).fails(2, &["dangling is a file"]);
    assert_eq!(std::fs::read(s.path("dangling")).unwrap(), b"content");
    // Missing directories above a target are not made.
    fs(&s, &["cp", "i:file", "nodir/deep/x"]).fails(2, &["there is no directory", "nodir/deep"]);
    fs(&s, &["cp", "i:store", "nodir/deep"]).fails(2, &["there is no directory", "nodir"]);
    fs(&s, &["cp", "real/x", "i:nodir/deep/x"]).fails(
        2,
        &[
            "there is no directory i:nodir/deep",
            "basalt fs mkdir i nodir/deep",
        ],
    );
    fs(&s, &["cp", "real", "i:nodir/deep"]).fails(2, &["there is no directory i:nodir"]);
    fs(&s, &["cp", "real/x", "i:file/x"]).fails(2, &["no directory"]);
    assert!(!s.path("nodir").exists());
}

#[test]
fn names_that_are_not_utf8_are_skipped_and_long_names_are_kept() {
    use std::os::unix::ffi::OsStrExt;
    let s = Scratch::new("names");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    let long = "n".repeat(255);
    s.file(format!("from/{long}"), b"long");
    s.file("from/sub/good", b"good");
    s.file("from/\u{fffd}", b"text");
    let bad = std::ffi::OsStr::from_bytes(b"bad\xff");
    s.file(std::path::Path::new("from").join(bad), b"bad");
    std::fs::create_dir(s.path("from/sub").join(bad)).unwrap();
    let ran = fs(&s, &["cp", "from", "i:"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for part in [
        "3 files copied to i:from",
        "the copy is incomplete",
        "2 entries are left out",
        "from/bad\\xff",
        "from/sub/bad\\xff",
    ] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    fs(&s, &["cp", "i:from", "back"]).ok();
    assert_eq!(std::fs::read(s.path("back").join(&long)).unwrap(), b"long");
    assert_eq!(std::fs::read(s.path("back/sub/good")).unwrap(), b"good");
    assert_eq!(std::fs::read(s.path("back/\u{fffd}")).unwrap(), b"text");
    // Names with control characters are shown escaped, as by `scan`.
    s.file("from/\u{1b}[2J", b"");
    fs(&s, &["cp", "from/\u{1b}[2J", "i:sly\n"]).ok();
    assert_eq!(fs(&s, &["ls", "i"]).text(), "from/\nsly\\n\n");
}

#[test]
fn deeply_nested_directories_are_supported() {
    let s = Scratch::new("deep");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    let deep = vec!["d"; 1500].join("/");
    fs(&s, &["mkdir", "i", &deep]).ok();
    let ran = fs(&s, &["ls", "-r", "i"]);
    assert_eq!(ran.text().lines().count(), 1500);
    assert_eq!(ran.text().lines().last(), Some(&*format!("{deep}/")));
    let ran = fs(&s, &["rm", "-r", "i", "d"]);
    assert!(ran.err.contains("1500 directories"), "{ran:?}");
    assert_eq!(fs(&s, &["ls", "i"]).text(), "");
}

#[test]
fn missing_directories_and_foreign_images_are_reported() {
    let s = Scratch::new("foreign");
    for command in [
        ["format", "none/i", "--size", "20M"].as_slice(),
        &["ls", "none/i"],
        &["check", "none/i"],
    ] {
        fs(&s, command).fails(2, &["the directory none is not there"]);
    }
    for command in [
        ["a", "1", "--image", "none/i"].as_slice(),
        &["a", "1", "--image", "none/i", "--size", "20M"],
    ] {
        s.run("put", command)
            .fails(2, &["the directory none is not there"]);
    }
    s.file("i", vec![7; 4 << 20]);
    for ran in [
        fs(&s, &["ls", "i"]),
        fs(&s, &["check", "i"]),
        fs(&s, &["rm", "i", "x"]),
        fs(&s, &["grow", "i", "--size", "64M"]),
        on(&s, "get", &["a"]),
        on(&s, "put", &["a", "1"]),
    ] {
        assert!(!ran.err.contains("force"), "{ran:?}");
        ran.fails(2, &["i is not a Basalt image", "headers"]);
    }
    fs(&s, &["format", "i"]).fails(2, &["not a Basalt image", "--force"]);
    assert_eq!(std::fs::read(s.path("i")).unwrap(), vec![7; 4 << 20]);
    // Sizes are in the form for people, and no advice is impossible to follow.
    fs(&s, &["format", "large", "--size", "20T"]).fails(2, &["no room for 20.00 TiB more"]);
    fs(&s, &["format", "i", "--size", "64M", "--force"]).ok();
    on(&s, "put", &["a", "1", "--size", "3G"]).fails(
        2,
        &[
            "i has 64M, and --size says 3G",
            "basalt fs grow i --size 3G",
        ],
    );
    let ran = on(&s, "put", &["a", "1", "--size", "32M"]);
    assert!(!ran.err.contains("grow"), "{ran:?}");
    ran.fails(
        2,
        &["i has 64M, and --size says 32M", "cannot be made smaller"],
    );
    fs(&s, &["grow", "i", "--size", "32M"]).fails(2, &["it has 64.00 MiB"]);
}

/// Regression test: the advice was to make an image with the name `i:db`, or to format a file that
/// may have been an image.
#[test]
fn the_advice_for_a_missing_image_is_harmless() {
    let s = Scratch::new("advice");
    on(&s, "put", &["a", "1", "--size", "64M"]).ok();
    let says = [
        "there is no image i:db/x; ",
        "`basalt fs ls i db/x`",
        "--dir db/x",
    ];
    fs(&s, &["ls", "i:db/x"]).fails(2, &says);
    fs(&s, &["check", "i:db/x"]).fails(2, &says);
    s.run("put", ["a", "1", "--image", "i:db/x", "--size", "64M"])
        .fails(2, &says);
    assert!(!s.path("i:db").exists());
    s.file("empty", b"");
    fs(&s, &["ls", "empty"]).fails(
        2,
        &["empty is empty", "`basalt fs format empty --size 20G`"],
    );
    s.file("headless", vec![0; 4 << 20]);
    for command in ["ls", "check"] {
        let ran = fs(&s, &[command, "headless"]);
        assert!(!ran.err.contains("format"), "{ran:?}");
        ran.fails(
            2,
            &[
                "headless is not a Basalt image",
                "its head is damaged",
                "backup",
            ],
        );
    }
}

#[test]
fn a_location_in_an_image_is_image_colon_path() {
    let s = Scratch::new("places");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    fs(&s, &["mkdir", "i", "other"]).ok();
    let at_root = |command: &str, args: &[&str]| {
        let mut c = std::process::Command::new(env!("CARGO_BIN_EXE_basalt"));
        c.current_dir(&s.dir)
            .args([command, "--image", "i", "--dir", "."])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ended(c.spawn().expect("the tool starts"))
    };
    at_root("get", &["a"]).fails(2, &["in the root of i"]);
    at_root("put", &["a", "1"]).fails(2, &["the root of i holds files and no store (other)"]);
    fs(&s, &["rm", "-r", "i", "other"]).ok();
    at_root("put", &["a", "1"]).ok();
    assert_eq!(json(at_root("check", &["--json"]))["dir"], "/");
    on(&s, "put", &["b", "2"]).ok();
    assert_eq!(json(on(&s, "check", &["--json"]))["dir"], "db");
    let stats = on(&s, "stats", &[]);
    assert!(stats.text().starts_with("db in i ("), "{}", stats.text());
    // Bytes are those of a file. Of a directory, the number was that of its names.
    let names = fs(&s, &["ls", "i"]).text().lines().count();
    let stat = json(fs(&s, &["stat", "i", "--json"]));
    assert_eq!(stat["bytes"], 0);
    assert_eq!(stat["names_in_it"], names);
    let ran = fs(&s, &["stat", "i"]);
    assert!(ran.text().starts_with("the root of i\n"), "{}", ran.text());
    for line in ran.text().lines().skip(1) {
        assert_eq!(line.as_bytes()[13], b' ', "{line}");
        assert_ne!(line.as_bytes()[14], b' ', "{line}");
    }
    on(&s, "checkpoint", &["/backup/x"]).fails(
        2,
        &[
            "i has no directory /backup",
            "inside of the image",
            "basalt fs cp i:",
        ],
    );
    let ran = s.run("checkpoint", ["--help"]);
    assert!(ran.text().contains("--image store.lava"), "{}", ran.text());
}

#[test]
fn a_length_left_inexact_by_a_crash_is_marked() {
    let s = Scratch::new("vague");
    fs(&s, &["format", "i", "--size", "64M"]).ok();
    let mut server = serving(&s, &["--image", "i"]);
    server.kill().unwrap();
    server.wait().unwrap();
    let ran = fs(&s, &["ls", "-l", "i", "db"]);
    assert!(ran.text().contains("+ "), "{}", ran.text());
    let all = json(fs(&s, &["ls", "-r", "i", "--json"]));
    let all = all["entries"].as_array().unwrap();
    assert!(all.iter().any(|e| e["length_is_exact"] == false));
    assert!(all.iter().any(|e| e["length_is_exact"] == true));
}
