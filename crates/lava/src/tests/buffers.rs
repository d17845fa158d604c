//! Tests of write buffers: buffered bytes are read, synced, closed and refused as if they had been
//! written at once.

use super::*;
use super::{by_hand, fresh, scale, with_jobs};
use basalt_fs::Intent;
use basalt_sim::rng::Rng;
use basalt_sim::{DeviceCut, DeviceFault, SimDevice};
use std::io::IoSlice;

const BUFFERS: usize = 64;

fn bulk(f: &Arc<dyn File>, bytes: &[u8]) -> Result<u64> {
    f.append(&[IoSlice::new(bytes)], Intent::Bulk)
}

fn with_threads() -> (Arc<SimDevice>, Arc<LavaFs>) {
    let device = SimDevice::new(512 << 20, 512);
    format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &with_jobs()).unwrap();
    (device, fs)
}

/// Returns the appended bytes of a file, in pieces of 1,000 bytes that name the file and the
/// offset.
fn pattern(file: usize, from: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| ((at / 1000) * 31 + at % 251 + file as u64 * 77) as u8;
    (from..from + len as u64).map(byte).collect()
}

/// Several threads fill more files than there are buffers, while other threads read them. Some
/// files are removed while they are written.
#[test]
fn bulk_appends_of_many_threads_read_and_sync_correctly() {
    let (device, fs) = with_threads();
    let mut appended = 0;
    for round in 0..2 * scale() {
        let files: Vec<Arc<dyn File>> = (0..BUFFERS + 16)
            .map(|i| fs.create(Path::new(&format!("{i}"))).unwrap())
            .collect();
        let files = &files;
        #[expect(
            clippy::disallowed_methods,
            reason = "a crate below the one with scopes of its own"
        )]
        let totals: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    let fs = &fs;
                    s.spawn(move || {
                        let mut c = Rng::of(&[round, t]);
                        let mut total = 0;
                        for step in 0..400 {
                            // One thread appends to each file.
                            let i = c.below(20) as usize * 4 + t as usize;
                            let f = &files[i];
                            let len = c.pick(&[1, 300, 4096, 60_000, 600_000]) as usize;
                            let at = f.len();
                            let got = bulk(f, &pattern(i, at, len)).unwrap();
                            assert_eq!((got, f.len()), (at, at + len as u64));
                            total += len as u64;
                            let j = c.below(files.len() as u64) as usize;
                            let end = files[j].len();
                            let from = c.below(end + 1);
                            let want = (end - from).min(200_000) as usize;
                            let read = files[j].read(from, want).unwrap();
                            assert!(read == pattern(j, from, want), "{j} at {from}");
                            match c.below(40) {
                                0 => f.sync_data().unwrap(),
                                1 => f.sync_all().unwrap(),
                                2 => fs.sync_files(&files[..8]).unwrap(),
                                // Another file gets the space only after the writes to it ended.
                                3 => {
                                    let name = format!("gone-{t}-{step}");
                                    let gone = fs.create(Path::new(&name)).unwrap();
                                    bulk(&gone, &[0xEE; 700_000]).unwrap();
                                    fs.remove(Path::new(&name)).unwrap();
                                    drop(gone);
                                    fs.sync_metadata(Path::new("")).unwrap();
                                }
                                _ => {}
                            }
                        }
                        total
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        appended += totals.iter().sum::<u64>();
        assert!(fs.shared.buffers.bytes() <= (BUFFERS * write_buffer::BUFFER) as u64);
        fs.sync_files(files).unwrap();
        assert_eq!(
            fs.shared.buffers.bytes(),
            0,
            "what is synced is in no buffer"
        );
        let left = LavaFs::mount(device.cut(DeviceCut::Nothing), &by_hand()).unwrap();
        for (i, f) in files.iter().enumerate() {
            let found = left.open(Path::new(&format!("{i}"))).unwrap();
            let len = f.len() as usize;
            assert!(found.read(0, len).unwrap() == pattern(i, 0, len), "{i}");
        }
        for i in 0..files.len() {
            fs.remove(Path::new(&format!("{i}"))).unwrap();
        }
    }
    basalt_sim::campaign!("bulk appends: bytes={appended}");
}

