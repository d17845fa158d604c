//! Windows for small appends to new logs without a sync soon after. Readers see the bytes at once,
//! windows end when they must, and a refused window does no harm.
#![expect(clippy::disallowed_methods, reason = "these tests inspect real files")]

use super::*;

/// Returns a new log for appends without a sync. It has windows on any filesystem.
pub(super) fn mapped_log(fs: &HostFs, name: &str) -> Arc<dyn File> {
    fs.shared.sys.map_anywhere.store(true, SeqCst);
    log(fs, name, 0, None)
}

#[test]
fn small_lazy_appends_need_no_write_call_and_are_visible() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = mapped_log(&fs, "1.log");
    let before = fs.stats();
    let mut model = Vec::new();
    // The appends cross several windows, and several allocations of space.
    for i in 0..30_000_u64 {
        let bytes = pattern(3, model.len() as u64, 1 + (i * 7 % 300) as usize);
        assert_eq!(put(&f, &bytes, Intent::Lazy), model.len() as u64);
        model.extend_from_slice(&bytes);
    }
    let after = fs.stats();
    assert_eq!(after.writes, before.writes);
    assert_eq!(
        after.bytes_written - before.bytes_written,
        model.len() as u64
    );
    assert_eq!(f.len(), model.len() as u64);
    assert!(f.read(0, model.len()).unwrap()[..] == model[..]);
    let other = fs.open(Path::new("1.log")).unwrap();
    assert!(other.read(0, model.len()).unwrap()[..] == model[..]);
    let on_disk = std::fs::read(dir.0.join("1.log")).unwrap();
    assert!(on_disk[..model.len()] == model[..], "another process");
    assert!(on_disk[model.len()..].iter().all(|b| *b == 0));
    assert!(on_disk.len() <= model.len() + (1 << 20) + 4096);
    // Every page is allocated, so a store into one cannot meet a full disk.
    let blocks = rustix::fs::stat(dir.0.join("1.log")).unwrap().st_blocks as u64 * 512;
    assert!(blocks >= on_disk.len() as u64, "{blocks}");
    f.sync_data().unwrap();
    // A large append becomes a write between small ones, which stay in the window.
    for len in [100, 100_000, 100] {
        let bytes = pattern(3, model.len() as u64, len);
        put(&f, &bytes, Intent::Lazy);
        model.extend_from_slice(&bytes);
    }
    assert_eq!(fs.stats().writes, after.writes + 1);
    f.sync_all().unwrap();
    assert!(std::fs::read(dir.0.join("1.log")).unwrap() == model);
    put(&f, b"and on", Intent::Lazy);
    model.extend_from_slice(b"and on");
    assert!(f.read(0, 1 << 30).unwrap()[..model.len()] == model[..]);
}

#[test]
fn a_synced_append_releases_the_space_of_windows() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = mapped_log(&fs, "1.log");
    put(&f, &pattern(1, 0, 3000), Intent::Lazy);
    put(&f, &pattern(1, 3000, 2000), Intent::Lazy);
    assert!(f.allocated() >= 64 * 1024);
    let at = f.align_to_unit().unwrap();
    put(&f, &pattern(1, at, 512), Intent::Sync);
    assert_eq!(f.allocated(), 8192);
    f.sync_data().unwrap();
    // Neither this space nor the space behind it counts as written.
    assert_eq!(host(&f).written_to.load(SeqCst), 0);
    f.extend_log(256 * 1024).unwrap();
    assert_eq!(host(&f).written_to.load(SeqCst), 256 * 1024, "all of it");
    // Written space is not mapped, because its pages would first be read.
    let writes = fs.stats().writes;
    put(&f, &pattern(1, at + 512, 100), Intent::Lazy);
    assert_eq!(fs.stats().writes, writes + 1);
    let all = f.read(0, at as usize + 612).unwrap();
    assert!(all[..5000] == pattern(1, 0, 5000)[..]);
    assert!(all[at as usize..] == pattern(1, at, 612)[..]);
}

