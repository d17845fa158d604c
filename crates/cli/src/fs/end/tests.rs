//! Tests of the module `end`.

use super::*;

/// A crash between the two steps of the rename leaves the completed copy with a second name.
/// Nothing is written through that name.
#[test]
fn a_leftover_link_to_the_finished_copy_is_removed() {
    let dir = std::env::temp_dir().join(format!("basalt-leftover-{}", std::process::id()));
    let host = HostFs::new(HostOptions::new("/")).expect("a directory");
    host.create_dir(&dir).expect("created");
    let end = End {
        fs: host.clone(),
        image: None,
        other: None,
    };
    let (copy, aside) = (dir.join("copy"), dir.join("aside"));
    let f = host.create(&copy).expect("created");
    f.append(&[std::io::IoSlice::new(b"whole")], basalt::fs::Intent::Lazy)
        .expect("written");
    f.sync_all().expect("synced");
    drop(f);
    host.link(&copy, &aside).expect("linked");
    let writing = host.lock_shared(&aside).expect("locked");
    let e = end
        .remove_leftover(&aside)
        .expect_err("another process writes the file");
    assert_eq!(e.kind(), ErrorKind::Busy);
    drop(writing);
    end.remove_leftover(&aside).expect("removed");
    end.remove_leftover(&aside).expect("nothing is there");
    let left = host.open(&copy).expect("there").read(0, 10).expect("read");
    assert_eq!(left, b"whole"[..]);
    assert!(!end.is_store_lock(&copy).expect("a file"));
    host.remove(&copy).expect("removed");
    host.remove(&dir).expect("removed");
}

#[test]
fn a_name_that_was_created_meanwhile_is_not_replaced() {
    let dir = std::env::temp_dir().join(format!("basalt-end-{}", std::process::id()));
    let fs: Arc<dyn FileSystem> = HostFs::new(HostOptions::new("/")).unwrap();
    let end = End {
        fs: Arc::clone(&fs),
        image: None,
        other: None,
    };
    let (a, b, c) = (dir.join("a"), dir.join("b"), dir.join("c"));
    fs.create_dir(&dir).unwrap();
    fs.create(&a).unwrap();
    fs.create(&b).unwrap();
    rustix::fs::symlink("nowhere", &c).unwrap();
    for taken in [&b, &c] {
        let e = end.rename_new(&a, taken).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
        assert!(end.has(&a).unwrap().is_some());
    }
    assert_eq!(end.has(&c).unwrap(), Some(Kind::Link));
    fs.remove(&b).unwrap();
    end.rename_new(&a, &b).unwrap();
    assert_eq!(end.has(&a).unwrap(), None);
    fs.remove(&b).unwrap();
    fs.remove(&c).unwrap();
    fs.remove(&dir).unwrap();
}