/// The last handle writes its buffered bytes before it closes; a second handle keeps them.
#[test]
fn buffered_bytes_are_written_when_the_file_is_closed() {
    for (_, fs) in [fresh(512), fresh(4096), with_threads()] {
        let path = Path::new("f");
        let f = fs.create(path).unwrap();
        let bytes = pattern(1, 0, 1_300_001);
        for part in bytes.chunks(77_777) {
            bulk(&f, part).unwrap();
        }
        let reader = fs.open(path).unwrap();
        assert!(fs.shared.buffers.bytes() > 0);
        assert!(reader.read(0, bytes.len()).unwrap() == bytes);
        drop(f);
        assert_eq!(fs.shared.buffers.bytes(), 0);
        assert!(reader.read(0, bytes.len()).unwrap() == bytes);
        drop(reader);
        assert_eq!(fs.stat(path).unwrap().len, bytes.len() as u64);
        assert!(fs.open(path).unwrap().read(0, 2 << 20).unwrap() == bytes);
    }
}

/// The failure of a background write is reported by the next append and by each sync. Its bytes are
/// not part of the file.
#[test]
fn a_failed_background_write_is_reported() {
    let mut append_errors = 0;
    for (n, threads) in (0..12).flat_map(|n| [(n, false), (n, true)]) {
        let (device, fs) = match threads {
            true => with_threads(),
            false => fresh(512),
        };
        let path = Path::new("f");
        let f = fs.create(path).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        device.fail(DeviceFault::Write(n));
        let bytes = pattern(3, 0, 3_000_100);
        let mut appended = 0;
        let mut failed = false;
        for part in bytes.chunks(100_000) {
            match bulk(&f, part) {
                Ok(_) => appended += part.len(),
                Err(e) => {
                    assert!(
                        [ErrorKind::Io, ErrorKind::Poisoned].contains(&e.kind()),
                        "{e}"
                    );
                    failed = true;
                    break;
                }
            }
        }
        append_errors += u64::from(failed);
        let synced = f.sync_data();
        let struck = device.faults_left() == 0;
        assert_eq!(synced.is_err(), struck, "write {n}: {synced:?}");
        assert!(!failed || struck);
        let reader = fs.open(path).unwrap();
        assert!(
            reader.read(0, appended).unwrap() == bytes[..appended],
            "write {n}"
        );
        if struck {
            for again in [f.sync_data(), f.sync_all(), bulk(&f, b"x").map(|_| ())] {
                let e = again.expect_err("after a failure");
                assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
            }
        }
        drop((f, reader));
        assert_eq!(fs.shared.buffers.bytes(), 0, "write {n} keeps no buffer");
        let Ok(found) = fs.open(path) else { continue };
        let len = found.len() as usize;
        assert!(struck || len == bytes.len());
        assert!(
            found.read(0, len).unwrap() == bytes[..len],
            "write {n}: {len} bytes"
        );
        // Other files go on.
        if struck && fs.shared.check_writable().is_ok() {
            let other = fs.create(Path::new("other")).unwrap();
            bulk(&other, &bytes).unwrap();
            other.sync_all().unwrap();
            assert!(other.read(0, bytes.len()).unwrap() == bytes);
        }
    }
    assert!(append_errors > 0, "no append was told");
}

/// An abandoned image writes nothing more, and no caller waits for it.
#[test]
fn an_abandoned_image_writes_no_buffers() {
    let (device, fs) = with_threads();
    let f = fs.create(Path::new("f")).unwrap();
    bulk(&f, &[1; 102_400]).unwrap();
    fs.abandon();
    let before = device.writes();
    assert!(f.sync_data().is_err());
    drop((f, fs));
    assert_eq!(device.writes(), before);
}