/// A store does not know how its first log will be used, so the log has some written space. Appends
/// without a sync were write calls even after it, as long as the log lasted.
#[test]
fn windows_begin_after_the_written_space_of_a_new_log() {
    const WRITTEN: u64 = 16 * 1024;
    let dir = Dir::new();
    let fs = dir.fs();
    fs.shared.sys.map_anywhere.store(true, SeqCst);
    let f = log(&fs, "1.log", WRITTEN, None);
    let before = fs.stats().writes;
    let mut len = 0;
    let mut append = |most: u64| {
        while len < most {
            put(&f, &pattern(1, len, 100), Intent::Lazy);
            len += 100;
        }
        len
    };
    let end = append(WRITTEN);
    let writes = fs.stats().writes;
    assert_eq!(writes - before, end / 100, "written space is not mapped");
    assert_eq!(host(&f).written_to.load(SeqCst), WRITTEN);
    let end = append(200 * 1024);
    assert_eq!(fs.stats().writes, writes);
    assert!(f.read(0, end as usize).unwrap()[..] == pattern(1, 0, end as usize)[..]);
    assert_eq!(
        host(&f).written_to.load(SeqCst),
        WRITTEN,
        "space of windows"
    );
    f.sync_data().unwrap();
    // A synced append ends the windows.
    let at = f.align_to_unit().unwrap();
    put(&f, &pattern(1, at, 512), Intent::Sync);
    assert!(f.allocated() < at + 512 + 4096, "{}", f.allocated());
    put(&f, &pattern(1, at + 512, 100), Intent::Lazy);
    assert!(fs.stats().writes > writes + 1);
    f.sync_all().unwrap();
    let on_disk = std::fs::read(dir.0.join("1.log")).unwrap();
    assert!(on_disk[..end as usize] == pattern(1, 0, end as usize)[..]);
    assert!(on_disk[at as usize..] == pattern(1, at, 612)[..]);
}

/// An append stored its bytes into a window whose pages had been released. On a full disk that ends
/// the process.
#[test]
fn released_space_is_not_used_by_a_window() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = mapped_log(&fs, "1.log");
    put(&f, &pattern(1, 0, 3000), Intent::Lazy);
    put(&f, &pattern(1, 3000, 2000), Intent::Lazy);
    assert!(f.allocated() >= 64 * 1024);
    let writes = fs.stats().writes;
    f.release_range(0..64 * 1024).unwrap();
    assert_eq!(f.allocated(), 8192);
    put(&f, &pattern(1, 5000, 100), Intent::Lazy);
    assert_eq!(fs.stats().writes, writes + 1);
    assert!(f.read(5000, 100).unwrap()[..] == pattern(1, 5000, 100)[..]);
}

/// Space below the size that was never written, with dirty pages over it, must not count as written
/// space.
#[test]
fn unwritten_window_space_is_not_written_space() {
    let dir = Dir::new();
    let fs = dir.fs();
    let f = mapped_log(&fs, "1.log");
    put(&f, &pattern(1, 0, 3000), Intent::Lazy);
    f.extend_log(64 * 1024).unwrap();
    let written = || host(&f).written_to.load(SeqCst);
    assert_eq!((written(), f.allocated()), (64 * 1024, 64 * 1024));
    let blocks = rustix::fs::stat(dir.0.join("1.log")).unwrap().st_blocks as u64 * 512;
    assert!(blocks >= 64 * 1024, "{blocks}");
    let at = f.align_to_unit().unwrap();
    put(&f, &pattern(1, at, 512), Intent::Sync);
    f.sync_data().unwrap();
    assert_eq!((written(), f.allocated()), (64 * 1024, 64 * 1024));
    // Past the size, a flush of the device alone does not make the new length durable.
    let end = f.len();
    put(&f, &pattern(1, end, 128 * 1024), Intent::Sync);
    assert!(!host(&f).flush_is_enough());
    f.extend_log(256 * 1024).unwrap();
    assert_eq!((written(), f.allocated()), (256 * 1024, 256 * 1024));
    let all = f.read(0, end as usize + 128 * 1024).unwrap();
    assert!(all[..3000] == pattern(1, 0, 3000)[..]);
    assert!(all[at as usize..] == pattern(1, at, 512 + 128 * 1024)[..]);
}

