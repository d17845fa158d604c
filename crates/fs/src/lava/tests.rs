//! The contract of filesystems, on a simulated device.

use super::device::{DeviceCut, SimDevice};
use super::*;
use crate::Intent;
use crate::conformance;
use std::io::IoSlice;

const SIZE: u64 = 64 << 20;

fn by_hand() -> LavaOptions {
    LavaOptions {
        background: false,
        ..LavaOptions::default()
    }
}

fn fresh(unit: usize) -> (Arc<SimDevice>, Arc<LavaFs>) {
    let device = SimDevice::new(SIZE, unit);
    mount::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    (device, fs)
}

#[test]
fn it_keeps_the_contract() {
    for unit in [512, 4096] {
        conformance::run_all(&|| fresh(unit).1);
    }
}

#[test]
fn it_keeps_the_contract_over_power_cuts() {
    let make = |seed: u64| {
        let (device, fs) = fresh(if seed % 4 == 3 { 4096 } else { 512 });
        let fs: Arc<dyn FileSystem> = fs;
        let cut: conformance::crash::PowerCut = Box::new(move |seed| {
            let left = device.cut(DeviceCut::Some(seed));
            LavaFs::mount(left, &by_hand()).expect("a mount after a power cut")
        });
        (fs, cut)
    };
    conformance::crash::run_all(&make, 40);
}

fn scale() -> u64 {
    let scale = std::env::var("BASALT_SCALE").ok();
    scale.and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// The same history on the simulated filesystem and on this one: the same answers. Now and then a checkpoint or a new mount lies between.
#[test]
fn it_answers_as_the_simulated_disk_does() {
    let mut steps = 0;
    for seed in crate::campaign::cases(0..400 * scale()) {
        let _repeat = crate::repeat!(it_answers_as_the_simulated_disk_does, "BASALT_CASE={seed}");
        let trace = conformance::random_trace(seed, 120);
        let model: Arc<dyn FileSystem> = crate::SimFs::new(crate::sim::SimOptions::default());
        let (_, fs) = fresh(512);
        let fs: Arc<dyn FileSystem> = fs;
        let (told, expected) = (trace.play(&fs), trace.play(&model));
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told, expected, "seed {seed}");
        }
        steps += told.len();
    }
    crate::campaign!("traces: steps={steps}");
}

/// What is known of a filesystem at one moment: names, and the bytes that must be there.
#[derive(Clone, Default, PartialEq, Debug)]
struct Shown {
    /// Files by name, with a number for each inode.
    names: BTreeMap<String, u64>,
    dirs: Vec<String>,
}

/// A history on the filesystem with all that it promised, and the devices that a power cut may leave after each write.
struct History {
    chance: crate::chance::Chance,
    fs: Arc<LavaFs>,
    now: Shown,
    /// What has not been durable yet, oldest first; the first one is.
    since: Vec<Shown>,
    files: BTreeMap<u64, Arc<dyn File>>,
    /// What was appended, and how much of it is durable.
    bytes: BTreeMap<u64, (Vec<u8>, usize)>,
    next: u64,
}

const NAMES: [&str; 8] = ["a", "b", "c", "d/a", "d/b", "d/e/c", "x", "y"];

impl History {
    fn name(&mut self) -> String {
        let n = self.chance.below(NAMES.len() as u64) as usize;
        NAMES[n].to_string()
    }

    /// All that happened so far is durable.
    fn durable(&mut self) {
        self.since = vec![self.now.clone()];
    }

    fn changed(&mut self) {
        self.since.push(self.now.clone());
    }

