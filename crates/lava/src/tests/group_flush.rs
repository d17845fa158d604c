//! Tests of shared commits: threads that sync while a flush runs share one transaction and the next
//! flush. All of them get its error, and no thread waits for a flush that panicked. (`room` tests
//! commits that find the journal full.)

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use parking_lot::Condvar;

use super::*;
use super::{by_hand, fresh};
use basalt_fs::Bytes;
use basalt_fs::device::{DeviceFacts, DeviceRead, Way};
use basalt_fs::{Error, ErrorKind, FsStats, Intent, ReadCompletions};
use basalt_sim::SimDevice;
use parking_lot::Mutex;

/// A device whose flushes wait while a gate is shut, before or after their work, and whose writes
/// panic on request.
struct Gate {
    under: Arc<SimDevice>,
    shut: Mutex<bool>,
    /// Flushes do their work and then wait.
    block_after_flush: Mutex<bool>,
    /// Discards wait.
    shut_discards: Mutex<bool>,
    discards: AtomicUsize,
    opened: Condvar,
    flushes: AtomicUsize,
    /// Number of flushes that did their work.
    flushed: AtomicUsize,
    panics: AtomicBool,
    /// Flushes fail as they do if the disk of a sparse image is full.
    full: AtomicBool,
}

impl Gate {
    fn before(under: Arc<SimDevice>) -> Arc<Gate> {
        Arc::new(Gate {
            under,
            shut: Mutex::new(false),
            block_after_flush: Mutex::new(false),
            shut_discards: Mutex::new(false),
            discards: AtomicUsize::new(0),
            opened: Condvar::new(),
            flushes: AtomicUsize::new(0),
            flushed: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
            full: AtomicBool::new(false),
        })
    }

    fn set(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }

    fn set_discards(&self, shut: bool) {
        *self.shut_discards.lock() = shut;
        self.opened.notify_all();
    }

    fn set_after(&self, shut: bool) {
        *self.block_after_flush.lock() = shut;
        self.opened.notify_all();
    }
}

impl Device for Gate {
    fn facts(&self) -> DeviceFacts {
        self.under.facts()
    }

    fn read(&self, read: DeviceRead) -> Result<Bytes> {
        self.under.read(read)
    }

    fn submit_reads(&self, reads: Vec<DeviceRead>) -> Box<dyn ReadCompletions> {
        self.under.submit_reads(reads)
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()> {
        assert!(!self.panics.load(SeqCst), "as told");
        self.under.write(offset, bufs, way)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, SeqCst);
        let mut shut = self.shut.lock();
        while *shut {
            self.opened.wait(&mut shut);
        }
        drop(shut);
        match self.full.load(SeqCst) {
            true => Err(Error::new(ErrorKind::NoSpace, "the disk is full")),
            false => self.under.flush(),
        }?;
        self.flushed.fetch_add(1, SeqCst);
        let mut shut = self.block_after_flush.lock();
        while *shut {
            self.opened.wait(&mut shut);
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.discards.fetch_add(1, SeqCst);
        let mut shut = self.shut_discards.lock();
        while *shut {
            self.opened.wait(&mut shut);
        }
        drop(shut);
        self.under.discard(offset, len)
    }

    fn stats(&self) -> FsStats {
        self.under.stats()
    }
}

fn gated() -> (Arc<Gate>, Arc<LavaFs>) {
    let (device, fs) = fresh(512);
    drop(fs);
    let gate = Gate::before(device);
    let fs = LavaFs::mount(gate.clone(), &by_hand()).unwrap();
    (gate, fs)
}

/// Waits until a condition holds that other threads make true.
fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a crate below the one with scopes of its own"
)]
fn syncs_during_a_flush_share_the_next_flush() {
    const THREADS: usize = 8;
    let (gate, fs) = gated();
    let seq = || fs.shared.journal.lock().writer.seq();
    let first = fs.create(Path::new("first")).unwrap();
    gate.set(true);
    let before = gate.flushes.load(SeqCst);
    let written = std::thread::scope(|s| {
        s.spawn(|| first.sync_all().unwrap());
        wait_until(|| gate.flushes.load(SeqCst) == before + 1);
        // The transaction is written, and the flush runs.
        let written = seq();
        let fs = &fs;
        let sync = |i: usize| fs.create(Path::new(&format!("{i}"))).unwrap().sync_all();
        let late: Vec<_> = (0..THREADS).map(|i| s.spawn(move || sync(i))).collect();
        // A thread that has made its file may be stopped for long before its sync begins.
        let all_wait = || fs.shared.flusher.waiting() == THREADS;
        wait_until(|| all_wait() || late.iter().any(|t| t.is_finished()));
        let meanwhile = seq();
        // The gate opens before any assertion, so that no thread waits for ever.
        gate.set(false);
        assert_eq!(meanwhile, written, "a thread writes only in its turn");
        for t in late {
            t.join().unwrap().unwrap();
        }
        written
    });
    assert_eq!(seq(), written + 1, "one transaction for all of them");
    // Each thread that came late waited for one more flush at most.
    let flushes = gate.flushes.load(SeqCst) - before;
    assert!((2..=2 + THREADS).contains(&flushes), "{flushes} flushes");
    drop((first, fs));
    let fs = LavaFs::mount(gate, &by_hand()).unwrap();
    assert_eq!(fs.list(Path::new("")).unwrap().len(), 1 + THREADS);
}