#[test]
fn a_log_without_a_window_is_written_by_calls() {
    for fault in [Fault::Window, Fault::Allocate(Errno::NOSPC)] {
        for first in [0, 300] {
            let dir = Dir::new();
            let fs = dir.fs();
            let f = mapped_log(&fs, "1.log");
            let writes = fs.stats().writes;
            let mut model = Vec::new();
            let append = |model: &mut Vec<u8>| {
                let bytes = pattern(1, model.len() as u64, 4000);
                assert_eq!(put(&f, &bytes, Intent::Lazy), model.len() as u64);
                model.extend_from_slice(&bytes);
            };
            for _ in 0..first {
                append(&mut model);
            }
            assert_eq!(fs.stats().writes, writes);
            fs.shared.sys.faults.lock().push_back(fault);
            let mut refused = 0;
            for _ in 0..600 {
                append(&mut model);
                refused += u64::from(fs.shared.sys.faults.lock().is_empty());
            }
            assert!(refused > 0, "{fault:?}");
            assert_eq!(fs.stats().writes, writes + refused, "{fault:?}");
            let size = rustix::fs::stat(dir.0.join("1.log")).unwrap().st_size as u64;
            assert_eq!(size, f.allocated());
            assert!(
                size <= (model.len() as u64).next_multiple_of(4096),
                "{size}"
            );
            assert!(f.read(0, model.len()).unwrap()[..] == model[..]);
            f.sync_all().unwrap();
            assert!(std::fs::read(dir.0.join("1.log")).unwrap() == model);
        }
    }
}

/// The windows of many logs, which would each grow to 256 KiB, take little memory together.
#[test]
fn windows_of_many_logs_take_little_memory_together() {
    use crate::host::append::{WINDOW_MIN, WINDOWS_MOST};
    let dir = Dir::new();
    let fs = dir.fs();
    let logs: Vec<_> = (0..100)
        .map(|n| mapped_log(&fs, &format!("{n}.log")))
        .collect();
    let piece = pattern(5, 0, 4096);
    for f in &logs {
        // A window that begins 512 KiB into the file has 256 KiB.
        for _ in 0..130 {
            put(f, &piece, Intent::Lazy);
        }
    }
    // Other tests have windows at the same time. They only leave less for these.
    let window = |f: &Arc<dyn File>| {
        host(f)
            .append_state
            .lock()
            .window
            .as_ref()
            .map(|w| w.bytes())
    };
    let held: u64 = logs.iter().filter_map(window).sum();
    let most = WINDOWS_MOST + 100 * WINDOW_MIN;
    assert!(held <= most, "{held} of {most}");
    assert!(held >= 100 * WINDOW_MIN, "windows were open: {held}");
    drop(logs);
}

/// Idle logs keep their windows for ever. A few of them must not reduce the windows of other logs
/// to the smallest size.
#[test]
fn idle_logs_do_not_shrink_the_windows_of_other_logs() {
    use crate::host::append::{WINDOW_MIN, WINDOWS_MOST, window_most};
    let mut open = 0;
    for idle in 0..1000 {
        let most = window_most(open);
        assert!(most.is_multiple_of(4096) && most >= WINDOW_MIN);
        match idle {
            0 => assert_eq!(most, 256 << 10),
            1..=17 => assert!(most >= 64 << 10, "{most} beside {idle} idle logs"),
            _ => {}
        }
        assert!(open + most <= WINDOWS_MOST || most == WINDOW_MIN);
        open += most;
    }
    assert_eq!(window_most(open), WINDOW_MIN);
}