    fn step(&mut self) {
        let (a, b) = (self.name(), self.name());
        let (pa, pb) = (PathBuf::from(&a), PathBuf::from(&b));
        let ids: Vec<u64> = self.files.keys().copied().collect();
        let some = match ids.len() {
            0 => None,
            n => Some(ids[self.chance.below(n as u64) as usize]),
        };
        match self.chance.below(20) {
            0..3 => {
                let reuse = self.chance.percent(30);
                let made = match (self.chance.coin(), reuse) {
                    (true, _) => self.fs.create(&pa),
                    (false, false) => self.fs.create_log(
                        &pa,
                        LogOptions {
                            capacity: self.chance.below(50_000),
                            reuse: None,
                        },
                    ),
                    (false, true) => {
                        // What the old log had may be overwritten whatever becomes of the names.
                        if let Some(id) = self.now.names.get(&b)
                            && self.now.names.values().filter(|i| *i == id).count() == 1
                            && !self.now.names.contains_key(&a)
                            && self.fs.exists(pa.parent().unwrap()).unwrap()
                            && a != b
                        {
                            self.bytes.remove(id);
                            self.files.remove(id);
                        }
                        self.fs.create_log(
                            &pa,
                            LogOptions {
                                capacity: 0,
                                reuse: Some(&pb),
                            },
                        )
                    }
                };
                if let Ok(file) = made {
                    if self.now.names.contains_key(&b) && !self.fs.exists(&pb).unwrap() {
                        self.now.names.remove(&b);
                    }
                    self.next += 1;
                    self.now.names.insert(a, self.next);
                    self.files.insert(self.next, file);
                    self.bytes.insert(self.next, (Vec::new(), 0));
                    self.changed();
                }
            }
            3..9 => {
                if let Some(id) = some {
                    let top = self.chance.pick(&[100, 600, 5_000, 70_000, 300_000]);
                    let mut bytes = vec![0; self.chance.below(top) as usize];
                    self.chance.fill(&mut bytes);
                    let intent = match self.chance.coin() {
                        true => Intent::Sync,
                        false => Intent::Lazy,
                    };
                    let (all, durable) = self.bytes.get_mut(&id).expect("open");
                    let file = &self.files[&id];
                    if *durable == all.len() {
                        // A synced sector is not written again.
                        let at = file.align_to_unit().unwrap() as usize;
                        all.resize(at, 0);
                    }
                    let at = file.append(&[IoSlice::new(&bytes)], intent).unwrap();
                    assert_eq!(at, all.len() as u64);
                    all.extend(bytes);
                }
            }
            9..12 => {
                if let Some(id) = some {
                    match self.chance.below(3) {
                        0 => self.files[&id].sync_all().unwrap(),
                        1 => self.fs.sync_files(&[self.files[&id].clone()]).unwrap(),
                        _ => self.files[&id].sync_data().unwrap(),
                    }
                    let (all, durable) = self.bytes.get_mut(&id).expect("open");
                    *durable = all.len();
                }
            }
            12 => {
                if let Some(id) = some {
                    self.files.remove(&id);
                }
            }
            13 => {
                self.fs.sync_metadata(Path::new("")).unwrap();
                self.durable();
            }
            14 => {
                if self.fs.rename(&pa, &pb).is_ok() && a != b {
                    let id = self.now.names[&a];
                    if self.now.names.get(&b) != Some(&id) {
                        self.now.names.remove(&a);
                        self.now.names.insert(b, id);
                        self.changed();
                    }
                }
            }
            15 => {
                if self.fs.remove(&pa).is_ok() {
                    self.now.names.remove(&a);
                    self.changed();
                }
            }
            16 => {
                if self.fs.link(&pa, &pb).is_ok() {
                    let id = self.now.names[&a];
                    self.now.names.insert(b, id);
                    self.changed();
                }
            }
            17 => {
                let dir = self.chance.pick(&["d", "d/e"]);
                self.fs.create_dir(Path::new(dir)).unwrap();
                for dir in ["d", dir] {
                    if !self.now.dirs.contains(&dir.to_string()) {
                        self.now.dirs.push(dir.to_string());
                        self.changed();
                    }
                }
            }
            18 => self.fs.checkpoint().unwrap(),
            _ => {
                // A new mount of what there is.
                self.files.clear();
                let device = self.fs.shared.device.clone();
                let dying = std::mem::replace(&mut self.fs, fresh(512).1);
                assert_eq!(Arc::strong_count(&dying.shared), 1);
                drop(dying);
                self.fs = LavaFs::mount(device, &by_hand()).unwrap();
                self.durable();
                for (all, durable) in self.bytes.values_mut() {
                    *durable = all.len();
                }
            }
        }
    }
}

/// What a filesystem shows.
fn shown(
    fs: &LavaFs,
    dir: &str,
    all: &mut BTreeMap<String, Arc<dyn File>>,
    dirs: &mut Vec<String>,
) {
    for e in fs.list(Path::new(dir)).unwrap() {
        let path = match dir {
            "" => e.name.clone(),
            dir => format!("{dir}/{}", e.name),
        };
        match e.is_dir {
            true => {
                dirs.push(path.clone());
                shown(fs, &path, all, dirs);
            }
            false => {
                all.insert(path.clone(), fs.open(Path::new(&path)).unwrap());
            }
        }
    }
}

