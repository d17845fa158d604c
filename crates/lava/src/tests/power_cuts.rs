//! Tests with power cuts after each write of the device, in random histories that also make
//! checkpoints, mount again, grow the image and discard. A mount finds a state of the history, and
//! a check finds no damage.

use super::*;
use super::{by_hand, fresh, scale};
use basalt_fs::Intent;
use basalt_fs::device::Device;
use basalt_sim::{DeviceCut, DeviceSnapshot, SimDevice};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::IoSlice;

/// The expected content of a filesystem at one moment: names, and the bytes that must be there.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Shown {
    /// Files by name, with a number for each inode.
    names: BTreeMap<String, u64>,
    dirs: Vec<String>,
}

/// A history on a filesystem with all its promises, and the devices that a power cut may leave
/// after each write.
pub(super) struct History {
    rng: basalt_sim::rng::Rng,
    device: Arc<SimDevice>,
    fs: Arc<LavaFs>,
    now: Shown,
    /// States from the last durable one on, oldest first.
    since: Vec<Shown>,
    /// The lists of states before the last times that something became durable.
    before: VecDeque<Vec<Shown>>,
    /// Writes may go astray, so the history has no new mounts.
    pub(super) lies: bool,
    files: BTreeMap<u64, Arc<dyn File>>,
    /// The appended bytes of each file, and the number of them that is durable.
    bytes: BTreeMap<u64, (Vec<u8>, usize)>,
    next: u64,
}

const NAMES: [&str; 8] = ["a", "b", "c", "d/a", "d/b", "d/e/c", "x", "y"];

impl History {
    fn name(&mut self) -> String {
        let n = self.rng.below(NAMES.len() as u64) as usize;
        NAMES[n].to_string()
    }

    /// Notes that all changes so far are durable.
    fn durable(&mut self) {
        if self.since[..] == [self.now.clone()] {
            // No write could go astray here.
            return;
        }
        let since = std::mem::replace(&mut self.since, vec![self.now.clone()]);
        self.before.push_back(since);
        if self.before.len() > 2 {
            self.before.pop_front();
        }
    }

    pub(super) fn new(seed: u64, device: &Arc<SimDevice>, fs: Arc<LavaFs>) -> History {
        History {
            rng: basalt_sim::rng::Rng::of(&[seed, 77]),
            device: Arc::clone(device),
            fs,
            now: Shown::default(),
            since: vec![Shown::default()],
            before: VecDeque::new(),
            lies: false,
            files: BTreeMap::new(),
            bytes: BTreeMap::new(),
            next: 0,
        }
    }

    /// Writes many transactions without a flush, so that the journal has several extents.
    fn burst(&mut self) {
        for n in 0..self.rng.below(400) {
            self.next += 1;
            let name = format!("burst {}", self.next);
            let f = self.fs.create(Path::new(&name)).unwrap();
            self.now.names.insert(name.clone(), self.next);
            self.changed();
            f.append(&[IoSlice::new(&[n as u8; 10])], Intent::Lazy)
                .unwrap();
            self.fs.remove(Path::new(&name)).unwrap();
            self.now.names.remove(&name);
            self.changed();
        }
    }

    /// Returns the states that a mount may find if an acknowledged durable write was lost: those
    /// since the last time that something became durable, and since the time before.
    pub(super) fn states(&self) -> (Shown, Vec<Shown>) {
        let all = self.before.iter().flatten().chain(&self.since);
        (self.now.clone(), all.cloned().collect())
    }

    pub(super) fn sync(&mut self) {
        self.fs.sync_metadata(Path::new("")).unwrap();
        self.durable();
    }

    fn changed(&mut self) {
        self.since.push(self.now.clone());
    }

