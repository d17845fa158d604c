//! The space of logs: the rest of an earlier life, and space that is announced ahead.

use super::*;

/// Holes that `release_range` left do not count as written space when the log is reused.
#[test]
fn holes_are_cut_off_before_reuse() {
    let dir = Dir::new();
    let fs = dir.fs();
    let old = log(&fs, "1.log", 256 * 1024, None);
    put(&old, &pattern(1, 0, 200 * 1024), Intent::Sync);
    old.sync_data().unwrap();
    old.release_range(100 * 1024 + 1..140 * 1024 + 5).unwrap();
    assert!(old.read(104 * 1024, 4096).unwrap().iter().all(|b| *b == 0));
    assert!(old.read(0, 100 * 1024).unwrap()[..] == pattern(1, 0, 100 * 1024)[..]);
    assert!(old.read(140 * 1024, 1024).unwrap()[..] == pattern(1, 140 * 1024, 1024)[..]);
    // A handle that only reads has the same effect.
    let reader = fs.open(Path::new("1.log")).unwrap();
    reader.release_range(0..4096).unwrap();
    assert!(old.read(0, 4096).unwrap().iter().all(|b| *b == 0));
    drop((old, reader));
    let new = log(&fs, "2.log", 256 * 1024, Some("1.log"));
    assert_eq!(new.allocated(), 256 * 1024);
    assert_eq!(host(&new).written_to.load(SeqCst), 256 * 1024);
    assert!(new.read(0, 256 * 1024).unwrap().iter().all(|b| *b == 0));
    let blocks = rustix::fs::stat(dir.0.join("2.log")).unwrap().st_blocks as u64 * 512;
    assert!(blocks >= 256 * 1024, "only {blocks} bytes are allocated");
}

/// A few holes are filled. All of the log is written space again, and the bytes around the holes
/// stay.
#[test]
fn few_holes_are_filled_before_reuse() {
    let dir = Dir::new();
    let fs = dir.fs();
    const SIZE: u64 = 1 << 20;
    let old = log(&fs, "1.log", SIZE, None);
    let first = pattern(1, 0, SIZE as usize);
    put(&old, &first, Intent::Sync);
    old.sync_data().unwrap();
    let holes = [4096..8192, 200 << 10..240 << 10, SIZE - 8192..SIZE];
    for hole in &holes {
        old.release_range(hole.clone()).unwrap();
    }
    drop(old);
    let new = log(&fs, "2.log", 0, Some("1.log"));
    assert_eq!(new.allocated(), SIZE);
    assert_eq!(host(&new).written_to.load(SeqCst), SIZE);
    let blocks = rustix::fs::stat(dir.0.join("2.log")).unwrap().st_blocks as u64 * 512;
    assert!(blocks >= SIZE, "only {blocks} bytes are allocated");
    let got = new.read(0, SIZE as usize).unwrap();
    let zero = |at: u64| holes.iter().any(|h| h.contains(&at));
    for (at, (got, first)) in got.iter().zip(&first).enumerate() {
        let expected = if zero(at as u64) { 0 } else { *first };
        assert_eq!(*got, expected, "byte {at}");
    }
    // All space is allocated, and no hole is left for a sync to allocate.
    let hole = rustix::fs::seek(host(&new).main_fd(), rustix::fs::SeekFrom::Hole(0));
    assert_eq!(hole, Ok(SIZE));
}

/// Announced appends find their blocks allocated. `sync_all` releases the blocks that were not
/// used.
#[test]
fn announced_appends_get_space_and_the_rest_is_released() {
    let dir = Dir::new();
    let fs = dir.fs();
    let blocks = || rustix::fs::stat(dir.0.join("1.log")).unwrap().st_blocks as u64 * 512;
    let log = log(&fs, "1.log", 0, None);
    // A log begins with small appends that are not synced. They go through a window, which has
    // space of its own.
    put(&log, &pattern(1, 0, 4096), Intent::Lazy);
    log.sync_data().unwrap();
    log.expect_appends(1 << 20);
    assert_eq!((log.len(), log.allocated()), (4096, 4096));
    assert!(blocks() >= 1 << 20, "only {} bytes are allocated", blocks());
    let more = pattern(1, 4096, 300 << 10);
    put(&log, &more, Intent::Sync);
    log.sync_data().unwrap();
    assert_eq!(log.allocated(), 4096 + (300 << 10));
    assert!(blocks() >= 1 << 20);
    log.sync_all().unwrap();
    assert!(blocks() < 400 << 10, "{} bytes stay allocated", blocks());
    assert!(log.read(4096, more.len()).unwrap()[..] == more[..]);
    // If the disk has less space than announced, no space is taken.
    log.expect_appends(u64::MAX);
    assert!(blocks() < 400 << 10, "{} bytes stay allocated", blocks());
    put(&log, &more, Intent::Sync);
    log.sync_data().unwrap();
}