/// All threads that waited for a failed flush get its error, of any kind, and all changes end.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a crate below the one with scopes of its own"
)]
fn all_syncs_of_a_flush_get_its_disk_full_error() {
    let (gate, fs) = gated();
    let files: Vec<Arc<dyn File>> = (0..4)
        .map(|i| {
            let f = fs.create(Path::new(&format!("{i}"))).unwrap();
            f.append(&[IoSlice::new(&[1; 10])], Intent::Sync).unwrap();
            f.sync_all().unwrap();
            f.append(&[IoSlice::new(&[2; 10])], Intent::Sync).unwrap();
            f
        })
        .collect();
    gate.full.store(true, SeqCst);
    gate.set(true);
    let before = gate.flushes.load(SeqCst);
    let results = std::thread::scope(|s| {
        let waiting: Vec<_> = files
            .iter()
            .map(|f| s.spawn(|| f.sync_data().is_err()))
            .collect();
        wait_until(|| gate.flushes.load(SeqCst) > before);
        gate.set(false);
        let results = waiting.into_iter().map(|t| t.join().unwrap());
        results.collect::<Vec<_>>()
    });
    assert_eq!(results, [true; 4]);
    gate.full.store(false, SeqCst);
    for f in &files {
        f.sync_data().unwrap_err();
    }
    let refused = fs.create(Path::new("more")).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
}

/// No sync succeeds for records that a panic kept from the journal.
#[test]
fn a_panic_in_a_transaction_fails_all_later_changes() {
    let (gate, fs) = gated();
    let f = fs.create(Path::new("f")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    gate.panics.store(true, SeqCst);
    fs.create(Path::new("lost")).unwrap();
    let checkpoint = std::panic::AssertUnwindSafe(|| fs.checkpoint());
    assert!(std::panic::catch_unwind(checkpoint).is_err());
    gate.panics.store(false, SeqCst);
    let refused = fs.sync_metadata(Path::new("")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    drop((f, fs));
    let fs = LavaFs::mount(gate, &by_hand()).unwrap();
    let there = |name: &str| fs.exists(Path::new(name)).unwrap();
    assert_eq!((there("f"), there("lost")), (true, false));
}

#[test]
fn a_panic_in_a_bulk_write_fails_its_file_and_blocks_no_thread() {
    let (gate, fs) = gated();
    let f = fs.create(Path::new("f")).unwrap();
    let other = fs.create(Path::new("other")).unwrap();
    f.append(&[IoSlice::new(&[1; 8192])], Intent::Bulk).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    gate.panics.store(true, SeqCst);
    let failed = f.sync_data().unwrap_err();
    assert!(failed.to_string().contains("panicked"), "{failed}");
    gate.panics.store(false, SeqCst);
    assert!(f.append(&[IoSlice::new(&[1; 10])], Intent::Bulk).is_err());
    assert_eq!(&f.read(0, 8192).unwrap()[..], &[1; 8192]);
    other
        .append(&[IoSlice::new(&[2; 8192])], Intent::Bulk)
        .unwrap();
    other.sync_data().unwrap();
}

/// Regression test: a sync that began while a flush ran took that flush for its own. The flush had
/// done its work before the bytes were written, so a power cut took acknowledged bytes.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a crate below the one with scopes of its own"
)]
fn a_sync_during_a_flush_waits_for_the_next_flush() {
    let (gate, fs) = gated();
    let make = |name: &str| {
        let log = LogOptions {
            capacity: 64 << 10,
            reuse: None,
        };
        let f = fs.create_log(Path::new(name), log).unwrap();
        f.append(&[IoSlice::new(&[1; 512])], Intent::Sync).unwrap();
        f.sync_data().unwrap();
        f
    };
    let (first, second) = (make("first"), make("second"));
    fs.sync_metadata(Path::new("")).unwrap();
    let before = gate.flushed.load(SeqCst);
    gate.set_after(true);
    std::thread::scope(|s| {
        s.spawn(|| first.sync_data().unwrap());
        wait_until(|| gate.flushed.load(SeqCst) == before + 1);
        let late = second.append(&[IoSlice::new(&[2; 512])], Intent::Sync);
        assert_eq!(late.unwrap(), 512);
        let synced = s.spawn(|| second.sync_data().unwrap());
        wait_until(|| fs.shared.flusher.waiting() == 1 || synced.is_finished());
        gate.set_after(false);
    });
    let left = gate.under.cut(basalt_sim::DeviceCut::Nothing);
    let fs = LavaFs::mount(left, &by_hand()).unwrap();
    let second = fs.open(Path::new("second")).unwrap();
    let late = second.read(512, 512).unwrap();
    assert!(late[..] == [2; 512], "{:?}", &late[..8]);
}