/// What was promised at one moment.
struct Promise {
    since: Vec<Shown>,
    durable: BTreeMap<u64, Vec<u8>>,
}

impl Promise {
    fn of(h: &History) -> Promise {
        let durable = h.bytes.iter();
        Promise {
            since: h.since.clone(),
            durable: durable
                .map(|(id, (all, n))| (*id, all[..*n].to_vec()))
                .collect(),
        }
    }

    /// What a mount finds is one of the states since the last durable one, with the bytes that were durable. Says which.
    fn check(&self, device: Arc<SimDevice>, place: &str) -> (Arc<LavaFs>, Shown) {
        let fs = LavaFs::mount(device, &by_hand()).unwrap_or_else(|e| panic!("{place}: {e}"));
        let (mut files, mut dirs) = (BTreeMap::new(), Vec::new());
        shown(&fs, "", &mut files, &mut dirs);
        dirs.sort();
        let same = |s: &&Shown| {
            let mut there = s.dirs.clone();
            there.sort();
            there == dirs && s.names.keys().eq(files.keys())
        };
        let states: Vec<&Shown> = self.since.iter().filter(same).collect();
        assert!(
            !states.is_empty(),
            "{place}: {:?} and {dirs:?} are none of {:?}",
            files.keys(),
            self.since
        );
        // Of those with the same names one has the right bytes.
        let right = |s: &&Shown| {
            s.names.iter().all(|(name, id)| {
                let Some(want) = self.durable.get(id) else {
                    return true;
                };
                let got = files[name].read(0, want.len()).unwrap();
                got.len() == want.len() && got == want[..]
            })
        };
        let found = states.iter().find(|s| right(s));
        let found =
            found.unwrap_or_else(|| panic!("{place}: durable bytes are gone from {states:?}"));
        (fs, (*found).clone())
    }
}

/// Random histories with a power cut after each write of the device: what is found is a state of the history, none older than what was durable,
/// and all bytes that were.
#[test]
fn a_power_cut_after_any_write_leaves_a_state_of_the_history() {
    let (mut cuts, mut writes) = (0, 0);
    for seed in crate::campaign::cases(0..120 * scale()) {
        let _repeat = crate::repeat!(
            a_power_cut_after_any_write_leaves_a_state_of_the_history,
            "BASALT_CASE={seed}"
        );
        let (device, fs) = fresh(if seed % 5 == 4 { 4096 } else { 512 });
        let taken = Arc::new(Mutex::new(Vec::new()));
        let mut h = History {
            chance: crate::chance::Chance::of(&[seed, 77]),
            fs,
            now: Shown::default(),
            since: vec![Shown::default()],
            files: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next: 0,
        };
        let into = Arc::clone(&taken);
        device.on_write(move |snapshot| into.lock().push(snapshot));
        for step in 0..60 {
            let before = Promise::of(&h);
            h.step();
            let snapshots = std::mem::take(&mut *taken.lock());
            let mut promise = Promise::of(&h);
            // While the call was on its way nothing more was promised than before it, and it may have changed something.
            promise.durable = before.durable;
            promise.since = before.since;
            promise.since.push(h.now.clone());
            let gone: Vec<u64> = (promise.durable.keys().copied())
                .filter(|id| !h.bytes.contains_key(id))
                .collect();
            gone.iter().for_each(|id| {
                promise.durable.remove(id);
            });
            for (n, snapshot) in snapshots.iter().enumerate() {
                writes += 1;
                for cut in [
                    DeviceCut::Nothing,
                    DeviceCut::All,
                    DeviceCut::Some(seed * 1000 + snapshot.write),
                ] {
                    promise.check(
                        snapshot.cut(cut),
                        &format!("seed {seed} step {step} write {n} {cut:?}"),
                    );
                    cuts += 1;
                }
            }
        }
        // Lives after a power cut: what it left on the device behind the end of the journal is never taken for what comes later.
        let mut device = device;
        let mut promise = Promise::of(&h);
        for life in 0..8 {
            device = device.cut(DeviceCut::Some(seed * 10 + life));
            let place = format!("seed {seed}, life {life}");
            let (fs, found) = promise.check(Arc::clone(&device), &place);
            h.files.clear();
            h.fs = fs;
            h.bytes
                .retain(|id, _| found.names.values().any(|n| n == id));
            for (id, (all, durable)) in &mut h.bytes {
                *durable = promise.durable.get(id).map_or(0, |d| d.len());
                all.truncate(*durable);
            }
            h.now = found;
            h.durable();
            for _ in 0..h.chance.below(25) {
                h.step();
            }
            // The last step is cut at one of its writes, those of a checkpoint most of all.
            let taken = Arc::new(Mutex::new(Vec::new()));
            let into = Arc::clone(&taken);
            device.on_write(move |snapshot| into.lock().push(snapshot));
            promise = Promise::of(&h);
            let before: Vec<u64> = h.bytes.keys().copied().collect();
            match h.chance.coin() {
                true => h.fs.checkpoint().unwrap(),
                false => h.step(),
            }
            promise.since.push(h.now.clone());
            promise.durable.retain(|id, _| h.bytes.contains_key(id));
            let new: Vec<u64> = h
                .bytes
                .keys()
                .copied()
                .filter(|id| !before.contains(id))
                .collect();
            assert!(new.len() <= 1);
            let snapshots = std::mem::take(&mut *taken.lock());
            if !snapshots.is_empty() {
                let n = h.chance.below(snapshots.len() as u64) as usize;
                device = snapshots[n].cut(DeviceCut::Some(seed + life));
            }
            cuts += 1;
        }
    }
    crate::campaign!("power cuts: writes={writes} states={cuts}");
    assert!(crate::campaign::case().is_some() || cuts > 5_000);
}

