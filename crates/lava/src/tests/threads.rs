//! Tests with threads: they make and remove files while checkpoints are written, freed space is
//! discarded and the image grows. The power is cut at random moments, and all durable data is there
//! afterwards.
//!
//! The tests look for races. They seldom notice blocks that are allocated before their removal is
//! durable, because other threads' syncs come too soon after. `cuts` notices that.

use super::*;
use super::{by_hand, scale, with_jobs};
use basalt_fs::Intent;
use basalt_sim::rng::Rng;
use basalt_sim::{DeviceCut, DeviceSnapshot, SimDevice};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const THREADS: u64 = 3;

/// The files of one thread. No path is used twice, so a path that exists has its first bytes.
#[derive(Clone, Default)]
struct Promise {
    /// Durable files that no thread is about to remove or rename.
    durable: BTreeMap<String, Arc<[u8]>>,
    /// Files that may exist or not.
    maybe: BTreeMap<String, Arc<[u8]>>,
}

impl Promise {
    /// Notes that a file may be removed from now on.
    fn loosen(&mut self, path: &str) {
        let bytes = self.durable.remove(path).expect("known");
        self.maybe.insert(path.to_string(), bytes);
        while self.maybe.len() > 40 {
            // The removal of the oldest file is durable by now.
            let oldest = self
                .maybe
                .keys()
                .min_by_key(|p| p.rsplit('/').next()?.parse::<u64>().ok());
            let oldest = oldest.expect("not empty").clone();
            self.maybe.remove(&oldest);
        }
    }
}

fn live(fs: &LavaFs, t: u64, seed: u64, promise: &Mutex<Promise>, steps: u64) {
    let mut c = Rng::of(&[seed, t]);
    let dir = format!("t{t}");
    fs.create_dir(Path::new(&dir)).unwrap();
    for step in 0..steps {
        let known: Vec<String> = promise.lock().durable.keys().cloned().collect();
        let some = known.get(c.below(12) as usize).cloned();
        let bytes = some
            .as_ref()
            .map(|path| promise.lock().durable[path].clone());
        let path = format!("{dir}/{step}");
        match (some.zip(bytes), c.below(10)) {
            // Space is allocated and freed, and none of that is durable.
            (_, 9) => {
                let done = fs.create(Path::new(&path)).and_then(|f| {
                    f.append(
                        &[IoSlice::new(&vec![0xEE; c.below(300_000) as usize])],
                        Intent::Sync,
                    )
                });
                let _ = fs.remove(Path::new(&path));
                if let Err(e) = done {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{path}: {e}");
                }
            }
            (None, _) => {
                let mut bytes = vec![0; c.pick(&[0, 100, 4096, 30_000, 700_000]) as usize];
                c.fill(&mut bytes);
                let intent = c.pick(&[0, 1, 2]);
                let intent = [Intent::Sync, Intent::Lazy, Intent::Bulk][intent as usize];
                let made = (|| {
                    let f = fs.create(Path::new(&path))?;
                    for part in bytes.chunks(c.pick(&[512, 4096, 100_000]) as usize) {
                        f.append(&[IoSlice::new(part)], intent)?;
                    }
                    f.sync_all()?;
                    fs.sync_metadata(Path::new(&dir))
                })();
                match made {
                    Ok(()) => {
                        promise.lock().durable.insert(path, bytes.into());
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NoSpace, "{path}: {e}");
                        let _ = fs.remove(Path::new(&path));
                    }
                }
            }
            (Some((path, bytes)), 0..4) => {
                promise.lock().loosen(&path);
                let reader = fs.open(Path::new(&path)).unwrap();
                fs.remove(Path::new(&path)).unwrap();
                // Other threads allocate space meanwhile, but not that of a file that is open.
                let found = reader.read(0, bytes.len()).unwrap();
                assert!(found == bytes[..], "{path} after its removal");
            }
            (Some((from, bytes)), 4..6) => {
                {
                    let mut promise = promise.lock();
                    promise.loosen(&from);
                    promise.maybe.insert(path.clone(), bytes.clone());
                }
                match fs.rename(Path::new(&from), Path::new(&path)) {
                    Ok(()) => {
                        fs.sync_metadata(Path::new(&dir)).unwrap();
                        promise.lock().durable.insert(path, bytes);
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{path}: {e}"),
                }
            }
            (Some((path, bytes)), _) => {
                let f = fs.open(Path::new(&path)).unwrap();
                let from = c.below(bytes.len() as u64 + 1);
                let found = f.read(from, 50_000).unwrap();
                let want = &bytes[from as usize..][..found.len()];
                assert!(found == *want, "{path} at {from}");
            }
        }
    }
}