/// Regression test: a transaction was written after a flush had done its work and before the flush
/// returned. It counted as durable, so the next sync of it did nothing, and a power cut took an
/// acknowledged name.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a crate below the one with scopes of its own"
)]
fn a_flush_does_not_cover_a_transaction_written_during_it() {
    let (gate, fs) = gated();
    fs.create(Path::new("first")).unwrap();
    let before = gate.flushed.load(SeqCst);
    gate.set_after(true);
    std::thread::scope(|s| {
        s.spawn(|| fs.sync_metadata(Path::new("")).unwrap());
        wait_until(|| gate.flushed.load(SeqCst) == before + 1);
        fs.create(Path::new("second")).unwrap();
        let recorded = fs.shared.state.lock().recorded;
        fs.shared.commit(recorded).unwrap();
        gate.set_after(false);
    });
    fs.sync_metadata(Path::new("")).unwrap();
    let left = gate.under.cut(basalt_sim::DeviceCut::Nothing);
    let fs = LavaFs::mount(left, &by_hand()).unwrap();
    assert_eq!(fs.list(Path::new("")).unwrap().len(), 2);
}

/// Regression test: a slow device was discarding all free space of an image when a sync needed a
/// journal extent. The sync failed with `NoSpace`, although the space was free a moment later.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a crate below the one with scopes of its own"
)]
fn a_sync_waits_for_space_that_is_being_discarded() {
    let (gate, fs) = gated();
    let root = Path::new("");
    let big = fs.create(Path::new("big")).unwrap();
    big.expect_appends(2 << 20);
    drop(big);
    let big = fs.create_log(
        Path::new("log"),
        LogOptions {
            capacity: 2 << 20,
            reuse: None,
        },
    );
    drop(big.unwrap());
    let others: Vec<String> = (0..300).map(|n| format!("other-{n}")).collect();
    for name in &others {
        fs.create(Path::new(name)).unwrap();
    }
    fs.sync_metadata(root).unwrap();
    fs.discard();
    fs.remove(Path::new("log")).unwrap();
    fs.sync_metadata(root).unwrap();
    gate.set_discards(true);
    let before = gate.discards.load(SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| fs.discard());
        wait_until(|| gate.discards.load(SeqCst) > before);
        {
            let mut state = fs.shared.state.lock();
            assert!(state.blocks.is_discarding());
            let extent = u64::from(fs.shared.journal.lock().superblock.journal_blocks);
            while state.blocks.take_whole(extent).is_some() {}
            while state.blocks.take_spare().is_some() {}
            fs.shared.journal.lock().writer.forget_next();
        }
        let syncs = s.spawn(|| {
            for name in &others {
                fs.remove(Path::new(name)).unwrap();
                fs.sync_metadata(root)?;
            }
            Ok::<(), Error>(())
        });
        let waits = || fs.shared.state.lock().discard_waiters > 0;
        wait_until(|| syncs.is_finished() || waits());
        gate.set_discards(false);
        syncs.join().unwrap().unwrap();
    });
    fs.sync_metadata(root).unwrap();
}