/// A hundred thousand files: what they take in memory, and that a mount finds them all.
#[test]
fn metadata_is_small() {
    let device = SimDevice::new(1 << 30, 512);
    mount::format(&*device, [9; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    const FILES: u64 = 100_000;
    for i in 0..FILES {
        let f = fs.create(Path::new(&format!("{i:06}.tbl"))).unwrap();
        f.append(&[IoSlice::new(&[7; 512])], Intent::Sync).unwrap();
    }
    fs.sync_metadata(Path::new("")).unwrap();
    let usage = fs.usage();
    assert_eq!((usage.files, usage.extents), (FILES, FILES));
    assert_eq!(usage.name_bytes, FILES * 10);
    assert!(
        usage.memory <= FILES * 64 + usage.extents * 8,
        "{} bytes a file: {usage:?}",
        usage.memory / FILES
    );
    fs.checkpoint().unwrap();
    let after = fs.usage();
    assert!(after.journal_bytes < usage.journal_bytes && after.checkpoints == 1);
    // A tenth goes, and the rest is found by a mount of checkpoint and journal.
    for i in (0..FILES).step_by(10) {
        fs.remove(Path::new(&format!("{i:06}.tbl"))).unwrap();
    }
    fs.sync_metadata(Path::new("")).unwrap();
    let before = fs.usage();
    let left = device.cut(DeviceCut::Nothing);
    let again = LavaFs::mount(left.clone(), &by_hand()).unwrap();
    let found = again.usage();
    assert_eq!(found.files, FILES - FILES / 10);
    assert_eq!(
        (found.extents, found.file_bytes),
        (before.extents, before.file_bytes)
    );
    // Little more is read than what there is of both.
    let read = left.stats().bytes_read;
    let there = found.checkpoint_bytes + before.journal_bytes;
    assert!(read < there + there / 2 + (2 << 20), "{read} of {there}");
}

/// What goes wrong with a write, a flush or a read: an error, and nothing that was durable is gone afterwards.
#[test]
fn after_a_failed_write_or_flush_nothing_is_believed() {
    use super::device::DeviceFault;
    for (n, fault) in (0..60).flat_map(|n| {
        [
            (n, DeviceFault::Write(n)),
            (n, DeviceFault::Flush(n)),
            (n, DeviceFault::Lost(n)),
        ]
    }) {
        let (device, fs) = fresh(512);
        device.fail(fault);
        let mut durable = Vec::new();
        let mut failed = false;
        for i in 0..12u8 {
            let name = format!("{i}");
            let run = || -> Result<()> {
                let f = fs.create(Path::new(&name))?;
                f.append(&[IoSlice::new(&[i; 600])], Intent::Sync)?;
                f.sync_data()?;
                fs.sync_metadata(Path::new(""))?;
                if i == 5 {
                    fs.checkpoint()?;
                }
                Ok(())
            };
            match run() {
                Ok(()) => {
                    let flush = matches!(fault, DeviceFault::Flush(_));
                    assert!(!(failed && flush), "{fault:?} at {n}: a sync is believed");
                    durable.push(i);
                }
                Err(e) => {
                    let kinds = [ErrorKind::Io, ErrorKind::Poisoned];
                    assert!(kinds.contains(&e.kind()), "{e}");
                    failed = true;
                }
            }
        }
        let struck = device.faults_left() == 0;
        let left = device.cut(DeviceCut::Nothing);
        let mounted = LavaFs::mount(left, &by_hand());
        if let DeviceFault::Lost(_) = fault {
            // A device that lies: a state of before, or an error, and no wrong bytes.
            let Ok(mounted) = mounted else { continue };
            for (i, f) in
                (0..12u8).filter_map(|i| Some((i, mounted.open(Path::new(&format!("{i}"))).ok()?)))
            {
                let got = f.read(0, 600).unwrap();
                assert!(got.is_empty() || got[..] == [i; 600] || struck, "{fault:?}");
            }
            continue;
        }
        let mounted = mounted.unwrap_or_else(|e| panic!("{fault:?} at {n}: {e}"));
        for i in durable {
            let f = mounted.open(Path::new(&format!("{i}")));
            let got = f.unwrap_or_else(|e| panic!("{fault:?}: {e}")).read(0, 600);
            assert_eq!(got.unwrap(), vec![i; 600], "{fault:?}");
        }
    }
}

/// A lost write of the journal that something later proves to have been durable is damage, and never passed over.
#[test]
fn a_lost_transaction_is_found() {
    let (device, fs) = fresh(512);
    let dir = Path::new("");
    fs.create(Path::new("a")).unwrap();
    fs.sync_metadata(dir).unwrap();
    device.fail(super::device::DeviceFault::Lost(0));
    fs.create(Path::new("lost")).unwrap();
    fs.sync_metadata(dir).unwrap();
    let after = device.cut(DeviceCut::Nothing);
    assert!(
        LavaFs::mount(after, &by_hand()).is_ok(),
        "nothing tells it from a torn tail"
    );
    fs.create(Path::new("b")).unwrap();
    fs.sync_metadata(dir).unwrap();
    let after = device.cut(DeviceCut::Nothing);
    let e = LavaFs::mount(after, &by_hand()).err().expect("damage");
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(
        e.to_string().contains("transaction 2 is not readable"),
        "{e}"
    );
    // A clean end says how far the journal went.
    drop(fs);
    let (device, fs) = fresh(512);
    fs.create(Path::new("a")).unwrap();
    drop(fs);
    let journal = runs::BLOCK * layout::FIRST_BLOCK;
    device.damage(journal + 512, &[0; 512]);
    let e = LavaFs::mount(device, &by_hand()).err().expect("damage");
    assert!(e.to_string().contains("a clean end said"), "{e}");
}

/// What a full image does: it takes removals, mounts as often as anybody likes, and space comes back.
#[test]
fn a_full_image_lives_on() {
    let device = SimDevice::new(8 << 20, 512);
    mount::format(&*device, [3; 16], false, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    let block = vec![5u8; 4096];
    let (mut files, mut full) = (0, None);
    while full.is_none() {
        let name = format!("{files:05}");
        let f = fs.create(Path::new(&name)).unwrap();
        match f.append(&[IoSlice::new(&block)], Intent::Sync) {
            Ok(_) => files += 1,
            Err(e) => full = Some(e),
        }
    }
    let full = full.expect("the loop's end");
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(files > 1000);
    // Every second one goes, and what is free lies in single blocks; one large file takes all of it.
    for i in (0..files).step_by(2) {
        fs.remove(Path::new(&format!("{i:05}"))).unwrap();
    }
    let large = fs.create(Path::new("large")).unwrap();
    for _ in 0..files / 2 {
        large.append(&[IoSlice::new(&block)], Intent::Sync).unwrap();
    }
    large.sync_all().unwrap();
    while large.append(&[IoSlice::new(&block)], Intent::Sync).is_ok() {}
    drop((large, fs));
    // Mounts by the dozen, each of which changes something, after a clean end or a power cut.
    let mut device = device;
    for round in 0..40 {
        let fs = LavaFs::mount(device.clone(), &by_hand())
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        fs.create(Path::new(&format!("round {round}"))).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        if round % 3 == 2 {
            device = device.cut(DeviceCut::Nothing);
        }
    }
    let fs = LavaFs::mount(device, &by_hand()).unwrap();
    assert!(fs.exists(Path::new("round 39")).unwrap());
    fs.remove(Path::new("large")).unwrap();
    let f = fs.create(Path::new("after")).unwrap();
    for _ in 0..files / 4 {
        f.append(&[IoSlice::new(&block)], Intent::Sync).unwrap();
    }
}

/// What was appended lazily outlives the process, with the space and the name that it needs.
#[test]
fn lazy_bytes_outlive_the_process() {
    let (device, fs) = fresh(512);
    let f = fs
        .create_log(
            Path::new("log"),
            LogOptions {
                capacity: 100_000,
                reuse: None,
            },
        )
        .unwrap();
    let g = fs.create(Path::new("file")).unwrap();
    for f in [&f, &g] {
        f.append(&[IoSlice::new(&[7; 5000])], Intent::Lazy).unwrap();
    }
    let left = LavaFs::mount(device.cut(DeviceCut::All), &by_hand()).unwrap();
    for name in ["log", "file"] {
        let f = left.open(Path::new(name)).unwrap();
        assert_eq!(f.read(0, 5000).unwrap(), vec![7; 5000], "{name}");
    }
}

/// Handles of a log's earlier life, files of another mount, and files that are removed while they are open.
#[test]
fn what_is_over_harms_nobody() {
    let (device, fs) = fresh(512);
    let log = |path: &str, reuse: Option<&Path>| {
        let capacity = 50_000;
        fs.create_log(Path::new(path), LogOptions { capacity, reuse })
    };
    let old = log("old", None).unwrap();
    old.append(&[IoSlice::new(&[1; 512])], Intent::Sync)
        .unwrap();
    let new = log("new", Some(Path::new("old"))).unwrap();
    for i in 0..80u8 {
        new.append(&[IoSlice::new(&[i; 512])], Intent::Sync)
            .unwrap();
    }
    let poisoned = |r: Result<()>| assert_eq!(r.unwrap_err().kind(), ErrorKind::Poisoned);
    poisoned(old.sync_all());
    poisoned(old.append(&[IoSlice::new(&[1])], Intent::Sync).map(|_| ()));
    poisoned(old.extend_log(1 << 20));
    old.release_range(0..1 << 20).unwrap();
    drop(old);
    let other = fs.create(Path::new("other")).unwrap();
    other
        .append(&[IoSlice::new(&[9; 100_000])], Intent::Sync)
        .unwrap();
    assert_eq!(new.read(512 * 79, 512).unwrap(), vec![79; 512]);
    // A file of another image is synced by its own, and read there.
    let (device2, fs2) = fresh(512);
    let far = fs2.create(Path::new("far")).unwrap();
    far.append(&[IoSlice::new(&[4; 600])], Intent::Sync)
        .unwrap();
    fs2.sync_metadata(Path::new("")).unwrap();
    far.append(&[IoSlice::new(&[5; 424])], Intent::Sync)
        .unwrap();
    fs.sync_files(&[new.clone(), far.clone()]).unwrap();
    let left = LavaFs::mount(device2.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    let got = left.open(Path::new("far")).unwrap().read(600, 424).unwrap();
    assert_eq!(got, vec![5; 424]);
    let request = |file: &Arc<dyn File>| ReadRequest {
        file: file.clone(),
        offset: 0,
        len: 600,
    };
    let mut reads = fs.submit_reads(vec![request(&far), request(&other)]);
    while let Some((i, got)) = reads.next() {
        assert_eq!(got.unwrap(), vec![[4, 9][i]; 600]);
    }
    drop(reads);
    // Space of a removed file is free once nobody has it open and the removal is durable, whichever is later.
    let before = fs.usage().free_bytes;
    let size = fs.stat(Path::new("other")).unwrap().on_disk;
    fs.remove(Path::new("other")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    assert_eq!(fs.usage().free_bytes, before);
    drop(other);
    assert_eq!(fs.usage().free_bytes, before + size);
    drop((new, fs));
    LavaFs::mount(device, &by_hand()).expect("nothing is in two files");
}

/// Metadata that somebody made up, with right checksums: a mount refuses it or takes it, and nothing panics.
#[test]
fn no_metadata_makes_a_mount_panic() {
    use super::frame::{CheckpointPiece, Transaction};
    let mut refused = 0;
    let (device, fs) = fresh(512);
    let dir = Path::new("");
    fs.create_dir(Path::new("d")).unwrap();
    for i in 0..6 {
        let f = fs.create(Path::new(&format!("d/{i}"))).unwrap();
        f.append(&[IoSlice::new(&[1; 9000])], Intent::Sync).unwrap();
        f.release_range(0..4096).unwrap();
        f.sync_all().unwrap();
        if i == 2 {
            fs.link(Path::new("r0"), Path::new("l")).unwrap();
            fs.checkpoint().unwrap();
        }
        fs.rename(Path::new(&format!("d/{i}")), Path::new(&format!("r{i}")))
            .unwrap();
        fs.sync_metadata(dir).unwrap();
    }
    let uuid = [7; 16];
    let superblock = fs.shared.journal.lock().superblock.clone();
    // Where frames lie: all units of the device's first megabytes that are one.
    let all = device.peek(0, 4 << 20);
    let rounds = 3000 * scale();
    for round in 0..rounds {
        let mut c = crate::chance::Chance::of(&[round, 99]);
        let broken = device.cut(DeviceCut::All);
        let mutate = |c: &mut crate::chance::Chance, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for _ in 0..=c.below(3) {
                let at = c.below(bytes.len() as u64) as usize;
                match c.below(4) {
                    0 => bytes[at] = c.next_u64() as u8,
                    1 => bytes[at] ^= 1 << c.below(8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, c.pick(&[0, 1, 0x7f, 0x80, 0xff])),
                }
            }
            bytes
        };
        match c.below(3) {
            0 => {
                let mut s = superblock.clone();
                let wild = c.pick(&[0, 1, 200, 1 << 20, 1 << 33, 1 << 59, u64::MAX]);
                match c.below(7) {
                    0 => s.blocks = wild,
                    1 => s.checkpoint_bytes = wild,
                    2 => s.checkpoint_seq = wild,
                    3 => s.clean_seq = wild,
                    4 => s.journal_blocks = wild as u32,
                    5 => s.checkpoint[0].start = wild,
                    _ => s.checkpoint[0].len = wild,
                }
                for at in layout::SUPERBLOCKS {
                    broken.damage(at, &s.encode(at));
                }
            }
            1 => {
                let at = superblock.checkpoint[0].start * BLOCK;
                let bytes = &all[at as usize..];
                let (piece, _) = CheckpointPiece::decode(bytes, &uuid, at, 512).unwrap();
                let records = mutate(&mut c, piece.records);
                let piece = CheckpointPiece {
                    records: &records,
                    ..piece
                };
                let bytes = piece.encode(&uuid, at, 512);
                let mut s = superblock.clone();
                s.checkpoint_bytes = bytes.len() as u64;
                broken.damage(at, &bytes);
                for at in layout::SUPERBLOCKS {
                    broken.damage(at, &s.encode(at));
                }
            }
            _ => {
                let found: Vec<u64> = (0..all.len() as u64 / 512)
                    .map(|n| n * 512)
                    .filter(|at| {
                        let bytes = &all[*at as usize..];
                        let t = Transaction::decode(bytes, &uuid, *at, 512);
                        t.is_some_and(|(t, _)| t.seq > superblock.checkpoint_seq)
                    })
                    .collect();
                let at = found[c.below(found.len() as u64) as usize];
                let (t, _) = Transaction::decode(&all[at as usize..], &uuid, at, 512).unwrap();
                let records = mutate(&mut c, t.records);
                let t = Transaction {
                    records: &records,
                    ..t
                };
                broken.damage(at, &t.encode(&uuid, at, 512));
            }
        }
        if let Ok(fs) = LavaFs::mount(broken, &by_hand()) {
            let (mut files, mut dirs) = (BTreeMap::new(), Vec::new());
            shown(&fs, "", &mut files, &mut dirs);
            for f in files.values() {
                let _ = f.read(0, 20_000);
            }
        } else {
            refused += 1;
        }
    }
    crate::campaign!("made-up metadata: rounds={rounds} refused={refused}");
    assert!(refused > rounds / 4 && refused < rounds);
}