/// Returns a snapshot of the device, and the promises that hold at that moment.
fn take_snapshot(
    device: &SimDevice,
    promises: &[Arc<Mutex<Promise>>],
) -> (DeviceSnapshot, Promise) {
    let held: Vec<_> = promises.iter().map(|p| p.lock()).collect();
    let mut all = Promise::default();
    for p in &held {
        all.durable.extend(p.durable.clone());
        all.maybe.extend(p.maybe.clone());
    }
    (device.snapshot(), all)
}

fn check(fs: &Arc<LavaFs>, promise: &Promise, place: &str) {
    for (path, bytes) in &promise.durable {
        let f = fs.open(Path::new(path));
        let f = f.unwrap_or_else(|e| panic!("{place}: {path}: {e}"));
        assert!(
            f.read(0, bytes.len()).unwrap() == bytes[..],
            "{place}: {path}"
        );
    }
    for (path, bytes) in &promise.maybe {
        if let Ok(f) = fs.open(Path::new(path)) {
            let found = f.read(0, bytes.len()).unwrap();
            assert!(
                found == bytes[..],
                "{place}: {path} is back with other bytes"
            );
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test needs threads that run by themselves, without steps"
)]
fn durable_data_survives_concurrent_operations() {
    let (mut cuts, mut checkpoints) = (0, 0);
    for seed in 0..2 * scale() {
        let device = SimDevice::new(12 << 20, 512);
        format::format(&*device, [7; 16], seed % 2 == 0, Path::new("image")).unwrap();
        let fs = LavaFs::mount(device.clone(), &with_jobs()).unwrap();
        let promises: Vec<Arc<Mutex<Promise>>> = (0..THREADS).map(|_| Arc::default()).collect();
        let taken: Arc<Mutex<Vec<(DeviceSnapshot, Promise)>>> = Arc::default();
        {
            let (promises, taken) = (promises.clone(), Arc::clone(&taken));
            let mut c = Rng::of(&[seed, 98]);
            let device_of = Arc::downgrade(&device);
            // The moment is right behind a write of some thread.
            device.on_write(move |_| {
                if c.below(100) == 0
                    && let Some(device) = device_of.upgrade()
                {
                    let take_snapshot = take_snapshot(&device, &promises);
                    taken.lock().push(take_snapshot);
                }
            });
        }
        let over = AtomicBool::new(false);
        let mut snapshots: Vec<(DeviceSnapshot, Promise)> = Vec::new();
        std::thread::scope(|s| {
            let (fs, promises, over, device) = (&fs, &promises, &over, &device);
            let threads: Vec<_> = (0..THREADS)
                .map(|t| s.spawn(move || live(fs, t, seed, &promises[t as usize], 300)))
                .collect();
            let beside = s.spawn(move || {
                let mut c = Rng::of(&[seed, 99]);
                while !over.load(SeqCst) {
                    match c.below(20) {
                        0 => {
                            device.grow(c.below(2) << 20);
                            let _ = fs.grow();
                        }
                        1..6 => fs.discard(),
                        // Without space, the checkpoint comes later.
                        6..8 => drop(fs.checkpoint()),
                        _ => std::thread::sleep(std::time::Duration::from_micros(200)),
                    }
                }
            });
            while !threads.iter().all(|t| t.is_finished()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
                snapshots.push(take_snapshot(device, promises));
            }
            over.store(true, SeqCst);
            for t in threads {
                t.join().unwrap();
            }
            beside.join().unwrap();
        });
        snapshots.append(&mut taken.lock());
        checkpoints += fs.usage().checkpoints;
        for p in &promises {
            check(&fs, &p.lock(), &format!("seed {seed}, at the end"));
        }
        drop(fs);
        let mut c = Rng::of(&[seed, 5]);
        for (n, (snapshot, promise)) in snapshots.iter().enumerate() {
            if c.below(snapshots.len() as u64) > 150 {
                continue;
            }
            for cut in [
                DeviceCut::Nothing,
                DeviceCut::Some(n as u64),
                DeviceCut::Suffix(n as u64),
            ] {
                let place = format!("seed {seed}, moment {n}, {cut:?}");
                let left = snapshot.cut(cut);
                let checked = crate::check::check(&*left, Path::new("image")).unwrap();
                assert!(checked.is_sound(), "{place}: {:?}", checked.damage);
                let fs = LavaFs::mount(left, &by_hand()).unwrap();
                check(&fs, promise, &place);
                cuts += 1;
            }
        }
    }
    basalt_sim::campaign!("everything at once: power cuts={cuts} checkpoints={checkpoints}");
    assert!(cuts > 20 && checkpoints > 20);
}
