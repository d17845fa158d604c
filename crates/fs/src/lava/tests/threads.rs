//! Everything at once: files come and go in several threads while checkpoints are written, freed space is discarded and the image grows. At moments
//! that nobody chose the power is cut, and what was durable by then is there.

use super::super::device::{DeviceCut, DeviceSnapshot, SimDevice};
use super::super::*;
use super::{by_hand, scale};
use crate::Intent;
use crate::chance::Chance;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const THREADS: u64 = 3;

/// What is durable: by path, the bytes. Nothing that is being removed or written over.
type Promise = BTreeMap<String, Vec<u8>>;

fn live(fs: &LavaFs, t: u64, seed: u64, promise: &Mutex<Promise>, steps: u64) {
    let mut c = Chance::of(&[seed, t]);
    let dir = format!("t{t}");
    fs.create_dir(Path::new(&dir)).unwrap();
    for _ in 0..steps {
        let path = format!("{dir}/{}", c.below(12));
        let known = promise.lock().get(&path).cloned();
        match (known, c.below(10)) {
            (None, _) => {
                let mut bytes = vec![0; c.pick(&[0, 100, 4096, 30_000, 700_000]) as usize];
                c.fill(&mut bytes);
                let intent = c.pick(&[0, 1, 2]);
                let intent = [Intent::Sync, Intent::Lazy, Intent::Bulk][intent as usize];
                // What was here and is not promised is of an earlier try.
                let _ = fs.remove(Path::new(&path));
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
                        promise.lock().insert(path, bytes);
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{path}: {e}"),
                }
            }
            (Some(bytes), 0..4) => {
                promise.lock().remove(&path);
                let reader = fs.open(Path::new(&path)).unwrap();
                fs.remove(Path::new(&path)).unwrap();
                // Others take space meanwhile: not this, as long as somebody has it open.
                let found = reader.read(0, bytes.len()).unwrap();
                assert!(found == bytes, "{path} after its removal");
            }
            (Some(bytes), 4..6) => {
                let to = format!("{dir}/{}", c.below(12));
                if to != path && !promise.lock().contains_key(&to) {
                    promise.lock().remove(&path);
                    fs.rename(Path::new(&path), Path::new(&to)).unwrap();
                    fs.sync_metadata(Path::new(&dir)).unwrap();
                    promise.lock().insert(to, bytes);
                }
            }
            (Some(bytes), _) => {
                let f = fs.open(Path::new(&path)).unwrap();
                let from = c.below(bytes.len() as u64 + 1);
                let found = f.read(from, 50_000).unwrap();
                let want = &bytes[from as usize..][..found.len()];
                assert!(found == *want, "{path} at {from}");
            }
        }
    }
}

fn check(fs: &Arc<LavaFs>, promise: &Promise, place: &str) {
    for (path, bytes) in promise {
        let f = fs.open(Path::new(path));
        let f = f.unwrap_or_else(|e| panic!("{place}: {path}: {e}"));
        assert!(f.read(0, bytes.len()).unwrap() == *bytes, "{place}: {path}");
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "threads that nobody steps are what this is about"
)]
fn what_is_durable_stays_so_while_everything_happens_at_once() {
    let (mut cuts, mut checkpoints) = (0, 0);
    for seed in 0..3 * scale() {
        let device = SimDevice::new(12 << 20, 512);
        mount::format(&*device, [7; 16], true, Path::new("image")).unwrap();
        let fs = LavaFs::mount(device.clone(), &LavaOptions::default()).unwrap();
        let promises: Vec<Mutex<Promise>> = (0..THREADS).map(|_| Mutex::default()).collect();
        let over = AtomicBool::new(false);
        let mut taken: Vec<(DeviceSnapshot, Promise)> = Vec::new();
        std::thread::scope(|s| {
            let (fs, promises, over, device) = (&fs, &promises, &over, &device);
            let threads: Vec<_> = (0..THREADS)
                .map(|t| s.spawn(move || live(fs, t, seed, &promises[t as usize], 400)))
                .collect();
            let beside = s.spawn(move || {
                let mut c = Chance::of(&[seed, 99]);
                while !over.load(SeqCst) {
                    match c.below(20) {
                        0 => {
                            device.grow(c.below(2) << 20);
                            let _ = fs.grow();
                        }
                        1..6 => fs.discard(),
                        // Where there is no room for it, it comes later.
                        _ => drop(fs.checkpoint()),
                    }
                    std::thread::yield_now();
                }
            });
            while !threads.iter().all(|t| t.is_finished()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let held: Vec<_> = promises.iter().map(|p| p.lock()).collect();
                let all = held.iter().flat_map(|p| p.iter());
                let all = all
                    .map(|(path, bytes)| (path.clone(), bytes.clone()))
                    .collect();
                taken.push((device.snapshot(), all));
            }
            over.store(true, SeqCst);
            for t in threads {
                t.join().unwrap();
            }
            beside.join().unwrap();
        });
        checkpoints += fs.usage().checkpoints;
        for p in &promises {
            check(&fs, &p.lock(), &format!("seed {seed}, at the end"));
        }
        drop(fs);
        let mut c = Chance::of(&[seed, 5]);
        for (n, (snapshot, promise)) in taken.iter().enumerate() {
            if taken.len() > 60 && c.below(taken.len() as u64) > 60 {
                continue;
            }
            for cut in [
                DeviceCut::Nothing,
                DeviceCut::Some(n as u64),
                DeviceCut::Suffix(n as u64),
            ] {
                let place = format!("seed {seed}, moment {n}, {cut:?}");
                let left = snapshot.cut(cut);
                let checked = super::super::check::check(&*left, Path::new("image")).unwrap();
                assert!(checked.is_sound(), "{place}: {:?}", checked.damage);
                let fs = LavaFs::mount(left, &by_hand()).unwrap();
                check(&fs, promise, &place);
                cuts += 1;
            }
        }
    }
    crate::campaign!("everything at once: power cuts={cuts} checkpoints={checkpoints}");
    assert!(cuts > 20 && checkpoints > 20);
}