    pub(super) fn step(&mut self) {
        let (a, b) = (self.name(), self.name());
        let (pa, pb) = (PathBuf::from(&a), PathBuf::from(&b));
        let ids: Vec<u64> = self.files.keys().copied().collect();
        let some = match ids.len() {
            0 => None,
            n => Some(ids[self.rng.below(n as u64) as usize]),
        };
        match self.rng.below(22) {
            0..3 => {
                let reuse = self.rng.percent(30);
                let made = match (self.rng.coin(), reuse) {
                    (true, _) => self.fs.create(&pa),
                    (false, false) => self.fs.create_log(
                        &pa,
                        LogOptions {
                            capacity: self.rng.below(50_000),
                            reuse: None,
                        },
                    ),
                    (false, true) => {
                        // The bytes of the old log may be overwritten even if the names stay.
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
                    let top = self.rng.pick(&[100, 600, 5_000, 70_000, 700_000]);
                    let mut bytes = vec![0; self.rng.below(top) as usize];
                    self.rng.fill(&mut bytes);
                    let intent = match self.rng.below(4) {
                        0 => Intent::Sync,
                        1 => Intent::Lazy,
                        _ => Intent::Bulk,
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
                    // Space ahead is allocated and freed, whole or in parts.
                    let end = all.len() as u64;
                    match end % 5 {
                        0 => file.expect_appends(end + 200_000),
                        1 => file.release_range(end..1 << 40).unwrap(),
                        2 => file.release_range(end + 9_000..end + 90_000).unwrap(),
                        _ => {}
                    }
                }
            }
            9..12 => {
                if let Some(id) = some {
                    match self.rng.below(3) {
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
            13 => self.sync(),
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
                let dir = self.rng.pick(&["d", "d/e"]);
                self.fs.create_dir(Path::new(dir)).unwrap();
                for dir in ["d", dir] {
                    if !self.now.dirs.contains(&dir.to_string()) {
                        self.now.dirs.push(dir.to_string());
                        self.changed();
                    }
                }
            }
            18 => self.fs.checkpoint().unwrap(),
            19 => self.fs.discard(),
            20 => {
                let more = self.rng.below(3) << 20;
                self.device.grow(more);
                // An earlier attempt may have been cut, and left bytes there.
                let longer = self.device.facts().len - self.fs.usage().total_bytes;
                assert_eq!(self.fs.grow().unwrap(), longer);
            }
            _ if self.lies => {}
            _ => {
                // The device is mounted again.
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

impl Shown {
    /// Asserts the names of the filesystem.
    pub(super) fn is(&self, files: &BTreeMap<String, Arc<dyn File>>, dirs: &[String]) -> bool {
        let mut own = self.dirs.clone();
        own.sort();
        own == dirs && self.names.keys().eq(files.keys())
    }
}

/// Returns the names and files that a filesystem shows.
pub(super) fn shown(
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

/// The promises at one moment.
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

    /// Asserts that a mount finds one of the states since the last durable one, with the durable
    /// bytes. Returns the index of the state.
    fn check(&self, device: Arc<SimDevice>, place: &str) -> (Arc<LavaFs>, Shown) {
        let checked = check::check(&*device, Path::new("image")).unwrap();
        assert!(checked.is_sound(), "{place}: {:?}", checked.damage);
        let fs = LavaFs::mount(device, &by_hand()).unwrap_or_else(|e| panic!("{place}: {e}"));
        let (mut files, mut dirs) = (BTreeMap::new(), Vec::new());
        shown(&fs, "", &mut files, &mut dirs);
        dirs.sort();
        let same = |s: &&Shown| s.is(&files, &dirs);
        let states: Vec<&Shown> = self.since.iter().filter(same).collect();
        assert!(
            !states.is_empty(),
            "{place}: {:?} and {dirs:?} are none of {:?}",
            files.keys(),
            self.since
        );
        // One of the states with these names has the right bytes.
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

/// Random histories with a power cut after each write of the device. A mount finds a state of the
/// history that is no older than the durable one, with all durable bytes.
#[test]
fn a_power_cut_after_any_write_leaves_a_state_of_the_history() {
    let (mut cuts, mut writes) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..120 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_after_any_write_leaves_a_state_of_the_history,
            "BASALT_CASE={seed}"
        );
        let (device, fs) = fresh(if seed % 5 == 4 { 4096 } else { 512 });
        let taken = Arc::new(Mutex::new(Vec::new()));
        let mut h = History::new(seed, &device, fs);
        let into = Arc::clone(&taken);
        device.on_write(move |snapshot| into.lock().push(snapshot));
        for step in 0..60 {
            let before = Promise::of(&h);
            h.step();
            let snapshots = std::mem::take(&mut *taken.lock());
            let mut promise = Promise::of(&h);
            // A running call promises nothing yet, and may have changed something.
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
        // The image is mounted after the power cut. Frames behind the end of the journal are never
        // read as later transactions.
        let mut device = device;
        let mut promise = Promise::of(&h);
        for life in 0..8 {
            // Or only the process dies: its writes without a flush are there for the next mount,
            // which must make them durable.
            device = match h.rng.percent(40) {
                true => device.snapshot().killed(),
                false => device.cut(match life % 3 {
                    0 => DeviceCut::Some(seed * 10 + life),
                    1 => DeviceCut::Prefix(seed * 10 + life),
                    _ => DeviceCut::Suffix(seed * 10 + life),
                }),
            };
            let place = format!("seed {seed}, life {life}");
            let (fs, found) = promise.check(Arc::clone(&device), &place);
            h.files.clear();
            h.fs = fs;
            h.device = device.clone();
            h.bytes
                .retain(|id, _| found.names.values().any(|n| n == id));
            for (id, (all, durable)) in &mut h.bytes {
                *durable = promise.durable.get(id).map_or(0, |d| d.len());
                all.truncate(*durable);
            }
            h.now = found;
            h.durable();
            for _ in 0..h.rng.below(25) {
                h.step();
            }
            if h.rng.percent(15) {
                h.burst();
            }
            // The last step is cut at one of its writes, mostly at one of a checkpoint.
            let taken = Arc::new(Mutex::new(Vec::new()));
            let into = Arc::clone(&taken);
            device.on_write(move |snapshot| into.lock().push(snapshot));
            promise = Promise::of(&h);
            let before: Vec<u64> = h.bytes.keys().copied().collect();
            match h.rng.coin() {
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
                let n = h.rng.below(snapshots.len() as u64) as usize;
                device = match h.rng.coin() {
                    true => snapshots[n].cut(DeviceCut::Some(seed + life)),
                    false => snapshots[n].killed(),
                };
            }
            cuts += 1;
        }
    }
    basalt_sim::campaign!("power cuts: writes={writes} states={cuts}");
    assert!(basalt_sim::campaign::case().is_some() || cuts > 5_000);
}

/// Returns a snapshot of the device after each write or flush of `run`.
fn snapshots_of(device: &Arc<SimDevice>, run: impl FnOnce()) -> Vec<DeviceSnapshot> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&all);
    device.on_write(move |state| seen.lock().push(state));
    run();
    device.on_write(|_| ());
    std::mem::take(&mut all.lock())
}

fn superblock_bytes(device: &SimDevice) -> [Vec<u8>; 2] {
    layout::SUPERBLOCKS.map(|at| device.peek(at, 4096))
}

/// Regression test: both copies of the superblock were written under one flush. A power cut can
/// then tear both, and the image is lost. With small units this shows only if a checkpoint has so
/// many runs that they reach the second unit, so the test checks the order of writes itself.
#[test]
fn one_superblock_is_always_durable() {
    let device = SimDevice::new(8 << 20, 512);
    let format = || format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let mut all = snapshots_of(&device, format);
    let made = all.len();
    let options = by_hand();
    all.extend(snapshots_of(&device, || {
        let fs = LavaFs::mount(device.clone(), &options).unwrap();
        fs.create(Path::new("a")).unwrap();
        fs.checkpoint().unwrap();
        device.grow(1 << 20);
        fs.grow().unwrap();
        fs.create(Path::new("b")).unwrap();
        // The clean unmount.
        drop(fs);
    }));
    // The mount writes the stale copy again.
    device.damage(layout::SUPERBLOCKS[1], &[0; 4096]);
    let mount = || drop(LavaFs::mount(device.clone(), &options).unwrap());
    all.extend(snapshots_of(&device, mount));
    let mut written = 0;
    for (n, state) in all.iter().enumerate() {
        let durable = superblock_bytes(&state.cut(DeviceCut::Nothing));
        let now = superblock_bytes(&state.cut(DeviceCut::All));
        let open = durable.iter().zip(&now).filter(|(a, b)| a != b).count();
        assert!(open < 2, "moment {n} ({made} of them by the format)");
        written += open;
    }
    // The format, the checkpoint, the growth and the unmount write two each, and the last mount
    // one.
    assert!(written >= 9, "{written} writes were seen");
}

/// Regression test: the stale copy of the superblock that a power cut had left stayed as it was.
/// The space that it leads to was allocated again. When the newer copy was damaged, a mount
/// followed the older one into that space.
#[test]
fn a_mount_rewrites_a_stale_superblock_before_allocating() {
    let (device, fs) = fresh(512);
    fs.create(Path::new("a")).unwrap();
    let all = snapshots_of(&device, || fs.checkpoint().unwrap());
    let stale = |device: &SimDevice| match probe::probe(device, Path::new("image")).unwrap() {
        probe::Probed::Image(_, stale) => stale.len(),
        _ => panic!("no image"),
    };
    let differ = |state: &&DeviceSnapshot| stale(&state.cut(DeviceCut::Nothing)) == 1;
    let between = all.iter().find(differ).expect("one copy after the other");
    // The stale copy is the older one after a power cut, or either of them if it is unreadable.
    for damaged in [None, Some(0), Some(1)] {
        let device = match damaged {
            None => between.cut(DeviceCut::Nothing),
            Some(copy) => {
                let device = device.cut(DeviceCut::Nothing);
                device.damage(layout::SUPERBLOCKS[copy], &[0; 4096]);
                device
            }
        };
        assert_eq!(stale(&device), 1);
        let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
        fs.abandon();
        assert_eq!(stale(&device.cut(DeviceCut::Nothing)), 0, "{damaged:?}");
        for copy in layout::SUPERBLOCKS {
            let device = device.cut(DeviceCut::Nothing);
            device.damage(copy, &[0; 4096]);
            let fs = LavaFs::mount(device, &by_hand()).unwrap();
            assert!(fs.exists(Path::new("a")).unwrap());
        }
    }
}

/// Regression test: a process died, and its last writes were only in the memory of the device. The
/// next mount took them for durable without a flush. A sync that found nothing to write then
/// promised names that a power cut took away. Later transactions said of lost ones that they were
/// durable, so the image was refused as damaged.
#[test]
fn a_mount_flushes_the_writes_of_the_last_process() {
    let (device, fs) = fresh(512);
    let write = |fs: &LavaFs, name: &str| {
        let f = fs.create(Path::new(name)).unwrap();
        // The name is in the journal without a flush.
        f.append(&[IoSlice::new(&[7; 5000])], Intent::Lazy).unwrap();
    };
    write(&fs, "a");
    let killed = device.snapshot().killed();
    let durable = LavaFs::mount(killed.cut(DeviceCut::Nothing), &by_hand()).unwrap();
    assert!(!durable.exists(Path::new("a")).unwrap());
    let fs = LavaFs::mount(killed.clone(), &by_hand()).unwrap();
    assert!(fs.exists(Path::new("a")).unwrap());
    fs.sync_metadata(Path::new("")).unwrap();
    let left = killed.cut(DeviceCut::Nothing);
    let again = LavaFs::mount(left, &by_hand()).unwrap();
    assert!(again.exists(Path::new("a")).unwrap());
    // The device keeps the later writes without the earlier ones.
    write(&fs, "b");
    for seed in 0..40 {
        let left = killed.cut(DeviceCut::Suffix(seed));
        let again = LavaFs::mount(left, &by_hand());
        let again = again.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(again.exists(Path::new("a")).unwrap(), "seed {seed}");
    }
}
