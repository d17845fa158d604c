//! Tests of the module `directory`.

use super::*;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir =
            std::env::temp_dir().join(format!("basalt-directory-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    fn file(&self, path: &[u8], content: &[u8]) {
        let path = self.0.join(std::ffi::OsStr::from_bytes(path));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn paths(walk: &mut DirectoryWalk) -> Vec<String> {
    walk.by_ref().map(|f| brief(&f.unwrap().path)).collect()
}

#[test]
fn a_directory_walk_is_sorted_by_path_and_counts_skipped_files() {
    let s = Scratch::new("walk");
    for path in ["b", "a/z", "a.txt", "a/b/c", "a-", "store/x"] {
        s.file(path.as_bytes(), b"1");
    }
    s.file(b"bad\xffname", b"");
    std::fs::create_dir_all(s.0.join("empty/emptier")).unwrap();
    std::os::unix::fs::symlink("b", s.0.join("link")).unwrap();
    std::os::unix::fs::symlink("..", s.0.join("a/up")).unwrap();
    let store = s.0.join("store");
    let mut walk = DirectoryWalk::new(&s.0, false, Some(&store)).unwrap();
    let expect = ["a-", "a.txt", "a/b/c", "a/z", "b", "bad\\xffname"];
    assert_eq!(paths(&mut walk), expect);
    let left_out = LeftOut {
        links: 2,
        special: 0,
        empty_dirs: 2,
        stores: 1,
    };
    assert_eq!(walk.left_out, left_out);
    let mut walk = DirectoryWalk::new(&s.0, true, Some(&store)).unwrap();
    assert_eq!(
        paths(&mut walk),
        ["a-", "a.txt", "a/b/c", "a/z", "b", "bad\\xffname", "link"]
    );
    assert_eq!(walk.left_out.links, 1, "the link back to its own ancestor");
    assert_eq!(measure(&s.0, false, Some(&store)), (6, 5));
}

#[test]
fn no_file_is_written_outside_the_directory() {
    let s = Scratch::new("outside");
    let inside = s.0.join("in");
    let mut w = DirectoryWriter::new(&inside, false).unwrap().unwrap();
    std::os::unix::fs::symlink("..", inside.join("up")).unwrap();
    std::os::unix::fs::symlink("../gone", inside.join("dangling")).unwrap();
    for key in [
        &b""[..],
        b"/etc/x",
        b"..",
        b"../x",
        b"a/../../x",
        b"a//b",
        b"a/",
        b"./a",
        b"a\0b",
        b"up/x",
        b"dangling",
    ] {
        match w.write(key, b"x") {
            Err(Refused::Key(_)) => {}
            other => panic!("{key:?}: {other:?}"),
        }
    }
    assert!(matches!(w.write(&[b'n'; 300], b"x"), Err(Refused::Key(_))));
    w.write(b"f", b"x").unwrap();
    assert!(matches!(w.write(b"f/g", b"x"), Err(Refused::Key(_))));
    w.write(b"d/e", b"x").unwrap();
    assert!(matches!(w.write(b"d", b"x"), Err(Refused::Key(_))));
    let mut w = DirectoryWriter::new(&inside, true).unwrap().unwrap();
    w.write(b"dangling", b"now a file").unwrap();
    assert!(matches!(w.write(b"up/x", b"x"), Err(Refused::Key(_))));
    assert_eq!(
        std::fs::read(inside.join("dangling")).unwrap(),
        b"now a file"
    );
    let names: Vec<_> = std::fs::read_dir(&s.0).unwrap().collect();
    assert_eq!(names.len(), 1, "only the directory itself: {names:?}");
}

#[test]
fn any_directory_is_loaded_and_exported_identically() {
    let s = Scratch::new("round");
    let random = basalt::env::Random::from_seed(4);
    for i in 0..200 {
        let depth = random.below(4);
        let mut path = Vec::new();
        for _ in 0..depth {
            path.extend_from_slice(format!("d{}/", random.below(3)).as_bytes());
        }
        path.extend_from_slice(format!("f{i}").as_bytes());
        path.push(b'\x80' + random.below(100) as u8);
        let content = vec![i as u8; random.below(5000) as usize];
        s.file(&[b"from/", &path[..]].concat(), &content);
    }
    let (from, to) = (s.0.join("from"), s.0.join("deep/er/to"));
    let mut w = DirectoryWriter::new(&to, false).unwrap().unwrap();
    for f in DirectoryWalk::new(&from, false, None).unwrap() {
        let mut f = f.unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut f.file, &mut content).unwrap();
        w.write(&f.path, &content).unwrap();
    }
    w.sync().unwrap();
    assert!(!is_inside(&to, &from) && is_inside(&to, &to) && is_inside(&to, &s.0));
    assert!(
        DirectoryWriter::new(&to, false).unwrap().is_none(),
        "it is not empty"
    );
    let diff = std::process::Command::new("diff")
        .arg("-r")
        .arg(&from)
        .arg(&to)
        .output();
    if let Ok(diff) = diff {
        assert!(diff.status.success(), "{diff:?}");
    }
}
